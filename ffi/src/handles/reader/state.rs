//! Reader: one type for all logs: embedded, a read-only log's, a follower's, and over the network.
//!
//! ```text
//! descriptor: raised ──> the caller reads ──> nothing left: lowered, hook set again ──> raised when there is more
//! ```
//!
//! Invariants:
//! - If a call that reads found nothing and there is a descriptor, its hook is set: the descriptor is raised once
//!   there is something to read. If the hook is gone, the descriptor is raised.
//! - A descriptor that was handed out stays open until the reader is closed.
//! - No callback runs while the reader is locked.
//! - Cancelling and closing take no lock that a waiting call holds.
//! - No callback runs once the reader was closed, also if another call still waits with it; nor one that was replaced, once the call that
//!   replaced it has returned.

use crate::abi::descriptor::Descriptor;
use crate::abi::error::invalid;
use crate::abi::once_callback::{Gate, later};
use crate::abi::records::{Run, view};
use crate::abi::values::{chiplog_record_t, timeout};
use crate::support::handle_table::{Opaque, handle};
use crate::support::panic_guard::lock;
use crate::support::threads::without_sigpipe;
use chiplog::{Canceller, Error, ErrorKind, OwnedRecord, Reader, Record, RecordBatch, Result, Start};
use chiplog_net::client::blocking;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The reader behind a handle.
pub(crate) struct Reading {
    state: Mutex<State>,
    callback: Mutex<Callback>,
    /// Permanent, so that a call that need not wait ends as well.
    is_cancelled: AtomicBool,
    ends_wait: EndsWait,
}

#[derive(Default)]
struct Callback {
    /// The current one. None: there was none, or a descriptor replaced it.
    gate: Option<Gate>,
    /// The reader was closed: there will be none.
    is_closed: bool,
}

/// Ends the wait of a call.
enum EndsWait {
    Local(Canceller),
    Remote(blocking::Canceller),
}

pub(crate) struct State {
    source: Source,
    /// The record last returned over the network: it holds the bytes.
    last: Option<OwnedRecord>,
    descriptor: Descriptor,
    /// The descriptor is lowered and its hook set. A call that reads over the network removes the hook.
    is_armed: bool,
    /// The last step returned UNDECODABLE to the caller. An error that a run left for the next call does not count.
    may_skip: bool,
    /// The size of the last run: capacity for the next one.
    room: (usize, usize),
}

enum Source {
    Local(Box<Reader>),
    Remote { reader: blocking::Reader, kept: Option<RecordBatch> },
}

/// Reads records in order and checks each. One thread at a time: other calls wait. It may outlive its log.
pub struct chiplog_reader_t {
    _private: Opaque,
}

handle!(chiplog_reader_t is Reading, 7, "reader");

impl From<Reader> for Reading {
    fn from(reader: Reader) -> Self {
        let ends_wait = EndsWait::Local(reader.canceller());
        Self::new(Source::Local(Box::new(reader)), ends_wait)
    }
}

impl From<blocking::Reader> for Reading {
    fn from(reader: blocking::Reader) -> Self {
        let ends_wait = EndsWait::Remote(reader.canceller());
        Self::new(Source::Remote { reader, kept: None }, ends_wait)
    }
}

