//! TLS: servers and clients that know each other by certificates, and those that do not.

use crate::certificates::Authority;
use crate::harness::{Server, chiplog, run, wait};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A copy that runs until it is dropped.
struct Copy(Child);

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Starts a copy, and says where it listens.
fn copy(dir: &str, cluster: &str, authority: &Authority, more: &[String]) -> (Copy, String) {
    let mut command = chiplog();
    command.args(["follow", dir, "--cluster", cluster, "--json"]).args(authority.client()).args(more);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    (Copy(child), opened["listen"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn only_those_with_certificates_get_in() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    (1..=3).for_each(|node| _ = (ours.sign(node), other.sign(node)));
    let with = |authority: &Authority, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).chain(authority.client()).collect();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    for (n, server) in servers.iter_mut().enumerate() {
        // Of the third, the other replicas do not trust the certificate.
        let settings = ours.settings(n as u64 + 1, if n == 2 { &other } else { &ours });
        server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        wait("the server answers", || {
            let shown = with(&ours, &["status", &server.client, "--json"]).json();
            (shown["replicas"][0]["role"] == "waiting").then_some(())
        });
    }
    let [first, second, third] = &servers[..] else { unreachable!() };
    with(&ours, &["member", "init", &first.client]).ok();
    with(&ours, &["member", "add", &second.client, "--cluster", &first.client, "--promote"]).ok();
    let shown = with(&ours, &["status", &second.client, "--json"]).ok().json();
    assert_eq!(shown["replicas"].as_array().unwrap().len(), 2, "{shown}");

    // So do the commands that work on a directory as well.
    let cluster = format!("{},{}", first.client, second.client);
    with(&ours, &["append", &cluster, "--lines", &ours.file("1.pem")]).ok();
    let read = with(&ours, &["read", &cluster]).ok();
    assert_eq!(read.out, fs::read_to_string(ours.file("1.pem")).unwrap());
    let bare = run(&["info", &cluster]);
    assert_eq!(bare.code, 5, "without certificates");
    assert!(bare.err.trim_end().ends_with("; --tls-authority, or CHIPLOG_TLS_AUTHORITY"), "{}", bare.err);

    // And so does a copy, in both directions: it is fed, and feeds another one.
    let copies = [dir.path().join("copy"), dir.path().join("second")].map(|p| p.to_str().unwrap().to_owned());
    let listening = [
        ["--listen", "127.0.0.1:0"].map(str::to_owned),
        ["--listen-certificate".to_owned(), ours.file("1.pem")],
        ["--listen-key".to_owned(), ours.file("1.key")],
        ["--listen-authority".to_owned(), ours.file("authority.pem")],
    ];
    let (first_copy, at) = copy(&copies[0], &cluster, &ours, listening.as_flattened());
    let (second_copy, _) = copy(&copies[1], &at, &ours, &[]);
    for copied in &copies {
        wait("the copy has it", || (run(&["read", copied]).out == read.out).then_some(()));
    }
    let bare = ["--cluster", &at, "--tls-authority", &ours.file("authority.pem")];
    let none = run(&[&["follow", dir.path().join("none").to_str().unwrap()][..], &bare].concat());
    assert_eq!(none.code, 5, "without a certificate: {}", none.err);
    drop((first_copy, second_copy));

    // Neither without certificates nor with those of another authority.
    assert_eq!(run(&["status", &first.client, "--json"]).json()["replicas"][0]["role"], "unreachable");
    let authority = ours.file("authority.pem");
    let bare = run(&["status", &first.client, "--json", "--tls-authority", &authority]).json();
    assert_eq!(bare["replicas"][0]["role"], "unreachable", "a client without a certificate: {bare}");
    let foreign = with(&other, &["status", &first.client, "--json"]).json();
    assert_eq!(foreign["replicas"][0]["role"], "unreachable");

    // A peer that is not trusted gets nothing: it does not catch up, and cannot vote.
    with(&ours, &["member", "add", &third.client, "--cluster", &first.client]).ok();
    let refused = with(&ours, &["member", "promote", "3", "--cluster", &first.client, "--timeout", "2"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    let shown = with(&ours, &["status", &third.client, "--json"]).json();
    assert_eq!(shown["replicas"][0]["last_raft"], 0, "{shown}");
}

/// Who forgot TLS was told "h2 protocol error: http2 error", who meant it and should not "InvalidContentType".
#[test]
fn whoever_means_something_else_by_tls_is_told_which_flag() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    ours.sign(1);
    let (mut secured, mut plain) = (Server::new(1, dir.path()), Server::new(2, dir.path()));
    let set = |key: &str, file: &str| ["--set".to_owned(), format!("{key}={}", ours.file(file))];
    let settings = [set("tls.certificate", "1.pem"), set("tls.key", "1.key")].concat();
    secured.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    plain.spawn(&[]);
    let [ours, other] = [&ours, &other].map(|authority| authority.file("authority.pem"));
    wait("both answer", || {
        let with = run(&["status", &secured.client, "--json", "--tls-authority", &ours]).json();
        let without = run(&["status", &plain.client, "--json"]).json();
        [with, without].iter().all(|shown| shown["replicas"][0]["role"] == "waiting").then_some(())
    });
    for (server, authority, advice) in [
        (&secured, None, "; --tls-authority, or CHIPLOG_TLS_AUTHORITY"),
        (&plain, Some(&ours), "; leave out --tls-authority, and CHIPLOG_TLS_AUTHORITY"),
        (&secured, Some(&other), "; --tls-authority has to be the one that signed it"),
    ] {
        let tls = authority.map(|file| ["--tls-authority", file]);
        let with = |command: &[&str]| run(&[command, tls.as_ref().map_or(&[][..], |tls| &tls[..])].concat());
        let shown = with(&["status", &server.client, "--json"]).json();
        let why = shown["replicas"][0]["error"].as_str().unwrap().to_owned();
        assert!(why.ends_with(advice), "{why}");
        let refused = with(&["member", "init", &server.client]);
        assert_eq!(refused.code, 5, "{}", refused.err);
        assert!(refused.err.trim_end().ends_with(advice), "{}", refused.err);
    }
}

/// A server whose peer certificate is another node's is taken for nobody; with its own it gets everything, without a new
/// start.
#[test]
fn a_server_is_the_node_that_its_certificate_names() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    (1..=3).for_each(|node| ours.sign(node));
    let with = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).chain(ours.client()).collect();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // The second one is given the certificate of the third.
    let own = (ours.file("2.pem"), ours.file("2.key"));
    let keep = (fs::read(&own.0).unwrap(), fs::read(&own.1).unwrap());
    fs::copy(ours.file("3.pem"), &own.0).unwrap();
    fs::copy(ours.file("3.key"), &own.1).unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    for server in &mut servers {
        let settings = ours.settings(server.node, &ours);
        server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        wait("the server answers", || {
            let shown = with(&["status", &server.client, "--json"]).json();
            (shown["replicas"][0]["role"] == "waiting").then_some(())
        });
    }
    let [first, second] = &servers[..] else { unreachable!() };
    with(&["member", "init", &first.client]).ok();
    with(&["member", "add", &second.client, "--cluster", &first.client]).ok();
    let refused = with(&["member", "promote", "2", "--cluster", &first.client, "--timeout", "2"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    let last = |server: &Server| {
        with(&["status", &server.client, "--json"]).json()["replicas"][0]["last_raft"].clone()
    };
    assert_eq!(last(second), 0);

    // The key is there, its certificate is not yet: that is said, and changes nothing.
    fs::write(&own.1, keep.1).unwrap();
    second.hang_up();
    wait("it says so", || second.said().contains("CANNOT BE READ ANEW").then_some(()));
    // The same files serve clients and replicas.
    let broken = |things: u64| {
        let line = format!("\nchiplog_reload_broken {things}");
        wait("the figures say so", || second.page("/metrics").1.contains(&line).then_some(()));
    };
    broken(2);
    fs::write(&own.0, keep.0).unwrap();
    second.hang_up();
    with(&["member", "promote", "2", "--cluster", &first.client]).ok();
    broken(0);
}
