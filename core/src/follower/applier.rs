//! Applier: a log that follows another one, without a thread. It takes fed entries, writes them and makes them
//! durable, as a node does for a replica. There is no raft here, because everything that is fed is committed.
//!
//! ```text
//!  entries ──> sequencer: is it the next? ──> plan ──> write (1 pwritev) ──> publish
//!  state   ──> sequencer: replaced        ──> plan: a jump ──> first moves ──> write ──> publish
//!  begin_sync() ──> fdatasync, on any thread ──> end_sync(): durable; files of discarded records are removed
//! ```
//!
//! Entries are published when they are written, before they are durable here: they are durable on a majority's disks.
//! After a crash of the machine the log can be shorter; the same entries are then fed again.
//!
//! Invariants:
//! - every entry that is taken is the next one: it passes through the same sequencer as a replica's;
//! - no part of a refused entry or state is in the log, and the sequencer's state is that of the last block;
//! - before a jump removes segments, `first` has moved: no reader looks for their records;
//! - files are removed only when a durable block says that the log begins after them, or that what is in them is in objects; in a copy of
//!   one log, a block with the table of the group's objects in which it is;
//! - after a failed write or sync nothing is written any more: the caller that gets an outer error poisons the log.
//!
//! `applier/room.rs` makes room for entries.
//!
//! Must not know: raft, who feeds, threads.

pub(crate) mod room;

use crate::cluster::membership::Membership;
use crate::cluster::options::{ReplicaStatus, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowFrom};
use crate::options::Options;
use crate::read::log_set::LogSet;
use crate::read::positions::Positions;
use crate::record::batch::{BatchHeader, Malformed};
use crate::replica::node::Published;
use crate::replica::node::shared::Shared;
use crate::replica::node::tiering::read_objects;
use crate::replica::open::RecoveredLog;
use crate::replica::queue::proposals::{BlockBuilder, Command, ProposalQueue};
use crate::replica::state::command::parse_command;
use crate::replica::state::log_clock::LogClock;
use crate::replica::state::object_table::Shown;
use crate::replica::state::sequencer::{
    Owner, Replayed, SequencedBlock, Sequencer, TOO_SMALL_FOR_OBJECTS, TakenTable,
};
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::writer::{SyncOnce, Writer, Written};
use crate::store::allocator::Purpose;
use crate::store::block_bytes;
use crate::store::format::block::Kind;
use crate::store::format::identity::Identity;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::store::read::group_objects::GroupObjects;
use crate::sync::clock::Moment;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Index, LogId, LogNumber, NodeId, Term, Timestamp};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A follower's log has skipped records and continues at a later one.
///
/// ```
/// # fn show(jumped: chiplog::follower::Jumped) {
/// println!("{} records were discarded before this copy had them", jumped.to.get() - jumped.from.get());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jumped {
    /// The next record before the jump. The same as `to` if only entries without records were skipped.
    pub from: Index,
    /// The next record now. No record before it is here: neither the skipped ones nor those that were here.
    pub to: Index,
}

/// A log that follows another one. The methods that write return two results: the outer error is the one that poisons
/// the log, the inner one refuses an entry or a state.
pub(crate) struct Applier {
    sequencer: Sequencer,
    writer: Writer,
    me: Identity,
    options: Options,
    queue: Arc<ProposalQueue>,
    positions: Arc<Positions>,
    /// The logs of a shared group.
    logs: Arc<LogSet>,
    published: Arc<Published>,
    /// How many marks were planned. A mark comes after a block that says where the log begins.
    marks: u64,
    /// Pairs of a mark and the first index of the log's files once that mark is durable; in order.
    to_drop: VecDeque<(u64, Index)>,
    /// The objects that readers have been shown.
    shown: Shown,
    /// Of a copy of one log: its part of the group's objects.
    older: Arc<OnceLock<GroupObjects>>,
    /// Of a copy of one log: records below this one are in the group's objects that readers have been shown.
    stored_below: Index,
    /// It has warned of a table of objects that no opening here has room for.
    has_warned: bool,
    /// Bytes of entries that are planned and not written.
    planned: u64,
    /// Bytes that are written and not synced, without those that the running sync covers.
    unsynced: u64,
    /// The clock for retention by age. A thread reads it before it writes.
    clock: LogClock,
    time: Timestamp,
}

