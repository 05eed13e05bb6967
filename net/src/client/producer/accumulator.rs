//! Accumulator: the state that a producer's callers and its sender task share: waiting records and their progress.
//!
//! ```text
//! callers ── push ──> open batch ──> ready batches ── take ──> sender (in flight) ── settle ──> gone
//!                     `------------------ buffered bytes ------------------'
//! ```
//!
//! Invariants:
//! - Batches are numbered 1, 2, 3 … in the order of their records, and settled in that order, except a batch that
//!   cannot be encoded.
//! - Once `gone`, everything is settled, and nothing is pushed any more.
//! - `buffered` counts every record from `push` to `settle`. It stays at or below `buffer_bytes`, except for one record
//!   in an empty buffer.
//! - No foreign code (callbacks, wakers) runs while the lock is held.
//! - Every record that is not acknowledged is reported: by a delivery's result, a callback, a flush, a close, or the
//!   process's own log.
//!
//! Must not know: the network.

use super::close_report::{Closed, Unacknowledged};
use super::delivery::{BatchResult, Delivery, part};
use super::unreported::{Cause, Unreported};
use crate::client::retry::deadline::{after, within};
use chiplog::limits::BATCH_HEADER_BYTES;
use chiplog::{Appended, BatchBuilder, Error, ErrorKind, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The bytes that a batch's table needs for a record.
const RECORD_OVERHEAD_BYTES: usize = 4;
/// The approximate size of a callback.
const CALLBACK_BYTES: usize = 64;

pub(crate) type Callback = Box<dyn FnOnce(Result<Appended>) + Send>;

/// How a record's result is reported.
pub(crate) enum Report {
    None,
    Delivery,
    Callback(Callback),
}

/// The accumulator's bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) batch_bytes: usize,
    pub(crate) batch_records: u32,
    pub(crate) record_bytes_max: usize,
    pub(crate) buffer_bytes: usize,
    pub(crate) linger: Duration,
}

/// A batch that accepts no more records.
pub(crate) struct SealedBatch {
    pub(crate) builder: BatchBuilder,
    pub(crate) waiting: Waiting,
}

/// Everything that waits for a batch to be settled.
pub(crate) struct Waiting {
    number: u64,
    /// When the batch's first record was pushed.
    pub(crate) since: Instant,
    cost: usize,
    records: u32,
    reports: Reports,
}

/// The callbacks and deliveries of a batch's records.
#[derive(Default)]
struct Reports {
    outcome: Option<Arc<BatchResult>>,
    /// Each with the offset of its first record in the batch, and their number.
    callbacks: Vec<(u32, u32, Callback)>,
    /// Records without a callback or a delivery.
    silent: u32,
}

impl Reports {
    /// Adds the report for `records` records; the first one is at `offset` in the batch.
    fn add(&mut self, report: Report, offset: u32, records: u32) -> Option<Delivery> {
        match report {
            Report::None => self.silent += records,
            Report::Delivery => {
                let outcome = self.outcome.get_or_insert_default().clone();
                return Some(Delivery::new(outcome, offset, records));
            }
            Report::Callback(callback) => self.callbacks.push((offset, records, callback)),
        }
        None
    }

    /// Marks the batch as failed. Returns how many of its records are unreported so far; `unreported` counts them
    /// from now on.
    fn fail(&self, why: &Error, cause: Cause, unreported: &Arc<Unreported>) -> u64 {
        let silent = u64::from(self.silent);
        match &self.outcome {
            Some(outcome) => outcome.fail(why, cause, silent, unreported),
            None => {
                unreported.add(cause, silent, 0, why);
                silent
            }
        }
    }

    fn report(mut self, result: &Result<Appended>) {
        self.report_all(result);
    }

    fn report_all(&mut self, result: &Result<Appended>) {
        if let Some(outcome) = self.outcome.take() {
            outcome.set(result.clone());
        }
        for (offset, records, callback) in std::mem::take(&mut self.callbacks) {
            let result = result.clone().map(|batch| part(batch, offset, records));
            // A callback that panics does not keep others from running.
            if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
                tracing::error!("a callback of a producer panicked");
            }
        }
    }
}

