//! Sorted copies of the segments of shared groups: made, used, removed, and never needed.
#![cfg(feature = "testing")] // opens the simulated disk
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::disk::Disk as _;
use chiplog::disk::sim::{Damage, SimDisk};
use chiplog::{ErrorKind, Index, Log, Logs, LogsOptions, Options, Start};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;
const LOGS: usize = 40;

/// A group of named logs on simulated disks.
struct Group {
    system: SimDisk,
    disk: SimDisk,
    options: Options,
    /// None: closed.
    logs: Option<Logs>,
    handles: Vec<Log>,
}

impl Group {
    /// Simulated disks have no mappings.
    fn new() -> Self {
        let (system, disk) = (SimDisk::default(), SimDisk::default());
        let options = Options::with_segment_bytes(SEGMENT).sessions_max(8);
        let logs = open(&system, &disk, &options);
        let handles = (0..LOGS).map(|n| logs.create(&format!("log-{n}")).unwrap()).collect();
        Self { system, disk, options, logs: Some(logs), handles }
    }

    /// Closes and opens everything.
    fn reopen(&mut self) {
        self.handles.clear();
        self.logs.take().unwrap().close().unwrap();
        let logs = open(&self.system, &self.disk, &self.options);
        self.handles = (0..LOGS).map(|n| logs.get(&format!("log-{n}")).unwrap()).collect();
        self.logs = Some(logs);
    }

    /// Appends `count` records to each log, to all logs at a time: blocks have records of many logs.
    fn append(&self, count: usize) {
        for _ in 0..count {
            let submit =
                |(n, log): (usize, &Log)| log.submit(&record(n, log.last_index().get() + 1)).unwrap();
            let tickets: Vec<_> = self.handles.iter().enumerate().map(submit).collect();
            for ticket in tickets {
                ticket.wait().unwrap();
            }
        }
    }

    /// Checks every record of each log from its first one on.
    fn read_all(&self) {
        for (n, log) in self.handles.iter().enumerate() {
            let mut reader = log.reader(Start::First).unwrap();
            for index in log.first_index().get()..=log.last_index().get() {
                let found = reader.next_record().unwrap().unwrap();
                assert_eq!((found.index.get(), found.data), (index, &record(n, index)[..]), "log {n}");
            }
            assert!(reader.next_record().unwrap().is_none());
        }
    }

    fn files(&self, suffix: &str) -> Vec<String> {
        let mut names = self.disk.list().unwrap();
        names.retain(|name| name.ends_with(suffix));
        names.sort();
        names
    }

    /// The segments that have begun, except for the last one.
    fn full_segments(&self) -> usize {
        let prepared = 2;
        self.files(".seg").len() - 1 - prepared
    }

    fn await_copies(&self) {
        eventually("all full segments are sorted", || {
            self.files(".run").len() == self.full_segments() && self.files(".run.tmp").is_empty()
        });
    }
}

fn open(system: &SimDisk, disk: &SimDisk, options: &Options) -> Logs {
    let options = LogsOptions::default().groups(1).options(options.clone());
    Logs::open_on(Arc::new(system.clone()), vec![Arc::new(disk.clone())], options).unwrap()
}

fn record(log: usize, index: u64) -> Vec<u8> {
    let mut record = format!("log {log} record {index} ").into_bytes();
    record.resize(100 + (index % 5 * 100) as usize, log as u8);
    record
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The contents of a file.
fn content(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Flips a bit in every second block of a sorted copy, and in none of its header and its directory.
fn spoil(disk: &SimDisk, name: &str) {
    let bytes = content(disk, name);
    let directory = u32::from_le_bytes(bytes[52..56].try_into().unwrap()) as usize;
    for at in (4096..directory).step_by(64).filter(|at| &bytes[*at..at + 4] == b"CLB1").step_by(2) {
        assert!(disk.damage(name, &Damage::FlipBit { bit: (at as u64 + 70) * 8 + 3 }));
    }
}

#[test]
fn full_segments_are_sorted_and_read_from_their_copies() {
    let mut group = Group::new();
    group.append(100);
    assert!(group.full_segments() >= 4, "{:?}", group.files(""));
    group.await_copies();
    group.read_all();
    group.reopen();
    group.read_all();
    group.await_copies();
    // Nothing but the opening and the end of the first segment is sound any more: its records come from the copy.
    let first = group.files(".seg")[0].clone();
    let bytes = u64::from(SEGMENT);
    for at in (bytes / 4..bytes / 2).step_by(64) {
        assert!(group.disk.damage(&first, &Damage::FlipBit { bit: at * 8 + 3 }));
    }
    group.read_all();
}

#[test]
fn damaged_copies_are_not_used_and_made_again() {
    let mut group = Group::new();
    group.append(100);
    group.await_copies();
    group.read_all();
    // Readers have the copies open, some in the middle of one.
    let mut readers: Vec<_> = group.handles.iter().map(|log| log.reader(Start::First).unwrap()).collect();
    for (n, reader) in readers.iter_mut().enumerate() {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(n, 1));
    }
    let copies: Vec<_> =
        group.files(".run").into_iter().map(|name| (name.clone(), content(&group.disk, &name))).collect();
    for (name, _) in &copies {
        spoil(&group.disk, name);
    }
    for (n, reader) in readers.iter_mut().enumerate() {
        for index in 2..=100 {
            assert_eq!(reader.next_record().unwrap().unwrap().data, record(n, index), "log {n}");
        }
        assert!(reader.next_record().unwrap().is_none());
    }
    group.read_all(); // those had read the beginning of the first copy ahead
    group.append(1);
    eventually("damaged copies are made again, the same", || {
        let files = group.files(".run");
        copies.iter().all(|(name, bytes)| files.contains(name) && content(&group.disk, name) == *bytes)
    });
    group.read_all();

    // Found at the opening: the copy of another segment, a file that is cut off, and one without a segment.
    for (name, bytes) in [(&copies[0].0, &copies[1].1[..]), (&copies[2].0, &copies[2].1[..9000])] {
        group.disk.remove(name).unwrap();
        let file = group.disk.create(name).unwrap();
        file.write_at(0, &[IoSlice::new(bytes)]).unwrap();
    }
    for name in ["00000000000000099999.run", "00000000000000000001.run.tmp"] {
        group.disk.create(name).unwrap();
    }
    group.reopen();
    group.read_all();
    group.append(1);
    eventually("they are made again", || {
        [0, 2].iter().all(|n| {
            let (name, bytes) = &copies[*n];
            group.files(".run").contains(name) && content(&group.disk, name) == *bytes
        })
    });
    group.read_all();
    assert!(!group.files("").contains(&"00000000000000099999.run".to_owned()));
}

/// A reader that had come to a segment before it was sorted got `Corrupt` once the segment was damaged, although the copy was sound.
#[test]
fn reader_goes_on_in_the_copy_of_a_damaged_segment() {
    let group = Group::new();
    group.append(2);
    let mut readers: Vec<_> = group.handles.iter().map(|log| log.reader(Start::First).unwrap()).collect();
    for (n, reader) in readers.iter_mut().enumerate() {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(n, 1));
    }
    group.append(98);
    group.await_copies();
    let (first, copies) = (group.files(".seg")[0].clone(), group.files(".run"));
    for at in (u64::from(SEGMENT) / 4..u64::from(SEGMENT) / 2).step_by(64) {
        assert!(group.disk.damage(&first, &Damage::FlipBit { bit: at * 8 + 3 }));
    }
    for (n, reader) in readers.iter_mut().enumerate() {
        for index in 2..=100 {
            assert_eq!(reader.next_record().unwrap().unwrap().data, record(n, index), "log {n}");
        }
    }
    assert_eq!(group.files(".run"), copies);
}

