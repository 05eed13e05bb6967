//! Commands that are given a wrong address, or a server that is part of no cluster.

use crate::harness::{Server, fed, run};

/// They ended with 7, "needs another version of chiplog", and told gRPC's own words.
#[test]
fn port_of_peers_or_probes_is_no_other_version() {
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

/// What the leader itself refuses was told with the question whether there is a server.
#[test]
fn refusal_of_a_server_does_not_ask_whether_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    servers[0].start(&["--init"]);
    servers[1].start(&[]);
    let first = servers[0].client.clone();
    run(&["member", "add", &servers[1].client, "--cluster", &first]).ok();
    servers[1].kill();
    // A member that says nothing may be of a version that knows no options of a log.
    let ran = run(&["options", &first, "--set", "sessions_max=10", "--timeout", "1"]);
    assert!(ran.code != 0 && !ran.err.contains("does not serve chiplog clients"), "{} {}", ran.code, ran.err);
}

#[test]
fn waiting_server_is_told_with_what_makes_a_cluster_of_it() {
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
fn url_is_refused_everywhere_in_the_same_words() {
    let url = "http://127.0.0.1:7411";
    for args in [
        &["status", url][..],
        &["append", url],
        &["member", "init", url],
        &["member", "add", url, "--cluster", "a:1"],
        &["member", "remove", "2", "--cluster", url],
        &["top", url],
        &["follow", "./copy", url],
    ] {
        let ran = run(args);
        let told = ran.err.contains("a URL is not taken here: a server is HOST:PORT, such as 127.0.0.1:7411");
        assert!(ran.code == 2 && told, "{args:?}: {}", ran.err);
    }
}
