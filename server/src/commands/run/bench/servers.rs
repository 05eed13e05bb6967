//! Benchmark of servers: appends by many clients, then a fast read of the log.
//!
//! The appenders of a connection share a producer, so records that wait while a batch is in flight form the
//! next batch, as in a real program.

use super::{Case, Latencies, Load, Measured, Read, Window};
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::remote::{PATIENCE, connected, failure, unreachable};
use crate::connect::target::Servers;
use chiplog::{ErrorKind, Start};
use chiplog_net::client::{Client, ClientOptions, Producer, ProducerOptions, ReaderOptions};
use chiplog_net::wire::ids::to_hex;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub(super) fn measure(
    target: &Servers,
    load: &Load,
    with_records: bool,
    connect: &Connect,
    ui: &Ui,
) -> Result<Measured> {
    let servers = &target.addresses;
    let mut options = connect.options()?;
    options.timeout = PATIENCE;
    options.log.clone_from(&target.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("chiplog-bench")
        .build()
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))?;
    let asker = Asker::new(connect, ui)?;
    let client = runtime.block_on(connected(servers, options.clone(), &asker, ui));
    let client = client.map_err(|error| unreachable(error, servers, connect, ui))?;
    runtime.block_on(async {
        let info = client.info().await.map_err(failure)?;
        let log_id = to_hex(info.log_id.get());
        let records = info.last.next().get().saturating_sub(info.first.get());
        if records > 0 && !with_records {
            let what = format!(
                "log {log_id} has {}, and the benchmark appends to it: pass --yes to allow that",
                format::many(records, "record", "records")
            );
            return Err(Failure::usage(what));
        }
        if !ui.quiet {
            eprintln!("chiplog: appending to log {log_id}; the records stay in it");
        }
        let mut appends = Vec::new();
        for case in &load.cases {
            case.announce(ui);
            appends.push(load.row(*case, &append(servers, &options, *case, load).await.map_err(failure)?));
        }
        if !ui.quiet {
            eprintln!("reading");
        }
        let read = read(&client, load).await.map_err(failure)?;
        let seconds = load.time.as_secs_f64();
        Ok(Measured { log_id: Some(log_id), directory: None, seconds, appends, read })
    })
}

/// Appends by many appenders, and returns the latencies of what was acknowledged.
async fn append(
    servers: &[String],
    options: &ClientOptions,
    case: Case,
    load: &Load,
) -> chiplog::Result<Latencies> {
    let mut producers = Vec::new();
    for _ in 0..case.connections.unwrap_or(1) {
        let client = Client::connect(servers, options.clone()).await?;
        producers.push(client.producer(ProducerOptions::default()).await?);
    }
    let window = load.window();
    let mut appenders = JoinSet::new();
    for producer in producers.iter().cycle().take(case.appenders as usize) {
        let record = vec![b'.'; case.record_bytes as usize];
        appenders.spawn(appender(producer.clone(), record, window.clone(), load.none.clone()));
    }
    let mut all = load.none.clone();
    while let Some(ended) = appenders.join_next().await {
        let panicked = |_| chiplog::Error::new(ErrorKind::Io, "an appender panicked");
        all += ended.map_err(panicked)??;
    }
    for producer in producers {
        // Every record was acknowledged; this ends the session.
        let _ = producer.close(Duration::from_secs(5)).await;
    }
    Ok(all)
}

/// Appends one record after the other.
async fn appender(
    producer: Producer,
    record: Vec<u8>,
    window: Window,
    mut latencies: Latencies,
) -> chiplog::Result<Latencies> {
    loop {
        let begun = Instant::now();
        producer.append(&record).await?.await?;
        window.note(begun, &mut latencies);
        if window.is_over() {
            return Ok(latencies);
        }
    }
}

/// Reads from the first record to the end of the log or of the time.
async fn read(client: &Client, load: &Load) -> chiplog::Result<Read> {
    let mut options = ReaderOptions::default();
    options.follow = false;
    let mut reader = client.reader_with(Start::First, options);
    let (begun, mut read) = (Instant::now(), Read::default());
    while !load.has_read_enough(begun)
        && let Some(batch) = reader.next_batch().await?
    {
        read.count(batch.iter().map(|record| record.data.len()));
    }
    Ok(read.after(begun.elapsed()))
}
