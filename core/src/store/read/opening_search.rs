//! Opening search: finds the segment that contains a record of one log of a shared group, by the openings of segments, some of which
//! cannot be read.
//!
//! ```text
//! the log has passed the record:   no | no |  ?  | yes | yes
//!                                       A     B
//! ```
//!
//! The record is in A or in B. Whether it is in A, A itself says. If it is not, the error of B is the answer.
//!
//! Invariants:
//! - a segment that cannot be read hides no record of another one;
//! - it is never passed over silently: its error is part of the answer if the record can be in it.
//!
//! Must not know: segments, logs.

use crate::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// With more damaged or lost segments than this among those that can have the record, only later ones are looked at: at the left end of
/// the list of a copy, or of a replica that lags, hundreds can have been deleted.
const DAMAGED_MAX: usize = 8;

/// How many segments may fail for another reason in one search. If the object store is down, all do, each after its time limit.
const FAILED_MAX: usize = 2;

/// Where a record is.
#[derive(Debug)]
pub(crate) struct Found {
    /// The last segment that can be read and that begins before the record. `None`: there is none.
    pub(crate) at: Option<usize>,
    /// The first segment that can be read and that begins behind the record, or the number of segments.
    pub(crate) upto: usize,
    /// Segments behind that one cannot be read, for this reason. If the record is not in that one, it is in one of these.
    pub(crate) unreadable: Option<Error>,
}

/// Finds the last of `count` segments that begins before a record. `begins_before` says whether one does, and fails if its opening cannot be
/// read.
///
/// # Errors
/// Those of `begins_before`, if more segments fail than can be left out.
pub(crate) fn last_before(
    count: usize,
    mut begins_before: impl FnMut(usize) -> Result<bool>,
) -> Result<Found> {
    let mut range = Range { low: 0, high: count, left_out: BTreeMap::new() };
    let mut failed = 0;
    // Most readers are in the newest segment.
    let mut next = count.checked_sub(1);
    while let Some(at) = next {
        match begins_before(at) {
            Ok(true) => range.begin_behind(at),
            Ok(false) => range.end_before(at),
            Err(error) if planted!(166) => return Err(error),
            Err(error) => {
                if error.kind() != ErrorKind::Corrupt {
                    failed += 1;
                    if failed > FAILED_MAX {
                        return Err(error);
                    }
                }
                range.left_out.insert(at, error);
            }
        }
        next = range.next();
    }
    let unreadable = if planted!(165) { None } else { all_of(&range.left_out) };
    Ok(Found { at: range.low.checked_sub(1), upto: range.high, unreadable })
}

/// The rest of a search. All segments before `low` begin before the record, those from `high` on do not.
struct Range {
    low: usize,
    high: usize,
    /// Those between `low` and `high` that cannot be read.
    left_out: BTreeMap<usize, Error>,
}

impl Range {
    fn begin_behind(&mut self, at: usize) {
        self.low = at + 1;
        self.left_out = self.left_out.split_off(&self.low);
    }

    fn end_before(&mut self, at: usize) {
        self.high = at;
        self.left_out.split_off(&at);
    }

    /// The segment to look at next. `None`: none that is left can say more.
    ///
    /// First those behind all that cannot be read: if these were deleted, so were all before them. Then the first ones.
    fn next(&self) -> Option<usize> {
        let middle = |low: usize, high: usize| (low < high).then(|| low.midpoint(high));
        let behind = self.left_out.last_key_value().map_or(self.low, |(last, _)| last + 1);
        if let Some(next) = middle(behind, self.high) {
            return Some(next);
        }
        if self.left_out.len() > DAMAGED_MAX {
            return None;
        }
        let mut low = self.low;
        self.left_out.keys().find_map(|at| {
            let next = middle(low, *at);
            low = at + 1;
            next
        })
    }
}

/// The error of all of these.
fn all_of(left_out: &BTreeMap<usize, Error>) -> Option<Error> {
    let mut errors = left_out.values();
    let (first, more) = (errors.next()?, errors.map(|error| format!("; {error}")).collect::<String>());
    match more.is_empty() {
        true => Some(first.clone()),
        false => Some(
            first.with_message(format!("the record is in one of several files or objects: {first}{more}")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable(at: usize, kind: ErrorKind) -> Error {
        Error::new(kind, format!("object {at} is gone"))
    }

    /// The left end of the list was deleted: later records are found, and the search for an earlier one ends soon.
    #[test]
    fn deleted_segments_cost_few_looks() {
        for (deleted, holder) in [(600, 601), (600, 600), (600, 999), (1, 1), (999, 999)] {
            let mut looks = 0;
            let found = last_before(1000, |at| {
                looks += 1;
                if at < deleted { Err(unreadable(at, ErrorKind::Corrupt)) } else { Ok(at <= holder) }
            });
            let found = found.unwrap();
            assert_eq!(found.at, Some(holder), "{deleted} {holder}");
            assert!(found.unreadable.is_none() && looks <= 12, "{deleted} {holder}: {looks} looks");
        }
        let mut looks = 0;
        let found = last_before(1000, |at| {
            looks += 1;
            if at < 600 { Err(unreadable(at, ErrorKind::Corrupt)) } else { Ok(false) }
        });
        let found = found.unwrap();
        assert!(found.at.is_none() && found.unreadable.is_some() && looks <= 30, "{looks} looks");
    }

    /// If all fail because the store is down, few are tried.
    #[test]
    fn search_ends_soon_while_the_store_is_down() {
        let mut looks = 0;
        let failed = last_before(1000, |at| {
            looks += 1;
            Err(unreadable(at, ErrorKind::Unavailable))
        });
        assert_eq!((failed.unwrap_err().kind(), looks), (ErrorKind::Unavailable, FAILED_MAX + 1));
    }

    /// A run of lost ones in the middle hides no record on either side.
    #[test]
    fn run_of_lost_segments_hides_no_other() {
        let lost = 45..52;
        for holder in 0..100 {
            let found = last_before(100, |at| match lost.contains(&at) {
                true => Err(unreadable(at, ErrorKind::Corrupt)),
                false => Ok(at <= holder),
            });
            let Found { at, upto, unreadable } = found.unwrap();
            assert_eq!(upto, if (44..52).contains(&holder) { 52 } else { holder + 1 });
            match (44..52).contains(&holder) {
                true => assert!(at == Some(44) && unreadable.is_some(), "{holder}: {at:?}"),
                false => assert!(at == Some(holder) && unreadable.is_none(), "{holder}: {at:?}"),
            }
        }
    }
}
