//! Membership changes: how committed changes take effect.
//!
//! Invariants:
//! - Raft's configuration and [`Replica::membership`] change together, entry by entry.
//! - A leader puts a change into force, and answers its callers, only after a majority of the new voters has durably
//!   recorded that the change is committed. After a power cut of all nodes, any majority of these voters then contains
//!   one that knows the new voters, and needs none that has left. So a replica reports no commit to others that it has
//!   not recorded durably ([`Replica::durably_known`]).

use super::Replica;
use super::propose::unknown_outcome;
use crate::cluster::membership::{Member, Membership};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::wire::raft_message;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, NodeId};
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry, Message, MessageType};
use std::collections::BTreeSet;

impl Replica {
    /// Puts membership changes into force that are committed and durable here.
    ///
    /// Returns true if anything was applied.
    pub(super) fn apply(&mut self) -> Result<bool> {
        let before = self.raw.raft.raft_log.applied;
        let mut applied = before;
        loop {
            let change = self.unapplied.front().map(|e| EntryIndex(e.index));
            let others = change.map_or(self.settled, |c| EntryIndex(c.0 - 1));
            applied = applied.max(others.0);
            self.requests.applied_others(others);
            let Some(index) = change else { break };
            let membership = self.membership_of(&self.unapplied[0])?;
            if self.is_leader() && !self.is_known(index, &membership) && !planted!(34) {
                break;
            }
            if let Some(entry) = self.unapplied.pop_front() {
                self.bring_into_force(&entry, membership)?;
                applied = index.0;
            }
        }
        if applied == before {
            return Ok(false);
        }
        self.raw.advance_apply_to(applied);
        Ok(true)
    }

    /// The membership after a change.
    fn membership_of(&self, change: &Entry) -> Result<Membership> {
        if change.data.is_empty() {
            return Ok(self.membership.left());
        }
        raft_message::membership_of_change(&change.data).map_err(|e| wrong_change(change, e))
    }

    fn bring_into_force(&mut self, entry: &Entry, membership: Membership) -> Result<()> {
        let index = EntryIndex(entry.index);
        let change =
            ConfChangeV2::parse_from_bytes(&entry.data).map_err(|e| wrong_change(entry, &e.to_string()))?;
        let state = self.raw.apply_conf_change(&change).map_err(|e| wrong_change(entry, &e.to_string()))?;
        let wanted = raft_message::conf_state(&membership);
        let sorted = |mut v: Vec<u64>| {
            v.sort_unstable();
            v
        };
        if sorted(state.voters) != wanted.voters || sorted(state.voters_outgoing) != wanted.voters_outgoing {
            return Err(wrong_change(entry, "raft and the log disagree about the voters"));
        }
        tracing::info!(node = %self.node(), at = %index, %membership, "the membership has changed");
        // An earlier membership may contain this node with an earlier directory.
        let is_it = |m: &Member| m.directory.0 == 0 || m.directory == self.me.directory;
        let was_member = self.membership.get(self.node()).is_some_and(is_it);
        self.membership = membership;
        self.members_changed();
        self.requests.applied_change(index, self.membership.is_joint());
        if !self.membership.get(self.node()).is_some_and(Member::is_voter) {
            self.stop_leading();
        }
        if was_member && self.membership.get(self.node()).is_none() {
            self.leave("it is no member of this log now");
            self.answers_on = true; // to vote requests: [`Self::send_commit`]
        }
        Ok(())
    }

    /// In a replica that was removed or demoted: sends a voter that requests its vote the commit index, which covers that change.
    ///
    /// A voter that has the change in its log, and does not know that it is committed, still counts this replica as a
    /// voter. A vote would not help it, because the elected leader would need this replica's acknowledgements too. Any
    /// log that could win the vote has all committed entries. So the voter can put the change into force, and does not
    /// need this replica any more. Raft accepts a commit index with a rejected vote.
    ///
    /// Only pre-votes are answered: the answer promises nothing, whatever this disk holds.
    pub(super) fn send_commit(&mut self, question: &Message) {
        if question.get_msg_type() != MessageType::MsgRequestPreVote || planted!(43) {
            return;
        }
        let (commit, commit_term) = self.raw.raft.raft_log.commit_info();
        // The requester's own term: a pre-vote carries the next one.
        let term = question.term.saturating_sub(1);
        let (from, to) = (self.node().0, question.from);
        let mut answer = Message { from, to, term, reject: true, commit, commit_term, ..Message::default() };
        answer.set_msg_type(MessageType::MsgRequestPreVoteResponse);
        self.send(vec![answer]);
    }

