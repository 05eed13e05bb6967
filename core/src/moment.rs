//! Moment: a point on a monotonic clock that is given from outside, so that the replica's time can be simulated.
//!
//! Must not know: any real clock.

use std::time::Duration;

/// Nanoseconds since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Later by this much, saturating.
    pub(crate) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long from `earlier` to here; nothing if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
