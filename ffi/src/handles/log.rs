//! The embedded log: opening, appending, looking, discarding, closing.

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
use chiplog::{Batch, BatchBuilder, Info, Log, Result};
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

/// A log as C holds it.
pub(crate) struct Opened {
    pub(crate) log: Log,
    /// For `chiplog_log_path`.
    path: CString,
    /// Whether closing the handle closes the log: not where it is a follower's.
    is_own: bool,
}

/// A durable log in a directory. Any thread may use it, many at once. Closed by chiplog_log_close. In a forked child
/// every call is CHIPLOG_FORKED.
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

/// How a log stands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_info_t {
    /// sizeof(chiplog_info_t), as the caller knows it: set it first.
    pub size: usize,
    /// The first record that is not discarded; of an empty log, the first one to come.
    pub first: u64,
    /// The last committed record; of an empty log first - 1.
    pub last: u64,
    /// The last record durable here. Over the network: as `last`.
    pub durable: u64,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of them; 0: none, or not known.
    pub bytes_capacity: u64,
    /// Segments that hold them. Over the network: 0.
    pub segments: u64,
    /// Exactly-once sessions that are open. Over the network: 0.
    pub sessions: u64,
    /// When the newest block was written: milliseconds since 1970. Over the network: 0.
    pub last_timestamp_ms: u64,
    /// Over the network: the replica that tells, else 0.
    pub node: u64,
    /// Over the network: who leads; 0: not known.
    pub leader: u64,
    /// The log's name for ever: 32 hexadecimal digits and a NUL; empty: not told.
    pub log_id: [c_char; 40],
    /// This copy's name, likewise. Over the network: empty.
    pub directory_id: [c_char; 40],
    /// Over the network: where the leader serves clients, `host:port`; empty: not known.
    pub leader_address: [c_char; 264],
    /// Whether this copy follows the log from outside: 1 or 0.
    pub follows: u8,
    /// Not used; 0.
    pub reserved: [u8; 7],
}

impl Sized0 for chiplog_info_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

pub(crate) fn info(info: &Info) -> chiplog_info_t {
    chiplog_info_t {
        size: 0,
        first: info.first.get(),
        last: info.last.get(),
        durable: info.durable.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity.unwrap_or(0),
        segments: info.segments,
        sessions: info.sessions.into(),
        last_timestamp_ms: info.last_timestamp.get(),
        node: 0,
        leader: 0,
        log_id: fixed(&chiplog_net::wire::ids::to_hex(info.log_id.get())),
        directory_id: fixed(&chiplog_net::wire::ids::to_hex(info.directory.get())),
        leader_address: [0; 264],
        follows: info.follows.into(),
        reserved: [0; 7],
    }
}

/// What a log did since it was opened, and what waits in it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_stats_t {
    /// sizeof(chiplog_stats_t), as the caller knows it: set it first.
    pub size: usize,
    /// Batches taken, duplicates of sessions included.
    pub appends: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of blocks written, headers and padding included.
    pub bytes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Time spent in them, in microseconds.
    pub sync_micros_total: u64,
    /// The longest of them, in microseconds.
    pub sync_micros_max: u64,
    /// Half of them took less, in microseconds, to the next power of two.
    pub sync_micros_p50: u64,
    /// 99 of 100 of them took less, likewise.
    pub sync_micros_p99: u64,
    /// Segments begun.
    pub rolls: u64,
    /// Bytes that the scrub has read and checked.
    pub scrubbed_bytes: u64,
    /// Places found where blocks are damaged.
    pub damaged: u64,
    /// Such places that were repaired.
    pub repaired: u64,
    /// How long the sync has run that is running now, in microseconds; none: 0.
    pub syncing_micros: u64,
    /// Records cut off because another leader has others in their place; none was known to be committed.
    pub truncated_records: u64,
    /// Records that a discard or retention has taken from the log.
    pub discarded_records: u64,
}

impl Sized0 for chiplog_stats_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// What waits in a log now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_backlog_t {
    /// sizeof(chiplog_backlog_t), as the caller knows it: set it first.
    pub size: usize,
    /// Appends that wait for the writer.
    pub queue_appends: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Bytes of appends that the writer has taken and not written yet.
    pub taken_bytes: u64,
    /// Bytes that were written and are not committed yet.
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

/// A batch of the caller's slices.
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

