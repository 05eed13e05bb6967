//! Entry points for the fuzz targets and the golden bytes: the decoders of everything that is read from a disk. Also
//! the format's numbers and the decision table, to check `docs/format.md` against. Built with the feature `testing` only,
//! and no part of the public interface.
//!
//! Each function takes any bytes. A decoder also returns the encoding of what it decoded, so that a caller can
//! compare it with the input. None means "refused".

use crate::api::catalogue;
use crate::api::catalogue::CatalogueRecord;
use crate::disk::SECTOR_BYTES;
use crate::follower::message::HEAD_BYTES as FED_HEAD_BYTES;
use crate::record::batch;
use crate::record::batch::{BATCH_HEADER_BYTES, Batch, BatchHeader, Body};
use crate::record::crc;
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId, REFERENCE_BYTES, Reference};
use crate::replica::state::command::{
    BEGIN_COMMAND_BYTES, COMMAND_BYTES, CUT_COMMAND_BYTES, LONG_COMMAND_BYTES, MOVE_ROWS_COMMAND_BYTES,
    SET_OPTIONS_BYTES, STORED_COMMAND_BYTES, encode_command, parse_command,
};
use crate::replica::state::log_table::LogTable;
use crate::replica::state::session_table::Sessions;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::store::format::block;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry;
use crate::store::format::geometry::LOG_OPTION_BYTES;
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::store::format::mixed::{RUN_BYTES, RUNS_MAX, TABLE_FIXED_BYTES};
use crate::store::format::segment;
use crate::store::format::segment::{Footer, Opening, SegmentHeader};
use crate::store::format::sorted::{SortedDirectory, SortedHeader};
use crate::store::objects::payloads::PayloadHead;
use crate::store::recovery::decision_table::{DECISIONS, Verdict};
use crate::types::{Index, LogId, SegmentId, Term};
use bytes::Bytes;

/// The format's checksum, so that a fuzz target can correct one and get past it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc::crc32c(bytes)
}

