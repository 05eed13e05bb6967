//! Retention of single logs of a shared group: decides which of their records are beyond their limits.
//!
//! The opening of a segment has the end of each log where the segment begins. So the part of a log that ends in one
//! segment is known without reading its blocks:
//!
//! ```text
//! segments     | 1      | 2      | 3      | 4 (growing)
//! log 7        |  aaaa  |  aa    |     aa |  aaa
//!                       ^ its next index and its bytes up to here are in the opening of segment 3
//! ```
//!
//! Objects before all files count as segments. Their openings are fetched by other threads: a round waits for them.
//!
//! A round finds for each log the last segment whose part it may discard, by binary search: if a segment's part is beyond
//! the limits, so are those before it. The logs are searched for together, because an opening has all of them. A round
//! begins when a segment has become full, when limits have changed, and when a segment becomes too old. It reads a few
//! openings a step, so that the writer is not kept from appends.
//!
//! Invariants:
//! - only committed options count, and none while a change of them is not committed: a discard that is proposed behind a
//!   change obeys it;
//! - only segments count all of whose entries are committed;
//! - `retention_bytes` of the newest bytes of a log are never discarded because of that limit;
//! - a log without limits is never touched.
//!
//! Must not know: raft, how a discard is proposed.

use crate::error::Result;
use crate::options::log_options::{LogOption, LogOptions};
use crate::replica::state::log_table::LogTable;
use crate::store::format::logs::state_of;
use crate::store::read::run_directory::in_opening_if_here;
use crate::store::segment::{Segment, Segments};
use crate::types::{EntryIndex, Index, LogNumber, SegmentId, Term, Timestamp};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many openings a step reads.
const OPENINGS_A_STEP: usize = 4;
/// When a round is tried again that could not read an opening, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// The limits of the logs of a group, as far as they were applied.
#[derive(Debug, Default)]
pub(super) struct LogRetention {
    /// The term in which this replica leads.
    term: Term,
    /// The newest full segment at the begin of the last round.
    seen: Option<SegmentId>,
    /// The searches of the running round that have not ended.
    searches: Vec<Search>,
    /// The logs that have records to discard, and their first indexes without them.
    found: VecDeque<(LogNumber, Index)>,
    /// The earliest time at which a segment is too old for a log, of those that the last round has seen.
    due: Option<Timestamp>,
}

/// Logs whose last segment beyond their limits is among those that end behind entry `from` and before entry `to`, or the
/// one that ends at `from`.
#[derive(Debug)]
struct Search {
    from: EntryIndex,
    to: EntryIndex,
    /// Each with its first index without the parts that were found to be beyond its limits.
    logs: Vec<(LogNumber, Option<Index>)>,
}

/// The state that a round reads.
pub(super) struct Surroundings<'a> {
    pub(super) segments: &'a Segments,
    /// The logs after the last committed entry, and that entry.
    pub(super) logs: &'a LogTable,
    pub(super) committed: EntryIndex,
    pub(super) term: Term,
    pub(super) now: Timestamp,
}

impl LogRetention {
    /// Options of a log have changed: a round begins, after the one that is running.
    pub(super) fn restart(&mut self, log: LogNumber) {
        (self.seen, self.due) = (None, Some(Timestamp(0)));
        for search in &mut self.searches {
            search.logs.retain(|(other, _)| *other != log);
        }
        self.found.retain(|(found, _)| *found != log);
    }

    /// Whether a round is running, or something found is not yet discarded.
    pub(super) fn is_busy(&self) -> bool {
        !self.searches.is_empty() || !self.found.is_empty()
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
        if self.searches.is_empty() && !self.begins(around) {
            return Ok(None);
        }
        let list = around.segments.stretches();
        let full: Vec<_> = list.windows(2).filter(|pair| end_of_pair(pair) <= around.committed).collect();
        let position = |entry: EntryIndex| full.partition_point(|pair| end_of_pair(pair) <= entry);
        let mut opened = 0;
        while opened < OPENINGS_A_STEP
            && let Some(search) = self.searches.pop()
        {
            let to = EntryIndex(search.to.0.saturating_sub(1));
            let (from, to) = (position(search.from), position(to));
            if from >= to {
                self.end(search.logs, around.logs);
                continue;
            }
            let pair = full[from.midpoint(to)];
            match ends_in(pair, &search, around) {
                Ok(Some(ends)) => self.divide(pair, search, &ends, around),
                Ok(None) => {
                    self.searches.push(search);
                    return Ok(Some(opened));
                }
                Err(error) => {
                    // As if no part of this segment were beyond the limits: less is discarded.
                    self.searches.push(Search { to: end_of_pair(pair), ..search });
                    self.due_at(Timestamp(around.now.0.saturating_add(RETRY_MS)));
                    return Err(error);
                }
            }
            opened += 1;
        }
        if self.searches.is_empty() && newest(around) != self.seen {
            self.due = Some(Timestamp(0));
        }
        Ok(None)
    }

