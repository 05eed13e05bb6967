//! Appends to several named logs at once, all or none.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::{array, out};
use crate::abi::values::{appended, chiplog_appended_t};
use crate::handles::batch::chiplog_batch_t;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::logs::calls::chiplog_logs_t;
use crate::handles::ticket::{Asked, chiplog_ticket_t};
use crate::support::handle_table::{get, insert, release};
use chiplog::{Batch, Log, Logs, Result, Ticket};
use std::ptr;

/// A batch, and the named log that it is appended to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_append_t {
    /// The log.
    pub log: *mut chiplog_log_t,
    /// The batch.
    pub batch: *const chiplog_batch_t,
}

/// A submission of batches that are appended together.
type Submit = fn(&Logs, &[(&Log, &Batch)]) -> Result<Vec<Ticket>>;

/// Passes the caller's array to `call`.
///
/// # Safety
/// As [`array`].
unsafe fn together<T>(
    appends: *const chiplog_append_t,
    count: usize,
    call: impl FnOnce(&[(&Log, &Batch)]) -> Result<T>,
) -> Result<T> {
    let given = array(appends, count, "appends", "appends")?;
    let pinned = given.iter().map(|append| Ok((get(append.log)?, get(append.batch)?)));
    let pinned = pinned.collect::<Result<Vec<_>>>()?;
    let appends: Vec<(&Log, &Batch)> = pinned.iter().map(|(log, batch)| (&***log, &**batch)).collect();
    call(&appends)
}

/// Submits batches, and writes a ticket for each to `tickets`. The handles are made before: once the batches are accepted, nothing
/// fails.
///
/// # Safety
/// As [`array`]; `tickets` has room for as many pointers.
unsafe fn submit(
    logs: *mut chiplog_logs_t,
    appends: *const chiplog_append_t,
    count: usize,
    tickets: *mut *mut chiplog_ticket_t,
    submit: Submit,
) -> Result<()> {
    let logs = get(logs)?;
    if count > 0 {
        out(tickets, "tickets")?;
    }
    together(appends, count, |appends| {
        (0..count).for_each(|n| tickets.add(n).write(ptr::null_mut()));
        let handles = Handles::new(count)?;
        let submitted = submit(&logs, appends)?;
        for (n, (handle, ticket)) in handles.keep().into_iter().zip(submitted).enumerate() {
            get(handle)?.fill(ticket);
            tickets.add(n).write(handle);
        }
        Ok(())
    })
}

/// Handles without a ticket, which are closed again unless they are kept.
struct Handles(Vec<*mut chiplog_ticket_t>);

impl Handles {
    fn new(count: usize) -> Result<Self> {
        let mut handles = Self(Vec::new());
        for _ in 0..count {
            handles.0.push(insert::<chiplog_ticket_t>(Asked::default())?);
        }
        Ok(handles)
    }

    fn keep(mut self) -> Vec<*mut chiplog_ticket_t> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.0.iter().for_each(|handle| release(*handle));
    }
}

/// Appends `count` batches to named logs of one group, all of them or none, and blocks until they are durable. No crash
/// and no copy of the group separates them; readers of two of the logs can see one a moment before the other. A log may
/// occur more than once. `placed` (may be NULL) has room for `count` positions, in the same order.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks; not in a callback on a thread
/// of the group.
/// Errors: INVALID_ARGUMENT: the logs are not of `logs` or of different groups (see `beside` of chiplog_logs_create), a
/// batch belongs to a session, or in a callback; TOO_LARGE: together they exceed block_bytes_max; NOT_FOUND, SEALED: one
/// of the logs takes no appends; FULL, BUSY, CLOSED, FORKED: nothing was appended to any of them; POISONED: the outcome
/// is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_append_together(
    logs: *mut chiplog_logs_t,
    appends: *const chiplog_append_t,
    count: usize,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let logs = get(logs)?;
        let done = together(appends, count, |appends| logs.append_together(appends))?;
        if !placed.is_null() {
            done.into_iter().enumerate().for_each(|(n, one)| placed.add(n).write(appended(one)));
        }
        Ok(())
    })
}

/// Submits `count` batches that are appended together, and returns a ticket for the outcome of each: see
/// chiplog_logs_append_together and chiplog_log_submit. `tickets` has room for `count` tickets, in the same order. All of
/// them have the same outcome, at the same time. Waits only while the queue of the group is full or one of the logs has
/// used up its rate, for up to the option queue_timeout_ms; not in a callback on a thread of the group.
/// Ownership: all borrowed for the call; a batch can be appended again. The caller owns the tickets and must close each; if the
/// call fails, there are none. Any thread, many at once.
/// Errors: those of chiplog_logs_append_together, except in a callback: nothing was accepted. NOT_FOUND, SEALED and POISONED
/// come from each ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_submit_together(
    logs: *mut chiplog_logs_t,
    appends: *const chiplog_append_t,
    count: usize,
    tickets: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || submit(logs, appends, count, tickets, Logs::submit_together))
}

/// As chiplog_logs_submit_together, but never waits.
/// Ownership and threads as chiplog_logs_submit_together. Never blocks.
/// Errors: the same; BUSY if the queue is full or one of the logs has used up its rate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_try_submit_together(
    logs: *mut chiplog_logs_t,
    appends: *const chiplog_append_t,
    count: usize,
    tickets: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || submit(logs, appends, count, tickets, Logs::try_submit_together))
}
