//! Named logs of servers, on the command line.

use crate::harness::{
    Server, chiplog, ended, fed, founded_with, interrupt, keys, leader_of, made, made_after, port, run,
    runtime, started, status, vote_in_groups, wait,
};
use crate::limited::Limited;
use chiplog::{BatchBuilder, ErrorKind};
use chiplog_net::client::{Client, ClientOptions};
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A server that is a cluster of its own, with one group of named logs.
fn one(dir: &Path) -> Server {
    let mut server = Server::new(1, dir);
    server.start(&["--init", "--set", "groups=1"]);
    server
}

/// Runs a command that fails with this code.
#[track_caller]
fn fails(args: &[&str], code: i32) -> String {
    let failed = run(args);
    assert_eq!(failed.code, code, "{args:?}: {}{}", failed.out, failed.err);
    failed.err
}

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn list(args: &[&str]) -> Vec<Value> {
    objects(&run(&[&["logs", "list", "--json"], args].concat()).ok().out)
}

fn lines(from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("order {n}\n")).collect()
}

#[test]
fn top_shows_the_logs_that_are_appended_to_most() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = one(dir.path());
    let client = server.client.clone();
    run(&["logs", "create", &client, "busy", "quiet", "idle"]).ok();
    fed(&["append", &format!("{client}/quiet")], &lines(1, 2)).ok();
    let mut top = started(&["top", &client, "--logs", "--rows", "2", "--json"]);
    let _limited = Limited::new(&top);
    let mut views = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&views.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(
        keys(&first),
        [
            "time",
            "timestamp",
            "named_logs",
            "bytes_per_second",
            "records_per_second",
            "active",
            "logs",
            "error"
        ]
    );
    assert_eq!(
        (&first["named_logs"], &first["active"], &first["logs"][0]["name"]),
        (&3.into(), &Value::Null, &"quiet".into())
    );
    fed(&["append", &format!("{client}/busy")], &lines(1, 1_000)).ok();
    let view = wait("the append shows", || Some(next()).filter(|view| view["active"] == 1));
    let busy = &view["logs"][0];
    assert_eq!(
        (&busy["name"], &busy["last"], &busy["known"]),
        (&"busy".into(), &1_000.into(), &true.into()),
        "{view}"
    );
    assert!(
        busy["records_per_second"].as_f64().unwrap() > 0.0 && view["logs"].as_array().unwrap().len() == 2,
        "{view}"
    );
    // The view goes on without the server.
    server.kill();
    let view = wait("the failure shows", || Some(next()).filter(|view| !view["error"].is_null()));
    assert_eq!(view["logs"], Value::Array(Vec::new()), "{view}");
    interrupt(&top);
    drop(views);
    assert_eq!(ended(top).code, 0);
    assert!(fails(&["top", &format!("{client}/busy"), "--logs"], 2).contains("--logs shows all named logs"));
    assert_eq!(run(&["top", &client, "--logs"]).code, 5);
}

/// It said "sound" and looked at the default log alone.
#[test]
fn verify_reads_the_groups_of_named_logs() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = one(dir.path());
    let client = server.client.clone();
    run(&["logs", "create", &client, "orders"]).ok();
    let orders = format!("{client}/orders");
    fed(&["append", &orders], &lines(1, 40_000)).ok();
    let data = server.data.clone();
    let data = data.to_str().unwrap();
    let sound = run(&["verify", &client, "--json"]).ok().json();
    let logs: Vec<_> = sound["groups"].as_array().unwrap().iter().map(|group| &group["log"]).collect();
    assert_eq!(logs, ["_system", "_group-1"], "{sound}");
    assert!(sound["groups"][1]["bytes"].as_u64().unwrap() > 400_000, "{sound}");
    let words = run(&["verify", &client]).ok().out;
    assert!(words.contains(&format!("node 1, _group-1 at {client} (leader): sound")), "{words}");
    let here = run(&["verify", data, "--json"]).ok().json();
    let names: Vec<_> = here["named"].as_array().unwrap().iter().map(|log| &log["directory"]).collect();
    assert_eq!(names, ["named/system", "named/group-1"], "{here}");
    assert!(run(&["verify", data]).ok().out.contains("\nnamed/group-1: sound: "));

    let segment = server.data.join("named/group-1/00000000000000000001.seg");
    let bytes = fs::read(&segment).unwrap();
    let record = b"order 10000";
    let at = bytes.windows(record.len()).position(|bytes| bytes == record).unwrap();
    let file = fs::File::options().write(true).open(segment).unwrap();
    file.write_all_at(&[record[0] ^ 4], at as u64).unwrap();
    for (target, finding) in [(data, "\nnamed/group-1: CORRUPT: "), (&client, "node 1, _group-1: corrupt: ")]
    {
        let words = run(&["verify", target]);
        assert!(words.code == 3 && words.out.contains(finding), "{} {}", words.code, words.out);
        let told = run(&["verify", target, "--json"]);
        assert_eq!((told.code, &told.json()["ok"]), (3, &false.into()), "{}", told.out);
    }
    assert_eq!(server.stop(), Some(0));
}

