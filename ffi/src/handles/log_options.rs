//! Options of the log: limits that stand in the log, the same on every replica. Their names and units are those of the core's
//! `LogOption`.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::{duration, put, text};
use crate::handles::log::{Opened, chiplog_log_t};
use crate::handles::read_only::{Viewing, chiplog_read_only_log_t};
use crate::handles::ticket::ticketed;
use crate::handles::ticket::{Asked, chiplog_ticket_t};
use crate::support::handle_table;
use crate::support::panic_guard::plain;
use chiplog::{LogOption, LogOptions, Result};
use std::ffi::c_char;

/// An option of the log that is to be set, or to be set no more.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_log_option_t {
    /// Which: "retention_bytes", "retention_age" (ms), "capacity_bytes", "record_bytes_max", "sessions_max", "session_window"
    /// or "session_idle_max" (ms).
    pub name: *const c_char,
    /// Its value, in bytes, milliseconds or a count. UINT64_MAX: no limit, of the first three.
    pub value: u64,
    /// Whether it is to be set: 1, or 0: the log has it no more, and the leader's own holds.
    pub is_set: u8,
    /// Not used; 0.
    pub reserved: [u8; 7],
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn option(name: *const c_char) -> Result<LogOption> {
    // SAFETY: this function's condition.
    let name = unsafe { text(name, "name") }?;
    LogOption::from_name(name).ok_or_else(|| {
        let all = LogOption::ALL.map(LogOption::name).join(", ");
        invalid(format!("the log has no option {name:?}; it has {all}"))
    })
}

/// # Safety
/// `changes` is NULL or `count` changes, each with a C string or NULL as its name.
unsafe fn changes(
    changes: *const chiplog_log_option_t,
    count: usize,
) -> Result<Vec<(LogOption, Option<u64>)>> {
    if changes.is_null() || count == 0 || count > LogOption::ALL.len() {
        return Err(invalid(format!("changes: 1 to {} options of the log", LogOption::ALL.len())));
    }
    // SAFETY: this function's condition; so few are no more than memory can hold.
    let changes = unsafe { std::slice::from_raw_parts(changes, count) };
    let mut named: Vec<(LogOption, Option<u64>)> = Vec::with_capacity(count);
    for change in changes {
        // SAFETY: this function's condition.
        let option = unsafe { option(change.name) }?;
        if named.iter().any(|(other, _)| *other == option) {
            return Err(invalid(format!("changes: {option} is given twice")));
        }
        if change.is_set > 1 {
            return Err(invalid("changes: is_set is 1 or 0"));
        }
        named.push((option, (change.is_set == 1).then_some(change.value)));
    }
    Ok(named)
}

/// # Safety
/// Each place is NULL or one.
unsafe fn told(options: &LogOptions, option: LogOption, value: *mut u64, is_set: *mut u8) {
    let set = options.get(option);
    // SAFETY: this function's condition.
    unsafe {
        put(value, set.unwrap_or(0));
        put(is_set, set.is_some().into());
    }
}

/// An option that is set for the log, as far as this replica knows it committed: `*value`, and `*is_set`: 1, or 0: it is not
/// set, and the leader's own holds; the value is 0 then. `name`: as in chiplog_log_option_t. Either place may be NULL.
/// Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: the name; CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_log_option(
    log: *const chiplog_log_t,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let log = handle_table::get::<Opened>(log)?;
            told(&log.log.log_options(), option(name)?, value, is_set);
            Ok(())
        })
    }
}

/// Sets options of the log, or has them set no more, on the leader; those that are not named stay as they are. Waits until
/// that is committed: whichever replica leads then goes by them. Members are waited for as long as `timeout_ms` that have to
/// say that they know options of the log.
/// Ownership: all borrowed for the call. Any thread. Blocks. Errors: INVALID_ARGUMENT: an option, its value or its bounds;
/// UNSUPPORTED: a member of an earlier version; NOT_LEADER, REMOVED, FULL, BUSY: nothing was changed; UNAVAILABLE: it may or may
/// not come about; POISONED, CLOSED, FORKED. To ask again does no harm.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_set_log_options(
    log: *mut chiplog_log_t,
    changes: *const chiplog_log_option_t,
    count: usize,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let changes = self::changes(changes, count)?;
            handle_table::get::<Opened>(log)?.log.set_log_options(&changes, duration(timeout_ms))
        })
    }
}

/// As chiplog_log_set_log_options, and returns at once with a ticket; its answer means nothing more.
/// Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_submit_set_log_options(
    log: *mut chiplog_log_t,
    changes: *const chiplog_log_option_t,
    count: usize,
    timeout_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let changes = self::changes(changes, count)?;
            let log = handle_table::get::<Opened>(log)?;
            ticketed(ticket, || {
                Ok(Asked::answer(log.log.submit_set_log_options(&changes, duration(timeout_ms))?))
            })
        })
    }
}

/// The largest record that the log takes, in bytes: the log's option, or where that is not set what it was opened with. 0: `log`
/// is no open log.
/// Ownership: `log` borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_record_bytes_max(log: *const chiplog_log_t) -> u32 {
    plain(0, || handle_table::get::<Opened>(log).map_or(0, |log| log.log.record_bytes_max()))
}

/// How many of a session's latest batches are remembered: as chiplog_log_record_bytes_max. 0: `log` is no open log.
/// Ownership: `log` borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_session_window(log: *const chiplog_log_t) -> u16 {
    plain(0, || handle_table::get::<Opened>(log).map_or(0, |log| log.log.session_window()))
}

/// As chiplog_log_log_option, of a log that is looked at from outside.
/// Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: the name; CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_log_option(
    read_only: *const chiplog_read_only_log_t,
    name: *const c_char,
    value: *mut u64,
    is_set: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let read_only = handle_table::get::<Viewing>(read_only)?;
            told(&read_only.0.log_options(), option(name)?, value, is_set);
            Ok(())
        })
    }
}
