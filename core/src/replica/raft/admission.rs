//! Room for what a leader sends. A follower takes entries only when there are files for them: raft has them at once
//! when it is given the message, and cannot give them back.
//!
//! What there is no room for is cut off the message, and is as good as lost on its way: this replica does not
//! acknowledge it, votes and answers heartbeats as before, and the leader sends it again with the next heartbeat.
//!
//! While a file is being made, what needs it is held back, and what else the leader wants written, in order. Heartbeats
//! and votes pass, unless a ready of raft's waits for room itself: then all messages are dropped, and the others see a
//! replica that is away ([`super::ready`]). So raft is given entries only with room for all that their ready writes.
//!
//! Invariant: records, and what else is not worth it, leave the last prepared file alone: the discard that makes room
//! again has to find a place, and all that leads to it.

use super::Replica;
use crate::error::{Error, Result};
use crate::replica::queue::proposals::Command;
use crate::replica::state::sequencer::{COMMAND_BYTES, parse_command};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::{Arrived, EntryKind, body_bytes};
use crate::replica::writer::Writer;
use crate::replica::writer::plan::Fit;
use crate::store::allocator::Purpose;
use crate::store::block_bytes;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::sync::clock::Moment;
use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use std::collections::{BTreeSet, VecDeque};

/// What a held message counts for besides its bodies, and each of its entries.
const HELD_BYTES: usize = 256;

/// The room that entries take which raft was given and that are not planned yet.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Bytes in the file, headers included.
    bytes: usize,
    /// Room was promised that stands in no file yet that is written to: what follows has to be counted behind it.
    is_ahead: bool,
    /// Why there was no room the last time; None: there was.
    short: Option<Error>,
    /// Wait for a file.
    held: VecDeque<(Message, Vec<Arrived>)>,
    held_bytes: usize,
}

/// Whether there is room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// For what is left of it.
    Yes,
    No,
    /// A file for it is being made.
    Later,
}

impl Replica {
    /// Hands raft what passed its checks, as far as there is room for it.
    ///
    /// # Errors
    /// What the replica dies of.
    pub(super) fn step(
        &mut self,
        checked: (Message, Vec<Arrived>),
        now: Moment,
        writer: &mut Writer,
    ) -> Result<()> {
        if !self.admission.held.is_empty() && is_to_write(&checked.0) {
            self.hold(checked);
            return Ok(());
        }
        if let Some(checked) = self.try_step(checked, now, writer)? {
            self.hold(checked);
        }
        Ok(())
    }

