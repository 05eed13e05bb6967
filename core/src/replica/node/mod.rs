//! Node: a replica and its store, without a thread and without a clock. Its caller passes the time and the queue's
//! contents, and runs its syncs. The caller is the driver in a program and the simulator in tests; the node is the
//! same.
//!
//! ```text
//!  step(now, work):  inbox ─> replica ──┐
//!                    time ──> replica ──┼──> plan ──> send ──> write (1 pwritev) ──> publish what is committed
//!                    appends ─> replica ┘
//!  begin_sync() ──> SyncOnce::run (fdatasync, anywhere) ──> end_sync(now) ──> replica: persisted ──> send, publish
//! ```
//!
//! A leader sends its messages before its own write, so that the followers' disks work at the same time as its own.
//!
//! Invariants:
//! - positions move before callers are answered: a caller that was answered can read what it wrote;
//! - `committed` covers only what is written here; whether it is synced here does not matter;
//! - a discard removes files only once a durable block records that the discard is committed;
//! - after a failed write or sync nothing more is written. The node is poisoned, and informs only its callers and, if
//!   it led, the replica that may lead next.

pub(crate) mod driver;
mod end_times;
mod holes;
mod log_quotas;
mod log_retention;
mod log_search;
pub(crate) mod publish;
mod repair_thread;
mod retention;
pub(crate) mod runtime;
pub(crate) mod shared;
mod slow_disk;
mod sorting;
pub(crate) mod tiering;

pub(crate) use publish::Published;

use crate::cluster::options::ClusterOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::options::log_options::LogOptions;
use crate::read::log_set::LogSet;
use crate::read::positions::{Positions, closed};
use crate::replica::node::log_quotas::LogQuotas;
use crate::replica::node::log_retention::LogRetention;
use crate::replica::node::retention::FetchDelay;
use crate::replica::node::slow_disk::SlowDisk;
use crate::replica::open::RecoveredLog;
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::{Command, Proposal, ProposalQueue, Work};
use crate::replica::raft::{Replica, body_bytes_of};
use crate::replica::repair::scrubber::Scrubber;
use crate::replica::writer::{SyncOnce, Writer};
use crate::store::allocator::{Purpose, RETRY_DELAY};
use crate::store::block_bytes;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Index};
use driver::DrivenNode;
use holes::Holes;
use shared::Shared;
use sorting::Sorting;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tiering::Tiering;
use tiering::payloads::deposed;

/// An idle log proves its tail after this time.
const MARKER_DELAY: Duration = Duration::from_millis(10);

/// A running replica.
pub(crate) struct Node {
    pub(crate) replica: Replica,
    pub(crate) writer: Writer,
    /// The options that it was opened with.
    options: Options,
    /// The options in force: the log's, where it sets them, else its own.
    effective: Options,
    /// The options that are set for the log.
    set: LogOptions,
    cluster: ClusterOptions,
    pub(crate) queue: Arc<ProposalQueue>,
    pub(crate) positions: Arc<Positions>,
    /// The logs of a shared group.
    pub(crate) logs: Arc<LogSet>,
    /// A log of the group has discarded records, or was dropped: a segment may be without records now.
    logs_shrank: bool,
    /// Whether it can be is written in the opening of an object, which is being fetched.
    awaits_opening: bool,
    opening_delay: FetchDelay,
    /// The limits of single logs of the group.
    log_retention: LogRetention,
    log_quotas: LogQuotas,
    quotas_at: Moment,
    quotas_delay: FetchDelay,
    search_delay: FetchDelay,
    pub(crate) published: Arc<Published>,
    /// Proposals that were taken from the queue and are not proposed yet.
    items: VecDeque<Proposal>,
    /// The first of them needs a file that is being prepared.
    awaits_file: bool,
    /// There was no room for a block that records the commit index: [`Self::publish`] retries at every step.
    owes_commit: bool,
    /// Bytes of appends that are proposed and not written, as the queue counts them.
    gathered: usize,
    /// Bytes that are written and not committed, with the last entry and the time of each write.
    uncommitted: VecDeque<(EntryIndex, u64, Moment)>,
    /// The log's first index when it was last published.
    first: Index,
    uncommitted_bytes: u64,
    /// A committed discard whose files are removed once a durable block records this.
    to_drop: Option<(EntryIndex, Index)>,
    /// Records below it are durably known here to be discarded.
    droppable: Index,
    /// A segment has begun since [`Node::drop_behind`] last removed files.
    has_rolled: bool,
    /// When the tail is to be proven.
    prove_at: Option<Moment>,
    retain_at: Moment,
    sync_began: Moment,
    slow_disk: SlowDisk,
    shown: Option<publish::Shown>,
    scrubber: Scrubber,
    tiering: Tiering,
    sorting: Sorting,
    holes: Holes,
    /// The conflict between the log's options and those that the node was opened with.
    misfit: Option<Error>,
    /// The kind of the last published reason why this replica cannot accept every entry.
    shortage: Option<ErrorKind>,
}

