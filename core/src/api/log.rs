//! Log: the handle a program holds. Opens a directory, starts the writer and the helper thread, and passes
//! appends, reads and commands to those whose work it is.
//!
//! ```text
//! Log ── submit ──> gather::ProposalQueue ──> writer thread ──> store ──> disk
//!  │                                      │
//!  └─ reader ──> Shelf (segments, positions) <── publishes
//! ```
//!
//! Invariants:
//! - one open log a directory, by a lock that all threads hold until they end;
//! - a handle that crossed a `fork` refuses: its threads are in the parent.

use crate::cluster::membership::{ALONE, Change};
use crate::cluster::options::{Cluster, Status};
use crate::cluster::transport::Inbox;
use crate::disk::linux::RealDisk;
use crate::disk::mmap::ForkGuard;
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::options::Options;
use crate::options::log_options::{LogOption, LogOptions};
use crate::read::positions::Positions;
use crate::read::reader::{LogView, Reader, Start};
use crate::read::records::OwnedRecord;
use crate::record::batch::{Batch, Stamp};
use crate::replica::node::driver::{Driver, Stopwatch};
use crate::replica::node::repair_thread::Shared;
use crate::replica::node::{Node, Published, counted_capacity};
use crate::replica::open::{Directory, cannot_open, check_name, open_or_find_damage};
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{Command, ProposalQueue, QueueLimits, WaitLimit};
use crate::replica::repair::offline::{Begun, Repairing};
use crate::replica::state::sequencer::Owner;
use crate::stats::{Backlog, Stats};
use crate::store::format::identity::Identity;
use crate::store::segment::file_name;
use crate::sync::completer::Completer;
use crate::sync::completion::{Answer, Appended, Ticket};
use crate::sync::threads::{is_writer_of, spawn, spawn_writer};
use crate::types::{DirectoryId, Index, LogId, NodeId, SessionId, Timestamp};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A durable log in a directory. Cheap to clone, `Send + Sync`: clones share its threads. The log is
/// closed when [`Log::close`] is called or the last clone is dropped.
///
/// After a `fork` the log is the parent's alone: in the child every call that appends, reads or commands is
/// refused as `Forked`. What was made before the fork is not guarded: in the child nobody may wait for a
/// [`Ticket`] (it would wait for ever) nor use a [`Reader`] (its files are used again without regard to the
/// child). Dropping the handle there is fine.
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
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    identity: Identity,
    options: Options,
    queue: Arc<ProposalQueue>,
    view: LogView,
    published: Arc<Published>,
    fork: ForkGuard,
    /// Tells the writer that the log is closed, if it does not hear of it from the queue.
    stop: Option<Stop>,
    /// The threads, until they are joined.
    running: Mutex<Vec<JoinHandle<()>>>,
}

/// Tells a log's writer that the log is closed.
pub(crate) type Stop = Box<dyn Fn() + Send + Sync>;

/// What the handle of a log is made of that others write.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    /// It refuses all that comes.
    pub(crate) queue: Arc<ProposalQueue>,
    pub(crate) view: LogView,
    pub(crate) published: Arc<Published>,
    pub(crate) fork: ForkGuard,
    /// They end once `stop` was called.
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) stop: Stop,
}

/// How a log stands.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let info = log.info();
/// assert_eq!((info.first.get(), info.last.get()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The log's name for ever.
    pub log_id: LogId,
    /// This copy of it.
    pub directory: DirectoryId,
    /// Whether this copy follows the log from outside: see [`FollowerLog`](crate::FollowerLog).
    pub follows: bool,
    /// The first record that is not discarded; of an empty log, the first one to come.
    pub first: Index,
    /// The last committed record; of an empty log `first - 1`.
    pub last: Index,
    /// The last record durable on this node.
    pub durable: Index,
    /// Bytes of blocks from the first record on; exact to about 32 KiB.
    pub bytes_used: u64,
    /// The limit of `bytes_used`: the log's, or else the one it was opened with.
    pub bytes_capacity: Option<u64>,
    /// Segments that hold them.
    pub segments: u64,
    /// Exactly-once sessions that are open.
    pub sessions: u32,
    /// When the newest block was written.
    pub last_timestamp: Timestamp,
}

