//! Gate: a request's body that lets a message in once there is memory for it.
//!
//! ```text
//! body:  5 bytes: compressed?, length │ message │ 5 bytes │ message …
//!                                       └─ take a share for what has arrived, then let it pass
//! ```
//!
//! Invariants:
//! - an empty message of an append holds one piece;
//! - a message holds a share of its received bytes only, in pieces; when little is left, it is granted its whole size
//!   at once ([`accounts`](crate::listener::auth::tokens));
//! - bytes without a share do not pass; the bytes before them do;
//! - no share is held forever: the rest of a message is awaited for at most [`STALL`], plus the time that the received
//!   bytes take at [`BYTES_PER_SECOND_MIN`].
//!
//! Must not know: the contents of messages.

use super::{FAR, Held, Ledger, pieces};
use crate::listener::auth::tokens::{Payer, Resource, Share, Tier};
use crate::served::refusals::{Refusal, Refusals};
use crate::wire::status::{KIND, to_status};
use bytes::Bytes;
use chiplog::{Error, ErrorKind};
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The total time for which an incoming message may pause.
const STALL: Duration = Duration::from_secs(30);
/// The minimal speed of a message, without its pauses.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;

/// The size of the head before each message.
const HEAD_BYTES: usize = 5;

/// The share; None: there was no room in time.
type Waiting = Pin<Box<dyn Future<Output = Option<Share>> + Send>>;

/// A request's body that lets a message in once there is memory for it.
pub(super) struct Gate {
    inner: Body,
    refusals: Arc<Refusals>,
    /// The payer of incoming bytes, and how long they may wait for room. None: no share is needed.
    paying: Option<(Arc<Payer>, Duration)>,
    pub(super) message_bytes_max: usize,
    /// The size limit of the first message.
    pub(super) first_bytes_max: usize,
    /// A complete message has arrived.
    begun: bool,
    /// Several messages are allowed. Otherwise the body must end after the first one, in time.
    pub(super) has_many: bool,
    ledger: Ledger,
    /// The received bytes of the current head.
    head: Vec<u8>,
    /// The bytes of the current message that have not passed yet, and its size.
    left: usize,
    length: usize,
    /// Its current share; None: there is none, or it is waiting.
    share: Option<Share>,
    /// Received bytes that have not passed.
    rest: Bytes,
    /// The wait of the message at the start of `rest` for its share, and the tier that lacked room.
    waiting: Option<(Waiting, Tier)>,
    /// The current message is incomplete.
    slow: Option<Slow>,
    /// Nothing more is let in.
    refused: Option<Status>,
}

/// The wait for a sender in the middle of a message.
struct Slow {
    /// The number of missing bytes at the start of the wait.
    missing: usize,
    /// The time waited so far.
    waited: Duration,
    /// The start of the current wait, if there is one.
    since: Option<Instant>,
    pause: Pin<Box<Sleep>>,
}

impl Gate {
    pub(super) fn new(
        inner: Body,
        paying: Option<(Arc<Payer>, Duration)>,
        refusals: Arc<Refusals>,
        message_bytes_max: usize,
        ledger: Ledger,
    ) -> Self {
        Self {
            inner,
            refusals,
            paying,
            message_bytes_max,
            first_bytes_max: message_bytes_max,
            begun: false,
            has_many: true,
            ledger,
            head: Vec::with_capacity(HEAD_BYTES),
            left: 0,
            length: 0,
            share: None,
            rest: Bytes::new(),
            waiting: None,
            slow: None,
            refused: None,
        }
    }

    /// Returns how much of `rest` may pass. Zero: the bytes at its start must wait, or are rejected.
    fn scan(&mut self) -> usize {
        let mut at = 0;
        while at < self.rest.len() {
            if self.left > 0 {
                let step = self.left.min(self.rest.len() - at);
                if !self.covers(self.length - self.left + step) {
                    return at;
                }
                self.left -= step;
                at += step;
                if self.left == 0 {
                    self.is_whole();
                }
                continue;
            }
            if self.begun && !self.has_many {
                self.refused = Some(one_message());
                return at;
            }
            self.head.push(self.rest[at]);
            at += 1;
            let Some(length) = self
                .head
                .first_chunk()
                .map(|head: &[u8; HEAD_BYTES]| u32::from_be_bytes([head[1], head[2], head[3], head[4]]))
            else {
                continue;
            };
            let most = if self.begun { self.message_bytes_max } else { self.first_bytes_max };
            if length as usize > most.min(self.message_bytes_max) {
                self.refused = Some(self.too_large(length));
                return at - 1;
            }
            (self.left, self.length) = (length as usize, length as usize);
            if length == 0 && !self.covers(0) {
                // With its last byte the message would be complete. That byte waits for the share.
                self.head.truncate(HEAD_BYTES - 1);
                return at - 1;
            }
            self.head.clear();
            if length == 0 {
                self.is_whole();
            }
        }
        at
    }