/// Positions in the status are at most this old while the node makes steps.
const STATUS_AGE: Duration = Duration::from_millis(20);

impl Node {
    /// The node of a log that was just opened. The only voter of a cluster is leader when this returns.
    ///
    /// # Errors
    /// `Corrupt`: the log contradicts itself. `Io`, `Full`: the first entry of its term could not be written.
    pub(crate) fn new(opened: RecoveredLog, shared: &Shared, seed: u64, now: Moment) -> Result<Self> {
        let Shared { options, queue, view, published, .. } = shared;
        let (options, queue) = (options.clone(), queue.clone());
        let (positions, logs, published) = (view.positions.clone(), view.logs.clone(), published.clone());
        let RecoveredLog { identity: me, store, sequencer, cluster, is_new, .. } = opened;
        let (of_store, of_cluster) = (options.clone(), cluster.clone());
        let scrubber = Scrubber::new(&store, queue.clone(), of_store, of_cluster, now);
        let tiering = Tiering::new(&store, me.log, &options, queue.clone(), published.clone(), seed);
        let sorting =
            Sorting::new(view.runs.clone(), &store, me.log, &options, sequencer.logs().is_shared())?;
        store.allocator.set_file_hook({
            let queue = queue.clone();
            move || queue.push_event(InboxEvent::JobEnded)
        });
        let (writer, first) =
            (Writer::new(store, sequencer.end(), sequencer.committed().raft), positions.first());
        let archive = writer.archive.clone();
        let droppable = sequencer.committed().first;
        let mut replica = Replica::new(me, cluster.clone(), options.clone(), sequencer, archive, seed, now)?;
        if !is_new {
            replica.await_introduction();
        }
        let slow_disk = SlowDisk::new(cluster.slow_disk_sync);
        let mut node = Self {
            replica,
            writer,
            effective: options.clone(),
            set: LogOptions::default(),
            options,
            cluster,
            queue,
            positions,
            logs,
            logs_shrank: true,
            awaits_opening: false,
            opening_delay: FetchDelay::default(),
            search_delay: FetchDelay::default(),
            log_retention: LogRetention::default(),
            log_quotas: LogQuotas::default(),
            quotas_at: now,
            quotas_delay: FetchDelay::default(),
            published,
            items: VecDeque::new(),
            awaits_file: false,
            owes_commit: false,
            gathered: 0,
            uncommitted: VecDeque::new(),
            first,
            uncommitted_bytes: 0,
            to_drop: None,
            droppable,
            has_rolled: false,
            prove_at: None,
            retain_at: now,
            sync_began: now,
            slow_disk,
            shown: None,
            scrubber,
            tiering,
            sorting,
            holes: Holes::new(),
            misfit: None,
            shortage: None,
        };
        node.scrubber.learn(&node.replica);
        if node.replica.membership().is_alone(node.cluster.node) {
            node.replica.campaign(now, &mut node.writer.plan)?;
            while let Some(why) = node.replica.is_held() {
                if let Some(why) = why {
                    return Err(why.clone());
                }
                node.writer.store.allocator.keep_one_ready()?;
                node.step(now, Work::default())?;
            }
            node.finish(now)?;
            while let Some(job) = node.begin_sync(now) {
                job.run()?;
                node.end_sync(now, &job)?;
                node.step(now, Work::default())?;
            }
        }
        node.publish(now)?;
        node.deletion_begins(now);
        Ok(node)
    }

    /// A replica that does not lead always takes appends, to refuse them at once: they must not wait for room that may
    /// never exist.
    fn has_uncommitted_room(&self) -> bool {
        self.uncommitted_bytes < self.cluster.uncommitted_bytes_max as u64 || !self.replica.is_leader()
    }

