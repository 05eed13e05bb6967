//! Cluster: a backup of all logs of a cluster of servers, made of an object store. `backup/cluster_restore.rs` makes a server's data
//! directory of it.
//!
//! ```text
//!  backup/chiplog.cluster   which logs there are; written last          data/                 the default log; written last
//!  backup/default/          each a backup of its own                    data/named/system/    a new catalogue
//!  backup/named/system/                                                 data/named/group-1/
//!  backup/named/group-1/                                                (in `data.restoring`, which is renamed at the end)
//! ```
//!
//! Each log ends with what was stored of it, so the catalogue and the groups contradict each other. All logs that are made of it get
//! new ids, and so new places in the object store.
//!
//! Invariants:
//! - a directory with `chiplog.cluster` is a finished backup, and is used only if it has all that this file names;
//! - groups are fetched before the catalogue, also those that it alone names: the catalogue then knows at least the logs that they had
//!   when all of them were stored.
//!
//! Must not know: the network, which object store it is, how logs are made of it.

use crate::api::catalogue::Catalogue;
use crate::api::logs::snapshots::catalogue_of;
use crate::backup::cluster_manifest::{CLUSTER_FORMAT, ClusterManifest, Has, ManifestLog};
use crate::backup::cluster_pins::{ClusterPins, no_root};
use crate::backup::found::{Found, find};
use crate::backup::manifest::{BackupInfo, ManifestFault};
use crate::backup::{Backup, list, unsound};
use crate::disk::Disk;
use crate::disk::linux::{make_directory, remove_tree};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::{disk_at, group_dir, system_dir};
use crate::store::objects::cluster_logs::{CATALOGUE_PART, ClusterLogs, DEFAULT_PART, group_part};
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::root_name;
use crate::store::objects::pins;
use crate::types::LogId;
use crate::vault::Vault;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

/// The manifest's name.
const CLUSTER_FILE: &str = "chiplog.cluster";
/// Its name while the backup is being made.
const UNFINISHED_FILE: &str = "chiplog.cluster.tmp";
/// The folder of the named logs, in a backup and in a server's data directory.
pub(super) const NAMED: &str = "named";
/// Longer than any manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// A finished backup of all logs of a cluster, in a directory.
///
/// ```
/// use chiplog::backup::ClusterBackup;
/// # let dir = tempfile::tempdir()?;
/// assert!(!ClusterBackup::is_at(dir.path()));
/// assert_eq!(ClusterBackup::open(dir.path()).unwrap_err().kind(), chiplog::ErrorKind::NotFound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClusterBackup {
    dir: PathBuf,
    pub(super) manifest: ClusterManifest,
    pub(super) default: Option<Backup>,
    pub(super) catalogue: Option<Backup>,
    pub(super) groups: BTreeMap<u32, Option<Backup>>,
}

/// A log in a [`ClusterBackup`].
///
/// ```
/// # fn show(part: &chiplog::backup::ClusterPart) {
/// println!("{}: {}", part.name, part.backup.map_or(0, |backup| backup.bytes));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterPart {
    /// `default`, `system` for the catalogue, or `group-1` and so on.
    pub name: String,
    /// Its id.
    pub log_id: LogId,
    /// The backup of it. None: nothing was stored.
    pub backup: Option<BackupInfo>,
    /// Whether it ends before entries that the object store has, or had: [`Backup::ends_early`], or nothing is left of it.
    pub ends_early: bool,
}

impl ClusterBackup {
    /// Whether a directory holds a backup of a cluster, finished or not.
    pub fn is_at(dir: impl AsRef<Path>) -> bool {
        [CLUSTER_FILE, UNFINISHED_FILE].iter().any(|file| dir.as_ref().join(file).is_file())
    }

