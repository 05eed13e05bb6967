//! The client: a log over the network.

pub(crate) mod calls;
pub(crate) mod connection;
pub(crate) mod log_options;
pub(crate) mod named_logs;
pub(crate) mod options;
pub(crate) mod reader;
pub(crate) mod together;
