//! The other replicas: what is sent to them, and what is accepted from them.
//!
//! Raft does not check a message's addressee, its log, or its sender, and asserts if a message contradicts its state.
//! So all of that is checked here first.

pub(crate) mod checks;
pub(crate) mod handshake;
pub(crate) mod pace;

use super::Replica;
use super::peers::checks::is_candidates;
use super::peers::handshake::Extent;
use super::peers::pace::is_urgent;
use crate::cluster::membership::Member;
use crate::cluster::transport::Envelope;
use crate::error::{Error, ErrorKind};
use crate::record::batch::{Malformed, u64_at};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::{Arrived, EntryKind, HeadKind};
use crate::sync::clock::Moment;
use crate::types::{DirectoryId, EntryIndex, NodeId, Term};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The state that is remembered of the other replicas.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Snapshots in flight, and when each is reported as lost.
    snapshots: BTreeMap<u64, Moment>,
    /// When each node was last heard.
    heard_at: BTreeMap<NodeId, Moment>,
    /// The durable state that each directory reported: a term, and how far its log reached in that term.
    pub(super) heard: BTreeMap<(NodeId, DirectoryId), Extent>,
}

/// A closing leader waits for no node that it has not heard for this number of heartbeats.
const HEARTBEATS_OF_SILENCE: u32 = 3;

/// A message for raft, with the bodies of its entries. None: raft gets nothing.
pub(super) type ForRaft = Option<(Message, Vec<Arrived>)>;

impl Replica {
    /// Checks an envelope. Returns the message for raft.
    pub(super) fn open_envelope(&mut self, envelope: Envelope, now: Moment) -> Result<ForRaft, Malformed> {
        let Envelope { log, from, from_directory, to, to_directory, head, bodies, urgent: _ } = envelope;
        if log != self.me.log {
            return Err("message is of another log");
        }
        if to != self.node() || from == self.node() || from.is_none() {
            return Err("message is for another node");
        }
        let known = self.member(from);
        let is_impostor =
            known.is_some_and(|m| m.directory.0 != 0 && m.directory != from_directory) && !planted!(16);
        let is_member = known.is_some();
        let stranger = !is_member && self.membership.get(self.node()).is_some();
        if is_impostor {
            self.notify_impostor(from, from_directory, &head);
            return Err("the sender's directory is not the one that the cluster knows");
        }
        if to_directory.0 != 0 && !planted!(16) {
            self.learn_place(&head, to_directory);
            if to_directory != self.me.directory {
                return Err("message is for another directory: this node's disk was emptied or replaced");
            }
        }
        let (kind, body) = raft_message::parse_head(&head)?;
        match kind {
            HeadKind::Raft => {}
            HeadKind::Removed => return self.on_removed(&body, stranger).map(|()| None),
            HeadKind::Hello => return self.on_hello(from, from_directory, &body).map(|()| None),
            HeadKind::Known => return self.on_known(from, &body).map(|()| None),
            // A leader that is no member any more leads until the others know this.
            HeadKind::Fetch | HeadKind::FetchCommitted | HeadKind::Blocks | HeadKind::DamagedEntry
                if !is_member && from.0 != self.raw.raft.leader_id =>
            {
                return Err("repair message from a node that is no member");
            }
            HeadKind::Fetch | HeadKind::FetchCommitted => {
                return self.on_fetch(from, kind, &body, now).map(|()| None);
            }
            HeadKind::Blocks => return self.on_blocks(&body, bodies).map(|()| None),
            HeadKind::DamagedEntry => return self.on_damaged(from, &body).map(|()| None),
            HeadKind::Gone => return Ok(None), // the damaged entries will soon be discarded here as well, or are stored
            HeadKind::Committed => return Ok(None), // the answer to a request of an offline repair
            HeadKind::Room => return self.on_room_request(from, &body).map(|()| None),
            HeadKind::HasRoom => return self.on_has_room(from, &body).map(|()| None),
            HeadKind::Version => return self.on_version_request(from, &body).map(|()| None),
            HeadKind::ReadsVersion => return self.on_version(from, &body).map(|()| None),
            HeadKind::StoreObject => return self.on_object_request(from, &body).map(|()| None),
            HeadKind::ObjectStored if !is_member => {
                return Err("answer about an object from a node that is no member");
            }
            HeadKind::ObjectStored => return self.on_object_answer(from, &body).map(|()| None),
            HeadKind::ReadsStored if !is_member => {
                return Err("message about stored entries from a node that is no member");
            }
            HeadKind::MaySkip if !is_member && from.0 != self.raw.raft.leader_id => {
                return Err("message about entries to skip from a node that is no member");
            }
            HeadKind::MaySkip => return self.on_may_skip(from, &body).map(|()| None),
            HeadKind::ReadsStored => return self.on_reads_stored(from, &body, now).map(|()| None),
        }
        let (message, arrived) = raft_message::decode_message(&body, bodies)?;
        if message.from != from.0 || message.to != to.0 {
            return Err("raft message has another sender or addressee than its envelope");
        }
        self.check_message(&message)?;
        if is_member || from.0 == self.raw.raft.leader_id {
            self.peers.heard_at.insert(from, now);
        }
        self.record_extent(from, from_directory, &message);
        if !self.is_introduced_to(from) {
            self.greet(from);
            return Err("the sender has not answered yet what it remembers of this directory");
        }
        // A removed replica casts no vote, but answers pre-votes.
        if self.out.is_none()
            && !self.may_vote()
            && (is_candidates(&message) || message.get_msg_type() == MessageType::MsgTimeoutNow)
        {
            return Err("vote request before it is known that this disk was not set back");
        }
        // A leader knows all members. Any other replica may lack the entry that added the candidate, and its vote may
        // be needed for a majority.
        if stranger && is_candidates(&message) && self.is_leader() {
            self.send_removed(from, from_directory);
            return Err("vote request from a node that is no member");
        }
        let accepts = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        if accepts {
            self.acknowledged(from, EntryIndex(message.index));
        }
        if self.awaits_opening(&message, now) {
            return Ok(None);
        }
        Ok(Some((message, arrived)))
    }

