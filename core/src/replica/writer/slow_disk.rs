//! Limping: whether a leader's disk has become so slow that another one should lead.
//!
//! The median of the last syncs decides: one that took long is no reason. A leader that got the lead back soon steps aside
//! ever more rarely: where all disks limp, handing the lead around helps nobody.
//!
//! Must not know: who else could lead.

use crate::sync::clock::Moment;
use std::time::Duration;

/// Syncs that are looked at.
const SYNCS: usize = 7;
/// A leader does not step aside again before this, at first and at last.
const DELAY_MIN: Duration = Duration::from_secs(10);
const DELAY_MAX: Duration = Duration::from_secs(640);

/// What is known of the disk.
#[derive(Debug)]
pub(crate) struct Limping {
    limit: Option<Duration>,
    recent: [Duration; SYNCS],
    next: usize,
    stepped_aside: Option<Moment>,
    delay: Duration,
}

impl Limping {
    /// A disk on which nothing has taken longer than `limit` yet. None: nothing is too long.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, recent: [Duration::ZERO; SYNCS], next: 0, stepped_aside: None, delay: DELAY_MIN }
    }

    /// A sync took so long.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.recent[self.next] = took;
        self.next = (self.next + 1) % SYNCS;
    }

    /// Whether the leader should step aside now. If so, it is taken to do it.
    pub(crate) fn is_reason_to_step_aside(&mut self, now: Moment) -> bool {
        let Some(limit) = self.limit else { return false };
        let slow = self.recent.iter().filter(|took| **took > limit).count();
        let lately = self.stepped_aside.is_some_and(|at| now < at.plus(self.delay));
        if slow <= SYNCS / 2 || lately {
            return false;
        }
        let again = self.stepped_aside.is_some_and(|at| now < at.plus(self.delay * 3));
        self.delay = if again { DELAY_MAX.min(self.delay * 2) } else { DELAY_MIN };
        self.stepped_aside = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(4);
    const FAST: Duration = Duration::from_millis(1);

    fn after(seconds: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(seconds))
    }

    /// It was a moving mean: one sync of 4 s made a leader step aside.
    #[test]
    fn one_slow_sync_is_no_reason() {
        let mut limping = Limping::new(Some(Duration::from_millis(500)));
        for took in [FAST, FAST, SLOW, FAST, SLOW, FAST, SLOW] {
            limping.synced(took);
            assert!(!limping.is_reason_to_step_aside(after(1)));
        }
        limping.synced(SLOW);
        assert!(limping.is_reason_to_step_aside(after(1)));
    }

    /// Leaders whose disks all limp handed the lead around every 10 s.
    #[test]
    fn who_got_the_lead_back_keeps_it_longer() {
        let mut limping = Limping::new(Some(Duration::from_millis(500)));
        (0..SYNCS).for_each(|_| limping.synced(SLOW));
        let steps: Vec<u64> = (0..4000).filter(|s| limping.is_reason_to_step_aside(after(*s))).collect();
        assert_eq!(steps, [0, 10, 30, 70, 150, 310, 630, 1270, 1910, 2550, 3190, 3830]);
        // Long after, it is as if it was the first time.
        let later = 3830 + 3 * DELAY_MAX.as_secs();
        assert!(limping.is_reason_to_step_aside(after(later)));
        assert!(limping.is_reason_to_step_aside(after(later + 10)));
    }
}
