//! `chiplog-bench run`: the workloads a user may want to see, each with its limit.
//!
//! Must not know: the bars.

use crate::cases::{Bench, Versus, options};
use crate::checks;
use crate::data::RECORD_BYTES;
use crate::many;
use crate::measure::{MIB, median, ratio};
use crate::net::load::Streams;
use crate::raw::{self, ZeroFilled};
use crate::reads::{self, By, Scans};
use crate::report::Row;
use crate::workload;
use anyhow::Result;
use chiplog::Codec;
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A workload of `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// The limits of disk and memory: the fdatasync loop by size, copies in memory
    Raw,
    /// 1, 2, 4 … 128 blocking threads x 2 KiB, compared with a bare loop without format or checksum
    AppendThreads,
    /// 1 to 16 threads x 32 tickets in flight x 2 KiB, compared with raw writes of the same blocks
    AppendPipelined,
    /// 10 B and 100 B records, singly and in batches of 1,000
    AppendSmall,
    /// Arrivals at a fixed rate, latencies from the moment each was due
    AppendOpenLoop,
    /// Sequential reads, cached and uncached, compared with plain read of the same files
    Scan,
    /// Single records at random positions
    Random,
    /// Checking a packed batch from outside, compared with an uncompressed one
    BatchCheck,
    /// Opening a log; memory
    Open,
    /// The cost of an open log without activity
    Idle,
    /// The bare loop with 1, 2, 4, 8 committers on one disk, and 1,000 named logs in as many groups
    Committers,
}

/// The sizes of all workloads.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Thread counts of the curve.
    pub(crate) threads: Vec<usize>,
    /// Numbers of connections of the network's curves.
    pub(crate) connections: Vec<usize>,
    /// How appenders share a connection there.
    pub(crate) streams: Streams,
    /// The named logs of the bars about many.
    pub(crate) logs: usize,
    /// Two directories, each on a disk of its own; empty: there are none.
    pub(crate) disks: Vec<PathBuf>,
    pub(crate) scan_bytes: u64,
    pub(crate) open_bytes: u64,
    pub(crate) idle: Duration,
    /// How long a server is overloaded.
    pub(crate) overload: Duration,
    /// How long a PUT to an object store takes, at least.
    pub(crate) put: Duration,
}

/// The default thread counts of the curve.
pub(crate) const THREADS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Runs one workload and returns its rows.
pub(crate) fn measure(bench: &Bench, sizes: &Sizes, which: Workload) -> Result<Vec<Row>> {
    match which {
        Workload::Raw => raw_limits(bench),
        Workload::AppendThreads => append_threads(bench, sizes),
        Workload::AppendPipelined => append_pipelined(bench),
        Workload::AppendSmall => append_small(bench),
        Workload::AppendOpenLoop => append_open_loop(bench),
        Workload::Scan => scan(bench, sizes),
        Workload::Random => random(bench, sizes),
        Workload::BatchCheck => batch_check(bench),
        Workload::Open => open(bench, sizes),
        Workload::Idle => idle(bench, sizes),
        Workload::Committers => committers(bench),
    }
}

/// A row without limit, latency and further figures.
fn row(workload: &str, case: impl Into<String>, x: f64, figure: f64, unit: &str) -> Row {
    Row {
        workload: workload.into(),
        case: case.into(),
        x,
        figure,
        unit: unit.into(),
        limit: None,
        limit_is: None,
        ratio: None,
        latency: None,
        limit_latency: None,
        more: BTreeMap::new(),
    }
}

fn versus(workload: &str, case: String, x: f64, unit: &str, of: &Versus, scale: f64, limit_is: &str) -> Row {
    Row {
        limit: Some(of.limit() * scale),
        limit_is: Some(limit_is.into()),
        ratio: Some(of.ratio()),
        latency: Some(of.latency),
        limit_latency: Some(of.limit_latency),
        more: BTreeMap::from([
            ("cpu_us_per_append".into(), of.cpu_micros),
            ("switches_per_append".into(), of.switches),
            ("block_bytes".into(), of.block_bytes),
        ]),
        ..row(workload, case, x, of.figure() * scale, unit)
    }
}

fn raw_limits(bench: &Bench) -> Result<Vec<Row>> {
    const WORKLOAD: &str = "raw";
    let mut rows = Vec::new();
    let mut file = ZeroFilled::create(bench.dir(), bench.raw_bytes)?;
    for bytes in [2048, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        let syncs = raw::sync_loop(&mut file, &bench.pool, bytes, bench.window.measured)?;
        let latency = syncs.latencies.summary();
        let case = format!("pwrite + fdatasync of {} KiB", bytes / 1024);
        let mib = syncs.per_second * bytes as f64 / MIB;
        rows.push(Row {
            latency: Some(latency),
            more: BTreeMap::from([("mib_per_second".into(), mib)]),
            ..row(WORKLOAD, case, bytes as f64, syncs.per_second, "1/s")
        });
    }
    let copied = raw::memory_copy(bench.window.measured);
    rows.push(row(WORKLOAD, "copy in memory, 8 MiB", (8 << 20) as f64, copied / MIB, "MiB/s"));
    Ok(rows)
}

/// How many syncs a disk takes side by side, and how many groups named logs need for it.
fn committers(bench: &Bench) -> Result<Vec<Row>> {
    const WORKLOAD: &str = "committers";
    let mut rows = Vec::new();
    for count in [1, 2, 4, 8] {
        eprintln!("  {count} committers");
        let bare = many::committers(bench, RECORD_BYTES, count)?;
        let groups = many::appends(bench, RECORD_BYTES, count as u32)?;
        let of = |outcomes: &[workload::Outcome]| {
            let each = |f: fn(&workload::Outcome) -> f64| median(outcomes.iter().map(f));
            let cpu =
                BTreeMap::from([("cpu_us_per_append".into(), each(workload::Outcome::cpu_micros_each))]);
            (each(workload::Outcome::per_second), cpu)
        };
        let cases = [
            ("bare loop, committers", &bare),
            ("1,000 named logs, groups", &groups.many),
            ("one log beside, groups", &groups.one),
        ];
        for (case, outcomes) in cases {
            let (figure, more) = of(outcomes);
            rows.push(Row {
                more,
                ..row(WORKLOAD, format!("{case}: {count}"), count as f64, figure, "appends/s")
            });
        }
    }
    Ok(rows)
}

fn append_threads(bench: &Bench, sizes: &Sizes) -> Result<Vec<Row>> {
    const LIMIT: &str =
        "bare loop: a buffer, a mutex, one write and one fdatasync a block, one futex; nothing else";
    let one = |threads: usize| {
        eprintln!("  {threads} threads");
        let seen = bench.blocking(threads, RECORD_BYTES, &options())?;
        let case = format!("{threads} threads x 2 KiB");
        Ok(versus("append_threads", case, threads as f64, "appends/s", &seen, 1.0, LIMIT))
    };
    sizes.threads.iter().copied().map(one).collect()
}

const RAW_BLOCKS: &str = "raw pwrite + fdatasync of blocks of the same mean size";

fn append_pipelined(bench: &Bench) -> Result<Vec<Row>> {
    let one = |(threads, depth): (usize, usize)| {
        eprintln!("  {threads} threads x {depth}");
        let seen = bench.pipelined(threads, depth, RECORD_BYTES, &options())?;
        let case = format!("{threads} threads x {depth} x 2 KiB");
        Ok(versus("append_pipelined", case, (threads * depth) as f64, "appends/s", &seen, 1.0, RAW_BLOCKS))
    };
    [(1, 32), (4, 32), (16, 32), (4, 256)].into_iter().map(one).collect()
}

fn append_small(bench: &Bench) -> Result<Vec<Row>> {
    const WORKLOAD: &str = "append_small";
    let mut rows = Vec::new();
    for bytes in [10, 100] {
        eprintln!("  {bytes} B");
        let seen = bench.pipelined(4, 256, bytes, &options())?;
        let case = format!("4 threads x 256 x {bytes} B");
        rows.push(versus(WORKLOAD, case, bytes as f64, "records/s", &seen, 1.0, RAW_BLOCKS));
        let seen = bench.batches(4, 1000, bytes)?;
        let case = format!("4 threads x batch of 1,000 x {bytes} B");
        rows.push(versus(WORKLOAD, case, bytes as f64, "records/s", &seen, 1000.0, RAW_BLOCKS));
    }
    Ok(rows)
}

/// Offered loads, as parts of the log's maximum with 4 x 32 in flight.
const LOADS: [f64; 6] = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9];

fn append_open_loop(bench: &Bench) -> Result<Vec<Row>> {
    let most = bench.pipelined(4, 32, RECORD_BYTES, &options())?.figure();
    let one = |load: f64| {
        // On a busy machine a short measurement may end before the first append.
        let offered = (most * load).max(1.0);
        eprintln!("  {offered:.0}/s");
        let seen = bench.open_loop(offered, RECORD_BYTES)?;
        Ok(Row {
            latency: Some(seen.latencies.summary()),
            more: BTreeMap::from([("offered_per_second".into(), offered)]),
            ..row(
                "append_open_loop",
                format!("{:.0} % of the most", load * 100.0),
                offered,
                seen.per_second(),
                "appends/s",
            )
        })
    };
    LOADS.into_iter().map(one).collect()
}

fn scan_row(case: String, scans: &Scans) -> Row {
    let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
    let (workload, limit_is) = if scans.cached {
        ("scan_cached", "plain read of the same cached files, best of 128 KiB and 8 MiB pieces")
    } else {
        ("scan_uncached", "plain read of the same files in 8 MiB pieces, best of three ways to read ahead")
    };
    Row {
        limit: Some(mib(&scans.limits)),
        limit_is: Some(limit_is.into()),
        ratio: Some(ratio(&scans.figures, &scans.limits)),
        ..row(workload, case, 0.0, mib(&scans.figures), "MiB/s")
    }
}

fn scan(bench: &Bench, sizes: &Sizes) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (batch, what) in [(1, "single 2 KiB appends"), (500, "batches of 500 x 2 KiB")] {
        eprintln!("  filling: {what}");
        let mut log = reads::log_to_read(bench, sizes.scan_bytes, RECORD_BYTES, batch)?;
        for (by, name) in [(By::Record, "by record"), (By::Batch, "by batch")] {
            eprintln!("  {what}, {name}");
            rows.push(scan_row(format!("{what}, {name}"), &reads::scan_cached(bench, &log, by)?));
            rows.push(scan_row(format!("{what}, {name}"), &reads::scan_uncached(bench, &mut log, by)?));
        }
    }
    rows.sort_by(|a, b| a.workload.cmp(&b.workload));
    Ok(rows)
}

fn random(bench: &Bench, sizes: &Sizes) -> Result<Vec<Row>> {
    let log = reads::log_to_read(bench, sizes.scan_bytes, RECORD_BYTES, 1)?;
    let seen = reads::random(bench, &log, RECORD_BYTES)?;
    Ok(vec![Row {
        limit: Some(median(seen.limits.iter().copied())),
        limit_is: Some("pread of 2 KiB at random places of the same cached files".into()),
        ratio: Some(ratio(&seen.figures, &seen.limits)),
        latency: Some(seen.latency),
        ..row("random", "read one record of 2 KiB", 1.0, median(seen.figures.iter().copied()), "reads/s")
    }])
}

fn batch_check(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, codec) in [("lz4", Codec::Lz4), ("zstd", Codec::Zstd)] {
        for records in checks::RECORDS {
            let seen = checks::check(bench, codec, records)?;
            let middle = |values: &[f64]| median(values.iter().copied());
            rows.push(Row {
                limit: Some(middle(&seen.plain)),
                limit_is: Some("the check of the same records, not packed".into()),
                ratio: Some(ratio(&seen.packed, &seen.plain)),
                more: BTreeMap::from([
                    ("packed_bytes".into(), seen.packed_bytes as f64),
                    ("unpack_and_copy_us".into(), middle(&seen.records)),
                ]),
                ..row(
                    "batch_check",
                    format!("{name}, {} KiB unpacked", seen.plain_bytes >> 10),
                    seen.plain_bytes as f64,
                    middle(&seen.packed),
                    "us",
                )
            });
        }
    }
    Ok(rows)
}

fn open(bench: &Bench, sizes: &Sizes) -> Result<Vec<Row>> {
    const WORKLOAD: &str = "open";
    eprintln!("  filling {} MiB", sizes.open_bytes >> 20);
    let seen = reads::open_large(bench, sizes.open_bytes)?;
    let middle = |values: &[f64]| median(values.iter().copied());
    let size = sizes.open_bytes as f64;
    let limit_is = "reading the last segment's file with plain read".to_owned();
    let name = format!("a log of {:.1} GiB", size / f64::from(1 << 30));
    Ok(vec![
        Row {
            limit: Some(middle(&seen.last_segment_millis)),
            limit_is: Some(limit_is),
            ratio: Some(ratio(&seen.cold_millis, &seen.last_segment_millis)),
            more: BTreeMap::from([("records".into(), seen.records as f64)]),
            ..row(WORKLOAD, format!("{name}, uncached"), size, middle(&seen.cold_millis), "ms")
        },
        row(WORKLOAD, format!("{name}, cached"), size, middle(&seen.warm_millis), "ms"),
        row(WORKLOAD, "memory of its own, open", size, seen.memory_open as f64 / MIB, "MiB"),
        row(WORKLOAD, "memory of its own, all scanned", size, seen.memory_scanned as f64 / MIB, "MiB"),
    ])
}

fn idle(bench: &Bench, sizes: &Sizes) -> Result<Vec<Row>> {
    let seen = reads::idle(bench, sizes.idle)?;
    Ok(vec![Row {
        limit: Some(seen.cpu_micros_without),
        limit_is: Some("the same process without a log".into()),
        more: BTreeMap::from([("switches_per_second".into(), seen.switches)]),
        ..row("idle", "open log, one waiting reader", 0.0, seen.cpu_micros, "us/s")
    }])
}
