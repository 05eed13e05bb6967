//! FollowerLog: the handle of a log that follows another one, in the caller's process. It is no member of the cluster,
//! has no vote and costs the cluster nothing. Any replica can feed it, and so can another follower.
//!
//! ```text
//!  a log somewhere ── FollowSource ──> bytes, any channel ──> FollowMessage ── apply ─> FollowerLog ── log() ──> readers
//!                     ^                                                                    │
//!                     └────────────── resume_point: where to continue ─────────────────────┘
//! ```
//!
//! The thread that calls `apply` writes. A thread of the follower's own syncs within 100 ms, proves the tail when no
//! more entries arrive, and discards what is older or larger than retention allows.
//!
//! Invariants:
//! - one thread writes at a time, under a lock that readers never take;
//! - callbacks run without that lock.
//!
//! Must not know: raft, the network.

use crate::api::log::Log;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::applier::room::check_retention;
use crate::follower::applier::{Applier, Jumped};
use crate::follower::entry_feed::PASSED_SEGMENTS_MAX;
use crate::follower::message::{FollowEntries, FollowFrom, FollowMessage};
use crate::follower::to_replica::replica_of_copy;
use crate::options::Options;
use crate::read::log_set::LogSet;
use crate::read::patience::Patience;
use crate::read::positions::closed;
use crate::read::view::LogView;
use crate::record::batch::BatchHeader;
use crate::replica::node::runtime::{Runtime, WriterThreads};
use crate::replica::node::shared::Shared as LogShared;
use crate::replica::node::{Published, poisoned};
use crate::replica::open::{
    RecoveredLog, create_branched, create_followed, disk_at, open_followed, reset_followed,
};
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::writer::SyncOnce;
use crate::store::allocator::Allocator;
use crate::store::format::identity::Identity;
use crate::store::segment::damage::Helpers;
use crate::types::{Index, LogId, LogNumber, NodeId, Timestamp};
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A sync of what was taken begins within this time.
const SYNC_DELAY: Duration = Duration::from_millis(100);
/// A sync begins at once when this many bytes are unsynced.
const SYNC_BYTES: u64 = 8 << 20;
/// A thread that calls `apply` with more than this unsynced waits for a sync.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// The tail is proven when nothing was taken for this time.
const PROOF_DELAY: Duration = Duration::from_millis(100);
/// A reader waits this long for the copy to learn which object has a record.
const OBJECT_WAIT: Duration = Duration::from_secs(5);
/// Retention that could not prepare a file retries after this time.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A log in a directory that follows another one: it takes what a [`FollowSource`](crate::follower::FollowSource)
/// returns and serves readers like any log. Cheap to clone, `Send + Sync`. It is closed when [`Self::close`] is called,
/// or when the last clone and the last handle that [`Self::log`] returned are dropped.
///
/// It is no replica: the cluster does not know of it and never waits for it. Its records are durable elsewhere, so
/// readers see them as soon as they are written here. A crash of the machine can remove records that were not synced
/// yet, until they are fed again; a sync begins within 100 ms. `kill -9` removes nothing. A position that a program
/// stores (the index of the next record that it wants) stays valid: the same records are fed again.
///
/// ```
/// use chiplog::follower::{FollowMessage, FollowFrom};
/// use chiplog::{FollowerLog, Log, Options};
/// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// # let options = || Options::with_segment_bytes(1 << 20);
/// let log = Log::open(a.path(), options())?;
/// log.append(b"one")?;
/// // The first feed begins with a state, of which the follower's log is made.
/// let mut feed = log.follow(FollowFrom::First)?;
/// let Some(FollowMessage::State(state)) = feed.next(1 << 20)? else { panic!() };
/// drop(FollowerLog::create(b.path(), options(), &state)?);
/// // From then on, any number of times:
/// let copy = FollowerLog::open(b.path(), options())?;
/// let mut feed = log.follow(copy.resume_point()?)?;
/// while let Some(fed) = feed.next(1 << 20)? {
///     if let Some(jumped) = copy.apply(fed)? {
///         println!("records {} to {} were discarded before this copy had them", jumped.from, jumped.to.previous());
///     }
/// }
/// assert_eq!(copy.log().last_index().get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FollowerLog {
    log: Log,
    shared: Arc<Shared>,
}

/// The state that the handle and its thread share.
struct Shared {
    state: Mutex<State>,
    /// The thread waits on this.
    work: Condvar,
    view: LogView,
    published: Arc<Published>,
    allocator: Arc<Allocator>,
    /// The thread does nothing before the log is closed.
    unaided: bool,
}

