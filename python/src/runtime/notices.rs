//! Notices: chiplog's notices as records of `logging.getLogger("chiplog")`.
//!
//! ```text
//! any thread ── a text ──> Queue, bounded ── wakes ──> the logging thread ── takes the interpreter ──> logger.handle(record)
//! a handle is made, logging_changed(), records arrived ──> logger's level ──> chiplog_net::notices
//! ```
//!
//! Invariants:
//! - A thread with a notice takes the queue's lock and nothing else: no interpreter. No holder of that lock waits
//!   for the interpreter.
//! - The queue has `QUEUE_MAX` places. Notices beyond that are counted, and the count becomes a record.
//! - The lock of `CURRENT` is taken with the interpreter held, and no Python runs under it.
//! - An exception that `logging` raises for one notice does not prevent the others from being logged.
//! - When the interpreter ends, and producers and callbacks are done, the waiting notices are logged, and no more
//!   are accepted. A handler that hangs, or a Ctrl-C, ends that wait.
//! - A forked child has a thread of its own, once it makes a handle.

use crate::runtime::unraised::{ReportBy, report_unraised, swallow};
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use crate::runtime::{fork, threads};
use chiplog::internal::ForkGuard;
use chiplog_net::notices::{Notice, Notices, Severity};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::VecDeque;
use std::mem::{forget, take};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Notices that wait for the logging thread.
const QUEUE_MAX: usize = 1024;
const LOGGER: &str = "chiplog";
/// How long the end of the program waits for the logging of notices.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// An owned notice.
struct Kept {
    severity: Severity,
    target: String,
    text: String,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Kept>,
    dropped: u64,
    ended: bool,
}