impl Drop for Reports {
    /// Also runs after a panic of its owner: no caller waits forever.
    fn drop(&mut self) {
        if self.outcome.is_none() && self.callbacks.is_empty() {
            return;
        }
        let what =
            "the producer's task ended before the record was acknowledged; the record may be in the log";
        self.report_all(&Err(Error::new(ErrorKind::Closed, what)));
    }
}

/// The result of [`Accumulator::take`].
pub(crate) enum Take {
    Batch(Box<SealedBatch>),
    /// There will be a batch at this time at the latest.
    Linger(Instant),
    Nothing,
}

pub(crate) struct Accumulator {
    state: Mutex<State>,
    /// There may be something to take.
    pub(crate) work: Notify,
    /// Something was settled, or the sender task has ended.
    settled: Notify,
    abandoned: Notify,
    /// Locked after the state, and after an outcome.
    unreported: Arc<Unreported>,
}

struct State {
    bounds: Bounds,
    open: Open,
    ready: std::collections::VecDeque<Box<SealedBatch>>,
    buffered: usize,
    /// Records that are not settled, and not counted as unreported.
    records: u64,
    /// The number of the last batch that was closed; the open batch has the next number.
    closed_to: u64,
    settled_to: u64,
    /// Batches up to this one do not linger.
    flush_to: u64,
    /// The number of failed batches, and the last reason. Each handle remembers how many of them it has reported.
    failures: u64,
    failed: Option<Error>,
    /// The reason why no more records are accepted.
    ended: Option<Error>,
    /// The sender task must give up.
    abandoned: bool,
    /// The sender task has ended.
    gone: bool,
    /// The records that the sender task left.
    left: Vec<Unacknowledged>,
}

#[derive(Default)]
struct Open {
    builder: BatchBuilder,
    since: Option<Instant>,
    cost: usize,
    reports: Reports,
}

