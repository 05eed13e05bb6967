//! Tickets: the outcome of an append or a command in flight, of the embedded log or of a producer.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::out;
use crate::abi::values::{
    Context, appended, chiplog_appended_t, chiplog_outcome_fn, one, put, tell, timeout,
};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_sigpipe;
use chiplog::{Error, ErrorKind, Index, Result, Ticket};
use chiplog_net::client::blocking::Delivery;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

/// The operation behind a ticket.
enum What {
    Append(Ticket),
    Answer(Ticket<Index>),
    Done(Ticket<()>),
    Delivery(Delivery),
}

/// The ticket behind a handle. None once a callback has it.
pub(crate) struct Asked(RwLock<Option<What>>);

/// An append or a command in flight. Many threads may use it at once. Closing it does not cancel the append: nothing
/// does.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_ticket_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_ticket_t is Asked, 5, "ticket");

impl Asked {
    pub(crate) fn append(ticket: impl Into<Ticket>) -> Self {
        Self(RwLock::new(Some(What::Append(ticket.into()))))
    }

    pub(crate) fn answer(answer: Ticket<Index>) -> Self {
        Self(RwLock::new(Some(What::Answer(answer))))
    }

    pub(crate) fn done(done: Ticket<()>) -> Self {
        Self(RwLock::new(Some(What::Done(done))))
    }

    pub(crate) fn delivery(delivery: Delivery) -> Self {
        Self(RwLock::new(Some(What::Delivery(delivery))))
    }

    fn with<T>(&self, ask: impl FnOnce(&What) -> Result<T>) -> Result<T> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Some(what) => ask(what),
            None => Err(Error::new(ErrorKind::Closed, "the ticket was given to a callback")),
        }
    }
}

/// The position of a command that has none.
fn nothing((): ()) -> chiplog_appended_t {
    one(Index(0))
}

impl What {
    fn poll(&self) -> Option<Result<chiplog_appended_t>> {
        match self {
            Self::Append(ticket) => Some(ticket.poll()?.map(appended)),
            Self::Answer(answer) => Some(answer.poll()?.map(one)),
            Self::Done(done) => Some(done.poll()?.map(nothing)),
            Self::Delivery(delivery) => Some(delivery.poll()?.map(one)),
        }
    }

    fn wait(&self, timeout_ms: u64) -> Result<chiplog_appended_t> {
        match (self, timeout(timeout_ms)) {
            (Self::Append(ticket), None) => ticket.wait().map(appended),
            (Self::Append(ticket), Some(limit)) => ticket.wait_timeout(limit).map(appended),
            (Self::Answer(answer), None) => answer.wait().map(one),
            (Self::Answer(answer), Some(limit)) => answer.wait_timeout(limit).map(one),
            (Self::Done(done), None) => done.wait().map(nothing),
            (Self::Done(done), Some(limit)) => done.wait_timeout(limit).map(nothing),
            (Self::Delivery(delivery), limit) => without_sigpipe(|| match limit {
                None => delivery.wait().map(one),
                Some(limit) => delivery.wait_timeout(limit).map(one),
            }),
        }
    }
}

/// Blocks until the append is durable or has failed, for up to `timeout_ms`; CHIPLOG_FOREVER means no limit. The
/// result can be read again. `*placed` (may be NULL) is the position.
/// Ownership: borrowed. Any thread, many at once. Blocks.
/// Errors: TIMEOUT: the append is still in flight and MAY STILL BECOME DURABLE: wait for this ticket again. Other
/// errors: see the function that returned the ticket, and for a producer's ticket chiplog_producer_submit.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_wait(
    ticket: *const chiplog_ticket_t,
    timeout_ms: u64,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(placed, handle_table::get::<Asked>(ticket)?.with(|what| what.wait(timeout_ms))?);
            Ok(())
        })
    }
}

/// Checks whether there is a result: `*done` is 1 or 0. If there is, returns its status, and `*placed` is the
/// position.
/// Ownership: borrowed. Any thread. Never blocks. Errors: as chiplog_ticket_wait, except TIMEOUT for waiting.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_poll(
    ticket: *const chiplog_ticket_t,
    done: *mut u8,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(done, 0);
            let Some(result) = handle_table::get::<Asked>(ticket)?.with(|what| Ok(what.poll()))? else {
                return Ok(());
            };
            put(done, 1);
            put(placed, result?);
            Ok(())
        })
    }
}

/// Calls `callback` once with the result: at once on this thread if it is known already, else on the log's writer
/// thread as soon as it is known. The log writes nothing else until the callback returns, so it should only pass the
/// result on. For a producer's record use chiplog_producer_send_with instead.
/// Ownership: takes `ticket` and closes it if the status is CHIPLOG_OK; `context` is borrowed until the callback was
/// called. Any thread. Blocks only while the callback runs.
/// Errors: BUSY: another thread waits for the ticket; INVALID_ARGUMENT; CLOSED, FORKED. On an error `callback` is not
/// called.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_on_complete(
    ticket: *mut chiplog_ticket_t,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if callback.is_none() {
                return Err(invalid("callback is NULL"));
            }
            let asked = handle_table::get::<Asked>(ticket)?;
            let what = {
                let busy = |_| {
                    Error::new(
                        ErrorKind::Busy,
                        "another thread waits for this ticket: only one of the two can have it",
                    )
                };
                let mut place = asked.0.try_write().map_err(busy)?;
                if let Some(What::Delivery(_)) = *place {
                    return Err(invalid(
                        "the ticket is of a producer's record: pass the callback to chiplog_producer_send_with instead",
                    ));
                }
                place.take()
            };
            drop(handle_table::close::<Asked>(ticket));
            match what {
                Some(What::Append(ticket)) => {
                    ticket.on_complete(move |result| tell(callback, context, result.map(appended)));
                }
                Some(What::Answer(answer)) => {
                    answer.on_complete(move |result| tell(callback, context, result.map(one)));
                }
                Some(What::Done(done)) => {
                    done.on_complete(move |result| tell(callback, context, result.map(nothing)));
                }
                _ => return Err(Error::new(ErrorKind::Closed, "the ticket was given to a callback")),
            }
            Ok(())
        })
    }
}

/// Closes a ticket; the append continues. Does nothing if it is NULL or already closed.
/// Ownership: takes `ticket`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_ticket_close(ticket: *mut chiplog_ticket_t) {
    plain((), || drop(handle_table::close::<Asked>(ticket)));
}

/// Hands out the ticket of a submitted operation.
///
/// # Safety
/// `ticket` is as [`out`] requires.
pub(crate) unsafe fn ticketed(
    ticket: *mut *mut chiplog_ticket_t,
    submit: impl FnOnce() -> Result<Asked>,
) -> Result<()> {
    // SAFETY: this function's condition.
    let place = unsafe { out(ticket, "ticket") }?;
    let handle = handle_table::insert(submit()?)?;
    // SAFETY: `out` checked the pointer.
    unsafe { place.write(handle) };
    Ok(())
}
