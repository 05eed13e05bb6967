//! Cluster branch: a server's data directory with branches of all logs of a cluster. It is made without any server, and reads the older
//! records of all of them from their objects in the object store.
//!
//! ```text
//!  group-1, group-2 ... ── each a branch (`backup/branch.rs`), with pins in its parent ──> data.restoring/named/group-1 ...
//!  catalogue            ── fetched whole, it is small ── fits the groups ───────────────> data.restoring/named/system
//!  default log          ── a branch, as the groups ─────────────────────────────────────> data.restoring, then data
//! ```
//!
//! Each group and the default log is a branch of its own: that takes the pins and the order of its steps over from there. The catalogue
//! has the ids of the groups, which change, so another one is written, as for a restore. `api/catalogue/restored.rs` has what becomes of
//! each named log, because catalogue and groups end at different moments.
//!
//! A log of which the object store has slices alone, or slices behind objects that are all discarded, is less than one object: it is
//! copied, as `backup/fetch.rs` and a restore do it. Without such slices the newest discarded object says how far the log was: it has no
//! records then, and reads nothing of its parent.
//!
//! Invariants:
//! - no object that a part reads is deleted: each part holds its own pins before the next one is begun, and they stay unless all is given
//!   up;
//! - the groups are made before the catalogue is read, also those that it alone names: it knows at least the logs that they had;
//! - until the last step the data directory has another name; until the step before it, nothing opens it as a log;
//! - after an error what was made is removed: first the directory, then what the parts have in the object store, and their pins. A crash
//!   leaves what `Inventory::delete_log` of each part's id removes, or pins alone.
//!
//! Must not know: the network, which object store it is.

use crate::api::catalogue::restored::RestoredGroup;
use crate::backup::branch::{BranchOptions, Making, Of};
use crate::backup::cluster::{
    Fetched, NAMED, NOTHING_PINNED, another_group, check_left_out, effect_of_leaving_out, has_nothing,
    none_of_them, not_pinned,
};
use crate::backup::cluster_pins::ClusterPins;
use crate::backup::cluster_restore::{
    CATALOGUE_FIRST, Known, LaterPart, later_state, make_empty, write_catalogue,
};
use crate::backup::found::{end_of, find};
use crate::backup::payloads::is_of_slice;
use crate::backup::pin::ATTEMPTS;
use crate::backup::restore::{RestoreTo, Restored, another_log, make_beside, move_branch, places};
use crate::backup::slices::{End, leads_on, longest, names, read};
use crate::backup::still::Still;
use crate::backup::tail::payload_names;
use crate::backup::{Backup, tail, unsound};
use crate::disk::linux::{make_directory, remove_tree};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::{disk_at, group_dir, system_dir};
use crate::store::objects::cluster_logs::{CATALOGUE_PART, ClusterLogs, DEFAULT_PART, group_part};
use crate::store::objects::deletion::newest_begin;
use crate::types::{Index, LogId, LogNumber, Timestamp};
use crate::vault::Vault;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of a backup of which a part is made, in the directory that is being made.
const FETCHED: &str = "fetched";
/// The remark about records that are in slices alone.
const GOES_ON: &str = "records in slices behind its newest object are left out: `chiplog tier backup` puts them into objects, and a branch of that \
     backup has them; without servers, `chiplog tier fetch` and `restore` bring them back";
/// The remark if that is not known, before the reason.
const CAN_GO_ON: &str =
    "whether slices have records behind its newest object, which are left out, is not known";

options! {
    /// The options for making a branch of a cluster.
    ///
    /// ```
    /// use chiplog::backup::ClusterBranchOptions;
    /// use chiplog::Timestamp;
    /// let options = ClusterBranchOptions::default().to(Timestamp(1_795_000_000_000));
    /// assert!(options.without.is_empty());
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ClusterBranchOptions {
        /// Only what was written at this time or before, in milliseconds since 1970, by the clocks of each log's own leaders. Default: all
        /// that is in objects.
        pub to: Option<Timestamp>,
        /// Logs that are left out, and come back empty: names as in [`ClusterPart`](super::ClusterPart).
        pub without: Vec<String>,
    }
}