/// The decisions, made under the lock at a time that the caller passes. The thread and the simulator both call it.
pub(crate) struct State {
    pub(crate) applier: Applier,
    opened_at: Instant,
    /// The handle was closed.
    ending: bool,
    /// When the oldest unsynced bytes were written.
    unsynced_since: Option<Instant>,
    /// When something was taken last.
    taken_at: Instant,
    /// Retention is not tried before this time.
    retain_at: Instant,
}

/// The thread's next step.
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
    /// The options that count are those about how files are kept and read, and `retention_bytes` and `retention_age`:
    /// the follower's own retention, in addition to what its source discards. With `vault`, the log's object store, it
    /// reads what is stored from there, has all records of the log, and removes files by `local_bytes` and `local_age`
    /// once what is in them is stored; give it at every opening. `segment_bytes` has to be large enough for the
    /// source's blocks; use at least the source's value. `create` is ignored; `cluster` has to be `None`.
    ///
    /// # Errors
    /// `NotFound`: there is no log yet; see [`Self::create`]. `InvalidArgument`: the directory holds a standalone log
    /// or a replica; or an option is out of bounds. `Locked`. `Corrupt`: names file and offset; see [`Self::destroy`].
    /// `Unsupported`, `Io`, `Full`.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_on(disk_at(dir.as_ref(), false)?, options)
    }

    /// As [`Self::open`], on another implementation of [`Disk`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        check(&options)?;
        let opened = open_followed(disk.clone(), &options)?;
        check_fill(&options, &opened)?;
        check_retention(&options, opened.sequencer.committed().objects.group().is_some())?;
        Self::start(&*disk, opened, options, false)
    }

    /// Makes the follower's log in `dir`, beginning at `state`: the first item of a feed that was opened at
    /// [`FollowFrom::First`], [`FollowFrom::Index`] or [`FollowFrom::Newest`]. The log is durable when this returns.
    ///
    /// # Errors
    /// `InvalidArgument`: the directory holds a log already; or an option is out of bounds. `TooLarge`: the state
    /// does not fit a segment. `Locked`, `Corrupt`, `Io`, `Full`.
    pub fn create(dir: impl AsRef<Path>, options: Options, state: &FollowSnapshot) -> Result<Self> {
        check(&options)?;
        check_fill_of(&options, state)?;
        check_retention(&options, state.group_objects().is_some())?;
        Self::create_on(disk_at(dir.as_ref(), true)?, options, state)
    }

    /// As [`Self::create`], on another implementation of [`Disk`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_on(disk: Arc<dyn Disk>, options: Options, state: &FollowSnapshot) -> Result<Self> {
        check(&options)?;
        check_fill_of(&options, state)?;
        check_retention(&options, state.group_objects().is_some())?;
        let opened = create_followed(disk.clone(), &options, state)?;
        Self::start(&*disk, opened, options, false)
    }

    /// As [`Self::create_on`], for a branch that is filled and closed: its thread does nothing before it is closed, and no helper prepares
    /// files. So the same calls make the same files, and take no time of the clock. Its records in objects count as there.
    pub(crate) fn create_unaided(
        disk: Arc<dyn Disk>,
        options: Options,
        state: &FollowSnapshot,
    ) -> Result<Self> {
        check(&options)?;
        let opened = create_branched(disk.clone(), &options, state)?;
        opened.store.allocator.go_unaided();
        Self::start(&*disk, opened, options, true)
    }

    /// Removes a follower's log, so that it can be created again: after damage, or when its history is not the
    /// source's. No record is lost that the source still has. The directory stays.
    ///
    /// ```
    /// # use chiplog::follower::{FollowMessage, FollowFrom};
    /// # use chiplog::{FollowerLog, Log, Options};
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
    /// `NotFound`: there is no log. `InvalidArgument`: the log is not a follower's. `Locked`: it is open. `Corrupt`:
    /// the files do not show whether it is a follower's. `Io`: some files may remain; retry.
    pub fn destroy(dir: impl AsRef<Path>) -> Result<()> {
        Self::destroy_on(&*disk_at(dir.as_ref(), false)?)
    }

    /// As [`Self::destroy`], on another implementation of [`Disk`].
    ///
    /// # Errors
    /// As [`Self::destroy`].
    pub fn destroy_on(disk: &dyn Disk) -> Result<()> {
        reset_followed(disk)
    }

    /// The log of which the directory holds a copy. None: it holds none.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the directory does not show it.
    #[doc(hidden)]
    pub fn log_at(dir: impl AsRef<Path>) -> Result<Option<LogId>> {
        let dir = dir.as_ref();
        if !dir.is_dir() {
            return Ok(None);
        }
        let identity = Identity::read(&*disk_at(dir, false)?)?;
        Ok(identity.filter(|identity| identity.follows).map(|identity| identity.log))
    }

    /// Makes the closed copy in `dir` the replica of a server that joins the log's cluster as node `node`: the server opens it as one that
    /// exists, and the cluster's leader adds it as a learner. The leader has the log begin with record `first`, from which on the copy has to have
    /// all of them; its end can be missing. There is no way back. Blocks while recovery reads the last segment, and until this is durable.
    ///
    /// # Errors
    /// `InvalidArgument`: the directory holds no copy, one of another log, of one named log, of a part of the log or of one with an object
    /// store, or the copy knows this node as a member.
    /// `NotFound`: there is no log. `Locked`: it is open. `Corrupt`, `Unsupported`, `Io`.
    #[doc(hidden)]
    pub fn make_replica(
        dir: impl AsRef<Path>,
        log: LogId,
        node: NodeId,
        first: Index,
        options: &Options,
    ) -> Result<()> {
        Self::make_replica_on(&disk_at(dir.as_ref(), false)?, log, node, first, options)
    }

    /// As [`Self::make_replica`], on another implementation of [`Disk`].
    ///
    /// # Errors
    /// As [`Self::make_replica`].
    #[doc(hidden)]
    pub fn make_replica_on(
        disk: &Arc<dyn Disk>,
        log: LogId,
        node: NodeId,
        first: Index,
        options: &Options,
    ) -> Result<()> {
        replica_of_copy(disk, log, node, first, &Options { cluster: None, ..options.clone() })
    }

    fn start(disk: &dyn Disk, opened: RecoveredLog, options: Options, unaided: bool) -> Result<Self> {
        let allocator = opened.store.allocator.clone();
        let make = |opened, log: &LogShared| {
            log.queue.refuse(takes_no_appends(&log.path, log.identity.log));
            log.view.segments.damage().set_helpers(Helpers::Source);
            Ok(Shared {
                state: Mutex::new(State::new(Applier::new(opened, log), Instant::now())),
                work: Condvar::new(),
                view: log.view.clone(),
                published: log.published.clone(),
                allocator,
                unaided,
            })
        };
        let (mut runtime, shared) = Runtime::start(disk.path(), opened, options, make)?;
        let stopped = shared.clone();
        runtime.stopped_by(move || stopped.end());
        Ok(Self { log: Log::of_copy(runtime, Patience::new(OBJECT_WAIT)), shared })
    }

    /// The position at which the next feed has to begin to continue this log.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`.
    pub fn resume_point(&self) -> Result<FollowFrom> {
        Ok(self.shared.lock()?.applier.resume_point())
    }

    /// Takes one item of a feed. Returns when it is written and readers can see it; a sync of it begins within 100
    /// ms. Blocks on the disk, and while another thread takes.
    ///
    /// Returns a [`Jumped`] if the log skipped records: then the records that were here are gone, and a reader before
    /// the new beginning gets `Discarded`. A log that was opened with a vault skips only records that were discarded.
    ///
    /// # Errors
    /// An error refuses one entry and all after it. The entries before it may have been taken: [`Self::resume_point`]
    /// returns where to continue.
    ///
    /// `Diverged`: the item belongs to another log, or contradicts the entries here; do not request it from the same
    /// source again. `Full`: there was not enough room; continue once there is room. `TooLarge`: `segment_bytes` is
    /// too small for the source's blocks. `InvalidArgument`: the entries do not begin where the log ends. `Io`,
    /// `Corrupt`: a file could not be prepared, or an existing file could not be read; the log is not poisoned, and a
    /// retry may succeed. `Poisoned`: a write or a sync has failed; close the log and open it again. `Closed`,
    /// `Forked`.
    pub fn apply(&self, fed: FollowMessage) -> Result<Option<Jumped>> {
        self.check_objects(&fed)?;
        self.apply_checked(fed)
    }

    /// As [`Self::apply`], after [`Self::check_objects`], without waiting for the object store.
    ///
    /// # Errors
    /// As [`Self::apply`].
    #[doc(hidden)]
    pub fn apply_checked(&self, fed: FollowMessage) -> Result<Option<Jumped>> {
        match fed {
            FollowMessage::State(state) => self.change(|applier| applier.install_snapshot(&state)),
            FollowMessage::Entries(entries) => self.apply_entries(entries).map(|()| None),
        }
    }

    /// As [`Self::apply`], for entries.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn apply_entries(&self, entries: FollowEntries) -> Result<()> {
        self.change(|applier| applier.apply(entries))
    }

    /// As [`Self::apply`], for a state: the log continues at it. Returns `None` if the log is there already, or lacks no
    /// record, because those before the state are in its object store.
    ///
    /// # Errors
    /// As [`Self::apply`]; `Diverged` also if the state is before the end of the log. `Unavailable`: the files here would go, and the
    /// object store of this log has returned nothing yet. Nothing was taken: try again, or continue with a feed that skips nothing.
    pub fn install_snapshot(&self, state: &FollowSnapshot) -> Result<Option<Jumped>> {
        self.check_objects_of(state)?;
        self.change(|applier| applier.install_snapshot(state))
    }

    /// Before an item of a feed replaces the files: their records have to come from the object store then. Its location, or the rights,
    /// could be wrong. This may have to read an object, and then waits for the store as long as that takes. It holds no lock meanwhile, and
    /// the log can be closed.
    ///
    /// # Errors
    /// `Unavailable`: the store has returned nothing yet.
    #[doc(hidden)]
    pub fn check_objects(&self, fed: &FollowMessage) -> Result<()> {
        match fed {
            FollowMessage::State(state) => self.check_objects_of(state),
            FollowMessage::Entries(_) => Ok(()),
        }
    }

    fn check_objects_of(&self, state: &FollowSnapshot) -> Result<()> {
        let positions = &self.shared.view.positions;
        let leads_on = state.log == self.log.log_id() && state.raft() > positions.entry();
        // Records that the log has discarded are no loss.
        let has_records = positions.committed() >= state.kept.max(positions.first());
        if !leads_on || !has_records {
            return Ok(());
        }
        let Some((owner, number)) = state.newest_object() else { return Ok(()) };
        self.shared.view.segments.objects().try_object(owner, number).map_err(|error| {
            let what = format!(
                "the files of this copy would go, and its object store has returned nothing since it was opened: {error}"
            );
            Error::new(ErrorKind::Unavailable, what)
        })
    }

    /// Blocks until everything that was taken is durable here.
    ///
    /// # Errors
    /// `Poisoned`, `Closed`, `Forked`.
    pub fn sync(&self) -> Result<()> {
        self.change(|applier| applier.settle().map(Ok))
    }

    /// Adds an entry with these batches to a log that was concluded. Returns the refusals. See [`Applier::append`].
    pub(crate) fn append(
        &self,
        batches: &[(LogNumber, BatchHeader, Bytes)],
        time: Timestamp,
    ) -> Result<Vec<Error>> {
        self.change(|applier| applier.append(batches, time))
    }

    /// Ends the log so that it can continue as a log of its own, `terms` terms after its last entry's. Nothing may be
    /// taken afterwards.
    pub(crate) fn conclude(&self, terms: u64) -> Result<()> {
        self.change(|applier| applier.conclude(terms))
    }

    /// The logs of a shared group, as far as entries are committed.
    pub(crate) fn logs(&self) -> &LogSet {
        &self.shared.view.logs
    }

    /// The log: it can be read, inspected and fed from like any other. Calls that would write to it fail with
    /// `NotLeader`: appends, discards, sessions, requests to the cluster. Callbacks of its readers and feeds run on
    /// the thread that calls [`Self::apply`], or on the log's own thread: when the log is closed, and when retention
    /// discards records.
    ///
    /// A log with an object store begins, and goes on after it was away for long, behind what is stored, and learns of the newest objects
    /// from the entries that it takes next. A reader of records in these waits for that, for at most 5 s, and then fails as
    /// `Unavailable`. So read on another thread than the one that applies entries.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// As [`Log::close`]: everything that was taken is durable when it returns. Readers keep working.
    ///
    /// # Errors
    /// As [`Log::close`].
    pub fn close(&self) -> Result<()> {
        self.log.close()
    }

    /// Runs `f`, which writes, and then syncs, wakes the thread and notifies readers as needed.
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
        shared.view.wake();
        outcome
    }
}

