//! Producers: what is sent again, what fails, and what a close returns.

use crate::served::PATIENCE;
use crate::served::client::{producing, quick};
use crate::server::{Rogue, about, appended, producer_of, refused, refused_for, soon, until};
use chiplog::{ErrorKind, Index, Sequence, SessionId};
use chiplog_net::client::{Client, ProducerOptions};
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Silence, damage, invalid answers: however the first stream ended, the second one starts with the same bytes.
#[tokio::test]
async fn unacknowledged_batches_are_resent_unchanged() {
    let nonsense = Appended { first: 0, count: 1, durability: 1 };
    let outcomes = [
        None,
        refused(ErrorKind::Busy),
        refused(ErrorKind::Full),
        refused(ErrorKind::Unavailable),
        refused(ErrorKind::NotLeader),
        refused(ErrorKind::Corrupt),
        Some(Outcome::Appended(nonsense)),
        Some(Outcome::Appended(Appended { first: 1, count: 9, durability: 1 })),
    ];
    for outcome in outcomes {
        let mut rogue = Rogue::new();
        let got = rogue.got.clone();
        let first = outcome.clone();
        rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
            (0, 0) => appended(batch, 1),
            (0, _) => first.clone(),
            _ => appended(batch, 2 + n as u64),
        });
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let options = producing(|o| (o.request_timeout, o.batch_bytes) = (Duration::from_millis(200), 60));
        let producer = client.producer(options).await.unwrap();
        let mut deliveries = Vec::new();
        for record in [b"record a..", b"record b..", b"record c.."] {
            deliveries.push(producer.append(record).await.unwrap());
        }
        for (n, delivery) in deliveries.into_iter().enumerate() {
            let index = tokio::time::timeout(PATIENCE, delivery).await.unwrap().unwrap();
            assert_eq!(index, Index(n as u64 + 1), "after {outcome:?}");
        }
        let got = got.lock().unwrap();
        let of = |stream| got.iter().filter(move |(s, _)| *s == stream).map(|(_, batch)| batch);
        let numbers: Vec<_> = of(1).map(|batch| batch.session().unwrap().1).collect();
        assert_eq!(numbers, [Sequence(2), Sequence(3)]);
        for again in of(1) {
            let before = of(0).find(|b| b.session() == again.session());
            assert!(before.is_none_or(|b| b.as_bytes() == again.as_bytes()));
        }
    }
}

/// An error that a retry cannot resolve ends the producer at once, and a close returns everything.
#[tokio::test]
async fn fatal_error_ends_the_producer() {
    for kind in [ErrorKind::SequenceGap, ErrorKind::SequenceForgotten, ErrorKind::Unsupported] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, _, _| refused(kind));
        rogue.on_info = Box::new(|_| Some(Ok(InfoResponse::default())));
        // Forgotten before it was ever sent: another producer uses the session.
        let kind = if kind == ErrorKind::SequenceForgotten { ErrorKind::SequenceGap } else { kind };
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let options = producing(|o| (o.batch_bytes, o.linger) = (60, Duration::from_millis(50)));
        let producer = client.producer(options).await.unwrap();
        let delivery = producer.append(b"record a..").await.unwrap();
        producer.send(b"record b..").await.unwrap();
        assert_eq!(delivery.await.unwrap_err().kind(), kind);
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
        assert_eq!(producer.send(b"late").await.unwrap_err().kind(), kind);
        let left: Vec<_> = producer.close(PATIENCE).await.left.into_iter().map(|l| l.record).collect();
        assert_eq!(left, ["record a..", "record b.."], "after {kind}");
    }
}

/// A record that expired was in no list: `close` returned that nothing was left, and the record was not in the log. If
/// it was passed to `send`, its failure was never reported.
#[tokio::test]
async fn close_reports_records_that_failed_before() {
    let producer = producer_of(Rogue::silent(), soon).await;
    producer.send(b"x").await.unwrap();
    until("it expires", || producer.buffered_bytes() == 0).await;
    let closed = producer.close(PATIENCE).await;
    assert!(closed.left.is_empty() && !closed.all_acknowledged());
    assert_eq!(closed.failed.unwrap().kind(), ErrorKind::Timeout);
}

