//! Segment: one file of the log in memory, as readers and the writer see it.
//!
//! A sealed segment takes a few hundred bytes of memory: its position in the log. Its file is opened and mapped, and
//! its block index loaded, for the first reader, and closed with the last one.
//!
//! Invariant: nothing below `readable` is ever truncated.

pub(crate) mod batch_offsets;
pub(crate) mod damage;
mod list;
pub(crate) mod objects;
pub(crate) mod version;

pub(crate) use self::list::Segments;
pub(crate) use super::format::segment::Base;

use super::format::block::BLOCK_HEADER_BYTES;
use super::format::geometry::{INDEX_ENTRY_BYTES, INDEX_STRIDE_BYTES, SEGMENT_HEADER_BYTES};
use super::format::segment::{Footer, IndexEntry};
use super::objects::cache::ObjectFile;
use crate::disk::{Disk, DiskFile, Map};
use crate::error::{Error, Result};
use crate::record::crc::crc32c;
use crate::types::{SegmentId, Timestamp};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

/// How readers read a segment.
///
/// ```
/// let options = chiplog::Options::default().read_mode(chiplog::ReadMode::Read);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadMode {
    /// Slices of a mapping, without a copy. If the device cannot read a page, or another program shortens the file, the
    /// process gets SIGBUS.
    #[default]
    Map,
    /// `pread` into buffers, with one copy. A failing device gives an [`Io`](crate::ErrorKind::Io) error, a shortened file
    /// [`Corrupt`](crate::ErrorKind::Corrupt). Nothing is mapped.
    Read,
}

/// The file name of segment `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:020}.seg")
}

/// The number in a segment's file name; None for other names.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    number_before(name, ".seg")
}

/// The 20 digits before the suffix of a file name; None for other names.
pub(crate) fn number_before(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// The extent of a segment's contents.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// The position after its last block.
    pub(crate) end: Base,
    /// The offset in the file at which its blocks end.
    pub(crate) data_end: usize,
    pub(crate) last_timestamp: Timestamp,
    index: BlockIndex,
}

#[derive(Clone, Debug)]
enum BlockIndex {
    /// Of the growing segment: in memory.
    Growing(Vec<IndexEntry>),
    /// Of a sealed segment: in the file.
    Stored { offset: u32, count: u32, crc: u32 },
}

/// One segment of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    pub(crate) base: Base,
    pub(crate) first_timestamp: Timestamp,
    extent: RwLock<Extent>,
    /// Blocks below this offset are committed: readers may read them, and they are never truncated. Moves: in
    /// `Store::commit`, and in recovery.
    readable: AtomicUsize,
    open: Mutex<Weak<SegmentData>>,
    /// The checksum of its file as servers pass it on, once that was computed.
    pub(crate) file_sum: Mutex<Option<FileSum>>,
}

/// The checksum of a file, or of its beginning, and the state of the file that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSum {
    /// Where its blocks ended.
    pub(crate) data_end: usize,
    /// See [`damage::Damage::repairs`].
    pub(crate) repairs: u64,
    /// It is of the bytes before this offset.
    pub(crate) upto: usize,
    pub(crate) crc: u32,
}

impl Segment {
    /// Creates a growing segment that begins at `base`.
    pub(crate) fn growing(number: u64, id: SegmentId, bytes: u32, base: Base, timestamp: Timestamp) -> Self {
        let extent = Extent {
            end: base,
            data_end: SEGMENT_HEADER_BYTES,
            last_timestamp: timestamp,
            index: BlockIndex::Growing(Vec::new()),
        };
        Self::new(number, id, bytes, base, timestamp, extent)
    }

    /// Creates a sealed segment from its footer.
    pub(crate) fn sealed(footer: &Footer, bytes: u32) -> Self {
        let extent = Extent {
            end: Base { raft: footer.last_raft, term: footer.last_term, next: footer.next },
            data_end: footer.data_end as usize,
            last_timestamp: footer.last_timestamp,
            index: BlockIndex::Stored {
                offset: footer.index_offset,
                count: footer.index_count,
                crc: footer.index_crc,
            },
        };
        Self::new(footer.number, footer.id, bytes, Base::before(footer), footer.first_timestamp, extent)
    }

