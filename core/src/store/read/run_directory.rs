//! Run directory: where the runs of each log are in one segment of mixed blocks. Readers make it from the tables of the
//! blocks, on demand, and extend it as the segment grows. The writer does nothing for it.
//!
//! Invariants:
//! - it covers blocks below `Segment::readable` only: those are committed and do not change;
//! - the places of a log are ascending by index;
//! - a segment whose opening cannot be read hides no record of another one: see `opening_search.rs`;
//! - blocks whose header or table is damaged are a gap, up to the next block that can be found. It is read again when a
//!   record is not found: it may have been repaired.

use super::block_reader::{Blocks, Located, WINDOW_BYTES};
use super::opening_search::{Found, last_before};
use super::sorted_copies::{SortedCopies, SortedCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Kind, table_of};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::logs::{has_passed, has_reached, state_of};
use crate::store::format::segment::Opening;
use crate::store::segment::{Segment, SegmentData, Segments, Source};
use crate::types::{EntryIndex, Index, LogNumber, SegmentId, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunPlace {
    pub(crate) first: Index,
    /// The offset of its block.
    pub(crate) block: u32,
    /// Its number in the block's table.
    pub(crate) number: u32,
    /// The offset of its batches in the block.
    pub(crate) at: u32,
}

/// The most bytes of directories that stay in memory without a reader, except for the one that was used last.
const DIRECTORIES_BYTES_MAX: usize = 32 << 20;

/// In how many files whose openings cannot be read a record is looked for: this reads the tables of all their blocks.
const BEHIND_MAX: usize = 8;

/// How soon a replica can know which object has a record.
const OBJECT_KNOWN_IN: Duration = Duration::from_millis(10);

/// How many sorted objects stay open without a reader.
const OBJECTS_MAX: usize = 16;

/// The run directories of a group's segments that readers use, and used last. They keep no segment.
#[derive(Debug)]
pub(crate) struct RunDirectories {
    segments: Arc<Segments>,
    copies: Arc<SortedCopies>,
    made: Mutex<Made>,
    /// Sorted objects that readers used last, newest first.
    objects: Mutex<VecDeque<Arc<SortedCopy>>>,
    /// The list has objects alone, and those at its beginning can have been deleted since.
    can_lag: bool,
}

/// The directories that exist.
///
/// Invariant: there is one for a segment, however many readers are in it: memory grows with segments, and not with readers.
#[derive(Debug, Default)]
struct Made {
    /// Those that were used last, newest first, up to [`DIRECTORIES_BYTES_MAX`].
    recent: VecDeque<Arc<RunDirectory>>,
    /// All of them. Those that are not recent are kept by the readers that are in their segments.
    all: HashMap<SegmentId, Weak<RunDirectory>>,
}

impl Made {
    /// The directory of a segment, which is made if there is none.
    fn of(&mut self, segment: SegmentId) -> Arc<RunDirectory> {
        if let Some(directory) = self.all.get(&segment).and_then(Weak::upgrade) {
            return directory;
        }
        self.all.retain(|_, directory| directory.strong_count() > 0);
        let directory = Arc::new(RunDirectory::new());
        self.all.insert(segment, Arc::downgrade(&directory));
        directory
    }
}

impl RunDirectories {
    pub(crate) fn new(segments: Arc<Segments>) -> Self {
        Self {
            copies: SortedCopies::new(segments.clone()),
            segments,
            made: Mutex::default(),
            objects: Mutex::default(),
            can_lag: false,
        }
    }

    /// Of objects alone, in a copy that learns late that some were deleted.
    pub(crate) fn of_objects(segments: Arc<Segments>) -> Self {
        Self { can_lag: true, ..Self::new(segments) }
    }

    /// Whether the list has objects alone, and those at its beginning can have been deleted since.
    pub(crate) fn can_lag(&self) -> bool {
        self.can_lag
    }

    /// The sorted copies of the segments.
    pub(crate) fn copies(&self) -> &Arc<SortedCopies> {
        &self.copies
    }

    pub(crate) fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    /// The directory of a segment.
    pub(crate) fn of(&self, segment: &Segment) -> Arc<RunDirectory> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = made.of(segment.id);
        let recent = &mut made.recent;
        recent.retain(|known| !Arc::ptr_eq(known, &directory));
        recent.push_front(directory.clone());
        let mut bytes = 0;
        let kept = recent.iter().take_while(|directory| {
            bytes += directory.bytes.load(Ordering::Relaxed);
            bytes <= DIRECTORIES_BYTES_MAX
        });
        let kept = kept.count().max(1);
        let closed = recent.split_off(kept);
        drop(made);
        drop(closed); // after the lock: there can be many places to free
        directory
    }

    /// The segment that contains record `index` of a log, or would contain it: the last one in whose opening the log
    /// has not passed that record. The log can be missing in the newest opening: the entry that drops it is not committed.
    /// The segment is an object if the record is before all files.
    ///
    /// # Errors
    /// `Corrupt`: the openings of objects are damaged of which the first one would contain the record; `Io`; `Closed`: there
    /// are no segments. `Unavailable`: the record is before all files, and in no object that is known here; and those of reading an object.
    pub(crate) fn holding(&self, log: LogNumber, index: Index) -> Result<Holding> {
        self.holding_as(log, index, Check::Once)
    }

    /// As [`Self::holding`], and says so if the opening of a file was damaged since it was checked.
    ///
    /// # Errors
    /// As [`Self::holding`].
    pub(crate) fn surely_holding(&self, log: LogNumber, index: Index) -> Result<Holding> {
        self.holding_as(log, index, Check::Always)
    }

    fn holding_as(&self, log: LogNumber, index: Index, check: Check) -> Result<Holding> {
        if self.can_lag {
            return self.object_holding(log, index)?.ok_or_else(|| not_here(log, index));
        }
        let (mut files, found) = self.segments.undisturbed(|| {
            let files = self.segments.snapshot();
            if files.is_empty() {
                return Err(Error::new(ErrorKind::Closed, "the log has no segments"));
            }
            let found = match self.file_holding(&files, log, index, check)? {
                // All files begin behind the record, which was checked once: that is not enough to look elsewhere.
                Found { at: None, unreadable: None, .. } => {
                    self.file_holding(&files, log, index, Check::Always)?
                }
                found => found,
            };
            Ok((files, found))
        })?;
        let Found { at, upto, unreadable } = found;
        if at.is_none() && unreadable.is_none() && self.segments.reads_objects() {
            // Files that go meanwhile do not matter here: no file will have this record.
            return self.object_holding(log, index)?.ok_or_else(|| not_here(log, index));
        }
        // The opening is repaired, although the record may be found. Without objects the first file is the place where a record is missed.
        if let Some(error) = &unreadable {
            let _ = self.segments.met(error.clone(), None);
        }
        let segment = files.remove(at.unwrap_or(0));
        let behind = match unreadable {
            Some(_) => files.drain(at.unwrap_or(0)..upto.saturating_sub(1)).take(BEHIND_MAX).collect(),
            None => Vec::new(),
        };
        Ok(Holding { segment, behind, unreadable })
    }

    /// Whether record `index` of a log is in a file, or will be: reading it does not wait for the object store.
    pub(crate) fn is_in_files(&self, log: LogNumber, index: Index) -> bool {
        !self.segments.reads_objects()
            || self
                .file_holding(&self.segments.snapshot(), log, index, Check::Always)
                .is_ok_and(|found| found.at.is_some() && found.unreadable.is_none())
    }

    /// Whether record `index` of a log is in no file, and can be in an object. If a file that can have it cannot be read, it is not known to
    /// be in none.
    pub(crate) fn is_before_files(&self, log: LogNumber, index: Index) -> bool {
        self.segments.reads_objects()
            && self
                .file_holding(&self.segments.snapshot(), log, index, Check::Always)
                .is_ok_and(|found| found.at.is_none() && found.unreadable.is_none())
    }

    /// An object whose records are log by log.
    ///
    /// # Errors
    /// Those of reading an object.
    pub(crate) fn sorted_object(&self, segment: &Arc<Segment>) -> Result<Arc<SortedCopy>> {
        let lock = || self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let known = {
            let mut objects = lock();
            objects.retain(|object| !object.is_discarded());
            let at = objects.iter().position(|object| object.number() == segment.number);
            at.and_then(|n| objects.remove(n)).inspect(|object| objects.push_front(object.clone()))
        };
        if let Some(object) = known {
            return Ok(object);
        }
        // Without the lock: this waits for the object store.
        let object = Arc::new(SortedCopy::of_object(self.segments.open(segment)?)?);
        let mut objects = lock();
        objects.push_front(object.clone());
        objects.truncate(OBJECTS_MAX);
        Ok(object)
    }

    /// As [`Self::holding`], of the objects alone. `None`: it is before all of them. If it is behind all of them, the last one.
    ///
    /// # Errors
    /// Those of reading an object that can contain the record, or of several others.
    pub(crate) fn object_holding(&self, log: LogNumber, index: Index) -> Result<Option<Holding>> {
        let objects = self.segments.objects().beginning_before(EntryIndex(u64::MAX));
        let Found { at, unreadable, .. } =
            last_before(objects.len(), |n| self.begins_before(&objects[n], log, index, Check::Always))?;
        match (at.and_then(|n| objects.get(n)).cloned(), unreadable) {
            (Some(segment), unreadable) => Ok(Some(Holding { segment, behind: Vec::new(), unreadable })),
            (None, Some(error)) => Err(error), // the record would be in it
            (None, None) => Ok(None),
        }
    }

    /// The first record of a log that the files can have: those before it are before all files. None: the log was opened in the oldest file
    /// or later, or there are no files.
    ///
    /// # Errors
    /// `Corrupt`: the opening of the oldest file is damaged; `Io`.
    pub(crate) fn first_in_files(&self, log: LogNumber) -> Result<Option<Index>> {
        self.segments.undisturbed(|| {
            let Some(oldest) = self.segments.oldest() else { return Ok(None) };
            let state = in_opening(&self.segments.open(&oldest)?, |logs| state_of(logs, log))?;
            Ok(state.map(|state| state.next))
        })
    }

    /// As [`Self::holding`], of files.
    fn file_holding(
        &self,
        files: &[Arc<Segment>],
        log: LogNumber,
        index: Index,
        check: Check,
    ) -> Result<Found> {
        last_before(files.len(), |n| self.begins_before(&files[n], log, index, check))
    }

    /// The last of these files before which a log has no block of time `time` or later: its first such block is in that one, or behind it.
    ///
    /// # Errors
    /// Those of reading more openings than can be left out.
    pub(crate) fn file_at_time(
        &self,
        files: &[Arc<Segment>],
        log: LogNumber,
        time: Timestamp,
    ) -> Result<Found> {
        last_before(files.len(), |n| {
            in_opening(&self.segments.open(&files[n])?, |logs| has_reached(logs, log, time).map(|has| !has))
        })
    }

    /// Whether a segment begins before a record of a log. The table of a thousand logs is as long as a stretch that a reader wants, so it can
    /// be checked once for many look-ups. A false answer leads to no wrong record, because each run names its log and its first record; and
    /// a record that is not found is looked for with [`Self::surely_holding`].
    fn begins_before(
        &self,
        segment: &Arc<Segment>,
        log: LogNumber,
        index: Index,
        check: Check,
    ) -> Result<bool> {
        let passed = |body: &[u8]| Opening::logs_in(body).and_then(|logs| has_passed(logs, log, index));
        Ok(!look_at_opening(&self.segments.open(segment)?, check, passed)?)
    }
}

