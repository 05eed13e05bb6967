//! Positions: how far the log is, in records, and the waiters for each position to move.
//!
//! `docs/positions.md` defines each position. The relations:
//!
//! ```text
//! first <= committed + 1      committed <= appended      durable <= appended
//! ```
//!
//! `committed` and `durable` are not related: a majority of other replicas can be ahead of this disk, and this disk can
//! be ahead of the position known to be committed. With one voter `committed <= durable`.
//!
//! (A discard beyond the end breaks the first relation for a moment: see `discarded` and `range`.)
//!
//! All are published without locks. Only the writer moves them, one thread at a time; any thread reads them.
//!
//! Must not know: files, blocks.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::futex::Futex;
use crate::types::{EntryIndex, Index};
use atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crossbeam_utils::CachePadded;
#[cfg(loom)]
use loom::sync::{Mutex, atomic};
#[cfg(not(loom))]
use std::sync::{Mutex, atomic};
use std::sync::{OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

type Hook = Box<dyn FnOnce() + Send>;

/// The owner of a hook: one reader, or one follow source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HookOwner(u64);

/// The position that a waiter at the tail waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// A reader: this record is committed, or it was discarded.
    Record(Index),
    /// A follow source: this entry is committed, with records or without.
    Entry(EntryIndex),
    /// A follow source of one log: record `next` is committed, or record `first` was discarded.
    Change { next: Index, first: Index },
}

impl From<Index> for Until {
    fn from(next: Index) -> Self {
        Self::Record(next)
    }
}

impl From<EntryIndex> for Until {
    fn from(next: EntryIndex) -> Self {
        Self::Entry(next)
    }
}

/// Whether one reader's waits are cancelled permanently.
#[derive(Debug, Default)]
pub(crate) struct Cancel(AtomicBool);

impl Cancel {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

struct Waiting {
    owner: HookOwner,
    until: Until,
    hook: Hook,
}

/// The positions of one log on this node.
#[derive(Default)]
pub(crate) struct Positions {
    /// The first record that is not discarded. Moves: only forward, after the discard command is durable; for a jump,
    /// before its write, which removes older segments.
    first: AtomicU64,
    /// The first record that is in an object store alone, which this handle does not read; `first` follows the last of these. 0: there
    /// are none. Only a handle on the files of a directory sets it.
    stored_from: AtomicU64,
    /// Last record handed to the operating system. Moves: in `Node::write`, when the write returned; back, when a
    /// conflict truncates uncommitted records.
    appended: AtomicU64,
    /// Last record known durable on this node. Moves: in `Node::end_sync`, after `fdatasync` returned 0; back after a
    /// conflict as well, but only with the sync that follows the truncating write.
    durable: AtomicU64,
    /// Last record that readers may see: it is on the disks of a majority. Moves: only forward, in `Node::publish`.
    committed: CachePadded<AtomicU64>,
    /// The last entry whose block readers may see, with records or without. Moves: only forward, with `committed`.
    entry: AtomicU64,
    tail: Tail,
}

/// The waiters for `committed` to move.
struct Tail {
    /// Counts wake-ups; the word that sleepers sleep on.
    epoch: Futex,
    sleepers: AtomicUsize,
    hooks: Mutex<Vec<Waiting>>,
    hooked: AtomicUsize,
    owners: AtomicU64,
    closed: AtomicBool,
    why: OnceLock<Error>,
}

impl Default for Tail {
    fn default() -> Self {
        Self {
            epoch: Futex::new(0),
            sleepers: AtomicUsize::new(0),
            hooks: Mutex::default(),
            hooked: AtomicUsize::new(0),
            owners: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            why: OnceLock::new(),
        }
    }
}

impl Positions {
    /// The positions of a log that was just opened: all its records are durable. `committed` is the last one known to
    /// be committed.
    pub(crate) fn new(first: Index, committed: Index, last: Index) -> Self {
        let positions = Self::default();
        positions.first.store(first.0, Ordering::Release);
        positions.written(last);
        positions.durable_to(last);
        positions.commit_to(committed);
        positions
    }

