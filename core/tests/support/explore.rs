//! Explores every state that power cuts can leave of a workload, on all cores, and checks each.

use super::{Trace, Wrong, bounds, open, record};
use chiplog::disk::sim::{Call, DiskState, Fault, History, Image, Landed, Rng, SimDisk, Trouble};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The extent of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Up to this number of images at one point of a history, all of them are tried; 4096 is 12 dirty sectors.
    pub exhaustive: usize,
    /// How many images are tried where there are more.
    pub samples: usize,
    /// How often each recovery is itself interrupted by another crash.
    pub second_crashes: usize,
    /// Whether the process is killed at each point too, and the power cut only later.
    pub kills: bool,
}

/// The counts of an exploration.
#[derive(Default)]
pub struct Tally {
    seen: Mutex<HashSet<(u64, usize, usize)>>,
    images: Mutex<HashSet<u64>>,
    /// Recoveries that were checked.
    pub recoveries: AtomicUsize,
    /// Points of histories at which the power was cut.
    pub points: AtomicUsize,
    /// Points at which every legal image was tried, and points at which a sample was.
    pub exhaustive: AtomicUsize,
    pub sampled: AtomicUsize,
    /// Crashes during a recovery or just after it.
    pub second_crashes: AtomicUsize,
    /// Openings after a kill, with unsynced bytes still in the page cache.
    pub kills: AtomicUsize,
}

