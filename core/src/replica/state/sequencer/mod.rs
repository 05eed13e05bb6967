//! Sequencer: the state that the blocks of the log lead to, committed or not: where the next one goes, what sessions
//! sent already, who belongs to the cluster. Gives each block its place at the leader, and checks it at everybody
//! else. A pure state machine: no clock, no thread, no I/O.
//!
//! What is decided live, what a follower gets, and what is learnt when the log is replayed go through the same
//! functions, so every replica comes to the same state from the same blocks.
//!
//! ```text
//!             committed                end
//!  ... | blocks | | pending ... pending |        `commit_to` moves blocks from pending to committed;
//!                                                a conflict makes a new Sequencer, replayed up to it
//! ```
//!
//! Invariants:
//! - the session table and `end` are those of the last block, committed or not: the leader's log holds every
//!   proposal that was ever acknowledged, so a retry is always known;
//! - first index, membership and the log's options take effect when their block is committed; but the session table is
//!   the same everywhere behind the same entry, so its limits change with the block;
//! - the timestamp of an entry depends on entries alone; position blocks repeat the last one;
//! - only entries change the session table: it holds the sessions that are good at the time of the last one.
//!
//! Must not know: disks, threads, raft's types.

use crate::cluster::membership::Membership;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::options::log_options::{LOG_OPTION_BYTES, LogOption, LogOptions};
use crate::record::batch::{BatchHeader, Malformed, Stamp, u64_at};
use crate::replica::queue::proposals::{BlockBuilder, Command};
use crate::replica::state::session_table::Sessions;
use crate::replica::wire::raft_message;
use crate::store::NewBlock;
use crate::store::format::block::{Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::format::identity::Identity;
use crate::store::format::segment::{HardState, LENGTH_BYTES, OPENING_FIXED_BYTES, Opening, digest_of_bytes};
use crate::store::read::chain::Learn;
use crate::store::segment::Base;
use crate::sync::completer::Completer;
use crate::sync::completion::{Appended, Outcome};
use crate::types::{DirectoryId, EntryIndex, Index, NodeId, SessionId, Term, Timestamp};
use bytes::Bytes;
use std::collections::VecDeque;

/// The term in which a log is made.
pub(crate) const FIRST_TERM: Term = Term(1);

/// Whose log it is: what the only voter has is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Node(NodeId),
    /// For who looks at files from outside.
    Directory(DirectoryId),
    /// That of a follower, which has nothing but what is committed.
    Follower,
}

impl Owner {
    /// Whose the log of this directory is, to who looks at its files from outside.
    pub(crate) fn outside(identity: &Identity) -> Self {
        if identity.follows { Self::Follower } else { Self::Directory(identity.directory) }
    }

    /// Whether what is in the log is committed.
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

/// The state that the blocks so far lead to.
#[derive(Debug)]
pub(crate) struct Sequencer {
    me: Owner,
    /// The last raft entry, and the next record's index.
    end: Base,
    last_timestamp: Timestamp,
    sessions: Sessions,
    /// The limits of the session table where the log sets none: `sessions_max` and `session_window`.
    own_limits: (u32, u16),
    hard_state: HardState,
    committed: Committed,
    /// What entries beyond the committed ones will do; ascending, without gaps.
    pending: VecDeque<Pending>,
}

/// What is known committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    /// The last committed entry.
    pub(crate) raft: EntryIndex,
    /// The record after the last committed one.
    pub(crate) next: Index,
    /// The first record that is not discarded.
    pub(crate) first: Index,
    pub(crate) membership: Membership,
    /// The options that are set for the log.
    pub(crate) options: LogOptions,
    /// The last entry that changed the membership, of those that were committed since the state was made.
    pub(crate) changed: EntryIndex,
}

#[derive(Debug)]
struct Pending {
    raft: EntryIndex,
    next: Index,
    effect: Option<Effect>,
}

/// What an entry does once it is committed, besides adding records.
#[derive(Debug)]
enum Effect {
    Discard(Index),
    Membership(Membership),
    Options(LogOptions),
}

