//! Tests of the search for a snapshot, over a system log whose disk counts what is read.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::super::hanging::hang;
use super::*;
use crate::api::log::Log;
use crate::disk::sim::{Call, SimDisk};
use crate::options::Options;
use crate::store::segment::ReadMode;
use crate::types::LogId;
use std::sync::Arc;

/// A system log that begins behind these many records, which are in the parts of a snapshot.
struct Rig {
    disk: SimDisk,
    system: Log,
    parts: Vec<Vec<u8>>,
}

const LOGS: u32 = 300;

impl Rig {
    fn new() -> Self {
        let disk = SimDisk::default();
        let options = Options::with_segment_bytes(1 << 20).read_mode(ReadMode::Read);
        let system = Log::open_on(Arc::new(disk.clone()), options).unwrap();
        let mut catalogue = Catalogue::default();
        for n in 1..=LOGS {
            let record = create(n);
            system.append(&record.encode()[..]).unwrap();
            catalogue.apply(record);
        }
        let parts: Vec<_> = catalogue.snapshot(LogId(77)).iter().map(|part| part.encode()).collect();
        assert!(parts.len() >= 3, "{}", parts.len());
        Self { disk, system, parts }
    }

    fn append_part(&self, n: usize) {
        self.system.append(&self.parts[n][..]).unwrap();
    }

    /// How much is read during a call.
    fn reads(&self, look: impl FnOnce()) -> u64 {
        let before = self.disk.calls(Some(Call::Read));
        look();
        self.disk.calls(Some(Call::Read)) - before
    }
}

fn create(n: u32) -> CatalogueRecord {
    let name = format!("log-{n}-{}", "x".repeat(220));
    CatalogueRecord::Create { name, id: LogId(n.into()), group: 1 }
}

fn is_unavailable(logs: &Logs) {
    assert_eq!(logs.list().unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Each look read all of the system log again.
#[test]
fn records_are_read_once_while_no_snapshot_is_whole() {
    let rig = Rig::new();
    rig.append_part(0);
    rig.system.discard(Index(u64::from(LOGS) + 1)).unwrap();
    let logs = Logs::of(rig.system.clone());
    assert!(rig.reads(|| is_unavailable(&logs)) > 0);
    assert_eq!(rig.reads(|| (0..20).for_each(|_| is_unavailable(&logs))), 0);
    // New records are read, and nothing else.
    rig.system.append(&create(LOGS + 1).encode()[..]).unwrap();
    let of_one = rig.reads(|| is_unavailable(&logs));
    for n in 1..rig.parts.len() {
        rig.append_part(n);
    }
    assert!((1..10).contains(&of_one), "{of_one}");
    assert_eq!(logs.list().unwrap().len(), LOGS as usize + 1);
    assert_eq!(rig.reads(|| drop(logs.list().unwrap())), 0);
}

/// A snapshot that was begun and never completed, and then another one; the first parts are discarded meanwhile.
#[test]
fn search_goes_on_behind_a_discard() {
    let rig = Rig::new();
    rig.append_part(0);
    rig.system.discard(Index(u64::from(LOGS) + 1)).unwrap();
    let mut search = SnapshotSearch::default();
    let logs = Logs::of(rig.system.clone());
    assert_eq!(logs.read_snapshot(&mut search).unwrap_err().kind(), ErrorKind::Unavailable);
    // The second part is discarded before it is read: the snapshot cannot become whole.
    rig.append_part(1);
    let first = rig.system.last_index().next();
    rig.system.command(Command::Discard { first }).unwrap();
    (2..rig.parts.len()).for_each(|n| rig.append_part(n));
    assert_eq!(logs.read_snapshot(&mut search).unwrap_err().kind(), ErrorKind::Unavailable);
    // A whole one that needs records which are discarded is none.
    (0..rig.parts.len()).for_each(|n| rig.append_part(n));
    assert_eq!(logs.read_snapshot(&mut search).unwrap_err().kind(), ErrorKind::Unavailable);
    let mut catalogue = Catalogue::default();
    (0..rig.system.last_index().get()).for_each(|_| catalogue.apply(create(1)));
    for part in catalogue.snapshot(LogId(78)) {
        rig.system.append(&part.encode()[..]).unwrap();
    }
    assert_eq!(logs.read_snapshot(&mut search).unwrap().len(), 1);
}

/// A catalogue with a record of a later version is refused, and not guessed.
#[test]
fn record_of_a_later_kind_is_unsupported() {
    let rig = Rig::new();
    let mut later = create(LOGS + 1).encode();
    later[0] = 6;
    rig.system.append(&later[..]).unwrap();
    let logs = Logs::of(rig.system.clone());
    let error = logs.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("record 301 of the system log"), "{error}");
    let mut broken = create(LOGS + 1).encode();
    broken[1] = 1;
    let rig = Rig::new();
    rig.system.append(&broken[..]).unwrap();
    assert_eq!(Logs::of(rig.system.clone()).list().unwrap_err().kind(), ErrorKind::Corrupt);
}

/// The thread that follows the catalogue waited for ever for the disk of the system log; each later call would have begun another snapshot.
#[test]
fn system_log_that_hangs_gets_one_part_of_a_snapshot() {
    let options = Options::with_segment_bytes(1 << 20);
    let system = Log::open_on(Arc::new(SimDisk::default()), options).unwrap();
    let logs = Logs::of(system.clone());
    let group = CatalogueRecord::Group { group: 1, id: LogId(1) };
    for _ in 0..300 {
        system.append(&group.encode()[..]).unwrap();
    }
    let goes_on = hang(&logs);
    let (told, tells) = std::sync::mpsc::channel();
    let caller = logs.clone();
    std::thread::spawn(move || {
        for _ in 0..3 {
            caller.keep_system_short();
            told.send(()).unwrap();
        }
    });
    for _ in 0..3 {
        tells.recv_timeout(Duration::from_secs(60)).expect("a call waits for ever");
    }
    drop(goes_on);
    let begun = Instant::now();
    while system.first_index() <= Index(300) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not shortened");
        logs.keep_system_short();
    }
    assert_eq!(system.last_index(), Index(302), "one part is enough");
}