/// The segment that contains a record, as far as openings say.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) segment: Arc<Segment>,
    /// Files behind it whose openings cannot be read. Their runs need no opening.
    pub(crate) behind: Vec<Arc<Segment>>,
    /// The openings of files or objects behind it cannot be read, for this reason. If the record is not in the segment, it is in one of
    /// these, or before all files.
    pub(crate) unreadable: Option<Error>,
}

/// The error of a record of a log that is in no file here, and in no object that this replica knows to be stored.
pub(crate) fn not_here(log: LogNumber, index: Index) -> Error {
    unknown_object(format_args!("record {index} of log {log}"))
}

/// As [`not_here`].
pub(crate) fn unknown_object(record: impl Display) -> Error {
    let what = format!(
        "{record} is not in the files here, and this replica does not know yet which object it is in; try again, or read it from \
         another replica"
    );
    Error::retry_in(ErrorKind::Unavailable, what, OBJECT_KNOWN_IN)
}

/// As [`in_opening`], for a thread that does not wait for the object store. `None`: the opening is being fetched.
///
/// # Errors
/// Those of [`in_opening`].
pub(crate) fn in_opening_if_here<T>(
    data: &Arc<SegmentData>,
    look: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
) -> Result<Option<T>> {
    if let Source::Object(object) = &data.source {
        let body = SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES;
        if !object.is_here(SEGMENT_HEADER_BYTES..body)? {
            return Ok(None);
        }
        let mut blocks = Blocks::new(data.clone(), SEGMENT_HEADER_BYTES, WINDOW_BYTES);
        blocks.next(data.segment.data_end())?;
        if !object.is_here(SEGMENT_HEADER_BYTES..blocks.at())? {
            return Ok(None);
        }
    }
    in_opening(data, look).map(Some)
}

