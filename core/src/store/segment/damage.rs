//! Damage: where it was found in a log's files, and whether it can be repaired. Shared by all code that reads the files
//! and by the thread that repairs them.
//!
//! ```text
//!   reader, source, archive, verify ────> met ──> suspects ──> the repair checks there at once
//!                                          │
//!   error of the read  <── verdict <───────┴── found, lost, repaired <── the repair
//! ```
//!
//! Invariants:
//! - a damaged place is counted and logged once until it is repaired, however often it is read;
//! - an error says that nobody can repair a place only if the log is a copy, if it has no other replica, or if every
//!   other voter has reported the same entries damaged.
//!
//! Must not know: raft, how anything is repaired.

use crate::error::Error;
use crate::types::Index;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most places that are remembered. Beyond it, each read counts.
const PLACES_MAX: usize = 4096;

/// The possible sources for repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Helpers {
    /// Not known: another process writes the log.
    #[default]
    Unknown,
    /// None: the log has one replica.
    Nobody,
    /// The log that this one is a copy of. A copy is not repaired; it starts again from the beginning.
    Source,
    /// Other replicas.
    Replicas,
}

/// The known damage in a log's files.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    helpers: Helpers,
    /// Segments that the repair should check.
    suspects: BTreeSet<u64>,
    /// The damaged places.
    places: Vec<Place>,
    /// Records that nobody can repair now: the segment, the records, and the reason.
    lost: Vec<(u64, Range<Index>, String)>,
    /// Places that were found where no repair runs.
    counted: u64,
    /// How often bytes of files began to be repaired, and how often they were.
    repairs: u64,
}

/// A damaged range of bytes in a segment.
#[derive(Clone, Debug)]
struct Place {
    number: u64,
    bytes: Range<u64>,
    /// The records known to be in this range. None: not known, or there are none.
    records: Option<Range<Index>>,
}

impl Place {
    fn is_in(&self, number: u64, bytes: &Range<u64>) -> bool {
        self.number == number && self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

fn hull<T: Ord + Copy>(a: &Range<T>, b: &Range<T>) -> Range<T> {
    a.start.min(b.start)..a.end.max(b.end)
}

impl State {
    /// Adds a damaged place; true if it is new.
    fn note(&mut self, number: u64, bytes: Range<u64>, records: Option<Range<Index>>) -> bool {
        if let Some(known) = self.places.iter_mut().find(|known| known.is_in(number, &bytes)) {
            known.bytes = hull(&known.bytes, &bytes);
            known.records = match (known.records.take(), records) {
                (Some(a), Some(b)) => Some(hull(&a, &b)),
                (a, b) => a.or(b),
            };
            return false;
        }
        if self.places.len() < PLACES_MAX {
            self.places.push(Place { number, bytes, records });
        }
        true
    }

    /// The reason why nobody can repair a record there; None if it may be repaired.
    fn verdict(&self, number: u64, record: Option<Index>) -> Option<&str> {
        match self.helpers {
            Helpers::Nobody => Some("the log has no other replica that could have it intact"),
            Helpers::Source => Some(
                "this is a copy, which is not repaired in place: start it again from the log that it follows (`FollowerLog::destroy`, \
                 `chiplog follow --start-over`)",
            ),
            Helpers::Unknown => None,
            Helpers::Replicas => {
                let holds = |records: &Range<Index>| record.is_some_and(|record| records.contains(&record));
                self.lost.iter().find(|(n, records, _)| *n == number && holds(records)).map(|l| l.2.as_str())
            }
        }
    }
}

impl Damage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the sources for repair.
    pub(crate) fn set_helpers(&self, helpers: Helpers) {
        let mut state = self.state();
        if state.helpers != helpers {
            state.helpers = helpers;
            state.lost.clear();
        }
    }

    /// Whether damage is repaired when it is found.
    pub(crate) fn is_repaired(&self) -> bool {
        self.state().helpers == Helpers::Replicas
    }

    /// Handles damage that a read of `record` found at an offset of a segment: the repair checks there at once. Returns
    /// `error` with more detail for the caller: which record it is, and whether it can be repaired.
    pub(crate) fn met(&self, number: u64, offset: u64, error: &Error, record: Option<Index>) -> Error {
        let records = record.map(|record| record..record.next());
        let mut state = self.state();
        let repaired = state.helpers == Helpers::Replicas;
        if repaired {
            state.suspects.insert(number);
        } else if state.helpers != Helpers::Unknown && state.note(number, offset..offset + 1, records) {
            // If the place is repaired, the repair counts and reports it.
            state.counted += 1;
            let why = state.verdict(number, record).unwrap_or_default();
            tracing::error!(%error, record = record.map(Index::get), "damage was found, and nobody can repair it: {why}");
        }
        let what = record.map_or_else(String::new, |record| format!("record {record} cannot be read: "));
        match state.verdict(number, record) {
            Some(why) => error.with_message(format!("{what}{error}; nobody can repair it: {why}")).into_lasting(),
            None if repaired => error.with_message(format!(
                "{what}{error}; it is being fetched from other replicas: read again, or read from another replica"
            )),
            None => error.with_message(format!("{what}{error}")),
        }
    }

    /// Marks a segment for the repair to check.
    pub(crate) fn suspect(&self, number: u64) {
        let mut state = self.state();
        if state.helpers == Helpers::Replicas {
            state.suspects.insert(number);
        }
    }

    /// Returns the segments in which damage was found since the last call.
    pub(crate) fn take_suspects(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.state().suspects)
    }

