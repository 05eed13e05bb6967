//! A copy of servers' log in this process.

use crate::batch::Record;
use crate::client::servers;
use crate::courier::{self, Finish, Taken, drive, drive_on_thread, ready};
use crate::errors::raise;
use crate::fork::{Kept, Own};
use crate::log::{arrival, get, in_thread};
use crate::reader::{Reader, Stream, batches, local, not_pickled, start};
use crate::wait::{self, Limit};
use crate::{options, values};
use chiplog::{ErrorKind, Index, Start};
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
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Follower {
    follower: Kept<follower::Follower>,
    /// A task waits for an event: a follower has one hook.
    waits: Arc<AtomicBool>,
}

/// The next event of a follower.
struct NextEvent {
    follower: Own<follower::Follower>,
    waits: Arc<AtomicBool>,
}

/// One who waits. Its end lets another one.
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
    fn follower(&self) -> PyResult<&follower::Follower> {
        self.follower.get().map_err(raise)
    }

    fn open_reader(slf: &Bound<'_, Self>, from: Start, follow: bool) -> PyResult<Reader> {
        let follower = slf.get().follower()?;
        local(slf.as_any(), slf.py().detach(|| follower.reader(from)), follow)
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
        let (cluster, options) = (servers(cluster)?, options::follower(options)?);
        let from = self::start(start, Start::First)?;
        let open = move || follower::Follower::open(dir, cluster, from, options);
        let follower = wait::on_thread(py, open)?;
        Ok(Self { follower: Kept::new(follower).map_err(raise)?, waits: Arc::default() })
    }

    /// Opens a follower, to be awaited.
    #[staticmethod]
    #[pyo3(signature = (dir, cluster, start=None, options=None))]
    fn open_async(
        py: Python<'_>,
        dir: PathBuf,
        cluster: &Bound<'_, PyAny>,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (cluster, options) = (servers(cluster)?, options::follower(options)?);
        let from = self::start(start, Start::First)?;
        let open = move || follower::Follower::open(dir, cluster, from, options);
        drive_on_thread(py, open, |py, follower| {
            let follower = Kept::new(follower).map_err(raise)?;
            Ok(Py::new(py, Self { follower, waits: Arc::default() })?.into_any())
        })
    }

    /// The record at `index`.
    fn get(&self, py: Python<'_>, index: u64) -> PyResult<Record> {
        let follower = self.follower()?;
        get(py, index, |start| follower.reader(start))
    }

    /// Reads what is here from `start`, the first record if not given, to the end there is when it comes there.
    #[pyo3(signature = (start=None))]
    fn read(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::First)?, false)
    }

    /// Reads what is here from `start`, the next record to come if not given, and waits at the end for more.
    #[pyo3(signature = (start=None))]
    fn tail(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        Self::open_reader(slf, self::start(start, Start::Next)?, true)
    }

    /// Reads in batches from `start`, the first record if not given; waits at the end if it follows.
    #[pyo3(signature = (start=None, *, follow=false))]
    fn batches(slf: &Bound<'_, Self>, start: Option<&Bound<'_, PyAny>>, follow: bool) -> PyResult<Stream> {
        batches(slf.py(), Self::open_reader(slf, self::start(start, Start::First)?, follow)?)
    }

    /// Waits until record `index` is here, or is known to be discarded.
    #[pyo3(signature = (index, timeout=None))]
    fn wait_for(&self, py: Python<'_>, index: u64, timeout: Option<f64>) -> PyResult<()> {
        let follower = self.follower()?;
        let what = format!("record {index} did not come");
        wait::sliced(py, &Limit::new(timeout)?, &what, |slice| follower.wait_for(Index(index), slice))
    }

    /// `wait_for`, to be awaited.
    fn wait_for_async(&self, py: Python<'_>, index: u64) -> PyResult<Py<PyAny>> {
        let follower = self.follower()?.clone();
        drive(py, None, async move {
            let there = arrival(follower.log(), Index(index)).await;
            let why = move |error| raise(follower.status().stopped.unwrap_or(error));
            let finish: Finish = Box::new(move |py| there.map(|()| py.None()).map_err(why));
            finish
        })
    }

    /// How the copy stands, as a log.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::info(py, &self.follower()?.log().info())
    }

    /// How following goes.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::follower_status(py, &self.follower()?.status())
    }

    /// What has happened, one event after the other; waits for one. `ClosedError`: nothing will any more.
    #[pyo3(signature = (timeout=None))]
    fn next_event<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let follower = self.follower()?;
        let next = |slice| follower.next_event(slice);
        let event = wait::sliced(py, &Limit::new(timeout)?, "nothing happened", next)?;
        values::follower_event(py, &event)
    }

    /// `next_event`, to be awaited: by one task at a time.
    fn next_event_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let follower = Own::new(self.follower()?.clone()).map_err(raise)?;
        courier::next(py, NextEvent { follower, waits: self.waits.clone() })
    }

    /// What the copy did since it was opened.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::stats(py, &self.follower()?.log().stats())
    }

    /// What waits in it.
    fn backlog<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::backlog(py, &self.follower()?.log().backlog())
    }

    /// Why it takes no more, if a write or sync has failed.
    fn poison_cause<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let cause = self.follower()?.log().poison_cause();
        cause.map(|error| crate::errors::value(py, &error)).transpose()
    }

    /// The options in force of the copy's files, each with its value.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        values::options(py, self.follower()?.log().options())
    }

    /// The directory.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.follower()?.log().path().to_path_buf())
    }

    /// Ends following. Readers go on to the end of what is here; whoever waits there is woken.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let follower = self.follower()?.clone();
        wait::on_thread(py, move || follower.close())
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
        Err(not_pickled("follower", "directory and options"))
    }
}
