//! Block reader: walks the written blocks of one segment by their headers, and loads them. The readers' cursor and the
//! archive use it. It keeps the segment, so that returned bytes stay valid even if the segment is dropped.
//!
//! Invariant: it reads only below the offset that its caller gives, which must be at or below the written part. Those
//! bytes never change as long as the file belongs to this segment, so a window filled by `pread` never becomes stale.

use super::window::Window;
use crate::error::{Error, Result};
use crate::record::batch::{Malformed, u32_at};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, check_body, check_list, check_run};
use crate::store::format::mixed::{RUN_BYTES, Run, TABLE_FIXED_BYTES};
use crate::store::segment::batch_offsets::Place;
use crate::store::segment::{SegmentData, Source};
use crate::types::SegmentId;
use bytes::Bytes;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that sequential readers without a mapping read at a time; larger blocks are read whole.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;

/// The most other bytes of its block that a returned batch may keep in memory.
const BESIDES_BYTES_MAX: usize = 2 * BLOCK_HEADER_BYTES;

/// How much of a run's batches is loaded ahead: the processor itself loads what follows.
const RUN_AHEAD_BYTES: usize = 2 << 10;

const SHORT: Malformed = "the file ends before its last block";

/// Written bytes of a segment: a range of its mapping, or a copy.
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
                // The range was checked to be inside the file when the slice was made.
                Source::Map(map) => map.bytes(range.clone()).unwrap_or_default(),
                Source::Object(object) => {
                    object.map().and_then(|map| map.bytes(range.clone())).unwrap_or_default()
                }
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
    /// A part of it that shares the bytes. Panics if `part` is not inside.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        match self {
            Self::Mapped { data, range } => {
                assert!(part.start <= part.end && part.end <= range.len(), "a slice out of bounds");
                Self::Mapped { data: data.clone(), range: range.start + part.start..range.start + part.end }
            }
            Self::Copied(bytes) => Self::Copied(bytes.slice(part)),
        }
    }

    /// The same bytes, part of a block of `block` bytes. Copied if they would keep other bytes in memory, apart from a
    /// block's header.
    pub(crate) fn apart_from(&self, block: usize) -> Self {
        match self {
            Self::Copied(bytes) if bytes.len() + BESIDES_BYTES_MAX < block.max(WINDOW_BYTES) => {
                Self::Copied(Bytes::copy_from_slice(bytes))
            }
            kept => kept.clone(),
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

/// A block and its offset.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) header: BlockHeader,
    pub(crate) offset: usize,
}

/// A position among the blocks of a segment.
#[derive(Debug)]
pub(crate) struct Blocks {
    data: Arc<SegmentData>,
    /// The salt of their checksums.
    salt: SegmentId,
    at: usize,
    /// Bytes that were read without a mapping.
    window: Window,
    /// Bytes read at a time without a mapping; larger blocks are read whole.
    window_bytes: usize,
}

impl Blocks {
    /// Starts at `offset`, where a block begins.
    pub(crate) fn new(data: Arc<SegmentData>, offset: usize, window_bytes: usize) -> Self {
        let salt = data.segment.id;
        Self::with_salt(data, offset, window_bytes, salt)
    }

    /// As [`Self::new`], with another salt than the segment's.
    pub(crate) fn with_salt(
        data: Arc<SegmentData>,
        offset: usize,
        window_bytes: usize,
        salt: SegmentId,
    ) -> Self {
        Self { data, salt, at: offset, window: Window::default(), window_bytes }
    }

    pub(crate) fn data(&self) -> &Arc<SegmentData> {
        &self.data
    }

    /// The offset of the next block.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the block here if it begins below `upto`, and moves past it. Does not read its body.
    ///
    /// # Errors
    /// `Corrupt` for an invalid header; `Io`.
    pub(crate) fn next(&mut self, upto: usize) -> Result<Option<Located>> {
        if self.at >= upto {
            return Ok(None);
        }
        let offset = self.at;
        let head = self.bytes(offset, BLOCK_HEADER_BYTES, upto)?;
        let header = BlockHeader::parse(&head, self.salt).map_err(|why| self.corrupt(offset, why))?;
        if header.stride() > upto - offset {
            return Err(self.corrupt(offset, "block runs over the end of the written bytes"));
        }
        self.at += header.stride();
        Ok(Some(Located { header, offset }))
    }

    /// Returns header and body of a found block, with every byte checked.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load(&mut self, block: &Located, upto: usize) -> Result<Slice> {
        let bytes = self.bytes(block.offset, block.header.length as usize, upto)?;
        check_body(&block.header, &bytes, true).map_err(|why| self.corrupt(block.offset, why))?;
        Ok(bytes)
    }

    /// As [`Self::load`], of a block whose body was checked before: its bytes are not checked again.
    ///
    /// # Errors
    /// `Corrupt`: the file ends before it; `Io`.
    pub(crate) fn load_again(&mut self, block: &Located, upto: usize) -> Result<Slice> {
        self.bytes(block.offset, block.header.length as usize, upto)
    }

    /// Returns header and body of a found block, with its list of batches checked, but not their payloads. Passes the
    /// offset of each batch to `show`; these are valid once this has returned `Ok`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load_list(
        &mut self,
        block: &Located,
        upto: usize,
        mut show: impl FnMut(Place),
    ) -> Result<Slice> {
        let bytes = self.bytes(block.offset, block.header.length as usize, upto)?;
        // A block's length and its count of records are 32 bits each: a valid list fits.
        let checked = check_list(&block.header, &bytes, |at, before, batch| {
            show(Place { at: at as u32, before: before as u32, crc: batch.crc });
        });
        checked.map_err(|why| self.corrupt(block.offset, why))?;
        Ok(bytes)
    }

    /// Continues at `offset`, where a block begins.
    pub(crate) fn seek(&mut self, offset: usize) {
        self.at = offset;
    }

    /// Returns the table of a found mixed block. The caller checks it.
    ///
    /// # Errors
    /// `Corrupt`: the block has no room for a table; `Io`.
    pub(crate) fn load_table(&mut self, block: &Located, upto: usize) -> Result<Slice> {
        const SHORT: Malformed = "table of a mixed block is cut off";
        let body = block.header.length as usize - BLOCK_HEADER_BYTES;
        let at = block.offset + BLOCK_HEADER_BYTES;
        if body < TABLE_FIXED_BYTES {
            return Err(self.corrupt(block.offset, SHORT));
        }
        let runs = u32_at(&self.bytes(at, TABLE_FIXED_BYTES, upto)?, 0) as usize;
        let length = TABLE_FIXED_BYTES.saturating_add(runs.saturating_mul(RUN_BYTES));
        if length > body {
            return Err(self.corrupt(block.offset, SHORT));
        }
        self.bytes(at, length, upto)
    }

    /// Returns the entry of a run in the table of a found mixed block. The caller checks it, and the batches against it:
    /// the rest of the table is not read again.
    ///
    /// # Errors
    /// `Corrupt`: the entry is outside the block, or impossible; `Io`.
    pub(crate) fn run_at(&mut self, block: &Located, number: usize, upto: usize) -> Result<Run> {
        let at = BLOCK_HEADER_BYTES + TABLE_FIXED_BYTES + number * RUN_BYTES;
        if at + RUN_BYTES > block.header.length as usize {
            return Err(self.corrupt(block.offset, "table of a mixed block is cut off"));
        }
        let bytes = self.bytes(block.offset + at, RUN_BYTES, upto)?;
        let run = bytes.first_chunk().ok_or("table of a mixed block is cut off").and_then(Run::parse);
        run.map_err(|why| self.corrupt(block.offset + at, why))
    }

    /// Returns the batches of a run at `offset`, with their list checked, but not their payloads.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn load_run(&mut self, run: &Run, offset: usize, upto: usize) -> Result<Slice> {
        let bytes = self.bytes(offset, run.bytes as usize, upto)?;
        check_run(run, &bytes).map_err(|why| self.corrupt(offset, why))?;
        Ok(bytes)
    }

    /// Has the processor load a run ahead that is read next: its block's header, its place in the block's table, and the first of its
    /// batches. One that waits for each of these in turn takes three times as long.
    pub(crate) fn load_run_soon(&self, block: usize, number: usize, offset: usize) {
        if let Source::Map(map) = &self.data.source {
            let row = block + BLOCK_HEADER_BYTES + TABLE_FIXED_BYTES + number * RUN_BYTES;
            map.load_soon(block..block + BLOCK_HEADER_BYTES);
            map.load_soon(row..row + RUN_BYTES);
            map.load_soon(offset..offset + RUN_AHEAD_BYTES);
        }
    }

    /// Drops the window filled by `pread`.
    pub(crate) fn release(&mut self) {
        self.window.take();
    }

    /// An error at an offset of the segment.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        if let Source::Object(object) = &self.data.source {
            object.discard(); // the next reader fetches it again
        }
        Error::corrupt(&self.data.path, offset as u64, why)
    }

    fn bytes(&mut self, at: usize, length: usize, upto: usize) -> Result<Slice> {
        match &self.data.source {
            Source::Map(map) if at + length <= map.len() => {
                Ok(Slice::Mapped { data: self.data.clone(), range: at..at + length })
            }
            Source::Map(_) => Err(self.corrupt(at, SHORT)),
            Source::Object(_) if at + length > self.data.segment.bytes as usize => {
                Err(self.corrupt(at, SHORT))
            }
            Source::Object(object) => {
                object.ensure(at..at + length)?;
                match object.map() {
                    Some(_) => Ok(Slice::Mapped { data: self.data.clone(), range: at..at + length }),
                    None => match self.data.copy(at, length)? {
                        Some(bytes) => Ok(Slice::Copied(bytes.into())),
                        None => Err(self.corrupt(at, SHORT)),
                    },
                }
            }
            Source::File(file) => {
                if !self.window.has(at, length) {
                    let ahead = length.max(self.window_bytes.min(upto - at));
                    let filled = match self.window.fill(&**file, at, ahead) {
                        // A file that was shortened may still contain this much.
                        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                            self.window.fill(&**file, at, length)
                        }
                        filled => filled,
                    };
                    filled.map_err(|e| match e.kind() {
                        io::ErrorKind::UnexpectedEof => self.corrupt(at, SHORT),
                        _ => Error::io("read", &self.data.path, e),
                    })?;
                    if length > self.window_bytes {
                        return Ok(Slice::Copied(self.window.take())); // kept only by the caller
                    }
                }
                Ok(Slice::Copied(self.window.share(at, length)))
            }
        }
    }
}
