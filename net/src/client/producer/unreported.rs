//! Unreported failures: counts a producer's records that failed without a report. They had no callback, or a delivery
//! whose result was not taken, and no flush or close followed. Once no call can report them any more, their number goes
//! to the process's own log.
//!
//! ```text
//! a batch fails ──> lost: no delivery can report it ───────────> the process's log, unless a flush or close reports it first
//!              `──> held: a delivery exists, and its result was not taken
//!                     |──> its result is taken: reported
//!                     `──> its last clone is dropped ──> lost
//! ```
//!
//! Invariants:
//! - A record is in at most one of these counts, once: `Held` moves it or removes it, once.
//! - Records that a flush or a close reported are in no count. Their deliveries change no count any more.
//! - This lock is the last one that a thread takes; nothing is logged while it is held.
//!
//! Must not know: how records are collected and sent.

use chiplog::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by a producer's waiting records and the outcomes of its failed batches.
#[derive(Debug, Default)]
pub(crate) struct Unreported(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Records that failed while the sender task continued.
    failed: Count,
    /// Records that the sender task left when it ended.
    left: Count,
    /// Flushes so far: a flush reports all earlier failures.
    flushes: u64,
    /// How many failed before the first close without a report. A close reports all of them.
    closed: Option<u64>,
    /// The last handle was dropped: no flush or close can follow.
    dropped: bool,
    /// The sender task has ended.
    gone: bool,
    /// The last reason of a failure.
    why: Option<Error>,
}

/// Records whose failure was not reported.
#[derive(Debug, Default)]
struct Count {
    /// Records without a delivery.
    lost: u64,
    /// Records with a delivery that can still report.
    held: u64,
}

/// How records became unreported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    Failed,
    Left,
}

/// The records of one batch that are counted as held.
#[derive(Debug)]
pub(crate) struct Held {
    unreported: Arc<Unreported>,
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

impl Unreported {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failed batch: `lost` records have no delivery, `held` records have one.
    pub(crate) fn add(self: &Arc<Self>, cause: Cause, lost: u64, held: u64, why: &Error) -> Option<Held> {
        let mut state = self.state();
        let count = state.count(cause);
        count.lost += lost;
        count.held += held;
        let before = state.why.replace(why.clone());
        let flushes = state.flushes;
        drop(state);
        drop(before);
        (held > 0).then(|| Held { unreported: self.clone(), cause, flushes, records: held })
    }

    /// The number of unreported records so far.
    pub(crate) fn so_far(&self) -> u64 {
        let state = self.state();
        if state.closed.is_some() {
            return 0;
        }
        [&state.failed, &state.left].iter().map(|count| count.lost + count.held).sum()
    }

    /// A flush reported all failures until now, and the reason of the sender task's end.
    pub(crate) fn flushed(&self) {
        let mut state = self.state();
        (state.failed, state.left) = Default::default();
        state.flushes += 1;
    }

    /// A close reports everything. Returns how many records failed before it without a report: the same number at each
    /// call.
    pub(crate) fn closed(&self) -> u64 {
        let mut state = self.state();
        let failed = state.failed.lost + state.failed.held;
        *state.closed.get_or_insert(failed)
    }

    /// No flush or close can follow. Call [`log`](Self::log) next.
    pub(crate) fn dropped(&self) {
        self.state().dropped = true;
    }

    /// The sender task has ended. Call [`log`](Self::log) next.
    pub(crate) fn gone(&self) {
        self.state().gone = true;
    }

    /// Takes the number of records to log, once, and the reason of their failure.
    fn take(&self) -> (u64, Option<Error>) {
        let mut state = self.state();
        if state.closed.is_some() || !state.dropped || !state.gone {
            return (0, None);
        }
        let lost = std::mem::take(&mut state.failed.lost) + std::mem::take(&mut state.left.lost);
        (lost, state.why.clone())
    }

    /// Logs the records that nothing else can report. Called without a lock.
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
    /// The results of this number of records were taken.
    pub(crate) fn reported(&mut self, records: u64) -> Option<Arc<Unreported>> {
        self.settle(records, 0)
    }

    /// The deliveries of this number of records were dropped.
    pub(crate) fn lost(&mut self, records: u64) -> Option<Arc<Unreported>> {
        self.settle(records, records)
    }

    /// Some: none of the batch is held any more, and its lost records must be logged, without a lock. Not before: a
    /// program can drop thousands of deliveries one after the other.
    fn settle(&mut self, records: u64, lost: u64) -> Option<Arc<Unreported>> {
        self.records -= records;
        let mut state = self.unreported.state();
        if state.flushes == self.flushes && state.closed.is_none() {
            let count = state.count(self.cause);
            count.held -= records;
            count.lost += lost;
        }
        drop(state);
        (self.records == 0 && records > 0).then(|| self.unreported.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::Cause::{Failed, Left};
    use super::*;
    use chiplog::ErrorKind;

    fn add(unreported: &Arc<Unreported>, cause: Cause, lost: u64, held: u64) -> Option<Held> {
        unreported.add(cause, lost, held, &Error::new(ErrorKind::Timeout, "planted"))
    }

    fn over(unreported: &Unreported) {
        unreported.dropped();
        unreported.gone();
    }

    #[test]
    fn unreported_records_are_logged_once_and_reported_ones_never() {
        let unreported = Arc::<Unreported>::default();
        add(&unreported, Failed, 3, 0);
        unreported.flushed();
        add(&unreported, Failed, 2, 0);
        add(&unreported, Left, 5, 0);
        unreported.gone();
        assert_eq!((unreported.so_far(), unreported.take().0), (7, 0), "a delivery can still report");
        unreported.dropped();
        assert_eq!((unreported.take().0, unreported.take().0), (7, 0));

        let flushed = Arc::<Unreported>::default();
        add(&flushed, Left, 2, 0);
        flushed.flushed();
        over(&flushed);
        assert_eq!(flushed.take().0, 0);

        let closed = Arc::<Unreported>::default();
        add(&closed, Failed, 4, 0);
        assert_eq!((closed.closed(), closed.closed(), closed.so_far()), (4, 4, 0));
        over(&closed);
        assert_eq!(closed.take().0, 0);
    }

    #[test]
    fn held_records_count_until_their_result_is_taken() {
        let unreported = Arc::<Unreported>::default();
        let mut held = add(&unreported, Failed, 1, 4).unwrap();
        let mut left = add(&unreported, Left, 0, 2).unwrap();
        assert_eq!(unreported.so_far(), 7);
        assert!(held.reported(1).is_none() && held.lost(2).is_none());
        assert_eq!(unreported.so_far(), 6);
        over(&unreported);
        assert_eq!(unreported.take().0, 3, "it was lost; deliveries can still report the others");
        assert!(held.reported(1).is_some() && left.lost(2).is_some(), "none of the batch is held");
        assert_eq!((unreported.take().0, unreported.take().0, unreported.so_far()), (2, 0, 0));
    }

    #[test]
    fn records_reported_by_flush_or_close_leave_the_counts() {
        let unreported = Arc::<Unreported>::default();
        let mut first = add(&unreported, Failed, 0, 3).unwrap();
        unreported.flushed();
        let mut later = add(&unreported, Failed, 0, 2).unwrap();
        first.lost(1);
        first.reported(2);
        assert_eq!(unreported.so_far(), 2);
        assert_eq!(unreported.closed(), 2);
        later.reported(1);
        later.lost(1);
        over(&unreported);
        assert_eq!(
            (unreported.closed(), unreported.so_far(), unreported.take().0),
            (2, 0, 0),
            "each close reports the same"
        );
    }
}
