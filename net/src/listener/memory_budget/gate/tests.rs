use super::*;
use crate::listener::memory_budget::{Budget, BudgetLimits, PIECE_BYTES, SMALL_BYTES_MAX};
use http_body::Body as _;
use std::collections::VecDeque;
use std::task::Waker;

/// A body of these chunks.
struct Chunks(VecDeque<Bytes>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }
}

const WAIT: Duration = Duration::from_secs(30);

fn budget(pieces: usize) -> Budget {
    limited(pieces, pieces)
}

fn limited(all: usize, connection: usize) -> Budget {
    let (bytes, connection_bytes) = (all * PIECE_BYTES, connection * PIECE_BYTES);
    let limits = BudgetLimits::default().bytes(bytes).connection_bytes(connection_bytes).wait(WAIT);
    Budget::new(limits.share_percent(100), Arc::default())
}

fn connection(budget: &Budget) -> Arc<Payer> {
    budget.accounts.connection([10, 0, 0, 1].into())
}

fn gate(chunks: impl IntoIterator<Item = Bytes>, budget: &Budget, own: Option<&Arc<Payer>>) -> Gate {
    let inner = Body::new(Chunks(chunks.into_iter().collect()));
    let payer = own.cloned().unwrap_or_else(|| budget.accounts.anybody());
    Gate::new(inner, Some((payer, WAIT)), budget.refusals.clone(), 1 << 20, Ledger::default())
}

fn left(budget: &Budget, of: usize) -> usize {
    of - budget.used_bytes() / PIECE_BYTES
}

fn message(length: usize) -> Vec<u8> {
    [&[0], &(length as u32).to_be_bytes()[..], &vec![7; length]].concat()
}

/// Everything that passes now, and the final status.
fn pull(gate: &mut Gate) -> (Vec<u8>, Option<Status>) {
    let mut context = Context::from_waker(Waker::noop());
    let mut passed = Vec::new();
    while let Poll::Ready(Some(frame)) = Pin::new(&mut *gate).poll_frame(&mut context) {
        match frame {
            Ok(frame) => passed.extend_from_slice(&frame.into_data().unwrap()),
            Err(status) => return (passed, Some(status)),
        }
    }
    (passed, None)
}

#[tokio::test]
async fn message_waits_for_its_share_and_earlier_ones_pass() {
    let all = [message(1000), message(0), message(3000), message(10)].concat();
    for size in [1, 3, 7, 1000, all.len()] {
        let budget = budget(3);
        let mut gate = gate(all.chunks(size).map(Bytes::copy_from_slice), &budget, None);
        let mut passed = pull(&mut gate).0;
        assert_eq!(gate.ledger.shares().len(), 2);
        let covered = 1005 + 5 + 5..=1005 + 5 + 5 + 1024;
        assert!(covered.contains(&passed.len()), "chunks of {size}: {} passed", passed.len());
        let (first, empty) = (gate.ledger.claim(), gate.ledger.claim());
        assert!(first.amount().is_some());
        assert_eq!(empty.amount(), Some(1));
        drop((first, empty));
        passed.extend(pull(&mut gate).0);
        drop(gate.ledger.claim());
        passed.extend(pull(&mut gate).0);
        assert_eq!(passed, all);
        assert_eq!(gate.ledger.claim().amount(), Some(1));
        assert_eq!(left(&budget, 3), 3);
    }
}

#[tokio::test]
async fn message_above_the_limit_is_rejected_before_it_arrives() {
    let budget = budget(2000);
    let (passed, status) = pull(&mut gate([Bytes::from(message(1 << 20))], &budget, None));
    assert!(status.is_none() && passed.len() == 5 + (1 << 20));
    let mut gate = gate([Bytes::from(message((1 << 20) + 1))], &budget, None);
    let (passed, status) = pull(&mut gate);
    let status = status.unwrap();
    assert_eq!((passed.len(), status.code()), (4, Code::OutOfRange));
    assert_eq!(crate::wire::status::from_status(&status).kind(), ErrorKind::TooLarge);
    assert_eq!(budget.refusals.read(Refusal::MessageBytes), 1);
    drop(gate);
    assert_eq!(left(&budget, 2000), 2000);
}

