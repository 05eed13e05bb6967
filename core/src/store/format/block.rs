//! Block: the unit of writing and, with replication, of ordering (one raft entry). Codec of its header. Bytes only.
//!
//! ```text
//! 0       4       8        12            16           24          32             40
//! | magic | crc32c | length | batch count | raft index | raft term | first record | timestamp ms …
//! 48             52             56            60     61      64
//! | record count | durable upto | body digest | kind | flags | body … padding to 64
//! ```
//!
//! The header's checksum covers the segment's id and the header from `length` on. `body digest` covers the body: for a
//! data block the checksums of its batches (so payload bytes are not summed twice), for a mixed block its table (see
//! `mixed`), for every other kind the body's bytes.
//!
//! Must not know: files, threads, the meaning of commands.

use super::digest::Digest;
use super::mixed::{Run, Table, Totals};
use crate::record::batch::{BatchHeader, Malformed, u32_at, u64_at};
use crate::record::crc::{Crc, crc32c};
use crate::types::{EntryIndex, Index, SegmentId, Term, Timestamp};

/// Bytes of a block's header; blocks start at multiples of it.
pub(crate) const BLOCK_HEADER_BYTES: usize = 64;
/// "CLB1"
const MAGIC: u32 = u32::from_le_bytes(*b"CLB1");

const _: () = assert!(BLOCK_HEADER_BYTES.is_power_of_two());

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Batches of records.
    Data = 1,
    /// A raft entry without meaning to the log, such as a new leader's first entry.
    NoOp = 2,
    /// A change of membership. Replication writes it; this module does not interpret it.
    Configuration = 3,
    /// A command to the log itself: discard, open or close a session, set options.
    Command = 4,
    /// Term, vote and commit index. Not a raft entry: it repeats the previous raft index.
    HardState = 5,
    /// Contains only its `durable_upto`, which proves the bytes before it. Its body is zeros or empty. Not a raft
    /// entry.
    Marker = 6,
    /// The first block of every segment: all state needed to open the log from this segment on. Not a raft entry.
    Opening = 7,
    /// Batches of records of several logs, behind a table of runs: see `mixed`. Its `first` is the group's ordinal.
    Mixed = 8,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Data,
        Self::NoOp,
        Self::Configuration,
        Self::Command,
        Self::HardState,
        Self::Marker,
        Self::Opening,
        Self::Mixed,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u8 == code)
    }

    /// Whether the block has a raft index of its own.
    pub(crate) fn is_entry(self) -> bool {
        matches!(self, Self::Data | Self::NoOp | Self::Configuration | Self::Command | Self::Mixed)
    }

    /// Whether the block contains records.
    pub(crate) fn has_records(self) -> bool {
        matches!(self, Self::Data | Self::Mixed)
    }

    /// The kind's name in `dump` and in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::NoOp => "no-op",
            Self::Configuration => "configuration",
            Self::Command => "command",
            Self::HardState => "hard-state",
            Self::Marker => "marker",
            Self::Opening => "opening",
            Self::Mixed => "mixed",
        }
    }
}

/// The parsed header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    /// The length of header and body, without the padding after them.
    pub(crate) length: u32,
    pub(crate) batch_count: u32,
    /// Its own raft index if `kind.is_entry()`, otherwise that of the previous entry.
    pub(crate) raft_index: EntryIndex,
    pub(crate) term: Term,
    /// The index of its first record; without records, the index of the next record in the log.
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
    pub(crate) record_count: u32,
    /// All bytes of this segment file below this offset were durable when this block was written.
    pub(crate) durable_upto: u32,
    pub(crate) body_digest: u32,
    pub(crate) kind: Kind,
}

impl BlockHeader {
    /// The header of a block of this kind without records, with this body, for an entry or beside one.
    pub(crate) fn without_records(
        kind: Kind,
        (raft_index, term): (EntryIndex, Term),
        first: Index,
        timestamp: Timestamp,
        body: &[u8],
    ) -> Self {
        Self {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: 0,
            raft_index,
            term,
            first,
            timestamp,
            record_count: 0,
            durable_upto: 0,
            body_digest: crc32c(body),
            kind,
        }
    }

