//! Completion: passes the outcome of one block to every caller that appended to it; and the public [`Ticket`].
//!
//! ```text
//! writer thread                           callers, one ticket each
//!                   +------------+ <------ ticket (ordinal 0, offset 0, 1 record)   wait / wait_timeout
//! complete() -----> | Completion | <------ ticket (ordinal 1, offset 1, 5 records)  poll
//!                   +------------+ <------ ticket (ordinal 2, offset 6, 1 record)   .await / on_complete
//! ```
//!
//! All batches of a block share one completion. The writer publishes one outcome, with one system call if any thread
//! sleeps and none otherwise. Each ticket computes its own result from its position in the block.
//!
//! Invariants:
//! - The state word moves Pending -> Waited -> Done or Pending -> Done, and never back.
//! - Done is stored after the outcome, so a thread that sees Done sees the outcome.
//! - A hook (waker or callback) is registered under the lock and only while not Done; `complete` takes the hooks under
//!   that lock after storing Done: each runs exactly once.
//! - No foreign code (wakers, callbacks, their destructors) runs while the lock is held.
//!
//! Must not know: blocks, files, the writer, sessions, any async runtime.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::futex::Futex;
use crate::sync::pause;
use crate::types::Index;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The indexes of a batch's records in the log.
///
/// ```
/// use chiplog::{Appended, Index};
/// let appended = Appended::new(Index(5), 3);
/// assert_eq!(appended.last(), Index(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Appended {
    /// Index of the first record.
    pub first: Index,
    /// The number of records: at least 1. Their indexes are consecutive.
    pub count: u32,
    /// How durable they were when the append was acknowledged. `None`: a server of an earlier version did not tell.
    pub durability: Option<Durability>,
}

impl Appended {
    /// These records, with a durability that is not known.
    pub const fn new(first: Index, count: u32) -> Self {
        Self { first, count, durability: None }
    }

    /// Index of the last record.
    pub const fn last(self) -> Index {
        self.first.plus(self.count as u64).previous()
    }
}

/// How durable an append is when it is acknowledged: the place that has its records by then. Ordered: a later one is
/// at least as durable. Of a log on its own the majority is its own disk. In a log that has or had the class `object`,
/// the payload of an append of the first two classes can be in the object store alone: then the majority has a
/// reference to it.
///
/// ```
/// use chiplog::Durability;
/// assert_eq!(Durability::MajoritySlices.to_string(), "majority+slices");
/// assert!(Durability::Majority < Durability::Object);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// On stable storage at a majority of the voters.
    Majority,
    /// The same. Soon after, within about the leader's `slice_interval`, it is in the object store, too.
    MajoritySlices,
    /// In the object store, and a reference to it is on stable storage at a majority of the voters.
    Object,
}

impl Durability {
    /// Its name: `majority`, `majority+slices` or `object`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Majority => "majority",
            Self::MajoritySlices => "majority+slices",
            Self::Object => "object",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The outcome of a block.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Every batch of the block was accepted: a ticket's first index is this one plus the ticket's offset.
    Placed { first: Index },
    /// One result per batch, by the ticket's ordinal: some were duplicates or refused.
    Each(Vec<Result<Appended>>),
    /// The outcome of the whole block is an error: no part of it may be taken for durable.
    Failed(Error),
}

/// No thread sleeps; the outcome is not known.
const PENDING: u32 = 0;
/// A thread sleeps or is about to; the outcome is not known.
const WAITED: u32 = 1;
/// The outcome is set and does not change.
const DONE: u32 = 2;

/// The future outcome of one block, shared by all waiters.
pub(crate) struct Completion {
    /// Moves: to `WAITED` by a caller before it sleeps, to `DONE` by `complete`.
    state: Futex,
    /// Set once, before `state` becomes `DONE`; read only after `DONE` was seen.
    outcome: sync::Once<Answered>,
    hooks: sync::Mutex<Hooks>,
}

/// An outcome, and how durable the appends of the block are with it.
type Answered = (Outcome, Option<Durability>);

/// The hooks to run, in addition to the threads to wake.
#[derive(Default)]
struct Hooks {
    /// One slot for each ticket that was ever polled as a future; None once that ticket was dropped.
    wakers: Vec<Option<Waker>>,
    callbacks: Vec<(Place, Callback)>,
}

type Callback = Box<dyn FnOnce(Result<Appended>) + Send>;

/// A batch's position in its block.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of the batch in the block, from 0.
    ordinal: u32,
    /// How many records of the block precede it.
    offset: u32,
    /// How many records it has.
    count: u32,
}

