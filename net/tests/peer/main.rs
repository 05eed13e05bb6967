//! Replicas of one process that connect to each other over gRPC, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod groups;
mod hosting;
mod lines;
mod support;

use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::transport::{Envelope, Transport as _};
use chiplog::{DirectoryId, ErrorKind, Index, LogId, NodeId};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::proto::v1::peer_server::{Peer, PeerServer};
use chiplog_net::wire::proto::v1::{
    AllowSystemLogRequest, AllowSystemLogResponse, HostRequest, HostResponse, PeerEnvelope, PeerHello,
    PeerMessage, ViewRequest, ViewResponse, peer_message,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{ELECTION, PATIENCE, Replica, add, append, bind, greet, records, three, wait};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

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
    wait("the stream to the first one was reopened", || {
        replicas[0].transport.traffic().iter().map(|t| t.reconnects).sum::<u64>() >= 1
    });
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

    async fn allow_system_log(
        &self,
        _: Request<AllowSystemLogRequest>,
    ) -> Result<Response<AllowSystemLogResponse>, Status> {
        Err(Status::unimplemented("an earlier version"))
    }

    async fn view(&self, _: Request<ViewRequest>) -> Result<Response<ViewResponse>, Status> {
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
