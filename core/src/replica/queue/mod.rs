//! The inputs of a replica: proposals, messages, requests of the program.

pub(crate) mod inbox;
pub(crate) mod proposals;
