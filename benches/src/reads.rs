//! Reading: sequential scans cached and not, random reads, opening a large log, memory, and idleness; each compared
//! with plain `read` of the same files where possible.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::cases::{Bench, options};
use crate::engine::{Index, Log, ScratchLog, Start, fill};
use crate::measure::{Latencies, Memory, Percentiles, Usage, interleave, median, timed};
use crate::raw::{self, Readahead};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::hint::black_box;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// Pieces in which plain `read` is tried; the best one is the limit. 128 KiB is what `cat` uses and stays in the
/// processor's cache; 8 MiB suits a disk.
const PIECES: [usize; 2] = [128 << 10, 8 << 20];
/// The piece for uncached reads.
const PIECE_UNCACHED: usize = 8 << 20;

/// How a scan reads its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Record,
    Batch,
}

/// Reads the whole log through a [`Reader`](chiplog::Reader), which verifies every checksum. Returns records
/// and bytes of payload.
pub(crate) fn scan(log: &Log, by: By) -> Result<(u64, u64)> {
    let mut reader = log.reader(Start::First)?;
    let (mut records, mut bytes) = (0, 0);
    match by {
        By::Record => {
            while let Some(record) = reader.next_record()? {
                records += 1;
                bytes += black_box(record.data).len() as u64;
            }
        }
        By::Batch => {
            while let Some(batch) = reader.next_batch()? {
                records += u64::from(batch.count());
                bytes += batch.iter().map(|record| black_box(record.data).len() as u64).sum::<u64>();
            }
        }
    }
    Ok((records, bytes))
}

/// Rates of scans and of plain reads of the same files, in bytes a second, by round.
#[derive(Clone, Debug)]
pub(crate) struct Scans {
    pub(crate) figures: Vec<f64>,
    pub(crate) limits: Vec<f64>,
    /// Whether the files were in the page cache.
    pub(crate) cached: bool,
}

/// Of several ways to read, each measured in every round, the one with the highest median: by way, its rates. Not the
/// best of each round, which would favour the noisiest way.
fn best<const WAYS: usize>(rounds: Vec<[f64; WAYS]>) -> Vec<f64> {
    let of = |way: usize| rounds.iter().map(move |rates| rates[way]);
    let best = (0..WAYS).max_by(|a, b| median(of(*a)).total_cmp(&median(of(*b))));
    best.map_or(Vec::new(), |way| of(way).collect())
}

/// One rate for each way.
fn each<T: Copy, const WAYS: usize>(ways: [T; WAYS], rate: impl Fn(T) -> Result<f64>) -> Result<[f64; WAYS]> {
    let mut rates = [0.0; WAYS];
    for (place, way) in rates.iter_mut().zip(ways) {
        *place = rate(way)?;
    }
    Ok(rates)
}

/// A log of single 2 KiB appends (the hardest to scan: a checksum a record), or of batches.
pub(crate) fn log_to_read(bench: &Bench, bytes: u64, record_bytes: usize, batch: u32) -> Result<ScratchLog> {
    let log = ScratchLog::create(bench.dir(), "log-read", options())?;
    fill(&log, &bench.pool, bytes, record_bytes, batch)?;
    Ok(log)
}

/// Scans files in the page cache; both sides have read all of them once before.
pub(crate) fn scan_cached(bench: &Bench, log: &ScratchLog, by: By) -> Result<Scans> {
    let files = log.files()?;
    raw::read_files(&files, PIECE_UNCACHED, Readahead::Kernel)?;
    let expected = scan(log, by)?;
    let (figures, limits) = interleave(
        bench.rounds,
        || {
            let (seen, time) = timed(|| scan(log, by))?;
            ensure!(seen == expected, "a scan saw {seen:?}, another {expected:?}");
            Ok(seen.1 as f64 / time.as_secs_f64())
        },
        || each(PIECES, |piece| raw::read_files(&files, piece, Readahead::Kernel)),
    )?;
    Ok(Scans { figures, limits: best(limits), cached: true })
}