impl Applier {
    /// Follows on with a log that was just opened.
    pub(crate) fn new(opened: RecoveredLog, shared: &Shared) -> Self {
        let options = shared.options.clone();
        let RecoveredLog { identity: me, store, sequencer, .. } = opened;
        read_objects(&store, me.log, &options);
        let writer = Writer::new(store, sequencer.end(), sequencer.committed().raft);
        let time = options.clock.now();
        let mut applier = Self {
            sequencer,
            writer,
            me,
            options,
            queue: shared.queue.clone(),
            positions: shared.view.positions.clone(),
            logs: shared.view.logs.clone(),
            published: shared.published.clone(),
            marks: 0,
            to_drop: VecDeque::new(),
            shown: Shown::default(),
            older: shared.view.older.clone(),
            stored_below: Index(0),
            has_warned: false,
            planned: 0,
            unsynced: 0,
            clock: LogClock::new(Moment::default(), time),
            time,
        };
        applier.publish();
        applier
    }

    /// The position where a feed has to begin.
    pub(crate) fn resume_point(&self) -> FollowFrom {
        let (end, committed) = (self.sequencer.end(), self.sequencer.committed());
        let (log, raft, term) = (self.me.log, end.raft, end.term);
        match committed.membership.is_of_one_log() {
            true => {
                let (first, time) = (committed.first, self.sequencer.last_timestamp());
                FollowFrom::AfterRecord { log, raft, term, next: end.next, first, time }
            }
            false => FollowFrom::After { log, raft, term },
        }
    }

    /// `time` has passed since the log was opened.
    pub(crate) fn has_passed(&mut self, time: Duration) {
        let now = Moment::default().plus(time);
        self.time = self.clock.look(now, self.options.clock.now());
        self.writer.store.allocator.set_time(now);
    }

    // ---- entries and states ----

