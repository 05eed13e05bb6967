//! The fixed parts of a segment file: header, opening state, block index, footer. Bytes only.
//!
//! ```text
//! 0          4096                                         index_offset          end - 128      end
//! | header   | opening block | block | block | … (zeros) | … index entries … | … | footer      |
//! ```
//!
//! - The **header** is written and synced when the file is prepared, before the file gets its name: a file with a
//!   segment's name always has one, and a roll needs no extra sync.
//! - The **opening block** is written together with the first entry: base positions, hard state, configuration, session
//!   table, the log's options if any are set, and the log table of a shared group. A file without one is prepared and has not begun.
//! - **Index and footer** are written by the helper thread once the segment is full. They only save time: a segment
//!   without them is scanned.
//!
//! Must not know: threads, disks.

use super::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use super::geometry::{
    FOOTER_BYTES, INDEX_ENTRY_BYTES, LOG_OPTION_BYTES, OBJECTS_HEADER_BYTES, SEGMENT_HEADER_BYTES, data_limit,
};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::{Crc, crc32c};
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term, Timestamp};

/// The newest version of the format that this code reads: that of object tables whose older rows are elsewhere, and of hard states that say
/// where files begin. It is written only where needed: see [`version_of`].
pub(crate) const FORMAT_VERSION: u32 = 5;
/// The version that added batches in payload slices, and branches.
pub(crate) const FORMAT_VERSION_FOURTH: u32 = 4;
/// The version that added objects.
pub(crate) const FORMAT_VERSION_THIRD: u32 = 3;
/// The version that added options of the log, and shared groups.
pub(crate) const FORMAT_VERSION_SECOND: u32 = 2;
/// The version of everything that contains nothing of these, so that earlier readers understand it.
pub(crate) const FORMAT_VERSION_FIRST: u32 = 1;

const HEADER_USED: usize = 56;
const HEADER_MAGIC: [u8; 8] = *b"chiplogS";
const FOOTER_MAGIC: [u8; 8] = *b"chiplogF";

/// The fixed properties of a segment file, set when it is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log: LogId,
    /// Position in the sequence of segments: 1, 2, 3 …; also the file's name.
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    /// The file's size.
    pub(crate) bytes: u32,
    /// The oldest version of the format whose readers understand all of its blocks.
    pub(crate) version: u32,
}

impl SegmentHeader {
    /// The first 4096 bytes of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        head[0..8].copy_from_slice(&HEADER_MAGIC);
        head[12..16].copy_from_slice(&self.version.to_le_bytes());
        head[16..20].copy_from_slice(&self.version.to_le_bytes());
        head[20..24].copy_from_slice(&self.bytes.to_le_bytes());
        head[24..40].copy_from_slice(&self.log.0.to_le_bytes());
        head[40..48].copy_from_slice(&self.number.to_le_bytes());
        head[48..56].copy_from_slice(&self.id.0.to_le_bytes());
        let crc = crc32c(&head[12..]);
        head[8..12].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// Reads and checks the first 4096 bytes of a file. Returns `Newer` before any check that a newer format could
    /// fail.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let head =
            bytes.get(..SEGMENT_HEADER_BYTES).ok_or(HeaderFault::Malformed("segment header is cut off"))?;
        if head[0..8] != HEADER_MAGIC {
            return Err(HeaderFault::Malformed("not a chiplog segment: its first bytes differ"));
        }
        if crc32c(&head[12..]) != u32_at(head, 8) {
            return Err(HeaderFault::Malformed("segment header checksum does not match"));
        }
        let reader_min = u32_at(head, 16);
        if reader_min > FORMAT_VERSION {
            return Err(HeaderFault::Newer(reader_min));
        }
        if head[HEADER_USED..].iter().any(|b| *b != 0) {
            return Err(HeaderFault::Malformed("segment header has fields of a newer format"));
        }
        let mut log = [0; 16];
        log.copy_from_slice(&head[24..40]);
        Ok(Self {
            log: LogId(u128::from_le_bytes(log)),
            number: u64_at(head, 40),
            id: SegmentId(u64_at(head, 48)),
            bytes: u32_at(head, 20),
            version: reader_min.max(FORMAT_VERSION_FIRST),
        })
    }
}

