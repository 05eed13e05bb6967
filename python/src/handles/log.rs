//! A log in a directory of this process.

use crate::convert::errors::raise;
use crate::convert::input;
use crate::convert::input::{BatchLimit, Input};
use crate::convert::values;
use crate::handles::closes::{Closes, closes};
use crate::handles::options;
use crate::handles::reads::reads;
use crate::handles::session::Session;
use crate::handles::ticket::{Ticket, drive_index, settle};
use crate::runtime::asyncio_bridge::{drive_on_thread, drive_result, none, ready, running_loop};
use crate::runtime::handle::Handle;
use crate::runtime::notices;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{BatchBuilder, ErrorKind, Index, Result, Sequence, SessionId, Start};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use std::future::poll_fn;
use std::path::PathBuf;

/// A durable log in a directory: the only handle that appends to it.
///
/// `Log(dir, options=None)` opens the log in `dir`, a str or path, or creates it. `options`: `Options`, None: the
/// defaults. Blocks during recovery, without the GIL; Ctrl-C ends the wait, and the log is closed once it is open.
///
/// Raises `LockedError`: another handle or process has it open; `NotFoundError`: there is none, and `create` is
/// False; `CorruptError`, `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an option.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
/// close it.
/// After `close()` calls raise `ClosedError`, except for `close`, `path`, `options` and `poison_cause`; readers
/// continue to the end.
///
/// `Logs` has many named logs in one directory, each a `Log`. Closing one closes only the handle. `path`, `options`,
/// `metrics()`, and of `status()` all but the id and the indexes, are those of its group.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Log {
    log: Handle<chiplog::Log>,
    /// The name, if it is one of many in a directory. Closing the handle does not close such a log.
    name: Option<String>,
}

/// Builds a batch of these records.
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

/// Returns the limit of a batch of a log with these options.
pub(crate) fn batch_limit(options: &chiplog::Options) -> BatchLimit {
    BatchLimit { bytes: options.batch_bytes_max as usize, option: "option batch_bytes_max" }
}

impl Log {
    /// A log of a directory of named logs.
    pub(crate) fn named(log: chiplog::Log, name: String) -> PyResult<Self> {
        Ok(Self { log: Handle::new(log, "log")?, name: Some(name) })
    }

    pub(crate) fn log(&self) -> PyResult<&chiplog::Log> {
        self.log.get()
    }

    /// Marks the handle as closed. Returns the log, if it is closed with the handle.
    fn to_be_closed(&self) -> PyResult<Option<chiplog::Log>> {
        let log = self.log.to_be_closed()?;
        Ok(self.name.is_none().then_some(log))
    }
}

#[pymethods]
impl Log {
    #[new]
    #[pyo3(signature = (dir, options=None))]
    fn new(py: Python<'_>, dir: PathBuf, options: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let options = options::log(options)?;
        notices::ask(py)?;
        let log = wait::on_thread(py, move || chiplog::Log::open(dir, options))?;
        Ok(Self { log: Handle::new(log, "log")?, name: None })
    }

    /// Appends a record and blocks until it is on stable storage. Returns its index, from 1.
    ///
    /// `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. `timeout`: seconds, from
    /// 0; None: no limit. Waits for space in the queue for up to `options.queue_timeout` seconds. Blocks, without
    /// the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED, or be in the
    /// log: if you append it again outside a session, it can be there twice. The same holds after Ctrl-C.
    /// `BusyError` (no space in the queue in time), `FullError`, `TooLargeError`, `ClosedError`, `TypeError`,
    /// `InvalidArgumentError` (an argument): the record is certainly not in the log.
    #[pyo3(signature = (record, timeout=None))]
    fn append(&self, py: Python<'_>, record: Input<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let (log, record, limit) = (self.log()?, record.as_slice(), Limit::new(timeout)?);
        let ticket = submit(py, log, &limit, || log.try_submit(record).map(Into::into))?;
        settle(py, &ticket, &limit)
    }

