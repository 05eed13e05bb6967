//! Introduction: a replica that has started hears from the others before it takes part again.
//!
//! Its disk can have been set back to an older state, which lacks entries that it acknowledged and votes that it cast.
//! The others may remember them. So it greets every member, and exchanges no raft messages with a member until that
//! member has answered. The first answer then describes earlier runs only, and can be compared with the disk as it was
//! found.
//!
//! ```text
//!  starts ── Hello ──> every member, and every node that sends it anything
//!         <── Known ── what the member heard of this directory; the newest membership that it knows
//!  follows a leader: once that leader has answered
//!  votes and starts elections: once all voters have answered; or once a majority has answered and an election
//!  timeout has passed since
//! ```
//!
//! Invariants:
//! - Either side can send first. A replica that remembers none of the current members learns of them from any node that
//!   sends it something, and it answers greetings while it waits for answers itself.
//! - A replica that is introduced stays introduced. A replica of which another one remembers more than its disk holds
//!   takes no part any more.
//!
//! The others keep what they heard in memory only. If no reachable member remembers what a set-back disk lost, the loss
//! is not noticed. This is a last line of defense in addition to reliable disks, not a replacement for them.

use super::checks::is_aside;
use crate::cluster::membership::{Member, Membership};
use crate::record::batch::{Malformed, u64_at};
use crate::replica::raft::Replica;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::store::format::identity::Identity;
use crate::types::{DirectoryId, EntryIndex, NodeId, Term};
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeSet;

/// The answers to a replica that has started.
#[derive(Debug)]
pub(crate) struct Introduction {
    /// The durable state of the disk when this run began. Earlier runs reported no more than this, or the disk was set
    /// back.
    found: Extent,
    /// The members that have answered.
    answered: BTreeSet<NodeId>,
    /// The newest membership that they reported, and the committed entry as of which it holds. None once this replica
    /// knows as much. All members that this replica remembers may have left.
    newer: Option<(EntryIndex, Membership)>,
    /// The members greeted since the last tick.
    greeted: BTreeSet<NodeId>,
    /// Ticks since this run began.
    ticks: usize,
    /// Ticks since a majority of the voters had answered.
    waited: Option<usize>,
    /// Whether it may vote.
    votes: bool,
    /// Whether it has cast a vote in this run.
    voted: bool,
}

/// How far a replica's durable state is known to reach. It never goes back: within one term no leader truncates entries
/// that were acknowledged to it, or its own; and a term that was sent is durable.
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
        let body: &[u8; Self::BYTES] =
            body.try_into().map_err(|_| "introduction has an unexpected length")?;
        Ok(Self { term: Term(u64_at(body, 0)), last: EntryIndex(u64_at(body, 8)) })
    }
}

