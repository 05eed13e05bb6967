//! Power cuts at every point of truncations and jumps, with every result that a disk may leave.

use super::*;
use crate::disk::sim::{Image, Op, Rng};
use std::collections::BTreeSet;

/// The state of the log before the power cuts.
#[derive(Clone, Copy, Debug)]
struct Start {
    entries: u64,
    commit: u64,
    /// Whether full segments have their footers.
    sealed: bool,
    /// Whether the commit index is in the log.
    told: bool,
}

fn begin(start: Start) -> Rig {
    let disk = SimDisk::default();
    disk.set_chance(3);
    let mut rig = Rig::new(disk);
    for _ in 0..start.entries {
        rig.data(7000);
        rig.sync();
    }
    rig.commit(start.commit);
    if start.told {
        rig.hard_state();
        rig.sync();
    }
    if start.sealed {
        rig.store.allocator.help();
    }
    rig
}

/// Counts of the states seen.
#[derive(Debug, Default)]
struct Seen {
    states: BTreeSet<u64>,
    old: usize,
    new: usize,
    again: usize,
}

impl Seen {
    /// Checks that there were enough states of each kind.
    #[track_caller]
    fn covers(&self, name: &str, old_min: usize) {
        let Self { states, old, new, again } = self;
        println!("{name}: {} states, {old} old, {new} new, {again} again", states.len());
        assert!(*old > old_min && *new > 50 && *again > 50, "{name}: {old} old, {new} new, {again} again");
    }
}

/// Cuts the power in every state of the disk's history from operation `from` on, in up to `samples` ways each.
fn explore(rig: &Rig, from: usize, samples: usize, seen: &mut Seen) {
    let history = rig.disk.history();
    let marks = std::iter::once(0).chain(history.ops.iter().scan(0, |mark, op| {
        if let Op::Mark(n) = op {
            *mark = *n as usize;
        }
        Some(*mark)
    }));
    for (n, (state, mark)) in history.states().zip(marks).enumerate().skip(from) {
        for image in state.crashes(512, samples, n as u64) {
            if seen.states.insert(image.fingerprint()) {
                recover(image, &rig.legal[mark], seen);
            }
        }
    }
}

fn recover(image: Image, legal: &Legal, seen: &mut Seen) {
    let disk = SimDisk::new(image);
    disk.set_chance(seen.states.len() as u64 + 1000);
    verify(&disk);
    let (store, learnt) = reopen(&disk).unwrap();
    let log = judge(&store, &learnt, legal);
    if legal.turned.is_some() {
        *(if log == legal.durable { &mut seen.old } else { &mut seen.new }) += 1;
    }
    let mut rng = Rng::new(seen.states.len() as u64);
    if rng.below(20) == 0 {
        // The power fails again during recovery.
        seen.again += 1;
        let history = disk.history();
        let state = history.states().nth(rng.below(history.ops.len() + 1)).unwrap();
        let disk = SimDisk::new(state.crash(|versions| rng.below(versions)));
        let (store, learnt) = reopen(&disk).unwrap();
        judge(&store, &learnt, legal);
    }
    if rng.below(10) == 0 {
        // The log continues from there, and keeps the new entries.
        let commit = learnt.commit;
        let mut rig = Rig::with(disk, store, log, Term(50), commit);
        rig.data(100);
        rig.sync();
        rig.roll(rig.after(rig.end().raft.0.max(commit.0 + 2) - 1));
        rig.data(9000);
        rig.sync();
        rig.store.allocator.help();
        rig.check();
        let (store, learnt) = reopen(&rig.disk.crash(|_| 0)).unwrap();
        judge(&store, &learnt, rig.legal.last().unwrap());
    }
}

/// Pushes a few entries after the new position, one write and sync each, then lets the helper work; then fills the
/// segment until it rolls.
fn go_on(rig: &mut Rig) {
    rig.data(600);
    rig.no_op();
    rig.data(900);
    rig.sync();
    rig.store.allocator.help();
    rig.marker();
    rig.sync();
    for _ in 0..9 {
        rig.data(7000);
        rig.sync();
    }
    rig.commit(rig.end().raft.0 - 1);
    rig.hard_state();
    rig.sync();
    rig.store.allocator.help();
}

