//! The replicated state: what the entries of the log make of it, and its bytes. Pure.

pub(crate) mod log_clock;
pub(crate) mod sequencer;
pub(crate) mod session_table;
pub(crate) mod snapshot;
