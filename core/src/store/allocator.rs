//! Allocator: it prepares segment files ahead of need, and seals, reuses and deletes them, on a helper thread, so that the writer
//! does not spend time on it. Groups of named logs on one disk share a thread, see [`Helper`].
//!
//! ```text
//! prepare:  create or take an old file as `N.tmp` -> header with a new id -> sync -> rename `N.seg` -> sync dir
//! seal:     block index + footer into a full segment -> sync
//! discard:  file of a dropped segment -> reused by the next prepare if nobody reads it, else removed
//! ```
//!
//! Invariants:
//! - a file named `*.seg` has its full size, really allocated, and a valid header, all durable;
//! - a file is reused only if no reader has it open: this handle began it, and nothing else holds its [`Segment`];
//! - [`AHEAD`] files are kept ready once the log fills up. An append of data never takes the last one, so that
//!   commands, above all a discard, have room when the disk is full.

mod files;

pub(super) use self::files::random_id;
pub(crate) use super::background::{AHEAD, LOOK_AGAIN, PreparedSegment, RETRY_DELAY};

use super::background::{BackgroundJob, Job, JobQueue, Outcome};
use super::format::segment::FORMAT_VERSION_FIRST;
use super::helper::{Helper, HelperWork, Urgency};
use super::segment::Segment;
use crate::disk::Disk;
use crate::disk::spare_files::make_room;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::clock::Moment;
use crate::types::LogId;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The use of a new segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Records: may not take the last prepared file.
    Data,
    /// Discards of single logs of a shared group: may take the last prepared file, but only a half of its room. Each alone removes no file.
    OneLog,
    /// Other commands and positions: may take the last prepared file.
    Metadata,
}

impl Purpose {
    /// How many files must be ready before one of them is taken.
    fn files_ready(self) -> usize {
        match self {
            Self::Data => 2,
            Self::OneLog | Self::Metadata => 1,
        }
    }
}

/// Notifies callers that did not wait for a file.
struct FileHook(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for FileHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHook")
    }
}

/// The prepared files and the pending work, shared by the writer and the helper thread.
#[derive(Debug)]
pub(crate) struct Allocator {
    disk: Arc<dyn Disk>,
    log: LogId,
    segment_bytes: u32,
    /// The version that the headers of its files require from readers. It never decreases.
    version: AtomicU32,
    /// The time on the clock of the log's own thread, as last reported.
    now: AtomicU64,
    /// This handle began the segments from this number on. Earlier ones may be mapped by readers of an earlier handle
    /// in this process.
    own_from: u64,
    state: Mutex<JobQueue>,
    /// A helper thread of its own waits here for work.
    work: Condvar,
    /// The helper thread that it shares with other logs.
    helper: OnceLock<Arc<Helper>>,
    /// Threads that block until a file is ready wait here.
    done: Condvar,
    /// Callers that do not block are notified through this.
    file_hook: OnceLock<FileHook>,
    /// Whether its segments can have sorted copies, which are removed with them.
    has_copies: AtomicBool,
}

