//! Driver: the threads that a node lives on. One of them has the turn, the others sleep; a replica has two, so that its
//! messages are heard while it syncs.
//!
//! ```text
//!  queue ──> take ──> node: turn ──> begin_sync ──┬─ nothing: sleeps at the queue
//!    ^                                            ├─ alone:   syncs ──> node: end_sync
//!    └────────────────────────────────────────────┴─ cluster: lets go of the turn, syncs ──> end_sync, whose turn it is
//! ```
//!
//! It never waits for company: a lone append goes at once. What arrives while a sync runs goes with the next. Who has the
//! turn carries out the sync itself: nobody need be woken for it, and of those who sleep one is woken only if something comes
//! meanwhile.
//!
//! Invariants:
//! - The node is touched, and what waits is taken, by who has the turn alone: nothing overtakes anything.
//! - Who syncs or sleeps tells the queue before: what comes wakes somebody.
//! - Who sleeps wakes no later than the node wanted when it fell asleep, of a replica within an election time-out: so late
//!   may be, while a sync lasts, what the node came to want later.
//! - Appends that were submitted before the log was closed are ordered and committed while commits go on. A replica leads no
//!   longer than this needs: it does not lead on while a disk hangs.
//! - All who wait are told of the end, even after a panic, and before any disk is waited for.

use crate::cluster::Cluster;
use crate::completion::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Queue, Work};
use crate::mail::Mail;
use crate::moment::Moment;
use crate::node::{Node, fail, unknown};
use crate::positions::closed;
use crate::types::RaftIndex;
use crate::writing::Fsync;
use rustix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time since the process looked first. It goes on while the machine is suspended: else the wall clock would seem to jump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Moment);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(since_boot())
    }

    pub(crate) fn now(self) -> Moment {
        Moment::default().plus(since_boot().since(self.0))
    }
}

fn since_boot() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    Moment::default().plus(seconds + nanos)
}

/// What a node's threads share.
pub(crate) struct Driver {
    /// How many threads: of a replica one goes on while the other syncs.
    threads: usize,
    queue: Arc<Queue>,
    cluster: Cluster,
    watch: Stopwatch,
    turn: Mutex<Turn>,
    /// A sync that has ended, for who has the turn next: who carried it out need not be the one.
    synced: Mutex<Option<Synced>>,
}

type Synced = (Arc<Fsync>, Result<()>);

/// The node, and how far its life is.
struct Turn {
    node: Node,
    /// A sync is under way on a thread that does not have the turn.
    syncing: bool,
    /// The log is closed.
    ending: Option<Ending>,
    ended: Option<Result<()>>,
    /// All who wait were told of the end.
    silent: bool,
}

/// A closed log goes on while appends that were submitted before get committed.
#[derive(Clone, Copy, Debug)]
struct Ending {
    committed: RaftIndex,
    /// Unless more is committed by then.
    until: Moment,
}

impl Ending {
    /// `patience` from now on, if more is committed than before.
    fn note(ending: &mut Option<Self>, committed: RaftIndex, now: Moment, patience: Duration) -> Self {
        let before = ending.filter(|e| committed <= e.committed);
        *ending.insert(before.unwrap_or(Self { committed, until: now.plus(patience) }))
    }
}

/// What who had the turn does next, without it.
enum Next {
    Sync(Arc<Fsync>),
    Sleep(Option<Duration>),
    /// The log is being closed: looks again soon.
    Pause,
    End,
}

impl Driver {
    pub(crate) fn new(node: Node, cluster: Cluster, watch: Stopwatch, replicated: bool) -> Self {
        let threads = if replicated { 2 } else { 1 };
        let queue = node.queue.clone();
        let turn = Turn { node, syncing: false, ending: None, ended: None, silent: false };
        Self { threads, queue, cluster, watch, turn: Mutex::new(turn), synced: Mutex::default() }
    }