impl State {
    pub(crate) fn new(applier: Applier, now: Instant) -> Self {
        Self { applier, opened_at: now, ending: false, unsynced_since: None, taken_at: now, retain_at: now }
    }

    /// Reads the clock. Call it before every write: retention by age, and the retry of files that could not be
    /// prepared, depend on the time.
    pub(crate) fn look_at_clock(&mut self, now: Instant) {
        self.applier.has_passed(now.saturating_duration_since(self.opened_at));
    }

    /// Notes that something was written. Returns whether the thread has to be woken.
    pub(crate) fn has_written(&mut self, now: Instant) -> bool {
        self.taken_at = now;
        if self.applier.is_settled() {
            self.unsynced_since = None;
            return true; // the tail has to be proven
        }
        let is_first = self.unsynced_since.is_none();
        self.unsynced_since.get_or_insert(now);
        is_first || self.applier.unsynced() > SYNC_BYTES
    }

    /// Notes that a sync has succeeded.
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

    /// Discards what is older or larger than retention allows.
    pub(crate) fn retain(&mut self, now: Instant) -> Result<()> {
        self.look_at_clock(now);
        if let Err(refusal) = self.applier.retain()? {
            tracing::warn!(%refusal, "retention could not discard old records; retrying later");
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

impl WriterThreads for Shared {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work()));
        if let Err(cause) = outcome.unwrap_or_else(|_| Err(panicked())) {
            self.poison(&cause);
        }
        self.allocator.settle();
        self.view.close(self.published.poison.get().cloned().unwrap_or_else(closed));
    }
}

