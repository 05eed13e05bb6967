//! The client against a server that misbehaves, answers late or twice, or does not answer.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Batch, BatchBuilder, Durability, Error, ErrorKind, Index, Sequence, Start};
use chiplog_net::client::{Client, ClientOptions, Producer, ProducerOptions, ReadFrom, ReaderOptions};
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::log_server::{Log, LogServer};
use chiplog_net::wire::proto::v1::read_request::Start as Asked;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::{NOT_APPENDED, to_status};
use served::PATIENCE;
use served::client::{producing, quick};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type OnAppend = dyn Fn(usize, usize, &Batch) -> Option<Outcome> + Send + Sync;
type OnRead = dyn Fn(usize, &ReadRequest) -> Vec<ReadResponse> + Send + Sync;

/// A server that a test controls.
struct Rogue {
    /// The answer to the n-th request of the m-th stream, both from 0. None: no answer, and none to any later request.
    on_append: Box<OnAppend>,
    /// The answers to the n-th read; the stream then stays open.
    on_read: Box<OnRead>,
    appends: AtomicUsize,
    reads: AtomicUsize,
    /// Its reads end, instead of staying open.
    ends: bool,
    /// The received batches with their streams.
    got: Arc<Mutex<Vec<(usize, Batch)>>>,
    /// Its n-th answer about itself.
    on_server_info: Box<dyn Fn(usize) -> ServerInfoResponse + Send + Sync>,
    server_infos: AtomicUsize,
    /// The answer to the n-th `Info`. None: no answer.
    on_info: Box<dyn Fn(usize) -> Option<Result<InfoResponse, Status>> + Send + Sync>,
    infos: AtomicUsize,
    /// The answer to the n-th `AppendTogether`. None: no answer.
    on_together: Box<dyn Fn(usize) -> Option<Result<AppendTogetherResponse, Status>> + Send + Sync>,
    togethers: Arc<AtomicUsize>,
    /// Sessions as they were opened, from 7 on, and closed; and streams.
    calls: Arc<Mutex<Vec<String>>>,
    sessions: AtomicUsize,
    connections: Arc<AtomicUsize>,
}

/// The answer of a log without a cluster.
fn about(protocol: u32) -> ServerInfoResponse {
    ServerInfoResponse {
        node: 1,
        protocol_min: protocol,
        protocol_max: protocol,
        batch_bytes_max: 1 << 20,
        session_window: 16,
        ..Default::default()
    }
}

impl Rogue {
    fn new() -> Self {
        Self {
            on_append: Box::new(|_, _, batch| appended(batch, 1)),
            on_read: Box::new(|_, _| Vec::new()),
            appends: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            ends: false,
            got: Arc::default(),
            on_server_info: Box::new(|_| about(1)),
            server_infos: AtomicUsize::new(0),
            on_info: Box::new(|_| None),
            infos: AtomicUsize::new(0),
            on_together: Box::new(|_| None),
            togethers: Arc::default(),
            calls: Arc::default(),
            sessions: AtomicUsize::new(7),
            connections: Arc::default(),
        }
    }

    async fn serve(self) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.serve_at(listener)
    }

    fn serve_at(self, listener: TcpListener) -> Vec<String> {
        let address = listener.local_addr().unwrap().to_string();
        let connections = self.connections.clone();
        let server = tonic::transport::Server::builder().add_service(LogServer::new(self));
        let incoming = TcpListenerStream::new(listener).map(move |stream| {
            connections.fetch_add(1, Ordering::Relaxed);
            stream
        });
        tokio::spawn(server.serve_with_incoming(incoming));
        vec![address]
    }

    /// Does not answer appends.
    fn silent() -> Self {
        Self { on_append: Box::new(|_, _, _| None), ..Self::new() }
    }
}

fn appended(batch: &Batch, first: u64) -> Option<Outcome> {
    Some(Outcome::Appended(Appended { first, count: batch.count(), durability: 1 }))
}

fn refused(kind: ErrorKind) -> Option<Outcome> {
    Some(Outcome::Refused(Refused { kind: kind.code(), message: format!("{kind}"), ..Default::default() }))
}

#[tonic::async_trait]
impl Log for Rogue {
    type AppendStream = Answers<AppendResponse>;
    type ReadStream = Answers<ReadResponse>;
    type WatchStream = Answers<WatchResponse>;

