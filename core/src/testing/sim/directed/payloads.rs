//! Scenarios with payload slices: of the object store's directory, which is not mounted for a while, and of what waits behind a slice.

use super::{Check, ELECTION_TIMEOUT, OWN, Stage};
use crate::record::batch::{Batch, BatchBuilder};
use crate::replica::queue::proposals::LogCommand;
use crate::sync::completion::Ticket;
use crate::testing::sim::history::{LARGE, record_of};
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::vault::SimVault;
use crate::types::{Index, LogNumber, NodeId};
use std::sync::Arc;
use std::time::Duration;

/// Stores slices and payload slices.
const SEED: u64 = 4;

impl Stage {
    /// A cluster whose appends go to payload slices.
    pub(super) fn with_payloads(voters: u64, learners: u64) -> Check<(Self, Arc<SimVault>)> {
        Self::with_payloads_of(voters, learners, |plan| plan)
    }

    /// The same with another plan.
    pub(super) fn with_payloads_of(
        voters: u64,
        learners: u64,
        change: impl FnOnce(Plan) -> Plan,
    ) -> Check<(Self, Arc<SimVault>)> {
        let plan = change(Plan { objects: true, ..Plan::calm(SEED) });
        let mut stage = Self::with(voters, learners, plan)?;
        let Some(vault) = stage.world.vault.clone() else {
            return Err("there is no object store".to_owned());
        };
        let log = stage.world.log;
        for _ in 0..100 {
            stage.append()?;
            if log.is_some_and(|log| vault.payloads(log) > 0) {
                return Ok((stage, vault));
            }
            stage.advance(ELECTION_TIMEOUT)?;
        }
        Err("no payload slice is stored".to_owned())
    }

    /// Submits an append to the leader.
    pub(super) fn begin(&mut self) -> Check<Ticket> {
        let (leader, batch) = (self.leader()?, self.batch(LARGE)?);
        self.world.hand(leader, Request::Append(OWN, batch))
    }

    /// Submits appends to the leader of which each is too small for payload. Waits for no answer.
    pub(super) fn begin_small(&mut self, count: u64) -> Check {
        let leader = self.leader()?;
        for _ in 0..count {
            let batch = self.batch(0)?;
            let Some(machine) = self.world.machine(leader) else {
                return Err("the leader does not run".to_owned());
            };
            let sent = machine.submit(Request::Append(OWN, batch), Duration::from_secs(1_000), u64::MAX);
            drop(sent.map_err(|error| error.to_string())?);
        }
        self.world.wake_all(leader);
        Ok(())
    }

    pub(super) fn is_answered(&mut self, ticket: &Ticket) -> Check {
        self.until("the append is answered", |_| ticket.poll().is_some())
    }

    /// All objects that the leader knows as stored are in the object store.
    fn has_objects(&mut self, vault: &SimVault) -> Check<usize> {
        let leader = self.leader()?;
        let Some(machine) = self.world.machine(leader) else {
            return Err("the leader does not run".to_owned());
        };
        let (stored, names) = (machine.objects().0, vault.names());
        match stored.iter().find(|name| !names.contains(name)) {
            Some(lost) => Err(format!("{lost} counts as stored, and is not in the object store")),
            None => Ok(stored.len()),
        }
    }
}

/// The directory of the object store is not mounted for a while, from any call on. All that goes there meanwhile is lost, and must
/// not count as stored; the oracle looks for the payload of each committed entry.
pub(super) fn nothing_goes_to_a_store_that_is_not_mounted() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let mut most = 0;
    for calls in 0..40 {
        let before = stage.has_objects(&vault)?;
        let ticket = stage.begin()?;
        stage.world.machine(NodeId(1)).into_iter().for_each(|machine| machine.cut_objects());
        vault.unmount_after(calls);
        stage.advance(Duration::from_secs(1))?;
        vault.mount();
        let after = stage.has_objects(&vault)?;
        most = most.max(after.saturating_sub(before));
        stage.is_answered(&ticket)?;
        stage.advance(Duration::from_secs(5))?; // longer than what failed waits
    }
    if most == 0 { Err("no object was stored".to_owned()) } else { Ok(()) }
}

