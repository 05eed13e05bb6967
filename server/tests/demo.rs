//! A small run of the demo: it is a test of the whole log that everyone can run.
#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

fn demo(arguments: &[&str], dir: &std::path::Path) -> Output {
    let output =
        Command::new(env!("CARGO_BIN_EXE_chiplog")).arg("demo").args(arguments).current_dir(dir).output();
    output.unwrap()
}

#[test]
fn demo_passes_on_the_built_in_text_and_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(&["--size", "3MiB", "--json"], dir.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("no {name} in {summary}"));
    let records = number("records");
    assert!(records >= 65_535);
    assert_eq!(summary["readers_checked"], serde_json::json!([records, records]));
    assert!(number("killed_after_acknowledged") < records, "the kill came after the last append");
    assert!(number("recovered_records") >= number("killed_after_acknowledged"));
    assert_eq!(number("recovered_unacknowledged"), number("repeated_appends_recognised"));
    assert_eq!(number("verified_records"), records + 1 - number("discarded_below"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the demo left files behind");
}

#[test]
fn demo_passes_on_a_given_text_and_keeps_the_log() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text"), b"\n\nnot \xff utf-8\r\nand the last line").unwrap();
    let output =
        demo(&["log", "--file", "text", "--size", "1MiB", "--threads", "3", "--in-flight", "8"], dir.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.contains("text, 2 lines") && story.contains("All checks passed"), "{story}");
    let again = demo(&["log"], dir.path());
    assert_eq!(again.status.code(), Some(2), "a directory that is not empty is refused");
    assert!(chiplog::ReadOnlyLog::open(dir.path().join("log")).unwrap().last_index().get() >= 65_535);
}

#[test]
fn wrong_file_name_leaves_no_directory_behind() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["--file", "none"][..], &["log", "--file", "none"]] {
        let output = demo(arguments, dir.path());
        assert_eq!(output.status.code(), Some(4), "as for any missing file");
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read none"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{arguments:?}");
    }
}
