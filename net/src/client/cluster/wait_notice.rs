//! Wait notice: a client that waits for a server or a leader logs after a second why, and for how long it will wait.
//!
//! Invariant: one notice a wait, and one at a time for each client, however many of its calls wait.
//!
//! Must not know: how servers are found.

use crate::client::retry::deadline::FAR;
use chiplog::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long a wait is silent.
const AFTER: Duration = Duration::from_secs(1);

/// One wait.
#[derive(Debug)]
pub(crate) struct WaitNotice<'a> {
    /// Whether a wait of this client has logged its notice and goes on.
    noticed: &'a AtomicBool,
    begun: Instant,
    deadline: Instant,
    is_ours: bool,
}

impl<'a> WaitNotice<'a> {
    /// A wait begins. `noticed` is shared by all waits of the client.
    pub(crate) fn new(noticed: &'a AtomicBool, deadline: Instant) -> Self {
        Self { noticed, begun: Instant::now(), deadline, is_ours: false }
    }

    /// An attempt failed, and the wait goes on. `missing` says in words what there is not yet.
    pub(crate) fn failed(&mut self, missing: impl FnOnce() -> String, error: &Error) {
        if self.is_due() {
            tracing::warn!("{}: {error}; {}", missing(), self.limit());
        }
    }

    /// Whether to log now. True once.
    fn is_due(&mut self) -> bool {
        let is_due = self.begun.elapsed() >= AFTER && !self.noticed.swap(true, Ordering::Relaxed);
        self.is_ours |= is_due;
        is_due
    }

    fn limit(&self) -> String {
        let limit = self.deadline.saturating_duration_since(self.begun);
        if limit >= FAR / 2 {
            return "trying without a time limit".into();
        }
        format!("trying for up to {:.0} s", limit.as_secs_f64())
    }
}

impl Drop for WaitNotice<'_> {
    /// The wait has ended, or was cancelled: the next one may log again.
    fn drop(&mut self) {
        if self.is_ours {
            self.noticed.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::retry::deadline::within;

    #[tokio::test(start_paused = true)]
    async fn one_of_the_waits_logs_and_only_after_a_second() {
        let noticed = AtomicBool::new(false);
        let new = || WaitNotice::new(&noticed, within(Duration::from_secs(30)));
        let (mut one, mut other) = (new(), new());
        assert!(!one.is_due());
        tokio::time::advance(AFTER).await;
        assert!(one.is_due() && !one.is_due() && !other.is_due());
        drop(one);
        let mut next = new();
        assert!(!next.is_due());
        tokio::time::advance(AFTER).await;
        assert!(next.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn limit_is_the_whole_wait() {
        let noticed = AtomicBool::new(false);
        let limit = |wait| WaitNotice::new(&noticed, within(wait)).limit();
        assert_eq!(limit(Duration::from_millis(29_990)), "trying for up to 30 s");
        assert_eq!(limit(Duration::MAX), "trying without a time limit");
    }
}
