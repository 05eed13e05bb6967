//! A file whose preparation takes long: zeros are written at the disk's pace. A thread that has to send or answer
//! heartbeats does not wait for it, or a busy leader would count as dead.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/hooked.rs"]
mod hooked;
#[path = "support/trio.rs"]
mod trio;

use chiplog::{Index, Log, Options, Start, Ticket};
use hooked::Hooks;
use std::sync::{Condvar, Mutex};
use std::time::Duration;
use trio::{Gate, PATIENCE, SEGMENT_BYTES, Trio};

/// No machine pauses for that long.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// While it is closed, no new file is completed.
#[derive(Debug, Default)]
struct Files {
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Files {
    fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(closed, _)| *closed).unwrap());
    }

    /// Waits until a file is being prepared.
    fn wait_for_file(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |(_, files)| *files == 0).unwrap();
        assert!(!waited.1.timed_out(), "no file was begun");
    }
}

impl Gate for Files {
    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }
}

impl Hooks for Files {
    fn before_fill(&self) {
        self.pass();
    }
}

fn fill(trio: &Trio<Files>, segments: usize) -> Vec<Ticket<Index>> {
    let records = segments * SEGMENT_BYTES as usize / 1000;
    (0..records).map(|_| trio.logs[0].submit(&[7; 1000]).unwrap()).collect()
}

/// Every record is at every replica.
fn has_all(trio: &Trio<Files>, tickets: Vec<Ticket<Index>>) {
    let count = tickets.len();
    let last = tickets.into_iter().fold(Index(0), |_, ticket| ticket.wait().unwrap());
    assert_eq!(last, Index(count as u64));
    for log in &trio.logs {
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

/// The leader's writer thread slept until its file was ready: it sent no heartbeats, and was replaced.
#[test]
fn leader_that_waits_for_a_file_keeps_leading() {
    let trio = Trio::<Files>::with(ELECTION_TIMEOUT);
    trio.gates[0].close();
    let tickets = fill(&trio, 4);
    trio.gates[0].wait_for_file();
    for _ in 0..3 {
        std::thread::sleep(ELECTION_TIMEOUT);
        trio.lives();
    }
    assert!(tickets.last().unwrap().poll().is_none());
    trio.gates[0].open();
    has_all(&trio, tickets);
}

/// So did the followers': they answered no heartbeats, and the leader stepped down without a majority.
#[test]
fn followers_that_wait_for_a_file_keep_answering() {
    let trio = Trio::<Files>::with(ELECTION_TIMEOUT);
    trio.gates[1..].iter().for_each(|gate| gate.close());
    let tickets = fill(&trio, 4);
    trio.gates[1..].iter().for_each(|gate| gate.wait_for_file());
    for _ in 0..3 {
        std::thread::sleep(ELECTION_TIMEOUT);
        trio.lives();
    }
    assert!(tickets.last().unwrap().poll().is_none());
    trio.gates[1..].iter().for_each(|gate| gate.open());
    has_all(&trio, tickets);
}

/// Closing had two seconds: then every append that needed the file was refused as `Closed`.
#[test]
fn standalone_log_closes_once_its_file_is_ready() {
    let gate = std::sync::Arc::new(Files::default());
    let disk = std::sync::Arc::new(hooked::Hooked::new(gate.clone()));
    let log = Log::open_on(disk, Options::with_segment_bytes(SEGMENT_BYTES)).unwrap();
    gate.close();
    let records = 3 * SEGMENT_BYTES as usize / 1000;
    let tickets: Vec<_> = (0..records).map(|_| log.submit(&[7; 1000]).unwrap()).collect();
    gate.wait_for_file();
    let closing = std::thread::spawn(move || log.close());
    std::thread::sleep(Duration::from_millis(2500));
    assert!(!closing.is_finished());
    gate.open();
    closing.join().unwrap().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}