impl Reading {
    fn new(source: Source, ends_wait: EndsWait) -> Self {
        let state = Mutex::new(State {
            source,
            last: None,
            descriptor: Descriptor::default(),
            is_armed: false,
            may_skip: false,
            room: (1, 1),
        });
        let callback = Mutex::default();
        Self { state, callback, is_cancelled: AtomicBool::new(false), ends_wait }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the reader for a call that reads.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn lock_to_read(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        // Checked after locking, so that a call that waited for another one ends as well.
        if self.is_cancelled.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "the reader was cancelled by chiplog_reader_cancel",
            ));
        }
        Ok(state)
    }

    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release); // first: a woken call checks it
        match &self.ends_wait {
            EndsWait::Local(canceller) => canceller.cancel(),
            EndsWait::Remote(canceller) => without_sigpipe(|| canceller.cancel()),
        }
    }

    /// Replaces the callback, and calls the new one once there is something to read.
    pub(super) fn set_callback(&self, gate: Gate) -> Result<()> {
        self.shut_callback(); // so that it does not run beside the new one
        let (hook, held) = later(gate.hook());
        let mut state = self.lock();
        state.descriptor.yield_hook();
        let mut callback = lock(&self.callback);
        if callback.is_closed {
            return Err(Error::new(ErrorKind::Closed, "the reader was closed"));
        }
        let last = callback.gate.replace(gate);
        drop(callback);
        let registered = state.on_more(hook);
        drop(state);
        drop(last);
        held.go();
        registered
    }

    /// Returns the descriptor, whose hook is set.
    pub(super) fn descriptor(&self) -> Result<i32> {
        let number = self.lock().descriptor()?;
        self.shut_callback();
        Ok(number)
    }

    /// The reader was closed: no callback runs from now on. Blocks while one runs.
    pub(super) fn end_callbacks(&self) {
        lock(&self.callback).is_closed = true;
        self.shut_callback();
    }

    /// Takes the callback away. Blocks while it runs, and holds no lock, which it may need.
    fn shut_callback(&self) {
        let last = lock(&self.callback).gate.take();
        drop(last);
    }
}

fn nothing() -> Error {
    Error::new(ErrorKind::Timeout, "no record came in time")
}

impl State {
    /// The next batch. None: the end of a reader that does not follow. `Timeout`: nothing arrived.
    pub(super) fn next_batch(&mut self, timeout_ms: u64) -> Result<Option<RecordBatch>> {
        let next = match &mut self.source {
            Source::Local(reader) => next_local(reader, timeout_ms, |reader| reader.next_batch()).map(Some),
            Source::Remote { kept: kept @ Some(_), .. } => Ok(kept.take()),
            Source::Remote { reader, .. } => without_sigpipe(|| match timeout(timeout_ms) {
                None => reader.next_batch(),
                Some(limit) => reader.next_batch_within(limit),
            }),
        };
        self.may_skip = is_undecodable(&next);
        self.after(next)
    }

    /// The next record, in memory that is valid until the next call.
    pub(super) fn next_record(&mut self, timeout_ms: u64) -> Result<Option<chiplog_record_t>> {
        if let Source::Local(reader) = &mut self.source {
            let next = next_local(reader, timeout_ms, |reader| Ok(reader.next_record()?.map(view)));
            let next = next.map(Some);
            self.may_skip = is_undecodable(&next);
            return self.after(next);
        }
        let Some(batch) = self.next_batch(timeout_ms)? else { return Ok(None) };
        let record = batch.get_owned(0);
        let next = batch.first().next();
        if let Source::Remote { kept, .. } = &mut self.source {
            let mut batch = batch;
            *kept = batch.skip_to(next).then_some(batch);
        }
        self.last = record;
        let shown = |r: &OwnedRecord| view(Record { index: r.index, timestamp: r.timestamp, data: &r.data });
        Ok(self.last.as_ref().map(shown))
    }

    /// Collects batches until they have `bytes_max` bytes, or there are no more now.
    pub(super) fn next_run(&mut self, bytes_max: usize, timeout_ms: u64) -> Result<Option<Run>> {
        let Some(first) = self.next_batch(timeout_ms)? else { return Ok(None) };
        let mut run = Run::with_room(self.room.0, self.room.1);
        run.push(first);
        while run.bytes() < bytes_max {
            let more = match &mut self.source {
                Source::Local(reader) => reader.next_batch(),
                Source::Remote { reader, .. } => without_sigpipe(|| reader.next_batch_within(Duration::ZERO)),
            };
            match more {
                Ok(Some(batch)) => run.push(batch),
                // The next call meets the same error and returns it.
                Ok(None) | Err(_) => break,
            }
        }
        self.room = run.room();
        debug_assert!(!run.is_empty());
        Ok(Some(run))
    }

