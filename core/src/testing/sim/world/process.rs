//! Process: the threads of a host run, sync, fail and end; a process is closed while appends are in flight.
//!
//! Checked when a process has been closed:
//! - every request that was submitted is answered;
//! - no append that was submitted before is refused, if a majority ran, was connected and had sound disks.

use super::full_disks::{judge_room, use_of};
use super::{Asker, Check, Event, World};
use crate::cluster::options::Role;
use crate::error::Result as LogResult;
use crate::record::batch::BatchBuilder;
use crate::sync::clock::Moment;
use crate::sync::completion::Appended;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::{Reply, What, record_of};
use crate::testing::sim::host::{Closing, State};
use crate::testing::sim::machine::{Machine, Request};
use crate::testing::sim::threads::{THREADS, Then};
use crate::types::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread wakes within this time after work has arrived; more work gathers meanwhile, as behind a busy thread.
const TURN_DELAY_MAX: Duration = Duration::from_micros(100);
/// How often a thread stops between the step under the node lock and the work after it, in thousandths.
const LINGERS: u32 = 150;
/// How many appends are submitted right before a close.
const BURST_MAX: u64 = 40;
/// The number of the client that submits them.
const CLOSER: u32 = 901;

/// Appends that are submitted right before a close, and their calls in the history.
#[derive(Debug, Default)]
pub(in crate::testing::sim) struct Burst {
    calls: BTreeMap<u64, usize>,
    records: u64,
}

impl World {
    /// The delay until a woken thread runs.
    fn turn_delay(&mut self) -> Duration {
        Duration::from_nanos(self.rng.between(1_000, TURN_DELAY_MAX.as_nanos() as u64))
    }

    /// Wakes the threads that the queue has notified.
    pub(in crate::testing::sim) fn wake_called(&mut self, node: NodeId) {
        if self.hosts.get(&node).is_some_and(|h| h.patient.is_some()) {
            let delay = self.turn_delay();
            self.run_at(node, 0, self.now().plus(delay));
            return;
        }
        let Self { hosts, rng, .. } = self;
        let Some(machine) = hosts.get_mut(&node).and_then(|h| h.running()) else { return };
        for thread in machine.called(rng) {
            let delay = self.turn_delay();
            self.run_at(node, thread, self.now().plus(delay));
        }
    }

    /// Wakes all threads: a thread may wake without a reason.
    pub(in crate::testing::sim) fn wake_all(&mut self, node: NodeId) {
        for thread in 0..THREADS {
            let delay = self.turn_delay();
            self.run_at(node, thread, self.now().plus(delay));
        }
    }

