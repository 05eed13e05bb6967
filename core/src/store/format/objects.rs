//! The object table as bytes: which stretches of the log are objects, and which of these are in the object store. A part of an
//! opening. Bytes only.
//!
//! Little-endian; no padding. A header of 48 bytes, then the objects in order, 56 bytes each; of a branch then its ancestors, 32 bytes
//! each:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | number of the oldest object, or of the next one | - |
//! | 8 | 8 | raft index of the last entry before it | - |
//! | 16 | 8 | term of that entry | - |
//! | 24 | 8 | the record after that entry | from 1 |
//! | 32 | 8 | the log's first index | from 1 |
//! | 40 | 4 | number of objects | - |
//! | 44 | 4 | number of ancestors | up to 16 |
//!
//! An object:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | raft index of its last entry | ascending |
//! | 8 | 8 | term of that entry | not descending |
//! | 16 | 8 | the record after that entry | not descending |
//! | 24 | 8 | timestamp of that entry, ms since 1970 | - |
//! | 32 | 20 | what is stored, see [`StoredObject`]; 0: it is not known to be stored | of all objects before one that is stored, not 0 |
//! | 52 | 4 | 0 | 0 |
//!
//! An ancestor, a log of whose objects some are those of this log: of the numbers from the ancestor before it on, or from 0:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 16 | log id | not 0 |
//! | 16 | 8 | the number below which objects are its | ascending, from 1; those of the last one are all stored |
//! | 24 | 4 | in a copy of one log of a shared group: its number in the group. The only ancestor is the group | all objects are stored, and the group's |
//! | 28 | 4 | 0 | 0 |
//!
//! Must not know: what changes the table.

use super::geometry::{
    ANCESTOR_BYTES, FOOTER_BYTES, INDEX_ENTRY_BYTES, OBJECT_BYTES, OBJECTS_HEADER_BYTES, data_limit,
};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES};
use crate::store::format::segment::Base;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Term, Timestamp};
use std::collections::VecDeque;

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

/// The most ancestors of a branch.
pub(crate) const ANCESTORS_MAX: usize = 16;

/// A log of whose objects some are those of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ancestor {
    pub(crate) log: LogId,
    /// Objects from the ancestor before it on, up to below this number, are its.
    pub(crate) below: u64,
}

/// The contents of an object table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    /// The number of the oldest object in the table, or of the next one.
    pub(crate) number: u64,
    /// Where that object begins.
    pub(crate) base: Base,
    /// Ascending, without gaps.
    pub(crate) list: VecDeque<ObjectState>,
    /// Of a branch: whose objects the first ones are, the oldest ancestor first. Of a copy of one log of a shared group: the group.
    pub(crate) ancestors: Vec<Ancestor>,
    /// Of a copy of one log of a shared group: the log's number there. The objects are all the group's, and stored, and the positions are
    /// those of the group. 0: the table of any other log.
    pub(crate) part: LogNumber,
}

impl Objects {
    /// Whether a number or a position in the table is above `max`.
    pub(crate) fn is_beyond(&self, max: u64) -> bool {
        let end = self.list.back().map_or(self.base, |newest| newest.end);
        self.number.saturating_add(self.list.len() as u64) > max || end.raft.0 > max || end.next.0 > max
    }
}

/// Encodes a table of a log whose first record is `first`.
pub(crate) fn encode(objects: &Objects, first: Index) -> Vec<u8> {
    let mut b = Vec::with_capacity(encoded_bytes(objects.list.len(), objects.ancestors.len()));
    let Base { raft, term, next } = objects.base;
    for word in [objects.number, raft.0, term.0, next.0, first.0] {
        b.extend_from_slice(&word.to_le_bytes());
    }
    b.extend_from_slice(&(objects.list.len() as u32).to_le_bytes());
    b.extend_from_slice(&(objects.ancestors.len() as u32).to_le_bytes());
    for object in &objects.list {
        let Base { raft, term, next } = object.end;
        for word in [raft.0, term.0, next.0, object.timestamp.0] {
            b.extend_from_slice(&word.to_le_bytes());
        }
        b.extend_from_slice(&object.stored.map_or([0; STORED_BYTES], |stored| stored.encode()));
        b.extend_from_slice(&[0; 4]);
    }
    for ancestor in &objects.ancestors {
        b.extend_from_slice(&ancestor.log.0.to_le_bytes());
        b.extend_from_slice(&ancestor.below.to_le_bytes());
        b.extend_from_slice(&objects.part.0.to_le_bytes());
        b.extend_from_slice(&[0; 4]);
    }
    b
}

/// The bytes of a table of `objects` objects and `ancestors` ancestors.
pub(crate) const fn encoded_bytes(objects: usize, ancestors: usize) -> usize {
    OBJECTS_HEADER_BYTES + objects * OBJECT_BYTES + ancestors * ANCESTOR_BYTES
}

