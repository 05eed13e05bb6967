//! Calls: what is asked on one connection, and how its answers are taken.
//!
//! ```text
//! service ──> Answer (a body) ──> HTTP/2, which asks for the next piece when the one before is on its way
//!                │ a piece was given at …, none was asked for since
//!                └────────────> Calls: looked at by the connection's timer
//! ```
//!
//! An answer of which nothing is taken for so long is cut: what it reads from is dropped at once, and its client, should
//! it read on, finds a status that says why. HTTP/2 still holds the last pieces; if they lie for as long again, the
//! connection has to end.
//!
//! Invariants:
//! - A piece is small, so that "nothing was taken" can be told from "it takes long".
//! - A look never waits for an answer that is being made just now: that one is not stuck.
//!
//! Must not know: sockets, services.

use crate::status::to_status;
use bytes::Bytes;
use chiplog::{Error, ErrorKind};
use http::HeaderMap;
use http_body::Frame;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// What is given to HTTP/2 at a time.
const PIECE_BYTES: usize = 64 << 10;
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
    /// Since when none is open, if none is. One that was refused changes nothing.
    idle_since: Instant,
    /// One was let in.
    used: bool,
    /// Those open that were refused.
    refused: usize,
    answers: BTreeMap<u64, Arc<Handed>>,
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

    /// One more call, until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        self.state().open += 1;
        Call { calls: self.clone() }
    }

    /// One that is open was refused.
    pub(crate) fn refused(&self) {
        self.state().refused += 1;
    }

    /// How it stands now. `idle`: so long nothing may be asked. `slow`: so long an answer may lie. None: for ever.
    pub(crate) fn look(&self, now: Instant, idle: Option<Duration>, slow: Option<Duration>) -> Look {
        let idle = idle.map(|idle| if self.state().used { idle } else { idle.min(UNUSED) });
        let shortest = idle.into_iter().chain(slow).min().unwrap_or(NEVER);
        let mut next = now + (shortest.min(NEVER) / LOOKS).max(Duration::from_millis(1));
        let (mut cut, mut stuck) = (Vec::new(), false);
        let state = self.state();
        if state.open == 0
            && let Some(until) = idle.and_then(|idle| state.idle_since.checked_add(idle))
        {
            if now >= until {
                return Look { cut: 0, verdict: Verdict::Idle };
            }
            next = next.min(until);
        }
        if let Some(slow) = slow {
            for answer in state.answers.values() {
                let Some(mut lying) = answer.lying() else { continue };
                let Some(since) = lying.given_at else { continue };
                let lies = now.saturating_duration_since(since);
                stuck |= lying.cut.is_some() && lies / 2 >= slow;
                if lying.cut.is_none() && lies >= slow {
                    lying.cut = Some(slow_reader(slow));
                    cut.push((lying.body.take(), std::mem::take(&mut lying.rest)));
                }
            }
        }
        drop(state);
        let verdict = if stuck { Verdict::Stuck } else { Verdict::On(next) };
        Look { cut: cut.len(), verdict }
    }
}

fn slow_reader(slow: Duration) -> Status {
    let what =
        format!("slow reader: nothing of the answer was taken for {slow:?}; ask again from where you are");
    to_status(&Error::new(ErrorKind::Timeout, what), None)
}

/// A call that is open.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
}

impl Call {
    /// Its answer, watched.
    pub(crate) fn answer(self, body: Body) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        let lying = Lying { body: Some(body), ..Lying::default() };
        let handed = Arc::new(Handed { lying: Mutex::new(lying) });
        let id = {
            let mut state = self.calls.state();
            state.next += 1;
            let id = state.next;
            state.answers.insert(id, handed.clone());
            id
        };
        Body::new(Answer { handed, id, call: self })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        state.open -= 1;
        if state.refused > 0 {
            state.refused -= 1;
        } else {
            state.used = true;
            if state.open == 0 {
                state.idle_since = Instant::now();
            }
        }
    }
}

/// What an answer and its connection share.
#[derive(Debug)]
struct Handed {
    lying: Mutex<Lying>,
}

#[derive(Debug, Default)]
struct Lying {
    /// None: it was cut, or all of it was given.
    body: Option<Body>,
    /// Of the last chunk, what was not given yet.
    rest: Bytes,
    /// When a piece was given, if none was asked for since.
    given_at: Option<Instant>,
    /// Why it was cut.
    cut: Option<Status>,
}

