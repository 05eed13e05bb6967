//! Groups: the named logs of a server, below its data directory. Each group, and the system log, is a replica of its own:
//! its members follow those of the default log.
//!
//! ```text
//! data/                the default log: its members are the servers of the cluster
//! data/named/system/   the catalogue
//! data/named/group-1/  named logs; with `group_directories` a new group goes to one of these instead
//! data/named/group-2.moved-1/  being removed: the group was moved to other servers
//! data/chiplog.named   whether there was a system log here (`marker.rs`)
//! ```
//!
//! - The first server of a new cluster makes the system log, before another server can join. So does a server that is its
//!   cluster alone, at a start with `groups`, if the cluster never had named logs; in a cluster of several it is the leader of
//!   the default log, if no server has a system log. The leader of the system log makes the groups, and adds some later, if
//!   it is configured with more. They get logs once they have their replicas.
//! - The leader of a group asks each server of the cluster that is no member of the group yet to make an empty replica,
//!   over the listener for peers, and adds it. It removes members that are no servers of the cluster any more. With
//!   `group_replicas`, only the servers count on which the catalogue places the group (`placement.rs`).
//! - Of an object store alone `chiplog restore` makes such directories, with the system log and all groups. Their server opens them
//!   like any: it is the only voter. `stored.rs` keeps what is needed for that.
//! - The leader of a group transfers its leadership to the voter whose turn it is, so that the groups' leaders are spread
//!   evenly.
//!
//! Invariants:
//! - A system log is made by a server that is its cluster alone, before clients and other servers can change the members, or
//!   by one that every member has let (`late.rs`). Nothing in their directories may tell of an earlier one.
//! - A group's directory is renamed only if the catalogue knows another log by its number. A call of another server is no
//!   reason. It is removed only if the group was moved to other servers (`elsewhere.rs`).
//!
//! Must not know: services, clients.

mod catalogue;
mod directories;
mod elsewhere;
mod late;
mod marker;
mod members;
mod placement;
mod readiness;
mod stored;
mod storing;
#[cfg(test)]
mod tests;
mod votes;

use super::config::Config;
use super::objects::warn_without_store;
use crate::connect::directory;
use catalogue::Confirmations;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::internal::GroupDirectories;
use chiplog::vault::Vault;
use chiplog::{DirectoryId, Error, ErrorKind, Log, LogId, LogNumber, Logs, LogsOptions, NodeId, Term};
use chiplog_net::peer::{GROUPS_MAX, Hosting, PeerTransport};
use chiplog_net::served::elsewhere::GroupView;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::wire::address::Address;
use late::is_alone;
use marker::Marker;
use placement::Failures;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use storing::Marks;
use tokio::sync::{Notify, Semaphore, watch};
use votes::Waits;

/// The directory of the named logs, below the server's data directory.
pub(super) const NAMED: &str = "named";
/// The number of the system log among the groups.
const SYSTEM: u32 = 0;
/// How often the members of the groups are compared with those of the default log.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long the thread that follows the catalogue waits for its next record.
const CATALOGUE_WAIT: Duration = Duration::from_millis(200);
/// How long a group that could not be opened, or that this server does not have, is left alone.
const OPEN_AGAIN: Duration = Duration::from_secs(30);
/// Why a cluster of one server makes no groups.
const ALONE: &str =
    "this server has no system log: restart it with `groups` while it is the only server of its cluster";
/// How long the members of a group may differ from those of the cluster before that is a warning.
const PATIENCE: Duration = Duration::from_secs(10);
/// The limit of changes of a group's members before the other groups have their turn.
const CHANGES_MAX: usize = 8;
/// The limit of questions to other servers about groups at a time; more wait. A server answers as many, of all other
/// servers together.
const QUESTIONS_MAX: usize = 64;
/// The time limit of a server's answer to a request to host a replica.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);

/// A piece of work that can fail, for its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Make,
    Open,
    /// Reading the directories of groups.
    Directories,
    Catalogue,
    Place,
    Members,
    /// Getting the system log from another server.
    Wait,
    /// Storing the list of the cluster's logs.
    Store,
}

