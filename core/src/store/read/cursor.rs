//! Cursor: walks committed blocks across segments, for readers. It keeps its segment, so that returned bytes stay valid
//! even if the segment is discarded.
//!
//! Invariants:
//! - it reads only below `Segment::readable`: those bytes are committed and do not change;
//! - it leaves a segment only at that segment's end: blocks written there and not committed yet still follow.

use super::block_reader::{Blocks, Located, Slice, WINDOW_BYTES};
use crate::error::{Error, Result};
use crate::record::batch::{Malformed, u32_at};
use crate::store::format::block::BlockHeader;
use crate::store::objects::cache::CHUNK_BYTES;
use crate::store::segment::batch_offsets::{Found, Place, Places};
use crate::store::segment::{Segment, SegmentData, Segments, Source};
use crate::types::Index;
use std::sync::Arc;

/// A position in the sequence of committed blocks.
#[derive(Debug)]
pub(crate) struct Cursor {
    segments: Arc<Segments>,
    blocks: Blocks,
    /// The record after the last block that was seen.
    behind: Index,
    prefetch: Prefetch,
}

impl Cursor {
    /// Starts at `offset` of a segment, where a block begins; reads ahead by `prefetch` bytes.
    pub(crate) fn new(
        segments: Arc<Segments>,
        data: Arc<SegmentData>,
        offset: usize,
        prefetch: usize,
    ) -> Self {
        let blocks = Blocks::new(data, offset, WINDOW_BYTES);
        Self { segments, blocks, behind: Index(0), prefetch: Prefetch::new(prefetch) }
    }

    /// Returns the first block from here on for which `wanted` holds, and moves past it. `None`: no readable block is
    /// left. Does not read bodies.
    ///
    /// # Errors
    /// `Corrupt` for an invalid header; `Io`.
    pub(crate) fn find(&mut self, wanted: impl Fn(&BlockHeader) -> bool) -> Result<Option<Located>> {
        loop {
            let readable = self.segment().readable();
            let Some(found) = self.blocks.next(readable)? else {
                match self.segments.next_position(self.segment(), self.blocks.at(), self.behind)? {
                    Some((next, offset)) => self.enter(&next, offset)?,
                    None => return Ok(None),
                }
                continue;
            };
            self.behind = found.header.next_record();
            if wanted(&found.header) {
                self.prefetch.reach(&self.segments, self.blocks.data(), self.blocks.at());
                return Ok(Some(found));
            }
        }
    }

    /// Returns the whole block that was found last, with its list of batches checked, but not their payloads. Passes
    /// the offset of each batch to `show`; these are valid once this has returned `Ok`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load(&mut self, block: &Located, show: impl FnMut(Place)) -> Result<Slice> {
        let readable = self.segment().readable();
        self.blocks.load_list(block, readable, show)
    }

    /// Returns the whole block that was found last, with every byte checked, for passing it on.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load_whole(&mut self, block: &Located) -> Result<Slice> {
        let readable = self.segment().readable();
        self.blocks.load(block, readable)
    }

    /// Drops the bytes that were read without a mapping.
    pub(crate) fn release(&mut self) {
        self.blocks.release();
    }

    /// Stores, for look-ups, the batch offsets that [`load`](Self::load) passed to `show`.
    pub(crate) fn remember(&self, block: &Located, batches: Vec<Place>) {
        let places = Places::new(self.segment().id, block.offset, block.header, batches);
        places.into_iter().for_each(|p| self.segments.remember(p));
    }

    /// If it is in an object: the record after it.
    pub(crate) fn end_of_object(&self) -> Option<Index> {
        matches!(self.blocks.data().source, Source::Object(_)).then(|| self.segment().end().next)
    }

    /// Whether record `index` is before all files of the log, and can be in an object.
    pub(crate) fn is_before_files(&self, index: Index) -> bool {
        self.segments.is_before_files(index)
    }

    /// An error at an offset of the cursor's segment.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        self.blocks.corrupt(offset, why)
    }

    fn segment(&self) -> &Segment {
        &self.blocks.data().segment
    }

    fn enter(&mut self, segment: &Arc<Segment>, offset: usize) -> Result<()> {
        self.blocks = Blocks::new(self.segments.open(segment)?, offset, WINDOW_BYTES);
        self.prefetch.restart();
        Ok(())
    }
}

/// Returns the batch that contains record `index`, if its block is remembered. The bytes contain the right checksum;
/// the caller still has to verify that they match it.
pub(crate) fn remembered(segments: &Segments, index: Index) -> Option<(Slice, Found)> {
    let places = segments.places(index)?;
    let segment = segments.holding(index).ok()?.filter(|s| s.id == places.segment)?;
    let found = places.find(index)?;
    let data = segments.open(&segment).ok()?;
    let range = found.range.clone();
    let bytes = match &data.source {
        Source::Map(map) if range.end <= map.len() => Slice::Mapped { data, range },
        Source::Map(_) => return None,
        Source::File(_) | Source::Object(_) => {
            Slice::Copied(data.copy(range.start, range.len()).ok()??.into())
        }
    };
    (bytes.len() >= 4 && u32_at(&bytes, 0) == found.crc).then_some((bytes, found))
}

/// Read-ahead for a sequential reader: the kernel's own window of 128 KiB leaves half of a disk's speed unused.
#[derive(Debug)]
struct Prefetch {
    bytes: usize,
    /// The offset up to which reading ahead was asked for; it can lie beyond the end of an object, in the next one.
    asked: usize,
    /// Blocks found so far: a single look-up needs no read-ahead.
    found: u32,
}

/// How far a sequential reader of objects reads ahead, at least: as many chunks as are fetched at a time.
const OBJECT_AHEAD_BYTES: usize = 8 * CHUNK_BYTES;

impl Prefetch {
    fn new(bytes: usize) -> Self {
        Self { bytes, asked: 0, found: 0 }
    }

    fn restart(&mut self) {
        self.asked = 0;
    }

    /// Notes that the reader is at `at` now.
    fn reach(&mut self, segments: &Segments, data: &SegmentData, at: usize) {
        self.found = self.found.saturating_add(1);
        if self.bytes == 0 || self.found < 2 {
            return;
        }
        // As soon as there is room for another chunk of an object, so that as many as possible are fetched at any time.
        let (ahead, step) = match &data.source {
            Source::Object(object) => {
                (self.bytes.max(OBJECT_AHEAD_BYTES).min(object.ahead_max()), CHUNK_BYTES)
            }
            Source::Map(_) | Source::File(_) => (self.bytes, self.bytes.div_ceil(2)),
        };
        if at + ahead < self.asked + step {
            return;
        }
        let end = data.segment.bytes as usize;
        let range = at.max(self.asked).min(end)..(at + ahead).min(end);
        self.asked = at + ahead;
        match &data.source {
            Source::Map(map) => map.will_need(range),
            Source::File(file) => file.will_need(range.start as u64..range.end as u64),
            Source::Object(object) => {
                object.will_need(range);
                segments.will_need_after(&data.segment, self.asked.saturating_sub(end));
            }
        }
    }
}
