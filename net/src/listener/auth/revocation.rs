//! Revocation: ends open calls when their token is revoked or loses its role.
//!
//! ```text
//! service ──> Held (a body) ──> HTTP/2
//!                │ the body, or the reason of its end
//! Open ──────────┘ all open calls; checked when tokens are replaced
//! ```
//!
//! A call that is ended immediately releases what it reads from and appends to, whether or not its client reads; the
//! client gets a status with the reason. A call that is not answered yet is finished, and its answer is not sent.
//!
//! Invariants:
//! - A call is registered as open before it starts: none is missed between its check and a replacement of the tokens.
//! - No object of a service is dropped under a lock that many calls share.
//! - Ending never waits for a service. If a body is producing its next piece, the task that polls it drops it
//!   afterwards, and no other call waits for that.
//! - The verdict is never locked while a body is polled or dropped.
//!
//! Must not know: tokens.

use crate::wire::status::{ended, trailers};
use bytes::Bytes;
use http_body::Frame;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use tonic::Status;
use tonic::body::Body;

/// The open calls, each with its credential.
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

// Only a service's code can panic under these locks; its body is not used any more then.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone + Send + 'static> Open<T> {
    /// Registers a call until the returned value is dropped.
    pub(crate) fn begin(&self, by: T) -> Admitted<T> {
        let held = Arc::new(Held::default());
        let mut calls = locked(&self.calls);
        calls.next += 1;
        let id = calls.next;
        calls.open.insert(id, (by.clone(), held.clone()));
        Admitted { calls: self.calls.clone(), id, by, held }
    }

    /// Ends the calls that `refusal` rejects. Does not wait for bodies that are producing a piece.
    pub(crate) fn end(&self, refusal: impl Fn(&T) -> Option<Status>) {
        let open: Vec<_> = locked(&self.calls).open.values().cloned().collect();
        for (by, held) in open {
            if !held.is_ended()
                && let Some(why) = refusal(&by)
            {
                held.end(ended(why));
            }
        }
    }
}

/// An open call.
pub(crate) struct Admitted<T> {
    calls: Arc<Mutex<Calls<T>>>,
    id: u64,
    by: T,
    held: Arc<Held>,
}

impl<T> Admitted<T> {
    /// The credential of the call.
    pub(crate) fn by(&self) -> &T {
        &self.by
    }
}

impl<T: Unpin + Send + 'static> Admitted<T> {
    /// Wraps its answer, until the call is ended.
    pub(crate) fn answer(self, body: Body) -> Body {
        self.held.with_body(|held| *held = Some(body));
        Body::new(Answer(self))
    }
}

impl<T> Drop for Admitted<T> {
    fn drop(&mut self) {
        locked(&self.calls).open.remove(&self.id);
        let gone = locked(&self.held.body).take();
        drop(gone);
    }
}

/// The state that an answer and [`Open`] share.
#[derive(Default)]
struct Held {
    verdict: Mutex<Verdict>,
    /// None: not answered yet, ended, or completely sent. Locked while a service produces a piece, which may take long.
    body: Mutex<Option<Body>>,
}

#[derive(Default)]
struct Verdict {
    is_ended: bool,
    /// The reason of the end, until it was sent.
    why: Option<Status>,
    /// The last task that polled for a piece.
    waker: Option<Waker>,
}

impl Held {
    fn is_ended(&self) -> bool {
        locked(&self.verdict).is_ended
    }

