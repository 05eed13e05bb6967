//! Three replicas in this process, of a log with the durability class `object`.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

#[path = "sliced_log.rs"]
pub mod sliced_log;

#[path = "replica.rs"]
mod replica;

use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::transport::{MemoryNetwork, Transport};
use chiplog::{Log, LogId, LogOption, NodeId, Options, SessionId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use replica::replica_over;
pub use sliced_log::eventually;

pub fn is_on(log: &Log) -> bool {
    log.log_options().get(LogOption::PayloadSlices) == Some(1)
}

pub struct Cluster {
    pub logs: Vec<Log>,
    pub id: LogId,
}

impl Cluster {
    pub fn new(dir: &Path, network: &MemoryNetwork, options: impl Fn() -> Options) -> Self {
        let cluster = Self::over(dir, || network.transport(), options);
        eventually("the class is on", || cluster.logs.iter().all(is_on));
        cluster
    }

    pub fn over(
        dir: &Path,
        transport: impl Fn() -> Arc<dyn Transport>,
        options: impl Fn() -> Options,
    ) -> Self {
        let open = |node: u64, bootstrap| {
            replica_over(&dir.join(node.to_string()), node, bootstrap, transport(), options())
        };
        let one = open(1, Bootstrap::Init);
        let id = one.log_id();
        let logs = vec![one.clone(), open(2, Bootstrap::Join(id)), open(3, Bootstrap::Join(id))];
        for (node, log) in [(2, &logs[1]), (3, &logs[2])] {
            let (node, directory) = (NodeId(node), log.directory_id());
            let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
            one.change_members(&[add], Duration::from_secs(20)).unwrap();
            one.change_members(&[Change::Promote(node)], Duration::from_secs(20)).unwrap();
        }
        Self { logs, id }
    }

    pub fn leader(&self) -> Option<usize> {
        self.logs.iter().position(|log| log.role() == Role::Leader)
    }

    /// Opens a session at the leader, once there is one.
    pub fn session(&self) -> SessionId {
        let mut session = None;
        eventually("a session is open", || {
            session = self.leader().and_then(|n| self.logs[n].open_session().ok());
            session.is_some()
        });
        session.unwrap().id()
    }
}
