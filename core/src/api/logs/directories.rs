//! Directories: where the groups of named logs are. Each is in the directory of the logs, or in a further one, which is
//! meant to be on a disk of its own.
//!
//! ```text
//! dir/system/               the system log, always here
//! dir/group-1/              a group that was made before there were further directories
//! dir/chiplog.directories   which further directories have groups, and which groups (directory_files.rs)
//! /d1/chiplog.groups        the marker: whose directory this is
//! /d1/group-2/              a group in a further directory
//! ```
//!
//! Invariants:
//! - A group that was in a directory that cannot be used now is not found, and not made: a disk that is not mounted never
//!   looks like one without groups.
//! - The list in `dir` has its id before a marker repeats that. The marker is there before the list names its directory and
//!   a group in it, and that before the group is made. So a crash leaves a marker of this list, which is accepted, or a
//!   group of the list that its directory does not have, which may be made.
//! - A further directory is never made. Nothing in it is removed.
//! - Callers change nothing here at the same time: they hold the lock of the system log, or one of their own.
//!
//! Must not know: blocks, segments, raft.

#![cfg_attr(
    not(feature = "internal"),
    allow(dead_code, unreachable_pub, reason = "the server uses it, by that feature")
)]

use super::directory_files::{DirectoryList, LogsId, MarkId, Marker};
use super::options::GROUPS_MAX;
use crate::disk::Disk;
use crate::disk::linux::{RealDisk, check_writable, is_empty, real_path};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::{DIRECTORIES_FILE, MARKER_FILE, group_dir, holds_log, system_dir};
use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

/// The most further directories.
const DIRECTORIES_MAX: usize = 64;
/// The largest file of the two that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// A file is written under its name with this ending, then renamed.
const UNFINISHED: &str = ".tmp";

/// Where the groups of named logs are: in the directory of the logs, or in one of several further directories. For
/// [`Logs::open`](crate::Logs::open), and for a program that opens groups by itself.
///
/// ```
/// # #[cfg(feature = "internal")] {
/// use chiplog::internal::GroupDirectories;
/// let (home, disk) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// let directories = GroupDirectories::new(home.path(), &[disk.path().to_owned()])?;
/// assert_eq!(directories.find(1)?, None);
/// assert_eq!(directories.place(1)?, disk.path().join("group-1"));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupDirectories {
    home: PathBuf,
    further: Vec<PathBuf>,
}

/// A directory of groups that cannot be used now: see [`GroupDirectories::faults`].
///
/// ```
/// # #[cfg(feature = "internal")] {
/// use chiplog::internal::GroupDirectories;
/// let home = tempfile::tempdir()?;
/// let directories = GroupDirectories::new(home.path(), &[home.path().with_extension("missing")])?;
/// let fault = &directories.faults()?[0];
/// assert!(!fault.was_used && fault.error.to_string().contains("does not exist"));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DirectoryFault {
    /// Its path: as listed now, or as it was when it was last used.
    pub path: PathBuf,
    /// Whether it had groups when it was last used. Otherwise a wrong path was listed.
    pub was_used: bool,
    /// The reason: says what to do.
    pub error: Error,
}

/// A further directory that can be used.
struct Usable {
    path: PathBuf,
    disk: RealDisk,
    /// `None`: it has no marker yet.
    mark: Option<MarkId>,
    groups: BTreeSet<u32>,
}

/// All directories as they are now.
struct Survey {
    list: Option<DirectoryList>,
    home_groups: BTreeSet<u32>,
    /// In the order of the option.
    usable: Vec<Usable>,
    faults: Vec<DirectoryFault>,
}

impl GroupDirectories {
    /// The directories of the named logs in `home`: that one, and `further`, each meant to be on a disk of its own. A
    /// relative path is relative to the working directory of now. Reads no file.
    ///
    /// # Errors
    /// Those of [`Self::check`]. `Io`: the working directory cannot be determined.
    pub fn new(home: impl AsRef<Path>, further: &[PathBuf]) -> Result<Self> {
        let home = home.as_ref();
        Self::check(home, further)?;
        let further = further.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
        Ok(Self { home: absolute(home)?, further })
    }

