//! The service `chiplog.v1.Log` over the network, called as by a client in another language.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Batch, BatchBuilder, Codec, ErrorKind, Index, Log, Options, Sequence, SessionId, Start};
use chiplog_net::service::log::NativeOptions;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::log_client::LogClient;
use chiplog_net::wire::proto::v1::read_request::Start as From;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::{FIRST, from_status, leader_of};
use prost::Message as _;
use served::{One, PATIENCE, Trio};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

async fn client(address: &str) -> LogClient<Channel> {
    let client = LogClient::connect(format!("http://{address}")).await.unwrap();
    client.max_decoding_message_size(64 << 20).max_encoding_message_size(64 << 20)
}

fn batch(records: &[&[u8]]) -> Batch {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push(record).unwrap();
    }
    builder.build().unwrap()
}

fn request(batch: &Batch) -> AppendRequest {
    AppendRequest { batch: batch.as_bytes().clone(), ..AppendRequest::default() }
}

/// Sends all requests at once and returns all answers.
async fn append(client: &mut LogClient<Channel>, requests: Vec<AppendRequest>) -> Vec<Outcome> {
    let mut answers = client.append(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        all.push(answer.result.unwrap());
    }
    all
}

fn first_of(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Appended(appended) => appended.first,
        Outcome::Refused(refused) => panic!("{}", refused.message),
    }
}

fn refusal(outcome: &Outcome) -> ErrorKind {
    match outcome {
        Outcome::Appended(appended) => panic!("appended at {}", appended.first),
        Outcome::Refused(refused) => ErrorKind::from_code(refused.kind).unwrap(),
    }
}

fn read(start: From) -> ReadRequest {
    ReadRequest { start: Some(start), ..Default::default() }
}

/// Reads to the end of the stream: all batches, and the number of replies with batches.
async fn read_all(client: &mut LogClient<Channel>, request: ReadRequest) -> (Vec<StoredBatch>, usize) {
    let mut stream = client.read(request).await.unwrap().into_inner();
    let (mut batches, mut replies) = (Vec::new(), 0);
    while let Some(reply) = stream.message().await.unwrap() {
        replies += usize::from(!reply.batches.is_empty());
        batches.extend(reply.batches);
    }
    (batches, replies)
}

async fn next_batches(stream: &mut Streaming<ReadResponse>) -> Vec<StoredBatch> {
    loop {
        let reply = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap();
        if !reply.batches.is_empty() {
            return reply.batches;
        }
    }
}

#[tokio::test]
async fn appends_are_answered_in_order_and_rejection_keeps_the_stream() {
    let one = One::new();
    let mut client = client(&one.address()).await;
    let mut damaged = request(&batch(&[b"x"]));
    let mut bytes = damaged.batch.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    damaged.batch = bytes.into();
    let probe = AppendRequest::default();
    let requests = vec![request(&batch(&[b"a", b"b"])), damaged, probe, request(&batch(&[b"c"]))];
    let answers = append(&mut client, requests).await;
    assert_eq!(answers.len(), 4);
    assert_eq!(first_of(&answers[0]), 1);
    assert_eq!(refusal(&answers[1]), ErrorKind::Corrupt);
    assert_eq!(first_of(&answers[2]), 0);
    assert_eq!(first_of(&answers[3]), 3);
    assert_eq!(one.log.read(Index(3)).unwrap().data, "c");
}

/// A batch that is decompressed before it is appended keeps its place in its stream, and is rejected with a specific
/// error.
#[tokio::test]
async fn large_compressed_batches_keep_their_order() {
    let options = Options::with_segment_bytes(16 << 20).record_bytes_max(64 << 10);
    let one = One::with(options, NativeOptions::default());
    let mut client = client(&one.address()).await;
    let packed = |codec, record: usize, count: usize| {
        let mut builder = BatchBuilder::new();
        builder.codec(codec);
        for _ in 0..count {
            builder.push(&vec![7; record]).unwrap();
        }
        request(&builder.build().unwrap())
    };
    for codec in [Codec::Lz4, Codec::Zstd] {
        let large = packed(codec, 64 << 10, 20);
        let requests = vec![
            large.clone(),
            request(&batch(&[b"a"])),
            packed(codec, (64 << 10) + 1, 2),
            large,
            request(&batch(&[b"b"])),
        ];
        let next = one.log.last_index().get() + 1;
        let answers = append(&mut client, requests).await;
        let firsts = [0, 1, 3, 4].map(|n| first_of(&answers[n]) - next);
        assert_eq!(firsts, [0, 20, 21, 41]);
        assert_eq!(refusal(&answers[2]), ErrorKind::TooLarge);
    }
}

