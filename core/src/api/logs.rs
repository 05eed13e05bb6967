//! Logs: many named logs in one directory, in a few groups. The logs of a group share its threads, its writes and its
//! syncs.
//!
//! ```text
//! dir/system/     the system log: the catalogue's records
//! dir/group-1/    named logs
//! dir/group-2/    named logs
//! ```
//!
//! The system log is a log on its own, with small files: as one of a group's logs it would keep the group's oldest
//! segment for ever.
//!
//! Invariants:
//! - a name is in the catalogue before its log exists in a group; it leaves the catalogue before its log is dropped;
//! - a group opens its logs in the order of their numbers, because it opens none that is older than one it had;
//! - a log in a group that the catalogue does not have is dropped, once the catalogue's records prove that it never
//!   will have it.
//!
//! Must not know: blocks, segments.

use crate::api::catalogue::{Catalogue, CatalogueEntry, CatalogueRecord, check_name};
use crate::api::log::Log;
use crate::cluster::options::ClusterOptions;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::read::reader::Start;
use crate::record::batch::Batch;
use crate::replica::open::{disk_at, group_dir, open_named_dir, system_dir};
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::sync::completion::Appended;
use crate::types::{Index, LogId, LogNumber, Timestamp};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How many named logs are kept: in how many groups, and with which options.
///
/// ```
/// use chiplog::{LogsOptions, Options};
/// let options = LogsOptions::default().groups(4).options(Options::with_segment_bytes(16 << 20));
/// assert_eq!(options.groups, 4);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct LogsOptions {
    /// The number of groups, from 1 to 1024. A group has two or three threads and one sync at a time. Opening a
    /// directory with a larger number adds groups; a smaller one leaves all there are. Default 2.
    pub groups: u32,
    /// The options of each group. Retention by size or age is set for single logs, not here. Each segment begins with a
    /// table of the group's logs: with segments below 8 MiB, lower `sessions_max` to make room for it.
    pub options: Options,
    /// Makes each group a replica of a cluster: called with the group's number. Group 0 is that of the catalogue; named
    /// logs are in groups from 1. Each group needs a transport of its own.
    pub cluster: Option<Arc<dyn Fn(u32) -> ClusterOptions + Send + Sync>>,
}

/// The group of the system log.
const SYSTEM_GROUP: u32 = 0;
/// The most groups.
const GROUPS_MAX: u32 = 1024;
/// The size of the system log's segments.
const SYSTEM_SEGMENT_BYTES: u32 = 1 << 20;
/// How long a majority may take to confirm that there is no log of a name.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// How often [`Logs::find`] looks whether a log has been opened in its group.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

impl Default for LogsOptions {
    fn default() -> Self {
        Self { groups: 2, options: Options::default(), cluster: None }
    }
}

impl fmt::Debug for LogsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, options, cluster } = self;
        f.debug_struct("LogsOptions")
            .field("groups", groups)
            .field("options", options)
            .field("cluster", &cluster.is_some())
            .finish()
    }
}

impl LogsOptions {
    /// Sets [`Self::groups`].
    #[must_use]
    pub fn groups(mut self, groups: u32) -> Self {
        self.groups = groups;
        self
    }

    /// Sets [`Self::options`].
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets [`Self::cluster`].
    #[must_use]
    pub fn cluster(mut self, cluster: impl Fn(u32) -> ClusterOptions + Send + Sync + 'static) -> Self {
        self.cluster = Some(Arc::new(cluster));
        self
    }

    fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if !(1..=GROUPS_MAX).contains(&self.groups) {
            return invalid(format!("option groups is {}; it has to be from 1 to {GROUPS_MAX}", self.groups));
        }
        if self.options.cluster.is_some() {
            return invalid(
                "each group needs options of a cluster of its own: set LogsOptions::cluster".into(),
            );
        }
        if self.options.retention_bytes.is_some() || self.options.retention_age.is_some() {
            return invalid(
                "retention_bytes and retention_age are of a log on its own: discard records of each named log".into(),
            );
        }
        if self.options.logs_max() == 0 {
            return invalid(format!(
                "segments of {} bytes have no room for a table of logs beside {} sessions: raise segment_bytes, or \
                 lower sessions_max",
                self.options.segment_bytes, self.options.sessions_max
            ));
        }
        self.options.check()
    }

    /// The options with which a group is opened; 0 is that of the system log, whose records are small and few. For a
    /// program that opens the groups itself: see [`Logs::of`].
    pub fn of_group(&self, group: u32) -> Options {
        if group == SYSTEM_GROUP {
            return self.of_system();
        }
        Options { cluster: self.cluster.as_ref().map(|cluster| cluster(group)), ..self.options.clone() }
    }

    fn of_system(&self) -> Options {
        let Options { create, read_mode, queue_timeout, .. } = self.options;
        let (clock, cluster) =
            (self.options.clock.clone(), self.cluster.as_ref().map(|cluster| cluster(SYSTEM_GROUP)));
        Options {
            create,
            read_mode,
            queue_timeout,
            clock,
            cluster,
            ..Options::with_segment_bytes(SYSTEM_SEGMENT_BYTES)
        }
    }
}

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
    /// The logs that calls are creating now, in each group.
    reserved: Mutex<BTreeMap<u32, usize>>,
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
}

