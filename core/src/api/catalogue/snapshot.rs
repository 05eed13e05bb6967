//! Snapshots of the catalogue, as records of the system log: what is before a complete one can be discarded.
//!
//! ```text
//!  system log:  | create | delete | ... | create | part 0 | create | part 1 |  ...
//!                                       ^ next                 the snapshot is complete
//!               <---- discarded later -->
//! ```
//!
//! A snapshot is the catalogue before the record `next`. Its parts come later, and other records between them. Reading begins with
//! it, and goes on with record `next`. Parts change nothing in a catalogue that has read everything before them.
//!
//! A part, little-endian; every byte counts:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | 5 |
//! | 4 | 4 | the part's number, from 0 |
//! | 8 | 16 | the snapshot's id, random |
//! | 24 | 8 | `next` |
//! | 32 | 4 | the number of parts |
//! | 36 | 4 | the number of the next log that is created |
//! | 40 | | entries: a u32, the length of a record (u32), and the record of the catalogue |
//!
//! The u32 of an entry is the log's number for "create", the log's group for "delete", which stands for a deleted log that may still
//! be in its group, and else 0.
//!
//! The names of these deleted logs are in records of their own, before part 0: parts with the number 2^32 - 2 of 2^32 - 1, which versions
//! that do not know them pass over, as they pass over each part that is not the next one of its snapshot. Their entries are records
//! "create" with the log's number.
//!
//! Invariants:
//! - a snapshot is used only if all its parts are there, in order, each behind the one before;
//! - a deleted log whose name is not there, as in a snapshot of an earlier version, counts as one of every name that no log has: see
//!   [`Catalogue::deleted_as`].
//!
//! Must not know: files, blocks, who writes the records.

use super::{Catalogue, CatalogueEntry, CatalogueRecord};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::types::{Index, LogId, LogNumber};
use std::collections::BTreeMap;

const KIND: [u8; 4] = [5, 0, 0, 0];
const PART_FIXED_BYTES: usize = 40;
const ENTRY_FIXED_BYTES: usize = 8;
/// A part ends with the entry that reaches this size.
const PART_BYTES: usize = 32 << 10;
/// The number, and the number of parts, in records with names of deleted logs. No snapshot has as many parts.
const OF_NAMES: (u32, u32) = (u32::MAX - 1, u32::MAX);
const MALFORMED: Malformed = "snapshot of the catalogue is malformed";

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotPart {
    id: LogId,
    number: u32,
    parts: u32,
    next: Index,
    next_number: LogNumber,
    /// Its entries, encoded.
    entries: Vec<u8>,
}

impl SnapshotPart {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = KIND.to_vec();
        b.extend_from_slice(&self.number.to_le_bytes());
        b.extend_from_slice(&self.id.0.to_le_bytes());
        b.extend_from_slice(&self.next.0.to_le_bytes());
        b.extend_from_slice(&self.parts.to_le_bytes());
        b.extend_from_slice(&self.next_number.0.to_le_bytes());
        b.extend_from_slice(&self.entries);
        b
    }

    /// Whether a record is a part of a snapshot, of whatever form.
    pub(super) fn is_one(b: &[u8]) -> bool {
        b.starts_with(&KIND[..1])
    }

    pub(super) fn parse(b: &[u8]) -> Result<Self, Malformed> {
        let (fixed, entries) = b.split_at_checked(PART_FIXED_BYTES).ok_or(MALFORMED)?;
        let id: [u8; 16] = fixed[8..24].try_into().map_err(|_| MALFORMED)?;
        let part = Self {
            id: LogId(u128::from_le_bytes(id)),
            number: u32_at(fixed, 4),
            parts: u32_at(fixed, 32),
            next: Index(u64_at(fixed, 24)),
            next_number: LogNumber(u32_at(fixed, 36)),
            entries: entries.to_vec(),
        };
        let is_sound = fixed[..4] == KIND && part.number < part.parts && part.next.0 > 0;
        if !is_sound || part.records().any(|entry| entry.is_err()) {
            return Err(MALFORMED);
        }
        Ok(part)
    }

    /// Whether it has names of deleted logs: it comes before part 0, and a snapshot is whole without it.
    pub(crate) fn is_of_names(&self) -> bool {
        (self.number, self.parts) == OF_NAMES
    }

    /// Its entries.
    fn records(&self) -> impl Iterator<Item = Result<(u32, CatalogueRecord), Malformed>> + '_ {
        let mut rest = &self.entries[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let entry = || {
                let (fixed, behind) = rest.split_at_checked(ENTRY_FIXED_BYTES).ok_or(MALFORMED)?;
                let (record, behind) = behind.split_at_checked(u32_at(fixed, 4) as usize).ok_or(MALFORMED)?;
                match CatalogueRecord::parse(record)? {
                    CatalogueRecord::Part(_) => Err(MALFORMED),
                    record => Ok(((u32_at(fixed, 0), record), behind)),
                }
            };
            Some(match entry() {
                Ok((entry, behind)) => {
                    rest = behind;
                    Ok(entry)
                }
                Err(why) => {
                    rest = &[];
                    Err(why)
                }
            })
        })
    }
}

