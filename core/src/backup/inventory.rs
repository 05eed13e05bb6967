//! Inventory: what a log has in an object store, what of it is needed, and for what.
//!
//! | part | needed by | deleted by |
//! |---|---|---|
//! | objects from the highest begin on | the log | - |
//! | objects below it, under a pin | the pin | - |
//! | other objects below it | nothing | [`Inventory::delete_unneeded`], or the log's leader |
//! | slices | the log | servers, once objects have their records |
//! | payload slices of a term before that of the last entry before the newest object, if all objects from the highest begin on have their sizes | nothing: below | [`Inventory::delete_unneeded_payloads`] once it has read the objects with records of these terms, or the log's leader |
//! | other payload slices | the log | its leader, once objects have their records |
//! | begins below the highest one | nothing but to say how long records are discarded: [`Inventory::begin_made_by`] | the same |
//! | the state in which a branch began | the branch, for ever | - |
//! | names that no version of this program makes, or a later one does | unknown | - |
//!
//! An object is cut only once the one before it is stored, or discarded. So of the entries before the newest object nobody needs payload
//! slices any more, and every entry refers to slices of its own term. The newest object itself may not be known to be stored. If one of the
//! others is lost, its entries are still in files, and it is made again of their payload.
//!
//! Invariants: nothing is deleted that is not known to be unneeded. Objects go as a leader deletes them, so pins hold:
//! `store/objects/deletion.rs`. Of a whole log `root` goes first, and a pin is made only as long as it is there.
//!
//! Must not know: the network, which object store it is.

use crate::backup::branch::object::{read_object, sum_object};
use crate::backup::cluster_pins;
use crate::backup::pin::{Covered, first_with};
use crate::backup::slices::AT_A_TIME;
use crate::backup::stored::{footer_at, lineage_of, opening_at};
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::objects::{self, ObjectState, Objects, StoredObject};
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::Base;
use crate::store::objects::cluster_logs;
use crate::store::objects::deletion::{delete_below, newest_begin};
use crate::store::objects::names::{
    Lineage, begin_name, begin_number, branch_name, folder, log_folder, object_name, object_number,
    root_name, root_text, time_name,
};
use crate::store::objects::older_rows::fetch;
use crate::store::objects::payloads::{payload_id, payload_name, payloads};
use crate::store::objects::pins::{self, Pin};
use crate::store::objects::slice_names::SliceName;
use crate::sync::threads::in_parallel;
use crate::types::{Index, LogId, Term, Timestamp};
use crate::vault::{ObjectInfo, Vault};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// A number of objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObjectCount {
    pub objects: u64,
    pub bytes: u64,
}

impl ObjectCount {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// A list of all that a log has in an object store, and of what is needed.
///
/// ```
/// use chiplog::backup::Inventory;
/// let vault = chiplog::vault::MemoryVault::default();
/// let there = Inventory::take(&vault, chiplog::LogId(7))?;
/// assert!(!there.has_root && there.needed.objects == 0);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inventory {
    /// The log.
    pub log_id: LogId,
    /// Whether the object `root` is there. A log without it stores nothing.
    pub has_root: bool,
    /// The numbers of its oldest and its newest object. None: there is none.
    pub range: Option<(u64, u64)>,
    /// The records of all objects below this number are discarded.
    pub begin: u64,
    /// When the store was told so. None: never, or the store does not say when.
    pub begin_made: Option<Timestamp>,
    /// The objects that the log is made of.
    pub needed: ObjectCount,
    /// The objects of discarded records that pins keep.
    pub pinned: ObjectCount,
    /// The objects that nothing needs.
    pub unneeded: ObjectCount,
    /// The slices with the newest records.
    pub slices: ObjectCount,
    /// The payload slices that entries can need, of a log with the durability class `object`.
    pub payloads: ObjectCount,
    /// The payload slices that nothing needs.
    pub unneeded_payloads: ObjectCount,
    /// Why it cannot be seen which payload slices are needed: the newest object cannot be read, or one that the log is made of is missing, or
    /// of another size than the log says, and may have to be made again. All of them count as needed then.
    pub payloads_unclear: Option<String>,
    /// The begins that a higher one has replaced.
    pub old_begins: u64,
    /// Objects that this version does not know, and leaves alone.
    pub unknown: ObjectCount,
    /// The pins.
    pub pins: Vec<Pin>,
    /// The begins, the highest one first.
    begins: Vec<u64>,
    /// The sizes of the objects that nothing needs, by their numbers.
    unneeded_sizes: BTreeMap<u64, u64>,
}

