//! Producers: send records to a cluster in batches, each record exactly once.

use crate::abi::entry::{entry, entry_handle, entry_value, init};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::growing;
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::{bytes, put, slices};
use crate::abi::values::{appended, chiplog_outcome_fn, chiplog_slice_t, codec, duration, millis, outcome};
use crate::handles::ticket::chiplog_ticket_t;
use crate::support::handle_table;
use crate::support::handle_table::{Opaque, get, handle, query};
use crate::support::panic_guard::plain;
use crate::support::threads::without_sigpipe;
use chiplog::{Error, ErrorKind, Index, Result};
use chiplog_net::client::ProducerOptions;
use chiplog_net::client::blocking::Producer;
use std::ffi::c_void;

/// Appends records over the network. It collects them into batches, keeps several in flight, and sends again after a
/// failure. Records are in the log in the order in which they were sent. Many threads may use it at once. In a forked
/// child each call returns CHIPLOG_FORKED.
pub struct chiplog_producer_t {
    _private: Opaque,
}

handle!(chiplog_producer_t is Producer, 12, "producer");

/// Limits, deadlines and guarantees of a producer. Fill it with chiplog_producer_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_producer_options_t {
    /// sizeof(chiplog_producer_options_t) as the caller was compiled with it.
    pub size: usize,
    /// How long a batch that is not full waits for more records, default 0: it is sent as soon as possible.
    pub linger_ms: u64,
    /// A batch of this size is sent, default 256 KiB. A larger record is sent alone.
    pub batch_bytes: u64,
    /// Limit of the bytes of unacknowledged records, default 32 MiB. Beyond it callers wait.
    pub buffer_bytes: u64,
    /// How long a caller waits for space before CHIPLOG_BUSY, default 60 s.
    pub block_max_ms: u64,
    /// Batches in flight are sent again after this long without an answer, default 10 s.
    pub request_timeout_ms: u64,
    /// A record that is not acknowledged within this time fails, default 120 s.
    pub delivery_timeout_ms: u64,
    /// Once the log has been full for this long, records that waited this long fail with CHIPLOG_FULL, default 5 s.
    pub full_max_ms: u64,
    /// Continues in this session instead of opening one: see chiplog_client_open_session. 0, the default: opens one.
    /// With a given session, send records with chiplog_producer_send_batch: each batch takes one number.
    pub session: u64,
    /// The number of the first batch in that session, from 1. Default 0.
    pub session_next: u64,
    /// A batch with this number of records is sent: 1 to 2^20, which is the default.
    pub batch_records: u32,
    /// The compression of batches: CHIPLOG_CODEC_..., default NONE.
    pub codec: u32,
    /// Limit of the batches in flight, 1 to 1,024, default 32.
    pub inflight_max: u16,
    /// Each record is in the log once, in the order of sending, even after retries: 1 or 0. Default 1.
    pub exactly_once: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 5],
}

growing!(chiplog_producer_options_t);

/// Called with each record that was not acknowledged when its producer ended. `in_doubt` is 1 if the record was sent
/// and may be in the log, and 0 if it certainly is not. The bytes are valid only during the call. The callback must
/// not throw.
pub type chiplog_left_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, data: *const c_void, length: usize, in_doubt: u8)>;

fn defaults() -> chiplog_producer_options_t {
    let d = ProducerOptions::default();
    chiplog_producer_options_t {
        linger_ms: millis(d.linger),
        batch_bytes: d.batch_bytes as u64,
        buffer_bytes: d.buffer_bytes as u64,
        block_max_ms: millis(d.block_max),
        request_timeout_ms: millis(d.request_timeout),
        delivery_timeout_ms: millis(d.delivery_timeout),
        full_max_ms: millis(d.full_max),
        batch_records: d.batch_records,
        inflight_max: d.inflight_max,
        exactly_once: d.exactly_once.into(),
        ..Growing::zeros()
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As [`growing::options`].
pub(crate) unsafe fn read(given: *const chiplog_producer_options_t) -> Result<ProducerOptions> {
    let given = growing::options(given, defaults())?;
    if given.exactly_once > 1 || given.reserved != [0; 5] {
        return Err(invalid("producer options: exactly_once must be 0 or 1, and reserved must be 0"));
    }
    if (given.session == 0) != (given.session_next == 0) {
        return Err(invalid("producer options: set both session and session_next, or neither"));
    }
    let mut options = ProducerOptions::default();
    options.linger = duration(given.linger_ms);
    options.batch_bytes = given.batch_bytes as usize;
    options.buffer_bytes = given.buffer_bytes as usize;
    options.block_max = duration(given.block_max_ms);
    options.request_timeout = duration(given.request_timeout_ms);
    options.delivery_timeout = duration(given.delivery_timeout_ms);
    options.full_max = duration(given.full_max_ms);
    options.session = (given.session != 0).then_some((given.session.into(), given.session_next.into()));
    options.batch_records = given.batch_records;
    options.codec = codec(given.codec)?;
    options.inflight_max = given.inflight_max;
    options.exactly_once = given.exactly_once == 1;
    Ok(options)
}

/// Fills options with their defaults. `size`: sizeof(chiplog_producer_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_options_init(
    options: *mut chiplog_producer_options_t,
    size: usize,
) {
    init(options, size, defaults);
}

/// Buffers a record, which is copied. Waits for space for up to block_max_ms. chiplog_producer_flush reports whether
/// the record got into the log.
/// Ownership: borrowed. Any thread, many at once.
/// Errors: BUSY: no space in time; TOO_LARGE; CLOSED; the error that ended the producer; FORKED. The record was not
/// accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(producer)?.send(bytes(data, length)?))
}

