//! Store: an ordered list of segments that grows at one end and is dropped at the other. It does not interpret blocks
//! and never decides an index.
//!
//! ```text
//! push(block)*  ->  write()  ->  begin_sync()     one pwritev for all that was pushed
//!                   job.run()                     fdatasync, on any thread; meanwhile more is pushed and written
//!                   end_sync(job)                 the bytes written before the job began are durable
//! commit(index)                                   readers may see it: written, synced here or not
//! fits? no      ->  roll(opening)                 next prepared file; its opening block is pushed first
//! drop_below(first, known)                        whole segments, to the helper thread
//! ```
//!
//! A roll can continue anywhere, not only at the end: below it, which truncates a conflicting suffix, or beyond it (see
//! `truncate`).
//!
//! Invariants:
//! - `synced <= written <= end`: bytes below `synced` are durable, and each block records in its `durable_upto` the
//!   `synced` at which it was pushed: it proves the bytes below that, not all bytes before it;
//! - nothing is written into a segment before the whole previous one is synced;
//! - readable follows committed, and committed blocks are never truncated;
//! - a block is written only into a segment whose header requires readers that understand it;
//! - a failed write or sync leaves the store unusable: the caller poisons the log.

pub(crate) mod filling;
pub(crate) mod format;
pub(crate) mod read;

pub(crate) mod object_file;
pub(crate) mod object_maker;
pub(crate) mod objects;
pub(crate) mod slice_maker;

pub(crate) mod allocator;
mod background;
pub(crate) mod helper;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod sorted_object;
pub(crate) mod truncate;
pub(crate) mod whole_segments;

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::types::{EntryIndex, Index};
use allocator::{Allocator, PreparedSegment, Purpose};
use bytes::Bytes;
use format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, padded};
use format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use format::segment::{FORMAT_VERSION_FIRST, IndexEntry, KEPT_STATE_BYTES, version_of};
use read::entry_lookup::Archive;
use read::segment_files::PutAside;
use segment::version::raise_version;
use segment::{Base, Extent, Segment, Segments, file_name};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use truncate::{Begins, Truncation};

/// A block to be written.
#[derive(Debug)]
pub(crate) struct NewBlock {
    /// Its `durable_upto` is 0 until the block has its place in a file.
    pub(crate) header: BlockHeader,
    /// Its body, in pieces.
    pub(crate) body: Vec<Bytes>,
    /// The position after it.
    pub(crate) end: Base,
}

impl NewBlock {
    /// A block with this header, except for the length, which is that of `body`, and `durable_upto`.
    pub(crate) fn new(header: BlockHeader, body: Vec<Bytes>, end: Base) -> Self {
        let length = (BLOCK_HEADER_BYTES + body.iter().map(Bytes::len).sum::<usize>()) as u32;
        Self { header: BlockHeader { length, durable_upto: 0, ..header }, body, end }
    }
}

/// The version that readers of the block must support.
fn version_of_new(block: &NewBlock) -> u32 {
    version_of(block.header.kind, block.body.first().map_or(&[], |piece| &piece[..]))
}

/// The bytes that a block with a body of `body` bytes takes in a file.
pub(crate) const fn block_bytes(body: usize) -> usize {
    padded(BLOCK_HEADER_BYTES + body)
}

/// The writing end of the log's files.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) allocator: Arc<Allocator>,
    active: Active,
    /// How the log switches to the growing segment, until that has durably begun.
    truncation: Option<Truncation>,
    /// Blocks that were written and are not known to be committed, in order.
    uncommitted: VecDeque<Uncommitted>,
    committed: EntryIndex,
    /// Whether a [`SyncJob`] is in progress.
    syncing: bool,
    /// Files beside the log's, until no object can need them.
    pub(crate) put_aside: PutAside,
}

/// The end of a block that readers may not see yet.
#[derive(Debug)]
struct Uncommitted {
    raft: EntryIndex,
    segment: Arc<Segment>,
    end: usize,
}

/// A sync that can run on another thread while the store is used.
#[derive(Debug)]
#[must_use = "writes are not durable before the job has run"]
pub(crate) struct SyncJob {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    segment: u64,
    upto: usize,
}

