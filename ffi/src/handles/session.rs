//! Sessions: each append takes effect exactly once, even if it is repeated.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::values::{appended, bytes, chiplog_appended_t, duration, put};
use crate::handles::batch;
use crate::handles::batch::chiplog_builder_t;
use crate::handles::ticket::ticketed;
use crate::handles::ticket::{Asked, chiplog_ticket_t};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use chiplog::{Error, ErrorKind, Result, Session};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// The session behind a handle. None once it was ended.
pub(crate) struct Used(Mutex<Option<Session>>);

/// Appends that take effect exactly once and in order, even if they are repeated. To survive a crash, a program must
/// remember only the session's id and the number of the next append: see chiplog_log_resume_session. One thread at a
/// time, which preserves the order: other calls wait.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_session_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_session_t is Used, 8, "session");

impl Used {
    pub(crate) fn new(session: Session) -> Self {
        Self(Mutex::new(Some(session)))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(session) => work(session),
            None => Err(Error::new(ErrorKind::Closed, "the session was ended")),
        }
    }
}

fn get(session: *const chiplog_session_t) -> Result<handle_table::Pinned<Used>> {
    handle_table::get::<Used>(session)
}

/// Returns the session's permanent id. Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_id(
    session: *const chiplog_session_t,
    id: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(id, get(session)?.with(|session| Ok(session.id().get()))?);
            Ok(())
        })
    }
}

/// Returns the number that the next append gets. Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_next_sequence(
    session: *const chiplog_session_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(next, get(session)?.with(|session| Ok(session.next_sequence().get()))?);
            Ok(())
        })
    }
}

/// Appends one record, once, and blocks until it is durable. `*index` (may be NULL) is its index.
/// Ownership: all borrowed. One thread at a time. Blocks.
/// Errors: SEQUENCE_FORGOTTEN: the record IS IN THE LOG already, only its index is no longer known; the session has
/// moved to the next number. SESSION_EXPIRED, SEQUENCE_GAP, INVALID_ARGUMENT (number 0), and those of
/// chiplog_log_append.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let record = bytes(data, length)?;
            put(index, get(session)?.with(|session| session.append(record))?.get());
            Ok(())
        })
    }
}

/// Builds the batch with the session's next number, appends it, once, and blocks until it is durable. `*placed` (may
/// be NULL) is its position.
/// Ownership: all borrowed; the builder is empty afterwards. One thread at a time. Blocks.
/// Errors: as chiplog_session_append, and those of chiplog_builder_build.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let builder = batch::get(builder)?;
            let done = get(session)?.with(|session| session.append(&mut *builder.lock()))?;
            put(placed, appended(done));
            Ok(())
        })
    }
}

/// Submits one record and returns a ticket. Waits while the number of appends in flight equals the session's window.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: those of chiplog_log_submit: the record was not accepted, and the next append gets its number. The ticket
/// can hold those of chiplog_session_append.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let record = bytes(data, length)?;
            ticketed(ticket, || Ok(Asked::append(get(session)?.with(|session| session.submit(record))?)))
        })
    }
}

/// Builds the batch with the session's next number and submits it; see chiplog_session_submit.
/// Ownership: borrowed, the builder is empty afterwards; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: as chiplog_session_submit, and those of chiplog_builder_build.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            ticketed(ticket, || {
                let builder = batch::get(builder)?;
                let sent = get(session)?.with(|session| session.submit(&mut *builder.lock()))?;
                Ok(Asked::append(sent))
            })
        })
    }
}

/// As chiplog_session_submit, but waits for up to `patience_ms` for space in the session's window and in the log's
/// queue. 0: does not wait.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: as chiplog_session_submit; BUSY: no space in that time, the record was not accepted.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_within(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let (record, patience) = (bytes(data, length)?, duration(patience_ms));
            ticketed(ticket, || {
                Ok(Asked::append(get(session)?.with(|session| session.submit_within(record, patience))?))
            })
        })
    }
}

/// As chiplog_session_submit_batch, but waits for room as chiplog_session_submit_within does.
/// Ownership: borrowed; the builder is empty afterwards, or unchanged if the call fails; the caller owns `*ticket`
/// and must close it. One thread at a time.
/// Errors: as chiplog_session_submit_batch; BUSY: no space in that time.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch_within(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            ticketed(ticket, || {
                let (builder, patience) = (batch::get(builder)?, duration(patience_ms));
                let sent =
                    get(session)?.with(|session| session.submit_within(&mut *builder.lock(), patience))?;
                Ok(Asked::append(sent))
            })
        })
    }
}

/// Ends the session in the log, durably, once all appends in flight have an outcome: the log forgets the session. The
/// handle must still be closed.
/// Ownership: borrowed. One thread at a time. Blocks. Errors: FULL, POISONED, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_end(
    session: *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let used = get(session)?;
            let session = used.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            session
                .map_or_else(|| Err(Error::new(ErrorKind::Closed, "the session was ended")), Session::close)
        })
    }
}

/// Closes the handle. The session stays open in the log and can be resumed. Does nothing if it is NULL or already
/// closed.
/// Ownership: takes `session`. Any thread. Does not block for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_session_close(session: *mut chiplog_session_t) {
    plain((), || drop(handle_table::close::<Used>(session)));
}
