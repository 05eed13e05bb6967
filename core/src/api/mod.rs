//! The handles that a program holds: a log, a session, a read-only view of a log, a follower.

pub(crate) mod catalogue;
pub(crate) mod follower;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod payload;
pub(crate) mod read_only;
pub(crate) mod session;
pub(crate) mod status;
