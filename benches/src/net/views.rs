//! Views of a log that is mostly in an object store: how soon a new copy has the first record, how fast it has all, and how much the
//! server sends.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::reads::filled;
use super::servers::Servers;
use crate::cases::Bench;
use crate::tier::{STORE_TIMEOUT, bucket, requests};
use anyhow::{Context, Result, ensure};
use chiplog::{Index, Options, Start};
use chiplog_net::follower::{Follower, FollowerOptions};
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// The size of segments, of the server's and of the copies'.
const SEGMENT_BYTES: u32 = 4 << 20;

/// New copies, by round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boots {
    /// From nothing to the log's first record.
    pub(crate) first_seconds: Vec<f64>,
    /// From nothing to all records, in bytes a second.
    pub(crate) rates: Vec<f64>,
    /// Bare requests for the same objects, in bytes a second.
    pub(crate) limits: Vec<f64>,
    /// Bytes of blocks that the server sent to the copy.
    pub(crate) sent_bytes: Vec<f64>,
}

/// Waits until the object store has all records.
fn await_objects(servers: &Servers, records: u64) -> Result<()> {
    let begun = Instant::now();
    while (servers.figure(1, "chiplog_stored_index")? as u64) < records {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the log is not stored");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Copies a log of about `bytes` bytes, and reads all of it, from a new and empty directory each time.
pub(crate) fn boots(bench: &Bench, bytes: u64) -> Result<Boots> {
    let (bucket, vault) = bucket(bench)?;
    let mut settings = bucket.settings();
    settings.extend([
        format!("log.segment_bytes={SEGMENT_BYTES}"),
        "objects.object_bytes=16777216".to_owned(),
        "objects.object_age_seconds=1".to_owned(),
        format!("objects.local_bytes={}", 2 * SEGMENT_BYTES),
    ]);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let (servers, records) = filled(bench, bytes, &settings)?;
    await_objects(&servers, records)?;
    let mut seen = Boots::default();
    for _ in 0..bench.rounds {
        let dir = bench.dir.join("copy");
        let files = Options::with_segment_bytes(SEGMENT_BYTES).vault(vault.clone()).cache_bytes(4 * bytes);
        let options = FollowerOptions::default().files(files);
        let begun = Instant::now();
        let copy = Follower::open(&dir, servers.addresses(), Start::Next, options)?;
        let mut reader = copy.reader(Start::First)?;
        let mut bytes = 0;
        for n in 1..=records {
            // If all records are in the log's first object, no state tells of it that a copy could begin at: it is fed them.
            ensure!(reader.wait(Some(STORE_TIMEOUT))?, "the copy ends before record {n}");
            let record = reader.next_record()?.with_context(|| format!("record {n} is not there"))?;
            ensure!(record.index == Index(n), "record {} instead of {n}", record.index);
            bytes += black_box(record.data).len();
            if n == 1 {
                seen.first_seconds.push(begun.elapsed().as_secs_f64());
            }
        }
        seen.rates.push(bytes as f64 / begun.elapsed().as_secs_f64());
        seen.sent_bytes.push(copy.status().received_bytes as f64);
        copy.close()?;
        drop(reader);
        std::fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        seen.limits.push(requests(&*vault)?);
    }
    Ok(seen)
}
