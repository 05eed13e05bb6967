//! Segment files made ahead of need, and everything else that must not be done on the writer's time: one
//! helper thread prepares, seals, recycles and deletes segment files.
//!
//! ```text
//! prepare:  create or take an old file as `N.tmp` -> header with a new id -> sync -> rename `N.seg` -> sync dir
//! seal:     block index + footer into a full segment -> sync
//! discard:  file of a dropped segment -> reused by the next prepare if nobody reads it, else removed
//! ```
//!
//! Invariants:
//! - a file named `*.seg` has its full size, really allocated, and a valid header, all durable;
//! - a file is reused only when no reader holds it: this handle began it, and nobody else has its [`Segment`];
//! - [`AHEAD`] files are kept ready once the log fills up; an append of data never takes the last one, so that commands (discard
//!   above all) find a place when the disk is full.

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

/// Files kept ready.
pub(crate) const AHEAD: usize = 2;

/// A new file is filled in pieces of this size, and left when the log is closed.
const FILL_BYTES: u64 = 4 << 20;
/// After a failure nobody has a file made for this long, unless one comes free: each attempt on a full disk
/// would fill it to the brim again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A segment file that waits for its first block.
#[derive(Debug)]
pub(crate) struct PreparedSegment {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// What an append wants a new segment for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Records: may not take the last prepared file.
    Data,
    /// Commands and positions: may.
    Metadata,
}

impl Purpose {
    /// How many files have to be ready for one of them to be taken.
    fn files_ready(self) -> usize {
        match self {
            Self::Data => 2,
            Self::Metadata => 1,
        }
    }
}

/// Work of others that must not be done on the writer's time, such as reading a segment to check it.
pub(crate) struct BackgroundJob(Box<dyn FnOnce() + Send>);

impl fmt::Debug for BackgroundJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundJob")
    }
}

/// Tells whoever did not wait for a file that there is news.
struct News(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
    }
}

/// The files ahead and the work behind; shared by the writer and the helper thread.
#[derive(Debug)]
pub(crate) struct Allocator {
    disk: Arc<dyn Disk>,
    log: LogId,
    segment_bytes: u32,
    /// The version that the headers of its files ask of their readers. It never goes down.
    version: AtomicU32,
    /// The time on the clock of the log's own thread, as it told last.
    now: AtomicU64,
    /// Segments from this number on were begun by this handle. Those before it may be mapped by readers that
    /// an earlier handle of this process left behind.
    own_from: u64,
    state: Mutex<State>,
    /// The helper waits here for work.
    work: Condvar,
    /// Those wait here for files who have nothing else to do.
    done: Condvar,
    /// The others are told.
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
    /// Why the last attempt to prepare failed, and when; attempts pause until somebody asks or a file comes free.
    failed: Option<Error>,
    failed_at: Option<Moment>,
    busy: bool,
    /// Whether the log has shown that it will need files: many never fill their first one.
    wanted: bool,
    /// The log is being closed: no more files ahead.
    ending: bool,
    /// Somebody wants to be told when a file is there, or none can be had.
    awaited: bool,
    /// Nobody runs [`Allocator::run`]: who needs a file makes it, and [`Allocator::help`] does the rest.
    unaided: bool,
    /// And what can wait is done late.
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

    /// Who is told, on the helper thread, when [`Self::is_coming`] or [`Self::is_one_coming`] may answer otherwise. Once.
    pub(crate) fn tell(&self, news: impl Fn() + Send + Sync + 'static) {
        let _ = self.news.set(News(Box::new(news)));
    }

