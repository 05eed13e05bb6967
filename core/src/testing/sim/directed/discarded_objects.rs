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
    vault.refuse_part(Some("/o/".to_owned()));
    let hang = Duration::from_secs(1_000);
    for _ in 0..8 {
        let ticket = stage.begin()?;
        stage.is_answered(&ticket)?;
        for _ in 0..1_000 {
            let batch = stage.batch(0)?;
            let Some(machine) = stage.world.machine(leader) else {
                return Err("the leader does not run".to_owned());
            };
            let sent = machine.submit(Request::Append(OWN, batch), hang, u64::MAX);
            drop(sent.map_err(|error| error.to_string())?);
        }
        stage.world.wake_all(leader);
        stage.advance(Duration::from_millis(500))?;
    }
    stage.advance(Duration::from_secs(2))?;
    vault.refuse_part(Some("/".to_owned()));
    let discarded = Request::Discard(OWN, Index(stage.records - 9));
    if let Some(error) = stage.submit(leader, discarded)? {
        return Err(format!("the discard is refused: {error:?}"));
    }
    let before = vault.payloads(log);
    stage.advance(Duration::from_secs(5))?; // the oracle looks for the payload of all entries that a fetch takes
    vault.refuse_part(None);
    stage.until("payload of discarded records goes", |_| vault.payloads(log) < before)
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
