//! Deletion: the leader has objects deleted whose records are discarded, once the delay is over.
//!
//! Readers that a discard has overtaken can go on for as long as the delay. It is counted in the log's time, from the discard's own: a
//! restart, or another leader, does not begin it again. See [`DiscardedObjects`](crate::replica::state::discarded_objects::DiscardedObjects).
//!
//! Invariant: T2 of `tiering.rs`.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use crate::error::{Error, Result};
use crate::replica::state::discarded_objects::DiscardStep;
use crate::store::format::objects;
use crate::store::read::run_directory::in_objects;
use crate::store::segment::Segment;
use crate::sync::clock::Moment;
use crate::types::{Index, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// How soon a failed deletion is tried again.
const RETRY: Duration = Duration::from_secs(600);

/// How far this replica has deleted objects.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    /// Objects below this number were deleted.
    below: u64,
    /// Nothing is deleted before: the last attempt failed.
    again: Moment,
}

impl Node {
    /// The objects that can be deleted now: all below this number.
    pub(super) fn due_for_deletion(&self, now: Moment) -> Option<u64> {
        let mut next = self.deletable().peekable();
        if now < self.tiering.deletion.again || next.peek().is_none() {
            return None;
        }
        let time = self.replica.time(now);
        next.take_while(|(_, due)| *due <= time).last().map(|(step, _)| step.below)
    }

    /// When the next objects can be deleted.
    pub(super) fn deletion_due(&self, now: Moment) -> Option<Moment> {
        let (_, due) = self.deletable().next()?;
        let left = due.0.saturating_sub(self.replica.time(now).0);
        Some(now.plus(Duration::from_millis(left)).max(self.tiering.deletion.again))
    }

    /// Discarded objects whose deletion waits for nothing but its time, oldest first, each with that.
    fn deletable(&self) -> impl Iterator<Item = (&DiscardStep, Timestamp)> {
        let committed = self.replica.sequencer.committed();
        let (known, waits) = (self.known_commit(), self.slices_need_objects());
        let stored = committed.objects.stored_end().map(|end| end.next);
        // Of a catalogue: the snapshot that replaces the objects is before this record.
        let is_replaced =
            move |next: Index| !self.options.is_catalogue || stored.is_some_and(|stored| stored >= next);
        let may_go = move |step: &DiscardStep| step.raft <= known && !waits && is_replaced(step.next);
        let deleted = self.tiering.deletion.below;
        let left = committed.discarded.due().skip_while(move |(step, _)| step.below <= deleted);
        left.take_while(move |(step, _)| may_go(step))
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

    /// After the start: finds in the openings of the files here since when objects are discarded. It reads a few, which are spread over
    /// the delay.
    pub(super) fn find_discards(&mut self, now: Moment) {
        let committed = self.replica.sequencer.committed();
        if committed.objects.number() == 0 {
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
