//! The examples do what the pages say, and the pages show the examples as they are.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

fn run(program: &str, dir: &Path) -> String {
    let output = Command::new(program).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Run twice in one directory: the second run finds the first one's record.
#[test]
fn the_example_appends_and_reads_back_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let run = || run(env!("CARGO_BIN_EXE_chiplog-example-embedded"), dir.path());
    assert_eq!(run(), "record 1 is durable\n1: 3 lenses to Cambridge\n");
    assert_eq!(run(), "record 2 is durable\n1: 3 lenses to Cambridge\n2: 3 lenses to Cambridge\n");
}

#[test]
fn three_replicas_in_one_program_append() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(env!("CARGO_BIN_EXE_replicas"), dir.path());
    assert_eq!(told, "record 1 is on two disks of three\n");
}

#[test]
fn the_pages_show_these_very_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (program, page) in [("src/main.rs", "README.md"), ("src/bin/replicas.rs", "docs/embedding.md")] {
        let source = std::fs::read_to_string(root.join(program)).unwrap();
        let body = source.split_once("\n\n").unwrap().1; // without the file's own comment
        let shown = std::fs::read_to_string(root.join("../..").join(page)).unwrap();
        assert!(shown.contains(&format!("```rust\n{body}```")), "{page} does not show {program}");
    }
}