    /// Hands raft what was held back, as far as there is a file for it now.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(super) fn step_held(&mut self, now: Moment, writer: &mut Writer) -> Result<()> {
        while !planted!(66)
            && let Some((message, arrived)) = self.admission.held.pop_front()
        {
            self.admission.held_bytes -= bytes_of(&message, &arrived);
            // Much can have happened since it came.
            if self.out.is_some() || self.check_message(&message).is_err() {
                continue;
            }
            if let Some(checked) = self.try_step((message, arrived), now, writer)? {
                self.admission.held_bytes += bytes_of(&checked.0, &checked.1);
                self.admission.held.push_front(checked);
                break;
            }
        }
        Ok(())
    }

    /// For later, while memory allows. What is dropped is as good as lost on its way.
    fn hold(&mut self, checked: (Message, Vec<Arrived>)) {
        let bytes = bytes_of(&checked.0, &checked.1);
        if self.admission.held_bytes + bytes <= self.cluster.inbox_bytes_max {
            self.admission.held_bytes += bytes;
            self.admission.held.push_back(checked);
        }
    }

    /// What comes back has to wait for a file.
    fn try_step(
        &mut self,
        (mut message, arrived): (Message, Vec<Arrived>),
        now: Moment,
        writer: &mut Writer,
    ) -> Result<Option<(Message, Vec<Arrived>)>> {
        if self.is_held().is_some() {
            return Ok(None); // raft would answer, and keep its answers in memory
        }
        match self.admit(&mut message, &arrived, now, writer)? {
            Admitted::Yes => {}
            Admitted::No => return Ok(None),
            Admitted::Later => return Ok(Some((message, arrived))),
        }
        if self.out.is_some() {
            return Ok(None);
        }
        for (header, body) in arrived {
            self.arrived.insert((header.raft_index, header.term), body);
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.admit_self(&mut message);
        }
        self.give_way(&message);
        self.step_at_pace(message);
        Ok(None)
    }

    /// All that raft was given is planned.
    pub(super) fn admitted_is_planned(&mut self) {
        self.admission.bytes = 0;
        self.admission.is_ahead = false;
    }

    /// Cuts off a message what there is no room for.
    ///
    /// # Errors
    /// What the replica dies of.
    fn admit(
        &mut self,
        message: &mut Message,
        arrived: &[Arrived],
        now: Moment,
        writer: &mut Writer,
    ) -> Result<Admitted> {
        let current = message.term >= self.raw.raft.term;
        match message.get_msg_type() {
            MessageType::MsgAppend if current && !message.get_entries().is_empty() => {}
            // What it leads to begins in a file of its own, and makes room.
            MessageType::MsgSnapshot if current => {
                return Ok(match writer.plan.take_ahead(1, Purpose::Metadata) {
                    Ok(true) => {
                        self.admission.is_ahead = true;
                        Admitted::Yes
                    }
                    Ok(false) => Admitted::Later,
                    Err(why) => {
                        self.is_short_of_room(Some(&why));
                        Admitted::No
                    }
                });
            }
            _ => return Ok(Admitted::Yes),
        }
        let bytes: usize = message.get_entries().iter().map(|e| block_bytes(body_of(e))).sum();
        let terms = block_bytes(HARD_STATE_BYTES);
        let follows = message.index == self.raw.raft.raft_log.last_index();
        if follows && !self.admission.is_ahead && writer.plan.is_roomy(self.admission.bytes + bytes + terms) {
            self.admission.bytes += bytes;
            return Ok(Admitted::Yes);
        }
        self.process(now, writer)?;
        if self.is_held().is_some() {
            return Ok(Admitted::No);
        }
        let log = &self.raw.raft.raft_log;
        if message.index < log.committed || !log.match_term(message.index, message.log_term) {
            return Ok(Admitted::Yes); // raft takes nothing of it
        }
        let known = message.get_entries().iter().take_while(|e| log.match_term(e.index, e.term)).count();
        let turns = message.index + (known as u64) < log.last_index();
        let fresh = &message.get_entries()[known..];
        if fresh.is_empty() {
            return Ok(Admitted::Yes);
        }
        let makers: BTreeSet<u64> =
            arrived.iter().filter(|(h, b)| makes_room(h, b)).map(|(h, _)| h.raft_index.0).collect();
        let opening = self.sequencer.opening_bytes_max() + options_in(fresh);
        let of = |e: &Entry| (purpose_of_entry(e, makers.contains(&e.index)), body_of(e));
        // As their ready wants it: the term that comes with them, unless an opening says it, and a word of commit behind.
        let state = (Purpose::Metadata, HARD_STATE_BYTES);
        let term = (message.term > self.raw.raft.term && !turns).then_some(state);
        let terms = usize::from(term.is_some());
        let mut room = |entries: &mut dyn Iterator<Item = (Purpose, usize)>| {
            let blocks = term.into_iter().chain(entries).chain([state]);
            writer.plan.make_room_ahead(blocks, opening, turns)
        };
        let fit = room(&mut fresh.iter().map(of));
        if fit.is_coming {
            return Ok(Admitted::Later);
        }
        let mut blocks = fit.blocks.saturating_sub(terms).min(fresh.len());
        if let Some(why) = &fit.why {
            // With what makes room, what is before it may have the reserve.
            let upto = fresh
                .iter()
                .skip(blocks)
                .position(|e| makers.contains(&e.index))
                .map_or(0, |n| blocks + n + 1);
            let is_whole = |fit: Fit| fit.why.is_none() && !fit.is_coming;
            if upto > 0 && is_whole(room(&mut fresh[..upto].iter().map(|e| (Purpose::Metadata, body_of(e)))))
            {
                blocks = upto;
            }
            while blocks > 0 && blocks != upto && !is_whole(room(&mut fresh[..blocks].iter().map(of))) {
                blocks -= 1;
            }
            self.is_short_of_room(Some(why));
        } else {
            self.is_short_of_room(None);
        }
        message.mut_entries().truncate(known + blocks);
        self.admission.is_ahead = true;
        Ok(Admitted::Yes)
    }

    /// Whether there was no room for what the leader sent last.
    pub(crate) fn is_short(&self) -> bool {
        self.admission.short.is_some()
    }

    /// Why there was none, if another replica leads.
    pub(crate) fn shortage(&self) -> Option<&Error> {
        self.admission.short.as_ref().filter(|_| !self.is_leader())
    }

    /// Whether messages wait for a file.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn holds_messages(&self) -> bool {
        !self.admission.held.is_empty()
    }

    /// Tells once when there is no room, and once when there is again.
    fn is_short_of_room(&mut self, why: Option<&Error>) {
        let kind = why.map(Error::kind);
        if kind == self.admission.short.as_ref().map(Error::kind) {
            return; // it goes on
        }
        self.admission.short = why.cloned();
        let node = self.node();
        match why {
            Some(why) => {
                tracing::warn!(%node, %why, "no room for what the leader sends: it is not acknowledged until there is");
            }
            None => tracing::info!(%node, "there is room again for what the leader sends"),
        }
    }
}