    /// Reads and checks the header at the start of `bytes` with the salt `segment`. Does not check the body.
    pub(crate) fn parse(bytes: &[u8], segment: SegmentId) -> Result<Self, Malformed> {
        let head: &[u8; BLOCK_HEADER_BYTES] = bytes.first_chunk().ok_or("block header is cut off")?;
        if u32_at(head, 0) != MAGIC {
            return Err("no block begins here");
        }
        if checksum(head, segment) != u32_at(head, 4) {
            return Err("block header checksum does not match");
        }
        let kind = Kind::from_code(head[60]).ok_or("block has an unknown kind")?;
        if head[61..64] != [0; 3] {
            return Err("block has flags of a newer format");
        }
        let header = Self {
            length: u32_at(head, 8),
            batch_count: u32_at(head, 12),
            raft_index: EntryIndex(u64_at(head, 16)),
            term: Term(u64_at(head, 24)),
            first: Index(u64_at(head, 32)),
            timestamp: Timestamp(u64_at(head, 40)),
            record_count: u32_at(head, 48),
            durable_upto: u32_at(head, 52),
            body_digest: u32_at(head, 56),
            kind,
        };
        if (header.length as usize) < BLOCK_HEADER_BYTES {
            return Err("block length is out of bounds");
        }
        let counts = (header.batch_count > 0, header.record_count > 0);
        if counts != (kind.has_records(), kind.has_records()) || header.record_count < header.batch_count {
            return Err("block's batch and record counts contradict its kind");
        }
        Ok(header)
    }

    /// The header's bytes, with a checksum that uses the salt `segment`.
    pub(crate) fn encode(&self, segment: SegmentId) -> [u8; BLOCK_HEADER_BYTES] {
        let mut head = [0; BLOCK_HEADER_BYTES];
        head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..12].copy_from_slice(&self.length.to_le_bytes());
        head[12..16].copy_from_slice(&self.batch_count.to_le_bytes());
        head[16..24].copy_from_slice(&self.raft_index.0.to_le_bytes());
        head[24..32].copy_from_slice(&self.term.0.to_le_bytes());
        head[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        head[40..48].copy_from_slice(&self.timestamp.0.to_le_bytes());
        head[48..52].copy_from_slice(&self.record_count.to_le_bytes());
        head[52..56].copy_from_slice(&self.durable_upto.to_le_bytes());
        head[56..60].copy_from_slice(&self.body_digest.to_le_bytes());
        head[60] = self.kind as u8;
        let crc = checksum(&head, segment);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// The bytes that it takes in the file, including padding.
    pub(crate) fn stride(&self) -> usize {
        padded(self.length as usize)
    }

    /// The index of the record after this block; a command can move it further.
    pub(crate) fn next_record(&self) -> Index {
        self.first.plus(u64::from(self.record_count))
    }
}

/// `length` rounded up to the next possible start of a block.
pub(crate) const fn padded(length: usize) -> usize {
    length.next_multiple_of(BLOCK_HEADER_BYTES)
}

fn checksum(head: &[u8; BLOCK_HEADER_BYTES], segment: SegmentId) -> u32 {
    Crc::new().add(&segment.0.to_le_bytes()).add(&head[8..]).sum()
}

/// The digest of a data block's body: over its batches' checksums, in order.
pub(crate) fn digest_of_batches(crcs: impl IntoIterator<Item = u32>) -> u32 {
    let mut digest = Digest::new();
    for crc in crcs {
        digest.add(crc);
    }
    digest.sum()
}

/// Checks a whole block's body against its header. With `deep`, also checks the batches' own checksums, so that all
/// bytes of the block are known to be right. `block` is header and body.
pub(crate) fn check_body(header: &BlockHeader, block: &[u8], deep: bool) -> Result<(), Malformed> {
    let body = block.get(BLOCK_HEADER_BYTES..header.length as usize).ok_or("block is cut off")?;
    check_pieces(header, std::iter::once(body), deep)
}

/// Like a shallow [`check_body`]; also passes each batch to `show`, in order: its offset in the block, the number of
/// records before it in the block, and its header. These are valid only once this has returned `Ok`.
pub(crate) fn check_list(
    header: &BlockHeader,
    block: &[u8],
    show: impl FnMut(usize, u64, &BatchHeader),
) -> Result<(), Malformed> {
    let body = block.get(BLOCK_HEADER_BYTES..header.length as usize).ok_or("block is cut off")?;
    check_showing(header, std::iter::once(body), false, show)
}

/// Like [`check_body`], for a body in pieces that each contain whole batches. The caller checks their length.
pub(crate) fn check_pieces<'a>(
    header: &BlockHeader,
    pieces: impl Iterator<Item = &'a [u8]>,
    deep: bool,
) -> Result<(), Malformed> {
    check_showing(header, pieces, deep, |_, _, _| {})
}

