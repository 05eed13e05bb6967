//! Terms: the terms and leaders that others report to a replica that repairs its log; and the term and vote to continue
//! with if its log has lost its own.
//!
//! The gap can have held a hard state block: this replica's last term, and its vote in it. If a later hard state is in
//! the log, that one counts. If not, the replica must not vote again in a term in which it may have voted. So the gap
//! stays open, durably, until enough was heard: a leader, heard without a pause for two election timeouts, and
//! meanwhile every term that the others are in, use, greet with and remember of this replica. A leader without answers
//! from a majority steps down within that time, so a leader that is heard throughout leads a majority without this
//! replica. Time in which this process was suspended does not count, because messages that are read afterwards may have
//! been sent before. A pre-vote carries the term after the candidate's own, which counts as the term one lower. The
//! highest of these terms is then written into the gap. If it is the heard leader's term, the vote is for that leader;
//! else it is for this replica itself. With such a vote it refuses all others in that term, and no candidate counts it.
//!
//! Invariant: the written state never takes back a promise that is still on the disk ([`binding`]). Every sound block
//! counts, even one that a conflict truncated: this replica was in its term, and cast the vote that it holds.
//!
//! With two voters, none can lead while the other one repairs its log: an earlier leader steps down after an election
//! timeout, and then no leader is heard. Of the current voters, only the other one can have received this replica's
//! vote, and it requested the vote only once its term was on its disk. So its own term, which its pre-votes show, is
//! enough, if it too knows only these two voters ([`super::members::Members::other_of_two`]). A vote of this replica
//! for itself in a later term elected no leader: the other voter would have had to vote as well, and would know that
//! term. If both have lost their hard states, both wait, because neither reports a term of its own.
//!
//! One risk remains. A candidate may have received this replica's vote in a still higher term, and nothing is heard of
//! it in all that time. It can become leader of that term by this vote, and another candidate can be elected in the
//! same term by a second vote of this replica. That needs a lost hard state block *and* a candidate that is cut off
//! from this replica and from all that answer it, except when it requests the vote and while it leads. If only two
//! voters are left, this candidate is an earlier voter that has not heard of its removal.
//!
//! Must not know: files, bytes of messages.

use crate::error::Result;
use crate::record::batch::Malformed;
use crate::store::format::block::BlockHeader;
use crate::store::format::segment::{HardState, Opening, digest_of_bytes};
use crate::store::recovery::gap::BlockCopy;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId, Term};
use bytes::Bytes;
use raft::eraftpb::MessageType;
use std::collections::BTreeSet;
use std::time::Duration;

/// Everything that others have reported of terms.
#[derive(Debug)]
pub(super) struct Terms {
    election_timeout: Duration,
    /// The end of the time in which it listens for the highest term; set in the first step.
    listen_until: Option<Moment>,
    /// The highest term. Every mention of a term raises it: a term that is too high breaks no promise.
    highest: Term,
    leader: Option<Leader>,
    /// The highest term that others remember of this replica: it was on its disk.
    remembered: Term,
    /// The nodes that have reported their own term.
    own: BTreeSet<NodeId>,
}

/// The leader of the highest term in which a leader was heard.
#[derive(Debug, Clone, Copy)]
struct Leader {
    term: Term,
    node: NodeId,
    /// The start of the time in which it was heard without a pause of an election timeout.
    since: Moment,
    /// When it was last heard.
    at: Moment,
}

impl Terms {
    pub(super) fn new(election_timeout: Duration) -> Self {
        let (highest, remembered, own) = (Term(0), Term(0), BTreeSet::new());
        Self { election_timeout, listen_until: None, highest, leader: None, remembered, own }
    }

    /// Starts to listen, in the first call.
    pub(super) fn listen(&mut self, now: Moment) {
        self.listen_until.get_or_insert(now.plus(self.election_timeout * 2));
    }

    pub(super) fn listens_until(&self) -> Option<Moment> {
        self.listen_until
    }

    /// The highest term that was heard.
    pub(super) fn highest(&self) -> Term {
        self.highest
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        self.leader.map(|leader| leader.node)
    }

    /// A message mentions this term.
    pub(super) fn name(&mut self, term: Term) {
        self.highest = self.highest.max(term);
    }

    /// Another replica remembers that this one was in this term.
    pub(super) fn remember(&mut self, term: Term) {
        self.remembered = self.remembered.max(term);
        self.name(term);
    }

    /// A raft message has arrived.
    pub(super) fn on_message(&mut self, from: NodeId, kind: MessageType, term: Term, now: Moment) {
        let term = match kind {
            // It carries the term after the sender's own, which has not begun.
            MessageType::MsgRequestPreVote => {
                self.own.insert(from);
                Term(term.0.saturating_sub(1))
            }
            MessageType::MsgRequestPreVoteResponse => return,
            _ => term,
        };
        let is_leaders =
            matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot);
        if is_leaders && self.leader.is_none_or(|leader| leader.term <= term) {
            let is_same = |leader: &Leader| {
                (leader.term, leader.node) == (term, from) && now.since(leader.at) <= self.election_timeout
            };
            let since = self.leader.filter(is_same).map_or(now, |leader| leader.since);
            self.leader = Some(Leader { term, node: from, since, at: now });
        }
        self.name(term);
    }

    /// Whether a leader of this term is known to have been deposed.
    pub(super) fn is_deposed(&self, term: Term) -> bool {
        term < self.leader.map_or(Term(0), |leader| leader.term).max(self.remembered)
    }

    /// The term and vote for `node` to continue with, once enough was heard.
    ///
    /// # Errors
    /// Those of `other_of_two`.
    pub(super) fn learnt(
        &self,
        now: Moment,
        node: NodeId,
        other_of_two: impl FnOnce() -> Result<Option<NodeId>>,
    ) -> Result<Option<HardState>> {
        if self.listen_until.is_none_or(|until| now < until) {
            return Ok(None);
        }
        let leads = |leader: &Leader| {
            leader.at.since(leader.since) >= self.election_timeout * 2
                && now.since(leader.at) <= self.election_timeout
        };
        let vote = match self.leader.filter(leads) {
            Some(leader) if leader.term == self.highest => leader.node,
            Some(_) => node,
            None if other_of_two()?.is_some_and(|other| self.own.contains(&other)) => node,
            None => return Ok(None),
        };
        Ok(Some(HardState { term: self.highest, vote: vote.0, commit: EntryIndex(0) }))
    }
}

/// The term and vote that satisfy both the learnt state and this disk's. The disk's state wins if its term is later, or
/// if its term is equal and it holds a vote. If it holds no vote in that later term, the vote may have been lost, so
/// this replica votes only for itself in it.
pub(super) fn binding(own: HardState, learnt: HardState, node: NodeId) -> HardState {
    let holds = own.term > learnt.term || own.term == learnt.term && own.vote != 0;
    let vote = if own.vote == 0 { node.0 } else { own.vote };
    if holds { HardState { term: own.term, vote, ..learnt } } else { learnt }
}

/// An opening block with another hard state. Its commit index does not decrease.
pub(super) fn with_state(
    (header, body): BlockCopy,
    state: Option<HardState>,
) -> Result<BlockCopy, Malformed> {
    let Some(state) = state else { return Ok((header, body)) };
    let mut opening = Opening::parse(&body.concat())?;
    let commit = opening.hard_state.commit.max(state.commit.min(header.raft_index));
    opening.hard_state = HardState { commit, ..state };
    let body = opening.encode();
    let body_digest = digest_of_bytes(&[&body]);
    Ok((BlockHeader { body_digest, ..header }, vec![Bytes::from(body)]))
}
