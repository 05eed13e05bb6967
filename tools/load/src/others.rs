//! Others: well-behaved clients. Each makes its calls on a schedule, whether or not the earlier ones have been
//! answered. The time of a call counts from when it was due. So a server that pauses for a second shows in the time of
//! every call that was due in that second, not of one.
//!
//! Must not know: what else goes on.

use anyhow::Result;
use chiplog::{Error, Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions, Secret};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

const APPENDERS: usize = 4;
const READERS: usize = 2;
const RECORD_BYTES: usize = 256;
/// The interval between two calls of a client.
const APPEND_EVERY: Duration = Duration::from_millis(20);
const READ_EVERY: Duration = Duration::from_millis(50);
const CONNECT_EVERY: Duration = Duration::from_millis(100);

/// The kind of call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// A record is appended and acknowledged, on a persistent connection.
    Append,
    /// One record is read, on a persistent connection.
    Read,
    /// A new client connects and requests the log's positions.
    Connect,
}

pub(crate) const CALLS: [Call; 3] = [Call::Append, Call::Read, Call::Connect];

/// The times of all calls of a kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) call: Call,
    pub(crate) count: usize,
    pub(crate) failed: usize,
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    pub(crate) max_millis: f64,
}

struct Done {
    call: Call,
    took: Duration,
    failed: bool,
}

/// Runs the clients for this time. A call that is not answered at the end counts with the time that it has taken by
/// then.
pub(crate) fn run(address: &str, token: &str, record: Index, time: Duration) -> Result<Vec<Times>> {
    let mut options = ClientOptions::default();
    options.token = Some(Secret::from(token));
    let address = address.to_owned();
    crate::servers::block_on(async move {
        let end = Instant::now() + time;
        let mut clients = JoinSet::new();
        for n in 0..APPENDERS {
            clients.spawn(append(address.clone(), options.clone(), n as u8, end));
        }
        for _ in 0..READERS {
            clients.spawn(read(address.clone(), options.clone(), record, end));
        }
        clients.spawn(connect(address, options, end));
        let mut all = Vec::new();
        while let Some(done) = clients.join_next().await {
            all.extend(done?);
        }
        Ok(CALLS.into_iter().map(|call| times(call, &all)).collect())
    })
}

fn times(call: Call, all: &[Done]) -> Times {
    let of: Vec<&Done> = all.iter().filter(|done| done.call == call).collect();
    let mut took: Vec<Duration> = of.iter().map(|done| done.took).collect();
    took.sort_unstable();
    let at = |part: f64| {
        let place = ((took.len() as f64 * part).ceil() as usize).clamp(1, took.len().max(1)) - 1;
        took.get(place).map_or(0.0, |took| took.as_secs_f64() * 1000.0)
    };
    let failed = of.iter().filter(|done| done.failed).count();
    Times { call, count: of.len(), failed, p50_millis: at(0.5), p99_millis: at(0.99), max_millis: at(1.0) }
}

/// Makes a call each `every` until the end, and returns how long each took from when it was due.
async fn on_schedule<F>(call: Call, every: Duration, end: Instant, make: impl Fn() -> F) -> Vec<Done>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut calls = JoinSet::new();
    let mut due = Instant::now();
    while due < end {
        sleep_until(due).await;
        let work = make();
        calls.spawn(async move {
            let outcome = timeout_at(end, work).await;
            Done { call, took: due.elapsed(), failed: matches!(outcome, Ok(Err(_))) }
        });
        due += every;
    }
    let mut done = Vec::new();
    while let Some(call) = calls.join_next().await {
        done.extend(call);
    }
    done
}

async fn client(address: &str, options: &ClientOptions, end: Instant) -> Option<Client> {
    loop {
        match timeout_at(end, Client::connect([address], options.clone())).await {
            Ok(Ok(client)) => return Some(client),
            Ok(Err(_)) => sleep(Duration::from_millis(50)).await,
            Err(_) => return None,
        }
    }
}

async fn append(address: String, options: ClientOptions, n: u8, end: Instant) -> Vec<Done> {
    let Some(client) = client(&address, &options, end).await else { return Vec::new() };
    let mut producing = ProducerOptions::default();
    producing.exactly_once = false; // to measure the append, not the session
    let Ok(producer) = client.producer(producing).await else { return Vec::new() };
    let producer = Arc::new(producer);
    on_schedule(Call::Append, APPEND_EVERY, end, || {
        let producer = producer.clone();
        async move { producer.append(&[n; RECORD_BYTES]).await?.await.map(drop) }
    })
    .await
}

async fn read(address: String, options: ClientOptions, record: Index, end: Instant) -> Vec<Done> {
    let Some(client) = client(&address, &options, end).await else { return Vec::new() };
    on_schedule(Call::Read, READ_EVERY, end, || {
        let mut options = ReaderOptions::default();
        (options.follow, options.from) = (false, ReadFrom::Any);
        let mut reader = client.reader_with(Start::Index(record), options);
        async move { reader.next_record().await.map(drop) }
    })
    .await
}

async fn connect(address: String, options: ClientOptions, end: Instant) -> Vec<Done> {
    on_schedule(Call::Connect, CONNECT_EVERY, end, || {
        let (address, options) = (address.clone(), options.clone());
        async move { Client::connect([&*address], options).await?.info().await.map(drop) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one call after the other, a stall of two seconds would be one slow call among thousands.
    #[tokio::test(start_paused = true)]
    async fn stall_shows_in_every_call_that_was_due() {
        let begun = Instant::now();
        let stall = begun + Duration::from_secs(4)..begun + Duration::from_secs(6);
        let done =
            on_schedule(Call::Append, Duration::from_millis(20), begun + Duration::from_secs(10), || {
                let stall = stall.clone();
                async move {
                    if stall.contains(&Instant::now()) {
                        sleep_until(stall.end).await;
                    }
                    Ok(())
                }
            })
            .await;
        let times = times(Call::Append, &done);
        assert_eq!((times.count, times.failed), (500, 0));
        assert!(times.p50_millis < 100.0 && times.p99_millis > 1800.0, "{times:?}");
    }

    #[test]
    fn percentiles_are_of_the_calls_of_a_kind() {
        let done = |call, millis| Done { call, took: Duration::from_millis(millis), failed: millis == 7 };
        let mut all: Vec<Done> = (1..=200).map(|n| done(Call::Append, n)).collect();
        all.push(done(Call::Read, 9000));
        let times = times(Call::Append, &all);
        assert_eq!((times.count, times.failed), (200, 1));
        assert_eq!((times.p50_millis, times.p99_millis, times.max_millis), (100.0, 198.0, 200.0));
        assert_eq!(super::times(Call::Connect, &all).p99_millis, 0.0);
    }
}
