//! Replicas are the nodes that their certificates name, in both directions.

use crate::pki::{Authority, Leaf};
use crate::support::PATIENCE;
use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::{DirectoryId, ErrorKind, Index, Log, NodeId, Options};
use chiplog_net::peer::{PeerOptions, PeerTls, PeerTransport};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::proto::v1::peer_client::PeerClient;
use chiplog_net::wire::proto::v1::{HostRequest, HostResponse, PeerHello, PeerMessage, peer_message};
use chiplog_net::wire::status::from_status;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

fn peer_tls(authority: &Authority, leaf: &Leaf) -> PeerTls {
    PeerTls {
        certificate: leaf.certificate.clone().into_bytes(),
        key: leaf.key.clone().into_bytes(),
        authority: authority.pem.clone().into_bytes(),
    }
}

struct Replica {
    log: Log,
    transport: Arc<PeerTransport>,
    address: String,
}

impl Replica {
    fn start(node: u64, dir: &Path, bootstrap: Bootstrap, tls: PeerTls) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let address = format!("{at} {at}");
        let mut peer = PeerOptions::new(NodeId(node), listener, address.clone());
        peer.election_timeout = Duration::from_millis(400);
        peer.tls = Some(tls);
        let transport = PeerTransport::start(peer).unwrap();
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transport.clone());
        (cluster.heartbeat, cluster.election_timeout) =
            (Duration::from_millis(50), Duration::from_millis(400));
        cluster.address = address;
        let options = Options::with_segment_bytes(1 << 20).cluster(cluster);
        let log = Log::open(dir.join(node.to_string()), options).unwrap();
        transport.identify(log.log_id(), log.directory_id());
        Self { log, transport, address: at.to_string() }
    }

    fn led(dir: &Path, tls: PeerTls) -> Self {
        let first = Self::start(1, dir, Bootstrap::Init, tls);
        wait("it leads", || first.log.role() == Role::Leader);
        first
    }

    fn add(&self, node: u64, other: &Self) {
        let directory = other.log.directory_id();
        let address = format!("{0} {0}", other.address);
        self.log
            .change_members(&[Change::AddLearner { node: NodeId(node), directory, address }], PATIENCE)
            .unwrap();
    }
}

#[track_caller]
fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The Hello of a peer that claims to be node `from`.
fn hello(replica: &Replica, from: u64) -> PeerMessage {
    let status = replica.log.status();
    let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
    let hello = PeerHello {
        protocol: 1,
        log_id: bytes(status.log_id.get()),
        from,
        from_directory: bytes(77),
        to: 1,
        to_directory: bytes(status.directory_id.get()),
        from_address: "127.0.0.1:9 127.0.0.1:9".into(),
        features: 0,
        stream: 0,
        group: 0,
    };
    PeerMessage { message: Some(peer_message::Message::Hello(hello)) }
}

/// A connection to a replica with this certificate.
async fn connected(replica: &Replica, authority: &Authority, leaf: &Leaf) -> Channel {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.pem))
        .identity(Identity::from_pem(&leaf.certificate, &leaf.key))
        .domain_name("node-1");
    let endpoint = Endpoint::from_shared(format!("https://{}", replica.address)).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The replica's answer to a peer with this certificate that claims to be node `from`.
fn greet(replica: &Replica, authority: &Authority, leaf: &Leaf, from: u64) -> Result<PeerHello, Status> {
    runtime().block_on(async {
        let channel = connected(replica, authority, leaf).await;
        let answers = PeerClient::new(channel).messages(tokio_stream::iter([hello(replica, from)])).await;
        answers?.into_inner().message().await.map(|hello| hello.expect("a Hello or an error"))
    })
}

#[test]
fn certificate_of_node_2_cannot_act_as_node_3() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, foreign) = (Authority::new(), Authority::new());
    let replica = Replica::led(dir.path(), peer_tls(&ours, &ours.leaf(&["node-1"])));
    let second = ours.leaf(&["node-2", "log2.example"]);
    assert_eq!(greet(&replica, &ours, &second, 2).unwrap().from, 1);
    for (leaf, from) in
        [(&second, 3), (&ours.leaf(&["127.0.0.1", "log2.example"]), 2), (&ours.leaf(&["node-22"]), 2)]
    {
        let refused = greet(&replica, &ours, leaf, from).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert_eq!(from_status(&refused).kind(), chiplog::ErrorKind::PermissionDenied);
        assert!(refused.message().contains(&format!("node-{from}")), "{refused}");
    }
    assert_eq!(replica.transport.refusals().read(Refusal::PermissionDenied), 3);
    // Of another authority, or expired: not even a Hello is accepted.
    for leaf in [foreign.leaf(&["node-2"]), ours.expired(&["node-2"])] {
        assert!(greet(&replica, &ours, &leaf, 2).is_err());
    }
    assert_eq!(replica.transport.refusals().read(Refusal::PermissionDenied), 3);
    wait("both are counted", || replica.transport.refusals().read(Refusal::Handshake) >= 2);
}

