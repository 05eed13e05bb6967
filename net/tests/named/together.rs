//! Batches of several logs in one call.

use crate::fixture::{Named, append};
use crate::served::client::read_to_end;
use crate::served::{One, PATIENCE};
use chiplog::{
    Batch, BatchBuilder, Codec, Durability, ErrorKind, Index, LogOption, Sequence, SessionId, Start,
};
use chiplog_net::client::Client;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::{NOT_APPENDED, from_status};
use std::time::Duration;
use tonic::transport::Channel;

fn batch_of(records: &[&str]) -> Batch {
    let mut builder = BatchBuilder::new();
    records.iter().for_each(|record| _ = builder.push(record.as_bytes()).unwrap());
    builder.build().unwrap()
}

impl Named {
    pub(crate) async fn create_beside(&mut self, name: &str, beside: &str) {
        let request = CreateLogRequest { name: name.to_owned(), beside: beside.to_owned() };
        self.admin.create_log(request).await.unwrap();
    }

    /// The native service, without a client.
    pub(crate) async fn native(&self) -> log_client::LogClient<Channel> {
        log_client::LogClient::connect(format!("http://{}", self.one.address())).await.unwrap()
    }

    /// The last index of each of these logs.
    pub(crate) fn ends<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.logs.info(name).unwrap().last_index.get())
    }
}

fn together(appends: &[(&str, &Batch)]) -> AppendTogetherRequest {
    let append = |(log, batch): &(&str, &Batch)| LogBatch {
        log: (*log).to_owned(),
        log_id: String::new(),
        batch: batch.as_bytes().clone(),
    };
    AppendTogetherRequest { appends: appends.iter().map(append).collect() }
}

#[tokio::test]
async fn batches_of_several_logs_are_appended_in_one_call() {
    let mut named = Named::new().await;
    named.create("from").await.unwrap();
    named.create_beside("to", "from").await;
    let (from, to) = (named.client("from").await, named.client("to").await);
    append(&to, &["before"]).await;
    let (withdraw, deposit) = (batch_of(&["-5"]), batch_of(&["+3", "+2"]));
    let pair = [(&from, &withdraw), (&to, &deposit), (&from, &deposit)];
    let appended = Client::append_together(&pair).await.unwrap();
    let placed: Vec<_> = appended.iter().map(|at| (at.first.get(), at.count, at.durability)).collect();
    let majority = Some(Durability::Majority);
    assert_eq!(placed, [(1, 1, majority), (2, 2, majority), (2, 2, majority)]);
    let read = |all: Vec<(u64, Vec<u8>)>| all.into_iter().map(|(_, data)| data).collect::<Vec<_>>();
    assert_eq!(read(read_to_end(&from, Start::First).await), [b"-5", b"+3", b"+2"]);
    assert_eq!(read(read_to_end(&to, Start::Index(Index(2))).await), [b"+3", b"+2"]);
    assert!(Client::append_together(&[]).await.unwrap().is_empty());
    // Requests other than appends have 64 KiB at most. A batch that unpacks to more is unpacked on another thread.
    let large = batch_of(&[&"x".repeat(200_000)]);
    let mut packed = BatchBuilder::new();
    let packed = packed.codec(Codec::Lz4).push(&[7; 300_000]).unwrap().build().unwrap();
    for batch in [&large, &packed] {
        let appended = Client::append_together(&[(&from, batch), (&to, batch)]).await.unwrap();
        assert_eq!(appended[0].first, appended[1].first);
    }
    assert_eq!(named.ends(["from", "to"]), [5, 5]);
}

