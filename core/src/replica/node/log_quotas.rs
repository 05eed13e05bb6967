//! Quotas of single logs of a shared group: decides which of them keep as many bytes as their `capacity_bytes` allow.
//!
//! A log's bytes since it was created are in the log table. How many of them are before its first record is not. After a discard
//! that is estimated at once: as if all records that the log kept were equally large. Then it is looked up, by a search in the
//! openings: the nearest openings before and behind the first record say how many bytes the log had there, and the records between
//! these two openings count as equally large.
//!
//! Invariants:
//! - only committed states and options count;
//! - a log becomes full only by what was looked up for its present first record, and has room again by an estimate, too;
//! - a log without a quota is never full, and neither is one that has appended less since it was created;
//! - what was looked up holds whoever leads: it follows from committed entries alone.
//!
//! Must not know: raft, how appends are refused.

use super::log_search::{EndOfLog, GoOn, LogSearch, Surroundings};
use crate::error::Result;
use crate::store::format::logs::LogState;
use crate::types::{Index, LogNumber};
use std::collections::{BTreeMap, BTreeSet};

/// The quotas of the logs of a group.
#[derive(Debug, Default)]
pub(super) struct LogQuotas {
    logs: BTreeMap<LogNumber, Quota>,
    /// Those for which it has to be looked up how many bytes are before the first record.
    unknown: BTreeSet<LogNumber>,
    search: LogSearch<Surrounded>,
    /// What [`Self::take_changes`] returns next.
    changes: Vec<(LogNumber, Option<u64>)>,
}

#[derive(Debug)]
struct Quota {
    /// In bytes.
    capacity: u64,
    /// The first record.
    first: Index,
    /// The bytes before it. None: neither known nor estimated.
    before: Option<u64>,
    /// Whether `before` was looked up.
    is_known: bool,
    is_full: bool,
}

/// What a search has found around the first record of a log: indexes, each with the log's bytes before it.
#[derive(Debug)]
struct Surrounded {
    first: Index,
    below: (Index, u64),
    above: (Index, u64),
}

impl LogQuotas {
    /// Sets or removes the quota of a log, in bytes.
    pub(super) fn set(&mut self, log: LogNumber, capacity: Option<u64>) {
        let Some(capacity) = capacity.filter(|capacity| *capacity < u64::MAX) else {
            if self.logs.remove(&log).is_some_and(|quota| quota.is_full) && !planted!(183) {
                self.changes.push((log, None));
            }
            self.unknown.remove(&log);
            self.search.forget(log);
            return;
        };
        let new = Quota { capacity, first: Index(0), before: None, is_known: false, is_full: false };
        self.logs.entry(log).or_insert(new).capacity = capacity;
    }

    /// Takes the state of a log, if it has a quota. None: it was dropped.
    pub(super) fn look(&mut self, log: LogNumber, state: Option<&LogState>) {
        let Some((quota, state)) = self.logs.get_mut(&log).zip(state) else { return };
        let was_full = quota.is_full;
        quota.pass(state);
        if state.bytes >= quota.capacity && !quota.is_known {
            self.unknown.insert(log);
        } else {
            self.unknown.remove(&log);
        }
        if quota.is_full != was_full {
            self.changes.push((log, quota.is_full.then_some(quota.capacity)));
        }
    }

    /// The logs that have become full, each with its quota, and those that have room again.
    pub(super) fn take_changes(&mut self) -> Vec<(LogNumber, Option<u64>)> {
        std::mem::take(&mut self.changes)
    }

    /// Whether something is being looked up, or has to be.
    pub(super) fn is_busy(&self) -> bool {
        self.search.is_running() || !self.unknown.is_empty()
    }

    /// Makes a step of the running search, or begins one if a log needs it. Some: it waits for the opening of an object, which is being
    /// fetched, and has looked at that many others before.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an opening cannot be read. The search goes on without it: more records count as equally large.
    pub(super) fn step(&mut self, around: &Surroundings<'_>) -> Result<Option<usize>> {
        if !self.search.is_running() {
            let logs = std::mem::take(&mut self.unknown).into_iter().filter_map(|log| {
                let state = around.logs.get(log)?;
                let (below, above) = ((Index(1), 0), (state.next, state.bytes));
                Some((log, Surrounded { first: state.first, below, above }))
            });
            self.search.begin(logs.collect());
        }
        let openings = around.segments.stretches();
        let stepped = self.search.step(&openings, around, |_, found, end, _| found.narrow(end));
        for (log, found) in self.search.take_ended() {
            if let Some(quota) = self.logs.get_mut(&log) {
                (quota.first, quota.before, quota.is_known) = (found.first, Some(found.bytes_before()), true);
            }
            self.look(log, around.logs.get(log));
        }
        stepped
    }
}

impl Quota {
    /// Takes the log's state: estimates how many bytes are before a first record that is new, and whether the log is full.
    fn pass(&mut self, state: &LogState) {
        let first = if planted!(184) { self.first.max(Index(1)) } else { state.first };
        if first > self.first {
            let [gone, all] = [first, state.next].map(|index| index.0.saturating_sub(self.first.0));
            self.before = self.before.map(|before| {
                before.saturating_add(part(state.bytes.saturating_sub(before), gone, all)).min(state.bytes)
            });
            (self.first, self.is_known) = (first, false);
        }
        if first >= state.next {
            (self.before, self.is_known) = (Some(state.bytes), true);
        }
        let kept = self.before.map_or(0, |before| state.bytes.saturating_sub(before));
        let exceeds = kept >= self.capacity && !state.sealed;
        self.is_full = exceeds && (self.is_known || self.is_full);
    }
}