    /// Makes a backup in `dest`, which must be missing or empty, of all that a cluster's logs have in an object store. No replica is
    /// needed: this is how a cluster comes back whose replicas are all lost. Each log ends with what is stored of it: see
    /// [`Backup::fetch`]. A log of which nothing was ever stored comes back empty, and so do those that are left out: `without` has names
    /// as in [`ClusterPart`]. So does a log of which the store has not even the object `root`: that is a loss, and the backup
    /// [ends early](Self::ends_early).
    ///
    /// `progress` is called with the bytes fetched of a log and the total, for one log after the other. Blocks until the backup is
    /// finished and durable.
    ///
    /// # Errors
    /// As [`Backup::fetch`], of any of the logs: the error names it. `InvalidArgument`: a name in `without` is no log's. After an error
    /// `dest` is as it was before. After a crash it holds an unfinished backup, which [`Self::open`] refuses.
    pub fn fetch(
        vault: &dyn Vault,
        logs: &ClusterLogs,
        without: &[&str],
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let mut fetch_log = |_: &str, log, to: &Path| {
            if let Some(nothing) = has_nothing(vault, log)? {
                return Ok(nothing);
            }
            Backup::fetch(vault, log, to, progress).map(Fetched::Backup)
        };
        Self::make(dest.as_ref(), logs, without, &mut fetch_log)
    }

    /// Makes a backup in `dest`, which must be missing or empty, of exactly what these pins keep of a cluster's logs. A log that has
    /// none, because nothing of it was stored, comes back empty. Else as [`Self::fetch`].
    ///
    /// # Errors
    /// `Corrupt`: the catalogue names a group that is not under the pins. As [`Backup::fetch_pin`], of any of the logs, and as
    /// [`Self::fetch`].
    pub fn fetch_pins(
        vault: &dyn Vault,
        pins: &ClusterPins,
        without: &[&str],
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let logs = &pins.logs;
        let mut fetch_log = |_: &str, log, to: &Path| {
            if pins.empty.contains(&log) {
                return Ok(Fetched::Nothing(NOTHING_PINNED.to_owned()));
            }
            if log != logs.log_id && log != logs.catalogue && !logs.groups.values().any(|id| *id == log) {
                return Err(not_pinned(log, &pins.name));
            }
            Backup::fetch_pin(vault, log, &pins.name, to, progress).map(Fetched::Backup)
        };
        Self::make(dest.as_ref(), logs, without, &mut fetch_log)
    }

