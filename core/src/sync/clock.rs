//! Moment: a point on a monotonic clock that is passed in from outside, so that the replica's time can be simulated.
//!
//! Must not know: any real clock.

use std::fmt;
use std::time::Duration;

/// Nanoseconds since the start of a simulation or a process.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use chiplog::sim::Moment;
/// use std::time::Duration;
/// let later = Moment::START.plus(Duration::from_millis(1500));
/// assert_eq!(later.since(Moment::START), Duration::from_millis(1500));
/// assert_eq!(later.to_string(), "1.500000");
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only the simulator shows it"))]
pub struct Moment(pub u64);

#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only the simulator shows it"))]
impl Moment {
    #[cfg(any(test, feature = "testing"))]
    /// The start.
    pub const START: Self = Self(0);

    /// The moment `time` later, saturating.
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Moment {
    /// Seconds, to the microsecond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}
