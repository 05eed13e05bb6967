//! Retention of single logs of a shared group: decides which of their records are beyond their limits.
//!
//! A round finds for each log the last segment whose part it may discard, by a search in the openings: if a segment's part is
//! beyond the limits, so are those before it. A round begins when a segment has become full, when limits have changed, and when a
//! segment becomes too old. It looks in files. A log for which all of them are within its limits is then looked for in the objects
//! before them. That search waits for the object store, and goes on beside later rounds.
//!
//! Invariants:
//! - only committed options count, and none while a change of them is not committed: a discard that is proposed behind a
//!   change obeys it;
//! - only segments count all of whose entries are committed;
//! - `retention_bytes` of the newest bytes of a log are never discarded because of that limit;
//! - a log without limits is never touched.
//!
//! Must not know: raft, how a discard is proposed.

use super::log_search::{GoOn, LogSearch, Opening, Surroundings};
use crate::error::Result;
use crate::options::log_options::{LogOption, LogOptions};
use crate::replica::state::log_table::LogTable;
use crate::types::{Index, LogNumber, SegmentId, Term, Timestamp};
use std::collections::{BTreeSet, VecDeque};

/// When a round is tried again that could not read an opening, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// The limits of the logs of a group, as far as they were applied.
#[derive(Debug, Default)]
pub(super) struct LogRetention {
    /// The term in which this replica leads.
    term: Term,
    /// The newest full segment at the begin of the last round.
    seen: Option<SegmentId>,
    /// The search of the running round, and that in objects.
    searches: [LogSearch<Found>; 2],
    /// The logs of the second search.
    older: BTreeSet<LogNumber>,
    /// A later round would have looked for one of them, too: another one begins when the search in objects has ended.
    again: bool,
    /// The logs that have records to discard, and their first indexes without them.
    found: VecDeque<(LogNumber, Index)>,
    /// The earliest time at which a segment is too old for a log, of those that the last round has seen.
    due: Option<Timestamp>,
}

/// The findings of a search about one log.
#[derive(Debug, Default)]
struct Found {
    /// Its first index without the parts that are beyond its limits.
    target: Option<Index>,
    /// Some of its records are before all files.
    has_older: bool,
}

impl LogRetention {
    /// Options of a log have changed: a round begins, after the one that is running.
    pub(super) fn restart(&mut self, log: LogNumber) {
        (self.seen, self.due) = (None, Some(Timestamp(0)));
        self.searches.iter_mut().for_each(|search| search.forget(log));
        self.older.remove(&log);
        self.found.retain(|(found, _)| *found != log);
    }

    /// A log is full: a round begins, so that what is beyond its other limits makes room.
    pub(super) fn look_again(&mut self) {
        self.due = Some(Timestamp(0));
    }

    /// Whether a round is running, or something found is not yet discarded.
    pub(super) fn is_busy(&self) -> bool {
        self.searches.iter().any(LogSearch::is_running) || !self.found.is_empty()
    }

    /// Whether something found is not yet discarded.
    pub(super) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// When a segment will be too old for a log.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// The next log with records beyond its limits, and its first index without them. `at_end`: the logs after the last
    /// entry, committed or not.
    pub(super) fn next(&mut self, committed: &LogTable, at_end: &LogTable) -> Option<(LogNumber, Index)> {
        loop {
            let (log, first) = self.found.pop_front()?;
            // A change of its options is not committed yet: once it is, a round looks at the log again.
            if committed.options(log) == at_end.options(log) {
                return Some((log, first));
            }
        }
    }

    /// Returns what [`Self::next`] has returned: it was not discarded.
    pub(super) fn put_back(&mut self, found: (LogNumber, Index)) {
        self.found.push_front(found);
    }

