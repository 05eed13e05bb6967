//! Sequencer: gives each block its place: raft index, term, first record, timestamp; filters what sessions
//! sent twice. A pure state machine: no clock, no thread, no I/O. What it decides while the log runs and what
//! it learns when the log is replayed go through the same functions.
//!
//! With one node it stands where replication's state machine will stand: the order of blocks is its own.
//!
//! Must not know: files, who waits.

use crate::batch::{BatchHeader, Malformed, Stamp, u64_at};
use crate::completion::{Appended, Outcome};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::gather::{Command, Gathered, Promise};
use crate::session::Sessions;
use crate::store::NewBlock;
use crate::store::block::{Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::layout::{HardState, Opening, digest_of_bytes};
use crate::store::segment::Base;
use crate::types::{Index, RaftIndex, SessionId, Term, Timestamp};
use bytes::Bytes;

/// The term in which a log is made.
const FIRST_TERM: Term = Term(1);

/// The state that the blocks so far lead to.
#[derive(Debug)]
pub(crate) struct Sequencer {
    /// The last raft entry, and the next record's index.
    end: Base,
    /// The term of blocks to come.
    term: Term,
    first: Index,
    last_timestamp: Timestamp,
    sessions: Sessions,
    hard_state: HardState,
    configuration: Vec<u8>,
}

/// A gathered block with its place.
#[derive(Debug)]
pub(crate) struct Sequenced {
    /// None: every batch was a duplicate or refused.
    pub(crate) block: Option<NewBlock>,
    pub(crate) promise: Promise,
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
    /// The state of a log without a block.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            end: Base { raft: RaftIndex(0), term: FIRST_TERM, next: Index(1) },
            term: FIRST_TERM,
            first: Index(1),
            last_timestamp: Timestamp(0),
            sessions: Sessions::new(options.sessions_max, options.session_window),
            hard_state: HardState { term: FIRST_TERM, vote: 0, commit: RaftIndex(0) },
            configuration: Vec::new(),
        }
    }

    /// Begins a new term, now that all blocks are learnt: the only node elects itself anew each time it opens
    /// the log. The block that says so has to be durable before any entry is made.
    ///
    /// What this is good for: where a torn write was cut off, later blocks of it can still stand on the disk if
    /// the cut itself was lost. They are of an older term than all that is written in front of them from now on,
    /// and so they never follow it.
    pub(crate) fn begin_term(&mut self, options: &Options) -> NewBlock {
        self.term = Term(self.end.term.max(self.hard_state.term).0 + 1);
        self.hard_state = HardState { term: self.term, vote: 0, commit: self.end.raft };
        let at = self.now(options);
        self.position_block(Kind::HardState, self.hard_state.encode().to_vec(), at)
    }

    /// What comes after the last block.
    pub(crate) fn end(&self) -> Base {
        self.end
    }

    /// The log's first index.
    pub(crate) fn first(&self) -> Index {
        self.first
    }

    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.last_timestamp
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The opening block of a segment that begins now.
    pub(crate) fn opening(&mut self, options: &Options) -> NewBlock {
        self.sessions.expire(self.last_timestamp);
        let opening = Opening {
            base_raft: self.end.raft,
            base_term: self.end.term,
            log_first: self.first,
            hard_state: HardState { term: self.term, commit: self.end.raft, ..self.hard_state },
            configuration: self.configuration.clone(),
            sessions: self.sessions.encode(),
        };
        let at = self.now(options);
        self.position_block(Kind::Opening, opening.encode(), at)
    }

    /// A block that proves those before it, and holds nothing but `body` zeros.
    pub(crate) fn marker(&mut self, body: usize, options: &Options) -> NewBlock {
        let at = self.now(options);
        self.position_block(Kind::Marker, vec![0; body], at)
    }

    fn position_block(&self, kind: Kind, body: Vec<u8>, timestamp: Timestamp) -> NewBlock {
        NewBlock {
            kind,
            raft_index: self.end.raft,
            term: self.end.term,
            first: self.end.next,
            timestamp,
            record_count: 0,
            batch_count: 0,
            body_digest: digest_of_bytes(&[&body]),
            body: if body.is_empty() { Vec::new() } else { vec![Bytes::from(body)] },
            end: self.end,
        }
    }

    /// The clock, never running backwards along the log.
    fn now(&mut self, options: &Options) -> Timestamp {
        self.last_timestamp = self.last_timestamp.max(options.clock.now());
        self.last_timestamp
    }

    /// Takes the next raft index.
    fn advance(&mut self) -> RaftIndex {
        self.end.raft = self.end.raft.next();
        self.end.term = self.term;
        self.end.raft
    }

    /// Makes a block of gathered batches, and the answer to be given once it is durable.
    pub(crate) fn data(&mut self, gathered: Gathered, options: &Options) -> Sequenced {
        let timestamp = self.now(options);
        let first = self.end.next;
        if !gathered.has_sessions {
            let digest = digest_of_batches(gathered.entries.iter().map(|e| e.crc));
            let counts = (gathered.entries.len() as u32, gathered.records);
            let (pieces, promise) = gathered.into_pieces(None);
            let block = self.data_block(first, timestamp, counts, digest, pieces);
            return Sequenced { block: Some(block), promise, outcome: Outcome::Placed { first } };
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
                (fresh, placed.map(|earlier| earlier.unwrap_or(here)))
            })
            .collect();
        let kept = || gathered.entries.iter().zip(&results).filter(|(_, (fresh, _))| *fresh).map(|(e, _)| e);
        let counts = (kept().count() as u32, kept().map(|e| e.count).sum());
        let digest = digest_of_batches(kept().map(|e| e.crc));
        let (pieces, promise) = gathered.into_pieces(Some(&mut |n| results[n].0));
        let block = (counts.0 > 0).then(|| self.data_block(first, timestamp, counts, digest, pieces));
        let outcome = Outcome::Each(results.into_iter().map(|(_, result)| result).collect());
        Sequenced { block, promise, outcome }
    }

    fn data_block(
        &mut self,
        first: Index,
        timestamp: Timestamp,
        (batch_count, record_count): (u32, u32),
        body_digest: u32,
        body: Vec<Bytes>,
    ) -> NewBlock {
        let raft_index = self.advance();
        self.end.next = first.plus(u64::from(record_count));
        NewBlock {
            kind: Kind::Data,
            raft_index,
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

    /// Finds a batch's place: `None` if it takes the next one, else where it went the first time.
    fn place(&mut self, stamp: &Stamp, next: Index, count: u32, at: Timestamp) -> Result<Option<Appended>> {
        if stamp.session.is_none() {
            return Ok(None);
        }
        let earlier = self.sessions.check(stamp, at)?;
        if earlier.is_none() {
            self.sessions.apply(stamp, next, count, at)?;
        }
        Ok(earlier)
    }

    /// Decides a command, and makes its block if it changes anything.
    pub(crate) fn command(&mut self, command: Command, options: &Options) -> Decision {
        match command {
            Command::Discard { first } if first <= self.first => return Decision::Done(self.first),
            Command::CloseSession { id } if self.sessions.get(id).is_none() => {
                return Decision::Done(Index(0));
            }
            _ => {}
        }
        let timestamp = self.now(options);
        let raft_index = self.end.raft.next();
        if let Err(error) = self.apply(command, raft_index, timestamp) {
            return Decision::Refused(error);
        }
        let first = self.end.next;
        self.advance();
        if let Command::Discard { first } = command {
            self.skip_to(first);
        }
        let body = encode_command(command);
        let block = NewBlock {
            kind: Kind::Command,
            raft_index,
            term: self.end.term,
            first,
            timestamp,
            record_count: 0,
            batch_count: 0,
            body_digest: digest_of_bytes(&[&body]),
            body: vec![Bytes::copy_from_slice(&body)],
            end: self.end,
        };
        let result = match command {
            Command::OpenSession { .. } => Index(raft_index.0),
            Command::Discard { first } => first,
            Command::CloseSession { .. } => Index(0),
        };
        Decision::Write(block, result)
    }

    fn apply(&mut self, command: Command, raft_index: RaftIndex, at: Timestamp) -> Result<()> {
        match command {
            Command::Discard { first } => self.first = self.first.max(first),
            Command::OpenSession { idle_max_ms } => {
                self.sessions.open(SessionId(raft_index.0), idle_max_ms, at)?;
            }
            Command::CloseSession { id } => self.sessions.close(id),
        }
        Ok(())
    }

    /// A discard beyond the end moves the end.
    fn skip_to(&mut self, first: Index) {
        self.end.next = self.end.next.max(first);
    }

    /// Learns a block that was read back. Checks that it follows the one before.
    pub(crate) fn replay(
        &mut self,
        header: &BlockHeader,
        body: &[u8],
        options: &Options,
    ) -> Result<Base, Malformed> {
        if header.kind == Kind::Opening {
            self.replay_opening(header, body, options)?;
            return Ok(self.end);
        }
        let expected = if header.kind.is_entry() { self.end.raft.next() } else { self.end.raft };
        if header.raft_index != expected {
            return Err("block's raft index does not follow the one before");
        }
        if header.term < self.end.term || (!header.kind.is_entry() && header.term != self.end.term) {
            return Err("block's term does not follow the one before");
        }
        if header.kind.is_entry() && header.term < self.hard_state.term {
            return Err("block is of an older term than the log was in");
        }
        if header.first != self.end.next {
            return Err("block's first record does not follow the one before");
        }
        self.end.raft = header.raft_index;
        self.end.term = header.term;
        self.last_timestamp = self.last_timestamp.max(header.timestamp);
        match header.kind {
            Kind::Data => self.replay_batches(header, body)?,
            Kind::Command => {
                let command = parse_command(body)?;
                match command {
                    // What the log holds was once accepted; a limit lowered since does not undo it.
                    Command::OpenSession { idle_max_ms } => {
                        let id = SessionId(header.raft_index.0);
                        self.sessions
                            .reopen(id, idle_max_ms, header.timestamp)
                            .map_err(|_| "session opened twice")?;
                    }
                    _ => self
                        .apply(command, header.raft_index, header.timestamp)
                        .map_err(|_| "command failed")?,
                }
                if let Command::Discard { first } = command {
                    self.skip_to(first);
                }
            }
            Kind::HardState => self.hard_state = HardState::parse(body)?,
            Kind::Configuration => self.configuration = body.to_vec(),
            Kind::NoOp | Kind::Marker | Kind::Opening => {}
        }
        Ok(self.end)
    }

    fn replay_batches(&mut self, header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
        for batch in Batches::new(body) {
            let (BatchHeader { stamp, count, .. }, _) = batch?;
            if !stamp.session.is_none() {
                let applied = self.sessions.apply(&stamp, self.end.next, count, header.timestamp);
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
        *self = Self {
            end: Base { raft: opening.base_raft, term: opening.base_term, next: header.first },
            term: opening.hard_state.term,
            first: opening.log_first,
            last_timestamp: header.timestamp,
            sessions: Sessions::decode(&opening.sessions, options.sessions_max, options.session_window)?,
            hard_state: opening.hard_state,
            configuration: opening.configuration,
        };
        Ok(())
    }
}

/// Bytes of a command block's body.
pub(crate) const COMMAND_BYTES: usize = 16;

/// A command block's body: the operation, then its operand.
fn encode_command(command: Command) -> [u8; COMMAND_BYTES] {
    let (op, operand) = match command {
        Command::Discard { first } => (1u64, first.0),
        Command::OpenSession { idle_max_ms } => (2, idle_max_ms),
        Command::CloseSession { id } => (3, id.0),
    };
    let mut body = [0; COMMAND_BYTES];
    body[..8].copy_from_slice(&op.to_le_bytes());
    body[8..].copy_from_slice(&operand.to_le_bytes());
    body
}

/// The reverse of [`encode_command`].
pub(crate) fn parse_command(body: &[u8]) -> Result<Command, Malformed> {
    let body: &[u8; COMMAND_BYTES] = body.try_into().map_err(|_| "command has another length")?;
    let operand = u64_at(body, 8);
    match u64_at(body, 0) {
        1 => Ok(Command::Discard { first: Index(operand) }),
        2 => Ok(Command::OpenSession { idle_max_ms: operand }),
        3 => Ok(Command::CloseSession { id: SessionId(operand) }),
        _ => Err("command of a newer format"),
    }
}
