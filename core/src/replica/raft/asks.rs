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

use super::Replica;
use super::admission::body_of;
use crate::cluster::membership::{Change, Member, Membership};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::{AdminRequest, Forced};
use crate::replica::wire::raft_message;
use crate::replica::writer::Writer;
use crate::store::allocator::Purpose;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Index, NodeId};
use protobuf::Message as _;
use raft::ReadState;
use raft::eraftpb::{Entry, EntryType};
use std::time::Duration;

/// The number of entries that a learner may lack when it is promoted: those in flight while appends continue.
const CAUGHT_UP_ENTRIES: u64 = 256;
/// The number of election timeouts in which the new voters of a change have to be heard.
const TIMEOUTS_TO_BE_HEARD: u32 = 2;
/// The maximum number of barriers that wait. A caller can give up its wait, so the number of callers does not bound
/// them.
const BARRIERS_MAX: usize = 16 << 10;

/// Requests that are not answered yet.
pub(super) struct Asks {
    retry: Duration,
    /// Barriers for the next read index request.
    next: Vec<Barrier>,
    inflight: Option<Flight>,
    /// Barriers that wait until this replica has committed their read index.
    confirmed: Vec<(EntryIndex, Barrier)>,
    attempts: u64,
    changes: Vec<Pending>,
    transfer: Option<(NodeId, Moment, Completer)>,
    /// Requests that succeeded: answered when the status shows it.
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

impl Asks {
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

