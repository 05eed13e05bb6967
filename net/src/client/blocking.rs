//! Blocking: the client for programs without an async runtime. Each [`Client`] has its own thread for network work;
//! calls block the caller's thread. Not for async code. A callback of any client or follower runs on that object's
//! thread and must not block: calls that never block are allowed there, all others fail as `InvalidArgument`.
//!
//! Invariant: in a forked child, which has no such thread, no call waits: calls fail as `Forked`.

mod canceller;
mod objects;
mod reader;

pub use canceller::Canceller;
pub use objects::ServedObjects;
pub use reader::Reader;

use super::{ClientOptions, Closed, ProducerOptions, ReadFrom, ReaderOptions, RemoteInfo};
use crate::client::own_thread;
use crate::client::own_thread::{AtWork, For};
use chiplog::internal::ForkGuard;
use chiplog::{
    Appended, Batch, Durability, Error, ErrorKind, Index, LogInfo, LogOption, LogOptions, Result, SessionId,
    Start,
};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on its own thread. Dropping it ends the thread.
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
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_stack_size(own_thread::STACK_BYTES)
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let run = move || {
            let _at_work = AtWork::begin(For::Client);
            let _ = runtime.block_on(ended);
            runtime.shutdown_background(); // does not wait for a slow name lookup
        };
        let thread = own_thread::builder("chiplog-client").spawn(run).map_err(failed)?;
        Ok(Arc::new(Self { handle, end: Some(end), thread: Some(thread), fork }))
    }

    fn check_fork(&self) -> Result<()> {
        if self.fork.is_child() {
            let what = "the client was created before fork() and its thread runs in the parent; connect again in the child";
            return Err(Error::new(ErrorKind::Forked, what));
        }
        Ok(())
    }

    /// Checks that this thread may block.
    fn check(&self) -> Result<()> {
        self.check_fork()?;
        own_thread::check()
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        self.handle.block_on(work)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.fork.is_child() {
            std::mem::forget(self.end.take()); // the thread that it would wake is in the parent
            return;
        }
        self.end = None;
        // The last handle can be dropped in a callback, on this thread or on the thread of another client whose last
        // handle is dropped here. The thread then ends when the callback returns.
        if let Some(thread) = self.thread.take()
            && own_thread::works_for().is_none()
        {
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
/// use chiplog_net::client::{ClientOptions, ProducerOptions};
/// use chiplog_net::client::blocking::Client;
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
    /// Those of the async method; `Io`: no thread could be started.
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
    /// Those of the async method.
    pub fn producer(&self, options: ProducerOptions) -> Result<Producer> {
        let producer = self.runtime.wait(self.client.producer(options))?;
        Ok(Producer { producer, runtime: self.runtime.clone() })
    }

    /// See [`super::Client::reader`].
    pub fn reader(&self, start: Start, from: ReadFrom) -> Reader {
        self.reader_with(start, ReaderOptions::default().from(from))
    }

    /// See [`super::Client::reader_with`].
    pub fn reader_with(&self, start: Start, options: ReaderOptions) -> Reader {
        Reader::new(self.client.reader_with(start, options), self.runtime.clone())
    }

    /// See [`super::Client::info`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn info(&self) -> Result<RemoteInfo> {
        self.runtime.wait(self.client.info())
    }

    /// See [`super::Client::info_stale`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn info_stale(&self) -> Result<RemoteInfo> {
        self.runtime.wait(self.client.info_stale())
    }

    /// See [`super::Client::discard`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn discard(&self, first: Index) -> Result<()> {
        self.runtime.wait(self.client.discard(first))
    }

    /// See [`super::Client::of_log`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn of_log(&self, name: &str) -> Result<Self> {
        let client = self.runtime.wait(self.client.of_log(name))?;
        Ok(Self { runtime: self.runtime.clone(), client })
    }

    /// See [`super::Client::create_log`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn create_log(&self, name: &str) -> Result<LogInfo> {
        self.runtime.wait(self.client.create_log(name))
    }

    /// See [`super::Client::create_log_beside`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn create_log_beside(&self, name: &str, other: &str) -> Result<LogInfo> {
        self.runtime.wait(self.client.create_log_beside(name, other))
    }

    /// See [`super::Client::append_together`]. The network work is done by the first client's thread.
    ///
    /// # Errors
    /// Those of the async method.
    pub fn append_together(appends: &[(&Self, &Batch)]) -> Result<Vec<Appended>> {
        let Some((first, _)) = appends.first() else { return Ok(Vec::new()) };
        let appends: Vec<_> = appends.iter().map(|(log, batch)| (&log.client, *batch)).collect();
        first.runtime.wait(super::Client::append_together(&appends))
    }

    /// See [`super::Client::delete_log`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn delete_log(&self, name: &str) -> Result<()> {
        self.runtime.wait(self.client.delete_log(name))
    }

    /// See [`super::Client::seal_log`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn seal_log(&self, name: &str) -> Result<()> {
        self.runtime.wait(self.client.seal_log(name))
    }

    /// See [`super::Client::list_logs`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn list_logs(&self, prefix: &str) -> Result<Vec<LogInfo>> {
        self.runtime.wait(self.client.list_logs(prefix))
    }

    /// See [`super::Client::log_options`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn log_options(&self) -> Result<LogOptions> {
        self.runtime.wait(self.client.log_options())
    }

    /// See [`super::Client::set_log_options`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn set_log_options(&self, changes: &[(LogOption, Option<u64>)], timeout: Duration) -> Result<()> {
        self.runtime.wait(self.client.set_log_options(changes, timeout))
    }

    /// See [`super::Client::open_session`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn open_session(&self) -> Result<SessionId> {
        self.runtime.wait(self.client.open_session())
    }

    /// See [`super::Client::batch_bytes_max`].
    pub fn batch_bytes_max(&self) -> usize {
        self.client.batch_bytes_max()
    }

    /// See [`super::Client::watch`].
    pub fn watch(&self, interval: Duration) -> Watch {
        Watch { watch: self.client.watch(interval), runtime: self.runtime.clone() }
    }
}

