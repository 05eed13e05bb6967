//! Starts servers, queries them, appends to them.

use crate::limited::Limited;
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{ReadRequest, read_reply};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for an event; no machine is slower.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

#[track_caller]
pub(crate) fn wait<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = is() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

const CHIPLOG: &str = env!("CARGO_BIN_EXE_chiplog");

/// The program, without variables of the environment that it would read.
pub(crate) fn chiplog() -> Command {
    unmoved(Command::new(CHIPLOG))
}

fn unmoved(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CHIPLOG_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(args: &[&str]) -> Ran {
    let mut command = chiplog();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command.spawn().unwrap())
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {} {}", self.out, self.err))
    }
}

/// A free port, below those that connections get. It belongs to this process until it ends: a lock keeps other tests from it before a
/// server listens there.
pub(crate) fn port() -> u16 {
    static LOCKS: Mutex<Vec<fs::File>> = Mutex::new(Vec::new());
    // Another user may not write there.
    let user = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("chiplog-test-ports-{user}"));
    fs::create_dir_all(&dir).unwrap();
    loop {
        let port = 10_000 + (RandomState::new().build_hasher().finish() % 10_000) as u16;
        let lock = fs::File::create(dir.join(port.to_string())).unwrap();
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            LOCKS.lock().unwrap().push(lock);
            return port;
        }
    }
}

/// A server, running or not.
pub(crate) struct Server {
    pub(crate) node: u64,
    pub(crate) data: PathBuf,
    pub(crate) client: String,
    pub(crate) http: String,
    pub(crate) peer: String,
    /// The network namespace that it runs in. None: the test's own.
    namespace: Option<String>,
    child: Option<Child>,
}

impl Server {
    /// A server that is not started yet.
    pub(crate) fn new(node: u64, dir: &Path) -> Self {
        let at = || format!("127.0.0.1:{}", port());
        let data = dir.join(format!("node{node}"));
        Self { node, data, client: at(), http: at(), peer: at(), namespace: None, child: None }
    }

    /// A server that is not started yet, for a network namespace where it has the address `host` to itself.
    pub(crate) fn within(namespace: &str, host: &str, node: u64, dir: &Path) -> Self {
        let at = |port: u16| format!("{host}:{port}");
        let data = dir.join(format!("node{node}"));
        let namespace = Some(namespace.to_owned());
        Self { node, data, client: at(7411), peer: at(7412), http: at(7413), namespace, child: None }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = match &self.namespace {
            None => chiplog(),
            // The shell becomes the program, so that signals reach the server.
            Some(name) => {
                let mut command = unmoved(Command::new("ip"));
                command.args(["netns", "exec", name, CHIPLOG]);
                command
            }
        };
        command
            .args(["serve", "-v", "--set", "log.segment_bytes=1MiB", "--set", "cluster.heartbeat_millis=50"])
            // Shorter than by default, and longer than a busy machine is silent.
            .args(["--set", "cluster.election_timeout_millis=1000"])
            // A busy machine's syncs are slow now and then, and the server would not lead for ten minutes.
            .args(["--set", "cluster.slow_disk_sync_millis=0"])
            .args(self.namespace.as_ref().map(|_| "--insecure"))
            .env("CHIPLOG_NODE", self.node.to_string())
            .env("CHIPLOG_DATA", &self.data)
            .env("CHIPLOG_LISTEN_CLIENT", &self.client)
            .env("CHIPLOG_LISTEN_PEER", &self.peer)
            .env("CHIPLOG_LISTEN_HTTP", &self.http);
        command
    }

    /// Starts it without waiting for an answer.
    pub(crate) fn spawn(&mut self, more: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let child = self.command().args(more).stdin(Stdio::null()).stderr(log).stdout(Stdio::null()).spawn();
        self.child = Some(child.unwrap());
    }

    /// Starts it and waits until it answers.
    pub(crate) fn start(&mut self, more: &[&str]) {
        self.spawn(more);
        wait("the server answers", || {
            assert!(self.child.as_mut().unwrap().try_wait().unwrap().is_none(), "{}", self.said());
            (run(&["status", &self.client, "--json"]).json()["replicas"][0]["role"] != "unreachable")
                .then_some(())
        });
    }

    fn log_file(&self) -> PathBuf {
        self.data.with_extension("stderr")
    }

    /// The standard error output of all its runs.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The process's memory in bytes, without files.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.as_ref().unwrap().id());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.take().unwrap().wait().unwrap();
    }

    /// Sends SIGHUP: certificates and tokens are reloaded.
    pub(crate) fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Sends SIGTERM. Returns the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until it has ended. Returns the exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        let status = wait("the server ends", || child.try_wait().unwrap());
        status.code()
    }

    /// A page of its probes: status and text.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.http).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let code = text.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or(0);
        (code, text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It can have ended by itself: a panic here would end all tests of the process.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- node {}:\n{}", self.node, self.said());
        }
    }
}

