//! Runtime: a log that is running. It makes what the handle and the threads share, starts the threads, and ends them.
//!
//! ```text
//!  a log, a replica:  opened ─────────────────────> helper, writers ──┐
//!           damaged:  repair thread ──> opened ───> helper, writers ──┼──> close: all have ended
//!        a follower:  opened ─────────────────────> helper, writer  ──┘
//! ```
//!
//! Invariants:
//! - the threads hold the lock on the directory until they end;
//! - after a failed start no thread is left, so that the log can be opened again;
//! - groups of named logs share a helper thread for each disk. A group that is closed has left it: none of its jobs runs;
//! - a forked child neither stops nor joins the threads: they are its parent's.
//!
//! Must not know: what the threads do.

use super::driver::{Driver, Stopwatch};
use super::repair_thread;
use super::shared::{Shared, limits};
use super::{Node, poisoned};
use crate::cluster::options::ClusterOptions;
use crate::cluster::transport::Inbox;
use crate::disk::mmap::ForkGuard;
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::open::{Directory, RecoveredLog, open_or_find_damage};
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::ProposalQueue;
use crate::replica::repair::offline::{Begun, Repairing};
use crate::store::allocator::Allocator;
use crate::store::helper::Share;
use crate::sync::threads::{is_writer, spawn, spawn_writer};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The work of a log's writer threads.
pub(crate) trait WriterThreads: Send + Sync + 'static {
    /// The number of threads that have to call [`Self::run`].
    fn threads(&self) -> usize;
    /// Runs a thread until the log is closed or poisoned. All callers are answered when it returns.
    fn run(&self);
}

impl WriterThreads for Driver {
    fn threads(&self) -> usize {
        self.threads()
    }

    fn run(&self) {
        self.run();
    }
}

/// Notifies a writer thread that does not sleep on the queue that the log is closed.
type Stop = Box<dyn Fn() + Send + Sync>;

/// The threads of a log, and its share of a helper thread if it has none of its own.
#[derive(Default)]
struct Threads {
    own: Vec<JoinHandle<()>>,
    share: Option<Share>,
}

/// A log that is running. It is closed when it is dropped.
pub(crate) struct Runtime {
    shared: Arc<Shared>,
    fork: ForkGuard,
    stop: Option<Stop>,
    /// The threads, until they are joined.
    threads: Mutex<Threads>,
}

impl Deref for Runtime {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Runtime {
    /// Opens or creates the log on `disk`, and runs it. A replica's log that is damaged is repaired first, by its
    /// writer thread. Blocks while recovery reads the last segment.
    ///
    /// # Errors
    /// Those of opening a log.
    pub(crate) fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        let path = disk.path().to_path_buf();
        let seed = seed(&options, &*disk).map_err(|e| Error::io("draw a random number for", &path, e))?;
        let opened = match open_or_find_damage(disk, &options)? {
            Directory::Ready(opened) => *opened,
            Directory::DamagedLog(damaged) => match Repairing::begin(*damaged)? {
                Begun::Repaired(opened) => *opened,
                Begun::Repairing(repairing) => return Self::repair(&path, repairing, seed),
            },
        };
        let cluster = opened.cluster.clone();
        let watch = Stopwatch::start();
        let make = |opened, shared: &Shared| driver(opened, shared, seed, watch);
        let (runtime, _) = Self::start(&path, opened, options, make)?;
        attach(&cluster, &runtime.queue);
        Ok(runtime)
    }

    /// Runs a log that was opened. `make` makes the work of its writer threads.
    ///
    /// # Errors
    /// Those of `make`. `Io`: a thread could not be started.
    pub(crate) fn start<W: WriterThreads>(
        path: &Path,
        opened: RecoveredLog,
        options: Options,
        make: impl FnOnce(RecoveredLog, &Shared) -> Result<W>,
    ) -> Result<(Self, Arc<W>)> {
        let fork = guard(path)?;
        let shared = Arc::new(Shared::of(path, options, &opened));
        let (work, threads) = start_threads(&shared, opened, make)?;
        Ok((Self { shared, fork, stop: None, threads: Mutex::new(threads) }, work))
    }

    /// Runs a replica's log that has to be repaired before it opens.
    fn repair(path: &Path, repairing: Box<Repairing>, seed: u64) -> Result<Self> {
        let fork = guard(path)?;
        let damaged = repairing.damaged();
        let (options, cluster) = (damaged.options.clone(), damaged.cluster.clone());
        let limits = limits(&options, &cluster);
        let shared = Shared::new(path, damaged.identity, options, damaged.segments.clone(), limits);
        shared.published.show(repairing.status());
        shared.published.hold(Some(repairing.refusal()));
        let shared = Arc::new(shared);
        let watch = Stopwatch::start();
        let writer = {
            let shared = shared.clone();
            move || {
                repair_thread::run(&shared, watch, repairing, |opened| go_on(&shared, opened, seed, watch))
            }
        };
        attach(&cluster, &shared.queue);
        let writer = spawn_writer(path, &shared.queue, writer)
            .inspect_err(|_| cluster.transport.detach(cluster.node))?;
        Ok(Self { shared, fork, stop: None, threads: Mutex::new(Threads { own: vec![writer], share: None }) })
    }

    /// A log whose threads are a simulation's.
    #[cfg(feature = "testing")]
    pub(crate) fn driven(shared: Arc<Shared>) -> Result<Self> {
        let fork = guard(&shared.path)?;
        Ok(Self { shared, fork, stop: None, threads: Mutex::default() })
    }

    /// Has `stop` called when the log is closed, for threads that do not sleep on the queue. They end soon after.
    pub(crate) fn stopped_by(&mut self, stop: impl Fn() + Send + Sync + 'static) {
        self.stop = Some(Box::new(stop));
    }

