//! Servers: `chiplog serve`, one process a server, each on a directory and on ports of its own, with default settings
//! except for [`LEADER_STAYS`] and those that a measurement sets.
//!
//! Invariant: dropping them ends the processes and removes what they wrote.

use super::process::{Own, PATIENCE, Running, free_addresses};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A disk that is slow, or a processor that others use, makes figures worse and does not end a measurement.
const LEADER_STAYS: [&str; 2] = ["cluster.slow_disk_sync_millis=0", "cluster.election_timeout_millis=3000"];

/// A cluster of one or three.
#[derive(Debug)]
pub(crate) struct Servers {
    own: Own,
    program: PathBuf,
    dir: PathBuf,
    settings: Vec<String>,
    all: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    node: usize,
    client: String,
    peer: String,
    http: String,
    /// `None`: it was killed.
    running: Option<Running>,
}

/// The amount that a server's log had written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    blocks: f64,
    bytes: f64,
}

impl Written {
    /// Bytes of the mean block since `earlier`.
    pub(crate) fn block_bytes(&self, earlier: &Self) -> usize {
        ((self.bytes - earlier.bytes) / (self.blocks - earlier.blocks).max(1.0)) as usize
    }

    /// Blocks since `earlier`.
    pub(crate) fn blocks(&self, earlier: &Self) -> f64 {
        self.blocks - earlier.blocks
    }
}

impl Servers {
    /// A new cluster of `count` voters below `dir`. `settings`: in the form of `--set`; they override [`LEADER_STAYS`].
    ///
    /// # Errors
    /// A server does not start; with its output.
    pub(crate) fn start(own: &Own, dir: &Path, count: usize, settings: &[&str]) -> Result<Self> {
        let dir = dir.join("servers");
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let server = |(n, at): (usize, &[String])| Server {
            node: n + 1,
            client: at[0].clone(),
            peer: at[1].clone(),
            http: at[2].clone(),
            running: None,
        };
        let all = free_addresses(3 * count)?.chunks(3).enumerate().map(server).collect();
        let settings = LEADER_STAYS.iter().chain(settings).map(ToString::to_string).collect();
        let mut servers = Self { own: own.clone(), program: own.chiplog()?, dir, settings, all };
        servers.run(1)?;
        for node in 2..=count {
            servers.run(node)?;
            let (cluster, joins) = (servers.address(1).to_owned(), servers.address(node).to_owned());
            servers.command(&["member", "add", &joins, "--cluster", &cluster, "--promote"])?;
        }
        servers.leader()?;
        Ok(servers)
    }

    fn server(&self, node: usize) -> &Server {
        &self.all[node - 1]
    }

    /// The server's address for clients.
    pub(crate) fn address(&self, node: usize) -> &str {
        &self.server(node).client
    }

