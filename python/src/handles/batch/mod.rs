//! Batches as Python sees them: views of the log's own bytes.
//!
//! ```text
//! Record ──> Batch ──> memoryview ──> _Payload ──> RecordBatch ──> segment
//! ```
//!
//! Invariant: no reference cycle. A payload does not know the view that its batch keeps.

pub(crate) mod record;

use crate::convert::arrow;
use crate::convert::even::{Even, WINDOW};
use crate::convert::export;
use crate::convert::export::{Offsets, Payload};
use crate::handles::batch::record::Record;
use chiplog::RecordBatch;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyMemoryView};
use std::sync::atomic::{AtomicU32, Ordering};

/// Records that were appended together: a sequence of `Record`. Holds their segment of the log.
///
/// `len(batch)`, `batch[n]` (from 0; `IndexError`), iteration. Immutable; any thread may use it. It exports Arrow's
/// PyCapsules.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Batch {
    payload: Py<Payload>,
    /// One view of the payload; the views of records are slices of it.
    view: PyOnceLock<Py<PyMemoryView>>,
    offsets: PyOnceLock<Py<Offsets>>,
    /// How many record views were cut, and later how they are cut.
    cut: AtomicU32,
    even: PyOnceLock<Option<Even>>,
}

/// A copy above this size releases the interpreter.
const LARGE_BYTES: usize = 64 << 10;

impl Batch {
    pub(crate) fn new(py: Python<'_>, batch: RecordBatch) -> PyResult<Self> {
        let payload = Py::new(py, Payload(batch))?;
        let (view, offsets, even) = (PyOnceLock::new(), PyOnceLock::new(), PyOnceLock::new());
        Ok(Self { payload, view, offsets, cut: AtomicU32::new(0), even })
    }

    pub(crate) fn records(&self) -> &RecordBatch {
        &self.payload.get().0
    }

    fn payload_view<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyMemoryView>> {
        let make = || PyMemoryView::from(self.payload.bind(py).as_any()).map(Bound::unbind);
        Ok(self.view.get_or_try_init(py, make)?.bind(py))
    }

    fn record_offsets<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, Offsets>> {
        let make = || Py::new(py, py.detach(|| Offsets::new(self.records())));
        Ok(self.offsets.get_or_try_init(py, make)?.bind(py))
    }

    /// A view of record `n`.
    pub(crate) fn record_view<'py>(&self, py: Python<'py>, n: u32) -> PyResult<Bound<'py, PyAny>> {
        let (batch, all) = (self.records(), self.payload_view(py)?);
        // A caller that reads a few records need not compare the lengths of all.
        if self.cut.fetch_add(1, Ordering::Relaxed) >= WINDOW {
            self.cut.store(WINDOW, Ordering::Relaxed);
            if let Some(even) = self.even.get_or_try_init(py, || Even::of(py, batch))? {
                return even.view(all, n);
            }
        }
        let start = if n == 0 { 0 } else { batch.end(n - 1) };
        export::slice(all, start, batch.end(n))
    }

    /// A copy of record `n`.
    pub(crate) fn record_copy<'py>(&self, py: Python<'py>, n: u32) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.records().get(n).map(|r| r.data).unwrap_or_default();
        if data.len() < LARGE_BYTES {
            return Ok(PyBytes::new(py, data));
        }
        PyBytes::new_with(py, data.len(), |to| {
            py.detach(|| to.copy_from_slice(data));
            Ok(())
        })
    }

    fn place(&self, n: isize) -> PyResult<u32> {
        let count = self.records().count() as isize;
        let at = if n < 0 { n + count } else { n };
        if !(0..count).contains(&at) {
            return Err(PyIndexError::new_err(format!("index {n} is outside a batch of {count} records")));
        }
        Ok(at as u32)
    }
}

#[pymethods]
impl Batch {
    /// Index of the first record, from 1.
    #[getter]
    fn first(&self) -> u64 {
        self.records().first().get()
    }

    /// Index of the last record.
    #[getter]
    fn last(&self) -> u64 {
        self.first() + u64::from(self.records().count()) - 1
    }

    /// When the log accepted them, in milliseconds since 1970.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.records().timestamp().get()
    }

    /// The bytes of all records, one after the other: a read-only view, not a copy. It holds the segment until it
    /// is dropped.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        // A view of its own: releasing it does not affect the records' views.
        PyMemoryView::from(self.payload_view(py)?.as_any())
    }

    /// The starts and ends of records in `data`: a read-only view of 32-bit integers, one more than there are
    /// records.
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.record_offsets(py)?.as_any())
    }

    fn __len__(&self) -> usize {
        self.records().count() as usize
    }

    fn __getitem__(slf: Bound<'_, Self>, n: isize) -> PyResult<Record> {
        let n = slf.get().place(n)?;
        Ok(Record { batch: slf.unbind(), n })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Records {
        Records { batch: slf.unbind(), next: AtomicU32::new(0) }
    }

    /// Returns read-only views of all records' bytes, a list of memoryview. Each holds the segment.
    ///
    /// Does not block.
    fn views<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = PyList::empty(py);
        for n in 0..self.records().count() {
            views.append(self.record_view(py, n)?)?;
        }
        Ok(views)
    }

    /// Returns copies of all records' bytes, a list of bytes, which hold nothing of the log.
    ///
    /// Does not block; copies above 64 KiB are made without the GIL.
    fn copies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let copies = PyList::empty(py);
        for n in 0..self.records().count() {
            copies.append(self.record_copy(py, n)?)?;
        }
        Ok(copies)
    }

    /// Returns bytes and offsets as numpy arrays, of uint8 and int32, over the same memory.
    ///
    /// Does not block. Raises `ImportError`: numpy is not installed.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let from_buffer = FROM_BUFFER.import(py, "numpy", "frombuffer")?;
        let data = from_buffer.call1((self.payload_view(py)?, "u1"))?;
        Ok((data, from_buffer.call1((self.offsets(py)?, "i4"))?))
    }

    /// Returns the records as an Arrow array of binary values over the same memory.
    ///
    /// Other libraries accept the batch itself.
    ///
    /// Does not block. Raises `ImportError`: pyarrow is not installed.
    fn to_arrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        ARRAY.import(slf.py(), "pyarrow", "array")?.call1((slf,))
    }

    /// Arrow's PyCapsule interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::of_records(py)
    }

    /// Arrow's PyCapsule interface. Records always have this one type, whatever is requested.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let offsets = self.record_offsets(py)?;
        Ok((arrow::of_records(py)?, arrow::records(py, self.records(), offsets.get())?))
    }

    fn __repr__(&self) -> String {
        format!("<chiplog.Batch of {} records from {}>", self.records().count(), self.first())
    }
}

/// Iterates over a batch.
#[pyclass(frozen, name = "_Records", module = "chiplog._chiplog")]
struct Records {
    batch: Py<Batch>,
    next: AtomicU32,
}

#[pymethods]
impl Records {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Option<Record> {
        // At most the count plus the number of concurrent threads.
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        if n >= self.batch.get().records().count() {
            self.next.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Record { batch: self.batch.clone_ref(py), n })
    }
}
