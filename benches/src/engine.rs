//! chiplog as the benchmarks use it: the one file that uses its interface for appending.
//!
//! Invariant: a log made here has a directory of its own, which is removed with the log.

use crate::data::Pool;
use anyhow::{Context, Result};
pub(crate) use chiplog::metrics::Metrics;
pub(crate) use chiplog::{BatchBuilder, Index, Log, Options, Start, Ticket};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A log in a directory that is removed with it.
#[derive(Debug)]
pub(crate) struct ScratchLog {
    log: Option<Log>,
    path: PathBuf,
}

impl ScratchLog {
    /// A fresh log in `dir/name`; an existing one is removed first.
    pub(crate) fn create(dir: &Path, name: &str, options: Options) -> Result<Self> {
        let path = dir.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        let log = Log::open(&path, options)?;
        Ok(Self { log: Some(log), path })
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The files of its segments, oldest first, without those that are prepared and hold nothing yet.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.path).with_context(|| format!("listing {}", self.path.display()))?;
        let paths: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        let mut files: Vec<_> =
            paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "seg")).collect();
        files.sort();
        files.truncate(usize::try_from(self.status().segments)?);
        Ok(files)
    }

    /// Closes the log; its files are kept.
    pub(crate) fn shut(&mut self) -> Result<()> {
        match self.log.take() {
            Some(log) => Ok(log.close()?),
            None => Ok(()),
        }
    }

    /// Opens the log again after [`Self::shut`].
    pub(crate) fn open_again(&mut self, options: Options) -> Result<()> {
        self.log = Some(Log::open(&self.path, options)?);
        Ok(())
    }
}

impl Deref for ScratchLog {
    type Target = Log;

    fn deref(&self) -> &Log {
        match &self.log {
            Some(log) => log,
            // A bug of this crate: it uses a log after `shut`.
            None => panic!("the log at {} was closed", self.path.display()),
        }
    }
}

impl Drop for ScratchLog {
    fn drop(&mut self) {
        self.log = None;
        // The whole work directory is removed later.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Fills a log with `bytes` of records of `record_bytes`, each a batch of its own or `batch` to a batch,
/// durable on return.
pub(crate) fn fill(log: &Log, pool: &Pool, bytes: u64, record_bytes: usize, batch: u32) -> Result<u64> {
    const INFLIGHT_BYTES: u64 = 32 << 20;
    let records = bytes.div_ceil(record_bytes as u64).max(1);
    let window = (INFLIGHT_BYTES / (record_bytes as u64 * u64::from(batch))).clamp(2, 16_384) as usize;
    let mut waiting = std::collections::VecDeque::with_capacity(window);
    let mut n = 0;
    while n < records {
        let ticket: Ticket = if batch == 1 {
            n += 1;
            log.submit(pool.record(n, record_bytes))?.into()
        } else {
            let mut builder = BatchBuilder::new();
            for _ in 0..batch {
                n += 1;
                builder.push(pool.record(n, record_bytes))?;
            }
            log.submit(&builder.build()?)?
        };
        waiting.push_back(ticket);
        if waiting.len() == window {
            // Half at a time: one wake-up for several appends.
            for ticket in waiting.drain(..window / 2) {
                ticket.wait()?;
            }
        }
    }
    for ticket in waiting {
        ticket.wait()?;
    }
    Ok(n)
}

/// The writer's work between two readings of its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) syncs: u64,
}

impl Blocks {
    pub(crate) fn between(before: &Metrics, after: &Metrics) -> Self {
        Self {
            count: after.blocks - before.blocks,
            bytes: after.bytes - before.bytes,
            syncs: after.syncs - before.syncs,
        }
    }

    /// Mean number of bytes that a sync made durable. A replica's sync can cover several blocks.
    pub(crate) fn mean_synced(&self) -> usize {
        (self.bytes / self.syncs.max(1)) as usize
    }

    /// Bytes of the mean block.
    pub(crate) fn mean_bytes(&self) -> usize {
        (self.bytes / self.count.max(1)) as usize
    }
}
