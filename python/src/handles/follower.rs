//! A copy of the servers' log in this process.

use crate::convert::errors::raise;
use crate::convert::{input, values};
use crate::handles::client::servers;
use crate::handles::closes::{Closes, closes};
use crate::handles::log::arrival;
use crate::handles::options;
use crate::handles::reader::start;
use crate::handles::reads::reads;
use crate::runtime::asyncio_bridge;
use crate::runtime::asyncio_bridge::{Finish, Taken, drive, drive_on_thread, drive_result, none};
use crate::runtime::fork::Own;
use crate::runtime::handle::Handle;
use crate::runtime::notices;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{ErrorKind, Index, Result, Start};
use chiplog_net::follower;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// A copy of a log in this process, kept up to date from any server of its cluster.
///
/// `Follower(dir, cluster, start=None, options=None)` opens the copy in `dir`, a str or path, or creates one there.
/// `cluster`: an iterable of servers, "host:port"; one that runs is enough. `start`, where a new copy begins: an
/// index from 1, a `Start`, None: the first record. `options`: `FollowerOptions`, None: the defaults. A new copy
/// waits for a server, for up to `FollowerOptions.open_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the
/// wait.
///
/// Raises `TimeoutError`, `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`: no server could be
/// used; `OutOfRangeError`, `DiscardedError`: there is no such record; `LockedError`, `CorruptError`,
/// `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument or an option.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
/// close it.
/// After `close()` calls raise `ClosedError`, except for `close`, `path`, `options`, `poison_cause`, `status` and
/// the remaining events; readers continue to the end of the copy.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Follower {
    follower: Handle<follower::Follower>,
    /// A task waits for an event: a follower has only one hook.
    waits: Arc<AtomicBool>,
}

/// The next event of a follower.
struct NextEvent {
    follower: Own<follower::Follower>,
    waits: Arc<AtomicBool>,
}

/// Marks a waiting task. Dropping it allows the next one.
struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Taken for NextEvent {
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.follower.get().map_err(raise)?.next_event(Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            known => Ok(Some(values::follower_event(py, &known.map_err(raise)?)?.unbind())),
        }
    }

    fn bring(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let follower = self.follower.get().map_err(raise)?.clone();
        if self.waits.swap(true, Ordering::AcqRel) {
            return Err(PyRuntimeError::new_err("another task waits for this follower's next event"));
        }
        let waits = Waits(self.waits.clone());
        let future = async move {
            let there = Arc::new(AtomicBool::new(false));
            poll_fn(|context| {
                if there.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                let (there, waker) = (there.clone(), context.waker().clone());
                follower.on_event(move || {
                    there.store(true, Ordering::Release);
                    waker.wake();
                });
                Poll::Pending
            })
            .await;
            let finish: Finish = Box::new(move |py| {
                drop(waits);
                Ok(py.None())
            });
            finish
        };
        drive(py, None, future).map(Some)
    }
}

impl Follower {
    fn around(follower: follower::Follower) -> PyResult<Self> {
        Ok(Self { follower: Handle::new(follower, "follower")?, waits: Arc::default() })
    }

    fn follower(&self) -> PyResult<&follower::Follower> {
        self.follower.get()
    }
}

#[pymethods]
impl Follower {
    #[new]
    #[pyo3(signature = (dir, cluster, start=None, options=None))]
    fn new(
        py: Python<'_>,
        dir: PathBuf,
        cluster: &Bound<'_, PyAny>,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let open = opening(py, dir, cluster, start, options)?;
        Self::around(wait::on_thread(py, open)?)
    }

    /// Opens a follower. When awaited, gives the `Follower`.
    ///
    /// `dir`, `cluster`, `start`, `options` are those of `Follower`, and so is what it raises. Does not block. If
    /// it is cancelled, opening continues, and the follower is closed once it is open. `RuntimeError`: no event
    /// loop runs on this thread.
    #[staticmethod]
    #[pyo3(signature = (dir, cluster, start=None, options=None))]
    fn open_async(
        py: Python<'_>,
        dir: PathBuf,
        cluster: &Bound<'_, PyAny>,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let open = opening(py, dir, cluster, start, options)?;
        drive_on_thread(py, open, |py, follower| Ok(Py::new(py, Self::around(follower)?)?.into_any()))
    }

