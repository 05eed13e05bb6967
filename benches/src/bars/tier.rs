//! The bars of objects in an object store.
//!
//! Must not know: how anything is measured.

use crate::bar::{Bar, Side, bar};
use crate::cases::Bench;
use crate::data::RECORD_BYTES;
use crate::many;
use crate::measure::{MIB, median, ratio};
use crate::net::views;
use crate::report::number;
use crate::run::Sizes;
use crate::tier as objects;
use crate::tier_learner;
use crate::workload::Outcome;
use anyhow::Result;
use std::path::PathBuf;

/// How long a copy or a replica may take to its first record.
const FIRST_SECONDS_MAX: f64 = 2.0;

pub(super) fn appends(bench: &Bench) -> Result<Vec<Bar>> {
    let replicated =
        "at the leader of three replicas in this process, of which another one makes and stores objects";
    let alone = "on a log that makes and stores its objects itself";
    Ok(vec![
        append_bar(bench, "tier_append", objects::appends(bench, RECORD_BYTES)?, replicated),
        append_bar(bench, "tier_append_alone", objects::appends_alone(bench, RECORD_BYTES)?, alone),
    ])
}

/// Where the object store of appends is.
pub(super) fn place_of(bench: &Bench) -> String {
    let other = |place: &PathBuf| format!("in {}", place.parent().unwrap_or(place).display());
    bench.store.as_ref().map_or_else(|| "in a directory on the same disk".to_owned(), other)
}

fn append_bar(bench: &Bench, name: &str, (with, without): (Vec<Outcome>, Vec<Outcome>), place: &str) -> Bar {
    let (figures, limits) = (many::per_second(&with), many::per_second(&without));
    let middle = |values: &[f64]| median(values.iter().copied());
    let cpu = |outcomes: &[Outcome]| median(outcomes.iter().map(Outcome::cpu_micros_each));
    let note = format!(
        "128 threads x 2 KiB {place}, {}; limit: without; {} us of processor an append in all, without {} us",
        place_of(bench),
        number(cpu(&with)),
        number(cpu(&without))
    );
    let values = (middle(&figures), middle(&limits));
    bar(name, values, "/s", ratio(&figures, &limits), Side::AtLeast(0.95), note)
}

pub(super) fn scans(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let seen = objects::reads(bench, sizes.scan_bytes, RECORD_BYTES)?;
    let one = |name, (figures, limits): &(Vec<f64>, Vec<f64>), least, note: &str| {
        let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
        let values = (mib(figures), mib(limits));
        bar(name, values, "MiB/s", ratio(figures, limits), Side::AtLeast(least), note.to_owned())
    };
    Ok(vec![
        one(
            "tier_scan_cold",
            &seen.cold,
            0.8,
            "from an S3 server over HTTP in this process; limit: 8 bare requests of 4 MiB at a time",
        ),
        one(
            "tier_scan_warm",
            &seen.warm,
            0.9,
            "from the log's cache of objects; limit: a log with all its files",
        ),
    ])
}

pub(super) fn restore(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const BRANCH_SECONDS_MAX: f64 = 2.0;
    let seen = objects::restores(bench, sizes.scan_bytes, RECORD_BYTES)?;
    let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
    let note = format!(
        "a log of {} MiB of objects alone, fetched, checked and restored; limit: 8 bare requests of 4 MiB at a time, written and synced",
        sizes.scan_bytes >> 20
    );
    let values = (mib(&seen.rates), mib(&seen.limits));
    let ratio = ratio(&seen.rates, &seen.limits);
    let restore = bar("tier_restore", values, "MiB/s", ratio, Side::AtLeast(0.8), note);
    let seconds = median(seen.branch_seconds.iter().copied());
    let note = format!(
        "a branch of the same log of {} MiB is made, takes an append, and gives its first record; limit: 2 s",
        sizes.scan_bytes >> 20
    );
    let values = (seconds, BRANCH_SECONDS_MAX);
    let branch = bar("tier_branch", values, "s", seconds / BRANCH_SECONDS_MAX, Side::AtMost(1.0), note);
    Ok(vec![restore, branch])
}

pub(super) fn learner(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let seconds = tier_learner::first_reads(bench, sizes.scan_bytes, RECORD_BYTES)?;
    let seconds = median(seconds.iter().copied());
    let note = format!(
        "a new replica of a log of {} MiB, from an empty directory until a read from it gives the first record; limit: 2 s",
        sizes.scan_bytes >> 20
    );
    let values = (seconds, FIRST_SECONDS_MAX);
    Ok(vec![bar("tier_learner", values, "s", seconds / FIRST_SECONDS_MAX, Side::AtMost(1.0), note)])
}

pub(super) fn boot(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const SENT_MAX: f64 = 0.01;
    let seen = views::boots(bench, sizes.scan_bytes)?;
    let middle = |values: &[f64]| median(values.iter().copied());
    let mib = sizes.scan_bytes >> 20;
    let first = middle(&seen.first_seconds);
    let note = format!("a new copy of {mib} MiB over the network has the log's first record; limit: 2 s");
    let values = (first, FIRST_SECONDS_MAX);
    let first = bar("tier_boot_first", values, "s", first / FIRST_SECONDS_MAX, Side::AtMost(1.0), note);
    let note =
        "the same copy has read all records; limit: 8 bare requests of 4 MiB at a time for the same objects"
            .to_owned();
    let values = (middle(&seen.rates) / MIB, middle(&seen.limits) / MIB);
    let all = bar("tier_boot", values, "MiB/s", ratio(&seen.rates, &seen.limits), Side::AtLeast(0.8), note);
    let note = format!("MiB that the server sends to such a copy; limit: a hundredth of {mib} MiB");
    let values = (middle(&seen.sent_bytes) / MIB, sizes.scan_bytes as f64 * SENT_MAX / MIB);
    let sent = bar("tier_boot_sent", values, "MiB", values.0 / values.1, Side::AtMost(1.0), note);
    Ok(vec![first, all, sent])
}
