//! Admission: a replica gives raft a leader's entries only when there are files for them. Raft accepts entries at once
//! with the message, and cannot give them back.
//!
//! Entries without room are cut off the message, as if they were lost in transit. This replica does not acknowledge
//! them; it still votes and answers heartbeats. The leader sends them again with the next heartbeat.
//!
//! While a file is being prepared, messages that need it are held back, and so is everything that the leader sends to
//! be written after them, in order. Heartbeats and votes pass, unless a ready of raft's waits for room itself. Then all
//! messages are dropped, and to the others this replica looks unreachable ([`super::ready`]). So raft is given entries
//! only if there is room for everything that their ready writes.
//!
//! Invariant: records and session commands do not use the last prepared file, unless a command that makes room
//! follows them in the same message. The file is kept for such commands, and for terms, votes and membership changes. If an object counts
//! as stored behind them, by which files here may go, they use the end of the segment, and never a file. Where files do not go for that,
//! commands about objects wait for room as records do.

use super::Replica;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::replica::queue::proposals::{Command, ObjectCommand};
use crate::replica::state::command::{COMMAND_BYTES, parse_command};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::{Arrived, EntryKind, body_bytes};
use crate::replica::writer::plan::{Fit, Plan};
use crate::store::allocator::Purpose;
use crate::store::block_bytes;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::{LOG_BYTES, LOGS_HEADER_BYTES};
use crate::store::format::segment::{HARD_STATE_BYTES, LENGTH_BYTES};
use crate::sync::clock::Moment;
use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use std::collections::{BTreeSet, VecDeque};

/// Bytes that a held message counts for in addition to its bodies, and also each of its entries.
const HELD_BYTES: usize = 256;

/// The room that is taken by entries that raft was given and that are not planned yet.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Their bytes in the file, headers included.
    bytes: usize,
    /// Room was promised in a file that is not written to yet: room for further entries has to be counted after it.
    is_ahead: bool,
    /// The reason why there was no room the last time; None: there was.
    short: Option<Error>,
    /// Messages that wait for a file.
    held: VecDeque<(Message, Vec<Arrived>)>,
    held_bytes: usize,
}

/// How many hard states have room behind records that use the end of a segment: a commit record, what goes, and a few votes.
const STATES_BEHIND: usize = 5;

/// The bytes by which an opened log can lengthen an opening.
const OPENED_BYTES: usize = 2 * LENGTH_BYTES + LOGS_HEADER_BYTES + LOG_BYTES;

/// Whether there is room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// There is room for the message, as it is now.
    Yes,
    No,
    /// A file for it is being prepared, or the plan has to be settled before.
    Later,
}

impl Replica {
    /// Gives raft a checked message, as far as there is room for it.
    ///
    /// # Errors
    /// A fatal error of this replica.
    pub(super) fn step(
        &mut self,
        checked: (Message, Vec<Arrived>),
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        if !self.admission.held.is_empty() && is_to_write(&checked.0) {
            self.hold(checked);
            return Ok(());
        }
        if let Some(checked) = self.try_step(checked, now, plan)? {
            self.hold(checked);
        }
        Ok(())
    }

