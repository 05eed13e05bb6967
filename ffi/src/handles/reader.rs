//! Reader: one for all logs: the embedded one, a read-only log's, a follower's, and over the network.
//!
//! ```text
//! descriptor: raised ──> take what is there ──> nothing left: lowered, the hook set again ──> raised when there is more
//! ```
//!
//! Invariants:
//! - Where a call that reads found nothing, and there is a descriptor, its hook is set: the descriptor is raised once there
//!   is something. Where its hook is gone, it is raised.
//! - A descriptor that was handed out stays open until the reader is closed.
//! - No callback runs while the reader is locked.
//! - Cancelling takes no lock that a call which waits has.

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

/// A reader as C holds it.
pub(crate) struct Reading {
    state: Mutex<State>,
    /// For good: so that also a call that need not wait ends.
    is_cancelled: AtomicBool,
    ends_wait: EndsWait,
}

/// What ends the wait of a call.
enum EndsWait {
    Local(Canceller),
    Remote(blocking::Canceller),
}

struct State {
    source: Source,
    /// The record that was handed out last over the network: it holds the bytes.
    last: Option<OwnedRecord>,
    /// What the descriptor shows, once one was asked for.
    signal: Option<Signal>,
    /// Whether it is what is called when there is more, and no callback is.
    is_watched: bool,
    /// It is lowered, and its hook set: a call that reads over the network takes that away.
    is_armed: bool,
    /// The callback of the moment.
    gate: Option<Gate>,
    /// The last step gave UNDECODABLE to the caller. An error that a run left for the next call does not count.
    may_skip: bool,
    /// What the last run came to: room for the next one.
    room: (usize, usize),
}

enum Source {
    Local(Reader),
    Remote { reader: blocking::Reader, kept: Option<RecordBatch> },
}

/// Reads records in order, each checked. One thread at a time: others wait meanwhile. It may outlive its log.
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

    /// For a call that reads.
    ///
    /// # Errors
    /// `Cancelled`.
    fn lock_to_read(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        // Behind the lock: a call that waited for another one to be over ends, too.
        if self.is_cancelled.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "the reader was cancelled by chiplog_reader_cancel",
            ));
        }
        Ok(state)
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release); // first: who is woken looks
        match &self.ends_wait {
            EndsWait::Local(canceller) => canceller.cancel(),
            EndsWait::Remote(canceller) => without_sigpipe(|| canceller.cancel()),
        }
    }
}

/// Hands out a reader.
///
/// # Safety
/// `reader` as [`out`] wants it.
pub(crate) unsafe fn hand_out(
    reader: *mut *mut chiplog_reader_t,
    make: impl FnOnce() -> Result<Reader>,
) -> Result<()> {
    // SAFETY: this function's condition.
    let place = unsafe { out(reader, "reader") }?;
    let handle = handle_table::insert(Reading::local(make()?))?;
    // SAFETY: `out` looked at the place.
    unsafe { place.write(handle) };
    Ok(())
}

fn nothing() -> Error {
    Error::new(ErrorKind::Timeout, "no record came in time")
}

impl State {
    /// The next batch; None: the end of a reader that does not follow. `Timeout`: nothing came.
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

    /// The next record, in a place that lives until the next call.
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

    /// Batches until they have so many bytes, or there are no more now.
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
                // The next call meets it again, and tells.
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
                    "a reader of files is moved to CHIPLOG_START_INDEX, else make a new one",
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

    /// The record that comes next: behind a batch that was found undecodable, if the last step found one.
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

    /// Waits until there is something to take.
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

    /// What a call that reads came to; the descriptor is told.
    fn after<T>(&mut self, next: Result<T>) -> Result<T> {
        if next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) {
            self.arm()?;
        } else if matches!(self.source, Source::Remote { .. }) && std::mem::take(&mut self.is_armed) {
            self.watched().iter().for_each(|signal| signal.raise());
        }
        next
    }

    /// What is to be raised when there is more.
    fn watched(&self) -> Option<&Signal> {
        self.signal.as_ref().filter(|_| self.is_watched)
    }

    /// Lowers the descriptor, if there is one, until there is something.
    fn arm(&mut self) -> Result<()> {
        let Some(signal) = self.watched().cloned() else { return Ok(()) };
        signal.lower();
        let more = signal.clone();
        let armed = self.on_more(move || more.raise());
        self.is_armed = armed.is_ok();
        // The next call that reads tells what is the matter.
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
        // It tells, too, that nothing will come any more.
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

/// Index of the record that comes next. 0: no server has settled it yet.
/// Ownership: borrowed. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_position(
    reader: *const chiplog_reader_t,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(index, get(reader)?.lock().position());
            Ok(())
        })
    }
}

/// Goes on elsewhere: back, forward, past damage. A reader of files takes CHIPLOG_START_INDEX only; where it fails, it stays
/// where it was.
/// Ownership: borrowed. One thread at a time. Never blocks for long.
/// Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_seek(
    reader: *mut chiplog_reader_t,
    start: u32,
    value: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(reader)?.lock().seek(self::start(start, value)?)) }
}

