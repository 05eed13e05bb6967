//! Follow: the service `chiplog.v1.Follow`: feeds followers, which are copies of the log that do not vote, from a
//! [`LogSlot`].
//!
//! ```text
//! service.rs   the tonic service; encodes answers as bytes
//! source.rs    one stream: FollowSource::next ──> blocks as they are in the log ──> responses of about 1 MiB
//! objects.rs   what the log has in the object store, for copies that cannot reach it
//! ```
//!
//! Invariants:
//! - No runtime thread blocks on the disk while a follower catches up.
//! - A stream holds one response at a time; blocks that its follower has not read stay in the log. Dropping the stream
//!   frees everything.
//! - A stream ends because its follower left, the server is shutting down, or the log failed. It never ends because
//!   there are no new blocks.
//!
//! Must not know: the leader; the contents of blocks.

mod objects;
mod service;
mod source;

use crate::listener::memory_budget::Budget;
use crate::served::log_slot::LogSlot;
pub use service::FollowServer;
use std::sync::Arc;

/// The bytes of blocks in one response. The last block can exceed it.
const RESPONSE_BYTES: usize = 1 << 20;

/// The service `chiplog.v1.Follow`.
///
/// ```
/// use chiplog_net::service::follow::Follow;
/// use chiplog_net::served::log_slot::LogSlot;
/// # let dir = tempfile::tempdir()?;
/// let host = LogSlot::new();
/// host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?);
/// let server = tonic::transport::Server::builder().add_service(Follow::new(host).into_service());
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Follow {
    host: Arc<LogSlot>,
    response_bytes: usize,
    /// For calls that no [`CallBudgetLayer`](crate::listener::stream_budget::CallBudgetLayer) has settled.
    budget: Budget,
}

impl Follow {
    /// Creates the service, with responses of about 1 MiB.
    pub fn new(host: Arc<LogSlot>) -> Self {
        Self { host, response_bytes: RESPONSE_BYTES, budget: Budget::default() }
    }

    /// Returns the tonic service.
    pub fn into_service(self) -> FollowServer {
        FollowServer::new(self)
    }
}
