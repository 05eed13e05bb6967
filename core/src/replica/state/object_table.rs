//! The objects of a log: the stretches of its entries that are in an object store, or are to be put there. A pure state
//! machine, the same at every replica after the same entry.
//!
//! ```text
//!      discarded       stored            cut          not cut yet
//!  | ............ | k | k+1 | k+2 | k+3 | k+4 | ...................>
//!                 ^ base                      ^ end
//! ```
//!
//! A leader cuts objects and says when they are stored; both are entries. So the bytes of an object are a function of the
//! log alone: any replica can make them, at any time, and makes the same.
//!
//! Invariants:
//! - objects are numbered without gaps, and each begins where the one before ends;
//! - objects are stored in order;
//! - the first objects of a branch are those of its ancestors, all of them stored. Which they are never changes;
//! - an object is forgotten only once all its records are discarded. Its number is not used again;
//! - in a copy of one log of a shared group the table is the group's, with the group's positions, and has stored objects alone. Nothing
//!   that happens to the one log changes it.
//!
//! Must not know: disks, threads.

use crate::record::batch::Malformed;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::geometry::ANCESTOR_BYTES;
use crate::store::format::objects::{ObjectState, Objects, StoredObject, encode, encoded_bytes};
use crate::store::format::segment::Base;
use crate::store::objects::names::Lineage;
use crate::store::segment::objects::{ListedObject, ObjectList};
use crate::types::{EntryIndex, Index, LogId, LogNumber, Timestamp};

/// The objects of a log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectTable {
    objects: Objects,
    /// How many of them are stored.
    stored: usize,
}

/// An object that is in the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredAt {
    pub(crate) number: u64,
    pub(crate) begin: Base,
    pub(crate) state: ObjectState,
    pub(crate) object: StoredObject,
    /// The timestamp of the entry before it; 0 if the table does not say.
    pub(crate) before: Timestamp,
}

impl ObjectTable {
    pub(crate) fn of(objects: Objects) -> Self {
        let stored = objects.list.iter().take_while(|object| object.stored.is_some()).count();
        Self { objects, stored }
    }

    /// Whether the log has, or had, objects.
    pub(crate) fn has_begun(&self) -> bool {
        self.objects.base.next > Index(0)
    }

    /// The number of the oldest object in the table, or of the next one: all before it are discarded.
    pub(crate) fn number(&self) -> u64 {
        self.objects.number
    }

    /// The number of the next object, and where it begins. None: the log has had no objects yet.
    pub(crate) fn end(&self) -> Option<(u64, Base)> {
        let end = self.objects.list.back().map_or(self.objects.base, |object| object.end);
        self.has_begun().then(|| (self.objects.number + self.objects.list.len() as u64, end))
    }

    /// The number of the first object that is not known to be stored, or of the next one.
    pub(crate) fn next_to_show(&self) -> u64 {
        self.objects.number + self.stored as u64
    }

