//! Readers: iterators over records, views, copies or batches, for `for` and for `async for`.
//!
//! Invariants:
//! - A reader has one current batch. A record of it costs an uncontended lock and one object.
//! - A batch is taken from the source only while there is no current one, and becomes the current one before the
//!   source is returned. So no record is lost or returned twice, however many threads read. A batch for which
//!   memory cannot be allocated is kept as the next one.

use crate::convert::arrow;
use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::convert::input;
use crate::handles::batch::Batch;
use crate::handles::batch::record::Record;
use crate::handles::closes::{Closes, closes};
use crate::handles::options;
use crate::runtime::asyncio_bridge;
use crate::runtime::asyncio_bridge::{Finish, Taken, drive};
use crate::runtime::prefetch::Prefetch;
use crate::runtime::reader_lease::{Lease, SharedSource, Source};
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use chiplog::{ErrorKind, Index, RecordBatch};
use pyo3::exceptions::{PyRuntimeError, PyStopAsyncIteration};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// Records in order, from a log, a copy of one, or servers: an iterator of `Record`, also for `async for`.
///
/// Made by `read`, `tail` and `reader` of a handle, which it keeps open until it is closed or dropped. Each step
/// blocks for the disk or the network, and if the reader follows also for the next record, without the GIL; Ctrl-C
/// ends the wait. Threads may share it: each record goes to one of them. One asyncio task at a time may wait; a
/// cancelled one has taken nothing.
///
/// Continuous reading of local files is prefetched on another thread: up to 9 MiB plus one batch. Prefetched
/// records hold their segments, and are returned even if they are discarded meanwhile.
///
/// A step raises `DiscardedError`: the next record was discarded meanwhile; `OutOfRangeError`: there is no such
/// record; `CorruptError`, `IoError`: the files; `UndecodableError`: a batch that was appended in this state (see
/// `skip_batch`); `TimeoutError`, `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`: the servers;
/// `ClosedError`: the reader was closed, or it reached the end of a closed log; `ForkedError`: in a forked child.
/// `with` and `async with` close it.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Reader {
    /// The log, read-only log or follower that it reads: the reader keeps it open.
    of: Mutex<Option<Py<PyAny>>>,
    shared: Arc<SharedSource>,
    current: Mutex<Option<Current>>,
    /// A batch of the source that could not become the current one. Only the thread that holds the source uses it.
    kept: Mutex<Option<RecordBatch>>,
    /// The record behind the current batch; 0: unknown.
    next: AtomicU64,
    /// The first record; 0: unknown.
    start: AtomicU64,
}

/// The current batch.
struct Current {
    batch: Py<Batch>,
    at: u32,
    count: u32,
}

/// The type that an iterator returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Records,
    Views,
    Copies,
    Batches,
}

/// The current batch, from its record `.1` on.
type InHand = (Py<Batch>, u32);

