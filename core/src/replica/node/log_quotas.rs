//! Quotas of single logs of a shared group: decides which of them keep as many bytes as their `capacity_bytes` allow.
//!
//! The log table has the bytes of a log since it was created. It does not have how many of them are before the first record, which
//! a discard moves. Of each log two places around its first record are known, each with the log's bytes up to there:
//!
//! ```text
//!            below            above                 end
//!   log 7    |-----first------|--------------------|
//!            at least those bytes are before `first`, and at most these
//! ```
//!
//! Between the two places all records count as equally large. A place below is that of an earlier first record, or an opening; one above
//! is an opening, or where the log ended then. If they are too far apart to tell whether the log is full, the nearest openings are looked up.
//!
//! Invariants:
//! - only committed states and options count, so what is known holds whoever leads;
//! - a log becomes full, and has room again, only by what is certain, or by places of the same segment or object;
//! - a log without a quota is never full, and neither is a sealed one: its appends have another error.
//!
//! Not counted exactly: of the segment or object in which a log begins, the part before the first record; and indexes that a discard
//! beyond the end has skipped count as records there.
//!
//! Must not know: raft, how appends are refused.

use super::log_search::{GoOn, LogSearch, Opening, Surroundings};
use crate::error::Result;
use crate::store::format::logs::LogState;
use crate::types::{EntryIndex, Index, LogNumber, Timestamp};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// When a log is looked up again after an opening could not be read, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// The quotas of the logs of a group.
#[derive(Debug, Default)]
pub(super) struct LogQuotas {
    logs: BTreeMap<LogNumber, Quota>,
    /// Those whose nearest openings have to be looked up.
    unknown: BTreeSet<LogNumber>,
    /// The search among files, and that among objects as well, of logs that begin before all files. The second one can take long: others
    /// do not wait for it.
    searches: [LogSearch<Surrounded>; 2],
    /// The logs of the second search.
    older: BTreeSet<LogNumber>,
    /// An opening could not be read: no search begins before this time.
    retry_at: Timestamp,
    /// The changes that [`Self::take_changes`] returns next.
    changes: Vec<(LogNumber, Option<u64>)>,
}

#[derive(Debug)]
struct Quota {
    /// In bytes.
    capacity: u64,
    around: Surrounded,
    /// The capacity when the log was found to be full. None: it has room.
    full: Option<u64>,
}

/// An index of a log, and the log's bytes before it.
type Place = (Index, u64);

/// The first record of a log and the places around it.
#[derive(Clone, Copy, Debug)]
struct Surrounded {
    first: Index,
    below: Place,
    above: Place,
    /// Whether no opening is between the two places.
    is_near: bool,
    /// Of a search: whether an opening has the log at its first record or before, or is from before the log was created.
    has_begun: bool,
    /// Of a search: whether an opening that may be between the places could not be read.
    is_unread: bool,
}

impl LogQuotas {
    /// Sets or removes the quota of a log, in bytes.
    pub(super) fn set(&mut self, log: LogNumber, capacity: Option<u64>) {
        let Some(capacity) = capacity.filter(|capacity| *capacity < u64::MAX) else {
            if self.logs.remove(&log).is_some_and(|quota| quota.full.is_some()) && !planted!(183) {
                self.changes.push((log, None));
            }
            self.unknown.remove(&log);
            self.older.remove(&log);
            self.searches.iter_mut().for_each(|search| search.forget(log));
            return;
        };
        self.logs
            .entry(log)
            .or_insert(Quota { capacity, around: Surrounded::NOTHING, full: None })
            .capacity = capacity;
    }

    /// Takes the state of a log, if it has a quota. None: it was dropped.
    pub(super) fn look(&mut self, log: LogNumber, state: Option<&LogState>) {
        let Some((quota, state)) = self.logs.get_mut(&log).zip(state) else { return };
        quota.around.pass(state);
        let compared = quota.compare(state);
        if compared.is_none() && !self.older.contains(&log) {
            self.unknown.insert(log);
        } else {
            self.unknown.remove(&log);
        }
        let is_full = match compared {
            Some(compared) => compared.is_ge(),
            None => quota.full.is_some() && quota.estimate(state).is_ge(),
        };
        let full = is_full.then_some(quota.capacity);
        if quota.full != full {
            quota.full = full;
            self.changes.push((log, full));
        }
    }

