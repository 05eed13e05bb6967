//! One server.

use crate::harness::{Appender, PATIENCE, Server, chiplog, fed, one, run, status, wait};
use chiplog_net::wire::proto::v1::ScrubRequest;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

fn health(server: &Server, service: &str) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.client)).unwrap();
        let mut client = HealthClient::new(endpoint.connect().await.unwrap());
        client.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner().status
    })
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[test]
fn probes_and_metrics_report_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(7, dir.path());
    server.start(&[]);
    assert_eq!(server.page("/livez").0, 200);
    let (code, why) = server.page("/readyz");
    assert_eq!((code, why.contains("waiting to join")), (503, true), "{why}");
    wait("the health service reports it as well", || (health(&server, "") == NOT_SERVING).then_some(()));
    assert!(server.page("/metrics").1.contains("chiplog_ready 0"));

    run(&["member", "init", &server.client]).ok();
    wait("it is ready", || (server.page("/readyz").0 == 200).then_some(()));
    for service in ["", "logspec.Log", "chiplog.v1.Log"] {
        wait("it serves", || (health(&server, service) == SERVING).then_some(()));
    }
    let appender = Appender::start(&[&server]);
    appender.goes_on(10);
    let acked = appender.stop();
    let (code, text) = server.page("/metrics");
    assert_eq!(code, 200);
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|l| l.split(' ').next() == Some(name));
        line.and_then(|l| l.split(' ').nth(1)?.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!(value("chiplog_ready"), 1.0);
    assert_eq!(value("chiplog_leader"), 7.0);
    assert_eq!(value("chiplog_role{role=\"leader\"}"), 1.0);
    assert!(value("chiplog_last_index") >= *acked.last_key_value().unwrap().0 as f64);
    assert!(value("chiplog_records_total") >= acked.len() as f64);
    assert!(value("chiplog_sync_seconds_count") >= 1.0);
    assert_eq!(value("chiplog_sync_seconds_bucket{le=\"+Inf\"}"), value("chiplog_sync_seconds_count"));
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(server.stop(), Some(0), "{}", server.said());
}

#[test]
fn second_process_on_the_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let mut second = Server::new(1, dir.path());
    second.data.clone_from(&server.data);
    let output = second.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("already open for writing, by process"), "{said}");

    // The same ports: another error.
    let mut third = Server::new(1, dir.path());
    third.client.clone_from(&server.client);
    let output = third.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(5) && said.contains("listen.client"), "{said}");

    // Another node's directory.
    assert_eq!(server.stop(), Some(0));
    let mut fourth = Server::new(2, dir.path());
    fourth.data.clone_from(&server.data);
    let output = fourth.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("node 1"), "{said}");
}

#[test]
fn scrub_reads_every_block_while_the_log_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let appender = Appender::start(&[&server]);
    appender.goes_on(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let last = runtime.block_on(async {
        let mut client = AdminClient::connect(format!("http://{}", server.client)).await.unwrap();
        let mut progress = client.scrub(ScrubRequest::default()).await.unwrap().into_inner();
        let mut last = None;
        while let Some(response) = progress.message().await.unwrap() {
            assert!(response.findings.is_empty(), "{response:?}");
            last = Some(response);
        }
        last.unwrap()
    });
    assert!(last.done && last.corrupt == 0 && last.bytes > 0, "{last:?}");
    appender.goes_on(1);
    appender.stop();
}

#[test]
fn mistyped_directory_that_was_made_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let typed = dir.path().join("dta/1");
    server.start(&["--init", "--data", typed.to_str().unwrap()]);
    server.stop();
    let above = typed.parent().unwrap().display();
    let line = format!("made the directory {}; {above} above it was missing, too", typed.display());
    assert_eq!(server.said().matches(&line).count(), 1, "{}", server.said());
    server.start(&["--data", typed.to_str().unwrap(), "--set", "groups=1"]);
    wait("the group is there", || server.said().contains("opened a group").then_some(()));
    server.stop();
    assert_eq!(server.said().matches("made the directory").count(), 1, "{}", server.said());
}

#[test]
fn directory_that_was_filled_while_a_server_waited_gets_no_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    std::fs::create_dir_all(server.data.join("lost+found")).unwrap();
    server.start(&["--set", "groups=1"]);
    for (file, told) in
        [("notes", "has other files, such as notes"), ("chiplog.cluster", "is a backup of a cluster")]
    {
        std::fs::write(server.data.join(file), "").unwrap();
        let refused = run(&["member", "init", &server.client]);
        assert!(refused.code == 2 && refused.err.contains(told), "{} {}", refused.code, refused.err);
        std::fs::remove_file(server.data.join(file)).unwrap();
    }
    run(&["member", "init", &server.client]).ok();
    // Its own files are no obstacle to its next start.
    assert_eq!(server.stop(), Some(0));
    server.start(&["--set", "groups=1"]);
    assert_eq!(server.stop(), Some(0));
}