/// A gathered block with its place.
#[derive(Debug)]
pub(crate) struct SequencedBlock {
    /// None: every batch was a duplicate or refused.
    pub(crate) block: Option<NewBlock>,
    pub(crate) completer: Completer,
    pub(crate) outcome: Outcome,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Write this block; then the command's result is `first`.
    Write(NewBlock, Index),
    /// Nothing to write; the result is known.
    Done(Index),
    Refused(Error),
}

impl Sequencer {
    /// The state of a log without a block, of this membership.
    pub(crate) fn new(me: Owner, membership: Membership, options: &Options) -> Self {
        Self {
            me,
            end: Base { raft: EntryIndex(0), term: FIRST_TERM, next: Index(1) },
            last_timestamp: Timestamp(0),
            sessions: Sessions::new(options.sessions_max, options.session_window),
            own_limits: (options.sessions_max, options.session_window),
            hard_state: HardState { term: FIRST_TERM, vote: 0, commit: EntryIndex(0) },
            committed: Committed {
                raft: EntryIndex(0),
                next: Index(1),
                first: Index(1),
                membership,
                options: LogOptions::default(),
                changed: EntryIndex(0),
            },
            pending: VecDeque::new(),
        }
    }

    /// What comes after the last block.
    pub(crate) fn end(&self) -> Base {
        self.end
    }

    /// Whether this replica is the only voter, by what is committed.
    pub(crate) fn is_alone(&self) -> bool {
        self.me.is_alone(&self.committed.membership)
    }

    pub(crate) fn committed(&self) -> &Committed {
        &self.committed
    }

    /// The last entry known committed. Of a replay that began behind it what it led to is not known: then
    /// [`Self::committed`] says less.
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

    /// The membership that the last block leads to.
    pub(crate) fn membership_at_end(&self) -> &Membership {
        let pending = self.pending.iter().rev().find_map(|p| match &p.effect {
            Some(Effect::Membership(membership)) => Some(membership),
            _ => None,
        });
        pending.unwrap_or(&self.committed.membership)
    }

    /// The options of the log that the last block leads to.
    pub(crate) fn options_at_end(&self) -> LogOptions {
        let pending = self.pending.iter().rev().find_map(|p| match &p.effect {
            Some(Effect::Options(options)) => Some(*options),
            _ => None,
        });
        pending.unwrap_or(self.committed.options)
    }

    /// The last entry that changes the membership, if it is not known committed.
    pub(crate) fn pending_membership(&self) -> Option<EntryIndex> {
        let changes = |p: &&Pending| matches!(p.effect, Some(Effect::Membership(_)));
        self.pending.iter().rev().find(changes).map(|p| p.raft)
    }

