//! Threads: the two writer threads of a simulated process. They run the shipped [`Driver`] step by step; the world
//! decides which thread runs, when, and when a sync ends.
//!
//! ```text
//!  Awake ── step ──> Between ──┬─ sync ──> Syncing ── has_synced ──┐
//!    ^                         ├─ sleep ─> Asleep ── called, time ─┤
//!    │                         └─ end ───> Ended                   │
//!    └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Between: the thread has released the node lock and has not notified the queue yet. The other thread can run there.
//!
//! Must not know: hosts, the network, what a node does.

use crate::disk::sim::Rng;
use crate::error::Result;
use crate::replica::node::Node;
use crate::replica::node::driver::{Driver, Next, SHORT, Watch};
use crate::replica::writer::SyncOnce;
use crate::store::format::block::BlockHeader;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogNumber};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many writer threads a replica has.
pub(super) const THREADS: usize = 2;

/// A thread that has work left runs again after this time.
const AT_ONCE: Duration = Duration::from_micros(20);

/// The header of an entry that is committed at a node; `None` if it was discarded there.
///
/// # Errors
/// It cannot be read.
pub(super) fn header_at(node: &Node, index: EntryIndex) -> Result<Option<BlockHeader>> {
    match node.replica.in_memory(index) {
        Some((header, _)) => Ok(Some(header)),
        None => node.writer.archive.header(index),
    }
}

/// Records with their logs and indexes.
pub(super) type Records = Vec<(LogNumber, Index, Vec<u8>)>;

/// The body of an entry; `None` if it was discarded.
///
/// # Errors
/// It cannot be read.
pub(super) fn body_at(node: &Node, header: &BlockHeader) -> Result<Option<Bytes>> {
    match node.replica.in_memory(header.raft_index) {
        Some((_, Some(pieces))) => Ok(Some(pieces.concat().into())),
        _ => Ok(node.writer.archive.body(header.raft_index)?.map(|(_, body)| body)),
    }
}

fn committed_at(node: &Node) -> EntryIndex {
    node.replica.sequencer.committed().raft.min(node.writer.written().end.raft)
}

/// A clock that shows the time that was set, and a record of the entries that are committed and discarded within one
/// step.
#[derive(Clone, Debug, Default)]
pub(super) struct Dial {
    now: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    upto: EntryIndex,
    entries: BTreeMap<EntryIndex, (BlockHeader, Bytes)>,
}

impl Dial {
    /// A step begins.
    fn show(&self, now: Moment, node: &Node) {
        self.now.store(now.0, Ordering::Relaxed);
        *self.seen() = Seen { upto: committed_at(node), entries: BTreeMap::new() };
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry that was committed in the last step.
    pub(super) fn entry(&self, index: EntryIndex) -> Option<(BlockHeader, Bytes)> {
        self.seen().entries.get(&index).cloned()
    }
}

impl Watch<Node> for Dial {
    fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::Relaxed))
    }

    fn sees(&self, node: &Node) {
        let mut seen = self.seen();
        let committed = committed_at(node);
        for index in seen.upto.0 + 1..=committed.0 {
            if let Ok(Some(header)) = header_at(node, EntryIndex(index))
                && let Ok(Some(body)) = body_at(node, &header)
            {
                seen.entries.insert(EntryIndex(index), (header, body));
            }
        }
        seen.upto = committed;
    }
}

pub(super) type Job = Arc<SyncOnce>;

enum Thread {
    /// Takes the node lock when it runs next.
    Awake,
    /// Has released the node lock, and does this next.
    Between(Next<Job>),
    Syncing(Job),
    Asleep,
    Ended,
}

/// The state of a thread after it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It runs again at this time.
    At(Moment),
    /// It sleeps until it is woken, or until this time.
    Asleep(Option<Moment>),
    /// It carries out a sync.
    Syncing,
    Ended,
}

/// The work that a thread has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    /// It had the node lock.
    pub(super) stepped: bool,
    /// A sync was begun under the node lock, and runs without it.
    pub(super) began_sync: bool,
    pub(super) then: Then,
}

