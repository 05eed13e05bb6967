//! Blocking: the client for programs without an async runtime. Each [`Client`] has a thread of its own that does the
//! network's work; calls wait for it on the caller's thread. Not to be used from async code, and so not from callbacks,
//! but for `send` while there is room.
//!
//! Invariant: in a forked child, which has no such thread, nobody waits: calls are refused as `Forked`.

use super::{ClientOptions, Closed, ProducerOptions, ReadFrom, ReaderOptions, RemoteInfo};
use chiplog::{Error, ErrorKind, ForkGuard, Index, OwnedRecord, RecordBatch, Result, Start};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own. Dropping it ends it.
struct Runtime {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

impl Runtime {
    fn start() -> Result<Arc<Self>> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot start the client's thread: {e}"));
        let fork = ForkGuard::new().map_err(failed)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let run = move || {
            let _ = runtime.block_on(ended);
        };
        let thread = std::thread::Builder::new().name("chiplog-client".into()).spawn(run).map_err(failed)?;
        Ok(Arc::new(Self { handle, end: Some(end), thread: Some(thread), fork }))
    }

    fn check_fork(&self) -> Result<()> {
        if self.fork.is_child() {
            let what =
                "this client was made before fork(): its thread is in the parent; connect anew in the child";
            return Err(Error::new(ErrorKind::Forked, what));
        }
        Ok(())
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_fork()?;
        self.handle.block_on(work)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.fork.is_child() {
            std::mem::forget(self.end.take()); // whom it would wake is in the parent
            return;
        }
        self.end = None;
        // The last handle can go away in a callback, on this very thread: it ends when that returns.
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runtime")
    }
}

/// As [`super::Client`], for threads. Cheap to clone.
///
/// ```
/// use chiplog_net::client::{ClientOptions, ProducerOptions, blocking::Client};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # let (_dir, address) = runtime.block_on(serve())?;
/// let client = Client::connect([address], ClientOptions::default())?;
/// let producer = client.producer(ProducerOptions::default())?;
/// println!("at {}", producer.append(b"hello")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    client: super::Client,
    runtime: Arc<Runtime>,
}

impl Client {
    /// See [`super::Client::connect`].
    ///
    /// # Errors
    /// As there; `Io`: no thread could be had.
    pub fn connect<S: Into<String>>(
        servers: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        let runtime = Runtime::start()?;
        let client = runtime.wait(super::Client::connect(servers, options))?;
        Ok(Self { client, runtime })
    }

    /// See [`super::Client::producer`].
    ///
    /// # Errors
    /// As there.
    pub fn producer(&self, options: ProducerOptions) -> Result<Producer> {
        let producer = self.runtime.wait(self.client.producer(options))?;
        Ok(Producer { producer, runtime: self.runtime.clone() })
    }

    /// See [`super::Client::reader`].
    pub fn reader(&self, start: Start, from: ReadFrom) -> Reader {
        self.reader_with(start, ReaderOptions { from, ..ReaderOptions::default() })
    }

    /// See [`super::Client::reader_with`].
    pub fn reader_with(&self, start: Start, options: ReaderOptions) -> Reader {
        Reader { reader: self.client.reader_with(start, options), runtime: self.runtime.clone() }
    }

    /// See [`super::Client::info`].
    ///
    /// # Errors
    /// As there.
    pub fn info(&self) -> Result<RemoteInfo> {
        self.runtime.wait(self.client.info())
    }

    /// See [`super::Client::info_stale`].
    ///
    /// # Errors
    /// As there.
    pub fn info_stale(&self) -> Result<RemoteInfo> {
        self.runtime.wait(self.client.info_stale())
    }

    /// See [`super::Client::discard`].
    ///
    /// # Errors
    /// As there.
    pub fn discard(&self, first: Index) -> Result<()> {
        self.runtime.wait(self.client.discard(first))
    }
}

