//! Scenarios of objects whose records are discarded, and which are still in the object store: what leads to the end of the log then.

use super::{Check, OWN, Stage};
use crate::backup::slices;
use crate::error::Error;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::segment::Opening;
use crate::store::format::slices::{Block, Slice};
use crate::store::objects::slice_names::SliceName;
use crate::store::segment::Base;
use crate::testing::sim::machine::Request;
use crate::testing::sim::world::World;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::ops::RangeInclusive;
use std::time::Duration;

const LOG: LogId = LogId(3);
const TERM: Term = Term(4);

/// All objects are discarded, their files are gone, and the object store takes nothing: only older slices lead from these objects to the
/// end, so their payload stays.
pub(super) fn payload_stays_until_a_state_leads() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let (leader, log) = (stage.leader()?, stage.world.log.ok_or("there is no log")?);
    stage.advance(Duration::from_secs(2))?;
    stage.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
    stage.advance(Duration::from_secs(2))?;
    if stage.world.machine(leader).is_none_or(|machine| machine.objects().0.is_empty()) {
        return Err("no object is stored".to_owned());
    }
    // From here on no object is stored. Blocks that refer to payload, and others that fill files sooner.
    vault.refuse_parts(&["/o/"]);
    for _ in 0..8 {
        stage.append_each(1)?;
        stage.begin_small(1_000)?;
        stage.advance(Duration::from_millis(500))?;
    }
    stage.advance(Duration::from_secs(2))?;
    vault.refuse_parts(&["/"]);
    stage.discard_all_but(10)?;
    let before = vault.payloads(log);
    stage.advance(Duration::from_secs(5))?; // the oracle looks for the payload of all entries that a fetch takes
    if vault.payloads(log) != before {
        return Err("payload went before a slice began with a state".to_owned());
    }
    vault.refuse_parts(&["/o/"]);
    stage.until("payload of discarded records goes", |_| vault.payloads(log) < before)
}

impl Stage {
    /// Appends records, one after the other.
    fn append_each(&mut self, count: u64) -> Check {
        for _ in 0..count {
            let ticket = self.begin()?;
            self.is_answered(&ticket)?;
        }
        Ok(())
    }

    /// Discards all records except the last ones.
    fn discard_all_but(&mut self, kept: u64) -> Check {
        let (leader, first) = (self.leader()?, Index(self.records + 1 - kept));
        match self.submit(leader, Request::Discard(OWN, first))? {
            Some(error) => Err(format!("the discard is refused: {error:?}")),
            None => Ok(()),
        }
    }

    /// Ends an object with the last record.
    fn cut(&mut self) -> Check {
        let leader = self.leader()?;
        self.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
        self.world.wake_all(leader);
        self.advance(Duration::from_secs(1))
    }

    /// Waits until all records up to this one are in objects that are stored.
    fn until_stored(&mut self, last: Index) -> Check {
        let leader = self.leader()?;
        let upto = |w: &mut World| w.machine(leader).map(|machine| machine.stored_upto());
        self.until("the object is stored", |w| upto(w).is_some_and(|upto| upto >= last))
    }
}

/// A slice begins with a state before the end of an object that is stored later. Payload of that object goes, and then its records are
/// discarded: the slice does not lead to the end any more, also not for a leader that finds it in the object store.
pub(super) fn state_before_discarded_objects_leads_nowhere() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let (leader, log) = (stage.leader()?, stage.world.log.ok_or("there is no log")?);
    stage.append_each(1)?;
    stage.cut()?;
    stage.until_stored(Index(stage.records))?;
    // The next slice begins with the state before the first record, and reaches over the end of the objects that come then.
    vault.refuse_parts(&["/o/", "/s/"]);
    stage.append_each(12)?;
    stage.discard_all_but(12)?;
    vault.refuse_parts(&["/o/"]);
    let names =
        || -> Vec<_> { vault.names().iter().filter_map(|name| SliceName::parse(log, name)).collect() };
    stage.until("a slice begins with the state", |_| names().iter().any(|name| name.begins))?;
    let before = vault.payloads(log);
    vault.refuse_parts(&[]);
    stage.until("payload of objects goes", |_| vault.payloads(log) < before)?;
    stage.advance(Duration::from_secs(5))?;
    let stored = stage.world.machine(leader).map_or(Index(0), |machine| machine.stored_upto());
    vault.refuse_parts(&["/o/"]);
    stage.append_each(3)?;
    if !names().iter().any(|name| name.begins) {
        return Err("no slice that begins with a state reaches over the end of the objects".to_owned());
    }
    vault.refuse_parts(&["/o/", "/s/"]);
    stage.discard_all_but(stage.records - stored.get())?;
    stage.cut_power(leader)?;
    stage.world.start(leader)?;
    stage.until("it leads again", |w| w.leader() == Some(leader))?;
    stage.advance(Duration::from_secs(1))?;
    vault.refuse_parts(&["/o/"]);
    let objects = || vault.names().iter().filter(|name| name.contains("/o/")).count();
    stage.until("objects of discarded records go", |_| objects() == 0)?; // the oracle looks for what leads to the end
    stage.advance(Duration::from_secs(5))
}

