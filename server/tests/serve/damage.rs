//! Damage that `verify` or a reader finds on a server: it is counted, logged and repaired at once, or
//! reported as lost at once.

use crate::harness::{PATIENCE, Server, fed, founded, made, one, run, runtime, status, three, wait};
use chiplog::{Error, ErrorKind, Index, Start};
use chiplog_net::client::{Client, ReaderOptions};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

/// More than a segment.
const RECORDS: u64 = 3000;

fn line(n: u64) -> String {
    format!("{n:06}{}", "x".repeat(700))
}

/// Fills the log, in blocks of up to 500 records.
fn filled(cluster: &str) {
    for begin in (0..RECORDS).step_by(500) {
        let lines: String = (begin + 1..=begin + 500).map(|n| line(n) + "\n").collect();
        fed(&["append", cluster, "--batch", "10"], &lines).ok();
    }
}

/// Changes a byte of record `n` in the first segment of a server.
fn hurt(server: &Server, n: u64) {
    let path = server.data.join(format!("{:020}.seg", 1));
    let (bytes, text) = (fs::read(&path).unwrap(), line(n));
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"y", at as u64 + 10).unwrap();
}

fn cluster_of(servers: &[Server]) -> String {
    servers.iter().map(|s| s.client.clone()).collect::<Vec<_>>().join(",")
}

/// The error that a reader gets which would retry for an hour, and its record.
fn read_error(cluster: &str) -> (Option<Index>, Error) {
    let cluster: Vec<String> = cluster.split(',').map(str::to_owned).collect();
    let read = async {
        let client = Client::connect(cluster, Default::default()).await.unwrap();
        let mut options = ReaderOptions::default();
        (options.follow, options.timeout) = (false, Duration::from_secs(3600));
        let mut reader = client.reader_with(Start::First, options);
        loop {
            match reader.next_batch().await {
                Ok(batch) => assert!(batch.is_some(), "it read past the damage"),
                Err(error) => return (reader.position(), error),
            }
        }
    };
    runtime().block_on(async { tokio::time::timeout(PATIENCE, read).await.expect("the error comes at once") })
}

/// Waits until a server has all records.
fn wait_for_all(server: &Server) {
    wait("it has all records", || {
        let info = run(&["info", &server.client, "--json"]).json();
        (info["last"].as_u64()? >= RECORDS).then_some(())
    });
}

/// `verify` reported damage only to the operator. The damaged server learnt of it from its scrubber, up to 36
/// h later for 500 GiB.
#[test]
fn damage_found_by_verify_is_repaired_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    servers.iter_mut().for_each(|s| s.start(&["--set", "cluster.scrub_bytes_per_second=0"]));
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    let cluster = cluster_of(&servers);
    filled(&cluster);
    for server in &servers {
        wait_for_all(server);
        hurt(server, 400 * server.node);
        assert_eq!(run(&["verify", &server.client]).code, 3, "node {}", server.node);
        wait("the repair", || {
            let (_, page) = server.page("/metrics");
            page.contains("\nchiplog_repaired_total 1\n").then_some(())
        });
        run(&["verify", &server.client]).ok();
        assert!(server.page("/metrics").1.contains("\nchiplog_damaged_total 1\n"));
        assert_eq!(server.said().matches("damage was found").count(), 1, "{}", server.said());
    }
    run(&["verify", &cluster]).ok();
}

/// A client retried for 30 s, although no server could answer differently.
#[test]
fn single_server_reports_unrepairable_damage_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    filled(&server.client);
    hurt(&server, 700);
    for _ in 0..3 {
        let (at, error) = read_error(&server.client);
        assert!(error.kind() == ErrorKind::Corrupt && error.is_lasting(), "{error}");
        let at = at.unwrap().get();
        assert!((501..=700).contains(&at), "{at}");
        let text = error.to_string();
        assert!(text.contains(&format!("record {at} ")) && text.contains("nobody can repair it"), "{text}");
    }
    let read = run(&["read", &server.client]);
    assert!(read.code == 3 && read.err.contains("nobody can repair it"), "{}", read.err);
    assert_eq!(run(&["verify", &server.client]).code, 3);
    assert_eq!(server.said().matches("damage was found").count(), 1, "{}", server.said());
    assert!(server.page("/metrics").1.contains("\nchiplog_damaged_total 1\n"));
    let shown = status(&[&server]);
    assert_eq!(shown["replicas"][0]["state"], "damaged", "{shown}");
    assert_eq!(run(&["status", &server.client]).code, 3);
    // It was still reported after the damaged records were discarded.
    run(&["discard", &server.client, "1001"]).ok();
    run(&["status", &server.client]).ok();
    run(&["verify", &server.client]); // discarded records may be in a file that still exists
    let shown = status(&[&server]);
    assert_eq!((&shown["replicas"][0]["state"], &shown["replicas"][0]["damaged"]), (&"ok".into(), &1.into()));
}

#[test]
fn record_damaged_on_all_servers_is_reported_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let cluster = cluster_of(&servers);
    filled(&cluster);
    for server in &servers {
        wait_for_all(server);
    }
    servers.iter().for_each(|server| hurt(server, 700));
    let (at, error) = read_error(&cluster);
    assert!(error.kind() == ErrorKind::Corrupt && error.is_lasting(), "{error}");
    assert!((501..=700).contains(&at.unwrap().get()), "{at:?}");
    let text = error.to_string();
    assert!(text.contains("nobody can repair it") && text.contains("all other voters"), "{text}");
    // A record that one of them has undamaged is read.
    hurt(&servers[0], 100);
    hurt(&servers[1], 100);
    assert_eq!(read_error(&cluster).0, at);
}

/// Of two servers one has the record undamaged.
#[test]
fn record_is_read_from_a_server_that_has_it_undamaged() {
    let dir = tempfile::tempdir().unwrap();
    let servers = founded((1..=2).map(|node| Server::new(node, dir.path())).collect());
    filled(&servers[0].client);
    wait("both have all records", || {
        let info = run(&["info", &servers[1].client, "--json"]).json();
        (info["last"].as_u64()? >= RECORDS).then_some(())
    });
    hurt(&servers[1], 700);
    let read = run(&["read", &cluster_of(&servers)]).ok();
    assert_eq!(read.out.lines().count() as u64, RECORDS);
}
