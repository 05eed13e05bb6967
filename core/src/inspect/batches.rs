//! The readable parts of a data block in which some batches are damaged.
//!
//! Must not know: files, segments, the block's position.
//!
//! Invariant: a batch is called sound only if its own checksum holds *and* it is certain which records of the block
//! it holds. Which records these are follows
//!
//! - from the batches' headers, if they agree with the block's header: with its digest over their checksums and with
//!   its counts;
//! - else, forward from the block's start, as far as there is one sound batch after another;
//! - and backward from the block's end, where a run of sound batches has to end, if the block's digest does not
//!   contradict it. The file can hold the bytes of an earlier life: a write that the disk lost left them there.
//!
//! ```text
//! | block header | sound | sound | damaged ......... | sound | sound |
//!                 -> by the chain                     <- by the end and the block's record count
//! ```

use crate::record::batch;
use crate::record::batch::{Batch, BatchHeader, Body, Malformed};
use crate::record::compression::Codec;
use crate::record::crc::crc32c;
use crate::record::reference::Reference;
use crate::store::format::block::{
    BLOCK_HEADER_BYTES, BlockHeader, batches_of, check_body, digest_of_batches,
};
use crate::types::Index;
use bytes::Bytes;

/// A piece of a damaged data block's body: one batch, or a run of bytes in which no batch is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The offset of the piece in the body.
    pub(super) at: usize,
    pub(super) bytes: usize,
    /// Its first record.
    pub(super) first: Index,
    /// How many records it holds, as far as that is known.
    pub(super) records: u64,
    /// Why it cannot be read; `None` for a sound batch.
    pub(super) fault: Option<Malformed>,
}

impl Piece {
    /// Its first and last record.
    pub(super) fn range(&self) -> Option<(Index, Index)> {
        (self.records > 0).then(|| (self.first, self.first.plus(self.records - 1)))
    }
}

/// The batches of a sound data block that do not unpack, or whose table of record ends is wrong, each with the
/// reason.
pub(super) fn undecodable(header: &BlockHeader, body: &[u8]) -> Vec<Piece> {
    placed(header, body).filter_map(|(head, piece)| without_records(&head, piece, body)).collect()
}

/// The same for a damaged block, of which `pieces` are known.
pub(super) fn undecodable_of(pieces: &[Piece], body: &[u8]) -> Vec<Piece> {
    let sound = pieces.iter().filter(|p| p.fault.is_none());
    sound
        .filter_map(|piece| without_records(&BatchHeader::parse(&body[piece.at..]).ok()?, *piece, body))
        .collect()
}

/// Returns the piece with the reason if no reader can get its records.
fn without_records(head: &BatchHeader, piece: Piece, body: &[u8]) -> Option<Piece> {
    let check = || {
        if head.codec == Codec::Reference {
            return Reference::parse(head, &body[piece.at..piece.at + piece.bytes]).map(drop);
        }
        let unpacked = batch::body(&body[piece.at..piece.at + piece.bytes], head)?;
        Body::new(&unpacked, head.count)?.check(head.count)
    };
    check().err().map(|why| Piece { fault: Some(why), ..piece })
}

/// The pieces of the body of a damaged `block` (header and body), in order and without a gap. Empty if no part of it
/// is certainly sound.
pub(super) fn pieces(header: &BlockHeader, block: &[u8]) -> Vec<Piece> {
    let Some(body) = block.get(BLOCK_HEADER_BYTES..header.length as usize) else { return Vec::new() };
    if check_body(header, block, false).is_ok() {
        return listed(header, body);
    }
    let (mut pieces, at, first) = leading(header, body);
    let Some(end) = header.next_record().0.checked_sub(first.0) else { return Vec::new() };
    let lost = Lost {
        at,
        batches: (header.batch_count as usize).saturating_sub(pieces.len()),
        records: end,
        why: batch::verify(&body[at..]).err(),
    };
    // All batches are sound, but they are not those that the block was written with: nothing shows which records they
    // hold.
    let Some(why) = lost.why else { return Vec::new() };
    if lost.batches == 0 || lost.records == 0 {
        return Vec::new();
    }
    let trailing = trailing(header, body, &pieces, &lost);
    let to = trailing.first().map_or(body.len(), |p| p.at);
    let records = lost.records - trailing.iter().map(|p| p.records).sum::<u64>();
    pieces.push(Piece { at, bytes: to - at, first, records, fault: Some(why) });
    pieces.extend(trailing);
    if pieces.iter().all(|p| p.fault.is_some()) { Vec::new() } else { pieces }
}

