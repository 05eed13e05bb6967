//! An exactly-once session of a log in this process.
//!
//! Invariants:
//! - No thread holds the session for longer than a slice of a wait, except the one that closes it, which takes it out.
//! - The session comes back if its close fails, so that it can be closed again.

use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::convert::input;
use crate::convert::input::{BatchLimit, Input};
use crate::convert::values;
use crate::handles::options;
use crate::handles::ticket::{Ticket, settle};
use crate::runtime::fork::Kept;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{BatchBuilder, Error, ErrorKind, Result};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Appends that take effect exactly once and in order, even if repeated. Made by `Log.session`,
/// `Log.resume_session`.
///
/// Each append has a number. To repeat one after a `TimeoutError`, or in another process, keep `id` and the
/// `next_sequence` from before it. Then append the same records to `log.resume_session(id, that number)`: they get
/// their original indexes. If you append them again to the same session object, they get the next number, and can
/// be stored twice.
///
/// Any thread may use it, one at a time. In a forked child each call raises `ForkedError`.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Session {
    shared: Kept<Arc<Shared>>,
    /// How long an append waits for space.
    patience: Duration,
    limit: BatchLimit,
}

/// The session, also for the thread that closes it.
struct Shared {
    /// None: it is being closed, or was closed.
    session: Mutex<Option<chiplog::Session>>,
    /// Held while a thread closes it.
    closing: Mutex<()>,
}

impl Shared {
    /// Closes the session, if it is open once no other thread closes it. Not under the session's lock: a call in one of the
    /// log's callbacks would wait for this, and this for the callback.
    fn close(&self) -> Result<()> {
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = || self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut session) = lock().take() else { return Ok(()) };
        session.close().inspect_err(|_| *lock() = Some(session))
    }
}

impl Session {
    pub(crate) fn new(session: chiplog::Session, patience: Duration, limit: BatchLimit) -> PyResult<Self> {
        let shared = Shared { session: Mutex::new(Some(session)), closing: Mutex::default() };
        Ok(Self { shared: Kept::new(Arc::new(shared)).map_err(raise)?, patience, limit })
    }

    /// Runs `work` with the session once no other thread uses it.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Option<chiplog::Session>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let cell = &self.shared.get().map_err(raise)?.session;
        wait::sliced(py, &Limit::none(), "another thread uses the session", |slice| {
            let used = attempt(cell, &mut work);
            used.unwrap_or_else(|| {
                std::thread::sleep(slice / 50);
                Err(Error::new(ErrorKind::Timeout, "not yet"))
            })
        })
    }

    /// Submits once no other thread uses the session and there is space in its window and in the log's queue. Waits
    /// for both up to the limit of the log's options.
    ///
    /// # Errors
    /// `Busy`: not in that time; nothing was appended.
    fn submit_by(
        &self,
        py: Python<'_>,
        limit: &Limit,
        mut submit: impl FnMut(&mut chiplog::Session, Duration) -> Result<chiplog::Ticket> + Send,
    ) -> PyResult<chiplog::Ticket> {
        let cell = &self.shared.get().map_err(raise)?.session;
        wait::for_room(py, limit.left_of(self.patience), |slice| {
            let submitted = attempt(cell, |session| submit(open(session)?, slice));
            submitted.unwrap_or_else(|| Err(Error::new(ErrorKind::Busy, "another thread uses the session")))
        })
    }

    fn ticket(&self, py: Python<'_>, record: &[u8], limit: &Limit) -> PyResult<chiplog::Ticket> {
        self.submit_by(py, limit, |session, slice| session.submit_within(record, slice).map(Into::into))
    }

    /// The ticket of a batch, and the number of its records.
    fn batch_ticket(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        limit: &Limit,
    ) -> PyResult<(chiplog::Ticket, u64)> {
        let codec = options::codec(codec)?;
        let records = input::records(records, self.limit)?;
        let slices = input::slices(&records);
        let gather = || {
            let mut batch = BatchBuilder::new();
            batch.codec(codec);
            for record in &slices {
                batch.push(record)?;
            }
            Ok(batch)
        };
        let mut batch = py.detach(gather).map_err(raise)?;
        let ticket = self.submit_by(py, limit, |session, slice| session.submit_within(&mut batch, slice))?;
        Ok((ticket, slices.len() as u64))
    }
}

