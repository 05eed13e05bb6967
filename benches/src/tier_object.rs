//! The durability class `object` beside `majority`: three replicas of each, in turns, whose object store takes a set time for a PUT.
//!
//! Payload passes between replicas through the object store alone, and each append waits for a PUT. So as many appends are in flight as it
//! takes for the rate, and few for the time of a confirmation.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::cases::{Bench, options};
use crate::engine::Options;
use crate::measure::{Latencies, interleave};
use crate::replicas::Replicas;
use crate::tier::{STORE_TIMEOUT, directory};
use crate::workload::{self, Outcome, Window};
use anyhow::{Result, ensure};
use bytes::Bytes;
use chiplog::LogOption;
use chiplog::vault::{ObjectInfo, Vault};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The size of an append: a batch, as clients send them. A reference takes 72 bytes, however large it is.
pub(crate) const APPEND_BYTES: usize = 16 << 10;
/// How long the leader gathers appends.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);
/// Threads, and appends of each in flight, for the rate.
pub(crate) const THREADS: usize = 8;
pub(crate) const DEPTH: usize = 128;
/// The confirmations, one after the other, for which there is time at least.
const CONFIRMATIONS_MIN: u32 = 30;

/// One class, by round.
#[derive(Debug)]
pub(crate) struct Class {
    /// Many appends in flight.
    pub(crate) rates: Vec<Outcome>,
    /// Bytes that the replicas sent each other for each byte appended then.
    pub(crate) sent: Vec<f64>,
    /// An append in flight for each thread.
    pub(crate) confirmed: Vec<Outcome>,
    /// The PUTs of payload slices meanwhile.
    pub(crate) puts: Vec<Latencies>,
}

/// An object store whose PUTs take at least a set time, and which says how long those of payload slices took.
#[derive(Debug)]
struct Slow {
    below: Arc<dyn Vault>,
    put: Duration,
    puts: Mutex<Latencies>,
}

impl Slow {
    fn open(bench: &Bench, put: Duration) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { below: directory(bench)?, put, puts: Mutex::new(Latencies::new()?) }))
    }

    /// The PUTs of payload slices since the last call.
    fn take_puts(&self) -> Result<Latencies> {
        let mut puts = self.puts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *puts, Latencies::new()?))
    }
}

impl Vault for Slow {
    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        let begun = Instant::now();
        self.below.put(name, pieces)?;
        thread::sleep(self.put.saturating_sub(begun.elapsed()));
        if name.contains("/p/") {
            self.puts.lock().unwrap_or_else(PoisonError::into_inner).record(begun.elapsed());
        }
        Ok(())
    }

    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        let begun = Instant::now();
        let created = self.below.create(name, bytes)?;
        if name.contains("/o/") {
            thread::sleep(self.put.saturating_sub(begun.elapsed()));
        }
        Ok(created)
    }

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        self.below.get(name, range)
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        self.below.size(name)
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        self.below.list(prefix)
    }

    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.below.delete(name)
    }
}

/// One round of a class.
#[derive(Debug)]
struct Round {
    rate: Outcome,
    sent: f64,
    confirmed: Outcome,
    puts: Latencies,
}

/// One round of the class `object`, or of `majority`.
fn round(bench: &Bench, put: Duration, refers: bool) -> Result<Round> {
    let store = Slow::open(bench, put)?;
    let replicas = start(bench, &store, refers)?;
    let leader = replicas.leader()?;
    let (first, before, window) = (leader.last_index(), replicas.sent_bytes(), window(bench, put));
    let (rate, _) = workload::pipelined(leader, &bench.pool, THREADS, DEPTH, APPEND_BYTES, window)?;
    let appended = (leader.last_index().get() - first.get()) as f64 * APPEND_BYTES as f64;
    let sent = (replicas.sent_bytes() - before) as f64 / appended;
    store.take_puts()?;
    let confirmed = workload::blocking(leader, &bench.pool, THREADS, APPEND_BYTES, window)?;
    let puts = store.take_puts()?;
    ensure!((puts.count() > 0) == refers, "{} payload slices were stored", puts.count());
    Ok(Round { rate, sent, confirmed, puts })
}

/// The measured time: many confirmations one after the other.
fn window(bench: &Bench, put: Duration) -> Window {
    let least = (put + INTERVAL) * CONFIRMATIONS_MIN;
    let Window { warm_up, measured } = bench.window;
    Window { warm_up: warm_up.max(least / 3), measured: measured.max(least) }
}

/// Three replicas of this class.
fn start(bench: &Bench, store: &Arc<Slow>, refers: bool) -> Result<Replicas> {
    let options: Options = options().vault(store.clone() as Arc<dyn Vault>);
    let options = options.slice_interval(refers.then_some(INTERVAL)).payload_slices(refers);
    let replicas = Replicas::start(bench.dir(), 3, &options)?;
    let is_on = || {
        let mut logs = replicas.logs().iter();
        logs.all(|log| log.log_options().get(LogOption::PayloadSlices) == refers.then_some(1))
    };
    let begun = Instant::now();
    while !is_on() {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the class of durability is not switched on");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(replicas)
}

/// Appends at the leader of three replicas of the class `object`, and of `majority`.
pub(crate) fn appends(bench: &Bench, put: Duration) -> Result<(Class, Class)> {
    let (with, without) = interleave(bench.rounds, || round(bench, put, true), || round(bench, put, false))?;
    Ok((class(with), class(without)))
}

fn class(rounds: Vec<Round>) -> Class {
    let mut class = Class { rates: Vec::new(), sent: Vec::new(), confirmed: Vec::new(), puts: Vec::new() };
    for Round { rate, sent, confirmed, puts } in rounds {
        class.rates.push(rate);
        class.sent.push(sent);
        class.confirmed.push(confirmed);
        class.puts.push(puts);
    }
    class
}
