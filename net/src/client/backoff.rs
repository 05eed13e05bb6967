//! Backoff: how long to wait before the next attempt: exponential, with jitter, so that clients that failed together
//! do not come back together.

use super::deadline::FAR;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        let (min, max) = (min.min(FAR), max.min(FAR));
        Self { min, max: max.max(min), failures: 0 }
    }

    /// It went well.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// It went wrong again: how long to wait now. Between half of `min * 2^n` and all of it, at most `max`.
    pub(crate) fn next(&mut self) -> Duration {
        let full = self.min.saturating_mul(1 << self.failures.min(20)).min(self.max);
        self.failures += 1;
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_its_bound_and_starts_over() {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(100));
        let mut backoff = Backoff::new(min, max);
        for (n, full) in [10, 20, 40, 80, 100, 100].into_iter().enumerate() {
            let wait = backoff.next();
            let full = Duration::from_millis(full);
            assert!(wait >= full / 2 && wait <= full, "attempt {n}: {wait:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= min);
    }
}
