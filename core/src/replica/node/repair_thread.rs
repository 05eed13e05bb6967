//! Repair thread: the writer thread of a log that opens damaged. It repairs the log first, and then becomes one of the
//! node's two threads. The handle stays the same.
//!
//! Must not know: how damage is repaired.

use crate::cluster::transport::Envelope;
use crate::disk::Lock;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::read::positions::{Positions, closed};
use crate::replica::node::driver::{Driver, Stopwatch};
use crate::replica::node::{Node, Published, fail, poisoned};
use crate::replica::open::RecoveredLog;
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::{ProposalQueue, Work};
use crate::replica::repair::offline::Repairing;
use crate::store::segment::Segments;
use crate::sync::completion::Outcome;
use crate::sync::threads::{spawn, spawn_writer};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state that a log's threads share.
#[derive(Clone)]
pub(crate) struct Shared {
    /// The log's directory.
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) queue: Arc<ProposalQueue>,
    pub(crate) positions: Arc<Positions>,
    pub(crate) published: Arc<Published>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) seed: u64,
    pub(crate) watch: Stopwatch,
}

impl Shared {
    /// Repairs the log, then runs as one of its writer threads until the handle is closed.
    pub(crate) fn rescue(self, mut repairing: Box<Repairing>) {
        let cluster = repairing.damaged().cluster.clone();
        let ended = match self.repair(&mut repairing) {
            Ok(Some(opened)) => {
                drop(repairing);
                self.go_on(opened)
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(cause) = ended {
            tracing::error!(%cause, "the log could not be repaired");
            let error = self.published.poison.get_or_init(|| poisoned(&cause)).clone();
            self.queue.refuse(error);
        }
        cluster.transport.detach(cluster.node);
        self.refuse_the_rest();
        // The node's driver may have set the reason already.
        self.positions.close(self.published.poison.get().cloned().unwrap_or_else(closed));
    }

    /// Repairs until the log opens (returns it), or the handle is closed (returns None).
    fn repair(&self, repairing: &mut Repairing) -> Result<Option<RecoveredLog>> {
        let transport = repairing.damaged().cluster.transport.clone();
        loop {
            let work = self.queue.take(true);
            let closed = work.closed;
            let messages = self.sort(work, &repairing.refusal());
            if closed {
                return Ok(None);
            }
            let now = self.watch.now();
            let opened = repairing.step(now, messages)?;
            self.published.counters.repaired.store(repairing.repaired, Ordering::Relaxed);
            self.published.counters.damaged.store(repairing.repaired + 1, Ordering::Relaxed);
            if let Some(opened) = opened {
                self.published.counters.damaged.store(repairing.repaired, Ordering::Relaxed);
                return Ok(Some(opened));
            }
            self.published.show(repairing.status());
            self.published.hold(Some(repairing.refusal()));
            repairing.take_outgoing().into_iter().for_each(|envelope| transport.send(envelope));
            let now = self.watch.now();
            self.queue.wait(repairing.deadline(now).map(|at| at.since(now)));
        }
    }

    /// Refuses everything that cannot be done during a repair. Returns the messages.
    fn sort(&self, work: Work, refusal: &Error) -> Vec<Envelope> {
        for item in work.items {
            fail(item, refusal);
        }
        let mut messages = Vec::new();
        for event in work.events {
            match event {
                InboxEvent::Message(envelope) => messages.push(envelope),
                InboxEvent::AdminRequest(_, _, completer) => {
                    completer.answer(Outcome::Failed(refusal.clone()))
                }
                InboxEvent::BackgroundJob => {}
            }
        }
        messages
    }

    /// The log is sound: runs it as if it had been sound when it was opened.
    fn go_on(&self, mut opened: RecoveredLog) -> Result<()> {
        let lock: Arc<dyn Lock> = opened.take_lock().into();
        let committed = opened.sequencer.committed();
        let last = opened.sequencer.end().next.previous();
        self.positions.discarded(committed.first);
        self.positions.written(last);
        self.positions.durable_to(last);
        self.positions.commit_to(committed.next.previous().min(last));
        self.queue.recount(self.segments.bytes_from(committed.first));
        let allocator = opened.store.allocator.clone();
        let cluster = opened.cluster.clone();
        let helper = spawn("chiplog-helper", &self.path, {
            let (allocator, lock) = (allocator.clone(), lock.clone());
            move || {
                allocator.run();
                drop(lock);
            }
        })?;
        // Before the node publishes its role: a replica whose role is follower refuses no reads.
        self.published.hold(None);
        self.positions.wake();
        let node = Node::with(
            opened,
            self.options.clone(),
            self.queue.clone(),
            self.positions.clone(),
            self.published.clone(),
            self.seed,
            self.watch.now(),
        );
        let ended = node.and_then(|node| {
            let driver = Arc::new(Driver::new(node, cluster, self.watch, true));
            let second = spawn_writer(&self.path, &self.queue, {
                let driver = driver.clone();
                move || driver.run()
            })?;
            driver.run();
            Ok(second)
        });
        let ended = ended.map(|second| _ = second.join());
        allocator.stop();
        let _ = helper.join();
        drop(lock);
        ended
    }

    fn refuse_the_rest(&self) {
        self.queue.stop_receiving();
        let why = self.published.poison.get().cloned().unwrap_or_else(closed);
        self.queue.refuse(why.clone());
        self.sort(self.queue.take(true), &why);
    }
}
