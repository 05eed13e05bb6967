//! Untold: how many of a producer's records are not in the log for all that is known, and nobody was told: given with
//! nobody to tell, or to a delivery whose result nobody took, and no flush and no close has told of them since. Once nobody
//! can ask any more, they are told of in the process's own log, with their number.
//!
//! ```text
//! a batch fails ──> lost: nobody can ask ──────────────────────> the process's log, if no flush or close tells before
//!              `──> held: a delivery is there, and was not asked
//!                     |──> its result is taken: told
//!                     `──> its last twin is dropped ──> lost
//! ```
//!
//! Invariants:
//! - A record is in one of these counts at most once: `Held` moves it or takes it out, once.
//! - What a flush or a close told of is in no count, and nothing that becomes of its deliveries changes a count.
//! - The lock is the last one that a thread takes; nothing is logged under it.
//!
//! Must not know: how records are gathered and sent.

use chiplog::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by a producer's records that wait, and the outcomes of its batches that failed.
#[derive(Debug, Default)]
pub(crate) struct Untold(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Records that failed while the pump went on.
    failed: Count,
    /// Records that the pump left when it ended.
    left: Count,
    /// Flushes so far: what failed before one is told.
    flushes: u64,
    /// How many failed before the first close, and nobody was told. A close has told all of it.
    closed: Option<u64>,
    /// The last handle was dropped: nobody flushes or closes any more.
    dropped: bool,
    /// The pump is no more.
    gone: bool,
    /// Why records failed last.
    why: Option<Error>,
}

/// Records of which nobody was told.
#[derive(Debug, Default)]
struct Count {
    /// Of which nobody can ask.
    lost: u64,
    /// Of which a delivery can be asked.
    held: u64,
}

/// How records came to be untold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    Failed,
    Left,
}

/// The records of one batch that are counted as held.
#[derive(Debug)]
pub(crate) struct Held {
    untold: Arc<Untold>,
    cause: Cause,
    flushes: u64,
    records: u64,
}

impl State {
    fn count(&mut self, cause: Cause) -> &mut Count {
        match cause {
            Cause::Failed => &mut self.failed,
            Cause::Left => &mut self.left,
        }
    }
}

impl Untold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch failed: of `lost` records nobody can ask, of `held` a delivery can be asked.
    pub(crate) fn add(self: &Arc<Self>, cause: Cause, lost: u64, held: u64, why: &Error) -> Option<Held> {
        let mut state = self.state();
        let count = state.count(cause);
        count.lost += lost;
        count.held += held;
        let before = state.why.replace(why.clone());
        let flushes = state.flushes;
        drop(state);
        drop(before);
        (held > 0).then(|| Held { untold: self.clone(), cause, flushes, records: held })
    }

    /// Of so many records nobody was told so far.
    pub(crate) fn so_far(&self) -> u64 {
        let state = self.state();
        if state.closed.is_some() {
            return 0;
        }
        [&state.failed, &state.left].iter().map(|count| count.lost + count.held).sum()
    }

    /// A flush told of all that failed by now, and of why the pump ended.
    pub(crate) fn flushed(&self) {
        let mut state = self.state();
        (state.failed, state.left) = Default::default();
        state.flushes += 1;
    }

    /// A close tells of all. How many failed before it, and nobody was told; the same however often it is asked.
    pub(crate) fn closed(&self) -> u64 {
        let mut state = self.state();
        let failed = state.failed.lost + state.failed.held;
        *state.closed.get_or_insert(failed)
    }

    /// Nobody flushes or closes any more. Follow with [`log`](Self::log).
    pub(crate) fn dropped(&self) {
        self.state().dropped = true;
    }

    /// The pump is no more. Follow with [`log`](Self::log).
    pub(crate) fn gone(&self) {
        self.state().gone = true;
    }

    /// How many are to be told of in the process's log, once, and why they failed.
    fn take(&self) -> (u64, Option<Error>) {
        let mut state = self.state();
        if state.closed.is_some() || !state.dropped || !state.gone {
            return (0, None);
        }
        let lost = std::mem::take(&mut state.failed.lost) + std::mem::take(&mut state.left.lost);
        (lost, state.why.clone())
    }

    /// Tells in the process's own log of records that nobody is told of otherwise. No lock is held.
    pub(crate) fn log(&self) {
        let (records, why) = self.take();
        if records > 0 {
            let error = why.as_ref().map(tracing::field::display);
            tracing::error!(
                records,
                error,
                "a dropped producer left unacknowledged records whose failure was not reported; close producers to get the report"
            );
        }
    }
}

