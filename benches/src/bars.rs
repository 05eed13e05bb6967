//! The bars: ratios that chiplog must reach, measured alternately with their limits in one run. Those of named logs and of
//! objects are in `bars/`, those of the network in `net/bars.rs`.
//!
//! Must not know: how anything is measured.

mod many;
mod tier;
mod tier_object;

use crate::bar::{Bar, Side, bar};
use crate::cases::{Bench, Three, Versus, options};
use crate::data::RECORD_BYTES;
use crate::engine::Options;
use crate::measure::{MIB, median, ratio};
use crate::reads::{self, By};
use crate::replicas::DRAGONBOAT;
use crate::report::number;
use crate::run::{Sizes, THREADS};
use anyhow::Result;
use clap::ValueEnum;

/// A bar, or several that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Name {
    /// 4 threads x 32 tickets x 2 KiB: at least 0.7 of raw writes of the same blocks
    AppendPipelined,
    #[value(name = "append_blocking_128")]
    /// 128 blocking threads x 2 KiB: at least 0.9 of the bare loop; more threads never cost more than 10 %
    AppendBlocking128,
    /// One thread: median at most 1.3 of a raw write; p99.9 at most 5 medians across segment rolls
    AppendAlone,
    /// 10 B records: 5 million/s in batches or the disk's limit; 500,000/s singly
    AppendSmall,
    /// A verified scan at 0.4 of the rate of plain read, cached
    ScanCached,
    /// A verified scan at 0.95 of the rate of plain read, uncached
    ScanUncached,
    /// A large log opens in 100 ms plus its last segment's scan, in 64 MiB of memory
    OpenLarge,
    /// An open log uses no processor
    Idle,
    /// Three replicas in one process, 128 appends of 2 KiB in flight: at least twice dragonboat v4
    ThreeInProcess,
    /// A cluster of one: at least 0.9 of a log without a cluster
    OneVoter,
    /// Three replicas, 10 B records in batches of 1000: at least 1 million/s
    SmallBatchesReplicated,
    /// 128 appenders over 1,000 named logs: at least 0.8 of one log, at most 1.3 times its processor time
    ManyW1,
    /// The same on three replicas, durable on two of them
    #[value(name = "many_w1_three")]
    ManyW1Three,
    /// 10,000 named logs are created in 10 s
    ManyCreate,
    /// 10,000 named logs without activity: a hundredth of a core, 64 MiB, no thread each
    ManyIdle,
    /// Named logs open in twice the time of one log of as many bytes
    ManyOpen,
    /// One of 1,000 named logs is read at 0.3 of the rate of a log on its own; with sorted copies at 0.8
    ManyScan,
    /// Quiet logs beside one that floods: p99 at most 3 times that alone
    ManyFair,
    /// Bytes written for a byte appended to named logs: at most 2.2
    ManyAmp,
    /// Two groups on two disks: 1.7 times the appends of two on one (with `--disks` only)
    ManyDisks,
    /// The leader of a group of 10,000 named logs is killed: appends continue within 1.2 of the time with one log
    ManyFailover,
    /// Appends to a log that stores its objects: at least 0.95 of one without an object store
    TierAppend,
    /// Reading from an object store: 0.8 of bare requests, and once fetched 0.9 of files
    TierScan,
    /// A new copy of a log that is in an object store: its first record within 2 s, all at 0.8 of bare requests, and the server
    /// sends at most a hundredth
    TierBoot,
    /// A new replica of a cluster whose log is in an object store: a read from it gives the first record within 2 s
    TierLearner,
    /// A log of objects alone comes back: 0.8 of bare requests that are written to files
    TierRestore,
    /// The durability class `object` beside `majority`: 0.05 bytes between replicas for each appended one, a confirmation within
    /// the interval and 1.3 PUTs, 0.8 of the appends
    TierObject,
    /// Over the network, one server: 128 appenders over 1 to 128 connections, the lowest rate 0.6 of the highest
    NetNativeOne,
    /// The same, durable on two of three servers
    NetNativeThree,
    /// As `net_native_one`, through `logspec.Log`
    NetLogspecOne,
    /// As `net_native_three`, through `logspec.Log`
    NetLogspecThree,
    /// One server beside Kafka: 15 times as many appends over 128 connections, 1.5 times over one
    NetKafkaOne,
    /// Three servers beside three brokers: 10 times over 128 connections, 1.5 times over one
    NetKafkaThree,
    /// One server, 128 appenders over 1,000 named logs, by 1 and 128 connections: at least 0.8 of its default log, at most 1.3
    /// times the processor time
    NetManyOne,
    /// The same, durable on two of three servers
    NetManyThree,
    /// One server beside Kafka with 1,000 partitions: 8 times as many appends to 1,000 named logs (with CHIPLOG_PEERS only)
    NetManyKafkaOne,
    /// Three servers beside three brokers: the same
    NetManyKafkaThree,
    /// One appender over the network: median at most 2 raw writes, 4 on two of three
    NetAlone,
    /// A whole log read and verified by one client: 0.8 of bare gRPC messages
    NetReadCached,
    /// The same with an empty page cache: 0.95 of `cat`
    NetReadUncached,
    /// A waiting reader has an acknowledged record within 1 ms; 100 readers cost less than twice of 10
    NetTail,
    /// One producer over the network: 2 million records of 10 B a second; 0.7 of the disk with 1,000 B
    NetProducer,
    /// Three times the capacity is offered: memory stays constant, latency is bounded, the backlog drains at once
    NetOverload,
    /// The leader of three is killed: appends continue within 2 s, nothing is lost or doubled
    NetFailover,
}

