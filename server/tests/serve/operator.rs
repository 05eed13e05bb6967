//! Accidents of an operator: a change that would leave no majority, a member that returns on an empty disk, a
//! member that is made a cluster of its own.

use crate::harness::{Ran, Server, fed, leader, made, run, status, three, wait};
use serde_json::{Value, json};

/// The state of a node according to `status`, and its explanation.
fn state(shown: &Value, node: u64) -> (String, String) {
    let replicas = shown["replicas"].as_array().unwrap();
    let replica = replicas.iter().find(|r| r["node"] == node).unwrap_or_else(|| panic!("{shown}"));
    (replica["state"].as_str().unwrap().to_owned(), replica["why"].as_str().unwrap_or_default().to_owned())
}

/// Waits until `status` reports that all is well.
fn wait_for_health(cluster: &str) {
    wait("all is well", || (run(&["status", cluster]).code == 0).then_some(()));
}

/// Runs `status` until it shows a leader: on a busy machine an election can happen between two commands.
fn status_of_led(cluster: &str) -> Ran {
    wait("there is a leader", || {
        let ran = run(&["status", cluster, "--json"]);
        ran.json()["leader"].is_u64().then_some(ran)
    })
}

#[track_caller]
fn refused(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    for word in words {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
}

/// A member's disk is emptied. `status` reported status 0 and lag 0. `member init` made it a separate
/// cluster: clients read that cluster's records as if they belonged to the original log, or refused forever
/// to use either.
#[test]
fn member_that_lost_its_disk_is_reported_and_never_taken_for_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let [first, third] = [0, 2].map(|n: usize| servers[n].client.clone());
    run(&["transfer-leader", "1", "--cluster", &first]).ok();
    fed(&["append", &first], "one\ntwo\n").ok();
    wait_for_health(&first);
    let well = run(&["status", &third, "--json"]).ok().json();
    assert_eq!(well["ok"], true);
    assert!((1..=3).all(|node| state(&well, node) == ("ok".into(), String::new())), "{well}");

    servers[2].kill();
    let dead = status_of_led(&first);
    assert_eq!((dead.code, dead.json()["ok"].as_bool()), (5, Some(false)), "{}", dead.out);
    assert_eq!(state(&dead.json(), 3).0, "unreachable");
    let words = run(&["status", &first]).out;
    assert_eq!(words.matches("unreachable").count(), 1, "its state is not its role: {words}");

    std::fs::remove_dir_all(&servers[2].data).unwrap();
    // It listens this long for callers; none of them is slower.
    let listen = ["--set", "cluster.election_timeout_millis=20000"];
    let before = servers[2].said().len();
    servers[2].start(&listen);
    let wiped = status_of_led(&first);
    assert_eq!(wiped.code, 1, "{}", wiped.out);
    let shown = wiped.json();
    let (name, why) = state(&shown, 3);
    assert!(name == "wiped" && why.contains("empty directory") && why.contains("new number"), "{shown}");
    for unknown in ["lag", "term", "first", "last", "bytes_used", "sync_p99_micros"] {
        assert_eq!(shown["replicas"][2][unknown], Value::Null, "{unknown}");
    }
    // It counts for the majority, whatever it knows itself.
    assert_eq!(shown["replicas"][2]["voter"], true, "{shown}");
    let words = run(&["status", &first]);
    assert!(words.code == 1 && words.out.contains("STATE"), "{}", words.out);
    assert!(words.out.contains("node 3: it returned with an empty directory"), "{}", words.out);
    refused(&run(&["verify", &first]), 5, &[]);
    // The server and its clients were advised to run `member init`, which would have made another cluster.
    let said = wait("its log warns", || {
        // Only lines after the restart: it may also have been called before it first joined.
        let said = servers[2].said().split_off(before);
        said.contains("calls this server as node 3 of its cluster").then_some(said)
    });
    assert!(said.contains(" WARN ") && !said.contains("`chiplog member init 127"), "{said}");
    let alone = run(&["status", &third, "--json"]);
    assert_eq!((alone.code, state(&alone.json(), 3).0.as_str()), (5, "wiped"), "no leader: {}", alone.out);
    let read = run(&["read", &third]);
    refused(&read, 5, &["has no replica, but a cluster has node 3 at its address", "use another server"]);
    assert!(!read.err.contains("member init"), "{}", read.err);

    // It is not a new cluster: the others call it and list it.
    refused(&run(&["member", "init", &third]), 2, &["calls this server, as node 3", "--force"]);
    let listed = run(&["member", "init", &third, "--cluster", &first]);
    refused(&listed, 2, &["is at the address of node 3 of the cluster", "--force"]);
    assert_eq!(servers[2].stop(), Some(0));
    let output = servers[2].command().arg("--init").args(listen).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("calls this server"), "{said}");
    servers[2].start(&[]);

    // A cluster that is made nevertheless is recognized, whichever server is asked first.
    run(&["member", "init", &third, "--force"]).ok();
    let cluster = format!("{third},{first},{}", servers[1].client);
    for at in [&first, &cluster] {
        let rogue = status_of_led(at);
        assert_eq!(rogue.code, 1, "{}", rogue.out);
        let shown = rogue.json();
        let (name, why) = state(&shown, 3);
        assert!(name == "other_log" && why.contains("node 3"), "{shown}");
        assert_eq!(shown["log_id"], well["log_id"], "{shown}");
        assert!(shown["leader"] == 1 || shown["leader"] == 2, "{shown}");
        let verified = run(&["verify", at]);
        let words = "NOT CHECKED: it belongs to another log";
        assert!(verified.code == 5 && verified.out.contains(words), "{}", verified.out);
        fed(&["append", at], "three\n").ok();
        for _ in 0..4 {
            assert!(run(&["read", at]).ok().out.starts_with("one\ntwo\nthree\n"));
        }
        assert_eq!(run(&["info", at, "--json"]).ok().json()["log_id"], well["log_id"]);
    }
    let alone = run(&["status", &third, "--json"]).ok().json();
    assert_eq!(alone["replicas"][0]["last"], 0, "the other log got nothing");

    // Commands go to the original cluster: a new server replaces the lost one.
    let mut fourth = Server::new(4, dir.path());
    fourth.start(&[]);
    made(&["member", "add", &fourth.client, "--cluster", &cluster, "--promote"]);
    made(&["member", "remove", "3", "--cluster", &cluster]);
    servers[2].kill();
    wait_for_health(&first);
}

