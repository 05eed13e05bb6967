//! LogSlot: the log that a server serves, its named logs if it keeps any, and the state that its services share.

pub use crate::served::log_names::{DEFAULT_LOG, GROUP, SYSTEM_LOG};

use crate::served::call_places::CallPlaces;
use crate::served::caller::Caller;
use crate::served::elsewhere::{AskElsewhere, Elsewhere, GroupView, servers_of};
use crate::served::gauges::Gauges;
use crate::served::room::Room;
use crate::served::store_health::{StoreFailure, StoreHealth};
use crate::wire::address::Address;
use crate::wire::ids::{from_hex, to_hex};
use crate::wire::status::{LOG_ID, to_status, without_replica};
use chiplog::{Error, ErrorKind, Log, LogId, LogNumber, Logs, NodeId};
use http::HeaderMap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// How long a call waits until it is certain whether a named log exists, and until it is open.
pub(crate) const FIND_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of calls that wait for that at a time.
const FINDING_MAX: usize = 64;
/// The percentage of the places of such calls that one token may have, unless it is set.
const SHARE_PERCENT: u8 = 25;

/// The log that a server serves, once there is one. `Send + Sync`, shared by all services.
///
/// ```
/// use chiplog_net::served::log_slot::LogSlot;
/// let dir = tempfile::tempdir()?;
/// let host = LogSlot::new();
/// assert!(host.default_log().is_err(), "not yet");
/// host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?);
/// assert!(host.default_log().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogSlot {
    log: OnceLock<Log>,
    /// On a follower of a named log: the log's name at the servers.
    called: OnceLock<String>,
    named: OnceLock<Logs>,
    /// Asks other servers about groups that do not run here.
    elsewhere: OnceLock<AskElsewhere>,
    /// This server had a replica of a system log.
    had_named: AtomicBool,
    /// This server is meant to get named logs.
    expects_named: AtomicBool,
    /// The number of groups of named logs that this server is configured with.
    groups_wanted: AtomicU32,
    /// Calls that look for a named log.
    finding: Arc<CallPlaces>,
    /// The percentage of the places of blocking calls that one token may have.
    share_percent: AtomicU8,
    draining: watch::Sender<bool>,
    /// On a follower: whether the server that feeds it is itself up to date.
    fed: AtomicBool,
    /// Followers that are fed now, streams started since the start, and bytes of blocks sent to them.
    copies: AtomicU64,
    copies_begun: AtomicU64,
    copies_bytes: AtomicU64,
    /// Bytes of objects read for copies.
    objects_bytes: AtomicU64,
    /// Bytes of segment files read for answers over HTTP.
    segments_bytes: AtomicU64,
    /// On a follower: it reads objects through the servers that it is given.
    through_servers: AtomicBool,
    room: Room,
    gauges: Arc<Gauges>,
    store_health: Arc<StoreHealth>,
    /// Without a log: the member that a cluster calls at this address. 0: none.
    called_as: AtomicU64,
}

/// Statistics of the followers that a server feeds.
///
/// ```
/// let copies = chiplog_net::served::log_slot::LogSlot::new().copies();
/// assert_eq!((copies.now, copies.bytes), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// Followers that are fed now.
    pub now: u64,
    /// Streams started since the server's start.
    pub begun: u64,
    /// Bytes of blocks sent to them since the server's start.
    pub bytes: u64,
    /// Bytes of objects sent to copies that do not reach the object store themselves, since the server's start.
    pub objects_bytes: u64,
    /// Bytes of segment files sent over HTTP, since the server's start.
    pub segments_bytes: u64,
}

/// A guard of a follower that is fed. Counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Feeding(Arc<LogSlot>);

