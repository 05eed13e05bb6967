//! Options of a log of servers: limits that are stored in the log, and hold whichever server leads.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::values::duration;
use crate::handles::client::calls::chiplog_client_t;
use crate::handles::log::log_options::{changes, chiplog_log_option_t, show};
use crate::support::handle_table::get;
use crate::support::threads::without_sigpipe;
use std::ffi::c_char;

/// Returns an option of the log, as its leader knows it. `*is_set` is 1 and `*value` its value; or `*is_set` and `*value`
/// are 0: the option is not set, and the leader's own applies. `name` is as in chiplog_log_option_t. `value` and `is_set`
/// may be NULL.
/// Ownership: all borrowed for the call. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: as chiplog_client_info; INVALID_ARGUMENT: an unknown name; UNSUPPORTED: the log has an option that this library
/// does not know; PERMISSION_DENIED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_log_option(
    client: *const chiplog_client_t,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        let options = without_sigpipe(|| client.log_options())?;
        show(&options, name, value, is_set)
    })
}

/// Sets or unsets options of the log: all changes at once, or none. Options that are not named do not change. Waits until
/// the change is committed: from then on each leader uses it. A limit of retention below what the log holds discards records
/// at once, for good. `timeout_ms`, 1 to 600,000: how long the leader waits for members that have not yet confirmed that
/// they support options of the log. A named log has some options of its own, see chiplog_log_option_t; the others are set
/// by a client of its group, whose option `log` is "_group-1" and so on.
/// Ownership: all borrowed for the call. Any thread. Blocks for up to `timeout_ms` and 5 s, or for the client's timeout_ms if
/// that is longer.
/// Errors: INVALID_ARGUMENT: an option, its value or its bounds; UNSUPPORTED: a member runs an earlier version; NOT_FOUND:
/// the log was deleted; PERMISSION_DENIED; as chiplog_client_info. After TIMEOUT and UNAVAILABLE the change may or may not
/// take effect. Repeating the call does no harm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_set_log_options(
    client: *const chiplog_client_t,
    changes: *const chiplog_log_option_t,
    count: usize,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let (client, changes) = (get(client)?, self::changes(changes, count)?);
        without_sigpipe(|| client.set_log_options(&changes, duration(timeout_ms)))
    })
}