/// It said "sound" of groups that it had not read: those without an identity, those that the server could not open, and all of
/// them if their directory could not be listed.
#[test]
fn verify_reports_groups_that_it_does_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = one(dir.path());
    let client = server.client.clone();
    run(&["logs", "create", &client, "orders"]).ok();
    fed(&["append", &format!("{client}/orders")], &lines(1, 100)).ok();
    assert_eq!(server.stop(), Some(0));
    let data = server.data.to_str().unwrap().to_owned();
    let named = server.data.join("named");

    // A group that cannot be read hides nothing.
    let empty = named.join("group-2");
    fs::create_dir(&empty).unwrap();
    fs::write(empty.join("chiplog.id"), "x").unwrap();
    let told = run(&["verify", &data, "--json"]);
    assert_eq!(told.code, 4, "{}{}", told.out, told.err);
    let told = told.json();
    let all: Vec<_> =
        told["named"].as_array().unwrap().iter().map(|log| (&log["directory"], &log["ok"])).collect();
    let [no, yes] = [false, true].map(Value::from);
    let names = ["named/system", "named/group-1", "named/group-2"].map(Value::from);
    assert_eq!(all, [(&names[0], &yes), (&names[1], &yes), (&names[2], &no)], "{told}");
    assert!(told["ok"] == false && told["records"] == 0, "{told}");
    assert!(told["named"][2]["error"].as_str().unwrap().contains("no segment files"), "{told}");
    assert_eq!(keys(&told["named"][2]), ["directory", "ok", "error"]);

    // Corrupt wins.
    let identity = named.join("group-1/chiplog.id");
    let right = fs::read(&identity).unwrap();
    fs::write(&identity, "").unwrap();
    let words = run(&["verify", &data]);
    assert_eq!(words.code, 3, "{}{}", words.out, words.err);
    assert!(words.out.contains("\nnamed/group-2: NOT CHECKED: "), "{}", words.out);
    assert!(words.out.contains("\nnamed/group-1: CORRUPT: "), "{}", words.out);
    fs::remove_dir_all(&empty).unwrap();

    // The server does not open it.
    server.start(&["--set", "groups=1"]);
    let words = run(&["verify", &client]);
    assert_eq!(words.code, 5, "{}{}", words.out, words.err);
    assert!(words.out.contains(&format!("node 1, _system at {client} (leader): sound")), "{}", words.out);
    assert!(
        words.out.contains(&format!("node 1, _group-1 at {client} (missing): NOT CHECKED: ")),
        "{}",
        words.out
    );
    assert_eq!(server.stop(), Some(0));
    fs::write(&identity, right).unwrap();
    run(&["verify", &data]).ok();

    fs::rename(&named, server.data.join("aside")).unwrap();
    run(&["verify", &data]).ok();
    fs::write(&named, "").unwrap();
    let told = run(&["verify", &data, "--json"]);
    assert!(told.code == 1 && told.json()["ok"] == false, "{}{}", told.out, told.err);
    assert_eq!(told.json()["named"][0]["directory"], "named", "{}", told.out);
}

