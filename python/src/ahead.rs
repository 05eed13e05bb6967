//! Ahead: the log's files are read and verified on a thread of their own, while the interpreter works on what came before.
//!
//! ```text
//! reader here ── so many bytes without a pause ──> lent to the thread: run, run, run … ── no more now ──> here again
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
//! - The thread ends before this does.

use crate::threads;
use chiplog::{Error, ErrorKind, Index, Reader, RecordBatch, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// So much is read without a pause before it is worth a thread.
const STRAIGHT_BYTES: usize = 2 << 20;
/// A run has so much, and a batch at most.
const RUN_BYTES: usize = 2 << 20;
/// So many runs wait to be taken.
const RUNS: usize = 2;

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
    thread: Option<Thread>,
}

impl Ahead {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader: Some(Box::new(reader)), run: Run::new(), straight: 0, thread: None }
    }

    /// Index of the record behind those that were given; None: it is not known just now.
    pub(crate) fn position(&self) -> Option<Index> {
        let ahead = self.run.front().map(RecordBatch::first);
        ahead.or_else(|| self.reader.as_ref().map(|reader| reader.position()))
    }

    /// As [`Reader::seek`].
    pub(crate) fn seek(&mut self, index: Index) -> Result<()> {
        if let Some(thread) = self.thread.as_ref().filter(|_| self.reader.is_none()) {
            thread.stop.store(true, Ordering::Relaxed);
        }
        while self.reader.is_none() {
            self.take_piece()?;
        }
        self.here()?.seek(index)?;
        self.run.clear();
        self.straight = 0;
        Ok(())
    }

    /// As [`Reader::next_batch`].
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        while self.run.is_empty() && self.reader.is_none() {
            self.take_piece()?;
        }
        if let Some(batch) = self.run.pop_front() {
            return Ok(Some(batch));
        }
        let next = self.here()?.next_batch();
        match &next {
            Ok(Some(batch)) => self.straight += batch.payload().len(),
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
        if self.thread.is_none() {
            self.thread = Thread::spawn();
        }
        if let Some(thread) = &self.thread {
            self.reader = self.reader.take().and_then(|reader| thread.lend(reader));
        }
    }

    /// Waits for what the thread gives next.
    fn take_piece(&mut self) -> Result<()> {
        match self.thread.as_mut().and_then(Thread::piece).ok_or_else(lost)? {
            Piece::Run(mut run) => self.run.append(&mut run),
            Piece::Back(reader) => self.reader = Some(reader),
        }
        Ok(())
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Closed, "the reader was lost in a panic")
}

/// What the thread gives: what it read, at last the reader.
enum Piece {
    Run(Run),
    Back(Box<Reader>),
}

/// Reads runs with a reader that is lent to it.
struct Thread {
    /// None: it ends.
    there: Option<Sender<Box<Reader>>>,
    pieces: Receiver<Piece>,
    /// The reader is wanted back.
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    /// None: there is none to be had.
    fn spawn() -> Option<Self> {
        let ((there, lent), (pieces, taken)) = (channel(), sync_channel(RUNS));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || lent.into_iter().for_each(|reader| read_on(reader, &pieces, &stopped));
        let handle = threads::builder("chiplog-ahead").spawn(work).ok()?;
        Some(Self { there: Some(there), pieces: taken, stop, handle: Some(handle) })
    }

    /// Lends it a reader; gives it back if the thread is gone.
    fn lend(&self, reader: Box<Reader>) -> Option<Box<Reader>> {
        self.stop.store(false, Ordering::Relaxed);
        match &self.there {
            Some(there) => there.send(reader).err().map(|refused| refused.0),
            None => Some(reader),
        }
    }

    /// Waits for the next piece. None: a panic took the reader; it goes on here.
    fn piece(&mut self) -> Option<Piece> {
        let piece = self.pieces.recv().ok();
        if piece.is_none()
            && let Some(Err(panic)) = self.handle.take().map(JoinHandle::join)
        {
            std::panic::resume_unwind(panic);
        }
        piece
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.there = None;
        self.stop.store(true, Ordering::Relaxed);
        for _ in &self.pieces {} // it may wait for room
        if let Some(handle) = self.handle.take() {
            let _ = handle.join(); // a panic took nothing that is asked for any more
        }
    }
}

/// Reads run after run until there is no more now, or the reader is wanted back.
fn read_on(mut reader: Box<Reader>, pieces: &SyncSender<Piece>, stop: &AtomicBool) {
    // Somebody takes the pieces for as long as there is a thread.
    let give = |piece| {
        let _ = pieces.send(piece);
    };
    let mut more = true;
    while more && !stop.load(Ordering::Relaxed) {
        let (mut run, mut bytes) = (Run::new(), 0);
        while bytes < RUN_BYTES && more {
            match reader.next_batch() {
                Ok(Some(batch)) => {
                    bytes += batch.payload().len();
                    run.push_back(batch);
                }
                _ => more = false,
            }
        }
        give(Piece::Run(run));
    }
    give(Piece::Back(reader));
}
