//! The helper thread: it prepares segment files ahead of need, and seals, reuses and deletes them, so that the writer
//! does not spend time on it.
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

use super::format::geometry::{
    FOOTER_BYTES, INDEX_ENTRY_BYTES, SEGMENT_HEADER_BYTES, data_limit, tail_reserve,
};
use super::format::segment::{FORMAT_VERSION_FIRST, Footer, SegmentHeader, encode_index};
use super::segment::{Segment, file_name};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::clock::Moment;
use crate::types::{LogId, SegmentId};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The number of files kept ready.
pub(crate) const AHEAD: usize = 2;

/// A new file is filled in pieces of this size; filling stops when the log is closed.
const FILL_BYTES: u64 = 4 << 20;
/// No file is prepared for this long after a failure, unless one becomes free: each attempt on a full disk would fill
/// it up again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A segment file that waits for its first block.
#[derive(Debug)]
pub(crate) struct PreparedSegment {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// The use of a new segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Records: may not take the last prepared file.
    Data,
    /// Commands and positions: may take the last prepared file.
    Metadata,
}

impl Purpose {
    /// How many files must be ready before one of them is taken.
    fn files_ready(self) -> usize {
        match self {
            Self::Data => 2,
            Self::Metadata => 1,
        }
    }
}

/// Other code's work that must not take the writer's time, such as reading a segment to check it.
pub(crate) struct BackgroundJob(Box<dyn FnOnce() + Send>);

impl fmt::Debug for BackgroundJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundJob")
    }
}

