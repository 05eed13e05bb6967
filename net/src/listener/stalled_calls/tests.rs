//! Tests of calls and their answers.

use super::answer::*;
use super::*;
use crate::listener::auth::tokens::{Payer, Share};
use bytes::Bytes;
use http_body::Body as _;
use http_body::Frame;
use http_body_util::BodyExt as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tonic::Status;

/// Yields these chunks, then waits forever.
struct Chunks(Vec<Bytes>, #[allow(dead_code, reason = "observed by the test")] Arc<()>);

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

/// Stands for a segment's mapping.
struct Mapped(#[allow(dead_code, reason = "observed by the test")] Arc<()>);

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
async fn unread_answer_is_cut_exactly_at_the_limit() {
    let calls = Calls::new();
    let held = Arc::new(());
    let chunks = vec![Bytes::from(vec![1; PIECE_BYTES + 1]), Bytes::from_static(b"more")];
    let mut body =
        calls.begin(Bill::default(), Weight::Full).watched(Body::new(Chunks(chunks, held.clone())), false);
    let look = |now: Instant| calls.look(now, None, Some(SLOW));
    let first = piece(poll(&mut body));
    assert_eq!(first.len(), PIECE_BYTES);
    let given = Instant::now();
    assert!(is_on(&look(given + SLOW - EDGE)));
    // HTTP/2 polls for one more ahead. The slow reader's time starts again with each piece that is read.
    let second = piece(poll(&mut body));
    assert_eq!(second.len(), 1);
    tokio::time::advance(SLOW - EDGE).await;
    drop(first);
    let taken = Instant::now();
    assert!(is_on(&look(taken + SLOW - EDGE)));
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(look(taken + SLOW).cut, 1);
    assert_eq!(Arc::strong_count(&held), 1, "the source is dropped");
    // Still nothing is read: the connection must end.
    assert!(is_on(&look(taken + 2 * SLOW - EDGE)));
    assert_eq!(look(taken + 2 * SLOW).verdict, Verdict::Stuck);
    // A client that reads on after all gets the status.
    let Poll::Ready(Some(Ok(frame))) = poll(&mut body) else { panic!("no trailers") };
    let trailers = frame.into_trailers().unwrap();
    let status = Status::from_header_map(&trailers).unwrap();
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    assert!(status.message().starts_with("slow reader"), "{status}");
    assert!(matches!(poll(&mut body), Poll::Ready(None)));
    // Getting the status is not reading: the pending piece still has its time.
    assert_eq!(look(taken + 2 * SLOW).verdict, Verdict::Stuck);
    drop((second, body));
    assert!(is_on(&look(taken + 2 * SLOW)));
}

/// HTTP/2 has the last piece, and the answer has ended: this was not tracked, and its client could keep the segment
/// that contains it.
#[tokio::test(start_paused = true)]
async fn last_piece_is_tracked_too() {
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
    assert_eq!(look(Instant::now()).verdict, Verdict::Stuck, "a part of it is still pending");
    drop(sent);
    assert_eq!(Arc::strong_count(&mapped), 1);
    // From now on the connection is idle.
    let taken = Instant::now();
    assert!(is_on(&look(taken + SLOW / 2 - EDGE)));
    assert_eq!(look(taken + SLOW / 2).verdict, Verdict::Idle);
    assert!(calls.state().answers.is_empty());
}

/// An answer was completely passed on, and HTTP/2 did not poll: it was pending forever. Its client had closed its
/// window at a piece's end.
#[tokio::test(start_paused = true)]
async fn answer_that_is_not_polled_is_slow() {
    let calls = Calls::new();
    let chunks = Chunks(vec![Bytes::from_static(b"x"); 3], Arc::default());
    let mut body = calls.begin(Bill::default(), Weight::Full).watched(Body::new(chunks), false);
    drop(piece(poll(&mut body)));
    let taken = Instant::now();
    let look = |now| calls.look(now, None, Some(SLOW));
    assert!(is_on(&look(taken + SLOW - EDGE)));
    assert_eq!(look(taken + SLOW).cut, 1);
    // Its client reads on, and gets the status.
    assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(frame))) if frame.is_trailers()));
}

/// The memory of a server, all in use: by one call, and by others of the same connection.
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
        let accounts =
            crate::listener::auth::tokens::Accounts::new([[16; 4]; crate::listener::auth::tokens::RESOURCES]);
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

