//! Follow: the service `chiplog.v1.Follow`: feeds copies of the log that do not vote, over a [`LogSlot`].
//!
//! ```text
//! service.rs   the call as tonic serves it; answers as bytes of the wire
//! source.rs    one stream: FollowSource::next ──> blocks as they stand in the log ──> responses of about 1 MiB
//! ```
//!
//! Invariants:
//! - No thread of the runtime waits for the disk while a copy catches up.
//! - A stream holds one response at a time; what its copy does not take stays in the log. Dropping it frees everything.
//! - A stream ends because its copy left, the server ends, or the log fails: never because the log has nothing new.
//!
//! Must not know: who leads; what the blocks say.

mod service;
mod source;

use crate::listener::memory_budget::Budget;
use crate::served::log_slot::LogSlot;
pub use service::FollowServer;
use std::sync::Arc;

/// How many bytes of blocks go into one response. One block can go over it.
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
    /// Of calls that no [`CallBudgetLayer`](crate::listener::stream_budget::CallBudgetLayer) has settled.
    budget: Budget,
}

impl Follow {
    /// With responses of about 1 MiB.
    pub fn new(host: Arc<LogSlot>) -> Self {
        Self { host, response_bytes: RESPONSE_BYTES, budget: Budget::default() }
    }

    /// As tonic serves it.
    pub fn into_service(self) -> FollowServer {
        FollowServer::new(self)
    }
}