#[test]
fn logs_are_created_used_sealed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let client = server.client.as_str();
    let (orders, users) = (format!("{client}/orders"), format!("{client}/users/3"));

    // Just after the start: the command waits for the groups.
    let made = objects(&run(&["logs", "create", client, "orders", "users/3", "--json"]).ok().out);
    assert_eq!([&made[0]["name"], &made[1]["name"]], ["orders", "users/3"]);
    assert_eq!((&made[0]["group"], &made[0]["first"], &made[0]["last"]), (&1.into(), &1.into(), &0.into()));
    let fields = [
        "name",
        "number",
        "log_id",
        "group",
        "first",
        "last",
        "records",
        "bytes_appended",
        "last_timestamp",
        "last_time",
        "sealed",
        "known",
    ];
    assert_eq!(keys(&made[0]), fields);
    let failed = fails(&["logs", "create", client, "new", "orders", "other"], 2);
    assert!(failed.contains("exists already") && failed.contains("not tried: other"), "{failed}");
    let beside = run(&["logs", "create", client, "beside", "--beside", "orders"]).ok();
    assert_eq!(beside.out, "created beside in group 1\n");
    assert!(fails(&["logs", "create", client, "x", "--beside", "none"], 4).contains("none"));

    fed(&["append", &orders, "--batch", "10"], &lines(1, 1000)).ok();
    assert_eq!(run(&["read", &orders]).ok().out, lines(1, 1000));
    let environment = chiplog().arg("read").args(["--last", "1"]).env("CHIPLOG_SERVERS", &orders).output();
    assert_eq!(environment.unwrap().stdout, b"order 1000\n");
    for (target, last) in [(client, 0), (orders.as_str(), 1000), (users.as_str(), 0)] {
        assert_eq!(run(&["info", target, "--json"]).ok().json()["last"], last, "{target}");
    }
    assert_eq!(run(&["info", &orders, "--json"]).ok().json()["log_id"], made[0]["log_id"]);
    run(&["discard", &orders, "501"]).ok();
    assert_eq!(run(&["read", &orders, "--limit", "1"]).ok().out, "order 501\n");

    let all = list(&[client]);
    let names: Vec<_> = all.iter().map(|log| log["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["beside", "new", "orders", "users/3"]);
    assert_eq!(
        (&all[2]["first"], &all[2]["records"], &all[2]["sealed"]),
        (&501.into(), &500.into(), &false.into())
    );
    assert!(all[2]["last_timestamp"].is_u64() && all[3]["last_timestamp"].is_null(), "{all:?}");
    assert_eq!(list(&[client, "--prefix", "u", "--stale"]).len(), 1);
    let table = run(&["logs", "list", client]).ok().out;
    assert!(table.starts_with("NAME") && table.lines().count() == 5, "{table}");

    run(&["logs", "seal", client, "orders", "users/3"]).ok();
    run(&["logs", "seal", client, "orders"]).ok();
    assert_eq!(list(&[client, "--prefix", "orders"])[0]["sealed"], true);
    let refused = fed(&["append", &orders], "late\n");
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert_eq!(run(&["read", &orders, "--last", "1"]).ok().out, "order 1000\n");

    let asked = fails(&["logs", "delete", client, "orders"], 2);
    assert!(asked.contains("orders (500 records") && asked.contains("--yes"), "{asked}");
    assert_eq!(run(&["logs", "delete", client, "orders", "--yes"]).ok().out, "deleted orders\n");
    fails(&["read", &orders], 4);
    assert_eq!(list(&[client]).len(), 3);
    let again = objects(&run(&["logs", "create", client, "orders", "--json"]).ok().out);
    assert_ne!(again[0]["number"], made[0]["number"]);
    assert_eq!(run(&["info", &orders, "--json"]).ok().json()["last"], 0);
}

/// Clients of `logspec.Log` name no log: a port does.
#[test]
fn port_of_its_own_serves_a_log_to_older_clients() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (port(), port());
    let place = |log: &str, host: &str, port: u16| format!("{log}@{host}:{port}");
    let ports = format!(
        "listen.logspec=[\"{}\", \"{}\"]",
        place("orders", "127.0.0.1", a),
        place("users/3", "127.0.0.1", b)
    );
    let mut first = Server::new(1, dir.path());
    first.start(&["--init", "--set", "groups=1", "--set", &ports]);
    run(&["logs", "create", &first.client, "orders", "users/3"]).ok();
    let appended = runtime().block_on(async {
        let mut client = LogClient::connect(format!("http://127.0.0.1:{a}")).await.unwrap();
        let request = tokio_stream::iter([AppendRequest::new(1, vec!["x", "y"])]);
        let mut replies = client.append(request).await.unwrap().into_inner();
        replies.message().await.unwrap().unwrap().reply.unwrap()
    });
    assert!(matches!(appended, Reply::Ok(ok) if ok.indexes == [1, 2]));
    assert_eq!(run(&["read", &format!("{}/orders", first.client)]).ok().out, "x\ny\n");
    assert_eq!(run(&["info", &format!("{}/users/3", first.client), "--json"]).ok().json()["last"], 0);
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn log_that_does_not_exist_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let (client, none) = (server.client.as_str(), format!("{}/none", server.client));
    run(&["logs", "create", client, "orders"]).ok();
    for args in [
        &["read", &none][..],
        &["info", &none],
        &["info", &none, "--stale"],
        &["append", &none],
        &["discard", &none, "2"],
        &["status", &none],
        &["cost", &none],
        &["options", &none],
        &["transfer-leader", "1", "--cluster", &none],
        &["logs", "seal", client, "none"],
        &["logs", "delete", client, "none"],
        &["logs", "delete", client, "none", "--yes"],
    ] {
        assert!(fails(args, 4).contains("none"), "{args:?}");
    }
    let copy = dir.path().join("copy");
    fails(&["backup", &none, copy.to_str().unwrap()], 4);
    fails(&["backup", &format!("{client}/_group-1"), copy.to_str().unwrap()], 2);
    assert!(!copy.exists());
}

