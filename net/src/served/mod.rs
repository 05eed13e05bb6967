//! The log that a process serves, and its open connections and streams.

pub mod gauges;
pub mod log_slot;
pub mod refusals;
pub(crate) mod room;
