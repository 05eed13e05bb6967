//! Replicas of one process that connect to each other over gRPC, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::{Envelope, Transport};
use chiplog::{DirectoryId, Error, ErrorKind, Index, Log, LogId, NodeId, Options, Start};
use chiplog_net::peer::{GROUPS_MAX, Host, PeerOptions, PeerTransport};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::proto::v1::peer_client::PeerClient;
use chiplog_net::wire::proto::v1::peer_server::{Peer, PeerServer};
use chiplog_net::wire::proto::v1::{
    HostRequest, HostResponse, PeerEnvelope, PeerHello, PeerMessage, peer_message,
};
use chiplog_net::wire::status::from_status;
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

/// How long a test waits for an event that must happen: no machine is this slow.
const PATIENCE: Duration = Duration::from_secs(60);

struct Replica {
    node: NodeId,
    dir: PathBuf,
    log: Log,
    transport: Arc<PeerTransport>,
    /// Its address for the others.
    address: SocketAddr,
}

/// The election timeout, unless a test sets another one.
const ELECTION: Duration = Duration::from_millis(400);

fn options(segment_bytes: u32, mut cluster: ClusterOptions, election_timeout: Duration) -> Options {
    cluster.heartbeat = Duration::from_millis(50);
    cluster.election_timeout = election_timeout;
    Options::with_segment_bytes(segment_bytes).cluster(cluster)
}

fn bind(port: u16) -> TcpListener {
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
    fn start(node: u64, dir: &Path, bootstrap: Bootstrap, segment_bytes: u32) -> Self {
        let listener = bind(0);
        let address = listener.local_addr().unwrap();
        Self::start_at(node, dir, bootstrap, segment_bytes, listener, address, ELECTION)
    }

    fn start_at(
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
    fn kill(self) -> (PathBuf, u16) {
        self.transport.close();
        self.log.close().unwrap();
        (self.dir, self.address.port())
    }
}

fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Appends at the current leader, until it succeeds.
fn append(replicas: &[&Replica], record: &[u8]) -> Index {
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

fn records(log: &Log, last: Index) -> Vec<Vec<u8>> {
    log.wait_for(last, PATIENCE).unwrap();
    let mut reader = log.reader(Start::First).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        all.push(record.data.to_vec());
    }
    all
}

fn add(leader: &Log, replica: &Replica) {
    let directory = replica.log.directory_id();
    let address = format!("{0} {0}", replica.address);
    let change = Change::AddLearner { node: replica.node, directory, address };
    leader.change_members(&[change], PATIENCE).unwrap();
    leader.change_members(&[Change::Promote(replica.node)], PATIENCE).unwrap();
}

/// Three voters; the first one leads.
fn three(dir: &Path, segment_bytes: u32) -> Vec<Replica> {
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

#[test]
fn three_replicas_lose_their_leader_and_readmit_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = three(dir.path(), 1 << 20);
    for n in 0..100_u32 {
        append(&replicas.iter().collect::<Vec<_>>(), &n.to_le_bytes());
    }
    let traffic = replicas[0].transport.traffic();
    let others: Vec<_> = traffic.iter().filter(|t| t.node.get() != 1).collect();
    assert_eq!(others.iter().map(|t| t.node.get()).collect::<Vec<_>>(), [2, 3]);
    assert!(others.iter().all(|t| t.connected && t.sent > 0 && t.received > 0), "{traffic:?}");

    let (directory, port) = replicas.remove(0).kill();
    let begun = Instant::now();
    let left: Vec<_> = replicas.iter().collect();
    let last = append(&left, b"without the first");
    println!("an append succeeded {:?} after the leader was gone", begun.elapsed());
    assert_eq!(last, Index(101));

    let listener = bind(port);
    let address = listener.local_addr().unwrap();
    let back = Replica::start_at(1, &directory, Bootstrap::Existing, 1 << 20, listener, address, ELECTION);
    let last = append(&left, b"with it again");
    let expected = records(&replicas[0].log, last);
    assert_eq!(expected.len(), 102);
    assert_eq!(records(&back.log, last), expected);
    wait("it has caught up", || {
        let active =
            |r: &Replica| r.log.status().replica.peers.iter().filter(|p| p.active && p.lag == 0).count();
        replicas.iter().any(|r| active(r) == 2)
    });
    let again = replicas[0].transport.traffic().iter().map(|t| t.reconnects).sum::<u64>();
    assert!(again >= 1, "the stream to the first one was reopened");
}

#[test]
fn largest_blocks_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = three(dir.path(), 64 << 20);
    let all: Vec<_> = replicas.iter().collect();
    let large: Vec<u8> = (0..16_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut last = Index(0);
    for _ in 0..3 {
        last = append(&all, &large);
    }
    for replica in &replicas {
        assert!(records(&replica.log, last).iter().all(|r| *r == large));
    }
}

#[test]
fn removed_replica_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = three(dir.path(), 1 << 20);
    let last = append(&replicas.iter().collect::<Vec<_>>(), b"x");
    let third = replicas.pop().unwrap();
    assert_eq!(records(&third.log, last).len(), 1);
    wait("the leader removes it", || {
        let leader = replicas.iter().find(|r| r.log.role() == Role::Leader);
        leader.is_some_and(|l| l.log.change_members(&[Change::Remove(third.node)], PATIENCE).is_ok())
    });
    wait("the stream to it ends", || {
        replicas.iter().all(|r| r.transport.traffic().iter().all(|t| t.node != third.node || !t.connected))
    });
    append(&replicas.iter().collect::<Vec<_>>(), b"y");
}

