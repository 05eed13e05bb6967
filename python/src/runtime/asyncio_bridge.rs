//! Futures of the log as asyncio futures and as coroutines: polled on the event loop's thread, woken from any
//! thread.
//!
//! ```text
//! log's writer, network ── wake ──> WakeQueue: due tasks ── eventfd ──> loop ── drain ──> poll ──> set_result
//! ```
//!
//! Invariants:
//! - Waking takes neither the interpreter nor a call into the loop: only a lock, and one write to the eventfd for
//!   all wake-ups until the loop drains it.
//! - A task whose asyncio future was cancelled is dropped and not polled again: what it would have taken stays.
//! - Tasks end with their loop: only the loop keeps its completions, and their end drops the futures of its
//!   tasks. A task that is never woken does not keep a closed loop alive.
//! - In a forked child nothing is polled, read or dropped.

use crate::convert::errors::raise;
use crate::runtime::fork::Own;
use crate::runtime::threads;
use chiplog::{Error, ErrorKind, Result};
use pyo3::exceptions::{PyBaseException, PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rustix::event::{EventfdFlags, eventfd};
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// The end of a task: makes the value, or raises, on the loop's thread.
pub(crate) type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Woken tasks that wait for their loop.
struct WakeQueue {
    bell: OwnedFd,
    due: Mutex<Vec<Arc<Task>>>,
    begun: Mutex<Begun>,
}

/// The tasks that were started and may still run.
#[derive(Default)]
struct Begun {
    tasks: Vec<Weak<Task>>,
    /// At this number of tasks the finished ones are removed: only after the number has doubled.
    full: usize,
}

impl Begun {
    fn add(&mut self, task: &Arc<Task>) {
        const FEW: usize = 64;
        if self.tasks.len() >= self.full.max(FEW) {
            self.tasks.retain(|task| task.strong_count() > 0);
            self.full = 2 * self.tasks.len();
        }
        self.tasks.push(Arc::downgrade(task));
    }
}

/// A Rust future in progress for an asyncio future.
struct Task {
    /// Weak: a task that waits to be woken does not keep it alive.
    wakes: Weak<WakeQueue>,
    queued: AtomicBool,
    /// None: done, cancelled, or being polled.
    work: Mutex<Option<Work>>,
}

struct Work {
    future: Own<Pin<Box<dyn Future<Output = Finish> + Send>>>,
    promise: Py<PyAny>,
    runtime: Option<Handle>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(wakes) = self.wakes.upgrade() else { return };
        let mut due = lock(&wakes.due);
        due.push(self);
        let first = due.len() == 1;
        drop(due);
        if first {
            // It fails only if the counter is already above 2^64 - 2.
            let _ = rustix::io::write(&wakes.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Task {
    fn step(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        let Some(mut work) = lock(&self.work).take() else { return Ok(()) };
        if work.promise.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
            return Ok(());
        }
        let waker = Waker::from(self.clone());
        let polled = py.detach(|| -> Result<Poll<Finish>> {
            let future = work.future.get_mut()?.as_mut();
            let _inside = work.runtime.as_ref().map(Handle::enter);
            Ok(future.poll(&mut Context::from_waker(&waker)))
        });
        let done = match polled {
            Ok(Poll::Pending) => {
                *lock(&self.work) = Some(work);
                return Ok(());
            }
            Ok(Poll::Ready(finish)) => finish(py),
            Err(forked) => Err(raise(forked)),
        };
        match done {
            Ok(value) => work.promise.call_method1(py, intern!(py, "set_result"), (value,))?,
            Err(error) => {
                work.promise.call_method1(py, intern!(py, "set_exception"), (error.into_value(py),))?
            }
        };
        Ok(())
    }
}

static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the event loop of this thread.
///
/// # Errors
/// `RuntimeError`: none runs.
pub(crate) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    RUNNING.import(py, "asyncio", "get_running_loop")?.call0()
}

/// Starts `future` for the running event loop, within `runtime` if it needs one, and returns an awaitable.
///
/// # Errors
/// `RuntimeError`: no loop runs on this thread.
pub(crate) fn drive(
    py: Python<'_>,
    runtime: Option<Handle>,
    future: impl Future<Output = Finish> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    static COMPLETIONS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static PENDING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let event_loop = running_loop(py)?;
    let completions = COMPLETIONS.import(py, "chiplog._aio", "completions")?.call1((&event_loop,))?;
    let wakes = completions.cast::<Completions>()?.get().wakes.get().map_err(raise)?;
    let promise = PENDING.import(py, "chiplog._aio", "Pending")?.call1((&event_loop,))?;
    let future: Pin<Box<dyn Future<Output = Finish> + Send>> = Box::pin(future);
    let future = Own::new(future).map_err(raise)?;
    let work = Mutex::new(Some(Work { future, promise: promise.clone().unbind(), runtime }));
    let task = Arc::new(Task { wakes: Arc::downgrade(wakes), queued: AtomicBool::new(false), work });
    task.step(py)?;
    if lock(&task.work).is_some() {
        lock(&wakes.begun).add(&task);
        promise.call_method1(intern!(py, "add_done_callback"), (Release { task },))?;
    }
    Ok(promise.unbind())
}

/// As [`drive`], for a future with a result, of which `finish` makes the value.
pub(crate) fn drive_result<T: Send + 'static>(
    py: Python<'_>,
    runtime: Option<Handle>,
    future: impl Future<Output = Result<T>> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    drive(py, runtime, async move {
        let done = future.await;
        let finish: Finish = Box::new(move |py| finish(py, done.map_err(raise)?));
        finish
    })
}

/// The value of a call that returns nothing.
pub(crate) fn none(py: Python<'_>, _: ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// Runs work that cannot be awaited on a thread of its own, for the running event loop: see [`threads::begin`].
///
/// # Errors
/// `RuntimeError`: no loop runs on this thread; then nothing is started. `Io`.
pub(crate) fn drive_on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    running_loop(py)?;
    drive_result(py, None, threads::begin(work).map_err(raise)?, finish)
}

/// Drops a task's future when nothing waits for it any more.
#[pyclass(frozen, name = "_Release", module = "chiplog._chiplog")]
struct Release {
    task: Arc<Task>,
}

#[pymethods]
impl Release {
    fn __call__(&self, py: Python<'_>, promise: Bound<'_, PyAny>) {
        drop(promise);
        let work = lock(&self.task.work).take();
        py.detach(|| drop(work));
    }
}

/// Delivers the log's wake-ups to one event loop.
#[pyclass(frozen, weakref, name = "_Completions", module = "chiplog._chiplog")]
pub(crate) struct Completions {
    wakes: Own<Arc<WakeQueue>>,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let failed = |e| raise(Error::new(ErrorKind::Io, format!("cannot make an eventfd: {e}")));
        let bell = bell.map_err(failed)?;
        let wakes = Arc::new(WakeQueue { bell, due: Mutex::default(), begun: Mutex::default() });
        Ok(Self { wakes: Own::new(wakes).map_err(raise)? })
    }

    /// The descriptor that the loop watches for reading.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.wakes.get().map_err(raise)?.bell.as_raw_fd())
    }

    /// Polls all woken tasks.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let wakes = self.wakes.get().map_err(raise)?;
        // Before the tasks are taken: a later wake-up writes to the eventfd again.
        let _ = rustix::io::read(&wakes.bell, &mut [0; 8]);
        let due = std::mem::take(&mut *lock(&wakes.due));
        let mut failed = None;
        for task in due {
            task.queued.store(false, Ordering::Release);
            if let Err(error) = task.step(py) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let Ok(wakes) = self.wakes.get() else { return };
        let begun = std::mem::take(&mut lock(&wakes.begun).tasks);
        let left: Vec<_> =
            begun.iter().filter_map(Weak::upgrade).filter_map(|t| lock(&t.work).take()).collect();
        if !left.is_empty() {
            Python::try_attach(|py| py.detach(|| drop(left)));
        }
    }
}