    /// The log's own thread tells the time: attempts that failed are made again by its clock.
    pub(crate) fn pass(&self, now: Moment) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::Relaxed))
    }

    /// Files made from now on ask their readers for at least this version, so that their headers need not be raised.
    pub(crate) fn ask_version(&self, version: u32) {
        self.version.fetch_max(version, Ordering::Relaxed);
    }

    /// The size of the files it makes.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next file; waits while the helper makes one.
    ///
    /// # Errors
    /// What kept the helper from making it: `Full` if there is no space, else `Io`. Nothing was written to
    /// the log.
    pub(crate) fn take(&self, purpose: Purpose) -> Result<PreparedSegment> {
        let mut state = self.await_ready(purpose.files_ready())?;
        self.work.notify_one();
        match state.ready.pop_front() {
            Some(prepared) => Ok(prepared),
            None => unreachable!("it was waited for"),
        }
    }

    /// Makes sure that a file is ready; waits while the helper makes one.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn keep_one_ready(&self) -> Result<()> {
        self.await_ready(1).map(drop)
    }

    /// Whether [`Self::take`] would wait: a file is being made. Has one begun, if need be. For who must not wait.
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

    /// Whether [`Self::take`] has a file at once.
    pub(crate) fn has_ready(&self, purpose: Purpose) -> bool {
        self.lock().ready.len() >= purpose.files_ready()
    }

    /// Whether a file is ready.
    pub(crate) fn has_one_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// Waits until so many files are ready, and keeps the lock.
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
                return Err(Error::new(ErrorKind::Closed, "the log is being closed: no segment is prepared"));
            }
            if let Some(error) = state.failure() {
                return Err(error.clone());
            }
            self.work.notify_one();
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The segment that grows is filling up: files ahead will be needed.
    pub(crate) fn want(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.work.notify_one();
        }
    }

    /// A full segment whose successor has durably begun: its footer can be written.
    pub(crate) fn seal(&self, segment: Arc<Segment>) {
        self.lock().seal.push_back(segment);
        self.work.notify_one();
    }

    /// Segments that were discarded, durably.
    pub(crate) fn discard(&self, segments: Vec<Arc<Segment>>) {
        let mut state = self.lock();
        state.dropped.extend(segments);
        state.failed = None;
        self.work.notify_one();
    }

    /// Runs `errand` on the helper thread, behind what is more urgent; at once if there is none. One that comes when
    /// the log is being closed may never be run.
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

    /// The log is about to be closed: makes no more files, and nobody waits for one any more.
    pub(crate) fn wind_up(&self) {
        self.lock().ending = true;
        self.done.notify_all();
    }

    /// Waits until nothing is left to seal or delete; prepares no more.
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

    /// From now on there is no helper thread, and everything happens on the thread of who calls: the same calls
    /// lead to the same files in the same order. For whoever drives the log without threads.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn go_unaided(&self) {
        self.lock().unaided = true;
    }

    /// Without a helper thread: from now on files are made late, when [`Self::help`] is called or somebody has to wait for
    /// one; until then they are said to be coming.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn go_late(&self, late: bool) {
        self.lock().late = late;
    }

    /// Does all work that waits, unless it is to be done late.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn help_in_time(&self) {
        if !self.lock().late {
            self.help();
        }
    }

    /// Whether any work waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn has_work(&self) -> bool {
        let state = self.lock();
        state.wants_file() || !(state.seal.is_empty() && state.dropped.is_empty() && state.jobs.is_empty())
    }

    /// Does all work that waits, on this thread.
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

    /// Lets the helper thread end after the work at hand.
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

    /// The helper thread's life.
    pub(crate) fn run(&self) {
        // Should it panic, nobody waits for it for ever.
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

    /// Prepares the very first file on the caller's thread, for a log that is being made.
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
                    tracing::warn!(%error, segment = segment.number, "segment stays without a footer; it is scanned when opened");
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

    /// Makes `number.seg` from an old file or a new one. With the error comes the old file if it is still there.
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
                    // The old name must be gone before the contents are: a file named *.seg has a header.
                    self.disk.sync_dir()?;
                    self.disk.open(&tmp, true)?
                }
                None => {
                    let file = match self.disk.create(&tmp) {
                        // Left by an attempt that failed and could not clean up.
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
            // Without this the rest of a full disk stays taken. If it fails the next opening removes it.
            let _ = self.disk.remove(&tmp);
            // A rename can fail and be done all the same.
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

    /// Gives a segment file that something shortened its full size again, with zeros, durably: the blocks that are gone are
    /// then damage like any other. Whether it was shorter.
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
        tracing::error!(file = %path.display(), length, was = segment.bytes, "something shortened the file of a segment");
        file.fill_with_zeros(length..segment.bytes.into()).map_err(io("lengthen"))?;
        if length < SEGMENT_HEADER_BYTES as u64 {
            let (number, id, bytes) = (segment.number, segment.id, segment.bytes);
            // What it holds is not known: repair raises it with the blocks that it brings.
            let version = self.version.load(Ordering::Relaxed);
            let header = SegmentHeader { log: self.log, number, id, bytes, version };
            file.write_at(0, &[IoSlice::new(&header.encode())]).map_err(io("repair"))?;
        }
        file.sync().map_err(io("sync"))?;
        Ok(true)
    }

    /// Really allocates a new file. Gives up when the log is closed: nobody needs it then.
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

    /// Stores the block index and the footer of a full segment.
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
            // A crash can leave the footer without its index: the index's own checksum tells.
            file.write_at(index_offset as u64, &[IoSlice::new(&index)])?;
            file.write_at((size - bytes.len()) as u64, &[IoSlice::new(&bytes)])?;
            file.sync()
        };
        write().map_err(|e| Error::io("seal segment", &path, e))?;
        segment.seal(&footer);
        Ok(())
    }

    /// A dropped segment's file becomes a spare if nobody reads it, one is needed and the size is right.
    fn reuse_or_remove(&self, segment: Arc<Segment>) -> Outcome {
        let (name, spare) = (file_name(segment.number), format!("{:020}.tmp", segment.number));
        let right_size = segment.bytes == self.segment_bytes;
        let own = segment.number >= self.own_from;
        let unread = Arc::try_unwrap(segment).is_ok();
        let wanted = {
            let state = self.lock();
            state.spare.len() < AHEAD
        };
        // Out of the sequence of segments at once: who looks at the directory would miss those after it.
        if right_size && own && unread && wanted && self.disk.rename(&name, &spare).is_ok() {
            return Outcome::Spare(spare);
        }
        let removed = self.disk.remove(&name).and_then(|()| self.disk.sync_dir());
        if let Err(error) = removed {
            tracing::warn!(%error, file = name, "a discarded segment could not be removed; the next opening does it");
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
    /// A failure that is some time ago stands in nobody's way.
    fn try_again(&mut self, now: Moment) {
        if self.failed_at.is_none_or(|at| now.since(at) >= RETRY_DELAY) {
            self.failed = None;
        }
    }

    /// Why no file is coming, if none is. A discarded file on its way out can be the room that was missing.
    fn failure(&self) -> Option<&Error> {
        self.failed.as_ref().filter(|_| !self.busy && self.dropped.is_empty())
    }

    fn wants_file(&self) -> bool {
        self.wanted && self.ready.len() < AHEAD && self.failed.is_none() && !self.ending
    }

    /// Footers first: they are short. Then discarded files, which make room. Then files ahead. Then errands.
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

    /// A file to make segment `number` of: the one that has its name already, if there is one, so that no
    /// rename ever replaces a file.
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
                // First in the list, so last in line, lest one bad file stand in the way of the others.
                self.spare.splice(..0, spare);
                self.failed = Some(error);
                self.failed_at = Some(now);
            }
            // What failed for want of room may have been under way when the discard came: try again.
            Outcome::Spare(name) => {
                self.spare.push(name);
                self.failed = None;
            }
            Outcome::Removed => self.failed = None,
            Outcome::Nothing => {}
        }
    }
}

