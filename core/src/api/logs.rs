//! Logs: many named logs in one directory, in a few groups. The logs of a group share its threads, its writes and its
//! syncs.
//!
//! ```text
//! dir/system/     the system log: the catalogue's records
//! dir/group-1/    named logs
//! dir/group-2/    named logs; further directories can have groups, too (directories.rs)
//! ```
//!
//! The system log is a log on its own, with small files: as one of a group's logs it would keep the group's oldest
//! segment for ever.
//!
//! Invariants:
//! - a name is in the catalogue before its log exists in a group; it leaves the catalogue before its log is dropped;
//! - a group opens its logs in the order of their numbers, because it opens none that is older than one it had;
//! - the catalogue is that of all records of the system log, also where a snapshot stands for those that are discarded;
//! - a log in a group that the catalogue does not have is dropped, once the catalogue's records prove that it never
//!   will have it.
//!
//! Must not know: blocks, segments.

pub(crate) mod directories;
mod directory_files;
mod groups;
mod names;
mod options;
pub(crate) mod snapshots;

pub use options::LogsOptions;

use crate::api::catalogue::{Catalogue, CatalogueEntry};
use crate::api::log::Log;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::read::view::Start;
use crate::record::batch::Batch;
use crate::replica::open::{disk_at, group_dir, open_named_dir, system_dir};
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::sync::completion::{Appended, Ticket};
use crate::sync::pause;
use crate::types::{Index, LogId, LogNumber, Timestamp};
use directories::GroupDirectories;
use options::SYSTEM_GROUP;
use snapshots::{SnapshotReaders, SnapshotSearch};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a majority may take to confirm that there is no log of a name.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a group may take to open, drop or seal logs, and the system log to store a record. A disk that hangs would hold the caller, and
/// the work for all other groups.
const GROUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The most logs that are opened in a group at once.
const OPENINGS_MAX: usize = 256;
/// How long a log is waited for that its group's leader has no room for.
const FULL_WAIT: Duration = Duration::from_secs(2);
/// How often it is tried meanwhile. Each attempt is an entry for up to [`OPENINGS_MAX`] logs, which the leader refuses.
const FULL_LOOK: Duration = Duration::from_millis(100);
/// How often [`Logs::find`] looks whether a log has been opened in its group.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// How long opening waits until this replica can read the catalogue, and how often it looks.
const CATALOGUE_WAIT: Duration = Duration::from_secs(10);
const CATALOGUE_LOOK: Duration = Duration::from_millis(10);

/// Many named logs in one directory. Each is a [`Log`]: its own indexes from 1, its own readers, sessions and discards.
/// Appends to all logs of a group are written and synced together, so thousands of logs cost little more than one.
///
/// Cheap to clone, `Send + Sync`. The logs are closed by [`Logs::close`], or when the last clone and the last handle of
/// a log are dropped.
///
/// ```
/// use chiplog::{Logs, LogsOptions, Start};
///
/// let dir = tempfile::tempdir()?;
/// let logs = Logs::open(dir.path(), LogsOptions::default())?;
/// let orders = logs.create("orders")?;
/// let users = logs.create("users")?;
/// assert_eq!(orders.append(b"3 lenses to Cambridge")?.get(), 1);
/// assert_eq!(users.append(b"isaac")?.get(), 1); // each log counts its own records
///
/// let mut reader = logs.get("orders")?.reader(Start::First)?;
/// while let Some(record) = reader.next_record()? {
///     println!("{}: {} bytes", record.index, record.data.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Logs {
    inner: Arc<Inner>,
}

struct Inner {
    system: Log,
    /// The groups of named logs that run here. Each handle is that of the group itself.
    groups: RwLock<BTreeMap<u32, Log>>,
    catalogue: Mutex<Catalogue>,
    /// The search for a snapshot while there is no whole one. Locked after the catalogue.
    search: Mutex<SnapshotSearch>,
    /// Whether the members of the system log can read snapshots.
    readers: Mutex<SnapshotReaders>,
    /// The logs that calls are creating now, in each group.
    reserved: Mutex<BTreeMap<u32, Arc<AtomicUsize>>>,
    /// The groups that may get new logs, and the most logs that each can hold. None: all that run here.
    ready: Mutex<Option<BTreeMap<u32, usize>>>,
    /// Held while a snapshot is written. The step that had no answer in time: none is begun before it has.
    shortening: Mutex<Option<Ticket<Index>>>,
    /// The last term of the system log in which the catalogue knew all that was acknowledged before. 0: none.
    current_in: AtomicU64,
}

