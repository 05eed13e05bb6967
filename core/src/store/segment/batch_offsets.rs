//! The offset of each batch in a block, remembered by look-ups so that the next one in the same block goes directly to
//! its batch. Finding them takes a walk over all batches of the block, which are far apart.
//!
//! A remembered offset is as reliable as another walk. Offsets are stored only from a list that matched the block's
//! digest, which covers the checksums of all batches in their order. Bytes at that offset that contain this checksum
//! and match it are that batch, even if the rest of the block has changed since.
//!
//! Bounds: offsets of all blocks together take at most [`REMEMBERED_BYTES_MAX`]; the least recently used ones are
//! dropped.
//!
//! Must not know: files, readers, when a record is committed.

use crate::store::format::block::BlockHeader;
use crate::types::{Index, SegmentId, Timestamp};
use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// Memory for remembered offsets per log: enough for 1.3 million batches.
pub(crate) const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// A block with fewer batches is walked as quickly as it is remembered.
const BATCHES_MIN: usize = 8;
/// Approximate memory of a block in addition to its offsets.
const BLOCK_BYTES: usize = 160;

/// The position of a batch in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The offset from the block's first byte.
    pub(crate) at: u32,
    /// The number of records before it in the block.
    pub(crate) before: u32,
    /// Its checksum, which the block's digest covers.
    pub(crate) crc: u32,
}

/// A batch that a look-up found: the location of its bytes and their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The range in the segment's file.
    pub(crate) range: Range<usize>,
    /// The index of its first record.
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
    pub(crate) crc: u32,
}

/// The offsets of one block's batches, in order.
#[derive(Debug)]
pub(crate) struct Places {
    /// The file's id: a reused file has another one.
    pub(crate) segment: SegmentId,
    offset: usize,
    header: BlockHeader,
    batches: Vec<Place>,
}

impl Places {
    /// The offsets in the block at `offset` of the file, whose list was checked against its digest. None: not worth
    /// storing.
    pub(crate) fn new(
        segment: SegmentId,
        offset: usize,
        header: BlockHeader,
        mut batches: Vec<Place>,
    ) -> Option<Self> {
        batches.shrink_to_fit();
        (batches.len() >= BATCHES_MIN).then_some(Self { segment, offset, header, batches })
    }

    fn holds(&self, index: Index) -> bool {
        (self.header.first..self.header.next_record()).contains(&index)
    }

    /// The batch that contains record `index`, which is in this block.
    pub(crate) fn find(&self, index: Index) -> Option<Found> {
        let before = index.0.checked_sub(self.header.first.0)?;
        let n = self.batches.partition_point(|p| u64::from(p.before) <= before).checked_sub(1)?;
        let place = self.batches.get(n)?;
        let end = self.batches.get(n + 1).map_or(self.header.length, |next| next.at);
        Some(Found {
            range: self.offset + place.at as usize..self.offset + end as usize,
            first: self.header.first.plus(u64::from(place.before)),
            timestamp: self.header.timestamp,
            crc: place.crc,
        })
    }

    fn bytes(&self) -> usize {
        self.batches.capacity() * size_of::<Place>() + BLOCK_BYTES
    }
}

/// The blocks of recent look-ups, in two generations. A used block moves to the younger generation. When that fills its
/// half of the memory, the older generation is dropped.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    /// By the index of the first record.
    blocks: BTreeMap<Index, Arc<Places>>,
    bytes: usize,
}

impl Remembered {
    /// The offsets of the block that contains `index`.
    pub(crate) fn get(&mut self, index: Index) -> Option<Arc<Places>> {
        if let Some(places) = self.young.get(index) {
            return Some(places.clone());
        }
        let places = self.old.get(index)?.clone();
        self.old.remove(places.header.first);
        self.insert(places.clone());
        Some(places)
    }