/// The sound pieces, as batches.
pub(super) fn sound(pieces: &[Piece], body: &[u8]) -> Vec<(Index, Batch)> {
    let batch = |p: &Piece| Batch::stored(Bytes::copy_from_slice(body.get(p.at..p.at + p.bytes)?)).ok();
    pieces.iter().filter(|p| p.fault.is_none()).filter_map(|p| Some((p.first, batch(p)?))).collect()
}

/// Every batch is where the block's header says: each is sound or not by itself.
fn listed(header: &BlockHeader, body: &[u8]) -> Vec<Piece> {
    let checked =
        |(_, p): (BatchHeader, Piece)| Piece { fault: batch::verify(&body[p.at..p.at + p.bytes]).err(), ..p };
    placed(header, body).map(checked).collect()
}

/// The batches of a block at the offsets that follow from their headers, unchecked.
fn placed(header: &BlockHeader, body: &[u8]) -> impl Iterator<Item = (BatchHeader, Piece)> {
    let batches = batches_of(header, body);
    let (mut at, mut first) = (body.len() - batches.bytes(), header.first);
    batches.map_while(Result::ok).map(move |(head, bytes)| {
        let records = u64::from(head.count);
        let piece = Piece { at, bytes: bytes.len(), first, records, fault: None };
        (at, first) = (at + bytes.len(), first.plus(records));
        (head, piece)
    })
}

/// The part of the body that the sound batches at the front do not reach.
struct Lost {
    at: usize,
    /// How many of the block's batches are not at the front.
    batches: usize,
    records: u64,
    /// Why no sound batch begins there.
    why: Option<Malformed>,
}

/// The sound batches from the block's start on, the offset where they end, and the record that would be next.
fn leading(header: &BlockHeader, body: &[u8]) -> (Vec<Piece>, usize, Index) {
    let (mut pieces, mut at, mut first) = (Vec::new(), 0, header.first);
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty())
        && let Ok(head) = batch::verify(rest)
    {
        let (bytes, records) = (head.length as usize, u64::from(head.count));
        pieces.push(Piece { at, bytes, first, records, fault: None });
        (at, first) = (at + bytes, first.plus(records));
    }
    (pieces, at, first)
}

/// The sound batches after the lost part, if they end where the block ends.
fn trailing(header: &BlockHeader, body: &[u8], leading: &[Piece], lost: &Lost) -> Vec<Piece> {
    // The limit of bytes whose checksum is computed without result: a record can be full of bytes that look like
    // batches.
    let mut effort = body.len().saturating_mul(8);
    for from in lost.at + 1..body.len() {
        let Some(run) = run_to_end(&body[from..], &mut effort) else { continue };
        let records: u64 = run.iter().map(|h| u64::from(h.count)).sum();
        let (Some(batches), Some(records)) =
            (lost.batches.checked_sub(run.len()), lost.records.checked_sub(records))
        else {
            return Vec::new();
        };
        if batches == 0
            || records < batches as u64
            || (batches == 1 && !fits(header, body, leading, lost.at, from, &run))
        {
            return Vec::new();
        }
        let (mut at, mut first) = (from, header.next_record().0 - (lost.records - records));
        return run
            .iter()
            .map(|head| {
                let (bytes, records) = (head.length as usize, u64::from(head.count));
                let piece = Piece { at, bytes, first: Index(first), records, fault: None };
                (at, first) = (at + bytes, first + records);
                piece
            })
            .collect();
    }
    Vec::new()
}

/// The headers of sound batches that fill `bytes` to the end.
fn run_to_end(bytes: &[u8], effort: &mut usize) -> Option<Vec<BatchHeader>> {
    let (mut run, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = BatchHeader::parse(&bytes[at..]).ok()?.length as usize;
        *effort = effort.checked_sub(length)?;
        run.push(batch::verify(&bytes[at..]).ok()?);
        at += length;
    }
    Some(run)
}

