//! Machine: one process of a simulation. It is a [`Node`] over a simulated disk, driven call by call: the steps that
//! the log's own driver does with threads and clocks are done here when the world calls.

pub(super) mod disk_use;
mod objects;
mod reading;
pub(super) mod state;

use super::outbox::Outbox;
use super::readers::Readers;
use super::setup::{Setup, options_of};
use super::store_faults::StoreFaults;
use super::threads::{Dial, Ran, Threads};
use super::vault::SimVault;
use crate::api::log::Log;
use crate::cluster::membership::Change;
use crate::cluster::transport::Envelope;
use crate::disk::sim::{Call, Rng, SimDisk};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::options::log_options::LogOption;
use crate::record::batch::Batch;
use crate::replica::node::Node;
use crate::replica::node::driver::{DrivenNode as _, Driver, Guarded};
use crate::replica::node::runtime::Runtime;
use crate::replica::node::shared::Shared;
use crate::replica::node::tiering::fill_limits;
use crate::replica::open::{RecoveredLog, open};
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{Command, LogCommand, ProposalQueue, QueueLimits, WaitLimit};
use crate::store::filling::Filling;
use crate::store::format::identity::Identity;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::{DirectoryId, Index, LogId, LogNumber, NodeId, SessionId};
use std::ops::DerefMut;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
    /// Keeps whole objects on the disk.
    filling: Option<Filling>,
    /// A handle of its log shares this with it.
    shared: Arc<Shared>,
}

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
        let shared = Arc::new(Shared::new(Path::new("machine"), identity, options, segments, limits));
        if setup.shared {
            shared.view.logs.reserve();
        }
        shared.begin(&opened);
        let node = Node::new(opened, &shared, setup.seed, now)?;
        let dial = Dial::default();
        let threads = Threads::new(Driver::new(node, cluster, dial.clone(), true), dial.clone());
        let (queue, options, view) = (shared.queue.clone(), shared.options.clone(), shared.view.clone());
        let filling = fill_limits(&options).map(|limits| Filling::new(&view.segments, limits));
        Ok(Self {
            threads,
            dial,
            queue,
            disk: disk.clone(),
            node: setup.node,
            options,
            identity,
            outbox,
            readers: Readers::new(view, StoreFaults::new(setup.vault.clone(), disk)),
            vault: setup.vault.clone(),
            compared: 0,
            filling,
            shared,
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

    /// A handle of its log, as a program has it.
    ///
    /// # Errors
    /// `Io`: there is no memory for it.
    pub(super) fn handle(&self) -> Result<Log> {
        Ok(Log::of(Runtime::driven(self.shared.clone())?))
    }

    pub(super) fn log(&self) -> LogId {
        self.identity.log
    }

    /// The results of puts of payload slices arrive so much later from now on.
    pub(super) fn puts_take(&self, time: std::ops::Range<Duration>) {
        self.lock().node.puts_take(time);
    }
}

/// How many bytes of messages may wait.
const QUEUED_MAIL_MAX: usize = 1 << 20;
