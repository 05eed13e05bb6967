//! Host: one machine of a simulation with its disk, its clock and its power switch. The process on it comes and
//! goes; the disk stays.
//!
//! Must not know: how messages travel, clients, what a replica should do.

use super::kept::{Kept, Seal};
use super::machine::{Machine, Room, SetClock, Setup, entry_on, found_on, introduces};
use super::outbox::Outbox;
use super::patient;
use super::patient::{Patient, Started};
use super::plan::Plan;
use super::threads::THREADS;
use crate::cluster::options::Bootstrap;
use crate::cluster::transport::Envelope;
use crate::disk::sim::{DiskState, Rng, SimDisk};
use crate::error::Result;
use crate::replica::open::RecoveredLog;
use crate::sync::clock::Moment;
use crate::types::{DirectoryId, EntryIndex, Index, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Messages that a paused process finds when it wakes; the network drops more.
const HELD_MAX: usize = 256;

/// Why no process runs on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// One runs.
    Up,
    /// Stopped for a while; it knows nothing of it.
    Paused,
    /// Off; comes back by itself.
    Down,
    /// Off for good.
    Gone,
}

/// What became of data that a disk held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maimed {
    /// The disk was emptied.
    Wiped,
    /// An older state of the disk was put back.
    SetBack,
    /// A bit turned over.
    Rotten,
}

/// A process that is being closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) began: Moment,
    /// It led a cluster without trouble: the processes that ran then, by their lives.
    pub(super) well: Option<BTreeMap<NodeId, u32>>,
}

pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) disk: SimDisk,
    pub(super) machine: Option<Machine>,
    /// Instead, a process that repairs its log.
    pub(super) patient: Option<Patient>,
    /// A file was damaged while it was down, and is to be repaired.
    pub(super) damaged: bool,
    /// No sound block told its newest term and vote when it was damaged.
    pub(super) state_lost: bool,
    /// The entry before a segment whose opening was damaged, and its term.
    pub(super) begins_behind: Option<(EntryIndex, Term)>,
    /// This life began with a repair.
    pub(super) repaired: bool,
    pub(super) state: State,
    /// Counts the processes that ran here; events of an earlier one are void.
    pub(super) life: u32,
    pub(super) directory: Option<DirectoryId>,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    /// Milliseconds by which the clock is wrong.
    pub(super) wrong_by_ms: i64,
    /// When each of its threads runs next.
    pub(super) due: [Option<Moment>; THREADS],
    /// Until then a sync is carried out in the turn.
    pub(super) busy_until: Moment,
    /// The log is being closed.
    pub(super) closing: Option<Closing>,
    /// What arrived while paused.
    pub(super) held: Vec<Envelope>,
    sync_time: Duration,
    /// How many times slower than usual its disk is.
    pub(super) limp: u32,
    /// What the sync under way will make durable.
    pub(super) syncing: Option<Kept>,
    /// The sync under way, or the last one, began while the disk was slow.
    pub(super) slow_sync: bool,
    pub(super) kept: Kept,
    /// An earlier state of its disk.
    pub(super) old: Option<DiskState>,
    /// The calls to the disk after which the power fails, in the next recovery.
    pub(super) cut_recovery: Option<u64>,
    /// Its disk was too small for a while.
    pub(super) cramped: bool,
    /// Its segment files are prepared late.
    pub(super) prepares_late: bool,
    /// Somebody will do the work of its helper thread.
    pub(super) help_is_due: bool,
    /// What it lacked room for when that was last looked at.
    pub(super) room: Room,
    /// Its disk was emptied, set back or damaged.
    pub(super) maimed: Option<Maimed>,
    /// What was durable on the disk when it was emptied or set back.
    pub(super) lost: Kept,
    /// The last term that it spoke of in a vote or a candidacy, and whom it named: it has to remember both for ever.
    pub(super) promised: (Term, u64),
    /// Others that told this process what they know of it.
    pub(super) introduced_by: BTreeSet<NodeId>,
    /// Whether this process found a log with members that are to know of it.
    pub(super) has_past: bool,
    /// Calls that wait for an answer from here.
    pub(super) attempts: Vec<u64>,
    /// Positions of this life, to see that they never go back.
    pub(super) committed: Index,
    pub(super) term: Term,
    /// Its last entry, to see it jump.
    pub(super) last_raft: EntryIndex,
    /// The last committed entry that was looked at.
    pub(super) checked: EntryIndex,
    /// The voters, before the step under way.
    pub(super) voters: Voters,
    /// The voters before those, and up to which entry they may have counted.
    pub(super) voters_before: Vec<(Voters, EntryIndex)>,
}