/// The reverse of [`encode`].
pub(crate) fn decode(b: &[u8]) -> Result<(Objects, Index), Malformed> {
    const NEWER: Malformed = "object table has fields of a newer format";
    let (header, rest) = b.split_first_chunk::<OBJECTS_HEADER_BYTES>().ok_or("object table is cut off")?;
    let (count, ancestors) = (u32_at(header, 40) as usize, u32_at(header, 44) as usize);
    if ancestors > ANCESTORS_MAX || rest.len() != encoded_bytes(count, ancestors) - OBJECTS_HEADER_BYTES {
        return Err("object table has another length than it says");
    }
    let (entries, ancestors) = rest.split_at(count * OBJECT_BYTES);
    let entries = entries.as_chunks::<OBJECT_BYTES>().0;
    let base_at = |b: &[u8], at| Base {
        raft: EntryIndex(u64_at(b, at)),
        term: Term(u64_at(b, at + 8)),
        next: Index(u64_at(b, at + 16)),
    };
    let base = base_at(header, 8);
    let first = Index(u64_at(header, 32));
    if base.next == Index(0) || first == Index(0) {
        return Err("object table has no records");
    }
    let ancestors = ancestors.as_chunks::<ANCESTOR_BYTES>().0;
    let part = ancestors.first().map_or(LogNumber::OWN, |first| LogNumber(u32_at(first, 24)));
    if !part.is_none() && ancestors.len() != 1 {
        return Err("a copy of one log has objects of several logs");
    }
    let ancestors = ancestors.iter().map(|ancestor| decode_ancestor(ancestor, part));
    let ancestors = ancestors.collect::<Result<Vec<_>, _>>()?;
    let list = VecDeque::with_capacity(entries.len());
    let mut objects = Objects { number: u64_at(header, 0), base, list, ancestors, part };
    let (mut before, mut all_stored) = (base, true);
    for entry in entries {
        if entry[52..] != [0; 4] {
            return Err(NEWER);
        }
        let end = base_at(entry, 0);
        if end.raft <= before.raft || end.term < before.term || end.next < before.next {
            return Err("objects are out of order");
        }
        let words = entry[32..].first_chunk::<STORED_BYTES>().ok_or(NEWER)?;
        let stored = if *words == [0; STORED_BYTES] { None } else { Some(StoredObject::parse(words)?) };
        if stored.is_some() && !all_stored {
            return Err("an object is stored before an earlier one");
        }
        all_stored = stored.is_some();
        before = end;
        objects.list.push_back(ObjectState { end, timestamp: Timestamp(u64_at(entry, 24)), stored });
    }
    let stored = objects.list.iter().take_while(|object| object.stored.is_some()).count() as u64;
    let belows = || objects.ancestors.iter().map(|ancestor| ancestor.below);
    if !std::iter::once(0).chain(belows()).is_sorted_by(|a, b| a < b) {
        return Err("ancestors are out of order");
    }
    // This log would have to store an object of another one.
    if belows().next_back().is_some_and(|below| below > objects.number.saturating_add(stored)) {
        return Err("an ancestor's object is not stored");
    }
    let is_whole = || belows().next() == objects.number.checked_add(objects.list.len() as u64);
    if !part.is_none() && (!all_stored || !is_whole()) {
        return Err("a copy of one log has objects that are not its group's");
    }
    Ok((objects, first))
}