impl Logs {
    /// Opens the logs in `dir`, or makes the directory if `options.options.create` is true. Blocks while recovery reads
    /// the last segment of each group.
    ///
    /// # Errors
    /// As [`Log::open`]. `InvalidArgument`: an option is out of bounds, or the directory holds one log on its own.
    pub fn open(dir: impl AsRef<Path>, options: LogsOptions) -> Result<Self> {
        options.check()?;
        let dir = dir.as_ref();
        let create = options.options.create;
        open_named_dir(dir, create)?;
        let system = disk_at(&system_dir(dir), create)?;
        let mut disks = Vec::new();
        // Groups that are there, then those that are to be added.
        for group in 1..=GROUPS_MAX {
            match disk_at(&group_dir(dir, group), create && group <= options.groups) {
                Ok(disk) => disks.push(disk),
                Err(error) if error.kind() == ErrorKind::NotFound && group > 1 => break,
                Err(error) => return Err(error),
            }
        }
        Self::open_on(system, disks, options)
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
        let logs = Self::of(Log::open_on(system, options.of_group(SYSTEM_GROUP))?);
        for (disk, number) in groups.into_iter().zip(1..) {
            logs.add_group(number, Log::open_on(disk, options.of_group(number))?)?;
        }
        logs.drop_deleted()?;
        Ok(logs)
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
                reserved: Mutex::default(),
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

    /// Adds a group that runs here, from 1 on. Notes it in the catalogue if that is new, and if this replica leads the
    /// system log.
    ///
    /// # Errors
    /// `InvalidArgument`: it holds one log on its own, or the number is out of bounds. `AlreadyExists`: there is a group of
    /// this number. `Diverged`: the catalogue knows another directory by this number. Those of [`Log::append`].
    pub fn add_group(&self, number: u32, group: Log) -> Result<()> {
        let system = &self.inner.system;
        if !(1..=GROUPS_MAX).contains(&number) {
            let what = format!("group {number}: groups of named logs have numbers from 1 to {GROUPS_MAX}");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if group.last_index() > Index(0) && !group.logs().is_shared() {
            let what = format!("{} holds one log on its own, and no named logs", group.path().display());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        group.logs().reserve();
        self.note_group(number, &group)?;
        let mut groups = self.inner.groups.write().unwrap_or_else(PoisonError::into_inner);
        if groups.contains_key(&number) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("group {number} runs here already")));
        }
        groups.insert(number, group);
        tracing::debug!(group = number, of = %system.path().display(), "a group of named logs was added");
        Ok(())
    }

    /// Checks that a group is the one that the catalogue knows, and notes it if it is new and this replica leads.
    fn note_group(&self, number: u32, group: &Log) -> Result<()> {
        match self.group_id(number)? {
            Some(known) => is_known(number, known, group),
            None if self.inner.system.replica_leads() => self.register_group(number, group),
            None => Ok(()),
        }
    }

