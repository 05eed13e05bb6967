//! The objects of a log: the stretches of its entries that are in an object store, or are to be put there. A pure state
//! machine, the same at every replica after the same entry.
//!
//! ```text
//!      discarded       stored            cut          not cut yet
//!  | ............ | k | k+1 | k+2 | k+3 | k+4 | ...................>
//!                 ^ base                      ^ end
//! ```
//!
//! A table of many objects would be in each opening of a segment, and of an object. So the rows of older ones leave the table in runs, once
//! the leader has read them, in the object store, in the opening of a later object: the holder. See `store/format/older_rows.rs`.
//!
//! A leader cuts objects and says when they are stored; both are entries. So the bytes of an object are a function of the
//! log alone: any replica can make them, at any time, and makes the same.
//!
//! Invariants:
//! - objects are numbered without gaps, and each begins where the one before ends;
//! - objects are stored in order;
//! - the first objects of a branch are those of its ancestors, all of them stored. Which they are never changes;
//! - an object is forgotten only once all its records are discarded. Its number is not used again;
//! - rows leave the table only if they are those of stored objects, and the row of their holder, which is stored, is in it then. The
//!   holder is younger than their objects, so it is deleted after them, and no pin and no branch that has one of them lacks it;
//! - behind a run of older rows at least one stored object has a row in the table;
//! - a discard alone does not say how many objects of a run are gone. They are forgotten once a leader, which has read the rows, says
//!   with which object the log begins, or with the whole run;
//! - in a copy of one log of a shared group the table is the group's, with the group's positions, and has stored objects alone. Nothing
//!   that happens to the one log changes it.
//!
//! Must not know: disks, threads.

use crate::record::batch::Malformed;
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::geometry::{ANCESTOR_BYTES, OLDER_ROWS_BYTES};
pub(crate) use crate::store::format::objects::StoredAt;

use crate::store::format::objects::{ObjectState, Objects, encode, encode_row};
use crate::store::format::older_rows::{OlderRows, RUN_MIN, RUNS_MAX, RowsRun};
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

