//! Scanner: walks the blocks of one segment file by `pread`, checking every byte. Recovery, read-only handles and
//! verification use it. It never uses the mapping, so a failing device causes an error and not a signal.

use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, check_body};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::types::SegmentId;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read at a time; larger blocks are read whole.
const CHUNK_BYTES: usize = 1 << 20;

/// A window on one file.
#[derive(Debug)]
pub(crate) struct Scanner {
    file: Arc<dyn DiskFile>,
    pub(crate) path: PathBuf,
    id: SegmentId,
    limit: usize,
    window: Vec<u8>,
    window_at: usize,
    chunk: usize,
}

/// The result of a scan at an offset.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A sound block and its body.
    Block(BlockHeader, &'a [u8]),
    /// No sound block, and the reason.
    Nothing(Malformed),
    /// No room for a block before the index region.
    Limit,
}

/// Sound headers after a break in the chain of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Later {
    /// The highest offset that any of them reports as durable.
    pub(crate) durable_upto: usize,
    /// The offset at which the last of them ends.
    pub(crate) end: usize,
}

impl Scanner {
    /// A scanner over the segment file `file` of `bytes` bytes with the salt `id`.
    pub(crate) fn new(file: Arc<dyn DiskFile>, path: PathBuf, id: SegmentId, bytes: usize) -> Self {
        Self {
            file,
            path,
            id,
            limit: data_limit(bytes),
            window: Vec::new(),
            window_at: 0,
            chunk: CHUNK_BYTES,
        }
    }

    /// Sets the bytes read at a time, a multiple of a block's header; larger blocks are read whole.
    pub(crate) fn in_pieces_of(mut self, bytes: usize) -> Self {
        self.chunk = bytes.max(BLOCK_HEADER_BYTES) & !(BLOCK_HEADER_BYTES - 1);
        self
    }

    /// The highest offset at which a block can end.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Drops the bytes that were read, because the file may have changed.
    pub(crate) fn refresh(&mut self) {
        self.window.clear();
    }

    /// Returns `length` bytes from `at`, which must be below the limit.
    pub(crate) fn bytes(&mut self, at: usize, length: usize) -> Result<&[u8]> {
        let inside = at >= self.window_at && at + length <= self.window_at + self.window.len();
        if !inside {
            let want = length.max(self.chunk).min(self.limit - at);
            self.window.resize(want.max(length), 0);
            self.window_at = at;
            let read = self.file.read_at(at as u64, &mut self.window);
            if let Err(e) = read {
                self.window.clear();
                return Err(Error::io("read", &self.path, e));
            }
        }
        Ok(&self.window[at - self.window_at..][..length])
    }

    /// Returns the block at `at`, fully checked.
    pub(crate) fn block(&mut self, at: usize) -> Result<Found<'_>> {
        let limit = self.limit;
        if at + BLOCK_HEADER_BYTES > limit {
            return Ok(Found::Limit);
        }
        let id = self.id;
        let header = match BlockHeader::parse(self.bytes(at, BLOCK_HEADER_BYTES)?, id) {
            Ok(header) => header,
            Err(why) => return Ok(Found::Nothing(why)),
        };
        if header.stride() > limit - at {
            return Ok(Found::Nothing("block runs over the segment's end"));
        }
        if header.durable_upto as usize > at {
            return Ok(Found::Nothing("block claims that bytes after it are durable"));
        }
        let block = self.bytes(at, header.length as usize)?;
        Ok(match check_body(&header, block, true) {
            Ok(()) => Found::Block(header, &block[BLOCK_HEADER_BYTES..]),
            Err(why) => Found::Nothing(why),
        })
    }

    /// Looks for sound block headers anywhere from `from` on. Their bodies do not matter: a header's statement about
    /// the bytes before it was true when it was written.
    pub(crate) fn later(&mut self, from: usize) -> Result<Later> {
        self.later_within(from, self.limit)
    }

    /// Like [`Self::later`], but looks no further than `to`.
    pub(crate) fn later_within(&mut self, from: usize, to: usize) -> Result<Later> {
        let to = to.min(self.limit);
        let mut later = Later::default();
        let mut at = from.next_multiple_of(BLOCK_HEADER_BYTES);
        while at + BLOCK_HEADER_BYTES <= to {
            let id = self.id;
            let length = CHUNK_BYTES.min(to - at) & !(BLOCK_HEADER_BYTES - 1);
            let chunk = self.bytes(at, length)?;
            for (n, place) in chunk.chunks_exact(BLOCK_HEADER_BYTES).enumerate() {
                if let Ok(header) = BlockHeader::parse(place, id) {
                    later.durable_upto = later.durable_upto.max(header.durable_upto as usize);
                    later.end = at + n * BLOCK_HEADER_BYTES + header.stride();
                }
            }
            at += length;
        }
        later.end = later.end.min(self.limit);
        Ok(later)
    }
}

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));
const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));