/// Corrects the checksum of the batch at the start of `bytes`, as far as its own length says. True if it could.
pub fn fix_batch(bytes: &mut [u8]) -> bool {
    let Ok(header) = BatchHeader::parse(bytes) else { return false };
    let crc = crc::crc32c(&bytes[4..header.length as usize]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Corrects the checksums of a block: its batches', its body's and its header's. True if it could.
pub fn fix_block(bytes: &mut [u8], segment: u64) -> bool {
    if bytes.len() < BLOCK_HEADER_BYTES {
        return false;
    }
    bytes[..4].copy_from_slice(b"CLB1");
    let length = (batch::u32_at(bytes, 8) as usize).clamp(BLOCK_HEADER_BYTES, bytes.len());
    let digest = if bytes[60] == Kind::Data as u8 {
        let mut at = BLOCK_HEADER_BYTES;
        let mut crcs = Vec::new();
        while at + BATCH_HEADER_BYTES <= length && fix_batch(&mut bytes[at..length]) {
            crcs.push(batch::u32_at(bytes, at));
            at += batch::u32_at(bytes, at + 4) as usize;
        }
        block::digest_of_batches(crcs)
    } else if bytes[60] == Kind::Mixed as u8 {
        fix_table(&mut bytes[BLOCK_HEADER_BYTES..length])
    } else {
        crc::crc32c(&bytes[BLOCK_HEADER_BYTES..length])
    };
    bytes[56..60].copy_from_slice(&digest.to_le_bytes());
    let crc = crc::Crc::new().add(&segment.to_le_bytes()).add(&bytes[8..BLOCK_HEADER_BYTES]).sum();
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Corrects the checksums of a mixed block's batches and the digests in its table. Returns the table's checksum.
fn fix_table(body: &mut [u8]) -> u32 {
    let runs = body.first_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize);
    let length = TABLE_FIXED_BYTES.saturating_add(runs.saturating_mul(RUN_BYTES)).min(body.len());
    let (table, batches) = body.split_at_mut(length);
    let mut at = 0;
    for run in table.get_mut(TABLE_FIXED_BYTES..).unwrap_or_default().chunks_exact_mut(RUN_BYTES) {
        let mut crcs = Vec::new();
        for _ in 0..batch::u32_at(run, 4) {
            if at + BATCH_HEADER_BYTES > batches.len() || !fix_batch(&mut batches[at..]) {
                break;
            }
            crcs.push(batch::u32_at(batches, at));
            at += batch::u32_at(batches, at + 4) as usize;
        }
        run[24..28].copy_from_slice(&block::digest_of_batches(crcs).to_le_bytes());
    }
    crc::crc32c(table)
}

/// Corrects the checksums of an encoded item of a feed: of each entry, and of the head. True if it could.
pub fn fix_fed(head: &mut [u8], body: &mut [u8]) -> bool {
    let Some((_, headers)) = head.split_at_mut_checked(FED_HEAD_BYTES) else { return false };
    let mut rest = body;
    for header in headers.chunks_exact_mut(BLOCK_HEADER_BYTES) {
        let length = (batch::u32_at(header, 8) as usize).saturating_sub(BLOCK_HEADER_BYTES).min(rest.len());
        let (body, behind) = rest.split_at_mut(length);
        let mut block = [&*header, &*body].concat();
        if fix_block(&mut block, 0) {
            let (mended, contents) = block.split_at(BLOCK_HEADER_BYTES);
            header.copy_from_slice(mended);
            body.copy_from_slice(contents);
        }
        rest = behind;
    }
    let crc = crc::crc32c(&head[4..]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Decodes a batch with a correct checksum: its records in order, all inside its body.
pub fn batch(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let header = batch::verify(bytes).ok()?;
    let body = batch::body(bytes, &header).ok()?;
    assert_eq!(body.len(), header.body_length as usize);
    let body = Body::new(&body, header.count).ok()?;
    (0..header.count).map(|n| body.record(n).map(<[u8]>::to_vec).ok()).collect()
}

/// Decodes a batch with a correct checksum without unpacking it, as earlier versions of the log did.
pub fn stored_batch(bytes: &[u8]) -> Option<Batch> {
    Batch::stored(Bytes::copy_from_slice(bytes)).ok()
}

/// Decodes a payload slice of this log, term and number, and checks its batches. Returns its encoding.
pub fn payload_slice(log: u128, (term, sequence): (u64, u64), bytes: &[u8]) -> Option<Vec<u8>> {
    let (log, id) = (LogId(log), PayloadId { term: Term(term), sequence });
    let head = PayloadHead::parse(log, id, bytes).ok()?;
    let batches = bytes.get(PAYLOAD_HEADER_BYTES..head.end as usize)?;
    let sound =
        block::Batches::new(batches).map(|found| found.is_ok_and(|(_, batch)| batch::verify(batch).is_ok()));
    let sound: Vec<bool> = sound.collect();
    let (begin, end) = head.encode(log, id);
    (sound.len() == head.batches as usize && sound.iter().all(|is_sound| *is_sound))
        .then(|| [&begin, batches, &end].concat())
}

/// Decodes the reference that stands for this batch. Returns its encoding.
pub fn reference(bytes: &[u8], of: &[u8]) -> Option<Vec<u8>> {
    let header = batch::verify(bytes).ok()?;
    let reference = Reference::parse(&header, bytes).ok()?;
    reference.check(&header, of).ok()?;
    Some(reference.encode(&batch::verify(of).ok()?).1.to_vec())
}

/// Checks a block's header, then its body, shallow and deep. Returns the header's encoding and whether the body is
/// sound.
pub fn block(bytes: &[u8], segment: u64) -> Option<(Vec<u8>, bool)> {
    let header = BlockHeader::parse(bytes, SegmentId(segment)).ok()?;
    let shallow = block::check_body(&header, bytes, false).is_ok();
    let deep = block::check_body(&header, bytes, true).is_ok();
    assert!(shallow || !deep, "a deep check accepts no more than a shallow one");
    if deep && header.kind.has_records() {
        let body = &bytes[BLOCK_HEADER_BYTES..header.length as usize];
        let batches = block::batches_of(&header, body);
        let bytes = batches.bytes();
        let covered: usize = batches.map(|b| b.map_or(0, |(_, bytes)| bytes.len())).sum();
        assert_eq!(covered, bytes, "a sound block has no bytes outside its table and its batches");
    }
    Some((header.encode(SegmentId(segment)).to_vec(), deep))
}

/// Decodes a segment's header.
pub fn segment_header(bytes: &[u8]) -> Option<Vec<u8>> {
    assert_eq!(SEGMENT_HEADER_BYTES, 4096);
    SegmentHeader::parse(bytes).ok().map(|h| h.encode())
}

/// Decodes a sealed segment's footer, of any segment.
pub fn footer(bytes: &[u8]) -> Option<Vec<u8>> {
    let bytes: &[u8; FOOTER_BYTES] = bytes.first_chunk()?;
    let (number, id) = (batch::u64_at(bytes, 16), SegmentId(batch::u64_at(bytes, 24)));
    Footer::parse(bytes, number, id).ok().map(|f| f.encode().to_vec())
}

/// Decodes the directory of a sorted copy under a right checksum: how many logs it has, then its bytes. Looks records up in it.
pub fn sorted_directory(bytes: &[u8]) -> Option<Vec<u8>> {
    let (logs, bytes) = bytes.split_first()?;
    let marks = bytes.len().checked_sub(usize::from(*logs) * 16)? / 16;
    let end = usize::from(*logs).checked_sub(1).and_then(|last| bytes.get(last * 16 + 8..last * 16 + 12));
    let header = SortedHeader {
        log: LogId(1),
        number: 1,
        id: SegmentId(1),
        data_end: 0,
        directory_at: end.map_or(0, |end| batch::u32_at(end, 0)),
        logs: u32::from(*logs),
        marks: marks as u32,
        directory_crc: crc32c(bytes),
    };
    assert_eq!(SortedHeader::parse(&header.encode()), Ok(header));
    let directory = SortedDirectory::parse(&header, bytes, SEGMENT_HEADER_BYTES as u32).ok()?;
    for (log, begin, end) in directory.places() {
        for index in [0, 1, u64::MAX] {
            let found = directory.seek(log, Index(index));
            assert!(found.is_none_or(|found| found.1 == end && begin < end), "{found:?}");
        }
    }
    Some([&[*logs], &directory.encode()[..]].concat())
}

/// Decodes the body of an opening block.
pub fn opening(bytes: &[u8]) -> Option<Vec<u8>> {
    Opening::parse(bytes).ok().map(|o| o.encode())
}

/// Decodes a message between replicas: its head, and the bodies beside it. None: the head is refused. For a message
/// of raft it returns how many entries came with their bodies.
pub fn peer(head: &[u8], bodies: Vec<Vec<u8>>) -> Option<usize> {
    let (kind, body) = raft_message::parse_head(&Bytes::copy_from_slice(head)).ok()?;
    match kind {
        HeadKind::Raft => {
            let bodies = bodies.into_iter().map(Bytes::from).collect();
            raft_message::decode_message(&body, bodies).ok().map(|(_, arrived)| arrived.len())
        }
        _ => Some(0),
    }
}

/// Corrects the checksum of the head of a message between replicas. False: it is too short for a head.
pub fn fix_peer(head: &mut [u8]) -> bool {
    let Some((sum, rest)) = head.split_first_chunk_mut::<4>() else { return false };
    *sum = crc::crc32c(rest).to_le_bytes();
    true
}

/// Decodes the table of exactly-once sessions, with everything that it can remember.
pub fn sessions(bytes: &[u8]) -> Option<Vec<u8>> {
    Sessions::decode(bytes, u32::MAX, 1024).ok().map(|table| table.encode())
}

/// Decodes a command.
pub fn command(bytes: &[u8]) -> Option<Vec<u8>> {
    parse_command(bytes).ok().map(encode_command)
}

/// Decodes the table of a shared group's logs.
pub fn logs(bytes: &[u8]) -> Option<Vec<u8>> {
    LogTable::decode(bytes).ok().map(|table| table.encode())
}

/// Decodes a record of the catalogue.
pub fn catalogue_record(bytes: &[u8]) -> Option<Vec<u8>> {
    CatalogueRecord::parse(bytes).ok().map(|record| record.encode())
}

/// The format's numbers, by the names they have in `docs/format.md`.
pub fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("FORMAT_VERSION", segment::FORMAT_VERSION.into()),
        ("SECTOR_BYTES", SECTOR_BYTES as u64),
        ("IDENTITY_BYTES", SECTOR_BYTES as u64),
        ("SEGMENT_HEADER_BYTES", SEGMENT_HEADER_BYTES as u64),
        ("SEGMENT_BYTES_MIN", SEGMENT_BYTES_MIN.into()),
        ("SEGMENT_BYTES_MAX", SEGMENT_BYTES_MAX.into()),
        ("BLOCK_HEADER_BYTES", BLOCK_HEADER_BYTES as u64),
        ("BATCH_HEADER_BYTES", BATCH_HEADER_BYTES as u64),
        ("REFERENCE_BYTES", REFERENCE_BYTES as u64),
        ("PAYLOAD_HEADER_BYTES", PAYLOAD_HEADER_BYTES as u64),
        ("BATCH_RECORDS_MAX", batch::BATCH_RECORDS_MAX.into()),
        ("BATCH_BYTES_MAX", batch::BATCH_BYTES_MAX as u64),
        ("INDEX_ENTRY_BYTES", geometry::INDEX_ENTRY_BYTES as u64),
        ("INDEX_STRIDE_BYTES", geometry::INDEX_STRIDE_BYTES as u64),
        ("FOOTER_BYTES", FOOTER_BYTES as u64),
        ("HARD_STATE_BYTES", segment::HARD_STATE_BYTES as u64),
        ("COMMAND_BYTES", COMMAND_BYTES as u64),
        ("LONG_COMMAND_BYTES", LONG_COMMAND_BYTES as u64),
        ("SET_OPTIONS_BYTES", SET_OPTIONS_BYTES as u64),
        ("LOG_OPTION_BYTES", LOG_OPTION_BYTES as u64),
        ("STORED_COMMAND_BYTES", STORED_COMMAND_BYTES as u64),
        ("CUT_COMMAND_BYTES", CUT_COMMAND_BYTES as u64),
        ("MOVE_ROWS_COMMAND_BYTES", MOVE_ROWS_COMMAND_BYTES as u64),
        ("BEGIN_COMMAND_BYTES", BEGIN_COMMAND_BYTES as u64),
        ("MEMBERSHIP_BYTES", crate::cluster::membership::MEMBERSHIP_BYTES as u64),
        ("MEMBER_BYTES", crate::cluster::membership::MEMBER_BYTES as u64),
        ("TABLE_HEADER_BYTES", geometry::TABLE_HEADER_BYTES as u64),
        ("SESSION_BYTES", geometry::SESSION_BYTES as u64),
        ("REMEMBERED_BYTES", geometry::REMEMBERED_BYTES as u64),
        ("REMEMBERED_MAX", geometry::REMEMBERED_MAX.into()),
        ("TABLE_FIXED_BYTES", TABLE_FIXED_BYTES as u64),
        ("RUN_BYTES", RUN_BYTES as u64),
        ("RUNS_MAX", RUNS_MAX as u64),
        ("LOGS_HEADER_BYTES", geometry::LOGS_HEADER_BYTES as u64),
        ("LOG_BYTES", geometry::LOG_BYTES as u64),
        ("OBJECTS_HEADER_BYTES", geometry::OBJECTS_HEADER_BYTES as u64),
        ("OBJECT_BYTES", geometry::OBJECT_BYTES as u64),
        ("ANCESTOR_BYTES", geometry::ANCESTOR_BYTES as u64),
        ("OLDER_ROWS_BYTES", geometry::OLDER_ROWS_BYTES as u64),
        ("CATALOGUE_RECORD_BYTES", catalogue::FIXED_BYTES as u64),
        ("NAME_BYTES_MAX", catalogue::NAME_BYTES_MAX as u64),
    ]
}

/// The offset at which blocks have to end in a segment file of `segment_bytes` bytes.
pub fn data_limit(segment_bytes: usize) -> usize {
    geometry::data_limit(segment_bytes)
}

/// Every kind of block: its number, its name, and whether it is a raft entry.
pub fn kinds() -> Vec<(u8, &'static str, bool)> {
    Kind::ALL.iter().map(|k| (*k as u8, k.name(), k.is_entry())).collect()
}

/// The decision table of recovery, row by row, in the words of `docs/format.md`.
pub fn decisions() -> Vec<[&'static str; 6]> {
    let word = |condition: Option<bool>| condition.map_or("-", |yes| if yes { "yes" } else { "no" });
    let verdict = |v: Verdict| match v {
        Verdict::Complete => "complete",
        Verdict::Torn => "torn",
        Verdict::Corrupt => "corrupt",
    };
    DECISIONS
        .iter()
        .map(|r| {
            let conditions = [r.clean, r.proven_later, r.successor, r.reached].map(word);
            let [clean, proven_later, successor, reached] = conditions;
            [clean, proven_later, successor, reached, verdict(r.verdict), r.why]
        })
        .collect()
}
