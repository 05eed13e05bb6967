//! Groups of named logs in several directories, as on several disks: restarts, a changed list, a disk that is not mounted.

use crate::harness::{
    Server, clients, created_apart, fed, leader_of, made, run, status, vote_in_groups, wait,
};
use std::fs;
use std::path::{Path, PathBuf};

/// The option for these directories.
fn listed(disks: &[&Path]) -> String {
    let names: Vec<String> = disks.iter().map(|disk| format!("{:?}", disk.display().to_string())).collect();
    format!("group_directories=[{}]", names.join(", "))
}

fn start(server: &mut Server, groups: u32, disks: &[&Path]) {
    server.start(&["--set", &format!("groups={groups}"), "--set", &listed(disks)]);
}

/// The directories of groups that have a log's files.
fn groups_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let groups = entries.filter(|path| path.join("chiplog.id").exists());
    let mut names: Vec<String> =
        groups.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn wait_for_groups(dir: &Path, groups: &[&str]) {
    wait("the groups are there", || (groups_in(dir) == groups).then_some(()));
}

/// Waits until a log has this many records.
fn has(server: &Server, log: &str, records: u64) {
    let target = format!("{}/{log}", server.client);
    wait("the log is open", || {
        let info = run(&["info", &target, "--json"]);
        (info.code == 0 && info.json()["last"] == records).then_some(())
    });
}

#[test]
fn groups_are_spread_over_disks_and_one_that_is_not_mounted_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let disks: Vec<PathBuf> = ["disk-1", "disk-2"].map(|name| dir.path().join(name)).into();
    let (one, two) = (disks[0].as_path(), disks[1].as_path());
    disks.iter().for_each(|disk| fs::create_dir(disk).unwrap());
    let mut server = Server::new(1, dir.path());
    let named = server.data.join("named");

    // A server with a group gets disks later.
    server.start(&["--init", "--set", "groups=1"]);
    run(&["logs", "create", &server.client, "old"]).ok();
    fed(&["append", &format!("{}/old", server.client)], "a\n").ok();
    server.stop();
    start(&mut server, 3, &[one, two]);
    wait_for_groups(two, &["group-3"]);
    assert_eq!(
        (groups_in(one), groups_in(&named)),
        (vec!["group-2".into()], vec!["group-1".into(), "system".into()])
    );
    run(&["logs", "create", &server.client, "second"]).ok();
    run(&["logs", "create", &server.client, "third"]).ok();
    for log in ["old", "second", "third"] {
        fed(&["append", &format!("{}/{log}", server.client)], "b\n").ok();
    }
    let metrics = server.page("/metrics").1;
    assert!(metrics.contains("chiplog_group_disk_free_bytes{group=\"3\"}"), "{metrics}");
    server.stop();

    // The list in another order, and one disk at another path.
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(two, &elsewhere).unwrap();
    start(&mut server, 3, &[&elsewhere, one]);
    has(&server, "old", 2);
    has(&server, "second", 1);
    has(&server, "third", 1);
    server.stop();

    // It is not mounted: the others go on, and nothing is made in its place.
    let away = dir.path().join("away");
    fs::rename(&elsewhere, &away).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    start(&mut server, 4, &[&elsewhere, one]);
    wait_for_groups(one, &["group-2", "group-4"]);
    has(&server, "old", 2);
    has(&server, "second", 1);
    assert_eq!(server.page("/readyz").0, 200, "the default log serves");
    let refused = run(&["info", &format!("{}/third", server.client)]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let said = server.said();
    let reported =
        said.lines().find(|line| line.contains("mount the right one")).unwrap_or_else(|| panic!("{said}"));
    assert!(
        reported.contains(elsewhere.to_str().unwrap()) && reported.contains("with group 3"),
        "{reported}"
    );
    server.kill();

    // It is back.
    fs::remove_dir(&elsewhere).unwrap();
    fs::rename(&away, &elsewhere).unwrap();
    start(&mut server, 4, &[&elsewhere, one]);
    has(&server, "third", 1);
    server.stop();
}

#[test]
fn wrong_directories_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, other) = (dir.path().join("missing"), dir.path().join("other"));
    fs::create_dir(&other).unwrap();
    let mut first = Server::new(1, dir.path());
    first.start(&["--init", "--set", "groups=1", "--set", &listed(&[&other])]);
    wait_for_groups(&other, &["group-1"]);
    first.stop();
    let mut server = Server::new(2, dir.path());
    let below = server.data.join("below");
    for (disks, what) in [
        (vec![missing.as_path()], "does not exist"),
        (vec![below.as_path()], "the directory of the logs"),
        (vec![other.as_path(), other.as_path()], "the same as"),
        (vec![other.as_path()], "used by other named logs"),
    ] {
        server.spawn(&["--init", "--set", "groups=1", "--set", &listed(&disks)]);
        assert_ne!(server.ended(), Some(0), "{disks:?}");
        let said = server.said();
        assert!(said.contains("group_directories") && said.contains(what), "{what}: {said}");
    }
    assert!(!missing.exists());
}

