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
//! - Cancelling takes no lock that a waiting call holds.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::once_callback::{Gate, later};
use crate::abi::records::{Run, chiplog_records_t, view};
use crate::abi::values::{Context, chiplog_notify_fn, chiplog_record_t, fixed, out, put, start, timeout};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_sigpipe;
use chiplog::{Canceller, Error, ErrorKind, OwnedRecord, Reader, Record, RecordBatch, Result, Signal, Start};
use chiplog_net::client::blocking;
use std::ffi::{c_char, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The reader behind a handle.
pub(crate) struct Reading {
    state: Mutex<State>,
    /// Permanent, so that a call that need not wait ends as well.
    is_cancelled: AtomicBool,
    ends_wait: EndsWait,
}

/// Ends the wait of a call.
enum EndsWait {
    Local(Canceller),
    Remote(blocking::Canceller),
}

struct State {
    source: Source,
    /// The record last returned over the network: it holds the bytes.
    last: Option<OwnedRecord>,
    /// The event descriptor, once one was requested.
    signal: Option<Signal>,
    /// Whether the hook raises the descriptor, instead of a callback.
    is_watched: bool,
    /// The descriptor is lowered and its hook set. A call that reads over the network removes the hook.
    is_armed: bool,
    /// The current callback.
    gate: Option<Gate>,
    /// The last step returned UNDECODABLE to the caller. An error that a run left for the next call does not count.
    may_skip: bool,
    /// The size of the last run: capacity for the next one.
    room: (usize, usize),
}

enum Source {
    Local(Reader),
    Remote { reader: blocking::Reader, kept: Option<RecordBatch> },
}

/// Reads records in order and checks each. One thread at a time: other calls wait. It may outlive its log.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_reader_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_reader_t is Reading, 7, "reader");

impl Reading {
    pub(crate) fn local(reader: Reader) -> Self {
        let ends_wait = EndsWait::Local(reader.canceller());
        Self::new(Source::Local(reader), ends_wait)
    }

    pub(crate) fn remote(reader: blocking::Reader) -> Self {
        let ends_wait = EndsWait::Remote(reader.canceller());
        Self::new(Source::Remote { reader, kept: None }, ends_wait)
    }

    fn new(source: Source, ends_wait: EndsWait) -> Self {
        let (last, signal, gate) = (None, None, None);
        let state = Mutex::new(State {
            source,
            last,
            signal,
            is_watched: false,
            is_armed: false,
            gate,
            may_skip: false,
            room: (1, 1),
        });
        Self { state, is_cancelled: AtomicBool::new(false), ends_wait }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the reader for a call that reads.
    ///
    /// # Errors
    /// `Cancelled`.
    fn lock_to_read(&self) -> Result<MutexGuard<'_, State>> {
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

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release); // first: a woken call checks it
        match &self.ends_wait {
            EndsWait::Local(canceller) => canceller.cancel(),
            EndsWait::Remote(canceller) => without_sigpipe(|| canceller.cancel()),
        }
    }
}

/// Hands out a reader.
///
/// # Safety
/// `reader` is as [`out`] requires.
pub(crate) unsafe fn hand_out(
    reader: *mut *mut chiplog_reader_t,
    make: impl FnOnce() -> Result<Reader>,
) -> Result<()> {
    // SAFETY: this function's condition.
    let place = unsafe { out(reader, "reader") }?;
    let handle = handle_table::insert(Reading::local(make()?))?;
    // SAFETY: `out` checked the pointer.
    unsafe { place.write(handle) };
    Ok(())
}

fn nothing() -> Error {
    Error::new(ErrorKind::Timeout, "no record came in time")
}

