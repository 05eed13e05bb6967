//! Replay: the state from blocks that exist already: sent by a leader, or read from the files. Checks that each block
//! follows the one before. An opening block sets the whole state.

use super::{ChangedLogs, Committed, Effect, Owner, Pending, Sequencer, limits_of_sessions};
use crate::cluster::membership::Membership;
use crate::error::Result;
use crate::options::Options;
use crate::options::log_options::LogOptions;
use crate::record::batch::{BatchHeader, Malformed};
use crate::record::reference::Reference;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::object_table::ObjectTable;
use crate::replica::state::session_table::Sessions;
use crate::store::NewBlock;
use crate::store::format::block::{Batches, BlockHeader, Kind, table_of};
use crate::store::format::mixed::Run;
use crate::store::format::objects;
use crate::store::format::segment::{HardState, Opening};
use crate::store::read::chain::{KeptForSuspects, Learn};
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, LogNumber, SessionId, Timestamp};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

impl Sequencer {
    /// At a replica that does not lead: adds a block from the leader, whose body was checked.
    ///
    /// # Errors
    /// The block does not follow the last one.
    pub(crate) fn follow(&mut self, header: &BlockHeader, body: Vec<Bytes>) -> Result<NewBlock, Malformed> {
        self.replay_entry(header, &mut body.iter().map(|b| &b[..]))?;
        Ok(NewBlock::new(*header, body, self.end))
    }

    /// Replays a block that was read back. Checks that it follows the last one.
    pub(crate) fn replay(
        &mut self,
        header: &BlockHeader,
        body: &[u8],
        options: &Options,
    ) -> Result<Base, Malformed> {
        match header.kind {
            Kind::Opening => self.replay_opening(header, body, options)?,
            Kind::HardState | Kind::Marker => self.replay_position(header, body)?,
            _ => {
                let alone = self.is_alone();
                // The last voter of a cluster can have voted in a newer term before it received this entry, of a leader
                // that left.
                let was_never_shared = self.committed.membership == Membership::alone();
                // A replica that is no member of it was sent these entries, as is one of which a reader outside knows nothing else.
                let wrote_them = alone && !matches!(self.me, Owner::Directory(_));
                if was_never_shared && wrote_them && header.term < self.hard_state.term {
                    return Err("block is of an older term than the log was in");
                }
                self.replay_entry(header, &mut std::iter::once(body))?;
                if alone {
                    self.commit_to(header.raft_index); // the only voter's entries are committed
                }
            }
        }
        Ok(self.end)
    }

    fn replay_position(&mut self, header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
        if (header.raft_index, header.term, header.first) != (self.end.raft, self.end.term, self.end.next) {
            return Err("block does not repeat the position of the one before");
        }
        self.time_is(header.timestamp); // in older versions these blocks advance the log's time
        if header.kind == Kind::HardState {
            let state = HardState::parse(body)?;
            if state.commit > self.end.raft {
                return Err("hard state's commit index is beyond the last entry");
            }
            let kept = HardState::kept_from(body);
            if kept.is_some_and(|first| state.commit < self.end.raft || first > self.end.next) {
                return Err("hard state says where files begin, and not that all entries are committed");
            }
            self.hard_state = state;
            self.commit_to(state.commit);
            if let Some(first) = kept {
                self.keep_from(first);
                let before = self.kept.replace(first);
                self.kept_blocks = if before == Some(first) { self.kept_blocks + 1 } else { 1 };
            }
        }
        Ok(())
    }

