//! The objects that a C program holds, with their functions.

pub(crate) mod batch;
pub(crate) mod client;
pub(crate) mod follower;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod producer;
pub(crate) mod read_only;
pub(crate) mod reader;
pub(crate) mod session;
pub(crate) mod ticket;
