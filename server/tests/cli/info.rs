//! `info` on a directory, and what is no log.

use crate::harness::{Place, has_fields, numbered, run_with};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// It showed neither, and an append was refused.
#[test]
fn info_shows_the_capacity_and_whether_the_log_is_full() {
    let place = Place::with(3);
    let shown = |place: &Place| {
        let info = place.run("info", &["--json"]).ok().json();
        (info["bytes_capacity"].clone(), info["full"].clone(), place.run("info", &[]).ok().text().to_owned())
    };
    let (capacity, full, words) = shown(&place);
    assert_eq!((capacity, full), (Value::Null, Value::Null));
    assert!(!words.contains("room"), "{words}");
    place.run("options", &["--set", "capacity_bytes=128KiB"]).ok();
    let (capacity, full, words) = shown(&place);
    assert_eq!((capacity, full), (131_072.into(), false.into()));
    assert!(words.contains(" of 128.0 KiB (") && words.contains("larger appends are refused"), "{words}");
    let refused = run_with(&["append", &place.log(), "--batch", "1"], &numbered(1, 2000)).fails(5);
    assert!(refused.err.contains("the log is full"), "{}", refused.err);
    let (_, full, words) = shown(&place);
    assert_eq!(full, true);
    assert!(words.contains("the log is full; `chiplog discard` makes room"), "{words}");
    place.run("options", &["--set", "capacity_bytes=none"]).ok();
    assert_eq!(shown(&place).0, Value::Null);
}

#[test]
fn info_shows_positions_and_sizes() {
    let place = Place::with(30);
    let info = place.run("info", &["--json"]).ok().json();
    has_fields(
        &info,
        &[
            "leader",
            "store_failure",
            "store_failing_since",
            "directory",
            "log_id",
            "first",
            "last",
            "records",
            "durable",
            "bytes_used",
            "bytes_capacity",
            "full",
            "segments",
            "sessions",
            "last_timestamp",
            "last_time",
            "writer",
            "unproven",
            "in_object_store",
            "whole_objects",
            "bytes_on_disk",
            "named_logs_bytes",
            "replica",
        ],
    );
    let numbers = ["first", "last", "records", "durable"].map(|name| info[name].as_u64().unwrap());
    assert_eq!(numbers, [1, 30, 30, 30]);
    assert_eq!((info["log_id"].as_str().unwrap().len(), &info["writer"]), (32, &Value::Null));
    assert!(info["bytes_on_disk"].as_u64() >= Some(64 << 10), "{info}");
    assert_eq!((&info["replica"], &info["named_logs_bytes"]), (&Value::Null, &Value::Null));
    let words = place.run("info", &["--quiet"]).ok();
    assert!(words.text().contains("30, index 1 to 30"), "{}", words.text());
    let empty = Place::with(0);
    let info = empty.run("info", &["--json"]).ok().json();
    let numbers = ["first", "last", "records", "durable"].map(|name| info[name].as_u64().unwrap());
    assert_eq!(numbers, [1, 0, 0, 0]);
    assert!(empty.run("info", &[]).ok().text().contains("none; the next index is 1"));
}

/// The named logs of a server's directory were in no size.
#[test]
fn named_logs_have_a_size() {
    let place = Place::with(3);
    let of_named = Path::new(&place.log()).join("named/group-1");
    fs::create_dir_all(&of_named).unwrap();
    fs::write(of_named.join("x"), vec![1; 64 << 10]).unwrap();
    let info = place.run("info", &["--json"]).ok().json();
    assert!(info["named_logs_bytes"].as_u64() >= Some(64 << 10), "{info}");
    let words = place.run("info", &[]).ok();
    let line = words.text().lines().find(|line| line.starts_with("named logs   ")).unwrap();
    assert!(line.ends_with(" on disk beside that"), "{line}");
}

/// There is no such command, and nothing said where the members are.
#[test]
fn list_of_the_members_is_found() {
    let ran = run_with(&["member", "list"], b"").fails(2);
    assert!(ran.err.contains("`chiplog status HOST:PORT` lists the members"), "{}", ran.err);
}

/// The directory of a replica is reported as such, with the command that opens it.
#[test]
fn directory_of_a_replica_is_reported() {
    use chiplog::cluster::{Bootstrap, ClusterOptions};
    use chiplog::transport::MemoryNetwork;
    use chiplog::{Log, LogId, NodeId, Options};
    let place = Place::empty();
    let network = MemoryNetwork::new();
    let cluster = ClusterOptions::new(NodeId(2), Bootstrap::Join(LogId(7)), network.transport());
    let options = Options::with_segment_bytes(64 << 10).cluster(cluster);
    Log::open(place.log(), options).unwrap().close().unwrap();
    let info = place.run("info", &["--json"]).ok().json();
    assert_eq!(info["replica"], serde_json::json!({ "node": null, "members": 0, "copy": false }));
    assert!(place.run("info", &[]).ok().text().contains("a cluster to which it was not added yet"));
    for args in [&["append"][..], &["discard", "1"]] {
        let ran = place.run(args[0], &args[1..]).fails(2);
        assert!(ran.err.contains("replica of a cluster") && ran.err.contains("chiplog serve"), "{}", ran.err);
    }
}

/// A log without its identity does not open, but it is not reported as missing.
#[test]
fn lost_identity_is_not_reported_as_a_missing_log() {
    let place = Place::with(30);
    fs::remove_file(Path::new(&place.log()).join("chiplog.id")).unwrap();
    for args in [&["info"][..], &["read"], &["discard", "5"], &["append"], &["append", "--no-create"]] {
        let ran = place.run(args[0], &args[1..]).fails(3);
        assert!(
            ran.err.contains("identity is missing") && ran.err.contains("holds data"),
            "{args:?} {}",
            ran.err
        );
    }
    let verified = place.run("verify", &[]).fails(3);
    assert!(verified.text().contains("identity is missing"), "{}", verified.text());
    assert!(!verified.text().contains("named above"), "no record is: {}", verified.text());
    assert_eq!(place.run("read", &["--salvage", "--count"]).fails(3).text(), "30\n");
}
