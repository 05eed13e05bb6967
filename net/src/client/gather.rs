//! Gather: what a producer's callers and its pump share: records that wait, and how far they have got.
//!
//! ```text
//! callers ── push ──> open batch ──> ready batches ── take ──> pump (under way) ── settle ──> gone
//!                     `------------------ buffered bytes ------------------'
//! ```
//!
//! Invariants:
//! - Batches are numbered 1, 2, 3 … in the order of their records, and settled in that order.
//! - `buffered` counts every record from `push` to `settle`; it stays at or below `buffer_bytes`, but for one record
//!   when nothing else is there.
//! - No foreign code (callbacks, wakers) runs while the lock is held.
//!
//! Must not know: the network.

use super::outcome::{Delivery, Outcome};
use chiplog::{BATCH_HEADER_BYTES, BatchBuilder, Error, ErrorKind, Index, Result};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Bytes of a record's place in its batch's table.
const RECORD_OVERHEAD_BYTES: usize = 4;
/// About what a callback takes.
const CALLBACK_BYTES: usize = 64;

pub(super) type Callback = Box<dyn FnOnce(Result<Index>) + Send>;

/// How the caller hears what became of a record.
pub(super) enum Tell {
    Nobody,
    Delivery,
    Callback(Callback),
}

/// The bounds of gathering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) batch_bytes: usize,
    pub(super) batch_records: u32,
    pub(super) record_bytes_max: usize,
    pub(super) buffer_bytes: usize,
    pub(super) linger: Duration,
}

/// A batch that takes no more records.
pub(super) struct Gathered {
    pub(super) number: u64,
    pub(super) builder: BatchBuilder,
    /// When its first record came.
    pub(super) since: Instant,
    pub(super) cost: usize,
    pub(super) tellings: Tellings,
}

/// Who wants to hear of a batch's records.
#[derive(Default)]
pub(super) struct Tellings {
    outcome: Option<Arc<Outcome>>,
    callbacks: Vec<(u32, Callback)>,
}

impl Tellings {
    pub(super) fn tell(self, result: &Result<Index>) {
        if let Some(outcome) = self.outcome {
            outcome.set(result.clone());
        }
        for (offset, callback) in self.callbacks {
            callback(result.clone().map(|first| first.plus(offset.into())));
        }
    }
}

/// What the pump finds.
pub(super) enum Take {
    Batch(Box<Gathered>),
    /// There will be one at this time, if not before.
    Linger(Instant),
    Nothing,
}

pub(super) struct Gather {
    bounds: Bounds,
    state: Mutex<State>,
    /// There may be something to take.
    pub(super) work: Notify,
    /// Something was settled.
    settled: Notify,
    abandoned: Notify,
}

struct State {
    open: Open,
    ready: std::collections::VecDeque<Box<Gathered>>,
    buffered: usize,
    /// The number of the last batch that was closed; the open one's is the next.
    closed_to: u64,
    settled_to: u64,
    /// Batches up to this one do not linger.
    flush_to: u64,
    /// The first failure since the last flush.
    failed: Option<Error>,
    /// Nothing more is taken, for this reason.
    ended: Option<Error>,
    /// The pump is to give up.
    abandoned: bool,
}

#[derive(Default)]
struct Open {
    builder: BatchBuilder,
    since: Option<Instant>,
    cost: usize,
    tellings: Tellings,
}

