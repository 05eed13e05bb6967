//! Holes in the sorted copies of shared groups: where logs were deleted, or have discarded their records, the disk gets its space
//! back, and nothing else changes.
#![cfg(feature = "testing")] // opens the simulated disk
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::disk::Disk as _;
use chiplog::disk::sim::{Call, Damage, Fault, Image, Landed, Op, SimDisk, Trouble};
use chiplog::{ErrorKind, Index, Log, Logs, LogsOptions, Options, ReadMode, Start};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;
const LOGS: usize = 12;

/// A group of named logs on simulated disks.
struct Group {
    system: SimDisk,
    disk: SimDisk,
    logs: Logs,
    handles: Vec<Log>,
}

fn options(mode: ReadMode) -> LogsOptions {
    let options = Options::with_segment_bytes(SEGMENT).sessions_max(8).read_mode(mode);
    LogsOptions::default().groups(1).options(options)
}

fn open(system: &SimDisk, disk: &SimDisk) -> chiplog::Result<Logs> {
    let disks = vec![Arc::new(disk.clone()) as Arc<dyn chiplog::disk::Disk>];
    Logs::open_on(Arc::new(system.clone()), disks, options(ReadMode::Read))
}

fn name(n: usize) -> String {
    format!("log-{n}")
}

fn record(log: usize, index: u64) -> Vec<u8> {
    let mut record = format!("log {log} record {index} ").into_bytes();
    record.resize(600 + (index % 5 * 100) as usize, log as u8 + 1);
    record
}

fn append(handles: &[Log], count: usize) {
    for _ in 0..count {
        let submit = |(n, log): (usize, &Log)| log.submit(&record(n, log.last_index().get() + 1)).unwrap();
        let tickets: Vec<_> = handles.iter().enumerate().map(submit).collect();
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
    }
}

fn append_one(handles: &[Log], n: usize) {
    handles[n].append(&record(n, handles[n].last_index().get() + 1)).unwrap();
}

