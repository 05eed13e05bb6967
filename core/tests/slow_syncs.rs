//! Syncs that take long, or fail after long. A replica has two threads: who syncs is away, and the other one hears, orders,
//! writes and answers meanwhile.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/hooked.rs"]
mod hooked;

use chiplog::transport::MemoryNetwork;
use chiplog::{Bootstrap, Change, Cluster, ErrorKind, Index, Log, NodeId, Options, Role, Start, Ticket};
use hooked::{Hooked, Hooks};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of the log's syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Passes,
    Waits,
    Fails,
}

#[derive(Debug, Default)]
struct Gate {
    /// And how many wait.
    state: Mutex<(Fate, u32)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, fate: Fate) {
        self.state.lock().unwrap().0 = fate;
        self.changed.notify_all();
    }

    /// Waits until a sync waits.
    fn has_one(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |(_, waiting)| *waiting == 0).unwrap();
        assert!(!waited.1.timed_out(), "nothing was synced");
    }
}

impl Hooks for Gate {
    fn before_sync(&self) -> io::Result<()> {
        if std::thread::current().name() != Some("chiplog-writer") {
            return Ok(()); // files that are being prepared
        }
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(fate, _)| *fate == Fate::Waits).unwrap();
        state.1 -= 1;
        if state.0 == Fate::Fails { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }
}

struct Trio {
    logs: Vec<Log>,
    gates: Vec<Arc<Gate>>,
}

impl Trio {
    fn new() -> Self {
        Self::with(Duration::from_millis(500))
    }

    fn with(election_timeout: Duration) -> Self {
        let network = MemoryNetwork::new();
        let mut trio = Self { logs: Vec::new(), gates: Vec::new() };
        for node in 1..=3 {
            let bootstrap = match trio.logs.first() {
                None => Bootstrap::Init,
                Some(log) => Bootstrap::Join(log.info().log_id),
            };
            let mut cluster = Cluster::new(NodeId(node), bootstrap, network.transport());
            cluster.heartbeat = election_timeout / 10;
            cluster.election_timeout = election_timeout;
            cluster.limping_sync = None;
            let options = Options { cluster: Some(cluster), ..Options::with_segment_bytes(256 << 10) };
            let gate = Arc::new(Gate::default());
            let log = Log::open_on(Arc::new(Hooked::new(gate.clone())), options).unwrap();
            trio.gates.push(gate);
            if let Some(leader) = trio.logs.first() {
                let (node, directory) = (NodeId(node), log.info().directory);
                let add = Change::AddLearner { node, directory, address: String::new() };
                leader.change_members(&[add], PATIENCE).unwrap();
                leader.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
            }
            trio.logs.push(log);
        }
        trio
    }

    /// A majority hears a leader and answers it, whoever it is.
    fn lives(&self) {
        let end = Instant::now() + PATIENCE;
        let leads = |log: &&Log| log.status().role == Role::Leader;
        let asked =
            || self.logs.iter().find(leads).is_some_and(|l| l.barrier(Duration::from_secs(5)).is_ok());
        while !asked() {
            assert!(Instant::now() < end, "{:?}", self.logs.iter().map(Log::status).collect::<Vec<_>>());
        }
    }

    fn submit(&self, count: u8) -> Vec<Ticket> {
        (0..count).map(|n| self.logs[0].submit(&[n; 100]).unwrap()).collect()
    }
}

impl Drop for Trio {
    /// A test that fails ends as well.
    fn drop(&mut self) {
        self.gates.iter().for_each(|gate| gate.set(Fate::Passes));
    }
}

fn records(log: &Log) -> Vec<u8> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(record.data[0]);
    }
    records
}

