//! Branch: a new log that reads the older records of another one from that one's objects in the object store. It is made without any
//! replica, and within seconds: only the last part of the other log is copied, less than one object.
//!
//! ```text
//!  parent   | o | o+1 | ... | m-1 |  m ....... |  ...
//!             └──── read from there ────┘ └─┬─┘ up to the branch's last record
//!  branch         kept by a pin             └─> its own files, in DIR.restoring, then DIR; its own objects are m, m+1 ...
//!
//!  look ──> pins in the parent and its ancestors ──> do they hold? ──no──> pins removed, from the beginning
//!                                                        └─yes─> files ──> `branch`, begin, `root` ──> a log of its own, renamed
//! ```
//!
//! The log of which it is made may be a branch, too. Then each log of which it reads objects has a pin of it.
//!
//! A log that named logs share is made a branch together with all others of its cluster, by `backup/cluster_branch.rs`. With which record
//! each named log begins is in no opening of an object. `backup/firsts.rs` finds it by the commands in the objects, so of each of these a
//! small part is read: the one that says which entries it has.
//!
//! Invariants:
//! - no object that the branch reads is deleted: its pins are there before it looks whether all objects are, by the rules in
//!   `store/objects/deletion.rs`;
//! - no record behind its last one is in it: of the object with that record it has a part, in files of its own;
//! - until the last write the directory is marked as a follower's, which no program opens to append; everything in the object store
//!   is there before;
//! - after an error what it made is removed, first the directory and then the pins. A crash leaves what `Inventory::delete_log` of the
//!   branch's id removes, or pins alone.
//!
//! Must not know: the network, which object store it is.

pub(super) mod object;
mod plan;

use crate::api::follower::FollowerLog;
use crate::backup::firsts::{LogsOfObject, firsts};
use crate::backup::pin::{ATTEMPTS, Pin, another};
use crate::backup::restore::{
    Cut, RestoreTo, Restored, another_log, make_beside, move_branch, not_empty, places, standalone_state,
};
use crate::backup::slices::{AT_A_TIME, End};
use crate::backup::stored::{Start, footer_at, lineage_of, list_objects, opening_at, start_of};
use crate::backup::{Backup, PIECE_BYTES, list, remove_log};
use crate::disk::Disk;
use crate::disk::linux::{RealDisk, remove_directory};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowFrom};
use crate::options::Options;
use crate::replica::queue::proposals::{Command, LogCommand, ObjectCommand};
use crate::replica::state::command::{encode_command, parse_command};
use crate::replica::state::log_table::LogTable;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::segment_bytes_with;
use crate::store::format::identity::Identity;
use crate::store::format::objects::{self, ObjectState};
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::Opening;
use crate::store::object_file::{Stretch, segment_file};
use crate::store::objects::deletion::{newest_begin, say_begin};
use crate::store::objects::names::{Lineage, begin_name, branch_name, root_name, root_text};
use crate::store::objects::older_rows::fetch;
use crate::store::objects::pins;
use crate::sync::threads::in_parallel;
use crate::types::{Index, LogId, LogNumber, Timestamp};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use object::{ReadObject, corrupt, logs_of_object, read_object, sum_object};
use plan::{Plan, is_shared};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The reason why a log has no records.
const ALL_DISCARDED: &str =
    "all of its records that are in objects are discarded: it comes back without records";

options! {
    /// The options for making a branch.
    ///
    /// ```
    /// use chiplog::backup::{BranchOptions, RestoreTo};
    /// use chiplog::Index;
    /// let options = BranchOptions::default().to(RestoreTo::Index(Index(1000)));
    /// assert_eq!(options.pin, None);
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct BranchOptions {
        /// With what the branch ends. Default: the last record that is in an object.
        pub to: RestoreTo,
        /// Only objects under the pin of this name: also records that were discarded since. The pin's making has to have been confirmed: an
        /// interrupted one may lose objects. Default: the log as it is now.
        pub pin: Option<String>,
        /// The size of its first segment files, in bytes. `None`, the default: as large as they have to be, and at least 1 MiB.
        pub segment_bytes: Option<u32>,
    }
}

