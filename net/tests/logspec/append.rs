//! Append: order, sequence numbers, sizes, capacity, and clients that disconnect.

use crate::support::{Appender, PATIENCE, both, info, one, small};
use chiplog::{Index, Options, Start};
use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
use chiplog_net::service::logspec::{AppendRequest, Limits};
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::{DiscardRequest, InfoRequest, ReadRequest};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_with_an_index_for_each_proposal() {
    for server in both().await {
        let mut appender = server.appender().await;
        for n in 0..200 {
            appender.send((0..n % 5).map(|k| format!("record {n}.{k}"))).await;
        }
        let mut next = 1;
        for n in 0..200 {
            let ok = appender.ok().await;
            assert_eq!(ok.sequence, n + 1);
            assert_eq!(ok.indexes, (next..next + n % 5).collect::<Vec<_>>());
            next += n % 5;
            assert!(server.log.durable_index() >= Index(next - 1), "ok before it was durable");
        }
        let mut rest = appender.half_close();
        assert!(rest.message().await.unwrap().is_none(), "the stream ends when everything is answered");
        assert_eq!(server.log.read(Index(2)).unwrap().data, "record 2.0");
    }
}

#[tokio::test]
async fn wrong_sequence_number_is_an_error_after_earlier_answers() {
    for server in both().await {
        for (sent, wanted) in [(7, 3), (2, 3), (0, 3)] {
            let mut appender = server.appender().await;
            appender.send(["one"]).await;
            appender.send(["two"]).await;
            appender.send_as(sent, ["wrong"]).await;
            assert_eq!((appender.ok().await.sequence, appender.ok().await.sequence), (1, 2));
            let status = appender.reply().await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            let (found, expected) = (format!("sequence {sent} "), format!("{wanted} was expected"));
            assert!(status.message().contains(&found) && status.message().contains(&expected), "{status:?}");
        }
        assert_eq!(server.log.last_index(), Index(6));
    }
}

#[tokio::test]
async fn probe_is_answered_in_order() {
    for server in both().await {
        let mut appender = server.appender().await;
        appender.send(["x"]).await;
        appender.send([""; 0]).await;
        appender.send([""]).await;
        assert_eq!(appender.ok().await.indexes, [1]);
        let probe = appender.ok().await;
        assert_eq!((probe.sequence, probe.indexes.len()), (2, 0));
        assert_eq!(appender.ok().await.indexes, [2], "an empty proposal is one");
    }
}

#[tokio::test]
async fn large_proposals_and_requests_of_many_batches() {
    let server = one(Options::default(), Limits::default()).await;
    let mut appender = server.appender().await;
    let large = vec![7; 11 << 20];
    assert_eq!(appender.append([&large]).await, [1]);
    assert_eq!(server.log.read(Index(1)).unwrap().data, large);
    let values: Vec<Vec<u8>> = (0..20_000usize).map(|n| vec![n as u8; n % 1000]).collect();
    assert_eq!(appender.append(&values).await, (2..20_002).collect::<Vec<_>>());
    let mut reader = server.log.reader(Start::Index(Index(2))).unwrap();
    for value in &values {
        assert_eq!(reader.next_record().unwrap().unwrap().data, value);
    }
}

#[tokio::test]
async fn hundreds_of_thousands_of_empty_proposals_in_one_request() {
    let server = one(Options::default(), Limits::default()).await;
    let mut appender = server.appender().await;
    let indexes = appender.append(std::iter::repeat_n("", 1_500_000)).await;
    assert!(indexes.into_iter().eq(1..=1_500_000));
    let status = {
        appender.send(std::iter::repeat_n("", (4 << 20) + 1)).await;
        appender.reply().await.unwrap_err()
    };
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(server.log.last_index(), Index(1_500_000));
}

#[tokio::test]
async fn too_large_requests_are_rejected_whole() {
    let limits = Limits::default().message_bytes_max(4 << 20);
    let server = one(Options::with_segment_bytes(1 << 20), limits).await;
    let mut appender = server.appender().await;
    let most = server.log.options().record_bytes_max as usize;
    assert_eq!(appender.append([vec![1; most]]).await, [1]);
    appender.send([vec![1; 10], vec![1; most + 1]]).await;
    let status = appender.reply().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("record_bytes_max"), "{status:?}");
    let mut appender = server.appender().await;
    appender.send([vec![1; 5 << 20]]).await;
    assert_eq!(appender.reply().await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(server.log.last_index(), Index(1), "none of their records are in the log");
}

