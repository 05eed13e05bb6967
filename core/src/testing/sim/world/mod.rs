//! World: hosts, the network between them, clients, and time. It processes one event after another. Each event leads
//! to calls of one machine; the machine's messages, syncs, answers and deadlines become events again.
//!
//! ```text
//!  schedule ──> event ──> a machine steps ──> envelopes ──> network ──> schedule
//!                   │              ├──────────> sync begins ─────────────^
//!                   │              ├──────────> deadline ────────────────^
//!                   │              └──────────> oracle checks; answers ──> clients
//!                   └──> client, administrator, nemesis ──> a request to a machine
//! ```
//!
//! Invariant: nothing here depends on anything but the plan and its seed: no clock, no threads, no maps without
//! order.

mod admin;
mod branches;
mod client;
mod damage;
mod drill;
mod followers;
mod full_disks;
mod joining;
mod leaving;
mod nemesis;
mod options;
mod peace;
mod pins;
mod process;
mod quotas;
mod slices;
mod tenant;
mod watch;

pub(super) use admin::Task;
pub(super) use client::Client;
use process::Burst;

use self::slices::Slices;
use super::clock::Schedule;
use super::failover::FailOver;
use super::fault::{Counts, Fault};
use super::history::History;
use super::host::{Host, State};
use super::machine::{Machine, Request};
use super::network::Network;
use super::oracle::{Check, Oracle};
use super::plan::Plan;
use super::story::Story;
use super::vault::SimVault;
use crate::cluster::options::{Bootstrap, Role};
use crate::cluster::transport::Envelope;
use crate::disk::sim::Rng;
use crate::error::Result as LogResult;
use crate::record::batch::Batch;
use crate::sync::clock::Moment;
use crate::sync::completion::{Appended, Ticket};
use crate::types::{LogId, LogNumber, NodeId};
use admin::Admin;
use branches::Branches;
use drill::Drill;
use followers::{Follower, FollowerEvent};
use full_disks::FullDisks;
use nemesis::Nemesis;
use pins::Pins;
use quotas::Quotas;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tenant::Tenant;
use watch::Watch;

#[derive(Debug)]
pub(super) enum Event {
    Deliver(Box<Envelope>),
    /// A thread runs.
    RunThread {
        node: NodeId,
        life: u32,
        thread: usize,
    },
    /// The disk has carried out a thread's sync.
    Synced {
        node: NodeId,
        life: u32,
        thread: usize,
    },
    /// A link from one process to another can accept more messages.
    Ship {
        node: NodeId,
        life: u32,
        to: NodeId,
    },
    /// A late helper thread does its work.
    Help {
        node: NodeId,
        life: u32,
    },
    /// A host that is down starts.
    Start(NodeId),
    /// A paused process resumes.
    Resume {
        node: NodeId,
        life: u32,
    },
    Client(usize),
    Expire(u64),
    Admin,
    Nemesis,
    /// The log's options are changed.
    Options,
    /// A named log comes, is used, or goes.
    Tenant,
    /// A pin is made or removed.
    Pins,
    /// A branch is made, or used.
    Branches,
    /// Whole objects are fetched.
    Fill,
    /// A lasting fault ends.
    EndTrouble(u64),
    /// The probe of a fail-over sends again.
    Probe,
    /// A host is removed for good.
    Retire(NodeId),
    Follower(usize, FollowerEvent),
    /// Checks that the cluster makes progress.
    Watch,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Client(usize),
    Admin,
    Probe,
    Options {
        /// A group of named logs must refuse the change.
        impossible: bool,
    },
    Tenant,
    /// Appends right before a close.
    Closer,
}

/// A request that a machine has not answered.
pub(super) struct Attempt {
    pub(super) asker: Asker,
    pub(super) node: NodeId,
    ticket: Ticket,
}

/// The whole simulation.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) schedule: Schedule<Event>,
    pub(super) rng: Rng,
    /// Chooses the changes of the log's options.
    pub(super) options_rng: Rng,
    pub(super) tenant: Tenant,
    /// The object store of the replicas.
    pub(super) vault: Option<Arc<SimVault>>,
    pub(super) slices: Slices,
    pub(super) pins: Pins,
    pub(super) branches: Branches,
    pub(super) full_disks: FullDisks,
    quotas: Quotas,
    pub(super) hosts: BTreeMap<NodeId, Host>,
    pub(super) network: Network,
    pub(super) clients: Vec<Client>,
    pub(super) admin: Admin,
    pub(super) nemesis: Nemesis,
    pub(super) watch: Watch,
    pub(super) oracle: Oracle,
    pub(super) history: History,
    pub(super) counts: Counts,
    pub(super) story: Story,
    pub(super) attempts: BTreeMap<u64, Attempt>,
    next_attempt: u64,
    pub(super) log: Option<LogId>,
    pub(super) next_node: u64,
    /// Clients make no new requests.
    pub(super) quiet: bool,
    /// A fail-over that is being measured, and those that were.
    pub(super) drill: Option<Drill>,
    pub(super) failovers: Vec<FailOver>,
    pub(super) next_probe: u64,
    pub(super) burst: Burst,
    pub(super) followers: Vec<Follower>,
    /// Nodes that were removed from the cluster.
    pub(super) left: BTreeSet<NodeId>,
}

