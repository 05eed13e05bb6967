//! The limits of a listener, each at its boundary.

use crate::pki::Authority;
use crate::support::{MESSAGE_BYTES_MAX, PATIENCE, Served};
use bytes::Bytes;
use chiplog::BatchBuilder;
use chiplog_net::listener::Settings;
use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
use chiplog_net::listener::tls::ServerTls;
use chiplog_net::served::refusals::Refusal;
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{InfoRequest, ReadRequest as LogspecRead};
use chiplog_net::wire::proto::v1::log_client::LogClient as NativeClient;
use chiplog_net::wire::proto::v1::read_request::Start;
use chiplog_net::wire::proto::v1::{AppendRequest as NativeAppend, ReadRequest};
use chiplog_net::wire::status::from_status;
use http_body::Body as _;
use prost::Message as _;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

async fn info(channel: &Channel) -> Result<(), Status> {
    let mut client = LogClient::new(channel.clone());
    let asked = client.info(InfoRequest { allow_stale: true });
    tokio::time::timeout(PATIENCE, asked).await.expect("no answer").map(drop)
}

/// Reads to the end of a connection, which must end.
async fn ends(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let mut sink = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut sink))
        .await
        .expect("the connection stays open");
    begun.elapsed()
}

#[tokio::test]
async fn connections() {
    let mut settings = Settings::default();
    settings.limits.connections = 3;
    let server = Served::start(settings).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let channel = server.plain().await;
        info(&channel).await.unwrap();
        open.push(channel);
    }
    server.refused(Refusal::Connections, 0).await;
    assert!(server.ask_plainly().await.is_err());
    // A client may try more than once; connected ones continue.
    assert!(server.refusals.read(Refusal::Connections) >= 1);
    for channel in &open {
        info(channel).await.unwrap();
    }
    open.pop();
    let begun = Instant::now();
    while server.ask_plainly().await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "its place is not reused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One machine could take all places.
#[tokio::test]
async fn connections_of_an_address() {
    let mut settings = Settings::default();
    settings.limits.connections_per_address = 2;
    let server = Served::start(settings).await;
    let mut open = [server.plain().await, server.plain().await].to_vec();
    for channel in &open {
        info(channel).await.unwrap();
    }
    server.refused(Refusal::ConnectionsOfAddress, 0).await;
    assert!(server.ask_plainly().await.is_err());
    assert!(server.refusals.read(Refusal::ConnectionsOfAddress) >= 1);
    // Other addresses have their own places.
    let elsewhere = server.endpoint().local_address(Some([127, 0, 0, 2].into())).connect().await.unwrap();
    info(&elsewhere).await.unwrap();
    for channel in &open {
        info(channel).await.unwrap();
    }
    assert_eq!(server.refusals.read(Refusal::Connections), 0);
    open.pop();
    let begun = Instant::now();
    while server.ask_plainly().await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "its place is not reused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn streams_of_a_connection() {
    let mut settings = Settings::default();
    settings.limits.streams = 2;
    let server = Served::start(settings).await;
    let channel = server.plain().await;
    info(&channel).await.unwrap(); // the server's settings have arrived
    let follow = || async {
        let mut client = LogClient::new(channel.clone());
        client.info_stream(InfoRequest { allow_stale: true }).await.unwrap().into_inner()
    };
    let first = follow().await;
    info(&channel).await.unwrap();
    let second = follow().await;
    // One more waits at the client, until one of them ends; other connections are not affected.
    let mut client = LogClient::new(channel.clone());
    let third = client.info(InfoRequest { allow_stale: true });
    tokio::pin!(third);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut third).await.is_err());
    info(&server.plain().await).await.unwrap();
    drop(second);
    tokio::time::timeout(PATIENCE, third).await.expect("it still waits").unwrap();
    drop(first);
}

