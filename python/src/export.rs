//! Bytes for others without a copy: Python's buffer protocol and Arrow's C data interface. The one file of this crate
//! with `unsafe` in it.
//!
//! Why it is sound to hand out pointers:
//!
//! 1. What they point into never changes: a verified batch of committed records, or offsets that were made once.
//! 2. It lives as long as it is pointed to: a buffer holds the Python object that owns the bytes, an Arrow array its own
//!    share of the batch, which holds the segment.
//! 3. Both are told to be read-only.
#![expect(
    unsafe_code,
    reason = "Python's buffer protocol and Arrow's C structures; each block says why it holds"
)]

use chiplog::RecordBatch;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMemoryView};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The payload of a batch, as a buffer of bytes.
#[pyclass(frozen, name = "_Payload", module = "chiplog._chiplog")]
pub(crate) struct Payload(pub(crate) RecordBatch);

#[pymethods]
impl Payload {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().0.payload();
        // SAFETY: `view` is Python's, to be filled; the bytes are those of `slf`, which the view comes to hold, is
        // frozen and owns them through its batch; they are given read-only, so nobody writes through the pointer.
        let filled = unsafe {
            let start = bytes.as_ptr().cast_mut().cast::<c_void>();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Where the records of a batch begin and end in its payload: one number more than records. A buffer of 32-bit integers.
#[pyclass(frozen, name = "_Offsets", module = "chiplog._chiplog")]
pub(crate) struct Offsets {
    numbers: Arc<[i32]>,
    /// For views: how many, and how far apart in bytes.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl Offsets {
    /// Of this batch. The format bounds a batch to 256 MiB, so that they fit.
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
        // SAFETY: as for a payload. Shape, strides and format are set to memory of `slf`, or static, and only where they
        // were asked for; no consumer writes to them. Whoever asks for no shape gets the bytes, which `FillInfo` set.
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

/// The bytes from `start` to `end` of a view, as a view of their own. In place of `PySlice::new`, which in pyo3 0.30
/// leaks its two numbers, and faster.
pub(crate) fn slice<'py>(
    view: &Bound<'py, PyMemoryView>,
    start: usize,
    end: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let (start, end) = (start as ffi::Py_ssize_t, end as ffi::Py_ssize_t);
    // SAFETY: `view` is alive and the interpreter is held, as its lifetime says; the call gives a new reference, or null
    // with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(view.py(), ffi::PySequence_GetSlice(view.as_ptr(), start, end)) }
}

/// `struct ArrowSchema` of Arrow's C data interface.
#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray` of Arrow's C data interface.
#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

// SAFETY: its pointers are to static memory.
unsafe impl Send for ArrowSchema {}
// SAFETY: its pointers are into what it owns alone through `private_data`, which is `Send`.
unsafe impl Send for ArrowArray {}

/// What an array owns.
struct Held {
    /// Nulls (none), offsets, values.
    buffers: [*const c_void; 3],
    _batch: RecordBatch,
    _offsets: Arc<[i32]>,
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the interface has it called once, with the structure that holds this callback. Nothing is to be freed.
    unsafe { (*schema).release = None };
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the interface has it called once, with the structure that holds this callback, whose `private_data` came
    // from `Box::into_raw` in `arrow_array` and is touched by nobody else.
    unsafe {
        drop(Box::from_raw((*array).private_data.cast::<Held>()));
        (*array).private_data = ptr::null_mut();
        (*array).release = None;
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: nobody has released or moved it away: either would have cleared the callback.
            unsafe { release(self) };
        }
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: nobody has released or moved it away: either would have cleared the callback.
            unsafe { release(self) };
        }
    }
}

/// The type of a batch's records for Arrow: binary, 32-bit offsets, never null.
pub(crate) fn arrow_schema(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let schema = ArrowSchema {
        format: c"z".as_ptr(),
        name: c"".as_ptr(),
        metadata: ptr::null(),
        flags: 0,
        n_children: 0,
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: ptr::null_mut(),
    };
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// A batch's records as an Arrow array over the same bytes.
pub(crate) fn arrow_array<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
    offsets: &Offsets,
) -> PyResult<Bound<'py, PyCapsule>> {
    let payload = batch.payload().as_ptr().cast::<c_void>();
    let numbers = offsets.numbers.clone();
    let buffers = [ptr::null(), numbers.as_ptr().cast::<c_void>(), payload];
    // A clone's bytes are the same ones, at the same place.
    let held = Box::into_raw(Box::new(Held { buffers, _batch: batch.clone(), _offsets: numbers }));
    let array = ArrowArray {
        length: i64::from(batch.count()),
        null_count: 0,
        offset: 0,
        n_buffers: 3,
        n_children: 0,
        // SAFETY: `held` was just made from a box and is not shared.
        buffers: unsafe { (*held).buffers.as_mut_ptr() },
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: held.cast(),
    };
    PyCapsule::new_with_value(py, array, c"arrow_array")
}
