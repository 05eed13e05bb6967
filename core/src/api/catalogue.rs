//! Catalogue: which named logs there are, and in which group each is. It is a view of the records of one log, the
//! system log: the same records give the same catalogue. Two programs that create the same name at the same time need
//! no lock: the first record wins, and the second has no effect.
//!
//! A record, little-endian; every byte counts:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 1: create a log; 2: delete a log; 3: name a group's directory; 4: place a group |
//! | 1 | 3 | 0 |
//! | 4 | 4 | create: its group, from 1; delete: its number; 3, 4: the group |
//! | 8 | 16 | its id; 3, 4: the id of the group's own log |
//! | 24 | | create: its name; 4: the nodes that are to run the group, 8 bytes each, ascending; none: all |
//!
//! Records of kind 5 are parts of snapshots: see `catalogue/snapshot.rs`.
//!
//! A log's number is given when its record is applied: numbers count from 1 and are never reused.
//!
//! Must not know: files, blocks, who writes the records.

pub(crate) mod restored;
pub(crate) mod snapshot;

use self::snapshot::{SnapshotPart, SnapshotParts};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::types::{Index, LogId, LogNumber, NodeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// The number of the first named log.
const FIRST_NUMBER: LogNumber = LogNumber(1);
/// The most bytes of a name.
pub(crate) const NAME_BYTES_MAX: usize = 249;
/// Bytes of a record before the name.
pub(crate) const FIXED_BYTES: usize = 24;
const NODE_BYTES: usize = 8;
/// The newest kind of record that this version knows.
const KIND_MAX: u8 = 5;
/// The reason why a record of a newer kind is refused: what it changes is not known here.
pub(crate) const NEWER: Malformed = "record of the catalogue is of a kind that this version does not know: run the version of chiplog that \
                                     wrote it, or a newer one";
/// No snapshot is written before this many records.
const SNAPSHOT_RECORDS_MIN: u64 = 256;
/// The most servers that a group is placed on.
pub(crate) const PLACED_MAX: usize = 16;

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CatalogueRecord {
    Create {
        name: String,
        id: LogId,
        group: u32,
    },
    Delete {
        number: LogNumber,
        id: LogId,
    },
    /// The group is the one with this id: another directory in its place is not.
    Group {
        group: u32,
        id: LogId,
    },
    /// The servers that are to run a group, ascending. Empty: all of the cluster.
    Place {
        group: u32,
        id: LogId,
        nodes: Vec<NodeId>,
    },
    /// A part of a snapshot.
    Part(SnapshotPart),
}

impl CatalogueRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut tail = Vec::new();
        let (kind, word, id) = match self {
            Self::Create { name, id, group } => {
                tail.extend_from_slice(name.as_bytes());
                (1, *group, id)
            }
            Self::Delete { number, id } => (2, number.0, id),
            Self::Group { group, id } => (3, *group, id),
            Self::Place { group, id, nodes } => {
                nodes.iter().for_each(|node| tail.extend_from_slice(&node.0.to_le_bytes()));
                (4, *group, id)
            }
            Self::Part(part) => return part.encode(),
        };
        let mut b = vec![kind, 0, 0, 0];
        b.extend_from_slice(&word.to_le_bytes());
        b.extend_from_slice(&id.0.to_le_bytes());
        b.append(&mut tail);
        b
    }

    pub(crate) fn parse(b: &[u8]) -> Result<Self, Malformed> {
        const MALFORMED: Malformed = "record of the catalogue is malformed";
        if b.first().is_some_and(|kind| *kind > KIND_MAX) {
            return Err(NEWER);
        }
        if SnapshotPart::is_one(b) {
            return SnapshotPart::parse(b).map(Self::Part);
        }
        let (fixed, tail) = b.split_at_checked(FIXED_BYTES).ok_or(MALFORMED)?;
        let (word, id) = (u32_at(fixed, 4), fixed.last_chunk().ok_or(MALFORMED)?);
        let id = LogId(u128::from_le_bytes(*id));
        match (&fixed[..4], tail.is_empty()) {
            ([1, 0, 0, 0], _) if word > 0 => {
                let name = std::str::from_utf8(tail).map_err(|_| MALFORMED)?;
                check_name(name).map_err(|_| MALFORMED)?;
                Ok(Self::Create { name: name.to_owned(), id, group: word })
            }
            ([2, 0, 0, 0], true) => Ok(Self::Delete { number: LogNumber(word), id }),
            ([3, 0, 0, 0], true) if word > 0 => Ok(Self::Group { group: word, id }),
            ([4, 0, 0, 0], _) if word > 0 => {
                let (nodes, rest) = tail.as_chunks::<NODE_BYTES>();
                let nodes: Vec<NodeId> = nodes.iter().map(|node| NodeId(u64_at(node, 0))).collect();
                let is_sound = rest.is_empty() && are_nodes(&nodes);
                is_sound.then_some(Self::Place { group: word, id, nodes }).ok_or(MALFORMED)
            }
            _ => Err(MALFORMED),
        }
    }
}

