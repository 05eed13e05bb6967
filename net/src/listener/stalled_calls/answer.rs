//! Answer: a body whose client is watched as it takes the pieces.
//!
//! An answer of which nothing is taken for so long is cut: what it reads from is dropped at once, and its client, should
//! it read on, finds a status that says why. HTTP/2 still holds the last pieces; if they lie for as long again, the
//! connection has to end.
//!
//! The limit is shorter for an answer whose call holds memory that other calls wait for: its client has a part of the limit
//! to take the next piece. Memory of answers has a second bound: while the answer lies there without a break, the call gives
//! back as much as it held within a larger part of the limit. So a client that takes a little now and then keeps nothing
//! from the others. Memory of requests has no such bound: the log decides how fast an append gives it back.
//! Each call is judged by what it holds itself.
//!
//! Invariant: a piece is small, so that "nothing was taken" can be told from "it takes long".
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

/// HTTP/2 is given so much at a time.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// So much of an answer of which nothing lies there is free: where memory is short, what is taken goes on, if slowly.
pub(super) const FREE_BYTES: usize = 4 << 10;
/// While others wait for what a call holds, its answer may lie for this part of the limit,
pub(super) const PRESSED_PART: u32 = 30;
/// and the call has to give back the memory of answers that it held within this part of it.
pub(super) const TURNOVER_PART: u32 = 6;

/// An answer as its pieces and its connection share it.
pub(super) struct Handed {
    source: Mutex<Source>,
    /// Locked for a moment only, and nothing is locked meanwhile.
    lying: Mutex<Lying>,
    id: u64,
    call: Call,
    is_paid_for: bool,
}

/// The rest of an answer.
#[derive(Default)]
struct Source {
    /// None: it was cut, or all of it was given.
    body: Option<Body>,
    /// Of the last chunk, what was not given yet.
    rest: Bytes,
    /// The memory of the next piece is waited for.
    waiting: Option<Pin<Box<dyn Future<Output = Share> + Send>>>,
    /// It was cut.
    is_cut: bool,
    /// Why, until that is told.
    why: Option<Status>,
}

impl Source {
    /// Takes out the body and all that came of it, to be dropped where nothing is locked.
    fn let_go(&mut self) -> impl Sized + use<> {
        (self.body.take(), std::mem::take(&mut self.rest), self.waiting.take())
    }
}

/// The pieces that HTTP/2 holds.
#[derive(Debug, Default)]
struct Lying {
    pieces: usize,
    /// HTTP/2 asked for more and has not got it yet.
    is_asked: bool,
    /// Since when the client could take something, and took nothing: pieces lie there, or no more is asked for.
    since: Option<Instant>,
    /// The same, whatever the client takes of it: since when there was always something to take.
    unbroken: Option<Instant>,
    /// Since when others wait for the memory of answers that the call held then.
    pressed: Option<(Instant, Pressure)>,
    /// Waits until there are no pieces.
    waker: Option<Waker>,
}

/// How long a client took nothing, or too little.
struct Lies {
    /// In times of what is allowed.
    parts: f64,
    is_pressed: bool,
}

impl Lying {
    /// Whether the client could take something.
    fn is_there(&self) -> bool {
        self.pieces > 0 || !self.is_asked
    }

    /// A piece was taken.
    fn taken(&mut self) {
        self.since = self.is_there().then(Instant::now);
        self.unbroken = self.since.map(|now| self.unbroken.unwrap_or(now));
    }

    /// HTTP/2 asked for more.
    fn asked(&mut self) {
        self.since = self.is_there().then(|| self.since.unwrap_or_else(Instant::now));
        self.unbroken = self.since.map(|since| self.unbroken.unwrap_or(since));
    }

    /// How the client stands. None: nothing is waited for that it should do. `answers`: others wait for the memory of
    /// answers that the call holds; `requests`: for its memory of requests.
    fn look(
        &mut self,
        now: Instant,
        slow: Duration,
        answers: Option<Pressure>,
        requests: bool,
    ) -> Option<Lies> {
        self.pressed = match (self.pressed, answers) {
            (_, None) => None,
            (Some((since, then)), Some(now)) if now.given_back.wrapping_sub(then.given_back) < then.held => {
                Some((since, then))
            }
            (_, Some(pressure)) => Some((now, pressure)),
        };
        let (lies, unbroken) = (self.since?, self.unbroken?);
        let parts = |since: Instant, of: Duration| {
            now.saturating_duration_since(since).as_secs_f64() / of.as_secs_f64().max(1e-9)
        };
        let is_pressed = requests || self.pressed.is_some();
        let nothing_taken = parts(lies, if is_pressed { slow / PRESSED_PART } else { slow });
        let kept = self.pressed.map_or(0.0, |(since, _)| parts(since.max(unbroken), slow / TURNOVER_PART));
        Some(Lies { parts: nothing_taken.max(kept), is_pressed })
    }
}

