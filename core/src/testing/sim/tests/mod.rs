//! Directed tests: a few machines, driven heartbeat by heartbeat, for situations that seeds meet too rarely.
#![allow(clippy::unwrap_used, reason = "a test")]

mod introductions;
mod removals;

use super::machine::{Machine, Request};
use super::plan::OBJECT_SCRUB;
use super::setup::{SetClock, Setup};
use super::threads::Then;
use crate::cluster::membership::Change;
use crate::cluster::options::{Bootstrap, Role};
use crate::cluster::transport::Envelope;
use crate::disk::sim::SimDisk;
use crate::error::Error;
use crate::record::batch::BatchBuilder;
use crate::sync::clock::Moment;
use crate::sync::completion::Ticket;
use crate::types::{Index, LogId, LogNumber, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const HEARTBEAT: Duration = Duration::from_millis(100);
const ELECTION: Duration = Duration::from_secs(1);
/// Enough heartbeats for everything that a cluster has to do, with several elections.
const LONG: usize = 100;
const PATIENCE: Duration = Duration::from_secs(600);

/// Machines, their disks and the links between them. Messages arrive at once, in order.
struct Stage {
    machines: BTreeMap<u64, Machine>,
    disks: BTreeMap<u64, SimDisk>,
    log: Option<LogId>,
    now: Moment,
    clock: Arc<SetClock>,
    /// Links on which no message arrives, by direction.
    cut: BTreeSet<(u64, u64)>,
    /// Nodes whose syncs do not end.
    held: BTreeSet<u64>,
    /// Nodes with a running sync, and its thread.
    syncing: BTreeMap<u64, usize>,
}

impl Stage {
    /// Node 1 founds the cluster, the others join it as voters or, from `voters` on, as learners.
    fn new(voters: u64, members: u64) -> Self {
        let mut stage = Self {
            machines: BTreeMap::new(),
            disks: BTreeMap::new(),
            log: None,
            now: Moment::START,
            clock: Arc::default(),
            cut: BTreeSet::new(),
            held: BTreeSet::new(),
            syncing: BTreeMap::new(),
        };
        stage.start(1, Bootstrap::Init);
        for node in 2..=members {
            stage.join(node);
            if node <= voters {
                stage.change(1, &[Change::Promote(NodeId(node))]);
            }
        }
        stage
    }

    fn start(&mut self, node: u64, bootstrap: Bootstrap) {
        self.clock.show(self.now, 0);
        let setup = Setup {
            node: NodeId(node),
            bootstrap,
            clock: self.clock.clone(),
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION,
            session_idle_max: PATIENCE,
            sessions_max: None,
            queue_bytes_max: 1 << 20,
            object_scrub: OBJECT_SCRUB,
            shared: false,
            vault: None,
            fills: false,
            seed: node,
        };
        let disk = self.disks.entry(node).or_default();
        let machine = Machine::open(disk, &setup, self.now).unwrap();
        self.log = Some(machine.identity().0);
        self.machines.insert(node, machine);
    }

    fn join(&mut self, node: u64) {
        self.start(node, Bootstrap::Join(self.log.unwrap()));
        let directory = self.machines[&node].identity().1;
        let leader = self.leader().unwrap();
        self.change(leader, &[Change::AddLearner { node: NodeId(node), directory, address: String::new() }]);
    }

    /// Ends a process; everything that it wrote stays.
    fn stop(&mut self, node: u64) {
        self.machines.remove(&node).unwrap();
        self.syncing.remove(&node);
        let disk = self.disks[&node].kill();
        self.disks.insert(node, disk);
    }

    /// Cuts the power of a node: everything that was not synced is lost.
    fn cut_power(&mut self, node: u64) {
        self.machines.remove(&node).unwrap();
        self.syncing.remove(&node);
        let disk = self.disks[&node].crash(|_| 0);
        self.disks.insert(node, disk);
        self.held.remove(&node);
    }

    fn restart(&mut self, node: u64) {
        self.start(node, Bootstrap::Existing);
    }

    /// Lets time pass, one heartbeat after another, and processes all events.
    fn advance(&mut self, beats: usize) {
        for _ in 0..beats {
            self.now = self.now.plus(HEARTBEAT);
            self.clock.show(self.now, 0);
            self.settle();
        }
    }

    /// Processes all events that can happen now; syncs end, except for those that are held.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut sent = Vec::new();
            let mut fresh = false;
            let nodes: Vec<u64> = self.machines.keys().copied().collect();
            for node in nodes {
                while self.runs(node) {
                    fresh = true;
                }
                sent.extend(self.machines[&node].take_outgoing());
            }
            if sent.is_empty() && !fresh {
                return;
            }
            self.deliver(sent);
        }
        panic!("the replicas send messages for ever");
    }

    /// Runs one of a node's threads: the one with the running sync, unless that is held. True if there is more to do.
    fn runs(&mut self, node: u64) -> bool {
        let machine = self.machines.get_mut(&node).unwrap();
        let syncs = self.syncing.get(&node).copied();
        let thread = match syncs {
            Some(thread) if !self.held.contains(&node) => {
                machine.sync(thread).unwrap();
                self.syncing.remove(&node);
                thread
            }
            Some(thread) => 1 - thread,
            None => 0,
        };
        let then = machine.run(thread, self.now, false).0.then;
        assert!(machine.failure().is_none(), "{:?}", machine.failure());
        if then == Then::Syncing {
            self.syncing.insert(node, thread);
            return !self.held.contains(&node);
        }
        false
    }

    /// The smallest step: each machine runs one thread, and its messages arrive.
    fn creep(&mut self) {
        let mut sent = Vec::new();
        let mut quiet = true;
        let nodes: Vec<u64> = self.machines.keys().copied().collect();
        for node in nodes {
            quiet &= !self.runs(node);
            sent.extend(self.machines[&node].take_outgoing());
        }
        quiet &= sent.is_empty();
        self.deliver(sent);
        if quiet {
            self.now = self.now.plus(HEARTBEAT / 10);
            self.clock.show(self.now, 0);
        }
    }

    fn deliver(&self, sent: Vec<Envelope>) {
        for envelope in sent {
            let way = (envelope.from.0, envelope.to.0);
            if !self.cut.contains(&way)
                && let Some(machine) = self.machines.get(&way.1)
            {
                machine.deliver(envelope);
            }
        }
    }

    /// Isolates a node in both directions.
    fn cut_off(&mut self, node: u64) {
        for other in 1..10 {
            self.cut.extend([(node, other), (other, node)]);
        }
    }

    fn heal(&mut self) {
        self.cut.clear();
    }

    fn submit(&self, node: u64, request: Request) -> Ticket {
        self.machines[&node].submit(request, PATIENCE, 60_000).unwrap()
    }

    fn append(&self, node: u64, text: &str) -> Ticket {
        let mut batch = BatchBuilder::new();
        batch.push(text.as_bytes()).unwrap();
        self.submit(node, Request::Append(LogNumber::OWN, batch.build().unwrap()))
    }

    /// Lets time pass until the ticket is answered.
    fn answer(&mut self, ticket: &Ticket) -> Result<Index, Error> {
        for _ in 0..LONG {
            if let Some(outcome) = ticket.poll() {
                return outcome.map(|appended| appended.first);
            }
            self.advance(1);
        }
        panic!("no answer; {}", self.summaries());
    }

    fn change(&mut self, leader: u64, changes: &[Change]) {
        let ticket = self.submit(leader, Request::Change(changes.to_vec()));
        self.answer(&ticket).unwrap();
    }

    fn role(&self, node: u64) -> Role {
        self.machines[&node].summary().role
    }

    fn leader(&self) -> Option<u64> {
        let leads = |n: &&u64| self.role(**n) == Role::Leader;
        self.machines.keys().filter(leads).max_by_key(|n| self.machines[*n].summary().term).copied()
    }

    /// Waits for a leader among these nodes.
    fn leader_of(&mut self, nodes: &[u64]) -> u64 {
        for _ in 0..LONG {
            if let Some(leader) = self.leader().filter(|l| nodes.contains(l)) {
                return leader;
            }
            self.advance(1);
        }
        panic!("no leader; {}", self.summaries());
    }

    fn hand_over(&mut self, to: u64) {
        let leader = self.leader().unwrap();
        if leader != to {
            let ticket = self.submit(leader, Request::Transfer(NodeId(to)));
            self.answer(&ticket).unwrap();
            self.advance(5);
        }
    }

    fn committed(&self, node: u64) -> Index {
        self.machines[&node].summary().committed
    }

    fn summaries(&self) -> String {
        let each = |(node, machine): (&u64, &Machine)| format!("{node}: {:?}", machine.summary());
        self.machines.iter().map(each).collect::<Vec<_>>().join("\n")
    }
}
