//! Driver: the thread that a node lives on, and the one that syncs for it.
//!
//! ```text
//! chiplog-writer:  take what waits ──> turn ──> begin_sync ──> (alone: sync here)   ──> end_sync ──> again
//!                                                  └─ (cluster) ──> chiplog-sync ──> mail: synced ┘
//! ```
//!
//! It never waits for company: a lone append goes at once. What arrives while a sync runs goes with the next. In a
//! cluster the sync has a thread of its own, so that acknowledgements of others are heard meanwhile.

use crate::cluster::Cluster;
use crate::completion::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Queue, Taken, Work};
use crate::mail::Mail;
use crate::moment::Moment;
use crate::node::{Node, fail, unknown};
use crate::positions::closed;
use crate::writing::Fsync;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Time since the process looked first.
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

/// The writer thread's state.
pub(crate) struct Driver {
    node: Node,
    queue: Arc<Queue>,
    cluster: Cluster,
    watch: Stopwatch,
    /// To the thread that syncs, and back.
    jobs: Option<Sender<Arc<Fsync>>>,
    done: Option<Receiver<(Arc<Fsync>, Result<()>)>>,
    syncing: bool,
}

/// The sync thread's state.
pub(crate) struct Syncer {
    jobs: Receiver<Arc<Fsync>>,
    done: Sender<(Arc<Fsync>, Result<()>)>,
    queue: Arc<Queue>,
}

impl Syncer {
    /// Until the driver ends.
    pub(crate) fn run(self) {
        while let Ok(job) = self.jobs.recv() {
            let result = job.run();
            if self.done.send((job, result)).is_err() {
                return;
            }
            self.queue.push_mail(Mail::Synced);
        }
    }
}

impl Driver {
    /// The driver of `node`, and, if it is one of a cluster, the thread's state that syncs for it.
    pub(crate) fn new(
        node: Node,
        cluster: Cluster,
        watch: Stopwatch,
        replicated: bool,
    ) -> (Self, Option<Syncer>) {
        let queue = node.queue.clone();
        let mut driver = Self { node, queue, cluster, watch, jobs: None, done: None, syncing: false };
        if !replicated {
            return (driver, None);
        }
        let ((to_syncer, jobs), (done, from_syncer)) = (channel(), channel());
        driver.jobs = Some(to_syncer);
        driver.done = Some(from_syncer);
        let syncer = Syncer { jobs, done, queue: driver.queue.clone() };
        (driver, Some(syncer))
    }

    /// The thread's life: until the queue is closed and empty, or the log is poisoned.
    pub(crate) fn run(mut self) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work()));
        let outcome =
            worked.unwrap_or_else(|_| Err(Error::new(ErrorKind::Poisoned, "the writer thread panicked")));
        let poisoned = outcome.err().map(|cause| {
            self.node.poison(cause.clone()); // its last word is for the others
            unknown(&cause)
        });
        self.cluster.transport.detach(self.cluster.node);
        self.refuse_the_rest(&poisoned.unwrap_or_else(closed));
        self.node.writing.store.preparer.settle();
        let why = self.node.published.poison.get().cloned().unwrap_or_else(closed);
        self.node.replica.fail_asks(&why);
        self.node.positions.close(why);
    }

    fn work(&mut self) -> Result<()> {
        let mut ending: Option<Moment> = None;
        loop {
            let now = self.watch.now();
            let patience = self.node.deadline(now).map(|at| at.since(now));
            let patience =
                if ending.is_some() { Some(patience.unwrap_or(SHORT).min(SHORT)) } else { patience };
            let hungry = self.node.is_hungry();
            let (work, closed) = match self.queue.take(patience, hungry) {
                Taken::Work(work) => (work, !hungry && self.queue.is_closed()),
                Taken::Idle => (Work::default(), self.queue.is_closed()),
                Taken::Closed => (Work::default(), true),
            };
            self.step(work)?;
            if closed {
                let now = self.watch.now();
                let end = *ending.get_or_insert(now.plus(self.cluster.election_timeout * 2));
                if !self.syncing && (!self.node.is_busy(now) || now >= end) {
                    return self.end();
                }
                if self.syncing {
                    self.await_sync()?;
                } else if self.jobs.is_some() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn step(&mut self, work: Work) -> Result<()> {
        self.collect_sync()?;
        self.node.turn(self.watch.now(), work)?;
        self.sync()
    }

    /// Begins the sync of what was written; alone, carries it out.
    fn sync(&mut self) -> Result<()> {
        while !self.syncing {
            let Some(job) = self.node.begin_sync(self.watch.now()) else { return Ok(()) };
            match &self.jobs {
                Some(jobs) if !self.node.is_alone() => {
                    self.syncing = true;
                    if jobs.send(job).is_err() {
                        return Err(syncer_ended());
                    }
                }
                _ => {
                    job.run()?;
                    self.node.end_sync(self.watch.now(), &job)?;
                }
            }
        }
        Ok(())
    }

    /// Takes note of a sync that has ended.
    fn collect_sync(&mut self) -> Result<()> {
        let Some(done) = &self.done else { return Ok(()) };
        match done.try_recv() {
            Ok((job, result)) => self.take_synced(&job, result),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(syncer_ended()),
        }
    }

    fn take_synced(&mut self, job: &Arc<Fsync>, result: Result<()>) -> Result<()> {
        self.syncing = false;
        result?;
        self.node.end_sync(self.watch.now(), job)
    }

    fn await_sync(&mut self) -> Result<()> {
        let Some((job, result)) = self.done.as_ref().and_then(|d| d.recv().ok()) else {
            return Err(syncer_ended());
        };
        self.take_synced(&job, result)
    }

    /// Proves the tail, and ends.
    fn end(&mut self) -> Result<()> {
        let now = self.watch.now();
        self.node.prove_now(now);
        // Twice: how far the log is committed, and what proves that.
        for _ in 0..2 {
            self.step(Work::default())?;
            while self.syncing {
                self.await_sync()?;
                self.sync()?;
            }
            self.node.prove_now(now);
        }
        self.node.abdicate();
        self.node.end();
        Ok(())
    }

    /// What came in before the queue was closed has not been written.
    fn refuse_the_rest(&mut self, why: &Error) {
        while let Taken::Work(work) = self.queue.take(Some(Duration::ZERO), true) {
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
}

fn syncer_ended() -> Error {
    Error::new(ErrorKind::Poisoned, "the sync thread has ended")
}

/// How often a node that is being closed looks whether it is done.
const SHORT: Duration = Duration::from_millis(1);