/// As chiplog_producer_send, but never waits: callbacks may call it.
/// Ownership and threads as chiplog_producer_send. Never blocks. Errors: the same; BUSY if there is no space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_try_send(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(producer)?.try_send(bytes(data, length)?))
}

/// As chiplog_producer_send, and calls `callback` once, on the client's thread, with the record's position, or with an
/// error. SEQUENCE_FORGOTTEN means that the record IS IN THE LOG; TIMEOUT and CLOSED mean that it may be.
/// Ownership: `data` borrowed for the call, `context` until the callback was called. Any thread, many at once.
/// Errors: as chiplog_producer_send; `callback` is not called then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send_with(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let callback = outcome(callback, context)?;
        get(producer)?.send_with(bytes(data, length)?, |result| callback(result.map(appended)))
    })
}

/// Appends a record and blocks until it is in the log. `*index` (may be NULL) is its index. To learn how
/// durable it is, wait for a ticket of chiplog_producer_submit instead.
/// Ownership: borrowed. Any thread, many at once. Blocks.
/// Errors: those of chiplog_producer_send, and of the delivery: SEQUENCE_FORGOTTEN: the record IS IN THE LOG;
/// TIMEOUT, CLOSED: it may be; FULL, BUSY, TOO_MANY_SESSIONS: it is not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_append(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, index, || {
        let (producer, record) = (get(producer)?, bytes(data, length)?);
        without_sigpipe(|| producer.append(record)).map(Index::get)
    })
}

/// As chiplog_producer_send, and returns a ticket for the record's outcome.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: as chiplog_producer_send; the ticket's errors are those of chiplog_producer_append.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_submit(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(producer)?.submit(bytes(data, length)?))
}

/// As chiplog_producer_submit, but never waits.
/// Ownership and threads as chiplog_producer_submit. Never blocks. Errors: the same; BUSY if there is no space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_try_submit(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(producer)?.try_submit(bytes(data, length)?))
}

/// Buffers `count` records as a batch of their own, each copied from the caller's memory. Either all of them are in
/// the log, at consecutive indexes, or none. Calls `callback` once with their position, as
/// chiplog_producer_send_with does.
/// Ownership: records borrowed for the call, `context` until the callback was called. Any thread, many at once. Waits
/// for space. Errors: as chiplog_producer_send_with; INVALID_ARGUMENT: no records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send_batch(
    producer: *mut chiplog_producer_t,
    records: *const chiplog_slice_t,
    count: usize,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let callback = outcome(callback, context)?;
        let (producer, records) = (get(producer)?, slices(records, count, "records")?);
        producer.send_batch(&records, move |result| callback(result.map(appended)))
    })
}

/// Returns the bytes of records that were sent and have no outcome yet; 0 if `producer` is not an open producer.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_producer_buffered_bytes(producer: *const chiplog_producer_t) -> usize {
    query(producer, 0, |producer| producer.buffered_bytes())
}

/// Sends lingering batches at once, and blocks until all records sent before the call have an outcome.
/// Ownership: borrowed. Any thread. Blocks for up to `timeout_ms`.
/// Errors: TIMEOUT: the producer continues to send them; else the reason why a record failed since the last flush.
/// FORKED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_flush(
    producer: *mut chiplog_producer_t,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let producer = get(producer)?;
        without_sigpipe(|| producer.flush(duration(timeout_ms)))
    })
}

/// Accepts no more records, waits up to `timeout_ms` until all have an outcome, and ends the session. Then calls
/// `callback` (may be NULL) on this thread with each record that was not acknowledged. `*left` (may be NULL) is their
/// number. A second call returns the same. The handle must still be closed.
/// Ownership: borrowed. Any thread. Blocks.
/// Errors: the reason why records failed since the last flush, these or earlier ones; TIMEOUT: records are left and
/// none has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_end(
    producer: *mut chiplog_producer_t,
    timeout_ms: u64,
    callback: chiplog_left_fn,
    context: *mut c_void,
    left: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        put(left, 0);
        let producer = get(producer)?;
        let closed = without_sigpipe(|| producer.close(duration(timeout_ms)));
        put(left, closed.left.len() as u64);
        if let Some(callback) = callback {
            for one in &closed.left {
                callback(context, one.record.as_ptr().cast(), one.record.len(), one.in_doubt.into());
            }
        }
        match closed.failed {
            Some(why) => Err(why),
            None if closed.left.is_empty() => Ok(()),
            None => {
                let what = format!("{} records were not acknowledged in time", closed.left.len());
                Err(Error::new(ErrorKind::Timeout, what))
            }
        }
    })
}

/// Closes a producer. Returns the number of records without an outcome, plus those that failed without a report by a
/// ticket that was read, a callback, chiplog_producer_flush or chiplog_producer_end. Returns 0 if `producer` is not
/// an open producer, or is the parent's in a forked child.
/// Records without an outcome continue to be sent while the client, or one of its readers or watches, is open. If
/// they have no callback or ticket, their outcome is not reported. To wait for them, and to learn which are left,
/// call chiplog_producer_end first.
/// Closing the last handle of the client drops them. The end of the process also drops them, whether by exit(), a
/// return from main or a signal, because the library does not register with atexit(). A program that needs its
/// records in the log calls chiplog_producer_end or chiplog_producer_flush before it ends. That includes an end by a
/// signal: call it in the loop that the signal handler stops, not in the handler.
/// Ownership: takes `producer`. Any thread. Does not block for long; see chiplog_client_close.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_producer_close(producer: *mut chiplog_producer_t) -> u64 {
    // Counted after the handle is closed: no later call sends another record.
    plain(0, || handle_table::close(producer).map_or(0, |producer| producer.unacknowledged()))
}
