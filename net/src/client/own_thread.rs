//! Threads that blocking clients and followers run on: starting them, and recognizing them. Callbacks run on these
//! threads, so a callback must not block.
//!
//! Must not know: what they do.

use chiplog::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::thread;

/// Stack size of each thread. With an explicit size, the standard library reads no environment variable.
pub(crate) const STACK_BYTES: usize = 2 << 20;

/// The kind of object that a thread works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    Client,
    Follower,
}

thread_local! {
    static AT_WORK: Cell<Option<For>> = const { Cell::new(None) };
}

pub(crate) fn builder(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

/// A guard: while it lives, the current thread works for a client or a follower.
pub(crate) struct AtWork {
    before: Option<For>,
}

impl AtWork {
    pub(crate) fn begin(whom: For) -> Self {
        Self { before: AT_WORK.replace(Some(whom)) }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.set(self.before);
    }
}

/// Returns what this thread works for, or None if it is the program's own thread.
pub(crate) fn works_for() -> Option<For> {
    AT_WORK.get()
}

/// Checks that the current thread may block.
///
/// # Errors
/// `InvalidArgument`: the call was made from a callback.
pub(crate) fn check() -> Result<()> {
    let whose = match works_for() {
        None => return Ok(()),
        Some(For::Client) => "client",
        Some(For::Follower) => "follower",
    };
    let what =
        format!("blocking call from a callback, which runs on a {whose}'s thread; wait on another thread");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}
