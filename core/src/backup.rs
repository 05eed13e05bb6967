//! Backup: a log's files in a directory of their own, sealed. A backup is a closed copy that followed a log, with a
//! manifest of its files and their checksums. It is made, opened and checked here; `backup/restore.rs` makes a log of
//! it, `backup/fetch.rs` makes it of the objects in an object store, `backup/segments.rs` of the segment files that a server passes on, and `backup/pin.rs` keeps these from deletion.
//!
//! ```text
//!  begin ──> chiplog.backup.tmp      while this file exists the backup is not finished
//!    │        + a follower's files   from a directory by `make`, over the network by a follower
//!  seal  ──> all synced, every block read, manifest written to chiplog.backup.tmp, renamed to chiplog.backup
//! ```
//!
//! Invariants:
//! - a directory with `chiplog.backup` is a finished backup: the manifest is renamed last, after everything else is
//!   durable;
//! - it holds exactly the files that the manifest names: an error names a file that is missing, changed or
//!   additional.
//!
//! Must not know: how a log is made of it.

mod branch;
pub(crate) mod cluster;
mod cluster_branch;
mod cluster_manifest;
pub(crate) mod cluster_pins;
mod cluster_restore;
mod downloads;
pub(crate) mod fetch;
mod firsts;
pub(crate) mod found;
mod gap;
pub(crate) mod inventory;
mod payloads;
pub(crate) mod pin;
pub(crate) mod restore;
mod segments;
pub(crate) mod slices;
mod stored;
pub(crate) mod summary;
pub(crate) mod tail;

pub(crate) mod manifest;
pub(crate) mod still;

pub use crate::store::objects::cluster_logs::ClusterLogs;
pub use branch::{Branch, BranchOptions, BranchPart};
pub use cluster::{ClusterBackup, ClusterPart};
pub use cluster_branch::{ClusterBranch, ClusterBranchOptions, ClusterBranchPart};
pub use cluster_pins::ClusterPins;
pub use cluster_restore::{LaterPart, RestoredCluster};
pub use inventory::{Inventory, ObjectCount};
pub use manifest::BackupInfo;
pub use pin::{PIN_NAME_BYTES_MAX, PINS_MAX, Pin};
pub use restore::{RestoreOptions, RestoreTo, Restored};
pub use summary::SliceSummary;

use crate::api::follower::FollowerLog;
use crate::api::read_only::ReadOnlyLog;
use crate::disk::linux::remove_directory;
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowFrom, FollowMessage};
use crate::follower::source::FollowSource;
use crate::options::Options;
use crate::record::crc::Crc;
use crate::replica::open::disk_at;
use crate::store::format::geometry::REMEMBERED_MAX;
use crate::store::format::identity::IDENTITY_FILE;
use crate::store::segment::file_number;
use crate::sync::threads::in_parallel;
use crate::types::EntryIndex;
use manifest::{MANIFEST_FORMAT, Manifest, ManifestFault, ManifestFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use still::Still;

/// The manifest's name.
pub(crate) const MANIFEST_FILE: &str = "chiplog.backup";
/// The file's name while the backup is being made.
const UNFINISHED_FILE: &str = "chiplog.backup.tmp";
/// The text of the unfinished file. It is shorter than any manifest, which overwrites it.
const UNFINISHED: &[u8] = b"this backup is not finished\n";
/// The same in a directory that was made for the backup and is removed with it.
const UNFINISHED_IN_NEW: &[u8] = b"this backup is not finished\nits directory is new\n";
/// Longer than any manifest: that of a hundred thousand segments has 6 MB.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// How many bytes are read, or fed, at once.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// How many files are read at a time for their checksums: the disk is not idle while one is summed.
const SUMS_AT_A_TIME: usize = 4;
/// How often a log is looked at again that another process is changing.
const LOOKS_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A finished backup of a log, in a directory. [`Self::make`] makes it from a directory. From servers a follower
/// makes it between [`Self::begin`] and [`Self::seal`], as `chiplog backup` does. [`Self::restore`] makes a log of
/// it.
///
/// It holds the records that were committed when it was made, with their indexes and times, the sessions, and the
/// options of the log. It never changes. It can be copied by any means, and a copy is itself a backup.
///
/// ```
/// use chiplog::backup::{Backup, RestoreOptions};
/// use chiplog::{Log, Options, ReadOnlyLog};
/// # let dir = tempfile::tempdir()?;
/// # let (live, saved, again) = (dir.path().join("live"), dir.path().join("saved"), dir.path().join("again"));
/// let log = Log::open(&live, Options::with_segment_bytes(1 << 20))?;
/// log.append(b"kept")?;
/// log.close()?;
/// // This also works while another process writes the log.
/// let backup = Backup::make(&ReadOnlyLog::open(&live)?, &saved, &mut |_done, _total| {})?;
/// assert_eq!(backup.info().last.get(), 1);
/// // Later, perhaps on another machine.
/// let backup = Backup::open(&saved)?;
/// backup.restore(&again, &RestoreOptions::default(), &mut |_done, _total| {})?;
/// let log = Log::open(&again, Options::with_segment_bytes(1 << 20))?;
/// assert_eq!(log.read(chiplog::Index(1))?.data, "kept");
/// assert_eq!(log.append(b"next")?.get(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Backup {
    pub(crate) disk: Arc<dyn Disk>,
    manifest: Manifest,
}