/// Opens the log in `directory`, or makes one there if the options say so. `options`: NULL for the defaults.
/// Ownership: `directory`, `options`: borrowed for the call, except for the clock's context. `*log`: the caller's, to be closed.
/// Any thread. Blocks while recovery reads the last segment.
/// Errors: LOCKED, NOT_FOUND, INVALID_ARGUMENT, CORRUPT (the message names file and offset), UNSUPPORTED, IO, FULL.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open(
    directory: *const c_char,
    options: *const chiplog_log_options_t,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// A path: any bytes but NUL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char, name: &str) -> Result<&'a std::path::Path> {
    if pointer.is_null() {
        // SAFETY: NULL is looked at only.
        unsafe { text(pointer, name) }?;
    }
    // SAFETY: not NULL, so by this function's condition a C string.
    let bytes = unsafe { std::ffi::CStr::from_ptr(pointer) }.to_bytes();
    Ok(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

/// Ends appending, writes what was submitted, makes it durable, lets the directory go, and closes the handle, whatever the
/// status. Readers, and what they gave, live on. Of a follower's log (chiplog_follower_log) only the handle is closed.
/// Ownership: takes `log`; NULL: CHIPLOG_OK. Any thread, also while others append: theirs is settled first. Blocks for the
/// disk, except in a callback on the log's own thread: there it happens after the callback.
/// Errors: POISONED: a write or sync had failed, some appends have an unknown outcome; CLOSED: it was closed before; FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_close(
    log: *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// Appends one record and waits until it is durable. `*index`: where it stands; NULL: not wanted.
/// Ownership: all borrowed. Any thread, many at once: they share writes and syncs. Blocks.
/// Errors: TOO_LARGE, FULL, BUSY, CLOSED, FORKED: the record is not in the log; POISONED: unknown.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let at = get(log)?.log.append(bytes(data, length)?)?;
            put(index, at.get());
            Ok(())
        })
    }
}

/// Appends a batch and waits until it is durable: all of it or nothing. `*placed`: NULL: not wanted.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; of a batch with a session also SESSION_EXPIRED, SEQUENCE_GAP, SEQUENCE_FORGOTTEN.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            put(placed, appended(get(log)?.log.append_batch(&batch.batch)?));
            Ok(())
        })
    }
}

/// Appends `count` records, each from where it lies, as one batch, and waits until they are durable: all of them or none.
/// `*placed`: NULL: not wanted.
/// Ownership: all borrowed. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; INVALID_ARGUMENT: no records.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let log = get(log)?;
            put(placed, appended(log.log.append_batch(&batch_of(records, count)?.build()?)?));
            Ok(())
        })
    }
}

/// Submits one record, of which a copy is made, and returns with a ticket for the outcome. Waits only while the queue is
/// full, for at most the option queue_timeout_ms.
/// Ownership: `data` borrowed for the call. `*ticket`: the caller's, to be closed. Any thread, many at once.
/// Errors: TOO_LARGE, FULL, BUSY, POISONED, CLOSED, FORKED: the record was not taken.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit(bytes(data, length)?)?))))
    }
}

/// As chiplog_log_submit, but never waits.
/// Ownership, threads: as there. Never blocks.
/// Errors: as there; BUSY when the queue is full.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.try_submit(bytes(data, length)?)?)))
        })
    }
}

/// Submits a batch; see chiplog_log_submit.
/// Ownership: all borrowed; `*ticket`: the caller's, to be closed. Any thread, many at once.
/// Errors: as chiplog_log_submit.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit_batch(&batch.batch)?)))
        })
    }
}

/// As chiplog_log_submit_batch, but never waits.
/// Ownership, threads: as there. Never blocks.
/// Errors: as there; BUSY when the queue is full.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let batch = handle_table::get::<Built>(batch)?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.try_submit_batch(&batch.batch)?)))
        })
    }
}

/// Submits `count` records, each from where it lies, as one batch; see chiplog_log_submit.
/// Ownership: all borrowed for the call; `*ticket`: the caller's, to be closed. Any thread, many at once.
/// Errors: as chiplog_log_submit; INVALID_ARGUMENT: no records.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let batch: Batch = batch_of(records, count)?.build()?;
            ticketed(ticket, || Ok(Asked::append(get(log)?.log.submit_batch(&batch)?)))
        })
    }
}

/// Whether the capacity has room for an append of so many bytes now, besides all that waits.
/// Ownership: borrowed. Any thread. Never blocks. Errors: FULL: it has not; POISONED, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_check_room(
    log: *const chiplog_log_t,
    bytes: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(log)?.log.check_room(bytes)) }
}

/// A reader of committed records that begins at `start` (CHIPLOG_START_...; `value`: its number, else 0).
/// Ownership: `log` borrowed for the call. `*reader`: the caller's, to be closed; it may outlive the log. Any thread.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, IO, CORRUPT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_reader(
    log: *const chiplog_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || reader::hand_out(reader, || get(log)?.log.reader(self::start(start, value)?))) }
}

/// One committed record, by its index: `*records` holds just that one.
/// Ownership: `log` borrowed. `*records`: the caller's, to be closed; it may outlive the log. Any thread, many at once.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, CORRUPT, IO, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_read(
    log: *const chiplog_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || records::hand_out_one(records, || get(log)?.log.read(index.into()))) }
}

