//! Producers: records go to a cluster in batches, once each.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::{
    Context, Sized0, bytes, chiplog_appended_t, chiplog_outcome_fn, chiplog_slice_t, codec, duration, init,
    millis, one, options, put, slices, tell,
};
use crate::handles::ticket::ticketed;
use crate::handles::ticket::{Asked, chiplog_ticket_t};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_sigpipe;
use chiplog::Result;
use chiplog_net::client::ProducerOptions;
use chiplog_net::client::blocking::Producer;
use std::ffi::c_void;

/// A producer as C holds it.
pub(crate) struct Producing(Producer);

/// Appends records over the network: gathers them into batches, keeps several under way, sends again what a failure left
/// open. Records given one after the other are in the log in that order. Any thread may use it, many at once. In a
/// forked child every call is CHIPLOG_FORKED.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_producer_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_producer_t is Producing, 12, "producer");

impl Producing {
    pub(crate) fn new(producer: Producer) -> Self {
        Self(producer)
    }
}

/// Limits, deadlines and promises of a producer. Fill it with chiplog_producer_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_producer_options_t {
    /// sizeof(chiplog_producer_options_t), as the caller knows it.
    pub size: usize,
    /// How long a batch that is not full waits for more records, default 0: it goes as soon as it may.
    pub linger_ms: u64,
    /// A batch goes when it is so large, default 256 KiB. A larger record goes alone.
    pub batch_bytes: u64,
    /// Bytes of records that are not acknowledged yet, default 32 MiB; beyond it callers wait.
    pub buffer_bytes: u64,
    /// How long a caller waits for room before CHIPLOG_BUSY, default 60 s.
    pub block_max_ms: u64,
    /// With batches under way and no answer for so long, they are sent again, default 10 s.
    pub request_timeout_ms: u64,
    /// A record that is not acknowledged for so long fails, default 120 s.
    pub delivery_timeout_ms: u64,
    /// How long the log may be full before records that wait for so long fail as CHIPLOG_FULL, default 5 s.
    pub full_max_ms: u64,
    /// Goes on in this session instead of opening one: see chiplog_client_open_session. 0, the default: opens one. Records
    /// are to be given by chiplog_producer_send_batch then; each batch takes one number.
    pub session: u64,
    /// The number of the first batch in that session, from 1. Default 0.
    pub session_next: u64,
    /// A batch goes when it has so many records, 1 to 2^20 and the default.
    pub batch_records: u32,
    /// How batches are compressed: CHIPLOG_CODEC_..., default NONE.
    pub codec: u32,
    /// Batches under way at a time, 1 to 1,024, default 32.
    pub inflight_max: u16,
    /// Each record is in the log once, in the order in which it was given, whatever is sent again: 1 or 0. Default 1.
    pub exactly_once: u8,
    /// Not used; 0.
    pub reserved: [u8; 5],
}

impl Sized0 for chiplog_producer_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// What a producer leaves behind when it ends: called with each record that was not acknowledged. `in_doubt` 1: it was sent
/// and can be in the log; 0: it surely is not. The bytes end with the call. It must not throw.
#[allow(non_camel_case_types)]
pub type chiplog_left_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, data: *const c_void, length: usize, in_doubt: u8)>;

fn defaults() -> chiplog_producer_options_t {
    let d = ProducerOptions::default();
    chiplog_producer_options_t {
        size: size_of::<chiplog_producer_options_t>(),
        linger_ms: millis(d.linger),
        batch_bytes: d.batch_bytes as u64,
        buffer_bytes: d.buffer_bytes as u64,
        block_max_ms: millis(d.block_max),
        request_timeout_ms: millis(d.request_timeout),
        delivery_timeout_ms: millis(d.delivery_timeout),
        full_max_ms: millis(d.full_max),
        session: 0,
        session_next: 0,
        batch_records: d.batch_records,
        codec: 0,
        inflight_max: d.inflight_max,
        exactly_once: d.exactly_once.into(),
        reserved: [0; 5],
    }
}

/// Rust's options out of what the caller gave.
///
/// # Safety
/// As [`options`].
pub(crate) unsafe fn read(given: *const chiplog_producer_options_t) -> Result<ProducerOptions> {
    // SAFETY: this function's condition.
    let given = unsafe { options(given, defaults()) }?;
    if given.exactly_once > 1 || given.reserved != [0; 5] {
        return Err(invalid("producer options: exactly_once has to be 0 or 1, reserved 0"));
    }
    if (given.session == 0) != (given.session_next == 0) {
        return Err(invalid("producer options: session and session_next belong together"));
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

fn get(producer: *const chiplog_producer_t) -> Result<handle_table::Pinned<Producing>> {
    handle_table::get::<Producing>(producer)
}

/// Fills options with their defaults. `size`: sizeof(chiplog_producer_options_t).
/// Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_options_init(
    options: *mut chiplog_producer_options_t,
    size: usize,
) {
    // SAFETY: the caller's word.
    plain((), || unsafe { init(options, size, defaults()) });
}

/// Buffers a record, of which a copy is made; waits for room for at most block_max_ms. Whether it got into the log is told by
/// chiplog_producer_flush.
/// Ownership: borrowed. Any thread, many at once.
/// Errors: BUSY: no room in time; TOO_LARGE; CLOSED; what ended the producer; FORKED. The record was not taken.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(producer)?.0.send(bytes(data, length)?)) }
}

/// As chiplog_producer_send, but never waits: it may be called in callbacks.
/// Ownership, threads: as there. Never blocks. Errors: as there; BUSY when there is no room.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_try_send(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(producer)?.0.try_send(bytes(data, length)?)) }
}

