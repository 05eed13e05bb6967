//! Discarded objects: since when the log has been without them, by its own time. Their deletion is counted from there.
//!
//! ```text
//!   objects   0 1 2 │ 3 4 5 │ 6 7 │ 8 9 ...
//!                   │       │     └ below 8 at 14:30: the entry of a discard
//!                   │       └────── below 6 at 14:00: the opening of the newest segment
//!                   └────────────── below 3 at 11:00: the opening of an older segment
//! ```
//!
//! Nothing is stored for it. An opening lists the objects of its time, and repeats the timestamp of the entry before it; a discard behind it
//! is an entry with a timestamp. So a restart changes nothing, and each replica knows about the same.
//!
//! Invariants:
//! - no time is before the timestamp of the discard that it is about;
//! - from step to step the numbers and the times go up;
//! - there are few steps: discards that follow each other closely are one, with the time of the last of them.
//!
//! Must not know: time, disks, threads.

use crate::types::{EntryIndex, Index, Timestamp};
use std::collections::VecDeque;
use std::time::Duration;

/// In how many parts the delay is divided: discards in the same part are one step.
pub(crate) const PARTS: u64 = 16;

/// The steps in which a log has discarded objects, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct DiscardedObjects {
    steps: VecDeque<DiscardStep>,
    /// How long objects stay after their discard, in milliseconds.
    delay: u64,
}

/// Objects below a number that are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiscardStep {
    pub(crate) below: u64,
    /// They are discarded once this entry is committed.
    pub(crate) raft: EntryIndex,
    /// The next record then.
    pub(crate) next: Index,
    /// The first discard of the step was then, and the last one.
    since: Timestamp,
    at: Timestamp,
}

impl DiscardedObjects {
    /// None yet, of a log that keeps objects for `delay` after their discard.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { steps: VecDeque::new(), delay: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX) }
    }

    /// The steps, oldest first, each with the time from which on its objects can be deleted.
    pub(crate) fn due(&self) -> impl Iterator<Item = (&DiscardStep, Timestamp)> {
        self.steps.iter().map(|step| (step, Timestamp(step.at.0.saturating_add(self.delay))))
    }

    /// Objects below a number are discarded, once this entry is committed, which has this timestamp, or an earlier one; with the next
    /// record then. Nothing happens if that is known.
    pub(super) fn add(&mut self, below: u64, (raft, next): (EntryIndex, Index), at: Timestamp) {
        let last = self.steps.back().copied();
        if below <= last.map_or(0, |last| last.below) {
            return;
        }
        let at = at.max(last.map_or(at, |last| last.at));
        // Only a leader deletes: elsewhere the last step that is due stays.
        while self.due().nth(1).is_some_and(|(_, due)| due <= at) {
            self.steps.pop_front();
        }
        let part = self.part();
        let joined = self.steps.pop_back_if(|last| at.0 - last.since.0 < part);
        let since = joined.map_or(at, |last| last.since);
        self.steps.push_back(DiscardStep { below, raft, next, since, at });
    }

    /// The same of objects that were discarded before all that is known.
    pub(super) fn add_older(&mut self, below: u64, (raft, next): (EntryIndex, Index), at: Timestamp) {
        let is_later = |step: &mut DiscardStep| step.below <= below && step.at >= at;
        while self.steps.pop_front_if(is_later).is_some() {}
        let is_first = self.steps.front().is_none_or(|first| first.below > below && first.at > at);
        if below > 0 && is_first {
            self.steps.push_front(DiscardStep { below, raft, next, since: at, at });
        }
    }

    /// Where to look for an older step, after a look that has found one with this time: not behind the returned time. None: what was
    /// discarded before can be deleted at `now`.
    pub(crate) fn look_before(&self, at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let is_due = at.0.saturating_add(self.delay) <= now.0;
        (!is_due).then(|| Timestamp(at.0.saturating_sub(self.part())))
    }

    /// The length of a part of the delay, in milliseconds.
    fn part(&self) -> u64 {
        (self.delay / PARTS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: u64 = 1600;

    fn none() -> DiscardedObjects {
        DiscardedObjects::new(Duration::from_millis(DELAY))
    }

    fn end(raft: u64) -> (EntryIndex, Index) {
        (EntryIndex(raft), Index(raft))
    }

    fn add(steps: &mut DiscardedObjects, below: u64, at: u64) {
        steps.add(below, end(below), Timestamp(at));
    }

    fn due(steps: &DiscardedObjects) -> Vec<(u64, u64)> {
        steps.due().map(|(step, due)| (step.below, due.0)).collect()
    }

    #[test]
    fn objects_are_due_a_delay_after_their_own_discard() {
        let mut steps = none();
        add(&mut steps, 0, 5);
        assert_eq!(due(&steps), []);
        add(&mut steps, 3, 10_000);
        add(&mut steps, 3, 10_500);
        add(&mut steps, 2, 10_500);
        add(&mut steps, 5, 10_500);
        assert_eq!(due(&steps), [(3, 11_600), (5, 12_100)]);
    }

    /// The time of a step is that of its last discard, and a step does not grow for ever.
    #[test]
    fn discards_without_a_break_are_few_steps_and_none_is_early() {
        let mut steps = none();
        for n in 1..20_000 {
            add(&mut steps, n, n);
            assert!(steps.steps.len() <= PARTS as usize + 2);
            for (below, due) in due(&steps) {
                assert!(below + DELAY <= due && due < below + DELAY + DELAY / PARTS);
            }
            let first = due(&steps)[0];
            assert!(
                n < 2 * DELAY || first.1 <= n + 1 + DELAY / PARTS,
                "the last one that is due stays: {first:?} at {n}"
            );
        }
    }

    #[test]
    fn older_times_come_before_what_is_known_and_replace_later_ones() {
        let mut steps = none();
        add(&mut steps, 9, 5000);
        add(&mut steps, 12, 6000);
        for (below, at) in [(9, 4800), (7, 4800), (4, 4000), (0, 3000)] {
            steps.add_older(below, end(below), Timestamp(at));
        }
        assert_eq!(due(&steps), [(4, 5600), (9, 6400), (12, 7600)]);
        // Later than what is known.
        steps.add_older(4, end(4), Timestamp(4500));
        steps.add_older(3, end(3), Timestamp(4500));
        assert_eq!(due(&steps), [(4, 5600), (9, 6400), (12, 7600)]);
        let mut steps = none();
        steps.add_older(4, end(4), Timestamp(100));
        assert_eq!(due(&steps), [(4, 1700)]);
        assert_eq!(steps.look_before(Timestamp(100), Timestamp(1700)), None);
        assert_eq!(steps.look_before(Timestamp(100), Timestamp(1699)), Some(Timestamp(0)));
        assert_eq!(steps.look_before(Timestamp(300), Timestamp(1699)), Some(Timestamp(200)));
    }
}
