//! Which servers there are, which of them leads, and what they say of the log.

pub(crate) mod discovery;
pub(crate) mod leader_watchdog;
pub(crate) mod local_info;
pub(crate) mod logs;
pub(crate) mod watch;