    /// Writes entries. An inner error names an entry; the entries before it were taken.
    pub(crate) fn apply(&mut self, fed: FollowEntries) -> Result<Result<()>> {
        let kept = fed.kept;
        let fresh = match self.fresh(fed) {
            Ok(fresh) => fresh,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // Entries before one that makes room may use the reserve, so that it can follow.
        let upto = |is| fresh.iter().rposition(|entry| is_command(entry, is)).map_or(0, |n| n + 1);
        let (reserved, of_one_log) = (upto(Command::makes_room), upto(Command::may_lead_to_room));
        let reserve = |n| match n {
            n if n < reserved => Some(Purpose::Metadata),
            n if n < of_one_log => Some(Purpose::OneLog),
            _ => None,
        };
        let mut outcome = Ok(());
        let mut spoilt = false;
        for (n, entry) in fresh.into_iter().enumerate() {
            let bytes = block_bytes(entry.bytes()) as u64;
            if let Err(refusal) = self.find_room(&entry, reserve(n), kept)? {
                outcome = Err(refusal);
                break;
            }
            self.planned += bytes;
            let (first, end) = (self.sequencer.committed().first, self.sequencer.end().raft);
            let FollowEntry { header, body } = entry;
            match self.sequencer.follow(&header, body) {
                Ok(block) => self.writer.plan.push(block),
                Err(why) => {
                    outcome = Err(does_not_follow(end, header.raft_index, why));
                    spoilt = true;
                    break;
                }
            }
            self.sequencer.commit_to(header.raft_index);
            let discarded = self.sequencer.committed().first;
            if discarded > first {
                self.published.discarded.fetch_max(discarded.0, Ordering::Release);
                self.mark();
            }
            self.published.counters.records.fetch_add(header.record_count.into(), Ordering::Relaxed);
        }
        self.carry_out()?;
        if spoilt {
            self.learn_again()?;
        }
        self.learn_discards(kept);
        self.publish();
        Ok(outcome)
    }

    /// Of a copy of one log: the source knows that the log has discarded the records below `kept`. After a restart the files here do not say
    /// what was discarded, and what this copy alone keeps no longer.
    fn learn_discards(&self, kept: Index) {
        let committed = self.sequencer.committed();
        if committed.membership.is_of_one_log() {
            self.published.discarded.fetch_max(kept.min(committed.first).0, Ordering::Release);
        }
    }

    /// Adds an entry with these batches, in the term with which the log was concluded, as a leader does: retries within sessions, and
    /// what a session refuses, are left out. Returns those refusals. For the end of a log that is made of an object store.
    pub(crate) fn append(
        &mut self,
        batches: &[(LogNumber, BatchHeader, Bytes)],
        time: Timestamp,
    ) -> Result<Result<Vec<Error>>> {
        let gathered = BlockBuilder::of(batches);
        let room = self.writer.plan.make_room(gathered.bytes, Purpose::Data, &mut self.sequencer);
        if let Err(refusal) = room {
            return Ok(Err(refusal));
        }
        let SequencedBlock { block, outcome, .. } = self.sequencer.data(gathered, time);
        let refused = match outcome {
            Outcome::Each(results) => results.into_iter().filter_map(Result::err).collect(),
            _ => Vec::new(),
        };
        if let Some(block) = block {
            self.planned += block_bytes(block.header.length as usize) as u64;
            self.published.counters.records.fetch_add(block.header.record_count.into(), Ordering::Relaxed);
            self.sequencer.commit_to(block.header.raft_index);
            self.writer.plan.push(block);
        }
        self.carry_out()?;
        self.publish();
        Ok(Ok(refused))
    }

    /// Ends the log as its writer would, by a block that opens a term, `terms` terms after its last entry's, or the one that a later block
    /// names, and that says that all entries are committed. For a log that is to continue without being fed.
    pub(crate) fn conclude(&mut self, terms: u64) -> Result<Result<()>> {
        let room = self.writer.plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer);
        if let Err(refusal) = room {
            return Ok(Err(refusal));
        }
        let term = Term(self.sequencer.end().term.0.saturating_add(terms));
        // Segments that a server has passed on have its hard states.
        let term = term.max(self.sequencer.hard_state().term);
        let block = self.sequencer.hard_state_block(term, 0);
        self.writer.plan.push(block);
        self.settle()?;
        Ok(Ok(()))
    }

