//! Snapshot: the state behind an entry, from which a copy of the log begins where no entries can lead it.
//!
//! Its body is that of an opening block: positions, membership, sessions, options of the log.
//!
//! Must not know: how it travels.

use crate::store::format::block::BlockHeader;
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use bytes::Bytes;

/// Where a follower begins: behind an entry, with all that the entries before led to.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let Some(chiplog::FollowMessage::State(state)) = log.follow(chiplog::FollowFrom::Newest)?.next(0)? else { panic!() };
/// assert_eq!((state.log(), state.next().get()), (log.info().log_id, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowSnapshot {
    pub(crate) log: LogId,
    pub(crate) committed: EntryIndex,
    pub(crate) kept: Index,
    pub(crate) header: BlockHeader,
    /// An opening block's.
    pub(crate) body: Bytes,
}

impl FollowSnapshot {
    /// The log's id.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The source's last committed entry when this was made.
    pub fn committed(&self) -> EntryIndex {
        self.committed
    }

    /// The entry that it stands behind.
    pub fn raft(&self) -> EntryIndex {
        self.header.raft_index
    }

    /// That entry's term.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// The record that comes next: a follower that begins here has none before it.
    pub fn next(&self) -> Index {
        self.header.first
    }

    /// When the last block before was written.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// Where it stands.
    pub(crate) fn base(&self) -> Base {
        Base { raft: self.raft(), term: self.term(), next: self.next() }
    }
}
