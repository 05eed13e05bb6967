//! Many named logs in one directory of this process.

use crate::convert::errors::raise;
use crate::convert::input;
use crate::convert::values;
use crate::handles::closes::{Closes, closes};
use crate::handles::log::{Log, batch_limit, build};
use crate::handles::options;
use crate::handles::ticket::Ticket;
use crate::runtime::asyncio_bridge::{drive_on_thread, none, running_loop};
use crate::runtime::handle::Handle;
use crate::runtime::notices;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{Appended, Batch, Error, ErrorKind, LogsOptions, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::path::PathBuf;
use std::time::Duration;

/// Many named logs in one directory, each a `Log`: thousands of them cost little more than one.
///
/// `Logs(dir, *, groups=2, directories=None, options=None)` opens the logs in `dir`, a str or path, or makes the
/// directory. A log has indexes from 1, readers, sessions and discards of its own. Logs are kept in groups: those of a
/// group share its threads, writes and syncs. `groups`: how many there are, from 1 to 1,024; a directory that is opened
/// with a larger number gets more groups, a smaller one leaves all there are. `directories`: further directories for
/// the groups, up to 64, each meant to be on a disk of its own; they have to exist, apart from each other and from
/// `dir`. A new group goes to the one with the fewest groups, the first of these; one that exists is found in any of
/// them and in `dir`. `options`: `Options` of each group, without `retention_bytes` and `retention_age`; with `object_store` each
/// group has objects of its own, and `local_bytes`, `local_age` and `cache_bytes` are of each group. None: the
/// defaults. Segments have a table of the group's logs: below 8 MiB, set `sessions_max` to make room for it. Blocks
/// during recovery, without the GIL; Ctrl-C ends the wait, and the logs are closed once they are open.
///
/// Raises `LockedError`: another handle or process has them open; `NotFoundError`: there are none, and `create` is
/// False; `DivergedError`: a group's directory was replaced by another one, is there twice, or is in one of
/// `directories` that cannot be used now, such as that of a disk that is not mounted; `CorruptError`,
/// `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument or option, or `dir` holds
/// one log on its own.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
/// close it. After `close()` calls raise `ClosedError`. Logs that are not closed stay open until this handle and those
/// of all its logs are dropped.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Logs {
    logs: Handle<chiplog::Logs>,
    dir: PathBuf,
}

impl Logs {
    fn logs(&self) -> PyResult<&chiplog::Logs> {
        self.logs.get()
    }

    /// Runs a call that waits for the disk, and cannot be interrupted there.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&chiplog::Logs) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let logs = self.logs()?.clone();
        wait::on_thread(py, move || call(&logs))
    }
}

#[pymethods]
impl Logs {
    #[new]
    #[pyo3(signature = (dir, *, groups=2, directories=None, options=None))]
    fn new(
        py: Python<'_>,
        dir: PathBuf,
        #[pyo3(from_py_with = input::groups)] groups: u32,
        directories: Option<Vec<PathBuf>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = options::log(options)?;
        let options = LogsOptions::default()
            .groups(groups)
            .directories(directories.unwrap_or_default())
            .options(options);
        notices::ask(py)?;
        let logs = wait::on_thread(py, {
            let dir = dir.clone();
            move || chiplog::Logs::open(dir, options)
        })?;
        Ok(Self { logs: Handle::new(logs, "directory of logs")?, dir })
    }

    /// Creates a log, durably. Returns its `Log`.
    ///
    /// `name`: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, the first not `_`, then perhaps `/` and a partition's
    /// number. `beside`: the name of a log in whose group it is created, so that both can be appended to together;
    /// None: the group with the fewest logs. Blocks, without the GIL; Ctrl-C ends the wait, and creating continues.
    ///
    /// Raises `AlreadyExistsError`; `InvalidArgumentError`: the name; `NotFoundError`: `beside`; `FullError`: the disk
    /// is full, or the group has no room for more logs; `BusyError`, `PoisonedError`, `ClosedError`, `TypeError`.
    /// Repeating the call does no harm: a log that was created is then reported as existing.
    #[pyo3(signature = (name, *, beside=None))]
    fn create(&self, py: Python<'_>, name: String, beside: Option<String>) -> PyResult<Log> {
        let called = name.clone();
        let log = self.wait(py, move |logs| match beside {
            Some(other) => logs.create_beside(&called, &other),
            None => logs.create(&called),
        })?;
        Log::named(log, name)
    }

    /// Returns the `Log` of this `name`. Keep it: each call makes another handle of the same log.
    ///
    /// Blocks only for the disk, without the GIL; Ctrl-C ends the wait. Raises `NotFoundError`: there is none;
    /// `CorruptError`, `IoError`: the files; `ClosedError`, `TypeError`.
    fn get(&self, py: Python<'_>, name: String) -> PyResult<Log> {
        let logs = self.logs()?;
        // Without a thread: `info` knows whether there is such a log now, and then `peek` finds it if it is open.
        let open = py.detach(|| logs.info(&name).map(|_| logs.peek(&name))).map_err(raise)?;
        let called = name.clone();
        let log = open.map_or_else(|| self.wait(py, move |logs| logs.get(&called)), Ok)?;
        Log::named(log, name)
    }

