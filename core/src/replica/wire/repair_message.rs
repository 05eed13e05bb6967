//! Repair messages: how a replica requests entries that it has lost to damage, and the answers. Bytes only.
//!
//! A request, little-endian; every byte counts:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | first requested entry |
//! | 8 | 8 | last requested entry |
//! | 16 | 8 | anchor: an entry at or after the last requested one that the requester has, or knows it had |
//! | 24 | 8 | anchor's term |
//! | 32 | 4 | the maximum bytes of bodies; the answer always has one entry |
//! | 36 | 4 | 0 |
//!
//! The anchor identifies the log of the requested entries. By log matching, two logs that have an entry of the same
//! index and term are equal up to it. So a replica that has the anchor can send the entries before it, committed or
//! not. Any other replica sends those that it knows to be committed. If it knows none of them to be committed, it sends
//! its last committed entry, which is before the first requested one. If that entry's term is later than the anchor's,
//! other entries replaced the anchor.
//!
//! An answer: a count (4 bytes), 0 (4 bytes), and that number of block headers as in the files, with checksums under
//! the salt 0 and `durable upto` 0. The bodies are sent beside it, one after the other.
//!
//! If the first requested entry was discarded, the answer is the last discarded entry (8 bytes). If it is damaged as
//! well, the answer is that entry (8 bytes).
//!
//! Invariant: input from a peer is checked here, including the checksums of bodies. No input panics.
//!
//! Must not know: who asks whom, files.

use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::replica::wire::raft_message::{HeadKind, Pieces, head};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::store::recovery::gap::BlockCopy;
use crate::types::{EntryIndex, SegmentId, Term};
use bytes::Bytes;

const FETCH_BYTES: usize = 40;
const COUNT_BYTES: usize = 8;
/// The maximum number of entries in an answer.
pub(crate) const BLOCKS_MAX: usize = 4096;
/// The salt of headers that are sent.
const NO_SEGMENT: SegmentId = SegmentId(0);

/// A request for entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) first: EntryIndex,
    pub(crate) last: EntryIndex,
    pub(crate) anchor: (EntryIndex, Term),
    pub(crate) bytes_max: u32,
}

impl Fetch {
    /// Encodes a request for entries of the anchor's log.
    pub(crate) fn encode(&self) -> Bytes {
        self.encode_as(HeadKind::Fetch)
    }

    /// Encodes a request for committed entries only.
    pub(crate) fn encode_committed(&self) -> Bytes {
        self.encode_as(HeadKind::FetchCommitted)
    }

    fn encode_as(&self, kind: HeadKind) -> Bytes {
        let mut b = [0; FETCH_BYTES];
        b[0..8].copy_from_slice(&self.first.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.last.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.anchor.0.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.anchor.1.0.to_le_bytes());
        b[32..36].copy_from_slice(&self.bytes_max.to_le_bytes());
        head(kind, &b)
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let b: &[u8; FETCH_BYTES] = body.try_into().map_err(|_| "request has an unexpected length")?;
        let fetch = Self {
            first: EntryIndex(u64_at(b, 0)),
            last: EntryIndex(u64_at(b, 8)),
            anchor: (EntryIndex(u64_at(b, 16)), Term(u64_at(b, 24))),
            bytes_max: u32_at(b, 32),
        };
        if fetch.first.0 == 0 || fetch.first > fetch.last || fetch.last > fetch.anchor.0 || b[36..] != [0; 4]
        {
            return Err("request contradicts itself");
        }
        Ok(fetch)
    }
}

/// The head of an answer, of kind `Blocks` or `Committed`. The entries' bodies are sent beside it.
pub(crate) fn encode_blocks<'a>(
    kind: HeadKind,
    headers: impl ExactSizeIterator<Item = &'a BlockHeader>,
) -> Bytes {
    let mut b = Vec::with_capacity(COUNT_BYTES + headers.len() * BLOCK_HEADER_BYTES);
    b.extend_from_slice(&(headers.len() as u32).to_le_bytes());
    b.extend_from_slice(&[0; 4]);
    for header in headers {
        b.extend_from_slice(&BlockHeader { durable_upto: 0, ..*header }.encode(NO_SEGMENT));
    }
    head(kind, &b)
}

/// Encodes the answer that all entries up to `base` were discarded.
pub(crate) fn encode_gone(base: EntryIndex) -> Bytes {
    head(HeadKind::Gone, &base.0.to_le_bytes())
}

/// Encodes the answer that `entry` is damaged here as well.
pub(crate) fn encode_damaged(entry: EntryIndex) -> Bytes {
    head(HeadKind::DamagedEntry, &entry.0.to_le_bytes())
}

/// Decodes the entry that is damaged at another replica as well.
pub(crate) fn parse_damaged(body: &[u8]) -> Result<EntryIndex, Malformed> {
    let body: &[u8; 8] = body.try_into().map_err(|_| "answer about damage has an unexpected length")?;
    Ok(EntryIndex(u64::from_le_bytes(*body)))
}

/// Decodes the last entry that another replica has discarded.
pub(crate) fn parse_gone(body: &[u8]) -> Result<EntryIndex, Malformed> {
    let body: &[u8; 8] = body.try_into().map_err(|_| "answer about a discard has an unexpected length")?;
    Ok(EntryIndex(u64::from_le_bytes(*body)))
}