/// The state of a named log, here or on a server: see [`Logs::list`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let logs = chiplog::Logs::open(dir.path(), chiplog::LogsOptions::default())?;
/// logs.create("orders")?.append(b"x")?;
/// let info = &logs.list()?[0];
/// assert_eq!((info.name.as_str(), info.last_index.get()), ("orders", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogInfo {
    /// Its name.
    pub name: String,
    /// Its number, which no other log of this directory ever had.
    pub number: LogNumber,
    /// Its permanent id.
    pub log_id: LogId,
    /// The group that holds it.
    pub group: u32,
    /// The first record that is not discarded.
    pub first_index: Index,
    /// The last committed record; `first_index - 1` if there is none.
    pub last_index: Index,
    /// Bytes of all batches that were ever appended to it.
    pub bytes_appended: u64,
    /// When it was last appended to; 0 if never.
    pub last_timestamp: Timestamp,
    /// Whether it takes no more appends.
    pub sealed: bool,
    /// Whether its group does not run here, so that nothing is known of its records: `first_index` is 1, the others are 0 or
    /// false. In a cluster a group can run on some of the servers only.
    pub elsewhere: bool,
}

impl Logs {
    /// Opens the logs in `dir`, or makes the directory if `options.options.create` is true. Blocks while recovery reads
    /// the last segment of each group.
    ///
    /// # Errors
    /// As [`Log::open`]. `InvalidArgument`: an option is out of bounds, or the directory holds one log on its own.
    /// `Diverged`: a group is in two directories, or in one of [`LogsOptions::directories`] that cannot be used now, such as
    /// that of a disk that is not mounted. `Unavailable`, after 10 s: the catalogue is not here yet; this replica was away for long, and
    /// gets it from the others.
    pub fn open(dir: impl AsRef<Path>, options: LogsOptions) -> Result<Self> {
        options.check()?;
        let dir = dir.as_ref();
        let create = options.options.create;
        let directories = GroupDirectories::new(dir, &options.directories)?;
        if let Some(fault) = directories.faults()?.into_iter().next() {
            return Err(fault.error);
        }
        open_named_dir(dir, create)?;
        let system = disk_at(&system_dir(dir), create)?;
        Self::open_with(system, &options, || {
            let last = directories.groups()?.last().copied().unwrap_or(1);
            let wanted = if create { options.groups } else { 0 };
            // Groups that are there, and those that are to be added.
            let disk = |group| match directories.find(group)? {
                Some(path) => disk_at(&path, create),
                None if group <= wanted => disk_at(&directories.place(group)?, true),
                None => disk_at(&group_dir(dir, group), false), // an error, unless it is empty
            };
            (1..=last.max(wanted)).map(disk).collect()
        })
    }

