//! Threads: how the log starts its own threads and recognizes them. No other module starts any. Stack sizes are
//! explicit, so they do not depend on the environment.
//!
//! Must not know: the work that they do.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

/// The stack size of each thread.
const STACK_BYTES: usize = 2 << 20;

thread_local! {
    /// The address of the queue that this thread serves.
    static WRITES: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread does the work of the log that accepts appends through `queue`.
pub(crate) fn is_writer_of<Q>(queue: &Arc<Q>) -> bool {
    WRITES.get() == Arc::as_ptr(queue).addr()
}

/// Whether this is a writer thread of any log.
pub(crate) fn is_writer() -> bool {
    WRITES.get() != 0
}

/// Starts the thread that takes from `queue` and does the work of the log at `path`.
///
/// # Errors
/// As [`spawn`].
pub(crate) fn spawn_writer<Q: Send + Sync + 'static>(
    path: &Path,
    queue: &Arc<Q>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let queue = queue.clone(); // keeps the address unique while the thread lives
    spawn("chiplog-writer", path, move || {
        WRITES.set(Arc::as_ptr(&queue).addr());
        body();
    })
}

/// Starts a thread for the log at `path`.
///
/// # Errors
/// `Io`: the system could not start it.
pub(crate) fn spawn(name: &str, path: &Path, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(body).map_err(|e| Error::io("start a thread for", path, e))
}

/// Calls `work` for each item, for up to `threads` items at a time, on threads of its own, and `each` with every result on this
/// one. Returns when all calls have ended.
///
/// # Errors
/// The first error of a call; no further call begins then.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
    mut each: impl FnMut(R),
) -> Result<()> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut failed = None;
    thread::scope(|scope| {
        let (results, from_threads) = channel();
        for n in 0..threads.min(items.len()) {
            let (results, next, is_over, work) = (results.clone(), &next, &is_over, &work);
            let run = move || {
                while !is_over.load(Ordering::Relaxed) {
                    let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if results.send(work(item)).is_err() {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().name("chiplog-parallel".to_owned()).stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, run) {
                Ok(_) => {}
                // Those that there are do all of it.
                Err(e) if n > 0 => {
                    tracing::debug!(error = %e, threads = n, "no more threads could be started")
                }
                Err(e) => {
                    failed.get_or_insert(Error::io("start a thread in", Path::new("."), e));
                }
            }
        }
        drop(results);
        for result in from_threads {
            match result {
                Ok(result) => each(result),
                Err(error) => {
                    is_over.store(true, Ordering::Relaxed);
                    failed.get_or_insert(error);
                }
            }
        }
    });
    failed.map_or(Ok(()), Err)
}