/// A log that reads older records from the objects of other logs, its ancestors.
///
/// ```
/// use chiplog::backup::Branch;
/// let vault = chiplog::vault::MemoryVault::default();
/// assert_eq!(Branch::of(&vault, chiplog::LogId(7))?, None);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Branch {
    /// Its id.
    pub log_id: LogId,
    /// The number of its own first object.
    pub own_from: u64,
    /// The objects that it reads from other logs, the oldest first. None: all of their records are discarded.
    pub parts: Vec<BranchPart>,
}

/// Objects of another log that a branch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub struct BranchPart {
    pub log_id: LogId,
    pub first_object: u64,
    pub last_object: u64,
}

impl Branch {
    /// Whether a log is a branch, and of which logs. None: it is none, or not known in this object store. Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`: the object that says it is damaged or of a newer format. Those of [`Vault`].
    pub fn of(vault: &dyn Vault, log: LogId) -> Result<Option<Self>> {
        let Some(Start { lineage, number: own_from, .. }) = start_of(vault, log)? else { return Ok(None) };
        let part = |(log_id, part): (LogId, std::ops::Range<u64>)| BranchPart {
            log_id,
            first_object: part.start,
            last_object: part.end - 1,
        };
        let begin = newest_begin(vault, log)?.unwrap_or(0);
        let mut parts: Vec<_> = lineage.parts().map(part).collect();
        parts.retain(|part| part.last_object >= begin);
        parts.iter_mut().for_each(|part| part.first_object = part.first_object.max(begin));
        Ok(Some(Self { log_id: log, own_from, parts }))
    }

    /// How many of the objects that it reads from other logs are not in the object store. Not 0: they are lost. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`].
    pub fn missing(&self, vault: &dyn Vault) -> Result<u64> {
        let lineage = lineage_of(vault, self.log_id)?;
        let mut missing = 0;
        for part in &self.parts {
            let numbers = part.first_object..part.last_object + 1;
            let there = list_objects(vault, &lineage, &numbers)?.len() as u64;
            missing += (numbers.end - numbers.start).saturating_sub(there);
        }
        // Discarded meanwhile.
        let begin = newest_begin(vault, self.log_id)?.unwrap_or(0);
        let is_changed = self.parts.first().is_some_and(|part| part.first_object < begin);
        Ok(if is_changed { 0 } else { missing })
    }

    /// Makes a branch of the log `log` in `dir`, which must be missing or empty: a log with a new id that has the records, sessions
    /// and options of the other one up to its end. Only the object with its last record is downloaded; records before it are read from
    /// the objects of `log`, which a pin of the name `branch-<id of the branch>` keeps there. So the branch has to be opened with this
    /// object store, as [`Options::vault`]. Blocks for the network, and until the branch is durable.
    ///
    /// The branch is standalone: [`Log::open`](crate::Log::open) opens it, and so does a server with node number 1; other members can
    /// then join. Its own objects are stored under its own id. Records that are in no object yet, slices too, are not in it:
    /// [`Log::cut_objects`](crate::Log::cut_objects).
    ///
    /// The files are made in a directory beside `dir`, with `.restoring` appended to its name, which is renamed at last. A crash leaves
    /// `dir` as it was. The directory beside it has to be removed by hand then, and so have pins of a branch that is not there.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use chiplog::backup::{Branch, BranchOptions};
    /// use chiplog::vault::MemoryVault;
    /// # let dir = tempfile::tempdir()?;
    /// let vault = MemoryVault::default();
    /// let error = Branch::make(&vault, chiplog::LogId(7), dir.path().join("branch"), &BranchOptions::default()).unwrap_err();
    /// assert_eq!(error.kind(), chiplog::ErrorKind::NotFound); // it has no objects
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: the log has no objects there, or no such pin. `OutOfRange`, `Discarded`: the objects do not have that record, or have
    /// none up to that time. `Unsupported`: the log is shared by named logs, which [`ClusterBranch`](super::ClusterBranch) is for, has 16
    /// ancestors, or is of a newer format.
    /// `InvalidArgument`: `dir` is not empty or is a mount point; the directory beside it exists; an option is out of bounds. `Busy`: the
    /// log discards too fast, or has too many pins. `Corrupt`: an object is missing or damaged. Those of [`Vault`]. `TooLarge`:
    /// `segment_bytes` is too small. `Full`, `Io`. After an error `dir` is as it was, unless `Io` says that the branch is there.
    pub fn make(
        vault: &dyn Vault,
        log: LogId,
        dir: impl AsRef<Path>,
        options: &BranchOptions,
    ) -> Result<Restored> {
        let (place, beside) = places(dir.as_ref())?;
        check_options(options)?;
        make_beside(&beside)?;
        let disk = RealDisk::open(&beside, false).map_err(|e| Error::io("open directory", &beside, e))?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let mut making = Making::new(vault, log, another_log(&*disk)?, Of::OneLog);
        let made = making.fill(&disk, options);
        let made = made.and_then(|branch| Ok((branch.log, move_branch(&beside, &place)?)));
        let (branch, moved) = made.map_err(|error| {
            let removed = match list(&*disk) {
                Ok(names) if names.is_empty() => Ok(()),
                _ => remove_log(&*disk),
            };
            let _ = removed.as_ref().map(|()| remove_directory(&beside));
            making.take_back(error, removed)
        })?;
        moved.map(|()| branch)
    }

