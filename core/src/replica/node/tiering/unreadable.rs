//! Errors of single objects: an object that cannot be read, while the object store works, counts as damaged once that has lasted.
//!
//! A store that notices damage itself returns no wrong bytes: it answers that it cannot, for ever. A store that is overloaded or broken
//! for a while answers the same. Only time tells them apart. One that has lasted for [`LASTS`] without an answer about this object, and
//! without a failure of the store itself, is damage: the object is put again, or shown. How long it has to last doubles with each such
//! put, so that an object that cannot be read whatever is put costs one put an hour at most.
//!
//! ```text
//!   look fails ── look fails ── look fails ── look fails: damage
//!      |<─── no two further apart than `apart` ───>|
//!      |<──────────── at least `lasts` ───────────>|      sound, the store fails, a reader fetches a part of it: from the begin
//! ```
//!
//! Looks can come late: another object is read, or storing goes first. Where they were further apart, they say nothing together; the
//! next ones may be twice as far apart, up to an hour, so that a slow scrub has an end, too. Readers that fetch other parts of an object
//! than the one that is lost do the same for ever: so they count a few times only.
//!
//! Invariants:
//! - no error that is shorter than [`LASTS`], or was met in fewer than [`LOOKS`] looks in a row, has an object put again;
//! - an object that is not stored yet is put over one that cannot be read only by a replica that knows that the log has put that, or has
//!   tried to;
//! - every object that cannot be read, and is looked at again and again, counts as damaged at some time.
//!
//! Must not know: who leads, what is done about it.

use crate::sync::clock::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long an object's own error has to last, at first and at most.
const LASTS: Duration = Duration::from_secs(300);
const LASTS_MAX: Duration = Duration::from_secs(3600);
/// In how many looks it has to be met, at least.
const LOOKS: u32 = 3;
/// How far apart two of them can be, at first and at most.
const APART: Duration = LASTS;
const APART_MAX: Duration = LASTS_MAX;
/// When an object that could not be read is looked at again, so that there are enough looks.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(150);
/// How often readers begin that time again.
const READS_MAX: u32 = 8;

/// The objects that could not be read.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    met: BTreeMap<u64, Met>,
    /// The last object that this log is known to have put, or to have tried to.
    own: Option<u64>,
    /// The last object that this log has put, with an answer that says so.
    put: Option<u64>,
    /// Those that are not stored yet, cannot be read, and are not known to be this log's.
    shown: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Met {
    /// The looks that have failed in a row. None: since then there was an answer, or the object was put.
    row: Option<Row>,
    lasts: Duration,
    apart: Duration,
    /// How often a reader has begun that again.
    reads: u32,
}

/// Looks in a row that have failed.
#[derive(Clone, Copy, Debug)]
struct Row {
    since: Moment,
    last: Moment,
    looks: u32,
}

impl Met {
    const NEW: Self = Self { row: None, lasts: LASTS, apart: APART, reads: 0 };

    fn meet(&mut self, now: Moment) {
        let row = self.row.filter(|row| now <= row.last.plus(self.apart));
        if row.is_none() && self.row.is_some() {
            self.apart = (self.apart * 2).min(APART_MAX);
        }
        let row = row.unwrap_or(Row { since: now, last: now, looks: 0 });
        self.row = Some(Row { last: now, looks: row.looks + 1, ..row });
    }

    fn has_lasted(&self, at_most: Duration, now: Moment) -> bool {
        let lasts = self.lasts.min(at_most);
        let is_long =
            |row: Row| row.looks >= LOOKS && now <= row.last.plus(self.apart) && now >= row.since.plus(lasts);
        self.row.is_some_and(is_long)
    }
}

impl Unreadable {
    /// An object's own error was met.
    pub(super) fn meet(&mut self, number: u64, now: Moment) {
        self.met.entry(number).or_insert(Met::NEW).meet(now);
    }

    /// Whether it has lasted. `at_most`: no longer than this.
    pub(super) fn has_lasted(&self, number: u64, at_most: Duration, now: Moment) -> bool {
        self.met.get(&number).is_some_and(|met| met.has_lasted(at_most, now)) && !planted!(142)
    }