    /// The logs that have become full, each with its quota, and those that have room again.
    pub(super) fn take_changes(&mut self) -> Vec<(LogNumber, Option<u64>)> {
        std::mem::take(&mut self.changes)
    }

    /// When something has to be looked up, by the log's time.
    pub(super) fn due(&self) -> Option<Timestamp> {
        if self.searches.iter().any(LogSearch::is_running) {
            return Some(Timestamp(0));
        }
        (!self.unknown.is_empty()).then_some(self.retry_at)
    }

    /// Makes a step of the running searches, or begins one if a log needs it. Some: one waits for the opening of an object, which is being
    /// fetched, and has looked at that many others before.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an opening cannot be read. The logs that needed it are looked up again later.
    pub(super) fn step(&mut self, around: &Surroundings<'_>) -> Result<Option<usize>> {
        if self.due().is_none_or(|due| due > around.now) {
            return Ok(None);
        }
        if !self.searches[0].is_running() && self.retry_at <= around.now {
            let logs = std::mem::take(&mut self.unknown).into_iter().filter_map(|log| {
                let state = around.logs.get(log)?;
                let (first, above) = (state.first, (state.next, state.bytes));
                Some((log, Surrounded { first, above, ..Surrounded::NOTHING }))
            });
            self.searches[0].begin(logs.collect());
        }
        let [files, objects] = &mut self.searches;
        let of_files =
            files.step(&around.segments.snapshot(), around, |_, found, opening| found.narrow(opening));
        let mut ended = files.take_ended();
        if around.segments.reads_objects() {
            let is_older = |(_, found): &(LogNumber, Surrounded)| !found.has_begun;
            let older;
            (older, ended) = ended.into_iter().partition(is_older);
            self.older.extend(older.iter().map(|(log, _)| *log));
            objects.begin(older);
        }
        let of_objects =
            objects.step(&around.segments.stretches(), around, |_, found, opening| found.narrow(opening));
        ended.extend(objects.take_ended());
        for (log, found) in ended {
            self.older.remove(&log);
            self.found(log, found, around);
        }
        let waits = of_files.and(of_objects)?;
        Ok(waits.filter(|_| !self.searches[0].is_running()))
    }

    /// The search for a log has ended.
    fn found(&mut self, log: LogNumber, found: Surrounded, around: &Surroundings<'_>) {
        // A log that no opening has begun with the group, unless its oldest openings are not here.
        let is_whole =
            || around.segments.stretches().first().is_none_or(|first| first.base.raft == EntryIndex(0));
        let is_near = !found.is_unread && (found.has_begun || is_whole());
        if !is_near {
            self.retry_at = Timestamp(around.now.0.saturating_add(RETRY_MS));
        }
        if let Some(quota) = self.logs.get_mut(&log) {
            let below = if found.below.0 == Index(0) { found.begin() } else { found.below };
            quota.around = Surrounded { below, is_near, ..found };
        }
        self.look(log, around.logs.get(log));
    }
}

impl Quota {
    /// Compares the bytes that a log keeps with its capacity. None: it has to be looked up.
    fn compare(&self, state: &LogState) -> Option<Ordering> {
        if state.sealed {
            return Some(Ordering::Less);
        }
        let kept = |before: u64| state.bytes.saturating_sub(before).cmp(&self.capacity);
        let Surrounded { first, below, above, is_near, .. } = self.around;
        let (most, least) = (kept(below.1), kept(above.1));
        if most.is_lt() || least.is_ge() {
            return Some(most);
        }
        let is_there = [below.0, above.0].contains(&first);
        (is_there || is_near).then(|| self.estimate(state))
    }

    fn estimate(&self, state: &LogState) -> Ordering {
        state.bytes.saturating_sub(self.around.bytes_before()).cmp(&self.capacity)
    }
}

impl Surrounded {
    const NOTHING: Self = Self {
        first: Index(0),
        below: (Index(0), 0),
        above: (Index(0), 0),
        is_near: false,
        has_begun: false,
        is_unread: false,
    };