    fn replay_entry(
        &mut self,
        header: &BlockHeader,
        body: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), Malformed> {
        if header.raft_index != self.end.raft.next() {
            return Err("block's raft index does not follow the one before");
        }
        if header.term < self.end.term {
            return Err("block's term does not follow the one before");
        }
        if header.first != self.end.next {
            return Err("block's first record does not follow the one before");
        }
        if header.timestamp < self.last_timestamp && header.kind.has_records() {
            return Err("block is older than the one before");
        }
        let end = Base { raft: header.raft_index, term: header.term, next: self.end.next };
        let before = std::mem::replace(&mut self.end, end);
        match header.kind {
            Kind::Data => {
                for piece in body {
                    self.replay_batches(header, piece)?;
                }
                self.pend(None);
            }
            Kind::Mixed => {
                let runs = self.replay_runs(header, body)?;
                self.pend(Some(Effect::Runs(runs, header.timestamp)));
            }
            Kind::Command => {
                let command = parse_command(body.next().unwrap_or_default())?;
                // An entry in the log was accepted once. A limit lowered since then does not refuse it.
                if let Command::OpenSession { log, idle_max_ms } = command {
                    let id = SessionId(header.raft_index.0);
                    let opened = self.sessions.open(id, log, idle_max_ms, header.timestamp);
                    opened.map_err(|_| "session opened twice")?;
                }
                self.take_effect(command)?;
            }
            Kind::Configuration => {
                let membership = self.membership_after(body.next().unwrap_or_default())?;
                self.pend(Some(Effect::Membership(membership)));
            }
            Kind::NoOp => self.pend(None),
            Kind::HardState | Kind::Marker | Kind::Opening => {
                self.end = before;
                return Err("block is no entry");
            }
        }
        if self.me == Owner::Follower {
            self.hard_state.term = self.end.term; // a follower has no term: its openings repeat the last entry's
        }
        self.time_is(header.timestamp);
        Ok(())
    }

    fn replay_batches(&mut self, header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
        for batch in Batches::new(body) {
            let (batch, _) = batch?;
            self.replay_stamp(LogNumber::OWN, &batch, self.end.next, header.timestamp)?;
            self.end.next = self.end.next.plus(u64::from(batch.count));
        }
        Ok(())
    }

