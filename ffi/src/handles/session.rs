//! Sessions: each append takes effect exactly once, even if it is repeated.

use crate::abi::entry::{entry, entry_handle, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::bytes;
use crate::abi::values::{appended, chiplog_appended_t, duration};
use crate::handles::batch::chiplog_builder_t;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::ticket::chiplog_ticket_t;
use crate::support::handle_table::{Opaque, get, handle, release};
use crate::support::panic_guard::lock;
use chiplog::{Error, ErrorKind, Index, Result, Session};
use std::ffi::c_void;
use std::sync::Mutex;

/// The session behind a handle. None once it was ended.
pub(crate) struct Used(Mutex<Option<Session>>);

impl From<Session> for Used {
    fn from(session: Session) -> Self {
        Self(Mutex::new(Some(session)))
    }
}

impl Used {
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        lock(&self.0).as_mut().ok_or_else(ended).and_then(work)
    }

    /// Ends the session in the log. Not under the lock: a callback of the log's that asks for the session would wait for
    /// this, and this for the callback. The session is back here if it fails.
    fn end(&self) -> Result<()> {
        let mut session = lock(&self.0).take().ok_or_else(ended)?;
        session.close().inspect_err(|_| *lock(&self.0) = Some(session))
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the session was ended")
}

/// Appends that take effect exactly once and in order, even if they are repeated. To survive a crash, a program must
/// remember only the session's id and the number of the next append: see chiplog_log_resume_session. One thread at a
/// time, which preserves the order: other calls wait.
pub struct chiplog_session_t {
    _private: Opaque,
}

handle!(chiplog_session_t is Used, 8, "session");

/// Opens an exactly-once session, durably.
/// Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Blocks.
/// Errors: TOO_MANY_SESSIONS, FULL, POISONED, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_open_session(
    log: *mut chiplog_log_t,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, session, "session", || get(log)?.open_session())
}

/// Resumes a session, in this process or another one. `next` is the number that the next append gets, from 1. To
/// repeat an append whose outcome is unknown, use its number again. The first append reports whether the log still
/// knows the session.
/// Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_resume_session(
    log: *mut chiplog_log_t,
    id: u64,
    next: u64,
    session: *mut *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, session, "session", || Ok(get(log)?.resume_session(id.into(), next.into())))
}

/// Returns the session's permanent id. Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_id(
    session: *const chiplog_session_t,
    id: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, id, || get(session)?.with(|session| Ok(session.id().get())))
}

/// Returns the number that the next append gets. Ownership: borrowed. One thread at a time. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_next_sequence(
    session: *const chiplog_session_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, next, || get(session)?.with(|session| Ok(session.next_sequence().get())))
}

/// Appends one record, once, and blocks until it is durable. `*index` (may be NULL) is its index.
/// Ownership: all borrowed. One thread at a time. Blocks.
/// Errors: SEQUENCE_FORGOTTEN: the record IS IN THE LOG already, only its index is no longer known; the session has
/// moved to the next number. SESSION_EXPIRED, SEQUENCE_GAP, INVALID_ARGUMENT (number 0), and those of
/// chiplog_log_append.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, index, || {
        let record = bytes(data, length)?;
        get(session)?.with(|session| session.append(record)).map(Index::get)
    })
}

/// Builds the batch with the session's next number, appends it, once, and blocks until it is durable. `*placed` (may
/// be NULL) is its position.
/// Ownership: all borrowed; the builder is empty afterwards. One thread at a time. Blocks.
/// Errors: as chiplog_session_append, and those of chiplog_builder_build.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, placed, || {
        let builder = get(builder)?;
        get(session)?.with(|session| session.append(&mut *lock(&builder))).map(appended)
    })
}

/// Submits one record and returns a ticket. Waits while the number of appends in flight equals the session's window.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: those of chiplog_log_submit: the record was not accepted, and the next append gets its number. The ticket
/// can hold those of chiplog_session_append.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let record = bytes(data, length)?;
        get(session)?.with(|session| session.submit(record))
    })
}

/// Builds the batch with the session's next number and submits it; see chiplog_session_submit.
/// Ownership: borrowed, the builder is empty afterwards; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: as chiplog_session_submit, and those of chiplog_builder_build.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let builder = get(builder)?;
        get(session)?.with(|session| session.submit(&mut *lock(&builder)))
    })
}

/// As chiplog_session_submit, but never waits.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time. Never
/// blocks.
/// Errors: as chiplog_session_submit; BUSY: no space, the record was not accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_try_submit(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let record = bytes(data, length)?;
        get(session)?.with(|session| session.try_submit(record))
    })
}

/// As chiplog_session_submit_batch, but never waits.
/// Ownership: borrowed; the builder is empty afterwards, or unchanged if the call fails; the caller owns `*ticket`
/// and must close it. One thread at a time. Never blocks, except for compression.
/// Errors: as chiplog_session_submit_batch; BUSY: no space, the batch was not accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_try_submit_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let builder = get(builder)?;
        get(session)?.with(|session| session.try_submit(&mut *lock(&builder)))
    })
}

/// As chiplog_session_submit, but waits for up to `patience_ms` for space in the session's window and in the log's
/// queue. 0: does not wait.
/// Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
/// Errors: as chiplog_session_submit; BUSY: no space in that time, the record was not accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_within(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let (record, patience) = (bytes(data, length)?, duration(patience_ms));
        get(session)?.with(|session| session.submit_within(record, patience))
    })
}

/// As chiplog_session_submit_batch, but waits for room as chiplog_session_submit_within does.
/// Ownership: borrowed; the builder is empty afterwards, or unchanged if the call fails; the caller owns `*ticket`
/// and must close it. One thread at a time.
/// Errors: as chiplog_session_submit_batch; BUSY: no space in that time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch_within(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, ticket, "ticket", || {
        let (builder, patience) = (get(builder)?, duration(patience_ms));
        get(session)?.with(|session| session.submit_within(&mut *lock(&builder), patience))
    })
}

/// Ends the session in the log, durably, once all appends in flight have an outcome: the log forgets the session. The
/// handle must still be closed. If the call fails, the session may be open in the log: call it again.
/// Ownership: borrowed. One thread at a time. Blocks.
/// Errors: FULL, BUSY, POISONED, CLOSED (of the log, or the session was ended), FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_end(
    session: *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(session)?.end())
}

/// Closes the handle. The session stays open in the log and can be resumed. Does nothing if it is NULL or already
/// closed.
/// Ownership: takes `session`. Any thread. Does not block for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_session_close(session: *mut chiplog_session_t) {
    release(session);
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::{Log, Options};

    /// The second call said that the session was ended, and it stayed open in the log.
    #[test]
    fn session_whose_end_failed_can_be_ended_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        let used = Used::from(log.open_session().unwrap());
        log.close().unwrap();
        for _ in 0..2 {
            let failed = used.end().unwrap_err();
            assert_ne!(failed.to_string(), ended().to_string());
            used.with(|_| Ok(())).unwrap();
        }
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        let used = Used::from(log.open_session().unwrap());
        used.end().unwrap();
        assert_eq!(used.end().unwrap_err().to_string(), ended().to_string());
    }
}