    /// Notes a new group in the catalogue, before it is added: of two that are made at the same time the first counts. In
    /// a cluster the leader of group 0 accepts this.
    ///
    /// # Errors
    /// `Diverged`: the catalogue knows another directory by this number, or the group has logs of another catalogue. Those
    /// of [`Log::append`].
    pub fn register_group(&self, number: u32, group: &Log) -> Result<()> {
        if !group.logs().opened().is_none() {
            let what = format!(
                "{} has named logs, but the catalogue does not know the group: it is of another catalogue, or the \
                 directory of the catalogue was lost or is on a disk that is not mounted",
                group.path().display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let record = CatalogueRecord::Group { group: number, id: group.log_id() };
        self.inner.system.append(&record.encode()[..])?;
        self.group_id(number)?.map_or(Ok(()), |known| is_known(number, known, group))
    }

    /// The permanent id of a group's own log, as far as the catalogue is known here. `None`: there is no such group yet.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn group_id(&self, number: u32) -> Result<Option<LogId>> {
        Ok(self.catalogue()?.group(number))
    }

    /// A group that runs here.
    fn group(&self, number: u32) -> Result<Log> {
        let groups = self.inner.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(&number).cloned().ok_or_else(|| {
            let what = format!(
                "group {number} does not run here yet: {} do. If that lasts, was its directory removed?",
                groups.len()
            );
            Error::new(ErrorKind::Unavailable, what)
        })
    }

    /// The catalogue, as of the last record that is committed here.
    fn catalogue(&self) -> Result<MutexGuard<'_, Catalogue>> {
        let system = &self.inner.system;
        system.check_fork()?;
        let mut catalogue = self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        if system.last_index() < catalogue.next() {
            return Ok(catalogue);
        }
        let mut reader = system.reader(Start::Index(catalogue.next()))?;
        while let Some(record) = reader.next_record()? {
            let parsed = CatalogueRecord::parse(record.data).map_err(|why| {
                Error::new(ErrorKind::Corrupt, format!("record {} of the system log: {why}", record.index))
            })?;
            catalogue.apply(parsed);
        }
        Ok(catalogue)
    }

    /// Creates a log. Blocks until that is durable. In a cluster the leaders of group 0 and of the log's group accept
    /// this.
    ///
    /// # Errors
    /// `AlreadyExists`. `InvalidArgument`: the name is not allowed. `Full`: the group has no room for more logs. Those of
    /// [`Log::append`]; it is safe to retry, and a log that was created is then reported as existing.
    pub fn create(&self, name: &str) -> Result<Log> {
        self.create_in(name, None)
    }

    /// As [`Logs::create`], in the group of another log: so that both can be appended to together.
    ///
    /// # Errors
    /// As [`Logs::create`]. `NotFound`: the other log does not exist.
    pub fn create_beside(&self, name: &str, other: &str) -> Result<Log> {
        self.create_in(name, Some(other))
    }

    fn create_in(&self, name: &str, beside: Option<&str>) -> Result<Log> {
        let entry = self.add_entry(name, beside)?;
        self.open_entry(&entry)
    }

    /// The first half of [`Logs::create`]: the log is in the catalogue, and the leader of its group opens it with the
    /// next [`Logs::settle`]. For a cluster in which another replica leads the group; [`Logs::find`] waits until it is
    /// open. In a cluster the leader of group 0 accepts this. Returns the log's id.
    ///
    /// # Errors
    /// As [`Logs::create`].
    pub fn register(&self, name: &str) -> Result<LogId> {
        self.add_entry(name, None).map(|entry| entry.id)
    }

    /// As [`Logs::register`], in the group of another log.
    ///
    /// # Errors
    /// As [`Logs::create_beside`].
    pub fn register_beside(&self, name: &str, other: &str) -> Result<LogId> {
        self.add_entry(name, Some(other)).map(|entry| entry.id)
    }