    /// How far the objects are: the numbers of the next one to be stored, and of the next one to be cut.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.next_to_show(), self.objects.number + self.objects.list.len() as u64)
    }

    /// The timestamp of the newest object's last entry; 0 if the table has none.
    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.objects.list.back().map_or(Timestamp(0), |object| object.timestamp)
    }

    /// The number of objects in the table.
    pub(crate) fn len(&self) -> usize {
        self.objects.list.len()
    }

    /// The first object that is not known to be stored: its number, and where it begins and ends.
    pub(crate) fn next_to_store(&self) -> Option<(u64, Base, Base)> {
        let object = self.objects.list.get(self.stored)?;
        Some((self.objects.number + self.stored as u64, self.begin_of(self.stored), object.end))
    }

    /// The last entry up to which everything from the oldest object on is stored. None: nothing is.
    pub(crate) fn stored_upto(&self) -> Option<EntryIndex> {
        self.stored_end().map(|end| end.raft)
    }

    /// The position behind that entry.
    pub(crate) fn stored_end(&self) -> Option<Base> {
        let last = self.stored.checked_sub(1)?;
        self.objects.list.get(last).map(|object| object.end)
    }

    /// The stored objects, oldest first.
    pub(crate) fn stored(&self) -> impl DoubleEndedIterator<Item = StoredAt> + '_ {
        self.objects.list.iter().take(self.stored).enumerate().filter_map(|(n, state)| {
            let (number, begin) = (self.objects.number + n as u64, self.begin_of(n));
            let before = n.checked_sub(1).and_then(|n| self.objects.list.get(n));
            let before = before.map_or(Timestamp(0), |object| object.timestamp);
            state.stored.map(|object| StoredAt { number, begin, state: *state, object, before })
        })
    }

    /// The owners of the objects of the log `log`.
    pub(crate) fn lineage(&self, log: LogId) -> Lineage {
        Lineage { log, ancestors: self.objects.ancestors.clone() }
    }

    /// In a copy of one log of a shared group: the group, and the number of the log there.
    pub(crate) fn group(&self) -> Option<(LogId, LogNumber)> {
        let group = self.objects.ancestors.first().filter(|_| !self.objects.part.is_none())?;
        Some((group.log, self.objects.part))
    }

    /// The bytes that its ancestors take in an opening.
    pub(crate) fn ancestor_bytes(&self) -> usize {
        self.objects.ancestors.len() * ANCESTOR_BYTES
    }

    /// Shows readers of the log `log`, or of the group in whose objects a copy of one log finds its records, the objects that are stored.
    pub(crate) fn show(&self, log: LogId, list: &ObjectList) {
        let lineage = self.group().map_or_else(|| self.lineage(log), |(group, _)| Lineage::of(group));
        let known = list.next().unwrap_or(self.number()).max(self.number());
        let added = self.stored().filter(|at| at.number >= known).map(|at| ListedObject {
            number: at.number,
            begin: at.begin,
            end: at.state.end,
            timestamps: (at.before, at.state.timestamp),
            object: at.object,
        });
        list.update(&lineage, self.number(), added);
    }

    fn begin_of(&self, n: usize) -> Base {
        n.checked_sub(1).and_then(|n| self.objects.list.get(n)).map_or(self.objects.base, |object| object.end)
    }

    /// Applies a command of a log whose first record is `first`.
    ///
    /// # Errors
    /// The command contradicts the table. Nothing has changed then.
    pub(crate) fn apply(&mut self, command: ObjectCommand, first: Index) -> Result<(), Malformed> {
        match command {
            ObjectCommand::Cut { number, begin, end, timestamp, first: logs_first } => {
                if begin.next == Index(0)
                    || logs_first == Index(0)
                    || end.raft <= begin.raft
                    || end.term < begin.term
                    || end.next < begin.next
                {
                    return Err("object has no entries, or impossible ones");
                }
                match self.end() {
                    None if number == 0 => self.objects.base = begin,
                    Some((next, at)) if (next, at) == (number, begin) => {}
                    // Everything in between is discarded, and perhaps nowhere any more.
                    Some((next, at)) if next == number && at.raft < begin.raft && begin.next <= first => {
                        self.objects.number = number;
                        self.objects.base = begin;
                        self.objects.list.clear();
                        self.stored = 0;
                    }
                    _ => return Err("object does not follow the one before"),
                }
                self.objects.list.push_back(ObjectState { end, timestamp, stored: None });
            }
            ObjectCommand::Stored { number, object } => {
                // It was discarded before this entry, or is stored already.
                if number < self.objects.number + self.stored as u64 {
                    return Ok(());
                }
                let next = self.objects.list.get_mut(self.stored);
                let next = next.filter(|_| number == self.objects.number + self.stored as u64);
                next.ok_or("object is stored out of order")?.stored = Some(object);
                self.stored += 1;
            }
        }
        Ok(())
    }

    /// Forgets the objects without a record from `first` on.
    pub(crate) fn discard(&mut self, first: Index) {
        if self.group().is_some() {
            return; // its positions count the records of all logs
        }
        while let Some(gone) = self.objects.list.pop_front_if(|object| object.end.next <= first) {
            self.objects.base = gone.end;
            self.objects.number += 1;
            self.stored = self.stored.saturating_sub(1);
        }
    }

    /// The bytes of the table for an opening of a log whose first record is `first`; empty if the log never had objects.
    pub(crate) fn encode(&self, first: Index) -> Vec<u8> {
        if self.has_begun() { encode(&self.objects, first) } else { Vec::new() }
    }

    /// The number of bytes that [`Self::encode`] returns.
    pub(crate) fn encoded_bytes(&self) -> usize {
        if self.has_begun() {
            encoded_bytes(self.objects.list.len(), self.objects.ancestors.len())
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::objects::Ancestor;
    use crate::types::Term;

    fn base(raft: u64, next: u64) -> Base {
        Base { raft: EntryIndex(raft), term: Term(1), next: Index(next) }
    }

    fn cut(number: u64, begin: Base, end: Base) -> ObjectCommand {
        ObjectCommand::Cut { number, begin, end, timestamp: Timestamp(1), first: Index(1) }
    }

    fn stored(number: u64) -> ObjectCommand {
        let object = StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 1, index_crc: 2, crc: 3 };
        ObjectCommand::Stored { number, object }
    }

    #[test]
    fn objects_follow_each_other_and_are_stored_in_order() {
        let mut table = ObjectTable::default();
        assert!(!table.has_begun() && table.encode(Index(1)).is_empty());
        table.apply(stored(0), Index(1)).unwrap_err();
        table.apply(cut(1, base(0, 1), base(5, 9)), Index(1)).unwrap_err();
        table.apply(cut(0, base(5, 9), base(5, 9)), Index(1)).unwrap_err();
        table.apply(cut(0, base(0, 1), base(5, 9)), Index(1)).unwrap();
        table.apply(cut(0, base(5, 9), base(7, 9)), Index(1)).unwrap_err();
        table.apply(cut(1, base(6, 9), base(7, 9)), Index(1)).unwrap_err();
        table.apply(cut(1, base(5, 9), base(7, 9)), Index(1)).unwrap();
        table.apply(cut(2, base(7, 9), base(9, 20)), Index(1)).unwrap();
        table.apply(stored(1), Index(1)).unwrap_err();
        table.apply(stored(0), Index(1)).unwrap();
        table.apply(stored(0), Index(1)).unwrap();
        table.apply(stored(1), Index(1)).unwrap();
        assert_eq!(table.next_to_store(), Some((2, base(7, 9), base(9, 20))));
        assert_eq!(table.stored_upto(), Some(EntryIndex(7)));
        assert_eq!(table.end(), Some((3, base(9, 20))));
        let numbers: Vec<_> = table.stored().map(|at| (at.number, at.begin)).collect();
        assert_eq!(numbers, [(0, base(0, 1)), (1, base(5, 9))]);
        let (objects, first) = crate::store::format::objects::decode(&table.encode(Index(3))).unwrap();
        assert_eq!((ObjectTable::of(objects), first), (table, Index(3)));
    }

    /// A log of a group can begin far beyond the records that the group has.
    #[test]
    fn discard_in_a_copy_of_one_log_says_nothing_about_objects_of_the_group() {
        let mut table = ObjectTable::default();
        table.apply(cut(0, base(0, 1), base(5, 9)), Index(1)).unwrap();
        table.apply(stored(0), Index(1)).unwrap();
        let (mut objects, _) = crate::store::format::objects::decode(&table.encode(Index(1))).unwrap();
        objects.part = LogNumber(3);
        objects.ancestors = vec![Ancestor { log: LogId(7), below: 1 }];
        let mut copy = ObjectTable::of(objects);
        assert_eq!(copy.group(), Some((LogId(7), LogNumber(3))));
        copy.discard(Index(1_000));
        assert_eq!((copy.number(), copy.len()), (0, 1));
        table.discard(Index(1_000));
        assert_eq!((table.number(), table.len()), (1, 0));
    }

    #[test]
    fn discarded_objects_are_forgotten_and_their_numbers_are_not_used_again() {
        let mut table = ObjectTable::default();
        table.apply(cut(0, base(0, 1), base(5, 9)), Index(1)).unwrap();
        table.apply(cut(1, base(5, 9), base(7, 12)), Index(1)).unwrap();
        table.apply(stored(0), Index(1)).unwrap();
        table.discard(Index(8));
        assert_eq!((table.number(), table.len()), (0, 2));
        table.discard(Index(12));
        assert_eq!((table.number(), table.len(), table.stored_upto()), (2, 0, None));
        assert_eq!(table.end(), Some((2, base(7, 12))));
        table.apply(stored(1), Index(12)).unwrap();
        // The entries behind it were discarded before they became an object.
        table.apply(cut(2, base(9, 30), base(11, 40)), Index(29)).unwrap_err();
        table.apply(cut(2, base(9, 30), base(11, 40)), Index(30)).unwrap();
        assert_eq!(table.next_to_store(), Some((2, base(9, 30), base(11, 40))));
    }
}
