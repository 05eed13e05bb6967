//! Calls: what is asked on one connection, and how its answers are taken.
//!
//! ```text
//! service ──> Answer (a body) ──> pieces ──> HTTP/2, which drops each when it is on its way
//!                │ since … a piece lies there, and none was dropped
//!                └────────────> Calls: looked at by the connection's timer
//! ```
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
//! Invariants:
//! - A piece is small, so that "nothing was taken" can be told from "it takes long".
//! - A call is open until its answer has ended and HTTP/2 holds no piece of it: the last one, too, may lie in a window
//!   that its client never opens, and what it is a part of, such as a segment's mapping, is held meanwhile.
//! - A look never waits for an answer that is being made just now: that one is not stuck.
//!
//! Must not know: sockets, services.

use crate::accounts::{Pressure, Resource, Share};
use crate::budget::pieces;
use crate::paying::Bill;
use crate::status::to_status;
use bytes::Bytes;
use chiplog::{Error, ErrorKind};
use http::{HeaderMap, Response};
use http_body::Frame;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// What is given to HTTP/2 at a time.
const PIECE_BYTES: usize = 64 << 10;
/// So much of an answer of which nothing lies there is free: where memory is short, what is taken goes on, if slowly.
const FREE_BYTES: usize = 4 << 10;
/// While others wait for what a call holds, its answer may lie for this part of the limit,
const PRESSED_PART: u32 = 30;
/// and the call has to give back the memory of answers that it held within this part of it.
const TURNOVER_PART: u32 = 6;
/// A look is due at least so many times within the shortest limit.
const LOOKS: u32 = 4;
/// A connection over which nothing was ever let in is idle after this time.
const UNUSED: Duration = Duration::from_secs(60);
/// Without limits there is nothing to look for.
const NEVER: Duration = Duration::from_secs(3600);

/// The calls of one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open: usize,
    /// Those open that do not keep the connection's place.
    light: usize,
    /// Since when none is open, if none is. One that was refused changes nothing.
    idle_since: Instant,
    /// One was let in.
    used: bool,
    /// Those open that were refused.
    refused: usize,
    /// Weak: they hold their calls, which take themselves out of here.
    answers: BTreeMap<u64, Weak<Handed>>,
    next: u64,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// So many answers were cut.
    pub(crate) cut: usize,
    /// What the connection has to do.
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on; the next look is due then.
    On(Instant),
    /// Nothing was asked for too long.
    Idle,
    /// An answer that was cut is still not taken.
    Stuck,
}

impl Calls {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            open: 0,
            light: 0,
            idle_since: Instant::now(),
            used: false,
            refused: 0,
            answers: BTreeMap::new(),
            next: 0,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    // Nothing panics under the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more call, until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>, bill: Bill, weight: Weight) -> Call {
        let mut state = self.state();
        state.open += usize::from(weight != Weight::Quiet);
        state.light += usize::from(weight == Weight::Light);
        drop(state);
        Call { calls: self.clone(), weight, bill }
    }

    /// Whether a call is open that was not refused and keeps the connection's place.
    pub(crate) fn has_one_let_in(&self) -> bool {
        let state = self.state();
        state.open > state.refused + state.light
    }

    /// One that is open was refused: a call of full weight.
    pub(crate) fn refused(&self) {
        self.state().refused += 1;
    }

    /// How it stands now. `idle`: so long nothing may be asked. `slow`: so long an answer may lie. None: for ever.
    pub(crate) fn look(&self, now: Instant, idle: Option<Duration>, slow: Option<Duration>) -> Look {
        let idle = idle.map(|idle| if self.state().used { idle } else { idle.min(UNUSED) });
        let shortest = idle.into_iter().chain(slow).min().unwrap_or(NEVER);
        let mut next = now + (shortest.min(NEVER) / LOOKS).max(Duration::from_millis(1));
        let answers: Vec<_> = {
            let state = self.state();
            if state.open == 0
                && let Some(until) = idle.and_then(|idle| state.idle_since.checked_add(idle))
            {
                if now >= until {
                    return Look { cut: 0, verdict: Verdict::Idle };
                }
                next = next.min(until);
            }
            state.answers.values().filter_map(Weak::upgrade).collect()
        };
        // Not under the lock: the last hold of one may be the one above.
        let (mut cut, mut stuck) = (0, false);
        for answer in answers {
            let Some(slow) = slow else { continue };
            let payer = answer.call.bill.payer();
            if payer.is_some() {
                next = next.min(now + (slow / PRESSED_PART / 2).max(Duration::from_millis(1)));
            }
            let [requests, answers] = [Resource::Requests, Resource::Answers]
                .map(|resource| payer.and_then(|p| p.pressure(resource)));
            let Some(lies) = answer.lying().look(now, slow, answers, requests.is_some()) else { continue };
            match answer.cut(&lies, slow) {
                Cut::Now => cut += 1,
                Cut::Before => stuck |= lies.parts >= 2.0,
                Cut::Not => {}
            }
        }
        let verdict = if stuck { Verdict::Stuck } else { Verdict::On(next) };
        Look { cut, verdict }
    }
}

