//! Status: a follower's state, as its thread last saw it.

use chiplog::{Error, Index};
use std::time::Instant;

/// The state of a [`Follower`](super::Follower).
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
    /// The server that feeds it, `host:port`; None: it is looking for one.
    pub server: Option<String>,
    /// Since when this server feeds it.
    pub connected_since: Option<Instant>,
    /// The first record of the copy; in an empty copy, the first one to come.
    pub first: Index,
    /// The last record of the copy; in an empty copy `first - 1`.
    pub last: Index,
    /// The last record that the current or the previous server reported to have, but at least `last`.
    pub source_last: Index,
    /// Whether this server is itself up to date: it knows a leader. False without a server.
    pub fed: bool,
    /// The last temporary error.
    pub last_error: Option<Error>,
    /// The permanent error that stopped the follower. None: it is running or was closed.
    pub stopped: Option<Error>,
    /// The number of times that a server started to send, since it was opened.
    pub connects: u64,
    /// The number of jumps over records that all servers had discarded.
    pub jumps: u64,
    /// Bytes of blocks received since it was opened.
    pub received_bytes: u64,
    /// Records received since it was opened.
    pub received_records: u64,
}

impl FollowerStatus {
    /// The number of records that the server is known to have and the copy does not.
    pub fn lag(&self) -> u64 {
        self.source_last.get().saturating_sub(self.last.get())
    }
}
