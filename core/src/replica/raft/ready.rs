//! Readies: what raft wants written, sent and taken note of, in its order; and what follows once it is durable.
//!
//! ```text
//! raft ──> ready ──> take_ready ──┬──> plan: a turn, a term and vote, entries
//!                                 ├──> messages: at once, or held until this ready or this term is durable
//!                                 └──> committed entries, for apply
//! synced ──> on_persisted ──> raft, and the messages that waited
//! ```
//!
//! Invariant: a ready is taken only when there is room for all that it writes, and for one more word of commit behind it: a
//! discard needs that word before its files can go. Without the room raft keeps the ready, and this replica hears and says
//! nothing of raft's until there is some ([`Replica::make_room_for_ready`]). Others see a replica that is away.

use super::Replica;
use super::admission::{body_of, options_in};
use super::peers::checks::{is_aside, parse_snapshot};
use super::peers::one_acknowledgement;
use super::propose::unknown_outcome;
use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::{EntryKind, header_of};
use crate::replica::writer::Writer;
use crate::replica::writer::plan::Room;
use crate::store::allocator::Purpose;
use crate::store::block_bytes;
use crate::store::format::block::Kind;
use crate::store::format::segment::{HARD_STATE_BYTES, HardState};
use crate::sync::clock::Moment;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Term};
use bytes::Bytes;
use raft::Ready;
use raft::eraftpb::{Entry, EntryType, Message};
use std::collections::VecDeque;

/// What is durable of what raft wanted so.
#[derive(Default)]
pub(super) struct Durability {
    /// The last ready with anything to write, and the last one that is durable.
    pub(super) planned: u64,
    pub(super) persisted: u64,
    /// The last ready of all.
    pub(super) last: u64,
    /// A jump on its way to the disk: its ready, and the entry that it leads to.
    pub(super) jump: Option<(u64, EntryIndex)>,
    /// Terms on their way to the disk, by ready; and the last that is there.
    pub(super) terms: VecDeque<(u64, Term)>,
    pub(super) term: Term,
    /// How far the log is durably known here to be committed: what a restart finds.
    /// Moves: only in [`Replica::persisted`], when a block that says so is synced.
    pub(super) commit: EntryIndex,
    /// Messages that wait for a ready.
    pub(super) held: VecDeque<(u64, Vec<Message>)>,
    /// A leader's messages that wait for its term.
    pub(super) gated: Vec<Message>,
}

impl Replica {
    /// Ready `number` and all before are durable, and a word for it that the log is committed up to `known`.
    pub(crate) fn persisted(
        &mut self,
        number: u64,
        known: EntryIndex,
        now: Moment,
        writer: &mut Writer,
    ) -> Result<()> {
        self.durability.commit = self.durability.commit.max(known);
        // Those that came after the last one with anything to write are then as well.
        let number = if number >= self.durability.planned { self.durability.last } else { number };
        self.on_persisted(number);
        self.process(now, writer)
    }

    fn on_persisted(&mut self, number: u64) {
        let durability = &mut self.durability;
        durability.persisted = durability.persisted.max(number);
        while let Some((_, term)) = durability.terms.pop_front_if(|(n, _)| *n <= number) {
            durability.term = term;
        }
        self.raw.on_persist_ready(number);
        if let Some((_, to)) = self.durability.jump.take_if(|(n, _)| *n <= number)
            && self.raw.raft.raft_log.applied < to.0
        {
            self.raw.advance_apply_to(to.0); // what a jump leads to is all in force
        }
        let mut free = Vec::new();
        while let Some((_, messages)) = self.durability.held.pop_front_if(|(n, _)| *n <= number) {
            free.extend(messages);
        }
        self.send(one_acknowledgement(free));
        if self.durability.term == self.term() {
            let gated = std::mem::take(&mut self.durability.gated);
            self.send(gated);
        }
    }

    /// Carries out what raft has ready, until there is nothing more.
    pub(super) fn process(&mut self, now: Moment, writer: &mut Writer) -> Result<()> {
        self.note_lead();
        loop {
            while self.raw.has_ready() && self.make_room_for_ready(writer) {
                let ready = self.raw.ready();
                self.take_ready(ready, writer)?;
                self.steady();
                self.note_lead();
            }
            if !self.apply()? {
                break;
            }
        }
        if !self.is_leader() && !self.waiting.is_empty() && self.lost_lead.is_none() {
            self.lost_lead = Some(now);
        } else if self.is_leader() {
            self.lost_lead = None;
        }
        self.arrived.clear();
        self.admitted_is_planned();
        self.confirm_self(now, writer)
    }