/// Measures one bar.
pub(crate) fn measure(bench: &Bench, sizes: &Sizes, which: Name) -> Result<Vec<Bar>> {
    use crate::net::{
        bars as net,
        load::Service::{LogService, Logspec},
    };
    match which {
        Name::AppendPipelined => append_pipelined(bench),
        Name::AppendBlocking128 => append_blocking(bench),
        Name::AppendAlone => append_alone(bench),
        Name::AppendSmall => append_small(bench),
        Name::ScanCached => scan_cached(bench, sizes),
        Name::ScanUncached => scan_uncached(bench, sizes),
        Name::OpenLarge => open_large(bench, sizes),
        Name::Idle => idle(bench, sizes),
        Name::ThreeInProcess => three_in_process(bench),
        Name::OneVoter => one_voter(bench),
        Name::SmallBatchesReplicated => small_batches_replicated(bench),
        Name::ManyW1 => many::appends(bench),
        Name::ManyW1Three => many::appends_on_three(bench),
        Name::ManyCreate => many::create(bench, sizes),
        Name::ManyIdle => many::idle(bench, sizes),
        Name::ManyOpen => many::open(bench, sizes),
        Name::ManyScan => many::scan(bench, sizes),
        Name::ManyFair => many::fair(bench),
        Name::ManyAmp => many::amplification(bench),
        Name::ManyDisks => many::disks(bench, sizes),
        Name::ManyFailover => net::many_failover(bench, sizes.logs),
        Name::TierAppend => tier::appends(bench),
        Name::TierScan => tier::scans(bench, sizes),
        Name::TierBoot => tier::boot(bench, sizes),
        Name::TierLearner => tier::learner(bench, sizes),
        Name::TierRestore => tier::restore(bench, sizes),
        Name::TierObject => tier_object::appends(bench, sizes),
        Name::NetNativeOne => net::flat(bench, sizes, LogService, 1),
        Name::NetNativeThree => net::flat(bench, sizes, LogService, 3),
        Name::NetLogspecOne => net::flat(bench, sizes, Logspec, 1),
        Name::NetLogspecThree => net::flat(bench, sizes, Logspec, 3),
        Name::NetKafkaOne => net::kafka(bench, 1),
        Name::NetKafkaThree => net::kafka(bench, 3),
        Name::NetManyOne => net::many(bench, sizes, 1),
        Name::NetManyThree => net::many(bench, sizes, 3),
        Name::NetManyKafkaOne => net::many_kafka(bench, sizes, 1),
        Name::NetManyKafkaThree => net::many_kafka(bench, sizes, 3),
        Name::NetAlone => net::alone(bench),
        Name::NetReadCached => net::read_cached(bench, sizes),
        Name::NetReadUncached => net::read_uncached(bench, sizes),
        Name::NetTail => net::tail(bench),
        Name::NetProducer => net::producer(bench),
        Name::NetOverload => net::overload(bench, sizes),
        Name::NetFailover => net::failover(bench),
    }
}

