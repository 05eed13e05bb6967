//! Protocol: conventions of clients and servers in addition to the messages.

/// The supported versions of `chiplog.v1`.
pub(crate) const PROTOCOL: std::ops::RangeInclusive<u32> = 1..=1;
/// The server feeds followers.
pub(crate) const FEATURE_FOLLOW: &str = "follow";
/// The server can start a new copy at a time, or a number of records before the end.
pub(crate) const FEATURE_FOLLOW_PLACES: &str = "follow.places";
/// The server feeds copies of one named log.
pub(crate) const FEATURE_FOLLOW_LOG: &str = "follow.log";
/// The server reads objects for copies.
#[cfg(feature = "server")]
pub(crate) const FEATURE_FOLLOW_OBJECTS: &str = "follow.objects";
/// Timestamps are milliseconds in the log and nanoseconds in messages.
pub(crate) const NANOS_PER_MILLI: u64 = 1_000_000;
