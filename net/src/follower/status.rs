//! Status: how a follower stands, as its thread last saw it.

use chiplog::{Error, Index};
use std::time::Instant;

/// How a [`Follower`](super::Follower) stands.
///
/// ```
/// # use chiplog_net::follower::FollowerStatus;
/// fn show(status: &FollowerStatus) {
///     match &status.server {
///         Some(server) => println!("{} records behind {server}", status.lag()),
///         None => println!("no server; {:?}", status.last_error),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowerStatus {
    /// The server that feeds it, `host:port`; None: it looks for one.
    pub server: Option<String>,
    /// Since when that server does.
    pub connected_since: Option<Instant>,
    /// The first record here; of an empty copy, the first one to come.
    pub first: Index,
    /// The last record here; of an empty copy `first - 1`.
    pub last: Index,
    /// The last record that a server was known to have: of the one that feeds it, when that last said so.
    pub source_last: Index,
    /// Whether that server is kept up to date itself: it knows a leader. False without a server.
    pub fed: bool,
    /// What went wrong last, and was or will be tried again.
    pub last_error: Option<Error>,
    /// Why it has ended by itself. None: it has not.
    pub stopped: Option<Error>,
    /// Times that a server began to send, since it was opened.
    pub connects: u64,
    /// Times that it jumped over what all servers had discarded.
    pub jumps: u64,
    /// Bytes of blocks that came from servers since it was opened.
    pub received_bytes: u64,
    /// Records that came from servers since it was opened.
    pub received_records: u64,
}

impl FollowerStatus {
    /// Records that the server is known to have and that are not here yet.
    pub fn lag(&self) -> u64 {
        self.source_last.get().saturating_sub(self.last.get())
    }
}
