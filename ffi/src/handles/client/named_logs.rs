//! Named logs of servers: connected to, created, sealed and deleted by any client of the servers.

use crate::abi::entry::{entry, entry_handle};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::{text, text_or_none};
use crate::handles::client::calls::chiplog_client_t;
use crate::support::handle_table::get;
use crate::support::threads::without_sigpipe;
use std::ffi::c_char;

/// Connects to another log of the same servers, with the same options; "" is the log "default". Such clients share one
/// thread, and their connections: a server has at most connections_max of the options and one more, however many logs
/// there are. A producer that shares a connection ends its stream when it was idle for a second, and opens another one
/// for its next record, which takes a round trip more.
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

/// Creates a named log, and returns once it can be appended to. chiplog_client_of_log then connects to it. A name is 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with
/// `/` and a partition's number. `beside`: the name of a log in whose group it is created; NULL: the group with the fewest
/// logs.
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