/// The backup of a named log is that of a log on its own with the same records, of which a log can be made.
#[test]
fn named_log_is_backed_up_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let client = server.client.as_str();
    run(&["logs", "create", client, "orders", "users"]).ok();
    for part in 0..5 {
        fed(&["append", &format!("{client}/orders")], &lines(100 * part + 1, 100 * part + 100)).ok();
        fed(&["append", &format!("{client}/users")], "somebody\n").ok();
    }
    run(&["discard", &format!("{client}/orders"), "51"]).ok();
    let (saved, restored) = (dir.path().join("saved"), dir.path().join("restored"));
    let (saved, restored) = (saved.to_str().unwrap(), restored.to_str().unwrap());
    let told =
        run(&["backup", &format!("{client}/orders"), saved, "--segment-bytes", "1MiB", "--json"]).ok().json();
    assert_eq!(told["last"], 500, "{told}");
    assert_eq!(told["notes"], serde_json::json!([]));
    // A backup of the default log says what is not in it.
    let whole = dir.path().join("default");
    let whole =
        run(&["backup", client, whole.to_str().unwrap(), "--segment-bytes", "1MiB", "--json"]).ok().json();
    let note = whole["notes"][0].as_str().unwrap();
    assert!(note.starts_with("2 named logs of the servers are not in it: "), "{note}");
    run(&["restore", saved, "--check"]).ok();
    run(&["restore", saved, restored]).ok();
    let first = told["first"].as_u64().unwrap();
    assert!((1..=51).contains(&first), "{told}");
    assert_eq!(run(&["read", restored]).ok().out, lines(first, 500));
}

#[test]
fn groups_are_shown_and_addressed() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let client = server.client.as_str();
    run(&["logs", "create", client, "orders", "users"]).ok();
    let shown = run(&["status", client, "--json"]).ok().json();
    assert_eq!(shown["ok"], true);
    let groups = shown["groups"].as_array().unwrap();
    assert_eq!([&groups[0]["number"], &groups[1]["number"]], [0, 1]);
    assert_eq!(
        keys(&groups[1]),
        ["number", "state", "why", "leader", "term", "voters", "placed", "logs", "bytes_used"]
    );
    assert_eq!((&groups[1]["leader"], &groups[1]["logs"]), (&1.into(), &2.into()));
    assert_eq!(groups[1]["voters"], serde_json::json!([1]));
    let words = run(&["status", client]).ok().out;
    assert!(words.contains("\nsystem  ok") && words.contains("\n1       ok"), "{words}");
    let top = run(&["top", client, "--count", "1", "--json"]).ok().json();
    assert_eq!(top["named_logs"], 2);
    for log in ["orders", "_group-1", "_system"] {
        let target = format!("{client}/{log}");
        let group = run(&["status", &target, "--json"]).ok().json();
        assert_ne!(group["log_id"], shown["log_id"], "{log}");
        assert_eq!((&group["leader"], &group["groups"]), (&1.into(), &serde_json::json!([])), "{log}");
        run(&["transfer-leader", "1", "--cluster", &target]).ok();
        assert_eq!(
            run(&["options", &target, "--json"]).ok().json()["options"],
            serde_json::json!({}),
            "{log}"
        );
    }
    run(&["options", &format!("{client}/_group-1"), "--set", "session_window=8"]).ok();
    let of =
        |log: &str| run(&["options", &format!("{client}/{log}"), "--json"]).ok().json()["options"].clone();
    assert_eq!(
        (of("_group-1"), of("orders"), of("_system")),
        (serde_json::json!({ "session_window": 8 }), serde_json::json!({}), serde_json::json!({}))
    );
}

