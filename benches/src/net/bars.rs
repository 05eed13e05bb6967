//! The bars of the network: see `docs/performance.md`, "Over the network".
//!
//! Must not know: how anything is measured.

use super::appends::{self, APPENDERS, CONNECTIONS, Point};
use super::bare::BareServer;
use super::failover::{self, Failover};
use super::kafka::PEERS;
use super::load::{Service, Streams};
use super::reads::{self, RemoteScans};
use super::{many, produce, tail};
use crate::bar::{Bar, Side, bar};
use crate::cases::Bench;
use crate::many::LOGS;
use crate::measure::{MIB, median, ratio};
use crate::report::number;
use crate::run::Sizes;
use anyhow::Result;

/// `one` or `three`.
fn word(nodes: usize) -> &'static str {
    if nodes == 1 { "one" } else { "three" }
}

/// The lowest rate of 128 appenders over any number of connections, compared with the highest.
pub(crate) fn flat(bench: &Bench, sizes: &Sizes, service: Service, nodes: usize) -> Result<Vec<Bar>> {
    const FLAT_MIN: f64 = 0.6;
    let points = appends::curve(bench, (service, sizes.streams), nodes, &sizes.connections, false)?;
    let name = match service {
        Service::LogService => "net_native",
        Service::Logspec => "net_logspec",
    };
    let rates = || points.iter().map(Point::rate);
    let (lowest, highest) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    let parts: Vec<String> = points
        .iter()
        .map(|p| {
            let micros = format!("{}+{}", number(p.server_micros), number(p.client_micros));
            format!(
                "{}: {} (p50 {} us, cpu {micros} us)",
                p.connections,
                number(p.rate()),
                number(p.latency.p50)
            )
        })
        .collect();
    let note =
        format!("lowest and highest by connections; cpu of servers+load an append; {}", parts.join(", "));
    let side = Side::AtLeast(FLAT_MIN);
    let name = format!("{name}_{}", word(nodes));
    let mut flat = bar(&name, (lowest, highest), "/s", lowest / highest, side, note);
    flat.curve = points.iter().map(|p| (p.connections as f64, p.rate())).collect();
    Ok(vec![flat])
}

/// The same work compared with Kafka, over many connections and over one.
pub(crate) fn kafka(bench: &Bench, nodes: usize) -> Result<Vec<Bar>> {
    const ONE_MIN: f64 = 1.5;
    const DISK_MIN: f64 = 0.8;
    let many_min = if nodes == 1 { 15.0 } else { 10.0 };
    let ends = [1, APPENDERS];
    let kafka = appends::kafka(bench, nodes, 1, &CONNECTIONS)?;
    let ours = appends::curve(bench, (Service::LogService, Streams::Shared), nodes, &ends, true)?;
    let (one, many) = (&ours[0], &ours[1]);
    let disk = median(one.disk.iter().copied());
    let to_disk = ratio(&one.rates, &one.disk);
    let of_disk = format!("{to_disk:.2} of raw writes of the same blocks, {}/s", number(disk));
    let name = |connections: usize| format!("net_kafka_{}_over_{connections}", word(nodes));
    let Some(kafka) = kafka else {
        let note = format!(
            "Kafka was not measured: {PEERS} names none; {}/s over {APPENDERS} connections",
            number(many.rate())
        );
        let disk = bar(
            &name(1),
            (one.rate(), disk),
            "/s",
            to_disk,
            Side::AtLeast(DISK_MIN),
            format!("limit: raw writes of the same blocks; {note}"),
        );
        return Ok(vec![disk]);
    };
    let rates: Vec<f64> = kafka.iter().map(|rates| median(rates.iter().copied())).collect();
    let (peer_one, peer_many) = (rates[0], rates[rates.len() - 1]);
    let client = "limit: Kafka, synced before it acknowledges, through its client franz-go";
    let note = format!(
        "{client}; {} us p50; Kafka by connections: {}",
        number(many.latency.p50),
        by_connections(&rates)
    );
    let to_peer = many.rate() / peer_many;
    let values = (many.rate(), peer_many);
    let many = bar(&name(APPENDERS), values, "/s", to_peer, Side::AtLeast(many_min), note);
    let to_peer = one.rate() / peer_one;
    let mut one = if to_peer >= ONE_MIN || to_peer / ONE_MIN >= to_disk / DISK_MIN {
        let note = format!("{client}; {of_disk}");
        bar(&name(1), (one.rate(), peer_one), "/s", to_peer, Side::AtLeast(ONE_MIN), note)
    } else {
        let note =
            format!("limit: raw writes of the same blocks; {to_peer:.2} of Kafka's {}/s", number(peer_one));
        bar(&name(1), (one.rate(), disk), "/s", to_disk, Side::AtLeast(DISK_MIN), note)
    };
    one.curve = CONNECTIONS.iter().zip(&rates).map(|(n, rate)| (*n as f64, *rate)).collect();
    Ok(vec![one, many])
}

