//! The binary does what its help says: every workload and every bar prints its lines, and no file is left. The figures
//! are not checked.
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

fn bench(dir: &Path, args: &[&str]) -> Value {
    let small = ["--quick", "--secs", "0.05", "--scan-mib", "8", "--open-mib", "80", "--json", "--dir"];
    let (verb, names) = args.split_first().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-bench"));
    command.env_remove("CHIPLOG_PEERS"); // Kafka takes minutes
    let output = command.arg(verb).args(small).arg(dir.join("work")).args(names).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left = std::fs::read_dir(dir.join("work")).unwrap().count();
    assert_eq!(left, 0, "the run left something in its directory");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The picture of results. None, and a line that says so, if there is no matplotlib.
fn picture(dir: &Path, kind: &str, results: &Value) -> Option<String> {
    let python = || Command::new("python3");
    if !python().args(["-c", "import matplotlib"]).output().is_ok_and(|ran| ran.status.success()) {
        println!("SKIPPED, no matplotlib here: nothing is drawn");
        return None;
    }
    let (json, svg) = (dir.join("results.json"), dir.join("picture.svg"));
    std::fs::write(&json, results.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/plot.py");
    let output = python().arg(script).arg(kind).args([&json, &svg]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(svg).unwrap())
}

#[test]
fn every_workload_gives_rows_and_their_curves_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench(dir.path(), &["run"]);
    let rows = report["rows"].as_array().unwrap();
    let count = |workload: &str| rows.iter().filter(|row| row["workload"] == workload).count();
    assert_eq!(count("raw"), 7);
    assert_eq!(count("append_threads"), 8);
    assert_eq!(count("append_pipelined"), 4);
    assert_eq!(count("append_small"), 4);
    assert_eq!(count("append_open_loop"), 6);
    assert_eq!(count("scan_cached"), 4);
    assert_eq!(count("scan_uncached"), 4);
    assert_eq!(count("random"), 1);
    assert_eq!(count("batch_check"), 10);
    assert_eq!(count("open"), 4);
    assert_eq!(count("idle"), 1);
    for row in rows {
        let figure = row["figure"].as_f64().unwrap();
        assert!(figure.is_finite() && figure >= 0.0, "{row}");
    }
    if let Some(drawn) = picture(dir.path(), "run", &report) {
        assert_eq!(drawn.matches("\"axes_").count(), 4);
        assert!(drawn.contains("bare loop") && !drawn.contains("nan"));
    }
}

#[test]
fn every_bar_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let all = bench(dir.path(), &["bars"]);
    let names: Vec<_> =
        all["bars"].as_array().unwrap().iter().map(|bar| bar["name"].as_str().unwrap()).collect();
    let expected = [
        "append_pipelined",
        "append_pipelined_reusing",
        "append_blocking_128",
        "append_blocking_128_reusing",
        "append_flat_1_to_128",
        "append_alone",
        "append_alone_tail",
        "append_small_batches",
        "append_small_singles",
        "scan_cached",
        "scan_uncached",
        "open_large",
        "open_large_memory",
        "idle",
        "three_in_process",
        "three_in_process_reusing",
        "one_voter",
        "small_batches_replicated",
        "many_w1",
        "many_w1_cpu",
        "many_w1_two_groups",
        "many_w1_two_groups_cpu",
        "many_w1_three",
        "many_w1_three_cpu",
        "many_create",
        "many_idle",
        "many_idle_memory",
        "many_open",
        "many_scan",
        "many_scan_sorted",
        "many_fair",
        "many_amp",
        "many_failover",
        "many_failover_whole",
        "tier_append",
        "tier_append_alone",
        "tier_scan_cold",
        "tier_scan_warm",
        "tier_boot_first",
        "tier_boot",
        "tier_boot_sent",
        "tier_learner",
        "tier_restore",
        "tier_branch",
        "tier_object_sent",
        "tier_object_confirmed",
        "tier_object",
        "net_native_one",
        "net_native_three",
        "net_logspec_one",
        "net_logspec_three",
        "net_kafka_one_over_1",
        "net_kafka_three_over_1",
        "net_many_one_over_1",
        "net_many_one_over_1_cpu",
        "net_many_one_over_128",
        "net_many_one_over_128_cpu",
        "net_many_three_over_1",
        "net_many_three_over_1_cpu",
        "net_many_three_over_128",
        "net_many_three_over_128_cpu",
        "net_alone_one",
        "net_alone_three",
        "net_read_cached",
        "net_read_uncached",
        "net_tail_one",
        "net_tail_three",
        "net_tail_follower",
        "net_tail_fan",
        "net_tail_fan_each",
        "net_producer_small",
        "net_producer_large",
        "net_producer_large_reusing",
        "net_overload_goodput",
        "net_overload_server",
        "net_overload_client",
        "net_overload_tail",
        "net_overload_drained",
        "net_overload_calm",
        "net_failover_gap",
        "net_failover_whole",
    ];
    assert_eq!(names, expected);
    for (kind, shown) in [("bars", "append_pipelined"), ("connections", "chiplog.v1.Log")] {
        assert!(picture(dir.path(), kind, &all).is_none_or(|drawn| drawn.contains(shown)), "{kind}");
    }
}

#[test]
fn bars_are_selected_by_name_and_printed_as_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-bench"));
    command.args(["bars", "--quick", "--secs", "0.05", "--dir"]).arg(dir.path());
    let output = command.args(["append_pipelined", "append_small", "many_disks"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("append_")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines.iter().all(|line| line.contains(" met") || line.contains(" short")), "{text}");
}

/// Without `--disks` the bar about disks is skipped.
#[test]
fn disks_are_measured_if_they_are_named() {
    let (dir, one, two) = (tempfile::tempdir(), tempfile::tempdir(), tempfile::tempdir());
    let (dir, one, two) = (dir.unwrap(), one.unwrap(), two.unwrap());
    let bars = |disks: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-bench"));
        command.args(["bars", "many_disks", "--quick", "--secs", "0.05", "--disks", disks, "--dir"]);
        command.arg(dir.path()).output().unwrap()
    };
    let output = bars(&format!("{},{}", one.path().display(), two.path().display()));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("many_disks")).count(), 1, "{text}");
    assert!(
        [&one, &two].iter().all(|disk| disk.path().read_dir().unwrap().next().is_none()),
        "they are left empty"
    );
    assert_ne!(bars("one").status.code(), Some(0), "two are needed");
}

#[test]
fn an_unknown_bar_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_chiplog-bench")).args(["bars", "no_such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// After a run is stopped, its directory is as it was before.
#[test]
fn a_run_that_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-bench"));
    command.args(["run", "--secs", "30", "append_threads", "--quick", "--dir"]).arg(dir.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let inside = dir.path().join(format!("run-{}", child.id()));
    while !inside.join("raw.zeros").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(10));
    }
    let stopped = Command::new("sh").args(["-c", &format!("kill {}", child.id())]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(child.wait().unwrap().signal(), Some(15), "it ends as a program that SIGTERM ends");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