    /// Returns the entries that are not here yet, after checking that the others are the same.
    fn fresh(&self, fed: FollowEntries) -> Result<Vec<FollowEntry>> {
        self.check_log(fed.log)?;
        let end = self.sequencer.end();
        let mut entries = fed.entries;
        let known = entries.iter().take_while(|e| e.raft() <= end.raft).count();
        let is_of_one_log = self.sequencer.committed().membership.is_of_one_log();
        // Copies of one log number their entries each by itself: the same number says nothing.
        if let Some(last) = known.checked_sub(1).and_then(|n| entries.get(n)).filter(|_| is_of_one_log)
            && (last.raft() < end.raft || last.header.next_record() != end.next)
        {
            let what =
                "entries of another feed were fed: open a feed at the point that `resume_point` returns";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if let Some(last) = known.checked_sub(1).and_then(|n| entries.get(n)) {
            let here = if last.raft() == end.raft {
                Some(end.term)
            } else {
                self.writer.archive.term(last.raft())?
            };
            if here.is_some_and(|term| term != last.term()) {
                let why = "the entry here has another term";
                return Err(does_not_follow(end.raft, last.raft(), why));
            }
        }
        drop(entries.drain(..known));
        match entries.first() {
            Some(first) if first.raft() != end.raft.next() => {
                let what = format!(
                    "entry {} was fed after entry {}: open the feed at the point that `resume_point` returns",
                    first.raft(),
                    end.raft
                );
                Err(Error::new(ErrorKind::InvalidArgument, what))
            }
            _ => Ok(entries),
        }
    }

    /// Continues at `state`, without the entries before it. Records before it are discarded, or in the object store. `None`:
    /// the log is there already, or lacks no record.
    pub(crate) fn install_snapshot(&mut self, state: &FollowSnapshot) -> Result<Result<Option<Jumped>>> {
        if let Err(refusal) = self.check_log(state.log) {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = room::check_retention(&self.options, state.group_objects().is_some()) {
            return Ok(Err(refusal));
        }
        let (end, base) = (self.sequencer.end(), state.base());
        if base == end || planted!(63) {
            self.learn_objects(state);
            self.learn_discards(state.kept);
            return Ok(Ok(None));
        }
        if state.tells_of_objects() {
            let what = "objects that a copy can read were fed to one that is not as far: open a feed at the point that `resume_point` returns";
            return Ok(Err(Error::new(ErrorKind::InvalidArgument, what)));
        }
        let forward = base.raft > end.raft && base.term >= end.term && base.next >= end.next;
        if !forward || state.timestamp() < self.sequencer.last_timestamp() {
            let why = "the state is before the end of the log, or contradicts it";
            return Ok(Err(does_not_follow(end.raft, base.raft, why)));
        }
        let mut sequencer = Sequencer::new(Owner::Follower, Membership::default(), &self.options);
        if let Err(why) = sequencer.begin_at(&state.header, &state.body, &self.options) {
            let what = format!("the fed state cannot be decoded: {why}");
            return Ok(Err(Error::new(ErrorKind::Corrupt, what)));
        }
        // The same limit as in `learn_objects`: a state that is taken leaves room for entries.
        if let Err(refusal) = sequencer.check_group_objects() {
            return Ok(Err(refusal));
        }
        let next = end.next;
        self.settle()?; // the new segment has to begin with the next write
        if let Err(refusal) = self.writer.plan.roll_elsewhere(sequencer.opening()) {
            return Ok(Err(refusal));
        }
        self.sequencer = sequencer;
        self.stored_below = state.group_objects().map_or(Index(0), |(_, stored_below)| stored_below);
        self.to_drop.clear(); // all files are removed once the new one is durable
        let first = self.sequencer.readable_from();
        self.publish_time();
        self.positions.discarded(first);
        self.publish_logs();
        self.show_objects();
        self.carry_out()?;
        self.learn_discards(state.kept);
        self.publish();
        self.queue.recount(self.writer.store.segments.bytes_from(base.next));
        let has_lost = self.options.vault.is_none() || first > next;
        Ok(Ok(has_lost.then_some(Jumped { from: next, to: first })))
    }

    /// Takes over the objects of the group of which this is one log's copy, if `state` has newer ones. It changes no record, and nothing is
    /// written: the next opening has them. Of objects that are known, as after a restart, it learns up to where the records are in them.
    fn learn_objects(&mut self, state: &FollowSnapshot) {
        let Some((table, stored_below)) = state.group_objects() else { return };
        let is_of_one_log = self.sequencer.committed().membership.is_of_one_log();
        // Records between would be nowhere.
        if !is_of_one_log || stored_below < self.sequencer.committed().local_first {
            return;
        }
        match self.sequencer.take_group_objects(&table) {
            TakenTable::New | TakenTable::Known => {
                self.stored_below = self.stored_below.max(stored_below);
                self.show_objects();
                self.positions.begin_at(self.sequencer.readable_from());
            }
            TakenTable::TooLarge => self.warn_of_table(table.len()),
            TakenTable::OfAnotherGroup => {}
        }
    }

    /// Warns once that no opening here has room for the group's objects.
    fn warn_of_table(&mut self, objects: usize) {
        if std::mem::replace(&mut self.has_warned, true) {
            return;
        }
        let (log, segment_bytes) = (self.me.log, self.options.segment_bytes);
        tracing::warn!(%log, objects, segment_bytes, "{TOO_SMALL_FOR_OBJECTS}: it learns of no new ones, and its own files stay, whatever \
            local_bytes says; open it with larger segment_bytes");
    }

    fn check_log(&self, log: LogId) -> Result<()> {
        if log == self.me.log {
            return Ok(());
        }
        let what = format!("log {log} was fed to a follower of log {}; nothing was taken", self.me.log);
        Err(Error::new(ErrorKind::Diverged, what))
    }

    /// Replays the files to get the state back: a refused entry may have changed half of it.
    fn learn_again(&mut self) -> Result<()> {
        let end = self.writer.written().end.raft;
        let sequencer = Sequencer::new(Owner::Follower, Membership::default(), &self.options);
        let mut replayed = Replayed { sequencer, options: &self.options };
        if !self.writer.archive.replay(end, end, &mut replayed)? {
            return Err(Error::new(ErrorKind::Corrupt, format!("entry {end} is not in the files")));
        }
        self.sequencer = replayed.sequencer;
        self.stored_below = Index(0); // the table is that of the last opening again, which can lack newer objects
        Ok(())
    }

    // ---- the disk ----

    /// Notes that the first index of the log, and of its files, is durable once the planned blocks are.
    fn mark(&mut self) {
        self.marks += 1;
        self.writer.plan.ready(self.marks);
        self.to_drop.push_back((self.marks, self.sequencer.committed().local_first));
    }

    /// Writes everything that is planned. Before a roll it syncs.
    fn carry_out(&mut self) -> Result<()> {
        let mut rolled = false;
        loop {
            let done = self.writer.write()?;
            self.count(&done);
            rolled |= done.rolls > 0;
            if !self.writer.plan.is_empty() {
                self.sync()?;
            } else if std::mem::take(&mut rolled) {
                self.mark(); // files with commands alone go, too: no discard follows where there are no records
            } else {
                return Ok(());
            }
        }
    }

    fn count(&mut self, done: &Written) {
        let counters = &self.published.counters;
        counters.blocks.fetch_add(done.blocks, Ordering::Relaxed);
        counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        counters.rolls.fetch_add(done.rolls, Ordering::Relaxed);
        self.queue.account(0, done.bytes);
        self.unsynced += done.bytes;
        self.planned = 0;
        // All entries here are committed: readers may read them once the positions say so, and files may be removed.
        self.writer.store.commit(self.writer.written().end.raft);
        self.positions.written(self.writer.written().end.next.previous());
    }

    /// Runs one sync, or waits for the running one. False: everything that was taken is durable.
    pub(crate) fn sync(&mut self) -> Result<bool> {
        let began = Instant::now();
        let synced = self.writer.sync()?;
        if synced {
            self.published.counters.synced(began.elapsed());
            self.synced();
        }
        Ok(synced)
    }

    /// Writes and syncs everything.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.carry_out()?;
        while self.sync()? {}
        Ok(())
    }

    /// Returns a sync job, if anything is unsynced and no sync is running.
    pub(crate) fn begin_sync(&mut self) -> Option<Arc<SyncOnce>> {
        let job = self.writer.begin_sync()?;
        self.unsynced = 0;
        Some(job)
    }

    /// The sync has succeeded.
    pub(crate) fn end_sync(&mut self, job: &Arc<SyncOnce>) {
        self.writer.end_sync(job);
        self.synced();
    }

    /// Removes the files of a discard that is durable. The first index moves before that: readers get `Discarded`,
    /// never an error about a missing part of the log.
    fn synced(&mut self) {
        if self.writer.store.is_synced() {
            self.unsynced = 0;
        }
        let synced = self.writer.synced();
        self.positions.durable_to(synced.end.next.previous());
        let mut durably = None;
        while let Some((_, first)) = self.to_drop.pop_front_if(|(mark, _)| *mark <= synced.ready) {
            durably = Some(first);
        }
        if let Some(first) = durably {
            self.show_objects(); // before files with their records go
            self.positions.discarded(self.sequencer.readable_from());
            self.writer.store.drop_below(first, synced.end.raft);
            self.queue.recount(self.writer.store.segments.bytes_from(first));
        }
    }

    /// Bytes that wait for the next sync.
    pub(crate) fn unsynced(&self) -> u64 {
        self.unsynced
    }

    /// Whether everything that was taken is durable.
    pub(crate) fn is_settled(&self) -> bool {
        self.writer.is_settled()
    }

    /// Whether nothing on the disk proves yet that the tail is durable.
    pub(crate) fn is_unproven(&self) -> bool {
        self.writer.store.is_unproven()
    }

    /// Writes a proof of the tail, all of which is durable.
    pub(crate) fn prove(&mut self) -> Result<()> {
        for body in self.writer.store.proof() {
            let marker = self.sequencer.marker(body);
            self.writer.plan.push(marker);
        }
        self.carry_out()
    }

    /// Does the work of a helper thread.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn help(&self) {
        self.writer.store.allocator.help();
    }

