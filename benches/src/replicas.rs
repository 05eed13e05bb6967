//! Replicas of one log in this process, as the benchmarks use them, and dragonboat, with which they are compared.
//!
//! Invariant: what is made here has a directory of its own, which is removed with it.

use anyhow::{Context, Result, bail, ensure};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{Log, NodeId, Options};
use serde::Deserialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a cluster may take to add a member or to elect a leader.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any stall of a busy machine: an election is not what is measured.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(3);

/// The options of a replica, if its leader is to stay: a disk that is slow, or a processor that others use, makes figures worse and
/// does not end the measurement.
pub(crate) fn stays(node: NodeId, bootstrap: Bootstrap, network: &MemoryNetwork) -> ClusterOptions {
    let mut cluster = ClusterOptions::new(node, bootstrap, network.transport());
    cluster.slow_disk_sync = None;
    cluster.election_timeout = ELECTION_TIMEOUT;
    cluster
}

/// A cluster whose replicas are all in this process, each in a directory of its own. Its leader stays.
#[derive(Debug)]
pub(crate) struct Replicas {
    logs: Vec<Log>,
    network: MemoryNetwork,
    path: PathBuf,
}

impl Replicas {
    /// `count` voters below `dir`. Node 1 makes the cluster; the others join as learners and are promoted once
    /// they have caught up.
    pub(crate) fn start(dir: &Path, count: u64, options: &Options) -> Result<Self> {
        let path = dir.join("replicas");
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        let mut all = Self { logs: Vec::new(), network: MemoryNetwork::new(), path };
        all.logs.push(all.open(1, Bootstrap::Init, options)?);
        for node in 2..=count {
            all.logs.push(all.join(node, options)?);
            all.leader()?.change_members(&[Change::Promote(NodeId(node))], PATIENCE)?;
        }
        all.leader()?;
        Ok(all)
    }

    fn dir(&self, node: u64) -> PathBuf {
        self.path.join(format!("node-{node}"))
    }

    fn open(&self, node: u64, bootstrap: Bootstrap, options: &Options) -> Result<Log> {
        let options = options.clone().cluster(stays(NodeId(node), bootstrap, &self.network));
        let dir = self.dir(node);
        Log::open(&dir, options).with_context(|| format!("opening {}", dir.display()))
    }

    /// A new replica in an empty directory, which the leader has added as a learner.
    pub(crate) fn join(&self, node: u64, options: &Options) -> Result<Log> {
        let log = self.open(node, Bootstrap::Join(self.logs[0].log_id()), options)?;
        let learner = Change::AddLearner {
            node: NodeId(node),
            directory: log.directory_id(),
            address: format!("memory:{node}"),
        };
        self.leader()?.change_members(&[learner], PATIENCE)?;
        Ok(log)
    }

    /// Removes a replica that is closed, and its files.
    pub(crate) fn remove(&self, node: u64) -> Result<()> {
        self.leader()?.change_members(&[Change::Remove(NodeId(node))], PATIENCE)?;
        let dir = self.dir(node);
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))
    }

    /// The replica that leads, once there is one.
    pub(crate) fn leader(&self) -> Result<&Log> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(log) = self.logs.iter().find(|log| log.role() == Role::Leader) {
                return Ok(log);
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("no replica leads after {PATIENCE:?}")
    }

    /// All replicas.
    pub(crate) fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// The bytes that the replicas have sent each other.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.network.traffic().bytes
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.logs.clear();
        // The whole work directory is removed later.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The path of dragonboat's benchmark: a program that takes `-dir`, `-w w1`, `-secs` and `-nodes`, and prints a
/// line of JSON for each log store and count of appenders.
pub(crate) const DRAGONBOAT: &str = "CHIPLOG_PEERS_DRAGONBOAT";
/// Its figure with 128 appenders on two idle cores elsewhere: used if it is not installed.
pub(crate) const DRAGONBOAT_SEEN: f64 = 33_000.0;

/// dragonboat v4 in the same arrangement.
#[derive(Clone, Debug)]
pub(crate) struct Dragonboat {
    program: OsString,
}

#[derive(Deserialize)]
struct Line {
    workers: u32,
    ops_s: f64,
}

impl Dragonboat {
    /// The program that the environment names, if it does.
    pub(crate) fn at_hand() -> Option<Self> {
        std::env::var_os(DRAGONBOAT).filter(|path| !path.is_empty()).map(|program| Self { program })
    }

    /// Appends a second with 128 appenders and three replicas in one process; the better of its log stores.
    pub(crate) fn appends(&self, dir: &Path, time: Duration) -> Result<f64> {
        let dir = dir.join("dragonboat");
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let name = self.program.to_string_lossy().into_owned();
        let mut command = Command::new(&self.program);
        command.arg("-dir").arg(&dir).args(["-w", "w1", "-nodes", "3", "-secs"]);
        command.arg(time.as_secs_f64().to_string()).stderr(Stdio::null());
        let output = command.output().with_context(|| format!("running {name}"))?;
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        ensure!(output.status.success(), "{name} failed: {}", output.status);
        best(&String::from_utf8_lossy(&output.stdout)).with_context(|| format!("{name} printed no figures"))
    }
}

/// The best figure of 128 appenders.
fn best(output: &str) -> Option<f64> {
    let lines = output.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.filter(|line| line.workers == 128).map(|line| line.ops_s).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_128_appenders_counts() {
        let output = "noise\n{\"how\":\"pebble\",\"workers\":128,\"ops_s\":21940.5}\n\
                      {\"how\":\"tan\",\"workers\":128,\"ops_s\":30000}\n{\"workers\":8,\"ops_s\":99999}\n";
        assert_eq!(best(output), Some(30000.0));
        assert_eq!(best("failed\n"), None);
    }

    #[test]
    fn three_replicas_append_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let replicas = Replicas::start(dir.path(), 3, &Options::with_segment_bytes(1 << 20)).unwrap();
        let leader = replicas.leader().unwrap();
        leader.append(b"x").unwrap();
        assert!(replicas.sent_bytes() > 0 && replicas.logs().len() == 3);
        assert_eq!(leader.status().replica.peers.len(), 2);
        drop(replicas);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
