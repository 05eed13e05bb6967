//! The cases that both `run` and `bars` measure: chiplog and its limit alternately, round by round, in the same
//! directory.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::bare::Bare;
use crate::data::Pool;
use crate::engine::{Blocks, Log, Options, ScratchLog};
use crate::measure::{Latencies, Percentiles, interleave, median, ratio};
use crate::net::process::Own;
use crate::raw::{self, ZeroFilled};
use crate::replicas::{DRAGONBOAT_SEEN, Dragonboat, Replicas};
use crate::workload::{self, Outcome, Window};
use anyhow::Result;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory and the duration of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    /// Directory for all files; its owner removes it.
    pub(crate) dir: PathBuf,
    /// Directory for object stores, likewise. None: they are in `dir`.
    pub(crate) store: Option<PathBuf>,
    pub(crate) pool: Pool,
    pub(crate) window: Window,
    pub(crate) rounds: usize,
    /// Size of the zero-filled file for raw writes, which is written repeatedly from the start.
    pub(crate) raw_bytes: u64,
    /// How this program is started.
    pub(crate) own: Own,
}

/// A figure and its limit, by round, and further observations.
#[derive(Clone, Debug)]
pub(crate) struct Versus {
    pub(crate) figures: Vec<f64>,
    pub(crate) limits: Vec<f64>,
    /// Latencies of chiplog's appends, all rounds together.
    pub(crate) latency: Percentiles,
    /// Latencies of the limit's operations, all rounds together.
    pub(crate) limit_latency: Percentiles,
    /// Median over the rounds of the processor time of one append, in microseconds.
    pub(crate) cpu_micros: f64,
    /// Median over the rounds of the context switches of one append.
    pub(crate) switches: f64,
    /// Bytes of the mean block the writer formed.
    pub(crate) block_bytes: f64,
}

impl Versus {
    pub(crate) fn figure(&self) -> f64 {
        median(self.figures.iter().copied())
    }

    pub(crate) fn limit(&self) -> f64 {
        median(self.limits.iter().copied())
    }

    pub(crate) fn ratio(&self) -> f64 {
        ratio(&self.figures, &self.limits)
    }

    /// Makes it from rounds of (outcome, blocks) and of (limit per second, its latencies).
    fn new(ours: &[(Outcome, Blocks)], limits: &[(f64, Latencies)]) -> Result<Self> {
        let (mut all, mut limit_all) = (Latencies::new()?, Latencies::new()?);
        ours.iter().try_for_each(|(outcome, _)| all.add(&outcome.latencies))?;
        limits.iter().try_for_each(|(_, latencies)| limit_all.add(latencies))?;
        Ok(Self {
            figures: ours.iter().map(|(outcome, _)| outcome.per_second()).collect(),
            limits: limits.iter().map(|(limit, _)| *limit).collect(),
            latency: all.summary(),
            limit_latency: limit_all.summary(),
            cpu_micros: median(ours.iter().map(|(outcome, _)| outcome.cpu_micros_each())),
            switches: median(ours.iter().map(|(outcome, _)| outcome.switches_each())),
            block_bytes: median(ours.iter().map(|(_, blocks)| blocks.mean_bytes() as f64)),
        })
    }
}

/// Three replicas, by round, and the results they are compared with.
#[derive(Clone, Debug)]
pub(crate) struct Three {
    /// Appends a second.
    pub(crate) figures: Vec<f64>,
    /// Appends a second that the second slowest of three raw streams would carry.
    pub(crate) streams: Vec<f64>,
    /// The results of dragonboat, if it is installed.
    dragonboat: Option<Vec<f64>>,
    /// Latencies of appends, all rounds together.
    pub(crate) latency: Percentiles,
    /// Mean number of bytes that a sync of the leader covered.
    pub(crate) synced_bytes: f64,
}

impl Three {
    pub(crate) fn figure(&self) -> f64 {
        median(self.figures.iter().copied())
    }

    /// The peer's figure, the ratio to it, and whether it was measured here.
    pub(crate) fn to_peer(&self) -> (f64, f64, bool) {
        match &self.dragonboat {
            Some(peer) => (median(peer.iter().copied()), ratio(&self.figures, peer), true),
            None => (DRAGONBOAT_SEEN, self.figure() / DRAGONBOAT_SEEN, false),
        }
    }
}

/// The options of every case unless it sets others: the defaults.
pub(crate) fn options() -> Options {
    Options::default()
}

impl Bench {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn log(&self, options: Options) -> Result<ScratchLog> {
        ScratchLog::create(&self.dir, "log", options)
    }

    /// `threads` blocking threads against the bare loop with as many.
    pub(crate) fn blocking(&self, threads: usize, record_bytes: usize, options: &Options) -> Result<Versus> {
        let bare = Bare::start(&self.dir, self.raw_bytes)?;
        let (limits, ours) = interleave(
            self.rounds,
            || workload::blocking(&bare, &self.pool, threads, record_bytes, self.window),
            || {
                let log = self.log(options.clone())?;
                workload::blocking_blocks(&log, &self.pool, threads, record_bytes, self.window)
            },
        )?;
        let limits: Vec<_> = limits.into_iter().map(|o| (o.per_second(), o.latencies)).collect();
        Versus::new(&ours, &limits)
    }

    /// One blocking thread against a raw `pwrite` + `fdatasync` of the record alone.
    pub(crate) fn alone(&self, record_bytes: usize, options: &Options) -> Result<Versus> {
        let mut file = ZeroFilled::create(&self.dir, self.raw_bytes)?;
        let (limits, ours) = interleave(
            self.rounds,
            || {
                let syncs = raw::sync_loop(&mut file, &self.pool, record_bytes, self.window.measured)?;
                Ok((syncs.per_second, syncs.latencies))
            },
            || {
                let log = self.log(options.clone())?;
                workload::blocking_blocks(&log, &self.pool, 1, record_bytes, self.window)
            },
        )?;
        Versus::new(&ours, &limits)
    }

