//! New servers: each begins with an empty disk, or in some runs with that of a follower of the whole log, as a power cut leaves it.
//!
//! Checked here: the copy can become a replica, unless it begins later than the log.

use super::{Check, World};
use crate::api::follower::FollowerLog;
use crate::cluster::options::Bootstrap;
use crate::disk::Disk;
use crate::disk::sim::{Rng, SimDisk};
use crate::error::ErrorKind;
use crate::testing::sim::fault::Fault;
use crate::types::{LogId, NodeId};
use std::sync::Arc;

/// How many of 1,000 new servers begin with a copy.
const COPIES_PERMILLE: u32 = 700;

impl World {
    /// Starts a new server that is to join the cluster of this log.
    pub(in crate::testing::sim) fn joining_server(&mut self, log: LogId) -> Check<NodeId> {
        let fresh = self.new_host(Bootstrap::Join(log));
        self.take_copy(fresh, log)?;
        self.start(fresh)?;
        Ok(fresh)
    }

    fn take_copy(&mut self, fresh: NodeId, log: LogId) -> Check {
        let mut rng = Rng::new(self.plan.seed ^ fresh.0 ^ 0xc0_91e5);
        if !self.plan.copies_join || !rng.permille(COPIES_PERMILLE) {
            return Ok(());
        }
        let leader = self.leader().and_then(|leader| self.machine(leader));
        let Some(first) = leader.map(|leader| leader.summary().first) else { return Ok(()) };
        let copies = self.disks_of_copies();
        let Some(copy) = rng.pick(&copies) else { return Ok(()) };
        let disk = SimDisk::new(copy.state().crash(|versions| rng.below(versions)));
        disk.forget_history();
        disk.set_chance(rng.next_u64());
        let (now, plan) = (self.now(), &self.plan);
        let Some(host) = self.hosts.get_mut(&fresh) else { return Ok(()) };
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        match FollowerLog::make_replica_on(&shared, log, fresh, first, &host.options(plan)) {
            Ok(()) => {
                host.disk = disk;
                self.counts.add(Fault::CopyJoined);
                self.story
                    .note(now, || format!("TROUBLE copy_joined: node {fresh} begins with a follower's copy"));
                Ok(())
            }
            // It begins later than the log, or was not made yet.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NotFound) => Ok(()),
            Err(error) => Err(format!("a copy cannot become a replica: {error}")),
        }
    }
}