impl Task {
    /// How long it may fail before that is a warning.
    fn patience(self) -> Duration {
        match self {
            Self::Place | Self::Members | Self::Wait | Self::Store => PATIENCE,
            Self::Make | Self::Open | Self::Directories | Self::Catalogue => Duration::ZERO,
        }
    }
}

/// The last report about a piece of work that fails.
struct Report {
    since: Instant,
    what: String,
    is_warning: bool,
}

/// When a group is tried again whose disk has no more room than before.
const ROOM_AGAIN: Duration = Duration::from_secs(600);

/// A group that could not be made for lack of room.
struct Unmade {
    at: Instant,
    error: Error,
    /// The bytes that were free on its disk then.
    free: u64,
}

impl Unmade {
    /// Whether another attempt would fail like this one: each attempt is a warning in the log. `segment`: the size of a file.
    fn is_still(&self, free: u64, segment: u64) -> bool {
        let since = self.at.elapsed();
        // Files that give way may have come meanwhile: cached objects, sorted copies.
        (free < segment && since < ROOM_AGAIN)
            || (since < OPEN_AGAIN && free < self.free.saturating_add(segment))
    }
}

/// The groups of a server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Groups {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    /// The object store of all groups.
    vault: Option<Arc<dyn Vault>>,
    /// All groups have clones of these options, and so share the helper threads.
    shared: LogsOptions,
    directories: GroupDirectories,
    address: String,
    transport: Arc<PeerTransport>,
    slot: Arc<LogSlot>,
    /// Held while replicas are opened or made, and while one is taken from those that are served.
    opening: Mutex<()>,
    /// The groups whose replicas here are being closed, or their files removed.
    leaving: Mutex<BTreeSet<u32>>,
    /// Notified when the system log is served.
    serves: Notify,
    /// This process makes the system log, which is still missing.
    founds: AtomicBool,
    /// Why it makes none.
    refusal: Mutex<Option<String>>,
    /// Since when the voter whose turn it is could lead a group.
    steady: Mutex<BTreeMap<u32, Instant>>,
    /// When a server did not answer a request for a replica.
    unanswered: Mutex<BTreeMap<NodeId, Instant>>,
    /// Since when nothing is heard of a member of a group that this server leads.
    silent: Mutex<BTreeMap<(u32, NodeId), Instant>>,
    /// The votes that the groups await which this server leads.
    awaited: Mutex<Waits>,
    /// The entries that the members have of the groups which this server leads.
    marks: Mutex<Marks>,
    /// When the server of a silent member was asked last whether it has the member's directory.
    asked_lost: Mutex<BTreeMap<(u32, NodeId), Instant>>,
    /// The last report about each piece of work on a group.
    reported: Mutex<BTreeMap<(u32, Task), Report>>,
    /// Whether this server leads the system log, and the object store does not have the list of the cluster's logs.
    has_unstored_list: Arc<AtomicBool>,
    /// When a group could not be opened, or was not here.
    unopened: Mutex<BTreeMap<u32, Instant>>,
    /// The groups that could not be made for lack of room.
    unmade: Mutex<BTreeMap<u32, Unmade>>,
    /// When a group was last found ready for new logs, and the most logs that it can hold. `None`: no leader of it answered.
    ready: Mutex<BTreeMap<u32, (Instant, Option<usize>)>>,
    /// The group that was moved last to make the servers more even.
    moving: Mutex<Option<u32>>,
    /// When the leader of a group that was moved away was asked whether it does without this server.
    asked: Mutex<BTreeMap<u32, Instant>>,
    /// How often each group's leader was told which directory its replica here has.
    hosted: Mutex<BTreeMap<u32, u64>>,
    /// The barriers of the system log here.
    confirmations: Mutex<Confirmations>,
    /// The servers that failed to host groups, as the leaders of those told the leader of the system log.
    failures: Mutex<Failures>,
    /// Places for questions to other servers about groups.
    questions: Semaphore,
}