impl World {
    pub(super) fn new(plan: Plan, story: Story) -> Self {
        let mut rng = Rng::new(plan.seed);
        let network = Network::new(plan.delay, rng.fork());
        let clients = (0..plan.plain_clients + plan.session_clients)
            .map(|n| Client::new(n, n >= plan.plain_clients, &plan, rng.fork()))
            .collect();
        Self {
            network,
            clients,
            admin: Admin::default(),
            nemesis: Nemesis::new(&plan, rng.fork()),
            watch: Watch::default(),
            oracle: Oracle::default(),
            history: History::default(),
            counts: Counts::default(),
            story,
            schedule: Schedule::new(),
            hosts: BTreeMap::new(),
            attempts: BTreeMap::new(),
            next_attempt: 1,
            log: None,
            next_node: 1,
            quiet: false,
            drill: None,
            failovers: Vec::new(),
            next_probe: 0,
            burst: Burst::default(),
            followers: Vec::new(),
            left: BTreeSet::new(),
            options_rng: Rng::new(plan.seed ^ 0xb710_45e7),
            tenant: Tenant::new(&plan),
            slices: Slices::default(),
            vault: plan.objects.then(|| Arc::new(SimVault::new(plan.seed, !plan.faults.is_empty()))),
            pins: Pins::new(plan.seed),
            branches: Branches::new(plan.seed),
            full_disks: FullDisks::new(&plan),
            quotas: Quotas::new(&plan),
            rng,
            plan,
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.schedule.now()
    }

    // ---- hosts ----

    /// Adds a host with a new number; it is off.
    pub(super) fn new_host(&mut self, bootstrap: Bootstrap) -> NodeId {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        let host = Host::new(node, bootstrap, &self.plan, self.vault.clone(), &mut self.rng);
        self.hosts.insert(node, host);
        node
    }

    /// Nodes with a running process.
    pub(super) fn up(&self) -> Vec<NodeId> {
        self.hosts.values().filter(|h| h.is_up()).map(|h| h.node).collect()
    }

    /// All nodes that are not gone for good.
    pub(super) fn present(&self) -> Vec<NodeId> {
        self.hosts.values().filter(|h| h.state != State::Gone).map(|h| h.node).collect()
    }

    pub(super) fn machine(&mut self, node: NodeId) -> Option<&mut Machine> {
        self.hosts.get_mut(&node)?.running()
    }

    /// The host that reports to lead in the highest term.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let leaders = self.hosts.values().filter(|h| h.is_up());
        let summaries = leaders.filter_map(|h| h.machine.as_ref().map(|m| (h.node, m.summary())));
        summaries.filter(|(_, g)| g.role == Role::Leader).max_by_key(|(_, g)| g.term).map(|(node, _)| node)
    }

