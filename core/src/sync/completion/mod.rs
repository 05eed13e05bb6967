//! Completion: how the outcome of one block reaches everybody who appended to it; and the public [`Ticket`].
//!
//! ```text
//! writer thread                           callers, one ticket each
//!                   +------------+ <------ ticket (ordinal 0, offset 0, 1 record)   wait / wait_timeout
//! complete() -----> | Completion | <------ ticket (ordinal 1, offset 1, 5 records)  poll
//!                   +------------+ <------ ticket (ordinal 2, offset 6, 1 record)   .await / on_complete
//! ```
//!
//! All batches of a block share one completion: the writer publishes one outcome, with one system call if
//! any thread sleeps and none otherwise; each ticket works out its own result from its place in the block.
//!
//! Invariants:
//! - The state word moves Pending -> Waited -> Done or Pending -> Done, and never back.
//! - Done is stored after the outcome, so whoever sees Done sees the outcome.
//! - A hook (waker or callback) is registered under the lock and only while not Done; `complete` takes the
//!   hooks under that lock after storing Done: each is run exactly once.
//! - No foreign code (wakers, callbacks, their destructors) runs while the lock is held.
//!
//! Must not know: blocks, files, the writer, sessions, any async runtime.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::futex::Futex;
use crate::types::Index;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Where a batch's records stand in the log.
///
/// ```
/// use chiplog::{Appended, Index};
/// let appended = Appended { first: Index(5), count: 3 };
/// assert_eq!(appended.last(), Index(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Appended {
    /// Index of the first record.
    pub first: Index,
    /// How many records: at least 1. They follow each other without a gap.
    pub count: u32,
}

impl Appended {
    /// Index of the last record.
    pub const fn last(self) -> Index {
        self.first.plus(self.count as u64).previous()
    }
}

/// What became of a block.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Every batch of the block was taken: a ticket's first index is this one plus the ticket's offset.
    Placed { first: Index },
    /// One result a batch, by the ticket's ordinal: some were duplicates or refused.
    Each(Vec<Result<Appended>>),
    /// Nothing of the block may be taken for durable.
    Failed(Error),
}

/// Nobody sleeps; the outcome is not known.
const PENDING: u32 = 0;
/// Somebody sleeps, or is about to; the outcome is not known.
const WAITED: u32 = 1;
/// The outcome is there and stays.
const DONE: u32 = 2;

/// The outcome-to-be of one block, shared by all who wait for it.
pub(crate) struct Completion {
    /// Moves: to `WAITED` by a caller before it sleeps, to `DONE` by `complete`.
    state: Futex,
    /// Set once, before `state` becomes `DONE`; read only after `DONE` was seen.
    outcome: sync::Once<Outcome>,
    hooks: sync::Mutex<Hooks>,
}

/// Whom to tell besides the threads that sleep.
#[derive(Default)]
struct Hooks {
    /// One place for each ticket that was ever polled as a future; None once that ticket was dropped.
    wakers: Vec<Option<Waker>>,
    callbacks: Vec<(Place, Callback)>,
}

type Callback = Box<dyn FnOnce(Result<Appended>) + Send>;

