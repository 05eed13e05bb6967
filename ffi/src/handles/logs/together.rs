//! Appends to several named logs at once, all or none.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::array;
use crate::abi::values::{appended, chiplog_appended_t};
use crate::handles::batch::chiplog_batch_t;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::logs::calls::chiplog_logs_t;
use crate::support::handle_table::get;
use chiplog::{Batch, Log, Result};

/// A batch, and the named log that it is appended to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_append_t {
    /// The log.
    pub log: *mut chiplog_log_t,
    /// The batch.
    pub batch: *const chiplog_batch_t,
}

/// Appends `count` batches to named logs of one group, all of them or none, and blocks until they are durable. No crash
/// and no reader separates them. A log may occur more than once. `placed` (may be NULL) has room for `count` positions,
/// in the same order.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks; not in a callback on a thread
/// of the group.
/// Errors: INVALID_ARGUMENT: the logs are of different groups (see `beside` of chiplog_logs_create), a batch belongs to a
/// session, or in a callback; TOO_LARGE: together they exceed block_bytes_max; NOT_FOUND, SEALED: one of the logs takes no
/// appends; FULL, BUSY, CLOSED, FORKED: nothing was appended to any of them; POISONED: the outcome is unknown.
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
        let given = array(appends, count, "appends", "appends")?;
        let pinned = given.iter().map(|append| Ok((get(append.log)?, get(append.batch)?)));
        let pinned = pinned.collect::<Result<Vec<_>>>()?;
        let appends: Vec<(&Log, &Batch)> = pinned.iter().map(|(log, batch)| (&***log, &**batch)).collect();
        let done = logs.append_together(&appends)?;
        if !placed.is_null() {
            done.into_iter().enumerate().for_each(|(n, one)| placed.add(n).write(appended(one)));
        }
        Ok(())
    })
}
