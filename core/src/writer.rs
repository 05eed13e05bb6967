//! The writer thread: group commit. Takes whatever waits, writes it in one call, syncs once, publishes, wakes.
//!
//! ```text
//! loop:  take ──> sequence ──> push ──> write (1 pwritev) ──> sync (1 fdatasync) ──> positions ──> completions
//!          ^ callers go on gathering the next block meanwhile
//! ```
//!
//! It never waits for company: a lone append goes at once. What arrives while a sync runs goes with the next.
//!
//! Invariants:
//! - a completion succeeds only after the sync that covers its block returned 0;
//! - positions move before completions, so that who was answered can read what it wrote;
//! - after a failed write or sync nothing is written or synced any more: the log is poisoned.

use crate::completion::Outcome;
use crate::config::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Command, Gathered, Item, Promise, Queue, Taken};
use crate::positions::{Positions, closed};
use crate::sequence::{Decision, Sequenced, Sequencer};
use crate::stats::Counters;
use crate::store::prepared::Purpose;
use crate::store::segment::Segment;
use crate::store::{NewBlock, Store};
use crate::types::{Index, Timestamp};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// An idle log proves its tail after this time.
const MARKER_DELAY: Duration = Duration::from_millis(10);
/// Retention that found no room for its discard tries again after this time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Room that a command's block needs, generously.
const COMMAND_BODY_BYTES: usize = 64;

/// What the writer shares with handles.
#[derive(Default)]
pub(crate) struct Published {
    /// Why the log is poisoned, if it is. Set once.
    pub(crate) poison: OnceLock<Error>,
    pub(crate) sessions: AtomicU32,
    pub(crate) last_timestamp: AtomicU64,
    pub(crate) counters: Counters,
}

/// The writer thread's state.
pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) sequencer: Sequencer,
    pub(crate) queue: Arc<Queue>,
    pub(crate) positions: Arc<Positions>,
    pub(crate) published: Arc<Published>,
    pub(crate) options: Options,
    /// What was pushed and not synced yet, and the answers to be given then.
    pub(crate) waiting: Vec<(Promise, Outcome)>,
    /// Bytes of appends among it, as they were gathered.
    pub(crate) gathered: usize,
}

