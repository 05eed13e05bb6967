//! Shared by these tests: a group with small objects, records by their log and index, copies.

use chiplog::follower::{FollowFrom, FollowMessage, FollowSource, Jumped};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{FollowerLog, Index, Log, Logs, LogsOptions, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const SEGMENT: u32 = 256 << 10;
/// How many logs the group has, and which one is copied.
pub(crate) const LOGS: u64 = 7;
pub(crate) const COPIED: u64 = 3;

pub(crate) fn plain() -> Options {
    Options::with_segment_bytes(SEGMENT).sessions_max(16)
}

pub(crate) fn reads(vault: &Arc<MemoryVault>) -> Options {
    plain().vault(vault.clone() as Arc<dyn Vault>)
}

/// Servers keep few files.
pub(crate) fn small(vault: &Arc<MemoryVault>) -> Options {
    reads(vault)
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

pub(crate) fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

pub(crate) fn copied(logs: &Logs) -> Log {
    log_of(logs, COPIED)
}

pub(crate) fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
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

pub(crate) fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).count()
}

/// Appends `count` records to each log, unless many wait to be stored: appends without a break can outrun the store.
pub(crate) fn append_slowly(logs: &Logs, count: u64) {
    if group(logs).metrics().unstored_bytes < 512 << 10 {
        append(logs, &all(), count);
    }
}

/// Appends `count` records to each log, and more until they are stored and few files are left.
pub(crate) fn fill(logs: &Logs, dir: &Path, count: u64) {
    let wanted = group(logs).metrics().stored_bytes + count * LOGS * 600;
    append(logs, &all(), count);
    eventually("files go", || {
        append_slowly(logs, 20);
        group(logs).metrics().stored_bytes >= wanted && segments(&dir.join("group-1")) <= 8
    });
}

/// Feeds the copy until it has everything. Returns the bytes that it took, and where it jumped.
pub(crate) fn feed(copy: &FollowerLog, feed: &mut FollowSource) -> (usize, Vec<Jumped>) {
    let (mut bytes, mut jumps) = (0, Vec::new());
    while let Some(fed) = feed.next(64 << 10).unwrap() {
        bytes += fed.bytes();
        jumps.extend(copy.apply(fed).unwrap());
    }
    (bytes, jumps)
}

pub(crate) fn follow_on(copy: &FollowerLog, log: &Log) -> (usize, Vec<Jumped>) {
    feed(copy, &mut log.follow(copy.resume_point().unwrap()).unwrap().skip_stored())
}

pub(crate) fn copy(dir: &Path, log: &Log, from: FollowFrom, options: Options) -> (FollowerLog, usize) {
    let mut source = log.follow(from).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let copy = FollowerLog::create(dir, options, &state).unwrap();
    let (bytes, jumps) = feed(&copy, &mut source);
    assert_eq!(jumps, []);
    (copy, bytes)
}

pub(crate) fn check(copy: &FollowerLog, log: &Log, first: u64) {
    let copied = copy.log();
    assert_eq!((copied.first_index().get(), copied.last_index()), (first, log.last_index()));
    read_from(copied, first);
}

pub(crate) fn read_from(copied: &Log, first: u64) {
    let mut reader = copied.reader(Start::Index(Index(first))).unwrap();
    for n in first..=copied.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert!((found.index.get(), found.data) == (n, &record(COPIED, n)[..]), "record {n}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

/// A copy that reads no objects.
pub(crate) fn copy_of_files(dir: &Path, log: &Log) -> FollowerLog {
    let mut source = log.follow(FollowFrom::First).unwrap();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let copy = FollowerLog::create(dir, plain(), &state).unwrap();
    feed(&copy, &mut source);
    copy
}
