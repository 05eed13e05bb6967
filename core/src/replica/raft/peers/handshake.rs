//! Introduction: what a replica that has started hears from the others before it takes part again.
//!
//! Its disk can have been set back to an older state, in which it has forgotten what it acknowledged and promised. The
//! others may remember. So it greets every member, and until one has answered, nothing of raft's goes to or comes from that
//! one: the first answer then tells of earlier lives only, and can be held against the disk as it was found.
//!
//! ```text
//!  starts ── Hello ──> every member, and everybody who sends it anything
//!         <── Known ── what that one heard of this directory; the newest membership that it knows
//!  follows a leader: once that leader has answered
//!  votes, and stands for election: once a majority of the voters has answered, and so has every other voter, or an
//!  election time-out has passed in which it could
//! ```
//!
//! Invariants:
//! - Either side can speak first: a replica that remembers none of today's members hears of them from any node that sends
//!   it something, and answers greetings while it waits for answers itself.
//! - A replica that is introduced stays so. One of which somebody remembers more than its disk holds takes no part again.
//!
//! The others keep what they heard in memory only. If no reachable member remembers what a set-back disk lost, the loss is
//! not noticed. It is the last line behind disks that keep their word, not one that replaces it.

use super::checks::is_aside;
use crate::cluster::membership::{Member, Membership};
use crate::record::batch::{Malformed, u64_at};
use crate::replica::raft::Replica;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::types::{DirectoryId, EntryIndex, NodeId, Term};
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeSet;

/// The answers to a replica that has started.
#[derive(Debug)]
pub(crate) struct Introduction {
    /// How far the disk was when this life began. Earlier lives told the others of no more, or the disk was set back.
    found: Extent,
    /// The members that have answered.
    answered: BTreeSet<NodeId>,
    /// The newest membership that they told of, as of which committed entry; none once this replica knows as much. Those
    /// that this replica remembers may all be gone.
    newer: Option<(EntryIndex, Membership)>,
    /// The members greeted since the last tick.
    greeted: BTreeSet<NodeId>,
    /// Ticks since it began.
    ticks: usize,
    /// Ticks since a majority of the voters had answered.
    waited: Option<usize>,
    /// Whether it votes.
    votes: bool,
    /// Whether it has given a vote in this life.
    voted: bool,
}

/// How far a replica is known to be. It never goes back: in one term no leader cuts off what was acknowledged to it, or what
/// it has itself, and a term that was spoken of is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) term: Term,
    pub(crate) last: EntryIndex,
}

impl Extent {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&self.term.0.to_le_bytes());
        b[8..].copy_from_slice(&self.last.0.to_le_bytes());
        b
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body: &[u8; Self::BYTES] = body.try_into().map_err(|_| "introduction has another length")?;
        Ok(Self { term: Term(u64_at(body, 0)), last: EntryIndex(u64_at(body, 8)) })
    }
}

impl Replica {
    /// A replica that has started on a directory that was there is to be introduced. It may have been no voter when its
    /// disk was in this state, or no member. One whose only voter it is knows by itself what it has promised.
    pub(crate) fn await_introduction(&mut self) {
        let node = self.node();
        // A voter for whose being alone only what is not committed speaks can have voted for another.
        let alone = |m: &Membership| m.is_alone(node);
        if alone(&self.membership) && alone(self.sequencer.membership_at_end()) || planted!(32) {
            return;
        }
        self.introduction = Some(Introduction {
            found: self.extent(),
            answered: BTreeSet::new(),
            newer: None,
            greeted: BTreeSet::new(),
            ticks: 0,
            waited: None,
            votes: false,
            voted: false,
        });
        self.greet_all();
    }

    /// Whether raft's messages go to and come from this member.
    pub(crate) fn is_introduced_to(&self, node: NodeId) -> bool {
        self.introduction.as_ref().is_none_or(|i| i.answered.contains(&node))
    }

    /// Whether this replica may vote and stand for election.
    pub(crate) fn may_vote(&self) -> bool {
        self.introduction.as_ref().is_none_or(|i| i.votes)
    }