    /// Changes of membership in the log that are not known to be committed.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn changes_in_doubt(&self) -> usize {
        self.pending.iter().filter(|p| matches!(p.effect, Some(Effect::Membership(_)))).count()
    }

    /// The first index that the last block leads to.
    fn first_at_end(&self) -> Index {
        let discards = self.pending.iter().filter_map(|p| match p.effect {
            Some(Effect::Discard(first)) => Some(first),
            _ => None,
        });
        discards.fold(self.committed.first, Index::max)
    }

    /// Entries up to `raft` are committed: they take effect.
    pub(crate) fn commit_to(&mut self, raft: EntryIndex) {
        while let Some(entry) = self.pending.pop_front_if(|p| p.raft <= raft) {
            self.committed.raft = entry.raft;
            self.committed.next = entry.next;
            match entry.effect {
                Some(Effect::Discard(first)) => self.committed.first = self.committed.first.max(first),
                Some(Effect::Membership(membership)) => {
                    self.committed.membership = membership;
                    self.committed.changed = entry.raft;
                }
                Some(Effect::Options(options)) => self.committed.options = options,
                None => {}
            }
        }
        self.hard_state.commit = self.hard_state.commit.max(self.committed.raft);
    }

    /// Raft knows that entries up to `raft` are committed, whether they have taken effect here or not: blocks say so from
    /// now on.
    pub(crate) fn note_committed(&mut self, raft: EntryIndex) {
        self.hard_state.commit = self.hard_state.commit.max(raft.min(self.end.raft));
    }

    /// Raft's term and vote changed: the block that says so, and with it how far the log is committed.
    pub(crate) fn hard_state_block(&mut self, term: Term, vote: u64) -> NewBlock {
        self.hard_state = HardState { term, vote, commit: self.known_committed() };
        self.position_block(Kind::HardState, self.hard_state.encode().to_vec())
    }

    /// The opening block of a segment that begins now.
    pub(crate) fn opening(&self) -> NewBlock {
        let opening = Opening {
            base_raft: self.end.raft,
            base_term: self.end.term,
            log_first: if planted!(30) { Index(1) } else { self.first_at_end() },
            hard_state: HardState {
                commit: self.known_committed(),
                term: if planted!(21) { self.end.term } else { self.hard_state.term },
                vote: if planted!(21) { 0 } else { self.hard_state.vote },
            },
            configuration: self.membership_at_end().encode(),
            sessions: if planted!(7) { Sessions::new(1, 1).encode() } else { self.sessions.encode() },
            options: if planted!(74) { Vec::new() } else { self.options_at_end().encode() },
        };
        self.position_block(Kind::Opening, opening.encode())
    }

    /// The most bytes that the body of an opening would have now.
    pub(crate) fn opening_bytes_max(&self) -> usize {
        let options = self.options_at_end().encode().len();
        let options = if options > 0 { LENGTH_BYTES + options } else { 0 };
        OPENING_FIXED_BYTES
            + self.membership_at_end().encode().len()
            + self.sessions.encoded_bytes()
            + options
    }

    /// A block that proves those before it, and holds nothing but `body` zeros.
    pub(crate) fn marker(&self, body: usize) -> NewBlock {
        self.position_block(Kind::Marker, vec![0; body])
    }

    fn position_block(&self, kind: Kind, body: Vec<u8>) -> NewBlock {
        NewBlock {
            kind,
            raft_index: self.end.raft,
            term: self.end.term,
            first: self.end.next,
            timestamp: self.last_timestamp,
            record_count: 0,
            batch_count: 0,
            body_digest: digest_of_bytes(&[&body]),
            body: if body.is_empty() { Vec::new() } else { vec![Bytes::from(body)] },
            end: self.end,
        }
    }

    /// An entry carries this time, and sessions expire by it.
    fn time_is(&mut self, timestamp: Timestamp) {
        self.last_timestamp = self.last_timestamp.max(timestamp);
        self.sessions.expire(self.last_timestamp);
    }

    /// Takes the next raft index for a block of this kind with `records` records.
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
        NewBlock {
            kind,
            raft_index: self.end.raft,
            term: self.end.term,
            first,
            timestamp,
            record_count,
            batch_count,
            body_digest,
            body,
            end: self.end,
        }
    }

    fn pend(&mut self, effect: Option<Effect>) {
        self.pending.push_back(Pending { raft: self.end.raft, next: self.end.next, effect });
    }

    /// At the leader: makes a block of gathered batches, and the answer to be given once it is committed. `now` is what
    /// its clock shows.
    pub(crate) fn data(&mut self, gathered: BlockBuilder, now: Timestamp) -> SequencedBlock {
        let timestamp = now.max(self.last_timestamp);
        let first = self.end.next;
        if !gathered.has_sessions {
            let digest = digest_of_batches(gathered.entries.iter().map(|e| e.crc));
            let counts = (gathered.entries.len() as u32, gathered.records);
            let (pieces, completer) = gathered.into_pieces(None);
            let block = self.entry(Kind::Data, timestamp, counts, digest, pieces);
            self.pend(None);
            return SequencedBlock { block: Some(block), completer, outcome: Outcome::Placed { first } };
        }
        let mut next = first;
        let results: Vec<(bool, Result<Appended>)> = gathered
            .entries
            .iter()
            .map(|e| {
                let here = Appended { first: next, count: e.count };
                let placed = self.place(&e.stamp, next, e.count, timestamp);
                let fresh = matches!(placed, Ok(None));
                if fresh {
                    next = next.plus(u64::from(e.count));
                }
                (fresh, placed.map(|earlier| earlier.filter(|_| !planted!(23)).unwrap_or(here)))
            })
            .collect();
        let kept = || gathered.entries.iter().zip(&results).filter(|(_, (fresh, _))| *fresh).map(|(e, _)| e);
        let counts = (kept().count() as u32, kept().map(|e| e.count).sum());
        let digest = digest_of_batches(kept().map(|e| e.crc));
        let (pieces, completer) = gathered.into_pieces(Some(&mut |n| results[n].0));
        let block = (counts.0 > 0).then(|| {
            let block = self.entry(Kind::Data, timestamp, counts, digest, pieces);
            self.pend(None);
            block
        });
        let outcome = Outcome::Each(results.into_iter().map(|(_, result)| result).collect());
        SequencedBlock { block, completer, outcome }
    }

    /// Finds a batch's place: `None` if it takes the next one, else where it went the first time.
    fn place(&mut self, stamp: &Stamp, next: Index, count: u32, at: Timestamp) -> Result<Option<Appended>> {
        if stamp.session.is_none() {
            return Ok(None);
        }
        let earlier = self.sessions.check(stamp, at)?;
        if planted!(10) && earlier.is_some() {
            return Ok(None);
        }
        if earlier.is_none() {
            self.sessions.apply(stamp, next, count, at)?;
        }
        Ok(earlier)
    }

    /// At the leader: the session that is to be closed before another is opened, if one has to be.
    pub(crate) fn session_to_go(&self, now: Timestamp) -> Option<SessionId> {
        self.sessions.next_to_go(now.max(self.last_timestamp))
    }

    /// At the leader: decides a command, and makes its block if it changes anything.
    pub(crate) fn command(&mut self, command: Command, now: Timestamp) -> Decision {
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
            Command::OpenSession { idle_max_ms } => {
                let id = SessionId(self.end.raft.next().0);
                let opened = self.sessions.check_open(timestamp);
                if let Err(error) = opened.and_then(|()| self.sessions.open(id, idle_max_ms, timestamp)) {
                    return Decision::Refused(error);
                }
            }
            _ => {}
        }
        let body = encode_command(command);
        let digest = digest_of_bytes(&[&body]);
        let body = vec![Bytes::from(body)];
        let mut block = self.entry(Kind::Command, timestamp, (0, 0), digest, body);
        self.take_effect(command);
        block.end = self.end;
        let result = match command {
            Command::OpenSession { .. } => Index(block.raft_index.0),
            Command::Discard { first } => first,
            Command::CloseSession { .. } | Command::SetOptions(_) => Index(0),
        };
        Decision::Write(block, result)
    }

    /// What a command in the log does, except for opening a session.
    fn take_effect(&mut self, command: Command) {
        let mut effect = None;
        match command {
            Command::Discard { first } => {
                self.end.next = self.end.next.max(first); // beyond the end it moves the end
                effect = Some(Effect::Discard(first));
            }
            Command::CloseSession { id } => self.sessions.close(id),
            Command::OpenSession { .. } => {}
            Command::SetOptions(options) => {
                let (max, window) = limits_of_sessions(&options, self.own_limits);
                self.sessions.limit(max, window);
                effect = Some(Effect::Options(options));
            }
        }
        self.pend(effect);
    }

    /// An entry that raft makes itself, at every replica alike: a new leader's first, or a change of membership.
    ///
    /// # Errors
    /// The change cannot be read.
    pub(crate) fn raft_entry(&mut self, kind: Kind, term: Term, body: Bytes) -> Result<NewBlock, Malformed> {
        let effect = match kind {
            Kind::Configuration => Some(Effect::Membership(self.membership_after(&body)?)),
            _ => None,
        };
        let digest = digest_of_bytes(&[&body]);
        let pieces = if body.is_empty() { Vec::new() } else { vec![body] };
        let mut block = self.entry(kind, self.last_timestamp, (0, 0), digest, pieces);
        self.end.term = term;
        (block.term, block.end) = (term, self.end);
        self.pend(effect);
        Ok(block)
    }

    fn membership_after(&self, body: &[u8]) -> Result<Membership, Malformed> {
        if body.is_empty() {
            return Ok(self.membership_at_end().left());
        }
        raft_message::membership_of_change(body)
    }

    /// At a follower: takes the block that the leader sent, whose body was checked.
    ///
    /// # Errors
    /// It does not follow the one before.
    pub(crate) fn follow(&mut self, header: &BlockHeader, body: Vec<Bytes>) -> Result<NewBlock, Malformed> {
        self.replay_entry(header, &mut body.iter().map(|b| &b[..]))?;
        Ok(NewBlock {
            kind: header.kind,
            raft_index: header.raft_index,
            term: header.term,
            first: header.first,
            timestamp: header.timestamp,
            record_count: header.record_count,
            batch_count: header.batch_count,
            body_digest: header.body_digest,
            body,
            end: self.end,
        })
    }

    /// Learns a block that was read back. Checks that it follows the one before.
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
                // The last voter of a cluster can have voted in a newer term before it got this entry of a leader that left.
                let was_never_shared = self.committed.membership == Membership::alone();
                if was_never_shared && header.term < self.hard_state.term {
                    return Err("block is of an older term than the log was in");
                }
                self.replay_entry(header, &mut std::iter::once(body))?;
                if alone {
                    self.commit_to(header.raft_index); // what the only voter has is committed
                }
            }
        }
        Ok(self.end)
    }

    fn replay_position(&mut self, header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
        if (header.raft_index, header.term, header.first) != (self.end.raft, self.end.term, self.end.next) {
            return Err("block does not repeat the position of the one before");
        }
        self.time_is(header.timestamp); // older versions let these move the log's time
        if header.kind == Kind::HardState {
            let state = HardState::parse(body)?;
            if state.commit > self.end.raft {
                return Err("hard state says that entries are committed which are not there");
            }
            self.hard_state = state;
            self.commit_to(state.commit);
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
        if header.timestamp < self.last_timestamp && header.kind == Kind::Data {
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
            Kind::Command => {
                let command = parse_command(body.next().unwrap_or_default())?;
                // What the log holds was once accepted; a limit lowered since does not undo it.
                if let Command::OpenSession { idle_max_ms } = command {
                    let id = SessionId(header.raft_index.0);
                    let opened = self.sessions.open(id, idle_max_ms, header.timestamp);
                    opened.map_err(|_| "session opened twice")?;
                }
                self.take_effect(command);
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
            self.hard_state.term = self.end.term; // it has none of its own: its openings repeat that of the last entry
        }
        self.time_is(header.timestamp);
        Ok(())
    }

    fn replay_batches(&mut self, header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
        for batch in Batches::new(body) {
            let (BatchHeader { stamp, count, .. }, _) = batch?;
            if !stamp.session.is_none() {
                let at = Timestamp(header.timestamp.0 + u64::from(planted!(41)));
                let applied = self.sessions.apply(&stamp, self.end.next, count, at);
                applied.map_err(|_| "batch does not follow the one before in its session")?;
            }
            self.end.next = self.end.next.plus(u64::from(count));
        }
        Ok(())
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
        // What was not committed yet when the segment began is not known from here on: who needs it replays from
        // an earlier segment.
        let raft = if alone { end.raft } else { opening.hard_state.commit.min(end.raft) };
        // Where the log stood when the segment began, once that is committed.
        let mut pending = VecDeque::new();
        let mut next = end.next;
        if raft < end.raft {
            pending.push_back(Pending { raft: end.raft, next: end.next, effect: None });
            next = opening.log_first;
        }
        *self = Self {
            me: self.me,
            end,
            last_timestamp: header.timestamp,
            sessions: Sessions::decode(&opening.sessions, sessions_max, window)?,
            own_limits,
            hard_state: opening.hard_state,
            committed: Committed {
                raft,
                next,
                first: opening.log_first,
                membership,
                options: set,
                changed: EntryIndex(0),
            },
            pending,
        };
        Ok(())
    }

    /// After a replay of this replica's own log: it knows of more than the replayed blocks tell.
    pub(crate) fn keep_hard_state(&mut self, state: HardState, committed: EntryIndex) {
        self.hard_state = state;
        self.commit_to(committed);
    }

    /// The state of a replica that jumps: what the opening block of another replica's oldest segment says. Keeps
    /// the term and vote of this one.
    ///
    /// # Errors
    /// The block's body is not sound.
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
        // What was discarded had been committed.
        (self.committed.raft, self.committed.next) = (self.end.raft, self.end.next);
        // The command that discarded it may stand behind the jump; nobody shall look for it here until it comes.
        if !planted!(18) {
            self.committed.first = self.committed.first.max(self.end.next);
        }
        if planted!(17) {
            self.sessions = Sessions::new(options.sessions_max, options.session_window);
        }
        self.hard_state = HardState { term, vote, commit: self.end.raft };
        Ok(())
    }

    /// The state of a follower that begins, or goes on, at a place of its source's log. It has no term of its own.
    ///
    /// # Errors
    /// The block's body is not sound. Nothing has changed then.
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

    /// As [`Self::opening`], of a log that is to begin at `first`: see [`Self::retain_from`].
    pub(crate) fn opening_from(&mut self, first: Index) -> NewBlock {
        let before = self.committed.first;
        self.retain_from(first);
        let opening = self.opening();
        self.committed.first = before;
        opening
    }

    /// Records below `first` are not kept here, whatever the log says: of a follower only.
    pub(crate) fn retain_from(&mut self, first: Index) {
        debug_assert_eq!(self.me, Owner::Follower, "a replica discards by command");
        self.committed.first = self.committed.first.max(first);
    }
}

