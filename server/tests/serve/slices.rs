//! Servers whose newest records go to an object store as slices: all servers are killed, their disks are lost, and the log comes back
//! from the object store alone.

use crate::harness::{Server, fed, founded_with, leader, run, runtime, wait};
use chiplog::BatchBuilder;
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::log_client::LogClient;
use chiplog_net::wire::proto::v1::{AppendRequest, Durability};
use std::fs;

fn lines(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("record {n} {}\n", "x".repeat(n as usize % 500))).collect()
}

/// The durability with which the leader acknowledges an append to the default log.
pub(crate) fn acknowledged(leader: &Server, record: &str) -> Durability {
    acknowledged_in(leader, "", record)
}

/// The same of a named log.
pub(crate) fn acknowledged_in(leader: &Server, log: &str, record: &str) -> Durability {
    runtime().block_on(async {
        let mut client = LogClient::connect(format!("http://{}", leader.client)).await.unwrap();
        let mut builder = BatchBuilder::new();
        builder.push(record.as_bytes()).unwrap();
        let batch = builder.build().unwrap().as_bytes().clone();
        let requests = vec![AppendRequest { log: log.to_owned(), batch, ..AppendRequest::default() }];
        let mut answers = client.append(tokio_stream::iter(requests)).await.unwrap().into_inner();
        let Some(Outcome::Appended(appended)) = answers.message().await.unwrap().unwrap().result else {
            panic!("it is refused");
        };
        appended.durability()
    })
}

#[test]
fn all_servers_are_lost_and_every_sliced_record_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    // Objects that are far from full: all records are in slices alone.
    let more = ["--object-store", &store, "--set", "objects.slice_interval_millis=50"];
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &more);
    let all = servers.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    let mut last = 0;
    for _ in 0..5 {
        fed(&["append", &all], &lines(last + 1, last + 400)).ok();
        last += 400;
        wait("everything acknowledged is in the object store", || {
            let told = run(&["status", &all, "--json"]).json();
            let replicas = told["replicas"].as_array()?.iter();
            let sliced = replicas.filter_map(|replica| replica["sliced_index"].as_u64()).max()?;
            (sliced >= last).then_some(())
        });
    }
    let node = leader(&servers.iter().collect::<Vec<_>>());
    let leading = servers.iter().find(|server| server.node == node).unwrap();
    let metrics = leading.page("/metrics").1;
    for series in ["chiplog_stored_slices_total", "chiplog_sliced_bytes_total", "chiplog_unsliced_bytes"] {
        assert!(metrics.contains(&format!("\n{series} ")), "no {series} in {metrics}");
    }
    assert_eq!(acknowledged(leading, "one more"), Durability::MajoritySlices);
    for server in &mut servers {
        server.kill();
        fs::remove_dir_all(&server.data).unwrap();
    }

    let listed = run(&["tier", "list", &store, "--json"]).ok().json();
    assert_eq!((&listed["objects"], &listed["missing"]), (&0.into(), &0.into()), "{listed}");
    assert!(listed["slices"].as_u64().unwrap() >= 5, "{listed}");
    let told = run(&["tier", "verify", &store, "--json"]).ok().json();
    assert_eq!((&told["ok"], &told["logs"][0]["slices"]), (&true.into(), &listed["slices"]), "{told}");
    assert!(told["logs"][0]["sliced_last"].as_u64().unwrap() >= last, "{told}");
    let (backup, data) = (dir.path().join("backup"), dir.path().join("again"));
    let whole = run(&["tier", "fetch", &store, backup.to_str().unwrap(), "--json"]).ok().json();
    assert!(whole["first"] == 1 && whole["last"].as_u64().unwrap() >= last, "{whole}");
    run(&["restore", backup.to_str().unwrap(), data.to_str().unwrap()]).ok();
    let read = run(&["read", data.to_str().unwrap()]).ok().out;
    assert!(read.starts_with(&lines(1, last)), "{} bytes are read", read.len());

    // A slice in the middle is damaged: the log ends before it, and all commands say so.
    let folder = dir.path().join("store").join(listed["log_id"].as_str().unwrap()).join("s");
    let mut slices: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    slices.sort();
    let bad = &slices[slices.len() / 2];
    let mut bytes = fs::read(bad).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(bad, bytes).unwrap();
    let name = bad.file_name().unwrap().to_str().unwrap();
    let verified = run(&["tier", "verify", &store, "--json"]);
    assert_eq!(verified.code, 3, "{}", verified.err);
    let told = verified.json();
    assert!(told["logs"][0]["faults"].to_string().contains(name), "{told}");
    let short = dir.path().join("short");
    // The backup is made, and a script does not take it for a whole one.
    let fetched = run(&["tier", "fetch", &store, short.to_str().unwrap(), "--quiet"]);
    assert_eq!(fetched.code, 8, "{}", fetched.err);
    assert!(fetched.err.contains(&format!("{name} was left out")), "{}", fetched.err);
    assert!(fetched.err.contains("--allow-early-end"), "{}", fetched.err);
    let more = dir.path().join("more").display().to_string();
    let early = run(&["tier", "fetch", &store, &more, "--json", "--allow-early-end"]).ok().json();
    assert!(early["last"].as_u64().unwrap() < 2000 && early["ends_early"] == true, "{early}");
    assert_eq!((&whole["ends_early"], &whole["notes"]), (&false.into(), &serde_json::json!([])), "{whole}");
    let notes = early["notes"].as_array().unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    // The backup says it, and so does what reads it.
    let again = dir.path().join("short-again").display().to_string();
    let restored = run(&["restore", short.to_str().unwrap(), &again]).ok();
    for note in notes {
        assert!(restored.err.contains(note.as_str().unwrap()), "{note}: {}", restored.err);
    }
    for checked in [
        run(&["restore", &more, "--check", "--allow-early-end", "--json"]),
        run(&["restore", &more, &format!("{again}2"), "--json"]),
    ] {
        let told = checked.ok().json();
        assert_eq!((&told["notes"], &told["ends_early"]), (&early["notes"], &true.into()));
    }
    let checked = run(&["restore", &more, "--check"]);
    assert!(checked.code == 8 && checked.err.contains("ends early"), "{} {}", checked.code, checked.err);
    let whole = run(&["restore", backup.to_str().unwrap(), "--check", "--json"]).ok().json();
    assert_eq!(whole["ends_early"], false, "{whole}");
    let read = run(&["read", &again]).ok().out;
    assert!(read == lines(1, early["last"].as_u64().unwrap()), "{} bytes are read: {early}", read.len());
}

