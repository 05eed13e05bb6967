//! Shared by these tests: an object store with directories of logs that use it, records, waits.

use chiplog::backup::{Backup, Branch, BranchOptions, Pin, RestoreOptions, RestoreTo};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, LogId, Options, Start};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const SEGMENT: u32 = 256 << 10;

pub(crate) fn record(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(60)
}

/// A record that is in one branch alone.
pub(crate) fn record_of(branch: u8, n: u64) -> Vec<u8> {
    [vec![branch], record(n)].concat()
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An object store, and directories of logs that use it.
pub(crate) struct Place {
    dir: TempDir,
    pub(crate) vault: Arc<MemoryVault>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), vault: Arc::default() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn options(&self) -> Options {
        Options::with_segment_bytes(SEGMENT)
            .vault(self.vault.clone() as Arc<dyn Vault>)
            .object_bytes(64 << 10)
            .object_delete_delay(Duration::from_millis(50))
    }

    pub(crate) fn open(&self, name: &str) -> Log {
        Log::open(self.path(name), self.options()).unwrap()
    }

    /// A log with objects of all of its 2000 records.
    pub(crate) fn parent(&self) -> Log {
        let log = self.open("parent");
        append(&log, 2000, record);
        self.store(&log);
        log
    }

    /// Waits until all records of a log are in objects.
    pub(crate) fn store(&self, log: &Log) {
        log.cut_objects(log.last_index()).unwrap();
        eventually("all is stored", || log.metrics().stored_index >= log.last_index().get());
    }

    pub(crate) fn branch(&self, log: LogId, name: &str, to: RestoreTo) -> Log {
        Branch::make(&*self.vault, log, self.path(name), &BranchOptions::default().to(to)).unwrap();
        self.open(name)
    }

    /// The numbers of a log's own objects that are there.
    pub(crate) fn objects(&self, log: LogId) -> BTreeSet<u64> {
        let names = self.vault.list(&format!("{:032x}/o/", log.get())).unwrap();
        names.iter().map(|object| object.name.rsplit('/').next().unwrap().parse().unwrap()).collect()
    }

    pub(crate) fn pins(&self, log: LogId) -> Vec<String> {
        Pin::list(&*self.vault, log).unwrap().into_iter().map(|pin| pin.name).collect()
    }

    /// The names of all objects of a log.
    pub(crate) fn names(&self, log: LogId) -> Vec<String> {
        self.vault.list(&format!("{:032x}/", log.get())).unwrap().into_iter().map(|o| o.name).collect()
    }

    /// Fetches a log, and makes a log of what came.
    pub(crate) fn fetched(&self, log: LogId, name: &str) -> Log {
        let backup = self.path(&format!("{name}.backup"));
        let backup = Backup::fetch(&*self.vault, log, &backup, &mut |_, _| {}).unwrap();
        assert_eq!(backup.info().log_id, log);
        backup.check(&mut |_, _| {}).unwrap();
        backup.restore(self.path(name), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
        Log::open(self.path(name), Options::with_segment_bytes(SEGMENT)).unwrap()
    }
}

/// Appends in small blocks: an object has whole ones.
pub(crate) fn append(log: &Log, count: u64, record: impl Fn(u64) -> Vec<u8>) {
    let from = log.last_index().get();
    let numbers: Vec<u64> = (from + 1..=from + count).collect();
    for few in numbers.chunks(40) {
        let tickets: Vec<_> = few.iter().map(|n| log.submit(&record(*n)).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
    }
}

/// Reads a whole log, in order and then from its end.
pub(crate) fn check(log: &Log, first: u64, last: u64, record: impl Fn(u64) -> Vec<u8>) {
    assert_eq!((log.first_index(), log.last_index()), (Index(first), Index(last)));
    let mut reader = log.reader(Start::First).unwrap();
    for n in first..=last {
        let read = reader.next_record().unwrap().unwrap();
        assert_eq!((read.index, read.data), (Index(n), record(n).as_slice()));
    }
    assert!(reader.next_record().unwrap().is_none());
    for n in (first..=last).rev().step_by(97) {
        assert_eq!(log.read(Index(n)).unwrap().data, record(n));
    }
}

/// Files of a directory: their bytes in all.
pub(crate) fn bytes_in(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// A log that is not open any more, in an object store alone: its id, and how many objects it has.
pub(crate) fn stored() -> (Place, LogId, u64) {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    parent.close().unwrap();
    let objects = place.objects(id).len() as u64;
    (place, id, objects)
}

pub(crate) fn upto(to: u64) -> BranchOptions {
    BranchOptions::default().to(RestoreTo::Index(Index(to)))
}