    fn add_entry(&self, name: &str, beside: Option<&str>) -> Result<CatalogueEntry> {
        check_new_name(name)?;
        self.may_wait()?;
        self.check_leads()?;
        self.drop_deleted()?;
        let group =
            beside.map(|other| self.entry_confirmed(other, None)).transpose()?.map(|entry| entry.group);
        let system = &self.inner.system;
        let exists = || Error::new(ErrorKind::AlreadyExists, format!("log {name:?} exists already"));
        if self.catalogue()?.get(name).is_some() {
            match self.entry_confirmed(name, None) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => return found.and(Err(exists())),
            }
        }
        let group = {
            let catalogue = self.catalogue()?;
            let groups = self.groups();
            let fewest = || groups.into_keys().min_by_key(|group| catalogue.logs_in(*group)).unwrap_or(1);
            group.unwrap_or_else(fewest)
        };
        let _place = self.reserve(group)?;
        self.note_group(group, &self.group(group)?)?; // a group is in the catalogue before its logs
        let id = system.random_id()?;
        let index =
            system.append(&CatalogueRecord::Create { name: name.to_owned(), id, group }.encode()[..])?;
        let catalogue = self.catalogue()?;
        debug_assert!(catalogue.next() > index, "an acknowledged record can be read");
        catalogue.get(name).copied().filter(|entry| entry.id == id).ok_or_else(exists)
    }

    /// Checks that this replica leads the system log: only then its catalogue decides.
    ///
    /// # Errors
    /// `NotLeader`.
    fn check_leads(&self) -> Result<()> {
        if self.inner.system.replica_leads() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotLeader,
            "another replica leads the system log, which has the names of logs",
        ))
    }

    /// Checks that this thread may wait for all groups: nothing is half done because it may not.
    ///
    /// # Errors
    /// `InvalidArgument`: this is the writer thread of one.
    fn may_wait(&self) -> Result<()> {
        self.groups().values().chain([&self.inner.system]).try_for_each(Log::may_wait)
    }

    /// Reserves a place for one more log in a group, before the catalogue names it. Other calls create logs meanwhile.
    fn reserve(&self, number: u32) -> Result<Reserved<'_>> {
        let group = self
            .group(number)
            .map_err(|error| Error::new(ErrorKind::Busy, format!("{error}; try again later")))?;
        let mut reserved = self.inner.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let others = reserved.entry(number).or_default();
        let count = group.logs().len().max(self.catalogue()?.logs_in(number)) + *others;
        if count < group.logs_max() {
            *others += 1;
            return Ok(Reserved { places: &self.inner.reserved, group: number });
        }
        let what = format!(
            "group {number} has {count} logs, and its segments have room for no more: delete some, or open the \
             directory with more groups"
        );
        Err(Error::new(ErrorKind::Full, what))
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
        let missing = self.catalogue()?.missing(number, group.logs().opened(), upto);
        missing.iter().try_for_each(|log| open_in(group, *log))?;
        // Another program can have deleted one meanwhile, and found nothing to drop.
        let deleted = self.catalogue()?.deleted();
        for (_, log) in
            deleted.into_iter().filter(|(of, log)| *of == number && (missing.contains(log) || *log == upto))
        {
            drop_in(group, log)?;
        }
        Ok(())
    }

    /// Does what calls at other replicas have left to this one: opens the logs that are missing in the groups that it
    /// leads, and drops the deleted ones there. Blocks until that is durable; costs little if there is nothing to do. A
    /// group whose work fails keeps it for a later call.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn settle(&self) -> Result<()> {
        self.may_wait()?;
        for (number, group) in self.groups() {
            let settled = self.note_group(number, &group).and_then(|()| {
                let newest = self.catalogue()?.newest(number);
                let behind = newest > group.logs().opened() && group.replica_leads();
                if behind { self.open_up_to(&group, number, newest) } else { Ok(()) }
            });
            if let Err(error) = settled {
                tracing::warn!(group = number, %error, "a group could not follow the catalogue; it is tried again");
            }
        }
        self.drop_deleted()
    }

    /// The handle of a log, if it is known here and open. Reads nothing, and waits for no more than a thread that applies new
    /// records of the catalogue: a log that was created a moment ago can be missing. See [`Logs::find`].
    pub fn peek(&self, name: &str) -> Option<Log> {
        let entry = self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()?;
        self.group(entry.group).ok()?.of_log(entry.number, entry.id).ok()
    }

    /// Returns the handle of an existing log, and is certain: in a cluster a majority confirms that this replica knows
    /// all logs that were created before the call, and it waits until the log is open in its group. Blocks up to
    /// `timeout`.
    ///
    /// # Errors
    /// `NotFound`: there is no log of this name, or it is not the one with the id that is given. `Unavailable`: no majority
    /// answered, or the log's group does not run here. `Timeout`: the log was not opened in its group. Those of reading the
    /// system log.
    pub fn find(&self, name: &str, id: Option<LogId>, timeout: Duration) -> Result<Log> {
        let deadline = Instant::now() + timeout;
        let is_meant = |entry: &CatalogueEntry| id == Some(entry.id);
        if !self.catalogue()?.get(name).is_some_and(is_meant) {
            self.inner.system.barrier(timeout)?;
        }
        loop {
            let entry = meant(name, self.entry(name)?, id)?; // again each time: it can be deleted meanwhile
            let group = self.group(entry.group)?;
            if group.logs().get(entry.number).is_none() && group.replica_leads() {
                self.open_up_to(&group, entry.group, entry.number)?;
            }
            match group.of_log(entry.number, entry.id) {
                Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_INTERVAL);
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
    /// created, and this replica has not heard of it.
    pub fn get(&self, name: &str) -> Result<Log> {
        let entry = self.entry(name)?;
        self.open_entry(&entry)
    }

    fn entry(&self, name: &str) -> Result<CatalogueEntry> {
        let found = self.catalogue()?.get(name).copied();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no log {name:?}")))
    }

    /// Deletes a log with all its records. Blocks until that is durable. Its handles get `NotFound` from then on, and so do
    /// its readers behind the last record; what they hold stays valid. The name can be created again: that is another log, with another number.
    ///
    /// # Errors
    /// `NotFound`. Those of [`Log::append`]; it is safe to retry.
    pub fn delete(&self, name: &str) -> Result<()> {
        let CatalogueEntry { number, id, group, .. } = self.remove_entry(name, None)?;
        match drop_in(&self.group(group)?, number) {
            // It is deleted. The leader of its group drops its records.
            Err(error) if error.kind() == ErrorKind::NotLeader => self.await_dropped(id, CONFIRM_TIMEOUT),
            dropped => dropped,
        }
    }

    /// The first half of [`Logs::delete`]: the name is gone, and the leader of the log's group drops its records with the
    /// next [`Logs::settle`]. In a cluster the leader of group 0 accepts this. Returns the log's id.
    ///
    /// # Errors
    /// As [`Logs::delete`]. `NotFound`, too, if `id` is given and the name is that of another log now.
    pub fn unregister(&self, name: &str, id: Option<LogId>) -> Result<LogId> {
        self.remove_entry(name, id).map(|entry| entry.id)
    }

    /// The entry of a name. A majority confirms it, or that there is none, unless it is that of the log with this id: a
    /// new leader can lack the newest records until its first one is committed, and know an older log of this name.
    fn entry_confirmed(&self, name: &str, id: Option<LogId>) -> Result<CatalogueEntry> {
        match self.entry(name) {
            Ok(entry) if id == Some(entry.id) => return Ok(entry),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => self.inner.system.barrier(CONFIRM_TIMEOUT)?,
        };
        self.entry(name).and_then(|entry| meant(name, entry, id))
    }

    /// Waits until a deleted log is gone from its group: no append to it is acknowledged from then on. Returns at once if
    /// there is no such log: it is gone, or was never deleted. Blocks for up to `timeout`.
    ///
    /// # Errors
    /// `Timeout`: its group has no leader, or this replica does not hear from it. `Unavailable`: the group does not run
    /// here. Those of reading the system log.
    pub fn await_dropped(&self, id: LogId, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let place = self.catalogue()?.deleted_log(id);
            let Some((number, log)) = place else { return Ok(()) };
            self.group(number)?;
            self.drop_deleted()?;
            if self.catalogue()?.deleted_log(id).is_none() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let what = format!(
                    "log {log} is deleted, but was not dropped in group {number} within {timeout:?}: the group has no \
                     leader, or this replica does not hear from it"
                );
                return Err(Error::new(ErrorKind::Timeout, what));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Whether a log was deleted and may still be in its group.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn is_being_dropped(&self, id: LogId) -> Result<bool> {
        Ok(self.catalogue()?.deleted_log(id).is_some())
    }

    fn remove_entry(&self, name: &str, id: Option<LogId>) -> Result<CatalogueEntry> {
        self.may_wait()?;
        self.check_leads()?;
        let entry = self.entry_confirmed(name, id)?;
        let CatalogueEntry { number, id, .. } = entry;
        self.inner.system.append(&CatalogueRecord::Delete { number, id }.encode()[..])?;
        Ok(entry)
    }

    /// Seals a log: it takes no more appends, its records stay. Blocks until that is durable.
    ///
    /// # Errors
    /// `NotFound`. Those of [`Log::append`]; it is safe to retry.
    pub fn seal(&self, name: &str) -> Result<()> {
        self.seal_log(name, None)
    }

    /// As [`Logs::seal`], if the name is that of the log with this id.
    ///
    /// # Errors
    /// As [`Logs::seal`]. `NotFound`, too, if the name is that of another log.
    pub fn seal_log(&self, name: &str, id: Option<LogId>) -> Result<()> {
        let CatalogueEntry { number, group, .. } = meant(name, self.entry(name)?, id)?;
        let seal = Command::Log(LogCommand::Seal { log: number });
        self.group(group)?.command(seal).map(drop)
    }

    /// Appends a batch to each of several logs of one group, all of them or none, and blocks until that is durable. They
    /// are in one block: no crash and no reader of the group separates them. Returns the indexes of each batch.
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
    /// `InvalidArgument`: the logs are of different groups, see [`Logs::create_beside`]; a batch belongs to a session; or
    /// called in a callback on the group's own thread. `TooLarge`: they do not fit into one block. `NotFound`, `Sealed`:
    /// one of the logs takes no appends; nothing was appended to any. Those of [`Log::append`].
    pub fn append_together(&self, appends: &[(&Log, &Batch)]) -> Result<Vec<Appended>> {
        if let Some((log, _)) = appends.first() {
            log.may_wait()?;
        }
        Log::submit_together(appends)?.into_iter().map(|ticket| ticket.wait()).collect()
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
        Ok(info(name, &entry, self.group(entry.group).ok().as_ref()))
    }

    /// Drops the logs in groups that a delete left there: it was interrupted between its two steps, or the group had its
    /// leader elsewhere. A group that cannot drop its logs now keeps them until a later call.
    fn drop_deleted(&self) -> Result<()> {
        let deleted = self.catalogue()?.deleted();
        for (number, log) in deleted {
            let Ok(group) = self.group(number) else { continue };
            let is_there = group.logs().get(log).is_some();
            // One that was never opened is opened first: from then on it cannot be opened any more.
            if (is_there || log > group.logs().opened()) && group.replica_leads() {
                let older = LogNumber(log.0.saturating_sub(1));
                let open = || self.open_up_to(&group, number, older).and_then(|()| open_in(&group, log));
                let dropped = if is_there { Ok(()) } else { open() }.and_then(|()| drop_in(&group, log));
                if let Err(error) = dropped {
                    tracing::warn!(group = number, %log, %error, "a deleted log could not be dropped; it is tried again");
                }
            }
            if group.logs().get(log).is_none() && log <= group.logs().opened() {
                self.catalogue()?.forget(number, log); // no older log can be opened any more
            }
        }
        Ok(())
    }

    /// The groups that run here, by number: for the status, the members and the leader of each. Appends and readers need
    /// one of the named logs.
    pub fn groups(&self) -> BTreeMap<u32, Log> {
        self.inner.groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The system log, which is group 0: for its members and its leader in a cluster. Its records are the catalogue: append
    /// none, and discard none.
    pub fn system(&self) -> &Log {
        &self.inner.system
    }

    /// Closes all groups, as [`Log::close`] closes a log.
    ///
    /// # Errors
    /// As [`Log::close`]: the first error; all groups are closed.
    pub fn close(&self) -> Result<()> {
        let closed: Vec<Result<()>> =
            self.groups().values().chain([&self.inner.system]).map(Log::close).collect();
        closed.into_iter().collect()
    }
}

/// A place in a group for a log that is being created.
struct Reserved<'a> {
    places: &'a Mutex<BTreeMap<u32, usize>>,
    group: u32,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = places.get_mut(&self.group) {
            *count -= 1;
        }
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").field("groups", &self.groups()).finish()
    }
}

/// Checks that a group has the id that the catalogue knows.
fn is_known(number: u32, known: LogId, group: &Log) -> Result<()> {
    if known == group.log_id() {
        return Ok(());
    }
    let what = format!(
        "{} is not the directory that the catalogue knows as group {number}: it was removed, replaced, or is on a disk \
         that is not mounted; put the right one in its place",
        group.path().display()
    );
    Err(Error::new(ErrorKind::Diverged, what))
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
    }
}

/// Checks the name of a log that is to be created.
fn check_new_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.starts_with('_') {
        let what =
            format!("names that begin with '_' are kept for chiplog's own logs: call it other than {name:?}");
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// Opens a log in its group, if it is not there.
fn open_in(group: &Log, log: LogNumber) -> Result<()> {
    match group.command(Command::Log(LogCommand::Open { log, start: Index(1) })) {
        // Another program has opened it, or a later one, meanwhile; or it was dropped.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop),
    }
}

/// Checks that an entry is that of the log with this id, if one is given.
fn meant(name: &str, entry: CatalogueEntry, id: Option<LogId>) -> Result<CatalogueEntry> {
    if id.is_none_or(|id| id == entry.id) {
        return Ok(entry);
    }
    let what = format!("the log that is meant was deleted; another log is called {name:?} now");
    Err(Error::new(ErrorKind::NotFound, what))
}

fn drop_in(group: &Log, log: LogNumber) -> Result<()> {
    group.command(Command::Log(LogCommand::Drop { log })).map(drop)
}