fn slow_reader(slow: Duration, is_pressed: bool) -> Status {
    let what = if is_pressed {
        "slow reader: others waited for the memory of this call, and too little of its answer was taken; ask again from \
         where you are"
            .to_owned()
    } else {
        format!("slow reader: nothing of the answer was taken for {slow:?}; ask again from where you are")
    };
    to_status(&Error::new(ErrorKind::Timeout, what), None)
}

/// How an open call counts for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The connection is not idle, and keeps its place.
    Full,
    /// The connection is not idle. It leaves when another one wants its place.
    Light,
    /// It does not count.
    Quiet,
}

/// A call that is open.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    weight: Weight,
    bill: Bill,
}

/// Among an answer's extensions: the memory that it takes is paid for where it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaidFor;

impl Call {
    /// Its answer, watched, and paid for unless that is done where it is made.
    pub(crate) fn answer(self, response: Response<Body>) -> Response<Body> {
        let is_paid_for = response.extensions().get::<PaidFor>().is_some();
        response.map(|body| self.watched(body, is_paid_for))
    }

    fn watched(self, body: Body, is_paid_for: bool) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        let handed = {
            let calls = self.calls.clone();
            let mut state = calls.state();
            state.next += 1;
            let id = state.next;
            let source = Mutex::new(Source { body: Some(body), ..Source::default() });
            let lying = Mutex::default();
            let handed = Arc::new(Handed { source, lying, id, call: self, is_paid_for });
            state.answers.insert(id, Arc::downgrade(&handed));
            handed
        };
        Body::new(Answer { handed })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        if self.weight == Weight::Quiet {
            return;
        }
        state.open -= 1;
        state.light -= usize::from(self.weight == Weight::Light);
        if self.weight == Weight::Full && state.refused > 0 {
            state.refused -= 1;
        } else {
            state.used = true;
            if state.open == 0 {
                state.idle_since = Instant::now();
            }
        }
    }
}

/// What an answer, its pieces and its connection share.
struct Handed {
    source: Mutex<Source>,
    /// Locked for a moment only, and nothing is locked meanwhile.
    lying: Mutex<Lying>,
    id: u64,
    call: Call,
    is_paid_for: bool,
}

/// What is still to be given.
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
    /// What it reads from, to be dropped where nothing is locked.
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
enum Cut {
    Not,
    Now,
    Before,
}