/// The first `close` ended the producer's task. A second one, after the first was cancelled or at the same time, did
/// not wait and returned that nothing was left, while everything was.
#[tokio::test]
async fn close_can_be_cancelled_and_repeated() {
    let producer = producer_of(Rogue::silent(), |_| ()).await;
    producer.send(b"x").await.unwrap();
    let cancelled = tokio::time::timeout(Duration::from_millis(50), producer.close(PATIENCE)).await;
    assert!(cancelled.is_err());
    let other = producer.clone();
    let short = Duration::from_millis(100);
    for closed in [
        tokio::join!(producer.close(short), other.close(PATIENCE)).into(),
        [producer.close(PATIENCE).await, other.close(PATIENCE).await],
    ] {
        for closed in closed {
            let left: Vec<_> = closed.left.iter().map(|l| &l.record[..]).collect();
            assert_eq!(left, [b"x"]);
            assert_eq!(closed.failed.unwrap().kind(), ErrorKind::Closed);
        }
    }
}

/// A close that ran into its deadline dropped the task: the producer's own session stayed open for a day. Producers that were
/// made again and again, while the cluster was in trouble, used up all sessions.
#[tokio::test]
async fn close_at_its_deadline_closes_the_own_session_alone() {
    for own in [true, false] {
        let rogue = Rogue::silent();
        let calls = rogue.calls.clone();
        let given = (SessionId(5), Sequence(1));
        let producer = producer_of(rogue, |o| o.session = (!own).then_some(given)).await;
        producer.send(b"x").await.unwrap();
        assert_eq!(producer.close(Duration::from_millis(50)).await.left.len(), 1);
        if own {
            until("the session is closed", || calls.lock().unwrap().contains(&"close 7".to_owned())).await;
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(
                calls.lock().unwrap().iter().all(|call| !call.starts_with("close")),
                "the caller may go on in it"
            );
        }
    }
}

/// A flush by one clone removed the failure: the clone whose record had failed flushed next, and got no error.
#[tokio::test]
async fn each_clone_gets_a_failure() {
    let first = producer_of(Rogue::silent(), soon).await;
    let second = first.clone();
    first.send(b"x").await.unwrap();
    until("it expires", || first.buffered_bytes() == 0).await;
    let third = first.clone();
    for producer in [&second, &first, &third] {
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), ErrorKind::Timeout);
        producer.flush(PATIENCE).await.unwrap();
    }
    assert!(third.clone().close(PATIENCE).await.all_acknowledged(), "its original was told");
}

/// A full log was retried as long as a dead cluster, and then the record "may be in the log": `Full` was never
/// returned.
#[tokio::test]
async fn full_log_is_reported_soon() {
    for (kind, delivery) in [(ErrorKind::Full, PATIENCE), (ErrorKind::Busy, Duration::from_millis(200))] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, _, _| refused(kind));
        let options = |o: &mut ProducerOptions| {
            (o.full_max, o.delivery_timeout) = (Duration::from_millis(200), delivery);
            o.batch_bytes = 60;
        };
        let producer = producer_of(rogue, options).await;
        let deliveries =
            [producer.append(b"record a..").await.unwrap(), producer.append(b"record b..").await.unwrap()];
        for delivery in deliveries {
            let error = delivery.await.unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains("not in the log"), "{error}");
        }
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
    }
}

/// Records that waited behind others failed although those were acknowledged one after the other; and records behind them got into the log, so
/// that this had a gap in what `chiplog append` had read.
#[tokio::test]
async fn producer_that_ends_at_a_failure_leaves_no_gap() {
    let (mut rogue, well) = (Rogue::new(), Arc::new(AtomicBool::new(false)));
    let is_well = well.clone();
    rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
        _ if is_well.load(Ordering::Relaxed) => appended(batch, 100),
        (..5, 0) => appended(batch, 1 + stream as u64),
        (..5, _) => refused_for(600),
        _ => refused(ErrorKind::Busy),
    });
    let producer = producer_of(rogue, |o| {
        (o.delivery_timeout, o.ends_at_failure) = (Duration::from_secs(2), true);
        (o.batch_bytes, o.linger) = (60, Duration::from_millis(20));
    })
    .await;
    let mut given = Vec::new();
    for n in 0..6 {
        given.push(producer.append(format!("record {n}..").as_bytes()).await.unwrap());
    }
    let last = given.pop().unwrap();
    for (n, delivery) in given.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap(), Index(1 + n as u64)); // 3 s in all
    }
    let error = last.await.unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("busy"), "{error}");
    well.store(true, Ordering::Relaxed);
    let after = match producer.append(b"record 6..").await {
        Ok(delivery) => delivery.await,
        Err(error) => Err(error),
    };
    assert_eq!(after.unwrap_err().kind(), ErrorKind::Closed);
}