impl Groups {
    /// The groups of this server, none of them open. Other servers can ask for replicas from now on.
    ///
    /// # Errors
    /// A directory is listed for groups that cannot be used and never was.
    pub(super) fn new(
        config: Config,
        vault: Option<Arc<dyn Vault>>,
        address: &Address,
        transport: Arc<PeerTransport>,
        slot: Arc<LogSlot>,
    ) -> chiplog::Result<Self> {
        let groups = Self::over(config, vault, address.to_string(), transport.clone(), slot)?;
        groups.check_directories()?;
        match Marker::read(&groups.inner.config.data)? {
            Marker::Had => groups.inner.slot.set_had_named(),
            // The leader of the default log makes a system log, or has made one.
            Marker::Let(_) => groups.inner.slot.expect_named(),
            Marker::Nothing | Marker::Joined if groups.inner.config.groups > 0 => {
                groups.inner.slot.expect_named();
            }
            Marker::Nothing | Marker::Joined => {}
        }
        let hosting = Arc::downgrade(&groups.inner);
        transport.on_host(Box::new(Hosted(hosting)));
        groups.inner.slot.set_groups_wanted(groups.inner.config.groups);
        let elsewhere = Arc::downgrade(&groups.inner);
        groups.inner.slot.ask_elsewhere(Box::new(move |asked| {
            Ok(Self { inner: running(&elsewhere)? }.views_elsewhere(asked))
        }));
        Ok(groups)
    }

