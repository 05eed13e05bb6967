//! A directory of named logs: opening it, creating, finding and ending logs.

use crate::abi::entry::{entry, entry_handle, entry_struct};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::pointers::{path, text, text_or_none};
use crate::handles::log::open::{Opened, chiplog_log_t};
use crate::handles::logs::info::{chiplog_log_info_fn, chiplog_log_info_t, shown};
use crate::handles::logs::options;
use crate::handles::logs::options::chiplog_logs_options_t;
use crate::support::handle_table;
use crate::support::handle_table::{Opaque, get, handle};
use crate::support::threads::without_signals;
use chiplog::Logs;
use std::ffi::{c_char, c_void};

/// Many named logs in one directory. Each is a chiplog_log_t with indexes from 1, readers, sessions and discards of its
/// own. Logs are kept in groups; those of a group share its threads, writes and syncs. Many threads may use it at once.
/// Close it with chiplog_logs_close. In a forked child each call returns CHIPLOG_FORKED.
pub struct chiplog_logs_t {
    _private: Opaque,
}

handle!(chiplog_logs_t is Logs, 14, "directory of logs");

/// Opens the named logs in `directory`, or makes the directory if the options say so. A directory holds named logs, or
/// one log on its own. `options` may be NULL for the defaults.
/// Ownership: `directory` and `options` are borrowed for the call, the clock's context until the logs are closed. The
/// caller owns `*logs` and must close it. Any thread. Blocks while recovery reads the last segment of each group.
/// Errors: as chiplog_log_open; INVALID_ARGUMENT, too, if the directory holds one log on its own; DIVERGED: a group's
/// directory was replaced by another one, is there twice, or is in one of the options' directories that cannot be used now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_open(
    directory: *const c_char,
    options: *const chiplog_logs_options_t,
    logs: *mut *mut chiplog_logs_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, logs, "logs", || {
        let (directory, options) = (path(directory, "directory")?, options::read(options)?);
        without_signals(|| Logs::open(directory, options))
    })
}

/// Creates a log, durably. A name is 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can
/// end with `/` and a partition's number. `beside`: the name of a log in whose group it is created, so that both can be
/// appended to together; NULL or empty: the group with the fewest logs.
/// `*log` works with all functions of a log. chiplog_log_path, chiplog_log_options, chiplog_log_metrics and the fields of
/// chiplog_log_status other than log_id and the indexes are those of its group.
/// Ownership: `logs` and the texts borrowed; the caller owns `*log` and must close it. That closes only the handle; `*log`
/// can be closed before `logs` or after it. Any thread. Blocks; not in a callback on a thread of the logs.
/// Errors: ALREADY_EXISTS; INVALID_ARGUMENT (the name; in a callback); NOT_FOUND (`beside`); FULL, also if the group has no
/// room for more logs; BUSY, POISONED, CLOSED, FORKED. Repeating the call does no harm: a log that was created is then
/// reported as existing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_create(
    logs: *mut chiplog_logs_t,
    name: *const c_char,
    beside: *const c_char,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, log, "log", || {
        let (name, beside) = (text(name, "name")?, text_or_none(beside, "beside")?);
        let logs = get(logs)?;
        let created = if beside.is_empty() { logs.create(name) } else { logs.create_beside(name, &beside) };
        Ok(Opened::new(created?, false))
    })
}

/// Returns the log of this name. See chiplog_logs_create.
/// Ownership: `logs` and `name` borrowed; the caller owns `*log` and must close it, which closes only the handle. Any
/// thread. Blocks only for the disk.
/// Errors: NOT_FOUND; CORRUPT, IO: the files; INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_get(
    logs: *const chiplog_logs_t,
    name: *const c_char,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, log, "log", || {
        let name = text(name, "name")?;
        Ok(Opened::new(get(logs)?.get(name)?, false))
    })
}

/// Deletes a log with all its records, durably. Its handles return CHIPLOG_NOT_FOUND from then on, and so do
/// its readers behind the last record; records that were read stay valid. A new log can have the name.
/// Ownership: borrowed. Any thread. Blocks; not in a callback on a thread of the logs.
/// Errors: NOT_FOUND; INVALID_ARGUMENT (in a callback); UNAVAILABLE: it is deleted, and its group drops its records later;
/// FULL, BUSY, POISONED, CLOSED, FORKED. Repeating the call does no harm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_delete(
    logs: *mut chiplog_logs_t,
    name: *const c_char,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let name = text(name, "name")?;
        get(logs)?.delete(name)
    })
}

/// Seals a log, durably: it takes no more appends, which fail with CHIPLOG_SEALED; its records stay.
/// Ownership: borrowed. Any thread. Blocks; not in a callback on a thread of the logs. Errors: as chiplog_logs_delete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_seal(
    logs: *mut chiplog_logs_t,
    name: *const c_char,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let name = text(name, "name")?;
        get(logs)?.seal(name)
    })
}

/// Calls `callback` on this thread with up to `limit` logs, by name: those whose names begin with `prefix` and come after
/// the name `after`, which need not exist. Both may be NULL: all names, from the first. For the next page pass the last
/// name of this one as `after`. The callback may call functions of the logs.
/// Ownership: all borrowed for the call. Any thread. Blocks for the disk, and while the callback runs.
/// Errors: INVALID_ARGUMENT; CORRUPT, IO: the files; CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_list(
    logs: *const chiplog_logs_t,
    prefix: *const c_char,
    after: *const c_char,
    limit: usize,
    callback: chiplog_log_info_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
        let (prefix, after) = (text_or_none(prefix, "prefix")?, text_or_none(after, "after")?);
        let page = get(logs)?.list_after(&prefix, &after, limit)?;
        page.iter().map(shown).for_each(|info| callback(context, &raw const info));
        Ok(())
    })
}

/// Returns the state of one log. Set `info->size` first.
/// Ownership: `logs` and `name` borrowed; the caller owns `info`. Any thread. Blocks only for the disk.
/// Errors: NOT_FOUND; CORRUPT, IO: the files; INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_info(
    logs: *const chiplog_logs_t,
    name: *const c_char,
    info: *mut chiplog_log_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, info, "info", || {
        let name = text(name, "name")?;
        Ok(shown(&get(logs)?.info(name)?))
    })
}

/// Closes all logs: ends appending, writes what was submitted, makes it durable, unlocks the directory, and closes the
/// handle, whatever the status. Handles of the logs stay open until they are closed; their appends return
/// CHIPLOG_CLOSED. Readers and the records they returned stay valid.
/// Ownership: takes `logs`; NULL: CHIPLOG_OK. Any thread, also while other threads append: their appends are completed
/// first. Blocks for the disk. In a callback on a thread of a group, that group closes after the callback.
/// Errors: POISONED: an earlier write or sync failed, and some appends have an unknown outcome; CLOSED: it is already
/// closed; FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_close(
    logs: *mut chiplog_logs_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || if logs.is_null() { Ok(()) } else { handle_table::close(logs)?.close() })
}