/// A sequence whose items are taken one at a time: an awaited item is taken when it is returned, not before.
pub(crate) trait Taken: Send + Sync {
    /// The next item, if it is there.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>>;

    /// Starts to wait for an item. Some: await this first. None: it is there.
    fn bring(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>>;
}

/// The awaitable of the next item. A cancelled task has taken nothing.
#[pyclass(frozen, name = "_Next", module = "chiplog._chiplog")]
struct Next {
    of: Box<dyn Taken>,
    /// The asyncio future that this awaits, as an iterator.
    waiting: Mutex<Option<Py<PyAny>>>,
}

/// Returns an awaitable that takes the next item.
pub(crate) fn next(py: Python<'_>, of: impl Taken + 'static) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Next { of: Box::new(of), waiting: Mutex::new(None) })?.into_any())
}

#[pymethods]
impl Next {
    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        loop {
            let current = lock(&self.waiting).take();
            if let Some(current) = current {
                match current.bind(py).call_method0(intern!(py, "__next__")) {
                    Ok(future) => {
                        *lock(&self.waiting) = Some(current);
                        return Ok(future.unbind());
                    }
                    Err(done) if done.is_instance_of::<PyStopIteration>(py) => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(value) = self.of.take(py)? {
                return Err(PyStopIteration::new_err((value,)));
            }
            if let Some(future) = self.of.bring(py)? {
                let awaited = future.bind(py).call_method0(intern!(py, "__await__"))?;
                *lock(&self.waiting) = Some(awaited.unbind());
            }
        }
    }

    fn close(&self) {
        let waiting = lock(&self.waiting).take();
        drop(waiting);
    }

    // The future wakes the task that awaits this: a cycle, which is broken when the loop is closed.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        match self.waiting.try_lock() {
            Ok(waiting) => waiting.as_ref().map_or(Ok(()), |waiting| visit.call(waiting)),
            Err(_) => Ok(()), // it is in use
        }
    }

    fn __clear__(&self) {
        let waiting = lock(&self.waiting).take();
        drop(waiting);
    }
}

