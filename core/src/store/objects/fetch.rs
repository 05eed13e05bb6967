//! Fetchers: threads that fetch chunks of objects before readers need them.
//!
//! Invariant: a chunk that waits is fetched once, and a thread that is not needed takes no place: there are none before the first
//! chunk.
//!
//! Must not know: what is in a chunk.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::threads::spawn;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// The most threads that fetch at a time.
const THREADS_MAX: usize = 8;
/// The most chunks that wait. More would only delay those that readers need now.
const WAITING_MAX: usize = 64;

/// A file of chunks.
pub(super) trait Chunks: Send + Sync {
    /// Fetches a chunk, unless it is there.
    fn fetch_chunk(&self, chunk: usize) -> Result<()>;
}

/// The threads of a cache that fetch ahead. `Send + Sync`.
#[derive(Default)]
pub(super) struct Fetchers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Where the log is, for errors. None: nothing is fetched ahead.
    path: Option<PathBuf>,
    waiting: VecDeque<(Weak<dyn Chunks>, usize)>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fetchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetchers")
    }
}

impl Fetchers {
    /// Allows threads to be started.
    pub(super) fn start(&self, path: &Path) {
        self.shared.lock().path = Some(path.to_path_buf());
    }

    /// Whether chunks are fetched by threads.
    pub(super) fn are_started(&self) -> bool {
        self.shared.lock().path.is_some()
    }

    /// Ends the threads, each after the chunk that it fetches.
    pub(super) fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        state.waiting.clear();
        self.shared.work.notify_all();
    }

    /// Has a chunk fetched soon.
    pub(super) fn push(&self, file: &Arc<impl Chunks + 'static>, chunk: usize) {
        let mut state = self.shared.lock();
        let is_known = |(waiting, at): &(Weak<dyn Chunks>, usize)| {
            *at == chunk && std::ptr::addr_eq(waiting.as_ptr(), Arc::as_ptr(file))
        };
        let Some(path) = state.path.clone() else { return };
        if state.stopped || state.waiting.len() >= WAITING_MAX || state.waiting.iter().any(is_known) {
            return;
        }
        let file = Arc::downgrade(file);
        state.waiting.push_back((file, chunk));
        if state.idle > 0 {
            self.shared.work.notify_one();
        } else if state.threads < THREADS_MAX {
            let shared = self.shared.clone();
            // Without a thread the reader fetches for itself.
            if spawn("chiplog-fetch", &path, move || shared.run()).is_ok() {
                state.threads += 1;
            }
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.lock();
        while !state.stopped {
            let Some((file, chunk)) = state.waiting.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            // The reader meets the error, if it needs the chunk. A panic in the program's own vault would end this thread, and no other one
            // would take its place.
            let fetch = || file.upgrade().map_or(Ok(()), |file| file.fetch_chunk(chunk));
            let panicked = |_| Err(Error::new(ErrorKind::Io, "a call of the object store panicked"));
            if let Err(error) = catch_unwind(AssertUnwindSafe(fetch)).unwrap_or_else(panicked) {
                tracing::debug!(%error, "a chunk could not be fetched ahead");
            }
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Chunks of a program's vault that panics at first.
    #[derive(Default)]
    struct Panicking {
        begun: AtomicUsize,
        fetched: AtomicUsize,
    }

    impl Chunks for Panicking {
        fn fetch_chunk(&self, _: usize) -> Result<()> {
            assert!(self.begun.fetch_add(1, Ordering::SeqCst) >= THREADS_MAX, "injected: a panic");
            self.fetched.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    /// After as many panics as there may be threads nothing was fetched ahead any more.
    #[test]
    fn panics_of_a_vault_end_no_thread() {
        let (fetchers, file) = (Fetchers::default(), Arc::new(Panicking::default()));
        fetchers.start(Path::new("log"));
        let begun = Instant::now();
        let wait_for = |count: &AtomicUsize, least| {
            while count.load(Ordering::SeqCst) < least {
                assert!(begun.elapsed() < Duration::from_secs(60), "{count:?} of {least}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for chunk in 0..=THREADS_MAX {
            fetchers.push(&file, chunk);
            wait_for(&file.begun, chunk + 1);
        }
        wait_for(&file.fetched, 1);
        fetchers.stop();
    }
}
