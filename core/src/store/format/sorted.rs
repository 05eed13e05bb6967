//! Sorted copy: the layout of a file with the records of a segment of mixed blocks, log by log. Bytes only.
//!
//! ```text
//! 0        4096                                                                   directory
//! | header | blocks of log 3 | blocks of log 7 | blocks of log 12 | …             | logs | marks |
//! ```
//!
//! The blocks are ordinary ones of kind 1. Those of a log follow each other by index; each has batches of one time. The salt of
//! their checksums follows from the segment's id and the log's number, so no block passes for another log's.
//!
//! The directory has the place of each log's blocks, and marks among them: one at its first block, and one after each further
//! [`MARK_BYTES`].
//!
//! Must not know: files, threads.

use super::geometry::SEGMENT_HEADER_BYTES;
use crate::random::SplitMix;
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::{Index, LogId, LogNumber, SegmentId};

/// The size of the header; the blocks begin behind it.
pub(crate) const SORTED_HEADER_BYTES: usize = SEGMENT_HEADER_BYTES;
/// The version of this layout. Files of other versions are not used, and made again.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"CHIPSORT";
/// The size of its fields.
pub(crate) const SORTED_FIELDS_BYTES: usize = 68;
const LOG_BYTES: usize = 16;
const MARK_ENTRY_BYTES: usize = 16;
/// A log's blocks are marked about this often.
pub(crate) const MARK_BYTES: usize = 64 << 10;

/// The header of a sorted copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortedHeader {
    pub(crate) log: LogId,
    /// The segment that was copied, and the offset at which its blocks end.
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) data_end: u32,
    /// Where the directory is, and its parts.
    pub(crate) directory_at: u32,
    pub(crate) logs: u32,
    pub(crate) marks: u32,
    pub(crate) directory_crc: u32,
}

impl SortedHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(SORTED_HEADER_BYTES);
        b.extend_from_slice(MAGIC);
        b.extend_from_slice(&VERSION.to_le_bytes());
        b.extend_from_slice(&self.logs.to_le_bytes());
        b.extend_from_slice(&self.log.0.to_le_bytes());
        b.extend_from_slice(&self.number.to_le_bytes());
        b.extend_from_slice(&self.id.0.to_le_bytes());
        b.extend_from_slice(&self.data_end.to_le_bytes());
        b.extend_from_slice(&self.directory_at.to_le_bytes());
        b.extend_from_slice(&self.marks.to_le_bytes());
        b.extend_from_slice(&self.directory_crc.to_le_bytes());
        b.extend_from_slice(&crc32c(&b).to_le_bytes());
        b.resize(SORTED_HEADER_BYTES, 0);
        b
    }

    /// Whether these bytes begin like a header. Its checksum is not looked at.
    pub(crate) fn begins(b: &[u8]) -> bool {
        b.starts_with(MAGIC)
    }

    /// # Errors
    /// The bytes are no header of this version.
    pub(crate) fn parse(b: &[u8]) -> Result<Self, Malformed> {
        let b = b.get(..SORTED_FIELDS_BYTES).ok_or("sorted copy is cut off")?;
        let is_known = b.starts_with(MAGIC) && u32_at(b, 8) == VERSION;
        if !is_known || crc32c(&b[..SORTED_FIELDS_BYTES - 4]) != u32_at(b, SORTED_FIELDS_BYTES - 4) {
            return Err("sorted copy has no sound header of this version");
        }
        let log = u128::from(u64_at(b, 16)) | u128::from(u64_at(b, 24)) << 64;
        Ok(Self {
            log: LogId(log),
            number: u64_at(b, 32),
            id: SegmentId(u64_at(b, 40)),
            data_end: u32_at(b, 48),
            directory_at: u32_at(b, 52),
            logs: u32_at(b, 12),
            marks: u32_at(b, 56),
            directory_crc: u32_at(b, 60),
        })
    }

    /// The length of the directory in bytes.
    pub(crate) fn directory_bytes(&self) -> usize {
        self.logs as usize * LOG_BYTES + self.marks as usize * MARK_ENTRY_BYTES
    }
}

/// The salt of the checksums of a log's blocks in the copy of a segment.
pub(crate) fn salt(segment: SegmentId, log: LogNumber) -> SegmentId {
    SegmentId(SplitMix(segment.0 ^ SplitMix(u64::from(log.0)).next()).next() | 1)
}

