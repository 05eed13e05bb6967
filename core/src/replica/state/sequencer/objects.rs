//! The objects of the log: what a leader decides about them, and the opening block of an object.

use super::{Committed, Decision, Sequencer};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::proposals::ObjectCommand;
use crate::replica::state::discarded_objects::DiscardedObjects;
use crate::replica::state::object_table::ObjectTable;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::{OBJECT_BYTES, objects_max, room_of};
use crate::store::format::segment::{HardState, Opening};
use crate::store::segment::Base;
use crate::types::{Index, Timestamp};

/// The beginning of the messages about a copy of one log that has no room for the group's objects.
pub(crate) const TOO_SMALL_FOR_OBJECTS: &str =
    "the files of this copy are too small to list the objects of its group";

/// The fate of a table of a group's objects in a copy of one of its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenTable {
    /// It replaced an older one.
    New,
    /// The one here is as new, or newer: all of its objects are in that, or discarded.
    Known,
    /// An opening has no room for it.
    TooLarge,
    /// The copy is one of a log of another group.
    OfAnotherGroup,
}

impl Sequencer {
    /// The objects after the last block.
    pub(crate) fn objects(&self) -> &ObjectTable {
        &self.objects
    }

    /// The decision on a command that changes nothing, or is refused. None: it is written. Only the node itself cuts objects
    /// and stores them, and a command that does not follow the table is one that another leader was faster with.
    pub(super) fn decide_object(&self, command: ObjectCommand) -> Option<Decision> {
        if matches!(command, ObjectCommand::Cut { .. })
            && let Err(full) = self.check_room_for_object()
        {
            return Some(Decision::Refused(full));
        }
        let applied = self.objects.clone().apply(command, self.first_at_end());
        applied.err().map(|why| Decision::Refused(Error::new(ErrorKind::InvalidArgument, why)))
    }

    /// The most objects that can have rows in the openings of this replica's segments.
    pub(crate) fn rows_max(&self) -> usize {
        let (max, window) = self.sessions_to_fit(&self.options_at_end());
        let logs = self.logs.encoded_bytes() / OBJECT_BYTES
            + self.objects.bytes_beside_rows().div_ceil(OBJECT_BYTES);
        // A group leaves room for a log that is passed over.
        let kept = usize::from(self.logs.is_shared());
        objects_max(self.segment_bytes, max, window).saturating_sub(logs + kept)
    }

    /// # Errors
    /// `Full`: the openings of this replica's segments have no room for another object.
    pub(crate) fn check_room_for_object(&self) -> Result<()> {
        if self.objects.len() < self.rows_max() {
            return Ok(());
        }
        let what = format!(
            "the log has {} objects, and the openings of its segments have no room for more: discard records, set larger \
             object_bytes for the next objects, or lower sessions_max; of a log on its own rows of older objects leave them once all \
             members know the option object_rows",
            self.objects.len()
        );
        Err(Error::new(ErrorKind::Full, what))
    }

    /// In a copy of one log of a shared group: takes over a table of the group's objects, if it is newer. It is in the openings from here on.
    pub(crate) fn take_group_objects(&mut self, table: &ObjectTable) -> TakenTable {
        let known = self.objects.group();
        if table.group().is_none() || known.is_some_and(|known| Some(known) != table.group()) {
            return TakenTable::OfAnotherGroup;
        }
        let numbers = |table: &ObjectTable| (table.next_to_show(), table.number());
        if known.is_some() && numbers(table) <= numbers(&self.objects) {
            return TakenTable::Known;
        }
        let bytes = self.opening_bytes_max() - self.objects.encoded_bytes() + table.encoded_bytes();
        if bytes > self.group_openings_max() {
            return TakenTable::TooLarge;
        }
        self.objects = table.clone();
        self.committed.objects = table.clone();
        TakenTable::New
    }

    /// In a copy of one log of a shared group: how large an opening with the group's objects may be. The rest of a segment is for entries.
    fn group_openings_max(&self) -> usize {
        room_of(self.segment_bytes as usize) / 2
    }

    /// In a copy of one log of a shared group that begins here: checks that openings have room for the group's objects, as
    /// [`Self::take_group_objects`] does later.
    ///
    /// # Errors
    /// `TooLarge`: they have none.
    pub(crate) fn check_group_objects(&self) -> Result<()> {
        if self.objects.group().is_none() || self.opening_bytes_max() <= self.group_openings_max() {
            return Ok(());
        }
        let what = format!(
            "{TOO_SMALL_FOR_OBJECTS}: there are {} objects, and segment_bytes is {}; open it with larger segment_bytes",
            self.objects.len(),
            self.segment_bytes
        );
        Err(Error::new(ErrorKind::TooLarge, what))
    }

    /// Takes down which objects are discarded now. The last entry is not older than the discard.
    pub(super) fn note_discarded(&mut self) {
        let Committed { raft, next, ref objects, ref mut discarded, .. } = self.committed;
        discarded.add(objects.number(), (raft, next), self.last_timestamp);
    }

    /// An opening at `base`, before the last committed entry, has this timestamp, and says that objects below a number are discarded.
    pub(crate) fn learn_discarded(&mut self, below: u64, base: Base, at: Timestamp) {
        self.committed.discarded.add_older(below, (base.raft, base.next), at);
    }

    /// Takes over the discards that the state before a rollback knew: they are committed, so they are those of this one, too.
    pub(crate) fn keep_discarded(&mut self, discarded: DiscardedObjects) {
        self.committed.discarded = discarded;
    }

    /// Sets the first record that this directory keeps. Records before it are in the object store, or discarded; or a follower keeps
    /// less than the log does.
    pub(crate) fn keep_from(&mut self, first: Index) {
        self.committed.local_first = self.committed.local_first.max(first);
    }

    /// The opening of an object that begins behind the last block: header and body. The same at every replica, whatever it
    /// has discarded, voted for, or not learnt yet.
    pub(crate) fn object_opening(&self) -> (BlockHeader, Vec<u8>) {
        // Before the log had objects, its openings said what this replica kept.
        let log_first = if self.objects.has_begun() { self.first_at_end() } else { self.end.next };
        // Their first records here depend on jumps. An object needs none: those before it are in other objects.
        let mut logs = self.logs.clone();
        logs.begin_at_ends();
        let log_first = if planted!(91) { self.committed.local_first } else { log_first };
        // A founder's own membership is in no entry: the replicas that joined it do not know it.
        let membership = self.membership_at_end();
        let configuration = if membership.is_unchanged() { Vec::new() } else { membership.encode() };
        let opening = Opening {
            base_raft: self.end.raft,
            base_term: self.end.term,
            log_first,
            hard_state: HardState { term: self.end.term, vote: 0, commit: self.end.raft },
            configuration,
            sessions: self.sessions.encode(),
            options: self.options_at_end().encode(),
            logs: logs.encode(),
            objects: self.objects.encode(log_first),
        };
        let body = opening.encode();
        (self.position_block(Kind::Opening, body.clone()).header, body)
    }
}