    /// Whether this is a process that was forked since the log was opened.
    pub(crate) fn is_child(&self) -> bool {
        self.fork.is_child()
    }

    /// Admits nothing more, and does not wait: the threads end once everything submitted is done.
    pub(crate) fn begin_close(&self) {
        self.queue.close();
        if let Some(stop) = &self.stop {
            stop();
        }
    }

    /// Closes the log: admits nothing more, and waits until the threads have ended. In a callback it does not wait: the thread of this log
    /// cannot wait for itself, that of another log would stand still, and two of them could wait for each other.
    pub(crate) fn close(&self) {
        self.begin_close();
        if is_writer() {
            return; // The threads end by themselves, this one after its callback.
        }
        // Held until the threads have ended, so that a second call waits as well.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(panicked) = join(std::mem::take(&mut *threads)) {
            tracing::error!(log = %self.path.display(), "a thread of the log panicked");
            let _ = self.published.poison.set(panicked);
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The threads and the queue's contents belong to the parent.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.close();
    }
}

/// Starts the helper thread, which prepares files that `make` may need already, and the writer threads. All hold the
/// lock until they end.
///
/// # Errors
/// As [`Runtime::start`]. All threads have ended then.
fn start_threads<W: WriterThreads>(
    shared: &Shared,
    mut opened: RecoveredLog,
    make: impl FnOnce(RecoveredLog, &Shared) -> Result<W>,
) -> Result<(Arc<W>, Threads)> {
    let Shared { path, queue, .. } = shared;
    let lock: Arc<dyn Lock> = opened.take_lock().into();
    let allocator = opened.store.allocator.clone();
    let mut threads = start_helper(shared, &allocator, &lock)?;
    let started = make(opened, shared).and_then(|work| {
        let work = Arc::new(work);
        for _ in 0..work.threads() {
            let (work, allocator, lock) = (work.clone(), allocator.clone(), lock.clone());
            let (runs, segments) = (shared.view.runs.clone(), shared.view.segments.clone());
            threads.own.push(spawn_writer(path, queue, move || {
                work.run();
                allocator.stop();
                runs.copies().close();
                segments.objects().close();
                drop(lock);
            })?);
        }
        Ok(work)
    });
    match started {
        Ok(work) => Ok((work, threads)),
        Err(error) => {
            queue.refuse(poisoned(&error));
            allocator.stop();
            shared.view.segments.objects().close();
            let _ = join(threads);
            Err(error)
        }
    }
}

/// Starts the helper thread, or has the one of the disk do the work of this log too.
///
/// # Errors
/// `Io`: the thread could not be started.
fn start_helper(shared: &Shared, allocator: &Arc<Allocator>, lock: &Arc<dyn Lock>) -> Result<Threads> {
    let path = &shared.path;
    // Only the log's disk says on which device it is. Without that the log has a thread of its own.
    let device = || shared.view.segments.disk().space().ok().flatten().map(|space| space.device);
    if let Some(helpers) = &shared.options.helpers
        && let Some(device) = device()
    {
        let share = helpers.join(device, path, allocator.clone(), lock.clone())?;
        allocator.shares(share.helper());
        return Ok(Threads { own: Vec::new(), share: Some(share) });
    }
    let (allocator, lock) = (allocator.clone(), lock.clone());
    let helper = spawn("chiplog-helper", path, move || {
        allocator.run();
        drop(lock);
    })?;
    Ok(Threads { own: vec![helper], share: None })
}

/// Waits until the threads have ended, and no job of a shared one is of this log.
///
/// # Errors
/// `Poisoned`: one of them panicked.
fn join(threads: Threads) -> Result<()> {
    let ended: Vec<_> = threads.own.into_iter().map(JoinHandle::join).collect();
    let is_sound = threads.share.is_none_or(Share::leave);
    if is_sound && ended.iter().all(std::result::Result::is_ok) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Poisoned, "a thread of the log panicked"))
}

/// The driver of the node of a log.
fn driver(opened: RecoveredLog, shared: &Shared, seed: u64, watch: Stopwatch) -> Result<Driver> {
    let cluster = opened.cluster.clone();
    let node = Node::new(opened, shared, seed, watch.now())?;
    Ok(Driver::new(node, cluster, watch, shared.options.cluster.is_some()))
}

/// Runs a log that was repaired as if it had been sound when it was opened. Returns when its threads have ended.
fn go_on(shared: &Shared, opened: RecoveredLog, seed: u64, watch: Stopwatch) -> Result<()> {
    shared.begin(&opened);
    let (_, threads) = start_threads(shared, opened, |opened, shared| {
        // Before the node publishes its role: a replica whose role is follower refuses no reads.
        shared.published.hold(None);
        shared.view.wake();
        driver(opened, shared, seed, watch)
    })?;
    join(threads)
}

fn guard(path: &Path) -> Result<ForkGuard> {
    ForkGuard::new().map_err(|e| Error::io("guard against fork", path, e))
}

/// Passes messages of other replicas to the queue.
fn attach(cluster: &ClusterOptions, queue: &Arc<ProposalQueue>) {
    let queue = queue.clone();
    let inbox = Inbox::new(move |envelope| queue.push_event(InboxEvent::Message(envelope)));
    cluster.transport.attach(cluster.node, inbox);
}

/// The seed of the random election time-outs.
fn seed(options: &Options, disk: &dyn Disk) -> std::io::Result<u64> {
    if let Some(cluster) = options.cluster.as_ref().filter(|c| c.seed != 0) {
        return Ok(cluster.seed ^ cluster.node.0);
    }
    let mut seed = [0; 8];
    disk.random(&mut seed)?;
    Ok(u64::from_le_bytes(seed))
}