impl Log {
    /// Opens the log in `dir`, or makes one there if `options.create` says so. Blocks while recovery reads
    /// the last segment.
    ///
    /// # Errors
    /// `Locked`: somebody has it open. `NotFound`: there is none and `create` is false. `InvalidArgument`: an
    /// option. `Corrupt`: names file and offset; the log's files are as they were. `Unsupported`: a newer format. `Io`.
    /// `Full`: no space for the segments ahead.
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
        let path = disk.path().to_path_buf();
        let fork = ForkGuard::new().map_err(|e| Error::io("guard against fork", &path, e))?;
        let seed = seed(&options, &*disk).map_err(|e| Error::io("draw a random number for", &path, e))?;
        let opened = match open_or_find_damage(disk, &options)? {
            Directory::Ready(opened) => *opened,
            Directory::DamagedLog(damaged) => match Repairing::begin(*damaged)? {
                Begun::RecoveredLog(opened) => *opened,
                Begun::Repairing(repairing) => return Self::open_repairing(repairing, path, fork, seed),
            },
        };
        let (identity, cluster, segments) =
            (opened.identity, opened.cluster.clone(), opened.segments.clone());
        let committed = opened.sequencer.committed();
        let first = committed.first;
        let last = opened.sequencer.end().next.previous();
        let positions = Arc::new(Positions::new(first, committed.next.previous().min(last), last));
        let queue = Arc::new(ProposalQueue::new(limits(&options, &cluster), segments.bytes_from(first)));
        let allocator = opened.store.allocator.clone();
        let mut opened = opened;
        let lock: Arc<dyn Lock> = opened.take_lock().into();
        // It prepares files that the opening may need already.
        let helper = spawn("chiplog-helper", &path, {
            let (allocator, lock) = (allocator.clone(), lock.clone());
            move || {
                allocator.run();
                drop(lock);
            }
        })?;
        let mut threads = vec![helper];
        let watch = Stopwatch::start();
        let started = Node::new(opened, options.clone(), queue.clone(), positions.clone(), seed, watch.now())
            .and_then(|node| {
                let published = node.published.clone();
                let driver = Driver::new(node, cluster.clone(), watch, options.cluster.is_some());
                let driver = Arc::new(driver);
                for _ in 0..driver.threads() {
                    let (driver, allocator, lock) = (driver.clone(), allocator.clone(), lock.clone());
                    threads.push(spawn_writer(&path, &queue, move || {
                        driver.run();
                        allocator.stop();
                        drop(lock);
                    })?);
                }
                Ok(published)
            });
        let published = match started {
            Ok(published) => published,
            Err(error) => {
                // The threads have the lock: whoever opens the log next should find it free.
                queue.close();
                allocator.stop();
                threads.into_iter().for_each(|thread| _ = thread.join());
                return Err(error);
            }
        };
        attach(&cluster, &queue);
        let view = LogView { segments, positions, prefetch: options.prefetch_bytes as usize, outside: false };
        let (running, stop) = (Mutex::new(threads), None);
        let inner = Inner { path, identity, options, queue, view, published, fork, stop, running };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A replica's log that is to be repaired before it goes on.
    fn open_repairing(repairing: Box<Repairing>, path: PathBuf, fork: ForkGuard, seed: u64) -> Result<Self> {
        let damaged = repairing.damaged();
        let (identity, cluster, options) =
            (damaged.identity, damaged.cluster.clone(), damaged.options.clone());
        let segments = damaged.segments.clone();
        let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
        let queue = Arc::new(ProposalQueue::new(limits(&options, &cluster), 0));
        let published: Arc<Published> = Arc::default();
        published.show(repairing.status());
        published.hold(Some(repairing.refusal()));
        let shared = Shared {
            path: path.clone(),
            options: options.clone(),
            queue: queue.clone(),
            positions: positions.clone(),
            published: published.clone(),
            segments: segments.clone(),
            seed,
            watch: Stopwatch::start(),
        };
        attach(&cluster, &queue);
        let writer = spawn_writer(&path, &queue, move || shared.rescue(repairing))?;
        let view = LogView { segments, positions, prefetch: options.prefetch_bytes as usize, outside: false };
        let (running, stop) = (Mutex::new(vec![writer]), None);
        let inner = Inner { path, identity, options, queue, view, published, fork, stop, running };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The handle of a log that others write.
    pub(crate) fn assemble(parts: Parts) -> Self {
        let Parts { path, identity, options, queue, view, published, fork, threads, stop } = parts;
        let (running, stop) = (Mutex::new(threads), Some(stop));
        let inner = Inner { path, identity, options, queue, view, published, fork, stop, running };
        Self { inner: Arc::new(inner) }
    }

    /// Appends one record and waits until it is durable: of a replica of a cluster, on a majority of the voters.
    ///
    /// # Errors
    /// Those of [`Log::submit`] and of [`Ticket::wait`]. `InvalidArgument`: in a callback of this log's, on the thread that
    /// would have to do the work; nothing was appended. So it is with whatever waits.
    pub fn append(&self, record: &[u8]) -> Result<Index> {
        self.may_wait()?;
        Ok(self.submit(record)?.wait()?.first)
    }

    /// Appends a batch and waits until it is durable: all of it or nothing.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_batch(&self, batch: &Batch) -> Result<Appended> {
        self.may_wait()?;
        self.submit_batch(batch)?.wait()
    }