/// The output of `chiplog status` for these servers.
pub(crate) fn status(servers: &[&Server]) -> Value {
    let all: Vec<_> = servers.iter().filter(|s| s.is_running()).map(|s| s.client.as_str()).collect();
    run(&["status", &all.join(","), "--json"]).json()
}

/// The node that leads.
pub(crate) fn leader(servers: &[&Server]) -> u64 {
    wait("somebody leads", || status(servers)["leader"].as_u64())
}

/// The node that leads the group of a named log.
pub(crate) fn leader_of(servers: &[&Server], log: &str) -> u64 {
    let target = format!("{}/{log}", clients(servers));
    wait("the group has a leader", || run(&["status", &target, "--json"]).json()["leader"].as_u64())
}

/// The addresses of the servers that run.
pub(crate) fn clients(servers: &[&Server]) -> String {
    let running = servers.iter().filter(|server| server.is_running());
    running.map(|server| server.client.as_str()).collect::<Vec<_>>().join(",")
}

/// Waits until these servers vote in each of this number of groups of named logs, and all is well.
#[track_caller]
pub(crate) fn vote_in_groups(servers: &[Server], groups: usize) {
    let mut nodes: Vec<u64> = servers.iter().map(|server| server.node).collect();
    nodes.sort_unstable();
    wait("the groups have the servers as voters", || {
        let shown = status(&servers.iter().collect::<Vec<_>>());
        let found = shown["groups"].as_array()?;
        let vote = |group: &Value| group["voters"] == serde_json::json!(nodes);
        (shown["ok"] == true && found.len() == groups + 1 && found.iter().all(vote)).then_some(())
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Appends one record after the other at any server that accepts it, until it is stopped.
pub(crate) struct Appender {
    stop: Arc<AtomicBool>,
    acked: Arc<Mutex<BTreeMap<u64, u64>>>,
    thread: Option<JoinHandle<()>>,
}

impl Appender {
    pub(crate) fn start(servers: &[&Server]) -> Self {
        let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let servers: Vec<String> = servers.iter().map(|s| s.client.clone()).collect();
        let thread = std::thread::spawn({
            let (stop, acked) = (stop.clone(), Arc::clone(&acked));
            move || runtime().block_on(append(servers, &stop, &acked))
        });
        Self { stop, acked, thread: Some(thread) }
    }

    pub(crate) fn count(&self) -> usize {
        self.acked.lock().unwrap().len()
    }

    /// Waits until `more` further records are acknowledged.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: usize) {
        let begun = Instant::now();
        let now = self.count();
        wait("appends continue", || (self.count() >= now + more).then_some(()));
        println!("{more} appends in {:?}", begun.elapsed());
    }

    /// The acknowledged records: the number in each, by index.
    pub(crate) fn stop(mut self) -> BTreeMap<u64, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let acked = self.acked.lock().unwrap();
        acked.clone()
    }
}

async fn append(servers: Vec<String>, stop: &AtomicBool, acked: &Mutex<BTreeMap<u64, u64>>) {
    let mut turn = 0;
    let mut server = servers[0].clone();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let streamed =
            tokio::time::timeout(Duration::from_secs(3), LogClient::connect(format!("http://{server}")));
        let redirect = match streamed.await {
            Ok(Ok(client)) => stream(client, &mut number, stop, acked).await,
            _ => None,
        };
        turn += 1;
        server = redirect.unwrap_or_else(|| servers[turn % servers.len()].clone());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs one stream until it breaks or reports another leader, which is returned.
async fn stream(
    mut client: LogClient<tonic::transport::Channel>,
    number: &mut u64,
    stop: &AtomicBool,
    acked: &Mutex<BTreeMap<u64, u64>>,
) -> Option<String> {
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let patience = Duration::from_secs(3);
    let opened = tokio::time::timeout(patience, client.append(outgoing)).await;
    let mut replies = opened.ok()?.ok()?.into_inner();
    for sequence in 1.. {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        *number += 1;
        let request = AppendRequest::new(sequence, [number.to_le_bytes()]);
        requests.send(request).await.ok()?;
        let reply = tokio::time::timeout(patience, replies.message()).await.ok()?.ok()??;
        match reply.reply? {
            Reply::Ok(ok) => _ = acked.lock().unwrap().insert(ok.indexes[0], *number),
            Reply::Redirect(redirect) => return Some(redirect.host).filter(|h| !h.is_empty()),
            Reply::Full(_) => return None,
        }
    }
    None
}

/// All records of a server: the number in each, by index.
pub(crate) fn records(server: &Server, last: u64) -> BTreeMap<u64, u64> {
    let number = |data: Vec<u8>| u64::from_le_bytes(data.try_into().unwrap());
    entries(server, last).into_iter().map(|(index, data)| (index, number(data))).collect()
}

/// All records that a server returns, up to `last`, by index. Each comes once.
pub(crate) fn entries(server: &Server, last: u64) -> BTreeMap<u64, Vec<u8>> {
    runtime().block_on(async {
        let mut client = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
        let mut replies = client.read(ReadRequest { next_index: 1 }).await.unwrap().into_inner();
        let mut all = BTreeMap::new();
        while all.last_key_value().is_none_or(|(index, _)| *index < last) {
            let reply = tokio::time::timeout(PATIENCE, replies.message()).await.unwrap().unwrap().unwrap();
            let Some(read_reply::Reply::Ok(ok)) = reply.reply else { panic!("{reply:?}") };
            for entry in ok.entries.into_iter().filter(|e| !e.skip) {
                let before = all.insert(entry.index, entry.data.to_vec());
                assert!(before.is_none(), "{} comes twice", entry.index);
            }
        }
        all
    })
}

/// Runs the program with this input, which it need not read.
pub(crate) fn fed(args: &[&str], input: &str) -> Ran {
    let mut child = started(args);
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // On a thread: the program can wait meanwhile until somebody reads what it prints.
    let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let ran = ended(child);
    if let Err(error) = feeder.join().unwrap() {
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
    ran
}

pub(crate) fn started(args: &[&str]) -> Child {
    let mut command = chiplog();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn ended(child: Child) -> Ran {
    let _limited = Limited::new(&child);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// A server that is a cluster of its own.
pub(crate) fn one(dir: &Path) -> Server {
    let mut server = Server::new(1, dir);
    server.start(&["--init"]);
    server
}

/// Three servers of one cluster.
pub(crate) fn three(dir: &Path) -> Vec<Server> {
    founded((1..=3).map(|node| Server::new(node, dir)).collect())
}

/// Starts these servers and makes one cluster of them.
pub(crate) fn founded(servers: Vec<Server>) -> Vec<Server> {
    founded_with(servers, &[])
}

/// The same, with more arguments for each server.
pub(crate) fn founded_with(mut servers: Vec<Server>, more: &[&str]) -> Vec<Server> {
    servers.iter_mut().for_each(|server| server.start(more));
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    servers
}

/// Runs a change of members until it is known to be made: on a busy machine the leader can lose its office meanwhile, and the
/// answer then says that the command may be repeated.
#[track_caller]
pub(crate) fn made(args: &[&str]) -> Ran {
    made_after(args, None)
}

/// The same for a change that is refused with these words until the cluster is ready for it.
#[track_caller]
pub(crate) fn made_after(args: &[&str], refusal: Option<&str>) -> Ran {
    made_by(|| run(args), refusal)
}

/// The same for a command that is run in another way.
#[track_caller]
pub(crate) fn made_by(mut run: impl FnMut() -> Ran, refusal: Option<&str>) -> Ran {
    let mut is_repeated = false;
    wait("the change is made", || {
        let ran = run();
        if ran.code == 2 && refusal.is_some_and(|words| ran.err.contains(words)) {
            return None;
        }
        // The one before was made after all.
        let was_made = is_repeated && ran.code == 2 && ran.err.contains("is not a member");
        if ran.code == 5 && ran.err.contains("run the same command again") {
            is_repeated = true;
            return None;
        }
        assert!(ran.code == 0 || was_made, "{}{}", ran.out, ran.err);
        Some(ran)
    })
}

/// Creates these logs, each in a group of its own. The leader may not know yet that a group is ready: then two logs share one, and they are
/// created again.
#[track_caller]
pub(crate) fn created_apart(client: &str, names: &[&str]) {
    let mut tries = 0;
    wait("each log has a group of its own", || {
        tries += 1;
        assert!(tries <= 3, "logs share groups although others have none");
        run(&[&["logs", "create", client], names].concat()).ok();
        let listed = run(&["logs", "list", client, "--json"]).ok().out;
        let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let groups: BTreeSet<_> = listed.iter().map(|log| log["group"].as_u64()).collect();
        if groups.len() == names.len() {
            return Some(());
        }
        run(&[&["logs", "delete", client, "--yes"], names].concat()).ok();
        None
    });
}

/// The names of an object's fields, in order.
pub(crate) fn keys(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}
