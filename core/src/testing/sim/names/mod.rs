//! Names: the shipped [`Logs`] on simulated clusters, one for the catalogue and one for a group of named logs. Two programs create, find
//! and delete logs of few names beside each other, on any node, while leaders change, messages are lost, and processes are killed
//! between the steps of their calls.
//!
//! ```text
//!  node 1: process ── Logs ──┬── system log (cluster 1)     calls run on threads of their own,
//!                            └── group 1    (cluster 2)     one at a time, from one wait to the next
//! ```
//!
//! Both clusters have the same nodes. A process that ends in one of them ends in the other one, and so do the calls that it runs.
//!
//! Must not know: how calls are carried out.

mod calls;
mod judge;

use self::calls::{Answer, Call, run};
use self::judge::{Judge, Wanted};
use super::fault::Fault;
use super::host::State;
use super::oracle::Check;
use super::plan::Plan;
use super::story::Story;
use super::world::{Event, World};
use crate::api::logs::Logs;
use crate::disk::sim::Rng;
use crate::sync::clock::Moment;
use crate::sync::pause::Played;
use crate::types::{LogNumber, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long both clusters run between two looks at the calls.
const SLICE: Duration = Duration::from_millis(1);
/// How long faults are injected.
const TROUBLE: Duration = Duration::from_secs(6);
/// How long it may take until nothing is left to do, once all faults have ended.
const SETTLING_MAX: Duration = Duration::from_secs(60);
/// How often each process follows the catalogue, as a server does.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
/// How many programs there are.
const PROGRAMS: usize = 2;
/// The faults of both clusters.
const FAULTS: [Fault; 9] = [
    Fault::Loss,
    Fault::PartitionTwoWay,
    Fault::Isolate,
    Fault::PowerCut,
    Fault::PowerCutInside,
    Fault::PowerCutOfAll,
    Fault::Kill,
    Fault::Pause,
    Fault::Transfer,
];

/// A call that is running.
struct Running {
    call: Call,
    node: NodeId,
    began: Moment,
    played: Played<Answer>,
}

/// A process: the lives of its two replicas, and its named logs once they are open.
struct Process {
    lives: (u32, u32),
    logs: Option<Logs>,
    /// Opens its logs, or follows the catalogue.
    own: Option<Running>,
    own_at: Moment,
}

/// Both clusters, and the programs.
struct Pair {
    system: World,
    group: World,
    processes: BTreeMap<NodeId, Process>,
    programs: Vec<(Rng, Option<Running>)>,
    attempts: u64,
    judge: Judge,
    /// The time of both clusters: neither has an event before.
    now: Moment,
    /// Programs make no new calls.
    is_quiet: bool,
}

/// Runs both clusters and the programs of a plan, to the verdict.
pub(super) fn play(plan: &Plan, story: &mut Story) -> Check {
    let mut pair = Pair::new(plan);
    let outcome = pair.live();
    story.mix(&[pair.system.story.hash(), pair.group.story.hash(), pair.judge.answers()]);
    let recent = [&pair.system, &pair.group].map(|world| world.story.recent().to_vec());
    outcome.map_err(|why| {
        for (of, lines) in ["system log", "group"].iter().zip(recent) {
            lines.iter().for_each(|line| story.note(pair.now, || format!("{of}: {line}")));
        }
        format!("named logs: {why}")
    })
}

impl Pair {
    fn new(plan: &Plan) -> Self {
        let world = |salt: u64, is_bare_group| {
            let faults = FAULTS.into_iter().filter(|fault| plan.faults.contains(fault)).collect();
            let plan = Plan {
                seed: plan.seed ^ salt,
                voters: if plan.voters == 1 { 1 } else { 3 },
                learners: 0,
                followers: 0,
                logs: 0,
                is_bare_group,
                creators: false,
                objects: false,
                branches: false,
                plain_clients: 0,
                session_clients: 0,
                faults,
                ..plan.clone()
            };
            let mut world = World::new(plan, Story::new(None));
            world.oracle.contents.allow_foreign();
            world
        };
        let mut rng = Rng::new(plan.seed ^ 0x4a3e_0001);
        Self {
            system: world(0x5157_e300, false),
            group: world(0x6e0f_7a00, true),
            processes: BTreeMap::new(),
            programs: (0..PROGRAMS).map(|_| (rng.fork(), None)).collect(),
            attempts: 0,
            judge: Judge::default(),
            now: Moment::START,
            is_quiet: false,
        }
    }

    fn live(&mut self) -> Check {
        for world in [&mut self.system, &mut self.group] {
            world.build()?;
            world.schedule.after(world.plan.fault_interval, Event::Nemesis);
            world.schedule.after(world.plan.heartbeat, Event::Watch);
        }
        self.now = self.system.now().max(self.group.now());
        let end = self.now.plus(TROUBLE);
        while self.now < end {
            self.step()?;
        }
        self.is_quiet = true;
        self.system.heal()?;
        self.group.heal()?;
        self.now = self.now.max(self.system.now()).max(self.group.now());
        let limit = self.now.plus(SETTLING_MAX);
        loop {
            self.step()?;
            let left = self.left().or_else(|| self.lags());
            match left {
                None => break,
                Some(left) if self.now > limit => {
                    return Err(format!("{SETTLING_MAX:?} after all faults have ended {left}"));
                }
                Some(_) => {}
            }
        }
        self.judge.ends()?;
        self.system.verdict()?;
        self.group.verdict()
    }

    /// Lets both clusters run up to this time.
    fn advance(&mut self, until: Moment) -> Check {
        for world in [&mut self.system, &mut self.group] {
            while world.schedule.next_at().is_some_and(|at| at <= until) {
                world.step()?;
            }
        }
        Ok(())
    }

    /// Lets both clusters run for a while, and then the calls.
    fn step(&mut self) -> Check {
        let now = self.now.plus(SLICE);
        self.now = now;
        self.advance(now)?;
        self.end_together(now)?;
        self.judge.learn(now, self.system.oracle.contents.foreign(LogNumber::OWN, self.judge.next()))?;
        self.play_processes(now)?;
        for n in 0..self.programs.len() {
            self.play_program(n, now)?;
        }
        Ok(())
    }

    /// Ends processes of which one replica has ended, with their calls; begins those of which both replicas run.
    fn end_together(&mut self, now: Moment) -> Check {
        for node in self.system.present() {
            let life = |world: &World| {
                let host = world.hosts.get(&node)?;
                let runs = matches!(host.state, State::Up | State::Paused) && host.machine.is_some();
                runs.then_some(host.life)
            };
            let lives = (life(&self.system), life(&self.group));
            if let Some(process) = self.processes.get(&node)
                && lives != (Some(process.lives.0), Some(process.lives.1))
            {
                let was = process.lives;
                self.processes.remove(&node);
                for (_, running) in &mut self.programs {
                    if let Some(Running { call, .. }) = running.take_if(|running| running.node == node) {
                        self.judge.lost(call);
                    }
                }
                if lives.0 == Some(was.0) {
                    self.system.kill(node, Duration::from_millis(300))?;
                }
                if lives.1 == Some(was.1) {
                    self.group.kill(node, Duration::from_millis(300))?;
                }
            } else if let (Some(of_system), Some(of_group), false) =
                (lives.0, lives.1, self.processes.contains_key(&node))
            {
                let lives = (of_system, of_group);
                self.processes.insert(node, Process { lives, logs: None, own: None, own_at: now });
            }
        }
        Ok(())
    }

    /// Opens the logs of processes, and lets them follow the catalogue.
    fn play_processes(&mut self, now: Moment) -> Check {
        for node in self.system.present() {
            if !self.runs(node) {
                continue;
            }
            let Some(process) = self.processes.get_mut(&node) else { continue };
            if process.own.is_none() && process.own_at <= now {
                let handle = |world: &mut World| {
                    let machine = world.machine(node).ok_or_else(|| format!("node {node} does not run"))?;
                    machine.handle().map_err(|error| error.to_string())
                };
                let call = match &process.logs {
                    Some(logs) => Call::Settle(logs.clone()),
                    None => Call::Open(handle(&mut self.system)?, handle(&mut self.group)?),
                };
                process.own = Some(start(call, node, now)?);
            }
            if let Some((_, answer)) = played(&mut process.own, now) {
                if let Answer::Opened(Ok(logs)) = answer {
                    process.logs = Some(logs);
                }
                process.own_at = now.plus(SETTLE_INTERVAL);
            }
            self.woken(node);
        }
        Ok(())
    }

    /// Lets a program make its next call, or goes on with the one that is running.
    fn play_program(&mut self, n: usize, now: Moment) -> Check {
        let (rng, running) = &mut self.programs[n];
        if running.is_none() && !self.is_quiet && rng.permille(60) {
            // Mostly where the names are decided.
            let nodes = self.system.present();
            let node =
                self.system.leader().filter(|_| rng.permille(800)).or_else(|| rng.pick(&nodes).copied());
            let logs = node.and_then(|node| Some((node, self.processes.get(&node)?.logs.clone()?)));
            if let Some((node, logs)) = logs {
                self.attempts += 1;
                let wanted = self.judge.wants(rng, self.attempts);
                self.judge.begins(&wanted);
                *running = Some(start(Call::OfProgram(wanted, logs), node, now)?);
            }
        }
        let Some(node) = self.programs[n].1.as_ref().map(|running| running.node) else { return Ok(()) };
        if !self.runs(node) {
            return Ok(()); // it is paused
        }
        if let Some((running, answer)) = played(&mut self.programs[n].1, now) {
            self.judge
                .answered(running.call, answer, (running.began, now))
                .map_err(|why| format!("node {node}: {why}"))?;
        }
        self.woken(node);
        Ok(())
    }

    /// Whether both replicas of a node run.
    fn runs(&self, node: NodeId) -> bool {
        [&self.system, &self.group]
            .iter()
            .all(|world| world.hosts.get(&node).is_some_and(|host| host.is_up()))
    }

    /// A call may have submitted something.
    fn woken(&mut self, node: NodeId) {
        self.system.wake_called(node);
        self.group.wake_called(node);
    }

    /// Which cluster has not recovered. None: both have.
    fn lags(&mut self) -> Option<String> {
        let worlds = [("the system log", &mut self.system), ("the group", &mut self.group)];
        let lagging = worlds.into_iter().find_map(|(of, world)| {
            let has_all = world.stragglers().is_some_and(|nodes| nodes.is_empty());
            (!has_all).then(|| (of, world.ails()))
        });
        lagging.map(|(of, ails)| format!("{of} has not recovered: {ails}"))
    }

    /// The work that is left once all faults have ended. None: there is none.
    fn left(&mut self) -> Option<String> {
        if self.programs.iter().any(|(_, running)| running.is_some()) {
            return Some("a call is not answered".to_owned());
        }
        let wanted = self.judge.numbers();
        for node in self.group.present() {
            let Some(logs) = self.processes.get(&node).and_then(|process| process.logs.clone()) else {
                return Some(format!("node {node} has not opened its logs"));
            };
            let there: Vec<_> = logs.groups().get(&1).map(|group| group.logs().numbers()).unwrap_or_default();
            if let Some(orphan) = there.iter().find(|log| !wanted.contains(log)) {
                return Some(format!("node {node} has log {orphan}, which the catalogue has not"));
            }
            if let Some(lacking) = wanted.iter().find(|log| !there.contains(log)) {
                return Some(format!("node {node} lacks log {lacking} of the catalogue"));
            }
            let listed =
                logs.list().map(|list| list.into_iter().map(|info| (info.name, info.log_id)).collect());
            if listed.as_ref().ok() != Some(&self.judge.listed()) {
                return Some(format!("node {node} lists {listed:?}"));
            }
        }
        None
    }
}

fn start(call: Call, node: NodeId, now: Moment) -> Check<Running> {
    let copy = call.clone();
    let played = Played::new(move || run(copy)).map_err(|error| format!("no thread: {error}"))?;
    Ok(Running { call, node, began: now, played })
}

/// Goes on with a call. Its answer, if it has one now.
fn played(running: &mut Option<Running>, now: Moment) -> Option<(Running, Answer)> {
    let answer = running.as_mut()?.played.play(now)?;
    Some((running.take()?, answer))
}