impl Surrounded {
    fn narrow(&mut self, end: EndOfLog) -> GoOn {
        let Some(end) = end else { return GoOn::Behind }; // it was opened later
        if end.0 <= self.first {
            self.below = end;
            return GoOn::Behind;
        }
        self.above = end;
        GoOn::Before
    }

    /// The bytes before the first record, as if all records around it were equally large.
    fn bytes_before(&self) -> u64 {
        let Self { first, below, above } = *self;
        let [gone, all] = [first, above.0].map(|index| index.0.saturating_sub(below.0.0));
        below.1.saturating_add(part(above.1.saturating_sub(below.1), gone, all))
    }
}

/// `gone` of `all` records that have so many bytes together.
fn part(bytes: u64, gone: u64, all: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(gone) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(bytes).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Timestamp;

    const LOG: LogNumber = LogNumber(7);

    fn state(first: u64, next: u64, bytes: u64) -> LogState {
        let (first, next) = (Index(first), Index(next));
        LogState { first, next, bytes, last_timestamp: Timestamp(0), sealed: false }
    }

    fn quotas(capacity: u64) -> LogQuotas {
        let mut quotas = LogQuotas::default();
        quotas.set(LOG, Some(capacity));
        quotas
    }

    /// As if a search had found this.
    fn look_up(quotas: &mut LogQuotas, before: u64, state: &LogState) {
        assert!(quotas.unknown.contains(&LOG), "it need not be looked up");
        let quota = quotas.logs.get_mut(&LOG).unwrap();
        (quota.first, quota.before, quota.is_known) = (state.first, Some(before), true);
        quotas.look(LOG, Some(state));
    }

    #[test]
    fn log_is_full_only_by_what_was_looked_up() {
        let mut quotas = quotas(1000);
        quotas.look(LOG, Some(&state(1, 10, 999)));
        assert!(!quotas.is_busy(), "it cannot keep more than it has appended");
        quotas.look(LOG, Some(&state(1, 11, 1100)));
        assert!(quotas.is_busy() && quotas.take_changes().is_empty());
        look_up(&mut quotas, 0, &state(1, 11, 1100));
        assert_eq!(quotas.take_changes(), [(LOG, Some(1000))]);
        assert!(!quotas.is_busy());
    }

    #[test]
    fn discard_makes_room_by_an_estimate_and_the_log_is_full_again_only_by_what_was_looked_up() {
        let mut quotas = quotas(1000);
        quotas.look(LOG, Some(&state(1, 11, 1000)));
        look_up(&mut quotas, 0, &state(1, 11, 1000));
        assert_eq!(quotas.take_changes(), [(LOG, Some(1000))]);
        quotas.look(LOG, Some(&state(2, 11, 1000)));
        assert_eq!(quotas.take_changes(), [(LOG, None)]);
        quotas.look(LOG, Some(&state(2, 12, 1100)));
        assert_eq!(quotas.take_changes(), [], "the first record may have had more than 100 bytes");
        look_up(&mut quotas, 50, &state(2, 12, 1100));
        assert_eq!(quotas.take_changes(), [(LOG, Some(1000))]);
        // While it is full, an estimate that leaves too little does not withdraw that.
        quotas.look(LOG, Some(&state(2, 13, 1900)));
        quotas.look(LOG, Some(&state(3, 13, 1900)));
        assert_eq!(quotas.take_changes(), []);
        look_up(&mut quotas, 901, &state(3, 13, 1900));
        assert_eq!(quotas.take_changes(), [(LOG, None)]);
    }

    #[test]
    fn log_without_records_has_room_and_nothing_to_look_up() {
        let mut quotas = quotas(1000);
        quotas.look(LOG, Some(&state(1, 11, 5000)));
        look_up(&mut quotas, 0, &state(1, 11, 5000));
        quotas.look(LOG, Some(&state(11, 11, 5000)));
        assert_eq!(quotas.take_changes(), [(LOG, Some(1000)), (LOG, None)]);
        assert!(!quotas.is_busy());
        quotas.look(LOG, Some(&state(11, 12, 6000)));
        assert_eq!(quotas.take_changes(), [(LOG, Some(1000))], "what is before it is known");
    }

    #[test]
    fn sealed_log_is_not_full_and_neither_is_one_without_a_quota() {
        let mut quotas = quotas(1000);
        quotas.look(LOG, Some(&state(1, 11, 5000)));
        look_up(&mut quotas, 0, &state(1, 11, 5000));
        let sealed = LogState { sealed: true, ..state(1, 11, 5000) };
        quotas.look(LOG, Some(&sealed));
        quotas.look(LOG, Some(&state(1, 11, 5000)));
        quotas.set(LOG, Some(u64::MAX));
        let full = (LOG, Some(1000));
        assert_eq!(quotas.take_changes(), [full, (LOG, None), full, (LOG, None)]);
        quotas.look(LOG, Some(&state(1, 11, 6000)));
        assert_eq!(quotas.take_changes(), []);
    }

    #[test]
    fn openings_around_the_first_record_say_how_many_bytes_are_before_it() {
        let mut found = Surrounded { first: Index(50), below: (Index(1), 0), above: (Index(101), 10_000) };
        assert_eq!(found.bytes_before(), 4900, "no opening was read");
        assert!(matches!(found.narrow(Some((Index(60), 9000))), GoOn::Before));
        assert!(matches!(found.narrow(None), GoOn::Behind));
        assert!(matches!(found.narrow(Some((Index(40), 8000))), GoOn::Behind));
        assert_eq!(found.bytes_before(), 8500);
        assert!(matches!(found.narrow(Some((Index(50), 8700))), GoOn::Behind));
        assert_eq!(found.bytes_before(), 8700);
    }
}