pub(super) struct Threads {
    pub(super) driver: Driver<Node, Dial>,
    dial: Dial,
    each: [Thread; THREADS],
}

impl Threads {
    pub(super) fn new(driver: Driver<Node, Dial>, dial: Dial) -> Self {
        assert_eq!(driver.threads(), THREADS);
        Self { driver, dial, each: [Thread::Awake, Thread::Awake] }
    }

    /// Runs a thread. With `linger` it stops between the step under the node lock and the work after it.
    pub(super) fn run(&mut self, thread: usize, now: Moment, linger: bool) -> Ran {
        self.dial.show(now, &self.driver.lock().node);
        let (stepped, next) = match mem::replace(&mut self.each[thread], Thread::Awake) {
            Thread::Between(next) => (false, next),
            Thread::Awake | Thread::Asleep => (true, self.driver.step(&mut self.driver.lock())),
            busy @ (Thread::Syncing(_) | Thread::Ended) => {
                let ended = matches!(busy, Thread::Ended);
                self.each[thread] = busy;
                let then = if ended { Then::Ended } else { Then::Syncing };
                return Ran { stepped: false, began_sync: false, then };
            }
        };
        let began_sync = stepped && matches!(next, Next::Sync(_));
        if linger && stepped && matches!(next, Next::Sync(_) | Next::Sleep(_)) {
            self.each[thread] = Thread::Between(next);
            return Ran { stepped, began_sync, then: Then::At(now.plus(AT_ONCE)) };
        }
        Ran { stepped, began_sync, then: self.go_on(thread, next, now) }
    }

    /// The work of a thread without the node lock.
    fn go_on(&mut self, thread: usize, next: Next<Job>, now: Moment) -> Then {
        match next {
            Next::Sync(job) => {
                self.driver.lock().node.queue.leave();
                self.each[thread] = Thread::Syncing(job);
                Then::Syncing
            }
            Next::Sleep(wait_limit) => {
                if !self.driver.lock().node.queue.falls_asleep(wait_limit) {
                    return Then::At(now.plus(AT_ONCE));
                }
                self.each[thread] = Thread::Asleep;
                Then::Asleep(wait_limit.map(|time| now.plus(time)))
            }
            Next::Pause => Then::At(now.plus(SHORT)),
            Next::End => {
                self.driver.leave();
                self.each[thread] = Thread::Ended;
                Then::Ended
            }
        }
    }

    /// Carries out the sync of a thread, and records its result.
    ///
    /// # Errors
    /// The disk's. The next step gets it.
    pub(super) fn sync(&mut self, thread: usize) -> Result<()> {
        let Thread::Syncing(job) = &self.each[thread] else { return Ok(()) };
        let job = job.clone();
        let result = job.run();
        self.driver.has_synced(job, result.clone());
        self.each[thread] = Thread::Awake;
        result
    }

    /// The threads that are woken by the last events; which of the sleeping ones is chosen at random.
    pub(super) fn called(&mut self, rng: &mut Rng) -> Vec<usize> {
        let calls = self.driver.lock().node.queue.take_calls();
        let mut woken = Vec::new();
        for _ in 0..calls.min(THREADS) {
            let asleep = |t: &usize| matches!(self.each[*t], Thread::Asleep);
            let asleep: Vec<usize> = (0..THREADS).filter(asleep).collect();
            let Some(thread) = rng.pick(&asleep).copied() else { break };
            self.each[thread] = Thread::Awake;
            woken.push(thread);
        }
        woken
    }

    /// The sync that is running, or about to.
    pub(super) fn syncing(&self) -> Option<&Job> {
        self.each.iter().find_map(|thread| match thread {
            Thread::Syncing(job) | Thread::Between(Next::Sync(job)) => Some(job),
            _ => None,
        })
    }

    /// Whether all threads have ended.
    pub(super) fn are_over(&self) -> bool {
        self.each.iter().all(|t| matches!(t, Thread::Ended))
    }
}
