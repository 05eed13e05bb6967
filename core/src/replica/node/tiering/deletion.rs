//! Deletion: the leader has objects deleted whose records are discarded, once the delay is over.
//!
//! Readers that a discard has overtaken can go on for as long as the delay. A replica that runs when a discard is committed counts it from
//! then, by a clock that nobody sets. For older discards there is only the log's time ([`DiscardedObjects`](crate::replica::state::discarded_objects::DiscardedObjects)): a restart does not begin the
//! delay again. That time can be wrong, and an entry can have waited long for its commit. So nothing goes within a part of the delay after
//! the start. Objects that were seen to be discarded go after the delay by the clock that nobody sets, whatever the log's time says: that
//! stands still while a wall clock that was ahead is behind it.
//!
//! Invariant: T2 of `tiering.rs`.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use crate::error::{Error, Result};
use crate::replica::state::discarded_objects::{DiscardStep, PARTS};
use crate::store::format::objects;
use crate::store::read::run_directory::in_objects;
use crate::store::segment::Segment;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How soon a failed deletion is tried again.
const RETRY: Duration = Duration::from_secs(600);

/// How far this replica has deleted objects, and since when it knows of discards.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    /// Objects below this number were deleted.
    below: u64,
    /// Nothing is deleted before: the last attempt failed.
    again: Moment,
    /// When this replica began, and below which number objects were discarded then.
    begun: Option<(Moment, u64)>,
    /// The discards since then, oldest first; those that follow each other closely are one.
    seen: VecDeque<Seen>,
}

/// Objects below a number were seen to be discarded, once this entry was committed; with the next record then.
#[derive(Debug)]
struct Seen {
    below: u64,
    raft: EntryIndex,
    next: Index,
    /// The first of these discards, and the last one.
    since: Moment,
    at: Moment,
}

impl Deletion {
    fn begins(&mut self, below: u64, now: Moment) {
        self.begun = Some((now, below));
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    fn sees(&mut self, below: u64, (raft, next): (EntryIndex, Index), now: Moment, delay: Duration) {
        // Only a leader deletes: elsewhere the last one that is due stays.
        while self.seen.get(1).is_some_and(|second| now.since(second.at) >= delay) {
            self.seen.pop_front();
        }
        let part = delay / u32::try_from(PARTS).unwrap_or(1);
        let joined = self.seen.pop_back_if(|last| now.since(last.since) < part);
        self.seen.push_back(Seen {
            below,
            raft,
            next,
            since: joined.map_or(now, |last| last.since),
            at: now,
        });
    }

    /// The newest discard that was seen, is older than the delay, and `may_go`.
    fn seen_before(
        &self,
        now: Moment,
        delay: Duration,
        may_go: impl Fn(EntryIndex, Index) -> bool,
    ) -> Option<u64> {
        let is_due = |seen: &&Seen| now.since(seen.at) >= delay && may_go(seen.raft, seen.next);
        let due = self.seen.iter().rev().find(is_due).filter(|_| now >= self.again);
        due.map(|seen| seen.below).filter(|below| *below > self.below)
    }

    /// When the oldest discard that was seen, is not deleted, and `may_go`, is older than the delay.
    fn seen_due(&self, delay: Duration, may_go: impl Fn(EntryIndex, Index) -> bool) -> Option<Moment> {
        let next = self.seen.iter().find(|seen| seen.below > self.below && may_go(seen.raft, seen.next))?;
        Some(next.at.plus(delay).max(self.again))
    }

    /// From when on objects below a number can be deleted, as far as this replica has seen it itself. `false`: they were discarded before
    /// it began, and the log's time counts as well.
    fn not_before(&self, below: u64, delay: Duration) -> (Moment, bool) {
        let (begun, known) = self.begun.unwrap_or_default();
        if below <= known {
            return (begun.plus(delay / u32::try_from(PARTS).unwrap_or(1)), false);
        }
        let seen = self.seen.iter().find(|seen| seen.below >= below);
        (seen.map_or(begun, |seen| seen.at).plus(delay), true)
    }
}

impl Node {
    /// The objects that can be deleted now: all below this number.
    pub(super) fn due_for_deletion(&self, now: Moment) -> Option<u64> {
        let steps = self.deletable().take_while(|next| self.can_go_at(*next, now) <= now);
        let seen =
            self.tiering.deletion.seen_before(now, self.options.object_delete_delay, self.may_be_deleted());
        steps.last().map(|(step, _)| step.below).max(seen)
    }

