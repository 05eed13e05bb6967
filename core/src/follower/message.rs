//! FollowMessage: the items that a log feeds to one that follows it, and their encoding. Values and bytes.
//!
//! A feed returns entries, each a block's header and its body, or a state, at which a follower begins when no entries
//! lead there. An encoded item is a head, and beside it the bodies' bytes as they are in the source's files:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | checksum of the rest of the head |
//! | 4 | 1 | 1: a state; 2: entries |
//! | 5 | 1 | the version of this format that is needed to decode it: 0; 1 with options of the log. A later version is refused as `Unsupported` |
//! | 6 | 2 | bytes between these fields and the headers, added by a later version and skipped by an earlier one: 0 |
//! | 8 | 16 | the log's id |
//! | 24 | 8 | the source's last committed entry |
//! | 32 | 4 | number of headers: 1 for a state |
//! | 36 | 4 | 0; ignored, reserved for later versions |
//! | 40 | 8 | the first record that the source's log has not discarded; 0: unknown |
//! | 48 | 64 each | block headers as in the files, checksummed under the salt 0, with `durable upto` 0 |
//!
//! A state's header and body are those of an opening block: positions, membership, sessions.
//!
//! Invariants:
//! - a [`FollowMessage`] is sound: every byte was checked when it was made. This file checks bytes from outside, the archive
//!   and the cursor check bytes of files. No bytes from outside can cause a panic;
//! - its entries follow each other.
//!
//! Must not know: who sends, files.

use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::state::command::parse_command;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::wire::raft_message::{Pieces, body_bytes};
use crate::replica::wire::repair_message::BLOCKS_MAX;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::objects;
use crate::store::format::segment::{FORMAT_VERSION_FIRST, Opening, version_of};
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term, Timestamp};
use bytes::{Bytes, BytesMut};

/// The length in bytes of a head without its headers.
pub(crate) const HEAD_BYTES: usize = 48;
/// The newest version of the format that this code decodes; it writes it only if an item needs it. An item from a later
/// program is decoded if it needs no later version.
const VERSION: u8 = 1;
const STATE: u8 = 1;
const ENTRIES: u8 = 2;
/// The salt of encoded headers, which belong to no segment.
const NO_SEGMENT: SegmentId = SegmentId(0);
/// Every position is below this, so that adding to one never overflows.
const POSITION_MAX: u64 = 1 << 62;
const BEYOND: Malformed = "a position beyond any log";

/// The position at which a feed begins.
///
/// ```
/// use chiplog::follower::FollowFrom;
/// use chiplog::Index;
/// assert_ne!(FollowFrom::First, FollowFrom::Index(Index(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowFrom {
    /// After an entry that the follower has: the value of [`FollowerLog::resume_point`](crate::FollowerLog::resume_point).
    After {
        /// The log's id.
        log: LogId,
        /// The entry's index.
        raft: EntryIndex,
        /// The entry's term. Two logs that have an entry of the same index and term are the same up to it.
        term: Term,
    },
    /// After a record that the follower has: the value of [`FollowerLog::resume_point`](crate::FollowerLog::resume_point)
    /// in a copy of one named log. Each of these copies numbers its entries by itself, so the record counts.
    AfterRecord {
        /// The log's id.
        log: LogId,
        /// The index of the copy's last entry. The feed continues with the next one.
        raft: EntryIndex,
        /// That entry's term.
        term: Term,
        /// The next record.
        next: Index,
        /// The first record that the copy has not discarded.
        first: Index,
        /// The time of the copy's last entry: that of its last record, if it has any. A log with another time at that record
        /// has another history. 0: not known.
        time: Timestamp,
    },
    /// A new copy, from the block that holds this record, or will hold it if it is the next one.
    Index(Index),
    /// A new copy, from the first record that is not discarded.
    First,
    /// A new copy, after the last committed record.
    Newest,
    /// A new copy, from the block that holds the record this many before the end; the first record if there are
    /// fewer.
    Last(u64),
    /// A new copy, from the block that holds the first record written at this time or later, also if it is still to
    /// come.
    Timestamp(Timestamp),
}

