//! The log as raft sees it: the entries in memory, and reads of the others.

use super::*;
use crate::replica::raft::storage::Entries;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::segment::HardState;
use crate::store::segment::Base;
use raft::storage::{GetEntriesContext, Storage as _};
use raft::{Error, StorageError};

const MIB: usize = 1 << 20;

fn base(raft: u64) -> Base {
    Base { raft: EntryIndex(raft), term: Term(1), next: Index(raft + 1) }
}

fn header(raft: u64, body: usize) -> BlockHeader {
    BlockHeader {
        length: (BLOCK_HEADER_BYTES + body) as u32,
        batch_count: 0,
        raft_index: EntryIndex(raft),
        term: Term(1),
        first: Index(raft),
        timestamp: Timestamp(1),
        record_count: 0,
        durable_upto: 0,
        body_digest: 0,
        kind: Kind::Command,
    }
}

/// `count` entries, each with a body of `body` bytes, in an empty log.
fn entries(count: u64, body: usize) -> Entries {
    let node = joining();
    let archive = node.replica.raw.store().archive().clone();
    let state = HardState { term: Term(1), vote: 0, commit: EntryIndex(0) };
    let mut entries = Entries::new(archive, base(0), state, Membership::default());
    entries.keep_bodies(true);
    let bytes = Bytes::from(vec![0; body]);
    for raft in 1..=count {
        entries.push(header(raft, body), std::slice::from_ref(&bytes));
    }
    entries
}

fn in_memory(entries: &Entries, upto: u64) -> Vec<u64> {
    (1..=upto).filter(|raft| entries.in_memory(EntryIndex(*raft)).is_some()).collect()
}

#[test]
fn memory_keeps_the_newest_16_mib_of_written_entries() {
    let mut entries = entries(20, MIB);
    entries.written(EntryIndex(2));
    assert_eq!(in_memory(&entries, 20), (3..=20).collect::<Vec<_>>(), "the others are not written");
    entries.written(EntryIndex(20));
    assert_eq!(in_memory(&entries, 20), (5..=20).collect::<Vec<_>>());
    entries.push(header(21, MIB), &[Bytes::from(vec![0; MIB])]);
    entries.written(EntryIndex(21));
    assert_eq!(in_memory(&entries, 21), (6..=21).collect::<Vec<_>>());
}

#[test]
fn memory_keeps_the_newest_4096_entries_and_always_the_last() {
    let mut many = entries(5000, 0);
    many.written(EntryIndex(5000));
    assert_eq!(in_memory(&many, 5000), (905..=5000).collect::<Vec<_>>());
    let mut large = entries(1, 17 * MIB);
    large.written(EntryIndex(1));
    assert_eq!(large.last(), EntryIndex(1));
}

#[test]
fn truncated_entries_are_dropped_and_no_others() {
    let mut entries = entries(5, MIB);
    entries.truncate(base(3));
    assert_eq!((entries.last(), in_memory(&entries, 5)), (EntryIndex(3), vec![1, 2, 3]));
    for raft in 4..=20 {
        entries.push(header(raft, MIB), &[Bytes::from(vec![0; MIB])]);
    }
    entries.written(EntryIndex(20));
    assert_eq!(in_memory(&entries, 20), (5..=20).collect::<Vec<_>>(), "truncated entries do not count");
    entries.truncate(base(2));
    assert_eq!(entries.last(), EntryIndex(2));
    assert_eq!(in_memory(&entries, 20), [0; 0], "only the position of the last one is known");
}

#[test]
fn dropped_entries_are_compacted() {
    let mut entries = entries(5, 10);
    entries.dropped_to(base(3));
    assert_eq!((entries.first_index().unwrap(), entries.last()), (4, EntryIndex(5)));
    assert_eq!(in_memory(&entries, 5), [4, 5]);
    assert_eq!([3, 4, 5].map(|raft| entries.term(raft).unwrap()), [1, 1, 1]);
    assert!(matches!(entries.term(2), Err(Error::Store(StorageError::Compacted))));
    assert!(matches!(entries.term(6), Err(Error::Store(StorageError::Unavailable))));
    let read = entries.entries(3, 5, None, GetEntriesContext::empty(false));
    assert!(matches!(read, Err(Error::Store(StorageError::Compacted))));
}

#[test]
fn read_returns_entries_up_to_a_size_and_at_least_one() {
    let entries = entries(5, 10);
    let each = (BLOCK_HEADER_BYTES + 10) as u64;
    for (max, count) in [(0, 1), (2 * each - 1, 1), (2 * each, 2), (3 * each, 3), (100 * each, 4)] {
        let read = entries.entries(1, 5, max, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(read.len(), count, "{max} bytes");
    }
}

#[test]
fn log_without_discards_has_no_snapshot() {
    let entries = entries(5, 10);
    assert!(matches!(
        entries.snapshot(0, 0),
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    ));
    let mut node = joining();
    deliver(&mut node, raft_message::encode_message(&snapshot()).unwrap());
    assert!(node.replica.raw.store().snapshot(0, 0).is_err(), "the snapshot is not written yet");
    let mut node = joining();
    step(&mut node, &snapshot());
    let given = node.replica.raw.store().snapshot(0, 0).unwrap();
    assert_eq!((given.get_metadata().index, given.data.len()), (50, snapshot().get_snapshot().data.len()));
}

/// Peers may need them. A log on its own keeps no bodies.
#[test]
fn member_keeps_bodies_in_memory() {
    let node = voter_of(3);
    let (header, body) = node.replica.in_memory(EntryIndex(2)).unwrap();
    assert_eq!((header.raft_index, header.kind), (EntryIndex(2), Kind::Configuration));
    assert!(body.is_some());
    assert_eq!(node.replica.changes_not_in_force(), 0);
}
