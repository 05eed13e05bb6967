//! Canceller: ends a reader's blocking call from another thread.
//!
//! Must not know: what the call waits for.

use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Ends the blocking calls of one [`Reader`](super::Reader) for good, from any thread: see
/// [`Reader::canceller`](super::Reader::canceller). Cheap to clone. It may outlive its reader, and then does nothing.
///
/// ```
/// fn takes_any_thread<T: Send + Sync + Clone>() {}
/// takes_any_thread::<chiplog_net::client::blocking::Canceller>();
/// ```
#[derive(Clone, Debug)]
pub struct Canceller {
    cancelled: Arc<watch::Sender<bool>>,
}

impl Canceller {
    pub(super) fn new() -> Self {
        Self { cancelled: Arc::new(watch::Sender::new(false)) }
    }

    /// Ends the reader's current blocking call, and every later call that reads, with `Cancelled`. Calls the reader's
    /// hook, on the client's thread. Never blocks. Repeated calls do nothing. Must not be called in a signal handler or
    /// in a forked child.
    pub fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// # Errors
    /// `Cancelled`.
    pub(super) fn check(&self) -> Result<()> {
        if *self.cancelled.borrow() { Err(error()) } else { Ok(()) }
    }

    /// Waits until it is cancelled.
    pub(super) async fn cancelled(&self) {
        // This fails once no sender is left; this object holds one.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// Returns the result of `work`, or `Cancelled` if that comes first; `work` is dropped then.
    pub(super) async fn or<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancelled() => Err(error()),
            done = work => done,
        }
    }
}

fn error() -> Error {
    Error::new(ErrorKind::Cancelled, "the reader was cancelled; open another reader at its position")
}