/// A branch of all logs of a cluster.
///
/// ```
/// # fn show(branch: &chiplog::backup::ClusterBranch) {
/// println!("log {}, and {} named logs", branch.default.log_id, branch.named_logs);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterBranch {
    /// The default log.
    pub default: Restored,
    /// How many named logs there are.
    pub named_logs: u64,
    /// The default log and the groups.
    pub parts: Vec<ClusterBranchPart>,
    /// The changes, for people: what the branch does not have, and named logs that come back empty, or without their names.
    pub notes: Vec<String>,
    /// Logs of which nothing stored says how they were at the time asked for. They come back as of a later one.
    pub later: Vec<LaterPart>,
    /// Whether the catalogue, or a log that was copied from slices, ends before entries that the object store has, or had: see
    /// [`Backup::ends_early`]. `notes` say which one.
    pub ends_early: bool,
}

/// A log of a [`ClusterBranch`].
///
/// ```
/// # fn show(part: &chiplog::backup::ClusterBranchPart) {
/// println!("{} is log {}", part.name, part.log_id);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterBranchPart {
    /// `default`, or `group-1` and so on.
    pub name: String,
    /// Its id, which is new. [`Branch::of`](super::Branch::of) says whose objects it reads.
    pub log_id: LogId,
}

impl ClusterBranch {
    /// Makes a server's data directory in `dir`, which must be missing or empty: branches of the default log and of the groups, each
    /// with a new id, and a new catalogue. Of a group with objects the one with its last record is downloaded, and of the others what says which entries they have; older records are read
    /// from the objects of its parent, where a pin of the name `branch-<id of the branch>` keeps them. So the directory has to be served
    /// with this object store. A server of node 1 makes a new cluster of it, which other servers join.
    ///
    /// Named logs have their names, numbers, records, sessions and options, as far as those are in objects; of a log without an object, as
    /// far as they are in slices. Each gets a new id. The result says which of them are not as they were. Each group, the catalogue and the
    /// default log end at a moment of their own: see [`ClusterBackup::restore`](super::ClusterBackup::restore), which also says what it means to
    /// end at a time.
    ///
    /// Blocks for the network, and until the branch is durable. The directory is made beside `dir`, with `.restoring` appended to its name,
    /// and is renamed at last. A crash leaves `dir` as it was. The directory beside it has to be removed by hand then, and so have pins of
    /// branches that are not there.
    ///
    /// # Errors
    /// As [`Branch::make`](super::Branch::make), of any of the logs: the error names it. `OutOfRange`: no log has anything of that time or
    /// before. `Corrupt`: also if the object store had a log, and nothing of it is left. `InvalidArgument`: also if a name in `without` is no
    /// log's. After an error `dir` is as it was, unless `Io` says that the branch is there.
    pub fn make(
        vault: &dyn Vault,
        logs: &ClusterLogs,
        dir: impl AsRef<Path>,
        options: &ClusterBranchOptions,
    ) -> Result<Self> {
        MakingAll { vault, logs, pins: None, options, branches: Vec::new() }.make(dir.as_ref())
    }

    /// As [`Self::make`], of exactly what these pins keep, also if it was discarded since. A log that has no pin, because nothing of it was
    /// stored, comes back empty.
    ///
    /// # Errors
    /// As [`Self::make`]. `Corrupt`: also if an object under a pin is missing, or the catalogue names a group that is not under the pins.
    pub fn make_of_pins(
        vault: &dyn Vault,
        pins: &ClusterPins,
        dir: impl AsRef<Path>,
        options: &ClusterBranchOptions,
    ) -> Result<Self> {
        MakingAll { vault, logs: &pins.logs, pins: Some(pins), options, branches: Vec::new() }
            .make(dir.as_ref())
    }
}

/// A branch of a cluster that is being made.
struct MakingAll<'a> {
    vault: &'a dyn Vault,
    logs: &'a ClusterLogs,
    pins: Option<&'a ClusterPins>,
    options: &'a ClusterBranchOptions,
    /// Those that were begun: they may have something in the object store.
    branches: Vec<Making<'a>>,
}

