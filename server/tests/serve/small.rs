//! Replicas without room: segments too small for the log, a log at its capacity.

use crate::harness::{Server, fed, run, wait};

/// The replica stored nothing more, and neither `/readyz` nor `status` showed it.
#[test]
fn replica_with_too_small_segments_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    servers[0].start(&["--init"]);
    servers[1].start(&["--set", "log.segment_bytes=64KiB"]);
    let (first, second) = (servers[0].client.clone(), servers[1].client.clone());
    run(&["member", "add", &second, "--cluster", &first]).ok();
    wait("it is ready", || (servers[1].page("/readyz").0 == 200).then_some(()));
    fed(&["append", &first], &format!("{}\n", "x".repeat(200_000))).ok();
    let why = wait("it reports why it is not ready", || {
        let (code, why) = servers[1].page("/readyz");
        (code == 503 && why.contains("has no room")).then_some(why) // without a leader it is not ready either
    });
    assert!(why.contains("has no room") && why.contains("raise segment_bytes"), "{why}");
    let status = run(&["status", &first, "--json"]);
    assert_eq!(status.code, 1, "{}", status.out);
    let shown = status.json();
    let second = shown["replicas"].as_array().unwrap().iter().find(|r| r["node"] == 2).unwrap();
    assert_eq!(second["state"], "short", "{shown}");
    assert!(second["why"].as_str().unwrap().contains("raise segment_bytes"), "{shown}");
    assert_eq!(servers[0].page("/readyz").0, 200);
    assert!(servers[1].page("/metrics").1.contains("\nchiplog_ready 0"));
    // With larger segments it continues.
    assert_eq!(servers[1].stop(), Some(0));
    servers[1].start(&[]);
    wait("it has the record", || {
        let info = run(&["info", &servers[1].client, "--json"]).json();
        (info["last"] == 1 && servers[1].page("/readyz").0 == 200).then_some(())
    });
    run(&["status", &first]).ok();
}

/// Options of the log that a replica's segments cannot hold are reported before a record needs them.
#[test]
fn replica_that_does_not_fit_the_options_of_the_log_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    servers[0].start(&["--init"]);
    servers[1].start(&["--set", "log.segment_bytes=64KiB"]);
    let (first, second) = (servers[0].client.clone(), servers[1].client.clone());
    run(&["options", &first, "--set", "record_bytes_max=200KiB"]).ok();
    run(&["member", "add", &second, "--cluster", &first]).ok();
    // First it lacks entries; then it has the option.
    wait("it reports why it is not ready", || {
        let (code, why) = servers[1].page("/readyz");
        (code == 503 && why.contains("record_bytes_max")).then_some(())
    });
    assert_eq!(run(&["status", &first]).code, 1);
    run(&["options", &first, "--set", "record_bytes_max=20KiB"]).ok();
    wait("it fits", || (servers[1].page("/readyz").0 == 200).then_some(()));
    run(&["status", &first]).ok();
    // While it is a member, no option is set that it cannot hold.
    let refused = run(&["options", &first, "--set", "record_bytes_max=200KiB"]);
    assert!(
        refused.code == 2 && refused.err.contains("node 2 has segments of 65536 bytes"),
        "{}",
        refused.err
    );
}

/// `status` reported that all was well while no append was possible.
#[test]
fn leader_of_a_full_log_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "log.capacity_bytes=4MiB"]);
    let at = server.client.clone();
    run(&["status", &at]).ok();
    // Records of this size never fill the whole capacity: only the refusal shows it.
    let records = format!("{}\n", "x".repeat(100_000)).repeat(60);
    let refused = fed(&["append", &at, "--batch", "1"], &records);
    assert!(refused.code == 5 && refused.err.contains("full"), "{} {}", refused.code, refused.err);
    let status = run(&["status", &at, "--json"]);
    let shown = status.json();
    assert_eq!((status.code, &shown["replicas"][0]["state"]), (1, &"full".into()), "{shown}");
    assert!(shown["replicas"][0]["why"].as_str().unwrap().contains("chiplog discard"), "{shown}");
    assert!(run(&["status", &at]).out.contains(" full "));
    assert_eq!(server.page("/readyz").0, 200, "it can be read");
    run(&["discard", &at, "30"]).ok();
    run(&["status", &at]).ok();
    fed(&["append", &at], "there is room\n").ok();
}
