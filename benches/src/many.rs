//! Many named logs beside one log: appends, creation, idleness, opening, reading one of them, and what a byte costs on
//! the disk. Also the bare loop with several committers, which shows how many syncs a disk takes side by side.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::bare::Bare;
use crate::cases::{Bench, options};
use crate::data::Pool;
use crate::engine::{Blocks, Log, ScratchLog, Start, fill};
use crate::measure::{Memory, Usage, interleave, median, timed};
use crate::workload::{self, Appender, Outcome};
use anyhow::{Context, Result, ensure};
use chiplog::metrics::Metrics;
use chiplog::{Logs, LogsOptions, Options};
use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that append in the cases of this file.
pub(crate) const APPENDERS: usize = 128;
/// The named logs of most cases.
pub(crate) const LOGS: usize = 1000;

/// How long the copies of all segments may take.
const COPIES_TIMEOUT: Duration = Duration::from_secs(300);

/// Named logs in a directory that is removed with them.
pub(crate) struct ScratchLogs {
    logs: Option<Logs>,
    handles: Vec<Log>,
    path: PathBuf,
    /// Further directories, which are removed too.
    directories: Vec<PathBuf>,
}

impl ScratchLogs {
    /// A fresh directory `dir/many` with `count` logs in `groups` groups.
    pub(crate) fn create(dir: &Path, count: usize, groups: u32) -> Result<Self> {
        Self::create_on(dir, count, groups, &[])
    }

    /// As [`Self::create`], with the groups on these disks, in a fresh directory `DISK/many-groups` each.
    fn create_on(dir: &Path, count: usize, groups: u32, disks: &[PathBuf]) -> Result<Self> {
        let path = dir.join("many");
        let directories: Vec<PathBuf> = disks.iter().map(|disk| disk.join("many-groups")).collect();
        for path in directories.iter().chain([&path]).filter(|path| path.exists()) {
            fs::remove_dir_all(path).with_context(|| format!("removing {}", path.display()))?;
        }
        for path in &directories {
            fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
        }
        let options = LogsOptions::default().groups(groups).directories(&directories);
        let logs = Logs::open(&path, options)?;
        let handles = create_all(&logs, count)?;
        Ok(Self { logs: Some(logs), handles, path, directories })
    }

    fn logs(&self) -> Result<&Logs> {
        self.logs.as_ref().context("the logs were closed")
    }

