//! Servers: `chiplog serve`, one process a server, each on a directory and on ports of its own.
//!
//! Invariant: the processes end with this one, however it ends.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that takes a moment on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A program that ends with this process: started through this program's command `bound`.
pub(crate) fn bound(program: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["bound", "--"]).arg(program);
    Ok(command)
}

/// Becomes the program of these arguments, and ends with the parent.
pub(crate) fn become_bound(command: &[OsString]) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else { bail!("which program?") };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("running {}", program.to_string_lossy()))
}

/// A process's use of memory and descriptors at a moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Memory of its own: heap and stacks.
    pub(crate) anonymous_bytes: u64,
    /// Including pages of mapped files, which belong to the page cache.
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
}

impl Sample {
    pub(crate) fn of(process: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Ok(Self {
            anonymous_bytes: kib("RssAnon:") << 10,
            resident_bytes: kib("VmRSS:") << 10,
            descriptors: fs::read_dir(format!("/proc/{process}/fd"))?.count() as u64,
        })
    }
}

/// Addresses on this machine at which no program listens, below those that the system assigns to connections: a
/// restarted server finds its own free.
fn free_addresses(count: usize) -> Result<Vec<String>> {
    // All are held until there are enough, so that none is assigned twice.
    let mut held = Vec::new();
    for _ in 0..1000 {
        if held.len() == count {
            break;
        }
        held.extend(TcpListener::bind(("127.0.0.1", fastrand::u16(12_000..32_000))).ok());
    }
    ensure!(held.len() == count, "no ports are free");
    held.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

#[derive(Debug)]
struct Server {
    client: String,
    peer: String,
    http: String,
    /// `None`: it was killed.
    child: Mutex<Option<Child>>,
}

impl Server {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The servers of a cluster, by their numbers from 1.
#[derive(Debug)]
pub(crate) struct Servers {
    program: PathBuf,
    dir: PathBuf,
    settings: Vec<String>,
    all: Vec<Server>,
}

impl Servers {
    /// A new cluster of `count` voters in `dir`. `settings`: in the form of `--set`.
    pub(crate) fn start(dir: &Path, count: u64, settings: Vec<String>) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("chiplog");
        let build = "cargo build -p chiplog-server, with the profile of this program";
        ensure!(program.is_file(), "there is no {}: {build}", program.display());
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let ports = free_addresses(3 * count as usize)?;
        let server = |ports: &[String]| Server {
            client: ports[0].clone(),
            peer: ports[1].clone(),
            http: ports[2].clone(),
            child: Mutex::new(None),
        };
        let all = ports.chunks_exact(3).map(server).collect();
        let servers = Self { program, dir: dir.to_owned(), settings, all };
        servers.run(1, &["--init"])?;
        for node in 2..=count {
            servers.run(node, &[])?;
            let (cluster, joins) = (servers.address(1), servers.address(node));
            servers.command(&["member", "add", joins, "--cluster", cluster, "--promote"])?;
        }
        servers.leader()?;
        Ok(servers)
    }

    fn server(&self, node: u64) -> &Server {
        &self.all[node as usize - 1]
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.all.len() as u64
    }

    /// The server's address for clients.
    pub(crate) fn address(&self, node: u64) -> &str {
        &self.server(node).client
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.all.iter().map(|s| s.client.clone()).collect()
    }

    /// A label of a server's own, by which a reader can select it.
    pub(crate) fn zone(node: u64) -> String {
        format!("zone-{node}")
    }

    /// Starts a server on its existing directory, and waits until it answers.
    pub(crate) fn run(&self, node: u64, more: &[&str]) -> Result<()> {
        let server = self.server(node);
        let said = self.dir.join(format!("said-{node}"));
        let log = File::options().create(true).append(true).open(&said)?;
        let mut command = bound(&self.program)?;
        command.args(["serve", "-v", "--node", &node.to_string(), "--data"]);
        command.arg(self.data(node)).args(more);
        let listen = [("client", &server.client), ("peer", &server.peer), ("http", &server.http)];
        listen.iter().for_each(|(what, at)| _ = command.args([format!("--listen-{what}"), at.to_string()]));
        command.args(["--zone".to_owned(), Self::zone(node)]);
        self.settings.iter().for_each(|setting| _ = command.args(["--set", setting]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        *server.child() = Some(command.spawn().with_context(|| format!("starting server {node}"))?);
        let begun = Instant::now();
        while self.page(node, "/livez").is_err() {
            let ended = !matches!(server.child().as_mut().map(Child::try_wait), Some(Ok(None)));
            if ended || begun.elapsed() > PATIENCE {
                bail!(
                    "server {node} does not answer; it said: {}",
                    fs::read_to_string(said).unwrap_or_default()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills a server by SIGKILL, and waits for its end.
    pub(crate) fn kill(&self, node: u64) -> Result<()> {
        if let Some(mut child) = self.server(node).child().take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub(crate) fn signal(&self, node: u64, signal: Signal) -> Result<()> {
        let child = self.server(node).child();
        let child = child.as_ref().with_context(|| format!("server {node} does not run"))?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// The process of a running server.
    pub(crate) fn process(&self, node: u64) -> Option<u32> {
        self.server(node).child().as_ref().map(Child::id)
    }

    /// Fails with a server's output if it has ended by itself.
    pub(crate) fn check(&self) -> Result<()> {
        for node in self.nodes() {
            let ended = match self.server(node).child().as_mut() {
                Some(child) => child.try_wait()?,
                None => None,
            };
            if let Some(status) = ended {
                let said = fs::read_to_string(self.dir.join(format!("said-{node}"))).unwrap_or_default();
                let tail: Vec<&str> = said.lines().rev().take(20).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!("server {node} ended by itself ({status}); it said last:\n{}", tail.join("\n"));
            }
        }
        Ok(())
    }

    /// A server's directory.
    pub(crate) fn data(&self, node: u64) -> PathBuf {
        self.dir.join(format!("node-{node}"))
    }

    /// Runs a command of the program.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<()> {
        self.output(arguments).map(drop)
    }

    /// As [`Self::command`]. Returns what it writes.
    pub(crate) fn output(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "chiplog {}: {said}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The server that leads, once there is one.
    pub(crate) fn leader(&self) -> Result<u64> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let leads =
                |node: &u64| self.figure(*node, "chiplog_role{role=\"leader\"}").is_ok_and(|n| n == 1.0);
            if let Some(node) = self.nodes().find(leads) {
                return Ok(node);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("no server leads after {PATIENCE:?}")
    }

    /// One of a server's metrics.
    pub(crate) fn figure(&self, node: u64, name: &str) -> Result<f64> {
        let page = self.page(node, "/metrics")?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
            .with_context(|| format!("server {node} has no metric {name}"))
    }

    fn page(&self, node: u64, path: &str) -> Result<String> {
        let address = self.server(node).http.parse()?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        ensure!(page.starts_with("HTTP/1.1 200"), "{path} of server {node}: {page}");
        Ok(page)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for node in self.nodes() {
            let _ = self.kill(node);
        }
    }
}

/// An empty directory that is removed at the end, unless its files are needed to find a failure.
#[derive(Debug)]
pub(crate) struct WorkDir {
    pub(crate) path: PathBuf,
    pub(crate) keep: bool,
}

impl WorkDir {
    pub(crate) fn new(parent: &Path, name: &str) -> Result<Self> {
        let path = std::path::absolute(parent)?.join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path, keep: false })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("the servers' files and output are in {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
