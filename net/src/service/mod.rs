//! The services of a server, all over the log that it serves.

pub mod admin;
pub(crate) mod blocking_work;
pub mod follow;
mod groups;
pub mod http_objects;
pub mod log;
pub mod logspec;
mod named_logs;
pub(crate) mod store_access;
mod submit;
pub(crate) mod tail;
pub(crate) mod zero_copy;
