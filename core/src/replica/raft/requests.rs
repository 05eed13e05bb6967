//! Requests of the program that the status alone cannot answer: read barriers, membership changes, leadership
//! transfers. Each is answered once: in time, or with the reason of its failure.
//!
//! - A **barrier** requests a read index from raft, in the safe mode: a majority confirms that the leader still leads.
//!   Raft drops these requests silently if there is no leader, or if nothing is committed in its term yet. So they are
//!   repeated, with a new context each time. All barriers that arrive while a request is in flight share the next one.
//! - A **change** waits until the learners that it promotes have caught up, and is then proposed. It is answered when
//!   it is in force and a joint configuration has been left. Raft replaces a change that it refuses by an empty entry.
//!   A change is refused if no majority of its new voters is heard, because it might never take effect. It is also
//!   refused if it removes the vote of a node that is heard while another voter, which keeps its vote, is not: the
//!   number was probably mistyped, and a removal cannot be undone. A forced change skips both checks.
//! - A **transfer** is answered when the other node leads. Raft may ignore it, so it has a timeout.
//!
//! Invariant: when a request is answered with success, the status already shows its effect.

mod membership;
mod transfer;

use super::Replica;
use super::options::OptionChange;
use crate::cluster::membership::Change;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::{AdminRequest, Forced};
use crate::replica::writer::plan::Plan;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Index, NodeId};
use raft::ReadState;
use std::time::Duration;

/// The number of election timeouts in which the new voters of a change have to be heard.
const TIMEOUTS_TO_BE_HEARD: u32 = 2;
/// The maximum number of barriers that wait. A caller can give up its wait, so the number of callers does not bound
/// them.
const BARRIERS_MAX: usize = 16 << 10;

/// Requests that are not answered yet.
pub(super) struct Requests {
    retry: Duration,
    /// Barriers for the next read index request.
    next: Vec<Barrier>,
    inflight: Option<Flight>,
    /// Barriers that wait until this replica has committed their read index.
    confirmed: Vec<(EntryIndex, Barrier)>,
    attempts: u64,
    changes: Vec<Pending>,
    transfer: Option<(NodeId, Moment, Completer)>,
    /// Requests with a known outcome: answered when the status shows it.
    done: Vec<(Completer, Outcome)>,
}

struct Barrier {
    until: Moment,
    completer: Completer,
}

struct Flight {
    attempt: u64,
    again: Moment,
    barriers: Vec<Barrier>,
}

struct Pending {
    changes: Vec<Change>,
    forced: Forced,
    /// Until when the new voters have time to be heard.
    heard_until: Moment,
    until: Moment,
    completer: Completer,
    /// The entry that it was proposed as.
    at: Option<EntryIndex>,
    /// Whether it is in force, except that the joint configuration has not been left.
    joint: bool,
}

impl Requests {
    /// Read index requests are numbered from `first_attempt` on. No earlier run of this replica used these numbers: an
    /// answer to one of its requests can still be in flight.
    pub(super) fn new(election_timeout: Duration, first_attempt: u64) -> Self {
        Self {
            retry: election_timeout / 2,
            next: Vec::new(),
            inflight: None,
            confirmed: Vec::new(),
            attempts: first_attempt,
            changes: Vec::new(),
            transfer: None,
            done: Vec::new(),
        }
    }

    /// The number of barriers that wait.
    fn barriers(&self) -> usize {
        self.next.len() + self.confirmed.len() + self.inflight.as_ref().map_or(0, |f| f.barriers.len())
    }

