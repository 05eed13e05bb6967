//! Descriptor: what an event loop watches for a handle. The handle has one hook, which either raises the descriptor or runs a
//! callback.
//!
//! Invariant: once handed out, the descriptor stays open and keeps its number.

use chiplog::{Result, Signal};
use std::os::fd::AsRawFd;

/// The descriptor of a handle.
#[derive(Default)]
pub(crate) struct Descriptor {
    /// Raised while there may be something to take. None: it was never requested.
    signal: Option<Signal>,
    /// Whether the hook raises it, instead of a callback.
    has_hook: bool,
}

impl Descriptor {
    /// The signal that the hook raises; None: there is none, or a callback has the hook.
    pub(crate) fn watched(&self) -> Option<&Signal> {
        self.signal.as_ref().filter(|_| self.has_hook)
    }

    /// Claims the hook, and opens the descriptor if there is none. Returns whether the hook must be set.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn claim_hook(&mut self) -> Result<bool> {
        if self.signal.is_none() {
            self.signal = Some(Signal::new()?);
        }
        Ok(!std::mem::replace(&mut self.has_hook, true))
    }

    /// Leaves the hook to a callback.
    pub(crate) fn yield_hook(&mut self) {
        self.has_hook = false;
        self.signal.iter().for_each(Signal::lower);
    }

    /// The number of the descriptor; -1: it was never requested.
    pub(crate) fn number(&self) -> i32 {
        self.signal.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}
