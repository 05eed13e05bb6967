//! An exactly-once session of a log here.

use crate::errors::raise;
use crate::fork::Kept;
use crate::input::{self, Input};
use crate::reader::not_pickled;
use crate::ticket::{Ticket, settle};
use crate::{options, wait};
use chiplog::{BatchBuilder, Error, ErrorKind, Result};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError, TryLockError};

/// Appends that happen once each, in order, however often they are tried.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Session {
    /// None: it was closed.
    session: Kept<Mutex<Option<chiplog::Session>>>,
}

impl Session {
    pub(crate) fn new(session: chiplog::Session) -> PyResult<Self> {
        Ok(Self { session: Kept::new(Mutex::new(Some(session))).map_err(raise)? })
    }

    /// Works with the session. One thread at a time: another one waits for that.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Option<chiplog::Session>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let cell = self.session.get().map_err(raise)?;
        wait::sliced(py, None, "another thread uses the session", |slice| match cell.try_lock() {
            Ok(mut session) => work(&mut session),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(slice / 50);
                Err(Error::new(ErrorKind::Timeout, "not yet"))
            }
        })
    }

    fn ticket(&self, py: Python<'_>, record: &[u8]) -> PyResult<chiplog::Ticket> {
        self.with(py, |session| open(session)?.submit(record))
    }

    fn batch_ticket(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        codec: &str,
    ) -> PyResult<(chiplog::Ticket, u64)> {
        let codec = options::codec(codec)?;
        let records = input::records(records)?;
        let slices = input::slices(&records);
        let ticket = self.with(py, |session| {
            let mut builder = BatchBuilder::new();
            builder.codec(codec);
            for record in &slices {
                builder.push(record)?;
            }
            open(session)?.submit_batch(&mut builder)
        })?;
        Ok((ticket, slices.len() as u64))
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
        let timeout = wait::timeout(timeout)?;
        settle(py, &self.ticket(py, record.as_slice())?, timeout)
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
        let timeout = wait::timeout(timeout)?;
        let (ticket, count) = self.batch_ticket(py, records, codec)?;
        let first = settle(py, &ticket, timeout)?;
        let range = py.import("builtins")?.getattr("range")?;
        Ok(range.call1((first, first + count))?.unbind())
    }

    /// Begins to append a record; the ticket tells its index.
    fn submit(&self, py: Python<'_>, record: Input<'_>) -> PyResult<Ticket> {
        Ticket::local(self.ticket(py, record.as_slice())?)
    }

    /// Begins to append records as one batch; the ticket tells the index of the first.
    #[pyo3(signature = (records, codec="none"))]
    fn submit_batch(&self, py: Python<'_>, records: &Bound<'_, PyAny>, codec: &str) -> PyResult<Ticket> {
        Ticket::local(self.batch_ticket(py, records, codec)?.0)
    }

    /// Ends the session once all of it is answered: the log forgets it. Without that it can be resumed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cell = self.session.get().map_err(raise)?;
        let session = py.detach(|| cell.lock().unwrap_or_else(PoisonError::into_inner).take());
        session.map_or(Ok(()), |session| wait::on_thread(py, move || session.close()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("session", "id with its next_sequence"))
    }
}