/// The server's answer to a stream with this first message.
fn greet(at: SocketAddr, first: PeerMessage) -> Result<PeerHello, tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = PeerClient::connect(format!("http://{at}")).await.unwrap();
        let messages = tokio_stream::iter([first]);
        let mut answers = client.messages(messages).await?.into_inner();
        answers.message().await.map(|hello| hello.expect("a Hello or an error"))
    })
}

#[test]
fn wrong_hello_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(1, &dir.path().join("1"), Bootstrap::Init, 1 << 20);
    wait("its directory is known to the cluster", || {
        replica.log.status().replica.members.iter().any(|m| m.directory.get() != 0)
    });
    let info = replica.log.status();
    let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
    let right = PeerHello {
        protocol: 1,
        log_id: bytes(info.log_id.get()),
        from: 2,
        from_directory: bytes(77),
        to: 1,
        to_directory: bytes(info.directory_id.get()),
        from_address: "127.0.0.1:9 127.0.0.1:9".into(),
        features: 0,
        stream: 0,
        group: 0,
    };
    let hello = |hello: PeerHello| PeerMessage { message: Some(peer_message::Message::Hello(hello)) };
    let answer = greet(replica.address, hello(right.clone())).unwrap();
    assert_eq!((answer.from, answer.to, &answer.log_id), (1, 2, &right.log_id));
    assert_eq!(answer.from_directory, bytes(info.directory_id.get()));
    assert_eq!((answer.features, answer.stream), (1, 0), "it accepts a second stream");
    greet(replica.address, hello(PeerHello { to_directory: Bytes::new(), ..right.clone() })).unwrap();
    let newer = PeerHello { features: u32::MAX, stream: 1, ..right.clone() };
    assert_eq!(greet(replica.address, hello(newer)).unwrap().stream, 1, "unknown features are ignored");

    for (wrong, what) in [
        (PeerHello { protocol: 2, ..right.clone() }, "protocol"),
        (PeerHello { stream: 2, ..right.clone() }, "stream 2"),
        (PeerHello { log_id: bytes(1), ..right.clone() }, "log"),
        (PeerHello { log_id: Bytes::from_static(b"short"), ..right.clone() }, "16 bytes"),
        (PeerHello { to: 3, ..right.clone() }, "for node 3"),
        (PeerHello { to_directory: bytes(1), ..right.clone() }, "directory"),
        (PeerHello { from: 1, ..right.clone() }, "this node"),
        (PeerHello { from: 0, ..right.clone() }, "node 0"),
        (PeerHello { from_directory: Bytes::new(), ..right.clone() }, "sent no directory id"),
    ] {
        let status = greet(replica.address, hello(wrong)).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(what), "{what}: {status}");
    }
    let envelope = PeerMessage { message: Some(peer_message::Message::Envelope(PeerEnvelope::default())) };
    for first in [envelope, PeerMessage::default()] {
        assert_eq!(greet(replica.address, first).unwrap_err().code(), Code::FailedPrecondition);
    }

    // A member with another directory than the one it was added with.
    let change = Change::AddLearner {
        node: NodeId(2),
        directory: DirectoryId(78),
        address: "127.0.0.1:9 127.0.0.1:9".into(),
    };
    replica.log.change_members(&[change], PATIENCE).unwrap();
    wait("the transport knows", || {
        greet(replica.address, hello(right.clone())).is_err_and(|s| s.code() == Code::FailedPrecondition)
    });
    greet(replica.address, hello(PeerHello { from_directory: bytes(78), ..right })).unwrap();
}

