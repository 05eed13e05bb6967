//! Readies: each is what raft wants done next: entries to write, messages to send, state to record. This file carries
//! them out in raft's order, and does what follows once they are durable.
//!
//! ```text
//! raft ──> ready ──> take_ready ──┬──> plan: a roll, a term and vote, entries
//!                                 ├──> messages: now, or held until this ready or this term is durable
//!                                 └──> committed entries, for apply
//! synced ──> on_persisted ──> raft, and the held messages
//! ```
//!
//! Invariant: a ready is taken only when there is room for everything that it writes and for one commit record after
//! it, because a discard needs that record before its files can be removed. Without that room raft keeps the ready, and
//! this replica neither processes nor sends raft messages until there is room ([`Replica::make_room_for_ready`]). To
//! the others it looks unreachable.
//!
//! Invariant: entries are truncated, or skipped by a snapshot, only if everything that was planned before is written
//! and synced. A rollback replays the log from its files, because the effects of uncommitted entries on sessions,
//! options and membership cannot be undone one by one. After a snapshot, the next write has to begin the new segment,
//! so that the committed position is never ahead of the files. Raft keeps a ready that truncates until the node has
//! settled the plan ([`Replica::awaits_settling`]).

use super::Replica;
use super::admission::{body_of, options_in};
use super::peers::checks::{is_aside, parse_snapshot};
use super::peers::one_acknowledgement;
use super::propose::unknown_outcome;
use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::EntryKind;
use crate::replica::writer::plan::{Plan, Room};
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

/// How far raft's readies are durable.
#[derive(Default)]
pub(super) struct Durability {
    /// `planned`: the last ready that writes anything. `persisted`: the last one that is durable.
    pub(super) planned: u64,
    pub(super) persisted: u64,
    /// The last ready.
    pub(super) last: u64,
    /// A snapshot that is being written: its ready, and its last entry.
    pub(super) jump: Option<(u64, EntryIndex)>,
    /// Terms that are being written, with their readies. `term` is the last durable one.
    pub(super) terms: VecDeque<(u64, Term)>,
    pub(super) term: Term,
    /// The durably recorded commit index: a restart finds it.
    /// Moves: only in [`Replica::persisted`], when a block that records it is synced.
    pub(super) commit: EntryIndex,
    /// Messages held until a ready is durable.
    pub(super) held: VecDeque<(u64, Vec<Message>)>,
    /// A leader's messages, held until its term is durable.
    pub(super) gated: Vec<Message>,
}