impl Reader {
    /// `of`: the handle that it keeps open.
    pub(crate) fn new(source: Source, runtime: Option<Handle>, of: Option<Py<PyAny>>) -> PyResult<Self> {
        let next = source.position().map_or(0, Index::get);
        let shared = SharedSource::new(source, runtime).map_err(raise)?;
        let (next, start) = (AtomicU64::new(next), AtomicU64::new(next));
        Ok(Self {
            of: Mutex::new(of),
            shared,
            current: Mutex::new(None),
            kept: Mutex::new(None),
            next,
            start,
        })
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Option<RecordBatch>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch of a leased source, if it is known without waiting whether there is one.
    fn next_now(&self, py: Python<'_>, source: &mut Source) -> Option<chiplog::Result<Option<RecordBatch>>> {
        if let Some(batch) = self.kept().take() {
            return Some(Ok(Some(batch)));
        }
        py.detach(|| source.next_now())
    }

    /// The next part of the current batch: one record, or all of them.
    fn in_hand(&self, py: Python<'_>, all: bool) -> Option<InHand> {
        let mut hand = self.current();
        let current = hand.as_mut()?;
        let at = current.at;
        current.at += 1;
        if all || current.at == current.count {
            return hand.take().map(|c| (c.batch, at));
        }
        Some((current.batch.clone_ref(py), at))
    }

    /// Makes a batch the current one, from its record `at` on. Call it with the source leased.
    ///
    /// # Errors
    /// `MemoryError`: the batch is the next one again.
    fn put(&self, py: Python<'_>, batch: RecordBatch, at: u32) -> PyResult<Py<Batch>> {
        let made = Batch::new(py, batch.clone()).and_then(|made| Py::new(py, made));
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.begun_at(batch.first().get());
                self.next.store(batch.first().get(), Ordering::Relaxed);
                *self.kept() = Some(batch);
                return Err(error);
            }
        };
        let count = batch.count();
        self.passed(&batch);
        if at < count {
            let current = Current { batch: made.clone_ref(py), at, count };
            *self.current() = Some(current);
        }
        Ok(made)
    }

    /// This batch was returned: the next record is behind it.
    fn passed(&self, batch: &RecordBatch) {
        self.begun_at(batch.first().get());
        self.next.store(batch.first().plus(batch.count().into()).get(), Ordering::Relaxed);
    }

    /// Sets the first record, unless it is known already.
    fn begun_at(&self, index: u64) {
        let _ = self.start.compare_exchange(0, index, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Reads the source's position if it is unknown.
    fn look(&self) {
        if self.next.load(Ordering::Relaxed) == 0
            && let Some(index) = self.shared.position()
        {
            let _ = self.next.compare_exchange(0, index.get(), Ordering::Relaxed, Ordering::Relaxed);
            self.begun_at(index.get());
        }
    }

    /// The records of the next batch; first the rest of the current one. None: the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let Some((batch, n)) = self.take(py, true)? else { return Ok(None) };
        let mut records = batch.get().records().clone();
        records.skip_to(records.first().plus(n.into()));
        Ok(Some(records))
    }

    /// The next batch, and if it is small the batches behind it that are there now. None: the end. Once it has one
    /// it does not fail, because what it took would be lost.
    fn next_rows(&self, py: Python<'_>) -> PyResult<Option<Vec<RecordBatch>>> {
        let Some(first) = self.next_batch(py)? else { return Ok(None) };
        let mut bytes = arrow_bytes(&first);
        let mut rows = vec![first];
        let small = |batch: &RecordBatch| arrow_bytes(batch) < arrow::SMALL_BYTES;
        while bytes < arrow::ROWS_BYTES && rows.last().is_some_and(small) {
            if self.current().is_some() {
                break;
            }
            let Ok(mut lease) = self.shared.take(Duration::ZERO) else { break };
            if self.current().is_some() {
                break; // another thread brought a batch meanwhile
            }
            let Ok(source) = lease.source() else { break };
            let Some(Ok(Some(batch))) = self.next_now(py, source) else {
                source.forget_error(); // the next step meets the same one
                break;
            };
            if !small(&batch) {
                self.next.store(batch.first().get(), Ordering::Relaxed);
                *self.kept() = Some(batch); // it is the next one, unchanged
                break;
            }
            bytes += arrow_bytes(&batch);
            self.passed(&batch);
            rows.push(batch);
        }
        Ok(Some(rows))
    }

    /// The source. None: another thread had it the whole time.
    fn lease(&self, py: Python<'_>, limit: &Limit) -> PyResult<Option<Lease>> {
        // Usually it is free.
        match self.shared.take(Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            done => return done.map(Some).map_err(raise),
        }
        wait::within(py, limit, |slice| self.shared.take(slice))
    }

    /// The next batch of a leased source. None: the end, or the time is up.
    fn fetch(&self, py: Python<'_>, lease: &mut Lease, limit: &Limit) -> PyResult<Option<RecordBatch>> {
        py.check_signals()?; // a loop in C, such as list(), does not check
        let source = lease.source().map_err(raise)?;
        if let Some(known) = self.next_now(py, source) {
            return known.map_err(raise);
        }
        let got = wait::block_on(py, limit, self.shared.runtime.as_ref(), lease.next())?;
        got.unwrap_or(Ok(None)).map_err(raise)
    }

    /// The next part. Releases the interpreter while it waits.
    fn take(&self, py: Python<'_>, all: bool) -> PyResult<Option<InHand>> {
        loop {
            if let Some(taken) = self.in_hand(py, all) {
                return Ok(Some(taken));
            }
            let forever = Limit::none();
            let Some(mut lease) = self.lease(py, &forever)? else { continue };
            if self.current().is_some() {
                continue; // another thread brought a batch meanwhile
            }
            let Some(batch) = self.fetch(py, &mut lease, &forever)? else { return Ok(None) };
            return Ok(Some((self.put(py, batch, if all { u32::MAX } else { 1 })?, 0)));
        }
    }

    pub(crate) fn next(&self, py: Python<'_>, kind: Kind) -> PyResult<Option<Py<PyAny>>> {
        let taken = self.take(py, kind == Kind::Batches)?;
        taken.map(|taken| make(py, kind, taken)).transpose()
    }

    /// Returns an awaitable of the next part.
    pub(crate) fn next_async(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<Py<PyAny>> {
        asyncio_bridge::next(slf.py(), NextOf { reader: slf.clone().unbind(), kind })
    }

    /// Fetches a batch. Some: await this first. None: it is there.
    fn bring(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let mut lease = match this.shared.take(Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                return Err(PyRuntimeError::new_err(
                    "another task or thread waits for this reader's next record",
                ));
            }
            done => done.map_err(raise)?,
        };
        if this.current().is_some() {
            return Ok(None);
        }
        let source = lease.source().map_err(raise)?;
        if let Some(known) = this.next_now(py, source) {
            return take_in_hand(slf, known).map(|()| None);
        }
        let reader = slf.clone().unbind();
        let future = async move {
            let got = lease.next().await;
            // The source is returned only after its batch is the current one.
            let finish: Finish = Box::new(move |py| {
                let _lease = lease;
                take_in_hand(reader.bind(py), got).map(|()| py.None())
            });
            finish
        };
        drive(py, this.shared.runtime.clone(), future).map(Some)
    }
}