    /// Submits one record (one copy of it is made) and returns at once with a ticket for the outcome. Waits
    /// only while the queue is full, for at most `options.queue_timeout`; not in a callback of this log's.
    ///
    /// # Errors
    /// `TooLarge`, `Full`, `Busy`, `Poisoned`, `Closed`, `Forked`: the record was not taken. Whether this replica leads
    /// is told by the ticket.
    pub fn submit(&self, record: &[u8]) -> Result<Ticket> {
        self.push_record(record, Stamp::default(), self.wait_limit())
    }

    /// Submits a batch; see [`Log::submit`]. Large ones are not copied at all.
    ///
    /// # Errors
    /// As [`Log::submit`]; of a batch with a session the ticket can hold `SessionExpired`, `SequenceGap` or
    /// `SequenceForgotten`.
    pub fn submit_batch(&self, batch: &Batch) -> Result<Ticket> {
        self.push_batch(batch, self.wait_limit())
    }

    /// As [`Log::submit`], but never waits.
    ///
    /// # Errors
    /// As [`Log::submit`]; `Busy` when the queue is full.
    pub fn try_submit(&self, record: &[u8]) -> Result<Ticket> {
        self.push_record(record, Stamp::default(), WaitLimit::None)
    }

    /// As [`Log::submit_batch`], but never waits.
    ///
    /// # Errors
    /// As [`Log::submit_batch`]; `Busy` when the queue is full.
    pub fn try_submit_batch(&self, batch: &Batch) -> Result<Ticket> {
        self.push_batch(batch, WaitLimit::None)
    }

    /// As [`Log::submit_batch`], but waits for room in the queue without blocking the thread, for as long as it
    /// takes: for async code, which has its own clock. Dropped before it is ready, it has submitted nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// # fn block_on<F: Future>(f: F) -> F::Output {
    /// #     let mut f = std::pin::pin!(f);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop { if let std::task::Poll::Ready(r) = f.as_mut().poll(&mut context) { return r } }
    /// # }
    /// let batch = chiplog::BatchBuilder::new().push(b"x")?.build()?;
    /// let appended = block_on(async { log.submit_batch_when_room(&batch).await?.await })?;
    /// assert_eq!(appended.first.get(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Log::submit_batch`], but never `Busy`.
    pub async fn submit_batch_when_room(&self, batch: &Batch) -> Result<Ticket> {
        self.check_batch(batch)?;
        loop {
            match self.inner.queue.push_batch_or_wait(batch)? {
                Ok(ticket) => return Ok(ticket),
                Err(room) => drop(room.await?),
            }
        }
    }

    /// Whether the capacity has room for an append of so many bytes now, besides all that waits.
    ///
    /// # Errors
    /// `Full`: it has not. `Poisoned`, `Closed`.
    pub fn check_room(&self, bytes: usize) -> Result<()> {
        self.inner.queue.check_room(bytes)
    }

    pub(crate) fn wait_limit(&self) -> WaitLimit {
        if self.may_wait().is_ok() { WaitLimit::For(self.queue_timeout()) } else { WaitLimit::None }
    }

    /// Whether anything of this log's can be waited for on this thread: not on the one that does it.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn may_wait(&self) -> Result<()> {
        if !is_writer_of(&self.inner.queue) {
            return Ok(());
        }
        let what = "called in a callback, on the log's own thread, where nothing can be waited for: submit, and look later";
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    pub(crate) fn push_record(&self, record: &[u8], stamp: Stamp, wait_limit: WaitLimit) -> Result<Ticket> {
        self.check_fork()?;
        self.check_size("record", record.len(), self.record_bytes_max(), "record_bytes_max")?;
        self.inner.queue.push_record(record, stamp, wait_limit)
    }