    /// As [`Logs::open`], with a disk for the catalogue and one for each group.
    ///
    /// # Errors
    /// As [`Logs::open`].
    pub fn open_on(system: Arc<dyn Disk>, groups: Vec<Arc<dyn Disk>>, options: LogsOptions) -> Result<Self> {
        options.check()?;
        if groups.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "named logs need a disk for one group at least",
            ));
        }
        Self::open_with(system, &options, || Ok(groups))
    }

    /// Opens the system log, and then the groups from 1 on, whose disks are determined under the lock of the system log.
    fn open_with(
        system: Arc<dyn Disk>,
        options: &LogsOptions,
        groups: impl FnOnce() -> Result<Vec<Arc<dyn Disk>>>,
    ) -> Result<Self> {
        let logs = Self::of(Log::open_on(system, options.of_group(SYSTEM_GROUP))?);
        logs.await_catalogue()?;
        for (disk, number) in groups()?.into_iter().zip(1..) {
            logs.add_group(number, Log::open_on(disk, options.of_group(number))?)?;
        }
        match logs.drop_deleted(&BTreeSet::new()) {
            // A replica that waits for the catalogue. The leaders of the groups do it.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::debug!(%error, "no catalogue yet")
            }
            dropped => dropped?,
        }
        Ok(logs)
    }

    /// Waits until this replica can read the catalogue. One that was away may have got a part of a snapshot.
    fn await_catalogue(&self) -> Result<()> {
        let begun = pause::now();
        loop {
            match self.catalogue().map(drop) {
                Err(error) if error.kind() == ErrorKind::Unavailable && begun.elapsed() < CATALOGUE_WAIT => {
                    pause::sleep(CATALOGUE_LOOK);
                }
                read => return read,
            }
        }
    }

    /// The named logs of a system log that runs already, still without groups. For a program that opens the system log
    /// and the groups one by one, such as a server whose groups join their clusters at different times. It calls
    /// [`Logs::add_group`] for each group, and [`Logs::settle`] from time to time: another replica's calls can leave
    /// work for this one.
    ///
    /// ```
    /// use chiplog::{Log, Logs, LogsOptions};
    /// let dir = tempfile::tempdir()?;
    /// let options = LogsOptions::default();
    /// let open = |number| Log::open(Logs::group_path(dir.path(), number), options.of_group(number));
    /// let logs = Logs::of(open(0)?);
    /// logs.add_group(1, open(1)?)?;
    /// logs.create("orders")?.append(b"x")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(system: Log) -> Self {
        system.logs().hold_catalogue();
        Self {
            inner: Arc::new(Inner {
                system,
                groups: RwLock::default(),
                catalogue: Mutex::default(),
                search: Mutex::default(),
                readers: Mutex::default(),
                reserved: Mutex::default(),
                ready: Mutex::default(),
                shortening: Mutex::default(),
                current_in: AtomicU64::new(0),
            }),
        }
    }

    /// The directory of a group in a directory of named logs; 0 is that of the system log.
    pub fn group_path(dir: impl AsRef<Path>, group: u32) -> PathBuf {
        match group {
            SYSTEM_GROUP => system_dir(dir.as_ref()),
            _ => group_dir(dir.as_ref(), group),
        }
    }

    /// The catalogue, as of the last record that is committed here.
    fn catalogue(&self) -> Result<MutexGuard<'_, Catalogue>> {
        let system = &self.inner.system;
        system.check_fork()?;
        let mut catalogue = self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        if system.last_index() < catalogue.next() {
            return Ok(catalogue);
        }
        // Every other record would be missing: it starts over before that, and after a discard meanwhile.
        let mut search = self.inner.search.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if catalogue.next() < system.first_index() {
                let mut read = self.read_snapshot(&mut search)?;
                read.remember(&catalogue);
                *catalogue = read;
            }
            match self.read_on(&mut catalogue) {
                Err(error) if error.kind() == ErrorKind::Discarded => {}
                read => return read.map(|()| catalogue),
            }
        }
    }

    /// Applies the records that the catalogue lacks.
    fn read_on(&self, catalogue: &mut Catalogue) -> Result<()> {
        let mut reader = self.inner.system.reader(Start::Index(catalogue.next()))?;
        while let Some(record) = reader.next_record()? {
            catalogue.apply(snapshots::parsed(&record)?);
        }
        Ok(())
    }

    /// The handle of a log that the catalogue has. It can be missing in its group: after a crash, or at a replica that
    /// has not heard of it yet.
    fn open_entry(&self, entry: &CatalogueEntry) -> Result<Log> {
        let group = self.group(entry.group)?;
        if group.logs().get(entry.number).is_none() {
            self.open_up_to(&group, entry.group, entry.number)?;
        }
        group.of_log(entry.number, entry.id)
    }

    /// Opens a log in its group, and before it all older ones that are missing there: after a newer one they could not
    /// be opened any more.
    fn open_up_to(&self, group: &Log, number: u32, upto: LogNumber) -> Result<()> {
        self.open_until(group, number, upto, pause::now() + GROUP_TIMEOUT)
    }

    /// As [`Self::open_up_to`], with another time limit for the openings.
    fn open_until(&self, group: &Log, number: u32, upto: LogNumber, deadline: Instant) -> Result<()> {
        let opened = group.logs().opened();
        let missing = self.catalogue()?.missing(number, opened, upto);
        missing.chunks(OPENINGS_MAX).try_fold(opened, |after, logs| open_in(group, after, logs, deadline))?;
        // Another program can have deleted one meanwhile, and found nothing to drop.
        let mut deleted = self.catalogue()?.deleted_in(number);
        deleted.retain(|log| missing.contains(log) || *log == upto);
        deleted.into_iter().try_for_each(|log| drop_in(group, log))
    }

    /// Does what calls at other replicas have left to this one: opens the logs that are missing in the groups that it
    /// leads, and drops the deleted ones there. Blocks until that is durable; costs little if there is nothing to do. A
    /// group whose work fails, or takes longer than 5 s, keeps it for a later call.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn settle(&self) -> Result<()> {
        self.may_wait()?;
        let mut hanging = BTreeSet::new();
        for (number, group) in self.groups() {
            let settled = self.note_group(number, &group).and_then(|()| {
                let newest = self.catalogue()?.newest(number);
                let behind = newest > group.logs().opened() && group.replica_leads();
                if behind { self.open_up_to(&group, number, newest) } else { Ok(()) }
            });
            if let Err(error) = settled {
                tracing::warn!(group = number, %error, "a group could not follow the catalogue; it is tried again");
                hanging.extend((error.kind() == ErrorKind::Timeout).then_some(number));
            }
        }
        self.keep_system_short();
        self.drop_deleted(&hanging)
    }

    /// The handle of a log, if it is known here and open. Reads nothing, and waits for no more than a thread that applies new
    /// records of the catalogue: a log that was created a moment ago can be missing. See [`Logs::find`].
    pub fn peek(&self, name: &str) -> Option<Log> {
        let entry = self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()?;
        self.running(entry.group)?.of_log(entry.number, entry.id).ok()
    }

    /// Returns the handle of an existing log, and is certain: in a cluster a majority confirms that this replica knows
    /// all logs that were created before the call, and it waits until the log is open in its group. Blocks up to
    /// `timeout`, or a second longer if the disk of the system log hangs.
    ///
    /// # Errors
    /// `NotFound`: there is no log of this name, or it is not the one with the id that is given. `NotLeader`: the log's group
    /// runs on other servers. `Unavailable`: no majority answered, or the group does not run here yet. `Timeout`: the log was not
    /// opened in its group. `Full`: the group has no room for it, nor has another leader within two seconds. Those of reading the system log.
    pub fn find(&self, name: &str, id: Option<LogId>, timeout: Duration) -> Result<Log> {
        let deadline = pause::now() + timeout;
        let is_meant = |entry: &CatalogueEntry| id == Some(entry.id);
        if !self.catalogue()?.get(name).is_some_and(is_meant) {
            self.inner.system.barrier(timeout)?;
        }
        let give_up = pause::now() + FULL_WAIT.min(timeout);
        loop {
            let entry = meant(name, self.entry(name)?, id)?; // again each time: it can be deleted meanwhile
            let group = self.group(entry.group)?;
            if group.logs().get(entry.number).is_none() && group.replica_leads() {
                match self.open_until(&group, entry.group, entry.number, deadline) {
                    // The next leader opens it. One without room transfers leadership.
                    Err(error) if is_for_later(&error) => {}
                    Err(error)
                        if error.kind() == ErrorKind::Full
                            && group.status().replica.voters().len() > 1
                            && pause::now() < give_up =>
                    {
                        pause::sleep(FULL_LOOK);
                    }
                    opened => opened?,
                }
            }
            match group.of_log(entry.number, entry.id) {
                Err(error) if error.kind() == ErrorKind::NotFound && pause::now() < deadline => {
                    pause::sleep(LOOK_INTERVAL);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let what = format!(
                        "log {name:?} exists, but was not open in group {} after {timeout:?}: the group has no leader, or \
                         this replica does not hear from it",
                        entry.group
                    );
                    return Err(Error::new(ErrorKind::Timeout, what));
                }
                found => return found,
            }
        }
    }

    /// Returns the handle of an existing log.
    ///
    /// # Errors
    /// `NotFound`: there is no log of this name, as far as is known here. `Unavailable`, `NotLeader`: the log was just
    /// created, and this replica has not heard of it. `Timeout`: it was just created, and its group did not open it within 5 s.
    pub fn get(&self, name: &str) -> Result<Log> {
        let entry = self.entry(name)?;
        self.open_entry(&entry)
    }

    fn entry(&self, name: &str) -> Result<CatalogueEntry> {
        let found = self.catalogue()?.get(name).copied();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no log {name:?}")))
    }

    /// The group of a log, as far as the catalogue is known here. `None`: there is no such log.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn group_of(&self, name: &str) -> Result<Option<u32>> {
        Ok(self.catalogue()?.get(name).map(|entry| entry.group))
    }

    /// Seals a log: it takes no more appends, its records stay. Blocks until that is durable.
    ///
    /// # Errors
    /// `NotFound`. `InvalidArgument`: in a callback on a thread of a group. `Unavailable`, `Timeout`: no majority confirms which log
    /// has the name. `Timeout`: the group did not answer within 5 s, and may still seal it. Those of [`Log::append`]; it is safe to retry.
    pub fn seal(&self, name: &str) -> Result<()> {
        self.seal_log(name, None)
    }

    /// As [`Logs::seal`], if the name is that of the log with this id.
    ///
    /// # Errors
    /// As [`Logs::seal`]. `NotFound`, too, if the name is that of another log.
    pub fn seal_log(&self, name: &str, id: Option<LogId>) -> Result<()> {
        self.may_wait()?;
        let CatalogueEntry { number, group, .. } = self.entry_confirmed(name, id)?;
        let seal = Command::Log(LogCommand::Seal { log: number });
        answered(&self.group(group)?, seal).map(drop)
    }

    /// Appends a batch to each of several logs of one group, all of them or none, and blocks until that is durable. They
    /// are in one block: no crash and no copy of the group separates them. Readers of two of the logs can see one batch a moment
    /// before the other. Returns the indexes of each batch.
    ///
    /// ```
    /// # use chiplog::{BatchBuilder, Logs, LogsOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let logs = Logs::open(dir.path(), LogsOptions::default())?;
    /// let from = logs.create("account-1")?;
    /// let to = logs.create_beside("account-2", "account-1")?;
    /// let withdraw = BatchBuilder::new().push(b"-5")?.build()?;
    /// let deposit = BatchBuilder::new().push(b"+5")?.build()?;
    /// let appended = logs.append_together(&[(&from, &withdraw), (&to, &deposit)])?;
    /// assert_eq!(appended.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the logs are of different groups, see [`Logs::create_beside`], or not of these logs; a batch
    /// belongs to a session; or called in a callback on the group's own thread. `TooLarge`: they do not fit into one
    /// block. `NotFound`, `Sealed`: one of the logs takes no appends; nothing was appended to any. Those of
    /// [`Log::append`].
    pub fn append_together(&self, appends: &[(&Log, &Batch)]) -> Result<Vec<Appended>> {
        if let Some((log, _)) = appends.first() {
            log.may_wait()?;
        }
        self.submit_together(appends)?.into_iter().map(|ticket| ticket.wait()).collect()
    }

    /// As [`Logs::append_together`], but returns at once with a ticket for each batch, in the same order. All tickets have the
    /// same outcome, at the same time. Blocks only while the group's queue is full or one of the logs has used up its
    /// `append_bytes_per_second`, for up to `options.queue_timeout`; in a callback of the group it never blocks.
    ///
    /// ```
    /// # use chiplog::{BatchBuilder, Logs, LogsOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let logs = Logs::open(dir.path(), LogsOptions::default())?;
    /// # let from = logs.create("account-1")?;
    /// # let to = logs.create_beside("account-2", "account-1")?;
    /// # let batch = BatchBuilder::new().push(b"5")?.build()?;
    /// let tickets = logs.submit_together(&[(&from, &batch), (&to, &batch)])?;
    /// for ticket in tickets {
    ///     ticket.wait()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the logs are of different groups, or not of these logs; a batch belongs to a session. `TooLarge`: they
    /// do not fit into one block. Those of [`Log::submit`]. Nothing was accepted. The tickets return what a ticket of
    /// [`Log::submit`] does; `NotFound`, `Sealed`: one of the logs takes no appends, and nothing was appended to any.
    pub fn submit_together(&self, appends: &[(&Log, &Batch)]) -> Result<Vec<Ticket>> {
        self.check_are_here(appends)?;
        Log::submit_together(appends, false)
    }

    /// As [`Logs::submit_together`], but never blocks.
    ///
    /// # Errors
    /// As [`Logs::submit_together`]; `Busy` when the queue is full or one of the logs has used up its rate.
    pub fn try_submit_together(&self, appends: &[(&Log, &Batch)]) -> Result<Vec<Ticket>> {
        self.check_are_here(appends)?;
        Log::submit_together(appends, true)
    }

    /// As [`Logs::submit_together`], but waits for room in the queue without blocking the thread, and without a time-out. For
    /// async code, which has its own timers. If the future is dropped before it is ready, nothing was submitted.
    ///
    /// ```
    /// # use chiplog::{BatchBuilder, Logs, LogsOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let logs = Logs::open(dir.path(), LogsOptions::default())?;
    /// # let from = logs.create("account-1")?;
    /// # let to = logs.create_beside("account-2", "account-1")?;
    /// # let batch = BatchBuilder::new().push(b"5")?.build()?;
    /// # fn block_on<F: Future>(f: F) -> F::Output {
    /// #     let mut f = std::pin::pin!(f);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop { if let std::task::Poll::Ready(r) = f.as_mut().poll(&mut context) { return r } }
    /// # }
    /// let tickets = block_on(logs.submit_together_when_room(&[(&from, &batch), (&to, &batch)]))?;
    /// for ticket in tickets {
    ///     assert_eq!(block_on(ticket)?.first.get(), 1);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Logs::submit_together`], but `Busy` only if one of the logs has used up its rate.
    pub async fn submit_together_when_room(&self, appends: &[(&Log, &Batch)]) -> Result<Vec<Ticket>> {
        self.check_are_here(appends)?;
        Log::submit_together_when_room(appends).await
    }

    fn check_are_here(&self, appends: &[(&Log, &Batch)]) -> Result<()> {
        appends.iter().try_for_each(|(log, _)| self.check_is_here(log))
    }

    /// All logs, by name, as far as they are committed here.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn list(&self) -> Result<Vec<LogInfo>> {
        self.list_after("", "", usize::MAX)
    }

    /// Up to `limit` logs, by name, as far as they are committed here: those whose names begin with `prefix` and come after
    /// the name `after`.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn list_after(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<LogInfo>> {
        let catalogue = self.catalogue()?;
        let groups = self.groups();
        let page = catalogue.after(prefix, after).take(limit);
        Ok(page.map(|(name, entry)| info(name, entry, groups.get(&entry.group))).collect())
    }

    /// The state of one log, as far as it is committed here.
    ///
    /// # Errors
    /// `NotFound`. Those of reading the system log.
    pub fn info(&self, name: &str) -> Result<LogInfo> {
        let entry = self.entry(name)?;
        Ok(info(name, &entry, self.running(entry.group).as_ref()))
    }

    /// The system log, which is group 0: for its members and its leader in a cluster. Its records are the catalogue: append
    /// none, and discard none.
    pub fn system(&self) -> &Log {
        &self.inner.system
    }

    /// Closes all groups, as [`Log::close`] closes a log. Blocks until that is done, except in a callback on a thread of a
    /// group: there it happens after the callback.
    ///
    /// # Errors
    /// As [`Log::close`]: the first error; all groups are closed.
    pub fn close(&self) -> Result<()> {
        // Callbacks of two groups that waited for each other's threads would wait for ever.
        let close = if self.may_wait().is_ok() { Log::close } else { Log::begin_close };
        let closed: Vec<Result<()>> = self.groups().values().chain([&self.inner.system]).map(close).collect();
        closed.into_iter().collect()
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").field("groups", &self.groups()).finish()
    }
}