    // ---- what others see ----

    /// Publishes the logs of a shared group that entries have changed.
    fn publish_logs(&mut self) {
        let changed = self.sequencer.take_changed_logs(&self.logs);
        let logs = &self.sequencer.committed().logs;
        if !changed.states.is_empty() || logs.opened() != self.logs.opened() {
            self.logs.show(logs.opened(), changed.states.into_iter().map(|log| (log, logs.get(log))));
            changed.options.into_iter().for_each(|log| self.logs.show_options(log, logs.options(log)));
        }
    }

    /// Shows readers and feeds the objects that are stored.
    fn show_objects(&mut self) {
        let objects = &self.sequencer.committed().objects;
        let shown = objects.shown();
        if self.shown == shown {
            return;
        }
        let Some((_, log)) = objects.group() else {
            objects.show(self.me.log, self.writer.store.segments.objects());
            self.shown = shown;
            return;
        };
        let store = &self.writer.store;
        let older = self.older.get_or_init(|| {
            let older = GroupObjects::new(store.disk.clone(), self.options.read_mode, log);
            older.objects().use_cache_of(store.segments.objects());
            older
        });
        objects.show(self.me.log, older.objects());
        self.shown = shown;
    }

    /// Publishes the time of the last entry. A feed looks at it after the positions, so it comes before them.
    fn publish_time(&self) {
        let time = self.sequencer.last_timestamp();
        self.published.end_times.note(self.sequencer.committed().next, time);
        self.published.last_timestamp.store(time.0, Ordering::Relaxed);
    }