/// After a large batch, a server with a low rate names a time for the next one that is later than the time limit of a record. The producer ended
/// at that limit, although nothing was wrong. Later it ended if another producer had taken the room by then, and a new time was named.
#[tokio::test]
async fn producer_that_ends_at_a_failure_waits_until_the_times_that_the_server_names() {
    let mut rogue = Rogue::new();
    let calls = rogue.calls.clone();
    rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
        (1, 0) => appended(batch, 1),
        (..3, _) => refused_for(3000),
        (3, 0) => appended(batch, 2),
        _ => refused_for(25_000), // later than ten times the limit
    });
    let producer = producer_of(rogue, |o| {
        (o.delivery_timeout, o.ends_at_failure) = (Duration::from_secs(2), true);
    })
    .await;
    for n in 1..3 {
        assert_eq!(producer.append(b"refused until then").await.unwrap().await.unwrap(), Index(n));
    }
    let error = producer.append(b"refused for too long").await.unwrap().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // Such a producer ends. Its session would have stayed for a day.
    assert_eq!(producer.close(PATIENCE).await.left.len(), 1);
    assert!(calls.lock().unwrap().contains(&"close 7".to_owned()));
}

/// The longest time limit times ten is longer than any duration: the producer panicked at the first refusal that named a time.
#[tokio::test]
async fn refusal_that_names_a_time_may_come_with_the_longest_time_limit() {
    let mut rogue = Rogue::new();
    rogue.on_append = Box::new(move |stream, _, batch| match stream {
        1.. => appended(batch, 1),
        0 => refused_for(20),
    });
    let producer = producer_of(rogue, |o| o.delivery_timeout = Duration::MAX).await;
    assert_eq!(producer.append(b"one").await.unwrap().await.unwrap(), Index(1));
}

#[tokio::test]
async fn ends_at_failure_needs_exactly_once() {
    let client = Client::connect(Rogue::new().serve().await, quick()).await.unwrap();
    let options = producing(|o| (o.ends_at_failure, o.exactly_once) = (true, false));
    assert_eq!(client.producer(options).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The next leader can have lower limits: one batch that was too large for it ended the producer.
#[tokio::test]
async fn batch_rejected_for_its_content_fails_alone() {
    for kind in [ErrorKind::TooLarge, ErrorKind::InvalidArgument] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
            (0, 0) => appended(batch, 1),
            (0, _) => refused(kind),
            _ => appended(batch, 2 + n as u64),
        });
        rogue.on_server_info = Box::new(|n| {
            let batch_bytes_max = if n == 0 { 1 << 20 } else { 100 };
            ServerInfoResponse { batch_bytes_max, ..about(1) }
        });
        let (got, calls) = (rogue.got.clone(), rogue.calls.clone());
        let producer = producer_of(rogue, |o| o.batch_bytes = 60).await;
        producer.append(b"record a..").await.unwrap().await.unwrap();
        let mut deliveries = Vec::new();
        for record in [b"record b..", b"record c..", b"record d.."] {
            deliveries.push(producer.append(record).await.unwrap());
        }
        let mut results = Vec::new();
        for delivery in deliveries {
            results.push(delivery.await.map_err(|e| e.kind()));
        }
        assert_eq!(results, [Err(kind), Ok(Index(2)), Ok(Index(3))]);
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
        let numbers: Vec<_> = got.lock().unwrap().iter().filter_map(|(_, b)| b.session()).collect();
        assert_eq!(
            numbers[numbers.len() - 2..].iter().map(|n| (n.0.get(), n.1.get())).collect::<Vec<_>>(),
            [(8, 1), (8, 2)]
        );
        assert!(calls.lock().unwrap().contains(&"close 7".to_owned()));
        // The limits were requested again.
        let error = producer.append(&[1; 100]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}

/// After each rejection, each client sent everything again to a server without room, over a new connection.
#[tokio::test]
async fn oldest_batch_is_retried_alone_on_the_same_connection() {
    let mut rogue = Rogue::new();
    rogue.on_append = Box::new(|stream, n, batch| match stream {
        0..3 => refused(ErrorKind::Busy),
        _ => appended(batch, 1 + n as u64),
    });
    let (got, connections) = (rogue.got.clone(), rogue.connections.clone());
    let producer = producer_of(rogue, |o| (o.batch_bytes, o.linger) = (60, Duration::from_millis(20))).await;
    for i in 0..8 {
        producer.send(format!("record {i:02}").as_bytes()).await.unwrap();
    }
    producer.flush(PATIENCE).await.unwrap();
    let got = got.lock().unwrap();
    let sent = |stream| got.iter().filter(|(s, _)| *s == stream).count();
    assert_eq!((sent(1), sent(2), sent(3)), (1, 1, 8));
    assert_eq!(connections.load(Ordering::Relaxed), 2, "one for calls, one for streams");
}