    /// Whether this replica is no voter any more, and raft would refuse this pre-vote in a term that is over for the candidate, which
    /// then ignores the refusal. A voter would stand for election itself, and learn of the term by that; a former voter does not. So it
    /// answers with [`Self::send_commit`]: it can have been a leader that alone knew that it is no voter any more, and its log can be
    /// longer than the candidate's for ever.
    pub(super) fn refuses_unheard(&self, question: &Message) -> bool {
        let raft = &self.raw.raft;
        question.get_msg_type() == MessageType::MsgRequestPreVote
            && raft.term < question.term.saturating_sub(1)
            && !self.membership.get(self.node()).is_some_and(Member::is_voter)
            && !raft.raft_log.is_up_to_date(question.index, question.log_term)
    }

    /// Whether a majority of the voters of `membership` (in a joint one: of each half) has durably recorded that
    /// `index` is committed.
    fn is_known(&self, index: EntryIndex, membership: &Membership) -> bool {
        let ignorant = self.ignorant(index, membership);
        let majority = |voters: Vec<u64>| {
            voters.iter().filter(|n| !ignorant.contains(&NodeId(**n))).count() > voters.len() / 2
        };
        let outgoing = membership.voters_outgoing();
        majority(membership.voters()) && (outgoing.is_empty() || majority(outgoing))
    }

    /// The voters of `membership` that are not known to have durably recorded that `index` is committed.
    fn ignorant(&self, index: EntryIndex, membership: &Membership) -> BTreeSet<NodeId> {
        let knows = |node: u64| {
            let progress = || self.raw.raft.prs().get(node).is_some_and(|p| p.committed_index >= index.0);
            if node == self.node().0 { self.durability.commit >= index } else { progress() }
        };
        let voters = membership.voters().into_iter().chain(membership.voters_outgoing());
        voters.filter(|n| !knows(*n)).map(NodeId).collect()
    }

    /// Adapts a message before it is sent. An answer to a leader reports only a commit index that would survive a power
    /// cut of this replica. A leader's heartbeat carries, in a field that raft does not use, how far its own disk is:
    /// only the followers can remember this.
    pub(super) fn durably_known(&self, mut message: Message) -> Message {
        match message.get_msg_type() {
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse => {
                message.commit = message.commit.min(self.durability.commit.0);
            }
            MessageType::MsgHeartbeat if !planted!(44) => message.index = self.extent().last.0,
            _ => {}
        }
        message
    }

    /// Describes what the next committed change waits for before it takes effect.
    pub(super) fn awaited(&self) -> Option<String> {
        let change = self.unapplied.front()?;
        let membership = self.membership_of(change).ok()?;
        let nodes: Vec<String> =
            self.ignorant(EntryIndex(change.index), &membership).iter().map(NodeId::to_string).collect();
        Some(format!(
            "the change of entry {} is committed, and takes effect once a majority of the new voters has recorded \
             this on disk; missing: node {}; until then no other change can be made",
            change.index,
            nodes.join(" and node ")
        ))
    }

    pub(super) fn members_changed(&mut self) {
        let keep = !self.is_alone();
        self.raw.mut_store().keep_bodies(keep);
        self.find_place();
        self.weigh_membership();
        self.update_transport();
        self.end_skips_of_others();
    }

    /// Gives the transport the members' addresses.
    pub(super) fn update_transport(&self) {
        self.cluster.transport.members(&self.all_members());
    }

    /// Transfers leadership, in a leader that is no longer a voter. Raft would continue to lead, and asserts that it is
    /// a member.
    fn stop_leading(&mut self) {
        if self.is_leader() && !planted!(26) {
            self.abdicate();
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
            self.steady();
        }
    }

    /// Stops taking part, for good.
    pub(super) fn leave(&mut self, why: &str) {
        let what = format!("node {} takes no part any more: {why}; its data can still be read", self.node());
        tracing::warn!("{what}");
        self.out = Some(Error::new(ErrorKind::Removed, what));
        self.answers_on = false;
        self.waiting_appends = 0;
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
    }
}

fn wrong_change(entry: &Entry, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("configuration {}: {why}", entry.index))
}
