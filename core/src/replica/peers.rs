//! The other replicas: what leaves for them and what is let in from them.
//!
//! Raft checks neither for whom a message is, nor of which log, nor whether the sender is who it says, and asserts
//! where a message contradicts its state. So all of that is checked here, before it.

use super::Replica;
use super::pace::is_urgent;
use crate::batch::{Malformed, u64_at};
use crate::error::{Error, ErrorKind};
use crate::membership::{Member, Membership};
use crate::moment::Moment;
use crate::raft_codec::{self, Arrived, EntryKind, HeadKind};
use crate::transport::Envelope;
use crate::types::{DirectoryId, NodeId, RaftIndex, Term};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered of the others.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Snapshots on their way, and until when they may be.
    snapshots: BTreeMap<u64, Moment>,
    /// When each was last heard.
    heard_at: BTreeMap<NodeId, Moment>,
    /// What each directory was heard to have durably: a term, and how far its log reached in it.
    heard: BTreeMap<(NodeId, DirectoryId), Extent>,
    /// Who has told this replica, since it started, what it knows of it. None: enough of them have.
    introduced_by: Option<Introductions>,
}

/// The answers to a replica that has started.
#[derive(Debug, Default)]
struct Introductions {
    by: BTreeSet<NodeId>,
    /// The newest membership that they told of, as of which committed entry. Those this replica remembers may all be
    /// gone.
    newer: Option<(RaftIndex, Membership)>,
}

/// Whether these are a majority of the voters, in both halves of a joint configuration.
fn is_majority(membership: &Membership, nodes: &BTreeSet<NodeId>) -> bool {
    let of = |half: Vec<u64>| {
        let there = half.iter().filter(|n| nodes.contains(&NodeId(**n))).count();
        half.is_empty() || there * 2 > half.len()
    };
    of(membership.voters()) && of(membership.voters_outgoing())
}

/// Who has said nothing for so long is not waited for when the log is closed.
const HEARTBEATS_OF_SILENCE: u32 = 3;

/// Bytes of an [`Extent`].
const EXTENT_BYTES: usize = 16;

/// How far a replica is known to be. It never goes back: in one term no leader cuts off what was acknowledged to it,
/// and a term that was spoken of is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    term: Term,
    last: RaftIndex,
}

impl Extent {
    fn encode(self) -> [u8; EXTENT_BYTES] {
        let mut b = [0; EXTENT_BYTES];
        b[..8].copy_from_slice(&self.term.0.to_le_bytes());
        b[8..].copy_from_slice(&self.last.0.to_le_bytes());
        b
    }

    fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body: &[u8; EXTENT_BYTES] = body.try_into().map_err(|_| "introduction has another length")?;
        Ok(Self { term: Term(u64_at(body, 0)), last: RaftIndex(u64_at(body, 8)) })
    }
}

/// What of a message is for raft, with the bodies of its entries.
pub(super) type ForRaft = Option<(Message, Vec<Arrived>)>;