/// Bars of a log that grows, and of one whose oldest segments are discarded: it reuses its files and has none to fill
/// with zeros.
fn append_pipelined(bench: &Bench) -> Result<Vec<Bar>> {
    let growing = bench.pipelined(4, 32, RECORD_BYTES, &options())?;
    let round = bench.pipelined(4, 32, RECORD_BYTES, &going_round())?;
    Ok(vec![pipelined_bar("append_pipelined", &growing), pipelined_bar("append_pipelined_reusing", &round)])
}

fn pipelined_bar(name: &'static str, seen: &Versus) -> Bar {
    let note = format!(
        "limit: raw writes of blocks of {:.0} KiB; p50 {} us, p99.9 {} us",
        seen.block_bytes / 1024.0,
        number(seen.latency.p50),
        number(seen.latency.p999),
    );
    bar(name, (seen.figure(), seen.limit()), "/s", seen.ratio(), Side::AtLeast(0.7), note)
}

fn append_blocking(bench: &Bench) -> Result<Vec<Bar>> {
    let mut curve = Vec::new();
    for threads in THREADS {
        eprintln!("  {threads} threads");
        curve.push((threads, bench.blocking(threads, RECORD_BYTES, &options())?));
    }
    let mut bars = Vec::new();
    if let Some((threads, seen)) = curve.last() {
        bars.push(blocking_bar("append_blocking_128", seen));
        let round = bench.blocking(*threads, RECORD_BYTES, &going_round())?;
        bars.push(blocking_bar("append_blocking_128_reusing", &round));
    }
    let figures: Vec<f64> = curve.iter().map(|(_, seen)| seen.figure()).collect();
    let (at, before) = worst_fall(&figures);
    let (figure, limit) = (figures[at], figures[before]);
    let points: Vec<_> = curve.iter().map(|(n, seen)| format!("{n}: {}", number(seen.figure()))).collect();
    let note = format!("worst of each to the best with fewer threads; {}", points.join(", "));
    bars.push(bar("append_flat_1_to_128", (figure, limit), "/s", figure / limit, Side::AtLeast(0.9), note));
    Ok(bars)
}

fn blocking_bar(name: &'static str, seen: &Versus) -> Bar {
    let note = format!(
        "limit: the bare loop with as many threads; p50 {} us, p99.9 {} us; {} us of processor an append",
        number(seen.latency.p50),
        number(seen.latency.p999),
        number(seen.cpu_micros),
    );
    bar(name, (seen.figure(), seen.limit()), "/s", seen.ratio(), Side::AtLeast(0.9), note)
}

/// Options of a log that keeps its newest 64 MiB.
fn going_round() -> Options {
    Options::with_segment_bytes(16 << 20).retention_bytes(64 << 20)
}

/// The smallest ratio of a figure to the best one before it: both positions.
fn worst_fall(figures: &[f64]) -> (usize, usize) {
    let mut worst = (0, 0);
    let mut best = 0;
    for (n, figure) in figures.iter().enumerate().skip(1) {
        let part = figure / figures[best];
        if worst == (0, 0) || part < figures[worst.0] / figures[worst.1] {
            worst = (n, best);
        }
        if *figure > figures[best] {
            best = n;
        }
    }
    worst
}

