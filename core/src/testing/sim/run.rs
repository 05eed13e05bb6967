//! Run: a simulation from its beginning to the verdict. The cluster is built, faults are injected and end, the
//! cluster has to recover in bounded time, and then all replicas and the whole history are checked.

use super::failover::FailOver;
use super::fault::{Counts, Fault};
use super::history::History;
use super::host::State;
use super::linear;
use super::names;
use super::oracle::Check;
use super::plan::Plan;
use super::story::{Story, Teller};
use super::world::{Event, Task, World};
use crate::cluster::options::{Bootstrap, Role};
use crate::error::ErrorKind;
use crate::store::format::segment::Base;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogNumber, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A violation of an invariant.
///
/// ```
/// let report = chiplog::sim::run(1);
/// assert!(report.violation.is_none(), "{}", report.violation.unwrap());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The time of the violation.
    pub at: Moment,
    /// A description.
    pub what: String,
    /// The last lines of the story before it.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} at {}: {}", self.seed, self.at, self.what)?;
        for line in &self.story {
            writeln!(f, "  {line}")?;
        }
        write!(f, "  (make sim SEED={} prints the whole story)", self.seed)
    }
}

/// The results of a run.
///
/// ```
/// let (a, b) = (chiplog::sim::run(2), chiplog::sim::run(2));
/// assert_eq!(a.fingerprint, b.fingerprint);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The plan of the run.
    pub plan: Plan,
    /// How much virtual time passed.
    pub simulated: Duration,
    /// How many events there were.
    pub events: u64,
    /// A digest of everything that happened.
    pub fingerprint: u64,
    /// How often each fault happened.
    pub counts: Counts,
    /// The fail-overs after a healthy cluster lost its leader.
    pub failovers: Vec<FailOver>,
    /// How many appends were acknowledged.
    pub acknowledged: u64,
    /// How many records were committed.
    pub records: u64,
    /// The number of the record at each index that was ever committed, log by log, discarded ones included.
    pub logs: BTreeMap<LogNumber, BTreeMap<Index, u64>>,
    /// How many leaders there were.
    pub leaders: u64,
    /// The reasons for which checks accepted what they look for, and how often.
    pub excuses: BTreeMap<&'static str, u64>,
    /// How often it was checked that appends are acknowledged, and that all members keep up.
    pub judged: (u64, u64),
    /// All calls of all clients.
    pub history: History,
    /// The violation, if there was one.
    pub violation: Option<Violation>,
}

/// Runs the plan of a seed.
///
/// ```
/// let report = chiplog::sim::run(3);
/// assert!(report.acknowledged > 0);
/// ```
pub fn run(seed: u64) -> Report {
    Simulation::new(Plan::of(seed)).run()
}