/// Makes a fetched batch the current one.
fn take_in_hand(reader: &Bound<'_, Reader>, got: chiplog::Result<Option<RecordBatch>>) -> PyResult<()> {
    let Some(batch) = got.map_err(raise)? else { return Err(PyStopAsyncIteration::new_err(())) };
    reader.get().put(reader.py(), batch, 0).map(drop)
}

/// The next item of a reader.
struct NextOf {
    reader: Py<Reader>,
    kind: Kind,
}

impl Taken for NextOf {
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let taken = self.reader.get().in_hand(py, self.kind == Kind::Batches);
        taken.map(|taken| make(py, self.kind, taken)).transpose()
    }

    fn bring(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Reader::bring(self.reader.bind(py))
    }
}

/// The bytes that a batch takes as rows.
fn arrow_bytes(batch: &RecordBatch) -> usize {
    batch.payload().len() + 20 * batch.count() as usize
}

fn make(py: Python<'_>, kind: Kind, (batch, n): InHand) -> PyResult<Py<PyAny>> {
    match kind {
        Kind::Records => Ok(Py::new(py, Record { batch, n })?.into_any()),
        Kind::Views => Ok(batch.get().record_view(py, n)?.unbind()),
        Kind::Copies => Ok(batch.get().record_copy(py, n)?.into_any().unbind()),
        Kind::Batches if n == 0 => Ok(batch.into_any()),
        Kind::Batches => {
            let mut rest = batch.get().records().clone();
            rest.skip_to(rest.first().plus(n.into()));
            Ok(Py::new(py, Batch::new(py, rest)?)?.into_any())
        }
    }
}

#[pymethods]
impl Reader {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.next(py, Kind::Records)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Self::next_async(slf, Kind::Records)
    }

    /// Continues with read-only views of the records' bytes. Returns a `Stream` of memoryview.
    ///
    /// Each view holds its segment of the log. The stream shares this reader's position. Does not block.
    fn views(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Views }
    }

    /// Continues with copies of the records' bytes, which hold nothing. Returns a `Stream` of bytes.
    ///
    /// The stream shares this reader's position. Does not block.
    fn copies(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Copies }
    }

    /// Continues with batches. Returns a `Stream` of `Batch`.
    ///
    /// The stream shares this reader's position; the first batch is the rest of the current one. Does not block.
    fn batches(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Batches }
    }

    /// Index of the first record, from 1, also after reading on; None: no server has determined it yet.
    ///
    /// For `tail()` the next record when it was made. It may not exist yet.
    #[getter]
    fn start(&self) -> Option<u64> {
        self.look();
        Some(self.start.load(Ordering::Relaxed)).filter(|start| *start > 0)
    }

    /// Index of the next record, from 1; None: no server has determined it yet.
    #[getter]
    fn position(&self) -> Option<u64> {
        self.look();
        if let Some(current) = self.current().as_ref() {
            return Some(current.batch.get().records().first().get() + u64::from(current.at));
        }
        Some(self.next.load(Ordering::Relaxed)).filter(|next| *next > 0)
    }

    /// The server that it reads from, "host:port"; None: there is none now, local files, or a thread waits for a
    /// record.
    #[getter]
    fn server(&self) -> Option<String> {
        self.shared.server()
    }

    /// Moves to the record `index`, from 1, which may be the next one to be appended. Returns None.
    ///
    /// Blocks while another thread waits for a record, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises, for local files, `OutOfRangeError`, `DiscardedError`: there is no such record (for servers the next
    /// step does); `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`, `ForkedError`.
    fn seek(&self, py: Python<'_>, #[pyo3(from_py_with = input::index)] index: u64) -> PyResult<()> {
        let busy = || PyRuntimeError::new_err("another thread reads");
        let mut lease = self.lease(py, &Limit::none())?.ok_or_else(busy)?;
        let source = lease.source().map_err(raise)?;
        py.detach(|| source.seek(Index(index))).map_err(raise)?;
        self.next.store(index, Ordering::Relaxed);
        let before = (self.kept().take(), self.current().take());
        drop(before);
        Ok(())
    }

    /// Skips a batch for which the last step raised `UndecodableError`.
    ///
    /// If the last step did something else, nothing changes. Returns the index of the next record; None: a reader
    /// over the network that has not begun.
    ///
    /// Does not block. Raises `ClosedError` if the reader is closed.
    fn skip_batch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let forever = Limit::none();
        let busy = || PyRuntimeError::new_err("another thread reads");
        let mut lease = self.lease(py, &forever)?.ok_or_else(busy)?;
        if self.current().is_some() || self.kept().is_some() {
            return Ok(self.position());
        }
        let skipped = wait::block_on(py, &forever, self.shared.runtime.as_ref(), lease.skip_batch())?;
        let next = skipped.unwrap_or(Ok(None)).map_err(raise)?;
        next.iter().for_each(|next| self.next.store(next.get(), Ordering::Relaxed));
        Ok(next.map(Index::get))
    }

    /// Waits until there is a record to read. Returns True; False: not in time, or the end was reached.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises what a step of the reader does; `InvalidArgumentError`, `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = Limit::new(timeout)?;
        loop {
            if self.current().is_some() {
                return Ok(true);
            }
            let Some(mut lease) = self.lease(py, &limit)? else { return Ok(false) };
            if self.current().is_some() {
                continue;
            }
            let Some(batch) = self.fetch(py, &mut lease, &limit)? else { return Ok(false) };
            self.put(py, batch, 0)?;
            return Ok(true);
        }
    }

    /// Closes the reader; calls that wait with it raise `ClosedError`. Returns None. Releases what it reads from.
    ///
    /// Does not block. Any thread may call it, more than once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }

    /// Arrow's PyCapsule interface: the remaining records, as tables of index, time and data. See `Stream`.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let reader = slf.clone().unbind();
        arrow::stream(slf.py(), Box::new(move |py| reader.get().next_rows(py)))
    }

    fn __repr__(&self) -> String {
        let at = |index: Option<u64>| index.map_or_else(|| "not known yet".into(), |index| index.to_string());
        format!("<chiplog.Reader from {}, next {}>", at(self.start()), at(self.position()))
    }
}

