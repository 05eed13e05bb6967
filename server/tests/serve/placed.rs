//! Groups of named logs that run on some of the servers only.

use crate::harness::{
    Server, clients, created_apart, ended, fed, founded_with, leader, made, made_after, run, started, status,
    vote_in_groups, wait,
};
use chiplog::{BatchBuilder, ErrorKind};
use chiplog_net::client::ClientOptions;
use chiplog_net::client::blocking::Client;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

const PLACED: [&str; 4] = ["--set", "groups=4", "--set", "group_replicas=3"];

fn lines(log: usize, from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("{log}: {n}\n")).collect()
}

/// Waits until all is well and each of this number of groups has this many voters; returns the voters of each group.
#[track_caller]
fn settled(servers: &[Server], groups: usize, replicas: usize) -> BTreeMap<u64, BTreeSet<u64>> {
    wait("each group has its voters", || {
        let shown = status(&servers.iter().filter(|server| server.is_running()).collect::<Vec<_>>());
        let nodes = |group: &Value| -> BTreeSet<u64> {
            group["voters"].as_array().unwrap().iter().map(|node| node.as_u64().unwrap()).collect()
        };
        let all = shown["groups"].as_array()?.iter();
        let of: BTreeMap<u64, BTreeSet<u64>> = all
            .filter_map(|group| Some((group["number"].as_u64()?, nodes(group))))
            .filter(|(n, _)| *n > 0)
            .collect();
        let full = of.len() == groups && of.values().all(|voters| voters.len() == replicas);
        (shown["ok"] == true && full).then_some(of)
    })
}

/// How many groups each server runs.
fn loads(of: &BTreeMap<u64, BTreeSet<u64>>, nodes: impl Iterator<Item = u64>) -> Vec<usize> {
    nodes.map(|node| of.values().filter(|voters| voters.contains(&node)).count()).collect()
}

/// Waits until the groups are spread evenly.
#[track_caller]
fn even(servers: &[Server], groups: usize, replicas: usize) -> BTreeMap<u64, BTreeSet<u64>> {
    wait("the groups are even", || {
        let of = settled(servers, groups, replicas);
        let running = servers.iter().zip(1..).filter(|(server, _)| server.is_running());
        let loads = loads(&of, running.map(|(_, node)| node));
        (loads.iter().max()? - loads.iter().min()? <= 1).then_some(of)
    })
}

/// The groups of which a server has files, in its data directory or on its second disk.
fn files(server: &Server) -> BTreeSet<u64> {
    let both = [server.data.join("named"), disk(server)];
    let entries = both.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("group-")?.parse().ok()).collect()
}

/// A second directory for the groups of a server.
fn disk(server: &Server) -> PathBuf {
    server.data.with_extension("disk")
}

/// Starts a server whose groups are in its second directory.
fn start_with_disk(server: &mut Server) {
    std::fs::create_dir_all(disk(server)).unwrap();
    let directories = format!("group_directories=[{:?}]", disk(server));
    server.start(&[&PLACED[..], &["--set", &directories]].concat());
}

/// Waits until each server has the files of the groups that it runs, and of no other.
#[track_caller]
fn files_follow(servers: &[Server], of: &BTreeMap<u64, BTreeSet<u64>>) {
    for (server, node) in servers.iter().zip(1..).filter(|(server, _)| server.is_running()) {
        let runs: BTreeSet<u64> =
            of.iter().filter(|(_, voters)| voters.contains(&node)).map(|(n, _)| *n).collect();
        wait("the files of other groups are gone", || (files(server) == runs).then_some(()));
    }
}

