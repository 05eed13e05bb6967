//! Even: views of records that are all as long, cut by the same slices again and again.
//!
//! ```text
//! payload ── window of 64 records ── window[slice k] ──> view of record 64 w + k
//! ```
//!
//! To cut a view Python wants a slice object, and to make one, with its two numbers, costs more than to cut. Records of one
//! length need 64 of them, whatever their number. That is a quarter of a view's time: of 16 bytes 95 ns instead of 131. A copy
//! of them takes 49: the `memoryview` alone costs more, so that views of less than about 1 KiB stay behind copies.
//!
//! Invariant: what is locked is locked with the interpreter held, and never while Python runs.

use crate::convert::export;
use chiplog::RecordBatch;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records of a window; a batch of fewer is not worth it.
pub(crate) const WINDOW: u32 = 64;

type Slices = Arc<Vec<Py<PyAny>>>;

/// Of the length that was seen last; None: it was seen once, which may have been the only time.
static LAST: Mutex<Option<(usize, Option<Slices>)>> = Mutex::new(None);

/// A batch of records that are all as long.
pub(crate) struct Even {
    length: usize,
    slices: Slices,
    /// Which one was cut last, and what it is.
    window: Mutex<Option<(u32, Py<PyAny>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Even {
    /// None: they are not, or it is not worth it yet.
    pub(crate) fn of(py: Python<'_>, batch: &RecordBatch) -> PyResult<Option<Self>> {
        let length = batch.end(0);
        let is_even = |n: u32| batch.end(n) == (n as usize + 1) * length;
        if batch.count() < WINDOW || !(0..batch.count()).all(is_even) {
            return Ok(None);
        }
        let slices = slices(py, length, batch.count() >= 4 * WINDOW)?;
        Ok(slices.map(|slices| Self { length, slices, window: Mutex::new(None) }))
    }

    /// A view of record `n`, of a view of all of them.
    pub(crate) fn view<'py>(&self, all: &Bound<'py, PyMemoryView>, n: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = all.py();
        let (at, k) = (n / WINDOW, (n % WINDOW) as usize);
        let known =
            lock(&self.window).as_ref().filter(|(w, _)| *w == at).map(|(_, window)| window.clone_ref(py));
        let window = match known {
            Some(window) => window.into_bound(py),
            None => {
                let start = (at * WINDOW) as usize * self.length;
                // The last one is shorter, if they do not come out even.
                let window = export::slice(all, start, start + WINDOW as usize * self.length)?;
                let before = lock(&self.window).replace((at, window.clone().unbind()));
                drop(before);
                window
            }
        };
        window.get_item(self.slices[k].bind(py))
    }
}

/// The slices of records of this length, if they are `wanted`, or it is not the first time in a row.
fn slices(py: Python<'_>, length: usize, wanted: bool) -> PyResult<Option<Slices>> {
    let seen = lock(&LAST).as_ref().filter(|(last, _)| *last == length).map(|(_, slices)| slices.clone());
    if let Some(Some(slices)) = seen {
        return Ok(Some(slices));
    }
    let mut made = None;
    if wanted || seen.is_some() {
        let slice = py.get_type::<PySlice>();
        let cut = |k: usize| Ok(slice.call1((k * length, (k + 1) * length))?.unbind());
        made = Some(Arc::new((0..WINDOW as usize).map(cut).collect::<PyResult<Vec<_>>>()?));
    }
    let before = lock(&LAST).replace((length, made.clone()));
    drop(before);
    Ok(made)
}
