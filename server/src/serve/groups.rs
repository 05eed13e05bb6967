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
//! - The threads that follow the groups do not wait for the disk of a group, which can hang for ever (`opening.rs`).
//! - A group's directory is renamed only if the catalogue knows another log by its number, or the group does without the replica in it:
//!   that has learned of its removal, or the group's leader, confirmed by a majority, says so (`hosting.rs`). That another server asks for a
//!   replica is no reason. A directory is removed only if the group was moved to other servers (`elsewhere.rs`).
//!
//! Must not know: services, clients.

mod catalogue;
mod directories;
mod elsewhere;
mod hosting;
mod late;
mod marker;
mod members;
mod opening;
mod placement;
mod readiness;
mod stored;
mod storing;
#[cfg(test)]
mod tests;
mod votes;

use super::config::Config;
use catalogue::Confirmations;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::internal::GroupDirectories;
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Log, LogsOptions, NodeId};
use chiplog_net::peer::{GROUPS_MAX, PeerTransport};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::wire::address::Address;
use hosting::Hosted;
use late::is_alone;
use marker::Marker;
use opening::Unmade;
use placement::Failures;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
    /// One thread at a time looks for a group, or changes where it is.
    directories: Mutex<GroupDirectories>,
    address: String,
    transport: Arc<PeerTransport>,
    slot: Arc<LogSlot>,
    /// Held while a replica is added to those that are served, named to a leader, or taken from those; at the start, and for the system log,
    /// while they are opened or made, too.
    opening: Mutex<()>,
    /// The groups whose replicas here are being opened or made, each by one thread, and since when.
    claimed: Mutex<BTreeMap<u32, Instant>>,
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
    /// Why the groups that are missing could not be made last.
    failed: Mutex<BTreeMap<u32, Error>>,
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
            directories: Mutex::new(directories),
            address,
            transport,
            slot,
            opening: Mutex::default(),
            claimed: Mutex::default(),
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
            failed: Mutex::default(),
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

    /// Makes the system log of a new cluster, before its first server answers: another one can join at once, and then no
    /// server is certain that it alone makes the system log. A failure is reported, and tried again while this process
    /// runs and the server is alone.
    pub(super) fn begin(&self) {
        if self.inner.config.groups == 0 || self.inner.slot.named().is_some() {
            return;
        }
        let checked = self.check_no_earlier();
        let _one = self.opening();
        if self.inner.slot.named().is_some() {
            return;
        }
        self.inner.founds.store(true, Ordering::Relaxed);
        if let Err(error) = checked.and_then(|()| self.make_system()) {
            self.report(SYSTEM, Task::Make, &format!("the system log cannot be made: {error}"));
        }
    }

    /// Checks that no groups of an earlier catalogue are here. Called without the lock once the server follows groups: a disk can hang.
    ///
    /// # Errors
    /// `Diverged`. Those of [`Self::find`].
    fn check_no_earlier(&self) -> chiplog::Result<()> {
        for group in 1..=GROUPS_MAX {
            let Some(path) = self.find(group)? else { continue };
            let what = format!(
                "{} is of an earlier catalogue, whose directory is missing in {}: put that back, or move the groups away",
                path.display(),
                self.inner.config.data.join(NAMED).display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        Ok(())
    }

    /// Makes the system log of a new cluster. Called under the lock, once no groups were found here: those come only with a system log.
    fn make_system(&self) -> chiplog::Result<()> {
        let system = self.start(SYSTEM, Bootstrap::Init)?;
        self.serve(SYSTEM, &system)?;
        self.inner.founds.store(false, Ordering::Relaxed);
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

/// The groups, while the server runs.
fn running(groups: &Weak<Inner>) -> chiplog::Result<Arc<Inner>> {
    groups.upgrade().ok_or_else(|| Error::new(ErrorKind::Unavailable, "the server ends"))
}

/// The report of a failure to make the system log or a group.
fn unmade(error: &Error) -> String {
    format!("named logs cannot be kept: {error}")
}

/// A group in the server's log, named as `chiplog status` names it.
fn label(group: u32) -> String {
    match group {
        SYSTEM => "system".into(),
        group => group.to_string(),
    }
}