/// A leader starts while the directory of the object store is not mounted. The log's files refer to payload, so the store has to have
/// something of the log: no append succeeds before it is mounted.
pub(super) fn payload_waits_for_the_store_after_a_restart() -> Check {
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let leader = stage.leader()?;
    stage.advance(ELECTION_TIMEOUT)?;
    stage.cut_power(leader)?;
    vault.unmount_after(0);
    stage.world.start(leader)?;
    stage.until("it leads again", |w| w.leader() == Some(leader))?;
    let ticket = stage.begin()?;
    stage.advance(Duration::from_secs(2))?;
    if let Some(answer) = ticket.poll() {
        return Err(format!("an append was answered before the object store was there: {answer:?}"));
    }
    vault.mount();
    stage.is_answered(&ticket)?;
    let answer = ticket.poll();
    if answer.as_ref().is_some_and(Result::is_ok) {
        Ok(())
    } else {
        Err(format!("the append failed: {answer:?}"))
    }
}

/// The object store takes long and then fails. Appends whose payload waits are refused after ten seconds and one attempt, also those
/// whose slices wait for their turn.
pub(super) fn payload_that_waits_is_refused_in_time() -> Check {
    const ATTEMPT: Duration = Duration::from_secs(6);
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let leader = stage.leader()?;
    if let Some(machine) = stage.world.machine(leader) {
        machine.puts_take(ATTEMPT..ATTEMPT + Duration::from_millis(1));
    }
    vault.refuse();
    // Twenty slices and more; eight are put at a time.
    let tickets: Vec<Ticket> = (0..6_000).map(|_| stage.begin()).collect::<Check<_>>()?;
    stage.advance(Duration::from_secs(10) + ATTEMPT + Duration::from_secs(1))?;
    let waiting = tickets.iter().filter(|ticket| ticket.poll().is_none()).count();
    let taken = tickets.iter().filter_map(Ticket::poll).filter(Result::is_ok).count();
    match (waiting, taken) {
        (0, 0) => Ok(()),
        _ => Err(format!(
            "{waiting} of {} appends still wait for a store that fails, and {taken} succeeded",
            tickets.len()
        )),
    }
}

/// The object store hangs: what waits, in the queue and behind the slice, is bounded.
pub(super) fn what_waits_behind_a_payload_slice_is_bounded() -> Check {
    /// In the queue, here, and one turn of the queue.
    const MOST: usize = 3 * 65_536;
    let (mut stage, _) = Stage::with_payloads(1, 0)?;
    let leader = stage.leader()?;
    let hang = Duration::from_secs(1_000);
    if let Some(machine) = stage.world.machine(leader) {
        machine.puts_take(hang..hang + Duration::from_millis(1));
    }
    let (mut tickets, batch) = (Vec::new(), stage.batch(0)?);
    let mut refused = 0;
    while refused < 3 && tickets.len() <= MOST {
        let Some(machine) = stage.world.machine(leader) else {
            return Err("the leader does not run".to_owned());
        };
        match machine.submit(Request::Append(OWN, batch.clone()), hang, u64::MAX) {
            Ok(ticket) => {
                tickets.push(ticket);
                refused = 0;
                if !tickets.len().is_multiple_of(1_000) {
                    continue;
                }
            }
            Err(_) => refused += 1,
        }
        stage.world.wake_all(leader);
        stage.advance(Duration::from_millis(20))?;
    }
    match tickets.len() {
        waiting if waiting > MOST => Err(format!("{waiting} appends wait for a payload slice")),
        waiting if waiting < 1_000 => Err(format!("only {waiting} appends are taken")),
        _ => Ok(()),
    }
}