impl Gather {
    pub(super) fn new(bounds: Bounds) -> Self {
        let state = State {
            open: Open::default(),
            ready: Default::default(),
            buffered: 0,
            closed_to: 0,
            settled_to: 0,
            flush_to: 0,
            failed: None,
            ended: None,
            abandoned: false,
        };
        let (work, settled, abandoned) = (Notify::new(), Notify::new(), Notify::new());
        Self { bounds, state: Mutex::new(state), work, settled, abandoned }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record in, if there is room. Never waits.
    ///
    /// # Errors
    /// `Busy`: no room; `TooLarge`; whatever ended the producer. `tell` is given back with `Busy`.
    pub(super) fn push(&self, record: &[u8], tell: Tell) -> Result<Option<Delivery>, (Error, Tell)> {
        if record.len() > self.bounds.record_bytes_max {
            let max = self.bounds.record_bytes_max;
            let what = format!("a record of {} bytes; the servers take {max}", record.len());
            return Err((Error::new(ErrorKind::TooLarge, what), tell));
        }
        let extra = if matches!(tell, Tell::Callback(_)) { CALLBACK_BYTES } else { 0 };
        let cost = record.len() + RECORD_OVERHEAD_BYTES + extra;
        let mut state = self.state();
        if let Some(error) = &state.ended {
            return Err((error.clone(), tell));
        }
        if state.buffered + cost > self.bounds.buffer_bytes && state.buffered > 0 {
            drop(state);
            let what = format!("{} bytes of records wait to be acknowledged", self.bounds.buffer_bytes);
            return Err((Error::new(ErrorKind::Busy, what), tell));
        }
        let bytes = record.len() + RECORD_OVERHEAD_BYTES;
        let builder = &state.open.builder;
        if builder.count() >= self.bounds.batch_records
            || builder.encoded_bytes() + bytes > self.bounds.batch_bytes
        {
            state.close_open();
        }
        let n = state.open.builder.count();
        if let Err(error) = state.open.builder.push(record) {
            return Err((error, tell));
        }
        state.open.cost += cost;
        state.buffered += cost;
        let delivery = match tell {
            Tell::Nobody => None,
            Tell::Delivery => {
                Some(Delivery::new(state.open.tellings.outcome.get_or_insert_default().clone(), n))
            }
            Tell::Callback(callback) => {
                state.open.tellings.callbacks.push((n, callback));
                None
            }
        };
        let full = state.open.builder.encoded_bytes() >= self.bounds.batch_bytes;
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

    /// Takes a record in; waits for room until `deadline`.
    pub(super) async fn push_wait(
        &self,
        record: &[u8],
        tell: Tell,
        deadline: Duration,
    ) -> Result<Option<Delivery>> {
        let mut tell = match self.push(record, tell) {
            Ok(delivery) => return Ok(delivery),
            Err((error, tell)) if error.kind() == ErrorKind::Busy => tell,
            Err((error, _)) => return Err(error),
        };
        let deadline = Instant::now() + deadline;
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            match self.push(record, tell) {
                Ok(delivery) => return Ok(delivery),
                Err((error, again)) if error.kind() == ErrorKind::Busy => {
                    if timeout_at(deadline, settled).await.is_err() {
                        return Err(error);
                    }
                    tell = again;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// The oldest batch that waits, if it has not to linger.
    pub(super) fn take(&self, now: Instant) -> Take {
        let mut state = self.state();
        if state.ready.is_empty() {
            let Some(since) = state.open.since else { return Take::Nothing };
            let due = since + self.bounds.linger;
            if now < due && state.flush_to <= state.closed_to && state.ended.is_none() {
                return Take::Linger(due);
            }
            state.close_open();
        }
        state.ready.pop_front().map_or(Take::Nothing, Take::Batch)
    }

    /// When the oldest record that waits came.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let state = self.state();
        state.ready.front().map(|g| g.since).or(state.open.since)
    }

    /// What became of a batch that was taken. `index`: of its first record.
    pub(super) fn settle(&self, number: u64, cost: usize, tellings: Tellings, result: &Result<Index>) {
        {
            let mut state = self.state();
            state.settled_to = number;
            state.buffered -= cost;
            if let Err(error) = result
                && error.kind() != ErrorKind::SequenceForgotten
            {
                state.failed.get_or_insert_with(|| error.clone());
            }
        }
        tellings.tell(result);
        self.settled.notify_waiters();
    }

    /// Nothing more is taken in, for this reason, unless there was another one before.
    pub(super) fn end(&self, why: Error) {
        self.state().ended.get_or_insert(why);
        self.work.notify_one();
        self.settled.notify_waiters();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    /// Whether nothing waits to be taken.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.ready.is_empty() && state.open.since.is_none()
    }

    /// Bytes of records that are not settled.
    pub(super) fn buffered(&self) -> usize {
        self.state().buffered
    }

    /// Waits until all that was pushed before the call is settled, until `deadline`.
    ///
    /// # Errors
    /// `Timeout`; or the first failure since the last flush.
    pub(super) async fn flush(&self, deadline: Instant) -> Result<()> {
        let target = {
            let mut state = self.state();
            let target = state.closed_to + u64::from(state.open.since.is_some());
            state.flush_to = state.flush_to.max(target);
            target
        };
        self.work.notify_one();
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            {
                let mut state = self.state();
                if state.settled_to >= target {
                    return state.failed.take().map_or(Ok(()), Err);
                }
            }
            if timeout_at(deadline, settled).await.is_err() {
                let what = "not all records were acknowledged in time; they still can be";
                return Err(Error::new(ErrorKind::Timeout, what));
            }
        }
    }

    /// Tells the pump to give up.
    pub(super) fn abandon(&self) {
        self.state().abandoned = true;
        self.abandoned.notify_waiters();
    }

    pub(super) async fn wait_abandoned(&self) {
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
    fn close_open(&mut self) {
        let Some(since) = self.open.since else { return };
        self.closed_to += 1;
        let Open { builder, cost, tellings, .. } = std::mem::take(&mut self.open);
        self.ready.push_back(Box::new(Gathered { number: self.closed_to, builder, since, cost, tellings }));
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Gather")
            .field("bounds", &self.bounds)
            .field("buffered", &state.buffered)
            .field("settled_to", &state.settled_to)
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

/// What a batch's header takes, and its smallest content.
pub(super) const BATCH_BYTES_MIN: usize = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES + 1;
/// What a record alone in its batch takes besides itself.
pub(super) const FRAME_BYTES: usize = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES;
