//! Random runs of a store: after every step it matches the plain list, and after a power cut it matches the durable
//! part. `CHIPLOG_STORE_SEEDS` is the number of runs, `CHIPLOG_STORE_FROM` the first seed.

use super::*;
use crate::disk::sim::Rng;
use crate::store::recovery::tail::Follow;

/// Counts of the events in all runs together: an event that never happened was not tested.
#[derive(Debug, Default)]
struct Happened {
    appends: usize,
    truncations: usize,
    to_the_durable_end: usize,
    jumps: usize,
    discards: usize,
    drops: usize,
    crashes: usize,
    old_after_turn: usize,
    new_after_turn: usize,
    lost_unsynced: usize,
    written_beside_a_sync: usize,
    looks: usize,
    looks_anew: usize,
}

#[test]
fn random_runs_match_the_list() {
    let from = std::env::var("CHIPLOG_STORE_FROM").map_or(0, |n| n.parse().unwrap());
    let seeds = std::env::var("CHIPLOG_STORE_SEEDS").map_or(300, |n| n.parse().unwrap());
    let mut happened = Happened::default();
    for seed in from..from + seeds {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(seed, &mut happened)));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{seeds} lives: {happened:?}");
    let Happened {
        appends,
        truncations,
        to_the_durable_end,
        jumps,
        discards,
        drops,
        crashes,
        old_after_turn,
        new_after_turn,
        lost_unsynced,
        written_beside_a_sync,
        looks,
        looks_anew,
    } = happened;
    let counts = [
        appends,
        truncations,
        to_the_durable_end,
        jumps,
        discards,
        drops,
        crashes,
        old_after_turn,
        new_after_turn,
        lost_unsynced,
        written_beside_a_sync,
        looks,
        looks_anew,
    ];
    assert!(seeds < 300 || counts.iter().all(|n| *n >= 20), "some event hardly ever happened: {counts:?}");
}

fn live(seed: u64, happened: &mut Happened) {
    let mut rng = Rng::new(seed);
    let disk = SimDisk::default();
    disk.forget_history();
    disk.set_chance(seed);
    let mut rig = Rig::new(disk);
    let bytes = [200, 3000, 12_000][rng.below(3)];
    let mut watcher = Watcher::new(&rig);
    for _ in 0..60 {
        match rng.below(20) {
            0..8 => append(&mut rig, &mut rng, bytes, happened),
            8 => {
                rig.sync();
                let committed =
                    rig.commit.0 + rng.below((rig.end().raft.0 - rig.commit.0 + 1) as usize) as u64;
                rig.commit(committed);
            }
            9 => {
                rig.hard_state();
                rig.marker();
                rig.sync();
            }
            10 => {
                let before = rig.end().next.0;
                rig.discard(
                    Index(rng.below(before as usize + 20) as u64).max(rig.now.first_at(rig.end().raft)),
                );
                happened.discards += 1;
            }
            11..13 => turn(&mut rig, &mut rng, happened),
            13 => {
                // The commit must be durable before files are removed.
                rig.sync();
                rig.hard_state();
                rig.sync();
                let segments = rig.store.segments.len();
                rig.store.drop_below(rig.now.first_at(rig.commit), rig.commit);
                happened.drops += segments - rig.store.segments.len();
            }
            14 | 15 => rig.store.allocator.help(),
            16 => beside_a_sync(&mut rig, &mut rng, bytes, happened),
            17 => rig.sync(),
            18 => {
                rig.sync();
                rig.roll(rig.end());
                rig.sync();
            }
            _ => crash(&mut rig, &mut rng, happened),
        }
        if watcher.disk.is_off() {
            watcher = Watcher::new(&rig);
        }
        if rng.below(3) == 0 && !rig.store.has_pending() {
            watcher.look(&rig, happened);
        }
        if !rig.store.has_pending() {
            rig.check();
        }
        if rng.below(20) == 0 {
            verify(&rig.disk);
        }
    }
}

fn append(rig: &mut Rig, rng: &mut Rng, bytes: usize, happened: &mut Happened) {
    for _ in 0..=rng.below(5) {
        happened.appends += 1;
        match rng.below(10) {
            0 => rig.no_op(),
            1 => rig.marker(),
            _ => rig.data(rng.below(bytes)),
        }
    }
    if rng.below(2) == 0 {
        rig.sync();
    }
}