/// Whether these are servers that a group can be placed on: ascending numbers from 1, a limited number of them.
pub(crate) fn are_nodes(nodes: &[NodeId]) -> bool {
    nodes.len() <= PLACED_MAX && nodes.first() != Some(&NodeId(0)) && nodes.is_sorted_by(|a, b| a < b)
}

/// The catalogue's entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CatalogueEntry {
    pub(crate) number: LogNumber,
    pub(crate) id: LogId,
    pub(crate) group: u32,
}

/// A deleted log that may still be in its group.
#[derive(Debug)]
struct DeletedLog {
    id: LogId,
    /// The name that it had. None: this was read from a snapshot of an earlier version, which does not have it; or the cluster was
    /// restored, and the name was not in the backup.
    name: Option<String>,
}

/// The named logs.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// The next record of the system log.
    next: Index,
    next_number: LogNumber,
    names: BTreeMap<String, CatalogueEntry>,
    by_number: BTreeMap<LogNumber, String>,
    /// Deleted logs that may still be in their groups.
    deleted: BTreeMap<(u32, LogNumber), DeletedLog>,
    /// Their places, by their ids.
    deleted_ids: HashMap<LogId, (u32, LogNumber)>,
    /// The names that they had, as far as they are known, with their ids.
    deleted_names: BTreeSet<(Option<String>, LogId)>,
    /// The ids of the groups.
    groups: BTreeMap<u32, LogId>,
    /// The servers that are to run a group, where those are not all.
    places: BTreeMap<u32, Vec<NodeId>>,
    /// How many logs each group has.
    sizes: HashMap<u32, usize>,
    /// The parts of a snapshot that has begun.
    parts: SnapshotParts,
    /// The first record behind the newest complete snapshot; 1: there is none.
    snapshot_next: Index,
    /// The number of its records, which are behind that one.
    snapshot_records: u64,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            next: Index(1),
            next_number: FIRST_NUMBER,
            names: BTreeMap::new(),
            by_number: BTreeMap::new(),
            deleted: BTreeMap::new(),
            deleted_ids: HashMap::new(),
            deleted_names: BTreeSet::new(),
            groups: BTreeMap::new(),
            places: BTreeMap::new(),
            sizes: HashMap::new(),
            parts: SnapshotParts::default(),
            snapshot_next: Index(1),
            snapshot_records: 0,
        }
    }
}

impl Catalogue {
    /// The next record of the system log that it needs.
    pub(crate) fn next(&self) -> Index {
        self.next
    }

    /// The first record that is not in the newest complete snapshot: records before it can be discarded.
    pub(crate) fn snapshot_next(&self) -> Index {
        self.snapshot_next
    }