    /// Lets a thread run at this time, and at no other.
    pub(super) fn run_at(&mut self, node: NodeId, thread: usize, at: Moment) {
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.is_up()) else { return };
        let at = at.max(host.busy_until);
        host.due[thread] = Some(at);
        self.schedule.at(at, Event::RunThread { node, life: host.life, thread });
    }

    /// Runs a thread.
    pub(super) fn run_thread(&mut self, node: NodeId, thread: usize) -> Check {
        let now = self.now();
        let linger = self.rng.permille(LINGERS);
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        if now < host.busy_until {
            let until = host.busy_until;
            self.run_at(node, thread, until);
            return Ok(());
        }
        if host.patient.is_some() {
            return if thread == 0 { self.nurse(node) } else { Ok(()) };
        }
        host.clock.show(now, host.wrong_by_ms);
        let before = use_of(host);
        let Some(machine) = host.running() else { return Ok(()) };
        let (ran, synced) = machine.run(thread, now, linger);
        if ran.began_sync {
            host.syncing = machine.writes().ok();
            host.slow_sync = host.limp > 1;
        } else if synced {
            if let Ok(kept) = machine.writes() {
                host.kept = kept;
            }
            host.slow_sync = host.limp > 1;
            let takes = host.sync_takes(&mut self.rng);
            host.busy_until = now.plus(takes);
        }
        judge_room(host, before)?;
        let life = host.life;
        match ran.then {
            Then::At(at) | Then::Asleep(Some(at)) => self.run_at(node, thread, at),
            Then::Syncing => {
                let takes = host.sync_takes(&mut self.rng);
                self.schedule.after(takes, Event::Synced { node, life, thread });
            }
            Then::Asleep(None) | Then::Ended => {}
        }
        self.settle(node)
    }

    /// The disk has carried out a thread's sync.
    pub(super) fn synced(&mut self, node: NodeId, life: u32, thread: usize) -> Check {
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.life == life) else { return Ok(()) };
        if host.state == State::Paused {
            // The disk continues; the process learns of it when it resumes.
            self.schedule.after(Duration::from_millis(10), Event::Synced { node, life, thread });
            return Ok(());
        }
        let Some(machine) = host.running() else { return Ok(()) };
        if machine.sync(thread).is_ok()
            && let Some(kept) = host.syncing.take()
        {
            host.kept = kept;
        }
        let delay = self.turn_delay();
        self.run_at(node, thread, self.now().plus(delay));
        self.settle(node)
    }

    /// After a step of a machine: the power of its disk may have failed, the machine may have failed, or it may have
    /// ended.
    pub(super) fn settle(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        if host.disk.is_off() {
            self.counts.add(Fault::PowerCutInside);
            self.story.note(now, || format!("node {node}: the power failed during a call to the disk"));
            // Else they would be judged as those of the next node that makes a step.
            self.vault.iter().for_each(|vault| drop((vault.take_begins(), vault.take_payloads())));
            let after = self.rng.between(100, 4000);
            return self.cut_power(node, Duration::from_millis(after));
        }
        let Some(machine) = host.running() else { return Ok(()) };
        let (failure, over) = (machine.failure(), machine.is_over());
        // The first thread that ends reports the error.
        let Some(error) = failure.filter(|_| machine.is_poisoned()) else {
            self.after_step(node)?;
            return if over { self.has_ended(node) } else { Ok(()) };
        };
        self.story.note(now, || format!("node {node}: poisoned: {error}"));
        self.oracle.may_fail(host, &error)?;
        host.closing = None;
        self.after_step(node)?;
        let back = self.rng.between(200, 3000);
        self.kill(node, Duration::from_millis(back))
    }

    // ---- closing ----

    /// Closes a process, mostly the leader's, with appends in flight.
    pub(super) fn close(&mut self, node: NodeId) -> Check {
        let node = self.leader().filter(|_| self.nemesis.rng.permille(700)).unwrap_or(node);
        if self.hosts.get(&node).is_none_or(|h| h.closing.is_some()) {
            return Ok(());
        }
        for _ in 0..self.nemesis.rng.between(0, BURST_MAX) {
            self.hand_in(node)?;
        }
        let now = self.now();
        let well = self.is_free_of_trouble(node);
        self.story.note(now, || {
            format!("TROUBLE close at node {node}{}", if well { ", the cluster is healthy" } else { "" })
        });
        self.counts.add(Fault::Close);
        let lives = self.hosts.values().filter(|h| h.is_up()).map(|h| (h.node, h.life)).collect();
        if let Some(host) = self.hosts.get_mut(&node) {
            host.closing = Some(Closing { began: now, well: well.then_some(lives) });
            if let Some(machine) = host.running() {
                machine.close();
            }
        }
        self.wake_called(node);
        Ok(())
    }

    /// Whether this node leads a cluster in which nothing prevents it from committing.
    fn is_free_of_trouble(&mut self, node: NodeId) -> bool {
        let voters = self.voters();
        let now = self.now();
        let sound = |w: &Self, n: &NodeId| {
            w.hosts.get(n).is_some_and(|h| {
                let is_sound = h.maimed.is_none() && !h.is_cramped(now) && h.disk.faults_fired() == 0;
                h.is_up() && h.limp == 1 && is_sound
            })
        };
        let leads = self.hosts.get(&node).and_then(|h| h.machine.as_ref()).map(Machine::summary);
        let leads = leads.filter(|g| g.role == Role::Leader && g.leader == Some(node));
        // The others follow it.
        let follow = leads.is_some_and(|g| {
            voters.iter().all(|n| {
                let summary = self.hosts.get(n).and_then(|h| h.machine.as_ref()).map(Machine::summary);
                summary.is_some_and(|o| o.term == g.term && o.leader == Some(node))
            })
        });
        // A log that is closed gives up appends that no majority seems to commit: the others need time to answer
        // again.
        let answers = self.plan.heartbeat * 4;
        let reached = self.watch.untroubled_since().is_some_and(|since| now.since(since) >= answers);
        follow
            && reached
            && self.leader() == Some(node)
            && voters.contains(&node)
            && voters.iter().all(|n| sound(self, n))
            && self.network.is_sound()
            && self.nemesis.is_quiet()
            && self.admin.is_idle()
            && self.drill.is_none()
    }

    /// Submits an append whose answer only the check at the end needs.
    fn hand_in(&mut self, node: NodeId) -> Check {
        let (now, log) = (self.now(), self.main_log());
        self.burst.records += 1;
        let record = u64::from(CLOSER) << 40 | self.burst.records;
        let mut builder = BatchBuilder::new();
        let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
        let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
        self.oracle.contents.proposed(log, &[record]);
        let call =
            self.history.invoke(now, CLOSER, log, What::Append { records: vec![record], session: None });
        match self.submit(Asker::Closer, node, Request::Append(log, batch), Duration::from_secs(60)) {
            Some(Ok(attempt)) => _ = self.burst.calls.insert(attempt, call),
            _ => self.history.answer(now, call, Reply::Refused),
        }
        Ok(())
    }

    pub(super) fn on_closer_result(
        &mut self,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        let Some(call) = self.burst.calls.remove(&attempt) else { return Ok(()) };
        self.append_ended(call, result).map(drop)
    }

    /// An answer from a process that is being closed.
    pub(super) fn answered_at_the_end(
        &mut self,
        node: NodeId,
        asker: Asker,
        result: &LogResult<Appended>,
    ) -> Check {
        let now = self.now();
        let Some(error) = result.as_ref().err().filter(|_| asker == Asker::Closer) else { return Ok(()) };
        let Some(closing) = self.hosts.get(&node).and_then(|h| h.closing.as_ref()) else { return Ok(()) };
        let same = |lives: &BTreeMap<NodeId, u32>| {
            lives.iter().all(|(n, life)| self.hosts.get(n).is_some_and(|h| h.is_up() && h.life == *life))
        };
        let well = closing.well.as_ref().is_some_and(same)
            && self.network.is_sound()
            && self.nemesis.is_quiet()
            && self.hosts.values().all(|h| h.disk.faults_fired() == 0 && !h.is_cramped(now))
            && now.since(closing.began) < self.plan.election_timeout;
        if well {
            return Err(format!(
                "node {node} was closed {:?} ago in a healthy cluster, and did not commit an append that it had: {error:?}",
                now.since(closing.began)
            ));
        }
        Ok(())
    }

    /// The threads of a process have ended: it was closed.
    fn has_ended(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        let took = host.closing.as_ref().map(|c| now.since(c.began));
        let unanswered = host.close();
        if !unanswered.is_empty() {
            return Err(format!(
                "node {node} was closed and left {} calls without an answer",
                unanswered.len()
            ));
        }
        self.story.note(now, || format!("node {node}: closed, after {took:?}"));
        let back = self.rng.between(50, 5000);
        self.schedule.after(Duration::from_millis(back), Event::Start(node));
        Ok(())
    }
}
