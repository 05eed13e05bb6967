//! Branches: makes branches of the log, and branches of those, now and then, and uses each as a log of its own, whatever happens to the
//! log that they are made of: it discards records, deletes objects, changes its leader.
//!
//! Invariants, checked here:
//! - a branch is made whole, or refused for a reason that the log or a fault of the object store explains;
//! - from its first record to the one with which it was made it has what the log had there, and then what was appended to it alone;
//! - every append that it has answered is there after a crash;
//! - no object of another log that it reads is ever deleted.
//!
//! A branch is one replica in virtual time, without a network: its steps are made when it is used. It and its maker reach the object
//! store with faults of their own, so that those of the replicas stay as they are.

use super::{Check, Event, World};
use crate::backup::restore::RestoreTo;
use crate::backup::{Branch, BranchOptions};
use crate::cluster::options::Bootstrap;
use crate::disk::sim::{Rng, SimDisk};
use crate::error::{Error, ErrorKind};
use crate::record::batch::BatchBuilder;
use crate::sync::clock::Moment;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::{What, number_of, record_of};
use crate::testing::sim::machine::{Machine, Request};
use crate::testing::sim::plan::Plan;
use crate::testing::sim::setup::{SetClock, Setup};
use crate::testing::sim::threads::{Records, Then};
use crate::testing::sim::vault::SimVault;
use crate::types::{Index, LogId, LogNumber, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most branches of a run.
const BRANCHES_MAX: usize = 3;
/// The number of the client that appends to branches.
const WRITER: u64 = 905;
/// The most steps that a branch makes at a time. An append needs a few.
const STEPS_MAX: usize = 500;

/// The branches of a simulation.
pub(in crate::testing::sim) struct Branches {
    rng: Rng,
    made: Vec<Made>,
    attempts: u64,
    records: u64,
    /// The records that were appended to branches, append by append.
    appends: Vec<Vec<u64>>,
}

/// A branch that was made.
struct Made {
    log: LogId,
    disk: SimDisk,
    setup: Setup,
    machine: Option<Machine>,
    vault: Arc<SimVault>,
    /// The number of each record that it has to have, discarded ones too.
    records: BTreeMap<Index, u64>,
    first: Index,
}

impl Branches {
    pub(in crate::testing::sim) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed ^ 0xb4_a7c4),
            made: Vec::new(),
            attempts: 0,
            records: 0,
            appends: Vec::new(),
        }
    }
}

impl Made {
    /// Opens the branch.
    fn open(&mut self, now: Moment) -> Result<(), Error> {
        self.setup.seed = self.setup.seed.wrapping_add(1);
        self.machine = Some(Machine::open(&self.disk, &self.setup, now)?);
        Ok(())
    }

    /// Does all that can be done now, and reads on.
    fn step(&mut self, now: Moment) -> Check {
        let log = self.log;
        let Some(machine) = &mut self.machine else { return Ok(()) };
        for _ in 0..STEPS_MAX {
            match machine.run(0, now, false).0.then {
                Then::Syncing => machine.sync(0).map_err(|e| format!("branch {log}: a sync fails: {e}"))?,
                Then::Asleep(_) | Then::Ended => break,
                Then::At(_) => {}
            }
        }
        if let Some(failure) = machine.failure() {
            return Err(format!("branch {log} has failed although its disk is sound: {failure:?}"));
        }
        drop(machine.take_outgoing());
        let fresh = machine.read_on().map_err(|e| format!("branch {log} cannot read its records: {e:?}"))?;
        self.is_right(&fresh)
    }

    /// Checks records that it returns.
    fn is_right(&self, found: &Records) -> Check {
        for (_, index, record) in found {
            let wanted = self.records.get(index);
            if wanted.is_none() || number_of(record).as_ref() != wanted {
                let there = number_of(record);
                return Err(format!(
                    "branch {} has record {there:?} at {index}; it has to be {wanted:?}",
                    self.log
                ));
            }
        }
        Ok(())
    }