impl Completion {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Futex::new(PENDING),
            outcome: sync::Once::new(),
            hooks: sync::Mutex::new(Hooks::default()),
        })
    }

    /// Publishes the outcome, wakes all sleepers, then runs wakers and callbacks on this thread. A callback that panics
    /// is logged and does not affect the others.
    ///
    /// Panics if called twice: a published outcome must not change.
    pub(crate) fn complete(&self, outcome: Outcome, durability: Option<Durability>) {
        assert!(self.outcome.set((outcome, durability)), "a block is completed once");
        // Release: a thread that reads DONE with Acquire sees the outcome that was stored above.
        //
        // No wake-up is lost, because this swap and the waiter's PENDING -> WAITED exchange are both read-modify-writes
        // of one word, so one of them is first. If the waiter's is first, the swap returns WAITED and all sleepers are
        // woken; threads that are entering the kernel find DONE instead of WAITED and do not sleep. If the swap is
        // first, the exchange fails and the waiter sees DONE.
        if self.state.swap(DONE, Ordering::Release) == WAITED {
            self.state.wake_all();
        }
        let hooks = mem::take(&mut *self.hooks.lock());
        for waker in hooks.wakers.into_iter().flatten() {
            guarded("waker", || waker.wake());
        }
        for (place, callback) in hooks.callbacks {
            guarded("callback", || {
                if let Some(result) = self.result(place) {
                    callback(result);
                }
            });
        }
    }

    /// The result of the batch at `place`, if it is known.
    fn result(&self, place: Place) -> Option<Result<Appended>> {
        // Acquire: pairs with the Release in `complete`, so that the outcome is visible.
        if self.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let Some((outcome, durability)) = self.outcome.get() else {
            unreachable!("the outcome is stored before DONE")
        };
        let placed = match outcome {
            Outcome::Placed { first } => Ok(Appended::new(first.plus(place.offset.into()), place.count)),
            Outcome::Each(results) => results[place.ordinal as usize].clone(),
            Outcome::Failed(error) => Err(error.clone()),
        };
        // An answer to a request has no records.
        let durability = durability.filter(|_| place.count > 0);
        Some(placed.map(|appended| Appended { durability, ..appended }))
    }

    /// Sleeps until there is a result; None if `deadline` passed first.
    fn wait(&self, place: Place, deadline: Option<Instant>) -> Option<Result<Appended>> {
        loop {
            if let Some(result) = self.result(place) {
                return Some(result);
            }
            let left = deadline.map(|d| d.saturating_duration_since(pause::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            // Marks that a thread sleeps, unless it is marked already. Relaxed: this publishes nothing. Only the word
            // itself matters here, and `result` above reads the outcome after its own Acquire.
            let seen = self.state.compare_exchange(PENDING, WAITED, Ordering::Relaxed, Ordering::Relaxed);
            if seen == Err(DONE) {
                continue;
            }
            // Woken or timed out: the loop's head checks both.
            self.state.wait(WAITED, left);
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state.load(Ordering::Relaxed) {
            PENDING => "pending",
            WAITED => "waited",
            _ => "done",
        };
        f.debug_struct("Completion").field("state", &state).finish_non_exhaustive()
    }
}

/// Runs foreign code on a writer thread, which must survive panics of that code.
fn guarded(what: &str, run: impl FnOnce()) {
    // AssertUnwindSafe: the code may leave its own state inconsistent; it does not touch the completion.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        tracing::error!(message, "a {what} of an append panicked; the log continues");
    }
}

/// A submitted append or request: reports when it is durable or answered, and the indexes of its records.
///
/// `T` is the form of the result: the [`Index`] of a record, the [`Appended`] indexes of a batch, the index that answers a
/// request, or `()`.
///
/// Wait for it, poll it, await it (it is a [`Future`] for any runtime), or give it a callback. All tickets of a block
/// become ready at the same moment. Dropping a ticket does not cancel the append; nothing does. `Send` and `Sync`: many
/// threads may wait for one ticket.
///
/// A ticket cannot be used in a forked child. The thread that settles it runs in the parent, so a ticket that was
/// pending at the fork stays pending in the child. Drop it there.
///
/// ```
/// use chiplog::{Log, Options};
/// let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let tickets = [log.submit(b"one")?, log.submit(b"two")?]; // both are in progress
/// for ticket in &tickets {
///     println!("durable at {}", ticket.wait()?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "without its ticket it stays unknown whether the append became durable"]
pub struct Ticket<T = Appended> {
    seat: Seat,
    value: PhantomData<fn() -> T>,
}

/// The result of a [`Ticket`]: the [`Index`] of a record or an answer, the [`Appended`] indexes of a batch, or `()`. Only
/// chiplog implements it.
pub trait TicketValue: sealed::OfAppended + Send + 'static {}

impl TicketValue for Appended {}
impl TicketValue for Index {}
impl TicketValue for () {}

mod sealed {
    use super::{Appended, Index};

    pub trait OfAppended {
        fn of(appended: Appended) -> Self;
    }

    impl OfAppended for Appended {
        fn of(appended: Appended) -> Self {
            appended
        }
    }

    impl OfAppended for Index {
        fn of(appended: Appended) -> Self {
            appended.first
        }
    }

    impl OfAppended for () {
        fn of(_: Appended) -> Self {}
    }
}

/// One waiter's part of a completion.
struct Seat {
    completion: Arc<Completion>,
    place: Place,
    /// The index of our slot among the completion's wakers, once polled as a future.
    waker: Option<usize>,
}

/// A second ticket for the same append, with a waker of its own.
impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Self {
        let Seat { completion, place, .. } = &self.seat;
        let seat = Seat { completion: completion.clone(), place: *place, waker: None };
        Self { seat, value: PhantomData }
    }
}

