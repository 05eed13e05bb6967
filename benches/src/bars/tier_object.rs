//! The bars of the durability class `object`.
//!
//! Must not know: how anything is measured.

use super::tier::place_of;
use crate::bar::{Bar, Side, bar};
use crate::cases::Bench;
use crate::many;
use crate::measure::{Latencies, median, ratio};
use crate::report::number;
use crate::run::Sizes;
use crate::tier_object::{self as object, APPEND_BYTES, DEPTH, INTERVAL, THREADS};
use anyhow::Result;

/// Bytes between replicas for each appended one, at most.
const SENT_MAX: f64 = 0.05;
/// The PUTs that a confirmation may take, beside the interval.
const PUTS_MAX: f64 = 1.3;

pub(super) fn appends(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let (with, without) = object::appends(bench, sizes.put)?;
    let middle = |values: &[f64]| median(values.iter().copied());
    let kib = APPEND_BYTES >> 10;
    let sent = middle(&with.sent);
    let note = format!(
        "bytes between three replicas for each appended one, in appends of {kib} KiB; in the class majority {}",
        number(middle(&without.sent))
    );
    let sent = bar("tier_object_sent", (sent, SENT_MAX), "", sent / SENT_MAX, Side::AtMost(1.0), note);

    let p50 = |latencies: &Latencies| latencies.summary().p50;
    let interval = INTERVAL.as_secs_f64() * 1e6;
    let figures: Vec<_> = with.confirmed.iter().map(|seen| p50(&seen.latencies)).collect();
    let limits: Vec<_> = with.puts.iter().map(|puts| p50(puts) * PUTS_MAX + interval).collect();
    let majority: Vec<_> = without.confirmed.iter().map(|seen| p50(&seen.latencies)).collect();
    let puts: Vec<_> = with.puts.iter().map(p50).collect();
    let note = format!(
        "median, {THREADS} threads x {kib} KiB; limit: {} us between slices and {PUTS_MAX} of the median PUT, {} us; majority: {} us",
        number(interval),
        number(middle(&puts)),
        number(middle(&majority))
    );
    let values = (middle(&figures), middle(&limits));
    let confirmed =
        bar("tier_object_confirmed", values, "us", ratio(&figures, &limits), Side::AtMost(1.0), note);

    let (figures, limits) = (many::per_second(&with.rates), many::per_second(&without.rates));
    let note = format!(
        "{THREADS} threads x {DEPTH} tickets x {kib} KiB at the leader of three replicas in this process, the store {}, whose PUTs \
         take {} ms or more; limit: the class majority",
        place_of(bench),
        sizes.put.as_millis()
    );
    let values = (middle(&figures), middle(&limits));
    let rate = bar("tier_object", values, "/s", ratio(&figures, &limits), Side::AtLeast(0.8), note);
    Ok(vec![sent, confirmed, rate])
}
