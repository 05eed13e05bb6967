//! `chiplog follow`: copies as processes, killed and restarted, and served to other copies.

use crate::harness::{Appender, Server, chiplog, fed, founded_with, leader, made, run, status, wait};
use crate::reflection::services;
use chiplog::{Index, ReadOnlyLog, Start};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A running copy and the events it printed.
pub(crate) struct Copy {
    dir: PathBuf,
    child: Child,
    told: Arc<Mutex<Vec<Value>>>,
}

impl Copy {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = chiplog();
        command.arg("follow").arg(dir).args(args).args(["--json", "--segment-bytes", "1MiB"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = Arc::<Mutex<Vec<Value>>>::default();
        let gathered = told.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                gathered.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { dir: dir.to_owned(), child, told }
    }

    /// The first event of this name.
    #[track_caller]
    pub(crate) fn event(&self, name: &str) -> Value {
        let of = |told: &[Value]| told.iter().find(|t| t["event"] == name).cloned();
        wait(name, || of(&self.told.lock().unwrap()))
    }

    /// How many events of this name there were.
    pub(crate) fn events(&self, name: &str) -> usize {
        self.told.lock().unwrap().iter().filter(|told| told["event"] == name).count()
    }

    #[track_caller]
    pub(crate) fn has(&self, last: u64) {
        wait("the copy has the record", || {
            let viewer = ReadOnlyLog::open(&self.dir).ok()?;
            (viewer.last_index().get() >= last).then_some(())
        });
    }

    /// All its records: the number in each, by index.
    fn records(&self) -> BTreeMap<u64, u64> {
        let mut reader = ReadOnlyLog::open(&self.dir).unwrap().reader(Start::First).unwrap();
        let mut all = BTreeMap::new();
        while let Some(record) = reader.next_record().unwrap() {
            all.insert(record.index.get(), u64::from_le_bytes(record.data.try_into().unwrap()));
        }
        all
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM. Returns the exit code.
    fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        wait("the copy ends", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
    }
}

/// The copy is killed while it receives, restarted, and its server is killed: no record is missing, and each
/// is as it was confirmed. A copy of the copy has the same records.
#[test]
fn killed_copy_continues_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    servers.iter_mut().for_each(|server| server.start(&[]));
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    let all: Vec<&Server> = servers.iter().collect();
    let appender = Appender::start(&all);
    appender.goes_on(50);
    let cluster = all.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    let path = dir.path().join("copy");
    let mut copy = Copy::start(&path, &["--cluster", &cluster, "--listen", "127.0.0.1:0"]);
    let listen = copy.event("opened")["listen"].as_str().unwrap().to_owned();
    let mut second = Copy::start(&dir.path().join("second"), &["--cluster", &listen]);
    assert_eq!(second.event("connected")["server"], listen.as_str());
    appender.goes_on(100);
    copy.kill();
    let failed = second.event("failed");
    assert_eq!(failed["server"], listen.as_str(), "{failed}");
    run(&["verify", path.to_str().unwrap()]).ok();
    appender.goes_on(50);

    // At the same address, so that the second copy finds it. Then the server that sends to it is killed.
    let (mut copy, source) = wait("one server leads while the copy begins", || {
        let leads = leader(&all);
        let copy = Copy::start(&path, &["--cluster", &cluster, "--listen", &listen]);
        assert!(copy.event("opened")["last"].as_u64().unwrap() > 0, "it was not begun again");
        let source = copy.event("connected")["server"].as_str().unwrap().to_owned();
        let source = servers.iter().position(|s| s.client == source).unwrap();
        if leader(&all) != leads {
            return None;
        }
        assert_ne!(servers[source].node, leads, "servers that do not lead send to copies");
        Some((copy, source))
    });
    servers[source].kill();
    assert_eq!(copy.event("switched")["from"], servers[source].client.as_str());
    appender.goes_on(50);
    let acked = appender.stop();
    let last = *acked.last_key_value().unwrap().0;
    for copy in [&copy, &second] {
        copy.has(last);
        let records = copy.records();
        for (index, number) in &acked {
            assert_eq!(records.get(index), Some(number), "record {index}");
        }
        assert_eq!(
            records.keys().copied().collect::<Vec<_>>(),
            (1..=records.len() as u64).collect::<Vec<_>>()
        );
    }
    // The copy can be read over the network too, and reports that it serves.
    let read = run(&["read", &listen, "--stale", "--from", &last.to_string(), "--json"]).ok();
    assert!(read.out.contains(&format!("\"index\":{last}")), "{}", read.out);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for service in ["", "chiplog.v1.Log", "chiplog.v1.Follow"] {
        let serving = runtime.block_on(async {
            let mut client = HealthClient::new(
                tonic::transport::Endpoint::from_shared(format!("http://{listen}")).unwrap().connect_lazy(),
            );
            client.check(HealthCheckRequest { service: service.into() }).await.map(|c| c.into_inner().status)
        });
        assert_eq!(serving.unwrap(), 1, "{service}");
    }
    let served = [
        "chiplog.v1.Follow",
        "chiplog.v1.Log",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    assert_eq!(services(&listen), served);
    assert_eq!((copy.stop(), second.stop()), (Some(0), Some(0)));
    let info = run(&["info", path.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!((info["last"].as_u64(), info["unproven"].as_u64()), (Some(last), Some(0)), "{info}");
    // It was "of a cluster to which it was not added yet".
    assert_eq!(info["replica"]["copy"], true, "{info}");
    let words = run(&["info", path.to_str().unwrap()]).ok().out;
    assert!(words.contains("a copy that follows the log, not a member"), "{words}");
    run(&["verify", path.to_str().unwrap()]).ok();
}

/// Mistakes of a user get a clear message.
#[test]
fn mistakes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut other) = (Server::new(1, dir.path()), Server::new(2, dir.path()));
    one.start(&["--init"]);
    other.start(&["--init"]);
    let path = dir.path().join("copy");
    let path = path.to_str().unwrap();
    let mut copy = Copy::start(Path::new(path), &["--cluster", &one.client, "--last", "0"]);
    copy.event("connected");
    let locked = run(&["follow", path, "--cluster", &one.client]);
    assert_eq!(locked.code, 5, "{}", locked.err);
    assert!(
        locked.err.contains("by process") && locked.err.contains("use `read` and `info`"),
        "{}",
        locked.err
    );
    assert_eq!(copy.stop(), Some(0));

    let wrong = run(&["follow", path, "--cluster", &other.client]);
    assert!(wrong.code == 2 && wrong.err.contains("--start-over"), "{} {}", wrong.code, wrong.err);
    // The reason was printed three times, and as if there were another server.
    let said = format!("{}{}", wrong.out, wrong.err);
    assert_eq!(said.matches("has log").count(), 1, "{said}");
    assert!(!said.contains("other server"), "{said}");
    let again = Copy::start(Path::new(path), &["--cluster", &other.client, "--start-over"]);
    assert_ne!(again.event("opened")["log_id"], copy.event("opened")["log_id"]);
    drop(again);

    let data = one.data.to_str().unwrap().to_owned();
    assert_eq!(one.stop(), Some(0));
    for args in [
        &["follow", &data, "--cluster", &other.client][..],
        &["follow", &data, "--cluster", &other.client, "--start-over"],
        &["follow", path, "--cluster", &other.client, "--listen", "0.0.0.0:0"],
        &["follow", path, "--cluster", "nowhere"],
        &["follow", path, "--cluster", &other.client, "--from", "0"],
        &["follow", path, "--cluster", &other.client, "--last", "3", "--from", "newest"],
        &["follow", path, "--cluster", &other.client, "--since", "soon"],
        &["follow", path, "--cluster", &other.client, "--insecure"],
        &["follow", path, &other.client, "--cluster", &other.client],
        &["follow", path],
    ] {
        let refused = run(args);
        assert_eq!(
            (refused.code, refused.out.contains("connected")),
            (2, false),
            "{args:?}: {}",
            refused.err
        );
        assert!(refused.err.len() > 20, "{args:?}: {}", refused.err);
    }
    assert_eq!(
        ReadOnlyLog::open(&data).unwrap().first_index(),
        Index(1),
        "a server's directory is left as it is"
    );
    let mut words = chiplog();
    words.args(["follow", path, &other.client]);
    let mut child = words.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("log ") && line.contains("no records here yet, the next one is 1"), "{line}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
}

/// The group of the log runs on three of four servers, and the one that is named first lacks it. Servers end one by one, and the
/// copy gets every record; it has those of this log alone.
#[test]
fn copy_of_one_named_log_is_fed_by_the_servers_that_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=1", "--set", "group_replicas=3"];
    let servers = (1..=4).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>();
    let mut servers = founded_with(servers, &groups);
    let voters = wait("the group has three voters", || {
        let shown = status(&servers.iter().collect::<Vec<_>>());
        let group = shown["groups"].as_array()?.iter().find(|group| group["number"] == 1)?.clone();
        let voters: Vec<u64> = group["voters"].as_array()?.iter().filter_map(Value::as_u64).collect();
        (shown["ok"] == true && voters.len() == 3).then_some(voters)
    });
    let without = (1..=4).find(|node| !voters.contains(node)).unwrap() as usize - 1;
    let client = servers[without].client.clone();
    run(&["logs", "create", &client, "orders", "users"]).ok();
    let lines =
        |log: &str, from: u64, to: u64| -> String { (from..=to).map(|n| format!("{log} {n}\n")).collect() };
    let append = |server: &str, from, to| {
        for log in ["users", "orders"] {
            fed(&["append", &format!("{server}/{log}")], &lines(log, from, to)).ok();
        }
    };
    append(&client, 1, 300);
    let path = dir.path().join("copy");
    let at = format!("{client}/orders");
    let mut copy = Copy::start(&path, &[&at, "--listen", "127.0.0.1:0"]);
    let source = copy.event("connected")["server"].as_str().unwrap().to_owned();
    assert_ne!(source, client);
    copy.has(300);
    // The server that feeds it ends: a majority of the group is left.
    let node = servers.iter().position(|server| server.client == source).unwrap();
    servers[node].kill();
    assert_eq!(copy.event("switched")["from"], source.as_str());
    append(&client, 301, 600);
    copy.has(600);
    // Killed and started again, it continues. A copy of it takes the name that its servers know, or none.
    copy.kill();
    run(&["verify", path.to_str().unwrap()]).ok();
    append(&client, 601, 700);
    let mut copy = Copy::start(&path, &["--cluster", &at, "--listen", "127.0.0.1:0"]);
    assert!(copy.event("opened")["last"].as_u64().unwrap() >= 600);
    copy.has(700);
    let listen = copy.event("opened")["listen"].as_str().unwrap().to_owned();
    for (n, log) in ["/orders", ""].into_iter().enumerate() {
        let dir = dir.path().join(format!("copy-{n}"));
        let mut second = Copy::start(&dir, &[&format!("{listen}{log}"), "--last", "50"]);
        second.has(700);
        assert_eq!(second.stop(), Some(0));
        // It begins with the append that holds the record.
        let read = run(&["read", dir.to_str().unwrap()]).ok().out;
        assert!(read.ends_with(&lines("orders", 651, 700)) && !read.contains("orders 600\n"), "{read}");
    }
    assert!(run(&["read", path.to_str().unwrap()]).ok().out == lines("orders", 1, 700));
    let missing = run(&["follow", dir.path().join("none").to_str().unwrap(), &format!("{client}/order")]);
    assert!(missing.err.contains("there is no log \"order\""), "{}", missing.err);
    // Deleted: the copy ends, and keeps its records.
    run(&["logs", "delete", &client, "orders", "--yes"]).ok();
    let ended = wait("the copy ends", || copy.child.try_wait().unwrap());
    assert_ne!(ended.code(), Some(0));
    assert!(run(&["read", path.to_str().unwrap()]).ok().out == lines("orders", 1, 700));
}

/// Copies and backups of one named log that begin before the servers know which logs there are: without a majority, without the
/// catalogue of a server that had one, and while the catalogue is still to be made. They ended because the log did not exist.
#[test]
fn copy_of_a_named_log_waits_until_servers_know_their_logs() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ["--set", "groups=1"];
    let mut servers =
        founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &groups);
    let client = servers[0].client.clone();
    run(&["logs", "create", &client, "orders"]).ok();
    let lines = |from: u64, to: u64| -> String { (from..=to).map(|n| format!("order {n}\n")).collect() };
    fed(&["append", &format!("{client}/orders")], &lines(1, 100)).ok();
    wait("all servers have all groups", || {
        let shown = status(&servers.iter().collect::<Vec<_>>());
        let voters = |group: &Value| group["voters"].as_array().map_or(0, Vec::len);
        shown["groups"].as_array()?.iter().all(|group| voters(group) == 3).then_some(())
    });
    let unknown = |server: &Server| {
        let asked = run(&["info", &format!("{}/orders", server.client)]);
        assert_eq!(asked.code, 5, "not now: {}", asked.err);
    };
    let waits = |copy: &Copy| {
        let failed = copy.event("failed")["error"].to_string();
        assert!(!failed.contains("there is no log"), "{failed}");
    };

    // No majority answers whether there is the log; then all servers do.
    servers.iter_mut().for_each(Server::kill);
    let begin = |name: &str, server: &Server| {
        Copy::start(&dir.path().join(name), &[&format!("{}/orders", server.client)])
    };
    servers[2].spawn(&groups);
    unknown(&servers[2]);
    servers[2].kill();
    // A copy tries for 30 s.
    let mut copies = vec![begin("before", &servers[2])];
    servers[2].spawn(&groups);
    copies.push(begin("alone", &servers[2]));
    servers[0].start(&groups);
    copies.iter().for_each(|copy| copy.has(100));
    for copy in &mut copies {
        assert_eq!(copy.stop(), Some(0));
    }

    // The only server that is asked had a catalogue, and does without it for now.
    let (named, away) = (servers[2].data.join("named"), dir.path().join("away"));
    servers[2].kill();
    std::fs::rename(&named, &away).unwrap();
    servers[2].start(&groups);
    unknown(&servers[2]);
    let mut copy = begin("without", &servers[2]);
    waits(&copy);
    servers[2].kill();
    let _ = std::fs::remove_dir_all(&named);
    std::fs::rename(&away, &named).unwrap();
    servers[2].start(&groups);
    copy.has(100);
    assert_eq!(copy.stop(), Some(0));
    let none =
        run(&["backup", &format!("{}/order", servers[2].client), dir.path().join("none").to_str().unwrap()]);
    assert_eq!(none.code, 4, "a majority says so: {}", none.err);
}

/// The catalogue is still to be made: a server is missing.
#[test]
fn copy_of_a_named_log_waits_for_the_first_catalogue() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers =
        founded_with((1..=3).map(|node| Server::new(node, dir.path())).collect::<Vec<_>>(), &[]);
    let mut down = servers.pop().unwrap();
    let of = |server: &Server| format!("{}/orders", server.client);
    assert_eq!(run(&["info", &of(&servers[0])]).code, 4, "the servers are to have none");
    assert_eq!(down.stop(), Some(0));
    for server in &mut servers {
        assert_eq!(server.stop(), Some(0));
        server.start(&["--set", "groups=1"]);
    }
    let asked = run(&["info", &of(&servers[0])]);
    assert_eq!(asked.code, 5, "{}", asked.err);
    let copy = Copy::start(&dir.path().join("copy"), &[&of(&servers[0])]);
    let failed = copy.event("failed")["error"].to_string();
    assert!(failed.contains("does not know yet"), "{failed}");
    down.start(&[]);
    run(&["logs", "create", &servers[1].client, "orders"]).ok();
    assert_eq!(run(&["info", &of(&servers[0])]).code, 0);
    assert_eq!(run(&["info", &format!("{}/order", servers[0].client)]).code, 4);
}