/// For programs that keep tickets of records and of batches together.
impl From<Ticket<Index>> for Ticket<Appended> {
    fn from(ticket: Ticket<Index>) -> Self {
        ticket.returning()
    }
}

impl Ticket<Appended> {
    /// The ticket of the batch that is number `ordinal` of its block and has `offset` records before it.
    pub(crate) fn new(completion: Arc<Completion>, ordinal: u32, offset: u32, count: u32) -> Self {
        let seat = Seat { completion, place: Place { ordinal, offset, count }, waker: None };
        Self { seat, value: PhantomData }
    }
}

impl<T> Ticket<T> {
    /// The same ticket, which returns its result in another form.
    pub(crate) fn returning<U>(self) -> Ticket<U> {
        Ticket { seat: self.seat, value: PhantomData }
    }
}

impl<T: TicketValue> Ticket<T> {
    /// Blocks until the append is durable or has failed. Returns at once if it is settled; the result stays and can be
    /// read again. Do not call it in a forked child: if the ticket was pending at the fork, it never returns there.
    ///
    /// # Errors
    /// The reason why the append failed: `Poisoned` (a write or sync failed; outcome unknown), `Full`, `Closed`, or an
    /// error of the session.
    ///
    /// In a cluster also:
    /// - `NotLeader`: another replica leads; the append is not in the log.
    /// - `Removed`: this replica was removed from the cluster; the append is not in the log.
    /// - `Unavailable`: the leader stepped down, or the log closed, before a majority was known to have the append;
    ///   outcome unknown. Within a session it can be sent again.
    pub fn wait(&self) -> Result<T> {
        loop {
            if let Some(result) = self.seat.completion.wait(self.seat.place, None) {
                return result.map(T::of);
            }
        }
    }

