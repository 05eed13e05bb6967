//! Log: the handle that a program holds. It passes appends, reads and commands to the parts that process them.
//!
//! ```text
//! Log ── submit ──> ProposalQueue ─> writer thread ──> store ──> disk
//!  │                                      │
//!  └─ reader ──> LogView (segments, positions) <─ publishes
//! ```
//!
//! Invariants:
//! - one open log per directory, guaranteed by a lock that all threads hold until they end;
//! - after a `fork` the handle refuses calls in the child, because its threads are in the parent.

mod damage;
mod log_options;
mod named;
pub(crate) mod objects;
mod replica;
pub(crate) mod segments;

use crate::api::payload::{Content, Payload};
use crate::api::status::Status;
use crate::cluster::membership::ALONE;
use crate::cluster::options::{ReplicaStatus, Role};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::options::log_options::{LogOption, LogOptions};
use crate::read::patience::Patience;
use crate::read::reader::Reader;
use crate::read::records::OwnedRecord;
use crate::read::view::{LogView, Start};
use crate::record::batch::{Batch, BatchBuilder, Stamp};
use crate::replica::node::publish::StoreFailure;
use crate::replica::node::runtime::Runtime;
use crate::replica::node::shared::Shared;
use crate::replica::open::disk_at;
use crate::replica::queue::proposals::{Command, LogCommand, WaitLimit};
use crate::replica::state::sequencer::Owner;
use crate::sync::completion::Ticket;
use crate::sync::threads::is_writer_of;
use crate::types::{DirectoryId, EntryIndex, Index, LogId, NodeId, SessionId, Timestamp};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A durable log in a directory. Cheap to clone, `Send + Sync`: clones share its threads. The log is closed when
/// [`Log::close`] is called or when the last clone is dropped.
///
/// After a `fork` the log belongs to the parent alone. In the child every call that appends, reads or sends a command
/// fails with `Forked`. Objects that were made before the fork are not guarded: the child must not wait for a
/// [`Ticket`] (it would wait for ever) nor use a [`Reader`] (the parent reuses the files that it reads). Dropping the
/// handle in the child is safe.
///
/// ```
/// use chiplog::{Log, Options, Start};
///
/// let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::default())?;
/// let index = log.append(b"the first record")?; // durable when this returns
/// let mut reader = log.reader(Start::Index(index))?;
/// while let Some(record) = reader.next_record()? {
///     println!("{}: {} bytes", record.index, record.data.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Log {
    inner: Arc<Runtime>,
    /// The log that is read and appended to: the directory's own, or one of a shared group.
    view: LogView,
    id: LogId,
}

