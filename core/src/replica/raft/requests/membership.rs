//! Change requests: a requested change of membership, from its checks to its proposal.
//!
//! A change waits until the learners that it promotes have caught up. It is refused if no majority of its new voters is
//! heard, because it might never take effect. It is also refused if it removes the vote of a node that is heard while
//! another voter, which keeps its vote, is not: the number was probably mistyped, and a removal cannot be undone. A
//! forced change skips both checks.

use super::{Pending, Replica};
use crate::cluster::membership::{Change, Member, Membership};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::raft::admission::body_of;
use crate::replica::wire::raft_message;
use crate::replica::writer::plan::Plan;
use crate::store::allocator::Purpose;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::sync::clock::Moment;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, NodeId};
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType};

/// The number of entries that a learner may lack when it is promoted: those in flight while appends continue.
const CAUGHT_UP_ENTRIES: u64 = 256;

impl Replica {
    /// Proposes the first change whose learners have caught up, once there is room for it.
    pub(in crate::replica::raft) fn change_when_caught_up(&mut self, now: Moment, plan: &mut Plan) {
        let mut n = 0;
        while n < self.requests.changes.len() {
            if self.requests.changes[n].until <= now {
                let pending = self.requests.changes.swap_remove(n);
                if let (None, Some(refusal)) = (pending.at, self.cannot_vote_yet(&pending.changes)) {
                    pending.completer.answer(Outcome::Failed(refusal));
                    continue;
                }
                if let (None, None, Err(refusal)) =
                    (pending.at, self.lagging(&pending.changes), self.check_active(&pending, now))
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
        let proposed = self.requests.changes.iter().any(|c| c.at.is_some());
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
        match self.propose_change(n, now, plan) {
            Ok(None) => {} // its file is being prepared
            Ok(at) => self.requests.changes[n].at = at,
            Err(error) => self.requests.changes.remove(n).completer.answer(Outcome::Failed(error)),
        }
    }

    /// The first change that can be proposed now. A change that [`Self::check_active`] refuses is answered only after
    /// the unheard voters had time to answer.
    fn next_change(&mut self, now: Moment) -> Option<usize> {
        let mut n = 0;
        loop {
            let pending = self.requests.changes.get(n)?;
            if self.lagging(&pending.changes).is_some() || self.cannot_vote_yet(&pending.changes).is_some() {
                n += 1;
                continue;
            }
            match self.check_active(pending, now) {
                Ok(()) => return Some(n),
                Err(refusal) if pending.heard_until <= now => {
                    self.requests.changes.remove(n).completer.answer(Outcome::Failed(refusal));
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
    fn check_active(&self, pending: &Pending, now: Moment) -> Result<()> {
        let Ok(next) = self.membership.after(&pending.changes) else { return Ok(()) }; // refused when it is proposed
        let (voters, present) = (next.voters(), self.membership.voters());
        if pending.forced || voters == present {
            return Ok(());
        }
        let heard = self.recently_active(now);
        let is_active = |node: &u64| heard.contains(&NodeId(*node));
        let list = |nodes: &[u64]| nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let pick = |nodes: &[u64], wanted: &dyn Fn(&u64) -> bool| -> Vec<u64> {
            nodes.iter().filter(|node| wanted(node)).copied().collect()
        };
        if !next.is_majority(&heard) {
            let what = format!(
                "the voters would be {}, and nothing is heard of {}: without a majority of them there would be no leader, \
                 perhaps for good. Nothing was changed: start the silent nodes, or remove them first, or force the change",
                list(&voters),
                list(&pick(&voters, &|node| !is_active(node)))
            );
            return Err(Error::new(ErrorKind::Membership, what));
        }
        let taken = pick(&present, &|node| is_active(node) && !voters.contains(node));
        let silent = pick(&present, &|node| !is_active(node) && voters.contains(node));
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
    fn propose_change(&mut self, n: usize, now: Moment, plan: &mut Plan) -> Result<Option<EntryIndex>> {
        let changes = &self.requests.changes[n].changes;
        let result = self.membership.after(changes)?;
        let entry = entry_of_change(changes, &result)?;
        let room = self.has_room_for_change(&entry, plan);
        if let Err(why) = &room {
            self.has_refused(body_of(&entry), why, now);
        }
        if !room? {
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
    fn has_room_for_change(&self, change: &Entry, plan: &mut Plan) -> Result<bool> {
        let mut leave = Entry::default();
        leave.set_entry_type(EntryType::EntryConfChangeV2);
        let bodies = [body_of(change), HARD_STATE_BYTES, body_of(&leave), HARD_STATE_BYTES];
        let opening = self.sequencer.opening_bytes_max() + change.data.len();
        let fit = plan.make_room_ahead(bodies.map(|b| (Purpose::Metadata, b)).into_iter(), opening, false);
        match fit.why {
            Some(why) => {
                let what = format!("the membership change was not made: there is no room for it: {why}");
                Err(Error::new(why.kind(), what))
            }
            None => Ok(!fit.is_coming),
        }
    }

    /// Whether the membership has this replica's current directory and address.
    pub(in crate::replica::raft) fn knows_itself(&self) -> bool {
        let right = |m: &Member| m.directory == self.me.directory && m.address == self.cluster.address;
        self.options.cluster.is_none()
            || self.sequencer.membership_at_end().get(self.node()).is_none_or(right)
    }

    /// Makes a leader correct its own directory and address in the membership: after a log was on its own, in a new
    /// cluster, or when the node has moved.
    pub(in crate::replica::raft) fn confirm_self(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        let settled = self.sequencer.committed().raft == self.sequencer.end().raft;
        if self.knows_itself() || !self.can_propose() || self.membership.is_joint() || !settled {
            return Ok(());
        }
        let node = self.node();
        let result = self.membership.with_identity(node, self.me.directory, &self.cluster.address);
        let change = Change::SetAddress { node, address: self.cluster.address.clone() };
        let entry = entry_of_change(&[change], &result)?;
        if !self.has_room_for_change(&entry, plan).unwrap_or(false) {
            return Ok(()); // a later step retries
        }
        self.propose_entry(entry)?;
        self.process(now, plan)
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
