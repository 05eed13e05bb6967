//! Bytes of format version 1, kept for ever: every later version has to read them, and encode the same.
//!
//! The files in `golden/` were made once, those of blocks, header and footer by a program that shares no code
//! with this crate. **Never make them anew**: when one of these tests fails the format has changed.
#![cfg(feature = "sim")] // opens the decoders
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{Batch, BatchBuilder, Codec, Sequence, SessionId, fuzzing};
use std::path::Path;

/// The salt of the golden blocks.
const SEGMENT: u64 = 5;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

/// What the three golden batches hold.
fn records() -> Vec<Vec<u8>> {
    let mut records = vec![vec![], b"one".to_vec(), vec![b'x'; 300]];
    records.extend((0..20).map(|i| format!("record number {i}").into_bytes()));
    records
}

#[test]
fn batches_of_every_codec_are_read() {
    for (codec, name) in [(Codec::None, "none"), (Codec::Lz4, "lz4"), (Codec::Zstd, "zstd")] {
        let bytes = golden(&format!("batch-{name}.bin"));
        let batch = Batch::decode(bytes.into()).unwrap();
        assert_eq!(batch.codec(), codec);
        assert_eq!(batch.session(), Some((SessionId(7), Sequence(3))));
        assert_eq!(batch.count(), 23);
        assert_eq!(batch.records().unwrap(), records(), "{name}");
    }
}

/// A compressor may pack differently one day; what is not packed may not.
#[test]
fn an_unpacked_batch_is_encoded_the_same() {
    let mut builder = BatchBuilder::new();
    builder.session(SessionId(7), Sequence(3), 2);
    for record in records() {
        builder.push(&record).unwrap();
    }
    assert_eq!(builder.build().unwrap().as_bytes()[..], golden("batch-none.bin"));
    let mut builder = BatchBuilder::new();
    builder.push(b"a single record without a session").unwrap();
    assert_eq!(builder.build().unwrap().as_bytes()[..], golden("batch-single.bin"));
}

#[test]
fn blocks_of_every_kind_are_read_and_encoded_the_same() {
    for kind in ["data", "no-op", "configuration", "hard-state", "marker", "opening"] {
        let bytes = golden(&format!("block-{kind}.bin"));
        let (header, sound) = fuzzing::block(&bytes, SEGMENT).unwrap_or_else(|| panic!("{kind} is refused"));
        assert!(sound, "body of {kind}");
        assert_eq!(header, bytes[..64], "{kind}");
    }
    assert!(fuzzing::block(&golden("block-data.bin"), SEGMENT + 1).is_none());
}

#[test]
fn the_fixed_parts_of_a_segment_are_read_and_encoded_the_same() {
    let header = golden("segment-header.bin");
    assert_eq!(fuzzing::segment_header(&header), Some(header));
    let footer = golden("segment-footer.bin");
    assert_eq!(fuzzing::footer(&footer), Some(footer));
    let opening = golden("opening-body.bin");
    assert_eq!(fuzzing::opening(&opening), Some(opening));
}