    /// Replays the records of a mixed block, whose body was checked.
    fn replay_runs(
        &mut self,
        header: &BlockHeader,
        body: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<Vec<Run>, Malformed> {
        let head = body.next().unwrap_or_default();
        let table = table_of(header, head)?;
        let mut batches = std::iter::once(&head[table.len()..]).chain(body).flat_map(Batches::new);
        let mut runs = Vec::new();
        for (mut run, _) in table.runs() {
            let mut next = run.first;
            run.bytes = 0; // a log has as many bytes as its readers get
            for _ in 0..run.batches {
                let (batch, bytes) =
                    batches.next().ok_or("mixed block has fewer batches than its table")??;
                self.replay_stamp(run.log, &batch, next, header.timestamp)?;
                next = next.plus(u64::from(batch.count));
                run.bytes = run.bytes.saturating_add(Reference::whole_length(&batch, bytes));
            }
            self.logs.append(&run, header.timestamp)?;
            self.end.next = self.end.next.plus(u64::from(run.records));
            runs.push(run);
        }
        Ok(runs)
    }

    /// Replays a batch's place in its session, if it has one.
    fn replay_stamp(
        &mut self,
        log: LogNumber,
        batch: &BatchHeader,
        first: Index,
        at: Timestamp,
    ) -> Result<(), Malformed> {
        if batch.stamp.session.is_none() {
            return Ok(());
        }
        let at = Timestamp(at.0 + u64::from(planted!(41)));
        let applied = self.sessions.check_log(&batch.stamp, log);
        let applied = applied.and_then(|()| self.sessions.apply(&batch.stamp, first, batch.count, at));
        applied.map_err(|_| "batch does not follow the one before in its session")
    }

    fn replay_opening(
        &mut self,
        header: &BlockHeader,
        body: &[u8],
        options: &Options,
    ) -> Result<(), Malformed> {
        let opening = Opening::parse(body)?;
        if (opening.base_raft, opening.base_term) != (header.raft_index, header.term) {
            return Err("opening block contradicts its header");
        }
        let membership = Membership::decode(&opening.configuration)?;
        let set = LogOptions::decode(&opening.options)?;
        let own_limits = (options.sessions_max, options.session_window);
        let (sessions_max, window) = limits_of_sessions(&set, own_limits);
        let alone = self.me.is_alone(&membership);
        let end = Base { raft: opening.base_raft, term: opening.base_term, next: header.first };
        // Entries that were not committed when the segment began stay unknown from here on. A reader that needs them
        // replays from an earlier segment.
        let raft = if alone { end.raft } else { opening.hard_state.commit.min(end.raft) };
        // The end of the log when the segment began, which counts once it is committed.
        let logs = LogTable::decode(&opening.logs)?;
        let (objects, first) = match opening.objects.is_empty() {
            true => (ObjectTable::default(), opening.log_first),
            false => decode_objects(&opening.objects)?,
        };
        let mut pending = VecDeque::new();
        let (mut next, mut committed_logs, mut committed_objects) = (end.next, logs.clone(), objects.clone());
        if raft < end.raft {
            let has_tables = logs.is_shared() || objects.has_begun();
            let effect = has_tables.then(|| Effect::Tables(logs.clone(), objects.clone()));
            pending.push_back(Pending { raft: end.raft, next: end.next, effect });
            next = opening.log_first;
            (committed_logs, committed_objects) = (LogTable::default(), ObjectTable::default());
        }
        let changed_logs = ChangedLogs::all_of(&committed_logs);
        *self = Self {
            me: self.me,
            reads_objects: self.reads_objects,
            end,
            last_timestamp: header.timestamp,
            sessions: Sessions::decode(&opening.sessions, sessions_max, window)?,
            logs,
            objects,
            changed_logs,
            // Readers can have been shown logs that entries before this opening dropped.
            replaced_logs: raft == end.raft,
            own_limits,
            segment_bytes: options.segment_bytes,
            hard_state: opening.hard_state,
            kept: None,
            kept_blocks: 0,
            committed: Committed {
                raft,
                next,
                first,
                local_first: opening.log_first,
                membership,
                options: set,
                logs: committed_logs,
                objects: committed_objects,
                discarded: self.committed.discarded.clone(),
                changed: EntryIndex(0),
            },
            pending,
        };
        self.note_discarded();
        Ok(())
    }

    /// After a replay of this replica's own log: sets the hard state and the commit index, which the replayed blocks
    /// may not hold.
    pub(crate) fn keep_hard_state(&mut self, state: HardState, committed: EntryIndex) {
        self.hard_state = state;
        self.commit_to(committed);
    }

    /// The state of a replica that installs a snapshot: the opening block of another replica's segment. Keeps
    /// the term and vote of this one.
    ///
    /// # Errors
    /// The block's body is malformed.
    pub(crate) fn jump(
        &mut self,
        header: &BlockHeader,
        body: &[u8],
        options: &Options,
    ) -> Result<(), Malformed> {
        let HardState { term, vote, .. } = self.hard_state;
        let vote = if planted!(38) { 0 } else { vote };
        self.replay_opening(header, body, options)?;
        self.pending.clear();
        // The discarded entries were committed.
        (self.committed.raft, self.committed.next) = (self.end.raft, self.end.next);
        // The command that discarded them may come after the snapshot. Until it does, no reader may look for them here.
        // If the log has objects, they are in the object store, or discarded by a command before the snapshot.
        if !planted!(18) {
            self.committed.local_first = self.committed.local_first.max(self.end.next);
            if !self.objects.has_begun() || planted!(92) {
                self.committed.first = self.committed.local_first;
            }
        }
        self.committed.objects = self.objects.clone();
        self.note_discarded();
        // The same of each log of a shared group.
        if !(self.objects.has_begun() && self.reads_objects) || planted!(114) {
            self.logs.begin_at_ends();
        }
        self.committed.logs = self.logs.clone();
        self.changed_logs = ChangedLogs::all_of(&self.logs);
        self.replaced_logs = !planted!(79);
        if planted!(17) {
            self.sessions = Sessions::new(options.sessions_max, options.session_window);
        }
        self.hard_state = HardState { term, vote, commit: self.end.raft };
        Ok(())
    }

    /// The state of a follower that starts, or resumes, at a position of its source's log. A follower has no term of
    /// its own.
    ///
    /// # Errors
    /// The block's body is malformed. Nothing has changed then.
    pub(crate) fn begin_at(
        &mut self,
        header: &BlockHeader,
        body: &[u8],
        options: &Options,
    ) -> Result<(), Malformed> {
        self.jump(header, body, options)?;
        (self.hard_state.term, self.hard_state.vote) = (self.end.term, 0);
        Ok(())
    }
}

/// Decodes the objects of an opening, and the log's first record there.
fn decode_objects(bytes: &[u8]) -> Result<(ObjectTable, Index), Malformed> {
    objects::decode(bytes).map(|(objects, first)| (ObjectTable::of(objects), first))
}

/// A sequencer that replays blocks, with the options that it needs for this.
pub(crate) struct Replayed<'a> {
    pub(crate) sequencer: Sequencer,
    pub(crate) options: &'a Options,
}

