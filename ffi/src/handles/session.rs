//! Sessions: appends that happen once each, however often they are tried.

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

/// A session as C holds it; None once it was ended.
pub(crate) struct Used(Mutex<Option<Session>>);

/// Appends that happen once each, in order, however often they are tried. Its id and the number of the next append are
/// all that has to be remembered over a crash: see chiplog_log_resume_session. One thread at a time, which is what keeps
/// the order: others wait meanwhile.
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

/// The session's name for ever. Ownership: borrowed. One thread at a time. Never blocks for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_id(
    session: *const chiplog_session_t,
    id: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(id, get(session)?.with(|session| Ok(session.id().get()))?);
            Ok(())
        })
    }
}

/// The number that the next append gets. Ownership: borrowed. One thread at a time. Never blocks for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_next_sequence(
    session: *const chiplog_session_t,
    next: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(next, get(session)?.with(|session| Ok(session.next_sequence().get()))?);
            Ok(())
        })
    }
}

/// Appends one record, once, and waits until it is durable. `*index`: where it stands; NULL: not wanted.
/// Ownership: all borrowed. One thread at a time. Blocks.
/// Errors: SEQUENCE_FORGOTTEN: the record IS IN THE LOG already, only where is forgotten; the session has gone on.
/// SESSION_EXPIRED, SEQUENCE_GAP, INVALID_ARGUMENT (number 0), and those of chiplog_log_append.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    index: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let record = bytes(data, length)?;
            put(index, get(session)?.with(|session| session.append(record))?.get());
            Ok(())
        })
    }
}

/// Builds the batch, stamped as the session's next, appends it, once, and waits until it is durable. `*placed`: NULL: not
/// wanted.
/// Ownership: all borrowed; the builder is empty afterwards. One thread at a time. Blocks.
/// Errors: as chiplog_session_append, and those of chiplog_builder_build.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_append_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let builder = batch::get(builder)?;
            let done = get(session)?.with(|session| session.append_batch(&mut builder.lock()))?;
            put(placed, appended(done));
            Ok(())
        })
    }
}

/// Submits one record and returns with a ticket. Waits while as many appends as the session's window allows are in flight.
/// Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. One thread at a time.
/// Errors: those of chiplog_log_submit: the record was not taken, and its number goes to the next append; the ticket can hold
/// those of chiplog_session_append.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let record = bytes(data, length)?;
            ticketed(ticket, || Ok(Asked::append(get(session)?.with(|session| session.submit(record))?)))
        })
    }
}

/// Builds the batch, stamped as the session's next, and submits it; see chiplog_session_submit.
/// Ownership: borrowed, the builder is empty afterwards; `*ticket`: the caller's, to be closed. One thread at a time.
/// Errors: as chiplog_session_submit, and those of chiplog_builder_build.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || {
                let builder = batch::get(builder)?;
                let sent = get(session)?.with(|session| session.submit_batch(&mut builder.lock()))?;
                Ok(Asked::append(sent))
            })
        })
    }
}

/// As chiplog_session_submit, but waits for room, in the session's window and in the log's queue, for at most `patience_ms`; 0:
/// not at all.
/// Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. One thread at a time.
/// Errors: as chiplog_session_submit; BUSY: no room in that time, the record was not taken.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_within(
    session: *mut chiplog_session_t,
    data: *const c_void,
    length: usize,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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
/// Ownership: borrowed, the builder is empty afterwards, or where this fails as it was; `*ticket`: the caller's, to be closed.
/// One thread at a time.
/// Errors: as chiplog_session_submit_batch; BUSY: no room in that time.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_submit_batch_within(
    session: *mut chiplog_session_t,
    builder: *mut chiplog_builder_t,
    patience_ms: u64,
    ticket: *mut *mut chiplog_ticket_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            ticketed(ticket, || {
                let (builder, patience) = (batch::get(builder)?, duration(patience_ms));
                let sent = get(session)?
                    .with(|session| session.submit_batch_within(&mut builder.lock(), patience))?;
                Ok(Asked::append(sent))
            })
        })
    }
}

/// Ends the session in the log, durably, once all in flight is answered: the log forgets it. The handle is still to be
/// closed.
/// Ownership: borrowed. One thread at a time. Blocks. Errors: FULL, POISONED, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_session_end(
    session: *mut chiplog_session_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let used = get(session)?;
            let session = used.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            session
                .map_or_else(|| Err(Error::new(ErrorKind::Closed, "the session was ended")), Session::close)
        })
    }
}

/// Closes the handle. The session goes on in the log, and can be taken up again. NULL, or one that was closed: nothing
/// happens.
/// Ownership: takes `session`. Any thread. Never blocks for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_session_close(session: *mut chiplog_session_t) {
    plain((), || drop(handle_table::close::<Used>(session)));
}
