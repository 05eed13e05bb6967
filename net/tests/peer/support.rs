//! Replicas over gRPC, and what tests do with them.

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::{Index, Log, NodeId, Options, Start};
use chiplog_net::peer::{PeerOptions, PeerTransport};
use chiplog_net::wire::proto::v1::peer_client::PeerClient;
use chiplog_net::wire::proto::v1::{PeerHello, PeerMessage};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a test waits for an event that must happen: no machine is this slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Replica {
    pub(crate) node: NodeId,
    pub(crate) dir: PathBuf,
    pub(crate) log: Log,
    pub(crate) transport: Arc<PeerTransport>,
    /// Its address for the others.
    pub(crate) address: SocketAddr,
}

/// The election timeout, unless a test sets another one. A busy machine is silent for less.
pub(crate) const ELECTION: Duration = Duration::from_millis(1500);

pub(crate) fn options(
    segment_bytes: u32,
    mut cluster: ClusterOptions,
    election_timeout: Duration,
) -> Options {
    cluster.heartbeat = Duration::from_millis(50);
    cluster.election_timeout = election_timeout;
    Options::with_segment_bytes(segment_bytes).cluster(cluster)
}

pub(crate) fn bind(port: u16) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "port {port}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Replica {
    pub(crate) fn start(node: u64, dir: &Path, bootstrap: Bootstrap, segment_bytes: u32) -> Self {
        let listener = bind(0);
        let address = listener.local_addr().unwrap();
        Self::start_at(node, dir, bootstrap, segment_bytes, listener, address, ELECTION)
    }

    pub(crate) fn start_at(
        node: u64,
        dir: &Path,
        bootstrap: Bootstrap,
        segment_bytes: u32,
        listener: TcpListener,
        address: SocketAddr,
        election_timeout: Duration,
    ) -> Self {
        let text = format!("{address} {address}");
        let mut peer = PeerOptions::new(NodeId(node), listener, text.clone());
        peer.election_timeout = election_timeout;
        let transport = PeerTransport::start(peer).unwrap();
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transport.clone());
        cluster.address = text;
        let log = Log::open(dir, options(segment_bytes, cluster, election_timeout)).unwrap();
        transport.identify(log.log_id(), log.directory_id());
        Self { node: NodeId(node), dir: dir.to_owned(), log, transport, address }
    }

    /// Ends it as a process would end, as far as the others can see.
    pub(crate) fn kill(self) -> (PathBuf, u16) {
        self.transport.close();
        self.log.close().unwrap();
        (self.dir, self.address.port())
    }
}

pub(crate) fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Appends at the current leader, until it succeeds.
pub(crate) fn append(replicas: &[&Replica], record: &[u8]) -> Index {
    let begun = Instant::now();
    loop {
        for replica in replicas.iter().filter(|r| r.log.role() == Role::Leader) {
            match replica.log.append(record) {
                Ok(index) => return index,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
        assert!(begun.elapsed() < PATIENCE, "no replica accepts an append");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn records(log: &Log, last: Index) -> Vec<Vec<u8>> {
    log.wait_for(last, PATIENCE).unwrap();
    let mut reader = log.reader(Start::First).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        all.push(record.data.to_vec());
    }
    all
}

pub(crate) fn add(leader: &Log, replica: &Replica) {
    let directory = replica.log.directory_id();
    let address = format!("{0} {0}", replica.address);
    let change = Change::AddLearner { node: replica.node, directory, address };
    leader.change_members(&[change], PATIENCE).unwrap();
    leader.change_members(&[Change::Promote(replica.node)], PATIENCE).unwrap();
}

/// Three voters; the first one leads.
pub(crate) fn three(dir: &Path, segment_bytes: u32) -> Vec<Replica> {
    let first = Replica::start(1, &dir.join("1"), Bootstrap::Init, segment_bytes);
    wait("it leads", || first.log.role() == Role::Leader);
    let log = first.log.log_id();
    let mut all = vec![first];
    for node in 2..=3 {
        let dir = dir.join(node.to_string());
        let replica = Replica::start(node, &dir, Bootstrap::Join(log), segment_bytes);
        add(&all[0].log, &replica);
        all.push(replica);
    }
    all
}

/// The server's answer to a stream with this first message.
pub(crate) fn greet(at: SocketAddr, first: PeerMessage) -> Result<PeerHello, tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = PeerClient::connect(format!("http://{at}")).await.unwrap();
        let messages = tokio_stream::iter([first]);
        let mut answers = client.messages(messages).await?.into_inner();
        answers.message().await.map(|hello| hello.expect("a Hello or an error"))
    })
}
