//! Groups of named logs whose older records are in an object store: what is stored, what goes from the disk, and what readers of
//! each log get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, Logs, LogsOptions, Options, ReadMode, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;
/// How many logs a group has.
const LOGS: u64 = 7;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .object_delete_delay(Duration::from_millis(200))
        .local_bytes(2 * u64::from(SEGMENT))
}

fn open(dir: &Path, options: Options) -> Logs {
    Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap()
}

fn group(logs: &Logs) -> Log {
    logs.groups()[&1].clone()
}

fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
}

fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

/// Appends so many records to each of these logs, turn by turn.
fn append(logs: &Logs, which: &[u64], count: u64) {
    let handles: Vec<_> = which.iter().map(|log| (*log, log_of(logs, *log))).collect();
    let mut left = count;
    while left > 0 {
        let some = left.min(64);
        let mut tickets = Vec::new();
        for k in 0..some {
            for (log, handle) in &handles {
                let n = handle.last_index().get() + 1 + k;
                tickets.push(handle.submit(&record(*log, n)).unwrap());
            }
        }
        tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
        left -= some;
    }
}

fn all() -> Vec<u64> {
    (1..=LOGS).collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(log: u64, handle: &Log, from: u64) {
    let mut reader = handle.reader(Start::Index(Index(from))).unwrap();
    for n in from..=handle.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n} of log {log}"));
        assert_eq!((found.index.get(), found.data), (n, &record(log, n)[..]), "log {log}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

/// Appends until the directory of the group has few files.
fn until_files_go(logs: &Logs, dir: &Path) {
    eventually("files go", || {
        append(logs, &all(), 20);
        files(&dir.join("group-1"), ".seg") <= 8
    });
}

#[test]
fn older_records_of_each_log_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || open(dir.path(), options(&vault).read_mode(mode));
        let logs = opened();
        append(&logs, &all(), 600); // 2.7 MB
        eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
        until_files_go(&logs, dir.path());
        let oldest = |logs: &Logs| log_of(logs, 3).first_index().get();
        assert_eq!(oldest(&logs), 1);
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
            read_all(log, &log_of(&logs, log), 77);
            for n in [1, 2, 300, 599] {
                assert_eq!(log_of(&logs, log).read(Index(n)).unwrap().data, record(log, n));
            }
        }
        assert!(group(&logs).metrics().fetched_bytes > 0);
        logs.close().unwrap();
        let logs = opened();
        assert_eq!(oldest(&logs), 1);
        append(&logs, &all(), 50);
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
        }
    }
}
