//! What a server is told.

use crate::certificates::Authority;
use crate::harness::{Server, chiplog, run};
use std::fs;

#[test]
fn a_file_is_checked_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chiplog.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "node = 3\nzone = \"west\"\n[log]\nsegment_bytes = \"1MiB\"\n").unwrap();
    run(&["config", "check", path]).ok();
    let shown = run(&["config", "show", "--config", path, "--set", "zone=east", "--json"]).ok().json();
    assert_eq!((&shown["node"], &shown["zone"]), (&3.into(), &"east".into()));
    assert_eq!(shown["log"]["segment_bytes"], 1 << 20);

    // Flags win over the environment, which wins over the file.
    let output = chiplog()
        .args(["config", "show", "--config", path, "--zone", "flag", "--json"])
        .env("CHIPLOG_ZONE", "environment")
        .env("CHIPLOG_NODE", "4")
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&shown["node"], &shown["zone"]), (&4.into(), &"flag".into()));

    // What is wrong is said of who said it.
    let output = chiplog().args(["config", "show"]).env("CHIPLOG_NODE", "foo").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("CHIPLOG_NODE"), "{said}");

    // What is shown is a file.
    let text = run(&["config", "show", "--config", path]).ok().out;
    fs::write(&file, text).unwrap();
    run(&["config", "check", path]).ok();

    fs::write(&file, "[log]\nsegments = 1\n").unwrap();
    let ran = run(&["config", "check", path]);
    assert!(ran.code == 2 && ran.err.contains("segments") && ran.err.contains("line 2"), "{}", ran.err);
    let ran = run(&["config", "check", "/nowhere/chiplog.toml"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
}

#[test]
fn an_open_door_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new(1, dir.path());
    let refused_with = |code: i32, more: &[&str], word: &str| {
        let output = server.command().args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(word), "{said}");
    };
    let refused = |more: &[&str], word: &str| refused_with(2, more, word);
    refused(&["--listen-client", "0.0.0.0:0"], "--insecure");
    refused(&["--listen-peer", "0.0.0.0:0"], "--insecure");
    refused(&["--listen-client", "0.0.0.0:0", "--insecure"], "advertise.client");
    let tokens = dir.path().join("tokens");
    let setting = format!("auth.tokens={}", tokens.display());
    refused_with(4, &["--set", &setting], "tokens"); // there is no such file
    fs::write(&tokens, "").unwrap();
    refused(&["--set", &setting], "no token");
    fs::write(&tokens, run(&["token", "--json"]).ok().json()["line"].as_str().unwrap()).unwrap();
    refused(&["--set", &setting, "--listen-client", "0.0.0.0:0"], "tokens would be readable");
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    ours.sign(1);
    other.sign(1);
    let tls = |certificate: String, key: String, authority: String| {
        let keys = [("certificate", certificate), ("key", key), ("client_authority", authority)];
        keys.map(|(key, file)| format!("--set=tls.{key}={file}"))
    };
    let (pem, key, authority) = (ours.file("1.pem"), ours.file("1.key"), ours.file("authority.pem"));
    for (settings, word) in [
        (tls(pem.clone(), other.file("1.key"), authority.clone()), "together"),
        (tls(pem.clone(), pem.clone(), authority), "private key"),
        (tls(key.clone(), key.clone(), pem.clone()), "certificate"),
        (tls(pem, key.clone(), key), "authority"),
    ] {
        refused(&settings.each_ref().map(String::as_str), word);
    }
    let of_peers = ["peer_certificate=1.pem", "peer_key=1.key", "peer_authority=authority.pem"].map(|pair| {
        let (key, file) = pair.split_once('=').unwrap();
        let from = if key == "peer_key" { &other } else { &ours };
        format!("--set=tls.{key}={}", from.file(file))
    });
    refused(&of_peers.each_ref().map(String::as_str), "tls.peer_certificate, tls.peer_key");
    refused(&["--set", "tls.peer_authority="], "tls.peer_authority is empty");
    refused(&["--node", "0"], "--node N");
    refused(&["--set", "cluster.heart=1"], "heart");
}