fn decode_ancestor(b: &[u8; ANCESTOR_BYTES], part: LogNumber) -> Result<Ancestor, Malformed> {
    let mut log = [0; 16];
    log.copy_from_slice(&b[..16]);
    let ancestor = Ancestor { log: LogId(u128::from_le_bytes(log)), below: u64_at(b, 16) };
    if ancestor.log == LogId(0) || LogNumber(u32_at(b, 24)) != part || b[28..] != [0; 4] {
        return Err("ancestor has no id, or fields of a newer format");
    }
    Ok(ancestor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(raft: u64, term: u64, next: u64) -> Base {
        Base { raft: EntryIndex(raft), term: Term(term), next: Index(next) }
    }

    fn table() -> Objects {
        let stored = StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 2, index_crc: 7, crc: 9 };
        let list = [
            ObjectState { end: base(9, 2, 40), timestamp: Timestamp(5), stored: Some(stored) },
            ObjectState { end: base(12, 2, 40), timestamp: Timestamp(6), stored: None },
        ];
        Objects {
            number: 3,
            base: base(4, 1, 30),
            list: list.into(),
            ancestors: Vec::new(),
            part: LogNumber::OWN,
        }
    }

    /// Of a copy of log 5 of a group, of which object 3 is stored.
    fn part() -> Objects {
        let mut part = Objects { part: LogNumber(5), ..table() };
        part.list.pop_back();
        part.ancestors = vec![Ancestor { log: LogId(7), below: 4 }];
        part
    }

    /// A branch of a branch: objects 0 to 1 are those of one log, 2 and 3 those of another one, object 4 is its own.
    fn branch() -> Objects {
        let ancestors =
            vec![Ancestor { log: LogId(7), below: 2 }, Ancestor { log: LogId(1 << 100), below: 4 }];
        Objects { ancestors, ..table() }
    }

    #[test]
    fn table_survives_encoding_and_every_cut_is_an_error() {
        let discarded = Objects { number: 5, list: VecDeque::new(), ..branch() };
        for objects in [table(), Objects { list: VecDeque::new(), ..table() }, branch(), discarded, part()] {
            let bytes = encode(&objects, Index(31));
            assert_eq!(bytes.len(), encoded_bytes(objects.list.len(), objects.ancestors.len()));
            assert_eq!(decode(&bytes), Ok((objects, Index(31))));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{cut}");
            }
            assert!(decode(&[&bytes[..], &[0; OBJECT_BYTES]].concat()).is_err());
            assert!(decode(&[&bytes[..], &[0; ANCESTOR_BYTES]].concat()).is_err());
        }
    }

    /// The bytes are part of the format: those of a log that is no branch are what they were before there were branches.
    #[test]
    fn ancestors_are_behind_the_objects_and_change_nothing_else() {
        let (plain, branch) = (encode(&table(), Index(31)), encode(&branch(), Index(31)));
        assert_eq!((u64_at(&plain, 40), u64_at(&branch, 40)), (2, 2 << 32 | 2));
        let mut same = branch[..plain.len()].to_vec();
        same[44] = 0;
        assert_eq!(same, plain);
        let ancestor = &branch[plain.len() + ANCESTOR_BYTES..];
        assert_eq!((u64_at(ancestor, 0), u64_at(ancestor, 8)), (0, 1 << 36));
        assert_eq!((u64_at(ancestor, 16), u64_at(ancestor, 24), ancestor.len()), (4, 0, 32));
    }

    #[test]
    fn impossible_ancestors_are_refused() {
        let at = encoded_bytes(2, 0);
        let good = encode(&branch(), Index(31));
        for (at, word, why) in [
            (40, 17 << 32 | 2, "more ancestors than a branch can have"),
            (40, 1 << 32 | 2, "fewer ancestors than there are"),
            (at, 0, "no log id"),
            (at + 16, 0, "an ancestor without objects"),
            (at + 16, 4, "two ancestors of the same objects"),
            (at + 24, 1 << 32, "a field of a newer format"),
            (at + 24, 1, "a part of two logs"),
            (at + ANCESTOR_BYTES + 16, 5, "an ancestor's object that is not stored"),
        ] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            assert!(decode(&bad).is_err(), "{why}");
        }
    }

    /// The number of the log is where ancestors of branches have zeros: a program that does not know it refuses the table.
    #[test]
    fn impossible_parts_are_refused() {
        let at = encoded_bytes(1, 0);
        let good = encode(&part(), Index(31));
        assert_eq!(u64_at(&good, at + 24), 5);
        for (at, word, why) in [
            (at + 16, 3, "an object that is not the group's"),
            (at + 16, 5, "an object that is not stored"),
            (at + 24, 1 << 32 | 5, "a field of a newer format"),
        ] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            assert!(decode(&bad).is_err(), "{why}");
        }
        let not_stored = Objects { part: LogNumber(5), ..branch() };
        assert!(decode(&encode(&not_stored, Index(31))).is_err());
    }

    #[test]
    fn impossible_tables_are_refused() {
        let good = encode(&table(), Index(31));
        let second = OBJECTS_HEADER_BYTES + OBJECT_BYTES;
        for (at, word, why) in [
            (32, 0, "no first record"),
            (24, 0, "no next record"),
            (40, 1, "fewer objects than there are"),
            (second, 9, "an end that is not behind the one before"),
            (second + 8, 1, "an earlier term"),
            (second + 16, 39, "an earlier record"),
            (second + 48, 1 << 32, "a field of a newer format"),
            (OBJECTS_HEADER_BYTES + 32, 0x0000_2000_0000_0001, "a size below the smallest segment"),
            (OBJECTS_HEADER_BYTES + 40, 0x7_0001_0000, "more index entries than fit"),
        ] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            assert!(decode(&bad).is_err(), "{why}");
        }
        let mut swapped = table();
        let [first, second] = [swapped.list[0].stored, swapped.list[1].stored];
        (swapped.list[0].stored, swapped.list[1].stored) = (second, first);
        assert!(decode(&encode(&swapped, Index(31))).is_err(), "stored before an earlier one");
    }
}