/// Notifies callers that did not wait for a file.
struct News(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
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
    state: Mutex<State>,
    /// The helper waits here for work.
    work: Condvar,
    /// Threads that block until a file is ready wait here.
    done: Condvar,
    /// Callers that do not block are notified through this.
    news: OnceLock<News>,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<PreparedSegment>,
    next_number: u64,
    /// Names of files that may be overwritten, of the right size.
    spare: Vec<String>,
    seal: VecDeque<Arc<Segment>>,
    dropped: VecDeque<Arc<Segment>>,
    jobs: VecDeque<BackgroundJob>,
    /// The last failure to prepare a file, and its time. Attempts pause until a caller needs a file or one becomes
    /// free.
    failed: Option<Error>,
    failed_at: Option<Moment>,
    busy: bool,
    /// Whether the log will need files: many logs never fill their first one.
    wanted: bool,
    /// The log is being closed: no more files are prepared ahead.
    ending: bool,
    /// A caller waits to be notified that a file is ready or cannot be made.
    awaited: bool,
    /// No thread runs [`Allocator::run`]: a caller that needs a file makes it, and [`Allocator::help`] does the rest.
    unaided: bool,
    /// Also delays work that can wait.
    late: bool,
    stop: bool,
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
        let state = State { next_number: next, spare, ..State::default() };
        Self {
            disk,
            log,
            segment_bytes,
            version: AtomicU32::new(FORMAT_VERSION_FIRST),
            now: AtomicU64::new(Moment::default().0),
            own_from: next,
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            news: OnceLock::new(),
        }
    }

    /// Sets the notification that runs on the helper thread whenever [`Self::is_coming`] or [`Self::is_one_coming`] may
    /// have changed. Call it once.
    pub(crate) fn tell(&self, news: impl Fn() + Send + Sync + 'static) {
        let _ = self.news.set(News(Box::new(news)));
    }

    /// Sets the time. Failed attempts are repeated by the clock of the log's own thread.
    pub(crate) fn pass(&self, now: Moment) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::Relaxed))
    }

    /// Makes later files require at least this version from their readers, so that their headers need not be raised.
    pub(crate) fn ask_version(&self, version: u32) {
        self.version.fetch_max(version, Ordering::Relaxed);
    }

    /// The size of the files that it makes.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next file; waits while the helper makes one.
    ///
    /// # Errors
    /// The reason why the helper could not make it: `Full` if there is no space, otherwise `Io`. Nothing was written to
    /// the log.
    pub(crate) fn take(&self, purpose: Purpose) -> Result<PreparedSegment> {
        let mut state = self.await_ready(purpose.files_ready())?;
        self.work.notify_one();
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
        self.work.notify_one();
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

    /// Waits until `needed` files are ready, and keeps the lock.
    fn await_ready(&self, needed: usize) -> Result<MutexGuard<'_, State>> {
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
            self.work.notify_one();
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Requests files ahead, because the growing segment is filling up.
    pub(crate) fn want(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.work.notify_one();
        }
    }

    /// Hands over a full segment whose successor has durably begun: its footer can be written.
    pub(crate) fn seal(&self, segment: Arc<Segment>) {
        self.lock().seal.push_back(segment);
        self.work.notify_one();
    }

    /// Hands over segments that were durably discarded.
    pub(crate) fn discard(&self, segments: Vec<Arc<Segment>>) {
        let mut state = self.lock();
        state.dropped.extend(segments);
        state.failed = None;
        self.work.notify_one();
    }

    /// Runs a job on the helper thread, after more urgent work; at once if there is no helper thread. While the log
    /// is being closed, it may never run.
    pub(crate) fn lend(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        state.jobs.push_back(BackgroundJob(Box::new(job)));
        if state.unaided {
            let late = state.late;
            drop(state);
            if !late {
                self.help();
            }
            return;
        }
        self.work.notify_one();
    }

    /// Stops making files, because the log is about to be closed. No caller waits for a file any more.
    pub(crate) fn wind_up(&self) {
        self.lock().ending = true;
        self.done.notify_all();
    }

    /// Waits until nothing is left to seal or delete; prepares no more files.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        state.ending = true;
        if state.unaided {
            drop(state);
            return self.help();
        }
        while !state.stop && (state.busy || !state.seal.is_empty() || !state.dropped.is_empty()) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Switches to work without a helper thread: everything runs on the caller's thread, so the same calls make the
    /// same files in the same order. For code that drives the log without threads.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn go_unaided(&self) {
        self.lock().unaided = true;
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
        self.tell_news();
    }

    /// Ends the helper thread after its current job.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_one();
        self.done.notify_all();
        self.tell_news();
    }

    fn tell_news(&self) {
        let awaited = std::mem::take(&mut self.lock().awaited);
        if let (true, Some(News(tell))) = (awaited, self.news.get()) {
            tell();
        }
    }

    /// Runs the helper thread.
    pub(crate) fn run(&self) {
        // If it panics, no caller waits for it forever.
        struct Ended<'a>(&'a Allocator);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let _ended = Ended(self);
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            let Some(job) = state.next_job() else {
                self.done.notify_all();
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy = true;
            drop(state);
            let outcome = self.carry_out(job);
            state = self.lock();
            state.busy = false;
            state.note(outcome, self.now());
            drop(state);
            self.done.notify_all();
            self.tell_news();
            state = self.lock();
        }
    }

    /// Prepares the first file of a new log on the caller's thread.
    pub(crate) fn prepare_first(&self) -> Result<()> {
        let (number, spare) = {
            let mut state = self.lock();
            let number = state.next_number;
            (number, state.take_spare(number))
        };
        let outcome = self.prepare(number, spare);
        let mut state = self.lock();
        let result = outcome.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        state.note(Outcome::PreparedSegment(outcome), self.now());
        result
    }

    fn carry_out(&self, job: Job) -> Outcome {
        match job {
            Job::Prepare(number, spare) => Outcome::PreparedSegment(self.prepare(number, spare)),
            Job::Seal(segment) => {
                if let Err(error) = self.write_footer(&segment) {
                    tracing::warn!(%error, segment = segment.number, "could not write a segment's footer; the segment is scanned when it is opened");
                }
                Outcome::Nothing
            }
            Job::Drop(segment) => self.reuse_or_remove(segment),
            Job::BackgroundJob(BackgroundJob(job)) => {
                job();
                Outcome::Nothing
            }
        }
    }

    /// Makes `number.seg` from an old file or a new one. The error includes the old file if it still exists.
    fn prepare(
        &self,
        number: u64,
        spare: Option<String>,
    ) -> Result<PreparedSegment, (Error, Option<String>)> {
        let (tmp, name) = (format!("{number:020}.tmp"), file_name(number));
        let path = self.disk.path().join(&name);
        let make = || -> io::Result<PreparedSegment> {
            let file = match &spare {
                Some(old) => {
                    self.disk.rename(old, &tmp)?;
                    // The old name must be gone before the contents are overwritten: a file named *.seg has a valid
                    // header.
                    self.disk.sync_dir()?;
                    self.disk.open(&tmp, true)?
                }
                None => {
                    let file = match self.disk.create(&tmp) {
                        // Left by a failed attempt that could not clean up.
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                            self.disk.remove(&tmp)?;
                            self.disk.create(&tmp)?
                        }
                        other => other?,
                    };
                    self.fill(&*file)?;
                    file
                }
            };
            let header = SegmentHeader {
                log: self.log,
                number,
                id: random_id(&*self.disk)?,
                bytes: self.segment_bytes,
                version: self.version.load(Ordering::Relaxed),
            };
            file.write_at(0, &[IoSlice::new(&header.encode())])?;
            file.sync()?;
            self.disk.rename(&tmp, &name)?;
            if !planted!(5) {
                self.disk.sync_dir()?;
            }
            Ok(PreparedSegment { number, id: header.id, bytes: header.bytes, file })
        };
        make().map_err(|e| {
            // Otherwise the file would keep the rest of a full disk occupied. If this fails, the next opening removes
            // it.
            let _ = self.disk.remove(&tmp);
            // A rename can take effect and still fail.
            let kept = spare.filter(|old| self.disk.open(old, false).is_ok());
            let error = if is_no_space(&e) {
                let what = format!(
                    "no space left for segment {}, which takes {} bytes: free disk space or use smaller segments",
                    path.display(),
                    self.segment_bytes
                );
                Error::new(ErrorKind::Full, what)
            } else {
                Error::io("prepare segment", &path, e)
            };
            (error, kept)
        })
    }

    /// Restores a shortened segment file to its full size with zeros, durably. The lost blocks are then ordinary
    /// damage. Returns whether the file was too short.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn restore_length(&self, segment: &Segment) -> Result<bool> {
        let name = file_name(segment.number);
        let path = self.disk.path().join(&name);
        let io = |doing: &'static str| {
            let path = path.clone();
            move |e| Error::io(doing, &path, e)
        };
        let file = self.disk.open(&name, true).map_err(io("open"))?;
        let length = file.len().map_err(io("measure"))?;
        if length >= u64::from(segment.bytes) {
            return Ok(false);
        }
        tracing::error!(file = %path.display(), length, was = segment.bytes, "the file of a segment was shortened; its missing blocks are damaged");
        file.fill_with_zeros(length..segment.bytes.into()).map_err(io("lengthen"))?;
        if length < SEGMENT_HEADER_BYTES as u64 {
            let (number, id, bytes) = (segment.number, segment.id, segment.bytes);
            // The contents are not known: repair raises the version with the blocks that it restores.
            let version = self.version.load(Ordering::Relaxed);
            let header = SegmentHeader { log: self.log, number, id, bytes, version };
            file.write_at(0, &[IoSlice::new(&header.encode())]).map_err(io("repair"))?;
        }
        file.sync().map_err(io("sync"))?;
        Ok(true)
    }

    /// Allocates a new file for real. Stops if the log is closed, because the file is not needed then.
    fn fill(&self, file: &dyn DiskFile) -> io::Result<()> {
        let bytes = u64::from(self.segment_bytes);
        file.allocate(bytes)?;
        for from in (0..bytes).step_by(FILL_BYTES as usize) {
            if self.lock().ending {
                return Err(io::Error::other("the log is being closed"));
            }
            file.fill_with_zeros(from..bytes.min(from + FILL_BYTES))?;
        }
        Ok(())
    }

    /// Writes the block index and the footer of a full segment.
    fn write_footer(&self, segment: &Segment) -> Result<()> {
        let extent = segment.extent();
        let Some(entries) = extent.growing_index() else { return Ok(()) };
        let (index, index_crc) = encode_index(entries);
        let size = segment.bytes as usize;
        let index_offset = data_limit(size);
        assert!(index.len() + FOOTER_BYTES <= tail_reserve(size), "the index fits its reserve");
        let end = extent.end;
        let footer = Footer {
            number: segment.number,
            id: segment.id,
            base_raft: segment.base.raft,
            base_term: segment.base.term,
            first: segment.base.next,
            next: end.next,
            last_raft: end.raft,
            last_term: end.term,
            first_timestamp: segment.first_timestamp,
            last_timestamp: extent.last_timestamp,
            data_end: extent.data_end as u32,
            index_offset: index_offset as u32,
            index_count: (index.len() / INDEX_ENTRY_BYTES) as u32,
            index_crc,
        };
        let bytes = footer.encode();
        let path = self.disk.path().join(file_name(segment.number));
        let write = || -> io::Result<()> {
            let file = self.disk.open(&file_name(segment.number), true)?;
            // A crash can leave the footer without its index: the index's own checksum shows that.
            file.write_at(index_offset as u64, &[IoSlice::new(&index)])?;
            file.write_at((size - bytes.len()) as u64, &[IoSlice::new(&bytes)])?;
            file.sync()
        };
        write().map_err(|e| Error::io("seal segment", &path, e))?;
        segment.seal(&footer);
        Ok(())
    }

    /// Makes a dropped segment's file a spare if no reader has it, one is needed and its size is right.
    fn reuse_or_remove(&self, segment: Arc<Segment>) -> Outcome {
        let (name, spare) = (file_name(segment.number), format!("{:020}.tmp", segment.number));
        let right_size = segment.bytes == self.segment_bytes;
        let own = segment.number >= self.own_from;
        let unread = Arc::try_unwrap(segment).is_ok();
        let wanted = {
            let state = self.lock();
            state.spare.len() < AHEAD
        };
        // Renamed at once, to leave the sequence of segments: otherwise a reader of the directory would miss those
        // after it.
        if right_size && own && unread && wanted && self.disk.rename(&name, &spare).is_ok() {
            return Outcome::Spare(spare);
        }
        let removed = self.disk.remove(&name).and_then(|()| self.disk.sync_dir());
        if let Err(error) = removed {
            tracing::warn!(%error, file = name, "a discarded segment could not be removed; the next opening removes it");
        }
        Outcome::Removed
    }
}

