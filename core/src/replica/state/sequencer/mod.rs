//! Sequencer: the state after the last block of the log, committed or not: the next raft index and record index, the
//! sessions, the membership. At the leader it assigns each block its position; at every other replica it checks the
//! block. A pure state machine: no clock, no thread, no I/O.
//!
//! The same functions run at the leader, at a replica that receives blocks, and at replay. So all replicas reach the
//! same state from the same blocks.
//!
//! ```text
//!             committed                end
//!  ... | blocks | | pending ... pending |        `commit_to` moves blocks from pending to committed;
//!                                                a conflict makes a new Sequencer, replayed up to it
//! ```
//!
//! Invariants:
//! - the session table and `end` are those of the last block, committed or not: the leader's log holds every proposal
//!   that was ever acknowledged, so the leader recognizes every retry;
//! - first index, membership and the log's options take effect when their block is committed. The limits of the session
//!   table change with the block itself, because the table has to be the same everywhere after the same entry;
//! - the timestamp of an entry depends on entries alone; position blocks repeat the last one;
//! - only entries change the session table: it holds the sessions that have not expired at the time of the last entry.
//!
//! Must not know: disks, threads, raft's types.

mod batches;
mod logs;
mod objects;
mod replay;

pub(crate) use objects::{TOO_SMALL_FOR_OBJECTS, TakenTable};
pub(crate) use replay::{Opened, Replayed};

use crate::cluster::membership::Membership;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::options::log_options::{LogOption, LogOptions};
use crate::read::log_set::LogSet;
use crate::record::batch::Malformed;
use crate::replica::queue::proposals::{Command, LogCommand, ObjectCommand};
use crate::replica::state::command::{encode_command, opens};
use crate::replica::state::discarded_objects::DiscardedObjects;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::object_table::ObjectTable;
use crate::replica::state::session_table::Sessions;
use crate::replica::wire::raft_message;
use crate::store::NewBlock;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::identity::Identity;
use crate::store::format::mixed::Run;
use crate::store::format::segment::{HardState, LENGTH_BYTES, OPENING_FIXED_BYTES, Opening, digest_of_bytes};
use crate::store::segment::Base;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{DirectoryId, EntryIndex, Index, LogNumber, NodeId, SessionId, Term, Timestamp};
use bytes::Bytes;
use std::collections::VecDeque;

/// The term in which a log is created.
pub(crate) const FIRST_TERM: Term = Term(1);

/// Identifies the log's owner: if the owner is the only voter, its entries are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Node(NodeId),
    /// Used by code that reads the files from outside a replica.
    Directory(DirectoryId),
    /// A follower's log, which holds only committed entries.
    Follower,
}

impl Owner {
    /// The owner of a directory's log, for code that reads its files from outside a replica.
    pub(crate) fn outside(identity: &Identity) -> Self {
        if identity.follows { Self::Follower } else { Self::Directory(identity.directory) }
    }

    /// Whether all entries in the log are committed.
    fn is_alone(self, membership: &Membership) -> bool {
        match self {
            Self::Follower => true,
            Self::Node(node) => membership.is_alone(node),
            Self::Directory(directory) => {
                *membership == Membership::alone()
                    || membership.members().any(|m| m.directory == directory && membership.is_alone(m.node))
            }
        }
    }
}

/// The state after the last block.
#[derive(Debug)]
pub(crate) struct Sequencer {
    me: Owner,
    /// Whether readers can read records that are in objects alone: at every replica, and at a follower that was opened with an
    /// object store.
    reads_objects: bool,
    /// The last raft entry, and the next record's index.
    end: Base,
    last_timestamp: Timestamp,
    sessions: Sessions,
    /// The logs of a shared group.
    logs: LogTable,
    /// The objects of the log.
    objects: ObjectTable,
    /// The logs that committed entries have changed since this was last taken.
    changed_logs: ChangedLogs,
    /// The committed logs were replaced since then, because entries were skipped: any log can have changed.
    replaced_logs: bool,
    /// The limits of the session table that apply if the log sets none: `sessions_max` and `session_window`.
    own_limits: (u32, u16),
    /// The size of this replica's segments, whose openings need room for the log table beside that of the sessions.
    segment_bytes: u32,
    hard_state: HardState,
    /// The first record in this directory, as a block of the growing segment says behind its opening.
    kept: Option<Index>,
    /// How many blocks of that segment were replayed that say so.
    kept_blocks: u32,
    committed: Committed,
    /// The effects of the entries after the last committed one; ascending, without gaps.
    pending: VecDeque<Pending>,
}

