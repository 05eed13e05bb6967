//! How a thread waits: with the interpreter released, in slices, so that signals are checked in between.
//!
//! Must not know: what is waited for.

use crate::convert::errors::raise;
use crate::runtime::threads;
use chiplog::{Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The longest time until Ctrl-C, or a close by another thread, is noticed.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Postpones a Ctrl-C that cannot be raised here: the next check for signals raises it.
pub(crate) fn interrupt_later(py: Python<'_>) {
    let interrupted = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
    if let Err(error) = interrupted {
        error.write_unraisable(py, None);
    }
}

/// A time from Python, by its argument's name: seconds. None, or more than a clock can express, is no limit.
pub(crate) fn seconds(name: &str, given: Option<f64>) -> PyResult<Option<Duration>> {
    match given {
        None => Ok(None),
        Some(s) if s.is_nan() || s < 0.0 => Err(raise(Error::new(
            ErrorKind::InvalidArgument,
            format!("{name} is {s}; it has to be at least 0 seconds"),
        ))),
        Some(s) => Ok(Duration::try_from_secs_f64(s).ok()),
    }
}

/// A time-out that must be a duration: more than a clock can express becomes the longest.
pub(crate) fn timeout(given: f64) -> PyResult<Duration> {
    Ok(seconds("timeout", Some(given))?.unwrap_or(Duration::MAX))
}

/// One time limit over several waits.
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    /// Starts now, as [`seconds`].
    pub(crate) fn new(timeout: Option<f64>) -> PyResult<Self> {
        Ok(Self::of(seconds("timeout", timeout)?))
    }

    pub(crate) fn of(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|limit| Instant::now().checked_add(limit)))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Checks without waiting.
    pub(crate) fn now() -> Self {
        Self(Some(Instant::now()))
    }

    /// The rest of this limit, but at most `patience`.
    pub(crate) fn left_of(&self, patience: Duration) -> Duration {
        self.0.map_or(patience, |end| end.saturating_duration_since(Instant::now()).min(patience))
    }

    /// The next slice; zero: the time is up.
    fn slice(&self) -> Duration {
        self.left_of(SLICE)
    }
}

/// Calls `attempt` with a slice of time, again and again, until its result is not `Timeout`. None: not in time.
///
/// # Errors
/// The last error of `attempt`; the exception of a signal handler.
pub(crate) fn within<T: Send>(
    py: Python<'_>,
    limit: &Limit,
    mut attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<Option<T>> {
    loop {
        let slice = limit.slice();
        match py.detach(|| attempt(slice)) {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            done => return done.map(Some).map_err(raise),
        }
        py.check_signals()?;
        if slice.is_zero() {
            return Ok(None);
        }
    }
}

/// As [`within`]. If the time is up, raises `Timeout` with `what`.
pub(crate) fn sliced<T: Send>(
    py: Python<'_>,
    limit: &Limit,
    what: &str,
    attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<T> {
    let begun = Instant::now();
    within(py, limit, attempt)?.ok_or_else(|| {
        let within = begun.elapsed().as_secs_f64();
        raise(Error::new(ErrorKind::Timeout, format!("{what} within {within:.3} s")))
    })
}

/// Calls `attempt` with a slice of time, again and again, until its result is not `Busy`, for up to `patience`.
///
/// # Errors
/// The last error of `attempt`; the exception of a signal handler.
pub(crate) fn for_room<T: Send>(
    py: Python<'_>,
    patience: Duration,
    mut attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<T> {
    /// The next write makes space; the pause lets other threads run. Behind a rate it is as long as the error says, within a slice.
    const PAUSE: Duration = Duration::from_millis(1);
    let limit = Limit::of(Some(patience));
    loop {
        let slice = limit.slice();
        match py.detach(|| attempt(slice)) {
            Err(error) if error.kind() == ErrorKind::Busy && !slice.is_zero() => {
                py.check_signals()?;
                let pause = error.retry_after().map_or(PAUSE, |wait| wait.min(slice).max(PAUSE));
                py.detach(|| std::thread::sleep(pause));
            }
            done => return done.map_err(raise),
        }
    }
}

/// Wakes the polling thread.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls `future` on this thread until it is ready, within `runtime` if it needs one. None: not in time. The future
/// is dropped then, and when a signal handler raises.
pub(crate) fn block_on<F: Future<Output: Send> + Send>(
    py: Python<'_>,
    limit: &Limit,
    runtime: Option<&Handle>,
    future: F,
) -> PyResult<Option<F::Output>> {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    loop {
        let slice = limit.slice();
        if let Some(done) = py.detach(|| poll_for(slice, runtime, future.as_mut(), &unpark, &waker)) {
            return Ok(Some(done));
        }
        py.check_signals()?;
        if slice.is_zero() {
            return Ok(None);
        }
    }
}

/// Polls for a slice of time; at least once.
fn poll_for<F: Future>(
    slice: Duration,
    runtime: Option<&Handle>,
    mut future: Pin<&mut F>,
    unpark: &Unpark,
    waker: &Waker,
) -> Option<F::Output> {
    let _inside = runtime.map(Handle::enter);
    let end = Instant::now() + slice;
    loop {
        unpark.woken.store(false, Ordering::Relaxed);
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            return Some(done);
        }
        while !unpark.woken.load(Ordering::Acquire) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// As [`block_on`], without a limit.
pub(crate) fn to_the_end<F: Future<Output: Send> + Send>(
    py: Python<'_>,
    runtime: Option<&Handle>,
    future: F,
) -> PyResult<F::Output> {
    let done = block_on(py, &Limit::none(), runtime, future)?;
    done.ok_or_else(|| PyRuntimeError::new_err("a wait without a time-out ended"))
}

/// Runs uninterruptible work on a thread of its own, and waits for it: see [`threads::begin`].
pub(crate) fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    on_thread_within(py, &Limit::none(), "the work had no outcome", work)
}

/// As [`on_thread`], up to a limit. If the time is up, raises `Timeout` with `what`, and the work continues.
pub(crate) fn on_thread_within<T: Send + 'static>(
    py: Python<'_>,
    limit: &Limit,
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let begun = Instant::now();
    let done = block_on(py, limit, None, threads::begin(work).map_err(raise)?)?;
    let late = || {
        let within = begun.elapsed().as_secs_f64();
        raise(Error::new(ErrorKind::Timeout, format!("{what} within {within:.3} s")))
    };
    done.ok_or_else(late)?.map_err(raise)
}