    pub(super) fn position(&self) -> u64 {
        match &self.source {
            Source::Local(reader) => reader.position().get(),
            Source::Remote { kept: Some(batch), .. } => batch.first().get(),
            Source::Remote { reader, .. } => reader.position().map_or(0, |index| index.get()),
        }
    }

    pub(super) fn seek(&mut self, start: Start) -> Result<()> {
        match (&mut self.source, start) {
            (Source::Local(reader), Start::Index(index)) => reader.seek(index)?,
            (Source::Local(_), _) => {
                return Err(invalid(
                    "a reader of files can seek only to CHIPLOG_START_INDEX: for other starts open a new reader",
                ));
            }
            (Source::Remote { reader, kept }, start) => {
                *kept = None;
                without_sigpipe(|| reader.seek(start));
            }
        }
        self.may_skip = false;
        self.arm()
    }

    /// Returns the next record: behind an undecodable batch if the last step found one.
    pub(super) fn skip_batch(&mut self) -> Result<u64> {
        if std::mem::take(&mut self.may_skip) {
            match &mut self.source {
                Source::Local(reader) => _ = reader.skip_batch()?,
                Source::Remote { reader, .. } => _ = without_sigpipe(|| reader.skip_batch())?,
            }
        }
        self.arm()?;
        Ok(self.position())
    }

    /// Blocks until there is something to read.
    pub(super) fn wait(&mut self, timeout_ms: u64) -> Result<()> {
        if let Source::Local(reader) = &self.source {
            let there = reader.wait(timeout(timeout_ms));
            let there = there.and_then(|there| if there { Ok(()) } else { Err(nothing()) });
            return self.after(there);
        }
        let next = self.next_batch(timeout_ms)?;
        if let Source::Remote { kept, .. } = &mut self.source {
            *kept = next;
        }
        Ok(())
    }

    fn on_more(&mut self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        match &mut self.source {
            Source::Local(reader) => {
                reader.on_more(hook);
                Ok(())
            }
            Source::Remote { kept: Some(_), .. } => {
                hook();
                Ok(())
            }
            Source::Remote { reader, .. } => without_sigpipe(|| reader.on_more(hook)),
        }
    }

    /// Updates the descriptor after a call that reads.
    fn after<T>(&mut self, next: Result<T>) -> Result<T> {
        if next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) {
            self.arm()?;
        } else if matches!(self.source, Source::Remote { .. }) && std::mem::take(&mut self.is_armed) {
            self.descriptor.watched().iter().for_each(|signal| signal.raise());
        }
        next
    }

    /// The server that it reads from now.
    pub(super) fn server(&self) -> &str {
        match &self.source {
            Source::Local(_) => "",
            Source::Remote { reader, .. } => reader.server().unwrap_or_default(),
        }
    }

    /// Returns the descriptor, whose hook is set.
    fn descriptor(&mut self) -> Result<i32> {
        if self.descriptor.claim_hook()?
            && let Err(error) = self.arm()
        {
            self.descriptor.yield_hook(); // a repeated call tries again
            return Err(error);
        }
        Ok(self.descriptor.number())
    }

    /// Lowers the descriptor, if there is one, until there is something to read.
    fn arm(&mut self) -> Result<()> {
        let Some(signal) = self.descriptor.watched().cloned() else { return Ok(()) };
        signal.lower();
        let more = signal.clone();
        let armed = self.on_more(move || more.raise());
        self.is_armed = armed.is_ok();
        // The next call that reads returns the error.
        armed.inspect_err(|_| signal.raise())
    }
}

fn next_local<T>(
    reader: &mut Reader,
    timeout_ms: u64,
    mut next: impl FnMut(&mut Reader) -> Result<Option<T>>,
) -> Result<T> {
    loop {
        if let Some(found) = next(reader)? {
            return Ok(found);
        }
        // The wait also ends when nothing more will arrive.
        if !reader.wait(timeout(timeout_ms))? {
            return Err(nothing());
        }
    }
}

fn is_undecodable<T>(next: &Result<T>) -> bool {
    next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Undecodable)
}
