//! Followed: the handle of a log that follows another one, in the caller's process. No member of the cluster, no vote,
//! and nobody's burden: what feeds it can be any replica, or another follower.
//!
//! ```text
//!  a log somewhere ── Feed ──> bytes, any way ──> Fed ── take ──> Followed ── log() ──> readers, feeds, as of any log
//!                      ^                                             │
//!                      └────────────── want: where to go on ─────────┘
//! ```
//!
//! Who calls `take` writes; a thread of its own syncs, 100 ms later at most, proves the tail when nothing comes, and
//! lets go of what is too old.
//!
//! Invariants:
//! - one writes at a time, under a lock that no reader takes;
//! - callbacks run without that lock.
//!
//! Must not know: raft, the network.

use crate::api::log::{Log, Parts, disk_at, limits};
use crate::disk::mmap::ForkGuard;
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::applier::{Applier, Jumped};
use crate::follower::message::{FollowEntries, FollowFrom, FollowMessage};
use crate::options::Options;
use crate::read::positions::{Positions, closed};
use crate::read::reader::LogView;
use crate::replica::node::{Published, poisoned};
use crate::replica::open::{RecoveredLog, create_followed, open_followed, reset_followed};
use crate::replica::queue::proposals::ProposalQueue;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::writer::SyncOnce;
use crate::store::allocator::Allocator;
use crate::store::segment::damage::Helpers;
use crate::sync::threads::{spawn, spawn_writer};
use crate::types::LogId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What was taken is durable after this time at the latest.
const SYNC_DELAY: Duration = Duration::from_millis(100);
/// It is synced at once when there is so much of it.
const SYNC_BYTES: u64 = 8 << 20;
/// Whoever takes more waits for the disk.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// The tail is proven when nothing has come for this time.
const PROOF_DELAY: Duration = Duration::from_millis(100);
/// Retention that found no file tries again after this time.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A log in a directory that follows another one: it takes what a [`FollowSource`](crate::FollowSource) gives and serves the same
/// readers as any log. Cheap to clone, `Send + Sync`; closed when [`Self::close`] is called or the last clone and the
/// last handle that [`Self::log`] gave are dropped.
///
/// It is no replica: the cluster does not know of it and waits for nobody here. Its records are durable elsewhere, so
/// they can be read here as soon as they are written; a crash of the machine can take away what was not synced yet (that begins within 100 ms)
/// until they are fed again. `kill -9` takes nothing. A place that a program keeps (the index of the next record it
/// wants) stays good: what is fed again is the same.
///
/// ```
/// use chiplog::{FollowMessage, FollowFrom, FollowerLog, Log, Options};
/// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// # let options = || Options::with_segment_bytes(1 << 20);
/// let log = Log::open(a.path(), options())?;
/// log.append(b"one")?;
/// // The first time there is nothing yet: it begins with a state.
/// let mut feed = log.follow(FollowFrom::First)?;
/// let Some(FollowMessage::State(state)) = feed.next(1 << 20)? else { panic!() };
/// drop(FollowerLog::create(b.path(), options(), &state)?);
/// // Later, as often as need be:
/// let copy = FollowerLog::open(b.path(), options())?;
/// let mut feed = log.follow(copy.resume_point()?)?;
/// while let Some(fed) = feed.next(1 << 20)? {
///     if let Some(jumped) = copy.apply(fed)? {
///         println!("records {} to {} were discarded before they came here", jumped.from, jumped.to.previous());
///     }
/// }
/// assert_eq!(copy.log().info().last.get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FollowerLog {
    log: Log,
    shared: Arc<Shared>,
}

/// What the handle and the thread share.
struct Shared {
    state: Mutex<State>,
    /// The thread waits here.
    work: Condvar,
    positions: Arc<Positions>,
    published: Arc<Published>,
    allocator: Arc<Allocator>,
}

