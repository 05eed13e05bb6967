//! A served log, and a client of it.

use chiplog::{Log, Logs, LogsOptions, Options};
use chiplog_net::listener;
use chiplog_net::listener::Incoming;
use chiplog_net::listener::authority::CheckedAuthority;
use chiplog_net::listener::connection::Wire;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::logspec::{AppendRequest, Limits, LogspecService};
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{AppendReply, InfoReply, InfoRequest, append_reply, info_reply};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// Longer than any successful operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server. Ends when dropped.
pub(crate) struct Served {
    pub(crate) address: String,
    pub(crate) log: Log,
    stop: oneshot::Sender<()>,
    _dir: Option<TempDir>,
    serving: JoinHandle<()>,
}

/// Serves `log` on `listener`.
pub(crate) fn serve(listener: TcpListener, log: Log, limits: Limits) -> Served {
    let host: Arc<LogSlot> = LogSlot::new();
    host.open(log.clone());
    let address = listener.local_addr().unwrap().to_string();
    serve_connections(address, listener::incoming(listener), host, log, limits)
}

fn serve_connections(
    address: String,
    connections: Incoming<CheckedAuthority<Wire>>,
    host: Arc<LogSlot>,
    log: Log,
    limits: Limits,
) -> Served {
    let (stop, stopped) = oneshot::channel::<()>();
    let service = LogspecService::new(host, limits).into_server();
    let serving = tokio::spawn(async move {
        let server = listener::server().add_service(service);
        server.serve_with_incoming_shutdown(connections, async { drop(stopped.await) }).await.unwrap();
    });
    Served { address, log, stop, _dir: None, serving }
}

/// Serves a new log without a cluster.
pub(crate) async fn one(options: Options, limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Served { _dir: Some(dir), ..serve(listener, log, limits) }
}

/// A log with segments of 1 MiB.
pub(crate) async fn small() -> Served {
    one(Options::with_segment_bytes(1 << 20), Limits::default()).await
}

/// A server with a default log and named ones, at the address of a named log that does not exist yet.
pub(crate) async fn with_port_of(name: &str) -> (Served, Logs) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("default"), Options::with_segment_bytes(1 << 20)).unwrap();
    let logs = Logs::open(dir.path().join("named"), LogsOptions::default().groups(1)).unwrap();
    let served = serve_at_port_of(name, log, Some(logs.clone())).await;
    (Served { _dir: Some(dir), ..served }, logs)
}

/// Serves `log` as the default log, and listens at a port of its own for the log of this name.
pub(crate) async fn serve_at_port_of(name: &str, log: Log, logs: Option<Logs>) -> Served {
    let host: Arc<LogSlot> = LogSlot::new();
    host.open(log.clone());
    logs.into_iter().for_each(|logs| host.open_named(logs));
    let clients = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = own.local_addr().unwrap().to_string();
    let connections = listener::incoming(clients).with_log_port(own, name).unwrap();
    serve_connections(address, connections, host, log, Limits::default())
}

/// A log with segments of 1 MiB, and a named log at a port of its own.
pub(crate) async fn both() -> [Served; 2] {
    let (served, logs) = with_port_of("orders").await;
    let log = logs.create("orders").unwrap();
    [small().await, Served { log, ..served }]
}

impl Served {
    pub(crate) async fn client(&self) -> LogClient<Channel> {
        let client = LogClient::connect(format!("http://{}", self.address)).await.unwrap();
        client.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
    }

    /// Lets the connections end, and waits for them.
    pub(crate) async fn shut_down(self) {
        drop(self.stop);
        tokio::time::timeout(PATIENCE, self.serving).await.expect("a stream does not end").unwrap();
    }

    pub(crate) async fn appender(&self) -> Appender {
        Appender::new(&mut self.client().await).await
    }
}

/// An open append stream.
pub(crate) struct Appender {
    requests: mpsc::Sender<AppendRequest>,
    pub(crate) replies: Streaming<AppendReply>,
    sequence: u64,
}

impl Appender {
    pub(crate) async fn new(client: &mut LogClient<Channel>) -> Self {
        let (requests, stream) = mpsc::channel(1);
        let replies = client.append(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Self { requests, replies, sequence: 0 }
    }

    pub(crate) async fn send<P: AsRef<[u8]>>(&mut self, proposals: impl IntoIterator<Item = P>) {
        self.sequence += 1;
        self.send_as(self.sequence, proposals).await;
    }

    pub(crate) async fn send_as<P: AsRef<[u8]>>(
        &mut self,
        sequence: u64,
        proposals: impl IntoIterator<Item = P>,
    ) {
        let _ = self.requests.send(AppendRequest::new(sequence, proposals)).await;
    }

    /// The next reply of any kind.
    pub(crate) async fn reply(&mut self) -> Result<Option<append_reply::Reply>, Status> {
        let reply = tokio::time::timeout(PATIENCE, self.replies.message()).await.expect("no reply")?;
        Ok(reply.map(|reply| reply.reply.expect("one field of the oneof")))
    }

    /// The next reply, which must be ok.
    pub(crate) async fn ok(&mut self) -> append_reply::Ok {
        match self.reply().await.unwrap() {
            Some(append_reply::Reply::Ok(ok)) => ok,
            other => panic!("{other:?}"),
        }
    }

    /// Sends one request and waits for its indexes.
    pub(crate) async fn append<P: AsRef<[u8]>>(
        &mut self,
        proposals: impl IntoIterator<Item = P>,
    ) -> Vec<u64> {
        self.send(proposals).await;
        let ok = self.ok().await;
        assert_eq!(ok.sequence, self.sequence);
        ok.indexes
    }

    /// Ends the stream of requests.
    pub(crate) fn half_close(self) -> Streaming<AppendReply> {
        self.replies
    }
}

pub(crate) fn stand(reply: InfoReply) -> info_reply::Ok {
    match reply.reply {
        Some(info_reply::Reply::Ok(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn info(client: &mut LogClient<Channel>, allow_stale: bool) -> info_reply::Ok {
    stand(client.info(InfoRequest { allow_stale }).await.unwrap().into_inner())
}