/// As [`super::Producer`], for threads. Cheap to clone. Must be closed: when the last handle of its client is dropped,
/// unacknowledged records are given up, and unreported failures are reported by `tracing`, as an error.
///
/// In a forked child every call fails as `Forked`.
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
    /// Those of the async method.
    pub fn send(&self, record: &[u8]) -> Result<()> {
        self.runtime.check_fork()?;
        match self.producer.try_send(record) {
            Err(error) if error.kind() == ErrorKind::Busy => self.runtime.wait(self.producer.send(record)),
            done => done,
        }
    }

    /// See [`super::Producer::try_send`]: never blocks.
    ///
    /// # Errors
    /// Those of the async method.
    pub fn try_send(&self, record: &[u8]) -> Result<()> {
        self.runtime.check_fork()?;
        self.producer.try_send(record)
    }

    /// See [`super::Producer::send_with`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn send_with(
        &self,
        record: &[u8],
        callback: impl FnOnce(Result<Appended>) + Send + 'static,
    ) -> Result<()> {
        self.runtime.wait(self.producer.send_with(record, callback))
    }

    /// Appends a record and blocks until it is in the log.
    ///
    /// # Errors
    /// As [`super::Producer::append`] and its delivery.
    pub fn append(&self, record: &[u8]) -> Result<Index> {
        self.runtime.wait(async { self.producer.append(record).await?.await })
    }

    /// As [`send`](Self::send), and returns a handle for the record's result.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn submit(&self, record: &[u8]) -> Result<Delivery> {
        self.runtime.check_fork()?;
        let delivery = match self.producer.try_append(record) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.runtime.wait(self.producer.append(record))?
            }
            done => done?,
        };
        Ok(Delivery { delivery, runtime: self.runtime.clone() })
    }

    /// As [`submit`](Self::submit), but never blocks.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); `Busy` when there is no room.
    pub fn try_submit(&self, record: &[u8]) -> Result<Delivery> {
        self.runtime.check_fork()?;
        let delivery = self.producer.try_append(record)?;
        Ok(Delivery { delivery, runtime: self.runtime.clone() })
    }

    /// See [`super::Producer::send_batch`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn send_batch(
        &self,
        records: &[impl AsRef<[u8]>],
        callback: impl FnOnce(Result<Appended>) + Send + 'static,
    ) -> Result<()> {
        self.runtime.wait(self.producer.send_batch(records, callback))
    }

    /// Appends records as one batch, and blocks until they are in the log. Returns the index of the first.
    ///
    /// # Errors
    /// As [`super::Producer::append_batch`] and its delivery.
    pub fn append_batch(&self, records: &[impl AsRef<[u8]>]) -> Result<Index> {
        self.runtime.wait(async { self.producer.append_batch(records).await?.await })
    }

    /// See [`super::Producer::buffered_bytes`].
    pub fn buffered_bytes(&self) -> usize {
        self.producer.buffered_bytes()
    }

    /// See [`super::Producer::batch_bytes_max`].
    pub fn batch_bytes_max(&self) -> usize {
        self.producer.batch_bytes_max()
    }

    /// See [`super::Producer::unacknowledged`].
    pub fn unacknowledged(&self) -> u64 {
        self.producer.unacknowledged()
    }

    /// See [`super::Producer::flush`].
    ///
    /// # Errors
    /// Those of the async method.
    pub fn flush(&self, deadline: Duration) -> Result<()> {
        self.runtime.wait(self.producer.flush(deadline))
    }

    /// See [`super::Producer::close`]. In a forked child it returns `Forked` as the failure, and no records: they
    /// belong to the parent.
    pub fn close(&self, deadline: Duration) -> Closed {
        let closed = self.runtime.wait(async { Ok(self.producer.close(deadline).await) });
        closed.unwrap_or_else(|error| Closed { left: Vec::new(), failed: Some(error), untold: 0 })
    }
}

