//! Driver: the threads of a node. One of them holds the node lock, the others sleep. A replica has two threads, so that
//! one processes messages while the other one syncs.
//!
//! ```text
//!  queue ──> take ──> node: step ──> begin_sync ──┬─ nothing: sleeps on the queue
//!    ^                                            ├─ alone:   syncs ──> node: end_sync
//!    └────────────────────────────────────────────┴─ cluster: releases the lock, syncs ──> next lock holder: end_sync
//! ```
//!
//! Group commit adds no delay: if the disk is idle, an append is written immediately. Appends that arrive during a
//! sync become durable together, with the next sync. A replica writes them while the sync runs. The thread that held
//! the lock runs the sync itself, so no other thread has to be woken for it. The other thread is woken only if an
//! event arrives during the sync.
//!
//! Invariants:
//! - Only the thread that holds the node lock uses the node and takes the queue, so events keep their order.
//! - A thread informs the queue before it syncs or sleeps: from then on an event wakes a thread.
//! - A thread wakes no later than the node's deadline when it fell asleep, and in a replica within one election
//!   timeout. A deadline that the node sets later, while another thread syncs, can be late by that much.
//! - Appends that were submitted before the log was closed are proposed and committed as long as commits make progress.
//!   A replica stays leader no longer than this takes: it does not stay leader while a disk hangs.
//! - Every waiting caller is informed of the end, even after a panic, and before the thread waits for any disk.
//!
//! [`Driver::step`] is what a thread decides while it holds the lock. It knows no threads, no locks and no clock. The
//! threads of a program call it, and so does the simulator, which chooses the thread, the time and the end of a sync.
//! The models run the threads themselves, over a stub of a node.

use crate::cluster::options::ClusterOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::read::positions::closed;
use crate::replica::node::{Node, fail, unknown};
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::{ProposalQueue, Work};
use crate::sync::clock::Moment;
use crate::sync::completion::Outcome;
use crate::types::EntryIndex;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The clock of the code that drives a node.
pub(crate) trait Watch<N> {
    /// The time since the clock started.
    fn now(&self) -> Moment;
    /// Called after each sync that runs under the node lock: one step can run many.
    fn sees(&self, _: &N) {}
}