/// The state after the last entry that is known to be committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    /// The last committed entry.
    pub(crate) raft: EntryIndex,
    /// The index after the last committed record.
    pub(crate) next: Index,
    /// The first record that is not discarded.
    pub(crate) first: Index,
    /// The first record that this directory keeps, or `first`: records before it are in the object store.
    pub(crate) local_first: Index,
    pub(crate) membership: Membership,
    /// The options that are set for the log.
    pub(crate) options: LogOptions,
    pub(crate) logs: LogTable,
    pub(crate) objects: ObjectTable,
    /// The objects that are discarded.
    pub(crate) discarded: DiscardedObjects,
    /// The last entry that changed the membership, among those committed since this state was created. 0: none.
    pub(crate) changed: EntryIndex,
}

#[derive(Debug)]
struct Pending {
    raft: EntryIndex,
    next: Index,
    effect: Option<Effect>,
}

/// The logs of a shared group whose states, or options, have changed; with repetitions.
#[derive(Debug, Default)]
pub(crate) struct ChangedLogs {
    pub(crate) states: Vec<LogNumber>,
    pub(crate) options: Vec<LogNumber>,
}

impl ChangedLogs {
    fn all_of(table: &LogTable) -> Self {
        Self {
            states: table.iter().map(|(log, _)| log).collect(),
            options: table.with_options().map(|(log, _)| log).collect(),
        }
    }
}

/// The effect of an entry once it is committed, other than adding records.
#[derive(Debug)]
enum Effect {
    Discard(Index),
    Membership(Membership),
    Options(LogOptions),
    /// The records of a mixed block, and its timestamp.
    Runs(Vec<Run>, Timestamp),
    Log(LogCommand),
    Object(ObjectCommand),
    /// The logs, and the objects, as of this entry, which a replay began behind.
    Tables(LogTable, ObjectTable),
}

/// The block of a proposal, with its position, and the answers of its appends.
#[derive(Debug)]
pub(crate) struct SequencedBlock {
    /// None: every batch was a retry or was refused.
    pub(crate) block: Option<NewBlock>,
    pub(crate) completer: Completer,
    pub(crate) outcome: Outcome,
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Write this block. The command's result is then the index.
    Write(NewBlock, Index),
    /// Nothing to write; the command's result is the index.
    Done(Index),
    Refused(Error),
}

impl Sequencer {
    /// The state of an empty log with this membership.
    pub(crate) fn new(me: Owner, membership: Membership, options: &Options) -> Self {
        Self {
            me,
            reads_objects: me != Owner::Follower || options.vault.is_some(),
            end: Base { raft: EntryIndex(0), term: FIRST_TERM, next: Index(1) },
            last_timestamp: Timestamp(0),
            sessions: Sessions::new(options.sessions_max, options.session_window),
            logs: LogTable::default(),
            objects: ObjectTable::default(),
            changed_logs: ChangedLogs::default(),
            replaced_logs: false,
            own_limits: (options.sessions_max, options.session_window),
            segment_bytes: options.segment_bytes,
            hard_state: HardState { term: FIRST_TERM, vote: 0, commit: EntryIndex(0) },
            kept: None,
            kept_blocks: 0,
            committed: Committed {
                raft: EntryIndex(0),
                next: Index(1),
                first: Index(1),
                local_first: Index(1),
                membership,
                options: LogOptions::default(),
                logs: LogTable::default(),
                objects: ObjectTable::default(),
                discarded: DiscardedObjects::new(options.object_delete_delay),
                changed: EntryIndex(0),
            },
            pending: VecDeque::new(),
        }
    }

    /// Records that are in objects are there, although this is a copy without an object store.
    pub(crate) fn with_objects(self) -> Self {
        Self { reads_objects: true, ..self }
    }

    /// The position after the last block.
    pub(crate) fn end(&self) -> Base {
        self.end
    }

    /// Whether this replica is the only voter, by the committed membership.
    pub(crate) fn is_alone(&self) -> bool {
        self.me.is_alone(&self.committed.membership)
    }

    pub(crate) fn committed(&self) -> &Committed {
        &self.committed
    }

    /// The last entry known to be committed. [`Self::committed`] can be behind it: a replay that began after this entry
    /// does not know what the entry led to.
    pub(crate) fn known_committed(&self) -> EntryIndex {
        self.committed.raft.max(self.hard_state.commit.min(self.end.raft))
    }

