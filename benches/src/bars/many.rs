//! The bars of many named logs.
//!
//! Must not know: how anything is measured.

use crate::bar::{Bar, Side, bar};
use crate::cases::Bench;
use crate::data::RECORD_BYTES;
use crate::many as logs;
use crate::many_replicas;
use crate::measure::{MIB, median, ratio};
use crate::report::number;
use crate::run::Sizes;
use crate::workload::Outcome;
use anyhow::Result;

pub(super) fn appends(bench: &Bench) -> Result<Vec<Bar>> {
    let one = logs::appends(bench, RECORD_BYTES, 1)?;
    let two = logs::appends(bench, RECORD_BYTES, 2)?;
    let mut bars = appends_of("many_w1", &one, "groups: 1; limit: one log");
    bars.extend(appends_of("many_w1_two_groups", &two, "groups: 2; limit: one log"));
    Ok(bars)
}

pub(super) fn appends_on_three(bench: &Bench) -> Result<Vec<Bar>> {
    let seen = many_replicas::appends(bench, logs::APPENDERS, RECORD_BYTES)?;
    Ok(appends_of("many_w1_three", &seen, "three replicas in this process; limit: one log on three"))
}

/// The bars of appends a second and of the processor time of each.
fn appends_of(name: &str, seen: &logs::Many, how: &str) -> Vec<Bar> {
    let (figures, limits) = (logs::per_second(&seen.many), logs::per_second(&seen.one));
    let middle = |values: &[f64]| median(values.iter().copied());
    let blocks = median(seen.blocks.iter().map(|blocks| blocks.mean_bytes() as f64)) / 1024.0;
    let note = format!("{} named logs, {how}; blocks of {blocks:.0} KiB", logs::LOGS);
    let values = (middle(&figures), middle(&limits));
    let rate = bar(name, values, "/s", ratio(&figures, &limits), Side::AtLeast(0.8), note);
    let each = |outcomes: &[Outcome]| median(outcomes.iter().map(Outcome::cpu_micros_each));
    let note = "processor time of an append, with that of the threads that append".to_owned();
    let values = (each(&seen.many), each(&seen.one));
    let cpu = bar(&format!("{name}_cpu"), values, "us", seen.cpu_ratio(), Side::AtMost(1.3), note);
    vec![rate, cpu]
}

pub(super) fn create(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const SECONDS_MAX: f64 = 10.0;
    let seconds = logs::create(bench, sizes.logs)?.as_secs_f64();
    let note = format!("{} named logs created by 16 threads; limit: 10 s", sizes.logs);
    Ok(vec![bar("many_create", (seconds, SECONDS_MAX), "s", seconds / SECONDS_MAX, Side::AtMost(1.0), note)])
}

pub(super) fn idle(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const CPU_MICROS_MAX: f64 = 10_000.0;
    const MEMORY_MIB_MAX: f64 = 64.0;
    let seen = logs::idle(bench, sizes.logs, sizes.idle)?;
    let (one, all) = seen.threads;
    let note = format!(
        "{} named logs, no reader; threads of the process: {all}, with one named log {one}",
        sizes.logs
    );
    let values = (seen.cpu_micros, CPU_MICROS_MAX);
    let cpu = bar("many_idle", values, "us/s", values.0 / values.1, Side::AtMost(1.0), note);
    let values = (seen.memory as f64 / MIB, MEMORY_MIB_MAX);
    let note = format!("own memory of {} open named logs", sizes.logs);
    let memory = bar("many_idle_memory", values, "MiB", values.0 / values.1, Side::AtMost(1.0), note);
    Ok(vec![cpu, memory])
}

pub(super) fn open(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let bytes = sizes.scan_bytes + (20 << 20);
    let seen = logs::open(bench, sizes.logs, bytes, RECORD_BYTES)?;
    let middle = |values: &[f64]| median(values.iter().copied());
    let note = format!(
        "{} named logs of {} MiB together, cached; limit: one log of as many",
        sizes.logs,
        bytes >> 20
    );
    let values = (middle(&seen.many), middle(&seen.one));
    Ok(vec![bar("many_open", values, "ms", ratio(&seen.many, &seen.one), Side::AtMost(2.0), note)])
}

pub(super) fn scan(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
    let [scattered, sorted] = logs::scan(bench, logs::LOGS, sizes.scan_bytes, RECORD_BYTES)?;
    let kinds = [("many_scan", scattered, 0.3, "without"), ("many_scan_sorted", sorted, 0.8, "with")];
    let bars = kinds.into_iter().map(|(name, seen, least, how)| {
        let note = format!(
            "one after the other of 1,000 named logs, {how} sorted copies, cached; limit: a log on its own"
        );
        let values = (mib(&seen.many), mib(&seen.one));
        bar(name, values, "MiB/s", ratio(&seen.many, &seen.one), Side::AtLeast(least), note)
    });
    Ok(bars.collect())
}

pub(super) fn fair(bench: &Bench) -> Result<Vec<Bar>> {
    let (alone, beside) = logs::fair(bench, RECORD_BYTES)?;
    let p99 = |outcome: &Outcome| outcome.latencies.summary().p99;
    let values = (p99(&beside), p99(&alone));
    let note = "p99 of 8 quiet logs beside a log with 65,536 appends in flight; limit: alone".to_owned();
    Ok(vec![bar("many_fair", values, "us", values.0 / values.1, Side::AtMost(3.0), note)])
}

pub(super) fn amplification(bench: &Bench) -> Result<Vec<Bar>> {
    const BYTES_MAX: f64 = 2.2;
    let bytes = logs::amplification(bench, RECORD_BYTES)?;
    let note =
        "bytes written to segments and their sorted copies for a byte of records, without zeros filled ahead"
            .to_owned();
    Ok(vec![bar("many_amp", (bytes, BYTES_MAX), "B", bytes / BYTES_MAX, Side::AtMost(1.0), note)])
}

pub(super) fn disks(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    if sizes.disks.is_empty() {
        eprintln!("  skipped: name two directories on two disks by --disks");
        return Ok(Vec::new());
    }
    let seen = logs::disks(bench, &sizes.disks, RECORD_BYTES)?;
    let (figures, limits) = (logs::per_second(&seen.two), logs::per_second(&seen.one));
    let middle = |values: &[f64]| median(values.iter().copied());
    let p50 = |outcomes: &[Outcome]| median(outcomes.iter().map(|outcome| outcome.latencies.summary().p50));
    let note = format!(
        "{} named logs in two groups on two disks; limit: on one of them; p50 {} us, on one {} us",
        logs::LOGS,
        number(p50(&seen.two)),
        number(p50(&seen.one))
    );
    let values = (middle(&figures), middle(&limits));
    Ok(vec![bar("many_disks", values, "/s", ratio(&figures, &limits), Side::AtLeast(1.7), note)])
}
