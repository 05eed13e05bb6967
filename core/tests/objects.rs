//! A log whose older records are in an object store: what is stored, what goes from the disk, and what readers get.

use chiplog::cluster::{Bootstrap, ClusterOptions};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, LogOption, NodeId, Options, ReadMode, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 128 << 10;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).object_bytes(64 << 10)
}

fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn append(log: &Log, count: u64) {
    let next = log.last_index().get();
    for n in next + 1..=next + count {
        assert_eq!(log.append(&record(n)).unwrap().get(), n);
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(log: &Log, from: u64) {
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for n in from..=log.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

#[test]
fn older_records_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || {
            let options = options(&vault).local_bytes(2 * u64::from(SEGMENT)).read_mode(mode);
            Log::open(dir.path(), options).unwrap()
        };
        let log = opened();
        append(&log, 4000); // 2.6 MB
        eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
        append(&log, 1000);
        eventually("files go", || {
            append(&log, 1);
            files(dir.path(), ".seg") <= 8
        });
        assert_eq!(log.first_index().get(), 1);
        assert_eq!(log.log_options().get(LogOption::ObjectBytes), Some(64 << 10));
        read_all(&log, 1);
        read_all(&log, 777);
        for n in [1, 2, 500, 3999, 4800] {
            assert_eq!(log.read(Index(n)).unwrap().data, record(n));
        }
        assert!(log.metrics().fetched_bytes > 0);
        drop(log);
        let log = opened();
        assert_eq!(files(dir.path(), ".object"), 0);
        assert_eq!(log.first_index().get(), 1);
        read_all(&log, 1);
        append(&log, 500);
        read_all(&log, 1);
    }
}
