//! Canceller: ends the wait of one reader, from another thread.
//!
//! Must not know: records, files.

use crate::read::positions::{Cancel, HookOwner, Positions};
use std::fmt;
use std::sync::Arc;

/// Ends the wait of one [`Reader`](crate::Reader) permanently, from any thread: see
/// [`Reader::canceller`](crate::Reader::canceller). Cheap to clone. It may outlive its reader, and then does nothing.
///
/// ```
/// fn takes_any_thread<T: Send + Sync + Clone>() {}
/// takes_any_thread::<chiplog::Canceller>();
/// ```
#[derive(Clone)]
pub struct Canceller {
    positions: Arc<Positions>,
    owner: HookOwner,
    cancel: Arc<Cancel>,
}

impl Canceller {
    pub(crate) fn new(positions: Arc<Positions>, owner: HookOwner, cancel: Arc<Cancel>) -> Self {
        Self { positions, owner, cancel }
    }

    /// Makes the current and every later wait of its reader return `Cancelled` at once, and calls the reader's hook.
    /// Blocks only as long as that hook runs. Calling it again does nothing. Do not call it in a signal handler.
    pub fn cancel(&self) {
        self.positions.cancel(self.owner, &self.cancel);
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("cancelled", &self.cancel.is_set()).finish_non_exhaustive()
    }
}