/// The parts of one snapshot, as far as they have come.
#[derive(Debug, Default)]
pub(crate) struct SnapshotParts {
    parts: Vec<SnapshotPart>,
    /// The newest ones with names of deleted logs, all of one snapshot.
    names: Vec<SnapshotPart>,
}

impl SnapshotParts {
    /// Takes the next part in the log. A part 0 begins a snapshot, and an earlier one that is not complete never will be. Returns
    /// whether it is complete now.
    pub(crate) fn push(&mut self, part: SnapshotPart) -> bool {
        if part.is_of_names() {
            self.names.retain(|others| others.id == part.id);
            self.names.push(part);
            return false;
        }
        if part.number == 0 {
            self.parts.clear();
        }
        let is_next = part.number as usize == self.parts.len()
            && self
                .parts
                .first()
                .is_none_or(|first| (first.id, first.parts, first.next) == (part.id, part.parts, part.next));
        if is_next {
            self.parts.push(part);
        }
        is_next && self.parts.first().is_some_and(|first| first.parts as usize == self.parts.len())
    }

    /// Where reading goes on behind the snapshot.
    pub(crate) fn next(&self) -> Option<Index> {
        self.parts.first().map(|first| first.next)
    }

    /// The number of its records.
    pub(super) fn records(&self) -> u64 {
        (self.parts.len() + self.names_of_parts().count()) as u64
    }

    /// The records with names that belong to the parts.
    fn names_of_parts(&self) -> impl Iterator<Item = &SnapshotPart> {
        let id = self.parts.first().map(|first| first.id);
        self.names.iter().filter(move |names| Some(names.id) == id)
    }

    /// The catalogue of a complete snapshot.
    pub(crate) fn catalogue(&self) -> Result<Catalogue, Malformed> {
        let first = self.parts.first().ok_or(MALFORMED)?;
        let mut catalogue =
            Catalogue { next: first.next, next_number: first.next_number, ..Catalogue::default() };
        let mut names = BTreeMap::new();
        for entry in self.names_of_parts().flat_map(SnapshotPart::records) {
            if let (number, CatalogueRecord::Create { name, id, .. }) = entry? {
                names.insert((LogNumber(number), id), name);
            }
        }
        for entry in self.parts.iter().flat_map(SnapshotPart::records) {
            let (word, record) = entry?;
            catalogue.restore(word, record, &mut names);
        }
        Ok(catalogue)
    }
}

impl Catalogue {
    /// The catalogue as a snapshot, in parts. The names of deleted logs come first.
    pub(crate) fn snapshot(&self, id: LogId) -> Vec<SnapshotPart> {
        let (mut parts, mut names) = (vec![Vec::new()], Vec::new());
        let mut add = |word: u32, record: CatalogueRecord| add_entry(&mut parts, word, &record);
        for (group, id) in &self.groups {
            add(0, CatalogueRecord::Group { group: *group, id: *id });
            let nodes = self.place(*group).to_vec();
            if !nodes.is_empty() {
                add(0, CatalogueRecord::Place { group: *group, id: *id, nodes });
            }
        }
        for (name, CatalogueEntry { number, id, group }) in &self.names {
            add(number.0, CatalogueRecord::Create { name: name.clone(), id: *id, group: *group });
        }
        for ((group, number), log) in &self.deleted {
            add(*group, CatalogueRecord::Delete { number: *number, id: log.id });
            if let Some(name) = log.name.clone() {
                let named = CatalogueRecord::Create { name, id: log.id, group: *group };
                add_entry(&mut names, number.0, &named);
            }
        }
        let count = parts.len() as u32;
        let part = |(number, parts): (u32, u32), entries: Vec<u8>| SnapshotPart {
            id,
            number,
            parts,
            next: self.next,
            next_number: self.next_number,
            entries,
        };
        let names = names.into_iter().map(|entries| part(OF_NAMES, entries));
        names.chain((0..).zip(parts).map(|(number, entries)| part((number, count), entries))).collect()
    }

    /// Adds an entry of a snapshot. `names`: those of deleted logs.
    fn restore(
        &mut self,
        word: u32,
        record: CatalogueRecord,
        names: &mut BTreeMap<(LogNumber, LogId), String>,
    ) {
        match record {
            CatalogueRecord::Create { name, id, group } => {
                let number = LogNumber(word);
                *self.sizes.entry(group).or_default() += 1;
                self.by_number.insert(number, name.clone());
                self.names.insert(name, CatalogueEntry { number, id, group });
            }
            CatalogueRecord::Delete { number, id } => {
                self.add_deleted((word, number), id, names.remove(&(number, id)));
            }
            CatalogueRecord::Group { group, id } => drop(self.groups.insert(group, id)),
            CatalogueRecord::Place { group, nodes, .. } => drop(self.places.insert(group, nodes)),
            CatalogueRecord::Part(_) => {}
        }
    }
}