#[test]
fn servers_without_groups_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = crate::harness::one(dir.path());
    let client = server.client.as_str();
    for args in [
        &["logs", "create", client, "orders"][..],
        &["logs", "list", client],
        &["logs", "seal", client, "orders"],
        &["logs", "delete", client, "orders", "--yes"],
    ] {
        let begun = Instant::now();
        let failed = fails(args, 2);
        assert!(failed.contains("--set groups=2") && !failed.contains("_system"), "{args:?}: {failed}");
        assert!(!failed.contains("waiting up to"), "{failed}");
        assert!(begun.elapsed() < Duration::from_secs(4), "nothing to wait for: {:?}", begun.elapsed());
    }
    fails(&["read", &format!("{client}/orders")], 4);
    assert_eq!(run(&["status", client, "--json"]).ok().json()["groups"], serde_json::json!([]));
}

/// The node that leads a log's group.
/// Records are appended to a named log while the leader of its group is killed: each is read once.
#[test]
fn killed_leader_of_a_group_loses_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=1"];
    let mut servers = founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect(), &groups);
    // On any server, as soon as it belongs to the cluster.
    for (n, server) in servers.iter().enumerate() {
        run(&["logs", "create", &server.client, &format!("log-{n}")]).ok();
        let list = ["logs", "list", &server.client, "--stale"];
        wait("the server itself has the system log", || (run(&list).code == 0).then_some(()));
    }
    wait("the groups have the servers as voters", || {
        let shown = status(&servers.iter().collect::<Vec<_>>());
        (shown["ok"] == true && shown["groups"][1]["voters"] == serde_json::json!([1, 2, 3])).then_some(())
    });
    let all: Vec<_> = servers.iter().map(|server| server.client.clone()).collect();
    let target = format!("{}/log-1", all.join(","));

    let mut append = started(&["append", &target, "--batch", "10", "--json"]);
    let mut input = append.stdin.take().unwrap();
    let mut feed = |from: u64, to: u64| input.write_all(lines(from, to).as_bytes()).unwrap();
    let holds =
        |n: u64| run(&["info", &target, "--json"]).json()["last"].as_u64().is_some_and(|last| last >= n);
    feed(1, 2000);
    wait("appends are acknowledged", || holds(1000).then_some(()));
    let killed = leader_of(&servers.iter().collect::<Vec<_>>(), "log-1");
    feed(2001, 4000);
    servers[killed as usize - 1].kill();
    feed(4001, 6000);
    wait("appends continue", || holds(5000).then_some(()));
    servers[killed as usize - 1].start(&groups);
    feed(6001, 8000);
    drop(input);
    let appended = ended(append).ok().json();
    assert_eq!((&appended["records"], &appended["last"]), (&8000.into(), &8000.into()), "{appended}");
    assert_eq!(run(&["read", &target]).ok().out, lines(1, 8000));
    let others = list(&[&servers[0].client]);
    let records: Vec<_> = others.iter().map(|log| log["records"].as_u64().unwrap()).collect();
    assert_eq!(records[0] + records[2], 0, "the other logs have none: {others:?}");

    // One of three is down: logs are created and deleted all the same.
    servers[killed as usize - 1].kill();
    let left = servers.iter().find(|server| server.is_running()).unwrap();
    run(&["logs", "create", &left.client, "log-9"]).ok();
    run(&["logs", "delete", &left.client, "log-9", "log-0", "--yes"]).ok();
    fails(&["read", &format!("{}/log-9", left.client)], 4);
}

