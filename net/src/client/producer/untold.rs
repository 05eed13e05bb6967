//! Untold: how many of a producer's records are not in the log for all that is known, and nobody was told: given with
//! nobody to tell, or to a delivery that was dropped, and no flush and no close has told of them since. Once nobody can
//! ask any more, they are told of in the process's own log, with their number.
//!
//! Must not know: how records are gathered and sent.

use chiplog::Error;

#[derive(Debug, Default)]
pub(crate) struct Untold {
    /// Records that failed while the pump went on.
    failed: u64,
    /// Records that the pump left when it ended.
    left: u64,
    /// A close has told all of it.
    closed: bool,
    /// The last handle was dropped: nobody flushes or closes any more.
    dropped: bool,
}

impl Untold {
    pub(crate) fn failed(&mut self, records: u64) {
        self.failed += records;
    }

    pub(crate) fn left(&mut self, records: u64) {
        self.left += records;
    }

    /// Of so many records nobody was told so far.
    pub(crate) fn so_far(&self) -> u64 {
        if self.closed { 0 } else { self.failed + self.left }
    }

    /// A flush told of all that failed by now, and of why the pump ended.
    pub(crate) fn flushed(&mut self) {
        (self.failed, self.left) = (0, 0);
    }

    /// A close tells of all. How many failed before it, and nobody was told; the same however often it is asked.
    pub(crate) fn closed(&mut self) -> u64 {
        self.closed = true;
        self.failed
    }

    pub(crate) fn dropped(&mut self) {
        self.dropped = true;
    }

    /// How many are to be told of in the process's log, once; of a producer whose pump is gone.
    pub(crate) fn take(&mut self) -> u64 {
        if self.closed || !self.dropped {
            return 0;
        }
        std::mem::take(&mut self.failed) + std::mem::take(&mut self.left)
    }
}

/// Tells of so many records in the process's own log; of none nothing.
pub(crate) fn log(records: u64, why: Option<&Error>) {
    if records > 0 {
        let why = why.map(tracing::field::display);
        tracing::error!(
            records,
            error = why,
            "records of a producer that was dropped were not acknowledged, and nobody was told: close producers, which tells"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_is_told_once_and_what_was_told_is_not() {
        let mut untold = Untold::default();
        untold.failed(3);
        untold.flushed();
        untold.failed(2);
        untold.left(5);
        assert_eq!((untold.so_far(), untold.take()), (7, 0), "somebody can still ask");
        untold.dropped();
        assert_eq!((untold.take(), untold.take()), (7, 0));

        let mut flushed = Untold::default();
        flushed.left(2);
        flushed.flushed();
        flushed.dropped();
        assert_eq!(flushed.take(), 0);

        let mut closed = Untold::default();
        closed.failed(4);
        assert_eq!((closed.closed(), closed.closed(), closed.so_far()), (4, 4, 0));
        closed.dropped();
        assert_eq!(closed.take(), 0);
    }
}