/// Whether a leader wants something of it written.
fn is_to_write(message: &Message) -> bool {
    match message.get_msg_type() {
        MessageType::MsgAppend => !message.get_entries().is_empty(),
        kind => kind == MessageType::MsgSnapshot,
    }
}

/// What a message takes in memory, about: none is free.
fn bytes_of(message: &Message, arrived: &[Arrived]) -> usize {
    let bodies: usize = arrived.iter().flat_map(|(_, body)| body).map(Bytes::len).sum();
    HELD_BYTES + message.get_entries().len() * HELD_BYTES + bodies
}

/// What the room for an entry is for.
fn purpose_of_entry(entry: &Entry, makes_room: bool) -> Purpose {
    match raft_message::kind_of(entry) {
        Ok(EntryKind::Block(_)) if !makes_room => Purpose::Data,
        _ => Purpose::Metadata,
    }
}

/// Bytes by which openings behind these entries can be longer for what they set of the log's options.
pub(super) fn options_in(entries: &[Entry]) -> usize {
    let sets = |e: &Entry| match raft_message::kind_of(e) {
        Ok(EntryKind::Block(header)) if header.kind == Kind::Command => Some(body_bytes(&header)),
        _ => None,
    };
    entries.iter().filter_map(sets).filter(|bytes| *bytes > COMMAND_BYTES).sum()
}

/// Bytes of an entry's body in the file.
pub(super) fn body_of(entry: &Entry) -> usize {
    match raft_message::kind_of(entry) {
        Ok(EntryKind::Block(header)) => body_bytes(&header),
        // A change of membership is written behind a block that says what is committed.
        _ => entry.data.len() + block_bytes(HARD_STATE_BYTES),
    }
}

/// Whether this makes room, or says that room is to be made: a discard, or options of the log.
fn makes_room(header: &BlockHeader, body: &[bytes::Bytes]) -> bool {
    let command = || body.first().and_then(|b| parse_command(b).ok());
    header.kind == Kind::Command
        && matches!(command(), Some(Command::Discard { .. } | Command::SetOptions(_)))
}

