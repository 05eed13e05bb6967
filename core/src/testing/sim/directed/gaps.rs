//! Scenarios of gaps between slices of entries: none is left by a log with payload slices, and payload fills one only if the slices behind
//! it say so.

use super::{Check, ELECTION_TIMEOUT, Stage};
use crate::backup::tail::Tail;
use crate::backup::{slices, tail};
use crate::error::Error;
use crate::options::log_options::LogOption;
use crate::record::batch::{Batch, BatchBuilder};
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId, Reference};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, digest_of_batches};
use crate::store::format::segment::digest_of_bytes;
use crate::store::format::slices::{Block, Slice};
use crate::store::objects::payloads::{PayloadHead, payload_name};
use crate::store::objects::slice_names::SliceName;
use crate::store::segment::Base;
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::time::Duration;

/// Stores slices, and no payload slices unless the option is set.
const SEED: u64 = 2;

/// The object store does not take the next slice of entries, whatever else it takes: then it has none behind it.
pub(super) fn no_slice_is_stored_behind_a_gap() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let log = stage.world.log.ok_or("there is no log")?;
    stage.advance(ELECTION_TIMEOUT)?;
    vault.refuse_parts(&["/s/"]);
    // More than a slice of blocks that are too small for payload.
    for _ in 0..12 {
        stage.begin_small(1_000)?;
        stage.advance(Duration::from_millis(20))?;
    }
    let last = |names: &[SliceName]| names.iter().map(|name| name.last).max().unwrap_or_default();
    let names =
        || -> Vec<_> { vault.names().iter().filter_map(|name| SliceName::parse(log, name)).collect() };
    let end = last(&names());
    vault.refuse_parts(&[&format!("/s/{:020}.", end.next().0)]);
    stage.advance(Duration::from_secs(5))?;
    let behind = last(&names());
    vault.refuse_parts(&[]);
    match behind == end {
        true => stage.until("slices are stored again", |_| last(&names()) > end),
        false => Err(format!("a slice up to entry {behind} is there, and none with entry {}", end.next())),
    }
}

/// A log begins to refer to payload when objects have all that was before, and slices of that are deleted. Its first payload does not count
/// before an entry that refers to it is in a slice: nothing else says where it is.
pub(super) fn first_payload_counts_once_a_slice_refers_to_it() -> Check {
    let mut stage = Stage::with(1, 0, Plan { objects: true, ..Plan::calm(SEED) })?;
    let Some(vault) = stage.world.vault.clone() else {
        return Err("there is no object store".to_owned());
    };
    let (leader, log) = (stage.leader()?, stage.world.log.ok_or("there is no log")?);
    for _ in 0..3 {
        stage.append()?;
    }
    stage.cut_power(leader)?;
    stage.world.start(leader)?;
    stage.until("it leads again", |w| w.leader() == Some(leader))?;
    stage.advance(ELECTION_TIMEOUT)?;
    stage.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
    let count = || vault.names().iter().filter(|name| SliceName::parse(log, name).is_some()).count();
    stage.advance(Duration::from_secs(20))?;
    let before = count();
    let set = vec![(LogOption::PayloadSlices, Some(1))];
    if let Some(error) = stage.submit(leader, Request::SetOptions(LogNumber::OWN, set))? {
        return Err(format!("the option is refused: {error:?}"));
    }
    stage.advance(Duration::from_secs(2))?;
    if before > 2 {
        return Err(format!("{before} slices are left, although an object has all of their entries"));
    }
    vault.refuse_parts(&["/s/"]);
    let ticket = stage.begin()?;
    stage.is_answered(&ticket)?; // the oracle looks for it
    vault.refuse_parts(&[]);
    stage.advance(Duration::from_secs(2))
}

/// Slices of another history are in the object store, as after a forced change of members, or behind a log that was restored.
pub(super) fn slices_of_another_history_hide_nothing() -> Check {
    nothing_counts_before_those_of_a_later_term()?;
    those_of_an_earlier_term_hide_no_payload()
}

/// They are of a later term than the leader's. A log that is made of the object store could follow them, so no append counts as being
/// there.
fn nothing_counts_before_those_of_a_later_term() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let (leader, log) = (stage.leader()?, stage.world.log.ok_or("there is no log")?);
    stage.advance(Duration::from_secs(5))?;
    stage.cut_power(leader)?;
    let (first, last) = (EntryIndex(10_000), EntryIndex(10_010));
    let name = SliceName { log, first, last, term: Term(1_000), begins: false };
    vault.leave(&name.to_string()).map_err(|error| error.to_string())?;
    stage.world.start(leader)?;
    stage.until("it leads again", |w| w.leader() == Some(leader))?;
    let whole = |stage: &mut Stage| stage.world.machine(leader).map(|machine| machine.in_store_upto());
    let before = whole(&mut stage);
    let ticket = stage.begin()?;
    stage.is_answered(&ticket)?;
    match whole(&mut stage) == before {
        true => Ok(()),
        false => Err("an append counts as being in the object store alone".to_owned()),
    }
}