/// The decisions that are made under the lock, at a time that is given. The thread calls it, and so does the simulator.
pub(crate) struct State {
    pub(crate) applier: Applier,
    opened_at: Instant,
    /// The handle was closed.
    ending: bool,
    /// Since when anything waits to be synced.
    unsynced_since: Option<Instant>,
    /// When anything was taken last.
    taken_at: Instant,
    /// Retention has nothing to do before.
    retain_at: Instant,
}

/// What the thread does next.
pub(crate) enum Next {
    Sync,
    Prove,
    Retain,
    End,
    Wait(Option<Duration>),
}

impl FollowerLog {
    /// Opens the follower's log in `dir`. Blocks while recovery reads the last segment.
    ///
    /// Of the options those count that say how the files are kept and read, and `retention_bytes` and `retention_age`:
    /// the follower's own, besides what its source discards. `segment_bytes` has to be large enough for the source's
    /// blocks: best not less than the source's. `create` is not looked at; `cluster` has to be None.
    ///
    /// # Errors
    /// `NotFound`: there is none yet; see [`Self::create`]. `InvalidArgument`: the directory holds a log on its own or
    /// a replica; an option. `Locked`. `Corrupt`: names file and offset; see [`Self::reset`]. `Unsupported`, `Io`,
    /// `Full`.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_on(disk_at(dir.as_ref(), false)?, options)
    }

    /// As [`Self::open`], on another kind of disk.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        check(&options)?;
        let opened = open_followed(disk.clone(), &options)?;
        Self::start(&*disk, opened, options)
    }

    /// Makes the follower's log in `dir`, which begins at `state`: what a feed gives first that was opened at
    /// [`FollowFrom::First`], [`FollowFrom::Index`] or [`FollowFrom::Newest`]. Durable when it returns.
    ///
    /// # Errors
    /// `InvalidArgument`: there is a log already; an option. `TooLarge`: the state does not fit a segment. `Locked`,
    /// `Corrupt`, `Io`, `Full`.
    pub fn create(dir: impl AsRef<Path>, options: Options, state: &FollowSnapshot) -> Result<Self> {
        check(&options)?;
        Self::create_on(disk_at(dir.as_ref(), true)?, options, state)
    }

    /// As [`Self::create`], on another kind of disk.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_on(disk: Arc<dyn Disk>, options: Options, state: &FollowSnapshot) -> Result<Self> {
        check(&options)?;
        let opened = create_followed(disk.clone(), &options, state)?;
        Self::start(&*disk, opened, options)
    }

    /// Removes a follower's log, so that it can begin again: when it is damaged, or follows a history that is not the
    /// source's. Nothing is lost that its source still has. The directory stays.
    ///
    /// ```
    /// # use chiplog::{FollowMessage, FollowFrom, FollowerLog, Log, Options};
    /// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
    /// # let log = Log::open(a.path(), Options::with_segment_bytes(1 << 20))?;
    /// # let Some(FollowMessage::State(state)) = log.follow(FollowFrom::First)?.next(0)? else { panic!() };
    /// let copy = FollowerLog::create(b.path(), Options::with_segment_bytes(1 << 20), &state)?;
    /// copy.close()?;
    /// FollowerLog::destroy(b.path())?;
    /// FollowerLog::create(b.path(), Options::with_segment_bytes(1 << 20), &state)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: there is none. `InvalidArgument`: it is no follower's. `Locked`: it is open. `Corrupt`: nobody can
    /// tell whose it is. `Io`: it can be done again.
    pub fn destroy(dir: impl AsRef<Path>) -> Result<()> {
        Self::destroy_on(&*disk_at(dir.as_ref(), false)?)
    }

    /// As [`Self::reset`], on another kind of disk.
    ///
    /// # Errors
    /// As [`Self::reset`].
    pub fn destroy_on(disk: &dyn Disk) -> Result<()> {
        reset_followed(disk)
    }

    fn start(disk: &dyn Disk, mut opened: RecoveredLog, options: Options) -> Result<Self> {
        let path = disk.path().to_path_buf();
        let fork = ForkGuard::new().map_err(|e| Error::io("guard against fork", &path, e))?;
        let (identity, segments) = (opened.identity, opened.segments.clone());
        let cluster = opened.cluster.clone();
        let committed = opened.sequencer.committed();
        let (first, last) = (committed.first, committed.next.previous());
        let positions = Arc::new(Positions::new(first, last, last));
        let queue = Arc::new(ProposalQueue::new(limits(&options, &cluster), segments.bytes_from(first)));
        queue.refuse(takes_no_appends(&path, identity.log));
        let published: Arc<Published> = Arc::default();
        let allocator = opened.store.allocator.clone();
        let lock: Arc<dyn Lock> = opened.take_lock().into();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(
                Applier::new(opened, options.clone(), queue.clone(), positions.clone(), published.clone()),
                Instant::now(),
            )),
            work: Condvar::new(),
            positions: positions.clone(),
            published: published.clone(),
            allocator: allocator.clone(),
        });
        let helper = spawn("chiplog-helper", &path, {
            let (allocator, lock) = (allocator.clone(), lock.clone());
            move || {
                allocator.run();
                drop(lock);
            }
        })?;
        let writer = spawn_writer(&path, &queue, {
            let shared = shared.clone();
            move || {
                shared.run();
                drop(lock);
            }
        });
        let writer = match writer {
            Ok(writer) => writer,
            Err(error) => {
                allocator.stop();
                let _ = helper.join();
                return Err(error);
            }
        };
        let stop = Box::new({
            let shared = shared.clone();
            move || shared.end()
        });
        segments.damage().set_helpers(Helpers::Source);
        let view = LogView { segments, positions, prefetch: options.prefetch_bytes as usize, outside: false };
        let threads = vec![writer, helper];
        let parts = Parts { path, identity, options, queue, view, published, fork, threads, stop };
        Ok(Self { log: Log::assemble(parts), shared })
    }

    /// Where the next feed has to begin, so that it gives what comes next here.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`.
    pub fn resume_point(&self) -> Result<FollowFrom> {
        Ok(self.shared.lock()?.applier.resume_point())
    }

    /// Takes what a feed gave. Returns when it is written and can be read; a sync of it begins within 100 ms. Blocks
    /// on the disk, and while another thread does the same.
    ///
    /// Of a jump it tells: then the records that were here are gone, and readers that stand before the new beginning
    /// get `Discarded`.
    ///
    /// # Errors
    /// `Diverged`: it is another log's, or does not fit what is here: none of it may be taken, nor asked for again at
    /// the same source. `Full`: there was no room for all of it; what had room was taken, and [`Self::want`] says where
    /// to go on once there is room. `TooLarge`: `segment_bytes` is too small for the source's blocks.
    /// `InvalidArgument`: entries that do not begin where the log ends. `Io`, `Corrupt`, but not poisoned: a file could
    /// not be prepared, or one that is here not be read; nothing was written, and it may pass. `Poisoned`: a write or a sync has failed; close it
    /// and open it again. `Closed`, `Forked`.
    pub fn apply(&self, fed: FollowMessage) -> Result<Option<Jumped>> {
        match fed {
            FollowMessage::State(state) => self.install_snapshot(&state),
            FollowMessage::Entries(entries) => self.apply_entries(entries).map(|()| None),
        }
    }

    /// As [`Self::take`], of entries.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn apply_entries(&self, entries: FollowEntries) -> Result<()> {
        self.change(|applier| applier.apply(entries))
    }

    /// As [`Self::take`], of a state: goes on there. `None` if the log stands there already.
    ///
    /// # Errors
    /// As [`Self::take`]; `Diverged` also if the state lies before the end of the log.
    pub fn install_snapshot(&self, state: &FollowSnapshot) -> Result<Option<Jumped>> {
        self.change(|applier| applier.install_snapshot(state))
    }

    /// Waits until all that was taken is durable here.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`, `Forked`.
    pub fn sync(&self) -> Result<()> {
        self.change(|applier| applier.settle().map(Ok))
    }

    /// Ends the log so that it can go on by itself, so many terms after its last entry's. Nothing may be taken after that.
    pub(crate) fn conclude(&self, terms: u64) -> Result<()> {
        self.change(|applier| applier.conclude(terms))
    }

    /// The log, to be read, looked at and fed from as any other. What would write to it is refused as `NotLeader`:
    /// appends, discards, sessions, questions to the cluster. Callbacks of its readers and feeds run on the thread that
    /// calls [`Self::take`], or on the log's own: when it is closed, and when it lets go of what is too old.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// As [`Log::close`]: what was taken is durable when it returns. Readers go on.
    ///
    /// # Errors
    /// As [`Log::close`].
    pub fn close(&self) -> Result<()> {
        self.log.close()
    }

    /// Lets `f` write, and sees to what follows from that.
    fn change<T>(&self, f: impl FnOnce(&mut Applier) -> Result<Result<T>>) -> Result<T> {
        self.log.check_fork()?;
        let shared = &self.shared;
        let (outcome, wake) = {
            let mut state = shared.lock()?;
            state.look_at_clock(Instant::now());
            let applier = &mut state.applier;
            let written = catch_unwind(AssertUnwindSafe(|| {
                let outcome = f(applier)?;
                if applier.unsynced() > UNSYNCED_BYTES_MAX {
                    applier.sync()?;
                }
                Ok(outcome)
            }));
            let written = written.unwrap_or_else(|_| Err(panicked()));
            (written.unwrap_or_else(|cause| Err(shared.poison(&cause))), state.has_written(Instant::now()))
        };
        if wake {
            shared.work.notify_one();
        }
        shared.positions.wake();
        outcome
    }
}

