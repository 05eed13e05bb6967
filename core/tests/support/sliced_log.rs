//! Logs whose newest records are in an object store: records by their number, and what comes back from the object store alone.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test support")]

use chiplog::backup::{Backup, RestoreOptions};
use chiplog::vault::{HookedVault, Vault};
use chiplog::{Error, ErrorKind, Index, Log, LogId, Options, Start};
use std::path::Path;
use std::time::{Duration, Instant};

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Record `n`, of at least this number of bytes.
pub fn record_of(n: u64, least: usize) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; least + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

/// Appends the next records, all at a time.
pub fn append_all(log: &Log, count: u64, least: usize) {
    let last = log.last_index().get();
    let tickets: Vec<_> =
        (last + 1..=last + count).map(|n| log.submit(&record_of(n, least)).unwrap()).collect();
    for (n, ticket) in (last + 1..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Index(n));
    }
}

/// Reads the whole log, which has these records.
pub fn read_from_to(log: &Log, from: u64, to: u64, least: usize) {
    assert_eq!((log.first_index().get(), log.last_index().get()), (from, to));
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for n in from..=to {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record_of(n, least)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

pub fn all_sliced(log: &Log) {
    eventually("everything is in a slice", || {
        let metrics = log.metrics();
        metrics.sliced_index == log.last_index().get() && metrics.unsliced_bytes == 0
    });
}

pub fn fetch(vault: &dyn Vault, log: LogId, dir: &Path) -> chiplog::Result<Backup> {
    Backup::fetch(vault, log, dir, &mut |done, total| assert!(done <= total))
}

/// The log that comes back from the object store alone.
pub fn again(vault: &dyn Vault, id: LogId, dir: &Path) -> (Log, Vec<String>) {
    let at = |name: &str| dir.join(format!("{name}{}", std::fs::read_dir(dir).unwrap().count()));
    let made = fetch(vault, id, &at("backup")).unwrap();
    let backup = Backup::open(made.path()).unwrap();
    backup.check(&mut |_, _| {}).unwrap();
    assert_eq!((backup.notes(), backup.ends_early()), (made.notes(), made.ends_early()));
    assert_eq!(backup.ends_early(), backup.notes().iter().any(|note| note.starts_with("the log ends early")));
    let place = at("again");
    backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    (Log::open(place, Options::with_segment_bytes(1 << 20)).unwrap(), backup.notes().to_vec())
}

/// Refuses to put what has one of these in its name.
pub fn refuse(vault: &HookedVault, names: &'static [&'static str]) {
    vault.set(move |call, name| match call {
        "put" | "create" if names.iter().any(|part| name.contains(part)) => {
            Err(Error::new(ErrorKind::Unavailable, "refused"))
        }
        _ => Ok(()),
    });
}