/// Goes on behind a batch that the last step of the reader found UNDECODABLE. `*next`, unless it is NULL: the record that
/// comes next then. Where the last step found something else, nothing changes.
/// Ownership: borrowed. One thread at a time. Never blocks for long.
/// Errors: as chiplog_reader_next_batch, except UNDECODABLE.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_skip_batch(
    reader: *mut chiplog_reader_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(next, get(reader)?.lock_to_read()?.skip_batch()?);
            Ok(())
        })
    }
}

/// Which server it reads from now, `host:port`; empty: none, or a reader of files. `length`: how long `text` is, at least 1;
/// what does not fit is cut off.
/// Ownership: `text` is the caller's. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_server(
    reader: *const chiplog_reader_t,
    text: *mut c_char,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            if text.is_null() || length == 0 {
                return Err(invalid("no room for the server's name"));
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

/// The next record. Waits for one for at most `timeout_ms`: 0: not at all; CHIPLOG_FOREVER. Over the network, of a reader
/// that does not follow, `record->data` is NULL at the end.
/// Ownership: the record's bytes are borrowed until the next call with this reader, or its end. One thread at a time.
/// Errors: TIMEOUT: nothing to read yet; CLOSED: the log was closed and all of it read, or the reader was; DISCARDED: the
/// record is gone: make a new reader at CHIPLOG_START_FIRST; CORRUPT: the reader stays where it is; UNDECODABLE: the batch
/// does not unpack, chiplog_reader_skip_batch goes on behind it; CANCELLED; IO, POISONED, FORKED;
/// over the network also UNAVAILABLE, OUT_OF_RANGE.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_record(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    record: *mut chiplog_record_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// The rest of the current batch, or the next one whole: the records that were appended together. Waits as
/// chiplog_reader_next_record. `*records` is NULL, with CHIPLOG_OK, at the end of a reader that does not follow.
/// Ownership: `*records`: the caller's, to be closed; it may outlive reader and log. One thread at a time.
/// Errors: as chiplog_reader_next_record.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_batch(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// As chiplog_reader_next_batch, and adds the batches that follow until all have `bytes_max` bytes together or there are no
/// more now: the fastest way to read. 1 MiB is a good size. It waits only for the first.
/// Ownership, threads, errors: as there.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_run(
    reader: *mut chiplog_reader_t,
    bytes_max: usize,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// Waits until there is something to read, for at most `timeout_ms`. Takes nothing.
/// Ownership: borrowed. One thread at a time. Blocks. Errors: as chiplog_reader_next_record.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_wait(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(reader)?.lock_to_read()?.wait(timeout_ms)) }
}

/// Calls `callback` once, when there is something to read or to be told (the log was closed): at once on this thread if so
/// already, else on a thread of the log's, or the client's. It must not use this reader. A reader has one: a new one, or a
/// descriptor, takes the place of the last; over the network each call that reads takes it away. A descriptor that was handed
/// out stays open, and shows nothing until it is asked for again.
/// Ownership: `context` is borrowed until the callback was called, was replaced, or the reader was closed. One thread at a
/// time. Never blocks for long. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_on_more(
    reader: *mut chiplog_reader_t,
    callback: chiplog_notify_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
            let reader = get(reader)?;
            let last = reader.lock().gate.take();
            drop(last); // it does not run beside the new one; without the lock, for whoever it waits for may want it
            // SAFETY: the caller gave both for each other, to be called once; the reader keeps the gate until then.
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

/// A descriptor that is readable (poll, epoll, select) while there may be something to read: then read with a time-out of 0
/// until TIMEOUT, and wait for it again. It stays readable when there is something to be told, such as CLOSED. Costs nothing
/// while nobody waits.
/// Ownership: `*descriptor` is the reader's, the same each time: neither to be read from nor closed; it ends with the
/// reader. One thread at a time. Never blocks for long. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_descriptor(
    reader: *mut chiplog_reader_t,
    descriptor: *mut i32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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
                    state.is_watched = false; // asked again, it is tried again
                    return Err(error);
                }
            }
            put(descriptor, signal.as_raw_fd());
            Ok(())
        })
    }
}

/// Ends reading with this reader for good, to stop a thread that follows the log: the call that reads or waits with it on
/// another thread is CHIPLOG_CANCELLED at once, and so is every later one; those that wait for their turn, too. A call that
/// had something to hand out already may still do so. A descriptor becomes readable, a callback of chiplog_reader_on_more
/// is called. The reader stays where it is: chiplog_reader_position tells where another one goes on. It is still to be
/// closed: at any time, also at once, while the call on the other thread is just ending. The other way round is of no use:
/// a reader that was closed cannot be cancelled.
/// Ownership: borrowed. Any thread, also while another one uses the reader; not in a signal handler. Never blocks, except for
/// that callback of a reader of files. Again: nothing happens. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_cancel(
    reader: *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            get(reader)?.cancel();
            Ok(())
        })
    }
}

/// Closes a reader. A call of another thread that waits with it goes on waiting: chiplog_reader_cancel ends that, and is to
/// be called before. NULL, or one that was closed: nothing happens.
/// Ownership: takes `reader`. Any thread. Never blocks for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_reader_close(reader: *mut chiplog_reader_t) {
    plain((), || drop(handle_table::close::<Reading>(reader)));
}
