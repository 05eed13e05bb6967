//! Host: one machine of a simulation, with its disk, its clock and its power switch. Processes on it start and end;
//! the disk remains.
//!
//! Must not know: how messages travel, clients, what a replica should do.

use super::found::{entry_on, found_on};
use super::kept::{Kept, Seal};
use super::machine::Machine;
use super::machine::state::Room;
use super::outbox::Outbox;
use super::patient;
use super::patient::{Patient, Started};
use super::plan::Plan;
use super::promises::introduces;
use super::setup::{SetClock, Setup, options_of};
use super::threads::THREADS;
use super::vault::SimVault;
use crate::cluster::options::Bootstrap;
use crate::cluster::transport::Envelope;
use crate::disk::sim::{DiskState, Rng, SimDisk};
use crate::error::Result;
use crate::options::Options;
use crate::replica::open::{RecoveredLog, open};
use crate::sync::clock::Moment;
use crate::types::{DirectoryId, EntryIndex, Index, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many messages a paused process finds when it resumes; the network drops the others.
const HELD_MAX: usize = 256;

/// How long after a disk has room again its lack still explains what a process does.
pub(super) const ROOM_IS_NOTICED: Duration = Duration::from_secs(2);

/// The state of a host's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It runs.
    Up,
    /// It is paused for a while, without noticing.
    Paused,
    /// It is off and will start again.
    Down,
    /// It is off for good.
    Gone,
}

/// The way in which a disk lost data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maimed {
    /// The disk was emptied.
    Wiped,
    /// An older state of the disk was put back.
    SetBack,
    /// A bit was flipped.
    Rotten,
}

/// A process that is being closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) began: Moment,
    /// It led a healthy cluster: the processes that ran then, by their lives.
    pub(super) well: Option<BTreeMap<NodeId, u32>>,
}

pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) disk: SimDisk,
    pub(super) machine: Option<Machine>,
    /// The process that repairs its log, instead of a machine.
    pub(super) patient: Option<Patient>,
    /// A file was damaged while it was down, and has to be repaired.
    pub(super) damaged: bool,
    /// When it was damaged, no sound block showed its newest term and vote.
    pub(super) state_lost: bool,
    /// The entry before a segment whose opening was damaged, and its term.
    pub(super) begins_behind: Option<(EntryIndex, Term)>,
    /// This life began with a repair.
    pub(super) repaired: bool,
    pub(super) state: State,
    /// Counts the processes that ran here; events of earlier ones are ignored.
    pub(super) life: u32,
    pub(super) directory: Option<DirectoryId>,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    /// The object store.
    vault: Option<Arc<SimVault>>,
    /// The clock's error, in milliseconds.
    pub(super) wrong_by_ms: i64,
    /// The next time each of its threads runs.
    pub(super) due: [Option<Moment>; THREADS],
    /// Until then a sync runs inside the step.
    pub(super) busy_until: Moment,
    /// The log is being closed.
    pub(super) closing: Option<Closing>,
    /// The messages that arrived while it was paused.
    pub(super) held: Vec<Envelope>,
    sync_time: Duration,
    /// How many times slower than usual its disk is.
    pub(super) limp: u32,
    /// The state that the running sync will make durable.
    pub(super) syncing: Option<Kept>,
    /// The running sync, or the last one, began while the disk was slow.
    pub(super) slow_sync: bool,
    pub(super) kept: Kept,
    /// An earlier state of its disk.
    pub(super) old: Option<DiskState>,
    /// The number of calls to the disk after which the power fails in the next recovery.
    pub(super) cut_recovery: Option<u64>,
    /// When its disk was last seen to be limited.
    pub(super) limited_at: Option<Moment>,
    /// Its segment files are prepared late.
    pub(super) prepares_late: bool,
    /// An event for the work of its helper thread is queued.
    pub(super) help_is_due: bool,
    /// The kinds of room that it lacked at the last check.
    pub(super) room: Room,
    /// Its disk was emptied, set back or damaged.
    pub(super) maimed: Option<Maimed>,
    /// A bit of a full segment was flipped, which a start need not notice and nothing has to repair.
    pub(super) has_rot: bool,
    /// The durable state of the disk when it was emptied or set back.
    pub(super) lost: Kept,
    /// The last term in which it voted or was a candidate, and its vote: it must never forget either.
    pub(super) promised: (Term, u64),
    /// The replicas that sent this process their introduction.
    pub(super) introduced_by: BTreeSet<NodeId>,
    /// Whether this process opened a log with other members, which have to introduce themselves.
    pub(super) has_past: bool,
    /// Calls that wait for an answer from here.
    pub(super) attempts: Vec<u64>,
    /// Positions of this life, to check that they never move back.
    pub(super) committed: Index,
    pub(super) term: Term,
    /// Its last entry, to detect a jump.
    pub(super) last_raft: EntryIndex,
    /// The last committed entry that was checked.
    pub(super) checked: EntryIndex,
    /// The voters before the current step.
    pub(super) voters: Voters,
    /// The voters before those, and the last entry for which they may have counted.
    pub(super) voters_before: Vec<(Voters, EntryIndex)>,
}

/// The voters of both halves of a configuration.
pub(super) type Voters = (Vec<NodeId>, Vec<NodeId>);