fn info(name: &str, entry: &CatalogueEntry, group: Option<&Log>) -> LogInfo {
    let state = group.and_then(|group| group.logs().get(entry.number));
    let next = state.map_or(Index(1), |state| state.next);
    LogInfo {
        name: name.to_owned(),
        number: entry.number,
        log_id: entry.id,
        group: entry.group,
        first_index: state.map_or(Index(1), |state| state.first),
        last_index: next.previous(),
        bytes_appended: state.map_or(0, |state| state.bytes),
        last_timestamp: state.map_or(Timestamp(0), |state| state.last_timestamp),
        sealed: state.is_some_and(|state| state.sealed),
        elsewhere: group.is_none(),
    }
}

/// Whether the logs of a group can be opened a moment later, perhaps by its next leader.
fn is_for_later(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Unavailable | ErrorKind::Busy)
}

/// Opens logs in their group that are not there, in this order, behind the log `after`: few writes and syncs carry them all. Returns
/// the last one. After an error the first of them may be open, and the others are not; after `Timeout` they may still be opened.
fn open_in(group: &Log, after: LogNumber, logs: &[LogNumber], deadline: Instant) -> Result<LogNumber> {
    group.may_wait()?;
    let mut last = after;
    let mut open = |log: LogNumber| {
        let after = std::mem::replace(&mut last, log);
        group.submit_command(Command::OpenAfter { log, after })
    };
    let opening = logs.iter().map(|log| open(*log)).collect::<Result<Vec<_>>>()?;
    for ticket in opening {
        match ticket.wait_timeout(deadline.saturating_duration_since(pause::now())) {
            // Another program has opened it, or a later one, meanwhile; or it was dropped.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => drop(opened?),
        }
    }
    Ok(last)
}