/// A new server on the lost one's machine was reported as `wiped` and a voter, with the advice to remove it.
#[test]
fn new_server_at_the_address_of_a_lost_one_is_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let first = servers[0].client.clone();
    run(&["transfer-leader", "1", "--cluster", &first]).ok();
    servers[2].kill();
    let mut new = Server::new(6, dir.path());
    (new.client, new.peer) = (servers[2].client.clone(), servers[2].peer.clone());
    new.start(&[]);
    wait("its log warns", || {
        new.said().contains("node 3 at the address of this server, which is node 6").then_some(())
    });
    let shown = run(&["status", &first, "--json"]).json();
    let (name, why) = state(&shown, 6);
    assert!(name == "waiting" && why.contains("address of node 3") && !why.contains("init"), "{shown}");
    let (name, why) = state(&shown, 3);
    assert!(name == "unreachable" && why.contains("node 6 is at its address"), "{shown}");
    let sixth = shown["replicas"].as_array().unwrap().iter().find(|r| r["node"] == 6).unwrap();
    assert_eq!(sixth["voter"], false, "{shown}");
    made(&["member", "add", &new.client, "--cluster", &first, "--promote"]);
    made(&["member", "remove", "3", "--cluster", &first]);
    wait_for_health(&first);
}

/// `member remove 2` of three voters, with 3 down, ended the cluster for good.
#[test]
fn change_that_leaves_no_majority_is_refused_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let leads = leader(&servers.iter().collect::<Vec<_>>());
    let [dead, other] = [leads % 3 + 1, (leads + 1) % 3 + 1];
    let at = |node: u64| node as usize - 1;
    let cluster = servers[at(leads)].client.clone();
    servers[at(dead)].kill();
    wait("the leader hears nothing from it", || {
        let shown = run(&["status", &cluster, "--json"]).json();
        shown["replicas"].as_array()?.iter().find(|r| r["node"] == dead)?["lag"].is_null().then_some(())
    });
    let member = |args: &[&str]| run(&[&["member"], args, &["--cluster", &cluster]].concat());
    let [dead_name, other_name] = [dead, other].map(|node| node.to_string());
    let silent = format!("nothing is heard of {dead}");
    for what in ["remove", "demote"] {
        refused(&member(&[what, &other_name]), 2, &[&silent, "Nothing was changed", "--force"]);
    }
    fed(&["append", &cluster], "the cluster goes on\n").ok();

    // A forced change comes into force when the other voters return. The message says how to check that.
    let forced = member(&["remove", &other_name, "--force", "--timeout", "2"]);
    refused(&forced, 5, &["chiplog status", "run the same command again"]);
    servers[at(dead)].start(&[]);
    wait("it is removed", || {
        let shown = status(&[&servers[at(leads)], &servers[at(dead)]]);
        let mut nodes = shown["replicas"].as_array()?.iter().map(|r| r["node"].as_u64());
        (shown["leader"].is_u64() && !nodes.any(|n| n == Some(other))).then_some(())
    });
    refused(&member(&["remove", &other_name]), 2, &["is not a member"]);

    // A change that was made already is not made twice.
    let promoted = member(&["promote", &dead_name]).ok();
    assert!(promoted.out.contains("votes"), "{}", promoted.out);
}

