//! Errors: status codes, which equal the error kinds of Rust and Python, and the error object with the details.

use crate::support::handle_table;
use crate::support::handle_table::{Opaque, handle, query, release};
use chiplog::{Error, ErrorKind};
use std::ffi::{CString, c_char};

/// The result of a call: 0 (CHIPLOG_OK), or the number of an error's kind. The numbers are the same in Rust and
/// Python and never change. Later versions may add more.
pub type chiplog_status_t = i32;

/// Success.
pub const CHIPLOG_OK: i32 = 0;
/// The operating system refused or failed a call.
pub const CHIPLOG_IO: i32 = 1;
/// Stored bytes fail their checksum or contradict each other. Nothing corrupt is ever served.
pub const CHIPLOG_CORRUPT: i32 = 2;
/// An earlier write or sync failed: the log refuses appends until it is opened again. Appends that were in flight
/// have an unknown outcome. Also a bug in chiplog itself; the message then says so.
pub const CHIPLOG_POISONED: i32 = 3;
/// The configured capacity or the disk is full. Nothing was written.
pub const CHIPLOG_FULL: i32 = 4;
/// The queue of waiting appends stayed at its limit for as long as the caller was willing to wait.
pub const CHIPLOG_BUSY: i32 = 5;
/// The time-out passed. A submitted append may still become durable. For a reader: there is nothing to read yet.
pub const CHIPLOG_TIMEOUT: i32 = 6;
/// The record is below the first index: it was discarded.
pub const CHIPLOG_DISCARDED: i32 = 7;
/// There is no such record yet.
pub const CHIPLOG_OUT_OF_RANGE: i32 = 8;
/// An argument or option is out of its bounds.
pub const CHIPLOG_INVALID_ARGUMENT: i32 = 9;
/// A record or batch exceeds its size limit.
pub const CHIPLOG_TOO_LARGE: i32 = 10;
/// Another handle or process has the directory open for writing.
pub const CHIPLOG_LOCKED: i32 = 11;
/// The handle was closed.
pub const CHIPLOG_CLOSED: i32 = 12;
/// The handle was made before fork() and used in the child.
pub const CHIPLOG_FORKED: i32 = 13;
/// There is no log at this path.
pub const CHIPLOG_NOT_FOUND: i32 = 14;
/// The files were written by a newer version of the format.
pub const CHIPLOG_UNSUPPORTED: i32 = 15;
/// The session is not known: it was never opened, was closed, or was idle for too long.
pub const CHIPLOG_SESSION_EXPIRED: i32 = 16;
/// A sequence number skips one or more that the log has not seen.
pub const CHIPLOG_SEQUENCE_GAP: i32 = 17;
/// The record IS IN THE LOG once, and durable; only its index is no longer known. Continue with the next number.
pub const CHIPLOG_SEQUENCE_FORGOTTEN: i32 = 18;
/// The log's limit of open sessions is reached.
pub const CHIPLOG_TOO_MANY_SESSIONS: i32 = 19;
/// This replica is not the leader, or this log is a follower's copy.
pub const CHIPLOG_NOT_LEADER: i32 = 20;
/// No majority, or no server, answered in time.
pub const CHIPLOG_UNAVAILABLE: i32 = 21;
/// This replica was removed from the cluster.
pub const CHIPLOG_REMOVED: i32 = 22;
/// This change of membership is not possible.
pub const CHIPLOG_MEMBERSHIP: i32 = 23;
/// Two logs have different contents: nothing that was sent was stored.
pub const CHIPLOG_DIVERGED: i32 = 24;
/// The server requires a token, and got none or an unknown one.
pub const CHIPLOG_UNAUTHENTICATED: i32 = 25;
/// The token's role does not allow this call.
pub const CHIPLOG_PERMISSION_DENIED: i32 = 26;
/// A batch in the log is as it was appended, but it cannot be decompressed. This is not damage.
/// chiplog_reader_skip_batch skips it.
pub const CHIPLOG_UNDECODABLE: i32 = 27;
/// chiplog_reader_cancel ended the call. Nothing was read and nothing is lost.
pub const CHIPLOG_CANCELLED: i32 = 28;
/// A log of this name exists already.
pub const CHIPLOG_ALREADY_EXISTS: i32 = 29;
/// The log is sealed: it takes no more appends. Its records can still be read.
pub const CHIPLOG_SEALED: i32 = 30;

/// An error that was handed out.
pub(crate) struct ErrorHandle {
    pub(crate) error: Error,
    message: CString,
}

/// An error: what went wrong, where, and what to do. The caller that receives it owns it. Immutable: many threads may
/// use it at once.
pub struct chiplog_error_t {
    _private: Opaque,
}

handle!(chiplog_error_t is ErrorHandle, 1, "error");

pub(crate) fn status(error: &Error) -> chiplog_status_t {
    // The numbers are small.
    error.kind().code() as i32
}

/// Returns an error that the caller owns, or NULL if the table of errors is full.
pub(crate) fn hand_out(error: &Error) -> *mut chiplog_error_t {
    let mut text = error.to_string().into_bytes();
    text.retain(|byte| *byte != 0);
    let message = CString::new(text).unwrap_or_default();
    handle_table::insert(ErrorHandle { error: error.clone(), message }).unwrap_or(std::ptr::null_mut())
}

/// Returns the kind of an error, which is never CHIPLOG_OK. CHIPLOG_INVALID_ARGUMENT if `error` is NULL or closed.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_status(error: *const chiplog_error_t) -> chiplog_status_t {
    query(error, CHIPLOG_INVALID_ARGUMENT, |handle| status(&handle.error))
}