impl Feeding {
    pub(crate) fn sent(&self, bytes: usize) {
        self.0.copies_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Feeding {
    fn drop(&mut self) {
        self.0.copies.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for LogSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSlot").field("log", &self.log).field("named", &self.named).finish_non_exhaustive()
    }
}

impl LogSlot {
    /// Without a log, every call fails: the server is not part of a cluster yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            log: OnceLock::new(),
            called: OnceLock::new(),
            named: OnceLock::new(),
            elsewhere: OnceLock::new(),
            had_named: AtomicBool::default(),
            expects_named: AtomicBool::default(),
            groups_wanted: AtomicU32::default(),
            finding: CallPlaces::new(FINDING_MAX),
            share_percent: AtomicU8::new(SHARE_PERCENT),
            draining: watch::Sender::default(),
            fed: AtomicBool::default(),
            copies: AtomicU64::default(),
            copies_begun: AtomicU64::default(),
            copies_bytes: AtomicU64::default(),
            objects_bytes: AtomicU64::default(),
            segments_bytes: AtomicU64::default(),
            through_servers: AtomicBool::default(),
            room: Room::default(),
            gauges: Arc::default(),
            store_health: Arc::default(),
            called_as: AtomicU64::default(),
        })
    }

    /// Serves this log from now on. A second call changes nothing.
    pub fn open(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// Serves the log by this name as well: it is the copy of a log that its servers call so. A second call changes nothing.
    pub(crate) fn call(&self, name: &str) {
        if !name.is_empty() {
            let _ = self.called.set(name.to_owned());
        }
    }

    /// Whether a request with this name means the one log that is served here beside named logs.
    pub(crate) fn is_default(&self, name: &str) -> bool {
        name.is_empty() || name == DEFAULT_LOG || self.called.get().is_some_and(|called| called == name)
    }

    /// Serves these named logs from now on, beside the default one. A second call changes nothing.
    pub fn open_named(&self, logs: Logs) {
        let _ = self.named.set(logs);
    }

    /// This server had a replica of a system log, or is about to have one.
    pub fn set_had_named(&self) {
        self.had_named.store(true, Ordering::Relaxed);
    }

    /// Whether it had one, and has none now.
    pub(crate) fn lacks_named(&self) -> bool {
        self.named().is_none() && self.had_named.load(Ordering::Relaxed)
    }

    /// Whether this server is to have a replica of a system log, and has none now.
    pub(crate) fn waits_for_named(&self) -> bool {
        self.lacks_named() || (self.named().is_none() && self.expects_named.load(Ordering::Relaxed))
    }

    /// This server gets a replica of a system log sooner or later. Until then it does not know which named logs there are, and
    /// calls for them fail as UNAVAILABLE.
    pub fn expect_named(&self) {
        self.expects_named.store(true, Ordering::Relaxed);
    }

    /// Sets the percentage of the places of blocking calls that one token may have.
    pub(crate) fn set_share_percent(&self, percent: u8) {
        self.share_percent.store(percent.clamp(1, 100), Ordering::Relaxed);
    }

    pub(crate) fn share_percent(&self) -> u8 {
        self.share_percent.load(Ordering::Relaxed)
    }

    /// Sets the number of groups of named logs that this server is configured with, for its status.
    pub fn set_groups_wanted(&self, groups: u32) {
        self.groups_wanted.store(groups, Ordering::Relaxed);
    }

    pub(crate) fn groups_wanted(&self) -> u32 {
        self.groups_wanted.load(Ordering::Relaxed)
    }

    /// Asks other servers in this way about groups that do not run here. A second call changes nothing.
    pub fn ask_elsewhere(&self, ask: AskElsewhere) {
        let _ = self.elsewhere.set(ask);
    }

    /// The leader's view of a group that does not run here, and of these logs of it. Blocks for some seconds at most.
    ///
    /// # Errors
    /// `Unavailable`: no leader of the group answers.
    pub(crate) fn view_elsewhere(&self, group: u32, of: &[LogNumber]) -> chiplog::Result<GroupView> {
        let unknown = || Error::new(ErrorKind::Unavailable, format!("no answer is about group {group}"));
        self.views_elsewhere([(group, of.to_vec())].into())?.remove(&group).unwrap_or_else(|| Err(unknown()))
    }

    /// The same for several groups at the same time, each with its own error.
    ///
    /// # Errors
    /// `Unavailable`: this server asks no other one.
    pub(crate) fn views_elsewhere(
        &self,
        asked: BTreeMap<u32, Vec<LogNumber>>,
    ) -> chiplog::Result<BTreeMap<u32, chiplog::Result<GroupView>>> {
        let ask = self.elsewhere.get().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "this server asks no other one about groups")
        })?;
        ask(asked)
    }

    /// The named logs. None: this server keeps none.
    pub fn named(&self) -> Option<&Logs> {
        self.named.get()
    }

    /// The default log, also while the server drains. None: the server waits to become part of a cluster.
    pub fn opened(&self) -> Option<&Log> {
        self.log.get()
    }

    /// Sets the member that a cluster calls at a server without a log, as the transport between replicas reports it.
    pub fn set_called_as(&self, node: Option<NodeId>) {
        self.called_as.store(node.map_or(0, NodeId::get), Ordering::Relaxed);
    }

    /// That member. None: there is a log, or no cluster calls.
    pub fn called_as(&self) -> Option<NodeId> {
        let node = NodeId(self.called_as.load(Ordering::Relaxed));
        (!node.is_none() && self.opened().is_none()).then_some(node)
    }

    /// The gauges of this server.
    pub fn gauges(&self) -> &Arc<Gauges> {
        &self.gauges
    }

    /// Whether the object store of this server works. Its owner notes how each request ends.
    pub fn store_health(&self) -> &Arc<StoreHealth> {
        &self.store_health
    }

    /// Why this server cannot use its object store, and since when: the requests that fail, or else the log or the group that has failed
    /// longest to store something. A store that is there and is not the one with the logs' objects answers all requests.
    pub fn store_failure(&self) -> Option<StoreFailure> {
        self.store_health.failure().or_else(|| {
            let all = self.running().into_iter();
            let failing = all.filter_map(|(group, log)| Some((group, log.store_failure()?)));
            let (group, failure) = failing.min_by_key(|(_, failure)| failure.since)?;
            let error = failure.error;
            let why = match group {
                None => error.to_string(),
                Some(0) => format!("of the system log: {error}"),
                Some(number) => format!("of group {number}: {error}"),
            };
            Some(StoreFailure { since: failure.since, why })
        })
    }

    /// The objects of all logs and groups here that are known to be lost or damaged, and that this server could not store again.
    pub fn damaged_objects(&self) -> u64 {
        self.running().iter().map(|(_, log)| log.metrics().damaged_objects).sum()
    }

    /// The default log, the system log, which is group 0, and the groups that run here.
    fn running(&self) -> Vec<(Option<u32>, Log)> {
        let default = self.opened().map(|log| (None, log.clone()));
        let named = self.named().map(|logs| {
            let system = std::iter::once((0, logs.system().clone()));
            system.chain(logs.groups()).map(|(number, group)| (Some(number), group))
        });
        default.into_iter().chain(named.into_iter().flatten()).collect()
    }

    /// Rejects new calls from now on. Running streams should watch [`Self::drained`] and end properly.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the server is shutting down.
    pub async fn drained(&self) {
        // This cannot fail: `self` holds the sender.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Checks that a call is for a log of this server, if it carries the id of one: another log can be at the address of
    /// a server whose directory was lost. With named logs only [`Self::find`] knows; a server without a log returns its
    /// own error later.
    ///
    /// # Errors
    /// FAILED_PRECONDITION, `Diverged`.
    pub(crate) fn check_log_id(&self, headers: &HeaderMap) -> Result<(), Status> {
        match (headers.get(LOG_ID), self.opened()) {
            (Some(meant), Some(log)) if self.named().is_none() => check_meant(meant.as_bytes(), log),
            _ => Ok(()),
        }
    }

    /// Returns the default log. Not for a log that a request names: see [`Self::find`].
    ///
    /// # Errors
    /// UNAVAILABLE before there is a log, and while the server is shutting down.
    pub fn default_log(&self) -> Result<&Log, Status> {
        self.check_running()?;
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        let what = match self.called_as() {
            Some(node) => without_replica("this server", node),
            None => {
                "this server is not part of a cluster yet; run `chiplog member init`, or add it to a cluster"
                    .into()
            }
        };
        Err(to_status(&Error::new(ErrorKind::Unavailable, what), None))
    }

    fn check_running(&self) -> Result<(), Status> {
        if !self.is_draining() {
            return Ok(());
        }
        Err(to_status(&Error::new(ErrorKind::Unavailable, "this server is shutting down"), None))
    }

    /// Returns the log that a request names, if that is known without waiting. `meant`: what [`meant`] returned for the
    /// call. None: [`Self::find`] finds out.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn peek(
        &self,
        caller: &Caller,
        name: &str,
        meant: Option<&[u8]>,
    ) -> Option<Result<Log, Status>> {
        if let Err(status) = caller.claim(name) {
            return Some(Err(status));
        }
        let found = match self.named() {
            _ if self.is_default(name) => {
                return Some(self.default_log().and_then(|log| checked(log.clone(), meant)));
            }
            None => return Some(self.default_log().and_then(|_| Err(self.without_catalogue(name)))),
            Some(logs) => match self.check_running() {
                Ok(()) => logs.peek(name)?,
                Err(status) => return Some(Err(status)),
            },
        };
        // Another id: the name can have been created again, and this replica not have heard of it.
        checked(found, meant).ok().map(Ok)
    }

    /// Returns the log that a request names. Waits for a majority and for the log's group, if this replica does not know
    /// the log yet.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the caller may not reach it. NOT_FOUND: there is no such log, or the call means one that was
    /// deleted and whose name another log has now. FAILED_PRECONDITION, `Diverged`: the default log has another id than the
    /// call means. UNAVAILABLE before there is a log, without a majority, and while the server is shutting down.
    /// RESOURCE_EXHAUSTED, `Busy`: many calls wait already, or the share of the caller's token.
    pub(crate) async fn find(
        &self,
        caller: &Caller,
        name: &str,
        meant: Option<&[u8]>,
    ) -> Result<Log, Status> {
        if let Some(known) = self.peek(caller, name, meant) {
            return known;
        }
        let Some(logs) = self.named().cloned() else { return Err(self.without_catalogue(name)) };
        let name = name.to_owned();
        let id =
            match meant.map(|id| std::str::from_utf8(id).map_or(Err(()), |id| from_hex(id).map_err(drop))) {
                Some(Err(())) => return Err(self.unknown(&name)),
                Some(Ok(id)) => Some(LogId(id)),
                None => None,
            };
        let (finding_in, wanted) = (logs.clone(), name.clone());
        let found = self.ask_majority(caller, move || finding_in.find(&wanted, id, FIND_TIMEOUT)).await?;
        found.map_err(|e| self.found_elsewhere(|| logs.group_of(&name), &e))
    }

    /// Runs a look-up that waits for a majority on a thread that may block.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, `Busy`: many calls wait already, or the share of the caller's token.
    async fn ask_majority<T: Send + 'static>(
        &self,
        caller: &Caller,
        look_up: impl FnOnce() -> chiplog::Result<T> + Send + 'static,
    ) -> Result<chiplog::Result<T>, Status> {
        let place = self.finding.take(caller, self.share_percent(), "wait until they know their log");
        let place = place.map_err(|error| to_status(&error, None))?;
        let looking_up = tokio::task::spawn_blocking(move || {
            let _place = place;
            look_up()
        });
        looking_up.await.map_err(|_| abandoned())
    }

    /// Returns the replica that a call about replicas names: of the default log, of the system log, of a group by its
    /// number, or of the group of a named log. `meant`: what [`meant`] returned for the call.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) async fn replica(
        &self,
        caller: &Caller,
        name: &str,
        meant: Option<&[u8]>,
    ) -> Result<Log, Status> {
        let Some(logs) = self.named().filter(|_| name.starts_with('_') && !self.is_draining()) else {
            return self.find(caller, name, meant).await;
        };
        caller.claim(name)?;
        if name == SYSTEM_LOG {
            return checked(logs.system().clone(), meant);
        }
        let number = name.strip_prefix(GROUP).and_then(|number| number.parse().ok());
        let Some(number) = number else { return Err(self.unknown(name)) };
        let mut group = logs.group(number);
        if group.is_err() && logs.group_id(number).is_ok_and(|id| id.is_none()) {
            let asked = logs.clone();
            let confirmed = self.ask_majority(caller, move || asked.system().barrier(FIND_TIMEOUT)).await?;
            confirmed.map_err(|error| to_status(&error, None))?;
            group = logs.group(number);
        }
        let group = group.map_err(|error| match logs.group_id(number) {
            Ok(None) => self.unknown(name),
            _ => self.found_elsewhere(|| Ok(Some(number)), &error),
        });
        checked(group?, meant)
    }

    /// The call reads what all named logs have that are in the group of this one.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the token's scope does not have the group.
    pub(crate) fn claim_group(&self, caller: &Caller, name: &str) -> Result<(), Status> {
        let group = self.named().and_then(|logs| logs.group_of(name).ok().flatten());
        match group {
            Some(group) => caller.claim(&format!("{GROUP}{group}")),
            None => Err(self.unknown(name)),
        }
    }

    /// Where a named log runs, if its group does not run here, as far as the catalogue is known. None: it runs here, or there
    /// is no such log.
    pub(crate) fn elsewhere(&self, name: &str) -> Option<Elsewhere> {
        let (logs, default) = (self.named()?, self.opened()?);
        let info = logs.info(name).ok().filter(|info| info.elsewhere)?;
        let servers = servers_of(info.group, logs, default).ok()?;
        (!servers.is_empty()).then_some(Elsewhere { log_id: info.log_id, servers })
    }

    /// The status of an error of a group; if the group runs on other servers, with the address of one of them.
    fn found_elsewhere(&self, group: impl Fn() -> chiplog::Result<Option<u32>>, error: &Error) -> Status {
        let one = || {
            let (group, logs, default) = (group().ok()??, self.named()?, self.opened()?);
            if logs.groups().contains_key(&group) {
                return None; // the error is that of its replica
            }
            let mut servers = servers_of(group, logs, default).ok()?;
            fastrand::shuffle(&mut servers);
            servers.pop().map(|(_, address)| address.client)
        };
        let elsewhere = (error.kind() == ErrorKind::NotLeader).then(one).flatten();
        to_status(error, elsewhere.as_deref())
    }

    /// The answer about a named log of a server without a catalogue. Only a server that is to have none says that there is no
    /// such log. All say that they have no catalogue.
    fn without_catalogue(&self, name: &str) -> Status {
        if !self.waits_for_named() || name == SYSTEM_LOG {
            return self.unknown(name);
        }
        let what = format!(
            "this server does not know yet whether there is a log {name:?}: it has no catalogue of named logs; try again, and see \
             its log if that lasts"
        );
        to_status(&Error::new(ErrorKind::Unavailable, what), None)
    }

    /// The answer if there is no such log, of which a majority or the configuration is certain.
    fn unknown(&self, name: &str) -> Status {
        let what = match self.named() {
            Some(_) if name.starts_with(GROUP) => {
                format!(
                    "there is no group {:?}; `chiplog status` shows those there are",
                    &name[GROUP.len()..]
                )
            }
            Some(_) => format!("this server has no log {name:?}: create it with `chiplog logs create`"),
            None => format!(
                "this server has no log {name:?}, only {DEFAULT_LOG:?}: `groups` of its configuration is for named logs"
            ),
        };
        to_status(&Error::new(ErrorKind::NotFound, what), None)
    }

    /// Records that an append to a log was rejected; after `Full`, the server's status shows it, unless only the log is full, by
    /// a limit of its own.
    pub(crate) fn refused(&self, log: &Log, error: &Error) {
        if error.kind() == ErrorKind::Full
            && !error.is_of_one_log()
            && !self.room.has_just_refused(log)
            && let Some(replica) = self.replica_of(log)
        {
            self.room.refused(&replica, error);
        }
    }

    /// The text of an error for clients: after a lack of room in a group of named logs it begins with the group's name, as in an
    /// address.
    pub(crate) fn words(&self, log: &Log, error: &Error) -> String {
        let group = (error.kind() == ErrorKind::Full && !error.is_of_one_log())
            .then(|| self.group_with(log))
            .flatten();
        group.map_or_else(|| error.to_string(), |group| format!("{group}: {error}"))
    }

    /// The name of the group in whose files a log is, as in an address. None: the log is in no group.
    pub(crate) fn group_with(&self, log: &Log) -> Option<String> {
        let groups = self.named()?.groups();
        let (number, _) = groups.iter().find(|(_, group)| group.path() == log.path())?;
        Some(format!("{GROUP}{number}"))
    }

    /// Why a log accepts no appends for lack of room, if this server leads it. A named log has the room of its group.
    pub(crate) fn fullness(&self, log: &Log) -> Option<String> {
        if log.role() != chiplog::cluster::Role::Leader {
            return None;
        }
        self.room.why_none(&self.replica_of(log)?)
    }

    /// The replica in whose files a log is: the default log, the system log, or the group of a named log.
    fn replica_of(&self, log: &Log) -> Option<Log> {
        let is_it = |replica: &Log| replica.path() == log.path();
        if let Some(own) = self.opened().filter(|own| is_it(own)) {
            return Some(own.clone());
        }
        let logs = self.named()?;
        std::iter::once(logs.system().clone()).chain(logs.groups().into_values()).find(is_it)
    }

    /// Statistics of the followers that this server feeds.
    pub fn copies(&self) -> Copies {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Copies {
            now: get(&self.copies),
            begun: get(&self.copies_begun),
            bytes: get(&self.copies_bytes),
            objects_bytes: get(&self.objects_bytes),
            segments_bytes: get(&self.segments_bytes),
        }
    }

    /// The log is a copy that reads objects through servers. It serves none: two such copies that are each other's servers would ask
    /// each other for ever.
    pub(crate) fn set_through_servers(&self) {
        self.through_servers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn reads_through_servers(&self) -> bool {
        self.through_servers.load(Ordering::Relaxed)
    }

    /// Counts bytes of objects.
    pub(crate) fn sent_of_objects(&self, bytes: usize) {
        self.objects_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of segment files.
    pub(crate) fn sent_of_segments(&self, bytes: usize) {
        self.segments_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn feeding(self: &Arc<Self>) -> Feeding {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.copies_begun.fetch_add(1, Ordering::Relaxed);
        Feeding(self.clone())
    }

    /// Whether this server learns of new commits: a replica does if it knows a leader, a follower if the server that
    /// feeds it does. Takes some time, like [`Self::another_leader`].
    pub fn is_fed(&self) -> bool {
        self.log.get().is_some_and(|log| self.is_log_fed(log))
    }

    /// As [`Self::is_fed`], of one of the logs of this server.
    pub(crate) fn is_log_fed(&self, log: &Log) -> bool {
        match log.status().follows {
            true => self.fed.load(Ordering::Relaxed),
            false => log.leader().is_some(),
        }
    }

    pub(crate) fn set_fed(&self, fed: bool) {
        self.fed.store(fed, Ordering::Relaxed);
    }

    /// As [`another_leader`], of the default log.
    pub fn another_leader(&self) -> Option<String> {
        self.log.get().and_then(another_leader)
    }

    /// As [`status_of`], of the default log.
    pub fn status_of(&self, error: &Error) -> Status {
        match self.log.get() {
            Some(log) => status_of(log, error),
            None => to_status(error, None),
        }
    }
}

/// The leader's client address, if another replica leads and its address is known: for a caller that was rejected here.
/// A leader that is handing over also rejects appends, and callers must not be sent to it. Takes some time: must not run
/// for every append.
pub fn another_leader(log: &Log) -> Option<String> {
    let replica = log.status().replica;
    let leader = replica.leader.filter(|leader| *leader != replica.node)?;
    let member = replica.members.into_iter().find(|m| m.node == leader)?;
    member.address.parse().ok().map(|a: Address| a.client)
}

/// The status of a call whose work was abandoned.
pub(crate) fn abandoned() -> Status {
    Status::internal("the call was abandoned: the server is shutting down, or failed")
}

/// Converts a log's error into a status, with the leader's address if the caller needs it.
pub fn status_of(log: &Log, error: &Error) -> Status {
    let leader = matches!(error.kind(), ErrorKind::NotLeader).then(|| another_leader(log)).flatten();
    to_status(error, leader.as_deref())
}

/// The id of the log that a call means, in hexadecimal, if it says so.
pub(crate) fn meant(metadata: &MetadataMap) -> Option<Vec<u8>> {
    metadata.get(LOG_ID).map(|id| id.as_bytes().to_vec())
}

fn checked(log: Log, meant: Option<&[u8]>) -> Result<Log, Status> {
    meant.map_or(Ok(()), |meant| check_meant(meant, &log)).map(|()| log)
}

/// Checks that a call means this log.
fn check_meant(meant: &[u8], log: &Log) -> Result<(), Status> {
    let ours = to_hex(log.log_id().get());
    if meant == ours.as_bytes() {
        return Ok(());
    }
    let meant = String::from_utf8_lossy(meant);
    let what = format!(
        "this server has log {ours}, but the call is for log {meant}: the server belongs to another cluster, or its directory was lost and a new cluster was created"
    );
    Err(to_status(&Error::new(ErrorKind::Diverged, what), None))
}
