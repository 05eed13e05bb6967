//! A copy of a cluster, fed by one replica after another.

use crate::support::*;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::FollowFrom;
use chiplog::transport::MemoryNetwork;
use chiplog::{Log, NodeId};
use std::time::{Duration, Instant};

/// From a replica that does not lead, from a learner, from the next leader: and never an uncommitted entry.
#[test]
fn follower_of_a_cluster_switches_replicas() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let replica = |node: u64, bootstrap| {
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
        cluster.heartbeat = Duration::from_millis(20);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        Log::open(dirs[node as usize - 1].path(), options().cluster(cluster)).unwrap()
    };
    let mut logs = vec![replica(1, Bootstrap::Init)];
    for node in 2..=3 {
        let log = replica(node, Bootstrap::Join(logs[0].log_id()));
        let add =
            Change::AddLearner { node: NodeId(node), directory: log.directory_id(), address: String::new() };
        logs[0].change_members(&[add], PATIENCE).unwrap();
        logs[0].change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
        logs.push(log);
    }
    let leader = |not: u64| {
        let end = Instant::now() + PATIENCE;
        loop {
            let found =
                logs.iter().position(|l| l.role() == Role::Leader && l.status().replica.node.get() != not);
            if let Some(n) = found {
                return n;
            }
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let first = leader(0);
    append(&logs[first], 0..100);
    let others: Vec<usize> = (0..3).filter(|n| *n != first).collect();
    let follower = create(&logs[others[0]], FollowFrom::First, dirs[3].path());
    for n in [others[0], others[1], first] {
        append(&logs[first], 0..100);
        let last = logs[first].last_index();
        logs[n].wait_for(last, PATIENCE).unwrap();
        assert_eq!(catch_up(&logs[n], &follower), []);
        assert_eq!(records(follower.log()), records(&logs[n]));
    }
    assert_eq!(follower.log().status().replica.members.len(), 3);
    // The entries of an isolated leader are not committed, and not fed.
    let before = follower.log().status();
    let node = logs[first].status().replica.node;
    network.disconnect(node);
    let lost: Vec<_> = (0..20).map(|_| logs[first].submit(b"nobody hears this").unwrap()).collect();
    let next = leader(node.get());
    append(&logs[next], 0..50);
    assert_eq!(catch_up(&logs[first], &follower), []);
    assert_eq!(follower.log().last_index(), before.last_index);
    assert_eq!(catch_up(&logs[next], &follower), []);
    // The old leader lags behind the follower now: its feed returns nothing until it has caught up.
    let mut feed = logs[first].follow(follower.resume_point().unwrap()).unwrap();
    assert!(feed.next(1000).unwrap().is_none() && feed.is_behind());
    network.connect(node);
    lost.into_iter().for_each(|ticket| drop(ticket.wait().unwrap_err()));
    append(&logs[next], 0..1);
    let last = logs[next].last_index();
    logs[first].wait_for(last, PATIENCE).unwrap();
    assert!(feed.wait(Some(PATIENCE)).unwrap());
    while let Some(fed) = feed.next(1000).unwrap() {
        assert_eq!(follower.apply(fed).unwrap(), None);
    }
    assert_eq!(records(follower.log()), records(&logs[next]));
    assert!(records(follower.log()).iter().all(|(_, data, _)| data != b"nobody hears this"));
    assert_sound(dirs[3].path());
}
