//! The client against a server that misbehaves, or only answers late, twice or not at all.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Batch, BatchBuilder, ErrorKind, Index, Sequence, Start};
use chiplog_net::client::{Client, ReadFrom, ReaderOptions};
use chiplog_net::proto::v1::append_response::Result as Outcome;
use chiplog_net::proto::v1::log_server::{Log, LogServer};
use chiplog_net::proto::v1::read_request::Start as Asked;
use chiplog_net::proto::v1::*;
use served::PATIENCE;
use served::client::{producing, quick};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type OnAppend = dyn Fn(usize, usize, &Batch) -> Option<Outcome> + Send + Sync;
type OnRead = dyn Fn(usize, &ReadRequest) -> Vec<ReadResponse> + Send + Sync;

/// A server that does as it is told.
struct Rogue {
    /// To the n-th request of the m-th stream, both from 0. None: no answer, and none to any later request.
    on_append: Box<OnAppend>,
    /// To the n-th read; the stream stays open then.
    on_read: Box<OnRead>,
    appends: AtomicUsize,
    reads: AtomicUsize,
    /// What came: the stream and the batch.
    got: Arc<Mutex<Vec<(usize, Batch)>>>,
    protocol: u32,
}

impl Rogue {
    fn new() -> Self {
        Self {
            on_append: Box::new(|_, _, batch| appended(batch, 1)),
            on_read: Box::new(|_, _| Vec::new()),
            appends: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            got: Arc::default(),
            protocol: 1,
        }
    }

    async fn serve(self) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tonic::transport::Server::builder().add_service(LogServer::new(self));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        vec![address]
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
        let mut requests = request.into_inner();
        let (sender, answers) = tokio::sync::mpsc::channel(100);
        // Asked here, as the closure is ours: everything that will come is answered by a table made now.
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

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let n = self.reads.fetch_add(1, Ordering::Relaxed);
        let replies = (self.on_read)(n, &request.into_inner());
        let replies = tokio_stream::iter(replies.into_iter().map(Ok));
        Ok(Response::new(Box::pin(replies.chain(tokio_stream::pending()))))
    }

    async fn discard(&self, _: Request<DiscardRequest>) -> Result<Response<DiscardResponse>, Status> {
        Err(Status::internal("no"))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        std::future::pending().await
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        Ok(Response::new(OpenSessionResponse { session: 7 }))
    }

    async fn close_session(
        &self,
        _: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        Ok(Response::new(CloseSessionResponse {}))
    }

    async fn server_info(
        &self,
        _: Request<ServerInfoRequest>,
    ) -> Result<Response<ServerInfoResponse>, Status> {
        Ok(Response::new(ServerInfoResponse {
            node: 1,
            protocol_min: self.protocol,
            protocol_max: self.protocol,
            batch_bytes_max: 1 << 20,
            session_window: 16,
            ..Default::default()
        }))
    }
}

/// Silence, damage, nonsense: whatever the first stream ended with, the second one begins with the same bytes.
#[tokio::test]
async fn what_was_not_acknowledged_is_sent_again_as_it_was() {
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
async fn a_forgotten_number_is_a_success_where_it_was_sent_before() {
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

/// What no repetition mends ends the producer at once, and everything that was given comes back.
#[tokio::test]
async fn a_fatal_refusal_ends_the_producer() {
    for kind in [
        ErrorKind::InvalidArgument,
        ErrorKind::TooLarge,
        ErrorKind::SequenceGap,
        ErrorKind::SequenceForgotten,
        ErrorKind::Unsupported,
    ] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, _, _| refused(kind));
        // Forgotten before it was ever sent: somebody else uses the session.
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
async fn another_revision_of_the_service_is_refused() {
    let mut rogue = Rogue::new();
    rogue.protocol = 2;
    let error = Client::connect(rogue.serve().await, quick()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
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

/// Gaps, repeats, damage, garbage and silence: nothing wrong is given out, and reading goes on where it was.
#[tokio::test]
async fn a_reader_takes_nothing_but_what_is_due() {
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
                // It begins before what is due, as a batch may.
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
async fn a_reader_gives_up_in_time_and_can_be_asked_again() {
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
