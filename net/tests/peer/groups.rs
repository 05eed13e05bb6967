//! Groups of named logs over one transport.

use crate::support::{PATIENCE, bind, greet, options, records, wait};
use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::Transport;
use chiplog::{Log, LogId, NodeId};
use chiplog_net::peer::{PeerOptions, PeerTransport};
use chiplog_net::wire::proto::v1::{PeerHello, PeerMessage, peer_message};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

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