    /// Fails all of them.
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
    pub(crate) fn ask(
        &mut self,
        ask: AdminRequest,
        wait_limit: Duration,
        completer: Completer,
        now: Moment,
        writer: &mut Writer,
    ) -> Result<()> {
        let until = now.plus(wait_limit);
        match ask {
            AdminRequest::Barrier => {
                if let Some(why) = self.exclusion().cloned() {
                    completer.answer(Outcome::Failed(why));
                    return Ok(());
                }
                if self.asks.barriers() >= BARRIERS_MAX {
                    let what = format!("{BARRIERS_MAX} barriers already wait; try again");
                    completer.answer(Outcome::Failed(Error::new(ErrorKind::Busy, what)));
                    return Ok(());
                }
                self.asks.next.push(Barrier { until, completer });
                self.ask_again(now);
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
                        self.asks.changes.push(pending);
                        self.lockstep(now, writer)?;
                        self.change_when_caught_up(now, writer);
                    }
                    Err(refusal) => completer.answer(Outcome::Failed(refusal)),
                }
            }
            AdminRequest::Transfer(to) => self.transfer(to, until, completer),
            AdminRequest::SetOptions(changes) => {
                self.ask_to_set_options(changes, until, completer, now, writer)?
            }
        }
        self.process(now, writer)
    }

    fn transfer(&mut self, to: NodeId, until: Moment, completer: Completer) {
        let refuse = |completer: Completer, kind, what: String| {
            completer.answer(Outcome::Failed(Error::new(kind, what)));
        };
        if let Some(refusal) = self.refusal() {
            return completer.answer(Outcome::Failed(refusal));
        }
        if to == self.node() {
            return self.asks.done.push((completer, Outcome::Placed { first: Index(0) }));
        }
        if !self.membership.get(to).is_some_and(|m| m.is_voter() && !m.is_leaving()) {
            return refuse(
                completer,
                ErrorKind::Membership,
                format!("node {to} is no voter, so it cannot lead"),
            );
        }
        self.raw.transfer_leader(to.0);
        if let Some((_, _, earlier)) = self.asks.transfer.replace((to, until, completer)) {
            refuse(
                earlier,
                ErrorKind::Unavailable,
                format!("a later request transfers leadership to node {to}"),
            );
        }
    }

    /// Transfers leadership to another voter. No caller waits for it.
    pub(crate) fn step_aside(&mut self) {
        if let Some(successor) = self.successor() {
            tracing::warn!(node = %self.node(), to = %successor, "transfers leadership: its disk is slow");
            self.raw.transfer_leader(successor.0);
        }
    }

    /// Answers a transfer once another node leads or its time is up.
    fn answer_transfer(&mut self, now: Moment) {
        let leader = self.leader().filter(|l| *l != self.node());
        let over = |(_, until, _): &(NodeId, Moment, Completer)| leader.is_some() || *until <= now;
        if !self.asks.transfer.as_ref().is_some_and(over) {
            if let Some((to, ..)) = &self.asks.transfer
                && self.is_leader()
                && self.raw.raft.lead_transferee.is_none()
                && self.raw.raft.prs().get(to.0).is_some_and(|p| p.recent_active)
            {
                // The message was lost, or arrived before the other node was ready for it. Raft gives up after a while.
                // A leader takes no appends during a transfer, so it does not retry for a node that it does not hear.
                self.raw.transfer_leader(to.0);
            }
            return;
        }
        let Some((to, _, completer)) = self.asks.transfer.take() else { return };
        let outcome = match leader {
            Some(leader) if leader == to => Outcome::Placed { first: Index(0) },
            Some(leader) => {
                let what = format!("node {leader} leads now, not node {to}");
                Outcome::Failed(Error::new(ErrorKind::Unavailable, what))
            }
            None => {
                let what = format!("node {to} did not become leader in time");
                Outcome::Failed(Error::new(ErrorKind::Timeout, what))
            }
        };
        self.asks.done.push((completer, outcome));
    }

    /// Sends new barriers, and those without an answer again.
    pub(super) fn ask_again(&mut self, now: Moment) {
        self.answer_transfer(now);
        let late = |what: &str| Outcome::Failed(Error::new(ErrorKind::Unavailable, what));
        for (_, barrier) in self.asks.confirmed.extract_if(.., |(_, b)| b.until <= now) {
            barrier.completer.answer(late("this replica did not catch up with the leader in time"));
        }
        if let Some(flight) = self.asks.inflight.take_if(|f| f.again <= now) {
            self.asks.next.splice(0..0, flight.barriers);
        }
        let inflight = self.asks.inflight.iter_mut().map(|f| &mut f.barriers);
        for waiting in inflight.chain([&mut self.asks.next]) {
            for barrier in waiting.extract_if(.., |b| b.until <= now) {
                barrier.completer.answer(late("no majority answered in time"));
            }
        }
        // While a ready waits for room, raft would keep the request in memory.
        if self.asks.inflight.is_some() || self.asks.next.is_empty() || self.is_held().is_some() {
            return;
        }
        if planted!(12) {
            let next = std::mem::take(&mut self.asks.next);
            self.asks.confirmed.extend(next.into_iter().map(|b| (EntryIndex(0), b)));
            return;
        }
        self.asks.attempts = self.asks.attempts.wrapping_add(1);
        let attempt = self.asks.attempts;
        let mut context = self.node().0.to_le_bytes().to_vec();
        context.extend_from_slice(&attempt.to_le_bytes());
        self.raw.read_index(context);
        let again = now.plus(self.asks.retry);
        self.asks.inflight = Some(Flight { attempt, again, barriers: std::mem::take(&mut self.asks.next) });
    }

    /// Proposes the first change whose learners have caught up, once there is room for it.
    pub(super) fn change_when_caught_up(&mut self, now: Moment, writer: &mut Writer) {
        let mut n = 0;
        while n < self.asks.changes.len() {
            if self.asks.changes[n].until <= now {
                let pending = self.asks.changes.swap_remove(n);
                if let (None, Some(refusal)) = (pending.at, self.cannot_vote_yet(&pending.changes)) {
                    pending.completer.answer(Outcome::Failed(refusal));
                    continue;
                }
                if let (None, None, Err(refusal)) =
                    (pending.at, self.lagging(&pending.changes), self.check_heard(&pending, now))
                {
                    pending.completer.answer(Outcome::Failed(refusal));
                    continue;
                }
                let what = match self.lagging(&pending.changes) {
                    Some((node, lag)) if pending.at.is_none() => {
                        format!("node {node} still lacks {lag} entries; promote it once it has caught up")
                    }
                    _ => match self.awaited() {
                        Some(what) if pending.at.is_some() => what,
                        Some(what) => format!("an earlier change has not taken effect: {what}"),
                        None if pending.at.is_some() => {
                            "the change did not take effect in time, and still may; the status shows it, and the change can safely be requested again".to_owned()
                        }
                        None => {
                            "the change could not be proposed in time, and was not made; try again".to_owned()
                        }
                    },
                };
                pending.completer.answer(Outcome::Failed(Error::new(ErrorKind::Timeout, what)));
            } else {
                n += 1;
            }
        }
        let proposed = self.asks.changes.iter().any(|c| c.at.is_some());
        let here = proposed || self.membership.is_joint() || !self.unapplied.is_empty();
        // A new leader treats all earlier entries as a possible change. Raft refuses another change until they are
        // applied.
        let under_way = here || self.raw.raft.has_pending_conf();
        let in_step = self.raw.raft.raft_log.last_index() == self.sequencer.end().raft.0;
        // The first configuration in the log has to contain a voter: this replica.
        if under_way || !in_step || !self.can_propose() || !self.knows_itself() {
            return;
        }
        let Some(n) = self.next_change(now) else { return };
        match self.propose_change(n, writer) {
            Ok(None) => {} // its file is being prepared
            Ok(at) => self.asks.changes[n].at = at,
            Err(error) => self.asks.changes.remove(n).completer.answer(Outcome::Failed(error)),
        }
    }

    /// The first change that can be proposed now. A change that [`Self::check_heard`] refuses is answered only after
    /// the unheard voters had time to answer.
    fn next_change(&mut self, now: Moment) -> Option<usize> {
        let mut n = 0;
        loop {
            let pending = self.asks.changes.get(n)?;
            if self.lagging(&pending.changes).is_some() || self.cannot_vote_yet(&pending.changes).is_some() {
                n += 1;
                continue;
            }
            match self.check_heard(pending, now) {
                Ok(()) => return Some(n),
                Err(refusal) if pending.heard_until <= now => {
                    self.asks.changes.remove(n).completer.answer(Outcome::Failed(refusal));
                }
                Err(_) => n += 1,
            }
        }
    }

    /// Checks that a majority of the new voters is heard, and that the change does not take the vote of a node that is
    /// heard while another node, which keeps its vote, is not.
    ///
    /// # Errors
    /// `Membership`: names the voters that are not heard.
    fn check_heard(&self, pending: &Pending, now: Moment) -> Result<()> {
        let Ok(next) = self.membership.after(&pending.changes) else { return Ok(()) }; // refused when it is proposed
        let (voters, present) = (next.voters(), self.membership.voters());
        if pending.forced || voters == present {
            return Ok(());
        }
        let heard = self.heard_lately(now);
        let is_heard = |node: &u64| heard.contains(&NodeId(*node));
        let list = |nodes: &[u64]| nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let pick = |nodes: &[u64], wanted: &dyn Fn(&u64) -> bool| -> Vec<u64> {
            nodes.iter().filter(|node| wanted(node)).copied().collect()
        };
        if !next.is_majority(&heard) {
            let what = format!(
                "the voters would be {}, and nothing is heard of {}: without a majority of them there would be no leader, \
                 perhaps for good. Nothing was changed: start the silent nodes, or remove them first, or force the change",
                list(&voters),
                list(&pick(&voters, &|node| !is_heard(node)))
            );
            return Err(Error::new(ErrorKind::Membership, what));
        }
        let taken = pick(&present, &|node| is_heard(node) && !voters.contains(node));
        let silent = pick(&present, &|node| !is_heard(node) && voters.contains(node));
        if taken.is_empty() || silent.is_empty() {
            return Ok(());
        }
        let (taken, silent) = (list(&taken), list(&silent));
        let what = format!(
            "node {taken} runs and would lose its vote, and nothing is heard of node {silent}, which would keep it and is \
             probably the one that was meant. Nothing was changed: name node {silent}, or start it first, or force the change"
        );
        Err(Error::new(ErrorKind::Membership, what))
    }

    /// The reason why a change must not make a node a voter yet: the node cannot take the log's options.
    fn cannot_vote_yet(&self, changes: &[Change]) -> Option<Error> {
        changes.iter().find_map(|change| match change {
            Change::Promote(node) => self.cannot_take_options(*node),
            _ => None,
        })
    }

    /// The first node that a change promotes and that has not caught up, and the number of entries that it lacks.
    fn lagging(&self, changes: &[Change]) -> Option<(NodeId, u64)> {
        let committed = self.raw.raft.raft_log.committed;
        changes.iter().find_map(|change| {
            let Change::Promote(node) = change else { return None };
            let matched = self.raw.raft.prs().get(node.0).map_or(0, |p| p.matched);
            let lag = committed.saturating_sub(matched);
            (lag > CAUGHT_UP_ENTRIES || matched == 0).then_some((*node, lag))
        })
    }

    /// Proposes the pending change `n`. None: a file for it is being prepared.
    fn propose_change(&mut self, n: usize, writer: &mut Writer) -> Result<Option<EntryIndex>> {
        let changes = &self.asks.changes[n].changes;
        let result = self.membership.after(changes)?;
        let entry = entry_of_change(changes, &result)?;
        if !self.has_room_for_change(&entry, writer)? {
            return Ok(None);
        }
        self.propose_entry(entry)?;
        Ok(Some(EntryIndex(self.raw.raft.raft_log.last_index())))
    }

    /// Whether there is room for a membership change and all that follows it: the entry that leaves a joint
    /// configuration, and a commit record for each of the two. Raft cannot take the change back. False: a file is being
    /// prepared.
    ///
    /// # Errors
    /// `Full`: no file is available. Or the error of preparing one.
    fn has_room_for_change(&self, change: &Entry, writer: &mut Writer) -> Result<bool> {
        let mut leave = Entry::default();
        leave.set_entry_type(EntryType::EntryConfChangeV2);
        let bodies = [body_of(change), HARD_STATE_BYTES, body_of(&leave), HARD_STATE_BYTES];
        let opening = self.sequencer.opening_bytes_max() + change.data.len();
        let fit =
            writer.plan.make_room_ahead(bodies.map(|b| (Purpose::Metadata, b)).into_iter(), opening, false);
        match fit.why {
            Some(why) => {
                let what = format!("the membership change was not made: there is no room for it: {why}");
                Err(Error::new(why.kind(), what))
            }
            None => Ok(!fit.is_coming),
        }
    }

    /// Whether raft accepts proposals: in a leader, except during a transfer of leadership.
    pub(super) fn can_propose(&self) -> bool {
        self.is_leader() && self.raw.raft.lead_transferee.is_none() && self.is_held().is_none()
    }

    /// Whether the membership has this replica's current directory and address.
    fn knows_itself(&self) -> bool {
        let right = |m: &Member| m.directory == self.me.directory && m.address == self.cluster.address;
        self.options.cluster.is_none()
            || self.sequencer.membership_at_end().get(self.node()).is_none_or(right)
    }

    /// Makes a leader correct its own directory and address in the membership: after a log was on its own, in a new
    /// cluster, or when the node has moved.
    pub(super) fn confirm_self(&mut self, now: Moment, writer: &mut Writer) -> Result<()> {
        let settled = self.sequencer.committed().raft == self.sequencer.end().raft;
        if self.knows_itself() || !self.can_propose() || self.membership.is_joint() || !settled {
            return Ok(());
        }
        let node = self.node();
        let result = self.membership.with_identity(node, self.me.directory, &self.cluster.address);
        let change = Change::SetAddress { node, address: self.cluster.address.clone() };
        let entry = entry_of_change(&[change], &result)?;
        if !self.has_room_for_change(&entry, writer).unwrap_or(false) {
            return Ok(()); // a later step retries
        }
        self.propose_entry(entry)?;
        self.process(now, writer)
    }
}

