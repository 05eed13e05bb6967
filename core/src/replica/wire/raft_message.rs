//! The encoding of raft's types between replicas: an entry's descriptor, a change of membership, a message. Bytes only.
//!
//! Raft orders *descriptors* of 40 bytes each. The bodies of the blocks are sent beside them, in an envelope's bodies.
//! Raft never copies or holds them:
//!
//! ```text
//! Envelope { head: | crc32c | kind | 0 | raft's message: entries with descriptors |,  bodies: | body | body | … }
//! ```
//!
//! A descriptor, little-endian; every byte counts:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | block kind: data, command or mixed |
//! | 1 | 3 | 0 |
//! | 4 | 4 | batch count |
//! | 8 | 4 | record count |
//! | 12 | 4 | body digest |
//! | 16 | 8 | body length |
//! | 24 | 8 | first record |
//! | 32 | 8 | timestamp, ms |
//!
//! Invariant: input from a peer is checked here, including the checksums of bodies, before raft sees it. No input
//! panics.
//!
//! Must not know: who sends, files.

use crate::cluster::membership::{Change, Membership};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_pieces};
use crate::store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::store::format::segment::FORMAT_VERSION;
use crate::types::{EntryIndex, Index, Term, Timestamp};
use bytes::{Buf, Bytes, BytesMut};
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, Message};

/// The size of a descriptor in bytes.
pub(crate) const DESCRIPTOR_BYTES: usize = 40;
/// The bytes of a head before its contents.
const HEAD_BYTES: usize = 8;

/// The kind of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadKind {
    /// A raft message.
    Raft = 1,
    /// The receiver is no longer a member.
    Removed = 2,
    /// The sender has just started; this is the end of its log.
    Hello = 3,
    /// The answer to a hello: how far the receiver's log was known to reach.
    Known = 4,
    /// Requests blocks, to repair damage.
    Fetch = 5,
    /// The requested blocks.
    Blocks = 6,
    /// A leader without room for records asks whether the receiver has some. Older versions drop it.
    Room = 7,
    /// The sender has room for records.
    HasRoom = 8,
    /// The requested entries up to this one were discarded. Older versions drop it.
    Gone = 9,
    /// Requests committed entries only. Older versions drop it.
    FetchCommitted = 10,
    /// The requested committed entries. Older versions drop it.
    Committed = 11,
    /// Requests the version of the format that the receiver reads. Older versions drop it.
    Version = 12,
    /// The version of the format that the sender reads, and its segment size.
    ReadsVersion = 13,
    /// The first requested entry is damaged here as well. Older versions drop it.
    DamagedEntry = 14,
    /// A leader asks the receiver to put an object into the object store. Older versions drop it.
    StoreObject = 15,
    /// The object is stored, or the sender could not store it.
    ObjectStored = 16,
    /// The leader of this term may leave out all that is stored and behind the sender's last entry: the sender reads it from the object
    /// store. Older versions drop it.
    ReadsStored = 17,
    /// The sender leads, and has entries that are stored and that the other replica lacks: it may skip them. Older versions drop it.
    MaySkip = 18,
}

impl HeadKind {
    const ALL: [Self; 18] = [
        Self::Raft,
        Self::Removed,
        Self::Hello,
        Self::Known,
        Self::Fetch,
        Self::Blocks,
        Self::Room,
        Self::HasRoom,
        Self::Gone,
        Self::FetchCommitted,
        Self::Committed,
        Self::Version,
        Self::ReadsVersion,
        Self::DamagedEntry,
        Self::StoreObject,
        Self::ObjectStored,
        Self::ReadsStored,
        Self::MaySkip,
    ];
}

/// The offset of the kind in a head.
#[cfg(any(test, feature = "testing"))]
pub(crate) const KIND_AT: usize = 4;

/// A head with these contents, and its checksum.
pub(crate) fn head(kind: HeadKind, body: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(HEAD_BYTES + body.len());
    b.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
    b.extend_from_slice(body);
    let crc = crc32c(&b[4..]);
    b[..4].copy_from_slice(&crc.to_le_bytes());
    b.freeze()
}

/// The kind and contents of a head. Checks its checksum.
pub(crate) fn parse_head(head: &Bytes) -> Result<(HeadKind, Bytes), Malformed> {
    if head.len() < HEAD_BYTES {
        return Err("message head is cut off");
    }
    if crc32c(&head[4..]) != u32_at(head, 0) && !planted!(15) {
        return Err("message checksum does not match");
    }
    let kind =
        HeadKind::ALL.into_iter().find(|k| *k as u8 == head[4]).ok_or("message is of an unknown kind")?;
    if head[5..8] != [0; 3] {
        return Err("message has fields of a newer version");
    }
    Ok((kind, head.slice(HEAD_BYTES..)))
}

