//! Waiting and waking, time, and threads. Knows nothing of logs.

pub(crate) mod clock;
pub(crate) mod completer;
pub(crate) mod completion;
pub(crate) mod event_fd;
pub(crate) mod futex;
pub(crate) mod pause;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod start_faults;
pub(crate) mod threads;
