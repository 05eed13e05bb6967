//! Threads: how the log starts its own, and how one is told from the program's. Nothing else starts any: their stacks have a
//! stated size, so that nothing is read from the environment for them.
//!
//! Must not know: what they do.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Of each.
const STACK_BYTES: usize = 2 << 20;

thread_local! {
    /// The address of the queue that this thread serves.
    static WRITES: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread does the work of the log that takes appends from `queue`.
pub(crate) fn is_writer_of<Q>(queue: &Arc<Q>) -> bool {
    WRITES.get() == Arc::as_ptr(queue).addr()
}

/// Starts a thread that does the work of the log at `path`: that which takes from `queue`.
///
/// # Errors
/// As [`spawn`].
pub(crate) fn spawn_writer<Q: Send + Sync + 'static>(
    path: &Path,
    queue: &Arc<Q>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let queue = queue.clone(); // while the thread lives there is no other at its address
    spawn("chiplog-writer", path, move || {
        WRITES.set(Arc::as_ptr(&queue).addr());
        body();
    })
}

/// Starts a thread for the log at `path`.
///
/// # Errors
/// `Io`: none could be had.
pub(crate) fn spawn(name: &str, path: &Path, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(body).map_err(|e| Error::io("start a thread for", path, e))
}
