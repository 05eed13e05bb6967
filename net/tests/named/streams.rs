//! Appends: one stream to many logs, quotas, and connections that logs share.

use crate::fixture::{Appending, Named, kind_of};
use crate::served::client::quick;
use crate::served::{One, PATIENCE};
use chiplog::{BatchBuilder, ErrorKind, Index, LogOption};
use chiplog_net::client::{Client, ProducerOptions};
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::from_status;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The answer says when the quota allows the batch; a producer waits for that and sends it again.
#[tokio::test]
async fn refusal_by_a_quota_says_how_long_to_wait() {
    let mut named = Named::new().await;
    named.create("limited").await.unwrap();
    let log = named.logs.get("limited").unwrap();
    let rate = |rate| log.set_log_options(&[(LogOption::AppendBytesPerSecond, rate)], PATIENCE).unwrap();
    rate(Some(1));
    let batch = BatchBuilder::new().push(b"of any size, once").unwrap().build().unwrap();
    let request = || AppendRequest {
        log: "limited".into(),
        batch: batch.as_bytes().clone(),
        ..AppendRequest::default()
    };
    let mut client = log_client::LogClient::connect(format!("http://{}", named.one.address())).await.unwrap();
    let mut answers = client.append(tokio_stream::iter([request(), request()])).await.unwrap().into_inner();
    use append_response::Result::{Appended, Refused};
    assert!(matches!(answers.message().await.unwrap().unwrap().result, Some(Appended(_))));
    let Some(Refused(refused)) = answers.message().await.unwrap().unwrap().result else { panic!() };
    assert!(refused.retryable && refused.retry_after_millis > 5_000, "{refused:?}");
    assert_eq!(ErrorKind::from_code(refused.kind), Some(ErrorKind::Busy));

    let producer = named.client("limited").await.producer(ProducerOptions::default()).await.unwrap();
    let sent = producer.append(b"later").await.unwrap();
    rate(None);
    assert_eq!(sent.await.unwrap(), Index(2));
}

/// A batch goes to the log that its request names, or to none.
#[tokio::test]
async fn one_stream_appends_to_many_logs() {
    let mut named = Named::new().await;
    let first = named.create("first").await.unwrap();
    let second = named.create("second").await.unwrap();
    let mut stream = Appending::open(&named.one.address()).await;
    let turns = [("first", 1), ("second", 1), ("", 2), ("second", 3), ("default", 1), ("", 2), ("first", 2)];
    for (log, index) in turns {
        stream.send(log, "").await;
        assert_eq!(stream.answer().await, Ok(index), "log {log:?}");
    }
    // All at once: answers are in the order of the requests, whichever group was faster.
    for n in 0..100 {
        stream.send(["first", "second", "default"][n % 3], "").await;
        if n % 10 == 9 {
            for at in n - 9..=n {
                assert_eq!(stream.answer().await, Ok((at / 3) as u64 + [3, 4, 3][at % 3]));
            }
        }
    }
    assert_eq!(kind_of(stream.append("third", "").await), Some(ErrorKind::NotFound));
    assert_eq!(kind_of(stream.append("", "").await), Some(ErrorKind::NotFound), "not to the log before");
    let lasts = ["first", "second"].map(|name| named.logs.get(name).unwrap().last_index());
    named.create("third").await.unwrap();
    assert_eq!(stream.append("", "").await, Ok(1));
    assert_eq!(kind_of(stream.append("second", &first.log_id).await), Some(ErrorKind::NotFound));
    assert_eq!(kind_of(stream.append("second", "no id").await), Some(ErrorKind::NotFound));
    assert_eq!(["first", "second"].map(|name| named.logs.get(name).unwrap().last_index()), lasts);
    assert_eq!(stream.append("first", &first.log_id).await, Ok(lasts[0].get() + 1));
    // A name that is given again: the stream finds the new log after one refusal, or at once by its id.
    named.delete("first").await;
    let again = named.create("first").await.unwrap();
    assert_eq!(kind_of(stream.append("first", "").await), Some(ErrorKind::NotFound));
    assert_eq!(stream.append("first", "").await, Ok(1));
    named.delete("first").await;
    assert_eq!(kind_of(stream.append("first", &again.log_id).await), Some(ErrorKind::NotFound));
    let again = named.create("first").await.unwrap();
    assert_eq!(stream.append("first", &again.log_id).await, Ok(1));
    assert_eq!(stream.append("second", "").await, Ok(lasts[1].get() + 1), "the stream goes on");
    assert_eq!(stream.append("second", &second.log_id.to_uppercase()).await, Ok(lasts[1].get() + 2));
    assert_eq!(kind_of(stream.append(&"x".repeat(301), "").await), Some(ErrorKind::InvalidArgument));
}

/// The id in the call's metadata is about the log of the first request, also when its name is looked up again.
#[tokio::test]
async fn stream_appends_to_no_other_log_than_its_call_means() {
    let mut named = Named::new().await;
    let first = named.create("first").await.unwrap();
    named.create("second").await.unwrap();
    let mut stream = Appending::meaning(&named.one.address(), Some(&first.log_id)).await;
    assert_eq!(stream.append("first", "").await, Ok(1));
    assert_eq!(stream.append("second", "").await, Ok(1));
    assert_eq!(stream.append("first", "").await, Ok(2));
    named.delete("first").await;
    let again = named.create("first").await.unwrap();
    for log in ["first", "", "first"] {
        assert_eq!(kind_of(stream.append(log, "").await), Some(ErrorKind::NotFound), "{log:?}");
    }
    assert_eq!(stream.append("second", "").await, Ok(2));
    assert_eq!(named.logs.get("first").unwrap().last_index(), Index(0));
    assert_eq!(stream.append("first", &again.log_id).await, Ok(1), "a request that means it");
}

