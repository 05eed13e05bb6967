//! Producer: accepts records and reports their results. Its sender task does the sending.

pub(crate) mod accumulator;
pub(crate) mod close_report;
pub(crate) mod delivery;
pub(crate) mod options;
pub(crate) mod sender;
pub(crate) mod unreported;

use super::Client;
use super::producer::accumulator::{Accumulator, Callback, Report};
use super::producer::close_report::Closed;
use super::producer::delivery::Delivery;
use super::producer::options::ProducerOptions;
use super::producer::sender::SenderTask;
use super::retry::deadline::within;
use chiplog::{Appended, Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Appends records: collects them into batches, keeps several batches in flight, and sends a batch again when a failure
/// leaves its result open. Cheap to clone, `Send + Sync`: clones share everything. A record costs its caller one lock
/// and one copy.
///
/// Records passed one after the other are in the log in that order. A batch that the servers reject because of its
/// content fails alone, and the producer continues. When the last clone is dropped, records are still sent in the
/// background, as long as the runtime lives; [`close`](Self::close) waits for them. A drop with unacknowledged records
/// is reported by `tracing`, as a warning. If records fail and no delivery's result, callback, flush or close reports
/// it, `tracing` reports their number, as an error, once the producer and the deliveries are dropped. A producer cannot
/// be used in a forked child: its task runs in the parent.
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
    /// Failures that a flush of this handle, or of the handle that it was cloned from, had reported by then.
    reported: AtomicU64,
}

struct Handle {
    accumulator: Arc<Accumulator>,
    block_max: Duration,
}

impl Producer {
    pub(super) async fn start(client: Client, options: ProducerOptions) -> Result<Self> {
        options.check()?;
        // This call returns the limits, and fails early if there is no log to append to.
        let session = match options.session {
            Some((session, _)) => Some(session),
            None if options.exactly_once => Some(client.open_session().await?),
            None => None,
        };
        let block_max = options.block_max;
        let accumulator = Arc::new(Accumulator::new(options.bounds(client.servers().limits())));
        tokio::spawn(SenderTask::new(client, accumulator.clone(), options, session).run());
        Ok(Self { handle: Arc::new(Handle { accumulator, block_max }), reported: AtomicU64::new(0) })
    }

    fn accumulator(&self) -> &Accumulator {
        &self.handle.accumulator
    }

    /// Buffers a record. Waits for room for up to `options.block_max`. [`flush`](Self::flush) reports whether the
    /// record got into the log.
    ///
    /// # Errors
    /// `Busy`: there was no room in time. `TooLarge`. `Closed`. The error that ended the producer. In each case the
    /// record was not accepted.
    pub async fn send(&self, record: &[u8]) -> Result<()> {
        self.accumulator().push_wait(record, Report::None, self.handle.block_max).await.map(drop)
    }

    /// As [`send`](Self::send), but never blocks, and needs no runtime.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Busy` when there is no room.
    pub fn try_send(&self, record: &[u8]) -> Result<()> {
        self.accumulator().push(record, Report::None).map(drop).map_err(|(error, _)| error)
    }

