//! A producer that continues a session of another process: the records of both are in the log once.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{ErrorKind, Index, Options, Sequence, SessionId, Start};
use chiplog_net::client::{Client, Producer};
use chiplog_net::service::log::NativeOptions;
use served::client::{producing, quick, read_to_end};
use served::{One, PATIENCE};
use std::sync::mpsc;
use std::time::Duration;

async fn going_on(client: &Client, session: SessionId, next: u64) -> Producer {
    client.producer(producing(|o| o.session = Some((session, Sequence(next))))).await.unwrap()
}

/// Sends a batch, and waits for its result.
async fn send(producer: &Producer, records: &[&str]) -> chiplog::Result<Index> {
    let (sender, told) = mpsc::channel();
    producer.send_batch(records, move |result| sender.send(result).unwrap()).await?;
    let told = tokio::task::spawn_blocking(move || told.recv_timeout(PATIENCE).unwrap());
    told.await.unwrap().map(|appended| appended.first)
}

#[tokio::test]
async fn records_of_two_processes_are_in_the_log_once() {
    let one = One::new();
    let client = Client::connect([one.address()], quick()).await.unwrap();
    let session = client.open_session().await.unwrap();
    let first = going_on(&client, session, 1).await;
    assert_eq!(send(&first, &["a", "b"]).await.unwrap(), Index(1));
    assert_eq!(send(&first, &["c"]).await.unwrap(), Index(3));
    assert_eq!(send(&first, &["d", "e", "f"]).await.unwrap(), Index(4));
    // The first one is gone, as if its process had been killed: it does not close the session.
    std::mem::forget(first);
    let second = going_on(&client, session, 2).await;
    // This batch was acknowledged before the next one was sent: the log knows that it has it, and no longer knows its
    // index.
    let known = send(&second, &["c"]).await.unwrap_err();
    assert_eq!(known.kind(), ErrorKind::SequenceForgotten, "{known}");
    assert_eq!(send(&second, &["d", "e", "f"]).await.unwrap(), Index(4));
    assert_eq!(send(&second, &["g"]).await.unwrap(), Index(7));
    let all = read_to_end(&client, Start::First).await;
    assert_eq!(all.iter().map(|(_, data)| &data[..]).collect::<Vec<_>>().concat(), b"abcdefg");
    // A regular close closes the session.
    assert!(second.close(PATIENCE).await.all_acknowledged());
    assert_eq!(one.log.status().sessions, 0);
}

/// The reason of a producer's failure, from the error of a record that may be in the log.
fn open_for(error: &chiplog::Error) -> ErrorKind {
    assert_eq!(error.kind(), ErrorKind::Closed, "it must not say that the record was rejected: {error}");
    let source = std::error::Error::source(error).unwrap();
    source.downcast_ref::<chiplog::Error>().unwrap().kind()
}

/// A producer reported records that it had never sent as certainly not in the log. The previous process may have
/// appended them.
#[tokio::test]
async fn records_that_another_process_may_have_sent_are_in_doubt() {
    let one = One::new();
    let client = Client::connect([one.address()], quick()).await.unwrap();
    let session = client.open_session().await.unwrap();
    let first = going_on(&client, session, 1).await;
    for record in ["a", "b", "c"] {
        send(&first, &[record]).await.unwrap();
    }
    std::mem::forget(first);
    let second = going_on(&client, session, 1).await;
    drop(one);
    let (sender, told) = mpsc::channel();
    for record in ["a", "b", "c"] {
        let sender = sender.clone();
        second.send_batch(&[record], move |result| sender.send(result).unwrap()).await.unwrap();
    }
    let left = second.close(Duration::from_millis(100)).await.left;
    assert_eq!(left.iter().map(|u| &u.record[..]).collect::<Vec<_>>().concat(), b"abc");
    assert!(left.iter().all(|u| u.in_doubt), "{left:?}");
    for _ in 0..3 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// With its own session it would open another one. Here the caller relies on the numbers.
#[tokio::test]
async fn producer_fails_when_its_numbers_cannot_continue() {
    let one = One::new();
    let client = Client::connect([one.address()], quick()).await.unwrap();
    let gone = client.open_session().await.unwrap();
    let producer = going_on(&client, gone, 1).await;
    assert_eq!(send(&producer, &["a"]).await.unwrap(), Index(1));
    assert!(producer.close(PATIENCE).await.all_acknowledged());
    let late = going_on(&client, gone, 2).await;
    assert_eq!(open_for(&send(&late, &["b"]).await.unwrap_err()), ErrorKind::SessionExpired);
    assert_eq!(
        send(&late, &["c"]).await.unwrap_err().kind(),
        ErrorKind::SessionExpired,
        "it accepts no more"
    );

    let skipping = going_on(&client, client.open_session().await.unwrap(), 2).await;
    assert_eq!(open_for(&send(&skipping, &["b"]).await.unwrap_err()), ErrorKind::SequenceGap);

    // Not acknowledged in time: batches behind it do not get other numbers.
    let session = client.open_session().await.unwrap();
    let options = producing(|o| {
        o.session = Some((session, Sequence(1)));
        o.delivery_timeout = Duration::from_millis(300);
    });
    let producer = client.producer(options).await.unwrap();
    drop(one);
    assert_eq!(send(&producer, &["b"]).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(send(&producer, &["c"]).await.unwrap_err().kind(), ErrorKind::Timeout);

    for wrong in [(session, Sequence(0)), (session, Sequence(1))] {
        let options = producing(|o| {
            o.session = Some(wrong);
            o.exactly_once = wrong.1.get() == 0;
        });
        assert_eq!(client.producer(options).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn batch_is_sent_alone_and_whole_or_not_at_all() {
    let options = Options::with_segment_bytes(1 << 20).batch_bytes_max(10_000).record_bytes_max(9_000);
    let one = One::with(options, NativeOptions::default());
    let client = Client::connect([one.address()], quick()).await.unwrap();
    assert_eq!(client.batch_bytes_max(), 10_000);
    let producer = client.producer(producing(|o| o.linger = Duration::from_secs(60))).await.unwrap();
    producer.send(b"lingers").await.unwrap();
    assert_eq!(send(&producer, &["one", "two", "three"]).await.unwrap(), Index(2));
    producer.send(b"lingers, too").await.unwrap();
    assert_eq!(send(&producer, &["four"]).await.unwrap(), Index(6));
    let mut reader = one.log.reader(Start::First).unwrap();
    let mut counts = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        counts.push(batch.count());
    }
    assert_eq!(counts, [1, 3, 1, 1]);
    let kilobyte = "x".repeat(1000);
    assert_eq!(send(&producer, &[kilobyte.as_str(); 10]).await.unwrap_err().kind(), ErrorKind::TooLarge);
    let large = "x".repeat(9_001);
    assert_eq!(send(&producer, &[large.as_str()]).await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(send(&producer, &[]).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(one.log.last_index(), Index(6));
}