/// Passes the table of the logs in a segment's opening to `look`.
///
/// # Errors
/// `Corrupt`: the opening is damaged, or `look` says so; `Io`.
pub(crate) fn in_opening<T>(
    data: &Arc<SegmentData>,
    look: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
) -> Result<T> {
    look_at_opening(data, Check::Always, |body| Opening::logs_in(body).and_then(look))
}

/// Passes the object table in a segment's opening to `look`; empty if there is none.
///
/// # Errors
/// `Corrupt`: the opening is damaged, or `look` says so; `Io`.
pub(crate) fn in_objects<T>(
    data: &Arc<SegmentData>,
    look: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
) -> Result<T> {
    look_at_opening(data, Check::Always, |body| Opening::objects_in(body).and_then(look))
}

/// Whether a segment's opening has an object table.
///
/// # Errors
/// `Corrupt`: the opening is damaged; `Io`.
pub(crate) fn has_objects(data: &Arc<SegmentData>) -> Result<bool> {
    look_at_opening(data, Check::Always, Opening::has_objects)
}

/// When the checksum of an opening is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Always,
    /// Once for each time that its file is mapped. Without a mapping, always: each look reads the bytes again.
    Once,
}

/// Passes the body of a segment's opening to `look`.
fn look_at_opening<T>(
    data: &Arc<SegmentData>,
    check: Check,
    look: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
) -> Result<T> {
    let upto = data.segment.data_end();
    let mut blocks = Blocks::new(data.clone(), SEGMENT_HEADER_BYTES, WINDOW_BYTES);
    let corrupt = |why| Error::corrupt(&data.path, SEGMENT_HEADER_BYTES as u64, why);
    let opening = blocks.next(upto)?.filter(|block| block.header.kind == Kind::Opening);
    let opening = opening.ok_or_else(|| corrupt("segment does not begin with an opening"))?;
    let is_mapped = matches!(data.source, Source::Map(_));
    let is_known = check == Check::Once && is_mapped && data.opening_checked.load(Ordering::Relaxed);
    let bytes = if is_known { blocks.load_again(&opening, upto)? } else { blocks.load(&opening, upto)? };
    data.opening_checked.store(true, Ordering::Relaxed);
    look(&bytes[BLOCK_HEADER_BYTES..]).map_err(corrupt)
}

