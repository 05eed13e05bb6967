//! Tail: waiting at the end of the log, and checking whether the next records are recent.
//!
//! A record that was just written is in memory, and is read at once, on a runtime thread. If a client does not read,
//! its answer is not polled; after a while, the records behind the old end may only be on disk.
//!
//! Invariant: nothing is read on a runtime thread that may be in the object store alone. The records of a log with payload slices may
//! be, also the newest ones: only a replica that has just put the slice has them in memory.
//!
//! Must not know: what is read.

use chiplog::Log;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Records are recent for this long.
const MOMENT: Duration = Duration::from_secs(1);

/// How long a stream waits until a copy knows which object has its next record, as a reader within a program does.
const OBJECT_WAIT: Duration = Duration::from_secs(5);

/// The next records of the log were written at this time, or later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CameAt(Instant);

impl CameAt {
    /// There is nothing yet.
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Whether the next records were written just now.
    fn is_new(self) -> bool {
        self.0.elapsed() < MOMENT
    }
}

/// Whether the next records of the log, which did not exist at `came`, are in memory, and can be read on a runtime thread. `is_in_files`:
/// they are not in the object store alone, where a replica that has jumped has to read them, and a copy.
pub(crate) fn is_in_memory(log: &Log, came: Option<CameAt>, is_in_files: impl FnOnce() -> bool) -> bool {
    came.is_some_and(CameAt::is_new) && !may_refer(log) && is_in_files()
}

/// Whether entries of the log may refer to payload slices: then its records are neither in its files nor parts of their mapping.
pub(crate) fn may_refer(log: &Log) -> bool {
    log.payload_slices().is_some()
}

/// Waits of a stream whose records a copy cannot find yet: it learns soon which object has them. Nothing that others need, such as a
/// turn or memory, is kept meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Option<Instant>);

impl Waiting {
    /// How long to wait before what failed with `error` is tried again. `None`: it failed for good, or for too long.
    pub(crate) fn pause(&mut self, error: &chiplog::Error) -> Option<Duration> {
        let pause = error.retry_after()?;
        let since = *self.0.get_or_insert_with(Instant::now);
        (since.elapsed() + pause <= OBJECT_WAIT).then_some(pause)
    }
}

/// A waker that remembers its first use.
struct Noted {
    waker: Waker,
    woken: OnceLock<Instant>,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        let _ = self.woken.set(Instant::now());
        self.waker.wake_by_ref();
    }
}

/// Waits for the next records, which did not exist at `seen`. Returns when they were written.
pub(crate) async fn more(
    mut seen: CameAt,
    mut poll_more: impl FnMut(&mut Context<'_>) -> Poll<chiplog::Result<()>>,
) -> chiplog::Result<CameAt> {
    let mut noted: Option<Arc<Noted>> = None;
    poll_fn(move |context| {
        if let Some(noted) = noted.take() {
            seen = noted.woken.get().map_or_else(CameAt::now, |at| CameAt(*at));
        }
        let next = Arc::new(Noted { waker: context.waker().clone(), woken: OnceLock::new() });
        let polled = poll_more(&mut Context::from_waker(&next.clone().into()));
        noted = Some(next);
        polled.map(|more| more.map(|()| seen))
    })
    .await
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use chiplog::Options;
    use chiplog::vault::{MemoryVault, Vault};
    use std::path::Path;

    /// A log whose records are in payload slices.
    pub(crate) async fn log_with_payload_slices(dir: &Path) -> Log {
        let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
        let options = Options::with_segment_bytes(1 << 20).vault(vault);
        let options = options.slice_interval(Some(Duration::from_millis(10))).payload_slices(true);
        let log = Log::open(dir, options).unwrap();
        while !may_refer(&log) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        log
    }
}