    /// Takes the log's state: the first record can be another one.
    fn pass(&mut self, state: &LogState) {
        if planted!(184) && self.first > Index(0) {
            return;
        }
        self.first = state.first;
        if self.first < self.below.0 {
            // A copy that did not have the records before has them now.
            *self = Self { first: self.first, ..Self::NOTHING };
        }
        let end = (state.next, state.bytes);
        if self.first >= end.0 {
            // Appends from now on come behind it.
            *self = Self { first: self.first, below: end, above: end, ..Self::NOTHING };
        } else if self.above.0 == Index(0) {
            *self = Self { below: self.begin(), above: end, ..*self };
        } else if self.first > self.above.0 {
            *self = Self { below: self.above, above: end, is_near: false, ..*self };
        }
    }

    /// Where the log began. Before its first record are no bytes, if it has discarded nothing.
    fn begin(&self) -> Place {
        (self.first.min(Index(1)), 0)
    }

    fn narrow(&mut self, opening: Opening<'_>) -> GoOn {
        match opening {
            Opening::Unreadable => {
                self.is_unread = true;
                GoOn::Before
            }
            // The log was created later.
            Opening::Of(_, None) => {
                self.has_begun = true;
                GoOn::Behind
            }
            Opening::Of(_, Some(end)) if end.0 <= self.first => {
                (self.below, self.has_begun) = (end, true);
                GoOn::Behind
            }
            Opening::Of(_, Some(end)) => {
                self.above = end;
                GoOn::Before
            }
        }
    }

