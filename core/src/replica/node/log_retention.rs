//! Retention of single logs of a shared group: decides which of their records are beyond their limits.
//!
//! A round finds for each log the last segment whose part it may discard, by a search in the openings: if a segment's part is
//! beyond the limits, so are those before it. A round begins when a segment has become full, when limits have changed, and when a
//! segment becomes too old. A round that waits for the object store is given up when the next one has a reason: that one looks at
//! all logs again.
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
use std::collections::VecDeque;

/// When a round is tried again that could not read an opening, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// The limits of the logs of a group, as far as they were applied.
#[derive(Debug, Default)]
pub(super) struct LogRetention {
    /// The term in which this replica leads.
    term: Term,
    /// The newest full segment at the begin of the last round.
    seen: Option<SegmentId>,
    /// The search of the running round. Of each log its first index without the parts that were found to be beyond its limits.
    search: LogSearch<Option<Index>>,
    /// The last step waited for an object.
    waits: bool,
    /// The logs that have records to discard, and their first indexes without them.
    found: VecDeque<(LogNumber, Index)>,
    /// The earliest time at which a segment is too old for a log, of those that the last round has seen.
    due: Option<Timestamp>,
}

impl LogRetention {
    /// Options of a log have changed: a round begins, after the one that is running.
    pub(super) fn restart(&mut self, log: LogNumber) {
        (self.seen, self.due) = (None, Some(Timestamp(0)));
        self.search.forget(log);
        self.found.retain(|(found, _)| *found != log);
    }

    /// A log is full: a round begins, so that what is beyond its other limits makes room.
    pub(super) fn look_again(&mut self) {
        self.due = Some(Timestamp(0));
    }

    /// Whether a round is running, or something found is not yet discarded.
    pub(super) fn is_busy(&self) -> bool {
        self.search.is_running() || !self.found.is_empty()
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
            if committed.options(log) == at_end.options(log) || planted!(88) {
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
        if !self.search.is_running() || self.waits {
            self.begin_if_due(around);
        }
        if !self.search.is_running() {
            return Ok(None);
        }
        let list = around.segments.stretches();
        let ends_of_full = list.get(1..).unwrap_or_default();
        let due = &mut self.due;
        let stepped = self
            .search
            .step(ends_of_full, around, |log, target, opening| judge(log, target, &opening, around, due));
        self.waits = matches!(stepped, Ok(Some(_)));
        for (log, target) in self.search.take_ended() {
            let is_new = |first: &Index| around.logs.get(log).is_some_and(|state| *first > state.first);
            self.found.extend(target.filter(is_new).map(|first| (log, first)));
        }
        if stepped.is_err() {
            due_at(&mut self.due, Timestamp(around.now.0.saturating_add(RETRY_MS)));
        } else if !self.search.is_running() && newest(around) != self.seen {
            self.due = Some(Timestamp(0));
        }
        stepped
    }

    /// Begins a round if there is a reason and a log with limits.
    fn begin_if_due(&mut self, around: &Surroundings<'_>) {
        let newest = newest(around);
        let is_due = self.due.is_some_and(|due| due <= around.now);
        if newest == self.seen && !is_due {
            return;
        }
        (self.seen, self.due) = (newest, None);
        self.search = LogSearch::default();
        if newest.is_some() {
            let limited = |(_, options): &(LogNumber, &LogOptions)| Limits::of(options).is_some();
            let logs = around.logs.with_options().filter(limited).map(|(log, _)| (log, None));
            self.search.begin(logs.collect());
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
