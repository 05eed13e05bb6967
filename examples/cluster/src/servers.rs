//! The servers: processes of the built program on this machine, each on a directory and on ports of its own.
//!
//! Invariant: when this program ends in order (normally, by an error, a panic or Ctrl-C), it ends the servers first and
//! then removes its files.

use std::error::Error;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The longest that anything may take that takes a moment on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// After one to two times this long without a message from the leader, the others elect another one.
pub(crate) const ELECTION_MILLIS: u64 = 500;

/// Groups of named logs: each has a leader of its own.
pub(crate) const GROUPS: u32 = 2;

/// The addresses and the directory of a server.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) node: u64,
    /// For clients.
    pub(crate) client: String,
    /// Each server has a zone of its own, so that a reader can select one.
    pub(crate) zone: String,
    pub(crate) data: PathBuf,
    peer: String,
    http: String,
}

/// Three servers, running or not.
#[derive(Debug)]
pub(crate) struct Servers {
    program: PathBuf,
    dir: PathBuf,
    /// Whether the directory is removed with the servers.
    scratch: bool,
    pub(crate) places: Vec<Place>,
    /// Further settings of each server, as KEY=VALUE.
    pub(crate) settings: Vec<String>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    children: Vec<(u64, Child)>,
    /// No more servers are started.
    ended: bool,
}

/// A port on which no program listens, below those that connections get: no connection takes it before the server has started.
fn free_port() -> Result<TcpListener> {
    let mut tries = 0;
    loop {
        let port = 10_000 + (RandomState::new().build_hasher().finish() % 20_000) as u16;
        match TcpListener::bind(("127.0.0.1", port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries < 1_000 => tries += 1,
            bound => return Ok(bound?),
        }
    }
}

impl Servers {
    /// Chooses ports and directories; starts no server.
    pub(crate) fn new(program: &Path, dir: &Path, scratch: bool) -> Result<Self> {
        // All at once, so that no port is chosen twice.
        let listeners: Vec<_> = (0..9).map(|_| free_port()).collect::<Result<_>>()?;
        let ports: Vec<_> =
            listeners.iter().map(|l| Ok(l.local_addr()?.to_string())).collect::<Result<_>>()?;
        let places =
            ["a", "b", "c"].iter().zip(ports.chunks(3)).zip(1..).map(|((zone, ports), node)| Place {
                node,
                client: ports[0].clone(),
                zone: (*zone).to_owned(),
                data: dir.join(format!("server-{node}")),
                peer: ports[1].clone(),
                http: ports[2].clone(),
            });
        let places = places.collect();
        let (program, dir) = (program.to_owned(), dir.to_owned());
        Ok(Self { program, dir, scratch, places, settings: Vec::new(), running: Mutex::default() })
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self, node: u64) -> Result<&Place> {
        self.places.iter().find(|p| p.node == node).ok_or_else(|| format!("there is no server {node}").into())
    }

    /// The number of the server that clients reach here.
    pub(crate) fn node_at(&self, client: &str) -> Result<String> {
        let place = self.places.iter().find(|p| p.client == client);
        place.map(|p| p.node.to_string()).ok_or_else(|| format!("there is no server at {client}").into())
    }

    pub(crate) fn clients(&self) -> Vec<String> {
        self.places.iter().map(|p| p.client.clone()).collect()
    }

    /// Starts a server and waits until it answers.
    pub(crate) fn start(&self, node: u64) -> Result<()> {
        let place = self.place(node)?;
        let said = self.dir.join(format!("server-{node}.log"));
        let log = File::options().create(true).append(true).open(&said)?;
        let mut command = Command::new(&self.program);
        command.arg("serve").args(["--node", &node.to_string(), "--data"]).arg(&place.data);
        let settings = [
            format!("zone={}", place.zone),
            format!("listen.client={}", place.client),
            format!("listen.peer={}", place.peer),
            format!("listen.http={}", place.http),
            "log.segment_bytes=4MiB".to_owned(),
            format!("groups={GROUPS}"),
            format!("cluster.election_timeout_millis={ELECTION_MILLIS}"),
            "cluster.heartbeat_millis=100".to_owned(),
        ];
        settings.iter().chain(&self.settings).for_each(|setting| _ = command.args(["--set", setting]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        {
            let mut running = self.running();
            if running.ended {
                return Err("the demo ends".into());
            }
            let child =
                command.spawn().map_err(|e| format!("cannot start {}: {e}", self.program.display()))?;
            running.children.push((node, child));
        }
        let begun = Instant::now();
        while self.page(node, "/livez").is_none() {
            let mut running = self.running();
            let ended = |(n, child): &mut (u64, Child)| *n == node && !matches!(child.try_wait(), Ok(None));
            if running.children.iter_mut().any(ended) || begun.elapsed() > PATIENCE {
                let said = fs::read_to_string(said).unwrap_or_default();
                return Err(format!("server {node} does not answer; it said:\n{said}").into());
            }
            drop(running);
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts all servers and makes one cluster of them. `tell` gets each command, and its output.
    pub(crate) fn assemble(&self, tell: impl Fn(&[&str], &str)) -> Result<()> {
        thread::scope(|scope| {
            let started: Vec<_> = self.places.iter().map(|p| scope.spawn(|| self.start(p.node))).collect();
            started.into_iter().try_for_each(|s| s.join().map_err(|_| "starting a server panicked")?)
        })?;
        let [first, others @ ..] = &self.places[..] else { return Err("there is no server".into()) };
        let command = |args: &[&str]| self.command(args).map(|output| tell(args, &output));
        command(&["member", "init", &first.client])?;
        for other in others {
            let add = ["member", "add", &other.client, "--cluster", &first.client, "--promote"];
            tell(&add, &self.change(&add)?);
        }
        Ok(())
    }

    /// Kills a server by SIGKILL: the process cannot react.
    pub(crate) fn kill(&self, node: u64) -> Result<()> {
        let mut running = self.running();
        let at = running.children.iter().position(|(n, _)| *n == node).ok_or("it does not run")?;
        let (_, mut child) = running.children.swap_remove(at);
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Runs a change of members until it is known to be made: on a busy machine the leader can lose its office meanwhile.
    pub(crate) fn change(&self, args: &[&str]) -> Result<String> {
        let begun = Instant::now();
        loop {
            match self.command(args) {
                Err(why)
                    if why.to_string().contains("run the same command again")
                        && begun.elapsed() < PATIENCE => {}
                done => return done,
            }
        }
    }

    /// Runs a command of the program; returns its output.
    pub(crate) fn command(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(args).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("chiplog {}: {said}", args.join(" ")).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// The value of a server's metric, such as `chiplog_last_index`.
    pub(crate) fn figure(&self, node: u64, name: &str) -> Option<u64> {
        let page = self.page(node, "/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.map(|value: f64| value as u64)
    }

    /// A page of its HTTP listener.
    fn page(&self, node: u64, path: &str) -> Option<String> {
        let place = self.place(node).ok()?;
        let mut stream = TcpStream::connect(&place.http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        page.starts_with("HTTP/1.1 200").then_some(page)
    }

    /// Ends all servers and removes their directory, unless `keep` is set: its files show what went wrong.
    pub(crate) fn end(&self, keep: bool) {
        let mut running = self.running();
        running.ended = true;
        for (_, child) in &mut running.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        running.children.clear();
        if self.scratch && !keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end(true); // the files were removed earlier, if they were to be
    }
}
