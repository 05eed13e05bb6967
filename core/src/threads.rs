//! Threads: how the log starts its own. Nothing else does: their stacks have a stated size, so that nothing is read from the
//! environment for them.
//!
//! Must not know: what they do.

use crate::error::{Error, Result};
use std::path::Path;
use std::thread::{self, JoinHandle};

/// Of each.
const STACK_BYTES: usize = 2 << 20;

/// Starts a thread for the log at `path`.
///
/// # Errors
/// `Io`: none could be had.
pub(crate) fn spawn(name: &str, path: &Path, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(body).map_err(|e| Error::io("start a thread for", path, e))
}
