//! Servers with the durability class `object`: appends are in the object store, and disks have references to them. Leaders are killed, then
//! all servers, then all disks are lost; every acknowledged record comes back, once.

use crate::harness::{Server, fed, founded_with, leader, run, wait};
use crate::objects::{lines, reads_all};
use crate::slices::{acknowledged, acknowledged_in, value, with_all_in_slices};
use chiplog_net::wire::proto::v1::Durability;
use std::fs;
use std::thread::{JoinHandle, spawn};

fn addresses(servers: &[Server]) -> String {
    servers.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",")
}

/// The server that leads.
fn leading(servers: &[Server]) -> usize {
    let node = leader(&servers.iter().collect::<Vec<_>>());
    servers.iter().position(|server| server.node == node).unwrap()
}

/// Appends these records, and waits until `count` of them are in the log.
fn begin(servers: &[Server], first: u64, last: u64, count: u64) -> JoinHandle<()> {
    let all = addresses(servers);
    let appended = spawn({
        let all = all.clone();
        move || _ = fed(&["append", &all], &lines(first, last)).ok()
    });
    wait("appends are under way", || {
        (run(&["info", &all, "--json"]).json()["last"].as_u64()? >= first + count).then_some(())
    });
    appended
}

#[test]
fn leaders_are_killed_and_all_disks_lost_and_every_acknowledged_record_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let mut more = vec!["--object-store", &store];
    for set in [
        "objects.slice_interval_millis=20",
        "objects.payload_slices=true",
        "objects.object_bytes=256KiB",
        "objects.slice_bytes=512KiB",
    ] {
        more.extend(["--set", set]);
    }
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &more);
    let all = addresses(&servers);
    wait("the class is on", || {
        let told = run(&["options", &all, "--json"]).json();
        (told["options"]["payload_slices"] == 1).then_some(())
    });
    let mut last = 0;
    for _ in 0..4 {
        let appended = begin(&servers, last + 1, last + 1500, 100);
        let n = leading(&servers);
        servers[n].kill();
        appended.join().unwrap();
        last += 1500;
        servers[n].start(&more);
    }
    // All at a time: whatever was under way is sent again, and is there once.
    let appended = begin(&servers, last + 1, last + 1500, 100);
    servers.iter_mut().for_each(Server::kill);
    servers.iter_mut().for_each(|server| server.spawn(&more));
    appended.join().unwrap();
    last += 1500;
    servers.iter().for_each(|server| reads_all(server, last));
    wait("everything acknowledged is in a slice or an object", || {
        let told = run(&["status", &all, "--json"]).json();
        let replicas = told["replicas"].as_array()?.iter();
        (replicas.filter_map(|replica| replica["sliced_index"].as_u64()).max()? >= last).then_some(())
    });
    let n = leading(&servers);
    let metrics = servers[n].page("/metrics").1;
    let counters = ["stored_payloads", "payload_bytes", "unstored_confirmations"];
    for series in counters.map(|name| format!("chiplog_{name}_total")) {
        assert!(metrics.contains(&format!("\n{series} ")), "no {series} in {metrics}");
    }
    assert_eq!(acknowledged(&servers[n], &"x".repeat(500)), Durability::Object);
    for server in &mut servers {
        server.kill();
        fs::remove_dir_all(&server.data).unwrap();
    }

    let told = run(&["tier", "status", &store, "--json"]).ok().json();
    assert_eq!((&told["unknown"], &told["root"]), (&0.into(), &true.into()), "{told}");
    assert!(told["payloads"].as_u64().unwrap() > 0, "{told}");
    // It removes all that nothing needs, and nothing else.
    let collected = run(&["tier", "gc", &store, "--delete", "--json"]).ok().json();
    assert_eq!(collected["needed_objects"], told["objects"], "{collected} {told}");
    assert_eq!(collected["deleted_payloads"], told["unneeded_payloads"], "{collected} {told}");
    let verified = run(&["tier", "verify", &store, "--json"]).ok().json();
    assert_eq!(verified["ok"], true, "{verified}");
    let (backup, data) = (dir.path().join("backup"), dir.path().join("again"));
    let fetched = run(&["tier", "fetch", &store, backup.to_str().unwrap(), "--json"]).ok().json();
    assert!(fetched["first"] == 1 && fetched["last"].as_u64().unwrap() >= last, "{fetched}");
    run(&["restore", backup.to_str().unwrap(), data.to_str().unwrap()]).ok();
    let read = run(&["read", data.to_str().unwrap()]).ok().out;
    assert!(read.starts_with(&lines(1, last)), "{} bytes are read", read.len());
}

