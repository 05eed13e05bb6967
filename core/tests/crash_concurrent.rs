//! Power cuts while many threads append, each in its own session, and another thread discards.
//!
//! The threads decide which appends share a block, so there is no model beforehand. But there is one order of events.
//! Once everything is acknowledged, every index has one record for good. A crash at an earlier moment must leave a
//! part of that. It begins at a first index that was requested. It ends with a whole batch, between the acknowledged
//! and the submitted records. Lost batches are retried under the same numbers, and are appended once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use chiplog::disk::sim::{History, Image, Op, Rng, SimDisk};
use chiplog::{Appended, Batch, BatchBuilder, Index, Log, Sequence, SessionId, Start};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::explore::at_every_point;
use support::{Wrong, open, record};

const THREADS: usize = 4;
const BATCHES: usize = 40;

/// The batches that one thread sent, and their indexes.
type Sent = Vec<(Batch, Appended)>;

/// The whole run.
struct Run {
    history: History,
    sent: Vec<Sent>,
    records: BTreeMap<Index, Vec<u8>>,
    /// Where batches end: the index after their last records.
    ends: BTreeSet<Index>,
}

/// An event, as a note in the history.
#[derive(Clone, Copy)]
enum Event {
    Submitted { thread: usize, batch: usize },
    Acknowledged { thread: usize, batch: usize },
    DiscardAsked(Index),
    Discarded(Index),
}

impl Event {
    fn note(self) -> u64 {
        let (kind, a, b) = match self {
            Self::Submitted { thread, batch } => (0, thread as u64, batch as u64),
            Self::Acknowledged { thread, batch } => (1, thread as u64, batch as u64),
            Self::DiscardAsked(first) => (2, 0, first.0),
            Self::Discarded(first) => (3, 0, first.0),
        };
        kind << 56 | a << 48 | b
    }

    fn of(note: u64) -> Self {
        let (thread, low) = ((note >> 48 & 0xff) as usize, note & 0xffff_ffff);
        match note >> 56 {
            0 => Self::Submitted { thread, batch: low as usize },
            1 => Self::Acknowledged { thread, batch: low as usize },
            2 => Self::DiscardAsked(Index(low)),
            _ => Self::Discarded(Index(low)),
        }
    }
}

/// The bounds of the log's state after a crash at some moment.
#[derive(Clone, Debug)]
struct Bounds {
    submitted: [usize; THREADS],
    acknowledged: [usize; THREADS],
    first_min: Index,
    first_asked: BTreeSet<Index>,
}

fn bounds(history: &History) -> Vec<Bounds> {
    let mut now = Bounds {
        submitted: [0; THREADS],
        acknowledged: [0; THREADS],
        first_min: Index(1),
        first_asked: BTreeSet::from([Index(1)]),
    };
    let mut all = vec![now.clone()];
    for op in &history.ops {
        if let Op::Mark(note) = op {
            match Event::of(*note) {
                Event::Submitted { thread, batch } => now.submitted[thread] = batch + 1,
                Event::Acknowledged { thread, batch } => now.acknowledged[thread] = batch + 1,
                Event::DiscardAsked(first) => drop(now.first_asked.insert(first)),
                Event::Discarded(first) => now.first_min = first,
            }
        }
        all.push(now.clone());
    }
    all
}

/// Runs all threads on a fresh disk, and closes the log.
fn run(seed: u64) -> Run {
    let disk = SimDisk::default();
    disk.set_sync_time(Duration::from_micros(100));
    let log = open(&disk).unwrap();
    let sessions: Vec<SessionId> = (0..THREADS).map(|_| log.open_session().unwrap().id()).collect();
    let newest = AtomicUsize::new(0);
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let appenders: Vec<_> = sessions
            .iter()
            .enumerate()
            .map(|(thread, session)| {
                let (disk, log, newest) = (&disk, &log, &newest);
                scope.spawn(move || append_all(disk, log, thread, *session, seed, newest))
            })
            .collect();
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            let first = Index(newest.load(Ordering::Relaxed) as u64 * 2 / 3);
            if first > log.first_index() {
                disk.mark(Event::DiscardAsked(first).note());
                log.discard(first).unwrap();
                disk.mark(Event::Discarded(first).note());
            }
        }
        appenders.into_iter().map(|a| a.join().unwrap()).collect()
    });
    log.close().unwrap();
    let mut records = BTreeMap::new();
    let mut ends = BTreeSet::from([Index(1)]);
    for (batch, appended) in sent.iter().flatten() {
        for (n, bytes) in batch.records().unwrap().into_iter().enumerate() {
            let old = records.insert(appended.first.plus(n as u64), bytes);
            assert!(old.is_none(), "two records got index {}", appended.first.plus(n as u64));
        }
        ends.insert(appended.last().next());
    }
    assert_eq!(
        records.keys().copied().collect::<Vec<_>>(),
        (1..=records.len() as u64).map(Index).collect::<Vec<_>>()
    );
    Run { history: disk.history(), sent, records, ends }
}

