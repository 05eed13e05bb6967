//! Watch: checks that a cluster is never stuck while a majority is alive and connected.
//!
//! It checks once per heartbeat. When a majority of the voters has been well for a while, and they reach each other,
//! then
//! - one member leads, and the entries that it has ordered are committed;
//! - appends and sessions that clients want are acknowledged, also where a client gives up and tries again;
//! - if the network is sound, every member that has been well for as long has all entries that the cluster had when
//!   that time began, also after a restart.
//!
//! A host is well while its process runs, its disk is neither slow nor full nor damaged, and no message to or from it
//! is lost. The membership is that of the newest committed change. The membership before it counts as well, until the
//! change is in force for good: until then its leader may need a majority of both.

use super::nemesis::Trouble;
use super::{Check, Event, World};
use crate::cluster::options::Role;
use crate::sync::clock::Moment;
use crate::testing::sim::excuse;
use crate::testing::sim::host::{Host, State};
use crate::testing::sim::machine::Machine;
use crate::testing::sim::oracle::Config;
use crate::types::NodeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long a client's attempts can take, one after another, until one reaches the leader.
const CLIENT_PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Default)]
pub(in crate::testing::sim) struct Watch {
    /// When each host became well, and the life of its process.
    well: BTreeMap<NodeId, (u32, Moment)>,
    /// The leader whose disk is full, and since when both hold.
    full_leader: Option<(NodeId, Moment)>,
    /// The digest of walls and weather, and when it changed last.
    network: Option<(u64, Moment)>,
    /// The newest committed membership, and when it became known.
    config: Option<(Config, Moment)>,
    /// Earlier memberships that may still be in force.
    earlier: Vec<Config>,
    /// How many entries were committed, and when a leader last committed an entry or had none to commit.
    commits: (usize, Moment),
    /// Numbers of committed entries at past times, for as long as they are needed.
    past: VecDeque<(Moment, usize)>,
    /// How often appends were checked, and members.
    pub(in crate::testing::sim) judged: (u64, u64),
}

impl Watch {
    /// A change was reported to be in force: earlier memberships no longer count.
    pub(in crate::testing::sim) fn on_change_in_force(&mut self) {
        self.earlier.clear();
    }

    /// When the last fault between replicas ended. `None`: there is one now.
    pub(super) fn untroubled_since(&self) -> Option<Moment> {
        self.network.filter(|(signature, _)| *signature == 0).map(|(_, since)| since)
    }
}

impl World {
    /// How long a cluster may take, once everything that it needs is there.
    fn bound(&self) -> Duration {
        self.plan.election_timeout * 6 + Duration::from_secs(1)
    }

    /// How long an append may wait that a full leader has refused.
    pub(super) fn append_wait_max(&self) -> Duration {
        (self.bound() + CLIENT_PATIENCE) * 2
    }

    pub(in crate::testing::sim) fn watch(&mut self) -> Check {
        let now = self.now();
        self.schedule.after(self.plan.heartbeat, Event::Watch);
        self.observe(now);
        self.judge_full_disks(now)?;
        let bound = self.bound();
        let long = |since: Moment| now.since(since) >= bound;
        let Some((signature, since)) = self.watch.network else { return Ok(()) };
        let Some((config, known)) = self.watch.config.clone() else { return Ok(()) };
        if !long(since) || !long(known) || !self.network.weather.is_fine() || !self.network.is_fast() {
            return Ok(());
        }
        let well: BTreeSet<NodeId> =
            self.watch.well.iter().filter(|(_, (_, since))| long(*since)).map(|(node, _)| *node).collect();
        let connected = self.network.connected(&well);
        let is_enough = |c: &Config| c.has_majority(&connected);
        if !is_enough(&config) || !self.watch.earlier.iter().all(is_enough) {
            return Ok(());
        }
        self.judge_appends(now, bound, &connected)?;
        if signature == 0 { self.judge_members(now, bound, &config, &well) } else { Ok(()) }
    }

