//! Reads: what a log in this process, a read-only log and a copy have in common: records and readers of local files.

use crate::convert::errors::raise;
use crate::handles::batch::Batch;
use crate::handles::batch::record::Record;
use chiplog::{Error, ErrorKind, Index, Result, Start};
use pyo3::prelude::*;

/// Returns the record at `index`, with a reader that begins there.
pub(crate) fn get(
    py: Python<'_>,
    index: u64,
    reader: impl FnOnce(Start) -> Result<chiplog::Reader> + Send,
) -> PyResult<Record> {
    let read = || reader(Start::Index(Index(index)))?.next_batch();
    let batch = py.detach(read).map_err(raise)?;
    let beyond = || raise(Error::new(ErrorKind::OutOfRange, format!("record {index} does not exist yet")));
    let batch = batch.ok_or_else(beyond)?;
    let n = index.saturating_sub(batch.first().get());
    let batch = Py::new(py, Batch::new(py, batch)?)?;
    Ok(Record { batch, n: u32::try_from(n).unwrap_or_default() })
}

/// Gives a class the methods that read. `$log` is its method that returns what has `reader`; the texts are for `help()`.
macro_rules! reads {
    ($class:ident, $log:ident, $reads:literal, $of:literal, $comes:literal) => {
        impl $class {
            fn open_reader(
                slf: &Bound<'_, Self>,
                start: Option<&Bound<'_, PyAny>>,
                default: chiplog::Start,
                follow: bool,
            ) -> PyResult<crate::handles::reader::Reader> {
                let from = crate::handles::reader::start(start, default)?;
                let log = slf.get().$log()?;
                crate::handles::reader::local(slf.as_any(), slf.py().detach(|| log.reader(from)), follow)
            }
        }

        #[pymethods]
        impl $class {
            /// Returns the `Record` at `index`, from 1.
            ///
            /// Blocks only for the disk, without the GIL. Raises `OutOfRangeError`: the record does not exist yet;
            /// `DiscardedError`: it was discarded; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`:
            /// the files; `ClosedError`.
            fn get(
                &self,
                py: Python<'_>,
                #[pyo3(from_py_with = crate::convert::input::index)] index: u64,
            ) -> PyResult<crate::handles::batch::record::Record> {
                let log = self.$log()?;
                crate::handles::reads::get(py, index, |start| log.reader(start))
            }

            #[doc = concat!($reads, " from `start` on. Returns a `Reader` that ends at the end of the ", $of, ".")]
            ///
            /// `start`: an index from 1, a `Start`, or None: the first record. Blocks only for the disk, without the GIL.
            ///
            /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
            /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
            #[pyo3(signature = (start=None))]
            fn read(
                slf: &Bound<'_, Self>,
                start: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<crate::handles::reader::Reader> {
                Self::open_reader(slf, start, chiplog::Start::First, false)
            }

            #[doc = concat!($reads, " from `start` on, and waits at the end for new records. Returns a `Reader`.")]
            ///
            /// Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
            /// first record.
            ///
            #[doc = concat!("`start`: an index from 1, a `Start`, or None: the next record to be ", $comes, ". Blocks only for the disk,")]
            /// without the GIL.
            ///
            /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
            /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
            #[pyo3(signature = (start=None))]
            fn tail(
                slf: &Bound<'_, Self>,
                start: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<crate::handles::reader::Reader> {
                Self::open_reader(slf, start, chiplog::Start::Next, true)
            }

            #[doc = concat!($reads, " in batches from `start` on. Returns a `Stream` of `Batch`.")]
            ///
            /// `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for
            /// new records; if not, it ends there. Blocks only for the disk, without the GIL.
            ///
            /// Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
            /// invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`.
            #[pyo3(signature = (start=None, *, follow=false))]
            fn batches(
                slf: &Bound<'_, Self>,
                start: Option<&Bound<'_, PyAny>>,
                follow: bool,
            ) -> PyResult<crate::handles::reader::Stream> {
                let reader = Self::open_reader(slf, start, chiplog::Start::First, follow)?;
                crate::handles::reader::batches(slf.py(), reader)
            }
        }
    };
}
pub(crate) use reads;