    /// The addresses of all servers for clients.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.all.iter().map(|s| s.client.clone()).collect()
    }

    /// Starts a server on its existing directory. The first one makes the cluster.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn run(&mut self, node: usize) -> Result<()> {
        let server = self.server(node);
        let mut arguments =
            vec!["serve".to_owned(), "--node".into(), node.to_string(), "--data".into(), self.data(node)];
        let listen = [("client", &server.client), ("peer", &server.peer), ("http", &server.http)];
        for (what, address) in listen {
            arguments.extend([format!("--listen-{what}"), address.clone()]);
        }
        arguments.extend(["--zone".to_owned(), Self::zone(node)]);
        for setting in &self.settings {
            arguments.extend(["--set".to_owned(), setting.clone()]);
        }
        if node == 1 {
            arguments.push("--init".into());
        }
        let said = self.dir.join(format!("said-{node}"));
        let mut running = Running::start(&self.own, &self.program, &arguments, said)?;
        running.listens(&server.client)?;
        self.all[node - 1].running = Some(running);
        Ok(())
    }

    /// A label of a server's own, by which a reader can select it.
    pub(crate) fn zone(node: usize) -> String {
        format!("zone-{node}")
    }

    /// A server's directory.
    fn data(&self, node: usize) -> String {
        self.dir.join(format!("node-{node}")).to_string_lossy().into_owned()
    }

    /// The segment files of a server that hold records.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn files(&self, node: usize) -> Result<Vec<PathBuf>> {
        let paths: Vec<PathBuf> =
            fs::read_dir(self.data(node))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let mut files: Vec<_> =
            paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
        files.sort();
        files.truncate(self.figure(node, "chiplog_segments")? as usize);
        Ok(files)
    }

    /// Kills a server by SIGKILL.
    pub(crate) fn kill(&mut self, node: usize) {
        self.all[node - 1].running = None; // dropping it kills it
    }

    fn command(&self, arguments: &[&str]) -> Result<()> {
        let said = std::process::Command::new(&self.program).args(arguments).output()?;
        ensure!(
            said.status.success(),
            "chiplog {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&said.stderr)
        );
        Ok(())
    }

    /// The server that leads, once there is one.
    ///
    /// # Errors
    /// There is no leader for long.
    pub(crate) fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for server in self.all.iter().filter(|s| s.running.is_some()) {
                if self.figure(server.node, "chiplog_role{role=\"leader\"}").is_ok_and(|leads| leads == 1.0) {
                    return Ok(server.node);
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("no server leads after {PATIENCE:?}")
    }

    /// The server that leads the only group of named logs, once there is one.
    ///
    /// # Errors
    /// There is no leader for long.
    pub(crate) fn group_leader(&self) -> Result<usize> {
        let begun = Instant::now();
        loop {
            let leader = self.figure(1, "chiplog_group_leader{group=\"1\"}").unwrap_or_default() as usize;
            if (1..=self.all.len()).contains(&leader) {
                return Ok(leader);
            }
            ensure!(begun.elapsed() < PATIENCE, "no server leads the group after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The server that leads the only group of named logs, once that stays so: all servers are voters of the group, and its
    /// leader is the one whose turn it is. Another one would give up the leadership soon, because servers spread them.
    ///
    /// # Errors
    /// That is not so for long.
    pub(crate) fn settled_group_leader(&self) -> Result<usize> {
        let turn = 1 % self.all.len() + 1;
        let is = |name, value| self.figure(turn, name).is_ok_and(|figure| figure as usize == value);
        let begun = Instant::now();
        while !is("chiplog_group_leader{group=\"1\"}", turn)
            || !is("chiplog_group_voters{group=\"1\"}", self.all.len())
        {
            ensure!(begun.elapsed() < PATIENCE, "server {turn} does not lead the group after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(turn)
    }

    /// Waits until a server has ended all calls of clients, also those of connections that are closed.
    ///
    /// # Errors
    /// Some are open for long.
    pub(crate) fn await_no_calls(&self, node: usize) -> Result<()> {
        let begun = Instant::now();
        while self.figure(node, "chiplog_calls")? > 0.0 {
            ensure!(begun.elapsed() < PATIENCE, "server {node} has open calls after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The amount that a server's log has written so far.
    ///
    /// # Errors
    /// The metric is missing.
    pub(crate) fn written(&self, node: usize) -> Result<Written> {
        let blocks = self.figure(node, "chiplog_blocks_total")?;
        Ok(Written { blocks, bytes: self.figure(node, "chiplog_written_bytes_total")? })
    }

    /// One of a server's metrics.
    ///
    /// # Errors
    /// It does not answer, or the metric is missing.
    pub(super) fn figure(&self, node: usize, name: &str) -> Result<f64> {
        let page = self.page(node)?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
            .with_context(|| format!("server {node} has no metric {name}"))
    }

    fn page(&self, node: usize) -> Result<String> {
        let mut stream = TcpStream::connect(&self.server(node).http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Processor time that all servers have used.
    ///
    /// # Errors
    /// One of them is gone.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.all.iter().filter_map(|s| s.running.as_ref()).map(Running::cpu).sum()
    }

    /// A server's own memory.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn memory(&self, node: usize) -> Result<u64> {
        self.server(node).running.as_ref().context("the server was killed")?.memory()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.all.clear();
        // The whole work directory is removed later.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
