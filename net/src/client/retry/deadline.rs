//! Deadline: converts callers' durations into points in time. Pure.
//!
//! Invariant: no duration is too long: anything beyond [`FAR`] is treated as [`FAR`], which is a valid time.

use std::time::Duration;
use tokio::time::Instant;

/// Practically never; several of them added up are still a valid time.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The point in time `wait` after `from`.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from + wait.min(FAR)
}

/// The point in time `wait` from now.
pub(crate) fn within(wait: Duration) -> Instant {
    after(Instant::now(), wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Instant + Duration::MAX` panics: `flush(Duration::MAX)` did, and with `linger` it ended the process.
    #[test]
    fn longest_duration_is_a_valid_time() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::from_secs(5)) - now, Duration::from_secs(5));
        let never = after(after(within(Duration::MAX), Duration::MAX), Duration::MAX);
        assert!(never > after(now, FAR));
    }
}