/// At the limit exactly, everything is let in; one byte more waits, and is rejected when its time is over.
#[tokio::test(start_paused = true)]
async fn message_above_the_limit_waits_and_is_then_rejected() {
    let bytes = 4 * PIECE_BYTES;
    for is_own in [false, true] {
        let budget = limited(if is_own { 8 } else { 4 }, 4);
        let own = is_own.then(|| connection(&budget));
        let full = [message(bytes - 1024), message(1024)].concat();
        let mut first = gate([Bytes::from(full.clone())], &budget, own.as_ref());
        assert_eq!(pull(&mut first).0, full);
        let mut second = gate([Bytes::from(message(1))], &budget, own.as_ref());
        assert_eq!(pull(&mut second).0.len(), 5);
        tokio::time::advance(WAIT - Duration::from_millis(1)).await;
        assert!(pull(&mut second).1.is_none());
        tokio::time::advance(Duration::from_millis(2)).await;
        let status = pull(&mut second).1.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let of = if own.is_some() { "of this connection" } else { "of all" };
        assert!(status.message().contains(of), "{status}");
        assert_eq!(budget.refusals.read(Refusal::InflightBytes), 1);
        // Another connection has room if only this connection's share is used up.
        let elsewhere = connection(&budget);
        let mut third = gate([Bytes::from(message(1))], &budget, Some(&elsewhere));
        assert_eq!(pull(&mut third).0.len() == 6, own.is_some());
        // An answer makes room.
        drop((first.ledger.claim(), second));
        let mut fourth = gate([Bytes::from(message(1))], &budget, own.as_ref());
        assert_eq!(pull(&mut fourth).0.len(), 6);
    }
}

/// In the log's queue, a message holds its connection's share, and one piece of what others share.
#[tokio::test]
async fn message_in_the_queue_holds_its_connections_share_and_a_piece() {
    let budget = budget(4);
    let own = connection(&budget);
    let mut gate = gate([Bytes::from(message(3072))], &budget, Some(&own));
    pull(&mut gate);
    let has = |pieces| own.try_take(Resource::Requests, pieces).is_ok();
    assert!(has(1) && !has(2) && left(&budget, 4) == 1);
    let held = gate.ledger.claim().queued();
    assert!(has(1) && !has(2) && left(&budget, 4) == 3);
    let held = held.answered();
    assert!(has(3) && !has(4) && left(&budget, 4) == 3);
    drop(held);
    assert!(has(4));
}

/// A limit of `Duration::MAX` caused a panic.
#[tokio::test]
async fn longest_duration_is_a_valid_wait() {
    let budget = budget(1);
    let mut gate = gate([Bytes::from([message(1), message(1)].concat())], &budget, None);
    gate.paying.as_mut().unwrap().1 = Duration::MAX;
    assert_eq!(pull(&mut gate).0.len(), 6 + 5);
    drop(gate.ledger.claim());
    assert_eq!(pull(&mut gate).0.len(), 1);
}

/// A head that announced 64 MiB took a share forever; sixteen of them, 80 bytes, took all memory.
#[tokio::test(start_paused = true)]
async fn stalled_message_returns_its_share() {
    let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
    let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
    let budget = budget(3);
    let mut gate = gate([], &budget, None);
    gate.inner = Body::new(http_body_util::StreamBody::new(frames));
    let left = || left(&budget, 3);
    let send =
        |bytes: &[u8]| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
    let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
    let all = message(2000);
    send(&all[..10]);
    assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 10);
    assert_eq!(left(), 2, "announced bytes are not held");
    // A slow message is not a stalled one; and a message that is late because it was not read is not slow.
    let begun = Instant::now();
    tokio::time::sleep(STALL * 2).await;
    for part in all[10..].chunks(200) {
        let (came, ()) = tokio::join!(next(&mut gate), async {
            tokio::time::sleep(STALL / 20).await;
            send(part);
        });
        assert_eq!(came.unwrap().unwrap().into_data().unwrap(), part);
    }
    drop(gate.ledger.claim());
    assert_eq!(left(), 3);
    send(&all[..100]);
    assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 100);
    let status = next(&mut gate).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "after {:?}", begun.elapsed());
    let refused = [Refusal::Stalled, Refusal::InflightBytes].map(|reason| budget.refusals.read(reason));
    assert_eq!(refused, [1, 0], "there was room");
}