impl Allocator {
    /// `next` is the number after the last segment's; `spare` are files whose contents do not matter.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        log: LogId,
        segment_bytes: u32,
        next: u64,
        spare: Vec<String>,
    ) -> Self {
        let state = JobQueue { next_number: next, spare, ..JobQueue::default() };
        Self {
            disk,
            log,
            segment_bytes,
            version: AtomicU32::new(FORMAT_VERSION_FIRST),
            now: AtomicU64::new(Moment::default().0),
            own_from: next,
            state: Mutex::new(state),
            work: Condvar::new(),
            helper: OnceLock::new(),
            done: Condvar::new(),
            file_hook: OnceLock::new(),
            has_copies: AtomicBool::new(false),
        }
    }

    /// Sets the notification that runs on the helper thread whenever [`Self::is_coming`] or [`Self::is_one_coming`] may
    /// have changed. Call it once.
    pub(crate) fn set_file_hook(&self, file_hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.file_hook.set(FileHook(Box::new(file_hook)));
    }

    /// Has its work done by this thread, with that of other logs.
    pub(crate) fn shares(&self, helper: &Arc<Helper>) {
        let _ = self.helper.set(helper.clone());
        helper.wake();
    }

    /// Wakes the helper thread.
    fn wake(&self) {
        match self.helper.get() {
            Some(helper) => helper.wake(),
            None => self.work.notify_one(),
        }
    }

    /// Has the sorted copy of each segment removed with it.
    pub(crate) fn remove_copies(&self) {
        self.has_copies.store(true, Ordering::Relaxed);
    }

    /// Sets the time. Failed attempts are repeated by the clock of the log's own thread.
    pub(crate) fn set_time(&self, now: Moment) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::Relaxed))
    }

    /// Makes later files require at least this version from their readers, so that their headers need not be raised.
    pub(crate) fn require_version(&self, version: u32) {
        self.version.fetch_max(version, Ordering::Relaxed);
    }

    /// The size of the files that it makes.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next file; waits while the helper makes one.
    ///
    /// # Errors
    /// The reason why the helper could not make it: `Full` if there is no space, otherwise `Io`. Nothing was written to
    /// the log.
    pub(crate) fn take(&self, purpose: Purpose) -> Result<PreparedSegment> {
        let mut state = self.await_ready(purpose.files_ready())?;
        self.wake();
        state.awaited_since = None;
        match state.ready.pop_front() {
            Some(prepared) => Ok(prepared),
            None => unreachable!("it was waited for"),
        }
    }

    /// Blocks until a file is ready.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub(crate) fn keep_one_ready(&self) -> Result<()> {
        self.await_ready(1).map(drop)
    }

    /// Whether [`Self::take`] would wait because a file is being made. Starts making one if needed. For callers that
    /// must not wait.
    pub(crate) fn is_coming(&self, purpose: Purpose) -> bool {
        self.awaits(purpose.files_ready())
    }

    /// Whether [`Self::keep_one_ready`] would wait.
    pub(crate) fn is_one_coming(&self) -> bool {
        self.awaits(1)
    }

    fn awaits(&self, needed: usize) -> bool {
        let mut state = self.lock();
        if (state.unaided && !state.late) || state.stop || state.ready.len() >= needed {
            return false;
        }
        state.try_again(self.now());
        state.wanted = true;
        state.awaited = state.failure().is_none();
        if state.awaited {
            state.awaited_since.get_or_insert_with(Instant::now);
        }
        self.wake();
        state.awaited
    }

    /// Whether [`Self::take`] would return a file at once.
    pub(crate) fn has_ready(&self, purpose: Purpose) -> bool {
        self.lock().ready.len() >= purpose.files_ready()
    }

    /// Whether a file is ready.
    pub(crate) fn has_one_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// Whether files are missing, and the last attempt to make one found no room.
    pub(crate) fn is_out_of_room(&self) -> bool {
        let state = self.lock();
        let is_full = |error: &Error| error.kind() == ErrorKind::Full;
        state.ready.len() < AHEAD && state.failure().is_some_and(is_full)
    }

    /// Whether files are missing, and the last attempt that ended made none, also while another one is under way.
    pub(crate) fn lacks_room(&self) -> bool {
        let state = self.lock();
        state.lacks_room && state.ready.len() < AHEAD
    }

    /// Repeats the last attempt if the disk has room by now: a log that needs no further file for long would not find out. Asks the disk
    /// every [`LOOK_AGAIN`].
    pub(crate) fn look_for_room(&self) {
        let now = self.now();
        {
            let mut state = self.lock();
            let last = state.looked_at.max(state.failed_at);
            if state.busy || last.is_some_and(|at| now.since(at) < LOOK_AGAIN) {
                return;
            }
            state.looked_at = Some(now);
        }
        let needed = u64::from(self.segment_bytes);
        if self.disk.space().is_ok_and(|space| space.is_some_and(|space| space.free >= needed)) {
            self.lock().failed = None;
            self.wake();
        }
    }

    /// Has the next file prepared where that is done on the caller's thread, once there is time for it.
    pub(crate) fn want_in_time(&self) {
        let mut state = self.lock();
        if state.unaided {
            state.try_again(self.now());
            state.wanted = true;
        }
    }

    /// When the last attempt to make a file found no room. None: it did not fail for that.
    #[cfg(feature = "testing")]
    pub(crate) fn refused_at(&self) -> Option<Moment> {
        let state = self.lock();
        state.failed_at.filter(|_| state.failed.as_ref().is_some_and(|error| error.kind() == ErrorKind::Full))
    }

    /// Waits until `needed` files are ready, and keeps the lock.
    fn await_ready(&self, needed: usize) -> Result<MutexGuard<'_, JobQueue>> {
        let mut state = self.lock();
        if state.ready.len() < needed {
            state.try_again(self.now());
        }
        state.wanted = true;
        if state.unaided {
            drop(state);
            self.help();
            state = self.lock();
        }
        loop {
            if state.ready.len() >= needed {
                return Ok(state);
            }
            if state.stop {
                let what = "the thread that prepares segments has ended; close the log and open it again";
                return Err(Error::new(ErrorKind::Closed, what));
            }
            if state.ending {
                return Err(Error::new(
                    ErrorKind::Closed,
                    "the log is being closed, so no segment is prepared",
                ));
            }
            if let Some(error) = state.failure() {
                return Err(error.clone());
            }
            self.wake();
            state.awaited_since.get_or_insert_with(Instant::now);
            state.blocked += 1;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.blocked -= 1;
        }
    }

    /// Requests files ahead, because the growing segment is filling up.
    pub(crate) fn want(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.wake();
        }
    }

    /// Hands over a full segment whose successor has durably begun: its footer can be written.
    pub(crate) fn seal(&self, segment: Arc<Segment>) {
        self.lock().seal.push_back(segment);
        self.wake();
    }

    /// Hands over segments that were durably discarded.
    pub(crate) fn discard(&self, segments: Vec<Arc<Segment>>) {
        let mut state = self.lock();
        state.dropped.extend(segments);
        state.failed = None;
        self.wake();
    }

    /// Runs a job on the helper thread, after more urgent work; at once if there is no helper thread. While the log
    /// is being closed, it may never run.
    pub(crate) fn run_in_background(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if state.stop {
            return; // it is never run; kept here, it could keep this
        }
        state.jobs.push_back(BackgroundJob(Box::new(job)));
        if state.unaided {
            let late = state.late;
            drop(state);
            if !late {
                self.help();
            }
            return;
        }
        self.wake();
    }

    /// Stops making files, because the log is about to be closed. No caller waits for a file any more.
    pub(crate) fn wind_up(&self) {
        self.lock().ending = true;
        self.done.notify_all();
    }

    /// Waits until nothing is left to seal or delete; prepares no more files. Invariant: what is left is done before all work that
    /// nothing waits for, of whichever log.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        state.ending = true;
        if state.unaided {
            drop(state);
            return self.help();
        }
        // The close waits: a long job of another log gives way to what is left.
        state.blocked += 1;
        self.wake();
        while !state.stop && (state.busy || !state.seal.is_empty() || !state.dropped.is_empty()) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.blocked -= 1;
    }

    /// Switches to work without a helper thread: everything runs on the caller's thread, so the same calls make the
    /// same files in the same order. For code that drives the log without threads.
    pub(crate) fn go_unaided(&self) {
        self.lock().unaided = true;
    }

    /// Whether everything runs on the caller's thread.
    pub(crate) fn is_unaided(&self) -> bool {
        self.lock().unaided
    }

    /// Without a helper thread: makes files late, when [`Self::help`] is called or a caller has to wait for one. Until
    /// then they are reported as being made.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn go_late(&self, late: bool) {
        self.lock().late = late;
    }

    /// Does all waiting work, unless it is to be done late.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn help_in_time(&self) {
        if !self.lock().late {
            self.help();
        }
    }

    /// Whether any work waits.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn has_work(&self) -> bool {
        let state = self.lock();
        state.wants_file() || !(state.seal.is_empty() && state.dropped.is_empty() && state.jobs.is_empty())
    }

    /// Does all waiting work, on this thread.
    pub(crate) fn help(&self) {
        let mut state = self.lock();
        while let Some(job) = state.next_job() {
            drop(state);
            let outcome = self.carry_out(job);
            state = self.lock();
            state.note(outcome, self.now());
        }
        drop(state);
        self.run_file_hook();
    }

    /// Ends the helper thread after its current job.
    pub(crate) fn stop(&self) {
        let jobs = {
            let mut state = self.lock();
            state.stop = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs); // a job that queues its next step holds this
        self.wake();
        self.done.notify_all();
        self.run_file_hook();
    }

    fn run_file_hook(&self) {
        let awaited = std::mem::take(&mut self.lock().awaited);
        if let (true, Some(FileHook(run))) = (awaited, self.file_hook.get()) {
            run();
        }
    }

    /// Runs a helper thread of its own.
    pub(crate) fn run(&self) {
        // If it panics, no caller waits for it forever.
        struct Ended<'a>(&'a Allocator);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let _ended = Ended(self);
        loop {
            let state = self.lock();
            if state.stop {
                return;
            }
            if state.urgency().is_none() {
                self.done.notify_all();
                drop(self.work.wait(state).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(state);
            self.work();
        }
    }

    /// Prepares the first file of a new log on the caller's thread.
    pub(crate) fn prepare_first(&self) -> Result<()> {
        let (number, spare) = {
            let mut state = self.lock();
            let number = state.next_number;
            (number, state.take_spare(number))
        };
        let outcome = self.prepare_in_room(number, spare);
        let mut state = self.lock();
        let result = outcome.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        state.note(Outcome::Prepared(outcome), self.now());
        result
    }

    /// As [`Self::prepare`]. On a full disk spare files give way.
    fn prepare_in_room(
        &self,
        number: u64,
        spare: Option<String>,
    ) -> Result<PreparedSegment, (Error, Option<String>)> {
        match self.prepare(number, spare) {
            Err((error, spare))
                if error.kind() == ErrorKind::Full && make_room(&*self.disk, self.segment_bytes.into()) =>
            {
                self.prepare(number, spare)
            }
            prepared => prepared,
        }
    }

    /// Whether this thread does a job within a long one of another log.
    fn is_within_another(&self) -> bool {
        self.helper.get().is_some_and(|helper| helper.is_within_another())
    }

    /// Does what other logs wait for, in a job that takes long.
    fn give_way(&self) {
        if let Some(helper) = self.helper.get() {
            helper.give_way();
        }
    }

    fn carry_out(&self, job: Job) -> Outcome {
        match job {
            Job::Prepare(number, spare) => Outcome::Prepared(self.prepare_in_room(number, spare)),
            Job::Seal(segment) => {
                if let Err(error) = self.write_footer(&segment) {
                    tracing::warn!(%error, segment = segment.number, "could not write a segment's footer; the segment is scanned when it is opened");
                }
                Outcome::Nothing
            }
            Job::Drop(segment) => self.reuse_or_remove(segment),
            Job::Run(BackgroundJob(job)) => {
                job();
                Outcome::Nothing
            }
        }
    }
}