    /// As [`send`](Self::send), and returns a future of the record's index.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn append(&self, record: &[u8]) -> Result<Delivery> {
        let delivery = self.accumulator().push_wait(record, Report::Delivery, self.handle.block_max).await?;
        delivery.ok_or_else(|| {
            Error::new(ErrorKind::Closed, "the producer returned no delivery: this is a bug in chiplog")
        })
    }

    /// As [`append`](Self::append), but never blocks, and needs no runtime.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Busy` when there is no room.
    pub fn try_append(&self, record: &[u8]) -> Result<Delivery> {
        let delivery = self.accumulator().push(record, Report::Delivery).map_err(|(error, _)| error)?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer returned no delivery"))
    }

    /// As [`send`](Self::send), and calls `callback` once with the record's place in the log, and how durable it is there,
    /// or with an error. The callback runs on the
    /// producer's task and should only pass the result on. The error `SequenceForgotten` means that the record **is in
    /// the log**; see [`Delivery`]. A panic in the callback is caught and logged.
    ///
    /// # Errors
    /// As [`send`](Self::send); `callback` is not called then.
    pub async fn send_with(
        &self,
        record: &[u8],
        callback: impl FnOnce(Result<Appended>) + Send + 'static,
    ) -> Result<()> {
        let callback: Callback = Box::new(callback);
        self.accumulator()
            .push_wait(record, Report::Callback(callback), self.handle.block_max)
            .await
            .map(drop)
    }

    /// Buffers records that are sent as one batch: either all of them are in the log, at consecutive indexes, or none
    /// is. Waits for room for up to `options.block_max`. `callback` is called once with their place,
    /// as with [`send_with`](Self::send_with).
    ///
    /// # Errors
    /// As [`send_with`](Self::send_with); `TooLarge`: the batch is larger than the servers or `options.batch_bytes`
    /// allow; `InvalidArgument`: there are no records.
    pub async fn send_batch(
        &self,
        records: &[impl AsRef<[u8]>],
        callback: impl FnOnce(Result<Appended>) + Send + 'static,
    ) -> Result<()> {
        let report = Report::Callback(Box::new(callback));
        self.accumulator().push_batch_wait(records, report, self.handle.block_max).await.map(drop)
    }

    /// As [`send_batch`](Self::send_batch), and returns a future of the index of the first record.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch).
    pub async fn append_batch(&self, records: &[impl AsRef<[u8]>]) -> Result<Delivery> {
        let delivery =
            self.accumulator().push_batch_wait(records, Report::Delivery, self.handle.block_max).await?;
        delivery.ok_or_else(|| Error::new(ErrorKind::Closed, "the producer returned no delivery"))
    }

    /// Sends lingering records at once, and waits until all records accepted before the call have a result.
    ///
    /// # Errors
    /// `Timeout`: some have no result within `deadline`; they are still being sent. Otherwise the error of the last
    /// record that failed, of any clone, since this clone last flushed: each clone gets it.
    pub async fn flush(&self, deadline: Duration) -> Result<()> {
        self.accumulator().flush(within(deadline), &self.reported).await
    }

    /// Bytes of records that were accepted and have no result yet.
    pub fn buffered_bytes(&self) -> usize {
        self.accumulator().buffered()
    }

    /// The number of records that have no result yet, plus those whose failure was not reported by a delivery's result,
    /// a callback, a flush or a close.
    pub fn unacknowledged(&self) -> u64 {
        self.accumulator().unacknowledged()
    }

    /// The largest batch that is accepted, in encoded bytes: `options.batch_bytes`, or the limit that the servers last
    /// reported.
    pub fn batch_bytes_max(&self) -> usize {
        self.accumulator().batch_bytes_max()
    }

    /// Stops accepting records, waits until all have a result, for up to `deadline`, and closes the session. Returns
    /// which records were not acknowledged by then or when the producer failed, and whether others failed earlier. The
    /// futures and callbacks of the remaining records get `Closed`, or the producer's error. May be cancelled and
    /// repeated, by any clone: each gets the same records. The first deadline to pass ends the producer.
    pub async fn close(&self, deadline: Duration) -> Closed {
        let accumulator = self.accumulator();
        accumulator.end(Error::new(ErrorKind::Closed, "the producer was closed"));
        if timeout(deadline, accumulator.wait_gone()).await.is_err() {
            accumulator.abandon();
            accumulator.wait_gone().await;
        }
        accumulator.closed(&self.reported)
    }
}

impl Clone for Producer {
    fn clone(&self) -> Self {
        let reported = AtomicU64::new(self.reported.load(Ordering::Relaxed));
        Self { handle: self.handle.clone(), reported }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let records = self.accumulator.unsettled();
        if records > 0 {
            tracing::warn!(
                records,
                "a producer was dropped with unacknowledged records; they are sent as long as its runtime lives"
            );
        }
        self.accumulator.dropped();
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("accumulator", &self.handle.accumulator).finish_non_exhaustive()
    }
}