/// Called with the progress of a long operation: bytes done, and bytes in total.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl Backup {
    /// Copies the log that `read_only` shows, as far as it is proven durable now, to a backup in `dest`, which must be
    /// missing or empty. Another process may write the log meanwhile. From a replica it copies the entries that are
    /// known committed there.
    ///
    /// `progress` is called with the bytes copied and an estimate of the total. Blocks until the backup is finished
    /// and durable.
    ///
    /// # Errors
    /// `InvalidArgument`: `dest` is not empty. `Corrupt`: the log is damaged. `Full`, `Io`. After an error `dest` is
    /// as it was before. After a crash it holds an unfinished backup, which [`Self::open`] refuses.
    pub fn make(
        read_only: &ReadOnlyLog,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let dest = dest.as_ref();
        Self::begin(dest)?;
        Self::copy(read_only, dest, progress).inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = Self::abandon(dest);
        })
    }

    fn copy(read_only: &ReadOnlyLog, dest: &Path, progress: Progress<'_>) -> Result<Self> {
        let (target, total) = (read_only.last_entry(), read_only.status().bytes_used);
        let mut feed = read_only.follow(FollowFrom::First)?;
        let Some(FollowMessage::State(state)) = next(read_only, &mut feed)? else {
            return Err(Error::new(ErrorKind::Corrupt, "the log has no state at which a backup can begin"));
        };
        let mut at = state.raft();
        let copy = FollowerLog::create(dest, Self::copy_options(read_only.segment_bytes()), &state)?;
        let mut done = 0;
        while at < target {
            let Some(fed) = next(read_only, &mut feed)? else {
                let what =
                    format!("the log shows entry {target} and feeds none after {at}; back it up again");
                return Err(Error::new(ErrorKind::Corrupt, what));
            };
            done += fed.bytes() as u64;
            at = last_entry(&fed).unwrap_or(at);
            copy.apply(fed)?;
            progress(done, total.max(done));
        }
        copy.close()?;
        Self::seal(dest)
    }

    /// Begins a backup in `dest`, which must be missing or empty. From then on a follower can make its copy there,
    /// until [`Self::seal`].
    ///
    /// # Errors
    /// `InvalidArgument`: `dest` is not empty. `Io`.
    pub fn begin(dest: impl AsRef<Path>) -> Result<()> {
        let text = if dest.as_ref().exists() { UNFINISHED } else { UNFINISHED_IN_NEW };
        let disk = disk_at(dest.as_ref(), true)?;
        let names = list(&*disk)?;
        if let Some(name) = names.iter().min() {
            let what = if names.iter().any(|name| name == MANIFEST_FILE) {
                "holds a backup already: choose another directory".to_owned()
            } else if names.iter().any(|name| name == UNFINISHED_FILE) {
                "holds a backup that was interrupted: remove the directory and begin again".to_owned()
            } else {
                format!("is not empty ({name} is there): a backup needs a directory of its own")
            };
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{} {what}", disk.path().display())));
        }
        let mark = || {
            let file = disk.create(UNFINISHED_FILE)?;
            file.write_at(0, &[IoSlice::new(text)])?;
            file.sync()?;
            disk.sync_dir()?;
            disk.sync_ancestors()
        };
        mark().map_err(|e| Error::io("begin a backup in", disk.path(), e))
    }

    /// Removes an unfinished backup from `dest`; removes the directory as well, if [`Self::begin`] made it.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no unfinished backup. `Locked`: the copy is open. `Io`.
    pub fn abandon(dest: impl AsRef<Path>) -> Result<()> {
        let disk = disk_at(dest.as_ref(), false)?;
        let names = list(&*disk)?;
        if !names.iter().any(|name| name == UNFINISHED_FILE) {
            let what = format!("there is no unfinished backup in {}", disk.path().display());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let bytes = disk.open(UNFINISHED_FILE, false).and_then(|file| file.len());
        let path = disk.path().join(UNFINISHED_FILE);
        let is_new = bytes.map_err(|e| Error::io("open", &path, e))? == UNFINISHED_IN_NEW.len() as u64;
        remove_log(&*disk)?;
        remove(&*disk, UNFINISHED_FILE)?;
        if !is_new {
            return Ok(());
        }
        remove_directory(disk.path()).map_err(|e| Error::io("remove", disk.path(), e))
    }

    /// The options for a follower whose copy becomes a backup: it remembers everything that its source remembers.
    /// `segment_bytes`: the size of its files; at least as large as the blocks of the source.
    pub fn copy_options(segment_bytes: u32) -> Options {
        // The number of sessions limits nothing in a copy; a low number leaves room for more batches of each session
        // in the openings.
        let remembering = |session_window| Options {
            sessions_max: 1,
            session_window,
            ..Options::with_segment_bytes(segment_bytes)
        };
        let fits = |window: &u16| remembering(*window).check().is_ok();
        remembering((1..=REMEMBERED_MAX).rev().find(fits).unwrap_or(1))
    }

    /// Makes a backup of a follower's closed copy in `dest`, after [`Self::begin`]. Reads every byte. Blocks until
    /// the backup is durable.
    ///
    /// # Errors
    /// `InvalidArgument`: no backup was begun in `dest`, or the directory holds other files as well. `Locked`: the
    /// copy is open. `NotFound`: there is no copy. `Corrupt`: a block of the copy cannot be read. `Io`.
    pub fn seal(dest: impl AsRef<Path>) -> Result<Self> {
        Self::seal_with(dest.as_ref(), false, Vec::new())
    }

    /// The same, with remarks about it.
    fn seal_with(dest: &Path, ends_early: bool, notes: Vec<String>) -> Result<Self> {
        let disk = disk_at(dest, false)?;
        let refuse = |what: String| {
            Err(Error::new(ErrorKind::InvalidArgument, format!("{} {what}", disk.path().display())))
        };
        let names = list(&*disk)?;
        if !names.iter().any(|name| name == UNFINISHED_FILE) {
            return refuse("holds no backup that was begun: begin one first".to_owned());
        }
        let _lock = lock(&*disk)?;
        let still = Still::look(&disk)?;
        if !still.identity.follows {
            return refuse("holds a log, not a copy of one".to_owned());
        }
        still.leftovers.iter().try_for_each(|name| remove(&*disk, name))?;
        let mut wanted = still.files.clone();
        wanted.insert(0, IDENTITY_FILE.to_owned());
        for name in list(&*disk)? {
            if is_spare(&name) {
                remove(&*disk, &name)?;
            } else if name != UNFINISHED_FILE && !wanted.contains(&name) {
                return refuse(format!("holds {name}, which is not part of the copy: remove it"));
            }
        }
        // Every block is checked beside the files' checksums. None: the blocks.
        let work: Vec<_> = std::iter::once(None).chain((0..wanted.len()).map(Some)).collect();
        let mut sums = BTreeMap::new();
        let read = |work: &Option<usize>| match *work {
            Some(n) => Ok(Some((n, sum(&*disk, &wanted[n], true)?))),
            None => still.walk(PIECE_BYTES).map(|()| None),
        };
        in_parallel(SUMS_AT_A_TIME, &work, read, |read| sums.extend(read))?;
        let files = wanted.into_iter().zip(sums.into_values());
        let files: Vec<_> = files.map(|(name, (bytes, crc))| ManifestFile { name, bytes, crc }).collect();
        let info = BackupInfo {
            log_id: still.identity.log,
            first: still.first,
            last: still.last,
            last_entry: still.last_entry,
            last_timestamp: still.last_timestamp,
            made: Options::default().clock.now(),
            files: files.len() as u64,
            bytes: files.iter().map(|file| file.bytes).sum(),
        };
        let notes = notes.iter().map(|note| note.replace(['\n', '\r'], " ")).collect();
        let manifest = Manifest { info, files, ends_early, notes };
        let finish = || {
            disk.sync_dir()?;
            let file = disk.open(UNFINISHED_FILE, true)?;
            file.write_at(0, &[IoSlice::new(manifest.encode().as_bytes())])?;
            file.sync()?;
            disk.rename(UNFINISHED_FILE, MANIFEST_FILE)?;
            disk.sync_dir()
        };
        finish().map_err(|e| Error::io("write", &disk.path().join(MANIFEST_FILE), e))?;
        Ok(Self { disk, manifest })
    }

    /// Opens the backup in `dir`: reads its manifest, and checks that exactly its files are there, with their sizes.
    /// Their bytes are checked by [`Self::check`] and [`Self::restore`].
    ///
    /// # Errors
    /// `NotFound`: there is no backup, or it is unfinished. `Corrupt`: the manifest is damaged, or a file is missing,
    /// additional, or of the wrong size; the message names it. `Unsupported`: a later version of chiplog made the
    /// backup. `Io`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let disk = disk_at(dir, false).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let what = format!("there is no backup at {}: the directory does not exist", dir.display());
                Error::new(ErrorKind::NotFound, what)
            }
            _ => error,
        })?;
        let manifest = read_manifest(&*disk)?;
        let backup = Self { disk, manifest };
        backup.check_names()?;
        Ok(backup)
    }

    /// The positions, times and sizes of the backup, from its manifest.
    pub fn info(&self) -> BackupInfo {
        self.manifest.info
    }

    /// The backup's directory.
    pub fn path(&self) -> PathBuf {
        self.disk.path().to_path_buf()
    }

    /// Checks the backup: every file has the checksum in the manifest, and every block in it is sound. Changes
    /// nothing. `progress` is called with the bytes read and the total. Blocks until everything is read.
    ///
    /// # Errors
    /// `Corrupt`, naming the file; `Unsupported`, `Io`.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.check_files(progress)?;
        self.still()?.walk(PIECE_BYTES)
    }

    /// Checks that every file has the checksum in the manifest.
    pub(crate) fn check_files(&self, progress: Progress<'_>) -> Result<()> {
        let (mut done, total) = (0, self.manifest.info.bytes);
        self.check_names()?;
        let files = &self.manifest.files;
        let read = |file: &ManifestFile| match sum(&*self.disk, &file.name, false)? {
            (bytes, found) if found == file.crc => Ok(bytes),
            (_, found) => {
                let wanted = file.crc;
                let why = format!(
                    "its checksum is {found:08x}, and the manifest's is {wanted:08x}: the file was changed"
                );
                Err(self.refused(&file.name, &why))
            }
        };
        in_parallel(SUMS_AT_A_TIME, files, read, |bytes| {
            done += bytes;
            progress(done, total);
        })
    }

    /// The log in the backup, after checking that it agrees with the manifest.
    pub(crate) fn still(&self) -> Result<Still> {
        let still = Still::look(&self.disk)?;
        let BackupInfo { log_id, first, last, last_entry, .. } = self.manifest.info;
        let found = (still.identity.log, still.first, still.last, still.last_entry);
        if !still.identity.follows || found != (log_id, first, last, last_entry) {
            return Err(self.refused(MANIFEST_FILE, "it describes another log than the files hold"));
        }
        Ok(still)
    }

    /// Checks that exactly the files of the manifest are there, with their sizes.
    fn check_names(&self) -> Result<()> {
        let there: BTreeSet<String> = list(&*self.disk)?.into_iter().collect();
        for ManifestFile { name, bytes, .. } in &self.manifest.files {
            if !there.contains(name) {
                return Err(self.refused(name, "the file is missing"));
            }
            let path = self.disk.path().join(name);
            let found = self.disk.open(name, false).and_then(|file| file.len());
            let found = found.map_err(|e| Error::io("measure", &path, e))?;
            if found != *bytes {
                let why = format!(
                    "it has {found} bytes, and the manifest says {bytes}: it was truncated or changed"
                );
                return Err(self.refused(name, &why));
            }
        }
        let known = |name: &String| {
            name == MANIFEST_FILE || self.manifest.files.iter().any(|file| file.name == *name)
        };
        match there.iter().find(|name| !known(name)) {
            Some(name) => {
                let why = "the manifest does not name it. If it was added later, move it away: it is not part of the backup";
                Err(unsound(&self.disk.path().join(name), why))
            }
            None => Ok(()),
        }
    }

    fn refused(&self, name: &str, why: &str) -> Error {
        let why = format!("{why}. This backup is not used: use another copy of it, or another backup");
        unsound(&self.disk.path().join(name), &why)
    }
}