    pub(crate) fn push_batch(&self, batch: &Batch, wait_limit: WaitLimit) -> Result<Ticket> {
        self.check_batch(batch)?;
        self.inner.queue.push_batch(batch, wait_limit)
    }

    fn check_batch(&self, batch: &Batch) -> Result<()> {
        self.check_fork()?;
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
        let what = format!(
            "a batch with a record of more than {max} bytes, which is all that option record_bytes_max allows"
        );
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
        if self.inner.fork.is_child() {
            let what = "this handle was made before fork(); open the log again in the child once the parent has closed it";
            return Err(Error::new(ErrorKind::Forked, what));
        }
        Ok(())
    }

    /// A reader of committed records. Never blocks appends and is not blocked by them.
    ///
    /// # Errors
    /// `Discarded` or `OutOfRange` for [`Start::Index`] beyond either end; `Io`, `Corrupt`.
    pub fn reader(&self, start: Start) -> Result<Reader> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        self.inner.view.reader(start)
    }

    /// The committed entries of this log, for another one that follows it: see [`FollowerLog`](crate::FollowerLog). Of any
    /// replica, and of a log that follows itself. As cheap as a reader, and as little in the way of appends.
    ///
    /// # Errors
    /// `Diverged`: the follower's log is another one. `Discarded` or `OutOfRange` for [`FollowFrom::Index`] beyond either
    /// end. `Unavailable` while the log is being repaired; `Forked`.
    pub fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        self.check_fork()?;
        let Inner { published, view, options, identity, .. } = &*self.inner;
        published.check_held()?;
        let me = match &options.cluster {
            _ if identity.follows => Owner::Follower,
            Some(cluster) => Owner::Node(cluster.node),
            None => Owner::Node(ALONE),
        };
        FollowSource::new(view.clone(), me, identity.log, options.clone(), from)
    }

    /// One committed record, by its index.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`, `Corrupt`, `Io`.
    pub fn read(&self, index: Index) -> Result<OwnedRecord> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        self.inner.view.read(index)
    }

    /// Discards all records below `first`, durably; their space is reused. Anywhere inside the log; at or
    /// below the first index nothing happens. Beyond the end the log is empty afterwards and continues at
    /// `first`. Readers that hold a discarded segment keep what they have.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`, `Forked`; `Full` only when not even the reserve has room. Of a replica also `NotLeader`,
    /// `Removed`: nothing is discarded; `Unavailable`: the lead was lost meanwhile, it may or may not come about. To ask
    /// again does no harm.
    pub fn discard(&self, first: Index) -> Result<()> {
        self.may_wait()?;
        self.submit_discard(first)?.wait().map(drop)
    }

    /// As [`Log::discard`], and returns at once: the answer is an index at or below the log's first one then.
    ///
    /// # Errors
    /// As [`Log::discard`].
    pub fn submit_discard(&self, first: Index) -> Result<Answer> {
        if first.0 >= INDEX_MAX {
            let what = format!("index {first} is out of bounds; the largest is {}", INDEX_MAX - 1);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        self.submit_command(Command::Discard { first })
    }

    fn submit_command(&self, command: Command) -> Result<Answer> {
        self.check_fork()?;
        self.inner.queue.push_command(command).map(Answer)
    }

    fn command(&self, command: Command) -> Result<u64> {
        self.may_wait()?;
        self.submit_command(command)?.wait().map(Index::get)
    }

    /// The id of a new exactly-once session, which is durable then.
    pub(crate) fn new_session(&self) -> Result<SessionId> {
        let own = || u64::try_from(self.inner.options.session_idle_max.as_millis()).unwrap_or(u64::MAX);
        let idle_max_ms = self.log_options().get(LogOption::SessionIdleMax).unwrap_or_else(own);
        Ok(SessionId(self.command(Command::OpenSession { idle_max_ms })?))
    }

    pub(crate) fn close_session(&self, id: SessionId) -> Result<()> {
        self.command(Command::CloseSession { id }).map(drop)
    }

    pub(crate) fn queue_timeout(&self) -> Duration {
        self.inner.options.queue_timeout
    }

    /// How many of a session's latest batches the log remembers the indexes of: as its options say, or else those that it
    /// was opened with.
    pub fn session_window(&self) -> u16 {
        let set = self.log_options().get(LogOption::SessionWindow);
        set.and_then(|window| u16::try_from(window).ok()).unwrap_or(self.inner.options.session_window)
    }

    /// The largest record that is taken: as the log's options say, or else those that it was opened with. Never blocks.
    pub fn record_bytes_max(&self) -> u32 {
        self.inner.published.record_bytes_max().unwrap_or(self.inner.options.record_bytes_max)
    }

    /// The options it was opened with. What is set for the log takes the place of some: [`Log::log_options`].
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The options that are set for the log, the same on every replica, as far as this one knows them committed. They take
    /// the place of those that a leader was opened with. Never blocks.
    pub fn log_options(&self) -> LogOptions {
        self.inner.published.log_options()
    }

    /// Sets options of the log, or with None has them set no more, on the leader. Those that are not named stay as they are.
    /// Waits until that is committed: whichever replica leads then goes by them. The first change makes the log one of
    /// version 2 of the format, which earlier versions refuse: see [`pages::format`](crate::pages::format).
    ///
    /// ```
    /// use chiplog::{Log, LogOption, Options};
    /// # use std::time::Duration;
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::default())?;
    /// log.set_log_options(&[(LogOption::RetentionBytes, Some(1 << 30))], Duration::from_secs(5))?;
    /// assert_eq!(log.log_options().get(LogOption::RetentionBytes), Some(1 << 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the option that is out of bounds, or does not go with what this replica was opened with.
    /// `Unsupported`: names a member that has not said that it knows the log's options; nothing was changed. `NotLeader`,
    /// `Removed`, `Full`, `Busy`: nothing was changed. `Unavailable`: the lead was lost meanwhile, it may or may not come
    /// about. `Poisoned`, `Closed`, `Forked`. To ask again does no harm.
    pub fn set_log_options(&self, changes: &[(LogOption, Option<u64>)], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        self.submit_set_log_options(changes, timeout)?.wait().map(drop)
    }

    /// As [`Log::set_log_options`], and returns at once. What the answer's index is has no meaning. `timeout` is for how long
    /// members are waited for.
    ///
    /// # Errors
    /// As [`Log::set_log_options`].
    pub fn submit_set_log_options(
        &self,
        changes: &[(LogOption, Option<u64>)],
        timeout: Duration,
    ) -> Result<Answer> {
        self.submit_ask(AdminRequest::SetOptions(changes.to_vec()), timeout)
    }

    /// A copy that follows from outside has a capacity of its own.
    fn capacity_bytes(&self) -> Option<u64> {
        let set = self.log_options().get(LogOption::CapacityBytes).filter(|_| !self.inner.identity.follows);
        set.map_or(self.inner.options.capacity_bytes, |set| Some(set).filter(|bytes| *bytes < u64::MAX))
    }

    /// How the log stands now. Never blocks.
    pub fn info(&self) -> Info {
        let Inner { view, published, queue, identity, .. } = &*self.inner;
        let (first, last) = view.positions.range();
        Info {
            log_id: identity.log,
            directory: identity.directory,
            follows: identity.follows,
            first,
            last,
            durable: view.positions.durable(),
            bytes_used: queue.used(),
            bytes_capacity: self.capacity_bytes(),
            segments: view.segments.len() as u64,
            sessions: published.sessions.load(Ordering::Relaxed),
            last_timestamp: Timestamp(published.last_timestamp.load(Ordering::Relaxed)),
        }
    }

    /// How this replica stands in its cluster: who leads and who is a member as of its last turn, positions at most 20 ms
    /// older. Once the log is closed or poisoned: as it stood then, but it leads no more and knows no leader. Never blocks.
    pub fn status(&self) -> Status {
        match self.inner.published.status() {
            Some(status) => status,
            None => unreachable!("a node shows its status before its log is handed out"),
        }
    }

    /// Waits until this replica has committed all that was committed anywhere when the call began, and returns the
    /// last record then: reads that follow are linearizable. A majority confirms it. On any replica.
    ///
    /// # Errors
    /// `Unavailable`: no majority answered within `timeout`. `Removed`, `Poisoned`, `Closed`, `Forked`.
    pub fn barrier(&self, timeout: Duration) -> Result<Index> {
        self.may_wait()?;
        self.submit_barrier(timeout)?.wait()
    }

    /// As [`Log::barrier`], and returns at once. Any number can be under way: those that wait share one round.
    ///
    /// # Errors
    /// As [`Log::barrier`].
    pub fn submit_barrier(&self, timeout: Duration) -> Result<Answer> {
        self.submit_ask(AdminRequest::Barrier, timeout)
    }

    /// Waits until this replica has record `index`, or knows that it was discarded: what was appended at the leader
    /// can then be read here.
    ///
    /// # Errors
    /// `Timeout`; `Closed`, `Poisoned`, `Forked`.
    pub fn wait_for(&self, index: Index, timeout: Duration) -> Result<()> {
        self.check_fork()?;
        let positions = &self.inner.view.positions;
        if positions.wait(index, Some(Duration::ZERO))? {
            return Ok(());
        }
        self.may_wait()?;
        if positions.wait(index, Some(timeout))? {
            return Ok(());
        }
        let what = format!("record {index} is not committed here within {timeout:?}");
        Err(Error::new(ErrorKind::Timeout, what))
    }

    /// Changes the membership of the cluster, on its leader: one change at once, or several in one go through a
    /// joint configuration. Waits until the change is in force and [`Log::status`] shows it; a promotion first waits until
    /// its learner has caught up. A change after which nothing would be heard of a majority of the voters is refused: it
    /// would leave the cluster without a leader, perhaps for good. So is one that removes or demotes a voter that is heard
    /// while nothing is heard of another one, which would stay: the number is probably mistyped. A voter counts that was heard
    /// within the last election time-out; one that was not has two more to answer.
    ///
    /// # Errors
    /// `Membership`: what is wrong with which change, or which voters are not heard; nothing was changed. `NotLeader`.
    /// `Timeout`: names who lags; or the change may still come into force. `Unavailable`: the lead was lost meanwhile. Where it
    /// may still come into force [`Log::status`] tells whether it has, and to ask for it again does no harm.
    pub fn change_members(&self, changes: &[Change], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        self.submit_change_members(changes, timeout)?.wait().map(drop)
    }

    /// As [`Log::change_members`], and returns at once. What the answer's index is has no meaning.
    ///
    /// # Errors
    /// As [`Log::change_members`].
    pub fn submit_change_members(&self, changes: &[Change], timeout: Duration) -> Result<Answer> {
        self.submit_ask(AdminRequest::Change(changes.to_vec(), false), timeout)
    }

    /// Lets another voter lead, on the leader. Waits until it does.
    ///
    /// # Errors
    /// `Membership`: `to` is no voter. `NotLeader`. `Timeout`: it did not take the lead; this replica leads on.
    pub fn transfer_leader(&self, to: NodeId, timeout: Duration) -> Result<()> {
        self.may_wait()?;
        self.submit_transfer_leader(to, timeout)?.wait().map(drop)
    }

    /// As [`Log::transfer_leader`], and returns at once. What the answer's index is has no meaning.
    ///
    /// # Errors
    /// As [`Log::transfer_leader`].
    pub fn submit_transfer_leader(&self, to: NodeId, timeout: Duration) -> Result<Answer> {
        self.submit_ask(AdminRequest::Transfer(to), timeout)
    }

    /// As [`Log::change_members`], and makes the change also where nothing is heard of a majority of the voters that it leads
    /// to, or where it takes the vote of a node that is heard while nothing is heard of another voter. It comes into force once a
    /// majority of the voters that it leads to knows of it, and no other change can be made before: as long as nothing is heard of
    /// such a majority, neither comes about.
    ///
    /// # Errors
    /// As [`Log::change_members`], except for voters that are not heard.
    pub fn force_members(&self, changes: &[Change], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        self.submit_force_members(changes, timeout)?.wait().map(drop)
    }

    /// As [`Log::force_members`], and returns at once. The answer's index has no meaning.
    ///
    /// # Errors
    /// As [`Log::force_members`].
    pub fn submit_force_members(&self, changes: &[Change], timeout: Duration) -> Result<Answer> {
        self.submit_ask(AdminRequest::Change(changes.to_vec(), true), timeout)
    }

    fn submit_ask(&self, ask: AdminRequest, timeout: Duration) -> Result<Answer> {
        self.check_fork()?;
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        self.inner.queue.push_question(InboxEvent::AdminRequest(ask, timeout, completer))?;
        Ok(Answer(ticket))
    }

    /// Somebody has found the bytes of a record to be damaged in this directory: a check of the files, or a program that
    /// was given them. A replica of a cluster looks at the record's segment at once, and repairs what it finds with what
    /// other replicas have; [`stats`](Self::stats) and the program's log tell of it. Where the log has no other replica, it is
    /// counted and logged. Reads of this handle, and copies that follow it, report what they meet by themselves. A report
    /// of what is sound only costs a look, of the record alone as long as its segment is being written. Blocks for the disk,
    /// never for the repair.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let index = log.append(b"x")?;
    /// log.report_damage(index)?;
    /// assert_eq!(log.stats().damaged, 0); // it is sound
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`: there is no such record. `Unavailable` while the log is being repaired as a whole; `Forked`.
    pub fn report_damage(&self, index: Index) -> Result<()> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        let Inner { view, .. } = &*self.inner;
        view.check(index)?;
        // What memory holds need not be what the disk does: the segment is looked at whatever the read says. Where nobody
        // repairs, the read counts what it meets.
        match view.read(index) {
            Err(error) if matches!(error.kind(), ErrorKind::Discarded | ErrorKind::OutOfRange) => {
                return Err(error);
            }
            _ => {}
        }
        // The one that is written would have to end for it.
        let growing = view.segments.snapshot().last().map(|last| last.number);
        if let Some(segment) = view.segments.holding(index)
            && Some(segment.number) != growing
        {
            view.segments.damage().suspect(segment.number);
        }
        self.look_at_damage();
        Ok(())
    }

    /// As [`report_damage`](Self::report_damage), by file: what [`Inspector::walk`](crate::inspect::Inspector::walk) tells of a
    /// [`Fault`](crate::inspect::Fault). `file` is the name of one of the log's segments, `offset` where in it the damage begins, and
    /// `what` what is wrong, for the program's log. A file that is no segment of the log any more is let pass. Never blocks.
    ///
    /// # Errors
    /// `Forked`.
    pub fn report_damage_at(&self, file: &str, offset: u64, what: &str) -> Result<()> {
        self.check_fork()?;
        let Inner { view, path, .. } = &*self.inner;
        if view.segments.snapshot().iter().any(|segment| file_name(segment.number) == file) {
            view.segments.met(Error::corrupt(&path.join(file), offset, what), None);
            self.look_at_damage();
        }
        Ok(())
    }

    /// Somebody has read all of a segment of this log's and found it sound, such as [`Inspector::walk`](crate::inspect::Inspector::walk):
    /// damage that was met in it before counts as gone for [`Log::damaged_places`]. `file` is its name; another file is let pass.
    /// Never blocks.
    ///
    /// # Errors
    /// `Forked`.
    pub fn report_sound_at(&self, file: &str) -> Result<()> {
        self.check_fork()?;
        let segments = &self.inner.view.segments;
        if let Some(segment) = segments.snapshot().iter().find(|s| file_name(s.number) == file) {
            segments.damage().is_well(segment.number);
        }
        Ok(())
    }

    /// How many places of the log's files are damaged now, as far as it was met: not those that were repaired or found sound
    /// since, and not those of records that are discarded, as far as it is known of which records they are. [`Stats::damaged`] counts
    /// all that ever were.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// assert_eq!(log.damaged_places(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn damaged_places(&self) -> u64 {
        let Inner { view, published, .. } = &*self.inner;
        if published.check_held().is_err() {
            let stats = published.counters.snapshot();
            return stats.damaged.saturating_sub(stats.repaired); // it repairs the log before it opens it
        }
        let there = view.segments.snapshot();
        let is_there = |number| there.iter().any(|segment| segment.number == number);
        view.segments.damage().places_now(self.info().first, is_there)
    }

    /// The repair does not wait for the next heartbeat.
    fn look_at_damage(&self) {
        if self.inner.view.segments.damage().is_repaired() {
            self.inner.queue.push_event(InboxEvent::BackgroundJob);
        }
    }

    /// What the log did since it was opened.
    pub fn stats(&self) -> Stats {
        let stats = self.inner.published.counters.snapshot();
        Stats { damaged: stats.damaged + self.inner.view.segments.damage().counted(), ..stats }
    }

    /// What waits in it now. Takes the queue's lock for a moment.
    pub fn backlog(&self) -> Backlog {
        let (appends, bytes, taken) = self.inner.queue.waiting();
        Backlog {
            queue_appends: appends as u64,
            queue_bytes: bytes as u64,
            taken_bytes: taken as u64,
            uncommitted_bytes: self.inner.published.counters.uncommitted_bytes.load(Ordering::Relaxed),
        }
    }

    /// Why the log takes no more appends, if a write or a sync has failed.
    pub fn poison_cause(&self) -> Option<Error> {
        self.inner.published.poison.get().cloned()
    }

    /// Why this replica does not take what the log holds, or may hold, while another one leads: there is no room on its disk or in
    /// its files (`Full`, `Io`), `segment_bytes` is too small for an entry that the leader sends (`TooLarge`), or its options do not
    /// go with those that are set for the log (`InvalidArgument`). It takes no part in what it has no room for, and its readers
    /// get nothing new. None: nothing is the matter, or another kind of log.
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

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Ends appending through all clones: what was submitted is still written, the tail is proven, the threads
    /// end, the lock is let go. A leader of a cluster still commits it as long as a majority answers. It gives up when no
    /// majority was heard for three heartbeats, or nothing was committed for two election time-outs: what was ordered is
    /// `Unavailable` then, and what was not is `Closed`. Blocks for that, except in a callback on a thread of the log: there all of
    /// it happens after the callback. Readers go on. Closing again only waits for the same.
    ///
    /// # Errors
    /// `Poisoned` when a write or sync had failed: some appends have an unknown outcome. `Forked`.
    pub fn close(&self) -> Result<()> {
        self.check_fork()?;
        self.inner.close();
        self.poison_cause().map_or(Ok(()), Err)
    }
}

/// The disk of the log in `dir`; makes the directory if `create` says so.
pub(crate) fn disk_at(dir: &Path, create: bool) -> Result<Arc<dyn Disk>> {
    check_name(dir)?;
    match RealDisk::open(dir, create) {
        Ok(disk) => Ok(Arc::new(disk)),
        // Something of that name is no directory, or it could not be made.
        Err(e) if create && !dir.exists() => Err(Error::io("make directory", dir, e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let what = format!("there is no log at {}: the directory does not exist", dir.display());
            Err(Error::new(ErrorKind::NotFound, what))
        }
        Err(e) => Err(cannot_open(dir, e)),
    }
}

/// The queue's limits.
pub(crate) fn limits(options: &Options, cluster: &Cluster) -> QueueLimits {
    QueueLimits {
        block_bytes: options.block_bytes_max as usize,
        bytes: options.queue_bytes_max,
        appends: options.queue_appends_max,
        capacity: counted_capacity(options),
        inbox_bytes: cluster.inbox_bytes_max,
    }
}

/// Lets messages of other replicas in.
fn attach(cluster: &Cluster, queue: &Arc<ProposalQueue>) {
    let queue = queue.clone();
    let inbox = Inbox::new(move |envelope| queue.push_event(InboxEvent::Message(envelope)));
    cluster.transport.attach(cluster.node, inbox);
}

/// Where the chance of election time-outs begins.
fn seed(options: &Options, disk: &dyn Disk) -> std::io::Result<u64> {
    if let Some(cluster) = options.cluster.as_ref().filter(|c| c.seed != 0) {
        return Ok(cluster.seed ^ cluster.node.0);
    }
    let mut seed = [0; 8];
    disk.random(&mut seed)?;
    Ok(u64::from_le_bytes(seed))
}

/// Indexes stay below this, so that adding to one never overflows.
const INDEX_MAX: u64 = 1 << 62;

impl Inner {
    fn close(&self) {
        self.queue.close();
        if let Some(stop) = &self.stop {
            stop();
        }
        if is_writer_of(&self.queue) {
            return; // a callback has the last handle: the thread cannot wait for its own end, but it will come
        }
        // Held until the threads have ended, so that whoever closes a second time waits as well.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ended: Vec<_> = running.drain(..).map(JoinHandle::join).collect();
        if ended.iter().any(std::result::Result::is_err) {
            tracing::error!(log = %self.path.display(), "a thread of the log panicked");
            let _ =
                self.published.poison.set(Error::new(ErrorKind::Poisoned, "a thread of the log panicked"));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The threads are the parent's, and so is what the queue holds.
            std::mem::forget(std::mem::take(&mut self.running));
            return;
        }
        self.close();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.inner.path).field("info", &self.info()).finish()
    }
}