#[derive(Debug)]
enum Job {
    Prepare(u64, Option<String>),
    Seal(Arc<Segment>),
    Drop(Arc<Segment>),
    BackgroundJob(BackgroundJob),
}

#[derive(Debug)]
enum Outcome {
    PreparedSegment(Result<PreparedSegment, (Error, Option<String>)>),
    Spare(String),
    Removed,
    Nothing,
}

impl State {
    /// Forgets a failure after [`RETRY_DELAY`].
    fn try_again(&mut self, now: Moment) {
        if self.failed_at.is_none_or(|at| now.since(at) >= RETRY_DELAY) {
            self.failed = None;
        }
    }

    /// The reason why no file is being made, if none is. A discarded file that is still being removed may free the
    /// missing space.
    fn failure(&self) -> Option<&Error> {
        self.failed.as_ref().filter(|_| !self.busy && self.dropped.is_empty())
    }

    fn wants_file(&self) -> bool {
        self.wanted && self.ready.len() < AHEAD && self.failed.is_none() && !self.ending
    }

    /// Footers first, because they are short. Then discarded files, which free space. Then files ahead. Then other jobs.
    fn next_job(&mut self) -> Option<Job> {
        if let Some(segment) = self.seal.pop_front() {
            return Some(Job::Seal(segment));
        }
        if let Some(segment) = self.dropped.pop_front() {
            return Some(Job::Drop(segment));
        }
        if self.wants_file() {
            return Some(Job::Prepare(self.next_number, self.take_spare(self.next_number)));
        }
        self.jobs.pop_front().map(Job::BackgroundJob)
    }

