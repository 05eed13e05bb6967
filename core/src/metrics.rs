//! Metrics: counters of what the log did since it was opened, and gauges of what waits in it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counters of what a log did since it was opened, and gauges of what it does now. Counters only increase.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"x")?;
/// let metrics = log.metrics();
/// assert_eq!((metrics.appends, metrics.records), (1, 1));
/// assert!(metrics.syncs >= 1);
/// assert_eq!((metrics.queue_appends, metrics.queue_bytes), (0, 0)); // nothing waits
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Batches accepted, including duplicates within sessions.
    pub appends: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of blocks written, including headers and padding.
    pub bytes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Total time of these syncs, in microseconds.
    pub sync_micros_total: u64,
    /// The longest of these syncs, in microseconds.
    pub sync_micros_max: u64,
    /// Segments started.
    pub rolls: u64,
    /// Bytes of blocks that the scrub has read and checked.
    pub scrubbed_bytes: u64,
    /// Damaged places found in blocks, by the scrub, a reader, or a report. Each counts once until it is repaired.
    pub damaged: u64,
    /// Damaged places that were repaired with bytes from other replicas.
    pub repaired: u64,
    /// Records that were written here, were not known to be committed, and were truncated because another leader has
    /// other records at their indexes. Their appends returned that the outcome is unknown.
    pub truncated_records: u64,
    /// Records that a discard or retention removed from the log, regardless of which replica led then.
    pub discarded_records: u64,
    /// Objects that this replica has put into the object store.
    pub stored_objects: u64,
    /// Bytes of these objects.
    pub stored_bytes: u64,
    /// Attempts of this replica to use the object store for objects of its own that failed. Each is repeated.
    pub object_failures: u64,
    /// Objects that were missing or damaged in the object store, and that this replica has stored again.
    pub repaired_objects: u64,
    /// Bytes of objects that this replica has fetched from the object store for its readers, and to keep them.
    pub fetched_bytes: u64,
    /// Attempts to keep an object on this disk that failed. Each is repeated.
    pub fill_failures: u64,
    /// Histogram of syncs: bucket n counts those that took less than 2, 4, 8 … microseconds and did not fit the bucket
    /// before. The last bucket counts all others.
    pub sync_micros_buckets: [u64; SYNC_BUCKETS],
    /// The same histogram for writes that this replica made as the leader: the time from the write to its commit.
    pub commit_micros_buckets: [u64; SYNC_BUCKETS],
    /// Total time of these writes until their commit, in microseconds.
    pub commit_micros_total: u64,
    /// Histogram of blocks by bytes in the file: up to 256, 512, 1,024 …, each counted once. The last bucket counts all
    /// others.
    pub block_bytes_buckets: [u64; BLOCK_BUCKETS],
    /// Gauge: how long the current sync has run; zero if none is running. A disk that hangs shows here and nowhere
    /// else.
    pub syncing: Duration,
    /// Gauge: appends that wait for the writer.
    pub queue_appends: u64,
    /// Gauge: bytes of these appends.
    pub queue_bytes: u64,
    /// Gauge: bytes of appends that the writer has taken and not written yet.
    pub taken_bytes: u64,
    /// Gauge: bytes that are written and not committed yet.
    pub uncommitted_bytes: u64,
    /// Gauge: bytes of blocks here that are in no object known to be stored; 0 in a log without objects.
    pub unstored_bytes: u64,
    /// Gauge: objects that are known to be missing or damaged in the object store, and that this replica cannot make again.
    pub damaged_objects: u64,
    /// Gauge: bytes of objects that are kept here for readers.
    pub cached_bytes: u64,
    /// Gauge: bytes of the newest objects that are kept on this disk, as many as `Options::fill_bytes` permits.
    pub filled_bytes: u64,
    /// Gauge: the last record that is in an object known to be stored; 0 if there is none. If all replicas are lost, the
    /// log comes back up to this record, or a later one.
    pub stored_index: u64,
    /// Slices that were put into the object store: short stretches of the newest entries, until an object has them.
    pub stored_slices: u64,
    /// Bytes of these slices.
    pub sliced_bytes: u64,
    /// Attempts to store or to find slices that failed. They are repeated.
    pub slice_failures: u64,
    /// Payload slices that this replica put into the object store with the durability class `object`.
    pub stored_payloads: u64,
    /// Bytes of these slices.
    pub payload_bytes: u64,
    /// Attempts to store them that failed. They are repeated for 10 s.
    pub payload_failures: u64,
    /// Appends to a log with the durability class `object` that this replica has confirmed although it did not know the object store alone
    /// to have them. They are as durable as without the class: see `Options::payload_slices`.
    pub unstored_confirmations: u64,
    /// Gauge: bytes of blocks here that are neither in an object nor in a slice, as far as this replica knows; 0 without
    /// `Options::slice_interval`.
    pub unsliced_bytes: u64,
    /// Gauge: the last record that is in an object known to be stored, or in a slice that this replica knows of: it would survive
    /// the loss of all replicas. At least `stored_index`. The replica that leads knows best.
    pub sliced_index: u64,
}

