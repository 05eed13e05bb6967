//! Tests that readers and replays find all committed entries, only those, and damage as damage.

use super::*;
use read::run_directory::RunWalk;
use read::sorted_copies::SortedCopies;
use read::sorter::{Begun, Sorter, Step};
use segment::SegmentData;

#[test]
fn readers_see_committed_entries_and_nothing_else() {
    let mut rig = log_of(100);
    assert!(rig.store.segments.len() > 3);
    rig.check();
    let mut tail = cursor(&rig.store.segments);
    for committed in [1, 2, 31, 32, 33, 60, 90, 100] {
        rig.commit(committed);
        rig.check();
        // A reader that waits at the tail misses nothing, regardless of which segments have begun meanwhile.
        while let Some(found) = tail.find(|h| h.kind == Kind::Data).unwrap() {
            assert!(found.header.raft_index <= EntryIndex(committed));
        }
        let last = tail.find(|_| true).unwrap();
        assert!(last.is_none());
    }
    // An entry that is committed before it is synced here can be read.
    rig.data(10);
    rig.write();
    rig.commit(101);
    rig.check();
}

#[test]
fn waiting_reader_sees_every_block_once() {
    let mut rig = log_of(0);
    let mut tail = cursor(&rig.store.segments);
    let mut seen = Vec::new();
    for n in 1..200 {
        rig.data(1500);
        rig.sync();
        if n % 7 == 0 {
            rig.commit(n - 3);
        }
        while let Some(found) = tail.find(|h| h.kind == Kind::Data).unwrap() {
            seen.push(found.header.raft_index.0);
        }
    }
    assert_eq!(seen, (1..=193).collect::<Vec<_>>());
}

#[test]
fn blocks_that_are_not_entries_commit_with_the_previous_entry() {
    let mut rig = log_of(2);
    rig.marker();
    rig.hard_state();
    rig.data(100);
    rig.sync();
    rig.commit(2);
    let segment = rig.store.segments.oldest().unwrap();
    let third = segment.data_end() - block_bytes(rig.now.entries[2].body.len());
    assert_eq!(segment.readable(), third);
    rig.commit(3);
    assert_eq!(segment.readable(), segment.data_end());
    // Blocks written after it later, too.
    rig.marker();
    rig.write();
    assert_eq!(segment.readable(), segment.data_end());
}

#[test]
#[should_panic(expected = "a commit beyond what was written")]
fn commit_beyond_the_written_entries_panics() {
    let mut rig = log_of(2);
    rig.data(1);
    rig.commit(3);
}

#[test]
fn headers_are_limited_by_bytes_but_at_least_one() {
    let rig = log_of(100);
    let archive = rig.store.archive();
    let body = rig.now.entries[0].body.len() as u64;
    let count =
        |from: u64, to: u64, max| archive.headers(EntryIndex(from), EntryIndex(to), max).unwrap().len();
    assert_eq!(count(1, 101, 0), 1);
    assert_eq!(count(1, 101, body * 10), 10);
    assert_eq!(count(1, 101, body * 11 - 1), 10);
    assert_eq!(count(25, 75, u64::MAX), 50);
    assert_eq!(count(25, 500, u64::MAX), 76);
    assert_eq!(count(101, 102, u64::MAX), 0);
    assert_eq!(count(5, 5, u64::MAX), 0);
}

#[test]
fn damage_is_found_and_not_returned() {
    let rig = log_of(100);
    rig.store.allocator.help();
    let archive = rig.store.archive();
    let segment = rig.store.segments.holding_entry(EntryIndex(40)).unwrap();
    let at = {
        let (mut blocks, mut at) = (
            crate::store::read::block_reader::Blocks::new(
                rig.store.segments.open(&segment).unwrap(),
                4096,
                4096,
            ),
            0,
        );
        while let Some(found) = blocks.next(segment.data_end()).unwrap() {
            if found.header.raft_index == EntryIndex(40) {
                at = found.offset;
                break;
            }
        }
        at
    };
    let name = file_name(segment.number);
    let flip =
        |offset: usize| assert!(rig.disk.damage(&name, &Damage::FlipBit { bit: offset as u64 * 8 + 3 }));
    let said = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&name) && error.to_string().contains(&at.to_string()), "{error}");
    };
    // A payload byte: the header is sound, the body cannot be read.
    flip(at + 1000);
    assert!(archive.header(EntryIndex(40)).unwrap().is_some());
    said(archive.body(EntryIndex(40)).unwrap_err());
    said(archive.replay(EntryIndex(41), EntryIndex(41), &mut Learnt::default()).unwrap_err());
    assert!(archive.body(EntryIndex(41)).unwrap().is_some());
    flip(at + 1000);
    assert!(archive.body(EntryIndex(40)).unwrap().is_some());
    flip(at + 20);
    said(archive.header(EntryIndex(40)).unwrap_err());
    said(archive.headers(EntryIndex(38), EntryIndex(50), u64::MAX).unwrap_err());
    flip(at + 20);
    rig.check();
}

