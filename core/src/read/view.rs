//! The view of a log that its readers share: the segments, the positions, and for a log of a shared group, where its runs are. Finds the
//! record at which a reader starts.
//!
//! Must not know: what a record is, the writer.

use crate::error::{Error, ErrorKind, Result};
use crate::read::log_set::LogSet;
use crate::read::patience::{Patience, Waiting};
use crate::read::positions::Positions;
use crate::store::read::cursor::Cursor;
use crate::store::read::group_objects::GroupObjects;
use crate::store::read::run_cursor::RunCursor;
use crate::store::read::run_directory::{RunDirectories, unknown_object};
use crate::store::segment::{Segment, Segments};
use crate::types::{Index, LogNumber, Timestamp};
use std::sync::{Arc, OnceLock};

/// Where a reader starts.
///
/// ```
/// use chiplog::{Index, Start};
/// assert_ne!(Start::First, Start::Index(Index(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The first record that is not discarded.
    First,
    /// This record, which may be the next one to be appended.
    Index(Index),
    /// This many records before the end; fewer if the log has fewer.
    Last(u64),
    /// The first record that was appended at this time or later.
    Timestamp(Timestamp),
    /// The next record to be appended.
    Next,
}

/// The state that readers share with the log: its segments and positions.
#[derive(Clone)]
pub(crate) struct LogView {
    pub(crate) segments: Arc<Segments>,
    /// Of the log that is read.
    pub(crate) positions: Arc<Positions>,
    /// The log that is read: 0, or a log of a shared group.
    pub(crate) log: LogNumber,
    /// The logs of a shared group.
    pub(crate) logs: Arc<LogSet>,
    /// Where the runs of these logs are.
    pub(crate) runs: Arc<RunDirectories>,
    /// Of a copy of one log of a shared group: its part of the group's objects, once it knows of any.
    pub(crate) older: Arc<OnceLock<GroupObjects>>,
    pub(crate) prefetch: usize,
    /// Whether another process writes the log: this handle learns of discards a moment later, and the files can be
    /// removed or reused before that.
    pub(crate) outside: bool,
    /// How long a read waits for this copy to learn which object has the record.
    pub(crate) patience: Patience,
}

impl LogView {
    /// A view of a directory's own log, which is empty for now.
    pub(crate) fn new(segments: Arc<Segments>, prefetch: usize, outside: bool) -> Self {
        let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
        let runs = Arc::new(RunDirectories::new(segments.clone()));
        let (log, logs, patience) = (LogNumber::OWN, Arc::default(), Patience::default());
        let older = Arc::default();
        Self { segments, positions, log, logs, runs, older, prefetch, outside, patience }
    }

    /// The view of one log of a shared group.
    ///
    /// # Errors
    /// `NotFound`: the group does not have the log.
    pub(crate) fn of_log(&self, log: LogNumber) -> Result<Self> {
        Ok(Self { positions: self.logs.positions(log)?, log, ..self.clone() })
    }

    /// Wakes the waiters at the tails of the directory's logs. Runs hooks of the program.
    pub(crate) fn wake(&self) {
        self.positions.wake();
        self.logs.wake();
    }

    /// Wakes all waiters permanently, for the reason `why`.
    pub(crate) fn close(&self, why: Error) {
        self.logs.close(&why);
        self.positions.close(why);
    }

    /// The segment that contains record `index`, if that can be found out.
    pub(crate) fn segment_holding(&self, index: Index) -> Option<Arc<Segment>> {
        match self.log.is_none() {
            true => self.segments.holding(index).ok().flatten(),
            false => {
                let found = self.runs.holding(self.log, index).ok();
                found.filter(|found| found.unreadable.is_none()).map(|found| found.segment)
            }
        }
    }

    /// Whether record `index` is in a file, or will be: reading it does not wait for the object store.
    pub(crate) fn is_in_files(&self, index: Index) -> bool {
        match self.log.is_none() {
            true => !self.segments.is_before_files(index),
            false => self.runs.is_in_files(self.log, index),
        }
    }

    /// Whether record `index` is before all files, as far as these can be read, and can be in an object. A file that cannot be read may have
    /// it.
    pub(crate) fn is_before_files(&self, index: Index) -> bool {
        match self.log.is_none() {
            true => self.segments.is_before_files(index),
            false => self.runs.is_before_files(self.log, index),
        }
    }

    /// The first record that is in a file, or will be.
    ///
    /// # Errors
    /// Those of [`RunDirectories::first_in_files`].
    pub(crate) fn first_in_files(&self) -> Result<Index> {
        let first = match (self.segments.reads_objects(), self.log.is_none()) {
            (false, _) => None,
            (true, true) => self.segments.oldest().map(|oldest| oldest.base.next),
            (true, false) => self.runs.first_in_files(self.log)?,
        };
        Ok(first.unwrap_or_default().max(self.positions.first()))
    }

    /// The objects of the group in which record `index` is, in a copy of one log.
    pub(crate) fn older_at(&self, index: Index) -> Option<&GroupObjects> {
        self.older.get().filter(|_| self.log.is_none() && self.segments.is_before_files(index))
    }