impl Tally {
    /// Different images that were recovered from.
    pub fn states(&self) -> usize {
        lock(&self.images).len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Calls `visit` with the disk before the first operation of `history` and after each, on all cores, until a call
/// returns false (enough) or an error. The order is scattered: those who stop early have met all parts of the history.
///
/// # Errors
/// The first error, with the place.
pub fn at_every_point(
    name: &str,
    history: &History,
    visit: impl Fn(usize, &DiskState) -> Result<bool, Wrong> + Sync,
) -> Result<(), String> {
    let states: Vec<_> = history.states().collect();
    let stride = (states.len() * 5 / 8..).find(|n| gcd(*n, states.len()) == 1).unwrap_or(1);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let wrong: Mutex<Option<String>> = Mutex::new(None);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= states.len() {
                return;
            }
            let point = turn * stride % states.len();
            let state = &states[point];
            match visit(point, state) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(Wrong(what)) => {
                    let op = point.checked_sub(1).map(|p| format!("{:?}", history.ops[p]));
                    let op: String = op.unwrap_or_default().chars().take(80).collect();
                    let text =
                        format!("{name}, at operation {point} of {} ({op}): {what}", history.ops.len());
                    lock(&wrong).get_or_insert(text);
                }
            }
            stop.store(true, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    wrong.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The counts of [`whole_or_none`].
pub struct Interrupted {
    /// Points at which the power was cut.
    pub points: usize,
    /// States of the disk without a log.
    pub none: usize,
    /// Calls that failed, and `make` with them.
    pub failures: usize,
}

/// Cuts the power at every point of a run of `make`, which makes a log on an empty disk, and fails every call to the disk once. `judge`
/// returns whether the whole log is there, and not nothing; it gets whether `make` had returned. `images`: how many states of the disk
/// are tried at a point.
#[allow(clippy::panic, reason = "test support")]
pub fn whole_or_none<T, E: std::fmt::Debug>(
    name: &str,
    images: usize,
    make: impl Fn(&SimDisk) -> Result<T, E>,
    judge: impl Fn(&SimDisk, bool) -> Result<bool, Wrong> + Sync,
) -> Interrupted {
    let disk = SimDisk::default();
    drop(make(&disk).unwrap());
    disk.mark(1);
    let history = disk.history();
    let (whole, none) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let points = history.ops.len();
    let explored = at_every_point(name, &history, |point, state| {
        for image in state.crashes(images, images, point as u64) {
            let there = judge(&SimDisk::new(image), point == points)?;
            let tally = if there { &whole } else { &none };
            tally.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    });
    if let Err(wrong) = explored {
        panic!("{wrong}");
    }
    let (whole, none) = (whole.into_inner(), none.into_inner());
    println!("{name}: {points} points, {none} images without a log, {whole} with the whole log");
    assert!(whole > 0, "the whole log never occurs");
    let mut failures = 0;
    for call in [Call::Create, Call::Write, Call::Sync, Call::SyncDir, Call::Rename] {
        for nth in 1.. {
            let disk = SimDisk::default();
            disk.plan(Fault { call: Some(call), nth, lasting: true, trouble: Trouble::Eio(Landed::Nothing) });
            let made = make(&disk);
            disk.heal();
            if made.is_ok() {
                break; // there was no such call, or none that mattered
            }
            failures += 1;
            if let Err(Wrong(what)) = judge(&disk.crash(|_| 0), false) {
                panic!("{call:?} number {nth} failed: {what}");
            }
        }
    }
    println!("{name}: {failures} failed calls");
    Interrupted { points, none, failures }
}

/// Cuts the power after every operation of `history` in every legal way, and checks the log that recovers from it.
/// Stops early once `tally` holds `enough` states.
///
/// # Errors
/// The first fault of the log, with the place.
pub fn explore(
    name: &str,
    history: &History,
    trace: &Trace,
    effort: Effort,
    tally: &Tally,
    enough: usize,
) -> Result<(), String> {
    let bounds = bounds(history);
    at_every_point(name, history, |point, state| {
        tally.points.fetch_add(1, Ordering::Relaxed);
        let legal = &bounds[point];
        if effort.kills {
            killed(state, trace, legal, tally, point as u64).map_err(|w| w.within("killed"))?;
        }
        let crashes = state.crashes(effort.exhaustive, effort.samples, point as u64);
        let kind = if crashes.is_exhaustive() { &tally.exhaustive } else { &tally.sampled };
        kind.fetch_add(1, Ordering::Relaxed);
        for (n, image) in crashes.enumerate() {
            let print = image.fingerprint();
            if !lock(&tally.seen).insert((print, *legal.start(), *legal.end())) {
                continue;
            }
            lock(&tally.images).insert(print);
            let seed = (point as u64) << 32 | n as u64;
            recover(&image, trace, legal, effort, tally, seed)
                .map_err(|w| w.within(&format!("crash {n}")))?;
            if tally.states() >= enough {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Opens the log after a crash, checks it, continues with it, crashes again meanwhile, and checks once more.
fn recover(
    image: &Image,
    trace: &Trace,
    legal: &RangeInclusive<usize>,
    effort: Effort,
    tally: &Tally,
    seed: u64,
) -> Result<(), Wrong> {
    tally.recoveries.fetch_add(1, Ordering::Relaxed);
    let mut rng = Rng::new(seed);
    let disk = SimDisk::new(image.clone());
    let log = open(&disk).map_err(|e| format!("the log does not open: {e:?}"))?;
    let ks = trace.judge(&log, legal.clone())?;
    let k = *ks.end();
    let mut after = trace.clone();
    after.forget_after(&ks);
    let extra = |n: u64, rng: &mut Rng| record(1_000_000 + n, rng.below(700));
    after.extend(&disk, &log, &[extra(1, &mut rng), extra(2, &mut rng)])?;
    log.close()?;

    let history = disk.history();
    let states: Vec<_> = history.states().collect();
    let bounds = bounds(&history);
    for _ in 0..effort.second_crashes {
        tally.second_crashes.fetch_add(1, Ordering::Relaxed);
        let point = rng.below(states.len());
        let odds = rng.below(4);
        let image = states[point].crash(|versions| if odds > 0 { rng.below(versions) } else { 0 });
        // Before the first new command no caller had learnt how the first recovery ended.
        let shown = *bounds[point].end() > 0;
        let (told, legal) = if shown {
            (&after, k.max(*bounds[point].start())..=*bounds[point].end())
        } else {
            (trace, legal.clone())
        };
        lock(&tally.images).insert(image.fingerprint());
        let again = SimDisk::new(image);
        second_recovery(&again, told, legal, &extra(3, &mut rng)).map_err(|Wrong(what)| {
            Wrong(format!("second crash, after operation {point} of recovery: {what}"))
        })?;
    }
    Ok(())
}

/// The process is killed and the machine keeps running: the next process sees everything that was written, synced or
/// not, and continues with it. Only then the power fails. Records that it was shown must not be lost.
fn killed(
    state: &DiskState,
    trace: &Trace,
    legal: &RangeInclusive<usize>,
    tally: &Tally,
    seed: u64,
) -> Result<(), Wrong> {
    let mut rng = Rng::new(seed);
    for round in 0..2 {
        tally.kills.fetch_add(1, Ordering::Relaxed);
        let disk = SimDisk::resume(state.clone());
        let log = open(&disk).map_err(|e| format!("the log does not open: {e:?}"))?;
        let ks = trace.judge(&log, legal.clone())?;
        let mut after = trace.clone();
        after.forget_after(&ks);
        if round > 0 {
            after.extend(&disk, &log, &[record(2_000_000, rng.below(700))])?;
        }
        let image = disk.crash(|versions| if round > 0 { rng.below(versions) } else { 0 }).visible();
        drop(log);
        lock(&tally.images).insert(image.fingerprint());
        second_recovery(
            &SimDisk::new(image),
            &after,
            after.acknowledged..=after.submitted,
            &record(2_000_001, 50),
        )
        .map_err(|w| w.within("after a later power cut"))?;
    }
    Ok(())
}

fn second_recovery(
    disk: &SimDisk,
    told: &Trace,
    legal: RangeInclusive<usize>,
    extra: &[u8],
) -> Result<(), Wrong> {
    let log = open(disk).map_err(|e| format!("the log does not open: {e:?}"))?;
    let ks = told.judge(&log, legal)?;
    let mut last = told.clone();
    last.forget_after(&ks);
    last.extend(disk, &log, &[extra.to_vec()])?;
    log.close()?;
    // Only synced bytes are left now.
    let log = open(&disk.crash(|_| 0)).map_err(|e| format!("third opening: {e:?}"))?;
    last.judge(&log, last.acknowledged..=last.submitted)?;
    log.close()?;
    Ok(())
}
