//! The standard error output of servers, as JSON.

use crate::harness::{Server, chiplog, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn objects(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn with_json_every_line_is_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--json"]); // with -v
    let mut second = Server::new(1, dir.path());
    second.data.clone_from(&server.data);
    let refused = second.command().arg("--json").env("CHIPLOG_NODES", "3").output().unwrap();
    assert_eq!(server.stop(), Some(0));

    let said = objects(&server.said());
    assert!(said.len() >= 3, "{said:?}");
    for line in &said {
        let is_text = |name: &str| line[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_text("timestamp") && is_text("level") && is_text("message"), "{line}");
    }
    let told = |word: &str| said.iter().any(|line| line["message"].as_str().unwrap().contains(word));
    assert!(told("node 1 serves clients at"), "{said:?}");

    // A misspelt variable is reported with its name in a field of its own; then the error why the server does
    // not start.
    let said = objects(&String::from_utf8(refused.stderr).unwrap());
    let slip = said.iter().find(|line| line["name"] == "CHIPLOG_NODES").unwrap();
    assert_eq!(slip["level"], "WARN");
    assert_eq!(said.last().unwrap()["error"]["kind"], "locked", "{said:?}");
}

/// Without -v the server logs little, but always its addresses.
#[test]
fn addresses_are_logged_at_every_level() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = chiplog();
    command.args(["serve", "--init", "--node", "1", "--json", "--set", "log.segment_bytes=1MiB", "--data"]);
    command.arg(dir.path().join("1")).args([
        "--listen-client",
        "127.0.0.1:0",
        "--listen-peer",
        "127.0.0.1:0",
    ]);
    command.args(["--listen-http", ""]).env("CHIPLOG_LOG", "error").stderr(Stdio::piped());
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(wait("it ends", || child.try_wait().unwrap()).code(), Some(0), "{rest:?}");
    let said = objects(&format!("{first}\n{}", rest.join("\n")));
    let first = said[0]["message"].as_str().unwrap();
    assert!(first.starts_with("node 1 serves clients at 127.0.0.1:"), "{said:?}");
    for line in &said {
        let message = line["message"].as_str().unwrap();
        assert!(message.starts_with("node 1 "), "events of the library are at least errors: {line}");
    }
}
