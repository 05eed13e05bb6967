//! Sorted copies: the records of a full segment of a shared group, once more, log by log, in a file beside it. A reader of one log
//! among many finds its records one behind the other there, and scattered over the whole segment otherwise.
//!
//! ```text
//! N.seg, full and committed ──> helper thread: sorter ──> N.run.tmp ──synced, renamed──> N.run ──> readers
//! ```
//!
//! The segment stays, and raft, repair and recovery know nothing else. So a copy can be missing at any time: after a crash, on a full
//! disk, once damage was found in it. Readers then use the segment, and the copy is made again.
//!
//! Invariants:
//! - a copy is made of committed blocks only, which never change; it names the segment by its random id;
//! - a file `N.run` is whole and durable: it gets its name after its sync;
//! - no record of one log is ever read as another's: each log's blocks have a salt of their own;
//! - a hole in a copy has only blocks whose records no log needs (copy_holes.rs), and is made while nothing reads the copy;
//! - no lock is held during a call to the disk: the thread that writes the log asks for the state of the copies.
//!
//! Must not know: raft, readers.

use super::block_reader::Blocks;
use super::copy_uses::{CopyChange, CopyKey, CopyRead};
use crate::disk::spare_files::{SpareFiles, register};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::sorted::{SORTED_HEADER_BYTES, SortedDirectory, SortedHeader, salt};
use crate::store::format::sorted_object::SortedObjectHeader;
use crate::store::segment::objects::object_of;
use crate::store::segment::{ReadMode, Segment, SegmentData, Segments, Source, number_before};
use crate::types::{Index, LogNumber};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How many copies stay open without a reader: mappings, or files, of which a process has few.
const MAPPINGS_MAX: usize = 256;
const FILES_MAX: usize = 16;
/// The most memory that their directories take, except for the one that was used last.
const DIRECTORIES_BYTES_MAX: usize = 32 << 20;

/// The file name of the copy of segment `number`.
pub(crate) fn sorted_name(number: u64) -> String {
    format!("{number:020}.run")
}

/// The number in the file name of a copy; None for other names.
fn sorted_number(name: &str) -> Option<u64> {
    number_before(name, ".run")
}

/// The name of a copy that is being made.
pub(super) fn unfinished_name(number: u64) -> String {
    format!("{}.tmp", sorted_name(number))
}

