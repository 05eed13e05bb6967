//! Changes of an embedded log: appends and discards.

use crate::abi::entry::{entry, entry_handle, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::{bytes, slices};
use crate::abi::values::{appended, chiplog_appended_t, chiplog_slice_t};
use crate::handles::batch::chiplog_batch_t;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::ticket::chiplog_ticket_t;
use crate::support::handle_table::get;
use chiplog::{Batch, BatchBuilder, Index, Result};
use std::ffi::c_void;

/// Builds a batch of the caller's slices.
///
/// # Safety
/// As [`slices`].
unsafe fn batch_of(records: *const chiplog_slice_t, count: usize) -> Result<Batch> {
    let mut builder = BatchBuilder::new();
    for record in slices(records, count, "records")? {
        builder.push(record)?;
    }
    builder.build()
}

/// Appends one record and blocks until it is durable. `*index` (may be NULL) is its index. To learn how durable
/// it is, wait for a ticket of chiplog_log_submit instead.
/// Ownership: all borrowed. Any thread, many at once: they share writes and syncs. Blocks.
/// Errors: TOO_LARGE, FULL, BUSY, CLOSED, FORKED: the record is not in the log; POISONED: the outcome is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, index, || get(log)?.append(bytes(data, length)?).map(Index::get))
}

/// Appends a batch, all of it or nothing, and blocks until it is durable. `*placed` (may be NULL) is its position.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; for a batch with a session also SESSION_EXPIRED, SEQUENCE_GAP, SEQUENCE_FORGOTTEN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, placed, || get(log)?.append(&*get(batch)?).map(appended))
}

/// Appends `count` records as one batch, each directly from the caller's memory, and blocks until they are durable:
/// all or none. `*placed` (may be NULL) is their position.
/// Ownership: all borrowed. Any thread, many at once. Blocks.
/// Errors: as chiplog_log_append; INVALID_ARGUMENT: no records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_append_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, placed, || get(log)?.append(&batch_of(records, count)?).map(appended))
}

/// Submits one record, which is copied, and returns a ticket for the outcome. Waits only while the queue is full, for
/// up to the option queue_timeout_ms.
/// Ownership: `data` borrowed for the call. The caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: TOO_LARGE, FULL, BUSY, POISONED, CLOSED, FORKED: the record was not accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.submit(bytes(data, length)?))
}

/// As chiplog_log_submit, but never waits.
/// Ownership and threads as chiplog_log_submit. Never blocks.
/// Errors: the same; BUSY if the queue is full.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit(
    log: *mut chiplog_log_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.try_submit(bytes(data, length)?))
}

/// Submits a batch; see chiplog_log_submit.
/// Ownership: all borrowed; the caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: as chiplog_log_submit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.submit(&*get(batch)?))
}

/// As chiplog_log_submit_batch, but never waits.
/// Ownership and threads as chiplog_log_submit_batch. Never blocks.
/// Errors: the same; BUSY if the queue is full.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_try_submit_batch(
    log: *mut chiplog_log_t,
    batch: *const chiplog_batch_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.try_submit(&*get(batch)?))
}

/// Submits `count` records as one batch, each directly from the caller's memory; see chiplog_log_submit.
/// Ownership: all borrowed for the call; the caller owns `*ticket` and must close it. Any thread, many at once.
/// Errors: as chiplog_log_submit; INVALID_ARGUMENT: no records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_records(
    log: *mut chiplog_log_t,
    records: *const chiplog_slice_t,
    count: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.submit(&batch_of(records, count)?))
}

/// Checks whether the capacity has space for an append of this many bytes now, in addition to all waiting appends.
/// Ownership: borrowed. Any thread. Never blocks. Errors: FULL: there is not enough space; POISONED, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_check_room(
    log: *const chiplog_log_t,
    bytes: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(log)?.check_room(bytes))
}

/// Discards all records below `first`, durably; their space is reused. Does nothing if `first` is at or below the
/// first index. If it is beyond the end, the log becomes empty and continues at `first`. Readers keep the records
/// they hold.
/// Ownership: borrowed. Any thread. Blocks. Errors: POISONED, CLOSED, FORKED, INVALID_ARGUMENT; NOT_LEADER for a
/// follower's log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_discard(
    log: *mut chiplog_log_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(log)?.discard(first.into()))
}

/// As chiplog_log_discard, but returns at once with a ticket. The ticket's answer has no further meaning.
/// Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
/// same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_discard(
    log: *mut chiplog_log_t,
    first: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || get(log)?.submit_discard(first.into()))
}