    /// A workload against the raw rate of writing blocks of the size that the writer formed in the same
    /// round, each followed by `fdatasync`. Limits are in appends, as the figures are.
    fn against_blocks(
        &self,
        options: &Options,
        work: impl Fn(&Log) -> Result<(Outcome, Blocks)>,
    ) -> Result<Versus> {
        let file = RefCell::new(ZeroFilled::create(&self.dir, self.raw_bytes)?);
        let last = RefCell::new(Vec::new());
        let ours = || {
            let log = self.log(options.clone())?;
            let (outcome, blocks) = work(&log)?;
            let appends_a_block = outcome.appends as f64 / blocks.count.max(1) as f64;
            last.borrow_mut().push((blocks.mean_bytes(), appends_a_block));
            Ok((outcome, blocks))
        };
        let limit = || {
            let (bytes, appends) = last.borrow().last().copied().unwrap_or((4096, 1.0));
            let syncs = raw::sync_loop(&mut file.borrow_mut(), &self.pool, bytes, self.window.measured)?;
            Ok((syncs.per_second * appends, syncs.latencies))
        };
        let (ours, limits) = interleave(self.rounds, ours, limit)?;
        Versus::new(&ours, &limits)
    }

    /// `threads` threads with `depth` records each in flight.
    pub(crate) fn pipelined(
        &self,
        threads: usize,
        depth: usize,
        record_bytes: usize,
        options: &Options,
    ) -> Result<Versus> {
        self.against_blocks(options, |log| {
            workload::pipelined(log, &self.pool, threads, depth, record_bytes, self.window)
        })
    }

    /// `threads` threads with one batch of `batch` records each in flight. Figures and limits count batches.
    pub(crate) fn batches(&self, threads: usize, batch: u32, record_bytes: usize) -> Result<Versus> {
        self.against_blocks(&options(), |log| {
            workload::batches(log, &self.pool, threads, batch, record_bytes, self.window)
        })
    }

    /// Three replicas in this process, 4 threads with 32 records each in flight, compared with dragonboat if it is
    /// installed, and with three concurrent raw streams on the same disk.
    pub(crate) fn three(&self, record_bytes: usize, options: &Options) -> Result<Three> {
        const STREAMS: usize = 3;
        let dragonboat = Dragonboat::at_hand();
        let mut files = Vec::new();
        for n in 0..STREAMS {
            let dir = self.dir.join(format!("raw-{n}"));
            fs::create_dir_all(&dir)?;
            files.push(ZeroFilled::create(&dir, self.raw_bytes / 2)?);
        }
        let (mut figures, mut streams) = (Vec::new(), Vec::new());
        let (mut peer, mut synced_bytes) = (Vec::new(), Vec::new());
        let mut latency = Latencies::new()?;
        for _ in 0..self.rounds {
            let replicas = Replicas::start(&self.dir, STREAMS as u64, options)?;
            let leader = replicas.leader()?;
            let (outcome, blocks) =
                workload::pipelined(leader, &self.pool, 4, 32, record_bytes, self.window)?;
            drop(replicas);
            latency.add(&outcome.latencies)?;
            figures.push(outcome.per_second());
            let bytes = blocks.mean_synced();
            synced_bytes.push(bytes as f64);
            let rates = raw::sync_side_by_side(&mut files, &self.pool, bytes, self.window.measured)?;
            // Durable on two of three: the slowest of them delays no append.
            let appends_a_sync = outcome.appends as f64 / blocks.syncs.max(1) as f64;
            streams.push(rates[1] * appends_a_sync);
            if let Some(dragonboat) = &dragonboat {
                peer.push(dragonboat.appends(&self.dir, self.window.measured)?);
            }
        }
        let dragonboat = dragonboat.map(|_| peer);
        Ok(Three {
            figures,
            streams,
            dragonboat,
            latency: latency.summary(),
            synced_bytes: median(synced_bytes),
        })
    }

    /// A cluster of one compared with a log without a cluster, 4 threads with 32 records each in flight.
    pub(crate) fn one_voter(&self, record_bytes: usize) -> Result<Versus> {
        let work = |log: &Log| workload::pipelined(log, &self.pool, 4, 32, record_bytes, self.window);
        let (limits, ours) = interleave(
            self.rounds,
            || work(&*self.log(options())?),
            || work(Replicas::start(&self.dir, 1, &options())?.leader()?),
        )?;
        let limits: Vec<_> = limits.into_iter().map(|(o, _)| (o.per_second(), o.latencies)).collect();
        Versus::new(&ours, &limits)
    }

    /// Three replicas; `threads` threads with one batch of `batch` records each in flight. Batches a second, by round.
    pub(crate) fn batches_replicated(
        &self,
        threads: usize,
        batch: u32,
        record_bytes: usize,
    ) -> Result<Vec<f64>> {
        let round = || {
            let replicas = Replicas::start(&self.dir, 3, &options())?;
            let leader = replicas.leader()?;
            let (outcome, _) =
                workload::batches(leader, &self.pool, threads, batch, record_bytes, self.window)?;
            Ok(outcome.per_second())
        };
        (0..self.rounds).map(|_| round()).collect()
    }

    /// Records that arrive at a fixed rate.
    pub(crate) fn open_loop(&self, per_second: f64, record_bytes: usize) -> Result<Outcome> {
        let log = self.log(options())?;
        workload::open_loop(&log, &self.pool, per_second, record_bytes, self.window)
    }
}
