//! Revoked: calls that are open, to be ended when what they were let in by does not let them in any more.
//!
//! ```text
//! service ──> Held (a body) ──> HTTP/2
//!                │ the body, or why there is none any more
//! Open ──────────┘ all that are open; looked at when tokens are replaced
//! ```
//!
//! A call that is ended lets go at once of what it reads from and appends to, whether or not its client takes anything;
//! the client finds a status that says why. One that is not answered yet is finished, and its answer is not told.
//!
//! Invariants:
//! - A call is among those that are open before it is made: none slips through between its check and a replacement.
//! - Nothing of a service is dropped under a lock that many share.
//!
//! Must not know: tokens.

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tonic::Status;
use tonic::body::Body;

/// The calls that are open, each with what it was let in by.
pub(crate) struct Open<T> {
    calls: Arc<Mutex<Calls<T>>>,
}

struct Calls<T> {
    next: u64,
    open: BTreeMap<u64, (T, Arc<Held>)>,
}

impl<T> Default for Open<T> {
    fn default() -> Self {
        Self { calls: Arc::new(Mutex::new(Calls { next: 0, open: BTreeMap::new() })) }
    }
}

impl<T> fmt::Debug for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("count", &locked(&self.calls).open.len()).finish()
    }
}

// Nothing panics under these locks but what a service does; its body is not gone on with then.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone + Send + 'static> Open<T> {
    /// One more, until what is returned is dropped.
    pub(crate) fn begin(&self, by: T) -> Admitted<T> {
        let held = Arc::new(Held { state: Mutex::default() });
        let mut calls = locked(&self.calls);
        calls.next += 1;
        let id = calls.next;
        calls.open.insert(id, (by, held.clone()));
        Admitted { calls: self.calls.clone(), id, held }
    }

    /// Ends those that are let in no more. Blocks for the moment in which a body makes its next piece.
    pub(crate) fn end(&self, refusal: impl Fn(&T) -> Option<Status>) {
        let open: Vec<_> = locked(&self.calls).open.values().cloned().collect();
        for (by, held) in open {
            if !locked(&held.state).is_ended
                && let Some(why) = refusal(&by)
            {
                held.end(why);
            }
        }
    }
}

/// A call that is open.
pub(crate) struct Admitted<T> {
    calls: Arc<Mutex<Calls<T>>>,
    id: u64,
    held: Arc<Held>,
}

impl<T: Send + 'static> Admitted<T> {
    /// Its answer, until it is ended.
    pub(crate) fn answer(self, body: Body) -> Body {
        let mut state = locked(&self.held.state);
        if !state.is_ended {
            state.body = Some(body);
        }
        drop(state);
        Body::new(Answer(self))
    }
}

impl<T> Drop for Admitted<T> {
    fn drop(&mut self) {
        locked(&self.calls).open.remove(&self.id);
        let gone = locked(&self.held.state).body.take();
        drop(gone);
    }
}

/// What an answer and those that are open share.
#[derive(Default)]
struct Held {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None: not answered yet, ended, or all of it was given.
    body: Option<Body>,
    is_ended: bool,
    /// Why it was ended, until that is told.
    why: Option<Status>,
    /// Who waits for the body's next piece.
    waker: Option<Waker>,
}

impl Held {
    fn end(&self, why: Status) {
        let mut state = locked(&self.state);
        (state.is_ended, state.why) = (true, Some(why));
        let gone = (state.body.take(), state.waker.take());
        drop(state);
        if let (_, Some(waker)) = &gone {
            waker.wake_by_ref();
        }
    }
}

/// The body of an answer.
struct Answer<T>(Admitted<T>);

impl<T: Send + 'static> http_body::Body for Answer<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = locked(&self.0.held.state);
        if let Some(why) = state.why.take() {
            let mut trailers = HeaderMap::new();
            let added = why.add_header(&mut trailers);
            return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
        }
        let Some(body) = &mut state.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        match &polled {
            Poll::Pending => state.waker = Some(context.waker().clone()),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(_) => state.body = None,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = locked(&self.0.held.state);
        state.why.is_none() && state.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use http_body_util::StreamBody;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A body that says one thing, then waits for ever, and holds something.
    fn waiting(held: Arc<()>) -> Body {
        let said = tokio_stream::once(Ok::<_, Status>(Frame::data(Bytes::from_static(b"x"))));
        let all = tokio_stream::StreamExt::chain(said, tokio_stream::pending());
        Body::new(StreamBody::new(tokio_stream::StreamExt::map(all, move |frame| {
            let _held = &held;
            frame
        })))
    }

    fn poll(body: &mut Body, woken: &Arc<Woken>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let waker = woken.clone().into();
        Pin::new(body).poll_frame(&mut Context::from_waker(&waker))
    }

    fn status(frame: Poll<Option<Result<Frame<Bytes>, Status>>>) -> Status {
        let Poll::Ready(Some(Ok(frame))) = frame else { panic!("{frame:?}") };
        Status::from_header_map(&frame.into_trailers().unwrap()).unwrap()
    }

    #[test]
    fn who_is_let_in_no_more_lets_go_and_is_told_and_nobody_else() {
        let open = Open::default();
        let held = [(); 3].map(|()| Arc::new(()));
        let mut bodies: Vec<Body> =
            held.iter().enumerate().map(|(n, held)| open.begin(n).answer(waiting(held.clone()))).collect();
        let woken: Arc<Woken> = Arc::default();
        for body in &mut bodies[..2] {
            assert!(matches!(poll(body, &woken), Poll::Ready(Some(Ok(_)))));
        }
        assert!(poll(&mut bodies[0], &woken).is_pending());
        // One waits for its service, one lies in HTTP/2, one was not asked for anything; the last stays.
        open.end(|by| (*by != 2).then(|| Status::unauthenticated("gone")));
        assert!(woken.0.load(Ordering::Relaxed));
        assert_eq!(held.each_ref().map(Arc::strong_count), [1, 1, 2]);
        for body in &mut bodies[..2] {
            assert_eq!(status(poll(body, &woken)).code(), tonic::Code::Unauthenticated);
            assert!(matches!(poll(body, &woken), Poll::Ready(None)));
        }
        assert!(matches!(poll(&mut bodies[2], &woken), Poll::Ready(Some(Ok(_)))));
        drop(bodies);
        assert!(locked(&open.calls).open.is_empty());
        assert_eq!(Arc::strong_count(&held[2]), 1);
    }

    #[test]
    fn an_answer_that_was_not_made_yet_is_not_told() {
        let open = Open::default();
        let (call, held) = (open.begin(()), Arc::new(()));
        open.end(|()| Some(Status::permission_denied("less")));
        let mut body = call.answer(waiting(held.clone()));
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(!body.is_end_stream());
        assert_eq!(status(poll(&mut body, &Arc::default())).code(), tonic::Code::PermissionDenied);
        assert!(body.is_end_stream());
    }
}