#[test]
fn copies_go_with_their_segments_and_with_the_option() {
    let mut group = Group::new();
    group.append(100);
    group.await_copies();
    let before = group.files(".run").len();
    for log in &group.handles {
        log.discard(Index(60)).unwrap();
    }
    eventually("segments of discarded records go", || {
        group.append(1);
        group.full_segments() < before
    });
    // Copies go with the next one that is made.
    group.append(40);
    group.await_copies();
    group.read_all();

    group.options.sorted_copies = false;
    group.reopen();
    assert!(group.files(".run").is_empty());
    group.append(40);
    group.read_all();
    assert!(group.files(".run").is_empty());
}

/// Also those of another group on the same disk.
#[test]
fn copies_give_way_where_the_disk_is_full() {
    let group = Group::new();
    group.append(60);
    group.await_copies();
    let size = |name: &String| group.disk.open(name, false).unwrap().len().unwrap();
    let copies: u64 = group.files(".run").iter().map(size).sum();
    let fits = copies / u64::from(SEGMENT);
    assert!(fits >= 2, "{copies}");
    // A reader waits at the end: it keeps no copy.
    let mut waiting: Vec<_> = group.handles.iter().map(|log| log.reader(Start::First).unwrap()).collect();
    waiting.iter_mut().for_each(|reader| while reader.next_record().unwrap().is_some() {});
    // Half a segment is free beside the copies.
    group.disk.limit_space(Some(group.disk.space_used() + u64::from(SEGMENT) / 2));
    let full = group.full_segments();
    let mut refused = None;
    while refused.is_none() {
        let log = &group.handles[0];
        refused = log.append(&record(0, log.last_index().get() + 1)).err();
    }
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Full));
    assert!(group.full_segments() as u64 >= full as u64 + fits - 1, "{:?}", group.files(""));
    eventually("the copies are gone, also one that was being made", || {
        group.files(".run").is_empty() && group.files(".run.tmp").is_empty()
    });
    group.read_all();
    drop(waiting);
}

/// On a real disk, with mappings.
#[test]
fn copies_are_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        || LogsOptions::default().groups(1).options(Options::with_segment_bytes(SEGMENT).sessions_max(8));
    let logs = Logs::open(dir.path(), options()).unwrap();
    let handles: Vec<_> = (0..LOGS).map(|n| logs.create(&format!("log-{n}")).unwrap()).collect();
    for _ in 0..100 {
        let submit = |(n, log): (usize, &Log)| log.submit(&record(n, log.last_index().get() + 1)).unwrap();
        let tickets: Vec<_> = handles.iter().enumerate().map(submit).collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    }
    let copies = || {
        let names =
            std::fs::read_dir(dir.path().join("group-1")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".run")).count()
    };
    let full = logs.groups()[&1].status().segments - 1;
    eventually("all full segments are sorted", || copies() as u64 >= full);
    // The records in the middle of the first segment come from its copy.
    let first = dir.path().join("group-1").join(format!("{:020}.seg", 1));
    let bytes = std::fs::read(&first).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&first).unwrap();
    for at in (bytes.len() / 4..bytes.len() / 2).step_by(64) {
        std::os::unix::fs::FileExt::write_all_at(&file, &[bytes[at] ^ 8], at as u64).unwrap();
    }
    for (n, log) in handles.iter().enumerate() {
        let mut reader = log.reader(Start::First).unwrap();
        for index in 1..=100 {
            assert_eq!(reader.next_record().unwrap().unwrap().data, record(n, index));
        }
        assert_eq!(log.read(Index(50)).unwrap().data, record(n, 50));
    }
}