impl SyncJob {
    /// Makes the bytes written before the job began durable. Blocks for the device.
    ///
    /// # Errors
    /// The sync failed: nothing written since the last successful one may be relied on, nor synced again.
    pub(crate) fn run(&self) -> Result<()> {
        if planted!(4) {
            return Ok(());
        }
        let outcome = self.file.sync();
        if planted!(22) {
            return Ok(());
        }
        outcome.map_err(|e| Error::io("sync", &self.path, e))
    }

    /// The name of the file that it syncs, for a simulated disk.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.path.file_name()?.to_str()
    }
}

/// The growing segment.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// Whether it is in the list: true after its first write.
    listed: bool,
    /// The offset of the next push.
    end: usize,
    /// The offsets up to which it is written and synced.
    written: usize,
    synced: usize,
    /// Whether a block other than a marker was pushed since the last marker.
    unproven: bool,
    limit: usize,
    /// Whether the helper knows that another segment will be needed.
    wants_successor: bool,
    /// The version that readers of the pushed blocks must support, and the version that the header is known to require.
    needs_version: u32,
    asks_version: u32,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    header: [u8; BLOCK_HEADER_BYTES],
    body: Vec<Bytes>,
    padding: usize,
    entry: IndexEntry,
    stride: usize,
    end: Base,
}

/// Where writing continues after recovery.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) segment: Arc<Segment>,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Whether its last block is not a marker.
    pub(crate) unproven: bool,
    /// The last entry known to be committed: readers may see entries up to it.
    pub(crate) committed: EntryIndex,
}

/// The most bytes that the markers of [`Store::proof`] take.
pub(crate) const PROOF_BYTES_MAX: usize = SECTOR_BYTES + block_bytes(0);
const _: () = assert!(SECTOR_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));
// A hard state that repeats where files begin can be the proof.
const _: () = assert!(SECTOR_BYTES - block_bytes(0) + block_bytes(KEPT_STATE_BYTES) <= PROOF_BYTES_MAX);

/// Files are prepared ahead once this fraction of a segment is full: an eighth. A log that never gets there uses one
/// file.
const SUCCESSOR_WANTED_AT: usize = 8;

/// The unit of the kernel's page cache.
const PAGE_BYTES: usize = 4096;
/// The padding after blocks, and after a write.
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