    async fn append(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let stream = self.appends.fetch_add(1, Ordering::Relaxed);
        self.calls.lock().unwrap().push(format!("append {stream}"));
        let mut requests = request.into_inner();
        let (sender, answers) = tokio::sync::mpsc::channel(100);
        // Called here, because the closure belongs to the test: a table made now answers all later requests.
        let table: Vec<_> = {
            let mut builder = BatchBuilder::new();
            let any = builder.push(b"x").unwrap().build().unwrap();
            (0..100).map(|n| (self.on_append)(stream, n, &any)).collect()
        };
        let got = self.got.clone();
        tokio::spawn(async move {
            let mut n = 0;
            while let Some(Ok(request)) = requests.next().await {
                let batch = Batch::decode(request.batch).unwrap();
                let count = batch.count();
                got.lock().unwrap().push((stream, batch));
                let Some(mut outcome) = table[n].clone() else { continue };
                if let Outcome::Appended(appended) = &mut outcome
                    && appended.count == 1
                {
                    appended.count = count;
                }
                n += 1;
                if sender.send(Ok(AppendResponse { result: Some(outcome) })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(answers))))
    }

    async fn append_together(
        &self,
        _: Request<AppendTogetherRequest>,
    ) -> Result<Response<AppendTogetherResponse>, Status> {
        match (self.on_together)(self.togethers.fetch_add(1, Ordering::Relaxed)) {
            Some(answer) => answer.map(Response::new),
            None => std::future::pending().await,
        }
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let n = self.reads.fetch_add(1, Ordering::Relaxed);
        let replies = (self.on_read)(n, &request.into_inner());
        let replies = tokio_stream::iter(replies.into_iter().map(Ok));
        if self.ends {
            return Ok(Response::new(Box::pin(replies)));
        }
        Ok(Response::new(Box::pin(replies.chain(tokio_stream::pending()))))
    }

    async fn discard(&self, _: Request<DiscardRequest>) -> Result<Response<DiscardResponse>, Status> {
        Err(Status::internal("no"))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        match (self.on_info)(self.infos.fetch_add(1, Ordering::Relaxed)) {
            Some(answer) => answer.map(Response::new),
            None => std::future::pending().await,
        }
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) as u64;
        self.calls.lock().unwrap().push(format!("open {session}"));
        Ok(Response::new(OpenSessionResponse { session }))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        self.calls.lock().unwrap().push(format!("close {}", request.get_ref().session));
        Ok(Response::new(CloseSessionResponse {}))
    }

    async fn server_info(
        &self,
        _: Request<ServerInfoRequest>,
    ) -> Result<Response<ServerInfoResponse>, Status> {
        let n = self.server_infos.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new((self.on_server_info)(n)))
    }
}

/// A server of an earlier version does not tell how durable a record is, and one of a later version may tell what this client
/// does not know.
#[tokio::test]
async fn durability_that_is_not_told_is_absent() {
    for (told, durability) in [(0, None), (4, None), (2, Some(Durability::MajoritySlices))] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, n, batch| {
            let (first, count) = (1 + n as u64, batch.count());
            Some(Outcome::Appended(Appended { first, count, durability: told }))
        });
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let producer = client.producer(ProducerOptions::default()).await.unwrap();
        let mut delivery = producer.append(b"x").await.unwrap();
        assert_eq!((&mut delivery).await.unwrap(), Index(1));
        assert_eq!(delivery.durability(), durability, "{told}");
    }
}

