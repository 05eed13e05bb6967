//! Append workloads: threads that append and wait (closed loop), threads with many appends in flight, and arrivals at a
//! fixed rate (open loop).
//!
//! Every workload warms up first; only what completes inside the measured window counts. In a closed loop a slow append
//! delays the next one, so its latencies say how long a caller waits. The open loop measures how long a caller with a
//! pace of its own would wait.
//!
//! Must not know: what a bar is, how results are shown.

use crate::data::Pool;
use crate::engine::{BatchBuilder, Blocks, Index, Log, Metrics, Ticket};
use crate::measure::{Latencies, Usage};
use anyhow::{Result, anyhow, ensure};
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Something that makes one record durable before it returns. Called from many threads.
pub(crate) trait Appender: Sync {
    /// Appends a record.
    ///
    /// # Errors
    /// The record is not durable.
    fn append(&self, record: &[u8]) -> Result<()>;
}

impl Appender for Log {
    fn append(&self, record: &[u8]) -> Result<()> {
        Self::append(self, record)?;
        Ok(())
    }
}

/// How long a workload runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The warm-up, which does not count.
    pub warm_up: Duration,
    /// The measured time.
    pub measured: Duration,
}

/// The results of a workload in its window.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Appends (of a record or a batch) completed.
    pub appends: u64,
    /// The actual window.
    pub elapsed: Duration,
    /// Latency of each append.
    pub latencies: Latencies,
    /// The process's use of processor and memory.
    pub usage: Usage,
}

impl Outcome {
    /// Appends a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.appends as f64 / self.elapsed.as_secs_f64()
    }

    /// `total` divided by the appends.
    fn each(&self, total: f64) -> f64 {
        total / self.appends.max(1) as f64
    }

    /// Microseconds of processor time an append, all threads together.
    pub(crate) fn cpu_micros_each(&self) -> f64 {
        self.each(self.usage.cpu.as_secs_f64() * 1e6)
    }

    /// Context switches an append.
    pub(crate) fn switches_each(&self) -> f64 {
        self.each((self.usage.waits + self.usage.preemptions) as f64)
    }
}

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const STOPPED: u8 = 2;

/// The results of one thread.
struct Tally<'a> {
    phase: &'a AtomicU8,
    /// How many threads have counted an append.
    counted: &'a AtomicUsize,
    appends: u64,
    latencies: Latencies,
}

