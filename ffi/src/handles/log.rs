//! The embedded log: open, append, read, inspect, discard, close.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, hand_out, invalid};
use crate::abi::records;
use crate::abi::records::chiplog_records_t;
use crate::abi::values::{
    Sized0, appended, bytes, chiplog_appended_t, chiplog_slice_t, duration, fill, fixed, out, put, slices,
    start, text,
};
use crate::handles::batch::{Built, chiplog_batch_t};
use crate::handles::options;
use crate::handles::options::chiplog_log_options_t;
use crate::handles::reader;
use crate::handles::reader::chiplog_reader_t;
use crate::handles::session::{Used, chiplog_session_t};
use crate::handles::ticket::ticketed;
use crate::handles::ticket::{Asked, chiplog_ticket_t};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_signals;
use chiplog::{Batch, BatchBuilder, Log, Result, Status};
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

/// The log behind a handle.
pub(crate) struct Opened {
    pub(crate) log: Log,
    /// The text of `chiplog_log_path`.
    path: CString,
    /// Whether closing the handle closes the log. false for a follower's log.
    is_own: bool,
}

/// A durable log in a directory. Many threads may use it at once. Close it with chiplog_log_close. In a forked child
/// each call returns CHIPLOG_FORKED.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_log_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_log_t is Opened, 2, "log");

impl Opened {
    pub(crate) fn new(log: Log, is_own: bool) -> Self {
        let path = CString::new(log.path().as_os_str().as_bytes()).unwrap_or_default();
        Self { log, path, is_own }
    }
}

