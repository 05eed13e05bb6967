//! Measures durable writes: `pwrite` and `fdatasync` into a zero-filled file, as a log does it.

use crate::common::failure::{Failure, Result};
use crate::common::format;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The size of the scratch file; writes wrap around in it.
const FILE_BYTES: u64 = 16 << 20;
/// The largest write to measure.
pub(super) const WRITE_BYTES_MAX: u32 = 4 << 20;
/// Longer than any sync that returns.
const NANOS_MAX: u64 = 600_000_000_000;

/// The measured times, in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) samples: u64,
    write_bytes: u32,
    min_micros: f64,
    mean_micros: f64,
    pub(super) p50_micros: f64,
    p90_micros: f64,
    pub(super) p99_micros: f64,
    p999_micros: f64,
    pub(super) max_micros: f64,
    per_second: f64,
    /// Whether the device zeroes new files by itself. Otherwise each byte of a growing log is written twice.
    device_writes_zeroes: bool,
    histogram: Vec<Bucket>,
}

/// The number of samples up to this time, and above that of the bucket before.
#[derive(Debug, Serialize)]
struct Bucket {
    up_to_micros: f64,
    count: u64,
}

/// A file that is removed on drop.
struct Scratch {
    file: File,
    path: PathBuf,
    zeroed_by_device: bool,
}

impl Scratch {
    fn new(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!(".chiplog-doctor-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let mut scratch = Self { file, path, zeroed_by_device: false };
        scratch.zeroed_by_device = chiplog::disk::device_writes_zeroes(&scratch.file)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            scratch.file.write_all_at(&zeros, at)?;
        }
        scratch.file.sync_all()?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes `bytes` and syncs, repeatedly for `time`.
pub(super) fn measure(dir: &Path, bytes: u32, time: Duration, bar: &ProgressBar) -> Result<Latency> {
    let failed = |e: io::Error| Failure::io("measure syncs of a scratch file in", dir, &e);
    let mut histogram =
        Histogram::<u64>::new_with_max(NANOS_MAX, 3).map_err(|e| failed(io::Error::other(e.to_string())))?;
    let scratch = Scratch::new(dir).map_err(failed)?;
    let data = vec![0xa5; bytes as usize];
    let started = Instant::now();
    let mut at = 0;
    // Some unmeasured writes first: the file system may still be writing the zeros.
    for round in 0u64.. {
        if at + u64::from(bytes) > FILE_BYTES {
            at = 0;
        }
        let begun = Instant::now();
        scratch.file.write_all_at(&data, at).and_then(|()| scratch.file.sync_data()).map_err(failed)?;
        let took = begun.elapsed();
        if round >= 3 {
            histogram.saturating_record(took.as_nanos().min(u128::from(NANOS_MAX)) as u64);
        }
        at += u64::from(bytes);
        bar.inc(u64::from(bytes));
        if round >= 4 && started.elapsed() >= time {
            break;
        }
    }
    Ok(Latency::new(&histogram, bytes, scratch.zeroed_by_device))
}

impl Latency {
    fn new(histogram: &Histogram<u64>, write_bytes: u32, device_writes_zeroes: bool) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let at = |quantile: f64| micros(histogram.value_at_quantile(quantile));
        // Buckets that double in size, from 1 µs.
        let mut buckets = Vec::new();
        let mut from = 0;
        for upto in (0..40).map(|power| 1000u64 << power).take_while(|upto| *upto / 2 <= histogram.max()) {
            let count = histogram.count_between(from, upto - 1);
            buckets.push(Bucket { up_to_micros: micros(upto), count });
            from = upto;
        }
        let first = buckets.iter().position(|b| b.count > 0).unwrap_or(0);
        let mean = histogram.mean() / 1000.0;
        Self {
            samples: histogram.len(),
            write_bytes,
            min_micros: micros(histogram.min()),
            mean_micros: mean,
            p50_micros: at(0.5),
            p90_micros: at(0.9),
            p99_micros: at(0.99),
            p999_micros: at(0.999),
            max_micros: micros(histogram.max()),
            per_second: if mean > 0.0 { 1e6 / mean } else { 0.0 },
            device_writes_zeroes,
            histogram: buckets.split_off(first),
        }
    }

    pub(super) fn words(&self) -> String {
        let time = |micros: f64| format::duration(Duration::from_secs_f64(micros / 1e6));
        let mut out = format!(
            "{} writes of {}, each with its fdatasync: {}/s one after the other\n",
            format::count(self.samples),
            format::bytes(self.write_bytes.into()),
            format::per_second(self.per_second)
        );
        _ = writeln!(
            out,
            "  median {}, 90% {}, 99% {}, 99.9% {}, longest {}",
            time(self.p50_micros),
            time(self.p90_micros),
            time(self.p99_micros),
            time(self.p999_micros),
            time(self.max_micros)
        );
        let most = self.histogram.iter().map(|b| b.count).max().unwrap_or(1).max(1);
        for Bucket { up_to_micros, count } in &self.histogram {
            let width = (count * 40).div_ceil(most) as usize;
            _ = writeln!(
                out,
                "  up to {:>9}  {:>8}  {}",
                time(*up_to_micros),
                format::count(*count),
                "#".repeat(width)
            );
        }
        out.push_str(match self.device_writes_zeroes {
            true => "the device zeroes new files: each byte of a growing log is written once\n",
            false => "new files are zeroed by writing: each byte of a growing log is written twice\n",
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_in_one_bucket() {
        let mut histogram = Histogram::<u64>::new_with_max(NANOS_MAX, 3).unwrap();
        for nanos in [900, 90_000, 100_000, 130_000, 5_000_000] {
            histogram.record(nanos).unwrap();
        }
        let latency = Latency::new(&histogram, 4096, false);
        assert_eq!(latency.histogram.iter().map(|b| b.count).sum::<u64>(), latency.samples);
        assert_eq!(latency.histogram.last().unwrap().count, 1);
        assert!((latency.p50_micros - 100.0).abs() < 1.0, "{latency:?}");
        assert!(latency.words().contains("median 100 µs"), "{}", latency.words());
    }

    #[test]
    fn measuring_removes_its_file() {
        let dir = std::env::temp_dir().join(format!("chiplog-sync-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let latency = measure(&dir, 4096, Duration::from_millis(5), &ProgressBar::hidden()).unwrap();
        assert!(latency.samples > 0);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
    }
}
