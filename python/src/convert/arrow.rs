//! Arrow: a log's records for consumers of Arrow's C data interface, without a copy of their bytes. A batch becomes
//! an array of binary values, a reader a stream of tables with index, time and data.
//!
//! ```text
//! stream ── get_next ──> reader's next batch ──> struct ─┬─ index: uint64    made for it
//!                                                        ├─ time: timestamp  made for it
//!                                                        └─ data: binary     the batch's own bytes
//! ```
//!
//! Small consecutive batches that are already there are copied into one piece.
//!
//! The structures are defined here, three of about a dozen fields each. The `arrow` crates would add fifteen
//! packages.
//!
//! Invariants:
//! - Exported memory never changes and lives as long as pointers to it: an array holds its share of the batch,
//!   which holds the segment.
//! - A structure is released once: by the consumer that took it, which clears its callback, or by its capsule.
//! - A stream's callbacks may be called on any thread, with or without the interpreter: they acquire it themselves.
//! - A stream skips nothing: after an error the next call returns the same records, and after a panic the stream is
//!   over.
#![expect(unsafe_code, reason = "Arrow's C structures; each block says why it holds")]

use crate::convert::export::Offsets;
use chiplog::RecordBatch;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

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

/// `struct ArrowArrayStream` of Arrow's C stream interface.
#[repr(C)]
struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

// SAFETY: its pointers are to static memory, and to children that it alone owns through `private_data`.
unsafe impl Send for ArrowSchema {}
// SAFETY: its pointers are into data that it alone owns through `private_data`, which is `Send`.
unsafe impl Send for ArrowArray {}
// SAFETY: it alone owns all its data through `private_data`, which is `Send`.
unsafe impl Send for ArrowArrayStream {}

/// Structures that belong to another one.
struct Children<T>(Vec<*mut T>);

impl<T> Children<T> {
    fn new<const N: usize>(children: [T; N]) -> Self {
        Self(children.map(|child| Box::into_raw(Box::new(child))).into())
    }
}

impl<T> Drop for Children<T> {
    fn drop(&mut self) {
        for child in self.0.drain(..) {
            // SAFETY: it came from `Box::into_raw` above. A consumer that took the child copied it and cleared the
            // callback here, so dropping it releases only a child that was not taken.
            drop(unsafe { Box::from_raw(child) });
        }
    }
}

/// The data that an array owns: its buffers, the memory behind them, its children.
struct Held {
    buffers: Vec<*const c_void>,
    children: Children<ArrowArray>,
    _bytes: Bytes,
}