impl Replica {
    /// Ready `number` and all earlier ones are durable, and so is a block that records the commit index `known`.
    pub(crate) fn persisted(
        &mut self,
        number: u64,
        known: EntryIndex,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        self.durability.commit = self.durability.commit.max(known);
        // Later readies that write nothing are then durable as well.
        let number = if number >= self.durability.planned { self.durability.last } else { number };
        self.on_persisted(number);
        self.process(now, plan)
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
            self.raw.advance_apply_to(to.0); // the state of a snapshot is all in force
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

    /// Continues after the node has settled the plan ([`Self::awaits_settling`]).
    pub(crate) fn resume(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        self.step_held(now, plan)?;
        self.process(now, plan)
    }

    /// Processes raft's readies until there are none, or until one has to wait: for room ([`Self::is_held`]), or for
    /// the plan ([`Self::awaits_settling`]).
    pub(super) fn process(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        self.note_lead();
        loop {
            while self.raw.has_ready() && self.make_room_for_ready(plan) {
                if self.awaits_settling(plan) {
                    return Ok(());
                }
                let ready = self.raw.ready();
                self.take_ready(ready, plan)?;
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
        self.confirm_self(now, plan)
    }

    /// Makes room for everything that raft's next ready writes: a term and vote or a roll, its entries, and a commit
    /// record. Never waits for a file.
    fn make_room_for_ready(&mut self, plan: &mut Plan) -> bool {
        let log = &self.raw.raft.raft_log.unstable;
        let truncates = self.truncates_next();
        let state = self.sequencer.hard_state();
        let votes = (self.raw.raft.term, self.raw.raft.vote) != (state.term.0, state.vote);
        // An opening holds the vote as well.
        let vote = (votes && !truncates).then_some(HARD_STATE_BYTES);
        let writes = truncates || votes || !log.entries.is_empty();
        let word = writes.then_some(HARD_STATE_BYTES);
        let bodies = vote.into_iter().chain(log.entries.iter().map(body_of)).chain(word);
        let bytes: usize = bodies.clone().map(block_bytes).sum();
        let short = if !truncates && plan.has_space(bytes) {
            None
        } else {
            let opening = self.sequencer.opening_bytes_max() + options_in(&log.entries);
            let fit = plan.make_room_ahead(bodies.map(|b| (Purpose::Metadata, b)), opening, truncates);
            if fit.is_coming { Some(None) } else { fit.why.map(Some) }
        };
        self.note_held(short);
        self.short.is_none() || planted!(65)
    }

    /// The index of the next entry of raft's readies, if it does not truncate the log.
    fn next_in_lockstep(&self) -> u64 {
        self.staged.front().map_or(self.sequencer.end().raft.next(), |block| block.header.raft_index).0
    }

    /// Whether raft's next ready truncates entries, or skips entries by a snapshot.
    fn truncates_next(&self) -> bool {
        let log = &self.raw.raft.raft_log.unstable;
        let conflicts = |first: &Entry| first.index < self.next_in_lockstep();
        log.snapshot.is_some() || log.entries.first().is_some_and(conflicts)
    }

    /// Whether raft's next ready waits until everything in the plan is written and synced. The node does that, and
    /// calls [`Self::resume`].
    pub(crate) fn awaits_settling(&self, plan: &Plan) -> bool {
        let has_room = self.short.is_none() || planted!(65);
        let jumps = self.raw.raft.raft_log.unstable.snapshot.is_some();
        !plan.is_settled() && has_room && self.truncates_next() && !(jumps && planted!(19))
    }

    /// Logs once when a ready finds no room, and once when it has found some. `Some(None)`: a file is being prepared.
    fn note_held(&mut self, short: Option<Option<Error>>) {
        let node = self.node();
        match (&self.short, &short) {
            (None | Some(None), Some(Some(why))) => {
                tracing::error!(%node, %why, "no room for a term, a vote or a change: this replica is silent until there is room");
            }
            (Some(Some(_)), None) => tracing::info!(%node, "there is room again: this replica continues"),
            _ => {}
        }
        self.short = short;
    }

    /// The reason why raft's next ready has to wait. The inner None: a file for it is being prepared.
    pub(crate) fn is_held(&self) -> Option<Option<&Error>> {
        self.short.as_ref().map(Option::as_ref)
    }

    /// Fails the pending changes of membership and of options once this leader's term is over: entries of the next
    /// term do not answer them. Barriers and transfers stay pending.
    fn note_lead(&mut self) {
        let leads = self.is_leader().then(|| self.term());
        if self.led.is_some() && self.led != leads {
            self.requests.lead_lost();
            let what =
                "this replica lost leadership before it could change the log's options; nothing was changed";
            self.refuse_options(&Error::new(ErrorKind::NotLeader, what));
        }
        self.led = leads;
    }

    fn take_ready(&mut self, mut ready: Ready, plan: &mut Plan) -> Result<()> {
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
            self.jump(&snapshot, plan)?;
            self.durability.jump = Some((number, EntryIndex(snapshot.get_metadata().index)));
            rolled = true;
        }
        let entries = ready.take_entries();
        // The sequencer already has the entries that this leader proposed itself.
        let next = self.next_in_lockstep();
        if let Some(first) = entries.first().filter(|e| e.index < next) {
            self.rollback(EntryIndex(first.index - 1), plan)?;
            rolled = true;
        }
        if let Some((term, vote)) = turned {
            if vote != 0 {
                self.has_voted();
            }
            self.durability.terms.push_back((number, term));
            let block = self.sequencer.hard_state_block(term, if planted!(3) { 0 } else { vote });
            writes = true;
            // An opening holds it too.
            if !rolled {
                let room = plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer)?;
                if room == Room::Here {
                    plan.push(block);
                }
            }
        }
        if rolled {
            let opening = self.sequencer.opening();
            plan.roll_elsewhere(opening)?;
            self.sequencer.begins_segment();
            writes = true;
        }
        for entry in entries {
            if entry.get_entry_type() == EntryType::EntryConfChangeV2 && !planted!(36) {
                self.keep_commit_before(&entry, plan)?;
            }
            self.take_entry(entry, plan)?;
            writes = true;
        }
        if writes {
            self.durability.planned = number;
            plan.ready(number);
        }
        let free = ready.take_messages();
        // Pre-votes and their answers promise only the term that they are sent in.
        let is_told = self.durability.term == self.term();
        let (asides, held): (Vec<Message>, Vec<Message>) =
            ready.take_persisted_messages().into_iter().partition(|m| is_told && is_aside(m));
        self.send(asides);
        for state in ready.take_read_states() {
            self.requests.read_state(&state);
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
        // All other entries take effect through the sequencer. Keep only the changes: the entries would pile up while
        // one change waits.
        let changes = committed.into_iter().filter(|e| e.get_entry_type() == EntryType::EntryConfChangeV2);
        self.unapplied.extend(changes);
        Ok(())
    }

    /// Plans a commit record before a membership change. A replica with a change in its log has to know, as durably,
    /// that the previous change is committed. Reason: a leader proposes a change only after the previous one is
    /// committed, and majorities of memberships two changes apart need not intersect. The record is written first, so a
    /// torn write cannot keep the change and lose the record.
    fn keep_commit_before(&mut self, change: &Entry, plan: &mut Plan) -> Result<()> {
        let committed = self.raw.raft.raft_log.committed.min(change.index - 1);
        self.sequencer.note_committed(EntryIndex(committed));
        if plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer)? == Room::Here {
            let HardState { term, vote, .. } = self.sequencer.hard_state();
            plan.push(self.sequencer.hard_state_block(term, vote));
        }
        Ok(())
    }

    /// Plans the block of an entry that raft has accepted into the log.
    fn take_entry(&mut self, entry: Entry, plan: &mut Plan) -> Result<()> {
        let malformed = |why| Error::new(ErrorKind::Corrupt, format!("raft's entry {}: {why}", entry.index));
        let at = (EntryIndex(entry.index), Term(entry.term));
        let own = self.staged.pop_front_if(|b| (b.header.raft_index, b.header.term) == at);
        let block = match own {
            // Room for it was made before it was proposed.
            Some(block) => block,
            None => {
                self.staged.clear();
                let kind = raft_message::kind_of(&entry).map_err(malformed)?;
                let bytes = match &kind {
                    EntryKind::Block(header) => raft_message::body_bytes(header),
                    _ => entry.data.len(),
                };
                plan.make_room(bytes, Purpose::Metadata, &mut self.sequencer)?;
                let block = match kind {
                    EntryKind::NoOp => {
                        // Raft also makes one in the middle of a term, of a change of members that it refuses.
                        if self.begun.is_none_or(|(term, _)| term != at.1) {
                            self.begun = Some((at.1, at.0));
                        }
                        self.sequencer.raft_entry(Kind::NoOp, at.1, Bytes::new())
                    }
                    EntryKind::Configuration => {
                        self.sequencer.raft_entry(Kind::Configuration, at.1, entry.data.clone())
                    }
                    EntryKind::Block(header) => match self.arrived.remove(&at) {
                        Some(body) => self.sequencer.follow(&header, body),
                        None => Err("its body did not arrive with it"),
                    },
                };
                block.map_err(malformed)?
            }
        };
        assert_eq!(
            (block.header.raft_index, block.header.term),
            at,
            "sequencer and raft differ in their last entry"
        );
        self.raw.mut_store().push(block.header, &block.body);
        plan.push(block);
        Ok(())
    }

    /// Truncates the entries after `to`: another leader has replaced them.
    fn rollback(&mut self, to: EntryIndex, plan: &Plan) -> Result<()> {
        let committed = self.sequencer.committed().raft;
        assert!(to >= committed, "a committed entry would be truncated");
        assert!(plan.is_settled(), "entries that are not written would be replayed");
        let was = self.sequencer.end();
        // It is this directory's own, and follows from committed entries alone: files before it may have gone.
        let local_first = self.sequencer.committed().local_first;
        let discarded = self.sequencer.committed().discarded.clone();
        let state = self.sequencer.hard_state();
        let mut replayed = Replayed {
            sequencer: Sequencer::new(Owner::Node(self.node()), Membership::default(), &self.options),
            options: &self.options,
        };
        if !self.raw.store().archive().replay(committed, to, &mut replayed)? {
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
        self.sequencer.keep_from(local_first);
        self.sequencer.keep_discarded(discarded);
        let end = self.sequencer.end();
        assert_eq!(end.raft, to, "the replay did not end where the log is truncated");
        let records = was.next.0.saturating_sub(end.next.0);
        self.truncated_records += records;
        tracing::warn!(
            node = %self.node(), entries = was.raft.0 - to.0, records, from = %to.next(), committed = %committed,
            "truncates entries that are not known to be committed here: another leader has replaced them"
        );
        self.raw.mut_store().truncate(end);
        self.log_changed = true;
        self.staged.clear();
        // The outcome is unknown: another replica can have these entries, become leader, and commit them after all.
        while let Some(w) = self.waiting.pop_back_if(|w| w.raft > to) {
            self.waiting_appends -= w.appends;
            if planted!(25) {
                w.completer.answer(w.outcome);
                continue;
            }
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
        Ok(())
    }

    /// Installs a snapshot: the leader has discarded entries that this replica lacks. The log continues after it.
    fn jump(&mut self, snapshot: &raft::eraftpb::Snapshot, plan: &Plan) -> Result<()> {
        // The next write begins the new segment: the committed position must not be ahead of the files.
        assert!(plan.is_settled() || planted!(19), "a snapshot would take effect before earlier entries");
        let malformed = |why: &str| Error::new(ErrorKind::Corrupt, format!("the leader's snapshot: {why}"));
        let (header, opening) = parse_snapshot(snapshot).map_err(malformed)?;
        self.sequencer.jump(&header, &opening, &self.options).map_err(malformed)?;
        self.requests.jumped();
        self.membership = self.sequencer.committed().membership.clone();
        self.raw.mut_store().jump(self.sequencer.end());
        self.unapplied.clear();
        self.log_changed = true;
        self.staged.clear();
        self.waiting_appends = 0;
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
        self.members_changed();
        Ok(())
    }
}
