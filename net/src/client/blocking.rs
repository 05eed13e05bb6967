//! Blocking: the client for programs without an async runtime. Each [`Client`] has a thread of its own that does the
//! network's work; calls wait for it on the caller's thread. Not to be used from async code. In a callback of any client or
//! follower, which runs on that one's thread, nothing can be waited for: what never waits is allowed there, all else is
//! refused as `InvalidArgument`.
//!
//! Invariant: in a forked child, which has no such thread, nobody waits: calls are refused as `Forked`.

mod canceller;
mod reader;

pub use canceller::Canceller;
pub use reader::Reader;

use super::{ClientOptions, Closed, ProducerOptions, ReadFrom, ReaderOptions, RemoteInfo};
use crate::client::own_thread;
use crate::client::own_thread::{AtWork, For};
use chiplog::{Error, ErrorKind, ForkGuard, Index, Result, SessionId, Start};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
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
            runtime.shutdown_background(); // a name that is looked up for long holds up nothing
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

    /// Whether anything can be waited for here.
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
            std::mem::forget(self.end.take()); // whom it would wake is in the parent
            return;
        }
        self.end = None;
        // The last handle can go away in a callback, on this very thread or on that of a client whose last handle goes away
        // here: the thread ends when that returns.
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
        Reader::new(self.client.reader_with(start, options), self.runtime.clone())
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

    /// See [`super::Client::open_session`].
    ///
    /// # Errors
    /// As there.
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

/// As [`super::Producer`], for threads. Cheap to clone. To be closed: when the last handle of its client is dropped,
/// what was not acknowledged is given up, and what nobody was told of is told of by `tracing`, as an error.
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
        self.runtime.check_fork()?;
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

    /// As [`send`](Self::send), and gives what tells the record's index.
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

    /// As [`submit`](Self::submit), but never waits.
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
    /// As there.
    pub fn send_batch(
        &self,
        records: &[impl AsRef<[u8]>],
        callback: impl FnOnce(Result<Index>) + Send + 'static,
    ) -> Result<()> {
        self.runtime.wait(self.producer.send_batch(records, callback))
    }

    /// Appends records as one batch, and waits until they are in the log. The index of the first.
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
    /// As there.
    pub fn flush(&self, deadline: Duration) -> Result<()> {
        self.runtime.wait(self.producer.flush(deadline))
    }

    /// See [`super::Producer::close`]. In a forked child it tells `Forked` as the reason of a failure, and no records:
    /// they are the parent's.
    pub fn close(&self, deadline: Duration) -> Closed {
        let closed = self.runtime.wait(async { Ok(self.producer.close(deadline).await) });
        closed.unwrap_or_else(|error| Closed { left: Vec::new(), failed: Some(error), untold: 0 })
    }
}

/// As [`super::Delivery`], for threads: tells what became of a record, to as many threads as ask. May be dropped: the
/// record is appended all the same. A record that fails and whose result nobody takes, by [`wait`](Self::wait) or by
/// [`poll`](Self::poll), counts as one that nobody was told of.
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
    /// Waits until the record is settled. The answer stays.
    ///
    /// # Errors
    /// Those of [`super::Delivery`].
    pub fn wait(&self) -> Result<Index> {
        match self.poll() {
            Some(result) => result,
            None => self.runtime.wait(self.delivery.clone()),
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); `Timeout` also: it is still under way. [`poll`](Self::poll) tells which.
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

    /// The result, if there is one yet. Never waits.
    pub fn poll(&self) -> Option<Result<Index>> {
        self.delivery.try_result()
    }

    /// Whether there is a result, which is not taken: a record that failed still counts as one that nobody was told of. Never
    /// waits.
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
    /// As there.
    #[allow(clippy::should_implement_trait, reason = "it waits")]
    pub fn next(&mut self) -> Result<RemoteInfo> {
        self.runtime.wait(self.watch.next())
    }

    /// As [`next`](Self::next), for at most so long.
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

    /// Whoever dropped the last handle waited for a name that was just being looked up.
    #[test]
    fn the_end_waits_for_no_look_up() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let runtime = Runtime::start().unwrap();
        let (begins, begun) = mpsc::channel();
        let (ends, end) = mpsc::channel::<()>();
        // As a look-up does it: on a thread of the runtime's for what blocks.
        runtime.handle.spawn_blocking(move || {
            begins.send(()).unwrap();
            let _ = end.recv();
        });
        begun.recv_timeout(PATIENCE).unwrap();
        let (tells, told) = mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            let _ = tells.send(());
        });
        let ended = told.recv_timeout(PATIENCE);
        assert!(ends.send(()).is_ok(), "it is still being looked up");
        assert!(ended.is_ok(), "the end waited");
    }
}
