//! Sorted object: the header of an object whose records are log by log. Bytes only.
//!
//! ```text
//! 0        4096                                                                              size - 4096
//! | header | opening | blocks of log 3 | blocks of log 7 | … | logs | marks | skeleton | zeros | footer |
//! ```
//!
//! The first 68 bytes of the header are those of a sorted copy (`sorted.rs`): logs and marks are its directory. The blocks of the
//! logs are those of such a copy, too. The skeleton is what else the entries of the stretch have, in their order: the whole block
//! of each entry without records, and header and table of each mixed block. Opening and footer are those of the segment file that
//! skeleton and blocks make together.
//!
//! Behind these bytes of the header, little-endian:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 68 | 4 | offset of the logs' blocks | behind the opening |
//! | 72 | 4 | offset of the skeleton | behind the directory |
//! | 76 | 4 | where the skeleton ends | before the footer |
//! | 80 | 4 | size of the segment file | that of a segment |
//! | 84 | 4 | checksum of all its bytes | - |
//! | 88 | 4 | checksum of bytes 68 to 87 | - |
//!
//! Must not know: files, threads.

use super::geometry::{FOOTER_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES};
use super::sorted::{SORTED_FIELDS_BYTES, SortedHeader};
use crate::record::batch::{Malformed, u32_at};
use crate::record::crc::crc32c;

/// Bytes of the fields, with those of a sorted copy.
const FIELDS_BYTES: usize = SORTED_FIELDS_BYTES + 24;

/// The header of a sorted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortedObjectHeader {
    /// Its number is that of the segment file.
    pub(crate) sorted: SortedHeader,
    pub(crate) blocks_at: u32,
    pub(crate) skeleton_at: u32,
    pub(crate) skeleton_end: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) segment_crc: u32,
}

/// Whether an object that begins with these bytes is a sorted one. Its checksum is not looked at.
pub(crate) fn is_sorted(bytes: &[u8]) -> bool {
    SortedHeader::begins(bytes)
}

impl SortedObjectHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = self.sorted.encode();
        b.truncate(SORTED_FIELDS_BYTES);
        let Self { blocks_at, skeleton_at, skeleton_end, segment_bytes, segment_crc, .. } = *self;
        for field in [blocks_at, skeleton_at, skeleton_end, segment_bytes, segment_crc] {
            b.extend_from_slice(&field.to_le_bytes());
        }
        b.extend_from_slice(&crc32c(&b[SORTED_FIELDS_BYTES..]).to_le_bytes());
        b.resize(SEGMENT_HEADER_BYTES, 0);
        b
    }

    /// The header of an object of `bytes` bytes.
    ///
    /// # Errors
    /// It is not the header of a sorted object of this version, or has impossible offsets.
    pub(crate) fn parse(b: &[u8], bytes: usize) -> Result<Self, Malformed> {
        let sorted = SortedHeader::parse(b)?;
        let fields = b.get(SORTED_FIELDS_BYTES..FIELDS_BYTES).ok_or("sorted object is cut off")?;
        if crc32c(&fields[..20]) != u32_at(fields, 20) {
            return Err("header of a sorted object is damaged");
        }
        let [blocks_at, skeleton_at, skeleton_end, segment_bytes, segment_crc] =
            [0, 4, 8, 12, 16].map(|at| u32_at(fields, at));
        let behind = sorted.directory_at as usize + sorted.directory_bytes();
        let is_ordered = SEGMENT_HEADER_BYTES < blocks_at as usize
            && blocks_at <= sorted.directory_at
            && behind <= skeleton_at as usize
            && skeleton_at <= skeleton_end
            && skeleton_end as usize + FOOTER_BYTES <= bytes;
        if !is_ordered || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            return Err("header of a sorted object has impossible offsets");
        }
        Ok(Self { sorted, blocks_at, skeleton_at, skeleton_end, segment_bytes, segment_crc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LogId, SegmentId};

    fn header() -> SortedObjectHeader {
        let sorted = SortedHeader {
            log: LogId(5 << 70),
            number: 9,
            id: SegmentId(77),
            data_end: 123_456,
            directory_at: 90_000,
            logs: 3,
            marks: 8,
            directory_crc: 5,
        };
        SortedObjectHeader {
            sorted,
            blocks_at: 8192,
            skeleton_at: 90_176,
            skeleton_end: 95_000,
            segment_bytes: 1 << 17,
            segment_crc: 99,
        }
    }

    #[test]
    fn header_comes_back_and_each_flipped_bit_is_found() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES);
        assert!(is_sorted(&bytes));
        assert_eq!(SortedObjectHeader::parse(&bytes, 1 << 17), Ok(header()));
        for bit in 0..FIELDS_BYTES * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            SortedObjectHeader::parse(&bytes, 1 << 17).unwrap_err();
        }
        for cut in 0..FIELDS_BYTES {
            SortedObjectHeader::parse(&bytes[..cut], 1 << 17).unwrap_err();
        }
    }

    #[test]
    fn impossible_offsets_are_refused() {
        let wrong = |change: &dyn Fn(&mut SortedObjectHeader)| {
            let mut header = header();
            change(&mut header);
            SortedObjectHeader::parse(&header.encode(), 1 << 17).unwrap_err();
        };
        wrong(&|h| h.blocks_at = 4096);
        wrong(&|h| h.blocks_at = 90_001);
        wrong(&|h| h.skeleton_at = 90_175);
        wrong(&|h| h.skeleton_end = 90_175);
        wrong(&|h| h.skeleton_end = 1 << 17);
        wrong(&|h| h.segment_bytes = 1);
        wrong(&|h| h.sorted.marks = 9);
    }
}