impl Accumulator {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let state = State {
            bounds,
            open: Open::default(),
            ready: Default::default(),
            buffered: 0,
            records: 0,
            closed_to: 0,
            settled_to: 0,
            flush_to: 0,
            failures: 0,
            failed: None,
            ended: None,
            abandoned: false,
            gone: false,
            left: Vec::new(),
        };
        let (work, settled, abandoned) = (Notify::new(), Notify::new(), Notify::new());
        Self { state: Mutex::new(state), work, settled, abandoned, unreported: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the bounds, from now on.
    pub(crate) fn bound(&self, bounds: Bounds) {
        self.state().bounds = bounds;
    }

    /// Adds a record, if there is room. Never blocks.
    ///
    /// # Errors
    /// `Busy`: no room; `TooLarge`; the error that ended the producer. `Busy` returns `report` to the caller.
    pub(crate) fn push(&self, record: &[u8], report: Report) -> Result<Option<Delivery>, (Error, Report)> {
        let extra = if matches!(report, Report::Callback(_)) { CALLBACK_BYTES } else { 0 };
        let cost = record.len() + RECORD_OVERHEAD_BYTES + extra;
        let mut state = self.state();
        let bounds = state.bounds;
        if let Some(error) = &state.ended {
            return Err((error.clone(), report));
        }
        if record.len() > bounds.record_bytes_max {
            drop(state);
            let what = format!(
                "the record has {} bytes; the servers accept up to {}",
                record.len(),
                bounds.record_bytes_max
            );
            return Err((Error::new(ErrorKind::TooLarge, what), report));
        }
        if let Some(full) = state.full_for(cost) {
            return Err((full, report));
        }
        let bytes = record.len() + RECORD_OVERHEAD_BYTES;
        let builder = &state.open.builder;
        if builder.count() >= bounds.batch_records || builder.encoded_bytes() + bytes > bounds.batch_bytes {
            state.close_open();
        }
        let n = state.open.builder.count();
        if let Err(error) = state.open.builder.push(record) {
            return Err((error, report));
        }
        state.open.cost += cost;
        state.buffered += cost;
        state.records += 1;
        let delivery = state.open.reports.add(report, n, 1);
        let full = state.open.builder.encoded_bytes() >= bounds.batch_bytes;
        if n == 0 {
            state.open.since = Some(Instant::now());
        }
        if full {
            state.close_open();
        }
        drop(state);
        if n == 0 || full {
            self.work.notify_one();
        }
        Ok(delivery)
    }

    /// Adds records as one batch, if there is room: all of them or none. Never blocks. The result is their
    /// place.
    ///
    /// # Errors
    /// As [`Self::push`]; `TooLarge`: the batch is larger than the servers accept.
    pub(crate) fn push_batch(
        &self,
        records: &[impl AsRef<[u8]>],
        report: Report,
    ) -> Result<Option<Delivery>, (Error, Report)> {
        let bytes: usize = records.iter().map(|r| r.as_ref().len() + RECORD_OVERHEAD_BYTES).sum();
        let cost = bytes + CALLBACK_BYTES;
        let mut state = self.state();
        let bounds = state.bounds;
        if let Some(error) = &state.ended {
            return Err((error.clone(), report));
        }
        let largest = records.iter().map(|r| r.as_ref().len()).max().unwrap_or(0);
        let what = match () {
            () if records.is_empty() => "the batch is empty; a batch needs at least one record".to_owned(),
            () if largest > bounds.record_bytes_max => {
                format!("a record has {largest} bytes; the servers accept up to {}", bounds.record_bytes_max)
            }
            () if BATCH_HEADER_BYTES + bytes > bounds.batch_bytes => {
                format!("the batch has {bytes} bytes; the limit is {}", bounds.batch_bytes)
            }
            () => String::new(),
        };
        if !what.is_empty() {
            drop(state);
            let kind = if records.is_empty() { ErrorKind::InvalidArgument } else { ErrorKind::TooLarge };
            return Err((Error::new(kind, what), report));
        }
        if let Some(full) = state.full_for(cost) {
            return Err((full, report));
        }
        let mut builder = BatchBuilder::new();
        for record in records {
            if let Err(error) = builder.push(record.as_ref()) {
                return Err((error, report));
            }
        }
        state.close_open();
        let mut reports = Reports::default();
        let delivery = reports.add(report, 0, builder.count());
        state.open = Open { builder, since: Some(Instant::now()), cost, reports };
        state.close_open();
        state.buffered += cost;
        state.records += records.len() as u64;
        drop(state);
        self.work.notify_one();
        Ok(delivery)
    }

    /// As [`Self::push_batch`]; waits for room for up to `patience`.
    pub(crate) async fn push_batch_wait(
        &self,
        records: &[impl AsRef<[u8]>],
        mut report: Report,
        patience: Duration,
    ) -> Result<Option<Delivery>> {
        let deadline = within(patience);
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            match self.push_batch(records, report) {
                Err((error, again)) if error.kind() == ErrorKind::Busy => {
                    if timeout_at(deadline, settled).await.is_err() {
                        return Err(error);
                    }
                    report = again;
                }
                done => return done.map_err(|(error, _)| error),
            }
        }
    }

