//! Copies of one named log: of servers that keep many, of such copies, through changes of leader.

use crate::served::{One, Server, Trio};
use crate::support::{LONG, append, event, quick, same, until};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, FollowerLog, Index, Log, Logs, LogsOptions, NodeId, Options, Start};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use chiplog_net::service::log::NativeOptions;
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::follow_request::Start as Asked;
use chiplog_net::wire::proto::v1::{FollowPlace, FollowRecords, FollowRequest};
use chiplog_net::wire::status::from_status;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server with named logs.
struct Named {
    one: One,
    logs: Logs,
    _dir: TempDir,
}

impl Named {
    fn new() -> Self {
        let (one, dir) = (One::new(), tempfile::tempdir().unwrap());
        let options = Options::with_segment_bytes(1 << 20).sessions_max(64);
        let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(options)).unwrap();
        one.server.host.open_named(logs.clone());
        Self { one, logs, _dir: dir }
    }

    /// Two logs with records in the same blocks.
    fn create(&self) -> (Log, Log) {
        (self.logs.create("orders").unwrap(), self.logs.create("users/1").unwrap())
    }
}

/// Appends to both logs in turn; returns the index of the last record of the first one.
fn append_both(orders: &Log, users: &Log, count: u64, bytes: usize) -> Index {
    let mut last = Index(0);
    for n in 0..count.div_ceil(50) {
        append(users, 30, bytes);
        last = append(orders, 50.min(count - n * 50), bytes);
    }
    last
}

fn options(log: &str) -> FollowerOptions {
    quick().log(log.to_owned())
}

fn follow(dir: &Path, servers: &[String], from: Start, log: &str) -> Follower {
    Follower::open(dir, servers.iter().cloned(), from, options(log)).unwrap()
}

fn stopped(event: &FollowerEvent) -> Option<chiplog::Error> {
    match event {
        FollowerEvent::Stopped { error } => Some(error.clone()),
        _ => None,
    }
}

#[test]
fn copy_of_one_log_begins_anywhere_and_is_kept_up_to_date() {
    let named = Named::new();
    let (orders, users) = named.create();
    let servers = [named.one.address()];
    append_both(&orders, &users, 500, 200);
    std::thread::sleep(Duration::from_millis(5));
    let middle = append_both(&orders, &users, 500, 200);
    let time = orders.read(Index(501)).unwrap().timestamp;
    let copies = [
        (Start::First, Index(1)),
        (Start::Index(Index(300)), Index(300)),
        (Start::Last(10), Index(991)),
        (Start::Timestamp(time), Index(501)),
        (Start::Next, middle.next()),
    ]
    .map(|(from, first)| (tempfile::tempdir().unwrap(), from, first));
    let open = || copies.each_ref().map(|(dir, from, _)| follow(dir.path(), &servers, *from, "orders"));
    let followers = open();
    let last = append_both(&orders, &users, 200, 2_000);
    for (copy, (_, from, first)) in followers.iter().zip(&copies) {
        same(copy.log(), &orders, last);
        assert_eq!(copy.log().first_index(), *first, "{from:?}");
        assert_eq!(copy.log().log_id(), orders.log_id());
        until("it is up to date", || copy.status().fed && copy.status().lag() == 0);
    }
    // A discard reaches copies that have the records, without a new one.
    orders.discard(Index(601)).unwrap();
    let discarded = |e: &FollowerEvent| match e {
        FollowerEvent::Discarded { first } => Some(*first),
        _ => None,
    };
    assert_eq!(event(&followers[0], discarded), Index(601));
    followers.iter().for_each(|copy| copy.close().unwrap());
    drop(followers);
    let last = append_both(&orders, &users, 300, 100);
    for copy in open() {
        same(copy.log(), &orders, last);
        assert_eq!(copy.status().jumps, 0);
        copy.close().unwrap();
    }
    // Discarded before it was received.
    orders.discard(last).unwrap();
    let copy = follow(copies[0].0.path(), &servers, Start::First, "orders");
    append_both(&orders, &users, 10, 100);
    orders.discard(last.plus(5)).unwrap();
    let copied = copy.log().last_index();
    copy.close().unwrap();
    assert!(copied >= last);
    drop(copy);
    append_both(&orders, &users, 50, 100);
    let last = append_both(&orders, &users, 50, 100);
    orders.discard(last).unwrap();
    let copy = follow(copies[0].0.path(), &servers, Start::First, "orders");
    let to = event(&copy, |e| match e {
        FollowerEvent::Jumped { to, .. } => Some(*to),
        _ => None,
    });
    assert_eq!(to, last);
    same(copy.log(), &orders, last);
}

