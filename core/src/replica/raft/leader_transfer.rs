//! Handover: a leader without room for records lets a voter lead that has some.
//!
//! ```text
//! leader                                      voters
//! ------                                      ------
//! no file for an append: it is refused as Full
//! Room(bytes) ------------------------------> room for that many bytes of records?
//!                                 <---------- HasRoom(bytes): yes. No room, or an older version: no answer
//! those with room are a majority of the voters:
//! the one of them that lacks least may lead
//! ```
//!
//! The lead does not go back and forth. Only a voter with room gets it, and only if its entries can be committed without
//! the voters that have none. Otherwise the leader keeps the lead and refuses: it accepts nothing that could not be committed.
//!
//! Invariants:
//! - voters are asked only when an append was refused for want of room, and once in an election time-out at most;
//! - the answers of one question alone decide.

use super::Replica;
use crate::cluster::membership::Member;
use crate::error::{Error, ErrorKind};
use crate::record::batch::Malformed;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::replica::writer::Writer;
use crate::sync::clock::Moment;
use crate::types::NodeId;
use std::collections::BTreeSet;

/// Whether others have room.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// The last question of this leader, while it lacks room.
    asked: Option<Asked>,
    /// When it asked last.
    asked_at: Option<Moment>,
    /// The leader's question to this replica.
    question: Option<(NodeId, u64)>,
}

#[derive(Debug)]
struct Asked {
    bytes: u64,
    has_room: BTreeSet<NodeId>,
}

impl Replica {
    /// This leader has taken records: it has room.
    pub(super) fn has_taken(&mut self) {
        self.handover.asked = None;
    }

    /// This leader has refused records of that many bytes: asks whether others could take them.
    pub(super) fn has_refused(&mut self, bytes: usize, why: &Error, now: Moment) {
        let again = self.handover.asked_at.map(|at| at.plus(self.cluster.election_timeout));
        let lacks_room = matches!(why.kind(), ErrorKind::Full | ErrorKind::Io);
        if !self.is_leader() || !lacks_room || again.is_some_and(|at| now < at) {
            return;
        }
        let bytes = bytes as u64;
        self.handover.asked_at = Some(now);
        self.handover.asked = Some(Asked { bytes, has_room: BTreeSet::new() });
        for to in self.others() {
            if self.membership.get(to).is_some_and(may_lead) {
                self.post(to, raft_message::head(HeadKind::Room, &bytes.to_le_bytes()));
            }
        }
    }

    /// A leader asks for room. [`Self::answer_room`] answers once all that came before is planned.
    pub(super) fn asked_for_room(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let bytes = parse(body)?;
        if from.0 != self.raw.raft.leader_id {
            return Err("a question for room from a node that does not lead");
        }
        self.handover.question = Some((from, bytes));
        Ok(())
    }

    /// Answers if there is room for the records that the leader has none for. Never waits for a file.
    pub(super) fn answer_room(&mut self, writer: &mut Writer) {
        let Some((from, bytes)) = self.handover.question.take() else { return };
        let may = self.membership.get(self.node()).is_some_and(may_lead)
            && self.exclusion().is_none()
            && self.may_vote();
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        if may && !self.is_short() && writer.plan.has_room(size) {
            self.post(from, raft_message::head(HeadKind::HasRoom, &bytes.to_le_bytes()));
        }
    }

    /// A voter has room for what was asked.
    pub(super) fn told_of_room(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let bytes = parse(body)?;
        let can_go = self.can_propose() && self.membership.get(from).is_some_and(may_lead);
        let Some(asked) = self.handover.asked.as_mut().filter(|a| can_go && a.bytes == bytes) else {
            return Err("room that nobody asked for");
        };
        asked.has_room.insert(from);
        if !self.membership.is_majority(&asked.has_room) {
            return Ok(());
        }
        let has_room = std::mem::take(&mut asked.has_room);
        self.handover.asked = None;
        if let Some(to) = self.successor_of(|node| has_room.contains(&node)) {
            tracing::warn!(node = %self.node(), %to, "hands over the lead: it has no room for records, and a majority has");
            self.raw.transfer_leader(to.0);
        }
        Ok(())
    }
}

fn may_lead(member: &Member) -> bool {
    member.is_voter() && !member.is_leaving()
}

fn parse(body: &[u8]) -> Result<u64, Malformed> {
    let body: &[u8; 8] = body.try_into().map_err(|_| "question for room has another length")?;
    let bytes = u64::from_le_bytes(*body);
    // Headers and padding are added to it.
    if bytes > u32::MAX.into() {
        return Err("question for more room than any block takes");
    }
    Ok(bytes)
}