/// Scans after the page cache was emptied. The log is opened again each time, so that no mapping keeps pages; opening
/// it is not included in the time.
pub(crate) fn scan_uncached(bench: &Bench, log: &mut ScratchLog, by: By) -> Result<Scans> {
    let files = log.files()?;
    let log = RefCell::new(log);
    let (figures, limits) = interleave(
        bench.rounds,
        || {
            let mut log = log.borrow_mut();
            log.shut()?;
            raw::drop_caches(&files)?;
            log.open_again(options())?;
            let (seen, time) = timed(|| scan(&log, by))?;
            Ok(seen.1 as f64 / time.as_secs_f64())
        },
        || {
            log.borrow_mut().shut()?;
            each(Readahead::ALL, |ahead| {
                raw::drop_caches(&files)?;
                raw::read_files(&files, PIECE_UNCACHED, ahead)
            })
        },
    )?;
    log.into_inner().open_again(options())?;
    Ok(Scans { figures, limits: best(limits), cached: false })
}

/// Reads of single records at random, against `pread` at random places of the same files.
pub(crate) struct Random {
    pub(crate) figures: Vec<f64>,
    pub(crate) limits: Vec<f64>,
    pub(crate) latency: Percentiles,
}

pub(crate) fn random(bench: &Bench, log: &ScratchLog, record_bytes: usize) -> Result<Random> {
    let files = log.files()?;
    raw::read_files(&files, PIECE_UNCACHED, Readahead::Kernel)?;
    let status = log.status();
    let mut latencies = Latencies::new()?;
    let mut unused = Latencies::new()?;
    let mut random = fastrand::Rng::with_seed(3);
    let (figures, limits) = interleave(
        bench.rounds,
        || {
            let start = Instant::now();
            let (mut count, mut elapsed) = (0u64, Duration::ZERO);
            while elapsed < bench.window.measured {
                let index = Index(random.u64(status.first_index.0..=status.last_index.0));
                let record = log.read(index)?;
                ensure!(record.data.len() == record_bytes, "record {index} has {} bytes", record.data.len());
                let now = start.elapsed();
                latencies.record(now - elapsed);
                elapsed = now;
                count += 1;
            }
            Ok(count as f64 / elapsed.as_secs_f64())
        },
        || raw::read_random(&files, record_bytes, bench.window.measured, &mut unused),
    )?;
    Ok(Random { figures, limits, latency: latencies.summary() })
}

/// The measurements of a fresh process that opens a log: see [`probe`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// How long `Log::open` took.
    pub open_millis: f64,
    /// Records in the log.
    pub records: u64,
    /// Before the log was opened.
    pub memory_before: Memory,
    /// With the log open.
    pub memory_open: Memory,
    /// After a scan of the whole log, if requested.
    pub memory_scanned: Option<Memory>,
}

/// Opens the log in `dir` and returns how long it took and how much memory it cost. Run it in a process of its own, so
/// that nothing else is in its memory.
///
/// # Errors
/// Those of the log.
pub(crate) fn probe(dir: &Path, then_scan: bool) -> Result<Probe> {
    let memory_before = Memory::now()?;
    let (log, time) = timed(|| Ok(Log::open(dir, options().create(false))?))?;
    let memory_open = Memory::now()?;
    let status = log.status();
    let memory_scanned = if then_scan {
        scan(&log, By::Record)?;
        Some(Memory::now()?)
    } else {
        None
    };
    log.close()?;
    let records = status.last_index.0 + 1 - status.first_index.0;
    Ok(Probe { open_millis: time.as_secs_f64() * 1e3, records, memory_before, memory_open, memory_scanned })
}

/// Opening a large log, by round, and the time a scan of its last segment takes.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// Milliseconds with nothing in the page cache.
    pub(crate) cold_millis: Vec<f64>,
    /// Milliseconds to `read` the last segment's file with nothing in the page cache.
    pub(crate) last_segment_millis: Vec<f64>,
    /// Milliseconds with the page cache warm, as far as the log fits.
    pub(crate) warm_millis: Vec<f64>,
    /// Bytes of memory of its own, above what the process had before, when open.
    pub(crate) memory_open: u64,
    /// The same after a scan of the whole log.
    pub(crate) memory_scanned: u64,
    pub(crate) records: u64,
}