const LOG: LogId = LogId(3);
const TERM: Term = Term(4);

/// An object store with payload slices of one batch each, which has as many records as its number.
struct Store {
    vault: MemoryVault,
    batches: Vec<Batch>,
}

impl Store {
    fn with(payloads: u64) -> Result<Self, Error> {
        let (vault, mut batches) = (MemoryVault::default(), Vec::new());
        for sequence in 1..=payloads {
            let mut builder = BatchBuilder::new();
            for _ in 0..sequence {
                builder.push(&[7; 100])?;
            }
            let batch = builder.build()?;
            let id = PayloadId { term: TERM, sequence };
            let end = (PAYLOAD_HEADER_BYTES + batch.as_bytes().len()) as u32;
            let head = PayloadHead { batches: 1, time: Timestamp(0), end, ..PayloadHead::default() };
            let (begin, end) = head.encode(LOG, id);
            let pieces = [Bytes::copy_from_slice(&begin), batch.as_bytes().clone(), end.into()];
            vault.put(&payload_name(LOG, id), &pieces)?;
            batches.push(batch);
        }
        Ok(Self { vault, batches })
    }

    /// An entry that refers to the batch of this payload slice; 0: an entry without an effect.
    fn entry(&self, raft: u64, term: Term, first: u64, sequence: u64) -> Block {
        let batch = sequence.checked_sub(1).and_then(|n| self.batches.get(n as usize));
        let reference = batch.map(|batch| {
            let (length, crc) = (batch.as_bytes().len() as u32, batch.header().crc);
            let (slice, offset) = (PayloadId { term, sequence }, PAYLOAD_HEADER_BYTES as u32);
            let slice_bytes = offset + length + 4;
            Reference { slice, offset, length, crc, slice_bytes }.encode(batch.header())
        });
        let body = reference.map(|(_, bytes)| Bytes::copy_from_slice(&bytes)).unwrap_or_default();
        let header = BlockHeader {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: reference.iter().count() as u32,
            raft_index: EntryIndex(raft),
            term,
            first: Index(first),
            timestamp: Timestamp(0),
            record_count: sequence as u32,
            durable_upto: 0,
            body_digest: reference
                .map_or_else(|| digest_of_bytes(&[b""]), |(header, _)| digest_of_batches([header.crc])),
            kind: if reference.is_some() { Kind::Data } else { Kind::NoOp },
        };
        (header, body)
    }

    fn put(&self, before: Term, entries: Vec<Block>) -> Result<(), Error> {
        let Some((first, _)) = entries.first() else { return Ok(()) };
        let base = Base { raft: EntryIndex(first.raft_index.0 - 1), term: before, next: first.first };
        let slice = Slice { log: LOG, base, opening: None, entries };
        let (last, term) = slice.last();
        let name = SliceName { log: LOG, first: base.raft.next(), last, term, begins: false };
        self.vault.put(&name.to_string(), &[slice.encode(name.salt()).concat().into()])
    }

    /// The payload behind the slices that follow an object, which ends with entry 9.
    fn tail(&self) -> Result<Tail, Error> {
        let (vault, object) = (&self.vault, Some((EntryIndex(9), Term(2))));
        let (payloads, names) = (tail::payload_names(vault, LOG)?, slices::names(vault, LOG)?);
        let chain = slices::longest(vault, &names, object, &mut |_| {})?;
        tail::behind(vault, LOG, &payloads, &names, &chain, object)
    }
}

/// The payload slices of which a tail has batches.
fn of(tail: &Tail) -> Vec<u64> {
    tail.parts.iter().map(|part| part.slice.sequence).collect()
}

