//! Appends to many named logs of servers, in one group, over one connection and over one an appender, in turn with appends to
//! the default log of the same servers.
//!
//! Invariant: a measurement begins when the server has ended the streams of the one before.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::appends::{APPENDERS, Point, Seen, shape};
use super::load::{Service, Streams};
use super::named;
use super::servers::Servers;
use crate::cases::Bench;
use crate::measure::Latencies;
use anyhow::{Result, ensure};

/// The numbers of connections.
pub(crate) const CONNECTIONS: [usize; 2] = [1, APPENDERS];

const SETTINGS: [&str; 1] = ["groups=1"];

/// Servers with named logs.
struct Many {
    servers: Servers,
    logs: usize,
    /// The server that leads the group.
    leader: usize,
}

impl Many {
    fn start(bench: &Bench, nodes: usize, logs: usize) -> Result<Self> {
        let servers = Servers::start(&bench.own, &bench.dir, nodes, &SETTINGS)?;
        named::create(&servers.addresses(), logs)?;
        let leader = servers.settled_group_leader()?;
        Ok(Self { servers, logs, leader })
    }

    /// Measures appends to the named logs.
    fn measure(&self, bench: &Bench, connections: usize, seen: &mut Seen) -> Result<()> {
        const APPENDS: &str = "chiplog_group_appends_total{group=\"1\"}";
        let before = self.servers.figure(self.leader, APPENDS)?;
        let shape = shape(Service::LogService, Streams::OfLogs(self.logs), connections);
        let outcome = seen.measure(bench, &self.servers, self.leader, shape)?;
        self.servers.await_no_calls(self.leader)?;
        let appends = self.servers.figure(self.leader, APPENDS)? - before;
        ensure!(
            appends >= outcome.appends as f64,
            "the named logs got {appends} of {} appends",
            outcome.appends
        );
        Ok(())
    }

    /// Measures the same on the default log, whose appenders share the stream of their connection, too.
    fn measure_one(&self, bench: &Bench, connections: usize, seen: &mut Seen) -> Result<()> {
        let leader = self.servers.leader()?;
        let shape = shape(Service::LogService, Streams::Shared, connections);
        seen.measure(bench, &self.servers, leader, shape)?;
        self.servers.await_no_calls(leader)
    }
}

/// Appends to `logs` named logs of `nodes` servers, and to their default log, by connections.
pub(crate) fn beside_one(bench: &Bench, nodes: usize, logs: usize) -> Result<Vec<(Point, Point)>> {
    let all = Many::start(bench, nodes, logs)?;
    let (mut many, mut one) = (nothing_seen()?, nothing_seen()?);
    for _ in 0..bench.rounds {
        for (n, connections) in CONNECTIONS.into_iter().enumerate() {
            all.measure(bench, connections, &mut many[n])?;
            all.measure_one(bench, connections, &mut one[n])?;
        }
    }
    Ok(points(many).zip(points(one)).collect())
}

/// Appends to `logs` named logs of `nodes` servers, by connections.
pub(crate) fn alone(bench: &Bench, nodes: usize, logs: usize) -> Result<Vec<Point>> {
    let all = Many::start(bench, nodes, logs)?;
    let mut many = nothing_seen()?;
    for _ in 0..bench.rounds {
        for (connections, seen) in CONNECTIONS.into_iter().zip(&mut many) {
            all.measure(bench, connections, seen)?;
        }
    }
    Ok(points(many).collect())
}

fn nothing_seen() -> Result<Vec<Seen>> {
    CONNECTIONS.iter().map(|_| Latencies::new().map(Seen::new)).collect()
}

fn points(seen: Vec<Seen>) -> impl Iterator<Item = Point> {
    seen.into_iter().zip(CONNECTIONS).map(|(seen, connections)| seen.point(connections))
}
