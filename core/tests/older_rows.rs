//! A log of many objects: its own state has rows of the newest ones, and the rows of the others are in objects.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::backup::{Backup, Branch, BranchOptions, Inventory, Pin, RestoreOptions, RestoreTo};
use chiplog::inspect::{Content, Event, Inspector};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, LogId, LogOption, Options, Start};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 128 << 10;
/// How many rows the table keeps, at least.
const ROWS: u64 = 4;

/// The openings of its segments have room for few objects.
fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(64 << 10)
        .local_bytes(u64::from(SEGMENT) * 2)
        .sessions_max(8)
        .session_window(4)
        .object_delete_delay(Duration::from_millis(20))
}

fn record(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(700)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Appends in small blocks, and has an object of each.
fn append(log: &Log, objects: u64) {
    for _ in 0..objects {
        let from = log.last_index().get();
        let tickets: Vec<_> = (from + 1..=from + 10).map(|n| log.submit(&record(n)).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
        log.cut_objects(log.last_index()).unwrap();
        eventually("an object is stored", || log.metrics().stored_index >= log.last_index().get());
    }
}

fn open(dir: &Path, vault: &Arc<MemoryVault>, objects: u64) -> Log {
    let log = Log::open(dir, options(vault)).unwrap();
    append(&log, 1);
    set_rows(&log, ROWS);
    append(&log, objects - 1);
    log
}

fn set_rows(log: &Log, rows: u64) {
    log.set_log_options(&[(LogOption::ObjectRows, Some(rows))], Duration::from_secs(60)).unwrap();
}

fn check(log: &Log, records: Range<u64>) {
    assert_eq!(log.first_index(), Index(records.start));
    let mut reader = log.reader(Start::Index(Index(records.start))).unwrap();
    for n in records.clone() {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(n));
    }
    // From one end to the other, so that runs leave the memory and come again.
    for n in records.clone().rev().step_by(37).chain(records.step_by(29)) {
        assert_eq!(log.read(Index(n)).unwrap().data, record(n), "{n}");
    }
}

/// The numbers of the objects that are there.
fn objects(vault: &MemoryVault, log: LogId) -> BTreeSet<u64> {
    let names = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    names.iter().map(|object| object.name.rsplit('/').next().unwrap().parse().unwrap()).collect()
}

/// The most bytes of an object table in the openings of a directory.
fn table_bytes(dir: &Path) -> usize {
    let mut most = 0;
    let walk = Inspector::open(dir).unwrap().walk(&mut |event| {
        if let Event::Block(block) = event
            && let Ok(Content::Opening { objects_bytes, .. }) = block.content()
        {
            most = most.max(objects_bytes);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(walk.unwrap().corrupt, 0);
    most
}

/// The holders of rows, as the commands in a directory's files say.
fn holders(dir: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    let walk = Inspector::open(dir).unwrap().walk(&mut |event| {
        if let Event::Block(block) = event
            && let Ok(Content::MoveObjectRows { holder, .. }) = block.content()
        {
            found.push(holder);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(walk.unwrap().corrupt, 0);
    found
}

/// Nothing was stored any more once as many objects were there as the openings have room for, unless somebody had set the option in time.
#[test]
fn leader_makes_room_for_more_objects_by_itself() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let most = options(&vault).objects_max() as u64;
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    let rows = || log.log_options().get(LogOption::ObjectRows);
    append(&log, most / 2 - 1);
    assert_eq!(rows(), None, "a log with few objects stays readable for earlier versions");
    append(&log, 2);
    eventually("the option is set", || rows() == Some(1024));
    append(&log, most);
    assert!(objects(&vault, log.log_id()).len() as u64 > most);
    check(&log, 1..log.last_index().get() + 1);
}

#[test]
fn log_has_more_objects_than_its_openings_have_room_for() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let most = options(&vault).objects_max() as u64;
    let count = most + 40;
    let log = open(dir.path(), &vault, count);
    assert!(objects(&vault, log.log_id()).len() as u64 >= count, "{most}");
    check(&log, 1..count * 10 + 1);
    // By number: a list of all of them has no gap.
    let all = log.stored_objects(0, usize::MAX).unwrap();
    assert!(all.iter().map(|object| object.number).eq(0..all.len() as u64) && all.len() as u64 >= count);
    assert!(all.windows(2).all(|two| two[0].next == two[1].first));
    let middle = log.stored_objects(7, 3).unwrap();
    assert_eq!(middle, all[7..10]);
    drop(log);
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    check(&log, 1..count * 10 + 1);
    append(&log, 10);
    check(&log, 1..(count + 10) * 10 + 1);
    drop(log);
    let bytes = table_bytes(dir.path());
    assert!(bytes > 0 && (bytes as u64) < most * 56 / 2, "{bytes} bytes of {most} rows");
}

#[test]
fn search_by_time_finds_objects_whose_rows_are_elsewhere() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), &vault, 40);
    for n in (1..=400).step_by(13) {
        let time = log.read(Index(n)).unwrap().timestamp;
        let found = log.reader(Start::Timestamp(time)).unwrap().position();
        let at = |index: u64| log.read(Index(index)).unwrap().timestamp;
        assert!(found.get() <= n && at(found.get()) >= time, "{n}: {found}");
        assert!(found.get() == 1 || at(found.get() - 1) < time, "{n}: {found}");
    }
}

/// Most objects around the holder have the rows, too.
#[test]
fn loss_of_the_object_with_the_rows_loses_no_row() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), &vault, 40);
    let id = log.log_id();
    drop(log);
    let holder = holders(dir.path()).pop().unwrap();
    let name = format!("{:032x}/o/{holder:020}", id.get());
    let bytes = vault.size(&name).unwrap().unwrap();
    let sound = vault.get(&name, 0..bytes).unwrap();
    let read_all = |but: u64| {
        let log = Log::open(dir.path(), options(&vault).object_scrub(None)).unwrap();
        for n in 1..=400 {
            match log.read(Index(n)) {
                Ok(record_read) => assert_eq!(record_read.data, record(n)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.to_string().contains(&format!("{but:020}")), "{n}: {error}");
                }
            }
        }
    };
    vault.delete(&name).unwrap();
    read_all(holder);
    // Damage in the opening.
    let mut damaged = sound.to_vec();
    damaged[4096..12_000].fill(0x55);
    vault.put(&name, &[damaged.into()]).unwrap();
    read_all(holder);
    vault.put(&name, &[sound]).unwrap();
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    check(&log, 1..401);
}

