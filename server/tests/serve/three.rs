//! Three servers.

use crate::harness::{Appender, Server, leader, made, records, run, runtime, status, wait};
use chiplog::ErrorKind;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::member_change::Change;
use chiplog_net::wire::proto::v1::{ChangeMembersRequest, MemberChange};
use chiplog_net::wire::status::from_status;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// A cluster made by hand, as an operator makes it.
fn three(dir: &Path, more: &[&str]) -> Vec<Server> {
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir)).collect();
    servers.iter_mut().for_each(|s| s.start(more));
    assert_eq!(status(&[&servers[0]])["replicas"][0]["role"], "waiting");
    run(&["member", "init", &servers[0].client]).ok();
    for n in 1..=2 {
        made(&["member", "add", &servers[n].client, "--cluster", &servers[0].client]);
        let node = (n + 1).to_string();
        made(&["member", "promote", &node, "--cluster", &servers[n].client]);
    }
    servers
}

fn roles(status: &Value) -> Vec<&str> {
    let mut roles: Vec<_> =
        status["replicas"].as_array().unwrap().iter().map(|r| r["role"].as_str().unwrap()).collect();
    roles.sort_unstable();
    roles
}

/// Checks that every acknowledged record is at its index on every server.
fn check(servers: &[&Server], acked: &std::collections::BTreeMap<u64, u64>) {
    let last = *acked.last_key_value().unwrap().0;
    for server in servers {
        let all = records(server, last);
        for (index, number) in acked {
            assert_eq!(all.get(index), Some(number), "record {index} on node {}", server.node);
        }
    }
}

#[test]
fn killed_leader_is_replaced_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path(), &[]);
    let all: Vec<&Server> = servers.iter().collect();
    let shown = wait("all are members", || {
        let shown = status(&all);
        let are_members = roles(&shown) == ["follower", "follower", "leader"];
        are_members.then_some(shown)
    });
    assert!(shown["replicas"].as_array().unwrap().iter().all(|r| r["voter"] == true), "{shown}");

    let appender = Appender::start(&all);
    appender.goes_on(100);
    let first = leader(&all);
    let killed = servers.iter().position(|s| s.node == first).unwrap();
    servers[killed].kill();
    appender.goes_on(100);
    let left: Vec<&Server> = servers.iter().filter(|s| s.is_running()).collect();
    assert_ne!(leader(&left), first);
    // The remaining servers name the missing one.
    wait("the killed server is shown", || {
        let shown = status(&left);
        (roles(&shown) == ["follower", "leader", "unreachable"]).then_some(())
    });

    servers[killed].start(&[]);
    appender.goes_on(100);
    let all: Vec<&Server> = servers.iter().collect();
    wait("it is a member of three again", || {
        let shown = status(&all);
        (roles(&shown) == ["follower", "follower", "leader"]).then_some(())
    });
    check(&all, &appender.stop());
}

#[test]
fn orderly_stop_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path(), &[]);
    let appender = Appender::start(&servers.iter().collect::<Vec<_>>());
    for _ in 0..3 {
        appender.goes_on(50);
        let leads = leader(&servers.iter().collect::<Vec<_>>());
        let at = servers.iter().position(|s| s.node == leads).unwrap();
        assert_eq!(servers[at].stop(), Some(0), "{}", servers[at].said());
        assert!(servers[at].said().contains("another replica leads"), "{}", servers[at].said());
        appender.goes_on(50);
        servers[at].start(&[]);
    }
    check(&servers.iter().collect::<Vec<_>>(), &appender.stop());
}

/// No server takes over leadership, and appends in flight are never confirmed. A server still ends in its
/// time.
#[test]
fn leader_ends_in_time_when_the_others_are_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path(), &["--set", "shutdown_millis=500"]);
    let appender = Appender::start(&servers.iter().collect::<Vec<_>>());
    // Exit code 5 is "out of time"; with no time at all the log cannot be closed.
    for (millis, codes) in [("500", &[0, 5][..]), ("0", &[5])] {
        appender.goes_on(50);
        let leads = leader(&servers.iter().collect::<Vec<_>>());
        let (at, set) = (leads as usize - 1, format!("shutdown_millis={millis}"));
        if millis != "500" {
            servers[at].kill();
            servers[at].start(&["--set", &set]);
            wait("it leads again", || {
                let asked = run(&["transfer-leader", &leads.to_string(), "--cluster", &servers[at].client]);
                (asked.code == 0).then_some(())
            });
            appender.goes_on(50);
        }
        servers.iter().filter(|s| s.node != leads).for_each(|s| s.signal(Signal::STOP));
        servers[at].signal(Signal::TERM);
        let begun = Instant::now();
        let ended = servers[at].ended();
        let took = begun.elapsed();
        println!("shutdown_millis = {millis}: {ended:?} after {took:?}");
        let said = servers[at].said();
        let code = ended.unwrap();
        assert!(codes.contains(&code) && took < Duration::from_secs(30), "{code} after {took:?}: {said}");
        assert!(code == 0 || said.contains("not closed in time"), "{said}");
        servers.iter().filter(|s| s.node != leads).for_each(|s| s.signal(Signal::CONT));
        appender.goes_on(50);
        servers[at].start(&["--set", "shutdown_millis=500"]);
    }
    check(&servers.iter().collect::<Vec<_>>(), &appender.stop());
}

