//! Writing: carries out the plan: blocks into the store, one write for all that is planned, rolls when what stands
//! before them is synced; and keeps account of what is written and what is synced.
//!
//! Must not know: raft, who waits.

pub(crate) mod plan;
pub(crate) mod slow_disk;

use crate::error::Result;
use crate::replica::writer::plan::{Plan, Step};
use crate::stats::{BLOCK_BUCKETS, block_bucket};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::store::{Store, SyncJob};
use crate::types::EntryIndex;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// The store, and what is to be written into it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) plan: Plan,
    pub(crate) archive: Archive,
    /// In the files, and durable.
    written: Progress,
    synced: Progress,
    /// Of the steps carried out since the last write.
    pushed: Progress,
    /// The sync under way, and what it covers.
    syncing: Option<(Arc<SyncOnce>, Progress)>,
}

/// A sync that is carried out once, by whoever comes first: one at a time, for a kernel tells of an error only once.
#[derive(Debug)]
pub(crate) struct SyncOnce {
    job: SyncJob,
    outcome: Mutex<Option<Result<()>>>,
}

impl SyncOnce {
    /// Makes durable what it covers, or waits until another thread has. Blocks on the device.
    ///
    /// # Errors
    /// The sync failed: nothing written since the last good one may be relied on, nor synced again.
    pub(crate) fn run(&self) -> Result<()> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.get_or_insert_with(|| self.job.run()).clone()
    }

    /// The name of the file that it syncs, for a simulated disk.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.job.file_name()
    }
}

/// How far something is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Behind the last block.
    pub(crate) end: Base,
    /// Raft's last ready.
    pub(crate) ready: u64,
    /// How far a block says that the log is committed.
    pub(crate) commit: EntryIndex,
}

/// What a write did.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) blocks: u64,
    pub(crate) rolls: u64,
    pub(crate) bytes: u64,
    /// How many blocks of each size.
    pub(crate) sizes: [u64; BLOCK_BUCKETS],
    /// The bodies' pieces, for reuse.
    pub(crate) pieces: Vec<Bytes>,
}

impl Writer {
    /// A store that was just opened: all in it is durable.
    pub(crate) fn new(store: Store, end: Base, commit: EntryIndex) -> Self {
        let progress = Progress { end, ready: 0, commit };
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

    /// Whether all that was planned is written and synced.
    pub(crate) fn is_settled(&self) -> bool {
        self.plan.is_empty() && self.store.is_synced()
    }

    /// Whether anything is planned that need not wait for a sync.
    pub(crate) fn can_write(&self) -> bool {
        self.plan.peek().is_some_and(|step| !self.awaits_sync(step) || self.store.is_synced())
    }

    /// Whether what was written before has to be synced first: before a roll, and before the segment's header is raised, which
    /// syncs the file too. One sync of a file at a time: a kernel tells of an error only once.
    fn awaits_sync(&self, step: &Step) -> bool {
        match step {
            Step::Roll { .. } => true,
            Step::Block(block) => self.store.must_raise(block),
            Step::Ready(_) | Step::Commit(_) => false,
        }
    }

    /// Carries out what is planned: all of it, or up to a step that has to wait for a sync.
    ///
    /// # Errors
    /// A write failed: what is on the disk is unknown.
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
                Some(Step::Roll { opening, into }) => {
                    self.pushed.end = opening.end;
                    done.rolls += 1;
                    self.store.roll_into(into, opening)?;
                }
                Some(Step::Block(block)) => {
                    self.pushed.end = block.end;
                    done.blocks += 1;
                    done.sizes[block_bucket(self.store.push(block))] += 1;
                }
                Some(Step::Ready(number)) => self.pushed.ready = number,
                Some(Step::Commit(raft)) => self.pushed.commit = raft,
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

    /// What is to be synced, if anything is and no sync is under way.
    pub(crate) fn begin_sync(&mut self) -> Option<Arc<SyncOnce>> {
        let job = self.store.begin_sync()?;
        let sync = Arc::new(SyncOnce { job, outcome: Mutex::new(None) });
        self.syncing = Some((sync.clone(), self.written));
        Some(sync)
    }

    /// The sync has returned 0. Nothing happens if [`Self::settle`] has seen to it already.
    pub(crate) fn end_sync(&mut self, sync: &Arc<SyncOnce>) {
        if let Some((sync, covered)) = self.syncing.take_if(|(s, _)| Arc::ptr_eq(s, sync)) {
            self.store.end_sync(&sync.job);
            self.synced = if planted!(31) { self.written } else { covered };
        }
    }

    /// Writes and syncs everything before it returns.
    ///
    /// # Errors
    /// As [`Self::write`]; the sync failed.
    pub(crate) fn settle(&mut self) -> Result<()> {
        loop {
            self.write()?;
            if !self.sync()? {
                return Ok(());
            }
        }
    }

    /// Carries out the sync that is under way, or one of what is written. False: all of that is durable already.
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
