//! The functions of a reader.

use crate::abi::entry::{entry, entry_some_handle, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::once_callback::Gate;
use crate::abi::pointers::put;
use crate::abi::records::{Run, chiplog_records_t};
use crate::abi::values;
use crate::abi::values::{chiplog_notify_fn, chiplog_record_t, fixed};
use crate::handles::reader::state::chiplog_reader_t;
use crate::support::handle_table::{close, get};
use crate::support::panic_guard::plain;
use std::ffi::{c_char, c_void};
use std::ptr;

/// Returns the index of the next record. 0: no server has determined it yet.
/// Ownership: borrowed. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_position(
    reader: *const chiplog_reader_t,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, index, || Ok(get(reader)?.lock().position()))
}

/// Moves to another position: back, forward, past damage. A reader of files accepts only CHIPLOG_START_INDEX. If it
/// fails, it keeps its position.
/// Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_seek(
    reader: *mut chiplog_reader_t,
    start: u32,
    value: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(reader)?.lock().seek(values::start(start, value)?))
}

/// Skips a batch that the reader's last step found UNDECODABLE. `*next` (may be NULL) is the index of the record
/// after it. If the last step returned something else, nothing changes.
/// Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: as chiplog_reader_next_batch, except UNDECODABLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_skip_batch(
    reader: *mut chiplog_reader_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, next, || get(reader)?.lock_to_read()?.skip_batch())
}

/// Returns the server that it reads from now, `host:port`; empty if there is none, or for a reader of files. `length`
/// is the size of `text`, at least 1; a longer text is cut.
/// Ownership: the caller owns `text`. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_server(
    reader: *const chiplog_reader_t,
    text: *mut c_char,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        if text.is_null() || length == 0 {
            return Err(invalid("text is NULL or length is 0: the server's name needs at least one byte"));
        }
        text.write(0);
        let server: [c_char; 264] = fixed(get(reader)?.lock().server());
        let known = length.min(server.len());
        ptr::copy_nonoverlapping(server.as_ptr(), text, known);
        text.add(known - 1).write(0);
        Ok(())
    })
}

/// Returns the next record. Waits up to `timeout_ms` for one: 0 does not wait; CHIPLOG_FOREVER has no limit. Over the
/// network, a reader that does not follow sets `record->data` to NULL at the end.
/// Ownership: the record's bytes are valid until the next call with this reader, or until it is closed. One thread at
/// a time.
/// Errors: TIMEOUT: nothing to read yet; CLOSED: the log was closed and all of it was read, or the reader was closed;
/// DISCARDED: the record was discarded: open a new reader at CHIPLOG_START_FIRST; CORRUPT: the reader keeps its
/// position; UNDECODABLE: the batch cannot be decompressed, chiplog_reader_skip_batch skips it; CANCELLED; IO,
/// POISONED, FORKED; over the network also UNAVAILABLE, OUT_OF_RANGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_record(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    record: *mut chiplog_record_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        if record.is_null() {
            return Err(invalid("record is NULL"));
        }
        let end = chiplog_record_t { index: 0, timestamp_ms: 0, data: ptr::null(), length: 0 };
        record.write(end);
        record.write(get(reader)?.lock_to_read()?.next_record(timeout_ms)?.unwrap_or(end));
        Ok(())
    })
}

/// Returns the rest of the current batch, or the whole next one: records that were appended together. Waits as
/// chiplog_reader_next_record does. `*records` is NULL, with CHIPLOG_OK, at the end of a reader that does not follow.
/// Ownership: the caller owns `*records` and must close it; it may outlive reader and log. One thread at a time.
/// Errors: as chiplog_reader_next_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_batch(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_some_handle(error, records, "records", || {
        let batch = get(reader)?.lock_to_read()?.next_batch(timeout_ms)?;
        Ok(batch.map(Run::from))
    })
}

/// As chiplog_reader_next_batch, and adds the following batches until all have `bytes_max` bytes together or there
/// are no more now. This is the fastest way to read. 1 MiB is a good size. It waits only for the first batch.
/// Ownership, threads and errors as chiplog_reader_next_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_next_run(
    reader: *mut chiplog_reader_t,
    bytes_max: usize,
    timeout_ms: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_some_handle(error, records, "records", || {
        get(reader)?.lock_to_read()?.next_run(bytes_max, timeout_ms)
    })
}

/// Blocks until there is something to read, for up to `timeout_ms`. Reads nothing.
/// Ownership: borrowed. One thread at a time. Blocks. Errors: as chiplog_reader_next_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_wait(
    reader: *mut chiplog_reader_t,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(reader)?.lock_to_read()?.wait(timeout_ms))
}

/// Calls `callback` once, when there is something to read or an error to return (the log was closed). If that is so
/// already, the callback runs at once on this thread, else on a thread of the log or the client. It must not use this
/// reader. A reader has one callback: a new callback, or a descriptor, replaces the last. Over the network each call
/// that reads removes it. A descriptor that was handed out stays open, but does not change until
/// chiplog_reader_descriptor is called again.
/// Ownership: `context` is borrowed until the callback was called, was replaced, or the reader was closed. One thread
/// at a time. Does not block for long. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_on_more(
    reader: *mut chiplog_reader_t,
    callback: chiplog_notify_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let gate = Gate::new(callback, context)?;
        get(reader)?.set_callback(gate)
    })
}

/// Returns a descriptor that is readable (poll, epoll, select) while there may be something to read. When it is
/// readable, read with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there is an
/// error to return, such as CLOSED. It costs nothing while no thread waits for it.
/// Ownership: the reader owns `*descriptor`, which is the same each time: do not read from it or close it; it is
/// closed with the reader. One thread at a time. Does not block for long. Errors: IO, INVALID_ARGUMENT, CLOSED,
/// FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_descriptor(
    reader: *mut chiplog_reader_t,
    descriptor: *mut i32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, descriptor, || {
        put(descriptor, -1);
        get(reader)?.descriptor()
    })
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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_cancel(
    reader: *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        get(reader)?.cancel();
        Ok(())
    })
}

/// Closes a reader. A call of another thread that waits with it keeps waiting: call chiplog_reader_cancel first to
/// end it. No callback of the reader runs once this has returned. Does nothing if it is NULL or already closed.
/// Ownership: takes `reader`. Any thread. Does not block for long, except while that callback runs.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_reader_close(reader: *mut chiplog_reader_t) {
    plain((), || {
        if let Ok(closed) = close(reader) {
            closed.end_callbacks();
        }
    });
}