/// The memory behind the buffers.
#[expect(dead_code, reason = "held, and read only through the buffers")]
enum Bytes {
    Records(RecordBatch, Arc<[i32]>),
    Copies(Vec<u8>, Vec<i32>),
    Numbers(Vec<u64>),
    Nothing,
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the interface calls it once, with the structure that holds this callback. Its `private_data` came
    // from `Box::into_raw` in `schema`, and no other code touches it.
    unsafe {
        drop(Box::from_raw((*schema).private_data.cast::<Children<ArrowSchema>>()));
        (*schema).private_data = ptr::null_mut();
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the interface calls it once, with the structure that holds this callback. Its `private_data` came
    // from `Box::into_raw` in `array`, and no other code touches it.
    unsafe {
        drop(Box::from_raw((*array).private_data.cast::<Held>()));
        (*array).private_data = ptr::null_mut();
        (*array).release = None;
    }
}

macro_rules! released_when_dropped {
    ($($structure:ident),*) => {$(
        impl Drop for $structure {
            fn drop(&mut self) {
                if let Some(release) = self.release {
                    // SAFETY: it was neither released nor moved: either would have cleared the callback.
                    unsafe { release(self) };
                }
            }
        }
    )*};
}
released_when_dropped!(ArrowSchema, ArrowArray, ArrowArrayStream);

fn schema<const N: usize>(
    format: &'static CStr,
    name: &'static CStr,
    children: [ArrowSchema; N],
) -> ArrowSchema {
    let children = Box::into_raw(Box::new(Children::new(children)));
    ArrowSchema {
        format: format.as_ptr(),
        name: name.as_ptr(),
        metadata: ptr::null(),
        flags: 0, // never null
        n_children: N as i64,
        // SAFETY: `children` was just made from a box and is not shared.
        children: unsafe { (*children).0.as_mut_ptr() },
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: children.cast(),
    }
}

fn array<const N: usize>(
    length: u32,
    buffers: Vec<*const c_void>,
    children: [ArrowArray; N],
    bytes: Bytes,
) -> ArrowArray {
    let n_buffers = buffers.len() as i64;
    let held = Box::into_raw(Box::new(Held { buffers, children: Children::new(children), _bytes: bytes }));
    ArrowArray {
        length: i64::from(length),
        null_count: 0,
        offset: 0,
        n_buffers,
        n_children: N as i64,
        // SAFETY: `held` was just made from a box and is not shared.
        buffers: unsafe { (*held).buffers.as_mut_ptr() },
        // SAFETY: the same.
        children: unsafe { (*held).children.0.as_mut_ptr() },
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: held.cast(),
    }
}

/// A batch's records: binary, 32-bit offsets, never null.
fn binary(batch: &RecordBatch, offsets: &Offsets) -> ArrowArray {
    let numbers = offsets.numbers();
    let payload = batch.payload().as_ptr().cast::<c_void>();
    // A clone's bytes are the same ones, at the same place.
    let buffers = vec![ptr::null(), numbers.as_ptr().cast(), payload];
    array(batch.count(), buffers, [], Bytes::Records(batch.clone(), numbers))
}

/// 64-bit numbers, unsigned as an index, signed as a time: then they are below 2^63.
fn numbers(numbers: Vec<u64>) -> ArrowArray {
    let buffers = vec![ptr::null(), numbers.as_ptr().cast()];
    array(numbers.len() as u32, buffers, [], Bytes::Numbers(numbers))
}

/// The type of a row of a stream: `struct<index: uint64, time: timestamp[ms, UTC], data: binary>`.
fn row() -> ArrowSchema {
    let columns = [schema(c"L", c"index", []), schema(c"tsm:UTC", c"time", []), schema(c"z", c"data", [])];
    schema(c"+s", c"", columns)
}

/// Batches as rows: the bytes of one batch as they are, those of several concatenated.
fn rows(batches: &[RecordBatch]) -> ArrowArray {
    let count = batches.iter().map(RecordBatch::count).sum();
    let mut indexes = Vec::with_capacity(count as usize);
    let mut times = Vec::with_capacity(count as usize);
    for batch in batches {
        indexes.extend((batch.first().get()..).take(batch.count() as usize));
        times.extend(std::iter::repeat_n(batch.timestamp().get(), batch.count() as usize));
    }
    let data = match batches {
        [batch] => binary(batch, &Offsets::new(batch)),
        _ => copied(count, batches),
    };
    array(count, vec![ptr::null()], [numbers(indexes), numbers(times), data], Bytes::Nothing)
}

/// The records of small batches. Together they have less than [`ROWS_BYTES`] and [`SMALL_BYTES`], so that the offsets fit.
fn copied(count: u32, batches: &[RecordBatch]) -> ArrowArray {
    let (mut bytes, mut offsets) = (Vec::new(), Vec::with_capacity(count as usize + 1));
    offsets.push(0);
    for batch in batches {
        let before = bytes.len();
        offsets.extend((0..batch.count()).map(|n| (before + batch.end(n)) as i32));
        bytes.extend_from_slice(batch.payload());
    }
    let buffers = vec![ptr::null(), offsets.as_ptr().cast(), bytes.as_ptr().cast()];
    array(count, buffers, [], Bytes::Copies(bytes, offsets))
}

/// Smaller batches are collected: a table of a log appended record by record would otherwise have one piece per
/// record.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// The size of a collection, exceeded by less than one small batch.
pub(crate) const ROWS_BYTES: usize = 1 << 20;

/// The type of a batch's records as an array.
pub(crate) fn of_records(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, schema(c"z", c"", []), c"arrow_schema")
}