/// One host could take every place of the listener for peers, again and again, and no replica could reconnect after a
/// short failure.
#[test]
fn one_host_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(1, &dir.path().join("1"), Bootstrap::Init, 1 << 20);
    let refused = || replica.transport.refusals().read(Refusal::ConnectionsOfAddress);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = runtime.block_on(async {
        let mut open = Vec::new();
        let begun = Instant::now();
        while refused() == 0 {
            assert!(begun.elapsed() < PATIENCE && open.len() < 1000, "{} are open", open.len());
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            open.push(socket.connect(replica.address).await.unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        open
    });
    wait("it leads", || replica.log.role() == Role::Leader);
    let second = Replica::start(2, &dir.path().join("2"), Bootstrap::Join(replica.log.log_id()), 1 << 20);
    add(&replica.log, &second);
    assert_eq!(replica.transport.refusals().read(Refusal::Connections), 0);
    drop(open);
}

/// A replica of another log at a known address gets no messages.
#[test]
fn replica_of_another_log_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = Replica::start(1, &dir.path().join("1"), Bootstrap::Init, 1 << 20);
    let other = Replica::start(2, &dir.path().join("2"), Bootstrap::Join(LogId(1)), 1 << 20);
    wait("it leads", || first.log.role() == Role::Leader);
    let address = format!("{0} {0}", other.address);
    let change = Change::AddLearner { node: NodeId(2), directory: other.log.directory_id(), address };
    first.log.change_members(&[change], PATIENCE).unwrap();
    first.log.append(b"x").unwrap();
    let promoted = first.log.change_members(&[Change::Promote(NodeId(2))], Duration::from_millis(500));
    assert_eq!(promoted.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(first.transport.traffic().iter().all(|t| t.received == 0));
    assert!(other.transport.traffic().iter().all(|t| t.received == 0));
}

/// A proxy between replicas: it forwards, drops bytes silently, closes connections, or is slow.
struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
}

/// The state that all connections through a proxy share.
#[derive(Default)]
struct Line {
    mode: AtomicU8,
    /// When the line is free again, if it is slow.
    free_at: Mutex<Option<Instant>>,
}

const FORWARD: u8 = 0;
const SWALLOW: u8 = 1;
const CUT: u8 = 2;
const SLOW: u8 = 3;

/// The bytes per second of a slow line, for all connections together, sent in pieces.
const SLOW_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 16 << 10;

