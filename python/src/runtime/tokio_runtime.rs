//! The network threads, shared by all clients of a process. Started with the first client; a log alone needs none.
//!
//! Invariant: a forked child starts its own, and does not touch its parent's.

use crate::runtime::{fork, threads};
use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Handle, Runtime};

/// One reads while the other compresses a producer's batches.
const THREADS: usize = 2;

static RUNTIME: Mutex<Option<(Arc<ForkGuard>, Runtime)>> = Mutex::new(None);

/// Returns the runtime of this process.
///
/// # Errors
/// `Io`: no thread can be started.
pub(crate) fn handle() -> Result<Handle> {
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, runtime)) = current.as_ref().filter(|(guard, _)| !guard.is_child()) {
        return Ok(runtime.handle().clone());
    }
    std::mem::forget(current.take()); // the parent's, if any
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot start the network's threads: {e}"));
    let guard = fork::guard()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("chiplog-python")
        .thread_stack_size(threads::STACK_BYTES)
        .enable_all()
        .build()
        .map_err(failed)?;
    let handle = runtime.handle().clone();
    *current = Some((guard, runtime));
    Ok(handle)
}
