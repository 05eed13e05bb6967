//! A file that takes long to be made: zeros are written at the disk's pace. Nobody waits for it who has heartbeats to
//! send or to answer, or a leader that is busy would be taken for dead.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/hooked.rs"]
mod hooked;

use chiplog::transport::MemoryNetwork;
use chiplog::{Bootstrap, Change, Cluster, Index, Log, NodeId, Options, Role, Start, Ticket};
use hooked::{Hooked, Hooks};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const SEGMENT_BYTES: u32 = 256 << 10;

/// While it is closed, no new file comes to an end.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(closed, _)| *closed).unwrap());
    }

    /// Waits until a file is being made.
    fn wait_for_file(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |(_, files)| *files == 0).unwrap();
        assert!(!waited.1.timed_out(), "no file was begun");
    }
}

impl Hooks for Gate {
    fn before_fill(&self) {
        self.pass();
    }
}

struct Trio {
    logs: Vec<Log>,
    gates: Vec<Arc<Gate>>,
}

impl Trio {
    fn new() -> Self {
        let network = MemoryNetwork::new();
        let mut trio = Self { logs: Vec::new(), gates: Vec::new() };
        for node in 1..=3 {
            let bootstrap = match trio.logs.first() {
                None => Bootstrap::Init,
                Some(log) => Bootstrap::Join(log.info().log_id),
            };
            let mut cluster = Cluster::new(NodeId(node), bootstrap, network.transport());
            cluster.heartbeat = Duration::from_millis(50);
            cluster.election_timeout = Duration::from_millis(500);
            let options = Options { cluster: Some(cluster), ..Options::with_segment_bytes(SEGMENT_BYTES) };
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

    /// A majority hears the leader and answers it, whoever leads: a busy machine may have changed that.
    fn lives(&self) {
        let end = Instant::now() + PATIENCE;
        let leads = |log: &&Log| log.status().role == Role::Leader;
        let asked =
            || self.logs.iter().find(leads).is_some_and(|l| l.barrier(Duration::from_secs(5)).is_ok());
        while !asked() {
            assert!(Instant::now() < end, "{:?}", self.logs.iter().map(Log::status).collect::<Vec<_>>());
        }
    }

    fn fill(&self, segments: usize) -> Vec<Ticket> {
        let records = segments * SEGMENT_BYTES as usize / 1000;
        (0..records).map(|_| self.logs[0].submit(&[7; 1000]).unwrap()).collect()
    }

    /// Everything is there, at every replica.
    fn has_all(&self, tickets: Vec<Ticket>) {
        let count = tickets.len();
        let last = tickets.into_iter().fold(Index(0), |_, ticket| ticket.wait().unwrap().first);
        assert_eq!(last, Index(count as u64));
        for log in &self.logs {
            log.wait_for(last, PATIENCE).unwrap();
            let mut reader = log.reader(Start::First).unwrap();
            let mut records = 0;
            while let Some(record) = reader.next_record().unwrap() {
                assert_eq!(record.data, [7; 1000]);
                records += 1;
            }
            assert_eq!(records, count);
            assert!(log.poison_cause().is_none());
        }
    }
}

/// The leader's writer thread slept until its file was there: it sent no heartbeats, and was replaced.
#[test]
fn a_leader_that_waits_for_a_file_goes_on_leading() {
    let trio = Trio::new();
    trio.gates[0].close();
    let tickets = trio.fill(4);
    trio.gates[0].wait_for_file();
    for _ in 0..3 {
        trio.lives();
    }
    assert!(tickets.last().unwrap().poll().is_none());
    trio.gates[0].open();
    trio.has_all(tickets);
}

/// So did the followers': they answered none, and the leader gave up for want of a majority.
#[test]
fn followers_that_wait_for_a_file_go_on_answering() {
    let trio = Trio::new();
    trio.gates[1..].iter().for_each(|gate| gate.close());
    let tickets = trio.fill(4);
    trio.gates[1..].iter().for_each(|gate| gate.wait_for_file());
    for _ in 0..3 {
        trio.lives();
    }
    assert!(tickets.last().unwrap().poll().is_none());
    trio.gates[1..].iter().for_each(|gate| gate.open());
    trio.has_all(tickets);
}