/// An item of a feed: entries, or a state at which a follower begins.
///
/// ```
/// use chiplog::follower::{FollowMessage, FollowFrom};
/// use chiplog::{Log, Options};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let fed = log.follow(FollowFrom::First)?.next(1 << 20)?.expect("the feed of a new copy begins with a state");
/// let (head, pieces) = fed.encode(); // the encoded item
/// assert_eq!(FollowMessage::decode(head, pieces)?, fed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowMessage {
    /// The follower begins here, and discards everything that it had.
    State(FollowSnapshot),
    /// The next entries.
    Entries(FollowEntries),
}

/// One or more entries that follow each other.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let mut feed = log.follow(chiplog::follower::FollowFrom::Newest)?;
/// feed.next(0)?; // the state
/// log.append(b"x")?;
/// let Some(chiplog::follower::FollowMessage::Entries(entries)) = feed.next(1 << 20)? else { panic!() };
/// assert_eq!(entries.iter().map(|e| e.records()).sum::<u32>(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowEntries {
    pub(crate) log: LogId,
    pub(crate) committed: EntryIndex,
    pub(crate) kept: Index,
    pub(crate) entries: Vec<FollowEntry>,
}

/// An entry of the log: its block without the fields that depend on a file.
///
/// ```
/// # fn show(entry: &chiplog::follower::FollowEntry) {
/// println!("entry {} of term {}: {} records", entry.raft(), entry.term(), entry.records());
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowEntry {
    pub(crate) header: BlockHeader,
    /// The body, in pieces that each hold whole batches.
    pub(crate) body: Vec<Bytes>,
}

impl FollowEntry {
    /// The entry's index.
    pub fn raft(&self) -> EntryIndex {
        self.header.raft_index
    }

    /// The entry's term.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// The entry's first record; if it holds none, the next record to come.
    pub fn first(&self) -> Index {
        self.header.first
    }

    /// How many records the entry holds.
    pub fn records(&self) -> u32 {
        self.header.record_count
    }

    /// The time when the entry was written, by its leader's clock.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// The length of the entry's body, in bytes.
    pub fn bytes(&self) -> usize {
        body_bytes(&self.header)
    }
}

impl FollowEntries {
    /// The log's id.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The source's last committed entry when this was made.
    pub fn committed(&self) -> EntryIndex {
        self.committed
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries. Always false for entries from a feed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FollowEntry> {
        self.entries.iter()
    }

    /// The first entry.
    pub fn first(&self) -> Option<&FollowEntry> {
        self.entries.first()
    }

    /// The last entry.
    pub fn last(&self) -> Option<&FollowEntry> {
        self.entries.last()
    }
}

impl<'a> IntoIterator for &'a FollowEntries {
    type Item = &'a FollowEntry;
    type IntoIter = std::slice::Iter<'a, FollowEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FollowMessage {
    /// The log's id.
    pub fn log(&self) -> LogId {
        match self {
            Self::State(state) => state.log,
            Self::Entries(entries) => entries.log,
        }
    }

    /// The source's last committed entry when this was made, which shows how far the follower lags.
    pub fn committed(&self) -> EntryIndex {
        match self {
            Self::State(state) => state.committed,
            Self::Entries(entries) => entries.committed,
        }
    }

    /// The first record that the source's log had not discarded when this was made. A follower need not keep the
    /// records before it, although the entry with the discard may still be to come. `None` if the source is a
    /// follower itself, which can keep fewer records than its own source; one that is a copy of one log says what it
    /// knows to be discarded.
    pub fn kept(&self) -> Option<Index> {
        let kept = match self {
            Self::State(state) => state.kept,
            Self::Entries(entries) => entries.kept,
        };
        Some(kept).filter(|kept| *kept > Index(0))
    }