/// The outcomes of one caller's pairs of records.
#[derive(Default)]
struct Pairs {
    /// Their indexes, by their numbers.
    acknowledged: BTreeMap<u64, [u64; 2]>,
    unknown: BTreeSet<u64>,
    /// Certainly in no log.
    refused: BTreeSet<u64>,
}

/// Appends pairs of records to two logs, one pair after the other, and never one a second time.
async fn append_pairs(
    servers: Vec<String>,
    caller: u64,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Pairs {
    let client = Client::connect(servers, ClientOptions::default()).await.unwrap();
    let (from, to) = (client.of_log("from").await.unwrap(), client.of_log("to").await.unwrap());
    let mut pairs = Pairs::default();
    for n in (0..).map(|n| n * 10 + caller) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let batch = BatchBuilder::new().push(n.to_string().as_bytes()).unwrap().build().unwrap();
        match Client::append_together(&[(&from, &batch), (&to, &batch)]).await {
            Ok(at) => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                pairs.acknowledged.insert(n, [at[0].first.get(), at[1].first.get()]);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                pairs.unknown.insert(n);
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Busy), "{error}");
                pairs.refused.insert(n);
            }
        }
    }
    pairs
}

/// Leaders of the group are killed while pairs of records are appended to two of its logs: no pair is torn, none is there twice, and
/// each one that was acknowledged is there.
#[test]
fn killed_leader_tears_no_batches_apart() {
    const CALLERS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=1"];
    let servers = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    let mut servers = founded_with(servers, &groups);
    vote_in_groups(&servers, 1);
    let all: Vec<_> = servers.iter().map(|server| server.client.clone()).collect();
    run(&["logs", "create", &all[0], "from"]).ok();
    run(&["logs", "create", &all[0], "to", "--beside", "from"]).ok();

    let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (all, stop, acknowledged) = (all.clone(), stop.clone(), acknowledged.clone());
            std::thread::spawn(move || runtime().block_on(append_pairs(all, caller, &stop, &acknowledged)))
        })
        .collect();
    for _ in 0..3 {
        let before = acknowledged.load(Ordering::Relaxed);
        wait("pairs are appended", || (acknowledged.load(Ordering::Relaxed) >= before + 100).then_some(()));
        let killed = leader_of(&servers.iter().collect::<Vec<_>>(), "from") as usize - 1;
        servers[killed].kill();
        let before = acknowledged.load(Ordering::Relaxed);
        wait("another leader takes them", || {
            (acknowledged.load(Ordering::Relaxed) >= before + 100).then_some(())
        });
        servers[killed].start(&groups);
    }
    stop.store(true, Ordering::Relaxed);
    let callers: Vec<Pairs> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();

    let target = all.join(",");
    let read = |log: &str| -> Vec<u64> {
        let out = run(&["read", &format!("{target}/{log}")]).ok().out;
        out.lines().map(|line| line.parse().unwrap()).collect()
    };
    let logs = [read("from"), read("to")];
    let there: BTreeSet<u64> = logs[0].iter().copied().collect();
    assert_eq!(there.len(), logs[0].len(), "a pair is there twice");
    assert_eq!(logs[0], logs[1], "both logs have the same pairs, in the same order");
    for pairs in &callers {
        for (n, at) in &pairs.acknowledged {
            for (log, index) in logs.iter().zip(at) {
                assert_eq!(log[*index as usize - 1], *n, "pair {n} was acknowledged at {index}");
            }
        }
        assert!(there.is_disjoint(&pairs.refused), "a pair is there that was said not to be");
    }
    let known =
        |n: &u64| callers.iter().any(|pairs| pairs.acknowledged.contains_key(n) || pairs.unknown.contains(n));
    assert!(there.iter().all(known));
    let unknown: usize = callers.iter().map(|pairs| pairs.unknown.len()).sum();
    let acknowledged: usize = callers.iter().map(|pairs| pairs.acknowledged.len()).sum();
    assert!(
        unknown * 10 < acknowledged,
        "most failures are certain: {unknown} are not, {acknowledged} succeeded"
    );
    servers.iter_mut().for_each(|server| assert_eq!(server.stop(), Some(0)));
}