/// A batch's records as an Arrow array over the same bytes.
pub(crate) fn records<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
    offsets: &Offsets,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, binary(batch, offsets), c"arrow_array")
}

/// Returns the batches of a stream's next piece, at least one. None: the end.
pub(crate) type Next = Box<dyn FnMut(Python<'_>) -> PyResult<Option<Vec<RecordBatch>>> + Send>;

/// The data that a stream owns.
struct Streaming {
    next: Next,
    /// The last error, for `get_last_error`.
    error: CString,
    /// It panicked, and may have lost a batch: it returns no more.
    is_broken: bool,
}

/// A stream of tables.
pub(crate) fn stream(py: Python<'_>, next: Next) -> PyResult<Bound<'_, PyCapsule>> {
    let streaming = Box::new(Streaming { next, error: CString::default(), is_broken: false });
    let stream = ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release_stream),
        private_data: Box::into_raw(streaming).cast(),
    };
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

impl Streaming {
    /// The next table; a released one means the end.
    fn table(&mut self) -> Result<ArrowArray, (c_int, CString)> {
        let got = Python::try_attach(|py| (self.next)(py).map_err(|error| failure(py, &error)));
        let batches = got.unwrap_or_else(|| Err((ECANCELED, c"the interpreter has ended".to_owned())))?;
        Ok(batches.map_or_else(released, |batches| rows(&batches)))
    }

    /// As [`table`](Self::table); catches a panic.
    fn guarded(&mut self) -> Result<ArrowArray, (c_int, CString)> {
        let broken = || {
            (EIO, c"the reader panicked: records that it took may be lost, and the stream is over".to_owned())
        };
        if self.is_broken {
            return Err(broken());
        }
        catch_unwind(AssertUnwindSafe(|| self.table())).unwrap_or_else(|panic| {
            self.is_broken = true;
            // Dropping the payload of the panic can panic again.
            forget(panic);
            Err(broken())
        })
    }
}

unsafe extern "C" fn get_schema(_: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the interface passes a structure to be filled, without content that must be dropped.
    unsafe { out.write(row()) };
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the interface calls it with a stream that is not released, one call at a time. Its `private_data`
    // came from `Box::into_raw` in `stream`.
    let streaming = unsafe { &mut *(*stream).private_data.cast::<Streaming>() };
    let (array, code) = streaming.guarded().map_or_else(
        |(code, text)| {
            streaming.error = text;
            (released(), code)
        },
        |array| (array, 0),
    );
    // SAFETY: the interface passes a structure to be filled, without content that must be dropped.
    unsafe { out.write(array) };
    code
}

unsafe extern "C" fn get_last_error(stream: *mut ArrowArrayStream) -> *const c_char {
    // SAFETY: as in `get_next`; the text is valid until the next call.
    unsafe { (*(*stream).private_data.cast::<Streaming>()).error.as_ptr() }
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: the interface calls it once, with the structure that holds this callback. Its `private_data` came
    // from `Box::into_raw` in `stream`, and no other code touches it.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<Streaming>()));
        (*stream).private_data = ptr::null_mut();
        (*stream).release = None;
    }
}

/// An array that is marked as released.
fn released() -> ArrowArray {
    ArrowArray {
        length: 0,
        null_count: 0,
        offset: 0,
        n_buffers: 0,
        n_children: 0,
        buffers: ptr::null_mut(),
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: None,
        private_data: ptr::null_mut(),
    }
}

// As `errno` on Linux.
const EINTR: c_int = 4;
const EIO: c_int = 5;
const ENOMEM: c_int = 12;
const ECANCELED: c_int = 125;

/// An error as the interface reports it: a number and a text.
fn failure(py: Python<'_>, error: &PyErr) -> (c_int, CString) {
    let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // Not raised again: it would be set while the consumer raises its own error.
        return (EINTR, text);
    }
    (if error.is_instance_of::<PyMemoryError>(py) { ENOMEM } else { EIO }, text)
}
