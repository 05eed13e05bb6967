//! Scenarios with payload slices: of the object store's directory, which is not mounted for a while, and of what waits behind a slice.

use super::{Check, ELECTION_TIMEOUT, OWN, Stage};
use crate::sync::completion::Ticket;
use crate::testing::sim::history::LARGE;
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::vault::SimVault;
use crate::types::NodeId;
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