impl Store {
    /// Creates a store that continues where `resume` says; its segment is the last one in `segments`. All of it is
    /// durable.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: uncommitted blocks could not be read.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        segments: Arc<Segments>,
        allocator: Arc<Allocator>,
        resume: Resume,
    ) -> Result<Self> {
        let mut active = Active::new(&*disk, resume.segment, resume.file);
        active.listed = true;
        active.end = active.segment.data_end();
        active.written = active.end;
        active.synced = active.end;
        active.unproven = resume.unproven;
        let mut store = Self::with(disk, segments, allocator, active);
        for segment in store.segments.snapshot() {
            let ends = store.archive().ends(&segment, resume.committed)?;
            let blocks =
                ends.into_iter().map(|(raft, end)| Uncommitted { raft, segment: segment.clone(), end });
            store.uncommitted.extend(blocks);
        }
        store.commit(resume.committed);
        Ok(store)
    }

    fn with(disk: Arc<dyn Disk>, segments: Arc<Segments>, allocator: Arc<Allocator>, active: Active) -> Self {
        let (truncation, uncommitted, committed) = (None, VecDeque::new(), EntryIndex(0));
        let (syncing, put_aside) = (false, PutAside::default());
        Self { disk, segments, allocator, active, truncation, uncommitted, committed, syncing, put_aside }
    }

    /// Creates the first segment of a new log. `opening` is durable when this returns.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        segments: Arc<Segments>,
        allocator: Arc<Allocator>,
        opening: NewBlock,
    ) -> Result<Self> {
        let next = allocator.take(Purpose::Metadata)?;
        let segment =
            Segment::growing(next.number, next.id, next.bytes, opening.end, opening.header.timestamp);
        let active = Active::new(&*disk, Arc::new(segment), next.file);
        let mut store = Self::with(disk, segments, allocator, active);
        let base = opening.header.raft_index;
        store.push(opening);
        store.raise_version()?;
        store.write()?;
        store.sync()?;
        store.commit(base);
        Ok(store)
    }

    /// Whether the growing segment has room for a block with a body of `body` bytes and the markers after it. The
    /// markers are included so that all written blocks can be proven.
    #[cfg(test)]
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.active.end + block_bytes(body) + PROOF_BYTES_MAX <= self.active.limit
    }

    /// The body lengths of the markers that prove all written blocks. A device loses whole sectors: if the last block
    /// shares its last sector with a marker, that marker fills the sector, and another one follows in the next sector.
    pub(crate) fn proof(&self) -> impl Iterator<Item = usize> + use<> {
        self.filler().into_iter().chain([0])
    }

    /// The body length of the marker that fills the last sector. None: it is full.
    pub(crate) fn filler(&self) -> Option<usize> {
        let rest = self.active.end.next_multiple_of(SECTOR_BYTES) - self.active.end;
        (rest > 0).then(|| rest - block_bytes(0))
    }

    /// Whether blocks with bodies of these lengths fit behind those that were pushed, without a proof of their own.
    pub(crate) fn has_space_for(&self, bodies: impl Iterator<Item = usize>) -> bool {
        self.active.end + bodies.map(block_bytes).sum::<usize>() <= self.active.limit
    }

    /// Whether a hard state that says where files begin fits in the next sector, without a proof of its own.
    pub(crate) fn has_space_for_kept_state(&self) -> bool {
        self.has_space_for(self.filler().into_iter().chain([KEPT_STATE_BYTES]))
    }

    /// Writes blocks, and makes them durable. Nothing else may have been pushed.
    ///
    /// # Errors
    /// The contents of the disk are unknown.
    pub(crate) fn write_through(&mut self, blocks: Vec<NewBlock>) -> Result<()> {
        for block in blocks {
            self.push(block);
        }
        self.raise_version()?;
        self.write()?;
        self.sync()
    }

    /// Whether there are blocks, other than markers, that nothing on disk proves yet.
    pub(crate) fn is_unproven(&self) -> bool {
        self.active.unproven
    }

    /// Whether blocks were pushed and not written.
    pub(crate) fn has_pending(&self) -> bool {
        !self.active.pending.is_empty()
    }

    /// The offset of the next push, and the limit for the end of blocks.
    pub(crate) fn end(&self) -> (usize, usize) {
        (self.active.end, self.active.limit)
    }

    /// Whether all pushed blocks are synced.
    pub(crate) fn is_synced(&self) -> bool {
        self.active.synced == self.active.end
    }

    /// Continues in the file `next`, whose first block is `opening`. Everything pushed must be synced. The position of
    /// the opening decides the effect on the log:
    ///
    /// - at the end of the log: none;
    /// - after one of its entries, which must not be below the last committed one: all later entries are truncated;
    /// - anywhere else, not below the last committed entry: all segments are dropped.
    ///
    /// `begins`: where it was planned to begin. Only a segment that is to begin elsewhere has an effect.
    ///
    /// The view of readers and of the [`Archive`] changes when the opening is written. Files are removed when it is
    /// durable; until then a crash restores the earlier log.
    ///
    /// # Errors
    /// The log could not be read at the point of truncation (`Corrupt`, `Io`). Nothing has changed then.
    pub(crate) fn roll_into(
        &mut self,
        next: PreparedSegment,
        opening: NewBlock,
        begins: Begins,
    ) -> Result<()> {
        assert!(self.is_synced(), "a roll with unsynced blocks");
        let at = (opening.end, begins);
        let truncation = Truncation::plan(&self.segments, &self.active.segment, at, self.committed)?;
        let segment =
            Segment::growing(next.number, next.id, next.bytes, opening.end, opening.header.timestamp);
        self.active = Active::new(&*self.disk, Arc::new(segment), next.file);
        debug_assert!(self.truncation.is_none(), "two truncations wait for one sync");
        self.truncation = Some(truncation);
        self.push(opening);
        Ok(())
    }

    /// Like [`Self::roll_into`], in the next prepared file, which must also have room for a body of `body` bytes.
    ///
    /// # Errors
    /// No file could be prepared (`Full`, `Io`), or a new one would be too small (`TooLarge`); and those of
    /// `roll_into`. Nothing has changed then.
    #[cfg(test)]
    pub(crate) fn roll(&mut self, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        let needed = opening.header.stride() + block_bytes(body) + PROOF_BYTES_MAX;
        assert!(needed <= format::geometry::room_of(self.allocator.segment_bytes() as usize));
        let next = self.allocator.take(purpose)?;
        self.roll_into(next, opening, Begins::Elsewhere)
    }

    /// Adds a block to the next write. The caller has checked [`Self::fits`]. Returns the bytes that it takes.
    pub(crate) fn push(&mut self, block: NewBlock) -> usize {
        let active = &mut self.active;
        let version = version_of_new(&block);
        let header = BlockHeader { durable_upto: active.synced as u32, ..block.header };
        let stride = header.stride();
        assert!(active.end + stride <= active.limit, "a block that does not fit was pushed");
        let entry = IndexEntry {
            first: header.first,
            raft_index: header.raft_index,
            timestamp: header.timestamp,
            offset: active.end as u32,
        };
        active.pending.push(Pending {
            header: header.encode(active.segment.id),
            body: block.body,
            padding: stride - header.length as usize,
            entry,
            stride,
            end: block.end,
        });
        active.end += stride;
        active.needs_version = active.needs_version.max(version);
        if !active.wants_successor && active.end > active.limit / SUCCESSOR_WANTED_AT {
            active.wants_successor = true;
            self.allocator.want();
        }
        active.unproven = header.kind != Kind::Marker;
        stride
    }

    /// Whether the segment's header may have to be raised before this block is written.
    pub(crate) fn must_raise(&self, block: &NewBlock) -> bool {
        version_of_new(block) > self.active.asks_version
    }

    /// Raises the version in the segment's header to the one that readers of the pushed blocks must support. No sync
    /// job may be in progress. Blocks for the device at most once per segment; never for a log without options.
    ///
    /// # Errors
    /// The contents of the disk are unknown.
    pub(crate) fn raise_version(&mut self) -> Result<()> {
        if self.active.needs_version <= self.active.asks_version {
            return Ok(());
        }
        assert!(!self.syncing, "a header is raised while its file is synced");
        let active = &mut self.active;
        raise_version(&*active.file, &active.path, active.needs_version)?;
        active.asks_version = active.needs_version;
        self.allocator.require_version(active.needs_version);
        Ok(())
    }

    /// Writes all pushed blocks in one call. Returns the number of bytes, and the pieces of the bodies for reuse. The
    /// header already requires the version that the blocks need.
    ///
    /// # Errors
    /// The write failed: the contents of the disk are unknown.
    pub(crate) fn write(&mut self) -> Result<(usize, Vec<Bytes>)> {
        let active = &mut self.active;
        assert!(active.needs_version <= active.asks_version, "a block before its version");
        let bytes = active.end - active.written;
        let mut slices = Vec::with_capacity(active.pending.len() * 3);
        for p in &active.pending {
            slices.push(IoSlice::new(&p.header));
            slices.extend(p.body.iter().map(|b| IoSlice::new(b)));
            if p.padding > 0 {
                slices.push(IoSlice::new(&ZEROS[..p.padding]));
            }
        }
        // Writes up to the end of the page, so that the kernel need not read the page's old contents.
        let page_end = active.end.next_multiple_of(PAGE_BYTES).min(active.limit);
        slices.push(IoSlice::new(&ZEROS[..page_end - active.end]));
        let written = active.file.write_at(active.written as u64, &slices);
        written.map_err(|e| Error::io("write", &active.path, e))?;
        active.written = active.end;
        let (mut pieces, mut ends) = (Vec::new(), Vec::with_capacity(active.pending.len()));
        for p in active.pending.drain(..) {
            active.segment.grow(p.entry, p.stride, p.end);
            let end = p.entry.offset as usize + p.stride;
            ends.push(Uncommitted { raft: p.entry.raft_index, segment: active.segment.clone(), end });
            pieces.extend(p.body);
        }
        if !active.listed {
            active.listed = true;
            let next = active.segment.clone();
            self.enter(next);
        }
        self.uncommitted.extend(ends);
        self.publish();
        Ok((bytes, pieces))
    }

    /// Switches the log to `next`, whose first blocks are written; readers see this too.
    fn enter(&mut self, next: Arc<Segment>) {
        let cut = self.truncation.as_mut().and_then(|truncation| truncation.cut.take());
        let dead = self.truncation.as_ref().map_or(&[][..], |truncation| &truncation.dead);
        let is_cut_off = |block: &Uncommitted| {
            let number = block.segment.number;
            let beyond =
                |(s, extent): &(Arc<Segment>, Extent)| s.number == number && block.end > extent.data_end;
            cut.as_ref().is_some_and(beyond) || dead.iter().any(|s| s.number == number)
        };
        while self.uncommitted.back().is_some_and(is_cut_off) {
            self.uncommitted.pop_back();
        }
        self.segments.truncate(cut, dead, next);
    }

    /// Starts a sync of all written bytes. The caller runs the job and then passes it to [`Self::end_sync`]. `None` if
    /// there is nothing to sync, or a job is in progress. Only one job runs at a time: the kernel reports an error only
    /// once, so a second job could get `Ok` for bytes that the first one lost.
    pub(crate) fn begin_sync(&mut self) -> Option<SyncJob> {
        let active = &self.active;
        if self.syncing || active.written == active.synced {
            return None;
        }
        self.syncing = true;
        Some(SyncJob {
            file: active.file.clone(),
            path: active.path.clone(),
            segment: active.segment.number,
            upto: active.written,
        })
    }

    /// Ends a job whose run returned `Ok`. After an error nothing may be synced any more: the job is dropped, and no
    /// other ever starts.
    pub(crate) fn end_sync(&mut self, job: &SyncJob) {
        assert!(self.syncing && job.segment == self.active.segment.number, "a sync of another segment");
        self.syncing = false;
        self.active.synced = job.upto;
        // The opening is part of whatever was written to this segment.
        if let Some(Truncation { seal, dead, .. }) = self.truncation.take() {
            seal.into_iter().for_each(|segment| self.allocator.seal(segment));
            if !dead.is_empty() {
                self.allocator.discard(dead);
            }
        }
    }

    /// Makes all written bytes durable, on this thread. No job may be in progress.
    ///
    /// # Errors
    /// Those of [`SyncJob::run`].
    pub(crate) fn sync(&mut self) -> Result<()> {
        assert!(!self.syncing, "two syncs at once");
        if let Some(job) = self.begin_sync() {
            job.run()?;
            self.end_sync(&job);
        }
        Ok(())
    }

    /// Marks entries through `upto` as committed. They are written here; readers may see them even if they are not
    /// synced here.
    pub(crate) fn commit(&mut self, upto: EntryIndex) {
        assert!(
            upto <= self.active.segment.end().raft,
            "a commit beyond what was written: {upto} > {:?}, active {} base {:?} listed {}, truncation {:?}",
            self.active.segment.end(),
            self.active.segment.number,
            self.active.segment.base,
            self.active.listed,
            self.truncation.as_ref().map(|t| t.dead.len())
        );
        self.committed = self.committed.max(upto);
        self.publish();
    }

    /// Shows readers the committed blocks, and the blocks right after them that are not entries.
    fn publish(&mut self) {
        while let Some(block) = self.uncommitted.front().filter(|block| block.raft <= self.committed) {
            block.segment.publish(block.end);
            self.uncommitted.pop_front();
        }
    }

    /// Access to all written blocks, by raft index.
    pub(crate) fn archive(&self) -> Archive {
        Archive::new(self.segments.clone())
    }

    /// Drops the segments that contain no record from `first` on and no entry above `known`. `known` is the last entry
    /// durably known to be committed, where recovery starts. The discard must be at or below it.
    ///
    /// Invariant: no file goes before the opening of a segment behind it is durable.
    pub(crate) fn drop_below(&mut self, first: Index, known: EntryIndex) {
        let has_begun = self.truncation.is_none();
        let dropped = self.segments.drop_below(first, known.min(self.committed), has_begun);
        if !dropped.is_empty() {
            self.allocator.discard(dropped);
        }
    }
}

impl Active {
    fn new(disk: &dyn Disk, segment: Arc<Segment>, file: Arc<dyn DiskFile>) -> Self {
        Self {
            path: disk.path().join(file_name(segment.number)),
            limit: data_limit(segment.bytes as usize),
            segment,
            file,
            listed: false,
            end: SEGMENT_HEADER_BYTES,
            written: SEGMENT_HEADER_BYTES,
            synced: SEGMENT_HEADER_BYTES,
            unproven: false,
            wants_successor: false,
            needs_version: FORMAT_VERSION_FIRST,
            asks_version: FORMAT_VERSION_FIRST,
            pending: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
