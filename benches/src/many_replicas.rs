//! Many named logs on three replicas in this process, beside one log on three.
//!
//! Invariant: node 1 leads all groups: each benchmark appends there.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::cases::{Bench, options};
use crate::engine::{Blocks, Log};
use crate::many::{LOGS, Many, create_all};
use crate::measure::interleave;
use crate::replicas::{Replicas, stays};
use crate::workload::{self, Appender};
use anyhow::{Context, Result, ensure};
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{LogId, Logs, LogsOptions, NodeId};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Replicas of each group.
const REPLICAS: u64 = 3;
/// The only group of named logs, beside the catalogue, which is group 0.
const GROUP: u32 = 1;
/// How long a change of members may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Named logs on three replicas, in a directory that is removed with them.
struct ManyReplicas {
    handles: Vec<Log>,
    replicas: Vec<Logs>,
    path: PathBuf,
}

impl ManyReplicas {
    /// `count` logs in one group, below `dir`.
    fn create(dir: &Path, count: usize) -> Result<Self> {
        let path = dir.join("many-replicas");
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        let networks = [MemoryNetwork::new(), MemoryNetwork::new()];
        let open = |node: u64, joined: Option<[LogId; 2]>| {
            let networks = networks.clone();
            let options = LogsOptions::default().groups(GROUP).options(options()).cluster(move |group| {
                let n = group as usize;
                let bootstrap = joined.map_or(Bootstrap::Init, |ids| Bootstrap::Join(ids[n]));
                stays(NodeId(node), bootstrap, &networks[n])
            });
            let dir = path.join(format!("node-{node}"));
            Logs::open(&dir, options).with_context(|| format!("opening {}", dir.display()))
        };
        let mut all = Self { handles: Vec::new(), replicas: vec![open(1, None)?], path: path.clone() };
        let leaders = groups(&all.replicas[0])?;
        let ids = leaders.each_ref().map(Log::log_id);
        for node in 2..=REPLICAS {
            let joined = open(node, Some(ids))?;
            for (leader, replica) in leaders.iter().zip(&groups(&joined)?) {
                let (node, directory) = (NodeId(node), replica.directory_id());
                let learner =
                    Change::AddLearner { node, directory, address: format!("memory:{}", node.get()) };
                leader.change_members(&[learner], PATIENCE)?;
                leader.change_members(&[Change::Promote(node)], PATIENCE)?;
            }
            all.replicas.push(joined);
        }
        all.handles = create_all(&all.replicas[0], count)?;
        Ok(all)
    }

    fn leader(&self) -> Result<Log> {
        let [_, leader] = groups(&self.replicas[0])?;
        ensure!(leader.role() == Role::Leader, "another replica leads");
        Ok(leader)
    }
}

/// The catalogue's group and the other one.
fn groups(logs: &Logs) -> Result<[Log; 2]> {
    let group = logs.groups().get(&GROUP).context("there is no group 1")?.clone();
    Ok([logs.system().clone(), group])
}

/// Spreads appends over the logs.
impl Appender for ManyReplicas {
    fn append(&self, record: &[u8]) -> Result<()> {
        self.handles[fastrand::usize(..self.handles.len())].append(record)?;
        Ok(())
    }
}

impl Drop for ManyReplicas {
    fn drop(&mut self) {
        self.handles.clear();
        self.replicas.clear();
        // The whole work directory is removed later.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// `threads` blocking threads over [`LOGS`] named logs on three replicas, beside as many threads on one log on three.
pub(crate) fn appends(bench: &Bench, threads: usize, record_bytes: usize) -> Result<Many> {
    let many = || {
        let logs = ManyReplicas::create(bench.dir(), LOGS)?;
        let before = logs.leader()?.metrics();
        let outcome = workload::blocking(&logs, &bench.pool, threads, record_bytes, bench.window)?;
        Ok((outcome, Blocks::between(&before, &logs.leader()?.metrics())))
    };
    let one = || {
        let replicas = Replicas::start(bench.dir(), REPLICAS, &options())?;
        workload::blocking(replicas.leader()?, &bench.pool, threads, record_bytes, bench.window)
    };
    let (many, one) = interleave(bench.rounds, many, one)?;
    let (many, blocks) = many.into_iter().unzip();
    Ok(Many { many, one, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_logs_are_on_three_replicas() {
        let dir = tempfile::tempdir().unwrap();
        let logs = ManyReplicas::create(dir.path(), 5).unwrap();
        logs.append(b"x").unwrap();
        let status = logs.leader().unwrap().status();
        assert_eq!(status.replica.voters().len(), 3);
        drop(logs);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