    /// Learns from a leader's message or a greeting which directory the cluster knows for this node. If it is another
    /// one, this replica takes no part. A later message that names this directory reverts that: the sender of the
    /// earlier one knew less.
    fn learn_place(&mut self, head: &Bytes, directory: DirectoryId) {
        let right = directory == self.me.directory;
        if right == self.misplaced.is_none() {
            return;
        }
        let from_leader = raft_message(head).is_some_and(|m| is_leaders(&m) && m.term >= self.raw.raft.term);
        // A leader that has restarted greets first. A replica that finds itself in its membership ignores a greeting
        // from a replica that knows an earlier directory.
        let greeted = raft_message::parse_head(head).is_ok_and(|(kind, _)| kind == HeadKind::Hello);
        if !(from_leader || greeted && !right && self.member(self.node()).is_none()) {
            return;
        }
        if right {
            // At the same level as the message that it reverts.
            tracing::warn!("node {} takes part after all: the cluster knows this directory", self.node());
            self.misplaced = None;
            return;
        }
        let node = self.node();
        let what = format!(
            "node {node} takes no part: the cluster knows it with directory {directory}, but this one is {}: its disk was \
             emptied or replaced; remove node {node} from the cluster and add a new one",
            self.me.directory
        );
        tracing::warn!("{what}");
        self.misplaced = Some(Error::new(ErrorKind::Removed, what));
    }

    /// Notifies a node, whose directory the cluster no longer knows, that it can stop. Such a node requests votes, or
    /// greets while it repairs its log.
    fn notify_impostor(&mut self, from: NodeId, directory: DirectoryId, head: &Bytes) {
        let there = |m: &Member| m.directory == directory;
        let may_come = self.sequencer.membership_at_end().get(from).is_some_and(there);
        let greets = raft_message::parse_head(head).is_ok_and(|(kind, _)| kind == HeadKind::Hello);
        if !may_come && (greets || raft_message(head).is_some_and(|m| is_candidates(&m))) {
            self.send_removed(from, directory);
        }
    }

