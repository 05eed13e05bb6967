//! Servers for tests: each has its own runtime, so that it can be ended at once with all its connections.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part")]

pub(crate) mod client;

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{Error, ErrorKind, Log, NodeId, Options};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::admin::{AdminService, Found};
use chiplog_net::service::follow::Follow;
use chiplog_net::service::log::{LogService, NativeOptions};
use chiplog_net::wire::address::Address;
use futures_util::StreamExt as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::InterceptorLayer;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) host: Arc<LogSlot>,
    /// The number of received calls.
    pub(crate) calls: Arc<AtomicU64>,
    /// The number of accepted connections.
    pub(crate) connections: Arc<AtomicU64>,
    /// Rejects every call, like a full server.
    pub(crate) refuses: Arc<AtomicBool>,
    runtime: Option<Runtime>,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A port that was free just before, outside the range of outgoing connections: a restarted server needs it again.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let n = u64::from(std::process::id()) * 97 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (n % 20_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    pub(crate) fn start(log: Log) -> Self {
        Self::start_at(log, 0, NativeOptions::default())
    }

    pub(crate) fn start_at(log: Log, port: u16, options: NativeOptions) -> Self {
        let host = LogSlot::new();
        host.open(log);
        Self::serve(host, port, options)
    }

    pub(crate) fn serve(host: Arc<LogSlot>, port: u16, options: NativeOptions) -> Self {
        let runtime = runtime();
        let end = Instant::now() + PATIENCE;
        let listener = loop {
            match std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        listener.set_nonblocking(true).unwrap();
        let entered = runtime.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = LogService::with(host.clone(), options).into_service();
        let own = Address::new(address.as_str(), address.as_str(), "").unwrap();
        let found: Found =
            Box::new(|_| Err(Error::new(ErrorKind::Unsupported, "a test server has its log already")));
        let admin = AdminService::new(host.clone(), NodeId(1), own, "0", found);
        let (calls, connections) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let refuses = Arc::<AtomicBool>::default();
        let (counted, is_full) = (calls.clone(), refuses.clone());
        let count = move |request| {
            counted.fetch_add(1, Ordering::Relaxed);
            if is_full.load(Ordering::Relaxed) {
                return Err(tonic::Status::resource_exhausted("too many open calls"));
            }
            Ok(request)
        };
        let server = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .layer(InterceptorLayer::new(count))
            .add_service(service)
            .add_service(Follow::new(host.clone()).into_service())
            .add_service(admin);
        drop(entered);
        let accepted = connections.clone();
        let incoming =
            TcpListenerStream::new(listener).inspect(move |_| _ = accepted.fetch_add(1, Ordering::Relaxed));
        runtime.spawn(server.serve_with_incoming(incoming));
        Self { address, host, calls, connections, refuses, runtime: Some(runtime) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One log and its server.
pub(crate) struct One {
    pub(crate) dir: TempDir,
    pub(crate) log: Log,
    pub(crate) server: Server,
}

impl One {
    pub(crate) fn new() -> Self {
        Self::with(Options::with_segment_bytes(1 << 20), NativeOptions::default())
    }

    pub(crate) fn with(options: Options, native: NativeOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), options).unwrap();
        let server = Server::start_at(log.clone(), 0, native);
        Self { dir, log, server }
    }

    pub(crate) fn address(&self) -> String {
        self.server.address.clone()
    }
}

/// Three replicas in this process, each with a server. Nodes count from 1.
pub(crate) struct Trio {
    pub(crate) network: MemoryNetwork,
    dirs: Vec<TempDir>,
    ports: Vec<u16>,
    nodes: Vec<Option<(Log, Server)>>,
}

pub(crate) const ZONES: [&str; 3] = ["east", "west", "north"];

impl Trio {
    pub(crate) fn new() -> Self {
        let network = MemoryNetwork::new();
        let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let mut trio = Self { network, dirs, ports, nodes: vec![None, None, None] };
        trio.start(1, Bootstrap::Init);
        let first = trio.log(1).clone();
        for node in 2..=3 {
            trio.start(node, Bootstrap::Join(first.log_id()));
            let directory = trio.log(node).directory_id();
            let add = Change::AddLearner { node: NodeId(node), directory, address: trio.member(node) };
            first.change_members(&[add], PATIENCE).unwrap();
            first.change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
        }
        trio
    }

    fn member(&self, node: u64) -> String {
        let n = node as usize - 1;
        format!("127.0.0.1:{} 127.0.0.1:{} {}", 1 + n, self.ports[n], ZONES[n])
    }

    pub(crate) fn address(&self, node: u64) -> String {
        format!("127.0.0.1:{}", self.ports[node as usize - 1])
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        (1..=3).map(|n| self.address(n)).collect()
    }

    fn start(&mut self, node: u64, bootstrap: Bootstrap) {
        let n = node as usize - 1;
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, self.network.transport());
        cluster.heartbeat = Duration::from_millis(30);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.address = self.member(node);
        let options =
            Options::with_segment_bytes(4 << 20).cluster(cluster).session_window(64).sessions_max(256);
        let log = Log::open(self.dirs[n].path(), options).unwrap();
        let server = Server::start_at(log.clone(), self.ports[n], NativeOptions::default());
        self.nodes[n] = Some((log, server));
    }

    pub(crate) fn log(&self, node: u64) -> &Log {
        &self.nodes[node as usize - 1].as_ref().unwrap().0
    }

    pub(crate) fn server(&self, node: u64) -> &Server {
        &self.nodes[node as usize - 1].as_ref().unwrap().1
    }

    pub(crate) fn runs(&self, node: u64) -> bool {
        self.nodes[node as usize - 1].is_some()
    }

    /// Ends the server at once, then the replica.
    pub(crate) fn kill(&mut self, node: u64) {
        let (log, server) = self.nodes[node as usize - 1].take().unwrap();
        drop(server);
        let _ = log.close();
    }

    /// The replica continues, but its server does not answer any more, as long as the returned listener lives.
    pub(crate) fn silence(&mut self, node: u64) -> std::net::TcpListener {
        let n = node as usize - 1;
        let (log, server) = self.nodes[n].take().unwrap();
        drop(server);
        let end = Instant::now() + PATIENCE;
        let silent = loop {
            match std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], self.ports[n]))) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // Calls to the node still find it; a server at another address holds it.
        let elsewhere = Server::start(log.clone());
        self.nodes[n] = Some((log, elsewhere));
        silent
    }

    /// The server of a [silenced](Self::silence) replica answers again.
    pub(crate) fn answer(&mut self, node: u64, silent: std::net::TcpListener) {
        drop(silent);
        let n = node as usize - 1;
        let (log, elsewhere) = self.nodes[n].take().unwrap();
        drop(elsewhere);
        let server = Server::start_at(log.clone(), self.ports[n], NativeOptions::default());
        self.nodes[n] = Some((log, server));
    }

    pub(crate) fn bring_back(&mut self, node: u64) {
        self.network.connect(NodeId(node));
        self.start(node, Bootstrap::Existing);
    }

    /// Waits for a leader, other than `not`, that the others know.
    pub(crate) fn leader(&self, not: u64) -> u64 {
        let end = Instant::now() + PATIENCE;
        loop {
            for node in (1..=3).filter(|n| *n != not && self.runs(*n)) {
                if self.log(node).role() == Role::Leader {
                    return node;
                }
            }
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn follower(&self) -> u64 {
        let leader = self.leader(0);
        (1..=3).find(|n| *n != leader && self.runs(*n)).unwrap()
    }
}