/// Four servers run four groups, three servers each. Every log is reached through every server. A server is added, and one
/// leaves: the groups move, and no record is lost.
#[test]
fn groups_run_on_three_of_all_servers() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers =
        founded_with((1..=4).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &PLACED);
    let client = servers[0].client.clone();
    let of = even(&servers, 4, 3);
    created_apart(&client, &["log-0", "log-1", "log-2", "log-3"]);
    assert_eq!(loads(&of, 1..=4), [3, 3, 3, 3], "{of:?}");
    files_follow(&servers, &of);

    // Each log is in another group, so each server lacks one of them.
    for (log, server) in servers.iter().cycle().skip(1).take(4).enumerate() {
        fed(&["append", &format!("{}/log-{log}", server.client)], &lines(log, 1, 500)).ok();
    }
    let reads_all = |servers: &[Server], upto: u64| {
        for server in servers.iter().filter(|server| server.is_running()) {
            for log in 0..4 {
                let read = run(&["read", &format!("{}/log-{log}", server.client)]).ok().out;
                assert!(read == lines(log, 1, upto), "log {log}: {} lines", read.lines().count());
                let info = run(&["info", &format!("{}/log-{log}", server.client), "--json"]).ok().json();
                assert_eq!(info["last"], upto, "log {log}");
            }
        }
    };
    reads_all(&servers, 500);
    for server in &servers {
        let listed = run(&["logs", "list", &server.client, "--json"]).ok().out;
        let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let groups: BTreeSet<u64> = listed.iter().map(|log| log["group"].as_u64().unwrap()).collect();
        assert_eq!(groups.len(), 4, "{listed:?}");
        assert!(listed.iter().all(|log| log["records"] == 500 && log["known"] == true), "{listed:?}");
    }

    // A log of each group is created, sealed and deleted through a server that may lack it.
    let names: Vec<String> = (0..4).map(|n| format!("short-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run(&[&["logs", "create", &servers[3].client], &names[..]].concat()).ok();
    run(&["logs", "seal", &servers[2].client, "short-1", "short-2"]).ok();
    let sealed = fed(&["append", &format!("{}/short-2", servers[1].client)], "x\n");
    assert!(sealed.code != 0 && sealed.err.contains("sealed"), "{}", sealed.err);
    run(&[&["logs", "delete", &servers[2].client], &names[..], &["--yes"]].concat()).ok();
    for name in names {
        assert_eq!(run(&["info", &format!("{}/{name}", servers[3].client)]).code, 4, "{name}");
    }

    let mut fifth = Server::new(5, dir.path());
    fifth.start(&PLACED);
    made(&["member", "add", &fifth.client, "--cluster", &client, "--promote"]);
    servers.push(fifth);
    let of = wait("the added server has groups", || {
        let of = even(&servers, 4, 3);
        (loads(&of, 5..=5)[0] >= 2).then_some(of)
    });
    files_follow(&servers, &of);
    reads_all(&servers, 500);

    // The server that leads the default log leaves: it is emptied first.
    let leader = leader(&servers.iter().collect::<Vec<_>>());
    let another = servers.iter().zip(1..).find(|(_, node)| *node != leader).unwrap().0.client.clone();
    made_after(&["member", "remove", &leader.to_string(), "--cluster", &another], Some("wait until"));
    servers[leader as usize - 1].kill();
    let of = settled(&servers, 4, 3);
    assert!(of.values().all(|voters| !voters.contains(&leader)), "{of:?}");
    for (log, server) in servers.iter().filter(|server| server.is_running()).enumerate() {
        fed(&["append", &format!("{}/log-{log}", server.client)], &lines(log, 501, 600)).ok();
    }
    reads_all(&servers, 600);
}

/// Batches of several logs reach their group through any server. Logs of two groups are refused, also by a server that lacks one of
/// these groups: it would name the servers of that one, and those the servers of the other one.
#[test]
fn batches_of_several_logs_reach_their_group_through_any_server() {
    let dir = tempfile::tempdir().unwrap();
    let servers =
        founded_with((1..=4).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &PLACED);
    even(&servers, 4, 3);
    let client = servers[0].client.clone();
    created_apart(&client, &["log-0", "log-1", "log-2", "log-3"]);
    for n in 0..4 {
        run(&["logs", "create", &client, &format!("pair-{n}"), "--beside", &format!("log-{n}")]).ok();
    }
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    for (count, server) in (1..).zip(&servers) {
        let client = Client::connect([server.client.clone()], ClientOptions::default()).unwrap();
        let of_log = |name: &str, n: usize| client.of_log(&format!("{name}-{}", n % 4)).unwrap();
        for n in 0..4 {
            let (log, pair, other) = (of_log("log", n), of_log("pair", n), of_log("log", n + 1));
            let appended = Client::append_together(&[(&log, &batch), (&pair, &batch)]).unwrap();
            assert_eq!(appended.iter().map(|at| at.first.get()).collect::<Vec<_>>(), [count, count]);
            let refused = Client::append_together(&[(&log, &batch), (&other, &batch)]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            assert!(refused.to_string().contains("different groups"), "{refused}");
        }
    }
}

/// A server that lost the directory of one group took part in it no more: its group kept two voters of three for good.
#[test]
fn lost_directory_of_a_group_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=4"];
    let mut servers = founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect(), &groups);
    settled(&servers, 4, 3);
    let client = servers[0].client.clone();
    run(&["logs", "create", &client, "orders"]).ok();
    fed(&["append", &format!("{client}/orders")], &lines(0, 1, 200)).ok();
    servers[2].kill();
    std::fs::remove_dir_all(servers[2].data.join("named/group-1")).unwrap();
    servers[2].start(&groups);
    wait("the group has a new replica there, which votes", || {
        let shown = run(&["status", &format!("{client}/_group-1"), "--json"]).json();
        // Before that the member with the lost directory votes, and has no records; then there are two members.
        let votes = |replica: &&Value| replica["voter"] == true && replica["last"] == 200;
        let voters = shown["replicas"].as_array()?.iter().filter(votes).count();
        (files(&servers[2]).contains(&1) && shown["ok"] == true && voters == 3).then_some(())
    });
    servers[0].kill(); // the records are on the other two
    let both = format!("{},{}", servers[1].client, servers[2].client);
    fed(&["append", &format!("{both}/orders")], &lines(0, 201, 300)).ok();
    assert_eq!(run(&["read", &format!("{both}/orders")]).ok().out, lines(0, 1, 300));
}

