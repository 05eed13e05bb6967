//! Cluster restore: a server's data directory made of a backup of a cluster, as of its end or of a time.
//!
//! ```text
//!  default log, groups ── each up to the time, by the clocks of its own leaders ──> the same logs, with new ids
//!  catalogue           ── up to the time, or its oldest state if that is later ───> a new catalogue, which fits the groups
//! ```
//!
//! The default log is written last. `api/catalogue/restored.rs` has what becomes of each named log.
//!
//! Invariants:
//! - nothing is written before every file of the backup was found unchanged;
//! - until the last step the data directory has another name; until the step before it, nothing opens it as a log;
//! - an entry of a group is in the group or not, as a whole: batches that were appended together stay together;
//! - a log of which the state at the time is discarded is named in the result.
//!
//! Must not know: the network, which object store it is.

use crate::api::catalogue::restored::{CutAt, RestoredGroup};
use crate::api::catalogue::{Catalogue, CatalogueRecord};
use crate::api::log::Log;
use crate::api::logs::LogsOptions;
use crate::api::logs::snapshots::catalogue_at;
use crate::backup::cluster::{ClusterBackup, NAMED, read_catalogue};
use crate::backup::restore::{RestoreTo, Restored, another_log, make_beside, places};
use crate::backup::still::Still;
use crate::backup::{Backup, Progress, unsound};
use crate::disk::linux::{make_directory, move_directory, remove_tree};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::open::{disk_at, group_dir, system_dir};
use crate::store::objects::cluster_logs::{CATALOGUE_PART, DEFAULT_PART, group_part};
use crate::types::{Index, LogId, LogNumber, Timestamp};
use std::collections::BTreeMap;
use std::path::Path;

/// The size of files of a log that had nothing. Later ones are of the size that its program wants.
const EMPTY_SEGMENT_BYTES: u32 = 1 << 20;
/// The first record of the new catalogue that counts. The one before it is discarded, so that reading begins with a snapshot.
pub(super) const CATALOGUE_FIRST: Index = Index(2);

/// The result of [`ClusterBackup::restore`].
///
/// ```
/// # fn show(restored: &chiplog::backup::RestoredCluster) {
/// println!("log {}, and {} named logs", restored.default.log_id, restored.named_logs);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredCluster {
    /// The default log.
    pub default: Restored,
    /// How many named logs there are.
    pub named_logs: u64,
    /// The changes, for people: what the backup does not have, and named logs that come back empty, or without their names.
    pub notes: Vec<String>,
    /// Logs of which nothing stored says how they were at the time asked for. They come back as of a later one.
    pub later: Vec<LaterPart>,
}

/// A log that was restored as of a later time than the one asked for, because nothing that is left says how it was then. The catalogue
/// has the names of that later time: logs that were deleted in between come back as `recovered-NUMBER`, if their groups have their state at
/// the time asked for. The default log, or a group, has no record then, and continues with the next index.
///
/// ```
/// # fn show(part: &chiplog::backup::LaterPart) {
/// println!("{} is as of {} ms since 1970", part.name, part.timestamp.get());
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaterPart {
    /// Its name, as in [`ClusterPart`](super::ClusterPart).
    pub name: String,
    /// The time of its oldest state, in milliseconds since 1970.
    pub timestamp: Timestamp,
}

/// The catalogue of a backup, as far as it is restored.
pub(super) struct Known {
    pub(super) catalogue: Catalogue,
    pub(super) cut: Option<CutAt>,
    /// The catalogue is of this time, which is later than the one asked for.
    pub(super) later: Option<Timestamp>,
}