impl State {
    /// The next batch. None: the end of a reader that does not follow. `Timeout`: nothing arrived.
    fn next_batch(&mut self, timeout_ms: u64) -> Result<Option<RecordBatch>> {
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
    fn next_record(&mut self, timeout_ms: u64) -> Result<Option<chiplog_record_t>> {
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
    fn next_run(&mut self, bytes_max: usize, timeout_ms: u64) -> Result<Option<Run>> {
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

    fn position(&self) -> u64 {
        match &self.source {
            Source::Local(reader) => reader.position().get(),
            Source::Remote { kept: Some(batch), .. } => batch.first().get(),
            Source::Remote { reader, .. } => reader.position().map_or(0, |index| index.get()),
        }
    }

    fn seek(&mut self, start: Start) -> Result<()> {
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
    fn skip_batch(&mut self) -> Result<u64> {
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
    fn wait(&mut self, timeout_ms: u64) -> Result<()> {
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
            self.watched().iter().for_each(|signal| signal.raise());
        }
        next
    }

    /// The signal to raise when there is more, if there is one.
    fn watched(&self) -> Option<&Signal> {
        self.signal.as_ref().filter(|_| self.is_watched)
    }

    /// Lowers the descriptor, if there is one, until there is something to read.
    fn arm(&mut self) -> Result<()> {
        let Some(signal) = self.watched().cloned() else { return Ok(()) };
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

fn get(reader: *const chiplog_reader_t) -> Result<handle_table::Pinned<Reading>> {
    handle_table::get::<Reading>(reader)
}

/// Returns the index of the next record. 0: no server has determined it yet.
/// Ownership: borrowed. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_position(
    reader: *const chiplog_reader_t,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(index, get(reader)?.lock().position());
            Ok(())
        })
    }
}

/// Moves to another position: back, forward, past damage. A reader of files accepts only CHIPLOG_START_INDEX. If it
/// fails, it keeps its position.
/// Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_seek(
    reader: *mut chiplog_reader_t,
    start: u32,
    value: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(reader)?.lock().seek(self::start(start, value)?)) }
}

/// Skips a batch that the reader's last step found UNDECODABLE. `*next` (may be NULL) is the index of the record
/// after it. If the last step returned something else, nothing changes.
/// Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: as chiplog_reader_next_batch, except UNDECODABLE.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_skip_batch(
    reader: *mut chiplog_reader_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(next, get(reader)?.lock_to_read()?.skip_batch()?);
            Ok(())
        })
    }
}

/// Returns the server that it reads from now, `host:port`; empty if there is none, or for a reader of files. `length`
/// is the size of `text`, at least 1; a longer text is cut.
/// Ownership: the caller owns `text`. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_server(
    reader: *const chiplog_reader_t,
    text: *mut c_char,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if text.is_null() || length == 0 {
                return Err(invalid(
                    "text is NULL or length is 0: the server's name needs at least one byte",
                ));
            }
            text.write(0);
            let reader = get(reader)?;
            let state = reader.lock();
            let server: [c_char; 264] = match &state.source {
                Source::Local(_) => fixed(""),
                Source::Remote { reader, .. } => fixed(reader.server().unwrap_or_default()),
            };
            let known = length.min(server.len());
            std::ptr::copy_nonoverlapping(server.as_ptr(), text, known);
            text.add(known - 1).write(0);
            Ok(())
        })
    }
}

/// Returns the next record. Waits up to `timeout_ms` for one: 0 does not wait; CHIPLOG_FOREVER has no limit. Over the
/// network, a reader that does not follow sets `record->data` to NULL at the end.
/// Ownership: the record's bytes are valid until the next call with this reader, or until it is closed. One thread at
/// a time.
/// Errors: TIMEOUT: nothing to read yet; CLOSED: the log was closed and all of it was read, or the reader was closed;
/// DISCARDED: the record was discarded: open a new reader at CHIPLOG_START_FIRST; CORRUPT: the reader keeps its
/// position; UNDECODABLE: the batch cannot be decompressed, chiplog_reader_skip_batch skips it; CANCELLED; IO,
/// POISONED, FORKED; over the network also UNAVAILABLE, OUT_OF_RANGE.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_record(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    record: *mut chiplog_record_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if record.is_null() {
                return Err(invalid("record is NULL"));
            }
            let end = chiplog_record_t { index: 0, timestamp_ms: 0, data: std::ptr::null(), length: 0 };
            record.write(end);
            record.write(get(reader)?.lock_to_read()?.next_record(timeout_ms)?.unwrap_or(end));
            Ok(())
        })
    }
}

/// Returns the rest of the current batch, or the whole next one: records that were appended together. Waits as
/// chiplog_reader_next_record does. `*records` is NULL, with CHIPLOG_OK, at the end of a reader that does not follow.
/// Ownership: the caller owns `*records` and must close it; it may outlive reader and log. One thread at a time.
/// Errors: as chiplog_reader_next_record.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_batch(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(records, "records")?;
            if let Some(batch) = get(reader)?.lock_to_read()?.next_batch(timeout_ms)? {
                let mut run = Run::with_room(batch.count() as usize, 1);
                run.push(batch);
                place.write(handle_table::insert(run.finish())?);
            }
            Ok(())
        })
    }
}

