//! Sorted objects: an object of a shared group has its records log by log, so that a reader of one log fetches little more than
//! that log's bytes. The segment file of the stretch can be made of it again, to the last byte.
//!
//! ```text
//!  entries ──sort──> opening | blocks of each log | directory | skeleton ──unsort──> segment file
//! ```
//!
//! Invariants:
//! - the bytes follow from the stretch, like those of its segment file: logs by number, batches in their order;
//! - batches are those of the entries, not changed: their checksums hold in both forms;
//! - a segment file that is made of an object has the checksum that was taken when the object was made.
//!
//! Must not know: where the object goes or comes from, what the records mean.

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{Malformed, u32_at};
use crate::record::crc::{Crc, crc32c};
use crate::store::PROOF_BYTES_MAX;
use crate::store::format::block::{
    BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, check_run, digest_of_batches, table_of,
};
use crate::store::format::geometry::{
    FOOTER_BYTES, SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, segment_bytes_for,
};
use crate::store::format::mixed::{RUN_BYTES, Run, TABLE_FIXED_BYTES};
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::Footer;
use crate::store::format::sorted::{SortedDirectory, SortedHeader, salt as salt_of_log};
use crate::store::format::sorted_object::SortedObjectHeader;
use crate::store::object_file::{Entry, MadeObject, Stretch, block_at, segment_file};
use crate::store::objects::names::salt;
use crate::store::segment::Base;
use crate::types::{LogId, LogNumber, SegmentId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The largest block that batches of one time are joined to.
const BLOCK_BYTES_MAX: usize = 256 << 10;

/// The padding behind a block.
static ZEROS: [u8; BLOCK_HEADER_BYTES] = [0; BLOCK_HEADER_BYTES];

/// A run of the stretch: the header of its block, its entry in the table, its batches.
type PlacedRun<'a> = (&'a BlockHeader, Run, Bytes);

/// Sorts the stretch of a segment file. `entries`: the opening and the entries of that file. None: the object would be larger than
/// any file, and is stored as the segment file that it is.
///
/// # Errors
/// `Corrupt`: an entry contradicts itself.
pub(crate) fn sort(stretch: &Stretch, entries: &[Entry], segment: &MadeObject) -> Result<Option<MadeObject>> {
    let id = salt(stretch.log, stretch.number);
    let wrong = |why: Malformed| {
        Error::new(ErrorKind::Corrupt, format!("object {} cannot be sorted: {why}", stretch.number))
    };
    let mut made = Pieces { pieces: Vec::new(), at: SEGMENT_HEADER_BYTES };
    let Some(((header, body), entries)) = entries.split_first() else { return Ok(None) };
    made.push_block(header, id, vec![body.clone()]);
    let blocks_at = made.at;
    let mut directory = SortedDirectory::default();
    for (log, runs) in runs_of(entries).map_err(wrong)? {
        for joined in joined(&runs) {
            let (header, batches) = block_of(joined).map_err(wrong)?;
            let at = made.at;
            made.push_block(&header, salt_of_log(id, log), batches);
            directory.add(log, header.first, at as u32, made.at as u32);
        }
    }
    let (directory_at, (logs, marks), bytes) = (made.at, directory.counts(), directory.encode());
    let directory_crc = crc32c(&bytes);
    made.push(bytes.into());
    let skeleton_at = made.at;
    for (header, body) in entries {
        let kept = if header.kind == Kind::Mixed {
            table_of(header, body).map_err(wrong)?.len()
        } else {
            body.len()
        };
        made.push(Bytes::copy_from_slice(&encoded(header, id)));
        made.push(body.slice(..kept));
    }
    let skeleton_end = made.at;
    let StoredObject { bytes: segment_bytes, data_end, index_crc, crc: segment_crc, .. } = segment.object;
    let bytes = segment_bytes_for(skeleton_end.max(data_end as usize) + PROOF_BYTES_MAX);
    if bytes > SEGMENT_BYTES_MAX as usize {
        return Ok(None);
    }
    made.push(vec![0; bytes - FOOTER_BYTES - skeleton_end].into());
    made.push(segment.pieces.last().cloned().unwrap_or_default());
    let header = SortedObjectHeader {
        sorted: SortedHeader {
            log: stretch.log,
            number: stretch.number + 1, // segments are numbered from 1
            id,
            data_end,
            directory_at: directory_at as u32,
            logs,
            marks,
            directory_crc,
        },
        blocks_at: blocks_at as u32,
        skeleton_at: skeleton_at as u32,
        skeleton_end: skeleton_end as u32,
        segment_bytes,
        segment_crc,
    };
    let pieces: Vec<Bytes> = std::iter::once(header.encode().into()).chain(made.pieces).collect();
    let crc = pieces.iter().fold(Crc::new(), |crc, piece| crc.add(piece)).sum();
    debug_assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), bytes, "the pieces fill the object");
    let object = StoredObject { bytes: bytes as u32, data_end, index_count: 0, index_crc, crc };
    Ok(Some(MadeObject { pieces, object }))
}