impl Learn for Replayed<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        self.sequencer.replay(header, body, self.options)
    }

    #[expect(clippy::misnamed_getters, reason = "to recovery the log begins where this directory does")]
    fn first(&self) -> Index {
        self.sequencer.committed().local_first
    }

    fn kept_for_object(&self, is_first_committed: bool) -> Option<EntryIndex> {
        let objects = self.sequencer.objects();
        if objects.group().is_some() {
            return None; // positions in the objects of a group are not those of this copy, and all are stored
        }
        // A discard that is not known to be committed can be truncated. Then what it discards of an object is needed again.
        let next = [objects, &self.sequencer.committed().objects].map(|objects| objects.next_to_store());
        if let Some(begin) = next.into_iter().flatten().map(|(_, begin, _)| begin.raft).min() {
            return Some(begin);
        }
        // The next one begins there, unless all before is discarded. Files without records can follow, in no object yet. The opening of
        // the segment can have a discard that is not known to be committed, and can be truncated.
        let (_, end) = objects.end()?;
        (end.next > self.sequencer.committed().first || !is_first_committed).then_some(end.raft)
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.sequencer.commit_to(raft);
    }

    fn commit(&self) -> EntryIndex {
        self.sequencer.known_committed()
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        Box::new(self.fresh())
    }
}

impl Replayed<'_> {
    fn fresh(&self) -> Self {
        let sequencer = Sequencer::new(self.sequencer.me, Membership::default(), self.options);
        Self { sequencer, options: self.options }
    }
}

/// The same at a replica that opens its log: files stay that have an object which is suspected to be lost or damaged. Even if a block
/// says that they are not needed, they may be its last copy.
///
/// Invariant: what a replica holds while it has not listed its objects, a restart holds, too. It holds the files of the object that a
/// discard has cut in two, because any object can be lost then. That is in no file, as nobody knows yet whether it is a suspect.
pub(crate) struct Opened<'a> {
    pub(crate) replayed: Replayed<'a>,
    /// The numbers of the suspects. None: they are not known, and any object can be one.
    pub(crate) suspects: Option<BTreeSet<u64>>,
    /// The log, if its objects are listed once it is open.
    pub(crate) lists: Option<LogId>,
}

