//! The thread on which a vault does its network work, and how callers wait for it.
//!
//! A caller may be a thread of another runtime: it never enters this one, but waits on a channel of the standard library.
//!
//! Must not know: what the work is.

use bytes::Bytes;
use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use std::future::Future;
use std::sync::mpsc::{self, Sender};

/// Stack size of each thread. With an explicit size, the standard library reads no environment variable.
const STACK_BYTES: usize = 2 << 20;

/// Threads that look up host names or use files, started as they are needed.
const HELPERS_MAX: usize = 16;

/// A small runtime. Dropping it waits for nothing, and is allowed on any thread.
pub(crate) struct Runtime {
    /// None only while it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    fork: ForkGuard,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Io`: the system gives no thread or no memory.
    pub(crate) fn start() -> Result<Self> {
        let failed = |e: std::io::Error| {
            Error::with_cause(ErrorKind::Io, format!("cannot start the object store's thread: {e}"), e)
        };
        let fork = ForkGuard::new().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(HELPERS_MAX)
            .thread_name("chiplog-vault")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map_err(failed)?;
        Ok(Self { runtime: Some(runtime), fork })
    }

    /// Does this on the vault's thread, and waits for its result.
    ///
    /// # Errors
    /// Those of the work; `Forked`: the thread is in the parent process; `Io`: the work has panicked.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.wait_taking(|_| work, &mut |_| Ok(()))
    }

    /// As [`Self::wait`], and passes what the work gives its [`Sender`] to `take`, on the calling thread.
    ///
    /// # Errors
    /// Those of [`Self::wait`], and of `take`. After the latter, the work goes on until it meets the closed channel.
    pub(crate) fn wait_taking<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        work: impl FnOnce(Sender<Bytes>) -> F,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<T> {
        if self.fork.is_child() {
            let what = "the vault was opened before fork() and its thread is in the parent; open it again in the child";
            return Err(Error::new(ErrorKind::Forked, what));
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let (pieces, arrived) = mpsc::channel();
        let work = work(pieces);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                let _ = answer.send(work.await); // the caller waits for it
            });
        }
        arrived.iter().try_for_each(take)?;
        let panicked =
            |_| Error::new(ErrorKind::Io, "the object store's thread ended within a call: this is a bug");
        answered.recv().map_err(panicked)?
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.fork.is_child() {
            std::mem::forget(runtime); // its threads are in the parent
        } else {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runtime")
    }
}
