//! Options and status of a replica in its cluster. Values only.
//!
//! Must not know: raft, threads, files.

use crate::cluster::membership::Member;
use crate::cluster::transport::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{EntryIndex, Index, LogId, NodeId, Term};
use std::sync::Arc;
use std::time::Duration;

/// How a replica starts when its directory contains none yet. A directory that contains a replica of the same cluster
/// continues with it, and this value is ignored. A directory of another cluster is refused.
///
/// ```
/// use chiplog::cluster::Bootstrap;
/// assert_eq!(Bootstrap::default(), Bootstrap::Existing);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bootstrap {
    /// The replica must already exist: an emptied disk is an error, not a new voter.
    #[default]
    Existing,
    /// Makes a new cluster whose only voter is this node. Use it on one node, once.
    Init,
    /// Joins the cluster of this log. The cluster has to add this node as a member.
    Join(LogId),
}

options! {
    /// A replica's configuration in its cluster.
    ///
    /// ```
    /// use chiplog::transport::MemoryNetwork;
    /// use chiplog::cluster::{Bootstrap, ClusterOptions};
    /// use chiplog::{Log, NodeId, Options};
    ///
    /// let network = MemoryNetwork::new();
    /// let dir = tempfile::tempdir()?;
    /// let cluster = ClusterOptions::new(NodeId(1), Bootstrap::Init, network.transport());
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20).cluster(cluster))?;
    /// log.append(b"replicated on one node")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug)]
    pub struct ClusterOptions {
        /// This replica's permanent number.
        pub node: NodeId,
        /// The address at which the other replicas reach it. Only the transport interprets it.
        pub address: String,
        /// How to start in a directory that contains no replica yet.
        pub bootstrap: Bootstrap,
        /// The transport to the other replicas.
        pub transport: Arc<dyn Transport>,
        /// The interval of the leader's heartbeats. Default 100 ms.
        pub heartbeat: Duration,
        /// A follower starts an election after receiving nothing from a leader for one to two times this long. Default
        /// 1 s; at least three heartbeats, at most an hour.
        pub election_timeout: Duration,
        /// The most bytes of blocks in one message to a replica that is catching up, default 1 MiB. A larger block is
        /// sent alone.
        pub message_bytes_max: u32,
        /// The most messages in flight to a follower at a time, default 64.
        pub messages_inflight_max: u16,
        /// The most bytes that may be appended and not yet committed, default 64 MiB, at least 1. Beyond it, appends
        /// wait in the queue.
        pub uncommitted_bytes_max: usize,
        /// The most bytes of messages that may wait for this replica, default 64 MiB, at least 64 KiB. Messages beyond
        /// it are dropped.
        pub inbox_bytes_max: usize,
        /// A leader transfers leadership if the median of its last seven syncs takes longer than this. It does so at
        /// most once in 10 s, and less and less often if it is elected again. Default 500 ms, at least 1 ms; None:
        /// never.
        pub slow_disk_sync: Option<Duration>,
        /// Bytes a second that the scrub reads, to find damage before a reader does. Default 4 MiB/s; 0: no scrub.
        pub scrub_bytes_per_second: u64,
        /// The seed of random election time-outs. 0 (the default): the system's random numbers.
        pub seed: u64,
    }
}

/// Keeps twice the time-out, and its multiples in ticks, within range.
const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Leaves room for election messages behind a message that carries a small block.
const INBOX_BYTES_MIN: usize = 64 << 10;

impl ClusterOptions {
    /// The options with their defaults.
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
            slow_disk_sync: Some(Duration::from_millis(500)),
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
                "option cluster.uncommitted_bytes_max is 0: no append would ever be accepted; it has to be at least 1",
            );
        }
        if self.inbox_bytes_max < INBOX_BYTES_MIN {
            let what = format!(
                "option cluster.inbox_bytes_max is {}; it has to be at least {INBOX_BYTES_MIN}: messages that do not fit are dropped",
                self.inbox_bytes_max
            );
            return refuse(&what);
        }
        if self.slow_disk_sync.is_some_and(|limit| limit < Duration::from_millis(1)) {
            let what = format!(
                "option cluster.slow_disk_sync is {:?}; it has to be at least 1 ms, or none to never transfer leadership",
                self.slow_disk_sync.unwrap_or_default()
            );
            return refuse(&what);
        }
        Ok(())
    }
}

/// The role of a replica in its cluster.
///
/// ```
/// assert_ne!(chiplog::cluster::Role::Leader, chiplog::cluster::Role::Follower);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Orders the appends.
    Leader,
    /// Receives entries from a leader, and votes.
    Follower,
    /// Is running for election.
    Candidate,
    /// Receives entries from a leader, and does not vote.
    Learner,
    /// Follows the cluster without being a member of it; the cluster does not know it. See
    /// [`FollowerLog`](crate::FollowerLog).
    Observer,
    /// Fetches damaged blocks from other replicas; takes no part in the cluster until it has them.
    Repairing,
    /// Takes no part: it was removed from the cluster, or its directory is not the one that the cluster knows. The
    /// error of an append says which.
    Removed,
    /// Not known: a [`ReadOnlyLog`](crate::ReadOnlyLog) sees the files of a replica, not the replica.
    Unknown,
}

/// The progress of another replica, as the leader knows it.
///
/// ```
/// # fn show(peer: &chiplog::cluster::PeerStatus) {
/// println!("node {} lacks {} entries", peer.node, peer.lag);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The replica.
    pub node: NodeId,
    /// The last entry that it is known to have durably.
    pub matched: EntryIndex,
    /// How many entries it is behind the leader's last one.
    pub lag: u64,
    /// Whether the leader received a message from it within the last election time-out.
    pub active: bool,
}

/// The status of a replica in its cluster.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let replica = log.status().replica;
/// assert_eq!(replica.role, chiplog::cluster::Role::Leader); // a log on its own leads itself
/// assert!(replica.peers.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// This replica's number. 0: it has none, or it is not known.
    pub node: NodeId,
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// The leader, if it is known and sent a message within the last two election time-outs.
    pub leader: Option<NodeId>,
    /// The last committed record that it knows of. It can be ahead of
    /// [`Status::last_index`](crate::Status::last_index), which is written here too.
    pub committed_index: Index,
    /// The last committed entry that it knows of.
    pub committed_entry: EntryIndex,
    /// Its last entry, committed or not.
    pub last_entry: EntryIndex,
    /// The members of the cluster.
    pub members: Vec<Member>,
    /// The progress of the other replicas. Empty unless this replica leads.
    pub peers: Vec<PeerStatus>,
}

impl ReplicaStatus {
    /// The numbers of the voters that are not about to leave, ascending.
    pub fn voters(&self) -> Vec<NodeId> {
        let stays = |m: &&Member| m.is_voter() && !m.is_leaving();
        let mut voters: Vec<NodeId> = self.members.iter().filter(stays).map(|m| m.node).collect();
        voters.sort_unstable();
        voters
    }
}
