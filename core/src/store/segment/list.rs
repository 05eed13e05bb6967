//! The list of a log's segments.
//!
//! Invariants:
//! - the list is contiguous: each segment begins where the previous one ends;
//! - every segment in the list has begun: its opening block was written;
//! - only the last one grows; if the log's end moves back, the segment that contains the new end is cut to it, and
//!   later ones leave the list.

use super::batch_offsets::{Places, Remembered};
use super::damage::Damage;
use super::{Base, Extent, ReadMode, Segment, SegmentData, Source, file_number, lock};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::segment::objects::{ObjectList, object_of};
use crate::types::{EntryIndex, Index, Timestamp};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// The log's segments, oldest first. Shared by the writer, which changes the list, and all readers.
#[derive(Debug)]
pub(crate) struct Segments {
    list: RwLock<VecDeque<Arc<Segment>>>,
    /// The number of removals and cuts in the list. Moves: under the list's lock.
    removals: AtomicU64,
    /// Recently used segments stay open, so that random reads do not map a file each time.
    recent: Mutex<VecDeque<Arc<SegmentData>>>,
    /// The batch offsets that look-ups learned.
    places: Mutex<Remembered>,
    /// Known damage in the segments.
    damage: Damage,
    /// The objects, in which older records are.
    objects: ObjectList,
    disk: Arc<dyn Disk>,
    mode: ReadMode,
}

/// How many segments stay open without a reader.
const RECENT_MAX: usize = 64;
/// How many objects behind the one that is read can be fetched ahead: as many as are fetched at a time.
const OBJECTS_AHEAD_MAX: usize = 8;

impl Segments {
    pub(crate) fn new(disk: Arc<dyn Disk>, mode: ReadMode, list: VecDeque<Arc<Segment>>) -> Self {
        Self {
            list: RwLock::new(list),
            removals: AtomicU64::new(0),
            recent: Mutex::default(),
            places: Mutex::default(),
            damage: Damage::default(),
            objects: ObjectList::default(),
            disk,
            mode,
        }
    }