/// A slice that begins with a state arrives damaged. Nothing is deleted because of it: a sound one is put.
pub(super) fn damaged_state_leads_nowhere() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    stage.append_each(1)?;
    stage.cut()?;
    stage.until_stored(Index(stage.records))?;
    vault.refuse_parts(&["/o/"]);
    stage.append_each(3)?;
    vault.spoil(".begin");
    stage.discard_all_but(3)?;
    stage.until("the state arrives damaged", |_| !vault.is_to_spoil())?;
    // Its name says how far it reaches: another one can be put instead.
    let is_sound = || {
        vault.names().iter().any(|name| name.ends_with(".begin") && Some(name) != vault.spoiled().as_ref())
    };
    stage.until("a sound one is put", |_| is_sound() || vault.spoiled().is_none())?;
    stage.advance(Duration::from_secs(5)) // the oracle looks for what leads to the end
}

/// A leader finds a slice that begins with the log's state and cannot be read. It puts another one, and all goes on.
pub(super) fn unreadable_state_stops_nothing() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let leader = stage.leader()?;
    stage.append_each(1)?;
    stage.cut()?;
    stage.until_stored(Index(stage.records))?;
    vault.refuse_parts(&["/o/"]);
    stage.append_each(3)?;
    stage.discard_all_but(3)?;
    let states = || -> Vec<_> { vault.names().into_iter().filter(|name| name.ends_with(".begin")).collect() };
    stage.until("a slice begins with the state", |_| !states().is_empty())?;
    let before = states();
    let name = before.first().ok_or("there is no state")?;
    vault.poison(name);
    stage.cut_power(leader)?;
    stage.world.start(leader)?;
    stage.until("it leads again", |w| w.leader() == Some(leader))?;
    stage.append_each(3)?;
    stage.until("another state is put", |_| states().iter().any(|state| state != name))?;
    stage.append_each(3)
}

/// An entry without an effect.
fn entry(raft: u64) -> Block {
    let position = (EntryIndex(raft), TERM);
    (BlockHeader::without_records(Kind::NoOp, position, Index(7), Timestamp(0), b""), Bytes::new())
}

/// A slice of these entries; of one that begins with a state, behind the entry before them.
fn put(vault: &dyn Vault, entries: RangeInclusive<u64>, begins: bool) -> Result<SliceName, Error> {
    let before = EntryIndex(entries.start() - 1);
    let opening = Opening { base_raft: before, base_term: TERM, ..Opening::default() }.encode();
    let header =
        BlockHeader::without_records(Kind::Opening, (before, TERM), Index(7), Timestamp(0), &opening);
    let slice = Slice {
        log: LOG,
        base: Base { raft: before, term: TERM, next: Index(7) },
        opening: begins.then(|| (header, opening.into())),
        entries: entries.map(entry).collect(),
    };
    let (last, term) = slice.last();
    let name = SliceName { log: LOG, first: before.next(), last, term, begins };
    vault.put(&name.to_string(), &[slice.encode(name.salt()).concat().into()])?;
    Ok(name)
}

/// Slices lead on from the end of the objects, entry 9, and from a state behind it. All records of the objects are discarded then, and
/// payload up to that state may be gone. Before their end, the objects have more records than a state.
pub(super) fn state_behind_objects_leads() -> Check {
    let wrong = |error: Error| error.to_string();
    for (begin, leads) in [(8, false), (9, false), (10, true), (12, true)] {
        let vault = MemoryVault::default();
        put(&vault, 8..=14, false).map_err(wrong)?;
        put(&vault, begin..=15, true).map_err(wrong)?;
        let last = put(&vault, 15..=20, false).map_err(wrong)?;
        let names = slices::names(&vault, LOG).map_err(wrong)?;
        let chain =
            slices::longest(&vault, &names, Some((EntryIndex(9), TERM)), &mut |_| {}).map_err(wrong)?;
        if chain.begins != leads || chain.slices.last() != Some(&last) {
            return Err(format!("with a state before entry {begin} a log is made of {:?}", chain.slices));
        }
    }
    Ok(())
}