/// Pieces of a file, one behind the other.
struct Pieces {
    pieces: Vec<Bytes>,
    at: usize,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        self.at += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    fn push_block(&mut self, header: &BlockHeader, id: SegmentId, body: Vec<Bytes>) {
        let length = BLOCK_HEADER_BYTES + body.iter().map(Bytes::len).sum::<usize>();
        self.push(Bytes::copy_from_slice(&encoded(&BlockHeader { length: length as u32, ..*header }, id)));
        body.into_iter().for_each(|piece| self.push(piece));
        self.push(Bytes::from_static(&ZEROS[..length.next_multiple_of(BLOCK_HEADER_BYTES) - length]));
    }
}

/// A header as it is in an object.
fn encoded(header: &BlockHeader, id: SegmentId) -> [u8; BLOCK_HEADER_BYTES] {
    BlockHeader { durable_upto: 0, ..*header }.encode(id)
}

/// The runs of the entries, by log.
fn runs_of(entries: &[Entry]) -> Result<BTreeMap<LogNumber, Vec<PlacedRun<'_>>>, Malformed> {
    let mut logs: BTreeMap<LogNumber, Vec<PlacedRun<'_>>> = BTreeMap::new();
    for (header, body) in entries.iter().filter(|(header, _)| header.kind == Kind::Mixed) {
        for (run, range) in table_of(header, body)?.runs() {
            logs.entry(run.log).or_default().push((header, run, body.slice(range)));
        }
    }
    Ok(logs)
}

/// Runs of one log that are one block: they follow each other, and have one time.
fn joined<'a, 'b>(runs: &'b [PlacedRun<'a>]) -> impl Iterator<Item = &'b [PlacedRun<'a>]> {
    let mut bytes = 0;
    runs.chunk_by(move |(header, run, batches), (next_header, next, next_batches)| {
        bytes = if bytes == 0 { batches.len() } else { bytes } + next_batches.len();
        let is_joined = (header.timestamp == next_header.timestamp && run.next() == next.first
            || planted!(115))
            && bytes <= BLOCK_BYTES_MAX;
        if !is_joined {
            bytes = 0;
        }
        is_joined
    })
}