/// Adds an entry to the last one of these parts, or to a new one.
fn add_entry(parts: &mut Vec<Vec<u8>>, word: u32, record: &CatalogueRecord) {
    let record = record.encode();
    if parts.last().is_none_or(|entries| entries.len() >= PART_BYTES) {
        parts.push(Vec::new());
    }
    if let Some(entries) = parts.last_mut() {
        entries.extend_from_slice(&word.to_le_bytes());
        entries.extend_from_slice(&(record.len() as u32).to_le_bytes());
        entries.extend_from_slice(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    /// A system log's records, with changes of every kind and snapshots in between.
    fn history() -> Vec<CatalogueRecord> {
        let mut records = Vec::new();
        let mut catalogue = Catalogue::default();
        let mut add = |record: CatalogueRecord, records: &mut Vec<_>| {
            records.push(record.clone());
            catalogue.apply(record);
            (catalogue.snapshot(LogId(records.len() as u128)), catalogue.snapshot(LogId(1)))
        };
        add(CatalogueRecord::Group { group: 1, id: LogId(100) }, &mut records);
        add(CatalogueRecord::Group { group: 2, id: LogId(200) }, &mut records);
        let nodes = vec![NodeId(1), NodeId(5)];
        add(CatalogueRecord::Place { group: 2, id: LogId(200), nodes }, &mut records);
        let mut left: Vec<CatalogueRecord> = Vec::new();
        for n in 1..=600_u32 {
            let name = format!("log-{n}-{}", "x".repeat(200));
            let create = CatalogueRecord::Create { name, id: LogId(n.into()), group: 1 + n % 2 };
            let (snapshot, other) = add(create, &mut records);
            if n % 3 == 0 {
                let delete = CatalogueRecord::Delete { number: LogNumber(n), id: LogId(n.into()) };
                add(delete, &mut records);
            }
            if n % 150 == 0 {
                // Interrupted by one of another leader, which is complete, with other records between its parts.
                assert!(snapshot.len() > usize::from(n > 300) && snapshot.len() == other.len());
                let begun = 1 + snapshot.iter().filter(|part| part.is_of_names()).count();
                left.extend(snapshot.iter().take(begun).cloned().map(CatalogueRecord::Part));
                left.extend(other.into_iter().map(CatalogueRecord::Part));
                left.extend(snapshot.into_iter().skip(begun).map(CatalogueRecord::Part));
            }
            if n % 5 == 0 && !left.is_empty() {
                let part = left.remove(0);
                add(part, &mut records);
            }
        }
        records
    }

    /// The result of reading from record `first` on, as [`crate::Logs`] does it.
    fn read_from(records: &[CatalogueRecord], first: usize) -> Option<Catalogue> {
        let (mut parts, mut newest) = (SnapshotParts::default(), None);
        for record in &records[first..] {
            if let CatalogueRecord::Part(part) = record
                && parts.push(part.clone())
                && parts.next() > Some(Index(first as u64))
            {
                newest = Some(std::mem::take(&mut parts));
            }
        }
        let mut catalogue = newest?.catalogue().unwrap();
        let next = catalogue.next().0 as usize - 1;
        records[next..].iter().for_each(|record| catalogue.apply(record.clone()));
        Some(catalogue)
    }

    #[test]
    fn catalogue_is_the_same_from_every_snapshot() {
        let mut records = history();
        let mut whole = Catalogue::default();
        records.iter().for_each(|record| whole.apply(record.clone()));
        for part in whole.snapshot(LogId(77)) {
            whole.apply(CatalogueRecord::Part(part.clone()));
            records.push(CatalogueRecord::Part(part));
        }
        assert!(whole.snapshot_next() > Index(600));
        let mut read = 0;
        for first in (0..records.len()).step_by(7) {
            let Some(catalogue) = read_from(&records, first) else { continue };
            assert_eq!(catalogue.snapshot(LogId(9)), whole.snapshot(LogId(9)), "from record {first} on");
            assert_eq!(catalogue.logs_in(1), whole.logs_in(1));
            read += 1;
        }
        assert!(read > 50, "{read}");
        let behind = whole.snapshot_next().0 as usize;
        assert!(read_from(&records, behind).is_none(), "records that it needs are missing");
    }

    #[test]
    fn parts_survive_encoding_and_other_bytes_are_refused() {
        let mut catalogue = Catalogue::default();
        history().into_iter().for_each(|record| catalogue.apply(record));
        for part in catalogue.snapshot(LogId(u128::MAX)) {
            let bytes = part.encode();
            assert_eq!(CatalogueRecord::parse(&bytes), Ok(CatalogueRecord::Part(part)));
            for cut in [0, 4, PART_FIXED_BYTES - 1, bytes.len() - 1, PART_FIXED_BYTES + 3] {
                assert!(CatalogueRecord::parse(&bytes[..cut]).is_err(), "{cut}");
            }
            let mut other = bytes.clone();
            other[32..36].fill(0);
            assert!(CatalogueRecord::parse(&other).is_err(), "no parts");
            let mut other = bytes;
            other[PART_FIXED_BYTES + ENTRY_FIXED_BYTES] = 5;
            assert!(CatalogueRecord::parse(&other).is_err(), "a snapshot within a snapshot");
        }
    }
}
