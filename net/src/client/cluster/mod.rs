//! The servers of a cluster: which exist, which of them leads, and what they report about the log.

pub(crate) mod connections;
pub(crate) mod discovery;
pub(crate) mod leader_watchdog;
pub(crate) mod local_info;
pub(crate) mod logs;
mod missing_log;
pub(crate) mod wait_notice;
pub(crate) mod watch;
