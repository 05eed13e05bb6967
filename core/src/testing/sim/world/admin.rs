//! Admin: changes the membership of the cluster, one task after another, as an operator would: finds the leader,
//! retries, and checks whether the change has happened.

use super::{Asker, Check, Event, World};
use crate::cluster::membership::Change;
use crate::cluster::options::Role;
use crate::error::Result as LogResult;
use crate::sync::completion::Appended;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::host::State;
use crate::testing::sim::machine::{Machine, Request};
use crate::types::NodeId;
use std::collections::VecDeque;
use std::time::Duration;

/// How long an operator waits for a change.
const PATIENCE: Duration = Duration::from_secs(5);
/// An operator gives up after this many attempts.
const TRIES_MAX: u32 = 40;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing::sim) enum Task {
    Add(NodeId),
    Promote(NodeId),
    Demote(NodeId),
    Remove(NodeId),
    /// The first node leaves and the others become voters, in one change.
    Replace {
        out: NodeId,
        into: Vec<NodeId>,
    },
    Transfer(NodeId),
    /// Cuts its power once it knows all of these as members; it stays off.
    Away {
        node: NodeId,
        knows: Vec<NodeId>,
    },
    /// Starts the node again.
    Back(NodeId),
    /// Nothing is done for this long.
    Rest(Duration),
}

/// How long a host is away without a fixed time of return.
const FOR_LONG: Duration = Duration::from_secs(3_600);

/// The tasks of an operator.
#[derive(Debug, Default)]
pub(in crate::testing::sim) struct Admin {
    tasks: VecDeque<Task>,
    attempt: Option<u64>,
    tries: u32,
    awake: bool,
    /// Whether the member that is to leave was a voter at the last request.
    voted: bool,
}

impl Admin {
    pub(in crate::testing::sim) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(in crate::testing::sim) fn tasks(&self) -> &VecDeque<Task> {
        &self.tasks
    }
}

impl Task {
    fn fault(&self) -> Option<Fault> {
        Some(match self {
            Self::Add(_) => Fault::Add,
            Self::Promote(_) => Fault::Promote,
            Self::Demote(_) => Fault::Demote,
            Self::Remove(_) => Fault::Remove,
            Self::Replace { .. } => Fault::Joint,
            Self::Transfer(_) => Fault::Transfer,
            Self::Back(_) => Fault::LongAbsence,
            Self::Away { .. } | Self::Rest(_) => return None,
        })
    }
}

impl World {
    /// Adds a task.
    pub(in crate::testing::sim) fn order(&mut self, task: Task) {
        self.admin.tasks.push_back(task);
        if !std::mem::replace(&mut self.admin.awake, true) {
            self.schedule.after(RETRY_DELAY / 10, Event::Admin);
        }
    }

    /// Replaces a member that has lost its data by a new one.
    pub(in crate::testing::sim) fn replace(&mut self, node: NodeId) -> Check {
        let Some(log) = self.log else { return Ok(()) };
        let voted = self.is_voter(node);
        self.order(Task::Remove(node));
        let fresh = self.joining_server(log)?;
        self.order(Task::Add(fresh));
        if voted {
            self.order(Task::Promote(fresh));
        }
        Ok(())
    }

    /// Whether a node is among the [`Self::voters`].
    pub(in crate::testing::sim) fn is_voter(&mut self, node: NodeId) -> bool {
        let voters = self.voters();
        voters.contains(&node)
    }

    /// The voters, as the leader knows them; without a leader, as of the newest committed change.
    pub(in crate::testing::sim) fn voters(&mut self) -> Vec<NodeId> {
        let leader = self.leader();
        let (mut voters, outgoing) = match leader.and_then(|n| self.machine(n)) {
            Some(machine) => machine.voters(),
            None => (self.oracle.config.voters.clone(), self.oracle.config.outgoing.clone()),
        };
        voters.extend(outgoing);
        voters.sort_unstable();
        voters.dedup();
        voters
    }

