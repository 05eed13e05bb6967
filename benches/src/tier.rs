//! Objects: what uploads cost appends, and what reading from an object store costs beside bare requests and beside the log's own
//! files. The object store is a directory, through the same library as any other store.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::cases::{Bench, options};
use crate::engine::{Log, Options, ScratchLog, Start, fill};
use crate::measure::{interleave, timed};
use crate::workload::{self, Outcome};
use anyhow::{Result, ensure};
use chiplog::Index;
use chiplog::vault::Vault;
use chiplog_tier::{ObjectVault, VaultOptions};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that append.
const APPENDERS: usize = 128;
/// The size of segments where old ones are to leave the disk.
const SEGMENT_BYTES: u32 = 4 << 20;
/// The size of objects that are read.
const OBJECT_BYTES: u32 = 16 << 20;
/// Bytes of a request, as the log makes them, and how many are under way beside each other.
const REQUEST_BYTES: u64 = 4 << 20;
const REQUESTS: usize = 8;

/// A fresh object store in the work directory.
fn store(bench: &Bench) -> Result<Arc<dyn Vault>> {
    let place = bench.dir().join("store");
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    Ok(Arc::new(ObjectVault::open(&place.display().to_string(), VaultOptions::default())?))
}

/// Appends with and without an object store, by round. The log is alone, so that it makes and stores its objects itself.
pub(crate) fn appends(bench: &Bench, record_bytes: usize) -> Result<(Vec<Outcome>, Vec<Outcome>)> {
    let run = |options: Options| {
        let log = ScratchLog::create(bench.dir(), "log-tier", options)?;
        workload::blocking(&*log, &bench.pool, APPENDERS, record_bytes, bench.window)
    };
    interleave(bench.rounds, || run(options().vault(store(bench)?)), || run(options()))
}

/// Rates of reading, in bytes a second, by round.
pub(crate) struct Reads {
    /// Through the log, from an empty cache; and bare requests for the same objects.
    pub(crate) cold: (Vec<f64>, Vec<f64>),
    /// Through the log, from its cache; and from files of its own.
    pub(crate) warm: (Vec<f64>, Vec<f64>),
}

/// Reads the records from the first one up to `upto`. Returns bytes of payload.
fn scan(log: &Log, upto: u64) -> Result<u64> {
    let mut reader = log.reader(Start::First)?;
    let (mut next, mut bytes) = (1, 0);
    while next <= upto {
        let Some(record) = reader.next_record()? else { break };
        ensure!(record.index == Index(next), "record {} instead of {next}", record.index);
        bytes += black_box(record.data).len() as u64;
        next += 1;
    }
    ensure!(next > upto, "the log ends at {next}");
    Ok(bytes)
}

/// Bare requests for all objects of the store, a few beside each other. Returns bytes.
fn requests(vault: &dyn Vault) -> Result<u64> {
    let mut pieces = Vec::new();
    for object in vault.list("")? {
        let starts = (0..object.bytes).step_by(REQUEST_BYTES as usize);
        pieces.extend(starts.map(|at| (object.name.clone(), at..(at + REQUEST_BYTES).min(object.bytes))));
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || -> Result<u64> {
            let mut bytes = 0;
            while let Some((name, range)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                bytes += black_box(vault.get(name, range.clone())?).len() as u64;
            }
            Ok(bytes)
        };
        let threads: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(work)).collect();
        let mut bytes = 0;
        for thread in threads {
            bytes += thread.join().map_err(|_| anyhow::anyhow!("a requesting thread panicked"))??;
        }
        Ok(bytes)
    })
}

/// Reads a log of `bytes` bytes most of which are in the object store alone.
pub(crate) fn reads(bench: &Bench, bytes: u64, record_bytes: usize) -> Result<Reads> {
    const STORE_TIMEOUT: Duration = Duration::from_secs(120);
    let bytes = bytes.max(16 * u64::from(SEGMENT_BYTES));
    let vault = store(bench)?;
    let plain = Options::with_segment_bytes(SEGMENT_BYTES);
    let tiered = || {
        let objects = plain.clone().vault(vault.clone()).object_bytes(OBJECT_BYTES).local_bytes(8 << 20);
        objects.cache_bytes(4 * bytes)
    };
    let mut log = ScratchLog::create(bench.dir(), "log-tier", tiered())?;
    let records = fill(&log, &bench.pool, bytes, record_bytes, 1)?;
    // The last quarter stays in files, and is not read.
    let upto = records * 3 / 4 - u64::from(OBJECT_BYTES) / record_bytes as u64;
    let begun = Instant::now();
    while log.status().segments > bytes / u64::from(SEGMENT_BYTES) / 4 {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the log does not leave its files");
        log.append(bench.pool.record(0, record_bytes))?;
    }
    let local = ScratchLog::create(bench.dir(), "log-files", plain.clone())?;
    fill(&local, &bench.pool, bytes, record_bytes, 1)?;
    let expected = scan(&local, upto)?;
    let rate = |log: &Log| {
        let (seen, time) = timed(|| scan(log, upto))?;
        ensure!(seen == expected, "a scan saw {seen} bytes, another {expected}");
        Ok(seen as f64 / time.as_secs_f64())
    };
    let log = RefCell::new(&mut log);
    let cold = interleave(
        bench.rounds,
        || {
            log.borrow_mut().shut()?;
            log.borrow_mut().open_again(tiered())?; // its cache is empty
            rate(&log.borrow())
        },
        || {
            let (bytes, time) = timed(|| requests(&*vault))?;
            Ok(bytes as f64 / time.as_secs_f64())
        },
    )?;
    let warm = interleave(bench.rounds, || rate(&log.borrow()), || rate(&local))?;
    Ok(Reads { cold, warm })
}
