//! Waiting with the interpreter released, event loops, threads, forks, and reports at the end of the program.

pub(crate) mod asyncio_bridge;
pub(crate) mod close_flag;
pub(crate) mod fork;
pub(crate) mod handle;
pub(crate) mod notices;
pub(crate) mod prefetch;
pub(crate) mod reader_lease;
pub(crate) mod threads;
pub(crate) mod tokio_runtime;
pub(crate) mod unraised;
pub(crate) mod wait;