#[test]
fn discard_in_a_run_deletes_exactly_the_objects_before_it() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), &vault, 60);
    let id = log.log_id();
    let all = log.stored_objects(0, usize::MAX).unwrap();
    for first in [15, 16, 75, 231, 440, 470, 590] {
        log.discard(Index(first)).unwrap();
        let gone = all.iter().take_while(|object| object.next <= Index(first)).count() as u64;
        eventually("objects are deleted", || objects(&vault, id).first() == Some(&gone));
        check(&log, first..601);
        assert_eq!(log.stored_objects(0, 1).unwrap()[0].number, gone);
    }
    append(&log, 30);
    check(&log, 590..901);
    drop(log);
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    check(&log, 590..901);
}

#[test]
fn retention_counts_and_discards_objects_whose_rows_are_elsewhere() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), &vault, 60);
    let id = log.log_id();
    // About 20 objects of 64 KiB, and the files here.
    let bytes = 20 * (64 << 10);
    let change = [(LogOption::RetentionBytes, Some(bytes))];
    log.set_log_options(&change, Duration::from_secs(60)).unwrap();
    eventually("objects are deleted", || objects(&vault, id).len() <= 24);
    let settled = Instant::now();
    let mut before = objects(&vault, id);
    while settled.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(200));
        let now = objects(&vault, id);
        if now == before {
            break;
        }
        before = now;
    }
    // No more than has to go.
    assert!(objects(&vault, id).len() >= 15, "{:?}", objects(&vault, id));
    check_kept(&log, 601);
    append(&log, 40);
    eventually("retention goes on", || objects(&vault, id).len() <= 24);
    check_kept(&log, 1001);
}

