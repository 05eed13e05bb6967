//! An exactly-once session of a log here.
//!
//! Invariant: nobody has the session for longer than a slice of a wait, but who ends it.

use crate::errors::raise;
use crate::fork::Kept;
use crate::input::{self, Input};
use crate::options;
use crate::reader::not_pickled;
use crate::ticket::{Ticket, settle};
use crate::wait::{self, Limit};
use chiplog::{BatchBuilder, Error, ErrorKind, Result};
use pyo3::prelude::*;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// Appends that happen once each, in order, however often they are tried.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Session {
    /// None: it was closed.
    session: Kept<Mutex<Option<chiplog::Session>>>,
    /// How long room is waited for.
    patience: Duration,
}

impl Session {
    pub(crate) fn new(session: chiplog::Session, patience: Duration) -> PyResult<Self> {
        Ok(Self { session: Kept::new(Mutex::new(Some(session))).map_err(raise)?, patience })
    }

    /// Works with the session, as soon as no other thread does.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Option<chiplog::Session>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let cell = self.session.get().map_err(raise)?;
        wait::sliced(py, &Limit::none(), "another thread uses the session", |slice| {
            let used = attempt(cell, &mut work);
            used.unwrap_or_else(|| {
                std::thread::sleep(slice / 50);
                Err(Error::new(ErrorKind::Timeout, "not yet"))
            })
        })
    }

    /// Submits as soon as no other thread uses the session and there is room, in its window and in the log's queue. Waits
    /// for both at most as long as the log's options say.
    ///
    /// # Errors
    /// `Busy`: not in that time; nothing was appended.
    fn submit_by(
        &self,
        py: Python<'_>,
        limit: &Limit,
        mut submit: impl FnMut(&mut chiplog::Session, Duration) -> Result<chiplog::Ticket> + Send,
    ) -> PyResult<chiplog::Ticket> {
        let cell = self.session.get().map_err(raise)?;
        wait::for_room(py, limit.left_of(self.patience), |slice| {
            let submitted = attempt(cell, |session| submit(open(session)?, slice));
            submitted.unwrap_or_else(|| Err(Error::new(ErrorKind::Busy, "another thread uses the session")))
        })
    }

    fn ticket(&self, py: Python<'_>, record: &[u8], limit: &Limit) -> PyResult<chiplog::Ticket> {
        self.submit_by(py, limit, |session, slice| session.submit_within(record, slice))
    }

    /// The ticket of a batch, and how many records it has.
    fn batch_ticket(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
        limit: &Limit,
    ) -> PyResult<(chiplog::Ticket, u64)> {
        let codec = options::codec(codec)?;
        let records = input::records(records)?;
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
        let ticket =
            self.submit_by(py, limit, |session, slice| session.submit_batch_within(&mut batch, slice))?;
        Ok((ticket, slices.len() as u64))
    }
}

/// What came of it; None: another thread uses the session.
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
    /// The session's name for ever.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(open(session)?.id().get()))
    }

    /// The number that the next append gets.
    #[getter]
    fn next_sequence(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(open(session)?.next_sequence().get()))
    }

    /// Appends a record, once, and waits until it is durable.
    #[pyo3(signature = (record, timeout=None))]
    fn append(&self, py: Python<'_>, record: Input<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = Limit::new(timeout)?;
        let ticket = self.ticket(py, record.as_slice(), &limit)?;
        settle(py, &ticket, &limit)
    }

    /// Appends records as one batch, once, and waits until they are durable.
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
        let range = py.import("builtins")?.getattr("range")?;
        Ok(range.call1((first, first + count))?.unbind())
    }

    /// Begins to append a record; the ticket tells its index.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        Ticket::local(self.ticket(py, record.as_slice(), &Limit::none())?)
    }

    /// Begins to append records as one batch; the ticket tells the index of the first.
    #[pyo3(signature = (records, codec="none"))]
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::none())?.0)
    }

    /// As `submit`, but never waits for room: `BusyError`.
    fn try_submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        Ticket::local(self.ticket(py, record.as_slice(), &Limit::now())?)
    }

    /// As `submit_batch`, but never waits for room: `BusyError`.
    #[pyo3(signature = (records, codec="none"))]
    fn try_submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec, &Limit::now())?.0)
    }

    /// Ends the session once all of it is answered: the log forgets it. Without that it can be resumed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.with(py, |session| Ok(session.take()))?;
        session.map_or(Ok(()), |session| wait::on_thread(py, move || session.close()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("session", "id with its next_sequence"))
    }
}
