//! Three replicas in this process, each on a disk with its own gate.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use crate::hooked::{Hooked, Hooks};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{Log, NodeId, Options};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const SEGMENT_BYTES: u32 = 256 << 10;

/// The first replica leads at first. `G` can stop a disk; it does not at first.
pub struct Trio<G: Gate> {
    pub logs: Vec<Log>,
    pub gates: Vec<Arc<G>>,
}

/// A hook that can stop a disk.
pub trait Gate: Hooks + Default + 'static {
    fn open(&self);
}

impl<G: Gate> Trio<G> {
    pub fn new() -> Self {
        Self::with(Duration::from_secs(2)) // no machine pauses for that long
    }

    pub fn with(election_timeout: Duration) -> Self {
        Self::tuned(election_timeout, |_| {})
    }

    pub fn tuned(election_timeout: Duration, tune: impl Fn(&mut ClusterOptions)) -> Self {
        let network = MemoryNetwork::new();
        let mut trio = Self { logs: Vec::new(), gates: Vec::new() };
        for node in 1..=3 {
            let bootstrap = match trio.logs.first() {
                None => Bootstrap::Init,
                Some(log) => Bootstrap::Join(log.log_id()),
            };
            let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
            cluster.heartbeat = election_timeout / 10;
            cluster.election_timeout = election_timeout;
            cluster.slow_disk_sync = None;
            tune(&mut cluster);
            let options = Options::with_segment_bytes(SEGMENT_BYTES).cluster(cluster);
            let gate = Arc::new(G::default());
            let log = Log::open_on(Arc::new(Hooked::new(gate.clone())), options).unwrap();
            trio.gates.push(gate);
            if let Some(leader) = trio.logs.first() {
                let (node, directory) = (NodeId(node), log.directory_id());
                let add = Change::AddLearner { node, directory, address: String::new() };
                leader.change_members(&[add], PATIENCE).unwrap();
                leader.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
            }
            trio.logs.push(log);
        }
        trio
    }

    /// Waits until a leader is answered by a majority: on a busy machine the leader may have changed.
    pub fn lives(&self) {
        let leads = |log: &&Log| log.role() == Role::Leader;
        until("a leader that a majority answers", || {
            self.logs.iter().find(leads).is_some_and(|l| l.barrier(Duration::from_secs(5)).is_ok())
        });
    }
}

impl<G: Gate> Drop for Trio<G> {
    /// The gates are opened, so that a failing test ends as well.
    fn drop(&mut self) {
        self.gates.iter().for_each(|gate| gate.open());
    }
}

/// Waits for it.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