    /// Sends raft messages, each with the bodies of its entries.
    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            if message.to == self.node().0 {
                continue;
            }
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let until = self.ticks.next.plus(self.cluster.election_timeout);
                self.peers.snapshots.insert(message.to, until);
                self.sent_opening(
                    NodeId(message.to),
                    EntryIndex(message.get_snapshot().get_metadata().index),
                );
            }
            if !self.is_introduced_to(NodeId(message.to)) {
                continue; // it is greeted with every tick; raft retries
            }
            let message = self.durably_known(message);
            match self.bodies_of(&message) {
                Ok(bodies) => {
                    let to = NodeId(message.to);
                    match raft_message::encode_message(&message) {
                        Ok(head) => self.post_as(to, head, bodies, is_urgent(&message)),
                        Err(why) => tracing::error!(why, "a message could not be encoded"),
                    }
                }
                // Raft retries.
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
            if let Ok(EntryKind::Block(_)) = raft_message::kind_of(entry) {
                bodies.extend(self.raw.store().body(EntryIndex(entry.index), Term(entry.term))?);
            }
        }
        Ok(bodies)
    }

    /// Sends a message that is not a raft message.
    pub(super) fn post(&mut self, to: NodeId, head: Bytes) {
        self.post_as(to, head, Vec::new(), true);
    }

    pub(super) fn post_as(&mut self, to: NodeId, head: Bytes, bodies: Vec<Bytes>, urgent: bool) {
        let to_directory = self.member(to).map_or(DirectoryId(0), |m| m.directory);
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

    /// Reports lost snapshots to raft. Without a report, raft would wait forever for a snapshot.
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
                self.lost_opening(NodeId(node), now);
            }
        }
    }

    /// Notifies a node that is no member that it can stop. Only a leader does so.
    pub(super) fn send_removed(&mut self, to: NodeId, directory: DirectoryId) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let mut notice = self.committed().0.to_le_bytes().to_vec();
        notice.extend_from_slice(&self.raw.raft.term.to_le_bytes());
        let head = raft_message::head(HeadKind::Removed, &notice);
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

    fn on_removed(&mut self, body: &[u8], stranger: bool) -> Result<(), Malformed> {
        let committed =
            body.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)).ok_or("removal notice is cut off")?;
        // The term in which the sender leads. Earlier versions do not send it.
        let term = body.get(8..16).map(|b| u64_at(b, 0));
        // A sender whose log is behind this replica's knowledge cannot know of a removal. The commit index is not
        // always remembered after a restart, but the entries of the log are.
        let least = match self.last_known_member_at() {
            Some(least) => least,
            // It was removed before it restarted, or the entry that added it has not arrived yet. Its entries came from
            // a leader that had that entry, so every leader of this or a later term has it. Those of a copy did not.
            None if self.has_entries()
                && (!self.me.joins || planted!(185))
                && term.is_some_and(|term| term >= self.term().0) =>
            {
                self.committed()
            }
            None => return Err("removal notice before it is known that this node is a member"),
        };
        let deposed = term.is_some_and(|term| term < self.term().0);
        if stranger || deposed || committed < least.0 || self.is_leader() {
            return Err("removal notice from a node that cannot know");
        }
        self.leave(
            "the leader reports that it was removed from the cluster, or that another directory took its place",
        );
        Ok(())
    }

    fn has_entries(&self) -> bool {
        self.raw.raft.raft_log.last_index() > 0
    }

    /// The leader, if it was heard lately. Raft forgets a leader only when it starts an election. A learner never does,
    /// and neither does a voter whose disk hangs.
    pub(crate) fn live_leader(&self, now: Moment) -> Option<NodeId> {
        let heard = |node: &NodeId| {
            let at = self.peers.heard_at.get(node);
            at.is_some_and(|at| now.since(*at) <= self.cluster.election_timeout * 2)
        };
        self.leader().filter(|leader| *leader == self.node() || heard(leader))
    }

    /// Whether this replica leads and has lately heard a majority, so that its proposals can still be committed.
    pub(crate) fn can_commit(&self, now: Moment) -> bool {
        let heard = self.active_within(self.cluster.heartbeat * HEARTBEATS_OF_SILENCE, now);
        self.is_leader() && self.membership.is_majority(&heard)
    }

    /// The nodes that were heard within `silence`, and this one.
    fn active_within(&self, silence: Duration, now: Moment) -> BTreeSet<NodeId> {
        let lately = |at: &Moment| now.since(*at) <= silence;
        let heard = self.peers.heard_at.iter().filter(|(_, at)| lately(at)).map(|(node, _)| *node);
        heard.chain([self.node()]).collect()
    }

    /// The nodes that were heard within the last election timeout, and this one.
    pub(super) fn recently_active(&self, now: Moment) -> BTreeSet<NodeId> {
        self.active_within(self.cluster.election_timeout, now)
    }

    /// Whether another replica was heard within the last election timeout. Raft's own record is reset in every election
    /// timeout.
    pub(super) fn is_active(&self, node: NodeId, now: Moment) -> bool {
        let at = self.peers.heard_at.get(&node);
        at.is_some_and(|at| now.since(*at) <= self.cluster.election_timeout)
    }

    /// How far the others are. Only a leader knows this.
    pub(crate) fn peer_statuses(&self, now: Moment) -> Vec<crate::cluster::options::PeerStatus> {
        if !self.is_leader() {
            return Vec::new();
        }
        let last = self.raw.raft.raft_log.last_index();
        let status = |member: &Member| {
            let progress = self.raw.raft.prs().get(member.node.0)?;
            Some(crate::cluster::options::PeerStatus {
                node: member.node,
                matched: EntryIndex(progress.matched),
                lag: last.saturating_sub(progress.matched),
                active: self.is_active(member.node, now),
            })
        };
        let node = self.node();
        self.membership.members().filter(|m| m.node != node).filter_map(status).collect()
    }

    /// The voter to transfer leadership to: the one that lacks the fewest entries.
    pub(crate) fn successor(&self) -> Option<NodeId> {
        self.successor_of(|_| true)
    }

    /// As [`Self::successor`], among the nodes that satisfy `of`.
    pub(super) fn successor_of(&self, of: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let prs = self.raw.raft.prs();
        let votes = |m: &&Member| m.node != self.node() && m.is_voter() && !m.is_leaving() && of(m.node);
        let there = |m: &Member| prs.get(m.node.0).filter(|p| p.recent_active).map(|p| (p.matched, m.node));
        self.membership.members().filter(votes).filter_map(there).max().map(|(_, node)| node)
    }

    /// The last message of a leader that can write no more: the voter that lacks the fewest entries may start an
    /// election at once.
    pub(crate) fn abdicate(&mut self) {
        let Some(successor) = self.successor().filter(|_| self.is_leader()) else { return };
        let mut message = Message { from: self.node().0, to: successor.0, ..Message::default() };
        message.term = self.raw.raft.term;
        message.set_msg_type(MessageType::MsgTimeoutNow);
        self.send(vec![message]);
    }
}

/// Keeps the last of consecutive acknowledgements. One sync can make the entries of many messages durable, and the last
/// acknowledgement covers all.
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

/// Decodes the raft message in a head.
fn raft_message(head: &Bytes) -> Option<Message> {
    let (kind, body) = raft_message::parse_head(head).ok()?;
    (kind == HeadKind::Raft).then(|| Message::parse_from_bytes(&body).ok())?
}

/// Whether only a leader sends messages of this type.
fn is_leaders(message: &Message) -> bool {
    let kind = message.get_msg_type();
    matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot)
}
