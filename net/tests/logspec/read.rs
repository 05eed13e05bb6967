//! Read.

use crate::support::{PATIENCE, Served, both, info, one};
use chiplog::Options;
use chiplog_net::service::logspec::Limits;
use chiplog_net::wire::proto::logspec::read_reply::Reply;
use chiplog_net::wire::proto::logspec::{DiscardRequest, Entry, ReadReply, ReadRequest};
use std::time::{Duration, Instant};
use tonic::Streaming;

struct Tail(Streaming<ReadReply>);

impl Tail {
    async fn new(server: &Served, next_index: u64) -> Self {
        Self(server.client().await.read(ReadRequest { next_index }).await.unwrap().into_inner())
    }

    async fn next(&mut self) -> Option<Reply> {
        let reply = tokio::time::timeout(PATIENCE, self.0.message()).await.expect("no reply").unwrap();
        reply.map(|reply| reply.reply.expect("one field of the oneof"))
    }

    async fn entries(&mut self) -> Vec<Entry> {
        match self.next().await {
            Some(Reply::Ok(ok)) => ok.entries,
            other => panic!("{other:?}"),
        }
    }

    async fn has_nothing(&mut self) {
        let waited = tokio::time::timeout(Duration::from_millis(100), self.0.message()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}

#[tokio::test]
async fn reads_from_an_index_with_many_entries_per_reply() {
    let server = one(Options::default(), Limits::default()).await;
    let mut appender = server.appender().await;
    for n in 0..30u64 {
        appender.append((0..2000).map(|k| format!("{} {}", n * 2000 + k + 1, "x".repeat(100)))).await;
    }
    let mut tail = Tail::new(&server, 12_345).await;
    let (mut next, mut replies) = (12_345, 0);
    while next <= 60_000 {
        let entries = tail.entries().await;
        let bytes: usize = entries.iter().map(|e| e.data.len()).sum();
        assert!(bytes < (1 << 20) + 200 && entries.len() <= 8192);
        for entry in entries {
            assert!(entry.index == next && !entry.skip);
            assert!(entry.data.starts_with(format!("{next} ").as_bytes()));
            next += 1;
        }
        replies += 1;
    }
    assert!(replies < 20, "{replies} replies for 48,000 entries");
    tail.has_nothing().await;
}

#[tokio::test]
async fn tail_waits_and_continues_at_once() {
    for server in both().await {
        let mut appender = server.appender().await;
        let mut tail = Tail::new(&server, 1).await;
        tail.has_nothing().await;
        for n in 1..=50 {
            appender.append([format!("{n}")]).await;
            let appended = Instant::now();
            let entries = tail.entries().await;
            assert!(appended.elapsed() < Duration::from_secs(1), "delayed");
            assert_eq!(entries.iter().map(|e| e.index).collect::<Vec<_>>(), [n]);
            assert_eq!(entries[0].data, format!("{n}"));
        }
    }
}

#[tokio::test]
async fn read_beyond_the_end_waits_for_its_index() {
    for server in both().await {
        let mut appender = server.appender().await;
        appender.append(["1", "2"]).await;
        let mut tail = Tail::new(&server, 5).await;
        for value in ["3", "4"] {
            appender.append([value]).await;
            tail.has_nothing().await;
        }
        appender.append(["5"]).await;
        assert_eq!(tail.entries().await[0].index, 5);
    }
}

#[tokio::test]
async fn read_below_the_first_index_is_truncated() {
    for server in both().await {
        let mut client = server.client().await;
        server.appender().await.append(["1", "2", "3"]).await;
        let mut waiting = Tail::new(&server, 4).await;
        waiting.has_nothing().await;
        client.discard(DiscardRequest { first_index: 3 }).await.unwrap();
        for next in [0, 1, 2] {
            let mut tail = Tail::new(&server, next).await;
            assert_eq!(tail.next().await, Some(Reply::Truncated(true)));
            assert_eq!(tail.next().await, None);
        }
        assert_eq!(Tail::new(&server, 3).await.entries().await[0].data, "3");
        // The log continues beyond the position where a tail waits.
        client.discard(DiscardRequest { first_index: 100 }).await.unwrap();
        assert_eq!(waiting.next().await, Some(Reply::Truncated(true)));
        assert_eq!(waiting.next().await, None);
    }
}

#[tokio::test]
async fn large_entries_are_sent_one_by_one() {
    let server = one(Options::default(), Limits::default()).await;
    let mut appender = server.appender().await;
    for n in 0..4 {
        appender.append([vec![n; 11 << 20]]).await;
    }
    let mut tail = Tail::new(&server, 1).await;
    for n in 0..4 {
        let entries = tail.entries().await;
        assert!(entries.len() == 1 && entries[0].data == vec![n; 11 << 20]);
    }
}

/// Readers that stopped reading hold one reply each, and do not delay others.
#[tokio::test]
async fn slow_readers_do_not_block_others() {
    let server = one(Options::default(), Limits::default()).await;
    let mut appender = server.appender().await;
    for _ in 0..40 {
        appender.append([vec![1; 1 << 20]]).await;
    }
    let mut slow = Vec::new();
    for _ in 0..20 {
        // One connection each: unread bytes of one stream use the window that the others share.
        slow.push(server.client().await.read(ReadRequest { next_index: 1 }).await.unwrap().into_inner());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(appender.append(["goes on"]).await, [41]);
    assert_eq!(info(&mut server.client().await, false).await.last_index, 41);
    let mut tail = Tail::new(&server, 41).await;
    assert_eq!(tail.entries().await[0].data, "goes on");
    for reader in &mut slow {
        let Some(Reply::Ok(ok)) = reader.message().await.unwrap().unwrap().reply else { panic!() };
        assert_eq!(ok.entries[0].index, 1);
    }
}

/// Entries that are discarded during a read end the stream as truncated, never with a gap.
#[tokio::test]
async fn discard_during_a_read_truncates_it() {
    let server = one(Options::with_segment_bytes(1 << 20), Limits::default()).await;
    let mut appender = server.appender().await;
    for _ in 0..40 {
        appender.append([vec![1; 500_000]]).await;
    }
    let mut tail = Tail::new(&server, 1).await;
    let mut next = tail.entries().await.last().unwrap().index + 1;
    server.client().await.discard(DiscardRequest { first_index: 41 }).await.unwrap();
    loop {
        match tail.next().await {
            Some(Reply::Ok(ok)) => {
                for entry in ok.entries {
                    assert_eq!(entry.index, next);
                    next += 1;
                }
            }
            other => break assert_eq!(other, Some(Reply::Truncated(true))),
        }
    }
    assert!(next < 41);
}
