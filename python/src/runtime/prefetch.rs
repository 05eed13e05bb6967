//! Prefetch: reads and verifies the log's files on a separate thread, while the interpreter works on earlier records.
//!
//! ```text
//! reader here ── enough bytes without a pause ──> lent to a thread: run, run, run … ── no more now ──> here again
//! ```
//!
//! Verification dominates the cost of reading. With one thread for it and one for the interpreter, a loop over
//! records takes the time of the slower of the two, not the sum.
//!
//! Must not know: the interpreter.
//!
//! Invariants:
//! - A reader is here or on the thread, never both. Batches are in the log's order, whichever thread read them.
//! - If the thread meets anything but batches, such as damage, it leaves it to be met again here: no error is
//!   reported early.
//! - No call waits for the thread's end: it ends by itself, together with the reader it was lent.
//! - The prefetched bytes are bounded: see [`RUN_BYTES`], [`LARGE_BYTES`].

use crate::runtime::threads;
use chiplog::{Error, ErrorKind, Index, Reader, RecordBatch, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// The bytes that are read without a pause before a thread is worth it.
const STRAIGHT_BYTES: usize = 2 << 20;
/// The size of a run, exceeded by less than one batch. There are three runs: one is returned, one waits, one is
/// read.
const RUN_BYTES: usize = 2 << 20;
/// The thread stops after a batch of this size: one of these is enough to be ahead.
const LARGE_BYTES: usize = 1 << 20;

/// Consecutive batches.
type Run = VecDeque<RecordBatch>;

/// A reader of files that prefetches.
pub(crate) struct Prefetch {
    /// None: it is lent to the thread.
    reader: Option<Box<Reader>>,
    /// The prefetched batches.
    run: Run,
    /// Bytes read here without a pause.
    straight: usize,
    /// The last step returned `Undecodable` to the caller. An error that the thread met does not count: it is met
    /// again here.
    may_skip: bool,
    /// The thread that has the reader.
    thread: Option<Thread>,
}

impl Prefetch {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader: Some(Box::new(reader)), run: Run::new(), straight: 0, may_skip: false, thread: None }
    }

    /// As [`Reader::position`], if the reader is here. None: it is lent.
    pub(crate) fn position(&self) -> Option<Index> {
        self.reader.as_ref().map(|reader| reader.position())
    }

    /// As [`Reader::seek`].
    pub(crate) fn seek(&mut self, index: Index) -> Result<()> {
        if let Some(thread) = &self.thread {
            thread.stop.store(true, Ordering::Relaxed);
        }
        while self.reader.is_none() {
            self.take_piece()?;
        }
        self.here()?.seek(index)?;
        self.run.clear();
        (self.straight, self.may_skip) = (0, false);
        Ok(())
    }

    /// As [`Reader::skip_batch`].
    pub(crate) fn skip_batch(&mut self) -> Result<Index> {
        while self.run.is_empty() && self.reader.is_none() {
            self.take_piece()?;
        }
        match self.run.front() {
            Some(batch) => Ok(batch.first()), // prefetched batches can be decompressed
            None if std::mem::take(&mut self.may_skip) => self.here()?.skip_batch(),
            None => Ok(self.here()?.position()),
        }
    }

    /// As [`Reader::next_batch`]. Prefetched batches are returned even if they are discarded by now.
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.may_skip = false;
        while self.run.is_empty() && self.reader.is_none() {
            self.take_piece()?;
        }
        if let Some(batch) = self.run.pop_front() {
            return Ok(Some(batch));
        }
        let next = self.here()?.next_batch();
        self.may_skip = next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Undecodable);
        match &next {
            Ok(Some(batch)) if !is_large(batch) => self.straight += batch.payload().len(),
            _ => self.straight = 0,
        }
        if self.straight >= STRAIGHT_BYTES {
            self.lend();
        }
        next
    }

    /// The caller was not told of the error of the last step: the next step meets it again.
    pub(crate) fn forget_error(&mut self) {
        self.may_skip = false;
    }

    /// As [`Reader::poll_more`].
    pub(crate) fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &self.reader {
            Some(reader) if self.run.is_empty() => reader.poll_more(context),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn here(&mut self) -> Result<&mut Reader> {
        self.reader.as_deref_mut().ok_or_else(lost)
    }

    /// Lends the reader, if a thread can be started.
    fn lend(&mut self) {
        self.straight = 0;
        if let Some(reader) = self.reader.take() {
            match Thread::begin(reader) {
                Ok(thread) => self.thread = Some(thread),
                Err(reader) => self.reader = Some(reader),
            }
        }
    }

    /// Waits for the thread's next piece. A panic of the thread continues here.
    fn take_piece(&mut self) -> Result<()> {
        let Some(thread) = &self.thread else { return Err(lost()) };
        match thread.pieces.recv() {
            Ok(Piece::Run(mut run)) => self.run.append(&mut run),
            Ok(Piece::Back(reader)) => (self.reader, self.thread) = (Some(reader), None),
            Err(_) => {
                if let Some(Err(panic)) = self.thread.take().map(|thread| thread.handle.join()) {
                    std::panic::resume_unwind(panic);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            thread.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Closed, "the reader was lost in a panic: open another one")
}

fn is_large(batch: &RecordBatch) -> bool {
    batch.payload().len() > LARGE_BYTES
}

/// A piece from the thread: a run, or at the end the reader.
enum Piece {
    Run(Run),
    Back(Box<Reader>),
}

/// Reads runs with a reader that is lent to it, then ends.
struct Thread {
    pieces: Receiver<Piece>,
    /// Set when the reader must be returned.
    stop: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl Thread {
    /// Starts a thread. If none can be started, returns the reader.
    fn begin(reader: Box<Reader>) -> std::result::Result<Self, Box<Reader>> {
        let ((lend, lent), (give, pieces)) = (sync_channel(1), sync_channel(1));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            if let Ok(reader) = lent.recv() {
                read_on(reader, &give, &stopped);
            }
        };
        let Ok(handle) = threads::builder("chiplog-prefetch").spawn(work) else { return Err(reader) };
        lend.send(reader).map_err(|refused| refused.0)?;
        Ok(Self { pieces, stop, handle })
    }
}

/// Reads run after run until there is no more now, a batch is large, or the reader must be returned.
fn read_on(mut reader: Box<Reader>, pieces: &SyncSender<Piece>, stop: &AtomicBool) {
    let mut more = true;
    while more {
        let (mut run, mut bytes) = (Run::new(), 0);
        while more && bytes < RUN_BYTES {
            match reader.next_batch() {
                Ok(Some(batch)) => {
                    more = !is_large(&batch) && !stop.load(Ordering::Relaxed);
                    bytes += batch.payload().len();
                    run.push_back(batch);
                }
                _ => more = false,
            }
        }
        if pieces.send(Piece::Run(run)).is_err() {
            return; // the receiver is gone
        }
    }
    let _ = pieces.send(Piece::Back(reader));
}
