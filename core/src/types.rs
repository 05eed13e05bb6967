//! The numbers of a log. Each has a type of its own, so that none is passed for another.
//!
//! Must not know: files, threads, formats. All are plain values, `Copy`, ordered, and print as numbers.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The bare number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// A record's position in the log: 1, 2, 3 … without holes. 0 means "before the first record".
    ///
    /// ```
    /// use chiplog::Index;
    /// assert_eq!(Index(7).next(), Index(8));
    /// assert_eq!(Index(7).plus(3), Index(10));
    /// ```
    Index(u64)
}

number! {
    /// A block's position in the order of raft entries. 0 means "before the first entry".
    ///
    /// ```
    /// assert_eq!(chiplog::EntryIndex(3).get(), 3);
    /// ```
    EntryIndex(u64)
}

number! {
    /// A raft term. An embedded log starts a new one each time it is opened for writing.
    ///
    /// ```
    /// assert!(chiplog::Term(1) < chiplog::Term(2));
    /// ```
    Term(u64)
}

/// A restored log that keeps its id begins this many terms after the backup's last one. Entries that the old log
/// wrote after the backup may still be in a replica or a copy that was thought lost. Entries are the same only if
/// index and term are, and elections never reach a term this far ahead.
pub(crate) const TERMS_APART: u64 = 1 << 32;

number! {
    /// The number of an exactly-once session: the raft index of the entry that opened it, so it is never reused. 0
    /// means "no session".
    ///
    /// ```
    /// assert!(chiplog::SessionId(0).is_none());
    /// ```
    SessionId(u64)
}

number! {
    /// A batch's number within its session: 1, 2, 3 …; 0 without a session.
    ///
    /// ```
    /// assert_eq!(chiplog::Sequence(1).get(), 1);
    /// ```
    Sequence(u64)
}

number! {
    /// Wall-clock milliseconds since 1970-01-01 UTC. Within a log, timestamps never decrease.
    ///
    /// ```
    /// let t = chiplog::Timestamp(1_700_000_000_000);
    /// assert_eq!(t.get() / 1000, 1_700_000_000);
    /// ```
    Timestamp(u64)
}

number! {
    /// The permanent id of a log: random, the same in every file and on every replica.
    ///
    /// ```
    /// assert_eq!(chiplog::LogId(0xabc).to_string(), "2748");
    /// ```
    LogId(u128)
}

number! {
    /// The number of a log in its group, from 1; never reused. 0 means the group's own log: a directory that holds one
    /// log only.
    ///
    /// ```
    /// assert!(chiplog::LogNumber(0).is_none());
    /// ```
    LogNumber(u32)
}

number! {
    /// The random id of a segment file. It salts every checksum in the file, so that bytes from an earlier use of the
    /// same file never pass as new.
    ///
    /// ```
    /// assert_eq!(chiplog::SegmentId(9).get(), 9);
    /// ```
    SegmentId(u64)
}

number! {
    /// A replica's number in its cluster, from 1; never reused. 0 means "no node". A log on its own is node 1.
    ///
    /// ```
    /// assert!(chiplog::NodeId(0).is_none());
    /// ```
    NodeId(u64)
}

number! {
    /// The random id of one copy of the log, made with the directory. The pair (node, directory) identifies a replica,
    /// so the cluster notices when a replica's disk was emptied.
    ///
    /// ```
    /// assert_ne!(chiplog::DirectoryId(1), chiplog::DirectoryId(2));
    /// ```
    DirectoryId(u128)
}

impl LogNumber {
    /// The group's own log.
    pub const OWN: Self = Self(0);

    /// Whether this is 0, the group's own log.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl NodeId {
    /// Whether this is 0, "no node".
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl Index {
    /// The index after this one. Saturates at `u64::MAX`, which no log reaches.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The index before this one; 0 stays 0.
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The index `count` positions further on, saturating.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl EntryIndex {
    /// The entry after this one, saturating.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl SessionId {
    /// Whether this is 0, "no session".
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}