/// Whether this is the name of a copy, or of one that is being made.
pub(crate) fn is_sorted_name(name: &str) -> bool {
    sorted_number(name.strip_suffix(".tmp").unwrap_or(name)).is_some()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy, as far as it is known without its file.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownCopy {
    /// A number that it has for itself.
    pub(super) made: u64,
    /// Parts that no log needs: they are holes, or become some.
    pub(super) holes: Vec<Range<u32>>,
    /// All of them are.
    pub(super) are_made: bool,
}

/// The copies of a log's segments. `Send + Sync`; calls block only for the disk.
#[derive(Debug)]
pub(crate) struct SortedCopies {
    segments: Arc<Segments>,
    /// The copies, by the numbers of their segments.
    known: Mutex<BTreeMap<u64, KnownCopy>>,
    made: AtomicU64,
    removals: AtomicU64,
    /// The disk that they are on, once there is one.
    device: OnceLock<u64>,
    /// The log is closed: its files are another's.
    is_closed: AtomicBool,
    /// Copies that were used last, newest first.
    recent: Mutex<VecDeque<Arc<SortedCopy>>>,
}

impl SortedCopies {
    pub(crate) fn new(segments: Arc<Segments>) -> Arc<Self> {
        Arc::new(Self {
            segments,
            known: Mutex::default(),
            made: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            device: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            recent: Mutex::default(),
        })
    }

    /// The segments that are copied.
    pub(crate) fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &**self.segments.disk()
    }

    /// Finds the copies in a directory that was just opened, and removes those that no segment has, or that are unfinished.
    ///
    /// # Errors
    /// `Io`: the directory cannot be read.
    pub(crate) fn find(self: &Arc<Self>, has_segment: impl Fn(u64) -> bool) -> Result<()> {
        let disk = self.disk();
        let names = disk.list().map_err(|e| Error::io("list", disk.path(), e))?;
        for name in names.into_iter().filter(|name| is_sorted_name(name)) {
            match sorted_number(&name).filter(|number| has_segment(*number)) {
                Some(number) => self.add(number),
                None => self.remove(&name),
            }
        }
        Ok(())
    }

    /// Whether a segment has a copy.
    pub(crate) fn has(&self, number: u64) -> bool {
        lock(&self.known).contains_key(&number)
    }

    /// The numbers of the segments that have a copy, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        lock(&self.known).keys().copied().collect()
    }

    pub(super) fn known(&self, number: u64) -> Option<KnownCopy> {
        lock(&self.known).get(&number).cloned()
    }

    /// Notes the holes of a copy.
    pub(super) fn note(&self, number: u64, copy: KnownCopy) {
        if let Some(known) = lock(&self.known).get_mut(&number).filter(|known| known.made == copy.made) {
            *known = copy;
        }
    }

    /// Keeps readers from the copy of a segment. None: there are some.
    pub(super) fn exclude_readers(&self, segment: &Segment) -> Option<CopyChange> {
        let key = self.key(segment)?;
        CopyChange::begin(key).or_else(|| {
            self.close_all(|copy| copy.number() == segment.number); // those that are open without a reader
            CopyChange::begin(key)
        })
    }

    /// The key of a segment's copy. None: it cannot be found out now.
    fn key(&self, segment: &Segment) -> Option<CopyKey> {
        let known = self.device.get().copied().map(|device| Ok(Some(device)));
        let device =
            known.unwrap_or_else(|| self.disk().space().map(|space| space.map(|space| space.device)));
        Some((device.ok()?, segment.id))
    }

    /// How many copies were removed so far although their segments may be there.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Relaxed)
    }

    /// Notes that a copy was made. From the first one on the copies give way where the disk is full.
    pub(super) fn add(self: &Arc<Self>, number: u64) {
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        lock(&self.known).insert(number, KnownCopy { made, ..KnownCopy::default() });
        if made == 0
            && let Ok(Some(space)) = self.disk().space()
        {
            let _ = self.device.set(space.device);
            let copies: Arc<dyn SpareFiles> = self.clone();
            register(Arc::downgrade(&copies));
        }
    }

    /// The log is being closed: from now on no file is removed or changed.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Opens the copy of a segment. A damaged one is removed. None: there is none that can be used now.
    pub(crate) fn of(&self, segment: &Segment) -> Option<Arc<SortedCopy>> {
        self.opened(segment, CopyRead::begin)
    }

    /// As [`Self::of`], for a reader that needs the copy: the segment is damaged. If the copy is being changed now, this waits for that, for
    /// 5 s at most.
    pub(crate) fn needed_of(&self, segment: &Segment) -> Option<Arc<SortedCopy>> {
        self.opened(segment, CopyRead::begin_after_change)
    }

    fn opened(
        &self,
        segment: &Segment,
        begin: impl Fn(CopyKey) -> Option<CopyRead>,
    ) -> Option<Arc<SortedCopy>> {
        let made = lock(&self.known).get(&segment.number)?.made;
        if let Some(copy) = self.recall(segment.number, made) {
            return Some(copy);
        }
        let read = begin(self.key(segment)?)?;
        match SortedCopy::open(segment, made, self.disk(), self.segments.mode(), read) {
            Ok(copy) => Some(self.keep(Arc::new(copy))),
            Err(error) => {
                self.cannot_use(segment.number, made, &error);
                None
            }
        }
    }

    /// An open copy, which is then the one that was used last.
    fn recall(&self, number: u64, made: u64) -> Option<Arc<SortedCopy>> {
        let mut recent = lock(&self.recent);
        let at = recent.iter().position(|copy| (copy.number(), copy.made) == (number, made))?;
        let copy = recent.remove(at)?;
        recent.push_front(copy.clone());
        Some(copy)
    }

    /// Keeps a copy open, unless another reader was faster, or it was removed meanwhile.
    fn keep(&self, copy: Arc<SortedCopy>) -> Arc<SortedCopy> {
        if let Some(known) = self.recall(copy.number(), copy.made) {
            return known;
        }
        let count_max = match self.segments.mode() {
            ReadMode::Map => MAPPINGS_MAX,
            ReadMode::Read => FILES_MAX,
        };
        let mut bytes = 0;
        let mut recent = lock(&self.recent);
        recent.push_front(copy.clone());
        let kept = recent.iter().take(count_max).take_while(|copy| {
            bytes += copy.directory.bytes();
            bytes <= DIRECTORIES_BYTES_MAX
        });
        let kept = kept.count().max(1);
        let closed = recent.split_off(kept);
        drop(recent);
        drop(closed); // after the lock: this can unmap files
        if self.known(copy.number()).is_none_or(|known| known.made != copy.made) {
            self.close_all(|other| other.number() == copy.number());
        }
        copy
    }

    /// Closes these open copies, as far as no reader has them.
    pub(super) fn close_all(&self, is_closed: impl Fn(&SortedCopy) -> bool) {
        let mut recent = lock(&self.recent);
        let (closed, kept): (VecDeque<_>, _) =
            std::mem::take(&mut *recent).into_iter().partition(|copy| is_closed(copy));
        *recent = kept;
        drop(recent);
        drop(closed); // after the lock: this can unmap files
    }

    /// Reports that a block in this range of a copy could not be read, for this reason. A damaged copy is removed; one with a hole there is
    /// sound.
    pub(crate) fn cannot_read(&self, copy: &SortedCopy, block: &Range<usize>, why: &Error) {
        let is_in = |hole: &Range<u32>| (hole.start as usize) < block.end && block.start < hole.end as usize;
        let known = self.known(copy.number()).filter(|known| known.made == copy.made);
        // A reader of a log that was dropped reads on, and one can be older than a discard.
        if known.is_none_or(|known| !known.holes.iter().any(is_in)) {
            self.cannot_use(copy.number(), copy.made, why);
        }
    }

    pub(super) fn cannot_use(&self, number: u64, made: u64, why: &Error) {
        // There may be no memory or descriptor for it now. The file is sound as far as is known.
        if why.kind() != ErrorKind::Corrupt {
            tracing::debug!(path = %self.disk().path().display(), segment = number, error = %why, "the sorted copy of a segment cannot be read now");
        } else if !self.is_closed.load(Ordering::Acquire) && self.forget(number, made) {
            tracing::warn!(path = %self.disk().path().display(), segment = number, error = %why, "the sorted copy of a segment is damaged; it is removed, and made again later");
            self.remove(&sorted_name(number));
        }
    }

    /// Forgets the copies of segments before `oldest`, whose files are removed with those of the segments.
    pub(crate) fn forget_below(&self, oldest: u64) {
        lock(&self.known).retain(|number, _| *number >= oldest);
        self.close_all(|copy| copy.number() < oldest);
    }

    /// Forgets this copy of a segment. False: it was not known.
    fn forget(&self, number: u64, made: u64) -> bool {
        let is_known = {
            let mut known = lock(&self.known);
            known.get(&number).is_some_and(|known| known.made == made) && known.remove(&number).is_some()
        };
        if !is_known {
            return false;
        }
        self.removals.fetch_add(1, Ordering::Relaxed);
        self.close_all(|copy| copy.number() == number);
        true
    }

    /// Removes a file. If that fails, the next opening does it, or finds that it is not of its segment.
    pub(super) fn remove(&self, name: &str) {
        if let Err(error) = self.disk().remove(name) {
            tracing::debug!(path = %self.disk().path().display(), name, %error, "a sorted copy could not be removed");
        }
    }
}