/// The same work on many named logs, compared with that on the default log of the same servers.
pub(crate) fn many(bench: &Bench, sizes: &Sizes, nodes: usize) -> Result<Vec<Bar>> {
    const RATE_MIN: f64 = 0.8;
    const CPU_MAX: f64 = 1.3;
    let logs = sizes.logs.min(LOGS);
    let mut bars = Vec::new();
    for (many, one) in many::beside_one(bench, nodes, logs)? {
        let name = format!("net_many_{}_over_{}", word(nodes), many.connections);
        let note = format!(
            "{} named logs in one group, one stream a connection; limit: the same on the default log; p50 {} us, of the \
             limit {} us",
            number(logs as f64),
            number(many.latency.p50),
            number(one.latency.p50)
        );
        let (values, to_one) = ((many.rate(), one.rate()), ratio(&many.rates, &one.rates));
        bars.push(bar(&name, values, "/s", to_one, Side::AtLeast(RATE_MIN), note));
        let note = format!(
            "the servers' processor time of an append; the load's {} us, of the limit {} us",
            number(many.client_micros),
            number(one.client_micros)
        );
        let values = (many.server_micros, one.server_micros);
        let name = format!("{name}_cpu");
        bars.push(bar(&name, values, "us", values.0 / values.1, Side::AtMost(CPU_MAX), note));
    }
    Ok(bars)
}

/// Appends to many named logs, compared with Kafka's to as many partitions.
pub(crate) fn many_kafka(bench: &Bench, sizes: &Sizes, nodes: usize) -> Result<Vec<Bar>> {
    const TIMES_MIN: f64 = 8.0;
    let logs = sizes.logs.min(LOGS);
    let Some(kafka) = appends::kafka(bench, nodes, logs, &many::CONNECTIONS)? else {
        eprintln!("  skipped: name the directory of Kafka and of its load by {PEERS}");
        return Ok(Vec::new());
    };
    let ours = many::alone(bench, nodes, logs)?;
    let bars = ours.into_iter().zip(kafka).map(|(ours, kafka)| {
        let name = format!("net_many_kafka_{}_over_{}", word(nodes), ours.connections);
        let peer = median(kafka.iter().copied());
        let count = number(logs as f64);
        let note = format!(
            "{count} named logs; limit: Kafka with {count} partitions, synced before it acknowledges, warm, through its client \
             franz-go; p50 {} us; cpu of servers+load an append {}+{} us",
            number(ours.latency.p50),
            number(ours.server_micros),
            number(ours.client_micros)
        );
        bar(&name, (ours.rate(), peer), "/s", ours.rate() / peer, Side::AtLeast(TIMES_MIN), note)
    });
    Ok(bars.collect())
}

fn by_connections(rates: &[f64]) -> String {
    let parts: Vec<String> =
        CONNECTIONS.iter().zip(rates).map(|(n, rate)| format!("{n}: {}", number(*rate))).collect();
    parts.join(", ")
}

/// One appender, compared with a raw write and sync of the same bytes.
pub(crate) fn alone(bench: &Bench) -> Result<Vec<Bar>> {
    let mut bars = Vec::new();
    for (nodes, most) in [(1, 2.0), (3, 4.0)] {
        let (ours, limits) = appends::alone(bench, nodes)?;
        let middle = |values: &[f64]| median(values.iter().copied());
        let values = (middle(&ours), middle(&limits));
        let note = "medians; limit: raw pwrite + fdatasync of 2 KiB".to_owned();
        let name = format!("net_alone_{}", word(nodes));
        bars.push(bar(&name, values, "us", ratio(&ours, &limits), Side::AtMost(most), note));
    }
    Ok(bars)
}

fn scans(name: &str, seen: &RemoteScans, least: f64, note: String) -> Vec<Bar> {
    let mib = |rates: &[f64]| median(rates.iter().copied()) / MIB;
    let values = (mib(&seen.figures), mib(&seen.limits));
    vec![bar(name, values, "MiB/s", ratio(&seen.figures, &seen.limits), Side::AtLeast(least), note)]
}

/// A whole log from the page cache, compared with bare messages.
pub(crate) fn read_cached(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let seen = reads::cached(bench, sizes.scan_bytes)?;
    let note =
        "2 KiB records in a producer's batches, every byte verified; limit: messages of 1 MiB over gRPC";
    Ok(scans("net_read_cached", &seen, 0.8, note.into()))
}

