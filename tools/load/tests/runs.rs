//! Both commands run to the end. `make nightly` checks how fast, and whether every bar is met. They start the server's
//! program; it is built here if it is missing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

const LOAD: &str = env!("CARGO_BIN_EXE_chiplog-load");

fn run(dir: &Path, arguments: &[&str]) -> Output {
    if !Path::new(LOAD).with_file_name("chiplog").is_file() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--workspace", "--features", "chiplog/testing"]);
        build.args(["--test", "architecture", "--bin", "chiplog"]); // with the features of all tests
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        assert!(build.status().unwrap().success());
    }
    Command::new(LOAD).args(arguments).args(["--json", "--dir"]).arg(dir).output().unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The report of a soak that has met everything.
fn soaked(more: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [&["soak", "--minutes", "0.2", "--rate", "300", "--seed", "3"], more].concat();
    let output = run(dir.path(), &arguments);
    let report = json(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["broken"], serde_json::Value::Null);
    assert_eq!(report["acknowledged"], report["read"]);
    assert!(report["acknowledged"].as_u64() > Some(100), "{report}");
    assert_eq!(
        report["courses"].as_array().unwrap().len(),
        8,
        "three servers and the program, two figures each"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    report
}

#[test]
fn soak_keeps_every_promise() {
    assert_eq!(soaked(&[])["stored"], serde_json::Value::Null);
}

#[test]
fn soak_keeps_every_promise_of_the_class_object() {
    let report = soaked(&["--objects", "--durability", "object"]);
    assert!(report["stored"]["restored"].as_u64() > Some(0), "{report}");
}

#[test]
fn attack_is_measured_beside_clients() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["attacks", "garbage", "--secs", "3"]);
    let report = json(&output);
    let attacked = &report["attacks"][0];
    assert_eq!(attacked["attack"], "garbage");
    assert_eq!(attacked["ended"], serde_json::Value::Null, "{report}");
    for measured in ["alone", "beside"] {
        assert!(attacked[measured][0]["count"].as_u64() > Some(0), "{report}");
    }
    // Met or short: the exit code shows it.
    assert_eq!(output.status.success(), report["met"].as_bool().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}