    /// Starts the process of a host that is down.
    pub(super) fn start(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.state == State::Down) else { return Ok(()) };
        if let Some(calls) = host.cut_recovery.take() {
            host.disk.cut_power_after(calls);
        }
        let outcome = host.start(now, &self.plan);
        if host.disk.is_off() {
            self.counts.add(Fault::PowerCutInRecovery);
            self.story.note(now, || format!("node {node}: the power failed while it recovered"));
            let unanswered = host.cut_power(&mut self.rng);
            self.lost(unanswered)?;
            self.schedule.after(Duration::from_millis(300), Event::Start(node));
            return Ok(());
        }
        self.story.mix(&[1, node.0, u64::from(outcome.is_ok())]);
        match outcome {
            Ok(()) => {
                let (life, patient) = (host.life, host.patient.is_some());
                self.story.note(now, || format!("node {node}: starts (life {life})"));
                if patient {
                    self.story.note(now, || format!("node {node}: is damaged and repairs its log"));
                    if self.hosts.get(&node).is_some_and(|h| h.maimed.is_none()) {
                        return Err(format!("node {node} finds its log damaged although its disk is sound"));
                    }
                    return self.nurse(node);
                }
                self.begins(node)
            }
            Err(error) => self.refused_to_start(node, &error),
        }
    }

    /// A replica begins to take part.
    fn begins(&mut self, node: NodeId) -> Check {
        self.after_damage(node)?;
        let others = self.hosts.values().filter(|h| h.node != node);
        let heard = others.map(|h| h.kept.term).max().unwrap_or_default();
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        self.oracle.has_learnt(host, heard)?;
        self.oracle.opens(host)?;
        self.after_step(node)?;
        self.wake_all(node);
        Ok(())
    }

    /// Cuts the power of a host, which starts again after a while.
    pub(super) fn cut_power(&mut self, node: NodeId, back_after: Duration) -> Check {
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        let unanswered = host.cut_power(&mut self.rng);
        self.schedule.after(back_after, Event::Start(node));
        self.lost(unanswered)
    }

    /// Kills the process of a host, which starts again after a while.
    pub(super) fn kill(&mut self, node: NodeId, back_after: Duration) -> Check {
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        let unanswered = host.kill();
        self.schedule.after(back_after, Event::Start(node));
        self.lost(unanswered)
    }

    /// These requests will get no answer.
    pub(super) fn lost(&mut self, attempts: Vec<u64>) -> Check {
        for attempt in attempts {
            self.give_up(attempt)?;
        }
        Ok(())
    }

    // ---- events ----

    /// Processes the next event. False if there is none before `until`.
    pub(super) fn step(&mut self) -> Check<bool> {
        let Some(event) = self.schedule.next() else { return Ok(false) };
        let now = self.now();
        match event {
            Event::Deliver(envelope) => self.deliver(*envelope)?,
            Event::RunThread { node, life, thread } => {
                let due = |h: &Host| h.life == life && h.due[thread] == Some(now);
                if let Some(host) = self.hosts.get_mut(&node).filter(|h| due(h)) {
                    host.due[thread] = None;
                    self.run_thread(node, thread)?;
                }
            }
            Event::Synced { node, life, thread } => self.synced(node, life, thread)?,
            Event::Ship { node, life, to } => self.shipping(node, life, to)?,
            Event::Help { node, life } => self.helps(node, life)?,
            Event::Start(node) => self.start(node)?,
            Event::Resume { node, life } => self.resume(node, life)?,
            Event::Client(client) => self.client_wakes(client)?,
            Event::Expire(attempt) => {
                if self.attempts.contains_key(&attempt) {
                    self.give_up(attempt)?;
                }
            }
            Event::Admin => self.admin_wakes()?,
            Event::Nemesis => self.nemesis_wakes()?,
            Event::Options => self.options_wake()?,
            Event::Tenant => self.tenant_wakes()?,
            Event::Pins => self.pins_wake()?,
            Event::Branches => self.branches_wake()?,
            Event::Fill => self.fill_wakes()?,
            Event::EndTrouble(trouble) => self.end_trouble(trouble)?,
            Event::Probe => self.probe()?,
            Event::Retire(node) => self.retire(node)?,
            Event::Follower(n, event) => self.follower_event(n, event)?,
            Event::Watch => self.watch()?,
        }
        Ok(true)
    }

    fn deliver(&mut self, envelope: Envelope) -> Check {
        let node = envelope.to;
        self.story.mix(&[2, self.now().0, envelope.from.0, node.0, envelope.bytes() as u64]);
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        if host.deliver(envelope) {
            self.wake_called(node);
        }
        Ok(())
    }

    fn resume(&mut self, node: NodeId, life: u32) -> Check {
        let paused = |h: &Host| h.life == life && h.state == State::Paused;
        let Some(host) = self.hosts.get_mut(&node).filter(|h| paused(h)) else { return Ok(()) };
        host.state = State::Up;
        for envelope in std::mem::take(&mut host.held) {
            host.deliver(envelope);
        }
        let now = self.schedule.now();
        self.story.note(now, || format!("node {node}: resumes after a pause"));
        self.wake_all(node);
        Ok(())
    }

    /// Processes the results of a machine's step: messages, a sync, events for the story, answers, the next step.
    pub(super) fn after_step(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        if host.running().is_none() {
            return Ok(());
        }
        self.send_fresh(node)?;
        self.call_helper(node);
        self.count_room(node);
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        if self.story.is_loud() {
            let (kept, machine) = (&host.kept, host.machine.as_ref());
            if let Some(m) = machine {
                let (g, voters) = (m.summary(), m.voters());
                self.story.note(now, || {
                    format!(
                        "  node {node}: {:?} in term {}, entries {}..{}, committed {}, records to {}, durable to {}, voters {:?}",
                        g.role, g.term, g.base_raft, g.last_raft, g.committed_raft, g.committed, kept.last, voters
                    )
                });
            }
        }
        if let Some(summary) = host.machine.as_ref().map(Machine::summary) {
            let before = std::mem::replace(&mut host.last_raft, summary.last_raft);
            if summary.base_raft > before {
                self.counts.add(Fault::Jump);
                self.story
                    .note(now, || format!("node {node}: jumps from entry {before} to {}", summary.base_raft));
            }
        }
        let news = self.oracle.look(host)?;
        if let Some(wrong) = self.vault.as_ref().and_then(|vault| vault.wrong()) {
            return Err(format!("node {node}: {wrong}"));
        }
        if let Some(line) = news {
            self.story.note(now, || format!("node {node}: {line}"));
        }
        self.judge_slices(node)?;
        self.judge_puts(node)?;
        self.judge_payloads(node)?;
        self.collect_answers(node)?;
        if let Some(host) = self.hosts.get_mut(&node) {
            host.note_voters();
        }
        self.wake_called(node);
        Ok(())
    }

    // ---- requests ----

    /// Sends a request to a machine. `None`: no process runs; or the error, if it refused at once.
    pub(super) fn submit(
        &mut self,
        asker: Asker,
        node: NodeId,
        request: Request,
        wait_limit: Duration,
    ) -> Option<LogResult<u64>> {
        let now = self.now();
        let idle_max_ms = self.plan.session_idle_max.as_millis() as u64;
        let machine = self.machine(node)?;
        let ticket = match machine.submit(request, wait_limit, idle_max_ms) {
            Ok(ticket) => ticket,
            Err(error) => return Some(Err(error)),
        };
        let attempt = self.awaits_answer(asker, node, ticket, now.plus(wait_limit));
        self.wake_called(node);
        Some(Ok(attempt))
    }

    /// As [`Self::submit`], for batches of named logs that are appended together: an attempt for each.
    pub(super) fn submit_together(
        &mut self,
        asker: Asker,
        node: NodeId,
        batches: &[(LogNumber, Batch)],
        wait_limit: Duration,
    ) -> Option<LogResult<Vec<u64>>> {
        let until = self.now().plus(wait_limit);
        let tickets = match self.machine(node)?.submit_together(batches) {
            Ok(tickets) => tickets,
            Err(error) => return Some(Err(error)),
        };
        let attempts =
            tickets.into_iter().map(|ticket| self.awaits_answer(asker, node, ticket, until)).collect();
        self.wake_called(node);
        Some(Ok(attempts))
    }

    fn awaits_answer(&mut self, asker: Asker, node: NodeId, ticket: Ticket, until: Moment) -> u64 {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        self.attempts.insert(attempt, Attempt { asker, node, ticket });
        if let Some(host) = self.hosts.get_mut(&node) {
            host.attempts.push(attempt);
        }
        self.schedule.at(until, Event::Expire(attempt));
        attempt
    }

    /// Sends a request for a scenario, which polls the ticket itself.
    pub(super) fn hand(&mut self, node: NodeId, request: Request) -> Check<Ticket> {
        let Some(machine) = self.machine(node) else { return Err(format!("node {node} does not run")) };
        let ticket = machine.submit(request, Duration::from_secs(60), u64::MAX);
        self.wake_called(node);
        ticket.map_err(|e| format!("node {node} refuses at once: {e}"))
    }

    /// The answer to this attempt is not needed any more.
    pub(super) fn forget(&mut self, attempt: u64) {
        if let Some(Attempt { node, .. }) = self.attempts.remove(&attempt)
            && let Some(host) = self.hosts.get_mut(&node)
        {
            host.attempts.retain(|a| *a != attempt);
        }
    }

    /// No answer came, or none ever will.
    fn give_up(&mut self, attempt: u64) -> Check {
        let Some(asker) = self.attempts.get(&attempt).map(|a| a.asker) else { return Ok(()) };
        self.forget(attempt);
        self.answered(asker, attempt, None)
    }

    fn collect_answers(&mut self, node: NodeId) -> Check {
        let Some(host) = self.hosts.get(&node) else { return Ok(()) };
        let answers: Vec<(u64, Asker, LogResult<Appended>)> = host
            .attempts
            .iter()
            .filter_map(|id| self.attempts.get(id).map(|a| (id, a)))
            .filter_map(|(id, a)| a.ticket.poll().map(|result| (*id, a.asker, result)))
            .collect();
        for (attempt, asker, result) in answers {
            if !self.attempts.contains_key(&attempt) {
                continue; // an earlier answer made the sender give up this one
            }
            self.forget(attempt);
            let reply = result.as_ref().map_or_else(|e| u64::from(e.kind().code()) << 32, |a| a.first.0);
            self.story.mix(&[3, self.now().0, node.0, reply]);
            self.answered_at_the_end(node, asker, &result)?;
            self.answered(asker, attempt, Some((node, result)))?;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        asker: Asker,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        match asker {
            Asker::Client(client) => self.on_client_result(client, attempt, result),
            Asker::Admin => self.on_admin_result(attempt, result),
            Asker::Probe => self.on_probe_result(attempt, result),
            Asker::Options { impossible } => self.on_options_result(impossible, result.map(|(_, r)| r)),
            Asker::Tenant => self.on_tenant_result(attempt, result),
            Asker::Closer => self.on_closer_result(attempt, result),
        }
    }
}