closes!(Reader, "reader", "position");

impl Closes for Reader {
    fn close_now(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.shared.close());
        let before = (self.kept().take(), self.current().take());
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((before, of));
        Ok(())
    }
}

/// A reader's records in another form, views, copies or batches: an iterator, also for `async for`.
///
/// Made by `batches` of a handle, and by `Reader.views`, `copies`, `batches`. Blocks, raises and is shared as its
/// `Reader`.
///
/// It exports Arrow's PyCapsules, as its `Reader` does. `pyarrow.table(log.batches())`, and other consumers of
/// Arrow, read it to the end, as tables of `index` (uint64), `time` (timestamp[ms, UTC]) and `data` (binary). There
/// is one table for each batch of the log, over its own bytes; batches below 64 KiB that are already there are
/// copied together, into tables of about 1 MiB. A stream that follows has no end: read it batch by batch, for
/// example with `pyarrow.RecordBatchReader.from_stream`. Errors, and a Ctrl-C, are raised as the consumer's own
/// error, with the text: with pyarrow an `OSError`.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Stream {
    pub(crate) reader: Py<Reader>,
    pub(crate) kind: Kind,
}

#[pymethods]
impl Stream {
    /// The `Reader` it reads from, with its position.
    #[getter]
    fn reader(&self, py: Python<'_>) -> Py<Reader> {
        self.reader.clone_ref(py)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.reader.get().next(py, self.kind)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Reader::next_async(self.reader.bind(py), self.kind)
    }

    /// Closes its reader; calls that wait with it raise `ClosedError`. Returns None.
    ///
    /// Does not block. Any thread may call it, more than once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.reader.get().close_now(py)
    }

    /// Arrow's PyCapsule interface. Rows always have this one type, whatever is requested.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        Reader::__arrow_c_stream__(self.reader.bind(py), requested_schema)
    }

    #[classmethod]
    fn __class_getitem__<'py>(cls: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        cls.clone().into_any()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("stream", "reader's position"))
    }
}

/// A reader of local files, those of `of`.
pub(crate) fn local(
    of: &Bound<'_, PyAny>,
    reader: chiplog::Result<chiplog::Reader>,
    follow: bool,
) -> PyResult<Reader> {
    let source = Source::Local(Box::new(Prefetch::new(reader.map_err(raise)?)), follow);
    Reader::new(source, None, Some(of.clone().unbind()))
}

/// A stream of the batches of a reader.
pub(crate) fn batches(py: Python<'_>, reader: Reader) -> PyResult<Stream> {
    Ok(Stream { reader: Py::new(py, reader)?, kind: Kind::Batches })
}

/// Converts a start from Python.
pub(crate) fn start(from: Option<&Bound<'_, PyAny>>, default: chiplog::Start) -> PyResult<chiplog::Start> {
    from.map_or(Ok(default), options::start)
}
