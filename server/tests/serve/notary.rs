//! Notary: an outside witness. It appends through the client and records every acknowledgement outside the
//! servers. At the end it reads every replica completely and compares.
//!
//! Records are numbered, and a record's bytes follow from its number, so each can be verified.
//!
//! These rules have to hold on every replica, whatever happened:
//! - Each acknowledged record is at its acknowledged index, bit by bit.
//! - No record is there twice, and none is out of order.
//! - No record is there that was refused as surely not in the log.
//! - All replicas hold the same records, to the same end.

use crate::harness::{PATIENCE, Server, entries, status, wait};
use chiplog::{Appended, ErrorKind};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ClientOptions, ProducerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The maximum size of a record, and the rate of the appends.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) record_bytes_max: u64,
    pub(crate) pause: Duration,
}

impl Load {
    /// Small records, some hundreds a second.
    pub(crate) const LIGHT: Self = Self { record_bytes_max: 300, pause: Duration::from_millis(2) };
}

/// Record `number`: its number, then bytes that follow from it.
fn record(number: u64, bytes_max: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut record = number.to_le_bytes().to_vec();
    record.resize(8 + random.usize(..bytes_max as usize), 0);
    random.fill(&mut record[8..]);
    record
}

/// A record that another client may append beside the notary: number 0.
pub(crate) fn by_strangers(n: u64) -> Vec<u8> {
    [[0; 8], n.to_le_bytes()].concat()
}

/// Records by index.
type Log = BTreeMap<u64, Vec<u8>>;

#[derive(Default)]
struct Notes {
    /// Index by number.
    acked: BTreeMap<u64, u64>,
    /// Surely not in the log.
    refused: BTreeMap<u64, ErrorKind>,
    /// Acknowledged a second time.
    doubled: Vec<u64>,
    /// The time of the newest acknowledgement.
    newest: Option<Instant>,
    /// The longest time between two acknowledgements.
    gap: Duration,
}

impl Notes {
    fn settled(&mut self, number: u64, outcome: chiplog::Result<chiplog::Index>) {
        match outcome {
            Ok(index) => {
                let now = Instant::now();
                let gap = self.newest.replace(now).map_or(Duration::ZERO, |newest| now - newest);
                self.gap = self.gap.max(gap);
                if self.acked.insert(number, index.get()).is_some() {
                    self.doubled.push(number);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy) => {
                self.refused.insert(number, error.kind());
            }
            // It may be in the log.
            Err(_) => {}
        }
    }
}

/// A running producer.
pub(crate) struct Notary {
    load: Load,
    stop: Arc<AtomicBool>,
    notes: Arc<Mutex<Notes>>,
    thread: Option<JoinHandle<u64>>,
}

impl Notary {
    /// Appends records 1, 2, 3 … to these servers until it is stopped.
    pub(crate) fn start(servers: &[&Server], load: Load) -> Self {
        let (stop, notes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Notes::default())));
        let servers: Vec<String> = servers.iter().map(|s| s.client.clone()).collect();
        let thread = std::thread::spawn({
            let (stop, notes) = (stop.clone(), notes.clone());
            move || append(servers, load, &stop, &notes)
        });
        Self { load, stop, notes, thread: Some(thread) }
    }

    /// The number of records acknowledged so far.
    pub(crate) fn acked(&self) -> usize {
        self.notes.lock().unwrap().acked.len()
    }

    /// The highest index acknowledged so far: a later query has to return at least this.
    pub(crate) fn end(&self) -> u64 {
        self.notes.lock().unwrap().acked.last_key_value().map_or(0, |(_, index)| *index)
    }

    /// The error kinds of the records refused so far.
    pub(crate) fn refused(&self) -> Vec<ErrorKind> {
        self.notes.lock().unwrap().refused.values().copied().collect()
    }

    /// Waits until `more` further records are acknowledged.
    #[track_caller]
    pub(crate) fn goes_on(&self, after: &str, more: usize) {
        let now = self.acked();
        wait(&format!("appends continue after {after}"), || (self.acked() >= now + more).then_some(()));
    }

    /// The longest time without an acknowledgement since the last call.
    pub(crate) fn gap(&self) -> Duration {
        std::mem::take(&mut self.notes.lock().unwrap().gap)
    }

    /// Ends the appends, waits until all replicas have the leader's last record, and compares. Returns the
    /// records of other clients, by index.
    #[track_caller]
    pub(crate) fn check(mut self, servers: &[&Server]) -> Log {
        self.stop.store(true, Ordering::Relaxed);
        let given = self.thread.take().unwrap().join().unwrap();
        let notes = self.notes.lock().unwrap();
        let end = *notes.acked.last_key_value().expect("something was acknowledged").1;
        let last = wait("all replicas have the same end", || {
            let shown = status(servers);
            let lasts: BTreeSet<_> =
                shown["replicas"].as_array()?.iter().map(|r| r["last"].as_u64()).collect();
            let last = (*lasts.first()?)?;
            (lasts.len() == 1 && last >= end && shown["leader"].is_u64()).then_some(last)
        });
        let all: Vec<_> = servers.iter().map(|server| entries(server, last)).collect();
        assert!(all.windows(2).all(|two| two[0] == two[1]), "replicas differ");
        let theirs = compare(&notes, &all[0], given, self.load.record_bytes_max);
        let theirs = theirs.unwrap_or_else(|wrong| panic!("A PROMISE IS BROKEN: {wrong}"));
        println!(
            "{given} given, {} acknowledged, {} refused; {last} records on each of {} replicas",
            notes.acked.len(),
            notes.refused.len(),
            servers.len()
        );
        theirs
    }
}