/// Several changes in one call come into force together, or none of them does.
#[test]
fn several_changes_of_members_in_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path(), &[]);
    let mut fourth = Server::new(4, dir.path());
    fourth.start(&[]);
    made(&["member", "add", &fourth.client, "--cluster", &servers[0].client]);
    run(&["transfer-leader", "1", "--cluster", &servers[0].client]).ok();
    let appender = Appender::start(&[&servers[0], &servers[1], &fourth]);
    appender.goes_on(20);
    let all = [&servers[0], &servers[1], &servers[2], &fourth];
    let change = |changes: &[Change]| {
        let changes = changes.iter().map(|change| MemberChange { change: Some(change.clone()) }).collect();
        let request = ChangeMembersRequest { changes, timeout_millis: 60_000, ..Default::default() };
        runtime().block_on(async {
            let at = format!("http://{}", servers[0].client);
            AdminClient::connect(at).await.unwrap().change_members(request).await
        })
    };
    let voters = || -> Vec<u64> {
        let shown = status(&all);
        let voters = shown["replicas"].as_array().unwrap().iter().filter(|r| r["voter"] == true);
        voters.filter_map(|r| r["node"].as_u64()).collect()
    };
    // One of them is impossible: none is made.
    let refused = change(&[Change::Promote(4), Change::Remove(9)]).unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Membership, "{refused}");
    assert_eq!(voters(), [1, 2, 3]);

    let changed = change(&[Change::Promote(4), Change::Remove(3), Change::Demote(2)]).unwrap().into_inner();
    let members: Vec<_> = changed.members.iter().map(|m| (m.node, m.voter, m.leaving)).collect();
    assert_eq!(members, [(1, true, false), (2, false, false), (4, true, false)], "when the answer arrives");
    appender.goes_on(20);
    check(&[&servers[0], &servers[1], &fourth], &appender.stop());
}

#[test]
fn members_are_added_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path(), &[]);
    let cluster = servers[1].client.clone();
    wait("node 3 leads", || {
        let handed = run(&["transfer-leader", "3", "--cluster", &cluster]);
        (handed.code == 0 && leader(&servers.iter().collect::<Vec<_>>()) == 3).then_some(())
    });
    wait("another one leads", || (run(&["transfer-leader", "--cluster", &cluster]).code == 0).then_some(()));

    // A repeated change that was made already is no error.
    let again = made(&["member", "add", &servers[2].client, "--cluster", &cluster, "--promote", "--json"]);
    assert_eq!(again.json()["voter"], true);
    let refused = run(&["member", "init", &servers[2].client, "--json"]);
    assert!(refused.code != 0 && refused.err.contains("already"), "{}", refused.err);

    let mut fourth = Server::new(4, dir.path());
    fourth.start(&[]);
    made(&["member", "add", &fourth.client, "--cluster", &cluster, "--promote"]);
    made(&["member", "remove", "2", "--cluster", &servers[0].client]);
    let none = run(&["member", "remove", "9", "--cluster", &servers[0].client]);
    assert_eq!(none.code, 2, "only the command is wrong: {}", none.err);
    // It was added as a learner that never caught up.
    wait("the removed server knows it", || roles(&status(&[&servers[1]])).contains(&"removed").then_some(()));
    let removed = run(&["member", "add", &servers[1].client, "--cluster", &fourth.client]);
    assert!(removed.code != 0 && removed.err.contains("never used"), "{}", removed.err);
    let left = [&servers[0], &servers[2], &fourth];
    wait("three others are left", || {
        let shown = status(&left);
        let nodes: Vec<_> = shown["replicas"].as_array()?.iter().map(|r| r["node"].as_u64()).collect();
        (nodes == [Some(1), Some(3), Some(4)] && roles(&shown) == ["follower", "follower", "leader"])
            .then_some(())
    });
    let appender = Appender::start(&left);
    appender.goes_on(20);
    check(&left, &appender.stop());

    // A server that lost its disk does not return under its number.
    let lost = servers.iter().position(|s| s.node == 3).unwrap();
    servers[lost].kill();
    std::fs::remove_dir_all(&servers[lost].data).unwrap();
    servers[lost].start(&[]);
    let refused = run(&["member", "add", &servers[lost].client, "--cluster", &fourth.client]);
    assert!(refused.code != 0 && refused.err.contains("new number"), "{}", refused.err);
}
