//! The object table as bytes: which stretches of the log are objects, and which of these are in the object store. A part of an
//! opening. Bytes only.
//!
//! Little-endian; no padding. A header of 48 bytes, then the objects in order, 56 bytes each; of a branch then its ancestors, 32 bytes
//! each; then the runs of older rows, 64 bytes each, whose objects are before all others:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | number of the oldest object, or of the next one | - |
//! | 8 | 8 | raft index of the last entry before it | - |
//! | 16 | 8 | term of that entry | - |
//! | 24 | 8 | the record after that entry | from 1 |
//! | 32 | 8 | the log's first index | from 1 |
//! | 40 | 4 | number of objects | - |
//! | 44 | 2 | number of ancestors | up to 16 |
//! | 46 | 2 | number of runs of older rows, see `older_rows` | - |
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

pub(crate) use super::object_row::{ObjectState, STORED_BYTES, StoredAt, StoredObject, encode_row};

use super::geometry::{ANCESTOR_BYTES, OBJECT_BYTES, OBJECTS_HEADER_BYTES, OLDER_ROWS_BYTES};
use super::object_row::{base_at, decode_row};
use super::older_rows::{self, OlderRows, RowsRun};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::store::format::segment::Base;
use crate::types::{Index, LogId, LogNumber, Timestamp};
use std::collections::VecDeque;

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
    /// The objects whose rows are not in the table any more, in runs: ascending, without gaps. All of them are stored. The first run can
    /// begin before `number`: then its first objects are discarded.
    pub(crate) older: VecDeque<OlderRows>,
    /// Those behind them. Ascending, without gaps.
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
        let (number, base) = self.rows_from();
        let end = self.list.back().map_or(base, |newest| newest.end);
        number.saturating_add(self.list.len() as u64) > max || end.raft.0 > max || end.next.0 > max
    }

    /// The number of the first object whose row is in the table, or of the next one, and where it begins.
    pub(crate) fn rows_from(&self) -> (u64, Base) {
        self.older.back().map_or((self.number, self.base), |newest| (newest.below, newest.end))
    }

    /// The runs of objects whose rows are elsewhere, oldest first, each with its first object that is left, and where that begins.
    pub(crate) fn runs(&self) -> impl DoubleEndedIterator<Item = RowsRun> + '_ {
        self.older.iter().enumerate().map(|(n, rows)| {
            let before = n.checked_sub(1).and_then(|n| self.older.get(n));
            let (number, begin) = before.map_or((self.number, self.base), |run| (run.below, run.end));
            let timestamp = before.map_or(Timestamp(0), |run| run.timestamp);
            RowsRun { number, begin, before: timestamp, rows: *rows }
        })
    }

    /// The bytes of this table.
    pub(crate) fn encoded_bytes(&self) -> usize {
        encoded_bytes(self.list.len(), self.ancestors.len()) + self.older.len() * OLDER_ROWS_BYTES
    }
}

/// Encodes a table of a log whose first record is `first`.
pub(crate) fn encode(objects: &Objects, first: Index) -> Vec<u8> {
    let mut b = Vec::with_capacity(objects.encoded_bytes());
    let Base { raft, term, next } = objects.base;
    for word in [objects.number, raft.0, term.0, next.0, first.0] {
        b.extend_from_slice(&word.to_le_bytes());
    }
    b.extend_from_slice(&(objects.list.len() as u32).to_le_bytes());
    b.extend_from_slice(&(objects.ancestors.len() as u16).to_le_bytes());
    b.extend_from_slice(&(objects.older.len() as u16).to_le_bytes());
    objects.list.iter().for_each(|object| encode_row(object, &mut b));
    for ancestor in &objects.ancestors {
        b.extend_from_slice(&ancestor.log.0.to_le_bytes());
        b.extend_from_slice(&ancestor.below.to_le_bytes());
        b.extend_from_slice(&objects.part.0.to_le_bytes());
        b.extend_from_slice(&[0; 4]);
    }
    objects.older.iter().for_each(|older| b.extend_from_slice(&older.encode()));
    b
}

/// The bytes of a table of `objects` objects and `ancestors` ancestors.
pub(crate) const fn encoded_bytes(objects: usize, ancestors: usize) -> usize {
    OBJECTS_HEADER_BYTES + objects * OBJECT_BYTES + ancestors * ANCESTOR_BYTES
}

/// The reverse of [`encode`].
pub(crate) fn decode(b: &[u8]) -> Result<(Objects, Index), Malformed> {
    let (header, rest) = b.split_first_chunk::<OBJECTS_HEADER_BYTES>().ok_or("object table is cut off")?;
    let count = u32_at(header, 40) as usize;
    let [ancestors, older] = [44, 46].map(|at| usize::from(u16::from_le_bytes([header[at], header[at + 1]])));
    let expected = encoded_bytes(count, ancestors)
        .checked_add(older * OLDER_ROWS_BYTES)
        .map(|all| all - OBJECTS_HEADER_BYTES);
    if ancestors > ANCESTORS_MAX || Some(rest.len()) != expected {
        return Err("object table has another length than it says");
    }
    let (entries, rest) = rest.split_at(count * OBJECT_BYTES);
    let entries = entries.as_chunks::<OBJECT_BYTES>().0;
    let (ancestors, older) = rest.split_at(ancestors * ANCESTOR_BYTES);
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
    let number = u64_at(header, 0);
    let older = older_rows::decode(older.as_chunks::<OLDER_ROWS_BYTES>().0, number, base)?;
    let list = VecDeque::with_capacity(entries.len());
    let mut objects = Objects { number, base, older, list, ancestors, part };
    let (rows_from, mut before) = objects.rows_from();
    let mut all_stored = true;
    for entry in entries {
        let object = decode_row(entry, before)?;
        if object.stored.is_some() && !all_stored {
            return Err("an object is stored before an earlier one");
        }
        all_stored = object.stored.is_some();
        before = object.end;
        objects.list.push_back(object);
    }
    let stored = objects.list.iter().take_while(|object| object.stored.is_some()).count() as u64;
    let stored_below = rows_from.saturating_add(stored);
    // The newest run's rows are in an object that has a row here.
    let holds = |older: &OlderRows| older.holder < stored_below;
    if !objects.older.iter().all(holds) || !(objects.older.is_empty() || part.is_none()) {
        return Err("rows are in an object that is not stored, or of a group");
    }
    let belows = || objects.ancestors.iter().map(|ancestor| ancestor.below);
    if !std::iter::once(0).chain(belows()).is_sorted_by(|a, b| a < b) {
        return Err("ancestors are out of order");
    }
    // This log would have to store an object of another one.
    if belows().next_back().is_some_and(|below| below > stored_below) {
        return Err("an ancestor's object is not stored");
    }
    let is_whole = || belows().next() == rows_from.checked_add(objects.list.len() as u64);
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
    use crate::types::{EntryIndex, Term};

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
            older: VecDeque::new(),
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
