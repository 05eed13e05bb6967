//! Machine: one process of a simulation. It is a [`Node`] over a simulated disk, driven call by call: the steps that
//! the log's own driver does with threads and clocks are done here when the world calls.

mod objects;

use super::contents::LogSummaries;
use super::kept::{Kept, Seal};
use super::outbox::Outbox;
use super::readers::{Readers, range_of};
use super::threads::{Dial, Ran, Records, Threads, body_at, header_at};
use super::vault::SimVault;
use crate::cluster::membership::{Change, Membership};
use crate::cluster::options::{Bootstrap, ClusterOptions, Role};
use crate::cluster::transport::Envelope;
use crate::disk::sim::{Call, Rng, SimDisk};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::options::log_options::{LogOption, LogOptions};
use crate::options::{Clock, Options};
use crate::record::batch::Batch;
use crate::replica::node::Node;
use crate::replica::node::driver::{DrivenNode as _, Driver, Guarded};
use crate::replica::node::shared::Shared;
use crate::replica::open::{RecoveredLog, open};
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{Command, LogCommand, ProposalQueue, QueueLimits, WaitLimit};
use crate::replica::state::command::parse_command;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::object_table::ObjectTable;
use crate::replica::state::sequencer::Owner;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::store::format::block::{Batches, BlockHeader, Kind, table_of};
use crate::store::format::identity::Identity;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::{DirectoryId, EntryIndex, Index, LogId, LogNumber, NodeId, SessionId, Term, Timestamp};
use crate::vault::Vault;
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::DerefMut;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often slices are stored.
const SLICE_INTERVAL: Duration = Duration::from_millis(50);

/// The wall-clock time at which simulations begin, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// A wall clock that shows the time that was set.
#[derive(Debug, Default)]
pub(super) struct SetClock(AtomicU64);

impl SetClock {
    /// Shows the time of `now`, with an error of `wrong_by_ms` milliseconds.
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

/// The parameters for starting a machine.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) node: NodeId,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) session_idle_max: Duration,
    /// How many sessions may be open at once; `None`: as many as the options allow.
    pub(super) sessions_max: Option<u32>,
    /// How many bytes may wait for each of the other replicas.
    pub(super) queue_bytes_max: usize,
    /// The log is a group of named logs.
    pub(super) shared: bool,
    /// The object store.
    pub(super) vault: Option<Arc<SimVault>>,
    pub(super) seed: u64,
}

/// The kinds of room that a process lacks, and the work that it holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Appends wait for a file that is being prepared.
    pub(super) awaits: bool,
    /// Messages of the leader wait for a file that is being prepared.
    pub(super) held: bool,
    /// There was no room for the leader's last entries.
    pub(super) short: bool,
    /// There is no room for a term, a vote or a change.
    pub(super) silent: bool,
    /// How many answers of lagging followers were not followed by more entries.
    pub(super) paced: u64,
}

/// A request to a machine.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Append(LogNumber, Batch),
    Discard(LogNumber, Index),
    /// Opens, seals or drops a named log.
    Log(LogCommand),
    OpenSession(LogNumber),
    CloseSession(LogNumber, SessionId),
    Barrier,
    Change(Vec<Change>),
    Transfer(NodeId),
    SetOptions(LogNumber, Vec<(LogOption, Option<u64>)>),
}

/// A summary of a machine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MachineSummary {
    pub(super) role: Role,
    pub(super) term: Term,
    pub(super) leader: Option<NodeId>,
    pub(super) first: Index,
    pub(super) committed: Index,
    pub(super) committed_raft: EntryIndex,
    pub(super) last_raft: EntryIndex,
    /// The last durable entry.
    pub(super) durable_raft: EntryIndex,
    /// The entry before the first one it has.
    pub(super) base_raft: EntryIndex,
    /// The last record in the files, synced or not.
    pub(super) written: Index,
    /// The vote that raft has given in this term; 0: none.
    pub(super) vote: u64,
    /// Term and vote in the next block that is written.
    pub(super) says: (Term, u64),
}

/// The state that the blocks up to an entry lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicatedState {
    /// The last entry, and its term.
    pub(super) end: (EntryIndex, Term),
    /// The record after it.
    pub(super) next: Index,
    /// A digest of the sessions that have not expired.
    pub(super) sessions: u64,
    /// A digest of its membership.
    pub(super) members: u64,
    /// A digest of its table of named logs.
    pub(super) logs: u64,
    /// A digest of its objects.
    pub(super) objects: u64,
    /// The options that are set for the log.
    pub(super) options: LogOptions,
    /// The log's time.
    pub(super) time: Timestamp,
}

