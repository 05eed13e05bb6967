//! Syncs that take long, or fail after a long time. A replica has two threads: one of them syncs, and the other one
//! processes messages, orders, writes and answers meanwhile.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/hooked.rs"]
mod hooked;
#[path = "support/trio.rs"]
mod trio;

use chiplog::disk::Disk;
use chiplog::disk::sim::SimDisk;
use chiplog::transport::{Envelope, Inbox, Transport};
use chiplog::{ErrorKind, Index, Log, Logs, LogsOptions, NodeId, Options, Start, Ticket};
use hooked::{Hooked, Hooks};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use trio::{Gate, PATIENCE, Trio, until};

/// The outcome of the log's syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Passes,
    Waits,
    Fails,
}

#[derive(Debug, Default)]
struct Syncs {
    /// The outcome, and how many syncs wait.
    state: Mutex<(Fate, u32)>,
    changed: Condvar,
    /// The preparation of new files hangs.
    fills: AtomicBool,
    filling: AtomicBool,
}

impl Syncs {
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

impl Gate for Syncs {
    fn open(&self) {
        self.fills.store(false, Ordering::SeqCst);
        self.set(Fate::Passes);
    }
}

impl Hooks for Syncs {
    fn before_fill(&self) {
        while self.fills.load(Ordering::SeqCst) {
            self.filling.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

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

type Replicas = Trio<Syncs>;

fn submit(trio: &Replicas, count: u8) -> Vec<Ticket<Index>> {
    (0..count).map(|n| trio.logs[0].submit(&[n; 100]).unwrap()).collect()
}

/// Submits a record, during whose sync these disks hang.
fn stand(trio: &Replicas, disks: Range<usize>) -> Vec<Ticket<Index>> {
    trio.gates[disks.clone()].iter().for_each(|gate| gate.set(Fate::Waits));
    let tickets = submit(trio, 1);
    trio.gates[disks].iter().for_each(|gate| gate.has_one());
    tickets
}

fn close(log: &Log) -> JoinHandle<chiplog::Result<()>> {
    let log = log.clone();
    std::thread::spawn(move || log.close())
}

/// The record of [`stand`] and the `count` records of [`submit`] are there, and no others.
fn has(log: &Log, count: u8) {
    log.wait_for(Index(u64::from(count) + 1), PATIENCE).unwrap();
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(record.data[0]);
    }
    assert_eq!(records, std::iter::once(0).chain(0..count).collect::<Vec<_>>());
}

/// The two others are a majority: their acknowledgements are processed, and appends are ordered, sent and written,
/// while the leader's own disk hangs.
#[test]
fn leader_with_a_hanging_sync_commits_through_the_others() {
    let trio = Replicas::new();
    let first = stand(&trio, 0..1);
    for n in 0..50 {
        trio.logs[0].append(&[n; 100]).unwrap();
    }
    trio.lives();
    assert!(first.into_iter().all(|ticket| ticket.wait().is_ok()));
    let status = trio.logs[0].status();
    assert!(status.durable_index < status.last_index && status.last_index == Index(51), "{status:?}");
    trio.gates[0].open();
    trio.logs.iter().for_each(|log| has(log, 50));
    until("the leader's disk", || trio.logs[0].durable_index() == Index(51));
}

/// An entry on one disk alone is not acknowledged, and followers do not acknowledge entries that they have not
/// synced: the thread that processes messages meanwhile does not either.
#[test]
fn followers_with_hanging_syncs_acknowledge_nothing() {
    let trio = Replicas::with(PATIENCE); // a leader that hears no majority steps down
    let first = stand(&trio, 1..3);
    let more = submit(&trio, 50);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(trio.logs[0].last_index(), Index(0));
    trio.gates[1].open(); // now a majority has synced
    assert!(first.into_iter().chain(more).all(|ticket| ticket.wait().is_ok()));
    trio.gates[2].open();
    trio.logs.iter().for_each(|log| has(log, 50));
}

/// The syncing thread returns the error; the other thread has acknowledged the entries that the others have.
#[test]
fn late_sync_failure_poisons_and_undoes_no_acknowledgement() {
    let trio = Replicas::new();
    let first = stand(&trio, 0..1);
    let more = submit(&trio, 50);
    assert!(first.into_iter().chain(more).all(|ticket| ticket.wait().is_ok()));
    trio.gates[0].set(Fate::Fails);
    until("the poison", || trio.logs[0].poison_cause().is_some());
    let refused = trio.logs[0].append(b"x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    assert_eq!(trio.logs[0].close().unwrap_err().kind(), ErrorKind::Poisoned);
    trio.lives();
    trio.logs[1..].iter().for_each(|log| has(log, 50));
}

/// Closing waits for the disk; appends in flight are settled by then.
#[test]
fn log_closes_once_its_sync_has_returned() {
    let trio = Replicas::new();
    let tickets = stand(&trio, 0..1);
    let closing = close(&trio.logs[0]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!closing.is_finished());
    trio.gates[0].open();
    closing.join().unwrap().unwrap();
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    trio.lives();
}

/// It sent heartbeats while the disk hung, and accepted no appends: no replica did.
#[test]
fn closed_leader_leads_no_longer_than_its_appends_need() {
    let trio = Replicas::new();
    let _tickets = stand(&trio, 0..1);
    let closing = close(&trio.logs[0]);
    until("another leader", || trio.logs[1..].iter().any(|log| log.append(b"goes on").is_ok()));
    assert!(!closing.is_finished());
    trio.gates[0].open();
    closing.join().unwrap().unwrap();
}

/// It dropped messages from then on: callers of earlier appends never learnt that these are in the log.
#[test]
fn closed_leader_still_processes_acknowledgements() {
    let trio = Replicas::with(Duration::from_secs(20)); // how long it waits for silent replicas
    let tickets = stand(&trio, 1..3);
    let closing = close(&trio.logs[0]);
    until("no more appends", || trio.logs[0].submit(b"late").is_err());
    trio.gates[1..].iter().for_each(|gate| gate.open());
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    closing.join().unwrap().unwrap();
}

/// Appends in the queue were refused as `Closed` once all entries were committed that the leader had taken from the
/// queue.
#[test]
fn queued_appends_are_committed_when_the_log_is_closed() {
    let trio = Replicas::tuned(Duration::from_secs(20), |cluster| cluster.uncommitted_bytes_max = 1);
    let first = stand(&trio, 1..3); // the limit of uncommitted bytes: the rest waits in the queue
    let mut queued = submit(&trio, 50);
    let closing = close(&trio.logs[0]);
    until("no more appends", || trio.logs[0].submit(&[50]).map(|ticket| queued.push(ticket)).is_err());
    trio.gates[1..].iter().for_each(|gate| gate.open());
    for ticket in first.into_iter().chain(queued) {
        ticket.wait().unwrap();
    }
    closing.join().unwrap().unwrap();
}

/// A poisoned log waited for its helper thread, whose disk hung, before it notified readers at the tail and barriers.
#[test]
fn poison_is_reported_while_the_helper_hangs() {
    let trio = Replicas::new();
    trio.gates[0].fills.store(true, Ordering::SeqCst);
    let mut tickets = Vec::new();
    until("a file that is being prepared", || {
        tickets.push(trio.logs[0].submit(&[7; 1000]).unwrap());
        trio.gates[0].filling.load(Ordering::SeqCst)
    });
    tickets.extend(stand(&trio, 0..1));
    let log = trio.logs[0].clone();
    let waiting = std::thread::spawn(move || log.wait_for(Index(100_000), PATIENCE));
    trio.gates[0].set(Fate::Fails);
    let told = waiting.join().unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Poisoned, "{told}");
    trio.gates[0].fills.store(false, Ordering::SeqCst);
}

/// Panics when a replica that ends sends a message.
#[derive(Debug)]
struct Panics {
    inner: Arc<dyn Transport>,
    armed: Arc<AtomicBool>,
}

impl Transport for Panics {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.inner.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        assert!(!self.armed.load(Ordering::SeqCst), "planted");
        self.inner.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        assert!(!self.armed.load(Ordering::SeqCst), "planted");
        self.inner.send(envelope);
    }
}

/// The end counted as reported before any caller was notified: after a panic in between none was.
#[test]
fn panic_at_the_end_leaves_no_caller_waiting() {
    let armed = Arc::new(AtomicBool::new(false));
    let trio = Replicas::tuned(Duration::from_secs(2), |cluster| {
        if cluster.node == NodeId(1) {
            let (inner, armed) = (cluster.transport.clone(), armed.clone());
            cluster.transport = Arc::new(Panics { inner, armed });
        }
    });
    let tickets = stand(&trio, 0..1);
    let log = trio.logs[0].clone();
    let waiting = std::thread::spawn(move || log.wait_for(Index(100_000), PATIENCE));
    armed.store(true, Ordering::SeqCst);
    trio.gates[0].set(Fate::Fails);
    let told = waiting.join().unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Poisoned, "{told}");
    tickets.into_iter().for_each(|ticket| _ = ticket.wait());
    assert_eq!(trio.logs[0].close().unwrap_err().kind(), ErrorKind::Poisoned);
}

/// Both threads run callbacks, in turns; on neither can a callback wait for the log.
#[test]
fn callbacks_on_both_threads_may_submit_but_not_wait() {
    let trio = Replicas::new();
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
    until("all callbacks", || called.load(Ordering::Relaxed) == 200);
}

/// Lets the disk go on when the test ends.
struct Opens(Arc<Syncs>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The disk of one group held each call about its logs, and the thread that opens and drops logs of all groups, for ever.
#[test]
fn group_with_a_hanging_disk_holds_no_call_for_ever() {
    let syncs = Arc::new(Syncs::default());
    let disks: [Arc<dyn Disk>; 2] = [Arc::new(Hooked::new(syncs.clone())), Arc::new(SimDisk::default())];
    let options = LogsOptions::default().options(Options::with_segment_bytes(256 << 10).sessions_max(16));
    let logs = Logs::open_on(Arc::new(SimDisk::default()), disks.into(), options).unwrap();
    for name in ["a", "b"] {
        logs.create(name).unwrap();
    }
    logs.create_beside("gone", "a").unwrap();
    assert_eq!((logs.group_of("a").unwrap(), logs.group_of("b").unwrap()), (Some(1), Some(2)));
    let opens = Opens(syncs.clone());
    syncs.set(Fate::Waits);
    let _first = logs.get("a").unwrap().submit(b"x").unwrap();
    syncs.has_one();

    let (told, tells) = std::sync::mpsc::channel();
    let caller = logs.clone();
    let calls = std::thread::spawn(move || {
        let id = caller.register_beside("late", "a").unwrap();
        let kind = |error: chiplog::Error| error.kind();
        told.send(caller.find("late", Some(id), Duration::from_millis(100)).map(drop).map_err(kind)).unwrap();
        caller.unregister("gone", None).unwrap();
        told.send(caller.settle().map_err(kind)).unwrap();
        told.send(caller.seal("a").map_err(kind)).unwrap();
        let barrier = caller.group(1).unwrap().barrier(Duration::from_millis(100));
        told.send(barrier.map(drop).map_err(kind)).unwrap();
    });
    let next = || tells.recv_timeout(PATIENCE).expect("a call waits for the disk");
    assert_eq!(next(), Err(ErrorKind::Timeout), "find");
    assert_eq!(next(), Ok(()), "settle");
    assert_eq!(next(), Err(ErrorKind::Timeout), "seal");
    assert_eq!(next(), Err(ErrorKind::Unavailable), "barrier");
    calls.join().unwrap();
    logs.get("b").unwrap().append(b"goes on").unwrap();
    logs.create_beside("beside-b", "b").unwrap();

    drop(opens);
    logs.get("late").unwrap().append(b"x").unwrap();
}