    /// When there is something to do without an event.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let flight = self.inflight.iter().flat_map(|f| f.barriers.iter().map(|b| b.until).chain([f.again]));
        let next = self.next.iter().map(|b| b.until);
        let changes = self.changes.iter().map(|c| c.until);
        let transfer = self.transfer.iter().map(|t| t.1);
        let confirmed = self.confirmed.iter().map(|(_, b)| b.until);
        flight.chain(next).chain(changes).chain(transfer).chain(confirmed).min()
    }

    /// A read index has arrived.
    pub(super) fn read_state(&mut self, state: &ReadState) {
        let Some(attempt) = state.request_ctx.get(8..16).map(|b| crate::record::batch::u64_at(b, 0)) else {
            return;
        };
        if let Some(flight) = self.inflight.take_if(|f| f.attempt == attempt) {
            self.confirmed.extend(
                flight
                    .barriers
                    .into_iter()
                    .map(|b| (EntryIndex(if planted!(13) { 0 } else { state.index }), b)),
            );
        }
    }

    /// This replica's log is committed up to `raft`: barriers up to there are passed. Adds their answers to `due`, to
    /// be given once the status shows it.
    pub(super) fn committed(&mut self, raft: EntryIndex, next: Index, due: &mut Vec<(Completer, Outcome)>) {
        due.append(&mut self.done);
        if self.confirmed.is_empty() {
            return;
        }
        for (at, barrier) in std::mem::take(&mut self.confirmed) {
            if at <= raft {
                due.push((barrier.completer, Outcome::Placed { first: next.previous() }));
            } else {
                self.confirmed.push((at, barrier));
            }
        }
    }

    /// This replica has installed a snapshot. The command that discarded the skipped records may come after the
    /// snapshot; until it arrives, the state here was never a state of the log. So pending barriers could be passed too
    /// early, and are requested again. A new request is safe: the leader that sent the snapshot knew the command to be
    /// committed.
    pub(super) fn jumped(&mut self) {
        if planted!(39) {
            return;
        }
        let inflight = self.inflight.take().into_iter().flat_map(|f| f.barriers);
        let confirmed = self.confirmed.drain(..).map(|(_, b)| b);
        self.next.extend(inflight.chain(confirmed));
    }

    /// Whether membership changes wait to be proposed or to take effect.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Everything up to `index` is applied. A change that was proposed there and is not in force was refused by raft.
    pub(super) fn applied_others(&mut self, index: EntryIndex) {
        for refused in self.changes.extract_if(.., |c| !c.joint && c.at.is_some_and(|at| at <= index)) {
            let what = "another membership change was in progress; try again";
            refused.completer.answer(Outcome::Failed(Error::new(ErrorKind::Membership, what)));
        }
    }

    /// The configuration of entry `index` is in force.
    pub(super) fn applied_change(&mut self, index: EntryIndex, joint: bool) {
        for pending in std::mem::take(&mut self.changes) {
            let ours = pending.at.is_some_and(|at| at == index || (pending.joint && at < index));
            if ours && !joint {
                self.done.push((pending.completer, Outcome::Placed { first: Index(index.0) }));
            } else {
                self.changes.push(Pending { joint: pending.joint || ours, ..pending });
            }
        }
    }

    /// Fails all pending requests. Requests with a known outcome are answered with it.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for (completer, outcome) in self.done.drain(..) {
            completer.answer(outcome);
        }
        let inflight = self.inflight.take().into_iter().flat_map(|f| f.barriers);
        let confirmed = self.confirmed.drain(..).map(|(_, b)| b);
        let barriers = inflight.chain(confirmed).chain(self.next.drain(..)).map(|b| b.completer);
        let changes = self.changes.drain(..).map(|c| c.completer);
        let transfer = self.transfer.take().map(|(_, _, completer)| completer);
        for completer in barriers.chain(changes).chain(transfer) {
            completer.answer(Outcome::Failed(error.clone()));
        }
    }

    /// This replica lost leadership: the outcome of its pending changes is unknown.
    pub(super) fn lead_lost(&mut self) {
        for pending in self.changes.drain(..) {
            let what = "this replica lost leadership: it is not known whether the change was made; the new leader's status shows it, and the change can safely be requested again";
            pending.completer.answer(Outcome::Failed(Error::new(ErrorKind::Unavailable, what)));
        }
    }
}

impl Replica {
    /// Takes a request.
    pub(crate) fn handle_request(
        &mut self,
        request: AdminRequest,
        wait_limit: Duration,
        completer: Completer,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        let until = now.plus(wait_limit);
        match request {
            AdminRequest::Barrier => {
                if let Some(why) = self.exclusion().cloned() {
                    completer.answer(Outcome::Failed(why));
                    return Ok(());
                }
                if self.requests.barriers() >= BARRIERS_MAX {
                    let what = format!("{BARRIERS_MAX} barriers already wait; try again");
                    completer.answer(Outcome::Failed(Error::new(ErrorKind::Busy, what)));
                    return Ok(());
                }
                self.requests.next.push(Barrier { until, completer });
                self.retry_barriers(now);
            }
            AdminRequest::Change(changes, forced) => {
                match self.refusal().map_or_else(|| self.membership.after(&changes), Err) {
                    Ok(_) => {
                        let heard_until = now.plus(self.cluster.election_timeout * TIMEOUTS_TO_BE_HEARD);
                        let pending = Pending {
                            changes,
                            forced,
                            heard_until,
                            until,
                            completer,
                            at: None,
                            joint: false,
                        };
                        self.requests.changes.push(pending);
                        self.lockstep(now, plan)?;
                        self.change_when_caught_up(now, plan);
                    }
                    Err(refusal) => completer.answer(Outcome::Failed(refusal)),
                }
            }
            AdminRequest::Transfer(to) => self.transfer(to, until, completer),
            AdminRequest::SetOptions(log, changes) => {
                self.request_options(OptionChange::new(log, changes, until, completer), now, plan)?
            }
            AdminRequest::AwaitVersion(version) => {
                self.request_options(OptionChange::question(version, until, completer), now, plan)?
            }
        }
        self.process(now, plan)
    }

