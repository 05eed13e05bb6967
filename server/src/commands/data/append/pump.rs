//! Moves batches from the input to the log: one thread reads, several append, and all end in order.
//!
//! Invariants:
//! - Everything counted in the [`Tally`] is durable.
//! - Memory is bounded: batches wait in a channel of fixed size, and each worker has a limited number in
//!   flight.
//! - The input's thread may wait for a source forever; no other thread waits for that thread.

use super::input::Input;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::signals;
use chiplog::{Appended, Batch, BatchBuilder, Codec, Durability, ErrorKind, Log, Ticket};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use indicatif::ProgressBar;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) threads: usize,
    pub(super) in_flight: usize,
    pub(super) batch_records: u32,
    pub(super) batch_bytes: usize,
    pub(super) codec: Codec,
    /// The numbers of records of the first batches, which were cut in an earlier run.
    pub(super) cuts: VecDeque<u64>,
}

/// A batch is passed on at this size, however few records it has, so that a block does not wait for one
/// batch.
const BATCH_BYTES_TARGET: usize = 1 << 20;

/// The records that are durable so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    batches: AtomicU64,
    bytes: AtomicU64,
    /// The weakest durability of an acknowledgement, if there was one. None within: a server did not tell.
    durability: Mutex<Option<Option<Durability>>>,
    /// The durable indexes, as few ranges (first to last) as possible.
    ranges: Mutex<BTreeMap<u64, u64>>,
    /// Durable records whose indexes the servers no longer know: an earlier run sent them, and more since.
    forgotten: AtomicU64,
}

