//! LogSlot: the log that a server serves, and the state that its services share.

use crate::served::gauges::Gauges;
use crate::served::room::Room;
use crate::wire::address::Address;
use crate::wire::ids::to_hex;
use crate::wire::status::{LOG_ID, to_status, without_replica};
use chiplog::{Error, ErrorKind, Log, NodeId};
use http::HeaderMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tonic::Status;

/// The name of a server's only log.
pub const DEFAULT_LOG: &str = "default";

/// The log that a server serves, once there is one. `Send + Sync`, shared by all services.
///
/// ```
/// use chiplog_net::served::log_slot::LogSlot;
/// let dir = tempfile::tempdir()?;
/// let host = LogSlot::new();
/// assert!(host.log("default").is_err(), "not yet");
/// host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?);
/// assert!(host.log("").is_ok() && host.log("other").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct LogSlot {
    log: OnceLock<Log>,
    draining: watch::Sender<bool>,
    /// On a follower: whether the server that feeds it is itself up to date.
    fed: AtomicBool,
    /// Followers that are fed now, streams started since the start, and bytes of blocks sent to them.
    copies: AtomicU64,
    copies_begun: AtomicU64,
    copies_bytes: AtomicU64,
    room: Room,
    gauges: Arc<Gauges>,
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

impl LogSlot {
    /// Without a log, every call fails: the server is not part of a cluster yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves this log from now on. A second call changes nothing.
    pub fn open(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// The log, whatever its name, also while the server drains. None: the server waits to become part of a cluster.
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

    /// Checks that a call is for this log, if it names one: another log can be at the address of a server whose
    /// directory was lost. A server without a log returns its own error later.
    ///
    /// # Errors
    /// FAILED_PRECONDITION, `Diverged`.
    pub(crate) fn check_log_id(&self, headers: &HeaderMap) -> Result<(), Status> {
        let (Some(meant), Some(log)) = (headers.get(LOG_ID), self.opened()) else { return Ok(()) };
        let ours = to_hex(log.log_id().get());
        if meant.as_bytes() == ours.as_bytes() {
            return Ok(());
        }
        let meant = String::from_utf8_lossy(meant.as_bytes());
        let what = format!(
            "this server has log {ours}, but the call is for log {meant}: the server belongs to another cluster, or its directory was lost and a new cluster was created"
        );
        Err(to_status(&Error::new(ErrorKind::Diverged, what), None))
    }

    /// Checks a log's name in a request.
    ///
    /// # Errors
    /// NOT_FOUND for any name except "default" or the empty one.
    pub fn check_name(&self, name: &str) -> Result<(), Status> {
        if name.is_empty() || name == DEFAULT_LOG {
            return Ok(());
        }
        let what = format!("this server has no log {name:?}, only {DEFAULT_LOG:?}");
        Err(to_status(&Error::new(ErrorKind::NotFound, what), None))
    }

    /// Returns the log that a request names.
    ///
    /// # Errors
    /// NOT_FOUND for any name except "default" or the empty one; UNAVAILABLE before there is a log, and while the
    /// server is shutting down.
    pub fn log(&self, name: &str) -> Result<&Log, Status> {
        self.check_name(name)?;
        let unavailable = |what| to_status(&Error::new(ErrorKind::Unavailable, what), None);
        if self.is_draining() {
            return Err(unavailable("this server is shutting down"));
        }
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        Err(match self.called_as() {
            Some(node) => {
                to_status(&Error::new(ErrorKind::Unavailable, without_replica("this server", node)), None)
            }
            None => unavailable(
                "this server is not part of a cluster yet; run `chiplog member init`, or add it to a cluster",
            ),
        })
    }

    /// Records that an append was rejected; after `Full`, the server's status shows it.
    pub(crate) fn refused(&self, error: &Error) {
        if let Some(log) = self.opened() {
            self.room.refused(log, error);
        }
    }

    /// Why the log accepts no appends for lack of room, if this replica leads.
    pub(crate) fn fullness(&self) -> Option<String> {
        let log = self.opened().filter(|log| log.role() == chiplog::cluster::Role::Leader)?;
        self.room.why_none(log)
    }

    /// Statistics of the followers that this server feeds.
    pub fn copies(&self) -> Copies {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Copies { now: get(&self.copies), begun: get(&self.copies_begun), bytes: get(&self.copies_bytes) }
    }

    pub(crate) fn feeding(self: &Arc<Self>) -> Feeding {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.copies_begun.fetch_add(1, Ordering::Relaxed);
        Feeding(self.clone())
    }

    /// Whether this server learns of new commits: a replica does if it knows a leader, a follower if the server that
    /// feeds it does. Takes some time, like [`Self::another_leader`].
    pub fn is_fed(&self) -> bool {
        match self.log.get() {
            Some(log) if log.status().follows => self.fed.load(Ordering::Relaxed),
            Some(log) => log.leader().is_some(),
            None => false,
        }
    }

    pub(crate) fn set_fed(&self, fed: bool) {
        self.fed.store(fed, Ordering::Relaxed);
    }

    /// The leader's client address, if another replica leads and its address is known: for a caller that was rejected
    /// here. A leader that is handing over also rejects appends, and callers must not be sent to it. Takes some time:
    /// must not run for every append.
    pub fn another_leader(&self) -> Option<String> {
        let replica = self.log.get()?.status().replica;
        let leader = replica.leader.filter(|leader| *leader != replica.node)?;
        let member = replica.members.into_iter().find(|m| m.node == leader)?;
        member.address.parse().ok().map(|a: Address| a.client)
    }

    /// Converts the log's error into a status, with the leader's address if the caller needs it.
    pub fn status_of(&self, error: &Error) -> Status {
        let leader = matches!(error.kind(), ErrorKind::NotLeader).then(|| self.another_leader()).flatten();
        to_status(error, leader.as_deref())
    }
}
