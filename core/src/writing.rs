//! Writing: carries out the plan: blocks into the store, one write for all that is planned, rolls when what stands
//! before them is synced; and keeps account of what is written and what is synced.
//!
//! Must not know: raft, who waits.

use crate::error::Result;
use crate::plan::{Plan, Step};
use crate::store::archive::Archive;
use crate::store::segment::Base;
use crate::store::{Store, SyncJob};
use crate::types::RaftIndex;
use bytes::Bytes;

/// The store, and what is to be written into it.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) store: Store,
    pub(crate) plan: Plan,
    pub(crate) archive: Archive,
    /// In the files, and durable.
    written: Progress,
    synced: Progress,
    /// Of the steps carried out since the last write.
    pushed: Progress,
    /// What the sync under way covers.
    syncing: Option<Progress>,
}

/// How far something is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Behind the last block.
    pub(crate) end: Base,
    /// Raft's last ready.
    pub(crate) ready: u64,
    /// How far a block says that the log is committed.
    pub(crate) commit: RaftIndex,
}

/// What a write did.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) blocks: u64,
    pub(crate) rolls: u64,
    pub(crate) bytes: u64,
    /// The bodies' pieces, for reuse.
    pub(crate) pieces: Vec<Bytes>,
}

impl Writing {
    /// A store that was just opened: all in it is durable.
    pub(crate) fn new(store: Store, end: Base, commit: RaftIndex) -> Self {
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

    /// Carries out what is planned: all of it, or up to a roll that has to wait for a sync.
    ///
    /// # Errors
    /// A write failed: what is on the disk is unknown.
    pub(crate) fn write(&mut self) -> Result<Written> {
        let mut done = Written::default();
        while let Some(step) = self.plan.peek() {
            if let Step::Roll { .. } = step {
                self.flush(&mut done)?;
                if !self.store.is_synced() {
                    return Ok(done);
                }
            }
            match self.plan.next() {
                Some(Step::Roll { opening, into }) => {
                    self.pushed.end = opening.end;
                    done.rolls += 1;
                    self.store.roll_into(into, opening);
                }
                Some(Step::Block(block)) => {
                    self.pushed.end = block.end;
                    done.blocks += 1;
                    self.store.push(block);
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
        if self.store.has_pending() {
            let (bytes, pieces) = self.store.write()?;
            done.bytes += bytes as u64;
            done.pieces.extend(pieces);
        }
        self.written = self.pushed;
        Ok(())
    }

    /// What is to be synced, if anything is and no sync is under way.
    pub(crate) fn begin_sync(&mut self) -> Option<SyncJob> {
        if self.syncing.is_some() {
            return None;
        }
        let job = self.store.begin_sync()?;
        self.syncing = Some(self.written);
        Some(job)
    }

    /// The sync that was under way has returned 0.
    pub(crate) fn end_sync(&mut self, job: SyncJob) {
        self.store.end_sync(job);
        if let Some(covered) = self.syncing.take()
            && covered.ready >= self.synced.ready
        {
            self.synced = covered;
        }
    }

    /// Writes and syncs everything on this thread. A sync under way elsewhere may go on.
    ///
    /// # Errors
    /// As [`Self::write`]; the sync failed.
    pub(crate) fn settle(&mut self) -> Result<()> {
        while !self.is_settled() {
            self.write()?;
            self.store.sync()?;
            self.synced = self.written;
        }
        Ok(())
    }
}