impl Tally {
    /// Counts durable records. `batch_ends`: they complete a batch.
    pub(super) fn add(&self, appended: Appended, bytes: u64, batch_ends: bool) {
        self.batches.fetch_add(batch_ends.into(), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        let mut weakest = lock(&self.durability);
        *weakest = Some(weakest.map_or(appended.durability, |before| before.min(appended.durability)));
        drop(weakest);
        let (mut first, mut last) = (appended.first.get(), appended.last().get());
        let mut ranges = lock(&self.ranges);
        if let Some((before, end)) = ranges.range(..first).next_back().map(|(a, b)| (*a, *b))
            && end + 1 == first
        {
            ranges.remove(&before);
            first = before;
        }
        if let Some(end) = ranges.remove(&(last + 1)) {
            last = end;
        }
        ranges.insert(first, last);
    }

    /// Counts durable records whose indexes are no longer known.
    pub(super) fn add_forgotten(&self, records: u64, bytes: u64, batch_ends: bool) {
        self.batches.fetch_add(batch_ends.into(), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.forgotten.fetch_add(records, Relaxed);
    }

    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        lock(&self.ranges).iter().map(|(a, b)| (*a, *b)).collect()
    }

    /// How durable all of them were when they were acknowledged. None: there are none, or a server did not tell.
    pub(super) fn durability(&self) -> Option<Durability> {
        lock(&self.durability).flatten()
    }

    pub(super) fn records(&self) -> u64 {
        let known: u64 = lock(&self.ranges).iter().map(|(first, last)| last - first + 1).sum();
        known + self.forgotten()
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message to a worker.
pub(super) enum Work {
    /// A batch, and the size of its records in bytes.
    Batch(Batch, u64),
    /// The end: one for each worker.
    End,
}

/// The state that the threads share.
pub(super) struct Shared {
    pub(super) tally: Tally,
    work: Sender<Work>,
    threads: usize,
    stop: AtomicBool,
    interrupted: AtomicBool,
    /// Records, or batches with a session file, that a producer took, and those of them that have a result.
    taken: AtomicU64,
    settled: AtomicU64,
    /// Whether something was sent that may or may not be in the log.
    in_doubt: AtomicBool,
    /// The first reason to stop early.
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    pub(super) fn fail(&self, failure: impl Into<Failure>) {
        lock(&self.failure).get_or_insert(failure.into());
        self.stop_early();
    }

    /// Makes every worker finish what it has in flight and take nothing more.
    fn stop_early(&self) {
        self.stop.store(true, Relaxed);
        for _ in 0..self.threads {
            // A full channel needs no message: no worker sleeps on it, and all see the flag.
            let _ = self.work.try_send(Work::End);
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Counts what a producer is about to take.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// The producer did not take it.
    pub(super) fn untake(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }

    /// Counts a result.
    pub(super) fn settle(&self) {
        self.settled.fetch_add(1, Relaxed);
    }

    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Relaxed)
    }

    /// Whether a producer has something without a result.
    pub(super) fn is_waiting(&self) -> bool {
        self.taken.load(Relaxed) != self.settled()
    }

    pub(super) fn doubt(&self) {
        self.in_doubt.store(true, Relaxed);
    }

    /// How the run ended.
    fn ended(&self) -> Result<Exit> {
        let in_doubt = self.in_doubt.load(Relaxed);
        match lock(&self.failure).take() {
            Some(failure) if in_doubt => Err(failure.with_exit(Exit::Unknown)),
            // Some records were not confirmed when the command had to end.
            Some(failure) if failure.kind() == ErrorKind::Closed && self.interrupted.load(Relaxed) => {
                Ok(Exit::Interrupted)
            }
            Some(failure) => Err(failure),
            None if in_doubt => {
                let what = "the servers did not answer in time: some records may or may not be in the log";
                Err(Failure::new(ErrorKind::Timeout, what).with_exit(Exit::Unknown))
            }
            None if self.interrupted.load(Relaxed) => Ok(Exit::Interrupted),
            None => Ok(Exit::Ok),
        }
    }
}

/// The destination of batches.
pub(super) trait Sink: Send + Sync + 'static {
    /// Begins what a run needs beside its workers.
    fn begin(&self, _shared: &Arc<Shared>) {}

    /// The main loop of a worker: takes batches until the end or a stop; returns when everything it took is
    /// settled.
    fn work(&self, shared: &Arc<Shared>, jobs: &Receiver<Work>, bar: &ProgressBar);
}

/// A log that this process has open.
pub(super) struct Local {
    pub(super) log: Log,
    /// The number of batches in flight per worker.
    pub(super) in_flight: usize,
}

/// Appends all of `input`. The outer error: the run did not start.
pub(super) fn run(
    sink: Arc<dyn Sink>,
    input: Input,
    plan: Plan,
    bar: &ProgressBar,
) -> Result<(Tally, Result<Exit>)> {
    let threads = plan.threads;
    let (work, jobs) = bounded(threads * 2);
    let shared = Arc::new(Shared {
        tally: Tally::default(),
        work,
        threads,
        stop: AtomicBool::new(false),
        interrupted: AtomicBool::new(false),
        taken: AtomicU64::new(0),
        settled: AtomicU64::new(0),
        in_doubt: AtomicBool::new(false),
        failure: Mutex::new(None),
    });
    let no_thread = |e| Failure::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
    let on_signal = shared.clone();
    signals::on_stop(move || {
        on_signal.interrupted.store(true, Relaxed);
        on_signal.stop_early();
    })?;
    sink.begin(&shared);
    let mut workers = Vec::new();
    for n in 0..threads {
        let (to, sink, jobs, bar) = (shared.clone(), sink.clone(), jobs.clone(), bar.clone());
        let worker = thread::Builder::new().name(format!("append-{n}"));
        match worker.spawn(move || sink.work(&to, &jobs, &bar)) {
            Ok(worker) => workers.push(worker),
            Err(e) => {
                shared.fail(no_thread(e));
                break;
            }
        }
    }
    let feeder = shared.clone();
    let reader = thread::Builder::new().name("input".into()).spawn(move || {
        if let Err(failure) = feed(&feeder, input, plan) {
            lock(&feeder.failure).get_or_insert(failure);
        }
        // Records read before an error are appended too.
        (0..feeder.threads).for_each(|_| drop(feeder.work.send(Work::End)));
    });
    if let Err(e) = reader {
        shared.fail(no_thread(e));
    }
    drop(jobs);
    for worker in workers {
        if worker.join().is_err() {
            shared.fail(Failure::new(ErrorKind::Io, "an appending thread panicked"));
        }
    }
    let tally = Tally {
        batches: AtomicU64::new(shared.tally.batches()),
        bytes: AtomicU64::new(shared.tally.bytes()),
        durability: Mutex::new(*lock(&shared.tally.durability)),
        ranges: Mutex::new(std::mem::take(&mut *lock(&shared.tally.ranges))),
        forgotten: AtomicU64::new(shared.tally.forgotten()),
    };
    Ok((tally, shared.ended()))
}

/// The input's thread: cuts the input into batches.
fn feed(shared: &Shared, mut input: Input, plan: Plan) -> Result<()> {
    let mut cuts = plan.cuts;
    let mut builder = BatchBuilder::new();
    builder.codec(plan.codec);
    let mut record = Vec::new();
    let mut bytes = 0;
    let target = BATCH_BYTES_TARGET.min(plan.batch_bytes);
    let hand_on = |builder: &mut BatchBuilder, bytes: &mut u64| -> Result<bool> {
        if builder.is_empty() {
            return Ok(true);
        }
        let batch = builder.build()?;
        Ok(shared.work.send(Work::Batch(batch, std::mem::take(bytes))).is_ok() && !shared.stopped())
    };
    loop {
        if cuts.is_empty() && !input.is_ready() && !hand_on(&mut builder, &mut bytes)? {
            return Ok(());
        }
        match input.next(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) if !cuts.is_empty() => return Err(failure),
            Err(failure) => {
                hand_on(&mut builder, &mut bytes)?;
                return Err(failure);
            }
        }
        let full =
            builder.count() >= plan.batch_records || builder.encoded_bytes() + record.len() + 4 > target;
        if cuts.is_empty() && full && !hand_on(&mut builder, &mut bytes)? {
            return Ok(());
        }
        builder.push(&record)?;
        bytes += record.len() as u64;
        if cuts.pop_front_if(|records| *records == u64::from(builder.count())).is_some()
            && !hand_on(&mut builder, &mut bytes)?
        {
            return Ok(());
        }
    }
    if let Some(records) = cuts.front() {
        let what = format!(
            "the input ends {} records before the end of what was sent earlier: give the same input again",
            records - u64::from(builder.count())
        );
        return Err(Failure::usage(what));
    }
    hand_on(&mut builder, &mut bytes).map(|_| ())
}

impl Sink for Local {
    fn work(&self, shared: &Arc<Shared>, jobs: &Receiver<Work>, bar: &ProgressBar) {
        append(shared, &self.log, jobs, self.in_flight, bar);
    }
}

/// Submits batches. Waits for the oldest one when enough are in flight or when there is nothing else to do.
fn append(shared: &Shared, log: &Log, jobs: &Receiver<Work>, in_flight: usize, bar: &ProgressBar) {
    let mut waiting: VecDeque<(Ticket, u64)> = VecDeque::with_capacity(in_flight);
    loop {
        let next = if waiting.is_empty() {
            jobs.recv().map_err(|_| TryRecvError::Disconnected)
        } else if waiting.len() < in_flight {
            jobs.try_recv()
        } else {
            Err(TryRecvError::Empty)
        };
        match next {
            Err(TryRecvError::Empty) => {
                if let Some(oldest) = waiting.pop_front() {
                    settle(shared, oldest, bar);
                }
            }
            Ok(Work::Batch(batch, bytes)) if !shared.stopped() => match log.submit(&batch) {
                Ok(ticket) => waiting.push_back((ticket, bytes)),
                Err(error) => shared.fail(error),
            },
            Ok(_) | Err(TryRecvError::Disconnected) => break,
        }
        if shared.stopped() {
            break;
        }
    }
    waiting.into_iter().for_each(|ticket| settle(shared, ticket, bar));
}

fn settle(shared: &Shared, (ticket, bytes): (Ticket, u64), bar: &ProgressBar) {
    match ticket.wait() {
        Ok(appended) => {
            shared.tally.add(appended, bytes, true);
            bar.inc(bytes + u64::from(appended.count)); // one newline each
        }
        Err(error) => shared.fail(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Index;

    #[test]
    fn ranges_merge_in_any_order() {
        let tally = Tally::default();
        for (first, count) in [(1, 2), (5, 2), (9, 1), (3, 2), (7, 2)] {
            tally.add(Appended::new(Index(first), count), 10, true);
        }
        assert_eq!(tally.ranges(), [(1, 9)]);
        tally.add(Appended::new(Index(20), 1), 10, true);
        assert_eq!(tally.ranges(), [(1, 9), (20, 20)]);
        assert_eq!((tally.records(), tally.bytes(), tally.batches()), (10, 60, 6));
        tally.add_forgotten(3, 30, true);
        assert_eq!((tally.records(), tally.bytes(), tally.batches()), (13, 90, 7));
        assert_eq!(tally.ranges(), [(1, 9), (20, 20)]);
    }

    #[test]
    fn weakest_durability_is_that_of_all() {
        let tally = Tally::default();
        assert_eq!(tally.durability(), None);
        let add = |n: u64, durability| {
            tally.add(Appended { durability, ..Appended::new(Index(n), 1) }, 10, true);
            tally.durability()
        };
        assert_eq!(add(1, Some(Durability::Object)), Some(Durability::Object));
        assert_eq!(add(2, Some(Durability::MajoritySlices)), Some(Durability::MajoritySlices));
        assert_eq!(add(3, Some(Durability::Object)), Some(Durability::MajoritySlices));
        assert_eq!(add(4, None), None, "an earlier server acknowledged one");
        assert_eq!(add(5, Some(Durability::Object)), None);
    }
}