/// The state that the committed blocks lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) raft: EntryIndex,
    pub(super) next: Index,
    pub(super) first: Index,
    pub(super) members: u64,
    pub(super) logs: LogSummaries,
    /// The same, as readers see them.
    pub(super) published_logs: LogSummaries,
    pub(super) options: LogOptions,
    pub(super) has_objects: bool,
    /// The entry before the first one in the files, and the first record that they can hold.
    pub(super) base: (EntryIndex, Index),
}

/// A running process.
pub(super) struct Machine {
    threads: Threads,
    dial: Dial,
    queue: Arc<ProposalQueue>,
    disk: SimDisk,
    node: NodeId,
    options: Options,
    identity: Identity,
    outbox: Arc<Outbox>,
    /// Read the committed records one after another.
    readers: Readers,
    vault: Option<Arc<SimVault>>,
    /// The next object to be made here, and compared with the one that is stored.
    compared: u64,
}

/// The size of blocks in some runs: two large records fit.
const BLOCK_BYTES_SMALL: u32 = 10 << 10;

/// The smallest size of a segment, so that runs use many segments.
pub(super) const SEGMENT_BYTES: u32 = crate::store::format::geometry::SEGMENT_BYTES_MIN;

impl Machine {
    /// Opens the log on the disk, as `Log::open` does, but without threads. Damage is an error.
    ///
    /// # Errors
    /// Those of `Log::open`.
    pub(super) fn open(disk: &SimDisk, setup: &Setup, now: Moment) -> Result<Self> {
        let outbox = Arc::new(Outbox::new(setup.queue_bytes_max));
        let options = options_of(setup, outbox.clone());
        options.check()?;
        let opened = open(Arc::new(disk.clone()), &options)?;
        Self::over(opened, disk, setup, options, outbox, now)
    }

    /// Makes a process of a log that was just opened.
    ///
    /// # Errors
    /// Those of `Log::open`.
    pub(super) fn over(
        opened: RecoveredLog,
        disk: &SimDisk,
        setup: &Setup,
        options: Options,
        outbox: Arc<Outbox>,
        now: Moment,
    ) -> Result<Self> {
        opened.store.allocator.go_unaided();
        let (identity, segments) = (opened.identity, opened.segments.clone());
        let limits = QueueLimits {
            block_bytes: options.block_bytes_max as usize,
            bytes: options.queue_bytes_max,
            appends: options.queue_appends_max,
            capacity: options.capacity_bytes,
            inbox_bytes: QUEUED_MAIL_MAX,
        };
        let cluster = opened.cluster.clone();
        let shared = Shared::new(Path::new("machine"), identity, options, segments, limits);
        if setup.shared {
            shared.view.logs.reserve();
        }
        shared.begin(&opened);
        let node = Node::new(opened, &shared, setup.seed, now)?;
        let dial = Dial::default();
        let threads = Threads::new(Driver::new(node, cluster, dial.clone(), true), dial.clone());
        let Shared { queue, options, view, .. } = shared;
        Ok(Self {
            threads,
            dial,
            queue,
            disk: disk.clone(),
            node: setup.node,
            options,
            identity,
            outbox,
            readers: Readers::new(view),
            vault: setup.vault.clone(),
            compared: 0,
        })
    }

    fn lock(&self) -> impl DerefMut<Target = Guarded<Node>> {
        self.threads.driver.lock()
    }

    pub(super) fn identity(&self) -> (LogId, DirectoryId) {
        (self.identity.log, self.identity.directory)
    }

    /// A message has arrived.
    pub(super) fn deliver(&self, envelope: Envelope) {
        self.queue.push_event(InboxEvent::Message(envelope));
    }

