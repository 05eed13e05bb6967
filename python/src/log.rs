//! A log in a directory of this process.

use crate::batch::{Batch, Record};
use crate::courier::{Finish, drive, ready, running_loop};
use crate::errors::raise;
use crate::fork::Kept;
use crate::input::{self, Input};
use crate::reader::{Reader, Stream, batches, local, not_pickled, start};
use crate::session::Session;
use crate::ticket::{Ticket, drive_index, settle};
use crate::wait::{self, Limit};
use crate::{options, values};
use chiplog::{BatchBuilder, Error, ErrorKind, Index, RecordBatch, Result, Sequence, SessionId, Start};
use pyo3::prelude::*;
use std::future::poll_fn;
use std::path::PathBuf;
use std::time::Duration;

/// A durable log in a directory: the one that appends.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Log {
    log: Kept<chiplog::Log>,
}

/// A batch of these records.
pub(crate) fn build(records: &[&[u8]], codec: &str) -> PyResult<impl Fn() -> Result<chiplog::Batch> + Send> {
    let codec = options::codec(codec)?;
    let records: Vec<&[u8]> = records.to_vec();
    Ok(move || {
        let mut builder = BatchBuilder::new();
        builder.codec(codec);
        for record in &records {
            builder.push(record)?;
        }
        builder.build()
    })
}

/// The one record at `index` of what a reader gave.
pub(crate) fn record(py: Python<'_>, index: u64, batch: RecordBatch) -> PyResult<Record> {
    let n = index.saturating_sub(batch.first().get());
    let batch = Py::new(py, Batch::new(py, batch)?)?;
    Ok(Record { batch, n: u32::try_from(n).unwrap_or_default() })
}

/// The record at `index`, by a reader that begins there.
pub(crate) fn get(
    py: Python<'_>,
    index: u64,
    reader: impl FnOnce(Start) -> Result<chiplog::Reader> + Send,
) -> PyResult<Record> {
    let read = || reader(Start::Index(Index(index)))?.next_batch();
    let batch = py.detach(read).map_err(raise)?;
    let beyond = || raise(Error::new(ErrorKind::OutOfRange, format!("record {index} is not there yet")));
    record(py, index, batch.ok_or_else(beyond)?)
}

impl Log {
    fn log(&self) -> PyResult<&chiplog::Log> {
        self.log.get().map_err(raise)
    }

    fn open_reader(slf: &Bound<'_, Self>, from: Start, follow: bool) -> PyResult<Reader> {
        let log = slf.get().log()?;
        local(slf.as_any(), slf.py().detach(|| log.reader(from)), follow)
    }
}

#[pymethods]
impl Log {
    #[new]
    #[pyo3(signature = (dir, options=None))]
    fn new(py: Python<'_>, dir: PathBuf, options: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let options = options::log(options)?;
        let log = wait::on_thread(py, move || chiplog::Log::open(dir, options))?;
        Ok(Self { log: Kept::new(log).map_err(raise)? })
    }

    /// Appends a record and waits until it is durable.
    #[pyo3(signature = (record, timeout=None))]
    fn append(&self, py: Python<'_>, record: Input<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let (log, record, limit) = (self.log()?, record.as_slice(), Limit::new(timeout)?);
        let ticket = submit(py, log, &limit, || log.try_submit(record))?;
        settle(py, &ticket, &limit)
    }

    /// Appends records as one batch, all of them or none, and waits until they are durable.
    #[pyo3(signature = (records, codec="none", timeout=None))]
    fn append_batch(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let limit = Limit::new(timeout)?;
        let ticket = self.batch_ticket(py, records, codec, &limit)?;
        let first = settle(py, &ticket.0, &limit)?;
        let range = py.import("builtins")?.getattr("range")?;
        Ok(range.call1((first, first + ticket.1))?.unbind())
    }

