//! Awaited logs: which records of named logs were proposed, and wait until the object store alone has them.
//!
//! Invariants:
//! - a record of a log is passed on only with its entry, after all entries before it, and in the term in which this leader proposed it;
//! - it is bounded: beyond that the oldest entries are forgotten, and their records are never said to be in the object store.
//!
//! Must not know: the network, which object store it is.

use crate::types::{EntryIndex, Index, LogNumber, Term};
use std::collections::VecDeque;

/// The most records that are remembered, each the last one of a log in an entry: more wait only if no slice of entries can be stored for
/// long.
const ENDS_MAX: usize = 1 << 18;

/// The last record of each log in an entry.
type Ends = Vec<(LogNumber, Index)>;

/// Entries with records of named logs, ascending.
#[derive(Debug, Default)]
pub(super) struct AwaitedLogs {
    entries: VecDeque<(EntryIndex, Term, Ends)>,
    /// How many records they have.
    count: usize,
}

impl AwaitedLogs {
    /// An entry was proposed.
    pub(super) fn push(&mut self, entry: EntryIndex, term: Term, ends: Ends) {
        self.count += ends.len();
        self.entries.push_back((entry, term, ends));
        while self.count > ENDS_MAX {
            let Some((.., ends)) = self.entries.pop_front() else { break };
            self.count -= ends.len();
        }
    }

    /// The next entry of the leader's term up to this one, which the object store has. It is forgotten.
    pub(super) fn next_stored(&mut self, upto: EntryIndex, now: Term) -> Option<Ends> {
        let is_stored = |(entry, ..): &mut (EntryIndex, Term, Ends)| *entry <= upto || planted!(159);
        while let Some((_, term, ends)) = self.entries.pop_front_if(is_stored) {
            self.count -= ends.len();
            if term == now {
                return Some(ends);
            }
        }
        None
    }

    /// This replica does not lead any more, or the class is off.
    pub(super) fn clear(&mut self) {
        (self.entries, self.count) = (VecDeque::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_passed_on_in_order_and_their_number_is_bounded() {
        let mut awaited = AwaitedLogs::default();
        let all = ENDS_MAX as u64 + 10;
        let (of_log, now) = (|n| vec![(LogNumber(1), Index(n))], Term(4));
        (1..=all).for_each(|n| awaited.push(EntryIndex(n), if n == 12 { Term(3) } else { now }, of_log(n)));
        assert_eq!(awaited.next_stored(EntryIndex(10), now), None, "the oldest ones are forgotten");
        assert_eq!(awaited.next_stored(EntryIndex(13), now), Some(of_log(11)));
        assert_eq!(awaited.next_stored(EntryIndex(13), now), Some(of_log(13)), "it was led in another term");
        assert_eq!(awaited.next_stored(EntryIndex(13), now), None);
        awaited.clear();
        assert_eq!((awaited.next_stored(EntryIndex(all), now), awaited.count), (None, 0));
    }
}