    /// As [`Self::new`], but requests of other servers are not answered yet.
    fn over(
        config: Config,
        vault: Option<Arc<dyn Vault>>,
        address: String,
        transport: Arc<PeerTransport>,
        slot: Arc<LogSlot>,
    ) -> chiplog::Result<Self> {
        let directories = GroupDirectories::new(config.data.join(NAMED), &config.group_directories)?;
        let (groups, disks) = (config.groups, config.group_directories.len());
        if (groups as usize) < disks {
            tracing::warn!(
                groups,
                disks,
                "group_directories has more directories than there are groups: some stay empty"
            );
        }
        let inner = Inner {
            config,
            vault,
            shared: LogsOptions::default(),
            directories,
            address,
            transport,
            slot,
            opening: Mutex::default(),
            leaving: Mutex::default(),
            serves: Notify::new(),
            founds: AtomicBool::new(false),
            refusal: Mutex::default(),
            steady: Mutex::default(),
            unanswered: Mutex::default(),
            silent: Mutex::default(),
            awaited: Mutex::default(),
            marks: Mutex::default(),
            asked_lost: Mutex::default(),
            reported: Mutex::default(),
            has_unstored_list: Arc::default(),
            unopened: Mutex::default(),
            unmade: Mutex::default(),
            ready: Mutex::default(),
            moving: Mutex::default(),
            asked: Mutex::default(),
            hosted: Mutex::default(),
            confirmations: Mutex::default(),
            failures: Mutex::default(),
            questions: Semaphore::new(QUESTIONS_MAX),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens the replicas that are there, or makes the system log that a cluster of this server alone never had. Blocks
    /// during recovery, and before the system log is made until this server leads the default log. Called before the
    /// default log is served, so that its members stay. A replica that cannot be opened is reported: the default log and
    /// the other groups do without it.
    pub(super) fn open(&self, default: &Log) {
        let _one = self.opening();
        self.remove_moved();
        self.report_directories();
        self.open_system();
        self.open_known();
        if self.inner.config.groups > 0
            && self.inner.slot.named().is_none()
            && !self.inner.founds.load(Ordering::Relaxed)
            && is_alone(default)
        {
            self.begin_late(default);
        }
    }

    /// Opens the system log that is there. Called under the lock.
    fn open_system(&self) {
        if self.inner.slot.named().is_none() && directory::is_log(&self.path(SYSTEM)) {
            let opened = self.start(SYSTEM, Bootstrap::Existing).and_then(|log| self.serve(SYSTEM, &log));
            if let Err(error) = opened {
                self.report(SYSTEM, Task::Open, &format!("the system log cannot be opened: {error}"));
            }
        }
    }

    /// Makes the system log of a new cluster, before its first server answers: another one can join at once, and then no
    /// server is certain that it alone makes the system log. A failure is reported, and tried again while this process
    /// runs and the server is alone.
    pub(super) fn begin(&self) {
        let _one = self.opening();
        if self.inner.config.groups == 0 || self.inner.slot.named().is_some() {
            return;
        }
        self.inner.founds.store(true, Ordering::Relaxed);
        if let Err(error) = self.make_system() {
            self.report(SYSTEM, Task::Make, &format!("the system log cannot be made: {error}"));
        }
    }

    /// Makes the system log of a new cluster. Called under the lock.
    fn make_system(&self) -> chiplog::Result<()> {
        for group in 1..=GROUPS_MAX {
            let Some(path) = self.find(group)? else { continue };
            let what = format!(
                "{} is of an earlier catalogue, whose directory is missing in {}: put that back, or move the groups away",
                path.display(),
                self.inner.config.data.join(NAMED).display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let system = self.start(SYSTEM, Bootstrap::Init)?;
        self.serve(SYSTEM, &system)?;
        self.inner.founds.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the replicas that are there, are groups in the catalogue, and are not open. A directory that the catalogue
    /// does not know yet waits: it is of a group that was being made, or the catalogue is behind.
    fn open_known(&self) {
        let Some(logs) = self.inner.slot.named() else { return };
        let open = logs.groups();
        let closed = (1..=GROUPS_MAX).filter(|group| !open.contains_key(group) && !self.is_leaving(*group));
        for group in closed {
            let mut unopened = self.inner.unopened.lock().unwrap_or_else(PoisonError::into_inner);
            if unopened.get(&group).is_some_and(|failed| failed.elapsed() < OPEN_AGAIN) {
                continue;
            }
            let opened = logs.group_id(group).and_then(|id| match id {
                Some(id) => match self.start_existing(group, id)? {
                    Some(log) => self.serve(group, &log).map(|()| true),
                    None => Ok(false),
                },
                None => Ok(true),
            });
            match opened {
                Ok(is_done) => {
                    unopened.remove(&group);
                    if !is_done {
                        unopened.insert(group, Instant::now());
                    }
                    self.report(group, Task::Open, "");
                }
                Err(error) => {
                    if error.kind() != ErrorKind::Unavailable {
                        unopened.insert(group, Instant::now()); // else it only waits for the catalogue
                    }
                    self.report(group, Task::Open, &format!("it cannot be opened: {error}"));
                }
            }
        }
    }

    /// Renames the directory of a group that the catalogue does not have: this server was making it when another one made
    /// the group of this number.
    fn set_aside(&self, group: u32, path: &Path, why: &str) -> chiplog::Result<()> {
        let aside = (1..).map(|n| path.with_extension(format!("unused-{n}"))).find(|aside| !aside.exists());
        let Some(aside) = aside else { return Ok(()) };
        std::fs::rename(path, &aside).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot rename {} to {}: {e}", path.display(), aside.display()))
        })?;
        tracing::warn!(
            group = %label(group),
            path = %aside.display(),
            why,
            "the directory of a group was renamed"
        );
        Ok(())
    }

    /// Follows the catalogue and the members of the default log, until the server ends. A server without named logs waits
    /// without waking up.
    pub(super) fn run(self, mut ending: watch::Receiver<bool>) {
        tokio::spawn(async move {
            if self.inner.config.groups == 0 && self.inner.slot.named().is_none() {
                tokio::select! {
                    () = self.inner.serves.notified() => {}
                    _ = ending.wait_for(|ending| *ending) => return,
                }
            }
            self.clone().start_following(ending.clone());
            tokio::spawn(self.clone().keep_stored(ending.clone()));
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_INTERVAL) => {}
                    _ = ending.wait_for(|ending| *ending) => return,
                }
                let groups = self.clone();
                let _ = tokio::task::spawn_blocking(move || groups.look()).await;
            }
        });
    }

