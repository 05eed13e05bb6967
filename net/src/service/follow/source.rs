//! Source: one stream of committed blocks, from a given position.
//!
//! While a follower catches up, the disk is read on threads that may block. At the tail, new blocks were written just
//! before and are in memory, so they are read at once. If the follower did not read the stream for a while, they are
//! read on a blocking thread again.
//!
//! Invariants: the memory of a response is paid for before it is read, because the headers of blocks contain their
//! size; a state that turns out larger is dropped and made again; responses without blocks are sent meanwhile.

use crate::listener::auth::tokens::Payer;
use crate::served::caller::Caller;
use crate::served::log_slot::{Feeding as Counted, LogSlot, status_of};
use crate::service::blocking_work::run_blocking;
use crate::service::tail::{CameAt, is_in_memory, may_refer, more};
use crate::service::zero_copy::{
    Answers, EncodeFrame, FrameWriter, Memory, SHARED_BYTES_MIN, ahead, pay, settle,
};
use crate::wire::ids;
use crate::wire::proto::v1::follow_request::Start as Asked;
use crate::wire::proto::v1::{FollowPlace, FollowRecords, FollowRequest};
use crate::wire::protocol::NANOS_PER_MILLI;
use bytes::Bytes;
use chiplog::follower::{FollowFrom, FollowMessage, FollowSource};
use chiplog::{EntryIndex, Error, ErrorKind, Index, Log, LogId, ReadMode, Term, Timestamp};
use prost::encoding::{encoded_len_varint, uint64};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// Bytes of a response in addition to its blocks and their headers.
const RESPONSE_HEAD_BYTES: usize = 256;
/// Bytes of a block's header in a response, and of the fields around the block.
const BLOCK_HEAD_BYTES: usize = 64 + 16;
/// The minimal size of a request at the tail: small blocks that were written together are sent together.
const TAIL_BYTES: usize = 64 << 10;
/// The interval of checks, during a busy stream, whether this server is itself up to date.
const FED_LOOK: Duration = Duration::from_secs(1);

/// One response, before it is encoded.
#[derive(Debug)]
pub(super) struct Reply {
    /// None: only the position of the source.
    frame: Option<FollowMessage>,
    /// Set in the first response.
    log: Option<LogId>,
    last: Index,
    first: Index,
    committed: EntryIndex,
    fed: bool,
    memory: Memory,
    /// The blocks were read without a mapping, or a state was made.
    is_in_memory: bool,
}

/// Starts a stream.
///
/// # Errors
/// INVALID_ARGUMENT: no start, or no id. FAILED_PRECONDITION: another log. UNAVAILABLE: temporarily. OUT_OF_RANGE: the
/// start record is discarded, or does not exist yet. PERMISSION_DENIED: the caller may not reach the log. NOT_FOUND: there is no
/// such named log. UNIMPLEMENTED: the follower cannot keep a copy of one named log.
pub(super) async fn begin(
    host: &Arc<LogSlot>,
    caller: &Caller,
    request: &FollowRequest,
    response_bytes: usize,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let log = find(host, caller, request).await?;
    let from = from(request, log.log_id()).map_err(|e| status_of(&log, &e))?;
    let feed = feed_of(&log, from, request.skips_stored).map_err(|e| status_of(&log, &e))?;
    if feed.is_of_one_log() && request.records.is_none() {
        let what =
            "the follower cannot keep a copy of one named log: upgrade it, or follow the log's whole group";
        return Err(status_of(&log, &Error::new(ErrorKind::Unsupported, what)));
    }
    let keep_alive = Duration::from_millis(request.keep_alive_millis.into());
    let feeding = Feeding {
        payer,
        counted: host.feeding(),
        fed: (Instant::now(), host.is_log_fed(&log)),
        host: host.clone(),
        is_mapped: log.options().read_mode == ReadMode::Map && !feed.is_of_one_log(),
        log,
        skips_stored: request.skips_stored,
        committed: feed.committed(),
        stage: Stage::Begun(Box::new(feed)),
        keep_alive: if keep_alive.is_zero() { KEEP_ALIVE } else { keep_alive.max(KEEP_ALIVE_MIN) },
        response_bytes,
    };
    Ok(Box::pin(futures_util::stream::unfold(feeding, Feeding::next)))
}