/// A stream keeps what it has looked up, so it ends when that is much.
#[tokio::test]
async fn stream_looks_up_a_limited_number_of_names() {
    let mut named = Named::new().await;
    named.create("first").await.unwrap();
    let mut stream = Appending::open(&named.one.address()).await;
    assert_eq!(stream.append("first", "").await, Ok(1));
    for n in 1..4096 {
        assert_eq!(kind_of(stream.append("none", "").await), Some(ErrorKind::NotFound), "{n}");
    }
    assert_eq!(stream.append("first", "").await, Ok(2), "it was looked up before");
    stream.send("none", "").await;
    let ended = stream.answers.message().await.unwrap_err();
    assert_eq!(from_status(&ended).kind(), ErrorKind::Unavailable, "{ended}");
}

/// The status says of a replica whether it has room, and of no log that has reached its own capacity.
#[tokio::test]
async fn full_log_is_refused_by_name_and_its_server_is_not_full() {
    let mut named = Named::new().await;
    named.create("full").await.unwrap();
    named.create_beside("other", "full").await;
    let [full, other] = ["full", "other"].map(|name| named.logs.get(name).unwrap());
    full.set_log_options(&[(LogOption::CapacityBytes, Some(128 << 10))], PATIENCE).unwrap();
    let batch = BatchBuilder::new().push(&[7; 128 << 10]).unwrap().build().unwrap();
    full.append(&batch).unwrap();
    let request =
        AppendRequest { log: "full".into(), batch: batch.as_bytes().clone(), ..AppendRequest::default() };
    let mut client = log_client::LogClient::connect(format!("http://{}", named.one.address())).await.unwrap();
    let mut answers = client.append(tokio_stream::iter([request])).await.unwrap().into_inner();
    let Some(append_response::Result::Refused(refused)) = answers.message().await.unwrap().unwrap().result
    else {
        panic!("it was appended")
    };
    assert_eq!(ErrorKind::from_code(refused.kind), Some(ErrorKind::Full));
    assert!(refused.message.contains("capacity_bytes"), "{refused:?}");
    let clients = [named.client("other").await, named.client("full").await];
    let appends = clients.each_ref().map(|client| (client, &batch));
    let refused = Client::append_together(&appends).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Full && refused.to_string().contains("log \"full\""), "{refused}");
    assert_eq!(other.last_index(), Index(0), "nothing of it was appended");
    let groups = named.admin.status(StatusRequest::default()).await.unwrap().into_inner().groups;
    assert!(groups.iter().all(|group| group.full.is_empty()), "{groups:?}");
    other.append(&batch).unwrap();

    let producer = clients[1].producer(ProducerOptions::default()).await.unwrap();
    let sent = producer.append(b"later").await.unwrap();
    full.discard(Index(2)).unwrap();
    assert_eq!(sent.await.unwrap(), Index(2), "a producer waits until there is room");
}

/// Each log had connections of its own, one for calls and one for each producer: thousands of logs used up what a server allows one
/// address.
#[tokio::test]
async fn many_logs_share_few_connections() {
    const LOGS: u64 = 40;
    let mut named = Named::new().await;
    for n in 0..LOGS {
        named.create(&n.to_string()).await.unwrap();
    }
    let server = &named.one.server;
    let before = server.connections.load(Ordering::Relaxed);
    let client = Client::connect([named.one.address()], Named::options("")).await.unwrap();
    let mut open = Vec::new();
    for n in 0..LOGS {
        let log = client.of_log(n.to_string()).await.unwrap();
        let producer = log.producer(ProducerOptions::default()).await.unwrap();
        assert_eq!(producer.append(b"a").await.unwrap().await.unwrap(), Index(1));
        assert_eq!(log.info().await.unwrap().last, Index(1));
        open.push(producer);
    }
    let made = server.connections.load(Ordering::Relaxed) - before;
    assert!(
        (5..=8).contains(&made),
        "four for appends, and one for calls, unless the machine was slow for long: {made}"
    );
    // An append stream that shares its connection ends when it is idle: the next record needs a call. The last one on each connection stays.
    let begun = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let calls = server.calls.load(Ordering::Relaxed);
        for producer in &open {
            producer.append(b"b").await.unwrap().await.unwrap();
        }
        if server.calls.load(Ordering::Relaxed) - calls >= LOGS - 4 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the streams of idle producers stay open");
    }
    let again = server.connections.load(Ordering::Relaxed) - before;
    assert!(again <= made + 3, "{made}, then {again}: connections follow the streams, not the logs");
    assert!(open.pop().unwrap().close(PATIENCE).await.all_acknowledged());
}

/// A program with one log keeps its stream: its next record takes one round trip.
#[tokio::test]
async fn stream_that_shares_no_connection_stays_open() {
    let one = One::new();
    let client = Client::connect([one.address()], quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"a").await.unwrap().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let calls = one.server.calls.load(Ordering::Relaxed);
    producer.append(b"b").await.unwrap().await.unwrap();
    assert_eq!(one.server.calls.load(Ordering::Relaxed), calls);
}