impl SpareFiles for SortedCopies {
    fn name(&self) -> &'static str {
        "sorted copies of segments"
    }

    fn device(&self) -> Option<u64> {
        self.device.get().copied()
    }

    /// Removes the oldest copy.
    fn remove_one(&self) -> Option<u64> {
        if self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        let (number, made) =
            lock(&self.known).first_key_value().map(|(number, known)| (*number, known.made))?;
        let name = sorted_name(number);
        let bytes = self.disk().open(&name, false).and_then(|file| file.allocated()).unwrap_or(0);
        if self.forget(number, made) {
            self.remove(&name);
        }
        Some(bytes)
    }
}

/// The directory of a segment's copy.
///
/// # Errors
/// `Corrupt`: the file is damaged, or not a copy of this segment; `Io`.
pub(super) fn directory_of(segment: &Segment, file: &dyn DiskFile, path: &Path) -> Result<SortedDirectory> {
    let corrupt = |why| Error::corrupt(path, 0, why);
    let io = |e| cannot_be_read(path, e);
    let mut bytes = vec![0; SORTED_HEADER_BYTES];
    file.read_at(0, &mut bytes).map_err(io)?;
    let header = SortedHeader::parse(&bytes).map_err(corrupt)?;
    let is_of = (header.number, header.id, header.data_end as usize)
        == (segment.number, segment.id, segment.data_end());
    let length = file.len().map_err(io)?;
    if !is_of || length != u64::from(header.directory_at) + header.directory_bytes() as u64 {
        return Err(corrupt("file is not the sorted copy of its segment"));
    }
    bytes.resize(header.directory_bytes(), 0);
    file.read_at(header.directory_at.into(), &mut bytes).map_err(io)?;
    SortedDirectory::parse(&header, &bytes, SORTED_HEADER_BYTES as u32).map_err(corrupt)
}