    /// A member as the newest known membership has it: today's, what is in the log, or what others have told.
    pub(crate) fn member(&self, node: NodeId) -> Option<&Member> {
        let told = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let here = || self.membership.get(node).or_else(|| self.sequencer.membership_at_end().get(node));
        told.and_then(|(_, newer)| newer.get(node)).or_else(here)
    }

    /// The entry up to which a leader has to know the log to know whether this replica was removed: one that made it a
    /// member, or the last one that this replica knows committed. None: no membership that it knows has it.
    pub(crate) fn last_known_member_at(&self) -> Option<EntryIndex> {
        let node = self.node();
        let is_it = |m: &Membership| {
            m.get(node).is_some_and(|m| m.directory.0 == 0 || m.directory == self.me.directory)
        };
        let committed = is_it(&self.membership).then(|| self.committed());
        let pending =
            self.sequencer.pending_membership().filter(|_| is_it(self.sequencer.membership_at_end()));
        let told = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let told = told.filter(|(_, newer)| is_it(newer)).map(|(at, _)| *at);
        let newest = [committed, pending, told].into_iter().flatten().max()?;
        Some(newest.max(self.committed()))
    }

    /// All members that are known of, with what the others have told.
    pub(crate) fn all_members(&self) -> Vec<Member> {
        let told = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let told = told.into_iter().flat_map(|(_, newer)| newer.members());
        let mut all: Vec<Member> = Vec::new();
        for member in
            told.chain(self.membership.members()).chain(self.sequencer.membership_at_end().members())
        {
            if all.iter().all(|m| m.node != member.node) {
                all.push(member.clone());
            }
        }
        all
    }

    /// A tick has passed.
    pub(crate) fn await_answers(&mut self) {
        let wait_limit = self.ticks.election;
        let Some(introduction) = &mut self.introduction else { return };
        introduction.greeted.clear();
        introduction.ticks += 1;
        if let Some(waited) = &mut introduction.waited {
            *waited += 1;
        }
        // The membership can change while too few have answered: those that did are asked again.
        let again = !introduction.votes && introduction.ticks.is_multiple_of(wait_limit);
        if again {
            let asked: Vec<NodeId> = introduction.answered.iter().copied().collect();
            for node in asked {
                self.greet(node);
            }
        }
        self.greet_all();
        self.weigh_answers();
    }

    /// Greets those that have not answered.
    fn greet_all(&mut self) {
        for member in self.all_members() {
            if !self.is_introduced_to(member.node) {
                self.greet(member.node);
            }
        }
    }

    /// Greets one, unless this was done since the last tick: greetings that answer each other would not end.
    pub(crate) fn greet(&mut self, to: NodeId) {
        let extent = self.extent();
        let node = self.node();
        if let Some(introduction) = &mut self.introduction
            && to != node
            && introduction.greeted.insert(to)
        {
            self.post(to, raft_message::head(HeadKind::Hello, &extent.encode()));
        }
    }

    /// A learner asks for no votes. If it hears of no leader for long, it asks whether it is a member still.
    pub(crate) fn ask_whether_removed(&mut self) {
        let silence = self.raw.raft.election_elapsed;
        let is_learner = self.membership.get(self.node()).is_some_and(|m| !m.is_voter());
        if is_learner && silence > 0 && silence.is_multiple_of(self.ticks.election) {
            let head = raft_message::head(HeadKind::Hello, &self.extent().encode());
            for to in self.others() {
                self.post(to, head.clone());
            }
        }
    }

    /// How far this replica is, durably: it has spoken of no more.
    pub(crate) fn extent(&self) -> Extent {
        let log = &self.raw.raft.raft_log;
        Extent { term: self.durability.term, last: EntryIndex(log.persisted) }
    }

    /// Remembers how far another replica is.
    pub(crate) fn hear(&mut self, from: NodeId, directory: DirectoryId, message: &Message) {
        // A candidate asks the others in the name of a term that it has not begun yet.
        if is_aside(message) || message.term == 0 || self.membership.get(from).is_none() {
            return;
        }
        let acknowledges = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        // A leader tells how far its own disk is: earlier versions say 0.
        let leads = message.get_msg_type() == MessageType::MsgHeartbeat;
        let last = EntryIndex(if acknowledges || leads { message.index } else { 0 });
        let heard = self.peers.heard.entry((from, directory)).or_default();
        *heard = (*heard).max(Extent { term: Term(message.term), last });
    }

