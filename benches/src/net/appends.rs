//! Appends over the network: 128 appenders over few and many connections, one alone, and Kafka with the same work.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::kafka::Kafka;
use super::load::{self, Load, Service, Shape, Streams};
use super::servers::Servers;
use crate::cases::Bench;
use crate::data::RECORD_BYTES;
use crate::measure::{Latencies, Percentiles, median};
use crate::raw::{self, ZeroFilled};
use crate::workload::{Outcome, Window};
use anyhow::Result;

/// The number of appenders.
pub(crate) const APPENDERS: usize = 128;
/// The numbers of connections, measured one after the other.
pub(crate) const CONNECTIONS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Kafka's load generator takes seconds to start and to end.
const KAFKA_ROUNDS_MAX: usize = 2;

/// One appender, on a connection of its own.
const ALONE: Shape = Shape {
    service: Service::LogService,
    streams: Streams::Own,
    connections: 1,
    appenders: 1,
    record_bytes: RECORD_BYTES,
};

/// The results with this number of connections.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) connections: usize,
    /// Appends a second, by round.
    pub(crate) rates: Vec<f64>,
    pub(crate) latency: Percentiles,
    /// Processor time of all servers for one append, in microseconds.
    pub(crate) server_micros: f64,
    /// Processor time of the load generator.
    pub(crate) client_micros: f64,
    /// The rate of writing and syncing blocks of the size that the leader formed, by round.
    pub(crate) disk: Vec<f64>,
}

impl Point {
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }
}

/// Appends by connections to a cluster of `nodes`. `with_disk`: each compared with the disk's own rate.
pub(crate) fn curve(
    bench: &Bench,
    (service, streams): (Service, Streams),
    nodes: usize,
    connections: &[usize],
    with_disk: bool,
) -> Result<Vec<Point>> {
    let servers = Servers::start(&bench.own, &bench.dir, nodes, &[])?;
    let leader = servers.leader()?;
    let mut file = with_disk.then(|| ZeroFilled::create(&bench.dir, bench.raw_bytes)).transpose()?;
    let mut seen: Vec<Seen> =
        connections.iter().map(|_| Latencies::new().map(Seen::new)).collect::<Result<_>>()?;
    for _ in 0..bench.rounds {
        for (connections, seen) in connections.iter().zip(&mut seen) {
            let written = servers.written(leader)?;
            let shape = shape(service, streams, *connections);
            let appends = with_warm_up(bench, &seen.measure(bench, &servers, leader, shape)?);
            if let Some(file) = &mut file {
                let after = servers.written(leader)?;
                let bytes = after.block_bytes(&written);
                let syncs = raw::sync_loop(file, &bench.pool, bytes, half(bench.window).measured)?;
                seen.disk.push(syncs.per_second * appends / after.blocks(&written).max(1.0));
            }
        }
    }
    Ok(connections.iter().zip(seen).map(|(connections, seen)| seen.point(*connections)).collect())
}

/// The usual number of appenders and size of a record.
pub(crate) fn shape(service: Service, streams: Streams, connections: usize) -> Shape {
    Shape { service, streams, connections, appenders: APPENDERS, record_bytes: RECORD_BYTES }
}

/// The results of one shape of load, round by round.
pub(crate) struct Seen {
    rates: Vec<f64>,
    server: Vec<f64>,
    client: Vec<f64>,
    disk: Vec<f64>,
    latencies: Latencies,
}

impl Seen {
    pub(crate) fn new(latencies: Latencies) -> Self {
        Self { rates: Vec::new(), server: Vec::new(), client: Vec::new(), disk: Vec::new(), latencies }
    }

    /// Measures the appends to this server for half the time of the window.
    pub(crate) fn measure(
        &mut self,
        bench: &Bench,
        servers: &Servers,
        node: usize,
        shape: Shape,
    ) -> Result<Outcome> {
        let mut load = Load::open(shape, servers.address(node), &bench.pool)?;
        let cpu = servers.cpu()?;
        let outcome = load.run(half(bench.window))?;
        let cpu = servers.cpu()? - cpu;
        drop(load);
        self.rates.push(outcome.per_second());
        self.server.push(cpu.as_secs_f64() * 1e6 / with_warm_up(bench, &outcome).max(1.0));
        self.client.push(outcome.cpu_micros_each());
        self.latencies.add(&outcome.latencies)?;
        Ok(outcome)
    }

    pub(crate) fn point(self, connections: usize) -> Point {
        Point {
            connections,
            rates: self.rates,
            latency: self.latencies.summary(),
            server_micros: median(self.server),
            client_micros: median(self.client),
            disk: self.disk,
        }
    }
}

/// The appends of an outcome and of the warm-up before it, which costs the servers the same as the rest.
fn with_warm_up(bench: &Bench, outcome: &Outcome) -> f64 {
    let total = half(bench.window).warm_up + outcome.elapsed;
    outcome.per_second() * total.as_secs_f64()
}

/// A curve has many points: each gets half the time.
fn half(window: Window) -> Window {
    Window { warm_up: window.warm_up / 2, measured: window.measured / 2 }
}

/// One appender alone: medians by round, in microseconds: its own, and those of a raw write and sync of the same bytes.
pub(crate) fn alone(bench: &Bench, nodes: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let servers = Servers::start(&bench.own, &bench.dir, nodes, &[])?;
    let leader = servers.leader()?;
    let mut file = ZeroFilled::create(&bench.dir, bench.raw_bytes)?;
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let syncs = raw::sync_loop(&mut file, &bench.pool, RECORD_BYTES, bench.window.measured)?;
        limits.push(syncs.latencies.summary().p50);
        let outcome = load::appenders(ALONE, servers.address(leader), &bench.pool, bench.window)?;
        ours.push(outcome.latencies.summary().p50);
    }
    Ok((ours, limits))
}

/// Kafka's appends a second by connections, to a topic with this number of partitions, if it is installed.
pub(crate) fn kafka(
    bench: &Bench,
    nodes: usize,
    partitions: usize,
    connections: &[usize],
) -> Result<Option<Vec<Vec<f64>>>> {
    let Some(kafka) = Kafka::at_hand(&bench.own, &bench.dir, nodes)? else { return Ok(None) };
    let measured = bench.window.measured;
    let warm_up = match partitions {
        1 => bench.window.warm_up,
        _ => kafka.warm_up(partitions),
    };
    let mut rates = vec![Vec::new(); connections.len()];
    for _ in 0..bench.rounds.min(KAFKA_ROUNDS_MAX) {
        for (connections, rates) in connections.iter().zip(&mut rates) {
            rates.push(kafka.appends(partitions, *connections, measured, warm_up)?);
        }
    }
    Ok(Some(rates))
}
