//! Holes: what no log needs any more of the sorted copies of a shared group is given back to the file system, one copy at a time, by
//! the helper thread.
//!
//! ```text
//!  a log was deleted or has discarded records ──> what logs need is noted ──durable──> each copy: holes
//! ```
//!
//! Invariant: holes are made only once a durable block records that the discard or the deletion is committed.
//!
//! Must not know: what a copy looks like.

use super::Node;
use super::sorting::{PAUSE, REST};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::InboxEvent;
use crate::store::read::copy_holes::{GivenBack, Needed, give_back};
use crate::sync::clock::Moment;
use crate::types::EntryIndex;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// At least this long after one look at the copies the next one begins: many logs discard records one after the other.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a look at the copy of this segment.
type Looked = (u64, Result<GivenBack>);

/// The work on the holes of a log's copies.
#[derive(Default)]
pub(super) struct Holes {
    /// A log has shrunk since the last look.
    has_shrunk: bool,
    /// Copies that were made since then, or could not be changed then.
    others: BTreeSet<u64>,
    /// Copies that something has read then, or behind whose segment the opening was damaged. They are looked at with others: an idle log
    /// waits for nothing.
    put_off: BTreeSet<u64>,
    /// The records that the logs need, once this entry is durably known to be committed.
    noted: Option<(EntryIndex, Arc<Needed>)>,
    /// The copies that are still to be looked at.
    left: BTreeSet<u64>,
    is_busy: bool,
    /// The result of the look at a copy.
    done: Arc<Mutex<Option<Looked>>>,
    began: Moment,
    /// Nothing is done before.
    again: Moment,
    /// The bytes that were given back since the first of these copies.
    bytes: u64,
    is_unsupported: bool,
}

impl Holes {
    /// Of a log that was just opened: a crash can have come before the holes.
    pub(super) fn new() -> Self {
        Self { has_shrunk: true, ..Self::default() }
    }

    /// A log has discarded records, or was dropped.
    pub(super) fn shrank(&mut self) {
        self.has_shrunk = true;
    }

    /// A copy was made.
    pub(super) fn made(&mut self, number: u64) {
        self.others.insert(number);
    }

    fn take_done(&mut self) -> Option<Looked> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_busy &= done.is_none();
        done
    }

    fn end_look(&mut self, now: Moment) {
        self.noted = None;
        self.again = self.again.max(now.plus(LOOK_INTERVAL));
    }
}

impl Node {
    /// When [`Self::make_holes`] has to be called. None: when something else happens.
    pub(super) fn holes_due(&self, now: Moment) -> Option<Moment> {
        let holes = &self.holes;
        if holes.is_unsupported || holes.is_busy || !self.replica.sequencer.logs().is_shared() {
            return None;
        }
        let can_go_on = match &holes.noted {
            Some((raft, _)) => *raft <= self.known_commit(),
            None => holes.has_shrunk || !holes.others.is_empty(),
        };
        can_go_on.then(|| holes.again.max(now))
    }

    /// Has the helper thread give back what no log needs of the next copy, if there is one.
    pub(super) fn make_holes(&mut self, now: Moment) {
        self.end_hole(now);
        if self.holes_due(now).is_none_or(|due| due > now) {
            return;
        }
        let copies = self.sorting.copies().clone();
        let holes = &mut self.holes;
        if holes.noted.is_none() {
            let of_all = std::mem::take(&mut holes.has_shrunk);
            let mut others = std::mem::take(&mut holes.others);
            others.append(&mut holes.put_off);
            holes.left = copies.numbers().into_iter().filter(|n| of_all || others.contains(n)).collect();
            if holes.left.is_empty() {
                return holes.end_look(now);
            }
            let committed = self.replica.sequencer.committed();
            let (raft, logs) = (committed.raft, &committed.logs);
            let firsts = logs.iter().map(|(log, state)| (log, state.first));
            holes.noted = Some((raft, Arc::new(Needed::new(logs.opened(), firsts))));
            // A log that is written all the time says what is committed only if it is asked to.
            self.owes_commit |= raft > self.known_commit();
            return; // goes on at once if that is durable
        }
        let (Some((_, needed)), Some(number)) = (holes.noted.clone(), holes.left.pop_first()) else {
            return holes.end_look(now);
        };
        let Some(segment) = self.writer.store.segments.find_full(|segment| segment.number == number) else {
            return; // removed meanwhile
        };
        (holes.is_busy, holes.began) = (true, now);
        let (done, queue) = (holes.done.clone(), self.queue.clone());
        self.writer.store.allocator.clone().run_in_background(move || {
            // A panic would end the thread, and with it the log.
            let given = catch_unwind(AssertUnwindSafe(|| give_back(&copies, &segment, &needed)));
            let panicked = |_| Err(Error::new(ErrorKind::Io, "giving back parts of a sorted copy panicked"));
            *done.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((number, given.unwrap_or_else(panicked)));
            queue.push_event(InboxEvent::JobEnded);
        });
    }

    /// Takes the result of the look at a copy.
    fn end_hole(&mut self, now: Moment) {
        let holes = &mut self.holes;
        let Some((number, given)) = holes.take_done() else { return };
        let segments = &self.writer.store.segments;
        let path = segments.disk().path().display();
        holes.again = now.plus(now.since(holes.began).min(PAUSE) * REST);
        match given {
            Ok(GivenBack::Bytes(bytes)) => holes.bytes += bytes,
            Ok(GivenBack::BytesForNow(bytes)) => {
                holes.bytes += bytes;
                holes.put_off.insert(number);
            }
            Ok(GivenBack::Gone) => {}
            Ok(GivenBack::InUse) => drop(holes.put_off.insert(number)),
            Ok(GivenBack::NotSupported) => {
                holes.is_unsupported = true;
                tracing::warn!(%path, "the file system has no holes: sorted copies keep the records of logs that were deleted or have discarded them, until their segments go");
            }
            Err(error) => {
                tracing::warn!(%path, segment = number, %error, "parts of a sorted copy could not be given back; that is tried again later");
                holes.again = now.plus(PAUSE);
                holes.others.insert(number);
                if error.kind() == ErrorKind::Corrupt {
                    let _ = segments.met(error, None); // the repair looks there
                }
            }
        }
        if holes.left.is_empty() && holes.bytes > 0 {
            let bytes = std::mem::take(&mut holes.bytes);
            tracing::info!(%path, bytes, "sorted copies gave back what logs have discarded, and what was deleted");
        }
    }
}