/// A sequencer that learns, with the options it needs for it.
pub(crate) struct Replayed<'a> {
    pub(crate) sequencer: Sequencer,
    pub(crate) options: &'a Options,
}

impl Learn for Replayed<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        self.sequencer.replay(header, body, self.options)
    }

    fn first(&self) -> Index {
        self.sequencer.committed().first
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.sequencer.commit_to(raft);
    }

    fn commit(&self) -> EntryIndex {
        self.sequencer.known_committed()
    }

    fn again(&self) -> Box<dyn Learn + '_> {
        let sequencer = Sequencer::new(self.sequencer.me, Membership::default(), self.options);
        Box::new(Replayed { sequencer, options: self.options })
    }
}

/// How many sessions may be open, and how many batches of each are remembered: as the log sets it, or else a replica's own.
fn limits_of_sessions(set: &LogOptions, (max, own_window): (u32, u16)) -> (u32, u16) {
    let max = set.get(LogOption::SessionsMax).map_or(max, |max| u32::try_from(max).unwrap_or(u32::MAX));
    let window = set.get(LogOption::SessionWindow);
    (max, window.map_or(own_window, |window| u16::try_from(window).unwrap_or(u16::MAX)))
}

/// Bytes of a command block's body, of the operations of the format's first version.
pub(crate) const COMMAND_BYTES: usize = 16;
/// Bytes of the body that sets the log's options, before these.
pub(crate) const SET_OPTIONS_BYTES: usize = 24;
/// The operation that sets the log's options.
const SET_OPTIONS: u64 = 11;