impl Inventory {
    /// Lists what a log has in an object store. Blocks for the network.
    ///
    /// # Errors
    /// `Unsupported`: a pin is damaged, or of a newer format: it could keep any object. Those of [`Vault`].
    pub fn take(vault: &dyn Vault, log: LogId) -> Result<Self> {
        let there = vault.list(&log_folder(log))?;
        let mut begins: Vec<u64> =
            there.iter().filter_map(|object| begin_number(log, &object.name)).collect();
        begins.sort_unstable_by(|a, b| b.cmp(a));
        let begin = begins.first().copied().unwrap_or(0);
        let pins = pins::all(vault, log)?;
        let mut inventory = Self {
            log_id: log,
            has_root: false,
            range: None,
            begin,
            begin_made: if begin > 0 { vault.modified(&begin_name(log, begin))? } else { None },
            needed: ObjectCount::default(),
            pinned: ObjectCount::default(),
            unneeded: ObjectCount::default(),
            slices: ObjectCount::default(),
            payloads: ObjectCount::default(),
            unneeded_payloads: ObjectCount::default(),
            payloads_unclear: None,
            old_begins: begins.len().saturating_sub(1) as u64,
            unknown: ObjectCount::default(),
            pins,
            begins,
            unneeded_sizes: BTreeMap::new(),
        };
        let (root, list, pins) = (root_name(log), cluster_logs::name(log), pins::folder(log));
        let time = time_name(log);
        let sets = cluster_pins::sets(log);
        let has_payloads = there.iter().any(|object| payload_id(log, &object.name).is_some());
        // If it cannot be seen which of them are needed, all are.
        let (needed_from, unclear) = match has_payloads.then(|| Known::find(vault, log, begin, &there)) {
            None => (Term(0), None),
            Some(Ok(known)) => (known.payloads_from, None),
            Some(Err(error)) if is_of_object(&error) => (Term(0), Some(error.to_string())),
            Some(Err(error)) => return Err(error),
        };
        inventory.payloads_unclear = unclear;
        for object in &there {
            if let Some(number) = object_number(log, &object.name) {
                let (first, last) = inventory.range.unwrap_or((number, number));
                inventory.range = Some((first.min(number), last.max(number)));
                let is_kept = inventory.pins.iter().any(|pin| pin.keeps(number));
                let counted = match number >= begin {
                    true => &mut inventory.needed,
                    false if is_kept => &mut inventory.pinned,
                    false => {
                        inventory.unneeded_sizes.insert(number, object.bytes);
                        &mut inventory.unneeded
                    }
                };
                counted.add(object.bytes);
            } else if object.name == root {
                inventory.has_root = true;
            } else if object.name == list || object.name == time || object.name.starts_with(&sets) {
                // They go with the log. (A `gc` that was killed leaves the one that told it the store's time.)
            } else if SliceName::parse(log, &object.name).is_some() {
                inventory.slices.add(object.bytes);
            } else if let Some(id) = payload_id(log, &object.name) {
                let counted = match id.term >= needed_from {
                    true => &mut inventory.payloads,
                    false => &mut inventory.unneeded_payloads,
                };
                counted.add(object.bytes);
            } else if begin_number(log, &object.name).is_none()
                && object.name != branch_name(log)
                && !object.name.starts_with(&pins)
            {
                inventory.unknown.add(object.bytes);
            }
        }
        Ok(inventory)
    }