    /// Appends, and waits until that is answered.
    fn append(&mut self, numbers: &[u64], now: Moment) -> Check {
        let mut builder = BatchBuilder::new();
        let built = numbers.iter().try_for_each(|n| builder.push(&record_of(*n)).map(drop));
        let batch = built.and_then(|()| builder.build()).map_err(|e| format!("cannot build a batch: {e}"))?;
        let Some(machine) = &self.machine else { return Ok(()) };
        let next = self.records.last_key_value().map_or(self.first, |(last, _)| last.next());
        let wrong = |why: String| Err(format!("branch {}: an append at {next}: {why}", self.log));
        let ticket =
            match machine.submit(Request::Append(LogNumber::OWN, batch), Duration::from_secs(1), u64::MAX) {
                Ok(ticket) => ticket,
                Err(error) => return wrong(error.to_string()),
            };
        self.records.extend(numbers.iter().enumerate().map(|(n, number)| (next.plus(n as u64), *number)));
        self.step(now)?;
        match ticket.poll() {
            Some(Ok(appended)) if appended.first == next => Ok(()),
            answer => Err(format!("branch {}: an append at {next} was answered with {answer:?}", self.log)),
        }
    }

    /// Discards records.
    fn discard(&mut self, first: Index, now: Moment) -> Check {
        let Some(machine) = &self.machine else { return Ok(()) };
        let request = Request::Discard(LogNumber::OWN, first);
        let ticket = machine.submit(request, Duration::from_secs(1), u64::MAX);
        let ticket = ticket.map_err(|e| format!("branch {} refuses a discard: {e}", self.log))?;
        self.step(now)?;
        match ticket.poll() {
            Some(Ok(_)) => {
                self.first = self.first.max(first);
                Ok(())
            }
            answer => Err(format!("branch {}: a discard was answered with {answer:?}", self.log)),
        }
    }

    /// The power fails, or the process is killed.
    fn crash(&mut self, power: bool, rng: &mut Rng) {
        self.disk.power_off(); // before the drop, so that nothing it writes while it ends counts
        self.machine = None;
        self.disk = if power { self.disk.crash_randomly(rng) } else { self.disk.kill() };
    }

    /// Checks that no object of another log that it reads is missing.
    fn has_objects(&self) -> Check {
        let missing =
            self.vault.missing_of_branch(self.log).map_err(|e| format!("branch {}: {e}", self.log))?;
        match missing {
            0 => Ok(()),
            _ => Err(format!("{missing} objects that branch {} reads from other logs are missing", self.log)),
        }
    }
}

impl World {
    /// Makes a branch, or uses one, and schedules the next time.
    pub(in crate::testing::sim) fn branches_wake(&mut self) -> Check {
        if self.nemesis.over {
            return Ok(());
        }
        if self.branches.made.len() < BRANCHES_MAX && self.branches.rng.permille(400) {
            self.make_branch()?;
        } else {
            self.use_branch()?;
        }
        let next = Duration::from_millis(self.branches.rng.between(100, 1_000));
        self.schedule.after(next, Event::Branches);
        Ok(())
    }