/// One thread's appends, a few of them in flight.
fn append_all(
    disk: &SimDisk,
    log: &Log,
    thread: usize,
    session: SessionId,
    seed: u64,
    newest: &AtomicUsize,
) -> Sent {
    let mut rng = Rng::new(seed << 8 | thread as u64);
    let (mut batches, mut waiting) = (Vec::new(), VecDeque::new());
    let mut answered: Vec<Appended> = Vec::new();
    for n in 0..BATCHES {
        let mut builder = BatchBuilder::new();
        builder.session(session, Sequence(n as u64 + 1), waiting.len() as u16);
        for part in 0..1 + rng.below(3) {
            let number = (thread * 1_000_000 + n * 1000 + part) as u64 + 1;
            builder.push(&record(number, rng.below(900))).unwrap();
        }
        let batch = builder.build().unwrap();
        disk.mark(Event::Submitted { thread, batch: n }.note());
        waiting.push_back(log.submit(&batch).unwrap());
        batches.push(batch);
        while waiting.len() > 3 || n + 1 == BATCHES && !waiting.is_empty() {
            let appended = waiting.pop_front().unwrap().wait().unwrap();
            disk.mark(Event::Acknowledged { thread, batch: answered.len() }.note());
            newest.fetch_max(appended.last().0 as usize, Ordering::Relaxed);
            answered.push(appended);
        }
    }
    batches.into_iter().zip(answered).collect()
}

/// The checks: see the head of this file.
fn judge(run: &Run, log: &Log, bounds: &Bounds) -> Result<(), Wrong> {
    let status = log.status();
    ensure!(
        bounds.first_asked.contains(&status.first_index) && status.first_index >= bounds.first_min,
        "the first record is {}, of {bounds:?}",
        status.first_index
    );
    ensure!(
        run.ends.contains(&status.last_index.next()),
        "the last record {} is not the end of a batch",
        status.last_index
    );
    for (thread, sent) in run.sent.iter().enumerate() {
        for (n, (_, appended)) in sent.iter().enumerate() {
            let there = appended.last() <= status.last_index;
            ensure!(
                there || n >= bounds.acknowledged[thread],
                "batch {n} of thread {thread} is lost: {bounds:?}"
            );
            ensure!(
                !there || n < bounds.submitted[thread],
                "batch {n} of thread {thread} was not submitted yet"
            );
        }
    }
    let mut reader = log.reader(Start::First)?;
    let mut next = status.first_index;
    while let Some(record) = reader.next_record()? {
        ensure!(record.index == next, "record {} was returned instead of {next}", record.index);
        ensure!(
            run.records.get(&next).map(Vec::as_slice) == Some(record.data),
            "record {next} has other bytes"
        );
        next = next.next();
    }
    ensure!(
        next == status.last_index.next(),
        "the reader stops before {next}, the last record is {}",
        status.last_index
    );
    Ok(())
}

/// Each thread retries the batches that have no answer; afterwards each is in the log once.
fn resend(run: &Run, log: &Log, bounds: &Bounds) -> Result<(), Wrong> {
    let last = log.last_index();
    let mut next = last.next();
    for (thread, sent) in run.sent.iter().enumerate() {
        for (batch, appended) in &sent[bounds.acknowledged[thread]..bounds.submitted[thread]] {
            let got = log.append(batch)?;
            let there = appended.last() <= last;
            let wanted = if there { *appended } else { Appended::new(next, batch.count()) };
            ensure!(
                (got.first, got.count) == (wanted.first, wanted.count),
                "thread {thread} got {got:?}, not {wanted:?}"
            );
            next = next.max(got.last().next());
        }
    }
    ensure!(log.last_index().next() == next, "a batch was appended twice");
    Ok(())
}

fn recover(run: &Run, image: Image, bounds: &Bounds) -> Result<(), Wrong> {
    let disk = SimDisk::new(image);
    let log = open(&disk)?;
    judge(run, &log, bounds)?;
    resend(run, &log, bounds)?;
    let (first, last) = (log.first_index(), log.last_index());
    let after = disk.crash(|_| 0);
    drop(log);
    let log = open(&after)?;
    ensure!((log.first_index(), log.last_index()) == (first, last), "retried batches are lost again");
    Ok(log.close()?)
}

#[test]
fn power_cuts_under_concurrent_appends_lose_nothing() {
    let rounds = std::env::var("CHIPLOG_CRASH_ROUNDS").ok().map_or(3, |v| v.parse().unwrap());
    let seen = Mutex::new(BTreeSet::new());
    let mut shared = 0;
    for seed in 0..rounds {
        let run = run(seed);
        let bounds = bounds(&run.history);
        shared += run
            .history
            .ops
            .iter()
            .filter(|op| matches!(op, Op::Write { data, .. } if data.len() > 2500 && data.len() < 5000))
            .count();
        let explored = at_every_point(&format!("run {seed}"), &run.history, |point, state| {
            for image in state.crashes(64, 12, seed << 32 | point as u64) {
                if seen.lock().unwrap().insert((image.fingerprint(), bounds[point].acknowledged)) {
                    recover(&run, image, &bounds[point])?;
                }
            }
            Ok(true)
        });
        if let Err(wrong) = explored {
            panic!("{wrong}");
        }
    }
    let states = seen.into_inner().unwrap().len();
    println!("concurrent: {states} states of {rounds} runs, {shared} writes shared by several appends");
    assert!(states > 1000 && shared > 0, "{states} states, {shared} shared writes");
}
