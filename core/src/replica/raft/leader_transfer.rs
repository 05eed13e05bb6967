//! Leader transfer: a leader without room for records transfers leadership to a voter that has room.
//!
//! ```text
//! leader                                      voters
//! ------                                      ------
//! no file for an append or a session: it is refused as Full
//! Room(bytes) ------------------------------> room for that many bytes of records?
//!                                 <---------- HasRoom(bytes): yes. No room, or an older version: no answer
//! voters with room are a majority:
//! the one of them that lacks the fewest entries may lead
//! ```
//!
//! Leadership does not go back and forth. Only a voter with room gets it, and only if its entries can be committed
//! without the voters that have none. Otherwise the leader stays leader and refuses appends, so that it accepts nothing
//! that could not be committed.
//!
//! Invariants:
//! - the leader asks only when it refused an append or a command because it had no room, at most once in an election timeout, and
//!   sooner only for smaller records;
//! - only the answers to the last request count, and only until as much was ordered as it was about. Smaller records that still have room, or
//!   retries, which need none, end no request.

use super::Replica;
use crate::cluster::membership::Member;
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::replica::writer::plan::Plan;
use crate::store::block_bytes;
use crate::sync::clock::Moment;
use crate::types::NodeId;
use std::collections::BTreeSet;

/// The requests for room and their answers.
#[derive(Debug, Default)]
pub(super) struct RoomRequests {
    /// This leader's last request, while it lacks room.
    asked: Option<RoomRequest>,
    /// When it sent its last request.
    asked_at: Option<Moment>,
    /// The leader's request to this replica.
    question: Option<(NodeId, u64)>,
}

#[derive(Debug)]
struct RoomRequest {
    bytes: u64,
    has_room: BTreeSet<NodeId>,
}

impl Replica {
    /// This leader has ordered a block of `stride` bytes: it has room for that much.
    pub(super) fn has_taken(&mut self, stride: usize) {
        self.room_requests.asked.take_if(|asked| block_bytes(asked.bytes as usize) <= stride);
    }

    /// This leader has refused a proposal of `bytes` bytes: asks whether others have room for that much.
    pub(super) fn has_refused(&mut self, bytes: usize, why: &Error, now: Moment) {
        let again = self.room_requests.asked_at.map(|at| at.plus(self.cluster.election_timeout));
        let lacks_room = matches!(why.kind(), ErrorKind::Full | ErrorKind::Io);
        let bytes = bytes as u64;
        // Others may have room for less: not every request may be for large records.
        let is_smaller = self.room_requests.asked.as_ref().is_some_and(|asked| bytes < asked.bytes);
        if !self.is_leader() || !lacks_room || again.is_some_and(|at| now < at && !is_smaller) {
            return;
        }
        self.room_requests.asked_at = Some(now);
        self.room_requests.asked = Some(RoomRequest { bytes, has_room: BTreeSet::new() });
        for to in self.others() {
            if self.membership.get(to).is_some_and(may_lead) {
                self.post(to, raft_message::head(HeadKind::Room, &bytes.to_le_bytes()));
            }
        }
    }

    /// Receives a leader's request for room. [`Self::answer_room`] answers it once all earlier messages are planned.
    pub(super) fn on_room_request(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let bytes = parse(body)?;
        if from.0 != self.raw.raft.leader_id {
            return Err("request for room from a node that does not lead");
        }
        self.room_requests.question = Some((from, bytes));
        Ok(())
    }

    /// Answers if there is room for the records that the leader has no room for, behind all entries that raft was given. Never waits for a file.
    ///
    /// # Errors
    /// A fatal error of this replica.
    pub(super) fn answer_room(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        let Some((from, bytes)) = self.room_requests.question.take() else { return Ok(()) };
        self.process(now, plan)?;
        let may = self.membership.get(self.node()).is_some_and(may_lead)
            && self.exclusion().is_none()
            && self.may_vote();
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        if may
            && !self.is_short()
            && self.is_held().is_none()
            && plan.has_room(size, self.sequencer.opening_bytes_max())
        {
            self.post(from, raft_message::head(HeadKind::HasRoom, &bytes.to_le_bytes()));
        }
        Ok(())
    }

    /// Receives a voter's answer that it has room.
    pub(super) fn on_has_room(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let bytes = parse(body)?;
        let can_go = self.can_propose() && self.membership.get(from).is_some_and(may_lead);
        let Some(asked) = self.room_requests.asked.as_mut().filter(|a| can_go && a.bytes == bytes) else {
            return Err("answer about room that was not requested");
        };
        asked.has_room.insert(from);
        if !self.membership.is_majority(&asked.has_room) {
            return Ok(());
        }
        let has_room = std::mem::take(&mut asked.has_room);
        self.room_requests.asked = None;
        if let Some(to) = self.successor_of(|node| has_room.contains(&node)) {
            tracing::warn!(node = %self.node(), %to, "transfers leadership: this replica has no room for records, and a majority has");
            self.raw.transfer_leader(to.0);
        }
        Ok(())
    }
}

fn may_lead(member: &Member) -> bool {
    member.is_voter() && !member.is_leaving()
}

fn parse(body: &[u8]) -> Result<u64, Malformed> {
    let body: &[u8; 8] = body.try_into().map_err(|_| "request for room has an unexpected length")?;
    let bytes = u64::from_le_bytes(*body);
    // The room for headers and padding is added to this number.
    if bytes > u32::MAX.into() {
        return Err("request for more room than the largest block takes");
    }
    Ok(bytes)
}