fn check_showing<'a>(
    header: &BlockHeader,
    pieces: impl Iterator<Item = &'a [u8]>,
    deep: bool,
    mut show: impl FnMut(usize, u64, &BatchHeader),
) -> Result<(), Malformed> {
    if header.kind == Kind::Mixed {
        return check_mixed(header, pieces, deep, show);
    }
    if header.kind != Kind::Data {
        return if pieces.fold(Crc::new(), Crc::add).sum() == header.body_digest {
            Ok(())
        } else {
            Err("block body checksum does not match")
        };
    }
    let (mut digest, mut batches, mut records) = (Digest::new(), 0u32, 0u64);
    let mut at = BLOCK_HEADER_BYTES;
    for batch in pieces.flat_map(Batches::new) {
        let (batch, bytes) = batch?;
        if deep && crc32c(&bytes[4..]) != batch.crc {
            return Err("batch checksum does not match");
        }
        show(at, records, &batch);
        digest.add(batch.crc);
        at += bytes.len();
        batches += 1;
        records += u64::from(batch.count);
    }
    if digest.sum() != header.body_digest {
        return Err("block's batches do not match its digest");
    }
    if batches != header.batch_count || records != u64::from(header.record_count) {
        return Err("block's counts contradict its batches");
    }
    Ok(())
}

/// As [`check_showing`], for a mixed block. Its table has to be whole in the first piece.
fn check_mixed<'a>(
    header: &BlockHeader,
    mut pieces: impl Iterator<Item = &'a [u8]>,
    deep: bool,
    mut show: impl FnMut(usize, u64, &BatchHeader),
) -> Result<(), Malformed> {
    let head = pieces.next().unwrap_or_default();
    let table = table_of(header, head)?;
    let mut at = BLOCK_HEADER_BYTES + table.len();
    let mut batches = std::iter::once(&head[table.len()..]).chain(pieces).flat_map(Batches::new);
    let mut before = 0;
    for (run, _) in table.runs() {
        check_batches_of_run(&run, &mut batches, deep, |batch, all| {
            show(at, before, batch);
            at += all.len();
            before += u64::from(batch.count);
        })?;
    }
    if batches.next().is_some() { Err("mixed block has more batches than its table") } else { Ok(()) }
}

/// Checks the batches of a run against its entry in the table, but not their payloads.
pub(crate) fn check_run(run: &Run, batches: &[u8]) -> Result<(), Malformed> {
    check_batches_of_run(run, &mut Batches::new(batches), false, |_, _| {})?;
    if batches.len() == run.bytes as usize { Ok(()) } else { Err("run has another length than its batches") }
}

/// Takes the batches of a run from `batches` and checks them. Passes each to `show`, with its bytes.
fn check_batches_of_run<'a>(
    run: &Run,
    batches: &mut impl Iterator<Item = Result<(BatchHeader, &'a [u8]), Malformed>>,
    deep: bool,
    mut show: impl FnMut(&BatchHeader, &'a [u8]),
) -> Result<(), Malformed> {
    let (mut digest, mut records, mut bytes) = (Digest::new(), 0u64, 0u64);
    for _ in 0..run.batches {
        let (batch, all) = batches.next().ok_or("mixed block has fewer batches than its table")??;
        if deep && crc32c(&all[4..]) != batch.crc {
            return Err("batch checksum does not match");
        }
        show(&batch, all);
        digest.add(batch.crc);
        records += u64::from(batch.count);
        bytes += u64::from(batch.length);
    }
    if digest.sum() != run.digest {
        return Err("batches of a run do not match its digest");
    }
    if (records, bytes) != (u64::from(run.records), u64::from(run.bytes)) {
        return Err("counts of a run contradict its batches");
    }
    Ok(())
}

/// Reads and checks the table of a mixed block. `body` can end behind the table.
pub(crate) fn table_of<'a>(header: &BlockHeader, body: &'a [u8]) -> Result<Table<'a>, Malformed> {
    let totals = Totals {
        batches: header.batch_count,
        records: header.record_count,
        body_bytes: header.length as usize - BLOCK_HEADER_BYTES,
        digest: header.body_digest,
    };
    Table::parse(&totals, body)
}