impl Held {
    /// The results of so many of them were taken.
    pub(crate) fn heard(&mut self, records: u64) -> Option<Arc<Untold>> {
        self.settle(records, 0)
    }

    /// Of so many of them the deliveries are dropped.
    pub(crate) fn lost(&mut self, records: u64) -> Option<Arc<Untold>> {
        self.settle(records, records)
    }

    /// Some: none of the batch is held any more; what was lost is to be logged, under no lock. Not before: a program can drop
    /// thousands of deliveries one after the other.
    fn settle(&mut self, records: u64, lost: u64) -> Option<Arc<Untold>> {
        self.records -= records;
        let mut state = self.untold.state();
        if state.flushes == self.flushes && state.closed.is_none() {
            let count = state.count(self.cause);
            count.held -= records;
            count.lost += lost;
        }
        drop(state);
        (self.records == 0 && records > 0).then(|| self.untold.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::Cause::{Failed, Left};
    use super::*;
    use chiplog::ErrorKind;

    fn add(untold: &Arc<Untold>, cause: Cause, lost: u64, held: u64) -> Option<Held> {
        untold.add(cause, lost, held, &Error::new(ErrorKind::Timeout, "planted"))
    }

    fn over(untold: &Untold) {
        untold.dropped();
        untold.gone();
    }

    #[test]
    fn what_nobody_asks_for_is_told_once_and_what_was_told_is_not() {
        let untold = Arc::<Untold>::default();
        add(&untold, Failed, 3, 0);
        untold.flushed();
        add(&untold, Failed, 2, 0);
        add(&untold, Left, 5, 0);
        untold.gone();
        assert_eq!((untold.so_far(), untold.take().0), (7, 0), "somebody can still ask");
        untold.dropped();
        assert_eq!((untold.take().0, untold.take().0), (7, 0));

        let flushed = Arc::<Untold>::default();
        add(&flushed, Left, 2, 0);
        flushed.flushed();
        over(&flushed);
        assert_eq!(flushed.take().0, 0);

        let closed = Arc::<Untold>::default();
        add(&closed, Failed, 4, 0);
        assert_eq!((closed.closed(), closed.closed(), closed.so_far()), (4, 4, 0));
        over(&closed);
        assert_eq!(closed.take().0, 0);
    }

    #[test]
    fn what_a_delivery_can_be_asked_for_counts_until_it_is_asked() {
        let untold = Arc::<Untold>::default();
        let mut held = add(&untold, Failed, 1, 4).unwrap();
        let mut left = add(&untold, Left, 0, 2).unwrap();
        assert_eq!(untold.so_far(), 7);
        assert!(held.heard(1).is_none() && held.lost(2).is_none());
        assert_eq!(untold.so_far(), 6);
        over(&untold);
        assert_eq!(untold.take().0, 3, "it was lost; of the others somebody can still ask");
        assert!(held.heard(1).is_some() && left.lost(2).is_some(), "none of the batch is held");
        assert_eq!((untold.take().0, untold.take().0, untold.so_far()), (2, 0, 0));
    }

    #[test]
    fn what_a_flush_or_a_close_told_of_is_counted_no_more() {
        let untold = Arc::<Untold>::default();
        let mut told = add(&untold, Failed, 0, 3).unwrap();
        untold.flushed();
        let mut later = add(&untold, Failed, 0, 2).unwrap();
        told.lost(1);
        told.heard(2);
        assert_eq!(untold.so_far(), 2);
        assert_eq!(untold.closed(), 2);
        later.heard(1);
        later.lost(1);
        over(&untold);
        assert_eq!(
            (untold.closed(), untold.so_far(), untold.take().0),
            (2, 0, 0),
            "each close tells the same"
        );
    }
}
