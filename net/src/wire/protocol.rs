//! Protocol: what a client and a server agree on besides messages.

/// The versions of `chiplog.v1` that are spoken.
pub(crate) const PROTOCOL: std::ops::RangeInclusive<u32> = 1..=1;
/// A server with this feature feeds followers.
pub(crate) const FEATURE_FOLLOW: &str = "follow";
/// A new follower may begin a number of records before the end, or at a time.
pub(crate) const FEATURE_FOLLOW_PLACES: &str = "follow.places";
/// Timestamps are milliseconds in the log and nanoseconds on the wire.
pub(crate) const NANOS_PER_MILLI: u64 = 1_000_000;
