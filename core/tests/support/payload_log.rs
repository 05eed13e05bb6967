//! Logs of the durability class `object`: their options, records that go to payload slices, and these slices.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test support")]

#[path = "object_class.rs"]
pub mod object_class;

pub use object_class::sliced_log::{again, all_sliced, refuse};
pub use object_class::{Cluster, eventually, is_on};

use chiplog::vault::Vault;
use chiplog::{Log, LogId, Options};
use object_class::sliced_log::{append_all, read_from_to, record_of};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub const SEGMENT: u32 = 256 << 10;
/// The least size of records: they are larger than references.
const LEAST: usize = 1000;

/// Slices every 10 ms, and objects that are far from full.
pub fn options(vault: &Arc<impl Vault + 'static>) -> Options {
    let interval = Some(Duration::from_millis(10));
    let options = Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>);
    options.slice_interval(interval).payload_slices(true)
}

pub fn record(n: u64) -> Vec<u8> {
    record_of(n, LEAST)
}

pub fn append(log: &Log, count: u64) {
    append_all(log, count, LEAST);
}

pub fn open(dir: &Path, options: Options) -> Log {
    let log = Log::open(dir, options).unwrap();
    eventually("the class is on", || is_on(&log));
    log
}

pub fn read_all(log: &Log, from: u64, to: u64) {
    read_from_to(log, from, to, LEAST);
}

/// The names of the payload slices of a log.
pub fn payloads(vault: &dyn Vault, id: LogId) -> Vec<String> {
    let found = vault.list(&format!("{:032x}/p/", id.get())).unwrap();
    found.into_iter().map(|slice| slice.name).collect()
}
