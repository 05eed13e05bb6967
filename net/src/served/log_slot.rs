//! Host: the log that a server serves, and what its services have in common.

use crate::served::gauges::Gauges;
use crate::served::room::Room;
use crate::wire::address::Address;
use crate::wire::ids::to_hex;
use crate::wire::status::{LOG_ID, to_status};
use chiplog::{Error, ErrorKind, Log, NodeId};
use http::HeaderMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tonic::Status;

/// The one log that a server has for now.
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
    /// Of a copy that follows: whether its own source keeps it up to date.
    fed: AtomicBool,
    /// Copies that are fed now, all that ever were, and bytes of blocks that they were sent.
    copies: AtomicU64,
    copies_begun: AtomicU64,
    copies_bytes: AtomicU64,
    room: Room,
    gauges: Arc<Gauges>,
    /// Without a log: the member that a cluster calls here. 0: nobody calls.
    called_as: AtomicU64,
}

/// What a server does for copies of its log that follow.
///
/// ```
/// let copies = chiplog_net::served::log_slot::LogSlot::new().copies();
/// assert_eq!((copies.now, copies.bytes), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// That are fed now.
    pub now: u64,
    /// Streams that were begun since the start.
    pub begun: u64,
    /// Bytes of blocks that were sent to them since the start.
    pub bytes: u64,
}

/// A copy that is fed. Counts until it is dropped.
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

/// That a server has no replica and a cluster calls it, in words; `member init` would make another cluster in its place.
pub fn without_replica(server: &str, called_as: NodeId) -> String {
    format!(
        "{server} has no replica, and a cluster has node {called_as} at its address: was its directory emptied, or is it not mounted? Ask another server of that cluster"
    )
}

impl LogSlot {
    /// Without a log: every call is answered that the server is not part of a cluster yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// From now on this log is served. The first one stays.
    pub fn open(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// The log, whatever its name, also while the server drains. None: the server waits to become part of a cluster.
    pub fn opened(&self) -> Option<&Log> {
        self.log.get()
    }

    /// The member that a cluster takes a server without a log for, as the transport between replicas says.
    pub fn set_called_as(&self, node: Option<NodeId>) {
        self.called_as.store(node.map_or(0, NodeId::get), Ordering::Relaxed);
    }

    /// The same. None: there is a log, or nobody calls.
    pub fn called_as(&self) -> Option<NodeId> {
        let node = NodeId(self.called_as.load(Ordering::Relaxed));
        (!node.is_none() && self.opened().is_none()).then_some(node)
    }

    /// What is open at this server.
    pub fn gauges(&self) -> &Arc<Gauges> {
        &self.gauges
    }

    /// From now on no call is begun. Streams that go on should look at [`Self::drained`] and end in order.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether the server is about to end.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns once the server is about to end.
    pub async fn drained(&self) {
        // It cannot fail: the sender is here.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Checks that a call means this log, if it says which: at the address of a server whose directory was lost another log can
    /// be. A server without a log answers for itself.
    ///
    /// # Errors
    /// FAILED_PRECONDITION, `Diverged`.
    pub(crate) fn check_log_id(&self, headers: &HeaderMap) -> Result<(), Status> {
        let (Some(meant), Some(log)) = (headers.get(LOG_ID), self.opened()) else { return Ok(()) };
        let ours = to_hex(log.info().log_id.get());
        if meant.as_bytes() == ours.as_bytes() {
            return Ok(());
        }
        let meant = String::from_utf8_lossy(meant.as_bytes());
        let what = format!(
            "this server has log {ours}, and log {meant} is meant: it is of another cluster, or its directory was lost and a new cluster made in its place"
        );
        Err(to_status(&Error::new(ErrorKind::Diverged, what), None))
    }

    /// Checks a log's name, as a request gives it.
    ///
    /// # Errors
    /// NOT_FOUND for another name than "default" or none.
    pub fn check_name(&self, name: &str) -> Result<(), Status> {
        if name.is_empty() || name == DEFAULT_LOG {
            return Ok(());
        }
        let what = format!("there is no log {name:?} on this server; its only one is {DEFAULT_LOG:?}");
        Err(to_status(&Error::new(ErrorKind::NotFound, what), None))
    }

    /// The log of this name, as a request names it.
    ///
    /// # Errors
    /// NOT_FOUND for another name than "default" or none; UNAVAILABLE before there is a log, and when the server is
    /// about to end.
    pub fn log(&self, name: &str) -> Result<&Log, Status> {
        self.check_name(name)?;
        let unavailable = |what| to_status(&Error::new(ErrorKind::Unavailable, what), None);
        if self.is_draining() {
            return Err(unavailable("this server is about to end"));
        }
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        Err(match self.called_as() {
            Some(node) => {
                to_status(&Error::new(ErrorKind::Unavailable, without_replica("this server", node)), None)
            }
            None => unavailable(
                "this server is not part of a cluster yet: `chiplog member init`, or add it to one",
            ),
        })
    }

    /// An append was refused: as `Full`, the status tells it.
    pub(crate) fn refused(&self, error: &Error) {
        if let Some(log) = self.opened() {
            self.room.refused(log, error);
        }
    }

    /// Why the log takes no appends for want of room, if this replica leads.
    pub(crate) fn fullness(&self) -> Option<String> {
        let log = self.opened().filter(|log| log.status().role == chiplog::Role::Leader)?;
        self.room.why_none(log)
    }

    /// What is done for copies that follow.
    pub fn copies(&self) -> Copies {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Copies { now: get(&self.copies), begun: get(&self.copies_begun), bytes: get(&self.copies_bytes) }
    }

    pub(crate) fn feeding(self: &Arc<Self>) -> Feeding {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.copies_begun.fetch_add(1, Ordering::Relaxed);
        Feeding(self.clone())
    }

    /// Whether what is committed anywhere comes to be known here: a replica knows a leader; a copy's own source is so.
    /// Takes a moment, as [`Self::another_leader`].
    pub fn is_fed(&self) -> bool {
        match self.log.get() {
            Some(log) if log.info().follows => self.fed.load(Ordering::Relaxed),
            Some(log) => log.status().leader.is_some(),
            None => false,
        }
    }

    pub(crate) fn set_fed(&self, fed: bool) {
        self.fed.store(fed, Ordering::Relaxed);
    }

    /// Where the leader serves clients, if that is another replica and known: for who was refused here. A leader that is
    /// handing over refuses as well, and is no place to send anybody. Takes a moment: not for the path of every append.
    pub fn another_leader(&self) -> Option<String> {
        let status = self.log.get()?.status();
        let leader = status.leader.filter(|leader| *leader != status.node)?;
        let member = status.members.into_iter().find(|m| m.node == leader)?;
        member.address.parse().ok().map(|a: Address| a.client)
    }

    /// The log's error as a status, with the leader where that is what the caller needs.
    pub fn status_of(&self, error: &Error) -> Status {
        let leader = matches!(error.kind(), ErrorKind::NotLeader).then(|| self.another_leader()).flatten();
        to_status(error, leader.as_deref())
    }
}