    /// Appends records as one batch, all or none, and waits for stable storage. Returns the range of their indexes.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to
    /// `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". `timeout`: seconds, from
    /// 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises what `append` does. After `TimeoutError`, `UnavailableError`, `PoisonedError` and Ctrl-C the records
    /// MAY STILL BE APPENDED; if you append them again, they can be there twice. `InvalidArgumentError` also if
    /// there are no records.
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
        values::range(py, first, ticket.1)
    }

    /// Submits a record. Returns a `Ticket` for its index.
    ///
    /// `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. Blocks only while the
    /// queue is full, for up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
    /// `TypeError`: the record was not accepted.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (log, record) = (self.log()?, record.as_slice());
        Ticket::local(submit(py, log, &Limit::none(), || log.try_submit(record).map(Into::into))?)
    }

    /// Submits records as one batch, all or none. Returns a `Ticket` for the index of the first.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to
    /// `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Blocks only while the
    /// queue is full, for up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises what `submit` does, and `InvalidArgumentError`: no records, or an unknown codec. None of them was
    /// accepted.
    #[pyo3(signature = (records, codec="none"))]
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::none())?.0)
    }

    /// As `submit`, with `record`, but raises `BusyError` if the queue is full.
    ///
    /// Does not block. Raises what `submit` does: the record was not accepted.
    fn try_submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        let (log, record) = (self.log()?, record.as_slice());
        Ticket::local(py.detach(|| log.try_submit(record)).map_err(raise)?.into())
    }

    /// As `submit_batch`, with `records` and `codec`, but raises `BusyError` if the queue is full.
    ///
    /// Does not block, except for compression, without the GIL. Raises what `submit_batch` does: none of them was
    /// accepted.
    #[pyo3(signature = (records, codec="none"))]
    fn try_submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        let log = self.log()?;
        let records = input::records(records, batch_limit(log.options()))?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        Ticket::local(py.detach(|| log.try_submit(&build()?)).map_err(raise)?)
    }

    /// Checks whether there is space for an append of `bytes` bytes, in addition to waiting ones. Returns None.
    ///
    /// Does not block. Raises `FullError`: there is not enough space; `PoisonedError`, `ClosedError`;
    /// `InvalidArgumentError`, `TypeError`: `bytes`.
    fn check_room(&self, #[pyo3(from_py_with = input::bytes)] bytes: usize) -> PyResult<()> {
        self.log()?.check_room(bytes).map_err(raise)
    }

    /// Appends a record. When awaited, gives its index, from 1, once it is on stable storage.
    ///
    /// `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. Does not block: the
    /// append begins at once, and waits for space in the queue without a limit. A cancelled task does not know
    /// whether the record is appended.
    ///
    /// Raises what `append` does, but never `TimeoutError`, and `BusyError` only behind the log's rate
    /// (`append_bytes_per_second`). `RuntimeError`: no event loop runs on this thread; then nothing is appended.
    fn append_async(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Py<PyAny>> {
        let (log, bytes) = (self.log()?, record.as_slice());
        running_loop(py)?; // without a loop nothing is appended
        match py.detach(|| log.try_submit(bytes)) {
            Ok(ticket) => drive_index(py, None, ticket),
            Err(error) if error.kind() == ErrorKind::Busy => {
                let batch = py.detach(|| BatchBuilder::new().push(bytes)?.build()).map_err(raise)?;
                let log = log.clone();
                let index =
                    async move { log.submit_when_room(&batch).await?.await.map(|appended| appended.first) };
                drive_index(py, None, index)
            }
            Err(error) => Err(raise(error)),
        }
    }

    /// Appends records as one batch, all or none. When awaited, gives the index of the first once they are stored.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to
    /// `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Does not block, except
    /// for compression, without the GIL. Waits for space in the queue without a limit. A cancelled task does not
    /// know whether the records are appended.
    ///
    /// Raises what `append_batch` does, but never `TimeoutError`, and `BusyError` only behind the log's rate
    /// (`append_bytes_per_second`). `RuntimeError`: no event loop runs on this thread; then nothing is appended.
    #[pyo3(signature = (records, codec="none"))]
    fn append_batch_async(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<Py<PyAny>> {
        let log = self.log()?.clone();
        let records = input::records(records, batch_limit(log.options()))?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        let batch = py.detach(build).map_err(raise)?;
        drive_index(py, None, async move {
            log.submit_when_room(&batch).await?.await.map(|appended| appended.first)
        })
    }

    /// Reports that the bytes of the record at `index` are damaged in this directory. Returns None.
    ///
    /// A replica of a cluster scrubs the record's segment at once and repairs damage from other replicas. A log on
    /// its own only counts and logs it. Reads report damage by themselves. A report about a sound record costs only
    /// the scrub. Blocks for the disk, without the GIL, not for the repair.
    ///
    /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `UnavailableError`: the whole log is
    /// under repair; `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`.
    fn report_damage(&self, py: Python<'_>, #[pyo3(from_py_with = input::index)] index: u64) -> PyResult<()> {
        let log = self.log()?;
        py.detach(|| log.report_damage(Index(index))).map_err(raise)
    }

    /// Discards all records below `first`, an index from 1, durably. Returns None.
    ///
    /// At or below the first record it does nothing. A `first` beyond the end moves the log's indexes forward for
    /// good: the log is empty then, and the next record gets the index `first`. `status().last_index + 1` empties the
    /// log without skipping an index. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `PoisonedError`, `ClosedError`, `FullError`, `BusyError`; `InvalidArgumentError`, `TypeError`:
    /// `first`. Repeating the call does no harm.
    fn discard(&self, py: Python<'_>, #[pyo3(from_py_with = input::first)] first: u64) -> PyResult<()> {
        let answer = self.log()?.submit_discard(Index(first)).map_err(raise)?;
        wait::to_the_end(py, None, answer)?.map(drop).map_err(raise)
    }

    /// Submits a discard of all records below `first`, as `discard` does. Returns a `Ticket`.
    ///
    /// It is done once the discard is durable. Its index is at or below the log's first index then. Does not block. Raises what `discard` does.
    fn submit_discard(&self, #[pyo3(from_py_with = input::first)] first: u64) -> PyResult<Ticket> {
        Ticket::answer(self.log()?.submit_discard(Index(first)).map_err(raise)?)
    }

    /// Submits a barrier, as `barrier` does. Returns a `Ticket` for the index of the last record then.
    ///
    /// `timeout`: seconds, from 0: the time limit of the barrier. Does not block. Raises what `barrier` does;
    /// `UnavailableError` comes from the ticket.
    #[pyo3(signature = (timeout=30.0))]
    fn submit_barrier(&self, timeout: f64) -> PyResult<Ticket> {
        let timeout = wait::timeout(timeout)?;
        Ticket::answer(self.log()?.submit_barrier(timeout).map_err(raise)?)
    }

    /// Returns the first record in this replica's files; in an empty log, the index of the next append.
    ///
    /// Those before it are in the object store: reads fetch them from there. Blocks for the disk, without the GIL, if
    /// the log is one of several named ones.
    ///
    /// Raises `CorruptError`, `IoError`: the oldest file cannot be read; `ClosedError`: this handle was closed.
    fn first_local_index(&self, py: Python<'_>) -> PyResult<u64> {
        let log = self.log()?;
        py.detach(|| log.first_local_index()).map(Index::get).map_err(raise)
    }

    /// Waits until all records appended before the call can be read here. Returns the last index then; 0: none.
    ///
    /// `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `UnavailableError`: not in time; `PoisonedError`, `ClosedError`, `BusyError`; `InvalidArgumentError`,
    /// `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=30.0))]
    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<u64> {
        let timeout = wait::timeout(timeout)?;
        let answer = self.log()?.submit_barrier(timeout).map_err(raise)?;
        wait::to_the_end(py, None, answer)?.map(Index::get).map_err(raise)
    }

    /// Waits until record `index`, from 0, exists or is discarded. Returns None.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`: not in time; `ClosedError`, `PoisonedError`: this handle will not return the record;
    /// `InvalidArgumentError`, `TypeError`: an argument.
    #[pyo3(signature = (index, timeout=None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = input::index)] index: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let log = self.log()?;
        let what = format!("record {index} did not become readable");
        wait::sliced(py, &Limit::new(timeout)?, &what, |slice| log.wait_for(Index(index), slice))
    }

    /// `wait_for`, to be awaited: gives None once record `index`, from 0, exists or is discarded.
    ///
    /// Does not block. To limit the wait, cancel it or use `asyncio.timeout`.
    ///
    /// Raises `ClosedError`, `PoisonedError`: this handle will not return the record; `InvalidArgumentError`,
    /// `TypeError`: `index`; `RuntimeError`: no event loop runs on this thread.
    fn wait_for_async(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = input::index)] index: u64,
    ) -> PyResult<Py<PyAny>> {
        let log = self.log()?.clone();
        drive_result(py, None, async move { arrival(&log, Index(index)).await }, none)
    }

    /// Opens an exactly-once session, durably. Returns a `Session`.
    ///
    /// Blocks, without the GIL; Ctrl-C ends the wait. Raises `TooManySessionsError`: `options.sessions_max`
    /// sessions are open, and all have appended; `FullError`, `BusyError`, `PoisonedError`, `ClosedError`.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        let log = self.log()?.clone();
        let (patience, limit) = (log.options().queue_timeout, batch_limit(log.options()));
        Session::new(wait::on_thread(py, move || log.open_session())?, patience, limit)
    }

    /// Resumes a session. Returns a `Session`.
    ///
    /// `id`: `Session.id`. `next_sequence`: the number of its next append, from 1. A repeated append under its
    /// original number gets its original index, and is stored once. Does not block, and does not check whether the
    /// log still knows the session: its first append raises `SessionExpiredError` or `SequenceGapError`.
    ///
    /// Raises `InvalidArgumentError`, `TypeError`: an argument; `ClosedError`.
    fn resume_session(
        &self,
        #[pyo3(from_py_with = input::session_id)] id: u64,
        #[pyo3(from_py_with = input::next_sequence)] next_sequence: u64,
    ) -> PyResult<Session> {
        let log = self.log()?;
        let session = log.resume_session(SessionId(id), Sequence(next_sequence));
        Session::new(session, log.options().queue_timeout, batch_limit(log.options()))
    }

    /// Returns `Status`: the current state of the log.
    ///
    /// Does not block. Raises `ClosedError`.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::status(py, &self.log()?.status())
    }

    /// Returns `Metrics`: the log's counters since it was opened, and the work that waits in it now.
    ///
    /// Does not block. Raises `ClosedError`.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::metrics(py, &self.log()?.metrics())
    }

    /// Returns the options that are set for the log, a dict of names and values.
    ///
    /// These are the options that this replica knows to be committed. They are the same on every replica, and
    /// override those that a leader was opened with. Names and units: see `set_log_options`. Does not block. Raises
    /// `ClosedError`.
    fn log_options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::log_options(py, &self.log()?.log_options())
    }

    /// Sets options of the log, on the leader, and waits until that is committed. Returns None.
    ///
    /// `changes`: a mapping of names to values: `retention_bytes`, `capacity_bytes`, `record_bytes_max`, `object_bytes`,
    /// in bytes; `retention_age`, `session_idle_max`, `object_age`, in milliseconds; `sessions_max`, `session_window`;
    /// `append_bytes_per_second`; `payload_slices`, 1 or 0; `object_rows`. A value of None unsets the option: the leader's own applies then.
    /// 2**64 - 1: no limit, for
    /// retention, capacity, rate and `object_age`. Options that are not named do not change. Once `object_bytes` is set, the
    /// log has objects, and it cannot be unset; a log with an object store sets it itself. `payload_slices` and `object_rows` cannot be unset either.
    /// A named log has
    /// `retention_bytes`, `retention_age`, `capacity_bytes`, `record_bytes_max`, `sessions_max`, `session_idle_max` and
    /// `append_bytes_per_second` of its own; the others are set for its group.
    /// `timeout`: seconds, from 0: how long to wait for members that have not yet confirmed that they support options of the
    /// log. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `InvalidArgumentError`, `TypeError`: an option or its value; `UnsupportedError`: a member runs an
    /// earlier version; `NotLeaderError`, `RemovedError`, `FullError`, `BusyError`: nothing was changed;
    /// `UnavailableError`: the change may or may not take effect; `PoisonedError`, `ClosedError`. Repeating the
    /// call does no harm.
    #[pyo3(signature = (changes, timeout=10.0))]
    fn set_log_options(&self, py: Python<'_>, changes: &Bound<'_, PyMapping>, timeout: f64) -> PyResult<()> {
        let (changes, timeout) = (options::log_options(changes)?, wait::timeout(timeout)?);
        let answer = self.log()?.submit_set_log_options(&changes, timeout).map_err(raise)?;
        wait::to_the_end(py, None, answer)?.map(drop).map_err(raise)
    }

    /// Submits options of the log, as `set_log_options` does. Returns a `Ticket`, done once that is committed.
    ///
    /// `changes`: as for `set_log_options`. `timeout`: seconds, from 0: how long to wait for members. The ticket's
    /// index has no meaning. Does not block. Raises what `set_log_options` does.
    #[pyo3(signature = (changes, timeout=10.0))]
    fn submit_set_log_options(&self, changes: &Bound<'_, PyMapping>, timeout: f64) -> PyResult<Ticket> {
        let (changes, timeout) = (options::log_options(changes)?, wait::timeout(timeout)?);
        let done = self.log()?.submit_set_log_options(&changes, timeout).map_err(raise)?;
        Ticket::answer(async { done.await.map(|()| Index(0)) })
    }

    /// Bytes of the largest record that the log accepts: the log's option, or the one it was opened with if that is
    /// not set.
    #[getter]
    fn record_bytes_max(&self) -> PyResult<u32> {
        Ok(self.log()?.record_bytes_max())
    }

    /// The number of a session's latest batches that the log remembers: the log's option, or the one it was opened
    /// with.
    #[getter]
    fn session_window(&self) -> PyResult<u16> {
        Ok(self.log()?.session_window())
    }

    /// Returns why this replica does not accept the log's records, an `Error`; None: it accepts them.
    ///
    /// `FullError`, `IoError`: its disk has no space; `TooLargeError`: its segments are too small for what the
    /// leader sends; `InvalidArgumentError`: its options conflict with those of the log. Does not block. Raises
    /// `ClosedError`.
    fn shortage_cause<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.log()?.shortage_cause().map(|error| crate::convert::errors::value(py, &error)).transpose()
    }

    /// Returns why the log accepts no more appends, the `Error` of a failed write or sync; None: it accepts them.
    ///
    /// Does not block. Also after `close()`.
    fn poison_cause<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.log.any()?.poison_cause().map(|error| crate::convert::errors::value(py, &error)).transpose()
    }

    /// The `Options` in force, each with its value.
    ///
    /// The given options, the defaults, and limits lowered to fit the segment size. Also after `close()`.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::options(py, self.log.any()?.options())
    }

    /// The directory, a `pathlib.Path`. Also after `close()`.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.log.any()?.path().to_path_buf())
    }

    /// Closes the log: submitted appends are still written. Returns None. Any thread may call it, more than once.
    ///
    /// Blocks until all is durable and the directory is unlocked, without the GIL; Ctrl-C ends the wait, and
    /// closing continues. Readers continue to the end; calls that wait there, or in `wait_for`, raise
    /// `ClosedError`. A log of `Logs` stays open, and so do its waiting calls: only this handle is closed, and that
    /// does not block.
    ///
    /// Raises `PoisonedError`: an earlier write or sync failed, and some appends have an unknown outcome.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }

    fn __repr__(&self) -> PyResult<String> {
        let log = self.log.any()?;
        let status = log.status();
        let state = match (self.log.is_closed(), status.last_index < status.first_index) {
            (true, _) => "closed".to_owned(),
            (false, true) => "empty".to_owned(),
            (false, false) => format!("records {} to {}", status.first_index, status.last_index),
        };
        Ok(match &self.name {
            Some(name) => format!("<chiplog.Log {name:?} in {:?}, {state}>", log.path()),
            None => format!("<chiplog.Log {:?}, {state}>", log.path()),
        })
    }
}

reads!(Log, log, "Reads", "log", "appended");
closes!(Log, "log", "directory and options");

impl Closes for Log {
    fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        self.to_be_closed()?.map_or(Ok(()), |log| wait::on_thread(py, move || log.close()))
    }

    fn close_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.to_be_closed()? {
            Some(log) => drive_on_thread(py, move || log.close(), none),
            None => ready(py, Ok(py.None())),
        }
    }
}

impl Log {
    /// The ticket of a batch, and the number of its records.
    fn batch_ticket(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        limit: &Limit,
    ) -> PyResult<(chiplog::Ticket, u64)> {
        let log = self.log()?;
        let records = input::records(records, batch_limit(log.options()))?;
        let slices = input::slices(&records);
        let build = build(&slices, codec)?;
        let batch = py.detach(build).map_err(raise)?;
        Ok((submit(py, log, limit, || log.try_submit(&batch))?, slices.len() as u64))
    }
}

/// Submits. Waits for space in the queue up to the limit of the log's options, and checks for signals meanwhile.
///
/// # Errors
/// `Busy`: no space in that time; nothing was appended.
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
