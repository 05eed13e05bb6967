//! Stored part: the records of one log of a shared group that are in objects of the group, and not to be fed to a copy that reads these.
//!
//! Invariants:
//! - all records of the log below `upto` are in the objects of the table, or discarded;
//! - `time` is that of the last record below `upto`, also if record `upto` has another: a copy that has nothing behind its state claims
//!   this time for its last record.
//!
//! Must not know: who follows, the writer.

use crate::error::Result;
use crate::read::view::LogView;
use crate::store::format::logs::state_of;
use crate::store::format::objects::Objects;
use crate::store::read::run_directory::in_opening;
use crate::store::segment::Segment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::sync::Arc;

/// One log's part of a group's objects.
pub(super) struct StoredPart {
    /// The objects of the group.
    pub(super) objects: Objects,
    pub(super) upto: Index,
    /// The time of the last record below `upto`.
    pub(super) time: Timestamp,
}

impl StoredPart {
    /// The part of the log that `view` shows: one of a shared group, or a copy of one. None: no record of it is known to be stored.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: a file's opening cannot be read.
    pub(super) fn of(view: &LogView) -> Result<Option<Self>> {
        if view.log.is_none() {
            return Ok(Self::of_copy(view));
        }
        let Some(objects) = view.segments.objects().table_for(view.log) else { return Ok(None) };
        let end = objects.list.back().map_or(EntryIndex(0), |newest| newest.end.raft);
        let passed = view.segments.undisturbed(|| {
            let file = match planted!(160) {
                true => view.segments.newest(),
                false => view.segments.beginning_before(end),
            };
            let Some(file) = file else { return Ok(None) };
            passed_in(view, &file)
        })?;
        Ok(passed.map(|(upto, time)| Self { objects, upto, time }))
    }

    /// All records before the files of a copy are in the objects that it knows.
    fn of_copy(view: &LogView) -> Option<Self> {
        // The file first: the objects are known before files with their records go.
        let (oldest, older) = (view.segments.oldest()?, view.older.get()?);
        let objects = older.objects().table_for(older.log())?;
        Some(Self { objects, upto: oldest.base.next, time: oldest.first_timestamp })
    }

    /// Whether more than `files_max` files with records of the log that are stored lie behind record `next`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn is_far_behind(&self, view: &LogView, next: Index, files_max: usize) -> Result<bool> {
        if view.log.is_none() || next >= self.upto {
            return Ok(false);
        }
        let end = self.objects.list.back().map_or(EntryIndex(0), |newest| newest.end.raft);
        let mut files = view.segments.snapshot();
        files.retain(|file| file.base.raft <= end);
        // The oldest of the newest ones: if the log was past the record there already, all of them are behind it.
        let Some(file) = files.iter().rev().nth(files_max) else { return Ok(false) };
        Ok(passed_in(view, file)?.is_some_and(|(passed, _)| passed > next))
    }
}

/// The time of record `last`, if it is the last one before all files. None: it is another one, or it is not known.
///
/// # Errors
/// As [`StoredPart::of`].
pub(super) fn time_before_files(view: &LogView, last: Index) -> Result<Option<Timestamp>> {
    let passed = view.segments.undisturbed(|| {
        let Some(oldest) = view.segments.oldest() else { return Ok(None) };
        match view.log.is_none() {
            true => Ok(Some((oldest.base.next, oldest.first_timestamp))),
            false => passed_in(view, &oldest),
        }
    })?;
    Ok(passed.filter(|(next, _)| *next == last.next()).map(|(_, time)| time))
}

/// The record at which the log is where a file begins, and the time of the last one before it. None: the log was opened later.
fn passed_in(view: &LogView, file: &Arc<Segment>) -> Result<Option<(Index, Timestamp)>> {
    let data = view.segments.open(file)?;
    in_opening(&data, |logs| Ok(state_of(logs, view.log)?.map(|state| (state.next, state.last_timestamp))))
}
