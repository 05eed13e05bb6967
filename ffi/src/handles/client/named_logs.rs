//! Named logs of servers: connected to, created, listed, sealed and deleted by any client of the servers.

use crate::abi::entry::{entry, entry_handle};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::pointers::{text, text_or_none};
use crate::handles::client::calls::chiplog_client_t;
use crate::handles::logs::info::{chiplog_log_info_fn, shown};
use crate::support::handle_table::get;
use crate::support::threads::without_sigpipe;
use std::ffi::{c_char, c_void};

/// Connects to another log of the same servers, with the same options; "" is the log "default". Such clients share one
/// thread, one connection to each server for calls, and those for appends. A reader has one of its own. A producer that
/// shares a connection ends its stream when it was idle for a second, and opens another one for its next record, which
/// takes a round trip more.
/// Ownership: `client`, `name` borrowed for the call; the caller owns `*of_log` and must close it; the clients can be
/// closed in any order. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: as chiplog_client_connect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_of_log(
    client: *const chiplog_client_t,
    name: *const c_char,
    of_log: *mut *mut chiplog_client_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, of_log, "of_log", || {
        let client = get(client)?;
        // SAFETY: the caller's duty, as documented.
        let name = unsafe { text(name, "name") }?;
        without_sigpipe(|| client.of_log(name))
    })
}

/// Creates a named log, and returns once it can be appended to. chiplog_client_of_log then connects to it. A name is 1
/// to 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with `/` and a partition's number.
/// `beside`: the name of a log in whose group it is created; NULL: the group with the fewest logs.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: as chiplog_client_info; ALREADY_EXISTS, also if the answer to a first attempt was lost; INVALID_ARGUMENT (the
/// name); NOT_FOUND (`beside`); FULL; UNSUPPORTED: the servers keep no named logs; PERMISSION_DENIED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_create_log(
    client: *const chiplog_client_t,
    name: *const c_char,
    beside: *const c_char,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        // SAFETY: the caller's duty, as documented.
        let (name, beside) = unsafe { (text(name, "name")?, text_or_none(beside, "beside")?) };
        without_sigpipe(|| match &*beside {
            "" => client.create_log(name).map(drop),
            other => client.create_log_beside(name, other).map(drop),
        })
    })
}

/// Deletes a named log with all its records. Its producers and readers get NOT_FOUND.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: NOT_FOUND, also if the answer to a first attempt was lost; otherwise as chiplog_client_create_log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_delete_log(
    client: *const chiplog_client_t,
    name: *const c_char,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        // SAFETY: the caller's duty, as documented.
        let name = unsafe { text(name, "name") }?;
        without_sigpipe(|| client.delete_log(name))
    })
}

/// Seals a named log: it takes no more appends, its records stay. Repeating the call does no harm.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: NOT_FOUND; otherwise as chiplog_client_create_log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_seal_log(
    client: *const chiplog_client_t,
    name: *const c_char,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        // SAFETY: the caller's duty, as documented.
        let name = unsafe { text(name, "name") }?;
        without_sigpipe(|| client.seal_log(name))
    })
}

/// Calls `callback` on this thread with each named log of the servers whose name begins with `prefix`, by name; NULL: all.
/// The state is as the leader of the catalogue knows it. The list is complete before the first call. The callback may call
/// any function.
/// Ownership: all borrowed for the call. Any thread. Blocks for up to the client's timeout_ms for each 1,000 logs, and
/// while the callback runs.
/// Errors: as chiplog_client_create_log; `callback` is not called then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_list_logs(
    client: *const chiplog_client_t,
    prefix: *const c_char,
    callback: chiplog_log_info_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
        let prefix = text_or_none(prefix, "prefix")?;
        let logs = without_sigpipe(|| client.list_logs(&prefix))?;
        logs.iter().map(shown).for_each(|info| callback(context, &raw const info));
        Ok(())
    })
}
