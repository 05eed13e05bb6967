//! Shared by these tests: small groups, and the records of their logs.

use chiplog::{Log, Logs, LogsOptions, Options, Start};
use std::path::Path;
use std::time::Duration;

pub(crate) const SEGMENT: u32 = 256 << 10;

/// Small segments, with room for a table of logs.
pub(crate) fn group() -> Options {
    Options::with_segment_bytes(SEGMENT).sessions_max(16)
}

pub(crate) fn options() -> LogsOptions {
    LogsOptions::default().options(group())
}

pub(crate) fn open(dir: &Path) -> Logs {
    Logs::open(dir, options()).unwrap()
}

/// All records of a log, from its first.
pub(crate) fn records(log: &Log) -> Vec<(u64, Vec<u8>)> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index.get(), record.data.to_vec()));
    }
    records
}

pub(crate) fn numbered(log: u64, n: u64) -> Vec<u8> {
    let mut record = format!("log {log} record {n} ").into_bytes();
    record.resize(60 + (n % 7 * 100) as usize, b'x');
    record
}

/// Appends until that is so, for up to 20 s: files go in steps of the writer, one at a time, and each append makes a step.
pub(crate) fn append_until(log: &Log, is_so: impl Fn() -> bool) {
    for _ in 0..4000 {
        log.append(b"more").unwrap();
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Changes a byte in the opening of a segment of group 1. Its header stays.
pub(crate) fn damage_opening(dir: &Path, segment: u64) {
    let path = dir.join("group-1").join(format!("{segment:020}.seg"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 64 + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}
