//! Drill: how long it takes until a new leader acknowledges appends, when the leader of a healthy cluster is lost.
//!
//! All faults end first. When every member is up, settled and in step, on its disk as well, and no old message is in
//! flight, the leader's power is cut. A probe then sends an append to the current leader again and again until one is
//! acknowledged. Meanwhile there is no other fault.

use super::{Asker, Check, Event, World};
use crate::error::Result as LogResult;
use crate::record::batch::BatchBuilder;
use crate::sync::clock::Moment;
use crate::sync::completion::Appended;
use crate::testing::sim::failover::FailOver;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::What;
use crate::testing::sim::history::{Reply, record_of};
use crate::testing::sim::machine::Request;
use crate::testing::sim::network::REPLAY_DELAY_MAX;
use crate::types::NodeId;
use std::time::Duration;

/// How often the probe sends.
const PROBE_INTERVAL: Duration = Duration::from_millis(2);
/// How long the cluster may take to settle; else there is no drill.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// The probe's number among the clients.
const PROBE: u32 = u32::MAX;

#[derive(Debug)]
pub(in crate::testing::sim) struct Drill {
    since: Moment,
    killed: Option<(NodeId, Moment)>,
    /// When the cluster settled.
    settled: Option<Moment>,
    attempt: Option<(u64, usize)>,
}

impl World {
    /// Begins a drill, if another replica can become leader.
    pub(in crate::testing::sim) fn begin_drill(&mut self) -> Check {
        let fit = self.nemesis.maimed.is_empty() && self.admin.is_idle();
        if self.voters().len() < 3 || !fit || self.drill.is_some() {
            return Ok(());
        }
        self.heal_all()?;
        let since = self.now();
        self.story.note(since, || "DRILL: all faults end, then the leader is lost".to_owned());
        self.drill = Some(Drill { since, killed: None, settled: None, attempt: None });
        self.schedule.after(PROBE_INTERVAL, Event::Probe);
        Ok(())
    }

    /// The leader, if all members are up and in step with it.
    pub(in crate::testing::sim) fn is_settled(&mut self) -> Option<NodeId> {
        let leader = self.leader()?;
        let voters = self.voters();
        let summary = self.machine(leader)?.summary();
        let learners = self.machine(leader)?.learners();
        for node in voters.into_iter().chain(learners) {
            let other = self.machine(node)?.summary();
            if other.leader != Some(leader)
                || other.term != summary.term
                || other.durable_raft.0 + 8 < summary.last_raft.0
            {
                return None;
            }
        }
        Some(leader)
    }

    pub(in crate::testing::sim) fn probe(&mut self) -> Check {
        let now = self.now();
        let Some(drill) = &self.drill else { return Ok(()) };
        let (since, killed, settled, asking) =
            (drill.since, drill.killed, drill.settled, drill.attempt.is_some());
        let Some((old, at)) = killed else {
            return self.settle_drill(since, settled);
        };
        let limit = self.plan.election_timeout * 20;
        if now.since(at) > limit {
            return Err(format!("node {old} led and was lost; no append was acknowledged within {limit:?}"));
        }
        if let Some(leader) = self.leader().filter(|_| !asking) {
            let (record, log) = (self.probe_record(), self.main_log());
            let mut builder = BatchBuilder::new();
            let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
            let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
            self.oracle.contents.proposed(log, &[record]);
            let call =
                self.history.invoke(now, PROBE, log, What::Append { records: vec![record], session: None });
            match self.submit(Asker::Probe, leader, Request::Append(log, batch), self.plan.election_timeout) {
                Some(Ok(attempt)) => {
                    if let Some(drill) = &mut self.drill {
                        drill.attempt = Some((attempt, call));
                    }
                }
                _ => self.history.answer(now, call, Reply::Refused),
            }
        }
        self.schedule.after(PROBE_INTERVAL, Event::Probe);
        Ok(())
    }

    fn settle_drill(&mut self, since: Moment, settled: Option<Moment>) -> Check {
        let now = self.now();
        self.schedule.after(PROBE_INTERVAL * 10, Event::Probe);
        if now.since(since) > SETTLE_MAX {
            self.story.note(now, || "DRILL: given up, the cluster did not settle".to_owned());
            self.drill = None;
            return Ok(());
        }
        // A majority has to remain, and messages that the faulty network still holds have to have arrived.
        let ready = self.voters().len() >= 3 && now.since(since) > REPLAY_DELAY_MAX;
        let leader = self.is_settled().filter(|_| ready);
        let settled = leader.and(settled.or(Some(now)));
        if let Some(drill) = &mut self.drill {
            drill.settled = settled;
        }
        let Some((leader, at)) = leader.zip(settled) else { return Ok(()) };
        if now.since(at) < self.plan.election_timeout {
            return Ok(());
        }
        self.counts.add(Fault::LeaderKilled);
        self.story.note(now, || format!("DRILL: node {leader} leads and loses its power"));
        if let Some(drill) = &mut self.drill {
            drill.killed = Some((leader, now));
        }
        self.cut_power(leader, self.plan.election_timeout * 6)
    }

    fn probe_record(&mut self) -> u64 {
        self.next_probe += 1;
        u64::from(PROBE) << 20 | self.next_probe
    }

    pub(in crate::testing::sim) fn on_probe_result(
        &mut self,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        let now = self.now();
        let Some(drill) = &mut self.drill else { return Ok(()) };
        let Some((_, call)) = drill.attempt.take_if(|(a, _)| *a == attempt) else { return Ok(()) };
        let killed = drill.killed;
        let Some(node) = self.append_ended(call, result)? else { return Ok(()) };
        if let Some((old, at)) = killed {
            let took = now.since(at);
            let election_timeout = self.plan.election_timeout;
            self.story
                .note(now, || format!("DRILL: node {node} acknowledges, {took:?} after node {old} was lost"));
            self.failovers.push(FailOver { took, election_timeout });
        }
        self.drill = None;
        Ok(())
    }
}
