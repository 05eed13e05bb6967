//! The configuration of a server.

use crate::certificates::Authority;
use crate::harness::{Ran, Server, chiplog, run};
use std::fs;

#[test]
fn file_is_checked_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chiplog.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "node = 3\nzone = \"west\"\n[log]\nsegment_bytes = \"1MiB\"\n").unwrap();
    run(&["config", "check", path]).ok();
    let shown = run(&["config", "show", "--config", path, "--set", "zone=east", "--json"]).ok().json();
    assert_eq!((&shown["node"], &shown["zone"]), (&3.into(), &"east".into()));
    assert_eq!(shown["log"]["segment_bytes"], 1 << 20);

    // Flags override the environment, which overrides the file.
    let output = chiplog()
        .args(["config", "show", "--config", path, "--zone", "flag", "--json"])
        .env("CHIPLOG_ZONE", "environment")
        .env("CHIPLOG_NODE", "4")
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&shown["node"], &shown["zone"]), (&4.into(), &"flag".into()));

    // An error names the source of the wrong value.
    let output = chiplog().args(["config", "show"]).env("CHIPLOG_NODE", "foo").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("CHIPLOG_NODE"), "{said}");

    // The output is a valid file.
    let text = run(&["config", "show", "--config", path]).ok().out;
    fs::write(&file, text).unwrap();
    run(&["config", "check", path]).ok();

    fs::write(&file, "[log]\nsegments = 1\n").unwrap();
    let ran = run(&["config", "check", path]);
    assert!(ran.code == 2 && ran.err.contains("segments") && ran.err.contains("line 2"), "{}", ran.err);
    // Every mistake is reported at once, with the file.
    fs::write(&file, "node = 1\nreload_seconds = 90000\n[log]\nretention_seconds = 0\n[tls]\nkey = \"k\"\n")
        .unwrap();
    let ran = run(&["config", "check", path]);
    let words =
        [path, "reload_seconds is 90000", "log.retention_seconds is 0", "tls.key without tls.certificate"];
    assert!(ran.code == 2 && words.iter().all(|w| ran.err.contains(w)), "{}", ran.err);
    fs::write(&file, "node = 1\n[log]\nsegment_bytes = 1024\n").unwrap();
    let ran = run(&["config", "check", path]);
    let named = ran.err.contains(&format!("{path}: option segment_bytes is 1024"));
    assert!(ran.code == 2 && named && !ran.err.contains("config show"), "{}", ran.err);
    let ran = run(&["config", "check", "/nowhere/chiplog.toml"]);
    assert_eq!(ran.code, 2, "the missing file is not a missing log: {}", ran.err);
}

/// `check` took the file only without a flag, `show` only with one.
#[test]
fn file_is_given_with_or_without_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chiplog.toml");
    fs::write(&file, "node = 3\n").unwrap();
    let path = file.to_str().unwrap();
    for what in ["check", "show"] {
        let by_itself = run(&["config", what, path]).ok().out;
        assert_eq!(by_itself, run(&["config", what, "--config", path]).ok().out);
        assert_eq!(run(&["config", what, path, "--config", path]).code, 2);
    }
    assert_eq!(run(&["config", "check"]).code, 2);
    let output = chiplog().args(["config", "show", path]).env("CHIPLOG_CONFIG", "/nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("node = 3"), "the command line overrides");
}

/// `config check` accepted a file without `node`, but `serve` refused it.
#[test]
fn file_without_node_needs_one_from_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chiplog.toml");
    fs::write(&file, "zone = \"west\"\n").unwrap();
    let path = file.to_str().unwrap();
    let ran = run(&["config", "check", path]);
    assert!(
        ran.code == 2 && ran.err.contains("in order, except that `node` is missing"),
        "{} {}",
        ran.code,
        ran.err
    );
    run(&["config", "check", path, "--node", "3"]).ok();
    for name in ["CHIPLOG_NODE", "CHIPLOG__NODE"] {
        let output = chiplog().args(["config", "check", path]).env(name, "3").output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let ran = run(&["config", "check", path, "--node", "three"]);
    assert!(ran.code == 2 && ran.err.contains("--node"), "{}", ran.err);
}

/// The port was opened first, so that a port in use hid this error.
#[test]
fn open_listener_is_refused_before_ports_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for flag in ["--listen-client", "--listen-peer"] {
        let at = format!("0.0.0.0:{port}");
        let output = Server::new(1, dir.path()).command().args([flag, &at]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("--insecure"), "{said}");
    }
}