/// Leaves in `data` the files of a replica that was killed while it was made.
fn leave_unfinished(data: &std::path::Path) {
    std::fs::create_dir_all(data).unwrap();
    std::fs::write(data.join("00000000000000000001.tmp"), [0; 8192]).unwrap();
    std::fs::write(data.join("chiplog.id"), "").unwrap();
}

/// A server that was killed at its first start was refused for ever: "other files, such as 00000000000000000001.tmp".
#[test]
fn server_that_was_killed_at_its_first_start_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Server::new(1, dir.path());
    leave_unfinished(&first.data);
    first.start(&["--init"]);
    fed(&["append", &first.client], "a record\n").ok();
    assert_eq!(first.stop(), Some(0));
    // The same of one that waits for a command.
    let mut waits = Server::new(2, dir.path());
    leave_unfinished(&waits.data);
    waits.start(&[]);
    leave_unfinished(&waits.data);
    run(&["member", "init", &waits.client]).ok();
    assert_eq!(waits.stop(), Some(0));
}

/// A store below the data directory was a file of something else at the first start, and so was a folder of snapshots.
#[test]
fn store_below_the_data_directory_is_no_obstacle_at_the_first_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let store = server.data.join("stores/a b");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::create_dir(server.data.join(".snapshot")).unwrap();
    let refused = server.command().arg("--init").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("other files, such as stores"), "{said}");
    let location = format!("file://{}", store.to_str().unwrap().replace(' ', "%20"));
    server.start(&["--init", "--object-store", &location]);
    assert_eq!(server.stop(), Some(0));
}

/// A `chiplog dev`, which does not outlive its test.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Dev {
    /// Signals it, as Ctrl-C or a supervisor does.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its status once it has ended.
    fn ended(&mut self) -> Option<i32> {
        wait("it ends", || self.0.try_wait().unwrap()).code()
    }
}

/// `chiplog dev` with these arguments, and what it shows once its servers run.
fn dev(args: &[&str]) -> (Dev, serde_json::Value) {
    let mut child = chiplog()
        .args(["dev", "--json"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Dev(child), serde_json::from_str(&line).unwrap())
}

/// Three servers in one process; no file is left.
#[test]
fn dev_runs_a_cluster_and_removes_its_files() {
    let (mut dev, shown) = dev(&["--port", "0"]);
    let servers = shown["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3);
    let client = servers[2]["client"].as_str().unwrap();
    let all = wait("it is well", || {
        let status = run(&["status", client, "--json"]);
        (status.code == 0).then(|| status.json())
    });
    assert_eq!(all["log_id"], shown["log_id"]);
    let replicas = all["replicas"].as_array().unwrap();
    assert!(replicas.len() == 3 && replicas.iter().all(|r| r["voter"] == true), "{all}");
    let words = run(&["status", client]).ok().out;
    assert!(words.contains("NODE") && words.contains("leader"), "{words}");
    let data = std::path::PathBuf::from(servers[0]["data"].as_str().unwrap());
    assert!(data.exists());
    // As `timeout` does, which signals a process and then its group.
    let begun = Instant::now();
    for _ in 0..2 {
        dev.signal(Signal::INT);
    }
    let at_once = begun.elapsed() < Duration::from_secs(1);
    let ended = dev.ended();
    if !at_once {
        return; // the second one ended it
    }
    assert_eq!(ended, Some(0));
    assert!(!data.exists() && !data.parent().unwrap().exists());
}

/// Nine consecutive free ports, from `base` on: behind those that other tests get.
fn nine_ports(base: u16) -> u16 {
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let from = base + (std::process::id() % 400) as u16 * 9;
    (from..base + 5_000).step_by(9).find(|port| (*port..port + 9).all(is_free)).unwrap()
}

/// With --data the cluster continues where it stopped.
#[test]
fn dev_keeps_a_cluster_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let port = nine_ports(20_000);
    // An earlier run was ended while it made its first replica.
    leave_unfinished(&dir.path().join("node1"));
    let mut log_id = None;
    for round in 1..=2 {
        let data = dir.path().to_str().unwrap();
        let (mut dev, shown) = dev(&["--port", &port.to_string(), "--data", data]);
        assert_eq!(shown["log_id"], *log_id.get_or_insert(shown["log_id"].clone()));
        let client = shown["servers"][1]["client"].as_str().unwrap();
        fed(&["append", client], "a record\n").ok();
        let read = run(&["read", client]).ok().out;
        assert_eq!(read.lines().count(), round, "{read}");
        dev.signal(Signal::INT);
        assert_eq!(dev.ended(), Some(0));
    }
}

/// It hung for a minute and ended with "there is no leader"; signals were ignored meanwhile.
#[test]
fn dev_names_the_ports_of_a_kept_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let port = nine_ports(25_000);
    let other = port + 9;
    let stop = |mut dev: Dev| {
        dev.signal(Signal::TERM);
        dev.ended()
    };
    let (running, _) = dev(&["--port", &port.to_string(), "--data", data]);
    assert_eq!(stop(running), Some(0));
    let ran = run(&["dev", "--data", data, "--port", &other.to_string()]);
    let told = format!("has the ports {port} to {}: give --port {port},", port + 8);
    assert!(ran.code == 2 && ran.err.contains(&told), "{} {}", ran.code, ran.err);

    // Without two replicas there is no leader. That is reported, and a signal ends the wait.
    for node in ["node2", "node3"] {
        std::fs::remove_dir_all(dir.path().join(node)).unwrap();
    }
    let mut child = chiplog()
        .args(["dev", "--data", data, "--port", &port.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = child.stderr.take().unwrap();
    let waiting = Dev(child);
    let begun = Instant::now();
    let lines = BufReader::new(said).lines().map_while(Result::ok);
    let waits =
        lines.take_while(|_| begun.elapsed() < PATIENCE).find(|line| line.contains("there is no leader"));
    assert!(waits.unwrap().contains("waiting up to 60 s for the servers to be one cluster"));
    assert_eq!(stop(waiting), Some(0));
}

/// Without `--init` it is refused: `server/tests/cli/new_log.rs`.
#[test]
fn log_of_a_program_becomes_a_replica_by_init() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let data = server.data.to_str().unwrap().to_owned();
    fed(&["append", &data], "one\ntwo\n").ok();
    server.start(&["--init"]);
    fed(&["append", &server.client], "three\n").ok();
    assert_eq!(server.stop(), Some(0));
    server.start(&[]); // as a service goes on
    assert_eq!(run(&["read", &server.client]).ok().out, "one\ntwo\nthree\n");
    let refused = fed(&["append", &data], "four\n");
    assert_ne!(refused.code, 0, "{}", refused.out);
}

#[test]
fn missing_server_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = Server::new(1, dir.path());
    let ran = run(&["status", &nobody.client, "--json"]);
    assert_eq!(ran.code, 5);
    assert_eq!(ran.json()["replicas"][0]["role"], "unreachable");
    let mut waits = Server::new(1, dir.path());
    waits.start(&[]);
    assert_eq!(status(&[&waits])["leader"], serde_json::Value::Null);

    // After the message that it waits, the server also reports when it no longer does.
    let made = run(&["member", "init", &waits.client, "--json"]).ok().json();
    let now = format!("INFO node 1 now has a replica of log {}", made["log_id"].as_str().unwrap());
    wait("it reports its replica", || waits.said().contains(&now).then_some(()));
    assert_eq!(waits.stop(), Some(0));
    assert!(waits.said().contains("INFO node 1 has shut down in order\n"), "{}", waits.said());
}

