//! Readers: iterators over records, views, copies or batches, for `for` and for `async for`.
//!
//! Invariants:
//! - One batch is in hand; a record of it costs a lock that nobody waits under, and one object.
//! - A batch is taken from the source only while none is in hand, and put in hand before the source goes back: no record
//!   is lost or given twice, however many threads read. One for which there is no memory to be had is kept, and is the next.

use crate::convert::arrow;
use crate::convert::errors::not_pickled;
use crate::convert::errors::raise;
use crate::convert::input;
use crate::handles::batch::Batch;
use crate::handles::batch::record::Record;
use crate::handles::options;
use crate::runtime::asyncio_bridge;
use crate::runtime::asyncio_bridge::{Finish, Taken, drive, ready};
use crate::runtime::prefetch::Ahead;
use crate::runtime::reader_lease::{Desk, Lease, Source};
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
/// Made by `read`, `tail` and `reader` of a handle, which it keeps open until it is closed or dropped. Each step blocks
/// for the disk or the network, and where the reader follows for the next record, without the GIL; Ctrl-C ends the
/// wait. Threads may share it: each record is given to one of them. Of tasks of asyncio, one at a time waits; who is
/// cancelled has taken nothing.
///
/// Of files here, what is read on and on is read ahead on another thread: at most 9 MiB and a batch. What is ahead holds its
/// segments, and is given also if it is discarded meanwhile.
///
/// A step raises `DiscardedError`: the next record was discarded meanwhile; `OutOfRangeError`: there is no such record;
/// `CorruptError`, `IoError`: the files; `UndecodableError`: a batch that was appended so (`skip_batch`); `TimeoutError`, `UnavailableError`, `UnauthenticatedError`,
/// `PermissionDeniedError`: the servers; `ClosedError`: the reader was closed, or the end came of a log that was;
/// `ForkedError`: in a forked child. `with` and `async with` close it.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Reader {
    /// The log, read-only log or follower that it reads: it stays open for as long.
    of: Mutex<Option<Py<PyAny>>>,
    desk: Arc<Desk>,
    current: Mutex<Option<Current>>,
    /// A batch that the source gave and that could not be put in hand. Looked at by whoever has the source.
    kept: Mutex<Option<RecordBatch>>,
    /// The record behind those that are in hand; 0: not known.
    next: AtomicU64,
    /// The record that it began with; 0: not known.
    start: AtomicU64,
}

/// The batch in hand.
struct Current {
    batch: Py<Batch>,
    at: u32,
    count: u32,
}

/// What an iterator gives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Records,
    Views,
    Copies,
    Batches,
}

/// A batch in hand, from its record `.1` on.
type InHand = (Py<Batch>, u32);

