//! Close flag: the flag of a closed handle, for calls that wait with it and for later ones.

use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether a handle was closed.
pub(crate) struct CloseFlag {
    /// The kind of handle, for messages.
    what: &'static str,
    closed: watch::Sender<bool>,
}

impl CloseFlag {
    pub(crate) fn of(what: &'static str) -> Arc<Self> {
        Arc::new(Self { what, closed: watch::Sender::new(false) })
    }

    /// Sets the flag and wakes waiting calls.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    pub(crate) fn error(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("the {} was closed", self.what))
    }

    /// # Errors
    /// `Closed`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(self.error()) } else { Ok(()) }
    }

    /// Returns the result of `work`, or `Closed` if the handle is closed first.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut ends = self.closed.subscribe();
        tokio::select! {
            biased;
            _ = ends.wait_for(|closed| *closed) => Err(self.error()),
            done = work => done,
        }
    }
}