/// The block of such runs.
fn block_of(runs: &[PlacedRun<'_>]) -> Result<(BlockHeader, Vec<Bytes>), Malformed> {
    let ((first_header, first, _), (last_header, ..)) =
        runs.first().zip(runs.last()).ok_or("block has no runs")?;
    let mut crcs = Vec::new();
    for (_, _, bytes) in runs {
        for batch in Batches::new(bytes) {
            crcs.push(batch?.0.crc);
        }
    }
    let header = BlockHeader {
        kind: Kind::Data,
        first: first.first,
        batch_count: runs.iter().map(|(_, run, _)| run.batches).sum(),
        record_count: runs.iter().map(|(_, run, _)| run.records).sum(),
        body_digest: digest_of_batches(crcs),
        raft_index: last_header.raft_index,
        term: last_header.term,
        ..**first_header
    };
    Ok((header, runs.iter().map(|(.., bytes)| bytes.clone()).collect()))
}

/// Makes the segment file of the stretch of a sorted object, which is object `number` of `log`. `name`: for errors. Bytes between the
/// blocks are ignored, as in a segment file: see [`unsort_and_compare`].
///
/// # Errors
/// `Corrupt`: the object is damaged, or another one.
pub(crate) fn unsort(log: LogId, number: u64, bytes: &Bytes, name: &str) -> Result<MadeObject> {
    parts(log, number, bytes, name).map(|parts| parts.segment)
}

/// As [`unsort`], and the first of the bytes that it ignores which is another one than when the object was made: no record and no entry
/// depends on it, and the object's checksum does.
///
/// # Errors
/// As [`unsort`].
pub(crate) fn unsort_and_compare(
    log: LogId,
    number: u64,
    bytes: &Bytes,
    name: &str,
) -> Result<(MadeObject, Option<usize>)> {
    let Parts { stretch, entries, segment } = parts(log, number, bytes, name)?;
    let right = sort(&stretch, &entries, &segment)?;
    let changed = right.map_or(Some(0), |right| right.first_difference(bytes));
    Ok((segment, changed))
}

/// The parts of a sorted object.
struct Parts {
    stretch: Stretch,
    /// The opening and the entries.
    entries: Vec<Entry>,
    segment: MadeObject,
}

/// As [`unsort`].
fn parts(log: LogId, number: u64, bytes: &Bytes, name: &str) -> Result<Parts> {
    let id = salt(log, number);
    let corrupt = |at: usize, why: Malformed| Error::corrupt(Path::new(name), at as u64, why);
    let head = bytes.get(..SEGMENT_HEADER_BYTES).ok_or_else(|| corrupt(0, "sorted object is cut off"))?;
    let header = SortedObjectHeader::parse(head, bytes.len()).map_err(|why| corrupt(0, why))?;
    if (header.sorted.log, header.sorted.number, header.sorted.id) != (log, number + 1, id) {
        return Err(corrupt(0, "it is another object than its name says"));
    }
    let footer_at = bytes.len() - FOOTER_BYTES;
    let footer = bytes[footer_at..].first_chunk().ok_or("object is cut off");
    let footer = footer.and_then(|footer| Footer::parse(footer, number + 1, id));
    let footer = footer.map_err(|why| corrupt(footer_at, why))?;
    let directory_at = header.sorted.directory_at as usize;
    let directory = bytes.get(directory_at..directory_at + header.sorted.directory_bytes());
    let directory = directory.ok_or("directory of a sorted object is cut off");
    let directory = directory.and_then(|b| SortedDirectory::parse(&header.sorted, b, header.blocks_at));
    let directory = directory.map_err(|why| corrupt(directory_at, why))?;
    let mut logs: BTreeMap<LogNumber, LogBytes> = directory
        .places()
        .map(|(log, at, end)| (log, LogBytes { salt: salt_of_log(id, log), at, end, rest: Bytes::new() }))
        .collect();
    let (opening, _) =
        block_at(bytes, SEGMENT_HEADER_BYTES, id).map_err(|why| corrupt(SEGMENT_HEADER_BYTES, why))?;
    let mut entries = vec![opening];
    let mut at = header.skeleton_at as usize;
    while at < header.skeleton_end as usize {
        let (entry, next) = entry_at(bytes, at, id, &mut logs).map_err(|why| corrupt(at, why))?;
        entries.push(entry);
        at = next;
    }
    if at != header.skeleton_end as usize || logs.values().any(|log| log.at < log.end || !log.rest.is_empty())
    {
        return Err(corrupt(at, "sorted object has more records than its entries"));
    }
    let begin = Base { raft: footer.base_raft, term: footer.base_term, next: footer.first };
    let end = Base { raft: footer.last_raft, term: footer.last_term, next: footer.next };
    let stretch = Stretch { log, number, begin, end };
    let segment = segment_file(&stretch, &entries)?;
    if (segment.object.bytes, segment.object.crc) != (header.segment_bytes, header.segment_crc) {
        return Err(corrupt(0, "the segment file of a sorted object is another one than it was made of"));
    }
    Ok(Parts { stretch, entries, segment })
}

/// The entries without records in the skeleton of object `number` of `log`, whose bytes these are. Every byte of them is checked.
///
/// # Errors
/// The skeleton is damaged.
pub(crate) fn entries_without_records(
    log: LogId,
    number: u64,
    skeleton: &Bytes,
) -> Result<Vec<Entry>, (usize, Malformed)> {
    let (id, mut entries, mut at) = (salt(log, number), Vec::new(), 0);
    while at < skeleton.len() {
        let (header, part) = part_at(skeleton, at, id).map_err(|why| (at, why))?;
        at += BLOCK_HEADER_BYTES + part.len();
        if header.kind != Kind::Mixed {
            entries.push((header, part));
        }
    }
    Ok(entries)
}

/// The blocks of one log that are not used yet.
struct LogBytes {
    salt: SegmentId,
    at: usize,
    end: usize,
    /// The batches of its block that are not used yet.
    rest: Bytes,
}

impl LogBytes {
    /// The batches of the log's next run.
    fn take(&mut self, bytes: &Bytes, run: &Run) -> Result<Bytes, Malformed> {
        if self.rest.is_empty() {
            if self.at >= self.end {
                return Err("sorted object has fewer records than its entries");
            }
            let ((_, body), next) = block_at(bytes, self.at, self.salt)?;
            (self.rest, self.at) = (body, next);
        }
        if (run.bytes as usize) > self.rest.len() {
            return Err("run of a sorted object is not in one block");
        }
        let batches = self.rest.split_to(run.bytes as usize);
        check_run(run, &batches)?;
        Ok(batches)
    }
}

/// The entry at an offset of the skeleton, with its records, and where it ends there.
fn entry_at(
    bytes: &Bytes,
    at: usize,
    id: SegmentId,
    logs: &mut BTreeMap<LogNumber, LogBytes>,
) -> Result<(Entry, usize), Malformed> {
    let (header, part) = part_at(bytes, at, id)?;
    let end = at + BLOCK_HEADER_BYTES + part.len();
    if header.kind != Kind::Mixed {
        return Ok(((header, part), end));
    }
    let mut body = Vec::with_capacity(header.length as usize - BLOCK_HEADER_BYTES);
    body.extend_from_slice(&part);
    for (run, _) in table_of(&header, &part)?.runs() {
        let log = logs.get_mut(&run.log).ok_or("sorted object lacks a log of its entries")?;
        body.extend_from_slice(&log.take(bytes, &run)?);
    }
    Ok(((header, body.into()), end))
}

/// The part of an entry at an offset of the skeleton: the table of a mixed block, or the whole body of another one.
fn part_at(bytes: &Bytes, at: usize, id: SegmentId) -> Result<Entry, Malformed> {
    const SHORT: Malformed = "skeleton of a sorted object is cut off";
    let body_at = at + BLOCK_HEADER_BYTES;
    let header = BlockHeader::parse(bytes.get(at..body_at).ok_or(SHORT)?, id)?;
    if header.kind != Kind::Mixed {
        return Ok(block_at(bytes, at, id)?.0);
    }
    let fixed = bytes.get(body_at..body_at + TABLE_FIXED_BYTES).ok_or(SHORT)?;
    let length = TABLE_FIXED_BYTES.saturating_add((u32_at(fixed, 0) as usize).saturating_mul(RUN_BYTES));
    let end = body_at.saturating_add(length);
    let table = bytes.get(body_at..end).ok_or(SHORT)?;
    table_of(&header, table)?;
    Ok((header, bytes.slice(body_at..end)))
}