    fn start_following(self, until: watch::Receiver<bool>) {
        let follow = move || {
            // An error: the server was dropped.
            while until.has_changed().is_ok() && !*until.borrow() {
                self.follow_catalogue();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("chiplog-groups".into()).spawn(follow) {
            tracing::error!(%error, "no thread for the groups: named logs are created with delay or not at all");
        }
    }

    /// The replicas that are open: the system log, then the groups.
    pub(super) fn replicas(&self) -> Vec<Log> {
        let logs = self.inner.slot.named();
        logs.map(|logs| std::iter::once(logs.system().clone()).chain(logs.groups().into_values()).collect())
            .unwrap_or_default()
    }

    fn opening(&self) -> MutexGuard<'_, ()> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a replica. Called under the lock.
    fn start(&self, group: u32, bootstrap: Bootstrap) -> chiplog::Result<Log> {
        let Inner { config, shared, address, transport, .. } = &*self.inner;
        let transport = transport.group(group + 1);
        let is_new = !matches!(bootstrap, Bootstrap::Existing);
        let mut options = config
            .groups_options(shared, bootstrap, transport.clone(), address.clone())
            .map_err(|failure| Error::new(ErrorKind::InvalidArgument, failure.to_string()))?;
        options.options.vault = self.inner.vault.clone();
        let directory = self.directory(group)?;
        let options = options.of_group(group);
        let segment = u64::from(options.segment_bytes);
        let open = || Log::open(&directory, options);
        let log = match is_new {
            true => self.with_room(group, &directory, segment, open)?,
            false => open()?,
        };
        warn_without_store(&log, self.inner.vault.is_some());
        if self.inner.slot.is_draining() {
            log.close()?; // the shutdown does not wait for a replica that is being opened
            return Err(Error::new(ErrorKind::Unavailable, "this server is shutting down"));
        }
        transport.identify(log.log_id(), log.directory_id());
        Ok(log)
    }

    /// Makes a replica in a directory, unless an earlier attempt found no room for it, and there is no more room now.
    fn with_room(
        &self,
        group: u32,
        directory: &Path,
        segment: u64,
        open: impl FnOnce() -> chiplog::Result<Log>,
    ) -> chiplog::Result<Log> {
        let lock = || self.inner.unmade.lock().unwrap_or_else(PoisonError::into_inner);
        let free = free_bytes(directory);
        if let Some(unmade) = lock().get(&group).filter(|unmade| unmade.is_still(free, segment)) {
            return Err(unmade.error.clone());
        }
        let opened = open();
        match &opened {
            Err(error) if error.kind() == ErrorKind::Full => {
                let unmade = Unmade { at: Instant::now(), error: error.clone(), free: free_bytes(directory) };
                lock().insert(group, unmade);
            }
            _ => _ = lock().remove(&group),
        }
        opened
    }

    /// Serves a replica from now on. Called under the lock.
    fn serve(&self, group: u32, log: &Log) -> chiplog::Result<()> {
        match self.inner.slot.named() {
            None => {
                self.mark()?;
                let logs = Logs::of(log.clone());
                logs.set_ready_groups(BTreeMap::new()); // until a look finds which are
                self.inner.slot.open_named(logs);
                self.inner.serves.notify_one();
            }
            Some(logs) => logs.add_group(group, log.clone())?,
        }
        tracing::info!(group = %label(group), path = %log.path().display(), "opened a group of named logs");
        if group == SYSTEM && self.inner.config.groups == 0 {
            tracing::warn!(
                "this cluster has named logs, and `groups` is 0 here: set it as on the other servers"
            );
        }
        Ok(())
    }

    /// Opens the replica that is there, if it is of this log; renames its directory otherwise.
    fn start_existing(&self, group: u32, wanted: LogId) -> chiplog::Result<Option<Log>> {
        let Some(path) = self.find(group)? else { return Ok(None) };
        let log = self.start(group, Bootstrap::Existing)?;
        if log.log_id() == wanted {
            return Ok(Some(log));
        }
        let here = log.log_id().get();
        log.close()?;
        drop(log);
        if group == SYSTEM {
            // Nothing says which of the two is right, and this one can have the only catalogue.
            let wanted = wanted.get();
            let what = format!(
                "{} has system log {here:032x}, and log {wanted:032x} is wanted: move the directory elsewhere if it is \
                 of another cluster",
                path.display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        self.set_aside(group, &path, "the catalogue has another group of this number")?;
        Ok(None)
    }

    /// Makes an empty replica of a group for its leader, or returns the one that is there.
    ///
    /// # Errors
    /// `Unavailable`: an earlier one is being closed; or this server is shutting down, or does not know the group yet. `Diverged`: the group
    /// has another log here. Those of [`Log::open`].
    fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        let _one = self.opening();
        let slot = &self.inner.slot;
        if slot.is_draining() {
            return Err(Error::new(ErrorKind::Unavailable, "this server is shutting down"));
        }
        let there = match (slot.named(), group) {
            (None, SYSTEM) => None,
            (None, _) => {
                let what = "this server has no replica of the system log yet; it has to be added there first";
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
            (Some(logs), SYSTEM) => Some(logs.system().clone()),
            (Some(logs), group) => match logs.groups().remove(&group) {
                // It was removed while this server was down, and takes no part any more. Its leader wants a new one.
                Some(removed) if removed.role() == Role::Removed => {
                    self.close_apart(logs, group, &removed, move |groups, removed| {
                        let _one = groups.opening();
                        let why = "the group does without the replica in this directory";
                        groups.set_aside(group, removed.path(), why)
                    })?;
                    return Err(still_here(group));
                }
                None if self.is_leaving(group) => return Err(still_here(group)),
                there => there,
            },
        };
        let replica = match there {
            Some(replica) if replica.log_id() == log => replica,
            Some(replica) => {
                let (ours, asked) = (replica.log_id().get(), log.get());
                let what =
                    format!("group {group} of this server has log {ours:032x}, and not log {asked:032x}");
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            None => {
                self.check_known(group, log)?;
                if group == SYSTEM {
                    self.mark()?; // this cluster has a system log, even if making the replica fails
                }
                // One that is there can be of this group: its leader asked before, and was interrupted.
                let replica = match self.start_existing(group, log)? {
                    Some(replica) => replica,
                    None => self.start(group, Bootstrap::Join(log))?,
                };
                self.serve(group, &replica)?;
                replica
            }
        };
        *self.inner.hosted.lock().unwrap_or_else(PoisonError::into_inner).entry(group).or_default() += 1;
        Ok(replica.directory_id())
    }

    /// How often the leader of a group was told which directory its replica here has: it may have added that since it was seen last.
    fn hosted(&self, group: u32) -> u64 {
        self.inner
            .hosted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&group)
            .copied()
            .unwrap_or_default()
    }

    /// Checks that the catalogue has this log by the number of the group. A directory that is there is set aside for
    /// another log, and no caller is believed that it is another one.
    fn check_known(&self, group: u32, log: LogId) -> chiplog::Result<()> {
        let Some(logs) = self.inner.slot.named() else { return Ok(()) }; // the system log itself
        match logs.group_id(group)? {
            Some(known) if known == log => Ok(()),
            Some(known) => {
                let (known, asked) = (known.get(), log.get());
                let what =
                    format!("the catalogue has log {known:032x} as group {group}, and not log {asked:032x}");
                Err(Error::new(ErrorKind::Diverged, what))
            }
            None => {
                let what = format!("the catalogue of this server has no group {group} yet; it is behind");
                Err(Error::new(ErrorKind::Unavailable, what))
            }
        }
    }

    /// Waits a little for the catalogue's next record, then does what it asks this server for.
    fn follow_catalogue(&self) {
        let Some(logs) = self.inner.slot.named() else { return std::thread::sleep(CATALOGUE_WAIT) };
        let next = logs.system().last_index().next();
        let waited = logs.system().wait_for(next, CATALOGUE_WAIT);
        if waited.is_err_and(|error| error.kind() != ErrorKind::Timeout) {
            std::thread::sleep(CATALOGUE_WAIT); // it is closed or poisoned
        }
        let failed = logs.settle().err().map(|error| format!("the catalogue cannot be followed: {error}"));
        self.report(SYSTEM, Task::Catalogue, &failed.unwrap_or_default());
    }

    /// Makes groups that are missing, and compares the members of each group that this server leads.
    fn look(&self) {
        let Some(default) = self.inner.slot.opened() else { return };
        if self.inner.slot.is_draining() {
            return;
        }
        match self.make_missing(default) {
            Ok(()) => self.report(SYSTEM, Task::Make, ""),
            Err(error) => self.report(SYSTEM, Task::Make, &unmade(&error)),
        }
        let Some(logs) = self.inner.slot.named() else { return };
        let servers = default.status().replica;
        if servers.members.is_empty() || servers.role == Role::Repairing {
            return;
        }
        match self.place_groups(logs, default) {
            Ok(()) => self.report(SYSTEM, Task::Place, ""),
            Err(error) => self.report(SYSTEM, Task::Place, &format!("groups cannot be placed: {error}")),
        }
        self.leave_moved(logs);
        self.forget_deleted(logs);
        for (group, replica) in std::iter::once((SYSTEM, logs.system().clone())).chain(logs.groups()) {
            if replica.role() != Role::Leader {
                self.forget_members(group);
                continue;
            }
            if group != SYSTEM && self.lacks_catalogue(logs) && self.hand_over_for_catalogue(group, &replica)
            {
                continue;
            }
            // A new server is added and gets its vote in one look.
            let mut changed = self.follow_members(group, &replica, default, &servers.members);
            for _ in 1..CHANGES_MAX {
                if !matches!(changed, Ok(true)) || replica.role() != Role::Leader {
                    break;
                }
                changed = self.follow_members(group, &replica, default, &servers.members);
            }
            let failure = changed.as_ref().err().map_or_else(String::new, ToString::to_string);
            self.report(group, Task::Members, &failure);
            // A member that cannot follow does not keep the leadership where it is.
            if !changed.unwrap_or(false) {
                self.even_leaders(group, &replica);
            }
        }
        self.lacks_catalogue(logs); // also here without a group that this server leads: others ask for it
        self.look_ready(logs, default);
    }

    /// Forgets what this server saw of the members of a group, which it does not lead.
    fn forget_members(&self, group: u32) {
        self.inner.steady.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        let mut silent = self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.retain(|(of, _), _| *of != group);
        drop(silent);
        self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner).forget(group);
        self.inner.marks.lock().unwrap_or_else(PoisonError::into_inner).forget(group);
    }

    /// Makes the groups that are configured and missing, on the leader of the system log.
    ///
    /// # Errors
    /// They cannot be made, or not without a system log.
    fn make_missing(&self, default: &Log) -> chiplog::Result<()> {
        let wanted = self.inner.config.groups;
        let one = self.opening();
        if self.inner.slot.is_draining() {
            return Ok(());
        }
        let Some(logs) = self.inner.slot.named() else {
            let (is_alone, leads) = (is_alone(default), default.role() == Role::Leader);
            if is_alone && leads && self.inner.founds.load(Ordering::Relaxed) {
                return self.make_system();
            }
            if wanted > 0 && leads && !is_alone {
                drop(one); // other servers answer meanwhile, and so does this one
                let made = self.make_system_log_among(default);
                self.report(SYSTEM, Task::Wait, &made.err().map(|e| unmade(&e)).unwrap_or_default());
                return Ok(());
            }
            let leader = default.leader().filter(|_| wanted > 0 && !leads && !is_alone);
            let waits = leader.map(|node| {
                format!("node {node} leads the default log: it makes the system log if it has `groups`, once all servers run")
            });
            self.report(SYSTEM, Task::Wait, &waits.unwrap_or_default());
            if wanted > 0 && leads && is_alone {
                let refusal = self.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let what = refusal.unwrap_or_else(|| ALONE.into());
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            return Ok(());
        };
        self.report(SYSTEM, Task::Wait, "");
        self.open_known();
        let open = logs.groups();
        let mut missing = (1..=wanted).filter(|group| !open.contains_key(group));
        let is_new = |group| logs.group_id(group).is_ok_and(|id| id.is_none());
        if logs.system().role() != Role::Leader || !missing.any(is_new) {
            return Ok(());
        }
        logs.system().barrier(HOST_TIMEOUT)?; // a majority confirms that this is the newest catalogue
        let mut failed = Ok(());
        for group in 1..=wanted {
            if logs.group_id(group)?.is_some() {
                continue;
            }
            match self.start(group, Bootstrap::Init) {
                Ok(log) => {
                    logs.register_group(group, &log)?;
                    self.serve(group, &log)?;
                }
                // The others can be on other disks.
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// Reports what keeps a group from following, once until it changes. A failure of a kind that passes by itself is a
    /// warning only once it lasts.
    fn report(&self, group: u32, task: Task, what: &str) {
        let mut reported = self.inner.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if what.is_empty() {
            reported.remove(&(group, task));
            return;
        }
        let last = reported.get(&(group, task));
        let since = last.map_or_else(Instant::now, |last| last.since);
        let is_warning = since.elapsed() >= task.patience();
        if last.is_some_and(|last| last.what == what && last.is_warning == is_warning) {
            return;
        }
        reported.insert((group, task), Report { since, what: what.to_owned(), is_warning });
        match is_warning {
            true => {
                tracing::warn!(group = %label(group), what, "the named logs do not follow the cluster yet")
            }
            false => {
                tracing::debug!(group = %label(group), what, "the named logs do not follow the cluster yet")
            }
        }
    }
}

/// The error of a request for a replica whose directory is still that of an earlier one.
fn still_here(group: u32) -> Error {
    let what = format!("an earlier replica of group {group} on this server is being closed; try again later");
    Error::new(ErrorKind::Unavailable, what)
}

/// The groups, while the server runs.
fn running(groups: &Weak<Inner>) -> chiplog::Result<Arc<Inner>> {
    groups.upgrade().ok_or_else(|| Error::new(ErrorKind::Unavailable, "the server ends"))
}

/// Answers the calls of other servers, which number the groups from the default log on.
struct Hosted(Weak<Inner>);

impl Hosting for Hosted {
    fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        Groups { inner: running(&self.0)? }.host(group - 1, log)
    }

    fn view(&self, group: u32, log: LogId, of: &[LogNumber]) -> chiplog::Result<GroupView> {
        let groups = Groups { inner: running(&self.0)? };
        let logs = groups
            .inner
            .slot
            .named()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "this server has no catalogue yet"))?;
        groups.own_view(logs, group - 1, log, of)
    }

    fn allow_system_log(&self, from: NodeId, term: Term) -> chiplog::Result<()> {
        Groups { inner: running(&self.0)? }.allow_system_log(from, term)
    }
}

/// The report of a failure to make the system log or a group.
fn unmade(error: &Error) -> String {
    format!("named logs cannot be kept: {error}")
}

/// The free bytes of the disk of a directory that may be missing; `u64::MAX` if unknown.
fn free_bytes(directory: &Path) -> u64 {
    let there = directory.ancestors().find(|path| path.exists());
    let disk = there.and_then(|path| rustix::fs::statvfs(path).ok());
    disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A group in the server's log, named as `chiplog status` names it.
fn label(group: u32) -> String {
    match group {
        SYSTEM => "system".into(),
        group => group.to_string(),
    }
}