/// The error for a file that is not as it was sealed. The offset of the damage is unknown.
fn unsound(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: {why}", path.display()))
}

fn read_manifest(disk: &dyn Disk) -> Result<Manifest> {
    let path = disk.path().join(MANIFEST_FILE);
    let file = match disk.open(MANIFEST_FILE, false) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let dir = disk.path().display();
            let what = if list(disk)?.iter().any(|name| name == UNFINISHED_FILE) {
                format!(
                    "the backup at {dir} is not finished: it is still being made, or was interrupted. If it was interrupted, remove it and back up again"
                )
            } else if ClusterBackup::is_at(disk.path()) {
                format!(
                    "{dir} holds a backup of a cluster: those of its logs are in the folders below, such as default"
                )
            } else {
                format!("there is no backup at {dir}: {MANIFEST_FILE} is missing")
            };
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        Err(e) => return Err(Error::io("open", &path, e)),
    };
    let read = || {
        let bytes = file.len()?;
        if bytes > MANIFEST_BYTES_MAX {
            return Ok(None);
        }
        let mut text = vec![0; usize::try_from(bytes).unwrap_or(0)];
        file.read_at(0, &mut text)?;
        Ok(Some(text))
    };
    let text = read().map_err(|e| Error::io("read", &path, e))?;
    match text.map_or(Err(ManifestFault::Damaged("it is too long")), |text| Manifest::parse(&text)) {
        Ok(manifest) => Ok(manifest),
        Err(ManifestFault::Newer(format)) => {
            let what = format!(
                "{} is of format {format}, and this program reads formats up to {MANIFEST_FORMAT}: use a newer chiplog",
                path.display()
            );
            Err(Error::new(ErrorKind::Unsupported, what))
        }
        Err(ManifestFault::Damaged(why)) => {
            let why =
                format!("the manifest is damaged: {why}. Use another copy of the backup, or another backup");
            Err(unsound(&path, &why))
        }
    }
}

