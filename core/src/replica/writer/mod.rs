//! Writer: carries out the plan. It hands blocks to the store, with one write for everything that is planned, and rolls
//! to a new segment once everything before it is synced. It records how far the log is written and how far it is
//! synced.
//!
//! Must not know: raft, who waits.

pub(crate) mod plan;

use crate::error::Result;
use crate::metrics::{BLOCK_BUCKETS, block_bucket};
use crate::replica::writer::plan::{Plan, Step};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::store::{Store, SyncJob};
use crate::types::{EntryIndex, Index};
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// The store, and the plan of what is written into it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) plan: Plan,
    pub(crate) archive: Archive,
    /// `written`: in the files. `synced`: durable.
    written: Progress,
    synced: Progress,
    /// As of the last step that was carried out; its blocks are in the files after the next write.
    pushed: Progress,
    /// The sync that is running, and how far it makes the log durable.
    syncing: Option<(Arc<SyncOnce>, Progress)>,
}

/// A sync that runs once, on the first thread that calls it. Only one runs at a time, because the kernel reports an I/O
/// error only once.
#[derive(Debug)]
pub(crate) struct SyncOnce {
    job: SyncJob,
    outcome: Mutex<Option<Result<()>>>,
}

impl SyncOnce {
    /// Runs the sync, or waits until another thread has run it. Blocks on the device.
    ///
    /// # Errors
    /// The sync failed: data written since the last successful sync cannot be relied on, and must not be synced again.
    pub(crate) fn run(&self) -> Result<()> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.get_or_insert_with(|| self.job.run()).clone()
    }

    /// The name of the file that it syncs, for a simulated disk.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.job.file_name()
    }
}

/// How far the log is written or synced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The position after the last block.
    pub(crate) end: Base,
    /// The number of raft's last ready.
    pub(crate) ready: u64,
    /// The commit index of the last [`Step::Commit`]: a block before it records this index.
    pub(crate) commit: EntryIndex,
    /// The first record that the last [`Step::Kept`] says to be kept.
    pub(crate) kept: Index,
    /// The first record that the last [`Step::Repeated`] says to be kept.
    pub(crate) repeated: Index,
}

/// The effects of a write.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) blocks: u64,
    pub(crate) rolls: u64,
    pub(crate) bytes: u64,
    /// The number of blocks of each size.
    pub(crate) sizes: [u64; BLOCK_BUCKETS],
    /// The pieces of the bodies, for reuse.
    pub(crate) pieces: Vec<Bytes>,
}

impl Writer {
    /// For a store that was just opened: everything in it is durable.
    pub(crate) fn new(store: Store, end: Base, commit: EntryIndex) -> Self {
        let progress = Progress { end, ready: 0, commit, kept: Index(0), repeated: Index(0) };
        Self {
            plan: Plan::new(&store),
            archive: store.archive(),
            store,
            written: progress,
            synced: progress,
            pushed: progress,
            syncing: None,
        }
    }

    pub(crate) fn written(&self) -> Progress {
        self.written
    }

    pub(crate) fn synced(&self) -> Progress {
        self.synced
    }

    /// Whether everything that was planned is written and synced.
    pub(crate) fn is_settled(&self) -> bool {
        self.plan.is_empty() && self.store.is_synced()
    }

    /// Whether the next step can be carried out without waiting for a sync.
    pub(crate) fn can_write(&self) -> bool {
        self.plan.peek().is_some_and(|step| !self.awaits_sync(step) || self.store.is_synced())
    }

    /// Whether earlier writes have to be synced before this step: before a roll, and before the segment's header is
    /// raised, which syncs the file too. Only one sync of a file runs at a time, because the kernel reports an I/O
    /// error only once.
    fn awaits_sync(&self, step: &Step) -> bool {
        match step {
            Step::Roll { .. } => true,
            Step::Block(block) => self.store.must_raise(block),
            Step::Ready(_) | Step::Commit(_) | Step::Kept(_) | Step::Repeated(_) => false,
        }
    }

    /// Carries out the plan: all of it, or up to a step that has to wait for a sync.
    ///
    /// # Errors
    /// A write failed: the contents of the disk are unknown.
    pub(crate) fn write(&mut self) -> Result<Written> {
        let mut done = Written::default();
        while let Some(step) = self.plan.peek() {
            if self.awaits_sync(step) {
                self.flush(&mut done)?;
                if !self.store.is_synced() {
                    return Ok(done);
                }
            }
            match self.plan.next() {
                Some(Step::Roll { opening, into, begins }) => {
                    self.pushed.end = opening.end;
                    // Everything before a roll is synced. Entries that it truncates are no longer durable.
                    if opening.end.raft < self.synced.end.raft {
                        self.synced.end = opening.end;
                    }
                    done.rolls += 1;
                    self.store.roll_into(into, opening, begins)?;
                }
                Some(Step::Block(block)) => {
                    self.pushed.end = block.end;
                    done.blocks += 1;
                    done.sizes[block_bucket(self.store.push(block))] += 1;
                }
                Some(Step::Ready(number)) => self.pushed.ready = number,
                Some(Step::Commit(raft)) => self.pushed.commit = raft,
                Some(Step::Kept(first)) => self.pushed.kept = first,
                Some(Step::Repeated(first)) => self.pushed.repeated = first,
                None => break,
            }
        }
        self.flush(&mut done)?;
        Ok(done)
    }

    fn flush(&mut self, done: &mut Written) -> Result<()> {
        self.store.raise_version()?;
        if self.store.has_pending() {
            let (bytes, pieces) = self.store.write()?;
            done.bytes += bytes as u64;
            done.pieces.extend(pieces);
        }
        self.written = self.pushed;
        Ok(())
    }

    /// Starts a sync. None: everything is synced, or a sync is running already.
    pub(crate) fn begin_sync(&mut self) -> Option<Arc<SyncOnce>> {
        let job = self.store.begin_sync()?;
        let sync = Arc::new(SyncOnce { job, outcome: Mutex::new(None) });
        self.syncing = Some((sync.clone(), self.written));
        Some(sync)
    }

    /// The sync has succeeded. Does nothing if [`Self::settle`] has recorded this already.
    pub(crate) fn end_sync(&mut self, sync: &Arc<SyncOnce>) {
        if let Some((sync, covered)) = self.syncing.take_if(|(s, _)| Arc::ptr_eq(s, sync)) {
            self.store.end_sync(&sync.job);
            self.synced = if planted!(31) { self.written } else { covered };
        }
    }

    /// Writes and syncs everything that is planned. Blocks until it is done.
    ///
    /// # Errors
    /// As [`Self::write`]; or the sync failed.
    pub(crate) fn settle(&mut self) -> Result<()> {
        loop {
            self.write()?;
            if !self.sync()? {
                self.plan.has_settled();
                return Ok(());
            }
        }
    }

    /// Runs the sync that has begun, or a new one of what is written. False: all of it is durable already.
    ///
    /// # Errors
    /// The sync failed.
    pub(crate) fn sync(&mut self) -> Result<bool> {
        let under_way = self.syncing.as_ref().map(|(sync, _)| sync.clone());
        let Some(sync) = under_way.or_else(|| self.begin_sync()) else { return Ok(false) };
        sync.run()?;
        self.end_sync(&sync);
        Ok(true)
    }
}