    /// Publishes everything that is written. Wakes no reader: the caller does that, without a lock.
    fn publish(&mut self) {
        self.publish_logs();
        self.show_objects();
        self.publish_time();
        let committed = self.sequencer.committed();
        self.positions.begin_at(self.sequencer.readable_from());
        self.positions.commit_entries_to(committed.raft);
        self.positions.commit_to(committed.next.previous());
        let published = &self.published;
        published.sessions.store(self.sequencer.sessions().len() as u32, Ordering::Relaxed);
        published.show_log_options(committed.options);
        published.of_one_log.store(committed.membership.is_of_one_log(), Ordering::Relaxed);
        published.show(self.status());
    }

    fn status(&self) -> ReplicaStatus {
        let (committed, end) = (self.sequencer.committed(), self.sequencer.end());
        ReplicaStatus {
            node: NodeId(0),
            role: Role::Observer,
            term: end.term,
            leader: None,
            committed_index: committed.next.previous(),
            committed_entry: committed.raft,
            last_entry: end.raft,
            members: committed.membership.members().cloned().collect(),
            peers: Vec::new(),
        }
    }
}

/// The error for an entry that is not the next one after entry `end`.
fn does_not_follow(end: EntryIndex, raft: EntryIndex, why: Malformed) -> Error {
    let what = format!(
        "fed entry {raft} does not follow entry {end} here: {why}; it was not taken. Another source can have \
         the right entry; if none has, remove this copy (`FollowerLog::destroy`) and make a new one"
    );
    Error::new(ErrorKind::Diverged, what)
}

fn is_command(entry: &FollowEntry, is: fn(Command) -> bool) -> bool {
    let command = || entry.body.first().and_then(|body| parse_command(body).ok());
    entry.header.kind == Kind::Command && command().is_some_and(is)
}