    fn new(number: u64, id: SegmentId, bytes: u32, base: Base, first: Timestamp, extent: Extent) -> Self {
        Self {
            number,
            id,
            bytes,
            base,
            first_timestamp: first,
            readable: AtomicUsize::new(SEGMENT_HEADER_BYTES),
            extent: RwLock::new(extent),
            open: Mutex::new(Weak::new()),
            file_sum: Mutex::new(None),
        }
    }

    /// The position after its last block.
    pub(crate) fn end(&self) -> Base {
        self.read_extent(|e| e.end)
    }

    pub(crate) fn data_end(&self) -> usize {
        self.read_extent(|e| e.data_end)
    }

    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.read_extent(|e| e.last_timestamp)
    }

    /// The position after its last written block, and the offset at which that block ends.
    pub(crate) fn written(&self) -> (Base, usize) {
        self.read_extent(|e| (e.end, e.data_end))
    }

    /// Whether it has a block index.
    pub(crate) fn has_index(&self) -> bool {
        self.read_extent(|e| !matches!(e.index, BlockIndex::Stored { count: 0, .. }))
    }

    /// The whole extent, read at one moment.
    pub(crate) fn extent(&self) -> Extent {
        self.read_extent(Extent::clone)
    }

    fn read_extent<T>(&self, f: impl FnOnce(&Extent) -> T) -> T {
        f(&self.extent.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a block that was written at `entry.offset`, with the position after it.
    pub(crate) fn grow(&self, entry: IndexEntry, stride: usize, end: Base) {
        let mut extent = self.extent.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(extent.data_end, entry.offset as usize, "blocks are contiguous");
        extent.end = end;
        extent.data_end = entry.offset as usize + stride;
        extent.last_timestamp = entry.timestamp;
        if let BlockIndex::Growing(entries) = &mut extent.index {
            let due = entries.last().is_none_or(|l| entry.offset - l.offset >= INDEX_STRIDE_BYTES as u32);
            if due {
                entries.push(entry);
            }
        }
    }

    /// The offset up to which readers may read.
    pub(crate) fn readable(&self) -> usize {
        self.readable.load(Ordering::Acquire)
    }

    /// Marks blocks below `upto` as committed.
    pub(crate) fn publish(&self, upto: usize) {
        self.readable.fetch_max(upto, Ordering::AcqRel);
    }

    /// Cuts the segment back to `extent`: removes a conflicting suffix.
    fn cut(&self, extent: Extent) {
        let mut now = self.extent.write().unwrap_or_else(PoisonError::into_inner);
        let readable = self.readable();
        assert!(
            readable <= extent.data_end,
            "committed blocks were cut off: {readable} of {} in segment {} base {:?}, cut to {} {:?}, was {} {:?}",
            self.bytes,
            self.number,
            self.base,
            extent.data_end,
            extent.end,
            now.data_end,
            now.end
        );
        *now = extent;
    }

    /// Cuts the segment back to its readable part as it leaves the log. A reader in it continues after it.
    fn bury(&self) {
        let mut now = self.extent.write().unwrap_or_else(PoisonError::into_inner);
        (now.end, now.data_end) = (self.base, self.readable());
        // No index, and none to store: the file's own footer and index stay unchanged.
        now.index = BlockIndex::Stored { offset: 0, count: 0, crc: crc32c(&[]) };
    }

    /// Drops the index from memory, because the footer was written. If the segment was cut meanwhile, the footer is out
    /// of date and this does nothing: another footer will be written.
    pub(crate) fn seal(&self, footer: &Footer) {
        let mut extent = self.extent.write().unwrap_or_else(PoisonError::into_inner);
        if extent.data_end != footer.data_end as usize {
            return;
        }
        extent.index = BlockIndex::Stored {
            offset: footer.index_offset,
            count: footer.index_count,
            crc: footer.index_crc,
        };
    }

    /// Opens the file for reading, or shares it with readers that have it open. The result keeps the file unchanged,
    /// even if the segment is discarded.
    pub(crate) fn data(self: &Arc<Self>, disk: &dyn Disk, mode: ReadMode) -> Result<Arc<SegmentData>> {
        let mut open = lock(&self.open);
        if let Some(data) = open.upgrade() {
            return Ok(data);
        }
        let path = disk.path().join(file_name(self.number));
        let file = disk.open(&file_name(self.number), false).map_err(|e| Error::io("open", &path, e))?;
        let source = Source::of(file, mode).map_err(|e| Error::io("map", &path, e))?;
        let data = Arc::new(SegmentData::new(self.clone(), source, path));
        *open = Arc::downgrade(&data);
        Ok(data)
    }

    /// As [`Self::data`], of an object, which `find` opens.
    pub(crate) fn data_of(
        self: &Arc<Self>,
        find: impl FnOnce() -> Result<Arc<ObjectFile>>,
    ) -> Result<Arc<SegmentData>> {
        let mut open = lock(&self.open);
        let is_good = |data: &Arc<SegmentData>| match &data.source {
            Source::Object(object) => !object.is_discarded(),
            Source::Map(_) | Source::File(_) => true,
        };
        if let Some(data) = open.upgrade().filter(is_good) {
            return Ok(data);
        }
        let object = find()?;
        let path = object.path();
        let data = Arc::new(SegmentData::new(self.clone(), Source::Object(object), path));
        *open = Arc::downgrade(&data);
        Ok(data)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Extent {
    /// The block index of a segment that grew in this process, to be stored in its file.
    pub(crate) fn growing_index(&self) -> Option<&[IndexEntry]> {
        match &self.index {
            BlockIndex::Growing(entries) => Some(entries),
            BlockIndex::Stored { .. } => None,
        }
    }
}

/// An open segment file. Keeps its segment, so that the file is not reused while a reader has it.
#[derive(Debug)]
pub(crate) struct SegmentData {
    pub(crate) segment: Arc<Segment>,
    pub(crate) source: Source,
    pub(crate) path: PathBuf,
    /// Its opening was found sound since the file was opened.
    pub(crate) opening_checked: AtomicBool,
    index: OnceLock<Vec<IndexEntry>>,
    /// Keeps the file unchanged until nothing reads it: the last field, so that it goes after the mapping.
    _unchanged: Option<Box<dyn Debug + Send + Sync>>,
}

/// The way in which the file is read.
#[derive(Debug)]
pub(crate) enum Source {
    Map(Map),
    File(Arc<dyn DiskFile>),
    /// Of an object: what is read is fetched first.
    Object(Arc<ObjectFile>),
}

impl Source {
    /// Maps a file, if that is the mode and the disk can.
    pub(crate) fn of(file: Arc<dyn DiskFile>, mode: ReadMode) -> std::io::Result<Self> {
        match mode {
            ReadMode::Map => match file.map() {
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => Ok(Self::File(file)),
                map => map.map(Self::Map),
            },
            ReadMode::Read => Ok(Self::File(file)),
        }
    }
}

impl SegmentData {
    /// The segment's file, without a mapping: a device that cannot read it causes an error and no signal.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn unmapped(segment: Arc<Segment>, disk: &dyn Disk) -> Result<Arc<Self>> {
        let name = file_name(segment.number);
        let path = disk.path().join(&name);
        let file = disk.open(&name, false).map_err(|e| Error::io("open", &path, e))?;
        Ok(Arc::new(Self::new(segment, Source::File(file), path)))
    }

    fn new(segment: Arc<Segment>, source: Source, path: PathBuf) -> Self {
        let opening_checked = AtomicBool::new(false);
        Self { segment, source, path, opening_checked, index: OnceLock::new(), _unchanged: None }
    }

    /// A file with the records of a segment in another order. It has no block index, and does not keep the segment. It does not
    /// change as long as `unchanged` exists.
    pub(crate) fn of_copy(
        of: &Segment,
        source: Source,
        path: PathBuf,
        unchanged: impl Debug + Send + Sync + 'static,
    ) -> Self {
        let segment = Segment::growing(of.number, of.id, of.bytes, of.base, of.first_timestamp);
        Self { _unchanged: Some(Box::new(unchanged)), ..Self::new(Arc::new(segment), source, path) }
    }

    /// Copies a range from either source. None: the file ends before it.
    pub(crate) fn copy(&self, offset: usize, length: usize) -> Result<Option<Vec<u8>>> {
        match &self.source {
            Source::Map(map) => return Ok(map.bytes(offset..offset + length).map(<[u8]>::to_vec)),
            Source::File(_) => {}
            Source::Object(object) => object.ensure(offset..offset + length)?,
        }
        let file = match &self.source {
            Source::Object(object) => object.file(),
            Source::File(file) => &**file,
            Source::Map(_) => return Ok(None),
        };
        let mut bytes = vec![0; length];
        match file.read_at(offset as u64, &mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(Error::io("read", &self.path, e)),
        }
    }

    /// The last indexed block for which `before` holds, or the segment's first block. `before` must hold for a prefix
    /// of the index.
    pub(crate) fn seek(&self, before: impl Fn(&IndexEntry) -> bool) -> Result<usize> {
        self.with_index(|entries| {
            let n = entries.partition_point(&before);
            n.checked_sub(1).map_or(SEGMENT_HEADER_BYTES, |n| entries[n].offset as usize)
        })
    }

    /// The extent of the segment if it ended at `data_end`.
    pub(crate) fn cut(&self, end: Base, data_end: usize, last_timestamp: Timestamp) -> Result<Extent> {
        let entries = self.with_index(|entries| {
            entries.iter().copied().take_while(|e| (e.offset as usize) < data_end).collect()
        })?;
        Ok(Extent { end, data_end, last_timestamp, index: BlockIndex::Growing(entries) })
    }

    /// The block index that look-ups use.
    pub(crate) fn index(&self) -> Result<Vec<IndexEntry>> {
        self.with_index(<[IndexEntry]>::to_vec)
    }

    fn with_index<T>(&self, f: impl Fn(&[IndexEntry]) -> T) -> Result<T> {
        if let Some(entries) = self.index.get() {
            return Ok(f(entries));
        }
        let stored = {
            let extent = self.segment.extent.read().unwrap_or_else(PoisonError::into_inner);
            match &extent.index {
                BlockIndex::Growing(entries) => return Ok(f(entries)),
                BlockIndex::Stored { offset, count, crc } => (*offset, *count, *crc),
            }
        };
        let entries = self.load_index(stored)?;
        Ok(f(self.index.get_or_init(|| entries)))
    }

    /// Reads and checks the stored index. A damaged one is not used: the blocks are walked from the start.
    fn load_index(&self, (offset, count, crc): (u32, u32, u32)) -> Result<Vec<IndexEntry>> {
        let bytes = self.copy(offset as usize, count as usize * INDEX_ENTRY_BYTES)?;
        let Some(bytes) = bytes.filter(|bytes| crc32c(bytes) == crc) else {
            tracing::warn!(file = %self.path.display(), offset, "block index is corrupt and not used; blocks are read from the start");
            return Ok(Vec::new());
        };
        Ok(bytes.as_chunks::<INDEX_ENTRY_BYTES>().0.iter().map(IndexEntry::parse).collect())
    }
}

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{EntryIndex, Index, Term};

    /// The helper thread writes a footer while the segment is cut. That footer is out of date, and the segment must not
    /// count as sealed.
    #[test]
    fn footer_from_before_a_cut_does_not_seal() {
        let base = Base { raft: EntryIndex(4), term: Term(1), next: Index(9) };
        let segment = Segment::growing(3, SegmentId(1), 1 << 16, base, Timestamp(0));
        let end = Base { raft: EntryIndex(5), ..base };
        for offset in [4096, 4160] {
            let entry =
                IndexEntry { first: Index(9), raft_index: EntryIndex(5), timestamp: Timestamp(1), offset };
            segment.grow(entry, 64, end);
        }
        let footer = |data_end| Footer {
            number: 3,
            id: SegmentId(1),
            base_raft: base.raft,
            base_term: base.term,
            first: base.next,
            next: end.next,
            last_raft: end.raft,
            last_term: end.term,
            first_timestamp: Timestamp(0),
            last_timestamp: Timestamp(1),
            data_end,
            index_offset: 65_280,
            index_count: 1,
            index_crc: 0,
        };
        segment.cut(Extent { data_end: 4160, ..segment.extent() });
        segment.seal(&footer(4224));
        assert!(segment.extent().growing_index().is_some());
        segment.seal(&footer(4160));
        assert!(segment.extent().growing_index().is_none());
    }

    #[test]
    fn names_and_numbers() {
        assert_eq!(file_name(7), "00000000000000000007.seg");
        assert_eq!(file_number(&file_name(u64::MAX)), Some(u64::MAX));
        for no in
            ["7.seg", "00000000000000000007.tmp", "+0000000000000000007.seg", "99999999999999999999.seg"]
        {
            assert_eq!(file_number(no), None, "{no}");
        }
    }
}