    pub(crate) fn first(&self) -> Index {
        Index(self.first.load(Ordering::Acquire))
    }

    /// The first record that is in an object store alone, before the first one here. `None`: there are none.
    pub(crate) fn stored_from(&self) -> Option<Index> {
        Some(Index(self.stored_from.load(Ordering::Relaxed))).filter(|from| *from > Index(0))
    }

    pub(crate) fn set_stored_from(&self, from: Option<Index>) {
        self.stored_from.store(from.map_or(0, Index::get), Ordering::Relaxed);
    }

    pub(crate) fn durable(&self) -> Index {
        Index(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn committed(&self) -> Index {
        Index(self.committed.load(Ordering::Acquire))
    }

    /// The last committed entry that is written here.
    pub(crate) fn entry(&self) -> EntryIndex {
        EntryIndex(self.entry.load(Ordering::Acquire))
    }

    /// First and last record as a consistent pair: an empty log ends just before its first record.
    pub(crate) fn range(&self) -> (Index, Index) {
        let first = self.first();
        (first, self.committed().max(first.previous()))
    }

    /// Notes that everything up to `last` was written.
    pub(crate) fn written(&self, last: Index) {
        self.appended.store(last.0, Ordering::Release);
    }

    /// Notes that everything up to `last` is durable on this node.
    pub(crate) fn durable_to(&self, last: Index) {
        self.durable.store(last.0, Ordering::Release);
    }

    /// Notes that everything up to `last` is committed and written here. Does not wake waiters, so that the caller
    /// decides the order: see [`Self::wake`].
    pub(crate) fn commit_to(&self, last: Index) {
        self.committed.fetch_max(last.0, Ordering::AcqRel);
    }

    /// Notes that entries up to `last` are committed and written here. Like [`Self::commit_to`].
    pub(crate) fn commit_entries_to(&self, last: EntryIndex) {
        self.entry.fetch_max(last.0, Ordering::AcqRel);
    }

    /// Notes that everything below `first` is discarded. Call it before [`Self::commit_to`] if a discard moved the
    /// end: there are no records between the old end and the new one, and no reader may look for them.
    pub(crate) fn discarded(&self, first: Index) {
        self.first.fetch_max(first.0, Ordering::AcqRel);
    }

    /// Sets the first record. At a copy that reads objects it moves back once the log has objects, because these begin with the
    /// log's first record.
    pub(crate) fn begin_at(&self, first: Index) {
        self.first.store(first.0, Ordering::Release);
    }

    /// Wakes the waiters at the tail, if there are any.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `wait` and `on_reach`: either this sees the sleeper, or the sleeper sees the new
        // position.
        fence(Ordering::SeqCst);
        if self.tail.sleepers.load(Ordering::Relaxed) > 0 {
            self.rouse();
        }
        if self.tail.hooked.load(Ordering::Relaxed) > 0 {
            self.run_hooks(None);
        }
    }

    /// Wakes all waiters permanently: no position moves any more, for the reason `why`.
    pub(crate) fn close(&self, why: Error) {
        let _ = self.tail.why.set(why);
        self.tail.closed.store(true, Ordering::Release);
        self.rouse();
        self.run_hooks(None);
    }

    /// Whether [`Self::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.tail.closed.load(Ordering::Acquire)
    }

    /// Whether a waiter for this has something to do.
    fn reached(&self, until: Until) -> bool {
        match until {
            Until::Record(next) => self.committed() >= next || self.first() > next,
            Until::Entry(next) => self.entry() >= next,
            Until::Change { next, first } => self.committed() >= next || self.first() > first,
        }
    }

    /// Blocks until a waiter for this has something to do (true), the time-out passes (false), or the log is closed
    /// (`Closed`, or the error that stopped the log).
    pub(crate) fn wait(&self, until: impl Into<Until>, timeout: Option<Duration>) -> Result<bool> {
        self.wait_unless(until, timeout, || false)
    }

