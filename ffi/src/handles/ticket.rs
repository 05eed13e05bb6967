//! Tickets: the outcome of an append or a command in flight, of the embedded log or of a producer.

use crate::abi::entry::{entry, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::pointers::put;
use crate::abi::values::{appended, chiplog_appended_t, chiplog_outcome_fn, nothing, one, outcome, timeout};
use crate::support::handle_table::{Opaque, get, handle, release};
use crate::support::threads::without_sigpipe;
use chiplog::{Appended, Error, ErrorKind, Index, Result, Ticket};
use chiplog_net::client::blocking::Delivery;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

/// The operation behind a ticket.
pub(crate) enum What {
    Append(Ticket),
    /// Of one record, or of a command with an answer.
    One(Ticket),
    Done(Ticket<()>),
    Delivery(Delivery),
}

/// The ticket behind a handle. None once a callback has it, and before it is filled.
#[derive(Default)]
pub(crate) struct Asked(RwLock<Option<What>>);

/// An append or a command in flight. Many threads may use it at once. Closing it does not cancel the append: nothing
/// does.
pub struct chiplog_ticket_t {
    _private: Opaque,
}

handle!(chiplog_ticket_t is Asked, 5, "ticket");

impl From<What> for Asked {
    fn from(what: What) -> Self {
        Self(RwLock::new(Some(what)))
    }
}

impl From<Ticket> for Asked {
    fn from(ticket: Ticket) -> Self {
        What::Append(ticket).into()
    }
}

impl From<Ticket<Index>> for Asked {
    fn from(ticket: Ticket<Index>) -> Self {
        What::One(ticket.into()).into()
    }
}

impl From<Ticket<()>> for Asked {
    fn from(ticket: Ticket<()>) -> Self {
        What::Done(ticket).into()
    }
}

impl From<Delivery> for Asked {
    fn from(delivery: Delivery) -> Self {
        What::Delivery(delivery).into()
    }
}

impl Asked {
    /// Sets the ticket of a handle that has none yet, and that the caller has not been given.
    pub(crate) fn fill(&self, ticket: Ticket) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(What::Append(ticket));
    }

    fn with<T>(&self, ask: impl FnOnce(&What) -> Result<T>) -> Result<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok_or_else(taken).and_then(ask)
    }

    /// Takes the operation for a callback.
    ///
    /// # Errors
    /// `Busy`, `InvalidArgument`: the ticket is unchanged.
    fn take(&self) -> Result<Option<What>> {
        let busy = |_| {
            let what = "another thread waits for this ticket: only one of the two can have it";
            Error::new(ErrorKind::Busy, what)
        };
        let mut place = self.0.try_write().map_err(busy)?;
        if let Some(What::Delivery(_)) = *place {
            return Err(invalid(
                "the ticket is of a producer's record: pass the callback to chiplog_producer_send_with instead",
            ));
        }
        Ok(place.take())
    }
}

fn taken() -> Error {
    Error::new(ErrorKind::Closed, "the ticket was given to a callback")
}

/// The position of a producer's record that is in the log.
fn acknowledged(delivery: &Delivery, index: Index) -> chiplog_appended_t {
    one(Appended { durability: delivery.durability(), ..Appended::new(index, 1) })
}

impl What {
    fn poll(&self) -> Option<Result<chiplog_appended_t>> {
        match self {
            Self::Append(ticket) => Some(ticket.poll()?.map(appended)),
            Self::One(ticket) => Some(ticket.poll()?.map(one)),
            Self::Done(ticket) => Some(ticket.poll()?.map(|()| nothing())),
            Self::Delivery(delivery) => Some(delivery.poll()?.map(|index| acknowledged(delivery, index))),
        }
    }

    fn wait(&self, timeout_ms: u64) -> Result<chiplog_appended_t> {
        match (self, timeout(timeout_ms)) {
            (Self::Append(ticket), None) => ticket.wait().map(appended),
            (Self::Append(ticket), Some(limit)) => ticket.wait_timeout(limit).map(appended),
            (Self::One(ticket), None) => ticket.wait().map(one),
            (Self::One(ticket), Some(limit)) => ticket.wait_timeout(limit).map(one),
            (Self::Done(ticket), None) => ticket.wait().map(|()| nothing()),
            (Self::Done(ticket), Some(limit)) => ticket.wait_timeout(limit).map(|()| nothing()),
            (Self::Delivery(delivery), limit) => without_sigpipe(|| {
                let index = match limit {
                    None => delivery.wait(),
                    Some(limit) => delivery.wait_timeout(limit),
                };
                index.map(|index| acknowledged(delivery, index))
            }),
        }
    }
}

/// Blocks until the append is durable or has failed, for up to `timeout_ms`; CHIPLOG_FOREVER means no limit. The
/// result can be read again. `*placed` (may be NULL) is the position, and says how durable the records are.
/// Ownership: borrowed. Any thread, many at once. Blocks.
/// Errors: TIMEOUT: the append is still in flight and MAY STILL BECOME DURABLE: wait for this ticket again. Other
/// errors: see the function that returned the ticket, and for a producer's ticket chiplog_producer_submit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_wait(
    ticket: *const chiplog_ticket_t,
    timeout_ms: u64,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, placed, || get(ticket)?.with(|what| what.wait(timeout_ms)))
}

/// Checks whether there is a result: `*done` is 1 or 0. If there is, returns its status, and `*placed` is the
/// position.
/// Ownership: borrowed. Any thread. Never blocks. Errors: as chiplog_ticket_wait, except TIMEOUT for waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_poll(
    ticket: *const chiplog_ticket_t,
    done: *mut u8,
    placed: *mut chiplog_appended_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        put(done, 0);
        if let Some(result) = get(ticket)?.with(|what| Ok(what.poll()))? {
            put(done, 1);
            put(placed, result?);
        }
        Ok(())
    })
}

/// Calls `callback` once with the result: at once on this thread if it is known already, else on the log's writer
/// thread as soon as it is known. The log writes nothing else until the callback returns, so it should only pass the
/// result on. For a producer's record use chiplog_producer_send_with instead.
/// Ownership: takes `ticket` and closes it if the status is CHIPLOG_OK; `context` is borrowed until the callback was
/// called. Any thread. Blocks only while the callback runs.
/// Errors: BUSY: another thread waits for the ticket; INVALID_ARGUMENT; CLOSED, FORKED. On an error `callback` is not
/// called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_ticket_on_complete(
    ticket: *mut chiplog_ticket_t,
    callback: chiplog_outcome_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let callback = outcome(callback, context)?;
        let what = get(ticket)?.take()?;
        release(ticket);
        match what {
            Some(What::Append(ticket)) => ticket.on_complete(|result| callback(result.map(appended))),
            Some(What::One(ticket)) => ticket.on_complete(|result| callback(result.map(one))),
            Some(What::Done(ticket)) => ticket.on_complete(|result| callback(result.map(|()| nothing()))),
            _ => return Err(taken()),
        }
        Ok(())
    })
}

/// Closes a ticket; the append continues. Does nothing if it is NULL or already closed.
/// Ownership: takes `ticket`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_ticket_close(ticket: *mut chiplog_ticket_t) {
    release(ticket);
}
