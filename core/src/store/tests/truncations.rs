//! Tests of truncated conflicting suffixes, and of jumps.

use super::*;

#[test]
fn conflicting_suffix_is_truncated() {
    for to in [100, 99, 64, 63, 62, 61, 60, 33, 32, 31, 30, 5, 1, 0] {
        for commit in [0, to / 2, to] {
            let mut rig = log_of(100);
            rig.commit(commit);
            rig.check();
            let before = rig.store.segments.snapshot();
            let mut tail = cursor(&rig.store.segments);
            while tail.find(|_| true).unwrap().is_some() {}
            rig.term = Term(2);
            rig.roll(rig.after(to));
            // Nothing changes before the opening is written.
            assert_eq!(rig.store.segments.snapshot().len(), before.len());
            rig.data(50);
            rig.write();
            rig.check();
            let gone = before.iter().filter(|s| s.base.raft.0 >= to && to < 100).count();
            assert_eq!(rig.store.segments.len(), before.len() - gone + 1);
            rig.sync();
            rig.check();
            for _ in 0..60 {
                rig.data(2000);
                rig.sync();
            }
            rig.check();
            rig.commit(to + 61);
            rig.check();
            let last = std::iter::from_fn(|| tail.find(|h| h.kind == Kind::Data).unwrap()).last();
            assert_eq!(last.unwrap().header.raft_index.0, to + 61, "a reader continues where the log does");
            drop((before, tail));
            rig.store.allocator.help();
            rig.check();
            let files = rig.disk.visible().names().filter(|n| segment::file_number(n).is_some()).count();
            assert!(
                files <= rig.store.segments.len() + crate::store::allocator::AHEAD,
                "dead files are removed: {files}"
            );
        }
    }
}

#[test]
fn cut_segment_is_sealed_with_its_new_end() {
    // The cut segment already has a footer, waits for one, or is the growing one.
    for (pending, to) in [(true, 40), (true, 95), (false, 40), (false, 10)] {
        let mut rig = log_of(100);
        rig.commit(3);
        if pending {
            rig.store.allocator.help();
        }
        rig.term = Term(2);
        rig.roll(rig.after(to));
        rig.data(1);
        rig.write();
        let cut = rig.store.segments.holding_entry(EntryIndex(to)).unwrap();
        rig.store.allocator.help();
        rig.store.sync().unwrap();
        rig.store.allocator.help();
        assert!(cut.extent().growing_index().is_none(), "it is sealed");
        let file = Disk::open(&rig.disk, &file_name(cut.number), false).unwrap();
        let mut tail = [0; crate::store::format::geometry::FOOTER_BYTES];
        file.read_at(u64::from(SEGMENT_BYTES) - tail.len() as u64, &mut tail).unwrap();
        let footer = crate::store::format::segment::Footer::parse(&tail, cut.number, cut.id).unwrap();
        assert_eq!((footer.last_raft.0, footer.data_end as usize), (to, cut.data_end()));
        rig.check();
    }
}

#[test]
fn second_truncation_can_follow_the_first() {
    let mut rig = log_of(100);
    for (term, to) in [(2, 80), (3, 79), (4, 50), (5, 20), (6, 20), (7, 0)] {
        rig.term = Term(term);
        rig.roll(rig.after(to));
        for _ in 0..40 {
            rig.data(1800);
        }
        rig.sync();
        rig.check();
    }
}

#[test]
fn truncation_keeps_the_blocks_right_after_the_last_entry() {
    let mut rig = log_of(3);
    rig.commit(2);
    rig.hard_state();
    rig.marker();
    rig.data(10);
    rig.hard_state();
    rig.sync();
    let segment = rig.store.segments.oldest().unwrap();
    let (all, kept) = (segment.data_end(), rig.store.archive().header(EntryIndex(4)).unwrap().unwrap());
    rig.term = Term(2);
    rig.roll(rig.after(3));
    rig.sync();
    rig.check();
    assert_eq!(
        segment.data_end(),
        all - kept.stride() - block_bytes(crate::store::format::segment::HARD_STATE_BYTES)
    );
    rig.commit(3);
    assert_eq!(segment.readable(), segment.data_end());
}

#[test]
#[should_panic(expected = "the log would lose committed entries")]
fn truncating_committed_entries_panics() {
    let mut rig = log_of(10);
    rig.commit(7);
    rig.roll(rig.after(6));
}

#[test]
fn jump_drops_all_earlier_entries() {
    for (raft, term) in [(1000, 9), (100, 9), (60, 9)] {
        let mut rig = log_of(100);
        rig.commit(50);
        rig.term = Term(9);
        rig.roll(Base { raft: EntryIndex(raft), term: Term(term), next: Index(5000) });
        rig.data(100);
        rig.write();
        rig.check();
        assert_eq!(rig.store.segments.len(), 1);
        rig.sync();
        rig.commit(raft + 1);
        rig.check();
        rig.store.allocator.help();
        for _ in 0..50 {
            rig.data(2000);
            rig.sync();
        }
        rig.commit(raft + 51);
        rig.check();
        rig.store.allocator.help();
        let names = rig.disk.visible();
        let files = names.names().filter(|n| segment::file_number(n).is_some()).count();
        assert!(
            files <= rig.store.segments.len() + crate::store::allocator::AHEAD,
            "old files are removed: {files}"
        );
    }
}

#[test]
fn segment_with_uncommitted_entries_stays() {
    let mut rig = log_of(20);
    rig.discard(Index(1000));
    rig.no_op();
    rig.sync();
    rig.roll(rig.end());
    rig.sync();
    assert_eq!(rig.store.segments.len(), 2);
    rig.commit(21);
    rig.store.drop_below(Index(1000), EntryIndex(22));
    assert_eq!(rig.store.segments.len(), 2, "entry 22 could still be truncated, and be needed");
    rig.commit(22);
    rig.store.drop_below(Index(1000), EntryIndex(21));
    assert_eq!(
        rig.store.segments.len(),
        2,
        "recovery continues from entry 21, the last one known to be committed"
    );
    rig.store.drop_below(Index(1000), EntryIndex(22));
    assert_eq!(rig.store.segments.len(), 1);
    rig.check();
}

/// The files of a discard went while the opening of the only segment behind them was written and not durable: after a power cut the log had
/// no beginning.
#[test]
fn last_segment_that_has_durably_begun_stays() {
    let mut rig = log_of(20);
    rig.discard(Index(1000));
    rig.no_op();
    rig.sync();
    rig.commit(22);
    rig.roll(rig.end());
    rig.write();
    assert_eq!(rig.store.segments.len(), 2);
    rig.store.drop_below(Index(1000), EntryIndex(22));
    assert_eq!(rig.store.segments.len(), 2);
    rig.sync();
    rig.store.drop_below(Index(1000), EntryIndex(22));
    assert_eq!(rig.store.segments.len(), 1);
    rig.check();
}

/// The opening of the next segment was behind an entry that was not in the files yet. All segments were taken to be dead.
#[test]
#[should_panic(expected = "files would be removed")]
fn segment_begins_elsewhere_only_if_that_is_planned() {
    let mut rig = log_of(20);
    rig.data(100);
    rig.sync();
    let end = rig.end();
    let base = Base { raft: end.raft.next(), next: end.next.plus(1), ..end };
    let next = rig.store.allocator.take(Purpose::Metadata).unwrap();
    let opening = opening(base, end.term, Index(1), EntryIndex(0));
    let _ = rig.store.roll_into(next, opening, Begins::AtTheEnd);
}
