//! A standard Java client of both services, with code generated from the protos by Maven. Runs only if Maven is
//! installed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use chiplog::{Log, Options};
use chiplog_net::listener;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::log::LogService;
use chiplog_net::service::logspec::{Limits, LogspecService};
use std::fs;
use std::process::Output;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::process::Command;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/clients/java");
/// Dependencies may have to be downloaded.
const PATIENCE: Duration = Duration::from_secs(600);

async fn run(command: &mut Command) -> Output {
    let running = command.kill_on_drop(true).output();
    tokio::time::timeout(PATIENCE, running).await.expect("the command hangs").unwrap()
}

fn output_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn grpc_java_goes_through_all_methods() {
    if Command::new("mvn").arg("-v").output().await.is_err() {
        eprintln!("Maven is not installed: NOT tested with a standard Java client");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("java");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", &format!("-Dout={}", out.display()), "package"]).current_dir(SOURCES);
    let built = run(&mut maven).await;
    assert!(built.status.success(), "{}", output_of(&built));

    let host = LogSlot::new();
    host.open(Log::open(dir.path().join("log"), Options::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = listener::server()
        .add_service(LogspecService::new(host.clone(), Limits::default()).into_server())
        .add_service(LogService::new(host).into_service());
    let serving = tokio::spawn(router.serve_with_incoming(listener::incoming(listener)));

    let classes = fs::read_to_string(out.join("classpath")).unwrap();
    let classes = format!("{}:{classes}", out.join("classes").display());
    let output = run(Command::new("java").args(["-cp", &classes, "clients.Main", &address])).await;
    assert!(output.status.success(), "{}", output_of(&output));
    assert!(output_of(&output).contains("all as it should be"), "{}", output_of(&output));
    serving.abort();
}
