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
use crate::runtime::unraised::{ReportBy, report_unraised};
use crate::runtime::wait;
use chiplog::Result;
use chiplog::internal::ForkGuard;
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
pub(crate) struct LiveProducer {
    pub(crate) producer: Producer,
    runtime: Handle,
    exit_timeout: Duration,
    /// Whether its end was reported.
    reported: AtomicBool,
}

impl LiveProducer {
    /// Marks its end as reported. Returns whether it was not before.
    pub(crate) fn mark_reported(&self) -> bool {
        !self.reported.swap(true, Ordering::AcqRel)
    }

    /// The number of records that nothing else will report.
    fn open(&self) -> u64 {
        if self.reported.load(Ordering::Acquire) { 0 } else { self.producer.unacknowledged() }
    }
}

/// The producers of a process.
struct Registry {
    guard: Arc<ForkGuard>,
    live: Vec<Arc<LiveProducer>>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Runs `work` with the producers of this process. None: it has none.
fn with<T>(work: impl FnOnce(&mut Vec<Arc<LiveProducer>>) -> T) -> Option<T> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.as_mut().filter(|registry| !registry.guard.is_child()).map(|registry| work(&mut registry.live))
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
) -> PyResult<Own<Arc<LiveProducer>>> {
    let live = Arc::new(LiveProducer { producer, runtime, exit_timeout, reported: AtomicBool::new(false) });
    if with(|all| all.push(live.clone())).is_none() {
        begin(live.clone()).map_err(crate::convert::errors::raise)?;
        py.import("chiplog._close_flag")?.call_method0("begin")?;
    }
    Own::new(live).map_err(crate::convert::errors::raise)
}

/// Registers the first producer of this process.
fn begin(live: Arc<LiveProducer>) -> Result<()> {
    let registry = Registry { guard: fork::guard()?, live: vec![live] };
    let before = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).replace(registry);
    forget(before); // the parent's, if any
    Ok(())
}

fn leave(live: &Arc<LiveProducer>) {
    with(|all| all.retain(|other| !Arc::ptr_eq(other, live)));
}

/// A producer's Python object was dropped. Its records are sent in the background, and those left then are
/// reported.
pub(crate) fn dropped(py: Python<'_>, live: &Arc<LiveProducer>) {
    let open = live.open();
    if open == 0 {
        leave(live);
        return;
    }
    // It can be dropped while an exception is being raised.
    let pending = PyErr::take(py);
    let what = format!(
        "a producer was dropped without close(), with {}; records in flight are sent in the background",
        records(open)
    );
    report_unraised(py, ReportBy::Warn, &what);
    let later = live.clone();
    let begun = callbacks::later(async move {
        // Each record has its own limit, delivery_timeout.
        let closing = later.clone();
        let closed = later.runtime.spawn(async move { closing.producer.close(Duration::MAX).await }).await;
        move |py: Python<'_>| {
            leave(&later);
            if let Ok(closed) = closed
                && later.mark_reported()
            {
                report(py, ReportBy::Print, &closed, "of a producer that was dropped were not acknowledged");
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

fn drain(py: Python<'_>, all: Vec<Arc<LiveProducer>>) -> PyResult<()> {
    let (open, idle): (Vec<_>, Vec<_>) = all.into_iter().partition(|live| live.open() > 0);
    for live in &idle {
        // Records sent from now on would be lost: they are refused.
        let _inside = live.runtime.enter();
        let _ = live.producer.close(Duration::ZERO).now_or_never();
    }
    let Some(runtime) = open.first().map(|live| live.runtime.clone()) else { return Ok(()) };
    for live in &open {
        let given = records(live.open());
        report_unraised(
            py,
            ReportBy::Warn,
            &format!("the program ends with a producer that was not closed, with {given}"),
        );
    }
    let waited = wait::to_the_end(py, Some(&runtime), close_all(&open, |live| live.exit_timeout));
    // After Ctrl-C nothing waits any more.
    let interrupted = waited.as_ref().err().is_some();
    let closed = match waited {
        Ok(closed) => Ok(closed),
        Err(error) => {
            let closed = py.detach(|| runtime.block_on(close_all(&open, |_| Duration::ZERO)));
            open.iter().zip(&closed).for_each(|(live, closed)| report_at_exit(py, live, closed, interrupted));
            Err(error)
        }
    }?;
    open.iter().zip(&closed).for_each(|(live, closed)| report_at_exit(py, live, closed, interrupted));
    Ok(())
}

async fn close_all(all: &[Arc<LiveProducer>], limit: impl Fn(&LiveProducer) -> Duration) -> Vec<Closed> {
    join_all(all.iter().map(|live| live.producer.close(limit(live)))).await
}

fn report_at_exit(py: Python<'_>, live: &LiveProducer, closed: &Closed, interrupted: bool) {
    if !live.mark_reported() {
        return;
    }
    let within = if interrupted {
        "before Ctrl-C".to_owned()
    } else {
        format!(
            "within {} s of the program's end (ProducerOptions.exit_timeout)",
            live.exit_timeout.as_secs_f64()
        )
    };
    report(
        py,
        ReportBy::Print,
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
pub(crate) fn report(py: Python<'_>, report_by: ReportBy, closed: &Closed, how: &str) {
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
    report_unraised(py, report_by, &what);
}