    /// Adds a record; waits for room for up to `patience`.
    pub(crate) async fn push_wait(
        &self,
        record: &[u8],
        report: Report,
        patience: Duration,
    ) -> Result<Option<Delivery>> {
        let mut report = match self.push(record, report) {
            Ok(delivery) => return Ok(delivery),
            Err((error, report)) if error.kind() == ErrorKind::Busy => report,
            Err((error, _)) => return Err(error),
        };
        let deadline = within(patience);
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            match self.push(record, report) {
                Ok(delivery) => return Ok(delivery),
                Err((error, again)) if error.kind() == ErrorKind::Busy => {
                    if timeout_at(deadline, settled).await.is_err() {
                        return Err(error);
                    }
                    report = again;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Takes the oldest waiting batch, unless it lingers.
    pub(crate) fn take(&self, now: Instant) -> Take {
        let mut state = self.state();
        if state.ready.is_empty() {
            let Some(since) = state.open.since else { return Take::Nothing };
            let due = after(since, state.bounds.linger);
            if now < due && state.flush_to <= state.closed_to && state.ended.is_none() {
                return Take::Linger(due);
            }
            state.close_open();
        }
        state.ready.pop_front().map_or(Take::Nothing, Take::Batch)
    }

    /// When the oldest waiting record was pushed.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let state = self.state();
        state.ready.front().map(|g| g.waiting.since).or(state.open.since)
    }

    /// Settles a batch that was taken. `result`: its place.
    pub(crate) fn settle(&self, waiting: Waiting, result: &Result<Appended>) {
        self.report(waiting, result, Cause::Failed);
    }

    /// The sender task ends, and leaves a batch for this reason.
    pub(crate) fn leave(&self, waiting: Waiting, error: Error) {
        self.report(waiting, &Err(error), Cause::Left);
    }

    fn report(&self, waiting: Waiting, result: &Result<Appended>, cause: Cause) {
        let Waiting { number, cost, records, reports, .. } = waiting;
        let records = u64::from(records);
        // Counted before the result is reported, and in one step: each record counts once at any time, and not at all
        // once it is acknowledged.
        let settled_later = {
            let mut state = self.state();
            match result {
                Err(error) if error.kind() != ErrorKind::SequenceForgotten => {
                    state.failures += 1;
                    state.failed = Some(error.clone());
                    let unreported = reports.fail(error, cause, &self.unreported);
                    state.records -= unreported;
                    records - unreported
                }
                _ => {
                    state.records -= records;
                    0
                }
            }
        };
        // First: a caller that sees a record as settled can rely on its result having been reported.
        reports.report(result);
        {
            let mut state = self.state();
            state.settled_to = state.settled_to.max(number);
            state.buffered -= cost;
            state.records -= settled_later;
        }
        self.settled.notify_waiters();
    }

    /// Accepts no more records, for this reason; an earlier reason stays.
    pub(crate) fn end(&self, why: Error) {
        self.state().ended.get_or_insert(why);
        self.work.notify_one();
        self.settled.notify_waiters();
    }

    /// The last handle was dropped: no more records are accepted, and no call asks for results any more.
    pub(crate) fn dropped(&self) {
        self.unreported.dropped();
        self.end(Error::new(ErrorKind::Closed, "the producer was dropped"));
        self.unreported.log();
    }

    /// Whether nothing waits to be taken, and nothing ever will. Checks both under one lock: otherwise a record could
    /// be pushed and the last handle dropped in between.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state();
        state.ended.is_some() && state.is_empty()
    }

    /// Waits until there is something to take. False: there is nothing, and there never will be.
    pub(crate) async fn wait_for_work(&self) -> bool {
        while self.state().is_empty() {
            if self.is_done() {
                return false;
            }
            self.work.notified().await;
        }
        true
    }

    /// Bytes of records that are not settled.
    pub(crate) fn buffered(&self) -> usize {
        self.state().buffered
    }

    /// The largest batch that is accepted.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        self.state().bounds.batch_bytes
    }

    /// Records that are not settled, and not counted as unreported.
    pub(crate) fn unsettled(&self) -> u64 {
        self.state().records
    }

    /// Unsettled records, plus failed records that were not reported.
    pub(crate) fn unacknowledged(&self) -> u64 {
        let state = self.state();
        state.records + self.unreported.so_far()
    }

    /// Waits until everything pushed before the call is settled, or until `deadline`. `reported`: the number of
    /// failures that the caller knows.
    ///
    /// # Errors
    /// `Timeout`; or the last failure that the caller does not know.
    pub(crate) async fn flush(&self, deadline: Instant, reported: &AtomicU64) -> Result<()> {
        let target = {
            let mut state = self.state();
            let target = state.closed_to + u64::from(state.open.since.is_some());
            state.flush_to = state.flush_to.max(target);
            target
        };
        self.work.notify_one();
        let settled = self.settled_when(|state| state.settled_to >= target);
        if timeout_at(deadline, settled).await.is_err() {
            let what = "some records were not acknowledged in time; they may still be appended";
            return Err(Error::new(ErrorKind::Timeout, what));
        }
        let state = self.state();
        let news = reported.swap(state.failures, Ordering::Relaxed) < state.failures;
        self.unreported.flushed();
        state.failed.clone().filter(|_| news).map_or(Ok(()), Err)
    }