/// Somebody has found the bytes of record `index` to be damaged in this directory. A replica of a cluster looks at its segment
/// at once, and repairs what it finds with what other replicas have; where there is none, it is counted and logged. Reads
/// report what they meet by themselves. A report of what is sound only costs a look.
/// Ownership: borrowed. Any thread. Blocks for the disk, not for the repair. Errors: DISCARDED, OUT_OF_RANGE, UNAVAILABLE,
/// CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_report_damage(
    log: *const chiplog_log_t,
    index: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(log)?.log.report_damage(index.into())) }
}

/// Discards all records below `first`, durably; their space is used again. At or below the first index nothing happens;
/// beyond the end the log is empty afterwards and goes on at `first`. Readers keep what they hold.
/// Ownership: borrowed. Any thread. Blocks. Errors: POISONED, CLOSED, FORKED, INVALID_ARGUMENT; NOT_LEADER of a follower's.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_discard(
    log: *mut chiplog_log_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(log)?.log.discard(first.into())) }
}

/// As chiplog_log_discard, and returns at once with a ticket; its answer means nothing more.
/// Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_discard(
    log: *mut chiplog_log_t,
    first: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || ticketed(ticket, || Ok(Asked::answer(get(log)?.log.submit_discard(first.into())?))))
    }
}

/// The options that the log was opened with, except for the clock. `options->size` has to be set.
/// Ownership: `log` borrowed; `options` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options(
    log: *const chiplog_log_t,
    options: *mut chiplog_log_options_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || fill(options, "options", options::shown(get(log)?.log.options()))) }
}

/// How the log stands now. `info->size` has to be set.
/// Ownership: `log` borrowed; `info` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_info(
    log: *const chiplog_log_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || fill(info, "info", self::info(&get(log)?.log.info()))) }
}

/// Waits until all that was committed anywhere when the call began can be read here, and tells the last record then:
/// `*last`; NULL: not wanted. Of a log on its own that is what is durable.
/// Ownership: borrowed. Any thread. Blocks. Errors: UNAVAILABLE, NOT_LEADER, POISONED, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    last: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(last, get(log)?.log.barrier(duration(timeout_ms))?.get());
            Ok(())
        })
    }
}

/// As chiplog_log_barrier, and returns at once: the ticket's `first` is the last record.
/// Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || Ok(Asked::answer(get(log)?.log.submit_barrier(duration(timeout_ms))?)))
        })
    }
}

/// Waits until record `index` can be read here, or is known to be discarded.
/// Ownership: borrowed. Any thread. Blocks. Errors: TIMEOUT, CLOSED, POISONED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_wait_for(
    log: *const chiplog_log_t,
    index: u64,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || get(log)?.log.wait_for(index.into(), duration(timeout_ms))) }
}

/// What the log did since it was opened. `stats->size` has to be set.
/// Ownership: `log` borrowed; `stats` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_stats(
    log: *const chiplog_log_t,
    stats: *mut chiplog_stats_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let now = get(log)?.log.stats();
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

/// What waits in the log now. `backlog->size` has to be set.
/// Ownership: `log` borrowed; `backlog` the caller's. Any thread. Never blocks for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_backlog(
    log: *const chiplog_log_t,
    backlog: *mut chiplog_backlog_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let now = get(log)?.log.backlog();
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

/// Why the log takes no more appends, if a write or a sync has failed: `*cause`, else NULL.
/// Ownership: `log` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_poison_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: the caller's word. One place cannot hold both.
        return unsafe { entry(error, || Err(invalid("cause and error are the same place"))) };
    }
    // SAFETY: the caller's word.
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

/// Why this replica does not take what the log holds, or may hold, while another one leads: no room on its disk (FULL, IO), segments
/// that are too small for what the leader sends (TOO_LARGE), options that do not go with the log's (INVALID_ARGUMENT): `*cause`,
/// else NULL.
/// Ownership: `log` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_shortage_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: the caller's word. One place cannot hold both.
        return unsafe { entry(error, || Err(invalid("cause and error are the same place"))) };
    }
    // SAFETY: the caller's word.
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

/// The log's directory, as it was given. NULL: `log` is no open log.
/// Ownership: `log` borrowed; the text is borrowed until the log is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_path(log: *const chiplog_log_t) -> *const c_char {
    plain(std::ptr::null(), || get(log).map_or(std::ptr::null(), |log| log.path.as_ptr()))
}

/// Opens an exactly-once session, durably.
/// Ownership: `log` borrowed for the call; `*session`: the caller's, to be closed. Any thread. Blocks.
/// Errors: TOO_MANY_SESSIONS, FULL, POISONED, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open_session(
    log: *mut chiplog_log_t,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let place = out(session, "session")?;
            place.write(handle_table::insert(Used::new(get(log)?.log.open_session()?))?);
            Ok(())
        })
    }
}

/// Takes a session up again, in this process or another one: `next` is the number that will be used next, from 1. To repeat
/// an append whose outcome is not known, use its number again. Whether the session is known is told by the first append.
/// Ownership: `log` borrowed for the call; `*session`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_resume_session(
    log: *mut chiplog_log_t,
    id: u64,
    next: u64,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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