/// A part of an id was taken for a whole one. And `--init` in a directory that was to join that log was
/// ignored silently, so that a server without a leader ran forever.
#[test]
fn directory_that_is_to_join_another_log_makes_no_cluster() {
    const LOG: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "1123456789abcdef0123456789abcdef";
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let refused = |server: &Server, args: &[&str], words: &[&str]| {
        let output = server.command().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: {word}: {said}");
        }
    };
    refused(&server, &["--join", "abc"], &["abc", "32 hexadecimal digits"]);
    assert!(!server.data.exists());

    server.start(&["--join", LOG]);
    let waits = format!("waiting to be added to log {LOG}: run `chiplog member add {}", server.client);
    wait("it reports what it waits for", || server.said().contains(&waits).then_some(()));
    assert_eq!(server.stop(), Some(0));
    refused(&server, &["--init"], &["--init", LOG, "`chiplog member add`"]);
    refused(&server, &["--join", OTHER], &["--join", LOG, OTHER]);
    server.start(&["--join", LOG]); // as in a service's unit file
    assert_eq!(server.stop(), Some(0));

    let dir = tempfile::tempdir().unwrap();
    let mut member = one(dir.path());
    assert_eq!(member.stop(), Some(0));
    refused(&member, &["--join", OTHER], &["--join", OTHER]);
    member.start(&["--init"]); // as in a service's unit file
    assert_eq!(status(&[&member])["leader"], 1);
}

#[test]
fn error_of_ports_in_use_says_how_to_use_others() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = run(&["dev", "--port", &port]);
    assert!(refused.code == 5 && refused.err.contains("--port 0"), "{}", refused.err);
}

/// The notifications that systemd gets from a server.
#[test]
fn systemd_is_notified_of_readiness_and_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = |word: &str| {
        let mut buffer = [0; 256];
        loop {
            let bytes = socket.recv(&mut buffer).unwrap();
            if String::from_utf8_lossy(&buffer[..bytes]).contains(word) {
                return;
            }
        }
    };
    let server = Server::new(1, dir.path());
    let mut child = server.command().arg("--init").env("NOTIFY_SOCKET", &path).spawn().unwrap();
    hear("READY=1");
    assert_ne!(run(&["status", &server.client, "--json"]).json()["log_id"], serde_json::Value::Null);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    hear("STOPPING=1");
    assert_eq!(wait("it ends", || child.try_wait().unwrap()).code(), Some(0));
}