/// The entry that changes the membership to `result`.
fn entry_of_change(changes: &[Change], result: &Membership) -> Result<Entry> {
    let change = raft_message::conf_change(changes, result);
    let bytes = change
        .write_to_bytes()
        .map_err(|e| Error::new(ErrorKind::Membership, format!("the change cannot be encoded: {e}")))?;
    let mut entry = Entry { data: bytes.into(), ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    Ok(entry)
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::sync::completion::Ticket;

    /// Adds a change that was proposed as this entry.
    fn proposed(asks: &mut Asks, at: u64) -> Ticket {
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

    fn is_done(asks: &mut Asks, ticket: &Ticket) -> bool {
        let mut due = Vec::new();
        asks.committed(EntryIndex(100), Index(1), &mut due);
        for (completer, outcome) in due {
            completer.answer(outcome);
        }
        ticket.poll().is_some_and(|outcome| outcome.is_ok())
    }

    #[test]
    fn change_is_answered_when_its_own_entry_is_in_force() {
        let mut asks = Asks::new(Duration::from_secs(1), 0);
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
        let mut asks = Asks::new(Duration::from_secs(1), 0);
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
        let mut asks = Asks::new(Duration::from_secs(1), 0);
        let ticket = proposed(&mut asks, 5);
        asks.applied_others(EntryIndex(4));
        assert!(ticket.poll().is_none());
        asks.applied_others(EntryIndex(5));
        assert_eq!(ticket.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Membership);
    }

    #[test]
    fn every_pending_request_fails_with_the_reason() {
        let mut asks = Asks::new(Duration::from_secs(1), 0);
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