    fn due_at(&mut self, due: Timestamp) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Begins a round if there is a reason and a log with limits.
    fn begins(&mut self, around: &Surroundings<'_>) -> bool {
        let newest = newest(around);
        let is_due = self.due.is_some_and(|due| due <= around.now);
        if newest == self.seen && !is_due {
            return false;
        }
        (self.seen, self.due) = (newest, None);
        let limited = |(_, options): &(LogNumber, &LogOptions)| Limits::of(options).is_some();
        let logs: Vec<_> = around.logs.with_options().filter(limited).map(|(log, _)| (log, None)).collect();
        if newest.is_none() || logs.is_empty() {
            return false;
        }
        self.searches.push(Search { from: EntryIndex(0), to: EntryIndex(u64::MAX), logs });
        true
    }

    /// Divides a search by what [`ends_in`] says of a segment.
    fn divide(
        &mut self,
        pair: &[Arc<Segment>],
        search: Search,
        ends: &[EndOfLog],
        around: &Surroundings<'_>,
    ) {
        let (end, last) = (end_of_pair(pair), pair[1].first_timestamp);
        let (mut beyond, mut within) = (Vec::new(), Vec::new());
        for ((log, target), end_of_log) in search.logs.into_iter().zip(ends) {
            let (Some(state), Some(limits)) = (around.logs.get(log), Limits::of(&around.logs.options(log)))
            else {
                continue; // dropped, or unlimited since the round began
            };
            // Without an end there it was opened later, and has no part in this segment.
            let Some((next, bytes)) = *end_of_log else {
                beyond.push((log, target));
                continue;
            };
            let is_beyond = limits.bytes.is_some_and(|most| state.bytes.saturating_sub(bytes) >= most)
                || limits.age.is_some_and(|age| last < Timestamp(around.now.0.saturating_sub(age)));
            if is_beyond || planted!(87) {
                beyond.push((log, Some(next.min(state.next))));
                continue;
            }
            if let Some(age) = limits.age {
                self.due_at(Timestamp(last.0.saturating_add(age).saturating_add(1)));
            }
            within.push((log, target));
        }
        let Search { from, to, .. } = search;
        for half in [Search { from: end, to, logs: beyond }, Search { from, to: end, logs: within }] {
            if !half.logs.is_empty() {
                self.searches.push(half);
            }
        }
    }

    /// The search for these logs has ended.
    fn end(&mut self, logs: Vec<(LogNumber, Option<Index>)>, table: &LogTable) {
        for (log, target) in logs {
            let is_new = |first: &Index| table.get(log).is_some_and(|state| *first > state.first);
            self.found.extend(target.filter(is_new).map(|first| (log, first)));
        }
    }
}

/// The newest full segment, if all its entries are committed.
fn newest(around: &Surroundings<'_>) -> Option<SegmentId> {
    let full = around.segments.newest_full().filter(|full| full.end().raft <= around.committed);
    full.map(|full| full.id)
}

/// The next index of a log, and its bytes up to there. None: it was opened later.
type EndOfLog = Option<(Index, u64)>;

/// The end of a segment, or of an object and what is before the next one.
fn end_of_pair(pair: &[Arc<Segment>]) -> EntryIndex {
    pair[1].base.raft
}

/// Where each log of a search ends at the end of a segment: its next index, and its bytes up to there. `pair` is that
/// segment and the next one, whose opening says it. None: it is the opening of an object, which is being fetched.
fn ends_in(
    pair: &[Arc<Segment>],
    search: &Search,
    around: &Surroundings<'_>,
) -> Result<Option<Vec<EndOfLog>>> {
    let data = around.segments.open(&pair[1])?;
    in_opening_if_here(&data, |table| {
        let ends = search.logs.iter().map(|(log, _)| {
            let state = state_of(table, *log)?;
            Ok(state.map(|state| (state.next, state.bytes)))
        });
        ends.collect()
    })
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
