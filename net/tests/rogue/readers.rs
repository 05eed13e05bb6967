//! Readers: nothing invalid is returned, and they go on.

use crate::served::PATIENCE;
use crate::served::client::quick;
use crate::server::{Rogue, about};
use chiplog::{BatchBuilder, ErrorKind, Index, Start};
use chiplog_net::client::{Client, ReadFrom, ReaderOptions};
use chiplog_net::wire::proto::v1::read_request::Start as Asked;
use chiplog_net::wire::proto::v1::*;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

fn stored(first: u64, count: u64) -> StoredBatch {
    let mut builder = BatchBuilder::new();
    for i in 0..count {
        builder.push(&first.wrapping_add(i).to_le_bytes()).unwrap();
    }
    StoredBatch { first, timestamp_nanos: 0, batch: builder.build().unwrap().as_bytes().clone() }
}

fn reply(batches: Vec<StoredBatch>) -> ReadResponse {
    ReadResponse { batches, ..Default::default() }
}

/// Gaps, repeats, damage, garbage and silence: nothing invalid is returned, and reading continues at its position.
#[tokio::test]
async fn reader_accepts_only_the_expected_records() {
    let mut damaged = stored(4, 2);
    let mut bytes = damaged.batch.to_vec();
    bytes[50] ^= 1;
    damaged.batch = bytes.into();
    let mut garbage = stored(4, 2);
    garbage.batch = vec![1, 2, 3].into();
    for wrong in [
        Some(stored(5, 2)),
        Some(stored(1, 3)),
        Some(stored(u64::MAX, 1)),
        Some(damaged),
        Some(garbage),
        None,
    ] {
        let mut rogue = Rogue::new();
        let what = format!("{:?}", wrong.as_ref().map(|w| w.first));
        rogue.on_read = Box::new(move |n, request| match n {
            0 => {
                let begin = ReadResponse { next: 1, ..Default::default() };
                let mut replies = vec![begin, reply(vec![stored(1, 2), stored(3, 1)])];
                replies.extend(wrong.clone().map(|wrong| reply(vec![wrong])));
                replies
            }
            _ => {
                assert_eq!((request.start, request.min_index), (Some(Asked::Index(4)), 3));
                // It starts before the expected record, as a batch may.
                vec![reply(vec![stored(3, 2), stored(5, 1)])]
            }
        });
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let mut options = ReaderOptions::default();
        options.keep_alive = Duration::from_millis(100);
        let mut reader = client.reader_with(Start::First, options);
        for i in 1..=5 {
            let record =
                tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap().unwrap().unwrap();
            assert_eq!((record.index, &record.data[..]), (Index(i), &i.to_le_bytes()[..]), "after {what}");
        }
    }
}

#[tokio::test]
async fn reader_times_out_and_can_be_called_again() {
    let mut rogue = Rogue::new();
    rogue.on_read =
        Box::new(
            |n, _| if n < 3 { vec![reply(vec![stored(9, 1)])] } else { vec![reply(vec![stored(4, 1)])] },
        );
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    let mut options = ReaderOptions::default();
    (options.timeout, options.min_index) = (Duration::from_millis(20), Index(4));
    let mut reader = client.reader_with(Start::Index(Index(4)), options);
    let begun = Instant::now();
    let mut errors = 0;
    let record = loop {
        match reader.next_record().await {
            Ok(record) => break record.unwrap(),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable)),
        }
        errors += 1;
    };
    assert!(errors >= 1 && begun.elapsed() < Duration::from_secs(3));
    assert_eq!(record.index, Index(4));
    let mut reader = client.reader(Start::First, ReadFrom::Leader);
    assert!(tokio::time::timeout(Duration::from_millis(50), reader.next_record()).await.is_err());
}

/// Each call started to connect again, and gave a silent server the whole time limit again. A reader that was called
/// with short timeouts, as by programs that check for signals, never reached a slow or dead server, and never left it.
#[tokio::test]
async fn reader_with_short_timeouts_makes_progress() {
    for patience in [20, 2] {
        gets_on(Duration::from_millis(patience)).await;
    }
}

async fn gets_on(patience: Duration) {
    // It accepts connections and never answers.
    let off = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = |node, listener: &TcpListener, zone: &str| Server {
        node,
        address: listener.local_addr().unwrap().to_string(),
        zone: zone.to_owned(),
        leader: node == 1,
    };
    let servers = vec![server(1, &listener, "east"), server(2, &off, "west")];
    let mut rogue = Rogue::new();
    rogue.on_server_info = Box::new(move |_| ServerInfoResponse { servers: servers.clone(), ..about(1) });
    // The first stream is silent after it has started.
    rogue.on_read = Box::new(|n, _| match n {
        0 => vec![ReadResponse { next: 1, ..Default::default() }],
        _ => vec![reply(vec![stored(1, 1)])],
    });
    let mut options = quick();
    options.attempt_timeout = Duration::from_millis(300);
    let client = Client::connect(rogue.serve_at(listener), options).await.unwrap();
    let mut options = ReaderOptions::default();
    (options.from, options.keep_alive) = (ReadFrom::Nearest("west".into()), Duration::from_millis(100));
    let mut reader = client.reader_with(Start::First, options);
    let end = Instant::now() + PATIENCE;
    let record = loop {
        match tokio::time::timeout(patience, reader.next_record()).await {
            Ok(record) => break record.unwrap().unwrap(),
            Err(_) => assert!(Instant::now() < end, "it never gets there"),
        }
    };
    assert_eq!(record.index, Index(1));
}

/// A proxy may end a stream without an error: a reader that follows took that for the end of the log.
#[tokio::test]
async fn following_reader_has_no_end() {
    let mut rogue = Rogue::new();
    rogue.ends = true;
    rogue.on_read = Box::new(|n, _| vec![reply(vec![stored(n as u64 + 1, 1)])]);
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    let mut reader = client.reader_with(Start::Index(Index(1)), {
        let mut options = ReaderOptions::default();
        options.min_index = Index(1);
        options
    });
    for i in 1..=3 {
        let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
        assert_eq!(record.unwrap().unwrap().index, Index(i));
    }
}