/// Returns the message of an error, in UTF-8. It is for people: do not compare it. Never NULL; empty if `error` is
/// NULL or closed.
/// Ownership: `error` is borrowed; the text is valid until `error` is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_message(error: *const chiplog_error_t) -> *const c_char {
    query(error, c"".as_ptr(), |handle| handle.message.as_ptr())
}

/// Returns the operating system's error number if a system call failed, else 0.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_os_error(error: *const chiplog_error_t) -> i32 {
    query(error, 0, |handle| handle.error.os_error().unwrap_or(0))
}

/// Returns whether the same call can succeed later without a repair, once there is space or less load.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_is_retryable(error: *const chiplog_error_t) -> bool {
    query(error, false, |handle| handle.error.is_retryable())
}

/// Returns whether the handle that the call was made with can no longer append.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_is_fatal(error: *const chiplog_error_t) -> bool {
    query(error, false, |handle| handle.error.is_fatal())
}

/// Returns whether reading again does not help, as far as the replica knows: damage that cannot be repaired, because the
/// log has no other replica, or all other voters have damage in the same entries; or a record in an object store, at a
/// log that was opened without one. false while damage is being repaired, and for all other errors.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_is_lasting(error: *const chiplog_error_t) -> bool {
    query(error, false, |handle| handle.error.is_lasting())
}

/// Returns how long to wait before the call is made again, in milliseconds, if that is known: for a log that has used up
/// its quota, append_bytes_per_second, and for a record of which a copy has yet to learn which object has it. 0: unknown.
/// Ownership: `error` is borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_retry_after_ms(error: *const chiplog_error_t) -> u64 {
    query(error, 0, |handle| {
        let time = handle.error.retry_after().unwrap_or_default();
        u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
    })
}

/// Frees an error. Does nothing if it is NULL or already closed.
/// Ownership: takes `error`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_error_close(error: *mut chiplog_error_t) {
    release(error);
}

/// Returns the name of a status, such as "ok" or "out_of_range"; "unknown" for a number that this version does not
/// know.
/// Ownership: the text is valid for ever. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_status_name(status: chiplog_status_t) -> *const c_char {
    let name = match status {
        CHIPLOG_OK => c"ok",
        CHIPLOG_IO => c"io",
        CHIPLOG_CORRUPT => c"corrupt",
        CHIPLOG_POISONED => c"poisoned",
        CHIPLOG_FULL => c"full",
        CHIPLOG_BUSY => c"busy",
        CHIPLOG_TIMEOUT => c"timeout",
        CHIPLOG_DISCARDED => c"discarded",
        CHIPLOG_OUT_OF_RANGE => c"out_of_range",
        CHIPLOG_INVALID_ARGUMENT => c"invalid_argument",
        CHIPLOG_TOO_LARGE => c"too_large",
        CHIPLOG_LOCKED => c"locked",
        CHIPLOG_CLOSED => c"closed",
        CHIPLOG_FORKED => c"forked",
        CHIPLOG_NOT_FOUND => c"not_found",
        CHIPLOG_UNSUPPORTED => c"unsupported",
        CHIPLOG_SESSION_EXPIRED => c"session_expired",
        CHIPLOG_SEQUENCE_GAP => c"sequence_gap",
        CHIPLOG_SEQUENCE_FORGOTTEN => c"sequence_forgotten",
        CHIPLOG_TOO_MANY_SESSIONS => c"too_many_sessions",
        CHIPLOG_NOT_LEADER => c"not_leader",
        CHIPLOG_UNAVAILABLE => c"unavailable",
        CHIPLOG_REMOVED => c"removed",
        CHIPLOG_MEMBERSHIP => c"membership",
        CHIPLOG_DIVERGED => c"diverged",
        CHIPLOG_UNAUTHENTICATED => c"unauthenticated",
        CHIPLOG_PERMISSION_DENIED => c"permission_denied",
        CHIPLOG_UNDECODABLE => c"undecodable",
        CHIPLOG_CANCELLED => c"cancelled",
        CHIPLOG_ALREADY_EXISTS => c"already_exists",
        CHIPLOG_SEALED => c"sealed",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// An error about an argument.
pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

/// The text of an error about an argument, for tests.
#[cfg(test)]
pub(crate) fn said<T: std::fmt::Debug>(result: chiplog::Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    /// A kind that Rust has and C does not would be "unknown" here.
    #[test]
    fn every_kind_has_its_number_and_name() {
        let mut kinds = 0;
        for code in 1..1000 {
            let Some(kind) = ErrorKind::from_code(code) else { continue };
            let name = chiplog_status_name(code as i32);
            // SAFETY: the names are C strings that are never freed.
            assert_eq!(unsafe { CStr::from_ptr(name) }.to_str().unwrap(), kind.name());
            kinds += 1;
        }
        assert_eq!(kinds, CHIPLOG_SEALED);
    }

    #[test]
    fn an_open_error_has_a_message_and_a_closed_one_has_none() {
        let error = hand_out(&Error::new(ErrorKind::Full, "no\0room"));
        assert_eq!(chiplog_error_status(error), CHIPLOG_FULL);
        assert!(chiplog_error_is_retryable(error) && !chiplog_error_is_fatal(error));
        // SAFETY: the message of an open error.
        assert_eq!(unsafe { CStr::from_ptr(chiplog_error_message(error)) }, c"noroom");
        chiplog_error_close(error);
        chiplog_error_close(error);
        assert_eq!(chiplog_error_status(error), CHIPLOG_INVALID_ARGUMENT);
        assert_eq!(chiplog_error_status(std::ptr::null()), CHIPLOG_INVALID_ARGUMENT);
    }
}
