//! Fed: what goes from a log to one that follows it, and what it looks like on its way. Values and bytes.
//!
//! A feed gives entries, each a block's header and its body, or a state, from which a follower begins where no entries
//! can lead it. On its way either is a head, and the bodies' bytes beside it as they stand in the source's files:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | checksum of all that follows in the head |
//! | 4 | 1 | 1: a state; 2: entries |
//! | 5 | 1 | the version of this format that is needed to read it: 0; 1 with options of the log. A later one is refused as `Unsupported` |
//! | 6 | 2 | bytes between these fields and the headers that a later version adds, and an earlier one passes over: 0 |
//! | 8 | 16 | the log's id |
//! | 24 | 8 | the source's last committed entry |
//! | 32 | 4 | number of headers: of a state 1 |
//! | 36 | 4 | 0; passed over, as a later version may have a use for it |
//! | 40 | 8 | the first record that the source's log has not discarded; 0: not told |
//! | 48 | 64 each | block headers as in the files, checksummed under the salt 0, with `durable upto` 0 |
//!
//! A state's header and body are those of an opening block: positions, membership, sessions.
//!
//! Invariants:
//! - a [`FollowMessage`] is sound: whoever makes one has checked every byte, here what comes from outside, in the archive or the
//!   cursor what comes from the files. Nothing that comes from outside can panic;
//! - its entries follow each other.
//!
//! Must not know: who sends, files.

use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::Command;
use crate::replica::state::sequencer::parse_command;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::wire::raft_message::{Pieces, body_bytes};
use crate::replica::wire::repair_message::BLOCKS_MAX;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::segment::{FORMAT_VERSION_FIRST, Opening, version_of};
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term, Timestamp};
use bytes::{Bytes, BytesMut};

/// Bytes of a head without its headers.
pub(crate) const HEAD_BYTES: usize = 48;
/// The version of the format that this is: what comes from a source of a later one is read as long as it can be.
const VERSION: u8 = 1;
const STATE: u8 = 1;
const ENTRIES: u8 = 2;
/// The salt of headers on their way.
const NO_SEGMENT: SegmentId = SegmentId(0);
/// No log is so long: positions are added to.
const POSITION_MAX: u64 = 1 << 62;
const BEYOND: Malformed = "a position beyond any log";

/// Where a feed begins.
///
/// ```
/// use chiplog::{FollowFrom, Index};
/// assert_ne!(FollowFrom::First, FollowFrom::Index(Index(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowFrom {
    /// Behind an entry that the follower has: what [`FollowerLog::resume_point`](crate::FollowerLog::resume_point) says.
    After {
        /// The log's id.
        log: LogId,
        /// The entry.
        raft: EntryIndex,
        /// Its term: two logs that have an entry of the same index and term are the same before it.
        term: Term,
    },
    /// Anew, with the block that holds this record, or will: it may be the next one to come.
    Index(Index),
    /// Anew, with the first record that is not discarded.
    First,
    /// Anew, behind the last committed record.
    Newest,
    /// Anew, with the block that holds the record so many before the end, or the first one if there are not so many.
    Last(u64),
    /// Anew, with the block that holds the first record that was written at this time or later, or will.
    Timestamp(Timestamp),
}

/// What a feed gives: entries, or a state from which a follower begins.
///
/// ```
/// use chiplog::{FollowMessage, FollowFrom, Log, Options};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let fed = log.follow(FollowFrom::First)?.next(1 << 20)?.expect("a feed that begins again gives a state first");
/// let (head, pieces) = fed.encode(); // as it travels
/// assert_eq!(FollowMessage::decode(head, pieces)?, fed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowMessage {
    /// The follower begins here, and leaves everything behind that it had.
    State(FollowSnapshot),
    /// What comes next.
    Entries(FollowEntries),
}

/// Entries that follow each other, at least one.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let mut feed = log.follow(chiplog::FollowFrom::Newest)?;
/// feed.next(0)?; // the state
/// log.append(b"x")?;
/// let Some(chiplog::FollowMessage::Entries(entries)) = feed.next(1 << 20)? else { panic!() };
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

/// An entry of the log: its block without what depends on a file.
///
/// ```
/// # fn show(entry: &chiplog::FollowEntry) {
/// println!("entry {} of term {}: {} records", entry.raft(), entry.term(), entry.records());
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowEntry {
    pub(crate) header: BlockHeader,
    /// In pieces that each hold whole batches.
    pub(crate) body: Vec<Bytes>,
}

impl FollowEntry {
    /// Its place in the order of entries.
    pub fn raft(&self) -> EntryIndex {
        self.header.raft_index
    }

    /// Its term.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// Its first record; without records, the next one to come.
    pub fn first(&self) -> Index {
        self.header.first
    }

    /// How many records it holds.
    pub fn records(&self) -> u32 {
        self.header.record_count
    }

    /// When it was written, by its leader's clock.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// Bytes of its body.
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

