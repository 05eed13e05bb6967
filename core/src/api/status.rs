//! Status: one snapshot of a log: its identity, its positions, its size, and its part in a cluster. Values only.

use crate::cluster::options::ReplicaStatus;
use crate::types::{DirectoryId, Index, LogId, Timestamp};

/// The state of a log: identity, positions, size, and its part in a cluster. A value of one moment.
///
/// Calls such as [`Log::last_index`](crate::Log::last_index) return one number of it and cost less.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let status = log.status();
/// assert_eq!((status.first_index.get(), status.last_index.get()), (1, 1));
/// assert_eq!(status.replica.role, chiplog::cluster::Role::Leader); // a log on its own leads itself
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The log's permanent id.
    pub log_id: LogId,
    /// The id of this directory, one copy of the log.
    pub directory_id: DirectoryId,
    /// Whether this copy follows the log from outside the cluster: see [`FollowerLog`](crate::FollowerLog).
    pub follows: bool,
    /// The first record that is not discarded; in an empty log, the index of the next append.
    pub first_index: Index,
    /// The last committed record that can be read here; in an empty log `first_index - 1`.
    pub last_index: Index,
    /// The last record that is durable on this node.
    pub durable_index: Index,
    /// Bytes of blocks from the first record on, accurate to about 32 KiB.
    pub bytes_used: u64,
    /// The limit of `bytes_used`: the log's own option ([`Log::log_options`](crate::Log::log_options)) if it is set,
    /// else that of [`Options`](crate::Options). `None`: no limit, or a handle that does not write and so cannot know
    /// it.
    pub bytes_capacity: Option<u64>,
    /// How many segments hold them.
    pub segments: u64,
    /// How many exactly-once sessions are open.
    pub sessions: u32,
    /// The time when the newest block was written.
    pub last_timestamp: Timestamp,
    /// This copy's part in its cluster. A log on its own is a cluster of one.
    pub replica: ReplicaStatus,
}