/// A dead node is to be replaced, but the number of a healthy one is typed. It was removed for good without a
/// warning; one more loss then ended the cluster.
#[test]
fn replacement_with_a_mistyped_number_removes_no_healthy_voter() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let cluster = servers.iter().map(|s| s.client.clone()).collect::<Vec<_>>().join(",");
    let member = |args: &[&str]| run(&[&["member"], args, &["--cluster", &cluster]].concat());
    servers[2].kill();
    wait("the leader hears nothing from it", || {
        let shown = run(&["status", &cluster, "--json"]).json();
        shown["replicas"].as_array()?.iter().find(|r| r["node"] == 3)?["lag"].is_null().then_some(())
    });
    let mut fourth = Server::new(4, dir.path());
    fourth.start(&[]);
    let added = member(&["add", &fourth.client, "--promote"]).ok();
    let outcome = "votes; voters: 1, 2, 3, 4; nothing is heard of 3: no further loss is tolerated";
    assert!(added.out.contains(outcome), "{}", added.out);
    let words = ["node 4 runs", "nothing is heard of node 3", "probably the one that was meant", "--force"];
    refused(&member(&["remove", "4"]), 2, &words);
    refused(&member(&["demote", "4"]), 2, &words);
    let removed = member(&["remove", "3", "--json"]).ok().json();
    let outcome = json!({ "node": 3, "voters": [1, 2, 4], "silent": [], "losses_tolerated": 1 });
    assert_eq!(removed, outcome);
    let removed = member(&["remove", "4"]).ok();
    assert_eq!(removed.out, "node 4 is removed; voters: 1, 2: no loss is tolerated\n");
}

/// Waiting does not repair a certificate. Commands gave no useful error for 15 s, or an error about how TLS
/// bytes look to HTTP/2.
#[test]
fn wrong_authority_is_reported_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = crate::harness::one(dir.path());
    let authority = crate::certificates::Authority::new(dir.path(), "ours").file("authority.pem");
    for command in [&["info"][..], &["read"], &["member", "promote", "2", "--cluster"]] {
        let ran = run(&[command, &[&server.client, "--tls-authority", &authority]].concat());
        refused(&ran, 2, &["does not use TLS", "leave out --tls-authority"]);
        assert!(!ran.err.contains("waiting up to") && !ran.err.contains("corrupt message"), "{}", ran.err);
    }
}

/// The server kept running at an address that the others did not know, without a warning.
#[test]
fn moved_server_logs_the_command_that_announces_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let first = servers[0].client.clone();
    run(&["transfer-leader", "1", "--cluster", &first]).ok();
    wait_for_health(&first);
    let server = &mut servers[2];
    let before = server.client.clone();
    assert_eq!(server.stop(), Some(0));
    assert!(!server.said().contains("set-address"), "{}", server.said());
    server.client = Server::new(3, dir.path()).client.clone();
    server.start(&[]);
    let command = format!("chiplog member set-address 3 --client {} --peer {}", server.client, server.peer);
    wait("it warns", || server.said().contains(&command).then_some(()));
    assert!(server.said().contains(&format!("has it at {before}")), "{}", server.said());
    run(&["member", "set-address", "3", "--client", &server.client, "--cluster", &first]).ok();
    wait_for_health(&first);
}
