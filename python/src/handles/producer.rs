//! Appends over the network.

use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::convert::input;
use crate::convert::input::{BatchLimit, Input};
use crate::convert::values;
use crate::handles::ticket::{Ticket, drive_index};
use crate::handles::unsent;
use crate::handles::unsent::LiveProducer;
use crate::runtime::asyncio_bridge::{Finish, drive, drive_result, none, ready};
use crate::runtime::fork::Own;
use crate::runtime::unraised;
use crate::runtime::unraised::ReportBy;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{Error, ErrorKind, Index};
use chiplog_net::client;
use chiplog_net::client::{Closed, Delivery};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Appends records to servers: collects them into batches, and sends again after a failure. Made by
/// `Client.producer`.
///
/// The producer sends a record again by itself until it is acknowledged or `ProducerOptions.delivery_timeout` has
/// passed. With `exactly_once`, the default, it is stored once. If the program sends it again, that is another
/// record: after a `TimeoutError`, `UnavailableError` or `ClosedError` the first may be in the log, and both can
/// end up there. To send a record again safely, also after a restart, use `ProducerOptions.session` and
/// `submit_batch`.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. The end of a `with` or
/// `async with` closes it, waits up to 30 seconds, and raises the reason if a record is not in the log, as `close`
/// does. If an exception ends the block, a note on the exception and a `ResourceWarning` report how many records
/// are not.
///
/// A producer that is dropped without being closed, with records in flight, sends them in the background and issues
/// a `ResourceWarning` with their number. When the program ends, records in flight are sent for up to
/// `ProducerOptions.exit_timeout` seconds. The number of those not acknowledged by then is written to stderr. A
/// process that is killed, or ends by `os._exit`, reports nothing.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Producer {
    live: Own<Arc<LiveProducer>>,
    runtime: Handle,
}

/// How long the end of a `with` waits for records in flight: as long as `close` does.
const CLOSE: f64 = 30.0;

impl Producer {
    /// `exit_timeout`: how long it continues to send when the program ends.
    pub(crate) fn new(
        py: Python<'_>,
        producer: client::Producer,
        runtime: Handle,
        exit_timeout: Duration,
    ) -> PyResult<Self> {
        Ok(Self { live: unsent::enter(py, producer, runtime.clone(), exit_timeout)?, runtime })
    }

    fn live(&self) -> PyResult<&Arc<LiveProducer>> {
        self.live.get().map_err(raise)
    }

    fn producer(&self) -> PyResult<&client::Producer> {
        Ok(&self.live()?.producer)
    }

    fn wait<T: Send>(&self, py: Python<'_>, call: impl Future<Output = T> + Send) -> PyResult<T> {
        wait::to_the_end(py, Some(&self.runtime), call)
    }

    /// Sends records as one batch. Returns the delivery of the first one's index.
    fn batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<Delivery> {
        let producer = self.producer()?;
        let option = "option batch_bytes of the producer, or the limit of the servers,";
        let records = input::records(records, BatchLimit { bytes: producer.batch_bytes_max(), option })?;
        let slices = input::slices(&records);
        self.wait(py, producer.append_batch(&slices))?.map_err(raise)
    }
}

