//! Fail-over: how long appends stood still when a leader was lost.

use std::time::Duration;

/// How long it took until somebody acknowledged an append after a leader was lost.
///
/// ```
/// use chiplog::sim::FailOver;
/// use std::time::Duration;
/// let failover = FailOver { took: Duration::from_secs(3), election_timeout: Duration::from_secs(1) };
/// assert!(!failover.is_in_time());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOver {
    /// From the loss to the acknowledgement.
    pub took: Duration,
    /// The cluster's election time-out.
    pub election_timeout: Duration,
}

impl FailOver {
    /// Whether it took at most two election time-outs.
    pub fn is_in_time(&self) -> bool {
        self.took <= self.election_timeout * 2
    }
}
