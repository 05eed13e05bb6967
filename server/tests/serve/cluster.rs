//! Commands about a whole cluster: verify, top, bench, member set-address; and a cluster without a majority.

use crate::harness::{Server, ended, fed, interrupt, keys, leader, one, run, started, status, three, wait};
use crate::limited::Limited;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn lines(from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("line {n}\n")).collect()
}

/// The first segment of a replica.
fn segment(server: &Server) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(&server.data).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "seg"));
    files.into_iter().min().unwrap()
}

/// Waits until all three servers have `last` records.
fn wait_for_all(servers: &[&Server], last: u64) {
    wait("every replica has every record", || {
        let shown = status(servers);
        shown["replicas"].as_array()?.iter().all(|r| r["last"] == last).then_some(())
    });
}

/// docs/operations.md promises this: the records left in a cluster without a majority can be read and copied.
#[test]
fn records_are_read_and_copied_without_a_majority() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let all: Vec<String> = servers.iter().map(|s| s.client.clone()).collect();
    fed(&["append", &all.join(",")], &lines(1, 500)).ok();
    wait_for_all(&servers.iter().collect::<Vec<_>>(), 500);
    let leads = leader(&servers.iter().collect::<Vec<_>>()) as usize - 1;
    let left = (leads + 1) % 3;
    servers[leads].kill();
    servers[(leads + 2) % 3].kill();

    wait("it knows that there is no leader", || {
        let info = run(&["info", &all[left], "--stale", "--json"]).ok().json();
        info["leader"]["node"].is_null().then_some(())
    });
    for at in [all.join(","), all[left].clone()] {
        assert_eq!(run(&["read", &at, "--stale"]).ok().out, lines(1, 500));
        assert_eq!(run(&["read", &at, "--stale", "--last", "1"]).ok().out, "line 500\n");
        let info = run(&["info", &at, "--stale", "--json"]).ok().json();
        assert_eq!((&info["last"], &info["leader"]["node"]), (&500.into(), &Value::Null), "{info}");
    }
    let log = dir.path().join("saved");
    let log = log.to_str().unwrap();
    let saved = run(&["read", &all[left], "--stale", "--length-prefixed"]).ok().out;
    fed(&["append", log, "--length-prefixed"], &saved).ok();
    assert_eq!(run(&["read", log]).ok().out, lines(1, 500));

    // A command that needs a majority says so, and what to use instead.
    let refused = run(&["read", &all[left]]);
    assert!(refused.code == 5 && refused.err.contains("--stale"), "{}", refused.err);
    assert_eq!(run(&["read", log, "--stale"]).code, 2);
    let verified = run(&["verify", &all[left], "--records", "--json"]);
    assert_eq!(verified.code, 5, "two replicas cannot be asked: {}", verified.out);
    assert_eq!(verified.json()["records"]["records"], 500);
}