/// Forwards connections to a server. A request gets no answer when told so: it is forwarded, and its connection ends after a second.
struct Forwarder {
    address: String,
    /// The next request with these bytes gets no answer.
    mute: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Forwarder {
    fn new() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Self { address, mute: Arc::default() }, listener)
    }

    fn forward(&self, listener: TcpListener, server: &str) {
        let (mute, server) = (self.mute.clone(), server.to_owned());
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let is_mute = Arc::<AtomicBool>::default();
                let (mute, told) = (mute.clone(), is_mute.clone());
                std::thread::spawn(move || copy_requests(from_client, to_server, &mute, &told));
                std::thread::spawn(move || copy_answers(server, client, &is_mute));
            }
        });
    }

    fn mute(&self, request: &[u8]) {
        *self.mute.lock().unwrap() = Some(request.to_owned());
    }
}

/// Copies what a client sends. `is_mute` is set before a request that gets no answer.
fn copy_requests(
    mut from: TcpStream,
    mut to: TcpStream,
    mute: &Mutex<Option<Vec<u8>>>,
    is_mute: &AtomicBool,
) {
    let (mut sent, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        sent.extend_from_slice(&bytes[..n]);
        let is_in = |request: &mut Vec<u8>| sent.windows(request.len()).any(|part| part == *request);
        if mute.lock().unwrap().take_if(is_in).is_some() {
            is_mute.store(true, Ordering::SeqCst);
            let client = from.try_clone().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(1));
                let _ = client.shutdown(Shutdown::Both);
            });
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn copy_answers(mut from: TcpStream, mut to: TcpStream, is_mute: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if !is_mute.load(Ordering::SeqCst) && to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The server carries a request out and its answer is lost: the next request finds that it is done.
#[test]
fn lost_answer_is_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let (forwarder, listener) = Forwarder::new();
    let mut server = Server::new(1, dir.path());
    forwarder.forward(listener, &server.client);
    server.start(&["--init", "--set", "groups=1", "--advertise-client", &forwarder.address]);
    let client = forwarder.address.as_str();
    run(&["logs", "create", client, "first"]).ok();
    // The request has the name alone; one that looks the log up has a limit, too, and one to delete it the log's id.
    forwarder.mute(b"\x08\n\x06orders");
    let made = run(&["logs", "create", client, "orders"]).ok();
    assert!(made.err.contains("earlier request"), "{}", made.err);
    assert_eq!(made.out, "created orders in group 1\n");
    forwarder.mute(b"\n\x06orders\x12");
    let deleted = run(&["logs", "delete", client, "orders", "--yes"]).ok();
    assert!(deleted.err.contains("earlier request"), "{}", deleted.err);
    assert_eq!(list(&[client]).len(), 1);
    // Without a lost answer, a name that exists is an error.
    assert!(!fails(&["logs", "create", client, "first"], 2).contains("earlier request"));
}

/// The first server leaves a cluster of two and is stopped at once. Its groups had not followed: all named logs were lost,
/// and the server that was left made a second catalogue.
#[test]
fn founder_leaves_and_its_logs_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = (1..=2).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>();
    servers[0].start(&["--init", "--set", "groups=1"]);
    servers[1].start(&["--set", "groups=1"]);
    let (first, second) = (servers[0].client.clone(), servers[1].client.clone());
    run(&["logs", "create", &first, "orders"]).ok();
    fed(&["append", &format!("{first}/orders")], &lines(1, 3)).ok();
    made(&["member", "add", &second, "--cluster", &first, "--promote"]);
    // Refused until the groups have the second server's vote; done once they count the first one's no more.
    made_after(&["member", "remove", "1", "--cluster", &second], Some("named logs"));
    servers[0].kill();
    assert_eq!(list(&[&second]).len(), 1);
    assert_eq!(run(&["read", &format!("{second}/orders")]).ok().out, lines(1, 3));
    run(&["logs", "create", &second, "users"]).ok();
    assert_eq!(list(&[&second, "--prefix", "users"])[0]["number"], 2, "the same catalogue goes on");
    let shown = run(&["status", &second, "--json"]).ok().json();
    assert!(
        shown["groups"].as_array().unwrap().iter().all(|group| group["voters"] == serde_json::json!([2]))
    );
}

