//! Cluster: what a replica is told when it is opened, and what it tells of itself. Values only.
//!
//! Must not know: raft, threads, files.

use crate::cluster::membership::Member;
use crate::cluster::transport::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DirectoryId, EntryIndex, Index, LogId, NodeId, Term};
use std::sync::Arc;
use std::time::Duration;

/// How a replica comes into being when its directory holds none yet. A directory that has one goes on with it, and
/// this is not looked at: except that another cluster's directory is refused.
///
/// ```
/// use chiplog::Bootstrap;
/// assert_eq!(Bootstrap::default(), Bootstrap::Existing);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bootstrap {
    /// There has to be one already: an emptied disk is an error, not a new voter.
    #[default]
    Existing,
    /// Makes a new cluster whose only voter is this node. To be said on one node, once.
    Init,
    /// Joins the cluster of this log; somebody has to add this node to it.
    Join(LogId),
}

/// A replica's place in its cluster.
///
/// ```
/// use chiplog::transport::MemoryNetwork;
/// use chiplog::{Bootstrap, Cluster, Log, NodeId, Options};
///
/// let network = MemoryNetwork::new();
/// let dir = tempfile::tempdir()?;
/// let cluster = Cluster::new(NodeId(1), Bootstrap::Init, network.transport());
/// let log = Log::open(dir.path(), Options { cluster: Some(cluster), ..Options::with_segment_bytes(1 << 20) })?;
/// log.append(b"replicated on one node")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cluster {
    /// This replica's name, for ever.
    pub node: NodeId,
    /// Where the others reach it; means something to the transport only.
    pub address: String,
    /// What to do in a directory that holds no replica yet.
    pub bootstrap: Bootstrap,
    /// The way to the others.
    pub transport: Arc<dyn Transport>,
    /// How often the leader says that it is there. Default 100 ms.
    pub heartbeat: Duration,
    /// How long a follower bears with silence before it stands for election: this to twice this. Default 1 s; at
    /// least three heartbeats, at most an hour.
    pub election_timeout: Duration,
    /// The most bytes of blocks in one message to a replica that catches up, default 1 MiB. A larger block goes
    /// alone.
    pub message_bytes_max: u32,
    /// Messages under way to a follower at a time, default 64.
    pub messages_inflight_max: u16,
    /// Bytes that may be appended and not yet committed, default 64 MiB, at least 1; beyond it appends wait.
    pub uncommitted_bytes_max: usize,
    /// Bytes of messages that may wait for this replica, default 64 MiB, at least 64 KiB; beyond it they are dropped.
    pub inbox_bytes_max: usize,
    /// A leader whose syncs take longer than this, in the median of the last seven, lets another lead; not again within
    /// 10 s, and ever more rarely if the lead comes back. Default 500 ms, at least 1 ms; None: never.
    pub limping_sync: Option<Duration>,
    /// Bytes a second that the scrub reads to find rot before a reader does, default 4 MiB/s; 0: no scrub.
    pub scrub_bytes_per_second: u64,
    /// Where the election time-outs' chance comes from; 0, the default: from the system.
    pub seed: u64,
}

/// Twice this, and a multiple of it in ticks, is still a time.
const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Messages that elections hang on find room behind one that carries a small block.
const INBOX_BYTES_MIN: usize = 64 << 10;