    /// Like [`Self::wait`], until [`Self::cancel`] makes `is_cancelled` true: `Cancelled`.
    pub(crate) fn wait_unless(
        &self,
        until: impl Into<Until>,
        timeout: Option<Duration>,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<bool> {
        if is_cancelled() {
            return Err(cancelled());
        }
        let until = until.into();
        if self.reached(until) {
            return Ok(true);
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        self.tail.sleepers.fetch_add(1, Ordering::Relaxed);
        let outcome = loop {
            let epoch = self.tail.epoch.load(Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if is_cancelled() {
                break Err(cancelled());
            }
            if self.reached(until) {
                break Ok(true);
            }
            if self.is_closed() {
                break Err(self.tail.why.get().cloned().unwrap_or_else(closed));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break Ok(false);
            }
            self.tail.epoch.wait(epoch, left);
        };
        self.tail.sleepers.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Returns a new owner of hooks.
    pub(crate) fn hook_owner(&self) -> HookOwner {
        HookOwner(self.tail.owners.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs `hook` once: when a waiter for this has something to do, or the log is closed; at once if that is so
    /// already. It runs on a thread of the log and must not block. It replaces the owner's previous hook, so repeated
    /// calls do not accumulate. No hook of another owner runs here.
    pub(crate) fn on_reach(&self, owner: HookOwner, until: impl Into<Until>, hook: Hook) {
        let until = until.into();
        let replaced = self.change_hooks(owner, Some(Waiting { owner, until, hook }));
        fence(Ordering::SeqCst);
        if self.reached(until) || self.is_closed() {
            // Other due hooks run on the writer's thread, or where they are being registered.
            self.run_hooks(Some(owner));
        }
        drop(replaced);
    }

    /// Cancels the waits that use `cancel`, permanently, and calls the owner's hook.
    pub(crate) fn cancel(&self, owner: HookOwner, cancel: &Cancel) {
        cancel.0.store(true, Ordering::Release);
        // As in `wake`: either this sees the sleeper or the hook, or the other thread sees the flag.
        fence(Ordering::SeqCst);
        if self.tail.sleepers.load(Ordering::Relaxed) > 0 {
            self.rouse();
        }
        self.call_hook(owner);
    }

    /// Calls the owner's hook, due or not.
    pub(crate) fn call_hook(&self, owner: HookOwner) {
        if self.tail.hooked.load(Ordering::Relaxed) > 0 {
            call_all(self.change_hooks(owner, None).map(|waiting| waiting.hook));
        }
    }

    /// Removes the owner's hook.
    pub(crate) fn forget_hook(&self, owner: HookOwner) {
        if self.tail.hooked.load(Ordering::Relaxed) > 0 {
            drop(self.change_hooks(owner, None));
        }
    }

    /// Replaces the owner's hook. The caller drops the old one, outside the lock.
    fn change_hooks(&self, owner: HookOwner, new: Option<Waiting>) -> Option<Waiting> {
        let mut hooks = self.tail.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let old = hooks.iter().position(|w| w.owner == owner).map(|n| hooks.swap_remove(n));
        hooks.extend(new);
        self.tail.hooked.store(hooks.len(), Ordering::Relaxed);
        old
    }

    fn rouse(&self) {
        self.tail.epoch.fetch_add(1, Ordering::Release);
        self.tail.epoch.wake_all();
    }

    /// Runs the hooks that are due: all, or this owner's.
    fn run_hooks(&self, of: Option<HookOwner>) {
        let mut due = Vec::new();
        {
            let mut hooks = self.tail.hooks.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = self.is_closed();
            for waiting in std::mem::take(&mut *hooks) {
                let is_asked = of.is_none_or(|owner| owner == waiting.owner);
                if is_asked && (closed || self.reached(waiting.until)) {
                    due.push(waiting.hook)
                } else {
                    hooks.push(waiting)
                }
            }
            self.tail.hooked.store(hooks.len(), Ordering::Relaxed);
        }
        call_all(due);
    }
}

fn call_all(hooks: impl IntoIterator<Item = Hook>) {
    for hook in hooks {
        // A caller's panic must not stop the writer.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
            tracing::error!("a callback at the log's tail panicked; the log continues");
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the reader was cancelled; open another reader at its position")
}

/// The error for waiting on a closed log.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log was closed")
}

/// Turns the result of a wait with time-out zero into a `Poll`: if there is nothing yet, `hook` gets the task's waker.
pub(crate) fn or_wake(
    found: Result<bool>,
    context: &Context<'_>,
    hook: impl FnOnce(Waker),
) -> Poll<Result<()>> {
    match found {
        Ok(true) => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(error)),
        Ok(false) => {
            hook(context.waker().clone());
            Poll::Pending
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[test]
    fn waiters_and_hooks_wake_when_their_record_is_committed() {
        let positions = Arc::new(Positions::new(Index(1), Index(3), Index(3)));
        assert!(positions.wait(Index(3), None).unwrap());
        assert!(!positions.wait(Index(4), Some(Duration::from_millis(1))).unwrap());
        let (tx, rx) = mpsc::channel();
        positions.on_reach(positions.hook_owner(), Index(5), Box::new(move || tx.send(()).unwrap()));
        let waiter = std::thread::spawn({
            let positions = positions.clone();
            move || positions.wait(Index(5), None)
        });
        for last in [4, 5] {
            assert!(rx.try_recv().is_err());
            positions.written(Index(last));
            positions.durable_to(Index(last));
            positions.commit_to(Index(last));
            positions.wake();
        }
        rx.recv().unwrap();
        assert!(waiter.join().unwrap().unwrap());
    }

    #[test]
    fn closing_wakes_all_waiters() {
        let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
        let waiter = std::thread::spawn({
            let positions = positions.clone();
            move || positions.wait(Index(1), None)
        });
        let (tx, rx) = mpsc::channel();
        positions.on_reach(positions.hook_owner(), Index(1), Box::new(move || tx.send(()).unwrap()));
        positions.close(closed());
        rx.recv().unwrap();
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }

    /// Before, a reader that registered a hook also ran the callbacks of all others, while it held its own locks.
    #[test]
    fn registering_a_hook_runs_no_other_owner_s_hook() {
        let positions = Positions::new(Index(1), Index(0), Index(0));
        let (tx, rx) = mpsc::channel();
        let hook = |name: &'static str| {
            let tx = tx.clone();
            Box::new(move || tx.send(name).unwrap()) as Hook
        };
        let (one, other) = (positions.hook_owner(), positions.hook_owner());
        positions.on_reach(one, Index(1), hook("one"));
        positions.commit_to(Index(1)); // the writer has not called any hook yet
        positions.on_reach(other, Index(1), hook("other"));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["other"]);
        positions.wake();
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn cancel_ends_the_waits_of_one_reader_only() {
        let positions = Arc::new(Positions::new(Index(1), Index(3), Index(3)));
        let (one, other) = (positions.hook_owner(), positions.hook_owner());
        let cancel = Arc::new(Cancel::default());
        let (tx, rx) = mpsc::channel();
        for (owner, name) in [(one, "one"), (other, "other")] {
            let tx = tx.clone();
            positions.on_reach(owner, Index(4), Box::new(move || tx.send(name).unwrap()));
        }
        let waiters: Vec<_> = [true, false]
            .map(|listens| {
                let (positions, cancel) = (positions.clone(), cancel.clone());
                std::thread::spawn(move || {
                    positions.wait_unless(Index(4), None, || listens && cancel.is_set())
                })
            })
            .into();
        positions.cancel(one, &cancel);
        let mut waiters = waiters.into_iter();
        let cancelled = waiters.next().unwrap().join().unwrap();
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["one"]);
        positions.commit_to(Index(4));
        positions.wake();
        assert!(waiters.next().unwrap().join().unwrap().unwrap());
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["other"]);
        positions.cancel(one, &cancel);
        let cancelled = positions.wait_unless(Index(1), None, || cancel.is_set());
        assert_eq!(
            cancelled.unwrap_err().kind(),
            ErrorKind::Cancelled,
            "permanently, even with a record to read"
        );
    }

    #[test]
    fn discard_beyond_a_waiter_wakes_it() {
        let positions = Positions::new(Index(1), Index(3), Index(3));
        positions.discarded(Index(10));
        assert!(positions.wait(Index(4), None).unwrap());
    }
}

/// Like the models of `completion`: a lost wake-up is a deadlock here.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Notify;
    use loom::thread;
    use std::sync::Arc;

    /// The writer's steps for one block.
    fn publish(positions: &Positions, last: u64) {
        positions.written(Index(last));
        positions.durable_to(Index(last));
        positions.commit_to(Index(last));
        positions.wake();
    }

    /// A reader that waits for a record and is cancelled.
    fn cancelled_reader(
        positions: &Arc<Positions>,
        cancel: &Arc<Cancel>,
        index: Index,
    ) -> thread::JoinHandle<()> {
        let (positions, cancel) = (positions.clone(), cancel.clone());
        thread::spawn(move || {
            let waited = positions.wait_unless(index, None, || cancel.is_set());
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::Cancelled);
        })
    }

    #[test]
    fn loom_reader_at_the_tail_and_writer() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let reader = thread::spawn({
                let positions = positions.clone();
                move || assert!(positions.wait(Index(1), None).unwrap())
            });
            publish(&positions, 1);
            reader.join().unwrap();
        });
    }

