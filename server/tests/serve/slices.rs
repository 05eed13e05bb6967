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

/// The durability with which the leader acknowledges an append.
fn acknowledged(leader: &Server, record: &str) -> Durability {
    runtime().block_on(async {
        let mut client = LogClient::connect(format!("http://{}", leader.client)).await.unwrap();
        let mut builder = BatchBuilder::new();
        builder.push(record.as_bytes()).unwrap();
        let batch = builder.build().unwrap().as_bytes().clone();
        let requests = vec![AppendRequest { log: String::new(), batch }];
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
    let fetched = run(&["tier", "fetch", &store, backup.to_str().unwrap(), "--json"]).ok().json();
    assert!(fetched["first"] == 1 && fetched["last"].as_u64().unwrap() >= last, "{fetched}");
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
    let fetched = run(&["tier", "fetch", &store, short.to_str().unwrap()]).ok();
    assert!(fetched.err.contains(name) && fetched.err.contains("was left out"), "{}", fetched.err);
    let last =
        run(&["tier", "fetch", &store, dir.path().join("more").to_str().unwrap(), "--json"]).ok().json();
    assert!(last["last"].as_u64().unwrap() < 2000, "{last}");
}