#[tokio::test]
async fn header_bytes() {
    let mut settings = Settings::default();
    settings.limits.header_bytes = 2000;
    let server = Served::start(settings).await;
    let channel = server.plain().await;
    let ask = |padding: usize| {
        let mut client = LogClient::new(channel.clone());
        async move {
            let mut request = Request::new(InfoRequest { allow_stale: true });
            request.metadata_mut().insert("x", "p".repeat(padding).parse().unwrap());
            tokio::time::timeout(PATIENCE, client.info(request)).await.expect("no answer").map(drop)
        }
    };
    // The other headers take some hundred bytes, the same for each call: the limit is exact, below the option.
    let (mut good, mut bad) = (0, 2000);
    ask(good).await.unwrap();
    ask(bad).await.unwrap_err();
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        if ask(middle).await.is_ok() { good = middle } else { bad = middle }
    }
    println!("{good} bytes in one header are accepted, {bad} are not");
    assert!((1000..2000 - 33).contains(&good), "{good}");
    ask(good).await.unwrap();
    ask(bad).await.unwrap_err();
    info(&channel).await.unwrap();
}

#[tokio::test]
async fn handshake_time() {
    let mut settings = Settings::default();
    settings.limits.handshake = Duration::MAX;
    Served::start(settings.clone()).await.ask_plainly().await.unwrap();
    settings.refusals = Default::default();
    settings.limits.handshake = Duration::from_millis(300);
    let mut plain = Served::start(settings.clone()).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // All but one byte of it is not enough.
    for (n, said) in [(1, &b""[..]), (2, &preface[..23])] {
        let mut stream = TcpStream::connect(&plain.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        assert!(ends(&mut stream).await >= Duration::from_millis(250));
        plain.refused(Refusal::Handshake, n).await;
    }
    // All of it is enough; the connection is still open much later.
    let mut stream = TcpStream::connect(&plain.address).await.unwrap();
    stream.write_all(preface).await.unwrap();
    let reading = async {
        let mut sink = [0; 100];
        while stream.read(&mut sink).await.unwrap() > 0 {}
    };
    assert!(tokio::time::timeout(Duration::from_millis(900), reading).await.is_err(), "it was closed");
    plain.refused(Refusal::Handshake, 2).await;

    let ours = Authority::new();
    settings.tls = Some(ServerTls::new(&ours.leaf(&["a"]).identity(None)).unwrap());
    settings.refusals = Default::default();
    plain = Served::start(settings).await;
    let mut stream = TcpStream::connect(&plain.address).await.unwrap();
    stream.write_all(&[22, 3, 1]).await.unwrap(); // how TLS begins
    assert!(ends(&mut stream).await >= Duration::from_millis(250));
    plain.refused(Refusal::Handshake, 1).await;
}

/// Calls until there is an answer: a request can fail because its idle connection ends at the same time.
async fn info_at_last(channel: &Channel) {
    let begun = Instant::now();
    while let Err(status) = info(channel).await {
        assert!(begun.elapsed() < PATIENCE, "{status}");
    }
}

/// Connections without a call end, also those that had one; an open call keeps its connection. A slow machine may end a
/// connection before its first request: counts are lower bounds.
#[tokio::test]
async fn idle_time() {
    let mut settings = Settings::default();
    settings.limits.idle = Some(Duration::from_millis(400));
    let server = Served::start(settings).await;
    let ended = || server.refusals.read(Refusal::Idle);
    let idle = server.plain().await;
    server.refused_at_least(Refusal::Idle, 1).await;
    // The client reconnects when needed.
    info_at_last(&idle).await;
    let mut client = LogClient::new(server.plain().await);
    let mut held = loop {
        if let Ok(held) = client.info_stream(InfoRequest { allow_stale: true }).await {
            break held.into_inner();
        }
    };
    let before = ended();
    for more in 1..=2 {
        info_at_last(&idle).await;
        server.refused_at_least(Refusal::Idle, before + more).await;
    }
    while let Ok(answer) = tokio::time::timeout(Duration::from_millis(50), held.message()).await {
        assert!(answer.unwrap().is_some(), "a call that was open ended");
    }
    let before = ended();
    drop(held);
    server.refused_at_least(Refusal::Idle, before + 1).await;
}

fn batch(record: &[u8]) -> Bytes {
    BatchBuilder::new().push(record).unwrap().build().unwrap().as_bytes().clone()
}

async fn fill(server: &Served, bytes: usize) {
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || {
        let record = vec![7; 64 << 10];
        for _ in 0..bytes / record.len() {
            log.append(&record).unwrap();
        }
    })
    .await
    .unwrap();
}

