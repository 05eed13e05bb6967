//! Damage: where it was met in a log's files, and whether anybody can repair it. Shared by all that read the files and by
//! the thread that repairs them.
//!
//! ```text
//!   reader, feed, archive, verify ──> met ──> suspects ──> the repair looks there at once
//!                                      │
//!   error of the read  <── verdict <───┴── found, lost, mended <── the repair
//! ```
//!
//! Invariants:
//! - a place is counted and logged once, however often it is read, until it is repaired;
//! - an error says that nobody can repair a place only where there is nobody who could, or where every other voter has said
//!   that it has the same entries damaged.
//!
//! Must not know: raft, how anything is repaired.

use crate::error::Error;
use crate::types::Index;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Places that are remembered. Of more, each read counts.
const PLACES_MAX: usize = 4096;

/// Who can bring what is damaged here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Helpers {
    /// Not known: another process writes the log.
    #[default]
    Unknown,
    /// Nobody: the log has one replica.
    Nobody,
    /// The log that this one is a copy of, from the beginning; a copy is not repaired.
    Source,
    /// Other replicas.
    Replicas,
}

/// What is known of damage in a log's files.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    helpers: Helpers,
    /// Segments that the repair should look at.
    suspects: BTreeSet<u64>,
    /// Where damage is.
    places: Vec<Place>,
    /// What nobody can repair now: the segment, its records, and why.
    lost: Vec<(u64, Range<Index>, String)>,
    /// Places that were met where nobody repairs.
    counted: u64,
}

/// Bytes of a segment that are damaged.
#[derive(Clone, Debug)]
struct Place {
    number: u64,
    bytes: Range<u64>,
    /// Records that are known to be in them. None: not known which, or none.
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
    /// Whether that place was not known.
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

