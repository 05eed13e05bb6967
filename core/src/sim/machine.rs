//! Machine: one process of a simulation: a [`Node`] over a simulated disk, driven call by call. What the log's own driver
//! does with threads and clocks, this does when it is told.

use crate::batch::Batch;
use crate::cluster::{Bootstrap, Cluster, Role};
use crate::completion::Ticket;
use crate::config::{Clock, Options};
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Command, Patience, Queue, QueueLimits};
use crate::mail::{Ask, Mail};
use crate::membership::Change;
use crate::moment::Moment;
use crate::node::Node;
use crate::open::open;
use crate::positions::Positions;
use crate::promise::Promise;
use crate::raft_codec::{self, HeadKind};
use crate::reader::{Reader, Shelf, Start};
use crate::store::block::{Batches, BlockHeader, Kind};
use crate::store::identity::Identity;
use crate::transport::{Envelope, Inbox, Transport};
use crate::types::{DirectoryId, Index, LogId, NodeId, RaftIndex, SessionId, Term, Timestamp};
use crate::writing::Fsync;
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// When simulations begin, by the wall clock.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// A wall clock that shows what it is told.
#[derive(Debug, Default)]
pub(super) struct SetClock(AtomicU64);

impl SetClock {
    /// Shows the time of `now`, wrong by so many milliseconds.
    pub(super) fn show(&self, now: Moment, wrong_by_ms: i64) {
        let right = EPOCH_MS + now.0 / 1_000_000;
        self.0.store(right.saturating_add_signed(wrong_by_ms), Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// How a machine is started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) node: NodeId,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) session_idle_max: Duration,
    pub(super) seed: u64,
}

/// What can be asked of a machine.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Append(Batch),
    Discard(Index),
    OpenSession,
    CloseSession(SessionId),
    Barrier,
    Change(Vec<Change>),
    Transfer(NodeId),
}

/// How a machine stands, at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) role: Role,
    pub(super) term: Term,
    pub(super) leader: Option<NodeId>,
    pub(super) first: Index,
    pub(super) committed: Index,
    pub(super) committed_raft: RaftIndex,
    pub(super) last_raft: RaftIndex,
    /// The last durable entry.
    pub(super) durable_raft: RaftIndex,
    /// The entry before the first one it has.
    pub(super) base_raft: RaftIndex,
    /// The last record in the files, synced or not.
    pub(super) written: Index,
}

/// A message's way out of a machine: it waits here until the world takes it.
#[derive(Debug, Default)]
struct Outbox(Mutex<Vec<Envelope>>);

impl Outbox {
    fn take(&self) -> Vec<Envelope> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Outbox {
    fn attach(&self, _: NodeId, _: Inbox) {}

    fn detach(&self, _: NodeId) {}

    fn send(&self, envelope: Envelope) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(envelope);
    }
}

/// What a write under way, or a finished one, leaves on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The last record.
    pub(super) last: Index,
    pub(super) term: Term,
    pub(super) vote: u64,
}

/// A running process.
pub(super) struct Machine {
    node: Node,
    identity: Identity,
    shelf: Shelf,
    outbox: Arc<Outbox>,
    /// Follows what is committed.
    reader: Reader,
    /// The sync under way.
    job: Option<Arc<Fsync>>,
}

/// The least that a segment can be, so that runs go through many.
const SEGMENT_BYTES: u32 = crate::config::SEGMENT_BYTES_MIN;

impl Machine {
    /// Opens what is on the disk, as `Log::open` does, but for the threads.
    ///
    /// # Errors
    /// Those of `Log::open`.
    pub(super) fn open(disk: &SimDisk, setup: &Setup, now: Moment) -> Result<Self> {
        let outbox = Arc::new(Outbox::default());
        let options = options_of(setup, outbox.clone());
        options.check()?;
        let opened = open(Arc::new(disk.clone()), &options)?;
        opened.store.preparer.go_unaided();
        let (identity, segments) = (opened.identity, opened.segments.clone());
        let committed = opened.sequencer.committed();
        let last = opened.sequencer.end().next.previous();
        let readable = committed.next.previous().min(last);
        let positions = Arc::new(Positions::new(committed.first, readable, last));
        let limits = QueueLimits {
            block_bytes: options.block_bytes_max as usize,
            bytes: options.queue_bytes_max,
            appends: options.queue_appends_max,
            capacity: options.capacity_bytes,
            mail_bytes: QUEUED_MAIL_MAX,
        };
        let queue = Arc::new(Queue::new(limits, segments.bytes_from(committed.first)));
        let node = Node::new(opened, options, queue, positions.clone(), setup.seed, now)?;
        let shelf = Shelf { segments, positions, prefetch: 0, outside: false };
        let reader = shelf.reader(Start::First)?;
        Ok(Self { node, identity, shelf, outbox, reader, job: None })
    }