/// Returns the size and the checksum of a file; syncs it if `sync` is true.
fn sum(disk: &dyn Disk, name: &str, sync: bool) -> Result<(u64, u32)> {
    let path = disk.path().join(name);
    let sum = || {
        let file = disk.open(name, sync)?;
        let bytes = file.len()?;
        let (mut at, mut crc, mut piece) = (0, Crc::new(), vec![0; PIECE_BYTES]);
        while at < bytes {
            let n = usize::try_from(bytes - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            file.read_at(at, &mut piece[..n])?;
            crc = crc.add(&piece[..n]);
            at += n as u64;
        }
        if sync {
            file.sync()?;
        }
        Ok((bytes, crc.sum()))
    };
    sum().map_err(|e| Error::io("read", &path, e))
}

/// The next item of the feed. Retries, because files that the writer reuses meanwhile look damaged for a moment.
fn next(read_only: &ReadOnlyLog, feed: &mut FollowSource) -> Result<Option<FollowMessage>> {
    let mut looks = 0;
    loop {
        match feed.next(PIECE_BYTES) {
            Err(error) if looks == LOOKS_MAX || read_only.failure().is_some() => {
                return Err(read_only.failure().unwrap_or(error));
            }
            Err(_) => std::thread::sleep(PAUSE),
            fed => return fed,
        }
        looks += 1;
    }
}

fn last_entry(fed: &FollowMessage) -> Option<EntryIndex> {
    match fed {
        FollowMessage::State(state) => Some(state.raft()),
        FollowMessage::Entries(entries) => entries.last().map(crate::follower::message::FollowEntry::raft),
    }
}

/// Whether `name` is a file that was prepared for a log and not used yet.
fn is_spare(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|number| file_number(&format!("{number}.seg")).is_some())
}

