//! Deadline: the points in time that callers' durations lead to. Pure.
//!
//! Invariant: no duration is too long: what lies beyond [`FAR`] is as good as never, and stays a valid time.

use std::time::Duration;
use tokio::time::Instant;

/// As good as never; some of it added up is still a valid time.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// So long after `from`.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from + wait.min(FAR)
}

/// So long from now on.
pub(crate) fn within(wait: Duration) -> Instant {
    after(Instant::now(), wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Instant + Duration::MAX` panics: `flush(Duration::MAX)` did, and with `linger` it ended the process.
    #[test]
    fn for_ever_is_a_time() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::from_secs(5)) - now, Duration::from_secs(5));
        let never = after(after(within(Duration::MAX), Duration::MAX), Duration::MAX);
        assert!(never > after(now, FAR));
    }
}