/// The only voter of a group was removed, and could give the group to no other server: its logs were lost. A server that is demoted first
/// gives its groups away.
#[test]
fn only_voter_of_a_group_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let alone = ["--set", "groups=4", "--set", "group_replicas=1"];
    let servers = founded_with((1..=4).map(|node| Server::new(node, dir.path())).collect(), &alone);
    let client = servers[0].client.clone();
    let of = even(&servers, 4, 1);
    run(&["logs", "create", &client, "log-0", "log-1", "log-2", "log-3"]).ok();
    (0..4).for_each(|log| _ = fed(&["append", &format!("{client}/log-{log}")], &lines(log, 1, 100)).ok());
    let has_one = |node: &u64| of.values().any(|voters| voters.contains(node));
    let out = (2..=4).find(has_one).unwrap().to_string();
    let refused = run(&["member", "remove", &out, "--cluster", &client]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("has no voter that stays") && refused.err.contains("member demote"),
        "{}",
        refused.err
    );
    made(&["member", "demote", &out, "--cluster", &client]);
    wait("its groups are on others", || {
        let shown = run(&["status", &client, "--json"]).json();
        let leaves = |group: &Value| {
            !group["voters"].as_array().unwrap().contains(&out.parse::<u64>().unwrap().into())
        };
        (shown["groups"].as_array()?.iter().all(leaves) && shown["ok"] == true).then_some(())
    });
    made(&["member", "remove", &out, "--cluster", &client]);
    for log in 0..4 {
        fed(&["append", &format!("{client}/log-{log}")], &lines(log, 101, 200)).ok();
        assert_eq!(run(&["read", &format!("{client}/log-{log}")]).ok().out, lines(log, 1, 200));
    }
}