    pub(super) fn identity(&self) -> (LogId, DirectoryId) {
        (self.identity.log, self.identity.directory)
    }

    /// A message has come.
    pub(super) fn deliver(&self, envelope: Envelope) {
        self.node.queue.push_mail(Mail::Message(envelope));
    }

    /// Hands in a question; the answer comes with a later turn.
    ///
    /// # Errors
    /// What refuses it at once.
    pub(super) fn ask(&self, request: Request, patience: Duration, idle_max_ms: u64) -> Result<Ticket> {
        let queue = &self.node.queue;
        let ask = match request {
            Request::Append(batch) => return queue.push_batch(&batch, Patience::None),
            Request::Discard(first) => return queue.push_command(Command::Discard { first }),
            Request::OpenSession => return queue.push_command(Command::OpenSession { idle_max_ms }),
            Request::CloseSession(id) => return queue.push_command(Command::CloseSession { id }),
            Request::Barrier => Ask::Barrier,
            Request::Change(changes) => Ask::Change(changes),
            Request::Transfer(to) => Ask::Transfer(to),
        };
        let promise = Promise::new();
        let ticket = promise.ticket(0, 0, 0);
        queue.push_question(Mail::Ask(ask, patience, promise))?;
        Ok(ticket)
    }

    /// Does all there is to do but syncing.
    ///
    /// # Errors
    /// What the node dies of.
    pub(super) fn turn(&mut self, now: Moment) -> Result<()> {
        let hungry = self.node.is_hungry();
        let work = self.node.queue.take(hungry);
        self.node.turn(now, work)?;
        self.node.writing.store.preparer.help();
        Ok(())
    }

    /// Begins a sync, if there is something to sync and none is under way.
    pub(super) fn begin_sync(&mut self, now: Moment) -> bool {
        if self.job.is_some() {
            return false;
        }
        self.job = self.node.begin_sync(now);
        self.job.is_some()
    }

    /// Whether a sync was begun and has not ended.
    #[cfg(test)]
    pub(super) fn is_syncing(&self) -> bool {
        self.job.is_some()
    }

