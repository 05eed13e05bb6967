//! Backoff: how long to wait before the next attempt. The wait grows exponentially, with jitter, so that clients that
//! failed at the same time do not retry at the same time.
//!
//! The reason for the wait decides how fast it grows. An error may persist: the wait doubles. An election ends soon, at
//! any moment: the wait grows by an eighth, so that its end is noticed within a small part of its duration.

use super::deadline::FAR;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    growth: f64,
    failures: i32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self::growing(min, max, 2.0)
    }

    /// For a search for the leader.
    pub(crate) fn searching(min: Duration, max: Duration) -> Self {
        Self::growing(min, max, 1.125)
    }

    fn growing(min: Duration, max: Duration, growth: f64) -> Self {
        let (min, max) = (min.min(FAR), max.min(FAR));
        Self { min, max: max.max(min), growth, failures: 0 }
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns how long to wait after one more failure: between half of `min * growth^n` and all of it, at most `max`.
    pub(crate) fn next(&mut self) -> Duration {
        let full = self.min.as_secs_f64() * self.growth.powi(self.failures);
        self.failures = (self.failures + 1).min(500);
        let full = full.min(self.max.as_secs_f64());
        Duration::from_secs_f64(full * (0.5 + fastrand::f64() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_grows_to_its_bound_and_starts_over() {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(100));
        let mut backoff = Backoff::new(min, max);
        for (n, full) in [10, 20, 40, 80, 100, 100].into_iter().enumerate() {
            let wait = backoff.next();
            let full = Duration::from_millis(full);
            assert!(wait >= full / 2 && wait <= full, "attempt {n}: {wait:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= min);
        for _ in 0..1000 {
            assert!(backoff.next() <= max);
        }
    }

    /// After a search of any length the next wait is a small part of it.
    #[test]
    fn search_ends_soon_after_an_election() {
        let mut backoff = Backoff::searching(Duration::from_millis(10), Duration::from_secs(1));
        let mut searched = Duration::ZERO;
        for _ in 0..60 {
            let wait = backoff.next();
            assert!(wait <= (searched / 3).max(Duration::from_millis(40)), "{wait:?} after {searched:?}");
            searched += wait;
        }
        assert!(searched > Duration::from_secs(10), "the waits do not grow: {searched:?}");
    }
}
