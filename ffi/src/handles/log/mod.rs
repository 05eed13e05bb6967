//! The embedded log.

pub(crate) mod log_options;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod read;
pub(crate) mod state;
pub(crate) mod write;
