//! Jobs that cannot be started, as at the limit of a container's threads: a scenario has the next one of this thread fail.
//!
//! Must not know: what the job does.

use std::cell::Cell;

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// Has the next job fail to start.
pub(crate) fn fail_next() {
    FAILS.set(true);
}

/// Whether it is still to fail.
pub(crate) fn is_waiting() -> bool {
    FAILS.get()
}

/// Whether this job cannot be started.
pub(crate) fn fails() -> bool {
    FAILS.take()
}