/// Whether the block's digest allows that the one lost batch is at `at..to`, either with the checksum in its header
/// or with that of its bytes. If its header is not readable, the digest proves nothing.
fn fits(
    header: &BlockHeader,
    body: &[u8],
    leading: &[Piece],
    at: usize,
    to: usize,
    run: &[BatchHeader],
) -> bool {
    let crc_at =
        |at: usize| body.get(at..at + 4).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b));
    if BatchHeader::parse(&body[at..]).is_err() {
        return true;
    }
    let computed = body.get(at + 4..to).map(crc32c);
    [crc_at(at), computed].into_iter().flatten().any(|crc| {
        let before = leading.iter().filter_map(|p| crc_at(p.at));
        digest_of_batches(before.chain([crc]).chain(run.iter().map(|h| h.crc))) == header.body_digest
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::BatchBuilder;
    use crate::store::format::block::sample_header;

    /// A block of batches of 1, 2, 3 … records, and the offset of each in its body.
    fn block(batches: u32) -> (BlockHeader, Vec<u8>, Vec<usize>) {
        let (mut block, mut places, mut crcs) = (vec![0; BLOCK_HEADER_BYTES], Vec::new(), Vec::new());
        for n in 1..=batches {
            let mut builder = BatchBuilder::new();
            (0..n).for_each(|r| _ = builder.push(format!("{n} {r} {}", "x".repeat(50)).as_bytes()).unwrap());
            let batch = builder.build().unwrap();
            places.push(block.len() - BLOCK_HEADER_BYTES);
            crcs.push(batch.header().crc);
            block.extend_from_slice(batch.as_bytes());
        }
        let header = BlockHeader {
            length: block.len() as u32,
            batch_count: batches,
            record_count: batches * (batches + 1) / 2,
            body_digest: digest_of_batches(crcs),
            ..sample_header()
        };
        (header, block, places)
    }

    /// The first record of each piece, its number of records, and whether it is sound.
    fn summary_of(header: &BlockHeader, block: &[u8]) -> Vec<(u64, u64, bool)> {
        let pieces = pieces(header, block);
        pieces.iter().map(|p| (p.first.0 - header.first.0, p.records, p.fault.is_none())).collect()
    }

    /// Whichever byte of one batch is wrong, the others are sound and have their records.
    #[test]
    fn damaged_batch_leaves_the_others_readable() {
        let (header, good, places) = block(4);
        for (from, to) in
            [(places[1], places[2]), (places[0], places[1]), (places[3], good.len() - BLOCK_HEADER_BYTES)]
        {
            for at in from..to {
                for flip in [1, 0x80, 0xff] {
                    let mut bad = good.clone();
                    bad[BLOCK_HEADER_BYTES + at] ^= flip;
                    let expected = [(0, 1), (1, 2), (3, 3), (6, 4)];
                    let bad_one = places.iter().rposition(|p| *p <= at).unwrap();
                    let expected: Vec<_> =
                        expected.iter().enumerate().map(|(n, (a, b))| (*a, *b, n != bad_one)).collect();
                    assert_eq!(summary_of(&header, &bad), expected, "byte {at}, {flip}");
                }
            }
        }
    }

    #[test]
    fn hole_over_several_batches_leaves_both_sides_readable() {
        let (header, good, places) = block(6);
        let mut bad = good.clone();
        bad[BLOCK_HEADER_BYTES + places[2] + 5..BLOCK_HEADER_BYTES + places[4] + 20].fill(0);
        assert_eq!(summary_of(&header, &bad), [(0, 1, true), (1, 2, true), (3, 12, false), (15, 6, true)]);
        let body = &bad[BLOCK_HEADER_BYTES..];
        let sound = sound(&pieces(&header, &bad), body);
        assert_eq!(sound.iter().map(|(_, b)| b.count()).collect::<Vec<_>>(), [1, 2, 6]);
        bad[BLOCK_HEADER_BYTES..].fill(0);
        assert_eq!(summary_of(&header, &bad), []);
    }

    /// After a lost write the file holds an earlier life's bytes: sound batches, but not this block's.
    #[test]
    fn sound_batches_of_an_earlier_life_are_not_returned() {
        let (header, good, places) = block(4);
        let stale = |n: u32| {
            let mut builder = BatchBuilder::new();
            (0..n).for_each(|r| _ = builder.push(format!("{n} {r} {}", "y".repeat(50)).as_bytes()).unwrap());
            builder.build().unwrap()
        };
        let mut bad = good.clone();
        bad[BLOCK_HEADER_BYTES + places[3]..].copy_from_slice(stale(4).as_bytes());
        assert_eq!(summary_of(&header, &bad), [], "all are sound, but their digest is not the block's");
        bad[BLOCK_HEADER_BYTES + places[2] + 60] ^= 1;
        assert_eq!(summary_of(&header, &bad), [(0, 1, true), (1, 2, true), (3, 7, false)]);
    }
}
