//! Read: one stream of stored batches, from a given start.
//!
//! While a stream catches up, the disk is read on threads that may block. At the tail, new records were written just
//! before and are in memory, so they are read at once. If the client did not read the stream for a while, they are read
//! on a blocking thread again; and always if they may be in the object store alone.
//!
//! Invariants:
//! - the memory of a reply is paid for before the reply is made. Until then the stream holds parts of the log's mapping
//!   and no memory: batches that were read without a mapping, and need more than was paid for, are dropped and read
//!   again;
//! - keep-alives are sent meanwhile: they need no share.
//!
//! Must not know: the contents of batches.

use crate::listener::auth::tokens::Payer;
use crate::served::log_slot::{LogSlot, status_of};
use crate::service::blocking_work::run_blocking;
use crate::service::tail::{CameAt, Waiting, is_in_memory, may_refer, more};
use crate::service::zero_copy::{Answers, Memory, SHARED_BYTES_MIN, ahead, pay, settle};
use crate::wire::proto::v1::read_request::Start as Asked;
use crate::wire::proto::v1::{ReadRequest, ReadResponse, StoredBatch as Message};
use crate::wire::protocol::NANOS_PER_MILLI;
use crate::wire::status::FIRST;
use chiplog::{Error, ErrorKind, Index, Log, ReadMode, Reader, Start, StoredBatch, Timestamp};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::Stream;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// One reply, before it is encoded.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) batches: Vec<StoredBatch>,
    pub(super) last: Index,
    pub(super) first: Index,
    /// None: not known yet; the read waits for the replica.
    pub(super) next: Option<Index>,
    /// The replica has no room for new records.
    pub(super) short: bool,
    pub(super) memory: Memory,
    /// The batches were read without a mapping.
    pub(super) is_in_memory: bool,
}

/// The same as messages, for the generated service.
pub struct ReadStream(pub(super) Replies);

