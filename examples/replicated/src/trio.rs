//! Three replicas of one log, in this process: each on a directory of its own, connected by a network in memory.
//! With another `Transport` the same code would run on three machines.

use chiplog::transport::MemoryNetwork;
use chiplog::{Bootstrap, Change, ClusterOptions, Log, LogId, NodeId, Options, Role};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Longer than anything here takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A follower starts an election after hearing nothing for one to two times this long.
pub(crate) const ELECTION_TIMEOUT: Duration = Duration::from_millis(300);

/// Appends that a program keeps in flight in its session.
pub(crate) const IN_FLIGHT: u16 = 64;

/// Sessions of appending threads, and of openings whose answer was lost.
const SESSIONS_MAX: u32 = 512;

/// Small segments, so that a discard frees some.
const SEGMENT_BYTES: u32 = 4 << 20;

/// The replicas, by node from 1. `None` is a replica that does not run.
#[derive(Debug)]
pub(crate) struct Trio {
    dir: PathBuf,
    network: MemoryNetwork,
    logs: RwLock<[Option<Log>; 3]>,
}

impl Trio {
    /// Makes a new cluster in `dir`: node 1 founds it, the others are added, catch up, and vote from then on.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let trio = Self { dir: dir.to_owned(), network: MemoryNetwork::new(), logs: RwLock::default() };
        trio.open(NodeId(1), Bootstrap::Init)?;
        let leader = trio.leader()?;
        for node in [NodeId(2), NodeId(3)] {
            let replica = trio.open(node, Bootstrap::Join(leader.log_id()))?;
            let directory = replica.directory_id();
            let learner = Change::AddLearner { node, directory, address: address(node) };
            leader.change_members(&[learner], PATIENCE)?;
            leader.change_members(&[Change::Promote(node)], PATIENCE)?;
        }
        Ok(trio)
    }

    fn open(&self, node: NodeId, bootstrap: Bootstrap) -> Result<Log> {
        let cluster = ClusterOptions::new(node, bootstrap, self.network.transport())
            .address(address(node))
            .heartbeat(ELECTION_TIMEOUT / 6)
            .election_timeout(ELECTION_TIMEOUT);
        let options = Options::with_segment_bytes(SEGMENT_BYTES)
            .cluster(cluster)
            .sessions_max(SESSIONS_MAX)
            // Batches that are resent after a change of leaders must be remembered until then.
            .session_window(IN_FLIGHT);
        let log = Log::open(self.dir.join(format!("replica-{node}")), options)?;
        self.logs.write().unwrap_or_else(PoisonError::into_inner)[place(node)] = Some(log.clone());
        Ok(log)
    }

    /// The replicas that run.
    pub(crate) fn running(&self) -> Vec<Log> {
        self.logs.read().unwrap_or_else(PoisonError::into_inner).iter().flatten().cloned().collect()
    }

    /// The leader; waits for one. A leader that was cut off still reports itself for a while: the newest term counts.
    pub(crate) fn leader(&self) -> Result<Log> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let leaders = self.running().into_iter().filter(|log| log.role() == Role::Leader);
            if let Some(leader) = leaders.max_by_key(|log| log.status().replica.term) {
                return Ok(leader);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err("nobody was elected".into())
    }

    /// Waits for a leader other than `node`.
    pub(crate) fn leader_other_than(&self, node: NodeId) -> Result<Log> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let leader = self.leader()?;
            if leader.status().replica.node != node {
                return Ok(leader);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(format!("node {node} is still the leader").into())
    }

    /// A replica that does not lead, or any.
    pub(crate) fn follower(&self) -> Option<Log> {
        let running = self.running();
        running.iter().find(|log| log.role() == Role::Follower).or(running.first()).cloned()
    }

    /// From now on no message of this replica reaches another one, and none reaches it. It continues to run.
    pub(crate) fn cut_off(&self, node: NodeId) {
        self.network.disconnect(node);
    }

    /// Ends a replica. If it was cut off, its unshared entries stay on its disk and nowhere else. Returns how many
    /// entries it did not know to be committed.
    pub(crate) fn end(&self, node: NodeId) -> u64 {
        let log = self.logs.write().unwrap_or_else(PoisonError::into_inner)[place(node)].take();
        let Some(log) = log else { return 0 };
        let status = log.status();
        // Its unconfirmed appends fail, and their waiters get the error: that is intended here.
        let _ = log.close();
        status.replica.last_entry.0.saturating_sub(status.replica.committed_entry.0)
    }

    /// Opens a replica from its directory as it was left.
    pub(crate) fn bring_back(&self, node: NodeId) -> Result<Log> {
        self.network.connect(node);
        self.open(node, Bootstrap::Existing)
    }

    /// Closes all and opens them again, as after a restart of the whole program.
    pub(crate) fn restart(&self) -> Result<()> {
        for log in self.running() {
            self.end(log.status().replica.node);
        }
        for node in 1..=3 {
            self.bring_back(NodeId(node))?;
        }
        Ok(())
    }

    /// The log's id, the same on every replica.
    pub(crate) fn log_id(&self) -> Option<LogId> {
        self.running().first().map(|log| log.log_id())
    }
}

fn address(node: NodeId) -> String {
    format!("memory:{node}") // means nothing to a network in memory
}

fn place(node: NodeId) -> usize {
    node.get() as usize - 1
}
