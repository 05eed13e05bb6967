//! The log that a process serves, the logs of it that a caller may reach, and its open connections and streams.

pub(crate) mod call_places;
pub(crate) mod caller;
pub mod elsewhere;
pub mod gauges;
pub(crate) mod log_names;
pub mod log_slot;
pub mod refusals;
pub(crate) mod room;
pub(crate) mod scope;
pub mod store_health;
pub mod watched_vault;