    /// Another replica has started, or hears of no leader: tells it what is known of it.
    pub(crate) fn greeted(
        &mut self,
        from: NodeId,
        directory: DirectoryId,
        body: &[u8],
    ) -> Result<(), Malformed> {
        Extent::parse(body)?;
        if self.member(from).is_none() && self.is_leader() {
            self.tell_removed(from, directory);
            return Err("a node that is no member asks what is known of it");
        }
        let committed = self.sequencer.committed();
        let known = self.peers.heard.get(&(from, directory)).copied().unwrap_or_default();
        let mut body = known.encode().to_vec();
        body.extend_from_slice(&committed.raft.0.to_le_bytes());
        body.extend_from_slice(&committed.membership.encode());
        self.post(from, raft_message::head(HeadKind::Known, &body));
        // It may be a member that this replica never heard of, and would not greet by itself.
        if !self.is_introduced_to(from) {
            self.greet(from);
        }
        Ok(())
    }

    /// Another replica has told what it knows of this one, and who belongs to the cluster.
    pub(crate) fn introduced(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let (known, news) = body.split_at_checked(Extent::BYTES).ok_or("introduction is cut off")?;
        let (at, membership) = news.split_at_checked(8).ok_or("introduction is cut off")?;
        let (known, at) = (Extent::parse(known)?, EntryIndex(u64_at(at, 0)));
        let membership = Membership::decode(membership)?;
        let committed = self.sequencer.committed().raft;
        let node = self.node();
        let Some(introduction) = &mut self.introduction else { return Ok(()) };
        if planted!(42) {
            return Ok(());
        }
        let is_first = introduction.answered.insert(from);
        if is_first && known > introduction.found && !planted!(33) {
            let found = introduction.found;
            let what = format!(
                "node {from} remembers that this directory had entry {} in term {}, and its disk held entry {} in term {} \
                 when it was opened: the disk was set back to an older state",
                known.last, known.term, found.last, found.term
            );
            if !introduction.voted {
                self.leave(&what);
                return Err("this replica's disk was set back");
            }
            // A leader may have its vote already. To leave now would not bring back what that one lacks, and could take
            // the majority from the others.
            tracing::error!(
                %node,
                "{what}; it was not known before this replica voted: records acknowledged before may be missing"
            );
        }
        if at > introduction.newer.as_ref().map_or(committed, |(at, _)| *at) {
            introduction.newer = Some((at, membership));
            self.tell_transport();
        }
        self.weigh_answers();
        Ok(())
    }

    /// This replica has given a vote.
    pub(crate) fn has_voted(&mut self) {
        if let Some(introduction) = &mut self.introduction {
            introduction.voted = true;
        }
    }

    /// The membership here has changed: what others told may be known here by now.
    pub(crate) fn weigh_membership(&mut self) {
        let committed = self.sequencer.committed().raft;
        if let Some(introduction) = &mut self.introduction {
            introduction.newer.take_if(|(at, _)| *at <= committed);
        }
        self.weigh_answers();
    }

    /// Whether enough have answered for this replica to vote: so many that they could elect a leader with it, as it
    /// remembers the voters or as those who answered know them; and all others, or those had their time.
    fn weigh_answers(&mut self) {
        let node = self.node();
        let voters: BTreeSet<NodeId> =
            self.all_members().iter().filter(|m| m.is_voter() && m.node != node).map(|m| m.node).collect();
        let Some(introduction) = &mut self.introduction else { return };
        if introduction.votes {
            return;
        }
        let mut there = introduction.answered.clone();
        there.insert(node);
        let newer = introduction.newer.as_ref().is_some_and(|(_, newer)| newer.is_majority(&there));
        if !(newer || self.membership.is_majority(&there)) {
            introduction.waited = None;
            return;
        }
        let waited = *introduction.waited.get_or_insert(0);
        introduction.votes = voters.is_subset(&introduction.answered) || waited >= self.ticks.election;
    }
}