/// Checks that an entry is that of the log with this id, if one is given.
fn meant(name: &str, entry: CatalogueEntry, id: Option<LogId>) -> Result<CatalogueEntry> {
    if id.is_none_or(|id| id == entry.id) {
        return Ok(entry);
    }
    let what = format!("the log that is meant was deleted; another log is called {name:?} now");
    Err(Error::new(ErrorKind::NotFound, what))
}

/// Has a log that is not open in a group, and was deleted, never be opened there. A group with a full table does so, too.
fn pass_over_in(group: &Log, log: LogNumber) -> Result<()> {
    match answered(group, Command::PassOver { log }) {
        // A later log was opened meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        passed => passed.map(drop),
    }
}

fn drop_in(group: &Log, log: LogNumber) -> Result<()> {
    answered(group, Command::Log(LogCommand::Drop { log })).map(drop)
}

/// Carries out a command in a group.
///
/// # Errors
/// `Timeout`: its disk hangs, and the command may still be carried out. Those of the command.
fn answered(group: &Log, command: Command) -> Result<Index> {
    group.may_wait()?;
    group.submit_command(command)?.wait_timeout(GROUP_TIMEOUT)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod hanging {
    use super::Logs;
    use crate::api::catalogue::CatalogueRecord;
    use crate::types::LogId;
    use std::sync::mpsc::{Sender, channel};

    /// Has the system log answer nothing until the sender is dropped, as if its disk hung. It gets one more record, which changes nothing.
    pub(super) fn hang(logs: &Logs) -> Sender<()> {
        let (goes_on, goes) = channel::<()>();
        let (told, hangs) = channel();
        let record = CatalogueRecord::Group { group: 1, id: LogId(1) }.encode();
        logs.system().submit(&record[..]).unwrap().on_complete(move |_| {
            told.send(()).unwrap();
            let _ = goes.recv();
        });
        hangs.recv().unwrap();
        goes_on
    }
}