/// The log that the follower wants. A named log can have been deleted, and another one have its name now.
async fn find(host: &LogSlot, caller: &Caller, request: &FollowRequest) -> Result<Log, Status> {
    let meant = ids::from_bytes(&request.log_id).filter(|id| *id != 0).map(ids::to_hex);
    find_log(host, caller, &request.log, meant.as_ref().map(String::as_bytes)).await
}

/// The log that a name means for copies: the default one, a named one with this id, or a whole group.
pub(super) async fn find_log(
    host: &LogSlot,
    caller: &Caller,
    name: &str,
    meant: Option<&[u8]>,
) -> Result<Log, Status> {
    if name.starts_with('_') || host.is_default(name) {
        return host.replica(caller, name, None).await;
    }
    host.find(caller, name, meant).await
}

/// Positions beyond this are in no log.
const POSITION_MAX: u64 = 1 << 62;

/// A feed from a position; of a copy that reads objects or not.
fn feed_of(log: &Log, from: FollowFrom, skips_stored: bool) -> chiplog::Result<FollowSource> {
    let feed = log.follow(from)?;
    Ok(if skips_stored { feed.skip_stored() } else { feed })
}

/// The position at which the follower wants to start.
fn from(request: &FollowRequest, ours: LogId) -> chiplog::Result<FollowFrom> {
    let invalid = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
    let log = match ids::from_bytes(&request.log_id) {
        Some(0) => ours,
        Some(id) => LogId(id),
        None => return invalid("an id must have 16 bytes"),
    };
    if log != ours {
        let (asked, ours) = (ids::to_hex(log.get()), ids::to_hex(ours.get()));
        let what = format!("this server has log {ours}, not log {asked}");
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    Ok(match request.start {
        Some(Asked::After(FollowPlace { index, term })) => {
            let (raft, term) = (EntryIndex(index), Term(term));
            match request.records {
                Some(FollowRecords { next, first, timestamp_nanos }) if next > 0 => {
                    if [index, next, first].into_iter().any(|position| position > POSITION_MAX) {
                        return invalid("a position beyond any log");
                    }
                    let (next, first) = (Index(next), Index(first));
                    let time = Timestamp(timestamp_nanos / NANOS_PER_MILLI);
                    FollowFrom::AfterRecord { log, raft, term, next, first, time }
                }
                _ => FollowFrom::After { log, raft, term },
            }
        }
        Some(Asked::Index(index)) => FollowFrom::Index(Index(index)),
        Some(Asked::Oldest(_)) => FollowFrom::First,
        Some(Asked::Newest(_)) => FollowFrom::Newest,
        Some(Asked::Last(count)) => FollowFrom::Last(count),
        Some(Asked::TimestampNanos(nanos)) => {
            FollowFrom::Timestamp(Timestamp(nanos.div_ceil(NANOS_PER_MILLI)))
        }
        None => {
            return invalid(
                "a copy needs a start: after, index, oldest, newest, last or timestamp_nanos; a later \
                 version may say something else",
            );
        }
    })
}

struct Feeding {
    /// Pays for the memory of responses.
    payer: Arc<Payer>,
    /// The host counts the stream while this exists.
    counted: Counted,
    /// Whether this server is itself up to date, and when that was checked.
    fed: (Instant, bool),
    host: Arc<LogSlot>,
    log: Log,
    skips_stored: bool,
    /// Blocks are parts of a mapping, and take no memory.
    is_mapped: bool,
    stage: Stage,
    /// The commit position of the source at the last check.
    committed: EntryIndex,
    keep_alive: Duration,
    response_bytes: usize,
}

enum Stage {
    /// The first response was not sent yet.
    Begun(Box<FollowSource>),
    /// The next blocks are being read and paid for.
    Coming(Coming),
    /// The stream has failed, and ends.
    Ended,
}

/// The next blocks and their memory, and the time at which there were no more behind them, if there were none. None:
/// there are no blocks now.
type Coming = Pin<
    Box<
        dyn Future<
                Output = chiplog::Result<(
                    Box<FollowSource>,
                    Option<(FollowMessage, Memory)>,
                    Option<CameAt>,
                )>,
            > + Send,
    >,
>;

impl Feeding {
    /// Returns the next response and the stream's new state.
    async fn next(mut self) -> Option<(Result<Reply, Status>, Self)> {
        let host = self.host.clone();
        let respond = async {
            Some(match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Ended => return None,
                Stage::Begun(feed) => self.begin(feed).await,
                Stage::Coming(coming) => self.respond(coming).await,
            })
        };
        let reply = tokio::select! {
            biased;
            () = host.drained() => Err(gone()),
            reply = respond => reply?,
        };
        Some((reply.map_err(|e| self.host.status_of(&e)), self))
    }

    async fn begin(&mut self, feed: Box<FollowSource>) -> chiplog::Result<Reply> {
        self.stage = Stage::Coming(self.fetch(feed, None));
        let mut reply = self.position().await;
        reply.log = Some(self.log.log_id());
        Ok(reply)
    }

    async fn respond(&mut self, mut coming: Coming) -> chiplog::Result<Reply> {
        let deadline = Instant::now() + self.keep_alive;
        loop {
            let Ok(got) = timeout_at(deadline, &mut coming).await else {
                self.stage = Stage::Coming(coming);
                return Ok(self.position().await);
            };
            let (feed, frame, at_tail) = got?;
            self.committed = feed.committed();
            if let Some((frame, memory)) = frame {
                self.stage = Stage::Coming(self.fetch(feed, at_tail));
                self.counted.sent(frame.bytes());
                return Ok(self.reply(Some(frame), memory));
            }
            coming = self.fetch(feed, at_tail);
        }
    }

    /// Reads the next response. `seen`: the next blocks did not exist at that time.
    fn fetch(&self, mut feed: Box<FollowSource>, seen: Option<CameAt>) -> Coming {
        let (payer, log, skips_stored) = (self.payer.clone(), self.log.clone(), self.skips_stored);
        let mut bytes_max = self.response_bytes;
        Box::pin(async move {
            let came = match seen {
                Some(seen) => Some(more(seen, |context| feed.poll_more(context)).await?),
                None => None,
            };
            // A feed of one log may read more than the newest blocks: tables of the whole group.
            let is_of_one_log = feed.is_of_one_log();
            let is_new =
                |feed: &FollowSource| !is_of_one_log && is_in_memory(&log, came, || feed.is_in_files());
            if is_new(&feed) {
                bytes_max = feed.next_bytes()?.map_or(bytes_max, |bytes| bytes.max(TAIL_BYTES));
            }
            loop {
                let mut ahead = ahead(&payer, memory_of(bytes_max, FollowSource::ENTRIES_MAX)).await;
                let (taken, at_tail);
                (feed, ahead, taken, at_tail) = if is_new(&feed) {
                    let (taken, at_tail) = take(&mut feed, bytes_max);
                    (feed, ahead, taken, at_tail)
                } else {
                    let reading = run_blocking(&payer, move || {
                        let (taken, at_tail) = take(&mut feed, bytes_max);
                        (feed, ahead, taken, at_tail)
                    });
                    reading.await.map_err(|_| gone())?
                };
                match taken? {
                    Taken::Nothing => return Ok((feed, None, at_tail)),
                    Taken::Frame(frame) => {
                        let memory = settle(ahead, memory_of(frame.bytes(), blocks(&frame))).flatten();
                        return Ok((feed, Some((frame, memory)), at_tail));
                    }
                    Taken::Larger { bytes, restart } => {
                        bytes_max = bytes;
                        if let Some(from) = restart {
                            *feed = feed_of(&log, from, skips_stored)?;
                        }
                    }
                }
            }
        })
    }

    /// A response without blocks: the position of the source, as a keep-alive.
    async fn position(&mut self) -> Reply {
        let memory = pay(&self.payer, RESPONSE_HEAD_BYTES).await;
        self.reply(None, memory)
    }

    fn reply(&mut self, frame: Option<FollowMessage>, memory: Memory) -> Reply {
        if frame.is_none() || self.fed.0.elapsed() > FED_LOOK {
            self.fed = (Instant::now(), self.host.is_log_fed(&self.log));
        }
        let (first, last) = self.log.range().into_inner();
        let committed = self.committed;
        let is_in_memory =
            !self.is_mapped || may_refer(&self.log) || matches!(frame, Some(FollowMessage::State(_)));
        Reply { frame, log: None, last, first, committed, fed: self.fed.1, memory, is_in_memory }
    }
}

