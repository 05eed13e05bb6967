//! Messages between replicas as bytes.

pub(crate) mod object_message;
pub(crate) mod raft_message;
pub(crate) mod repair_message;
