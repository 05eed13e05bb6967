//! Store: an ordered list of segments that grows at one end and is dropped at the other. Knows nothing of
//! what blocks mean; never decides an index.
//!
//! ```text
//! push(block)*  ->  write()  ->  begin_sync()     one pwritev for all that was pushed
//!                   job.run()                     fdatasync, on any thread; meanwhile more is pushed and written
//!                   end_sync(job)                 what was written when the job began is durable
//! commit(index)                                   what readers may see: written, synced here or not
//! fits? no      ->  roll(opening)                 next prepared file; its opening block goes with the push
//! drop_below(first, known)                        whole segments, to the helper thread
//! ```
//!
//! A roll can go on anywhere, not only at the end: below it, which cuts off a conflicting suffix, or beyond
//! (see `turn`).
//!
//! Invariants:
//! - `synced <= written <= end`: bytes below `synced` are durable, and a block says so of those before it;
//! - nothing is written into a segment before all of the one before is synced;
//! - readable follows committed, and what is committed is never cut off;
//! - a block stands only in a segment whose header asks for readers that understand it;
//! - a failed write or sync leaves the store unusable: the caller poisons the log.

pub(crate) mod format;
pub(crate) mod read;

pub(crate) mod allocator;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod truncate;
pub(crate) mod whole_segments;

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::types::{EntryIndex, Index, Term, Timestamp};
use allocator::{Allocator, PreparedSegment, Purpose};
use bytes::Bytes;
use format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, padded};
use format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use format::segment::{FORMAT_VERSION_FIRST, IndexEntry, version_of};
use read::entry_lookup::Archive;
use segment::version::raise_version;
use segment::{Base, Extent, Segment, Segments, file_name};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use truncate::Truncation;

/// A block to be written: its header except for what depends on the file, and its body in pieces.
#[derive(Debug)]
pub(crate) struct NewBlock {
    pub(crate) kind: Kind,
    pub(crate) raft_index: EntryIndex,
    pub(crate) term: Term,
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
    pub(crate) record_count: u32,
    pub(crate) batch_count: u32,
    pub(crate) body_digest: u32,
    pub(crate) body: Vec<Bytes>,
    /// What comes after it.
    pub(crate) end: Base,
}

impl NewBlock {
    /// Header and body.
    fn length(&self) -> usize {
        BLOCK_HEADER_BYTES + self.body.iter().map(Bytes::len).sum::<usize>()
    }
}

/// The version that a reader of the block has to know.
fn version_of_new(block: &NewBlock) -> u32 {
    version_of(block.kind, block.body.first().map_or(&[], |piece| &piece[..]))
}

/// Bytes that a block with such a body takes in a file.
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
    /// How the log came to the segment that grows, until that has durably begun.
    turn: Option<Truncation>,
    /// Blocks that were written and are not known committed, in order.
    uncommitted: VecDeque<Uncommitted>,
    committed: EntryIndex,
    /// Whether a [`SyncJob`] is about.
    syncing: bool,
}

/// Where a block ends that readers may not see yet.
#[derive(Debug)]
struct Uncommitted {
    raft: EntryIndex,
    segment: Arc<Segment>,
    end: usize,
}

/// A sync that can run on another thread while the store goes on.
#[derive(Debug)]
#[must_use = "what was written is not durable before the job has run"]
pub(crate) struct SyncJob {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    segment: u64,
    upto: usize,
}

impl SyncJob {
    /// Makes durable what was written when the job began. Blocks for the device.
    ///
    /// # Errors
    /// The sync failed: nothing written since the last good one may be relied on, nor synced again.
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
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.path.file_name()?.to_str()
    }
}

/// The segment that grows.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// Whether it is in the list: it is from its first write on.
    listed: bool,
    /// Where the next push goes.
    end: usize,
    /// Up to where it was written, and synced.
    written: usize,
    synced: usize,
    /// Whether a block with meaning was pushed since the last marker.
    unproven: bool,
    limit: usize,
    /// Whether the helper was told that another segment will be needed.
    wants_successor: bool,
    /// The version that readers of what was pushed have to know, and the one that the header is known to ask for.
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

/// Where writing goes on after recovery.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) segment: Arc<Segment>,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Whether its last block is anything but a marker.
    pub(crate) unproven: bool,
    /// The last entry known committed: readers may see so much.
    pub(crate) committed: EntryIndex,
}

/// Room for the markers of [`Store::proof`].
pub(crate) const PROOF_BYTES_MAX: usize = SECTOR_BYTES + block_bytes(0);
const _: () = assert!(SECTOR_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));

/// Files are prepared ahead once so much of a segment is full: an eighth. A log that never gets there costs one
/// file.
const SUCCESSOR_WANTED_AT: usize = 8;

/// The unit of the kernel's page cache.
const PAGE_BYTES: usize = 4096;
/// The padding behind blocks, and behind a write.
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