#[test]
fn every_replica_verifies_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let cluster = servers[0].client.clone();
    // More than a segment, because opening reads only the last one.
    fed(&["append", &cluster, "--batch", "100"], &lines(1, 200_000)).ok();
    wait_for_all(&servers.iter().collect::<Vec<_>>(), 200_000);
    let sound = run(&["verify", &servers[1].client, "--records", "--json"]).ok().json();
    assert_eq!(keys(&sound), ["ok", "log_id", "replicas", "groups", "records", "seconds"]);
    assert_eq!(sound["ok"], true);
    let replicas = sound["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 3);
    for replica in replicas {
        let names = ["node", "client", "role", "bytes", "corrupt", "harmless", "undecodable"];
        assert_eq!(keys(replica)[..7], names);
        assert_eq!(keys(replica)[7..], ["findings", "findings_left_out", "error"]);
        assert!(replica["bytes"].as_u64().unwrap() > 1 << 19, "{replica}");
        assert_eq!((&replica["corrupt"], &replica["error"]), (&0.into(), &Value::Null));
    }
    let records = &sound["records"];
    assert_eq!(keys(records), ["records", "bytes", "first", "last", "error"]);
    assert_eq!((&records["records"], &records["last"]), (&200_000.into(), &200_000.into()));
    let words = run(&["verify", &cluster]).ok().out;
    assert!(words.contains("node 3 at") && words.contains("sound, in"), "{words}");

    // A bit flips in one replica. The replica repairs the damage at once, although its scrubber is off.
    let hurt = &mut servers[2];
    assert_eq!(hurt.stop(), Some(0));
    let file = segment(hurt);
    let flip = || {
        let file = fs::File::options().read(true).write(true).open(&file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 600_000).unwrap();
        file.write_all_at(&[byte[0] ^ 4], 600_000).unwrap();
    };
    flip();
    hurt.start(&["--set", "cluster.scrub_bytes_per_second=0"]);
    let found = run(&["verify", &cluster, "--json"]);
    assert_eq!(found.code, 3, "{}{}", found.out, found.err);
    let found = found.json();
    assert_eq!((&found["ok"], &found["replicas"][0]["corrupt"]), (&false.into(), &0.into()));
    let third = &found["replicas"][2];
    assert!(third["corrupt"].as_u64().unwrap() >= 1, "{third}");
    let finding = third["findings"][0].as_str().unwrap();
    assert!(finding.starts_with("corrupt: ") && finding.contains(".seg at offset"), "{finding}");
    wait("the repair", || (run(&["verify", &cluster]).code == 0).then_some(()));
    flip();
    let words = run(&["verify", &cluster]);
    assert!(words.code == 3 && words.out.contains("node 3: corrupt: "), "{}", words.out);

    // A missing replica is named, and the result is not a plain success.
    servers[2].kill();
    let silent = run(&["verify", &cluster, "--json"]);
    assert_eq!(silent.code, 5, "{}", silent.out);
    let silent = silent.json();
    assert_eq!(silent["replicas"][2]["role"], "unreachable");
    assert!(silent["replicas"][2]["error"].is_string() && silent["replicas"][1]["error"].is_null());
    assert_eq!(run(&["verify", dir.path().to_str().unwrap(), "--records"]).code, 2);
}

#[test]
fn top_shows_rates_and_positions() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let cluster = servers[0].client.clone();
    let mut top = started(&["top", &cluster, "--json"]);
    let _limited = Limited::new(&top);
    let mut views = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&views.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(
        keys(&first),
        [
            "time",
            "timestamp",
            "log_id",
            "leader",
            "appends_per_second",
            "records_per_second",
            "named_logs",
            "replicas"
        ]
    );
    // The time was a number, which is text in all other commands.
    let time: jiff::Timestamp = first["time"].as_str().unwrap().parse().unwrap();
    assert_eq!(first["timestamp"], time.as_millisecond(), "{first}");
    let names = [
        "node",
        "role",
        "voter",
        "client",
        "zone",
        "term",
        "first",
        "last",
        "lag",
        "records_per_second",
        "written_bytes_per_second",
        "bytes_used",
        "bytes_capacity",
        "disk_bytes",
        "disk_free_bytes",
        "sync_median_micros",
        "sync_p99_micros",
        "damaged",
        "repaired",
        "poison",
        "error",
    ];
    assert_eq!(keys(&first["replicas"][0]), names);
    assert_eq!(first["records_per_second"], Value::Null, "{first}");
    fed(&["append", &cluster, "--batch", "10"], &lines(1, 1000)).ok();
    let (mut busy, mut last) = (false, 1000);
    let mut replicas = Value::Null;
    wait("the appended records show", || {
        let view = next();
        // Null where a server was not heard in time.
        let is_above_0 = |name: &str| view[name].as_f64().is_some_and(|rate| rate > 0.0);
        busy |= is_above_0("records_per_second") && is_above_0("appends_per_second");
        replicas = view["replicas"].clone();
        let is_shown =
            |r: &Value| r["last"] == last && r["lag"] == 0 && r["written_bytes_per_second"].is_number();
        let there = replicas.as_array().unwrap().iter().all(is_shown);
        if there && !busy {
            fed(&["append", &cluster, "--batch", "10"], &lines(last + 1, last + 1000)).ok();
            last += 1000;
            return None;
        }
        there.then_some(())
    });
    for replica in replicas.as_array().unwrap() {
        assert!(replica["disk_free_bytes"].as_u64() < replica["disk_bytes"].as_u64(), "{replica}");
        assert!(replica["written_bytes_per_second"].is_number() && replica["voter"] == true, "{replica}");
    }
    interrupt(&top);
    drop(views);
    assert_eq!(ended(top).code, 0);

    let words = run(&["top", &servers[1].client, "--count", "2"]).ok().out;
    assert!(words.matches("RECORDS/S").count() == 2 && words.contains("leader"), "{words}");
    let nobody = Server::new(9, dir.path());
    assert_eq!(run(&["top", &nobody.client, "--count", "1"]).code, 5);
}