/// The state of a log.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_info_t {
    /// sizeof(chiplog_info_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// The first record that is not discarded. For an empty log: the first one to be appended.
    pub first: u64,
    /// The last committed record. For an empty log: first - 1.
    pub last: u64,
    /// The last record that is durable here. Over the network: equal to `last`.
    pub durable: u64,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`. 0: none, or unknown.
    pub bytes_capacity: u64,
    /// The number of segments. Over the network: 0.
    pub segments: u64,
    /// The number of open exactly-once sessions. Over the network: 0.
    pub sessions: u64,
    /// When the newest block was written: milliseconds since 1970. Over the network: 0.
    pub last_timestamp_ms: u64,
    /// Over the network: the replica that answered, else 0.
    pub node: u64,
    /// Over the network: the leader. 0: unknown.
    pub leader: u64,
    /// The log's permanent name: 32 hexadecimal digits and a NUL. Empty: unknown.
    pub log_id: [c_char; 40],
    /// This copy's permanent name, in the same form. Over the network: empty.
    pub directory_id: [c_char; 40],
    /// Over the network: where the leader serves clients, `host:port`. Empty: unknown.
    pub leader_address: [c_char; 264],
    /// Whether this copy is a follower's: 1 or 0.
    pub follows: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 7],
}

impl Sized0 for chiplog_info_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

pub(crate) fn info(status: &Status) -> chiplog_info_t {
    chiplog_info_t {
        size: 0,
        first: status.first_index.get(),
        last: status.last_index.get(),
        durable: status.durable_index.get(),
        bytes_used: status.bytes_used,
        bytes_capacity: status.bytes_capacity.unwrap_or(0),
        segments: status.segments,
        sessions: status.sessions.into(),
        last_timestamp_ms: status.last_timestamp.get(),
        node: 0,
        leader: 0,
        log_id: fixed(&chiplog_net::wire::ids::to_hex(status.log_id.get())),
        directory_id: fixed(&chiplog_net::wire::ids::to_hex(status.directory_id.get())),
        leader_address: [0; 264],
        follows: status.follows.into(),
        reserved: [0; 7],
    }
}

/// Counters of a log since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_stats_t {
    /// sizeof(chiplog_stats_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// Batches accepted, including duplicates within sessions.
    pub appends: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of blocks written, with headers and padding.
    pub bytes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Time spent in syncs, in microseconds.
    pub sync_micros_total: u64,
    /// The longest sync, in microseconds.
    pub sync_micros_max: u64,
    /// The median sync time, in microseconds, rounded up to a power of two.
    pub sync_micros_p50: u64,
    /// The 99th percentile of sync times, in microseconds, rounded up to a power of two.
    pub sync_micros_p99: u64,
    /// How often a new segment was begun.
    pub rolls: u64,
    /// Bytes that the scrub has read and checked.
    pub scrubbed_bytes: u64,
    /// The number of places found where blocks are damaged.
    pub damaged: u64,
    /// The number of those places that were repaired.
    pub repaired: u64,
    /// How long the current sync has been running, in microseconds. 0: there is none.
    pub syncing_micros: u64,
    /// Records truncated because another leader has others in their place. None of them was known to be committed.
    pub truncated_records: u64,
    /// Records removed by discards or retention.
    pub discarded_records: u64,
}

impl Sized0 for chiplog_stats_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// The work that waits in a log now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_backlog_t {
    /// sizeof(chiplog_backlog_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// Appends that wait for the writer.
    pub queue_appends: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Bytes of appends that the writer has taken and not yet written.
    pub taken_bytes: u64,
    /// Bytes that are written and not yet committed.
    pub uncommitted_bytes: u64,
}

impl Sized0 for chiplog_backlog_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

fn get(log: *const chiplog_log_t) -> Result<handle_table::Pinned<Opened>> {
    handle_table::get::<Opened>(log)
}

/// Builds a batch of the caller's slices.
///
/// # Safety
/// As [`slices`].
pub(crate) unsafe fn batch_of(records: *const chiplog_slice_t, count: usize) -> Result<BatchBuilder> {
    let mut builder = BatchBuilder::new();
    // SAFETY: this function's condition.
    for record in unsafe { slices(records, count, "records") }? {
        builder.push(record)?;
    }
    Ok(builder)
}

/// Opens the log in `directory`, or creates it if the options say so. `options` may be NULL for the defaults.
/// Ownership: `directory` and `options` are borrowed for the call, the clock's context until the log is closed. The
/// caller owns `*log` and must close it. Any thread. Blocks while recovery reads the last segment.
/// Errors: LOCKED, NOT_FOUND, INVALID_ARGUMENT, CORRUPT (the message names file and offset), UNSUPPORTED, IO, FULL.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open(
    directory: *const c_char,
    options: *const chiplog_log_options_t,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(log, "log")?;
            let (directory, options) = (path(directory, "directory")?, options::read(options)?);
            let opened = without_signals(|| Log::open(directory, options))?;
            place.write(handle_table::insert(Opened::new(opened, true))?);
            Ok(())
        })
    }
}

/// Reads a path: any bytes except NUL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char, name: &str) -> Result<&'a std::path::Path> {
    if pointer.is_null() {
        // SAFETY: NULL is only checked.
        unsafe { text(pointer, name) }?;
    }
    // SAFETY: not NULL, so by this function's condition a C string.
    let bytes = unsafe { std::ffi::CStr::from_ptr(pointer) }.to_bytes();
    Ok(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

/// Ends appending, writes what was submitted, makes it durable, unlocks the directory, and closes the handle,
/// whatever the status. Readers and the records they returned stay valid. For a follower's log (chiplog_follower_log)
/// this closes only the handle.
/// Ownership: takes `log`; NULL: CHIPLOG_OK. Any thread, also while other threads append: their appends are completed
/// first. Blocks for the disk, except in a callback on the log's own thread: there the log closes after the callback.
/// Errors: POISONED: an earlier write or sync failed, and some appends have an unknown outcome; CLOSED: it is already
/// closed; FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_close(
    log: *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if log.is_null() {
                return Ok(());
            }
            let opened = handle_table::close::<Opened>(log)?;
            if opened.is_own { opened.log.close() } else { Ok(()) }
        })
    }
}

/// Appends one record and blocks until it is durable. `*index` (may be NULL) is its index.
/// Ownership: all borrowed. Any thread, many at once: they share writes and syncs. Blocks.
/// Errors: TOO_LARGE, FULL, BUSY, CLOSED, FORKED: the record is not in the log; POISONED: the outcome is unknown.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let at = get(log)?.log.append(bytes(data, length)?)?;
            put(index, at.get());
            Ok(())
        })
    }
}

/// Appends a batch, all of it or nothing, and blocks until it is durable. `*placed` (may be NULL) is its position.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; for a batch with a session also SESSION_EXPIRED, SEQUENCE_GAP, SEQUENCE_FORGOTTEN.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            put(placed, appended(get(log)?.log.append(&batch.batch)?));
            Ok(())
        })
    }
}

/// Appends `count` records as one batch, each directly from the caller's memory, and blocks until they are durable:
/// all or none. `*placed` (may be NULL) is their position.
/// Ownership: all borrowed. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; INVALID_ARGUMENT: no records.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let log = get(log)?;
            put(placed, appended(log.log.append(&batch_of(records, count)?.build()?)?));
            Ok(())
        })
    }
}

/// Submits one record, which is copied, and returns a ticket for the outcome. Waits only while the queue is full, for
/// up to the option queue_timeout_ms.
/// Ownership: `data` borrowed for the call. The caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: TOO_LARGE, FULL, BUSY, POISONED, CLOSED, FORKED: the record was not accepted.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit(bytes(data, length)?)?))))
    }
}

/// As chiplog_log_submit, but never waits.
/// Ownership and threads as chiplog_log_submit. Never blocks.
/// Errors: the same; BUSY if the queue is full.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.try_submit(bytes(data, length)?)?)))
        })
    }
}

/// Submits a batch; see chiplog_log_submit.
/// Ownership: all borrowed; the caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: as chiplog_log_submit.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit(&batch.batch)?)))
        })
    }
}

/// As chiplog_log_submit_batch, but never waits.
/// Ownership and threads as chiplog_log_submit_batch. Never blocks.
/// Errors: the same; BUSY if the queue is full.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.try_submit(&batch.batch)?)))
        })
    }
}

/// Submits `count` records as one batch, each directly from the caller's memory; see chiplog_log_submit.
/// Ownership: all borrowed for the call; the caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: as chiplog_log_submit; INVALID_ARGUMENT: no records.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let batch: Batch = batch_of(records, count)?.build()?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit(&batch)?)))
        })
    }
}

/// Checks whether the capacity has space for an append of this many bytes now, in addition to all waiting appends.
/// Ownership: borrowed. Any thread. Never blocks. Errors: FULL: there is not enough space; POISONED, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_check_room(
    log: *const chiplog_log_t,
    bytes: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(log)?.log.check_room(bytes)) }
}

/// Opens a reader of committed records that begins at `start` (CHIPLOG_START_...; `value`: its number, else 0).
/// Ownership: `log` borrowed for the call. The caller owns `*reader` and must close it; it may outlive the log. Any
/// thread.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, IO, CORRUPT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_reader(
    log: *const chiplog_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || reader::hand_out(reader, || get(log)?.log.reader(self::start(start, value)?))) }
}

/// Reads one committed record by its index: `*records` holds only that one.
/// Ownership: `log` borrowed. The caller owns `*records` and must close it; it may outlive the log. Any thread, many
/// at once.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, CORRUPT, IO, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_read(
    log: *const chiplog_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || records::hand_out_one(records, || get(log)?.log.read(index.into()))) }
}

/// Reports that the bytes of record `index` are damaged in this directory. A replica of a cluster scrubs the segment
/// at once and repairs the damage from other replicas. A log on its own only counts and logs the damage. Reads report
/// damage by themselves. A report about a sound record costs only the scrub.
/// Ownership: borrowed. Any thread. Blocks for the disk, not for the repair. Errors: DISCARDED, OUT_OF_RANGE,
/// UNAVAILABLE, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_report_damage(
    log: *const chiplog_log_t,
    index: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(log)?.log.report_damage(index.into())) }
}

/// Discards all records below `first`, durably; their space is reused. Does nothing if `first` is at or below the
/// first index. If it is beyond the end, the log becomes empty and continues at `first`. Readers keep the records
/// they hold.
/// Ownership: borrowed. Any thread. Blocks. Errors: POISONED, CLOSED, FORKED, INVALID_ARGUMENT; NOT_LEADER for a
/// follower's log.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_discard(
    log: *mut chiplog_log_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(log)?.log.discard(first.into())) }
}

/// As chiplog_log_discard, but returns at once with a ticket. The ticket's answer has no further meaning.
/// Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
/// same.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_discard(
    log: *mut chiplog_log_t,
    first: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || ticketed(ticket, || Ok(Asked::answer(get(log)?.log.submit_discard(first.into())?))))
    }
}

/// Returns the options that the log was opened with, except for the clock. Set `options->size` first.
/// Ownership: `log` borrowed; the caller owns `options`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options(
    log: *const chiplog_log_t,
    options: *mut chiplog_log_options_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || fill(options, "options", options::shown(get(log)?.log.options()))) }
}

/// Returns the current state of the log. Set `info->size` first.
/// Ownership: `log` borrowed; the caller owns `info`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_info(
    log: *const chiplog_log_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || fill(info, "info", self::info(&get(log)?.log.status()))) }
}

/// Blocks until all records that were committed anywhere when the call began can be read here. `*last` (may be NULL)
/// is then the last record. On a log on its own, all durable records count as committed.
/// Ownership: borrowed. Any thread. Blocks. Errors: UNAVAILABLE, NOT_LEADER, POISONED, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    last: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(last, get(log)?.log.barrier(duration(timeout_ms))?.get());
            Ok(())
        })
    }
}

/// As chiplog_log_barrier, but returns at once: the `first` of the ticket's result is the last record.
/// Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
/// same.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::answer(get(log)?.log.submit_barrier(duration(timeout_ms))?)))
        })
    }
}

/// Blocks until record `index` can be read here, or is known to be discarded.
/// Ownership: borrowed. Any thread. Blocks. Errors: TIMEOUT, CLOSED, POISONED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_wait_for(
    log: *const chiplog_log_t,
    index: u64,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(log)?.log.wait_for(index.into(), duration(timeout_ms))) }
}

/// Returns the counters of the log since it was opened. Set `stats->size` first.
/// Ownership: `log` borrowed; the caller owns `stats`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_stats(
    log: *const chiplog_log_t,
    stats: *mut chiplog_stats_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let now = get(log)?.log.metrics();
            let shown = chiplog_stats_t {
                size: 0,
                appends: now.appends,
                records: now.records,
                blocks: now.blocks,
                bytes: now.bytes,
                syncs: now.syncs,
                sync_micros_total: now.sync_micros_total,
                sync_micros_max: now.sync_micros_max,
                sync_micros_p50: now.sync_latency(0.5).as_micros() as u64,
                sync_micros_p99: now.sync_latency(0.99).as_micros() as u64,
                rolls: now.rolls,
                scrubbed_bytes: now.scrubbed_bytes,
                damaged: now.damaged,
                repaired: now.repaired,
                syncing_micros: u64::try_from(now.syncing.as_micros()).unwrap_or(u64::MAX),
                truncated_records: now.truncated_records,
                discarded_records: now.discarded_records,
            };
            fill(stats, "stats", shown)
        })
    }
}

/// Returns the work that waits in the log now. Set `backlog->size` first.
/// Ownership: `log` borrowed; the caller owns `backlog`. Any thread. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_backlog(
    log: *const chiplog_log_t,
    backlog: *mut chiplog_backlog_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let now = get(log)?.log.metrics();
            let shown = chiplog_backlog_t {
                size: 0,
                queue_appends: now.queue_appends,
                queue_bytes: now.queue_bytes,
                taken_bytes: now.taken_bytes,
                uncommitted_bytes: now.uncommitted_bytes,
            };
            fill(backlog, "backlog", shown)
        })
    }
}

/// Returns why the log accepts no more appends, if a write or a sync has failed: `*cause`, else NULL.
/// Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_poison_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: this function's condition. One place cannot hold both pointers.
        return unsafe { entry(error, || Err(invalid("cause and error must not point to the same place"))) };
    }
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(cause, "cause")?;
            if let Some(cause) = get(log)?.log.poison_cause() {
                place.write(hand_out(&cause));
            }
            Ok(())
        })
    }
}

/// Returns why this replica does not accept the log's records while another replica leads. The reason is a disk
/// without space (FULL, IO), segments that are too small for what the leader sends (TOO_LARGE), or options that
/// conflict with the log's (INVALID_ARGUMENT): `*cause`, else NULL.
/// Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_shortage_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: this function's condition. One place cannot hold both pointers.
        return unsafe { entry(error, || Err(invalid("cause and error must not point to the same place"))) };
    }
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(cause, "cause")?;
            if let Some(cause) = get(log)?.log.shortage_cause() {
                place.write(hand_out(&cause));
            }
            Ok(())
        })
    }
}

/// Returns the log's directory, as the caller gave it. NULL if `log` is not an open log.
/// Ownership: `log` borrowed; the text is borrowed until the log is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_path(log: *const chiplog_log_t) -> *const c_char {
    plain(std::ptr::null(), || get(log).map_or(std::ptr::null(), |log| log.path.as_ptr()))
}

/// Opens an exactly-once session, durably.
/// Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Blocks.
/// Errors: TOO_MANY_SESSIONS, FULL, POISONED, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open_session(
    log: *mut chiplog_log_t,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(session, "session")?;
            place.write(handle_table::insert(Used::new(get(log)?.log.open_session()?))?);
            Ok(())
        })
    }
}

/// Resumes a session, in this process or another one. `next` is the number that the next append gets, from 1. To
/// repeat an append whose outcome is unknown, use its number again. The first append reports whether the log still
/// knows the session.
/// Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_resume_session(
    log: *mut chiplog_log_t,
    id: u64,
    next: u64,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(session, "session")?;
            place.write(handle_table::insert(Used::new(
                get(log)?.log.resume_session(id.into(), next.into()),
            ))?);
            Ok(())
        })
    }
}