    /// As [`Self::make`], on another implementation of [`Disk`], whose directory must be empty and becomes the branch's. A crash leaves
    /// either the complete log, or files that do not open as a log.
    ///
    /// # Errors
    /// As [`Self::make`]. After one files are left, and so may be what is in the object store.
    pub fn make_on(
        vault: &dyn Vault,
        log: LogId,
        disk: Arc<dyn Disk>,
        options: &BranchOptions,
    ) -> Result<Restored> {
        check_options(options)?;
        if let Some(name) = list(&*disk)?.first() {
            return Err(not_empty(disk.path(), name));
        }
        let mut making = Making::new(vault, log, another_log(&*disk)?, Of::OneLog);
        making.fill(&disk, options).map(|branch| branch.log)
    }
}

#[cfg(feature = "testing")]
impl Branch {
    /// As [`Self::make_on`], of a log of a cluster, which named logs can share.
    pub(crate) fn make_part_on(
        vault: &dyn Vault,
        log: LogId,
        disk: &Arc<dyn Disk>,
        options: &BranchOptions,
    ) -> Result<Restored> {
        let mut making = Making::new(vault, log, another_log(&**disk)?, Of::Group);
        making.fill(disk, options).map(|branch| branch.log)
    }
}

fn check_options(options: &BranchOptions) -> Result<()> {
    options.segment_bytes.map_or(Ok(()), |bytes| Backup::copy_options(bytes).check())
}

/// A branch that was made.
pub(super) struct MadeBranch {
    pub(super) log: Restored,
    /// The time of the oldest state that is left, and the next record there, if that is later than the time with which the branch was to
    /// end.
    pub(super) later: Option<(Timestamp, Index)>,
    /// Of a group the newest named log that the newest object knows, whatever the branch's end is.
    pub(super) opened_at_end: LogNumber,
    /// The end of the newest object, if the branch has all of that.
    pub(super) end: Option<End>,
    /// Remarks for people.
    pub(super) notes: Vec<String>,
}

/// A branch that is being made.
pub(super) struct Making<'a> {
    vault: &'a dyn Vault,
    /// The log of which it is made.
    log: LogId,
    /// Its own id.
    branch: LogId,
    /// The logs that may have a pin of it.
    pinned: Vec<LogId>,
    /// The number of the oldest object, once something of the branch may be in the object store.
    stored: Option<u64>,
    of: Of,
}

/// The kind of log of which a branch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// One log alone.
    OneLog,
    /// The default log of a cluster. As a part of a branch of all its logs it can have no record up to a time.
    Default,
    /// A group of a cluster: likewise, and named logs can share it.
    Group,
}