/// A random id; never 0.
/// A new salt.
pub(super) fn random_id(disk: &dyn Disk) -> io::Result<SegmentId> {
    let mut bytes = [0; 8];
    disk.random(&mut bytes)?;
    Ok(SegmentId(u64::from_le_bytes(bytes) | 1))
}

/// Whether an error says that the disk, the quota or the file size limit is used up.
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

    /// On a full disk the helper was in the midst of an attempt when a discard came. The attempt failed after
    /// that, its failure stayed, and the append that followed the discard was refused as `Full` although the
    /// discarded file had made room meanwhile.
    #[test]
    fn a_failure_that_was_under_way_when_room_came_is_forgotten() {
        for room in [Outcome::Removed, Outcome::Spare("00000000000000000001.seg".into())] {
            let mut state = State { next_number: 9, wanted: true, ..State::default() };
            let failed = Err((Error::new(ErrorKind::Full, "no space"), None));
            state.note(Outcome::PreparedSegment(failed), Moment::START);
            assert!(state.next_job().is_none(), "it tries again although nothing has changed");
            state.note(room, Moment::START);
            assert!(matches!(state.next_job(), Some(Job::Prepare(9, _))));
        }
    }

    /// Without a helper thread nobody waits for one: files come when they are needed. An attempt that failed is made
    /// again by the clock that the preparer was told.
    #[test]
    fn unaided_files_come_when_they_are_needed() {
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

    /// A rename that failed took the old file out of the list. It stayed on the disk unused, and a later attempt
    /// at its number replaced it.
    #[test]
    fn an_old_file_whose_rename_failed_is_used_by_the_next_attempt() {
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