    /// How many entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none: never, as they come from a feed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FollowEntry> {
        self.entries.iter()
    }

    /// The first one.
    pub fn first(&self) -> Option<&FollowEntry> {
        self.entries.first()
    }

    /// The last one.
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

    /// The source's last committed entry when this was made: how far a follower lags behind it.
    pub fn committed(&self) -> EntryIndex {
        match self {
            Self::State(state) => state.committed,
            Self::Entries(entries) => entries.committed,
        }
    }

    /// The first record that the source's log had not discarded when this was made: what lies before it a follower need
    /// not keep, though the discard is still to come. `None` if the source is a follower itself: it can keep less.
    pub fn kept(&self) -> Option<Index> {
        let kept = match self {
            Self::State(state) => state.kept,
            Self::Entries(entries) => entries.kept,
        };
        Some(kept).filter(|kept| *kept > Index(0))
    }

    /// Bytes of the bodies.
    pub fn bytes(&self) -> usize {
        match self {
            Self::State(state) => state.body.len(),
            Self::Entries(entries) => entries.iter().map(FollowEntry::bytes).sum(),
        }
    }

    /// The version of the format that is needed to read it.
    fn version(&self) -> u8 {
        let is_later = |kind, body: Option<&Bytes>| {
            version_of(kind, body.map_or(&[], |body| &body[..])) > FORMAT_VERSION_FIRST
        };
        u8::from(match self {
            Self::State(state) => is_later(Kind::Opening, Some(&state.body)),
            Self::Entries(entries) => entries.iter().any(|e| is_later(e.header.kind, e.body.first())),
        })
    }

    /// As it travels: a head of some bytes, 64 an entry, and what goes beside it, which is not copied.
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

    /// The reverse of [`Self::encode`]. The pieces may be cut elsewhere than they were, as long as they come in order.
    /// Every byte is checked. What a source of a later version of chiplog gave can be read as well, except for what it says that
    /// this one cannot understand.
    ///
    /// # Errors
    /// `Corrupt`: it is not what a feed gave. `Unsupported`: it needs a later version of chiplog.
    pub fn decode(head: Bytes, pieces: Vec<Bytes>) -> Result<Self> {
        let damaged = |why| {
            Error::new(ErrorKind::Corrupt, format!("what was fed is damaged: {why}; nothing of it was taken"))
        };
        let (fixed, headers) = split(&head).map_err(damaged)?;
        if fixed[5] > VERSION {
            let what = format!(
                "what was fed is of version {} of the feeds' format, and this program reads up to {VERSION}; nothing of it was \
                 taken: upgrade the follower to the version of chiplog that the source has, or let it follow one that has this",
                fixed[5]
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        parse(fixed, headers, pieces).map_err(damaged)
    }
}

/// The fields of a head, and the headers; its checksum is right.
fn split(head: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (fixed, rest) = head.split_at_checked(HEAD_BYTES).ok_or("head is cut off")?;
    if crc32c(&head[4..]) != u32_at(fixed, 0) {
        return Err("head's checksum does not match");
    }
    let more = usize::from(u16::from_le_bytes([fixed[6], fixed[7]]));
    Ok((fixed, rest.get(more..).ok_or("head is cut off")?))
}

fn parse(fixed: &[u8], headers: &[u8], pieces: Vec<Bytes>) -> Result<FollowMessage, Malformed> {
    let count = u32_at(fixed, 32) as usize;
    if count == 0 || count > BLOCKS_MAX || headers.len() != count * BLOCK_HEADER_BYTES {
        return Err("head has another length than it says");
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
            && let Command::Discard { first } = parse_command(&body.concat())?
            && first.0 > POSITION_MAX
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
                return Err("a state without a header");
            };
            let body = Bytes::from(body.concat());
            let opening = Opening::parse(&body)?;
            let base = (opening.base_raft, opening.base_term);
            let begins = opening.log_first <= header.first;
            if header.kind != Kind::Opening || base != (header.raft_index, header.term) || !begins {
                return Err("a state that contradicts itself");
            }
            Membership::decode(&opening.configuration)?;
            LogOptions::decode(&opening.options)?;
            Ok(FollowMessage::State(FollowSnapshot { log, committed, kept, header, body }))
        }
        _ => Err("neither entries nor a state"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::BatchBuilder;
    use crate::store::format::block::digest_of_batches;
    use crate::store::format::segment::digest_of_bytes;

    fn header(raft: u64, kind: Kind, body: &[u8]) -> BlockHeader {
        BlockHeader {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: 0,
            raft_index: EntryIndex(raft),
            term: Term(2),
            first: Index(7),
            timestamp: Timestamp(5),
            record_count: 0,
            durable_upto: 0,
            body_digest: digest_of_bytes(&[body]),
            kind,
        }
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
        let opening = Opening {
            base_raft: EntryIndex(4),
            base_term: Term(2),
            log_first: Index(3),
            sessions: vec![1; 8],
            ..Opening::default()
        };
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

    /// However the pieces are cut.
    #[test]
    fn what_is_fed_comes_back() {
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
                    assert!(entries.iter().all(whole), "cut at {cut}: what is no batch is in one piece");
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
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

    /// A head that is another one, its checksum right.
    fn changed(head: &Bytes, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut head = head.to_vec();
        change(&mut head);
        let crc = crc32c(&head[4..]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        head.into()
    }

    /// Source and follower are not upgraded in one moment.
    #[test]
    fn what_a_later_version_feeds_is_read_or_refused_as_such() {
        for fed in [entries(), state()] {
            let (head, pieces) = fed.encode();
            let later = changed(&head, |head| {
                head[6] = 16; // fields that are not known here
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

    /// An earlier version would take them for damage, and the copy for one of another log.
    #[test]
    fn options_of_the_log_are_said_to_need_a_later_version() {
        let FollowMessage::Entries(mut fed) = entries() else { unreachable!() };
        let body =
            crate::replica::state::sequencer::encode_command(Command::SetOptions(LogOptions::default()));
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
    fn a_position_beyond_any_log_is_refused() {
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
