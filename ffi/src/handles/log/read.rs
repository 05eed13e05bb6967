//! Reading an embedded log: readers, single records, waits for records, reports of damage.

use crate::abi::entry::{entry, entry_handle, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::records::chiplog_records_t;
use crate::abi::values;
use crate::abi::values::duration;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::reader::state::chiplog_reader_t;
use crate::handles::ticket::chiplog_ticket_t;
use crate::support::handle_table::get;
use chiplog::Index;

/// Opens a reader of committed records that begins at `start` (CHIPLOG_START_...; `value`: its number, else 0).
/// Ownership: `log` borrowed for the call. The caller owns `*reader` and must close it; it may outlive the log. Any
/// thread.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, IO, CORRUPT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_reader(
    log: *const chiplog_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, reader, "reader", || get(log)?.reader(values::start(start, value)?))
}

/// Reads one committed record by its index: `*records` holds only that one.
/// Ownership: `log` borrowed. The caller owns `*records` and must close it; it may outlive the log. Any thread, many
/// at once.
/// Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, CORRUPT, IO, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_read(
    log: *const chiplog_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, records, "records", || get(log)?.read(index.into()))
}

/// Sets `*index` to the first record in this replica's files; in an empty log, to the index of the next append. Those before it, from
/// first_index on, are in the object store: reads fetch them from there.
/// Ownership: borrowed. Any thread. Blocks for the disk if the log is one of several named ones. Errors: CORRUPT, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_first_local_index(
    log: *const chiplog_log_t,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, index, || get(log)?.first_local_index().map(Index::get))
}

/// Blocks until all records that were committed anywhere when the call began can be read here. `*last` (may be NULL)
/// is then the last record. On a log on its own, all durable records count as committed.
/// Ownership: borrowed. Any thread. Blocks. Errors: UNAVAILABLE, NOT_LEADER, POISONED, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    last: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, last, || get(log)?.barrier(duration(timeout_ms)).map(Index::get))
}

/// As chiplog_log_barrier, but returns at once: the `first` of the ticket's result is the last record.
/// Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
/// same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_barrier(
    log: *const chiplog_log_t,
    timeout_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.submit_barrier(duration(timeout_ms)))
}

/// Blocks until record `index` can be read here, or is known to be discarded.
/// Ownership: borrowed. Any thread. Blocks. Errors: TIMEOUT, CLOSED, POISONED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_wait_for(
    log: *const chiplog_log_t,
    index: u64,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(log)?.wait_for(index.into(), duration(timeout_ms)))
}

/// Reports that the bytes of record `index` are damaged in this directory. A replica of a cluster scrubs the segment
/// at once and repairs the damage from other replicas. A log on its own only counts and logs the damage. Reads report
/// damage by themselves. A report about a sound record costs only the scrub.
/// Ownership: borrowed. Any thread. Blocks for the disk, not for the repair. Errors: DISCARDED, OUT_OF_RANGE,
/// UNAVAILABLE, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_report_damage(
    log: *const chiplog_log_t,
    index: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(log)?.report_damage(index.into()))
}