    fn make_branch(&mut self) -> Check {
        let (now, seed) = (self.now(), self.plan.seed);
        let Some((vault, parent)) = self.vault.clone().zip(self.log) else { return Ok(()) };
        let Branches { rng, made, attempts, .. } = &mut self.branches;
        *attempts += 1;
        let vault = Arc::new(vault.beside(seed ^ *attempts << 32, !self.plan.faults.is_empty()));
        let of = made.get(rng.below(made.len() + 2));
        let (log, records) = match of {
            Some(of) => (of.log, of.records.clone()),
            None => (parent, self.oracle.contents.of(LogNumber::OWN).clone()),
        };
        // Objects that count as stored are there, unless all their records are discarded. A replica that has just started does not know yet
        // how far that is: another one may have deleted objects since.
        let known = of.and_then(|of| of.machine.as_ref());
        let (stored, first) = match known {
            Some(machine) => (machine.stored_upto(), machine.summary().first),
            None if of.is_none() => (self.oracle.object_rows.stored_upto(), self.oracle.first()),
            None => Default::default(),
        };
        let stored = if stored < first { Index(0) } else { stored };
        let last = records.last_key_value().map_or(1, |(last, _)| last.get());
        let to = match rng.permille(500) {
            true => RestoreTo::End,
            false => RestoreTo::Index(Index(rng.between(1, last))),
        };
        let disk = SimDisk::default();
        disk.forget_history();
        disk.set_chance(rng.next_u64());
        let options = BranchOptions::default().to(to);
        let branch = Branch::make_on(&*vault, log, Arc::new(disk.clone()), &options);
        let branch = match branch {
            Ok(branch) => branch,
            Err(error) => {
                self.story.note(now, || format!("no branch of {log} up to {to:?}: {:?}", error.kind()));
                let is_within = |to: Index| {
                    let pair = records.get(&to).copied().zip(records.get(&to.next()).copied());
                    pair.is_some_and(|(one, next)| self.follow_in_an_append(one, next))
                };
                let may_lack = |to: Index| to > stored || is_within(to);
                return is_refused(
                    &error,
                    &vault,
                    stored,
                    matches!(to, RestoreTo::Index(to) if may_lack(to)),
                );
            }
        };
        let (first, last) = (branch.first, branch.last);
        self.story.note(now, || {
            format!("branch {} of {log} up to {to:?} is made: {first} to {last}", branch.log_id)
        });
        self.counts.add(Fault::BranchMade);
        let wrong = |why: &str| {
            Err(format!("branch {} of {log} up to {to:?} has {first} to {last}: {why}", branch.log_id))
        };
        if let RestoreTo::Index(to) = to {
            // An append that has this record and later ones is left out.
            let behind = records.range(last.next()..).take_while(|(index, _)| **index <= to);
            let lacks: Vec<u64> = behind.map(|(_, number)| *number).collect();
            let next = records.range(to.next()..).next().map(|(_, number)| *number);
            if last > to || !(lacks.is_empty() || self.are_one_append(&lacks, next)) {
                return wrong("it ends elsewhere");
            }
        } else if last < stored && vault.faults() == 0 {
            return wrong("it lacks records that are in objects");
        }
        let behind = records.range(last.next()..).next().map(|(_, number)| *number);
        if let Some((ends, behind)) = records.get(&last).copied().zip(behind)
            && self.follow_in_an_append(ends, behind)
        {
            return wrong("it ends within an append");
        }
        let records: BTreeMap<Index, u64> =
            records.range(..=last).map(|(index, number)| (*index, *number)).collect();
        if last >= first && !records.contains_key(&last) {
            return wrong("its last record was never committed");
        }
        let setup = setup_of(&self.plan, vault.clone(), seed ^ self.branches.attempts << 40);
        let mut made = Made { log: branch.log_id, disk, setup, machine: None, vault, records, first };
        made.has_objects()?;
        made.open(now).map_err(|e| format!("branch {} does not open: {e:?}", made.log))?;
        made.step(now)?;
        self.branches.made.push(made);
        Ok(())
    }

    /// Whether these records, and this one behind them, were appended together.
    fn are_one_append(&self, records: &[u64], next: Option<u64>) -> bool {
        let Some(next) = next else { return false };
        let has_all =
            |append: &[u64]| append.contains(&next) && records.iter().all(|record| append.contains(record));
        self.all_appends().any(has_all)
    }

    /// Whether an append has these two records one after the other.
    fn follow_in_an_append(&self, one: u64, next: u64) -> bool {
        self.all_appends().any(|append| append.windows(2).any(|pair| pair == [one, next]))
    }

