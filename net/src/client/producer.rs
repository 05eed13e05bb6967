//! Producer: takes records, and tells what became of them. Its pump does the sending.

use super::Client;
use super::closed::Closed;
use super::deadline::within;
use super::gather::{BATCH_BYTES_MIN, Bounds, Callback, FRAME_BYTES, Gather, Tell};
use super::outcome::Delivery;
use super::pump::Pump;
use super::servers::Limits;
use chiplog::{
    BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Codec, Error, ErrorKind, Index, Result, Sequence, SessionId,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Limits, deadlines and promises of a [`Producer`].
///
/// ```
/// use std::time::Duration;
/// let mut options = chiplog_net::client::ProducerOptions::default();
/// options.codec = chiplog::Codec::Lz4;
/// options.linger = Duration::from_millis(2);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProducerOptions {
    /// How long a batch that is not full waits for more records, default 0: it goes as soon as it may. Less than
    /// `delivery_timeout`.
    pub linger: Duration,
    /// A batch goes when it is so large, default 256 KiB. A larger record goes alone.
    pub batch_bytes: usize,
    /// A batch goes when it has so many records, 1 to 2^20 and the default.
    pub batch_records: u32,
    /// How batches are compressed, default not at all. The producer's task does it.
    pub codec: Codec,
    /// Bytes of records that are not acknowledged yet, default 32 MiB; beyond it callers wait.
    pub buffer_bytes: usize,
    /// How long a caller waits for room before `Busy`, default 60 s.
    pub block_max: Duration,
    /// Batches under way at a time, 1 to 1,024, default 32; with `exactly_once` no more than the log remembers.
    pub inflight_max: u16,
    /// Each record is in the log once, whatever is sent again, in the order in which it was given. Default true. False:
    /// what is sent again after a failure can be there twice, and out of order.
    pub exactly_once: bool,
    /// Goes on in this session instead of opening one; the first batch has this number in it. For programs that keep what
    /// they have sent, and send it again after they were restarted: batches given under the numbers that they had are in
    /// the log once. Batches are to be given by [`send_batch`](Producer::send_batch) then, each takes one number. Where
    /// the numbers cannot go on, the producer fails instead of going on in another session. Default None.
    pub session: Option<(SessionId, Sequence)>,
    /// With batches under way and no answer for so long, the connection is given up and they are sent again, default
    /// 10 s. The largest batch has to get there in that time.
    pub request_timeout: Duration,
    /// A record that is not acknowledged for so long fails, default 120 s: as `Full`, `Busy` or `TooManySessions` if that
    /// is what it was refused with, and it surely is not in the log; else as `Timeout`, and it may be in the log all
    /// the same. Those behind it that were sent by then fail with it.
    pub delivery_timeout: Duration,
    /// How long the log may be full before records that wait for so long fail as `Full`, default 5 s: time for somebody
    /// to discard.
    pub full_max: Duration,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            linger: Duration::ZERO,
            batch_bytes: 256 << 10,
            batch_records: BATCH_RECORDS_MAX,
            codec: Codec::None,
            buffer_bytes: 32 << 20,
            block_max: Duration::from_secs(60),
            inflight_max: 32,
            exactly_once: true,
            session: None,
            request_timeout: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(120),
            full_max: Duration::from_secs(5),
        }
    }
}

impl ProducerOptions {
    fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        if !(BATCH_BYTES_MIN..=BATCH_BYTES_MAX).contains(&self.batch_bytes) {
            return refuse("option batch_bytes has to be from 45 bytes to 256 MiB");
        }
        if !(1..=BATCH_RECORDS_MAX).contains(&self.batch_records) {
            return refuse("option batch_records has to be from 1 to 1,048,576");
        }
        if !(1..=1024).contains(&self.inflight_max) {
            return refuse("option inflight_max has to be from 1 to 1,024");
        }
        if self.request_timeout.is_zero() || self.delivery_timeout.is_zero() {
            return refuse("options request_timeout and delivery_timeout have to be more than nothing");
        }
        if self.session.is_some_and(|(_, next)| next.get() == 0 || !self.exactly_once) {
            return refuse("option session needs a number from 1, and exactly_once");
        }
        if self.linger >= self.delivery_timeout {
            return refuse("option linger has to be less than delivery_timeout");
        }
        Ok(())
    }

    /// Of what is gathered, for servers with these limits.
    pub(super) fn bounds(&self, limits: Limits) -> Bounds {
        let alone = limits.batch_bytes_max.saturating_sub(FRAME_BYTES);
        Bounds {
            batch_bytes: self.batch_bytes.min(limits.batch_bytes_max),
            batch_records: self.batch_records,
            record_bytes_max: limits.record_bytes_max.min(alone),
            buffer_bytes: self.buffer_bytes,
            linger: self.linger,
        }
    }
}

/// Appends records: gathers them into batches, keeps several under way, sends again what a failure left open. Cheap to
/// clone, `Send + Sync`: clones share everything, and a record costs its caller a lock and a copy.
///
/// Records given one after the other are in the log in that order. A batch that the servers refuse for what it is fails
/// alone, and the producer goes on. Dropping the last clone lets what was given be sent in the background, as long as the
/// runtime lives; [`close`](Self::close) waits for that. Of no use in a forked child: its task is in the parent.
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
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer gave no delivery"))
    }

    /// As [`append`](Self::append), but never waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Busy` when there is no room.
    pub fn try_append(&self, record: &[u8]) -> Result<Delivery> {
        let delivery = self.gather().push(record, Tell::Delivery).map_err(|(error, _)| error)?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer gave no delivery"))
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
        let callback: Callback = Box::new(callback);
        self.gather().push_batch_wait(records, callback, self.handle.block_max).await
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
        self.gather.end(Error::new(ErrorKind::Closed, "the producer was dropped"));
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("gather", &self.handle.gather).finish_non_exhaustive()
    }
}
