//! Groups with an object store, and what is in them.

use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, LogId, Logs, LogsOptions, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const SEGMENT: u32 = 256 << 10;
/// How many logs a group has.
pub(crate) const LOGS: u64 = 7;

pub(crate) fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .object_delete_delay(Duration::from_millis(200))
        .local_bytes(2 * u64::from(SEGMENT))
}

pub(crate) fn open(dir: &Path, options: Options) -> Logs {
    Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap()
}

pub(crate) fn group(logs: &Logs) -> Log {
    logs.groups()[&1].clone()
}

pub(crate) fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
}

pub(crate) fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

/// Appends `count` records to each of these logs, turn by turn.
pub(crate) fn append(logs: &Logs, which: &[u64], count: u64) {
    let handles: Vec<_> = which.iter().map(|log| (*log, log_of(logs, *log))).collect();
    let mut left = count;
    while left > 0 {
        let some = left.min(64);
        let lasts: Vec<u64> = handles.iter().map(|(_, handle)| handle.last_index().get()).collect();
        let mut tickets = Vec::new();
        for k in 1..=some {
            for ((log, handle), last) in handles.iter().zip(&lasts) {
                tickets.push(handle.submit(&record(*log, last + k)).unwrap());
            }
        }
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().unwrap().get() > 0));
        left -= some;
    }
}

pub(crate) fn all() -> Vec<u64> {
    (1..=LOGS).collect()
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn read_all(log: u64, handle: &Log, from: u64) {
    let mut reader = handle.reader(Start::Index(Index(from))).unwrap();
    for n in from..=handle.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n} of log {log}"));
        assert!((found.index.get(), found.data) == (n, &record(log, n)[..]), "record {n} of log {log}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

pub(crate) fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

/// Appends to each log, unless many records wait to be stored: appends without a break can outrun the store.
pub(crate) fn append_slowly(logs: &Logs) {
    if group(logs).metrics().unstored_bytes < 512 << 10 {
        append(logs, &all(), 20);
    }
}

/// Appends until the directory of the group has few files.
pub(crate) fn until_files_go(logs: &Logs, dir: &Path) {
    eventually("files go", || {
        append_slowly(logs);
        files(&dir.join("group-1"), ".seg") <= 8
    });
}

/// The names of a log's objects and how large each is.
pub(crate) fn objects(vault: &MemoryVault, log: LogId) -> Vec<(String, u64)> {
    let found = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    found.into_iter().map(|object| (object.name, object.bytes)).collect()
}
