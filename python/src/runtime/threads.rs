//! Threads: how the package starts its own, their names and stack size; and work on such a thread.
//!
//! Must not know: what they do.

use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::thread::Builder;
use tokio::sync::oneshot;

/// The stack of each thread. Because it is set, the environment is not read.
pub(crate) const STACK_BYTES: usize = 2 << 20;

pub(crate) fn builder(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

/// Starts work that can be neither awaited nor interrupted on a thread of its own; the future returns its result.
/// If the future is dropped, the work continues, and its result is dropped.
///
/// # Errors
/// `Io`: no thread can be started, and nothing was begun. The future's: those of `work`; `Poisoned`: it panicked.
pub(crate) fn begin<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<impl Future<Output = Result<T>> + Send> {
    let (sender, result) = oneshot::channel();
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
    builder("chiplog-python").spawn(move || drop(sender.send(work()))).map_err(failed)?;
    let panicked = |_| Err(Error::new(ErrorKind::Poisoned, "the thread panicked, which is a bug in chiplog"));
    Ok(async move { result.await.unwrap_or_else(panicked) })
}
