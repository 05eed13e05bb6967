//! Terms: what others say of terms and leaders to a replica that repairs its log, and what it goes on with if its log has
//! lost its own term and vote.
//!
//! The hole can have held a hard state block: the last term this replica lived in, and whom it voted for. If a later
//! one stands in the log it says all. If not, the replica must not vote again in a term in which it may have voted. So
//! the wound stays open, durably, until enough was heard: a leader that was heard without a pause for two election time-outs,
//! and whatever terms the others are in, use, greet with and remember of this replica meanwhile. A leader that a majority does
//! not answer steps down in that time, so one that is heard through it leads a majority without this replica. Time in which
//! this process stood still counts for nothing: what is read then may have been sent before. A
//! question before an election tells the term that its candidate is in: one behind it. The highest of these terms is then
//! written into the hole, with a vote for its leader if that is the leader's term, else for this replica itself: which
//! refuses everybody else in that term, and is nowhere counted.
//!
//! Invariant: what this replica writes never takes back what its disk still says ([`binding`]). Every sound block counts
//! for that, one that a conflict cut off too: this replica was in its term, and gave the vote that it tells of.
//!
//! Of two voters none can lead while the other repairs its log: a leader from before steps down after an election
//! time-out, and then none is heard. Of today's voters the other one is then the only candidate that can have got this
//! replica's vote, and it asked only once its term was on its disk. So its own term, which its questions before an election
//! tell, is enough, if it too knows these two voters alone ([`super::members::Members::other_of_two`]). A vote that this replica gave itself
//! in a later term elected nobody: the other one would have had to vote as well, and would know that term. If both have lost
//! their hard states, both wait, for neither tells a term of its own.
//!
//! One risk remains: a candidate that got this replica's vote in a still higher term, and of which nothing is heard in all
//! that time, can come to lead that term by it, and another one be elected in it with a second vote of this replica.
//! That needs a lost hard state block *and* a candidate that is cut off from this replica and from all that answer it,
//! except in the moment in which it asked for the vote and the moments in which it leads. Where two voters are left, this
//! candidate is one that was a voter before, and has not heard of its removal.
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

/// All that others have said of terms.
#[derive(Debug)]
pub(super) struct Terms {
    election_timeout: Duration,
    /// Until when it listens before it believes to have heard the highest term; from the first turn on.
    listen_until: Option<Moment>,
    /// The highest one. Whatever names a term raises it: a term that is too high takes no promise back.
    highest: Term,
    leader: Option<Leader>,
    /// The highest one that the others have from this replica: it was on its disk.
    remembered: Term,
    /// Those that have told the term that they are in themselves.
    own: BTreeSet<NodeId>,
}

/// The leader of the highest term that one was heard in.
#[derive(Debug, Clone, Copy)]
struct Leader {
    term: Term,
    node: NodeId,
    /// From when on it was heard without a pause of an election time-out.
    since: Moment,
    /// When it was heard last.
    at: Moment,
}

impl Terms {
    pub(super) fn new(election_timeout: Duration) -> Self {
        let (highest, remembered, own) = (Term(0), Term(0), BTreeSet::new());
        Self { election_timeout, listen_until: None, highest, leader: None, remembered, own }
    }

    /// Begins to listen with the first call.
    pub(super) fn listen(&mut self, now: Moment) {
        self.listen_until.get_or_insert(now.plus(self.election_timeout * 2));
    }

    pub(super) fn listens_until(&self) -> Option<Moment> {
        self.listen_until
    }

    /// The highest term that was heard of.
    pub(super) fn highest(&self) -> Term {
        self.highest
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        self.leader.map(|leader| leader.node)
    }

    /// Something names this term.
    pub(super) fn name(&mut self, term: Term) {
        self.highest = self.highest.max(term);
    }

    /// Another replica remembers that this one was in this term.
    pub(super) fn remember(&mut self, term: Term) {
        self.remembered = self.remembered.max(term);
        self.name(term);
    }

    /// A message of raft's has come.
    pub(super) fn hear(&mut self, from: NodeId, kind: MessageType, term: Term, now: Moment) {
        let term = match kind {
            // In the name of the term behind its own, which has not begun.
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

    /// Whether a leader of this term was deposed, as far as was heard.
    pub(super) fn is_deposed(&self, term: Term) -> bool {
        term < self.leader.map_or(Term(0), |leader| leader.term).max(self.remembered)
    }

    /// The term and vote for `node` to go on with, once enough was heard.
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

/// Term and vote that hold both what was learnt and what this replica's disk says. If that is of a later term, or of the same
/// one with a vote, it stands. A vote in that term can have been lost all the same, so this replica votes for nobody else in it.
pub(super) fn binding(own: HardState, learnt: HardState, node: NodeId) -> HardState {
    let holds = own.term > learnt.term || own.term == learnt.term && own.vote != 0;
    let vote = if own.vote == 0 { node.0 } else { own.vote };
    if holds { HardState { term: own.term, vote, ..learnt } } else { learnt }
}

/// An opening block with another hard state. Its commit index does not go down.
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
