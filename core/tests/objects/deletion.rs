//! When objects of discarded records go, by a clock that the test sets: the delay is counted from the discard, whatever happens since.

use crate::support::{SEGMENT, append_to, eventually, options, read_all, replica, two_replicas};
use chiplog::cluster::Bootstrap;
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Clock, Index, Log, Options, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BEGUN: u64 = 1_700_000_000_000;
/// Short, because nothing is deleted within a sixteenth of the delay after a start.
const MINUTE: u64 = 160;
const DELAY: u64 = 100 * MINUTE;

/// A clock that the test moves.
#[derive(Debug)]
struct Hand(AtomicU64);

impl Hand {
    /// Moves it to this many minutes after the begin.
    fn set(&self, minutes: u64) {
        self.0.store(BEGUN + minutes * MINUTE, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// A log, or its replicas, that the test closes and opens.
struct Stage {
    vault: Arc<MemoryVault>,
    hand: Arc<Hand>,
    segment_bytes: u32,
    open: Box<dyn Fn(Options) -> Vec<Log>>,
    logs: Vec<Log>,
}

impl Stage {
    fn new(open: impl Fn(Options) -> Vec<Log> + 'static, vault: Arc<MemoryVault>) -> Self {
        let hand = Arc::new(Hand(AtomicU64::new(BEGUN)));
        Self { vault, hand, segment_bytes: SEGMENT, open: Box::new(open), logs: Vec::new() }
    }

    fn options(&self) -> Options {
        let delay = Duration::from_millis(DELAY);
        let mut options = options(&self.vault).clock(self.hand.clone() as Arc<dyn Clock>);
        (options.segment_bytes, options.object_delete_delay) = (self.segment_bytes, delay);
        options
    }

    /// Closes the log, and opens it this many minutes after the begin.
    fn open_at(&mut self, minutes: u64) {
        self.logs.clear();
        self.hand.set(minutes);
        self.logs = (self.open)(self.options());
    }

    /// Appends records and waits until they are stored: a leader deletes what it can before it stores.
    fn store(&self, count: u64) {
        append_to(&self.logs.iter().collect::<Vec<_>>(), count);
        let last = self.logs.iter().map(Log::last_index).max().unwrap();
        eventually("a replica leads", || self.logs.iter().any(|log| log.cut_objects(last).is_ok()));
        let is_stored = || self.logs.iter().any(|log| log.metrics().stored_index >= last.get());
        eventually("objects are stored", is_stored);
    }

    fn discard(&self, first: u64) {
        let discard = || self.logs.iter().any(|log| log.discard(Index(first)).is_ok());
        eventually("a replica leads", discard);
    }

    fn has(&self, number: u64) -> bool {
        let name = format!("{:032x}/o/{number:020}", self.logs[0].log_id().get());
        self.vault.size(&name).unwrap().is_some()
    }

    /// The number of the oldest object, which all younger ones follow.
    fn oldest(&self) -> u64 {
        let all = self.vault.list("").unwrap().into_iter().filter(|object| object.name.contains("/o/"));
        all.map(|object| object.name.rsplit('/').next().unwrap().parse().unwrap()).min().unwrap()
    }

    /// Closes the log and opens it again and again, and appends this many records each time: 1, or enough to fill files.
    fn deletes_in_time(mut self, appended: u64) {
        if appended == 1 {
            self.segment_bytes = 8 << 20; // all is in one segment
        }
        self.open_at(0);
        self.store(4000);
        self.discard(2000);
        self.store(appended);
        for minutes in [15, 30, 45] {
            self.open_at(minutes);
            self.store(appended);
        }
        self.discard(3500);
        self.store(appended);
        for minutes in [60, 75, 90, 99] {
            self.open_at(minutes);
            self.store(appended);
            assert!(self.has(0), "deleted {minutes} minutes after the discard");
        }
        self.open_at(101);
        eventually("objects are deleted", || !self.has(0) && !self.has(5));
        // Those of the other discard are kept until its own time.
        self.store(appended);
        let kept = self.oldest();
        self.open_at(144);
        self.store(appended);
        assert_eq!(self.oldest(), kept, "deleted before the delay of their own discard");
        self.open_at(146);
        eventually("the others are deleted", || self.oldest() > kept);
        self.logs
            .iter()
            .for_each(|log| eventually("it has all", || log.last_index() == self.logs[0].last_index()));
        self.logs.iter().for_each(|log| read_all(log, 3500));
    }
}

fn alone(dir: &Path) -> Stage {
    let dir = dir.to_path_buf();
    Stage::new(move |options| vec![Log::open(&dir, options).unwrap()], Arc::default())
}

/// The delay began with each start, and a log that was restarted each day deleted nothing. The newest segment is older than the discard.
#[test]
fn restarts_do_not_delay_the_deletion_of_objects() {
    let dir = tempfile::tempdir().unwrap();
    alone(dir.path()).deletes_in_time(1);
}

/// The newest segment is always younger than the delay.
#[test]
fn restarts_of_a_busy_log_do_not_delay_the_deletion_of_objects() {
    let dir = tempfile::tempdir().unwrap();
    alone(dir.path()).deletes_in_time(1000);
}

/// Whichever replica leads.
#[test]
fn restarts_of_replicas_do_not_delay_the_deletion_of_objects() {
    for appended in [1, 1000] {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [1, 2].map(|node| dir.path().join(node.to_string()));
        let open = move |options: Options| {
            let network = MemoryNetwork::new();
            let [one, two] = &dirs;
            if !one.exists() {
                let (one, two) = two_replicas([one, two], &network, [options.clone(), options]);
                return vec![one, two];
            }
            let open = |dir, node| replica(dir, node, Bootstrap::Existing, &network, options.clone());
            vec![open(one, 1), open(two, 2)]
        };
        Stage::new(open, Arc::default()).deletes_in_time(appended);
    }
}
