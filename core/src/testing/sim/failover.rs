//! Fail-over: how long no append was acknowledged after a leader was lost.

use std::time::Duration;

/// The time from the loss of a leader to the next acknowledged append.
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
