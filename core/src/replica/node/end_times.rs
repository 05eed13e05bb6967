//! End times: the time of a copy's last record, at its last two ends. A feed of the copy looks up the time that belongs to the end that
//! it has seen, while the copy may go on.
//!
//! Invariant: an end is noted before it is published. So whatever end a feed sees, its time is here, or a later end is published.
//!
//! Must not know: who looks.

use crate::types::{Index, Timestamp};
use std::sync::{Mutex, PoisonError};

/// The last two ends, newest last: the next record, and the time of the one before it.
#[derive(Debug, Default)]
pub(crate) struct EndTimes(Mutex<[(Index, Timestamp); 2]>);

impl EndTimes {
    /// Notes the time of the last record before `next`.
    pub(crate) fn note(&self, next: Index, time: Timestamp) {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ends[1].0 != next {
            ends[0] = ends[1];
        }
        ends[1] = (next, time);
    }

    /// The time of the last record before `next`. `None`: the copy has gone on.
    pub(crate) fn of(&self, next: Index) -> Option<Timestamp> {
        let ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.iter().find(|(end, _)| *end == next).map(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy wrote a record, and published it after a feed had seen its end and before the feed asked for the time: the feed then
    /// began with the time of a later record, and a copy of it refused the records before that as of another history.
    #[test]
    fn end_that_is_not_the_newest_keeps_its_time() {
        let times = EndTimes::default();
        times.note(Index(5), Timestamp(50));
        times.note(Index(9), Timestamp(90));
        assert_eq!([5, 9].map(|next| times.of(Index(next))), [Some(Timestamp(50)), Some(Timestamp(90))]);
        times.note(Index(9), Timestamp(91));
        assert_eq!(times.of(Index(9)), Some(Timestamp(91)));
        assert_eq!(times.of(Index(5)), Some(Timestamp(50)), "the end is the same");
        times.note(Index(10), Timestamp(100));
        assert_eq!(times.of(Index(5)), None);
    }
}