    /// The first and the last record of the log that are in its objects. None: all of them are discarded, or there are none.
    /// Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: an object is missing, or damaged. Those of [`Vault`].
    pub fn records(&self, vault: &dyn Vault) -> Result<Option<(Index, Index)>> {
        match Covered::find(vault, self.log_id, None) {
            Ok(Covered { first, last, .. }) => Ok(Some((first, last)).filter(|_| first <= last)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Discarded) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The highest begin that the store was told by this time of its clock: the records of all objects below it are discarded since then,
    /// at least. None: there is none, or the store does not say when. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`].
    pub fn begin_made_by(&self, vault: &dyn Vault, time: Timestamp) -> Result<Option<u64>> {
        // A lower one was made earlier.
        let found = first_with(self.begins.len(), |at| {
            let made = vault.modified(&begin_name(self.log_id, self.begins[at]))?;
            Ok(made.is_some_and(|made| made <= time))
        });
        Ok(found?.map(|at| self.begins[at]))
    }

    /// The objects below this number that nothing needs.
    pub fn unneeded_below(&self, begin: u64) -> ObjectCount {
        let mut count = ObjectCount::default();
        self.unneeded_sizes.range(..begin).for_each(|(_, bytes)| count.add(*bytes));
        count
    }

    /// Deletes the objects and the begins that nothing needs. Returns how many objects. Pins that were made since hold. Blocks for
    /// the network.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn delete_unneeded(&self, vault: &dyn Vault) -> Result<u64> {
        self.delete_unneeded_below(vault, self.begin)
    }

    /// As [`Self::delete_unneeded`], of those below this begin. Below a number that is none nothing is deleted. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn delete_unneeded_below(&self, vault: &dyn Vault, begin: u64) -> Result<u64> {
        match begin > 0 && self.begins.contains(&begin) {
            true => delete_below(vault, &lineage_of(vault, self.log_id)?, begin),
            false => Ok(0),
        }
    }

    /// Deletes the payload slices that nothing needs. Returns how many. Servers delete theirs by themselves: this is for logs without
    /// servers. Blocks for the network, and if there are such slices until all objects with records of their terms are read: after damage in
    /// one of these the slices may be all that is left of its records.
    ///
    /// # Errors
    /// `Corrupt`: such an object, or the newest one, is damaged, or one that the log is made of is missing or of another size than the log
    /// says; nothing was deleted. Those of [`Vault`].
    pub fn delete_unneeded_payloads(&self, vault: &dyn Vault) -> Result<u64> {
        let log = self.log_id;
        let found = vault.list(&payloads(log))?;
        let mut ids: Vec<_> = found.iter().filter_map(|found| payload_id(log, &found.name)).collect();
        if !ids.is_empty() {
            let objects = vault.list(&folder(log))?;
            let begin = newest_begin(vault, log)?.unwrap_or(0);
            let known = Known::find(vault, log, begin, &objects)?;
            ids.retain(|id| id.term < known.payloads_from);
            if !ids.is_empty() {
                known.check_entries_of(vault, &ids.iter().map(|id| id.term).collect())?;
            }
        }
        for id in &ids {
            vault.delete(&payload_name(log, *id))?;
        }
        Ok(ids.len() as u64)
    }