impl HelperWork for Allocator {
    fn urgency(&self) -> Option<Urgency> {
        let state = self.lock();
        state.urgency().filter(|_| !state.stop)
    }

    fn work(&self) {
        let mut state = self.lock();
        let Some(job) = state.next_job() else { return };
        state.busy = true;
        drop(state);
        let (now, begun) = (self.now(), Instant::now());
        let outcome = self.carry_out(job);
        state = self.lock();
        state.busy = false;
        // The log's time may have stood still meanwhile. A failure that counted as old at once would never be reported.
        state.note(outcome, self.now().max(now.plus(begun.elapsed())));
        drop(state);
        self.done.notify_all();
        self.run_file_hook();
    }

    fn is_stopped(&self) -> bool {
        self.lock().stop
    }

    fn stop(&self) {
        Self::stop(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskFile;
    use crate::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};
    use crate::store::helper::Helpers;
    use crate::store::segment::{Base, file_name};
    use crate::types::Timestamp;
    use std::io;
    use std::time::Duration;

    /// Without a helper thread no caller waits for a file: files are made when they are needed. The allocator's clock
    /// decides when a failed attempt is repeated.
    #[test]
    fn unaided_files_are_made_when_needed() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new());
        allocator.go_unaided();
        disk.limit_space(Some(1 << 16));
        assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full);
        disk.limit_space(None);
        allocator.set_time(Moment::START.plus(RETRY_DELAY - Duration::from_millis(1)));
        assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full, "too soon");
        allocator.set_time(Moment::START.plus(RETRY_DELAY));
        assert_eq!(allocator.take(Purpose::Data).unwrap().number, 1);
        allocator.help();
        assert_eq!(disk.list().unwrap(), [file_name(1), file_name(2), file_name(3)]);
        allocator.settle();
    }

    /// It stood in the way of leadership until the log needed another file.
    #[test]
    fn room_is_noticed_although_no_file_is_needed() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new());
        allocator.go_unaided();
        disk.limit_space(Some(2 << 16));
        allocator.take(Purpose::Metadata).unwrap();
        allocator.help();
        assert!(allocator.lacks_room() && allocator.has_one_ready());
        let later = |times| Moment::START.plus(LOOK_AGAIN * times);
        allocator.set_time(later(1));
        allocator.look_for_room();
        allocator.help();
        assert!(allocator.lacks_room(), "the disk is full still");
        disk.limit_space(None);
        allocator.set_time(Moment(later(2).0 - 1));
        allocator.look_for_room();
        allocator.help();
        assert!(allocator.lacks_room(), "too soon");
        allocator.set_time(later(2));
        allocator.look_for_room();
        allocator.help();
        assert!(!allocator.lacks_room());
    }

    /// Work of another log that goes on until it is stopped, and gives way.
    #[derive(Default)]
    struct Endless {
        helper: OnceLock<Arc<Helper>>,
        is_begun: AtomicBool,
        is_stopped: AtomicBool,
    }

    impl HelperWork for Endless {
        fn urgency(&self) -> Option<Urgency> {
            self.helper.get().map(|_| Urgency::Later)
        }

        fn work(&self) {
            self.is_begun.store(true, Ordering::Relaxed);
            while let (Some(helper), false) = (self.helper.get(), self.is_stopped()) {
                helper.give_way();
                std::thread::yield_now();
            }
        }

        fn is_stopped(&self) -> bool {
            self.is_stopped.load(Ordering::Relaxed)
        }

        fn stop(&self) {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }

    #[derive(Debug)]
    struct NoLock;

    impl crate::disk::Lock for NoLock {}

    /// A log that was closed waited until a long job of another one was done: first for its own files, and then to leave.
    #[test]
    fn close_does_not_wait_for_a_long_job_of_another_log() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
        allocator.prepare_first().unwrap();
        let PreparedSegment { number, id, bytes, .. } = allocator.take(Purpose::Metadata).unwrap();
        let (helpers, path) = (Helpers::default(), std::path::Path::new("/"));
        let long = Arc::new(Endless::default());
        let of_long = helpers.join(1, path, long.clone(), Arc::new(NoLock)).unwrap();
        let share = helpers.join(1, path, allocator.clone(), Arc::new(NoLock)).unwrap();
        let _ = long.helper.set(of_long.helper().clone());
        allocator.shares(share.helper());
        let segment = Segment::growing(number, id, bytes, Base::default(), Timestamp(0));
        allocator.discard(vec![Arc::new(segment)]);
        let (closed, is_closed) = std::sync::mpsc::channel();
        let closing = std::thread::spawn({
            let allocator = allocator.clone();
            move || {
                allocator.settle();
                allocator.stop();
                let is_sound = share.leave();
                closed.send(is_sound).unwrap();
            }
        });
        let is_sound = is_closed.recv_timeout(Duration::from_secs(60));
        long.stop();
        assert!(of_long.leave());
        closing.join().unwrap();
        assert_eq!(is_sound, Ok(true), "it was closed while the other job was running");
        assert!(!disk.list().unwrap().contains(&file_name(number)), "its files were removed");
    }

    /// An append that waits for long gets its file before that is filled: whole, allocated, and all zeros.
    #[test]
    fn awaited_file_is_whole_though_it_was_not_filled() {
        use std::os::unix::fs::MetadataExt as _;
        const BYTES: u32 = 16 << 20;
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(crate::disk::linux::RealDisk::open(dir.path(), false).unwrap());
        let allocator = Allocator::new(disk.clone(), LogId(1), BYTES, 1, Vec::new());
        allocator.go_unaided();
        allocator.go_late(true);
        assert!(allocator.is_coming(Purpose::Data));
        allocator.fill(&*disk.create("awaited").unwrap(), Duration::ZERO).unwrap();
        let path = dir.path().join("awaited");
        let (bytes, metadata) = (std::fs::read(&path).unwrap(), path.metadata().unwrap());
        assert_eq!(bytes.len(), BYTES as usize);
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(metadata.blocks() * 512 >= u64::from(BYTES), "the file has holes");
    }

    /// A disk that allocates files, and counts the pieces with which they are filled.
    #[derive(Debug, Default)]
    struct Counting {
        below: SimDisk,
        pieces: Arc<AtomicU64>,
    }

    #[derive(Debug)]
    struct Counted {
        below: Arc<dyn DiskFile>,
        pieces: Arc<AtomicU64>,
    }

    impl Counting {
        fn counted(&self, below: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
            Arc::new(Counted { below, pieces: self.pieces.clone() })
        }
    }

    impl Disk for Counting {
        fn path(&self) -> &std::path::Path {
            self.below.path()
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.below.list()
        }

        fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.counted(self.below.create(name)?))
        }

        fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.counted(self.below.open(name, write)?))
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.below.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.below.remove(name)
        }

        fn sync_dir(&self) -> io::Result<()> {
            self.below.sync_dir()
        }

        fn lock(&self, name: &str) -> io::Result<Box<dyn crate::disk::Lock>> {
            self.below.lock(name)
        }
    }

    impl DiskFile for Counted {
        fn len(&self) -> io::Result<u64> {
            self.below.len()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.below.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
            self.below.write_at(offset, bufs)
        }

        fn allocate(&self, bytes: u64) -> io::Result<bool> {
            self.below.fill_with_zeros(0..bytes).map(|()| true)
        }

        fn fill_with_zeros(&self, range: std::ops::Range<u64>) -> io::Result<()> {
            self.pieces.fetch_add(1, Ordering::Relaxed);
            self.below.fill_with_zeros(range)
        }

        fn sync(&self) -> io::Result<()> {
            self.below.sync()
        }
    }

    /// An append waits for a time that is counted once, not for each file that it needs.
    #[test]
    fn files_are_filled_on_as_long_as_the_append_has_patience() {
        let disk = Counting::default();
        let pieces = disk.pieces.clone();
        let allocator = Allocator::new(Arc::new(disk), LogId(1), 4 << 20, 1, Vec::new());
        allocator.go_unaided();
        allocator.go_late(true);
        allocator.prepare_first().unwrap();
        assert_eq!(pieces.swap(0, Ordering::Relaxed), 4, "no append waits");
        let since = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        allocator.lock().awaited_since = Some(since);
        assert!(allocator.is_coming(Purpose::Data));
        assert_eq!(allocator.lock().awaited_since, Some(since), "it waits for the second file");
        allocator.help();
        assert_eq!(pieces.load(Ordering::Relaxed), 0, "it has waited for long");
        allocator.take(Purpose::Data).unwrap();
        assert_eq!(allocator.lock().awaited_since, None);
        allocator.help();
        assert_eq!(pieces.load(Ordering::Relaxed), 4, "the next file is ahead of need");
    }

    /// Each of the groups on one disk had its file filled on in turn, and an append of one of them waited for all.
    #[test]
    fn file_is_not_filled_within_the_job_of_another_log() {
        let disk = Counting::default();
        let pieces = disk.pieces.clone();
        let allocator = Arc::new(Allocator::new(Arc::new(disk), LogId(1), 4 << 20, 1, Vec::new()));
        let (helpers, path) = (Helpers::default(), std::path::Path::new("/"));
        let long = Arc::new(Endless::default());
        let of_long = helpers.join(1, path, long.clone(), Arc::new(NoLock)).unwrap();
        let share = helpers.join(1, path, allocator.clone(), Arc::new(NoLock)).unwrap();
        allocator.shares(share.helper());
        let _ = long.helper.set(of_long.helper().clone());
        of_long.helper().wake();
        let begun = Instant::now();
        while !long.is_begun.load(Ordering::Relaxed) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        allocator.take(Purpose::Data).unwrap(); // the long job gives way to it
        assert_eq!(pieces.load(Ordering::Relaxed), 0);
        long.stop();
        allocator.wind_up();
        allocator.stop();
        assert!(share.leave() && of_long.leave());
    }

    /// A failed rename removed the old file from the list. It stayed on the disk unused, and a later attempt at its
    /// number replaced it.
    #[test]
    fn next_attempt_uses_the_file_whose_rename_failed() {
        let (name, log) = (file_name(5), LogId(1));
        for confirmed in [Landed::Nothing, Landed::All] {
            let disk = Arc::new(SimDisk::default());
            let disks: Arc<dyn Disk> = disk.clone();
            Allocator::new(disks.clone(), log, 1 << 16, 5, Vec::new()).prepare_first().unwrap();
            let allocator = Allocator::new(disks, log, 1 << 16, 5, vec![name.clone()]);
            let trouble = Trouble::Eio(confirmed);
            disk.plan(Fault { call: Some(Call::Rename), nth: 1, lasting: false, trouble });
            assert_eq!(allocator.prepare_first().unwrap_err().kind(), ErrorKind::Io);
            let kept = confirmed == Landed::Nothing;
            assert_eq!(allocator.lock().spare.contains(&name), kept);
            let created = disk.calls(Some(Call::Create));
            allocator.prepare_first().unwrap();
            assert_eq!(disk.list().unwrap(), [name.as_str()]);
            assert_eq!(disk.calls(Some(Call::Create)) == created, kept, "the old file is used");
        }
    }
}