/// The same with an empty page cache, compared with `cat`.
pub(crate) fn read_uncached(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    let seen = reads::uncached(bench, sizes.scan_bytes)?;
    let note = "limit: plain read of the same files in 128 KiB, as cat does";
    Ok(scans("net_read_uncached", &seen, 0.95, note.into()))
}

/// How soon a waiting reader has a record, and the cost of many readers.
pub(crate) fn tail(bench: &Bench) -> Result<Vec<Bar>> {
    const DELAY_MICROS_MAX: f64 = 1000.0;
    const PER_SECOND: f64 = 500.0;
    const TIMES_MAX: f64 = 2.0;
    let mut bars = Vec::new();
    for (name, nodes, from_leader) in
        [("net_tail_one", 1, true), ("net_tail_three", 3, true), ("net_tail_follower", 3, false)]
    {
        let seen = tail::delay(bench, nodes, from_leader)?;
        let at = median(seen.medians.iter().copied());
        let note = format!(
            "from the acknowledgement until another connection's reader has the record, median; p99 {} us",
            number(seen.all.p99)
        );
        let side = Side::AtMost(1.0);
        bars.push(bar(name, (at, DELAY_MICROS_MAX), "us", at / DELAY_MICROS_MAX, side, note));
    }
    let fans = tail::fans(bench, &[10, 100], PER_SECOND)?;
    let seconds = bench.window.measured.as_secs_f64();
    let (few, many) = (fans[0].micros_a_mib(seconds), fans[1].micros_a_mib(seconds));
    let middle = |values: &[f64]| median(values.iter().copied());
    let what = format!("{PER_SECOND} appends/s of 2 KiB, each reader on a connection of its own gets all");
    let note = format!("the server's processor time, 100 readers at the tail, beside 10; {what}");
    let cores = (fans[1].cores(), fans[0].cores());
    let times = ratio(&fans[1].cores, &fans[0].cores);
    bars.push(bar("net_tail_fan", cores, "cores", times, Side::AtMost(TIMES_MAX), note));
    let note = format!("the same for each MiB delivered: 100 readers get ten times the bytes; {what}");
    let values = (middle(&many), middle(&few));
    bars.push(bar("net_tail_fan_each", values, "us/MiB", ratio(&many, &few), Side::AtMost(TIMES_MAX), note));
    Ok(bars)
}

/// The rate of acknowledged records of one producer.
pub(crate) fn producer(bench: &Bench) -> Result<Vec<Bar>> {
    const SMALL_MIN: f64 = 2e6;
    const LARGE_BYTES: usize = 1000;
    let seen = produce::produce(bench, 10, false)?;
    let note = format!(
        "records of 10 B; limit: 2 million; raw writes of the same blocks: {}",
        number(median(seen.disk.iter().copied()))
    );
    let values = (seen.rate(), SMALL_MIN);
    let small = bar("net_producer_small", values, "/s", values.0 / values.1, Side::AtLeast(1.0), note);
    let bare = BareServer::start(&bench.own, &bench.dir)?;
    let network: Vec<f64> = (0..bench.rounds)
        .map(|_| Ok(bare.receive(512 << 20)? / LARGE_BYTES as f64))
        .collect::<Result<_>>()?;
    drop(bare);
    let network = median(network);
    let mut bars = vec![small];
    for (name, reusing) in [("net_producer_large", false), ("net_producer_large_reusing", true)] {
        let seen = produce::produce(bench, LARGE_BYTES, reusing)?;
        let disk = median(seen.disk.iter().copied());
        let limit = disk.min(network);
        let note = format!(
            "records of 1,000 B; limit: the lower of raw writes of the same blocks, {}, and bare messages, {}; {} MiB/s",
            number(disk),
            number(network),
            number(seen.rate() * LARGE_BYTES as f64 / MIB)
        );
        let values = (seen.rate(), limit);
        bars.push(bar(name, values, "/s", values.0 / values.1, Side::AtLeast(0.7), note));
    }
    Ok(bars)
}