/// Appends to two logs of a group belong together, and one of the logs was sealed or dropped before. They are refused, and the object store
/// has neither behind the log's last entry: a log that is made of it would take the one, and not the other.
pub(super) fn refused_appends_leave_no_half_in_the_store() -> Check {
    let kept = LogNumber(1);
    let mut stage = Stage::with(1, 0, Plan { objects: true, is_bare_group: true, ..Plan::calm(SEED) })?;
    let Some((vault, log)) = stage.world.vault.clone().zip(stage.world.log) else {
        return Err("there is no object store".to_owned());
    };
    let leader = stage.leader()?;
    stage.obeys(LogCommand::Open { log: kept, start: Index(1) })?;
    let (mut last, mut together) = (1, 0);
    for waits in [true, false] {
        for seals in [true, false] {
            last += 1;
            let ended = LogNumber(last);
            stage.obeys(LogCommand::Open { log: ended, start: Index(1) })?;
            stage.appends_to_all(&[kept, ended])?;
            let newest = || vault.names_of(log).into_iter().filter(|name| name.contains("/p/")).max();
            let before = newest();
            // The references to this payload are behind the command.
            let end = if seals { LogCommand::Seal { log: ended } } else { LogCommand::Drop { log: ended } };
            let first = stage.world.hand(leader, Request::Log(end))?;
            if waits {
                stage.is_answered(&first)?;
            }
            let batch = stage.batch_for(kept)?;
            let second = stage.world.hand(leader, Request::Append(kept, batch))?;
            if waits {
                stage.is_answered(&second)?;
                stage.advance(ELECTION_TIMEOUT)?;
            }
            let pair = [(kept, stage.batch_for(kept)?), (ended, stage.batch_for(ended)?)];
            let tickets = stage.hand_together(leader, &pair)?;
            for ticket in tickets.iter().chain([&first, &second]) {
                stage.is_answered(ticket)?;
            }
            if let Some(taken) = tickets.iter().filter_map(Ticket::poll).find(Result::is_ok) {
                return Err(format!("an append beside one that is refused was taken: {taken:?}"));
            }
            stage.advance(Duration::from_secs(5))?; // all entries are in slices
            // Otherwise all of them are in one block, which stays whole.
            together += usize::from(waits && newest() > before);
            let (_, left) = vault.tail(log).map_err(|error| error.to_string())?;
            if !left.is_empty() {
                return Err(format!("of refused appends the object store has {left:?}"));
            }
        }
    }
    if together == 2 { Ok(()) } else { Err("no payload is stored".to_owned()) }
}

impl Stage {
    fn obeys(&mut self, command: LogCommand) -> Check {
        let leader = self.leader()?;
        match self.submit(leader, Request::Log(command))? {
            None => Ok(()),
            Some(error) => Err(format!("{command:?} fails: {error:?}")),
        }
    }

    /// A batch with payload for a named log.
    fn batch_for(&mut self, log: LogNumber) -> Check<Batch> {
        self.records += 1;
        let record = self.records | LARGE;
        self.world.oracle.contents.proposed(log, &[record]);
        let mut builder = BatchBuilder::new();
        let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
        built.map_err(|error| error.to_string())
    }

    /// Submits batches that belong together.
    fn hand_together(&mut self, node: NodeId, batches: &[(LogNumber, Batch)]) -> Check<Vec<Ticket>> {
        let Some(machine) = self.world.machine(node) else {
            return Err("the leader does not run".to_owned());
        };
        let tickets = machine.submit_together(batches).map_err(|error| error.to_string())?;
        self.world.wake_all(node);
        Ok(tickets)
    }

    /// Appends to all of these logs together, until payload goes to the object store.
    fn appends_to_all(&mut self, logs: &[LogNumber]) -> Check {
        let leader = self.leader()?;
        let log = self.world.log;
        for _ in 0..100 {
            let batches: Vec<_> =
                logs.iter().map(|log| Ok((*log, self.batch_for(*log)?))).collect::<Check<_>>()?;
            let newest = |stage: &Self| {
                let names = stage.world.vault.as_ref().zip(log).map(|(vault, log)| vault.names_of(log));
                names.unwrap_or_default().into_iter().filter(|name| name.contains("/p/")).max()
            };
            let before = newest(self);
            let tickets = self.hand_together(leader, &batches)?;
            for ticket in &tickets {
                self.is_answered(ticket)?;
                if let Some(Err(error)) = ticket.poll() {
                    return Err(format!("an append fails: {error}"));
                }
            }
            if newest(self) > before {
                return Ok(());
            }
            self.advance(ELECTION_TIMEOUT)?;
        }
        Err("no payload slice of appends that belong together is stored".to_owned())
    }
}
