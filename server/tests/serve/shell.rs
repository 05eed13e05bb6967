//! Commands that work on a directory and on servers: the same records, the same formats, the same exit codes.

use crate::harness::{
    Ran, Server, chiplog, ended, fed, interrupt, keys, leader, one, run, started, three, wait,
};
use crate::limited::Limited;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Child;

#[test]
fn server_is_used_like_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let log = dir.path().join("log");
    let places = [log.to_str().unwrap(), server.client.as_str()];
    let input: String = (1..=5000).map(|n| format!("line {n}\n")).collect();

    let appended = places.map(|at| fed(&["append", at, "--json", "--batch", "100"], &input).ok().json());
    assert_eq!(keys(&appended[0]), keys(&appended[1]));
    for field in ["records", "bytes", "batches", "first", "last"] {
        assert_eq!(appended[0][field], appended[1][field], "{field}");
    }
    for args in [
        &[][..],
        &["--last", "3"],
        &["--last", "0"],
        &["--from", "4000", "--limit", "7", "--format", "%i %s %e\n"],
        &["--count"],
        &["--length-prefixed", "-n", "20"],
        &["--since", "1h", "--count"],
    ] {
        let [local, remote] = places.map(|at| run(&[&["read", at], args].concat()).ok().out);
        assert_eq!(local, remote, "{args:?}");
    }
    let record = places.map(|at| run(&["read", at, "--last", "1", "--json"]).ok().json());
    assert_eq!(keys(&record[0]), keys(&record[1]));
    assert_eq!(record[1]["data"], "line 5000");

    for (first, code) in [("7000", 2), ("1001", 0), ("1001", 0)] {
        let [local, remote] = places.map(|at| run(&["discard", at, first, "--json"]));
        assert_eq!((local.code, remote.code), (code, code), "{} {}", local.err, remote.err);
        if code == 0 {
            assert_eq!(keys(&local.json()), keys(&remote.json()));
            assert_eq!(local.json()["discarded"], remote.json()["discarded"]);
        }
    }
    let info = places.map(|at| run(&["info", at, "--json"]).ok().json());
    assert_eq!(keys(&info[0]), keys(&info[1]));
    for field in ["first", "last", "records", "durable"] {
        assert_eq!(info[0][field], info[1][field], "{field}");
    }
    assert_eq!(info[1]["leader"]["address"], server.client.as_str());
    assert!(info[1]["last_timestamp"].as_u64().is_some());
    assert!(run(&["info", &server.client]).ok().out.contains(&format!("node 1 at {}", server.client)));

    // Discarded records, and records that do not exist yet.
    for args in [&["--from", "5"][..], &["--from", "9000"]] {
        let [local, remote] = places.map(|at| run(&[&["read", at, "--json"], args].concat()));
        assert_eq!((local.code, remote.code), (4, 4), "{args:?}: {} {}", local.err, remote.err);
        let kind = |ran: &Ran| serde_json::from_str::<Value>(&ran.err).unwrap()["error"]["kind"].clone();
        assert_eq!(kind(&local), kind(&remote));
    }
    let [local, remote] = places.map(|at| run(&["discard", at, "10000", "--fast-forward"]));
    assert_eq!((local.code, remote.code), (0, 0), "{}{}", local.err, remote.err);
    assert_eq!(fed(&["append", &server.client, "--json"], "next\n").ok().json()["first"], 10_000);
}

#[test]
fn options_for_files_are_refused_and_the_environment_names_servers() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    for args in [&["append", "--no-create"][..], &["append", "--capacity", "1GiB"]] {
        let refused = fed(&[args, &[&server.client]].concat(), "x\n");
        assert!(refused.code == 2 && refused.err.contains("directories"), "{}", refused.err);
    }
    assert_eq!(run(&["read", &server.client, "--salvage"]).code, 2);
    assert_eq!(run(&["read", "a:1,b"]).code, 2);

    let with = |args: &[&str]| {
        let output = chiplog().args(args).env("CHIPLOG_SERVERS", &server.client).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    fed(&["append", &server.client, "-q"], "one\ntwo\n").ok();
    assert_eq!(with(&["read"]), (Some(0), "one\ntwo\n".into()));
    let (code, text) = with(&["discard", "2"]);
    assert!(code == Some(0) && text.contains("discarded 1 record"), "{text}");
    assert_eq!(with(&["read"]).1, "two\n");
    assert_eq!(run(&["discard", "2"]).code, 2, "of what?");
}

