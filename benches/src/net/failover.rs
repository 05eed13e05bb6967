//! Fail-over: the leader of three is killed under load. Measures how long nothing is acknowledged, and checks that
//! every acknowledged record is in the log, once.
//!
//! Must not know: which gap would be good, how results are shown.

use super::load::log_name;
use super::named;
use super::servers::Servers;
use crate::cases::Bench;
use anyhow::{Context, Result, ensure};
use chiplog::{Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReaderOptions};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Appenders, each waiting for its acknowledgement.
const APPENDERS: u64 = 16;
/// Time under load before the leader is killed, and after appends continue.
const CALM: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of killing one leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failover {
    /// The longest time without an acknowledgement, in milliseconds.
    pub(crate) gap_millis: f64,
    /// From the kill to the next acknowledgement.
    pub(crate) after_kill_millis: f64,
    /// Records that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Acknowledged records that are not at their index in the log.
    pub(crate) lost: u64,
    /// Records that are in the log more than once.
    pub(crate) doubled: u64,
}

type Acknowledged = Vec<(Instant, Index, u64)>;

/// The default.
const ELECTION_TIMEOUT: &str = "cluster.election_timeout_millis=1000";

/// Starts three servers, and kills the leader by SIGKILL. `logs`: named logs in one group, of which one
/// is appended to; 0: the default log.
pub(crate) fn failover(bench: &Bench, logs: usize) -> Result<Failover> {
    let settings: &[&str] = if logs > 0 { &[ELECTION_TIMEOUT, "groups=1"] } else { &[ELECTION_TIMEOUT] };
    let mut servers = Servers::start(&bench.own, &bench.dir, 3, settings)?;
    let addresses = servers.addresses();
    let stop = Arc::new(AtomicBool::new(false));
    let mut options = ClientOptions::default();
    let killed = match logs {
        0 => servers.leader()?,
        _ => {
            named::create(&addresses, logs)?;
            options.log = log_name(0);
            servers.group_leader()?
        }
    };
    let load = {
        let stop = stop.clone();
        let (addresses, options) = (addresses.clone(), options.clone());
        std::thread::spawn(move || super::block_on(appends(addresses, options, stop)))
    };
    std::thread::sleep(CALM);
    let at = Instant::now();
    servers.kill(killed);
    let again = servers.leader();
    std::thread::sleep(2 * CALM);
    stop.store(true, Ordering::Relaxed);
    let acknowledged = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
    let survivor = servers.address(again?).to_owned();

    let mut times: Vec<Instant> = acknowledged.iter().map(|(at, ..)| *at).collect();
    times.sort();
    let gap = times.windows(2).map(|two| two[1] - two[0]).max().context("nothing was acknowledged")?;
    let after = times.iter().find(|time| **time > at + Duration::from_millis(50));
    let after = after.context("nothing was acknowledged after the kill")?;
    let (lost, doubled) = super::block_on(compare(&survivor, options, &acknowledged))?;
    Ok(Failover {
        gap_millis: gap.as_secs_f64() * 1e3,
        after_kill_millis: (*after - at).as_secs_f64() * 1e3,
        acknowledged: acknowledged.len() as u64,
        lost,
        doubled,
    })
}

/// Appends until it is stopped; each record is its own number.
async fn appends(
    addresses: Vec<String>,
    options: ClientOptions,
    stop: Arc<AtomicBool>,
) -> Result<Acknowledged> {
    let client = Client::connect(addresses, options).await?;
    let producer = client.producer(ProducerOptions::default()).await?;
    let mut tasks = JoinSet::new();
    for appender in 0..APPENDERS {
        let (producer, stop) = (producer.clone(), stop.clone());
        tasks.spawn(async move {
            let (mut seen, mut number) = (Acknowledged::new(), appender << 48);
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let index = producer.append(&number.to_be_bytes()).await?.await?;
                seen.push((Instant::now(), index, number));
            }
            Ok::<_, anyhow::Error>(seen)
        });
    }
    let mut all = Acknowledged::new();
    while let Some(seen) = tasks.join_next().await {
        all.extend(seen??);
    }
    ensure!(producer.close(PATIENCE).await.all_acknowledged(), "records were not acknowledged");
    Ok(all)
}

/// Reads the whole log back: returns how many acknowledged records are not at their index, and how many are there
/// twice.
async fn compare(survivor: &str, options: ClientOptions, acknowledged: &Acknowledged) -> Result<(u64, u64)> {
    let client = Client::connect([survivor], options).await?;
    let mut options = ReaderOptions::default();
    options.follow = false;
    options.min_index = client.info().await?.last;
    let mut reader = client.reader_with(Start::First, options);
    let mut places: HashMap<u64, Vec<Index>> = HashMap::new();
    while let Some(record) = reader.next_record().await? {
        let number: [u8; 8] = record.data[..].try_into().context("a record that nobody appended")?;
        places.entry(u64::from_be_bytes(number)).or_default().push(record.index);
    }
    let is_there = |index: &Index, number: &u64| places.get(number).is_some_and(|at| at.contains(index));
    let lost = acknowledged.iter().filter(|(_, index, number)| !is_there(index, number)).count();
    let doubled = places.values().filter(|at| at.len() > 1).count();
    Ok((lost as u64, doubled as u64))
}