impl Reader {
    /// `of`: what it keeps open.
    pub(crate) fn new(source: Source, runtime: Option<Handle>, of: Option<Py<PyAny>>) -> PyResult<Self> {
        let next = source.position().map_or(0, Index::get);
        let desk = Desk::new(source, runtime).map_err(raise)?;
        let (next, start) = (AtomicU64::new(next), AtomicU64::new(next));
        Ok(Self { of: Mutex::new(of), desk, current: Mutex::new(None), kept: Mutex::new(None), next, start })
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Option<RecordBatch>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch of a source that was taken, if it is known without waiting whether there is one.
    fn next_now(&self, py: Python<'_>, source: &mut Source) -> Option<chiplog::Result<Option<RecordBatch>>> {
        if let Some(batch) = self.kept().take() {
            return Some(Ok(Some(batch)));
        }
        py.detach(|| source.next_now())
    }

    /// The next of what is in hand: one record, or all of them.
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

    /// Takes a batch in hand, from its record `at` on. For whoever has the source.
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

    /// This batch was taken: the next one is behind it.
    fn passed(&self, batch: &RecordBatch) {
        self.begun_at(batch.first().get());
        self.next.store(batch.first().plus(batch.count().into()).get(), Ordering::Relaxed);
    }

    /// It is known now where it began, if it was not before.
    fn begun_at(&self, index: u64) {
        let _ = self.start.compare_exchange(0, index, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Asks the source where it is, where that is not known yet.
    fn look(&self) {
        if self.next.load(Ordering::Relaxed) == 0
            && let Some(index) = self.desk.position()
        {
            let _ = self.next.compare_exchange(0, index.get(), Ordering::Relaxed, Ordering::Relaxed);
            self.begun_at(index.get());
        }
    }

    /// The records of the next batch, of what is left in hand first. None: the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let Some((batch, n)) = self.take(py, true)? else { return Ok(None) };
        let mut records = batch.get().records().clone();
        records.skip_to(records.first().plus(n.into()));
        Ok(Some(records))
    }

    /// The next batch, and if it is small those behind it that are there now. None: the end. Once it has one nothing fails:
    /// what was taken would be lost.
    fn next_rows(&self, py: Python<'_>) -> PyResult<Option<Vec<RecordBatch>>> {
        let Some(first) = self.next_batch(py)? else { return Ok(None) };
        let mut bytes = arrow_bytes(&first);
        let mut rows = vec![first];
        let small = |batch: &RecordBatch| arrow_bytes(batch) < arrow::SMALL_BYTES;
        while bytes < arrow::ROWS_BYTES && rows.last().is_some_and(small) {
            if self.current().is_some() {
                break;
            }
            let Ok(mut lease) = self.desk.take(Duration::ZERO) else { break };
            if self.current().is_some() {
                break; // another thread brought something meanwhile
            }
            let Ok(source) = lease.source() else { break };
            // What goes wrong is met again by the next step.
            let Some(Ok(Some(batch))) = self.next_now(py, source) else { break };
            if !small(&batch) {
                self.next.store(batch.first().get(), Ordering::Relaxed);
                *self.kept() = Some(batch); // it comes next, as it is
                break;
            }
            bytes += arrow_bytes(&batch);
            self.passed(&batch);
            rows.push(batch);
        }
        Ok(Some(rows))
    }

    /// The source. None: another thread has had it all the time.
    fn lease(&self, py: Python<'_>, limit: &Limit) -> PyResult<Option<Lease>> {
        // Mostly nobody has it.
        match self.desk.take(Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            done => return done.map(Some).map_err(raise),
        }
        wait::within(py, limit, |slice| self.desk.take(slice))
    }

    /// The next batch of a source that was taken. None: the end, or not within the time.
    fn fetch(&self, py: Python<'_>, lease: &mut Lease, limit: &Limit) -> PyResult<Option<RecordBatch>> {
        py.check_signals()?; // a loop of the interpreter's own, such as that of list(), looks for none
        let source = lease.source().map_err(raise)?;
        if let Some(known) = self.next_now(py, source) {
            return known.map_err(raise);
        }
        let got = wait::block_on(py, limit, self.desk.runtime.as_ref(), lease.next())?;
        got.unwrap_or(Ok(None)).map_err(raise)
    }

    /// The next of what there is, with the interpreter released while it is waited for.
    fn take(&self, py: Python<'_>, all: bool) -> PyResult<Option<InHand>> {
        loop {
            if let Some(taken) = self.in_hand(py, all) {
                return Ok(Some(taken));
            }
            let forever = Limit::none();
            let Some(mut lease) = self.lease(py, &forever)? else { continue };
            if self.current().is_some() {
                continue; // another thread brought something meanwhile
            }
            let Some(batch) = self.fetch(py, &mut lease, &forever)? else { return Ok(None) };
            return Ok(Some((self.put(py, batch, if all { u32::MAX } else { 1 })?, 0)));
        }
    }

    pub(crate) fn next(&self, py: Python<'_>, kind: Kind) -> PyResult<Option<Py<PyAny>>> {
        let taken = self.take(py, kind == Kind::Batches)?;
        taken.map(|taken| make(py, kind, taken)).transpose()
    }

    /// What is awaited for the next of what there is.
    pub(crate) fn next_async(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<Py<PyAny>> {
        asyncio_bridge::next(slf.py(), NextOf { reader: slf.clone().unbind(), kind })
    }

    /// Brings a batch in hand. Some: what has to be awaited first. None: it is there.
    fn bring(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let mut lease = match this.desk.take(Duration::ZERO) {
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
            // The source goes back only when what it gave is in hand.
            let finish: Finish = Box::new(move |py| {
                let _lease = lease;
                take_in_hand(reader.bind(py), got).map(|()| py.None())
            });
            finish
        };
        drive(py, this.desk.runtime.clone(), future).map(Some)
    }
}

/// Puts what came in hand.
fn take_in_hand(reader: &Bound<'_, Reader>, got: chiplog::Result<Option<RecordBatch>>) -> PyResult<()> {
    let Some(batch) = got.map_err(raise)? else { return Err(PyStopAsyncIteration::new_err(())) };
    reader.get().put(reader.py(), batch, 0).map(drop)
}

/// The next of a reader.
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

/// What a batch takes as rows.
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

    /// Goes on with read-only views of the records' bytes. Returns a `Stream` of memoryview.
    ///
    /// Each view holds its segment of the log. The stream shares this reader's place. Does not block.
    fn views(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Views }
    }

    /// Goes on with copies of the records' bytes, which hold nothing. Returns a `Stream` of bytes.
    ///
    /// The stream shares this reader's place. Does not block.
    fn copies(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Copies }
    }

    /// Goes on with batches. Returns a `Stream` of `Batch`.
    ///
    /// The stream shares this reader's place; the first batch is what is left of the one in hand. Does not block.
    fn batches(slf: Bound<'_, Self>) -> Stream {
        Stream { reader: slf.unbind(), kind: Kind::Batches }
    }