    /// Carries out the plan, and syncs, if raft's next ready truncates entries. True: it did, and the replica can
    /// continue. Blocks on the disk: this is rare.
    pub(crate) fn settle_before_truncation(&mut self) -> Result<bool> {
        let is_awaited = self.replica.awaits_settling(&self.writer.plan);
        if is_awaited {
            self.writer.settle()?;
        }
        Ok(is_awaited)
    }

    fn resume_settled(&mut self, now: Moment) -> Result<()> {
        while self.settle_before_truncation()? {
            self.replica.resume(now, &mut self.writer.plan)?;
        }
        Ok(())
    }

    /// Whether everything that this replica has accepted is durable in its files: the next block, and the opening of the next segment,
    /// belong where the files end. A plan without steps does not say so: entries that were ordered can wait for room.
    pub(crate) fn is_in_lockstep(&self) -> bool {
        self.writer.is_settled() && self.replica.is_in_lockstep(self.writer.written().end.raft)
    }

    /// Makes a step of the scrubber.
    pub(crate) fn scrub(&mut self, now: Moment) -> Result<()> {
        if self.scrubber.wants_roll() && self.is_in_lockstep() {
            // Damage in the growing segment is repaired once that segment has been sealed.
            let opening = self.replica.sequencer.opening();
            match self.writer.plan.roll(opening, 0, Purpose::Metadata) {
                Ok(()) => {
                    self.replica.sequencer.begins_segment();
                    self.finish(now)?;
                }
                Err(error) => self.scrubber.cannot_roll(&error),
            }
        }
        self.scrubber.step(now, &mut self.replica, &self.published.counters);
        self.send();
        Ok(())
    }

    /// Sends, writes, and publishes.
    fn finish(&mut self, now: Moment) -> Result<()> {
        self.send();
        self.write(now)?;
        debug_assert!(
            self.positions.durable() < self.writer.synced().end.next,
            "a record counts as durable that is not synced"
        );
        self.publish(now)
    }

    fn send(&mut self) {
        for envelope in self.replica.take_outgoing() {
            self.cluster.transport.send(envelope);
        }
        if let Some(failure) = self.replica.take_failure() {
            let failure = self.writer.store.segments.met(failure, None);
            match failure.kind() {
                // The repair logs the damage that it finds, once.
                ErrorKind::Corrupt => tracing::debug!(%failure, "this replica could not read its own log"),
                _ => tracing::error!(%failure, "this replica could not read its own log"),
            }
        }
    }