    /// The first block is not the one that the reader waits for.
    #[test]
    fn loom_reader_sleeps_again_until_its_record() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let reader = thread::spawn({
                let positions = positions.clone();
                move || assert!(positions.wait(Index(2), None).unwrap())
            });
            publish(&positions, 1);
            publish(&positions, 2);
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_hook_and_writer() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let called = Arc::new(Notify::new());
            let registrar = thread::spawn({
                let (positions, called) = (positions.clone(), called.clone());
                move || {
                    positions.on_reach(positions.hook_owner(), Index(1), Box::new(move || called.notify()))
                }
            });
            publish(&positions, 1);
            called.wait();
            registrar.join().unwrap();
        });
    }

    #[test]
    fn loom_reader_at_the_tail_and_canceller() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let cancel = Arc::new(Cancel::default());
            let owner = positions.hook_owner();
            let reader = cancelled_reader(&positions, &cancel, Index(1));
            positions.cancel(owner, &cancel);
            reader.join().unwrap();
        });
    }

    /// Meanwhile the writer wakes the reader for a record that it does not wait for.
    #[test]
    fn loom_reader_writer_and_canceller() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let cancel = Arc::new(Cancel::default());
            let owner = positions.hook_owner();
            let reader = cancelled_reader(&positions, &cancel, Index(2));
            let writer = thread::spawn({
                let positions = positions.clone();
                move || publish(&positions, 1)
            });
            positions.cancel(owner, &cancel);
            writer.join().unwrap();
            reader.join().unwrap();
        });
    }

    /// Like `Reader::on_more`, which checks once more after the registration.
    #[test]
    fn loom_hook_and_canceller() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let (cancel, called) = (Arc::new(Cancel::default()), Arc::new(Notify::new()));
            let owner = positions.hook_owner();
            let registrar = thread::spawn({
                let (positions, cancel, called) = (positions.clone(), cancel.clone(), called.clone());
                move || {
                    positions.on_reach(owner, Index(1), Box::new(move || called.notify()));
                    if cancel.is_set() {
                        positions.call_hook(owner);
                    }
                }
            });
            positions.cancel(owner, &cancel);
            called.wait();
            registrar.join().unwrap();
        });
    }

    #[test]
    fn loom_reader_hook_and_close() {
        loom::model(|| {
            let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
            let called = Arc::new(Notify::new());
            let reader = thread::spawn({
                let (positions, called) = (positions.clone(), called.clone());
                move || {
                    positions.on_reach(positions.hook_owner(), Index(1), Box::new(move || called.notify()));
                    assert!(positions.wait(Index(1), None).is_err());
                }
            });
            positions.close(closed());
            called.wait();
            reader.join().unwrap();
        });
    }
}