/// Slices of entries that are missing: the payload of the entries in them is taken only if the slices behind them say that the log has it.
pub(super) fn payload_fills_a_gap_if_slices_say_so() -> Check {
    /// A description; the entries behind the first one of the term, which is entry 10, in slices of one entry each (entry, first record,
    /// payload slice); the payload that counts; whether all records in these slices do.
    type Case = (&'static str, &'static [(u64, u64, u64)], &'static [u64], bool);
    let cases: &[Case] = &[
        ("both are in the log", &[(12, 8, 2)], &[1, 2, 3, 4], true),
        ("the first was refused", &[(12, 7, 2)], &[], false),
        ("one of two was refused", &[(13, 9, 3)], &[], false),
        ("the log has records of something else", &[(12, 9, 2)], &[], false),
        ("one behind the gap was refused", &[(12, 8, 2), (13, 10, 4)], &[1, 2], false),
        ("there are two gaps", &[(12, 8, 2), (14, 13, 4)], &[1, 2, 3, 4], true),
        ("only the second gap does not fit", &[(12, 8, 2), (14, 10, 4)], &[1, 2], false),
        ("payload is not there", &[(12, 17, 6)], &[], false),
    ];
    let wrong = |error: Error| error.to_string();
    for (what, entries, wanted, is_whole) in cases {
        let store = Store::with(4).map_err(wrong)?;
        store.put(Term(2), vec![store.entry(10, TERM, 7, 0)]).map_err(wrong)?;
        for (raft, first, sequence) in *entries {
            store.put(TERM, vec![store.entry(*raft, TERM, *first, *sequence)]).map_err(wrong)?;
        }
        let found = store.tail().map_err(wrong)?;
        if of(&found) != *wanted || found.fills_gap != *is_whole || found.is_left_out == *is_whole {
            return Err(format!("{what}: payload slices {wanted:?} count; taken is {found:?}"));
        }
    }
    // A later leader may have replaced it.
    let store = Store::with(2).map_err(wrong)?;
    let behind = vec![store.entry(12, Term(5), 8, 0)];
    let put = |before, entries| store.put(before, entries).map_err(wrong);
    put(Term(2), vec![store.entry(10, TERM, 7, 0)]).and_then(|()| put(Term(5), behind))?;
    let found = store.tail().map_err(wrong)?;
    if !of(&found).is_empty() || !found.is_left_out || found.fills_gap {
        return Err(format!("payload counts before entries of a later term: {found:?}"));
    }
    // All payload is of entries in slices: nothing was left out.
    let store = Store::with(1).map_err(wrong)?;
    let put = |before, entries| store.put(before, entries).map_err(wrong);
    put(Term(2), vec![store.entry(10, TERM, 7, 0), store.entry(11, TERM, 7, 1)])?;
    put(Term(5), vec![store.entry(13, Term(5), 8, 0)])?;
    let found = store.tail().map_err(wrong)?;
    if of(&found).is_empty() && !found.is_left_out {
        Ok(())
    } else {
        Err(format!("payload is left out: {found:?}"))
    }
}

/// They are of an earlier term than the end of the log, and behind it: they keep no payload out.
fn those_of_an_earlier_term_hide_no_payload() -> Check {
    let wrong = |error: Error| error.to_string();
    let store = Store::with(2).map_err(wrong)?;
    store.put(Term(2), vec![store.entry(10, TERM, 7, 0)]).map_err(wrong)?;
    store.put(Term(3), vec![store.entry(40, Term(3), 90, 0)]).map_err(wrong)?;
    let found = store.tail().map_err(wrong)?;
    match (&of(&found)[..], found.is_left_out) {
        ([1, 2], false) => Ok(()),
        _ => Err(format!("payload is left out: {found:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::Backup;
    use crate::cluster::membership::Membership;
    use crate::replica::state::session_table::Sessions;
    use crate::store::format::segment::Opening;

    /// A slice begins with a state, and an older one reaches over both ends of it. Payload of the entries before the state is gone: nothing
    /// of these entries is needed.
    #[test]
    fn log_of_a_state_needs_no_payload_before_it() {
        let store = Store::with(7).unwrap();
        // Entry 8 + n has payload slice 1 + n, which has as many records.
        let firsts = [7, 8, 10, 13, 17, 22, 28];
        let entries: Vec<Block> =
            (0..7u64).map(|n| store.entry(8 + n, TERM, firsts[n as usize], 1 + n)).collect();
        store.put(TERM, entries.clone()).unwrap();
        let (before, first) = (EntryIndex(11), Index(17));
        let (configuration, sessions) = (Membership::default().encode(), Sessions::new(1, 1).encode());
        let opening = Opening {
            base_raft: before,
            base_term: TERM,
            log_first: first,
            configuration,
            sessions,
            ..Opening::default()
        };
        let opening = Bytes::from(opening.encode());
        let header =
            BlockHeader::without_records(Kind::Opening, (before, TERM), first, Timestamp(0), &opening);
        let slice = Slice {
            log: LOG,
            base: Base { raft: before, term: TERM, next: first },
            opening: Some((header, opening)),
            entries: entries[4..6].to_vec(),
        };
        let (last, term) = slice.last();
        let name = SliceName { log: LOG, first: before.next(), last, term, begins: true };
        store.vault.put(&name.to_string(), &[slice.encode(name.salt()).concat().into()]).unwrap();
        for sequence in 1..=4 {
            store.vault.delete(&payload_name(LOG, PayloadId { term: TERM, sequence })).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let backup = Backup::fetch(&store.vault, LOG, dir.path().join("backup"), &mut |_, _| {}).unwrap();
        assert_eq!((backup.info().first, backup.info().last), (first, Index(34)));
        assert!(backup.notes().is_empty() && !backup.ends_early(), "{:?}", backup.notes());
    }
}
