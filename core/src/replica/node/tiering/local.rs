//! Local retention: each replica removes files whose records are in the object store, by its own limits.
//!
//! ```text
//! beyond local_bytes or local_age, and stored ──> the next opening begins the log here later ──synced──> the files go
//!                                             └─> no room for a file: a block here says so ───────┘
//! ```
//!
//! An opening says from which record on a directory has the log. So recovery needs nothing new: files before that record are
//! left over, and records before it are known to be in objects.
//!
//! Invariants:
//! - every record of a removed file is in an object that is durably known here to be stored;
//! - an object that is suspected to be lost or damaged keeps the files that have all of it: they may be the last copy. A part of it, which
//!   makes no object, keeps none, and is reported. So nothing goes
//!   before a replica that has started knows the suspects (see `object_scrub`). A restart keeps what a suspect on the disk needs, whatever
//!   says that it may go, and no object becomes a suspect by an examination that begins once that is said;
//! - the opening that says so is durable before the first file goes, and so is that the entries before it are committed:
//!   recovery takes the first record as of the last entry that it knows to be committed;
//! - where there is no file for appends, no opening would come: appends wait for room, and the room for the opening that comes with them.
//!   A hard state block in the growing segment says then what the opening would. It stands behind the last entry, which is committed: no
//!   conflict truncates it. It needs no file, so none has to be kept for it;
//! - once that block is durable, another one in a later sector says the same, and proves it. Files go once both are durable, also at a
//!   restart: one bad sector does not take what the whole directory depends on. Later hard states of the segment repeat it, too. Exceptions:
//!   while entries that were ordered wait for the room that these files can make, no block can be written before them, and files go at
//!   once. While entries behind that block are not committed, and a ready waits for room, markers alone prove it, because no block
//!   behind such entries can say it.

use super::super::Node;
use crate::error::Result;
use crate::replica::writer::plan::Room;
use crate::store::allocator::Purpose;
use crate::store::format::segment::KEPT_STATE_BYTES;
use crate::store::objects::names::object_name;
use crate::store::read::run_directory::has_objects;
use crate::store::segment::{Base, Segment};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::sync::Arc;
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
    /// The segment in which the next block was planned when this was decided: the opening of each later one says it.
    decided_in: u64,
    /// Whether a block was planned that says it.
    is_said_here: bool,
}

impl Node {
    /// Removes files that are beyond this replica's own limits.
    ///
    /// # Errors
    /// A fatal error of this replica.
    pub(super) fn release_files(&mut self, now: Moment) -> Result<()> {
        if self.options.local_bytes.is_none() && self.options.local_age.is_none() {
            return Ok(());
        }
        self.learn_stored();
        let Some(going) = self.tiering.released.going else {
            let Beyond { first, held } = self.beyond_local_limits(now);
            self.report_held(held, now);
            let first = first.or_else(|| self.left_by_restart());
            if let Some(first) = first
                && self.knows_suspects(now)
            {
                self.replica.sequencer.keep_from(first);
                self.report_part(first);
                let decided_in = self.writer.plan.segment();
                self.tiering.released.going = Some(Going { first, decided_in, is_said_here: false });
                return self.say_here(now);
            }
            return Ok(());
        };
        if self.replica.sequencer.committed().local_first < going.first {
            self.tiering.released.going = None; // a conflict has replaced the state
            return Ok(());
        }
        if !self.is_said(going) {
            if self.prove_at.is_none() && self.can_repeat_kept() {
                self.prove_at = Some(now);
            }
            return self.say_here(now);
        }
        if !self.is_held(going) {
            self.tiering.released.going = None;
            self.drop_local(going.first);
        }
        Ok(())
    }

    /// From which record on files stay, if a restart has kept others for a suspect, and nothing else needs them.
    fn left_by_restart(&self) -> Option<Index> {
        self.tiering.vault.as_ref()?;
        let (local_first, stored) =
            (self.replica.sequencer.committed().local_first, self.tiering.released.stored);
        let segments = self.writer.store.segments.snapshot();
        let (_, full) = segments.split_last()?;
        let is_left = |end: Base| end.next <= local_first && end.raft <= stored;
        let left = full.iter().take_while(|segment| is_left(segment.end())).count();
        let first = first_behind(full, left)?;
        (!self.is_held_before(first)).then_some(first)
    }