/// Silence, damage, invalid answers: however the first stream ended, the second one starts with the same bytes.
#[tokio::test]
async fn unacknowledged_batches_are_resent_unchanged() {
    let nonsense = Appended { first: 0, count: 1, durability: 1 };
    let outcomes = [
        None,
        refused(ErrorKind::Busy),
        refused(ErrorKind::Full),
        refused(ErrorKind::Unavailable),
        refused(ErrorKind::NotLeader),
        refused(ErrorKind::Corrupt),
        Some(Outcome::Appended(nonsense)),
        Some(Outcome::Appended(Appended { first: 1, count: 9, durability: 1 })),
    ];
    for outcome in outcomes {
        let mut rogue = Rogue::new();
        let got = rogue.got.clone();
        let first = outcome.clone();
        rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
            (0, 0) => appended(batch, 1),
            (0, _) => first.clone(),
            _ => appended(batch, 2 + n as u64),
        });
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let options = producing(|o| (o.request_timeout, o.batch_bytes) = (Duration::from_millis(200), 60));
        let producer = client.producer(options).await.unwrap();
        let mut deliveries = Vec::new();
        for record in [b"record a..", b"record b..", b"record c.."] {
            deliveries.push(producer.append(record).await.unwrap());
        }
        for (n, delivery) in deliveries.into_iter().enumerate() {
            let index = tokio::time::timeout(PATIENCE, delivery).await.unwrap().unwrap();
            assert_eq!(index, Index(n as u64 + 1), "after {outcome:?}");
        }
        let got = got.lock().unwrap();
        let of = |stream| got.iter().filter(move |(s, _)| *s == stream).map(|(_, batch)| batch);
        let numbers: Vec<_> = of(1).map(|batch| batch.session().unwrap().1).collect();
        assert_eq!(numbers, [Sequence(2), Sequence(3)]);
        for again in of(1) {
            let before = of(0).find(|b| b.session() == again.session());
            assert!(before.is_none_or(|b| b.as_bytes() == again.as_bytes()));
        }
    }
}

#[tokio::test]
async fn forgotten_number_is_a_success_if_it_was_sent_before() {
    let mut rogue = Rogue::new();
    rogue.on_append =
        Box::new(|stream, _, _| if stream == 0 { None } else { refused(ErrorKind::SequenceForgotten) });
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    let options = producing(|o| o.request_timeout = Duration::from_millis(200));
    let producer = client.producer(options).await.unwrap();
    let delivery = producer.append(b"x").await.unwrap();
    producer.flush(PATIENCE).await.unwrap();
    assert_eq!(delivery.await.unwrap_err().kind(), ErrorKind::SequenceForgotten);
    assert!(producer.close(PATIENCE).await.all_acknowledged());
}

/// An error that a retry cannot resolve ends the producer at once, and a close returns everything.
#[tokio::test]
async fn fatal_error_ends_the_producer() {
    for kind in [ErrorKind::SequenceGap, ErrorKind::SequenceForgotten, ErrorKind::Unsupported] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, _, _| refused(kind));
        rogue.on_info = Box::new(|_| Some(Ok(InfoResponse::default())));
        // Forgotten before it was ever sent: another producer uses the session.
        let kind = if kind == ErrorKind::SequenceForgotten { ErrorKind::SequenceGap } else { kind };
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let options = producing(|o| (o.batch_bytes, o.linger) = (60, Duration::from_millis(50)));
        let producer = client.producer(options).await.unwrap();
        let delivery = producer.append(b"record a..").await.unwrap();
        producer.send(b"record b..").await.unwrap();
        assert_eq!(delivery.await.unwrap_err().kind(), kind);
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
        assert_eq!(producer.send(b"late").await.unwrap_err().kind(), kind);
        let left: Vec<_> = producer.close(PATIENCE).await.left.into_iter().map(|l| l.record).collect();
        assert_eq!(left, ["record a..", "record b.."], "after {kind}");
    }
}

