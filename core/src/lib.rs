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
//! and [`Ticket`]. In an event loop: [`Signal`]. Exactly once: [`Session`]. Looking at a log that another process writes: [`Viewer`]. A copy that
//! follows a log from outside: [`Feed`] and [`Followed`]. A copy to keep, and a log made of it: [`Backup`].
//!
//! Linux only: it relies on what `pwritev`, `fdatasync`, `flock` and futexes promise there.
//!
//! To read on: every byte of the files and who checks what ([`pages::format`]); how far a log is, and who may see
//! what ([`pages::positions`]).

#[macro_use]
mod planted;

mod backup;
mod batch;
mod canceller;
mod checksum;
mod cluster;
mod codec;
mod completion;
mod config;
mod diagnosis;
pub mod disk;
mod driver;
mod error;
mod exactly_once;
mod fed;
mod feed;
mod fetch;
mod followed;
mod following;
mod futex;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
pub mod inspect;
mod limping;
mod log;
mod log_clock;
mod log_options;
mod mail;
mod membership;
mod mender;
mod moment;
mod node;
mod open;
mod plan;
mod positions;
mod promise;
mod raft_codec;
mod reader;
mod records;
mod repairing;
mod replica;
mod rescue;
mod restore;
mod sequence;
mod session;
mod signal;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod snapshot;
mod stats;
mod store;
mod tend;
mod threads;
pub mod transport;
mod types;
mod viewer;
mod writing;

pub use backup::Backup;
pub use backup::manifest::BackupInfo;
pub use batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX, Batch, BatchBuilder};
pub use canceller::Canceller;
pub use cluster::{Bootstrap, Cluster, PeerStatus, Role, Status};
pub use codec::Codec;
pub use completion::{Answer, Appended, Ticket};
pub use config::{Clock, Options};
pub use disk::map::ForkGuard;
pub use error::{Error, ErrorKind, Result};
pub use exactly_once::Session;
pub use fed::{Fed, FedEntries, FedEntry, FeedFrom};
pub use feed::Feed;
pub use followed::Followed;
pub use following::Jumped;
pub use log::{Info, Log};
pub use log_options::{LogOption, LogOptions};
pub use membership::{Change, MEMBERS_MAX, Member};
pub use reader::{Reader, Start};
pub use records::{OwnedRecord, Record, RecordBatch, StoredBatch};
pub use restore::{RestoreOptions, RestoreTo, Restored};
pub use signal::Signal;
pub use snapshot::FedState;
pub use stats::{BLOCK_BUCKETS, Backlog, SYNC_BUCKETS, Stats};
pub use store::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use store::segment::ReadMode;
pub use types::{
    DirectoryId, Index, LogId, NodeId, RaftIndex, SegmentId, Sequence, SessionId, Term, Timestamp,
};
pub use viewer::Viewer;

/// Pages about the log as a whole, as they stand in the project's `docs/`. Nothing but text.
pub mod pages {
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}

    #[doc = include_str!("../docs/positions.md")]
    pub mod positions {}
}