/// Decodes an answer and the bodies beside it. The entries are consecutive, and every byte was checked.
pub(crate) fn parse_blocks(body: &[u8], bodies: Vec<Bytes>) -> Result<Vec<BlockCopy>, Malformed> {
    let (counts, headers) = body.split_at_checked(COUNT_BYTES).ok_or("answer is cut off")?;
    let count = u32_at(counts, 0) as usize;
    if count > BLOCKS_MAX || counts[4..] != [0; 4] || headers.len() != count * BLOCK_HEADER_BYTES {
        return Err("answer's length does not match its count");
    }
    let mut bodies = Pieces::new(bodies);
    let mut spares: Vec<BlockCopy> = Vec::with_capacity(count);
    for bytes in headers.chunks_exact(BLOCK_HEADER_BYTES) {
        let header = BlockHeader::parse(bytes, NO_SEGMENT)?;
        let follows = spares.last().is_none_or(|(before, _)| {
            header.raft_index == before.raft_index.next()
                && header.term >= before.term
                && header.first >= before.next_record()
        });
        if !header.kind.is_entry() || !follows || header.durable_upto != 0 {
            return Err("entries of an answer are not consecutive");
        }
        let body = bodies.take(&header)?;
        spares.push((header, body));
    }
    if bodies.is_empty() { Ok(spares) } else { Err("answer has more bodies than entries") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::wire::raft_message::parse_head;
    use crate::store::format::block::Kind;
    use crate::types::{Index, Timestamp};

    fn fetch() -> Fetch {
        Fetch {
            first: EntryIndex(3),
            last: EntryIndex(9),
            anchor: (EntryIndex(10), Term(2)),
            bytes_max: 1 << 20,
        }
    }

    fn spare(raft: u64, body: &'static [u8]) -> BlockCopy {
        let kind = if body.is_empty() { Kind::NoOp } else { Kind::Command };
        let header =
            BlockHeader::without_records(kind, (EntryIndex(raft), Term(2)), Index(7), Timestamp(5), body);
        (header, if body.is_empty() { Vec::new() } else { vec![Bytes::from_static(body)] })
    }

    fn answer(spares: &[BlockCopy]) -> (Bytes, Vec<Bytes>) {
        let head = encode_blocks(HeadKind::Blocks, spares.iter().map(|(h, _)| h));
        (head, spares.iter().flat_map(|(_, b)| b.clone()).collect())
    }

    #[test]
    fn requests_round_trip_and_contradictions_are_refused() {
        let (kind, body) = parse_head(&fetch().encode()).unwrap();
        assert_eq!((kind, Fetch::parse(&body)), (HeadKind::Fetch, Ok(fetch())));
        for cut in 0..body.len() {
            assert!(Fetch::parse(&body[..cut]).is_err());
        }
        for wrong in [
            Fetch { first: EntryIndex(0), ..fetch() },
            Fetch { first: EntryIndex(10), ..fetch() },
            Fetch { anchor: (EntryIndex(8), Term(2)), ..fetch() },
        ] {
            let (_, body) = parse_head(&wrong.encode()).unwrap();
            assert!(Fetch::parse(&body).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn answers_round_trip_and_every_flipped_bit_is_noticed() {
        let spares = [spare(3, b"0123456789abcdef"), spare(4, b""), spare(5, b"fedcba9876543210")];
        let (head, bodies) = answer(&spares);
        let (kind, body) = parse_head(&head).unwrap();
        assert_eq!((kind, parse_blocks(&body, bodies.clone())), (HeadKind::Blocks, Ok(spares.to_vec())));
        for bit in 0..body.len() * 8 {
            let mut bad = body.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_blocks(&bad, bodies.clone()).is_err(), "head bit {bit}");
        }
        for (n, piece) in bodies.iter().enumerate() {
            for bit in 0..piece.len() * 8 {
                let mut bad = piece.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                let mut bad_bodies = bodies.clone();
                bad_bodies[n] = bad.into();
                assert!(parse_blocks(&body, bad_bodies).is_err(), "body {n} bit {bit}");
            }
        }
        for cut in 0..body.len() {
            assert!(parse_blocks(&body[..cut], bodies.clone()).is_err());
        }
        assert!(parse_blocks(&body, bodies[..1].to_vec()).is_err());
        assert!(parse_blocks(&body, [bodies, vec![Bytes::from_static(b"x")]].concat()).is_err());
    }

    #[test]
    fn discard_answers_round_trip() {
        let (kind, body) = parse_head(&encode_gone(EntryIndex(7))).unwrap();
        assert_eq!((kind, parse_gone(&body)), (HeadKind::Gone, Ok(EntryIndex(7))));
        assert!(parse_gone(&body[1..]).is_err());
        let (kind, body) = parse_head(&encode_damaged(EntryIndex(8))).unwrap();
        assert_eq!((kind, parse_damaged(&body)), (HeadKind::DamagedEntry, Ok(EntryIndex(8))));
        assert!(parse_damaged(&body[1..]).is_err());
    }

    #[test]
    fn nonconsecutive_entries_are_refused() {
        for spares in [[spare(3, b""), spare(5, b"")], [spare(4, b""), spare(4, b"")]] {
            let (head, bodies) = answer(&spares);
            let (_, body) = parse_head(&head).unwrap();
            assert!(parse_blocks(&body, bodies).is_err());
        }
    }
}