    /// Deletes the log of this `name` with all its records, durably. Returns None.
    ///
    /// Its handles raise `NotFoundError` from then on, and so do its readers behind the last record; records that were
    /// read stay valid. A new log can have the name. Blocks, without the GIL; Ctrl-C ends the wait, and deleting continues.
    ///
    /// Raises `NotFoundError`; `UnavailableError`: it is deleted, and its group drops its records later; `FullError`,
    /// `BusyError`, `PoisonedError`, `ClosedError`, `TypeError`. Repeating the call does no harm.
    fn delete(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.wait(py, move |logs| logs.delete(&name))
    }

    /// Seals the log of this `name`, durably: its appends raise `SealedError`, its records stay. Returns None.
    ///
    /// Blocks, without the GIL; Ctrl-C ends the wait, and sealing continues. Raises what `delete` does.
    fn seal(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.wait(py, move |logs| logs.seal(&name))
    }

    /// Returns a list of `NamedLog`, by name: logs whose names begin with `prefix` and come after the name `after`.
    ///
    /// `limit`: the most that are returned, from 0; None: all. For the next page pass the last name of this one as
    /// `after`, which need not exist. Blocks only for the disk, without the GIL.
    ///
    /// Raises `CorruptError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument; `ClosedError`.
    #[pyo3(signature = (prefix="", after="", limit=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        prefix: &str,
        after: &str,
        #[pyo3(from_py_with = input::limit)] limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (logs, limit) = (self.logs()?, limit.unwrap_or(usize::MAX));
        let page = py.detach(|| logs.list_after(prefix, after, limit)).map_err(raise)?;
        values::named_logs(py, &page)
    }

    /// Returns the `NamedLog` of this `name`: the state of one log.
    ///
    /// Blocks only for the disk, without the GIL. Raises `NotFoundError`; `CorruptError`, `IoError`: the files;
    /// `ClosedError`, `TypeError`.
    fn info<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let logs = self.logs()?;
        let info = py.detach(|| logs.info(name)).map_err(raise)?;
        values::named_log(py, &info)
    }

    /// Appends a batch to each of several logs, all or none, and waits for stable storage. Returns a list of ranges.
    ///
    /// No crash and no copy of the group separates them; readers of two of the logs can see one a moment before the
    /// other. `appends`: an iterable of pairs, a `Log` of these and an iterable of records, bytes or objects with a
    /// buffer, at least one; a log may occur more than once. The logs are of one group (see `create`), and all records
    /// together take up to `options.block_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd".
    /// `timeout`: seconds, from 0; None: no limit. The ranges are those of the records' indexes, in the order of
    /// `appends`. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `PoisonedError`: all MAY STILL BE APPENDED, or be in the logs: if you append them again,
    /// they can be there twice. The same holds after Ctrl-C. `NotFoundError`, `SealedError`: one of the logs takes no
    /// appends; `BusyError`, `FullError`, `TooLargeError`, `ClosedError`, `TypeError`, `InvalidArgumentError` (an
    /// argument, or logs of different groups): nothing was appended to any of them.
    #[pyo3(signature = (appends, codec="none", timeout=None))]
    fn append_together<'py>(
        &self,
        py: Python<'py>,
        appends: &Bound<'py, PyAny>,
        codec: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (logs, limit) = (self.logs()?.clone(), Limit::new(timeout)?);
        let appends = Together::read(appends, codec)?;
        let what = "the appends, which may still become durable, had no outcome";
        let placed = wait::on_thread_within(py, &limit, what, move || appends.append(&logs))?;
        ranges(py, &placed)
    }

    /// Submits a batch to each of several logs, all or none. Returns a list of `Ticket`, one for each batch.
    ///
    /// `appends`, `codec`: as for `append_together`. The tickets are in the order of `appends`, each for the index of its
    /// batch's first record; all have the same outcome, at the same time. Blocks only while the group's queue is full, for
    /// up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
    /// `TypeError`, `InvalidArgumentError` (an argument, or logs of different groups or of other `Logs`): nothing was
    /// accepted. `NotFoundError`, `SealedError`, from each ticket: one of the logs takes no appends.
    #[pyo3(signature = (appends, codec="none"))]
    fn submit_together(
        &self,
        py: Python<'_>,
        appends: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<Vec<Ticket>> {
        let (logs, appends) = (self.logs()?, Together::read(appends, codec)?);
        let limit = Limit::none().left_of(appends.queue_timeout());
        tickets(wait::for_room(py, limit, |_| logs.try_submit_together(&appends.pairs()))?)
    }

    /// As `submit_together`, with `appends` and `codec`, but raises `BusyError` if the queue is full.
    ///
    /// Does not block, except for compression, without the GIL. Raises what `submit_together` does: nothing was
    /// accepted.
    #[pyo3(signature = (appends, codec="none"))]
    fn try_submit_together(
        &self,
        py: Python<'_>,
        appends: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<Vec<Ticket>> {
        let (logs, appends) = (self.logs()?, Together::read(appends, codec)?);
        tickets(py.detach(|| logs.try_submit_together(&appends.pairs())).map_err(raise)?)
    }

    /// `append_together`, to be awaited: gives the list of ranges once all records are stored.
    ///
    /// `appends`, `codec`: as for `append_together`. Does not block, except for compression, without the GIL. A
    /// cancelled task does not know whether the records are appended.
    ///
    /// Raises what `append_together` does, but never `TimeoutError`. `RuntimeError`: no event loop runs on this thread;
    /// then nothing is appended.
    #[pyo3(signature = (appends, codec="none"))]
    fn append_together_async(
        &self,
        py: Python<'_>,
        appends: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<Py<PyAny>> {
        let logs = self.logs()?.clone();
        running_loop(py)?; // without a loop nothing is read
        let appends = Together::read(appends, codec)?;
        let finish = |py: Python<'_>, placed: Vec<Appended>| Ok(ranges(py, &placed)?.into_any().unbind());
        drive_on_thread(py, move || appends.append(&logs), finish)
    }

    /// Closes all logs: submitted appends are still written. Returns None. Any thread may call it, more than once.
    ///
    /// Blocks until all is durable and the directory is unlocked, without the GIL; Ctrl-C ends the wait, and closing
    /// continues. Appends to the logs raise `ClosedError` from then on. Readers continue to the end; calls that wait
    /// there, or in `wait_for`, raise `ClosedError`.
    ///
    /// Raises `PoisonedError`: an earlier write or sync failed, and some appends have an unknown outcome.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }

    fn __repr__(&self) -> PyResult<String> {
        self.logs.any()?;
        let state = if self.logs.is_closed() { "closed" } else { "open" };
        Ok(format!("<chiplog.Logs {:?}, {state}>", self.dir))
    }
}

closes!(Logs, "directory of logs", "path and options");

impl Closes for Logs {
    fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        let logs = self.logs.to_be_closed()?;
        wait::on_thread(py, move || logs.close())
    }

    fn close_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let logs = self.logs.to_be_closed()?;
        drive_on_thread(py, move || logs.close(), none)
    }
}