/// Groups move to a server that is added, while clients append to all logs and servers are killed one after the other.
#[test]
fn moves_under_load_and_kills_lose_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> = (1..=4).map(|node| Server::new(node, dir.path())).collect();
    servers.iter_mut().for_each(start_with_disk);
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    even(&servers, 4, 3);
    let client = servers[0].client.clone();
    run(&["logs", "create", &client, "log-0", "log-1", "log-2", "log-3"]).ok();
    let all = servers.iter().map(|server| server.client.clone()).collect::<Vec<_>>().join(",");
    let mut appends: Vec<_> = (0..4)
        .map(|log| started(&["append", &format!("{all}/log-{log}"), "--batch", "10", "--json"]))
        .collect();
    let mut inputs: Vec<_> = appends.iter_mut().map(|append| append.stdin.take().unwrap()).collect();
    let mut fed = 0;
    let mut feed = |more: u64| {
        for (log, input) in inputs.iter_mut().enumerate() {
            input.write_all(lines(log, fed + 1, fed + more).as_bytes()).unwrap();
        }
        fed += more;
        fed
    };
    feed(500);
    let mut fifth = Server::new(5, dir.path());
    start_with_disk(&mut fifth);
    made(&["member", "add", &fifth.client, "--cluster", &client, "--promote"]);
    servers.push(fifth);
    for n in [3, 0, 4, 1, 2] {
        feed(500);
        servers[n].kill();
        feed(500);
        std::thread::sleep(Duration::from_millis(300));
        start_with_disk(&mut servers[n]);
    }
    let of = even(&servers, 4, 3);
    let last = feed(500);
    drop(inputs);
    for (log, append) in appends.into_iter().enumerate() {
        let appended = ended(append).ok().json();
        assert_eq!(
            (&appended["records"], &appended["last"]),
            (&last.into(), &last.into()),
            "log {log}: {appended}"
        );
    }
    for (log, server) in servers.iter().skip(1).enumerate() {
        let read = run(&["read", &format!("{}/log-{log}", server.client)]).ok().out;
        assert!(read == lines(log, 1, last), "log {log}: {} lines of {last}", read.lines().count());
    }
    files_follow(&servers, &of);
    for (server, node) in servers.iter().zip(1..) {
        // A disk is missed later only if it has groups.
        let list = std::fs::read_to_string(server.data.join("named/chiplog.directories")).unwrap();
        let noted =
            list.lines().filter_map(|line| line.strip_prefix("group ")?.split_once(' ')?.0.parse().ok());
        let runs = of.iter().filter(|(_, voters)| voters.contains(&node)).map(|(group, _)| *group);
        assert_eq!(noted.collect::<BTreeSet<u64>>(), runs.collect(), "node {node}");
    }
}

/// A server is down while its groups move elsewhere, and gets them again at once when it returns: with its old directories it
/// took no part.
#[test]
fn removed_replica_gets_a_new_directory_when_its_group_returns() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers =
        founded_with((1..=4).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &PLACED);
    let client = servers[0].client.clone();
    even(&servers, 4, 3);
    run(&["logs", "create", &client, "log-0", "log-1", "log-2", "log-3"]).ok();
    (0..4).for_each(|log| _ = fed(&["append", &format!("{client}/log-{log}")], &lines(log, 1, 100)).ok());
    servers[3].kill();
    wait("it loses its vote", || {
        let demoted = run(&["member", "demote", "4", "--cluster", &client, "--force"]);
        (demoted.code == 0).then_some(())
    });
    wait("its groups are on the others", || {
        let shown = run(&["status", &client, "--json"]).json();
        let without = |group: &Value| group["number"] == 0 || group["voters"] == serde_json::json!([1, 2, 3]);
        shown["groups"].as_array()?.iter().all(without).then_some(())
    });
    servers[3].start(&PLACED);
    wait("it votes again", || {
        (run(&["member", "promote", "4", "--cluster", &client]).code == 0).then_some(())
    });
    let of = even(&servers, 4, 3);
    assert!(loads(&of, 4..=4)[0] >= 2, "{of:?}");
    files_follow(&servers, &of);
    servers[0].kill(); // the groups that it ran have a majority only with server 4
    let others = servers[1..].iter().map(|server| server.client.clone()).collect::<Vec<_>>().join(",");
    for log in 0..4 {
        fed(&["append", &format!("{others}/log-{log}")], &lines(log, 101, 200)).ok();
        assert_eq!(run(&["read", &format!("{others}/log-{log}")]).ok().out, lines(log, 1, 200));
    }
}

/// A server that left the cluster gave its groups to the first voter of the default log, whether that was heard or not: it kept them, and
/// refused their appends while it waited for the other one.
#[test]
fn server_that_left_gives_its_groups_to_one_that_answers() {
    let dir = tempfile::tempdir().unwrap();
    let servers =
        founded_with((1..=4).map(|node| Server::new(node, dir.path())).collect(), &["--set", "groups=1"]);
    vote_in_groups(&servers, 1);
    servers[0].signal(Signal::STOP);
    let both = clients(&[&servers[1], &servers[2]]);
    for log in ["_system", "_group-1"] {
        let target = format!("{both}/{log}");
        wait("server 4 leads", || {
            let moved = run(&["transfer-leader", "4", "--cluster", &target]);
            (moved.code == 0).then_some(())
        });
    }
    made(&["member", "remove", "4", "--cluster", &both, "--force"]);
    wait("the groups do without it", || {
        let shown = run(&["status", &both, "--json"]).json();
        let is_without = |group: &&Value| group["voters"] == serde_json::json!([1, 2, 3]);
        (shown["groups"].as_array()?.iter().filter(is_without).count() == 2).then_some(())
    });
    servers[0].signal(Signal::CONT);
}