/// The size of a version answer in bytes: the version, the sender's segment bytes.
const READS_VERSION_BYTES: usize = 8;

/// The answer to a request for the version, by a replica with segments of this size.
pub(crate) fn reads_version(segment_bytes: u32) -> Bytes {
    let mut body = [0; READS_VERSION_BYTES];
    body[..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    body[4..].copy_from_slice(&segment_bytes.to_le_bytes());
    head(HeadKind::ReadsVersion, &body)
}

/// Decodes a version answer: the version, and the sender's segment bytes.
pub(crate) fn parse_reads_version(body: &[u8]) -> Result<(u32, u32), Malformed> {
    if body.len() != READS_VERSION_BYTES {
        return Err("version answer has an unexpected length");
    }
    let segment_bytes = u32_at(body, 4);
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        return Err("version answer has an impossible segment size");
    }
    Ok((u32_at(body, 0), segment_bytes))
}

/// An entry for raft to order. The `body` of a configuration is raft's own encoding.
pub(crate) fn entry(header: &BlockHeader, body: impl FnOnce() -> Bytes) -> Entry {
    let mut entry = Entry { index: header.raft_index.0, term: header.term.0, ..Entry::default() };
    match header.kind {
        Kind::Configuration => {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.data = body();
        }
        Kind::Data | Kind::Command | Kind::Mixed => entry.data = descriptor(header),
        Kind::NoOp | Kind::HardState | Kind::Marker | Kind::Opening => {}
    }
    entry
}

fn descriptor(header: &BlockHeader) -> Bytes {
    let mut b = [0; DESCRIPTOR_BYTES];
    b[0] = header.kind as u8;
    b[4..8].copy_from_slice(&header.batch_count.to_le_bytes());
    b[8..12].copy_from_slice(&header.record_count.to_le_bytes());
    b[12..16].copy_from_slice(&header.body_digest.to_le_bytes());
    b[16..24].copy_from_slice(&(body_bytes(header) as u64).to_le_bytes());
    b[24..32].copy_from_slice(&header.first.0.to_le_bytes());
    b[32..40].copy_from_slice(&header.timestamp.0.to_le_bytes());
    Bytes::copy_from_slice(&b)
}

/// The size of a block's body in bytes.
pub(crate) fn body_bytes(header: &BlockHeader) -> usize {
    header.length as usize - BLOCK_HEADER_BYTES
}

/// The meaning of an entry to the log.
#[derive(Debug)]
pub(crate) enum EntryKind {
    NoOp,
    Configuration,
    /// A block, whose body is sent beside the entry.
    Block(BlockHeader),
}

/// Decodes a raft entry.
pub(crate) fn kind_of(entry: &Entry) -> Result<EntryKind, Malformed> {
    match entry.get_entry_type() {
        EntryType::EntryConfChangeV2 => {
            if !entry.data.is_empty() {
                membership_of_change(&entry.data)?;
            }
            return Ok(EntryKind::Configuration);
        }
        EntryType::EntryConfChange => return Err("entry is of an unknown type"),
        EntryType::EntryNormal => {}
    }
    if entry.data.is_empty() {
        return Ok(EntryKind::NoOp);
    }
    let d: &[u8; DESCRIPTOR_BYTES] =
        entry.data[..].try_into().map_err(|_| "descriptor has an unexpected length")?;
    let kind = [Kind::Data, Kind::Command, Kind::Mixed].into_iter().find(|k| *k as u8 == d[0]);
    let kind = kind.ok_or("descriptor is of an unknown kind")?;
    if d[1..4] != [0; 3] {
        return Err("descriptor has fields of a newer version");
    }
    let length = u64_at(d, 16).checked_add(BLOCK_HEADER_BYTES as u64);
    let length = length.and_then(|n| u32::try_from(n).ok()).ok_or("block is too long")?;
    Ok(EntryKind::Block(BlockHeader {
        length,
        batch_count: u32_at(d, 4),
        raft_index: EntryIndex(entry.index),
        term: Term(entry.term),
        first: Index(u64_at(d, 24)),
        timestamp: Timestamp(u64_at(d, 32)),
        record_count: u32_at(d, 8),
        durable_upto: 0,
        body_digest: u32_at(d, 12),
        kind,
    }))
}

/// Encodes a raft message as a head. The bodies of its entries are sent beside it.
pub(crate) fn encode_message(message: &Message) -> Result<Bytes, Malformed> {
    let bytes = message.write_to_bytes().map_err(|_| "message cannot be encoded")?;
    Ok(head(HeadKind::Raft, &bytes))
}

