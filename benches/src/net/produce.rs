//! Producers over the network: how many records a second, and the effects of an overload.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::servers::Servers;
use crate::cases::Bench;
use crate::measure::{Latencies, Memory, Percentiles, median};
use crate::raw::{self, ZeroFilled};
use anyhow::{Context, Result, bail, ensure};
use chiplog::ErrorKind;
use chiplog_net::client::blocking::{Client, Producer};
use chiplog_net::client::{ClientOptions, ProducerOptions};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Records between two readings of the clock.
const BURST: u64 = 256;

/// A producer's rate compared with that of the disk, by round.
#[derive(Clone, Debug)]
pub(crate) struct Produced {
    /// Acknowledged records a second.
    pub(crate) rates: Vec<f64>,
    /// Records a second in raw writes and syncs of blocks of the size that the server formed.
    pub(crate) disk: Vec<f64>,
}

impl Produced {
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }
}

/// Settings of a log that keeps its newest 64 MiB: it reuses its files and has none to fill with zeros.
const GOING_ROUND: [&str; 2] = ["log.segment_bytes=16MiB", "log.retention_bytes=64MiB"];

/// One producer with default options to one server. `reusing`: the log reuses its files.
pub(crate) fn produce(bench: &Bench, record_bytes: usize, reusing: bool) -> Result<Produced> {
    let settings = if reusing { &GOING_ROUND[..] } else { &[] };
    let servers = Servers::start(&bench.own, &bench.dir, 1, settings)?;
    let client = Client::connect(servers.addresses(), ClientOptions::default())?;
    let mut file = ZeroFilled::create(&bench.dir, bench.raw_bytes)?;
    let mut seen = Produced { rates: Vec::new(), disk: Vec::new() };
    for _ in 0..bench.rounds {
        let producer = client.producer(ProducerOptions::default())?;
        send_for(bench, &producer, record_bytes, bench.window.warm_up)?;
        let written = servers.written(1)?;
        let begun = Instant::now();
        let records = send_for(bench, &producer, record_bytes, bench.window.measured)?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = servers.written(1)?;
        ensure!(producer.close(PATIENCE).all_acknowledged(), "records were not acknowledged");
        seen.rates.push(records as f64 / seconds);
        let bytes = after.block_bytes(&written);
        let syncs = raw::sync_loop(&mut file, &bench.pool, bytes, bench.window.measured)?;
        let records_a_block = records as f64 / after.blocks(&written).max(1.0);
        seen.disk.push(syncs.per_second * records_a_block);
    }
    Ok(seen)
}

/// Sends as fast as the producer accepts records, then waits until all are acknowledged.
fn send_for(bench: &Bench, producer: &Producer, record_bytes: usize, time: Duration) -> Result<u64> {
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < time {
        for _ in 0..BURST {
            producer.send(bench.pool.record(sent, record_bytes))?;
            sent += 1;
        }
    }
    producer.flush(PATIENCE)?;
    Ok(sent)
}

/// The results of an overload.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    /// Records a second that a producer gets acknowledged when it waits for room.
    pub(crate) capacity: f64,
    /// Records a second that were offered.
    pub(crate) offered: f64,
    /// Records a second that were acknowledged.
    pub(crate) taken: f64,
    /// Records refused as `Busy`, the documented error.
    pub(crate) refused: u64,
    /// Latencies of the acknowledged ones, from when each was offered; a sample.
    pub(crate) latency: Percentiles,
    /// How long the producer's buffer lasts at that rate, in milliseconds.
    pub(crate) buffer_millis: f64,
    /// The largest memory of the server in the second quarter of the time, and in the last, in bytes.
    pub(crate) server_memory: (f64, f64),
    /// The same of the client.
    pub(crate) client_memory: (f64, f64),
    /// Milliseconds from the end of the overload until nothing waited any more.
    pub(crate) drained_millis: f64,
    /// The median of appends one after the other, before and after, in microseconds.
    pub(crate) calm: (f64, f64),
}