impl Opened<'_> {
    /// Where the first suspect begins, and the last one, as far as the log knows it.
    fn suspects_begin(&self) -> Option<(EntryIndex, EntryIndex)> {
        let Some(suspects) = &self.suspects else { return Some((EntryIndex(0), EntryIndex(u64::MAX))) };
        let sequencer = &self.replayed.sequencer;
        let tables = [sequencer.objects(), &sequencer.committed().objects];
        let begins = tables.into_iter().flat_map(|objects| {
            let rows = objects.stored().filter(|at| suspects.contains(&at.number));
            let rows = rows.map(|at| (at.begin.raft, at.begin.raft));
            // Where it begins in its run is in its row, which the log does not have.
            let of_run =
                |number: &u64| objects.run_of(*number).map(|run| (run.begin.raft, run.rows.end.raft));
            rows.chain(suspects.iter().filter_map(of_run))
        });
        begins
            .chain(self.cut_by_discard())
            .reduce(|(first, last), (from, to)| (first.min(from), last.max(to)))
    }

    /// The same of the object that a discard has cut in two, if it can be lost. Files before the log's first record have the rest of it.
    fn cut_by_discard(&self) -> Option<(EntryIndex, EntryIndex)> {
        let committed = self.replayed.sequencer.committed();
        let objects = &committed.objects;
        let own_from = objects.lineage(self.lists?).own_from();
        // Without the rows of a run it can be any object of the run.
        let (below, begin, last) = match objects.runs().next() {
            Some(run) => (run.rows.below, run.begin, run.rows.end.raft),
            None => objects.stored().next().map(|at| (at.number + 1, at.begin, at.begin.raft))?,
        };
        (below > own_from && begin.next < committed.first).then_some((begin.raft, last))
    }
}

impl Learn for Opened<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        self.replayed.learn(header, body)
    }

    fn first(&self) -> Index {
        self.replayed.first()
    }

    fn kept_for_object(&self, is_first_committed: bool) -> Option<EntryIndex> {
        self.replayed.kept_for_object(is_first_committed)
    }

    fn kept_for_suspects(&self) -> Option<KeptForSuspects> {
        let (from, last) = self.suspects_begin()?;
        Some(KeptForSuspects { from, last, first: self.replayed.sequencer.committed().first })
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.replayed.commit_to(raft);
    }

    fn commit(&self) -> EntryIndex {
        self.replayed.commit()
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        Box::new(Opened {
            replayed: self.replayed.fresh(),
            suspects: self.suspects.clone(),
            lists: self.lists,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::cluster::membership::Member;
    use crate::replica::queue::proposals::ObjectCommand;
    use crate::types::{DirectoryId, NodeId, Term};

    /// A segment began behind a discard that can be truncated. Files without records that follow the last object went because of it.
    #[test]
    fn discard_that_can_be_truncated_lets_no_file_go() {
        let options = Options::with_segment_bytes(64 << 10);
        let base = |raft, next| Base { raft: EntryIndex(raft), term: Term(1), next: Index(next) };
        let (begin, end) = (base(0, 1), base(20, 50));
        let mut objects = ObjectTable::default();
        let cut = ObjectCommand::Cut { number: 0, begin, end, timestamp: Timestamp(1), first: Index(1) };
        let object =
            objects::StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 1, index_crc: 2, crc: 3 };
        for command in [cut, ObjectCommand::Stored { number: 0, object }] {
            objects.apply(command, Index(1)).unwrap();
        }
        let voter = |n| Member::voter(NodeId(n), DirectoryId(u128::from(n)), "");
        for (commit, is_committed, kept) in [(30, false, Some(20)), (40, true, None)] {
            let opening = Opening {
                base_raft: EntryIndex(40),
                base_term: Term(1),
                log_first: Index(60),
                hard_state: HardState { term: Term(1), vote: 0, commit: EntryIndex(commit) },
                configuration: Membership::of([voter(1), voter(2)]).encode(),
                sessions: Sessions::new(16, 16).encode(),
                objects: objects.encode(Index(60)),
                ..Opening::default()
            };
            let body = opening.encode();
            let position = (EntryIndex(40), Term(1));
            let header =
                BlockHeader::without_records(Kind::Opening, position, Index(60), Timestamp(1), &body);
            let sequencer = Sequencer::new(Owner::Node(NodeId(2)), Membership::default(), &options);
            let mut replayed = Replayed { sequencer, options: &options };
            replayed.learn(&header, &body).unwrap();
            assert_eq!(replayed.commit() >= EntryIndex(40), is_committed);
            assert_eq!(replayed.kept_for_object(is_committed), kept.map(EntryIndex), "{commit}");
        }
    }
}