#[tokio::test]
async fn full_log_has_room_after_a_discard() {
    let options = Options::with_segment_bytes(1 << 20).capacity_bytes(4 << 20);
    let server = one(options, Limits::default()).await;
    let mut appender = server.appender().await;
    let value = vec![3; 200_000];
    let last = loop {
        appender.send([&value]).await;
        match appender.reply().await.unwrap() {
            Some(Reply::Ok(ok)) => assert_eq!(ok.indexes.len(), 1),
            Some(Reply::Full(full)) => break full,
            other => panic!("{other:?}"),
        }
    };
    assert!(last);
    appender.send(["nothing more"]).await;
    assert_eq!(appender.reply().await.unwrap(), None);
    assert!(server.log.last_index() >= Index(15));
    // Filled completely, and checked by a probe.
    let mut appender = server.appender().await;
    loop {
        appender.send([""]).await;
        match appender.reply().await.unwrap() {
            Some(Reply::Ok(_)) => {}
            Some(Reply::Full(true)) => break,
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..2 {
        let mut appender = server.appender().await;
        appender.send([""; 0]).await;
        assert_eq!(appender.reply().await.unwrap(), Some(Reply::Full(true)));
    }
    let mut appender = server.appender().await;
    appender.send([""; 0]).await;
    assert_eq!(appender.reply().await.unwrap(), Some(Reply::Full(true)));
    assert_eq!(appender.reply().await.unwrap(), None);
    let mut client = server.client().await;
    let before = info(&mut client, false).await;
    assert!(before.bytes_total == 4 << 20 && before.bytes_used > 3 << 20, "{before:?}");
    client.discard(DiscardRequest { first_index: before.last_index }).await.unwrap();
    let room = async {
        loop {
            let mut appender = Appender::new(&mut client).await;
            appender.send([""; 0]).await;
            if matches!(appender.reply().await.unwrap(), Some(Reply::Ok(_))) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, room).await.expect("space is freed soon");
    assert_eq!(server.appender().await.append([&value]).await, [before.last_index + 1]);
}

/// Requests wait for memory; all are answered in the end.
#[tokio::test]
async fn memory_is_shared_by_all_streams() {
    let budget = Budget::new(BudgetLimits::default().bytes(1 << 20), Arc::default());
    let limits = Limits::default().message_bytes_max(1 << 20).budget(budget);
    let server = one(Options::with_segment_bytes(4 << 20), limits).await;
    let streams: Vec<_> = (0..12usize)
        .map(|k| {
            let client = server.client();
            async move {
                let mut client = client.await;
                let requests = (1..=20u64)
                    .map(move |n| AppendRequest::new(n, [vec![k as u8; 40_000 * ((k + n as usize) % 20)]]));
                let request = tokio_stream::iter(requests);
                let mut replies = client.append(request).await.unwrap().into_inner();
                for n in 1..=20 {
                    let reply = tokio::time::timeout(PATIENCE, replies.message()).await.expect("no reply");
                    let Some(Reply::Ok(ok)) = reply.unwrap().unwrap().reply else { panic!() };
                    assert_eq!((ok.sequence, ok.indexes.len()), (n, 1));
                }
            }
        })
        .collect();
    let together = futures_util::future::join_all(streams);
    tokio::time::timeout(PATIENCE * 2, together).await.expect("they wait for each other");
}

#[tokio::test]
async fn disconnecting_clients_do_not_affect_others() {
    for server in both().await {
        for n in 0..50 {
            let mut appender = server.appender().await;
            for _ in 0..n % 7 {
                appender.send([vec![0; 10_000]]).await;
            }
            if n % 2 == 0 {
                appender.ok_or_nothing().await;
            }
        }
        assert_eq!(server.appender().await.append(["still here"]).await.len(), 1);
    }
}

impl Appender {
    async fn ok_or_nothing(&mut self) {
        let _ = tokio::time::timeout(Duration::from_millis(2), self.replies.message()).await;
    }
}

/// Each answer is small. The answers of a client that reads none stay bounded, because its requests are not read any
/// further.
#[tokio::test]
async fn client_that_reads_no_answers_is_slowed_and_blocks_no_one() {
    let limits = Limits::default().stream_requests_max(16);
    let server = one(Options::with_segment_bytes(1 << 20), limits).await;
    let mut client = server.client().await;
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counting = count.clone();
    let requests = tokio_stream::iter((1..).map(move |n| {
        counting.store(n, std::sync::atomic::Ordering::Relaxed);
        AppendRequest::new(n, std::iter::repeat_n("", 20_000))
    }));
    let unread = client.append(requests).await.unwrap();
    let mut before = u64::MAX;
    while before != count.load(std::sync::atomic::Ordering::Relaxed) {
        before = count.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < 5000, "{before} requests of 40 KB were accepted without an answer being read");
    assert_eq!(server.appender().await.append(["other"]).await.len(), 1);
    assert_eq!(Appender::new(&mut client).await.append(["same connection"]).await.len(), 1);
    drop(unread);
}

/// A server that shuts down closes its log first: no stream delays the shutdown, however idle it is.
#[tokio::test]
async fn closing_the_log_ends_all_streams() {
    let server = small().await;
    let mut appender = server.appender().await;
    appender.append(["x"]).await;
    let mut client = server.client().await;
    let mut tail = client.read(ReadRequest { next_index: 2 }).await.unwrap().into_inner();
    let mut watch = client.info_stream(InfoRequest { allow_stale: true }).await.unwrap().into_inner();
    watch.message().await.unwrap();
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || log.close()).await.unwrap().unwrap();
    assert_eq!(appender.reply().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(tail.message().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(watch.message().await.unwrap_err().code(), Code::Unavailable);
    server.shut_down().await;
}