/// How many buckets [`Metrics::sync_micros_buckets`] has: the last but one ends at 8.4 seconds.
pub const SYNC_BUCKETS: usize = 24;
/// How many buckets [`Metrics::block_bytes_buckets`] has: the last but one ends at 16 MiB.
pub const BLOCK_BUCKETS: usize = 18;
/// The first bucket of block sizes ends at 2 to this power.
const BLOCK_BUCKET_FIRST: u32 = 8;

/// The bucket of a block of `bytes` bytes.
pub(crate) fn block_bucket(bytes: usize) -> usize {
    let up = bytes.max(1).next_power_of_two().ilog2();
    (up.saturating_sub(BLOCK_BUCKET_FIRST) as usize).min(BLOCK_BUCKETS - 1)
}

fn micros_bucket(micros: u64) -> usize {
    (micros.max(1).ilog2() as usize).min(SYNC_BUCKETS - 1)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Metrics {
    /// The latency that the fraction `quantile` (0 to 1) of all syncs stayed below, rounded up to a power of two
    /// microseconds. Zero if there was no sync.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// log.append(b"x")?;
    /// assert!(log.metrics().sync_latency(0.5) <= log.metrics().sync_latency(0.99));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_latency(&self, quantile: f64) -> Duration {
        let all: u64 = self.sync_micros_buckets.iter().sum();
        let wanted = (all as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (n, count) in self.sync_micros_buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return Duration::from_micros(2 << n);
            }
        }
        Duration::ZERO
    }
}

/// The live counters. Only the writer counts.
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
    pub(crate) truncated: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) stored_objects: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
    pub(crate) object_failures: AtomicU64,
    pub(crate) repaired_objects: AtomicU64,
    pub(crate) damaged_objects: AtomicU64,
    stored_slices: AtomicU64,
    sliced_bytes: AtomicU64,
    pub(crate) slice_failures: AtomicU64,
    stored_payloads: AtomicU64,
    payload_bytes: AtomicU64,
    pub(crate) payload_failures: AtomicU64,
    pub(crate) unstored_confirmations: AtomicU64,
    /// How far the slices are, as far as this replica knows: the last record and the last entry. Current values, not counts.
    pub(crate) sliced_index: AtomicU64,
    pub(crate) sliced_upto: AtomicU64,
    pub(crate) in_store_index: AtomicU64,
    pub(crate) in_store_upto: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    sync_micros_max: AtomicU64,
    sync_buckets: [AtomicU64; SYNC_BUCKETS],
    commit_micros: AtomicU64,
    commit_buckets: [AtomicU64; SYNC_BUCKETS],
    block_buckets: [AtomicU64; BLOCK_BUCKETS],
    /// A current value, not a count.
    pub(crate) uncommitted_bytes: AtomicU64,
    sync_began: Mutex<Option<Instant>>,
}