/// The reason why a segment header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Malformed(Malformed),
    /// A reader of at least this format version is needed.
    Newer(u32),
}

/// An entry of the sparse index: the offset of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) first: Index,
    pub(crate) raft_index: EntryIndex,
    pub(crate) timestamp: Timestamp,
    pub(crate) offset: u32,
}

impl IndexEntry {
    pub(crate) fn encode(&self) -> [u8; INDEX_ENTRY_BYTES] {
        let mut e = [0; INDEX_ENTRY_BYTES];
        e[0..8].copy_from_slice(&self.first.0.to_le_bytes());
        e[8..16].copy_from_slice(&self.raft_index.0.to_le_bytes());
        e[16..24].copy_from_slice(&self.timestamp.0.to_le_bytes());
        e[24..28].copy_from_slice(&self.offset.to_le_bytes());
        e
    }

    pub(crate) fn parse(e: &[u8; INDEX_ENTRY_BYTES]) -> Self {
        Self {
            first: Index(u64_at(e, 0)),
            raft_index: EntryIndex(u64_at(e, 8)),
            timestamp: Timestamp(u64_at(e, 16)),
            offset: u32_at(e, 24),
        }
    }
}

/// The summary of a sealed segment: enough to place it in the log without reading its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    /// The last raft entry before this segment.
    pub(crate) base_raft: EntryIndex,
    pub(crate) base_term: Term,
    /// The first record that this segment can contain, and the one after its last.
    pub(crate) first: Index,
    pub(crate) next: Index,
    pub(crate) last_raft: EntryIndex,
    pub(crate) last_term: Term,
    pub(crate) first_timestamp: Timestamp,
    pub(crate) last_timestamp: Timestamp,
    /// The offset at which its blocks end.
    pub(crate) data_end: u32,
    pub(crate) index_offset: u32,
    pub(crate) index_count: u32,
    pub(crate) index_crc: u32,
}

impl Footer {
    /// The file's last 128 bytes.
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut f = [0; FOOTER_BYTES];
        f[0..8].copy_from_slice(&FOOTER_MAGIC);
        let words = [
            self.number,
            self.id.0,
            self.base_raft.0,
            self.base_term.0,
            self.first.0,
            self.next.0,
            self.last_raft.0,
            self.last_term.0,
            self.first_timestamp.0,
            self.last_timestamp.0,
        ];
        for (i, w) in words.iter().enumerate() {
            f[16 + i * 8..24 + i * 8].copy_from_slice(&w.to_le_bytes());
        }
        for (i, w) in [self.data_end, self.index_offset, self.index_count, self.index_crc].iter().enumerate()
        {
            f[96 + i * 4..100 + i * 4].copy_from_slice(&w.to_le_bytes());
        }
        let crc = crc32c(&f[12..]);
        f[8..12].copy_from_slice(&crc.to_le_bytes());
        f
    }

    /// Reads the footer of segment `number` with id `id`. A footer from an earlier use of the file is refused.
    pub(crate) fn parse(f: &[u8; FOOTER_BYTES], number: u64, id: SegmentId) -> Result<Self, Malformed> {
        if f[0..8] != FOOTER_MAGIC {
            return Err("segment has no footer");
        }
        if crc32c(&f[12..]) != u32_at(f, 8) {
            return Err("segment footer checksum does not match");
        }
        let word = |i: usize| u64_at(f, 16 + i * 8);
        let half = |i: usize| u32_at(f, 96 + i * 4);
        if word(0) != number || word(1) != id.0 {
            return Err("segment footer is from an earlier use of this file");
        }
        if f[12..16] != [0; 4] || f[112..] != [0; 16] {
            return Err("segment footer has fields of a newer format");
        }
        Ok(Self {
            number,
            id,
            base_raft: EntryIndex(word(2)),
            base_term: Term(word(3)),
            first: Index(word(4)),
            next: Index(word(5)),
            last_raft: EntryIndex(word(6)),
            last_term: Term(word(7)),
            first_timestamp: Timestamp(word(8)),
            last_timestamp: Timestamp(word(9)),
            data_end: half(0),
            index_offset: half(1),
            index_count: half(2),
            index_crc: half(3),
        })
    }
}