/// A part that was made.
struct Part {
    log: Restored,
    /// The time of its oldest state, and the next record there, if that is later than the time asked for.
    later: Option<(Timestamp, Index)>,
    opened_at_end: LogNumber,
    /// Whether it is empty, because nothing of it is stored or it was left out.
    is_nothing: bool,
    ends_early: bool,
    notes: Vec<String>,
}

impl Part {
    fn empty(at: &Path, note: String) -> Result<Self> {
        let log = Restored {
            log_id: make_empty(at)?,
            first: Index(1),
            last: Index(0),
            last_timestamp: Timestamp(0),
            left_out: None,
        };
        Ok(Self {
            log,
            later: None,
            opened_at_end: LogNumber::OWN,
            is_nothing: true,
            ends_early: false,
            notes: vec![note],
        })
    }
}

impl MakingAll<'_> {
    fn make(mut self, dir: &Path) -> Result<ClusterBranch> {
        let without: Vec<&str> = self.options.without.iter().map(String::as_str).collect();
        check_left_out(self.logs, &without)?;
        let (place, beside) = places(dir)?;
        make_beside(&beside)?;
        let made = self.fill(&beside).and_then(|branch| Ok((branch, move_branch(&beside, &place)?)));
        let (branch, moved) = made.map_err(|error| {
            // Nothing may read objects any more once the pins are removed.
            let removed = remove_tree(&beside).map_err(|e| Error::io("remove", &beside, e));
            self.branches.iter().rev().fold(error, |error, branch| branch.take_back(error, removed.clone()))
        })?;
        moved.map(|()| branch)
    }

    fn fill(&mut self, dir: &Path) -> Result<ClusterBranch> {
        let named = dir.join(NAMED);
        make_directory(&named).map_err(|e| Error::io("make directory", &named, e))?;
        let mut parts: BTreeMap<u32, (LogId, Part)> = BTreeMap::new();
        let mut wanted = self.logs.groups.clone();
        let (known, mut notes, mut ends_early) = loop {
            for (group, id) in std::mem::take(&mut wanted) {
                let part = self.part(&group_part(group), id, (dir, &group_dir(&named, group)))?;
                parts.insert(group, (id, part));
            }
            let (catalogue, notes) = self.catalogue(dir)?;
            let known = Known::of(catalogue.as_ref(), self.options.to)?;
            // With a time, an end behind it is none.
            let ends_early = catalogue.as_ref().is_some_and(Backup::ends_early)
                && known.cut.as_ref().is_none_or(|cut| !cut.goes_on);
            remove_fetched(catalogue)?;
            let newest = known.cut.as_ref().map_or(&known.catalogue, |cut| &cut.newest);
            for group in newest.groups() {
                let Some(id) = newest.group(group) else { continue };
                match parts.get(&group) {
                    Some((listed, _)) if *listed == id => {}
                    None => _ = wanted.insert(group, id),
                    Some((listed, _)) => return Err(another_group(group, id, *listed)),
                }
            }
            if wanted.is_empty() {
                break (known, notes, ends_early);
            }
        };
        let unknown = self.options.without.iter().find(|name| {
            let is_group = parts.keys().any(|group| group_part(*group) == **name);
            !is_group && ![CATALOGUE_PART, DEFAULT_PART].contains(&name.as_str())
        });
        if let Some(unknown) = unknown {
            let groups = parts.keys().map(|group| group_part(*group));
            let names: Vec<String> = groups.chain([CATALOGUE_PART, DEFAULT_PART].map(String::from)).collect();
            return Err(none_of_them(unknown, &names.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        let mut groups = BTreeMap::new();
        for (number, (_, part)) in &parts {
            groups.insert(*number, restored_group(part, &group_dir(&named, *number))?);
        }
        for number in known.catalogue.all_groups() {
            if groups.contains_key(&number) {
                continue;
            }
            // Logs of it have names, and it was never made.
            let group = RestoredGroup {
                id: make_empty(&group_dir(&named, number))?,
                opened: LogNumber(0),
                logs: [].into(),
                opened_at_end: LogNumber(0),
                is_later: false,
            };
            groups.insert(number, group);
        }
        let disk = disk_at(dir, false)?;
        let mut new_id = || another_log(&*disk);
        let made = known.catalogue.restored(&groups, known.cut.as_ref(), CATALOGUE_FIRST, &mut new_id);
        let (catalogue, changes) = made?;
        write_catalogue(&system_dir(&named), &catalogue)?;
        drop(disk);
        let default = self.part(DEFAULT_PART, self.logs.log_id, (dir, dir))?;
        let had_any = |number| known.catalogue.logs_in(number) > 0;
        let others = parts.into_iter().map(|(number, (_, part))| (group_part(number), had_any(number), part));
        let all: Vec<(String, bool, Part)> =
            std::iter::once((DEFAULT_PART.to_owned(), true, default)).chain(others).collect();
        self.check_time(&known, &all)?;
        let of_catalogue = known.later.map(|timestamp| LaterPart { name: CATALOGUE_PART.into(), timestamp });
        let mut later = Vec::from_iter(of_catalogue);
        for (name, had_any, part) in &all {
            let told = part.later.filter(|(_, next)| *had_any || *next > Index(1));
            later.extend(told.map(|(timestamp, _)| LaterPart { name: name.clone(), timestamp }));
            notes.extend(part.notes.iter().map(|note| format!("{name}: {note}")));
            ends_early |= part.ends_early;
        }
        notes.extend(changes);
        let default = all[0].2.log;
        let parts =
            all.into_iter().map(|(name, _, part)| ClusterBranchPart { name, log_id: part.log.log_id });
        let named_logs = catalogue.len() as u64;
        Ok(ClusterBranch { default, named_logs, parts: parts.collect(), notes, later, ends_early })
    }

    /// Makes the branch of one log, of a group or the default one, in the directory `at`, which is `dir` or in it. `name`: as in
    /// [`ClusterBranchPart`].
    fn part(&mut self, name: &str, log: LogId, at: (&Path, &Path)) -> Result<Part> {
        self.part_of(name, log, at).map_err(|error| named(name, log, error))
    }

    fn part_of(&mut self, name: &str, log: LogId, (dir, at): (&Path, &Path)) -> Result<Part> {
        if self.is_left_out(name) {
            return Part::empty(at, left_out(name));
        }
        if let Some(why) = self.nothing_of(name, log)? {
            return Part::empty(at, why);
        }
        if self.pins.is_none() && !has_objects(self.vault, log)? {
            return self.copy(log, (dir, at));
        }
        let disk = disk_at(at, true)?;
        let to = self.options.to.map_or(RestoreTo::End, RestoreTo::Timestamp);
        let pin = self.pins.map(|pins| pins.name.clone());
        let of = if name == DEFAULT_PART { Of::Default } else { Of::Group };
        let mut making = Making::new(self.vault, log, another_log(&*disk)?, of);
        let made = making.fill(&disk, &BranchOptions::default().to(to).pin(pin));
        // Also if it fails: it may have pins.
        self.branches.push(making);
        let made = made?;
        let (later, opened_at_end, mut notes) = (made.later, made.opened_at_end, made.notes);
        if let Some(end) = made.end.filter(|_| self.pins.is_none()) {
            match goes_on(self.vault, log, end, self.options.to) {
                Ok(true) => notes.push(GOES_ON.to_owned()),
                Ok(false) => {}
                // The branch is sound without them: that the store does not answer now, or has slices of a later version, does not matter.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Unsupported
                    ) =>
                {
                    notes.push(format!("{CAN_GO_ON}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Part { log: made.log, later, opened_at_end, is_nothing: false, ends_early: false, notes })
    }

    /// Copies a log without objects that a branch could read.
    fn copy(&self, log: LogId, (dir, at): (&Path, &Path)) -> Result<Part> {
        let fetched = Backup::fetch(self.vault, log, dir.join(FETCHED), &mut |_, _| {})?;
        let to = self.options.to.map_or(RestoreTo::End, RestoreTo::Timestamp);
        let restored = fetched.restore_into(&disk_at(at, true)?, to, &mut |_, _| {})?;
        let later = later_state(&fetched, self.options.to)?;
        let opened_at_end = fetched.still()?.logs.opened();
        let reaches_time = self.options.to.is_some_and(|to| fetched.info().last_timestamp > to);
        let (ends_early, notes) = (fetched.ends_early() && !reaches_time, fetched.notes().to_vec());
        remove_fetched(Some(fetched))?;
        Ok(Part { log: restored, later, opened_at_end, is_nothing: false, ends_early, notes })
    }

    /// A backup of the catalogue, and why it has less than that, for people. None: there is nothing of it.
    fn catalogue(&self, dir: &Path) -> Result<(Option<Backup>, Vec<String>)> {
        let (log, to) = (self.logs.catalogue, dir.join(FETCHED));
        let fetch = || {
            if self.is_left_out(CATALOGUE_PART) {
                return Ok((None, vec![left_out(CATALOGUE_PART)]));
            }
            if let Some(why) = self.nothing_of(CATALOGUE_PART, log)? {
                return Ok((None, vec![why]));
            }
            let backup = match self.pins {
                Some(pins) => Backup::fetch_pin(self.vault, log, &pins.name, &to, &mut |_, _| {}),
                None => Backup::fetch(self.vault, log, &to, &mut |_, _| {}),
            }?;
            let notes = backup.notes().to_vec();
            Ok((Some(backup), notes))
        };
        let (backup, notes) = fetch().map_err(|error| named(CATALOGUE_PART, log, error))?;
        Ok((backup, notes.iter().map(|note| format!("{CATALOGUE_PART}: {note}")).collect()))
    }

    fn is_left_out(&self, name: &str) -> bool {
        self.options.without.iter().any(|other| other == name)
    }

    /// Why nothing of a log is stored, for people. None: there is something.
    ///
    /// # Errors
    /// `Corrupt`: the object store had it, and nothing is left; or the pins are not of it.
    fn nothing_of(&self, name: &str, log: LogId) -> Result<Option<String>> {
        if let Some(pins) = self.pins {
            if pins.empty.contains(&log) {
                return Ok(Some(NOTHING_PINNED.to_owned()));
            }
            let is_pinned = self.logs.parts().iter().any(|(_, pinned)| *pinned == log);
            return if is_pinned { Ok(None) } else { Err(not_pinned(log, &pins.name)) };
        }
        match has_nothing(self.vault, log)? {
            None | Some(Fetched::Backup(_)) => Ok(None),
            Some(Fetched::Nothing(why)) => Ok(Some(why)),
            Some(Fetched::Lost(why)) => {
                let what = format!("{why}. `--without {name}` makes the branch without it");
                Err(Error::new(ErrorKind::Corrupt, what))
            }
        }
    }

    /// Checks that a log has something of the time asked for.
    fn check_time(&self, known: &Known, all: &[(String, bool, Part)]) -> Result<()> {
        let Some(time) = self.options.to else { return Ok(()) };
        let has_any = |(_, _, part): &(String, bool, Part)| part.later.is_none() && part.log.last > Index(0);
        let of_catalogue = known.later.is_none() && known.catalogue.next() > Index(1);
        if of_catalogue || all.iter().any(has_any) || all.iter().all(|(_, _, part)| part.is_nothing) {
            return Ok(());
        }
        let what = format!("the cluster's objects have no record of {} ms since 1970 or before", time.0);
        Err(Error::new(ErrorKind::OutOfRange, what))
    }
}

/// Whether slices have records of this time or before behind the newest object of a log. Without a time, any.
fn goes_on(vault: &dyn Vault, log: LogId, end: End, to: Option<Timestamp>) -> Result<bool> {
    let is_wanted = |time: Timestamp| to.is_none_or(|to| time <= to);
    'look: for _ in 0..ATTEMPTS {
        let (payloads, slices) = (payload_names(vault, log)?, names(vault, log)?);
        let mut beyond: Vec<_> = slices.iter().filter(|(name, _)| leads_on(name, Some(end))).collect();
        beyond.sort_by_key(|(name, _)| name.last);
        for (name, bytes) in beyond {
            let slice = match read(vault, name, *bytes) {
                Ok(slice) => slice,
                // It is in an object now.
                Err(error) if error.kind() == ErrorKind::NotFound => continue 'look,
                // It is damaged, or of a later version: it can have records.
                Err(error) if is_of_slice(&error) || error.kind() == ErrorKind::Unsupported => {
                    return Ok(true);
                }
                Err(error) => return Err(error),
            };
            let more = slice.entries.iter().filter(|(header, _)| header.raft_index > end.0);
            let mut more = more.filter(|(header, _)| header.kind.has_records());
            // All records behind the first one are later.
            if let Some((header, _)) = more.next() {
                return Ok(is_wanted(header.timestamp));
            }
        }
        if payloads.is_empty() {
            return Ok(false);
        }
        let chain = longest(vault, &slices, Some(end), &mut |_| {})?;
        let tail = tail::behind(vault, log, &payloads, &slices, &chain, Some(end))?;
        return Ok(tail.is_left_out
            || tail.fault.is_some()
            || tail.parts.iter().any(|part| is_wanted(part.time)));
    }
    Ok(true)
}

/// Whether a branch can be made of a log's objects: they say how far it was, and if all their records are discarded, no slices go on behind
/// them.
///
/// # Errors
/// `Busy`: its objects are being deleted. Those of [`Vault`].
fn has_objects(vault: &dyn Vault, log: LogId) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        match has_objects_now(vault, log) {
            Err(error) if error.kind() == ErrorKind::NotFound => {} // it was deleted meanwhile
            decided => return decided,
        }
    }
    Err(Error::new(ErrorKind::Busy, "its objects are being deleted: try again"))
}

fn has_objects_now(vault: &dyn Vault, log: LogId) -> Result<bool> {
    let found = find(vault, log)?;
    let Some(newest) = found.objects.last().filter(|_| found.lacking.is_none()) else { return Ok(false) };
    if newest_begin(vault, log)?.is_none_or(|begin| begin <= newest.0) {
        return Ok(true);
    }
    // Slices with its state, and what came later, are all of the log. Without one that can be used, a copy would be of the objects alone,
    // with their discarded records.
    let end = end_of(vault, found.lineage.owner(newest.0), newest)?;
    Ok(longest(vault, &found.slices, Some(end), &mut |_| {})?.slices.is_empty())
}

/// The group that was made in this directory.
fn restored_group(part: &Part, at: &Path) -> Result<RestoredGroup> {
    let logs = Still::look(&disk_at(at, false)?)?.logs;
    if !logs.is_shared() && part.log.last > Index(0) {
        return Err(unsound(at, "it holds one log on its own, and no named logs"));
    }
    Ok(RestoredGroup {
        id: part.log.log_id,
        opened: logs.opened(),
        logs: logs.iter().map(|(log, _)| log).collect(),
        opened_at_end: part.opened_at_end.max(logs.opened()),
        is_later: part.later.is_some(),
    })
}

fn remove_fetched(backup: Option<Backup>) -> Result<()> {
    let Some(backup) = backup else { return Ok(()) };
    let at: PathBuf = backup.path().to_owned();
    remove_tree(&at).map_err(|e| Error::io("remove", &at, e))
}

fn left_out(name: &str) -> String {
    format!("it was left out: {}", effect_of_leaving_out(name))
}

/// The error of one of the logs.
fn named(name: &str, log: LogId, error: Error) -> Error {
    let kind = match error.kind() {
        // That is the error of a time, of which all logs together have nothing. An object is shorter than it has to be.
        ErrorKind::OutOfRange => ErrorKind::Corrupt,
        kind => kind,
    };
    Error::with_source(kind, format!("{name}, log {:032x}: {error}", log.0), &error)
}