#[tokio::test]
async fn another_revision_of_the_service_is_rejected() {
    let mut rogue = Rogue::new();
    rogue.on_server_info = Box::new(|_| about(2));
    let error = Client::connect(rogue.serve().await, quick()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Batches of several logs have no session: a repeated call would append them twice.
#[tokio::test]
async fn batches_of_several_logs_are_sent_again_only_if_that_is_safe() {
    let certain = |kind: ErrorKind| to_status(&Error::new(kind, "not now"), None);
    let marked = |kind: ErrorKind| {
        let mut status = certain(kind);
        status.metadata_mut().insert(NOT_APPENDED, "1".parse().unwrap());
        status
    };
    let right = || AppendTogetherResponse { appended: vec![Appended { first: 5, count: 1, durability: 1 }] };
    let short = || AppendTogetherResponse { appended: Vec::new() };
    let none = || AppendTogetherResponse { appended: vec![Appended { first: 5, count: 2, durability: 1 }] };
    type Way = (Option<Result<AppendTogetherResponse, Status>>, Result<Index, ErrorKind>, usize);
    let ways: Vec<Way> = vec![
        (Some(Err(certain(ErrorKind::NotLeader))), Ok(Index(5)), 2),
        (Some(Err(certain(ErrorKind::Busy))), Ok(Index(5)), 2),
        (Some(Err(marked(ErrorKind::Unavailable))), Ok(Index(5)), 2),
        (Some(Err(certain(ErrorKind::Sealed))), Err(ErrorKind::Sealed), 1),
        (Some(Err(certain(ErrorKind::Unavailable))), Err(ErrorKind::Unavailable), 1),
        (Some(Err(certain(ErrorKind::Timeout))), Err(ErrorKind::Timeout), 1),
        (Some(Err(certain(ErrorKind::Poisoned))), Err(ErrorKind::Unavailable), 1),
        (Some(Err(Status::resource_exhausted("a proxy"))), Err(ErrorKind::Unavailable), 1),
        (Some(Ok(short())), Err(ErrorKind::Unavailable), 1),
        (Some(Ok(none())), Err(ErrorKind::Unavailable), 1),
        (None, Err(ErrorKind::Unavailable), 1),
    ];
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    for (n, (first, expected, calls)) in ways.into_iter().enumerate() {
        let mut rogue = Rogue::new();
        let is_silent = first.is_none();
        let first = Mutex::new(Some(first));
        rogue.on_together =
            Box::new(move |_| first.lock().unwrap().take().unwrap_or_else(|| Some(Ok(right()))));
        let counted = rogue.togethers.clone();
        let mut options = quick();
        if is_silent {
            options.attempt_timeout = Duration::from_millis(300);
        }
        let client = Client::connect(rogue.serve().await, options).await.unwrap();
        let appended = Client::append_together(&[(&client, &batch)]).await;
        let got = appended.as_ref().map(|appended| appended[0].first).map_err(|error| error.kind());
        assert_eq!((got, counted.load(Ordering::Relaxed)), (expected, calls), "{n}: {appended:?}");
        if let Err(error) = appended
            && error.kind() != ErrorKind::Sealed
        {
            assert!(error.to_string().contains("it is unknown whether"), "{n}: {error}");
        }
    }
}

/// Whether a leader is missing or does not listen: nothing was sent, and the error says so.
#[tokio::test]
async fn batches_of_several_logs_that_no_leader_gets_are_certainly_not_appended() {
    let follower = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // It refuses connections. Bound, it is nobody else's, and no connection to it gets its own port.
    let leader = TcpSocket::new_v4().unwrap();
    leader.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addresses = [follower.local_addr(), leader.local_addr()].map(|place| place.unwrap().to_string());
    let mut rogue = Rogue::new();
    let named = addresses.clone();
    rogue.on_server_info = Box::new(move |_| of_two(1, &named, 2, 1));
    rogue.serve_at(follower);
    let mut options = quick();
    options.timeout = Duration::from_secs(1);
    let client = Client::connect([addresses[0].clone()], options).await.unwrap();
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    let error = Client::append_together(&[(&client, &batch)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotLeader, "{error}");
    assert!(error.to_string().contains("nothing was appended"), "{error}");
}

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

/// A producer of this server.
async fn producer_of(rogue: Rogue, change: impl FnOnce(&mut ProducerOptions)) -> Producer {
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    client.producer(producing(change)).await.unwrap()
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The server is silent, and records expire soon.
fn soon(o: &mut ProducerOptions) {
    (o.request_timeout, o.delivery_timeout) = (Duration::from_millis(100), Duration::from_millis(300));
}

/// A record that expired was in no list: `close` returned that nothing was left, and the record was not in the log. If
/// it was passed to `send`, its failure was never reported.
#[tokio::test]
async fn close_reports_records_that_failed_before() {
    let producer = producer_of(Rogue::silent(), soon).await;
    producer.send(b"x").await.unwrap();
    until("it expires", || producer.buffered_bytes() == 0).await;
    let closed = producer.close(PATIENCE).await;
    assert!(closed.left.is_empty() && !closed.all_acknowledged());
    assert_eq!(closed.failed.unwrap().kind(), ErrorKind::Timeout);
}

/// The first `close` ended the producer's task. A second one, after the first was cancelled or at the same time, did
/// not wait and returned that nothing was left, while everything was.
#[tokio::test]
async fn close_can_be_cancelled_and_repeated() {
    let producer = producer_of(Rogue::silent(), |_| ()).await;
    producer.send(b"x").await.unwrap();
    let cancelled = tokio::time::timeout(Duration::from_millis(50), producer.close(PATIENCE)).await;
    assert!(cancelled.is_err());
    let other = producer.clone();
    let short = Duration::from_millis(100);
    for closed in [
        tokio::join!(producer.close(short), other.close(PATIENCE)).into(),
        [producer.close(PATIENCE).await, other.close(PATIENCE).await],
    ] {
        for closed in closed {
            let left: Vec<_> = closed.left.iter().map(|l| &l.record[..]).collect();
            assert_eq!(left, [b"x"]);
            assert_eq!(closed.failed.unwrap().kind(), ErrorKind::Closed);
        }
    }
}

/// A flush by one clone removed the failure: the clone whose record had failed flushed next, and got no error.
#[tokio::test]
async fn each_clone_gets_a_failure() {
    let first = producer_of(Rogue::silent(), soon).await;
    let second = first.clone();
    first.send(b"x").await.unwrap();
    until("it expires", || first.buffered_bytes() == 0).await;
    let third = first.clone();
    for producer in [&second, &first, &third] {
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), ErrorKind::Timeout);
        producer.flush(PATIENCE).await.unwrap();
    }
    assert!(third.clone().close(PATIENCE).await.all_acknowledged(), "its original was told");
}

/// A leader that was cut off while a session was opened or used elsewhere rejects the session without asking the
/// others. The producer treated that as final and ended, with all its records.
#[tokio::test]
async fn session_rejection_is_final_only_after_a_barrier() {
    for kind in [ErrorKind::SessionExpired, ErrorKind::SequenceGap] {
        for barrier in [Err(Status::unavailable("no majority")), Ok(InfoResponse::default())] {
            let mut rogue = Rogue::new();
            rogue.on_append = Box::new(move |stream, _, batch| match stream {
                0 => None,
                1 => refused(kind),
                _ => appended(batch, 5),
            });
            rogue.on_info = Box::new(move |_| Some(barrier.clone()));
            let options = |o: &mut ProducerOptions| o.request_timeout = Duration::from_millis(100);
            let producer = producer_of(rogue, options).await;
            assert_eq!(producer.append(b"x").await.unwrap().await.unwrap(), Index(5), "{kind}");
        }
    }
}

/// If the server repeats it after that, it is final.
#[tokio::test]
async fn finally_rejected_session_ends_the_producer() {
    let mut rogue = Rogue::new();
    rogue.on_append =
        Box::new(|stream, _, _| if stream == 0 { None } else { refused(ErrorKind::SessionExpired) });
    rogue.on_info = Box::new(|_| Some(Ok(InfoResponse::default())));
    let producer = producer_of(rogue, |o| o.request_timeout = Duration::from_millis(100)).await;
    // It was sent before, and may be in the log: its result is not a rejection.
    let open = producer.append(b"x").await.unwrap().await.unwrap_err();
    assert_eq!(open.kind(), ErrorKind::Closed, "{open}");
    assert_eq!(producer.try_send(b"y").unwrap_err().kind(), ErrorKind::SessionExpired);
    let closed = producer.close(PATIENCE).await;
    assert!(closed.left[0].in_doubt);
}

/// An idle producer's session had expired; its next record was first sent to a server that no longer led. After two
/// rejections it counted as possibly in the log, and the producer ended.
#[tokio::test]
async fn certainly_rejected_records_get_a_new_session() {
    let mut rogue = Rogue::new();
    rogue.on_append = Box::new(|stream, n, batch| match stream {
        0 => refused(ErrorKind::NotLeader),
        1 => refused(ErrorKind::SessionExpired),
        _ => appended(batch, 1 + n as u64),
    });
    let (got, calls) = (rogue.got.clone(), rogue.calls.clone());
    let options = |o: &mut ProducerOptions| (o.batch_bytes, o.linger) = (60, Duration::from_millis(20));
    let producer = producer_of(rogue, options).await;
    let deliveries =
        [producer.append(b"record a..").await.unwrap(), producer.append(b"record b..").await.unwrap()];
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap(), Index(1 + n as u64));
    }
    let last = got.lock().unwrap().last().unwrap().1.session().unwrap();
    assert_eq!((last.0.get(), last.1), (8, Sequence(2)));
    let calls = calls.lock().unwrap();
    assert_eq!(calls[..], ["open 7", "append 0", "append 1", "close 7", "open 8", "append 2"]);
}