    /// Submits a request; a later step answers it.
    ///
    /// # Errors
    /// The request is refused at once.
    pub(super) fn submit(&self, request: Request, wait_limit: Duration, idle_max_ms: u64) -> Result<Ticket> {
        let queue = &self.queue;
        let ask = match request {
            Request::Append(log, batch) => return queue.push_batch(log, &batch, WaitLimit::None),
            Request::Discard(LogNumber::OWN, first) => {
                return queue.push_command(LogNumber::OWN, Command::Discard { first });
            }
            Request::Discard(log, first) => {
                return queue.push_command(log, Command::Log(LogCommand::Discard { log, first }));
            }
            Request::Log(command) => return queue.push_command(command.log(), Command::Log(command)),
            Request::OpenSession(log) => {
                return queue.push_command(log, Command::OpenSession { log, idle_max_ms });
            }
            Request::CloseSession(log, id) => {
                return queue.push_command(log, Command::CloseSession { id });
            }
            Request::Barrier => AdminRequest::Barrier,
            // Forced, because membership has to stay correct whatever an operator does to it.
            Request::Change(changes) => AdminRequest::Change(changes, true),
            Request::Transfer(to) => AdminRequest::Transfer(to),
            Request::SetOptions(log, changes) => AdminRequest::SetOptions(log, changes),
        };
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        queue.push_question(InboxEvent::AdminRequest(ask, wait_limit, completer))?;
        Ok(ticket)
    }

    /// Submits batches of named logs that are appended together; later steps answer each.
    ///
    /// # Errors
    /// All are refused at once.
    pub(super) fn submit_together(&self, batches: &[(LogNumber, Batch)]) -> Result<Vec<Ticket>> {
        let batches: Vec<_> = batches.iter().map(|(log, batch)| (*log, batch)).collect();
        self.queue.push_together(&batches, WaitLimit::None)
    }

    /// Runs one of its threads. The second result: whether a sync was carried out inside the step.
    pub(super) fn run(&mut self, thread: usize, now: Moment, linger: bool) -> (Ran, bool) {
        let (syncs, alone) = (self.disk.calls(Some(Call::Sync)), self.lock().node.is_alone());
        let ran = self.threads.run(thread, now, linger);
        if let Some(name) = self.threads.syncing().filter(|_| ran.began_sync).and_then(|job| job.file_name())
        {
            self.disk.begin_sync(name); // bytes written from here on are not covered by it
        }
        let guarded = self.lock();
        let alone = alone || guarded.node.is_alone(); // the step may have changed it
        let synced = ran.stepped
            && alone
            && !ran.began_sync
            && self.disk.calls(Some(Call::Sync)) > syncs
            && guarded.node.writer.store.is_synced();
        guarded.node.writer.store.allocator.help_in_time();
        (ran, synced)
    }

