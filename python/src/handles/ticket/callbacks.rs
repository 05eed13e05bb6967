//! Callbacks of completed appends: one thread calls all of them, one after the other.
//!
//! ```text
//! log's writer, network ── wake ──> the callbacks' thread ── takes the interpreter ──> fn(ticket)
//! ```
//!
//! Invariants:
//! - The thread that completes an append wakes the callbacks' thread and continues: it takes no interpreter, and no
//!   callback can hold it up.
//! - The callbacks' thread holds the interpreter only during a call.
//! - A callback may wait: tokio's budget for the polls of a task is ignored, because nothing would renew it during
//!   a call.
//! - Once the interpreter begins to end no call begins; the running one is waited for.
//! - A forked child has a thread of its own, and calls none of its parent's callbacks.

use crate::convert::errors::raise;
use crate::handles::ticket::Ticket;
use crate::runtime::fork;
use crate::runtime::threads;
use crate::runtime::wait;
use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use std::future::{Future, pending, poll_fn};
use std::mem::forget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::unconstrained;

/// The callbacks' thread: a runtime of one thread, without clock and sockets.
#[derive(Clone)]
struct Caller {
    guard: Arc<ForkGuard>,
    handle: Handle,
    /// Set on the thread itself: no more calls.
    ended: Arc<AtomicBool>,
}

/// Locked with the interpreter held, and never while Python runs.
static CALLER: Mutex<Option<Caller>> = Mutex::new(None);

/// The interpreter ends: no callbacks' thread is started any more.
static OVER: AtomicBool = AtomicBool::new(false);

impl Caller {
    /// The one of this process, or None.
    fn current() -> Option<Self> {
        let current = CALLER.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|caller| !caller.guard.is_child()).cloned()
    }

    fn start() -> Result<Self> {
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot start the callbacks' thread: {e}"));
        let guard = fork::guard()?;
        let runtime = Builder::new_current_thread().build().map_err(failed)?;
        let ended = Arc::new(AtomicBool::new(OVER.load(Ordering::Acquire)));
        let caller = Self { guard, handle: runtime.handle().clone(), ended };
        threads::builder("chiplog-callback")
            .spawn(move || runtime.block_on(pending::<()>()))
            .map_err(failed)?;
        let before = CALLER.lock().unwrap_or_else(PoisonError::into_inner).replace(caller.clone());
        forget(before); // the parent's, if any
        Ok(caller)
    }

    /// The one of this process, started if necessary.
    fn get() -> PyResult<Self> {
        if let Some(caller) = Self::current() {
            return Ok(caller);
        }
        Self::start().map_err(raise)
    }
}

/// Waits for the callbacks that are due, and begins no more, because the interpreter ends.
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    OVER.store(true, Ordering::Release);
    let Some(Caller { handle, ended, .. }) = Caller::current() else { return Ok(()) };
    let (done, called) = oneshot::channel::<()>();
    // Behind all that were woken before.
    handle.spawn(async move {
        ended.store(true, Ordering::Release);
        drop(done);
    });
    wait::to_the_end(py, None, called).map(drop)
}

/// Calls `function(ticket)` on the callbacks' thread once `settled` is ready. It is polled there, within `runtime`
/// if it needs one.
pub(crate) fn once_settled<F: Future<Output: Send> + Send + 'static>(
    ticket: &Bound<'_, Ticket>,
    function: Bound<'_, PyAny>,
    runtime: Option<Handle>,
    settled: F,
) -> PyResult<()> {
    let caller = Caller::get()?;
    let (ticket, function) = (ticket.clone().unbind(), function.unbind());
    let ended = caller.ended.clone();
    let mut settled = Box::pin(settled);
    let settled = poll_fn(move |context| {
        let _inside = runtime.as_ref().map(Handle::enter);
        settled.as_mut().poll(context).map(drop::<F::Output>)
    });
    caller.handle.spawn(unconstrained(async move {
        settled.await;
        if !ended.load(Ordering::Acquire) {
            Python::attach(|py| {
                let function = function.into_bound(py);
                if let Err(error) = call(ticket.bind(py), &function) {
                    error.write_unraisable(py, Some(&function));
                }
                drop(ticket);
            });
            return;
        }
        // There is no interpreter to give them back to.
        forget((ticket, function));
    }));
    Ok(())
}

/// Runs the result of `work` on the callbacks' thread, with the interpreter, unless the interpreter ends before.
pub(crate) fn later<F, T>(work: F) -> PyResult<()>
where
    F: Future<Output = T> + Send + 'static,
    T: FnOnce(Python<'_>) + Send,
{
    let caller = Caller::get()?;
    let ended = caller.ended.clone();
    caller.handle.spawn(unconstrained(async move {
        let then = work.await;
        if !ended.load(Ordering::Acquire) {
            Python::attach(then);
        }
    }));
    Ok(())
}

/// Calls the function on this thread.
pub(crate) fn call(ticket: &Bound<'_, Ticket>, function: &Bound<'_, PyAny>) -> PyResult<()> {
    function.call1((ticket,)).map(drop)
}
