//! A server that a test controls.

use crate::served::PATIENCE;
use crate::served::client::{producing, quick};
use chiplog::{Batch, BatchBuilder, ErrorKind};
use chiplog_net::client::{Client, Producer, ProducerOptions};
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::log_server::{Log, LogServer};
use chiplog_net::wire::proto::v1::*;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
pub(crate) type OnAppend = dyn Fn(usize, usize, &Batch) -> Option<Outcome> + Send + Sync;
pub(crate) type OnRead = dyn Fn(usize, &ReadRequest) -> Vec<ReadResponse> + Send + Sync;

/// A server that a test controls.
pub(crate) struct Rogue {
    /// The answer to the n-th request of the m-th stream, both from 0. None: no answer, and none to any later request.
    pub(crate) on_append: Box<OnAppend>,
    /// The answers to the n-th read; the stream then stays open.
    pub(crate) on_read: Box<OnRead>,
    pub(crate) appends: AtomicUsize,
    pub(crate) reads: AtomicUsize,
    /// Its reads end, instead of staying open.
    pub(crate) ends: bool,
    /// The received batches with their streams.
    pub(crate) got: Arc<Mutex<Vec<(usize, Batch)>>>,
    /// Its n-th answer about itself.
    pub(crate) on_server_info: Box<dyn Fn(usize) -> ServerInfoResponse + Send + Sync>,
    pub(crate) server_infos: AtomicUsize,
    /// The answer to the n-th `Info`. None: no answer.
    pub(crate) on_info: Box<dyn Fn(usize) -> Option<Result<InfoResponse, Status>> + Send + Sync>,
    pub(crate) infos: AtomicUsize,
    /// The answer to the n-th `AppendTogether`. None: no answer.
    pub(crate) on_together:
        Box<dyn Fn(usize) -> Option<Result<AppendTogetherResponse, Status>> + Send + Sync>,
    pub(crate) togethers: Arc<AtomicUsize>,
    /// Sessions as they were opened, from 7 on, and closed; and streams.
    pub(crate) calls: Arc<Mutex<Vec<String>>>,
    pub(crate) sessions: AtomicUsize,
    pub(crate) connections: Arc<AtomicUsize>,
}

/// The answer of a log without a cluster.
pub(crate) fn about(protocol: u32) -> ServerInfoResponse {
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
    pub(crate) fn new() -> Self {
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

    pub(crate) async fn serve(self) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.serve_at(listener)
    }

    pub(crate) fn serve_at(self, listener: TcpListener) -> Vec<String> {
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
    pub(crate) fn silent() -> Self {
        Self { on_append: Box::new(|_, _, _| None), ..Self::new() }
    }
}

pub(crate) fn appended(batch: &Batch, first: u64) -> Option<Outcome> {
    Some(Outcome::Appended(Appended { first, count: batch.count(), durability: 1 }))
}

pub(crate) fn refused(kind: ErrorKind) -> Option<Outcome> {
    Some(Outcome::Refused(Refused { kind: kind.code(), message: format!("{kind}"), ..Default::default() }))
}

/// Busy because of a rate, for this many milliseconds.
pub(crate) fn refused_for(millis: u64) -> Option<Outcome> {
    let (kind, message) = (ErrorKind::Busy.code(), "its rate".to_owned());
    Some(Outcome::Refused(Refused { kind, message, retry_after_millis: millis, ..Default::default() }))
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

/// The answer of the first or second of two servers at these addresses: the leader and its term.
pub(crate) fn of_two(node: u64, addresses: &[String; 2], leader: u64, term: u64) -> ServerInfoResponse {
    let server = |node: u64| Server {
        node,
        address: addresses[node as usize - 1].clone(),
        leader: node == leader,
        ..Default::default()
    };
    ServerInfoResponse { node, servers: vec![server(1), server(2)], term, ..about(1) }
}

/// A producer of this server.
pub(crate) async fn producer_of(rogue: Rogue, change: impl FnOnce(&mut ProducerOptions)) -> Producer {
    let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
    client.producer(producing(change)).await.unwrap()
}

pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The server is silent, and records expire soon.
pub(crate) fn soon(o: &mut ProducerOptions) {
    (o.request_timeout, o.delivery_timeout) = (Duration::from_millis(100), Duration::from_millis(300));
}
