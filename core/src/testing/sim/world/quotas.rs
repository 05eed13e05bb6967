//! Quotas: in some runs the tenant's logs have capacities of their own, now and then, and discard their records once they are full.
//!
//! Checked here: a leader that has all committed entries does not refuse an append of a log as full that has no capacity, or no records.

use super::{Check, World};
use crate::disk::sim::Rng;
use crate::error::{Error, ErrorKind};
use crate::options::log_options::LogOption;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::types::{Index, LogNumber, NodeId};

/// The bounds of capacities, in bytes: a log of a tenant has a few records.
const CAPACITY_BYTES: (u64, u64) = (1, 4_000);

#[derive(Debug)]
pub(super) struct Quotas {
    /// From a generator of its own, so that nothing else of a run depends on it. None: logs have no quotas in this run.
    rng: Option<Rng>,
    /// The last append was refused because the log was full.
    is_full: bool,
}

impl Quotas {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x40_07a5);
        Self { rng: rng.permille(300).then_some(rng), is_full: false }
    }
}

impl World {
    /// What the tenant asks for about the capacity of its log, instead of another request.
    pub(super) fn quota_request(&mut self, log: LogNumber) -> Option<Request> {
        let is_full = std::mem::take(&mut self.quotas.is_full);
        let rng = self.quotas.rng.as_mut()?;
        let set = |capacity| Request::SetOptions(log, vec![(LogOption::CapacityBytes, capacity)]);
        if is_full && rng.permille(300) {
            return Some(set(None));
        }
        if is_full && rng.permille(500) {
            let last = self.oracle.contents.last(log);
            let first = Index(last.0 + rng.below(2) as u64);
            self.oracle.contents.note_discard(log, first);
            return Some(Request::Discard(log, first));
        }
        let capacity = rng.between(CAPACITY_BYTES.0, CAPACITY_BYTES.1);
        rng.permille(100).then(|| set(Some(capacity)))
    }

    /// Takes an append of the tenant that was refused at once.
    pub(super) fn quota_refuses(&mut self, node: NodeId, log: LogNumber, refusal: &Error) -> Check {
        let is_quota = refusal.to_string().contains(LogOption::CapacityBytes.name());
        if refusal.kind() != ErrorKind::Full || !is_quota {
            return Ok(());
        }
        self.quotas.is_full = true;
        self.counts.add(Fault::LogFull);
        let has = self.machine(node).map_or(0, |machine| machine.summary().committed_raft.0 as usize);
        if has < self.oracle.entries() {
            return Ok(());
        }
        let contents = &self.oracle.contents;
        let capacity = contents.options(log).get(LogOption::CapacityBytes);
        let is_empty = contents.summaries().get(&log).is_none_or(|log| log.first >= log.next);
        match capacity {
            Some(_) if !is_empty => Ok(()),
            _ => Err(format!(
                "node {node} refuses an append of log {log}, with the capacity {capacity:?} and {}: {refusal}",
                if is_empty { "without a record" } else { "with records" }
            )),
        }
    }
}
