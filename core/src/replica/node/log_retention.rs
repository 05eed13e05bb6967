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
//! A round walks over the segments from the oldest, and finds for each log the last segment whose part it may discard. It
//! begins when a segment has become full, when options have changed, and when a segment becomes too old. It goes a few
//! segments a step, so that the writer is not kept from appends.
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
use crate::store::format::logs::end_of;
use crate::store::read::run_directory::in_opening;
use crate::store::segment::{Segment, Segments};
use crate::types::{EntryIndex, Index, LogNumber, SegmentId, Term, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many openings a step reads.
const OPENINGS_A_STEP: usize = 4;

/// The limits of the logs of a group, as far as they were applied.
#[derive(Debug, Default)]
pub(super) struct LogRetention {
    /// The term in which this replica leads.
    term: Term,
    /// For each log the last entry of the last segment whose part was discarded.
    passed: BTreeMap<LogNumber, EntryIndex>,
    /// The newest full segment at the begin of the last round.
    seen: Option<SegmentId>,
    /// The logs that the running round still looks at, with what they discard so far.
    open: BTreeMap<LogNumber, Option<Index>>,
    /// What is to be discarded.
    found: VecDeque<(LogNumber, Index)>,
    /// The earliest time at which a segment is too old for a log, of those that the last round has seen.
    due: Option<Timestamp>,
}

/// What a round looks at.
pub(super) struct Surroundings<'a> {
    pub(super) segments: &'a Segments,
    /// The logs after the last committed entry, and that entry.
    pub(super) logs: &'a LogTable,
    pub(super) committed: EntryIndex,
    pub(super) term: Term,
    pub(super) now: Timestamp,
}

impl LogRetention {
    /// The options of a log have changed: the next step begins a round, and looks at all segments for this log.
    pub(super) fn restart(&mut self, log: LogNumber) {
        self.seen = None;
        self.passed.remove(&log);
        self.open.remove(&log);
        self.found.retain(|(found, _)| *found != log);
    }

    /// Whether a round is running, or something found is not yet discarded.
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty() || !self.found.is_empty()
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

    /// Makes a step of the running round, or begins one if there is a reason.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an opening cannot be read. The round has ended.
    pub(super) fn step(&mut self, around: &Surroundings<'_>) -> Result<()> {
        if self.term != around.term {
            // What another leader discarded is not known, nor whether discards of this one took effect.
            *self = Self { term: around.term, ..Self::default() };
        }
        let list = around.segments.snapshot();
        let full: Vec<_> = list.windows(2).filter(|pair| pair[0].end().raft <= around.committed).collect();
        if self.open.is_empty() && self.begins(full.last().map(|pair| pair[0].id), around.now) {
            let limited = |(_, options): &(LogNumber, &LogOptions)| Limits::of(options).is_some();
            self.open = around.logs.with_options().filter(limited).map(|(log, _)| (log, None)).collect();
            self.passed.retain(|log, _| self.open.contains_key(log));
        }
        for _ in 0..OPENINGS_A_STEP {
            if self.open.is_empty() {
                break;
            }
            let passed = self.open.keys().map(|log| self.passed.get(log).copied().unwrap_or_default()).min();
            let passed = passed.unwrap_or_default();
            match full.get(full.partition_point(|pair| pair[0].end().raft <= passed)) {
                None => self.end_round(around.logs),
                Some(pair) => {
                    if let Err(error) = self.look_at(pair, around) {
                        self.end_round(around.logs);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether there is a reason for a new round. Notes it.
    fn begins(&mut self, newest: Option<SegmentId>, now: Timestamp) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if newest.is_none() || (newest == self.seen && !is_due) {
            return false;
        }
        (self.seen, self.due) = (newest, None);
        true
    }

    /// Looks at the part of each open log in a full segment: `pair` is that segment and the next one.
    fn look_at(&mut self, pair: &[Arc<Segment>], around: &Surroundings<'_>) -> Result<()> {
        let (end, last) = (pair[0].end().raft, pair[0].last_timestamp());
        let logs = &self.open;
        let data = around.segments.open(&pair[1])?;
        let ends = in_opening(&data, |table| {
            logs.keys()
                .map(|log| Ok((*log, end_of(table, *log)?)))
                .collect::<std::result::Result<Vec<_>, _>>()
        })?;
        for (log, end_of_log) in ends {
            if self.passed.get(&log).is_some_and(|passed| *passed >= end) {
                continue;
            }
            let (Some(state), Some(limits)) = (around.logs.get(log), Limits::of(&around.logs.options(log)))
            else {
                self.open.remove(&log); // dropped, or unlimited since the round began
                continue;
            };
            // Without an end there it was opened later, and has no part in this segment.
            let (next, bytes) = end_of_log.unwrap_or((Index(0), 0));
            let is_beyond = limits.bytes.is_some_and(|most| state.bytes.saturating_sub(bytes) >= most)
                || limits.age.is_some_and(|age| last < Timestamp(around.now.0.saturating_sub(age)));
            if is_beyond || end_of_log.is_none() || planted!(87) {
                self.passed.insert(log, end);
                self.open.insert(log, Some(next.min(state.next)));
                continue;
            }
            if let Some(age) = limits.age {
                let due = Timestamp(last.0.saturating_add(age).saturating_add(1));
                self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
            }
            let target = self.open.remove(&log).flatten();
            self.note(log, target, around.logs);
        }
        Ok(())
    }

    fn end_round(&mut self, logs: &LogTable) {
        for (log, target) in std::mem::take(&mut self.open) {
            self.note(log, target, logs);
        }
    }

    fn note(&mut self, log: LogNumber, target: Option<Index>, logs: &LogTable) {
        if let Some(first) = target.filter(|first| logs.get(log).is_some_and(|state| *first > state.first)) {
            self.found.push_back((log, first));
        }
    }
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
