//! `chiplog cost` with servers: the traffic that it measures.

use crate::harness::{Server, chiplog, fed, keys, one, records, run, started, three, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

fn group<'a>(report: &'a Value, log: &str) -> &'a Value {
    let groups = report["traffic"]["groups"].as_array().unwrap();
    groups.iter().find(|g| g["log"] == log).unwrap_or_else(|| panic!("{log}: {report}"))
}

#[test]
fn appends_of_the_default_log_and_of_groups_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "groups=1", "--set", "zone=west"]);
    let client = server.client.as_str();
    run(&["logs", "create", client, "orders"]).ok();
    fed(&["append", client], "one\ntwo\n").ok();

    // Appends all the time that it is measured.
    let mut append = started(&["append", &format!("{client}/orders")]);
    let mut input = append.stdin.take().unwrap();
    let mut reader = chiplog();
    reader.args(["read", &format!("{client}/orders"), "--follow"]).stdout(Stdio::null());
    let mut reader = reader.spawn().unwrap();
    wait("the reader follows", || {
        server.page("/metrics").1.contains("\nchiplog_streams{stream=\"read\"} 1.0\n").then_some(())
    });
    let cost = std::thread::scope(|scope| {
        let cost = scope.spawn(|| run(&["cost", client, "--seconds", "2", "--json"]));
        while !cost.is_finished() {
            input.write_all(&[b"x".repeat(10_000), b"\n".to_vec()].concat()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        cost.join().unwrap()
    });
    drop(input);
    kill_process(Pid::from_child(&reader), Signal::KILL).unwrap();
    reader.wait().unwrap();
    assert!(append.wait().unwrap().success());
    let report = cost.ok().json();
    let (orders, default) = (group(&report, "_group-1"), group(&report, "default"));
    assert_eq!(
        keys(orders),
        [
            "log",
            "leader",
            "append_bytes_per_second",
            "appends_per_second",
            "replicas",
            "copies_between_zones",
            "stored_bytes"
        ]
    );
    assert!(orders["append_bytes_per_second"].as_f64().unwrap() > 10_000.0, "{report}");
    assert!(orders["appends_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(default["appends_per_second"], 0.0, "{report}");
    assert_eq!((&orders["replicas"], &orders["copies_between_zones"]), (&1.into(), &0.into()));
    assert!(default["stored_bytes"].as_u64().unwrap() > 0, "{report}");
    let traffic = &report["traffic"];
    let rate = |name: &str| traffic[name].as_f64().unwrap();
    let (appended, read) = (rate("append_bytes_per_second"), rate("read_bytes_per_second"));
    assert!(read > appended / 2.0 && read < appended * 1.5, "one reader follows: {report}");
    assert_eq!(traffic["are_reads_assumed"], false, "{report}");
    assert_eq!([&traffic["zones"], &traffic["seconds"]], [1, 2]);
    // The server has a label of its zone, and all is in that zone.
    assert_eq!(traffic["are_zones_assumed"], false, "{report}");
    assert_eq!(report["classes"][0]["lines"][0]["dollars"], 0.0, "{report}");
    assert!(
        report["classes"][0]["dollars"].as_f64().unwrap() < report["classes"][2]["dollars"].as_f64().unwrap()
    );

    // A named log stands for its group.
    let named = run(&["cost", &format!("{client}/orders"), "--seconds", "1", "--json"]).ok().json();
    assert_eq!(named["traffic"]["groups"].as_array().unwrap().len(), 1);
    assert_eq!(group(&named, "orders")["leader"], 1);
    assert_eq!(named["traffic"]["are_reads_assumed"], true, "reads are those of all logs");
    let given = run(&["cost", client, "--seconds", "1", "--fan-out", "2", "--json"]).ok().json();
    let rate = |name: &str| given["traffic"][name].as_f64().unwrap();
    assert!((rate("read_bytes_per_second") - 2.0 * rate("append_bytes_per_second")).abs() < 1e-6, "{given}");
}

/// Clients of both services count.
#[test]
fn bytes_that_clients_read_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    fed(&["append", &server.client], &"12345678\n".repeat(100)).ok();
    let count = || {
        let page = server.page("/metrics").1;
        let line = page.lines().find_map(|line| line.strip_prefix("chiplog_read_bytes_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(count(), 0);
    run(&["read", &server.client]).ok();
    let native = count();
    assert!((800..1600).contains(&native), "{native}");
    assert_eq!(records(&server, 100).len(), 100);
    assert_eq!(count() - native, 800);
}

#[test]
fn cluster_without_labels_counts_each_server_as_a_zone() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let client = servers[1].client.as_str();
    let report = run(&["cost", client, "--seconds", "1", "--json"]).ok().json();
    let default = group(&report, "default");
    assert_eq!((&default["replicas"], &default["copies_between_zones"]), (&3.into(), &2.into()));
    assert_eq!(
        (&report["traffic"]["zones"], &report["traffic"]["are_zones_assumed"]),
        (&3.into(), &true.into())
    );
    let words = run(&["cost", client, "--seconds", "1"]).ok().out;
    for part in ["Measured for 1 s", "assumed: servers have no zone", "0 B/s read,"] {
        assert!(words.contains(part), "{part}: {words}");
    }
}