    /// Begins to append a record; the ticket tells its index.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (log, record) = (self.log()?, record.as_slice());
        Ticket::local(submit(py, log, &Limit::none(), || log.try_submit(record))?)
    }

    /// Begins to append records as one batch; the ticket tells the index of the first.
    #[pyo3(signature = (records, codec="none"))]
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::none())?.0)
    }

    /// As `submit`, but never waits for room: `BusyError`.
    fn try_submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (log, record) = (self.log()?, record.as_slice());
        Ticket::local(py.detach(|| log.try_submit(record)).map_err(raise)?)
    }

    /// As `submit_batch`, but never waits for room: `BusyError`.
    #[pyo3(signature = (records, codec="none"))]
    fn try_submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        let log = self.log()?;
        let records = input::records(records)?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        Ticket::local(py.detach(|| log.try_submit_batch(&build()?)).map_err(raise)?)
    }

    /// Raises `FullError` if the capacity has no room for so many bytes.
    fn check_room(&self, bytes: usize) -> PyResult<()> {
        self.log()?.check_room(bytes).map_err(raise)
    }

    /// Appends a record, to be awaited: gives its index once it is durable.
    fn append_async(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Py<PyAny>> {
        let (log, bytes) = (self.log()?, record.as_slice());
        running_loop(py)?; // without one nothing is appended
        match py.detach(|| log.try_submit(bytes)) {
            Ok(ticket) => drive_index(py, None, async move { ticket.await.map(|appended| appended.first) }),
            Err(error) if error.kind() == ErrorKind::Busy => {
                let batch = py.detach(|| BatchBuilder::new().push(bytes)?.build()).map_err(raise)?;
                let log = log.clone();
                let index = async move {
                    log.submit_batch_when_room(&batch).await?.await.map(|appended| appended.first)
                };
                drive_index(py, None, index)
            }
            Err(error) => Err(raise(error)),
        }
    }

    /// Appends records as one batch, to be awaited: gives the index of the first once they are durable.
    #[pyo3(signature = (records, codec="none"))]
    fn append_batch_async(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<Py<PyAny>> {
        let log = self.log()?.clone();
        let records = input::records(records)?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        let batch = py.detach(build).map_err(raise)?;
        drive_index(py, None, async move {
            log.submit_batch_when_room(&batch).await?.await.map(|appended| appended.first)
        })
    }

    /// The record at `index`.
    fn get(&self, py: Python<'_>, index: u64) -> PyResult<Record> {
        let log = self.log()?;
        get(py, index, |start| log.reader(start))
    }

    /// Reads from `start`, the first record if not given, to the end there is when it comes there.
    #[pyo3(signature = (start=None))]
    fn read(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::First)?, false)
    }

    /// Reads from `start`, the next record to come if not given, and waits at the end for more.
    #[pyo3(signature = (start=None))]
    fn tail(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::Next)?, true)
    }

    /// Reads in batches from `start`, the first record if not given; waits at the end if it follows.
    #[pyo3(signature = (start=None, *, follow=false))]
    fn batches(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>, follow: bool) -> PyResult<Stream> {
        batches(slf.py(), Self::open_reader(slf, self::start(start, Start::First)?, follow)?)
    }

    /// Discards all records below `first`, durably. A `first` beyond the end moves the log's numbers on for good: it is
    /// empty then, and the next record gets the index `first`. `info().last + 1` empties it and loses no number.
    fn discard(&self, py: Python<'_>, first: u64) -> PyResult<()> {
        let answer = self.log()?.submit_discard(Index(first)).map_err(raise)?;
        let done = wait::block_on(py, &Limit::none(), None, answer)?;
        done.map_or(Ok(()), |done| done.map(drop)).map_err(raise)
    }

    /// Begins to discard; the ticket tells an index at or below the log's first one then.
    fn submit_discard(&self, first: u64) -> PyResult<Ticket> {
        Ticket::answer(self.log()?.submit_discard(Index(first)).map_err(raise)?)
    }

    /// Begins a barrier; the ticket tells the last index then.
    #[pyo3(signature = (timeout=30.0))]
    fn submit_barrier(&self, timeout: f64) -> PyResult<Ticket> {
        let timeout = wait::timeout(Some(timeout))?.unwrap_or(Duration::MAX);
        Ticket::answer(self.log()?.submit_barrier(timeout).map_err(raise)?)
    }

    /// Waits until all that was appended anywhere before the call can be read here, and gives the last index.
    #[pyo3(signature = (timeout=30.0))]
    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<u64> {
        let timeout = wait::timeout(Some(timeout))?.unwrap_or(Duration::MAX);
        let answer = self.log()?.submit_barrier(timeout).map_err(raise)?;
        let last = wait::block_on(py, &Limit::none(), None, answer)?.unwrap_or(Ok(Index(0)));
        last.map(Index::get).map_err(raise)
    }

    /// Waits until record `index` is there, or is discarded.
    #[pyo3(signature = (index, timeout=None))]
    fn wait_for(&self, py: Python<'_>, index: u64, timeout: Option<f64>) -> PyResult<()> {
        let log = self.log()?;
        let what = format!("record {index} did not come");
        wait::sliced(py, &Limit::new(timeout)?, &what, |slice| log.wait_for(Index(index), slice))
    }

    /// `wait_for`, to be awaited.
    fn wait_for_async(&self, py: Python<'_>, index: u64) -> PyResult<Py<PyAny>> {
        let log = self.log()?.clone();
        drive(py, None, async move {
            let there = arrival(&log, Index(index)).await;
            let finish: Finish = Box::new(move |py| there.map(|()| py.None()).map_err(raise));
            finish
        })
    }

    /// Opens an exactly-once session.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        let log = self.log()?.clone();
        let patience = log.options().queue_timeout;
        Session::new(wait::on_thread(py, move || log.open_session())?, patience)
    }

    /// Takes a session up again: `next_sequence` is the number of the next append, as it was or will be.
    fn resume_session(&self, id: u64, next_sequence: u64) -> PyResult<Session> {
        let log = self.log()?;
        let session = log.resume_session(SessionId(id), Sequence(next_sequence));
        Session::new(session, log.options().queue_timeout)
    }

    /// How the log stands.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::info(py, &self.log()?.info())
    }

    /// What the log did since it was opened.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::stats(py, &self.log()?.stats())
    }

    /// What waits in it.
    fn backlog<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::backlog(py, &self.log()?.backlog())
    }

    /// Why it takes no more appends, if a write or sync has failed.
    fn poison_cause<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.log()?.poison_cause().map(|error| crate::errors::value(py, &error)).transpose()
    }

    /// The options in force, each with its value: what was given, defaults, and limits that came down with the segments' size.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::options(py, self.log()?.options())
    }

    /// The directory.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.log()?.path().to_path_buf())
    }

    /// Ends appending: what was submitted is still written. Readers go on to the end; whoever waits there is woken.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let log = self.log()?.clone();
        wait::on_thread(py, move || log.close())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        ready(py, Ok(slf.into_any().unbind()))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _type: &Bound<'py, PyAny>,
        _value: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf.as_any(), "close")
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("log", "directory and options"))
    }

    fn __repr__(&self) -> PyResult<String> {
        let info = self.log()?.info();
        Ok(format!("<chiplog.Log {:?}, records {} to {}>", self.log()?.path(), info.first, info.last))
    }
}