/// The start of a segment in the log: the position just before its first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) raft: EntryIndex,
    pub(crate) term: Term,
    /// The next record's index.
    pub(crate) next: Index,
}

impl Base {
    /// The start of the segment that this footer describes.
    pub(crate) fn before(footer: &Footer) -> Self {
        Self { raft: footer.base_raft, term: footer.base_term, next: footer.first }
    }

    /// The end of the segment that this footer describes.
    pub(crate) fn behind(footer: &Footer) -> Self {
        Self { raft: footer.last_raft, term: footer.last_term, next: footer.next }
    }
}

impl Footer {
    /// Whether its offsets are possible in a segment of this size.
    pub(crate) fn fits(&self, segment_bytes: usize) -> bool {
        let blocks = SEGMENT_HEADER_BYTES..=data_limit(segment_bytes);
        let index_bytes = self.index_count as u64 * INDEX_ENTRY_BYTES as u64;
        blocks.contains(&(self.data_end as usize))
            && self.index_offset as usize >= data_limit(segment_bytes)
            && u64::from(self.index_offset) + index_bytes <= (segment_bytes - FOOTER_BYTES) as u64
    }
}

/// Returns the index's bytes and their checksum, which the footer contains.
pub(crate) fn encode_index(entries: &[IndexEntry]) -> (Vec<u8>, u32) {
    let bytes: Vec<u8> = entries.iter().flat_map(IndexEntry::encode).collect();
    let crc = crc32c(&bytes);
    (bytes, crc)
}

/// Term, vote and commit index: raft's own durable state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HardState {
    pub(crate) term: Term,
    pub(crate) vote: u64,
    pub(crate) commit: EntryIndex,
}

/// Bytes of a hard state block's body.
pub(crate) const HARD_STATE_BYTES: usize = 24;
/// Bytes of the body of a hard state block that also says with which record the files of its directory begin.
pub(crate) const KEPT_STATE_BYTES: usize = HARD_STATE_BYTES + 8;
// It takes the room of any other hard state.
const _: () = assert!(
    super::block::padded(BLOCK_HEADER_BYTES + KEPT_STATE_BYTES)
        == super::block::padded(BLOCK_HEADER_BYTES + HARD_STATE_BYTES)
);

impl HardState {
    pub(crate) fn encode(&self) -> [u8; HARD_STATE_BYTES] {
        let mut b = [0; HARD_STATE_BYTES];
        b[0..8].copy_from_slice(&self.term.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.vote.to_le_bytes());
        b[16..24].copy_from_slice(&self.commit.0.to_le_bytes());
        b
    }

    /// As [`Self::encode`]; the files of this directory begin with record `first` or before, and need not have more.
    pub(crate) fn encode_kept(&self, first: Index) -> [u8; KEPT_STATE_BYTES] {
        let mut b = [0; KEPT_STATE_BYTES];
        b[..HARD_STATE_BYTES].copy_from_slice(&self.encode());
        b[HARD_STATE_BYTES..].copy_from_slice(&first.0.to_le_bytes());
        b
    }

    /// The first record that the directory of this block keeps, if the block says so.
    pub(crate) fn kept_from(body: &[u8]) -> Option<Index> {
        let body: &[u8; KEPT_STATE_BYTES] = body.try_into().ok()?;
        Some(Index(u64_at(body, HARD_STATE_BYTES)))
    }

    /// The hard state of a block, whatever else that says.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = match Self::kept_from(body) {
            Some(Index(0)) => return Err("hard state says that files begin before the first record"),
            Some(_) => &body[..HARD_STATE_BYTES],
            None => body,
        };
        let b: &[u8; HARD_STATE_BYTES] = body.try_into().map_err(|_| "hard state has another length")?;
        Ok(Self { term: Term(u64_at(b, 0)), vote: u64_at(b, 8), commit: EntryIndex(u64_at(b, 16)) })
    }
}