    /// Raft's durable state, as of the last block.
    pub(crate) fn hard_state(&self) -> HardState {
        self.hard_state
    }

    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.last_timestamp
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The logs of a shared group after the last block.
    pub(crate) fn logs(&self) -> &LogTable {
        &self.logs
    }

    /// For how many sessions openings need room with these options, and for how many batches of each. A lower limit closes no session.
    fn sessions_to_fit(&self, options: &LogOptions) -> (u32, u16) {
        let (max, window) = limits_of_sessions(options, self.own_limits);
        (max.max(u32::try_from(self.sessions.len()).unwrap_or(u32::MAX)), window)
    }

    /// Whether a snapshot has replaced the logs since the last call of [`Self::take_changed_logs`].
    pub(crate) fn has_replaced_logs(&self) -> bool {
        self.replaced_logs
    }

    /// The logs that committed entries have changed since the last call, and that `shown` does not show yet.
    pub(crate) fn take_changed_logs(&mut self, shown: &LogSet) -> ChangedLogs {
        let mut changed = std::mem::take(&mut self.changed_logs);
        if std::mem::take(&mut self.replaced_logs) {
            changed.states.extend(shown.numbers()); // some may have been dropped by entries that were skipped
            changed.options.extend(shown.with_options());
        }
        changed
    }

    /// The membership after the last block.
    pub(crate) fn membership_at_end(&self) -> &Membership {
        let pending = self.pending.iter().rev().find_map(|p| match &p.effect {
            Some(Effect::Membership(membership)) => Some(membership),
            _ => None,
        });
        pending.unwrap_or(&self.committed.membership)
    }

    /// The options of the log after the last block.
    pub(crate) fn options_at_end(&self) -> LogOptions {
        let pending = self.pending.iter().rev().find_map(|p| match &p.effect {
            Some(Effect::Options(options)) => Some(*options),
            _ => None,
        });
        pending.unwrap_or(self.committed.options)
    }

    /// The last entry that changes the membership, if it is not known to be committed.
    pub(crate) fn pending_membership(&self) -> Option<EntryIndex> {
        let changes = |p: &&Pending| matches!(p.effect, Some(Effect::Membership(_)));
        self.pending.iter().rev().find(changes).map(|p| p.raft)
    }