    /// The bytes before the first record, as if all records between the places were equally large.
    fn bytes_before(&self) -> u64 {
        let Self { first, below, above, .. } = *self;
        let [gone, all] = [first, above.0].map(|index| index.0.saturating_sub(below.0.0));
        let part = u128::from(above.1.saturating_sub(below.1)) * u128::from(gone) / u128::from(all.max(1));
        below.1.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)).min(above.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogNumber = LogNumber(7);
    const FULL: (LogNumber, Option<u64>) = (LOG, Some(1000));
    const HAS_ROOM: (LogNumber, Option<u64>) = (LOG, None);

    fn state(first: u64, next: u64, bytes: u64) -> LogState {
        let (first, next) = (Index(first), Index(next));
        LogState { first, next, bytes, last_timestamp: Timestamp(0), sealed: false }
    }

    /// A log has these states one after the other, and a capacity of 1,000 bytes. Returns the changes of the last one.
    fn changes(quotas: &mut LogQuotas, states: &[LogState]) -> Vec<(LogNumber, Option<u64>)> {
        quotas.set(LOG, Some(1000));
        let mut changes = Vec::new();
        for state in states {
            quotas.look(LOG, Some(state));
            changes = quotas.take_changes();
        }
        changes
    }

    /// As if a search had found these places.
    fn found(quotas: &mut LogQuotas, below: (u64, u64), above: (u64, u64), state: &LogState) {
        assert!(quotas.unknown.remove(&LOG), "it need not be looked up");
        let place = |(index, bytes)| (Index(index), bytes);
        let around = Surrounded {
            first: state.first,
            below: place(below),
            above: place(above),
            ..Surrounded::NOTHING
        };
        quotas.logs.get_mut(&LOG).unwrap().around = Surrounded { is_near: true, ..around };
        quotas.look(LOG, Some(state));
    }

    #[test]
    fn log_that_has_discarded_nothing_keeps_all_its_bytes() {
        let mut quotas = LogQuotas::default();
        assert_eq!(changes(&mut quotas, &[state(1, 1, 0), state(1, 10, 999)]), []);
        assert_eq!(changes(&mut quotas, &[state(1, 11, 1000)]), [FULL]);
        assert_eq!(quotas.due(), None, "nothing has to be looked up");
        let mut late = LogQuotas::default();
        assert_eq!(changes(&mut late, &[state(1, 90, 5000)]), [FULL], "the quota came later");
    }

    #[test]
    fn log_becomes_full_only_by_what_is_certain() {
        let mut quotas = LogQuotas::default();
        assert_eq!(changes(&mut quotas, &[state(50, 60, 5000)]), []);
        assert_eq!(quotas.due(), Some(Timestamp(0)));
        found(&mut quotas, (40, 3900), (60, 5000), &state(50, 60, 5000));
        assert_eq!((quotas.take_changes(), quotas.due()), (vec![], None), "550 bytes");
        assert_eq!(changes(&mut quotas, &[state(50, 64, 5440)]), []);
        assert_eq!(changes(&mut quotas, &[state(50, 65, 5460)]), [FULL], "4,450 bytes are before it");
    }

    #[test]
    fn discard_makes_room_by_an_estimate_until_the_place_is_looked_up() {
        let mut quotas = LogQuotas::default();
        assert_eq!(changes(&mut quotas, &[state(1, 2, 100), state(1, 11, 1000)]), [FULL]);
        assert_eq!(changes(&mut quotas, &[state(5, 11, 1000)]), [HAS_ROOM]);
        assert_eq!(changes(&mut quotas, &[state(5, 15, 1400)]), [], "400 bytes may be before it");
        found(&mut quotas, (1, 0), (9, 400), &state(5, 15, 1400));
        assert_eq!(quotas.take_changes(), [FULL], "200 are");
        assert_eq!(changes(&mut quotas, &[state(8, 15, 1400)]), [], "350");
        assert_eq!(changes(&mut quotas, &[state(9, 15, 1400)]), [], "400 for certain");
        assert_eq!(changes(&mut quotas, &[state(10, 15, 1400)]), [HAS_ROOM], "more, by an estimate");
        assert_eq!(quotas.due(), Some(Timestamp(0)));
    }

    #[test]
    fn log_without_records_has_room_and_nothing_to_look_up() {
        let mut quotas = LogQuotas::default();
        assert_eq!(changes(&mut quotas, &[state(1, 11, 5000)]), [FULL]);
        assert_eq!(changes(&mut quotas, &[state(11, 11, 5000)]), [HAS_ROOM]);
        assert_eq!(changes(&mut quotas, &[state(11, 12, 6000)]), [FULL], "what is before it is known");
        assert_eq!(quotas.due(), None);
    }

    #[test]
    fn sealed_log_is_not_full_and_neither_is_one_without_a_quota() {
        let mut quotas = LogQuotas::default();
        let sealed = LogState { sealed: true, ..state(1, 11, 5000) };
        assert_eq!(changes(&mut quotas, &[state(1, 11, 5000), sealed]), [HAS_ROOM]);
        assert_eq!(changes(&mut quotas, &[state(1, 11, 5000)]), [FULL]);
        quotas.set(LOG, Some(u64::MAX));
        assert_eq!(quotas.take_changes(), [HAS_ROOM]);
        quotas.look(LOG, Some(&state(1, 11, 6000)));
        assert_eq!(quotas.take_changes(), []);
    }

    #[test]
    fn first_record_that_moves_back_is_looked_up_again() {
        let mut quotas = LogQuotas::default();
        assert_eq!(changes(&mut quotas, &[state(100, 100, 5000)]), []);
        assert_eq!(changes(&mut quotas, &[state(50, 101, 5100)]), []);
        assert_eq!(quotas.due(), Some(Timestamp(0)));
    }

    #[test]
    fn opening_that_cannot_be_read_leaves_the_log_to_be_looked_up_again() {
        let mut found = Surrounded { first: Index(50), above: (Index(101), 10_000), ..Surrounded::NOTHING };
        assert!(matches!(found.narrow(Opening::Unreadable), GoOn::Before));
        assert!(found.is_unread && !found.has_begun);
        let mut quotas = LogQuotas::default();
        changes(&mut quotas, &[state(50, 101, 10_000)]);
        quotas.unknown.clear();
        quotas.logs.get_mut(&LOG).unwrap().around = found;
        quotas.retry_at = Timestamp(RETRY_MS);
        quotas.look(LOG, Some(&state(50, 101, 10_000)));
        assert_eq!((quotas.take_changes(), quotas.due()), (vec![], Some(Timestamp(RETRY_MS))));
    }
}