/// Whether `name` can be a file of a log.
fn is_of_log(name: &str) -> bool {
    name == IDENTITY_FILE || is_spare(name) || file_number(name).is_some()
}

/// Removes the files of a log that was not completed; the identity file last, which is locked meanwhile.
pub(crate) fn remove_log(disk: &dyn Disk) -> Result<()> {
    let _lock = lock(disk)?;
    let names = list(disk)?;
    let mut parts = names.iter().filter(|name| is_of_log(name) && *name != IDENTITY_FILE);
    parts.try_for_each(|name| remove(disk, name))?;
    remove(disk, IDENTITY_FILE)
}

fn lock(disk: &dyn Disk) -> Result<Box<dyn Lock>> {
    lock_file(disk, IDENTITY_FILE)
}

fn lock_file(disk: &dyn Disk, name: &str) -> Result<Box<dyn Lock>> {
    disk.lock(name).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            let what =
                format!("{} is open, in this process or another one: close it first", disk.path().display());
            Error::new(ErrorKind::Locked, what)
        }
        _ => Error::io("lock", &disk.path().join(name), e),
    })
}

fn remove(disk: &dyn Disk, name: &str) -> Result<()> {
    disk.remove(name).map_err(|e| Error::io("remove", &disk.path().join(name), e))
}

pub(crate) fn list(disk: &dyn Disk) -> Result<Vec<String>> {
    disk.list().map_err(|e| Error::io("list", disk.path(), e))
}