#[test]
fn damaged_block_index_only_costs_time() {
    let rig = log_of(100);
    rig.store.allocator.help();
    let oldest = rig.store.segments.oldest().unwrap();
    let bit = (data_limit(SEGMENT_BYTES as usize) as u64 + 8) * 8;
    assert!(rig.disk.damage(&file_name(oldest.number), &Damage::FlipBit { bit }));
    let data = rig.store.segments.open(&oldest).unwrap();
    assert_eq!(data.seek(|_| true).unwrap(), SEGMENT_HEADER_BYTES);
    rig.check();
}

#[test]
fn replay_leads_to_the_state_at_an_entry() {
    let mut rig = log_of(100);
    rig.discard(Index(7));
    rig.commit(50);
    rig.hard_state();
    rig.no_op();
    rig.sync();
    let archive = rig.store.archive();
    for to in 0..=102 {
        let mut learnt = Learnt::default();
        assert!(archive.replay(EntryIndex(to), EntryIndex(to), &mut learnt).unwrap());
        assert_eq!(learnt.end, rig.after(to));
        // The discard is entry 101, and nothing shows that entries up to it are committed.
        assert_eq!((learnt.first, learnt.commit.0), (Index(1), if to > 101 { 50 } else { 0 }));
        learnt.commit_to(EntryIndex(to));
        assert_eq!(learnt.first, if to < 101 { Index(1) } else { Index(7) });
        assert_eq!(learnt.seen.len() as u64, to - learnt.base.raft.0);
    }
    assert!(!archive.replay(EntryIndex(103), EntryIndex(103), &mut Learnt::default()).unwrap());
    let (header, body) = archive.oldest_opening().unwrap();
    assert_eq!(
        (header.kind, Opening::parse(&body).unwrap().configuration),
        (Kind::Opening, b"members".to_vec())
    );
}

#[test]
fn roll_without_a_file_changes_nothing() {
    let mut rig = log_of(100);
    rig.store.allocator.help();
    let trouble = Trouble::Enospc(Landed::Nothing);
    rig.disk.plan(Fault { call: Some(Call::Write), nth: 1, lasting: true, trouble });
    for _ in 0..2 {
        let _ = rig.store.allocator.take(Purpose::Metadata).unwrap();
    }
    let base = rig.after(20);
    let opening = opening(base, Term(2), Index(1), EntryIndex(0));
    assert_eq!(rig.store.roll(opening, 0, Purpose::Metadata).unwrap_err().kind(), ErrorKind::Full);
    rig.disk.heal();
    rig.store
        .allocator
        .set_time(crate::sync::clock::Moment::START.plus(crate::store::allocator::RETRY_DELAY));
    rig.check();
    rig.data(10);
    rig.sync();
    rig.check();
    rig.term = Term(2);
    rig.roll(rig.after(20));
    rig.data(10);
    rig.sync();
    rig.check();
}

/// Files of discarded records can stay, because an object is to be made of them. Only the oldest one was left out: the others took capacity.
#[test]
fn bytes_from_a_record_leave_out_all_files_before_it() {
    let rig = log_of(100);
    let list = rig.store.segments.snapshot();
    assert!(list.len() > 3);
    let bytes_of = |segments: &[Arc<Segment>]| -> u64 {
        segments.iter().map(|s| (s.data_end() - SEGMENT_HEADER_BYTES) as u64).sum()
    };
    for n in 0..list.len() {
        assert_eq!(rig.store.segments.bytes_from(list[n].base.next), bytes_of(&list[n..]), "{n}");
    }
    let inside = rig.store.segments.bytes_from(Index(list[3].base.next.0 - 1));
    assert!(bytes_of(&list[3..]) < inside && inside < bytes_of(&list[2..]));
    assert_eq!(rig.store.segments.bytes_from(rig.end().next), 0);
}

/// A sort looked for all runs of its segment as it began: up to 1 GiB in a step, while other logs of the disk waited for files.
#[test]
fn sort_reads_its_segment_in_steps() {
    let mut rig = log_of(100);
    rig.commit(100);
    let segment = rig.store.segments.oldest().unwrap();
    let copies = SortedCopies::new(rig.store.segments.clone());
    let (call, trouble) = (Some(Call::Read), Trouble::Eio(Landed::Nothing));
    let name = segment::file_name(segment.number);
    assert!(rig.disk.plan_on(&name, Fault { call, nth: 1, lasting: true, trouble }));
    let begun = Sorter::begin(copies.clone(), identity().log, segment.clone()).unwrap();
    let Begun::Sorter(mut sorter) = begun else { panic!("{begun:?}") };
    assert_eq!(rig.disk.faults_fired(), 0, "it has read");
    assert_eq!(sorter.step().unwrap_err().kind(), ErrorKind::Io);
    rig.disk.heal();
    loop {
        match sorter.step().unwrap() {
            Step::Done => break,
            Step::NoRoom => panic!("the disk has room"),
            _ => {}
        }
    }
    assert!(copies.has(segment.number));

    let mut walk =
        RunWalk::new(SegmentData::unmapped(segment.clone(), rig.store.segments.disk().as_ref()).unwrap());
    let mut steps = 1;
    while !walk.step(4096).unwrap() {
        steps += 1;
    }
    // A block is longer than a step, or a few steps shorter.
    assert!(steps >= segment.data_end() / 4096 / 2, "{steps} steps");
}