/// A full log was retried as long as a dead cluster, and then the record "may be in the log": `Full` was never
/// returned.
#[tokio::test]
async fn full_log_is_reported_soon() {
    for (kind, delivery) in [(ErrorKind::Full, PATIENCE), (ErrorKind::Busy, Duration::from_millis(200))] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, _, _| refused(kind));
        let options = |o: &mut ProducerOptions| {
            (o.full_max, o.delivery_timeout) = (Duration::from_millis(200), delivery);
            o.batch_bytes = 60;
        };
        let producer = producer_of(rogue, options).await;
        let deliveries =
            [producer.append(b"record a..").await.unwrap(), producer.append(b"record b..").await.unwrap()];
        for delivery in deliveries {
            let error = delivery.await.unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains("not in the log"), "{error}");
        }
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
    }
}

/// Records that waited behind others failed although those were acknowledged one after the other; and records behind them got into the log, so
/// that this had a gap in what `chiplog append` had read.
#[tokio::test]
async fn producer_that_ends_at_a_failure_leaves_no_gap() {
    let (mut rogue, well) = (Rogue::new(), Arc::new(AtomicBool::new(false)));
    let is_well = well.clone();
    rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
        _ if is_well.load(Ordering::Relaxed) => appended(batch, 100),
        (..5, 0) => appended(batch, 1 + stream as u64),
        _ => {
            let (kind, message) = (ErrorKind::Busy.code(), "its rate".to_owned());
            Some(Outcome::Refused(Refused { kind, message, retry_after_millis: 600, ..Default::default() }))
        }
    });
    let producer = producer_of(rogue, |o| {
        (o.delivery_timeout, o.ends_at_failure) = (Duration::from_secs(2), true);
        (o.batch_bytes, o.linger) = (60, Duration::from_millis(20));
    })
    .await;
    let mut given = Vec::new();
    for n in 0..6 {
        given.push(producer.append(format!("record {n}..").as_bytes()).await.unwrap());
    }
    let last = given.pop().unwrap();
    for (n, delivery) in given.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap(), Index(1 + n as u64)); // 3 s in all
    }
    let error = last.await.unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("its rate"), "{error}");
    well.store(true, Ordering::Relaxed);
    let after = match producer.append(b"record 6..").await {
        Ok(delivery) => delivery.await,
        Err(error) => Err(error),
    };
    assert_eq!(after.unwrap_err().kind(), ErrorKind::Closed);
}