impl State {
    pub(crate) fn new(applier: Applier, now: Instant) -> Self {
        Self { applier, opened_at: now, ending: false, unsynced_since: None, taken_at: now, retain_at: now }
    }

    /// To be called before anything is written: retention by age, and files that could not be prepared, go by what the
    /// clocks show now.
    pub(crate) fn look_at_clock(&mut self, now: Instant) {
        self.applier.has_passed(now.saturating_duration_since(self.opened_at));
    }

    /// Takes note of what was just written. Whether the thread has to hear of it.
    pub(crate) fn has_written(&mut self, now: Instant) -> bool {
        self.taken_at = now;
        if self.applier.is_settled() {
            self.unsynced_since = None;
            return true; // the tail wants its proof
        }
        let is_first = self.unsynced_since.is_none();
        self.unsynced_since.get_or_insert(now);
        is_first || self.applier.unsynced() > SYNC_BYTES
    }

    /// A sync has returned 0.
    pub(crate) fn has_synced(&mut self, job: &Arc<SyncOnce>, now: Instant) {
        self.applier.end_sync(job);
        self.unsynced_since = (!self.applier.is_settled()).then_some(now);
    }

    /// Proves the tail.
    pub(crate) fn prove(&mut self, now: Instant) -> Result<()> {
        self.applier.prove()?;
        self.unsynced_since = Some(now);
        Ok(())
    }