impl Line {
    /// Waits for this piece's turn, and until the line has sent it.
    fn carry(&self, bytes: usize) {
        let until = {
            let mut free_at = self.free_at.lock().unwrap();
            let begin = free_at.unwrap_or_else(Instant::now).max(Instant::now());
            let until = begin + Duration::from_secs(1) * bytes as u32 / SLOW_BYTES as u32;
            *free_at = Some(until);
            until
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

impl Proxy {
    fn start(to: SocketAddr) -> Self {
        let listener = bind(0);
        let address = listener.local_addr().unwrap();
        let line = Arc::new(Line::default());
        let shared = line.clone();
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.mode.load(Ordering::Relaxed) == CUT {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (line, line2) = (shared.clone(), shared.clone());
                std::thread::spawn(move || pump(client, server, &line));
                std::thread::spawn(move || pump(server2, client2, &line2));
            }
        });
        Self { address, line }
    }

    fn set(&self, mode: u8) {
        self.line.mode.store(mode, Ordering::Relaxed);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, line: &Line) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = vec![0; PIECE_BYTES];
    // The dropped bytes are missing: the connection cannot be used again.
    let mut dead = false;
    loop {
        let read = from.read(&mut buffer);
        match line.mode.load(Ordering::Relaxed) {
            CUT => break,
            SWALLOW => dead = true,
            _ => {}
        }
        match read {
            Ok(0) => break,
            Ok(_) if dead => {}
            Ok(n) if line.mode.load(Ordering::Relaxed) == SLOW => {
                line.carry(n);
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            Ok(n) if to.write_all(&buffer[..n]).is_ok() => {}
            Err(e) if matches!(e.kind(), IoErrorKind::WouldBlock | IoErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn cut_or_silent_link_is_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let proxied = |node: u64, bootstrap| {
        let listener = bind(0);
        let proxy = Proxy::start(listener.local_addr().unwrap());
        let at = proxy.address;
        let path = dir.path().join(node.to_string());
        (Replica::start_at(node, &path, bootstrap, 1 << 20, listener, at, ELECTION), proxy)
    };
    let (first, first_proxy) = proxied(1, Bootstrap::Init);
    wait("it leads", || first.log.role() == Role::Leader);
    let log = first.log.log_id();
    let (second, second_proxy) = proxied(2, Bootstrap::Join(log));
    add(&first.log, &second);
    let (third, third_proxy) = proxied(3, Bootstrap::Join(log));
    add(&first.log, &third);
    let replicas = [&first, &second, &third];
    let proxies = [&first_proxy, &second_proxy, &third_proxy];

    append(&replicas, b"a");
    let mut last = Index(0);
    for mode in [CUT, SWALLOW] {
        proxies.iter().for_each(|p| p.set(mode));
        wait("there is no leader", || replicas.iter().all(|r| r.log.role() != Role::Leader));
        wait("all streams are closed", || {
            replicas.iter().all(|r| r.transport.traffic().iter().all(|t| !t.connected))
        });
        proxies.iter().for_each(|p| p.set(FORWARD));
        last = append(&replicas, b"b");
    }
    let expected = records(&first.log, last);
    assert!(expected.len() >= 3);
    assert!(replicas.iter().all(|r| records(&r.log, last) == expected));
    assert!(replicas.iter().any(|r| r.transport.traffic().iter().any(|t| t.reconnects > 0)));
}

/// A poisoned leader asks another replica to start an election at once, and then ends. Its last message was dropped
/// with all other waiting ones: a failed disk cost an election timeout.
#[test]
fn last_message_of_a_closing_replica_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = three(dir.path(), 1 << 20);
    append(&replicas.iter().collect::<Vec<_>>(), b"before");
    let at = replicas.iter().position(|r| r.log.role() == Role::Leader).unwrap();
    let leader = replicas.remove(at);
    let received = |replicas: &[Replica]| -> u64 {
        let traffic = replicas.iter().flat_map(|r| r.transport.traffic());
        traffic.filter(|t| t.node == leader.node).map(|t| t.received).sum()
    };
    let count = 20;
    for _ in 0..count {
        let before = received(&replicas);
        let status = leader.log.status();
        for to in &replicas {
            leader.transport.send(Envelope {
                log: status.log_id,
                from: leader.node,
                from_directory: status.directory_id,
                to: to.node,
                to_directory: DirectoryId(0),
                head: Bytes::from_static(b"a message"),
                bodies: Vec::new(),
                urgent: false,
            });
        }
        leader.transport.detach(leader.node);
        wait("the messages arrive", || received(&replicas) >= before + 2);
        leader.transport.members(&status.replica.members);
        wait("messages from it arrive again", || {
            let traffic = leader.transport.traffic();
            traffic.iter().filter(|t| t.connected).count() == 2
        });
    }
}

/// A large record occupied the one stream to each follower for longer than an election timeout, and heartbeats waited
/// behind it. Both followers started elections, the leader was deposed, and the next leader sent the record again.
#[test]
fn large_record_on_a_slow_line_deposes_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let election = Duration::from_millis(1500);
    let proxied = |node: u64, bootstrap| {
        let listener = bind(0);
        let proxy = Proxy::start(listener.local_addr().unwrap());
        let path = dir.path().join(node.to_string());
        (Replica::start_at(node, &path, bootstrap, 64 << 20, listener, proxy.address, election), proxy)
    };
    let (first, first_proxy) = proxied(1, Bootstrap::Init);
    wait("it leads", || first.log.role() == Role::Leader);
    let log = first.log.log_id();
    let (second, second_proxy) = proxied(2, Bootstrap::Join(log));
    add(&first.log, &second);
    let (third, third_proxy) = proxied(3, Bootstrap::Join(log));
    add(&first.log, &third);
    let small = first.log.append(b"small").unwrap();
    for replica in [&second, &third] {
        assert_eq!(records(&replica.log, small).len(), 1);
    }
    let status = first.log.status();
    assert_eq!(status.replica.role, Role::Leader);
    let sent = || first.transport.traffic().iter().map(|t| t.sent_bytes).max().unwrap_or_default();
    let before = sent();

    for proxy in [&first_proxy, &second_proxy, &third_proxy] {
        proxy.set(SLOW);
    }
    let large: Vec<u8> = (0..12_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let last = first.log.append(&large).unwrap();
    let after = first.log.status();
    assert_eq!((after.replica.role, after.replica.term), (Role::Leader, status.replica.term));
    for replica in [&second, &third] {
        assert!(records(&replica.log, last).last().is_some_and(|record| *record == large));
        assert_eq!(replica.log.status().replica.term, status.replica.term);
    }
    assert!(sent() - before < 2 * large.len() as u64, "it was sent once");
}

/// A replica of an earlier version: it knows no features, and treats a second stream as a new first one.
#[derive(Clone, Default)]
struct Earlier {
    streams: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<Bytes>>>,
}

#[tonic::async_trait]
impl Peer for Earlier {
    type MessagesStream = ReceiverStream<Result<PeerHello, Status>>;

    async fn host(&self, _: Request<HostRequest>) -> Result<Response<HostResponse>, Status> {
        Err(Status::unimplemented("an earlier version"))
    }

    async fn messages(
        &self,
        request: Request<Streaming<PeerMessage>>,
    ) -> Result<Response<Self::MessagesStream>, Status> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|m| m.message);
        let Some(peer_message::Message::Hello(hello)) = first else {
            return Err(Status::internal("a Hello"));
        };
        let (answers, outgoing) = tokio::sync::mpsc::channel(1);
        let answer = PeerHello { from: hello.to, to: hello.from, features: 0, ..hello };
        answers.send(Ok(answer)).await.unwrap();
        let heads = self.heads.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                if let Some(peer_message::Message::Envelope(envelope)) = message.message {
                    heads.lock().unwrap().push(envelope.head);
                }
            }
            drop(answers);
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// During an upgrade, some replicas have the previous version, which has only one stream.
#[test]
fn earlier_version_gets_everything_on_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = Earlier::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = bind(0);
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let service = PeerServer::new(earlier.clone());
    runtime.spawn(async move {
        let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await
    });
    let replica = Replica::start(1, &dir.path().join("1"), Bootstrap::Init, 1 << 20);
    wait("it leads", || replica.log.role() == Role::Leader);
    let change =
        Change::AddLearner { node: NodeId(2), directory: DirectoryId(9), address: address.to_string() };
    replica.log.change_members(&[change], PATIENCE).unwrap();
    wait("the stream is connected", || {
        replica.transport.traffic().iter().any(|t| t.node.get() == 2 && t.connected)
    });
    let status = replica.log.status();
    for (word, urgent) in [("large", false), ("urgent", true), ("large again", false)] {
        replica.transport.send(Envelope {
            log: status.log_id,
            from: replica.node,
            from_directory: status.directory_id,
            to: NodeId(2),
            to_directory: DirectoryId(9),
            head: Bytes::from_static(word.as_bytes()),
            bodies: vec![Bytes::from(vec![7; 1000])],
            urgent,
        });
    }
    let place = |word: &str| earlier.heads.lock().unwrap().iter().position(|head| *head == word.as_bytes());
    wait("everything arrives", || {
        ["large", "urgent", "large again"].iter().all(|word| place(word).is_some())
    });
    assert!(place("large") < place("large again"));
    assert_eq!(earlier.streams.load(Ordering::Relaxed), 1);
}

/// A node with a default log and a replica of group 1, over one transport.
struct Grouped {
    node: NodeId,
    dir: PathBuf,
    transport: Arc<PeerTransport>,
    logs: [Log; 2],
    address: SocketAddr,
}

/// Long, so that nothing reconnects because a shared machine is slow.
const CALM: Duration = Duration::from_secs(4);

impl Grouped {
    fn start(node: u64, dir: &Path, bootstraps: [Bootstrap; 2]) -> Self {
        let listener = bind(0);
        let address = listener.local_addr().unwrap();
        let mut peer = PeerOptions::new(NodeId(node), listener, format!("{address} {address}"));
        peer.election_timeout = CALM;
        let transport = PeerTransport::start(peer).unwrap();
        let dir = dir.join(node.to_string());
        let [default, named] = bootstraps;
        let logs = [
            Self::open(NodeId(node), &dir, &transport, address, 0, default),
            Self::open(NodeId(node), &dir, &transport, address, 1, named),
        ];
        Self { node: NodeId(node), dir, transport, logs, address }
    }

    fn open(
        node: NodeId,
        dir: &Path,
        transport: &Arc<PeerTransport>,
        address: SocketAddr,
        group: u32,
        bootstrap: Bootstrap,
    ) -> Log {
        let of: Arc<dyn Transport> = match group {
            0 => transport.clone(),
            _ => transport.group(group),
        };
        let mut cluster = ClusterOptions::new(node, bootstrap, of);
        cluster.address = format!("{address} {address}");
        let path = dir.join(format!("{group}"));
        let log = Log::open(path, options(1 << 20, cluster, CALM)).unwrap();
        match group {
            0 => transport.identify(log.log_id(), log.directory_id()),
            _ => transport.group(group).identify(log.log_id(), log.directory_id()),
        }
        log
    }

    /// Closes the replica of group 1, and opens it again.
    fn restart_group(&mut self, bootstrap: Bootstrap) {
        self.logs[1].close().unwrap();
        self.logs[1] = Self::open(self.node, &self.dir, &self.transport, self.address, 1, bootstrap);
    }

    /// The Hello of another node for one of its groups.
    fn hello(&self, group: u32, log: LogId) -> PeerMessage {
        let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
        PeerMessage {
            message: Some(peer_message::Message::Hello(PeerHello {
                protocol: 1,
                log_id: bytes(log.get()),
                from: 9,
                from_directory: bytes(77),
                to: self.node.get(),
                from_address: "127.0.0.1:9 127.0.0.1:9".into(),
                group,
                ..PeerHello::default()
            })),
        }
    }
}

fn three_grouped(dir: &Path) -> Vec<Grouped> {
    let first = Grouped::start(1, dir, [Bootstrap::Init, Bootstrap::Init]);
    wait("it leads both", || first.logs.iter().all(|log| log.role() == Role::Leader));
    let ids = first.logs.each_ref().map(Log::log_id);
    let mut all = vec![first];
    for node in 2..=3 {
        let other = Grouped::start(node, dir, ids.map(Bootstrap::Join));
        for (leader, log) in all[0].logs.iter().zip(&other.logs) {
            let (node, directory) = (other.node, log.directory_id());
            let address = format!("{0} {0}", other.address);
            leader.change_members(&[Change::AddLearner { node, directory, address }], PATIENCE).unwrap();
            leader.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
        }
        all.push(other);
    }
    all
}

#[test]
fn groups_share_a_listener_and_not_their_streams() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = three_grouped(dir.path());
    let last = |all: &[Grouped], group: usize, record: &[u8]| all[0].logs[group].append(record).unwrap();
    for n in 0..50_u32 {
        last(&all, 0, &n.to_le_bytes());
        last(&all, 1, format!("named {n}").as_bytes());
    }
    let ends = [last(&all, 0, b"of the default log"), last(&all, 1, b"of group 1")];
    let expected = [records(&all[0].logs[0], ends[0]), records(&all[0].logs[1], ends[1])];
    assert_eq!(expected.each_ref().map(Vec::len), [51, 51]);
    for node in &all {
        for group in 0..2 {
            assert_eq!(records(&node.logs[group], ends[group]), expected[group], "{} {group}", node.node);
        }
    }
    let named = all[0].transport.group(1);
    assert!(named.traffic().iter().filter(|t| t.connected && t.received > 0).count() == 2);

    // A replica of group 1 restarts: its own streams are opened again, those of the default log stay.
    let reconnects = |all: &[Grouped]| {
        all.iter().map(|n| n.transport.traffic().iter().map(|t| t.reconnects).sum::<u64>()).sum::<u64>()
    };
    let (before, term) = (reconnects(&all), all[0].logs[0].status().replica.term);
    let own =
        |all: &[Grouped]| -> u64 { all[0].transport.group(1).traffic().iter().map(|t| t.reconnects).sum() };
    let own_before = own(&all);
    all[2].restart_group(Bootstrap::Existing);
    let end = last(&all, 1, b"after the restart");
    assert_eq!(records(&all[2].logs[1], end).len(), 52);
    wait("its streams are connected again", || own(&all) > own_before);
    let end = last(&all, 0, b"undisturbed");
    assert_eq!(records(&all[2].logs[0], end).len(), 52);
    assert_eq!((reconnects(&all), all[0].logs[0].status().replica.term), (before, term));
    assert!(all.iter().all(|n| n.transport.traffic().iter().filter(|t| t.connected).count() == 2));
}

#[test]
fn hello_reaches_only_the_log_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Grouped::start(1, dir.path(), [Bootstrap::Init, Bootstrap::Init]);
    let [default, named] = node.logs.each_ref().map(Log::log_id);
    let answer = |node: &Grouped, group, log| greet(node.address, node.hello(group, log));
    for (group, right, wrong) in [(0, default, named), (1, named, default)] {
        assert_eq!(answer(&node, group, right).unwrap().group, group);
        let refused = answer(&node, group, wrong).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("the caller has log"), "{refused}");
    }
    for group in [2, 17, 18, u32::MAX] {
        assert_eq!(
            answer(&node, group, named).unwrap_err().code(),
            Code::Unavailable,
            "nobody opened {group}"
        );
    }

    // The replica is closed, and one of another log is opened in the same group.
    node.logs[1].close().unwrap();
    assert_eq!(answer(&node, 1, named).unwrap_err().code(), Code::Unavailable);
    std::fs::remove_dir_all(node.dir.join("1")).unwrap();
    node.restart_group(Bootstrap::Join(LogId(99)));
    assert_eq!(answer(&node, 1, named).unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(answer(&node, 1, LogId(99)).unwrap().group, 1);
    assert_eq!(answer(&node, 0, default).unwrap().group, 0);
}