/// A server that was started as the README said could never have named logs.
#[test]
fn only_server_of_a_cluster_gets_named_logs_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let client = server.client.clone();
    fed(&["append", &client], &lines(1, 3)).ok();
    server.kill();
    // A crash interrupted the making of the system log: there is no identity yet.
    let system = server.data.join("named/system");
    std::fs::create_dir_all(&system).unwrap();
    std::fs::write(system.join("chiplog.id"), "").unwrap();

    let groups = ["--init", "--set", "groups=2"];
    server.start(&groups);
    run(&["logs", "create", &client, "orders"]).ok();
    fed(&["append", &format!("{client}/orders")], &lines(1, 5)).ok();
    server.kill();
    server.start(&groups);
    assert_eq!(list(&[&client]).len(), 1);
    assert_eq!(run(&["read", &format!("{client}/orders")]).ok().out, lines(1, 5));
    assert_eq!(run(&["read", &client]).ok().out, lines(1, 3));

    // Its catalogue is lost: no second one is made, also when nothing is left of the groups.
    for lost in ["named/system", "named"] {
        server.kill();
        std::fs::rename(server.data.join(lost), dir.path().join("lost")).unwrap();
        let said = server.said().len();
        server.start(&groups);
        wait("the server says so", || server.said()[said..].contains("there were named logs").then_some(()));
        assert!(!system.join("chiplog.id").exists(), "{lost}");
        fails(&["logs", "list", &client], 2);
        let _ = std::fs::remove_dir_all(server.data.join(lost));
        std::fs::rename(dir.path().join("lost"), server.data.join(lost)).unwrap();
        server.kill();
        server.start(&groups);
        assert_eq!(list(&[&client]).len(), 1, "its directory is back");
    }
}

/// A cluster of several servers gets named logs once all of its servers run, whichever of them have `groups`.
#[test]
fn several_servers_get_named_logs_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> =
        founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &[]);
    let failed = fails(&["logs", "create", &servers[0].client, "orders"], 2);
    assert!(failed.contains("keeps no named logs: restart all 3 servers with `groups`"), "{failed}");
    let down = servers.pop().unwrap();
    let (data, mut down) = (down.data.clone(), down);
    assert_eq!(down.stop(), Some(0));
    for server in &mut servers {
        assert_eq!(server.stop(), Some(0));
        server.start(&["--set", "groups=2"]);
    }
    wait("the leader says that a server is missing", || {
        servers.iter().any(|server| server.said().contains("the system log on node 3")).then_some(())
    });
    assert!(servers.iter().all(|server| !server.data.join("named/system").exists()));
    down.start(&[]);
    servers.push(down);
    wait("there is a catalogue", || (run(&["logs", "list", &servers[2].client]).code == 0).then_some(()));
    run(&["logs", "create", &servers[2].client, "orders", "users"]).ok();
    // A log is created in a group in which most of the servers vote.
    let voters = |group: &Value| group["voters"].as_array().map_or(0, Vec::len);
    let groups = || status(&servers.iter().collect::<Vec<_>>())["groups"].as_array().unwrap().clone();
    assert!(groups().iter().any(|group| voters(group) >= 2), "no log is created before");
    wait("all servers vote in all groups", || groups().iter().all(|group| voters(group) == 3).then_some(()));
    fed(&["append", &format!("{}/users", servers[1].client)], &lines(1, 10)).ok();
    let systems: BTreeSet<_> = servers
        .iter()
        .map(|server| {
            run(&["info", &server.data.join("named/system").display().to_string(), "--json"]).ok().json()
        })
        .map(|info| info["log_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(systems.len(), 1, "one system log");
    // Now that there was one, none is made again.
    assert!(std::fs::read(data.join("chiplog.named")).unwrap().is_empty());
    for server in &mut servers {
        server.kill();
        std::fs::rename(server.data.join("named"), server.data.join("elsewhere")).unwrap();
        server.spawn(&["--set", "groups=2"]);
    }
    wait("the leader refuses", || {
        servers
            .iter()
            .any(|server| server.said().contains("chiplog.named shows that there were"))
            .then_some(())
    });
    assert!(servers.iter().all(|server| !server.data.join("named/system").exists()));
}
