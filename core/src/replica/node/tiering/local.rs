//! Local retention: each replica removes files whose records are in the object store, by its own limits.
//!
//! ```text
//! beyond local_bytes or local_age, and stored ──> the next opening begins the log here later ──synced──> the files go
//! ```
//!
//! An opening says from which record on a directory has the log. So recovery needs nothing new: files before that record are
//! left over, and records before it are known to be in objects.
//!
//! Invariants:
//! - every record of a removed file is in an object that is durably known here to be stored;
//! - an object that is suspected to be lost or damaged keeps the files that have all of it: they may be the last copy. So nothing goes
//!   before a replica that has started knows the suspects (see `object_scrub`);
//! - the opening that says so is durable before the first file goes, and so is that the entries before it are committed:
//!   recovery takes the first record as of the last entry that it knows to be committed.

use super::super::Node;
use crate::store::objects::names::object_name;
use crate::store::read::run_directory::has_objects;
use crate::store::segment::Base;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::time::Duration;

/// How far the log is known to be stored, and what goes for that.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// Entries up to this one are stored, and that is durably recorded here.
    stored: EntryIndex,
    /// Entries up to the first one are stored, which the second one says.
    said: Option<(EntryIndex, EntryIndex)>,
    /// Files that are to be removed.
    going: Option<Going>,
    /// Since when nothing but a lost or damaged object keeps files that are beyond the limits, and whether that was reported.
    held: Option<(Moment, bool)>,
}

/// How long files stay for an object before that is reported.
const HELD_FOR: Duration = Duration::from_secs(600);

/// Files that are beyond the limits.
#[derive(Debug, Default)]
struct Beyond {
    /// The first record that stays.
    first: Option<Index>,
    /// Where the object begins for which alone later files stay.
    held: Option<Base>,
}

/// Files that are to be removed: those without a record from `first` on.
#[derive(Clone, Copy, Debug)]
struct Going {
    first: Index,
    /// The last entry when this was decided: an opening behind a later one says it. One that was planned before does not.
    decided_at: EntryIndex,
}

impl Node {
    /// Removes files that are beyond this replica's own limits.
    pub(super) fn release_files(&mut self, now: Moment) {
        if self.options.local_bytes.is_none() && self.options.local_age.is_none() {
            return;
        }
        self.learn_stored();
        let Some(going) = self.tiering.released.going else {
            let Beyond { first, held } = self.beyond_local_limits(now);
            self.report_held(held, now);
            if let Some(first) = first
                && self.knows_suspects(now)
            {
                self.replica.sequencer.keep_from(first);
                let decided_at = self.replica.sequencer.end().raft;
                self.tiering.released.going = Some(Going { first, decided_at });
            }
            return;
        };
        if self.replica.sequencer.committed().local_first < going.first {
            self.tiering.released.going = None; // a conflict has replaced the state
            return;
        }
        let segments = &self.writer.store.segments;
        if segments.newest().is_none_or(|newest| newest.base.raft <= going.decided_at) {
            return;
        }
        let Some(says_it) = segments.snapshot().into_iter().find(|s| s.base.raft > going.decided_at) else {
            return;
        };
        let known = self.known_commit();
        if known < says_it.base.raft && !planted!(95) {
            self.owes_commit |= self.replica.sequencer.committed().raft >= says_it.base.raft;
        } else if self.writer.synced().end.raft > says_it.base.raft {
            if self.held_by_scrub().is_some_and(|begin| begin.next < going.first) {
                return;
            }
            self.tiering.released.going = None;
            self.drop_local(going.first);
        }
    }

    /// At a leader: lets replicas that ask for it skip what is stored, before all objects that may have to be made again.
    pub(super) fn let_skip(&mut self, now: Moment) {
        if !self.replica.is_leader() {
            return self.replica.end_skips();
        }
        let Some(is_late) = self.replica.skip_is_wanted(now) else { return };
        let may = self.tiering.vault.is_some();
        let stored = self.replica.sequencer.committed().objects.stored_upto().filter(|_| may);
        let is_known = stored.is_none() || self.knows_suspects(now);
        if is_known {
            let held = self.first_suspect().map(|begin| begin.raft);
            let upto = stored.map(|stored| held.map_or(stored, |held| stored.min(held)));
            self.replica.decide_skip(upto, now);
        } else if is_late {
            self.replica.decide_skip(None, now);
        }
    }