/// The two disks of a server, as directories that exist.
fn two_disks(server: &Server) -> [PathBuf; 2] {
    let disks = ["disk-1", "disk-2"].map(|name| server.data.with_extension(name));
    disks.iter().for_each(|disk| fs::create_dir_all(disk).unwrap());
    disks
}

fn start_with_two(server: &mut Server) {
    let [one, two] = two_disks(server);
    start(server, 2, &[&one, &two]);
}

fn lines(log: &str, from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("{log} {n}\n")).collect()
}

/// One of three servers loses the disk of one group: it goes on with the other group, and the two others with both. A new server
/// takes its place, and then another one may fail.
#[test]
fn lost_disk_of_one_of_three_servers_costs_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    servers.iter_mut().for_each(start_with_two);
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    vote_in_groups(&servers, 2);
    let all = clients(&servers.iter().collect::<Vec<_>>());
    created_apart(&all, &["orders", "users"]);
    for log in ["orders", "users"] {
        fed(&["append", &format!("{all}/{log}")], &lines(log, 1, 200)).ok();
    }
    for server in &servers {
        let [one, two] = two_disks(server);
        assert_eq!((groups_in(&one).len(), groups_in(&two).len()), (1, 1), "node {}", server.node);
    }

    // The disk with the group of `users` dies at the server that leads that group.
    let node = leader_of(&servers.iter().collect::<Vec<_>>(), "users");
    let lost = servers.iter().position(|server| server.node == node).unwrap();
    let listed = run(&["logs", "list", &all, "--json"]).ok().out;
    let of_users = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let group = of_users.into_iter().find(|log| log["name"] == "users").unwrap()["group"].as_u64().unwrap();
    let name = format!("group-{group}");
    let disks = two_disks(&servers[lost]);
    let dead = disks.iter().find(|disk| groups_in(disk) == [name.clone()]).unwrap();
    servers[lost].kill();
    fs::remove_dir_all(dead).unwrap();
    start_with_two(&mut servers[lost]);
    for log in ["orders", "users"] {
        fed(&["append", &format!("{all}/{log}")], &lines(log, 201, 230)).ok();
        assert_eq!(run(&["read", &format!("{all}/{log}")]).ok().out, lines(log, 1, 230));
    }
    let runs = |group: u64| {
        let shown = run(&["status", &format!("{all}/_group-{group}"), "--json"]).json();
        let replicas = shown["replicas"].as_array().unwrap().clone();
        replicas.into_iter().find(|replica| replica["node"] == node).unwrap()["last"].as_u64()
    };
    wait("it goes on with the other group", || (runs(3 - group) == Some(230)).then_some(()));
    assert_eq!(groups_in(dead), Vec::<String>::new(), "nothing is made in place of the lost one");
    let said = servers[lost].said();
    let reported = said.lines().find(|line| line.contains("mount the right one"));
    let reported = reported.unwrap_or_else(|| panic!("{said}"));
    assert!(reported.contains(&format!("with group {group}")), "{reported}");
    assert_eq!(status(&servers.iter().collect::<Vec<_>>())["ok"], false);

    // It is replaced as a whole. Then the two that are left of the first ones are not a majority any more without the new one.
    servers[lost].kill();
    let gone = servers.remove(lost).node;
    let mut new = Server::new(4, dir.path());
    start_with_two(&mut new);
    let there = clients(&servers.iter().collect::<Vec<_>>());
    made(&["member", "add", &new.client, "--cluster", &there, "--promote"]);
    wait("the lost one is removed", || {
        let removed = run(&["member", "remove", &gone.to_string(), "--cluster", &there]);
        println!("{}", removed.err);
        (removed.code == 0).then_some(())
    });
    servers.push(new);
    vote_in_groups(&servers, 2);
    servers[0].kill();
    let left = clients(&servers.iter().collect::<Vec<_>>());
    for log in ["orders", "users"] {
        fed(&["append", &format!("{left}/{log}")], &lines(log, 231, 300)).ok();
        assert_eq!(run(&["read", &format!("{left}/{log}")]).ok().out, lines(log, 1, 300));
    }
}