/// The body of an opening block: enough to open the log from this segment on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The last raft entry before this segment.
    pub(crate) base_raft: EntryIndex,
    pub(crate) base_term: Term,
    /// The log's first index when the segment began: records below it are discarded.
    pub(crate) log_first: Index,
    pub(crate) hard_state: HardState,
    /// The membership. Replication writes it; this module does not interpret it.
    pub(crate) configuration: Vec<u8>,
    /// The session table, encoded by `session_table`.
    pub(crate) sessions: Vec<u8>,
    /// The options that are set for the log, encoded by `log_options`; empty if none is set.
    pub(crate) options: Vec<u8>,
    /// The logs of a shared group, encoded by `log_table`; empty if the group is not shared.
    pub(crate) logs: Vec<u8>,
    /// The object table, encoded by `object_table`; empty if the log never had objects.
    pub(crate) objects: Vec<u8>,
}

/// Bytes of an opening's body without the contents of its parts, as of version 1.
pub(crate) const OPENING_FIXED_BYTES: usize = 24 + HARD_STATE_BYTES + 2 * LENGTH_BYTES;
/// Bytes of the length before each part of an opening.
pub(crate) const LENGTH_BYTES: usize = 4;

impl Opening {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let parts = [&self.configuration, &self.sessions, &self.options, &self.logs, &self.objects];
        // Version 1 has two parts. Each part after them is there only if it, or a later one, has contents.
        let last = parts.iter().rposition(|part| !part.is_empty()).unwrap_or(0).max(1);
        let bytes: usize = parts.iter().map(|part| LENGTH_BYTES + part.len()).sum();
        let mut b = Vec::with_capacity(48 + bytes);
        b.extend_from_slice(&self.base_raft.0.to_le_bytes());
        b.extend_from_slice(&self.base_term.0.to_le_bytes());
        b.extend_from_slice(&self.log_first.0.to_le_bytes());
        b.extend_from_slice(&self.hard_state.encode());
        for part in &parts[..=last] {
            b.extend_from_slice(&(part.len() as u32).to_le_bytes());
            b.extend_from_slice(part);
        }
        b
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        const NEWER: Malformed = "opening block has fields of a newer format";
        let fixed = body.get(..48).ok_or(SHORT)?;
        let mut rest = &body[48..];
        let mut opening = Self {
            base_raft: EntryIndex(u64_at(fixed, 0)),
            base_term: Term(u64_at(fixed, 8)),
            log_first: Index(u64_at(fixed, 16)),
            hard_state: HardState::parse(&fixed[24..48])?,
            configuration: part_of(&mut rest)?.to_vec(),
            sessions: part_of(&mut rest)?.to_vec(),
            options: Vec::new(),
            logs: Vec::new(),
            objects: Vec::new(),
        };
        for added in [&mut opening.options, &mut opening.logs, &mut opening.objects] {
            if rest.is_empty() {
                break;
            }
            *added = part_of(&mut rest)?.to_vec();
            if rest.is_empty() && added.is_empty() {
                return Err(NEWER);
            }
        }
        if rest.is_empty() { Ok(opening) } else { Err(NEWER) }
    }

    /// The log table in such a body, without a copy; empty if the group is not shared.
    pub(crate) fn logs_in(body: &[u8]) -> Result<&[u8], Malformed> {
        Self::part_in(body, LOGS_PART)
    }

    /// The object table in such a body; empty if the log has no objects.
    pub(crate) fn objects_in(body: &[u8]) -> Result<&[u8], Malformed> {
        Self::part_in(body, OBJECTS_PART)
    }

    /// Whether such a body has an object table.
    pub(crate) fn has_objects(body: &[u8]) -> Result<bool, Malformed> {
        Self::objects_in(body).map(|objects| !objects.is_empty())
    }

    /// Where the object table begins in such a body. None: it has none.
    pub(crate) fn objects_at(body: &[u8]) -> Result<Option<usize>, Malformed> {
        let before =
            (0..OBJECTS_PART).map(|number| Self::part_in(body, number).map(|part| LENGTH_BYTES + part.len()));
        let at = before.sum::<Result<usize, _>>()? + OPENING_FIXED_BYTES - LENGTH_BYTES;
        Ok(Self::has_objects(body)?.then_some(at))
    }

    /// Part number `number` of such a body, from 0; empty if it is not there.
    fn part_in(body: &[u8], number: usize) -> Result<&[u8], Malformed> {
        let mut rest = body.get(48..).ok_or(SHORT)?;
        for n in 0..=number {
            if rest.is_empty() && n >= PARTS_OF_FIRST {
                break;
            }
            let part = part_of(&mut rest)?;
            if n == number {
                return Ok(part);
            }
        }
        Ok(&[])
    }

    /// The version that readers of such a body must support.
    fn version_of(body: &[u8]) -> u32 {
        let part = |number| Self::part_in(body, number).unwrap_or_default();
        let options = part(OPTIONS_PART);
        let of_options = version_of_options(options);
        let objects = part(OBJECTS_PART);
        if has_older_rows(objects) {
            FORMAT_VERSION
        } else if has_ancestors(objects) {
            of_options.max(FORMAT_VERSION_FOURTH)
        } else if of_options > FORMAT_VERSION_SECOND {
            of_options
        } else if !objects.is_empty() {
            FORMAT_VERSION_THIRD
        } else if options.is_empty() && part(LOGS_PART).is_empty() {
            FORMAT_VERSION_FIRST
        } else {
            FORMAT_VERSION_SECOND
        }
    }
}