/// When a record expired, the producer opened a new session and left the old one open. Late batches of the old session
/// could get into the log behind newer records, and each of these sessions stayed for a day.
#[tokio::test]
async fn session_is_closed_before_another_one_is_opened() {
    let mut rogue = Rogue::new();
    let stuck = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_stuck = stuck.clone();
    rogue.on_append =
        Box::new(move |_, _, batch| if is_stuck.load(Ordering::Relaxed) { None } else { appended(batch, 1) });
    let calls = rogue.calls.clone();
    let producer = producer_of(rogue, soon).await;
    assert_eq!(producer.append(b"x").await.unwrap().await.unwrap_err().kind(), ErrorKind::Timeout);
    stuck.store(false, Ordering::Relaxed);
    producer.append(b"y").await.unwrap().await.unwrap();
    let calls: Vec<_> = calls.lock().unwrap().iter().filter(|c| !c.starts_with("append")).cloned().collect();
    assert_eq!(calls, ["open 7", "close 7", "open 8"]);
}

/// The next leader can have lower limits: one batch that was too large for it ended the producer.
#[tokio::test]
async fn batch_rejected_for_its_content_fails_alone() {
    for kind in [ErrorKind::TooLarge, ErrorKind::InvalidArgument] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |stream, n, batch| match (stream, n) {
            (0, 0) => appended(batch, 1),
            (0, _) => refused(kind),
            _ => appended(batch, 2 + n as u64),
        });
        rogue.on_server_info = Box::new(|n| {
            let batch_bytes_max = if n == 0 { 1 << 20 } else { 100 };
            ServerInfoResponse { batch_bytes_max, ..about(1) }
        });
        let (got, calls) = (rogue.got.clone(), rogue.calls.clone());
        let producer = producer_of(rogue, |o| o.batch_bytes = 60).await;
        producer.append(b"record a..").await.unwrap().await.unwrap();
        let mut deliveries = Vec::new();
        for record in [b"record b..", b"record c..", b"record d.."] {
            deliveries.push(producer.append(record).await.unwrap());
        }
        let mut results = Vec::new();
        for delivery in deliveries {
            results.push(delivery.await.map_err(|e| e.kind()));
        }
        assert_eq!(results, [Err(kind), Ok(Index(2)), Ok(Index(3))]);
        assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), kind);
        let numbers: Vec<_> = got.lock().unwrap().iter().filter_map(|(_, b)| b.session()).collect();
        assert_eq!(
            numbers[numbers.len() - 2..].iter().map(|n| (n.0.get(), n.1.get())).collect::<Vec<_>>(),
            [(8, 1), (8, 2)]
        );
        assert!(calls.lock().unwrap().contains(&"close 7".to_owned()));
        // The limits were requested again.
        let error = producer.append(&[1; 100]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}

