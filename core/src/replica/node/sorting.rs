//! Sorting: the full segments of a shared group are copied in the order of their logs, one at a time, the newest first, by the helper
//! thread.
//!
//! Invariant: only a segment whose blocks are all committed is copied.
//!
//! Must not know: what a copy looks like.

use super::Node;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::queue::inbox::InboxEvent;
use crate::store::Store;
use crate::store::allocator::Allocator;
use crate::store::read::run_directory::RunDirectories;
use crate::store::read::sorted_copies::SortedCopies;
use crate::store::read::sorter::{Begun, Sorter, Step};
use crate::sync::clock::Moment;
use crate::types::LogId;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long no copy is made after a failure, or if the disk has too little space for one.
pub(super) const PAUSE: Duration = Duration::from_secs(60);
/// After each copy the helper thread rests, this many times as long as that took: appends need the disk and the processors, and
/// what they leave is enough for the copies in the long run.
pub(super) const REST: u32 = 9;

/// The sorting of a log's segments.
pub(super) struct Sorting {
    runs: Arc<RunDirectories>,
    is_wanted: bool,
    log: LogId,
    /// The result of the copy that was being made.
    done: Arc<Mutex<Option<Sorted>>>,
    is_busy: bool,
    /// Nothing is done before.
    again: Moment,
    /// Segments that are damaged, or of which no copy is made.
    skipped: BTreeSet<u64>,
    /// When the last copy was begun.
    began: Moment,
    /// When there was nothing to do.
    looked: Option<State>,
}

/// As long as this does not change, no further segment can be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    newest: Option<u64>,
    /// How far the newest full segment is committed.
    committed: usize,
    /// How many copies were removed.
    removals: u64,
}

/// The result of a copy.
struct Sorted {
    number: u64,
    outcome: Result<Outcome>,
}

/// The result of a step that did not fail.
enum Outcome {
    Made,
    NotThis,
    NoRoom,
}

/// A copy that waits for its next step.
enum Work {
    Begin(Box<dyn FnOnce() -> Result<Begun> + Send>),
    GoOn(Box<Sorter>),
}

impl Work {
    /// Makes a step.
    fn step(self) -> Result<std::result::Result<Self, Outcome>> {
        match self {
            Self::Begin(begin) => Ok(match begin()? {
                Begun::Sorter(sorter) => Ok(Self::GoOn(sorter)),
                Begun::NotThis => Err(Outcome::NotThis),
                Begun::NoRoom => Err(Outcome::NoRoom),
            }),
            Self::GoOn(mut sorter) => Ok(match sorter.step()? {
                Step::More => Ok(Self::GoOn(sorter)),
                Step::Done => Err(Outcome::Made),
                Step::NoRoom => Err(Outcome::NoRoom),
            }),
        }
    }

    /// Has the helper thread make this step and all further ones, each after more urgent work.
    fn run(self, allocator: Arc<Allocator>, done: Box<dyn FnOnce(Result<Outcome>) + Send>) {
        let next = allocator.clone();
        allocator.run_in_background(move || {
            // A panic would end the thread, and with it the log.
            let stepped = catch_unwind(AssertUnwindSafe(|| self.step()));
            match stepped.unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "sorting a segment panicked"))) {
                Ok(Ok(work)) => work.run(next, done),
                Ok(Err(outcome)) => done(Ok(outcome)),
                Err(error) => done(Err(error)),
            }
        });
    }
}

impl Sorting {
    /// # Errors
    /// `Io`: the directory cannot be read.
    pub(super) fn new(
        runs: Arc<RunDirectories>,
        store: &Store,
        log: LogId,
        options: &Options,
        is_shared: bool,
    ) -> Result<Self> {
        if is_shared {
            let segments = store.segments.snapshot();
            let is_listed = |number| segments.iter().any(|segment| segment.number == number);
            runs.copies().find(|number| options.sorted_copies && is_listed(number))?;
            store.allocator.remove_copies();
        }
        Ok(Self {
            runs,
            is_wanted: options.sorted_copies,
            log,
            done: Arc::default(),
            is_busy: false,
            again: Moment::default(),
            skipped: BTreeSet::new(),
            began: Moment::default(),
            looked: None,
        })
    }

    pub(super) fn copies(&self) -> &Arc<SortedCopies> {
        self.runs.copies()
    }

    fn state(&self) -> State {
        let (copies, segments) = (self.runs.copies(), self.runs.segments());
        State {
            newest: segments.newest().map(|segment| segment.number),
            committed: segments.newest_full().map_or(0, |segment| segment.readable()),
            removals: copies.removals(),
        }
    }

    fn take_done(&mut self) -> Option<Sorted> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_busy &= done.is_none();
        done
    }
}

impl Node {
    /// When [`Self::sort_segments`] has to be called. None: when something else happens.
    pub(super) fn sorting_due(&self, now: Moment) -> Option<Moment> {
        let sorting = &self.sorting;
        let can_begin = sorting.is_wanted && !sorting.is_busy && self.replica.sequencer.logs().is_shared();
        let has_work = can_begin && sorting.looked != Some(sorting.state());
        has_work.then(|| sorting.again.max(now))
    }

    /// Has the next segment copied, if there is one.
    pub(super) fn sort_segments(&mut self, now: Moment) {
        self.end_sorting(now);
        if self.sorting_due(now).is_none_or(|due| due > now) {
            return;
        }
        // Before the search: a change meanwhile causes another one.
        let state = self.sorting.state();
        let segments = &self.writer.store.segments;
        let copies = self.sorting.runs.copies();
        copies.forget_below(segments.oldest().map_or(0, |oldest| oldest.number));
        let segment = segments.find_full(|segment| {
            let is_known = copies.has(segment.number) || self.sorting.skipped.contains(&segment.number);
            !is_known && segment.readable() == segment.data_end()
        });
        let Some(segment) = segment else {
            self.sorting.looked = Some(state);
            self.sorting.skipped.clear(); // tried again when something has changed
            return;
        };
        self.sorting.began = now;
        self.sorting.is_busy = true;
        let (copies, log, done) = (copies.clone(), self.sorting.log, self.sorting.done.clone());
        let (number, queue) = (segment.number, self.queue.clone());
        let allocator = self.writer.store.allocator.clone();
        allocator.remove_copies();
        Work::Begin(Box::new(move || Sorter::begin(copies, log, segment))).run(
            allocator,
            Box::new(move |outcome| {
                *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(Sorted { number, outcome });
                queue.push_event(InboxEvent::JobEnded);
            }),
        );
    }

    /// Takes the result of a copy.
    fn end_sorting(&mut self, now: Moment) {
        let Some(Sorted { number, outcome }) = self.sorting.take_done() else { return };
        let segments = &self.writer.store.segments;
        let took = now.since(self.sorting.began).min(PAUSE);
        self.sorting.again = now.plus(took * REST);
        match outcome {
            Ok(Outcome::Made) => self.holes.made(number),
            Ok(Outcome::NotThis) => drop(self.sorting.skipped.insert(number)),
            Ok(Outcome::NoRoom) => self.sorting.again = now.plus(PAUSE),
            Err(error) => {
                let path = segments.disk().path().display();
                tracing::warn!(%path, segment = number, %error, "a segment could not be sorted; it is tried again later");
                self.sorting.skipped.insert(number);
                if error.kind() == ErrorKind::Corrupt {
                    let _ = segments.met(error, None); // the repair looks there
                } else {
                    self.sorting.again = now.plus(PAUSE);
                }
            }
        }
    }
}