impl<'a> Making<'a> {
    pub(super) fn new(vault: &'a dyn Vault, log: LogId, branch: LogId, of: Of) -> Self {
        Self { vault, log, branch, pinned: Vec::new(), stored: None, of }
    }

    /// Makes the files, and all that is in the object store.
    pub(super) fn fill(&mut self, disk: &Arc<dyn Disk>, options: &BranchOptions) -> Result<MadeBranch> {
        let (plan, pins) = self.hold(options)?;
        let owner = plan.lineage.owner(plan.last.0);
        let ReadObject { opening: state, entries, bytes: segment_bytes } =
            read_object(self.vault, owner, &plan.last).map_err(|error| match error.kind() {
                // No pin of the branch keeps it.
                ErrorKind::NotFound if plan.is_discarded => {
                    let what = format!("log {:032x} deletes its newest object: try again", self.log.0);
                    Error::new(ErrorKind::Busy, what)
                }
                ErrorKind::NotFound => {
                    let what =
                        format!("the records with which the branch is to end were just discarded: {error}");
                    Error::new(ErrorKind::Discarded, what)
                }
                _ => error,
            })?;
        let opening = Opening::parse(&state.1).map_err(|why| corrupt(&plan.last.1, why))?;
        let first = match opening.objects.is_empty() {
            true => plan.begin.next,
            false => opening.log_first.max(plan.begin.next),
        };
        check_first(self.log, options.to, first)?;
        if self.of == Of::OneLog && opened_in(&opening, &entries) > LogNumber::OWN {
            return Err(is_shared(self.log));
        }
        let mut notes = Vec::from_iter(plan.is_discarded.then(|| ALL_DISCARDED.to_owned()));
        // Before much else is read: nothing keeps it.
        let newest = match self.newest(&plan) {
            // Shorter than it has to be, also.
            Err(error)
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::OutOfRange)
                    && self.of != Of::OneLog =>
            {
                notes.push(format!(
                    "its newest object, which is behind the time, is damaged: logs that were created later may be there, without records: {error}"
                ));
                None
            }
            newest => newest?,
        };
        let opened_at_end =
            newest.as_ref().map_or_else(|| opened_in(&opening, &entries), |(_, opened)| *opened);
        let later = match options.to {
            RestoreTo::Timestamp(time) if state.0.timestamp > time => {
                Some((state.0.timestamp, plan.base.next))
            }
            _ => None,
        };
        let logs = self.logs_of(&plan, &opening)?;
        let table = match plan.below.first() {
            None => Vec::new(),
            Some((number, _)) => {
                let ancestors = plan.ancestors();
                let runs = plan.runs(&opening)?;
                let newest = newest.as_ref().map(|(opening, _)| opening);
                let mut list = self.states(&plan, (&opening, newest), &entries, &runs)?;
                let rows_from = runs.last().map_or(*number, |newest| newest.rows.below);
                list.drain(..plan.below.partition_point(|(number, _)| *number < rows_from));
                let table = objects::Objects {
                    number: *number,
                    base: plan.begin,
                    older: runs.iter().map(|run| run.rows).collect(),
                    list: list.into(),
                    ancestors,
                    part: LogNumber::OWN,
                };
                objects::encode(&table, first)
            }
        };
        let has_ancestors = !table.is_empty();
        let opening = Opening { log_first: first, objects: table, logs, ..opening };
        let state = standalone_state(self.branch, &state.0, opening);
        let end = entries.last().map_or((plan.base.raft, plan.base.term), |last| (last.raft(), last.term()));
        let largest = entries.iter().map(|entry| entry.header.length).max().unwrap_or(0);
        let bytes = options
            .segment_bytes
            .unwrap_or_else(|| segment_bytes_with(segment_bytes, state.body.len() as u32, largest));
        let copy = FollowerLog::create_unaided(disk.clone(), Backup::copy_options(bytes), &state)?;
        let to = if planted!(110) { RestoreTo::End } else { options.to };
        let mut cut = Cut::new(to, plan.base.next);
        let mut discarded =
            apply(&copy, self.branch, entries, &mut cut).map_err(|error| in_object(&plan.last.1, error))?;
        let end_of_copy = end_of_log(&copy)?;
        if plan.is_discarded {
            discarded = discarded.max(discard_all(&copy, self.branch)?);
        }
        let may_be_empty = self.of != Of::OneLog || !plan.below.is_empty();
        if matches!(options.to, RestoreTo::Timestamp(_)) && !cut.has_records && !may_be_empty {
            let what =
                format!("the objects of log {:032x} have no record of that time or before", self.log.0);
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        let status = copy.log().status();
        let is_whole = plan.newest.0 == plan.last.0 && end_of_copy == end;
        let oldest = first.max(discarded);
        cut.check_left_out(oldest <= status.last_index, oldest)?;
        copy.conclude(0)?;
        copy.close()?;
        if has_ancestors {
            let oldest = plan.below.first().map_or(plan.last.0, |(number, _)| *number);
            self.store(oldest, &plan, (state.header, state.body))?;
            if !planted!(107) {
                self.check_pins(&pins)?;
            }
        }
        let identity = Identity::read(&**disk)?;
        let identity =
            identity.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the branch has no identity"))?;
        Identity { follows: false, ..identity }.write(&**disk)?;
        disk.sync_ancestors().map_err(|e| Error::io("sync the directories above", disk.path(), e))?;
        let log = Restored {
            log_id: self.branch,
            first: first.max(discarded),
            last: status.last_index,
            last_timestamp: status.last_timestamp,
            left_out: cut.left_out,
        };
        Ok(MadeBranch { log, later, opened_at_end, end: is_whole.then_some(end), notes })
    }

