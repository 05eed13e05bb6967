//! Answer: a body that tracks how its client reads it.
//!
//! An answer is cut if nothing of it is read for the limit: its source is dropped at once, and the client, if it
//! continues to read, gets a status with the reason. HTTP/2 still holds the last pieces; if they are not read for the
//! same time again, the connection must end.
//!
//! The limit is shorter for an answer whose call holds memory that other calls wait for: its client has a part of the
//! limit to read the next piece. Memory of answers has a second bound. While the answer is continuously pending, the
//! call must return the memory it held within a larger part of the limit. So a client that reads a little now and then
//! cannot keep memory from others. Memory of requests has no such bound: the log decides how fast an append returns it.
//! Each call is judged by its own memory.
//!
//! Invariant: a piece is small, so that a client that reads nothing can be distinguished from one that reads slowly.
//!
//! Must not know: sockets, services, the other calls of its connection.

use super::Call;
use crate::listener::auth::tokens::{Payer, Pressure, Resource, Share};
use crate::listener::memory_budget::pieces;
use crate::wire::status::{to_status, trailers};
use bytes::Bytes;
use chiplog::{Error, ErrorKind};
use http_body::Frame;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// The size of the pieces for HTTP/2.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// If no piece of an answer is pending, this many bytes need no share: when memory is short, a client that reads still
/// makes progress.
pub(super) const FREE_BYTES: usize = 4 << 10;
/// While others wait for a call's memory, its answer may be pending for this part of the limit,
pub(super) const PRESSED_PART: u32 = 30;
/// and the call must return its memory of answers within this part of it.
pub(super) const TURNOVER_PART: u32 = 6;

/// The state that an answer shares with its pieces and its connection.
pub(super) struct Handed {
    source: Mutex<Source>,
    /// Locked briefly only, and nothing else is locked meanwhile.
    pending: Mutex<PendingPieces>,
    id: u64,
    call: Call,
    is_paid_for: bool,
}

/// The rest of an answer.
#[derive(Default)]
struct Source {
    /// None: it was cut, or all of it was passed on.
    body: Option<Body>,
    /// The rest of the last chunk.
    rest: Bytes,
    /// The wait for the next piece's memory.
    waiting: Option<Pin<Box<dyn Future<Output = Share> + Send>>>,
    /// It was cut.
    is_cut: bool,
    /// The reason, until it is sent.
    why: Option<Status>,
}

impl Source {
    /// Takes out the body and its parts, to be dropped without a lock.
    fn take_parts(&mut self) -> impl Sized + use<> {
        (self.body.take(), std::mem::take(&mut self.rest), self.waiting.take())
    }
}

/// The pieces that HTTP/2 holds.
#[derive(Debug, Default)]
struct PendingPieces {
    pieces: usize,
    /// HTTP/2 polled for more and has not got it yet.
    is_asked: bool,
    /// Since when the client could read something and read nothing: pieces are pending, or HTTP/2 does not poll.
    since: Option<Instant>,
    /// Since when there has always been something to read, whatever the client reads.
    unbroken: Option<Instant>,
    /// Since when others wait for memory of answers, and the call's memory at that time.
    pressed: Option<(Instant, Pressure)>,
    /// Woken when there are no pieces.
    waker: Option<Waker>,
}

/// How long a client read nothing, or too little.
struct Overdue {
    /// As a multiple of the limit.
    parts: f64,
    is_pressed: bool,
}

impl PendingPieces {
    /// Whether the client could read something.
    fn is_there(&self) -> bool {
        self.pieces > 0 || !self.is_asked
    }

    /// A piece was read.
    fn taken(&mut self) {
        self.since = self.is_there().then(Instant::now);
        self.unbroken = self.since.map(|now| self.unbroken.unwrap_or(now));
    }

    /// HTTP/2 polled for more.
    fn asked(&mut self) {
        self.since = self.is_there().then(|| self.since.unwrap_or_else(Instant::now));
        self.unbroken = self.since.map(|since| self.unbroken.unwrap_or(since));
    }

    /// Returns how long the client has been too slow. None: nothing is pending. `answers`: others wait for the call's
    /// memory of answers; `requests`: for its memory of requests.
    fn look(
        &mut self,
        now: Instant,
        slow: Duration,
        answers: Option<Pressure>,
        requests: bool,
    ) -> Option<Overdue> {
        self.pressed = match (self.pressed, answers) {
            (_, None) => None,
            (Some((since, then)), Some(now)) if now.given_back.wrapping_sub(then.given_back) < then.held => {
                Some((since, then))
            }
            (_, Some(pressure)) => Some((now, pressure)),
        };
        let (unread, unbroken) = (self.since?, self.unbroken?);
        let parts = |since: Instant, of: Duration| {
            now.saturating_duration_since(since).as_secs_f64() / of.as_secs_f64().max(1e-9)
        };
        let is_pressed = requests || self.pressed.is_some();
        let nothing_taken = parts(unread, if is_pressed { slow / PRESSED_PART } else { slow });
        let kept = self.pressed.map_or(0.0, |(since, _)| parts(since.max(unbroken), slow / TURNOVER_PART));
        Some(Overdue { parts: nothing_taken.max(kept), is_pressed })
    }
}

/// Whether an answer is cut.
pub(super) enum Cut {
    Not,
    Now,
    /// `is_stuck`: HTTP/2 still holds it after the same time again.
    Before {
        is_stuck: bool,
    },
}

impl Handed {
    /// The body of a call's answer, with its number among those of its connection.
    pub(super) fn new(id: u64, call: Call, body: Body, is_paid_for: bool) -> Arc<Self> {
        let source = Mutex::new(Source { body: Some(body), ..Source::default() });
        Arc::new(Self { source, pending: Mutex::default(), id, call, is_paid_for })
    }

