//! Store: an ordered list of segments that grows at one end and is dropped at the other. Knows nothing of
//! what blocks mean; never decides an index.
//!
//! ```text
//! push(block)*  ->  write()  ->  sync()          one pwritev, one fdatasync, for all that was pushed
//! fits? no      ->  roll(opening)                 next prepared file; its opening block goes with the push
//! drop_below(first)                               whole segments, to the helper thread
//! ```
//!
//! Invariants:
//! - `synced <= end`: bytes below `synced` are durable, and a block says so of those before it;
//! - nothing is written into a segment before all of the one before is synced;
//! - a failed write or sync leaves the store unusable: the caller poisons the log.

pub(crate) mod archive;
pub(crate) mod block;
pub(crate) mod cursor;
pub(crate) mod decision;
pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod prepared;
pub(crate) mod recovery;
pub(crate) mod scan;
pub(crate) mod segment;
pub(crate) mod walk;

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Index, RaftIndex, Term, Timestamp};
use block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, padded};
use bytes::Bytes;
use layout::{IndexEntry, SEGMENT_HEADER_BYTES, data_limit};
use prepared::{Prepared, Preparer, Purpose};
use segment::{Base, Segment, Segments, file_name};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

/// A block to be written: its header but for what depends on the file, and its body in pieces.
#[derive(Debug)]
pub(crate) struct NewBlock {
    pub(crate) kind: Kind,
    pub(crate) raft_index: RaftIndex,
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

/// Bytes that a block with such a body takes in a file.
pub(crate) const fn block_bytes(body: usize) -> usize {
    padded(BLOCK_HEADER_BYTES + body)
}

/// The writing end of the log's files.
#[derive(Debug)]
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) preparer: Arc<Preparer>,
    active: Active,
    /// Full, and to be sealed once its successor has durably begun.
    unsealed: Option<Arc<Segment>>,
    /// Dead, and to be discarded once what took their place has durably begun.
    dead: Vec<Arc<Segment>>,
    /// Blocks written and not published: their raft index, segment, and end.
    unpublished: VecDeque<(RaftIndex, Arc<Segment>, usize)>,
}

/// A sync to be carried out, on any thread.
#[derive(Debug)]
pub(crate) struct SyncJob {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    segment: u64,
    upto: usize,
}

impl SyncJob {
    /// Syncs the file. Blocks on the device.
    ///
    /// # Errors
    /// It failed: nothing written since the last good one may be relied on, nor synced again.
    pub(crate) fn run(&self) -> Result<()> {
        self.file.sync().map_err(|e| Error::io("sync", &self.path, e))
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
    /// A store that goes on where `resume` says; its segment is the last in `segments`.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        segments: Arc<Segments>,
        preparer: Arc<Preparer>,
        resume: Resume,
    ) -> Self {
        let mut active = Active::new(&*disk, resume.segment, resume.file);
        active.listed = true;
        active.end = active.segment.data_end();
        active.written = active.end;
        active.synced = active.end;
        active.unproven = resume.unproven;
        Self { disk, segments, preparer, active, unsealed: None, dead: Vec::new(), unpublished: VecDeque::new() }
    }