#[cfg(all(test, feature = "sim", not(loom)))]
impl Admission {
    pub(super) fn set_short(&mut self, is_short: bool) {
        self.short = is_short.then(|| Error::new(crate::error::ErrorKind::Full, "no room"));
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::store::format::block::BLOCK_HEADER_BYTES;
    use crate::types::{EntryIndex, Index, Term, Timestamp};

    fn header(kind: Kind, length: usize) -> BlockHeader {
        BlockHeader {
            length: (BLOCK_HEADER_BYTES + length) as u32,
            batch_count: 0,
            raft_index: EntryIndex(7),
            term: Term(1),
            first: Index(1),
            timestamp: Timestamp(1),
            record_count: 0,
            durable_upto: 0,
            body_digest: 0,
            kind,
        }
    }

    fn message(kind: MessageType, entries: usize) -> Message {
        let mut message = Message::default();
        message.set_msg_type(kind);
        message.set_entries(vec![Entry::default(); entries].into());
        message
    }

    #[test]
    fn held_messages_count_with_entries_and_bodies() {
        let arrived = [10, 20].map(|n| (header(Kind::Command, n), vec![Bytes::from(vec![0; n])]));
        assert_eq!(bytes_of(&message(MessageType::MsgAppend, 3), &arrived), 4 * HELD_BYTES + 30);
        assert_eq!(bytes_of(&message(MessageType::MsgSnapshot, 0), &[]), HELD_BYTES);
    }

    #[test]
    fn held_messages_are_bounded() {
        let mut node = crate::replica::raft::tests::joining();
        node.replica.cluster.inbox_bytes_max = 2 * HELD_BYTES + HELD_BYTES / 2;
        for held in [1, 2, 2, 2] {
            node.replica.hold((message(MessageType::MsgAppend, 0), Vec::new()));
            assert_eq!(node.replica.admission.held.len(), held);
            assert_eq!(node.replica.admission.held_bytes, held * HELD_BYTES);
        }
    }

    #[test]
    fn entries_and_snapshots_are_written() {
        assert!(is_to_write(&message(MessageType::MsgAppend, 1)));
        assert!(is_to_write(&message(MessageType::MsgSnapshot, 0)));
        assert!(!is_to_write(&message(MessageType::MsgAppend, 0)));
        assert!(!is_to_write(&message(MessageType::MsgHeartbeat, 0)));
    }

    #[test]
    fn records_are_data_unless_they_discard() {
        let records = raft_message::entry(&header(Kind::Data, 30), Bytes::new);
        assert_eq!(purpose_of_entry(&records, false), Purpose::Data);
        assert_eq!(purpose_of_entry(&records, true), Purpose::Metadata);
        assert_eq!(body_of(&records), 30);
    }

    /// Entries that had room were taken, without room for the word of commit behind it: the replica was held, and took no discard
    /// any more.
    #[test]
    fn entries_are_admitted_with_room_for_the_word_behind_them() {
        let disk = crate::disk::sim::SimDisk::default();
        let mut node = crate::replica::raft::tests::node_with(
            &disk,
            crate::cluster::options::Bootstrap::Join(crate::LogId(7)),
        );
        let term_1 = |entries: Vec<Entry>, index: u64| {
            let mut message = Message { from: 1, to: 2, term: 1, index, ..Message::default() };
            message.set_msg_type(MessageType::MsgAppend);
            message.log_term = 1;
            message.set_entries(entries.into());
            message
        };
        let now = Moment::START;
        let last = |node: &crate::replica::node::Node| node.replica.raw.raft.raft_log.last_index();
        let command = |raft: u64, op: u64, operand: u64| {
            let body = [op, operand].map(u64::to_le_bytes).concat();
            let header = BlockHeader { raft_index: EntryIndex(raft), ..header(Kind::Command, body.len()) };
            let digest = crate::store::format::segment::digest_of_bytes(&[&body]);
            (BlockHeader { body_digest: digest, ..header }, vec![Bytes::from(body)])
        };
        let word = block_bytes(HARD_STATE_BYTES);
        let both = 2 * block_bytes(16);
        let entry = |index| Entry { index, term: 1, ..Entry::default() };
        disk.limit_space(Some(0));
        while node.writer.plan.has_space(both + word) {
            let message = term_1(vec![entry(last(&node) + 1)], last(&node));
            let before = last(&node);
            node.replica.step((message, Vec::new()), now, &mut node.writer).unwrap();
            node.replica.advance(now, &mut node.writer).unwrap();
            assert_eq!(last(&node), before + 1);
        }
        assert!(node.writer.plan.has_space(both));
        // A session is opened, for which there is no room, and a discard follows.
        let before = last(&node);
        let arrived = vec![command(before + 1, 2, 1000), command(before + 2, 1, 1)];
        let entries = arrived.iter().map(|(h, _)| raft_message::entry(h, Bytes::new)).collect();
        node.replica.step((term_1(entries, before), arrived), now, &mut node.writer).unwrap();
        node.replica.advance(now, &mut node.writer).unwrap();
        assert!(node.replica.is_held().is_none());
        assert_eq!((last(&node), node.replica.is_short()), (before, true));
        // As many entries as there is room for, and no more.
        let many = (1..=20).map(|n| entry(before + n)).collect();
        node.replica.step((term_1(many, before), Vec::new()), now, &mut node.writer).unwrap();
        node.replica.advance(now, &mut node.writer).unwrap();
        assert!(node.replica.is_held().is_none());
        assert!(last(&node) > before);
        assert!(!node.writer.plan.has_space(word + block_bytes(body_of(&entry(1)))), "for one more");
    }

    #[test]
    fn change_of_membership_has_a_block_of_the_commit_before_it() {
        let change = Entry { data: vec![0; 100].into(), ..Entry::default() };
        let mut change = change;
        change.set_entry_type(raft::eraftpb::EntryType::EntryConfChangeV2);
        assert_eq!(body_of(&change), 100 + block_bytes(HARD_STATE_BYTES));
        assert_eq!(purpose_of_entry(&change, false), Purpose::Metadata);
    }
}