/// As chiplog_reader_next_batch, and adds the following batches until all have `bytes_max` bytes together or there
/// are no more now. This is the fastest way to read. 1 MiB is a good size. It waits only for the first batch.
/// Ownership, threads and errors as chiplog_reader_next_batch.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_run(
    reader: *mut chiplog_reader_t,
    bytes_max: usize,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(records, "records")?;
            let run = get(reader)?.lock_to_read()?.next_run(bytes_max, timeout_ms)?;
            if let Some(run) = run {
                place.write(handle_table::insert(run.finish())?);
            }
            Ok(())
        })
    }
}

/// Blocks until there is something to read, for up to `timeout_ms`. Reads nothing.
/// Ownership: borrowed. One thread at a time. Blocks. Errors: as chiplog_reader_next_record.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_wait(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(reader)?.lock_to_read()?.wait(timeout_ms)) }
}

/// Calls `callback` once, when there is something to read or an error to return (the log was closed). If that is so
/// already, the callback runs at once on this thread, else on a thread of the log or the client. It must not use this
/// reader. A reader has one callback: a new callback, or a descriptor, replaces the last. Over the network each call
/// that reads removes it. A descriptor that was handed out stays open, but does not change until
/// chiplog_reader_descriptor is called again.
/// Ownership: `context` is borrowed until the callback was called, was replaced, or the reader was closed. One thread
/// at a time. Does not block for long. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_on_more(
    reader: *mut chiplog_reader_t,
    callback: chiplog_notify_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
            let reader = get(reader)?;
            let last = reader.lock().gate.take();
            drop(last); // so that it does not run beside the new one; without the lock, which the running callback may need
            // SAFETY: the caller promised that the callback may be called once with the context; the reader keeps the
            // gate until then.
            let gate = Gate::new(callback, context);
            let (hook, held) = later(gate.hook());
            let mut state = reader.lock();
            state.is_watched = false;
            state.signal.iter().for_each(Signal::lower);
            let last = state.gate.replace(gate);
            let registered = state.on_more(hook);
            drop(state);
            drop(last);
            held.go();
            registered
        })
    }
}

/// Returns a descriptor that is readable (poll, epoll, select) while there may be something to read. When it is
/// readable, read with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there is an
/// error to return, such as CLOSED. It costs nothing while no thread waits for it.
/// Ownership: the reader owns `*descriptor`, which is the same each time: do not read from it or close it; it is
/// closed with the reader. One thread at a time. Does not block for long. Errors: IO, INVALID_ARGUMENT, CLOSED,
/// FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_descriptor(
    reader: *mut chiplog_reader_t,
    descriptor: *mut i32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(descriptor, -1);
            let reader = get(reader)?;
            let mut state = reader.lock();
            let signal = match &state.signal {
                Some(signal) => signal.clone(),
                None => state.signal.insert(Signal::new()?).clone(),
            };
            if !state.is_watched {
                state.is_watched = true;
                if let Err(error) = state.arm() {
                    state.is_watched = false; // a repeated call tries again
                    return Err(error);
                }
            }
            put(descriptor, signal.as_raw_fd());
            Ok(())
        })
    }
}

/// Cancels this reader for good, to stop a thread that follows the log. A call that reads or waits with it on another
/// thread returns CHIPLOG_CANCELLED at once, and so does each later call, and each call that waits for its turn. A
/// call that already had a result may still return it. A descriptor becomes readable, and a callback of
/// chiplog_reader_on_more is called. The reader keeps its position: chiplog_reader_position returns where another
/// reader can continue. It must still be closed. It can be closed at any time, even while the call on the other
/// thread is ending. The opposite order does not work: a closed reader cannot be cancelled.
/// Ownership: borrowed. Any thread, also while another one uses the reader; not in a signal handler. Never blocks,
/// except while that callback of a reader of files runs. A second call does nothing. Errors: INVALID_ARGUMENT,
/// CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_cancel(
    reader: *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            get(reader)?.cancel();
            Ok(())
        })
    }
}

/// Closes a reader. A call of another thread that waits with it keeps waiting: call chiplog_reader_cancel first to
/// end it. Does nothing if it is NULL or already closed.
/// Ownership: takes `reader`. Any thread. Does not block for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_reader_close(reader: *mut chiplog_reader_t) {
    plain((), || drop(handle_table::close::<Reading>(reader)));
}
