//! Info and InfoStream.

use crate::support::{PATIENCE, both, info, small, stand};
use chiplog_net::wire::proto::logspec::{DiscardRequest, InfoRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[tokio::test]
async fn info_of_a_new_log() {
    for server in both().await {
        let mut client = server.client().await;
        for stale in [false, true] {
            let stand = info(&mut client, stale).await;
            assert_eq!((stand.first_index, stand.last_index), (1, 0));
            assert!(stand.bytes_used < 100_000 && stand.bytes_total > 0, "{stand:?}");
        }
    }
}

#[tokio::test]
async fn info_includes_acknowledged_records() {
    for server in both().await {
        let mut client = server.client().await;
        let mut appender = server.appender().await;
        for n in 1..=50 {
            appender.append(["x"]).await;
            assert_eq!(info(&mut client, false).await.last_index, n);
        }
    }
}

/// The runtime counts its threads itself: other tests of this program start logs and runtimes beside this one.
#[test]
fn many_concurrent_info_calls() {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(|| {
            THREADS.fetch_add(1, Ordering::Relaxed);
        })
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = small().await;
        server.appender().await.append(["x"]).await;
        let client = server.client().await;
        let before = THREADS.load(Ordering::Relaxed);
        let asking: Vec<_> = (0..2000)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move { info(&mut client, false).await.last_index })
            })
            .collect();
        for asked in asking {
            assert_eq!(asked.await.unwrap(), 1);
        }
        let after = THREADS.load(Ordering::Relaxed);
        assert!(after <= before + 4, "a thread for each call: {before} before, {after} after");
    });
}

#[tokio::test]
async fn stream_replies_at_once_and_then_at_changes() {
    for server in both().await {
        let mut client = server.client().await;
        let mut appender = server.appender().await;
        let mut stream = client.info_stream(InfoRequest { allow_stale: false }).await.unwrap().into_inner();
        let first = stand(stream.message().await.unwrap().unwrap());
        assert_eq!((first.first_index, first.last_index), (1, 0));
        let quiet = tokio::time::timeout(Duration::from_millis(400), stream.message()).await;
        assert!(quiet.is_err(), "no change, but got {quiet:?}");
        // Many changes: few replies, and the last one in time.
        let began = Instant::now();
        for _ in 0..300 {
            appender.append(["x"]).await;
        }
        let took = began.elapsed();
        let (mut replies, mut last) = (0, first);
        while last.last_index < 300 {
            let next = tokio::time::timeout(PATIENCE, stream.message()).await.expect("no reply");
            let next = stand(next.unwrap().unwrap());
            assert!(next != last && next.last_index >= last.last_index);
            last = next;
            replies += 1;
        }
        assert!(replies <= 3 + took.as_millis() / 20, "{replies} replies in {took:?}");
        client.discard(DiscardRequest { first_index: 200 }).await.unwrap();
        while last.first_index != 200 {
            let next = tokio::time::timeout(PATIENCE, stream.message()).await.expect("no reply");
            last = stand(next.unwrap().unwrap());
        }
        client.discard(DiscardRequest { first_index: 900 }).await.unwrap();
        while last.first_index != 900 {
            let next = tokio::time::timeout(PATIENCE, stream.message()).await.expect("no reply");
            last = stand(next.unwrap().unwrap());
        }
        assert_eq!(last.last_index, 899);
    }
}
