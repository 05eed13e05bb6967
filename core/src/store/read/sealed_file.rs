//! Sealed file: the file of a segment that is written no more, as it is passed on to others. It has the segment's header and blocks, and
//! zeros behind them, where the file itself has its block index and footer: a reader of it finds the blocks by their headers.
//!
//! Invariants:
//! - every byte is checked by its block's checksum before it is returned, or is zero because nothing reads it: padding, the content of a
//!   marker, and what is behind the blocks;
//! - only blocks that are committed are in it: it is opened once all of its segment are;
//! - all that one handle returns is of the same bytes: a repair in place ends it.
//!
//! Must not know: raft, the network.

use super::block_reader::{Blocks, WINDOW_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::{crc32c, joined};
use crate::store::format::block::Kind;
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{HeaderFault, SegmentHeader};
use crate::store::segment::{FileSum, Segment, SegmentData, Segments};
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

/// How many bytes a step of the checksum reads, and the rest of the last block.
const STEP_BYTES: usize = 4 << 20;

/// The file of a sealed segment. While it is open, its bytes stay, also if the segment leaves the log.
#[derive(Debug)]
pub struct SealedFile {
    segments: Arc<Segments>,
    data: Arc<SegmentData>,
    data_end: usize,
    /// The state of repairs when it was opened.
    repairs: u64,
}

impl SealedFile {
    /// Opens the file of this number. None: no sealed segment of the log has it.
    pub(crate) fn open(segments: &Arc<Segments>, number: u64) -> Result<Option<Self>> {
        let repairs = segments.damage().repairs();
        let found = segments.sealed().into_iter().find(|(segment, ..)| segment.number == number);
        let Some((segment, _, data_end)) = found else { return Ok(None) };
        match segments.open(&segment) {
            Ok(data) => Ok(Some(Self { segments: segments.clone(), data, data_end, repairs })),
            Err(_) if !segments.contains(&segment) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The size of the file.
    pub fn bytes(&self) -> u64 {
        u64::from(self.data.segment.bytes)
    }

    /// The CRC-32C of all its bytes, if that was computed before.
    pub fn known_sum(&self) -> Option<u32> {
        self.summed().filter(|sum| sum.upto == self.size()).map(|sum| sum.crc)
    }

    /// Reads the next bytes for the CRC-32C of the file, some MiB of them, each block once. Returns it once all bytes were read. The part that was
    /// read is known to all handles, so that a caller that gave up loses nothing.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn sum_next(&self) -> Result<Option<u32>> {
        let FileSum { upto, crc, .. } = self.summed().unwrap_or(FileSum {
            data_end: self.data_end,
            repairs: self.repairs,
            upto: 0,
            crc: 0,
        });
        let step = upto..self.checked(self.step_end(upto))?;
        if !step.is_empty() {
            let read = self.piece(step.clone())?;
            let crc = joined(crc, crc32c(&read), read.len());
            let mut known = self.sum_of_file();
            if known.is_none_or(|known| !self.is_of_this(&known) || known.upto < step.end) {
                let (data_end, repairs) = (self.data_end, self.repairs);
                *known = Some(FileSum { data_end, repairs, upto: step.end, crc });
            }
        }
        Ok(self.known_sum())
    }

    /// The CRC-32C of all its bytes. Reads them the first time.
    ///
    /// # Errors
    /// As [`Self::read`].
    #[cfg(feature = "testing")]
    pub fn sum(&self) -> Result<u32> {
        loop {
            if let Some(sum) = self.sum_next()? {
                return Ok(sum);
            }
        }
    }

    /// Where a step of the checksum ends that begins at `from`: with a block.
    fn step_end(&self, from: usize) -> Result<usize> {
        let least = self.size().min(from + STEP_BYTES);
        if least >= self.data_end {
            return Ok(least);
        }
        let at = self.data.seek(|entry| entry.offset as usize <= least)?;
        let mut blocks = Blocks::new(self.data.clone(), at, WINDOW_BYTES);
        while blocks.at() < least && blocks.next(self.data_end)?.is_some() {}
        Ok(blocks.at().max(least))
    }

    /// The part of the file that was summed.
    fn summed(&self) -> Option<FileSum> {
        self.sum_of_file().filter(|sum| self.is_of_this(sum))
    }

    fn is_of_this(&self, sum: &FileSum) -> bool {
        (sum.data_end, sum.repairs) == (self.data_end, self.repairs)
    }

    fn size(&self) -> usize {
        self.data.segment.bytes as usize
    }

    /// Bytes of the file, checked. Those behind its end are left out.
    ///
    /// # Errors
    /// `Corrupt`: a block that has bytes of the range is damaged, or one shortly before it; a repair looks there at once, if the log has
    /// one. `Unavailable`: the file was repaired since this was opened. `Io`.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let end = usize::try_from(range.end.min(self.bytes())).unwrap_or(usize::MAX);
        self.piece(usize::try_from(range.start).unwrap_or(usize::MAX).min(end)..end)
    }

    fn piece(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        let filled = self.fill(&range, &mut bytes);
        self.checked(filled).map(|()| bytes)
    }

    /// The result of a read, unless the file was repaired meanwhile. Damage is reported, so that it is repaired.
    fn checked<T>(&self, read: Result<T>) -> Result<T> {
        // Also of damage: it may be repaired by now.
        if self.segments.damage().repairs() != self.repairs {
            let what = format!("{} was repaired while it was read: read it again", self.data.path.display());
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        read.map_err(|error| self.segments.met(error, None))
    }

    fn fill(&self, range: &Range<usize>, bytes: &mut [u8]) -> Result<()> {
        if range.start < SEGMENT_HEADER_BYTES {
            put(bytes, range, 0, &self.header()?);
        }
        let from = range.start.max(SEGMENT_HEADER_BYTES);
        if from >= range.end.min(self.data_end) {
            return Ok(());
        }
        let at = self.data.seek(|entry| entry.offset as usize <= from)?;
        let mut blocks = Blocks::new(self.data.clone(), at, WINDOW_BYTES);
        while blocks.at() < range.end
            && let Some(block) = blocks.next(self.data_end)?
        {
            if blocks.at() <= from {
                continue;
            }
            match block.header.kind {
                Kind::Marker => put(bytes, range, block.offset, &block.header.encode(self.segment().id)),
                _ => put(bytes, range, block.offset, &blocks.load(&block, self.data_end)?),
            }
        }
        Ok(())
    }

    /// The header, checked.
    fn header(&self) -> Result<Vec<u8>> {
        let wrong = |why| Error::corrupt(&self.data.path, 0, why);
        let head =
            self.data.copy(0, SEGMENT_HEADER_BYTES)?.ok_or_else(|| wrong("segment header is cut off"))?;
        match SegmentHeader::parse(&head) {
            Ok(header) if (header.number, header.id) == (self.segment().number, self.segment().id) => {
                Ok(head)
            }
            Ok(_) => Err(wrong("it is the file of another segment")),
            Err(HeaderFault::Malformed(why)) => Err(wrong(why)),
            Err(HeaderFault::Newer(_)) => Err(wrong("segment header is of a newer format than the log")),
        }
    }

    fn segment(&self) -> &Segment {
        &self.data.segment
    }

    fn sum_of_file(&self) -> MutexGuard<'_, Option<FileSum>> {
        self.segment().file_sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies what `part`, which begins at an offset of the file, has of a range of the file.
fn put(bytes: &mut [u8], range: &Range<usize>, offset: usize, part: &[u8]) {
    let (first, end) = (range.start.max(offset), range.end.min(offset + part.len()));
    if first < end {
        bytes[first - range.start..end - range.start].copy_from_slice(&part[first - offset..end - offset]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_are_put_where_they_belong() {
        let part: Vec<u8> = (1..=10).collect();
        for (range, expected) in [
            (0..5, vec![0; 5]),
            (95..105, vec![0, 0, 0, 0, 0, 1, 2, 3, 4, 5]),
            (100..110, (1..=10).collect()),
            (103..105, vec![4, 5]),
            (108..112, vec![9, 10, 0, 0]),
            (110..112, vec![0, 0]),
        ] {
            let mut bytes = vec![0; range.len()];
            put(&mut bytes, &range, 100, &part);
            assert_eq!(bytes, expected, "{range:?}");
        }
    }
}
