//! Tail: waiting at the end of the log, and checking whether the next records are recent.
//!
//! A record that was just written is in memory, and is read at once, on a runtime thread. If a client does not read,
//! its answer is not polled; after a while, the records behind the old end may only be on disk.
//!
//! Must not know: what is read.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Records are recent for this long.
const MOMENT: Duration = Duration::from_secs(1);

/// The next records of the log were written at this time, or later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CameAt(Instant);

impl CameAt {
    /// There is nothing yet.
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Whether the next records were written just now.
    pub(crate) fn is_new(self) -> bool {
        self.0.elapsed() < MOMENT
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
