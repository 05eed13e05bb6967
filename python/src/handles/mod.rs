//! The classes of the package that are handles or belong to one.

pub(crate) mod batch;
pub(crate) mod client;
pub(crate) mod closes;
pub(crate) mod follower;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod options;
pub(crate) mod producer;
pub(crate) mod read_only;
pub(crate) mod reader;
pub(crate) mod reads;
pub(crate) mod session;
pub(crate) mod ticket;
pub(crate) mod unsent;
