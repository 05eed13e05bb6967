//! Tickets: appends in flight, to wait for, to await, or with a callback.

pub(crate) mod callbacks;

use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::runtime::asyncio_bridge::drive_result;
use crate::runtime::fork::Own;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{Durability, Error, ErrorKind, Index, Result};
use chiplog_net::client::Delivery;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use std::future::Future;
use tokio::runtime::Handle;

/// An append in flight: gives the index of its first record, to any number of callers, also by `await`.
///
/// Made by `submit` and similar calls. Any thread may use it. `await ticket` gives the index, and raises what
/// `wait` does; a cancelled task does not affect the append. If a producer's record fails and its ticket is neither
/// waited for nor awaited, the failure counts as not reported: `flush` and `close` of the producer, or the end of
/// the program, report it.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Ticket {
    way: Own<Way>,
}

enum Way {
    /// Of a log in this process: many wait with one system call.
    Local(chiplog::Ticket),
    /// Of servers, within their runtime. Only a caller that reads the result takes it: the producer reports a
    /// failed record whose result was not read.
    Remote(Delivery, Handle),
    /// A log's answer to a command.
    Answer(Shared<BoxFuture<'static, Result<Index>>>),
}

impl Ticket {
    pub(crate) fn local(ticket: chiplog::Ticket) -> PyResult<Self> {
        Self::on(Way::Local(ticket))
    }

    pub(crate) fn remote(delivery: Delivery, runtime: Handle) -> PyResult<Self> {
        Self::on(Way::Remote(delivery, runtime))
    }

    pub(crate) fn answer(answer: impl Future<Output = Result<Index>> + Send + 'static) -> PyResult<Self> {
        Self::on(Way::Answer(answer.boxed().shared()))
    }

    fn on(way: Way) -> PyResult<Self> {
        Ok(Self { way: Own::new(way).map_err(raise)? })
    }

    fn way(&self) -> PyResult<&Way> {
        self.way.get().map_err(raise)
    }
}

/// Waits for an append to a log in this process.
pub(crate) fn settle(py: Python<'_>, ticket: &chiplog::Ticket, limit: &Limit) -> PyResult<u64> {
    let what = "the append, which may still become durable, had no outcome";
    let settled = wait::sliced(py, limit, what, |slice| {
        let waited = ticket.wait_timeout(slice);
        // Later polls return the append's own outcome, never the end of the slice.
        match (waited, ticket.poll()) {
            (Err(_), None) => Err(Error::new(ErrorKind::Timeout, "not yet")),
            (Err(_), Some(settled)) => Ok(settled),
            (settled, _) => Ok(settled),
        }
    })?;
    settled.map(|appended| appended.first.get()).map_err(raise)
}

/// Waits for an append over the network.
fn wait_for(
    py: Python<'_>,
    limit: &Limit,
    runtime: Option<&Handle>,
    index: impl Future<Output = Result<Index>> + Send,
) -> PyResult<u64> {
    let late = || {
        let what = "the record was not acknowledged in time; it may still be appended";
        raise(Error::new(ErrorKind::Timeout, what))
    };
    let got = wait::block_on(py, limit, runtime, index)?;
    got.ok_or_else(late)?.map(Index::get).map_err(raise)
}

/// Starts to wait for an index on the running event loop.
pub(crate) fn drive_index(
    py: Python<'_>,
    runtime: Option<Handle>,
    index: impl Future<Output = Result<Index>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    drive_result(py, runtime, index, |py, index| Ok(index.get().into_pyobject(py)?.into_any().unbind()))
}

#[pymethods]
impl Ticket {
    /// Waits until the append is in the log. Returns the index of its first record, from 1.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. The append
    /// continues, and can be waited for again.
    ///
    /// Raises `TimeoutError`, `UnavailableError`, `PoisonedError`, `ClosedError`: the append MAY STILL BE STORED,
    /// or be in the log: if you append it again, it can be there twice. `SequenceForgottenError`: it IS in the log.
    /// `FullError`, `BusyError`, `TooLargeError`, `TooManySessionsError`, `SessionExpiredError`,
    /// `SequenceGapError`: it is certainly not in the log. `InvalidArgumentError`, `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = Limit::new(timeout)?;
        match self.way()? {
            Way::Local(ticket) => settle(py, ticket, &limit),
            Way::Remote(delivery, runtime) => wait_for(py, &limit, Some(runtime), delivery.clone()),
            Way::Answer(answer) => wait_for(py, &limit, None, answer.clone()),
        }
    }