/// The number of parts of an opening of version 1, and the numbers of those that were added, from 0.
const PARTS_OF_FIRST: usize = 2;
const OPTIONS_PART: usize = 2;
const LOGS_PART: usize = 3;
const OBJECTS_PART: usize = 4;

/// Whether an object table is that of a branch: it counts ancestors.
fn has_ancestors(table: &[u8]) -> bool {
    table.len() >= OBJECTS_HEADER_BYTES && table[44..46] != [0; 2]
}

/// Whether rows of an object table are elsewhere: it counts runs of them.
fn has_older_rows(table: &[u8]) -> bool {
    table.len() >= OBJECTS_HEADER_BYTES && table[46..48] != [0; 2]
}

/// The last option of a log that version 2 supports.
const LAST_OPTION_OF_SECOND: u32 = 8;
/// The last one that version 3 supports.
const LAST_OPTION_OF_THIRD: u32 = 10;
/// The last one that version 4 supports.
const LAST_OPTION_OF_FOURTH: u32 = 11;

/// The version that readers of these options of a log must support: ascending by tag, 16 bytes each.
fn version_of_options(options: &[u8]) -> u32 {
    match options.as_chunks::<LOG_OPTION_BYTES>().0.last() {
        None => FORMAT_VERSION_FIRST,
        Some(last) if u32_at(last, 0) > LAST_OPTION_OF_FOURTH => FORMAT_VERSION,
        Some(last) if u32_at(last, 0) > LAST_OPTION_OF_THIRD => FORMAT_VERSION_FOURTH,
        Some(last) if u32_at(last, 0) > LAST_OPTION_OF_SECOND => FORMAT_VERSION_THIRD,
        Some(_) => FORMAT_VERSION_SECOND,
    }
}

const SHORT: Malformed = "opening block is cut off";

/// Takes the next part of an opening's body.
fn part_of<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (length, more) = rest.split_at_checked(LENGTH_BYTES).ok_or(SHORT)?;
    let (part, more) = more.split_at_checked(u32_at(length, 0) as usize).ok_or(SHORT)?;
    *rest = more;
    Ok(part)
}

/// The last operation of a command that version 1 supports, and the size of its body.
const LAST_OPERATION_OF_FIRST: u64 = 3;
/// The operations that version 3 added: stored, cut. And the one that sets options, of which it added some.
const OPERATIONS_OF_THIRD: [u64; 2] = [8, 10];
/// The operations that version 5 added: move rows, begin.
const OPERATIONS_OF_FIFTH: [u64; 2] = [12, 13];
const SET_OPTIONS: u64 = 11;
/// The bytes before the options in a command that sets them.
const SET_OPTIONS_BYTES: usize = 24;
const COMMAND_BYTES_OF_FIRST: usize = 16;