/// The replica's answer to a server with this certificate that claims to be node `from`, and asks for a replica.
fn ask(replica: &Replica, authority: &Authority, leaf: &Leaf, from: u64) -> Result<HostResponse, Status> {
    let bytes = |id: u128| Bytes::copy_from_slice(&id.to_be_bytes());
    let cluster = bytes(replica.log.log_id().get());
    let request = HostRequest { protocol: 1, cluster, from, to: 1, group: 1, log_id: bytes(5) };
    runtime().block_on(async {
        let channel = connected(replica, authority, leaf).await;
        PeerClient::new(channel).host(request).await.map(|answer| answer.into_inner())
    })
}

/// As for streams: a server that asks for a replica of a group is the node that its certificate names.
#[test]
fn certificate_of_node_2_gets_no_replica_as_node_3() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, foreign) = (Authority::new(), Authority::new());
    let replica = Replica::led(dir.path(), peer_tls(&ours, &ours.leaf(&["node-1"])));
    replica.transport.on_host(Box::new(|group: u32, _| Ok(DirectoryId(group.into()))));
    let second = ours.leaf(&["node-2"]);
    let stranger = ask(&replica, &ours, &second, 2).unwrap_err();
    assert_eq!(from_status(&stranger).kind(), ErrorKind::Membership, "{stranger}");
    for node in [2, 3] {
        let address = "127.0.0.1:9 127.0.0.1:9".into();
        let change =
            Change::AddLearner { node: NodeId(node), directory: DirectoryId(70 + u128::from(node)), address };
        replica.log.change_members(&[change], PATIENCE).unwrap();
    }
    wait("node 2 is a member", || ask(&replica, &ours, &second, 2).is_ok());
    wait("node 3 is a member", || ask(&replica, &ours, &ours.leaf(&["node-3"]), 3).is_ok());
    for (leaf, from) in [(&second, 3), (&ours.leaf(&["127.0.0.1"]), 2), (&ours.leaf(&["node-22"]), 2)] {
        let refused = ask(&replica, &ours, leaf, from).unwrap_err();
        assert_eq!(from_status(&refused).kind(), ErrorKind::PermissionDenied, "{refused}");
        assert!(refused.message().contains(&format!("node-{from}")), "{refused}");
    }
    assert_eq!(replica.transport.refusals().read(Refusal::PermissionDenied), 3);
    assert!(ask(&replica, &ours, &foreign.leaf(&["node-2"]), 2).is_err(), "of another authority");
}

/// A leader sends its log only to the intended node; as soon as that node has its own certificate, it does.
#[test]
fn replica_sends_the_log_only_to_the_named_node() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let first = Replica::led(dir.path(), peer_tls(&ours, &ours.leaf(&["node-1"])));
    let log = first.log.log_id();
    let third = ours.leaf(&["node-3", "127.0.0.1"]);
    let second = Replica::start(2, dir.path(), Bootstrap::Join(log), peer_tls(&ours, &third));
    first.add(2, &second);
    first.log.append(b"x").unwrap();
    wait("it is called, and rejects the certificate", || {
        second.transport.refusals().read(Refusal::Handshake) >= 3
    });
    assert!(first.transport.traffic().iter().all(|t| !t.connected));
    assert_eq!(second.log.last_index(), Index(0));

    second.transport.replace_tls(peer_tls(&ours, &ours.leaf(&["node-2"]))).unwrap();
    wait("it has the log", || second.log.last_index() == Index(1));

    // An invalid identity is rejected, and changes nothing.
    let mut broken = peer_tls(&ours, &ours.leaf(&["node-2"]));
    broken.key.clear();
    assert!(second.transport.replace_tls(broken).is_err());
    first.log.append(b"y").unwrap();
    wait("it continues", || second.log.last_index() == Index(2));
}

#[test]
fn connection_has_eight_streams_and_one_more_waits() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let replica = Replica::led(dir.path(), peer_tls(&ours, &ours.leaf(&["node-1"])));
    let names: Vec<String> = (2..=10).map(|node| format!("node-{node}")).collect();
    let all = ours.leaf(&names.iter().map(String::as_str).collect::<Vec<_>>());
    runtime().block_on(async {
        let channel = connected(&replica, &ours, &all).await;
        let begin = async |node: u64| {
            let (messages, outgoing) = mpsc::channel(1);
            messages.send(hello(&replica, node)).await.unwrap();
            let answers = PeerClient::new(channel.clone()).messages(ReceiverStream::new(outgoing)).await;
            let mut answers = answers.unwrap().into_inner();
            assert_eq!(answers.message().await.unwrap().unwrap().to, node);
            (messages, answers)
        };
        let mut open = Vec::new();
        for node in 2..=9 {
            open.push(begin(node).await);
        }
        let ninth = begin(10);
        tokio::pin!(ninth);
        let waits = tokio::time::timeout(Duration::from_millis(300), &mut ninth).await;
        assert!(waits.is_err(), "nine streams are open");
        open.pop();
        tokio::time::timeout(PATIENCE, ninth).await.expect("one has ended, but the next does not start");
    });
}
