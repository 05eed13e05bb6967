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
mod tests;