    async fn settled_when(&self, is: impl Fn(&State) -> bool) {
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            if is(&self.state()) {
                return;
            }
            settled.await;
        }
    }

    /// Waits until the sender task has ended.
    pub(crate) async fn wait_gone(&self) {
        self.settled_when(|state| state.gone).await;
    }

    /// The sender task has ended, and leaves these records.
    pub(crate) fn gone(&self, left: Vec<Unacknowledged>) {
        {
            let mut state = self.state();
            state.gone = true;
            state.left.extend(left);
        }
        self.unreported.gone();
        self.settled.notify_waiters();
        self.unreported.log();
    }

    /// Returns how the producer ended; the same at each call.
    pub(crate) fn closed(&self, reported: &AtomicU64) -> Closed {
        let state = self.state();
        let news = reported.load(Ordering::Relaxed) < state.failures;
        let failed = state.failed.clone().filter(|_| news);
        Closed { left: state.left.clone(), failed, untold: self.unreported.closed() }
    }

    /// Makes the sender task give up.
    pub(crate) fn abandon(&self) {
        self.state().abandoned = true;
        self.abandoned.notify_waiters();
    }

    pub(crate) async fn wait_abandoned(&self) {
        loop {
            let mut abandoned = pin!(self.abandoned.notified());
            abandoned.as_mut().enable();
            if self.state().abandoned {
                return;
            }
            abandoned.await;
        }
    }
}

impl State {
    /// The error of records that take this many bytes, if the buffer has no room for them. Any fit into an empty one.
    fn full_for(&self, cost: usize) -> Option<Error> {
        let most = self.bounds.buffer_bytes;
        (self.buffered > 0 && self.buffered + cost > most).then(|| {
            let what = format!("the buffer is full: {most} bytes of records are not acknowledged yet");
            Error::new(ErrorKind::Busy, what)
        })
    }

    /// Whether nothing waits to be taken.
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.open.since.is_none()
    }

    fn close_open(&mut self) {
        let Some(since) = self.open.since else { return };
        self.closed_to += 1;
        let Open { builder, cost, reports, .. } = std::mem::take(&mut self.open);
        let records = builder.count();
        let waiting = Waiting { number: self.closed_to, since, cost, records, reports };
        self.ready.push_back(Box::new(SealedBatch { builder, waiting }));
    }
}

impl fmt::Debug for Accumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Accumulator")
            .field("bounds", &state.bounds)
            .field("buffered", &state.buffered)
            .field("settled_to", &state.settled_to)
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

