//! Appends to several named logs of servers at once, all or none.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::array;
use crate::abi::values::{appended, chiplog_appended_t};
use crate::handles::batch::chiplog_batch_t;
use crate::handles::client::calls::chiplog_client_t;
use crate::support::handle_table::get;
use crate::support::threads::without_sigpipe;
use chiplog::{Batch, Result};
use chiplog_net::client::blocking::Client;

/// A batch, and the named log of servers that it is appended to, as a client of that log.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_client_append_t {
    /// A client of the log: see chiplog_client_of_log.
    pub client: *const chiplog_client_t,
    /// The batch, of no session.
    pub batch: *const chiplog_batch_t,
}

/// Appends `count` batches, up to 256, to named logs of one group of the same servers, all of them or none, and blocks
/// until they are durable. No crash and no copy of the group separates them; readers of two of the logs can see one a
/// moment before the other. A log may occur more than once. `placed` (may be NULL) has room for `count` positions, in
/// the same order. The batches are appended at most once: while it is certain that they were not appended, the call is
/// repeated; an attempt without an outcome is not. Then wait some seconds, because a server can still have the request,
/// and read the ends of the logs: all batches are there, or none.
/// Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks for up to timeout_ms or
/// attempt_timeout_ms of the first client, whichever is longer; not in a callback on a client's thread.
/// Errors: UNAVAILABLE, TIMEOUT: it is unknown whether the batches were appended. INVALID_ARGUMENT: the logs are of different
/// groups (see `beside` of chiplog_client_create_log), one is no named log, a batch belongs to a session, or in a callback; TOO_LARGE:
/// too many, or more than one log or a block takes; NOT_FOUND, SEALED: one of the logs takes no appends; NOT_LEADER: no leader of the
/// group answered in time; BUSY, FULL; UNSUPPORTED: the leader runs an earlier version; CLOSED, FORKED,
/// UNAUTHENTICATED, PERMISSION_DENIED: nothing was appended to any of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_append_together(
    appends: *const chiplog_client_append_t,
    count: usize,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let given = array(appends, count, "appends", "appends")?;
        let pinned = given.iter().map(|append| Ok((get(append.client)?, get(append.batch)?)));
        let pinned = pinned.collect::<Result<Vec<_>>>()?;
        let appends: Vec<(&Client, &Batch)> =
            pinned.iter().map(|(client, batch)| (&**client, &**batch)).collect();
        let done = without_sigpipe(|| Client::append_together(&appends))?;
        if !placed.is_null() {
            done.into_iter().enumerate().for_each(|(n, one)| placed.add(n).write(appended(one)));
        }
        Ok(())
    })
}