/// The host of a copy serves it by the log's name and as its only log. Copies of different beginnings feed each other.
#[test]
fn copies_of_one_log_feed_each_other() {
    let named = Named::new();
    let (orders, users) = named.create();
    append_both(&orders, &users, 1_000, 300);
    let dirs = [0; 4].map(|_| tempfile::tempdir().unwrap());
    let near = follow(dirs[0].path(), &[named.one.address()], Start::First, "orders");
    let late = follow(dirs[1].path(), &[named.one.address()], Start::Index(Index(700)), "orders");
    let serving = Server::serve(near.host().clone(), 0, NativeOptions::default());
    let far = follow(dirs[2].path(), std::slice::from_ref(&serving.address), Start::Last(400), "orders");
    let unnamed = follow(dirs[3].path(), std::slice::from_ref(&serving.address), Start::First, "");
    let last = append_both(&orders, &users, 100, 300);
    for copy in [&near, &late, &far, &unnamed] {
        same(copy.log(), &orders, last);
    }
    assert_eq!(late.log().first_index(), Index(700));
    // Each numbers its entries by itself, and continues at any of the others.
    late.close().unwrap();
    drop(late);
    let last = append_both(&orders, &users, 100, 300);
    let late = follow(dirs[1].path(), std::slice::from_ref(&serving.address), Start::First, "orders");
    same(late.log(), &orders, last);
    assert_eq!((late.log().first_index(), late.status().jumps), (Index(700), 0));
    let entries = |copy: &Follower| copy.log().status().replica.last_entry;
    assert_ne!(entries(&late), entries(&near));
    // Readers find it by both names, and by no other.
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for (log, found) in [("orders", true), ("", true), ("users/1", false)] {
            let options = chiplog_net::client::ClientOptions::default().log(log.to_owned());
            let servers = [serving.address.clone()];
            let client = chiplog_net::client::Client::connect(servers, options).await;
            assert_eq!(client.is_ok(), found, "{log:?}: {client:?}");
        }
    });
}

#[test]
fn missing_or_deleted_log_stops_the_follower() {
    let named = Named::new();
    let (orders, users) = named.create();
    let last = append_both(&orders, &users, 100, 100);
    let dir = tempfile::tempdir().unwrap();
    let servers = [named.one.address()];
    let begun = Instant::now();
    let wrong = Follower::open(dir.path(), servers.clone(), Start::First, options("order")).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::NotFound, "{wrong}");
    assert!(wrong.to_string().contains("\"order\""), "{wrong}");
    assert!(begun.elapsed() < LONG / 2, "it does not wait until the log is created");

    let copy = follow(dir.path(), &servers, Start::First, "orders");
    same(copy.log(), &orders, last);
    let other = tempfile::tempdir().unwrap();
    let away = follow(other.path(), &servers, Start::First, "orders");
    away.wait_for(last, LONG).unwrap();
    away.close().unwrap();
    drop(away);
    named.logs.delete("orders").unwrap();
    let error = event(&copy, stopped);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("\"orders\""), "{error}");
    assert_eq!(copy.wait_for(last.next(), LONG).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(copy.log().last_index(), last, "its records can be read");
    // Another log has the name now.
    let again = named.logs.create("orders").unwrap();
    append(&again, 300, 100);
    let away = follow(other.path(), &servers, Start::First, "orders");
    let error = event(&away, stopped);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("another log has its name"), "{error}");
    assert_eq!(away.log().last_index(), last);
}

/// A server does not know its named logs at once when it starts.
#[test]
fn copy_waits_for_a_server_that_starts() {
    let named = Named::new();
    let (orders, users) = named.create();
    let last = append_both(&orders, &users, 100, 100);
    let dir = tempfile::tempdir().unwrap();
    let Named { mut one, logs, _dir } = named;
    let copy = follow(dir.path(), &[one.address()], Start::First, "orders");
    copy.wait_for(last, LONG).unwrap();
    let port = one.address().rsplit_once(':').unwrap().1.parse().unwrap();
    let other = Server::start(One::new().log.clone());
    drop(std::mem::replace(&mut one.server, other));
    one.server = Server::start_at(one.log.clone(), port, NativeOptions::default());
    let failed = |e: &FollowerEvent| match e {
        FollowerEvent::Failed { error, .. } => Some(error.kind()).filter(|kind| *kind == ErrorKind::NotFound),
        _ => None,
    };
    event(&copy, failed);
    one.server.host.open_named(logs);
    let last = append_both(&orders, &users, 10, 100);
    same(copy.log(), &orders, last);
    assert!(copy.status().stopped.is_none());
}