/// A batch's header and its smallest content.
pub(crate) const BATCH_BYTES_MIN: usize = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES + 1;
/// The overhead of a record that is alone in its batch.
pub(crate) const FRAME_BYTES: usize = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use chiplog::Index;
    use futures_util::FutureExt;

    fn accumulator(linger: Duration) -> Arc<Accumulator> {
        let bounds = Bounds {
            batch_bytes: 1 << 16,
            batch_records: 1000,
            record_bytes_max: 1 << 10,
            buffer_bytes: 1 << 20,
            linger,
        };
        Arc::new(Accumulator::new(bounds))
    }

    fn end(accumulator: &Accumulator) {
        accumulator.end(Error::new(ErrorKind::Closed, "the test ends it"));
    }

    fn push(accumulator: &Accumulator, record: &[u8]) {
        assert!(accumulator.push(record, Report::None).is_ok());
    }

    /// The sender task checked for waiting records, then for the producer's end. In between, another thread pushed a
    /// record and closed the producer: the task ended without the record, which was never reported.
    #[tokio::test]
    async fn record_pushed_just_before_close_is_sent() {
        for _ in 0..20_000 {
            let accumulator = accumulator(Duration::ZERO);
            let begin = Arc::new(std::sync::Barrier::new(2));
            let caller = {
                let (accumulator, begin) = (accumulator.clone(), begin.clone());
                std::thread::spawn(move || {
                    begin.wait();
                    push(&accumulator, b"x");
                    end(&accumulator);
                })
            };
            begin.wait();
            assert!(accumulator.wait_for_work().await, "it ended without the record");
            caller.join().unwrap();
            assert!(!accumulator.is_done());
            assert!(matches!(accumulator.take(Instant::now()), Take::Batch(_)));
            assert!(accumulator.is_done() && !accumulator.wait_for_work().await);
        }
    }

    /// The longest linger overflowed under the lock, and again while the task was unwound: the process ended.
    #[test]
    fn batch_may_linger_for_the_longest_duration() {
        let accumulator = accumulator(Duration::MAX);
        push(&accumulator, b"x");
        assert!(matches!(accumulator.take(Instant::now()), Take::Linger(_)));
        end(&accumulator);
        assert!(matches!(accumulator.take(Instant::now()), Take::Batch(_)));
    }

    fn settle(accumulator: &Accumulator, result: &Result<Appended>) {
        let Take::Batch(sealed) = accumulator.take(Instant::now()) else { panic!("no batch is ready") };
        accumulator.settle(sealed.waiting, result);
    }

    fn failure() -> Result<Appended> {
        Err(Error::new(ErrorKind::Timeout, "planted"))
    }

    fn deliveries<const N: usize>(accumulator: &Accumulator) -> [Delivery; N] {
        std::array::from_fn(|_| accumulator.push(b"x", Report::Delivery).ok().flatten().unwrap())
    }

    /// A delivery that was kept and never read counted as reported once its record had failed.
    #[test]
    fn delivery_is_reported_once_its_result_is_taken() {
        let accumulator = accumulator(Duration::ZERO);
        let [kept, peeked, awaited, early, late] = deliveries(&accumulator);
        let twin = kept.clone();
        let batch = accumulator.push_batch(&[b"1", b"2"], Report::Delivery).ok().flatten().unwrap();
        push(&accumulator, b"silent");
        drop(early);
        assert_eq!(accumulator.unacknowledged(), 8);
        for left in [3, 1, 0] {
            assert_eq!(accumulator.unacknowledged(), 8);
            settle(&accumulator, &failure());
            assert_eq!(accumulator.unsettled(), left);
        }
        assert!(peeked.try_result().is_some() && peeked.try_result().is_some());
        assert_eq!(accumulator.unacknowledged(), 7);
        assert!(kept.settled().now_or_never().is_some());
        drop((kept, peeked, late, batch));
        assert_eq!(accumulator.unacknowledged(), 7, "a delivery dropped without its result was not counted");
        assert!(awaited.now_or_never().unwrap().is_err());
        assert_eq!(accumulator.unacknowledged(), 6);
        assert!(twin.try_result().is_some());
        assert_eq!(accumulator.unacknowledged(), 5, "one clone's result was taken");
        end(&accumulator);
        accumulator.gone(Vec::new());
        let reported = AtomicU64::new(0);
        assert_eq!(accumulator.closed(&reported).untold, 5);
    }

    #[test]
    fn delivery_of_a_committed_record_is_never_unreported() {
        let accumulator = accumulator(Duration::ZERO);
        let [kept, dropped, after] = deliveries(&accumulator);
        drop(dropped);
        settle(&accumulator, &Ok(Appended::new(Index(7), 2)));
        drop(after);
        let [forgotten] = deliveries(&accumulator);
        settle(&accumulator, &Err(Error::new(ErrorKind::SequenceForgotten, "planted")));
        drop(forgotten);
        assert_eq!(accumulator.unacknowledged(), 0);
        assert_eq!(kept.try_result().unwrap().unwrap(), Index(7));
    }

    /// A flush returned a failure; the record's delivery, read later, removed another record from the count.
    #[tokio::test]
    async fn failures_reported_by_flush_are_not_counted_again() {
        let accumulator = accumulator(Duration::ZERO);
        let [asked, dropped] = deliveries(&accumulator);
        settle(&accumulator, &failure());
        let reported = AtomicU64::new(0);
        assert!(accumulator.flush(within(Duration::from_secs(60)), &reported).await.is_err());
        assert_eq!(accumulator.unacknowledged(), 0);
        let [kept] = deliveries(&accumulator);
        settle(&accumulator, &failure());
        drop(dropped);
        assert!(asked.try_result().is_some());
        assert_eq!(accumulator.unacknowledged(), 1);
        assert!(kept.try_result().is_some());
        assert_eq!(accumulator.unacknowledged(), 0);
    }
}