    /// Carries out the sync that was begun.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn run_sync(&self) -> Result<()> {
        self.job.as_ref().map_or(Ok(()), |job| job.run())
    }

    /// The sync that was begun has been carried out.
    ///
    /// # Errors
    /// What the node dies of.
    pub(super) fn end_sync(&mut self, now: Moment) -> Result<()> {
        let Some(job) = self.job.take() else { return Ok(()) };
        self.node.end_sync(now, &job)
    }

    pub(super) fn deadline(&self, now: Moment) -> Option<Moment> {
        self.node.deadline(now)
    }

    pub(super) fn take_outgoing(&self) -> Vec<Envelope> {
        self.outbox.take()
    }

    pub(super) fn poison(&mut self, cause: Error) {
        self.node.poison(&cause);
        self.node.abdicate();
    }

    /// Whether it takes nothing more.
    pub(super) fn is_poisoned(&self) -> bool {
        self.node.published.poison.get().is_some()
    }

    /// How it stands.
    pub(super) fn glance(&self) -> Glance {
        let replica = &self.node.replica;
        let (first, committed) = self.shelf.positions.range();
        Glance {
            role: replica.role(),
            term: replica.term(),
            leader: replica.leader(),
            first,
            committed,
            committed_raft: replica.sequencer.committed().raft.min(self.node.writing.written().end.raft),
            last_raft: replica.sequencer.end().raft,
            durable_raft: self.node.writing.synced().end.raft,
            base_raft: self.node.writing.archive.first().raft,
            written: self.node.writing.written().end.next.previous(),
        }
    }

    /// Entries that are committed and wait to come into force.
    pub(super) fn changes_not_in_force(&self) -> usize {
        self.node.replica.changes_not_in_force()
    }

    /// What is written, and will be durable once a sync that begins now is done.
    pub(super) fn writes(&self) -> Kept {
        let state = self.node.replica.sequencer.hard_state();
        Kept { last: self.glance().written, term: state.term, vote: state.vote }
    }

    /// The voters of both halves of its configuration; the second is empty unless it is a joint one.
    pub(super) fn voters(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let membership = self.node.replica.membership();
        let nodes = |v: Vec<u64>| v.into_iter().map(NodeId).collect();
        (nodes(membership.voters()), nodes(membership.voters_outgoing()))
    }

    pub(super) fn learners(&self) -> Vec<NodeId> {
        self.node.replica.membership().learners().into_iter().map(NodeId).collect()
    }

    /// The entry `index`, which is committed here; none if it is not here any more.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn entry(&self, index: RaftIndex) -> Result<Option<BlockHeader>> {
        match self.node.replica.in_memory(index) {
            Some((header, _)) => Ok(Some(header)),
            None => self.node.writing.archive.header(index),
        }
    }

    /// The records of an entry, with their indexes.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn records_of(&self, header: &BlockHeader) -> Result<Vec<(Index, Vec<u8>)>> {
        if header.kind != Kind::Data {
            return Ok(Vec::new());
        }
        let body = match self.node.replica.in_memory(header.raft_index) {
            Some((_, Some(pieces))) => pieces.concat().into(),
            _ => self.node.writing.archive.body(header.raft_index)?.map(|(_, body)| body).unwrap_or_default(),
        };
        let mut records = Vec::new();
        for batch in Batches::new(&body) {
            let (_, bytes) = batch.map_err(|why| Error::new(ErrorKind::Corrupt, why))?;
            records.extend(Batch::decode(Bytes::copy_from_slice(bytes))?.records()?);
        }
        Ok(records.into_iter().enumerate().map(|(n, r)| (header.first.plus(n as u64), r)).collect())
    }

    /// One record, as any reader gets it.
    ///
    /// # Errors
    /// Those of `Log::read`.
    pub(super) fn read(&self, index: Index) -> Result<Bytes> {
        Ok(self.shelf.read(index)?.data)
    }

    /// The first and the last record that it shows.
    pub(super) fn range(&self) -> (Index, Index) {
        self.shelf.positions.range()
    }

    /// What it has come to show since the last time.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn follow(&mut self) -> Result<Vec<(Index, Vec<u8>)>> {
        let mut fresh = Vec::new();
        loop {
            match self.reader.next_record() {
                Ok(Some(record)) => fresh.push((record.index, record.data.to_vec())),
                Ok(None) => return Ok(fresh),
                Err(e) if e.kind() == ErrorKind::Discarded => {
                    self.reader = self.shelf.reader(Start::First)?
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Everything that it shows.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn read_all(&mut self) -> Result<Vec<(Index, Vec<u8>)>> {
        self.reader = self.shelf.reader(Start::First)?;
        self.follow()
    }
}

/// Bytes of messages that may wait.
const QUEUED_MAIL_MAX: usize = 1 << 20;

/// The term, and the vote, that a message tells others of: those have to be durable before it leaves. None of what
/// tells nothing of the kind.
pub(super) fn tells_of(envelope: &Envelope) -> Option<(Term, Option<u64>)> {
    let (HeadKind::Raft, body) = raft_codec::parse_head(&envelope.head).ok()? else { return None };
    let message = Message::parse_from_bytes(&body).ok()?;
    let term = Term(message.term);
    match message.get_msg_type() {
        MessageType::MsgRequestVote => Some((term, Some(message.from))),
        MessageType::MsgRequestVoteResponse if !message.reject => Some((term, Some(message.to))),
        MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot => Some((term, None)),
        MessageType::MsgAppendResponse => Some((term, None)),
        _ => None,
    }
}

fn options_of(setup: &Setup, outbox: Arc<Outbox>) -> Options {
    let cluster = Cluster {
        address: format!("host{}", setup.node),
        heartbeat: setup.heartbeat,
        election_timeout: setup.election_timeout,
        ..Cluster::new(setup.node, setup.bootstrap, outbox)
    };
    Options {
        clock: setup.clock.clone(),
        session_idle_max: setup.session_idle_max,
        cluster: Some(cluster),
        ..Options::with_segment_bytes(SEGMENT_BYTES)
    }
}

/// What a replica finds on a disk, before it does anything.
///
/// # Errors
/// Those of opening a log.
pub(super) fn found_on(disk: &SimDisk, setup: &Setup) -> Result<Kept> {
    let opened = open(Arc::new(disk.clone()), &options_of(setup, Arc::default()))?;
    let (state, end) = (opened.sequencer.hard_state(), opened.sequencer.end());
    Ok(Kept { last: end.next.previous(), term: state.term, vote: state.vote })
}