    /// Makes the backup. `fetch_log` makes that of one log.
    fn make(dest: &Path, logs: &ClusterLogs, without: &[&str], fetch_log: FetchLog<'_>) -> Result<Self> {
        let was_there = dest.exists();
        let disk = begin(dest)?;
        let made = Self::fill(&*disk, dest, logs, without, fetch_log);
        made.inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = match was_there {
                false => remove_tree(dest),
                true => [DEFAULT_PART, NAMED]
                    .iter()
                    .map(|folder| dest.join(folder))
                    .filter(|folder| folder.exists())
                    .try_for_each(|folder| remove_tree(&folder))
                    .and_then(|()| disk.remove(UNFINISHED_FILE)),
            };
        })
    }

    fn fill(
        disk: &dyn Disk,
        dest: &Path,
        logs: &ClusterLogs,
        without: &[&str],
        fetch_log: FetchLog<'_>,
    ) -> Result<Self> {
        check_left_out(logs, without)?;
        let named = dest.join(NAMED);
        make_directory(&named).map_err(|e| Error::io("make directory", &named, e))?;
        let (mut notes, mut lost) = (BTreeMap::new(), BTreeSet::new());
        let mut fetch = |name: String, id: LogId, to: &Path| {
            if without.contains(&name.as_str()) {
                let note = format!("it was left out: {}", effect_of_leaving_out(&name));
                notes.insert(name, vec![note]);
                return Ok(None);
            }
            let fetched = fetch_log(&name, id, to).map_err(|error| {
                let what = format!("{name}, log {:032x}: {error}", id.0);
                Error::with_source(error.kind(), what, &error)
            })?;
            let (backup, told) = match fetched {
                Fetched::Nothing(why) => (None, vec![why]),
                Fetched::Lost(why) => {
                    lost.insert(id);
                    (None, vec![format!("{why}. It comes back empty")])
                }
                Fetched::Backup(backup) => {
                    let told = backup.notes().to_vec();
                    (Some(backup), told)
                }
            };
            notes.insert(name, told);
            Ok(backup)
        };
        let mut ids = BTreeMap::new();
        let mut groups = BTreeMap::new();
        let mut wanted = logs.groups.clone();
        let catalogue = loop {
            for (group, id) in std::mem::take(&mut wanted) {
                groups.insert(group, fetch(group_part(group), id, &group_dir(&named, group))?);
                ids.insert(group, id);
            }
            let catalogue = fetch(CATALOGUE_PART.to_owned(), logs.catalogue, &system_dir(&named))?;
            let known = catalogue.as_ref().map(read_catalogue).transpose()?.unwrap_or_default();
            for group in known.groups() {
                let Some(id) = known.group(group) else { continue };
                match ids.get(&group) {
                    Some(listed) if *listed == id => {}
                    None => _ = wanted.insert(group, id),
                    Some(listed) => return Err(another_group(group, id, *listed)),
                }
            }
            if wanted.is_empty() {
                break catalogue;
            }
            // It has to be of a later time than these groups: logs that were created meanwhile would have no names.
            if catalogue.is_some() {
                let at = system_dir(&named);
                remove_tree(&at).map_err(|e| Error::io("remove", &at, e))?;
            }
        };
        let default = fetch(DEFAULT_PART.to_owned(), logs.log_id, &dest.join(DEFAULT_PART))?;
        if let Some(unknown) = without.iter().find(|name| !notes.contains_key(**name)) {
            let names: Vec<&str> = notes.keys().map(String::as_str).collect();
            return Err(none_of_them(unknown, &names));
        }
        let of = |id: LogId, backup: &Option<Backup>| {
            let has = match backup {
                Some(_) => Has::Backup,
                None if lost.contains(&id) => Has::Lost,
                None => Has::Nothing,
            };
            ManifestLog { id, has }
        };
        let told = |(name, notes): (String, Vec<String>)| {
            notes.into_iter().map(move |note| format!("{name}: {note}"))
        };
        let manifest = ClusterManifest {
            default: of(logs.log_id, &default),
            catalogue: of(logs.catalogue, &catalogue),
            groups: groups.iter().map(|(group, backup)| (*group, of(ids[group], backup))).collect(),
            notes: notes.into_iter().flat_map(told).map(|note| note.replace(['\n', '\r'], " ")).collect(),
        };
        finish(disk, &manifest)?;
        Ok(Self { dir: dest.to_owned(), manifest, default, catalogue, groups })
    }

    /// Opens the backup in `dir`: reads its manifest, and opens the backup of each log, as [`Backup::open`] does.
    ///
    /// # Errors
    /// `NotFound`: there is no backup of a cluster, or it is unfinished. `Corrupt`: the manifest is damaged, or the backup of a log
    /// is missing, damaged or of another log. `Unsupported`: a later version of chiplog made the backup. `Io`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let manifest = read_manifest(dir)?;
        let named = dir.join(NAMED);
        let open = |log: ManifestLog, at: PathBuf| {
            if log.has != Has::Backup {
                return Ok(None);
            }
            let backup = Backup::open(&at).map_err(|error| match error.kind() {
                ErrorKind::NotFound => unsound(&at, &format!("the backup of a log is missing: {error}")),
                _ => error,
            })?;
            if backup.info().log_id != log.id {
                let why = format!("it is of another log than {CLUSTER_FILE} says");
                return Err(unsound(&at, &why));
            }
            Ok(Some(backup))
        };
        let group =
            |(number, log): (&u32, &ManifestLog)| Ok((*number, open(*log, group_dir(&named, *number))?));
        Ok(Self {
            default: open(manifest.default, dir.join(DEFAULT_PART))?,
            catalogue: open(manifest.catalogue, system_dir(&named))?,
            groups: manifest.groups.iter().map(group).collect::<Result<_>>()?,
            dir: dir.to_owned(),
            manifest,
        })
    }

    /// The logs of the cluster: the default log, the catalogue, the groups.
    pub fn parts(&self) -> Vec<ClusterPart> {
        let part = |name: String, log: ManifestLog, backup: &Option<Backup>| ClusterPart {
            name,
            log_id: log.id,
            backup: backup.as_ref().map(Backup::info),
            ends_early: log.has == Has::Lost || backup.as_ref().is_some_and(Backup::ends_early),
        };
        let groups = self.manifest.groups.iter().zip(self.groups.values());
        let groups = groups.map(|((number, log), backup)| part(group_part(*number), *log, backup));
        [
            part(DEFAULT_PART.into(), self.manifest.default, &self.default),
            part(CATALOGUE_PART.into(), self.manifest.catalogue, &self.catalogue),
        ]
        .into_iter()
        .chain(groups)
        .collect()
    }

    /// The backup's directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Whether one of these logs ends before entries that the object store has, or had: [`Backup::ends_early`], or nothing is left of a
    /// log that the store had.
    pub fn ends_early(&self) -> bool {
        self.manifest.has_lost() || self.backups().any(Backup::ends_early)
    }

    /// For people: what the backup does not have, and why: slices, logs of which nothing was stored, logs that were left out.
    pub fn notes(&self) -> &[String] {
        &self.manifest.notes
    }

    /// The bytes of all files of the backup.
    pub fn bytes(&self) -> u64 {
        self.backups().map(|backup| backup.info().bytes).sum()
    }

    pub(super) fn backups(&self) -> impl Iterator<Item = &Backup> {
        self.groups.values().chain([&self.catalogue, &self.default]).flatten()
    }

    /// Checks the backups of all logs, as [`Backup::check`] does.
    ///
    /// # Errors
    /// As [`Backup::check`].
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let (total, mut before) = (self.bytes(), 0);
        for backup in self.backups() {
            backup.check(&mut |done, _| progress(before + done, total))?;
            before += backup.info().bytes;
        }
        Ok(())
    }
}