/// Checks every record of a log from its first one on.
fn read(n: usize, log: &Log) {
    let mut reader = log.reader(Start::First).unwrap();
    for index in log.first_index().get()..=log.last_index().get() {
        let found = reader.next_record().unwrap().unwrap();
        assert_eq!((found.index.get(), found.data), (index, &record(n, index)[..]), "log {n}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Group {
    /// With copies of all full segments, of which there are several.
    fn filled() -> Self {
        Self::filled_on(SimDisk::default())
    }

    fn filled_on(disk: SimDisk) -> Self {
        let system = SimDisk::default();
        let logs = open(&system, &disk).unwrap();
        let handles: Vec<_> = (0..LOGS).map(|n| logs.create(&name(n)).unwrap()).collect();
        append(&handles, 100);
        let group = Self { system, disk, logs, handles };
        group.await_copies();
        group
    }

    fn copies(&self) -> Vec<String> {
        let mut names = self.disk.list().unwrap();
        names.retain(|name| name.ends_with(".run"));
        names.sort();
        names
    }

    fn await_copies(&self) {
        let full = || self.logs.groups()[&1].status().segments as usize - 1;
        eventually("all full segments are sorted", || self.copies().len() >= full());
        assert!(full() >= 3, "{}", full());
    }

    /// The bytes that the copies take.
    fn used(&self) -> u64 {
        self.copies().iter().map(|name| self.disk.open(name, false).unwrap().allocated().unwrap()).sum()
    }

    /// The bytes of the copies that are not zero.
    fn written(&self) -> usize {
        let image = self.disk.visible();
        self.copies().iter().map(|name| written_in(&image, name)).sum()
    }
}

fn written_in(image: &Image, name: &str) -> usize {
    image.file(name).map_or(0, |bytes| bytes.iter().filter(|b| **b != 0).count())
}

#[test]
fn deleted_and_discarded_records_take_no_space() {
    let mut group = Group::filled();
    let (before, written) = (group.used(), group.written());
    for n in [2, 3, 4] {
        group.logs.delete(&name(n)).unwrap();
    }
    eventually("three of twelve logs leave holes", || group.used() < before - before / 6);
    let deleted = group.used();
    // Up to two pages of a log stay in each copy, so one log alone may leave less.
    [7, 8].iter().for_each(|n| group.handles[*n].discard(Index(90)).unwrap());
    eventually("records of two logs leave holes", || group.used() < deleted - before / 20);
    assert!(group.written() < written - written / 5, "holes read as zeros");
    let others = |n: &usize| ![2, 3, 4].contains(n);
    (0..LOGS).filter(others).for_each(|n| read(n, &group.handles[n]));
    assert_eq!(group.handles[7].first_index(), Index(90));
    assert_eq!(group.handles[7].read(Index(89)).unwrap_err().kind(), ErrorKind::Discarded);
    // A handle of a deleted log can still find what the segments have, and nothing else.
    match group.handles[3].read(Index(1)) {
        Ok(found) => assert_eq!(found.data, record(3, 1)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
    }
    // The copies are not taken for damaged ones.
    let (copies, image) = (group.copies(), group.disk.visible());
    group.handles.clear();
    group.logs.close().unwrap();
    group.logs = open(&group.system, &group.disk).unwrap();
    (0..LOGS).filter(others).for_each(|n| read(n, &group.logs.get(&name(n)).unwrap()));
    assert_eq!(group.copies(), copies);
    // Another look can have made more holes, and nothing else.
    for name in &copies {
        let (before, now) = (image.file(name).unwrap(), group.disk.visible().file(name).unwrap());
        assert_eq!(before.len(), now.len());
        assert!(before.iter().zip(&now).all(|(before, now)| before == now || *now == 0), "{name}");
    }
}

/// Where a log ends in a copy was looked for in the opening of the next segment alone. If that was damaged, the copy got no holes.
#[test]
fn damaged_opening_keeps_no_copy_from_its_holes() {
    let group = Group::filled();
    let first = group.copies()[0].clone();
    let used = || group.disk.open(&first, false).unwrap().allocated().unwrap();
    let before = used();
    assert!(group.disk.damage(&format!("{:020}.seg", 2), &Damage::FlipBit { bit: (4096 + 64 + 20) * 8 }));
    group.logs.delete(&name(5)).unwrap();
    eventually("the first copy gets a hole", || used() < before);
    for n in (0..LOGS).filter(|n| *n != 5) {
        read(n, &group.handles[n]);
    }
}

/// A power cut before the holes leaves a disk without them. They are made once the group is open again.
#[test]
fn holes_are_made_after_a_restart() {
    let group = Group::filled();
    let before = group.used();
    group.disk.refuse_holes();
    group.logs.delete(&name(5)).unwrap();
    append_one(&group.handles, 0);
    group.logs.close().unwrap();
    let disk = SimDisk::new(group.disk.visible());
    let group = Group { logs: open(&group.system, &disk).unwrap(), disk, handles: vec![], ..group };
    eventually("the deleted log leaves holes", || group.used() < before - before / 20);
    for n in (0..LOGS).filter(|n| *n != 5) {
        read(n, &group.logs.get(&name(n)).unwrap());
    }
}

/// Each sector of a hole has its old bytes or zeros after a power cut. Nothing else changes.
#[test]
fn power_cut_while_holes_are_made() {
    let group = Group::filled();
    let (begin, before) = (group.disk.history_len(), group.used());
    group.logs.delete(&name(1)).unwrap();
    group.handles[8].discard(Index(70)).unwrap();
    eventually("holes are made", || group.used() < before - before / 16);
    append_one(&group.handles, 2);
    group.logs.close().unwrap();
    let (system, history) = (group.system.visible(), group.disk.history());
    let is_hole = |op: &Op| matches!(op, Op::Write { data, offset, .. } if *offset >= 4096 && data.iter().all(|b| *b == 0));
    let mut tried = 0;
    for (at, state) in history.states().enumerate().skip(begin) {
        let is_next = |n: usize| history.ops.get(n).is_some_and(is_hole);
        let is_beside_one = is_next(at) || at > 0 && is_next(at - 1);
        if !is_beside_one {
            continue;
        }
        for image in state.crashes(16, 6, at as u64) {
            let (system, disk) = (SimDisk::new(system.clone()), SimDisk::new(image));
            let mut copies = disk.list().unwrap();
            copies.retain(|name| name.ends_with(".run"));
            // Neither are records read from the segments instead, nor are copies made of these again.
            for copy in &copies {
                for at in (u64::from(SEGMENT) / 4..u64::from(SEGMENT) / 2).step_by(512) {
                    assert!(disk.damage(&copy.replace(".run", ".seg"), &Damage::FlipBit { bit: at * 8 }));
                }
            }
            let logs = open(&system, &disk).unwrap();
            for n in (0..LOGS).filter(|n| *n != 1) {
                let log = logs.get(&name(n)).unwrap();
                assert!(log.last_index() >= Index(100));
                read(n, &log);
            }
            assert_eq!(logs.get(&name(1)).unwrap_err().kind(), ErrorKind::NotFound);
            let names = disk.list().unwrap();
            assert!(copies.iter().all(|copy| names.contains(copy)), "a copy was removed: {names:?}");
            logs.close().unwrap();
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn file_system_without_holes_changes_nothing() {
    let disk = SimDisk::default();
    disk.refuse_holes();
    let group = Group::filled_on(disk);
    let image = group.disk.visible();
    group.logs.delete(&name(2)).unwrap();
    append_one(&group.handles, 4);
    group.logs.close().unwrap();
    let group = Group { logs: open(&group.system, &group.disk).unwrap(), ..group };
    for n in (0..LOGS).filter(|n| *n != 2) {
        read(n, &group.logs.get(&name(n)).unwrap());
    }
    assert!(group.copies().iter().all(|name| group.disk.visible().file(name) == image.file(name)));
}

/// The disk fails as a hole is made: appends go on, and the hole is made later.
#[test]
fn hole_that_fails_is_no_failure_of_the_log() {
    let group = Group::filled();
    let before = group.used();
    for name in group.copies() {
        let fault =
            Fault { call: Some(Call::Write), nth: 1, lasting: false, trouble: Trouble::Eio(Landed::Some(7)) };
        assert!(group.disk.plan_on(&name, fault));
    }
    group.logs.delete(&name(0)).unwrap();
    eventually("a hole fails", || group.disk.faults_fired() > 0);
    append_one(&group.handles, 1);
    group.disk.heal();
    group.logs.close().unwrap();
    let group = Group { logs: open(&group.system, &group.disk).unwrap(), handles: vec![], ..group };
    eventually("holes are made after all", || group.used() < before - before / 20);
    for n in 1..LOGS {
        read(n, &group.logs.get(&name(n)).unwrap());
    }
}

/// On a real disk with mappings: what a reader holds stays as it is, and so does the file, until the reader lets go.
#[test]
fn bytes_that_a_reader_holds_never_change() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options(ReadMode::Map)).unwrap();
    let handles: Vec<_> = (0..LOGS).map(|n| logs.create(&name(n)).unwrap()).collect();
    append(&handles, 100);
    let copies = || {
        let files = std::fs::read_dir(dir.path().join("group-1")).unwrap();
        let copies = files.map(|file| file.unwrap()).filter(|file| {
            let name = file.file_name();
            name.to_string_lossy().ends_with(".run")
        });
        let mut blocks: Vec<_> =
            copies.map(|file| (file.file_name(), file.metadata().unwrap().blocks())).collect();
        blocks.sort();
        blocks
    };
    let full = logs.groups()[&1].status().segments as usize - 1;
    eventually("all full segments are sorted", || copies().len() >= full);
    let before = copies();
    let mut reader = handles[6].reader(Start::First).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, record(6, 1));
    let held = handles[6].read(Index(3)).unwrap();
    logs.delete(&name(6)).unwrap();
    let probe = tempfile::tempfile_in(dir.path()).unwrap();
    if !has_holes(&probe) {
        println!("skipped: the file system has no holes");
        return;
    }
    // The other copies of the deleted log get their holes; this one is read.
    eventually("copies that nothing reads get holes", || copies()[1].1 < before[1].1);
    assert_eq!(held.data, record(6, 3));
    assert_eq!(copies()[0], before[0], "the first copy is read");
    // The reader goes on with what it has, up to the end of the log.
    for index in 2..=100 {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(6, index));
    }
    assert_eq!(reader.next_record().unwrap_err().kind(), ErrorKind::NotFound);
    drop((reader, held));
    logs.delete(&name(9)).unwrap();
    eventually("the first copy gets its holes, too", || copies()[0].1 < before[0].1);
    for n in (0..LOGS).filter(|n| ![6, 9].contains(n)) {
        read(n, &handles[n]);
    }
}

fn has_holes(file: &std::fs::File) -> bool {
    file.set_len(1 << 20).unwrap();
    file.metadata().unwrap().blocks() == 0
}
