//! Own threads: those that blocking clients and followers live on. How they are started, and how one is told from the
//! program's: in a callback, which runs there, nothing can be waited for.
//!
//! Must not know: what they do.

use chiplog::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::thread;

/// Of each. With it said, nothing is read from the environment.
pub(crate) const STACK_BYTES: usize = 2 << 20;

/// For whom a thread works.
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

/// While it lives, this thread works for somebody.
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

/// For whom this thread works, if it is no thread of the program's.
pub(crate) fn works_for() -> Option<For> {
    AT_WORK.get()
}

/// Whether anything can be waited for on this thread.
///
/// # Errors
/// `InvalidArgument`: no, this is a callback.
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