impl Tally<'_> {
    fn stopped(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOPPED
    }

    /// Records an append that completed just now.
    fn note(&mut self, latency: Duration) {
        if self.phase.load(Ordering::Relaxed) == COUNTING {
            self.appends += 1;
            self.latencies.record(latency);
            if self.appends == 1 {
                self.counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// How long a window is extended at most until each thread has counted an append: on a busy machine a short one may have none.
const EXTENDED_MAX: Duration = Duration::from_secs(60);

/// Runs `work` on `threads` threads until the window has passed, and each has counted an append. Calls `look` at the window's two ends.
fn drive<S>(
    threads: usize,
    window: Window,
    look: impl Fn() -> S,
    work: impl Fn(u64, &mut Tally<'_>) -> Result<()> + Sync,
) -> Result<(Outcome, S, S)> {
    let (phase, counted) = (AtomicU8::new(WARMING), AtomicUsize::new(0));
    thread::scope(|scope| {
        let mut workers = Vec::with_capacity(threads);
        for n in 0..threads as u64 {
            let mut tally =
                Tally { phase: &phase, counted: &counted, appends: 0, latencies: Latencies::new()? };
            let work = &work;
            workers.push(scope.spawn(move || work(n << 32, &mut tally).map(|()| tally)));
        }
        thread::sleep(window.warm_up);
        let (usage, start, before) = (Usage::now()?, Instant::now(), look());
        phase.store(COUNTING, Ordering::Relaxed);
        thread::sleep(window.measured);
        let goes_on =
            || start.elapsed() < window.measured + EXTENDED_MAX && workers.iter().any(|w| !w.is_finished());
        while counted.load(Ordering::Relaxed) < threads && goes_on() {
            thread::sleep(Duration::from_millis(1));
        }
        phase.store(STOPPED, Ordering::Relaxed);
        let (elapsed, after) = (start.elapsed(), look());
        let usage = Usage::now()?.since(&usage);
        let mut outcome = Outcome { appends: 0, elapsed, latencies: Latencies::new()?, usage };
        for worker in workers {
            let tally = worker.join().map_err(|_| anyhow!("a load thread panicked"))??;
            outcome.appends += tally.appends;
            outcome.latencies.add(&tally.latencies)?;
        }
        ensure!(outcome.appends > 0, "no append was confirmed within {elapsed:?}");
        Ok((outcome, before, after))
    })
}

/// `threads` threads, each appending one record after the other and waiting for it.
///
/// # Errors
/// The error of the first append that fails.
pub(crate) fn blocking<A: Appender>(
    target: &A,
    pool: &Pool,
    threads: usize,
    record_bytes: usize,
    window: Window,
) -> Result<Outcome> {
    let work = |from: u64, tally: &mut Tally<'_>| {
        let mut n = from;
        while !tally.stopped() {
            let before = Instant::now();
            target.append(pool.record(n, record_bytes))?;
            tally.note(before.elapsed());
            n += 1;
        }
        Ok(())
    };
    Ok(drive(threads, window, || (), work)?.0)
}

/// `threads` threads, each with `depth` records in flight: it waits for the oldest, then sends another.
///
/// # Errors
/// The error of the first append that fails.
pub(crate) fn pipelined(
    log: &Log,
    pool: &Pool,
    threads: usize,
    depth: usize,
    record_bytes: usize,
    window: Window,
) -> Result<(Outcome, Blocks)> {
    let work = |from: u64, tally: &mut Tally<'_>| {
        let mut waiting: VecDeque<(Instant, Ticket<Index>)> = VecDeque::with_capacity(depth);
        let mut n = from;
        while !tally.stopped() {
            while waiting.len() < depth {
                waiting.push_back((Instant::now(), log.submit(pool.record(n, record_bytes))?));
                n += 1;
            }
            if let Some((sent, ticket)) = waiting.pop_front() {
                ticket.wait()?;
                tally.note(sent.elapsed());
            }
        }
        waiting.iter().try_for_each(|(_, ticket)| ticket.wait().map(drop))?;
        Ok(())
    };
    let (outcome, before, after) = drive(threads, window, || log.metrics(), work)?;
    Ok((outcome, Blocks::between(&before, &after)))
}

/// `threads` threads, each building a batch of `batch` records, appending it and waiting for it. The result counts
/// batches; building is part of the loop but not of the latency.
///
/// # Errors
/// The error of the first append that fails.
pub(crate) fn batches(
    log: &Log,
    pool: &Pool,
    threads: usize,
    batch: u32,
    record_bytes: usize,
    window: Window,
) -> Result<(Outcome, Blocks)> {
    let work = |from: u64, tally: &mut Tally<'_>| {
        let mut builder = BatchBuilder::new();
        let mut n = from;
        while !tally.stopped() {
            for record in pool.record(n, record_bytes * batch as usize).chunks(record_bytes) {
                builder.push(record)?;
            }
            let built = builder.build()?;
            let before = Instant::now();
            log.append(&built)?;
            tally.note(before.elapsed());
            n += 1;
        }
        Ok(())
    };
    let (outcome, before, after) = drive(threads, window, || log.metrics(), work)?;
    Ok((outcome, Blocks::between(&before, &after)))
}

/// Blocking appends, with the blocks that the writer formed.
///
/// # Errors
/// The error of the first append that fails.
pub(crate) fn blocking_blocks(
    log: &Log,
    pool: &Pool,
    threads: usize,
    record_bytes: usize,
    window: Window,
) -> Result<(Outcome, Blocks)> {
    let before: Metrics = log.metrics();
    let outcome = blocking(log, pool, threads, record_bytes, window)?;
    Ok((outcome, Blocks::between(&before, &log.metrics())))
}

/// Records that arrive at `per_second`, independent of the log. One thread sends each when it is due, another waits for
/// the tickets in order. A latency runs from the moment the record was *due*: when the log, or the sender behind it,
/// stalls, the wait of every record that was due meanwhile counts too (no coordinated omission).
///
/// # Errors
/// The error of the first append that fails.
pub(crate) fn open_loop(
    log: &Log,
    pool: &Pool,
    per_second: f64,
    record_bytes: usize,
    window: Window,
) -> Result<Outcome> {
    let (send, receive) = mpsc::sync_channel::<(Instant, Ticket<Index>)>(1 << 16);
    let start = Instant::now();
    let counting = start + window.warm_up;
    let end = counting + window.measured;
    let usage = Usage::now()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<()> {
            // The default slack ends every sleep 50 us late.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            let mut n = 0u64;
            loop {
                let due = start + Duration::from_secs_f64(n as f64 / per_second);
                if due >= end {
                    return Ok(());
                }
                let early = due.saturating_duration_since(Instant::now());
                if !early.is_zero() {
                    thread::sleep(early);
                }
                let ticket = log.submit(pool.record(n, record_bytes))?;
                if send.send((due, ticket)).is_err() {
                    return Ok(()); // the receiver failed and will return the reason
                }
                n += 1;
            }
        });
        let mut latencies = Latencies::new()?;
        for (due, ticket) in receive {
            ticket.wait()?;
            if due >= counting {
                latencies.record(due.elapsed());
            }
        }
        sender.join().map_err(|_| anyhow!("the sending thread panicked"))??;
        let elapsed = counting.elapsed().max(window.measured);
        Ok(Outcome { appends: latencies.count(), elapsed, latencies, usage: Usage::now()?.since(&usage) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    struct Slow(AtomicU64);

    impl Appender for Slow {
        fn append(&self, record: &[u8]) -> Result<()> {
            assert_eq!(record.len(), 10);
            self.0.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
            Ok(())
        }
    }

    #[test]
    fn only_the_window_counts() {
        let slow = Slow(AtomicU64::new(0));
        let window = Window { warm_up: Duration::from_millis(30), measured: Duration::from_millis(30) };
        let outcome = blocking(&slow, &Pool::new(1), 2, 10, window).unwrap();
        assert!(outcome.appends > 0 && outcome.appends < slow.0.into_inner());
        assert_eq!(outcome.latencies.count(), outcome.appends);
        assert!(outcome.latencies.summary().p50 >= 1000.0);
    }

    #[test]
    fn a_failing_append_ends_the_workload_with_its_error() {
        struct Broken;
        impl Appender for Broken {
            fn append(&self, _: &[u8]) -> Result<()> {
                Err(anyhow!("no"))
            }
        }
        let window = Window { warm_up: Duration::ZERO, measured: Duration::from_secs(1) };
        assert_eq!(blocking(&Broken, &Pool::new(1), 3, 10, window).unwrap_err().to_string(), "no");
    }
}
