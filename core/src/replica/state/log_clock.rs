//! Log clock: the time that a leader gives its entries. It follows the wall clock and bounds how far one entry can move
//! the log's time. Sessions expire by that time, and it never goes back.
//!
//! ```text
//! opened: wall ──> each look: time at the last look + time passed since, corrected toward the wall
//! ```
//!
//! Invariants:
//! - it never goes back;
//! - between two looks it advances by the time that passed on the process's monotonic clock. The correction adds or
//!   subtracts at most that time again, and at most [`CORRECTION_MAX`] a look. So since the log was opened it has
//!   advanced at most twice as far as time has passed.
//!
//! Limits (see `docs/positions.md`):
//! - the wall clock is trusted when the log is opened, because a log can have been closed for years;
//! - if the clocks of two replicas differed when they were opened, the log's time moves by that difference when
//!   leadership passes from one to the other.
//!
//! Must not know: any real clock, entries.

use crate::sync::clock::Moment;
use crate::types::Timestamp;
use std::time::Duration;

/// The largest correction toward the wall clock in one look.
const CORRECTION_MAX: Duration = Duration::from_secs(60);
/// A larger difference from the wall clock is logged.
const NOTICED: Duration = Duration::from_secs(60);

/// The clock of the entries that this process orders.
#[derive(Debug)]
pub(crate) struct LogClock {
    /// When [`Self::look`] last ran.
    at: Moment,
    /// The time that it showed then, since 1970. Finer than the log's timestamps: one millisecond can hold many looks.
    shown: Duration,
    /// Whether the difference from the wall clock is large enough that it was logged.
    is_off: bool,
}

impl LogClock {
    /// A clock that starts with the wall clock's time.
    pub(crate) fn new(now: Moment, wall: Timestamp) -> Self {
        Self { at: now, shown: Duration::from_millis(wall.0), is_off: false }
    }

    /// The time that [`Self::look`] would return. Changes nothing.
    pub(crate) fn peek(&self, now: Moment, wall: Timestamp) -> Timestamp {
        let shown = self.corrected(now, wall);
        Timestamp(u64::try_from(shown.as_millis()).unwrap_or(u64::MAX))
    }

    /// The time now.
    pub(crate) fn look(&mut self, now: Moment, wall: Timestamp) -> Timestamp {
        self.shown = self.corrected(now, wall);
        self.at = self.at.max(now);
        self.log_difference(wall);
        self.peek(now, wall)
    }

    fn corrected(&self, now: Moment, wall: Timestamp) -> Duration {
        let passed = now.since(self.at);
        let correction = passed.min(CORRECTION_MAX);
        let expected = self.shown.saturating_add(passed);
        Duration::from_millis(wall.0).clamp(expected - correction, expected.saturating_add(correction))
    }

    /// Logs once when the two clocks differ, and once when they agree again.
    fn log_difference(&mut self, wall: Timestamp) {
        let difference = Duration::from_millis(wall.0).abs_diff(self.shown);
        let before = std::mem::replace(&mut self.is_off, difference > NOTICED);
        match (before, self.is_off) {
            (false, true) => tracing::warn!(
                wall_ms = wall.0,
                log_ms = u64::try_from(self.shown.as_millis()).unwrap_or(u64::MAX),
                "the wall clock has jumped: the log's time advances at most twice as fast as time passes, or stops, \
                 until the two agree; check the clock"
            ),
            (true, false) => tracing::info!("the log's time agrees with the wall clock again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_MS: u64 = 24 * 3_600_000;
    const TRUE: u64 = 1_700_000_000_000;

    fn after(ms: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(ms))
    }

    fn opened() -> LogClock {
        LogClock::new(after(0), Timestamp(TRUE))
    }

    fn look(clock: &mut LogClock, ms: u64, wall: u64) -> u64 {
        clock.look(after(ms), Timestamp(wall)).0
    }

    #[test]
    fn right_clock_is_followed_exactly() {
        let mut clock = opened();
        for ms in [0, 1, 2, 2, 5, 1000, 400 * DAY_MS] {
            assert_eq!(look(&mut clock, ms, TRUE + ms), TRUE + ms);
        }
    }

    #[test]
    fn jump_of_400_days_is_followed_at_twice_the_speed() {
        let mut clock = opened();
        let ahead = 400 * DAY_MS;
        for ms in (0..3_600_000).step_by(100) {
            assert_eq!(look(&mut clock, ms, TRUE + ms + ahead), TRUE + 2 * ms);
        }
        // The wall clock is right again: the log's time stops until the wall clock has reached it, then goes on.
        let ahead = look(&mut clock, 3_600_000, TRUE + 3_600_000) - TRUE;
        assert!((3_600_000..=2 * 3_600_000).contains(&ahead));
        for ms in (3_600_000..8_000_000).step_by(100) {
            assert_eq!(look(&mut clock, ms, TRUE + ms), TRUE + ms.max(ahead));
        }
    }

    #[test]
    fn look_after_a_long_rest_is_off_by_at_most_a_minute() {
        let rest = 30 * DAY_MS;
        assert_eq!(look(&mut opened(), rest, TRUE + rest + 400 * DAY_MS), TRUE + rest + 60_000);
        assert_eq!(look(&mut opened(), rest, 0), TRUE + rest - 60_000);
    }

    #[test]
    fn many_looks_in_a_millisecond_lose_no_time() {
        let mut clock = opened();
        for us in 0..10_000 {
            let now = Moment::default().plus(Duration::from_micros(us));
            clock.look(now, Timestamp(TRUE + DAY_MS));
        }
        assert_eq!(look(&mut clock, 10, TRUE + DAY_MS), TRUE + 20);
    }

    #[test]
    fn extreme_clocks_do_not_overflow() {
        let mut clock = LogClock::new(after(5), Timestamp(u64::MAX));
        assert_eq!(look(&mut clock, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(look(&mut clock, 0, 0), u64::MAX);
        let mut clock = LogClock::new(after(5), Timestamp(0));
        assert_eq!(look(&mut clock, 10, 0), 0);
        assert_eq!(look(&mut clock, 20, u64::MAX), 20);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// For any wall clock and any number of looks.
        #[test]
        fn time_moves_at_most_twice_as_fast_and_never_back(
            looks in proptest::collection::vec((0..200_000u64, any::<u64>()), 1..100),
        ) {
            let mut clock = opened();
            let (mut now, mut before) = (0, TRUE);
            for (passed, wall) in looks {
                now += passed;
                let time = look(&mut clock, now, wall);
                prop_assert!(time >= before);
                prop_assert!(time - before <= passed + passed.min(60_000));
                prop_assert!(time <= TRUE + 2 * now);
                before = time;
            }
        }
    }
}
