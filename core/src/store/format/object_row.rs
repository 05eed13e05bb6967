//! The row of an object in an object table: its place in the log, and what is stored. 56 bytes; `objects` has the fields. Bytes only.
//!
//! Must not know: what changes a row.

use super::geometry::{FOOTER_BYTES, INDEX_ENTRY_BYTES, OBJECT_BYTES, data_limit};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES};
use crate::store::format::segment::Base;
use crate::types::{EntryIndex, Index, Term, Timestamp};

/// An object as it is in the store: a segment file. With the object's place in the log this says all that a footer does, so
/// that a reader needs no request before its first one for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredObject {
    /// Its size.
    pub(crate) bytes: u32,
    /// The offset at which its blocks end.
    pub(crate) data_end: u32,
    /// The number of entries of its block index, and the checksum over them.
    pub(crate) index_count: u32,
    pub(crate) index_crc: u32,
    /// The checksum of all its bytes.
    pub(crate) crc: u32,
}

/// Bytes of a [`StoredObject`].
pub(crate) const STORED_BYTES: usize = 20;

impl StoredObject {
    /// Whether its records are log by log. Such an object has no block index; the checksum is that of its segment file's index.
    pub(crate) fn is_sorted(&self) -> bool {
        self.index_count == 0
    }

    pub(crate) fn encode(&self) -> [u8; STORED_BYTES] {
        let words = [self.bytes, self.data_end, self.index_count, self.index_crc, self.crc];
        let mut b = [0; STORED_BYTES];
        words.iter().zip(b.as_chunks_mut::<4>().0).for_each(|(word, b)| *b = word.to_le_bytes());
        b
    }

    /// # Errors
    /// No segment file has such sizes.
    pub(crate) fn parse(b: &[u8; STORED_BYTES]) -> Result<Self, Malformed> {
        let object = Self {
            bytes: u32_at(b, 0),
            data_end: u32_at(b, 4),
            index_count: u32_at(b, 8),
            index_crc: u32_at(b, 12),
            crc: u32_at(b, 16),
        };
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&object.bytes) {
            return Err("object has an impossible size");
        }
        let (bytes, index) =
            (object.bytes as usize, u64::from(object.index_count) * INDEX_ENTRY_BYTES as u64);
        let blocks = SEGMENT_HEADER_BYTES..=data_limit(bytes);
        if !blocks.contains(&(object.data_end as usize))
            || data_limit(bytes) as u64 + index > (bytes - FOOTER_BYTES) as u64
        {
            return Err("object has impossible parts");
        }
        Ok(object)
    }
}

/// An object in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectState {
    /// The position after its last entry.
    pub(crate) end: Base,
    /// The timestamp of that entry.
    pub(crate) timestamp: Timestamp,
    /// None: it is not known to be stored.
    pub(crate) stored: Option<StoredObject>,
}

/// Adds the row of an object.
pub(crate) fn encode_row(object: &ObjectState, b: &mut Vec<u8>) {
    let Base { raft, term, next } = object.end;
    for word in [raft.0, term.0, next.0, object.timestamp.0] {
        b.extend_from_slice(&word.to_le_bytes());
    }
    b.extend_from_slice(&object.stored.map_or([0; STORED_BYTES], |stored| stored.encode()));
    b.extend_from_slice(&[0; 4]);
}

/// The row of an object that begins at `begin`.
pub(crate) fn decode_row(row: &[u8; OBJECT_BYTES], begin: Base) -> Result<ObjectState, Malformed> {
    if row[52..] != [0; 4] {
        return Err(NEWER);
    }
    let end = base_at(row, 0);
    if end.raft <= begin.raft || end.term < begin.term || end.next < begin.next {
        return Err("objects are out of order");
    }
    let words = row[32..].first_chunk::<STORED_BYTES>().ok_or(NEWER)?;
    let stored = if *words == [0; STORED_BYTES] { None } else { Some(StoredObject::parse(words)?) };
    Ok(ObjectState { end, timestamp: Timestamp(u64_at(row, 24)), stored })
}

pub(super) const NEWER: Malformed = "object table has fields of a newer format";

/// The position at an offset.
pub(super) fn base_at(b: &[u8], at: usize) -> Base {
    Base { raft: EntryIndex(u64_at(b, at)), term: Term(u64_at(b, at + 8)), next: Index(u64_at(b, at + 16)) }
}

/// An object that is in the object store, in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredAt {
    pub(crate) number: u64,
    pub(crate) begin: Base,
    pub(crate) state: ObjectState,
    pub(crate) object: StoredObject,
    /// The timestamp of the entry before it; 0 if the table does not say.
    pub(crate) before: Timestamp,
}
