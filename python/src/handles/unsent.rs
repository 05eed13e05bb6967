//! Unsent: producers with unacknowledged records that were not closed: they were dropped, or the program ended.
//!
//! ```text
//! producer ── dropped ──> ResourceWarning; sends in the background ── records left then ──> stderr
//!    `───── the interpreter ends ──> all of them send for exit_timeout ── records left then ──> stderr
//! ```
//!
//! Invariants:
//! - Each unacknowledged record is reported, by number: by the producer's own calls, or here.
//! - The registry is locked with the interpreter held, and never while Python runs or a thread waits.
//! - No network thread takes the interpreter: later reports are made on the callbacks' thread.
//! - A forked child neither waits for its parent's producers nor reports them.

use crate::handles::ticket::callbacks;
use crate::runtime::fork;
use crate::runtime::fork::Own;
use crate::runtime::notices;
use crate::runtime::say::{Say, say};
use crate::runtime::wait;
use chiplog::{ForkGuard, Result};
use chiplog_net::client::{Closed, Producer};
use futures_util::FutureExt;
use futures_util::future::join_all;
use pyo3::prelude::*;
use std::mem::forget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a producer continues when the program ends, by default.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A producer that still sends, whether or not the program has it.
pub(crate) struct Sending {
    pub(crate) producer: Producer,
    runtime: Handle,
    exit_timeout: Duration,
    /// Whether its end was reported.
    told: AtomicBool,
}

impl Sending {
    /// Marks its end as reported. Returns whether it was not before.
    pub(crate) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// The number of records that nothing else will report.
    fn open(&self) -> u64 {
        if self.told.load(Ordering::Acquire) { 0 } else { self.producer.unacknowledged() }
    }
}

/// The producers of a process.
struct Registry {
    guard: Arc<ForkGuard>,
    sending: Vec<Arc<Sending>>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Runs `work` with the producers of this process. None: it has none.
fn with<T>(work: impl FnOnce(&mut Vec<Arc<Sending>>) -> T) -> Option<T> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry
        .as_mut()
        .filter(|registry| !registry.guard.is_child())
        .map(|registry| work(&mut registry.sending))
}

/// Registers a producer.
///
/// # Errors
/// `Io`: the page of the fork guard cannot be allocated.
pub(crate) fn enter(
    py: Python<'_>,
    producer: Producer,
    runtime: Handle,
    exit_timeout: Duration,
) -> PyResult<Own<Arc<Sending>>> {
    let sending = Arc::new(Sending { producer, runtime, exit_timeout, told: AtomicBool::new(false) });
    if with(|all| all.push(sending.clone())).is_none() {
        begin(sending.clone()).map_err(crate::convert::errors::raise)?;
        py.import("chiplog._ending")?.call_method0("begin")?;
    }
    Own::new(sending).map_err(crate::convert::errors::raise)
}

/// Registers the first producer of this process.
fn begin(sending: Arc<Sending>) -> Result<()> {
    let registry = Registry { guard: fork::guard()?, sending: vec![sending] };
    let before = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).replace(registry);
    forget(before); // the parent's, if any
    Ok(())
}

fn leave(sending: &Arc<Sending>) {
    with(|all| all.retain(|other| !Arc::ptr_eq(other, sending)));
}

/// A producer's Python object was dropped. Its records are sent in the background, and those left then are
/// reported.
pub(crate) fn dropped(py: Python<'_>, sending: &Arc<Sending>) {
    let open = sending.open();
    if open == 0 {
        leave(sending);
        return;
    }
    // It can be dropped while an exception is being raised.
    let pending = PyErr::take(py);
    let what = format!(
        "a producer was dropped without close(), with {}; records in flight are sent in the background",
        records(open)
    );
    say(py, Say::Warn, &what);
    let later = sending.clone();
    let begun = callbacks::later(async move {
        // Each record has its own limit, delivery_timeout.
        let closing = later.clone();
        let closed = later.runtime.spawn(async move { closing.producer.close(Duration::MAX).await }).await;
        move |py: Python<'_>| {
            leave(&later);
            if let Ok(closed) = closed
                && later.tell()
            {
                report(py, Say::Tell, &closed, "of a producer that was dropped were not acknowledged");
            }
        }
    });
    if let Err(error) = begun {
        error.write_unraisable(py, None);
    }
    if let Some(pending) = pending {
        pending.restore(py);
    }
}