    /// Makes a step of the running round, or begins one if there is a reason. Some: it waits for the opening of an object, which is
    /// being fetched, and has looked at that many others before.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an opening cannot be read. The round goes on before it, and is tried again later.
    pub(super) fn step(&mut self, around: &Surroundings<'_>) -> Result<Option<usize>> {
        if self.term != around.term {
            // Discards of this replica that were found before may never have been committed.
            *self = Self { term: around.term, ..Self::default() };
        }
        if !self.searches[0].is_running() {
            self.begin_if_due(around);
        }
        if !self.searches.iter().any(LogSearch::is_running) {
            return Ok(None);
        }
        let (due, reads_objects) = (&mut self.due, around.segments.reads_objects());
        let [files, objects] = &mut self.searches;
        let list = around.segments.snapshot();
        // The oldest file begins where the newest object ends, and otherwise where the log does.
        let ends = list.get(usize::from(!reads_objects)..).unwrap_or_default();
        let oldest = list.first().map(|oldest| oldest.base.raft);
        let of_files = files.step(ends, around, |log, found, end| {
            found.has_older |= match &end {
                Opening::Unreadable => true,
                Opening::Of(opening, at) if Some(opening.base.raft) == oldest => {
                    let begins_before = |(next, _): &(Index, u64)| {
                        around.logs.get(log).is_some_and(|state| *next > state.first)
                    };
                    at.as_ref().is_some_and(begins_before)
                }
                Opening::Of(..) => false,
            };
            judge(log, &mut found.target, &end, around, due)
        });
        let mut ended = files.take_ended();
        if reads_objects {
            let is_older = |(_, found): &(LogNumber, Found)| found.target.is_none() && found.has_older;
            let (older, newer): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_older);
            for (log, _) in &newer {
                objects.forget(*log);
                self.older.remove(log);
            }
            let (new, running): (Vec<_>, Vec<_>) =
                older.into_iter().partition(|(log, _)| self.older.insert(*log));
            self.again |= !running.is_empty();
            objects.begin(new);
            ended = newer;
        }
        let list = around.segments.stretches();
        let ends = list.get(1..).unwrap_or_default();
        let of_objects =
            objects.step(ends, around, |log, found, end| judge(log, &mut found.target, &end, around, due));
        let of_older = objects.take_ended();
        of_older.iter().for_each(|(log, _)| _ = self.older.remove(log));
        if !objects.is_running() {
            self.older.clear(); // some were dropped
            if std::mem::take(&mut self.again) {
                self.due = Some(Timestamp(0));
            }
        }
        for (log, found) in ended.into_iter().chain(of_older) {
            let is_new = |first: &Index| around.logs.get(log).is_some_and(|state| *first > state.first);
            self.found.extend(found.target.filter(is_new).map(|first| (log, first)));
        }
        let stepped = of_files.and(of_objects);
        if stepped.is_err() {
            due_at(&mut self.due, Timestamp(around.now.0.saturating_add(RETRY_MS)));
        } else if !self.searches[0].is_running() && newest(around) != self.seen {
            self.due = Some(Timestamp(0));
        }
        stepped.map(|waits| waits.filter(|_| !self.searches[0].is_running()))
    }

    /// Begins a round if there is a reason and a log with limits.
    fn begin_if_due(&mut self, around: &Surroundings<'_>) {
        let newest = newest(around);
        let is_due = self.due.is_some_and(|due| due <= around.now);
        if newest == self.seen && !is_due {
            return;
        }
        (self.seen, self.due) = (newest, None);
        if newest.is_some() || around.segments.reads_objects() {
            let limited = |(_, options): &(LogNumber, &LogOptions)| Limits::of(options).is_some();
            let logs = around.logs.with_options().filter(limited).map(|(log, _)| (log, Found::default()));
            self.searches[0].begin(logs.collect());
        }
    }
}

fn due_at(due: &mut Option<Timestamp>, at: Timestamp) {
    *due = Some(due.map_or(at, |earlier| earlier.min(at)));
}

/// Whether the part of a log that ends at an opening is beyond its limits: then `target` is that end. If it only becomes too old,
/// `due` is that time at the latest.
fn judge(
    log: LogNumber,
    target: &mut Option<Index>,
    opening: &Opening<'_>,
    around: &Surroundings<'_>,
    due: &mut Option<Timestamp>,
) -> GoOn {
    let (Some(state), Some(limits)) = (around.logs.get(log), Limits::of(&around.logs.options(log))) else {
        return GoOn::Nowhere; // dropped, or unlimited since the round began
    };
    let (last, next, bytes) = match opening {
        // As if no part before it were beyond the limits: less is discarded.
        Opening::Unreadable => return GoOn::Before,
        // It was opened later, and has no part before.
        Opening::Of(_, None) => return GoOn::Behind,
        Opening::Of(opening, Some((next, bytes))) => (opening.first_timestamp, *next, *bytes),
    };
    let is_beyond = limits.bytes.is_some_and(|most| state.bytes.saturating_sub(bytes) >= most)
        || limits.age.is_some_and(|age| last < Timestamp(around.now.0.saturating_sub(age)));
    if is_beyond || planted!(87) {
        *target = Some(next.min(state.next));
        return GoOn::Behind;
    }
    if let Some(age) = limits.age {
        due_at(due, Timestamp(last.0.saturating_add(age).saturating_add(1)));
    }
    GoOn::Before
}

/// The newest full segment, if all its entries are committed.
fn newest(around: &Surroundings<'_>) -> Option<SegmentId> {
    let full = around.segments.newest_full().filter(|full| full.end().raft <= around.committed);
    full.map(|full| full.id)
}

/// The limits of one log.
struct Limits {
    bytes: Option<u64>,
    /// In milliseconds.
    age: Option<u64>,
}

impl Limits {
    /// `None`: there are none.
    fn of(options: &LogOptions) -> Option<Self> {
        let limit = |option| options.get(option).filter(|limit| *limit < u64::MAX);
        let (bytes, age) = (limit(LogOption::RetentionBytes), limit(LogOption::RetentionAge));
        (bytes.is_some() || age.is_some()).then_some(Self { bytes, age })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::replica::queue::proposals::LogCommand;

    /// Once a change of a log's options is proposed, a discard by its earlier options would come behind it.
    #[test]
    fn retention_waits_for_options_that_are_about_to_change() {
        let (log, found) = (LogNumber(1), (LogNumber(1), Index(5)));
        let mut committed = LogTable::default();
        committed.apply(LogCommand::Open { log, start: Index(1) }).unwrap();
        let mut at_end = committed.clone();
        let options = committed.options(log).with(&[(LogOption::RetentionBytes, Some(1 << 30))]);
        at_end.apply(LogCommand::SetOptions { log, options }).unwrap();
        let mut retention = LogRetention::default();
        retention.put_back(found);
        assert_eq!(retention.next(&committed, &at_end), None);
        retention.put_back(found);
        assert_eq!(retention.next(&committed, &committed), Some(found));
    }
}