/// The answer to a request for a replica.
fn ask(at: SocketAddr, request: HostRequest) -> Result<HostResponse, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = PeerClient::connect(format!("http://{at}")).await.unwrap();
        client.host(request).await.map(Response::into_inner).map_err(|status| from_status(&status))
    })
}

/// Node 1, of a cluster with node 2, and a right request of node 2 to it.
fn hosting(dir: &Path) -> (Replica, HostRequest) {
    let replica = Replica::start(1, &dir.join("1"), Bootstrap::Init, 1 << 20);
    wait("it leads", || replica.log.role() == Role::Leader);
    let address = "127.0.0.1:9 127.0.0.1:9".into();
    let change = Change::AddLearner { node: NodeId(2), directory: DirectoryId(77), address };
    replica.log.change_members(&[change], PATIENCE).unwrap();
    wait("the transport knows", || replica.transport.traffic().iter().any(|t| t.node == NodeId(2)));
    let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
    let right = HostRequest {
        protocol: 1,
        cluster: bytes(replica.log.log_id().get()),
        from: 2,
        to: 1,
        group: 1,
        log_id: bytes(5),
    };
    (replica, right)
}

#[test]
fn only_a_member_of_the_cluster_gets_a_replica() {
    let dir = tempfile::tempdir().unwrap();
    let listener = bind(0);
    let at = listener.local_addr().unwrap();
    let closed = PeerTransport::start(PeerOptions::new(NodeId(1), listener, at.to_string())).unwrap();
    let (replica, right) = hosting(dir.path());
    assert_eq!(ask(at, right.clone()).unwrap_err().kind(), ErrorKind::Unavailable, "no default log");
    closed.close();
    let without = ask(replica.address, right.clone()).unwrap_err();
    assert_eq!(without.kind(), ErrorKind::Unsupported, "{without}");

    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    replica.transport.on_host(Box::new(move |group, log| {
        counted.fetch_add(1, Ordering::Relaxed);
        match group {
            2 => Err(Error::new(ErrorKind::Full, "no room for it")),
            _ => Ok(DirectoryId(u128::from(group) << 64 | log.get())),
        }
    }));
    let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
    for (wrong, what) in [
        (HostRequest { protocol: 2, ..right.clone() }, "protocol 2"),
        (HostRequest { cluster: bytes(1), ..right.clone() }, "of the cluster of log"),
        (HostRequest { cluster: Bytes::from_static(b"short"), ..right.clone() }, "16 bytes"),
        (HostRequest { log_id: bytes(0), ..right.clone() }, "16 bytes"),
        (HostRequest { from: 9, ..right.clone() }, "no member"),
        (HostRequest { from: 0, ..right.clone() }, "no member"),
        (HostRequest { to: 3, ..right.clone() }, "for node 3"),
        (HostRequest { group: 0, ..right.clone() }, "group 0"),
        (HostRequest { group: GROUPS_MAX + 2, ..right.clone() }, "groups 1 to"),
        (HostRequest { group: u32::MAX, ..right.clone() }, "groups 1 to"),
    ] {
        let refused = ask(replica.address, wrong).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Membership, "{what}: {refused}");
        assert!(refused.to_string().contains(what), "{what}: {refused}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "no refused call reaches the callback");

    for group in [1, GROUPS_MAX + 1] {
        let made = ask(replica.address, HostRequest { group, ..right.clone() }).unwrap();
        assert_eq!(made.directory, bytes(u128::from(group) << 64 | 5));
    }
    let failed = ask(replica.address, HostRequest { group: 2, ..right }).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Full);
    assert!(failed.to_string().contains("no room for it"), "{failed}");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn server_asks_another_one_for_a_replica() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = three(dir.path(), 1 << 20);
    replicas[1].transport.on_host(Box::new(|group, log| match group {
        1 => Ok(DirectoryId(log.get() + 1)),
        2 => Ok(DirectoryId(0)),
        _ => Err(Error::new(ErrorKind::Diverged, "another log is here")),
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = replicas[1].address.to_string();
    wait("node 2 knows its members", || replicas[1].transport.traffic().len() == 2);
    let ask = |node, group| {
        let asked = replicas[2].transport.ask_to_host(NodeId(node), &address, group, LogId(7), PATIENCE);
        runtime.block_on(asked)
    };
    assert_eq!(ask(2, 1).unwrap(), DirectoryId(8));
    assert_eq!(ask(2, 2).unwrap_err().kind(), ErrorKind::Unavailable, "an answer without a directory");
    assert_eq!(ask(2, 3).unwrap_err().kind(), ErrorKind::Diverged);
    assert_eq!(ask(1, 1).unwrap_err().kind(), ErrorKind::Membership, "node 2 is at this address");
}

/// A callback that says which group it was called for, and returns once it is released.
fn held() -> (Host, mpsc::Receiver<u32>, mpsc::Sender<()>) {
    let (called, calls) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let host: Host = Box::new(move |group, _| {
        called.send(group).unwrap();
        released.lock().unwrap().recv_timeout(2 * PATIENCE).unwrap();
        Ok(DirectoryId(group.into()))
    });
    (host, calls, release)
}

/// A caller gave up, and the next call made a replica beside the one that was still being made. One slow disk got a
/// thread for each attempt.
#[test]
fn one_replica_is_made_at_a_time_also_after_its_caller_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, right) = hosting(dir.path());
    let (host, calls, release) = held();
    replica.transport.on_host(host);
    let (address, first) = (replica.address, HostRequest { group: 1, ..right.clone() });
    let gone = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = PeerClient::connect(format!("http://{address}")).await.unwrap();
            tokio::time::timeout(Duration::from_millis(500), client.host(first)).await.is_err()
        })
    });
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap(), 1);
    assert!(gone.join().unwrap(), "the caller gave up");
    let others: Vec<_> = (2..=4)
        .map(|group| HostRequest { group, ..right.clone() })
        .map(|request| std::thread::spawn(move || ask(address, request).unwrap().directory))
        .collect();
    let mut seen = Vec::new();
    for _ in 2..=4 {
        let early = calls.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "group {early:?} is made beside another one");
        release.send(()).unwrap();
        seen.push(calls.recv_timeout(PATIENCE).unwrap());
    }
    release.send(()).unwrap();
    seen.sort_unstable();
    assert_eq!(seen, [2, 3, 4]);
    for (group, other) in (2_u128..).zip(others) {
        assert_eq!(other.join().unwrap(), Bytes::copy_from_slice(&group.to_be_bytes()));
    }
}

/// A replica that was being made for another server kept the transport from closing for as long as that took.
#[test]
fn transport_closes_while_a_replica_is_being_made() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, right) = hosting(dir.path());
    let (host, calls, release) = held();
    replica.transport.on_host(host);
    let address = replica.address;
    let asking = std::thread::spawn(move || ask(address, right));
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap(), 1);
    let transport = replica.transport.clone();
    let (closed, is_closed) = mpsc::channel();
    std::thread::spawn(move || {
        transport.close();
        closed.send(()).unwrap();
    });
    is_closed.recv_timeout(PATIENCE).expect("it closes");
    assert!(asking.join().unwrap().is_err());
    drop(release);
    replica.log.close().unwrap();
}
