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
//! Up to a time, the catalogue and each group end there, each by the clocks of its own leaders. Then also the rest of them counts, which
//! is not restored ([`CutAt`], [`RestoredGroup::opened_at_end`]):
//!
//! | the catalogue at that time says | the group says | the log |
//! |---|---|---|
//! | it exists | it opened it later | comes back empty: as it was |
//! | it exists, and this catalogue is of a later time | it opened it after the time asked for | is left out: it was created after that time, or shortly before |
//! | it exists | it had dropped it by then, or by its oldest state, which is later | is not there |
//! | nothing, and the rest shows that it was created later | it is there | is dropped by the group's leader |
//! | it was deleted, and this catalogue is of a later time | it is there | gets the name `recovered-NUMBER`: it was deleted later, or shortly before |
//!
//! Invariants: a new log gets a number that no group ever had; each log and each group has an id that none had before. A log that its group
//! is to drop keeps the name that it had, as far as one of the catalogues knows it: without it, it could be that of every new log.
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
    /// The newest log that it had opened at the end of its backup, which can be behind where it was restored to.
    pub(crate) opened_at_end: LogNumber,
    /// Whether it is of a later moment than the time asked for, because its state at that time is discarded.
    pub(crate) is_later: bool,
}

/// The end of a catalogue at a time, and the rest of it.
#[derive(Debug)]
pub(crate) struct CutAt {
    /// The catalogue at the end of its backup.
    pub(crate) newest: Catalogue,
    /// Whether the backup of it goes on behind the time: a log that it does not know was created later.
    pub(crate) goes_on: bool,
    /// Whether the catalogue that is restored is of a later moment than the time, because its state at that time is discarded.
    pub(crate) is_later: bool,
}

impl CutAt {
    /// Whether a log that the catalogue does not know at the time was created after it.
    fn is_newer(&self, number: LogNumber) -> bool {
        number < self.newest.next_number || self.goes_on
    }

    /// The name of a log, or its number.
    fn name(&self, number: LogNumber) -> String {
        self.newest.by_number(number).map_or_else(|| number.to_string(), str::to_owned)
    }
}

impl Catalogue {
    /// The name that a log of this group has, or had before it was deleted, as far as it is known here.
    fn name_in(&self, group: u32, number: LogNumber) -> Option<&str> {
        let is_in = |name: &&str| self.names.get(*name).is_some_and(|entry| entry.group == group);
        let deleted = || self.deleted.get(&(group, number)).and_then(|deleted| deleted.name.as_deref());
        self.by_number(number).filter(is_in).or_else(deleted)
    }
}

impl Catalogue {
    /// The groups that it names, or that its logs are in.
    pub(crate) fn all_groups(&self) -> BTreeSet<u32> {
        let of_logs = self.names.values().map(|entry| entry.group);
        self.groups().chain(of_logs).collect()
    }

    /// The catalogue that fits these groups, which are all that it has and perhaps more, as of before the record `next`; and what
    /// is not as it was, for people. No group is placed. `cut`: all of them end at a time.
    ///
    /// # Errors
    /// `Corrupt`: a group has a log that is of another group. Those of `new_id`.
    pub(crate) fn restored(
        &self,
        groups: &BTreeMap<u32, RestoredGroup>,
        cut: Option<&CutAt>,
        next: Index,
        new_id: &mut dyn FnMut() -> Result<LogId>,
    ) -> Result<(Self, Vec<String>)> {
        let opened = groups.values().map(|group| LogNumber(group.opened.0 + 1));
        let next_number = opened.fold(self.next_number, LogNumber::max);
        let mut made = Self { next, next_number, ..Self::default() };
        let mut notes = Vec::new();
        self.keep_known(&mut made, groups, cut, new_id, &mut notes)?;
        for (group, has) in groups {
            made.groups.insert(*group, has.id);
            self.keep_found(&mut made, (*group, has), cut, new_id, &mut notes)?;
        }
        Ok((made, notes))
    }

