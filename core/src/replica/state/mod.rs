//! The replicated state: the result of applying the log's entries, and its encoding. Pure.

pub(crate) mod command;
pub(crate) mod discarded_objects;
pub(crate) mod log_clock;
pub(crate) mod log_table;
pub(crate) mod object_table;
pub(crate) mod sequencer;
pub(crate) mod session_table;
pub(crate) mod snapshot;