    /// Whether a new snapshot is worth writing: it is smaller than half the records since the last one, or these are `most`. The last
    /// one's own records do not count: one of more than `most` would be written again for ever.
    pub(crate) fn wants_snapshot(&self, most: u64) -> bool {
        let entries = self.names.len() + self.deleted.len() + self.groups.len() + self.places.len();
        let since = (self.next.0 - self.snapshot_next.0).saturating_sub(self.snapshot_records);
        since >= SNAPSHOT_RECORDS_MIN.max(2 * entries as u64).min(most)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&CatalogueEntry> {
        self.names.get(name)
    }

    /// The logs whose names begin with `prefix` and come after the name `after`, by name.
    pub(crate) fn after(&self, prefix: &str, after: &str) -> impl Iterator<Item = (&str, &CatalogueEntry)> {
        // A name that begins with the prefix is not before it.
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let names = self.names.range::<str, _>((from, Bound::Unbounded));
        names
            .map(|(name, entry)| (name.as_str(), entry))
            .take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// How many logs there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// How many logs a group has.
    pub(crate) fn logs_in(&self, group: u32) -> usize {
        self.sizes.get(&group).copied().unwrap_or_default()
    }

    /// Logs of a group that exist and have numbers above `newest`, up to `upto`; ascending.
    pub(crate) fn missing(&self, group: u32, newest: LogNumber, upto: LogNumber) -> Vec<LogNumber> {
        if newest >= upto {
            return Vec::new();
        }
        let numbers = self.by_number.range((Bound::Excluded(newest), Bound::Included(upto)));
        let is_of_group = |name: &String| self.names.get(name).is_some_and(|entry| entry.group == group);
        numbers.filter(|(_, name)| is_of_group(name)).map(|(number, _)| *number).collect()
    }

    /// The newest log of a group that exists; 0 if there is none. Costs a walk over newer logs of other groups.
    pub(crate) fn newest(&self, group: u32) -> LogNumber {
        if self.logs_in(group) == 0 {
            return LogNumber(0);
        }
        let is_of_group = |name: &String| self.names.get(name).is_some_and(|entry| entry.group == group);
        let found = self.by_number.iter().rev().find(|(_, name)| is_of_group(name));
        found.map_or(LogNumber(0), |(number, _)| *number)
    }

    /// Deleted logs that may still be in this group.
    pub(crate) fn deleted_in(&self, group: u32) -> Vec<LogNumber> {
        let range = (group, LogNumber(0))..=(group, LogNumber(u32::MAX));
        self.deleted.range(range).map(|((_, log), _)| *log).collect()
    }

    /// The place of a deleted log that may still be in its group.
    pub(crate) fn deleted_log(&self, id: LogId) -> Option<(u32, LogNumber)> {
        self.deleted_ids.get(&id).copied()
    }

    /// A deleted log that had this name before, and that may still be in its group. If no log has the name now, also one whose name is not
    /// known. Else not: it was deleted before the log with the name was created, and that awaited it, or nobody can have found it since the
    /// cluster was restored.
    pub(crate) fn deleted_as(&self, name: &str) -> Option<LogId> {
        let first_of = |name: Option<String>| {
            let mut all = self.deleted_names.range((name.clone(), LogId(0))..=(name, LogId(u128::MAX)));
            all.next().map(|(_, id)| *id)
        };
        let unnamed = || first_of(None).filter(|_| !self.names.contains_key(name));
        first_of(Some(name.to_owned())).or_else(unnamed)
    }

    /// Takes the names of deleted logs from a catalogue that this one, read from a snapshot, replaces.
    pub(crate) fn remember(&mut self, before: &Self) {
        for ((group, number), log) in self.deleted.iter_mut().filter(|(_, log)| log.name.is_none()) {
            let deleted = before.deleted.get(&(*group, *number)).filter(|deleted| deleted.id == log.id);
            log.name =
                deleted.map_or_else(|| before.by_number.get(number).cloned(), |deleted| deleted.name.clone());
            if log.name.is_some() {
                self.deleted_names.remove(&(None, log.id));
                self.deleted_names.insert((log.name.clone(), log.id));
            }
        }
    }

    /// The deleted log is not in its group, and never will be.
    pub(crate) fn forget(&mut self, group: u32, log: LogNumber) {
        let Some(DeletedLog { id, name }) = self.deleted.remove(&(group, log)) else { return };
        self.deleted_ids.remove(&id);
        self.deleted_names.remove(&(name, id));
    }

    /// A log was deleted, and may still be in its group.
    fn add_deleted(&mut self, place: (u32, LogNumber), id: LogId, name: Option<String>) {
        self.deleted_names.insert((name.clone(), id));
        self.deleted.insert(place, DeletedLog { id, name });
        self.deleted_ids.insert(id, place);
    }

    /// The id of a group, if it was noted.
    pub(crate) fn group(&self, group: u32) -> Option<LogId> {
        self.groups.get(&group).copied()
    }

    /// The numbers of the groups that were noted.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.keys().copied()
    }

    /// The servers that are to run a group, ascending. Empty: all.
    pub(crate) fn place(&self, group: u32) -> &[NodeId] {
        self.places.get(&group).map_or(&[], Vec::as_slice)
    }

    /// The number of the next log that is created: every log that exists or existed has a smaller one.
    #[cfg(test)]
    fn next_number(&self) -> LogNumber {
        self.next_number
    }

    /// The log with this number. `None`: it was deleted, or never created.
    pub(crate) fn by_number(&self, number: LogNumber) -> Option<&str> {
        self.by_number.get(&number).map(String::as_str)
    }

    /// Applies the next record. A record that comes too late, for a name that exists or a log that is gone, has no
    /// effect.
    pub(crate) fn apply(&mut self, record: CatalogueRecord) {
        self.next = self.next.next();
        match record {
            CatalogueRecord::Create { name, id, group } => {
                if self.names.contains_key(&name) {
                    return;
                }
                let number = self.next_number;
                self.next_number = LogNumber(number.0 + 1);
                *self.sizes.entry(group).or_default() += 1;
                self.by_number.insert(number, name.clone());
                self.names.insert(name, CatalogueEntry { number, id, group });
            }
            // The first one counts: two programs can note a group at the same time.
            CatalogueRecord::Group { group, id } => {
                self.groups.entry(group).or_insert(id);
            }
            CatalogueRecord::Place { group, id, nodes } => {
                if self.groups.get(&group) != Some(&id) {
                    return; // another directory lost against the noted one
                }
                match nodes.is_empty() {
                    true => self.places.remove(&group),
                    false => self.places.insert(group, nodes),
                };
            }
            CatalogueRecord::Part(part) => {
                if self.parts.push(part) {
                    let complete = std::mem::take(&mut self.parts);
                    // A snapshot knows no record that comes after it.
                    let next = complete.next().filter(|next| *next <= self.next).unwrap_or_default();
                    if next >= self.snapshot_next {
                        (self.snapshot_next, self.snapshot_records) = (next, complete.records());
                    }
                }
            }
            CatalogueRecord::Delete { number, id } => {
                let is_same = |name: &String| self.names.get(name).is_some_and(|entry| entry.id == id);
                if let Some(name) = self.by_number.get(&number).filter(|name| is_same(name)).cloned() {
                    self.by_number.remove(&number);
                    if let Some(entry) = self.names.remove(&name) {
                        self.add_deleted((entry.group, number), id, Some(name));
                        *self.sizes.entry(entry.group).or_default() -= 1;
                    }
                }
            }
        }
    }
}

/// Checks the name of a log: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, then perhaps `/` and a partition's number.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let (base, partition) = name.split_once('/').unwrap_or((name, "0"));
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    let is_number = partition.parse::<u32>().is_ok_and(|n| n.to_string() == partition);
    let is_named = (1..=NAME_BYTES_MAX).contains(&base.len()) && base.bytes().all(is_plain);
    if is_named && is_number && !matches!(base, "." | "..") {
        return Ok(());
    }
    let what = format!(
        "{name:?} is no name of a log: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', optionally with \
         '/' and a partition's number"
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(name: &str, id: u128) -> CatalogueRecord {
        CatalogueRecord::Create { name: name.to_owned(), id: LogId(id), group: 3 }
    }

    #[test]
    fn records_survive_encoding_and_other_bytes_are_refused() {
        for record in [
            create("orders/12", 7),
            CatalogueRecord::Delete { number: LogNumber(5), id: LogId(u128::MAX) },
            CatalogueRecord::Group { group: 2, id: LogId(9) },
            CatalogueRecord::Place { group: 2, id: LogId(9), nodes: vec![] },
            CatalogueRecord::Place { group: 2, id: LogId(9), nodes: vec![NodeId(1), NodeId(u64::MAX)] },
        ] {
            let bytes = record.encode();
            assert_eq!(CatalogueRecord::parse(&bytes), Ok(record));
            for cut in 0..FIXED_BYTES {
                assert!(CatalogueRecord::parse(&bytes[..cut]).is_err());
            }
            for at in 0..4 {
                let mut other = bytes.clone();
                other[at] ^= 8;
                assert!(CatalogueRecord::parse(&other).is_err(), "byte {at}");
            }
        }
        let without_name = create("", 1).encode();
        assert!(CatalogueRecord::parse(&without_name).is_err());
        let many: Vec<u64> = (1..=PLACED_MAX as u64 + 1).collect();
        for nodes in [&[0, 1][..], &[2, 1], &[1, 1], &many] {
            let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
            let place = CatalogueRecord::Place { group: 2, id: LogId(9), nodes };
            assert!(CatalogueRecord::parse(&place.encode()).is_err(), "{place:?}");
        }
        let whole = CatalogueRecord::Place { group: 2, id: LogId(9), nodes: vec![NodeId(1)] }.encode();
        assert!(CatalogueRecord::parse(&whole[..whole.len() - 1]).is_err());
    }

    #[test]
    fn first_record_of_a_name_wins_and_numbers_are_not_reused() {
        let mut catalogue = Catalogue::default();
        for record in [create("a", 1), create("a", 2), create("b", 3)] {
            catalogue.apply(record);
        }
        let a = *catalogue.get("a").unwrap();
        assert_eq!((a.number, a.id), (LogNumber(1), LogId(1)));
        assert_eq!(catalogue.get("b").unwrap().number, LogNumber(2));
        // A delete that names another log with this number has no effect.
        catalogue.apply(CatalogueRecord::Delete { number: a.number, id: LogId(2) });
        assert_eq!(catalogue.by_number(a.number), Some("a"));
        assert_eq!(catalogue.missing(3, LogNumber(0), LogNumber(2)), [a.number, LogNumber(2)]);
        assert!(catalogue.missing(3, LogNumber(2), LogNumber(1)).is_empty());
        assert!(catalogue.missing(4, LogNumber(0), LogNumber(2)).is_empty(), "another group");
        catalogue.apply(CatalogueRecord::Delete { number: a.number, id: LogId(1) });
        assert_eq!((catalogue.get("a"), catalogue.logs_in(3)), (None, 1));
        catalogue.apply(create("a", 4));
        assert_eq!(catalogue.get("a").unwrap().number, LogNumber(3));
        assert_eq!((catalogue.next(), catalogue.next_number()), (Index(7), LogNumber(4)));
    }

    #[test]
    fn snapshot_is_wanted_if_it_is_small_or_after_the_most_records() {
        let mut catalogue = Catalogue::default();
        for n in 1..=1000_u32 {
            assert!(!catalogue.wants_snapshot(u64::MAX), "it has all {n} records");
            assert_eq!(catalogue.wants_snapshot(300), n > 300);
            let (name, id) = (format!("log-{n}"), LogId(n.into()));
            catalogue.apply(CatalogueRecord::Create { name, id, group: 1 });
        }
        catalogue.snapshot_next = catalogue.next();
        assert!(!catalogue.wants_snapshot(300));
    }

    /// A snapshot of more parts than `most` was written again each time.
    #[test]
    fn parts_of_the_last_snapshot_are_no_reason_for_the_next() {
        let mut catalogue = Catalogue::default();
        let numbered = |n: u32| create(&format!("log-{n}-{}", "x".repeat(200)), n.into());
        (1..=2000).for_each(|n| catalogue.apply(numbered(n)));
        (1..=200).for_each(|n| {
            catalogue.apply(CatalogueRecord::Delete { number: LogNumber(n), id: LogId(n.into()) });
        });
        let most = 8;
        assert!(catalogue.wants_snapshot(most));
        let parts = catalogue.snapshot(LogId(9));
        assert!(parts.len() as u64 > most && parts.iter().filter(|part| part.is_of_names()).count() > 1);
        parts.into_iter().for_each(|part| catalogue.apply(CatalogueRecord::Part(part)));
        for n in 0..most as u32 {
            assert!(!catalogue.wants_snapshot(most), "behind {n} records");
            catalogue.apply(numbered(3000 + n));
        }
        assert!(catalogue.wants_snapshot(most));
    }

    #[test]
    fn newest_place_of_the_noted_group_counts() {
        let mut catalogue = Catalogue::default();
        let place = |id, nodes: &[u64]| CatalogueRecord::Place {
            group: 2,
            id: LogId(id),
            nodes: nodes.iter().map(|n| NodeId(*n)).collect(),
        };
        catalogue.apply(place(9, &[1]));
        assert!(catalogue.place(2).is_empty(), "the group is not noted yet");
        catalogue.apply(CatalogueRecord::Group { group: 2, id: LogId(9) });
        catalogue.apply(place(9, &[1, 3]));
        catalogue.apply(place(8, &[2]));
        assert_eq!(catalogue.place(2), [NodeId(1), NodeId(3)]);
        catalogue.apply(place(9, &[]));
        assert!(catalogue.place(2).is_empty());
        assert_eq!(catalogue.groups().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn names() {
        for good in ["a", "Orders_2026-11.v1", "t/0", "t/4294967295", &"x".repeat(249)] {
            check_name(good).unwrap();
        }
        for bad in
            ["", "/1", "a/", "a/01", "a/4294967296", "a/-1", "a/1/2", "a b", "ä", "..", &"x".repeat(250)]
        {
            assert_eq!(check_name(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }

    /// A name was given again while a deleted log of it could still accept appends, if a later one of the name was gone, or once a
    /// snapshot had been read: by a replica that was away, or one that started again.
    #[test]
    fn names_of_deleted_logs_are_known_until_all_of_them_are_gone() {
        let mut catalogue = Catalogue::default();
        let delete = |number, id| CatalogueRecord::Delete { number: LogNumber(number), id: LogId(id) };
        for record in [create("a", 1), delete(1, 1), create("a", 2), delete(2, 2), create("b", 3)] {
            catalogue.apply(record);
        }
        assert_eq!((catalogue.deleted_as("a"), catalogue.deleted_as("b")), (Some(LogId(1)), None));
        catalogue.forget(3, LogNumber(2));
        assert_eq!(catalogue.deleted_as("a"), Some(LogId(1)));
        // Another replica has deleted b since, and created and deleted c.
        let mut later = Catalogue::default();
        for record in [create("a", 1), delete(1, 1), create("a", 2), delete(2, 2), create("b", 3)] {
            later.apply(record);
        }
        [delete(3, 3), create("c", 4), delete(4, 4)].into_iter().for_each(|record| later.apply(record));
        let read_from = |is_left: &dyn Fn(&SnapshotPart) -> bool| {
            let mut parts = SnapshotParts::default();
            let of_it = later.snapshot(LogId(9)).into_iter().filter(|part| is_left(part));
            assert!(of_it.map(|part| parts.push(part)).last().unwrap());
            parts.catalogue().unwrap()
        };
        let named = |catalogue: &Catalogue| ["a", "b", "c", "d"].map(|name| catalogue.deleted_as(name));
        let ids = |ids: [u128; 4]| ids.map(|id| (id > 0).then_some(LogId(id)));
        let mut read = read_from(&|_| true);
        assert_eq!(named(&read), ids([1, 3, 4, 0]));
        (1..=4).for_each(|log| read.forget(3, LogNumber(log)));
        assert_eq!(named(&read), ids([0; 4]));
        // A snapshot of an earlier version has no names: each of them can be that of a deleted log.
        let mut read = read_from(&|part| !part.is_of_names());
        assert_eq!(named(&read), ids([1; 4]));
        read.remember(&catalogue);
        assert_eq!(named(&read), ids([1, 3, 2, 2]), "the names of logs 2 and 4 are not known");
        read.forget(3, LogNumber(2));
        assert_eq!(named(&read), ids([1, 3, 4, 4]));
        read.forget(3, LogNumber(4));
        assert_eq!(named(&read), ids([1, 3, 0, 0]));
        (1..=3).for_each(|log| read.forget(3, LogNumber(log)));
        assert_eq!(named(&read), ids([0; 4]));
    }
}