    /// Stores a block.
    pub(crate) fn insert(&mut self, places: Arc<Places>) {
        let bytes = places.bytes();
        if bytes > REMEMBERED_BYTES_MAX / 2 {
            return;
        }
        if self.young.bytes + bytes > REMEMBERED_BYTES_MAX / 2 {
            self.old = mem::take(&mut self.young);
        }
        self.young.remove(places.header.first);
        self.young.bytes += bytes;
        self.young.blocks.insert(places.header.first, places);
    }

    /// Removes every block that begins before `first`.
    pub(crate) fn drop_below(&mut self, first: Index) {
        for generation in [&mut self.young, &mut self.old] {
            generation.blocks = generation.blocks.split_off(&first);
            generation.bytes = generation.blocks.values().map(|p| p.bytes()).sum();
        }
    }
}

impl Generation {
    fn get(&self, index: Index) -> Option<&Arc<Places>> {
        let (_, places) = self.blocks.range(..=index).next_back()?;
        places.holds(index).then_some(places)
    }

    fn remove(&mut self, first: Index) {
        if let Some(places) = self.blocks.remove(&first) {
            self.bytes -= places.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::block::sample_header;

    const COUNT: u32 = 1000;

    /// A block of `COUNT` batches of two records and 50 bytes each, from record `first` on.
    fn block(first: u64) -> Arc<Places> {
        let header = BlockHeader {
            first: Index(first),
            record_count: 2 * COUNT,
            batch_count: COUNT,
            length: 64 + 50 * COUNT,
            ..sample_header()
        };
        let batches = (0..COUNT).map(|n| Place { at: 64 + 50 * n, before: 2 * n, crc: n }).collect();
        Arc::new(Places::new(SegmentId(1), 8192, header, batches).unwrap())
    }

    #[test]
    fn each_record_is_found_in_its_batch() {
        let places = block(1000);
        for n in 0..2 * u64::from(COUNT) {
            let found = places.find(Index(1000 + n)).unwrap();
            let batch = n / 2;
            let at = 8192 + 64 + 50 * batch as usize;
            assert_eq!((found.range, found.crc), (at..at + 50, batch as u32));
            assert_eq!(found.first, Index(1000 + 2 * batch));
        }
        assert_eq!(places.find(Index(999)), None);
        let few = vec![Place { at: 64, before: 0, crc: 1 }; BATCHES_MIN - 1];
        assert!(Places::new(SegmentId(1), 0, sample_header(), few).is_none());
    }

    #[test]
    fn record_in_a_gap_between_remembered_blocks_is_not_found() {
        let mut remembered = Remembered::default();
        let records = 2 * u64::from(COUNT);
        remembered.insert(block(1));
        remembered.insert(block(1 + 2 * records));
        for (index, known) in
            [(0, false), (1, true), (records, true), (records + 1, false), (2 * records + 1, true)]
        {
            assert_eq!(remembered.get(Index(index)).is_some(), known, "{index}");
        }
        remembered.drop_below(Index(2));
        assert!(remembered.get(Index(1)).is_none() && remembered.get(Index(1 + 2 * records)).is_some());
    }

    #[test]
    fn memory_is_bounded_and_used_blocks_stay() {
        let mut remembered = Remembered::default();
        let records = 2 * u64::from(COUNT);
        let blocks = 3 * (REMEMBERED_BYTES_MAX / block(1).bytes()) as u64;
        let first = |n: u64| 1 + n * records;
        for n in 0..blocks {
            remembered.insert(block(first(n)));
            remembered.insert(block(first(n))); // inserting twice has no effect
            assert!(remembered.get(Index(first(0))).is_some(), "used all the time; block {n}");
            for generation in [&remembered.young, &remembered.old] {
                let bytes = generation.blocks.values().map(|p| p.bytes()).sum::<usize>();
                assert_eq!(generation.bytes, bytes);
                assert!(bytes <= REMEMBERED_BYTES_MAX / 2);
            }
        }
        let known = (0..blocks).filter(|n| remembered.get(Index(first(*n))).is_some()).count() as u64;
        assert!(known > blocks / 8 && known < blocks / 2, "{known} of {blocks}");
    }
}
