//! `chiplog backup` of servers, and new servers that start with the restored log.

use crate::harness::{Appender, Server, leader, made, records, run, status, three, wait};
use std::collections::BTreeMap;
use std::fs;

/// A backup is taken from three servers that keep taking appends; three other servers start with the restored
/// directory.
#[test]
fn backup_under_appends_restores_as_another_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let all: Vec<&Server> = servers.iter().collect();
    let list = all.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    run(&["options", &list, "--set", "sessions_max=77"]).ok();
    let appender = Appender::start(&all);
    appender.goes_on(100);
    let before = appender.count();
    let saved = dir.path().join("saved");
    let saved = saved.to_str().unwrap();
    let told = run(&["backup", &list, saved, "--segment-bytes", "1MiB", "--json"]).ok().json();
    appender.goes_on(50);
    let acked = appender.stop();
    let last = told["last"].as_u64().unwrap();
    let confirmed: BTreeMap<u64, u64> = acked.iter().take(before).map(|(i, n)| (*i, *n)).collect();
    assert!(confirmed.keys().all(|index| *index <= last), "every record confirmed before is in it: {told}");
    run(&["restore", saved, "--check"]).ok();

    let others = dir.path().join("others");
    fs::create_dir(&others).unwrap();
    let mut new: Vec<Server> = (1..=3).map(|node| Server::new(node, &others)).collect();
    let restored = run(&["restore", saved, new[0].data.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!((&restored["last"], &restored["records"]), (&told["last"], &told["records"]));
    new[0].start(&[]);
    for server in &mut new[1..] {
        server.start(&[]);
    }
    for server in &new[1..] {
        made(&["member", "add", &server.client, "--cluster", &new[0].client, "--promote"]);
    }
    let there: Vec<&Server> = new.iter().collect();
    let seen = status(&there);
    assert_eq!(seen["log_id"], restored["log_id"]);
    assert_ne!(seen["log_id"], told["log_id"]);
    assert!(run(&["options", &new[0].client]).ok().out.contains("77"), "the options of the log are kept");
    let old = records(&servers[0], *acked.last_key_value().unwrap().0);
    let kept: BTreeMap<u64, u64> = old.into_iter().filter(|(index, _)| *index <= last).collect();
    for server in &new {
        wait("the records arrive", || {
            let told = run(&["info", &server.client, "--stale", "--json"]).json();
            (told["last"].as_u64()? >= last).then_some(())
        });
        assert_eq!(records(server, last), kept, "node {}", server.node);
    }
    // They are a cluster: it keeps working without the restored server.
    let appender = Appender::start(&there);
    appender.goes_on(20);
    let node = leader(&there);
    new.iter_mut().find(|server| server.node == node).unwrap().kill();
    appender.goes_on(20);
    let acked = appender.stop();
    assert!(acked.keys().all(|index| *index > last));
}

/// Without a majority the backup cannot be known to be complete; `--stale` copies what is left.
#[test]
fn stale_backup_works_without_a_majority() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let appender = Appender::start(&servers.iter().collect::<Vec<_>>());
    appender.goes_on(20);
    let acked = appender.stop();
    let last = *acked.last_key_value().unwrap().0;
    let left = servers[2].client.clone();
    wait("the third has all records", || {
        let told = run(&["info", &left, "--stale", "--json"]).json();
        (told["last"].as_u64()? >= last).then_some(())
    });
    servers[0].kill();
    servers[1].kill();
    let saved = dir.path().join("saved");
    let refused = run(&["backup", &left, saved.to_str().unwrap()]);
    assert_eq!(refused.code, 5, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("`--stale` backs up what"), "{}", refused.err);
    assert!(!saved.exists(), "nothing was made");
    let stale = run(&["backup", &left, saved.to_str().unwrap(), "--stale", "--json"]).ok().json();
    assert!(stale["last"].as_u64().unwrap() >= last, "{stale}");
    let again = dir.path().join("again");
    run(&["restore", saved.to_str().unwrap(), again.to_str().unwrap()]).ok();
    let read = run(&["read", again.to_str().unwrap(), "--count"]).ok();
    assert_eq!(read.out.trim(), stale["records"].to_string());
}