    /// Lets go of what is too old or too much.
    pub(crate) fn retain(&mut self, now: Instant) -> Result<()> {
        self.look_at_clock(now);
        if let Err(refusal) = self.applier.retain()? {
            tracing::warn!(%refusal, "what is too old stays for now");
        }
        self.retain_at = now + RETRY_DELAY;
        if !self.applier.is_settled() {
            self.unsynced_since.get_or_insert(now);
        }
        Ok(())
    }

    pub(crate) fn next(&mut self, now: Instant) -> Next {
        self.look_at_clock(now);
        let applier = &self.applier;
        let until = |at: Instant| at.saturating_duration_since(now);
        let wait = if !applier.is_settled() {
            let due = until(self.unsynced_since.map_or(now, |since| since + SYNC_DELAY));
            if self.ending || due.is_zero() || applier.unsynced() > SYNC_BYTES {
                return Next::Sync;
            }
            Some(due)
        } else if applier.is_unproven() {
            let due = until(self.taken_at + PROOF_DELAY);
            if self.ending || due.is_zero() {
                return Next::Prove;
            }
            Some(due)
        } else {
            None
        };
        if self.ending {
            return Next::End;
        }
        let retains = applier.retains_in().map(|left| left.max(until(self.retain_at)));
        if retains.is_some_and(|left| left.is_zero()) {
            return Next::Retain;
        }
        Next::Wait([wait, retains].into_iter().flatten().min())
    }
}