/// The voters of both halves of a configuration.
pub(super) type Voters = (Vec<NodeId>, Vec<NodeId>);

impl Host {
    pub(super) fn new(node: NodeId, bootstrap: Bootstrap, plan: &Plan, rng: &mut Rng) -> Self {
        let disk = SimDisk::default();
        disk.forget_history();
        disk.set_chance(rng.next_u64());
        Self {
            node,
            disk,
            machine: None,
            patient: None,
            repaired: false,
            damaged: false,
            state_lost: false,
            begins_behind: None,
            state: State::Down,
            life: 0,
            directory: None,
            bootstrap,
            clock: Arc::default(),
            wrong_by_ms: rng.between(0, 200) as i64 - 100,
            due: [None; THREADS],
            busy_until: Moment::START,
            closing: None,
            held: Vec::new(),
            sync_time: plan.sync_time.mul_f64(0.5 + rng.below(100) as f64 / 100.0),
            limp: 1,
            syncing: None,
            slow_sync: false,
            kept: Kept::default(),
            old: None,
            cut_recovery: None,
            cramped: false,
            prepares_late: false,
            help_is_due: false,
            room: Room::default(),
            maimed: None,
            lost: Kept::default(),
            promised: (Term(0), 0),
            introduced_by: BTreeSet::new(),
            has_past: false,
            attempts: Vec::new(),
            committed: Index(0),
            term: Term(0),
            last_raft: EntryIndex(0),
            checked: EntryIndex(0),
            voters: Voters::default(),
            voters_before: Vec::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The running process.
    pub(super) fn running(&mut self) -> Option<&mut Machine> {
        if self.state == State::Up { self.machine.as_mut() } else { None }
    }

    /// What it has sent and the network has not taken.
    pub(super) fn outbox(&self) -> Option<Arc<Outbox>> {
        let of_patient = self.patient.as_ref().map(Patient::outbox);
        self.machine.as_ref().map(Machine::outbox).or(of_patient).cloned()
    }

    fn setup(&self, plan: &Plan) -> Setup {
        Setup {
            node: self.node,
            bootstrap: self.bootstrap,
            clock: self.clock.clone(),
            heartbeat: plan.heartbeat,
            election_timeout: plan.election_timeout,
            session_idle_max: plan.session_idle_max,
            sessions_max: plan.sessions_max.map(|n| n + (self.node.0 % 3) as u32), // not the same everywhere
            queue_bytes_max: plan.queue_bytes_max,
            seed: plan.seed ^ (self.node.0 << 32) ^ u64::from(self.life),
        }
    }

    /// What a replica would find here if the power failed now and took all that it can. Slow: what
    /// [`kept`](Self::kept) says is as of the last sync that the world knows of; a process may have synced since.
    pub(super) fn kept_in_truth(&self, plan: &Plan) -> Option<Kept> {
        let disk = SimDisk::new(self.disk.state().crash(|_| 0));
        found_on(&disk, &self.setup(plan)).ok()
    }

    /// Which entry its disk would show at `index` after a power cut. What was discarded is said to be `known`.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(super) fn entry_in_truth(&self, plan: &Plan, index: EntryIndex, known: Seal) -> Result<Option<Seal>> {
        let disk = SimDisk::new(self.disk.state().crash(|_| 0));
        entry_on(&disk, &self.setup(plan), index, known)
    }

    /// What the disk held is lost, and this stands in its place.
    pub(super) fn loses(&mut self, disk: SimDisk, how: Maimed) {
        self.disk = disk;
        self.maimed = Some(how);
        self.lost = std::mem::take(&mut self.kept);
        self.promised = (Term(0), 0); // on the disk that is gone
    }

    /// Starts a process.
    ///
    /// # Errors
    /// Those of opening a log.
    pub(super) fn start(&mut self, now: Moment, plan: &Plan) -> Result<()> {
        self.life += 1;
        self.clock.show(now, self.wrong_by_ms);
        match patient::start(&self.disk, &self.setup(plan), now)? {
            Started::Machine(machine) => self.adopt(*machine),
            Started::Patient(patient) => {
                self.directory = Some(patient.directory());
                self.bootstrap = Bootstrap::Existing;
                self.patient = Some(*patient);
                self.state = State::Up;
                Ok(())
            }
        }
    }

    /// What was damaged is repaired.
    ///
    /// # Errors
    /// Those of opening a log.
    pub(super) fn recovers(&mut self, opened: RecoveredLog, now: Moment) -> Result<()> {
        let Some(patient) = self.patient.take() else { return Ok(()) };
        self.repaired = true;
        self.adopt(patient.recover(opened, now)?)
    }

    fn adopt(&mut self, machine: Machine) -> Result<()> {
        self.directory = Some(machine.identity().1);
        self.bootstrap = Bootstrap::Existing;
        self.kept = machine.writes()?;
        self.introduced_by.clear();
        let alone = machine.voters() == (vec![self.node], Vec::new());
        self.has_past = machine.glance().last_raft > EntryIndex(0) && !alone;
        self.syncing = None;
        self.committed = Index(0);
        self.term = Term(0);
        self.last_raft = machine.glance().last_raft;
        self.checked = EntryIndex(0);
        self.voters = machine.voters();
        self.voters_before.clear();
        (self.help_is_due, self.room) = (false, Room::default());
        machine.prepares_late(self.prepares_late);
        self.machine = Some(machine);
        self.state = State::Up;
        Ok(())
    }

    /// Ends the process, as whatever ends it: it answers nobody any more.
    fn end(&mut self, state: State) -> Vec<u64> {
        self.disk.power_off(); // before it is dropped: nothing it does at its end may count
        (self.machine, self.patient, self.repaired) = (None, None, false);
        self.state = state;
        self.due = [None; THREADS];
        self.busy_until = Moment::START;
        self.closing = None;
        self.syncing = None;
        self.held.clear();
        std::mem::take(&mut self.attempts)
    }

    /// The power fails. Returns the calls that nobody will answer.
    pub(super) fn cut_power(&mut self, rng: &mut Rng) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.crash_randomly(rng);
        unanswered
    }