    /// Index of the record that it began with, from 1, also once it has gone on; None: no server has settled it yet.
    ///
    /// Of `tail()` the one that came next when it was made. It may not be there yet.
    #[getter]
    fn start(&self) -> Option<u64> {
        self.look();
        Some(self.start.load(Ordering::Relaxed)).filter(|start| *start > 0)
    }

    /// Index of the record that comes next, from 1; None: no server has settled it yet.
    #[getter]
    fn position(&self) -> Option<u64> {
        self.look();
        if let Some(current) = self.current().as_ref() {
            return Some(current.batch.get().records().first().get() + u64::from(current.at));
        }
        Some(self.next.load(Ordering::Relaxed)).filter(|next| *next > 0)
    }

    /// Which server it reads from, "host:port"; None: none now, files here, or somebody waits for a record just now.
    #[getter]
    fn server(&self) -> Option<String> {
        self.desk.server()
    }

    /// Goes on at the record `index`, from 1, which may be the next one to come. Returns None.
    ///
    /// Blocks while another thread waits for a record, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises, of files here, `OutOfRangeError`, `DiscardedError`: there is no such record (of servers the next step does);
    /// `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`, `ForkedError`.
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

    /// Goes on behind a batch for which the last step raised `UndecodableError`.
    ///
    /// Where the last step did something else, nothing changes. Returns the index of the record that comes next; None: a
    /// reader over the network that has not begun.
    ///
    /// Does not block. Raises `ClosedError` when the reader is closed.
    fn skip_batch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let forever = Limit::none();
        let busy = || PyRuntimeError::new_err("another thread reads");
        let mut lease = self.lease(py, &forever)?.ok_or_else(busy)?;
        if self.current().is_some() || self.kept().is_some() {
            return Ok(self.position());
        }
        let skipped = wait::block_on(py, &forever, self.desk.runtime.as_ref(), lease.skip_batch())?;
        let next = skipped.unwrap_or(Ok(None)).map_err(raise)?;
        next.iter().for_each(|next| self.next.store(next.get(), Ordering::Relaxed));
        Ok(next.map(Index::get))
    }

    /// Waits until there is a record to read. Returns True; False: not in time, or at the end where it does not follow.
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

    /// Ends reading; whoever waits is woken with `ClosedError`. Returns None. Lets go of what it reads from.
    ///
    /// Does not block. From any thread, and more than once.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.desk.close());
        let before = (self.kept().take(), self.current().take());
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((before, of));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        ready(py, Ok(slf.into_any().unbind()))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        self.close(py);
        ready(py, Ok(py.None()))
    }

    /// Arrow's PyCapsule interface: what is read from here on, as tables of index, time and data. See `Stream`.
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

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("reader", "position"))
    }
}

/// A reader's records in another form, views, copies or batches: an iterator, also for `async for`.
///
/// Made by `batches` of a handle, and by `Reader.views`, `copies`, `batches`. Blocks, raises and is shared as its
/// `Reader`.
///
/// It exports Arrow's PyCapsules, as its `Reader` does: `pyarrow.table(log.batches())`, and whatever else takes them, reads
/// it to the end, as tables of `index` (uint64), `time` (timestamp[ms, UTC]) and `data` (binary), one for each batch of the
/// log, over its own bytes; batches below 64 KiB that are there are copied together, into tables of about 1 MiB. One that follows has no end: take it batch by batch, as with
/// `pyarrow.RecordBatchReader.from_stream`. What goes wrong, and a Ctrl-C, is raised as the consumer's own error, with the
/// text: of pyarrow an `OSError`.
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

    /// Closes its reader; whoever waits is woken with `ClosedError`. Returns None.
    ///
    /// Does not block. From any thread, and more than once.
    fn close(&self, py: Python<'_>) {
        self.reader.get().close(py);
    }

    /// Arrow's PyCapsule interface. There is one type that rows have, whatever is requested.
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

/// A reader of files here, those of `of`.
pub(crate) fn local(
    of: &Bound<'_, PyAny>,
    reader: chiplog::Result<chiplog::Reader>,
    follow: bool,
) -> PyResult<Reader> {
    let source = Source::Local(Box::new(Ahead::new(reader.map_err(raise)?)), follow);
    Reader::new(source, None, Some(of.clone().unbind()))
}

/// A stream of the batches of a reader.
pub(crate) fn batches(py: Python<'_>, reader: Reader) -> PyResult<Stream> {
    Ok(Stream { reader: Py::new(py, reader)?, kind: Kind::Batches })
}

/// Where to begin, as Python says it.
pub(crate) fn start(from: Option<&Bound<'_, PyAny>>, default: chiplog::Start) -> PyResult<chiplog::Start> {
    from.map_or(Ok(default), options::start)
}
