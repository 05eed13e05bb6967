//! The log that a process serves, and what is open at it.

pub mod gauges;
pub mod log_slot;
pub(crate) mod room;
