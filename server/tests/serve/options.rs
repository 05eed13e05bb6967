//! `chiplog options`: the options that are set in the log and hold whichever server leads.

use crate::harness::{
    Server, clients, ended, fed, founded, founded_with, leader_of, run, started, vote_in_groups, wait,
};
use serde_json::json;
use std::time::{Duration, Instant};

fn set_of(at: &str, more: &[&str]) -> serde_json::Value {
    run(&[&["options", at, "--json"], more].concat()).ok().json()["options"].clone()
}

#[test]
fn options_of_a_directory_are_set_shown_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log/");
    let log = log.to_str().unwrap();
    fed(&["append", log], "one\n").ok();
    assert_eq!(set_of(log, &[]), json!({}));
    assert!(run(&["options", log]).ok().out.starts_with("no option is set"));
    let shown = set_of(log, &["--set", "retention_bytes=1GiB", "--set", "log.retention_seconds=60"]);
    assert_eq!(shown, json!({ "retention_bytes": 1 << 30, "retention_seconds": 60 }));
    assert_eq!(set_of(log, &[]), shown);
    assert_eq!(
        run(&["options", log]).ok().out,
        "retention_bytes = 1073741824  (1.0 GiB)\nretention_seconds = 60\n"
    );
    let dumped = run(&["dump", log, "--json"]).ok().out;
    assert!(dumped.contains("set_options"), "{dumped}");
    let back = ["--unset", "retention_seconds", "--set", "retention_bytes=none"];
    let refused = run(&[&["options", log][..], &back].concat());
    assert!(refused.code == 2 && refused.err.contains("leader's own retention_seconds"), "{}", refused.err);
    let shown = set_of(log, &[&back[..], &["--yes"]].concat());
    assert_eq!(shown, json!({ "retention_bytes": "none" }));
    run(&["verify", log]).ok();
    for wrong in [
        &["--set", "retention=1"][..],
        &["--set", "retention_bytes"],
        &["--set", "sessions_max=none"],
        &["--unset", "segment_bytes"],
        &["--set", "sessions_max=1", "--unset", "sessions_max"],
        &["--set", "sessions_max=0"],
        &["--set", "retention_bytes=1KiB"],
    ] {
        let refused = run(&[&["options", log], wrong].concat());
        assert!(refused.code == 2, "{wrong:?}: {} {}", refused.code, refused.err);
    }
    assert_eq!(set_of(log, &[]), shown, "a refused change changes nothing");
}

/// The option was set without a question, and old records were gone within seconds.
#[test]
fn age_limit_that_discards_needs_consent() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log/").to_str().unwrap().to_owned();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let places = [log.as_str(), &server.client];
    for at in places {
        fed(&["append", at], "one\ntwo\n").ok();
        let shown = set_of(at, &["--set", "retention_seconds=7d", "--set", "capacity_bytes=10GiB"]);
        assert_eq!(shown, json!({ "retention_seconds": 604_800, "capacity_bytes": 10u64 << 30 }));
    }
    std::thread::sleep(std::time::Duration::from_millis(1100)); // lets the records grow old
    for at in places {
        let before = set_of(at, &[]);
        let refused = run(&["options", at, "--set", "retention_seconds=1s"]);
        assert_eq!(refused.code, 2, "{}", refused.err);
        for words in
            ["2 records, the oldest of 2", "retention_seconds of 1 s", "nothing was changed", "--yes"]
        {
            assert!(refused.err.contains(words), "{words}: {}", refused.err);
        }
        let wrong = run(&["options", at, "--set", "retention_seconds=0", "--yes"]);
        let told = "retention_seconds is 0; it has to be at least 1";
        assert!(wrong.code == 2 && wrong.err.contains(told), "{}", wrong.err);
        let wrong = run(&["options", at, "--set", "retention_bytes=1", "--yes"]);
        let told = !wrong.err.contains("discarded at once");
        assert!(wrong.code == 2 && told && wrong.err.contains("at least 128.0 KiB"), "{}", wrong.err);
        // The minimum is two of this log's own segments, which is only known when the option is set.
        let wrong = run(&["options", at, "--set", "retention_bytes=128KiB", "--yes"]);
        assert!(wrong.code == 2 && wrong.err.contains("nothing was discarded"), "{}", wrong.err);
        assert_eq!(set_of(at, &[]), before);
        let done = run(&["options", at, "--set", "retention_seconds=1", "--yes"]);
        assert!(done.code == 0 && done.err.contains("discarded at once"), "{}", done.err);
    }
}