/// The version that readers of a block of this kind must support. A body that is not of a data block is one piece, or
/// its first piece identifies it. A data block with references is only in segments that need version 4 for another reason: each begins
/// with the option that allows them, or has the command that sets it before the first one.
pub(crate) fn version_of(kind: Kind, body: &[u8]) -> u32 {
    match kind {
        Kind::Opening => Opening::version_of(body),
        Kind::Mixed => FORMAT_VERSION_SECOND,
        Kind::Command => version_of_command(body),
        Kind::HardState if HardState::kept_from(body).is_some() => FORMAT_VERSION,
        _ => FORMAT_VERSION_FIRST,
    }
}

fn version_of_command(body: &[u8]) -> u32 {
    let operation = if body.len() < 8 { u64::MAX } else { u64_at(body, 0) };
    if OPERATIONS_OF_FIFTH.contains(&operation) {
        return FORMAT_VERSION;
    }
    if OPERATIONS_OF_THIRD.contains(&operation) {
        return FORMAT_VERSION_THIRD;
    }
    if operation == SET_OPTIONS {
        let options = version_of_options(body.get(SET_OPTIONS_BYTES..).unwrap_or_default());
        return options.max(FORMAT_VERSION_SECOND);
    }
    let is_first = body.len() == COMMAND_BYTES_OF_FIRST && operation <= LAST_OPERATION_OF_FIRST;
    if is_first { FORMAT_VERSION_FIRST } else { FORMAT_VERSION_SECOND }
}

/// The version that readers of these bytes of a segment must support: the highest of all sound blocks in them.
pub(crate) fn version_of_blocks(bytes: &[u8], segment: SegmentId) -> u32 {
    let version = |at: usize| {
        let header = BlockHeader::parse(&bytes[at..], segment).ok()?;
        let body = bytes.get(at + BLOCK_HEADER_BYTES..at + header.length as usize)?;
        Some(version_of(header.kind, body))
    };
    let blocks = (0..bytes.len()).step_by(BLOCK_HEADER_BYTES).filter_map(version);
    blocks.max().unwrap_or(FORMAT_VERSION_FIRST)
}