#[pymethods]
impl Producer {
    /// Buffers a record. Returns None. `flush` and `close` report whether it is in the log.
    ///
    /// `record`: bytes or an object with a buffer, up to the limit of the servers. Blocks while there is no space,
    /// for up to `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `BusyError` (no space in that time), `TooLargeError`, `ClosedError`, `TypeError`, or the error that
    /// ended the producer: the record was not accepted.
    fn send(&self, py: Python<'_>, record: Input<'_>) -> PyResult<()> {
        let (producer, record) = (self.producer()?, record.as_slice());
        match py.detach(|| producer.try_send(record)) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.wait(py, producer.send(record))?.map_err(raise)
            }
            done => done.map_err(raise),
        }
    }

    /// As `send`, with `record`, but raises `BusyError` if there is no space.
    ///
    /// Does not block. Raises what `send` does: the record was not accepted.
    fn try_send(&self, py: Python<'_>, record: Input<'_>) -> PyResult<()> {
        let (producer, record) = (self.producer()?, record.as_slice());
        py.detach(|| producer.try_send(record)).map_err(raise)
    }

    /// Appends a record and waits until it is in the log. Returns its index, from 1.
    ///
    /// `record`: bytes or an object with a buffer, up to the limit of the servers. `timeout`: seconds, from 0;
    /// None: no limit. Waits for space for up to `ProducerOptions.block_max` seconds, and for the record for up to
    /// `ProducerOptions.delivery_timeout`. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`, `ClosedError`: the record MAY STILL BE APPENDED (after this
    /// `timeout`, or Ctrl-C, the producer continues to send it); if you append it again, it can be there twice.
    /// `SequenceForgottenError`: it IS in the log. `BusyError`, `FullError`, `TooManySessionsError`,
    /// `TooLargeError`, `TypeError`, `InvalidArgumentError` (an argument): it is certainly not in the log.
    #[pyo3(signature = (record, timeout=None))]
    fn append(&self, py: Python<'_>, record: Input<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let (producer, record) = (self.producer()?, record.as_slice());
        let appended = async { producer.append(record).await?.await };
        let got = wait::block_on(py, &Limit::new(timeout)?, Some(&self.runtime), appended)?;
        let late = || {
            let what = "the record was not acknowledged in time; it may still be appended";
            raise(Error::new(ErrorKind::Timeout, what))
        };
        got.ok_or_else(late)?.map(Index::get).map_err(raise)
    }

    /// Buffers a record. Returns a `Ticket` for its index.
    ///
    /// `record`: bytes or an object with a buffer, up to the limit of the servers. Blocks while there is no space,
    /// for up to `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises what `send` does: the record was not accepted. The ticket can raise the other errors of `append`.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (producer, record) = (self.producer()?, record.as_slice());
        let delivery = self.wait(py, producer.append(record))?.map_err(raise)?;
        Ticket::remote(delivery, self.runtime.clone())
    }

    /// As `submit`, with `record`, but raises `BusyError` if there is no space.
    ///
    /// Does not block. Raises what `send` does: the record was not accepted.
    fn try_submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (producer, record) = (self.producer()?, record.as_slice());
        Ticket::remote(py.detach(|| producer.try_append(record)).map_err(raise)?, self.runtime.clone())
    }

    /// Buffers records as one batch, all or none. Returns a `Ticket` for the index of the first.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to
    /// `ProducerOptions.batch_bytes` bytes and the limit of the servers. Blocks as `submit` does.
    ///
    /// Raises what `send` does, and `InvalidArgumentError`: there are no records. None of them was accepted.
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<Ticket> {
        Ticket::remote(self.batch(py, records)?, self.runtime.clone())
    }

    /// Appends a record. When awaited, gives its index, from 1, once it is in the log.
    ///
    /// `record`: bytes or an object with a buffer, up to the limit of the servers. Does not block: it waits for
    /// space for up to `ProducerOptions.block_max` seconds when awaited. A cancelled task does not know whether the
    /// record is appended.
    ///
    /// Raises what `append` does: after `TimeoutError` or `ClosedError` the record MAY BE in the log.
    /// `RuntimeError`: no event loop runs on this thread; then nothing is appended.
    fn append_async(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Py<PyAny>> {
        let (live, record) = (self.live()?.clone(), record.as_slice().to_vec());
        drive_index(py, Some(self.runtime.clone()), async move { live.producer.append(&record).await?.await })
    }

    /// Waits until all records sent before the call have an outcome. Returns None. Any thread may call it.
    ///
    /// `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises the reason why a record failed since the last flush; `TimeoutError`: some have no outcome in time,
    /// and the producer continues to send them; `InvalidArgumentError`, `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=30.0))]
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let deadline = wait::timeout(timeout)?;
        self.wait(py, self.producer()?.flush(deadline))?.map_err(raise)
    }

    /// `flush`, to be awaited: gives None once all records sent before the call have an outcome.
    ///
    /// `timeout`: seconds, from 0. Does not block. Raises what `flush` does; `RuntimeError`: no event loop runs on this
    /// thread.
    #[pyo3(signature = (timeout=30.0))]
    fn flush_async(&self, py: Python<'_>, timeout: f64) -> PyResult<Py<PyAny>> {
        let deadline = wait::timeout(timeout)?;
        let live = self.live()?.clone();
        let flushed = async move { live.producer.flush(deadline).await };
        drive_result(py, Some(self.runtime.clone()), flushed, none)
    }

    /// Bytes of records that were sent and have no outcome yet.
    #[getter]
    fn buffered_bytes(&self) -> PyResult<usize> {
        Ok(self.producer()?.buffered_bytes())
    }

    /// The number of records without acknowledgement, and of those whose failure was not reported, even if a ticket
    /// could report it. 0: all records are in the log.
    #[getter]
    fn unacknowledged(&self) -> PyResult<u64> {
        Ok(self.producer()?.unacknowledged())
    }

    /// Accepts no more records, and waits until all are in the log. Returns `Closed`, with no records left.
    ///
    /// `timeout`: seconds, from 0: after that the producer ends, and the records that are left are reported.
    /// Blocks, without the GIL; Ctrl-C ends the wait. Any thread may call it, more than once: each call reports the
    /// same records.
    ///
    /// Raises the reason why records are not in the log, those that are left or failed since the last `flush`:
    /// `TimeoutError`, `UnavailableError`, `FullError` or the error that ended the producer. Its attribute
    /// `closed`, a `Closed`, has the records that are left. `InvalidArgumentError`, `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=30.0))]
    fn close<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyAny>> {
        let (live, deadline) = (self.live()?, wait::timeout(timeout)?);
        let closed = self.wait(py, live.producer.close(deadline))?;
        complete(py, live, &closed)
    }

    /// `close`, to be awaited: gives `Closed`, which then has no records left.
    ///
    /// `timeout`: seconds, from 0. Does not block. Raises what `close` does; `RuntimeError`: no event loop runs on this
    /// thread.
    #[pyo3(signature = (timeout=30.0))]
    fn close_async(&self, py: Python<'_>, timeout: f64) -> PyResult<Py<PyAny>> {
        self.closing(py, timeout, |py, live, closed| Ok(complete(py, live, closed)?.unbind()))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (live, deadline) = (self.live()?, wait::timeout(CLOSE)?);
        let closed = self.wait(py, live.producer.close(deadline))?;
        left_block(py, live, &closed, value)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        ready(py, Ok(slf.into_any().unbind()))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let value = value.clone().unbind();
        self.closing(py, CLOSE, move |py, live, closed| {
            left_block(py, live, closed, value.bind(py))?;
            Ok(py.None())
        })
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("producer", "options, with a session in them"))
    }
}