    /// The first segment of a new log: `opening` is made durable before this returns.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        segments: Arc<Segments>,
        preparer: Arc<Preparer>,
        opening: NewBlock,
    ) -> Result<Self> {
        let base = opening.end;
        let next = preparer.take(Purpose::Metadata)?;
        let segment = Segment::growing(next.number, next.id, next.bytes, base, opening.timestamp);
        let active = Active::new(&*disk, Arc::new(segment), next.file);
        let mut store = Self {
            disk,
            segments,
            preparer,
            active,
            unsealed: None,
            dead: Vec::new(),
            unpublished: VecDeque::new(),
        };
        store.push(opening);
        store.write()?;
        store.sync()?;
        store.commit(base.raft);
        Ok(store)
    }

    /// Whether a block with a body of so many bytes has room in the segment that grows, and the markers behind
    /// it: what is written can always be proven.
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.active.end + block_bytes(body) + PROOF_BYTES_MAX <= self.active.limit
    }

    /// Bytes that were pushed and not written.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.active.end - self.active.written
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

    /// The log's blocks by raft index.
    pub(crate) fn archive(&self) -> archive::Archive {
        archive::Archive::new(self.segments.clone())
    }

    /// Goes on in the file `next`, whose first block is `opening`. Everything pushed must be synced. Where the
    /// opening's base is not the end, the blocks behind it are void from then on (a conflicting suffix), or all that
    /// was there (a jump).
    pub(crate) fn roll_into(&mut self, next: Prepared, opening: NewBlock) {
        assert!(self.is_synced() && self.active.pending.is_empty(), "a roll with unsynced blocks");
        debug_assert!(self.unsealed.is_none(), "two segments wait for one successor");
        let base = opening.end;
        let segment = Segment::growing(next.number, next.id, next.bytes, base, opening.timestamp);
        let next = Active::new(&*self.disk, Arc::new(segment), next.file);
        let last = std::mem::replace(&mut self.active, next).segment;
        let end = last.end();
        if base == end {
            self.unsealed = Some(last);
        } else {
            self.cut(base);
        }
        self.push(opening);
    }

    /// What lies behind `base` is void.
    fn cut(&mut self, base: Base) {
        self.unpublished.retain(|(raft, ..)| *raft <= base.raft);
        let last = self.segments.last_end();
        if base.raft > last.raft {
            self.dead.extend(self.segments.take_all());
            return;
        }
        self.dead.extend(self.segments.cut_behind(base));
        self.unsealed = self.segments.last();
    }

    /// Adds a block to the next write. The caller has asked [`Self::fits`]. Returns the bytes it takes.
    pub(crate) fn push(&mut self, block: NewBlock) -> usize {
        let active = &mut self.active;
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
        if !active.wants_successor && active.end > active.limit / SUCCESSOR_WANTED_AT {
            active.wants_successor = true;
            self.preparer.want();
        }
        active.unproven = block.kind != Kind::Marker;
        stride
    }

    /// Writes all that was pushed, in one call. Returns how many bytes it was, and the bodies' pieces for
    /// reuse.
    ///
    /// # Errors
    /// The write failed: what is on disk is unknown.
    pub(crate) fn write(&mut self) -> Result<(usize, Vec<Bytes>)> {
        let active = &mut self.active;
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
        let mut pieces = Vec::new();
        for p in active.pending.drain(..) {
            active.segment.grow(p.entry, p.stride, p.end);
            let end = p.entry.offset as usize + p.stride;
            self.unpublished.push_back((p.entry.raft_index, active.segment.clone(), end));
            pieces.extend(p.body);
        }
        if !active.listed {
            active.listed = true;
            self.segments.push(active.segment.clone());
        }
        Ok((bytes, pieces))
    }

    /// What is to be synced, if anything is.
    pub(crate) fn begin_sync(&mut self) -> Option<SyncJob> {
        let active = &self.active;
        (active.written > active.synced).then(|| SyncJob {
            file: active.file.clone(),
            path: active.path.clone(),
            segment: active.segment.number,
            upto: active.written,
        })
    }

    /// A sync has returned 0.
    pub(crate) fn end_sync(&mut self, job: SyncJob) {
        if job.segment != self.active.segment.number {
            return; // overtaken by a sync of the whole, and a roll
        }
        self.active.synced = self.active.synced.max(job.upto);
        if let Some(full) = self.unsealed.take() {
            self.preparer.seal(full);
        }
        if !self.dead.is_empty() {
            self.preparer.discard(std::mem::take(&mut self.dead));
        }
    }

    /// Makes all that was written durable, on this thread.
    ///
    /// # Errors
    /// The sync failed: nothing written since the last good one may be relied on, nor synced again.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if let Some(job) = self.begin_sync() {
            job.run()?;
            self.end_sync(job);
        }
        Ok(())
    }

    /// Blocks up to the entry `upto` are committed: readers may look at them.
    pub(crate) fn commit(&mut self, upto: RaftIndex) {
        while let Some((_, segment, end)) = self.unpublished.pop_front_if(|(raft, ..)| *raft <= upto) {
            segment.publish(end);
        }
    }

    /// Drops the segments that hold nothing from `first` on. The discard must be durable.
    pub(crate) fn drop_below(&mut self, first: Index) {
        let dropped = self.segments.drop_below(first);
        if !dropped.is_empty() {
            self.preparer.discard(dropped);
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
            pending: Vec::new(),
        }
    }
}