    /// Carries out the sync of a thread.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn sync(&mut self, thread: usize) -> Result<()> {
        self.threads.sync(thread)
    }

    /// The threads that are woken by the last events.
    pub(super) fn called(&mut self, rng: &mut Rng) -> Vec<usize> {
        self.threads.called(rng)
    }

    /// Closes the log: requests that were submitted are still answered.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Whether it was closed, and all its threads have ended.
    pub(super) fn is_over(&self) -> bool {
        self.threads.are_over()
    }

    /// The error that ended it.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock().ended.clone().and_then(Result::err)
    }

    /// All messages that it sent since the last call, also those that its queues have dropped.
    pub(super) fn take_outgoing(&self) -> Vec<Envelope> {
        self.outbox.take()
    }

    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// From now on files are prepared when [`Self::help`] is called; with `false` at once.
    pub(super) fn prepares_late(&self, late: bool) {
        let allocator = self.lock().node.writer.store.allocator.clone();
        allocator.go_late(late);
        if !late {
            allocator.help();
        }
    }

    /// Whether the helper thread has work.
    pub(super) fn wants_help(&self) -> bool {
        self.lock().node.writer.store.allocator.has_work()
    }

    /// Does the helper thread's work.
    pub(super) fn help(&self) {
        let allocator = self.lock().node.writer.store.allocator.clone();
        allocator.help();
    }

    /// The kinds of room that it lacks, and the work that it holds back.
    pub(super) fn room(&self) -> Room {
        let node = &self.lock().node;
        Room {
            awaits: node.awaits_file(),
            held: node.replica.holds_messages(),
            short: node.replica.is_short(),
            silent: node.replica.is_held().is_some(),
            paced: node.replica.paced(),
        }
    }

    /// Whether the log is poisoned.
    pub(super) fn is_poisoned(&self) -> bool {
        self.lock().node.published.poison.get().is_some()
    }

    /// A summary of its state.
    pub(super) fn summary(&self) -> MachineSummary {
        let guarded = self.lock();
        let (replica, writer) = (&guarded.node.replica, &guarded.node.writer);
        let (first, committed) = range_of(self.readers.group());
        MachineSummary {
            role: replica.role(),
            term: replica.term(),
            leader: replica.leader(),
            first,
            committed,
            committed_raft: replica.sequencer.committed().raft.min(writer.written().end.raft),
            last_raft: replica.sequencer.end().raft,
            durable_raft: writer.synced().end.raft,
            base_raft: writer.archive.first().raft,
            written: writer.written().end.next.previous(),
            vote: replica.vote(),
            says: {
                let state = replica.sequencer.hard_state();
                (state.term, state.vote)
            },
        }
    }

    /// The state that the blocks so far lead to, committed or not.
    pub(super) fn replicated_state(&self) -> ReplicatedState {
        let guarded = self.lock();
        let sequencer = &guarded.node.replica.sequencer;
        let (end, time) = (sequencer.end(), sequencer.last_timestamp());
        ReplicatedState {
            end: (end.raft, end.term),
            next: end.next,
            sessions: sequencer.sessions().digest(time),
            members: digest_of(sequencer.membership_at_end()),
            logs: digest_of_logs(sequencer.logs()),
            objects: digest_of_objects(sequencer.objects()),
            options: sequencer.options_at_end(),
            time,
        }
    }

    /// The state that the committed blocks lead to.
    pub(super) fn settled(&self) -> Settled {
        let guarded = self.lock();
        let committed = guarded.node.replica.sequencer.committed();
        Settled {
            raft: committed.raft,
            next: committed.next,
            first: committed.first,
            members: digest_of(&committed.membership),
            logs: summaries(&committed.logs),
            published_logs: self.readers.published(),
            options: committed.options,
            has_objects: committed.objects.has_begun(),
            base: (guarded.node.writer.archive.first().raft, guarded.node.writer.archive.first().next),
        }
    }

    /// The committed membership, and the entry that changed it last, as far as this process has seen them committed.
    pub(super) fn committed_membership(&self) -> (Membership, EntryIndex) {
        let guarded = self.lock();
        let committed = guarded.node.replica.sequencer.committed();
        (committed.membership.clone(), committed.changed)
    }

    /// Whether a durable block says that the last change of membership is committed.
    pub(super) fn change_is_durable(&self) -> bool {
        let guarded = self.lock();
        guarded.node.writer.synced().commit >= guarded.node.replica.sequencer.committed().changed
    }

    /// How many changes of membership in the log are not known to be committed.
    pub(super) fn changes_in_doubt(&self) -> usize {
        self.lock().node.replica.sequencer.changes_in_doubt()
    }

    /// The body of an entry as it is sent to another replica.
    ///
    /// # Errors
    /// There is no such entry of this term.
    pub(super) fn body_of(&self, raft: EntryIndex, term: Term) -> Result<Vec<Bytes>> {
        self.lock().node.replica.body_of(raft, term)
    }

    /// Whether the other replicas have introduced themselves to this process.
    pub(super) fn is_introduced(&self) -> bool {
        self.lock().node.replica.may_vote()
    }

    /// How many committed changes wait to come into force.
    pub(super) fn changes_not_in_force(&self) -> usize {
        self.lock().node.replica.changes_not_in_force()
    }

    /// The state of the disk after a sync that begins now.
    ///
    /// # Errors
    /// An entry that is not known to be committed cannot be read.
    pub(super) fn writes(&self) -> Result<Kept> {
        let summary = self.summary();
        let guarded = self.lock();
        let state = guarded.node.replica.sequencer.hard_state();
        let (sure, end) = (summary.committed_raft, guarded.node.writer.written().end.raft);
        // While entries are planned, memory is ahead of the files.
        let planned = !guarded.node.writer.plan.is_empty();
        let mut tail = Vec::new();
        for index in sure.0 + 1..=end.0 {
            let header = match guarded.node.replica.in_memory(EntryIndex(index)).filter(|_| !planned) {
                Some((header, _)) => Some(header),
                None => guarded.node.writer.archive.header(EntryIndex(index))?,
            };
            let Some(header) = header else { break };
            tail.push(Seal::of(&header));
        }
        Ok(Kept { last: summary.written, term: state.term, vote: state.vote, sure, tail })
    }

    /// The voters of both halves of its configuration; the second half is empty unless the configuration is joint.
    pub(super) fn voters(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let guarded = self.lock();
        let membership = guarded.node.replica.membership();
        let nodes = |v: Vec<u64>| v.into_iter().map(NodeId).collect();
        (nodes(membership.voters()), nodes(membership.voters_outgoing()))
    }

    pub(super) fn learners(&self) -> Vec<NodeId> {
        self.lock().node.replica.membership().learners().into_iter().map(NodeId).collect()
    }

    /// The entry `index`, which is committed here; `None` if it was discarded here.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn entry(&self, index: EntryIndex) -> Result<Option<BlockHeader>> {
        match self.dial.entry(index) {
            Some((header, _)) => Ok(Some(header)),
            None => header_at(&self.lock().node, index),
        }
    }

    /// Whether the last step has committed this entry, which may be discarded since.
    pub(super) fn has_seen(&self, index: EntryIndex) -> bool {
        self.dial.entry(index).is_some()
    }

    /// The records of an entry, with their indexes.
    ///
    /// # Errors
    /// It cannot be read, or was discarded here.
    pub(super) fn records_of(&self, header: &BlockHeader) -> Result<Records> {
        let corrupt = |why| Error::new(ErrorKind::Corrupt, why);
        let records_in = |batches: &[u8]| -> Result<Vec<Vec<u8>>> {
            let mut records = Vec::new();
            for batch in Batches::new(batches) {
                let (_, bytes) = batch.map_err(corrupt)?;
                records.extend(Batch::decode(Bytes::copy_from_slice(bytes))?.records()?);
            }
            Ok(records)
        };
        let numbered = |log, first: Index, records: Vec<Vec<u8>>| {
            records.into_iter().enumerate().map(move |(n, r)| (log, first.plus(n as u64), r))
        };
        match header.kind {
            Kind::Data => {
                Ok(numbered(LogNumber::OWN, header.first, records_in(&self.body(header)?)?).collect())
            }
            Kind::Mixed => {
                let body = self.body(header)?;
                let table = table_of(header, &body).map_err(corrupt)?;
                let mut records = Vec::new();
                for (run, place) in table.runs() {
                    records.extend(numbered(run.log, run.first, records_in(&body[place])?));
                }
                Ok(records)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The command in a block; `None`: it holds none.
    ///
    /// # Errors
    /// It cannot be read, or was discarded here.
    pub(super) fn command_of(&self, header: &BlockHeader) -> Result<Option<Command>> {
        if header.kind != Kind::Command {
            return Ok(None);
        }
        parse_command(&self.body(header)?).map(Some).map_err(|why| Error::new(ErrorKind::Corrupt, why))
    }

    /// The body of a committed entry, also if it was committed and discarded within the last step.
    fn body(&self, header: &BlockHeader) -> Result<Bytes> {
        let seen = self.dial.entry(header.raft_index).map(|(_, body)| body);
        let body = seen.map_or_else(|| body_at(&self.lock().node, header), |body| Ok(Some(body)))?;
        body.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("entry {} is not here any more", header.raft_index))
        })
    }

    /// One record, as any reader returns it.
    ///
    /// # Errors
    /// Those of `Log::read`.
    pub(super) fn read(&self, log: LogNumber, index: Index) -> Result<Bytes> {
        Ok(self.readers.of_log(log)?.read(index)?.data)
    }

    /// A feed of its log.
    ///
    /// # Errors
    /// Those of `Log::follow`.
    pub(super) fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        FollowSource::new(
            self.readers.group().clone(),
            Owner::Node(self.node),
            self.identity.log,
            self.options.clone(),
            from,
        )
    }

    /// The first and the last record of a log that can be read.
    ///
    /// # Errors
    /// `NotFound`: there is no such log here.
    pub(super) fn range(&self, log: LogNumber) -> Result<(Index, Index)> {
        Ok(range_of(&self.readers.of_log(log)?))
    }

    /// The logs that can be read.
    pub(super) fn logs(&self) -> Vec<LogNumber> {
        self.readers.logs()
    }

    pub(super) fn log(&self) -> LogId {
        self.identity.log
    }

    /// The records that became readable since the last call.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn read_on(&mut self) -> Result<Records> {
        self.readers.fresh(false)
    }

    /// Every record that can be read.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn read_all(&mut self) -> Result<Records> {
        self.readers.all()
    }
}