/// Where a log's blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    log: LogNumber,
    begin: u32,
    end: u32,
    /// The number of its first mark.
    mark: u32,
}

/// A block that is found without reading those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// The index of its first record.
    first: Index,
    offset: u32,
}

/// Where the blocks of each log are in a sorted copy. Logs ascend by number, marks by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortedDirectory {
    logs: Vec<Place>,
    marks: Vec<Mark>,
}

impl SortedDirectory {
    /// Adds a block of `log` at `offset`, which ends at `end`. Logs come one after the other, in order.
    pub(crate) fn add(&mut self, log: LogNumber, first: Index, offset: u32, end: u32) {
        if self.logs.last().is_none_or(|place| place.log != log) {
            self.logs.push(Place { log, begin: offset, end: offset, mark: self.marks.len() as u32 });
            self.marks.push(Mark { first, offset });
        }
        if self.marks.last().is_some_and(|mark| (offset - mark.offset) as usize >= MARK_BYTES) {
            self.marks.push(Mark { first, offset });
        }
        if let Some(place) = self.logs.last_mut() {
            place.end = end;
        }
    }

    /// Where to read the block of `log` that contains record `next`: the last mark at or before it, and the end of the log's
    /// blocks. None: the log's first record here is a later one, or it has none.
    pub(crate) fn seek(&self, log: LogNumber, next: Index) -> Option<(usize, usize)> {
        let n = self.logs.binary_search_by_key(&log, |place| place.log).ok()?;
        let place = self.logs[n];
        let end = self.logs.get(n + 1).map_or(self.marks.len(), |place| place.mark as usize);
        let marks = self.marks.get(place.mark as usize..end)?;
        let mark =
            marks.partition_point(|mark| mark.first <= next).checked_sub(1).and_then(|n| marks.get(n))?;
        Some((mark.offset as usize, place.end as usize))
    }

    /// The blocks of `log`: where they begin and end.
    pub(crate) fn of_log(&self, log: LogNumber) -> Option<(usize, usize)> {
        let n = self.logs.binary_search_by_key(&log, |place| place.log).ok()?;
        self.logs.get(n).map(|place| (place.begin as usize, place.end as usize))
    }

