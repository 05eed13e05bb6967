//! The handle of an embedded log: open and close.

use crate::abi::entry::{entry, entry_handle};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::path;
use crate::handles::log::options;
use crate::handles::log::options::chiplog_log_options_t;
use crate::support::handle_table;
use crate::support::handle_table::{Opaque, handle, query};
use crate::support::threads::without_signals;
use chiplog::Log;
use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// The log behind a handle.
pub(crate) struct Opened {
    log: Log,
    /// The text of `chiplog_log_path`.
    path: CString,
    /// Whether closing the handle closes the log. false for a follower's log and for a named one.
    is_own: bool,
}

impl Opened {
    pub(crate) fn new(log: Log, is_own: bool) -> Self {
        let path = CString::new(log.path().as_os_str().as_bytes()).unwrap_or_default();
        Self { log, path, is_own }
    }
}

impl Deref for Opened {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

/// A durable log in a directory. Many threads may use it at once. Close it with chiplog_log_close. In a forked child
/// each call returns CHIPLOG_FORKED.
pub struct chiplog_log_t {
    _private: Opaque,
}

handle!(chiplog_log_t is Opened, 2, "log");

/// Opens the log in `directory`, or creates it if the options say so. `options` may be NULL for the defaults.
/// Ownership: `directory` and `options` are borrowed for the call, the clock's context until the log is closed. The
/// caller owns `*log` and must close it. Any thread. Blocks while recovery reads the last segment.
/// Errors: LOCKED, NOT_FOUND, INVALID_ARGUMENT, CORRUPT (the message names file and offset), UNSUPPORTED, IO, FULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open(
    directory: *const c_char,
    options: *const chiplog_log_options_t,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, log, "log", || {
        let (directory, options) = (path(directory, "directory")?, options::read(options)?);
        Ok(Opened::new(without_signals(|| Log::open(directory, options))?, true))
    })
}

/// Ends appending, writes what was submitted, makes it durable, unlocks the directory, and closes the handle,
/// whatever the status. Readers and the records they returned stay valid. For a follower's log (chiplog_follower_log) and
/// for a named log (chiplog_logs_create, chiplog_logs_get) this closes only the handle.
/// Ownership: takes `log`; NULL: CHIPLOG_OK. Any thread, also while other threads append: their appends are completed
/// first. Blocks for the disk, except in a callback on the thread of this or another log: there the log closes later.
/// Errors: POISONED: an earlier write or sync failed, and some appends have an unknown outcome; CLOSED: it is already
/// closed; FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_close(
    log: *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        if log.is_null() {
            return Ok(());
        }
        let opened = handle_table::close(log)?;
        if opened.is_own { opened.log.close() } else { Ok(()) }
    })
}

/// Returns the log's directory, as the caller gave it; for a named log that of its group. NULL if `log` is not an open log.
/// Ownership: `log` borrowed; the text is borrowed until the log is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_log_path(log: *const chiplog_log_t) -> *const c_char {
    query(log, ptr::null(), |log| log.path.as_ptr())
}
