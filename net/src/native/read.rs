//! Read: one stream of stored batches, from a start on.
//!
//! While a stream catches up, the disk is read on threads that may wait for it. At the tail, where what comes was
//! written a moment ago, it is read at once.
//!
//! Invariants:
//! - what a reply takes in memory is paid for before the reply is made; while that is waited for, the stream holds places in
//!   the log's mapping and no memory;
//! - keep-alives go out meanwhile: they need no share.
//!
//! Must not know: what is in a batch.

use crate::accounts::{Payer, Resource};
use crate::host::Host;
use crate::proto::v1::read_request::Start as Asked;
use crate::proto::v1::{ReadRequest, ReadResponse, StoredBatch as Message};
use crate::status::FIRST;
use crate::verbatim::{Answers, Memory, SHARED_BYTES_MIN, ahead, pay, settle};
use chiplog::{Error, ErrorKind, Index, Log, ReadMode, Reader, Start, StoredBatch, Timestamp};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_stream::Stream;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// One reply, before it is put into bytes.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) batches: Vec<StoredBatch>,
    pub(super) last: Index,
    pub(super) first: Index,
    /// Not settled yet: the read waits for the replica.
    pub(super) next: Option<Index>,
    pub(super) memory: Memory,
}

/// The same as messages, for whoever serves the generated service.
pub struct ReadStream(pub(super) Replies);

impl Stream for ReadStream {
    type Item = Result<ReadResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reply = ready!(self.0.as_mut().poll_next(context));
        Poll::Ready(reply.map(|reply| {
            reply.map(|Reply { batches, last, first, next, .. }| ReadResponse {
                batches: batches.into_iter().map(message).collect(),
                last: last.get(),
                first: first.get(),
                next: next.map_or(0, Index::get),
            })
        }))
    }
}

fn message(batch: StoredBatch) -> Message {
    Message {
        first: batch.first().get(),
        timestamp_nanos: batch.timestamp().get().saturating_mul(NANOS_PER_MILLI),
        batch: batch.bytes().clone(),
    }
}

/// The replies of one read.
pub(super) type Replies = Answers<Reply>;

/// What a batch takes in a reply besides its own bytes, generously.
pub(super) const BATCH_HEAD_BYTES: usize = 160;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
pub(crate) const NANOS_PER_MILLI: u64 = 1_000_000;

/// Begins a read.
///
/// # Errors
/// INVALID_ARGUMENT: no start.
pub(super) fn stream(
    host: Arc<Host>,
    log: Log,
    request: &ReadRequest,
    reply_bytes: usize,
    payer: Arc<Payer>,
) -> Result<Replies, Status> {
    let start = match request.start {
        Some(Asked::Index(index)) => Start::Index(Index(index)),
        Some(Asked::TimestampNanos(nanos)) => Start::Timestamp(Timestamp(nanos.div_ceil(NANOS_PER_MILLI))),
        Some(Asked::Last(count)) => Start::Last(count),
        Some(Asked::Oldest(_)) => Start::First,
        Some(Asked::Newest(_)) => Start::Next,
        None => {
            let what = "a read needs a start: index, timestamp_nanos, last, oldest or newest";
            return Err(host.status_of(&Error::new(ErrorKind::InvalidArgument, what)));
        }
    };
    let keep_alive = Duration::from_millis(request.keep_alive_millis.into());
    let is_mapped = log.options().read_mode == ReadMode::Map;
    let reading = Reading {
        host,
        payer,
        is_mapped,
        log,
        stage: Stage::Waiting { min: Index(request.min_index), start },
        follow: request.follow,
        bytes_left: if request.bytes_max == 0 { u64::MAX } else { request.bytes_max },
        records_left: if request.records_max == 0 { u64::MAX } else { request.records_max },
        keep_alive: if keep_alive.is_zero() { KEEP_ALIVE } else { keep_alive.max(KEEP_ALIVE_MIN) },
        reply_bytes: reply_bytes as u64,
        failed: None,
    };
    Ok(Box::pin(futures_util::stream::unfold(reading, Reading::next)))
}

struct Reading {
    host: Arc<Host>,
    payer: Arc<Payer>,
    log: Log,
    /// Batches are places in a mapping, and take no memory.
    is_mapped: bool,
    stage: Stage,
    follow: bool,
    bytes_left: u64,
    records_left: u64,
    keep_alive: Duration,
    reply_bytes: u64,
    /// What is to be told once all that was read before it has been.
    failed: Option<Error>,
}

enum Stage {
    /// This replica may not be so far yet.
    Waiting {
        min: Index,
        start: Start,
    },
    /// The records from `from` on are being read and paid for.
    Coming {
        from: Index,
        coming: Coming,
    },
    Ended,
}

/// A reply's worth of batches, once it is read and its memory is paid for.
type Coming = Pin<Box<dyn Future<Output = chiplog::Result<Gathered>> + Send>>;

/// What was read for one reply.
struct Gathered {
    reader: Box<Reader>,
    batches: Vec<StoredBatch>,
    bytes: u64,
    records: u64,
    memory: Memory,
    failed: Option<Error>,
}