    /// Sends new barriers, and those without an answer again.
    pub(super) fn retry_barriers(&mut self, now: Moment) {
        self.answer_transfer(now);
        let late = |what: &str| Outcome::Failed(Error::new(ErrorKind::Unavailable, what));
        for (_, barrier) in self.requests.confirmed.extract_if(.., |(_, b)| b.until <= now) {
            barrier.completer.answer(late("this replica did not catch up with the leader in time"));
        }
        if let Some(flight) = self.requests.inflight.take_if(|f| f.again <= now) {
            self.requests.next.splice(0..0, flight.barriers);
        }
        let inflight = self.requests.inflight.iter_mut().map(|f| &mut f.barriers);
        for waiting in inflight.chain([&mut self.requests.next]) {
            for barrier in waiting.extract_if(.., |b| b.until <= now) {
                barrier.completer.answer(late("no majority answered in time"));
            }
        }
        // While a ready waits for room, raft would keep the request in memory.
        if self.requests.inflight.is_some() || self.requests.next.is_empty() || self.is_held().is_some() {
            return;
        }
        if planted!(12) {
            let next = std::mem::take(&mut self.requests.next);
            self.requests.confirmed.extend(next.into_iter().map(|b| (EntryIndex(0), b)));
            return;
        }
        self.requests.attempts = self.requests.attempts.wrapping_add(1);
        let attempt = self.requests.attempts;
        let mut context = self.node().0.to_le_bytes().to_vec();
        context.extend_from_slice(&attempt.to_le_bytes());
        self.raw.read_index(context);
        let again = now.plus(self.requests.retry);
        self.requests.inflight =
            Some(Flight { attempt, again, barriers: std::mem::take(&mut self.requests.next) });
    }

    /// Whether raft accepts proposals: in a leader, except during a transfer of leadership.
    pub(super) fn can_propose(&self) -> bool {
        self.is_leader() && self.raw.raft.lead_transferee.is_none() && self.is_held().is_none()
    }
}

#[cfg(all(test, feature = "testing", not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::sync::completion::Ticket;

    /// Adds a change that was proposed as this entry.
    fn proposed(asks: &mut Requests, at: u64) -> Ticket {
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        let until = Moment::START.plus(Duration::from_secs(1));
        let at = Some(EntryIndex(at));
        let pending = Pending {
            changes: Vec::new(),
            forced: false,
            heard_until: until,
            until,
            completer,
            at,
            joint: false,
        };
        asks.changes.push(pending);
        ticket
    }

    fn is_done(asks: &mut Requests, ticket: &Ticket) -> bool {
        let mut due = Vec::new();
        asks.committed(EntryIndex(100), Index(1), &mut due);
        for (completer, outcome) in due {
            completer.answer(outcome);
        }
        ticket.poll().is_some_and(|outcome| outcome.is_ok())
    }

    #[test]
    fn change_is_answered_when_its_own_entry_is_in_force() {
        let mut asks = Requests::new(Duration::from_secs(1), 0);
        assert!(!asks.has_changes());
        let ticket = proposed(&mut asks, 5);
        assert!(asks.has_changes());
        for another in [4, 6] {
            asks.applied_change(EntryIndex(another), false);
            assert!(!is_done(&mut asks, &ticket), "entry {another} is not the change's own");
        }
        asks.applied_change(EntryIndex(5), false);
        assert!(!asks.has_changes());
        assert!(is_done(&mut asks, &ticket));
    }

    #[test]
    fn joint_change_is_answered_once_the_joint_configuration_is_left() {
        let mut asks = Requests::new(Duration::from_secs(1), 0);
        let ticket = proposed(&mut asks, 5);
        asks.applied_change(EntryIndex(5), true);
        assert!(asks.has_changes());
        asks.applied_others(EntryIndex(5));
        assert!(asks.has_changes(), "raft has accepted it");
        asks.applied_change(EntryIndex(6), false);
        assert!(is_done(&mut asks, &ticket));
    }

    #[test]
    fn change_that_raft_refused_fails() {
        let mut asks = Requests::new(Duration::from_secs(1), 0);
        let ticket = proposed(&mut asks, 5);
        asks.applied_others(EntryIndex(4));
        assert!(ticket.poll().is_none());
        asks.applied_others(EntryIndex(5));
        assert_eq!(ticket.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Membership);
    }

    #[test]
    fn every_pending_request_fails_with_the_reason() {
        let mut asks = Requests::new(Duration::from_secs(1), 0);
        let until = Moment::START.plus(Duration::from_secs(1));
        let mut tickets = vec![proposed(&mut asks, 5)];
        let mut completer = || {
            let completer = Completer::new();
            tickets.push(completer.ticket(0, 0, 0));
            completer
        };
        asks.next.push(Barrier { until, completer: completer() });
        asks.confirmed.push((EntryIndex(9), Barrier { until, completer: completer() }));
        let barriers = vec![Barrier { until, completer: completer() }];
        asks.inflight = Some(Flight { attempt: 1, again: until, barriers });
        asks.transfer = Some((NodeId(3), until, completer()));
        asks.fail_all(&Error::new(ErrorKind::Closed, "closed"));
        for ticket in tickets {
            assert_eq!(ticket.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Closed);
        }
    }
}