/// As [`super::Delivery`], for threads: the result of one record, for any number of threads. May be dropped: the record
/// is appended all the same. If a record fails and its result is not taken, by [`wait`](Self::wait) or by
/// [`poll`](Self::poll), it counts as unreported.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # let (_dir, address) = runtime.block_on(serve())?;
/// # let client = chiplog_net::client::blocking::Client::connect([address], Default::default())?;
/// let producer = client.producer(Default::default())?;
/// let one = producer.submit(b"one")?;
/// let two = producer.submit(b"two")?; // both are under way
/// assert_eq!(one.wait()?.next(), two.wait()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "without the delivery's result it is unknown whether the record was appended"]
pub struct Delivery {
    delivery: super::Delivery,
    runtime: Arc<Runtime>,
}

impl Delivery {
    /// Blocks until the record has a result, and returns it. The result never changes.
    ///
    /// # Errors
    /// Those of [`super::Delivery`].
    pub fn wait(&self) -> Result<Index> {
        match self.poll() {
            Some(result) => result,
            None => self.runtime.wait(self.delivery.clone()),
        }
    }

    /// As [`wait`](Self::wait), for up to `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); also `Timeout` if there is no result yet. [`poll`](Self::poll) distinguishes this from
    /// a record that failed as `Timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Index> {
        if let Some(result) = self.poll() {
            return result;
        }
        let delivery = self.delivery.clone();
        self.runtime.wait(async {
            let late = |_| {
                let what = format!("the record has no result after {timeout:?}; it may still be appended");
                Error::new(ErrorKind::Timeout, what)
            };
            tokio::time::timeout(timeout, delivery).await.map_err(late)?
        })
    }

    /// Returns the result, if there is one yet. Never blocks.
    pub fn poll(&self) -> Option<Result<Index>> {
        self.delivery.try_result()
    }

    /// See [`super::Delivery::durability`]: never blocks.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// # let (_dir, address) = runtime.block_on(serve())?;
    /// # let client = chiplog_net::client::blocking::Client::connect([address], Default::default())?;
    /// let producer = client.producer(Default::default())?;
    /// let delivery = producer.submit(b"record")?;
    /// let index = delivery.wait()?;
    /// println!("{index}: {}", delivery.durability().map_or("not told", |durability| durability.name()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(&self) -> Option<Durability> {
        self.delivery.durability()
    }

    /// Whether there is a result. Does not take it: a failed record still counts as unreported. Never blocks.
    pub fn is_settled(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(self.delivery.settled()).poll(&mut context).is_ready()
    }
}

/// As [`super::Watch`], for threads.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # let (_dir, address) = runtime.block_on(serve())?;
/// # let client = chiplog_net::client::blocking::Client::connect([address], Default::default())?;
/// use std::time::Duration;
/// let mut watch = client.watch(Duration::from_millis(100));
/// println!("now up to {}", watch.next_within(Duration::from_secs(30))?.last);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    watch: super::Watch,
    runtime: Arc<Runtime>,
}

impl Watch {
    /// See [`super::Watch::next`].
    ///
    /// # Errors
    /// Those of the async method.
    #[allow(clippy::should_implement_trait, reason = "it blocks")]
    pub fn next(&mut self) -> Result<RemoteInfo> {
        self.runtime.wait(self.watch.next())
    }

    /// As [`next`](Self::next), for up to `timeout`.
    ///
    /// # Errors
    /// As [`next`](Self::next); and `Timeout`: nothing changed.
    pub fn next_within(&mut self, timeout: Duration) -> Result<RemoteInfo> {
        let watch = &mut self.watch;
        self.runtime.wait(async {
            let nothing = |_| Error::new(ErrorKind::Timeout, format!("nothing changed within {timeout:?}"));
            tokio::time::timeout(timeout, watch.next()).await.map_err(nothing)?
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Dropping the last handle waited for a name lookup in progress.
    #[test]
    fn shutdown_does_not_wait_for_name_lookup() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let runtime = Runtime::start().unwrap();
        let (begins, begun) = mpsc::channel();
        let (ends, end) = mpsc::channel::<()>();
        // As a lookup does it: on a thread for blocking work.
        runtime.handle.spawn_blocking(move || {
            begins.send(()).unwrap();
            let _ = end.recv();
        });
        begun.recv_timeout(PATIENCE).unwrap();
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            let _ = sender.send(());
        });
        let ended = ended.recv_timeout(PATIENCE);
        assert!(ends.send(()).is_ok(), "it is still being looked up");
        assert!(ended.is_ok(), "the end waited");
    }
}