    /// A message has passed.
    fn is_whole(&mut self) {
        (self.slow, self.begun) = (None, true);
        if self.paying.is_some() {
            self.ledger.enter(Held::new(self.share.take()));
        }
    }

    /// Whether the current message holds a share of this size. If not, it waits for the share.
    fn covers(&mut self, bytes: usize) -> bool {
        let Some((payer, wait)) = &self.paying else { return true };
        let mut share = self.share.take().unwrap_or_else(|| payer.nothing(Resource::Requests));
        let (want, total) = (pieces(bytes), pieces(self.length));
        match share.try_grow(want, total) {
            Ok(()) => {
                self.share = Some(share);
                true
            }
            Err(tier) => {
                let wait = (*wait).min(FAR);
                self.waiting = Some((Box::pin(share.grow_within(wait, want, total)), tier));
                false
            }
        }
    }

    /// Nothing has arrived. The wait is bounded in three places: within a message, before the first message of a call
    /// that is no stream of appends, and before the end of a body with one message.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let is_awaited = !self.has_many || (self.paying.is_none() && !self.begun);
        if self.left == 0 && !is_awaited {
            return Poll::Pending;
        }
        let (now, left) = (Instant::now(), self.left);
        let slow = self.slow.get_or_insert_with(|| Slow {
            missing: left,
            waited: Duration::ZERO,
            since: None,
            pause: Box::pin(sleep_until(now)),
        });
        if slow.since.is_none() {
            // Until now the other side of this gate was not ready for more.
            slow.since = Some(now);
            let earned = slow.missing.saturating_sub(left) as u64 / BYTES_PER_SECOND_MIN;
            let earned = Duration::from_secs(earned);
            slow.pause.as_mut().reset(now + (STALL + earned).saturating_sub(slow.waited));
        }
        ready!(slow.pause.as_mut().poll(context));
        self.refusals.count(Refusal::Stalled);
        let what = "the rest of the request did not arrive in time; send it without long pauses";
        Poll::Ready(to_status(&Error::new(ErrorKind::Busy, what), None))
    }

    /// Something has arrived, or the body has ended.
    fn came(&mut self) {
        if let Some(slow) = &mut self.slow
            && let Some(since) = slow.since.take()
        {
            slow.waited += since.elapsed();
        }
    }

    fn too_large(&self, length: u32) -> Status {
        self.refusals.count(Refusal::MessageBytes);
        let what = format!("the message has {length} bytes; the limit is {}", self.message_bytes_max);
        let mut status = Status::new(Code::OutOfRange, what);
        status.metadata_mut().insert(KIND, MetadataValue::from(ErrorKind::TooLarge.code()));
        status
    }

    fn no_room(&self, of: &str) -> Status {
        self.refusals.count(Refusal::InflightBytes);
        let wait = self.paying.as_ref().map_or(Duration::ZERO, |(_, wait)| *wait);
        let what = format!("in-flight bytes {of} were at their limit for {wait:?}");
        to_status(&Error::new(ErrorKind::Busy, what), None)
    }
}

fn one_message() -> Status {
    let what = "this call takes one request message; end the request after it";
    to_status(&Error::new(ErrorKind::InvalidArgument, what), None)
}

impl http_body::Body for Gate {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let gate = self.get_mut();
        loop {
            if let Some((waiting, tier)) = &mut gate.waiting {
                let (share, of) = (ready!(waiting.as_mut().poll(context)), tier.name());
                gate.waiting = None;
                match share {
                    Some(share) => gate.share = Some(share),
                    None => gate.refused = Some(gate.no_room(of)),
                }
            }
            if let Some(status) = &gate.refused {
                return Poll::Ready(Some(Err(status.clone())));
            }
            if !gate.rest.is_empty() {
                let passed = gate.scan();
                if passed > 0 {
                    return Poll::Ready(Some(Ok(Frame::data(gate.rest.split_to(passed)))));
                }
                continue;
            }
            let frame = match Pin::new(&mut gate.inner).poll_frame(context) {
                Poll::Pending => return gate.poll_slow(context).map(|status| Some(Err(status))),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(other) => return Poll::Ready(other),
            };
            gate.came();
            match frame.into_data() {
                Ok(data) => gate.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.waiting.is_none() && self.refused.is_none() && self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests;