/// A received block. Its body was checked, and consists of pieces that each hold whole batches.
pub(crate) type Arrived = (BlockHeader, Vec<Bytes>);

/// Decodes a raft message and the bodies that were sent with it.
pub(crate) fn decode_message(body: &[u8], bodies: Vec<Bytes>) -> Result<(Message, Vec<Arrived>), Malformed> {
    let message = Message::parse_from_bytes(body).map_err(|_| "message cannot be decoded")?;
    let mut bodies = Pieces::new(bodies);
    let mut arrived = Vec::new();
    let mut before: Option<(u64, u64)> = None;
    for entry in message.get_entries() {
        // Read requests and forwarded proposals carry contexts, not entries of the log.
        if message.get_msg_type() != raft::eraftpb::MessageType::MsgAppend {
            break;
        }
        let follows = before
            .is_none_or(|(index, term)| Some(entry.index) == index.checked_add(1) && entry.term >= term);
        if !follows || entry.index == 0 || entry.term > message.term {
            return Err("entries of a message are not consecutive");
        }
        before = Some((entry.index, entry.term));
        if let EntryKind::Block(header) = kind_of(entry)? {
            arrived.push((header, bodies.take(&header)?));
        }
    }
    if bodies.is_empty() { Ok((message, arrived)) } else { Err("message has more bodies than entries") }
}

/// A queue of bodies, in pieces as they were received.
pub(crate) struct Pieces(std::collections::VecDeque<Bytes>);

impl Pieces {
    pub(crate) fn new(bodies: Vec<Bytes>) -> Self {
        Self(bodies.into())
    }

    /// Whether all bodies were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next body, checked against its header. A data body comes in pieces that each hold whole batches, any other
    /// body in one piece.
    pub(crate) fn take(&mut self, header: &BlockHeader) -> Result<Vec<Bytes>, Malformed> {
        let mut left = body_bytes(header);
        let mut body = Vec::new();
        while left > 0 {
            let mut piece = self.0.pop_front().ok_or("message has fewer bodies than entries")?;
            if piece.len() > left {
                self.0.push_front(piece.split_off(left));
            }
            left -= piece.len();
            if !piece.is_empty() {
                body.push(piece);
            }
        }
        if planted!(14) {
            return Ok(body);
        }
        let checked = check_pieces(header, body.iter().map(|p| &p[..]), true);
        let is_whole = header.kind.has_records() && checked.is_ok();
        if body.len() > 1 && !is_whole {
            // A batch can span two pieces, and a body without batches has to be in one piece.
            let mut whole = BytesMut::with_capacity(body_bytes(header));
            for mut piece in body {
                whole.extend_from_slice(piece.chunk());
                piece.clear();
            }
            body = vec![whole.freeze()];
            check_pieces(header, body.iter().map(|p| &p[..]), true)?;
            return Ok(body);
        }
        checked.map(|()| body)
    }
}

/// The membership after a change, from raft's encoding of the change.
pub(crate) fn membership_of_change(body: &[u8]) -> Result<Membership, Malformed> {
    let change = ConfChangeV2::parse_from_bytes(body).map_err(|_| "membership change cannot be decoded")?;
    Membership::decode(&change.context)
}

/// Converts a change to raft's type, from the requested changes and the membership after them.
pub(crate) fn conf_change(changes: &[Change], result: &Membership) -> ConfChangeV2 {
    let mut change = ConfChangeV2 { context: result.encode_whole().into(), ..ConfChangeV2::default() };
    for wanted in changes {
        let kind = match wanted {
            Change::AddLearner { .. } | Change::Demote(_) => ConfChangeType::AddLearnerNode,
            Change::Promote(_) => ConfChangeType::AddNode,
            Change::Remove(_) => ConfChangeType::RemoveNode,
            // The node keeps its role: raft has nothing to change.
            Change::SetAddress { node, .. } => match result.get(*node) {
                Some(member) if member.is_voter() => ConfChangeType::AddNode,
                _ => ConfChangeType::AddLearnerNode,
            },
        };
        let mut single = ConfChangeSingle { node_id: wanted.node().0, ..ConfChangeSingle::default() };
        single.set_change_type(kind);
        change.mut_changes().push(single);
    }
    change
}

/// Converts a membership to raft's type.
pub(crate) fn conf_state(membership: &Membership) -> ConfState {
    ConfState {
        voters: membership.voters(),
        learners: membership.learners(),
        voters_outgoing: membership.voters_outgoing(),
        learners_next: membership.learners_next(),
        auto_leave: membership.auto_leave(),
        ..ConfState::default()
    }
}