/// Continues at another position.
fn turn(rig: &mut Rig, rng: &mut Rng, happened: &mut Happened) {
    rig.sync();
    rig.term = rig.term.max(rig.end().term);
    rig.term = Term(rig.term.0 + 1);
    let span = rig.end().raft.0 - rig.commit.0;
    if rng.below(4) == 0 {
        let ahead = rng.below(span as usize + 30) as u64;
        let raft = EntryIndex(rig.commit.0 + ahead);
        // The entry there differs from ours, if there is one here.
        let base = Base { raft, term: rig.term, next: rig.end().next.plus(rng.below(50) as u64) };
        rig.roll(base);
        happened.jumps += 1;
    } else {
        // It cannot be truncated before its first entry.
        let lowest = rig.commit.0.max(rig.store.archive().first().raft.0);
        let to = lowest + rng.below((rig.end().raft.0 - lowest + 1) as usize) as u64;
        happened.truncations += 1;
        happened.to_the_durable_end += usize::from(to == rig.end().raft.0);
        rig.roll(rig.after(to));
    }
    for _ in 0..rng.below(3) {
        rig.data(rng.below(800));
    }
    match rng.below(3) {
        0 => {}
        1 => rig.write(),
        _ => rig.sync(),
    }
    if rng.below(3) == 0 {
        crash(rig, rng, happened);
    }
}

/// Writes more while a sync runs.
fn beside_a_sync(rig: &mut Rig, rng: &mut Rng, bytes: usize, happened: &mut Happened) {
    rig.sync();
    rig.data(rng.below(bytes));
    rig.write();
    let (job, then) = (rig.store.begin_sync().unwrap(), rig.now.clone());
    if rig.store.fits(2 * bytes + 1000) {
        happened.written_beside_a_sync += 1;
        rig.data(rng.below(bytes));
        rig.write();
        rig.check();
    }
    if rng.below(4) == 0 {
        return crash(rig, rng, happened);
    }
    job.run().unwrap();
    rig.store.end_sync(&job);
    rig.is_durable(then);
}

fn crash(rig: &mut Rig, rng: &mut Rng, happened: &mut Happened) {
    happened.crashes += 1;
    let disk = match rng.below(4) {
        0 => rig.disk.crash(|_| 0),
        1 => rig.disk.crash(|versions| versions - 1),
        _ => rig.disk.crash_randomly(rng),
    };
    verify(&disk);
    let (store, learnt) = reopen(&disk).unwrap();
    let legal = rig.legal.last().unwrap().clone();
    let log = judge(&store, &learnt, &legal);
    if legal.turned.is_some() {
        *(if log == legal.durable { &mut happened.old_after_turn } else { &mut happened.new_after_turn }) +=
            1;
    }
    happened.lost_unsynced += usize::from(log.entries.len() < legal.now.entries.len());
    *rig = Rig::with(disk, store, log, rig.term, learnt.commit);
}

/// A read-only handle beside the store: it shows only committed records, and never takes them back.
struct Watcher {
    disk: SimDisk,
    segments: Arc<Segments>,
    follow: Follow,
    learnt: Learnt,
    shown: EntryIndex,
}

impl Watcher {
    fn new(rig: &Rig) -> Self {
        let (disk, segments, mut learnt) = (rig.disk.clone(), segments_on(&rig.disk), Learnt::default());
        let (list, follow) = survey(&disk, identity(), &mut learnt).unwrap().follow();
        segments.replace(list);
        let mut watcher = Self { disk, segments, follow, learnt, shown: EntryIndex(0) };
        watcher.check(rig);
        watcher
    }

    fn look(&mut self, rig: &Rig, happened: &mut Happened) {
        happened.looks += 1;
        let begun = self.follow.advance(&self.disk, identity(), &mut self.learnt);
        if self.follow.is_lost(&self.disk, identity()) {
            happened.looks_anew += 1;
            let (list, follow) = survey(&self.disk, identity(), &mut self.learnt).unwrap().follow();
            self.segments.replace(list);
            self.follow = follow;
        } else {
            begun.unwrap().into_iter().for_each(|segment| self.segments.push(segment));
        }
        let proven = self.follow.proven();
        drop(self.segments.drop_below(proven.first, proven.end.raft, true));
        self.check(rig);
    }

    fn check(&mut self, rig: &Rig) {
        let end = self.follow.proven().end;
        assert!(end.raft >= self.shown, "shown records were taken back: {end:?}");
        assert!(end.raft <= rig.commit, "uncommitted records are shown: {end:?}");
        self.shown = end.raft;
        let oldest = self.segments.oldest().unwrap().base;
        let here = rig.now.entries.iter().filter(|e| e.raft > oldest.raft && e.raft <= end.raft);
        let wanted: Vec<_> = here.filter(|e| e.kind == Kind::Data).map(|e| (e.raft, e.first)).collect();
        let seen: Vec<_> = read(&self.segments).iter().map(|h| (h.raft_index, h.first)).collect();
        assert_eq!(seen, wanted, "the records that a read-only handle shows");
    }
}
