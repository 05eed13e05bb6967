//! Measuring: latency histograms, the process's own use of CPU and memory, medians of interleaved rounds.
//!
//! Must not know: what is measured.

use anyhow::Result;
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Duration, Instant};

/// Bytes of a MiB.
pub(crate) const MIB: f64 = 1_048_576.0;

/// Latencies in nanoseconds, up to a minute, to three digits. It takes about 200 KiB, however much is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

const LATENCY_NANOS_MAX: u64 = 60_000_000_000;

impl Latencies {
    /// An empty one.
    ///
    /// # Errors
    /// None in practice: the bounds are constants that the histogram accepts.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(100, LATENCY_NANOS_MAX, 3)?))
    }

    /// Records one; more than a minute counts as a minute.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NANOS_MAX));
    }

    /// Adds all values of another histogram.
    ///
    /// # Errors
    /// None in practice: all have the same bounds.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// How many were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The percentiles.
    pub(crate) fn summary(&self) -> Percentiles {
        let at = |q| self.0.value_at_quantile(q) as f64 / 1000.0;
        Percentiles {
            count: self.0.len(),
            mean: self.0.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max() as f64 / 1000.0,
        }
    }
}

/// Percentiles of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) struct Percentiles {
    /// Samples.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The worst.
    pub max: f64,
}

/// The use of the whole process so far, including threads that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// Times a thread gave up its processor because it waited.
    pub waits: u64,
    /// Times a thread lost its processor although it could have continued.
    pub preemptions: u64,
}

impl Usage {
    /// Reads the counters.
    ///
    /// # Errors
    /// The kernel refuses `getrusage`, which it does not.
    pub(crate) fn now() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Ok(Self {
            cpu: Duration::new(cpu.tv_sec.unsigned_abs(), u32::try_from(cpu.tv_nsec).unwrap_or(0)),
            waits: usage.voluntary_context_switches().unsigned_abs(),
            preemptions: usage.involuntary_context_switches().unsigned_abs(),
        })
    }

    /// The use since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            waits: self.waits - earlier.waits,
            preemptions: self.preemptions - earlier.preemptions,
        }
    }
}

/// The process's resident memory, in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Memory of its own: heap and stacks. This is a log's cost "above the page cache".
    pub anonymous: u64,
    /// Pages of mapped files. They belong to the page cache; the kernel can reclaim them.
    pub file: u64,
}

impl Memory {
    /// Reads `/proc`.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub(crate) fn now() -> Result<Self> {
        Self::of(std::process::id())
    }

    /// The memory of another process.
    ///
    /// # Errors
    /// There is no process with this number, or no `/proc`.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib: Option<u64> =
                line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok());
            kib.unwrap_or(0) * 1024
        };
        Ok(Self { anonymous: field("RssAnon:"), file: field("RssFile:") })
    }
}

/// Runs two measurements alternately, `rounds` times, so that other load on the machine affects both alike.
///
/// # Errors
/// The first error of either.
pub(crate) fn interleave<A, B>(
    rounds: usize,
    mut a: impl FnMut() -> Result<A>,
    mut b: impl FnMut() -> Result<B>,
) -> Result<(Vec<A>, Vec<B>)> {
    let mut out = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        out.0.push(a()?);
        out.1.push(b()?);
    }
    Ok(out)
}

/// The median; of an even number of values the mean of the middle two. 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The median of the ratios of neighbours: of values measured at nearly the same time.
pub(crate) fn ratio(figures: &[f64], limits: &[f64]) -> f64 {
    median(figures.iter().zip(limits).map(|(figure, limit)| figure / limit))
}

/// Runs `work` and measures its time.
///
/// # Errors
/// Those of `work`.
pub(crate) fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    let out = work()?;
    Ok((out, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
        assert_eq!(ratio(&[1.0, 4.0, 9.0], &[2.0, 2.0, 3.0]), 2.0);
    }

    #[test]
    fn rounds_alternate() {
        let order = std::cell::RefCell::new(String::new());
        let note = |c| {
            order.borrow_mut().push(c);
            Ok(c)
        };
        let (a, b) = interleave(3, || note('a'), || note('b')).unwrap();
        assert_eq!((a.len(), b.len(), order.into_inner().as_str()), (3, 3, "ababab"));
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut latencies = Latencies::new().unwrap();
        for millis in 1..=1000 {
            latencies.record(Duration::from_millis(millis));
        }
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        assert!((summary.p50 / 500_000.0 - 1.0).abs() < 0.002, "{summary:?}");
        assert!((summary.p999 / 999_000.0 - 1.0).abs() < 0.002, "{summary:?}");
    }

    #[test]
    fn the_process_uses_something() {
        let before = Usage::now().unwrap();
        let data = vec![1u8; 8 << 20];
        assert!(std::hint::black_box(&data).iter().map(|b| u64::from(*b)).sum::<u64>() == 8 << 20);
        assert!(Usage::now().unwrap().since(&before).cpu > Duration::ZERO);
        assert!(Memory::now().unwrap().anonymous > 8 << 20);
    }
}