    /// Whether a suspect needs one of the files that go if those from this record on stay.
    fn is_held_before(&self, first: Index) -> bool {
        let Some(begin) = self.held_by_scrub() else { return false };
        let stored = self.tiering.released.stored; // see `drop_local`
        let goes = |pair: &[Arc<Segment>]| pair[1].base.next <= first && pair[1].base.raft <= stored;
        let segments = self.writer.store.segments.snapshot();
        segments.windows(2).any(|pair| goes(pair) && pair[0].end().raft > begin.raft)
    }

    /// Whether it is durable that these files are not needed any more. A block that says it knows that all entries before it are
    /// committed; of an opening this has to be recorded.
    fn is_said(&mut self, going: Going) -> bool {
        let synced = self.writer.synced();
        if synced.kept >= going.first && self.is_proven(going) {
            return true;
        }
        let segments = &self.writer.store.segments;
        if segments.newest().is_none_or(|newest| newest.number <= going.decided_in) {
            return false;
        }
        let says_it = segments.snapshot().into_iter().find(|segment| segment.number > going.decided_in);
        let Some(base) = says_it.map(|segment| segment.base.raft) else { return false };
        if self.known_commit() < base && !planted!(95) {
            self.owes_commit |= self.replica.sequencer.committed().raft >= base;
            return false;
        }
        synced.end.raft > base
    }

    /// Whether no single bad sector takes the block that says it, which is durable: a second one says it, or the opening of a later segment.
    /// That something follows the block would not do: what was pushed before the block was durable does not prove it.
    fn is_proven(&self, going: Going) -> bool {
        if self.writer.synced().repeated >= going.first || self.replica.has_staged() || planted!(180) {
            return true;
        }
        let sequencer = &self.replica.sequencer;
        let cannot_repeat = if !sequencer.says_kept() {
            true
        } else if sequencer.can_repeat_kept() {
            !self.has_room_to_repeat()
        } else {
            self.replica.is_held().is_some()
        };
        let is_marked = self.writer.is_settled() && !self.writer.store.is_unproven();
        is_marked && cannot_repeat
    }

    /// Plans a block that says again what the last one does, once that one is durable. It proves it. All that was planned has to be written
    /// and synced. False: there is none, or it has to wait.
    pub(in super::super) fn repeat_kept(&mut self) -> bool {
        if !self.can_repeat_kept() {
            return false;
        }
        let filler = self.writer.store.filler();
        let Some(blocks) = self.replica.sequencer.repeat_kept(filler) else { return false };
        for block in blocks {
            self.writer.plan.push(block);
        }
        self.writer.plan.repeats_kept(self.writer.synced().kept);
        true
    }

    fn can_repeat_kept(&self) -> bool {
        let synced = self.writer.synced();
        let is_due = synced.repeated < synced.kept && self.replica.sequencer.can_repeat_kept();
        is_due && self.has_room_to_repeat()
    }

    fn has_room_to_repeat(&self) -> bool {
        self.writer.store.has_space_for_kept_state() && !planted!(178)
    }

    /// From which record on files stay, once a block here says that those before it go, until they have gone. None: nothing says so, or a
    /// suspect holds them.
    pub(super) fn going_now(&self) -> Option<Index> {
        let going = self.tiering.released.going?;
        (going.is_said_here && !self.is_held(going)).then_some(going.first)
    }

    fn is_held(&self, going: Going) -> bool {
        self.is_held_before(going.first)
    }

    /// Without a file for appends, says in the growing segment what goes. All entries have to be committed and durable.
    fn say_here(&mut self, now: Moment) -> Result<()> {
        let Some(going) = self.tiering.released.going else { return Ok(()) };
        let is_out_of_room = self.writer.store.allocator.is_out_of_room() && !planted!(127);
        if !is_out_of_room || going.is_said_here || self.is_held(going) {
            return Ok(());
        }
        // Where raft's ready waits for room, its term and entries come behind this.
        let end = self.writer.written().end.raft;
        let stands = self.writer.is_settled() && !self.replica.has_staged();
        let waits = self.replica.is_held().is_some() && self.replica.sequencer.end().raft == end;
        if !(self.is_in_lockstep() || stands && waits) {
            return Ok(());
        }
        if self.replica.sequencer.committed().raft < end {
            return Ok(());
        }
        if self.writer.plan.awaits_file(KEPT_STATE_BYTES, Purpose::Metadata) {
            return Ok(());
        }
        let sequencer = &mut self.replica.sequencer;
        match self.writer.plan.make_room(KEPT_STATE_BYTES, Purpose::Metadata, sequencer) {
            Ok(Room::Here) => {
                let block = sequencer.kept_block();
                self.writer.plan.push(block);
            }
            Ok(Room::Rolled) => {} // its opening says it
            Err(error) => {
                tracing::debug!(path = %self.tiering.path.display(), %error, "it cannot be said which files go");
                return Ok(());
            }
        }
        self.writer.plan.says_committed(end);
        self.writer.plan.says_kept(going.first);
        self.tiering.released.going = Some(Going { is_said_here: true, ..going });
        tracing::info!(path = %self.tiering.path.display(), first = %going.first, "there is no room for appends: files whose records are in the object store go now");
        self.finish(now)
    }