    /// On how many threads [`Self::run`] has to be called.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The life of a thread: until the queue is closed and empty, or the log is poisoned. By then all are answered.
    pub(crate) fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work()));
        let mut turn = self.turn();
        if outcome.is_err() {
            turn.ended.get_or_insert_with(|| Err(panicked()));
        }
        // A second time, if foreign code panics in it: telling again is harmless.
        for _ in 0..2 {
            if !turn.silent {
                turn.silent = catch_unwind(AssertUnwindSafe(|| self.end(&mut turn))).is_ok();
            }
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(|poisoned| {
            let mut turn = poisoned.into_inner();
            turn.ended.get_or_insert_with(|| Err(panicked()));
            turn
        })
    }

    fn work(&self) {
        loop {
            let next = self.step(&mut self.turn());
            match next {
                Next::Sync(job) => {
                    self.queue.leave();
                    let result = job.run();
                    *self.synced.lock().unwrap_or_else(PoisonError::into_inner) = Some((job, result));
                }
                Next::Sleep(patience) => self.queue.wait(patience),
                Next::Pause => std::thread::sleep(SHORT),
                Next::End => return,
            }
        }
    }

    /// Does what there is to do now.
    fn step(&self, turn: &mut Turn) -> Next {
        if turn.ended.is_some() {
            return Next::End;
        }
        self.try_step(turn).unwrap_or_else(|error| {
            turn.ended = Some(Err(error));
            Next::End
        })
    }

    fn try_step(&self, turn: &mut Turn) -> Result<Next> {
        self.collect_sync(turn)?;
        let now = self.watch.now();
        if turn.syncing && turn.ending.is_some_and(|e| now >= e.until || !turn.node.awaits_commit(now)) {
            return Ok(Next::Pause);
        }
        let hungry = turn.node.is_hungry();
        let mut work = self.queue.take(hungry);
        let closed = work.closed;
        if closed && !turn.node.replica.is_leader() {
            // Nobody waits for what others would have this replica write.
            work.mail.retain(|mail| !matches!(mail, Mail::Message(_)));
        }
        turn.node.turn(self.watch.now(), work)?;
        let job = self.begin_sync(turn)?;
        let now = self.watch.now();
        let deadline = turn.node.deadline(now);
        self.queue.expect(turn.node.is_hungry(), deadline.is_some_and(|at| at <= now));
        if let Some(job) = job {
            return Ok(Next::Sync(job));
        }
        if closed {
            let (committed, patience) = (turn.node.replica.committed(), self.cluster.election_timeout * 2);
            let ending = Ending::note(&mut turn.ending, committed, now, patience);
            // Nobody else could lead a log on its own, so it waits for its disk as any append does.
            let may_go_on = now < ending.until || turn.node.is_alone();
            if turn.syncing || (turn.node.is_busy(now) && may_go_on) {
                return Ok(Next::Pause);
            }
            self.bring_to_its_end(turn)?;
            turn.ended = Some(Ok(()));
            return Ok(Next::End);
        }
        let patience = deadline.map(|at| at.since(now));
        // Who sleeps does not hear that the other one, before it left to sync, gave the node a clock to watch.
        let most = (self.threads > 1).then_some(self.cluster.election_timeout);
        Ok(Next::Sleep(patience.into_iter().chain(most).min()))
    }

    /// Begins the sync of what was written; alone, carries it out.
    fn begin_sync(&self, turn: &mut Turn) -> Result<Option<Arc<Fsync>>> {
        if turn.syncing {
            return Ok(None);
        }
        if turn.node.is_alone() {
            self.sync(turn)?;
            return Ok(None);
        }
        let job = turn.node.begin_sync(self.watch.now());
        turn.syncing = job.is_some();
        Ok(job)
    }

    /// Makes durable what was written.
    fn sync(&self, turn: &mut Turn) -> Result<()> {
        while let Some(job) = turn.node.begin_sync(self.watch.now()) {
            job.run()?;
            turn.node.end_sync(self.watch.now(), &job)?;
        }
        Ok(())
    }

    /// Takes note of a sync that has ended.
    fn collect_sync(&self, turn: &mut Turn) -> Result<()> {
        let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((job, result)) = synced else { return Ok(()) };
        turn.syncing = false;
        result?;
        turn.node.end_sync(self.watch.now(), &job)
    }

    /// Proves the tail, and ends.
    fn bring_to_its_end(&self, turn: &mut Turn) -> Result<()> {
        let now = self.watch.now();
        turn.node.prove_now(now);
        // Twice: how far the log is committed, and what proves that.
        for _ in 0..2 {
            turn.node.turn(self.watch.now(), Work::default())?;
            self.sync(turn)?;
            turn.node.prove_now(now);
        }
        turn.node.abdicate();
        turn.node.end();
        Ok(())
    }

    /// Tells of the end: first all who wait here, then the other replicas. Only then waits for the helper thread, whose disk
    /// may hang.
    fn end(&self, turn: &mut Turn) {
        let node = &mut turn.node;
        let cause = turn.ended.clone().and_then(Result::err);
        if let Some(cause) = &cause {
            node.poison(cause);
        }
        self.queue.deafen();
        self.refuse_the_rest(&cause.as_ref().map_or_else(closed, unknown));
        let why = node.published.poison.get().cloned().unwrap_or_else(closed);
        node.replica.fail_asks(&why);
        node.positions.close(why);
        if cause.is_some() {
            node.abdicate();
        }
        self.cluster.transport.detach(self.cluster.node);
        node.writing.store.preparer.settle();
    }

    /// What came in before the queue was closed has not been written.
    fn refuse_the_rest(&self, why: &Error) {
        let work = self.queue.take(true);
        for item in work.items {
            fail(item, why);
        }
        for mail in work.mail {
            if let Mail::Ask(_, _, promise) = mail {
                promise.answer(Outcome::Failed(why.clone()));
            }
        }
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::Poisoned, "the writer thread panicked")
}

/// How often a node that is being closed looks whether it is done.
const SHORT: Duration = Duration::from_millis(1);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Time to close ran from the first moment on, however much was committed meanwhile.
    #[test]
    fn closing_goes_on_while_appends_are_committed() {
        let patience = Duration::from_secs(2);
        let after = |seconds| Moment::default().plus(Duration::from_secs(seconds));
        let mut ending = None;
        let mut until = |seconds, committed| {
            Ending::note(&mut ending, RaftIndex(committed), after(seconds), patience).until
        };
        assert_eq!(until(1, 5), after(3));
        assert_eq!(until(2, 5), after(3), "nothing was committed");
        assert_eq!(until(2, 6), after(4));
        assert_eq!(until(5, 6), after(4), "it is over");
    }
}