/// The memory of a response with this number of bytes of blocks.
fn memory_of(bytes: usize, blocks: usize) -> usize {
    RESPONSE_HEAD_BYTES + bytes + blocks * BLOCK_HEAD_BYTES
}

fn blocks(frame: &FollowMessage) -> usize {
    match frame {
        FollowMessage::Entries(entries) => entries.len(),
        _ => 1,
    }
}

/// The result of reading a feed.
enum Taken {
    Nothing,
    Frame(FollowMessage),
    /// It has this number of bytes. `restart`: the feed has returned it, and must be made again at its position.
    Larger {
        bytes: usize,
        restart: Option<FollowFrom>,
    },
}

/// Takes the next frame if it has at most this number of bytes. Also returns the time at which nothing was behind it,
/// if so. The size of a frame does not show this: a frame ends before the block that would exceed the limit.
fn take(feed: &mut FollowSource, bytes_max: usize) -> (chiplog::Result<Taken>, Option<CameAt>) {
    let taken = taken(feed, bytes_max);
    let is_all = match &taken {
        Ok(Taken::Nothing) => true,
        Ok(Taken::Frame(_)) => feed.position().is_some_and(|(raft, _)| raft >= feed.committed()),
        _ => false,
    };
    (taken, is_all.then(CameAt::now))
}

