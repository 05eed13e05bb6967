//! Benchmark of servers: durable appends by many clients, then a fast read of the log.
//!
//! Each appender is a closed loop: it sends a record, waits for the acknowledgement, and sends the next one.
//! The appenders of a connection share a producer, so records that wait while a batch is in flight form the
//! next batch, as in a real program.

use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::remote::{PATIENCE, failure};
use chiplog::{ErrorKind, Start};
use chiplog_bench::Latencies;
use chiplog_net::client::{Client, ClientOptions, Producer, ProducerOptions, ReaderOptions};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The load on the servers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for servers")]
pub(super) struct Load {
    /// Number of concurrent appenders. Default 1,16,128; with --quick 1,16.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    appenders: Vec<u32>,

    /// Number of connections that the appenders share. Rows with more connections than appenders are skipped.
    /// Default 1,4; with --quick 1.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: Vec<u32>,

    /// Size of the records. Default 1KiB.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = format::parse_bytes)]
    record_bytes: Vec<u64>,

    /// Append even to a log that has records.
    #[arg(long)]
    yes: bool,
}

impl Load {
    /// The name of an option that was given, if any.
    pub(super) fn given(&self) -> Option<&'static str> {
        [
            (!self.appenders.is_empty(), "--appenders"),
            (!self.connections.is_empty(), "--connections"),
            (!self.record_bytes.is_empty(), "--record-bytes"),
            (self.yes, "--yes"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// All combinations of the options.
    fn cases(&self, quick: bool) -> Vec<Case> {
        fn or<T: Copy>(given: &[T], default: &[T]) -> Vec<T> {
            if given.is_empty() { default.to_vec() } else { given.to_vec() }
        }
        let appenders = or(&self.appenders, if quick { &[1, 16] } else { &[1, 16, 128] });
        let connections = or(&self.connections, if quick { &[1] } else { &[1, 4] });
        let mut cases = Vec::new();
        for record_bytes in or(&self.record_bytes, &[1024]) {
            for &connections in &connections {
                for &appenders in appenders.iter().filter(|a| **a >= connections) {
                    cases.push(Case { appenders, connections, record_bytes });
                }
            }
        }
        cases
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    appenders: u32,
    connections: u32,
    record_bytes: u64,
}

#[derive(Serialize)]
struct Row {
    appenders: u32,
    connections: u32,
    record_bytes: u64,
    records: u64,
    records_per_second: f64,
    bytes_per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    p999_micros: f64,
    max_micros: f64,
}

#[derive(Serialize)]
struct Read {
    records: u64,
    bytes: u64,
    seconds: f64,
    records_per_second: f64,
    bytes_per_second: f64,
}

#[derive(Serialize)]
struct Measured {
    log_id: String,
    seconds: f64,
    appends: Vec<Row>,
    read: Read,
}

pub(super) fn run(
    servers: &[String],
    load: &Load,
    seconds: f64,
    quick: bool,
    connect: &Connect,
    ui: &Ui,
) -> Result<()> {
    let mut options = connect.options()?;
    options.timeout = PATIENCE;
    let cases = load.cases(quick);
    if cases.is_empty() {
        return Err(Failure::usage("every row would have more connections than appenders"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("chiplog-bench")
        .build()
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))?;
    runtime.block_on(async {
        let client = Client::connect(servers, options.clone()).await.map_err(failure)?;
        let info = client.info().await.map_err(failure)?;
        let log_id = chiplog_net::wire::ids::to_hex(info.log_id.get());
        let records = info.last.next().get().saturating_sub(info.first.get());
        if records > 0 && !load.yes {
            let what = format!(
                "log {log_id} has {}, and the benchmark appends to it: pass --yes to allow that",
                format::many(records, "record", "records")
            );
            return Err(Failure::usage(what));
        }
        if !ui.quiet {
            eprintln!("chiplog: appending to log {log_id}; the records stay in it");
        }
        let measured = Duration::from_secs_f64(seconds);
        let mut appends = Vec::new();
        for case in cases {
            if !ui.quiet {
                let size = format::bytes(case.record_bytes);
                eprintln!("{} appenders, {} connections, {size}", case.appenders, case.connections);
            }
            appends.push(append(servers, &options, case, measured).await.map_err(failure)?);
        }
        if !ui.quiet {
            eprintln!("reading");
        }
        let read = read(&client, measured).await.map_err(failure)?;
        let shown = Measured { log_id, seconds, appends, read };
        // The result is printed even with --quiet.
        Ui { quiet: false, ..*ui }.result(&shown, Measured::words)
    })
}

/// Appends for `time` after a warm-up of a third of it, and counts the acknowledged records.
async fn append(
    servers: &[String],
    options: &ClientOptions,
    case: Case,
    measured: Duration,
) -> chiplog::Result<Row> {
    let mut producers = Vec::new();
    for _ in 0..case.connections {
        let client = Client::connect(servers, options.clone()).await?;
        producers.push(client.producer(ProducerOptions::default()).await?);
    }
    let from = Instant::now() + measured / 3;
    let until = from + measured;
    let mut appenders = JoinSet::new();
    for n in 0..case.appenders {
        let producer = producers[(n % case.connections) as usize].clone();
        let record = vec![b'.'; case.record_bytes as usize];
        appenders.spawn(async move { appender(&producer, &record, from, until).await });
    }
    let none = |e: anyhow::Error| chiplog::Error::new(ErrorKind::Io, e.to_string());
    let mut latencies = Latencies::new().map_err(none)?;
    while let Some(ended) = appenders.join_next().await {
        let panicked = |_| chiplog::Error::new(ErrorKind::Io, "an appender panicked");
        latencies.add(&ended.map_err(panicked)??).map_err(none)?;
    }
    for producer in producers {
        // Every record was acknowledged; this ends the session.
        let _ = producer.close(Duration::from_secs(5)).await;
    }
    let found = latencies.summary();
    Ok(Row {
        appenders: case.appenders,
        connections: case.connections,
        record_bytes: case.record_bytes,
        records: found.count,
        records_per_second: format::rate(found.count, measured),
        bytes_per_second: format::rate(found.count * case.record_bytes, measured),
        p50_micros: found.p50,
        p99_micros: found.p99,
        p999_micros: found.p999,
        max_micros: found.max,
    })
}

/// Appends one record after the other.
async fn appender(
    producer: &Producer,
    record: &[u8],
    from: Instant,
    until: Instant,
) -> chiplog::Result<Latencies> {
    let mut latencies = Latencies::new().map_err(|e| chiplog::Error::new(ErrorKind::Io, e.to_string()))?;
    loop {
        let begun = Instant::now();
        if begun >= until {
            return Ok(latencies);
        }
        producer.append(record).await?.await?;
        let now = Instant::now();
        if now >= from && now < until {
            latencies.record(now - begun);
        }
    }
}

/// Reads from the first record to the end of the log or of `time`.
async fn read(client: &Client, time: Duration) -> chiplog::Result<Read> {
    let mut options = ReaderOptions::default();
    options.follow = false;
    let mut reader = client.reader_with(Start::First, options);
    let (begun, mut records, mut bytes) = (Instant::now(), 0, 0);
    while begun.elapsed() < time {
        let Some(batch) = reader.next_batch().await? else { break };
        records += u64::from(batch.count());
        bytes += batch.iter().map(|r| r.data.len() as u64).sum::<u64>();
    }
    let took = begun.elapsed();
    let (per_second, bytes_per_second) = (format::rate(records, took), format::rate(bytes, took));
    Ok(Read { records, bytes, seconds: took.as_secs_f64(), records_per_second: per_second, bytes_per_second })
}

impl Measured {
    fn words(&self) -> String {
        let micros = |m: f64| format::duration(Duration::from_secs_f64(m / 1e6));
        let head =
            ["APPENDERS", "CONNECTIONS", "RECORD", "APPENDS/S", "BYTES/S", "P50", "P99", "P99.9", "MAX"];
        let mut rows = vec![head.map(str::to_owned)];
        for r in &self.appends {
            rows.push([
                r.appenders.to_string(),
                r.connections.to_string(),
                format::bytes(r.record_bytes),
                format::per_second(r.records_per_second),
                format::bytes(r.bytes_per_second as u64),
                micros(r.p50_micros),
                micros(r.p99_micros),
                micros(r.p999_micros),
                micros(r.max_micros),
            ]);
        }
        let mut out = format::table(&rows);
        _ = writeln!(
            out,
            "read {} in {}: {} records/s, {}/s",
            format::many(self.read.records, "record", "records"),
            format::duration(Duration::from_secs_f64(self.read.seconds)),
            format::per_second(self.read.records_per_second),
            format::bytes(self.read.bytes_per_second as u64)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_all_useful_combinations() {
        let load =
            Load { appenders: vec![1, 8], connections: vec![1, 2], record_bytes: vec![10], yes: false };
        let case = |appenders, connections| Case { appenders, connections, record_bytes: 10 };
        assert_eq!(load.cases(false), [case(1, 1), case(8, 1), case(8, 2)]);
        assert_eq!(load.given(), Some("--appenders"));
        let none = Load { appenders: vec![], connections: vec![], record_bytes: vec![], yes: false };
        assert!(none.given().is_none() && none.cases(true).len() == 2 && none.cases(false).len() == 5);
    }
}