impl Cluster {
    /// With the defaults.
    pub fn new(node: NodeId, bootstrap: Bootstrap, transport: Arc<dyn Transport>) -> Self {
        Self {
            node,
            address: String::new(),
            bootstrap,
            transport,
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_secs(1),
            message_bytes_max: 1 << 20,
            messages_inflight_max: 64,
            uncommitted_bytes_max: 64 << 20,
            inbox_bytes_max: 64 << 20,
            limping_sync: Some(Duration::from_millis(500)),
            scrub_bytes_per_second: 4 << 20,
            seed: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        if self.node.is_none() {
            return refuse("option cluster.node is 0; nodes are numbered from 1");
        }
        if self.heartbeat < Duration::from_millis(1) || self.heartbeat > Duration::from_secs(60) {
            let what =
                format!("option cluster.heartbeat is {:?}; it has to be from 1 ms to 60 s", self.heartbeat);
            return refuse(&what);
        }
        if self.election_timeout < 3 * self.heartbeat {
            let what = format!(
                "option cluster.election_timeout is {:?}; it has to be at least three times cluster.heartbeat, which is {:?}",
                self.election_timeout, self.heartbeat
            );
            return refuse(&what);
        }
        if self.messages_inflight_max == 0 || self.message_bytes_max == 0 {
            return refuse(
                "options cluster.messages_inflight_max and message_bytes_max have to be at least 1",
            );
        }
        if self.election_timeout > ELECTION_TIMEOUT_MAX {
            let what = format!(
                "option cluster.election_timeout is {:?}; it has to be at most {ELECTION_TIMEOUT_MAX:?}",
                self.election_timeout
            );
            return refuse(&what);
        }
        if self.uncommitted_bytes_max == 0 {
            return refuse(
                "option cluster.uncommitted_bytes_max is 0: no append would ever be taken; it has to be at least 1",
            );
        }
        if self.inbox_bytes_max < INBOX_BYTES_MIN {
            let what = format!(
                "option cluster.inbox_bytes_max is {}; it has to be at least {INBOX_BYTES_MIN}: what does not fit is dropped",
                self.inbox_bytes_max
            );
            return refuse(&what);
        }
        if self.limping_sync.is_some_and(|limit| limit < Duration::from_millis(1)) {
            let what = format!(
                "option cluster.limping_sync is {:?}; it has to be at least 1 ms, or none for a leader that never steps aside",
                self.limping_sync.unwrap_or_default()
            );
            return refuse(&what);
        }
        Ok(())
    }
}

/// What a replica does in its cluster.
///
/// ```
/// assert_ne!(chiplog::Role::Leader, chiplog::Role::Follower);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Orders the appends.
    Leader,
    /// Follows a leader, and votes.
    Follower,
    /// Stands for election.
    Candidate,
    /// Follows and does not vote.
    Learner,
    /// Follows from outside: no member of the cluster, which does not know of it. See [`FollowerLog`](crate::FollowerLog).
    Observer,
    /// Fetches blocks that were found damaged; takes no part until it has them.
    Repairing,
    /// Takes no part: removed from the cluster, or its directory is not the one the cluster knows. An append is told
    /// which.
    Removed,
}

/// How far another replica is, as the leader knows it.
///
/// ```
/// # fn show(peer: &chiplog::PeerStatus) {
/// println!("node {} lacks {} entries", peer.node, peer.lag);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Which.
    pub node: NodeId,
    /// The last entry it is known to have durably.
    pub matched: EntryIndex,
    /// Entries behind the leader's last.
    pub lag: u64,
    /// Whether it was heard of within the last election time-out.
    pub active: bool,
}

/// How a replica stands in its cluster.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let status = log.status();
/// assert_eq!(status.role, chiplog::Role::Leader); // a log on its own leads itself
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The log.
    pub log_id: LogId,
    /// This replica.
    pub node: NodeId,
    /// Its directory.
    pub directory: DirectoryId,
    /// What it does.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// Who leads, if that is known and something was heard of it within the last two election time-outs.
    pub leader: Option<NodeId>,
    /// The last committed record that it knows of.
    pub committed: Index,
    /// The last committed entry that it knows of.
    pub committed_raft: EntryIndex,
    /// Its last entry, committed or not.
    pub last_raft: EntryIndex,
    /// Who belongs to the cluster.
    pub members: Vec<Member>,
    /// How far the others are; of a leader only.
    pub peers: Vec<PeerStatus>,
}