/// A head of 5 bytes held the 30 MiB that it announced.
#[tokio::test]
async fn message_holds_only_received_bytes() {
    let budget = budget(100);
    let all = message(60 << 10);
    let mut gate = gate(all.chunks(5000).map(Bytes::copy_from_slice), &budget, None);
    let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
    let mut passed: usize = 0;
    while let Some(frame) = next(&mut gate).await {
        passed += frame.unwrap().into_data().unwrap().len();
        assert_eq!(
            budget.used_bytes(),
            passed.saturating_sub(HEAD_BYTES).div_ceil(PIECE_BYTES) * PIECE_BYTES
        );
    }
    assert_eq!(passed, all.len());
}

#[tokio::test]
async fn requests_other_than_appends_are_small() {
    let budget = budget(1);
    let largest = message(SMALL_BYTES_MAX);
    let small = |bytes: Vec<u8>| {
        let gate = gate([Bytes::from(bytes)], &budget, None);
        Gate { paying: None, message_bytes_max: SMALL_BYTES_MAX, ..gate }
    };
    assert_eq!(pull(&mut small(largest.clone())).0, largest);
    let refused = pull(&mut small(message(SMALL_BYTES_MAX + 1))).1.unwrap();
    assert_eq!((refused.code(), budget.used_bytes()), (Code::OutOfRange, 0));
}

/// A body whose frames the test sends.
fn fed(gate: &mut Gate) -> impl Fn(&[u8]) + use<> {
    let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
    let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
    gate.inner = Body::new(http_body_util::StreamBody::new(frames));
    move |bytes| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap()
}

/// When the gate ends, after everything that it lets pass.
async fn end_of(gate: &mut Gate) -> (Duration, Status) {
    let begun = Instant::now();
    loop {
        match std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await.unwrap() {
            Ok(_) => {}
            Err(status) => return (begun.elapsed(), status),
        }
    }
}

/// The time for all of a large message was granted in advance: an announcement alone kept 64 MiB for nine minutes.
#[tokio::test(start_paused = true)]
async fn message_time_grows_with_received_bytes() {
    let budget = budget(70 << 10);
    let mut gate = Gate { message_bytes_max: 64 << 20, first_bytes_max: 64 << 20, ..gate([], &budget, None) };
    let send = fed(&mut gate);
    send(&[0, 4, 0, 0, 0]);
    let (took, status) = end_of(&mut gate).await;
    assert!(took >= STALL && took < STALL * 2, "{took:?}");
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(gate);
    // A client that sends something gets more time.
    let mut gate = Gate {
        message_bytes_max: 64 << 20,
        first_bytes_max: 64 << 20,
        ..super::tests::gate([], &budget, None)
    };
    let send = fed(&mut gate);
    send(&[0, 4, 0, 0, 0]);
    let slowly = async {
        for _ in 0..8 {
            tokio::time::sleep(STALL / 4).await;
            send(&vec![7; BYTES_PER_SECOND_MIN as usize * 10]);
        }
        std::future::pending::<()>().await;
    };
    let (took, _) = tokio::select! {
        ended = end_of(&mut gate) => ended,
        () = slowly => unreachable!(),
    };
    assert!(took > STALL * 3 && took < STALL * 5, "{took:?}");
}

/// A request that was announced, or not even that, was awaited without limit: each took a stream and its memory.
#[tokio::test(start_paused = true)]
async fn small_request_must_arrive_in_time() {
    for begun in [&[][..], &[0, 0], &[0, 0, 0, 0, 9, 1, 2]] {
        let budget = budget(1);
        let mut gate = Gate { paying: None, ..gate([], &budget, None) };
        let send = fed(&mut gate);
        if !begun.is_empty() {
            send(begun);
        }
        let (took, _) = end_of(&mut gate).await;
        assert!(took >= STALL && took < STALL * 2, "{took:?}");
    }
    // A stream of several requests may pause between them.
    let mut gate = Gate { paying: None, ..gate([], &budget(1), None) };
    let send = fed(&mut gate);
    send(&message(3));
    let ended = tokio::time::timeout(STALL * 100, end_of(&mut gate)).await;
    assert!(ended.is_err());
}