    /// The store itself failed, or answered something else: what was met before says nothing any more.
    pub(super) fn interrupt(&mut self, number: u64) {
        self.met.entry(number).and_modify(|met| met.row = None);
    }

    /// A reader has fetched a part of the object: so that was an answer, too.
    pub(super) fn was_fetched(&mut self, number: u64) {
        if let Some(met) = self.met.get_mut(&number).filter(|met| met.row.is_some() && met.reads < READS_MAX)
        {
            (met.row, met.reads) = (None, met.reads + 1);
        }
    }

    /// Whether no object is known that could not be read.
    pub(super) fn is_empty(&self) -> bool {
        self.met.is_empty()
    }

    /// The objects whose errors have begun to last.
    pub(super) fn lasting(&self) -> BTreeSet<u64> {
        self.met.iter().filter(|(_, met)| met.row.is_some()).map(|(number, _)| *number).collect()
    }

    /// The log has put this object, which is not stored yet.
    pub(super) fn has_put(&mut self, number: u64) {
        self.put = Some(number);
        self.has_tried(number);
    }

    /// The log has put this object, which is not stored yet, or has tried to.
    pub(super) fn has_tried(&mut self, number: u64) {
        self.own = Some(number);
        self.shown.remove(&number);
        self.met.entry(number).and_modify(|met| {
            *met = Met { lasts: (met.lasts * 2).min(LASTS_MAX), apart: met.apart, ..Met::NEW };
        });
    }

    /// The log is known to have put this object, or to have tried to.
    pub(super) fn is_own(&self, number: u64) -> bool {
        self.own == Some(number)
    }

    /// The log has put this object, and not only tried to.
    pub(super) fn is_put(&self, number: u64) -> bool {
        self.put == Some(number)
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
        met.meet(3, at(100));
        assert!(!met.has_lasted(3, Duration::from_secs(9), at(100)), "two looks are not enough");
        met.meet(3, at(200));
        assert!(!met.has_lasted(3, LONG, at(299)) && !met.has_lasted(4, LONG, at(900)));
        assert!(met.has_lasted(3, LONG, at(300)) && met.has_lasted(3, Duration::from_secs(9), at(209)));
        met.interrupt(3);
        assert!(!met.has_lasted(3, LONG, at(900)));
        [900, 1000, 1100].into_iter().for_each(|second| met.meet(3, at(second)));
        assert!(!met.has_lasted(3, LONG, at(1199)) && met.has_lasted(3, LONG, at(1200)));
        met.is_sound(3);
        assert!(!met.has_lasted(3, LONG, at(9000)));
    }

    /// Two looks far apart say nothing of the time between them. Looks that are always late say something all the same, later.
    #[test]
    fn looks_that_are_far_apart_are_no_row() {
        let mut met = Unreadable::default();
        met.meet(3, at(0));
        met.meet(3, at(600));
        assert!(!met.has_lasted(3, LONG, at(600)));
        met.meet(3, at(700));
        met.meet(3, at(800));
        assert!(!met.has_lasted(3, LONG, at(899)) && met.has_lasted(3, LONG, at(900)));
        assert!(!met.has_lasted(3, LONG, at(800 + 601)), "that was long ago");
        for every in [400, 1_000, 3_000] {
            let looks = (1..20).map(|n| n * every);
            let mut met = Unreadable::default();
            let lasted = looks.filter(|second| {
                met.meet(3, at(*second));
                met.has_lasted(3, LONG, at(*second))
            });
            assert!(lasted.count() > 10, "{every}");
        }
    }

    /// A part of an object that a reader has fetched is an answer. Readers of other parts than the lost one do not hide it for ever.
    #[test]
    fn readers_interrupt() {
        let mut met = Unreadable::default();
        [0, 150, 300].into_iter().for_each(|second| met.meet(3, at(second)));
        assert!(met.has_lasted(3, LONG, at(300)) && met.lasting() == BTreeSet::from([3]));
        met.was_fetched(3);
        met.was_fetched(4);
        assert!(!met.has_lasted(3, LONG, at(300)) && met.lasting().is_empty());
        let lasted = (3..100).any(|n| {
            met.meet(3, at(n * 150));
            if n % 2 == 0 {
                met.was_fetched(3);
            }
            met.has_lasted(3, LONG, at(n * 150))
        });
        assert!(lasted);
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