/// Entries of 7 KiB: eight in the first segment, eight more in each further one.
const ENTRIES: u64 = 30;

#[test]
fn truncation_is_atomic_in_a_power_cut() {
    let mut seen = Seen::default();
    for to in [0, 3, 8, 9, 16, 23, 24, 25, 29] {
        for (sealed, told) in [(false, false), (true, true), (true, false)] {
            let mut rig = begin(Start { entries: ENTRIES, commit: to.min(12), sealed, told });
            let from = rig.disk.history_len();
            rig.term = Term(2);
            rig.roll(rig.after(to));
            go_on(&mut rig);
            rig.check();
            explore(&rig, from, 20, &mut seen);
        }
    }
    seen.covers("truncations", 100);
}

#[test]
fn successive_truncations_are_atomic_in_a_power_cut() {
    let mut seen = Seen::default();
    for turns in [[29, 28, 27], [20, 18, 16], [9, 10, 3], [25, 24, 8], [12, 12, 12]] {
        for helped in [true, false] {
            let mut rig = begin(Start { entries: ENTRIES, commit: 2, sealed: helped, told: true });
            let from = rig.disk.history_len();
            for (n, to) in turns.into_iter().enumerate() {
                rig.term = Term(2 + n as u64);
                rig.roll(rig.after(to));
                rig.data(3000);
                rig.sync();
                if helped {
                    rig.store.allocator.help();
                }
                for _ in 0..n * 4 {
                    rig.data(7000);
                    rig.sync();
                }
            }
            rig.check();
            rig.store.allocator.help();
            explore(&rig, from, 12, &mut seen);
        }
    }
    seen.covers("in a row", 100);
}

#[test]
fn jump_is_atomic_in_a_power_cut() {
    let mut seen = Seen::default();
    for raft in [20, ENTRIES + 1, 500] {
        for sealed in [false, true] {
            let mut rig = begin(Start { entries: ENTRIES, commit: 12, sealed, told: sealed });
            let from = rig.disk.history_len();
            rig.term = Term(3);
            rig.roll(Base { raft: EntryIndex(raft), term: Term(3), next: Index(1000) });
            go_on(&mut rig);
            // And back to the position of the jump, or a little after it.
            rig.term = Term(4);
            rig.roll(rig.after(rig.commit.0));
            rig.data(100);
            rig.sync();
            rig.store.allocator.help();
            rig.check();
            explore(&rig, from, 20, &mut seen);
        }
    }
    seen.covers("jumps", 50);
}

/// An uncommitted discard can be truncated. Its records must still exist then.
#[test]
fn uncommitted_discard_removes_no_records() {
    for told in [5, 14, 20] {
        let mut rig = begin(Start { entries: 20, commit: told, sealed: true, told: true });
        rig.discard(Index(10_000));
        for _ in 0..20 {
            rig.data(7000);
            rig.sync();
        }
        rig.store.allocator.help();
        let (store, learnt) = reopen(&rig.disk.crash(|_| 0)).unwrap();
        assert_eq!((learnt.first, learnt.commit.0), (Index(10_000), told));
        judge(&store, &learnt, rig.legal.last().unwrap());
        assert_eq!(store.archive().first().raft.0, 0);
    }
}

/// Once the discard is committed, and the log says so, files are removed, and recovery does not need them.
#[test]
fn committed_discard_is_not_undone() {
    let mut seen = Seen::default();
    let mut rig = begin(Start { entries: 20, commit: 5, sealed: true, told: true });
    let from = rig.disk.history_len();
    rig.discard(Index(15));
    rig.sync();
    rig.commit(21);
    rig.hard_state();
    rig.sync();
    rig.store.drop_below(Index(15), EntryIndex(21));
    rig.store.allocator.help();
    for _ in 0..20 {
        rig.data(7000);
        rig.sync();
    }
    rig.store.allocator.help();
    assert_eq!(rig.store.archive().first().raft.0, 8);
    explore(&rig, from, 20, &mut seen);
}
