//! A log to work on, in a directory or at servers, and a cluster as its servers see it.

pub(crate) mod cluster;
pub(crate) mod cluster_status;
pub(crate) mod directory;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod leader;
pub(crate) mod open_log;
pub(crate) mod remote;
pub(crate) mod target;