/// A load of three times the capacity.
pub(crate) fn overload(bench: &Bench, sizes: &Sizes) -> Result<Vec<Bar>> {
    const GOODPUT_MIN: f64 = 0.8;
    const GROWTH_MIB_MAX: f64 = 32.0;
    const TAIL_MAX: f64 = 4.0;
    const DRAIN_MILLIS_MAX: f64 = 1000.0;
    const CALM_MAX: f64 = 2.0;
    let seen = produce::overload(bench, 1000, sizes.overload)?;
    let note = format!(
        "records of 1,000 B acknowledged while {} were offered a second; limit: what is taken without overload; refused as Busy, \
         the documented error: {}; no other error",
        number(seen.offered),
        number(seen.refused as f64)
    );
    let (taken, capacity) = (seen.taken, seen.capacity);
    let mut bars = vec![bar(
        "net_overload_goodput",
        (taken, capacity),
        "/s",
        taken / capacity,
        Side::AtLeast(GOODPUT_MIN),
        note,
    )];
    for (name, whose, (early, late)) in [
        ("net_overload_server", "the server's", seen.server_memory),
        ("net_overload_client", "the client's", seen.client_memory),
    ] {
        let note = format!(
            "growth of {whose} own memory, its largest in the last quarter of the time less that in the second: {} and {} MiB; \
             limit: what the producer's buffer holds",
            number(late / MIB),
            number(early / MIB)
        );
        let values = ((late - early).max(0.0) / MIB, GROWTH_MIB_MAX);
        bars.push(bar(name, values, "MiB", values.0 / values.1, Side::AtMost(1.0), note));
    }
    let values = (seen.latency.p999 / 1e3, seen.buffer_millis);
    let note = format!(
        "p99.9; limit: what the producer's buffer holds at that rate; p50 {} ms",
        number(seen.latency.p50 / 1e3)
    );
    bars.push(bar("net_overload_tail", values, "ms", values.0 / values.1, Side::AtMost(TAIL_MAX), note));
    let values = (seen.drained_millis, DRAIN_MILLIS_MAX);
    let note = "from the end of the overload until nothing waits".to_owned();
    bars.push(bar("net_overload_drained", values, "ms", values.0 / values.1, Side::AtMost(1.0), note));
    let (before, after) = seen.calm;
    let note = "median of appends one after the other, after and before".to_owned();
    bars.push(bar("net_overload_calm", (after, before), "us", after / before, Side::AtMost(CALM_MAX), note));
    Ok(bars)
}

/// A leader killed under load, once a round.
pub(crate) fn failover(bench: &Bench) -> Result<Vec<Bar>> {
    const GAP_MILLIS_MAX: f64 = 2000.0;
    let seen: Vec<Failover> =
        (0..bench.rounds).map(|_| failover::failover(bench, 0)).collect::<Result<_>>()?;
    let gaps: Vec<String> = seen.iter().map(|s| number(s.gap_millis)).collect();
    let worst = seen.iter().map(|s| s.gap_millis).fold(0.0, f64::max);
    let note = format!(
        "SIGKILL of the leader of three, 16 appenders; the longest time without an acknowledgement; worst of {}; from the kill {}",
        gaps.join(", "),
        number(median(seen.iter().map(|s| s.after_kill_millis)))
    );
    let ratio = worst / GAP_MILLIS_MAX;
    let gap = bar("net_failover_gap", (worst, GAP_MILLIS_MAX), "ms", ratio, Side::AtMost(1.0), note);
    let wrong: u64 = seen.iter().map(|s| s.lost + s.doubled).sum();
    let all: u64 = seen.iter().map(|s| s.acknowledged).sum();
    let note = "records lost or doubled, of all that were acknowledged; none may be".to_owned();
    let values = (wrong as f64, all as f64);
    let whole = bar("net_failover_whole", values, "", wrong as f64, Side::AtMost(0.0), note);
    Ok(vec![gap, whole])
}

/// The leader of a group killed under load: with many named logs in it, and with one.
pub(crate) fn many_failover(bench: &Bench, logs: usize) -> Result<Vec<Bar>> {
    let (many, one): (Vec<Failover>, Vec<Failover>) = (0..bench.rounds)
        .map(|_| Ok((failover::failover(bench, logs)?, failover::failover(bench, 1)?)))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .unzip();
    let gap = |seen: &[Failover]| median(seen.iter().map(|s| s.gap_millis));
    let all = |seen: &[Failover]| seen.iter().map(|s| number(s.gap_millis)).collect::<Vec<_>>().join(", ");
    let note = format!(
        "SIGKILL of the leader of a group with {logs} named logs, 16 appenders on one; the longest time without an acknowledgement, median of {}; limit: with one log, {}",
        all(&many),
        all(&one)
    );
    let values = (gap(&many), gap(&one));
    let gap = bar("many_failover", values, "ms", values.0 / values.1, Side::AtMost(1.2), note);
    let wrong: u64 = many.iter().chain(&one).map(|s| s.lost + s.doubled).sum();
    let acknowledged: u64 = many.iter().chain(&one).map(|s| s.acknowledged).sum();
    let note = "records lost or doubled, of all that were acknowledged; none may be".to_owned();
    let values = (wrong as f64, acknowledged as f64);
    let whole = bar("many_failover_whole", values, "", wrong as f64, Side::AtMost(0.0), note);
    Ok(vec![gap, whole])
}
