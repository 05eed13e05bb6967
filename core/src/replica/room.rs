//! Room for what a leader sends. A follower takes entries only when there are files for them: raft has them at once
//! when it is given the message, and cannot give them back.
//!
//! What there is no room for is cut off the message, and is as good as lost on its way: this replica does not
//! acknowledge it, votes and answers heartbeats as before, and the leader sends it again with the next heartbeat.
//!
//! Invariant: records, and what else is not worth it, leave the last prepared file alone: the discard that makes room
//! again has to find a place, and all that leads to it.

use super::Replica;
use crate::error::{Error, Result};
use crate::gather::Command;
use crate::moment::Moment;
use crate::raft_codec::{self, Arrived, EntryKind, body_bytes};
use crate::sequence::parse_command;
use crate::store::block::{BlockHeader, Kind};
use crate::store::block_bytes;
use crate::store::layout::HARD_STATE_BYTES;
use crate::store::prepared::Purpose;
use crate::writing::Writing;
use raft::eraftpb::{Entry, Message, MessageType};
use std::collections::BTreeSet;

/// The room that entries take which raft was given and that are not planned yet.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Bytes in the file, headers included.
    bytes: usize,
    /// Room was promised that stands in no file yet that is written to: what follows has to be counted behind it.
    is_ahead: bool,
    /// Whether there was no room the last time.
    is_short: bool,
}

impl Replica {
    /// All that raft was given is planned.
    pub(super) fn admitted_is_planned(&mut self) {
        self.admission.bytes = 0;
        self.admission.is_ahead = false;
    }

    /// Cuts off a message what there is no room for. False: nothing of it is of use then.
    ///
    /// # Errors
    /// What the replica dies of.
    pub(super) fn admit(
        &mut self,
        message: &mut Message,
        arrived: &[Arrived],
        now: Moment,
        writing: &mut Writing,
    ) -> Result<bool> {
        let current = message.term >= self.raw.raft.term;
        match message.get_msg_type() {
            MessageType::MsgAppend if current && !message.get_entries().is_empty() => {}
            // What it leads to begins in a file of its own, and makes room.
            MessageType::MsgSnapshot if current => {
                let taken = writing.plan.take_ahead(1, Purpose::Metadata);
                if let Err(why) = &taken {
                    self.is_short_of_room(Some(why));
                }
                self.admission.is_ahead |= taken.is_ok();
                return Ok(taken.is_ok());
            }
            _ => return Ok(true),
        }
        let bytes: usize = message.get_entries().iter().map(|e| block_bytes(body_of(e))).sum();
        let terms = block_bytes(HARD_STATE_BYTES);
        let follows = message.index == self.raw.raft.raft_log.last_index();
        if follows && !self.admission.is_ahead && writing.plan.is_roomy(self.admission.bytes + bytes + terms)
        {
            self.admission.bytes += bytes;
            return Ok(true);
        }
        self.process(now, writing)?;
        let log = &self.raw.raft.raft_log;
        if message.index < log.committed || !log.match_term(message.index, message.log_term) {
            return Ok(true); // raft takes nothing of it
        }
        let known = message.get_entries().iter().take_while(|e| log.match_term(e.index, e.term)).count();
        let turns = message.index + (known as u64) < log.last_index();
        let fresh = &message.get_entries()[known..];
        if fresh.is_empty() {
            return Ok(true);
        }
        let discards: BTreeSet<u64> =
            arrived.iter().filter(|(h, b)| is_discard(h, b)).map(|(h, _)| h.raft_index.0).collect();
        let opening = self.sequencer.opening_bytes_max();
        let of =
            |e: &Entry, discards: &BTreeSet<u64>| (purpose_of(e, discards.contains(&e.index)), body_of(e));
        let each = fresh.iter().map(|e| of(e, &discards));
        let fit = writing.plan.make_room_ahead(each, opening, turns);
        let mut blocks = fit.blocks;
        if let Some(why) = &fit.why {
            // With the discard, what is before it may have the reserve.
            let upto = fresh
                .iter()
                .skip(blocks)
                .position(|e| discards.contains(&e.index))
                .map_or(0, |n| blocks + n + 1);
            let each = fresh[..upto].iter().map(|e| (Purpose::Metadata, body_of(e)));
            if upto > 0 && writing.plan.make_room_ahead(each, opening, turns).why.is_none() {
                blocks = upto;
            }
            self.is_short_of_room(Some(why));
        } else {
            self.is_short_of_room(None);
        }
        message.mut_entries().truncate(known + blocks);
        self.admission.is_ahead |= blocks > 0;
        Ok(true)
    }

    /// Tells once when there is no room, and once when there is again.
    fn is_short_of_room(&mut self, why: Option<&Error>) {
        let before = std::mem::replace(&mut self.admission.is_short, why.is_some());
        let node = self.node();
        match why {
            Some(why) if !before => {
                tracing::warn!(%node, %why, "no room for what the leader sends: it is not acknowledged until there is");
            }
            None if before => tracing::info!(%node, "there is room again for what the leader sends"),
            _ => {}
        }
    }
}

/// What the room for an entry is for.
fn purpose_of(entry: &Entry, is_discard: bool) -> Purpose {
    match raft_codec::kind_of(entry) {
        Ok(EntryKind::Block(_)) if !is_discard => Purpose::Data,
        _ => Purpose::Metadata,
    }
}

/// Bytes of an entry's body in the file.
fn body_of(entry: &Entry) -> usize {
    match raft_codec::kind_of(entry) {
        Ok(EntryKind::Block(header)) => body_bytes(&header),
        // A change of membership is written behind a block that says what is committed.
        _ => entry.data.len() + block_bytes(HARD_STATE_BYTES),
    }
}

fn is_discard(header: &BlockHeader, body: &[bytes::Bytes]) -> bool {
    let command = || body.first().and_then(|b| parse_command(b).ok());
    header.kind == Kind::Command && matches!(command(), Some(Command::Discard { .. }))
}