/// The result; None: another thread uses the session.
fn attempt<T>(
    cell: &Mutex<Option<chiplog::Session>>,
    work: impl FnOnce(&mut Option<chiplog::Session>) -> Result<T>,
) -> Option<Result<T>> {
    match cell.try_lock() {
        Ok(mut session) => Some(work(&mut session)),
        Err(TryLockError::Poisoned(poisoned)) => Some(work(&mut poisoned.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn open(session: &mut Option<chiplog::Session>) -> Result<&mut chiplog::Session> {
    session.as_mut().ok_or_else(|| Error::new(ErrorKind::Closed, "the session was closed"))
}

#[pymethods]
impl Session {
    /// The session's permanent id, an integer. Raises `ClosedError` after `close()`.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(open(session)?.id().get()))
    }

    /// The number that the next append gets, from 1. Raises `ClosedError` after `close()`.
    #[getter]
    fn next_sequence(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(open(session)?.next_sequence().get()))
    }

    /// Appends a record, once, and waits until it is on stable storage. Returns its index, from 1.
    ///
    /// `record`: bytes or an object with a buffer, up to the log's `Options.record_bytes_max` bytes. `timeout`:
    /// seconds, from 0; None: no limit. Waits for space in the session's window and in the log's queue for up to
    /// `Options.queue_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED; to append it
    /// again without storing it twice, resume the session at its number. The same holds after Ctrl-C.
    /// `SequenceForgottenError`: it IS in the log; continue with the next. `BusyError`, `FullError`,
    /// `TooLargeError`, `SessionExpiredError`, `SequenceGapError`, `ClosedError`, `TypeError`,
    /// `InvalidArgumentError` (an argument): it is certainly not in the log.
    #[pyo3(signature = (record, timeout=None))]
    fn append(&self, py: Python<'_>, record: Input<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = Limit::new(timeout)?;
        let ticket = self.ticket(py, record.as_slice(), &limit)?;
        settle(py, &ticket, &limit)
    }

    /// Appends records as one batch, once, all or none, and waits for stable storage. Returns their indexes.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to the log's
    /// `Options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". `timeout`: seconds, from
    /// 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises what `append` does, for all the records: after `TimeoutError` they MAY STILL BE APPENDED.
    /// `InvalidArgumentError` also if there are no records.
    #[pyo3(signature = (records, codec="none", timeout=None))]
    fn append_batch(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let limit = Limit::new(timeout)?;
        let (ticket, count) = self.batch_ticket(py, records, codec, &limit)?;
        let first = settle(py, &ticket, &limit)?;
        values::range(py, first, count)
    }

    /// Submits a record, once. Returns a `Ticket` for its index.
    ///
    /// `record`: bytes or an object with a buffer, up to the log's `Options.record_bytes_max` bytes. Blocks while
    /// the session's window or the log's queue is full, for up to `Options.queue_timeout` seconds, without the GIL;
    /// Ctrl-C ends the wait.
    ///
    /// Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
    /// `TypeError`: the record was not accepted, and the next append gets its number. The ticket can raise the
    /// other errors of `append`.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        Ticket::local(self.ticket(py, record.as_slice(), &Limit::none())?)
    }

    /// Submits records as one batch, once, all or none. Returns a `Ticket` for the index of the first.
    ///
    /// `records`: an iterable of bytes or objects with a buffer, at least one, together up to the log's
    /// `Options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Blocks as `submit` does.
    ///
    /// Raises what `submit` does, and `InvalidArgumentError`: no records, or an unknown codec. None of them was
    /// accepted.
    #[pyo3(signature = (records, codec="none"))]
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::none())?.0)
    }

    /// As `submit`, with `record`, but raises `BusyError` if there is no space, or another thread uses the session.
    ///
    /// Does not block. Raises what `submit` does: the record was not accepted.
    fn try_submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        Ticket::local(self.ticket(py, record.as_slice(), &Limit::now())?)
    }

    /// As `submit_batch`, with `records` and `codec`, but raises `BusyError` if it would have to wait.
    ///
    /// Does not block, except for compression, without the GIL. Raises what `submit_batch` does: none of them was
    /// accepted.
    #[pyo3(signature = (records, codec="none"))]
    fn try_submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::now())?.0)
    }

    /// Ends the session once all its appends have an outcome. Returns None.
    ///
    /// The log forgets the session. Without this call the session can be resumed.
    /// Blocks, without the GIL; Ctrl-C ends the wait. Raises `PoisonedError`, `FullError`, `BusyError`, `ClosedError`
    /// (of the log): the session may be open in the log, and can be closed again. A close after one that succeeded
    /// does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get().map_err(raise)?.clone();
        wait::on_thread(py, move || shared.close())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("session", "id and next_sequence"))
    }
}
