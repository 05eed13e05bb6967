//! One member of a raft group: its directory, state, storage and threads.

pub(crate) mod node;
pub(crate) mod open;
pub(crate) mod queue;
pub(crate) mod raft;
pub(crate) mod repair;
pub(crate) mod state;
pub(crate) mod wire;
pub(crate) mod writer;