    /// Sees to the room for what raft's next ready writes: a term and vote or a turn, its entries, and a word of commit.
    /// Never waits for a file.
    fn make_room_for_ready(&mut self, writer: &mut Writer) -> bool {
        let log = &self.raw.raft.raft_log.unstable;
        let ordered = self.staged.front().map_or(self.sequencer.end().raft.next(), |b| b.raft_index);
        let turns = log.snapshot.is_some() || log.entries.first().is_some_and(|e| e.index < ordered.0);
        let state = self.sequencer.hard_state();
        let votes = (self.raw.raft.term, self.raw.raft.vote) != (state.term.0, state.vote);
        // An opening says the vote as well.
        let vote = (votes && !turns).then_some(HARD_STATE_BYTES);
        let writes = turns || votes || !log.entries.is_empty();
        let word = writes.then_some(HARD_STATE_BYTES);
        let bodies = vote.into_iter().chain(log.entries.iter().map(body_of)).chain(word);
        let bytes: usize = bodies.clone().map(block_bytes).sum();
        let short = if !turns && writer.plan.has_space(bytes) {
            None
        } else {
            let opening = self.sequencer.opening_bytes_max() + options_in(&log.entries);
            let fit = writer.plan.make_room_ahead(bodies.map(|b| (Purpose::Metadata, b)), opening, turns);
            if fit.is_coming { Some(None) } else { fit.why.map(Some) }
        };
        self.note_held(short);
        self.short.is_none() || planted!(65)
    }

    /// Tells once when a ready finds no room, and once when it has found some. `Some(None)`: a file is being made.
    fn note_held(&mut self, short: Option<Option<Error>>) {
        let node = self.node();
        match (&self.short, &short) {
            (None | Some(None), Some(Some(why))) => {
                tracing::error!(%node, %why, "no room for a term, a vote or a change: this replica is silent until there is");
            }
            (Some(Some(_)), None) => tracing::info!(%node, "there is room again: this replica goes on"),
            _ => {}
        }
        self.short = short;
    }

    /// Why raft's next ready has to wait, if it has to. None inside: a file for it is being made.
    pub(crate) fn is_held(&self) -> Option<Option<&Error>> {
        self.short.as_ref().map(Option::as_ref)
    }

    /// What was asked of the leader of a term that it leads no more will not be answered by what the next one does.
    fn note_lead(&mut self) {
        let leads = self.is_leader().then(|| self.term());
        if self.led.is_some() && self.led != leads {
            self.asks.lead_lost();
            let what =
                "this replica ceased to lead before it could change the log's options; nothing was changed";
            self.refuse_options(&Error::new(ErrorKind::NotLeader, what));
        }
        self.led = leads;
    }

