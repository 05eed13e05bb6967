//! Events: the events of a follower, in order.
//!
//! Invariants:
//! - The queue is bounded. When it is full, the oldest events are dropped and counted.
//! - No foreign code runs while the lock is held.

use chiplog::{Error, ErrorKind, Index, Result};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The largest number of waiting events.
const EVENTS_MAX: usize = 1024;

/// An event of a [`Follower`](super::Follower).
///
/// ```
/// use chiplog_net::follower::FollowerEvent;
/// fn must_start_over(event: &FollowerEvent) -> bool {
///     matches!(event, FollowerEvent::Jumped { .. })
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FollowerEvent {
    /// A server sends records; the first one since the follower was opened.
    Connected {
        /// `host:port`.
        server: String,
    },
    /// Another server than before sends records; the stream continues with the next block.
    Switched {
        /// The previous server.
        from: String,
        /// The new server.
        to: String,
    },
    /// Records are missing here: all servers had discarded the next ones. A view of earlier records must start over
    /// from `to`, or learn elsewhere what the missing records contained.
    Jumped {
        /// The record that was expected.
        from: Index,
        /// The record that comes next instead.
        to: Index,
    },
    /// Records below `first` were discarded, in the log or by the follower's own retention.
    Discarded {
        /// The first record that is left.
        first: Index,
    },
    /// A server's stream failed, or no server could be reached. The follower keeps trying.
    Failed {
        /// The server, if the failure was at a server.
        server: Option<String>,
        /// Why.
        error: Error,
    },
    /// The follower stopped because of a permanent error. The last event.
    Stopped {
        /// Why.
        error: Error,
    },
    /// Events were dropped because they were not taken in time.
    Missed {
        /// Their number.
        events: u64,
    },
}

#[derive(Debug, Default)]
pub(super) struct Events {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<FollowerEvent>,
    missed: u64,
    /// No more events will follow.
    ended: bool,
    hook: Option<Hook>,
}

/// A hook that is called once, when there is an event, or when no more will follow.
struct Hook(Box<dyn FnOnce() + Send>);

impl Hook {
    fn call(self) {
        if catch_unwind(AssertUnwindSafe(self.0)).is_err() {
            tracing::error!("a callback of a follower's events panicked");
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl Events {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, event: FollowerEvent) {
        let mut state = self.state();
        if state.waiting.len() >= EVENTS_MAX {
            state.waiting.pop_front();
            state.missed += 1;
        }
        state.waiting.push_back(event);
        let hook = state.hook.take();
        drop(state);
        self.changed.notify_one();
        hook.into_iter().for_each(Hook::call);
    }

    pub(super) fn end(&self) {
        let hook = {
            let mut state = self.state();
            state.ended = true;
            state.hook.take()
        };
        self.changed.notify_all();
        hook.into_iter().for_each(Hook::call);
    }

    /// Calls `hook` once there is an event, or no more will follow; at once if that is so already. Replaces the
    /// previous hook.
    pub(super) fn on_next(&self, hook: impl FnOnce() + Send + 'static) {
        let hook = Hook(Box::new(hook));
        let replaced = {
            let mut state = self.state();
            if state.ended || state.missed > 0 || !state.waiting.is_empty() {
                Err(hook)
            } else {
                Ok(state.hook.replace(hook))
            }
        };
        match replaced {
            Ok(replaced) => drop(replaced),
            Err(due) => due.call(),
        }
    }

    /// Returns the next event; blocks for up to `timeout`.
    pub(super) fn next(&self, timeout: Duration) -> Result<FollowerEvent> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.state();
        loop {
            if state.missed > 0 {
                return Ok(FollowerEvent::Missed { events: std::mem::take(&mut state.missed) });
            }
            if let Some(event) = state.waiting.pop_front() {
                return Ok(event);
            }
            if state.ended {
                return Err(Error::new(ErrorKind::Closed, "the follower was closed"));
            }
            state = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let what = format!("no event within {timeout:?}");
                    return Err(Error::new(ErrorKind::Timeout, what));
                }
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discarded(event: FollowerEvent) -> u64 {
        match event {
            FollowerEvent::Discarded { first } => first.get(),
            FollowerEvent::Missed { events } => 1_000_000 + events,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dropped_events_are_counted_and_the_end_comes_last() {
        let events = Events::default();
        let none = events.next(Duration::ZERO);
        assert_eq!(none.map(discarded).map_err(|e| e.kind()), Err(ErrorKind::Timeout));
        for n in 0..EVENTS_MAX as u64 + 3 {
            events.push(FollowerEvent::Discarded { first: Index(n) });
        }
        events.end();
        assert_eq!(discarded(events.next(Duration::ZERO).unwrap()), 1_000_003);
        for n in 3..EVENTS_MAX as u64 + 3 {
            assert_eq!(discarded(events.next(Duration::MAX).unwrap()), n);
        }
        assert_eq!(events.next(Duration::MAX).map_err(|e| e.kind()).map(discarded), Err(ErrorKind::Closed));
    }

    #[test]
    fn hook_runs_once_and_at_once_if_an_event_waits() {
        let events = Events::default();
        let (tx, rx) = std::sync::mpsc::channel();
        let hook = |n| {
            let tx = tx.clone();
            move || tx.send(n).unwrap()
        };
        events.on_next(hook(1));
        events.on_next(hook(2)); // in its place
        assert!(rx.try_recv().is_err());
        events.push(FollowerEvent::Discarded { first: Index(1) });
        events.push(FollowerEvent::Discarded { first: Index(2) });
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [2]);
        events.on_next(hook(3));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [3]);
        while events.next(Duration::ZERO).is_ok() {}
        events.on_next(hook(4));
        events.on_next(|| panic!("the one in its place"));
        events.on_next(hook(5));
        assert!(rx.try_recv().is_err());
        events.end();
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [5]);
    }
}