fn append_alone(bench: &Bench) -> Result<Vec<Bar>> {
    let seen = bench.alone(RECORD_BYTES, &options())?;
    let (ours, raw) = (seen.latency.p50, seen.limit_latency.p50);
    let note = "medians; limit: raw pwrite + fdatasync of 2 KiB".to_owned();
    let median = bar("append_alone", (ours, raw), "us", ours / raw, Side::AtMost(1.3), note);
    // Segments so small that more than one append in a thousand includes a roll.
    let seen = bench.alone(RECORD_BYTES, &Options::with_segment_bytes(1 << 20))?;
    let Latency { p50, p999 } = Latency::of(seen.latency);
    let raw = Latency::of(seen.limit_latency);
    let note = format!(
        "p99.9 to median, a roll every 480 appends; raw writes: {:.1}; worst {} us, raw {} us",
        raw.p999 / raw.p50,
        number(seen.latency.max),
        number(seen.limit_latency.max),
    );
    Ok(vec![median, bar("append_alone_tail", (p999, p50), "us", p999 / p50, Side::AtMost(5.0), note)])
}

struct Latency {
    p50: f64,
    p999: f64,
}

impl Latency {
    fn of(all: crate::measure::Percentiles) -> Self {
        Self { p50: all.p50, p999: all.p999 }
    }
}

fn append_small(bench: &Bench) -> Result<Vec<Bar>> {
    const BATCH: u32 = 1000;
    const BATCHED_MIN: f64 = 5e6;
    const SINGLE_MIN: f64 = 5e5;
    let seen = bench.batches(4, BATCH, 10)?;
    let (records, disk) = (seen.figure() * f64::from(BATCH), seen.limit() * f64::from(BATCH));
    let limit = disk.min(BATCHED_MIN);
    let note = format!("records; limit: 5 million or the disk's {} whichever is lower", number(disk));
    let batched =
        bar("append_small_batches", (records, limit), "/s", records / limit, Side::AtLeast(1.0), note);
    let seen = bench.pipelined(4, 256, 10, &options())?;
    let note =
        format!("4 x 256 under way; limit: 500,000; raw writes of the same blocks: {}", number(seen.limit()));
    let values = (seen.figure(), SINGLE_MIN);
    let single = bar("append_small_singles", values, "/s", values.0 / values.1, Side::AtLeast(1.0), note);
    Ok(vec![batched, single])
}

fn scans(name: &str, seen: &reads::Scans, least: f64, note: String) -> Bar {
    let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
    let values = (mib(&seen.figures), mib(&seen.limits));
    bar(name, values, "MiB/s", ratio(&seen.figures, &seen.limits), Side::AtLeast(least), note)
}

fn scan_cached(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let log = reads::log_to_read(bench, sizes.scan_bytes, RECORD_BYTES, 1)?;
    let seen = reads::scan_cached(bench, &log, By::Record)?;
    let note = "single 2 KiB appends; limit: plain read, best of 128 KiB and 8 MiB pieces".to_owned();
    Ok(vec![scans("scan_cached", &seen, 0.4, note)])
}

fn scan_uncached(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let mut log = reads::log_to_read(bench, sizes.scan_bytes, RECORD_BYTES, 1)?;
    let seen = reads::scan_uncached(bench, &mut log, By::Record)?;
    Ok(vec![scans(
        "scan_uncached",
        &seen,
        0.95,
        "limit: plain read in 8 MiB pieces, best of three ways to read ahead".to_owned(),
    )])
}