impl Replica {
    /// Checks a message. What comes back is for raft.
    pub(super) fn open_envelope(&mut self, envelope: Envelope, now: Moment) -> Result<ForRaft, Malformed> {
        let Envelope { log, from, from_directory, to, to_directory, head, bodies, urgent: _ } = envelope;
        if log != self.me.log {
            return Err("it is of another log");
        }
        if to != self.node() || from == self.node() || from.is_none() {
            return Err("it is for another node");
        }
        let known = self.membership.get(from).or_else(|| self.sequencer.membership_at_end().get(from));
        let is_impostor =
            known.is_some_and(|m| m.directory.0 != 0 && m.directory != from_directory) && !planted!(16);
        let is_member = known.is_some();
        let stranger = !is_member && self.membership.get(self.node()).is_some();
        if is_impostor {
            self.tell_impostor(from, from_directory, &head);
            return Err("its sender's directory is not the one the cluster knows");
        }
        if to_directory.0 != 0 && !planted!(16) {
            self.learn_place(&head, to_directory);
            if to_directory != self.me.directory {
                return Err("it is for another directory: this node's disk was emptied or replaced");
            }
        }
        let (kind, body) = raft_codec::parse_head(&head)?;
        match kind {
            HeadKind::Raft => {}
            HeadKind::Removed => return self.told_removed(&body, stranger).map(|()| None),
            HeadKind::Hello => return self.greeted(from, from_directory, &body).map(|()| None),
            HeadKind::Known => return self.introduced(from, &body).map(|()| None),
            // A leader that is on its way out is one until the others know that it is.
            HeadKind::Fetch | HeadKind::Blocks if !is_member && from.0 != self.raw.raft.leader_id => {
                return Err("entries for, or from, a node that is no member");
            }
            HeadKind::Fetch => return self.lend(from, &body, now).map(|()| None),
            HeadKind::Blocks => return self.brought(&body, bodies).map(|()| None),
        }
        let (message, arrived) = raft_codec::decode_message(&body, bodies)?;
        if message.from != from.0 || message.to != to.0 {
            return Err("raft's message is from or for another node than its envelope says");
        }
        self.check_message(&message)?;
        if is_member || from.0 == self.raw.raft.leader_id {
            self.peers.heard_at.insert(from, now);
        }
        self.hear(from, from_directory, &message);
        if self.peers.introduced_by.is_some() {
            // All that this replica remembers may be gone: who wants something of it can tell who belongs to the cluster.
            if !is_member || is_candidates(&message) {
                let hello = raft_codec::head(HeadKind::Hello, &self.extent().encode());
                self.post(from, hello);
            }
            return Err("it comes before it is known that the disk is not an older one");
        }
        // A leader knows who belongs to the cluster. Anybody else may lack the entry that let the candidate in, and its
        // vote may be the one that is missing.
        if stranger && is_candidates(&message) && self.is_leader() {
            self.tell_removed(from, from_directory);
            return Err("a node that is no member asks for votes");
        }
        Ok(Some((message, arrived)))
    }

    /// A leader's message says which directory the cluster takes for this node's: if it is another one, this replica
    /// takes no part. One that says that it is this one after all is as good: the sender of an earlier one knew less.
    fn learn_place(&mut self, head: &Bytes, directory: DirectoryId) {
        let right = directory == self.me.directory;
        if right == self.misplaced.is_none() {
            return;
        }
        let message = raft_message(head);
        if !message.is_some_and(|m| is_leaders(&m) && m.term >= self.raw.raft.term) {
            return;
        }
        if right {
            tracing::info!(node = %self.node(), "the cluster knows this directory");
            self.misplaced = None;
            return;
        }
        let node = self.node();
        let what = format!(
            "node {node} takes no part: the cluster knows it with directory {directory}, and this one is {}: its disk was \
             emptied or replaced; remove node {node} from the cluster and add a new one",
            self.me.directory
        );
        tracing::warn!("{what}");
        self.misplaced = Some(Error::new(ErrorKind::Removed, what));
    }

    /// A node whose directory the cluster does not know any more asks for votes: it can stop.
    fn tell_impostor(&mut self, from: NodeId, directory: DirectoryId, head: &Bytes) {
        let there = |m: &Member| m.directory == directory;
        let may_come = self.sequencer.membership_at_end().get(from).is_some_and(there);
        if !may_come && raft_message(head).is_some_and(|m| is_candidates(&m)) {
            self.tell_removed(from, directory);
        }
    }

