//! A read-only log that another process may write.

use crate::convert::errors::raise;
use crate::convert::values;
use crate::handles::closes::{Closes, closes};
use crate::handles::reads::reads;
use crate::runtime::fork::Kept;
use crate::runtime::{notices, wait};
use chiplog::{Error, ErrorKind};
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
}

#[pymethods]
impl ReadOnlyLog {
    #[new]
    fn new(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        notices::ask(py)?;
        let read_only = wait::on_thread(py, move || chiplog::ReadOnlyLog::open(dir))?;
        Ok(Self { read_only: Kept::new(Mutex::new(Some(read_only))).map_err(raise)? })
    }

    /// Returns `Status`: the state of the log, as far as it is proven durable.
    ///
    /// Does not block. Raises `ClosedError`.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::status(py, &self.read_only()?.status())
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
        self.close_now(py)
    }
}

reads!(ReadOnlyLog, read_only, "Reads", "log", "appended");
closes!(ReadOnlyLog, "read-only log", "directory");

impl Closes for ReadOnlyLog {
    fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        let read_only = self.cell()?.take();
        py.detach(|| drop(read_only));
        Ok(())
    }
}
