//! The blocking client's reader, and how an event loop waits for it.
//!
//! ```text
//! Here: the caller's thread reads ── on_more ──> Away: a task of the client's thread waits, keeps what arrives, calls the hook
//!       <────────────────── any call that reads or seeks recalls the task, with what it received ──
//! ```
//!
//! Invariants:
//! - The next call returns what the task received: nothing is lost, whichever of them waits.
//! - A reader that is dropped leaves no task behind.

use super::{Canceller, Runtime};
use crate::client::RemoteReader;
use chiplog::{Error, ErrorKind, Index, OwnedRecord, RecordBatch, Result, Start};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// As [`RemoteReader`], for threads. `Send`; used by one thread at a time.
///
/// ```
/// fn moves_between_threads<T: Send>() {}
/// moves_between_threads::<chiplog_net::client::blocking::Reader>();
/// ```
pub struct Reader {
    held: Held,
    /// The task's last result, if that is not a batch: for the next call.
    filled: Option<FillResult>,
    /// The last step returned `Undecodable` to the caller. Errors that the task met count only once they are returned.
    may_skip: bool,
    /// Where to continue once the reader is back.
    moved: Option<Start>,
    canceller: Canceller,
    runtime: Arc<Runtime>,
}

/// False: the end.
type FillResult = Result<bool>;

enum Held {
    Here(Box<RemoteReader>),
    Away(Away),
    /// The client's thread has ended.
    Lost,
}

/// A reader whose task waits for more.
struct Away {
    task: JoinHandle<(Box<RemoteReader>, Option<FillResult>)>,
    /// Dropping it recalls the task.
    recall: oneshot::Sender<()>,
    position: Option<Index>,
    server: Option<String>,
}

impl Reader {
    pub(super) fn new(reader: RemoteReader, runtime: Arc<Runtime>) -> Self {
        let (held, canceller) = (Held::Here(Box::new(reader)), Canceller::new());
        Self { held, filled: None, may_skip: false, moved: None, canceller, runtime }
    }

    /// Returns a handle that cancels this reader from another thread, for good: its current call and every later call
    /// that reads fail with `Cancelled`. Another reader can continue at [`position`](Self::position), which counts only
    /// records that were returned.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// # let (_dir, address) = runtime.block_on(serve())?;
    /// use chiplog_net::client::ReadFrom;
    /// use chiplog_net::client::blocking::Client;
    /// let client = Client::connect([address], Default::default())?;
    /// let mut reader = client.reader(chiplog::Start::First, ReadFrom::Any);
    /// let canceller = reader.canceller();
    /// let follows = std::thread::spawn(move || reader.next_batch());
    /// canceller.cancel();
    /// let ended = follows.join().expect("no panic");
    /// assert_eq!(ended.unwrap_err().kind(), chiplog::ErrorKind::Cancelled);
    /// # Ok(())
    /// # }
    /// ```
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// See [`RemoteReader::position`].
    pub fn position(&self) -> Option<Index> {
        match (&self.held, self.moved) {
            (_, Some(Start::Index(index))) => Some(index),
            (_, Some(_)) | (Held::Lost, None) => None,
            (Held::Here(reader), None) => reader.position(),
            (Held::Away(away), None) => away.position,
        }
    }

    /// See [`RemoteReader::seek`].
    pub fn seek(&mut self, start: Start) {
        // If the reader is not available, as in a callback, the next call continues there or returns the error.
        match self.here() {
            Ok(reader) => reader.seek(start),
            Err(_) => self.moved = Some(start),
        }
        (self.filled, self.may_skip) = (None, false);
    }

    /// See [`RemoteReader::server`].
    pub fn server(&self) -> Option<&str> {
        match &self.held {
            Held::Here(reader) => reader.server(),
            Held::Away(away) => away.server.as_deref(),
            Held::Lost => None,
        }
    }

