//! chiplog: an embeddable, replicated log.
//!
//! Many threads append records; group commit makes them durable together, with one sync. Readers get the records in
//! order, each at the index it was given, with its checksum verified. Records are discarded from the front.
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
//! Start with [`Log`]. The other entry points:
//!
//! - [`BatchBuilder`]: several records in one append.
//! - [`Log::submit`] and [`Ticket`]: appends without waiting.
//! - [`Signal`]: completions and new records in an event loop.
//! - [`Session`]: exactly-once appends.
//! - [`cluster::ClusterOptions`]: a log that is one of several replicas.
//! - [`ReadOnlyLog`]: reads a log that another process writes.
//! - [`follower::FollowSource`] and [`FollowerLog`]: a copy that follows a log without being a member of its cluster.
//! - [`backup::Backup`]: a sealed copy, and a log made from it.
//!
//! Linux only: the log relies on the guarantees that `pwritev`, `fdatasync`, `flock` and futexes give there.
//!
//! Two pages describe the log as a whole: [`pages::format`] is the byte format of the files and says which code checks
//! what; [`pages::positions`] defines every position in a log and who may see it.

#[macro_use]
mod testing;
#[macro_use]
mod setters;

mod api;
pub mod backup;
pub mod cluster;
pub mod disk;
mod error;
pub mod follower;
pub mod inspect;
pub mod metrics;
mod options;
mod random;
mod read;
mod record;
mod replica;
mod store;
mod sync;
mod types;
pub mod vault;

pub use api::follower::FollowerLog;
pub use api::log::Log;
pub use api::logs::{LogInfo, Logs, LogsOptions};
pub use api::payload::{Payload, SessionPayload};
pub use api::read_only::ReadOnlyLog;
pub use api::session::Session;
pub use api::status::Status;
pub use error::{Error, ErrorKind, Result};
pub use options::log_options::{LogOption, LogOptions};
pub use options::{Clock, Options};
pub use read::canceller::Canceller;
pub use read::reader::Reader;
pub use read::records::{OwnedRecord, Record, RecordBatch, StoredBatch};
pub use read::view::Start;
pub use record::batch::{Batch, BatchBuilder};
pub use record::compression::Codec;
pub use store::segment::ReadMode;
pub use sync::completion::{Appended, Durability, Ticket, TicketValue};
pub use sync::event_fd::Signal;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use testing::fuzzing;
#[cfg(any(test, feature = "testing"))]
pub use testing::sim;
pub use types::{
    DirectoryId, EntryIndex, Index, LogId, LogNumber, NodeId, SegmentId, Sequence, SessionId, Term, Timestamp,
};

/// Parts that chiplog's other crates share. They may change in any version.
#[cfg(feature = "internal")]
pub mod internal {
    pub use crate::api::log::objects::LogObject;
    pub use crate::api::log::segments::SealedSegment;
    pub use crate::api::logs::directories::{DirectoryFault, GroupDirectories};
    pub use crate::disk::mmap::ForkGuard;
    pub use crate::record::crc::Crc;
    pub use crate::replica::node::publish::StoreFailure;
    pub use crate::replica::open::{is_own_file, is_segment_file};
    pub use crate::store::objects::names::{
        begin_name, begin_text, branch_name, not_there, object_name, root_name, root_text, time_name,
    };
    pub use crate::store::read::sealed_file::SealedFile;
}

/// The bounds of the file format, and of what a log has open.
pub mod limits {
    pub use crate::record::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX};
    pub use crate::store::format::geometry::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
    pub use crate::store::objects::cache::FILES_MAX as CACHED_OBJECTS_MAX;
}

/// Messages between replicas: the interface to a network, and a network in memory.
pub mod transport {
    pub use crate::cluster::memory_transport::{MemoryNetwork, Traffic};
    pub use crate::cluster::peer_queue::PeerQueue;
    pub use crate::cluster::transport::*;
}

/// Pages about the log as a whole, from the project's `docs/`. Text only.
pub mod pages {
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}

    #[doc = include_str!("../docs/positions.md")]
    pub mod positions {}
}