/// As [`super::Producer`], for threads. Cheap to clone. To be closed: when the last handle of its client is dropped,
/// what was not acknowledged is given up.
///
/// In a forked child every call is refused as `Forked`.
///
/// ```
/// fn takes_any_thread<T: Send + Sync + Clone>() {}
/// takes_any_thread::<chiplog_net::client::blocking::Producer>();
/// ```
#[derive(Clone, Debug)]
pub struct Producer {
    producer: super::Producer,
    runtime: Arc<Runtime>,
}

impl Producer {
    /// See [`super::Producer::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&self, record: &[u8]) -> Result<()> {
        self.runtime.check_fork()?;
        match self.producer.try_send(record) {
            Err(error) if error.kind() == ErrorKind::Busy => self.runtime.wait(self.producer.send(record)),
            done => done,
        }
    }

    /// See [`super::Producer::try_send`]: never waits.
    ///
    /// # Errors
    /// As there.
    pub fn try_send(&self, record: &[u8]) -> Result<()> {
        self.producer.try_send(record)
    }

    /// See [`super::Producer::send_with`].
    ///
    /// # Errors
    /// As there.
    pub fn send_with(
        &self,
        record: &[u8],
        callback: impl FnOnce(Result<Index>) + Send + 'static,
    ) -> Result<()> {
        self.runtime.wait(self.producer.send_with(record, callback))
    }

    /// Appends a record and waits until it is in the log.
    ///
    /// # Errors
    /// As [`super::Producer::append`] and its delivery.
    pub fn append(&self, record: &[u8]) -> Result<Index> {
        self.runtime.wait(async { self.producer.append(record).await?.await })
    }

    /// See [`super::Producer::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&self, deadline: Duration) -> Result<()> {
        self.runtime.wait(self.producer.flush(deadline))
    }

    /// See [`super::Producer::close`]. In a forked child it tells `Forked` as the reason of a failure, and no records:
    /// they are the parent's.
    pub fn close(&self, deadline: Duration) -> Closed {
        let closed = self.runtime.wait(async { Ok(self.producer.close(deadline).await) });
        closed.unwrap_or_else(|error| Closed { left: Vec::new(), failed: Some(error) })
    }
}

/// As [`super::RemoteReader`], for threads.
///
/// ```
/// fn moves_between_threads<T: Send>() {}
/// moves_between_threads::<chiplog_net::client::blocking::Reader>();
/// ```
#[derive(Debug)]
pub struct Reader {
    reader: super::RemoteReader,
    runtime: Arc<Runtime>,
}

impl Reader {
    /// See [`super::RemoteReader::position`].
    pub fn position(&self) -> Option<Index> {
        self.reader.position()
    }

    /// See [`super::RemoteReader::seek`].
    pub fn seek(&mut self, start: Start) {
        self.reader.seek(start);
    }

    /// See [`super::RemoteReader::server`].
    pub fn server(&self) -> Option<&str> {
        self.reader.server()
    }

    /// See [`super::RemoteReader::next_record`].
    ///
    /// # Errors
    /// As there.
    pub fn next_record(&mut self) -> Result<Option<OwnedRecord>> {
        match self.reader.buffered_record() {
            Some(record) => Ok(Some(record)),
            None => self.runtime.wait(self.reader.next_record()),
        }
    }

    /// See [`super::RemoteReader::next_batch`].
    ///
    /// # Errors
    /// As there.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.runtime.wait(self.reader.next_batch())
    }

    /// As [`next_batch`](Self::next_batch), for at most so long.
    ///
    /// # Errors
    /// As there; and `Timeout`: nothing came.
    pub fn next_batch_within(&mut self, timeout: Duration) -> Result<Option<RecordBatch>> {
        let reader = &mut self.reader;
        self.runtime.wait(async {
            let nothing = |_| Error::new(ErrorKind::Timeout, format!("no record came within {timeout:?}"));
            tokio::time::timeout(timeout, reader.next_batch()).await.map_err(nothing)?
        })
    }
}
