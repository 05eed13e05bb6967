//! Patience: how long a reader of a copy waits until the copy learns which object has a record.
//!
//! A copy that reads objects begins behind them, with a table that lacks the newest: it learns of these from the next entries that it
//! is fed. A reader that comes meanwhile waits instead of failing. A replica's reader fails at once: another replica can answer.
//!
//! Must not know: what is read.

use crate::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// How long a reader waits in all for one read. None: not at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience(Duration);

/// One read, and since when it waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Option<Instant>);

impl Patience {
    pub(crate) fn new(time: Duration) -> Self {
        Self(time)
    }

    /// Waits, if the read that failed with `error` can succeed soon, and is to be tried again.
    pub(crate) fn pauses(self, error: &Error, waiting: &mut Waiting) -> bool {
        let Some(pause) = error.retry_after().filter(|_| !self.0.is_zero()) else { return false };
        if waiting.0.get_or_insert_with(Instant::now).elapsed() + pause > self.0 {
            return false;
        }
        thread::sleep(pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn only_what_can_succeed_soon_is_tried_again_and_not_for_ever() {
        let soon = |millis| Error::retry_in(ErrorKind::Unavailable, "x", Duration::from_millis(millis));
        let patience = Patience::new(Duration::from_millis(200));
        assert!(!patience.pauses(&Error::new(ErrorKind::Unavailable, "x"), &mut Waiting::default()));
        assert!(!Patience::default().pauses(&soon(1), &mut Waiting::default()));
        assert!(!patience.pauses(&soon(500), &mut Waiting::default()), "it ends before that");
        let mut waiting = Waiting::default();
        let begun = Instant::now();
        let pauses = std::iter::repeat_with(|| patience.pauses(&soon(20), &mut waiting))
            .take_while(|again| *again)
            .count();
        assert!((1..=9).contains(&pauses), "{pauses}");
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