/// The two others are a majority: their acknowledgements are heard, and what comes is ordered, sent and written, while the
/// leader's own disk stands.
#[test]
fn a_leader_whose_sync_stands_has_the_others_commit() {
    let trio = Trio::new();
    trio.gates[0].set(Fate::Waits);
    let mut tickets = trio.submit(1);
    trio.gates[0].has_one();
    for n in 1..50 {
        tickets.push(trio.logs[0].submit(&[n; 100]).unwrap());
        tickets.last().unwrap().wait().unwrap();
    }
    trio.lives();
    let info = trio.logs[0].info();
    assert!(info.durable < info.last && info.last == Index(50), "{info:?}");
    trio.gates[0].set(Fate::Passes);
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    for log in &trio.logs {
        log.wait_for(Index(50), PATIENCE).unwrap();
        assert_eq!(records(log), (0..50).collect::<Vec<_>>());
    }
    let end = Instant::now() + PATIENCE;
    while trio.logs[0].info().durable < Index(50) {
        assert!(Instant::now() < end, "{:?}", trio.logs[0].info());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing is acknowledged that is on one disk alone, and what the others have not synced they do not acknowledge: neither
/// does the thread that hears meanwhile.
#[test]
fn followers_whose_syncs_stand_acknowledge_nothing() {
    let trio = Trio::with(PATIENCE); // a leader that hears no majority steps down
    trio.gates[1..].iter().for_each(|gate| gate.set(Fate::Waits));
    let first = trio.submit(1);
    trio.gates[1..].iter().for_each(|gate| gate.has_one());
    let more = trio.submit(50);
    std::thread::sleep(Duration::from_millis(100));
    let mut tickets = first.into_iter().chain(more);
    assert_eq!(trio.logs[0].info().last, Index(0));
    trio.gates[1].set(Fate::Passes); // with it there is a majority
    assert!(tickets.all(|ticket| ticket.wait().is_ok()));
    trio.gates[2].set(Fate::Passes);
    for log in &trio.logs {
        log.wait_for(Index(51), PATIENCE).unwrap();
        assert_eq!(records(log), std::iter::once(0).chain(0..50).collect::<Vec<_>>());
    }
}

/// The thread that was away brings the error; the one that worked meanwhile has acknowledged what the others have.
#[test]
fn a_sync_that_fails_late_poisons_and_takes_nothing_back() {
    let trio = Trio::new();
    trio.gates[0].set(Fate::Waits);
    let first = trio.submit(1);
    trio.gates[0].has_one();
    let more = trio.submit(50);
    for ticket in first.into_iter().chain(more) {
        ticket.wait().unwrap();
    }
    trio.gates[0].set(Fate::Fails);
    let end = Instant::now() + PATIENCE;
    while trio.logs[0].poison_cause().is_none() {
        assert!(Instant::now() < end, "it is not poisoned");
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = trio.logs[0].append(b"x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    assert_eq!(trio.logs[0].close().unwrap_err().kind(), ErrorKind::Poisoned);
    trio.lives();
    for log in &trio.logs[1..] {
        log.wait_for(Index(51), PATIENCE).unwrap();
        assert_eq!(records(log), std::iter::once(0).chain(0..50).collect::<Vec<_>>());
    }
}

/// Closing waits for the disk; what is on its way is settled by then.
#[test]
fn a_log_is_closed_once_its_sync_has_come_back() {
    let trio = Trio::new();
    trio.gates[0].set(Fate::Waits);
    let tickets = trio.submit(1);
    trio.gates[0].has_one();
    let closing = std::thread::spawn({
        let log = trio.logs[0].clone();
        move || log.close()
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!closing.is_finished());
    trio.gates[0].set(Fate::Passes);
    closing.join().unwrap().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    trio.lives();
}

/// It sent heartbeats for as long as the disk stood, and took no appends: nobody did.
#[test]
fn a_leader_that_is_closed_leads_no_longer_than_its_appends_need() {
    let trio = Trio::new();
    trio.gates[0].set(Fate::Waits);
    let tickets = trio.submit(1);
    trio.gates[0].has_one();
    let closing = std::thread::spawn({
        let log = trio.logs[0].clone();
        move || log.close()
    });
    let end = Instant::now() + PATIENCE;
    while !trio.logs[1..].iter().any(|log| log.append(b"goes on").is_ok()) {
        assert!(Instant::now() < end, "nobody else leads");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!closing.is_finished());
    trio.gates[0].set(Fate::Passes);
    closing.join().unwrap().unwrap();
    drop(tickets);
}

/// It dropped what others told it from then on: of what was submitted before nobody was told that it is in the log.
#[test]
fn a_leader_that_is_closed_hears_what_the_others_have() {
    let trio = Trio::with(Duration::from_secs(20)); // so long it waits for others that are silent
    trio.gates[1..].iter().for_each(|gate| gate.set(Fate::Waits));
    let tickets = trio.submit(1);
    trio.gates[1..].iter().for_each(|gate| gate.has_one());
    let closing = std::thread::spawn({
        let log = trio.logs[0].clone();
        move || log.close()
    });
    let end = Instant::now() + PATIENCE;
    while trio.logs[0].submit(b"late").is_ok() {
        assert!(Instant::now() < end, "it takes appends");
    }
    trio.gates[1..].iter().for_each(|gate| gate.set(Fate::Passes));
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    closing.join().unwrap().unwrap();
}

/// Both threads answer, now one and now the other; on neither can the log be waited for.
#[test]
fn callbacks_on_both_threads_may_submit_and_not_wait() {
    let trio = Trio::new();
    let log = &trio.logs[0];
    let called = Arc::new(AtomicU32::new(0));
    for n in 0..200u32 {
        let ticket = log.submit(&n.to_le_bytes()).unwrap();
        let (counted, inner) = (called.clone(), log.clone());
        ticket.on_complete(move |outcome| {
            outcome.unwrap();
            if std::thread::current().name() == Some("chiplog-writer") {
                assert_eq!(inner.append(b"x").unwrap_err().kind(), ErrorKind::InvalidArgument);
            }
            counted.fetch_add(1, Ordering::Relaxed);
        });
        if n % 3 == 0 {
            log.append(&n.to_le_bytes()).unwrap();
        }
    }
    let end = Instant::now() + PATIENCE;
    while called.load(Ordering::Relaxed) < 200 {
        assert!(Instant::now() < end, "{called:?} were called");
        std::thread::sleep(Duration::from_millis(1));
    }
}