/// Checks the records up to `end` that retention has left. It can go on meanwhile, to a record that is read here.
fn check_kept(log: &Log, end: u64) {
    let mut next = log.first_index().get();
    assert!(next < end);
    while next < end {
        match log.read(Index(next)) {
            Ok(found) => assert_eq!(found.data, record(next), "{next}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
                assert!(log.first_index() > Index(next), "{error}");
                next = log.first_index().get();
                continue;
            }
        }
        next += 1;
    }
    assert!(log.first_index() < Index(end));
}

#[test]
fn pins_backups_and_branches_have_objects_whose_rows_are_elsewhere() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(&dir.path().join("log"), &vault, 50);
    let id = log.log_id();
    // The branch does not know of this discard, and the objects before it are gone.
    log.discard(Index(128)).unwrap();
    eventually("objects are deleted", || objects(&vault, id).first() == Some(&12));
    let branch_of = |name: &str, to: u64| {
        let options_of = BranchOptions::default().to(RestoreTo::Index(Index(to)));
        Branch::make(&*vault, id, dir.path().join(name), &options_of).unwrap();
        let branch = Log::open(dir.path().join(name), options(&vault)).unwrap();
        check(&branch, 121..to + 1);
        branch
    };
    let branch = branch_of("branch", 447);
    append(&branch, 30);
    check(&branch, 121..748);
    drop(branch);
    check(&Log::open(dir.path().join("branch"), options(&vault)).unwrap(), 121..748);
    let pin = Pin::make(&*vault, id, "kept", None).unwrap();
    assert_eq!(pin.first_object, 12);
    append(&log, 1);
    let late = branch_of("late", 480);
    late.discard(Index(333)).unwrap();
    append(&late, 20);
    check(&late, 333..681);
    drop(late);
    // The parent has discarded all of it: the pin and the branches keep theirs.
    log.discard(Index(500)).unwrap();
    append(&log, 3);
    eventually("objects are discarded", || log.stored_objects(0, 1).unwrap()[0].first > Index(480));
    check(&Log::open(dir.path().join("branch"), options(&vault)).unwrap(), 121..748);
    check(&Log::open(dir.path().join("late"), options(&vault)).unwrap(), 333..681);

    let whole = dir.path().join("whole");
    Backup::fetch_pin(&*vault, id, "kept", &whole, &mut |_, _| {}).unwrap();
    let restored = dir.path().join("restored");
    Backup::open(&whole).unwrap().restore(&restored, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    check(
        &Log::open(&restored, Options::with_segment_bytes(SEGMENT)).unwrap(),
        pin.first.get()..pin.last.get() + 1,
    );
    assert_eq!(Inventory::take(&*vault, id).unwrap().unknown.objects, 0);
}

/// Without the object store nothing says what old objects are; with it again all is there.
#[test]
fn log_without_its_object_store_says_so() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    drop(open(dir.path(), &vault, 40));
    let alone = options(&vault).vault(None).local_bytes(None);
    let log = Log::open(dir.path(), alone).unwrap();
    assert_eq!(log.read(Index(3)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.read(log.last_index()).unwrap().data, record(400));
    drop(log);
    check(&Log::open(dir.path(), options(&vault)).unwrap(), 1..401);
}

#[test]
fn option_has_bounds_and_stays_set() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), &vault, 2);
    let set = |value| log.set_log_options(&[(LogOption::ObjectRows, value)], Duration::from_secs(60));
    for wrong in [None, Some(1), Some((1 << 16) + 1)] {
        assert_eq!(set(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong:?}");
    }
    set(Some(9)).unwrap();
    assert_eq!(log.log_options().get(LogOption::ObjectRows), Some(9));
}
