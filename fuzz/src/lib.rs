//! The fuzz targets: plain functions over any bytes, so that libFuzzer (nightly) and the mutator of this crate's
//! own binary (stable) run the same ones.
//!
//! A target fails by panicking. Checksums reject nearly every mutated input at once, so each target tries its input
//! twice: as it is, and with corrected checksums, as a malicious writer would make them.

mod ffi;
mod network;
mod recovery;

use chiplog::fuzzing;
pub use ffi::ffi;
pub use network::{authority, peer, wire};
pub use recovery::recovery;

/// A target: accepts any bytes, panics when a guarantee is broken.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also its folder below `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("batch", batch),
    ("block", block),
    ("segment", segment),
    ("sessions", sessions),
    ("command", command),
    ("follow", follow),
    ("wire", wire),
    ("peer", peer),
    ("authority", authority),
    ("recovery", recovery),
    ("ffi", ffi),
];

/// Longer inputs are cut: they find nothing that shorter ones do not.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// One batch, as a producer sends it and a reader gets it from the file.
pub fn batch(input: &[u8]) {
    let look = |bytes: &[u8]| {
        let records = fuzzing::batch(bytes);
        // The public decoder may refuse more, never less.
        if let Ok(batch) = chiplog::Batch::decode(bytes.to_vec().into()) {
            assert_eq!(batch.as_bytes(), bytes);
            if let Ok(all) = batch.records() {
                assert_eq!(all.len(), batch.count() as usize);
                assert_eq!(Some(all), records);
            }
        }
    };
    look(input);
    let mut mended = input.to_vec();
    if fuzzing::fix_batch(&mut mended) {
        look(&mended);
    }
}

/// The segment id that salts the corpus' blocks.
pub const SEGMENT: u64 = 5;

/// One block: header, body, its batches.
pub fn block(input: &[u8]) {
    let look = |bytes: &[u8]| {
        if let Some((header, _)) = fuzzing::block(bytes, SEGMENT) {
            assert_eq!(header, bytes[..header.len()], "an accepted header has one encoding");
            assert!(fuzzing::block(bytes, SEGMENT + 1).is_none(), "another segment's blocks are strangers");
        }
    };
    look(input);
    let mut mended = input.to_vec();
    if fuzzing::fix_block(&mut mended, SEGMENT) {
        look(&mended);
    }
}

/// The fixed parts of a segment, and the table of a shared group's logs: the first byte selects one.
pub fn segment(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    type Decode = fn(&[u8]) -> Option<Vec<u8>>;
    let (decode, summed): (Decode, usize) = match (which / 128, which % 4) {
        (1, _) => (fuzzing::sorted_directory, 0),
        (_, 0) => (fuzzing::segment_header, 4096),
        (_, 1) => (fuzzing::footer, 128),
        (_, 2) => (fuzzing::opening, 0),
        (_, _) => (fuzzing::logs, 0),
    };
    let look = |bytes: &[u8]| {
        if let Some(again) = decode(bytes) {
            // The two versions of a segment's header, and so its checksum, may be another writer's.
            let from = if summed == 4096 { 20 } else { 0 };
            assert_eq!(again[from..], bytes[from..again.len()], "an accepted part has one encoding");
        }
    };
    look(bytes);
    if summed > 0 && bytes.len() >= summed {
        let mut mended = bytes.to_vec();
        let crc = fuzzing::crc32c(&mended[12..summed]);
        mended[8..12].copy_from_slice(&crc.to_le_bytes());
        look(&mended);
    }
}

/// A message to a follower: two bytes with the length of the head, the head, the bodies.
pub fn follow(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk::<2>() else { return };
    let (head, body) = rest.split_at((u16::from_le_bytes(*length) as usize).min(rest.len()));
    let look = |head: &[u8], body: &[u8]| {
        let half = body.len() / 2;
        let pieces = [&body[..half], &body[half..]].map(|piece| piece.to_vec().into());
        if let Ok(fed) = chiplog::follower::FollowMessage::decode(head.to_vec().into(), pieces.into()) {
            let (again, pieces) = fed.encode();
            assert_eq!(&pieces.concat()[..], body);
            let later = head[5] != again[5] || head[6..8] != [0; 2] || head[36..40] != [0; 4];
            if !later {
                assert_eq!(&again[..], head, "what is accepted has one encoding");
            }
            // Additions of a later version are skipped.
            let decoded = chiplog::follower::FollowMessage::decode(again, pieces);
            assert!(decoded.is_ok_and(|again| again == fed), "what was passed over changed the rest");
        }
    };
    look(head, body);
    let (mut head, mut body) = (head.to_vec(), body.to_vec());
    if fuzzing::fix_fed(&mut head, &mut body) {
        look(&head, &body);
    }
}

/// A command: its effect on the log, including options of the log. As it is; as each operation with operands from the
/// input; and as options whose count, zeros and tags are right, so that only the values are mutated, and which of them
/// are set.
pub fn command(input: &[u8]) {
    const FIXED_BYTES: usize = 24;
    const OPTION_BYTES: usize = 16;
    let look = |bytes: &[u8]| {
        if let Some(again) = fuzzing::command(bytes) {
            assert_eq!(again, bytes, "an accepted command has one encoding");
        }
    };
    look(input);
    if let Some((number, rest)) = input.split_first_chunk::<8>() {
        // Usually a log's number, sometimes more than one has.
        let number = u64::from_le_bytes(*number) >> (number[7] % 64);
        let more = rest.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        for operation in 0..16u64 {
            let [short, long] = [&[operation, number][..], &[operation, number, more]];
            look(&short.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
            look(&long.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        }
    }
    let Some((fixed, options)) = input.split_at_checked(FIXED_BYTES) else { return };
    let mut mended = [11u64, (options.len() / OPTION_BYTES) as u64, 0].map(u64::to_le_bytes).concat();
    let mut tag = 0u32;
    for (n, option) in options.chunks_exact(OPTION_BYTES).enumerate() {
        // Usually the next one, sometimes a later one.
        tag += 1 + u32::from(fixed[n % FIXED_BYTES] & 15 == 15);
        mended.extend_from_slice(&tag.to_le_bytes());
        mended.extend_from_slice(&[0; 4]);
        mended.extend_from_slice(&option[8..]);
    }
    look(&mended);
}

/// The table of exactly-once sessions.
pub fn sessions(input: &[u8]) {
    if let Some(again) = fuzzing::sessions(input) {
        assert_eq!(again, input, "an accepted table has one encoding");
    }
}