/// The places of all runs of a segment.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    /// The memory that it takes, without what a hash table adds.
    bytes: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Blocks before this offset are covered.
    upto: usize,
    logs: HashMap<LogNumber, Vec<RunPlace>>,
    places: usize,
    /// Offsets from which blocks could not be read, and those at which the directory goes on.
    gaps: Vec<Range<usize>>,
}

/// Finds all runs of a segment, in steps.
#[derive(Debug)]
pub(crate) struct RunWalk {
    data: Arc<SegmentData>,
    known: Known,
}

impl RunWalk {
    pub(crate) fn new(data: Arc<SegmentData>) -> Self {
        Self { data, known: Known::new() }
    }

    /// Reads the tables of the blocks in the next `bytes` bytes of the segment. True: there are no more. Blocks for the disk.
    ///
    /// # Errors
    /// `Corrupt`: a block is damaged; `Io`.
    pub(crate) fn step(&mut self, bytes: usize) -> Result<bool> {
        let upto = self.data.segment.readable();
        self.known.walk(&self.data, upto.min(self.known.upto + bytes), upto)?;
        Ok(self.known.upto >= upto)
    }

    /// The places of the runs that were found, by log; those of each in order.
    pub(crate) fn into_places(self) -> BTreeMap<LogNumber, Vec<RunPlace>> {
        self.known.logs.into_iter().collect()
    }
}