/// While a group moves, its leader can be one that is not to run it. No other server found it there: logs could neither be created nor deleted.
#[test]
fn leader_of_a_group_that_moves_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let alone = ["--set", "groups=2", "--set", "group_replicas=1"];
    let servers = founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect(), &alone);
    let client = clients(&[&servers[0], &servers[1], &servers[2]]);
    let groups = || {
        let shown = run(&["status", &client, "--json"]).json();
        let groups = shown["groups"].as_array()?.clone();
        (shown["ok"] == true && groups.len() == 3).then_some(groups)
    };
    let alone = |group: &Value| group["voters"].as_array().filter(|all| all.len() == 1)?[0].as_u64();
    let (other, old) = wait("two servers run a group", || {
        let groups = groups()?;
        Some((alone(&groups[1])?, alone(&groups[2])?)).filter(|(other, old)| other != old)
    });
    created_apart(&client, &["log-0", "log-1"]);
    let listed = || -> Vec<Value> {
        let listed = run(&["logs", "list", &client, "--json"]).ok().out;
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let log = listed().into_iter().find(|log| log["group"] == 2).unwrap();
    let log = log["name"].as_str().unwrap();

    // The third server is to run it instead, and cannot: there is a file in the way. The other one could not either, if the group were
    // placed there next: that file is removed at the end.
    let third = 6 - old - other;
    let in_the_way = |node: u64| servers[node as usize - 1].data.join("named/group-2");
    [third, other].iter().for_each(|node| std::fs::write(in_the_way(*node), "").unwrap());
    let group_2 = || {
        let shown = run(&["status", &client, "--json"]).json();
        shown["groups"].as_array()?.iter().find(|group| group["number"] == 2).cloned()
    };
    let old_node = old.to_string();
    wait("the group is to move", || {
        // The command would wait until the group has moved.
        let _ = run(&["member", "demote", &old_node, "--cluster", &client, "--timeout", "1"]);
        (group_2()?["placed"] == serde_json::json!([third])).then_some(())
    });
    wait("the list has its logs", || listed().iter().all(|log| log["known"] == true).then_some(()));
    let beside = || run(&["logs", "create", &client, "log-2", "--beside", log]);
    wait("it gets new logs", || (beside().code == 0).then_some(()));
    run(&["logs", "delete", &client, log, "log-2", "--yes"]).ok();
    assert_eq!(group_2().unwrap()["voters"], serde_json::json!([old]), "it has not moved");

    // A server that failed to host a group stayed its target for ever.
    std::fs::remove_file(in_the_way(other)).unwrap();
    wait("another server takes the group", || {
        (group_2()?["voters"] == serde_json::json!([other])).then_some(())
    });
}

/// A server that vanished delayed a list of logs by 2 s for each group that only it ran, one after the other: clients gave up before that.
#[test]
fn groups_without_a_leader_delay_a_list_together() {
    let dir = tempfile::tempdir().unwrap();
    // A question ends when its connection finds the server silent: with this, later than at its own limit of 2 s.
    let patient = ["--set", "cluster.election_timeout_millis=2000"];
    let alone = [&["--set", "groups=16", "--set", "group_replicas=1"], &patient[..]].concat();
    let servers = founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect(), &alone);
    let of = even(&servers, 16, 1);
    files_follow(&servers, &of);
    let names: Vec<String> = (0..16).map(|n| format!("log-{n}")).collect();
    created_apart(&servers[0].client, &names.iter().map(String::as_str).collect::<Vec<_>>());
    // One server runs six groups: they took 12 s, and the client waits 10 s for an answer.
    let (lost, node) = loads(&of, 1..=3).into_iter().zip(1..).max().unwrap();
    assert_eq!(lost, 6, "{of:?}");
    let vanished = &servers[node - 1];
    vanished.signal(Signal::STOP);
    let others: Vec<&Server> = servers.iter().filter(|server| server.node != vanished.node).collect();
    let listed = run(&["logs", "list", &clients(&others), "--json"]).ok().out;
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let known = listed.iter().filter(|log| log["known"] == true).count();
    assert_eq!((listed.len(), known), (16, 16 - lost), "{listed:?}");
    vanished.signal(Signal::CONT);
}