/// The awaitable of a result that is already there.
#[pyclass(frozen, name = "_Ready", module = "chiplog._chiplog")]
pub(crate) struct Ready(Mutex<Option<PyResult<Py<PyAny>>>>);

/// Returns an awaitable of a result that is already there.
pub(crate) fn ready(py: Python<'_>, result: PyResult<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Ready(Mutex::new(Some(result))))?.into_any())
}

#[pymethods]
impl Ready {
    fn __next__(&self, _py: Python<'_>) -> PyResult<Py<PyAny>> {
        match lock(&self.0).take() {
            Some(Ok(value)) => Err(PyStopIteration::new_err((value,))),
            Some(Err(error)) => Err(error),
            None => Err(PyRuntimeError::new_err("this object was already awaited")),
        }
    }

    fn close(&self) {
        let result = lock(&self.0).take();
        drop(result);
    }
}

/// Makes an iterator with `close` an awaitable, and a coroutine for `asyncio.create_task`.
macro_rules! coroutine {
    ($($class:ident),*) => {
        $(
            #[pymethods]
            impl $class {
                fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                    slf
                }

                fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                    slf
                }

                fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                    let _ = value; // nothing awaited here uses one
                    self.__next__(py)
                }

                #[pyo3(signature = (kind, value=None, traceback=None))]
                fn throw(
                    &self,
                    kind: &Bound<'_, PyAny>,
                    value: Option<&Bound<'_, PyAny>>,
                    traceback: Option<&Bound<'_, PyAny>>,
                ) -> PyResult<()> {
                    self.close();
                    Err(thrown(kind, value, traceback))
                }
            }
        )*
    };
}

coroutine!(Next, Ready);

/// The arguments of a coroutine's `throw`: an exception, or a class with a value.
fn thrown(
    kind: &Bound<'_, PyAny>,
    value: Option<&Bound<'_, PyAny>>,
    traceback: Option<&Bound<'_, PyAny>>,
) -> PyErr {
    let is_exception = |given: &&Bound<'_, PyAny>| given.is_instance_of::<PyBaseException>();
    let given = Some(kind).filter(is_exception).or(value.filter(is_exception)).cloned();
    let made = given.map_or_else(|| value.map_or_else(|| kind.call0(), |value| kind.call1((value,))), Ok);
    match made {
        Ok(exception) => {
            if let Some(traceback) = traceback.filter(|traceback| !traceback.is_none())
                && let Err(error) = exception.setattr("__traceback__", traceback)
            {
                return error;
            }
            PyErr::from_value(exception)
        }
        Err(error) => error,
    }
}