impl ClusterBackup {
    /// Makes a server's data directory in `dir`, which must be missing or empty: the default log, a catalogue and the groups, each
    /// standalone and with a new id. Checks every file first. A server of node 1 makes a new cluster of it, which other servers join.
    /// Writes to a directory beside `dir`, with `.restoring` appended to its name, and renames it when everything is complete and
    /// durable. A crash leaves `dir` as it was, and the directory beside it has to be removed by hand.
    ///
    /// Named logs have their names, numbers, records, sessions and options, as far as those are stored. The result says which of them
    /// are not as they were. Each named log has a new id.
    ///
    /// `to`: only what was written at this time or before; `None`: everything. Times are those of the leaders' clocks, and each group
    /// of named logs, the catalogue and the default log had leaders of their own. So this is one point in the history of each of them,
    /// and not of all together: records of different groups can be apart by the difference of these clocks. Batches that were appended
    /// together are in one group, and are all there or none. Logs that were created later are not there. Logs that were deleted later
    /// are, without their names if the catalogue has discarded its state at that time: see [`RestoredCluster::later`].
    ///
    /// # Errors
    /// As [`Backup::restore`]. `OutOfRange`: no log has anything of that time or before. After an error `dir` is as it was.
    pub fn restore(
        &self,
        dir: impl AsRef<Path>,
        to: Option<Timestamp>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RestoredCluster> {
        let (place, beside) = places(dir.as_ref())?;
        let (total, mut before) = (self.bytes(), 0);
        for backup in self.backups() {
            backup.check_files(&mut |done, _| progress(before + done, 2 * total))?;
            before += backup.info().bytes;
        }
        make_beside(&beside)?;
        let made = self.restore_in(&beside, to, progress).and_then(|restored| {
            let moved = move_directory(&beside, &place);
            moved.map_err(|e| Error::io("rename the restored logs to", &place, e)).map(|()| restored)
        });
        made.inspect_err(|_| {
            // The caller gets the first error. The next restore names what could not be removed.
            let _ = remove_tree(&beside);
        })
    }

    fn restore_in(
        &self,
        dir: &Path,
        to: Option<Timestamp>,
        progress: Progress<'_>,
    ) -> Result<RestoredCluster> {
        let named = dir.join(NAMED);
        make_directory(&named).map_err(|e| Error::io("make directory", &named, e))?;
        let (total, mut before) = (self.bytes(), self.bytes());
        let known = Known::of(self.catalogue.as_ref(), to)?;
        let of_catalogue = known.later.map(|timestamp| LaterPart { name: CATALOGUE_PART.into(), timestamp });
        let mut later = Vec::from_iter(of_catalogue);
        let mut has_any = known.later.is_none() && known.catalogue.next() > Index(1);
        // `had_any`: whether it had something by that time, as far as the catalogue says.
        let mut restore = |name: String, backup: &Backup, at: &Path, had_any: bool| {
            let bytes = backup.info().bytes;
            let made = &mut |done: u64, _| progress(before + done.min(bytes), 2 * total);
            let end = to.map_or(RestoreTo::End, RestoreTo::Timestamp);
            let restored = backup.restore_into(&disk_at(at, true)?, end, made)?;
            before += bytes;
            let state = later_state(backup, to)?;
            has_any |= state.is_none() && restored.last > Index(0); // also if all of it was discarded by then
            let told = state.filter(|(_, next)| had_any || *next > Index(1));
            later.extend(told.map(|(timestamp, _)| LaterPart { name, timestamp }));
            Ok::<_, Error>((restored, state.is_some()))
        };
        let mut groups = BTreeMap::new();
        let nothing = None;
        for number in known.catalogue.all_groups().into_iter().chain(self.groups.keys().copied()) {
            if groups.contains_key(&number) {
                continue;
            }
            let at = group_dir(&named, number);
            let group = match self.groups.get(&number).unwrap_or(&nothing) {
                Some(backup) => {
                    let newest = backup.still()?.logs;
                    if !newest.is_shared() && backup.info().last > Index(0) {
                        return Err(unsound(
                            &backup.path(),
                            "it holds one log on its own, and no named logs",
                        ));
                    }
                    let had_any = known.catalogue.logs_in(number) > 0;
                    let (restored, is_later) = restore(group_part(number), backup, &at, had_any)?;
                    let logs = match to {
                        Some(_) => Still::look(&disk_at(&at, false)?)?.logs,
                        None => newest.clone(),
                    };
                    RestoredGroup {
                        id: restored.log_id,
                        opened: logs.opened(),
                        logs: logs.iter().map(|(log, _)| log).collect(),
                        opened_at_end: newest.opened(),
                        is_later,
                    }
                }
                None => RestoredGroup {
                    id: make_empty(&at)?,
                    opened: LogNumber(0),
                    logs: [].into(),
                    opened_at_end: LogNumber(0),
                    is_later: false,
                },
            };
            groups.insert(number, group);
        }
        let disk = disk_at(dir, false)?;
        let mut new_id = || another_log(&*disk);
        let made = known.catalogue.restored(&groups, known.cut.as_ref(), CATALOGUE_FIRST, &mut new_id);
        let (catalogue, changes) = made?;
        write_catalogue(&system_dir(&named), &catalogue)?;
        let named_logs = catalogue.len() as u64;
        let default = match &self.default {
            Some(backup) => restore(DEFAULT_PART.into(), backup, dir, true)?.0,
            None => Restored {
                log_id: make_empty(dir)?,
                first: Index(1),
                last: Index(0),
                last_timestamp: Timestamp(0),
                left_out: None,
            },
        };
        if let Some(time) = to.filter(|_| !has_any)
            && self.backups().any(|backup| backup.info().first <= backup.info().last)
        {
            let what = format!("the backup has no record of {} ms since 1970 or before", time.0);
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        let notes = self.manifest.notes.iter().cloned().chain(changes).collect();
        progress(2 * total, 2 * total); // less was read: files end with zeros
        Ok(RestoredCluster { default, named_logs, notes, later })
    }
}

impl Known {
    /// The catalogue of this backup up to a time, or its end. None: nothing of it is stored.
    pub(super) fn of(catalogue: Option<&Backup>, to: Option<Timestamp>) -> Result<Self> {
        let newest = catalogue.map(read_catalogue).transpose()?.unwrap_or_default();
        let Some(time) = to else { return Ok(Self { catalogue: newest, cut: None, later: None }) };
        let (mut known, mut later, mut goes_on) = (Catalogue::default(), None, false);
        if let Some(backup) = catalogue {
            let (still, begin) = (backup.still()?, backup.oldest_state()?);
            let begin = (begin.next(), begin.timestamp());
            (known, later) = catalogue_at(&|start| still.reader(start), still.first, begin, time)?;
            goes_on = backup.info().last_timestamp > time;
        }
        let cut = CutAt { newest, goes_on, is_later: later.is_some() };
        Ok(Self { catalogue: known, cut: Some(cut), later })
    }
}

/// The time of the oldest state in a backup, and the next record there, if that state is later than the time up to which it is restored.
pub(super) fn later_state(backup: &Backup, to: Option<Timestamp>) -> Result<Option<(Timestamp, Index)>> {
    let Some(time) = to else { return Ok(None) };
    let state = backup.oldest_state()?;
    Ok(Some((state.timestamp(), state.next())).filter(|(timestamp, _)| *timestamp > time))
}

/// Makes a log without records.
pub(super) fn make_empty(dir: &Path) -> Result<LogId> {
    let log = Log::open(dir, Options::with_segment_bytes(EMPTY_SEGMENT_BYTES))?;
    let id = log.log_id();
    log.close().map(|()| id)
}

/// Makes a system log that begins with this catalogue.
pub(super) fn write_catalogue(dir: &Path, catalogue: &Catalogue) -> Result<()> {
    let log = Log::open(dir, LogsOptions::default().of_group(0))?;
    // It has no effect, and is there to be discarded.
    let nothing = CatalogueRecord::Delete { number: LogNumber(0), id: LogId(0) };
    log.append(&nothing.encode()[..])?;
    for part in catalogue.snapshot(log.random_id()?) {
        log.append(&part.encode()[..])?;
    }
    log.discard(CATALOGUE_FIRST)?;
    log.close()
}
