//! Malicious clients, each as one call: everything that they hold open ends when the returned value is dropped.
//!
//! These functions check nothing. The tests in `others.rs` check what other clients get meanwhile.

use bytes::Bytes;
use chiplog_net::wire::proto::logspec::ReadRequest as LogspecRead;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::log_client::LogClient as NativeClient;
use chiplog_net::wire::proto::v1::read_request::Start;
use chiplog_net::wire::proto::v1::{
    AppendRequest as NativeAppend, FollowRequest, ReadRequest, follow_request,
};
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// An attack that continues until this is dropped.
#[derive(Debug)]
pub(crate) struct Attack {
    _tasks: JoinSet<()>,
    /// How many times each part of it was started.
    pub(crate) begun: watch::Receiver<u64>,
}

/// The target of an attack, its token, and its source address.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) token: Option<String>,
    pub(crate) from: Option<IpAddr>,
}

impl Target {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), token: None, from: None }
    }

    pub(crate) fn from(mut self, from: [u8; 4]) -> Self {
        self.from = Some(from.into());
        self
    }

    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        match self.from {
            Some(from) => endpoint.local_address(Some(from)),
            None => endpoint,
        }
    }

    fn bearer(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(bearer) = self.bearer() {
            let value: AsciiMetadataValue = bearer.parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
}

/// Append streams that announce a message of `length` bytes and send 9 of them. Each stream is reopened after `renew`.
pub(crate) fn announce(
    target: &Target,
    connections: usize,
    streams: usize,
    length: u32,
    renew: Duration,
) -> Attack {
    let (mut tasks, (count, begun)) = (JoinSet::new(), watch::channel(0));
    for n in 0..connections {
        let (target, count) = (target.clone(), count.clone());
        tasks.spawn(async move {
            let channel = target.endpoint().connect().await.unwrap();
            let service = ["chiplog.v1.Log", "logspec.Log"][n % 2];
            let mut open = JoinSet::new();
            for _ in 0..streams {
                let (target, channel, count) = (target.clone(), channel.clone(), count.clone());
                open.spawn(async move {
                    loop {
                        let one = announce_one(&target, channel.clone(), service, length);
                        count.send_modify(|n| *n += 1);
                        let _ = tokio::time::timeout(renew, one).await;
                    }
                });
            }
            while open.join_next().await.is_some() {}
        });
    }
    Attack { _tasks: tasks, begun }
}

async fn announce_one(target: &Target, mut channel: Channel, service: &str, length: u32) {
    let head = [&[0], &length.to_be_bytes()[..], &[7; 4]].concat();
    let body = http_body_util::StreamBody::new(futures_util::stream::unfold(Some(head), |head| async {
        match head {
            Some(head) => Some((Ok::<_, Status>(http_body::Frame::data(Bytes::from(head))), None)),
            None => std::future::pending().await,
        }
    }));
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("http://a/{service}/Append").parse().unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    if let Some(bearer) = target.bearer() {
        request.headers_mut().insert("authorization", bearer.parse().unwrap());
    }
    if std::future::poll_fn(|context| channel.poll_ready(context)).await.is_err() {
        return;
    }
    if let Ok(answer) = channel.call(request).await {
        let mut body = answer.into_body();
        while std::future::poll_fn(|context| {
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), context)
        })
        .await
        .is_some()
        {}
    }
}

/// The service that an attack reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Logspec,
    Log,
    Follow,
}

/// Streams that request the whole log and read nothing. Their windows are `window` bytes: the default of HTTP/2 is 64
/// KiB; with a large one the server fills its buffers.
pub(crate) fn read_nothing(
    target: &Target,
    service: Service,
    connections: usize,
    streams: usize,
    window: u32,
) -> Attack {
    let (mut tasks, (count, begun)) = (JoinSet::new(), watch::channel(0));
    for _ in 0..connections {
        let (target, count) = (target.clone(), count.clone());
        tasks.spawn(async move {
            let endpoint = target.endpoint().initial_stream_window_size(window);
            let channel = endpoint.initial_connection_window_size(window).connect().await.unwrap();
            let mut open = JoinSet::new();
            for _ in 0..streams {
                let (target, channel, count) = (target.clone(), channel.clone(), count.clone());
                open.spawn(async move { hold_read(&target, channel, service, &count).await });
            }
            while open.join_next().await.is_some() {}
        });
    }
    Attack { _tasks: tasks, begun }
}