    /// Why nobody can repair what stands there.
    fn verdict(&self, number: u64, record: Option<Index>) -> Option<&str> {
        match self.helpers {
            Helpers::Nobody => Some("the log has no other replica that could have it whole"),
            Helpers::Source => Some(
                "this is a copy, which is not repaired in place: begin it again from the log that it follows (`FollowerLog::destroy`, \
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

    /// Who can bring what is damaged.
    pub(crate) fn set_helpers(&self, helpers: Helpers) {
        let mut state = self.state();
        if state.helpers != helpers {
            state.helpers = helpers;
            state.lost.clear();
        }
    }

    /// Whether somebody repairs what is met.
    pub(crate) fn is_repaired(&self) -> bool {
        self.state().helpers == Helpers::Replicas
    }

    /// A read that was to give `record` has met damage, of which `error` tells, at an offset of a segment: the repair looks
    /// there at once. The error, with what a caller should know: which record it is, and whether anybody can repair it.
    pub(crate) fn met(&self, number: u64, offset: u64, error: &Error, record: Option<Index>) -> Error {
        let records = record.map(|record| record..record.next());
        let mut state = self.state();
        let repaired = state.helpers == Helpers::Replicas;
        if repaired {
            state.suspects.insert(number);
        } else if state.helpers != Helpers::Unknown && state.note(number, offset..offset + 1, records) {
            // Where it is repaired, the repair counts and tells what it finds.
            state.counted += 1;
            let why = state.verdict(number, record).unwrap_or_default();
            tracing::error!(%error, record = record.map(Index::get), "damage was found, and nobody can repair it: {why}");
        }
        let what = record.map_or_else(String::new, |record| format!("record {record} cannot be read: "));
        match state.verdict(number, record) {
            Some(why) => error.retold(format!("{what}{error}; nobody can repair it: {why}")).into_lasting(),
            None if repaired => error.retold(format!(
                "{what}{error}; it is being fetched from other replicas: read again, or read from another one"
            )),
            None => error.retold(format!("{what}{error}")),
        }
    }

    /// The repair should look at a segment.
    pub(crate) fn suspect(&self, number: u64) {
        let mut state = self.state();
        if state.helpers == Helpers::Replicas {
            state.suspects.insert(number);
        }
    }

    /// Segments in which damage was met since the last time.
    pub(crate) fn take_suspects(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.state().suspects)
    }

    /// Damage is in these bytes, and of these records, if that is known. Whether it was not known: then it counts.
    pub(crate) fn found(&self, number: u64, bytes: Range<u64>, records: Option<Range<Index>>) -> bool {
        self.state().note(number, bytes, records)
    }

    /// Places that are damaged now: in a segment that is there, and not of records that are discarded. `first`: of the log.
    pub(crate) fn places_now(&self, first: Index, is_there: impl Fn(u64) -> bool) -> u64 {
        let is_of_use = |records: &Range<Index>| records.is_empty() || records.end > first;
        let state = self.state();
        let now = state.places.iter().filter(|place| place.records.as_ref().is_none_or(is_of_use));
        now.filter(|place| is_there(place.number)).count() as u64
    }

    /// Nobody can repair these records of a segment now; `why` is told to who reads them.
    pub(crate) fn lose(&self, number: u64, records: Range<Index>, why: &str) {
        let mut state = self.state();
        state.lost.retain(|(n, known, _)| *n != number || *known != records);
        if state.lost.len() < PLACES_MAX {
            state.lost.push((number, records, why.to_owned()));
        }
    }

    /// Somebody may be able to repair these records after all.
    pub(crate) fn hope(&self, number: u64, records: &Range<Index>) {
        self.state().lost.retain(|(n, known, _)| *n != number || known != records);
    }

    /// What was damaged at these bytes is whole.
    pub(crate) fn mended(&self, number: u64, bytes: &Range<u64>, records: &Range<Index>) {
        let mut state = self.state();
        state.places.retain(|known| !known.is_in(number, bytes));
        state.lost.retain(|(n, known, _)| *n != number || known != records);
    }

    /// A segment is sound, or gone: nothing of it is damaged.
    pub(crate) fn is_well(&self, number: u64) {
        let mut state = self.state();
        state.places.retain(|known| known.number != number);
        state.lost.retain(|(n, ..)| *n != number);
    }

    /// Places that were met where nobody repairs them.
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
    fn place_counts_once_where_nobody_repairs() {
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
        assert!(!damage.found(3, 4000..5000, None), "a reader has met it");
        assert!(damage.found(3, 5000..5001, None));
        damage.mended(3, &(4000..5000), &(Index(17)..Index(18)));
        assert!(damage.found(3, 4096..4097, None));
    }

    /// `status` went on to say that a log is damaged after the records in question were discarded.
    #[test]
    fn what_is_damaged_now_follows_the_log() {
        let damage = Damage::default();
        damage.set_helpers(Helpers::Nobody);
        met(&damage, 4096, 17);
        met(&damage, 4096, 19);
        damage.found(4, 64..128, None);
        let now = |first: u64, there: &[u64]| damage.places_now(Index(first), |n| there.contains(&n));
        assert_eq!(now(1, &[3, 4]), 2);
        assert_eq!(now(19, &[3, 4]), 2, "19 can be read no better than 17");
        assert_eq!(now(20, &[3, 4]), 1, "nobody can ask for what is damaged");
        assert_eq!(now(20, &[5]), 0);
        damage.is_well(4);
        assert_eq!(now(1, &[3, 4]), 1);
        assert_eq!(damage.counted(), 1, "what was counted stays so");
    }

    #[test]
    fn read_is_told_whether_anybody_can_repair_it() {
        let damage = Damage::default();
        assert!(!met(&damage, 4096, 17).is_lasting(), "another process may repair it");
        damage.set_helpers(Helpers::Replicas);
        let error = met(&damage, 4096, 17);
        assert!(!error.is_lasting() && error.to_string().contains("is being fetched"), "{error}");
        assert_eq!(damage.take_suspects().into_iter().collect::<Vec<_>>(), [3]);
        damage.lose(3, Index(10)..Index(18), "all have it damaged");
        assert!(met(&damage, 4096, 17).is_lasting());
        assert!(!met(&damage, 9000, 18).is_lasting(), "another place");
        damage.hope(3, &(Index(10)..Index(18)));
        assert!(!met(&damage, 4096, 17).is_lasting());
        damage.lose(3, Index(10)..Index(18), "all have it damaged");
        damage.is_well(3);
        assert!(!met(&damage, 4096, 17).is_lasting());
    }
}
