//! Scanner: finds the blocks of one segment file by `pread`, and checks every byte. Recovery, read-only handles and
//! repair use it. It never uses the mapping, so a failing device causes an error and not a signal.
//!
//! Invariant: it trusts nothing in the file. Bytes that are no sound block are a result, with the reason, and no error.
//! Its caller decides what they mean.

use super::window::Window;
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::types::SegmentId;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read at a time; larger blocks are read whole.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads one file that may be damaged, half written, or from an earlier use.
#[derive(Debug)]
pub(crate) struct Scanner {
    file: Arc<dyn DiskFile>,
    pub(crate) path: PathBuf,
    id: SegmentId,
    limit: usize,
    window: Window,
    chunk: usize,
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
        Self { file, path, id, limit: data_limit(bytes), window: Window::default(), chunk: CHUNK_BYTES }
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
        self.window.take();
    }

    /// Damage at an offset of the file.
    pub(crate) fn corrupt(&self, at: usize, why: Malformed) -> Error {
        Error::corrupt(&self.path, at as u64, why)
    }

    /// Returns `length` bytes from `at`, which must be below the limit.
    pub(crate) fn bytes(&mut self, at: usize, length: usize) -> Result<&[u8]> {
        if !self.window.has(at, length) {
            let ahead = length.max(self.chunk.min(self.limit - at));
            self.window.fill(&*self.file, at, ahead).map_err(|e| Error::io("read", &self.path, e))?;
        }
        Ok(&self.window.from(at)[..length])
    }

    /// Returns the block at `at` and its body, fully checked; or why no sound block is there.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn block(&mut self, at: usize) -> Result<Result<(BlockHeader, &[u8]), Malformed>> {
        let (id, limit) = (self.id, self.limit);
        if at + BLOCK_HEADER_BYTES > limit {
            return Ok(Err("the segment has no room for another block"));
        }
        let header = match BlockHeader::parse(self.bytes(at, BLOCK_HEADER_BYTES)?, id) {
            Ok(header) => header,
            Err(why) => return Ok(Err(why)),
        };
        if header.stride() > limit - at {
            return Ok(Err("block runs over the segment's end"));
        }
        if header.durable_upto as usize > at {
            return Ok(Err("block claims that bytes after it are durable"));
        }
        let block = self.bytes(at, header.length as usize)?;
        Ok(check_body(&header, block, true).map(|()| (header, &block[BLOCK_HEADER_BYTES..])))
    }

    /// Searches for a sound block header, from `from` on and below `to`. Returns its offset too. Its body is not
    /// checked: it can be damaged, or the header itself can be inside another block's body.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn seek(&mut self, from: usize, to: usize) -> Result<Option<(usize, BlockHeader)>> {
        let (id, to) = (self.id, to.min(self.limit));
        let mut at = from.next_multiple_of(BLOCK_HEADER_BYTES);
        while at + BLOCK_HEADER_BYTES <= to {
            self.bytes(at, BLOCK_HEADER_BYTES)?;
            let heads = self.window.from(at).as_chunks::<BLOCK_HEADER_BYTES>().0;
            let heads = &heads[..heads.len().min((to - at) / BLOCK_HEADER_BYTES)];
            let sound = |(n, head): (usize, &[u8; BLOCK_HEADER_BYTES])| {
                Some((at + n * BLOCK_HEADER_BYTES, BlockHeader::parse(head, id).ok()?))
            };
            if let Some(found) = heads.iter().enumerate().find_map(sound) {
                return Ok(Some(found));
            }
            at += heads.len() * BLOCK_HEADER_BYTES;
        }
        Ok(None)
    }

    /// Visits every sound block of some kinds, in the order of their offsets, also those after damage.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn each_sound(
        &mut self,
        kinds: &[Kind],
        mut visit: impl FnMut(&BlockHeader, &[u8]),
    ) -> Result<()> {
        let mut from = SEGMENT_HEADER_BYTES;
        while let Some((at, header)) = self.seek(from, self.limit)? {
            if kinds.contains(&header.kind)
                && let Ok((header, body)) = self.block(at)?
            {
                visit(&header, body);
            }
            from = at + BLOCK_HEADER_BYTES;
        }
        Ok(())
    }

    /// Combines all sound headers from `from` on. Their bodies do not matter: a header's statement about the bytes
    /// before it was true when it was written.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn later(&mut self, from: usize) -> Result<Later> {
        self.later_within(from, self.limit)
    }

    /// Like [`Self::later`], but looks no further than `to`.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn later_within(&mut self, mut from: usize, to: usize) -> Result<Later> {
        let mut later = Later::default();
        while let Some((at, header)) = self.seek(from, to)? {
            later.durable_upto = later.durable_upto.max(header.durable_upto as usize);
            later.end = (at + header.stride()).min(self.limit);
            from = at + BLOCK_HEADER_BYTES;
        }
        Ok(later)
    }
}

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));
const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::sim::SimDisk;
    use crate::store::format::block::sample_header;
    use crate::store::format::geometry::SEGMENT_BYTES_MIN;
    use std::io::IoSlice;

    #[test]
    fn search_finds_every_header_however_much_is_read_at_a_time() {
        let (id, bytes) = (SegmentId(7), SEGMENT_BYTES_MIN as usize);
        let file: Arc<dyn DiskFile> = SimDisk::default().create("file").unwrap();
        file.write_at(0, &[IoSlice::new(&vec![0; bytes])]).unwrap();
        let places = [4096, 4160, 4416, 8128, 8192, 20_480];
        for (n, at) in places.into_iter().enumerate() {
            let header = BlockHeader { durable_upto: 5000 - n as u32, ..sample_header() };
            file.write_at(at as u64, &[IoSlice::new(&header.encode(id))]).unwrap();
        }
        for piece in [64, 192, 4096, 1 << 20] {
            let mut scanner = Scanner::new(file.clone(), "file".into(), id, bytes).in_pieces_of(piece);
            let (mut found, mut from) = (Vec::new(), SEGMENT_HEADER_BYTES);
            while let Some((at, _)) = scanner.seek(from, scanner.limit()).unwrap() {
                found.push(at);
                from = at + BLOCK_HEADER_BYTES;
            }
            assert_eq!(found, places, "{piece}");
            assert_eq!(scanner.seek(8193, 20_480 + 63).unwrap(), None, "{piece}");
            let later = |durable_upto, end| Later { durable_upto, end };
            assert_eq!(scanner.later(4097).unwrap(), later(4999, 20_480 + 128), "{piece}");
            assert_eq!(scanner.later_within(4097, 8192).unwrap(), later(4999, 8128 + 128), "{piece}");
            let foreign = Scanner::new(file.clone(), "file".into(), SegmentId(8), bytes).seek(0, bytes);
            assert_eq!(foreign.unwrap(), None);
        }
    }
}