#[derive(Default)]
struct NoticeQueue {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// The notices of this process.
struct Forwarding {
    guard: Arc<ForkGuard>,
    /// The level that the logger returned last.
    wanted: Option<Severity>,
    notices: Arc<NoticeQueue>,
    /// Ready once the logging thread is done.
    over: Option<oneshot::Receiver<()>>,
    ended: bool,
}

static CURRENT: Mutex<Option<Forwarding>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NoticeQueue {
    fn push(&self, notice: Notice<'_>) {
        let mut queue = lock(&self.queue);
        if queue.waiting.len() >= QUEUE_MAX || queue.ended {
            queue.dropped += 1;
            return;
        }
        let (target, text) = (notice.target.to_owned(), notice.text.to_owned());
        queue.waiting.push_back(Kept { severity: notice.severity, target, text });
        drop(queue);
        self.more.notify_one();
    }

    /// Returns the waiting notices, and the number of dropped ones. Waits for some. None: there will be no more.
    fn take(&self) -> Option<(VecDeque<Kept>, u64)> {
        let mut queue = lock(&self.queue);
        while queue.waiting.is_empty() {
            if queue.ended {
                return None;
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Some((take(&mut queue.waiting), take(&mut queue.dropped)))
    }

    fn end(&self) {
        lock(&self.queue).ended = true;
        self.more.notify_all();
    }

    /// The logging thread.
    fn log_all(&self) {
        while let Some((waiting, dropped)) = self.take() {
            let mut waiting = Some(waiting);
            let logged = Python::try_attach(|py| {
                let logged = log(py, waiting.take().unwrap_or_default(), dropped);
                logged.and_then(|()| ask(py)).unwrap_or_else(|error| error.write_unraisable(py, None));
            });
            if logged.is_none() {
                return; // the interpreter has ended
            }
        }
    }
}

/// The number of a level in `logging`.
fn level(severity: Severity) -> u32 {
    match severity {
        Severity::Error => 40,
        Severity::Warn => 30,
        Severity::Info => 20,
        Severity::Debug => 10,
        Severity::Trace => 5,
    }
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", (LOGGER,))
}

fn is_enabled(logger: &Bound<'_, PyAny>, severity: Severity) -> PyResult<bool> {
    logger.call_method1(intern!(logger.py(), "isEnabledFor"), (level(severity),))?.is_truthy()
}

fn log(py: Python<'_>, waiting: VecDeque<Kept>, dropped: u64) -> PyResult<()> {
    let logger = logger(py)?;
    let lost = (dropped > 0).then(|| Kept {
        severity: Severity::Warn,
        target: LOGGER.to_owned(),
        text: format!("{dropped} notices were dropped because logging could not keep up"),
    });
    for notice in waiting.into_iter().chain(lost) {
        // A filter, handler or record factory that raises affects only its own record.
        if let Err(error) = log_one(&logger, notice) {
            error.write_unraisable(py, Some(&logger));
        }
    }
    Ok(())
}

fn log_one(logger: &Bound<'_, PyAny>, notice: Kept) -> PyResult<()> {
    let py = logger.py();
    if !is_enabled(logger, notice.severity)? {
        return Ok(());
    }
    let extra = PyDict::new(py);
    extra.set_item("target", &notice.target)?;
    let none = py.None();
    let (level, text) = (level(notice.severity), notice.text);
    // name, level, file, line, message, arguments, exception, function, more attributes
    let record = (LOGGER, level, notice.target, 0, text, (), &none, &none, extra);
    let record = logger.call_method1(intern!(py, "makeRecord"), record)?;
    logger.call_method1(intern!(py, "handle"), (record,)).map(drop)
}

/// Asks the logger for its level, and applies it.
///
/// # Errors
/// Exceptions of `logging`.
pub(crate) fn ask(py: Python<'_>) -> PyResult<()> {
    let logger = logger(py)?;
    let mut wanted = None;
    for severity in Severity::ALL {
        if is_enabled(&logger, severity)? {
            wanted = Some(severity);
        }
    }
    set(wanted);
    Ok(())
}

fn set(wanted: Option<Severity>) {
    let mut current = lock(&CURRENT);
    let known = current.as_ref().filter(|forwarding| !forwarding.guard.is_child());
    match known {
        Some(forwarding) if forwarding.ended || forwarding.wanted == wanted => return,
        None if wanted.is_none() => return,
        _ => {}
    }
    if known.is_none() {
        // If there is no memory or no thread, nothing is logged; the log still works.
        let Some(new) = start() else { return };
        forget(current.replace(new)); // the parent's, if any
    }
    let Some(forwarding) = current.as_mut() else { return };
    let notices = forwarding.notices.clone();
    let changed = match wanted {
        Some(severity) => Notices::subscribe(severity, move |notice| notices.push(notice)),
        None => Notices::stop(),
    };
    if changed.is_ok() {
        forwarding.wanted = wanted;
    }
}

fn start() -> Option<Forwarding> {
    let (guard, notices) = (fork::guard().ok()?, Arc::<NoticeQueue>::default());
    let (done, over) = oneshot::channel();
    let log_all = {
        let notices = notices.clone();
        move || {
            notices.log_all();
            let _ = done.send(());
        }
    };
    threads::builder("chiplog-logging").spawn(log_all).ok()?;
    Some(Forwarding { guard, wanted: None, notices, over: Some(over), ended: false })
}

/// Logs the waiting notices and accepts no more, because the interpreter ends.
///
/// # Errors
/// A signal handler raised: nothing waits any more.
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    let over = {
        let mut current = lock(&CURRENT);
        let Some(forwarding) = current.as_mut().filter(|forwarding| !forwarding.guard.is_child()) else {
            return Ok(());
        };
        forwarding.ended = true;
        let _ = Notices::stop();
        forwarding.notices.end();
        forwarding.over.take()
    };
    let Some(over) = over else { return Ok(()) };
    let waited = wait::block_on(py, &Limit::of(Some(END_TIMEOUT)), None, over);
    if !matches!(waited, Ok(Some(_))) {
        let removed =
            py.import("chiplog._close_flag").and_then(|ending| ending.call_method0("drop_held_handlers"));
        if let Err(error) = removed {
            swallow(py, error);
        }
    }
    if waited?.is_none() {
        let what = format!(
            "a handler of logging.getLogger(\"chiplog\") did not return within {} s of the program's end; notices that it did \
             not log are lost",
            END_TIMEOUT.as_secs()
        );
        report_unraised(py, ReportBy::Hung, &what);
    }
    Ok(())
}

/// Reads again from `logging` which levels the logger "chiplog" wants. Returns None.
///
/// chiplog's notices (damage, a new leader, a peer that refuses) become records of that logger, whose attribute
/// `target` names the part of chiplog. The level is read when a log, read-only log, client or follower is made, and after
/// each delivery of records. Call this after you lower the level in between, so that the new notices arrive.
///
/// Does not block.
#[pyfunction]
pub(crate) fn logging_changed(py: Python<'_>) -> PyResult<()> {
    ask(py)
}
