//! Ahead: the log's files are read and verified on a thread of their own, while the interpreter works on what came before.
//!
//! ```text
//! reader here ── so many bytes without a pause ──> lent to a thread: run, run, run … ── no more now ──> here again
//! ```
//!
//! Verifying is what reading costs: with one thread for it and one for the interpreter a loop over records is as fast as the
//! slower of the two, and not as both together.
//!
//! Must not know: the interpreter.
//!
//! Invariants:
//! - A reader is here or lent, never both; batches come in the log's order, whoever read them.
//! - What the thread meets besides batches, such as damage, it leaves to be met again here: nothing is told before its turn.
//! - Nobody waits for the thread's end: it ends by itself, and what it was lent with it.
//! - What is read ahead is bounded in bytes: see [`RUN_BYTES`], [`LARGE_BYTES`].

use crate::runtime::threads;
use chiplog::{Error, ErrorKind, Index, Reader, RecordBatch, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// So much is read without a pause before it is worth a thread.
const STRAIGHT_BYTES: usize = 2 << 20;
/// A run has so much, and less than a batch more. There are three: one is being given, one waits, one is being read.
const RUN_BYTES: usize = 2 << 20;
/// Nothing is read beyond a batch of so much: one of these is enough to be ahead.
const LARGE_BYTES: usize = 1 << 20;

/// Batches that were read one after the other.
type Run = VecDeque<RecordBatch>;

/// A reader of files that reads ahead.
pub(crate) struct Ahead {
    /// None: it is lent.
    reader: Option<Box<Reader>>,
    /// What was read ahead.
    run: Run,
    /// Bytes that were read here without a pause.
    straight: usize,
    /// The last step gave `Undecodable` to the caller. An error that the thread met does not count: it is met again here.
    may_skip: bool,
    /// Whom the reader is lent to.
    thread: Option<Thread>,
}

impl Ahead {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader: Some(Box::new(reader)), run: Run::new(), straight: 0, may_skip: false, thread: None }
    }

    /// As [`Reader::position`], of what is here. None: it is lent.
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
            Some(batch) => Ok(batch.first()), // what was read ahead unpacks
            None if std::mem::take(&mut self.may_skip) => self.here()?.skip_batch(),
            None => Ok(self.here()?.position()),
        }
    }

    /// As [`Reader::next_batch`]; what was read ahead is given also if it is discarded by now.
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

    /// Lends the reader, if there is a thread to be had.
    fn lend(&mut self) {
        self.straight = 0;
        if let Some(reader) = self.reader.take() {
            match Thread::begin(reader) {
                Ok(thread) => self.thread = Some(thread),
                Err(reader) => self.reader = Some(reader),
            }
        }
    }

    /// Waits for what the thread gives next. A panic there goes on here.
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

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            thread.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Closed, "the reader was lost in a panic")
}

fn is_large(batch: &RecordBatch) -> bool {
    batch.payload().len() > LARGE_BYTES
}

/// What a thread gives: what it read, at last the reader.
enum Piece {
    Run(Run),
    Back(Box<Reader>),
}

/// Reads runs with a reader that is lent to it, and ends.
struct Thread {
    pieces: Receiver<Piece>,
    /// The reader is wanted back.
    stop: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl Thread {
    /// Begins one; where there is none to be had, gives the reader back.
    fn begin(reader: Box<Reader>) -> std::result::Result<Self, Box<Reader>> {
        let ((lend, lent), (give, pieces)) = (sync_channel(1), sync_channel(1));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            if let Ok(reader) = lent.recv() {
                read_on(reader, &give, &stopped);
            }
        };
        let Ok(handle) = threads::builder("chiplog-ahead").spawn(work) else { return Err(reader) };
        lend.send(reader).map_err(|refused| refused.0)?;
        Ok(Self { pieces, stop, handle })
    }
}

/// Reads run after run until there is no more now, a large batch, or the reader is wanted back.
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
            return; // nobody reads any more
        }
    }
    let _ = pieces.send(Piece::Back(reader));
}