    fn end(&self, why: Status) {
        let waker = {
            let mut verdict = locked(&self.verdict);
            (verdict.is_ended, verdict.why) = (true, Some(why));
            verdict.waker.take()
        };
        self.drop_body();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Drops the body, unless a task is polling it, which then drops it.
    fn drop_body(&self) {
        let gone = match self.body.try_lock() {
            Ok(mut body) => body.take(),
            Err(TryLockError::Poisoned(body)) => body.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        drop(gone);
    }

    /// Uses the body, and drops it if the call was ended meanwhile.
    ///
    /// A body is always dropped. `end` sets the verdict first and tries the lock afterwards; this function releases the
    /// lock first and checks the verdict afterwards. If `end` finds the lock taken, the lock is released after the
    /// verdict was set, so the check sees it.
    fn with_body<R>(&self, act: impl FnOnce(&mut Option<Body>) -> R) -> R {
        let result = act(&mut locked(&self.body));
        if self.is_ended() {
            self.drop_body();
        }
        result
    }

    /// The next frame of a call that was ended: the reason, then the end. None: it was not ended; `waker` is woken when
    /// it is.
    fn verdict(&self, waker: &Waker) -> Option<Option<Result<Frame<Bytes>, Status>>> {
        let mut verdict = locked(&self.verdict);
        if !verdict.is_ended {
            match &mut verdict.waker {
                Some(earlier) => earlier.clone_from(waker), // does nothing if it is the same
                none => *none = Some(waker.clone()),
            }
            return None;
        }
        Some(verdict.why.take().map(|why| trailers(&why)))
    }
}

/// The body of an answer.
struct Answer<T>(Admitted<T>);

impl<T: Send + 'static> http_body::Body for Answer<T> {
    type Data = Bytes;
    type Error = Status;

    /// No wake-up is lost: the waker is stored before the service is polled. An end after the second check wakes it; an
    /// earlier end is seen by that check.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let held = &self.0.held;
        if let Some(status) = held.verdict(context.waker()) {
            return Poll::Ready(status);
        }
        let polled = held.with_body(|held| {
            let Some(body) = held else { return Poll::Ready(None) };
            let polled = Pin::new(body).poll_frame(context);
            if !matches!(&polled, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
                *held = None;
            }
            polled
        });
        match held.verdict(context.waker()) {
            Some(status) => Poll::Ready(status),
            None => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = &self.0.held;
        locked(&held.verdict).why.is_none()
            && held.with_body(|body| body.as_ref().is_none_or(http_body::Body::is_end_stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use http_body_util::StreamBody;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A body that yields one piece, then waits forever, and holds an object.
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
    fn revoked_call_ends_with_a_reason_and_others_continue() {
        let open = Open::default();
        let held = [(); 3].map(|()| Arc::new(()));
        let mut bodies: Vec<Body> =
            held.iter().enumerate().map(|(n, held)| open.begin(n).answer(waiting(held.clone()))).collect();
        let woken: Arc<Woken> = Arc::default();
        for body in &mut bodies[..2] {
            assert!(matches!(poll(body, &woken), Poll::Ready(Some(Ok(_)))));
        }
        assert!(poll(&mut bodies[0], &woken).is_pending());
        // One waits for its service, one is in HTTP/2, one was not polled; the last one stays.
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
    fn ended_call_sends_no_later_answer() {
        let open = Open::default();
        let (call, held) = (open.begin(()), Arc::new(()));
        open.end(|()| Some(Status::permission_denied("less")));
        let mut body = call.answer(waiting(held.clone()));
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(!body.is_end_stream());
        assert_eq!(status(poll(&mut body, &Arc::default())).code(), tonic::Code::PermissionDenied);
        assert!(body.is_end_stream());
    }

    /// A body that produces its next piece only when allowed, and holds an object.
    fn slow(begun: mpsc::Sender<()>, go_on: mpsc::Receiver<()>, held: Arc<()>) -> Body {
        let go_on = Mutex::new(go_on);
        Body::new(StreamBody::new(futures_util::stream::poll_fn(move |_| {
            let _held = &held;
            begun.send(()).unwrap();
            let _ = locked(&go_on).recv();
            Poll::Ready(Some(Ok::<_, Status>(Frame::data(Bytes::from_static(b"x")))))
        })))
    }

    /// One read from a hanging disk delayed the end of all other calls: a revoked token stayed valid.
    #[test]
    fn slow_piece_does_not_delay_the_end_of_other_calls() {
        let open = Arc::new(Open::default());
        let held = [(); 2].map(|()| Arc::new(()));
        let ((begun, is_begun), (go_on, may)) = (mpsc::channel(), mpsc::channel());
        let mut stuck = open.begin(0).answer(slow(begun, may, held[0].clone()));
        let mut other = open.begin(1).answer(waiting(held[1].clone()));
        let polling = std::thread::spawn(move || {
            let polled = poll(&mut stuck, &Arc::default());
            (status(polled), poll(&mut stuck, &Arc::default()))
        });
        is_begun.recv().unwrap();

        let ((ended, is_ended), all) = (mpsc::channel(), open.clone());
        std::thread::spawn(move || {
            all.end(|_| Some(Status::unauthenticated("gone")));
            ended.send(()).unwrap();
        });
        is_ended.recv_timeout(Duration::from_secs(60)).expect("it waits for no other call");
        assert_eq!(held.each_ref().map(Arc::strong_count), [2, 1]);
        assert_eq!(status(poll(&mut other, &Arc::default())).code(), tonic::Code::Unauthenticated);

        go_on.send(()).unwrap();
        let (status, then) = polling.join().unwrap();
        assert_eq!(status.code(), tonic::Code::Unauthenticated, "the piece made meanwhile is not sent");
        assert!(matches!(then, Poll::Ready(None)));
        assert_eq!(Arc::strong_count(&held[0]), 1);
    }

    #[test]
    fn end_during_a_pending_piece_is_reported() {
        let (open, held) = (Arc::new(Open::default()), Arc::new(()));
        let (within, holds) = (open.clone(), held.clone());
        let mut body = open.begin(()).answer(Body::new(StreamBody::new(futures_util::stream::poll_fn(
            move |_| -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                let _holds = &holds;
                within.end(|()| Some(Status::unauthenticated("gone")));
                Poll::Pending
            },
        ))));
        assert_eq!(status(poll(&mut body, &Arc::default())).code(), tonic::Code::Unauthenticated);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