    /// Returns a file to make segment `number` from. Prefers the one that already has its name, so that no rename ever
    /// replaces a file.
    fn take_spare(&mut self, number: u64) -> Option<String> {
        let name = file_name(number);
        match self.spare.iter().position(|s| *s == name) {
            Some(n) => Some(self.spare.swap_remove(n)),
            None => self.spare.pop(),
        }
    }

    fn note(&mut self, outcome: Outcome, now: Moment) {
        match outcome {
            Outcome::PreparedSegment(Ok(prepared)) => {
                self.next_number = prepared.number + 1;
                self.ready.push_back(prepared);
            }
            Outcome::PreparedSegment(Err((error, spare))) => {
                if !self.ending {
                    tracing::warn!(%error, "no segment could be prepared");
                }
                // First in the list, so last in line: one bad file does not block the others.
                self.spare.splice(..0, spare);
                self.failed = Some(error);
                self.failed_at = Some(now);
            }
            // An attempt that failed for lack of space may have started before the discard: try again.
            Outcome::Spare(name) => {
                self.spare.push(name);
                self.failed = None;
            }
            Outcome::Removed => self.failed = None,
            Outcome::Nothing => {}
        }
    }
}

/// Returns a random id, a new salt; never 0.
pub(super) fn random_id(disk: &dyn Disk) -> io::Result<SegmentId> {
    let mut bytes = [0; 8];
    disk.random(&mut bytes)?;
    Ok(SegmentId(u64::from_le_bytes(bytes) | 1))
}

