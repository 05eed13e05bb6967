//! Restored: the catalogue of named logs whose directories are all lost, and come back as other logs. Catalogue and groups end at
//! different times, so they contradict each other. This makes a catalogue that fits the groups.
//!
//! | the catalogue says | the group says | the log |
//! |---|---|---|
//! | it exists | it is there | keeps its name, number and records |
//! | it exists | newer than all that it had | comes back empty: the group's end with its opening is lost |
//! | it exists | it had it, or a newer one, and has it no more | was deleted: the catalogue's end with that is lost |
//! | it was deleted | it is there | is dropped by the group's leader, as after any deletion |
//! | nothing: newer than all that it has | it is there | gets the name `recovered-NUMBER`: the catalogue's end with its name is lost |
//!
//! Invariants: a new log gets a number that no group ever had; each log and each group has an id that none had before.
//!
//! Must not know: files, blocks, who writes the records.

use super::{Catalogue, CatalogueEntry};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Index, LogId, LogNumber};
use std::collections::{BTreeMap, BTreeSet};

/// The state of a restored group.
#[derive(Clone, Debug)]
pub(crate) struct RestoredGroup {
    /// Its id, which is new.
    pub(crate) id: LogId,
    /// The newest log that it ever had; 0 if none.
    pub(crate) opened: LogNumber,
    /// The logs that it has.
    pub(crate) logs: BTreeSet<LogNumber>,
}

impl Catalogue {
    /// The groups that it names, or that its logs are in.
    pub(crate) fn all_groups(&self) -> BTreeSet<u32> {
        let of_logs = self.names.values().map(|entry| entry.group);
        self.groups().chain(of_logs).collect()
    }

    /// The catalogue that fits these groups, which are all that it has and perhaps more, as of before the record `next`; and what
    /// is not as it was, for people. No group is placed.
    ///
    /// # Errors
    /// `Corrupt`: a group has a log that is of another group. Those of `new_id`.
    pub(crate) fn restored(
        &self,
        groups: &BTreeMap<u32, RestoredGroup>,
        next: Index,
        new_id: &mut dyn FnMut() -> Result<LogId>,
    ) -> Result<(Self, Vec<String>)> {
        let opened = groups.values().map(|group| LogNumber(group.opened.0 + 1));
        let next_number = opened.fold(self.next_number, LogNumber::max);
        let mut made = Self { next, next_number, ..Self::default() };
        let mut notes = Vec::new();
        for (number, name) in &self.by_number {
            let Some(CatalogueEntry { group, .. }) = self.names.get(name).copied() else { continue };
            let has = groups.get(&group);
            if has.is_some_and(|has| *number <= has.opened && !has.logs.contains(number)) {
                notes.push(format!("log {name} was deleted, which the catalogue did not know yet"));
                continue;
            }
            if has.is_none_or(|has| !has.logs.contains(number)) {
                notes.push(format!(
                    "log {name} comes back empty: the backup has nothing of it in group-{group}"
                ));
            }
            made.add(name.clone(), CatalogueEntry { number: *number, id: new_id()?, group });
        }
        for (group, has) in groups {
            made.groups.insert(*group, has.id);
            for number in &has.logs {
                let known = self.by_number.get(number).and_then(|name| self.names.get(name));
                match known {
                    Some(entry) if entry.group == *group => {}
                    None if *number < self.next_number => {
                        let id = new_id()?;
                        made.deleted.insert((*group, *number), id);
                        made.deleted_ids.insert(id, (*group, *number));
                    }
                    None if !made.by_number.contains_key(number) => {
                        let name = made.unused_name(*number);
                        notes.push(format!(
                            "log {number} of group {group} is called {name}: the backup does not have its name"
                        ));
                        made.add(name, CatalogueEntry { number: *number, id: new_id()?, group: *group });
                    }
                    _ => {
                        let what = format!(
                            "group {group} has log {number}, which is of another group: they are not of one cluster"
                        );
                        return Err(Error::new(ErrorKind::Corrupt, what));
                    }
                }
            }
        }
        Ok((made, notes))
    }

    fn add(&mut self, name: String, entry: CatalogueEntry) {
        *self.sizes.entry(entry.group).or_default() += 1;
        self.by_number.insert(entry.number, name.clone());
        self.names.insert(name, entry);
    }