/// A command block's body: the operation, then its operand.
pub(crate) fn encode_command(command: Command) -> Vec<u8> {
    let (op, operand) = match command {
        Command::Discard { first } => (1u64, first.0),
        Command::OpenSession { idle_max_ms } => (2, idle_max_ms),
        Command::CloseSession { id } => (3, id.0),
        Command::SetOptions(options) => {
            let options = options.encode();
            let count = (options.len() / LOG_OPTION_BYTES) as u64;
            // The last word is for later.
            let words = [SET_OPTIONS, count, 0].map(u64::to_le_bytes);
            return [words.as_flattened(), &options].concat();
        }
    };
    [op, operand].map(u64::to_le_bytes).concat()
}

/// The reverse of [`encode_command`].
pub(crate) fn parse_command(body: &[u8]) -> Result<Command, Malformed> {
    if let Some((fixed, options)) = body.split_at_checked(SET_OPTIONS_BYTES)
        && u64_at(fixed, 0) == SET_OPTIONS
    {
        if u64_at(fixed, 8) != (options.len() / LOG_OPTION_BYTES) as u64 || u64_at(fixed, 16) != 0 {
            return Err("options of the log are of a newer format, or cut off");
        }
        return Ok(Command::SetOptions(LogOptions::decode(options)?));
    }
    let body: &[u8; COMMAND_BYTES] = body.try_into().map_err(|_| "command has another length")?;
    let operand = u64_at(body, 8);
    match u64_at(body, 0) {
        1 => Ok(Command::Discard { first: Index(operand) }),
        2 => Ok(Command::OpenSession { idle_max_ms: operand }),
        3 => Ok(Command::CloseSession { id: SessionId(operand) }),
        _ => Err("command of a newer format"),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