/// Whether an answer is cut.
pub(super) enum Cut {
    Not,
    Now,
    /// `is_stuck`: HTTP/2 still holds it after as long again.
    Before {
        is_stuck: bool,
    },
}

impl Handed {
    /// The body of a call's answer, which has this number among those of its connection.
    pub(super) fn new(id: u64, call: Call, body: Body, is_paid_for: bool) -> Arc<Self> {
        let source = Mutex::new(Source { body: Some(body), ..Source::default() });
        Arc::new(Self { source, lying: Mutex::default(), id, call, is_paid_for })
    }

    /// The answer as HTTP/2 takes it.
    pub(super) fn into_body(self: Arc<Self>) -> Body {
        Body::new(Answer { handed: self })
    }

    pub(super) fn payer(&self) -> Option<&Arc<Payer>> {
        self.call.bill.payer()
    }

    /// Cuts it if its client takes nothing, or too little, for too long. `answers`: others wait for the memory of answers that
    /// the call holds; `requests`: for its memory of requests.
    pub(super) fn look(
        &self,
        now: Instant,
        slow: Duration,
        answers: Option<Pressure>,
        requests: bool,
    ) -> Cut {
        let lies = self.lying().look(now, slow, answers, requests);
        lies.map_or(Cut::Not, |lies| self.cut(&lies, slow))
    }

    fn lying(&self) -> MutexGuard<'_, Lying> {
        self.lying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts it if it lies for too long. One that is being made just now is left alone.
    fn cut(&self, lies: &Lies, slow: Duration) -> Cut {
        let mut source = match self.source.try_lock() {
            Ok(source) => source,
            Err(TryLockError::Poisoned(source)) => source.into_inner(),
            Err(TryLockError::WouldBlock) => return Cut::Not,
        };
        if source.is_cut {
            return Cut::Before { is_stuck: lies.parts >= 2.0 };
        }
        if lies.parts < 1.0 {
            return Cut::Not;
        }
        source.is_cut = true;
        source.why = Some(slow_reader(slow, lies.is_pressed));
        let gone = source.let_go();
        drop(source);
        drop(gone);
        Cut::Now
    }

    /// HTTP/2 asked for more, and got it unless `is_asked`.
    fn gave(&self, is_asked: bool) {
        let mut lying = self.lying();
        lying.is_asked = is_asked;
        lying.asked();
    }

    /// Whether a piece lies there; if so, the task is woken when none does any more.
    fn lies(&self, context: &mut Context<'_>) -> bool {
        let mut lying = self.lying();
        let lies = lying.pieces > 0;
        lying.waker = lies.then(|| context.waker().clone());
        lies
    }

    /// The next frame of it.
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

    /// So much of what there is, as HTTP/2 gets it, once there is memory for it. A little goes without where nothing lies.
    fn poll_piece(self: &Arc<Self>, source: &mut Source, context: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let mut length = source.rest.len().min(PIECE_BYTES);
        let is_free = self.is_paid_for || length <= FREE_BYTES && self.lying().pieces == 0;
        let share = match self.call.bill.payer().filter(|_| !is_free) {
            None => None,
            Some(payer) => {
                let waiting = source.waiting.get_or_insert_with(|| {
                    let payer = payer.clone();
                    Box::pin(async move { payer.take(Resource::Answers, pieces(length)).await })
                });
                match waiting.as_mut().poll(context) {
                    Poll::Ready(share) => Some(share),
                    Poll::Pending if self.lies(context) => return Poll::Pending,
                    Poll::Pending => {
                        length = length.min(FREE_BYTES);
                        None
                    }
                }
            }
        };
        source.waiting = None;
        let bytes = source.rest.split_to(length);
        let mut lying = self.lying();
        lying.pieces += 1;
        drop(lying);
        Poll::Ready(Frame::data(Bytes::from_owner(Piece { bytes, handed: self.clone(), _share: share })))
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.call.calls.state().answers.remove(&self.id);
    }
}

/// A piece of an answer, which is taken when it is dropped.
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
        let mut lying = self.handed.lying();
        lying.pieces -= 1;
        lying.taken();
        let waker = if lying.pieces == 0 { lying.waker.take() } else { None };
        drop(lying);
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
        // Nothing more can be asked for.
        self.handed.gave(true);
        // The service's body is let go, whatever lies of it.
        let mut source = self.handed.source.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = source.let_go();
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