impl Log {
    /// The ticket of a batch, and how many records it has.
    fn batch_ticket(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        limit: &Limit,
    ) -> PyResult<(chiplog::Ticket, u64)> {
        let log = self.log()?;
        let records = input::records(records)?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        let batch = py.detach(build).map_err(raise)?;
        Ok((submit(py, log, limit, || log.try_submit_batch(&batch))?, slices.len() as u64))
    }
}

/// Submits; waits for room in the queue, at most as long as the log's options say, but so that signals are seen.
///
/// # Errors
/// `Busy`: no room in that time; nothing was appended.
fn submit(
    py: Python<'_>,
    log: &chiplog::Log,
    limit: &Limit,
    attempt: impl Fn() -> Result<chiplog::Ticket> + Send + Sync,
) -> PyResult<chiplog::Ticket> {
    wait::for_room(py, limit.left_of(log.options().queue_timeout), |_| attempt())
}

/// Waits until record `index` is in a log, or is discarded.
///
/// # Errors
/// As [`chiplog::Reader::wait`].
pub(crate) async fn arrival(log: &chiplog::Log, index: Index) -> Result<()> {
    loop {
        let reader = log.reader(Start::Next)?;
        if index < reader.position() {
            return Ok(());
        }
        poll_fn(|context| reader.poll_more(context)).await?;
    }
}

/// Calls a method on a thread of asyncio's, to be awaited.
pub(crate) fn in_thread<'py>(handle: &Bound<'py, PyAny>, method: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = handle.py();
    py.import("asyncio")?.call_method1("to_thread", (handle.getattr(method)?,))
}