impl Reading {
    /// The next response, and what goes on.
    async fn next(mut self) -> Option<(Result<Reply, Status>, Self)> {
        let host = self.host.clone();
        let respond = async {
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Ended => None,
                Stage::Waiting { min, start } => Some(self.open(min, start).await),
                Stage::Coming { from, coming } => self.read(from, coming).await.transpose(),
            }
        };
        let response = tokio::select! {
            biased;
            () = host.drained() => Err(gone()),
            response = respond => response?,
        };
        Some((response.map_err(|e| self.status(&e)), self))
    }

    /// Waits for the replica, and begins; or says that it still waits.
    async fn open(&mut self, min: Index, start: Start) -> chiplog::Result<Reply> {
        let deadline = Instant::now() + self.keep_alive;
        loop {
            let mut tail = self.log.reader(Start::Next)?;
            // What was discarded need not be waited for: the start tells what is the matter.
            if tail.position() > min || self.log.info().first > min {
                break;
            }
            match timeout_at(deadline, more(&mut tail)).await {
                Ok(more) => more?, // a log that takes nothing more never gets there
                Err(_) => {
                    self.stage = Stage::Waiting { min, start };
                    return Ok(self.position(None).await);
                }
            }
        }
        let reader = match start {
            Start::Timestamp(_) => {
                let log = self.log.clone(); // it searches a segment
                tokio::task::spawn_blocking(move || log.reader(start)).await.map_err(|_| gone())??
            }
            _ => self.log.reader(start)?,
        };
        let next = reader.position();
        let coming = self.fetch(Box::new(reader), false);
        self.stage = Stage::Coming { from: next, coming };
        Ok(self.position(Some(next)).await)
    }

    /// None: all that was asked for was told.
    async fn read(&mut self, mut from: Index, mut coming: Coming) -> chiplog::Result<Option<Reply>> {
        let deadline = Instant::now() + self.keep_alive;
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.bytes_left == 0 || self.records_left == 0 {
                return Ok(None);
            }
            let Ok(got) = timeout_at(deadline, &mut coming).await else {
                self.stage = Stage::Coming { from, coming };
                return Ok(Some(self.position(Some(from)).await));
            };
            let Gathered { reader, batches, bytes, records, memory, failed } = got?;
            self.failed = failed;
            from = reader.position();
            if !batches.is_empty() {
                // A short reply: the tail was reached.
                let at_tail = bytes < self.reply_bytes.min(self.bytes_left);
                self.bytes_left = self.bytes_left.saturating_sub(bytes);
                self.records_left = self.records_left.saturating_sub(records);
                let coming = self.fetch(reader, at_tail);
                self.stage = Stage::Coming { from, coming };
                return Ok(Some(self.reply(batches, Some(from), memory)));
            }
            if self.failed.is_some() {
                continue;
            }
            if !self.follow {
                return Ok(None);
            }
            coming = self.fetch(reader, true);
        }
    }

    /// Reads the next reply's worth. `at_tail`: what comes next was not there when it was last looked for.
    fn fetch(&self, mut reader: Box<Reader>, at_tail: bool) -> Coming {
        let (payer, is_mapped, waits) = (self.payer.clone(), self.is_mapped, at_tail && self.follow);
        let (bytes_max, records_max) = (self.reply_bytes.min(self.bytes_left), self.records_left);
        Box::pin(async move {
            if waits {
                more(&mut reader).await?;
            }
            let ahead = if is_mapped { None } else { Some(ahead(&payer, bytes_max as usize).await) };
            let mut got = if at_tail {
                gather(reader, bytes_max, records_max)
            } else {
                let turn = payer.take(Resource::Turns, 1).await;
                let reading = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    gather(reader, bytes_max, records_max)
                });
                reading.await.map_err(|_| gone())?
            };
            if !is_mapped {
                let _ = got.reader.seek(got.reader.position()); // lets go of the block that it has in memory
            }
            if !got.batches.is_empty() {
                let copied = |batch: &StoredBatch| match batch.bytes().len() {
                    bytes if !is_mapped || bytes < SHARED_BYTES_MIN => bytes + BATCH_HEAD_BYTES,
                    _ => BATCH_HEAD_BYTES,
                };
                got.memory = settle(&payer, ahead, got.batches.iter().map(copied).sum()).await;
            }
            Ok(got)
        })
    }

    /// A reply without batches: how far the log is, and that the server is there.
    async fn position(&mut self, next: Option<Index>) -> Reply {
        let memory = pay(&self.payer, BATCH_HEAD_BYTES).await;
        self.reply(Vec::new(), next, memory)
    }

    fn reply(&self, batches: Vec<StoredBatch>, next: Option<Index>, memory: Memory) -> Reply {
        let info = self.log.info();
        Reply { batches, last: info.last, first: info.first, next, memory }
    }

    fn status(&self, error: &Error) -> Status {
        let mut status = self.host.status_of(error);
        if error.kind() == ErrorKind::Discarded {
            status.metadata_mut().insert(FIRST, MetadataValue::from(self.log.info().first.get()));
        }
        status
    }
}

/// Batches for one reply. The last one can go over the limits.
fn gather(mut reader: Box<Reader>, bytes_max: u64, records_max: u64) -> Gathered {
    let (mut batches, mut bytes, mut records, mut failed) = (Vec::new(), 0, 0, None);
    while bytes < bytes_max && records < records_max {
        let position = reader.position();
        match reader.next_stored() {
            Ok(Some(batch)) => {
                bytes += batch.bytes().len() as u64;
                records += reader.position().get() - position.get();
                batches.push(batch);
            }
            Ok(None) => break,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    Gathered { reader, batches, bytes, records, memory: None, failed }
}

/// Waits at the tail.
async fn more(reader: &mut Reader) -> chiplog::Result<()> {
    poll_fn(|context| reader.poll_more(context)).await
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is about to end")
}
