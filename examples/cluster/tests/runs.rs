//! The example runs to its end, with all checks passed, and leaves no server and no file behind. It runs the server's
//! program: `make test` builds it; here it is built if it is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program `chiplog`, of the same profile.
fn chiplog() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_chiplog-example-cluster")).with_file_name("chiplog");
    if !path.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--workspace", "--features", "chiplog/testing"]);
        build.args(["--test", "architecture", "--bin", "chiplog"]); // with the features of all tests
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    }
    path
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog-example-cluster"));
    command.current_dir(dir).arg("--chiplog").arg(chiplog()).args(args);
    command.env_remove("CHIPLOG_SERVERS").env_remove("CHIPLOG_CONFIG");
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Whether a server runs below this directory.
fn served(dir: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let with = |p: std::fs::DirEntry| {
        std::fs::read_link(p.path().join("cwd")).is_ok_and(|cwd| cwd == dir)
            && std::fs::read(p.path().join("cmdline"))
                .is_ok_and(|line| line.windows(7).any(|w| w == b"\0serve\0"))
    };
    processes.into_iter().any(with)
}

#[test]
fn a_leader_is_killed_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["--mib", "4", "--logs", "60"]);
    let told = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{error}");
    for part in [
        "kill -9",
        "is started again",
        "all three have the same",
        "the copy, at the very next",
        "which leads group 1",
        "Each of the 60 logs has its 10 records",
        "All checks passed",
    ] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    assert!(entries(dir.path()).is_empty() && !served(dir.path()), "it cleans up");
}

#[test]
fn ctrl_c_leaves_no_server_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path(), &["--mib", "512"]).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !served(dir.path()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no server was started");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(entries(dir.path()).is_empty() && !served(dir.path()), "{:?}", entries(dir.path()));
}

#[test]
fn a_directory_that_is_named_stays_and_a_mistake_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mistakes: [(&[&str], i32); 5] = [
        (&["--file", "none"], 1),
        (&["--mib", "x"], 2),
        (&["--what"], 2),
        (&["a", "b"], 2),
        (&["--chiplog", "none"], 1),
    ];
    for (args, code) in mistakes {
        let output = run(dir.path(), args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(output.stderr.len() > 10 && output.stdout.is_empty(), "{args:?}");
    }
    assert!(entries(dir.path()).is_empty());
    std::fs::write(dir.path().join("text"), "one line\n\nanother\n").unwrap();
    let output = run(dir.path(), &["log", "--file", "text", "--mib", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(entries(&dir.path().join("log")).contains(&"server-1".to_owned()));
    assert!(!run(dir.path(), &["log"]).status.success(), "not twice in one place");
}