impl RunDirectory {
    fn new() -> Self {
        Self { bytes: AtomicUsize::new(0), known: Mutex::new(Known::new()) }
    }

    /// The last run of `log` that begins at or before `next`, which can end before `next`, and the one behind it, as far as it is
    /// known. `None`: there is no such run in this segment.
    ///
    /// # Errors
    /// `Corrupt`: a damaged block may contain the run; `Io`.
    pub(crate) fn place(
        &self,
        data: &Arc<SegmentData>,
        log: LogNumber,
        next: Index,
    ) -> Result<Option<(RunPlace, Option<RunPlace>)>> {
        let mut known = self.lock();
        if let Some(place) = known.place(log, next, false) {
            return Ok(Some(place));
        }
        self.extend(&mut known, data)?;
        Ok(known.place(log, next, true))
    }

    /// The places of a log's runs, in order.
    ///
    /// # Errors
    /// `Corrupt`: a damaged block may contain a run; `Io`.
    pub(crate) fn places(&self, data: &Arc<SegmentData>, log: LogNumber) -> Result<Vec<RunPlace>> {
        let mut known = self.lock();
        self.extend(&mut known, data)?;
        known.read_gaps(data)?;
        Ok(known.logs.get(&log).cloned().unwrap_or_default())
    }

    /// Reads the damaged blocks again.
    ///
    /// # Errors
    /// `Corrupt`: one still is damaged; `Io`.
    pub(crate) fn read_gaps(&self, data: &Arc<SegmentData>) -> Result<()> {
        self.lock().read_gaps(data)
    }