    /// Sends raft's messages, each with the bodies of its entries.
    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            if message.to == self.node().0 {
                continue;
            }
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let until = self.ticks.next.plus(self.cluster.election_timeout);
                self.peers.snapshots.insert(message.to, until);
            }
            match self.bodies_of(&message) {
                Ok(bodies) => {
                    let to = NodeId(message.to);
                    match raft_codec::encode_message(&message) {
                        Ok(head) => self.post_as(to, head, bodies, is_urgent(&message)),
                        Err(why) => tracing::error!(why, "a message could not be encoded"),
                    }
                }
                // Raft sends again.
                Err(error) => self.raw.store().note(error),
            }
        }
    }

    fn bodies_of(&self, message: &Message) -> crate::error::Result<Vec<Bytes>> {
        let mut bodies = Vec::new();
        if message.get_msg_type() != MessageType::MsgAppend {
            return Ok(bodies);
        }
        for entry in message.get_entries() {
            if let Ok(EntryKind::Block(_)) = raft_codec::kind_of(entry) {
                bodies.extend(self.raw.store().body(RaftIndex(entry.index), Term(entry.term))?);
            }
        }
        Ok(bodies)
    }

    /// Sends a question or an answer that is no message of raft's.
    pub(super) fn post(&mut self, to: NodeId, head: Bytes) {
        self.post_as(to, head, Vec::new(), true);
    }

    pub(super) fn post_as(&mut self, to: NodeId, head: Bytes, bodies: Vec<Bytes>, urgent: bool) {
        let member = self.membership.get(to).or_else(|| self.sequencer.membership_at_end().get(to));
        let to_directory = member.map_or(DirectoryId(0), |m| m.directory);
        self.outgoing.push(Envelope {
            log: self.me.log,
            from: self.node(),
            from_directory: self.me.directory,
            to,
            to_directory,
            head,
            bodies,
            urgent,
        });
    }

    /// Raft waits for ever for a snapshot of which it hears nothing.
    pub(super) fn report_snapshots(&mut self, now: Moment) {
        if self.peers.snapshots.is_empty() {
            return;
        }
        let due: Vec<u64> =
            self.peers.snapshots.iter().filter(|(_, at)| **at <= now).map(|(n, _)| *n).collect();
        for node in due {
            self.peers.snapshots.remove(&node);
            let progress = self.raw.raft.prs().get(node);
            if progress.is_some_and(|p| p.state == ProgressState::Snapshot) {
                self.raw.report_snapshot(node, SnapshotStatus::Failure);
            }
        }
    }

    /// Tells a node that is no member that it can stop.
    fn tell_removed(&mut self, to: NodeId, directory: DirectoryId) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let head = raft_codec::head(HeadKind::Removed, &self.committed().0.to_le_bytes());
        self.outgoing.push(Envelope {
            log: self.me.log,
            from: self.node(),
            from_directory: self.me.directory,
            to,
            to_directory: directory,
            head,
            bodies: Vec::new(),
            urgent: true,
        });
    }

    fn told_removed(&mut self, body: &[u8], stranger: bool) -> Result<(), Malformed> {
        let committed = body.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)).ok_or("notice is cut off")?;
        // Who knows less than we do cannot know that. What is committed is not always remembered, what was in the log is.
        let least =
            self.sequencer.pending_membership().map_or(self.committed(), |at| at.max(self.committed()));
        if stranger || committed < least.0 || self.is_leader() {
            return Err("a notice of removal from somebody who cannot know");
        }
        self.leave(
            "the leader says that it was removed from the cluster, or another directory put in its place",
        );
        Ok(())
    }

    /// A replica that has started on a directory that was there asks what the others know of it, before it takes anything
    /// from them, votes or stands for election: its disk may have been set back to an older state, in which it has not
    /// promised what it has. It may have been no voter then, or no member.
    pub(crate) fn await_introduction(&mut self) {
        let node = self.node();
        // A voter for whose being alone only what is not committed speaks can have voted for another.
        let alone = |m: &Membership| m.is_alone(node);
        let all_alone = alone(&self.membership) && alone(self.sequencer.membership_at_end());
        if !all_alone && !planted!(32) {
            self.peers.introduced_by = Some(Introductions::default());
            self.greet();
        }
    }

    /// Whether it waits for others to tell what they know of it.
    pub(crate) fn is_introduced(&self) -> bool {
        self.peers.introduced_by.is_none()
    }

    /// The leader, as long as it can be believed to be there. Raft forgets one only in who stands for election: a learner
    /// never does, nor does a voter whose disk hangs.
    pub(crate) fn live_leader(&self, now: Moment) -> Option<NodeId> {
        let heard = |node: &NodeId| {
            let at = self.peers.heard_at.get(node);
            at.is_some_and(|at| now.since(*at) <= self.cluster.election_timeout * 2)
        };
        self.leader().filter(|leader| *leader == self.node() || heard(leader))
    }

    /// Whether this replica leads and has lately heard so many that what it orders can still be committed.
    pub(crate) fn can_commit(&self, now: Moment) -> bool {
        let lately = |at: &Moment| now.since(*at) <= self.cluster.heartbeat * HEARTBEATS_OF_SILENCE;
        let heard = self.peers.heard_at.iter().filter(|(_, at)| lately(at)).map(|(node, _)| *node);
        self.is_leader() && is_majority(&self.membership, &heard.chain([self.node()]).collect())
    }

    /// Asks those who have not answered.
    pub(super) fn greet(&mut self) {
        let Some(answered) = &self.peers.introduced_by else { return };
        let node = self.node();
        let newer = answered.newer.iter().flat_map(|(_, membership)| membership.members());
        let here = self.membership.members().chain(self.sequencer.membership_at_end().members());
        let voters = here.chain(newer).filter(|m| m.is_voter() && m.node != node);
        let silent: BTreeSet<NodeId> = voters.map(|m| m.node).filter(|n| !answered.by.contains(n)).collect();
        let head = raft_codec::head(HeadKind::Hello, &self.extent().encode());
        for to in silent {
            self.post(to, head.clone());
        }
    }

    /// A learner asks for no votes. If it hears of no leader for long, it asks whether it is a member still.
    pub(super) fn ask_whether_removed(&mut self) {
        let silence = self.raw.raft.election_elapsed;
        let is_learner = self.membership.get(self.node()).is_some_and(|m| !m.is_voter());
        if is_learner && silence > 0 && silence.is_multiple_of(self.ticks.election) {
            let head = raft_codec::head(HeadKind::Hello, &self.extent().encode());
            for to in self.others() {
                self.post(to, head.clone());
            }
        }
    }

    /// How far this replica is, durably: it has spoken of no more.
    fn extent(&self) -> Extent {
        let log = &self.raw.raft.raft_log;
        Extent { term: self.durability.term, last: RaftIndex(log.persisted) }
    }

    /// Remembers how far another replica is.
    fn hear(&mut self, from: NodeId, directory: DirectoryId, message: &Message) {
        // A candidate asks the others in the name of a term that it has not begun yet.
        if is_aside(message) || message.term == 0 || self.membership.get(from).is_none() {
            return;
        }
        let acknowledges = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        let last = RaftIndex(if acknowledges { message.index } else { 0 });
        let heard = self.peers.heard.entry((from, directory)).or_default();
        *heard = (*heard).max(Extent { term: Term(message.term), last });
    }

    /// Another replica has started, or hears of no leader: tells it what is known of it.
    fn greeted(&mut self, from: NodeId, directory: DirectoryId, body: &[u8]) -> Result<(), Malformed> {
        Extent::parse(body)?;
        let known = self.membership.get(from).or_else(|| self.sequencer.membership_at_end().get(from));
        if known.is_none() && self.is_leader() {
            self.tell_removed(from, directory);
            return Err("a node that is no member asks what is known of it");
        }
        let known = self.peers.heard.get(&(from, directory)).copied().unwrap_or_default();
        let committed = self.sequencer.committed();
        let mut body = known.encode().to_vec();
        body.extend_from_slice(&committed.raft.0.to_le_bytes());
        body.extend_from_slice(&committed.membership.encode());
        self.post(from, raft_codec::head(HeadKind::Known, &body));
        Ok(())
    }

    /// Another replica has told what it knows of this one, and who belongs to the cluster.
    fn introduced(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let (known, news) = body.split_at_checked(EXTENT_BYTES).ok_or("introduction is cut off")?;
        let (at, membership) = news.split_at_checked(8).ok_or("introduction is cut off")?;
        let (known, at) = (Extent::parse(known)?, RaftIndex(u64_at(at, 0)));
        let membership = Membership::decode(membership)?;
        if known > self.extent() && self.peers.introduced_by.is_some() && !planted!(33) {
            self.leave(
                "others remember that it had more than is on its disk: the disk was set back to an older state",
            );
            return Err("this replica's disk was set back");
        }
        let committed = self.sequencer.committed().raft;
        let Some(answered) = &mut self.peers.introduced_by else { return Ok(()) };
        if planted!(42) {
            return Ok(());
        }
        answered.by.insert(from);
        let newest = answered.newer.as_ref().map_or(committed, |(at, _)| *at);
        if at > newest {
            answered.newer = Some((at, membership));
        }
        self.weigh_introductions();
        Ok(())
    }

    /// Those who have answered are enough once they could elect a leader with this replica, as far as it knows or as
    /// they say.
    pub(super) fn weigh_introductions(&mut self) {
        let Some(answered) = &self.peers.introduced_by else { return };
        let mut known = answered.by.clone();
        known.insert(self.node());
        let of = |membership: &Membership| !membership.voters().is_empty() && is_majority(membership, &known);
        if of(&self.membership) || answered.newer.as_ref().is_some_and(|(_, newer)| of(newer)) {
            self.peers.introduced_by = None;
        }
    }

    /// How far the others are; of a leader only.
    pub(crate) fn peer_statuses(&self, now: Moment) -> Vec<crate::cluster::PeerStatus> {
        if !self.is_leader() {
            return Vec::new();
        }
        let last = self.raw.raft.raft_log.last_index();
        // Raft's own word for it starts anew every election time-out, with nobody heard yet.
        let heard = |node: NodeId| {
            let at = self.peers.heard_at.get(&node);
            at.is_some_and(|at| now.since(*at) <= self.cluster.election_timeout)
        };
        let status = |member: &Member| {
            let progress = self.raw.raft.prs().get(member.node.0)?;
            Some(crate::cluster::PeerStatus {
                node: member.node,
                matched: RaftIndex(progress.matched),
                lag: last.saturating_sub(progress.matched),
                active: heard(member.node),
            })
        };
        let node = self.node();
        self.membership.members().filter(|m| m.node != node).filter_map(status).collect()
    }

    /// Whom to let lead instead: the voter that lacks least.
    pub(crate) fn successor(&self) -> Option<NodeId> {
        let prs = self.raw.raft.prs();
        let votes = |m: &&Member| m.node != self.node() && m.is_voter() && !m.is_leaving();
        let there = |m: &Member| prs.get(m.node.0).filter(|p| p.recent_active).map(|p| (p.matched, m.node));
        self.membership.members().filter(votes).filter_map(there).max().map(|(_, node)| node)
    }

    /// A last word of a leader that can write no more: the one that lacks least may stand for election at once.
    pub(crate) fn abdicate(&mut self) {
        let Some(successor) = self.successor().filter(|_| self.is_leader()) else { return };
        let mut message = Message { from: self.node().0, to: successor.0, ..Message::default() };
        message.term = self.raw.raft.term;
        message.set_msg_type(MessageType::MsgTimeoutNow);
        self.send(vec![message]);
    }
}