#[tokio::test]
async fn thousands_of_batches_are_pipelined_at_the_smallest_limits() {
    for (bytes, count) in [(1, 1024), (1 << 20, 1), (16 << 20, 1024)] {
        let mut native = NativeOptions::default();
        (native.append_inflight_bytes, native.append_inflight_max) = (bytes, count);
        let one = One::with(Options::with_segment_bytes(1 << 20), native);
        let mut client = client(&one.address()).await;
        let n = if count == 1 || bytes == 1 { 100 } else { 3000 };
        let requests = (0..n).map(|i| request(&batch(&[format!("record {i}").as_bytes()]))).collect();
        let answers = append(&mut client, requests).await;
        let firsts: Vec<u64> = answers.iter().map(first_of).collect();
        assert_eq!(firsts, (1..=n).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn full_queue_delays_and_loses_nothing() {
    let options = Options::with_segment_bytes(1 << 20).queue_appends_max(1);
    let one = One::with(options, NativeOptions::default());
    let mut client = client(&one.address()).await;
    let requests = (0..200).map(|i| request(&batch(&[format!("{i}").as_bytes()]))).collect();
    let answers = append(&mut client, requests).await;
    assert_eq!(answers.iter().map(first_of).collect::<Vec<_>>(), (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn batch_of_a_session_is_in_the_log_once() {
    let one = One::new();
    let mut client = client(&one.address()).await;
    let session = client.open_session(OpenSessionRequest::default()).await.unwrap().into_inner().session;
    let stamped = |sequence, record: &[u8]| {
        let mut builder = BatchBuilder::new();
        builder.session(SessionId(session), Sequence(sequence), 1).push(record).unwrap();
        request(&builder.build().unwrap())
    };
    let (one_, two) = (stamped(1, b"one"), stamped(2, b"two"));
    let answers = append(&mut client, vec![one_.clone(), two.clone(), one_, stamped(4, b"four"), two]).await;
    assert_eq!([0, 1, 2, 4].map(|n| first_of(&answers[n])), [1, 2, 1, 2]);
    assert_eq!(refusal(&answers[3]), ErrorKind::SequenceGap);
    client.close_session(CloseSessionRequest { session, ..Default::default() }).await.unwrap();
    let answers = append(&mut client, vec![stamped(3, b"three")]).await;
    assert_eq!(refusal(&answers[0]), ErrorKind::SessionExpired);
    assert_eq!((one.log.last_index(), one.log.status().sessions), (Index(2), 0));
}

#[tokio::test]
async fn largest_batch_is_accepted_and_one_byte_more_rejected() {
    let options = Options::with_segment_bytes(1 << 20).batch_bytes_max(10_000).record_bytes_max(9_956);
    let one = One::with(options, NativeOptions::default());
    let mut client = client(&one.address()).await;
    let of = |bytes: usize| request(&batch(&[&vec![7; bytes - 44]]));
    let answers = append(&mut client, vec![of(9_999), of(10_000), of(10_001), of(100)]).await;
    assert_eq!([0, 1, 3].map(|n| first_of(&answers[n])), [1, 2, 3]);
    assert_eq!(refusal(&answers[2]), ErrorKind::TooLarge);
}

#[tokio::test]
async fn too_large_message_ends_its_stream_only() {
    let mut native = NativeOptions::default();
    native.message_bytes_max = 5_000;
    let one = One::with(Options::with_segment_bytes(1 << 20), native);
    let mut client = client(&one.address()).await;
    // The field's tag and length precede the batch.
    let of = |bytes: usize| request(&batch(&[&vec![7; bytes - 44 - 3]]));
    assert_eq!(first_of(&append(&mut client, vec![of(5_000)]).await[0]), 1);
    let answers = client.append(tokio_stream::iter(vec![of(5_001)])).await;
    let ended = answers.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(ended.code(), Code::OutOfRange, "{ended:?}");
    assert_eq!(first_of(&append(&mut client, vec![of(100)]).await[0]), 2);
}

#[tokio::test]
async fn batches_are_read_unchanged_from_every_start() {
    let one = One::new();
    let mut sent = Vec::new();
    for i in 0..20u8 {
        let mut builder = BatchBuilder::new();
        builder.codec([Codec::None, Codec::Lz4, Codec::Zstd][usize::from(i) % 3]);
        for n in 0..3u8 {
            builder.push(&[i, n].repeat(200)).unwrap();
        }
        let batch = builder.build().unwrap();
        one.log.append(&batch).unwrap();
        sent.push(batch);
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = client(&one.address()).await;
    let (all, _) = read_all(&mut client, read(From::Oldest(true))).await;
    assert_eq!(all.len(), 20);
    for (n, got) in all.iter().enumerate() {
        assert_eq!((got.first, &got.batch), (1 + 3 * n as u64, sent[n].as_bytes()));
    }
    let at_9 = all[9].timestamp_nanos;
    // Record 28 is the first of batch 9; 29 is inside it.
    for (start, from) in [
        (From::Index(28), 9),
        (From::Index(29), 9),
        (From::Index(31), 10),
        (From::Index(61), 20),
        (From::TimestampNanos(at_9), 9),
        (From::TimestampNanos(at_9 + 1), 10),
        (From::TimestampNanos(u64::MAX), 20),
        (From::Last(1), 19),
        (From::Last(4), 18),
        (From::Last(u64::MAX), 0),
        (From::Newest(true), 20),
    ] {
        let (got, _) = read_all(&mut client, read(start)).await;
        assert_eq!(got, all[from..], "{start:?}");
    }
}

#[tokio::test]
async fn read_before_the_log_returns_its_first_index() {
    let one = One::with(Options::with_segment_bytes(64 << 10), NativeOptions::default());
    for _ in 0..10 {
        one.log.append(b"x").unwrap();
    }
    one.log.discard(Index(5)).unwrap();
    let mut client = client(&one.address()).await;
    for (index, kind, first) in [
        (0, ErrorKind::Discarded, Some(5)),
        (4, ErrorKind::Discarded, Some(5)),
        (12, ErrorKind::OutOfRange, None),
    ] {
        let mut stream = client.read(read(From::Index(index))).await.unwrap().into_inner();
        let status = stream.message().await.unwrap_err();
        assert_eq!((status.code(), from_status(&status).kind()), (Code::OutOfRange, kind));
        let told = status.metadata().get(FIRST).map(|v| v.to_str().unwrap().parse::<u64>().unwrap());
        assert_eq!(told, first);
    }
    let none = ReadRequest::default();
    assert_eq!(client.read(none).await.unwrap_err().code(), Code::InvalidArgument);
    let mut other = read(From::Oldest(true));
    other.log = "other".into();
    assert_eq!(client.read(other).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn read_ends_at_its_limits() {
    let one = One::new();
    for _ in 0..10 {
        one.log.append(&batch(&[b"a", b"b"])).unwrap();
    }
    let bytes = batch(&[b"a", b"b"]).as_bytes().len() as u64;
    let mut client = client(&one.address()).await;
    for (records_max, count) in [(1, 1), (2, 1), (3, 2), (4, 2), (19, 10), (20, 10), (21, 10)] {
        let request = ReadRequest { records_max, ..read(From::Oldest(true)) };
        assert_eq!(read_all(&mut client, request).await.0.len(), count, "{records_max} records");
    }
    for (bytes_max, count) in [(1, 1), (bytes, 1), (bytes + 1, 2), (10 * bytes - 1, 10), (10 * bytes + 1, 10)]
    {
        let request = ReadRequest { bytes_max, ..read(From::Oldest(true)) };
        assert_eq!(read_all(&mut client, request).await.0.len(), count, "{bytes_max} bytes");
    }
    // Of the first batch only its second record was requested.
    let request = ReadRequest { records_max: 1, ..read(From::Index(2)) };
    assert_eq!(read_all(&mut client, request).await.0.len(), 1);
    // A limit also ends a stream that follows.
    let request = ReadRequest { records_max: 20, follow: true, ..read(From::Oldest(true)) };
    assert_eq!(read_all(&mut client, request).await.0.len(), 10);
}

#[tokio::test]
async fn reply_size_is_bounded() {
    let mut native = NativeOptions::default();
    native.reply_bytes = 10_000;
    let one = One::with(Options::with_segment_bytes(1 << 20), native);
    for _ in 0..10 {
        one.log.append(&[1; 4_000]).unwrap();
    }
    let (batches, replies) = read_all(&mut client(&one.address()).await, read(From::Oldest(true))).await;
    assert_eq!((batches.len(), replies), (10, 4)); // three at a time
}

#[tokio::test]
async fn stream_follows_and_sends_keep_alives() {
    let one = One::new();
    one.log.append(b"one").unwrap();
    let mut client = client(&one.address()).await;
    let request = ReadRequest { follow: true, keep_alive_millis: 20, ..read(From::Index(1)) };
    let mut stream = client.read(request).await.unwrap().into_inner();
    let begin = stream.message().await.unwrap().unwrap();
    assert_eq!((begin.batches.len(), begin.next), (0, 1));
    assert_eq!(next_batches(&mut stream).await[0].first, 1);
    let quiet = stream.message().await.unwrap().unwrap();
    assert_eq!((quiet.batches.len(), quiet.first, quiet.last, quiet.next), (0, 1, 1, 2));
    for i in 2..50 {
        one.log.append(b"more").unwrap();
        assert_eq!(next_batches(&mut stream).await[0].first, i);
    }
    one.log.close().unwrap();
    loop {
        match stream.message().await {
            Ok(Some(reply)) => assert!(reply.batches.is_empty()),
            Ok(None) => panic!("the stream ended as if the log ended"),
            Err(status) => return assert_eq!(from_status(&status).kind(), ErrorKind::Closed),
        }
    }
}

#[tokio::test]
async fn read_waits_until_the_replica_has_the_record() {
    let one = One::new();
    one.log.append(b"one").unwrap();
    let mut client = client(&one.address()).await;
    let request = ReadRequest { min_index: 3, keep_alive_millis: 20, ..read(From::Last(1)) };
    let mut stream = client.read(request).await.unwrap().into_inner();
    let waits = stream.message().await.unwrap().unwrap();
    assert_eq!((waits.batches.len(), waits.last, waits.next), (0, 1, 0));
    one.log.append(b"two").unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().next, 0);
    one.log.append(b"three").unwrap();
    assert_eq!(next_batches(&mut stream).await[0].first, 3);
    assert!(stream.message().await.unwrap().is_none());
}

#[tokio::test]
async fn info_watch_discard_and_server_info() {
    let one = One::new();
    let mut client = client(&one.address()).await;
    let mut watch =
        client.watch(WatchRequest { interval_millis: 10, ..Default::default() }).await.unwrap().into_inner();
    let told = watch.message().await.unwrap().unwrap().info.unwrap();
    assert_eq!((told.first, told.last), (1, 0));
    for _ in 0..3 {
        one.log.append(b"x").unwrap();
    }
    while watch.message().await.unwrap().unwrap().info.unwrap().last < 3 {}
    client.discard(DiscardRequest { first: 3, ..Default::default() }).await.unwrap();
    while watch.message().await.unwrap().unwrap().info.unwrap().first < 3 {}
    for allow_stale in [false, true] {
        let info = client.info(InfoRequest { allow_stale, ..Default::default() }).await.unwrap().into_inner();
        assert_eq!((info.first, info.last, info.node, info.leader_node), (3, 3, 1, 1));
        assert_eq!(u128::from_str_radix(&info.log_id, 16).unwrap(), one.log.log_id().get());
    }
    let told = client.server_info(ServerInfoRequest::default()).await.unwrap().into_inner();
    assert_eq!((told.protocol_min, told.protocol_max, told.node), (1, 1, 1));
    assert_eq!(told.batch_bytes_max, one.log.options().batch_bytes_max);
    let unknown = client.info(InfoRequest { log: "other".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let requests = vec![AppendRequest { log: "other".into(), ..Default::default() }];
    let mut answers = client.append(tokio_stream::iter(requests)).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::NotFound);
}

/// Keeps the log from answering anything, until the returned sender is used or dropped.
fn stalled(log: &Log) -> std::sync::mpsc::Sender<()> {
    loop {
        let (release, gate) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let here = std::thread::current().id();
        // On the log's own thread, unless the answer existed before the callback.
        log.submit(b"x").unwrap().on_complete(move |_| {
            let elsewhere = std::thread::current().id() != here;
            tell.send(elsewhere).unwrap();
            if elsewhere {
                let _ = gate.recv();
            }
        });
        if told.recv().unwrap() {
            return release;
        }
    }
}

#[tokio::test]
async fn call_above_the_limit_of_waiting_calls_is_busy() {
    let mut native = NativeOptions::default();
    assert_eq!(native.calls_max, 256, "as in docs/security.md");
    native.calls_max = 2;
    let one = One::with(Options::with_segment_bytes(1 << 20), native);
    let mut client = client(&one.address()).await;
    let release = stalled(&one.log);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let mut client = client.clone();
        calls.spawn(async move { client.open_session(OpenSessionRequest::default()).await });
    }
    let refused = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!((from_status(&refused).kind(), refused.code()), (ErrorKind::Busy, Code::ResourceExhausted));
    assert!(refused.message().contains("2 calls"), "{refused}");
    // Calls that need not wait are not counted.
    client.info(InfoRequest { allow_stale: true, ..Default::default() }).await.unwrap();
    release.send(()).unwrap();
    while let Some(answered) = calls.join_next().await {
        answered.unwrap().unwrap();
    }
    client.open_session(OpenSessionRequest::default()).await.unwrap();
    assert_eq!(one.log.status().sessions, 3);
}

/// The status with which a stream ends, or is rejected.
async fn end<T>(called: Result<Response<Streaming<T>>, Status>) -> Status {
    match called {
        Ok(stream) => stream.into_inner().message().await.map(drop).unwrap_err(),
        Err(status) => status,
    }
}

/// All calls whose request names a log, according to the descriptors.
fn calls_that_name_a_log() -> BTreeSet<String> {
    let files = prost_types::FileDescriptorSet::decode(chiplog_net::wire::proto::DESCRIPTORS).unwrap().file;
    let mut calls = BTreeSet::new();
    for file in files.iter().filter(|file| file.package() == "chiplog.v1") {
        let names_one = |request: &str| {
            let message = file.message_type.iter().find(|m| request == format!(".chiplog.v1.{}", m.name()));
            message.is_some_and(|m| m.field.iter().any(|field| field.name() == "log"))
        };
        for service in &file.service {
            let named = service.method.iter().filter(|method| names_one(method.input_type()));
            calls.extend(named.map(|method| format!("{}.{}", service.name(), method.name())));
        }
    }
    calls
}

#[tokio::test]
async fn another_log_is_not_found_by_any_call() {
    let one = One::new();
    let log = || "other".to_owned();
    let at = format!("http://{}", one.address());
    let mut client = client(&one.address()).await;
    let mut follow = FollowClient::connect(at.clone()).await.unwrap();
    let mut admin = AdminClient::connect(at).await.unwrap();
    let append = tokio_stream::iter([AppendRequest { log: log(), ..Default::default() }]);
    let changes = vec![MemberChange { change: Some(member_change::Change::Promote(1)) }];
    let told = BTreeMap::from([
        ("Log.Append", end(client.append(append).await).await),
        ("Log.Read", end(client.read(ReadRequest { log: log(), ..read(From::Oldest(true)) }).await).await),
        ("Log.Discard", client.discard(DiscardRequest { log: log(), first: 1 }).await.unwrap_err()),
        ("Log.Info", client.info(InfoRequest { log: log(), allow_stale: false }).await.unwrap_err()),
        ("Log.Watch", end(client.watch(WatchRequest { log: log(), interval_millis: 0 }).await).await),
        ("Log.OpenSession", client.open_session(OpenSessionRequest { log: log() }).await.unwrap_err()),
        (
            "Log.CloseSession",
            client.close_session(CloseSessionRequest { log: log(), session: 1 }).await.unwrap_err(),
        ),
        ("Follow.Follow", end(follow.follow(FollowRequest { log: log(), ..Default::default() }).await).await),
        (
            "Follow.ReadObject",
            end(follow.read_object(ReadObjectRequest { log: log(), ..Default::default() }).await).await,
        ),
        (
            "Follow.ObjectSize",
            follow.object_size(ObjectSizeRequest { log: log(), name: String::new() }).await.unwrap_err(),
        ),
        ("Admin.Status", admin.status(StatusRequest { log: log() }).await.unwrap_err()),
        (
            "Admin.ChangeMembers",
            admin
                .change_members(ChangeMembersRequest { log: log(), changes, timeout_millis: 1, force: false })
                .await
                .unwrap_err(),
        ),
        (
            "Admin.TransferLeader",
            admin
                .transfer_leader(TransferLeaderRequest { log: log(), to: 1, timeout_millis: 1 })
                .await
                .unwrap_err(),
        ),
        ("Admin.LogOptions", admin.log_options(LogOptionsRequest { log: log() }).await.unwrap_err()),
        (
            "Admin.SetLogOptions",
            admin
                .set_log_options(SetLogOptionsRequest { log: log(), ..Default::default() })
                .await
                .unwrap_err(),
        ),
        ("Admin.CutObjects", admin.cut_objects(CutObjectsRequest { log: log(), upto: 0 }).await.unwrap_err()),
        ("Admin.Scrub", end(admin.scrub(ScrubRequest { log: log() }).await).await),
    ]);
    // ServerInfo is about the default log then, and does not list the name.
    let about = client.server_info(ServerInfoRequest { log: log() }).await.unwrap().into_inner();
    assert_eq!(about.logs, ["default"]);
    let named = told.keys().map(ToString::to_string).chain(["Log.ServerInfo".to_owned()]);
    assert_eq!(named.collect::<BTreeSet<_>>(), calls_that_name_a_log());
    for (call, status) in told {
        assert_eq!(from_status(&status).kind(), ErrorKind::NotFound, "{call}: {status}");
        assert!(
            status.code() == Code::NotFound && status.message().contains("\"other\""),
            "{call}: {status}"
        );
    }
    let stale = client.info(InfoRequest { log: log(), allow_stale: true }).await.unwrap_err();
    assert_eq!(stale.code(), Code::NotFound);
    assert_eq!(one.log.status().sessions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_redirect_appends_and_serve_reads() {
    let trio = Trio::new();
    let leader = trio.leader(0);
    let follower = trio.follower();
    let index = trio.log(leader).append(b"hello").unwrap().get();
    let mut client = client(&trio.address(follower)).await;
    let answers = append(&mut client, vec![request(&batch(&[b"no"]))]).await;
    let Outcome::Refused(refused) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(refused.kind, ErrorKind::NotLeader.code());
    assert_eq!(
        (&refused.leader, refused.outcome_unknown, refused.retryable),
        (&trio.address(leader), false, true)
    );
    let discard = client.discard(DiscardRequest { first: 1, ..Default::default() }).await.unwrap_err();
    assert_eq!(leader_of(&discard), Some(trio.address(leader)));
    let request = ReadRequest { min_index: index, ..read(From::Index(index)) };
    assert_eq!(read_all(&mut client, request).await.0.len(), 1);
    let info = client.info(InfoRequest::default()).await.unwrap().into_inner();
    assert_eq!((info.last, info.node, info.leader), (index, follower, trio.address(leader)));
    let told = client.server_info(ServerInfoRequest::default()).await.unwrap().into_inner();
    assert_eq!(told.servers.iter().map(|s| s.address.clone()).collect::<Vec<_>>(), trio.addresses());
    assert_eq!(told.servers.iter().filter(|s| s.leader).map(|s| s.node).collect::<Vec<_>>(), [leader]);
}

/// The log accepts nothing: the stream must stop reading, so that the client is slowed down and memory stays bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_stream_is_not_read_further() {
    let trio = Trio::new();
    let leader = trio.leader(0);
    let mut client = client(&trio.address(leader)).await;
    let (requests, receiver) = mpsc::channel(1);
    let mut answers = client.append(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    trio.network.disconnect(chiplog::NodeId(leader));
    let big = request(&batch(&[&vec![1; 100_000]]));
    let begun = Instant::now();
    let mut sent = 0u32;
    // Until the leader notices that it is alone: 16 MiB in flight, plus the buffers of HTTP/2.
    while begun.elapsed() < Duration::from_millis(250) && sent < 2_000 {
        if tokio::time::timeout(Duration::from_millis(50), requests.send(big.clone())).await.is_ok() {
            sent += 1;
        }
    }
    assert!(sent < 250, "{sent} batches of 100 kB were accepted");
    let answer = answers.message().await.unwrap().unwrap().result.unwrap();
    assert_eq!(refusal(&answer), ErrorKind::Unavailable);
}

#[tokio::test]
async fn streams_of_disconnected_clients_hold_nothing() {
    let one = One::new();
    one.log.append(b"x").unwrap();
    let before = Arc::strong_count(&one.server.host);
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut client = client(&one.address()).await;
        let follow = ReadRequest { follow: true, ..read(From::Oldest(true)) };
        let mut reading = client.read(follow).await.unwrap().into_inner();
        next_batches(&mut reading).await;
        let waiting = ReadRequest { min_index: 1 << 40, follow: true, ..read(From::Newest(true)) };
        let waiting = client.read(waiting).await.unwrap().into_inner();
        let watch = client.watch(WatchRequest::default()).await.unwrap().into_inner();
        let (requests, receiver) = mpsc::channel(1);
        let answers = client.append(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        requests.send(request(&batch(&[b"y"]))).await.unwrap();
        kept.push((reading, waiting, watch, requests, answers));
    }
    assert!(Arc::strong_count(&one.server.host) >= before + 40);
    drop(kept);
    let end = Instant::now() + PATIENCE;
    while Arc::strong_count(&one.server.host) > before {
        assert!(Instant::now() < end, "{} of {before}", Arc::strong_count(&one.server.host));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(one.log.reader(Start::First).is_ok());
}

/// Submitted appends are answered; then every stream reports that the server is shutting down.
#[tokio::test]
async fn streams_end_properly_at_shutdown() {
    let one = One::new();
    let mut client = client(&one.address()).await;
    let follow = ReadRequest { follow: true, ..read(From::Oldest(true)) };
    let mut reading = client.read(follow).await.unwrap().into_inner();
    let waiting = ReadRequest { min_index: 9, ..read(From::Oldest(true)) };
    let mut waiting = client.read(waiting).await.unwrap().into_inner();
    let mut watch = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    let (requests, receiver) = mpsc::channel(1);
    let mut answers = client.append(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    requests.send(request(&batch(&[b"x"]))).await.unwrap();
    next_batches(&mut reading).await;
    one.server.host.drain();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!(first_of(&answer.result.unwrap()), 1);
    let ended = [
        answers.message().await.unwrap_err(),
        reading.message().await.unwrap_err(),
        waiting.message().await.unwrap_err(),
        loop {
            if let Err(status) = watch.message().await {
                break status;
            }
        },
    ];
    assert!(ended.iter().all(|status| status.code() == Code::Unavailable), "{ended:?}");
}

/// The wait for a record that this replica lacks became a busy loop once the log was closed: one read kept a runtime
/// thread busy forever.
#[tokio::test]
async fn read_that_waits_for_a_record_ends_with_the_log() {
    let one = One::new();
    let mut client = client(&one.address()).await;
    let waits = || ReadRequest { min_index: 1000, keep_alive_millis: 50, ..read(From::Oldest(true)) };
    let mut stream = client.read(waits()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().next, 0, "it waits");
    one.log.close().unwrap();
    let ended = async |stream: &mut Streaming<ReadResponse>| {
        loop {
            match tokio::time::timeout(PATIENCE, stream.message()).await.expect("it never ends") {
                Ok(Some(keep_alive)) => assert!(keep_alive.batches.is_empty()),
                Ok(None) => panic!("it ended as if everything had been read"),
                Err(status) => return from_status(&status).kind(),
            }
        }
    };
    assert_eq!(ended(&mut stream).await, ErrorKind::Closed);
    let refused = match client.read(waits()).await {
        Ok(stream) => ended(&mut stream.into_inner()).await,
        Err(status) => from_status(&status).kind(),
    };
    assert_eq!(refused, ErrorKind::Closed);
}
