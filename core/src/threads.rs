//! Threads: how the log starts its own, and how one is told from the program's. Nothing else starts any: their stacks have a
//! stated size, so that nothing is read from the environment for them.
//!
//! Must not know: what they do.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::Path;
use std::thread::{self, JoinHandle};

/// Of each.
const STACK_BYTES: usize = 2 << 20;

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a thread of a log.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// Starts a thread for the log at `path`.
///
/// # Errors
/// `Io`: none could be had.
pub(crate) fn spawn(name: &str, path: &Path, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    let run = move || {
        IS_OWN.set(true);
        body();
    };
    thread.spawn(run).map_err(|e| Error::io("start a thread for", path, e))
}