    /// Whether this is the view of a log of a shared group that was dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        !self.log.is_none() && self.logs.get(self.log).is_none()
    }

    /// Handles a failed read of `record`: see [`Segments::met`].
    pub(crate) fn met(&self, error: &Error, record: Index) -> Error {
        if self.log.is_none() {
            return self.segments.met(error.clone(), Some(record));
        }
        // The repair counts the records of all logs of a group together. A log's own indexes mean nothing to it.
        let what = format!("record {record} of log {} cannot be read: {error}", self.log);
        self.segments.met(error.with_message(what), None)
    }

    /// # Errors
    /// `InvalidArgument`: the group is shared by named logs, and this is the view of none of them.
    pub(crate) fn check_log(&self) -> Result<()> {
        if self.log.is_none() && self.logs.is_shared() { Err(shared_group()) } else { Ok(()) }
    }

    /// As [`Self::resolve`]; waits for an object that this copy does not know yet.
    pub(crate) fn resolve_patiently(&self, start: Start) -> Result<Index> {
        let mut waiting = Waiting::default();
        loop {
            match self.resolve(start) {
                Err(error) if self.pauses(&error, &mut waiting) => {}
                found => return found,
            }
        }
    }

    /// Waits, if what failed with `error` can succeed soon here. A log that is closed learns nothing more.
    pub(crate) fn pauses(&self, error: &Error, waiting: &mut Waiting) -> bool {
        !self.positions.is_closed() && self.patience.pauses(error, waiting)
    }

    /// Returns the record that `start` refers to.
    pub(crate) fn resolve(&self, start: Start) -> Result<Index> {
        let (first, last) = self.positions.range();
        let end = last.next();
        match start {
            Start::First => Ok(first),
            Start::Next => Ok(end),
            Start::Last(count) => Ok(Index(end.0.saturating_sub(count)).max(first)),
            Start::Timestamp(time) => match self.first_since(time) {
                // A segment was discarded during the search: search again in the remaining ones.
                Err(_) if self.positions.first() > first => self.resolve(start),
                found => Ok(found?.max(self.positions.first())),
            },
            Start::Index(index) if index < first => Err(self.before_first(index, first)),
            Start::Index(index) if index > end => Err(out_of_range(index, end)),
            Start::Index(index) => Ok(index),
        }
    }

    /// The error of a record before the first one.
    pub(crate) fn before_first(&self, index: Index, first: Index) -> Error {
        match self.positions.stored_from() {
            None => discarded(index, first),
            Some(from) if index < from => discarded(index, from),
            Some(from) => {
                let what = format!(
                    "records {from} to {} are in an object store alone, and this directory is read without one: read them from a \
                     server of the log; the first record here is {first}",
                    first.previous()
                );
                Error::new(ErrorKind::Unavailable, what).into_lasting()
            }
        }
    }

    /// Checks whether a reader, or a follower, can start at `index`.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`. `Unavailable`: see [`Self::before_first`].
    pub(crate) fn check(&self, index: Index) -> Result<()> {
        self.resolve(Start::Index(index)).map(drop)
    }

    /// The first record from `time` on.
    fn first_since(&self, time: Timestamp) -> Result<Index> {
        let (first, end) = (self.positions.first(), self.positions.committed().next());
        if !self.log.is_none() {
            let found = RunCursor::new(self.runs.clone(), self.log).first_since(time, first)?;
            return Ok(found.map_or(end, |first| first.min(end)));
        }
        if let Some(older) = self.older.get()
            && self.segments.reads_objects()
            && self.segments.oldest().is_some_and(|oldest| time <= oldest.first_timestamp)
            && let Some(found) =
                older.cursor().first_since(time, first)?.filter(|found| self.segments.is_before_files(*found))
        {
            return Ok(found.min(end));
        }
        let Some(segment) = self.segments.at_time(time)? else { return Ok(end) };
        let data = self.segments.open(&segment)?;
        let offset = data.seek(|e| e.timestamp < time)?;
        let mut cursor = Cursor::new(self.segments.clone(), data, offset, 0);
        let found = cursor.find(|h| h.kind.has_records() && h.timestamp >= time)?;
        match (found, cursor.end_of_object()) {
            (Some(found), _) => Ok(found.header.first.min(end)),
            // The next object is not known here yet.
            (None, Some(next)) if next < end => Err(unknown_object(format_args!("record {next}"))),
            (None, _) => Ok(end),
        }
    }

    /// Returns a cursor before the block that contains `next`.
    pub(crate) fn cursor(&self, next: Index) -> Result<Cursor> {
        let Some(segment) = self.segments.holding(next)? else {
            return Err(match self.segments.len() {
                0 => Error::new(ErrorKind::Closed, "the log has no segments"),
                _ => unknown_object(format_args!("record {next}")),
            });
        };
        self.cursor_in(&segment, next)
    }

    /// As [`Self::cursor`], in this segment.
    pub(crate) fn cursor_in(&self, segment: &Arc<Segment>, next: Index) -> Result<Cursor> {
        let data = self.segments.open(segment)?;
        let offset = data.seek(|e| e.first <= next)?;
        Ok(Cursor::new(self.segments.clone(), data, offset, self.prefetch))
    }
}

/// The error of a call for one log on a group that is shared by named logs.
pub(crate) fn shared_group() -> Error {
    let what = "this directory is shared by named logs: use one of them, in a server's directory by the server as \
                HOST:PORT/NAME, else in a program by `Logs` on the directory above; `chiplog verify` and `chiplog dump` \
                read its files";
    Error::new(ErrorKind::InvalidArgument, what)
}

fn discarded(index: Index, first: Index) -> Error {
    let what = match index {
        Index(0) => format!("there is no record 0, indexes begin at 1; the first record is {first}"),
        _ => format!("record {index} was discarded; the first record is {first}"),
    };
    Error::new(ErrorKind::Discarded, what)
}

pub(crate) fn out_of_range(index: Index, end: Index) -> Error {
    let what = format!("record {index} does not exist yet; the next record will be {end}");
    Error::new(ErrorKind::OutOfRange, what)
}
