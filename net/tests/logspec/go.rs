//! Standard Go clients: the current grpc-go, and one that sends its dial target as `:authority`. Runs only if Go is
//! installed.

use crate::support::{PATIENCE, Served, one};
use chiplog::{Log, Options};
use chiplog_net::listener;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::logspec::{Limits, LogspecService};
use std::path::Path;
use std::process::Output;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_stream::wrappers::TcpListenerStream;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/clients/go");

/// Builds the client with one of its module files. None: Go is not installed.
async fn build(modules: &str, to: &Path) -> Option<()> {
    if Command::new("go").arg("version").output().await.is_err() {
        eprintln!("Go is not installed: NOT tested with standard Go clients");
        return None;
    }
    let flag = format!("-modfile={modules}");
    let mut building = Command::new("go");
    let built = building.args(["build", &flag, "-o"]).arg(to).arg(".").current_dir(SOURCES).output().await;
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(())
}

async fn run(client: &Path, address: &str, idle: &str) -> Output {
    let running = Command::new(client).args(["-server", address, "-idle", idle]).kill_on_drop(true).output();
    tokio::time::timeout(PATIENCE * 3, running).await.expect("the client hangs").unwrap()
}

async fn served() -> Served {
    one(Options::default(), Limits::default()).await
}

async fn goes_through_all_methods(modules: &str, version: &str, idle: &str) {
    let dir = tempfile::tempdir().unwrap();
    let client = dir.path().join("client");
    if build(modules, &client).await.is_none() {
        return;
    }
    let server = served().await;
    let output = run(&client, &server.address, idle).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains(version), "{out}");
    // The same client is rejected by a server that does not rewrite authorities: it does send an invalid one.
    let dir = tempfile::tempdir().unwrap();
    let host = LogSlot::new();
    host.open(Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = LogspecService::new(host, Limits::default()).into_server();
    let router = listener::server().add_service(service);
    let serving = tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    let output = run(&client, &address, "0s").await;
    assert!(!output.status.success(), "this client sends a valid authority");
    assert!(String::from_utf8_lossy(&output.stderr).contains("PROTOCOL_ERROR"));
    serving.abort();
}

#[tokio::test]
async fn current_grpc_go() {
    goes_through_all_methods("go.mod", "grpc-go 1.75", "0s").await;
}

#[tokio::test]
async fn grpc_go_of_existing_clients() {
    // Idle for long enough, without a stream, that it pings and would drop a connection that does not answer.
    goes_through_all_methods("old.mod", "grpc-go 1.19", "11500ms").await;
}