    /// When the next objects can be deleted.
    pub(super) fn deletion_due(&self, now: Moment) -> Option<Moment> {
        let of_step = self.deletable().next().map(|next| self.can_go_at(next, now))?;
        let seen = self.tiering.deletion.seen_due(self.options.object_delete_delay, self.may_be_deleted());
        Some(seen.map_or(of_step, |seen| seen.min(of_step)))
    }

    /// When the objects of a step can be deleted, as it looks now.
    fn can_go_at(&self, (step, due): (&DiscardStep, Timestamp), now: Moment) -> Moment {
        let deletion = &self.tiering.deletion;
        let (not_before, is_seen) = deletion.not_before(step.below, self.options.object_delete_delay);
        let at = not_before.max(deletion.again);
        if is_seen {
            return at;
        }
        // An entry of a server whose clock is ahead takes the log's time with it.
        let time = self.replica.time(now).min(self.options.clock.now());
        at.max(now.plus(Duration::from_millis(due.0.saturating_sub(time.0))))
    }

    /// Discarded objects whose deletion waits for nothing but its time, oldest first, each with that.
    fn deletable(&self) -> impl Iterator<Item = (&DiscardStep, Timestamp)> {
        let (deleted, may_go) = (self.tiering.deletion.below, self.may_be_deleted());
        let steps = self.replica.sequencer.committed().discarded.due();
        let left = steps.skip_while(move |(step, _)| step.below <= deleted);
        left.take_while(move |(step, _)| may_go(step.raft, step.next))
    }

    /// Whether objects that were discarded by an entry can go as soon as the delay is over; with the next record then.
    fn may_be_deleted(&self) -> impl Fn(EntryIndex, Index) -> bool + use<'_> {
        let (known, waits) = (self.known_commit(), self.slices_need_objects());
        let stored = self.replica.sequencer.committed().objects.stored_end().map(|end| end.next);
        // Of a catalogue: the snapshot that replaces the objects is before this record.
        let is_replaced =
            move |next: Index| !self.options.is_catalogue || stored.is_some_and(|stored| stored >= next);
        move |raft, next| raft <= known && !waits && is_replaced(next)
    }

    pub(super) fn end_deletion(&mut self, below: u64, result: Result<u64>, now: Moment) {
        let path = self.tiering.path.display();
        match result {
            Ok(count) => {
                tracing::info!(%path, below, count, "objects whose records are discarded were deleted");
                self.tiering.deletion.below = below;
                self.tiering.has_succeeded("the object store");
            }
            // Everything else goes on: the store may forbid deletion alone.
            Err(error) => {
                tracing::warn!(%path, %error, "objects of discarded records cannot be deleted; it is tried again");
                self.tiering.deletion.again = now.plus(RETRY);
            }
        }
    }

    /// Objects below a number were seen to be discarded.
    pub(super) fn see_discard(&mut self, below: u64, now: Moment) {
        let committed = self.replica.sequencer.committed();
        let at = (committed.raft, committed.next);
        self.tiering.deletion.sees(below, at, now, self.options.object_delete_delay);
    }

    /// The node begins. A discard that it does not know by then counts from when it is seen.
    pub(in crate::replica::node) fn deletion_begins(&mut self, now: Moment) {
        if !self.tiering.deletion.has_begun() {
            self.find_discards(now);
        }
    }