/// The error of a copy that cannot be opened or read.
pub(super) fn cannot_be_read(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::NotFound => Error::corrupt(path, 0, "file of a sorted copy is missing"),
        io::ErrorKind::UnexpectedEof => Error::corrupt(path, 0, "sorted copy is cut off"),
        _ => Error::io("read", path, e),
    }
}

/// The open copy of a segment. It keeps the bytes that were read, even if the file is removed.
#[derive(Debug)]
pub(crate) struct SortedCopy {
    data: Arc<SegmentData>,
    directory: SortedDirectory,
    made: u64,
}

impl SortedCopy {
    /// # Errors
    /// `Corrupt`: the file is damaged, missing, or not a copy of this segment; `Io`.
    fn open(
        segment: &Segment,
        made: u64,
        disk: &dyn Disk,
        mode: ReadMode,
        unchanged: CopyRead,
    ) -> Result<Self> {
        let name = sorted_name(segment.number);
        let path = disk.path().join(&name);
        let file = disk.open(&name, false).map_err(|e| cannot_be_read(&path, e))?;
        let directory = directory_of(segment, &*file, &path)?;
        let source = Source::of(file, mode).map_err(|e| cannot_be_read(&path, e))?;
        let data = Arc::new(SegmentData::of_copy(segment, source, path, unchanged));
        Ok(Self { data, directory, made })
    }

    /// The sorted object `data`.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged, or another object. Those of reading an object.
    pub(crate) fn of_object(data: Arc<SegmentData>) -> Result<Self> {
        let segment = data.segment.clone();
        let corrupt = |at, why| Blocks::new(data.clone(), 0, 0).corrupt(at, why);
        let cut_off = || corrupt(0, "sorted object is cut off");
        let head = data.copy(0, SORTED_HEADER_BYTES)?.ok_or_else(cut_off)?;
        let header =
            SortedObjectHeader::parse(&head, segment.bytes as usize).map_err(|why| corrupt(0, why))?;
        let SortedObjectHeader { sorted, blocks_at, .. } = header;
        if (sorted.id, sorted.data_end as usize) != (segment.id, segment.data_end()) {
            return Err(corrupt(0, "it is another object than its name says"));
        }
        let at = sorted.directory_at as usize;
        let bytes = data.copy(at, sorted.directory_bytes())?.ok_or_else(cut_off)?;
        let directory = SortedDirectory::parse(&sorted, &bytes, blocks_at).map_err(|why| corrupt(at, why))?;
        Ok(Self { data, directory, made: 0 })
    }

    /// The object that this is, if it is no copy of a segment.
    pub(crate) fn object(&self) -> Option<&Arc<Segment>> {
        Some(&self.data.segment).filter(|segment| object_of(segment).is_some())
    }

    /// Whether it is an object that left the cache.
    pub(crate) fn is_discarded(&self) -> bool {
        matches!(&self.data.source, Source::Object(object) if object.is_discarded())
    }

    /// All blocks of `log`, and the offset at which they end. None: it has none here.
    pub(crate) fn all_blocks(&self, log: LogNumber, window_bytes: usize) -> Option<(Blocks, usize)> {
        let (at, end) = self.directory.of_log(log)?;
        let salt = salt(self.data.segment.id, log);
        Some((Blocks::with_salt(self.data.clone(), at, window_bytes, salt), end))
    }

    /// The segment that it is a copy of, and how many copies were made before it: another copy of that segment has another name.
    pub(crate) fn name(&self) -> (u64, u64) {
        (self.number(), self.made)
    }

    /// The segment that it is a copy of.
    pub(crate) fn number(&self) -> u64 {
        self.data.segment.number
    }

    /// The blocks of `log` from the one on that contains record `next`, or a few before it, and the offset at which they end. None:
    /// the log does not have the record here.
    pub(crate) fn blocks(&self, log: LogNumber, next: Index, window_bytes: usize) -> Option<(Blocks, usize)> {
        let (at, end) = self.directory.seek(log, next)?;
        let salt = salt(self.data.segment.id, log);
        Some((Blocks::with_salt(self.data.clone(), at, window_bytes, salt), end))
    }
}
