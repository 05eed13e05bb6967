//! Commands with a wrong address, or with a server that belongs to no cluster.

use crate::harness::{Server, fed, run};

/// They ended with 7, "needs another version of chiplog", and printed gRPC's own text.
#[test]
fn port_of_peers_or_probes_is_not_reported_as_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    for port in [&server.peer, &server.http] {
        for args in [
            &["status", port][..],
            &["append", port],
            &["read", port],
            &["info", port],
            &["member", "init", port],
            &["member", "promote", "2", "--cluster", port],
            &["options", port],
        ] {
            let ran = fed(args, "");
            let said = format!("{}{}", ran.out, ran.err);
            assert_eq!(ran.code, 5, "{args:?}: {said}");
            assert!(said.contains("does not serve chiplog clients"), "{args:?}: {said}");
            assert!(!said.contains("Unimplemented") && !said.contains("grpc-status"), "{args:?}: {said}");
        }
    }
}

/// A refusal by the leader itself was reported with the advice to check that a server runs there.
#[test]
fn refusal_by_a_server_does_not_question_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    servers[0].start(&["--init"]);
    servers[1].start(&[]);
    let first = servers[0].client.clone();
    run(&["member", "add", &servers[1].client, "--cluster", &first]).ok();
    servers[1].kill();
    // A silent member may run a version without options of a log.
    let ran = run(&["options", &first, "--set", "sessions_max=10", "--timeout", "1"]);
    assert!(ran.code != 0 && !ran.err.contains("does not serve chiplog clients"), "{} {}", ran.code, ran.err);
}

#[test]
fn error_of_a_waiting_server_says_how_to_make_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    servers.iter_mut().for_each(|server| server.start(&[]));
    let [first, second] = [0, 1].map(|n: usize| servers[n].client.clone());
    let init = format!("`chiplog member init {first}` makes one");
    for args in [&["append", &first][..], &["member", "add", &second, "--cluster", &first]] {
        let ran = fed(args, "x\n");
        assert!(ran.code == 5 && ran.err.contains(&init), "{args:?}: {} {}", ran.code, ran.err);
    }
}

#[test]
fn url_is_refused_everywhere_with_the_same_message() {
    let url = "http://127.0.0.1:7411";
    for args in [
        &["status", url][..],
        &["append", url],
        &["member", "init", url],
        &["member", "add", url, "--cluster", "a:1"],
        &["member", "remove", "2", "--cluster", url],
        &["top", url],
        &["cost", url],
        &["follow", "./copy", url],
    ] {
        let ran = run(args);
        let told =
            ran.err.contains("a URL is not accepted: give HOST:PORT of a server, such as 127.0.0.1:7411");
        assert!(ran.code == 2 && told, "{args:?}: {}", ran.err);
    }
}
