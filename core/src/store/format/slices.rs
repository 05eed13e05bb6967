//! Slice: a short stretch of a log's newest committed entries in an object store, as bytes: until an object has them.
//!
//! ```text
//! 0        8        12        16       32          40          48            56         64          72
//! | magic  | crc32c | version | log id | base raft | base term | base record | last raft | last term | next record …
//! 80       88      92                 128
//! | bytes  | flags | zeros …          | [opening] | entries, back to back, each padded to 64
//! ```
//!
//! The checksum covers the header from `version` on. Blocks are those of segment files, with `durable upto` 0 and a salt that
//! follows from the log's id and the slice's first entry. So the bytes follow from the entries, and from nothing else: all
//! replicas make the same slice of the same entries.
//!
//! Must not know: files, which entries are committed.

use super::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use super::references::has_references;
use super::segment::{Base, FORMAT_VERSION, FORMAT_VERSION_FOURTH, version_of};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term};
use bytes::Bytes;

/// Bytes of a slice's header.
pub(crate) const SLICE_HEADER_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"chiplogL";
/// The slice begins with an opening: the state behind the entry before its first one.
const HAS_OPENING: u32 = 1;
/// The used part of the header.
const USED: usize = 92;
/// Every position is below this, so that adding to one never overflows.
const POSITION_MAX: u64 = 1 << 62;

/// The padding behind a block.
static ZEROS: [u8; BLOCK_HEADER_BYTES] = [0; BLOCK_HEADER_BYTES];

const _: () = assert!(SLICE_HEADER_BYTES.is_multiple_of(BLOCK_HEADER_BYTES));

/// A block's header and its body.
pub(crate) type Block = (BlockHeader, Bytes);

/// A slice whose every byte was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) log: LogId,
    /// The entry before the first one, and the record that the slice begins with.
    pub(crate) base: Base,
    /// The state there, in a slice with which a chain can begin.
    pub(crate) opening: Option<Block>,
    /// At least one, each behind the one before.
    pub(crate) entries: Vec<Block>,
}

/// Why bytes are not a slice that this code reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceFault {
    /// At which byte something is wrong, and why.
    Malformed(usize, Malformed),
    /// It needs a later version of the format.
    Newer(u32),
}

impl Slice {
    /// The last entry and its term.
    pub(crate) fn last(&self) -> (EntryIndex, Term) {
        self.entries.last().map_or((self.base.raft, self.base.term), |(h, _)| (h.raft_index, h.term))
    }

    /// The record behind the last entry; a command can move it further.
    pub(crate) fn next_record(&self) -> Index {
        self.entries.last().map_or(self.base.next, |(header, _)| header.next_record())
    }