impl Stream for ReadStream {
    type Item = Result<ReadResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reply = ready!(self.0.as_mut().poll_next(context));
        Poll::Ready(reply.map(|reply| {
            reply.map(|Reply { batches, last, first, next, short, .. }| ReadResponse {
                batches: batches.into_iter().map(message).collect(),
                last: last.get(),
                first: first.get(),
                next: next.map_or(0, Index::get),
                short,
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

/// An upper bound of a batch's overhead in a reply.
pub(super) const BATCH_HEAD_BYTES: usize = 160;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);

/// Starts a read.
///
/// # Errors
/// INVALID_ARGUMENT: no start.
pub(super) fn stream(
    host: Arc<LogSlot>,
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
            return Err(status_of(&log, &Error::new(ErrorKind::InvalidArgument, what)));
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
        needed: 0,
        is_at_tail: false,
        reported_shortage: false,
    };
    Ok(Box::pin(futures_util::stream::unfold(reading, Reading::next)))
}

struct Reading {
    host: Arc<LogSlot>,
    payer: Arc<Payer>,
    log: Log,
    /// Batches in files are parts of a mapping, and take no memory.
    is_mapped: bool,
    stage: Stage,
    follow: bool,
    bytes_left: u64,
    records_left: u64,
    keep_alive: Duration,
    reply_bytes: u64,
    /// Without a mapping, the memory of the last reply: the next one may need as much.
    needed: usize,
    /// Everything was read.
    is_at_tail: bool,
    /// The client was informed there that this replica gets no new records.
    reported_shortage: bool,
}

enum Stage {
    /// This replica may not have the records yet.
    Waiting {
        min: Index,
        start: Start,
    },
    /// The start is being searched.
    Opening(Opening),
    /// The records from `from` are being read and paid for.
    Coming {
        from: Index,
        coming: Coming,
    },
    /// The error that was sent.
    Failed(Error),
    Ended,
}

/// A reader at the start.
type Opening = Pin<Box<dyn Future<Output = chiplog::Result<Reader>> + Send>>;

/// The batches of a reply, once they are read and their memory is paid for.
type Coming = Pin<Box<dyn Future<Output = chiplog::Result<Collected>> + Send>>;

/// The batches of a reply, and the reader's new position.
struct Collected {
    reader: Box<Reader>,
    batches: Vec<StoredBatch>,
    bytes: u64,
    records: u64,
    /// The time at which everything had been read.
    at_tail: Option<CameAt>,
    memory: Memory,
    /// The bytes that they need.
    needed: usize,
    /// They were read without a mapping.
    is_in_memory: bool,
    failed: Option<Error>,
}

impl Reading {
    /// Returns the next response and the stream's new state.
    async fn next(mut self) -> Option<(Result<Reply, Status>, Self)> {
        let host = self.host.clone();
        let respond = async {
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Ended => None,
                Stage::Waiting { min, start } => Some(self.open(min, start).await),
                Stage::Opening(opening) => Some(self.begin(opening, Instant::now() + self.keep_alive).await),
                Stage::Failed(error) => Some(Err(error)),
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

    /// Waits for the replica, and starts; or returns a keep-alive while it waits.
    async fn open(&mut self, min: Index, start: Start) -> chiplog::Result<Reply> {
        let deadline = Instant::now() + self.keep_alive;
        loop {
            let tail = self.log.reader(Start::Next)?;
            // A discarded record need not be awaited: the start returns the error.
            if tail.position() > min || self.log.first_index() > min {
                break;
            }
            match timeout_at(deadline, poll_fn(|context| tail.poll_more(context))).await {
                Ok(more) => more?, // a closed log never gets there
                Err(_) => {
                    self.stage = Stage::Waiting { min, start };
                    return Ok(self.position(None).await);
                }
            }
        }
        let (log, payer) = (self.log.clone(), self.payer.clone());
        let opening = async move {
            match start {
                // This searches a segment.
                Start::Timestamp(_) => {
                    let mut waiting = Waiting::default();
                    loop {
                        let log = log.clone();
                        let opening = run_blocking(&payer, move || log.reader_that_fails_at_once(start));
                        let opened = opening.await.map_err(|_| gone())?;
                        let Some(pause) = opened.as_ref().err().and_then(|error| waiting.pause(error)) else {
                            return opened;
                        };
                        sleep(pause).await;
                    }
                }
                _ => log.reader_that_fails_at_once(start),
            }
        };
        self.begin(Box::pin(opening), deadline).await
    }

    /// Starts once the start is found; or returns a keep-alive while it is searched.
    async fn begin(&mut self, mut opening: Opening, deadline: Instant) -> chiplog::Result<Reply> {
        let Ok(reader) = timeout_at(deadline, &mut opening).await else {
            self.stage = Stage::Opening(opening);
            return Ok(self.position(None).await);
        };
        let reader = reader?;
        let next = reader.position();
        let coming = self.fetch(Box::new(reader), None);
        self.stage = Stage::Coming { from: next, coming };
        Ok(self.position(Some(next)).await)
    }

    /// None: everything requested was sent.
    async fn read(&mut self, mut from: Index, mut coming: Coming) -> chiplog::Result<Option<Reply>> {
        let deadline = Instant::now() + self.keep_alive;
        loop {
            // The client is informed without waiting for a keep-alive.
            if self.is_at_tail && !self.reported_shortage && self.log.shortage_cause().is_some() {
                self.reported_shortage = true;
                self.stage = Stage::Coming { from, coming };
                return Ok(Some(self.position(Some(from)).await));
            }
            let Ok(got) = timeout_at(deadline, &mut coming).await else {
                self.stage = Stage::Coming { from, coming };
                return Ok(Some(self.position(Some(from)).await));
            };
            let Collected { reader, batches, bytes, records, at_tail, memory, needed, is_in_memory, failed } =
                got?;
            from = reader.position();
            self.is_at_tail = at_tail.is_some();
            if !batches.is_empty() {
                (self.needed, self.reported_shortage) = (needed, false);
                self.bytes_left = self.bytes_left.saturating_sub(bytes);
                self.records_left = self.records_left.saturating_sub(records);
                self.stage = match failed {
                    _ if self.bytes_left == 0 || self.records_left == 0 => Stage::Ended,
                    Some(error) => Stage::Failed(error),
                    None => Stage::Coming { from, coming: self.fetch(reader, at_tail) },
                };
                return Ok(Some(Reply { is_in_memory, ..self.reply(batches, Some(from), memory) }));
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if !self.follow {
                return Ok(None);
            }
            coming = self.fetch(reader, at_tail);
        }
    }

    /// Reads the next reply. `came`: the next records did not exist at that time.
    fn fetch(&self, mut reader: Box<Reader>, mut came: Option<CameAt>) -> Coming {
        let (payer, log, is_mapped, waits) =
            (self.payer.clone(), self.log.clone(), self.is_mapped, self.follow);
        let (bytes_max, records_max) = (self.reply_bytes.min(self.bytes_left), self.records_left);
        // The last batch of a reply can exceed its limit by the same amount; with larger batches, by as much as the
        // last one did.
        let mut needed = self.needed.max(2 * bytes_max as usize);
        Box::pin(async move {
            if let Some(seen) = came.filter(|_| waits) {
                came = Some(more(seen, |context| reader.poll_more(context)).await?);
            }
            // Payload that came from the object store is no part of a mapping.
            let is_mapped = is_mapped && !may_refer(&log);
            let limits = Limits { bytes_max, records_max, is_mapped };
            let from = reader.position();
            let mut waiting = Waiting::default();
            loop {
                let ahead = if is_mapped { None } else { Some(ahead(&payer, needed).await) };
                let (mut got, ahead) = if is_in_memory(&log, came, || reader.is_in_files()) {
                    (collect(reader, limits), ahead)
                } else {
                    let reading = run_blocking(&payer, move || (collect(reader, limits), ahead));
                    reading.await.map_err(|_| gone())?
                };
                if got.batches.is_empty()
                    && let Some(pause) = got.failed.as_ref().and_then(|error| waiting.pause(error))
                {
                    drop(ahead);
                    reader = got.reader;
                    sleep(pause).await;
                    continue;
                }
                let bytes: usize = got.batches.iter().map(|batch| limits.memory_of(batch)).sum();
                let Some(share) = ahead else {
                    if !got.batches.is_empty() {
                        got.memory = pay(&payer, bytes).await;
                    }
                    return Ok(got);
                };
                if let Some(memory) = settle(share, bytes) {
                    // A seek drops the block that the reader has in memory; a reader that cannot seek ends.
                    let behind = got.reader.position();
                    let failed = got.reader.seek(behind).err();
                    got.failed = got.failed.or(failed);
                    (got.memory, got.needed) = (memory, bytes);
                    return Ok(got);
                }
                (reader, needed) = (got.reader, bytes);
                reader.seek(from)?;
            }
        })
    }

    /// A reply without batches: the position of the log, as a keep-alive.
    async fn position(&mut self, next: Option<Index>) -> Reply {
        let memory = pay(&self.payer, BATCH_HEAD_BYTES).await;
        self.reply(Vec::new(), next, memory)
    }

    fn reply(&self, batches: Vec<StoredBatch>, next: Option<Index>, memory: Memory) -> Reply {
        let (first, last) = self.log.range().into_inner();
        let short = self.log.shortage_cause().is_some();
        if !batches.is_empty() {
            let bytes: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
            self.host.gauges().add_read_bytes(bytes as u64);
        }
        Reply { batches, last, first, next, short, memory, is_in_memory: !self.is_mapped }
    }

    fn status(&self, error: &Error) -> Status {
        let mut status = status_of(&self.log, error);
        if error.kind() == ErrorKind::Discarded {
            status.metadata_mut().insert(FIRST, MetadataValue::from(self.log.first_index().get()));
        }
        status
    }
}

/// The limits of one reply.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of batches; without a mapping, of memory as well.
    bytes_max: u64,
    records_max: u64,
    is_mapped: bool,
}

impl Limits {
    /// The bytes that a batch takes in memory.
    fn memory_of(self, batch: &StoredBatch) -> usize {
        match batch.bytes().len() {
            bytes if !self.is_mapped || bytes < SHARED_BYTES_MIN => bytes + BATCH_HEAD_BYTES,
            _ => BATCH_HEAD_BYTES,
        }
    }
}

/// Reads the batches of one reply. The last one can exceed the limits.
fn collect(mut reader: Box<Reader>, limits: Limits) -> Collected {
    let (mut batches, mut bytes, mut memory, mut records) = (Vec::new(), 0, 0, 0);
    let (mut at_tail, mut failed) = (None, None);
    let has_room = |memory: usize| limits.is_mapped || (memory as u64) < limits.bytes_max;
    while bytes < limits.bytes_max && records < limits.records_max && has_room(memory) {
        let position = reader.position();
        match reader.next_stored() {
            Ok(Some(batch)) => {
                bytes += batch.bytes().len() as u64;
                memory += limits.memory_of(&batch);
                records += reader.position().get() - position.get();
                batches.push(batch);
            }
            Ok(None) => {
                at_tail = Some(CameAt::now());
                break;
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let is_in_memory = !limits.is_mapped;
    Collected { reader, batches, bytes, records, at_tail, memory: None, needed: 0, is_in_memory, failed }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::auth::tokens::Resource;
    use crate::listener::memory_budget::Budget;
    use crate::service::blocking_work::tests::{frees_its_turn, read_until_idle, work_ends};
    use crate::service::tail::tests::log_with_payload_slices;
    use chiplog::Options;
    use futures_util::FutureExt as _;
    use tokio_stream::StreamExt as _;

    fn log_with_a_record() -> (tempfile::TempDir, Log) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        log.append(b"x").unwrap();
        (dir, log)
    }

    /// The answer to a request for all records, behind its first reply, which has none.
    async fn begun(log: &Log, follow: bool, payer: &Arc<Payer>) -> Replies {
        let request = ReadRequest { start: Some(Asked::Index(1)), follow, ..ReadRequest::default() };
        let mut replies = stream(LogSlot::new(), log.clone(), &request, 1 << 20, payer.clone()).unwrap();
        assert!(replies.next().await.unwrap().unwrap().batches.is_empty());
        replies
    }

    /// HTTP/2 does not poll an answer whose client gives no window. A turn that was granted to it stayed unused
    /// meanwhile.
    #[tokio::test]
    async fn catching_up_releases_its_turn() {
        let (_dir, log) = log_with_a_record();
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let mut replies = begun(&log, false, &payer).await;
        frees_its_turn(&payer, replies.next()).await;
        assert_eq!(replies.next().await.unwrap().unwrap().batches.len(), 1);
    }

    /// A reader at the tail whose client read nothing for long read the new records from the disk on a runtime thread.
    #[tokio::test]
    async fn reader_that_was_not_polled_at_the_tail_catches_up() {
        let (_dir, log) = log_with_a_record();
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let mut replies = begun(&log, true, &payer).await;
        for is_waiting in [false, true] {
            assert_eq!(replies.next().await.unwrap().unwrap().batches.len(), 1);
            if is_waiting {
                assert_eq!(read_until_idle(&mut replies).await, 0, "nothing was written");
            }
            log.append(b"y").unwrap();
            tokio::time::sleep(Duration::from_millis(1100)).await;
            frees_its_turn(&payer, replies.next()).await;
        }
    }

    /// The newest records of a log with payload slices may be in the object store alone: reading them blocked a runtime thread. They are
    /// no parts of a mapping, and their memory is counted.
    #[tokio::test]
    async fn reader_at_the_tail_of_payload_slices_blocks_no_runtime_thread() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_with_payload_slices(dir.path()).await;
        let budget = Budget::default();
        let payer = budget.payer_of(&http::Extensions::new());
        let mut replies = begun(&log, true, &payer).await;
        for _ in 0..2 {
            assert_eq!(read_until_idle(&mut replies).await, 0, "nothing was written");
            log.append(&[7; 3 * SHARED_BYTES_MIN]).unwrap();
            frees_its_turn(&payer, replies.next()).await;
            let reply = replies.next().await.unwrap().unwrap();
            assert!(reply.is_in_memory && reply.batches.len() == 1, "{reply:?}");
            assert!(budget.answer_bytes() >= 3 * SHARED_BYTES_MIN, "{}", budget.answer_bytes());
        }
    }

    /// New records count as just written if the end was found just before, not if the client read the answer just
    /// before.
    #[tokio::test]
    async fn reader_whose_answer_was_not_read_catches_up() {
        let (_dir, log) = log_with_a_record();
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let mut replies = begun(&log, true, &payer).await;
        assert!(replies.next().now_or_never().is_none(), "it is read on another thread");
        work_ends().await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(replies.next().await.unwrap().unwrap().batches.len(), 1);
        log.append(b"y").unwrap();
        frees_its_turn(&payer, replies.next()).await;
    }

    /// Each batch that is larger than a reply was read twice: at first there was memory for two replies.
    #[tokio::test]
    async fn large_batches_are_read_once_there_is_memory_for_them() {
        const BYTES: usize = 64 << 10;
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::with_segment_bytes(1 << 20);
        options.read_mode = ReadMode::Read;
        let log = Log::open(dir.path(), options).unwrap();
        for _ in 0..2 {
            log.append(&[7; BYTES]).unwrap();
        }
        let budget = Budget::default();
        let (host, payer) = (LogSlot::new(), budget.payer_of(&http::Extensions::new()));
        let request = ReadRequest { start: Some(Asked::Index(1)), ..ReadRequest::default() };
        let mut replies = stream(host, log, &request, 1 << 10, payer.clone()).unwrap();
        assert!(replies.next().await.unwrap().unwrap().batches.is_empty());
        assert_eq!(replies.next().await.unwrap().unwrap().batches.len(), 1);
        let _all = payer.take(Resource::Turns, 1 << 20).await;
        assert!(tokio::time::timeout(Duration::from_millis(50), replies.next()).await.is_err());
        assert!(budget.answer_bytes() > BYTES, "{}", budget.answer_bytes());
    }

    /// Searches without a turn occupied all blocking threads, and those with a turn waited behind them.
    #[tokio::test]
    async fn search_for_a_time_takes_a_turn_and_sends_keep_alives() {
        let (dir, log) = log_with_a_record();
        let (host, payer) = (LogSlot::new(), Budget::default().payer_of(&http::Extensions::new()));
        let start = Some(Asked::TimestampNanos(1));
        let request = ReadRequest { start, keep_alive_millis: 1000, ..ReadRequest::default() };
        let mut replies = stream(host, log, &request, 1 << 20, payer.clone()).unwrap();
        frees_its_turn(&payer, replies.next()).await;
        assert_eq!(replies.next().await.unwrap().unwrap().next, Some(Index(1)));
        assert_eq!(replies.next().await.unwrap().unwrap().batches.len(), 1);
        // While no turn is free, the client gets keep-alives.
        let all = payer.take(Resource::Turns, 1 << 20).await;
        let request = ReadRequest { keep_alive_millis: 10, ..request };
        let log = Log::open(dir.path().join("other"), Options::with_segment_bytes(1 << 20)).unwrap();
        let mut replies = stream(LogSlot::new(), log, &request, 1 << 20, payer.clone()).unwrap();
        for _ in 0..2 {
            assert_eq!(replies.next().await.unwrap().unwrap().next, None);
        }
        drop(all);
    }
}
