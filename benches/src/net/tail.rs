//! The tail over the network: how soon a waiting reader has acknowledged records, and the cost of many readers.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::servers::Servers;
use crate::cases::Bench;
use crate::data::RECORD_BYTES;
use crate::measure::{Latencies, Percentiles, median};
use anyhow::{Context, Result, anyhow, ensure};
use chiplog::{Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Time between two measured appends.
const PAUSE: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_secs(30);

/// How long after its acknowledgement a waiting reader has a record. Negative times count as 0.
#[derive(Clone, Debug)]
pub(crate) struct Delay {
    /// All rounds together.
    pub(crate) all: Percentiles,
    /// Each round's median.
    pub(crate) medians: Vec<f64>,
}

/// One appender and one reader, each on a connection and a thread of its own. `node`: the server that the reader reads
/// from.
pub(crate) fn delay(bench: &Bench, nodes: usize, from_leader: bool) -> Result<Delay> {
    let servers = Servers::start(&bench.own, &bench.dir, nodes, &[])?;
    let leader = servers.leader()?;
    let node = if from_leader { leader } else { leader % nodes + 1 };
    let (mut all, mut medians) = (Latencies::new()?, Vec::new());
    for _ in 0..bench.rounds {
        let seen = delay_round(bench, &servers, node)?;
        medians.push(seen.summary().p50);
        all.add(&seen)?;
    }
    Ok(Delay { all: all.summary(), medians })
}

fn delay_round(bench: &Bench, servers: &Servers, node: usize) -> Result<Latencies> {
    let count = (bench.window.measured.as_secs_f64() / PAUSE.as_secs_f64()).ceil() as u64;
    let ((ready, begins), (tell, first)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            // The reader's server may not have that record yet.
            let first = first.recv_timeout(PATIENCE).context("nothing was appended")?;
            super::block_on(reads(servers, node, first, count, ready))
        });
        let acknowledged = super::block_on(async {
            let client = Client::connect(servers.addresses(), ClientOptions::default()).await?;
            let producer = client.producer(ProducerOptions::default()).await?;
            tell.send(producer.append(b"first").await?.await?).context("the reader is gone")?;
            begins.recv_timeout(PATIENCE).context("the reader did not begin")?;
            let mut times = Vec::with_capacity(count as usize);
            for n in 0..count {
                tokio::time::sleep(PAUSE).await;
                let index = producer.append(bench.pool.record(n, RECORD_BYTES)).await?.await?;
                times.push((index, Instant::now()));
            }
            ensure!(producer.close(PATIENCE).await.all_acknowledged(), "records were not acknowledged");
            Ok(times)
        });
        let read = reading.join().map_err(|_| anyhow!("the reader panicked"))?;
        let (acknowledged, read) = (acknowledged?, read?);
        ensure!(acknowledged.len() == read.len(), "{} of {} were read", read.len(), acknowledged.len());
        let mut seen = Latencies::new()?;
        for ((index, acknowledged), (at, read)) in acknowledged.into_iter().zip(read) {
            ensure!(index == at, "record {at} was read where {index} was due");
            seen.record(read.saturating_duration_since(acknowledged));
        }
        Ok(seen)
    })
}

/// Reads `count` records after the `first` one, and the time at which each arrived.
async fn reads(
    servers: &Servers,
    node: usize,
    first: Index,
    count: u64,
    ready: mpsc::Sender<()>,
) -> Result<Vec<(Index, Instant)>> {
    let client = Client::connect(servers.addresses(), ClientOptions::default()).await?;
    let mut reader = client.reader(Start::Index(first), ReadFrom::Nearest(Servers::zone(node)));
    reader.next_record().await?;
    ready.send(()).context("nobody waits for the reader")?;
    let mut times = Vec::with_capacity(count as usize);
    while (times.len() as u64) < count {
        let record = reader.next_record().await?.context("the log ended")?;
        times.push((record.index, Instant::now()));
    }
    Ok(times)
}

/// The cost of readers for the server.
#[derive(Clone, Debug)]
pub(crate) struct Fan {
    /// The number of readers.
    pub(crate) readers: usize,
    /// Processor time of the server, in cores.
    pub(crate) cores: Vec<f64>,
    /// Bytes that all readers received, in the median round.
    pub(crate) bytes: f64,
}

impl Fan {
    pub(crate) fn cores(&self) -> f64 {
        median(self.cores.iter().copied())
    }

    /// Processor time a delivered byte, by round: microseconds a MiB.
    pub(crate) fn micros_a_mib(&self, seconds: f64) -> Vec<f64> {
        let mib = self.bytes / f64::from(1 << 20);
        self.cores.iter().map(|cores| cores * seconds * 1e6 / mib.max(1e-9)).collect()
    }
}

/// The same appends, at the same pace, with this number of readers at the tail, each on a connection of its own.
pub(crate) fn fans(bench: &Bench, counts: &[usize], per_second: f64) -> Result<Vec<Fan>> {
    let servers = Servers::start(&bench.own, &bench.dir, 1, &[])?;
    let mut all: Vec<Fan> =
        counts.iter().map(|readers| Fan { readers: *readers, cores: Vec::new(), bytes: 0.0 }).collect();
    for _ in 0..bench.rounds {
        for fan in &mut all {
            let (cpu, bytes) = fan_round(bench, &servers, fan.readers, per_second)?;
            fan.cores.push(cpu.as_secs_f64() / bench.window.measured.as_secs_f64());
            fan.bytes = bytes as f64;
        }
    }
    Ok(all)
}

fn fan_round(bench: &Bench, servers: &Servers, readers: usize, per_second: f64) -> Result<(Duration, u64)> {
    let count = (bench.window.measured.as_secs_f64() * per_second).ceil() as u64;
    super::block_on(async {
        let client = Client::connect(servers.addresses(), ClientOptions::default()).await?;
        let producer = client.producer(ProducerOptions::default()).await?;
        producer.append(b"first").await?.await?;
        let mut reading = JoinSet::new();
        let (ready, mut begins) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..readers {
            let (mut reader, ready) = (client.reader(Start::Last(1), ReadFrom::Leader), ready.clone());
            reading.spawn(async move {
                reader.next_record().await?;
                ready.send(())?;
                let mut bytes = 0;
                for _ in 0..count {
                    bytes += reader.next_record().await?.context("the log ended")?.data.len() as u64;
                }
                Ok::<_, anyhow::Error>(bytes)
            });
        }
        for _ in 0..readers {
            begins.recv().await.context("a reader did not begin")?;
        }
        let cpu = servers.cpu()?;
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for n in 0..count {
            ticks.tick().await;
            producer.append(bench.pool.record(n, RECORD_BYTES)).await?.await?;
        }
        let mut bytes = 0;
        while let Some(read) = reading.join_next().await {
            bytes += read??;
        }
        let cpu = servers.cpu()? - cpu;
        ensure!(producer.close(PATIENCE).await.all_acknowledged(), "records were not acknowledged");
        Ok((cpu, bytes))
    })
}