/// How many bytes of messages may wait.
const QUEUED_MAIL_MAX: usize = 1 << 20;

/// Whether a message is an introduction to a replica that has started.
pub(super) fn introduces(envelope: &Envelope) -> bool {
    envelope.head.get(raft_message::KIND_AT) == Some(&(HeadKind::Known as u8))
}

/// The term, and the vote, in a message: both have to be durable before it is sent. `None`: the message holds
/// neither.
pub(super) fn promises_of(envelope: &Envelope) -> Option<(Term, Option<u64>)> {
    let (HeadKind::Raft, body) = raft_message::parse_head(&envelope.head).ok()? else { return None };
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

pub(super) fn options_of(setup: &Setup, outbox: Arc<Outbox>) -> Options {
    let cluster = ClusterOptions {
        address: format!("host{}", setup.node),
        heartbeat: setup.heartbeat,
        election_timeout: setup.election_timeout,
        ..ClusterOptions::new(setup.node, setup.bootstrap, outbox)
    };
    let options = Options::with_segment_bytes(SEGMENT_BYTES);
    // Openings of these small segments have room for many sessions or for named logs.
    let (sessions_max, session_window) =
        if setup.shared { (16, 16) } else { (options.sessions_max, options.session_window) };
    // Small blocks, so that the queue often holds several: a block is a turn of the logs of a group.
    let block_bytes_max = if setup.shared && setup.seed.is_multiple_of(2) {
        BLOCK_BYTES_SMALL
    } else {
        options.block_bytes_max
    };
    Options {
        block_bytes_max,
        clock: setup.clock.clone(),
        session_idle_max: setup.session_idle_max,
        cluster: Some(cluster),
        sessions_max: setup.sessions_max.unwrap_or(sessions_max),
        vault: setup.vault.clone().map(|vault| vault as Arc<dyn Vault>),
        object_bytes: SEGMENT_BYTES,
        object_age: setup.seed.is_multiple_of(3).then_some(Duration::from_secs(2)),
        local_bytes: Some(2 * u64::from(SEGMENT_BYTES)),
        cache_bytes: 8 << 20,
        object_delete_delay: Duration::from_secs(1),
        object_scrub: Some(Duration::from_secs(2)),
        slice_interval: setup
            .vault
            .as_ref()
            .filter(|vault| vault.takes_slices && !setup.shared)
            .map(|_| SLICE_INTERVAL),
        slice_bytes: 512 << 10,
        // Half of the nodes read named logs from the segments.
        sorted_copies: setup.node.0.is_multiple_of(2),
        session_window,
        ..options
    }
}

/// The state that a replica finds on a disk when it starts.
///
/// # Errors
/// Those of opening a log.
pub(super) fn found_on(disk: &SimDisk, setup: &Setup) -> Result<Kept> {
    let opened = open(Arc::new(disk.clone()), &options_of(setup, Arc::default()))?;
    let (state, end) = (opened.sequencer.hard_state(), opened.sequencer.end());
    Ok(Kept { last: end.next.previous(), term: state.term, vote: state.vote, ..Kept::default() })
}

/// The entry at `index` on a disk; `None`: there is none. A discarded one counts as `known`.
///
/// # Errors
/// Those of opening a log and of reading it.
pub(super) fn entry_on(
    disk: &SimDisk,
    setup: &Setup,
    index: EntryIndex,
    known: Seal,
) -> Result<Option<Seal>> {
    let opened = open(Arc::new(disk.clone()), &options_of(setup, Arc::default()))?;
    let archive = opened.store.archive();
    if index <= archive.first().raft {
        return Ok(Some(known));
    }
    Ok(archive.header(index)?.map(|header| Seal::of(&header)))
}

/// A digest of a membership.
fn digest_of(membership: &Membership) -> u64 {
    let mut hasher = DefaultHasher::new();
    for m in membership.members() {
        (m.node.0, m.directory.0, m.is_voter(), m.is_leaving(), &m.address).hash(&mut hasher);
    }
    hasher.finish()
}

fn summaries(table: &LogTable) -> LogSummaries {
    table.iter().map(|(log, state)| (log, state.into())).collect()
}

/// A digest of the objects of a log.
fn digest_of_objects(objects: &ObjectTable) -> u64 {
    let mut hasher = DefaultHasher::new();
    objects.encode(Index(1)).hash(&mut hasher);
    hasher.finish()
}

/// A digest of a log table, except for the logs' first records: the discards that let a replica jump can come after the
/// jump.
fn digest_of_logs(table: &LogTable) -> u64 {
    let mut hasher = DefaultHasher::new();
    table.opened().hash(&mut hasher);
    let states = table.iter().map(|(log, s)| (log, s.next, s.bytes, s.last_timestamp, s.sealed));
    states.for_each(|state| state.hash(&mut hasher));
    table.with_options().for_each(|(log, options)| (log, options.encode()).hash(&mut hasher));
    hasher.finish()
}