    pub(in crate::testing::sim) fn admin_wakes(&mut self) -> Check {
        self.admin.awake = false;
        if self.admin.attempt.is_some() {
            return Ok(());
        }
        let Some(task) = self.admin.tasks.front().cloned() else { return Ok(()) };
        self.admin.tries += 1;
        // Added and removed members have to be known for certain; other changes may have happened or not.
        let may_give_up = !matches!(task, Task::Add(_) | Task::Remove(_));
        if (may_give_up && self.admin.tries > TRIES_MAX) || self.is_void(&task) {
            return self.task_over(false);
        }
        match task {
            Task::Rest(time) => {
                self.admin.tasks.pop_front();
                self.admin.tries = 0;
                self.admin.awake = true;
                self.schedule.after(time, Event::Admin);
                return Ok(());
            }
            Task::Back(node) => return self.comes_back(node),
            Task::Away { node, ref knows } => {
                let knows_all = |m: &Machine| {
                    let ((voters, outgoing), learners) = (m.voters(), m.learners());
                    knows.iter().all(|n| voters.contains(n) || outgoing.contains(n) || learners.contains(n))
                };
                if !self.machine(node).is_some_and(|m| knows_all(m)) {
                    return self.admin_retries();
                }
                self.cut_power(node, FOR_LONG)?;
                return self.task_over(true);
            }
            _ => {}
        }
        let Some(leader) = self.leader() else { return self.admin_retries() };
        if self.has_happened(leader, &task) {
            return self.task_over(true);
        }
        let Some(request) = self.request_of(&task) else { return self.admin_retries() };
        if let Task::Remove(out) = task {
            self.admin.voted = self.is_voter(out);
        }
        match self.submit(Asker::Admin, leader, request, PATIENCE) {
            Some(Ok(attempt)) => {
                self.admin.attempt = Some(attempt);
                Ok(())
            }
            _ => self.admin_retries(),
        }
    }

    /// A host that was away starts, if it has not started before.
    fn comes_back(&mut self, node: NodeId) -> Check {
        let is_away = self.hosts.get(&node).is_some_and(|h| h.state == State::Down);
        if is_away {
            self.start(node)?;
        }
        self.task_over(is_away)
    }

    fn admin_retries(&mut self) -> Check {
        if !std::mem::replace(&mut self.admin.awake, true) {
            self.schedule.after(RETRY_DELAY, Event::Admin);
        }
        Ok(())
    }

    /// Whether the task has become pointless.
    fn is_void(&mut self, task: &Task) -> bool {
        let gone = |w: &Self, n: &NodeId| w.hosts.get(n).is_none_or(|h| h.state == State::Gone);
        match task {
            Task::Add(n) | Task::Promote(n) | Task::Transfer(n) | Task::Back(n) => gone(self, n),
            Task::Away { node, .. } => gone(self, node),
            Task::Rest(_) => false,
            Task::Replace { into, .. } => into.iter().any(|n| gone(self, n)),
            Task::Demote(n) | Task::Remove(n) => {
                let voters = self.voters();
                self.leader().is_some() && voters.contains(n) && voters.len() <= 1
            }
        }
    }

    fn has_happened(&mut self, leader: NodeId, task: &Task) -> bool {
        // Its state proves less than an answer of it: it could still forget that members have left.
        let drops = matches!(task, Task::Remove(_) | Task::Replace { .. });
        self.is_in_force(leader, task)
            && (!drops || self.machine(leader).is_some_and(|m| m.change_is_durable()))
    }