    /// Deletes everything that a log has in an object store, for good. Records that no replica has are lost: with the durability class
    /// `object` that are all. Servers that run the log store nothing from then on. Objects that this version does not know go, too.
    /// Returns how many objects were deleted. An interrupted call can be repeated. Blocks for the network.
    ///
    /// ```
    /// use chiplog::backup::Inventory;
    /// let vault = chiplog::vault::MemoryVault::default();
    /// assert_eq!(Inventory::delete_log(&vault, chiplog::LogId(7))?, 0);
    /// # Ok::<(), chiplog::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`: a pin keeps objects of the log, or cannot be read, or the log has a set of pins of a cluster; nothing was deleted.
    /// Those of [`Vault`].
    pub fn delete_log(vault: &dyn Vault, log: LogId) -> Result<u64> {
        let check_pins = || match pins::count(vault, log)? + vault.list(&cluster_pins::sets(log))?.len() {
            0 => Ok(()),
            count => {
                let what = format!(
                    "log {:032x} has {count} pins, or sets of pins: remove them first, by their names",
                    log.0
                );
                Err(Error::new(ErrorKind::Busy, what))
            }
        };
        check_pins()?;
        // Before anything goes: a call that cannot read it leaves all.
        let lineage = lineage_of(vault, log)?;
        let root = root_name(log);
        let had_root = vault.size(&root)?.is_some();
        vault.delete(&root)?;
        // The maker of a later pin sees that `root` is missing.
        if let Err(error) = check_pins() {
            if had_root {
                vault.create(&root, root_text(log).into())?;
            }
            return Err(error);
        }
        let there = vault.list(&log_folder(log))?;
        // The object that leads to a branch's pins in its ancestors goes last, so that an interrupted call can be repeated.
        let (last, first): (Vec<_>, Vec<_>) =
            there.iter().partition(|object| object.name == branch_name(log));
        first.into_iter().try_for_each(|object| vault.delete(&object.name))?;
        for (ancestor, _) in lineage.parts() {
            vault.delete(&pins::object_name(ancestor, &pins::branch_pin(log)))?;
        }
        last.into_iter().try_for_each(|object| vault.delete(&object.name))?;
        Ok(there.len() as u64 + u64::from(had_root))
    }
}

/// Whether this error is about an object, and not about the object store: it is damaged, or was deleted after it was listed.
fn is_of_object(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Unsupported
    )
}

/// The objects of a log, as its newest one says they have to be.
#[derive(Default)]
struct Known {
    /// The first term of whose payload slices entries can need some: that of the last entry before the newest object.
    payloads_from: Term,
    /// The number of the first object that the log is made of.
    from: u64,
    /// The objects that the log is made of, without the newest one.
    objects: BTreeMap<u64, ObjectInfo>,
    /// The object table in the newest one. None: it knows of no objects.
    table: Option<Objects>,
    lineage: Option<Lineage>,
}

impl Known {
    /// Finds what the newest object says. All objects from `begin` on have to be whole: one that is lost may have to be made again, of payload
    /// that nothing else has. `there`: what the log has in the object store.
    ///
    /// # Errors
    /// `Corrupt`: an object is missing, or has another size than the log says, or the newest one cannot be read; the message names it. Those
    /// of [`Vault`].
    fn find(vault: &dyn Vault, log: LogId, begin: u64, there: &[ObjectInfo]) -> Result<Self> {
        let numbered =
            there.iter().filter_map(|object| Some((object_number(log, &object.name)?, object.clone())));
        let mut objects: BTreeMap<u64, ObjectInfo> = numbered.collect();
        let Some(newest) = objects.pop_last() else { return Ok(Self::default()) };
        let footer = footer_at(vault, log, &newest)?;
        let opening = opening_at(vault, log, &newest)?;
        let table = match opening.objects.is_empty() {
            true => None,
            false => Some(objects::decode(&opening.objects).map_err(|why| corrupt(&newest.1, why))?.0),
        };
        let discarded = table.as_ref().map_or(0, |table| table.number);
        let lineage = lineage_of(vault, log)?;
        let from = begin.max(discarded).max(lineage.own_from());
        if let Some(missing) = (from..newest.0).find(|number| !objects.contains_key(number)) {
            return Err(corrupt_name(
                &object_name(log, missing),
                "it is missing, and may have to be made again",
            ));
        }
        objects.retain(|number, _| *number >= from);
        let rows = table.iter().flat_map(|table| (table.rows_from().0..).zip(&table.list));
        let sizes: BTreeMap<u64, u64> =
            rows.filter_map(|(number, row)| Some((number, row.stored?.bytes.into()))).collect();
        let rows_from = table.as_ref().map_or(0, |table| table.rows_from().0);
        for (number, object) in &objects {
            match sizes.get(number) {
                Some(bytes) if *bytes != object.bytes => {
                    return Err(corrupt(object, "it has another size than the log says"));
                }
                // The log says it of all of a run together.
                None if *number < rows_from => {}
                // One that was put just before the newest one. Its footer is its end.
                None => _ = footer_at(vault, log, &(*number, object.clone()))?,
                Some(_) => {}
            }
        }
        for run in table.iter().flat_map(|table| table.runs()).filter(|run| run.number >= from) {
            let bytes: u64 = objects.range(run.number..run.rows.below).map(|(_, object)| object.bytes).sum();
            if bytes != run.rows.bytes {
                let what =
                    format!("it and those up to {} have another size than the log says", run.rows.below - 1);
                return Err(corrupt_name(&object_name(log, run.number), &what));
            }
        }
        Ok(Self { payloads_from: footer.base_term, from, objects, table, lineage: Some(lineage) })
    }