impl Producer {
    fn closing(
        &self,
        py: Python<'_>,
        timeout: f64,
        finish_with: impl FnOnce(Python<'_>, &LiveProducer, &Closed) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let (live, deadline) = (self.live()?.clone(), wait::timeout(timeout)?);
        drive(py, Some(self.runtime.clone()), async move {
            let closed = live.producer.close(deadline).await;
            let finish: Finish = Box::new(move |py| finish_with(py, &live, &closed));
            finish
        })
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // A forked child owns none of it.
        if let Ok(live) = self.live.get() {
            Python::try_attach(|py| unsent::dropped(py, live));
        }
    }
}

/// Returns how a producer ended; raises with that value if a record is not in the log.
fn complete<'py>(py: Python<'py>, live: &LiveProducer, closed: &Closed) -> PyResult<Bound<'py, PyAny>> {
    let outcome = values::closed(py, closed)?;
    live.mark_reported();
    if closed.all_acknowledged() {
        return Ok(outcome);
    }
    let what = format!("{}; see the attribute `closed` of this error", how_many(closed));
    let cause = match closed.failed.as_ref() {
        // The records that are left were dropped when the time was over.
        Some(why) if why.kind() != ErrorKind::Closed => {
            Error::with_source(why.kind(), format!("{what}: {why}"), why)
        }
        _ => Error::new(ErrorKind::Timeout, format!("{what}: not in time")),
    };
    let error = raise(cause);
    error.value(py).setattr("closed", outcome)?;
    Err(error)
}

/// The text for records that are not known to be in the log.
fn how_many(closed: &Closed) -> String {
    match (closed.left.len() as u64, closed.untold) {
        (0, 0) => "records of the producer failed since the last flush".into(),
        (left, 0) => format!("{left} record(s) of the producer were not acknowledged"),
        (left, untold) => {
            format!(
                "{} record(s) of the producer were not acknowledged, {untold} of them failed before",
                left + untold
            )
        }
    }
}

/// The end of a `with` block; `value` is the exception that ends it, or None. That exception is raised rather than
/// the producer's, which becomes a note on it.
fn left_block(
    py: Python<'_>,
    live: &LiveProducer,
    closed: &Closed,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    if value.is_none() {
        return complete(py, live, closed).map(drop);
    }
    if closed.all_acknowledged() {
        return Ok(());
    }
    // Also a warning: the note of an exception that is swallowed is never seen.
    let is_printed = value.is_instance_of::<PyException>();
    if let Err(error) = value.call_method1("add_note", (how_many(closed),)) {
        unraised::swallow(py, error); // the exception being raised is the block's own
    }
    if live.mark_reported() {
        // The notes of other exceptions, such as SystemExit, are not printed.
        let how = if is_printed { ReportBy::Warn } else { ReportBy::Print };
        unsent::report(py, how, closed, "of a producer whose block was left were not acknowledged");
    }
    Ok(())
}