/// The interpreter ends. Producers that were not closed accept no more records, and send what they have for
/// `exit_timeout`. Records not acknowledged by then are reported. Then the callbacks that are due are called.
/// Finally the notices of the meantime are logged.
#[pyfunction]
#[pyo3(name = "_end")]
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    let all = with(std::mem::take).unwrap_or_default();
    let drained = drain(py, all);
    let called = callbacks::end(py);
    let logged = notices::end(py);
    drained.and(called).and(logged)
}

fn drain(py: Python<'_>, all: Vec<Arc<Sending>>) -> PyResult<()> {
    let (open, idle): (Vec<_>, Vec<_>) = all.into_iter().partition(|sending| sending.open() > 0);
    for sending in &idle {
        // Records sent from now on would be lost: they are refused.
        let _inside = sending.runtime.enter();
        let _ = sending.producer.close(Duration::ZERO).now_or_never();
    }
    let Some(runtime) = open.first().map(|sending| sending.runtime.clone()) else { return Ok(()) };
    for sending in &open {
        let given = records(sending.open());
        say(py, Say::Warn, &format!("the program ends with a producer that was not closed, with {given}"));
    }
    let waited = wait::to_the_end(py, Some(&runtime), close_all(&open, |sending| sending.exit_timeout));
    // After Ctrl-C nothing waits any more.
    let interrupted = waited.as_ref().err().is_some();
    let closed = match waited {
        Ok(closed) => Ok(closed),
        Err(error) => {
            let closed = py.detach(|| runtime.block_on(close_all(&open, |_| Duration::ZERO)));
            open.iter()
                .zip(&closed)
                .for_each(|(sending, closed)| tell_at_exit(py, sending, closed, interrupted));
            Err(error)
        }
    }?;
    open.iter().zip(&closed).for_each(|(sending, closed)| tell_at_exit(py, sending, closed, interrupted));
    Ok(())
}

async fn close_all(all: &[Arc<Sending>], limit: impl Fn(&Sending) -> Duration) -> Vec<Closed> {
    join_all(all.iter().map(|sending| sending.producer.close(limit(sending)))).await
}

fn tell_at_exit(py: Python<'_>, sending: &Sending, closed: &Closed, interrupted: bool) {
    if !sending.tell() {
        return;
    }
    let within = if interrupted {
        "before Ctrl-C".to_owned()
    } else {
        format!(
            "within {} s of the program's end (ProducerOptions.exit_timeout)",
            sending.exit_timeout.as_secs_f64()
        )
    };
    report(
        py,
        Say::Tell,
        closed,
        &format!("of a producer that was not closed were not acknowledged {within}"),
    );
}

/// The text for this number of records.
fn records(count: u64) -> String {
    if count == 1 {
        "1 record that is not acknowledged".into()
    } else {
        format!("{count} records that are not acknowledged")
    }
}

/// Reports the records that a producer left, if there are any.
pub(crate) fn report(py: Python<'_>, say_how: Say, closed: &Closed, how: &str) {
    let left = closed.left.len() as u64;
    let count = left + closed.untold;
    if count == 0 {
        return;
    }
    let in_doubt = closed.left.iter().filter(|left| left.in_doubt).count();
    let why = closed.failed.as_ref().map(|why| format!("; the last error: {why}")).unwrap_or_default();
    let what = format!(
        "{count} record(s) {how}: {} certainly not in the log, {in_doubt} may be in it, {} failed earlier{why}. Close \
         producers, or use `with`: both report each record",
        left - in_doubt as u64,
        closed.untold,
    );
    say(py, say_how, &what);
}
