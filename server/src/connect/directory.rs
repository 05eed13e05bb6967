//! Directory: what it holds: a log, a backup, files of something else; and checks before anything is written into it.
//!
//! Invariants:
//! - Nothing is written into a backup.
//! - No log is made within the directory of other logs.
//! - No log is made among other files, unless --create says so. The files that a killed first start has left are no others.

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog::backup::ClusterBackup;
use chiplog::internal::{is_own_file, is_segment_file};
use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};

/// The file that every log's directory contains.
const IDENTITY_FILE: &str = "chiplog.id";

/// The manifest of a log's backup, and its name while the backup is being made.
const BACKUP_FILES: [&str; 2] = ["chiplog.backup", "chiplog.backup.tmp"];

/// The manifest of a cluster's backup, and its name while the backup is being made.
const CLUSTER_FILES: [&str; 2] = ["chiplog.cluster", "chiplog.cluster.tmp"];

/// The directory of the root of a disk's file system for what a repair finds.
const LOST_AND_FOUND: &str = "lost+found";

/// Whether a log was made in this directory.
pub(crate) fn is_log(dir: &Path) -> bool {
    dir.join(IDENTITY_FILE).metadata().is_ok_and(|file| file.len() > 0)
}

/// Whether there are files with a log's records, also without the file that makes them a log.
pub(crate) fn has_segments(dir: &Path) -> bool {
    names(dir).any(|name| is_segment_file(&name))
}

/// The names in a directory, as far as it can be read.
fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Checks that a directory is no backup.
///
/// # Errors
/// `InvalidArgument`: it is one, finished or not.
pub(crate) fn check_no_backup(dir: &Path) -> Result<()> {
    let what = match dir {
        dir if ClusterBackup::is_at(dir) => "a cluster",
        dir if BACKUP_FILES.iter().any(|file| dir.join(file).is_file()) => "a log",
        _ => return Ok(()),
    };
    let shown = dir.display();
    // The backup of a cluster has its default log below it, in default/.
    if what == "a cluster" && is_log(dir) {
        let files = CLUSTER_FILES.into_iter().filter(|file| dir.join(file).is_file()).map(str::to_owned);
        // Of the directories that a server uses, those that are backups are not the replica's.
        let named = std::fs::read_dir(dir.join("named")).into_iter().flatten().flatten();
        let named = named.filter(|entry| BACKUP_FILES.iter().any(|file| entry.path().join(file).is_file()));
        let named = named.map(|entry| format!("named/{}", entry.file_name().display()));
        let parts = files.chain(named).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!(
            "{shown} is a backup of a cluster, and an earlier version made a replica in it: to use the replica, move {parts} and default/ away from there"
        )));
    }
    let make = if what == "a log" { "a log of it" } else { "a server's data directory of it" };
    Err(Failure::usage(format!(
        "{shown} is a backup of {what}, in which nothing is written: `chiplog restore {shown} NEW-DIR` makes {make}"
    )))
}

/// Checks that a directory is not within the directory of a log, or of many named logs: a log there is one that nobody looks for.
///
/// # Errors
/// `InvalidArgument`: it is.
pub(crate) fn check_not_within(dir: &Path) -> Result<()> {
    let Some(above) = enclosing(dir) else { return Ok(()) };
    let what = format!(
        "{} is within {}, another log's directory, in which no log is made: give a directory outside of it; {}",
        dir.display(),
        above.display(),
        named_log_advice(dir)
    );
    Err(Failure::usage(what))
}

/// How to write a named log of a server that is looked for in a directory.
pub(crate) fn named_log_advice(dir: &Path) -> String {
    let is_plain =
        |name: &&str| name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'));
    let name = dir.file_name().and_then(|name| name.to_str()).filter(is_plain);
    format!("a named log of a server is HOST:PORT/NAME, such as 127.0.0.1:7411/{}", name.unwrap_or("orders"))
}

/// The directory of a log, or of many named logs, above a directory.
pub(crate) fn enclosing(dir: &Path) -> Option<PathBuf> {
    let whole = absolute(dir).ok()?;
    let there = |(missing, path): (usize, &Path)| Some((missing, path.canonicalize().ok()?));
    let (missing, there) = whole.ancestors().enumerate().find_map(there)?;
    // A directory of many logs is restored one by one: their places in it are no strangers' ones.
    let is_group = |name: &OsStr| name == "system" || name.as_encoded_bytes().starts_with(b"group-");
    let own = whole.file_name().is_some_and(is_group).then(|| whole.parent()?.canonicalize().ok()).flatten();
    let is_shared = |dir: &Path| is_log(&dir.join("system")) && is_log(&dir.join("group-1"));
    let has_logs = |dir: &&Path| is_log(dir) || (is_shared(dir) && own.as_deref() != Some(*dir));
    there.ancestors().skip(usize::from(missing == 0)).find(has_logs).map(Path::to_owned)
}

/// Checks that a directory has no files of something else. `is_own` tells further names that may be there.
///
/// With segments but no identity it may be a log that lost its identity, or one that was not finished: the log's opening
/// tells which, and what to do.
///
/// # Errors
/// `AlreadyExists`: it has other files and no log. `instead` says what to do.
pub(crate) fn check_no_others(dir: &Path, is_own: impl Fn(&Path) -> bool, instead: &str) -> Result<()> {
    let is_other = |name: &String| name != LOST_AND_FOUND && !is_own_file(name) && !is_own(&dir.join(name));
    let Some(other) = names(dir).find(is_other).filter(|_| !is_log(dir) && !has_segments(dir)) else {
        return Ok(());
    };
    let why =
        format!("the directory {} has other files, such as {other}, and no log: {instead}", dir.display());
    Err(Failure::new(ErrorKind::AlreadyExists, why))
}
