//! Slow disk: whether a leader's disk has become so slow that another replica should lead.
//!
//! The median of the last syncs decides, so a single slow sync has no effect. If a replica becomes leader again soon
//! after it transferred leadership, it waits longer before the next transfer: if all disks are slow, transfers do not
//! help.
//!
//! Must not know: which replica could lead.

use crate::sync::clock::Moment;
use std::time::Duration;

/// The number of last syncs that are considered.
const SYNCS: usize = 7;
/// The shortest time between two transfers of leadership by this replica: the initial and the maximum one.
const DELAY_MIN: Duration = Duration::from_secs(10);
const DELAY_MAX: Duration = Duration::from_secs(640);
/// How long this replica should not be chosen to lead again.
const AVOIDED_FOR: Duration = Duration::from_secs(600);

/// The durations of the disk's last syncs.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    limit: Option<Duration>,
    recent: [Duration; SYNCS],
    next: usize,
    transferred_at: Option<Moment>,
    delay: Duration,
}

impl SlowDisk {
    /// No sync has taken longer than `limit` so far. None: no sync is too slow.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, recent: [Duration::ZERO; SYNCS], next: 0, transferred_at: None, delay: DELAY_MIN }
    }

    /// Adds a sync that took this long.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.recent[self.next] = took;
        self.next = (self.next + 1) % SYNCS;
    }

    /// Whether this replica has transferred leadership lately, so that it is better not to give it back.
    pub(crate) fn has_transferred_lately(&self, now: Moment) -> bool {
        self.transferred_at.is_some_and(|at| now < at.plus(AVOIDED_FOR))
    }

    /// Whether the leader should transfer leadership now. If so, assumes that it does.
    pub(crate) fn is_reason_to_transfer(&mut self, now: Moment) -> bool {
        let Some(limit) = self.limit else { return false };
        let slow = self.recent.iter().filter(|took| **took > limit).count();
        let lately = self.transferred_at.is_some_and(|at| now < at.plus(self.delay));
        if slow <= SYNCS / 2 || lately {
            return false;
        }
        let again = self.transferred_at.is_some_and(|at| now < at.plus(self.delay * 3));
        self.delay = if again { DELAY_MAX.min(self.delay * 2) } else { DELAY_MIN };
        self.transferred_at = Some(now);
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

    /// The leader went by a moving average: one sync of 4 s made it transfer leadership.
    #[test]
    fn one_slow_sync_causes_no_transfer() {
        let mut slow_disk = SlowDisk::new(Some(Duration::from_millis(500)));
        for took in [FAST, FAST, SLOW, FAST, SLOW, FAST, SLOW] {
            slow_disk.synced(took);
            assert!(!slow_disk.is_reason_to_transfer(after(1)));
        }
        slow_disk.synced(SLOW);
        assert!(slow_disk.is_reason_to_transfer(after(1)));
    }

    /// If all disks were slow, leadership was transferred every 10 s.
    #[test]
    fn repeated_leader_transfers_less_and_less_often() {
        let mut slow_disk = SlowDisk::new(Some(Duration::from_millis(500)));
        (0..SYNCS).for_each(|_| slow_disk.synced(SLOW));
        let steps: Vec<u64> = (0..4000).filter(|s| slow_disk.is_reason_to_transfer(after(*s))).collect();
        assert_eq!(steps, [0, 10, 30, 70, 150, 310, 630, 1270, 1910, 2550, 3190, 3830]);
        // Long after, the delay is the initial one again.
        let later = 3830 + 3 * DELAY_MAX.as_secs();
        assert!(slow_disk.is_reason_to_transfer(after(later)));
        assert!(slow_disk.is_reason_to_transfer(after(later + 10)));
    }

    /// Leadership was given back after 10 s, so that leaders were spread evenly.
    #[test]
    fn leader_that_transferred_is_avoided_for_a_while() {
        let mut slow_disk = SlowDisk::new(Some(Duration::from_millis(500)));
        assert!(!slow_disk.has_transferred_lately(after(0)));
        (0..SYNCS).for_each(|_| slow_disk.synced(SLOW));
        assert!(!slow_disk.has_transferred_lately(after(1)), "it did not lead");
        assert!(slow_disk.is_reason_to_transfer(after(1)));
        (0..SYNCS).for_each(|_| slow_disk.synced(FAST));
        assert!(slow_disk.has_transferred_lately(after(600)));
        assert!(!slow_disk.has_transferred_lately(after(601)));
    }
}
