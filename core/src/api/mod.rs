//! The handles of a program: a log, a session, a log that it only reads, a follower.

pub(crate) mod follower;
pub(crate) mod log;
pub(crate) mod read_only;
pub(crate) mod session;
