//! Bytes for other code without a copy: Python's buffer protocol. The files of this crate with `unsafe` are this
//! one, `convert/arrow.rs`, and `handles/batch/record.rs`, which exports its bytes through this one.
//!
//! Exported pointers are sound because:
//!
//! 1. The memory never changes: it is a verified batch of committed records, or offsets that were made once.
//! 2. It lives as long as pointers to it: a buffer holds the Python object that owns the bytes.
//! 3. It is exported as read-only.
#![expect(unsafe_code, reason = "Python's buffer protocol; each block says why it holds")]

use chiplog::RecordBatch;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The payload of a batch, as a buffer of bytes.
#[pyclass(frozen, name = "_Payload", module = "chiplog._chiplog")]
pub(crate) struct Payload(pub(crate) RecordBatch);

#[pymethods]
impl Payload {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().0.payload();
        // SAFETY: Python passes `view` to be filled; the bytes are those of `slf`, which owns them through its
        // batch.
        unsafe { give(view, slf.as_any(), bytes, flags) }
    }
}

/// Fills `view` with these bytes of `owner`, read-only: no code writes through the pointer.
///
/// # Safety
/// `view` is to be filled. The bytes never change, and live as long as `owner`, which the view then holds.
pub(crate) unsafe fn give(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    bytes: &[u8],
    flags: c_int,
) -> PyResult<()> {
    let start = bytes.as_ptr().cast_mut().cast::<c_void>();
    // SAFETY: this function's condition; the interpreter is held, as the owner's lifetime says.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
    };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// The starts and ends of a batch's records in its payload: one number more than records. A buffer of 32-bit
/// integers.
#[pyclass(frozen, name = "_Offsets", module = "chiplog._chiplog")]
pub(crate) struct Offsets {
    numbers: Arc<[i32]>,
    /// For views: the number of items, and their distance in bytes.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl Offsets {
    /// The numbers themselves, shared.
    pub(crate) fn numbers(&self) -> Arc<[i32]> {
        self.numbers.clone()
    }

    /// The offsets of this batch. The format limits a batch to 256 MiB, so they fit.
    pub(crate) fn new(batch: &RecordBatch) -> Self {
        let ends = (0..batch.count()).map(|n| batch.end(n) as i32);
        let numbers: Arc<[i32]> = std::iter::once(0).chain(ends).collect();
        let shape = [numbers.len() as ffi::Py_ssize_t];
        Self { numbers, shape, strides: [size_of::<i32>() as ffi::Py_ssize_t] }
    }
}

#[pymethods]
impl Offsets {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let bytes = size_of_val::<[i32]>(&this.numbers) as ffi::Py_ssize_t;
        // SAFETY: as for a payload. Shape, strides and format point to memory of `slf`, or static memory, and are
        // set only if requested; no consumer writes to them. A consumer that requests no shape gets the bytes,
        // which `FillInfo` set.
        unsafe {
            let start = this.numbers.as_ptr().cast_mut().cast::<c_void>();
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, 1, flags) != 0 {
                return Err(PyErr::fetch(slf.py()));
            }
            if flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
                (*view).format = c"i".as_ptr().cast_mut();
                (*view).itemsize = this.strides[0];
            }
            if flags & ffi::PyBUF_ND == ffi::PyBUF_ND {
                (*view).itemsize = this.strides[0];
                (*view).shape = this.shape.as_ptr().cast_mut();
            }
            if flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES {
                (*view).strides = this.strides.as_ptr().cast_mut();
            }
        }
        Ok(())
    }
}

/// The bytes from `start` to `end` of a view, as a view of their own. Faster than `PySlice::new`, which in pyo3
/// 0.30 leaks its two numbers.
pub(crate) fn slice<'py>(
    view: &Bound<'py, PyMemoryView>,
    start: usize,
    end: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let (start, end) = (start as ffi::Py_ssize_t, end as ffi::Py_ssize_t);
    // SAFETY: `view` is alive and the interpreter is held, as its lifetime says; the call returns a new reference,
    // or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(view.py(), ffi::PySequence_GetSlice(view.as_ptr(), start, end)) }
}