/// The batches of a block with records, behind its table if it has one. The body was checked.
pub(crate) fn batches_of<'a>(header: &BlockHeader, body: &'a [u8]) -> Batches<'a> {
    let skipped = match header.kind {
        Kind::Mixed => table_of(header, body).map_or(body.len(), |table| table.len()),
        _ => 0,
    };
    Batches::new(&body[skipped..])
}

/// Iterates over the batches of a data block's body by their headers; ends after the first error.
pub(crate) struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Bytes of the batches that are left.
    pub(crate) fn bytes(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<(BatchHeader, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match BatchHeader::parse(self.rest) {
            Ok(header) => {
                let (batch, rest) = self.rest.split_at(header.length as usize);
                self.rest = rest;
                Some(Ok((header, batch)))
            }
            Err(e) => {
                self.rest = &[];
                Some(Err(e))
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn sample_header() -> BlockHeader {
    BlockHeader {
        length: 100,
        batch_count: 1,
        raft_index: EntryIndex(12),
        term: Term(3),
        first: Index(1000),
        timestamp: Timestamp(1_700_000_000_123),
        record_count: 5,
        durable_upto: 4096,
        body_digest: 0xdead_beef,
        kind: Kind::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_survives_encoding() {
        let h = sample_header();
        assert_eq!(BlockHeader::parse(&h.encode(SegmentId(5)), SegmentId(5)), Ok(h));
        assert_eq!(h.stride(), 128);
    }

    #[test]
    fn every_bit_flip_and_a_foreign_segment_are_detected() {
        let good = sample_header().encode(SegmentId(5));
        assert!(BlockHeader::parse(&good, SegmentId(6)).is_err());
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(BlockHeader::parse(&bad, SegmentId(5)).is_err(), "bit {bit}");
        }
    }

    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/block-mixed.bin");

    /// Made by a program that shares no code with this crate: two batches of log 3, one of log 7, one more of log 3.
    #[test]
    fn golden_mixed_block_has_these_fields() {
        let body = &GOLDEN[BLOCK_HEADER_BYTES..];
        let header = BlockHeader::parse(GOLDEN, SegmentId(5)).unwrap();
        assert_eq!((header.raft_index, header.term, header.first), (EntryIndex(13), Term(3), Index(1000)));
        assert_eq!((header.batch_count, header.record_count), (4, 26));
        assert_eq!((header.timestamp, header.durable_upto), (Timestamp(1_700_000_000_123), 4096));
        check_body(&header, GOLDEN, true).unwrap();
        let table = table_of(&header, body).unwrap();
        let fields = |(run, range): (Run, std::ops::Range<usize>)| {
            assert_eq!(range.len(), run.bytes as usize);
            (run.log.0, run.batches, run.first.0, run.records, run.bytes, range.start)
        };
        let runs: Vec<_> = table.runs().map(fields).collect();
        assert_eq!(runs, [(3, 2, 10, 2, 154, 104), (7, 1, 1, 23, 745, 258), (3, 1, 12, 1, 77, 1003)]);
        let same: Vec<Run> = table.runs().map(|(run, _)| run).collect();
        assert_eq!(crate::store::format::mixed::encode(&same), body[..table.len()]);
    }

    #[test]
    fn every_changed_bit_of_a_mixed_block_is_detected() {
        let header = BlockHeader::parse(GOLDEN, SegmentId(5)).unwrap();
        for bit in 0..(GOLDEN.len() - BLOCK_HEADER_BYTES) * 8 {
            let mut bad = GOLDEN.to_vec();
            bad[BLOCK_HEADER_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert!(check_body(&header, &bad, true).is_err(), "bit {bit}");
        }
    }
}