fn open_large(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const OPEN_MILLIS_MAX: f64 = 100.0;
    const MEMORY_MIB_MAX: f64 = 64.0;
    eprintln!("  filling {} MiB", sizes.open_bytes >> 20);
    let seen = reads::open_large(bench, sizes.open_bytes)?;
    let middle = |values: &[f64]| median(values.iter().copied());
    let (cold, last, warm) =
        (middle(&seen.cold_millis), middle(&seen.last_segment_millis), middle(&seen.warm_millis));
    let gib = sizes.open_bytes as f64 / f64::from(1 << 30);
    let note = format!(
        "{gib:.1} GiB uncached; limit: 100 ms + reading the last segment, {} ms; cached {} ms",
        number(last),
        number(warm)
    );
    let values = (cold, OPEN_MILLIS_MAX + last);
    let open = bar("open_large", values, "ms", values.0 / values.1, Side::AtMost(1.0), note);
    let note = format!(
        "own memory after scanning all; {} MiB when just opened",
        number(seen.memory_open as f64 / MIB)
    );
    let values = (seen.memory_scanned.max(seen.memory_open) as f64 / MIB, MEMORY_MIB_MAX);
    let memory = bar("open_large_memory", values, "MiB", values.0 / values.1, Side::AtMost(1.0), note);
    Ok(vec![open, memory])
}

fn idle(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    // A thousandth of a core: a loop that polls every 10 ms takes more.
    const CPU_MICROS_MAX: f64 = 1000.0;
    let seen = reads::idle(bench, sizes.idle)?;
    let note = format!(
        "processor time a second, one reader waiting; {} context switches a second; without a log {} us",
        number(seen.switches),
        number(seen.cpu_micros_without),
    );
    let values = (seen.cpu_micros, CPU_MICROS_MAX);
    Ok(vec![bar("idle", values, "us/s", values.0 / values.1, Side::AtMost(1.0), note)])
}

fn three_in_process(bench: &Bench) -> Result<Vec<Bar>> {
    let growing = bench.three(RECORD_BYTES, &options())?;
    let round = bench.three(RECORD_BYTES, &going_round())?;
    Ok(vec![three_bar("three_in_process", &growing), three_bar("three_in_process_reusing", &round)])
}

fn three_bar(name: &str, seen: &Three) -> Bar {
    let (peer, to_peer, here) = seen.to_peer();
    let limit = if here {
        "dragonboat v4 in the same arrangement, the better of its log stores".to_owned()
    } else {
        format!("dragonboat v4 as seen elsewhere on two cores; set {DRAGONBOAT} to measure it here")
    };
    let note = format!(
        "limit: {limit}; {:.2} of what three raw streams of as many bytes a sync, {:.0} KiB, carry side by side, {}; p50 {} us, \
         p99.9 {} us",
        ratio(&seen.figures, &seen.streams),
        seen.synced_bytes / 1024.0,
        number(median(seen.streams.iter().copied())),
        number(seen.latency.p50),
        number(seen.latency.p999)
    );
    bar(name, (seen.figure(), peer), "/s", to_peer, Side::AtLeast(2.0), note)
}

fn one_voter(bench: &Bench) -> Result<Vec<Bar>> {
    let seen = bench.one_voter(RECORD_BYTES)?;
    let note = format!(
        "limit: a log on its own, 4 x 32 under way; p50 {} us, alone {} us",
        number(seen.latency.p50),
        number(seen.limit_latency.p50),
    );
    Ok(vec![bar("one_voter", (seen.figure(), seen.limit()), "/s", seen.ratio(), Side::AtLeast(0.9), note)])
}

fn small_batches_replicated(bench: &Bench) -> Result<Vec<Bar>> {
    const BATCH: u32 = 1000;
    const RECORDS_MIN: f64 = 1e6;
    let batches = bench.batches_replicated(4, BATCH, 10)?;
    let records = median(batches) * f64::from(BATCH);
    let note = "records; limit: 1 million; 4 threads, a batch each under way".to_owned();
    let values = (records, RECORDS_MIN);
    let side = Side::AtLeast(1.0);
    Ok(vec![bar("small_batches_replicated", values, "/s", values.0 / values.1, side, note)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_fall_is_against_the_best_before() {
        assert_eq!(worst_fall(&[1.0, 2.0, 4.0, 3.0, 3.5]), (3, 2));
        assert_eq!(worst_fall(&[4.0, 3.9, 3.0, 3.5]), (2, 0));
        assert_eq!(worst_fall(&[1.0, 2.0, 3.0]), (2, 1));
    }
}