    fn all_appends(&self) -> impl Iterator<Item = &[u64]> {
        let calls = self.history.calls.iter().filter_map(|call| match &call.what {
            What::Append { records, .. } => Some(&records[..]),
            _ => None,
        });
        calls.chain(self.branches.appends.iter().map(|append| &append[..]))
    }

    fn use_branch(&mut self) -> Check {
        let now = self.now();
        let Branches { rng, made, records, appends, .. } = &mut self.branches;
        let Some(n) = (!made.is_empty()).then(|| rng.below(made.len())) else { return Ok(()) };
        let branch = &mut made[n];
        branch.setup.clock.show(now, 0);
        match rng.below(10) {
            0 => {
                let last = branch.records.last_key_value().map_or(1, |(last, _)| last.get());
                let first = Index(rng.between(1, last));
                branch.discard(first, now)?;
            }
            1 | 2 => {
                let power = rng.permille(500);
                branch.crash(power, rng);
                branch.open(now).map_err(|e| format!("branch {} does not open again: {e:?}", branch.log))?;
                branch.step(now)?;
            }
            3 => {
                if let Some(machine) = &branch.machine {
                    machine.cut_objects();
                }
                branch.step(now)?;
            }
            _ => {
                let count = rng.between(1, 5);
                let numbers: Vec<u64> = (0..count).map(|n| WRITER << 40 | (*records + n + 1)).collect();
                *records += count;
                appends.push(numbers.clone());
                branch.append(&numbers, now)?;
            }
        }
        branch.has_objects()
    }

    /// Checks branches at the end, when the object store has no faults: each has all its records.
    pub(in crate::testing::sim) fn judge_branches(&mut self) -> Check {
        let now = self.now();
        for branch in &mut self.branches.made {
            branch.vault.heal();
            branch.step(now)?;
            branch.has_objects()?;
            let Some(machine) = &mut branch.machine else { continue };
            let all =
                machine.read_all().map_err(|e| format!("branch {} cannot be read: {e:?}", branch.log))?;
            let first = machine.summary().first;
            self.oracle.excuse_all(machine.take_excuses());
            branch.is_right(&all)?;
            let has: Vec<Index> = all.iter().map(|(_, index, _)| *index).collect();
            if first > branch.first || !has.iter().eq(branch.records.range(first..).map(|(index, _)| index)) {
                return Err(format!(
                    "branch {} returns {has:?} from {first} on; it begins with {}, and has to have records up to {:?}",
                    branch.log,
                    branch.first,
                    branch.records.last_key_value()
                ));
            }
        }
        Ok(())
    }
}

/// Whether a branch may be refused with this error: records up to `stored` are known to be in objects. The log has no objects yet, or does
/// not have that record in one, or an append of which the first part would be left (`may_lack`), or has discarded it; or there was a fault.
fn is_refused(error: &Error, vault: &SimVault, stored: Index, may_lack: bool) -> Check {
    let is_reason = match error.kind() {
        ErrorKind::NotFound => stored == Index(0),
        ErrorKind::OutOfRange => may_lack,
        ErrorKind::Discarded => true,
        _ => false,
    };
    if is_reason || vault.faults() > 0 {
        return Ok(());
    }
    Err(format!("a branch is refused, with records up to {stored} in a sound object store: {error:?}"))
}

fn setup_of(plan: &Plan, vault: Arc<SimVault>, seed: u64) -> Setup {
    Setup {
        node: NodeId(1),
        bootstrap: Bootstrap::Existing,
        clock: Arc::<SetClock>::default(),
        heartbeat: plan.heartbeat,
        election_timeout: plan.election_timeout,
        session_idle_max: plan.session_idle_max,
        sessions_max: None,
        queue_bytes_max: 1 << 20,
        object_scrub: plan.object_scrub,
        shared: false,
        vault: Some(vault),
        fills: false,
        seed,
    }
}
