//! Soak: three servers for a given time, under load and faults. In the end no record may be lost, doubled or reordered,
//! all replicas are the same, and the servers' memory and descriptors were flat in the later half. With an object store, the log also
//! comes back from that alone, and nothing else is left in it.

mod clients;
mod faults;
mod judge;
mod objects;
mod samples;

use crate::report::{Common, mib};
use crate::servers::{Sample, Servers, WorkDir};
use anyhow::{Context, Result, bail, ensure};
use chiplog::Index;
use clap::Args;
use clients::Shared;
use faults::Faults;
use judge::{Judge, Tally};
use objects::{Durability, Stored};
use samples::{Course, Point, courses};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
const READERS: u64 = 2;
/// With less time the later half is too short to distinguish growth from warming up.
const JUDGED_MINUTES: f64 = 10.0;
/// Within this time the records in flight are read, and the copy catches up.
const ENDING: Duration = Duration::from_secs(180);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long load and faults last
    #[arg(long, value_name = "MIN", default_value_t = 30.0)]
    minutes: f64,
    /// Records a second, all writers together
    #[arg(long, value_name = "N", default_value_t = 1000.0)]
    rate: f64,
    /// Decides which faults happen when
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Keep older records in an object store, a directory; in the end all servers are destroyed, and the log comes back from it
    #[arg(long)]
    objects: bool,
    /// With --objects: where a record is before its append is acknowledged
    #[arg(long, value_name = "CLASS", value_enum, default_value_t, requires = "objects")]
    durability: Durability,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Serialize)]
struct Report {
    minutes: f64,
    rate: f64,
    seed: u64,
    durability: Durability,
    #[serde(flatten)]
    tally: Tally,
    read_in_parts: u64,
    read_from_copy: u64,
    /// Partial reads that met a discard or no server, and discards that were refused.
    failures: u64,
    faults: Faults,
    /// The contents of the object store; `None` without one.
    stored: Option<Stored>,
    /// The error in the records; `None` if there is none.
    broken: Option<String>,
    courses: Vec<Course>,
    /// Whether the run was long enough to judge the courses.
    judged: bool,
    samples: Vec<Point>,
    met: bool,
}

/// Whether all checks passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    ensure!((0.1..=10_000.0).contains(&options.minutes), "--minutes must be from 0.1 to 10000");
    ensure!((1.0..=1e6).contains(&options.rate), "--rate must be from 1 to 1000000");
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let mut dir = WorkDir::new(&options.common.dir, "soak")?;
    let mut settings: Vec<String> =
        ["log.segment_bytes=4MiB", "cluster.heartbeat_millis=100", "cluster.election_timeout_millis=1000"]
            .map(str::to_owned)
            .into();
    let store = options.objects.then(|| dir.path.join("store"));
    settings.extend(store.iter().flat_map(|store| objects::settings(store, options.durability)));
    settings.extend(options.common.set.iter().cloned());
    if let Some(store) = &store {
        fs::create_dir_all(store).with_context(|| format!("making {}", store.display()))?;
    }
    let servers = Servers::start(&dir.path, 3, settings)?;
    let report = soak(options, seed, &servers, &dir, store.as_deref());
    dir.keep = !report.as_ref().is_ok_and(|report| report.met);
    let report = report?;
    options.common.output.put(&table(&report), &report)?;
    Ok(report.met)
}

fn soak(
    options: &Options,
    seed: u64,
    servers: &Servers,
    dir: &WorkDir,
    store: Option<&Path>,
) -> Result<Report> {
    let shared = Shared {
        addresses: servers.addresses(),
        judge: Arc::new(Judge::default()),
        appended: AtomicBool::new(false),
        over: AtomicBool::new(false),
        parts: AtomicU64::new(0),
        failures: AtomicU64::new(0),
    };
    let (shared, copied) = (&shared, &AtomicU64::new(0));
    let begun = Instant::now();
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    // A restarted server has a tenth of the time to warm up before it is judged.
    let (kills_until, end) = (begun + time * 2 / 5, begun + time);
    let mut random = fastrand::Rng::with_seed(seed);
    thread::scope(|scope| -> Result<Report> {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|writer| {
                let rate = options.rate / WRITERS as f64;
                scope.spawn(move || (writer, shared.heed("a writer", clients::write(shared, writer, rate))))
            })
            .collect();
        scope.spawn(|| shared.heed("the reader of everything", clients::tail(shared)));
        for _ in 0..READERS {
            let random = random.fork();
            scope.spawn(move || shared.heed("a reader", clients::read_parts(shared, random)));
        }
        let copy = dir.path.join("copy");
        let has_objects = options.objects;
        let copy =
            scope.spawn(move || shared.heed("the copy", clients::follow(shared, &copy, has_objects, copied)));
        let discards = scope.spawn(|| shared.heed("discards", clients::discard(shared, copied)));
        let sampler = scope.spawn(|| sample(servers, shared, begun, time));
        let faults = faults::run(servers, &shared.judge, &mut random, kills_until, end);
        let faults = shared.heed("faults", faults);
        shared.appended.store(true, Ordering::Relaxed);
        let given: Vec<(u64, u64)> = writers.into_iter().filter_map(|writer| writer.join().ok()).collect();
        if given.len() as u64 != WRITERS {
            shared.judge.fail("a writer panicked".to_owned());
        }
        // The replicas are compared from their first record on: no discard may be under way.
        if discards.join().is_err() {
            shared.judge.fail("the thread that discards panicked".to_owned());
        }
        let whole = shared.heed("the end", settle(servers, shared, copied).map(Some));
        shared.over.store(true, Ordering::Relaxed);
        let samples = sampler.join().unwrap_or_default();
        let read_from_copy = copy.join().unwrap_or_default();
        shared.judge.finish(&given);
        let stored = store.zip(whole).and_then(|(store, (last, whole))| {
            shared.heed("the object store", objects::judge(servers, shared, store, last, whole).map(Some))
        });
        let broken = shared.judge.broken();
        let courses = courses(&samples, time.as_secs_f64() / 2.0);
        let judged = options.minutes >= JUDGED_MINUTES;
        // This program's own memory holds what the servers have not answered; it is shown, but not judged.
        let flat = courses.iter().filter(|course| course.node > 0).all(|course| course.flat);
        let met = broken.is_none() && (flat || !judged);
        Ok(Report {
            minutes: options.minutes,
            rate: options.rate,
            seed,
            durability: options.durability,
            tally: shared.judge.tally(),
            read_in_parts: shared.parts.load(Ordering::Relaxed),
            read_from_copy,
            failures: shared.failures.load(Ordering::Relaxed),
            faults,
            stored,
            broken,
            courses,
            judged,
            samples,
            met,
        })
    })
}