impl Handed {
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
            return Cut::Before;
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
            let mut trailers = HeaderMap::new();
            let added = why.add_header(&mut trailers);
            return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
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
        // What it reads from is let go, whatever lies of it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Payer;
    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    /// Gives these chunks, then waits for ever.
    struct Chunks(Vec<Bytes>, #[allow(dead_code, reason = "seen from outside")] Arc<()>);

    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            if self.0.is_empty() {
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(Frame::data(self.0.remove(0)))))
        }
    }

    /// What a segment's mapping is to an answer.
    struct Mapped(#[allow(dead_code, reason = "seen from outside")] Arc<()>);

    impl AsRef<[u8]> for Mapped {
        fn as_ref(&self) -> &[u8] {
            b"bytes of a segment"
        }
    }

    fn poll(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn piece(frame: Poll<Option<Result<Frame<Bytes>, Status>>>) -> Bytes {
        match frame {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn is_on(look: &Look) -> bool {
        matches!(look, Look { cut: 0, verdict: Verdict::On(_) })
    }

    const EDGE: Duration = Duration::from_millis(1);

    const SLOW: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_cut_at_the_limit_and_not_before() {
        let calls = Calls::new();
        let held = Arc::new(());
        let chunks = vec![Bytes::from(vec![1; PIECE_BYTES + 1]), Bytes::from_static(b"more")];
        let mut body = calls
            .begin(Bill::default(), Weight::Full)
            .watched(Body::new(Chunks(chunks, held.clone())), false);
        let look = |now: Instant| calls.look(now, None, Some(SLOW));
        let first = piece(poll(&mut body));
        assert_eq!(first.len(), PIECE_BYTES);
        let given = Instant::now();
        assert!(is_on(&look(given + SLOW - EDGE)));
        // HTTP/2 asks for one more ahead. A piece that is taken begins the time anew.
        let second = piece(poll(&mut body));
        assert_eq!(second.len(), 1);
        tokio::time::advance(SLOW - EDGE).await;
        drop(first);
        let taken = Instant::now();
        assert!(is_on(&look(taken + SLOW - EDGE)));
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(look(taken + SLOW).cut, 1);
        assert_eq!(Arc::strong_count(&held), 1, "what it reads from is dropped");
        // Nothing is taken still: the connection has to go.
        assert!(is_on(&look(taken + 2 * SLOW - EDGE)));
        assert_eq!(look(taken + 2 * SLOW).verdict, Verdict::Stuck);
        // Who reads on after all is told.
        let Poll::Ready(Some(Ok(frame))) = poll(&mut body) else { panic!("no trailers") };
        let trailers = frame.into_trailers().unwrap();
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(status.message().starts_with("slow reader"), "{status}");
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
        // To be told is not to take: what lies there still has its time.
        assert_eq!(look(taken + 2 * SLOW).verdict, Verdict::Stuck);
        drop((second, body));
        assert!(is_on(&look(taken + 2 * SLOW)));
    }

    /// HTTP/2 has the last piece, and the answer has ended: that was watched by nobody, and its client could keep the
    /// segment that it is a part of.
    #[tokio::test(start_paused = true)]
    async fn the_last_piece_is_watched_too() {
        let calls = Calls::new();
        let mapped = Arc::new(());
        let of_a_segment = Bytes::from_owner(Mapped(mapped.clone()));
        let body = http_body_util::Full::new(of_a_segment).map_err(|never| match never {});
        let mut body = calls.begin(Bill::default(), Weight::Full).watched(Body::new(body), false);
        let last = piece(poll(&mut body));
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
        drop(body);
        let given = Instant::now();
        let look = |now: Instant| calls.look(now, Some(SLOW / 2), Some(SLOW));
        assert!(is_on(&look(given + SLOW - EDGE)), "not idle: the call is open");
        assert_eq!(look(given + SLOW).cut, 1);
        assert!(is_on(&look(given + 2 * SLOW - EDGE)));
        assert_eq!(look(given + 2 * SLOW).verdict, Verdict::Stuck);
        assert_eq!(Arc::strong_count(&mapped), 2);
        tokio::time::advance(2 * SLOW).await;
        let sent = last.slice(..3);
        drop(last);
        assert_eq!(look(Instant::now()).verdict, Verdict::Stuck, "a part of it still lies there");
        drop(sent);
        assert_eq!(Arc::strong_count(&mapped), 1);
        // From now on it is idle.
        let taken = Instant::now();
        assert!(is_on(&look(taken + SLOW / 2 - EDGE)));
        assert_eq!(look(taken + SLOW / 2).verdict, Verdict::Idle);
        assert!(calls.state().answers.is_empty());
    }

    /// An answer of which all was sent, and no more asked for, lay for ever: its client closed its window at a piece's end.
    #[tokio::test(start_paused = true)]
    async fn answer_that_nobody_asks_for_is_slow() {
        let calls = Calls::new();
        let chunks = Chunks(vec![Bytes::from_static(b"x"); 3], Arc::default());
        let mut body = calls.begin(Bill::default(), Weight::Full).watched(Body::new(chunks), false);
        drop(piece(poll(&mut body)));
        let taken = Instant::now();
        let look = |now| calls.look(now, None, Some(SLOW));
        assert!(is_on(&look(taken + SLOW - EDGE)));
        assert_eq!(look(taken + SLOW).cut, 1);
        // Its client reads on, and is told.
        assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(frame))) if frame.is_trailers()));
    }

    /// The memory of a server, all of it held: by one call, and by others of the same connection.
    struct Crowd {
        calls: Arc<Calls>,
        own: Arc<Payer>,
        _others: Share,
        _waits: Pin<Box<dyn Future<Output = Share>>>,
    }

    impl Crowd {
        /// One call holds `own` of 16 pieces, a second one the others; a third one waits.
        fn new(own: usize) -> (Self, Option<Share>) {
            Self::of(Resource::Answers, own)
        }

        fn of(resource: Resource, own: usize) -> (Self, Option<Share>) {
            let accounts = crate::accounts::Accounts::new([[16; 4]; crate::accounts::RESOURCES]);
            let connection = accounts.connection([127, 0, 0, 1].into());
            let payer = connection.for_call(None);
            let held = (own > 0).then(|| payer.try_take(resource, own).unwrap());
            let others = connection.for_call(None).try_take(resource, 16 - own).unwrap();
            let waiting = connection.for_call(None);
            let mut waits: Pin<Box<dyn Future<Output = Share>>> =
                Box::pin(async move { waiting.take(resource, 16).await });
            assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            (Self { calls: Calls::new(), own: payer, _others: others, _waits: waits }, held)
        }

        /// An answer of the first call.
        fn answer(&self, pieces: usize) -> Body {
            let chunks = Chunks(vec![Bytes::from_static(b"x"); pieces], Arc::default());
            self.calls.begin(Bill::of(&self.own), Weight::Full).watched(Body::new(chunks), true)
        }

        fn cut(&self) -> usize {
            self.calls.look(Instant::now(), None, Some(SLOW)).cut
        }
    }

    /// One piece each 1.9 s was enough to keep memory for which others waited.
    #[tokio::test(start_paused = true)]
    async fn reader_that_trickles_is_ended_when_others_wait() {
        let (crowd, held) = Crowd::new(8);
        let mut body = crowd.answer(1000);
        let (begun, step) = (Instant::now(), SLOW / PRESSED_PART / 2);
        let mut last = piece(poll(&mut body));
        while crowd.cut() == 0 {
            assert!(begun.elapsed() < SLOW / TURNOVER_PART + 2 * step, "{:?}", begun.elapsed());
            tokio::time::advance(step).await;
            last = piece(poll(&mut body));
        }
        assert!(begun.elapsed() >= SLOW / TURNOVER_PART, "{:?}", begun.elapsed());
        drop((last, held));
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_gives_back_what_it_holds_goes_on() {
        let (crowd, held) = Crowd::new(8);
        let mut body = crowd.answer(1000);
        let mut held = held.unwrap();
        let mut last = piece(poll(&mut body));
        for _ in 0..200 {
            assert_eq!(crowd.cut(), 0);
            tokio::time::advance(SLOW / PRESSED_PART / 2).await;
            last = piece(poll(&mut body));
            // It gives back eight pieces within the time, one by one, and is given as many.
            held.shrink(7);
            held = held.grow(8, 8).await;
        }
        drop(last);
    }

    /// A producer that takes each acknowledgement was ended while the log was slow to commit what it had sent.
    #[tokio::test(start_paused = true)]
    async fn producer_is_not_judged_by_how_fast_the_log_commits() {
        let (crowd, held) = Crowd::of(Resource::Requests, 8);
        let mut body = crowd.answer(1000);
        let mut last = piece(poll(&mut body));
        for _ in 0..60 {
            tokio::time::advance(SLOW / PRESSED_PART / 2).await;
            assert_eq!(crowd.cut(), 0);
            last = piece(poll(&mut body));
        }
        tokio::time::advance(SLOW / PRESSED_PART).await;
        assert_eq!(crowd.cut(), 1, "it took nothing");
        drop((last, held));
    }

    /// A reader that took all that there was lost its call, since the next piece had just come when it was looked at.
    #[tokio::test(start_paused = true)]
    async fn reader_that_took_all_has_its_time_from_the_next_piece_on() {
        let (crowd, held) = Crowd::new(8);
        let mut comes = false;
        let stream = futures_util::stream::poll_fn(move |_| {
            comes = !comes;
            if comes {
                Poll::Ready(Some(Ok::<_, Status>(Frame::data(Bytes::from_static(b"x")))))
            } else {
                Poll::Pending
            }
        });
        let body = Body::new(http_body_util::StreamBody::new(stream));
        let mut body = crowd.calls.begin(Bill::of(&crowd.own), Weight::Full).watched(body, true);
        for _ in 0..60 {
            let lies = piece(poll(&mut body));
            assert_eq!(crowd.cut(), 0);
            tokio::time::advance(SLOW / PRESSED_PART / 2).await;
            assert_eq!(crowd.cut(), 0);
            drop(lies);
            assert!(poll(&mut body).is_pending());
        }
        drop(held);
    }

    /// A reader was ended for what another call of its connection held.
    #[tokio::test(start_paused = true)]
    async fn slow_reader_that_holds_nothing_has_its_time() {
        for own in [0, 1] {
            let (crowd, _held) = Crowd::new(own);
            let mut body = crowd.answer(2);
            let _lies = piece(poll(&mut body));
            tokio::time::advance(SLOW / 2).await;
            assert_eq!(crowd.cut(), own);
        }
    }

    /// Acknowledgements must not wait for the memory that readers hold, nor for each other.
    #[tokio::test]
    async fn without_memory_a_client_that_takes_what_it_gets_goes_on() {
        let accounts = crate::accounts::Accounts::new([[16; 4]; crate::accounts::RESOURCES]);
        let payer = accounts.connection([127, 0, 0, 1].into());
        let all = payer.try_take(Resource::Answers, 16).unwrap();
        let (calls, bill) = (Calls::new(), Bill::of(&payer));
        let chunks = Chunks(vec![Bytes::from(vec![1; 10 << 10])], Arc::default());
        let mut body = calls.begin(bill, Weight::Full).watched(Body::new(chunks), false);
        let mut got = 0;
        for bytes in [FREE_BYTES, FREE_BYTES, 2 << 10] {
            let taken = piece(poll(&mut body));
            assert_eq!(taken.len(), bytes);
            got += taken.len();
            if got < 10 << 10 {
                assert!(poll(&mut body).is_pending(), "one that lies there is enough");
            }
            drop(taken);
        }
        assert_eq!((got, accounts.used(Resource::Answers)), (10 << 10, 16));
        drop(all);
        // With memory it is given whole, and counted until it is taken.
        let chunks = Chunks(vec![Bytes::from(vec![1; 10 << 10])], Arc::default());
        let mut body = calls.begin(Bill::of(&payer), Weight::Full).watched(Body::new(chunks), false);
        let whole = piece(poll(&mut body));
        assert_eq!((whole.len(), accounts.used(Resource::Answers)), (10 << 10, 10));
        drop(whole);
        assert_eq!(accounts.used(Resource::Answers), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_for_something_to_say_is_not_slow() {
        let calls = Calls::new();
        let mut body = calls
            .begin(Bill::default(), Weight::Full)
            .watched(Body::new(Chunks(vec![Bytes::from_static(b"x")], Arc::default())), false);
        let said = piece(poll(&mut body));
        assert!(poll(&mut body).is_pending());
        let look = || calls.look(Instant::now() + 10 * SLOW, Some(SLOW), Some(SLOW));
        drop(said);
        assert!(is_on(&look()));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_has_no_call_for_so_long() {
        let calls = Calls::new();
        let idle = Duration::from_secs(10);
        let look = |now| calls.look(now, Some(idle), None).verdict;
        let begun = Instant::now();
        assert!(matches!(look(begun + idle - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(begun + idle), Verdict::Idle);
        let (first, second) =
            (calls.begin(Bill::default(), Weight::Full), calls.begin(Bill::default(), Weight::Full));
        assert!(matches!(look(begun + 9 * idle), Verdict::On(_)));
        drop(first);
        assert!(matches!(look(begun + 9 * idle), Verdict::On(_)));
        tokio::time::advance(idle).await;
        drop(second);
        let begun = Instant::now();
        assert!(matches!(look(begun + idle - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(begun + idle), Verdict::Idle);
        assert!(matches!(calls.look(begun + 99 * idle, None, None).verdict, Verdict::On(_)));
    }

    /// One call in half an hour, refused, kept a place for ever.
    #[tokio::test(start_paused = true)]
    async fn who_is_refused_stays_idle() {
        let calls = Calls::new();
        let idle = Duration::from_secs(1800);
        let look = |now| calls.look(now, Some(idle), None).verdict;
        let begun = Instant::now();
        tokio::time::advance(UNUSED / 2).await;
        let call = calls.begin(Bill::default(), Weight::Full);
        calls.refused();
        drop(call);
        assert!(matches!(look(begun + UNUSED - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(begun + UNUSED), Verdict::Idle);
        // Who was let in once has the whole time, from then on.
        drop(calls.begin(Bill::default(), Weight::Full));
        let used = Instant::now();
        assert!(matches!(look(used + idle - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(used + idle), Verdict::Idle);
        assert!(matches!(calls.look(used, Some(Duration::MAX), Some(Duration::MAX)).verdict, Verdict::On(_)));
    }

    /// A health check that never ended kept its connection in its place for ever.
    #[tokio::test(start_paused = true)]
    async fn health_checks_keep_no_place() {
        let calls = Calls::new();
        let [watch, check] = [Weight::Quiet, Weight::Light].map(|w| calls.begin(Bill::default(), w));
        assert!(!calls.has_one_let_in());
        let call = calls.begin(Bill::default(), Weight::Full);
        assert!(calls.has_one_let_in());
        drop(call);
        assert!(!calls.has_one_let_in());
        // An open check is a use of the connection all the same.
        let look = || calls.look(Instant::now(), Some(UNUSED), None).verdict;
        tokio::time::advance(UNUSED * 2).await;
        assert!(matches!(look(), Verdict::On(_)));
        drop((watch, check));
        tokio::time::advance(UNUSED).await;
        assert_eq!(look(), Verdict::Idle);
    }
}
