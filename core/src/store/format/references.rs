//! References in blocks: which batches of a block are in the object store, and how large it is with them. In a mixed block its table is the
//! same with them, except for sizes and digests.
//!
//! Invariant: a batch that says that it is a reference, and is none, is never passed over: its block is damaged.
//!
//! Must not know: which object store it is.

use super::block::{BlockHeader, Kind, batches_of};
use crate::record::batch::{BatchHeader, Malformed};
use crate::record::compression::Codec;
use crate::record::reference::{REFERENCE_BYTES, Reference};

/// Whether a block has batches that are elsewhere.
pub(crate) fn has_references(header: &BlockHeader, body: &[u8]) -> bool {
    of_references(header, body)
        .any(|(header, bytes)| !planted!(144) || Reference::parse(&header, bytes).is_ok())
}

/// The references in a sound block, in order. An error: one of them cannot be read.
pub(crate) fn references<'a>(
    header: &BlockHeader,
    body: &'a [u8],
) -> impl Iterator<Item = Result<Reference, Malformed>> + 'a {
    of_references(header, body).map(|(header, bytes)| Reference::parse(&header, bytes))
}

/// The same, without those that cannot be read.
pub(crate) fn sound_references<'a>(
    header: &BlockHeader,
    body: &'a [u8],
) -> impl Iterator<Item = Reference> + 'a {
    references(header, body).filter_map(Result::ok)
}

/// The batches that are references.
fn of_references<'a>(
    header: &BlockHeader,
    body: &'a [u8],
) -> impl Iterator<Item = (BatchHeader, &'a [u8])> + 'a {
    let may = header.kind == Kind::Data || (header.kind == Kind::Mixed && !planted!(157));
    let batches = may.then(|| batches_of(header, body)).into_iter().flatten();
    batches.map_while(Result::ok).filter(|(header, _)| header.codec == Codec::Reference)
}

/// The bytes of a block once the batches that it refers to are in it.
pub(crate) fn resolved_length(header: &BlockHeader, body: &[u8]) -> usize {
    let more: usize = sound_references(header, body).map(|reference| reference.length as usize).sum();
    let less = sound_references(header, body).count() * REFERENCE_BYTES;
    header.length as usize + more - less
}

/// The same with its padding.
pub(crate) fn resolved_stride(header: &BlockHeader, body: &[u8]) -> usize {
    BlockHeader { length: resolved_length(header, body) as u32, ..*header }.stride()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::BatchBuilder;
    use crate::record::reference::PayloadId;
    use crate::store::format::block::sample_header;
    use crate::types::Term;

    /// A reference into a payload slice whose header has 64 bytes, as builds before the first release made them.
    #[test]
    fn reference_that_cannot_be_read_is_not_passed_over() {
        let batch = BatchBuilder::new().push(&[7; 500]).unwrap().build().unwrap();
        let slice = PayloadId { term: Term(3), sequence: 1 };
        let length = batch.as_bytes().len() as u32;
        let old = Reference { slice, offset: 64, length, crc: batch.header().crc, slice_bytes: 64 + length };
        let (_, body) = old.encode(batch.header());
        let header = sample_header();
        assert!(has_references(&header, &body));
        let found: Vec<_> = references(&header, &body).collect();
        assert!(matches!(&found[..], [Err(why)] if why.contains("before the first release")), "{found:?}");
        let now = Reference { offset: 72, slice_bytes: 72 + length, ..old };
        let (_, body) = now.encode(batch.header());
        assert_eq!(references(&header, &body).collect::<Vec<_>>(), [Ok(now)]);
    }
}