    /// Returns whether it has an outcome, success or failure. `wait` returns which.
    ///
    /// Does not block.
    fn done(&self) -> PyResult<bool> {
        Ok(match self.way()? {
            Way::Local(ticket) => ticket.poll().is_some(),
            Way::Remote(delivery, _) => delivery.settled().now_or_never().is_some(),
            // Polled once: before a caller waits, there is no other way to know.
            Way::Answer(answer) => answer.clone().now_or_never().is_some(),
        })
    }

    /// How durable the append was when it was acknowledged: "majority", "majority+slices" or "object". None: it has
    /// no outcome yet, it has failed, it is a command, or the server is of an earlier version and does not tell.
    ///
    /// "majority": on stable storage at a majority of the voters. "majority+slices": the same, and soon after in the
    /// object store, too. "object": in the object store, and a reference to it at a majority. In a log that has or had
    /// the class "object", the payload of the first two can be in the object store alone, and a reference at a majority.
    /// Does not block.
    #[getter]
    fn durability(&self) -> PyResult<Option<&'static str>> {
        let durability = match self.way()? {
            Way::Local(ticket) => ticket.durability(),
            Way::Remote(delivery, _) => delivery.durability(),
            Way::Answer(_) => None,
        };
        Ok(durability.map(Durability::name))
    }

    /// Calls `fn(ticket)` once it has an outcome, success or failure. Returns None.
    ///
    /// If it has one already, calls it at once on this thread. Otherwise a thread of the package calls it; that
    /// thread calls all callbacks of the process, one after the other. A callback may append and wait; a slow one
    /// delays other callbacks, never the log. `close()` of the log completes its tickets; their callbacks may still
    /// be running when it returns. Exceptions of a callback go to `sys.unraisablehook`. At the end of the program
    /// the callbacks that are due are called, and no others. A forked child calls none of its parent's.
    ///
    /// Does not block, except while `fn` runs. Raises `TypeError`: `fn` is not callable.
    fn add_done_callback(slf: Bound<'_, Self>, r#fn: Bound<'_, PyAny>) -> PyResult<()> {
        let (ticket, function) = (slf.get(), r#fn);
        if !function.is_callable() {
            return Err(PyTypeError::new_err("fn must be callable with the ticket"));
        }
        if ticket.done()? {
            return match callbacks::call(&slf, &function) {
                Err(error) if error.is_instance_of::<PyException>(slf.py()) => {
                    error.write_unraisable(slf.py(), Some(&function));
                    Ok(())
                }
                called => called, // a BaseException such as Ctrl-C ends more than the callback
            };
        }
        match ticket.way()? {
            Way::Local(local) => callbacks::once_settled(&slf, function, None, local.clone()),
            Way::Remote(delivery, runtime) => {
                callbacks::once_settled(&slf, function, Some(runtime.clone()), delivery.settled())
            }
            Way::Answer(answer) => callbacks::once_settled(&slf, function, None, answer.clone()),
        }
    }

    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let promise = match self.way()? {
            Way::Local(ticket) => {
                let twin = ticket.clone();
                drive_index(py, None, async move { twin.await.map(|appended| appended.first) })?
            }
            Way::Remote(delivery, runtime) => drive_index(py, Some(runtime.clone()), delivery.clone())?,
            Way::Answer(answer) => drive_index(py, None, answer.clone())?,
        };
        promise.bind(py).call_method0("__await__")
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("ticket", "index"))
    }
}