    fn extend(&self, known: &mut Known, data: &Arc<SegmentData>) -> Result<()> {
        let extended = known.extend(data);
        let bytes =
            known.places * size_of::<RunPlace>() + known.logs.len() * size_of::<(LogNumber, Vec<RunPlace>)>();
        self.bytes.store(bytes, Ordering::Relaxed);
        extended
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn new() -> Self {
        Self { upto: SEGMENT_HEADER_BYTES, logs: HashMap::new(), places: 0, gaps: Vec::new() }
    }

    /// The last run that begins at or before `next`. Unless `complete`, only if a later one is known: the last run that
    /// is known can end before `next`.
    fn place(&self, log: LogNumber, next: Index, complete: bool) -> Option<(RunPlace, Option<RunPlace>)> {
        let places = self.logs.get(&log)?;
        let n = places.partition_point(|place| place.first <= next);
        let found = n.checked_sub(1).and_then(|n| places.get(n))?;
        (complete || n < places.len() || found.first == next).then_some((*found, places.get(n).copied()))
    }

    /// Covers the blocks that became readable.
    fn extend(&mut self, data: &Arc<SegmentData>) -> Result<()> {
        let upto = data.segment.readable();
        while self.upto < upto {
            if self.walk(data, upto, upto).is_ok() {
                continue;
            }
            // Goes on behind the damage, at the next block that the block index knows.
            let (damaged, next) = (self.upto, self.block_behind(data, upto)?);
            self.gaps.push(damaged..next);
            self.upto = next;
        }
        Ok(())
    }

    /// Adds the blocks from `self.upto` on that begin before `stop`, up to one that is damaged. All blocks end at or before `upto`.
    fn walk(&mut self, data: &Arc<SegmentData>, stop: usize, upto: usize) -> Result<()> {
        let mut blocks = Blocks::new(data.clone(), self.upto, WINDOW_BYTES);
        while blocks.at() < stop
            && let Some(block) = blocks.next(upto)?
        {
            if block.header.kind == Kind::Mixed {
                self.add(&mut blocks, &block, upto)?;
            }
            self.upto = blocks.at();
        }
        Ok(())
    }

    /// Where a block begins behind the damaged one at `self.upto`, as far as that is known.
    fn block_behind(&self, data: &Arc<SegmentData>, upto: usize) -> Result<usize> {
        let mut blocks = Blocks::new(data.clone(), self.upto, WINDOW_BYTES);
        if matches!(blocks.next(upto), Ok(Some(_))) {
            return Ok(blocks.at()); // its header is sound
        }
        let indexed = data.index()?.into_iter().map(|entry| entry.offset as usize);
        Ok(indexed.filter(|offset| (self.upto + 1..upto).contains(offset)).min().unwrap_or(upto))
    }

    fn read_gaps(&mut self, data: &Arc<SegmentData>) -> Result<()> {
        while let Some(gap) = self.gaps.pop() {
            let end = std::mem::replace(&mut self.upto, gap.start);
            let read = self.walk(data, gap.end, gap.end);
            let at = std::mem::replace(&mut self.upto, end);
            if read.is_err() {
                self.gaps.push(at..gap.end);
                return read;
            }
        }
        Ok(())
    }

    /// Adds the runs of a mixed block.
    fn add(&mut self, blocks: &mut Blocks, block: &Located, upto: usize) -> Result<()> {
        let bytes = blocks.load_table(block, upto)?;
        let table = table_of(&block.header, &bytes).map_err(|why| blocks.corrupt(block.offset, why))?;
        let offset = if planted!(77) { blocks.at() } else { block.offset };
        for (number, (run, range)) in table.runs().enumerate() {
            // A segment's offsets and a table's runs are 32 bits each.
            let at = (BLOCK_HEADER_BYTES + range.start) as u32;
            let place = RunPlace { first: run.first, block: offset as u32, number: number as u32, at };
            let places = self.logs.entry(run.log).or_default();
            let n = places.partition_point(|known| known.first <= run.first);
            places.insert(n, place);
            self.places += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::store::segment::{Base, ReadMode};
    use crate::types::Term;

    /// Each reader that came after a directory had left the list made another one of the same segment.
    #[test]
    fn readers_of_a_segment_share_a_directory_that_is_not_recent() {
        let segments = Segments::new(Arc::new(SimDisk::default()), ReadMode::Map, VecDeque::new());
        let directories = RunDirectories::new(Arc::new(segments));
        let base = Base { raft: EntryIndex(0), term: Term(0), next: Index(1) };
        let segment = |n| Segment::growing(n, SegmentId(n), 1 << 20, base, Timestamp(1));
        let read = |n| {
            let directory = directories.of(&segment(n));
            directory.bytes.store(DIRECTORIES_BYTES_MAX, Ordering::Relaxed);
            directory
        };
        let of_reader = read(1);
        (2..4).for_each(|n| drop(read(n)));
        let made = || directories.made.lock().unwrap();
        assert!(made().recent.iter().all(|recent| !Arc::ptr_eq(recent, &of_reader)));
        assert!(Arc::ptr_eq(&of_reader, &directories.of(&segment(1))));
        let alone = Arc::downgrade(&of_reader);
        drop(of_reader);
        (2..4).for_each(|n| drop(read(n)));
        assert!(alone.upgrade().is_none(), "no reader is in it, and others were used later");
        drop(read(4));
        assert!(!made().all.contains_key(&SegmentId(1)), "those that are gone are forgotten");
    }
}