/// The reason why a log under no pin comes back empty.
pub(super) const NOTHING_PINNED: &str = "nothing of it was stored when it was pinned: it comes back empty";

/// The error of a log that the catalogue names, and that is not under the pins of its cluster.
pub(super) fn not_pinned(log: LogId, pin: &str) -> Error {
    let what = format!(
        "the catalogue names log {:032x}, and pin {pin} is not of it: this is no backup of the whole cluster",
        log.0
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// The error of a group that is another log in the catalogue than in the list of the cluster's logs.
pub(super) fn another_group(group: u32, id: LogId, listed: LogId) -> Error {
    let what = format!(
        "the catalogue has log {:032x} as group {group}, and the list of the cluster's logs has {:032x}",
        id.0, listed.0
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// The part of a log that was fetched.
pub(super) enum Fetched {
    Backup(Backup),
    /// There is nothing of it, for this reason.
    Nothing(String),
    /// Nothing is left of it, for this reason. The object store had it.
    Lost(String),
}

/// Makes the backup of a log, by its name in [`ClusterPart`].
type FetchLog<'a> = &'a mut dyn FnMut(&str, LogId, &Path) -> Result<Fetched>;

/// The effect of leaving a log out, for people.
pub(super) fn effect_of_leaving_out(name: &str) -> &'static str {
    match name {
        DEFAULT_PART => "it comes back empty",
        CATALOGUE_PART => "named logs come back without their names",
        _ => "the named logs in it come back empty",
    }
}

/// Says why nothing of a log can be fetched from an object store. None: there is something, from which it comes back.
///
/// A log that has begun to store has its object `root`, for ever, and the pins of a log keep objects. So without these it is lost.
pub(super) fn has_nothing(vault: &dyn Vault, log: LogId) -> Result<Option<Fetched>> {
    let Found { slices, objects, lacking, .. } = find(vault, log)?;
    if !slices.is_empty() {
        return Ok(None);
    }
    let is_discarded = lacking.is_some_and(|lacking| lacking.kind() == ErrorKind::Discarded);
    if !objects.is_empty() && !is_discarded {
        return Ok(None);
    }
    if objects.is_empty() && vault.size(&root_name(log))?.is_none() {
        return Ok(Some(Fetched::Lost(no_root(log))));
    }
    if objects.is_empty() && !vault.list(&pins::folder(log))?.is_empty() {
        let why = "it has pins, and no object is left of it: they were lost";
        return Ok(Some(Fetched::Lost(why.to_owned())));
    }
    let why = match is_discarded || newest_begin(vault, log)?.is_some() {
        true => {
            "all of its records are discarded, and nothing says how far it was: its indexes begin with 1 again"
        }
        false => "nothing of it is stored: it comes back empty",
    };
    Ok(Some(Fetched::Nothing(why.to_owned())))
}

/// The catalogue at the end of a backup of its log.
pub(super) fn read_catalogue(backup: &Backup) -> Result<Catalogue> {
    let still = backup.still()?;
    catalogue_of(&|start| still.reader(start), still.first)
}

/// Checks before anything is downloaded that logs that are left out are the cluster's, as far as that is known: without its list, the
/// catalogue says which groups there are.
pub(super) fn check_left_out(logs: &ClusterLogs, without: &[&str]) -> Result<()> {
    let groups: Vec<String> = logs.groups.keys().map(|group| group_part(*group)).collect();
    let mut names = vec![DEFAULT_PART, CATALOGUE_PART];
    names.extend(groups.iter().map(String::as_str));
    let is_group = |name: &str| {
        let number = name.strip_prefix("group-").and_then(|number| number.parse().ok());
        groups.is_empty() && number.is_some_and(|group| group_part(group) == *name)
    };
    match without.iter().find(|name| !names.contains(name) && !is_group(name)) {
        Some(unknown) => Err(none_of_them(unknown, &names)),
        None => Ok(()),
    }
}

pub(super) fn none_of_them(unknown: &str, names: &[&str]) -> Error {
    let what = format!("{unknown} is none of the cluster's logs: it has {}", names.join(", "));
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Begins a backup in `dest`.
fn begin(dest: &Path) -> Result<std::sync::Arc<dyn Disk>> {
    let disk = disk_at(dest, true)?;
    if let Some(name) = list(&*disk)?.iter().min() {
        let why = match name.as_str() {
            CLUSTER_FILE => "holds a backup already: choose another directory".to_owned(),
            UNFINISHED_FILE => {
                "holds a backup that was interrupted: remove the directory and begin again".to_owned()
            }
            name => format!("is not empty ({name} is there): a backup needs a directory of its own"),
        };
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} {why}", disk.path().display())));
    }
    let mark = || {
        disk.create(UNFINISHED_FILE)?.sync()?;
        disk.sync_dir()?;
        disk.sync_ancestors()
    };
    mark().map_err(|e| Error::io("begin a backup in", disk.path(), e))?;
    Ok(disk)
}

/// Writes the manifest: from then on the backup is finished.
fn finish(disk: &dyn Disk, manifest: &ClusterManifest) -> Result<()> {
    let finish = || {
        let file = disk.open(UNFINISHED_FILE, true)?;
        file.write_at(0, &[IoSlice::new(manifest.encode().as_bytes())])?;
        file.sync()?;
        disk.rename(UNFINISHED_FILE, CLUSTER_FILE)?;
        disk.sync_dir()
    };
    finish().map_err(|e| Error::io("write", &disk.path().join(CLUSTER_FILE), e))
}

fn read_manifest(dir: &Path) -> Result<ClusterManifest> {
    let disk = disk_at(dir, false)?;
    let path = dir.join(CLUSTER_FILE);
    let read = || {
        let file = disk.open(CLUSTER_FILE, false)?;
        let bytes = file.len()?.min(MANIFEST_BYTES_MAX);
        let mut text = vec![0; bytes as usize];
        file.read_at(0, &mut text)?;
        Ok::<_, io::Error>(text)
    };
    let text = match read() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = if list(&*disk)?.iter().any(|name| name == UNFINISHED_FILE) {
                format!(
                    "the backup at {} is not finished: it is still being made, or was interrupted. If it was interrupted, remove it \
                     and begin again",
                    dir.display()
                )
            } else {
                format!("there is no backup of a cluster at {}: {CLUSTER_FILE} is missing", dir.display())
            };
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        read => read.map_err(|e| Error::io("read", &path, e))?,
    };
    ClusterManifest::parse(&text).map_err(|fault| match fault {
        ManifestFault::Newer(format) => {
            let what = format!(
                "{} is of format {format}, and this program reads format {CLUSTER_FORMAT}: use a newer chiplog",
                path.display()
            );
            Error::new(ErrorKind::Unsupported, what)
        }
        ManifestFault::Damaged(why) => {
            unsound(&path, &format!("the manifest is damaged: {why}. Use another copy of the backup"))
        }
    })
}
