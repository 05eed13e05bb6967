//! Cursor: walks committed blocks across segments, for readers. Holds the segment it is in, so that what it
//! handed out stays, even when the segment is discarded.
//!
//! Invariants:
//! - it looks only below `Segment::readable`: what lies there is committed, and stays as it is;
//! - it leaves a segment only at that segment's end: what is written there and not committed yet is still to come.

use super::block::BlockHeader;
use super::blocks::{Blocks, Located, Slice};
use super::layout::SEGMENT_HEADER_BYTES;
use super::segment::{Segment, SegmentData, Segments, Source};
use crate::batch::Malformed;
use crate::error::{Error, Result};
use std::sync::Arc;

/// Read at a time without a mapping; larger blocks are read whole.
const WINDOW_BYTES: usize = 256 << 10;

/// A place in the sequence of committed blocks.
#[derive(Debug)]
pub(crate) struct Cursor {
    segments: Arc<Segments>,
    blocks: Blocks,
    prefetch: Prefetch,
}

impl Cursor {
    /// At `offset` of a segment, where a block begins; reads ahead by `prefetch` bytes.
    pub(crate) fn new(
        segments: Arc<Segments>,
        data: Arc<SegmentData>,
        offset: usize,
        prefetch: usize,
    ) -> Self {
        let blocks = Blocks::new(data, offset, WINDOW_BYTES);
        Self { segments, blocks, prefetch: Prefetch::new(prefetch) }
    }

    /// The first block from here on for which `wanted` holds, and moves behind it. `None`: no readable block
    /// is left. Bodies are not looked at.
    ///
    /// # Errors
    /// `Corrupt` for a header that does not check out; `Io`.
    pub(crate) fn find(&mut self, wanted: impl Fn(&BlockHeader) -> bool) -> Result<Option<Located>> {
        loop {
            let readable = self.segment().readable();
            let Some(found) = self.blocks.next(readable)? else {
                match self.segments.following(self.segment(), self.blocks.at()) {
                    Some(next) => self.enter(&next)?,
                    None => return Ok(None),
                }
                continue;
            };
            if wanted(&found.header) {
                self.prefetch.reach(self.blocks.data(), self.blocks.at());
                return Ok(Some(found));
            }
        }
    }

    /// The whole block that was found last, its list of batches checked; their payloads are not.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load(&mut self, block: &Located) -> Result<Slice> {
        let readable = self.segment().readable();
        self.blocks.load(block, readable, false)
    }

    /// An error at an offset of the segment that the cursor is in.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        self.blocks.corrupt(offset, why)
    }

    fn segment(&self) -> &Segment {
        &self.blocks.data().segment
    }

    fn enter(&mut self, segment: &Arc<Segment>) -> Result<()> {
        self.blocks = Blocks::new(self.segments.open(segment)?, SEGMENT_HEADER_BYTES, WINDOW_BYTES);
        self.prefetch.restart();
        Ok(())
    }
}

/// Reading ahead of a sequential reader: the kernel's own window of 128 KiB leaves half of a disk unused.
#[derive(Debug)]
struct Prefetch {
    bytes: usize,
    /// Up to where the kernel was asked.
    asked: usize,
    /// Blocks found so far: a single look-up needs nothing ahead.
    found: u32,
}

impl Prefetch {
    fn new(bytes: usize) -> Self {
        Self { bytes, asked: 0, found: 0 }
    }

    fn restart(&mut self) {
        self.asked = 0;
    }

    /// The reader is at `at` now.
    fn reach(&mut self, data: &SegmentData, at: usize) {
        self.found = self.found.saturating_add(1);
        if self.bytes == 0 || self.found < 2 || at + self.bytes / 2 <= self.asked {
            return;
        }
        let range = at.max(self.asked)..(at + self.bytes).min(data.segment.bytes as usize);
        self.asked = range.end;
        match &data.source {
            Source::Map(map) => map.will_need(range),
            Source::File(file) => file.will_need(range.start as u64..range.end as u64),
        }
    }
}