/// Which objects readers are shown. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The number of the oldest one.
    pub(crate) number: u64,
    /// That of the first one whose row is in the table, and of the next one that is to be stored.
    rows: (u64, u64),
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

    /// Where the oldest object in the table begins, or the next one: not before the end of the last object that was discarded.
    pub(crate) fn base(&self) -> Base {
        self.objects.base
    }

    /// The number of the oldest object in the table, or of the next one: all before it are discarded.
    pub(crate) fn number(&self) -> u64 {
        self.objects.number
    }

    /// The number of the next object, and where it begins. None: the log has had no objects yet.
    pub(crate) fn end(&self) -> Option<(u64, Base)> {
        let (number, base) = self.objects.rows_from();
        let end = self.objects.list.back().map_or(base, |object| object.end);
        self.has_begun().then(|| (number + self.objects.list.len() as u64, end))
    }

    /// The number of the first object that is not known to be stored, or of the next one.
    pub(crate) fn next_to_show(&self) -> u64 {
        self.rows_from() + self.stored as u64
    }

    /// The number of the first object whose row is in the table, or of the next one.
    pub(crate) fn rows_from(&self) -> u64 {
        self.objects.rows_from().0
    }

    /// How far the objects are: the numbers of the next one to be stored, and of the next one to be cut; of the first one, and of the
    /// first one whose row is in the table, if rows are elsewhere.
    pub(crate) fn progress(&self) -> (u64, u64, Option<(u64, u64)>) {
        let moved = (!self.objects.older.is_empty()).then(|| (self.number(), self.rows_from()));
        (self.next_to_show(), self.rows_from() + self.objects.list.len() as u64, moved)
    }

    /// Which objects [`Self::show`] shows.
    pub(crate) fn shown(&self) -> Shown {
        Shown { number: self.number(), rows: (self.rows_from(), self.next_to_show()) }
    }

    /// The runs of objects whose rows are elsewhere, oldest first, each with its first object that is left, and where that begins.
    pub(crate) fn runs(&self) -> impl DoubleEndedIterator<Item = RowsRun> + '_ {
        self.objects.runs()
    }

    /// The run with this object, if its row is elsewhere.
    pub(crate) fn run_of(&self, number: u64) -> Option<RowsRun> {
        self.runs().find(|run| (run.number..run.rows.below).contains(&number))
    }

    /// How many stored objects have a row in the table.
    pub(crate) fn stored_rows(&self) -> usize {
        self.stored
    }

    /// The rows of the first objects in the table, of this number of them, as they are in an opening. None: they are not all stored.
    pub(crate) fn first_rows(&self, count: u32) -> Option<Vec<u8>> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.stored)?;
        let mut rows = Vec::new();
        self.objects.list.iter().take(count).for_each(|object| encode_row(object, &mut rows));
        Some(rows)
    }

    /// The timestamp of the newest object's last entry; 0 if the table has none.
    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.objects.list.back().map_or(Timestamp(0), |object| object.timestamp)
    }

    /// The number of objects that have a row in the table.
    pub(crate) fn len(&self) -> usize {
        self.objects.list.len()
    }

    /// The first object that is not known to be stored: its number, and where it begins and ends.
    pub(crate) fn next_to_store(&self) -> Option<(u64, Base, Base)> {
        let object = self.objects.list.get(self.stored)?;
        Some((self.next_to_show(), self.begin_of(self.stored), object.end))
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

    /// The stored objects that have a row in the table, oldest first. See [`Self::runs`] for those before them.
    pub(crate) fn stored(&self) -> impl DoubleEndedIterator<Item = StoredAt> + '_ {
        self.objects.list.iter().take(self.stored).enumerate().filter_map(|(n, state)| {
            let (number, begin) = (self.rows_from() + n as u64, self.begin_of(n));
            let before = match n.checked_sub(1) {
                Some(n) => self.objects.list.get(n).map(|object| object.timestamp),
                None => self.objects.older.back().map(|run| run.timestamp),
            };
            let before = before.unwrap_or(Timestamp(0));
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

    /// The bytes that its ancestors, and runs of older rows, take in an opening.
    pub(crate) fn bytes_beside_rows(&self) -> usize {
        self.objects.ancestors.len() * ANCESTOR_BYTES + self.objects.older.len() * OLDER_ROWS_BYTES
    }

    /// Shows readers of the log `log`, or of the group in whose objects a copy of one log finds its records, the objects that are stored.
    pub(crate) fn show(&self, log: LogId, list: &ObjectList) {
        let lineage = self.group().map_or_else(|| self.lineage(log), |(group, _)| Lineage::of(group));
        let known = list.next().unwrap_or(self.rows_from()).max(self.rows_from());
        let added = self.stored().filter(|at| at.number >= known).map(|at| ListedObject {
            number: at.number,
            begin: at.begin,
            end: at.state.end,
            timestamps: (at.before, at.state.timestamp),
            object: at.object,
        });
        list.update(&lineage, self.runs().collect(), self.rows_from(), added);
    }

    fn begin_of(&self, n: usize) -> Base {
        let before = n.checked_sub(1).and_then(|n| self.objects.list.get(n));
        before.map_or(self.objects.rows_from().1, |object| object.end)
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
                        self.objects.older.clear();
                        self.objects.list.clear();
                        self.stored = 0;
                    }
                    _ => return Err("object does not follow the one before"),
                }
                self.objects.list.push_back(ObjectState { end, timestamp, stored: None });
            }
            ObjectCommand::Stored { number, object } => {
                // It was discarded before this entry, or is stored already.
                let expected = self.next_to_show();
                if number < expected {
                    return Ok(());
                }
                let next = self.objects.list.get_mut(self.stored).filter(|_| number == expected);
                next.ok_or("object is stored out of order")?.stored = Some(object);
                self.stored += 1;
            }
            ObjectCommand::MoveRows { below, holder, offset, crc } => {
                self.move_rows(below, holder, offset, crc)?;
            }
            ObjectCommand::Begin { number, begin, bytes } => self.begin_with(number, begin, bytes, first)?,
        }
        Ok(())
    }

    /// The rows of the objects below a number leave the table.
    fn move_rows(&mut self, below: u64, holder: u64, offset: u32, crc: u32) -> Result<(), Malformed> {
        let from = self.rows_from();
        if below <= from {
            return Ok(()); // they were discarded before this entry, or are elsewhere already
        }
        let count = u32::try_from(below - from).map_err(|_| "run of rows has too many objects")?;
        let at = holder.checked_sub(from).and_then(|n| usize::try_from(n).ok());
        let held = at
            .filter(|n| *n < self.stored)
            .and_then(|n| self.objects.list.get(n))
            .and_then(|held| held.stored);
        let (Some(held), Some(rows)) = (held.filter(|_| holder >= below), self.first_rows(count)) else {
            return Err("rows of objects, or the object that holds them, are not stored");
        };
        let fits = u64::from(offset) + rows.len() as u64 <= u64::from(held.bytes);
        if count < RUN_MIN || !fits || self.objects.older.len() >= RUNS_MAX {
            return Err("run of rows is impossible");
        }
        if crc32c(&rows) != crc {
            return Err("rows of objects are not those in the object that holds them");
        }
        let left = self.objects.list.split_off(count as usize);
        let moved = std::mem::replace(&mut self.objects.list, left);
        let Some(last) = moved.back() else { return Err("run of rows is empty") };
        let bytes =
            moved.iter().filter_map(|object| object.stored).map(|stored| u64::from(stored.bytes)).sum();
        let (end, timestamp) = (last.end, last.timestamp);
        self.objects.older.push_back(OlderRows { below, end, timestamp, bytes, count, holder, offset, crc });
        self.stored -= count as usize;
        Ok(())
    }

    /// Objects of the first run, all of whose records are discarded, are forgotten.
    fn begin_with(&mut self, number: u64, begin: Base, bytes: u64, first: Index) -> Result<(), Malformed> {
        if number <= self.objects.number {
            return Ok(()); // a discard has passed it meanwhile
        }
        let base = self.objects.base;
        let run = self.objects.older.front_mut().filter(|run| number < run.below);
        let run = run.ok_or("the log begins with an object whose row is in the table")?;
        let follows = begin.raft > base.raft && begin.term >= base.term && begin.next >= base.next;
        let precedes = begin.raft < run.end.raft && begin.term <= run.end.term && begin.next <= run.end.next;
        if !follows || !precedes || begin.next > first || bytes >= run.bytes {
            return Err("the log begins with an impossible object, or with one behind its first record");
        }
        run.bytes -= bytes;
        (self.objects.number, self.objects.base) = (number, begin);
        Ok(())
    }

    /// Forgets the objects without a record from `first` on.
    pub(crate) fn discard(&mut self, first: Index) {
        if self.group().is_some() {
            return; // its positions count the records of all logs
        }
        let is_gone = |run: &mut OlderRows| run.end.next <= first || planted!(163);
        while let Some(gone) = self.objects.older.pop_front_if(is_gone) {
            (self.objects.number, self.objects.base) = (gone.below, gone.end);
        }
        if !self.objects.older.is_empty() {
            return;
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
        if self.has_begun() { self.objects.encoded_bytes() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::objects::{Ancestor, StoredObject};
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

    /// Objects 0 to 7, each of one entry and one record, all stored.
    fn many() -> ObjectTable {
        let mut table = ObjectTable::default();
        for n in 0..8 {
            table.apply(cut(n, base(n, n + 1), base(n + 1, n + 2)), Index(1)).unwrap();
            table.apply(stored(n), Index(1)).unwrap();
        }
        table
    }

    fn move_rows(table: &ObjectTable, count: u32, holder: u64) -> ObjectCommand {
        let crc = crc32c(&table.first_rows(count).unwrap());
        ObjectCommand::MoveRows { below: table.rows_from() + u64::from(count), holder, offset: 5000, crc }
    }

    #[test]
    fn rows_leave_for_a_stored_holder_alone_and_all_else_goes_on() {
        let mut table = many();
        let before = table.clone();
        let good = move_rows(&table, 3, 6);
        let ObjectCommand::MoveRows { below, holder, offset, crc } = good else { unreachable!() };
        for bad in [
            ObjectCommand::MoveRows { below, holder: 8, offset, crc },
            ObjectCommand::MoveRows { below, holder: below - 1, offset, crc },
            ObjectCommand::MoveRows { below, holder, offset, crc: crc ^ 1 },
            ObjectCommand::MoveRows { below, holder, offset: (1 << 16) - 100, crc },
            ObjectCommand::MoveRows { below: 1, holder, offset, crc },
            ObjectCommand::MoveRows { below: 9, holder: 10, offset, crc },
        ] {
            table.apply(bad, Index(1)).unwrap_err();
            assert_eq!(table, before, "{bad:?}");
        }
        table.apply(good, Index(1)).unwrap();
        table.apply(good, Index(1)).unwrap();
        assert_eq!((table.number(), table.rows_from(), table.len(), table.next_to_show()), (0, 3, 5, 8));
        assert_eq!((table.end(), table.stored_upto()), (before.end(), before.stored_upto()));
        assert_eq!(table.stored().next(), before.stored().nth(3));
        assert_ne!(table.progress(), before.progress());
        let run = table.run_of(2).unwrap();
        assert_eq!((run.number, run.begin, table.run_of(3)), (0, base(0, 1), None));
        assert_eq!(
            run.objects(&before.first_rows(3).unwrap()).unwrap(),
            before.stored().take(3).collect::<Vec<_>>()
        );
        table.apply(cut(8, base(8, 9), base(9, 10)), Index(1)).unwrap();
        table.apply(stored(8), Index(1)).unwrap();
        table.apply(move_rows(&table, 2, 8), Index(1)).unwrap();
        let (objects, first) = crate::store::format::objects::decode(&table.encode(Index(1))).unwrap();
        assert_eq!((ObjectTable::of(objects), first), (table.clone(), Index(1)));
        assert_eq!(table.encode(Index(1)).len(), table.encoded_bytes());
    }

    /// A discard knows of whole runs alone: which objects of one are gone, a leader says.
    #[test]
    fn discard_takes_runs_whole_and_a_begin_what_is_discarded() {
        let mut table = many();
        table.apply(move_rows(&table, 3, 6), Index(1)).unwrap();
        table.apply(move_rows(&table, 2, 7), Index(1)).unwrap();
        let rows = u64::from(1u32 << 16);
        let begin = |number, bytes| ObjectCommand::Begin { number, begin: base(number, number + 1), bytes };
        table.discard(Index(2));
        assert_eq!((table.number(), table.run_of(0).map(|run| run.rows.bytes)), (0, Some(3 * rows)));
        for (bad, first) in
            [(begin(1, rows), 1), (begin(2, 2 * rows), 2), (begin(3, 3 * rows), 4), (begin(1, 3 * rows), 2)]
        {
            table.apply(bad, Index(first)).unwrap_err();
        }
        table.apply(begin(1, rows), Index(2)).unwrap();
        table.apply(begin(1, rows), Index(2)).unwrap();
        let run = table.run_of(1).unwrap();
        assert_eq!((table.number(), run.number, run.begin, run.rows.bytes), (1, 1, base(1, 2), 2 * rows));
        let (objects, _) = crate::store::format::objects::decode(&table.encode(Index(2))).unwrap();
        assert_eq!(ObjectTable::of(objects), table);
        table.discard(Index(5));
        assert_eq!((table.number(), table.rows_from(), table.len()), (3, 5, 3), "the first run is gone");
        table.discard(Index(8));
        assert_eq!((table.number(), table.rows_from(), table.len()), (7, 7, 1));
        // A command of before that discard.
        table.apply(begin(4, rows), Index(8)).unwrap();
        assert_eq!(table.end(), Some((8, base(8, 9))));
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