    /// Proposes what was taken, up to a block's worth at a time: an append that waits for a sync should not wait for
    /// many more bytes than its own.
    fn order(&mut self, now: Moment) -> Result<()> {
        let mut bytes = 0;
        self.awaits_file = false;
        while self.has_uncommitted_room() && bytes <= self.options.block_bytes_max as usize {
            if self.must_await_file() {
                self.awaits_file = true;
                return Ok(());
            }
            match self.items.pop_front() {
                // It refers to payload slices of a term in which this replica led before.
                Some(Proposal::Data(gathered))
                    if gathered.stored.is_some_and(|at| at.slice.term != self.replica.term()) =>
                {
                    let size = gathered.bytes;
                    fail(Proposal::Data(gathered), &deposed());
                    self.queue.account(size, 0);
                }
                Some(Proposal::Data(gathered)) => {
                    let appends = gathered.batches.len() as u64;
                    let (size, records) = (gathered.bytes, u64::from(gathered.records));
                    if bytes > 0 && bytes + size > self.options.block_bytes_max as usize {
                        self.items.push_front(Proposal::Data(gathered));
                        return Ok(());
                    }
                    bytes += size;
                    let (stored, logs) = (gathered.stored, self.awaits_store(&gathered));
                    let proposed = self.replica.propose(gathered, now, &mut self.writer.plan)?;
                    self.has_proposed(stored, proposed, logs);
                    if proposed.is_some() {
                        self.published.counters.appends.fetch_add(appends, Ordering::Relaxed);
                        self.published.counters.records.fetch_add(records, Ordering::Relaxed);
                        self.gathered += size;
                    } else {
                        self.queue.account(size, 0);
                    }
                }
                // A session that is not of the log that the caller has named: it has none of that number.
                Some(Proposal::Command(log, Command::CloseSession { id }, completer))
                    if self.replica.is_leader()
                        && self.replica.sequencer.sessions().log_of(id).is_some_and(|of| of != log) =>
                {
                    completer.answer(Outcome::Placed { first: Index(0) });
                }
                Some(Proposal::Command(_, command, completer)) => {
                    let is_of_queue = command.is_of_queue();
                    let before = self.replica.sequencer.end().raft;
                    self.replica.command(command, Some(completer), now, &mut self.writer.plan)?;
                    self.has_commanded(is_of_queue, before);
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether the next proposal needs a file that is being prepared. This thread must not wait, because it sends
    /// heartbeats.
    fn must_await_file(&self) -> bool {
        let (body, purpose) = match self.items.front() {
            _ if !self.replica.is_leader() => return false, // the proposal is refused
            Some(Proposal::Data(gathered)) => (gathered.bytes, Purpose::Data),
            Some(Proposal::Command(_, command, _)) => {
                (body_bytes_of(command), self.replica.purpose_of(command))
            }
            None => return false,
        };
        self.writer.plan.awaits_file(body, purpose)
    }

    /// Without threads, the results of puts of payload slices arrive so much later from now on.
    #[cfg(feature = "testing")]
    pub(crate) fn puts_take(&mut self, time: std::ops::Range<std::time::Duration>) {
        self.tiering.payloads.puts_take(time);
    }

    /// Whether appends wait for a file that is being prepared.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn awaits_file(&self) -> bool {
        self.awaits_file
    }

    /// Writes the plan, up to a step that needs a sync.
    pub(crate) fn write(&mut self, now: Moment) -> Result<()> {
        if self.writer.plan.is_empty() {
            self.queue.account(std::mem::take(&mut self.gathered), 0); // only retries within sessions
            return Ok(());
        }
        self.advance_first_index();
        let done = self.writer.write()?;
        let end = self.writer.written().end;
        let counters = &self.published.counters;
        counters.blocks.fetch_add(done.blocks, Ordering::Relaxed);
        counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        counters.rolls.fetch_add(done.rolls, Ordering::Relaxed);
        self.has_rolled |= done.rolls > 0;
        self.replica.written(end.raft);
        self.positions.written(end.next.previous());
        // A truncation takes back records that were durable.
        self.positions.durable_to(self.positions.durable().min(self.writer.synced().end.next.previous()));
        self.queue.account(std::mem::take(&mut self.gathered), done.bytes);
        counters.truncated.fetch_add(self.replica.take_truncated_records(), Ordering::Relaxed);
        if self.replica.take_log_changed() {
            self.queue.recount(self.writer.store.segments.bytes_from(self.positions.first()));
        }
        while let Some((_, bytes, _)) = self.uncommitted.pop_back_if(|(raft, ..)| *raft > end.raft) {
            self.uncommitted_bytes -= bytes; // truncated because of a conflict
        }
        if done.bytes > 0 {
            self.uncommitted.push_back((end.raft, done.bytes, now));
            self.uncommitted_bytes += done.bytes;
        }
        counters.wrote(&done.sizes);
        counters.uncommitted_bytes.store(self.uncommitted_bytes, Ordering::Relaxed);
        for piece in done.pieces {
            self.queue.reuse(piece);
        }
        self.prove_at = self.writer.store.is_unproven().then(|| now.plus(MARKER_DELAY));
        Ok(())
    }

    /// Advances the first index over records that a snapshot skips. A snapshot takes effect in this replica before it
    /// is written, and the write removes all older segments. By then a reader of their records has to get `Discarded`.
    /// Segments that a command discards stay until the discard is published.
    fn advance_first_index(&mut self) {
        let sequencer = &self.replica.sequencer;
        self.positions.discarded(sequencer.committed().first);
        if sequencer.has_replaced_logs() && self.logs.discarded(sequencer.committed().logs.iter()) {
            self.logs_shrank = true;
            self.holes.shrank();
        }
    }

    /// A leader whose disk is slow transfers leadership.
    fn mind_the_disk(&mut self, now: Moment) {
        if self.replica.is_leader() && self.slow_disk.is_reason_to_transfer(now) {
            self.replica.transfer_from_slow_disk();
            self.published.has_slow_disk.store(true, Ordering::Relaxed);
        }
    }

    /// Plans the markers that prove the tail, once it was idle for a while.
    fn prove(&mut self, now: Moment) -> Result<()> {
        if self.prove_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        // Not while a write or sync is in progress: later blocks prove the earlier ones. Nor while entries wait for room that
        // would have to be written before them.
        let is_staged = self.replica.has_staged();
        if !self.writer.is_settled() || is_staged {
            self.prove_at = Some(now.plus(if is_staged { RETRY_DELAY } else { MARKER_DELAY }));
            return Ok(());
        }
        self.prove_at = None;
        let commit = self.replica.sequencer.committed().raft;
        if !self.is_alone()
            && commit > self.writer.written().commit
            && self.writer.plan.fits(block_bytes(HARD_STATE_BYTES) + HARD_STATE_BYTES)
        {
            // The recorded commit index lets a restarted replica serve these records at once. This leaves the room for
            // the commit record of a discard.
            let state = self.replica.sequencer.hard_state();
            let block = self.replica.sequencer.hard_state_block(state.term, state.vote);
            self.writer.plan.push(block);
            self.writer.plan.says_committed(commit);
            self.finish(now)?;
            return Ok(()); // the markers of this block are planned once the tail is idle again
        }
        if self.repeat_kept() {
            return Ok(());
        }
        // A block that repeats another one needs no proof, and there may be no room for it.
        if self.writer.store.is_unproven() && self.writer.store.has_space_for(self.writer.store.proof()) {
            for body in self.writer.store.proof() {
                let marker = self.replica.sequencer.marker(body);
                self.writer.plan.push(marker);
            }
        }
        Ok(())
    }
}

impl DrivenNode for Node {
    type Job = Arc<SyncOnce>;

    fn run(job: &Arc<SyncOnce>) -> Result<()> {
        job.run()
    }

    fn queue(&self) -> &Arc<ProposalQueue> {
        &self.queue
    }

    fn is_leader(&self) -> bool {
        self.replica.is_leader()
    }

    fn is_alone(&self) -> bool {
        self.replica.is_alone()
    }

    fn accepts_proposals(&self) -> bool {
        let has_room = self.tiering.payloads.has_room(&self.options);
        // Those that wait for the object store were committed before, and wait nowhere else.
        let waits_for_store =
            self.refers() && self.replica.waiting_appends() >= self.options.queue_appends_max;
        self.items.is_empty() && has_room && !waits_for_store && self.has_uncommitted_room()
    }

    fn committed(&self) -> EntryIndex {
        self.replica.committed()
    }

    fn is_busy(&self, now: Moment) -> bool {
        !self.writer.is_settled() || self.awaits_commit(now)
    }

    fn awaits_commit(&self, now: Moment) -> bool {
        let holds = !self.items.is_empty() || !self.tiering.payloads.is_empty();
        let waits = holds || self.replica.has_waiting() || self.queue.has_items();
        waits && self.replica.can_commit(now)
    }

    fn step(&mut self, now: Moment, work: Work) -> Result<()> {
        self.writer.store.allocator.set_time(now);
        if work.closed {
            self.tiering.payloads.hurry();
        }
        for event in work.events {
            match event {
                InboxEvent::Message(envelope) => {
                    self.replica.receive(envelope, now, &mut self.writer.plan)?;
                    self.settle_before_truncation()?;
                    self.advance_first_index(); // the next message can cause a write
                }
                InboxEvent::AdminRequest(request, wait_limit, completer) => {
                    self.replica.handle_request(
                        request,
                        wait_limit,
                        completer,
                        now,
                        &mut self.writer.plan,
                    )?;
                }
                InboxEvent::JobEnded => {}
            }
        }
        self.replica.advance(now, &mut self.writer.plan)?;
        self.resume_settled(now)?;
        self.refer(work.items, now)?;
        self.order(now)?;
        self.prove(now)?;
        self.finish(now)?;
        self.retain(now)?;
        self.look_up_quotas(now);
        self.tier(now)?;
        self.slice(now)?;
        self.sort_segments(now);
        self.make_holes(now);
        self.scrub(now)
    }

    fn begin_sync(&mut self, now: Moment) -> Option<Arc<SyncOnce>> {
        self.sync_began = now;
        let sync = self.writer.begin_sync()?;
        self.published.counters.syncing(true);
        Some(sync)
    }

    fn end_sync(&mut self, now: Moment, job: &Arc<SyncOnce>) -> Result<()> {
        let took = now.since(self.sync_began);
        self.published.counters.syncing(false);
        self.published.counters.synced(took);
        self.slow_disk.synced(took);
        self.writer.end_sync(job);
        let synced = self.writer.synced();
        self.positions.durable_to(synced.end.next.previous());
        self.replica.persisted(synced.ready, self.known_commit(), now, &mut self.writer.plan)?;
        self.resume_settled(now)?;
        self.drop_files();
        self.drop_behind();
        self.finish(now)?;
        self.mind_the_disk(now);
        Ok(())
    }

    fn deadline(&self, now: Moment) -> Option<Moment> {
        let can_order = !self.items.is_empty() && !self.awaits_file && self.has_uncommitted_room();
        if can_order || self.writer.can_write() {
            return Some(now);
        }
        // Only a leader can discard, and not before the files of the last discard are removed.
        let retains = self.replica.is_leader() && self.to_drop.is_none();
        let retain = self.retention_due().filter(|_| retains).map(|due| {
            let left = Duration::from_millis(due.0.saturating_sub(self.replica.time(now).0));
            now.plus(left).max(self.retain_at)
        });
        let (scrub, tier) = (self.scrubber.deadline(now), self.tiering_due(now));
        let (slices, payloads) = (self.slices_due(now), self.payloads_due());
        [
            self.replica.deadline(),
            self.prove_at,
            retain,
            scrub,
            tier,
            slices,
            payloads,
            self.quotas_due(now),
            self.sorting_due(now),
            self.holes_due(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn prove_now(&mut self, now: Moment) {
        if self.writer.store.is_unproven() {
            self.prove_at = Some(now);
        }
    }

    fn abdicate(&mut self) {
        self.replica.abdicate();
        self.send();
    }

    fn end(&mut self) {
        self.show_end();
        let what = "outcome unknown: the log was closed before a majority was known to have the append";
        self.replica.fail_all(&Error::new(ErrorKind::Unavailable, what));
        self.tiering.payloads.fail_all(&closed());
        for item in self.items.drain(..) {
            fail(item, &closed());
        }
    }

    fn poison(&mut self, cause: &Error) {
        tracing::error!(%cause, "the log is poisoned: it takes no more appends until it is opened again");
        let error = self.published.poison.get_or_init(|| poisoned(cause)).clone();
        self.show_end();
        self.queue.refuse(error);
        let unknown = unknown(cause);
        self.replica.fail_all(&unknown);
        self.tiering.payloads.fail_all(&unknown);
        for item in self.items.drain(..) {
            fail(item, &unknown);
        }
    }

    fn settle(&mut self) {
        self.writer.store.allocator.settle();
    }

    fn dismiss(&mut self) {
        let why = self.published.poison.get().cloned().unwrap_or_else(closed);
        self.replica.fail_requests(&why);
        self.logs.close(&why);
        self.positions.close(why);
    }
}

/// Bytes of one append that are not counted when it is admitted: its block's header and padding, and the markers that
/// prove the tail.
const UNCOUNTED_BYTES: u64 = 1024;

/// The capacity as the queue counts it.
pub(crate) fn counted_capacity(options: &Options) -> Option<u64> {
    options.capacity_bytes.map(|bytes| bytes.saturating_sub(UNCOUNTED_BYTES))
}

/// The error of every call after the log is poisoned.
pub(crate) fn poisoned(cause: &Error) -> Error {
    let what = format!("the log takes no more appends: {cause}; close it, fix the cause and open it again");
    Error::with_source(ErrorKind::Poisoned, what, cause)
}

/// Fails a proposal that was taken and not written.
pub(crate) fn fail(item: Proposal, error: &Error) {
    let completer: Completer = match item {
        Proposal::Data(gathered) => gathered.into_pieces(None).1,
        Proposal::Command(_, _, completer) => completer,
    };
    completer.answer(Outcome::Failed(error.clone()));
}

/// The error of appends whose write failed: it is not known whether they will be in the log after a restart.
pub(crate) fn unknown(cause: &Error) -> Error {
    let what =
        format!("outcome unknown: {cause}; the append may or may not be in the log after it is opened again");
    Error::with_source(ErrorKind::Poisoned, what, cause)
}