/// A client that opens a read and reads nothing is rejected, and holds nothing; one that keeps reading is not rejected.
#[tokio::test]
async fn slow_readers() {
    let mut settings = Settings::default();
    settings.limits.slow_reader = Some(Duration::from_secs(2));
    let server = Served::start(settings).await;
    fill(&server, 8 << 20).await;
    let channel =
        || async { server.endpoint().initial_stream_window_size(128 << 10).connect().await.unwrap() };
    let (of_logspec, of_native) = (channel().await, channel().await);
    let mut logspec = LogClient::new(of_logspec.clone()).max_decoding_message_size(64 << 20);
    let mut first = logspec.read(LogspecRead { next_index: 1 }).await.unwrap().into_inner();
    let mut native = NativeClient::new(of_native.clone()).max_decoding_message_size(64 << 20);
    let all = ReadRequest { start: Some(Start::Oldest(true)), ..ReadRequest::default() };
    let mut second = native.read(all.clone()).await.unwrap().into_inner();
    server.refused(Refusal::SlowReader, 2).await;
    // Messages in transit arrive; then the stream ends with the specific error.
    async fn last<T>(stream: &mut tonic::Streaming<T>) -> Status {
        loop {
            match tokio::time::timeout(PATIENCE, stream.message()).await.expect("no end") {
                Ok(Some(_)) => {}
                Ok(None) => panic!("all of it arrived"),
                Err(status) => return status,
            }
        }
    }
    for status in [last(&mut first).await, last(&mut second).await] {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().starts_with("slow reader"), "{status}");
        assert_eq!(from_status(&status).kind(), chiplog::ErrorKind::Timeout);
    }
    // A client that reads something now and then is not slow, however long the whole answer takes.
    let mut native = NativeClient::new(channel().await).max_decoding_message_size(64 << 20);
    let mut third = native.read(all).await.unwrap().into_inner();
    let (begun, mut records) = (Instant::now(), 0);
    while let Some(message) = third.message().await.unwrap() {
        records += message.batches.len();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    println!("{records} batches in {:?}", begun.elapsed());
    assert_eq!(records, 128);
    server.refused(Refusal::SlowReader, 2).await;
}

/// A client that reads nothing at all, not even the end, loses its connection.
#[tokio::test]
async fn hanging_reader_loses_its_connection() {
    let mut settings = Settings::default();
    settings.limits.slow_reader = Some(Duration::from_millis(300));
    let server = Served::start(settings).await;
    fill(&server, 8 << 20).await;
    let channel = server.endpoint().initial_stream_window_size(128 << 10).connect().await.unwrap();
    let mut client = LogClient::new(channel).max_decoding_message_size(64 << 20);
    let mut hanging = client.read(LogspecRead { next_index: 1 }).await.unwrap().into_inner();
    server.refused(Refusal::SlowReader, 1).await;
    let begun = Instant::now();
    // Its connection is closed: the stream ends with a transport error.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let status = loop {
        match tokio::time::timeout(PATIENCE, hanging.message()).await.expect("no end") {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    println!("after {:?}: {status}", begun.elapsed());
    assert!(!status.message().starts_with("slow reader"), "{status}");
}

/// An answer that is completely in HTTP/2, and for which its client leaves no window, was not tracked: the call had
/// ended.
#[tokio::test]
async fn last_piece_of_an_answer_is_tracked() {
    let mut settings = Settings::default();
    settings.limits.slow_reader = Some(Duration::from_millis(300));
    let server = Served::start(settings).await;
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || log.append(&[7; 40 << 10]).unwrap()).await.unwrap();
    let channel = server.endpoint().initial_stream_window_size(16 << 10).connect().await.unwrap();
    let request = ReadRequest { start: Some(Start::Oldest(true)), records_max: 1, ..ReadRequest::default() };
    let mut answer = NativeClient::new(channel.clone()).read(request).await.unwrap().into_inner();
    server.refused(Refusal::SlowReader, 1).await;
    // Its client still reads nothing: the connection ends, with all pending pieces.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let status = loop {
        match tokio::time::timeout(PATIENCE, answer.message()).await.expect("no end") {
            Ok(message) => assert!(message.is_some(), "all of it arrived"),
            Err(status) => break status,
        }
    };
    println!("{status}");
    server.refused(Refusal::SlowReader, 1).await;
}