    /// Waits until record `index`, from 0, is here or is discarded. Returns None.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`: not in time; `ClosedError`, or the error that ended the follower: the record will not
    /// arrive; `InvalidArgumentError`, `TypeError`: an argument.
    #[pyo3(signature = (index, timeout=None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = input::index)] index: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let follower = self.follower()?;
        let what = format!("record {index} did not arrive");
        wait::sliced(py, &Limit::new(timeout)?, &what, |slice| follower.wait_for(Index(index), slice))
    }

    /// `wait_for`, to be awaited: gives None once record `index`, from 0, is here or is discarded.
    ///
    /// Does not block. To limit the wait, cancel it or use `asyncio.timeout`.
    ///
    /// Raises `ClosedError`, or the error that ended the follower: the record will not arrive;
    /// `InvalidArgumentError`, `TypeError`: `index`; `RuntimeError`: no event loop runs on this thread.
    fn wait_for_async(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = input::index)] index: u64,
    ) -> PyResult<Py<PyAny>> {
        let follower = self.follower()?.clone();
        let there = async move {
            let there = arrival(follower.log(), Index(index)).await;
            there.map_err(|error| follower.status().stopped.unwrap_or(error))
        };
        drive_result(py, None, there, none)
    }

    /// Returns `Status`: the state of the copy, as a log.
    ///
    /// Does not block. Raises `ClosedError`.
    fn log_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::status(py, &self.follower()?.log().status())
    }

    /// Returns `FollowerStatus`: the state of the follower. Also after `close()`.
    ///
    /// Does not block.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::follower_status(py, &self.follower.any()?.status())
    }

    /// Returns the next `FollowerEvent`, and waits for one. Each is returned once; the newest 1,024 are kept.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. Any thread may
    /// call it.
    ///
    /// Raises `TimeoutError`: no event in time; `ClosedError`: there will be no more events;
    /// `InvalidArgumentError`, `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=None))]
    fn next_event<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let follower = self.follower.any()?;
        let next = |slice| follower.next_event(slice);
        let event = wait::sliced(py, &Limit::new(timeout)?, "nothing happened", next)?;
        values::follower_event(py, &event)
    }

    /// `next_event`, to be awaited: gives the next `FollowerEvent`. One task at a time.
    ///
    /// Does not block. A cancelled task has taken no event. Raises `ClosedError`: there will be no more events;
    /// `RuntimeError`: another task waits, or no event loop runs on this thread.
    fn next_event_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let follower = Own::new(self.follower.any()?.clone()).map_err(raise)?;
        asyncio_bridge::next(py, NextEvent { follower, waits: self.waits.clone() })
    }

    /// Returns `Metrics`: the copy's counters since it was opened, and the work that waits in it now.
    ///
    /// Does not block. Raises `ClosedError`.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::metrics(py, &self.follower()?.log().metrics())
    }

    /// Returns why the copy accepts no more records, the `Error` of a failed write or sync; None: it continues.
    ///
    /// Does not block. Also after `close()`.
    fn poison_cause<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let cause = self.follower.any()?.log().poison_cause();
        cause.map(|error| crate::convert::errors::value(py, &error)).transpose()
    }

    /// The `Options` of the copy's files that are in force, each with its value.
    ///
    /// The given options, the defaults, and limits lowered to fit the segment size. Also after `close()`.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::options(py, self.follower.any()?.log().options())
    }

    /// The directory, a `pathlib.Path`. Also after `close()`.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.follower.any()?.log().path().to_path_buf())
    }

    /// Stops following. Returns None. Any thread may call it, more than once.
    ///
    /// Blocks until the received records are durable and the directory is unlocked, without the GIL; it waits for
    /// no server. Ctrl-C ends the wait, and closing continues. Readers continue to the end of the copy; calls that
    /// wait there, in `wait_for` or in `next_event`, raise `ClosedError`.
    ///
    /// Raises `PoisonedError`: an earlier write failed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }
}

reads!(Follower, follower, "Reads the copy", "copy", "received");
closes!(Follower, "follower", "directory and options");

impl Closes for Follower {
    fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        let follower = self.follower.to_be_closed()?;
        wait::on_thread(py, move || follower.close())
    }

    fn close_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let follower = self.follower.to_be_closed()?;
        drive_on_thread(py, move || follower.close(), none)
    }
}

/// Returns what opens a follower with these arguments from Python.
fn opening(
    py: Python<'_>,
    dir: PathBuf,
    cluster: &Bound<'_, PyAny>,
    start: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl FnOnce() -> Result<follower::Follower> + Send + 'static> {
    let (cluster, options) = (servers(cluster)?, options::follower(options)?);
    notices::ask(py)?;
    let from = self::start(start, Start::First)?;
    Ok(move || follower::Follower::open(dir, cluster, from, options))
}