    /// The length of all bodies together, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::State(state) => state.body.len(),
            Self::Entries(entries) => entries.iter().map(FollowEntry::bytes).sum(),
        }
    }

    /// The version of the format that is needed to decode it.
    fn version(&self) -> u8 {
        let is_later = |kind, body: Option<&Bytes>| {
            version_of(kind, body.map_or(&[], |body| &body[..])) > FORMAT_VERSION_FIRST
        };
        u8::from(match self {
            Self::State(state) => is_later(Kind::Opening, Some(&state.body)),
            Self::Entries(entries) => entries.iter().any(|e| is_later(e.header.kind, e.body.first())),
        })
    }

    /// Encodes the item as a head (48 bytes, and 64 for each entry) and the pieces of the bodies, which are not
    /// copied.
    pub fn encode(&self) -> (Bytes, Vec<Bytes>) {
        let (kind, headers, pieces): (u8, Vec<&BlockHeader>, Vec<Bytes>) = match self {
            Self::State(state) => (STATE, vec![&state.header], vec![state.body.clone()]),
            Self::Entries(FollowEntries { entries, .. }) => (
                ENTRIES,
                entries.iter().map(|e| &e.header).collect(),
                entries.iter().flat_map(|e| e.body.iter().cloned()).collect(),
            ),
        };
        let mut head = BytesMut::with_capacity(HEAD_BYTES + headers.len() * BLOCK_HEADER_BYTES);
        head.extend_from_slice(&[0, 0, 0, 0, kind, self.version(), 0, 0]);
        head.extend_from_slice(&self.log().0.to_le_bytes());
        head.extend_from_slice(&self.committed().0.to_le_bytes());
        head.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&self.kept().unwrap_or_default().0.to_le_bytes());
        for header in headers {
            head.extend_from_slice(&BlockHeader { durable_upto: 0, ..*header }.encode(NO_SEGMENT));
        }
        let crc = crc32c(&head[4..]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        (head.freeze(), pieces)
    }

    /// The reverse of [`Self::encode`]. The pieces may be split differently, but have to be in order. Every byte is
    /// checked. Items from a source with a later version of chiplog can be decoded, unless they need that version.
    ///
    /// # Errors
    /// `Corrupt`: this is no encoded item, or it is damaged. `Unsupported`: it needs a later version of chiplog.
    pub fn decode(head: Bytes, pieces: Vec<Bytes>) -> Result<Self> {
        let damaged = |why| {
            Error::new(ErrorKind::Corrupt, format!("the fed item is damaged: {why}; nothing was taken"))
        };
        let (fixed, headers) = split(&head).map_err(damaged)?;
        if fixed[5] > VERSION {
            let what = format!(
                "the fed item needs version {} of the feed format, and this program reads up to {VERSION}; nothing was taken: \
                 upgrade the follower to the version of chiplog that the source has, or choose a source that has this version",
                fixed[5]
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        parse(fixed, headers, pieces).map_err(damaged)
    }
}

/// Returns the fields of a head, and the headers, after checking the checksum.
fn split(head: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (fixed, rest) = head.split_at_checked(HEAD_BYTES).ok_or("head is truncated")?;
    if crc32c(&head[4..]) != u32_at(fixed, 0) {
        return Err("head's checksum does not match");
    }
    let more = usize::from(u16::from_le_bytes([fixed[6], fixed[7]]));
    Ok((fixed, rest.get(more..).ok_or("head is truncated")?))
}

fn parse(fixed: &[u8], headers: &[u8], pieces: Vec<Bytes>) -> Result<FollowMessage, Malformed> {
    let count = u32_at(fixed, 32) as usize;
    if count == 0 || count > BLOCKS_MAX || headers.len() != count * BLOCK_HEADER_BYTES {
        return Err("head's length contradicts its fields");
    }
    let mut log = [0; 16];
    log.copy_from_slice(&fixed[8..24]);
    let (log, committed) = (LogId(u128::from_le_bytes(log)), EntryIndex(u64_at(fixed, 24)));
    let kept = Index(u64_at(fixed, 40));
    if kept.0 > POSITION_MAX {
        return Err(BEYOND);
    }
    let mut pieces = Pieces::new(pieces.into_iter().filter(|p| !p.is_empty()).collect());
    let mut entries: Vec<FollowEntry> = Vec::with_capacity(count);
    for bytes in headers.chunks_exact(BLOCK_HEADER_BYTES) {
        let header = BlockHeader::parse(bytes, NO_SEGMENT)?;
        if header.durable_upto != 0 || header.raft_index.0 > POSITION_MAX || header.first.0 > POSITION_MAX {
            return Err(BEYOND);
        }
        let follows = entries.last().is_none_or(|FollowEntry { header: before, .. }| {
            header.raft_index == before.raft_index.next()
                && header.term >= before.term
                && header.first >= before.next_record()
        });
        if !follows {
            return Err("entries do not follow each other");
        }
        let body = pieces.take(&header)?;
        if header.kind == Kind::Command
            && let Command::Discard { first: at }
            | Command::Log(LogCommand::Discard { first: at, .. } | LogCommand::Open { start: at, .. }) =
                parse_command(&body.concat())?
            && at.0 > POSITION_MAX
        {
            return Err(BEYOND);
        }
        entries.push(FollowEntry { header, body });
    }
    if !pieces.is_empty() {
        return Err("more bodies than entries");
    }
    match fixed[4] {
        ENTRIES if entries.iter().all(|e| e.header.kind.is_entry()) => {
            Ok(FollowMessage::Entries(FollowEntries { log, committed, kept, entries }))
        }
        STATE if count == 1 => {
            let Some(FollowEntry { header, body }) = entries.pop() else {
                return Err("state without a header");
            };
            let body = Bytes::from(body.concat());
            let opening = Opening::parse(&body)?;
            let base = (opening.base_raft, opening.base_term);
            let begins = opening.log_first <= header.first;
            if header.kind != Kind::Opening || base != (header.raft_index, header.term) || !begins {
                return Err("state contradicts itself");
            }
            let membership = Membership::decode(&opening.configuration)?;
            if !opening.objects.is_empty() {
                let (table, first) = objects::decode(&opening.objects)?;
                if table.is_beyond(POSITION_MAX) {
                    return Err(BEYOND);
                }
                if first > header.first || (!table.part.is_none() && !membership.is_of_one_log()) {
                    return Err("state contradicts itself");
                }
            }
            LogOptions::decode(&opening.options)?;
            if LogTable::decode(&opening.logs)?.iter().any(|(_, log)| log.next.0 > POSITION_MAX) {
                return Err(BEYOND);
            }
            Ok(FollowMessage::State(FollowSnapshot { log, committed, kept, header, body }))
        }
        _ => Err("unknown kind: neither entries nor a state"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::BatchBuilder;
    use crate::store::format::block::digest_of_batches;
    use crate::store::format::objects::Objects;
    use crate::store::segment::Base;
    use crate::types::LogNumber;

    fn header(raft: u64, kind: Kind, body: &[u8]) -> BlockHeader {
        BlockHeader::without_records(kind, (EntryIndex(raft), Term(2)), Index(7), Timestamp(5), body)
    }

    fn discard(first: u64) -> Vec<u8> {
        [1, first].iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    }

    fn entries() -> FollowMessage {
        let batches: Vec<_> = [&b"one"[..], b"another"]
            .iter()
            .map(|record| BatchBuilder::new().push(record).unwrap().build().unwrap())
            .collect();
        let body: Vec<Bytes> = batches.iter().map(|b| b.as_bytes().clone()).collect();
        let data = BlockHeader {
            batch_count: 2,
            record_count: 2,
            body_digest: digest_of_batches(batches.iter().map(|b| b.header().crc)),
            ..header(3, Kind::Data, &body.concat())
        };
        let no_op = BlockHeader { first: Index(9), ..header(4, Kind::NoOp, b"") };
        let command = BlockHeader { first: Index(9), ..header(5, Kind::Command, &discard(8)) };
        let entries = vec![
            FollowEntry { header: data, body },
            FollowEntry { header: no_op, body: Vec::new() },
            FollowEntry { header: command, body: vec![discard(8).into()] },
        ];
        FollowMessage::Entries(FollowEntries {
            log: LogId(77),
            committed: EntryIndex(9),
            kept: Index(4),
            entries,
        })
    }

    fn state() -> FollowMessage {
        state_with(Opening::default())
    }

    fn state_with(rest: Opening) -> FollowMessage {
        let (base_raft, base_term, log_first) = (EntryIndex(4), Term(2), Index(3));
        let opening = Opening { base_raft, base_term, log_first, sessions: vec![1; 8], ..rest };
        let body = Bytes::from(opening.encode());
        let header = header(4, Kind::Opening, &body);
        FollowMessage::State(FollowSnapshot {
            log: LogId(77),
            committed: EntryIndex(9),
            kept: Index(0),
            header,
            body,
        })
    }

    /// Also if the pieces are split differently.
    #[test]
    fn encoded_items_decode_to_the_same() {
        for fed in [entries(), state()] {
            let (head, pieces) = fed.encode();
            assert_eq!(FollowMessage::decode(head.clone(), pieces.clone()).unwrap(), fed);
            let whole = Bytes::from(pieces.concat());
            for cut in 0..=whole.len() {
                let pieces = vec![whole.slice(..cut), whole.slice(cut..)];
                let again = FollowMessage::decode(head.clone(), pieces).unwrap();
                assert_eq!(again.encode().0, head);
                assert_eq!(again.encode().1.concat(), whole);
                if let FollowMessage::Entries(entries) = again {
                    let whole = |e: &FollowEntry| e.header.kind == Kind::Data || e.body.len() <= 1;
                    assert!(
                        entries.iter().all(whole),
                        "cut at {cut}: a body without batches is in one piece"
                    );
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        for fed in [entries(), state()] {
            let (head, pieces) = fed.encode();
            for bit in 0..head.len() * 8 {
                let mut bad = head.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                let error = FollowMessage::decode(bad.into(), pieces.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "head bit {bit}");
            }
            let whole = pieces.concat();
            for bit in 0..whole.len() * 8 {
                let mut bad = whole.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(FollowMessage::decode(head.clone(), vec![bad.into()]).is_err(), "body bit {bit}");
            }
            for cut in 0..head.len() {
                assert!(FollowMessage::decode(head.slice(..cut), pieces.clone()).is_err());
            }
            for cut in 0..whole.len() {
                assert!(FollowMessage::decode(head.clone(), vec![whole[..cut].to_vec().into()]).is_err());
            }
            let more = [pieces, vec![Bytes::from_static(b"x")]].concat();
            assert!(FollowMessage::decode(head, more).is_err());
        }
    }

    /// Changes a head and corrects its checksum.
    fn changed(head: &Bytes, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut head = head.to_vec();
        change(&mut head);
        let crc = crc32c(&head[4..]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        head.into()
    }

    /// Source and follower are not upgraded at the same moment.
    #[test]
    fn items_of_a_later_version_are_decoded_or_refused_as_unsupported() {
        for fed in [entries(), state()] {
            let (head, pieces) = fed.encode();
            let later = changed(&head, |head| {
                head[6] = 16; // fields that this version does not know
                head[36..40].copy_from_slice(&[9; 4]);
                head.splice(HEAD_BYTES..HEAD_BYTES, [7; 16]);
            });
            assert_eq!(FollowMessage::decode(later, pieces.clone()).unwrap(), fed);
            assert_eq!(head[5], 0, "earlier versions can read it");
            let too_late = changed(&head, |head| head[5] = VERSION + 1);
            let error = FollowMessage::decode(too_late, pieces.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("upgrade the follower"), "{error}");
            let cut_off = changed(&head, |head| head[6..8].copy_from_slice(&u16::MAX.to_le_bytes()));
            assert_eq!(FollowMessage::decode(cut_off, pieces).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    /// An earlier version would report damage, or that the copy belongs to another log.
    #[test]
    fn items_with_log_options_need_version_1() {
        let FollowMessage::Entries(mut fed) = entries() else { unreachable!() };
        let body = crate::replica::state::command::encode_command(Command::SetOptions(LogOptions::default()));
        fed.entries[2].header = BlockHeader { first: Index(9), ..header(5, Kind::Command, &body) };
        fed.entries[2].body = vec![body.into()];
        let FollowMessage::State(state) = state() else { unreachable!() };
        let mut options = LogOptions::default();
        options.set(crate::options::log_options::LogOption::SessionsMax, Some(9));
        let opening = Opening { options: options.encode(), ..Opening::parse(&state.body).unwrap() };
        let body = Bytes::from(opening.encode());
        let state = FollowSnapshot { header: header(4, Kind::Opening, &body), body, ..state };
        for fed in [FollowMessage::Entries(fed), FollowMessage::State(state)] {
            let (head, pieces) = fed.encode();
            assert_eq!(head[5], 1);
            assert_eq!(FollowMessage::decode(head, pieces).unwrap(), fed);
        }
    }

    /// Its checksums are right, and it would hide all records for ever.
    #[test]
    fn position_beyond_the_bound_is_refused() {
        let FollowMessage::Entries(mut far) = entries() else { unreachable!() };
        let body = discard(u64::MAX / 2);
        far.entries[2].header = BlockHeader { first: Index(9), ..header(5, Kind::Command, &body) };
        far.entries[2].body = vec![body.into()];
        let (head, pieces) = FollowMessage::Entries(far).encode();
        assert!(FollowMessage::decode(head, pieces).is_err());
        let FollowMessage::State(good) = state() else { unreachable!() };
        let opening = Opening { log_first: Index(8), ..Opening::parse(&good.body).unwrap() };
        let body = Bytes::from(opening.encode());
        let header = header(4, Kind::Opening, &body);
        let (head, pieces) = FollowMessage::State(FollowSnapshot { header, body, ..good }).encode();
        assert!(FollowMessage::decode(head, pieces).is_err());
    }

    /// A copy would begin with a record above its next one, or take the objects of a group for its own.
    #[test]
    fn table_that_contradicts_its_state_is_refused() {
        let is_taken = |first, part, membership: Membership| {
            let base = Base { next: Index(1), ..Base::default() };
            let ancestors = vec![objects::Ancestor { log: LogId(7), below: 1 }];
            let table = Objects { number: 1, base, ancestors, part, ..Objects::default() };
            let (objects, configuration) = (objects::encode(&table, first), membership.encode());
            let (head, pieces) =
                state_with(Opening { objects, configuration, ..Opening::default() }).encode();
            FollowMessage::decode(head, pieces).is_ok()
        };
        let one_log = Membership::of_one_log;
        assert!(is_taken(Index(7), LogNumber(3), one_log()));
        assert!(!is_taken(Index(8), LogNumber(3), one_log()));
        assert!(!is_taken(Index(u64::MAX), LogNumber(3), one_log()));
        assert!(!is_taken(Index(7), LogNumber(3), Membership::default()));
    }

    #[test]
    fn entries_that_do_not_follow_each_other_are_refused() {
        let FollowMessage::Entries(good) = entries() else { unreachable!() };
        let wrong: [fn(&mut Vec<FollowEntry>); 4] =
            [|e| e.swap(0, 1), |e| drop(e.remove(1)), |e| e[2].header.term = Term(1), |e| e.clear()];
        for spoil in wrong {
            let mut bad = good.clone();
            spoil(&mut bad.entries);
            let (head, pieces) = FollowMessage::Entries(bad).encode();
            assert!(FollowMessage::decode(head, pieces).is_err());
        }
    }
}
