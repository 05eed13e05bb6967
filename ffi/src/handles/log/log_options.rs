//! Options of the log: limits that are stored in the log and equal on every replica. Their names and units are those
//! of the core's `LogOption`.

use crate::abi::entry::{entry, entry_handle};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::pointers::{put, text};
use crate::abi::values::duration;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::read_only::chiplog_read_only_log_t;
use crate::handles::ticket::chiplog_ticket_t;
use crate::support::handle_table::{get, query};
use chiplog::{LogOption, LogOptions, Result};
use std::ffi::c_char;

/// An option of the log to set or to unset.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_log_option_t {
    /// The name: "retention_bytes", "retention_age" (ms), "capacity_bytes", "record_bytes_max", "sessions_max",
    /// "session_window", "session_idle_max" (ms), "append_bytes_per_second", "object_bytes", "object_age" (ms),
    /// "payload_slices" (1 or 0) or "object_rows". A named log has "retention_bytes", "retention_age",
    /// "capacity_bytes", "record_bytes_max", "sessions_max", "session_idle_max" and "append_bytes_per_second" of its own; the others
    /// are set for its group.
    /// Once "object_bytes" is set, the log has objects, and it cannot be unset. A log with an object store sets it itself.
    /// Nor can "payload_slices" be unset: set it to 0 instead; nor "object_rows".
    pub name: *const c_char,
    /// The value, in bytes, milliseconds or a count. UINT64_MAX means no limit, for the first three options,
    /// "append_bytes_per_second" and "object_age".
    pub value: u64,
    /// 1 sets the option. 0 unsets it: the leader's own option applies then.
    pub is_set: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 7],
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn option(name: *const c_char) -> Result<LogOption> {
    let name = text(name, "name")?;
    LogOption::from_name(name).ok_or_else(|| {
        let all = LogOption::ALL.map(LogOption::name).join(", ");
        invalid(format!("the log has no option {name:?}; its options are {all}"))
    })
}

/// # Safety
/// `changes` is NULL or points to `count` changes, whose names are C strings or NULL.
pub(crate) unsafe fn changes(
    changes: *const chiplog_log_option_t,
    count: usize,
) -> Result<Vec<(LogOption, Option<u64>)>> {
    if changes.is_null() || count == 0 || count > LogOption::ALL.len() {
        return Err(invalid(format!("changes must hold 1 to {} options of the log", LogOption::ALL.len())));
    }
    let changes = std::slice::from_raw_parts(changes, count); // so few fit in memory
    let mut named: Vec<(LogOption, Option<u64>)> = Vec::with_capacity(count);
    for change in changes {
        let option = option(change.name)?;
        if named.iter().any(|(other, _)| *other == option) {
            return Err(invalid(format!("changes name {option} twice: name it once")));
        }
        if change.is_set > 1 {
            return Err(invalid("changes: is_set must be 0 or 1"));
        }
        named.push((option, (change.is_set == 1).then_some(change.value)));
    }
    Ok(named)
}

/// Writes an option's value, and whether it is set.
///
/// # Safety
/// Each pointer is NULL or valid.
pub(crate) unsafe fn show(
    options: &LogOptions,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
) -> Result<()> {
    let set = options.get(option(name)?);
    put(value, set.unwrap_or(0));
    put(is_set, set.is_some().into());
    Ok(())
}

/// Returns an option of the log, as far as this replica knows it committed. `*is_set` is 1 and `*value` its value; or
/// `*is_set` and `*value` are 0: the option is not set, and the leader's own applies. `name` is as in
/// chiplog_log_option_t. `value` and `is_set` may be NULL.
/// Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: an unknown name; CLOSED,
/// FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_log_option(
    log: *const chiplog_log_t,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || show(&get(log)?.log_options(), name, value, is_set))
}

/// Sets or unsets options of the log, on the leader. Options that are not named do not change. Waits until the change
/// is committed: from then on each leader uses it. Waits up to `timeout_ms` for members that have not yet confirmed
/// that they support options of the log.
/// Ownership: all borrowed for the call. Any thread. Blocks. Errors: INVALID_ARGUMENT: an option, its value or its
/// bounds; UNSUPPORTED: a member runs an earlier version; NOT_LEADER, REMOVED, FULL, BUSY: nothing was changed;
/// UNAVAILABLE: the change may or may not take effect; POISONED, CLOSED, FORKED. Repeating the call does no harm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_set_log_options(
    log: *mut chiplog_log_t,
    changes: *const chiplog_log_option_t,
    count: usize,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let changes = self::changes(changes, count)?;
        get(log)?.set_log_options(&changes, duration(timeout_ms))
    })
}

/// As chiplog_log_set_log_options, but returns at once with a ticket. The ticket's answer has no further meaning.
/// Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
/// same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_set_log_options(
    log: *mut chiplog_log_t,
    changes: *const chiplog_log_option_t,
    count: usize,
    timeout_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let changes = self::changes(changes, count)?;
        get(log)?.submit_set_log_options(&changes, duration(timeout_ms))
    })
}

/// Returns the largest record that the log accepts, in bytes: the log's option, or the option it was opened with if
/// that is not set. 0 if `log` is not an open log.
/// Ownership: `log` borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_record_bytes_max(log: *const chiplog_log_t) -> u32 {
    query(log, 0, |log| log.record_bytes_max())
}

/// Returns how many of a session's latest batches the log remembers, from the same options as
/// chiplog_log_record_bytes_max. 0 if `log` is not an open log.
/// Ownership: `log` borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_session_window(log: *const chiplog_log_t) -> u16 {
    query(log, 0, |log| log.session_window())
}

/// As chiplog_log_log_option, for a read-only log.
/// Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: an unknown name; CLOSED,
/// FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_log_option(
    read_only: *const chiplog_read_only_log_t,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || show(&get(read_only)?.log_options(), name, value, is_set))
}
