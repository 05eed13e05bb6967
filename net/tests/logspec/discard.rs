//! Discard.

use crate::support::{both, info, one};
use chiplog::{Index, Options};
use chiplog_net::service::logspec::Limits;
use chiplog_net::wire::proto::logspec::DiscardRequest;
use chiplog_net::wire::proto::logspec::discard_reply::{Ok as Discarded, Reply};
use tonic::Code;

#[tokio::test]
async fn discard_within_the_log_again_and_lower() {
    for server in both().await {
        let mut client = server.client().await;
        server.appender().await.append((0..10).map(|n| format!("{n}"))).await;
        for (first, wanted) in [(4, 4), (4, 4), (2, 4), (0, 4), (1, 4), (10, 10), (11, 11)] {
            let reply = client.discard(DiscardRequest { first_index: first }).await.unwrap().into_inner();
            assert_eq!(reply.reply, Some(Reply::Ok(Discarded {})));
            let stand = info(&mut client, false).await;
            assert_eq!((stand.first_index, stand.last_index), (wanted, 10), "discarded below {first}");
        }
    }
}

#[tokio::test]
async fn discard_beyond_the_end_extends_the_log() {
    for server in both().await {
        let mut client = server.client().await;
        let mut appender = server.appender().await;
        appender.append(["a", "b"]).await;
        client.discard(DiscardRequest { first_index: 1000 }).await.unwrap();
        let stand = info(&mut client, false).await;
        assert_eq!((stand.first_index, stand.last_index), (1000, 999));
        assert_eq!(appender.append(["c", "d"]).await, [1000, 1001]);
        client.discard(DiscardRequest { first_index: 500 }).await.unwrap();
        assert_eq!(server.log.read(Index(1000)).unwrap().data, "c");
        let status = client.discard(DiscardRequest { first_index: u64::MAX }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn discard_frees_space() {
    let server = one(Options::with_segment_bytes(1 << 20), Limits::default()).await;
    let mut client = server.client().await;
    let mut appender = server.appender().await;
    for _ in 0..30 {
        appender.append([vec![1; 100_000]]).await;
    }
    let before = info(&mut client, true).await;
    assert!(before.bytes_used >= 3_000_000 && before.bytes_total > before.bytes_used);
    client.discard(DiscardRequest { first_index: 31 }).await.unwrap();
    while info(&mut client, true).await.bytes_used > 200_000 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