    /// The logs of a shared group where the branch's part of the last object begins, each with the first record that the branch has of
    /// it. No opening of an object says that. The commands in the objects below do, and a log has no record before the oldest of these.
    fn logs_of(&self, plan: &Plan, opening: &Opening) -> Result<Vec<u8>> {
        if opening.logs.is_empty() {
            return Ok(Vec::new());
        }
        let mut logs = LogTable::decode(&opening.logs).map_err(|why| corrupt(&plan.last.1, why))?;
        let below = &plan.below[usize::from(planted!(168) && !plan.below.is_empty())..];
        let oldest = below.first().map(|(number, _)| *number);
        let read = |object: &(u64, ObjectInfo)| {
            let owner = plan.lineage.owner(object.0);
            Ok((object.0, logs_of_object(self.vault, owner, object, Some(object.0) == oldest)?))
        };
        let mut found = BTreeMap::new();
        in_parallel(AT_A_TIME, below, read, |(number, of)| _ = found.insert(number, of))?;
        let last = LogsOfObject::new(Some(opening), Vec::new());
        let last = last.map_err(|why| corrupt(&plan.last.1, why))?;
        logs.begin_as(&firsts(found.values().chain([&last])));
        Ok(logs.encode())
    }

    /// The opening of the newest object, and of a group the newest named log that this object knows. None: the branch ends there, or does
    /// not need them.
    fn newest(&self, plan: &Plan) -> Result<Option<(Opening, LogNumber)>> {
        let (owner, is_group) = (plan.lineage.owner(plan.newest.0), self.of == Of::Group);
        if plan.newest.0 == plan.last.0 || (plan.below.is_empty() && !is_group) {
            return Ok(None);
        }
        let read = || match is_group {
            false => Ok((opening_at(self.vault, owner, &plan.newest)?, LogNumber::OWN)),
            true => {
                let ReadObject { opening, entries, .. } = read_object(self.vault, owner, &plan.newest)?;
                let opening = Opening::parse(&opening.1).map_err(|why| corrupt(&plan.newest.1, why))?;
                let opened = opened_in(&opening, &entries);
                Ok((opening, opened))
            }
        };
        read().map(Some).map_err(|error: Error| match error.kind() {
            // No pin of the branch keeps it.
            ErrorKind::NotFound => {
                let what = format!("log {:032x} discards its newest object: try again", self.log.0);
                Error::new(ErrorKind::Busy, what)
            }
            _ => error,
        })
    }

