//! Canceller: ends what one reader waits for, from another thread.
//!
//! Must not know: records, files.

use crate::read::positions::{Cancel, HookOwner, Positions};
use std::fmt;
use std::sync::Arc;

/// Ends the wait of one [`Reader`](crate::Reader) for good, from any thread: see
/// [`Reader::canceller`](crate::Reader::canceller). Cheap to clone; may outlive its reader, and then does nothing.
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

    /// The wait that is under way with its reader, and every later one, ends at once as `Cancelled`; its hook is called. Never
    /// blocks except for that hook. Again: nothing happens. Not to be called in a signal handler.
    pub fn cancel(&self) {
        self.positions.cancel(self.owner, &self.cancel);
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("cancelled", &self.cancel.is_set()).finish_non_exhaustive()
    }
}