    /// Whether a block says what goes that is durable now, and proven.
    pub(super) fn has_said_here(&self) -> bool {
        self.tiering.released.going.is_some_and(|going| {
            self.writer.synced().kept >= going.first && self.is_proven(going) && !self.is_held(going)
        })
    }

    /// Whether one block alone says what goes, and is durable, and another one can say it. For the simulator.
    #[cfg(feature = "testing")]
    pub(crate) fn says_once_what_goes(&self) -> bool {
        let synced = self.writer.synced();
        synced.repeated < synced.kept && self.replica.sequencer.says_kept() && !self.replica.has_staged()
    }

    /// Whether appends find no room although files are beyond the limits and in the object store, and all entries are committed. For the
    /// simulator.
    #[cfg(feature = "testing")]
    pub(crate) fn has_to_release(&self, now: Moment) -> bool {
        let sequencer = &self.replica.sequencer;
        let is_committed = sequencer.committed().raft == sequencer.end().raft;
        if self.tiering.vault.is_none() || !self.writer.store.allocator.is_out_of_room() || !is_committed {
            return false;
        }
        let may_decide = self.tiering.scrub.has_listed() || self.options.object_scrub.is_none();
        let first = match self.tiering.released.going {
            Some(going) => Some(going.first),
            None => self.beyond_local_limits(now).first.filter(|_| may_decide),
        };
        first.is_some_and(|first| !self.is_held_before(first))
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
        // A file without records can have followed since: its entries are in no object yet.
        self.writer.store.drop_below(first, self.known_commit().min(self.tiering.released.stored));
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

    /// Reports that files go which have a part of an object that is lost or damaged: perhaps nothing else has these records. No object can be
    /// made of a part. Files that stayed for it would fill the disk, and nothing but a discard would let them go.
    fn report_part(&self, first: Index) {
        let (log, path) = (self.tiering.log, self.tiering.path.display());
        if let Some(number) = self.part_going(first) {
            let name =
                object_name(self.replica.sequencer.committed().objects.lineage(log).owner(number), number);
            tracing::warn!(
                %path, name, %first,
                "this object is lost, damaged or cannot be read, and files go that have a part of it: this replica cannot make it again"
            );
        }
    }

    /// The first object that is lost or damaged of which the files before this record have a part, and the files here not all.
    fn part_going(&self, first: Index) -> Option<u64> {
        let objects = &self.replica.sequencer.committed().objects;
        let suspects = self.tiering.scrub.known_suspects();
        let here = self.writer.archive.first().raft;
        let rows = objects.stored().filter(|at| suspects.contains(&at.number));
        let rows = rows.map(|at| (at.number, (at.begin, at.state.end)));
        let mut all = self.tiering.scrub.suspects_of_runs(objects).into_iter().chain(rows);
        let is_part = |(begin, end): (Base, Base)| {
            here < end.raft && begin.next < first && !self.may_have_all_behind(begin)
        };
        all.find(|(_, place)| is_part(*place)).map(|(number, _)| number)
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
        let (mut going, mut is_held_alone) = (0, false);
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
            going += 1;
        }
        let first =
            first_behind(full, going).filter(|first| *first > self.replica.sequencer.committed().local_first);
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

/// The record from which on files stay if the oldest `going` ones go, or fewer. A file without records that follows them would go, too,
/// and its entries need not be in an object.
fn first_behind(full: &[Arc<Segment>], going: usize) -> Option<Index> {
    let mut ends = full[..going].iter().enumerate().rev().map(|(n, segment)| (n, segment.end().next));
    let stays = |n: usize, end: Index| full.get(n + 1).is_none_or(|next| next.end().next > end);
    ends.find(|(n, end)| stays(*n, *end)).map(|(_, end)| end)
}

#[cfg(all(test, feature = "testing", not(loom)))]
mod tests;