    /// Waits until all full segments of the only group have a sorted copy.
    fn await_copies(&self) -> Result<()> {
        let groups = self.logs()?.groups();
        let full = groups.get(&1).context("there is no group 1")?.status().segments.saturating_sub(1);
        let begun = Instant::now();
        loop {
            let copies = self.copies()?.len() as u64;
            if copies >= full {
                return Ok(());
            }
            ensure!(begun.elapsed() < COPIES_TIMEOUT, "{copies} of {full} segments were sorted");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The sizes of the sorted copies of the only group.
    fn copies(&self) -> Result<Vec<u64>> {
        let entries: Vec<_> = fs::read_dir(self.path.join("group-1"))?.collect::<std::io::Result<_>>()?;
        let copies = entries.iter().filter(|entry| entry.path().extension().is_some_and(|ext| ext == "run"));
        copies.map(|entry| Ok(entry.metadata()?.len())).collect()
    }

    /// The counters of all groups together.
    fn metrics(&self) -> Result<Vec<Metrics>> {
        Ok(self.logs()?.groups().values().map(Log::metrics).collect())
    }

    /// Closes the logs; their files are kept.
    fn shut(&mut self) -> Result<()> {
        self.handles.clear();
        match self.logs.take() {
            Some(logs) => Ok(logs.close()?),
            None => Ok(()),
        }
    }

    /// Opens the logs again after [`Self::shut`].
    fn open_again(&mut self) -> Result<()> {
        self.open_with(Options::default())
    }

    fn open_with(&mut self, options: Options) -> Result<()> {
        self.logs = Some(Logs::open(&self.path, LogsOptions::default().groups(1).options(options))?);
        Ok(())
    }
}

impl Drop for ScratchLogs {
    fn drop(&mut self) {
        self.handles.clear();
        self.logs = None;
        // The whole work directory is removed later.
        for path in self.directories.iter().chain([&self.path]) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Creates `count` logs from 16 threads: creations share their syncs, as appends do.
pub(crate) fn create_all(logs: &Logs, count: usize) -> Result<Vec<Log>> {
    const CREATORS: usize = 16;
    thread::scope(|scope| {
        let creators: Vec<_> = (0..CREATORS)
            .map(|creator| {
                scope.spawn(move || -> Result<Vec<Log>> {
                    (creator..count)
                        .step_by(CREATORS)
                        .map(|n| Ok(logs.create(&format!("log-{n}"))?))
                        .collect()
                })
            })
            .collect();
        let mut handles = Vec::with_capacity(count);
        for creator in creators {
            handles.extend(creator.join().map_err(|_| anyhow::anyhow!("a creating thread panicked"))??);
        }
        Ok(handles)
    })
}

/// Spreads appends over the logs.
impl Appender for ScratchLogs {
    fn append(&self, record: &[u8]) -> Result<()> {
        let n = fastrand::usize(..self.handles.len());
        self.handles[n].append(record)?;
        Ok(())
    }
}

/// 128 blocking threads over [`LOGS`] named logs in `groups` groups, beside as many threads on one log.
pub(crate) struct Many {
    pub(crate) many: Vec<Outcome>,
    pub(crate) one: Vec<Outcome>,
    pub(crate) blocks: Vec<Blocks>,
}

impl Many {
    /// Median of the processor time of an append of named logs to that of one log.
    pub(crate) fn cpu_ratio(&self) -> f64 {
        let each = |outcomes: &[Outcome]| median(outcomes.iter().map(Outcome::cpu_micros_each));
        each(&self.many) / each(&self.one)
    }
}

pub(crate) fn appends(bench: &Bench, record_bytes: usize, groups: u32) -> Result<Many> {
    let many = || {
        let logs = ScratchLogs::create(&bench.dir, LOGS, groups)?;
        let before = logs.metrics()?;
        let outcome = workload::blocking(&logs, &bench.pool, APPENDERS, record_bytes, bench.window)?;
        let after = logs.metrics()?;
        let blocks = before.iter().zip(&after).map(|(before, after)| Blocks::between(before, after));
        let sum = |sum: Blocks, group: Blocks| Blocks {
            count: sum.count + group.count,
            bytes: sum.bytes + group.bytes,
            syncs: sum.syncs + group.syncs,
        };
        Ok((outcome, blocks.fold(Blocks { count: 0, bytes: 0, syncs: 0 }, sum)))
    };
    let one = || {
        let log = ScratchLog::create(&bench.dir, "log", options())?;
        workload::blocking(&*log, &bench.pool, APPENDERS, record_bytes, bench.window)
    };
    let (many, one) = interleave(bench.rounds, many, one)?;
    let (many, blocks) = many.into_iter().unzip();
    Ok(Many { many, one, blocks })
}

/// [`LOGS`] named logs in two groups: each group on a disk of its own, and both on the first of these disks.
pub(crate) struct Disks {
    pub(crate) two: Vec<Outcome>,
    pub(crate) one: Vec<Outcome>,
}

pub(crate) fn disks(bench: &Bench, disks: &[PathBuf], record_bytes: usize) -> Result<Disks> {
    let on = |disks: &[PathBuf]| {
        let logs = ScratchLogs::create_on(&bench.dir, LOGS, 2, disks)?;
        workload::blocking(&logs, &bench.pool, APPENDERS, record_bytes, bench.window)
    };
    let (two, one) = interleave(bench.rounds, || on(disks), || on(&disks[..1]))?;
    Ok(Disks { two, one })
}

/// The bare loop with `committers` loops side by side, 128 threads shared among them.
pub(crate) fn committers(bench: &Bench, record_bytes: usize, committers: usize) -> Result<Vec<Outcome>> {
    struct Several(Vec<Bare>);
    impl Appender for Several {
        fn append(&self, record: &[u8]) -> Result<()> {
            self.0[fastrand::usize(..self.0.len())].append(record)
        }
    }
    let mut loops = Vec::with_capacity(committers);
    for n in 0..committers {
        let dir = bench.dir.join(format!("committer-{n}"));
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        loops.push(Bare::start(&dir, bench.raw_bytes / committers as u64)?);
    }
    let loops = Several(loops);
    let round = |_| workload::blocking(&loops, &bench.pool, APPENDERS, record_bytes, bench.window);
    (0..bench.rounds).map(round).collect()
}

/// How long it takes to create `count` logs.
pub(crate) fn create(bench: &Bench, count: usize) -> Result<Duration> {
    let logs = ScratchLogs::create(&bench.dir, 0, 1)?;
    let (_, time) = timed(|| create_all(logs.logs()?, count))?;
    Ok(time)
}

/// The cost of open named logs without activity.
pub(crate) struct Idle {
    /// Microseconds of processor time a second.
    pub(crate) cpu_micros: f64,
    /// Memory of the process's own that the open logs take.
    pub(crate) memory: u64,
    /// The threads of the process, with one named log and with all.
    pub(crate) threads: (usize, usize),
}

pub(crate) fn idle(bench: &Bench, count: usize, time: Duration) -> Result<Idle> {
    let one = ScratchLogs::create(&bench.dir, 1, 1)?;
    let threads_of_one = threads()?;
    drop(one);
    let before = Memory::now()?;
    let mut logs = ScratchLogs::create(&bench.dir, count, 1)?;
    // A restart: the memory is that of an open directory, not that of creating the logs.
    logs.shut()?;
    logs.open_again()?;
    thread::sleep(Duration::from_secs(2)); // until segments are prepared
    let threads = (threads_of_one, threads()?);
    let memory = Memory::now()?.anonymous.saturating_sub(before.anonymous);
    let usage = Usage::now()?;
    thread::sleep(time);
    let used = Usage::now()?.since(&usage);
    Ok(Idle { cpu_micros: used.cpu.as_secs_f64() * 1e6 / time.as_secs_f64(), memory, threads })
}

/// The threads of this process.
fn threads() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task").context("listing the threads of this process")?.count())
}

/// Milliseconds to open named logs, and one log of as many bytes, by round.
pub(crate) struct Opening {
    pub(crate) many: Vec<f64>,
    pub(crate) one: Vec<f64>,
}

pub(crate) fn open(bench: &Bench, count: usize, bytes: u64, record_bytes: usize) -> Result<Opening> {
    let mut many = filled(bench, count, bytes, record_bytes)?;
    let mut one = ScratchLog::create(&bench.dir, "log", options())?;
    fill(&one, &bench.pool, bytes, record_bytes, 1)?;
    many.shut()?;
    one.shut()?;
    let (many, one) = (RefCell::new(many), RefCell::new(one));
    let (many, one) = interleave(
        bench.rounds,
        || {
            let mut many = many.borrow_mut();
            let (_, time) = timed(|| many.open_again())?;
            many.shut()?;
            Ok(time.as_secs_f64() * 1e3)
        },
        || {
            let mut one = one.borrow_mut();
            let (_, time) = timed(|| one.open_again(options()))?;
            one.shut()?;
            Ok(time.as_secs_f64() * 1e3)
        },
    )?;
    Ok(Opening { many, one })
}

/// `count` named logs in one group that hold `bytes` of records together, each record in a log at random.
fn filled(bench: &Bench, count: usize, bytes: u64, record_bytes: usize) -> Result<ScratchLogs> {
    const INFLIGHT: usize = 8192;
    let logs = ScratchLogs::create(&bench.dir, count, 1)?;
    let mut random = fastrand::Rng::with_seed(5);
    let mut waiting = std::collections::VecDeque::with_capacity(INFLIGHT);
    for n in 0..bytes / record_bytes as u64 {
        let log = &logs.handles[random.usize(..count)];
        waiting.push_back(log.submit(bench.pool.record(n, record_bytes))?);
        if waiting.len() == INFLIGHT {
            waiting.drain(..INFLIGHT / 2).try_for_each(|ticket| ticket.wait().map(drop))?;
        }
    }
    waiting.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    Ok(logs)
}

/// Rates of reading a tenth of the named logs one after the other, and of reading one log, in bytes of records a
/// second, by round. All files are in the page cache.
pub(crate) struct Scans {
    pub(crate) many: Vec<f64>,
    pub(crate) one: Vec<f64>,
}

/// The rates without sorted copies of segments, and with them.
pub(crate) fn scan(bench: &Bench, count: usize, bytes: u64, record_bytes: usize) -> Result<[Scans; 2]> {
    let mut many = filled(bench, count, bytes, record_bytes)?;
    let one = ScratchLog::create(&bench.dir, "log", options())?;
    fill(&one, &bench.pool, bytes / 10, record_bytes, 1)?;
    let read = |log: &Log| -> Result<u64> {
        let mut reader = log.reader(Start::First)?;
        let mut bytes = 0;
        while let Some(record) = reader.next_record()? {
            bytes += black_box(record.data).len() as u64;
        }
        Ok(bytes)
    };
    let mut scans = |is_sorted: bool| -> Result<Scans> {
        many.shut()?;
        many.open_with(Options::default().sorted_copies(is_sorted))?;
        many.handles =
            (0..count).map(|n| Ok(many.logs()?.get(&format!("log-{n}"))?)).collect::<Result<_>>()?;
        if is_sorted {
            many.await_copies()?;
        }
        // Both sides have read everything once before.
        many.handles.iter().try_for_each(|log| read(log).map(drop))?;
        read(&one)?;
        let (many, one) = interleave(
            bench.rounds,
            || {
                let (bytes, time) =
                    timed(|| many.handles[..count / 10].iter().map(read).sum::<Result<u64>>())?;
                ensure!(bytes > 0, "the named logs are empty");
                Ok(bytes as f64 / time.as_secs_f64())
            },
            || {
                let (bytes, time) = timed(|| read(&one))?;
                Ok(bytes as f64 / time.as_secs_f64())
            },
        )?;
        Ok(Scans { many, one })
    };
    Ok([scans(false)?, scans(true)?])
}

/// Latencies of quiet logs alone and beside one log whose appenders keep the queue full.
pub(crate) fn fair(bench: &Bench, record_bytes: usize) -> Result<(Outcome, Outcome)> {
    const QUIET: usize = 8;
    struct Quiet<'a>(&'a [Log]);
    impl Appender for Quiet<'_> {
        fn append(&self, record: &[u8]) -> Result<()> {
            self.0[fastrand::usize(..self.0.len())].append(record)?;
            thread::sleep(Duration::from_millis(1));
            Ok(())
        }
    }
    let logs = ScratchLogs::create(&bench.dir, QUIET + 1, 1)?;
    let (quiet, loud) = logs.handles.split_at(QUIET);
    let quiet = Quiet(quiet);
    let alone = workload::blocking(&quiet, &bench.pool, QUIET, record_bytes, bench.window)?;
    let stop = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        let floods = scope.spawn(|| flood(&loud[0], &bench.pool, record_bytes, &stop));
        let beside = workload::blocking(&quiet, &bench.pool, QUIET, record_bytes, bench.window);
        stop.store(true, Ordering::Relaxed);
        floods.join().map_err(|_| anyhow::anyhow!("the flooding thread panicked"))??;
        beside
    })?;
    Ok((alone, beside))
}