impl Shared {
    /// Locks the state, unless the log is poisoned or closed.
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

    /// Ends the thread: the log was closed.
    fn end(&self) {
        self.allocator.wind_up(); // a writing thread may wait for a file
        match self.state.lock() {
            Ok(mut state) => state.ending = true,
            Err(broken) => broken.into_inner().ending = true,
        }
        self.work.notify_one();
    }

    /// Poisons the log: nothing is written any more.
    fn poison(&self, cause: &Error) -> Error {
        let error = self.published.poison.get_or_init(|| {
            tracing::error!(%cause, "the follower's log is poisoned: nothing more is written until it is opened again");
            poisoned(cause)
        });
        self.work.notify_one();
        error.clone()
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

    /// Waits for something to sync; proves the tail and discards meanwhile. `None`: the log was closed or poisoned.
    fn next_sync(&self) -> Result<Option<Arc<SyncOnce>>> {
        let mut state = self.state.lock().map_err(|_| panicked())?;
        loop {
            if self.published.poison.get().is_some() {
                return Ok(None);
            }
            let now = Instant::now();
            let next = if self.unaided && !state.ending { Next::Wait(None) } else { state.next(now) };
            match next {
                Next::End => return Ok(None),
                Next::Sync => match state.applier.begin_sync() {
                    Some(job) => return Ok(Some(job)),
                    None => drop(state.applier.sync()?),
                },
                Next::Prove => state.prove(now)?,
                Next::Retain => {
                    state.retain(now)?;
                    drop(state);
                    self.view.wake();
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
        let what = "option cluster has to be None, because a follower is no member of the cluster";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    if options.vault.is_some() {
        check_with_vault(options)?;
    }
    options.check()
}

/// A follower with an object store has all records of the log.
fn check_with_vault(options: &Options) -> Result<()> {
    if options.retention_bytes.is_some() || options.retention_age.is_some() {
        let what = "a follower with an object store has all records of the log: use local_bytes and local_age for what stays in \
                    files, and leave out retention_bytes and retention_age; or leave out the object store";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let needed = 2 * (PASSED_SEGMENTS_MAX as u64 + 1) * u64::from(options.segment_bytes);
    if options.capacity_bytes.is_some_and(|capacity| capacity < needed) {
        let what = format!(
            "capacity_bytes of a follower with an object store must be at least {needed}, ten segments: it is fed what is stored \
             from up to {PASSED_SEGMENTS_MAX} of them"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// The directory's own log is a copy of one log.
fn check_fill(options: &Options, opened: &RecoveredLog) -> Result<()> {
    match opened.sequencer.committed().membership.is_of_one_log() {
        true if options.fill_bytes.is_some() => Err(fills_for_one_log()),
        _ => Ok(()),
    }
}

fn check_fill_of(options: &Options, state: &FollowSnapshot) -> Result<()> {
    if state.is_of_one_log() && options.fill_bytes.is_some() { Err(fills_for_one_log()) } else { Ok(()) }
}

/// The error of a copy of one log that is to keep whole objects.
fn fills_for_one_log() -> Error {
    let what = "a copy of one named log reads its own part of each object, and whole objects have the records of all logs of the \
                group: leave out fill_bytes; cache_bytes is how much it keeps of what readers have read";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// The poison cause after a panic of a thread that was writing to the log.
fn panicked() -> Error {
    Error::new(ErrorKind::Poisoned, "a thread panicked while it wrote to the follower's log")
}

/// The error of every call that would write to the log.
fn takes_no_appends(path: &Path, log: LogId) -> Error {
    let what = format!(
        "{} follows log {log} and accepts no other writes; nothing was written: append at the cluster's leader",
        path.display()
    );
    Error::new(ErrorKind::NotLeader, what)
}