/// A health check whose request never ended stayed open, and its connection with it.
#[tokio::test(start_paused = true)]
async fn request_of_one_message_must_end_in_time() {
    let budget = budget(1);
    let mut gate = Gate { paying: None, has_many: false, ..gate([], &budget, None) };
    let send = fed(&mut gate);
    send(&message(3));
    let (took, status) = end_of(&mut gate).await;
    assert!(took >= STALL && took < STALL * 2, "{took:?}");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(budget.refusals.read(Refusal::Stalled), 1);
}

/// Each message had an entry of 48 bytes in a ledger that only appends claim from.
#[tokio::test]
async fn ledger_stays_empty_for_calls_without_shares() {
    let budget = budget(1);
    let empty = Bytes::from(message(0).repeat(1000));
    let chunks = [Bytes::from(message(3))].into_iter().chain((0..1000).map(|_| empty.clone()));
    let mut gate = Gate { paying: None, first_bytes_max: 64, ..gate(chunks, &budget, None) };
    let (passed, status) = pull(&mut gate);
    assert!(status.is_none());
    assert_eq!((passed.len(), gate.ledger.shares().len()), (8 + 1000 * 5000, 0));
}

#[tokio::test]
async fn second_message_of_a_single_request_is_rejected() {
    let budget = budget(1);
    for (first, size) in [(0, 1), (0, 5000), (3, 7), (3, 5000)] {
        let all = [message(first), message(0).repeat(1000)].concat();
        let chunks = all.chunks(size).map(Bytes::copy_from_slice);
        let mut gate = Gate { paying: None, has_many: false, ..gate(chunks, &budget, None) };
        let (passed, status) = pull(&mut gate);
        assert_eq!((passed.len(), status.unwrap().code()), (HEAD_BYTES + first, Code::InvalidArgument));
        assert_eq!(gate.ledger.shares().len(), 0);
    }
}

/// An append with a single message pays for it, and its request ends in time.
#[tokio::test(start_paused = true)]
async fn single_message_of_an_append_holds_a_share_and_must_end() {
    let budget = budget(3);
    let mut gate = Gate { has_many: false, ..gate([], &budget, None) };
    let send = fed(&mut gate);
    let (took, status) = end_of(&mut gate).await;
    assert!(took >= STALL && status.code() == Code::ResourceExhausted, "no message: {took:?}, {status}");
    send(&message(2000));
    let (took, status) = end_of(&mut gate).await;
    assert!(took < STALL * 2 && status.code() == Code::ResourceExhausted, "no end: {took:?}, {status}");
    assert_eq!((gate.ledger.shares().len(), left(&budget, 3)), (1, 1));
    drop(gate.ledger.claim());
    assert_eq!(left(&budget, 3), 3);
    send(&message(0));
    assert_eq!(pull(&mut gate).1.unwrap().code(), Code::InvalidArgument, "a second message");
}

/// Empty messages of an append hold memory until they are answered.
#[tokio::test]
async fn empty_messages_hold_a_piece_each() {
    for size in [1, 4, 5, 50] {
        let budget = budget(3);
        let all = message(0).repeat(10);
        let mut gate = gate(all.chunks(size).map(Bytes::copy_from_slice), &budget, None);
        let mut passed = pull(&mut gate).0.len();
        assert_eq!((passed, left(&budget, 3)), (3 * HEAD_BYTES + HEAD_BYTES - 1, 0));
        for _ in 0..10 {
            drop(gate.ledger.claim());
            passed += pull(&mut gate).0.len();
        }
        assert_eq!((passed, left(&budget, 3)), (all.len(), 3));
    }
}

/// A stranger could announce a gigabyte at the port for replicas before it had identified itself.
#[tokio::test]
async fn unknown_peer_may_send_only_small_messages() {
    let budget = budget(1);
    let first = |length| {
        let chunks = [Bytes::from(message(length)), Bytes::from(message(1 << 20))];
        Gate { paying: None, first_bytes_max: SMALL_BYTES_MAX, ..gate(chunks, &budget, None) }
    };
    let (passed, status) = pull(&mut first(SMALL_BYTES_MAX));
    assert!(status.is_none() && passed.len() == SMALL_BYTES_MAX + (1 << 20) + 10);
    assert_eq!(pull(&mut first(SMALL_BYTES_MAX + 1)).1.unwrap().code(), Code::OutOfRange);
}