/// The time since it was started, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Moment {
        Moment(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl<N> Watch<N> for Stopwatch {
    fn now(&self) -> Moment {
        Self::now(*self)
    }
}

/// The node that is driven, or its stub in the models.
pub(crate) trait DrivenNode {
    /// A sync. Any thread may run it, without the node lock.
    type Job;
    /// Runs a sync. Blocks on the device.
    fn run(job: &Self::Job) -> Result<()>;
    fn queue(&self) -> &Arc<ProposalQueue>;
    fn is_leader(&self) -> bool;
    /// Whether no other replica has a part in this log: then the sync may run under the node lock.
    fn is_alone(&self) -> bool;
    /// Whether appends may be taken from the queue: there is room for more uncommitted bytes.
    fn accepts_proposals(&self) -> bool;
    fn committed(&self) -> EntryIndex;
    /// Whether work is in progress that will end by itself: blocks to be synced, appends to be committed.
    fn is_busy(&self, now: Moment) -> bool;
    /// Whether appends wait that a quorum can still commit: in the queue, taken from it, or proposed.
    fn awaits_commit(&self, now: Moment) -> bool;
    /// Makes one step: everything that there is to do except syncing.
    ///
    /// # Errors
    /// A fatal error, which the caller passes to [`Self::poison`].
    fn step(&mut self, now: Moment, work: Work) -> Result<()>;
    /// Starts a sync. None: everything is synced, or a sync is running already.
    fn begin_sync(&mut self, now: Moment) -> Option<Self::Job>;
    /// The sync that was running has succeeded.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn end_sync(&mut self, now: Moment, job: &Self::Job) -> Result<()>;
    /// When [`Self::step`] has to be called at the latest. None: when there is an event.
    fn deadline(&self, now: Moment) -> Option<Moment>;
    /// Before the log is closed: makes the next step prove the tail, if it is not proven.
    fn prove_now(&mut self, now: Moment);
    /// Transfers leadership, of a leader that is closed or poisoned.
    fn abdicate(&mut self);
    /// Fails everything that is left, when the log is closed. Appends that were not proposed are certainly not in the
    /// log.
    fn end(&mut self);
    /// Ends appends and writes for good, for this cause. Readers continue.
    fn poison(&mut self, cause: &Error);
    /// Waits until the helper thread has sealed and removed the files that are left to it.
    fn settle(&mut self);
    /// Fails all pending requests and wakes all waiting readers: the log is closed, or poisoned.
    fn dismiss(&mut self);
}

/// The state that a node's threads share.
pub(crate) struct Driver<N: DrivenNode = Node, W = Stopwatch> {
    /// The number of threads: in a replica one continues while the other syncs.
    threads: usize,
    queue: Arc<ProposalQueue>,
    cluster: ClusterOptions,
    watch: W,
    guarded: Mutex<Guarded<N>>,
    /// A sync that has ended. The next thread that holds the lock records it; that need not be the thread that ran it.
    synced: Mutex<Option<(N::Job, Result<()>)>>,
}

/// The node, and how far its life has progressed. Behind the node lock.
pub(crate) struct Guarded<N> {
    pub(crate) node: N,
    /// A sync is running on a thread that does not hold the lock.
    syncing: bool,
    /// The log is closed.
    close_deadline: Option<CloseDeadline>,
    pub(crate) ended: Option<Result<()>>,
    /// All waiting callers were informed of the end.
    silent: bool,
}

/// When a closed log stops. It continues while appends that were submitted before the close get committed.
#[derive(Clone, Copy, Debug)]
struct CloseDeadline {
    committed: EntryIndex,
    /// The deadline, unless more is committed by then.
    until: Moment,
}

impl CloseDeadline {
    /// Moves the deadline to `wait_limit` from now if more is committed than before. The first call sets it.
    fn note(
        close_deadline: &mut Option<Self>,
        committed: EntryIndex,
        now: Moment,
        wait_limit: Duration,
    ) -> Self {
        let before = close_deadline.filter(|e| committed <= e.committed);
        *close_deadline.insert(before.unwrap_or(Self { committed, until: now.plus(wait_limit) }))
    }
}

/// The next action of a thread, after it has released the lock.
pub(crate) enum Next<J> {
    Sync(J),
    Sleep(Option<Duration>),
    /// The log is being closed: make another step soon.
    Pause,
    End,
}

impl<N: DrivenNode, W: Watch<N>> Driver<N, W> {
    pub(crate) fn new(node: N, cluster: ClusterOptions, watch: W, replicated: bool) -> Self {
        let threads = if replicated { 2 } else { 1 };
        let queue = node.queue().clone();
        let guarded = Guarded { node, syncing: false, close_deadline: None, ended: None, silent: false };
        Self { threads, queue, cluster, watch, guarded: Mutex::new(guarded), synced: Mutex::new(None) }
    }

    /// The number of threads that have to call [`Self::run`].
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a thread until the queue is closed and empty, or the log is poisoned. All callers are answered when it
    /// returns.
    pub(crate) fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work()));
        if outcome.is_err() {
            self.lock().ended.get_or_insert_with(|| Err(panicked()));
        }
        self.leave();
    }

    /// Ends a thread. The first one that ends informs all waiting callers.
    pub(crate) fn leave(&self) {
        let mut guarded = self.lock();
        // Twice, because the program's callbacks can panic in it; informing callers again has no effect.
        for _ in 0..2 {
            if !guarded.silent {
                guarded.silent = catch_unwind(AssertUnwindSafe(|| self.end(&mut guarded))).is_ok();
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded<N>> {
        self.guarded.lock().unwrap_or_else(|poisoned| {
            let mut guarded = poisoned.into_inner();
            guarded.ended.get_or_insert_with(|| Err(panicked()));
            guarded
        })
    }

    fn work(&self) {
        loop {
            let next = self.step(&mut self.lock());
            match next {
                Next::Sync(job) => {
                    self.queue.leave();
                    let result = N::run(&job);
                    self.has_synced(job, result);
                }
                Next::Sleep(wait_limit) => self.queue.wait(wait_limit),
                Next::Pause => pause(),
                Next::End => return,
            }
        }
    }

    /// Stores the result of a sync that was run without the lock.
    pub(crate) fn has_synced(&self, job: N::Job, result: Result<()>) {
        *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some((job, result));
    }

    /// Makes one step: everything that there is to do now.
    pub(crate) fn step(&self, guarded: &mut Guarded<N>) -> Next<N::Job> {
        if guarded.ended.is_some() {
            return Next::End;
        }
        self.try_step(guarded).unwrap_or_else(|error| {
            guarded.ended = Some(Err(error));
            Next::End
        })
    }

    fn try_step(&self, guarded: &mut Guarded<N>) -> Result<Next<N::Job>> {
        self.collect_sync(guarded)?;
        let now = self.watch.now();
        if guarded.syncing
            && guarded.close_deadline.is_some_and(|e| now >= e.until || !guarded.node.awaits_commit(now))
        {
            return Ok(Next::Pause);
        }
        let accepts_proposals = guarded.node.accepts_proposals();
        let mut work = self.queue.take(accepts_proposals);
        let closed = work.closed;
        if closed && !guarded.node.is_leader() {
            // The log is closed and this replica does not lead: no caller waits for entries of another leader.
            work.events.retain(|event| !matches!(event, InboxEvent::Message(_)));
        }
        guarded.node.step(self.watch.now(), work)?;
        let job = self.begin_sync(guarded)?;
        let now = self.watch.now();
        let deadline = guarded.node.deadline(now);
        self.queue.expect(guarded.node.accepts_proposals(), deadline.is_some_and(|at| at <= now));
        if let Some(job) = job {
            return Ok(Next::Sync(job));
        }
        if closed {
            let (committed, wait_limit) = (guarded.node.committed(), self.cluster.election_timeout * 2);
            let close_deadline = CloseDeadline::note(&mut guarded.close_deadline, committed, now, wait_limit);
            // No other replica could lead a log on its own, so it waits for its disk as any append does.
            let may_go_on = (now < close_deadline.until || guarded.node.is_alone()) && !planted!(60);
            if guarded.syncing || (guarded.node.is_busy(now) && may_go_on) {
                return Ok(Next::Pause);
            }
            self.bring_to_its_end(guarded)?;
            guarded.ended = Some(Ok(()));
            return Ok(Next::End);
        }
        let wait_limit = deadline.map(|at| at.since(now));
        // The other thread may have set an earlier deadline before it left to sync; a sleeping thread does not notice.
        let most = (self.threads > 1).then_some(self.cluster.election_timeout);
        Ok(Next::Sleep(wait_limit.into_iter().chain(most).min()))
    }

    /// Starts the sync of what was written. A log on its own runs it here.
    fn begin_sync(&self, guarded: &mut Guarded<N>) -> Result<Option<N::Job>> {
        if guarded.syncing {
            return Ok(None);
        }
        if guarded.node.is_alone() {
            self.sync(guarded)?;
            return Ok(None);
        }
        let job = guarded.node.begin_sync(self.watch.now());
        guarded.syncing = job.is_some();
        Ok(job)
    }

    /// Makes everything that was written durable. Blocks on the device.
    fn sync(&self, guarded: &mut Guarded<N>) -> Result<()> {
        while let Some(job) = guarded.node.begin_sync(self.watch.now()) {
            N::run(&job)?;
            guarded.node.end_sync(self.watch.now(), &job)?;
            self.watch.sees(&guarded.node);
        }
        Ok(())
    }

    /// Records a sync that has ended.
    fn collect_sync(&self, guarded: &mut Guarded<N>) -> Result<()> {
        let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((job, result)) = synced else { return Ok(()) };
        guarded.syncing = false;
        if planted!(61) {
            result.ok();
            return Ok(()); // the sync is not recorded
        }
        result?;
        guarded.node.end_sync(self.watch.now(), &job)
    }

    /// Proves the tail, and ends the node.
    fn bring_to_its_end(&self, guarded: &mut Guarded<N>) -> Result<()> {
        let now = self.watch.now();
        guarded.node.prove_now(now);
        // Twice: the commit index, and the markers that prove its block.
        for _ in 0..2 {
            guarded.node.step(self.watch.now(), Work::default())?;
            self.sync(guarded)?;
            guarded.node.prove_now(now);
        }
        guarded.node.abdicate();
        guarded.node.end();
        Ok(())
    }

    /// Announces the end: first to all callers that wait here, then to the other replicas. Only then waits for the
    /// helper thread, whose disk may hang.
    fn end(&self, guarded: &mut Guarded<N>) {
        let node = &mut guarded.node;
        let cause = guarded.ended.clone().and_then(Result::err);
        if let Some(cause) = &cause {
            node.poison(cause);
        }
        self.queue.stop_receiving();
        self.refuse_the_rest(&cause.as_ref().map_or_else(closed, unknown));
        node.dismiss();
        if cause.is_some() {
            node.abdicate();
        }
        self.cluster.transport.detach(self.cluster.node);
        node.settle();
    }

    /// Fails what was queued before the close and was not written.
    fn refuse_the_rest(&self, why: &Error) {
        // Of a shared group each call takes a part.
        loop {
            let work = self.queue.take(true);
            if work.items.is_empty() && work.events.is_empty() {
                return;
            }
            for item in work.items {
                fail(item, why);
            }
            for event in work.events {
                if let InboxEvent::AdminRequest(_, _, completer) = event {
                    completer.answer(Outcome::Failed(why.clone()));
                }
            }
        }
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::Poisoned, "the writer thread panicked")
}

/// The pause between two steps of a node that is being closed.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

fn pause() {
    #[cfg(not(loom))]
    std::thread::sleep(SHORT);
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The time to close ran from the close on, however much was committed meanwhile.
    #[test]
    fn close_continues_while_appends_are_committed() {
        let wait_limit = Duration::from_secs(2);
        let after = |seconds| Moment::default().plus(Duration::from_secs(seconds));
        let mut close_deadline = None;
        let mut until = |seconds, committed| {
            CloseDeadline::note(&mut close_deadline, EntryIndex(committed), after(seconds), wait_limit).until
        };
        assert_eq!(until(1, 5), after(3));
        assert_eq!(until(2, 5), after(3), "nothing was committed");
        assert_eq!(until(2, 6), after(4));
        assert_eq!(until(5, 6), after(4), "the deadline has passed");
    }
}
