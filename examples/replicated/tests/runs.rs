//! The example runs to its end, with all checks passed, and leaves no file behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-example-replicated"));
    command.current_dir(dir).args(args).output().unwrap()
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_leader_is_lost_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["--mib", "2", "--threads", "4"]);
    let told = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{error}");
    for part in ["is cut off", "is opened again", "all three replicas are the same", "All checks passed"] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    assert!(entries(dir.path()).is_empty(), "it cleans up");
}

#[test]
fn a_directory_that_is_named_stays_and_a_text_of_one_s_own_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text"), "one line\n\nanother\n").unwrap();
    let output = run(dir.path(), &["log", "--file", "text", "--mib", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(entries(&dir.path().join("log")), ["replica-1", "replica-2", "replica-3"]);
    // Not twice in one place.
    let again = run(dir.path(), &["log", "--file", "text"]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
}

#[test]
fn a_mistake_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mistakes: [(&[&str], i32); 5] = [
        (&["--file", "none"], 1),
        (&["--mib", "x"], 2),
        (&["--what"], 2),
        (&["a", "b"], 2),
        (&["--threads", "0"], 2),
    ];
    for (args, code) in mistakes {
        let output = run(dir.path(), args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(output.stderr.len() > 10 && output.stdout.is_empty(), "{args:?}");
    }
    assert!(entries(dir.path()).is_empty());
    assert!(run(dir.path(), &["--help"]).status.success());
}
