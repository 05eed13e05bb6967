//! Source: one stream of committed blocks, from a place on.
//!
//! While a copy catches up, the disk is read on threads that may wait for it. At the tail, where what comes was written a
//! moment ago, it is read at once.

use crate::accounts::Payer;
use crate::host::{Feeding as Counted, Host};
use crate::ids;
use crate::native::NANOS_PER_MILLI;
use crate::proto::v1::follow_request::Start as Asked;
use crate::proto::v1::{FollowPlace, FollowRequest};
use crate::verbatim::{Answers, FrameWriter, Memory, SHARED_BYTES_MIN, Verbatim, pay};
use bytes::Bytes;
use chiplog::{Error, ErrorKind, Fed, Feed, FeedFrom, Index, Log, LogId, RaftIndex, Term, Timestamp};
use prost::encoding::{encoded_len_varint, uint64};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// What a response takes besides its blocks.
const RESPONSE_HEAD_BYTES: usize = 256;
/// While much is sent, the source looks so often whether it is kept up to date itself.
const FED_LOOK: Duration = Duration::from_secs(1);

/// One response, before it is put into bytes.
#[derive(Debug)]
pub(super) struct Reply {
    /// None: says how far the source is.
    frame: Option<Fed>,
    /// In the first one.
    log: Option<LogId>,
    last: Index,
    first: Index,
    committed: RaftIndex,
    fed: bool,
    memory: Memory,
}

/// Begins a stream.
///
/// # Errors
/// INVALID_ARGUMENT: no start, or no id. FAILED_PRECONDITION: another log. UNAVAILABLE: not now. OUT_OF_RANGE: the record to
/// start at is discarded, or still to come.
pub(super) fn begin(
    host: &Arc<Host>,
    request: &FollowRequest,
    response_bytes: usize,
    payer: Option<Arc<Payer>>,
) -> Result<Answers<Reply>, Status> {
    let log = host.log(&request.log)?.clone();
    let from = from(request, log.info().log_id).map_err(|e| host.status_of(&e))?;
    let feed = log.feed(from).map_err(|e| host.status_of(&e))?;
    let keep_alive = Duration::from_millis(request.keep_alive_millis.into());
    let feeding = Feeding {
        payer,
        counted: host.feeding(),
        fed: (Instant::now(), host.is_fed()),
        host: host.clone(),
        log,
        feed: Some(Box::new(feed)),
        told: false,
        at_tail: false,
        keep_alive: if keep_alive.is_zero() { KEEP_ALIVE } else { keep_alive.max(KEEP_ALIVE_MIN) },
        response_bytes,
    };
    Ok(Box::pin(futures_util::stream::unfold(feeding, Feeding::next)))
}