/// Batches of several logs, to be appended together.
struct Together(Vec<(chiplog::Log, Batch)>);

impl Together {
    /// Reads an iterable of pairs, up to what a block holds.
    ///
    /// # Errors
    /// `TooLarge`: it has more. `TypeError`: it is no iterable of pairs. `InvalidArgument`: a pair has no records.
    fn read(appends: &Bound<'_, PyAny>, codec: &str) -> PyResult<Self> {
        let py = appends.py();
        let (mut read, mut bytes) = (Vec::new(), 0);
        for pair in appends.try_iter()? {
            let pair = pair?;
            let parts: PyResult<(Bound<'_, Log>, Bound<'_, PyAny>)> = pair.extract();
            let (log, records) = parts.map_err(|_| {
                let got = input::type_name(&pair);
                let what =
                    format!("appends must have pairs of a chiplog.Log and an iterable of records, not {got}");
                PyTypeError::new_err(what)
            })?;
            let log = log.get().log()?.clone();
            let records = input::records(&records, batch_limit(log.options()))?;
            let slices = input::slices(&records);
            let build = build(&slices, codec)?;
            let batch = py.detach(build).map_err(raise)?;
            bytes += batch.as_bytes().len();
            let max = log.options().block_bytes_max;
            read.push((log, batch));
            if bytes > max as usize {
                let what = format!(
                    "the first {} batches of appends take {bytes} bytes; a block has room for {max}: raise option \
                     block_bytes_max, or append less together (the rest was not read)",
                    read.len()
                );
                return Err(raise(Error::new(ErrorKind::TooLarge, what)));
            }
            py.check_signals()?;
        }
        Ok(Self(read))
    }

    fn pairs(&self) -> Vec<(&chiplog::Log, &Batch)> {
        self.0.iter().map(|(log, batch)| (log, batch)).collect()
    }

    /// How long a submission waits for room.
    fn queue_timeout(&self) -> Duration {
        self.0.first().map_or(Duration::ZERO, |(log, _)| log.options().queue_timeout)
    }

    fn append(&self, logs: &chiplog::Logs) -> Result<Vec<Appended>> {
        logs.append_together(&self.pairs())
    }
}

/// The tickets of batches that were submitted together.
fn tickets(submitted: Vec<chiplog::Ticket>) -> PyResult<Vec<Ticket>> {
    submitted.into_iter().map(Ticket::local).collect()
}

/// The indexes of each batch, as Python's ranges.
pub(crate) fn ranges<'py>(py: Python<'py>, placed: &[Appended]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for one in placed {
        list.append(values::range(py, one.first.get(), one.count.into())?)?;
    }
    Ok(list)
}