impl Log {
    /// Opens the log in `dir`, or creates one there if `options.create` is true. Blocks while recovery reads the last
    /// segment.
    ///
    /// # Errors
    /// `Locked`: another handle or process has it open. `NotFound`: there is no log and `create` is false.
    /// `InvalidArgument`: an option is out of bounds, or the directory holds many named logs. `Corrupt`: names file
    /// and offset; the log's files were not changed. `Unsupported`: the log has a newer format. `Full`: there is no space for the
    /// segments that are prepared ahead. `Io`.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        options.check()?;
        Self::open_on(disk_at(dir.as_ref(), options.create)?, options)
    }

    /// Opens a log on another kind of disk, such as the simulated one.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        options.check()?;
        Ok(Self::of(Runtime::open(disk, options)?))
    }

    /// The handle of a log that is running.
    pub(crate) fn of(runtime: Runtime) -> Self {
        let (view, id) = (runtime.view.clone(), runtime.identity.log);
        Self { inner: Arc::new(runtime), view, id }
    }

    /// The handle of a copy that is running. See [`Patience`].
    pub(crate) fn of_copy(runtime: Runtime, patience: Patience) -> Self {
        let mut log = Self::of(runtime);
        log.view.patience = patience;
        log
    }

    /// Appends a record or a batch, and blocks until it is durable; in a replica of a cluster, until it is durable on a
    /// majority of the voters. Of a batch all of it is in the log, or nothing. Returns the index of the record, or the
    /// indexes of the batch.
    ///
    /// # Errors
    /// Those of [`Log::submit`] and of [`Ticket::wait`]. `InvalidArgument`: called in a callback on the log's own
    /// thread, which would wait for itself; nothing was appended. The same holds for every blocking call of this
    /// type.
    pub fn append<P: Payload>(&self, payload: P) -> Result<P::Output> {
        self.may_wait()?;
        self.submit(payload)?.wait()
    }

    /// Submits a record or a batch and returns at once with a ticket for the outcome. Makes one copy of the bytes; a
    /// large batch is not copied. Blocks only while the queue is full or the log has used up its `append_bytes_per_second`, for up
    /// to `options.queue_timeout`; in a callback of this log it never blocks.
    ///
    /// # Errors
    /// `TooLarge`, `Full`, `Busy`, `Poisoned`, `Closed`, `Forked`: the payload was not accepted. If this replica is
    /// not the leader, the ticket returns that error. For a batch with a session the ticket can return
    /// `SessionExpired`, `SequenceGap` or `SequenceForgotten`.
    pub fn submit<P: Payload>(&self, payload: P) -> Result<Ticket<P::Output>> {
        self.push(payload, self.wait_limit())
    }

    /// As [`Log::submit`], but never blocks.
    ///
    /// # Errors
    /// As [`Log::submit`]; `Busy` when the queue is full or the log has used up its rate.
    pub fn try_submit<P: Payload>(&self, payload: P) -> Result<Ticket<P::Output>> {
        self.push(payload, WaitLimit::None)
    }

    /// As [`Log::submit`], but waits for room in the queue without blocking the thread, and without a time-out. For
    /// async code, which has its own timers. A record is copied once more than by `submit`. If the future is dropped
    /// before it is ready, nothing was submitted.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// # fn block_on<F: Future>(f: F) -> F::Output {
    /// #     let mut f = std::pin::pin!(f);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop { if let std::task::Poll::Ready(r) = f.as_mut().poll(&mut context) { return r } }
    /// # }
    /// let index = block_on(async { log.submit_when_room(b"x").await?.await })?;
    /// assert_eq!(index.get(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Log::submit`], but `Busy` only if the log has used up its
    /// [`AppendBytesPerSecond`](LogOption::AppendBytesPerSecond): the message says when to try again.
    pub async fn submit_when_room<P: Payload>(&self, payload: P) -> Result<Ticket<P::Output>> {
        let built;
        let batch = match payload.content() {
            Content::Batch(batch) => batch,
            Content::Record(record) => {
                self.check_record(record)?;
                built = BatchBuilder::new().push(record)?.build()?;
                &built
            }
        };
        self.check_batch(batch)?;
        loop {
            match self.inner.queue.push_batch_or_wait(self.view.log, batch)? {
                Ok(ticket) => return Ok(ticket.returning()),
                Err(room) => drop(room.await?),
            }
        }
    }

    /// Checks whether the log takes appends now, and the capacity has room for one of `bytes` bytes in addition to those
    /// that wait in the queue. A named log has the capacity of its group, and if its options set
    /// [`LogOption::CapacityBytes`], it must not be full; neither `bytes` nor what waits counts for that.
    ///
    /// # Errors
    /// `Full`: it has no room. `NotFound`, `Sealed`: a named log that was deleted or sealed, as far as is committed here.
    /// `Poisoned`, `Closed`.
    pub fn check_room(&self, bytes: usize) -> Result<()> {
        self.check_takes_appends()?;
        self.inner.queue.check_room(self.view.log, bytes)
    }

    pub(crate) fn wait_limit(&self) -> WaitLimit {
        if self.may_wait().is_ok() { WaitLimit::For(self.queue_timeout()) } else { WaitLimit::None }
    }

    /// Checks that this thread may wait for this log: the log's own writer thread may not.
    ///
    /// # Errors
    /// `InvalidArgument`: this is the log's writer thread.
    pub(crate) fn may_wait(&self) -> Result<()> {
        if !is_writer_of(&self.inner.queue) {
            return Ok(());
        }
        let what =
            "blocking call in a callback, on the log's own thread: use submit and wait on another thread";
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    fn push<P: Payload>(&self, payload: P, wait_limit: WaitLimit) -> Result<Ticket<P::Output>> {
        let pushed = match payload.content() {
            Content::Record(record) => self.push_record(record, Stamp::default(), wait_limit),
            Content::Batch(batch) => self.push_batch(batch, wait_limit),
        };
        pushed.map(Ticket::returning)
    }

    pub(crate) fn push_record(&self, record: &[u8], stamp: Stamp, wait_limit: WaitLimit) -> Result<Ticket> {
        self.check_record(record)?;
        self.inner.queue.push_record(self.view.log, record, stamp, wait_limit)
    }

    pub(crate) fn push_batch(&self, batch: &Batch, wait_limit: WaitLimit) -> Result<Ticket> {
        self.check_batch(batch)?;
        self.inner.queue.push_batch(self.view.log, batch, wait_limit)
    }

    fn check_record(&self, record: &[u8]) -> Result<()> {
        self.check_fork()?;
        self.view.check_log()?;
        self.check_size("record", record.len(), self.record_bytes_max(), "record_bytes_max")
    }

    fn check_batch(&self, batch: &Batch) -> Result<()> {
        self.check_fork()?;
        self.view.check_log()?;
        let options = &self.inner.options;
        self.check_size("batch", batch.as_bytes().len(), options.batch_bytes_max, "batch_bytes_max")?;
        self.check_size(
            "unpacked batch",
            batch.unpacked_bytes(),
            options.batch_bytes_max,
            "batch_bytes_max",
        )?;
        let max = self.record_bytes_max();
        if batch.records_within(max)? {
            return Ok(());
        }
        let what =
            format!("a batch with a record of more than {max} bytes; option record_bytes_max allows {max}");
        Err(Error::new(ErrorKind::TooLarge, what))
    }

    fn check_size(&self, what: &str, bytes: usize, max: u32, option: &str) -> Result<()> {
        if bytes <= max as usize {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!("a {what} of {bytes} bytes; option {option} allows {max}"),
        ))
    }

    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.inner.is_child() {
            let what = "this handle was made before fork(); open the log again in the child once the parent has closed it";
            return Err(Error::new(ErrorKind::Forked, what));
        }
        Ok(())
    }

    /// Returns a reader of committed records, from `start` on. It never blocks appends, and appends never block it.
    ///
    /// # Errors
    /// `Discarded` or `OutOfRange`: [`Start::Index`] is beyond either end of the log. `Unavailable` while the log is
    /// being repaired; `Forked`, `Io`, `Corrupt`.
    pub fn reader(&self, start: Start) -> Result<Reader> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        self.view.reader(start)
    }

    /// As [`Self::reader`], for a caller that waits itself: where a copy's reader waits until the copy knows which object has a record,
    /// this one fails with the time after which to try again.
    #[doc(hidden)]
    pub fn reader_that_fails_at_once(&self, start: Start) -> Result<Reader> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        LogView { patience: Patience::default(), ..self.view.clone() }.reader(start)
    }

    /// Returns a feed of this log's committed entries, for a log that follows it: see [`FollowerLog`](crate::FollowerLog).
    /// Any replica can be the source, and so can a log that is a follower itself. A feed costs as much as a reader
    /// and does not block appends.
    ///
    /// The copy of a named log has the records of this log alone, with their indexes and times, as a log on its own. It
    /// has no sessions, and none of the options that are set for the log. Records that are discarded here are discarded in
    /// the copy too. A copy of a whole group is fed by the handle of [`Logs::groups`](crate::Logs::groups).
    ///
    /// ```
    /// use chiplog::follower::{FollowFrom, FollowMessage};
    /// use chiplog::{FollowerLog, Index, Logs, LogsOptions, Options};
    /// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
    /// let logs = Logs::open(a.path(), LogsOptions::default())?;
    /// let (orders, users) = (logs.create("orders")?, logs.create("users")?);
    /// users.append(b"isaac")?;
    /// orders.append(b"3 lenses")?;
    /// let Some(FollowMessage::State(state)) = orders.follow(FollowFrom::First)?.next(0)? else { panic!() };
    /// let copy = FollowerLog::create(b.path(), Options::default(), &state)?;
    /// let mut feed = orders.follow(copy.resume_point()?)?;
    /// while let Some(fed) = feed.next(1 << 20)? {
    ///     copy.apply(fed)?;
    /// }
    /// assert_eq!(copy.log().read(Index(1))?.data, "3 lenses");
    /// assert_eq!((copy.log().log_id(), copy.log().last_index()), (orders.log_id(), Index(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Diverged`: the follower belongs to another log, or to another kind of copy: it cannot continue here. `Discarded` or
    /// `OutOfRange`: [`FollowFrom::Index`] is beyond either end of the log. `Unsupported`: a named log of a group that is
    /// itself a copy, where the log's id is not known. `NotFound`: the named log was dropped. `Unavailable` while the log
    /// is being repaired; `Forked`.
    pub fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        self.check_fork()?;
        let Shared { published, view, options, identity, .. } = &**self.inner;
        published.check_held()?;
        let me = match &options.cluster {
            _ if identity.follows => Owner::Follower,
            Some(cluster) => Owner::Node(cluster.node),
            None => Owner::Node(ALONE),
        };
        let is_one_log = self.is_named()
            || matches!(from, FollowFrom::AfterRecord { .. })
            || published.of_one_log.load(Ordering::Relaxed);
        if !is_one_log {
            return FollowSource::new(view.clone(), me, identity.log, options.clone(), from);
        }
        if self.is_named() && self.id == identity.log {
            let what = "a log of a copied group cannot be followed alone, because the copy does not have the log's id: follow \
                        it at a server, or follow the whole group";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        FollowSource::of_one_log(self.view.clone(), published.clone(), me, self.id, from)
    }

    /// Returns one committed record, by its index.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`, `Corrupt`, `Io`, `Forked`. `Unavailable` while the log is being repaired.
    pub fn read(&self, index: Index) -> Result<OwnedRecord> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        self.view.read(index)
    }

    /// Discards all records below `first`, durably; their space is reused. Blocks until that is committed. `first`
    /// can be anywhere in the log; at or below the log's first index nothing happens. If `first` is beyond the end,
    /// the log is empty afterwards and continues at `first`. A reader that holds a discarded segment keeps it
    /// readable.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`, `Forked`. `Full`: not even the reserve has room. `Busy`: 65,536 commands already wait.
    /// `InvalidArgument`: `first` is out of bounds. `Sealed`: a named log is sealed, and `first` is behind the record after its last one. In a replica also `NotLeader`, `Removed`: nothing was discarded;
    /// `Unavailable`: this replica lost leadership meanwhile, and the discard may or may not happen. It is safe to
    /// retry.
    pub fn discard(&self, first: Index) -> Result<()> {
        self.may_wait()?;
        self.submit_discard(first)?.wait().map(drop)
    }

    /// As [`Log::discard`], but returns at once. The ticket's index is at or below the log's first index.
    ///
    /// # Errors
    /// As [`Log::discard`].
    pub fn submit_discard(&self, first: Index) -> Result<Ticket<Index>> {
        if first.0 >= INDEX_MAX {
            let what = format!("index {first} is out of bounds; the largest is {}", INDEX_MAX - 1);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let log = self.view.log;
        if log.is_none() {
            self.check_fork()?;
            self.view.check_log()?;
            self.check_keeps_all("discard records of it")?;
            return self.submit_command(Command::Discard { first });
        }
        self.submit_command(Command::Log(LogCommand::Discard { log, first }))
    }

    pub(crate) fn submit_command(&self, command: Command) -> Result<Ticket<Index>> {
        self.check_fork()?;
        let log = match command {
            Command::Log(change) => change.log(),
            Command::OpenAfter { log, .. } | Command::PassOver { log } => log,
            _ => self.view.log,
        };
        self.inner.queue.push_command(log, command).map(Ticket::returning)
    }

    pub(crate) fn command(&self, command: Command) -> Result<u64> {
        self.may_wait()?;
        self.submit_command(command)?.wait().map(Index::get)
    }

    /// Opens an exactly-once session durably and returns its id.
    pub(crate) fn new_session(&self) -> Result<SessionId> {
        self.view.check_log()?;
        let opened_with =
            || u64::try_from(self.inner.options.session_idle_max.as_millis()).unwrap_or(u64::MAX);
        let of = |options: LogOptions| options.get(LogOption::SessionIdleMax);
        let idle_max_ms =
            of(self.log_options()).or_else(|| of(self.group_options())).unwrap_or_else(opened_with);
        Ok(SessionId(self.command(Command::OpenSession { log: self.view.log, idle_max_ms })?))
    }

    pub(crate) fn close_session(&self, id: SessionId) -> Result<()> {
        self.command(Command::CloseSession { id }).map(drop)
    }

    pub(crate) fn queue_timeout(&self) -> Duration {
        self.inner.options.queue_timeout
    }

    /// How many of a session's latest batches keep their indexes in the log: the option that is set for the log, or
    /// else the one that it was opened with. Never blocks.
    pub fn session_window(&self) -> u16 {
        let set = self.group_options().get(LogOption::SessionWindow);
        set.and_then(|window| u16::try_from(window).ok()).unwrap_or(self.inner.options.session_window)
    }

    /// The largest record that is accepted, in bytes: the option that is set for the log, or else the one that it was
    /// opened with. Of a named log the lower one of its own and its group's. Never blocks.
    pub fn record_bytes_max(&self) -> u32 {
        let max = self.inner.published.record_bytes_max().unwrap_or(self.inner.options.record_bytes_max);
        self.view.logs.record_bytes_max(self.view.log).map_or(max, |own| own.min(max))
    }

    /// The options that the log was opened with. Options that are set for the log override some of them:
    /// [`Log::log_options`].
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The capacity. A copy that follows from outside has its own, whatever is set for the log.
    fn capacity_bytes(&self) -> Option<u64> {
        let set = self.group_options().get(LogOption::CapacityBytes).filter(|_| !self.inner.identity.follows);
        set.map_or(self.inner.options.capacity_bytes, |set| Some(set).filter(|bytes| *bytes < u64::MAX))
    }

    /// The log's current state: identity, positions, size, and this replica's part in its cluster. Of a named log, size,
    /// sessions, options and cluster are those of its group. Leader, members
    /// and term are those of the replica's last step; `peers` is up to 20 ms old. After the log was closed or poisoned
    /// it is the last state, without a leader. Never blocks.
    pub fn status(&self) -> Status {
        let Shared { published, queue, identity, .. } = &**self.inner;
        let view = &self.view;
        let (first_index, last_index) = view.positions.range();
        Status {
            log_id: self.id,
            directory_id: identity.directory,
            follows: identity.follows,
            first_index,
            last_index,
            durable_index: view.positions.durable(),
            bytes_used: queue.used(),
            bytes_capacity: self.capacity_bytes(),
            segments: view.segments.len() as u64,
            sessions: published.sessions.load(Ordering::Relaxed),
            last_timestamp: Timestamp(published.last_timestamp.load(Ordering::Relaxed)),
            replica: self.replica(Clone::clone),
        }
    }

    /// The log's permanent id, the same on every replica. Never blocks.
    pub fn log_id(&self) -> LogId {
        self.id
    }

    /// The id of this directory, one copy of the log. Never blocks.
    pub fn directory_id(&self) -> DirectoryId {
        self.inner.identity.directory
    }

    /// The first record that is not discarded; in an empty log, the index of the next append. Never blocks.
    pub fn first_index(&self) -> Index {
        *self.range().start()
    }

    /// The first record in this replica's files; in an empty log, the index of the next append. Those before it, from
    /// [`Log::first_index`] on, are in the object store ([`Options::object_store`]): reads fetch them from there. Blocks for the disk if
    /// the log is one of several named ones.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// log.append(b"x")?;
    /// assert_eq!(log.first_local_index()?, log.first_index()); // without an object store all is here
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the oldest file cannot be read.
    pub fn first_local_index(&self) -> Result<Index> {
        self.view.first_in_files()
    }

    /// The last committed record that can be read here; in an empty log `first_index - 1`. Never blocks.
    pub fn last_index(&self) -> Index {
        *self.range().end()
    }

    /// The indexes from the first record to the last, of one moment; empty if the log is. Never blocks.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// assert!(log.range().is_empty());
    /// let index = log.append(b"x")?;
    /// assert!(log.range().contains(&index));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self) -> RangeInclusive<Index> {
        let (first, last) = self.view.positions.range();
        first..=last
    }

    /// The last record that is durable on this node. Never blocks.
    pub fn durable_index(&self) -> Index {
        self.view.positions.durable()
    }

    /// This replica's role in its cluster, as of its last step. A log on its own leads itself. Never blocks.
    pub fn role(&self) -> Role {
        self.replica(|replica| replica.role)
    }

    /// The leader, if it is known and sent a message within the last two election time-outs. Never blocks.
    pub fn leader(&self) -> Option<NodeId> {
        self.replica(|replica| replica.leader)
    }

    /// Reads a part of the replica's status, without a copy of the rest.
    fn replica<T>(&self, part: impl FnOnce(&ReplicaStatus) -> T) -> T {
        match self.inner.published.status(part) {
            Some(part) => part,
            None => unreachable!("a node shows its status before its log is handed out"),
        }
    }

    /// Counters of the log since it was opened, and the appends that wait in it now. Holds the queue's lock for a
    /// moment.
    pub fn metrics(&self) -> Metrics {
        let Shared { view, published, queue, options, .. } = &**self.inner;
        let metrics = published.counters.snapshot();
        let (queue_appends, queue_bytes, taken_bytes) = queue.waiting();
        let objects = view.segments.objects();
        let (fetched_bytes, cached_bytes) = objects.cache().map_or((0, 0), |cache| cache.figures());
        let (filled_bytes, fill_failures) = objects.cache().map_or((0, 0), |cache| cache.kept_figures());
        // A copy of one log has no objects of its own.
        let is_of_one_log = published.of_one_log.load(Ordering::Relaxed);
        let counts = objects.cache().filter(|_| !is_of_one_log);
        let unstored_bytes = counts.map_or(0, |_| view.segments.bytes_behind(objects.upto()));
        let upto = objects.upto().max(EntryIndex(published.counters.sliced_upto.load(Ordering::Relaxed)));
        let slices = options.slice_interval.and(options.vault.as_ref());
        let unsliced_bytes = slices.map_or(0, |_| view.segments.bytes_behind(upto));
        Metrics {
            fetched_bytes,
            cached_bytes,
            filled_bytes,
            fill_failures,
            unstored_bytes,
            unsliced_bytes,
            stored_index: objects.last_record().get(),
            sliced_index: metrics.sliced_index.max(objects.last_record().get()),
            damaged: metrics.damaged + view.segments.damage().counted(),
            queue_appends: queue_appends as u64,
            queue_bytes: queue_bytes as u64,
            taken_bytes: taken_bytes as u64,
            ..metrics
        }
    }

    /// Whether the object store alone is known to have all records up to this one. With the durability class `object` an append is
    /// answered then. It is answered without that 10 s after it was committed, at once while slices of entries are not stored for
    /// longer, if another leader has committed it, and after the class was switched off. See `Options::payload_slices`. False also if it is
    /// not known: after a restart, and after a change of leader, until slices were looked for; of a named log also of records that this
    /// replica has not proposed itself with the class on. It stays true as long as the same replica leads.
    ///
    /// ```
    /// use chiplog::{Log, Options};
    /// # let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    /// let index = log.append(b"record")?;
    /// assert!(!log.is_in_store(index)); // it has no object store
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_store(&self, last: Index) -> bool {
        if !self.view.log.is_none() {
            return self.view.logs.is_stored(self.view.log, last);
        }
        let Shared { view, published, .. } = &**self.inner;
        let counters = &published.counters;
        let whole = counters.in_store_index.load(Ordering::Acquire);
        let sliced = counters.sliced_index.load(Ordering::Acquire);
        last.get() <= whole.max(sliced).max(view.segments.objects().last_record().get())
    }

    /// The error that poisoned the log, if a write or a sync has failed: it accepts no more appends.
    pub fn poison_cause(&self) -> Option<Error> {
        self.inner.published.poison.get().cloned()
    }

    /// Why this replica cannot accept entries that the leader sends. `Full`, `Io`: there is no room on its disk or in
    /// its files. `TooLarge`: `segment_bytes` is too small for an entry. `InvalidArgument`: its options conflict with
    /// those that are set for the log. While this lasts, the replica does not store those entries and its readers get
    /// no new records. `None`: it has no shortage, or the log is not a replica that follows a leader.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// assert!(log.shortage_cause().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shortage_cause(&self) -> Option<Error> {
        self.inner.published.shortage()
    }

    /// Why this replica cannot store objects in its object store, and since when: requests fail, or the store is not the one that has the
    /// log's objects, such as another bucket, or a directory that is not mounted. Of a named log: its group. `None`: its last attempt
    /// succeeded, or was made long ago.
    #[doc(hidden)]
    pub fn store_failure(&self) -> Option<StoreFailure> {
        self.inner.published.store_failure(self.inner.options.clock.now())
    }

    /// The log's directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Closes the log for all clones. Appends that were submitted are still written, the tail is proven, the threads
    /// end and the lock is released. The leader of a cluster still commits those appends while a majority responds.
    /// It gives up when no majority responded for three heartbeats, or when nothing was committed for two election
    /// time-outs. Then appends that raft has ordered fail with `Unavailable`, and the others with `Closed`.
    ///
    /// Blocks until all this is done, except in a callback on a thread of this or another log: there it happens later, for
    /// this log after the callback. Readers keep working. A second call only waits for the first.
    ///
    /// # Errors
    /// `Poisoned`: a write or a sync had failed; some appends have an unknown outcome. `Forked`. `InvalidArgument`: this
    /// is one of many named logs, which are closed together: see [`Logs::close`](crate::Logs::close).
    pub fn close(&self) -> Result<()> {
        self.check_fork()?;
        if !self.view.log.is_none() {
            let what = "a named log is closed together with the others: use `Logs::close`";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        self.inner.close();
        self.poison_cause().map_or(Ok(()), Err)
    }
}

/// Every index is below this, so that adding to one never overflows.
const INDEX_MAX: u64 = 1 << 62;

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.inner.path).field("status", &self.status()).finish()
    }
}