    /// Adds the logs that this catalogue knows.
    fn keep_known(
        &self,
        made: &mut Self,
        groups: &BTreeMap<u32, RestoredGroup>,
        cut: Option<&CutAt>,
        new_id: &mut dyn FnMut() -> Result<LogId>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        for (number, name) in &self.by_number {
            let Some(CatalogueEntry { group, .. }) = self.names.get(name).copied() else { continue };
            let has = groups.get(&group);
            let is_missing = has.is_none_or(|has| !has.logs.contains(number));
            if let Some(has) = has.filter(|has| is_missing && *number <= has.opened) {
                match cut {
                    None => notes.push(format!("log {name} was deleted, which the catalogue did not know yet")),
                    Some(_) if has.is_later => notes.push(format!(
                        "log {name} is not there: it was deleted before the oldest state that is left of group-{group}"
                    )),
                    Some(_) => notes.push(format!(
                        "log {name} is not there: by the clock of its leader group-{group} had dropped it by then"
                    )),
                }
                continue;
            }
            // Its group opened it after the time.
            let is_newer = is_missing && cut.is_some() && has.is_some_and(|has| *number <= has.opened_at_end);
            if is_newer && cut.is_some_and(|cut| cut.is_later) {
                notes.push(format!("log {name} is left out: group-{group} opened it after that time"));
                continue;
            }
            if is_missing && !is_newer {
                notes.push(format!(
                    "log {name} comes back empty: the backup has nothing of it in group-{group}"
                ));
            }
            made.add(name.clone(), CatalogueEntry { number: *number, id: new_id()?, group });
        }
        Ok(())
    }