    /// Finds what the branch is made of, and has it kept.
    fn hold(&mut self, options: &BranchOptions) -> Result<(Plan, Vec<(LogId, Pin)>)> {
        for attempt in 1..=ATTEMPTS {
            let pin = options.pin.as_deref();
            let plan = Plan::find(self.vault, self.log, options.to, pin, self.of != Of::OneLog);
            let (plan, pins) = match plan.and_then(|plan| Ok((self.pins(&plan)?, plan))) {
                // An object was deleted after it was listed.
                Err(error)
                    if error.kind() == ErrorKind::NotFound && options.pin.is_none() && attempt < ATTEMPTS =>
                {
                    continue;
                }
                found => found.map(|(pins, plan)| (plan, pins))?,
            };
            for (owner, pin) in &pins {
                self.pinned.push(*owner);
                pin.create(self.vault, *owner)?;
            }
            if self.holds(&plan, &pins)? {
                return Ok((plan, pins));
            }
            for (owner, pin) in &pins {
                self.vault.delete(&pins::object_name(*owner, &pin.name))?;
            }
            self.pinned.clear();
        }
        let what =
            format!("log {:032x} discards the objects that the branch is to read: try again", self.log.0);
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// The pins that keep what the branch reads from other logs.
    fn pins(&self, plan: &Plan) -> Result<Vec<(LogId, Pin)>> {
        let mut made = Vec::new();
        let lineage = Lineage { log: self.branch, ancestors: plan.ancestors() };
        for (owner, part) in lineage.parts() {
            let mut of = plan.below.iter().filter(|(number, _)| part.contains(number));
            let Some(oldest) = of.next() else { continue };
            let newest = of.next_back().unwrap_or(oldest);
            made.push((
                owner,
                Pin {
                    name: pins::branch_pin(self.branch),
                    first_object: oldest.0,
                    last_object: newest.0,
                    first: footer_at(self.vault, owner, oldest)?.first,
                    last: Index(footer_at(self.vault, owner, newest)?.next.get().saturating_sub(1)),
                    made: Options::default().clock.now(),
                    by: another(),
                },
            ));
        }
        Ok(made)
    }

    /// Whether these pins, which exist now, keep what they say. A deletion that read the pins of a log before they were there has told
    /// the log's begin before; one by a branch of that log's pin has told the branch's begin.
    fn holds(&self, plan: &Plan, pins: &[(LogId, Pin)]) -> Result<bool> {
        let (vault, log) = (self.vault, self.log);
        let Some((oldest, _)) = plan.below.first() else { return Ok(true) };
        if vault.size(&root_name(log))?.is_none() {
            return Ok(false);
        }
        let is_kept = match &plan.pin {
            // It was there all the time.
            Some(pin) => pins::read(vault, log, &pin.name)?.as_ref() == Some(pin),
            None => newest_begin(vault, log)?.is_none_or(|begin| begin <= *oldest),
        };
        if !is_kept && !planted!(103) {
            return Ok(false);
        }
        for (owner, pin) in pins {
            let is_there = vault.size(&root_name(*owner))?.is_some();
            let parents = *owner == log || pins::read(vault, *owner, &pins::branch_pin(log))?.is_some();
            if !is_there || !parents || pin.missing(vault, *owner)? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The entries of the branch's object table for the objects of other logs, with those whose rows are in runs.
    fn states(
        &self,
        plan: &Plan,
        (opening, newest): (&Opening, Option<&Opening>),
        entries: &[FollowEntry],
        runs: &[RowsRun],
    ) -> Result<Vec<ObjectState>> {
        let mut known = BTreeMap::new();
        let newest = newest.map(|newest| (newest, &plan.newest));
        for (of, object) in [(opening, &plan.last)].into_iter().chain(newest) {
            if !of.objects.is_empty() {
                let (table, _) = objects::decode(&of.objects).map_err(|why| corrupt(&object.1, why))?;
                let rows_from = table.rows_from().0;
                known.extend((rows_from..).zip(table.list).filter(|(_, state)| state.stored.is_some()));
            }
        }
        for run in runs {
            let (objects, _) = fetch(self.vault, &plan.lineage, run)?;
            known.extend(objects.iter().map(|at| (at.number, at.state)));
        }
        // Commands in the last object say it of those that its opening does not know yet.
        let mut cut = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.header.kind == Kind::Command) {
            match parse_command(&entry.body.concat()) {
                Ok(Command::Object(ObjectCommand::Cut { number, end, timestamp, .. })) => {
                    cut.insert(number, ObjectState { end, timestamp, stored: None });
                }
                Ok(Command::Object(ObjectCommand::Stored { number, object })) => {
                    if let Some(state) = cut.get(&number) {
                        known.insert(number, ObjectState { stored: Some(object), ..*state });
                    }
                }
                _ => {}
            }
        }
        let unknown = plan.below.iter().filter(|(number, _)| !known.contains_key(number));
        let unknown: Vec<_> = unknown.cloned().collect();
        let read = |object: &(u64, ObjectInfo)| {
            Ok((object.0, sum_object(self.vault, plan.lineage.owner(object.0), object)?))
        };
        in_parallel(AT_A_TIME, &unknown, read, |(number, state)| _ = known.insert(number, state))?;
        let mut states = Vec::with_capacity(plan.below.len());
        for (number, object) in &plan.below {
            let state = known
                .get(number)
                .filter(|state| state.stored.is_some_and(|stored| u64::from(stored.bytes) == object.bytes));
            states.push(*state.ok_or_else(|| corrupt(object, "it has another size than its log says"))?);
        }
        let is_ascending = states.is_sorted_by(|a, b| a.end.raft < b.end.raft);
        match is_ascending && states.last().is_none_or(|last| last.end == plan.base) {
            true => Ok(states),
            false => Err(corrupt(&plan.last.1, "it does not continue the objects before")),
        }
    }

    /// Puts into the object store what says that the branch is one; `root` at last.
    fn store(&mut self, oldest: u64, plan: &Plan, opening: (BlockHeader, Bytes)) -> Result<()> {
        let (vault, branch) = (self.vault, self.branch);
        let stretch = Stretch { log: branch, number: plan.last.0, begin: plan.base, end: plan.base };
        let start = segment_file(&stretch, &[opening])?;
        self.stored = Some(oldest);
        vault.put(&branch_name(branch), &start.pieces)?;
        say_begin(vault, branch, oldest)?;
        vault.create(&root_name(branch), root_text(branch).into())?;
        Ok(())
    }

    /// Checks that no pin was removed while the branch was made. From now on `branch` keeps [`Pin::remove`] from doing so: one that
    /// looked before `branch` was there has removed its pin, or removes it in the moment between its look and its deletion.
    fn check_pins(&self, pins: &[(LogId, Pin)]) -> Result<()> {
        for (owner, pin) in pins {
            let is_there = pins::read(self.vault, *owner, &pin.name)?.as_ref() == Some(pin);
            if !is_there || pin.missing(self.vault, *owner)? > 0 {
                let what = format!(
                    "pin {} of log {:032x} was removed while the branch was made: make the branch again, and leave its pin",
                    pin.name, owner.0
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
        }
        Ok(())
    }

    /// Removes what is in the object store after an error, if the files are gone, and adds to the error what is left.
    pub(super) fn take_back(&self, error: Error, removed: Result<()>) -> Error {
        let taken = removed.and_then(|()| {
            if let Some(oldest) = self.stored {
                for name in [root_name(self.branch), begin_name(self.branch, oldest)] {
                    self.vault.delete(&name)?;
                }
            }
            for owner in &self.pinned {
                self.vault.delete(&pins::object_name(*owner, &pins::branch_pin(self.branch)))?;
            }
            self.stored.map_or(Ok(()), |_| self.vault.delete(&branch_name(self.branch)))
        });
        let Err(left) = taken else { return error };
        if self.pinned.is_empty() {
            return error;
        }
        let what = format!(
            "{error}. The pin {} of the branch may be left in the object store ({left}): remove it",
            pins::branch_pin(self.branch)
        );
        Error::with_source(error.kind(), what, &error)
    }
}

/// The newest named log that was opened at the end of an object. 0: no named logs share the log.
fn opened_in(opening: &Opening, entries: &[FollowEntry]) -> LogNumber {
    let begin = LogTable::decode(&opening.logs).map_or(LogNumber::OWN, |logs| logs.opened());
    let commands = entries.iter().filter(|entry| entry.header.kind == Kind::Command);
    let opened = commands.filter_map(|entry| match parse_command(&entry.body.concat()) {
        Ok(Command::Log(LogCommand::Open { log, .. })) => Some(log),
        _ => None,
    });
    opened.fold(begin, LogNumber::max)
}

/// A log that ends before its first record is none.
fn check_first(log: LogId, to: RestoreTo, first: Index) -> Result<()> {
    let RestoreTo::Index(to) = to else { return Ok(()) };
    if to >= first {
        return Ok(());
    }
    let what = format!("record {to} of log {:032x} is discarded: the first one is {first}", log.0);
    Err(Error::new(ErrorKind::Discarded, what))
}

/// Gives the copy the entries up to its end. Returns the first record that they leave.
fn apply(copy: &FollowerLog, log: LogId, entries: Vec<FollowEntry>, cut: &mut Cut) -> Result<Index> {
    let (mut left, mut discarded) = (entries.into_iter().peekable(), Index(0));
    while left.peek().is_some() {
        let mut bytes = 0;
        let piece: Vec<_> = std::iter::from_fn(|| {
            let entry = left.next_if(|_| bytes < PIECE_BYTES)?;
            bytes += entry.bytes();
            Some(entry)
        })
        .collect();
        let count = piece.len();
        let entries = cut.take(piece).map_err(|why| Error::new(ErrorKind::Corrupt, why))?;
        let is_cut = entries.len() < count || cut.is_reached();
        for entry in entries.iter().filter(|entry| entry.header.kind == Kind::Command) {
            if let Ok(Command::Discard { first }) = parse_command(&entry.body.concat()) {
                discarded = discarded.max(first);
            }
        }
        if let Some(committed) = entries.last().map(FollowEntry::raft) {
            copy.apply_entries(FollowEntries { log, committed, kept: Index(0), entries })?;
        }
        if is_cut {
            break;
        }
    }
    Ok(discarded)
}

/// The last entry of a log that is being made.
fn end_of_log(copy: &FollowerLog) -> Result<End> {
    match copy.resume_point()? {
        FollowFrom::After { raft, term, .. } => Ok((raft, term)),
        _ => Err(Error::new(ErrorKind::Corrupt, "the branch is a copy of one named log")),
    }
}

/// Adds entries that discard all records. Returns the next record, with which the log begins then.
fn discard_all(copy: &FollowerLog, log: LogId) -> Result<Index> {
    let (status, (mut raft, term)) = (copy.log().status(), end_of_log(copy)?);
    let (next, logs) = (status.last_index.next(), copy.logs());
    let of_logs = logs.numbers().into_iter().filter_map(|log| {
        let first = logs.get(log).filter(|state| state.first < state.next)?.next;
        Some(Command::Log(LogCommand::Discard { log, first }))
    });
    let own = (!logs.is_shared()).then_some(Command::Discard { first: next });
    let mut entries = Vec::new();
    for command in of_logs.chain(own) {
        raft = raft.next();
        let body = encode_command(command);
        let at = status.last_timestamp;
        let header = BlockHeader::without_records(Kind::Command, (raft, term), next, at, &body);
        entries.push(FollowEntry { header, body: vec![body.into()] });
    }
    copy.apply_entries(FollowEntries { log, committed: raft, kept: Index(0), entries })?;
    Ok(next)
}

/// The error of entries that do not follow each other.
fn in_object(object: &ObjectInfo, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Diverged | ErrorKind::InvalidArgument | ErrorKind::Corrupt => {
            Error::with_source(ErrorKind::Corrupt, format!("{}: {error}", object.name), &error)
        }
        _ => error,
    }
}