/// The file, then variables, then flags: the later source overrides. An error in the environment is reported
/// as such.
#[test]
fn every_key_has_a_variable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chiplog.toml");
    let keys = "zone = \"file\"\ninsecure = true\nreload_seconds = 7\n[log]\nsegment_bytes = \"1MiB\"\n[limits]\nstreams_max = 7\n";
    fs::write(&file, keys).unwrap();
    let shown = |set: &[(&str, &str)], flags: &[&str]| {
        let mut command = chiplog();
        command
            .args(["config", "show", "--json", "--config"])
            .arg(&file)
            .args(flags)
            .envs(set.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    };
    let set = [
        ("CHIPLOG__LOG__SEGMENT_BYTES", "2MiB"),
        ("CHIPLOG__LIMITS__STREAMS_MAX", "8"),
        ("CHIPLOG__TLS__PEER_KEY", "/etc/peer.key"),
        ("CHIPLOG__TLS__PEER_CERTIFICATE", "/etc/peer.pem"),
        ("CHIPLOG__TLS__PEER_AUTHORITY", "/etc/peers.pem"),
        ("CHIPLOG__ZONE", "variable"),
        ("CHIPLOG__SHUTDOWN_MILLIS", "5"),
    ];
    let all = shown(&set, &["--set", "limits.streams_max=9"]).ok().json();
    assert_eq!((&all["log"]["segment_bytes"], &all["shutdown_millis"]), (&(2 << 20).into(), &5.into()));
    assert_eq!((&all["limits"]["streams_max"], &all["reload_seconds"]), (&9.into(), &7.into()));
    assert_eq!((&all["zone"], &all["tls"]["peer_key"]), (&"variable".into(), &"/etc/peer.key".into()));
    let own = shown(&[("CHIPLOG__ZONE", "variable"), ("CHIPLOG_ZONE", "own")], &[]).ok().json();
    assert_eq!(own["zone"], "own");

    for (name, value, word) in [
        ("CHIPLOG__LOG__SEGMENTS", "1", "segments"),
        ("CHIPLOG__LOGS__SEGMENT_BYTES", "1MiB", "logs"),
        ("CHIPLOG__LIMITS__STREAMS_MAX", "many", "many"),
        ("CHIPLOG__", "1", "not a key"),
    ] {
        let refused = shown(&[(name, value)], &[]);
        let by = format!("{name} in the environment");
        assert!(
            refused.code == 2 && refused.err.contains(&by) && refused.err.contains(word),
            "{}",
            refused.err
        );
    }
    // An error in a flag does not blame the environment.
    let refused = shown(&[("CHIPLOG__ZONE", "west")], &["--set", "log.segments=1"]);
    assert!(refused.code == 2 && !refused.err.contains("environment"), "{}", refused.err);

    // A listener that the file opens can be closed again.
    let insecure = |set: &[(&str, &str)], flags: &[&str]| shown(set, flags).ok().json()["insecure"].clone();
    assert_eq!(insecure(&[], &[]), true);
    for no in ["false", "0", "no", "off", ""] {
        assert_eq!(insecure(&[("CHIPLOG_INSECURE", no)], &[]), false, "{no}");
    }
    assert_eq!(insecure(&[("CHIPLOG__INSECURE", "false")], &[]), false);
    assert_eq!(insecure(&[], &["--insecure=false"]), false);
    assert_eq!(insecure(&[("CHIPLOG_INSECURE", "false")], &["--insecure"]), true, "flags win");
    assert_eq!(insecure(&[("CHIPLOG_INSECURE", "true")], &["--insecure=no"]), false);
}

#[test]
fn open_listener_without_tls_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new(1, dir.path());
    let refused = |more: &[&str], word: &str| {
        let output = server.command().args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(word), "{said}");
    };
    refused(&["--listen-client", "0.0.0.0:0"], "--insecure");
    refused(&["--listen-peer", "0.0.0.0:0"], "--insecure");
    refused(&["--listen-client", "0.0.0.0:0", "--insecure"], "advertise.client");
    let tokens = dir.path().join("tokens");
    let setting = format!("auth.tokens={}", tokens.display());
    refused(&["--set", &setting], "auth.tokens: cannot read"); // the file does not exist
    fs::write(&tokens, "").unwrap();
    refused(&["--set", &setting], "no token");
    fs::write(&tokens, run(&["token", "--json"]).ok().json()["line"].as_str().unwrap()).unwrap();
    refused(&["--set", &setting, "--listen-client", "0.0.0.0:0"], "tokens could be read");
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

/// `config check` accepted a certificate of another node, another authority or another host: the server
/// started, and the others did not accept it as a member.
#[test]
fn certificates_are_checked_against_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    (1..=2).for_each(|node| (ours.sign(node), other.sign(node)).0);
    let file = dir.path().join("chiplog.toml");
    let check = |keys: &[(&str, String)], listen: &str| {
        let tls: String = keys.iter().map(|(key, file)| format!("{key} = {file:?}\n")).collect();
        fs::write(&file, format!("node = 1\n[listen]\nclient = \"{listen}:7411\"\n[tls]\n{tls}")).unwrap();
        run(&["config", "check", file.to_str().unwrap()])
    };
    let of_peers = |of: &Authority, node: u64, authority: &Authority| {
        [
            ("peer_certificate", of.file(&format!("{node}.pem"))),
            ("peer_key", of.file(&format!("{node}.key"))),
            ("peer_authority", authority.file("authority.pem")),
        ]
    };
    let refused = |ran: &Ran, word: &str| {
        assert!(ran.code == 2 && ran.err.contains(word), "{word}: {} {}", ran.code, ran.err);
    };
    check(&of_peers(&ours, 1, &ours), "127.0.0.1").ok();
    refused(&check(&of_peers(&ours, 2, &ours), "127.0.0.1"), "does not name node-1");
    refused(&check(&of_peers(&other, 1, &ours), "127.0.0.1"), "will reject the certificate");
    let of_clients = [("certificate", ours.file("1.pem")), ("key", ours.file("1.key"))];
    check(&of_clients, "127.0.0.1").ok();
    refused(&check(&of_clients, "127.0.0.2"), "does not name 127.0.0.2");

    // `config check` accepted expired certificates, which locked every client out.
    ours.sign_expired(1);
    let when =
        "tls.client_authority: the certificate expired at 2022-01-01T00:00:00Z; this machine's time is ";
    refused(&check(&of_clients, "127.0.0.1"), when);
    refused(&check(&of_peers(&ours, 1, &ours), "127.0.0.1"), "the certificate expired at 2022-01-01");
    // The server refuses what `config check` refuses.
    let mut server = Server::new(1, dir.path());
    let settings = ours.settings(1, &ours);
    server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(server.ended(), Some(2), "{}", server.said());
    assert!(server.said().contains(when), "{}", server.said());
}