#[test]
fn bench_appends_to_a_log_with_records_only_with_yes() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let args = ["bench", &server.client, "--quick", "--json", "--secs", "0.1", "--record-bytes", "10,1KiB"];
    let ran = run(&args).ok();
    assert!(ran.err.contains("the records stay in it"), "{}", ran.err);
    let measured = ran.json();
    assert_eq!(keys(&measured), ["log_id", "seconds", "appends", "read"]);
    let rows = measured["appends"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "two sizes, 1 and 16 appenders");
    let names = [
        "appenders",
        "connections",
        "record_bytes",
        "records",
        "records_per_second",
        "bytes_per_second",
        "p50_micros",
        "p99_micros",
        "p999_micros",
        "max_micros",
    ];
    for row in rows {
        assert_eq!(keys(row), names);
        assert!(row["p50_micros"].as_f64().unwrap() <= row["max_micros"].as_f64().unwrap(), "{row}");
    }
    let read = &measured["read"];
    assert_eq!(keys(read), ["records", "bytes", "seconds", "records_per_second", "bytes_per_second"]);
    assert!(read["records"].as_u64().unwrap() > 0, "{read}");

    // Now the log has records.
    let refused = run(&args);
    assert!(refused.code == 2 && refused.err.contains("--yes"), "{}", refused.err);
    let words =
        run(&["bench", &server.client, "--secs", "0.1", "--appenders", "3", "--connections", "2,4", "--yes"]);
    let words = words.ok().out;
    assert!(words.contains("P99.9") && words.contains("read ") && words.lines().count() == 3, "{words}");
    assert_eq!(run(&["bench", "a:b"]).code, 2);
}

/// A server moves to other ports, as if its disk were moved to another machine.
#[test]
fn moved_server_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let cluster = servers[0].client.clone();
    run(&["transfer-leader", "1", "--cluster", &cluster]).ok();
    assert_eq!(servers[2].stop(), Some(0));
    let mut moved = Server::new(3, dir.path());
    moved.start(&[]);
    let at = ["--client", &moved.client, "--peer", &moved.peer, "--zone", "west"];
    let args = [&["member", "set-address", "3", "--cluster", &cluster, "--json"], &at[..]].concat();
    let shown = run(&args).ok().json();
    assert_eq!(keys(&shown), ["node", "peer", "client", "zone"]);
    fed(&["append", &cluster], &lines(1, 100)).ok();
    servers[2] = moved;
    wait_for_all(&servers.iter().collect::<Vec<_>>(), 100);
    let shown = run(&["status", &cluster, "--json"]).ok().json();
    assert_eq!(shown["replicas"][2]["client"], servers[2].client.as_str(), "{shown}");
    // Addresses that are not given stay as they are.
    let zone =
        run(&["member", "set-address", "3", "--zone", "east", "--cluster", &cluster, "--json"]).ok().json();
    assert_eq!((&zone["client"], &zone["zone"]), (&servers[2].client.as_str().into(), &"east".into()));
    assert_ne!(run(&["member", "set-address", "7", "--zone", "x", "--cluster", &cluster]).code, 0);
    assert_eq!(run(&["member", "set-address", "3", "--cluster", &cluster]).code, 2, "nothing to set");
}
