//! Counters of what the log did since it was opened: for metrics and benchmarks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a log did since it was opened. All only grow, but for `syncing`.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let stats = log.stats();
/// assert_eq!((stats.appends, stats.records), (1, 1));
/// assert!(stats.syncs >= 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Batches taken, duplicates of sessions included.
    pub appends: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of blocks written, headers and padding included.
    pub bytes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Time spent in them, in microseconds.
    pub sync_micros_total: u64,
    /// The longest of them, in microseconds.
    pub sync_micros_max: u64,
    /// Segments begun.
    pub rolls: u64,
    /// Bytes of blocks that the scrub has read and checked.
    pub scrubbed_bytes: u64,
    /// Places found where blocks are damaged; one that cannot be repaired counts each time it is found.
    pub damaged: u64,
    /// Such places that were repaired with what other replicas have.
    pub repaired: u64,
    /// How many syncs took less than 2, 4, 8 … microseconds, each counted once; the last one counts all others.
    pub sync_micros_buckets: [u64; SYNC_BUCKETS],
    /// How long the sync has run that is running now; none: zero. A disk that hangs shows here, and nowhere else.
    pub syncing: Duration,
}

/// How many buckets [`Stats::sync_micros_buckets`] has: the last but one ends at 8.4 seconds.
pub const SYNC_BUCKETS: usize = 24;

impl Stats {
    /// The time in microseconds below which this part of all syncs took, to the next power of two; `part` is from 0
    /// to 1. 0 if there was none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// log.append(b"x")?;
    /// assert!(log.stats().sync_micros_at(0.5) <= log.stats().sync_micros_at(0.99));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_micros_at(&self, part: f64) -> u64 {
        let all: u64 = self.sync_micros_buckets.iter().sum();
        let wanted = (all as f64 * part.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (n, count) in self.sync_micros_buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return 2 << n;
            }
        }
        0
    }
}

/// The live counters; the writer thread alone counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) appends: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) rolls: AtomicU64,
    pub(crate) scrubbed: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) repaired: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    sync_micros_max: AtomicU64,
    sync_buckets: [AtomicU64; SYNC_BUCKETS],
    sync_began: Mutex<Option<Instant>>,
}

impl Counters {
    /// A sync begins, or has ended.
    pub(crate) fn syncing(&self, runs: bool) {
        *self.sync_began.lock().unwrap_or_else(PoisonError::into_inner) = runs.then(Instant::now);
    }

    /// A sync succeeded and took this long.
    pub(crate) fn synced(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_micros.fetch_add(micros, Ordering::Relaxed);
        self.sync_micros_max.fetch_max(micros, Ordering::Relaxed);
        let bucket = (micros.max(1).ilog2() as usize).min(SYNC_BUCKETS - 1);
        self.sync_buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            appends: get(&self.appends),
            records: get(&self.records),
            blocks: get(&self.blocks),
            bytes: get(&self.bytes),
            syncs: get(&self.syncs),
            sync_micros_total: get(&self.sync_micros),
            sync_micros_max: get(&self.sync_micros_max),
            rolls: get(&self.rolls),
            scrubbed_bytes: get(&self.scrubbed),
            damaged: get(&self.damaged),
            repaired: get(&self.repaired),
            sync_micros_buckets: std::array::from_fn(|n| get(&self.sync_buckets[n])),
            syncing: self
                .sync_began
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .map_or(Duration::ZERO, |at| at.elapsed()),
        }
    }
}