/// Keeps a log's queue full until `stop`.
fn flood(log: &Log, pool: &Pool, record_bytes: usize, stop: &AtomicBool) -> Result<()> {
    let mut waiting = std::collections::VecDeque::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        waiting.push_back(log.submit(pool.record(n, record_bytes))?);
        n += 1;
        if waiting.len() == 65_536 {
            waiting.drain(..32_768).try_for_each(|ticket| ticket.wait().map(drop))?;
        }
    }
    Ok(waiting.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?)
}

/// Bytes that the files of named logs took for each byte appended.
pub(crate) fn amplification(bench: &Bench, record_bytes: usize) -> Result<f64> {
    let logs = ScratchLogs::create(&bench.dir, LOGS, 1)?;
    let before = logs.metrics()?;
    workload::blocking(&logs, &bench.pool, APPENDERS, record_bytes, bench.window)?;
    let after = logs.metrics()?;
    let (bytes, records) = before.iter().zip(&after).fold((0, 0), |(bytes, records), (before, after)| {
        (bytes + after.bytes - before.bytes, records + after.records - before.records)
    });
    logs.await_copies()?;
    let bytes = bytes + logs.copies()?.iter().sum::<u64>();
    Ok(bytes as f64 / (records * record_bytes as u64) as f64)
}

/// The figures of a list of outcomes, in appends a second.
pub(crate) fn per_second(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().map(Outcome::per_second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_logs_are_made_filled_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let logs = ScratchLogs::create(dir.path(), 5, 2).unwrap();
        logs.append(b"x").unwrap();
        assert_eq!(logs.logs().unwrap().list().unwrap().len(), 5);
        let records: u64 = logs.metrics().unwrap().iter().map(|group| group.records).sum();
        assert_eq!(records, 1);
        drop(logs);
        assert!(!dir.path().join("many").exists());
    }
}