    /// The power fails, and nothing is left that was not synced.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub(super) fn cut_power_at_worst(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.crash(|_| 0);
        unanswered
    }

    /// The process is killed; all it wrote stays visible.
    pub(super) fn kill(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.kill();
        self.disk.heal();
        unanswered
    }

    /// The process has ended in order; all it wrote stays visible.
    pub(super) fn close(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.kill();
        unanswered
    }

    /// The process ends and never comes back.
    pub(super) fn retire(&mut self) -> Vec<u64> {
        self.end(State::Gone)
    }

    /// Remembers who votes, after a step.
    pub(super) fn note_voters(&mut self) {
        let Some(machine) = &self.machine else { return };
        let now = machine.voters();
        if now != self.voters {
            let before = std::mem::replace(&mut self.voters, now);
            self.voters_before.push((before, machine.glance().last_raft));
        }
    }

    /// How long a sync takes that begins now.
    pub(super) fn sync_takes(&self, rng: &mut Rng) -> Duration {
        let factor = if rng.permille(20) { 8.0 } else { 0.5 + rng.below(100) as f64 / 100.0 };
        self.sync_time.mul_f64(factor * f64::from(self.limp))
    }

    /// Takes a message in; one that finds no process is lost.
    pub(super) fn deliver(&mut self, envelope: Envelope) -> bool {
        if let (State::Up, Some(patient)) = (self.state, &mut self.patient) {
            patient.deliver(envelope);
            return true;
        }
        match (self.state, &mut self.machine) {
            (State::Up, Some(machine)) => {
                if introduces(&envelope) {
                    self.introduced_by.insert(envelope.from);
                }
                machine.deliver(envelope);
                true
            }
            (State::Paused, _) if self.held.len() < HELD_MAX => {
                self.held.push(envelope);
                false
            }
            _ => false,
        }
    }
}