    /// Gives raft the held messages, as far as there are files for them now.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(super) fn step_held(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        while !planted!(66)
            && let Some((message, arrived)) = self.admission.held.pop_front()
        {
            self.admission.held_bytes -= bytes_of(&message, &arrived);
            // The state may have changed since it was received.
            if self.out.is_some() || self.check_message(&message).is_err() {
                continue;
            }
            if let Some(checked) = self.try_step((message, arrived), now, plan)? {
                self.admission.held_bytes += bytes_of(&checked.0, &checked.1);
                self.admission.held.push_front(checked);
                break;
            }
        }
        Ok(())
    }

    /// Holds a message back, while memory allows. A dropped message counts as lost in transit.
    fn hold(&mut self, checked: (Message, Vec<Arrived>)) {
        let bytes = bytes_of(&checked.0, &checked.1);
        if self.admission.held_bytes + bytes <= self.cluster.inbox_bytes_max {
            self.admission.held_bytes += bytes;
            self.admission.held.push_back(checked);
        }
    }

    /// Gives raft a message. Returns it if it has to wait for a file.
    fn try_step(
        &mut self,
        (mut message, arrived): (Message, Vec<Arrived>),
        now: Moment,
        plan: &mut Plan,
    ) -> Result<Option<(Message, Vec<Arrived>)>> {
        if self.is_held().is_some() {
            return Ok(None); // raft would answer, and keep the answers in memory
        }
        match self.admit(&mut message, &arrived, now, plan)? {
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
        self.withdraw_for(&message);
        self.step_at_pace(message);
        Ok(None)
    }

    /// Everything that raft was given is planned.
    pub(super) fn admitted_is_planned(&mut self) {
        self.admission.bytes = 0;
        self.admission.is_ahead = false;
    }

    /// Cuts entries without room off a message.
    ///
    /// # Errors
    /// A fatal error of this replica.
    fn admit(
        &mut self,
        message: &mut Message,
        arrived: &[Arrived],
        now: Moment,
        plan: &mut Plan,
    ) -> Result<Admitted> {
        let current = message.term >= self.raw.raft.term;
        match message.get_msg_type() {
            MessageType::MsgAppend if current && !message.get_entries().is_empty() => {}
            // Its state begins a new file, and makes room.
            MessageType::MsgSnapshot if current => {
                let room = plan.check_opening(message.get_snapshot().data.len());
                return Ok(match room.and_then(|()| plan.take_ahead(1, Purpose::Metadata)) {
                    Ok(true) => {
                        self.is_short_of_room(None);
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
        if follows && !self.admission.is_ahead && plan.is_roomy(self.admission.bytes + bytes + terms) {
            self.admission.bytes += bytes;
            self.is_short_of_room(None);
            return Ok(Admitted::Yes);
        }
        self.process(now, plan)?;
        if self.is_held().is_some() {
            return Ok(Admitted::No);
        }
        if self.awaits_settling(plan) {
            return Ok(Admitted::Later);
        }
        let log = &self.raw.raft.raft_log;
        if message.index < log.committed || !log.match_term(message.index, message.log_term) {
            return Ok(Admitted::Yes); // raft accepts no entry of it
        }
        let known = message.get_entries().iter().take_while(|e| log.match_term(e.index, e.term)).count();
        let truncates = message.index + (known as u64) < log.last_index();
        let fresh = &message.get_entries()[known..];
        if fresh.is_empty() {
            return Ok(Admitted::Yes);
        }
        let these = |is: fn(Command) -> bool| -> BTreeSet<u64> {
            let these = arrived.iter().filter(|(h, b)| command_in(h, b).is_some_and(is));
            these.map(|(h, _)| h.raft_index.0).collect()
        };
        let makers = these(Command::makes_room);
        let of_one_log = these(Command::may_lead_to_room);
        // They need no more than their own blocks. Records before them wait for room as all others. Where no file goes for what is stored,
        // they free nothing.
        let frees = releases_files(&self.options) || self.keeps_discarded_files();
        let mut of_objects = these(|command| matches!(command, Command::Object(_)));
        let mut stores = these(|command| matches!(command, Command::Object(ObjectCommand::Stored { .. })));
        of_objects.retain(|_| frees);
        stores.retain(|_| frees);
        let space = plan.space();
        let opening = self.sequencer.opening_bytes_max() + options_in(fresh);
        let of = |e: &Entry| {
            let is_command = makers.contains(&e.index) || of_objects.contains(&e.index);
            let purpose = match of_one_log.contains(&e.index) {
                true => Purpose::OneLog,
                false => purpose_of_entry(e, is_command),
            };
            (purpose, body_of(e))
        };
        // Their ready also writes their term, unless an opening holds it, and a commit record after them.
        let state = (Purpose::Metadata, HARD_STATE_BYTES);
        let term = (message.term > self.raw.raft.term && !truncates).then_some(state);
        let terms = usize::from(term.is_some());
        let mut room = |entries: &mut dyn Iterator<Item = (Purpose, usize)>| {
            let blocks = term.into_iter().chain(entries).chain([state]);
            plan.make_room_ahead(blocks, opening, truncates)
        };
        let fit = room(&mut fresh.iter().map(of));
        if fit.is_coming {
            return Ok(Admitted::Later);
        }
        let mut blocks = fit.blocks.saturating_sub(terms).min(fresh.len());
        if let Some(why) = &fit.why {
            // Entries up to one that makes room may use the reserve. Up to one that may lead to room they leave a part of it: such ones can
            // follow without end, and no file goes.
            let is_whole = |fit: Fit| fit.why.is_none() && !fit.is_coming;
            let mut in_reserve = 0;
            for (these, purpose) in [(&makers, Purpose::Metadata), (&of_one_log, Purpose::OneLog)] {
                let upto = fresh.iter().skip(blocks).position(|e| these.contains(&e.index));
                let upto = upto.map_or(0, |n| blocks + n + 1);
                if upto > 0 && is_whole(room(&mut fresh[..upto].iter().map(|e| (purpose, body_of(e))))) {
                    (blocks, in_reserve) = (upto, upto);
                    break;
                }
            }
            if in_reserve == 0
                && let Some(n) = fresh.iter().skip(blocks).position(|e| stores.contains(&e.index))
            {
                // Up to one that says that an object is stored, the end of this segment, but no file; and not all of it, so that votes
                // have room.
                let upto = blocks + n + 1;
                let bytes: usize = fresh[..upto].iter().map(|e| block_bytes(body_of(e))).sum();
                if !truncates && bytes + (terms + STATES_BEHIND) * block_bytes(HARD_STATE_BYTES) <= space {
                    (blocks, in_reserve) = (upto, upto);
                }
            }
            while blocks > 0 && blocks != in_reserve && !is_whole(room(&mut fresh[..blocks].iter().map(of))) {
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

    /// Whether there was no room for the leader's last entries.
    pub(crate) fn is_short(&self) -> bool {
        self.admission.short.is_some()
    }

    /// The reason why there was no room, if another replica leads.
    pub(crate) fn shortage(&self) -> Option<&Error> {
        self.admission.short.as_ref().filter(|_| !self.is_leader())
    }

    /// Whether messages wait for a file.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn holds_messages(&self) -> bool {
        !self.admission.held.is_empty()
    }

    /// Logs once when there is no room, and once when there is again.
    fn is_short_of_room(&mut self, why: Option<&Error>) {
        let kind = why.map(Error::kind);
        if kind == self.admission.short.as_ref().map(Error::kind) {
            return; // unchanged
        }
        self.admission.short = why.cloned();
        let node = self.node();
        match why {
            Some(why) => {
                tracing::warn!(%node, %why, "no room for the leader's entries: they are not acknowledged until there is room");
            }
            None => tracing::info!(%node, "there is room again for the leader's entries"),
        }
    }

    /// Whether files with discarded records wait here for the object that is cut over them: they go once it is stored.
    fn keeps_discarded_files(&self) -> bool {
        let committed = self.sequencer.committed();
        committed.objects.next_to_store().is_some_and(|(_, begin, _)| begin.next < committed.first)
    }
}

/// Whether files here go once their records are in the object store, because of limits of this replica.
fn releases_files(options: &Options) -> bool {
    let has_limits = options.local_bytes.is_some() || options.local_age.is_some();
    options.vault.is_some() && has_limits
}

/// Whether a part of the message is to be written.
fn is_to_write(message: &Message) -> bool {
    match message.get_msg_type() {
        MessageType::MsgAppend => !message.get_entries().is_empty(),
        kind => kind == MessageType::MsgSnapshot,
    }
}

/// The approximate memory of a message. Empty messages count too.
fn bytes_of(message: &Message, arrived: &[Arrived]) -> usize {
    let bodies: usize = arrived.iter().flat_map(|(_, body)| body).map(Bytes::len).sum();
    HELD_BYTES + message.get_entries().len() * HELD_BYTES + bodies
}

/// The purpose of the room for an entry.
fn purpose_of_entry(entry: &Entry, makes_room: bool) -> Purpose {
    match raft_message::kind_of(entry) {
        Ok(EntryKind::Block(_)) if !makes_room => Purpose::Data,
        _ => Purpose::Metadata,
    }
}

/// The bytes by which these entries can lengthen later openings, because they set options of the log, or open named
/// logs.
pub(super) fn options_in(entries: &[Entry]) -> usize {
    let sets = |e: &Entry| match raft_message::kind_of(e) {
        Ok(EntryKind::Block(header)) if header.kind == Kind::Command => Some(body_bytes(&header)),
        _ => None,
    };
    entries
        .iter()
        .filter_map(sets)
        .filter(|bytes| *bytes > COMMAND_BYTES)
        .map(|bytes| bytes.max(OPENED_BYTES))
        .sum()
}

/// The bytes of an entry's body in the file.
pub(super) fn body_of(entry: &Entry) -> usize {
    match raft_message::kind_of(entry) {
        Ok(EntryKind::Block(header)) => body_bytes(&header),
        // A membership change is written after a commit record.
        _ => entry.data.len() + block_bytes(HARD_STATE_BYTES),
    }
}

/// The command that this entry is.
fn command_in(header: &BlockHeader, body: &[Bytes]) -> Option<Command> {
    let body = body.first().filter(|_| header.kind == Kind::Command)?;
    parse_command(body).ok()
}

#[cfg(all(test, feature = "testing", not(loom)))]
impl Admission {
    pub(super) fn set_short(&mut self, is_short: bool) {
        self.short = is_short.then(|| Error::new(crate::error::ErrorKind::Full, "no room"));
    }
}

#[cfg(all(test, feature = "testing", not(loom)))]
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

    /// Entries were admitted for which there was room, but no room for the commit record after them. The replica was
    /// held, and accepted no discard any more.
    #[test]
    fn entries_are_admitted_only_with_room_for_the_commit_record() {
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
            node.replica.step((message, Vec::new()), now, &mut node.writer.plan).unwrap();
            node.replica.advance(now, &mut node.writer.plan).unwrap();
            assert_eq!(last(&node), before + 1);
        }
        assert!(node.writer.plan.has_space(both));
        // A command opens a session, for which there is no room, and a discard follows.
        let before = last(&node);
        let arrived = vec![command(before + 1, 2, 1000), command(before + 2, 1, 1)];
        let entries = arrived.iter().map(|(h, _)| raft_message::entry(h, Bytes::new)).collect();
        node.replica.step((term_1(entries, before), arrived), now, &mut node.writer.plan).unwrap();
        node.replica.advance(now, &mut node.writer.plan).unwrap();
        assert!(node.replica.is_held().is_none());
        assert_eq!((last(&node), node.replica.is_short()), (before, true));
        // As many entries as there is room for are admitted, and no more.
        let many = (1..=20).map(|n| entry(before + n)).collect();
        node.replica.step((term_1(many, before), Vec::new()), now, &mut node.writer.plan).unwrap();
        node.replica.advance(now, &mut node.writer.plan).unwrap();
        assert!(node.replica.is_held().is_none());
        assert!(last(&node) > before);
        assert!(!node.writer.plan.has_space(word + block_bytes(body_of(&entry(1)))), "room for one more");
    }

    /// The shortage stayed until the end of the segment, and this voter told a full leader that it had no room.
    #[test]
    fn entries_with_room_end_a_shortage() {
        let disk = crate::disk::sim::SimDisk::default();
        let bootstrap = crate::cluster::options::Bootstrap::Join(crate::LogId(7));
        let mut node = crate::replica::raft::tests::node_with(&disk, bootstrap);
        node.replica.admission.set_short(true);
        let index = node.replica.raw.raft.raft_log.last_index();
        let mut message = Message { from: 1, to: 2, term: 1, index, log_term: 1, ..Message::default() };
        message.set_msg_type(MessageType::MsgAppend);
        message.set_entries(vec![Entry { index: index + 1, term: 1, ..Entry::default() }].into());
        node.replica.step((message, Vec::new()), Moment::START, &mut node.writer.plan).unwrap();
        assert!(!node.replica.is_short());
    }

    #[test]
    fn membership_change_counts_with_the_commit_record_before_it() {
        let change = Entry { data: vec![0; 100].into(), ..Entry::default() };
        let mut change = change;
        change.set_entry_type(raft::eraftpb::EntryType::EntryConfChangeV2);
        assert_eq!(body_of(&change), 100 + block_bytes(HARD_STATE_BYTES));
        assert_eq!(purpose_of_entry(&change, false), Purpose::Metadata);
    }
}