/// A simulation that is ready to run.
///
/// ```
/// use chiplog::sim::{Plan, Simulation};
/// let mut lines = Vec::new();
/// let report = Simulation::new(Plan::calm(1)).run();
/// lines.push(format!("{} events", report.events));
/// ```
pub struct Simulation {
    plan: Plan,
    teller: Option<Teller>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Simulation {
    /// A simulation of this plan.
    pub fn new(plan: Plan) -> Self {
        Self { plan, teller: None }
    }

    /// Passes the story to `teller`, line by line.
    #[must_use]
    pub fn tell(mut self, teller: impl FnMut(&str) + 'static) -> Self {
        self.teller = Some(Box::new(teller));
        self
    }

    /// Runs to the end, or to the first violation. A panic is a violation.
    pub fn run(self) -> Report {
        let seed = self.plan.seed;
        let mut world = World::new(self.plan, Story::new(self.teller));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            world.live()?;
            if world.plan.creators { names::play(&world.plan, &mut world.story) } else { Ok(()) }
        }));
        let wrong = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some(what),
            Err(panic) => Some(format!("panic: {}", message_of(&*panic))),
        };
        let at = world.now();
        let violation = wrong.map(|what| {
            world.story.note(at, || format!("VIOLATION: {what}"));
            for host in world.hosts.values().filter(|h| h.state != State::Gone) {
                let summary = host.machine.as_ref().map(super::machine::Machine::summary);
                world.story.note(at, || format!("  node {}: {:?} {summary:?}", host.node, host.state));
            }
            Violation { seed, at, what, story: world.story.recent().to_vec() }
        });
        Report {
            simulated: at.since(Moment::START),
            events: world.schedule.count(),
            fingerprint: world.story.hash(),
            counts: world.counts,
            failovers: world.failovers,
            acknowledged: world.oracle.acknowledged,
            records: world.oracle.contents.count() as u64,
            logs: world.oracle.contents.logs().map(|(log, records)| (log, records.clone())).collect(),
            leaders: world.oracle.leader_changes,
            excuses: world.oracle.excuses,
            judged: world.watch.judged,
            history: world.history,
            plan: world.plan,
            violation,
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// How long building the cluster may take.
const BUILDING_MAX: Duration = Duration::from_secs(120);

impl World {
    fn live(&mut self) -> Check {
        self.build()?;
        self.hang_followers();
        for client in 0..self.clients.len() {
            self.schedule.after(Duration::from_millis(client as u64), Event::Client(client));
        }
        self.schedule.after(self.plan.fault_interval, Event::Nemesis);
        self.schedule.after(self.plan.heartbeat, Event::Watch);
        if self.plan.faults.contains(&Fault::SetOptions) {
            self.schedule.after(self.plan.fault_interval / 2, Event::Options);
        }
        if self.plan.logs > 0 {
            self.schedule.after(self.plan.fault_interval / 3, Event::Tenant);
        }
        if self.vault.is_some() {
            self.schedule.after(self.plan.fault_interval / 2, Event::Pins);
        }
        if self.vault.is_some() {
            self.schedule.after(self.plan.fault_interval / 2, Event::Fill);
            self.delay_slices();
        }
        if self.plan.branches {
            self.schedule.after(self.plan.fault_interval / 2, Event::Branches);
        }
        let end = self.now().plus(self.plan.trouble);
        while self.now() < end || self.is_full_for_long() {
            self.step()?;
        }
        self.heal()?;
        self.accepts_new()?;
        self.verdict()
    }

    /// One node founds the cluster; the others are added as an operator would add them.
    pub(super) fn build(&mut self) -> Check {
        let first = self.new_host(Bootstrap::Init);
        self.start(first)?;
        self.log = self.machine(first).map(|m| m.identity().0);
        let Some(log) = self.log else { return Err("the first node does not start".to_owned()) };
        for n in 1..self.plan.voters + self.plan.learners {
            let node = self.new_host(Bootstrap::Join(log));
            self.start(node)?;
            self.order(Task::Add(node));
            if n < self.plan.voters {
                self.order(Task::Promote(node));
            }
        }
        let limit = self.now().plus(BUILDING_MAX);
        while !self.admin.is_idle() || self.is_settled().is_none() {
            if !self.step()? || self.now() > limit {
                return Err(format!("the cluster was not built in {BUILDING_MAX:?}: {:?}", self.admin));
            }
        }
        let wanted = self.plan.voters as usize;
        let voters = self.voters();
        if voters.len() != wanted {
            return Err(format!("the plan has {wanted} voters, and the cluster has {voters:?}"));
        }
        self.open_named_logs()?;
        let now = self.now();
        self.counts = Counts::default();
        self.story.note(now, || format!("the cluster is built: voters {voters:?}; {:?}", self.plan));
        Ok(())
    }

    /// Ends all faults and waits until the cluster has recovered.
    pub(in crate::testing::sim) fn heal(&mut self) -> Check {
        let now = self.now();
        self.story.note(now, || "PEACE: all faults end, clients finish their calls".to_owned());
        self.nemesis.over = true;
        self.quiet = true;
        self.drill = None;
        self.heal_all()?;
        self.recovers()
    }

    /// Waits until the cluster has recovered.
    pub(super) fn recovers(&mut self) -> Check {
        let limit = self.now().plus(self.plan.wait_limit);
        loop {
            if self.has_recovered() {
                return Ok(());
            }
            if self.now() > limit || !self.step()? {
                let ails = self.ails();
                return Err(format!(
                    "not recovered {:?} after all faults ended: {ails}",
                    self.plan.wait_limit
                ));
            }
        }
    }

    fn has_recovered(&mut self) -> bool {
        self.clients.iter().all(super::world::Client::is_idle)
            && self.tenant.is_idle()
            && self.admin.is_idle()
            && self.stragglers().is_some_and(|s| s.is_empty())
            && self.lagging_followers().is_empty()
            && self.object_to_store().is_none()
            && self.entry_to_slice().is_none()
    }

    /// The first object that was cut and is not stored, as the leader knows it.
    fn object_to_store(&mut self) -> Option<(u64, Base, Base)> {
        let leader = self.leader()?;
        self.machine(leader)?.object_to_store()
    }

    /// The first committed entry that is in no object and in no slice, as the leader knows it.
    fn entry_to_slice(&mut self) -> Option<EntryIndex> {
        let leader = self.leader()?;
        self.machine(leader)?.entry_to_slice()
    }

    /// The followers that lack entries of the leader.
    fn lagging_followers(&mut self) -> Vec<NodeId> {
        let leader = self.leader().and_then(|leader| self.machine(leader)).map(|m| m.summary().last_raft);
        leader.map(|last| self.followers_behind(last)).unwrap_or_default()
    }

    /// The members that are not in step with the leader. `None`: there is no leader.
    pub(super) fn stragglers(&mut self) -> Option<Vec<NodeId>> {
        let leader = self.leader()?;
        let voters = self.voters();
        let machine = self.machine(leader)?;
        let summary = machine.summary();
        let learners = machine.learners();
        let behind = |w: &mut Self, node: NodeId| {
            let Some(other) = w.machine(node).map(|m| m.summary()) else { return true };
            other.committed_raft != summary.last_raft
                || other.committed != summary.committed
                || other.first != summary.first
        };
        // A replica that was removed for good does not count, as long as the others have a majority.
        let here = |n: &NodeId| self.hosts.get(n).is_none_or(|h| h.state != State::Gone);
        let members: Vec<NodeId> = voters.into_iter().chain(learners).filter(here).collect();
        Some(members.into_iter().filter(|n| behind(self, *n)).collect())
    }

    /// The reasons why the cluster has not recovered, as text.
    pub(super) fn ails(&mut self) -> String {
        let mut ails = Vec::new();
        match self.stragglers() {
            None => ails.push("there is no leader".to_owned()),
            Some(nodes) if nodes.is_empty() => {}
            Some(nodes) => ails.push(format!("{nodes:?} are not in step")),
        }
        let lagging = self.lagging_followers();
        if !lagging.is_empty() {
            ails.push(format!("followers {lagging:?} lack entries"));
        }
        if let Some(object) = self.object_to_store() {
            ails.push(format!("object {object:?} is not stored"));
        }
        if let Some(entry) = self.entry_to_slice() {
            ails.push(format!("entry {entry} is in no slice"));
        }
        for host in self.hosts.values() {
            let summary = host.machine.as_ref().map(super::machine::Machine::summary);
            ails.push(format!("node {}: {:?} {summary:?}", host.node, host.state));
        }
        ails.extend(self.clients.iter().filter(|c| !c.is_idle()).map(super::world::Client::waits_for));
        ails.extend(self.admin.tasks().iter().map(|t| format!("{t:?} is not done")));
        ails.join("; ")
    }

    /// Checks that every object that is said to be stored is there, that every object that is there was cut, and that the log can
    /// be made of its objects alone.
    fn judge_objects(&mut self, leader: NodeId) -> Check {
        let Some(vault) = self.vault.clone() else { return Ok(()) };
        for _ in 0..self.oracle.object_rows.runs() {
            self.counts.add(Fault::MovedRows);
        }
        let Some(machine) = self.machine(leader) else { return Ok(()) };
        let ((stored, cut), names) = (machine.objects(), vault.names_of(machine.log()));
        if let Some(missing) = stored.iter().find(|name| !names.contains(name)) {
            return Err(format!("object {missing} is said to be stored, and is not"));
        }
        let is_mark =
            |name: &str| ["/root", "/begin/", "/pin/", "/s/", "/p/"].iter().any(|mark| name.contains(mark));
        let is_object = |name: &&String| !is_mark(name);
        if let Some(stray) = names.iter().filter(is_object).find(|name| !cut.contains(name)) {
            return Err(format!("object {stray} is stored, and was never cut"));
        }
        let needed = match vault.needed(machine.log()) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Discarded) => Vec::new(),
            needed => needed.map_err(|e| format!("the log cannot be made of its objects: {e}"))?,
        };
        match stored.iter().find(|name| !needed.contains(name)) {
            Some(lacking) => Err(format!("a log that is made of its objects alone lacks {lacking}")),
            None => Ok(()),
        }
    }

    /// Checks that all replicas have the same log, and that the history is one of a log.
    pub(in crate::testing::sim) fn verdict(&mut self) -> Check {
        let Some(leader) = self.leader() else { return Err("there is no leader".to_owned()) };
        let mut nodes = self.voters();
        nodes.extend(self.machine(leader).map(|m| m.learners()).unwrap_or_default());
        nodes.retain(|n| self.hosts.get(n).is_none_or(|h| h.state != State::Gone));
        for node in nodes {
            let Some(machine) = self.machine(node) else { return Err(format!("node {node} does not run")) };
            let read = |e| format!("node {node}: cannot read its log: {e:?}");
            let first = |log| Ok((log, machine.range(log)?.0));
            let firsts: Vec<_> =
                machine.logs().into_iter().map(first).collect::<Result<_, _>>().map_err(read)?;
            let all = machine.read_all().map_err(read)?;
            self.oracle.has_all(node, &firsts, &all)?;
            self.oracle.begins_right(node, &firsts)?;
        }
        for (node, host) in &self.hosts {
            let left = host.machine.as_ref().filter(|_| host.is_up() && self.left.contains(node));
            if left.is_some_and(|m| matches!(m.summary().role, Role::Leader)) {
                return Err(format!("node {node} was removed and leads"));
            }
        }
        self.judge_strays()?;
        self.judge_objects(leader)?;
        self.judge_unknown()?;
        self.judge_made(leader)?;
        self.judge_pins()?;
        self.judge_branches()?;
        let first = self.machine(leader).map(|leader| leader.summary().first);
        self.judge_followers(first.unwrap_or_default())?;
        let logs: BTreeSet<LogNumber> = self.history.calls.iter().map(|call| call.log).collect();
        let check = |log: &LogNumber| {
            let checked = linear::check(&self.history.of(*log), self.oracle.contents.of(*log));
            checked.map_err(|why| format!("log {log}: {why}"))
        };
        logs.iter().try_for_each(check)
    }
}