/// Where the copy wants to be fed from.
fn from(request: &FollowRequest, ours: LogId) -> chiplog::Result<FeedFrom> {
    let invalid = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
    let log = match ids::from_bytes(&request.log_id) {
        Some(0) => ours,
        Some(id) => LogId(id),
        None => return invalid("an id has to have 16 bytes"),
    };
    if log != ours {
        let (asked, ours) = (ids::to_hex(log.get()), ids::to_hex(ours.get()));
        let what = format!("this server has log {ours}, not log {asked}");
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    Ok(match request.start {
        Some(Asked::After(FollowPlace { index, term })) => {
            FeedFrom::After { log, raft: RaftIndex(index), term: Term(term) }
        }
        Some(Asked::Index(index)) => FeedFrom::Index(Index(index)),
        Some(Asked::Oldest(_)) => FeedFrom::First,
        Some(Asked::Newest(_)) => FeedFrom::Newest,
        Some(Asked::Last(count)) => FeedFrom::Last(count),
        Some(Asked::TimestampNanos(nanos)) => FeedFrom::Timestamp(Timestamp(nanos.div_ceil(NANOS_PER_MILLI))),
        None => {
            return invalid(
                "a copy has to say where it starts: after, index, oldest, newest, last or timestamp_nanos; one of a later \
                 version may say something else",
            );
        }
    })
}

struct Feeding {
    /// Who pays for the memory of responses.
    payer: Option<Arc<Payer>>,
    /// Until the stream ends, the host counts it.
    counted: Counted,
    /// Whether the source is kept up to date, and when that was looked at.
    fed: (Instant, bool),
    host: Arc<Host>,
    log: Log,
    /// None: the stream has failed, and ends.
    feed: Option<Box<Feed>>,
    /// Whether the first response was given.
    told: bool,
    /// What comes next was not there when it was last looked for.
    at_tail: bool,
    keep_alive: Duration,
    response_bytes: usize,
}

impl Feeding {
    /// The next response, and what goes on.
    async fn next(mut self) -> Option<(Result<Reply, Status>, Self)> {
        let feed = self.feed.take()?;
        let host = self.host.clone();
        let reply = tokio::select! {
            biased;
            () = host.drained() => Err(gone()),
            reply = self.respond(feed) => reply,
        };
        Some((reply.map_err(|e| self.host.status_of(&e)), self))
    }

    async fn respond(&mut self, mut feed: Box<Feed>) -> chiplog::Result<Reply> {
        if !std::mem::replace(&mut self.told, true) {
            let mut reply = self.reply(&feed, None).await;
            reply.log = Some(self.log.info().log_id);
            self.feed = Some(feed);
            return Ok(reply);
        }
        let deadline = Instant::now() + self.keep_alive;
        loop {
            let bytes_max = self.response_bytes;
            let frame = if self.at_tail {
                feed.next(bytes_max)?
            } else {
                let turn = self.host.turn_to_read().await;
                let reading = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    let frame = feed.next(bytes_max);
                    (feed, frame)
                });
                let (back, frame) = reading.await.map_err(|_| gone())?;
                feed = back;
                frame?
            };
            if let Some(frame) = frame {
                // A frame ends before the block that would be too much: its size does not tell.
                self.at_tail = feed.position().is_some_and(|(raft, _)| raft >= feed.committed());
                let reply = self.reply(&feed, Some(frame)).await;
                self.feed = Some(feed);
                return Ok(reply);
            }
            self.at_tail = true;
            if let Ok(more) = timeout_at(deadline, poll_fn(|context| feed.poll_more(context))).await {
                more?;
            } else {
                let reply = self.reply(&feed, None).await;
                self.feed = Some(feed);
                return Ok(reply);
            }
        }
    }

    async fn reply(&mut self, feed: &Feed, frame: Option<Fed>) -> Reply {
        let bytes = frame.as_ref().map_or(0, Fed::bytes);
        self.counted.sent(bytes);
        let memory = pay(self.payer.as_ref(), bytes + RESPONSE_HEAD_BYTES).await;
        if frame.is_none() || self.fed.0.elapsed() > FED_LOOK {
            self.fed = (Instant::now(), self.host.is_fed());
        }
        let info = self.log.info();
        Reply {
            frame,
            log: None,
            last: info.last,
            first: info.first,
            committed: feed.committed(),
            fed: self.fed.1,
            memory,
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is about to end")
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

impl Verbatim for Reply {
    fn encode(&self, chunks: &mut VecDeque<Bytes>) {
        let numbers = [
            (field::LAST, self.last.get()),
            (field::FIRST, self.first.get()),
            (field::COMMITTED, self.committed.get()),
            (field::FED, self.fed.into()), // a bool is a number of one byte
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
        let gathered = |b: &Bytes| if b.len() < SHARED_BYTES_MIN { of_bytes(b) } else { 12 };
        let small = fields.iter().map(|(_, b)| gathered(b)).sum::<usize>() + 44;
        let mut frame = FrameWriter::new(length, small, chunks, &self.memory);
        for (tag, bytes) in fields {
            frame.bytes(tag, bytes);
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
    use crate::proto::v1::FollowResponse;
    use chiplog::Options;
    use prost::Message;

    #[test]
    fn responses_are_the_proto_s_and_large_pieces_are_shared() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        for bytes in [0, 10, SHARED_BYTES_MIN, 100_000, 3] {
            log.append(&vec![7; bytes]).unwrap();
        }
        let mut feed = log.feed(FeedFrom::First).unwrap();
        let mut frames = vec![None, feed.next(0).unwrap()];
        frames.extend(std::iter::from_fn(|| feed.next(50_000).unwrap()).map(Some));
        assert!(frames.len() > 3);
        let mut shared = 0;
        for (n, frame) in frames.into_iter().enumerate() {
            let log = (n == 0).then_some(LogId(1 << 100));
            let (last, first, committed) = (Index(1 << 33), Index(1), RaftIndex(300));
            let fed = n.is_multiple_of(2);
            let reply = Reply { frame, log, last, first, committed, fed, memory: None };
            let mut chunks = VecDeque::new();
            reply.encode(&mut chunks);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!((all[0], all[1..5].to_vec()), (0, ((all.len() - 5) as u32).to_be_bytes().to_vec()));
            let got = FollowResponse::decode(&all[5..]).unwrap();
            assert_eq!((got.last, got.first, got.committed, got.fed), (1 << 33, 1, 300, n % 2 == 0));
            assert_eq!(got.log_id, log.map_or(Bytes::new(), |id| ids::to_bytes(id.get())));
            let (head, bodies) = reply.frame.as_ref().map_or_else(Default::default, Fed::encode);
            assert_eq!((&got.head, &got.bodies), (&head, &bodies));
            for body in bodies.iter().filter(|b| b.len() >= SHARED_BYTES_MIN) {
                assert!(chunks.iter().any(|c| c.as_ptr() == body.as_ptr() && c.len() == body.len()));
                shared += 1;
            }
        }
        assert!(shared >= 2);
    }
}