/// The value of a series in a page of metrics.
pub(crate) fn value(page: &str, series: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse::<f64>().ok().map(|value| value as u64)
}

/// The server that leads a group of named logs, once it has put everything into slices.
pub(crate) fn with_all_in_slices<'a>(servers: &'a [Server], group: &str) -> &'a Server {
    wait("everything of the group is in the object store", || {
        servers.iter().find(|server| {
            let page = server.page("/metrics").1;
            let of_group =
                |series: &str| value(&page, &format!("chiplog_group_{series}{{group=\"{group}\"}}"));
            let leads = of_group("leader") == Some(server.node);
            leads && of_group("unsliced_bytes") == Some(0) && of_group("stored_slices_total") > Some(0)
        })
    })
}

/// Named logs whose records are in slices alone, and the catalogue that has their names.
#[test]
fn all_servers_are_lost_and_named_logs_come_back_by_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let sets = ["objects.slice_interval_millis=50", "groups=1"];
    let more = ["--object-store", &store, "--set", sets[0], "--set", sets[1]];
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &more);
    let all = servers.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    let of = |name: &str| format!("{all}/{name}");
    run(&["logs", "create", &all, "orders", "users", "gone"]).ok();
    for name in ["orders", "users", "gone"] {
        fed(&["append", &of(name)], &lines(1, 400)).ok();
    }
    run(&["discard", &of("users"), "101"]).ok();
    run(&["logs", "delete", &all, "gone", "--yes"]).ok();
    run(&["logs", "create", &all, "empty"]).ok();
    let leading = with_all_in_slices(&servers, "1");
    assert_eq!(acknowledged_in(leading, "orders", "one more"), Durability::MajoritySlices);
    ["1", "system"].into_iter().for_each(|group| _ = with_all_in_slices(&servers, group));
    // The list of the cluster's logs has the group, too.
    let id = run(&["info", &all, "--json"]).ok().json()["log_id"].as_str().unwrap().to_owned();
    let list = dir.path().join("store").join(id).join("named");
    wait("the store has the list of the logs", || {
        fs::read_to_string(&list).ok().filter(|list| list.contains("group 1 "))
    });
    for server in &mut servers {
        server.kill();
        fs::remove_dir_all(&server.data).unwrap();
    }

    let told = run(&["tier", "verify", &store, "--json"]).ok().json();
    let logs = told["logs"].as_array().unwrap();
    assert!(told["ok"] == true && logs.len() == 3, "{told}");
    assert!(logs.iter().filter(|log| log["slices_used"].as_u64().unwrap() > 0).count() >= 2, "{told}");
    let (backup, data) = (dir.path().join("backup"), dir.path().join("again/node1"));
    fs::create_dir(dir.path().join("again")).unwrap();
    run(&["tier", "fetch", &store, backup.to_str().unwrap()]).ok();
    let restored = run(&["restore", backup.to_str().unwrap(), data.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!(restored["named_logs"], 3, "{restored}");
    let mut first = Server::new(1, &dir.path().join("again"));
    first.start(&more);
    let read = |name: &str| run(&["read", &format!("{}/{name}", first.client)]);
    wait("it serves the named logs", || (read("empty").code == 0).then_some(()));
    assert_eq!(read("orders").ok().out, lines(1, 400) + "one more\n");
    assert_eq!(read("users").ok().out, lines(101, 400));
    assert_ne!(read("gone").code, 0);
}
