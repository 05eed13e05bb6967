//! Callbacks of settled appends: called one after the other on one thread for all of them.
//!
//! ```text
//! log's writer, network ── wake ──> the callbacks' thread ── takes the interpreter ──> fn(ticket)
//! ```
//!
//! Invariants:
//! - Who settles an append wakes that thread and goes on: it takes no interpreter, and no callback can hold it up.
//! - That thread has the interpreter during a call and at no other time.
//! - A callback may wait: tokio's budget for the polls of a task, which nothing would renew during a call, is not kept to.
//! - Once the interpreter begins to end no call begins; the one that runs is waited for.
//! - A forked child has a thread of its own, and calls nothing that its parent was given.

use crate::convert::errors::raise;
use crate::handles::ticket::Ticket;
use crate::runtime::fork;
use crate::runtime::threads;
use crate::runtime::wait;
use chiplog::{Error, ErrorKind, ForkGuard, Result};
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
    /// Set on the thread itself: nothing is called any more.
    ended: Arc<AtomicBool>,
}

/// Locked with the interpreter held, and never while Python runs.
static CALLER: Mutex<Option<Caller>> = Mutex::new(None);

/// The interpreter ends: no thread is begun that calls something.
static OVER: AtomicBool = AtomicBool::new(false);

impl Caller {
    /// The one of this process; None: there is none yet.
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
        forget(before); // the parent's, if there is one
        Ok(caller)
    }

    /// The one of this process, started if there is none.
    fn get() -> PyResult<Self> {
        if let Some(caller) = Self::current() {
            return Ok(caller);
        }
        Self::start().map_err(raise)
    }
}

/// Waits for the callbacks that are due, and lets none begin any more: the interpreter ends.
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    OVER.store(true, Ordering::Release);
    let Some(Caller { handle, ended, .. }) = Caller::current() else { return Ok(()) };
    let (tell, told) = oneshot::channel::<()>();
    // Behind all that were woken before.
    handle.spawn(async move {
        ended.store(true, Ordering::Release);
        drop(tell);
    });
    wait::to_the_end(py, None, told).map(drop)
}

/// Calls `function(ticket)` on the callbacks' thread once `settled` is ready, which is polled there, within `runtime` if it
/// needs one.
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

/// Does what `work` comes to on the callbacks' thread, with the interpreter, unless that ends before.
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

/// Calls it here.
pub(crate) fn call(ticket: &Bound<'_, Ticket>, function: &Bound<'_, PyAny>) -> PyResult<()> {
    function.call1((ticket,)).map(drop)
}