/// Named logs: the leader of each group sets the class, and the leader of their catalogue does not. A leader is killed, then all disks are
/// lost.
#[test]
fn named_logs_have_the_class_and_come_back_from_the_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let mut more = vec!["--object-store", &store];
    for set in [
        "groups=1",
        "objects.slice_interval_millis=20",
        "objects.payload_slices=true",
        "objects.object_bytes=256KiB",
    ] {
        more.extend(["--set", set]);
    }
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &more);
    let all = addresses(&servers);
    let of = |name: &str| format!("{all}/{name}");
    run(&["logs", "create", &all, "orders", "users", "gone"]).ok();
    wait("the class is on", || {
        let told = run(&["options", &of("_group-1"), "--json"]).json();
        (told["options"]["payload_slices"] == 1).then_some(())
    });
    for name in ["orders", "users", "gone"] {
        fed(&["append", &of(name)], &lines(1, 600)).ok();
    }
    run(&["discard", &of("users"), "101"]).ok();
    run(&["logs", "delete", &all, "gone", "--yes"]).ok();
    let at = with_all_in_slices(&servers, "1").node;
    let leading = servers.iter().position(|server| server.node == at).unwrap();
    servers[leading].kill();
    fed(&["append", &of("orders")], &lines(601, 900)).ok();
    servers[leading].start(&more);
    let leading = with_all_in_slices(&servers, "1");
    let page = leading.page("/metrics").1;
    for series in ["stored_payloads", "payload_bytes", "payload_failures", "unstored_confirmations"] {
        assert!(
            page.contains(&format!("\nchiplog_group_{series}_total{{group=\"1\"}}")),
            "no {series} in {page}"
        );
    }
    let of_catalogue = value(&page, "chiplog_group_stored_payloads_total{group=\"system\"}");
    assert_eq!(of_catalogue, Some(0), "{page}");
    let large = "x".repeat(500);
    assert_eq!(acknowledged_in(leading, "orders", &large), Durability::Object);
    let read = |at: &str, name: &str| run(&["read", &format!("{at}/{name}")]).ok().out;
    let orders = lines(1, 900) + &large + "\n";
    for server in &servers {
        let at = format!("{}/orders", server.client);
        wait("it has all of them", || (run(&["read", &at]).out == orders).then_some(()));
    }
    let id = run(&["info", &all, "--json"]).ok().json()["log_id"].as_str().unwrap().to_owned();
    let list = dir.path().join("store").join(id).join("named");
    wait("the store has the list of the logs", || {
        fs::read_to_string(&list).ok().filter(|list| list.contains("group 1 "))
    });
    with_all_in_slices(&servers, "system");
    for server in &mut servers {
        server.kill();
        fs::remove_dir_all(&server.data).unwrap();
    }
    let verified = run(&["tier", "verify", &store, "--json"]).ok().json();
    assert_eq!(verified["ok"], true, "{verified}");
    run(&["tier", "gc", &store, "--delete"]).ok();
    let (backup, data) = (dir.path().join("backup"), dir.path().join("again/node1"));
    fs::create_dir(dir.path().join("again")).unwrap();
    run(&["tier", "fetch", &store, backup.to_str().unwrap()]).ok();
    let restored = run(&["restore", backup.to_str().unwrap(), data.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!(restored["named_logs"], 2, "{restored}");
    let mut first = Server::new(1, &dir.path().join("again"));
    first.start(&more);
    wait("it serves the named logs", || {
        (run(&["read", &format!("{}/users", first.client)]).code == 0).then_some(())
    });
    assert_eq!(read(&first.client, "orders"), orders);
    assert_eq!(read(&first.client, "users"), lines(101, 600));
}