impl Counters {
    /// Counts a write of the leader that committed after `took`.
    pub(crate) fn committed(&self, took: Duration) {
        let micros = micros(took);
        self.commit_micros.fetch_add(micros, Ordering::Relaxed);
        self.commit_buckets[micros_bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts written blocks by size.
    pub(crate) fn wrote(&self, sizes: &[u64; BLOCK_BUCKETS]) {
        for (bucket, count) in self.block_buckets.iter().zip(sizes).filter(|(_, count)| **count > 0) {
            bucket.fetch_add(*count, Ordering::Relaxed);
        }
    }

    /// Counts an object of `bytes` bytes that was stored.
    pub(crate) fn stored_object(&self, bytes: u64) {
        self.stored_objects.fetch_add(1, Ordering::Relaxed);
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts slices that were stored.
    pub(crate) fn stored_slices(&self, count: u64, bytes: u64) {
        self.stored_slices.fetch_add(count, Ordering::Relaxed);
        self.sliced_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a payload slice that was stored.
    pub(crate) fn stored_payload(&self, bytes: u64) {
        self.stored_payloads.fetch_add(1, Ordering::Relaxed);
        self.payload_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes the start or the end of a sync.
    pub(crate) fn syncing(&self, runs: bool) {
        *self.sync_began.lock().unwrap_or_else(PoisonError::into_inner) = runs.then(Instant::now);
    }

    /// Counts a successful sync that took `took`.
    pub(crate) fn synced(&self, took: Duration) {
        let micros = micros(took);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_micros.fetch_add(micros, Ordering::Relaxed);
        self.sync_micros_max.fetch_max(micros, Ordering::Relaxed);
        self.sync_buckets[micros_bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// All but what waits in the queue.
    pub(crate) fn snapshot(&self) -> Metrics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Metrics {
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
            truncated_records: get(&self.truncated),
            discarded_records: get(&self.discarded),
            stored_objects: get(&self.stored_objects),
            stored_bytes: get(&self.stored_bytes),
            object_failures: get(&self.object_failures),
            repaired_objects: get(&self.repaired_objects),
            damaged_objects: get(&self.damaged_objects),
            stored_slices: get(&self.stored_slices),
            sliced_bytes: get(&self.sliced_bytes),
            slice_failures: get(&self.slice_failures),
            stored_payloads: get(&self.stored_payloads),
            payload_bytes: get(&self.payload_bytes),
            payload_failures: get(&self.payload_failures),
            unstored_confirmations: get(&self.unstored_confirmations),
            sliced_index: get(&self.sliced_index),
            sync_micros_buckets: std::array::from_fn(|n| get(&self.sync_buckets[n])),
            commit_micros_buckets: std::array::from_fn(|n| get(&self.commit_buckets[n])),
            commit_micros_total: get(&self.commit_micros),
            block_bytes_buckets: std::array::from_fn(|n| get(&self.block_buckets[n])),
            syncing: self
                .sync_began
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .map_or(Duration::ZERO, |at| at.elapsed()),
            uncommitted_bytes: get(&self.uncommitted_bytes),
            ..Metrics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket includes its upper bound, as histogram tools expect.
    #[test]
    fn bucket_includes_its_upper_bound() {
        for (bytes, bucket) in
            [(0, 0), (128, 0), (256, 0), (257, 1), (512, 1), (1 << 24, 16), ((1 << 24) + 1, 17)]
        {
            assert_eq!(block_bucket(bytes), bucket, "{bytes}");
        }
        assert_eq!(block_bucket(usize::MAX / 2), BLOCK_BUCKETS - 1);
        assert_eq!([0, 1, 2, 3, 4].map(micros_bucket), [0, 0, 1, 1, 2]);
    }
}
