//! Errors of single objects: an object that cannot be read, while the object store works, counts as damaged once that has lasted.
//!
//! A store that notices damage itself returns no wrong bytes: it answers that it cannot, for ever. A store that is overloaded or broken
//! for a while answers the same. Only time tells them apart. One that has lasted for [`LASTS`] without an answer about this object, and
//! without a failure of the store itself, is damage: the object is put again, or shown. How long it has to last doubles with each such
//! put, so that an object that cannot be read whatever is put costs one put an hour at most.
//!
//! Invariants:
//! - no error that is shorter than [`LASTS`] has an object put again;
//! - an object that is not stored yet is put over one that cannot be read only by a replica that knows that the log has put that.
//!
//! Must not know: who leads, what is done about it.

use crate::sync::clock::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long an object's own error has to last, at first and at most.
const LASTS: Duration = Duration::from_secs(300);
const LASTS_MAX: Duration = Duration::from_secs(3600);

/// The objects that could not be read.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    met: BTreeMap<u64, Met>,
    /// The last object that this log is known to have put.
    own: Option<u64>,
    /// Those that are not stored yet, cannot be read, and are not known to be this log's.
    shown: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Met {
    /// The object's own error has lasted since then. None: since then there was an answer, or the object was put.
    since: Option<Moment>,
    lasts: Duration,
}

impl Unreadable {
    /// An object's own error was met.
    pub(super) fn meet(&mut self, number: u64, now: Moment) {
        let met = self.met.entry(number).or_insert(Met { since: None, lasts: LASTS });
        met.since.get_or_insert(now);
    }

    /// Whether it has lasted. `at_most`: no longer than this.
    pub(super) fn has_lasted(&self, number: u64, at_most: Duration, now: Moment) -> bool {
        let met = self.met.get(&number);
        let since = met.and_then(|met| Some((met.since?, met.lasts.min(at_most))));
        since.is_some_and(|(since, lasts)| now >= since.plus(lasts)) && !planted!(142)
    }

    /// The store itself failed, or answered something else: what was met before says nothing any more.
    pub(super) fn interrupt(&mut self, number: u64) {
        self.met.entry(number).and_modify(|met| met.since = None);
    }

    /// The log has put this object, which is not stored yet.
    pub(super) fn has_put(&mut self, number: u64) {
        self.own = Some(number);
        self.shown.remove(&number);
        self.met.entry(number).and_modify(|met| {
            *met = Met { since: None, lasts: (met.lasts * 2).min(LASTS_MAX) };
        });
    }

    /// The log is known to have put this object.
    pub(super) fn is_own(&self, number: u64) -> bool {
        self.own == Some(number)
    }

    /// The object was read.
    pub(super) fn is_sound(&mut self, number: u64) {
        self.met.remove(&number);
        self.shown.remove(&number);
    }

    /// Shows an object that cannot be stored. Whether it was not shown before.
    pub(super) fn show(&mut self, number: u64) -> bool {
        self.shown.insert(number)
    }

    pub(super) fn shown(&self) -> usize {
        self.shown.len()
    }

    /// Forgets objects below `oldest`, whose records are discarded, and shows none that is stored: those are below `next`.
    pub(super) fn prune(&mut self, oldest: u64, next: u64) {
        self.met.retain(|number, _| *number >= oldest);
        self.shown.retain(|number| *number >= next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(24 * 3600);

    fn at(seconds: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(seconds))
    }

    /// An error that passes, or that the store has itself meanwhile, is no damage. One that lasts is.
    #[test]
    fn error_has_to_last() {
        let mut met = Unreadable::default();
        assert!(!met.has_lasted(3, LONG, at(1000)));
        met.meet(3, at(0));
        met.meet(3, at(200));
        assert!(!met.has_lasted(3, LONG, at(299)) && !met.has_lasted(4, LONG, at(900)));
        assert!(met.has_lasted(3, LONG, at(300)) && met.has_lasted(3, Duration::from_secs(9), at(9)));
        met.interrupt(3);
        assert!(!met.has_lasted(3, LONG, at(900)));
        met.meet(3, at(900));
        assert!(!met.has_lasted(3, LONG, at(1199)) && met.has_lasted(3, LONG, at(1200)));
        met.is_sound(3);
        assert!(!met.has_lasted(3, LONG, at(9000)));
    }

    /// An object that cannot be read whatever is put is put once an hour at most.
    #[test]
    fn puts_become_rare() {
        let mut met = Unreadable::default();
        let mut puts = Vec::new();
        for second in 0..24 * 3600 {
            met.meet(3, at(second));
            if met.has_lasted(3, LONG, at(second)) {
                met.has_put(3);
                puts.push(second);
            }
        }
        assert!(puts[0] >= 300 && puts.len() <= 28, "{puts:?}");
        assert!(met.is_own(3) && !met.is_own(4));
    }
}