    /// The body for HTTP/2.
    pub(super) fn into_body(self: Arc<Self>) -> Body {
        Body::new(Answer { handed: self })
    }

    pub(super) fn payer(&self) -> Option<&Arc<Payer>> {
        self.call.bill.payer()
    }

    /// Cuts it if its client reads nothing, or too little, for too long. `answers`: others wait for the call's memory
    /// of answers; `requests`: for its memory of requests.
    pub(super) fn look(
        &self,
        now: Instant,
        slow: Duration,
        answers: Option<Pressure>,
        requests: bool,
    ) -> Cut {
        let overdue = self.pending().look(now, slow, answers, requests);
        overdue.map_or(Cut::Not, |overdue| self.cut(&overdue, slow))
    }

    fn pending(&self) -> MutexGuard<'_, PendingPieces> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts it if it is pending for too long. A body that is being polled is left alone.
    fn cut(&self, overdue: &Overdue, slow: Duration) -> Cut {
        let mut source = match self.source.try_lock() {
            Ok(source) => source,
            Err(TryLockError::Poisoned(source)) => source.into_inner(),
            Err(TryLockError::WouldBlock) => return Cut::Not,
        };
        if source.is_cut {
            return Cut::Before { is_stuck: overdue.parts >= 2.0 };
        }
        if overdue.parts < 1.0 {
            return Cut::Not;
        }
        source.is_cut = true;
        source.why = Some(slow_reader(slow, overdue.is_pressed));
        let gone = source.take_parts();
        drop(source);
        drop(gone);
        Cut::Now
    }

    /// HTTP/2 polled for more, and got it unless `is_asked`.
    fn gave(&self, is_asked: bool) {
        let mut pending = self.pending();
        pending.is_asked = is_asked;
        pending.asked();
    }

    /// Whether a piece is pending; if so, the task is woken when none is any more.
    fn is_pending(&self, context: &mut Context<'_>) -> bool {
        let mut pending = self.pending();
        let is_pending = pending.pieces > 0;
        pending.waker = is_pending.then(|| context.waker().clone());
        is_pending
    }

    /// The next frame.
    fn poll_frame(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let source = &mut *self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = source.why.take() {
            return Poll::Ready(Some(trailers(&why)));
        }
        if !source.rest.is_empty() {
            return self.poll_piece(source, context).map(|piece| Some(Ok(piece)));
        }
        let Some(body) = &mut source.body else { return Poll::Ready(None) };
        let frame = match ready!(http_body::Body::poll_frame(Pin::new(body), context)) {
            Some(Ok(frame)) => frame,
            end => {
                source.body = None;
                return Poll::Ready(end);
            }
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) if data.is_empty() => Frame::data(data),
            Ok(data) => {
                source.rest = data;
                return self.poll_piece(source, context).map(|piece| Some(Ok(piece)));
            }
            Err(trailers) => trailers,
        })))
    }

    /// Returns the next piece, once there is memory for it. A small piece needs no memory if nothing is pending.
    fn poll_piece(self: &Arc<Self>, source: &mut Source, context: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let mut length = source.rest.len().min(PIECE_BYTES);
        let is_free = self.is_paid_for || length <= FREE_BYTES && self.pending().pieces == 0;
        let share = match self.call.bill.payer().filter(|_| !is_free) {
            None => None,
            Some(payer) => {
                let waiting = source.waiting.get_or_insert_with(|| {
                    let payer = payer.clone();
                    Box::pin(async move { payer.take(Resource::Answers, pieces(length)).await })
                });
                match waiting.as_mut().poll(context) {
                    Poll::Ready(share) => Some(share),
                    Poll::Pending if self.is_pending(context) => return Poll::Pending,
                    Poll::Pending => {
                        length = length.min(FREE_BYTES);
                        None
                    }
                }
            }
        };
        source.waiting = None;
        let bytes = source.rest.split_to(length);
        let mut pending = self.pending();
        pending.pieces += 1;
        drop(pending);
        Poll::Ready(Frame::data(Bytes::from_owner(Piece { bytes, handed: self.clone(), _share: share })))
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.call.calls.state().answers.remove(&self.id);
    }
}

/// A piece of an answer; it counts as read when it is dropped.
struct Piece {
    bytes: Bytes,
    handed: Arc<Handed>,
    _share: Option<Share>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut pending = self.handed.pending();
        pending.pieces -= 1;
        pending.taken();
        let waker = if pending.pieces == 0 { pending.waker.take() } else { None };
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The body of an answer.
struct Answer {
    handed: Arc<Handed>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Nothing more can be polled.
        self.handed.gave(true);
        // The service's body is dropped, even if pieces are pending.
        let mut source = self.handed.source.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = source.take_parts();
        drop(source);
        drop(gone);
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = self.handed.poll_frame(context);
        self.handed.gave(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        let Ok(source) = self.handed.source.try_lock() else { return false };
        let made = source.body.as_ref().is_none_or(http_body::Body::is_end_stream);
        source.rest.is_empty() && source.why.is_none() && made
    }
}

fn slow_reader(slow: Duration, is_pressed: bool) -> Status {
    let what = if is_pressed {
        "slow reader: other calls need the memory of this call, and too little of its answer was read; read again from \
         the last received record"
            .to_owned()
    } else {
        format!(
            "slow reader: nothing of the answer was read for {slow:?}; read again from the last received record"
        )
    };
    to_status(&Error::new(ErrorKind::Timeout, what), None)
}
