//! The views that can be built here, on a small log, through the death of every server and their own. Rust's always;
//! the others if their tools are installed. `make test` builds the programs; here they are built if they are missing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let driver = Path::new(env!("CARGO_BIN_EXE_chiplog-example-run"));
    for program in ["chiplog", "chiplog-example-view"] {
        if !driver.with_file_name(program).is_file() {
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            build.args(["build", "--quiet", "--workspace", "--features", "chiplog/testing"]);
            build.args(["--test", "architecture", "--bin", program]); // with the features of all tests
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success());
        }
    }
    let mut command = Command::new(driver);
    command.args(args).env_remove("CHIPLOG_SERVERS").env_remove("CHIPLOG_CONFIG");
    command.output().unwrap()
}

#[test]
fn all_views_end_with_the_same_tables() {
    let output = run(&["--records", "3000", "--views", "rust,go,java,c,python"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "which led, in mid-append",
        "kill -9 of every view",
        "while it catches up",
        "says so by name, and ends",
        "All checks passed",
    ] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    let tools = [
        ("go", "command -v go"),
        ("java", "command -v mvn && command -v java"),
        ("c", "command -v cc && command -v make && pkg-config --exists sqlite3"),
        ("python", "${PYTHON:-python3} -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))'"),
    ];
    for (view, tools) in tools {
        let ran = told
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{view} ")) && line.contains("records"));
        let here = Command::new("sh").args(["-c", tools]).output().unwrap();
        assert_eq!(ran, here.status.success(), "{view}:\n{told}");
        if !ran {
            eprintln!("the tools are missing: the view in {view} was NOT run ({tools})");
        }
    }
}

/// Runs the tests of Go's decoder of batches: a producer's batches, and damage.
#[test]
fn the_go_view_takes_no_damaged_batch() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../view-go");
    match Command::new("go").args(["test", "./..."]).current_dir(source).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("no go here: the tests of the view in Go were NOT run"),
    }
}

#[test]
fn mistakes_are_told_before_anything_is_started() {
    let missing = run(&["--file", "/there/is/none"]);
    assert!(!missing.status.success() && missing.stdout.is_empty());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/there/is/none"));
    assert_eq!(run(&["--views", "cobol"]).status.code(), Some(2));
}