/// After all appends have ended: reads everything everywhere, and compares. Returns the last record; and the first one, and a digest
/// of all.
fn settle(servers: &Servers, shared: &Shared, copied: &AtomicU64) -> Result<(Index, (Index, u64))> {
    let begun = Instant::now();
    loop {
        let (tally, last) = (shared.judge.tally(), shared.judge.last().get());
        if shared.judge.is_broken()
            || (tally.read == tally.acknowledged && copied.load(Ordering::Relaxed) == last)
        {
            break;
        }
        if begun.elapsed() > ENDING {
            bail!("{tally:?} after {ENDING:?}, and the copy has {}", copied.load(Ordering::Relaxed));
        }
        thread::sleep(Duration::from_millis(50));
    }
    faults::all_well(servers)?;
    let first = |node| servers.figure(node, "chiplog_first_index").map(|first| first as u64);
    while first(1)? != first(2)? || first(2)? != first(3)? {
        ensure!(
            begun.elapsed() < ENDING,
            "the replicas begin at {:?}, {:?}, {:?}",
            first(1),
            first(2),
            first(3)
        );
        thread::sleep(Duration::from_millis(50));
    }
    let last = Index(shared.judge.last().get());
    let all: Vec<_> =
        servers.nodes().map(|node| clients::digest(shared, servers, node, last)).collect::<Result<_>>()?;
    ensure!(all.windows(2).all(|pair| pair[0] == pair[1]), "the replicas differ: {all:x?}");
    let whole = all.first().copied().context("there are no servers")?;
    Ok((last, whole))
}

fn sample(servers: &Servers, shared: &Shared, begun: Instant, time: Duration) -> Vec<Point> {
    let pause = (time / 300).clamp(Duration::from_millis(250), Duration::from_secs(6));
    let mut points = Vec::new();
    while begun.elapsed() < time && !shared.judge.is_broken() {
        let seconds = begun.elapsed().as_secs_f64();
        let processes = servers.nodes().map(|node| (node, servers.process(node)));
        for (node, process) in processes.chain([(0, Some(std::process::id()))]) {
            if let Some((process, sample)) = process.and_then(|p| Some((p, Sample::of(p).ok()?))) {
                points.push(Point { seconds, node, process, sample });
            }
        }
        thread::sleep(pause);
    }
    points
}

fn table(report: &Report) -> String {
    let mut out = String::new();
    let Faults { kills, stops, transfers, transfers_refused, recovery_seconds_max } = report.faults;
    let _ = writeln!(
        out,
        "{} min, seed {}: {} records acknowledged, {} read, {} read in parts, {} from the copy; {} calls failed that may",
        report.minutes,
        report.seed,
        report.tally.acknowledged,
        report.tally.read,
        report.read_in_parts,
        report.read_from_copy,
        report.failures
    );
    let _ = writeln!(
        out,
        "{kills} kill -9, {stops} SIGSTOP, {transfers} transfers ({transfers_refused} refused); all well again after {recovery_seconds_max:.1} s at most"
    );
    if let Some(Stored { objects, left, restored }) = report.stored {
        let _ = writeln!(
            out,
            "the object store: {objects} objects, and {left} that nothing needed, which tier gc removed; {restored} records came back \
             from it after the loss of all servers"
        );
    }
    let _ = writeln!(out, "the later half, one life of each server:");
    for course in &report.courses {
        let (unit, value): (_, fn(f64) -> f64) = match course.what {
            "memory_bytes" => ("MiB", |bytes| mib(1) * bytes),
            _ => ("descriptors", |n| n),
        };
        let whose =
            if course.node == 0 { "this program".to_owned() } else { format!("server {}", course.node) };
        let _ = writeln!(
            out,
            "  {whose:<13} {unit:<11} mean {:>8.1}  peak {:>8.1}  {:>+8.2} in {:.0} s ({:>+9.1} an hour; up to {:.1})  {}",
            value(course.mean),
            value(course.peak),
            value(course.growth),
            course.seconds,
            value(course.slope_per_hour),
            value(course.growth_max),
            if course.flat { "flat" } else { "NOT FLAT" }
        );
    }
    if !report.judged {
        let _ = writeln!(out, "too short to judge by that: {JUDGED_MINUTES} min at least");
    }
    let _ = match &report.broken {
        Some(what) => writeln!(out, "A PROMISE IS BROKEN: {what}"),
        None => writeln!(out, "nothing lost, doubled or reordered; all replicas and the copy are the same"),
    };
    out
}
