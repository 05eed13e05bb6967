//! chiplog: an embeddable log. Records go in from many threads, durably, under one group commit; come out at
//! the disk's speed, verified, in order, at the index they were given; and are discarded from the front.
//!
//! ```
//! use chiplog::{Log, Options, Start};
//!
//! let dir = tempfile::tempdir()?;
//! let log = Log::open(dir.path(), Options::default())?;
//! let index = log.append(b"hello")?; // durable when it returns
//! let mut reader = log.reader(Start::First)?;
//! let record = reader.next_record()?.expect("one record");
//! assert_eq!((record.index, record.data), (index, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with [`Log`]. Many records in one append: [`BatchBuilder`]. Appends without waiting: [`Log::submit`]
//! and [`Ticket`]. In an event loop: [`Signal`]. Exactly once: [`Session`]. Looking at a log that another process writes: [`ReadOnlyLog`]. A copy that
//! follows a log from outside: [`FollowSource`] and [`FollowerLog`]. A copy to keep, and a log made of it: [`Backup`].
//!
//! Linux only: it relies on what `pwritev`, `fdatasync`, `flock` and futexes promise there.
//!
//! To read on: every byte of the files and who checks what ([`pages::format`]); how far a log is, and who may see
//! what ([`pages::positions`]).

#[macro_use]
mod testing;

mod api;
mod backup;
mod cluster;
pub mod disk;
mod error;
mod follower;
pub mod inspect;
mod options;
mod read;
mod record;
mod replica;
mod stats;
mod store;
mod sync;
mod types;

pub use api::follower::FollowerLog;
pub use api::log::{Info, Log};
pub use api::read_only::ReadOnlyLog;
pub use api::session::Session;
pub use backup::Backup;
pub use backup::manifest::BackupInfo;
pub use backup::restore::{RestoreOptions, RestoreTo, Restored};
pub use cluster::membership::{Change, MEMBERS_MAX, Member};
pub use cluster::options::{Bootstrap, Cluster, PeerStatus, Role, Status};
pub use disk::mmap::ForkGuard;
pub use error::{Error, ErrorKind, Result};
pub use follower::applier::Jumped;
pub use follower::message::{FollowEntries, FollowEntry, FollowFrom, FollowMessage};
pub use follower::source::FollowSource;
pub use options::log_options::{LogOption, LogOptions};
pub use options::{Clock, Options};
pub use read::canceller::Canceller;
pub use read::reader::{Reader, Start};
pub use read::records::{OwnedRecord, Record, RecordBatch, StoredBatch};
pub use record::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX, Batch, BatchBuilder};
pub use record::compression::Codec;
pub use replica::state::snapshot::FollowSnapshot;
pub use stats::{BLOCK_BUCKETS, Backlog, SYNC_BUCKETS, Stats};
pub use store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use store::segment::ReadMode;
pub use sync::completion::{Answer, Appended, Ticket};
pub use sync::event_fd::Signal;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use testing::fuzzing;
#[cfg(any(test, feature = "sim"))]
pub use testing::sim;
pub use types::{
    DirectoryId, EntryIndex, Index, LogId, NodeId, SegmentId, Sequence, SessionId, Term, Timestamp,
};

/// Messages between replicas: the seam to a network, and a network in memory.
pub mod transport {
    pub use crate::cluster::memory_transport::{MemoryNetwork, Traffic};
    pub use crate::cluster::peer_queue::PeerQueue;
    pub use crate::cluster::transport::*;
}

/// Pages about the log as a whole, as they stand in the project's `docs/`. Nothing but text.
pub mod pages {
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}

    #[doc = include_str!("../docs/positions.md")]
    pub mod positions {}
}