/// If one of the batches or logs is refused, none of the others gets its batch, and the answer says that.
#[tokio::test]
async fn batches_of_several_logs_are_refused_as_a_whole() {
    let mut named = Named::new().await;
    let id_of_a = named.create("a").await.unwrap().log_id;
    named.create_beside("b", "a").await;
    named.create_beside("sealed", "a").await;
    named.create("other").await.unwrap();
    named.admin.seal_log(SealLogRequest { name: "sealed".into(), log_id: String::new() }).await.unwrap();
    assert_ne!(named.logs.info("a").unwrap().group, named.logs.info("other").unwrap().group);
    let fine = batch_of(&["x"]);
    let of_session =
        BatchBuilder::new().session(SessionId(1), Sequence(1), 0).push(b"x").unwrap().build().unwrap();
    let half = batch_of(&[&"x".repeat(300_000)]);
    let too_large = batch_of(&[&"x".repeat(1_000_000)]);
    let mut torn = together(&[("a", &fine), ("b", &fine)]);
    torn.appends[1].batch = torn.appends[1].batch.slice(..10);
    let mut mistaken = together(&[("a", &fine), ("b", &fine)]);
    mistaken.appends[1].log_id = id_of_a;
    let many: Vec<_> = (0..257).map(|_| ("a", &fine)).collect();
    let mut native = named.native().await;
    use ErrorKind::{Corrupt, InvalidArgument, NotFound, Sealed, TooLarge};
    let ways = [
        (together(&[("a", &fine), ("sealed", &fine), ("b", &fine)]), Sealed, "log \"sealed\""),
        (together(&[("a", &fine), ("none", &fine)]), NotFound, "\"none\""),
        (together(&[("a", &fine), ("other", &fine)]), InvalidArgument, "--beside a"),
        (together(&[("a", &fine), ("default", &fine)]), InvalidArgument, "\"default\" is no named log"),
        (together(&[("", &fine)]), InvalidArgument, "no named log"),
        (together(&[("a", &fine), ("_group-1", &fine)]), NotFound, "_group-1"),
        (together(&[("a", &fine), ("b", &of_session)]), InvalidArgument, "sessions"),
        (together(&[("a", &fine), ("b", &too_large)]), TooLarge, "batch_bytes_max"),
        (together(&[("a", &half), ("b", &half), ("a", &half), ("b", &half)]), TooLarge, "block_bytes_max"),
        (together(&many), TooLarge, "more than 256 batches"),
        (together(&[("a", &fine), (&"n".repeat(20_000), &fine)]), InvalidArgument, "has 20000 bytes"),
        (together(&[]), InvalidArgument, "no batches"),
        (torn, Corrupt, "log \"b\""),
        (mistaken, NotFound, "\"b\""),
    ];
    for (request, kind, words) in ways {
        let refused = native.append_together(request).await.unwrap_err();
        assert_eq!(from_status(&refused).kind(), kind, "{words}: {refused}");
        assert!(refused.message().contains(words), "{words}: {refused}");
        assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1", "{words}");
    }
    assert_eq!(named.ends(["a", "b", "sealed", "other"]), [0; 4]);
    assert_eq!(named.one.log.last_index(), Index(0));
    let most: Vec<_> = many[1..].to_vec();
    assert_eq!(native.append_together(together(&most)).await.unwrap().into_inner().appended.len(), 256);

    let plain = One::new();
    let mut native = log_client::LogClient::connect(format!("http://{}", plain.address())).await.unwrap();
    let refused = native.append_together(together(&[("a", &fine)])).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), NotFound, "{refused}");
}

/// The client means the logs that it has found, and not others that got their names.
#[tokio::test]
async fn batches_of_several_logs_are_not_for_the_next_log_of_a_name() {
    let mut named = Named::new().await;
    named.create("a").await.unwrap();
    named.create_beside("b", "a").await;
    let (a, b) = (named.client("a").await, named.client("b").await);
    named.delete("b").await;
    let batch = batch_of(&["x"]);
    let gone = Client::append_together(&[(&a, &batch), (&b, &batch)]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    named.create_beside("b", "a").await;
    let gone = Client::append_together(&[(&a, &batch), (&b, &batch)]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    assert_eq!(named.ends(["a", "b"]), [0, 0]);
}

/// The quota of each log holds: the client waits for it within its time limit.
#[tokio::test]
async fn quota_of_one_of_several_logs_holds_all_batches_back() {
    let mut named = Named::new().await;
    named.create("free").await.unwrap();
    named.create_beside("limited", "free").await;
    let log = named.logs.get("limited").unwrap();
    let rate = |rate| log.set_log_options(&[(LogOption::AppendBytesPerSecond, rate)], PATIENCE).unwrap();
    rate(Some(1));
    let batch = batch_of(&["of any size, once"]);
    let (free, limited) = (named.client("free").await, named.client("limited").await);
    let pair = [(&free, &batch), (&limited, &batch)];
    Client::append_together(&pair).await.unwrap();
    let request = together(&[("free", &batch), ("limited", &batch)]);
    let refused = from_status(&named.native().await.append_together(request).await.unwrap_err());
    assert!(
        refused.kind() == ErrorKind::Busy && refused.retry_after() > Some(Duration::from_secs(5)),
        "{refused}"
    );
    let refused = Client::append_together(&pair).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "it would have to wait too long: {refused}");
    assert_eq!(named.ends(["free", "limited"]), [1, 1]);
    rate(None);
    Client::append_together(&pair).await.unwrap();
    assert_eq!(named.ends(["free", "limited"]), [2, 2]);
}

/// Batches that a quota holds back for a while are appended after it.
#[tokio::test]
async fn quota_that_allows_batches_soon_delays_them() {
    let mut named = Named::new().await;
    named.create("free").await.unwrap();
    named.create_beside("limited", "free").await;
    let (log, batch) = (named.logs.get("limited").unwrap(), batch_of(&["of any size, once"]));
    let request = move || together(&[("free", &batch), ("limited", &batch)]);
    log.set_log_options(&[(LogOption::AppendBytesPerSecond, Some(20))], PATIENCE).unwrap();
    let mut native = named.native().await;
    for end in [1, 2] {
        native.append_together(request()).await.unwrap();
        assert_eq!(named.ends(["free", "limited"]), [end, end]);
    }
    // While they wait, the server ends: they are in no log.
    let mut other = native.clone();
    let waiting = tokio::spawn(async move { other.append_together(request()).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    named.one.server.host.drain();
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1");
    assert_eq!(named.ends(["free", "limited"]), [2, 2]);
}

/// A server that ends takes no more batches, and says that it has not taken them.
#[tokio::test]
async fn server_that_ends_takes_no_batches_of_several_logs() {
    let mut named = Named::new().await;
    named.create("a").await.unwrap();
    let mut native = named.native().await;
    named.one.server.host.drain();
    let refused = native.append_together(together(&[("a", &batch_of(&["x"]))])).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1");
}
