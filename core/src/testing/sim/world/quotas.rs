//! Quotas: in some runs the tenant's logs have capacities of their own, now and then, and discard their records once they are full.
//!
//! Then a log has large records, and more of them.
//!
//! Checked here: a leader that has all committed entries does not refuse an append of a log as full that has no capacity, or surely keeps
//! less.

use super::{Check, World};
use crate::disk::sim::Rng;
use crate::error::Error;
use crate::options::log_options::LogOption;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::record_of;
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::setup::SEGMENT_BYTES;
use crate::types::{Index, LogNumber, NodeId};

/// The bounds of capacities, in bytes.
const CAPACITY_BYTES: (u64, u64) = (128 << 10, 160 << 10);
/// The bounds of the number of requests for a log.
const REQUESTS: (u64, u64) = (60, 160);
/// At most this many bytes of a record's batch are not the record.
const OVERHEAD_BYTES: u64 = 64;

#[derive(Debug)]
pub(super) struct Quotas {
    /// None: logs have no quotas in this run.
    rng: Option<Rng>,
    /// The last append was refused because the log was full.
    is_full: bool,
}

impl Quotas {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { rng: plan.quotas.then(|| Rng::new(plan.seed ^ 0x40_07a5)), is_full: false }
    }

    /// How many requests there are for the next log. None: as many as in other runs.
    pub(super) fn requests(&mut self) -> Option<u64> {
        self.rng.as_mut().map(|rng| rng.between(REQUESTS.0, REQUESTS.1))
    }
}

impl World {
    /// A request of the tenant about the capacity of its log, instead of another one.
    pub(super) fn quota_request(&mut self, log: LogNumber) -> Option<Request> {
        let is_full = std::mem::take(&mut self.quotas.is_full);
        let rng = self.quotas.rng.as_mut()?;
        let set = |capacity| Request::SetOptions(log, vec![(LogOption::CapacityBytes, capacity)]);
        if is_full && rng.permille(300) {
            return Some(set(None));
        }
        if is_full && rng.permille(500) {
            let last = self.oracle.contents.last(log);
            let first = Index(match rng.below(3) {
                0 => last.0 + 1,
                n => last.0.saturating_sub(20 * n as u64).max(1),
            });
            self.oracle.contents.note_discard(log, first);
            return Some(Request::Discard(log, first));
        }
        let capacity = rng.between(CAPACITY_BYTES.0, CAPACITY_BYTES.1);
        let has_none = self.oracle.contents.options(log).get(LogOption::CapacityBytes).is_none();
        rng.permille(if has_none { 200 } else { 40 }).then(|| set(Some(capacity)))
    }

    /// Takes an append of the tenant that was refused at once.
    pub(super) fn quota_refuses(&mut self, node: NodeId, log: LogNumber, refusal: &Error) -> Check {
        if !refusal.is_of_one_log() {
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
        let first = contents.summaries().get(&log).map_or(Index(1), |log| log.first);
        let kept = contents
            .of(log)
            .range(first..)
            .map(|(_, record)| record_of(*record).len() as u64 + OVERHEAD_BYTES);
        // Records that were discarded can count if they are in the segment in which the log begins.
        let segment = if first == Index(1) { 0 } else { u64::from(SEGMENT_BYTES) };
        let most = kept.sum::<u64>() + segment;
        if capacity.is_some_and(|capacity| most >= capacity) {
            return Ok(());
        }
        Err(format!(
            "node {node} refuses an append of log {log}, which keeps {most} bytes at most, with the capacity {capacity:?}: {refusal}"
        ))
    }
}