    /// After the start: finds in the openings of the files here since when objects are discarded. It reads a few, which are spread over
    /// the delay.
    pub(super) fn find_discards(&mut self, now: Moment) {
        let committed = self.replica.sequencer.committed();
        self.tiering.deletion.begins(committed.objects.number(), now);
        if committed.objects.number() == 0 || self.options.vault.is_none() {
            return;
        }
        let (raft, mut before) = (committed.raft, self.replica.time(now));
        while let Some(segment) = self.writer.store.segments.begun_before(raft, before) {
            let at = segment.first_timestamp;
            let below = match self.discarded_in(&segment) {
                Ok(below) => below,
                Err(error) => {
                    let path = self.tiering.path.display();
                    tracing::warn!(%path, %error, "discarded objects are kept longer: it cannot be read when they were discarded");
                    return;
                }
            };
            self.replica.sequencer.learn_discarded(below, segment.base, at);
            let older = self.replica.sequencer.committed().discarded.look_before(at, self.replica.time(now));
            match older.filter(|older| below > 0 && *older < at) {
                Some(older) => before = older,
                None => return,
            }
        }
    }

    /// Below which number the objects are discarded where this segment begins.
    fn discarded_in(&self, segment: &Arc<Segment>) -> Result<u64> {
        let segments = &self.writer.store.segments;
        let number = |table: &[u8]| match table.is_empty() {
            true => Ok(0),
            false => objects::decode(table).map(|(objects, _)| objects.number),
        };
        let read = segments.open(segment).and_then(|data| in_objects(&data, number));
        read.map_err(|error: Error| segments.met(error, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(16);
    const ENTRY: (EntryIndex, Index) = (EntryIndex(1), Index(1));

    fn at(millis: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(millis))
    }

    #[test]
    fn discard_that_was_seen_counts_from_then_and_an_older_one_not_just_after_the_start() {
        let mut deletion = Deletion::default();
        deletion.begins(3, at(5_000));
        assert_eq!(deletion.not_before(3, DELAY), (at(6_000), false));
        assert_eq!(deletion.not_before(4, DELAY), (at(21_000), true), "not even seen");
        deletion.sees(5, ENTRY, at(10_000), DELAY);
        deletion.sees(7, ENTRY, at(10_900), DELAY);
        deletion.sees(9, ENTRY, at(12_000), DELAY);
        assert_eq!(deletion.not_before(3, DELAY), (at(6_000), false));
        assert_eq!(
            deletion.not_before(4, DELAY),
            (at(26_900), true),
            "as late as those that it is joined with"
        );
        assert_eq!(deletion.not_before(7, DELAY), (at(26_900), true));
        assert_eq!(deletion.not_before(8, DELAY), (at(28_000), true));
        deletion.sees(11, ENTRY, at(60_000), DELAY);
        deletion.sees(12, ENTRY, at(70_000), DELAY);
        assert_eq!(deletion.seen.len(), 3, "one that is due stays");
    }

    /// A wall clock that had been ahead was corrected: the log's time stood still, all discards were one step of it, and each new one put the
    /// deletion of all of them off.
    #[test]
    fn discards_that_were_seen_do_not_wait_for_the_log_s_time() {
        let mut deletion = Deletion::default();
        deletion.begins(0, at(0));
        for n in 1..10 {
            deletion.sees(n, (EntryIndex(n), Index(1)), at(4_000 * n), DELAY);
        }
        let due = |deletion: &Deletion, millis, known| {
            deletion.seen_before(at(millis), DELAY, |raft, _| raft <= EntryIndex(known))
        };
        assert_eq!(
            deletion.seen_due(DELAY, |_, _| true),
            Some(at(36_000)),
            "of those that are due the newest stays"
        );
        assert_eq!(due(&deletion, 36_000, 9), Some(5));
        assert_eq!(due(&deletion, 36_000, 4), None, "it is not durably committed");
        deletion.below = 5;
        assert_eq!(due(&deletion, 36_000, 9), None);
        assert_eq!(deletion.seen_due(DELAY, |_, _| true), Some(at(24_000 + 16_000)));
        assert_eq!(deletion.seen_due(DELAY, |raft, _| raft < EntryIndex(6)), None, "none may go");
        deletion.again = at(50_000);
        assert_eq!((due(&deletion, 49_000, 9), due(&deletion, 50_000, 9)), (None, Some(8)));
    }
}
