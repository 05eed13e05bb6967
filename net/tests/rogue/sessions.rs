//! Producers whose session or its numbers are refused.

use crate::served::PATIENCE;
use crate::served::client::{producing, quick};
use crate::server::{Rogue, appended, producer_of, refused, soon};
use chiplog::{ErrorKind, Index, Sequence};
use chiplog_net::client::{Client, ProducerOptions};
use chiplog_net::wire::proto::v1::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::Status;

#[tokio::test]
async fn forgotten_number_is_a_success_if_it_was_sent_before() {
    let mut rogue = Rogue::new();
    rogue.on_append =
        Box::new(|stream, _, _| if stream == 0 { None } else { refused(ErrorKind::SequenceForgotten) });
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    let options = producing(|o| o.request_timeout = Duration::from_millis(200));
    let producer = client.producer(options).await.unwrap();
    let delivery = producer.append(b"x").await.unwrap();
    producer.flush(PATIENCE).await.unwrap();
    assert_eq!(delivery.await.unwrap_err().kind(), ErrorKind::SequenceForgotten);
    assert!(producer.close(PATIENCE).await.all_acknowledged());
}

/// A leader that was cut off while a session was opened or used elsewhere rejects the session without asking the
/// others. The producer treated that as final and ended, with all its records.
#[tokio::test]
async fn session_rejection_is_final_only_after_a_barrier() {
    for kind in [ErrorKind::SessionExpired, ErrorKind::SequenceGap] {
        for barrier in [Err(Status::unavailable("no majority")), Ok(InfoResponse::default())] {
            let mut rogue = Rogue::new();
            rogue.on_append = Box::new(move |stream, _, batch| match stream {
                0 => None,
                1 => refused(kind),
                _ => appended(batch, 5),
            });
            rogue.on_info = Box::new(move |_| Some(barrier.clone()));
            let options = |o: &mut ProducerOptions| o.request_timeout = Duration::from_millis(100);
            let producer = producer_of(rogue, options).await;
            assert_eq!(producer.append(b"x").await.unwrap().await.unwrap(), Index(5), "{kind}");
        }
    }
}

/// If the server repeats it after that, it is final.
#[tokio::test]
async fn finally_rejected_session_ends_the_producer() {
    let mut rogue = Rogue::new();
    rogue.on_append =
        Box::new(|stream, _, _| if stream == 0 { None } else { refused(ErrorKind::SessionExpired) });
    rogue.on_info = Box::new(|_| Some(Ok(InfoResponse::default())));
    let producer = producer_of(rogue, |o| o.request_timeout = Duration::from_millis(100)).await;
    // It was sent before, and may be in the log: its result is not a rejection.
    let open = producer.append(b"x").await.unwrap().await.unwrap_err();
    assert_eq!(open.kind(), ErrorKind::Closed, "{open}");
    assert_eq!(producer.try_send(b"y").unwrap_err().kind(), ErrorKind::SessionExpired);
    let closed = producer.close(PATIENCE).await;
    assert!(closed.left[0].in_doubt);
}

/// An idle producer's session had expired; its next record was first sent to a server that no longer led. After two
/// rejections it counted as possibly in the log, and the producer ended.
#[tokio::test]
async fn certainly_rejected_records_get_a_new_session() {
    let mut rogue = Rogue::new();
    rogue.on_append = Box::new(|stream, n, batch| match stream {
        0 => refused(ErrorKind::NotLeader),
        1 => refused(ErrorKind::SessionExpired),
        _ => appended(batch, 1 + n as u64),
    });
    let (got, calls) = (rogue.got.clone(), rogue.calls.clone());
    let options = |o: &mut ProducerOptions| (o.batch_bytes, o.linger) = (60, Duration::from_millis(20));
    let producer = producer_of(rogue, options).await;
    let deliveries =
        [producer.append(b"record a..").await.unwrap(), producer.append(b"record b..").await.unwrap()];
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap(), Index(1 + n as u64));
    }
    let last = got.lock().unwrap().last().unwrap().1.session().unwrap();
    assert_eq!((last.0.get(), last.1), (8, Sequence(2)));
    let calls = calls.lock().unwrap();
    assert_eq!(calls[..], ["open 7", "append 0", "append 1", "close 7", "open 8", "append 2"]);
}

/// When a record expired, the producer opened a new session and left the old one open. Late batches of the old session
/// could get into the log behind newer records, and each of these sessions stayed for a day.
#[tokio::test]
async fn session_is_closed_before_another_one_is_opened() {
    let mut rogue = Rogue::new();
    let stuck = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_stuck = stuck.clone();
    rogue.on_append =
        Box::new(move |_, _, batch| if is_stuck.load(Ordering::Relaxed) { None } else { appended(batch, 1) });
    let calls = rogue.calls.clone();
    let producer = producer_of(rogue, soon).await;
    assert_eq!(producer.append(b"x").await.unwrap().await.unwrap_err().kind(), ErrorKind::Timeout);
    stuck.store(false, Ordering::Relaxed);
    producer.append(b"y").await.unwrap().await.unwrap();
    let calls: Vec<_> = calls.lock().unwrap().iter().filter(|c| !c.starts_with("append")).cloned().collect();
    assert_eq!(calls, ["open 7", "close 7", "open 8"]);
}