impl Replica {
    /// Starts the introduction of a replica on an existing directory. It is required even if the replica was no voter,
    /// or no member, in this disk's state. The only voter of a cluster needs none, because it knows its own promises.
    pub(crate) fn await_introduction(&mut self) {
        let node = self.node();
        // If only an uncommitted entry makes it the only voter, it can have voted for another node.
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

    /// Whether raft messages are exchanged with this member.
    pub(crate) fn is_introduced_to(&self, node: NodeId) -> bool {
        self.introduction.as_ref().is_none_or(|i| i.answered.contains(&node))
    }

    /// Whether this replica may vote and start elections.
    pub(crate) fn may_vote(&self) -> bool {
        self.introduction.as_ref().is_none_or(|i| i.votes)
    }

    /// A member of the newest known membership: the one that others reported, the one in force, or the last one in the
    /// log.
    pub(crate) fn member(&self, node: NodeId) -> Option<&Member> {
        let newer = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let here = || self.membership.get(node).or_else(|| self.sequencer.membership_at_end().get(node));
        newer.and_then(|(_, newer)| newer.get(node)).or_else(here)
    }

    /// The entry that a leader's commit index has to cover for the leader to know whether this replica was removed: the
    /// entry that added it, or the last entry that this replica knows to be committed. None: it is in no membership
    /// that it knows.
    pub(crate) fn last_known_member_at(&self) -> Option<EntryIndex> {
        let node = self.node();
        let is_it = |m: &Membership| {
            m.get(node).is_some_and(|m| m.directory.0 == 0 || m.directory == self.me.directory)
        };
        let committed = is_it(&self.membership).then(|| self.committed());
        let pending =
            self.sequencer.pending_membership().filter(|_| is_it(self.sequencer.membership_at_end()));
        let newer = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let newer = newer.filter(|(_, newer)| is_it(newer)).map(|(at, _)| *at);
        let newest = [committed, pending, newer].into_iter().flatten().max()?;
        Some(newest.max(self.committed()))
    }

    /// Returns the identity to write, once this replica, which was a copy, is durably known to have been added: it has an entry behind
    /// those of the copy, which a leader sends only when it has added it, or the one that adds it. A directory whose log was on its own, as far
    /// as its entries say, goes on saying that it is a replica.
    pub(crate) fn take_admission(&mut self, durable: EntryIndex) -> Option<Identity> {
        if !self.me.joins {
            return None;
        }
        let committed = self.sequencer.committed();
        let is_it = |member: &Member| member.directory == self.me.directory;
        let is_member =
            committed.changed <= durable && committed.membership.get(self.node()).is_some_and(is_it);
        let was_sent = durable > self.copied && *self.sequencer.membership_at_end() != Membership::alone();
        self.me.joins = !(is_member || was_sent);
        (!self.me.joins).then_some(self.me)
    }

    /// All known members, including those that others reported.
    pub(crate) fn all_members(&self) -> Vec<Member> {
        let newer = self.introduction.as_ref().and_then(|i| i.newer.as_ref());
        let newer = newer.into_iter().flat_map(|(_, newer)| newer.members());
        let mut all: Vec<Member> = Vec::new();
        for member in
            newer.chain(self.membership.members()).chain(self.sequencer.membership_at_end().members())
        {
            if all.iter().all(|m| m.node != member.node) {
                all.push(member.clone());
            }
        }
        all
    }

    /// Processes a tick.
    pub(crate) fn await_answers(&mut self) {
        let wait_limit = self.ticks.election;
        let Some(introduction) = &mut self.introduction else { return };
        introduction.greeted.clear();
        introduction.ticks += 1;
        if let Some(waited) = &mut introduction.waited {
            *waited += 1;
        }
        // The membership can change while too few have answered: ask those that did again.
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

    /// Greets the members that have not answered.
    fn greet_all(&mut self) {
        for member in self.all_members() {
            if !self.is_introduced_to(member.node) {
                self.greet(member.node);
            }
        }
    }

    /// Greets a node, at most once in a tick: otherwise two replicas would answer each other's greetings without end.
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

    /// A learner requests no votes, nor does a replica that does not know yet that its addition is committed. If it hears no leader for
    /// long, it asks whether it is still a member.
    pub(crate) fn query_membership(&mut self) {
        let silence = self.raw.raft.election_elapsed;
        let asks = match self.membership.get(self.node()) {
            Some(member) => !member.is_voter(),
            None => self.has_entries() && !self.me.joins && self.exclusion().is_none(),
        };
        if asks && silence > 0 && silence.is_multiple_of(self.ticks.election) {
            let head = raft_message::head(HeadKind::Hello, &self.extent().encode());
            let node = self.node();
            for member in self.all_members().iter().filter(|member| member.node != node) {
                self.post(member.node, head.clone());
            }
        }
    }

    /// How far this replica's durable state reaches: it has reported no more than that.
    pub(crate) fn extent(&self) -> Extent {
        let log = &self.raw.raft.raft_log;
        Extent { term: self.durability.term, last: EntryIndex(log.persisted) }
    }

    /// Records how far another replica's durable state reaches.
    pub(crate) fn record_extent(&mut self, from: NodeId, directory: DirectoryId, message: &Message) {
        // A pre-vote carries a term that the candidate has not begun yet.
        if is_aside(message) || message.term == 0 || self.membership.get(from).is_none() {
            return;
        }
        let acknowledges = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        // A leader's heartbeat carries how far its own disk is. Earlier versions send 0.
        let leads = message.get_msg_type() == MessageType::MsgHeartbeat;
        let last = EntryIndex(if acknowledges || leads { message.index } else { 0 });
        let heard = self.peers.heard.entry((from, directory)).or_default();
        *heard = (*heard).max(Extent { term: Term(message.term), last });
    }

    /// Receives a greeting: a replica has started, or hears no leader. Sends it what is known of it.
    pub(crate) fn on_hello(
        &mut self,
        from: NodeId,
        directory: DirectoryId,
        body: &[u8],
    ) -> Result<(), Malformed> {
        Extent::parse(body)?;
        self.has_started(from);
        if self.member(from).is_none() && self.is_leader() {
            self.send_removed(from, directory);
            return Err("greeting from a node that is no member");
        }
        let committed = self.sequencer.committed();
        let known = self.peers.heard.get(&(from, directory)).copied().unwrap_or_default();
        let mut body = known.encode().to_vec();
        body.extend_from_slice(&committed.raft.0.to_le_bytes());
        body.extend_from_slice(&committed.membership.encode());
        self.post(from, raft_message::head(HeadKind::Known, &body));
        // This replica may not know that the sender is a member, and so would not greet it otherwise.
        if !self.is_introduced_to(from) {
            self.greet(from);
        }
        Ok(())
    }

    /// Receives another replica's answer: what it knows of this replica, and the membership.
    pub(crate) fn on_known(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
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
                "node {from} remembers that this directory had entry {} in term {}, but its disk held entry {} in term {} \
                 when it was opened: the disk was set back to an older state",
                known.last, known.term, found.last, found.term
            );
            if !introduction.voted {
                self.leave(&what);
                return Err("this replica's disk was set back");
            }
            // A leader may have its vote already. Leaving now would not restore what that leader lacks, and could take
            // the majority from the others.
            tracing::error!(
                %node,
                "{what}; this was not known before this replica voted: acknowledged records may be missing"
            );
        }
        if at > introduction.newer.as_ref().map_or(committed, |(at, _)| *at) {
            introduction.newer = Some((at, membership));
            self.update_transport();
        }
        self.weigh_answers();
        self.say_again();
        Ok(())
    }

    /// Records that this replica has cast a vote.
    pub(crate) fn has_voted(&mut self) {
        if let Some(introduction) = &mut self.introduction {
            introduction.voted = true;
        }
    }

    /// The membership here has changed, and may now be as new as the reported one.
    pub(crate) fn weigh_membership(&mut self) {
        let committed = self.sequencer.committed().raft;
        if let Some(introduction) = &mut self.introduction {
            introduction.newer.take_if(|(at, _)| *at <= committed);
        }
        self.weigh_answers();
    }

    /// Decides whether this replica may vote. Those that answered have to be able to elect a leader together with it,
    /// in its own membership or in the reported one. The other voters have to have answered too, or had an election
    /// timeout to do so.
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