impl Host {
    pub(super) fn new(
        node: NodeId,
        bootstrap: Bootstrap,
        plan: &Plan,
        vault: Option<Arc<SimVault>>,
        rng: &mut Rng,
    ) -> Self {
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
            vault,
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
            limited_at: None,
            prepares_late: false,
            help_is_due: false,
            room: Room::default(),
            maimed: None,
            has_rot: false,
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

    /// Whether its disk is limited, or was a moment ago.
    pub(super) fn is_cramped(&self, now: Moment) -> bool {
        self.disk.is_limited() || self.limited_at.is_some_and(|at| now.since(at) < ROOM_IS_NOTICED)
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The running process.
    pub(super) fn running(&mut self) -> Option<&mut Machine> {
        if self.state == State::Up { self.machine.as_mut() } else { None }
    }

    /// Its messages that the network has not taken yet.
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
            sessions_max: plan.sessions_max.map(|n| n + (self.node.0 % 3) as u32), // different on each replica
            queue_bytes_max: plan.queue_bytes_max,
            object_scrub: plan.object_scrub,
            shared: plan.logs > 0 || plan.is_bare_group,
            vault: self.vault.clone(),
            fills: self.vault.is_some() && plan.seed % 3 == 1 && !self.node.0.is_multiple_of(2),
            seed: plan.seed ^ (self.node.0 << 32) ^ u64::from(self.life),
        }
    }

    /// The state that a replica would find here if the power failed now, in the worst case. Slow.
    /// [`kept`](Self::kept) is the state as of the last sync that the world knows of; a process may have synced
    /// since.
    pub(super) fn kept_in_truth(&self, plan: &Plan) -> Option<Kept> {
        let disk = SimDisk::new(self.disk.state().crash(|_| 0));
        found_on(&disk, &self.setup(plan)).ok()
    }

    /// The entry that its disk would show at `index` after a power cut. A discarded one counts as `known`.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(super) fn entry_in_truth(&self, plan: &Plan, index: EntryIndex, known: Seal) -> Result<Option<Seal>> {
        let disk = SimDisk::new(self.disk.state().crash(|_| 0));
        entry_on(&disk, &self.setup(plan), index, known)
    }

    /// Opens its log on another disk, and ends.
    ///
    /// # Errors
    /// Those of opening a log.
    pub(super) fn opens_on(&self, disk: &SimDisk, plan: &Plan) -> Result<()> {
        open(Arc::new(disk.clone()), &self.options(plan)).map(drop)
    }

    /// The options of its log, with a transport that leads nowhere.
    pub(super) fn options(&self, plan: &Plan) -> Options {
        let setup = self.setup(plan);
        options_of(&setup, Arc::new(Outbox::new(setup.queue_bytes_max)))
    }

    /// Replaces the disk: the data on the old one is lost.
    pub(super) fn loses(&mut self, disk: SimDisk, how: Maimed) {
        self.disk = disk;
        (self.maimed, self.has_rot) = (Some(how), false);
        self.lost = std::mem::take(&mut self.kept);
        self.promised = (Term(0), 0); // they were on the lost disk
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

    /// The repair of its log is complete.
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
        self.has_past = machine.summary().last_raft > EntryIndex(0) && !alone;
        self.syncing = None;
        self.committed = Index(0);
        self.term = Term(0);
        self.last_raft = machine.summary().last_raft;
        self.checked = EntryIndex(0);
        self.voters = machine.voters();
        self.voters_before.clear();
        (self.help_is_due, self.room) = (false, Room::default());
        machine.prepares_late(self.prepares_late);
        self.machine = Some(machine);
        self.state = State::Up;
        Ok(())
    }

    /// Ends the process for any reason: it answers no more calls.
    fn end(&mut self, state: State) -> Vec<u64> {
        self.disk.power_off(); // before the drop, so that nothing it writes while it ends counts
        (self.machine, self.patient, self.repaired) = (None, None, false);
        self.state = state;
        self.due = [None; THREADS];
        self.busy_until = Moment::START;
        self.closing = None;
        self.syncing = None;
        self.held.clear();
        std::mem::take(&mut self.attempts)
    }

    /// Cuts the power. Returns the calls that will get no answer.
    pub(super) fn cut_power(&mut self, rng: &mut Rng) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.crash_randomly(rng);
        unanswered
    }

    /// Cuts the power in the worst case: everything that was not synced is lost.
    pub(super) fn cut_power_at_worst(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.crash(|_| 0);
        unanswered
    }

    /// Kills the process; everything that it wrote stays visible.
    pub(super) fn kill(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.kill();
        self.disk.heal();
        unanswered
    }

    /// The process has closed properly; everything that it wrote stays visible.
    pub(super) fn close(&mut self) -> Vec<u64> {
        let unanswered = self.end(State::Down);
        self.disk = self.disk.kill();
        unanswered
    }

    /// The process ends for good.
    pub(super) fn retire(&mut self) -> Vec<u64> {
        self.end(State::Gone)
    }

    /// Remembers the voters, after a step.
    pub(super) fn note_voters(&mut self) {
        let Some(machine) = &self.machine else { return };
        let now = machine.voters();
        if now != self.voters {
            let before = std::mem::replace(&mut self.voters, now);
            self.voters_before.push((before, machine.summary().last_raft));
        }
    }

    /// How long a sync takes that begins now.
    pub(super) fn sync_takes(&self, rng: &mut Rng) -> Duration {
        let factor = if rng.permille(20) { 8.0 } else { 0.5 + rng.below(100) as f64 / 100.0 };
        self.sync_time.mul_f64(factor * f64::from(self.limp))
    }

    /// Delivers a message; it is lost if no process runs.
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