    /// Records the state of all hosts.
    fn observe(&mut self, now: Moment) {
        let signature = self.network.signature();
        if self.watch.network.is_none_or(|(s, _)| s != signature) {
            self.watch.network = Some((signature, now));
        }
        let full: BTreeSet<NodeId> = self.nemesis.full().collect();
        let full_leader = self.leader().filter(|node| full.contains(node));
        if self.watch.full_leader.map(|(node, _)| node) != full_leader {
            self.watch.full_leader = full_leader.map(|node| (node, now));
        }
        for host in self.hosts.values_mut() {
            if host.disk.is_limited() {
                host.limited_at = Some(now);
            }
            let ill = !is_free_of_faults(host) || full.contains(&host.node);
            let fresh = |(life, _): &(u32, Moment)| *life != host.life;
            if ill {
                self.watch.well.remove(&host.node);
            } else if self.watch.well.get(&host.node).is_none_or(fresh) {
                self.watch.well.insert(host.node, (host.life, now));
            }
        }
        let config = &self.oracle.config;
        match &self.watch.config {
            Some((known, _)) if known == config => {}
            before => {
                self.watch.earlier.extend(before.as_ref().map(|(c, _)| c.clone()));
                self.watch.config = Some((config.clone(), now));
            }
        }
        let in_force = |m: &Machine| {
            m.summary().role == Role::Leader
                && m.voters() == (config.voters.clone(), config.outgoing.clone())
                && m.change_is_durable()
        };
        if !self.watch.earlier.is_empty()
            && self.hosts.values().filter_map(|h| h.machine.as_ref()).any(in_force)
        {
            self.watch.earlier.clear();
        }
        let entries = self.oracle.entries();
        let last = self.leader().and_then(|n| self.machine(n)).map(|m| m.summary().last_raft.0 as usize);
        if last.is_some_and(|last| self.watch.commits.0 != entries || last <= entries) {
            self.watch.commits = (entries, now);
        }
        let bound = self.bound();
        self.watch.past.push_back((now, entries));
        while self.watch.past.get(1).is_some_and(|(at, _)| now.since(*at) >= bound) {
            self.watch.past.pop_front();
        }
    }

    /// Checks appends: a majority has been well for the time allowed.
    fn judge_appends(&mut self, now: Moment, bound: Duration, well: &BTreeSet<NodeId>) -> Check {
        self.watch.judged.0 += 1;
        let (entries, since) = self.watch.commits;
        if now.since(since) >= bound {
            let ails = self.ails();
            return Err(format!(
                "stuck: {well:?} have been well for {bound:?}; since {since} there was no leader, or no entry beyond {entries} was \
                 committed: {ails}"
            ));
        }
        let patience = bound + CLIENT_PATIENCE;
        let oldest = self.clients.iter().filter_map(|client| client.waits_since(!self.quiet)).min();
        let Some(oldest) = oldest.filter(|at| now.since(*at) >= patience) else {
            return Ok(());
        };
        let long = |(_, since): &&(u32, Moment)| now.since(*since) >= patience;
        let still: BTreeSet<NodeId> =
            self.watch.well.iter().filter(|(_, w)| long(w)).map(|(node, _)| *node).collect();
        let calm = self.watch.network.is_some_and(|(s, since)| s == 0 && long(&&(0, since)));
        if !calm || !self.oracle.config.has_majority(&still) {
            return Ok(());
        }
        // Only for so long: leadership could go back and forth between it and others.
        let is_young = now.since(oldest) < self.append_wait_max();
        if is_young && self.watch.full_leader.is_some_and(|(_, since)| now.since(since) < patience) {
            self.oracle.excuse(excuse::FULL_LEADER);
            return Ok(());
        }
        let ails = self.ails();
        Err(format!(
            "stuck: {still:?} have been well for longer than {bound:?}, and since {oldest} a client waits for an append or a \
             session: {ails}"
        ))
    }

    /// Checks members: all members that are well have the entries that the cluster had.
    fn judge_members(
        &mut self,
        now: Moment,
        bound: Duration,
        config: &Config,
        well: &BTreeSet<NodeId>,
    ) -> Check {
        let Some((at, entries)) = self.watch.past.front().copied() else { return Ok(()) };
        if now.since(at) < bound {
            return Ok(());
        }
        self.watch.judged.1 += 1;
        for node in config.voters.iter().chain(&config.outgoing).chain(&config.learners) {
            let Some(machine) = self.machine(*node).filter(|_| well.contains(node)) else { continue };
            let has = machine.summary().committed_raft.0 as usize;
            if has < entries {
                let ails = self.ails();
                return Err(format!(
                    "stuck: member {node} has been well for {bound:?} and has entries up to {has}; the cluster had {entries} \
                     then: {ails}"
                ));
            }
        }
        Ok(())
    }
}

/// Whether a host has no fault, as far as this is known outside the nemesis.
fn is_free_of_faults(host: &Host) -> bool {
    let slow = host.limp > 1 || host.prepares_late || (host.slow_sync && host.syncing.is_some());
    let poisoned = host.machine.as_ref().is_some_and(Machine::is_poisoned);
    host.state == State::Up && !slow && host.maimed.is_none() && !poisoned && host.closing.is_none()
}

impl super::Nemesis {
    /// Hosts with a full disk.
    pub(in crate::testing::sim) fn full(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.lasting().filter_map(|t| if let Trouble::Full(node) = t { Some(*node) } else { None })
    }
}
