//! Directories of many named logs: their files are shown, and commands for one log refuse them.

use crate::harness::{has_fields, run, run_with};
use chiplog::{Index, Logs, LogsOptions, Options};
use std::path::Path;
use tempfile::TempDir;

/// Two logs in one group: `a` has records 1 and 2, `b` has record 1.
fn named() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::with_segment_bytes(256 << 10).sessions_max(16);
    let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(options)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    a.append(b"one of a").unwrap();
    b.append(b"one of b").unwrap();
    a.append(b"two of a").unwrap();
    a.open_session().unwrap();
    a.discard(Index(2)).unwrap();
    logs.seal("b").unwrap();
    logs.create("c").unwrap();
    logs.delete("c").unwrap();
    logs.close().unwrap();
    dir
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn dump_and_verify_show_the_files_of_a_group() {
    let dir = named();
    let group = text(&dir.path().join("group-1"));
    let lines = run(&["dump", &group, "--json", "--records"]).ok().lines();
    let mixed: Vec<_> = lines.iter().filter(|line| line["kind"] == "mixed").collect();
    let batches: Vec<_> =
        mixed.iter().flat_map(|block| block["batches"].as_array().unwrap()).cloned().collect();
    let shown: Vec<_> = batches
        .iter()
        .map(|b| {
            (b["log"].as_u64().unwrap(), b["first"].as_u64().unwrap(), b["records"][0]["preview"].clone())
        })
        .collect();
    let expected = [(1, 1, "one of a"), (2, 1, "one of b"), (1, 2, "two of a")];
    assert_eq!(shown, expected.map(|(log, first, record)| (log, first, record.into())));
    has_fields(
        &batches[0],
        &["log", "first", "records_count", "bytes", "codec", "session", "sequence", "records"],
    );
    assert_eq!(mixed[2]["first"], 3, "a block counts the records of all logs");
    let commands: Vec<_> = lines
        .iter()
        .filter(|line| line["kind"] == "command")
        .map(|line| line["content"].to_string())
        .collect();
    for (name, fields) in [
        ("open_log", "\"log\":1,\"start\":1"),
        ("open_session", "\"log\":1"),
        ("discard_log", "\"log\":1,\"first\":2"),
        ("seal_log", "\"log\":2"),
        ("drop_log", "\"log\":3"),
    ] {
        let is_shown = |line: &String| line.contains(&format!("\"{name}\"")) && line.contains(fields);
        assert!(commands.iter().any(is_shown), "{name} {fields}: {commands:?}");
    }
    let words = run(&["dump", &group]).ok();
    assert!(words.text().contains("batch of log 2 from 1: 1 record"), "{}", words.text());
    assert!(words.text().contains("ordinal 3"), "{}", words.text());
    assert_eq!(run(&["verify", &group, "--json"]).ok().json()["records"], 3);
    run(&["verify", &text(&dir.path().join("system"))]).ok();
}

#[test]
fn commands_for_one_log_refuse_named_logs_and_change_nothing() {
    let dir = named();
    let (all, group) = (text(dir.path()), text(&dir.path().join("group-1")));
    for args in [
        &["info", &all][..],
        &["read", &all],
        &["read", &all, "--salvage"],
        &["append", &all, "--create"],
        &["discard", &all, "2"],
        &["verify", &all],
        &["dump", &all],
    ] {
        let refused = run_with(args, b"x\n").fails(2);
        assert!(
            refused.err.contains("many named logs") && refused.err.contains("group-1"),
            "{args:?}: {}",
            refused.err
        );
    }
    for args in [&["info", &group][..], &["read", &group], &["append", &group], &["discard", &group, "2"]] {
        let refused = run_with(args, b"x\n").fails(2);
        assert!(refused.err.contains("shared by named logs"), "{args:?}: {}", refused.err);
    }
    let salvage = run(&["read", &group, "--salvage"]).fails(2);
    assert!(salvage.err.contains("chiplog dump") && salvage.out.is_empty(), "{}", salvage.err);
    assert!(!dir.path().join("chiplog.id").exists());
    let options = Options::with_segment_bytes(256 << 10).sessions_max(16);
    let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(options)).unwrap();
    assert_eq!(logs.get("a").unwrap().range(), Index(2)..=Index(2));
    assert_eq!(logs.get("b").unwrap().range(), Index(1)..=Index(1));
}