/// A body that sends the test's chunks, and counts the bytes that were sent.
struct Sent(mpsc::Receiver<Bytes>, Arc<AtomicUsize>);

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let next = self.0.poll_recv(context);
        if let Poll::Ready(Some(bytes)) = &next {
            self.1.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        next.map(|bytes| bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// Four streams without room filled the window of their connection. Nothing else arrived over it, and a client in the
/// middle of a message was considered stalled.
#[tokio::test]
async fn waiting_streams_leave_room_for_others_of_their_connection() {
    let (bytes, connection_bytes, wait) = (64 << 20, MESSAGE_BYTES_MAX, PATIENCE * 2);
    let limits = BudgetLimits::default().bytes(bytes).connection_bytes(connection_bytes).wait(wait);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_budget(settings, budget.clone()).await;
    let channel = server.plain().await;
    // One stream uses all that a connection may have, and is in the middle of its message.
    let message = {
        let message = AppendRequest::new(1, vec![vec![7; 64 << 10]; 15]).encode_to_vec();
        [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
    };
    let (middle, taken) = (message.len() / 2, Arc::<AtomicUsize>::default());
    let (first, body) = mpsc::channel(4);
    let mut answer = append(&channel, Sent(body, Arc::default()));
    first.send(message[..middle].to_vec().into()).await.unwrap();
    until("it has its share", || budget.used_bytes() >= message.len() - 1024).await;
    // Others send as much as they may.
    let chunk = Bytes::from(message.clone());
    let mut others = Vec::new();
    for _ in 0..8 {
        let (sender, body) = mpsc::channel(8);
        (0..6).for_each(|_| sender.try_send(chunk.clone()).unwrap());
        others.push((sender, append(&channel, Sent(body, taken.clone()))));
    }
    until("they send", || taken.load(Ordering::Relaxed) >= 8 * chunk.len()).await;
    // Until they make no more progress.
    let mut before = 0;
    while before < taken.load(Ordering::Relaxed) {
        before = taken.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    println!("{before} bytes are in transit");
    info(&channel).await.unwrap();
    first.send(message[middle..].to_vec().into()).await.unwrap();
    let answered = tokio::time::timeout(PATIENCE, answer.recv()).await.expect("the rest does not arrive");
    assert!(answered.is_some_and(|bytes| !bytes.is_empty()));
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not yet");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts an append with this body; the answer arrives in pieces.
fn append(channel: &Channel, body: Sent) -> mpsc::Receiver<Bytes> {
    let (answers, answered) = mpsc::channel(4);
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = "http://a/logspec.Log/Append".parse().unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    let mut channel = channel.clone();
    tokio::spawn(async move {
        poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let mut answer = channel.call(request).await.unwrap().into_body();
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await {
            if let Ok(data) = frame.into_data() {
                let _ = answers.send(data).await;
            }
        }
    });
    answered
}

/// A body that sends all of a message except its last byte, and waits until it must end.
struct Announced(Option<Bytes>, oneshot::Receiver<()>);

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        match self.0.take() {
            Some(head) => Poll::Ready(Some(Ok(http_body::Frame::data(head)))),
            None => Pin::new(&mut self.1).poll(context).map(|_| None),
        }
    }
}

/// Starts an append whose first message has this length, and lets the server wait for its last byte until the returned
/// sender is dropped.
fn announce(channel: &Channel, service: &str, length: u32) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel();
    let head = [&[0], &length.to_be_bytes()[..], &vec![7; length as usize - 1]].concat();
    let mut request = http::Request::new(Body::new(Announced(Some(head.into()), stopped)));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("http://a/{service}/Append").parse().unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    let mut channel = channel.clone();
    tokio::spawn(async move {
        poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let mut answer = channel.call(request).await.unwrap().into_body();
        while poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await.is_some() {}
    });
    stop
}

/// Messages hold room for their received bytes until they are answered, up to the limit of their connection and of all.
/// One more waits, and is rejected with a specific error. Both services share the limit.
#[tokio::test]
async fn inflight_bytes() {
    const LIMIT: u32 = 32 << 10;
    let limits = BudgetLimits::default()
        .bytes(2 * LIMIT as usize)
        .connection_bytes(LIMIT as usize)
        .wait(Duration::from_millis(400))
        .share_percent(100);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_budget(settings, budget.clone()).await;
    let holds = async |bytes: u32| {
        let begun = Instant::now();
        while budget.used_bytes() != bytes as usize {
            assert!(begun.elapsed() < PATIENCE, "{} of {bytes}", budget.used_bytes());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let append = async |channel: &Channel| {
        let (requests, stream) = mpsc::channel(1);
        requests.send(NativeAppend { batch: batch(b"x"), ..NativeAppend::default() }).await.unwrap();
        let mut answers =
            NativeClient::new(channel.clone()).append(ReceiverStream::new(stream)).await?.into_inner();
        let answer =
            tokio::time::timeout(PATIENCE, answers.message()).await.expect("neither answer nor refusal");
        answer.map(|answer| assert!(answer.is_some_and(|a| a.result.is_some())))
    };
    let (first, second) = (server.plain().await, server.plain().await);
    let third = server.endpoint().local_address(Some([127, 0, 0, 2].into())).connect().await.unwrap();

    // The connection's limit: all but one piece is in use, so the last one still fits; then it is full.
    let held = announce(&first, "logspec.Log", LIMIT - 1024);
    holds(LIMIT - 1024).await;
    append(&first).await.unwrap();
    holds(LIMIT - 1024).await;
    let more = announce(&first, "chiplog.v1.Log", 2);
    holds(LIMIT).await;
    let status = append(&first).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("of this connection"), "{status}");
    assert_eq!(from_status(&status).kind(), chiplog::ErrorKind::Busy);

    // All connections' limit: the same.
    let others = announce(&second, "chiplog.v1.Log", LIMIT - 1024);
    holds(2 * LIMIT - 1024).await;
    append(&third).await.unwrap();
    let last = announce(&second, "logspec.Log", 2);
    holds(2 * LIMIT).await;
    let status = append(&third).await.unwrap_err();
    assert!(status.message().contains("of all connections"), "{status}");
    server.refused(Refusal::InflightBytes, 2).await;

    // A client that disconnects makes room.
    drop((held, more, others, last));
    holds(0).await;
    append(&first).await.unwrap();
    append(&third).await.unwrap();
}

/// A message of the largest size is accepted, one byte more is rejected; by both services, with a specific error.
#[tokio::test]
async fn message_bytes() {
    let server = Served::start(Settings::default()).await;
    let channel = server.plain().await;
    for service in ["logspec.Log", "chiplog.v1.Log"] {
        let budget = server.budget.clone();
        let held = announce(&channel, service, MESSAGE_BYTES_MAX as u32);
        let begun = Instant::now();
        while budget.used_bytes() < MESSAGE_BYTES_MAX {
            assert!(begun.elapsed() < PATIENCE, "{service} does not accept it");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(held);
        while budget.used_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let too_large = vec![1; MESSAGE_BYTES_MAX];
    let mut logspec = LogClient::new(channel.clone());
    let requests = tokio_stream::iter([AppendRequest::new(1, [too_large.clone()])]);
    let mut answers = logspec.append(requests).await.unwrap().into_inner();
    let first = answers.message().await.unwrap_err();
    let mut native = NativeClient::new(channel.clone());
    let requests = tokio_stream::iter([NativeAppend { batch: too_large.into(), ..NativeAppend::default() }]);
    let mut answers = native.append(requests).await.unwrap().into_inner();
    let second = answers.message().await.unwrap_err();
    for status in [first, second] {
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert_eq!(from_status(&status).kind(), chiplog::ErrorKind::TooLarge);
    }
    server.refused(Refusal::MessageBytes, 2).await;
}