    /// Checks every byte of the objects with entries of these terms, which their payload slices may have, too.
    ///
    /// # Errors
    /// `Corrupt`: one of them is damaged; the message names it. Those of [`Vault`].
    fn check_entries_of(&self, vault: &dyn Vault, terms: &BTreeSet<Term>) -> Result<()> {
        let Some(lineage) = &self.lineage else { return Ok(()) };
        let has_some =
            |begin: Base, end: Base| terms.iter().any(|term| (begin.term..=end.term).contains(term));
        let mut rows: BTreeMap<u64, (Base, ObjectState)> = BTreeMap::new();
        let mut rows_from = 0;
        if let Some(table) = &self.table {
            // The rows of a run that the log needs nothing of may be gone.
            let needed = |run: &RowsRun| run.rows.below > self.from && has_some(run.begin, run.rows.end);
            for run in table.runs().filter(needed) {
                let (of_run, _) = fetch(vault, lineage, &run)?;
                rows.extend(of_run.into_iter().map(|at| (at.number, (at.begin, at.state))));
            }
            let begin;
            (rows_from, begin) = table.rows_from();
            let begins = iter::once(begin).chain(table.list.iter().map(|row| row.end));
            rows.extend((rows_from..).zip(begins.zip(table.list.iter().copied())));
        }
        let mut wanted = Vec::new();
        for (number, object) in &self.objects {
            let object = (*number, object.clone());
            let (begin, end, stored) = match rows.get(number) {
                Some((begin, row)) => (*begin, row.end, row.stored),
                // Of a run of other terms.
                None if *number < rows_from => continue,
                None => {
                    let footer = footer_at(vault, lineage.log, &object)?;
                    (Base::before(&footer), Base::behind(&footer), None)
                }
            };
            if has_some(begin, end) {
                wanted.push((object, stored));
            }
        }
        let check = |(object, stored): &((u64, ObjectInfo), Option<StoredObject>)| match stored {
            Some(stored)
                if sum_object(vault, lineage.log, object)?.stored.map(|read| read.crc)
                    == Some(stored.crc) =>
            {
                Ok(())
            }
            Some(_) => Err(corrupt(&object.1, "it has another checksum than the log says")),
            // No opening has its checksum: its blocks have theirs.
            None => read_object(vault, lineage.log, object).map(drop),
        };
        in_parallel(AT_A_TIME, &wanted, check, |()| {})
    }
}

fn corrupt(object: &ObjectInfo, why: &str) -> Error {
    corrupt_name(&object.name, why)
}

fn corrupt_name(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{name}: {why}"))
}