/// Offers three times the capacity, at an even pace, to a producer that never waits.
pub(crate) fn overload(bench: &Bench, record_bytes: usize, time: Duration) -> Result<Overload> {
    const TIMES: f64 = 3.0;
    const SAMPLE: u64 = 64;
    const TICK: Duration = Duration::from_millis(1);
    let servers = Servers::start(&bench.own, &bench.dir, 1, &["log.retention_bytes=1GiB"])?;
    let client = Client::connect(servers.addresses(), ClientOptions::default())?;
    let waiting = client.producer(ProducerOptions::default())?;
    send_for(bench, &waiting, record_bytes, bench.window.measured)?;
    let begun = Instant::now();
    let sent = send_for(bench, &waiting, record_bytes, bench.window.measured)?;
    let capacity = sent as f64 / begun.elapsed().as_secs_f64();
    let calm_before = calm(bench, &waiting, record_bytes)?;
    ensure!(waiting.close(PATIENCE).all_acknowledged(), "records were not acknowledged");

    let mut options = ProducerOptions::default();
    options.block_max = Duration::ZERO;
    let buffer_bytes = options.buffer_bytes as f64;
    let producer = client.producer(options)?;
    let offered = capacity * TIMES;
    let (tell, told) = mpsc::channel();
    let (mut refused, mut taken, mut n) = (0, 0_u64, 0_u64);
    let mut memory = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let due = (begun.elapsed().as_secs_f64() * offered) as u64;
        while n < due {
            let record = bench.pool.record(n, record_bytes);
            let sent = if n.is_multiple_of(SAMPLE) {
                let (tell, at) = (tell.clone(), Instant::now());
                producer.send_with(record, move |result| _ = tell.send(result.map(|_| at.elapsed())))
            } else {
                producer.try_send(record)
            };
            match sent {
                Ok(()) => taken += 1,
                Err(error) if error.kind() == ErrorKind::Busy => refused += 1,
                Err(error) => return Err(error).context("an error that is not the documented one"),
            }
            n += 1;
        }
        if memory.len() < (begun.elapsed().as_secs_f64() * 10.0) as usize {
            memory.push((servers.memory(1)? as f64, Memory::now()?.anonymous as f64));
        }
        thread::sleep(TICK);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let ended = Instant::now();
    producer.flush(PATIENCE)?;
    let drained_millis = ended.elapsed().as_secs_f64() * 1e3;
    let calm_after = calm(bench, &producer, record_bytes)?;
    if !producer.close(PATIENCE).all_acknowledged() {
        bail!("records that were taken were not acknowledged");
    }
    drop(tell);
    let mut latencies = Latencies::new()?;
    for latency in told {
        latencies.record(latency.context("a record that was taken failed")?);
    }
    let most = |from: usize, to: usize, of: fn(&(f64, f64)) -> f64| {
        memory[from..to].iter().map(of).fold(0.0, f64::max)
    };
    let (quarter, count) = (memory.len() / 4, memory.len());
    let grown = |of| (most(quarter, 2 * quarter, of), most(count - quarter, count, of));
    let taken = taken as f64 / (seconds + drained_millis / 1e3);
    Ok(Overload {
        capacity,
        offered: n as f64 / seconds,
        taken,
        refused,
        latency: latencies.summary(),
        buffer_millis: buffer_bytes / (taken * record_bytes as f64).max(1.0) * 1e3,
        server_memory: grown(|m| m.0),
        client_memory: grown(|m| m.1),
        drained_millis,
        calm: (calm_before, calm_after),
    })
}

/// The median of a few appends one after the other, in microseconds.
fn calm(bench: &Bench, producer: &Producer, record_bytes: usize) -> Result<f64> {
    const APPENDS: u64 = 300;
    let mut times = Vec::new();
    for n in 0..APPENDS {
        let begun = Instant::now();
        producer.append(bench.pool.record(n, record_bytes))?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
