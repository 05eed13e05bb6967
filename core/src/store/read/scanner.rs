//! Scanner: walks the blocks of one segment file by `pread`, checking every byte. What recovery, a
//! read-only handle and verification see of a file; never the mapping, so that a failing device is an error
//! and not a signal.

use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, check_body};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::types::SegmentId;
use std::path::PathBuf;
use std::sync::Arc;

/// Read at a time; larger blocks are read whole.
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

/// What a scan finds at an offset.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A sound block and its body.
    Block(BlockHeader, &'a [u8]),
    /// No sound block, and why.
    Nothing(Malformed),
    /// No room for a block before the index region.
    Limit,
}

/// Sound headers beyond a place where the chain of blocks breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Later {
    /// The highest offset that any of them says was durable.
    pub(crate) durable_upto: usize,
    /// Where the last of them ends.
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

    /// Reads at most so much at a time, a multiple of a block's header; larger blocks whole.
    pub(crate) fn in_pieces_of(mut self, bytes: usize) -> Self {
        self.chunk = bytes.max(BLOCK_HEADER_BYTES) & !(BLOCK_HEADER_BYTES - 1);
        self
    }

    /// Where blocks end at the latest.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Forgets what was read: the file may have changed.
    pub(crate) fn refresh(&mut self) {
        self.window.clear();
    }

    /// `length` bytes from `at`, which must lie below the limit.
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

    /// The block at `at`, all of it checked.
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
            return Ok(Found::Nothing("block says that what comes after it is durable"));
        }
        let block = self.bytes(at, header.length as usize)?;
        Ok(match check_body(&header, block, true) {
            Ok(()) => Found::Block(header, &block[BLOCK_HEADER_BYTES..]),
            Err(why) => Found::Nothing(why),
        })
    }

    /// Looks for sound block headers anywhere from `from` on. Their bodies do not matter: what a header says
    /// of the bytes before it was true when it was written.
    pub(crate) fn later(&mut self, from: usize) -> Result<Later> {
        self.later_within(from, self.limit)
    }

    /// As [`Self::later`], looking no further than `to`.
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