/// Compares a replica's log with the acknowledgements. Returns the records of other clients by index, or what
/// is wrong.
fn compare(notes: &Notes, log: &Log, given: u64, bytes_max: u64) -> Result<Log, String> {
    let fail = |what: String| Err(what);
    if !notes.doubled.is_empty() {
        return fail(format!("acknowledged twice: {:?}", notes.doubled));
    }
    let (mut newest, mut theirs) = (0, Log::new());
    for (n, (index, bytes)) in log.iter().enumerate() {
        if *index != n as u64 + 1 {
            return fail(format!("the indexes have a hole before {index}"));
        }
        let number = number_of(bytes);
        if number == 0 {
            if theirs.values().any(|other| other == bytes) {
                return fail(format!("{bytes:?} is there twice"));
            }
            theirs.insert(*index, bytes.clone());
            continue;
        }
        if number <= newest || number > given {
            return fail(format!("{number} is at {index}, after {newest}"));
        }
        if *bytes != record(number, bytes_max) {
            return fail(format!("{number}, at {index}, differs from what was sent"));
        }
        if let Some(kind) = notes.refused.get(&number) {
            return fail(format!("{number} was refused as {kind:?} but is at {index}"));
        }
        newest = number;
    }
    for (number, index) in &notes.acked {
        if log.get(index).map(|bytes| number_of(bytes)) != Some(*number) {
            return fail(format!("{number} was acknowledged at {index} but is missing"));
        }
    }
    Ok(theirs)
}

fn number_of(record: &[u8]) -> u64 {
    record.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

fn append(servers: Vec<String>, load: Load, stop: &AtomicBool, notes: &Arc<Mutex<Notes>>) -> u64 {
    let mut options = ClientOptions::default();
    options.timeout = PATIENCE;
    // The client leaves a silent leader because other servers report that it does not lead, not because of a
    // timeout.
    options.keep_alive = PATIENCE;
    let mut producing = ProducerOptions::default();
    producing.request_timeout = PATIENCE;
    let client = Client::connect(servers, options).unwrap();
    let producer = client.producer(producing).unwrap();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let notes = notes.clone();
        let settled = move |outcome: chiplog::Result<Appended>| {
            notes.lock().unwrap().settled(number, outcome.map(|appended| appended.first));
        };
        producer.send_with(&record(number, load.record_bytes_max), settled).unwrap();
        std::thread::sleep(load.pause);
    }
    let closed = producer.close(PATIENCE);
    assert!(closed.left.is_empty(), "{closed:?}");
    number
}

/// The notary itself has to be tested.
#[test]
fn notary_finds_errors() {
    let log: Log = (1..=5).map(|n| (n, record(n, 50))).collect();
    let acked = || Notes { acked: (1..=4).map(|n| (n, n)).collect(), ..Notes::default() };
    assert!(compare(&acked(), &log, 5, 50).unwrap().is_empty());
    let wrong = |change: &dyn Fn(&mut Log)| {
        let mut log = log.clone();
        change(&mut log);
        compare(&acked(), &log, 5, 50).unwrap_err()
    };
    assert!(wrong(&|log| _ = (log.remove(&5), log.remove(&4))).contains("is missing"));
    assert!(wrong(&|log| _ = log.remove(&3)).contains("a hole"));
    assert!(wrong(&|log| _ = log.insert(5, record(4, 50))).contains("is at 5, after 4"));
    assert!(wrong(&|log| _ = log.insert(6, record(6, 50))).contains("is at 6"));
    assert!(wrong(&|log| log.get_mut(&2).unwrap().push(0)).contains("differs from what was sent"));
    assert!(
        wrong(&|log| _ = (log.insert(6, by_strangers(1)), log.insert(7, by_strangers(1)))).contains("twice")
    );
    let mut notes = acked();
    notes.refused.insert(5, ErrorKind::Full);
    assert!(compare(&notes, &log, 5, 50).unwrap_err().contains("was refused"));
    assert_eq!(
        compare(&acked(), &Log::from([(1, by_strangers(7))]), 5, 50)
            .unwrap_err()
            .matches("is missing")
            .count(),
        1
    );
}