    /// Learns how far the log is durably known to be stored.
    fn learn_stored(&mut self) {
        let known = self.known_commit();
        let committed = self.replica.sequencer.committed();
        let (stored, raft) = (committed.objects.stored_upto().unwrap_or(EntryIndex(0)), committed.raft);
        let released = &mut self.tiering.released;
        if let Some((stored, _)) = released.said.take_if(|(_, said)| *said <= known) {
            released.stored = released.stored.max(stored);
        }
        if released.said.is_none() && stored > released.stored {
            released.said = Some((stored, raft));
            self.owes_commit |= raft > known;
        }
    }

    fn drop_local(&mut self, first: Index) {
        let before = self.writer.store.segments.len();
        self.writer.store.drop_below(first, self.known_commit());
        self.replica.dropped_to(self.writer.archive.first());
        self.queue.recount(self.writer.store.segments.bytes_from(first));
        let (path, files) = (self.tiering.path.display(), before - self.writer.store.segments.len());
        tracing::debug!(%path, %first, files, "files whose records are in the object store were removed");
    }

    /// Reports an object for which alone files stay, once that has lasted.
    fn report_held(&mut self, begin: Option<Base>, now: Moment) {
        let held = &mut self.tiering.released.held;
        let Some(begin) = begin else { return *held = None };
        let (since, is_reported) = held.get_or_insert((now, false));
        if *is_reported || now < since.plus(HELD_FOR) {
            return;
        }
        *is_reported = true;
        let objects = &self.replica.sequencer.committed().objects;
        let (log, path) = (self.tiering.log, self.tiering.path.display());
        if let Some(number) = objects.stored().find(|at| at.begin == begin).map(|at| at.number) {
            let name = object_name(objects.lineage(log).owner(number), number);
            tracing::warn!(
                %path, name,
                "files beyond the limits of this replica stay for this object, which is lost, damaged or cannot be read: they may be its last \
                 copy. If it cannot be stored again, the disk fills up"
            );
        }
    }

    /// The first record that this replica keeps by its own limits, if that is beyond the present one.
    fn beyond_local_limits(&self, now: Moment) -> Beyond {
        // Readers have to be able to read what goes.
        if self.tiering.vault.is_none() {
            return Beyond::default();
        }
        let stored = self.tiering.released.stored;
        let segments = self.writer.store.segments.snapshot();
        let Some((_, full)) = segments.split_last() else { return Beyond::default() };
        let mut bytes: u64 = segments.iter().map(|segment| segment.data_end() as u64).sum();
        let young = self.options.local_age.map(|age| {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            Timestamp(self.replica.time(now).0.saturating_sub(age))
        });
        let held = self.held_by_scrub();
        let (mut first, mut is_held_alone) = (None, false);
        for segment in full {
            let is_too_much = self.options.local_bytes.is_some_and(|max| bytes > max);
            let is_too_old = young.is_some_and(|young| segment.last_timestamp() < young);
            let is_stored = segment.end().raft <= stored || planted!(90);
            let is_held = held.is_some_and(|begin| segment.end().raft > begin.raft);
            if !(is_too_much || is_too_old) || !is_stored || is_held {
                is_held_alone = (is_too_much || is_too_old) && is_stored;
                break;
            }
            bytes -= segment.data_end() as u64;
            first = Some(segment.end().next);
        }
        let first = first.filter(|first| *first > self.replica.sequencer.committed().local_first);
        // A replica that skips entries begins with the opening of the oldest segment here, and has to learn from it that
        // there are objects.
        let can_be_first = |first: &Index| {
            let oldest = segments.iter().find(|segment| segment.base.next >= *first);
            let data = oldest.and_then(|oldest| self.writer.store.segments.open(oldest).ok());
            data.is_some_and(|data| has_objects(&data).unwrap_or(false))
        };
        Beyond { first: first.filter(can_be_first), held: held.filter(|_| is_held_alone) }
    }
}