    fn take_ready(&mut self, mut ready: Ready, writer: &mut Writer) -> Result<()> {
        let number = ready.number();
        self.durability.last = number;
        let mut writes = false;
        let mut rolled = false;
        let state = self.sequencer.hard_state();
        let turned = ready
            .hs()
            .map(|hs| (Term(hs.term), hs.vote))
            .filter(|(term, vote)| (*term, *vote) != (state.term, state.vote));
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot().clone();
            self.jump(&snapshot, writer)?;
            self.durability.jump = Some((number, EntryIndex(snapshot.get_metadata().index)));
            rolled = true;
        }
        let entries = ready.take_entries();
        // What this leader ordered itself, the sequencer knows already.
        let ordered = self.staged.front().map_or(self.sequencer.end().raft.next(), |b| b.raft_index);
        if let Some(first) = entries.first().filter(|e| e.index < ordered.0) {
            self.rollback(EntryIndex(first.index - 1), writer)?;
            rolled = true;
        }
        if let Some((term, vote)) = turned {
            if vote != 0 {
                self.has_voted();
            }
            self.durability.terms.push_back((number, term));
            let block = self.sequencer.hard_state_block(term, if planted!(3) { 0 } else { vote });
            writes = true;
            // An opening says it too.
            if !rolled {
                let room = writer.plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer)?;
                if room == Room::Here {
                    writer.plan.push(block);
                }
            }
        }
        if rolled {
            let opening = self.sequencer.opening();
            writer.plan.roll(opening, 0, Purpose::Metadata)?;
            writes = true;
        }
        for entry in entries {
            if entry.get_entry_type() == EntryType::EntryConfChangeV2 && !planted!(36) {
                self.keep_commit_before(&entry, writer)?;
            }
            self.take_entry(entry, writer)?;
            writes = true;
        }
        if writes {
            self.durability.planned = number;
            writer.plan.ready(number);
        }
        let free = ready.take_messages();
        // Questions before an election, and the answers, promise nothing but the term that they are asked in.
        let is_told = self.durability.term == self.term();
        let (asides, held): (Vec<Message>, Vec<Message>) =
            ready.take_persisted_messages().into_iter().partition(|m| is_told && is_aside(m));
        self.send(asides);
        for state in ready.take_read_states() {
            self.asks.read_state(&state);
        }
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        if self.durability.planned <= self.durability.persisted {
            self.on_persisted(number);
        }
        if self.durability.term == self.term() || planted!(1) {
            self.send(free);
        } else {
            self.durability.gated.extend(free);
        }
        if !held.is_empty() {
            if self.durability.persisted >= number || planted!(2) {
                self.send(held);
            } else {
                self.durability.held.push_back((number, held));
            }
        }
        if let Some(last) = committed.last() {
            self.settled = EntryIndex(last.index);
        }
        // All else has its effect through the sequencer: of many that wait for one nothing is kept.
        let changes = committed.into_iter().filter(|e| e.get_entry_type() == EntryType::EntryConfChangeV2);
        self.unapplied.extend(changes);
        Ok(())
    }

    /// Who has a change of membership in its log has to know, as durably, that the one before is committed: a change is
    /// proposed only then, and majorities of memberships that are two changes apart need not meet. So that is written
    /// first, and a torn write cannot keep the change and lose it.
    fn keep_commit_before(&mut self, change: &Entry, writer: &mut Writer) -> Result<()> {
        let committed = self.raw.raft.raft_log.committed.min(change.index - 1);
        self.sequencer.note_committed(EntryIndex(committed));
        if writer.plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer)? == Room::Here {
            let HardState { term, vote, .. } = self.sequencer.hard_state();
            writer.plan.push(self.sequencer.hard_state_block(term, vote));
        }
        Ok(())
    }

    /// An entry that raft has taken into the log: its block is planned.
    fn take_entry(&mut self, entry: Entry, writer: &mut Writer) -> Result<()> {
        let malformed =
            |why| Error::new(ErrorKind::Corrupt, format!("entry {} of raft's: {why}", entry.index));
        let at = (EntryIndex(entry.index), Term(entry.term));
        let own = self.staged.pop_front_if(|b| (b.raft_index, b.term) == at);
        let block = match own {
            // Its room was made before it was ordered.
            Some(block) => block,
            None => {
                self.staged.clear();
                let kind = raft_message::kind_of(&entry).map_err(malformed)?;
                let bytes = match &kind {
                    EntryKind::Block(header) => raft_message::body_bytes(header),
                    _ => entry.data.len(),
                };
                writer.plan.make_room(bytes, Purpose::Metadata, &mut self.sequencer)?;
                let block = match kind {
                    EntryKind::NoOp => self.sequencer.raft_entry(Kind::NoOp, at.1, Bytes::new()),
                    EntryKind::Configuration => {
                        self.sequencer.raft_entry(Kind::Configuration, at.1, entry.data.clone())
                    }
                    EntryKind::Block(header) => match self.arrived.remove(&at) {
                        Some(body) => self.sequencer.follow(&header, body),
                        None => Err("its body did not come with it"),
                    },
                };
                block.map_err(malformed)?
            }
        };
        assert_eq!((block.raft_index, block.term), at, "sequencer and raft are in lockstep");
        self.raw.mut_store().push(header_of(&block), &block.body);
        writer.plan.push(block);
        Ok(())
    }

    /// Entries beyond `to` are void: another leader put others there.
    fn rollback(&mut self, to: EntryIndex, writer: &mut Writer) -> Result<()> {
        let committed = self.sequencer.committed().raft;
        assert!(to >= committed, "a committed entry is never cut off");
        let was = self.sequencer.end();
        writer.settle()?;
        let state = self.sequencer.hard_state();
        let mut replayed = Replayed {
            sequencer: Sequencer::new(Owner::Node(self.node()), Membership::default(), &self.options),
            options: &self.options,
        };
        if !writer.archive.replay(committed, to, &mut replayed)? {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("entry {committed} or {to} is not in the files"),
            ));
        }
        self.sequencer = replayed.sequencer;
        self.sequencer.keep_hard_state(
            HardState { vote: if planted!(37) { 0 } else { state.vote }, ..state },
            committed,
        );
        let end = self.sequencer.end();
        assert_eq!(end.raft, to, "the log was replayed to where it is cut");
        let records = was.next.0.saturating_sub(end.next.0);
        self.truncated_records += records;
        tracing::warn!(
            node = %self.node(), entries = was.raft.0 - to.0, records, from = %to.next(), committed = %committed,
            "cuts off entries that are not known committed here: another leader has others in their place"
        );
        self.raw.mut_store().truncate(end);
        self.turned = true;
        self.staged.clear();
        // That they were cut off here says nothing: another replica can have them, lead next, and commit them after all.
        while let Some(w) = self.waiting.pop_back_if(|w| w.raft > to) {
            if planted!(25) {
                w.completer.answer(w.outcome);
                continue;
            }
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
        Ok(())
    }

    /// The leader has discarded what this replica lacks: it goes on behind.
    fn jump(&mut self, snapshot: &raft::eraftpb::Snapshot, writer: &mut Writer) -> Result<()> {
        // So that the new segment begins with the next write: what is committed must not run ahead of what is there.
        if !planted!(19) {
            writer.settle()?;
        }
        let malformed = |why: &str| Error::new(ErrorKind::Corrupt, format!("the leader's snapshot: {why}"));
        let (header, opening) = parse_snapshot(snapshot).map_err(malformed)?;
        self.sequencer.jump(&header, &opening, &self.options).map_err(malformed)?;
        self.asks.jumped();
        self.membership = self.sequencer.committed().membership.clone();
        self.raw.mut_store().jump(self.sequencer.end());
        self.unapplied.clear();
        self.turned = true;
        self.staged.clear();
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
        self.members_changed();
        Ok(())
    }
}