async fn hold_read(target: &Target, channel: Channel, service: Service, count: &watch::Sender<u64>) {
    const ANY: usize = 1 << 30;
    loop {
        let begun = match service {
            Service::Logspec => {
                let mut client = LogClient::new(channel.clone()).max_decoding_message_size(ANY);
                let read = target.request(LogspecRead { next_index: 1 });
                client.read(read).await.map(|answer| Box::new(answer) as Box<dyn Send>)
            }
            Service::Log => {
                let mut client = NativeClient::new(channel.clone()).max_decoding_message_size(ANY);
                let all =
                    ReadRequest { start: Some(Start::Oldest(true)), follow: true, ..Default::default() };
                client.read(target.request(all)).await.map(|answer| Box::new(answer) as Box<dyn Send>)
            }
            Service::Follow => {
                let mut client = FollowClient::new(channel.clone()).max_decoding_message_size(ANY);
                let all =
                    FollowRequest { start: Some(follow_request::Start::Index(1)), ..Default::default() };
                client.follow(target.request(all)).await.map(|answer| Box::new(answer) as Box<dyn Send>)
            }
        };
        count.send_modify(|n| *n += 1);
        match begun {
            Ok(_held) => std::future::pending().await,
            // A limit, or a closed connection: it tries again.
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// Streams that watch the server's health, without a token.
pub(crate) fn watch_health(target: &Target, connections: usize, streams: usize) -> Attack {
    let (mut tasks, (count, begun)) = (JoinSet::new(), watch::channel(0));
    for _ in 0..connections {
        let (target, count) = (target.clone(), count.clone());
        tasks.spawn(async move {
            let mut client = HealthClient::new(target.endpoint().connect().await.unwrap());
            let mut held = Vec::new();
            for _ in 0..streams {
                held.extend(client.watch(HealthCheckRequest::default()).await);
                count.send_modify(|n| *n += 1);
            }
            std::future::pending().await
        });
    }
    Attack { _tasks: tasks, begun }
}

/// Silent connections from these addresses; each is reopened when it is closed.
pub(crate) fn connect(address: &str, from: &[[u8; 4]], each: usize, said: &'static [u8]) -> Attack {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut tasks, (count, begun)) = (JoinSet::new(), watch::channel(0));
    for from in from.iter().flat_map(|from| std::iter::repeat_n(*from, each)) {
        let (count, to) = (count.clone(), address.parse().unwrap());
        tasks.spawn(async move {
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((from, 0).into()).unwrap();
                let stream: std::io::Result<TcpStream> = socket.connect(to).await;
                if let Ok(mut stream) = stream
                    && stream.write_all(said).await.is_ok()
                {
                    count.send_modify(|n| *n += 1);
                    let mut sink = [0; 1024];
                    while let Ok(1..) = stream.read(&mut sink).await {}
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    Attack { _tasks: tasks, begun }
}

/// Appends `count` records one after the other and returns how many were acknowledged.
pub(crate) async fn append_all(target: &Target, channel: &Channel, count: usize) -> Result<usize, Status> {
    let batch = chiplog::BatchBuilder::new().push(b"of another client").unwrap().build().unwrap();
    let (requests, stream) = mpsc::channel(1);
    let request = target.request(ReceiverStream::new(stream));
    let send = NativeAppend { batch: batch.as_bytes().clone(), ..NativeAppend::default() };
    requests.send(send.clone()).await.unwrap();
    let mut answers = NativeClient::new(channel.clone()).append(request).await?.into_inner();
    let mut done = 0;
    while done < count {
        let answer =
            answers.message().await?.ok_or_else(|| Status::new(Code::Aborted, "the stream ended"))?;
        use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
        match answer.result {
            Some(Outcome::Appended(_)) => done += 1,
            other => return Err(Status::new(Code::Aborted, format!("{other:?}"))),
        }
        if done < count {
            requests.send(send.clone()).await.map_err(|_| Status::new(Code::Aborted, "the stream ended"))?;
        }
    }
    Ok(done)
}