    /// Whether a change is in force for this leader, which can have learnt from the others that it is durable.
    fn is_in_force(&mut self, leader: NodeId, task: &Task) -> bool {
        let Some(machine) = self.machine(leader) else { return false };
        let ((voters, outgoing), learners) = (machine.voters(), machine.learners());
        let joint = !outgoing.is_empty();
        match task {
            Task::Add(n) => voters.contains(n) || learners.contains(n),
            Task::Promote(n) => voters.contains(n) && !joint,
            Task::Demote(n) => learners.contains(n) && !joint,
            Task::Remove(n) => !voters.contains(n) && !learners.contains(n) && !joint,
            Task::Replace { out, into } => {
                let there = into.iter().all(|n| voters.contains(n));
                !voters.contains(out) && there && !joint
            }
            Task::Away { .. } | Task::Back(_) | Task::Rest(_) => false,
            Task::Transfer(n) => leader == *n,
        }
    }

    fn request_of(&mut self, task: &Task) -> Option<Request> {
        Some(match task {
            Task::Add(node) => {
                let directory = self.hosts.get(node)?.directory?;
                let address = format!("host{node}");
                Request::Change(vec![Change::AddLearner { node: *node, directory, address }])
            }
            Task::Promote(node) => Request::Change(vec![Change::Promote(*node)]),
            Task::Demote(node) => Request::Change(vec![Change::Demote(*node)]),
            Task::Remove(node) => Request::Change(vec![Change::Remove(*node)]),
            Task::Replace { out, into } => {
                let mut changes: Vec<Change> = into.iter().map(|n| Change::Promote(*n)).collect();
                changes.push(Change::Remove(*out));
                Request::Change(changes)
            }
            Task::Transfer(node) => Request::Transfer(*node),
            Task::Away { .. } | Task::Back(_) | Task::Rest(_) => return None,
        })
    }

    pub(in crate::testing::sim) fn on_admin_result(
        &mut self,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        if self.admin.attempt.take_if(|a| *a == attempt).is_none() {
            return Ok(());
        }
        match result {
            Some((node, Ok(_))) => {
                let Some(task) = self.admin.tasks.front().cloned() else { return Ok(()) };
                // An answer has to be true. A node that does not lead any more may have forgotten the change; another leader has it.
                let leads = self.machine(node).is_some_and(|m| m.summary().role == Role::Leader);
                if leads && !matches!(task, Task::Transfer(_)) && !self.is_in_force(node, &task) {
                    return Err(format!(
                        "node {node} leads and has answered {task:?}, which has not happened there"
                    ));
                }
                self.task_over(true)
            }
            Some((_, Err(error))) => {
                let now = self.now();
                let task = self.admin.tasks.front().cloned();
                self.story.note(now, || format!("{task:?} failed: {error}"));
                self.admin_retries()
            }
            None => self.admin_retries(),
        }
    }

    /// A voter has left. If one voter remains, its power may fail at once, and the removed one is gone for good.
    fn has_left(&mut self, out: NodeId) -> Check {
        match self.voters()[..] {
            [_, _] => self.counts.add(Fault::ShrinkToTwo),
            [last] => {
                self.counts.add(Fault::ShrinkToOne);
                if self.nemesis.rng.permille(500) {
                    let now = self.now();
                    self.story
                        .note(now, || format!("TROUBLE node {last}, the only voter now, loses its power"));
                    self.retire(out)?;
                    self.cut_power(last, RETRY_DELAY)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn task_over(&mut self, done: bool) -> Check {
        self.admin.tries = 0;
        let Some(task) = self.admin.tasks.pop_front() else { return Ok(()) };
        let now = self.now();
        self.story.note(now, || format!("{task:?}: {}", if done { "done" } else { "given up" }));
        self.story.mix(&[4, now.0, u64::from(done)]);
        if done {
            if let Some(fault) = task.fault() {
                self.counts.add(fault);
            }
            if let Task::Remove(out) | Task::Replace { out, .. } = &task {
                self.nemesis.left(*out);
                self.left.insert(*out);
                self.schedule.after(Duration::from_secs(3), Event::Retire(*out));
                self.watch.on_change_in_force();
                if matches!(task, Task::Remove(_)) && std::mem::take(&mut self.admin.voted) {
                    self.has_left(*out)?;
                }
            }
        }
        self.admin_retries()
    }
}