    /// The number of membership changes in the log that are not known to be committed.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn changes_in_doubt(&self) -> usize {
        self.pending.iter().filter(|p| matches!(p.effect, Some(Effect::Membership(_)))).count()
    }

    /// The first index after the last block.
    pub(crate) fn first_at_end(&self) -> Index {
        let (first, _) = self.pending.iter().fold(
            (self.committed.first, self.committed.objects.has_begun()),
            |(first, has_objects), p| match &p.effect {
                Some(Effect::Discard(discarded)) => (first.max(*discarded), has_objects),
                Some(Effect::Object(ObjectCommand::Cut { first, .. })) if !has_objects => (*first, true),
                Some(Effect::Tables(_, objects)) => (first, objects.has_begun()),
                _ => (first, has_objects),
            },
        );
        first
    }

    /// Entries up to `raft` are committed: applies their effects.
    pub(crate) fn commit_to(&mut self, raft: EntryIndex) {
        while let Some(entry) = self.pending.pop_front_if(|p| p.raft <= raft) {
            self.committed.raft = entry.raft;
            self.committed.next = entry.next;
            match entry.effect {
                Some(Effect::Discard(first)) => {
                    self.committed.first = self.committed.first.max(first);
                    self.committed.local_first = self.committed.local_first.max(first);
                    self.committed.objects.discard(first);
                }
                Some(Effect::Membership(membership)) => {
                    self.committed.membership = membership;
                    self.committed.changed = entry.raft;
                }
                Some(Effect::Options(options)) => self.committed.options = options,
                Some(effect) => self.commit_tables(effect),
                None => {}
            }
            self.note_discarded();
        }
        self.hard_state.commit = self.hard_state.commit.max(self.committed.raft);
    }

    /// Applies the effect of a committed entry on the logs of a shared group, or on the objects. The table at the end has
    /// accepted it.
    fn commit_tables(&mut self, effect: Effect) {
        let logs = &mut self.committed.logs;
        let applied = match effect {
            Effect::Runs(runs, at) => runs.iter().try_for_each(|run| {
                self.changed_logs.states.push(run.log);
                logs.append(run, at)
            }),
            Effect::Log(command) => {
                if let LogCommand::SetOptions { log, .. } | LogCommand::Drop { log } = command {
                    self.changed_logs.options.push(log);
                }
                self.changed_logs.states.push(command.log());
                logs.apply(command)
            }
            Effect::Object(command) => {
                // From the first object on all replicas agree on the first record, whatever a jump has taken from them.
                if let ObjectCommand::Cut { first, .. } = command
                    && !self.committed.objects.has_begun()
                {
                    self.committed.first = first;
                }
                self.committed.objects.apply(command, self.committed.first)
            }
            Effect::Tables(table, objects) => {
                self.changed_logs = ChangedLogs::all_of(&table);
                self.replaced_logs = true;
                *logs = table;
                self.committed.objects = objects;
                Ok(())
            }
            Effect::Discard(_) | Effect::Membership(_) | Effect::Options(_) => Ok(()),
        };
        debug_assert_eq!(applied, Ok(()), "the committed table differs from the one at the end");
    }

    /// Raft knows that entries up to `raft` are committed, whether they have taken effect here or not. From now on,
    /// blocks record it.
    pub(crate) fn note_committed(&mut self, raft: EntryIndex) {
        self.hard_state.commit = self.hard_state.commit.max(raft.min(self.end.raft));
    }

    /// Makes the block that records a new term and vote of raft's, and the commit index. It repeats with which record the files begin, if a
    /// block of this segment says so and this one can.
    pub(crate) fn hard_state_block(&mut self, term: Term, vote: u64) -> NewBlock {
        self.hard_state = HardState { term, vote, commit: self.known_committed() };
        let kept = self.kept.filter(|_| self.hard_state.commit == self.end.raft);
        let body = match kept {
            Some(first) => self.hard_state.encode_kept(first).to_vec(),
            None => self.hard_state.encode().to_vec(),
        };
        self.position_block(Kind::HardState, body)
    }

    /// A segment begins whose opening says what blocks before it do.
    pub(crate) fn begins_segment(&mut self) {
        self.kept = None;
    }

    /// Makes the block that says what the next opening would: with which record the files of this directory begin. All entries are
    /// committed.
    pub(crate) fn kept_block(&mut self) -> NewBlock {
        let kept = self.committed.local_first;
        self.kept = Some(kept);
        self.hard_state.commit = self.known_committed();
        self.position_block(Kind::HardState, self.hard_state.encode_kept(kept).to_vec())
    }

    /// Whether a block of the growing segment says with which record the files of this directory begin.
    pub(crate) fn says_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether only one block of the growing segment was replayed that says so, or none.
    pub(crate) fn says_kept_once(&self) -> bool {
        self.kept_blocks < 2
    }

    /// Whether [`Self::repeat_kept`] makes blocks.
    pub(crate) fn can_repeat_kept(&self) -> bool {
        self.says_kept() && self.known_committed() == self.end.raft
    }

    /// The blocks that prove the one that says so, and say it again: a hard state, behind a marker that fills a sector with a body of
    /// `filler` zeros. None: no block says so, or not all entries are committed.
    pub(crate) fn repeat_kept(&mut self, filler: Option<usize>) -> Option<Vec<NewBlock>> {
        if !self.can_repeat_kept() {
            return None;
        }
        let HardState { term, vote, .. } = self.hard_state;
        let filling = filler.map(|body| self.marker(body));
        let state = self.hard_state_block(term, vote);
        Some(filling.into_iter().chain([state]).collect())
    }

    /// The opening block of a segment that begins now.
    pub(crate) fn opening(&self) -> NewBlock {
        let opening = Opening {
            base_raft: self.end.raft,
            base_term: self.end.term,
            log_first: if planted!(30) {
                Index(1)
            } else {
                self.first_at_end().max(self.committed.local_first)
            },
            hard_state: HardState {
                commit: self.known_committed(),
                term: if planted!(21) { self.end.term } else { self.hard_state.term },
                vote: if planted!(21) { 0 } else { self.hard_state.vote },
            },
            configuration: self.membership_at_end().encode(),
            sessions: if planted!(7) { Sessions::new(1, 1).encode() } else { self.sessions.encode() },
            options: if planted!(74) { Vec::new() } else { self.options_at_end().encode() },
            logs: if planted!(76) { Vec::new() } else { self.logs.encode() },
            objects: if planted!(96) { Vec::new() } else { self.objects.encode(self.first_at_end()) },
        };
        self.position_block(Kind::Opening, opening.encode())
    }

    /// The maximum size of an opening block's body now, in bytes.
    pub(crate) fn opening_bytes_max(&self) -> usize {
        let tables = self.logs.encoded_bytes() + self.objects.encoded_bytes();
        let added = self.options_at_end().encode().len() + tables;
        let added = if added > 0 { 3 * LENGTH_BYTES + added } else { 0 };
        OPENING_FIXED_BYTES + self.membership_at_end().encode().len() + self.sessions.encoded_bytes() + added
    }

    /// A block that proves the blocks before it. Its body is `body` zeros.
    pub(crate) fn marker(&self, body: usize) -> NewBlock {
        self.position_block(Kind::Marker, vec![0; body])
    }

    fn position_block(&self, kind: Kind, body: Vec<u8>) -> NewBlock {
        let header = BlockHeader {
            length: 0,
            batch_count: 0,
            raft_index: self.end.raft,
            term: self.end.term,
            first: self.end.next,
            timestamp: self.last_timestamp,
            record_count: 0,
            durable_upto: 0,
            body_digest: digest_of_bytes(&[&body]),
            kind,
        };
        let body = if body.is_empty() { Vec::new() } else { vec![Bytes::from(body)] };
        NewBlock::new(header, body, self.end)
    }

    /// Advances the log's time to that of an entry, and expires sessions by it.
    fn time_is(&mut self, timestamp: Timestamp) {
        self.last_timestamp = self.last_timestamp.max(timestamp);
        self.sessions.expire(self.last_timestamp);
    }

    /// Assigns the next raft index to a block of this kind with `records` records.
    fn entry(
        &mut self,
        kind: Kind,
        timestamp: Timestamp,
        (batch_count, record_count): (u32, u32),
        body_digest: u32,
        body: Vec<Bytes>,
    ) -> NewBlock {
        let first = self.end.next;
        self.time_is(timestamp);
        self.end.raft = self.end.raft.next();
        self.end.term = self.hard_state.term;
        self.end.next = first.plus(u64::from(record_count));
        let header = BlockHeader {
            length: 0,
            batch_count,
            raft_index: self.end.raft,
            term: self.end.term,
            first,
            timestamp,
            record_count,
            durable_upto: 0,
            body_digest,
            kind,
        };
        NewBlock::new(header, body, self.end)
    }

    fn pend(&mut self, effect: Option<Effect>) {
        self.pending.push_back(Pending { raft: self.end.raft, next: self.end.next, effect });
    }

    /// At the leader: the session that has to be closed before another is opened on `log`, if there is one.
    pub(crate) fn session_to_go(&self, log: LogNumber, now: Timestamp) -> Option<SessionId> {
        self.check_session_log(log).ok()?; // it will be refused
        self.sessions.next_to_go(log, self.sessions_max_of(log), now.max(self.last_timestamp))
    }

    /// The limit of sessions that a named log has of its own.
    fn sessions_max_of(&self, log: LogNumber) -> Option<u64> {
        self.logs.options(log).get(LogOption::SessionsMax)
    }

    /// At the leader: decides a command, and makes its block if the command changes anything. Of the two blocks with which a log is
    /// passed over, the first one.
    pub(crate) fn command(&mut self, mut command: Command, now: Timestamp) -> Decision {
        let timestamp = now.max(self.last_timestamp);
        match command {
            Command::Discard { first } if first <= self.first_at_end() => {
                return Decision::Done(self.first_at_end());
            }
            Command::CloseSession { id } if self.sessions.get(id).is_none() => {
                return Decision::Done(Index(0));
            }
            Command::SetOptions(options) if options == self.options_at_end() => {
                return Decision::Done(Index(0));
            }
            Command::OpenSession { log, idle_max_ms } => {
                let id = SessionId(self.end.raft.next().0);
                let max = self.sessions_max_of(log);
                let opened = self
                    .check_session_log(log)
                    .and_then(|()| self.sessions.check_open(log, max, timestamp))
                    .and_then(|()| self.sessions.open(id, log, idle_max_ms, timestamp));
                if let Err(error) = opened {
                    return Decision::Refused(error);
                }
            }
            Command::Log(command) => {
                if let Some(decision) = self.decide_log(command) {
                    return decision;
                }
            }
            // The caller has made an `Open` of it.
            Command::OpenAfter { .. } => debug_assert!(false, "nobody has looked at the log before it"),
            Command::PassOver { log } => {
                if let Some(decision) = self.decide_to_pass_over(log) {
                    return decision;
                }
                command = opens(log);
            }
            Command::Object(command) => {
                if let Some(decision) = self.decide_object(command) {
                    return decision;
                }
            }
            _ => {}
        }
        let body = encode_command(command);
        let digest = digest_of_bytes(&[&body]);
        let body = vec![Bytes::from(body)];
        let mut block = self.entry(Kind::Command, timestamp, (0, 0), digest, body);
        let applied = self.take_effect(command);
        debug_assert_eq!(applied, Ok(()), "the command was decided above");
        block.end = self.end;
        let result = match command {
            Command::OpenSession { .. } => Index(block.header.raft_index.0),
            Command::Discard { first } => first,
            Command::Log(LogCommand::Discard { first, .. }) => first,
            Command::CloseSession { .. }
            | Command::SetOptions(_)
            | Command::Log(_)
            | Command::OpenAfter { .. }
            | Command::PassOver { .. }
            | Command::Object(_) => Index(0),
        };
        Decision::Write(block, result)
    }

    /// Applies a command that is in the log, except for opening a session.
    ///
    /// # Errors
    /// The command contradicts the entries before it.
    fn take_effect(&mut self, command: Command) -> Result<(), Malformed> {
        let mut effect = None;
        match command {
            Command::Discard { first } => {
                self.end.next = self.end.next.max(first); // a discard beyond the end moves the end
                self.objects.discard(first);
                effect = Some(Effect::Discard(first));
            }
            Command::CloseSession { id } => self.sessions.close(id),
            Command::OpenSession { .. } | Command::OpenAfter { .. } | Command::PassOver { .. } => {}
            Command::SetOptions(options) => {
                let (max, window) = limits_of_sessions(&options, self.own_limits);
                self.sessions.limit(max, window);
                effect = Some(Effect::Options(options));
            }
            Command::Log(command) => {
                self.logs.apply(command)?;
                if let LogCommand::Drop { log } = command {
                    self.sessions.close_all_of(log);
                }
                effect = Some(Effect::Log(command));
            }
            Command::Object(command) => {
                self.objects.apply(command, self.first_at_end())?;
                effect = Some(Effect::Object(command));
            }
        }
        self.pend(effect);
        Ok(())
    }

    /// Adds an entry that raft makes itself, equally at every replica: a new leader's first entry, or a membership
    /// change.
    ///
    /// # Errors
    /// The change cannot be decoded.
    pub(crate) fn raft_entry(&mut self, kind: Kind, term: Term, body: Bytes) -> Result<NewBlock, Malformed> {
        let effect = match kind {
            Kind::Configuration => Some(Effect::Membership(self.membership_after(&body)?)),
            _ => None,
        };
        let digest = digest_of_bytes(&[&body]);
        let pieces = if body.is_empty() { Vec::new() } else { vec![body] };
        let mut block = self.entry(kind, self.last_timestamp, (0, 0), digest, pieces);
        self.end.term = term;
        (block.header.term, block.end) = (term, self.end);
        self.pend(effect);
        Ok(block)
    }

    fn membership_after(&self, body: &[u8]) -> Result<Membership, Malformed> {
        if body.is_empty() {
            return Ok(self.membership_at_end().left());
        }
        raft_message::membership_of_change(body)
    }

    /// As [`Self::opening`], for a directory whose files begin at `first`: see [`Self::keep_from`].
    pub(crate) fn opening_from(&mut self, first: Index) -> NewBlock {
        let before = self.committed.local_first;
        self.keep_from(first);
        let opening = self.opening();
        self.committed.local_first = before;
        opening
    }

    /// The first record that readers can read, as far as that is committed.
    pub(crate) fn readable_from(&self) -> Index {
        let Committed { first, local_first, ref objects, .. } = self.committed;
        if self.reads_objects && objects.has_begun() { first } else { first.max(local_first) }
    }
}

/// The maximum number of open sessions, and the number of remembered batches of each: the log's options, or else the
/// replica's own.
fn limits_of_sessions(set: &LogOptions, (max, own_window): (u32, u16)) -> (u32, u16) {
    let max = set.get(LogOption::SessionsMax).map_or(max, |max| u32::try_from(max).unwrap_or(u32::MAX));
    let window = set.get(LogOption::SessionWindow);
    (max, window.map_or(own_window, |window| u16::try_from(window).unwrap_or(u16::MAX)))
}

#[cfg(all(test, not(loom)))]
mod tests;
