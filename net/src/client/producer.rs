//! Producer: takes records, and tells what became of them. Its pump does the sending.

use super::Client;
use super::gather::{BATCH_BYTES_MIN, Bounds, Callback, FRAME_BYTES, Gather, Tell};
use super::outcome::Delivery;
use super::pump::Pump;
use bytes::Bytes;
use chiplog::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Codec, Error, ErrorKind, Index, Result};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

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
    /// How long a batch that is not full waits for more records, default 0: it goes as soon as it may.
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
    /// With batches under way and no answer for so long, the connection is given up and they are sent again, default
    /// 10 s.
    pub request_timeout: Duration,
    /// A record that is not acknowledged for so long fails as `Timeout`, default 120 s. It may be in the log all the
    /// same, and so may those behind it that were sent.
    pub delivery_timeout: Duration,
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
            request_timeout: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(120),
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
        Ok(())
    }
}

/// A record that a producer was given and that was not acknowledged before it ended.
///
/// ```
/// # use chiplog_net::client::Unacknowledged;
/// fn to_send_again(left: Vec<Unacknowledged>) -> Vec<bytes::Bytes> {
///     left.into_iter().filter(|u| !u.in_doubt).map(|u| u.record).collect()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Its bytes.
    pub record: Bytes,
    /// It was sent, and can be in the log. False: it surely is not.
    pub in_doubt: bool,
}

/// Appends records: gathers them into batches, keeps several under way, sends again what a failure left open. Cheap to
/// clone, `Send + Sync`: clones share everything, and a record costs its caller a lock and a copy.
///
/// Records given one after the other are in the log in that order. Dropping the last clone lets what was given be sent
/// in the background, as long as the runtime lives; [`close`](Self::close) waits for that.
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
/// assert!(producer.close(Duration::from_secs(10)).await.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

struct Handle {
    gather: Arc<Gather>,
    block_max: Duration,
    pump: Mutex<Option<JoinHandle<()>>>,
    left: Arc<Mutex<Vec<Unacknowledged>>>,
}

impl Producer {
    pub(super) async fn start(client: Client, options: ProducerOptions) -> Result<Self> {
        options.check()?;
        // It tells the limits; and whether there is a log to append to is known from the start.
        let session = if options.exactly_once { Some(client.open_session().await?) } else { None };
        let limits = client.servers().limits();
        let bounds = Bounds {
            batch_bytes: options.batch_bytes.min(limits.batch_bytes_max),
            batch_records: options.batch_records,
            record_bytes_max: limits.batch_bytes_max.saturating_sub(FRAME_BYTES),
            buffer_bytes: options.buffer_bytes,
            linger: options.linger,
        };
        let block_max = options.block_max;
        let gather = Arc::new(Gather::new(bounds));
        let left: Arc<Mutex<Vec<Unacknowledged>>> = Arc::default();
        let pump = Pump::new(client, gather.clone(), options, session, left.clone());
        let pump = Mutex::new(Some(tokio::spawn(pump.run())));
        Ok(Self { handle: Arc::new(Handle { gather, block_max, pump, left }) })
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

    /// As [`send`](Self::send), and calls `callback` once with the record's index, or with why it has none, on the
    /// producer's task: it should only pass the result on.
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

    /// Sends at once what lingers, and waits until all records given before the call are settled.
    ///
    /// # Errors
    /// `Timeout`: not within `deadline`; they go on being sent. Else the first failure of any record since the last
    /// flush.
    pub async fn flush(&self, deadline: Duration) -> Result<()> {
        self.gather().flush(Instant::now() + deadline).await
    }

    /// Bytes of records that were given and are not settled.
    pub fn buffered_bytes(&self) -> usize {
        self.gather().buffered()
    }

    /// Takes no more records, waits until all are settled, for at most `deadline`, and ends the session. Returns the
    /// records that were not acknowledged by then, or when the producer failed, in their order; their futures and
    /// callbacks get `Closed`, or what it failed with.
    pub async fn close(&self, deadline: Duration) -> Vec<Unacknowledged> {
        self.gather().end(Error::new(ErrorKind::Closed, "the producer was closed"));
        let pump = self.handle.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut pump) = pump
            && timeout_at(Instant::now() + deadline, &mut pump).await.is_err()
        {
            self.gather().abandon();
            let _ = pump.await;
        }
        std::mem::take(&mut *self.handle.left.lock().unwrap_or_else(PoisonError::into_inner))
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