/// One sync can make the entries of many messages durable: of the acknowledgements that follow each other the last
/// says all.
pub(super) fn one_acknowledgement(messages: Vec<Message>) -> Vec<Message> {
    let is_ack = |m: &Message| m.get_msg_type() == MessageType::MsgAppendResponse && !m.reject;
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match kept.last_mut() {
            Some(last)
                if is_ack(last) && is_ack(&message) && (last.to, last.term) == (message.to, message.term) =>
            {
                if message.index >= last.index {
                    *last = message;
                }
            }
            _ => kept.push(message),
        }
    }
    kept
}

/// The message of raft's that a head is.
fn raft_message(head: &Bytes) -> Option<Message> {
    let (kind, body) = raft_codec::parse_head(head).ok()?;
    (kind == HeadKind::Raft).then(|| Message::parse_from_bytes(&body).ok())?
}

/// Whether only a leader sends such a message.
fn is_leaders(message: &Message) -> bool {
    let kind = message.get_msg_type();
    matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot)
}

/// Whether a message is one of the questions before an election, or an answer to one: it binds nobody.
pub(super) fn is_aside(message: &Message) -> bool {
    matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestPreVoteResponse)
}

/// Whether a message asks for votes.
fn is_candidates(message: &Message) -> bool {
    matches!(message.get_msg_type(), MessageType::MsgRequestVote | MessageType::MsgRequestPreVote)
}