/// Whether an error means that the disk, the quota or the file size limit is exhausted.
fn is_no_space(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(crate::disk::SECTOR_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};

    /// On a full disk the helper was preparing a file when a discard came. The attempt failed afterwards and its
    /// failure stayed, so the next append was refused as `Full`, although the discarded file had freed space meanwhile.
    #[test]
    fn discard_during_a_failing_attempt_clears_the_failure() {
        for room in [Outcome::Removed, Outcome::Spare("00000000000000000001.seg".into())] {
            let mut state = State { next_number: 9, wanted: true, ..State::default() };
            let failed = Err((Error::new(ErrorKind::Full, "no space"), None));
            state.note(Outcome::PreparedSegment(failed), Moment::START);
            assert!(state.next_job().is_none(), "it tries again although nothing changed");
            state.note(room, Moment::START);
            assert!(matches!(state.next_job(), Some(Job::Prepare(9, _))));
        }
    }

    /// Without a helper thread no caller waits for a file: files are made when they are needed. The preparer's clock
    /// decides when a failed attempt is repeated.
    #[test]
    fn unaided_files_are_made_when_needed() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new());
        allocator.go_unaided();
        disk.limit_space(Some(1 << 16));
        assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full);
        disk.limit_space(None);
        allocator.pass(Moment::START.plus(RETRY_DELAY - Duration::from_millis(1)));
        assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full, "too soon");
        allocator.pass(Moment::START.plus(RETRY_DELAY));
        assert_eq!(allocator.take(Purpose::Data).unwrap().number, 1);
        allocator.help();
        assert_eq!(disk.list().unwrap(), [file_name(1), file_name(2), file_name(3)]);
        allocator.settle();
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