/// A batch's place in its block.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Which batch of the block, from 0.
    ordinal: u32,
    /// Records of the block before it.
    offset: u32,
    /// Its own records.
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

    /// Publishes the outcome, wakes all who sleep, then runs wakers and callbacks on this thread. A callback
    /// that panics is reported and costs nobody else anything.
    ///
    /// Panics when called twice: an outcome that was shown must not change.
    pub(crate) fn complete(&self, outcome: Outcome) {
        assert!(self.outcome.set(outcome), "a block is completed once");
        // Release: whoever reads DONE with Acquire sees the outcome that was stored above.
        //
        // No wake-up is lost, because this swap and the waiter's PENDING -> WAITED exchange are both
        // read-modify-writes of one word, so one of them is first. The waiter's first: the swap returns
        // WAITED and all are woken; those who are on their way into the kernel find DONE where they expect
        // WAITED and do not sleep. The swap first: the exchange fails and the waiter sees DONE.
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

    /// The result of the batch at `place`, once there is one.
    fn result(&self, place: Place) -> Option<Result<Appended>> {
        // Acquire: pairs with the Release in `complete`, so that the outcome is visible.
        if self.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let Some(outcome) = self.outcome.get() else { unreachable!("the outcome is stored before DONE") };
        Some(match outcome {
            Outcome::Placed { first } => {
                Ok(Appended { first: first.plus(place.offset.into()), count: place.count })
            }
            Outcome::Each(results) => results[place.ordinal as usize].clone(),
            Outcome::Failed(error) => Err(error.clone()),
        })
    }

    /// Sleeps until there is a result; None when `deadline` came first.
    fn wait(&self, place: Place, deadline: Option<Instant>) -> Option<Result<Appended>> {
        loop {
            if let Some(result) = self.result(place) {
                return Some(result);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            // Says that somebody sleeps, unless that is said already. Relaxed: publishes nothing; the word
            // itself is all that matters here, and `result` above reads the outcome behind its own Acquire.
            let seen = self.state.compare_exchange(PENDING, WAITED, Ordering::Relaxed, Ordering::Relaxed);
            if seen == Err(DONE) {
                continue;
            }
            // Woken or out of time: the loop's head looks at both.
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

/// Runs foreign code on a writer thread, which must outlive the other's panics.
fn guarded(what: &str, run: impl FnOnce()) {
    // AssertUnwindSafe: what the code leaves half-done is its own; the completion is not touched by it.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        tracing::error!(message, "a {what} of an append panicked; the log goes on");
    }
}

/// An append that was submitted: tells when it is durable, and under which indexes.
///
/// Wait for it, poll it, await it (it is a [`Future`], of no particular runtime), or hand it a callback. All
/// tickets of a block become ready at the same moment. Dropping a ticket does not cancel the append; nothing
/// does. `Send` and `Sync`: many threads may wait for one ticket.
///
/// Of no use in a forked child: the thread that settles it is in the parent, so one that was under way at the
/// fork stays so in the child for ever. Drop it there.
///
/// ```
/// use chiplog::{Log, Options};
/// let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let tickets = [log.submit(b"one")?, log.submit(b"two")?]; // both are under way
/// for ticket in &tickets {
///     println!("durable at {}", ticket.wait()?.first);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a ticket that nobody asks leaves it unknown whether the append became durable"]
pub struct Ticket {
    completion: Arc<Completion>,
    place: Place,
    /// Our place among the completion's wakers, once polled as a future.
    waker: Option<usize>,
}

/// A second ticket for the same append, with a waker of its own.
impl Clone for Ticket {
    fn clone(&self) -> Self {
        Self { completion: self.completion.clone(), place: self.place, waker: None }
    }
}

impl Ticket {
    /// The ticket of the batch that is number `ordinal` of its block and has `offset` records before it.
    pub(crate) fn new(completion: Arc<Completion>, ordinal: u32, offset: u32, count: u32) -> Self {
        Self { completion, place: Place { ordinal, offset, count }, waker: None }
    }

    /// Blocks until the append is durable or has failed. At once if it is settled; the answer stays and can
    /// be asked for again. Not to be called in a forked child: if the ticket was not settled at the fork, this
    /// never returns there.
    ///
    /// # Errors
    /// Why the append failed: `Poisoned` (a write or sync failed; outcome unknown), `Full`, `Closed`, or one of the
    /// session's errors. Of a replica of a cluster also `NotLeader` (another one leads; the append is not in the
    /// log), `Removed` (this one takes no part any more; nor is it), and `Unavailable`: the lead was lost, or the log
    /// closed, before a majority had the append for certain; outcome unknown. In a session it can be sent again.
    pub fn wait(&self) -> Result<Appended> {
        loop {
            if let Some(result) = self.completion.wait(self.place, None) {
                return result;
            }
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Zero is allowed and looks once.
    ///
    /// # Errors
    /// Those of `wait`; and `Timeout`: the append is still under way and **may still become durable**. Ask
    /// this ticket again; appending the record again may put it into the log twice (a session prevents that).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Appended> {
        // A time-out beyond what a clock can express is none.
        let deadline = Instant::now().checked_add(timeout);
        self.completion.wait(self.place, deadline).unwrap_or_else(|| {
            let message =
                format!("the append was not settled within {timeout:?}; it may still become durable");
            Err(Error::new(ErrorKind::Timeout, message))
        })
    }

    /// The result, if there is one yet. Never blocks.
    ///
    /// The result's errors are those of [`wait`](Self::wait).
    pub fn poll(&self) -> Option<Result<Appended>> {
        self.completion.result(self.place)
    }

    /// Calls `callback` with the result, exactly once: at once on this thread if it is known already, else
    /// **on a thread of the log's** as soon as it is. Until it returns nothing else is written: it should
    /// only pass the result on. It must not wait for an append to the same log, which would wait for itself.
    /// There a panic of the callback is caught and logged.
    ///
    /// ```
    /// use chiplog::{Log, Options};
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// log.submit(b"record")?.on_complete(move |result| drop(sender.send(result)));
    /// println!("durable at {}", receiver.recv()??.first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_complete(self, callback: impl FnOnce(Result<Appended>) + Send + 'static) {
        // Boxed before the lock is taken: what is done under it stays short.
        let callback: Callback = Box::new(callback);
        let mut hooks = self.completion.hooks.lock();
        // Under the lock: either this sees the result, or `complete`, which takes the hooks under the lock
        // after it stored DONE, sees this callback.
        match self.poll() {
            None => hooks.callbacks.push((self.place, callback)),
            Some(result) => {
                drop(hooks);
                callback(result);
            }
        }
    }
}

impl Future for Ticket {
    type Output = Result<Appended>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = &mut *self;
        if let Some(result) = Self::poll(ticket) {
            return Poll::Ready(result);
        }
        // Cloning and dropping wakers is foreign code: outside the lock.
        let waker = context.waker().clone();
        let mut hooks = ticket.completion.hooks.lock();
        // Once more under the lock; see `on_complete`.
        if let Some(result) = Self::poll(ticket) {
            drop(hooks);
            return Poll::Ready(result);
        }
        // Only the newest waker counts: it replaces the one of an earlier poll.
        let replaced = match ticket.waker {
            Some(place) => hooks.wakers[place].replace(waker),
            None => {
                ticket.waker = Some(hooks.wakers.len());
                hooks.wakers.push(Some(waker));
                None
            }
        };
        drop(hooks);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Ticket {
    /// Lets go of the task that this ticket would have woken; touches nothing of other tickets.
    fn drop(&mut self) {
        if let Some(place) = self.waker {
            let mut hooks = self.completion.hooks.lock();
            // Nothing is there any more if `complete` took it.
            let waker = hooks.wakers.get_mut(place).and_then(Option::take);
            drop(hooks);
            drop(waker);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("count", &self.place.count).field("result", &self.poll()).finish()
    }
}

/// What the log will answer to a question or command that is under way: an index. A [`Future`] of no particular
/// runtime; dropping it takes nothing back. Of no use in a forked child, as a [`Ticket`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let last = log.submit_barrier(std::time::Duration::from_secs(1))?;
/// assert_eq!(last.wait()?.get(), 1);
/// assert_eq!(last.poll().expect("waited for")?.get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an answer that nobody waits for tells nothing"]
pub struct Answer(pub(crate) Ticket);

impl Answer {
    /// Blocks until there is an answer.
    ///
    /// # Errors
    /// What hindered it; see the call that gave this.
    pub fn wait(&self) -> Result<Index> {
        self.0.wait().map(|a| a.first)
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Zero is allowed and looks once.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); `Timeout`: there is no answer yet.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Index> {
        let deadline = Instant::now().checked_add(timeout);
        let answer = self.0.completion.wait(self.0.place, deadline).unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Timeout, format!("there was no answer within {timeout:?}")))
        });
        answer.map(|a| a.first)
    }

    /// The answer, if there is one yet. Never blocks.
    pub fn poll(&self) -> Option<Result<Index>> {
        Some(self.0.poll()?.map(|a| a.first))
    }

    /// Calls `callback` with the answer, as [`Ticket::on_complete`].
    pub fn on_complete(self, callback: impl FnOnce(Result<Index>) + Send + 'static) {
        self.0.on_complete(move |result| callback(result.map(|a| a.first)));
    }
}

impl Future for Answer {
    type Output = Result<Index>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_ok(|a| a.first)
    }
}

/// What of the standard library is replaced when loom explores the interleavings.
mod sync {
    #[cfg(loom)]
    use loom::sync::{Mutex as Inner, MutexGuard};
    #[cfg(not(loom))]
    use std::sync::{Mutex as Inner, MutexGuard};
    use std::sync::{OnceLock, PoisonError};

    /// A mutex that cannot be poisoned: no foreign code runs under it, so nothing panics under it.
    pub(crate) struct Mutex<T>(Inner<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Inner::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A cell that is set once. The state word, not the cell, says when it may be read.
    pub(crate) struct Once<T> {
        cell: OnceLock<T>,
        /// In the model the cell orders nothing between threads: unless the state word's orderings make the
        /// set visible, loom lets this Relaxed load miss it, and the model fails.
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

        /// False if it was set before.
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