/// Options were checked against the default segment of 64 MiB. A log of small segments accepted options with
/// which no server with such segments could lead it, and got files of 64 MiB.
#[test]
fn options_of_a_directory_are_checked_against_its_own_segments() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small").to_str().unwrap().to_owned();
    fed(&["append", &small, "--segment-bytes", "64KiB"], "one\n").ok();
    for wrong in ["record_bytes_max=1MiB", "sessions_max=4096"] {
        let refused = run(&["options", &small, "--set", wrong]);
        assert!(refused.code == 2, "{wrong}: {} {}", refused.code, refused.err);
    }
    let shown = set_of(&small, &["--set", "record_bytes_max=10000", "--set", "retention_bytes=128KiB"]);
    assert_eq!(shown, json!({ "record_bytes_max": 10_000, "retention_bytes": 128 << 10 }));
    let sizes = |log: &str| -> Vec<u64> {
        let files = std::fs::read_dir(log).unwrap().map(|file| file.unwrap());
        let segments = files.filter(|file| file.path().extension().is_some_and(|e| e == "seg"));
        segments.map(|file| file.metadata().unwrap().len()).collect()
    };
    assert!(sizes(&small).iter().all(|bytes| *bytes == 64 << 10), "{:?}", sizes(&small));
}

/// After a fail-over, a leader whose file had a smaller `retention_bytes` discarded records everywhere.
#[test]
fn server_whose_file_differs_warns_and_obeys_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = founded((1..=3).map(|node| Server::new(node, dir.path())).collect());
    let cluster = servers.iter().map(|s| s.client.clone()).collect::<Vec<_>>().join(",");
    let shown = set_of(&cluster, &["--set", "retention_bytes=1GiB"]);
    assert_eq!(shown, json!({ "retention_bytes": 1 << 30 }));
    assert_eq!(servers[1].stop(), Some(0));
    servers[1].start(&["--set", "log.retention_bytes=2MiB"]);
    wait("it warns", || servers[1].said().contains("differs from the log's options").then_some(()));
    assert!(servers[1].said().contains("retention_bytes is 1073741824 for the log and 2097152 here"));
    let line = "x".repeat(9_999) + "\n";
    fed(&["append", &cluster], &line.repeat(600)).ok();
    let let_2_lead = || {
        wait("node 2 leads", || {
            (run(&["transfer-leader", "2", "--cluster", &cluster]).code == 0).then_some(())
        });
    };
    let_2_lead();
    fed(&["append", &cluster], &line.repeat(100)).ok();
    let info = run(&["info", &cluster, "--json"]).ok().json();
    assert_eq!((&info["first"], &info["last"]), (&1.into(), &700.into()), "{info}");
    // Every server keeps and reports the log's options.
    for server in &servers {
        assert_eq!(set_of(&server.client, &[]), shown);
    }
    // The command first reports what would be discarded at once.
    let refused = run(&["options", &cluster, "--set", "retention_bytes=3MiB"]);
    assert!(refused.code == 2 && refused.err.contains("--yes"), "{} {}", refused.code, refused.err);
    assert!(refused.err.contains("700 records") && refused.err.contains("at once"), "{}", refused.err);
    assert_eq!(set_of(&cluster, &[]), shown);
    let_2_lead();
    let shown = set_of(&cluster, &["--set", "retention_bytes=3MiB", "--yes"]);
    assert_eq!(shown, json!({ "retention_bytes": 3 << 20 }));
    wait("retention of the log discards", || {
        let info = run(&["info", &cluster, "--json"]).ok().json();
        (info["first"].as_u64()? > 1).then_some(())
    });
    assert!(servers[1].said().contains("beyond retention_bytes of the log"), "{}", servers[1].said());
}

#[test]
fn options_of_a_named_log_are_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "groups=1"]);
    let client = server.client.clone();
    run(&["logs", "create", &client, "orders", "users"]).ok();
    let (orders, users) = (format!("{client}/orders"), format!("{client}/users"));
    let group = format!("{client}/_group-1");
    assert!(run(&["options", &orders]).ok().out.contains("it keeps everything"));
    fed(&["append", &orders], "one\ntwo\n").ok();
    let limits = ["--set", "retention_bytes=1MiB", "--set", "append_bytes_per_second=1000"];
    let refused = run(&[&["options", &orders][..], &limits].concat());
    assert!(refused.code == 2 && refused.err.contains("the log holds 2 records"), "{}", refused.err);
    let shown = set_of(&orders, &[&limits[..], &["--yes"]].concat());
    assert_eq!(shown, json!({ "retention_bytes": 1 << 20, "append_bytes_per_second": 1000 }));
    assert_eq!((set_of(&users, &[]), set_of(&group, &[])), (json!({}), json!({})));
    for (at, option, hint) in [
        (&orders, "session_window=5", "set it for the log's group"),
        (&group, "append_bytes_per_second=5", "set it for each named log"),
    ] {
        let refused = run(&["options", at, "--set", option]);
        assert!(refused.code == 2 && refused.err.contains(hint), "{}", refused.err);
        // As the command takes them. The library calls it session_idle_max.
        assert!(refused.err.contains("session_idle_max_seconds"), "{}", refused.err);
    }
    set_of(&group, &["--set", "sessions_max=5"]);
    // The second append waits until the first one is paid for.
    fed(&["append", &orders], &format!("{}\n", "x".repeat(10_000))).ok();
    let begun = Instant::now();
    fed(&["append", &orders], "three\n").ok();
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    server.kill();
    server.start(&[]);
    wait("the options of the log", || {
        let shown = run(&["options", &orders, "--json"]);
        (shown.code == 0 && shown.json()["options"]["append_bytes_per_second"] == 1000).then_some(())
    });
    let files = server.data.join("named/group-1");
    let dumped = run(&["dump", files.to_str().unwrap_or_default(), "--json"]).ok().out;
    assert!(dumped.contains("set_log_options"), "{dumped}");
}