/// The digest of bytes that are not batches.
pub(crate) fn digest_of_bytes(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(Crc::new(), |crc, p| crc.add(p)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::geometry::{INDEX_STRIDE_BYTES, room_of};

    #[test]
    fn hard_state_can_say_where_files_begin() {
        let state = HardState { term: Term(3), vote: 2, commit: EntryIndex(7) };
        let bodies = [state.encode().to_vec(), state.encode_kept(Index(5)).to_vec()];
        for (body, first) in bodies.iter().zip([None, Some(Index(5))]) {
            assert_eq!((HardState::parse(body), HardState::kept_from(body)), (Ok(state), first));
            let version = version_of(Kind::HardState, body);
            assert_eq!(version, if first.is_some() { FORMAT_VERSION } else { FORMAT_VERSION_FIRST });
        }
        HardState::parse(&state.encode_kept(Index(0))).unwrap_err();
        HardState::parse(&[0; HARD_STATE_BYTES + 1]).unwrap_err();
    }

    fn header() -> SegmentHeader {
        SegmentHeader {
            log: LogId(77),
            number: 3,
            id: SegmentId(99),
            bytes: 1 << 20,
            version: FORMAT_VERSION_FIRST,
        }
    }

    fn footer() -> Footer {
        Footer {
            number: 3,
            id: SegmentId(99),
            base_raft: EntryIndex(10),
            base_term: Term(1),
            first: Index(100),
            next: Index(200),
            last_raft: EntryIndex(20),
            last_term: Term(2),
            first_timestamp: Timestamp(5),
            last_timestamp: Timestamp(6),
            data_end: 8192,
            index_offset: 9000,
            index_count: 2,
            index_crc: 1,
        }
    }

    #[test]
    fn header_and_footer_survive_encoding_and_detect_every_bit_flip() {
        let good = header().encode();
        assert_eq!(SegmentHeader::parse(&good), Ok(header()));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::parse(&bad).is_err(), "header bit {bit}");
        }
        let good = footer().encode();
        assert_eq!(Footer::parse(&good, 3, SegmentId(99)), Ok(footer()));
        assert!(Footer::parse(&good, 3, SegmentId(98)).is_err());
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::parse(&bad, 3, SegmentId(99)).is_err(), "footer bit {bit}");
        }
    }

    #[test]
    fn newer_format_is_distinguished_from_damage() {
        let mut newer = header().encode();
        newer[16] = FORMAT_VERSION as u8 + 1;
        let crc = crc32c(&newer[12..]).to_le_bytes();
        newer[8..12].copy_from_slice(&crc);
        assert_eq!(SegmentHeader::parse(&newer), Err(HeaderFault::Newer(FORMAT_VERSION + 1)));
    }

    #[test]
    fn opening_survives_encoding_and_every_cut_is_an_error() {
        let opening = Opening {
            base_raft: EntryIndex(4),
            base_term: Term(2),
            log_first: Index(9),
            hard_state: HardState { term: Term(2), vote: 1, commit: EntryIndex(3) },
            configuration: b"members".to_vec(),
            sessions: b"table".to_vec(),
            options: Vec::new(),
            logs: Vec::new(),
            objects: Vec::new(),
        };
        let bytes = opening.encode();
        assert_eq!(Opening::parse(&bytes), Ok(opening.clone()));
        assert_eq!(version_of(Kind::Opening, &bytes), 1);
        for cut in 0..bytes.len() {
            assert!(Opening::parse(&bytes[..cut]).is_err());
        }
        let without = bytes.len();
        let opening = Opening { options: b"options".to_vec(), ..opening };
        let bytes = opening.encode();
        assert_eq!(Opening::parse(&bytes), Ok(opening.clone()));
        assert_eq!(version_of(Kind::Opening, &bytes), 2);
        for cut in (0..bytes.len()).filter(|cut| *cut != without) {
            assert!(Opening::parse(&bytes[..cut]).is_err());
        }
        let longer = [&bytes[..], &[0; 4]].concat();
        assert!(Opening::parse(&longer).is_err(), "a part added by a later version");
        let empty = [&bytes[..without], &[0; 4]].concat();
        assert!(Opening::parse(&empty).is_err(), "an empty part is refused");
        for options in [&b""[..], b"options"] {
            let opening = Opening { options: options.to_vec(), logs: b"logs".to_vec(), ..opening.clone() };
            let bytes = opening.encode();
            assert_eq!(Opening::parse(&bytes), Ok(opening));
            assert_eq!(Opening::logs_in(&bytes), Ok(&b"logs"[..]));
            assert_eq!(version_of(Kind::Opening, &bytes), 2);
            assert!(Opening::parse(&[&bytes[..], &[0; 4]].concat()).is_err(), "an empty part is refused");
        }
        for logs in [&b""[..], b"logs"] {
            let opening = Opening { logs: logs.to_vec(), objects: b"objects".to_vec(), ..opening.clone() };
            let bytes = opening.encode();
            assert_eq!(Opening::parse(&bytes), Ok(opening));
            assert_eq!(Opening::logs_in(&bytes), Ok(logs));
            assert_eq!(version_of(Kind::Opening, &bytes), 3);
            assert!(
                Opening::parse(&[&bytes[..], &[0; 4]].concat()).is_err(),
                "a part added by a later version"
            );
        }
    }

    #[test]
    fn index_always_fits_its_reserve() {
        for bytes in [64 << 10, 1 << 20, 64 << 20, 1 << 30] {
            let entries = room_of(bytes) / INDEX_STRIDE_BYTES + 1;
            assert!(data_limit(bytes) + entries * INDEX_ENTRY_BYTES + FOOTER_BYTES <= bytes);
        }
    }
}