/// The server checks who asks, and for what.
#[test]
fn request_that_cannot_be_a_copy_of_one_log_is_refused() {
    let named = Named::new();
    let (orders, users) = named.create();
    append_both(&orders, &users, 100, 100);
    let id = bytes::Bytes::copy_from_slice(&orders.log_id().get().to_be_bytes());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refusal = |start, records, log_id: &bytes::Bytes| {
        let request = FollowRequest {
            log: "orders".into(),
            log_id: log_id.clone(),
            start: Some(start),
            records,
            ..FollowRequest::default()
        };
        runtime.block_on(async {
            let mut client = FollowClient::connect(format!("http://{}", named.one.address())).await.unwrap();
            client.follow(request).await.map(drop).map_err(|status| from_status(&status).kind())
        })
    };
    let records = |next, first| Some(FollowRecords { next, first, timestamp_nanos: 0 });
    let after = |index| Asked::After(FollowPlace { index, term: 1 });
    let new = bytes::Bytes::new();
    assert_eq!(refusal(Asked::Oldest(true), records(0, 0), &new), Ok(()));
    assert_eq!(refusal(after(5), records(20, 1), &id), Ok(()));
    // A follower of an earlier version, which would continue behind an entry.
    assert_eq!(refusal(Asked::Oldest(true), None, &new), Err(ErrorKind::Unsupported));
    assert_eq!(refusal(after(5), None, &id), Err(ErrorKind::Diverged));
    assert_eq!(refusal(after(5), records(0, 0), &id), Err(ErrorKind::Diverged));
    for (index, next, first) in [(u64::MAX, 20, 1), (5, u64::MAX, 1), (5, 20, u64::MAX)] {
        assert_eq!(refusal(after(index), records(next, first), &id), Err(ErrorKind::InvalidArgument));
    }
    let other = bytes::Bytes::copy_from_slice(&users.log_id().get().to_be_bytes());
    assert_eq!(refusal(after(5), records(20, 1), &other), Err(ErrorKind::NotFound));
}

/// Replicas of one group on each server.
struct Replicas {
    network: MemoryNetwork,
    dirs: Vec<TempDir>,
    logs: Vec<Log>,
}

impl Replicas {
    fn new(addresses: &[String]) -> Self {
        let network = MemoryNetwork::new();
        let dirs: Vec<TempDir> = addresses.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let mut all = Self { network, dirs, logs: Vec::new() };
        for (node, address) in (1..).zip(addresses) {
            let bootstrap = all.logs.first().map_or(Bootstrap::Init, |log| Bootstrap::Join(log.log_id()));
            let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, all.network.transport());
            cluster.heartbeat = Duration::from_millis(30);
            cluster.election_timeout = Duration::from_secs(1);
            let port = node + 7000;
            cluster.address = format!("127.0.0.1:{port} {address}");
            let address = cluster.address.clone();
            let options = Options::with_segment_bytes(1 << 20).sessions_max(64).cluster(cluster);
            let log = Log::open(all.dirs[node as usize - 1].path(), options).unwrap();
            if let Some(first) = all.logs.first() {
                let add = Change::AddLearner { node: NodeId(node), directory: log.directory_id(), address };
                first.change_members(&[add], LONG).unwrap();
                first.change_members(&[Change::Promote(NodeId(node))], LONG).unwrap();
            }
            all.logs.push(log);
        }
        all
    }

    fn leader(&self) -> usize {
        let end = Instant::now() + LONG;
        loop {
            if let Some(n) = self.logs.iter().position(|log| log.role() == Role::Leader) {
                return n;
            }
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Any replica of the log's group feeds the copy, which continues at another one when its server is gone, and when another
/// replica leads.
#[test]
fn copy_of_one_log_continues_through_changes_of_leader() {
    let mut trio = Trio::new();
    let addresses = trio.addresses();
    let (system, group) = (Replicas::new(&addresses), Replicas::new(&addresses));
    let named: Vec<Logs> = (0..3)
        .map(|n| {
            let logs = Logs::of(system.logs[n].clone());
            logs.add_group(1, group.logs[n].clone()).unwrap();
            trio.server(n as u64 + 1).host.open_named(logs.clone());
            logs
        })
        .collect();
    named[0].create("orders").unwrap();
    named[0].create("users/1").unwrap();
    let leading = |name: &str| {
        let leader = group.leader();
        named[leader].find(name, None, LONG).unwrap()
    };
    let last = append_both(&leading("orders"), &leading("users/1"), 200, 100);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &addresses, Start::First, "orders");
    copy.wait_for(last, LONG).unwrap();
    // The server that feeds it is gone; the replicas run on.
    let feeding = copy.status().server.unwrap();
    let node = addresses.iter().position(|address| *address == feeding).unwrap() as u64 + 1;
    trio.kill(node);
    event(&copy, |e| match e {
        FollowerEvent::Switched { from, to } => (*from == feeding && *to != feeding).then_some(()),
        _ => None,
    });
    let last = append_both(&leading("orders"), &leading("users/1"), 200, 100);
    same(copy.log(), &leading("orders"), last);
    // Another replica leads the group.
    let leader = group.leader();
    group.network.disconnect(NodeId(leader as u64 + 1));
    until("another replica leads", || (0..3).any(|n| n != leader && group.logs[n].role() == Role::Leader));
    let next = (0..3).find(|n| *n != leader && group.logs[*n].role() == Role::Leader).unwrap();
    let orders = named[next].find("orders", None, LONG).unwrap();
    let last = append(&orders, 200, 100);
    same(copy.log(), &orders, last);
    assert_eq!(copy.log().first_index(), Index(1));
    group.network.connect(NodeId(leader as u64 + 1));
    let last = append(&orders, 200, 100);
    same(copy.log(), &orders, last);
    copy.close().unwrap();
    drop(copy);
    let copy = FollowerLog::open(dir.path(), quick().files).unwrap();
    assert_eq!(copy.log().last_index(), last);
}