    /// See [`RemoteReader::next_record`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn next_record(&mut self) -> Result<Option<OwnedRecord>> {
        self.here()?; // first: a forked child must not touch anything else
        self.canceller.check()?;
        // Not if there is a stored result: it belongs behind the received records.
        if let Some(record) = self.here()?.buffered_record() {
            self.may_skip = false;
            return Ok(Some(record));
        }
        self.ask(async |reader| reader.next_record().await)
    }

    /// See [`RemoteReader::next_batch`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.ask(async |reader| reader.next_batch().await)
    }

    /// See [`RemoteReader::skip_batch`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn skip_batch(&mut self) -> Result<Option<Index>> {
        self.here()?;
        if std::mem::take(&mut self.may_skip) {
            self.filled = None; // the task met the same batch again
            let runtime = self.runtime.clone();
            let canceller = self.canceller.clone();
            return runtime.wait(canceller.or(self.here()?.skip_batch()));
        }
        Ok(self.position())
    }

    /// As [`next_batch`](Self::next_batch), for up to `timeout`. Zero returns only what was received already.
    ///
    /// # Errors
    /// Those of [`next_batch`](Self::next_batch); and `Timeout`: nothing arrived.
    pub fn next_batch_within(&mut self, timeout: Duration) -> Result<Option<RecordBatch>> {
        self.ask(async |reader| within(timeout, reader.next_batch()).await)
    }

    /// Calls `hook` once [`next_batch`](Self::next_batch) has a result without blocking: records, the end, an error, or
    /// `Cancelled`. If there is one already, `hook` runs at once; otherwise it runs on the client's thread, where it
    /// must not block. For event loops: see [`chiplog::Signal`]. A reader has one hook: a new one replaces it, and any
    /// other call that reads or seeks removes it, as does dropping the reader.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// # let (_dir, address) = runtime.block_on(serve())?;
    /// use chiplog_net::client::ReadFrom;
    /// use chiplog_net::client::blocking::Client;
    /// let client = Client::connect([address], Default::default())?;
    /// let mut reader = client.reader(chiplog::Start::First, ReadFrom::Any);
    /// let (tx, rx) = std::sync::mpsc::channel();
    /// reader.on_more(move || drop(tx.send("there is more")))?;
    /// client.producer(Default::default())?.append(b"x")?;
    /// assert_eq!(rx.recv()?, "there is more");
    /// assert_eq!(reader.next_record()?.expect("there is more").data, "x");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Forked`; `Unavailable`: the client's thread has ended; `InvalidArgument`: called from a callback.
    pub fn on_more(&mut self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        if self.here()?.is_filled() || self.filled.is_some() || self.canceller.check().is_err() {
            hook();
            return Ok(());
        }
        let Held::Here(mut reader) = std::mem::replace(&mut self.held, Held::Lost) else {
            return Err(lost());
        };
        let (position, server) = (reader.position(), reader.server().map(str::to_owned));
        let (recall, recalled) = oneshot::channel::<()>();
        let canceller = self.canceller.clone();
        let task = self.runtime.handle.spawn(async move {
            let filled = tokio::select! {
                biased;
                _ = recalled => None,
                () = canceller.cancelled() => Some(Ok(true)), // the next call returns it
                filled = reader.fill() => Some(filled),
            };
            if filled.is_some() && catch_unwind(AssertUnwindSafe(hook)).is_err() {
                tracing::error!("a callback of a reader panicked");
            }
            (reader, filled)
        });
        self.held = Held::Away(Away { task, recall, position, server });
        Ok(())
    }

    /// Returns the reader, recalled from its task. Keeps the task's result in `filled`.
    fn here(&mut self) -> Result<&mut RemoteReader> {
        self.runtime.check()?;
        if let Held::Away(_) = self.held
            && let Held::Away(Away { task, recall, .. }) = std::mem::replace(&mut self.held, Held::Lost)
        {
            drop(recall);
            let (reader, filled) = self.runtime.wait(async { task.await.map_err(|_| lost()) })?;
            self.held = Held::Here(reader);
            self.filled = filled.filter(|filled| !matches!(filled, Ok(true)));
        }
        let Held::Here(reader) = &mut self.held else { return Err(lost()) };
        if let Some(start) = self.moved.take() {
            reader.seek(start);
            self.filled = None;
        }
        Ok(reader)
    }

    fn ask<T>(&mut self, ask: impl AsyncFnOnce(&mut RemoteReader) -> Result<Option<T>>) -> Result<Option<T>> {
        let (runtime, canceller) = (self.runtime.clone(), self.canceller.clone());
        self.here()?;
        canceller.check()?;
        let given = match self.filled.take() {
            Some(filled) => filled.map(|_| None),
            None => runtime.wait(canceller.or(ask(self.here()?))),
        };
        self.may_skip = is_undecodable(&given);
        given
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.runtime.fork.is_child() {
            // The task belongs to the parent, which may hold the lock that a recall takes.
            std::mem::forget(std::mem::replace(&mut self.held, Held::Lost));
        }
    }
}

async fn within<T>(timeout: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let nothing = |_| Error::new(ErrorKind::Timeout, format!("no record arrived within {timeout:?}"));
    tokio::time::timeout(timeout, work).await.map_err(nothing)?
}

fn is_undecodable<T>(given: &Result<T>) -> bool {
    given.as_ref().is_err_and(|error| error.kind() == ErrorKind::Undecodable)
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "the client's thread has ended")
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_away = matches!(self.held, Held::Away(_));
        f.debug_struct("Reader").field("position", &self.position()).field("waits", &is_away).finish()
    }
}
