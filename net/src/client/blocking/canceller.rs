//! Canceller: ends what one reader of the blocking client waits for, from another thread.
//!
//! Must not know: what is waited for.

use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Ends the wait of one [`Reader`](super::Reader) for good, from any thread: see
/// [`Reader::canceller`](super::Reader::canceller). Cheap to clone; may outlive its reader, and then does nothing.
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

    /// The call that waits with its reader, and every later one that asks for records, ends at once as `Cancelled`; its hook is
    /// called, on the client's thread. Never blocks. Again: nothing happens. Not to be called in a signal handler, nor in a
    /// forked child.
    pub fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// # Errors
    /// `Cancelled`.
    pub(super) fn check(&self) -> Result<()> {
        if *self.cancelled.borrow() { Err(error()) } else { Ok(()) }
    }

    /// Waits until it is so.
    pub(super) async fn cancelled(&self) {
        // It fails once nobody can cancel any more; this one can.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// What `work` comes to; `Cancelled` when that comes first. `work` is dropped then.
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
