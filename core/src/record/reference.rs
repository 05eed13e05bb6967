//! Reference: a batch whose bytes are in an object store, in a payload slice. The log has a batch with the same records, session and
//! sequence number in its place, whose body says where the bytes are. Bytes only.
//!
//! ```text
//! 0         40     48          56        60        64          68           72
//! | header  | term | sequence  | offset  | length  | checksum  | slice bytes |
//! ```
//!
//! The header is that of the batch, with the codec [`Codec::Reference`], its own length and its own checksum. So whatever looks at
//! headers alone is the same for both.
//!
//! Invariant: a batch counts as the one that a reference names only if its checksum, its length, its records and its place in its session
//! are those that the reference says.
//!
//! Must not know: which object store it is, blocks.

use super::batch::{BATCH_HEADER_BYTES, BatchHeader, Malformed, u32_at, u64_at, verify};
use super::compression::Codec;
use super::crc::crc32c;
use crate::types::Term;
use std::fmt;

/// Bytes of a reference as a batch.
pub(crate) const REFERENCE_BYTES: usize = BATCH_HEADER_BYTES + 32;
/// Bytes before the first batch of a payload slice.
pub(crate) const PAYLOAD_HEADER_BYTES: usize = 72;
/// The same in builds before the first release. Such slices are refused.
pub(crate) const UNRELEASED_HEADER_BYTES: usize = 64;

/// Which payload slice it is. Ordered as the log refers to them: no reference is before one to an earlier slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PayloadId {
    /// The term in which its leader stored it, which is the term of all entries that refer to it.
    pub(crate) term: Term,
    /// Its number in that term, from 1.
    pub(crate) sequence: u64,
}

impl fmt::Display for PayloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}.{:020}", self.term.0, self.sequence)
    }
}

/// Where the bytes of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) slice: PayloadId,
    /// The place of the batch in the slice.
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// The checksum in the batch's header.
    pub(crate) crc: u32,
    /// The size of the whole slice.
    pub(crate) slice_bytes: u32,
}

impl Reference {
    /// The batch that stands in the log for the batch `of`.
    pub(crate) fn encode(&self, of: &BatchHeader) -> (BatchHeader, [u8; REFERENCE_BYTES]) {
        let length = REFERENCE_BYTES as u32;
        let mut header = BatchHeader { crc: 0, length, codec: Codec::Reference, ..*of };
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[..BATCH_HEADER_BYTES].copy_from_slice(&header.encode());
        bytes[40..48].copy_from_slice(&self.slice.term.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.slice.sequence.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.offset.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.length.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.crc.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.slice_bytes.to_le_bytes());
        header.crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&header.crc.to_le_bytes());
        (header, bytes)
    }

    /// The reference in a batch whose checksum was verified, and whose header has the codec of references.
    pub(crate) fn parse(header: &BatchHeader, batch: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; REFERENCE_BYTES] = batch.first_chunk().ok_or("reference is cut off")?;
        if header.length as usize != REFERENCE_BYTES {
            return Err("reference has an impossible length");
        }
        let reference = Self {
            slice: PayloadId { term: Term(u64_at(bytes, 40)), sequence: u64_at(bytes, 48) },
            offset: u32_at(bytes, 56),
            length: u32_at(bytes, 60),
            crc: u32_at(bytes, 64),
            slice_bytes: u32_at(bytes, 68),
        };
        if (UNRELEASED_HEADER_BYTES..PAYLOAD_HEADER_BYTES).contains(&(reference.offset as usize)) {
            return Err(
                "reference to a payload slice of a build before the first release: read the log with that build",
            );
        }
        let end = reference.offset.checked_add(reference.length);
        let is_possible = reference.offset as usize >= PAYLOAD_HEADER_BYTES
            && reference.length as usize >= BATCH_HEADER_BYTES
            && end.is_some_and(|end| end <= reference.slice_bytes)
            && reference.slice.sequence > 0;
        if is_possible { Ok(reference) } else { Err("reference to an impossible place") }
    }

    /// The length of the batch with this header: of a reference, that of the batch for which it stands.
    pub(crate) fn whole_length(header: &BatchHeader, batch: &[u8]) -> u32 {
        let reference = (header.codec == Codec::Reference).then(|| Self::parse(header, batch));
        reference.and_then(Result::ok).map_or(header.length, |reference| reference.length)
    }

    /// Checks that `bytes` are the batch that the reference with this header names.
    pub(crate) fn check(&self, header: &BatchHeader, bytes: &[u8]) -> Result<(), Malformed> {
        let found = verify(bytes)?;
        let same = BatchHeader { crc: self.crc, length: self.length, codec: found.codec, ..*header };
        if found != same || bytes.len() != self.length as usize || found.codec == Codec::Reference {
            return Err("another batch than the reference names");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::record::batch::{Batch, BatchBuilder};
    use crate::types::{Sequence, SessionId};

    fn batch() -> Batch {
        BatchBuilder::new()
            .session(SessionId(7), Sequence(3), 2)
            .push(b"one")
            .unwrap()
            .push(b"two")
            .unwrap()
            .build()
            .unwrap()
    }

    fn reference(of: &Batch) -> Reference {
        let slice = PayloadId { term: Term(4), sequence: 9 };
        let length = of.as_bytes().len() as u32;
        Reference { slice, offset: 72, length, crc: of.header().crc, slice_bytes: 72 + length }
    }

    #[test]
    fn reference_has_the_batch_s_header_and_finds_it_again() {
        let batch = batch();
        let (header, bytes) = reference(&batch).encode(batch.header());
        assert_eq!(verify(&bytes), Ok(header));
        assert_eq!((header.count, header.stamp), (2, batch.header().stamp));
        assert_eq!(header.body_length, batch.header().body_length);
        let parsed = Reference::parse(&header, &bytes).unwrap();
        assert_eq!(parsed, reference(&batch));
        parsed.check(&header, batch.as_bytes()).unwrap();
        assert_eq!(Reference::whole_length(&header, &bytes), batch.header().length);
        assert_eq!(Reference::whole_length(batch.header(), batch.as_bytes()), batch.header().length);
        let other = BatchBuilder::new()
            .session(SessionId(7), Sequence(4), 2)
            .push(b"one")
            .unwrap()
            .push(b"two")
            .unwrap()
            .build();
        parsed.check(&header, other.unwrap().as_bytes()).unwrap_err();
        assert_eq!(
            PayloadId { term: Term(4), sequence: 9 }.to_string(),
            "00000000000000000004.00000000000000000009"
        );
    }

    /// Only the log makes references: one that comes from a program is refused.
    #[test]
    fn producers_cannot_make_references() {
        let batch = batch();
        let (_, bytes) = reference(&batch).encode(batch.header());
        let error = Batch::decode(bytes.to_vec().into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let error = BatchBuilder::new().codec(Codec::Reference).push(b"x").unwrap().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let batch = batch();
        let (_, bytes) = reference(&batch).encode(batch.header());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            verify(&bad).unwrap_err();
        }
    }

    #[test]
    fn impossible_places_are_refused() {
        let batch = batch();
        let good = reference(&batch);
        for bad in [
            Reference { offset: 71, ..good },
            Reference { length: 39, ..good },
            Reference { offset: u32::MAX, ..good },
            Reference { slice_bytes: good.slice_bytes - 1, ..good },
            Reference { slice: PayloadId { sequence: 0, ..good.slice }, ..good },
        ] {
            let (header, bytes) = bad.encode(batch.header());
            Reference::parse(&header, &bytes).unwrap_err();
        }
    }
}