impl Writer {
    /// The thread's life: until the queue is closed and empty, or the log is poisoned.
    pub(crate) fn run(mut self) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work()));
        let outcome =
            worked.unwrap_or_else(|_| Err(Error::new(ErrorKind::Poisoned, "the writer thread panicked")));
        if let Err(cause) = outcome {
            self.poison(cause);
        }
        self.store.preparer.settle();
        self.positions.close(self.published.poison.get().cloned().unwrap_or_else(closed));
    }

    fn work(&mut self) -> Result<()> {
        loop {
            match self.queue.take(self.patience()) {
                Taken::Items(items) => self.commit(items)?,
                Taken::Idle => self.on_idle()?,
                Taken::Closed => return self.prove(),
            }
        }
    }

    /// How long to wait for work before there is something else to do.
    fn patience(&self) -> Option<Duration> {
        if self.store.is_unproven() {
            return Some(MARKER_DELAY);
        }
        let (oldest, age) = self.aging()?;
        let now = self.options.clock.now().0;
        let due = oldest.last_timestamp().0.saturating_add(age).saturating_add(1);
        // Due already, and still there: it could not be done just now.
        Some(if due > now { Duration::from_millis(due - now) } else { RETRY_DELAY })
    }

    /// The oldest segment, if it can grow too old: it is full and records have an age limit.
    fn aging(&self) -> Option<(Arc<Segment>, u64)> {
        let age = self.options.retention_age?;
        let oldest = self.store.segments.oldest_full()?;
        Some((oldest, u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
    }

    fn on_idle(&mut self) -> Result<()> {
        self.prove()?;
        self.retain()
    }

    /// Writes what proves the tail, if anything needs it.
    fn prove(&mut self) -> Result<()> {
        if !self.store.is_unproven() {
            return Ok(());
        }
        for body in self.store.proof() {
            let marker = self.sequencer.marker(body, &self.options);
            self.store.push(marker);
        }
        self.flush()
    }

    /// Carries out everything taken.
    fn commit(&mut self, items: VecDeque<Item>) -> Result<()> {
        let mut items = items.into_iter();
        while let Some(item) = items.next() {
            let outcome = match item {
                Item::Data(gathered) => self.data(gathered),
                Item::Command(command, completion) => self.command(command, completion),
            };
            if let Err(error) = outcome {
                fail(items, &error);
                return Err(error);
            }
        }
        self.flush()?;
        self.retain()
    }

    /// Sequences a gathered block and pushes it. An error here poisons; a refusal only fails the block.
    fn data(&mut self, gathered: Gathered) -> Result<()> {
        let bytes = gathered.bytes;
        if let Some(refusal) = self.make_room(bytes, Purpose::Data)? {
            self.queue.account(bytes, 0);
            gathered.into_pieces(None).1.answer(Outcome::Failed(refusal));
            return Ok(());
        }
        let appends = gathered.entries.len() as u64;
        self.published.counters.appends.fetch_add(appends, Ordering::Relaxed);
        let Sequenced { block, promise, outcome } = self.sequencer.data(gathered, &self.options);
        if let Some(block) = block {
            let records = u64::from(block.record_count);
            self.published.counters.records.fetch_add(records, Ordering::Relaxed);
            self.push(block);
        }
        self.gathered += bytes;
        self.waiting.push((promise, outcome));
        Ok(())
    }

    fn command(&mut self, command: Command, promise: Promise) -> Result<()> {
        // The reserve is for what makes room.
        let purpose = if let Command::Discard { .. } = command { Purpose::Metadata } else { Purpose::Data };
        if let Some(refusal) = self.make_room(COMMAND_BODY_BYTES, purpose)? {
            promise.answer(Outcome::Failed(refusal));
            return Ok(());
        }
        let first = match self.sequencer.command(command, &self.options) {
            Decision::Write(block, first) => {
                self.push(block);
                first
            }
            Decision::Done(first) => first,
            Decision::Refused(error) => {
                promise.answer(Outcome::Failed(error));
                return Ok(());
            }
        };
        self.waiting.push((promise, Outcome::Placed { first }));
        Ok(())
    }

    /// Makes room for a block with such a body, by a flush or a roll. Returns the reason when no file is to be
    /// had; the log is as it was then.
    fn make_room(&mut self, body: usize, purpose: Purpose) -> Result<Option<Error>> {
        if self.store.fits(body) {
            // What waits for this sync should not wait for much more than its own bytes.
            if self.store.pending_bytes() + body > self.options.block_bytes_max as usize {
                self.flush()?;
            }
            return Ok(None);
        }
        self.flush()?;
        let opening = self.sequencer.opening(&self.options);
        match self.store.roll(opening, body, purpose) {
            Ok(()) => {
                self.published.counters.rolls.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(refusal) => Ok(Some(refusal)),
        }
    }

    fn push(&mut self, block: NewBlock) {
        let counters = &self.published.counters;
        counters.blocks.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(self.store.push(block) as u64, Ordering::Relaxed);
    }

    /// Writes and syncs what was pushed; publishes; wakes everybody it concerns.
    fn flush(&mut self) -> Result<()> {
        if let Err(error) = self.write_and_sync() {
            // Before anybody is woken, so that who was failed finds the log poisoned.
            self.published.poison.get_or_init(|| poisoned(&error));
            for (promise, _) in self.waiting.drain(..) {
                promise.answer(Outcome::Failed(unknown(&error)));
            }
            return Err(error);
        }
        self.publish_state();
        self.positions.wake();
        for (promise, outcome) in self.waiting.drain(..) {
            promise.answer(outcome);
        }
        Ok(())
    }

    fn write_and_sync(&mut self) -> Result<()> {
        if !self.store.has_pending() {
            // Nothing but what sessions sent twice: it takes no room.
            self.queue.account(std::mem::take(&mut self.gathered), 0);
            return Ok(());
        }
        let last = self.sequencer.end().next.previous();
        let (bytes, pieces) = self.store.write()?;
        self.positions.written(last);
        let started = Instant::now();
        self.store.sync()?;
        // With one node, durable is committed.
        self.store.commit(self.sequencer.end().raft);
        self.published.counters.synced(started.elapsed());
        self.queue.account(std::mem::take(&mut self.gathered), bytes as u64);
        let first = self.sequencer.first();
        let discarded = first > self.positions.first();
        self.positions.discarded(first);
        self.positions.synced(last);
        if discarded {
            self.store.drop_below(first);
            self.queue.recount(self.store.segments.bytes_from(first));
        }
        for piece in pieces {
            self.queue.reuse(piece);
        }
        Ok(())
    }

    pub(crate) fn publish_state(&self) {
        let published = &self.published;
        published.sessions.store(self.sequencer.sessions().len() as u32, Ordering::Relaxed);
        published.last_timestamp.store(self.sequencer.last_timestamp().0, Ordering::Relaxed);
    }

    /// Discards whole segments that retention has no place for.
    fn retain(&mut self) -> Result<()> {
        while let Some(first) = self.beyond_retention() {
            if self.make_room(COMMAND_BODY_BYTES, Purpose::Metadata)?.is_some() {
                return Ok(()); // no file to be had: again after a while, or after the next append
            }
            match self.sequencer.command(Command::Discard { first }, &self.options) {
                Decision::Write(block, _) => self.push(block),
                Decision::Done(_) | Decision::Refused(_) => return Ok(()),
            }
            self.flush()?;
        }
        Ok(())
    }

    /// The first index that retention would leave, if it is beyond today's.
    fn beyond_retention(&self) -> Option<Index> {
        if self.options.retention_bytes.is_none() && self.options.retention_age.is_none() {
            return None;
        }
        let oldest = self.store.segments.oldest_full()?;
        let too_many = self.options.retention_bytes.is_some_and(|max| self.queue.used() > max);
        let too_old = self.aging().is_some_and(|(oldest, age)| {
            let newest = oldest.last_timestamp();
            newest < Timestamp(self.options.clock.now().0.saturating_sub(age))
        });
        let first = oldest.end().next;
        ((too_many || too_old) && first > self.sequencer.first()).then_some(first)
    }

    /// Ends the log's life as one that takes appends. Readers go on.
    fn poison(&mut self, cause: Error) {
        tracing::error!(%cause, "the log is poisoned: it takes no more appends until it is opened again");
        let error = self.published.poison.get_or_init(|| poisoned(&cause)).clone();
        self.queue.refuse(error);
        self.waiting.clear();
        // What came in before the queue was closed has not been written.
        while let Taken::Items(items) = self.queue.take(Some(Duration::ZERO)) {
            fail(items, &cause);
        }
    }
}

/// What every call gets once the log is poisoned.
fn poisoned(cause: &Error) -> Error {
    let what = format!("the log takes no more appends: {cause}; close it, mend the cause and open it again");
    Error::caused(ErrorKind::Poisoned, what, cause)
}

/// Fails what was taken and not written.
fn fail(items: impl IntoIterator<Item = Item>, cause: &Error) {
    for item in items {
        let promise = match item {
            Item::Data(gathered) => gathered.into_pieces(None).1,
            Item::Command(_, promise) => promise,
        };
        promise.answer(Outcome::Failed(unknown(cause)));
    }
}

/// What the callers of a failed write get: whether it will be there after a restart is not known.
fn unknown(cause: &Error) -> Error {
    let what = format!("outcome unknown: {cause}; it may or may not be in the log after it is opened again");
    Error::caused(ErrorKind::Poisoned, what, cause)
}