    fn read<T>(&self, f: impl FnOnce(&VecDeque<Arc<Segment>>) -> T) -> T {
        f(&self.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn len(&self) -> usize {
        self.read(VecDeque::len)
    }

    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.list.write().unwrap_or_else(PoisonError::into_inner).push_back(segment);
    }

    /// Continues the log in `next` from a position other than its end: one segment is cut back to where `next` begins,
    /// and those in `dead` leave the list. Readers see all of it at once.
    pub(crate) fn truncate(
        &self,
        cut: Option<(Arc<Segment>, Extent)>,
        dead: &[Arc<Segment>],
        next: Arc<Segment>,
    ) {
        let changed = |s: &Segment| {
            cut.as_ref().is_some_and(|(c, _)| c.number == s.number)
                || dead.iter().any(|d| d.number == s.number)
        };
        {
            let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
            self.removals.fetch_add(1, Ordering::Relaxed);
            list.retain(|s| dead.iter().all(|d| d.number != s.number));
            dead.iter().for_each(|s| s.bury());
            if let Some((segment, extent)) = cut.clone() {
                segment.cut(extent);
            }
            let contiguous = list.back().is_none_or(|last| last.end() == next.base);
            assert!(contiguous, "a segment does not begin where the previous one ends");
            list.push_back(next);
        }
        // Block indexes of open segments may have entries after the new end; these are harmless, but wrong. Done
        // once the list's lock is released, because `open` takes that lock while it holds this one.
        lock(&self.recent).retain(|d| !changed(&d.segment));
        // No committed bytes were removed; but offsets in a file that is no longer opened are useless.
        *lock(&self.places) = Remembered::default();
        cut.iter().for_each(|(segment, _)| *lock(&segment.open) = Weak::new());
    }

    /// Replaces the whole list, for a read-only handle that fell behind.
    pub(crate) fn replace(&self, list: VecDeque<Arc<Segment>>) {
        {
            let mut old = self.list.write().unwrap_or_else(PoisonError::into_inner);
            self.removals.fetch_add(1, Ordering::Relaxed);
            // A reader in a removed segment continues after it.
            let gone = |s: &&Arc<Segment>| list.iter().all(|n| (n.number, n.id) != (s.number, s.id));
            old.iter().filter(gone).for_each(|s| s.bury());
            *old = list;
        }
        lock(&self.recent).clear();
        *lock(&self.places) = Remembered::default();
    }

    /// Removes the segments that contain no record from `first` on and no entry above `committed`; never the last one. Unless that has
    /// durably begun, the one before it stays, too: after a crash the log ends there.
    pub(crate) fn drop_below(
        &self,
        first: Index,
        committed: EntryIndex,
        has_begun: bool,
    ) -> Vec<Arc<Segment>> {
        let (mut dropped, stay) = (Vec::new(), if has_begun { 1 } else { 2 });
        {
            let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
            let gone = |next: &Arc<Segment>| next.base.next <= first && next.base.raft <= committed;
            while list.len() > stay && list.get(1).is_some_and(gone) {
                dropped.extend(list.pop_front());
            }
            self.removals.fetch_add(u64::from(!dropped.is_empty()), Ordering::Relaxed);
        }
        lock(&self.recent).retain(|d| dropped.iter().all(|s| s.number != d.segment.number));
        if !dropped.is_empty() {
            lock(&self.places).drop_below(first);
        }
        dropped
    }

    /// The newest segment that another one follows.
    pub(crate) fn newest_full(&self) -> Option<Arc<Segment>> {
        self.read(|list| list.len().checked_sub(2).and_then(|n| list.get(n)).cloned())
    }

    /// The oldest segment, unless it still grows.
    pub(crate) fn oldest_full(&self) -> Option<Arc<Segment>> {
        self.read(|list| if list.len() > 1 { list.front().cloned() } else { None })
    }

    /// The objects of the log.
    pub(crate) fn objects(&self) -> &ObjectList {
        &self.objects
    }

    /// The newest segment for which this is so, of those that another one follows.
    pub(crate) fn find_full(&self, is_wanted: impl Fn(&Segment) -> bool) -> Option<Arc<Segment>> {
        self.read(|list| list.iter().rev().skip(1).find(|segment| is_wanted(segment)).cloned())
    }

    /// The segments that another one follows, and whose blocks are all committed, oldest first; each with the position after its last block,
    /// and the offset at which that ends. None of them is written or cut any more.
    pub(crate) fn sealed(&self) -> Vec<(Arc<Segment>, Base, usize)> {
        self.read(|list| {
            let full = list.iter().take(list.len().saturating_sub(1)).map(|segment| {
                let (end, data_end) = segment.written();
                (segment.clone(), end, data_end)
            });
            full.take_while(|(segment, _, data_end)| segment.readable() >= *data_end).collect()
        })
    }

    /// The first segment with a higher number.
    pub(crate) fn after(&self, number: u64) -> Option<Arc<Segment>> {
        self.read(|list| list.get(list.partition_point(|segment| segment.number <= number)).cloned())
    }

    pub(crate) fn mode(&self) -> ReadMode {
        self.mode
    }

    /// The first record that is in a file here, if older ones are in objects alone; else 0.
    pub(crate) fn first_in_files(&self) -> Index {
        let oldest = self.oldest().filter(|_| !self.objects.is_empty());
        oldest.map_or(Index(0), |oldest| oldest.base.next)
    }

    /// Objects with entries before all files, and then all files: oldest first. The last object can overlap the first file.
    pub(crate) fn with_objects(&self) -> Vec<Arc<Segment>> {
        // The files first: an object is in its list before the files with its records leave theirs.
        let files = self.snapshot();
        let begin = files.first().map_or(EntryIndex(u64::MAX), |oldest| oldest.base.raft);
        self.objects.beginning_before(begin).into_iter().chain(files).collect()
    }

    /// As [`Self::with_objects`], if objects can be read here; else the files.
    pub(crate) fn stretches(&self) -> Vec<Arc<Segment>> {
        match self.objects.cache() {
            Some(_) => self.with_objects(),
            None => self.snapshot(),
        }
    }

    /// Whether records can be in objects alone. Which objects there are may not be known yet.
    pub(crate) fn reads_objects(&self) -> bool {
        !self.objects.is_empty() || self.objects.cache().is_some()
    }

    /// Whether record `index` is before all files, and can be in an object.
    pub(crate) fn is_before_files(&self, index: Index) -> bool {
        self.reads_objects() && self.oldest().is_some_and(|oldest| index < oldest.base.next)
    }

    /// As [`Self::is_before_files`], of the entry behind `raft`.
    pub(crate) fn is_entry_before_files(&self, raft: EntryIndex) -> bool {
        self.reads_objects() && self.oldest().is_some_and(|oldest| raft < oldest.base.raft)
    }

    /// The segment that contains record `index`, or would contain it: a file of the log, or an object. `None`: neither has
    /// it, or there are no segments. Can block for the network if no file has it.
    ///
    /// # Errors
    /// Those of [`ObjectList::holding`].
    pub(crate) fn holding(&self, index: Index) -> Result<Option<Arc<Segment>>> {
        match self.file_holding(index) {
            Some(file) => Ok(Some(file)),
            None => self.objects.holding(index),
        }
    }

    /// The file that contains record `index`, or would contain it.
    pub(crate) fn file_holding(&self, index: Index) -> Option<Arc<Segment>> {
        self.read(|list| {
            let n = list.partition_point(|s| s.base.next <= index);
            n.checked_sub(1).and_then(|n| list.get(n).cloned())
        })
    }

    /// Where a reader continues at the end of its segment, which it read up to offset `at`, and up to record `behind`, if it met any
    /// block there: a segment and an offset. `None` if this segment has more, perhaps not committed yet, or nothing follows. Can block for the
    /// network if no file has what follows.
    ///
    /// # Errors
    /// Those of [`ObjectList::holding`].
    pub(crate) fn next_position(
        &self,
        segment: &Segment,
        at: usize,
        behind: Index,
    ) -> Result<Option<(Arc<Segment>, usize)>> {
        if object_of(segment).is_some() {
            if at < segment.data_end() {
                return Ok(None);
            }
            return Ok(self.holding(segment.end().next)?.map(|next| (next, SEGMENT_HEADER_BYTES)));
        }
        let Some((next, offset)) = self.next_file(segment, at) else { return Ok(None) };
        // The files in between were removed: their records are in objects. A segment that left the log does not tell its end any more.
        let behind = behind.max(segment.end().next);
        if next.base.next > behind && self.reads_objects() {
            return Ok(self.objects.holding(behind)?.map(|object| (object, SEGMENT_HEADER_BYTES)));
        }
        Ok(Some((next, offset)))
    }

    fn next_file(&self, segment: &Segment, at: usize) -> Option<(Arc<Segment>, usize)> {
        // Both under one lock, so that no segment is cut between the two checks.
        self.read(|list| {
            let n = list.partition_point(|s| s.number < segment.number);
            let same = list.get(n).filter(|s| s.number == segment.number);
            // A read-only handle has surveyed the log again.
            let renewed =
                |s: &&Arc<Segment>| s.id == segment.id && Arc::as_ptr(s) != std::ptr::from_ref(segment);
            if let Some(renewed) = same.filter(renewed) {
                return Some((renewed.clone(), at));
            }
            let next = list.get(n + usize::from(same.is_some()))?;
            (at >= segment.data_end()).then(|| (next.clone(), SEGMENT_HEADER_BYTES))
        })
    }

    /// The segment that contains raft entry `index`, or would contain it. `None`: the entry is before all segments.
    pub(crate) fn holding_entry(&self, index: EntryIndex) -> Option<Arc<Segment>> {
        self.read(|list| {
            let n = list.partition_point(|s| s.base.raft < index);
            n.checked_sub(1).and_then(|n| list.get(n).cloned())
        })
    }

    /// The newest segment that begins at or before raft entry `index`.
    pub(crate) fn beginning_before(&self, index: EntryIndex) -> Option<Arc<Segment>> {
        self.read(|list| {
            let n = list.partition_point(|s| s.base.raft <= index);
            n.checked_sub(1).and_then(|n| list.get(n).cloned())
        })
    }

    /// The newest segment that begins at or before entry `raft`, and at or before this time.
    pub(crate) fn begun_before(&self, raft: EntryIndex, time: Timestamp) -> Option<Arc<Segment>> {
        let has_begun = |segment: &Segment| segment.base.raft <= raft && segment.first_timestamp <= time;
        self.read(|list| list.iter().rev().find(|segment| has_begun(segment)).cloned())
    }

    pub(crate) fn oldest(&self) -> Option<Arc<Segment>> {
        self.read(|list| list.front().cloned())
    }

    pub(crate) fn newest(&self) -> Option<Arc<Segment>> {
        self.read(|list| list.back().cloned())
    }

    /// Whether a segment is in the list.
    pub(crate) fn contains(&self, segment: &Arc<Segment>) -> bool {
        self.read(|list| list.iter().any(|s| Arc::ptr_eq(s, segment)))
    }

    /// Repeats `look` until no segment leaves the log while it runs. Files can otherwise be removed or reused
    /// meanwhile, and its first and last reads might not match. An error that no file causes, such as an object store's, is returned at
    /// once: `look` can have waited long for it.
    pub(crate) fn undisturbed<T>(&self, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let removals = || self.read(|_| self.removals.load(Ordering::Relaxed));
        loop {
            let before = removals();
            let seen = look();
            let is_of_files = |kind| matches!(kind, ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::NotFound);
            let can_be_disturbed = seen.as_ref().err().is_none_or(|error| is_of_files(error.kind()));
            if removals() == before || !can_be_disturbed {
                return seen;
            }
        }
    }

    /// The last segment whose first block is older than `time`, or the oldest one. Can block for the network if that is no file.
    ///
    /// # Errors
    /// Those of [`ObjectList::at_time`].
    pub(crate) fn at_time(&self, time: Timestamp) -> Result<Option<Arc<Segment>>> {
        let (local, is_older) = self.read(|list| {
            let n = list.partition_point(|s| s.first_timestamp < time);
            (list.get(n.saturating_sub(1)).cloned(), n == 0)
        });
        if !is_older {
            return Ok(local);
        }
        Ok(self.objects.at_time(time)?.or(local))
    }

    /// Has the first `bytes` bytes after this object fetched, of the next few objects.
    pub(crate) fn will_need_after(&self, segment: &Segment, mut bytes: usize) {
        let mut next = self.objects.after(segment).ok().flatten();
        for _ in 0..OBJECTS_AHEAD_MAX {
            let Some(segment) = next.filter(|_| bytes > 0) else { return };
            if let Ok(data) = self.open(&segment)
                && let Source::Object(object) = &data.source
            {
                object.will_need(0..bytes);
            }
            bytes = bytes.saturating_sub(segment.bytes as usize);
            next = self.objects.after(&segment).ok().flatten();
        }
    }

    /// All segments, oldest first.
    pub(crate) fn snapshot(&self) -> Vec<Arc<Segment>> {
        self.read(|list| list.iter().cloned().collect())
    }

    /// Opens a segment and keeps it open for a while.
    pub(crate) fn open(&self, segment: &Arc<Segment>) -> Result<Arc<SegmentData>> {
        if object_of(segment).is_some() {
            return self.objects.open(segment);
        }
        let data = segment.data(&*self.disk, self.mode)?;
        let mut recent = lock(&self.recent);
        match recent.iter().position(|d| Arc::ptr_eq(d, &data)) {
            Some(0) => {}
            Some(n) => {
                recent.remove(n);
                recent.push_front(data.clone());
            }
            // A segment that was dropped meanwhile must not be kept open: its file waits to be reused.
            None if self.read(|list| list.iter().any(|s| s.number == segment.number)) => {
                recent.push_front(data.clone());
                recent.truncate(RECENT_MAX);
            }
            None => {}
        }
        Ok(data)
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The known damage in the segments.
    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Handles a failed read of `record`. If the cause is damage, the repair checks there at once, and the returned
    /// error says whether it can be repaired. See [`Damage::met`].
    pub(crate) fn met(&self, error: Error, record: Option<Index>) -> Error {
        let place = error.location().filter(|_| error.kind() == ErrorKind::Corrupt);
        let found =
            place.and_then(|(path, offset)| Some((file_number(path.file_name()?.to_str()?)?, offset)));
        match found {
            Some((number, offset)) => self.damage.met(number, offset, &error, record),
            None => error,
        }
    }

    /// The batch offsets of the block that contains `index`, if a recent look-up stored them.
    pub(crate) fn places(&self, index: Index) -> Option<Arc<Places>> {
        lock(&self.places).get(index)
    }

    /// Stores the batch offsets of a committed block.
    pub(crate) fn remember(&self, places: Places) {
        lock(&self.places).insert(Arc::new(places));
    }

    /// Bytes of blocks behind entry `raft`, exact to one stride of the index.
    pub(crate) fn bytes_behind(&self, raft: EntryIndex) -> u64 {
        let behind = self.snapshot().into_iter().filter(|segment| segment.end().raft > raft);
        let bytes = behind.map(|segment| {
            let begin = match segment.base.raft >= raft {
                true => SEGMENT_HEADER_BYTES,
                false => {
                    self.open(&segment).and_then(|data| data.seek(|e| e.raft_index <= raft)).unwrap_or(0)
                }
            };
            segment.data_end().saturating_sub(begin) as u64
        });
        bytes.sum()
    }

    /// Bytes of blocks from record `first` on, which count against capacity. Exact to one stride of the index.
    pub(crate) fn bytes_from(&self, first: Index) -> u64 {
        let list = self.snapshot();
        let bytes_of = |segment: &Segment| segment.data_end() - SEGMENT_HEADER_BYTES;
        let whole: usize = list.iter().map(|segment| bytes_of(segment)).sum();
        // Files before the record can stay: an object is to be made of them.
        let below = list.iter().take_while(|segment| segment.end().next <= first).count();
        let gone: usize = list[..below].iter().map(|segment| bytes_of(segment)).sum();
        let part = list.get(below).filter(|segment| segment.base.next < first).map_or(0, |segment| {
            let offset = self.open(segment).and_then(|data| data.seek(|e| e.first <= first));
            offset.map_or(0, |offset| offset - SEGMENT_HEADER_BYTES)
        });
        (whole - gone - part) as u64
    }
}