#[test]
fn exit_code_without_a_server_is_retryable() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = Server::new(1, dir.path());
    let mut children: Vec<Child> = [&["append"][..], &["read"], &["info"], &["bench"], &["discard"]]
        .map(|command| {
            let first: &[&str] = if command == ["discard"] { &["1"] } else { &[] };
            started(&[command, &[nobody.client.as_str()], first].concat())
        })
        .into();
    for child in children.drain(..) {
        let ran = ended(child);
        assert_eq!(ran.code, 5, "{}{}", ran.out, ran.err);
        // The reason, also while it waits; then what to do.
        let lines: Vec<&str> = ran.err.lines().collect();
        assert!(lines.len() == 2 && lines[0].contains("waiting up to 15 s for a server"), "{}", ran.err);
        for line in &lines {
            assert!(line.contains(&nobody.client) && line.contains("Connection refused"), "{line}");
        }
        let advice = lines.iter().map(|line| line.contains("check that a chiplog server runs there"));
        assert_eq!(advice.collect::<Vec<_>>(), [false, true], "{}", ran.err);
    }
}

/// A file without a certificate was noticed by the first connection only, and a missing file was reported as
/// "no such log".
#[test]
fn files_of_options_are_checked_before_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let (file, none) = (dir.path().join("no.pem"), dir.path().join("missing"));
    std::fs::write(&file, "no certificate").unwrap();
    let (file, none) = (file.to_str().unwrap(), none.to_str().unwrap());
    for command in ["info", "read", "append", "status", "top", "cost"] {
        for (flag, path) in [("--tls-authority", file), ("--tls-authority", none), ("--token-file", none)] {
            let ran = run(&[command, "127.0.0.1:1", flag, path]);
            let named = ran.err.contains(flag) && ran.err.contains(path) && ran.err.lines().count() == 1;
            assert!(ran.code == 2 && named, "{command}: {} {}", ran.code, ran.err);
        }
    }
}

#[test]
fn slow_input_is_confirmed_line_by_line_and_ctrl_c_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let mut append = started(&["append", &server.client, "--json"]);
    let mut input = append.stdin.take().unwrap();
    for n in 1..=3 {
        writeln!(input, "line {n}").unwrap();
        input.flush().unwrap();
        let count = || run(&["read", &server.client, "--count"]).ok().out;
        wait("the line is in the log", || (count() == format!("{n}\n")).then_some(()));
    }
    interrupt(&append);
    let ran = ended(append);
    assert_eq!((ran.code, &ran.json()["records"]), (130, &Value::from(3)));

    let follow = started(&["read", &server.client, "--follow"]);
    wait("it can be interrupted", || {
        let maps = std::fs::read_dir(format!("/proc/{}/task", follow.id())).unwrap();
        let names = maps.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "signals").then_some(())
    });
    interrupt(&follow);
    assert_eq!(ended(follow).code, 0);
}

/// The leader is killed while a file is appended and a follower reads: each line is there once, in order, and
/// the follower has all of them.
#[test]
fn killed_leader_loses_no_record_and_no_follower() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let all: Vec<String> = servers.iter().map(|s| s.client.clone()).collect();
    let cluster = all.join(",");
    let lines = 30_000;

    let mut follow = started(&["read", &cluster, "--follow", "--limit", &lines.to_string()]);
    let mut append = started(&["append", &cluster, "--json", "--batch", "50"]);
    let _limited = [Limited::new(&follow), Limited::new(&append)];
    let mut input = append.stdin.take().unwrap();
    let mut followed = BufReader::new(follow.stdout.take().unwrap()).lines();
    let expect = |n: u64| format!("{n} of a text that is long enough to fill a few batches");
    let write = |range: std::ops::Range<u64>| {
        let text: String = range.map(|n| expect(n) + "\n").collect();
        text
    };
    input.write_all(write(0..lines / 2).as_bytes()).unwrap();
    for n in 0..lines / 4 {
        assert_eq!(followed.next().unwrap().unwrap(), expect(n));
    }
    let leads = leader(&servers.iter().collect::<Vec<_>>());
    servers[leads as usize - 1].kill();
    input.write_all(write(lines / 2..lines).as_bytes()).unwrap();
    drop(input);
    let ran = ended(append);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.json()["records"], lines);
    for n in lines / 4..lines {
        assert_eq!(followed.next().unwrap().unwrap(), expect(n));
    }
    assert!(followed.next().is_none());
    assert_eq!(follow.wait().unwrap().code(), Some(0));
    let read = run(&["read", &cluster]).ok().out;
    assert!(read == write(0..lines), "every line once, in order");
}
