//! Snapshot: the state after an entry. A copy of the log starts from it where the entries before it cannot be read.
//!
//! Its body is the body of an opening block: positions, membership, sessions, options of the log.
//!
//! Must not know: how it is sent.

use crate::cluster::membership::Membership;
use crate::options::log_options::{LogOption, LogOptions};
use crate::replica::state::object_table::ObjectTable;
use crate::store::format::block::BlockHeader;
use crate::store::format::objects;
use crate::store::format::segment::Opening;
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use bytes::Bytes;

/// The state from which a follower starts: an entry, and the result of all entries up to it.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let Some(chiplog::follower::FollowMessage::State(state)) = log.follow(chiplog::follower::FollowFrom::Newest)?.next(0)? else { panic!() };
/// assert_eq!((state.log(), state.next().get()), (log.log_id(), 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowSnapshot {
    pub(crate) log: LogId,
    pub(crate) committed: EntryIndex,
    pub(crate) kept: Index,
    pub(crate) header: BlockHeader,
    /// The body of an opening block.
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

    /// The last entry that the state includes.
    pub fn raft(&self) -> EntryIndex {
        self.header.raft_index
    }

    /// That entry's term.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// Whether the log had objects then. A copy that reads them lacks no record if it continues here.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let Some(chiplog::follower::FollowMessage::State(state)) = log.follow(chiplog::follower::FollowFrom::Newest)?.next(0)? else { panic!() };
    /// assert!(!state.has_objects());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_objects(&self) -> bool {
        Opening::has_objects(&self.body).unwrap_or(false)
    }

    /// Whether this is a state of one log of a shared group.
    pub(crate) fn is_of_one_log(&self) -> bool {
        let membership =
            Opening::parse(&self.body).and_then(|opening| Membership::decode(&opening.configuration));
        membership.is_ok_and(|membership| membership.is_of_one_log())
    }

    /// Of one log of a shared group: the objects of the group, and the record below which all of the log are in these, or discarded.
    pub(crate) fn group_objects(&self) -> Option<(ObjectTable, Index)> {
        let opening = Opening::parse(&self.body).ok()?;
        let table = ObjectTable::of(objects::decode(&opening.objects).ok()?.0);
        table.group().is_some().then_some((table, opening.log_first))
    }

    /// Whether this is no state to begin at: it tells a copy of one log, which is as far, of the objects of its group.
    pub(crate) fn tells_of_objects(&self) -> bool {
        self.group_objects().is_some_and(|(_, stored_below)| stored_below < self.next())
    }

    /// The newest object that was cut then, of which log it is and its number; the first one, if the log was to have objects and had none.
    /// It is stored if a source leads past stored entries to this state, also if the entry that says so comes later. None: all its
    /// objects are discarded, or it is to have none.
    pub(crate) fn newest_object(&self) -> Option<(LogId, u64)> {
        if !self.has_objects() {
            return (self.expects_objects() && !self.is_of_one_log()).then_some((self.log, 0));
        }
        let objects =
            Opening::parse(&self.body).and_then(|opening| objects::decode(&opening.objects)).ok()?.0;
        let table = ObjectTable::of(objects);
        let number = table.end()?.0.checked_sub(1).filter(|number| *number >= table.number())?;
        Some((table.lineage(self.log).owner(number), number))
    }

    /// Whether the log was to have objects then. Malformed bytes have none: the copy refuses them.
    pub(crate) fn expects_objects(&self) -> bool {
        let options = Opening::parse(&self.body).and_then(|opening| LogOptions::decode(&opening.options));
        options.is_ok_and(|options| options.get(LogOption::ObjectBytes).is_some())
    }

    /// The next record's index. A follower that starts here has no records before it, or reads them from the log's objects.
    pub fn next(&self) -> Index {
        self.header.first
    }

    /// The timestamp of the last block up to that entry.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// The position after that entry.
    pub(crate) fn base(&self) -> Base {
        Base { raft: self.raft(), term: self.term(), next: self.next() }
    }
}