    /// A name for a log without one.
    fn unused_name(&self, number: LogNumber) -> String {
        let mut name = format!("recovered-{number}");
        while self.names.contains_key(&name) {
            name.push('-');
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::catalogue::CatalogueRecord;
    use crate::api::catalogue::snapshot::SnapshotParts;

    fn catalogue(records: &[CatalogueRecord]) -> Catalogue {
        let mut made = Catalogue::default();
        records.iter().cloned().for_each(|record| made.apply(record));
        made
    }

    fn create(name: &str, group: u32) -> CatalogueRecord {
        CatalogueRecord::Create { name: name.into(), id: LogId(name.len() as u128), group }
    }

    fn delete(number: u32, id: u128) -> CatalogueRecord {
        CatalogueRecord::Delete { number: LogNumber(number), id: LogId(id) }
    }

    fn group(id: u128, opened: u32, logs: &[u32]) -> RestoredGroup {
        let logs = logs.iter().copied().map(LogNumber).collect();
        RestoredGroup { id: LogId(id), opened: LogNumber(opened), logs }
    }

    fn restored(old: &Catalogue, groups: &[(u32, RestoredGroup)]) -> Result<(Catalogue, Vec<String>)> {
        let mut ids = 1000;
        let mut new_id = || {
            ids += 1;
            Ok(LogId(ids))
        };
        old.restored(&groups.iter().cloned().collect(), Index(2), &mut new_id)
    }

    /// As a reader of the snapshot gets it.
    fn read_back(catalogue: &Catalogue) -> Catalogue {
        let mut parts = SnapshotParts::default();
        let whole = catalogue.snapshot(LogId(5)).into_iter().map(|part| parts.push(part)).last();
        assert_eq!(whole, Some(true));
        parts.catalogue().unwrap()
    }

    #[test]
    fn every_order_of_loss_has_its_outcome() {
        let old = catalogue(&[
            CatalogueRecord::Group { group: 1, id: LogId(100) },
            CatalogueRecord::Group { group: 2, id: LogId(200) },
            CatalogueRecord::Place { group: 2, id: LogId(200), nodes: vec![crate::types::NodeId(3)] },
            create("kept", 1),         // 1
            create("dropped", 1),      // 2: the group had it
            create("deletedxx", 1),    // 3: deleted, and still in the group
            create("kept-2", 2),       // 4
            create("gonegonegone", 2), // 5: deleted and dropped
            create("unopened", 2),     // 6: the group does not know it
            create("recovered-8", 2),  // 7
            delete(3, 9),
            delete(5, 12),
        ]);
        let (made, notes) = restored(
            &old,
            &[(1, group(11, 8, &[1, 3, 8])), (2, group(12, 5, &[4])), (3, group(13, 9, &[9]))],
        )
        .unwrap();
        let made = read_back(&made);
        let names: Vec<(&str, u32, u32)> =
            made.names.iter().map(|(name, e)| (name.as_str(), e.number.0, e.group)).collect();
        let expected = [
            ("kept", 1, 1),
            ("kept-2", 4, 2),
            ("recovered-8", 7, 2),
            ("recovered-8-", 8, 1),
            ("recovered-9", 9, 3),
            ("unopened", 6, 2),
        ];
        assert_eq!(names, expected);
        assert_eq!(made.deleted.keys().copied().collect::<Vec<_>>(), [(1, LogNumber(3))]);
        assert_eq!(made.next_number(), LogNumber(10), "no number is given twice");
        assert_eq!(made.groups.values().map(|id| id.0).collect::<Vec<_>>(), [11, 12, 13]);
        assert!(made.place(2).is_empty(), "the servers are gone");
        assert!(made.names.values().chain(None).all(|entry| entry.id.0 > 1000), "no log keeps its id");
        assert_eq!((made.logs_in(1), made.logs_in(2), made.logs_in(3)), (2, 3, 1));
        assert_eq!(notes.len(), 5, "{notes:?}");
        assert_eq!(made.next(), Index(2));
    }

    #[test]
    fn catalogue_that_is_lost_leaves_logs_without_names() {
        let (made, _) = restored(&Catalogue::default(), &[(1, group(11, 3, &[1, 3]))]).unwrap();
        let names: Vec<&str> = made.names.keys().map(String::as_str).collect();
        assert_eq!((names, made.next_number()), (vec!["recovered-1", "recovered-3"], LogNumber(4)));
    }

    #[test]
    fn group_of_another_cluster_is_refused() {
        let old = catalogue(&[create("a", 1), create("b", 2)]);
        for groups in
            [vec![(1, group(11, 2, &[1, 2]))], vec![(1, group(11, 7, &[1, 7])), (2, group(12, 7, &[7]))]]
        {
            assert_eq!(restored(&old, &groups).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
