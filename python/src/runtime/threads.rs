//! Threads: how the package starts its own, their names and the size of their stacks; and work that is done on one.
//!
//! Must not know: what they do.

use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::thread::Builder;
use tokio::sync::oneshot;

/// Of each. With it said, nothing is read from the environment.
pub(crate) const STACK_BYTES: usize = 2 << 20;

pub(crate) fn builder(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

/// Begins what can be neither awaited nor interrupted on a thread of its own; the future tells what came of it. Where that is
/// dropped the work goes on, and what it makes is dropped.
///
/// # Errors
/// `Io`: no thread could be had, and nothing is begun. The future's: those of `work`; `Poisoned`: it panicked.
pub(crate) fn begin<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<impl Future<Output = Result<T>> + Send> {
    let (tell, told) = oneshot::channel();
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
    builder("chiplog-python").spawn(move || drop(tell.send(work()))).map_err(failed)?;
    let panicked = |_| Err(Error::new(ErrorKind::Poisoned, "the thread panicked"));
    Ok(async move { told.await.unwrap_or_else(panicked) })
}