impl Store {
    /// A store that goes on where `resume` says; its segment is the last in `segments`. All of it is durable.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: blocks that are not committed could not be read.
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
        let (turn, uncommitted, committed) = (None, VecDeque::new(), EntryIndex(0));
        Self { disk, segments, allocator, active, turn, uncommitted, committed, syncing: false }
    }

    /// The first segment of a new log: `opening` is made durable before this returns.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        segments: Arc<Segments>,
        allocator: Arc<Allocator>,
        opening: NewBlock,
    ) -> Result<Self> {
        let next = allocator.take(Purpose::Metadata)?;
        let segment = Segment::growing(next.number, next.id, next.bytes, opening.end, opening.timestamp);
        let active = Active::new(&*disk, Arc::new(segment), next.file);
        let mut store = Self::with(disk, segments, allocator, active);
        let base = opening.raft_index;
        store.push(opening);
        store.raise_version()?;
        store.write()?;
        store.sync()?;
        store.commit(base);
        Ok(store)
    }

    /// Whether a block with a body of so many bytes has room in the segment that grows, and the markers behind
    /// it: what is written can always be proven.
    #[cfg(test)]
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.active.end + block_bytes(body) + PROOF_BYTES_MAX <= self.active.limit
    }

    /// The bodies of the markers that prove what was written. A device loses whole sectors: if the last block
    /// shares its last sector with a marker, that one fills the sector up, and another stands in the next.
    pub(crate) fn proof(&self) -> impl Iterator<Item = usize> + use<> {
        let rest = self.active.end.next_multiple_of(SECTOR_BYTES) - self.active.end;
        let filling = (rest > 0).then(|| rest - block_bytes(0));
        filling.into_iter().chain([0])
    }

    /// Whether there are blocks with meaning that nothing on disk proves yet.
    pub(crate) fn is_unproven(&self) -> bool {
        self.active.unproven
    }

    /// Whether anything was pushed and not written.
    pub(crate) fn has_pending(&self) -> bool {
        !self.active.pending.is_empty()
    }

    /// Where the next push goes, and where blocks have to end.
    pub(crate) fn end(&self) -> (usize, usize) {
        (self.active.end, self.active.limit)
    }

    /// Whether all that was pushed is synced.
    pub(crate) fn is_synced(&self) -> bool {
        self.active.synced == self.active.end
    }

    /// Goes on in the file `next`, whose first block is `opening`. Everything pushed must be synced. Where the
    /// opening stands says what becomes of the log:
    ///
    /// - at its end: nothing else;
    /// - behind one of its entries, which must not lie below the last committed one: all entries after that are
    ///   cut off;
    /// - anywhere else, not below the last committed entry: all segments are dropped.
    ///
    /// What readers and the [`Archive`] see changes when the opening is written. Files go when it is durable; until
    /// then a crash brings the log back as it was.
    ///
    /// # Errors
    /// The place where the log is cut could not be read (`Corrupt`, `Io`); nothing has changed then.
    pub(crate) fn roll_into(&mut self, next: PreparedSegment, opening: NewBlock) -> Result<()> {
        assert!(self.is_synced(), "a roll with unsynced blocks");
        let turn = Truncation::plan(&self.segments, &self.active.segment, opening.end, self.committed)?;
        let segment = Segment::growing(next.number, next.id, next.bytes, opening.end, opening.timestamp);
        self.active = Active::new(&*self.disk, Arc::new(segment), next.file);
        debug_assert!(self.turn.is_none(), "two turns wait for one sync");
        self.turn = Some(turn);
        self.push(opening);
        Ok(())
    }

    /// As [`Self::roll_into`], in the next prepared file, which has to hold a body of `body` bytes besides.
    ///
    /// # Errors
    /// No file could be prepared (`Full`, `Io`), or a new one would not have the room (`TooLarge`); and those of
    /// `roll_into`. Nothing has changed then.
    #[cfg(test)]
    pub(crate) fn roll(&mut self, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        let needed = padded(opening.length()) + block_bytes(body) + PROOF_BYTES_MAX;
        assert!(needed <= format::geometry::room_of(self.allocator.segment_bytes() as usize));
        let next = self.allocator.take(purpose)?;
        self.roll_into(next, opening)
    }

    /// Adds a block to the next write. The caller has asked [`Self::fits`]. Returns the bytes it takes.
    pub(crate) fn push(&mut self, block: NewBlock) -> usize {
        let active = &mut self.active;
        let version = version_of_new(&block);
        let length = block.length();
        let stride = padded(length);
        assert!(active.end + stride <= active.limit, "a block that does not fit was pushed");
        let header = BlockHeader {
            length: length as u32,
            batch_count: block.batch_count,
            raft_index: block.raft_index,
            term: block.term,
            first: block.first,
            timestamp: block.timestamp,
            record_count: block.record_count,
            durable_upto: active.synced as u32,
            body_digest: block.body_digest,
            kind: block.kind,
        };
        let entry = IndexEntry {
            first: block.first,
            raft_index: block.raft_index,
            timestamp: block.timestamp,
            offset: active.end as u32,
        };
        active.pending.push(Pending {
            header: header.encode(active.segment.id),
            body: block.body,
            padding: stride - length,
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
        active.unproven = block.kind != Kind::Marker;
        stride
    }

    /// Whether the segment's header may have to be raised before this block is written.
    pub(crate) fn must_raise(&self, block: &NewBlock) -> bool {
        version_of_new(block) > self.active.asks_version
    }

    /// Sees to it that the segment's header asks for readers that understand what was pushed. No job may be about. Blocks
    /// on the device, once a segment at most; not at all for a log without options.
    ///
    /// # Errors
    /// What is on disk is unknown.
    pub(crate) fn raise_version(&mut self) -> Result<()> {
        if self.active.needs_version <= self.active.asks_version {
            return Ok(());
        }
        assert!(!self.syncing, "a header is raised while its file is synced");
        let active = &mut self.active;
        raise_version(&*active.file, &active.path, active.needs_version)?;
        active.asks_version = active.needs_version;
        self.allocator.ask_version(active.needs_version);
        Ok(())
    }

    /// Writes all that was pushed, in one call. Returns how many bytes it was, and the bodies' pieces for
    /// reuse. What it needs of its readers the header asks for already.
    ///
    /// # Errors
    /// The write failed: what is on disk is unknown.
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
        // Up to the end of the page: the kernel need not read what the page held before.
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

    /// The first blocks of `next` are written: the log goes on in it, also for readers.
    fn enter(&mut self, next: Arc<Segment>) {
        let cut = self.turn.as_mut().and_then(|turn| turn.cut.take());
        let dead = self.turn.as_ref().map_or(&[][..], |turn| &turn.dead);
        let is_cut_off = |block: &Uncommitted| {
            let number = block.segment.number;
            let beyond =
                |(s, extent): &(Arc<Segment>, Extent)| s.number == number && block.end > extent.data_end;
            cut.as_ref().is_some_and(beyond) || dead.iter().any(|s| s.number == number)
        };
        while self.uncommitted.back().is_some_and(is_cut_off) {
            self.uncommitted.pop_back();
        }
        self.segments.turn(cut, dead, next);
    }

    /// Begins to make durable what was written; the job is to be run, and then handed to [`Self::end_sync`].
    /// `None` when there is nothing to be made durable, or a job is about: one at a time, for a kernel tells of an
    /// error only once, and a second job could hear `Ok` of what the first one lost.
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

    /// The job's run returned `Ok`. After an error nothing more is to be synced: the job is dropped, and no other
    /// ever begins.
    pub(crate) fn end_sync(&mut self, job: &SyncJob) {
        assert!(self.syncing && job.segment == self.active.segment.number, "a sync of another segment");
        self.syncing = false;
        self.active.synced = job.upto;
        // Whatever was written of this segment, its opening is among it.
        if let Some(Truncation { seal, dead, .. }) = self.turn.take() {
            seal.into_iter().for_each(|segment| self.allocator.seal(segment));
            if !dead.is_empty() {
                self.allocator.discard(dead);
            }
        }
    }

    /// Makes all that was written durable, on this thread. No job may be about.
    ///
    /// # Errors
    /// As [`SyncJob::run`].
    pub(crate) fn sync(&mut self) -> Result<()> {
        assert!(!self.syncing, "two syncs at once");
        if let Some(job) = self.begin_sync() {
            job.run()?;
            self.end_sync(&job);
        }
        Ok(())
    }

    /// Entries through `upto` are committed, and written here: readers may see them, synced here or not.
    pub(crate) fn commit(&mut self, upto: EntryIndex) {
        assert!(
            upto <= self.active.segment.end().raft,
            "a commit beyond what was written: {upto} > {:?}, active {} base {:?} listed {}, turn {:?}",
            self.active.segment.end(),
            self.active.segment.number,
            self.active.segment.base,
            self.active.listed,
            self.turn.as_ref().map(|t| t.dead.len())
        );
        self.committed = self.committed.max(upto);
        self.publish();
    }

    /// Shows readers what is committed, with the blocks right behind it that are no entries.
    fn publish(&mut self) {
        while let Some(block) = self.uncommitted.front().filter(|block| block.raft <= self.committed) {
            block.segment.publish(block.end);
            self.uncommitted.pop_front();
        }
    }

    /// All that was written, by raft index.
    pub(crate) fn archive(&self) -> Archive {
        Archive::new(self.segments.clone())
    }

    /// Drops the segments that hold no record from `first` on and no entry above `known`: the last one that is
    /// durably known to be committed, where recovery begins. The discard must be at or below it.
    pub(crate) fn drop_below(&mut self, first: Index, known: EntryIndex) {
        let dropped = self.segments.drop_below(first, known.min(self.committed));
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