/// As chiplog_producer_send, and calls `callback` once, on the client's thread, with the record's index, or with why it has
/// none. SEQUENCE_FORGOTTEN means that it IS IN THE LOG; TIMEOUT and CLOSED that it may be.
/// Ownership: `data` borrowed for the call, `context` until the callback was called. Any thread, many at once.
/// Errors: as there; `callback` is not called then.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send_with(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            if callback.is_none() {
                return Err(invalid("callback is NULL"));
            }
            let (producer, record) = (get(producer)?, bytes(data, length)?);
            producer.0.send_with(record, move |result| tell(callback, context, result.map(one)))
        })
    }
}

/// Appends a record and waits until it is in the log: `*index`; NULL: not wanted.
/// Ownership: borrowed. Any thread, many at once. Blocks.
/// Errors: those of chiplog_producer_send, and of its delivery: SEQUENCE_FORGOTTEN: it IS IN THE LOG; TIMEOUT, CLOSED: it may
/// be; FULL, BUSY, TOO_MANY_SESSIONS: it is not.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_append(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let (producer, record) = (get(producer)?, bytes(data, length)?);
            put(index, without_sigpipe(|| producer.0.append(record))?.get());
            Ok(())
        })
    }
}

/// As chiplog_producer_send, with a ticket for the record's outcome.
/// Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. Any thread, many at once.
/// Errors: as there; the ticket's are those of chiplog_producer_append.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_submit(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::delivery(get(producer)?.0.submit(bytes(data, length)?)?)))
        })
    }
}

/// As chiplog_producer_submit, but never waits.
/// Ownership, threads: as there. Never blocks. Errors: as there; BUSY when there is no room.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_try_submit(
    producer: *mut chiplog_producer_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::delivery(get(producer)?.0.try_submit(bytes(data, length)?)?)))
        })
    }
}

/// Buffers `count` records, each from where it lies, that go as a batch of their own: all of them are in the log, at indexes
/// that follow each other, or none is. `callback` is called once with the index of the first, as with
/// chiplog_producer_send_with.
/// Ownership: records borrowed for the call, `context` until the callback was called. Any thread, many at once. Waits for
/// room. Errors: as chiplog_producer_send_with; INVALID_ARGUMENT: no records.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_send_batch(
    producer: *mut chiplog_producer_t,
    records: *const chiplog_slice_t,
    count: usize,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            if callback.is_none() {
                return Err(invalid("callback is NULL"));
            }
            let (producer, records) = (get(producer)?, slices(records, count, "records")?);
            let count = records.len() as u64;
            producer.0.send_batch(&records, move |result| {
                tell(callback, context, result.map(|first| chiplog_appended_t { count, ..one(first) }));
            })
        })
    }
}

/// Bytes of records that were given and are not settled; 0 if `producer` is no open producer.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_producer_buffered_bytes(producer: *const chiplog_producer_t) -> usize {
    plain(0, || get(producer).map_or(0, |producer| producer.0.buffered_bytes()))
}

/// Sends at once what lingers, and waits until all records given before the call are settled.
/// Ownership: borrowed. Any thread. Blocks, for at most `timeout_ms`.
/// Errors: TIMEOUT: they go on being sent; else why a record failed since the last flush. FORKED, CLOSED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_flush(
    producer: *mut chiplog_producer_t,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let producer = get(producer)?;
            without_sigpipe(|| producer.0.flush(duration(timeout_ms)))
        })
    }
}

/// Takes no more records, waits until all are settled, for at most `timeout_ms`, and ends the session. Calls `callback`
/// (NULL: not wanted) on this thread with each record that was not acknowledged by then; `*left`: how many (NULL: not
/// wanted). It can be asked again, and tells the same. The handle is still to be closed.
/// Ownership: borrowed. Any thread. Blocks.
/// Errors: why records failed, these or earlier ones, since the last flush; TIMEOUT: some are left and none had failed.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_producer_end(
    producer: *mut chiplog_producer_t,
    timeout_ms: u64,
    callback: chiplog_left_fn,
    context: *mut c_void,
    left: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(left, 0);
            let producer = get(producer)?;
            let closed = without_sigpipe(|| producer.0.close(duration(timeout_ms)));
            put(left, closed.left.len() as u64);
            if let Some(callback) = callback {
                for one in &closed.left {
                    callback(context.0, one.record.as_ptr().cast(), one.record.len(), one.in_doubt.into());
                }
            }
            match closed.failed {
                Some(why) => Err(why),
                None if closed.left.is_empty() => Ok(()),
                None => {
                    let what = format!("{} records were not acknowledged in time", closed.left.len());
                    Err(chiplog::Error::new(chiplog::ErrorKind::Timeout, what))
                }
            }
        })
    }
}

/// Closes a producer, and returns how many records were given to it and are not settled by then, or failed and nobody was
/// told: by a ticket that was asked, a callback, chiplog_producer_flush or chiplog_producer_end. 0 if it is no open
/// producer, or its parent's in a forked child. Those that are not settled go on being sent as long as its client, or a
/// reader or watch of that, is open, and nobody is told what becomes of those without a callback or a ticket: chiplog_producer_end before it
/// waits for them, and says which are left.
/// With the last handle of the client they are given up, and so they are when the process ends, by exit(), a return from
/// main or a signal: the library registers nothing with atexit(), and a record that is in memory then is lost. A program
/// that wants its records in the log calls chiplog_producer_end, or chiplog_producer_flush, before it ends, also when a
/// signal ends it: not in the signal's handler, but in the loop that the handler stops.
/// Ownership: takes `producer`. Any thread. Never blocks for long; see chiplog_client_close.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_producer_close(producer: *mut chiplog_producer_t) -> u64 {
    // Counted behind the end of the handle: no later call gives another one.
    plain(0, || handle_table::close::<Producing>(producer).map_or(0, |producer| producer.0.unacknowledged()))
}