    /// Like [`wait`](Self::wait), for up to `timeout`. Zero is allowed and checks once.
    ///
    /// # Errors
    /// Those of `wait`, and `Timeout`: the append is still in progress and **may still become durable**. Wait for this
    /// ticket again. Appending the record again may put it into the log twice, unless it belongs to a session.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<T> {
        // A time-out that no clock can represent means no limit.
        let deadline = pause::now().checked_add(timeout);
        let Some(result) = self.seat.completion.wait(self.seat.place, deadline) else {
            let message = match self.seat.place.count {
                0 => format!("there was no answer within {timeout:?}"),
                _ => format!(
                    "the append has no result after {timeout:?}; it may still become durable: wait for its ticket again"
                ),
            };
            return Err(Error::new(ErrorKind::Timeout, message));
        };
        result.map(T::of)
    }

    /// Returns the result if it is known. Never blocks.
    ///
    /// The result's errors are those of [`wait`](Self::wait).
    pub fn poll(&self) -> Option<Result<T>> {
        Some(self.seat.result()?.map(T::of))
    }

    /// How durable the append was when it was acknowledged. `None`: it has no result yet, it has failed, or the ticket
    /// is of a request. Never blocks. An [`Appended`] says the same.
    ///
    /// ```
    /// use chiplog::{Durability, Log, Options};
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    /// let ticket = log.submit(b"record")?;
    /// ticket.wait()?;
    /// assert_eq!(ticket.durability(), Some(Durability::Majority)); // of one voter, without an object store
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(&self) -> Option<Durability> {
        self.seat.result()?.ok()?.durability
    }

    /// Calls `callback` with the result, exactly once: at once on this thread if the result is known already, otherwise
    /// **on a thread of the log** as soon as it is known. The log writes nothing else until the callback returns, so it
    /// should only pass the result on. It must not wait for an append to the same log: that would deadlock. On the
    /// log's thread a panic of the callback is caught and logged.
    ///
    /// ```
    /// use chiplog::{Log, Options};
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// log.submit(b"record")?.on_complete(move |result| drop(sender.send(result)));
    /// println!("durable at {}", receiver.recv()??);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_complete(self, callback: impl FnOnce(Result<T>) + Send + 'static) {
        // Boxed before the lock is taken, to hold it briefly.
        let callback: Callback = Box::new(move |result: Result<Appended>| callback(result.map(T::of)));
        let mut hooks = self.seat.completion.hooks.lock();
        // Under the lock: either this sees the result, or `complete`, which takes the hooks under the lock after it
        // stored DONE, sees this callback.
        match self.seat.result() {
            None => hooks.callbacks.push((self.seat.place, callback)),
            Some(result) => {
                drop(hooks);
                callback(result);
            }
        }
    }
}

impl<T: TicketValue> Future for Ticket<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.seat.poll(context).map_ok(T::of)
    }
}

impl Seat {
    /// The result, if it is known.
    fn result(&self) -> Option<Result<Appended>> {
        self.completion.result(self.place)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Appended>> {
        if let Some(result) = self.result() {
            return Poll::Ready(result);
        }
        // Cloning and dropping wakers is foreign code, so it happens outside the lock.
        let waker = context.waker().clone();
        let mut hooks = self.completion.hooks.lock();
        // Checked again under the lock; see `on_complete`.
        if let Some(result) = self.result() {
            drop(hooks);
            return Poll::Ready(result);
        }
        // Only the newest waker counts: it replaces the one of an earlier poll.
        let replaced = match self.waker {
            Some(place) => hooks.wakers[place].replace(waker),
            None => {
                self.waker = Some(hooks.wakers.len());
                hooks.wakers.push(Some(waker));
                None
            }
        };
        drop(hooks);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Seat {
    /// Drops the waker that this ticket registered; does not touch other tickets.
    fn drop(&mut self) {
        if let Some(place) = self.waker {
            let mut hooks = self.completion.hooks.lock();
            // The slot is gone if `complete` took the wakers.
            let waker = hooks.wakers.get_mut(place).and_then(Option::take);
            drop(hooks);
            drop(waker);
        }
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seat { place, .. } = &self.seat;
        f.debug_struct("Ticket").field("count", &place.count).field("result", &self.seat.result()).finish()
    }
}

/// Replacements for parts of the standard library while loom explores interleavings.
mod sync {
    #[cfg(loom)]
    use loom::sync::{Mutex as Inner, MutexGuard};
    #[cfg(not(loom))]
    use std::sync::{Mutex as Inner, MutexGuard};
    use std::sync::{OnceLock, PoisonError};

    /// A mutex that cannot be poisoned: no foreign code runs while it is held, so no panic happens either.
    pub(crate) struct Mutex<T>(Inner<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Inner::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A cell that is set once. The state word, not the cell, decides when it may be read.
    pub(crate) struct Once<T> {
        cell: OnceLock<T>,
        /// In the model the cell does not order memory between threads: unless the state word's orderings make the set
        /// visible, loom lets this Relaxed load miss it, and the model fails.
        #[cfg(loom)]
        visible: loom::sync::atomic::AtomicBool,
    }

    impl<T> Once<T> {
        pub(crate) fn new() -> Self {
            Self {
                cell: OnceLock::new(),
                #[cfg(loom)]
                visible: loom::sync::atomic::AtomicBool::new(false),
            }
        }

        /// Sets the value; false if it was set before.
        pub(crate) fn set(&self, value: T) -> bool {
            let first = self.cell.set(value).is_ok();
            #[cfg(loom)]
            self.visible.store(true, loom::sync::atomic::Ordering::Relaxed);
            first
        }

        pub(crate) fn get(&self) -> Option<&T> {
            #[cfg(loom)]
            if !self.visible.load(loom::sync::atomic::Ordering::Relaxed) {
                return None;
            }
            self.cell.get()
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