impl Shared {
    /// The state, if anything may be done to it.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = match self.state.lock() {
            Ok(state) => state,
            Err(_) => return Err(self.poison(&panicked())),
        };
        match self.published.poison.get() {
            Some(poison) => Err(poison.clone()),
            None if state.ending => Err(closed()),
            None => Ok(state),
        }
    }

    /// The log was closed.
    fn end(&self) {
        self.allocator.wind_up(); // who writes may wait for a file
        match self.state.lock() {
            Ok(mut state) => state.ending = true,
            Err(broken) => broken.into_inner().ending = true,
        }
        self.work.notify_one();
    }

    /// Nothing is written any more.
    fn poison(&self, cause: &Error) -> Error {
        let error = self.published.poison.get_or_init(|| {
            tracing::error!(%cause, "the follower's log is poisoned: it takes nothing more until it is opened again");
            poisoned(cause)
        });
        self.work.notify_one();
        error.clone()
    }

    /// The thread's life: until the handle is closed, or the log is poisoned.
    fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work()));
        if let Err(cause) = outcome.unwrap_or_else(|_| Err(panicked())) {
            self.poison(&cause);
        }
        self.allocator.settle();
        self.positions.close(self.published.poison.get().cloned().unwrap_or_else(closed));
        self.allocator.stop();
    }

    fn work(&self) -> Result<()> {
        while let Some(job) = self.next_sync()? {
            let began = Instant::now();
            job.run()?;
            self.published.counters.synced(began.elapsed());
            let mut state = self.state.lock().map_err(|_| panicked())?;
            state.has_synced(&job, Instant::now());
        }
        Ok(())
    }

    /// Waits for something to sync, and does all else meanwhile. `None`: the end.
    fn next_sync(&self) -> Result<Option<Arc<SyncOnce>>> {
        let mut state = self.state.lock().map_err(|_| panicked())?;
        loop {
            if self.published.poison.get().is_some() {
                return Ok(None);
            }
            let now = Instant::now();
            match state.next(now) {
                Next::End => return Ok(None),
                Next::Sync => match state.applier.begin_sync() {
                    Some(job) => return Ok(Some(job)),
                    None => drop(state.applier.sync()?),
                },
                Next::Prove => state.prove(now)?,
                Next::Retain => {
                    state.retain(now)?;
                    drop(state);
                    self.positions.wake();
                    state = self.state.lock().map_err(|_| panicked())?;
                }
                Next::Wait(None) => {
                    state = self.work.wait(state).map_err(|_| panicked())?;
                }
                Next::Wait(Some(left)) => {
                    state = self.work.wait_timeout(state, left).map_err(|_| panicked())?.0;
                }
            }
        }
    }
}

impl std::fmt::Debug for FollowerLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FollowerLog").field("log", &self.log).finish()
    }
}

fn check(options: &Options) -> Result<()> {
    if options.cluster.is_some() {
        let what = "option cluster has to be None: a follower is no member of the cluster";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    options.check()
}

/// What the log dies of when a thread panics that writes to it.
fn panicked() -> Error {
    Error::new(ErrorKind::Poisoned, "a thread panicked while it wrote to the follower's log")
}

/// What everything gets that would write to the log.
fn takes_no_appends(path: &Path, log: LogId) -> Error {
    let what = format!(
        "{} follows log {log} and takes nothing else: ask the cluster's leader; nothing was written",
        path.display()
    );
    Error::new(ErrorKind::NotLeader, what)
}