fn taken(feed: &mut FollowSource, bytes_max: usize) -> chiplog::Result<Taken> {
    let from = feed.resume_point();
    if let Some(bytes) = feed.next_bytes()?
        && bytes > bytes_max
    {
        return Ok(Taken::Larger { bytes, restart: None });
    }
    Ok(match feed.next(bytes_max)? {
        None => Taken::Nothing,
        Some(frame) if frame.bytes() > bytes_max => {
            Taken::Larger { bytes: frame.bytes(), restart: Some(from) }
        }
        Some(frame) => Taken::Frame(frame),
    })
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}

/// Numbers of the fields in the proto.
mod field {
    pub(super) const HEAD: u32 = 1;
    pub(super) const BODIES: u32 = 2;
    pub(super) const LOG_ID: u32 = 3;
    pub(super) const LAST: u32 = 4;
    pub(super) const FIRST: u32 = 5;
    pub(super) const COMMITTED: u32 = 6;
    pub(super) const FED: u32 = 7;
}

impl EncodeFrame for Reply {
    fn encode(&self, chunks: &mut VecDeque<Bytes>) {
        let numbers = [
            (field::LAST, self.last.get()),
            (field::FIRST, self.first.get()),
            (field::COMMITTED, self.committed.get()),
            (field::FED, self.fed.into()), // a bool is encoded as a number of one byte
        ];
        let (head, bodies) = match &self.frame {
            Some(frame) => frame.encode(),
            None => (Bytes::new(), Vec::new()),
        };
        let log = self.log.map_or(Bytes::new(), |id| ids::to_bytes(id.get()));
        let mut fields: Vec<(u32, &Bytes)> = Vec::with_capacity(2 + bodies.len());
        fields.extend(Some((field::HEAD, &head)).filter(|(_, b)| !b.is_empty()));
        fields.extend(bodies.iter().map(|body| (field::BODIES, body)));
        fields.extend(Some((field::LOG_ID, &log)).filter(|(_, b)| !b.is_empty()));
        let of_bytes = |b: &Bytes| 1 + encoded_len_varint(b.len() as u64) + b.len();
        let length = fields.iter().map(|(_, b)| of_bytes(b)).sum::<usize>()
            + numbers.iter().map(|(tag, n)| uint64::encoded_len(*tag, n)).sum::<usize>();
        let copied = |b: &Bytes| if b.len() < SHARED_BYTES_MIN { of_bytes(b) } else { 12 };
        let small = fields.iter().map(|(_, b)| copied(b)).sum::<usize>() + 44;
        let mut frame = FrameWriter::new(length, small, chunks, &self.memory);
        if self.is_in_memory {
            frame = frame.shares_memory();
        }
        for (tag, bytes) in fields {
            match tag {
                field::HEAD => frame.made(tag, bytes),
                _ => frame.bytes(tag, bytes),
            }
        }
        for (tag, number) in numbers {
            uint64::encode(tag, &number, &mut frame.head);
        }
        frame.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::memory_budget::Budget;
    use crate::service::blocking_work::tests::{frees_its_turn, read_until_idle, work_ends};
    use crate::service::tail::tests::log_with_payload_slices;
    use crate::wire::proto::v1::FollowResponse;
    use chiplog::Options;
    use futures_util::FutureExt as _;
    use prost::Message;
    use tokio_stream::StreamExt as _;

    #[tokio::test]
    async fn feeding_releases_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let host = LogSlot::new();
        host.open(Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
        let mut replies = begin(&host, &Caller::default(), &request, 1 << 20, payer.clone()).await.unwrap();
        assert!(replies.next().await.unwrap().unwrap().frame.is_none());
        frees_its_turn(&payer, replies.next()).await;
        assert!(replies.next().await.unwrap().unwrap().frame.is_some());
    }

    /// The same for a stream at the tail whose follower read nothing for long: it read from the disk on a runtime
    /// thread.
    #[tokio::test]
    async fn feed_that_was_not_polled_at_the_tail_catches_up() {
        let dir = tempfile::tempdir().unwrap();
        let host = LogSlot::new();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let request = FollowRequest { start: Some(Asked::Newest(true)), ..FollowRequest::default() };
        let mut replies = begin(&host, &Caller::default(), &request, 1 << 20, payer.clone()).await.unwrap();
        loop {
            log.append(b"x").unwrap();
            match replies.next().await.unwrap().unwrap().frame {
                Some(FollowMessage::Entries(_)) => break,
                _ => continue,
            }
        }
        // It has sent everything, or sends the rest first.
        read_until_idle(&mut replies).await;
        log.append(b"y").unwrap();
        tokio::time::sleep(Duration::from_millis(1100)).await;
        frees_its_turn(&payer, replies.next()).await;
    }

    /// The newest entries of a log with payload slices are resolved from the object store: that blocked a runtime thread.
    #[tokio::test]
    async fn feed_at_the_tail_of_payload_slices_blocks_no_runtime_thread() {
        let dir = tempfile::tempdir().unwrap();
        let host = LogSlot::new();
        let log = log_with_payload_slices(dir.path()).await;
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let request = FollowRequest { start: Some(Asked::Newest(true)), ..FollowRequest::default() };
        let mut replies = begin(&host, &Caller::default(), &request, 1 << 20, payer.clone()).await.unwrap();
        for _ in 0..2 {
            read_until_idle(&mut replies).await;
            log.append(&[7; 3000]).unwrap();
            frees_its_turn(&payer, replies.next()).await;
            let reply = replies.next().await.unwrap().unwrap();
            assert!(
                reply.is_in_memory && matches!(reply.frame, Some(FollowMessage::Entries(_))),
                "{reply:?}"
            );
        }
    }

    /// New blocks count as just written if the end was found just before, not if the follower read the answer just
    /// before.
    #[tokio::test]
    async fn feed_whose_answer_was_not_read_catches_up() {
        let dir = tempfile::tempdir().unwrap();
        let host = LogSlot::new();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
        let mut replies = begin(&host, &Caller::default(), &request, 1 << 20, payer.clone()).await.unwrap();
        assert!(replies.next().await.unwrap().unwrap().frame.is_none());
        assert!(replies.next().now_or_never().is_none(), "it is read on another thread");
        work_ends().await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(replies.next().await.unwrap().unwrap().frame.is_some());
        log.append(b"y").unwrap();
        frees_its_turn(&payer, replies.next()).await;
    }

    /// The headers of small blocks, up to 256 KiB in a response, were not counted.
    #[tokio::test]
    async fn block_headers_are_paid_for_until_they_are_sent() {
        let dir = tempfile::tempdir().unwrap();
        let host = LogSlot::new();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        for _ in 0..300 {
            log.append(b"x").unwrap();
        }
        host.open(log);
        let budget = Budget::default();
        let payer = budget.payer_of(&http::Extensions::new());
        let request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
        let mut replies = begin(&host, &Caller::default(), &request, 1 << 20, payer).await.unwrap();
        let reply = loop {
            let reply = replies.next().await.unwrap().unwrap();
            if reply.frame.as_ref().is_some_and(|frame| blocks(frame) >= 300) {
                break reply;
            }
        };
        drop(replies);
        let mut chunks = VecDeque::new();
        reply.encode(&mut chunks);
        drop(reply);
        let head = chunks.iter().map(Bytes::len).max().unwrap();
        assert!(head > 300 * 64, "{head}");
        chunks.retain(|chunk| chunk.len() == head);
        assert!(budget.answer_bytes() >= head, "{} of {head}", budget.answer_bytes());
        drop(chunks);
        assert_eq!(budget.answer_bytes(), 0);
    }

    #[test]
    fn responses_match_the_proto_and_share_large_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        for bytes in [0, 10, SHARED_BYTES_MIN, 100_000, 3] {
            log.append(&vec![7; bytes]).unwrap();
        }
        let mut feed = log.follow(FollowFrom::First).unwrap();
        let mut frames = vec![None, feed.next(0).unwrap()];
        frames.extend(std::iter::from_fn(|| feed.next(50_000).unwrap()).map(Some));
        assert!(frames.len() > 3);
        let mut shared = 0;
        for (n, frame) in frames.into_iter().enumerate() {
            let log = (n == 0).then_some(LogId(1 << 100));
            let (last, first, committed) = (Index(1 << 33), Index(1), EntryIndex(300));
            let fed = n.is_multiple_of(2);
            let reply = Reply { frame, log, last, first, committed, fed, memory: None, is_in_memory: false };
            let mut chunks = VecDeque::new();
            reply.encode(&mut chunks);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!((all[0], all[1..5].to_vec()), (0, ((all.len() - 5) as u32).to_be_bytes().to_vec()));
            let got = FollowResponse::decode(&all[5..]).unwrap();
            assert_eq!((got.last, got.first, got.committed, got.fed), (1 << 33, 1, 300, n % 2 == 0));
            assert_eq!(got.log_id, log.map_or(Bytes::new(), |id| ids::to_bytes(id.get())));
            let (head, bodies) = reply.frame.as_ref().map_or_else(Default::default, FollowMessage::encode);
            assert_eq!((&got.head, &got.bodies), (&head, &bodies));
            for body in bodies.iter().filter(|b| b.len() >= SHARED_BYTES_MIN) {
                assert!(chunks.iter().any(|c| c.as_ptr() == body.as_ptr() && c.len() == body.len()));
                shared += 1;
            }
        }
        assert!(shared >= 2);
    }
}