    /// The slice's bytes under a salt, in pieces. Bodies are not copied.
    pub(crate) fn encode(&self, salt: SegmentId) -> Vec<Bytes> {
        let mut pieces = vec![Bytes::new()];
        let (mut bytes, mut version) = (SLICE_HEADER_BYTES, 1);
        for (header, body) in self.opening.iter().chain(&self.entries) {
            let header = BlockHeader { durable_upto: 0, ..*header };
            version = version.max(version_of(header.kind, body));
            if has_references(&header, body) {
                version = version.max(FORMAT_VERSION_FOURTH);
            }
            let padding = header.stride() - header.length as usize;
            pieces.push(Bytes::copy_from_slice(&header.encode(salt)));
            pieces.push(body.clone());
            pieces.push(Bytes::from_static(&ZEROS[..padding]));
            bytes += header.stride();
        }
        let (last, term) = self.last();
        let mut head = [0; SLICE_HEADER_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[12..16].copy_from_slice(&version.to_le_bytes());
        head[16..32].copy_from_slice(&self.log.0.to_le_bytes());
        let words = [
            self.base.raft.0,
            self.base.term.0,
            self.base.next.0,
            last.0,
            term.0,
            self.next_record().0,
            bytes as u64,
        ];
        for (to, word) in head[32..88].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let flags = if self.opening.is_some() { HAS_OPENING } else { 0 };
        head[88..USED].copy_from_slice(&flags.to_le_bytes());
        let crc = crc32c(&head[12..]);
        head[8..12].copy_from_slice(&crc.to_le_bytes());
        pieces[0] = Bytes::copy_from_slice(&head);
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The reverse of [`Self::encode`]. Every byte is checked.
    pub(crate) fn parse(bytes: &Bytes, salt: SegmentId) -> Result<Self, SliceFault> {
        let wrong = |at: usize, why| SliceFault::Malformed(at, why);
        let head: &[u8; SLICE_HEADER_BYTES] = bytes.first_chunk().ok_or(wrong(0, "slice is cut off"))?;
        if head[..8] != MAGIC {
            return Err(wrong(0, "no slice begins here"));
        }
        if crc32c(&head[12..]) != u32_at(head, 8) {
            return Err(wrong(8, "slice header checksum does not match"));
        }
        let version = u32_at(head, 12);
        if version == 0 || version > FORMAT_VERSION {
            return Err(SliceFault::Newer(version));
        }
        let mut log = [0; 16];
        log.copy_from_slice(&head[16..32]);
        let word = |n: usize| u64_at(head, 32 + 8 * n);
        let base = Base { raft: EntryIndex(word(0)), term: Term(word(1)), next: Index(word(2)) };
        let flags = u32_at(head, 88);
        if flags > HAS_OPENING || head[USED..] != [0; SLICE_HEADER_BYTES - USED] {
            return Err(wrong(88, "slice has flags of a newer format"));
        }
        if word(6) != bytes.len() as u64 {
            return Err(wrong(80, "slice has another length than its header says"));
        }
        if base.raft.0 > POSITION_MAX || base.next.0 > POSITION_MAX {
            return Err(wrong(32, "a position beyond any log"));
        }
        let mut slice =
            Self { log: LogId(u128::from_le_bytes(log)), base, opening: None, entries: Vec::new() };
        let mut at = SLICE_HEADER_BYTES;
        while at < bytes.len() {
            let (header, body) = block_at(bytes, at, salt).map_err(|why| wrong(at, why))?;
            if at == SLICE_HEADER_BYTES && flags == HAS_OPENING {
                let here = (header.raft_index, header.term, header.first);
                if header.kind != Kind::Opening || here != (base.raft, base.term, base.next) {
                    return Err(wrong(at, "slice does not begin with its opening"));
                }
                slice.opening = Some((header, body));
            } else {
                let (before, term) = slice.last();
                let follows = header.kind.is_entry()
                    && header.raft_index == before.next()
                    && header.term >= term
                    && header.first >= slice.next_record();
                if !follows || header.first.0 > POSITION_MAX {
                    return Err(wrong(at, "entries do not follow each other"));
                }
                slice.entries.push((header, body));
            }
            at += header.stride();
        }
        let (last, term) = slice.last();
        let first = slice.entries.first().map(|(header, _)| header.first);
        if first != Some(base.next) || (last.0, term.0, slice.next_record().0) != (word(3), word(4), word(5))
        {
            return Err(wrong(32, "slice has other entries than its header says"));
        }
        Ok(slice)
    }
}

/// The block at an offset, with every byte and its padding checked.
fn block_at(bytes: &Bytes, at: usize, salt: SegmentId) -> Result<Block, Malformed> {
    let header = BlockHeader::parse(&bytes[at..], salt)?;
    let (end, next) = (at + header.length as usize, at + header.stride());
    if next > bytes.len() {
        return Err("block is cut off");
    }
    if header.durable_upto != 0 || bytes[end..next].iter().any(|byte| *byte != 0) {
        return Err("block is not as a slice has it");
    }
    check_body(&header, &bytes[at..end], true)?;
    Ok((header, bytes.slice(at + BLOCK_HEADER_BYTES..end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::BatchBuilder;
    use crate::store::format::block::digest_of_batches;
    use crate::store::format::segment::Opening;
    use crate::types::Timestamp;

    const SALT: SegmentId = SegmentId(77);

    fn header(raft: u64, kind: Kind, first: u64, body: &[u8]) -> BlockHeader {
        BlockHeader::without_records(kind, (EntryIndex(raft), Term(2)), Index(first), Timestamp(5), body)
    }

    fn slice(has_opening: bool) -> Slice {
        let batch = BatchBuilder::new().push(b"one").unwrap().build().unwrap();
        let body = batch.as_bytes().clone();
        let data = BlockHeader {
            batch_count: 1,
            record_count: 1,
            body_digest: digest_of_batches([batch.header().crc]),
            ..header(5, Kind::Data, 9, &body)
        };
        let opening = Opening { base_raft: EntryIndex(4), base_term: Term(2), ..Opening::default() };
        let opening = Bytes::from(opening.encode());
        let opening = has_opening.then(|| (header(4, Kind::Opening, 9, &opening), opening));
        let base = Base { raft: EntryIndex(4), term: Term(2), next: Index(9) };
        let entries = vec![(data, body), (header(6, Kind::NoOp, 10, b""), Bytes::new())];
        Slice { log: LogId(3), base, opening, entries }
    }

    #[test]
    fn encoded_slice_parses_to_the_same() {
        for has_opening in [false, true] {
            let slice = slice(has_opening);
            let bytes = Bytes::from(slice.encode(SALT).concat());
            assert_eq!(Slice::parse(&bytes, SALT), Ok(slice.clone()));
            assert_eq!((slice.last(), slice.next_record()), ((EntryIndex(6), Term(2)), Index(10)));
            Slice::parse(&bytes, SegmentId(78)).unwrap_err();
        }
    }

    /// The bytes are part of the format: those of an earlier build must be the same.
    #[test]
    fn bytes_never_change() {
        let sums = [false, true].map(|has_opening| crc32c(&slice(has_opening).encode(SALT).concat()));
        assert_eq!(sums, [1_614_089_154, 1_145_503_556]);
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        for has_opening in [false, true] {
            let bytes = slice(has_opening).encode(SALT).concat();
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                Slice::parse(&bad.into(), SALT).expect_err(&format!("bit {bit}"));
            }
            for length in 0..bytes.len() {
                Slice::parse(&bytes[..length].to_vec().into(), SALT).unwrap_err();
            }
            let mut longer = bytes.clone();
            longer.extend_from_slice(&[0; 64]);
            Slice::parse(&longer.into(), SALT).unwrap_err();
        }
    }
}
