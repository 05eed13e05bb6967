//! Servers that ask each other for replicas of groups.

use crate::support::{PATIENCE, Replica, bind, three, wait};
use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::{DirectoryId, Error, ErrorKind, Index, LogId, LogInfo, LogNumber, NodeId, Term};
use chiplog_net::peer::{GROUPS_MAX, GroupOn, Host, Hosting, PeerOptions, PeerTransport};
use chiplog_net::served::elsewhere::GroupView;
use chiplog_net::wire::proto::v1::peer_client::PeerClient;
use chiplog_net::wire::proto::v1::{HostRequest, HostResponse, ViewRequest};
use chiplog_net::wire::status::from_status;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tonic::Response;

/// The answer to a request for a replica.
fn ask(at: SocketAddr, request: HostRequest) -> Result<HostResponse, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = PeerClient::connect(format!("http://{at}")).await.unwrap();
        client.host(request).await.map(Response::into_inner).map_err(|status| from_status(&status))
    })
}

/// The error of a request for the members of a group.
fn ask_view(at: SocketAddr, group: HostRequest) -> Error {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = PeerClient::connect(format!("http://{at}")).await.unwrap();
        let request = ViewRequest { group: Some(group), logs: Vec::new() };
        from_status(&client.view(request).await.unwrap_err())
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
    replica.transport.on_host(Box::new(move |group, log: LogId| {
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
        for refused in [ask(replica.address, wrong.clone()).unwrap_err(), ask_view(replica.address, wrong)] {
            assert_eq!(refused.kind(), ErrorKind::Membership, "{what}: {refused}");
            assert!(refused.to_string().contains(what), "{what}: {refused}");
        }
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
    replicas[1].transport.on_host(Box::new(|group, log: LogId| match group {
        1 => Ok(DirectoryId(log.get() + 1)),
        2 => Ok(DirectoryId(0)),
        _ => Err(Error::new(ErrorKind::Diverged, "another log is here")),
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = replicas[1].address.to_string();
    wait("node 2 knows its members", || replicas[1].transport.traffic().len() == 2);
    let ask = |node, group| {
        let of = GroupOn { node: NodeId(node), address: &address, group, log: LogId(7) };
        runtime.block_on(replicas[2].transport.ask_to_host(of, PATIENCE))
    };
    assert_eq!(ask(2, 1).unwrap(), DirectoryId(8));
    assert_eq!(ask(2, 2).unwrap_err().kind(), ErrorKind::Unavailable, "an answer without a directory");
    assert_eq!(ask(2, 3).unwrap_err().kind(), ErrorKind::Diverged);
    assert_eq!(ask(1, 1).unwrap_err().kind(), ErrorKind::Membership, "node 2 is at this address");
}

/// Describes a group, and lets a leader of term 7 make the system log.
struct Describes;

impl Hosting for Describes {
    fn host(&self, _: u32, _: LogId) -> chiplog::Result<DirectoryId> {
        Ok(DirectoryId(1))
    }

    fn view(&self, group: u32, log: LogId, logs: &[LogNumber]) -> chiplog::Result<GroupView> {
        let mut view = GroupView::default();
        (view.leads, view.leader, view.term) = (group == 1, Some(NodeId(2)), log.get() as u64);
        (view.voters, view.members) = (vec![NodeId(2)], vec![NodeId(2), NodeId(9)]);
        (view.slow_disk, view.lacks_room) = (group == 1, group == 1);
        let mut info = LogInfo::default();
        (info.log_id, info.number, info.sealed) = (LogId(5), logs[0], true);
        (info.first_index, info.last_index) = (Index(3), Index(u64::MAX));
        (view.logs, view.gone) = (vec![info], logs[1..].to_vec());
        Ok(view)
    }

    fn allow_system_log(&self, from: NodeId, term: Term) -> chiplog::Result<()> {
        match (from, term) {
            (NodeId(3), Term(7)) => Ok(()),
            _ => Err(Error::new(ErrorKind::Diverged, "there is one")),
        }
    }
}

#[test]
fn server_asks_another_one_about_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = three(dir.path(), 1 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = replicas[1].address.to_string();
    wait("node 2 knows its members", || replicas[1].transport.traffic().len() == 2);
    let ask = |node, group, logs: &[LogNumber]| {
        let of = GroupOn { node: NodeId(node), address: &address, group, log: LogId(7) };
        runtime.block_on(replicas[2].transport.ask_view(of, logs, PATIENCE))
    };
    assert_eq!(ask(2, 1, &[]).unwrap_err().kind(), ErrorKind::Unsupported, "it keeps no groups");
    replicas[1].transport.on_host(Box::new(Describes));
    let view = ask(2, 1, &[LogNumber(4), LogNumber(6)]).unwrap();
    assert!(view.slow_disk && view.lacks_room);
    assert_eq!((view.leads, view.leader, view.term), (true, Some(NodeId(2)), 7));
    assert_eq!((view.voters, view.members), (vec![NodeId(2)], vec![NodeId(2), NodeId(9)]));
    let log = &view.logs[0];
    assert_eq!((log.log_id, log.number, log.sealed), (LogId(5), LogNumber(4), true));
    assert_eq!((log.first_index, log.last_index), (Index(3), Index(u64::MAX)));
    assert_eq!(view.gone, [LogNumber(6)]);
    let other = ask(2, 2, &[LogNumber(4)]).unwrap();
    assert!(!other.leads && !other.slow_disk && !other.lacks_room);
    assert_eq!(ask(1, 1, &[]).unwrap_err().kind(), ErrorKind::Membership, "node 2 is at this address");
    let of = GroupOn { node: NodeId(2), address: &address, group: 1, log: LogId(7) };
    let found =
        |term| runtime.block_on(replicas[2].transport.ask_to_allow_system_log(of, Term(term), PATIENCE));
    found(7).unwrap();
    assert_eq!(found(8).unwrap_err().kind(), ErrorKind::Diverged);
    let many = vec![LogNumber(1); 10_002];
    assert_eq!(ask(2, 1, &many).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// A callback that says which group it was called for, and returns once it is released.
fn held() -> (Host, mpsc::Receiver<u32>, mpsc::Sender<()>) {
    let (called, calls) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let host: Host = Box::new(move |group: u32, _| {
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
    let (give_up, given_up) = tokio::sync::oneshot::channel::<()>();
    let gone = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = PeerClient::connect(format!("http://{address}")).await.unwrap();
            tokio::select! {
                _ = client.host(first) => false,
                _ = given_up => true,
            }
        })
    });
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap(), 1);
    give_up.send(()).unwrap();
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