    /// Adds the logs that a group has, and this catalogue does not know.
    fn keep_found(
        &self,
        made: &mut Self,
        (group, has): (u32, &RestoredGroup),
        cut: Option<&CutAt>,
        new_id: &mut dyn FnMut() -> Result<LogId>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        // The group had it at the time, and the catalogue is of a later one.
        let was_there = cut.is_some_and(|cut| cut.is_later) && !has.is_later;
        for number in &has.logs {
            let known = self.by_number.get(number).and_then(|name| self.names.get(name));
            let was_known = *number < self.next_number;
            let is_newer = !was_known && cut.is_some_and(|cut| cut.is_newer(*number));
            match known {
                Some(entry) if entry.group == group => {}
                None if is_newer || (was_known && !was_there) => {
                    if let Some(cut) = cut.filter(|_| is_newer && !has.is_later) {
                        let name = cut.name(*number);
                        notes.push(format!(
                            "log {name} was created after that time by the clock of the catalogue's leader: records that group-{group} \
                             had of it by then are left out"
                        ));
                    }
                    let newest = || cut.and_then(|cut| cut.newest.name_in(group, *number));
                    let name = self.name_in(group, *number).or_else(newest).map(str::to_owned);
                    made.add_deleted((group, *number), new_id()?, name);
                }
                None if !made.by_number.contains_key(number) => {
                    let name = made.unused_name(*number);
                    let why = match was_known {
                        true => {
                            "it was deleted, perhaps before that time, and the catalogue does not have its name any more"
                        }
                        false => "the backup does not have its name",
                    };
                    notes.push(format!("log {number} of group {group} is called {name}: {why}"));
                    made.add(name, CatalogueEntry { number: *number, id: new_id()?, group });
                }
                _ => {
                    let what = format!(
                        "group {group} has log {number}, which is of another group: they are not of one cluster"
                    );
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
            }
        }
        Ok(())
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
        let opened = LogNumber(opened);
        RestoredGroup { id: LogId(id), opened, logs, opened_at_end: opened, is_later: false }
    }

    fn restored(old: &Catalogue, groups: &[(u32, RestoredGroup)]) -> Result<(Catalogue, Vec<String>)> {
        cut(old, groups, None)
    }

    fn cut(
        old: &Catalogue,
        groups: &[(u32, RestoredGroup)],
        cut: Option<&CutAt>,
    ) -> Result<(Catalogue, Vec<String>)> {
        let mut ids = 1000;
        let mut new_id = || {
            ids += 1;
            Ok(LogId(ids))
        };
        old.restored(&groups.iter().cloned().collect(), cut, Index(2), &mut new_id)
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
        assert!(
            made.deleted_as("deletedxx").is_some() && made.deleted_as("new").is_none(),
            "it has its name"
        );
        assert_eq!(made.next_number(), LogNumber(10), "no number is given twice");
        assert_eq!(made.groups.values().map(|id| id.0).collect::<Vec<_>>(), [11, 12, 13]);
        assert!(made.place(2).is_empty(), "the servers are gone");
        assert!(made.names.values().chain(None).all(|entry| entry.id.0 > 1000), "no log keeps its id");
        assert_eq!((made.logs_in(1), made.logs_in(2), made.logs_in(3)), (2, 3, 1));
        assert_eq!(notes.len(), 5, "{notes:?}");
        assert_eq!(made.next(), Index(2));
    }

    /// The rest of the catalogue and of the groups tells what was created after the time from what is lost.
    #[test]
    fn every_state_at_a_time_has_its_outcome() {
        let begin = [
            create("kept", 1),
            create("deleted", 1),
            create("silent", 1),
            create("dropped", 1),
            delete(2, 7),
        ];
        let (then, newest) = (catalogue(&begin), catalogue(&[&begin[..], &[create("later", 1)]].concat()));
        let at = |newest, goes_on, is_later| CutAt { newest, goes_on, is_later };
        let names = |made: &Catalogue| made.names.keys().cloned().collect::<Vec<_>>();
        let dropped = |made: &Catalogue| made.deleted.keys().map(|(_, log)| log.0).collect::<Vec<_>>();
        // The group had 1 and 2, and opened 3 to 6 after the time.
        let behind = RestoredGroup { opened_at_end: LogNumber(6), ..group(11, 2, &[1, 2]) };
        let (made, notes) = cut(&then, &[(1, behind.clone())], Some(&at(newest, true, false))).unwrap();
        assert_eq!(
            (names(&made), dropped(&made)),
            (vec!["dropped".into(), "kept".into(), "silent".into()], vec![2])
        );
        assert_eq!((notes, made.next_number()), (Vec::new(), LogNumber(5)));
        // Its clock was behind: it has the later ones, and has dropped one.
        let ahead = group(11, 6, &[1, 3, 5, 6]);
        for (goes_on, lost) in [(true, None), (false, Some("recovered-6"))] {
            let newest = catalogue(&[&begin[..], &[create("later", 1)]].concat());
            let (made, notes) = cut(&then, &[(1, ahead.clone())], Some(&at(newest, goes_on, false))).unwrap();
            let wanted: Vec<_> =
                ["kept"].into_iter().chain(lost).chain(["silent"]).map(String::from).collect();
            assert_eq!(names(&made), wanted, "{notes:?}");
            assert!(dropped(&made).starts_with(&[5]) && made.next_number() == LogNumber(7));
            assert_eq!(notes.len(), 3, "{notes:?}");
            assert!(notes.iter().any(|note| note.contains("log later was created after")), "{notes:?}");
            // The newest catalogue has the name of 5; that of 6 is known nowhere.
            let held = |name: &str| made.deleted_as(name).map(|id| made.deleted_ids[&id].1.0);
            assert_eq!((held("later"), held("new")), (Some(5), goes_on.then_some(6)));
            assert_eq!(held("kept"), None, "one that exists awaited it already");
        }
        // The catalogue at the time is discarded: the groups show which logs are newer, if their ends are stored.
        let all = catalogue(&[&begin[..], &[create("later", 1)]].concat());
        let of = RestoredGroup { opened_at_end: LogNumber(5), ..group(11, 4, &[1, 3, 4]) };
        let newest = catalogue(&[&begin[..], &[create("later", 1)]].concat());
        let alive = RestoredGroup { opened_at_end: LogNumber(5), ..group(11, 4, &[1, 2, 3, 4]) };
        let later = RestoredGroup { is_later: true, ..alive.clone() };
        // One that was deleted in between was alive, if the group's own state is not later, too.
        for (of, wanted) in [(alive, "recovered-2"), (later, "kept")] {
            let newest = catalogue(&[&begin[..], &[create("later", 1)]].concat());
            let (made, notes) = cut(&all, &[(1, of)], Some(&at(newest, true, true))).unwrap();
            assert!(names(&made).contains(&wanted.into()), "{notes:?}");
            assert_eq!(names(&made).len() + dropped(&made).len(), 4, "{notes:?}");
        }
        let (made, notes) = cut(&all, &[(1, of)], Some(&at(newest, true, true))).unwrap();
        assert_eq!(
            (names(&made), notes.len()),
            (vec!["dropped".into(), "kept".into(), "silent".into()], 1),
            "{notes:?}"
        );
        // Without the catalogue nothing says when a log was created.
        let lost = at(Catalogue::default(), false, false);
        let (made, _) = cut(&Catalogue::default(), &[(1, group(11, 3, &[1, 3]))], Some(&lost)).unwrap();
        assert_eq!(names(&made), ["recovered-1", "recovered-3"]);
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