/// After each rejection, each client sent everything again to a server without room, over a new connection.
#[tokio::test]
async fn oldest_batch_is_retried_alone_on_the_same_connection() {
    let mut rogue = Rogue::new();
    rogue.on_append = Box::new(|stream, n, batch| match stream {
        0..3 => refused(ErrorKind::Busy),
        _ => appended(batch, 1 + n as u64),
    });
    let (got, connections) = (rogue.got.clone(), rogue.connections.clone());
    let producer = producer_of(rogue, |o| (o.batch_bytes, o.linger) = (60, Duration::from_millis(20))).await;
    for i in 0..8 {
        producer.send(format!("record {i:02}").as_bytes()).await.unwrap();
    }
    producer.flush(PATIENCE).await.unwrap();
    let got = got.lock().unwrap();
    let sent = |stream| got.iter().filter(|(s, _)| *s == stream).count();
    assert_eq!((sent(1), sent(2), sent(3)), (1, 1, 8));
    assert_eq!(connections.load(Ordering::Relaxed), 2, "one for calls, one for streams");
}

/// Two servers both answer that they lead. The one of the earlier term, which was cut off from the others, was used as
/// soon as the other one did not answer for a moment.
#[tokio::test]
async fn leader_of_an_earlier_term_is_not_trusted_at_once() {
    let listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let named = |leader: u64| -> Vec<Server> {
        let server = |(n, address): (usize, &String)| Server {
            node: n as u64 + 1,
            address: address.clone(),
            leader: n as u64 + 1 == leader,
            ..Default::default()
        };
        addresses.iter().enumerate().map(server).collect()
    };
    let (mut old, mut new) = (Rogue::new(), Rogue::new());
    let (of_old, of_new, of_nobody) = (named(1), named(2), named(0));
    old.on_server_info =
        Box::new(move |_| ServerInfoResponse { term: 5, servers: of_old.clone(), ..about(1) });
    // At first it leads; then there is no leader for a while.
    new.on_server_info = Box::new(move |n| {
        let servers = if (1..6).contains(&n) { of_nobody.clone() } else { of_new.clone() };
        ServerInfoResponse { node: 2, term: 6, servers, ..about(1) }
    });
    new.on_append = Box::new(|stream, _, batch| match stream {
        0 => refused(ErrorKind::NotLeader),
        _ => appended(batch, 3),
    });
    let streams = old.calls.clone();
    let [first, second] = listeners;
    let mut all = old.serve_at(first);
    all.extend(new.serve_at(second));
    let client = Client::connect(all, quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    assert_eq!(producer.append(b"x").await.unwrap().await.unwrap(), Index(3));
    let at_old: Vec<_> =
        streams.lock().unwrap().iter().filter(|c| c.starts_with("append")).cloned().collect();
    assert!(at_old.is_empty(), "{at_old:?}");
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

/// The answer of the first or second of two servers at these addresses: the leader and its term.
fn of_two(node: u64, addresses: &[String; 2], leader: u64, term: u64) -> ServerInfoResponse {
    let server = |node: u64| Server {
        node,
        address: addresses[node as usize - 1].clone(),
        leader: node == leader,
        ..Default::default()
    };
    ServerInfoResponse { node, servers: vec![server(1), server(2)], term, ..about(1) }
}

async fn two_places() -> ([TcpListener; 2], [String; 2]) {
    let listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses = listeners.each_ref().map(|l| l.local_addr().unwrap().to_string());
    (listeners, addresses)
}

/// Producers that soon check for a deposed leader, and otherwise wait for its answer longer than the test takes.
async fn of_patience(client: &Client) -> Producer {
    let options = producing(|o| {
        (o.request_timeout, o.delivery_timeout) = (10 * PATIENCE, 20 * PATIENCE);
    });
    client.producer(options).await.unwrap()
}

fn asking_soon() -> ClientOptions {
    let mut options = quick();
    options.probe_timeout = Duration::from_millis(100);
    options
}

async fn acknowledged(producer: &Producer, record: &[u8]) {
    let delivery = producer.append(record).await.unwrap();
    tokio::time::timeout(PATIENCE, delivery).await.unwrap().unwrap();
}

/// The first producer of a client missed an answer and learned that another server leads, and so did the client. For
/// the second producer no server then named a later term than the known one, and it waited for the old leader for the
/// full time.
#[tokio::test]
async fn second_producer_leaves_a_silent_leader_too() {
    let ([at_first, at_second], addresses) = two_places().await;
    let elected = Arc::<AtomicUsize>::default();
    let (mut first, mut second) = (Rogue::new(), Rogue::new());
    first.on_append = Box::new(|_, n, batch| if n == 0 { appended(batch, 1) } else { None });
    let all = addresses.clone();
    first.on_server_info = Box::new(move |_| of_two(1, &all, 1, 1)); // it was cut off, and considers itself the leader
    let by_now = elected.clone();
    second.on_server_info = Box::new(move |_| match by_now.load(Ordering::Relaxed) {
        0 => of_two(2, &addresses, 1, 1),
        _ => of_two(2, &addresses, 2, 2),
    });
    second.serve_at(at_second);
    let client = Client::connect(first.serve_at(at_first), asking_soon()).await.unwrap();
    let producers = [of_patience(&client).await, of_patience(&client).await];
    for producer in &producers {
        acknowledged(producer, b"by the first").await;
    }
    elected.store(1, Ordering::Relaxed);
    for producer in &producers {
        acknowledged(producer, b"by the second").await;
    }
}

/// A leader that was elected again is the same one, whatever address was used: its slow answer is awaited.
#[tokio::test]
async fn leader_with_another_address_is_the_same_leader() {
    let ([at_first, at_second], addresses) = two_places().await;
    let (mut first, mut second) = (Rogue::silent(), Rogue::new());
    let calls = first.calls.clone();
    let seed = format!("localhost:{}", at_first.local_addr().unwrap().port());
    let (of_first, of_second) = (calls.clone(), addresses.clone());
    first.on_server_info = Box::new(move |_| of_two(1, &addresses, 1, 1));
    let at_election = Arc::<Mutex<Vec<String>>>::default();
    let then = at_election.clone();
    second.on_server_info = Box::new(move |n| {
        let asked = of_first.lock().unwrap().clone();
        if n < 3 || !asked.contains(&"append 0".to_owned()) {
            return of_two(2, &of_second, 1, 2);
        }
        let mut then = then.lock().unwrap();
        if then.is_empty() {
            *then = asked;
        }
        of_two(2, &of_second, 2, 3)
    });
    second.serve_at(at_second);
    first.serve_at(at_first);
    let client = Client::connect([seed], asking_soon()).await.unwrap();
    acknowledged(&of_patience(&client).await, b"x").await;
    // Until another one led, it had been called once.
    assert_eq!(*at_election.lock().unwrap(), ["open 7", "append 0"]);
}
