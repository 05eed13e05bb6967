//! Sorting: the full segments of a shared group are copied in the order of their logs, one at a time, by the helper thread.
//!
//! Invariant: only a segment whose blocks are all committed is copied.
//!
//! Must not know: what a copy looks like.

use super::Node;
use crate::error::{ErrorKind, Result};
use crate::options::Options;
use crate::replica::queue::inbox::InboxEvent;
use crate::store::Store;
use crate::store::read::run_directory::RunDirectories;
use crate::store::read::sorter::sort;
use crate::sync::clock::Moment;
use crate::types::LogId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// After each copy the helper thread rests for so many times as long as that took: appends need the disk and the processors, and
/// what they leave is enough for the copies in the long run.
const REST: u32 = 9;
/// How long no copy is made after a failure, or after the copies were removed because the disk was full.
const PAUSE: Duration = Duration::from_secs(600);

/// The sorting of a log's segments.
pub(super) struct Sorting {
    runs: Arc<RunDirectories>,
    is_wanted: bool,
    log: LogId,
    done: Arc<Mutex<Option<Sorted>>>,
    is_busy: bool,
    /// Nothing is done before.
    again: Moment,
    /// Segments that are damaged.
    damaged: BTreeSet<u64>,
    /// When the last copy was begun.
    began: Moment,
    /// When there was nothing to do.
    looked: Option<State>,
    /// The copies were removed because the disk was full.
    gave_way: Arc<AtomicBool>,
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
    result: Result<()>,
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
        let gave_way = Arc::new(AtomicBool::new(false));
        if is_shared {
            let segments = store.segments.snapshot();
            let is_listed = |number| segments.iter().any(|segment| segment.number == number);
            runs.copies().find(|number| options.sorted_copies && is_listed(number))?;
        }
        store.allocator.set_room_maker({
            let (runs, gave_way) = (runs.clone(), gave_way.clone());
            move || {
                gave_way.store(true, Ordering::Relaxed);
                runs.copies().clear() > 0
            }
        });
        Ok(Self {
            runs,
            is_wanted: options.sorted_copies,
            log,
            done: Arc::default(),
            is_busy: false,
            again: Moment::default(),
            damaged: BTreeSet::new(),
            began: Moment::default(),
            looked: None,
            gave_way,
        })
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
        if !self.sorting.is_wanted || !self.replica.sequencer.logs().is_shared() {
            return;
        }
        let segments = &self.writer.store.segments;
        let done = self.sorting.take_done();
        if done.is_some() {
            self.sorting.again = now.plus(now.since(self.sorting.began) * REST);
        }
        if let Some(Sorted { number, result: Err(error) }) = done {
            tracing::warn!(path = %segments.disk().path().display(), segment = number, %error, "a segment could not be sorted; it is tried again later");
            if error.kind() == ErrorKind::Corrupt {
                self.sorting.damaged.insert(number);
                let _ = segments.met(error, None); // the repair looks there
            } else {
                self.sorting.again = now.plus(PAUSE);
            }
        }
        if self.sorting.gave_way.swap(false, Ordering::Relaxed) {
            self.sorting.again = now.plus(PAUSE);
        }
        if self.sorting_due(now).is_none_or(|due| due > now) {
            return;
        }
        let copies = self.sorting.runs.copies();
        let is_wanted = |number| !copies.has(number) && !self.sorting.damaged.contains(&number);
        let segment = segments.find_full(|segment| is_wanted(segment.number));
        let Some(segment) = segment.filter(|segment| segment.readable() == segment.data_end()) else {
            self.sorting.looked = Some(self.sorting.state());
            self.sorting.damaged.clear(); // tried again when something has changed
            return;
        };
        self.sorting.began = now;
        self.sorting.is_busy = true;
        let (runs, log, done) = (self.sorting.runs.clone(), self.sorting.log, self.sorting.done.clone());
        let (oldest, queue) = (segments.oldest().map_or(0, |oldest| oldest.number), self.queue.clone());
        self.writer.store.allocator.run_in_background(move || {
            runs.copies().drop_below(oldest);
            let (number, result) = (segment.number, sort(runs.copies(), log, &segment));
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(Sorted { number, result });
            queue.push_event(InboxEvent::JobEnded);
        });
    }
}
