//! Applying: changes of membership that are committed come into force.
//!
//! Invariants:
//! - Raft's configuration and [`Replica::membership`] change together, entry by entry.
//! - A leader brings no change into force, and answers nobody, before a majority of the voters that the change leads to has
//!   a durable word that it is committed. After a power cut of all, any majority of these voters then includes one that
//!   knows them, and needs none that has left. A replica therefore tells others of no commit that it only remembers
//!   ([`Replica::durably_known`]).

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
    /// Entries that are committed and durable here: changes of membership come into force.
    ///
    /// True if anything was applied.
    pub(super) fn apply(&mut self) -> Result<bool> {
        let before = self.raw.raft.raft_log.applied;
        let mut applied = before;
        loop {
            let change = self.unapplied.front().map(|e| EntryIndex(e.index));
            let others = change.map_or(self.settled, |c| EntryIndex(c.0 - 1));
            applied = applied.max(others.0);
            self.asks.applied_others(others);
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

    /// The membership that a change leads to.
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
        // What comes from before its time may speak of the directory that was there before it.
        let is_it = |m: &Member| m.directory.0 == 0 || m.directory == self.me.directory;
        let was_member = self.membership.get(self.node()).is_some_and(is_it);
        self.membership = membership;
        self.members_changed();
        self.asks.applied_change(index, self.membership.is_joint());
        if !self.membership.get(self.node()).is_some_and(Member::is_voter) {
            self.stop_leading();
        }
        if was_member && self.membership.get(self.node()).is_none() {
            self.leave("it was removed from the cluster");
            self.answers_on = true; // those who ask for votes: [`Self::tell_commit`]
        }
        Ok(())
    }

    /// A removed replica tells a voter that asks for its vote what is committed, its own removal included.
    ///
    /// A voter that has the change and does not know that it is committed still counts this replica in. A vote would not do:
    /// what is elected with it would need acknowledgements too. Any log that could win the vote has all that is committed, so
    /// the voter can bring the change into force, and needs this replica no more. Raft takes a commit from a refusal.
    ///
    /// Only questions before an election are answered: that promises nothing, whatever this disk holds.
    pub(super) fn tell_commit(&mut self, question: &Message) {
        if question.get_msg_type() != MessageType::MsgRequestPreVote || planted!(43) {
            return;
        }
        let (commit, commit_term) = self.raw.raft.raft_log.commit_info();
        // The asker's own term: it asks in the name of the next one.
        let term = question.term.saturating_sub(1);
        let (from, to) = (self.node().0, question.from);
        let mut answer = Message { from, to, term, reject: true, commit, commit_term, ..Message::default() };
        answer.set_msg_type(MessageType::MsgRequestPreVoteResponse);
        self.send(vec![answer]);
    }

    /// Whether a majority of the voters of `membership`, of each half of a joint one, durably knows that `index` is
    /// committed.
    fn is_known(&self, index: EntryIndex, membership: &Membership) -> bool {
        let ignorant = self.ignorant(index, membership);
        let majority = |voters: Vec<u64>| {
            voters.iter().filter(|n| !ignorant.contains(&NodeId(**n))).count() > voters.len() / 2
        };
        let outgoing = membership.voters_outgoing();
        majority(membership.voters()) && (outgoing.is_empty() || majority(outgoing))
    }

    /// The voters of `membership` that are not known to know durably that `index` is committed.
    fn ignorant(&self, index: EntryIndex, membership: &Membership) -> BTreeSet<NodeId> {
        let knows = |node: u64| {
            let progress = || self.raw.raft.prs().get(node).is_some_and(|p| p.committed_index >= index.0);
            if node == self.node().0 { self.durability.commit >= index } else { progress() }
        };
        let voters = membership.voters().into_iter().chain(membership.voters_outgoing());
        voters.filter(|n| !knows(*n)).map(NodeId).collect()
    }

    /// A message as it may leave. An answer to a leader speaks of no commit that a power cut would take from this replica. A
    /// leader's heartbeat tells, where raft has no use for it, how far its own disk is: nobody else would remember.
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

    /// What a change that is committed waits for before it comes into force, in words.
    pub(super) fn awaited(&self) -> Option<String> {
        let change = self.unapplied.front()?;
        let membership = self.membership_of(change).ok()?;
        let nodes: Vec<String> =
            self.ignorant(EntryIndex(change.index), &membership).iter().map(NodeId::to_string).collect();
        Some(format!(
            "the change of entry {} is committed, and comes into force once a majority of the voters that it leads \
             to has that on its disk; this was not heard of node {}; no other change can be made before",
            change.index,
            nodes.join(" and node ")
        ))
    }

    pub(super) fn members_changed(&mut self) {
        let keep = !self.is_alone();
        self.raw.mut_store().keep_bodies(keep);
        self.find_place();
        self.weigh_membership();
        self.tell_transport();
    }

    /// Tells the transport where the members are.
    pub(super) fn tell_transport(&self) {
        self.cluster.transport.members(&self.all_members());
    }

    /// A leader that has left the voters lets another lead; raft itself would go on, and asserts that it is among
    /// the members.
    fn stop_leading(&mut self) {
        if self.is_leader() && !planted!(26) {
            self.abdicate();
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
            self.steady();
        }
    }

    /// Takes no part any more.
    pub(super) fn leave(&mut self, why: &str) {
        let what = format!("node {} takes no part any more: {why}; its data can still be read", self.node());
        tracing::warn!("{what}");
        self.out = Some(Error::new(ErrorKind::Removed, what));
        self.answers_on = false;
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
    }
}

fn wrong_change(entry: &Entry, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("configuration {}: {why}", entry.index))
}
