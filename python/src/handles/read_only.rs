//! A read-only log that another process may write.

use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::convert::{input, values};
use crate::handles::batch::record::Record;
use crate::handles::log::get;
use crate::handles::reader::{Reader, Stream, batches, local, start};
use crate::runtime::asyncio_bridge::ready;
use crate::runtime::fork::Kept;
use crate::runtime::{notices, wait};
use chiplog::{Error, ErrorKind, Start};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Read-only access to a log in a directory, also while another process appends to it.
///
/// `ReadOnlyLog(dir)` opens the log in `dir`, a str or path. Blocks until its files are read, without the GIL; Ctrl-C
/// ends the wait. Raises `NotFoundError`: there is none; `CorruptError`, `UnsupportedError`, `IoError`: the files.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
/// close it.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct ReadOnlyLog {
    /// None once it was closed.
    read_only: Kept<Mutex<Option<chiplog::ReadOnlyLog>>>,
}

impl ReadOnlyLog {
    fn cell(&self) -> PyResult<MutexGuard<'_, Option<chiplog::ReadOnlyLog>>> {
        Ok(self.read_only.get().map_err(raise)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_only(&self) -> PyResult<chiplog::ReadOnlyLog> {
        let closed = || raise(Error::new(ErrorKind::Closed, "the read-only log was closed"));
        self.cell()?.clone().ok_or_else(closed)
    }

    fn open_reader(slf: &Bound<'_, Self>, from: Start, follow: bool) -> PyResult<Reader> {
        let read_only = slf.get().read_only()?;
        local(slf.as_any(), slf.py().detach(|| read_only.reader(from)), follow)
    }
}

#[pymethods]
impl ReadOnlyLog {
    #[new]
    fn new(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        notices::ask(py)?;
        let read_only = wait::on_thread(py, move || chiplog::ReadOnlyLog::open(dir))?;
        Ok(Self { read_only: Kept::new(Mutex::new(Some(read_only))).map_err(raise)? })
    }

    /// Returns the `Record` at `index`, from 1.
    ///
    /// Blocks only for the disk, without the GIL. Raises `OutOfRangeError`: the record does not exist yet;
    /// `DiscardedError`: it was discarded; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`:
    /// the files; `ClosedError`.
    fn get(&self, py: Python<'_>, #[pyo3(from_py_with = input::index)] index: u64) -> PyResult<Record> {
        let read_only = self.read_only()?;
        get(py, index, |start| read_only.reader(start))
    }

    /// Reads from `start` on. Returns a `Reader` that ends at the end of the log.
    ///
    /// `start`: an index from 1, a `Start`, or None: the first record. Blocks only for the disk, without the GIL.
    ///
    /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
    /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
    #[pyo3(signature = (start=None))]
    fn read(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::First)?, false)
    }

    /// Reads from `start` on, and waits at the end for new records. Returns a `Reader`.
    ///
    /// Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
    /// first record.
    ///
    /// `start`: an index from 1, a `Start`, or None: the next record to be appended. Blocks only for the disk,
    /// without the GIL.
    ///
    /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
    /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
    #[pyo3(signature = (start=None))]
    fn tail(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::Next)?, true)
    }

    /// Reads in batches from `start` on. Returns a `Stream` of `Batch`.
    ///
    /// `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for
    /// new records; if not, it ends there. Blocks only for the disk, without the GIL.
    ///
    /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
    /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
    #[pyo3(signature = (start=None, *, follow=false))]
    fn batches(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>, follow: bool) -> PyResult<Stream> {
        batches(slf.py(), Self::open_reader(slf, self::start(start, Start::First)?, follow)?)
    }

    /// Returns `Info`: the state of the log, as far as it is proven durable.
    ///
    /// Does not block. Raises `ClosedError`.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::info(py, &self.read_only()?.status())
    }

    /// Returns how many records follow the last visible one that are not proven durable.
    ///
    /// Does not block. Raises `ClosedError`.
    fn unproven(&self) -> PyResult<u64> {
        Ok(self.read_only()?.unproven())
    }

    /// Returns the members of the cluster that these files name, a list of `Member`; None: there is no cluster.
    ///
    /// Does not block. Raises `ClosedError`.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        values::members(py, self.read_only()?.members())
    }

    /// Returns the options that are set for the log, a dict of names and values, as `Log.log_options` does.
    ///
    /// Does not block. Raises `ClosedError`.
    fn log_options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::log_options(py, &self.read_only()?.log_options())
    }

    /// Returns why the view stopped, an `Error`, if it met damage; None: it continues.
    ///
    /// Does not block. Raises `ClosedError`.
    fn failure<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.read_only()?.failure().map(|error| crate::convert::errors::value(py, &error)).transpose()
    }

    /// Closes the read-only log. Returns None. Any thread may call it, more than once.
    ///
    /// Does not block. Readers continue to the end of the visible records; calls that wait there raise
    /// `ClosedError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let read_only = self.cell()?.take();
        py.detach(|| drop(read_only));
        Ok(())
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

    fn __aexit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        self.close(py)?;
        ready(py, Ok(py.None()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("read-only log", "directory"))
    }
}