    /// Adds damage in these bytes, and in these records if they are known. Returns true if it is new; it then counts.
    pub(crate) fn found(&self, number: u64, bytes: Range<u64>, records: Option<Range<Index>>) -> bool {
        self.state().note(number, bytes, records)
    }

    /// The number of currently damaged places: in existing segments, without places that contain only discarded
    /// records. `first`: the log's first record.
    pub(crate) fn places_now(&self, first: Index, is_there: impl Fn(u64) -> bool) -> u64 {
        let is_of_use = |records: &Range<Index>| records.is_empty() || records.end > first;
        let state = self.state();
        let now = state.places.iter().filter(|place| place.records.as_ref().is_none_or(is_of_use));
        now.filter(|place| is_there(place.number)).count() as u64
    }

    /// Marks these records of a segment as not repairable now. Errors of reads include `why`.
    pub(crate) fn mark_unrepairable(&self, number: u64, records: Range<Index>, why: &str) {
        let mut state = self.state();
        state.lost.retain(|(n, known, _)| *n != number || *known != records);
        if state.lost.len() < PLACES_MAX {
            state.lost.push((number, records, why.to_owned()));
        }
    }

    /// Clears the mark of [`Self::mark_unrepairable`]: these records may be repairable after all.
    pub(crate) fn clear_unrepairable(&self, number: u64, records: &Range<Index>) {
        self.state().lost.retain(|(n, known, _)| *n != number || known != records);
    }

    /// Notes that bytes of a file are about to be repaired in place.
    pub(crate) fn begin_repair(&self) {
        self.state().repairs += 1;
    }

    /// Changes whenever a repair in place begins or ends: files whose bytes were read before have the same bytes while it does not.
    pub(crate) fn repairs(&self) -> u64 {
        self.state().repairs
    }

    /// Removes damage in these bytes, which are repaired.
    pub(crate) fn mark_repaired(&self, number: u64, bytes: &Range<u64>, records: &Range<Index>) {
        let mut state = self.state();
        state.repairs += 1;
        state.places.retain(|known| !known.is_in(number, bytes));
        state.lost.retain(|(n, known, _)| *n != number || known != records);
    }

    /// Removes all damage of a segment, which is intact or gone.
    pub(crate) fn mark_sound(&self, number: u64) {
        let mut state = self.state();
        state.places.retain(|known| known.number != number);
        state.lost.retain(|(n, ..)| *n != number);
    }

    /// The number of places that were found where no repair runs.
    pub(crate) fn counted(&self) -> u64 {
        self.state().counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn met(damage: &Damage, offset: u64, record: u64) -> Error {
        let error = Error::corrupt(Path::new("/log/00000000000000000003.seg"), offset, "checksum");
        damage.met(3, offset, &error, Some(Index(record)))
    }

    #[test]
    fn place_counts_once_if_no_repair_runs() {
        let damage = Damage::default();
        damage.set_helpers(Helpers::Nobody);
        for _ in 0..3 {
            let error = met(&damage, 4096, 17);
            assert!(error.is_lasting() && error.location().is_some(), "{error}");
            assert!(
                error.to_string().contains("record 17 ") && error.to_string().contains("nobody can repair")
            );
        }
        met(&damage, 8192, 30);
        assert_eq!(damage.counted(), 2);
        assert!(damage.take_suspects().is_empty());
        damage.set_helpers(Helpers::Replicas);
        assert!(!damage.found(3, 4000..5000, None), "a reader has found it");
        assert!(damage.found(3, 5000..5001, None));
        damage.mark_repaired(3, &(4000..5000), &(Index(17)..Index(18)));
        assert!(damage.found(3, 4096..4097, None));
    }

    /// Before, `status` still reported a log as damaged after the records in question were discarded.
    #[test]
    fn places_now_follows_discards_and_repairs() {
        let damage = Damage::default();
        damage.set_helpers(Helpers::Nobody);
        met(&damage, 4096, 17);
        met(&damage, 4096, 19);
        damage.found(4, 64..128, None);
        let now = |first: u64, there: &[u64]| damage.places_now(Index(first), |n| there.contains(&n));
        assert_eq!(now(1, &[3, 4]), 2);
        assert_eq!(now(19, &[3, 4]), 2, "19 cannot be read either");
        assert_eq!(now(20, &[3, 4]), 1, "no damaged record can be read any more");
        assert_eq!(now(20, &[5]), 0);
        damage.mark_sound(4);
        assert_eq!(now(1, &[3, 4]), 1);
        assert_eq!(damage.counted(), 1, "the count does not decrease");
    }

    #[test]
    fn error_of_a_read_says_whether_it_can_be_repaired() {
        let damage = Damage::default();
        assert!(!met(&damage, 4096, 17).is_lasting(), "another process may repair it");
        damage.set_helpers(Helpers::Replicas);
        let error = met(&damage, 4096, 17);
        assert!(!error.is_lasting() && error.to_string().contains("is being fetched"), "{error}");
        assert_eq!(damage.take_suspects().into_iter().collect::<Vec<_>>(), [3]);
        damage.mark_unrepairable(3, Index(10)..Index(18), "all have it damaged");
        assert!(met(&damage, 4096, 17).is_lasting());
        assert!(!met(&damage, 9000, 18).is_lasting(), "another place");
        damage.clear_unrepairable(3, &(Index(10)..Index(18)));
        assert!(!met(&damage, 4096, 17).is_lasting());
        damage.mark_unrepairable(3, Index(10)..Index(18), "all have it damaged");
        damage.mark_sound(3);
        assert!(!met(&damage, 4096, 17).is_lasting());
    }
}