/// Options and the quota of a named log are set while one server leads its group, and hold when another one leads.
#[test]
fn options_of_a_named_log_hold_after_a_change_of_leader() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=1"];
    let mut servers = founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect(), &groups);
    vote_in_groups(&servers, 1);
    let all = clients(&servers.iter().collect::<Vec<_>>());
    run(&["logs", "create", &all, "orders", "users", "visits"]).ok();
    let quota = ["--set", "append_bytes_per_second=1000", "--set", "retention_seconds=7d"];
    let of_orders = set_of(&format!("{all}/orders"), &quota);
    assert_eq!(of_orders, json!({ "append_bytes_per_second": 1000, "retention_seconds": 604_800 }));
    let of_visits = set_of(&format!("{all}/visits"), &["--set", "retention_bytes=2MiB"]);
    assert_eq!(of_visits, json!({ "retention_bytes": 2 << 20 }));
    let before = leader_of(&servers.iter().collect::<Vec<_>>(), "orders");
    let killed = before as usize - 1;
    servers[killed].kill();
    let left = clients(&servers.iter().collect::<Vec<_>>());
    let at = |log: &str| format!("{left}/{log}");
    wait("another server leads the group", || {
        let shown = run(&["status", &at("orders"), "--json"]).json();
        (shown["leader"].as_u64()? != before).then_some(())
    });
    assert_eq!(set_of(&at("orders"), &[]), of_orders);
    assert_eq!(set_of(&at("users"), &[]), json!({}));

    // This append takes ten seconds' worth. The next one waits for that, and an append to another log does not.
    fed(&["append", &at("orders")], &format!("{}\n", "x".repeat(10_000))).ok();
    let begun = Instant::now();
    let mut late = started(&["append", &at("orders")]);
    std::io::Write::write_all(&mut late.stdin.take().unwrap(), b"late\n").unwrap();
    fed(&["append", &at("users")], "one\n").ok();
    if begun.elapsed() < Duration::from_secs(4) {
        let info = run(&["info", &at("orders"), "--json"]).ok().json();
        assert_eq!(info["last"], 1, "it waits: {info}");
    }
    ended(late).ok();
    assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(run(&["info", &at("orders"), "--json"]).ok().json()["last"], 2);

    // The leader of now discards by the option that was set at the one before.
    let line = "x".repeat(9_999) + "\n";
    wait("retention of the log discards", || {
        fed(&["append", &at("visits")], &line.repeat(100)).ok();
        (run(&["info", &at("visits"), "--json"]).ok().json()["first"].as_u64()? > 1).then_some(())
    });
    assert_eq!(run(&["info", &at("orders"), "--json"]).ok().json()["first"], 1);

    // It changes them once all members are there, and the server that was away leads with that.
    servers[killed].start(&groups);
    let change = ["--set", "append_bytes_per_second=none", "--set", "retention_seconds=8d", "--yes"];
    let changed = set_of(&at("orders"), &change);
    assert_eq!(changed, json!({ "append_bytes_per_second": "none", "retention_seconds": 691_200 }));
    wait("the server that was away leads", || {
        let target = format!("{all}/_group-1");
        (run(&["transfer-leader", &before.to_string(), "--cluster", &target]).code == 0).then_some(())
    });
    for server in &servers {
        wait("each server tells the options", || {
            let shown = run(&["options", &format!("{}/orders", server.client), "--json"]);
            (shown.code == 0 && shown.json()["options"] == changed).then_some(())
        });
    }
    let begun = Instant::now();
    let lines = format!("{}\n", "x".repeat(10_000)).repeat(6);
    fed(&["append", &format!("{all}/orders")], &lines).ok();
    assert!(begun.elapsed() < Duration::from_secs(30), "the quota was a minute: {:?}", begun.elapsed());
}