impl Handed {
    /// None: it is being made just now.
    fn lying(&self) -> Option<MutexGuard<'_, Lying>> {
        match self.lying.try_lock() {
            Ok(lying) => Some(lying),
            Err(TryLockError::Poisoned(lying)) => Some(lying.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The body of an answer.
struct Answer {
    handed: Arc<Handed>,
    id: u64,
    call: Call,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let gone = self.call.calls.state().answers.remove(&self.id);
        drop(gone);
    }
}

impl Lying {
    fn piece(&mut self) -> Frame<Bytes> {
        self.given_at = Some(Instant::now());
        Frame::data(self.rest.split_to(self.rest.len().min(PIECE_BYTES)))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let lying = &mut *self.handed.lying.lock().unwrap_or_else(PoisonError::into_inner);
        lying.given_at = None;
        if let Some(why) = lying.cut.take() {
            let mut trailers = HeaderMap::new();
            let added = why.add_header(&mut trailers);
            return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
        }
        if !lying.rest.is_empty() {
            return Poll::Ready(Some(Ok(lying.piece())));
        }
        let Some(body) = &mut lying.body else { return Poll::Ready(None) };
        let frame = match ready!(Pin::new(body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => {
                lying.body = None;
                return Poll::Ready(end);
            }
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) if data.is_empty() => Frame::data(data),
            Ok(data) => {
                lying.rest = data;
                lying.piece()
            }
            Err(trailers) => trailers,
        })))
    }

    fn is_end_stream(&self) -> bool {
        let Some(lying) = self.handed.lying() else { return false };
        let made = lying.body.as_ref().is_none_or(http_body::Body::is_end_stream);
        lying.rest.is_empty() && lying.cut.is_none() && made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use std::task::Waker;

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

    fn poll(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn bytes(frame: Poll<Option<Result<Frame<Bytes>, Status>>>) -> usize {
        match frame {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap().len(),
            other => panic!("{other:?}"),
        }
    }

    const SLOW: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_cut_at_the_limit_and_not_before() {
        let calls = Calls::new();
        let held = Arc::new(());
        let chunks = vec![Bytes::from(vec![1; PIECE_BYTES + 1]), Bytes::from_static(b"more")];
        let mut body = calls.begin().answer(Body::new(Chunks(chunks, held.clone())));
        assert_eq!(bytes(poll(&mut body)), PIECE_BYTES);
        let given = Instant::now();
        let look = |now: Instant| calls.look(now, None, Some(SLOW));
        let on = |look: Look| matches!(look, Look { cut: 0, verdict: Verdict::On(_) });
        assert!(on(look(given + SLOW - Duration::from_millis(1))));
        // A piece that is taken begins the time anew.
        tokio::time::advance(SLOW - Duration::from_millis(1)).await;
        assert_eq!(bytes(poll(&mut body)), 1);
        let given = Instant::now();
        assert!(on(look(given + SLOW - Duration::from_millis(1))));
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(look(given + SLOW).cut, 1);
        assert_eq!(Arc::strong_count(&held), 1, "what it reads from is dropped");
        // Nothing is taken still: the connection has to go.
        assert!(on(look(given + 2 * SLOW - Duration::from_millis(1))));
        assert_eq!(look(given + 2 * SLOW).verdict, Verdict::Stuck);
        // Who reads on after all is told.
        let Poll::Ready(Some(Ok(frame))) = poll(&mut body) else { panic!("no trailers") };
        let trailers = frame.into_trailers().unwrap();
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(status.message().starts_with("slow reader"), "{status}");
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_for_something_to_say_is_not_slow() {
        let calls = Calls::new();
        let mut body =
            calls.begin().answer(Body::new(Chunks(vec![Bytes::from_static(b"x")], Arc::default())));
        assert_eq!(bytes(poll(&mut body)), 1);
        assert!(poll(&mut body).is_pending());
        let look = calls.look(Instant::now() + 10 * SLOW, Some(SLOW), Some(SLOW));
        assert!(matches!(look, Look { cut: 0, verdict: Verdict::On(_) }), "{look:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_has_no_call_for_so_long() {
        let calls = Calls::new();
        let idle = Duration::from_secs(10);
        let look = |now| calls.look(now, Some(idle), None).verdict;
        let begun = Instant::now();
        assert!(matches!(look(begun + idle - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(begun + idle), Verdict::Idle);
        let (first, second) = (calls.begin(), calls.begin());
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
        let call = calls.begin();
        calls.refused();
        drop(call);
        assert!(matches!(look(begun + UNUSED - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(begun + UNUSED), Verdict::Idle);
        // Who was let in once has the whole time, from then on.
        drop(calls.begin());
        let used = Instant::now();
        assert!(matches!(look(used + idle - Duration::from_nanos(1)), Verdict::On(_)));
        assert_eq!(look(used + idle), Verdict::Idle);
        assert!(matches!(calls.look(used, Some(Duration::MAX), Some(Duration::MAX)).verdict, Verdict::On(_)));
    }
}