    /// Checks a list of further directories by their names alone.
    ///
    /// # Errors
    /// `InvalidArgument`: a name is empty, is not UTF-8 or has control characters; a directory is listed twice; one is
    /// below another one, is `home`, below it or above it; there are more than 64. `Io`: the working directory cannot be
    /// determined.
    pub fn check(home: &Path, further: &[PathBuf]) -> Result<()> {
        if further.len() > DIRECTORIES_MAX {
            let what = format!(
                "{} directories for groups of named logs are listed: list up to {DIRECTORIES_MAX}",
                further.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mut before = vec![(absolute(home)?, "the directory of the logs")];
        for path in further {
            let named =
                path.to_str().is_some_and(|text| !text.is_empty() && !text.contains(char::is_control));
            if !named {
                return Err(invalid(path, "its name is empty, is not UTF-8, or has control characters"));
            }
            let whole = absolute(path)?;
            check_apart(path, &whole, &before)?;
            before.push((whole, "another one of the list"));
        }
        Ok(())
    }

    /// The path of a group that exists; `None`: there is none. Notes its directory if it was found in another one than
    /// before, so that it is missed there if that is not mounted later.
    ///
    /// # Errors
    /// `Diverged`: the group is in two directories; or it was in one that cannot be used now: an unmounted disk, or one of
    /// another directory of logs. `Corrupt`, `Io`: the files about the directories.
    pub fn find(&self, group: u32) -> Result<Option<PathBuf>> {
        self.find_in(&self.survey()?, group)
    }

    /// The path of a group that exists, or a path for a new one, which the caller makes: in the further directory with the
    /// fewest groups, the first of these in the list, or in the directory of the logs if there are no further ones.
    /// Durably notes the directory first.
    ///
    /// # Errors
    /// As [`Self::find`]. `Io`: the directory cannot be written; or no further directory can be used.
    pub fn place(&self, group: u32) -> Result<PathBuf> {
        let survey = self.survey()?;
        if let Some(found) = self.find_in(&survey, group)? {
            return Ok(found);
        }
        if self.further.is_empty() {
            self.note(&survey, group, None)?;
            return Ok(group_dir(&self.home, group));
        }
        let mut last = None;
        let writable = survey.usable.iter().filter(|directory| match check_writable(&directory.path) {
            Ok(()) => true,
            Err(e) => {
                last = Some(Error::io("write to directory", &directory.path, e));
                false
            }
        });
        let Some(next) = writable.min_by_key(|directory| survey.others_in(directory, group)) else {
            let fault = survey.faults.into_iter().map(|fault| fault.error).next();
            let why = last.or(fault).map_or_else(String::new, |error| format!(": {error}"));
            let what = format!("no directory can take group {group}{why}");
            return Err(Error::new(ErrorKind::Io, what));
        };
        self.note(&survey, group, Some(next))?;
        Ok(group_dir(&next.path, group))
    }

    /// Forgets the directory of a group that is not here any more: it is not missed if that directory is not mounted later.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the files about the directories.
    pub fn forget(&self, group: u32) -> Result<()> {
        self.note(&self.survey()?, group, None)
    }

    /// The numbers of all groups that are here, or were when their directories were last used.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the files about the directories.
    pub fn groups(&self) -> Result<BTreeSet<u32>> {
        let survey = self.survey()?;
        let noted = survey.list.iter().flat_map(|list| list.groups.keys().copied());
        let there = survey.usable.iter().flat_map(|directory| directory.groups.iter().copied());
        Ok(survey.home_groups.iter().copied().chain(noted).chain(there).collect())
    }

    /// Further directories that cannot be used now, with the reasons: those of the list, and one that is not in the list
    /// and had groups that are in no other directory.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the files about the directories.
    pub fn faults(&self) -> Result<Vec<DirectoryFault>> {
        let mut survey = self.survey()?;
        for directory in survey.usable.iter().filter(|directory| directory.mark.is_none()) {
            if let Err(e) = check_writable(&directory.path) {
                let error = Error::io("write to directory", &directory.path, e);
                survey.faults.push(DirectoryFault { path: directory.path.clone(), was_used: false, error });
            }
        }
        Ok(survey.faults)
    }

    fn find_in(&self, survey: &Survey, group: u32) -> Result<Option<PathBuf>> {
        let home = survey.home_groups.contains(&group).then_some(None);
        let further = survey.usable.iter().filter(|directory| directory.groups.contains(&group)).map(Some);
        let found: Vec<Option<&Usable>> = home.into_iter().chain(further).collect();
        let path =
            |at: &Option<&Usable>| group_dir(at.map_or(&self.home, |directory| &directory.path), group);
        if let [one, other, ..] = found.as_slice() {
            let what = format!(
                "group {group} is in {} and in {}: one of them is a copy or a leftover. Compare them (`chiplog info`), move \
                 the wrong one elsewhere, and open the logs again",
                path(one).display(),
                path(other).display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        if let Some(fault) = survey.hides(group, found.first().copied().flatten(), &self.further) {
            let what = match found.first() {
                Some(at) => {
                    format!(
                        "group {group} was in a directory that cannot be used now, and one is in {}",
                        path(at).display()
                    )
                }
                None => format!("group {group} was in a directory that cannot be used now"),
            };
            return Err(Error::with_source(
                ErrorKind::Diverged,
                format!("{what}: {}", fault.error),
                &fault.error,
            ));
        }
        let Some(at) = found.first() else { return Ok(None) };
        self.note(survey, group, *at)?;
        Ok(Some(path(at)))
    }

    /// Notes the directory of a group durably: `None` is the directory of the logs. Writes nothing that is there already.
    fn note(&self, survey: &Survey, group: u32, at: Option<&Usable>) -> Result<()> {
        let Some(at) = at else {
            return match &survey.list {
                Some(list) if list.groups.contains_key(&group) => {
                    self.write_list(&list.with_group(group, None))
                }
                _ => Ok(()),
            };
        };
        let list = match &survey.list {
            Some(list) => list.clone(),
            None => {
                let list = DirectoryList::new(LogsId(random(&at.disk)?));
                self.write_list(&list)?;
                list
            }
        };
        let mark = match at.mark {
            Some(mark) => mark,
            None => {
                let directory = MarkId(random(&at.disk)?);
                let marker = Marker { logs: list.logs, directory };
                replace(&at.disk, MARKER_FILE, marker.encode().as_bytes())?;
                tracing::info!(path = %at.path.display(), "a directory is used for groups of named logs");
                directory
            }
        };
        let noted = list.with_group(group, Some((mark, &at.path)));
        if noted == list { Ok(()) } else { self.write_list(&noted) }
    }

    fn write_list(&self, list: &DirectoryList) -> Result<()> {
        let home =
            RealDisk::open(&self.home, true).map_err(|e| Error::io("open directory", &self.home, e))?;
        replace(&home, DIRECTORIES_FILE, list.encode().as_bytes())
    }

    fn survey(&self) -> Result<Survey> {
        let (list, home_groups) = match RealDisk::open(&self.home, false) {
            Ok(home) => (read(&home, DIRECTORIES_FILE, DirectoryList::parse)?, groups_in(&home)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (None, BTreeSet::new()),
            Err(e) => return Err(Error::io("open directory", &self.home, e)),
        };
        let mut survey = Survey { list, home_groups, usable: Vec::new(), faults: Vec::new() };
        let examined: Vec<Result<(Usable, Option<Marker>)>> =
            self.further.iter().map(|path| examine(path)).collect();
        let marks: Vec<MarkId> =
            examined.iter().flatten().filter_map(|(_, marker)| Some(marker.as_ref()?.directory)).collect();
        let mut before = vec![(real(&self.home), "the directory of the logs")];
        for (path, examined) in self.further.iter().zip(examined) {
            let own = examined.as_ref().ok().and_then(|(directory, _)| directory.mark);
            let used = survey.list.as_ref().and_then(|list| list.at(path));
            let used = used.filter(|mark| own == Some(*mark) || !marks.contains(mark));
            let judged = examined.and_then(|(directory, marker)| {
                check_apart(path, &real(path), &before)?;
                survey.check_marker(path, marker, used, &marks)?;
                Ok(directory)
            });
            match judged {
                Ok(directory) => survey.usable.push(directory),
                Err(error) => {
                    let error = survey.with_groups(error, used);
                    survey.faults.push(DirectoryFault {
                        path: path.clone(),
                        was_used: used.is_some(),
                        error,
                    });
                }
            }
            before.push((real(path), "another one of the list"));
        }
        survey.find_lost();
        Ok(survey)
    }
}

impl Survey {
    /// Checks that a directory is that of these logs: one with a marker of theirs, or a new one. `used`: the directory that
    /// was last at this path, unless it is at another one now. `marks`: those of all directories.
    fn check_marker(
        &self,
        path: &Path,
        marker: Option<Marker>,
        used: Option<MarkId>,
        marks: &[MarkId],
    ) -> Result<()> {
        let file = path.join(MARKER_FILE);
        let what = match marker {
            None if used.is_none() => return Ok(()),
            None => format!(
                "{} has groups of named logs, and its marker {MARKER_FILE} is missing: the disk is not mounted, or another \
                 one is; mount the right one",
                path.display()
            ),
            Some(marker) if self.list.as_ref().is_none_or(|list| list.logs != marker.logs) => format!(
                "{} says that the directory is used by other named logs: list another directory. If they are gone for good, \
                 empty it",
                file.display()
            ),
            Some(marker) if marks.iter().filter(|mark| **mark == marker.directory).count() > 1 => format!(
                "{} is in two of the listed directories: one is a copy of the other; list only the right one",
                file.display()
            ),
            Some(_) => return Ok(()),
        };
        Err(Error::new(ErrorKind::Diverged, what))
    }

    /// Adds which groups are missed with a directory that was used.
    fn with_groups(&self, error: Error, used: Option<MarkId>) -> Error {
        let (Some(list), Some(used)) = (&self.list, used) else { return error };
        let groups: Vec<String> = list.groups_in(used).map(|group| group.to_string()).collect();
        let what = format!("{error} (with group {})", groups.join(", "));
        Error::with_source(ErrorKind::Diverged, what, &error)
    }

    /// Finds directories that had groups, which are in no directory now.
    fn find_lost(&mut self) {
        let Some(list) = &self.list else { return };
        let there: BTreeSet<u32> = self
            .home_groups
            .iter()
            .chain(self.usable.iter().flat_map(|directory| &directory.groups))
            .copied()
            .collect();
        for (mark, path) in &list.directories {
            let is_reported = self.faults.iter().any(|fault| fault.path == *path && fault.was_used);
            let missing: Vec<String> = list
                .groups_in(*mark)
                .filter(|group| !there.contains(group))
                .map(|group| group.to_string())
                .collect();
            if is_reported || self.is_usable(*mark) || missing.is_empty() {
                continue;
            }
            let what = format!(
                "{} had group {}, and is not among the directories that are listed and mounted now: list it again, and mount \
                 its disk",
                path.display(),
                missing.join(", ")
            );
            let error = Error::new(ErrorKind::Diverged, what);
            self.faults.push(DirectoryFault { path: path.clone(), was_used: true, error });
        }
    }

    fn is_usable(&self, mark: MarkId) -> bool {
        self.usable.iter().any(|directory| directory.mark == Some(mark))
    }

    /// The fault because of which a group may be in a directory that cannot be looked into. `found`: where it is.
    fn hides(&self, group: u32, found: Option<&Usable>, listed: &[PathBuf]) -> Option<&DirectoryFault> {
        let list = self.list.as_ref()?;
        let noted = *list.groups.get(&group)?;
        if found.is_some_and(|directory| directory.mark == Some(noted)) {
            return None;
        }
        let is_there = found.is_some() || self.home_groups.contains(&group);
        if is_there && self.is_usable(noted) {
            return None; // it was moved from there
        }
        // A directory that is not listed any more hides nothing that was found elsewhere.
        let can_hide = |fault: &&DirectoryFault| !is_there || listed.contains(&fault.path);
        let path = list.directories.get(&noted);
        let faults = || self.faults.iter().filter(can_hide);
        faults().find(|fault| Some(&fault.path) == path).or_else(|| faults().next())
    }

    /// How many groups beside `group` a directory has, or is to have.
    fn others_in(&self, directory: &Usable, group: u32) -> usize {
        let noted = self.list.iter().zip(directory.mark).flat_map(|(list, mark)| list.groups_in(mark));
        let all: BTreeSet<u32> = directory.groups.iter().copied().chain(noted).collect();
        all.iter().filter(|other| **other != group).count()
    }
}

/// Reads what a further directory has.
fn examine(path: &Path) -> Result<(Usable, Option<Marker>)> {
    let disk = match RealDisk::open(path, false) {
        Ok(disk) => disk,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(invalid(
                path,
                "it does not exist: mount its disk, make it if it is new, or list another one",
            ));
        }
        Err(e) => return Err(Error::io("open directory", path, e)),
    };
    let marker = read(&disk, MARKER_FILE, Marker::parse)?;
    if holds_log(path) {
        return Err(invalid(path, "it holds a log on its own: list another directory"));
    }
    if holds_log(&system_dir(path)) {
        return Err(invalid(path, "it holds named logs of its own: list another directory"));
    }
    let groups = groups_in(&disk)?;
    let mark = marker.map(|marker| marker.directory);
    Ok((Usable { path: path.to_owned(), disk, mark, groups }, marker))
}

/// The groups in a directory: each has a directory of its number that is not empty.
fn groups_in(disk: &RealDisk) -> Result<BTreeSet<u32>> {
    let mut groups = BTreeSet::new();
    for name in disk.list().map_err(|e| Error::io("list", disk.path(), e))? {
        let number = name.strip_prefix("group-").and_then(|number| number.parse::<u32>().ok());
        let Some(group) = number.filter(|group| (1..=GROUPS_MAX).contains(group)) else { continue };
        let path = group_dir(disk.path(), group);
        if path.file_name() != Some(name.as_ref()) {
            continue; // such as group-01
        }
        match is_empty(&path) {
            Ok(true) => {} // a crash came before its first file
            Ok(false) => _ = groups.insert(group),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {}
            Err(e) => return Err(Error::io("list", &path, e)),
        }
    }
    Ok(groups)
}

/// Checks that a directory is none of those before it, nor above or below one. `named`: as it is listed.
fn check_apart(named: &Path, path: &Path, before: &[(PathBuf, &str)]) -> Result<()> {
    for (other, which) in before {
        let how = match (path == other, path.starts_with(other), other.starts_with(path)) {
            (true, ..) => "the same as",
            (_, true, _) => "below",
            (_, _, true) => "above",
            _ => continue,
        };
        let why = format!("it is {how} {}, {which}: list directories apart from each other", other.display());
        return Err(invalid(named, &why));
    }
    Ok(())
}

fn invalid(path: &Path, why: &str) -> Error {
    let what = format!("directory {:?} for groups of named logs: {why}", path.display().to_string());
    Error::new(ErrorKind::InvalidArgument, what)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    match path.as_os_str().is_empty() {
        true => Ok(PathBuf::new()), // refused where it is opened, with a better message
        false => std::path::absolute(path).map_err(|e| Error::io("determine the whole path of", path, e)),
    }
}

/// The path without symbolic links, if it can be determined.
fn real(path: &Path) -> PathBuf {
    real_path(path).unwrap_or_else(|_| path.to_owned())
}

fn random(disk: &RealDisk) -> Result<u128> {
    let mut bytes = [0; 16];
    disk.random(&mut bytes).map_err(|e| Error::io("make an id for", disk.path(), e))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Reads a whole file; `None`: there is none.
fn read<T>(
    disk: &RealDisk,
    name: &str,
    parse: impl Fn(&[u8]) -> std::result::Result<T, &'static str>,
) -> Result<Option<T>> {
    let path = disk.path().join(name);
    let file = match disk.open(name, false) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("open", &path, e)),
    };
    let length = file.len().map_err(|e| Error::io("measure", &path, e))?;
    if length > FILE_BYTES_MAX {
        return Err(Error::corrupt(&path, 0, "it is too long for such a file"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(0, &mut bytes).map_err(|e| Error::io("read", &path, e))?;
    parse(&bytes).map(Some).map_err(|why| Error::corrupt(&path, 0, why))
}

/// Replaces a file durably, as a whole: a crash leaves the old one or the new one.
fn replace(disk: &RealDisk, name: &str, bytes: &[u8]) -> Result<()> {
    let unfinished = format!("{name}{UNFINISHED}");
    let write = || {
        match disk.remove(&unfinished) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = disk.create(&unfinished)?;
        file.write_at(0, &[IoSlice::new(bytes)])?;
        file.sync()?;
        disk.rename(&unfinished, name)?;
        disk.sync_dir()
    };
    write().map_err(|e| Error::io("write", &disk.path().join(name), e))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests;
