//! The example runs to its end, with all checks passed, and leaves no server and no file behind. It runs the server's
//! program: `make test` builds it; here it is built if it is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

#[test]
fn log_outlives_all_servers_and_their_disks() {
    let program = Path::new(env!("CARGO_BIN_EXE_chiplog-example-tiered"));
    if !program.with_file_name("chiplog").is_file() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--workspace", "--features", "chiplog/testing"]);
        build.args(["--test", "architecture", "--bin", "chiplog"]); // with the features of all tests
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.current_dir(dir.path()).args(["--mib", "40"]);
    command.env_remove("CHIPLOG_SERVERS").env_remove("CHIPLOG_CONFIG");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    for part in ["came from the", "are destroyed", "that were confirmed are there", "All checks passed"] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left behind");
}

#[test]
fn wrong_arguments_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_chiplog-example-tiered");
        Command::new(program).current_dir(dir.path()).args(args).output().unwrap()
    };
    for args in [&["--file", "missing.txt"][..], &["--chiplog", "missing"], &["--mib", "1"]] {
        let output = run(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