/// Fills a log with `bytes`, closes it, and opens it in fresh processes.
pub(crate) fn open_large(bench: &Bench, bytes: u64) -> Result<Opening> {
    let mut log = ScratchLog::create(bench.dir(), "log-large", options())?;
    fill(&log, &bench.pool, bytes, 2048, 1024)?;
    // Not a round number: the last segment is partly full.
    fill(&log, &bench.pool, 20 << 20, 2048, 1)?;
    let files = log.files()?;
    log.shut()?;
    let last = files.last().map(std::slice::from_ref).context("the log has no segments")?;
    let last_bytes = last[0].metadata()?.len() as f64;
    let mut probes = Vec::new();
    let (cold_millis, last_segment_millis) = interleave(
        bench.rounds,
        || {
            raw::drop_caches(&files)?;
            let probe = probe_in_child(bench, log.path(), false)?;
            probes.push(probe);
            Ok(probe.open_millis)
        },
        || {
            raw::drop_caches(&files)?;
            Ok(last_bytes / raw::read_files(last, PIECE_UNCACHED, Readahead::Window)? * 1e3)
        },
    )?;
    let mut warm_millis = Vec::new();
    for _ in 0..bench.rounds {
        warm_millis.push(probe_in_child(bench, log.path(), false)?.open_millis);
    }
    let scanned = probe_in_child(bench, log.path(), true)?;
    let cost = |probe: &Probe, memory: Memory| memory.anonymous.saturating_sub(probe.memory_before.anonymous);
    let memory_open = probes.iter().map(|probe| cost(probe, probe.memory_open)).max().unwrap_or(0);
    let memory_scanned = scanned.memory_scanned.map_or(0, |memory| cost(&scanned, memory));
    let records = scanned.records;
    Ok(Opening { cold_millis, last_segment_millis, warm_millis, memory_open, memory_scanned, records })
}

/// This program calls [`probe`] in another process.
fn probe_in_child(bench: &Bench, dir: &Path, then_scan: bool) -> Result<Probe> {
    let mut child = bench.own.command("probe");
    child.arg(dir).stderr(Stdio::inherit());
    if then_scan {
        child.arg("--scan");
    }
    let output = child.output().context("starting a process that opens the log")?;
    ensure!(output.status.success(), "the process that opened the log ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("reading what the process that opened the log said")
}

/// The cost of an open log with a reader waiting at its tail, without appends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    /// Processor time, in microseconds a second.
    pub(crate) cpu_micros: f64,
    /// The same process with no log open.
    pub(crate) cpu_micros_without: f64,
    /// Context switches a second.
    pub(crate) switches: f64,
}

pub(crate) fn idle(bench: &Bench, time: Duration) -> Result<Idle> {
    let rest = || -> Result<(f64, f64)> {
        let before = Usage::now()?;
        thread::sleep(time);
        let used = Usage::now()?.since(&before);
        let seconds = time.as_secs_f64();
        Ok((used.cpu.as_secs_f64() * 1e6 / seconds, (used.waits + used.preemptions) as f64 / seconds))
    };
    let (cpu_micros_without, _) = rest()?;
    let log = ScratchLog::create(bench.dir(), "log-idle", options())?;
    log.append(bench.pool.record(1, 2048))?;
    let reader = log.reader(Start::Next)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(move || reader.wait(None).map(drop));
        // Waits for the preparation of segments and the marker of an idle log to end.
        thread::sleep(Duration::from_secs(2));
        let used = rest();
        log.append(bench.pool.record(2, 2048))?;
        waiting.join().map_err(|_| anyhow::anyhow!("the waiting reader panicked"))??;
        let (cpu_micros, switches) = used?;
        Ok(Idle { cpu_micros, cpu_micros_without, switches })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_has_the_best_median() {
        assert_eq!(best(vec![[1.0, 2.0], [9.0, 2.1], [1.1, 2.2]]), [2.0, 2.1, 2.2]);
        assert!(best::<2>(vec![]).is_empty());
    }
}
