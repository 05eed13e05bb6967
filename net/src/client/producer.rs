//! Producer: takes records, and tells what became of them. Its pump does the sending.

pub(crate) mod accumulator;
pub(crate) mod close_report;
pub(crate) mod delivery;
pub(crate) mod options;
pub(crate) mod sender;
pub(crate) mod untold;

use super::Client;
use super::producer::accumulator::{Callback, Gather, Tell};
use super::producer::close_report::Closed;
use super::producer::delivery::Delivery;
use super::producer::options::ProducerOptions;
use super::producer::sender::Pump;
use super::retry::deadline::within;
use chiplog::{Error, ErrorKind, Index, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Appends records: gathers them into batches, keeps several under way, sends again what a failure left open. Cheap to
/// clone, `Send + Sync`: clones share everything, and a record costs its caller a lock and a copy.
///
/// Records given one after the other are in the log in that order. A batch that the servers refuse for what it is fails
/// alone, and the producer goes on. Dropping the last clone lets what was given be sent in the background, as long as the
/// runtime lives; [`close`](Self::close) waits for that. Records that are not acknowledged in the end and that nobody was
/// told of, by a delivery's result, a callback, a flush or a close, are told of by `tracing`, as an error with their number,
/// once the producer and the deliveries are dropped; that a producer was dropped with records under way, as a warning. Of no use in a forked child: its task is in the parent.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
/// use std::time::Duration;
/// let producer = client.producer(Default::default()).await?;
/// for i in 0..1000 {
///     producer.send(format!("record {i}").as_bytes()).await?; // returns when it is buffered
/// }
/// producer.flush(Duration::from_secs(10)).await?; // all are in the log
/// let index = producer.append(b"one more").await?.await?;
/// println!("at {index}");
/// assert!(producer.close(Duration::from_secs(10)).await.all_acknowledged());
/// # Ok(())
/// # }
/// ```
pub struct Producer {
    handle: Arc<Handle>,
    /// Failures that a flush of this handle, or of the one it was cloned from before, has told.
    heard: AtomicU64,
}

struct Handle {
    gather: Arc<Gather>,
    block_max: Duration,
}

impl Producer {
    pub(super) async fn start(client: Client, options: ProducerOptions) -> Result<Self> {
        options.check()?;
        // It tells the limits; and whether there is a log to append to is known from the start.
        let session = match options.session {
            Some((session, _)) => Some(session),
            None if options.exactly_once => Some(client.open_session().await?),
            None => None,
        };
        let block_max = options.block_max;
        let gather = Arc::new(Gather::new(options.bounds(client.servers().limits())));
        tokio::spawn(Pump::new(client, gather.clone(), options, session).run());
        Ok(Self { handle: Arc::new(Handle { gather, block_max }), heard: AtomicU64::new(0) })
    }

    fn gather(&self) -> &Gather {
        &self.handle.gather
    }

    /// Buffers a record, and waits for room for at most `options.block_max`. Whether it got into the log is told by
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// `Busy`: there was no room in time. `TooLarge`. `Closed`. What ended the producer. The record was not taken.
    pub async fn send(&self, record: &[u8]) -> Result<()> {
        self.gather().push_wait(record, Tell::Nobody, self.handle.block_max).await.map(drop)
    }

    /// As [`send`](Self::send), but never waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Busy` when there is no room.
    pub fn try_send(&self, record: &[u8]) -> Result<()> {
        self.gather().push(record, Tell::Nobody).map(drop).map_err(|(error, _)| error)
    }

    /// As [`send`](Self::send), and gives a future of the record's index.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn append(&self, record: &[u8]) -> Result<Delivery> {
        let delivery = self.gather().push_wait(record, Tell::Delivery, self.handle.block_max).await?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer returned no delivery"))
    }

    /// As [`append`](Self::append), but never waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Busy` when there is no room.
    pub fn try_append(&self, record: &[u8]) -> Result<Delivery> {
        let delivery = self.gather().push(record, Tell::Delivery).map_err(|(error, _)| error)?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer returned no delivery"))
    }

    /// As [`send`](Self::send), and calls `callback` once with the record's index, or with why it has none, on the
    /// producer's task: it should only pass the result on. Of the reasons `SequenceForgotten` means that the record **is
    /// in the log**; see [`Delivery`]. A panic in it is caught and reported.
    ///
    /// # Errors
    /// As [`send`](Self::send); `callback` is not called then.
    pub async fn send_with(
        &self,
        record: &[u8],
        callback: impl FnOnce(Result<Index>) + Send + 'static,
    ) -> Result<()> {
        let callback: Callback = Box::new(callback);
        self.gather().push_wait(record, Tell::Callback(callback), self.handle.block_max).await.map(drop)
    }

    /// Buffers records that go as a batch of their own: all of them are in the log, at indexes that follow each other, or
    /// none is. Waits for room for at most `options.block_max`. `callback` is called once with the index of the first, as
    /// with [`send_with`](Self::send_with).
    ///
    /// # Errors
    /// As [`send_with`](Self::send_with); `TooLarge`: together they are more than the servers, or `options.batch_bytes`,
    /// allow; `InvalidArgument`: there are none.
    pub async fn send_batch(
        &self,
        records: &[impl AsRef<[u8]>],
        callback: impl FnOnce(Result<Index>) + Send + 'static,
    ) -> Result<()> {
        let tell = Tell::Callback(Box::new(callback));
        self.gather().push_batch_wait(records, tell, self.handle.block_max).await.map(drop)
    }

    /// As [`send_batch`](Self::send_batch), and gives a future of the index of the first record.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch).
    pub async fn append_batch(&self, records: &[impl AsRef<[u8]>]) -> Result<Delivery> {
        let delivery = self.gather().push_batch_wait(records, Tell::Delivery, self.handle.block_max).await?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer returned no delivery"))
    }

    /// Sends at once what lingers, and waits until all records given before the call are settled.
    ///
    /// # Errors
    /// `Timeout`: not within `deadline`; they go on being sent. Else why a record failed, of any clone, since this one last
    /// flushed: each clone is told.
    pub async fn flush(&self, deadline: Duration) -> Result<()> {
        self.gather().flush(within(deadline), &self.heard).await
    }

    /// Bytes of records that were given and are not settled.
    pub fn buffered_bytes(&self) -> usize {
        self.gather().buffered()
    }

    /// How many records were given and are not settled; and those that failed and nobody was told of: by a delivery whose
    /// result was taken, a callback, a flush or a close.
    pub fn unacknowledged(&self) -> u64 {
        self.gather().unacknowledged()
    }

    /// The largest batch that is taken, in bytes as it is encoded: `options.batch_bytes`, or what the servers take, as they
    /// told last.
    pub fn batch_bytes_max(&self) -> usize {
        self.gather().batch_bytes_max()
    }

    /// Takes no more records, waits until all are settled, for at most `deadline`, and ends the session. Tells which
    /// records were not acknowledged by then, or when the producer failed, and whether others failed earlier; the futures
    /// and callbacks of those that are left get `Closed`, or what it failed with. Can be cancelled and repeated, by any
    /// clone: each is told the same records. The first deadline to pass ends the producer.
    pub async fn close(&self, deadline: Duration) -> Closed {
        let gather = self.gather();
        gather.end(Error::new(ErrorKind::Closed, "the producer was closed"));
        if timeout(deadline, gather.wait_gone()).await.is_err() {
            gather.abandon();
            gather.wait_gone().await;
        }
        gather.closed(&self.heard)
    }
}

impl Clone for Producer {
    fn clone(&self) -> Self {
        let heard = AtomicU64::new(self.heard.load(Ordering::Relaxed));
        Self { handle: self.handle.clone(), heard }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let records = self.gather.unsettled();
        if records > 0 {
            tracing::warn!(
                records,
                "a producer was dropped with unacknowledged records; they are sent as long as its runtime lives"
            );
        }
        self.gather.dropped();
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("gather", &self.handle.gather).finish_non_exhaustive()
    }
}
