//! Cursor: walks committed blocks across segments, for readers. Holds the segment it is in, so that what it
//! handed out stays, even when the segment is discarded.
//!
//! Invariant: it looks only below `Segment::readable`, where bytes never change any more; so what a `pread`
//! brought into the window never gets stale.

use super::block::{BLOCK_HEADER_BYTES, BlockHeader, check_list};
use super::layout::SEGMENT_HEADER_BYTES;
use super::places::{Found, Place, Places};
use super::segment::{Segment, SegmentData, Segments, Source};
use crate::batch::{Malformed, u32_at};
use crate::error::{Error, Result};
use crate::types::Index;
use bytes::Bytes;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Read at a time without a mapping; larger blocks are read whole.
const WINDOW_BYTES: usize = 256 << 10;

/// Committed bytes of a segment: a place in its mapping, or a copy.
#[derive(Clone, Debug)]
pub(crate) enum Slice {
    Mapped { data: Arc<SegmentData>, range: Range<usize> },
    Copied(Bytes),
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { data, range } => match &data.source {
                // The range was checked to lie inside the file when the slice was made.
                Source::Map(map) => map.bytes(range.clone()).unwrap_or_default(),
                Source::File(_) => &[],
            },
            Self::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Slice {
    /// A part of it, sharing the bytes. Panics when `part` is not inside.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        match self {
            Self::Mapped { data, range } => {
                assert!(part.start <= part.end && part.end <= range.len(), "a slice out of bounds");
                Self::Mapped { data: data.clone(), range: range.start + part.start..range.start + part.end }
            }
            Self::Copied(bytes) => Self::Copied(bytes.slice(part)),
        }
    }

    /// The same bytes as [`Bytes`], without a copy.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Copied(bytes) => bytes,
            mapped => Bytes::from_owner(mapped),
        }
    }
}

/// A block at its place.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) header: BlockHeader,
    pub(crate) offset: usize,
}

/// A place in the sequence of committed blocks.
#[derive(Debug)]
pub(crate) struct Cursor {
    segments: Arc<Segments>,
    data: Arc<SegmentData>,
    at: usize,
    /// What `pread` brought: from which offset, and the bytes.
    window: (usize, Bytes),
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
        Self { segments, data, at: offset, window: (0, Bytes::new()), prefetch: Prefetch::new(prefetch) }
    }

    /// The first block from here on for which `wanted` holds, and moves behind it. `None`: no readable block
    /// is left. Bodies are not looked at.
    ///
    /// # Errors
    /// `Corrupt` for a header that does not check out; `Io`.
    pub(crate) fn find(&mut self, wanted: impl Fn(&BlockHeader) -> bool) -> Result<Option<Located>> {
        loop {
            let readable = self.data.segment.readable();
            if self.at >= readable {
                match self.segments.after(self.data.segment.number) {
                    Some(next) => self.enter(&next)?,
                    None => return Ok(None),
                }
                continue;
            }
            let offset = self.at;
            let id = self.data.segment.id;
            let head = self.bytes(offset, BLOCK_HEADER_BYTES, readable)?;
            let header = BlockHeader::parse(&head, id).map_err(|why| self.corrupt(offset, why))?;
            if header.stride() > readable - offset {
                return Err(self.corrupt(offset, "block runs over the end of what was written"));
            }
            self.at += header.stride();
            if wanted(&header) {
                self.prefetch.reach(&self.data, self.at);
                return Ok(Some(Located { header, offset }));
            }
        }
    }

    /// The whole block that was found last, its list of batches checked; their payloads are not. Shows where
    /// each batch stands; good to use once this has returned `Ok`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load(&mut self, block: &Located, mut show: impl FnMut(Place)) -> Result<Slice> {
        let readable = self.data.segment.readable();
        let bytes = self.bytes(block.offset, block.header.length as usize, readable)?;
        // A block's length and its count of records are 32 bits each: a list that checks out fits.
        let checked = check_list(&block.header, &bytes, false, |at, before, batch| {
            show(Place { at: at as u32, before: before as u32, crc: batch.crc });
        });
        checked.map_err(|why| self.corrupt(block.offset, why))?;
        Ok(bytes)
    }

    /// Remembers, for look-ups, what [`load`](Self::load) showed of the block.
    pub(crate) fn remember(&self, block: &Located, batches: Vec<Place>) {
        let places = Places::new(self.data.segment.id, block.offset, block.header, batches);
        places.into_iter().for_each(|p| self.segments.remember(p));
    }

    /// An error at an offset of the segment that the cursor is in.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        Error::corrupt(&self.data.path, offset as u64, why)
    }

    fn enter(&mut self, segment: &Arc<Segment>) -> Result<()> {
        self.data = self.segments.open(segment)?;
        self.at = SEGMENT_HEADER_BYTES;
        self.window = (0, Bytes::new());
        self.prefetch.restart();
        Ok(())
    }

    fn bytes(&mut self, at: usize, length: usize, readable: usize) -> Result<Slice> {
        match &self.data.source {
            Source::Map(map) if at + length <= map.len() => {
                Ok(Slice::Mapped { data: self.data.clone(), range: at..at + length })
            }
            Source::Map(_) => Err(self.corrupt(at, "the file ends before its last block")),
            Source::File(file) => {
                let (from, window) = &self.window;
                if at < *from || at + length > from + window.len() {
                    let mut bytes = vec![0; length.max(WINDOW_BYTES.min(readable - at))];
                    let read = file.read_at(at as u64, &mut bytes);
                    read.map_err(|e| Error::io("read", &self.data.path, e))?;
                    self.window = (at, bytes.into());
                }
                let (from, window) = &self.window;
                Ok(Slice::Copied(window.slice(at - from..at - from + length)))
            }
        }
    }
}

/// The batch that holds record `index`, if its block is remembered. The bytes carry the right checksum; whether it
/// is theirs remains to be verified.
pub(crate) fn remembered(segments: &Segments, index: Index) -> Option<(Slice, Found)> {
    let places = segments.places(index)?;
    let segment = segments.holding(index).filter(|s| s.id == places.segment)?;
    let found = places.find(index)?;
    let data = segments.open(&segment).ok()?;
    let range = found.range.clone();
    let bytes = match &data.source {
        Source::Map(map) if range.end <= map.len() => Slice::Mapped { data, range },
        Source::Map(_) => return None,
        Source::File(file) => {
            let mut bytes = vec![0; range.len()];
            file.read_at(range.start as u64, &mut bytes).ok()?;
            Slice::Copied(bytes.into())
        }
    };
    (bytes.len() >= 4 && u32_at(&bytes, 0) == found.crc).then_some((bytes, found))
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