/// One piece each 1.9 s was enough to keep memory that others waited for.
#[tokio::test(start_paused = true)]
async fn trickling_reader_is_ended_when_others_wait() {
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
async fn reader_that_returns_its_memory_continues() {
    let (crowd, held) = Crowd::new(8);
    let mut body = crowd.answer(1000);
    let mut held = held.unwrap();
    let mut last = piece(poll(&mut body));
    for _ in 0..200 {
        assert_eq!(crowd.cut(), 0);
        tokio::time::advance(SLOW / PRESSED_PART / 2).await;
        last = piece(poll(&mut body));
        // It returns eight pieces within the time, one by one, and is granted as many.
        held.shrink(7);
        held = held.grow(8, 8).await;
    }
    drop(last);
}

/// A producer that reads each acknowledgement was ended while the log was slow to commit its appends.
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
    assert_eq!(crowd.cut(), 1, "it read nothing");
    drop((last, held));
}

/// A reader that had read everything lost its call, because the next piece had just arrived at the check.
#[tokio::test(start_paused = true)]
async fn reader_that_read_everything_gets_the_whole_time() {
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
        let held = piece(poll(&mut body));
        assert_eq!(crowd.cut(), 0);
        tokio::time::advance(SLOW / PRESSED_PART / 2).await;
        assert_eq!(crowd.cut(), 0);
        drop(held);
        assert!(poll(&mut body).is_pending());
    }
    drop(held);
}

/// A reader was ended because of memory that another call of its connection held.
#[tokio::test(start_paused = true)]
async fn slow_reader_without_memory_gets_the_whole_time() {
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
async fn client_that_reads_progresses_without_memory() {
    let accounts =
        crate::listener::auth::tokens::Accounts::new([[16; 4]; crate::listener::auth::tokens::RESOURCES]);
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
            assert!(poll(&mut body).is_pending(), "one pending piece is enough");
        }
        drop(taken);
    }
    assert_eq!((got, accounts.used(Resource::Answers)), (10 << 10, 16));
    drop(all);
    // With memory it is passed on whole, and counted until it is read.
    let chunks = Chunks(vec![Bytes::from(vec![1; 10 << 10])], Arc::default());
    let mut body = calls.begin(Bill::of(&payer), Weight::Full).watched(Body::new(chunks), false);
    let whole = piece(poll(&mut body));
    assert_eq!((whole.len(), accounts.used(Resource::Answers)), (10 << 10, 10));
    drop(whole);
    assert_eq!(accounts.used(Resource::Answers), 0);
}

#[tokio::test(start_paused = true)]
async fn answer_without_data_is_not_slow() {
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
async fn connection_without_calls_is_idle_after_the_limit() {
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

/// One call in half an hour, rejected, kept a place forever.
#[tokio::test(start_paused = true)]
async fn connection_with_only_rejected_calls_stays_idle() {
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
    // A connection on which a call was let in has the whole time, from then on.
    drop(calls.begin(Bill::default(), Weight::Full));
    let used = Instant::now();
    assert!(matches!(look(used + idle - Duration::from_nanos(1)), Verdict::On(_)));
    assert_eq!(look(used + idle), Verdict::Idle);
    assert!(matches!(calls.look(used, Some(Duration::MAX), Some(Duration::MAX)).verdict, Verdict::On(_)));
}

/// A health check that never ended kept its connection's place forever.
#[tokio::test(start_paused = true)]
async fn health_checks_do_not_keep_a_place() {
    let calls = Calls::new();
    let [watch, check] = [Weight::Quiet, Weight::Light].map(|w| calls.begin(Bill::default(), w));
    assert!(!calls.has_one_let_in());
    let call = calls.begin(Bill::default(), Weight::Full);
    assert!(calls.has_one_let_in());
    drop(call);
    assert!(!calls.has_one_let_in());
    // An open check still counts as a use of the connection.
    let look = || calls.look(Instant::now(), Some(UNUSED), None).verdict;
    tokio::time::advance(UNUSED * 2).await;
    assert!(matches!(look(), Verdict::On(_)));
    drop((watch, check));
    tokio::time::advance(UNUSED).await;
    assert_eq!(look(), Verdict::Idle);
}