    /// The places of all logs' blocks: where they begin and end.
    pub(crate) fn places(&self) -> impl Iterator<Item = (LogNumber, usize, usize)> + '_ {
        self.logs.iter().map(|place| (place.log, place.begin as usize, place.end as usize))
    }

    /// The memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.logs[..]) + size_of_val(&self.marks[..])
    }

    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.logs.len() as u32, self.marks.len() as u32)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(self.logs.len() * LOG_BYTES + self.marks.len() * MARK_ENTRY_BYTES);
        for place in &self.logs {
            for field in [place.log.0, place.begin, place.end, place.mark] {
                b.extend_from_slice(&field.to_le_bytes());
            }
        }
        for mark in &self.marks {
            b.extend_from_slice(&mark.first.0.to_le_bytes());
            b.extend_from_slice(&mark.offset.to_le_bytes());
            b.extend_from_slice(&[0; 4]);
        }
        b
    }

    /// The directory of blocks that begin at `blocks_at`.
    ///
    /// # Errors
    /// The bytes are not the directory that the header describes, or contradict each other.
    pub(crate) fn parse(header: &SortedHeader, b: &[u8], blocks_at: u32) -> Result<Self, Malformed> {
        if b.len() != header.directory_bytes() || crc32c(b) != header.directory_crc {
            return Err("directory of a sorted copy is damaged");
        }
        let (logs, marks) = b.split_at(header.logs as usize * LOG_BYTES);
        let place = |b: &[u8; LOG_BYTES]| Place {
            log: LogNumber(u32_at(b, 0)),
            begin: u32_at(b, 4),
            end: u32_at(b, 8),
            mark: u32_at(b, 12),
        };
        let mark = |b: &[u8; MARK_ENTRY_BYTES]| Mark { first: Index(u64_at(b, 0)), offset: u32_at(b, 8) };
        let parsed = Self {
            logs: logs.as_chunks().0.iter().map(place).collect(),
            marks: marks.as_chunks().0.iter().map(mark).collect(),
        };
        let is_padded = marks.as_chunks::<MARK_ENTRY_BYTES>().0.iter().all(|b| b[12..] == [0; 4]);
        if is_padded && parsed.is_possible(header, blocks_at) {
            Ok(parsed)
        } else {
            Err("directory of a sorted copy contradicts itself")
        }
    }

    fn is_possible(&self, header: &SortedHeader, blocks_at: u32) -> bool {
        let mut at = blocks_at;
        let follow = self.logs.iter().all(|place| {
            let follows = place.begin == at && place.end > place.begin && place.mark < header.marks;
            at = place.end;
            follows
        });
        let ascend =
            self.logs.windows(2).all(|pair| pair[0].log < pair[1].log && pair[0].mark < pair[1].mark);
        let are_inside = self.marks.iter().all(|mark| mark.offset < header.directory_at);
        follow && ascend && are_inside && at == header.directory_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> SortedDirectory {
        let mut directory = SortedDirectory::default();
        let mut at = SORTED_HEADER_BYTES as u32;
        for (log, blocks) in [(3, 1), (7, 5), (12, 2)] {
            for n in 0..blocks {
                directory.add(LogNumber(log), Index(10 * n + 1), at, at + 40_000);
                at += 40_000;
            }
        }
        directory
    }

    fn header(directory: &SortedDirectory) -> SortedHeader {
        let ((logs, marks), bytes) = (directory.counts(), directory.encode());
        SortedHeader {
            log: LogId(5 << 70),
            number: 9,
            id: SegmentId(77),
            data_end: 123_456,
            directory_at: SORTED_HEADER_BYTES as u32 + 8 * 40_000,
            logs,
            marks,
            directory_crc: crc32c(&bytes),
        }
    }

    #[test]
    fn header_and_directory_come_back() {
        let directory = directory();
        let header = header(&directory);
        assert_eq!(SortedHeader::parse(&header.encode()), Ok(header));
        assert_eq!(
            SortedDirectory::parse(&header, &directory.encode(), SORTED_HEADER_BYTES as u32),
            Ok(directory)
        );
    }

    #[test]
    fn each_log_is_found_by_its_marks() {
        let directory = directory();
        let begin = SORTED_HEADER_BYTES;
        assert_eq!(directory.seek(LogNumber(3), Index(5)), Some((begin, begin + 40_000)));
        let end = begin + 6 * 40_000;
        assert_eq!(directory.seek(LogNumber(7), Index(1)), Some((begin + 40_000, end)));
        assert_eq!(directory.seek(LogNumber(7), Index(20)), Some((begin + 40_000, end)));
        assert_eq!(directory.seek(LogNumber(7), Index(21)), Some((begin + 3 * 40_000, end)));
        assert_eq!(directory.seek(LogNumber(7), Index(900)), Some((begin + 5 * 40_000, end)));
        assert_eq!(directory.seek(LogNumber(7), Index(0)), None);
        assert_eq!(directory.seek(LogNumber(8), Index(1)), None);
        assert_eq!(directory.places().count(), 3);
    }

    #[test]
    fn each_flipped_bit_is_found() {
        let directory = directory();
        let header = header(&directory);
        let (head, bytes) = (header.encode(), directory.encode());
        for bit in 0..SORTED_FIELDS_BYTES * 8 {
            let mut head = head.clone();
            head[bit / 8] ^= 1 << (bit % 8);
            SortedHeader::parse(&head).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            SortedDirectory::parse(&header, &bytes, SORTED_HEADER_BYTES as u32).unwrap_err();
        }
    }

    #[test]
    fn directory_under_a_right_checksum_has_to_be_possible() {
        let wrong = |change: &dyn Fn(&mut SortedDirectory)| {
            let mut directory = directory();
            change(&mut directory);
            let header = SortedHeader { directory_crc: crc32c(&directory.encode()), ..header(&directory) };
            SortedDirectory::parse(&header, &directory.encode(), SORTED_HEADER_BYTES as u32).unwrap_err();
        };
        wrong(&|d| d.logs[1].log = LogNumber(2));
        wrong(&|d| d.logs[1].begin += 1);
        wrong(&|d| d.logs[2].end += 64);
        wrong(&|d| d.logs[2].mark = 99);
        wrong(&|d| d.marks[1].offset = u32::MAX);
        wrong(&|d| d.logs.truncate(2));
    }

    #[test]
    fn salts_differ_by_log_and_by_segment() {
        let salts = [(1, 1), (1, 2), (2, 1)].map(|(id, log)| salt(SegmentId(id), LogNumber(log)));
        assert!((0..3).all(|n| !salts[..n].contains(&salts[n])), "{salts:?}");
    }
}
