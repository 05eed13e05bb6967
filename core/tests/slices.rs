//! Slices: the newest records of a log are in the object store soon after they are committed, and come back from there alone.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/sliced_log.rs"]
mod sliced_log;

#[path = "support/replica.rs"]
mod replica;

use bytes::Bytes;
use chiplog::backup::{Backup, Inventory, Pin, RestoreOptions, RestoreTo};
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, ObjectInfo, Vault};
use chiplog::{Durability, Error, ErrorKind, Index, Log, LogId, NodeId, Options};
use replica::replica_over;
use sliced_log::{again, all_sliced, append_all, eventually, fetch, read_from_to, record_of};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SEGMENT: u32 = 256 << 10;

/// Slices every 10 ms, and objects that are far from full.
fn options(vault: &Arc<impl Vault + 'static>) -> Options {
    let interval = Some(Duration::from_millis(10));
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).slice_interval(interval)
}

/// The least size of records.
const LEAST: usize = 300;

fn record(n: u64) -> Vec<u8> {
    record_of(n, LEAST)
}

fn append(log: &Log, count: u64) {
    append_all(log, count, LEAST);
}

fn read_all(log: &Log, from: u64, to: u64) {
    read_from_to(log, from, to, LEAST);
}

fn slices(vault: &dyn Vault, id: LogId) -> Vec<String> {
    let found = vault.list(&format!("{:032x}/s/", id.get())).unwrap();
    found.into_iter().map(|slice| slice.name).collect()
}

/// The first and the last entry in a slice's name.
fn range(name: &str) -> (u64, u64) {
    let numbers: Vec<u64> = name.rsplit('/').next().unwrap().split('.').flat_map(str::parse).collect();
    (numbers[0], numbers[1])
}

/// Without any object: the first slice begins with the log's state. Sessions and everything else are in slices, too.
#[test]
fn log_without_objects_comes_back_from_slices_alone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path().join("lost"), options(&vault)).unwrap();
    append(&log, 500);
    all_sliced(&log);
    append(&log, 500);
    let mut session = log.open_session().unwrap();
    let ticket = session.submit(&record(1001)).unwrap();
    ticket.wait().unwrap();
    assert_eq!(ticket.durability(), Some(Durability::MajoritySlices));
    log.discard(Index(10)).unwrap();
    all_sliced(&log);
    let metrics = log.metrics();
    assert!(metrics.stored_slices >= 2 && metrics.sliced_bytes > 500_000, "{metrics:?}");
    assert_eq!((metrics.stored_index, metrics.slice_failures), (0, 0));
    let id = log.log_id();
    // An idle log stores nothing more.
    let count = slices(&*vault, id).len();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(slices(&*vault, id).len(), count);
    drop((session, log));
    std::fs::remove_dir_all(dir.path().join("lost")).unwrap();
    assert_eq!(Backup::logs_in(&*vault).unwrap(), [id]);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 10, 1001);
    assert_eq!(log.status().sessions, 1);
}

/// Slices follow the newest object. Those that an object has overtaken go.
#[test]
fn slices_continue_the_newest_object_and_go_once_another_has_them() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_bytes(128 << 10).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path().join("lost"), options()).unwrap();
    for _ in 0..40 {
        append(&log, 100);
        all_sliced(&log);
    }
    let id = log.log_id();
    eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
    all_sliced(&log);
    assert!(log.metrics().stored_index < log.metrics().sliced_index);
    // Slices that reach behind the newest object stay: those that a fetch takes.
    let made = log.metrics().stored_slices;
    let found = || Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
    eventually("slices go", || {
        let found = found();
        found.slices == found.used && found.slices < made
    });
    let found = found();
    assert!(found.faults.is_empty() && !found.is_cut_off, "{found:?}");
    assert_eq!(found.last, Some(Index(4000)));
    let to = RestoreOptions::default().to(RestoreTo::Index(Index(3999)));
    let backup = fetch(&*vault, id, &dir.path().join("backup")).unwrap();
    assert_eq!((backup.info().first, backup.info().last), (Index(1), Index(4000)));
    backup.restore(dir.path().join("before"), &to, &mut |_, _| {}).unwrap();
    drop(log);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 4000);
}

/// Beside servers, a slice that is being put can be missing while a later one is there already, and an object can go after it was listed.
/// Neither is damage.
#[test]
fn slice_that_is_being_put_is_no_fault() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (id, names) = several(&memory, dir.path(), 9);
    let late = names[names.len() / 2].clone();
    let bytes = memory.get(&late, 0..memory.size(&late).unwrap().unwrap()).unwrap();
    let whole = Backup::slices_in(&*memory, id, &mut |_| {}).unwrap();
    memory.delete(&late).unwrap();
    let (vault, mut lists) = (HookedVault::new(memory.clone()), 0);
    vault.set(move |call, name| {
        lists += usize::from(call == "list" && name.ends_with("/s/"));
        match lists {
            3 => memory.put(&late, std::slice::from_ref(&bytes)),
            _ => Ok(()),
        }
    });
    assert_eq!(Backup::slices_in(&vault, id, &mut |_| {}).unwrap(), whole);
}

#[test]
fn object_that_goes_after_it_was_listed_is_looked_for_again() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options(&memory).object_bytes(128 << 10)).unwrap();
    (0..8).for_each(|_| append(&log, 100));
    eventually("objects are stored", || log.metrics().stored_objects > 1);
    all_sliced(&log);
    let id = log.log_id();
    drop(log);
    let whole = Backup::slices_in(&*memory, id, &mut |_| {}).unwrap();
    let (vault, mut is_gone) = (HookedVault::new(memory), false);
    vault.set(move |call, name| match call == "get" && name.contains("/o/") && !is_gone {
        true => {
            is_gone = true;
            Err(Error::new(ErrorKind::NotFound, name))
        }
        false => Ok(()),
    });
    assert_eq!(Backup::slices_in(&vault, id, &mut |_| {}).unwrap(), whole);
}

/// Slices of a log, one for each time that something is appended.
fn several(vault: &Arc<MemoryVault>, dir: &Path, count: u64) -> (LogId, Vec<String>) {
    let log = Log::open(dir, options(vault)).unwrap();
    for _ in 0..count {
        append(&log, 10);
        all_sliced(&log);
    }
    let names = slices(&**vault, log.log_id());
    assert!(names.len() as u64 >= count, "{names:?}");
    let there = Inventory::take(&**vault, log.log_id()).unwrap();
    assert_eq!((there.slices.objects, there.unknown.objects), (names.len() as u64, 0), "{there:?}");
    (log.log_id(), names)
}

/// A slice is missing or damaged in the middle: the log ends there, and the fetch says so. Damage is never served.
#[test]
fn log_ends_before_a_missing_or_damaged_slice() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (id, names) = several(&vault, &dir.path().join("lost"), 9);
    let bad = &names[names.len() / 2];
    let bytes = vault.get(bad, 0..vault.size(bad).unwrap().unwrap()).unwrap();
    let (whole, _) = again(&*vault, id, dir.path());
    read_all(&whole, 1, 90);
    let mut last = None;
    for damage in ["flipped", "short", "missing", "another"] {
        match damage {
            "flipped" => {
                let mut flipped = bytes.to_vec();
                flipped[bytes.len() / 2] ^= 4;
                vault.put(bad, &[flipped.into()]).unwrap();
            }
            "short" => vault.put(bad, &[bytes.slice(..bytes.len() / 2)]).unwrap(),
            "missing" => vault.delete(bad).unwrap(),
            _ => {
                let other = &names[names.len() / 2 + 1];
                let other = vault.get(other, 0..vault.size(other).unwrap().unwrap()).unwrap();
                vault.put(bad, &[other]).unwrap();
            }
        }
        let found = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
        assert!(found.is_cut_off && found.used < names.len() as u64, "{damage}: {found:?}");
        let (log, notes) = again(&*vault, id, dir.path());
        let (named, others): (Vec<_>, Vec<_>) = notes.iter().partition(|note| note.contains(bad));
        assert_eq!(named.len(), usize::from(damage != "missing"), "{damage}: {notes:?}");
        assert!(named.iter().all(|note| note.starts_with("slice ")), "{notes:?}");
        assert!(
            others.len() == 1 && others[0].starts_with("the log ends early: slices"),
            "{damage}: {notes:?}"
        );
        let end = log.last_index().get();
        assert!((10..90).contains(&end) && last.is_none_or(|last| last == end), "{damage}: {end}");
        assert_eq!(found.last, Some(Index(end)));
        last = Some(end);
        read_all(&log, 1, end);
    }
    // Another slice with the same entries bridges the gap.
    vault.put(bad, &[bytes]).unwrap();
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 90);
    // A damaged slice whose entries all are in others shortens nothing: it is named, and the log does not end early.
    let spare = names.iter().find(|name| !name.ends_with(".begin")).unwrap();
    let (first, last) = range(spare);
    let number = |n: u64| format!("{n:020}");
    let stray = spare.replace(
        &format!("{}.{}", number(first), number(last)),
        &format!("{}.{}", number(first), number(last + 2)),
    );
    assert!(stray != *spare && !names.contains(&stray), "{first} to {last}: {stray}");
    vault.put(&stray, &[vault.get(spare, 0..40).unwrap()]).unwrap();
    let whole = fetch(&*vault, id, &dir.path().join("whole")).unwrap();
    assert!(
        !whole.ends_early() && whole.notes().len() == 1 && whole.notes()[0].contains(&stray),
        "{:?}",
        whole.notes()
    );
    assert_eq!(whole.info().last, Index(90));
    vault.delete(&stray).unwrap();
    // A damaged slice that begins with a state is not taken for a log without slices.
    let begin = names.iter().find(|name| name.ends_with(".begin")).unwrap();
    let mut flipped = vault.get(begin, 0..vault.size(begin).unwrap().unwrap()).unwrap().to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    vault.put(begin, &[flipped.into()]).unwrap();
    let error = fetch(&*vault, id, &dir.path().join("none")).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(begin), "{error}");
    // Without it there is no log.
    vault.delete(begin).unwrap();
    let error = fetch(&*vault, id, &dir.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!dir.path().join("none").exists());
}

/// The object store is down, or loses answers: appends do not wait, and everything is sliced once it is back.
#[test]
fn faults_of_the_object_store_delay_slices_and_lose_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let down = || FaultOptions::default().refused(1000);
    let vault = Arc::new(FaultyVault::new(below.clone(), 7, down()));
    let log = Log::open(dir.path().join("lost"), options(&vault).slice_bytes(512 << 10)).unwrap();
    append(&log, 3000); // 2 MB
    assert_eq!(log.last_index().get(), 3000, "appends do not wait for it");
    eventually("failures are counted", || log.metrics().slice_failures > 1);
    let metrics = log.metrics();
    assert_eq!((metrics.sliced_index, metrics.stored_slices), (0, 0));
    assert!(metrics.unsliced_bytes > 1_800_000, "{metrics:?}");
    // Time-outs after success, and everything else.
    let faults = FaultOptions::default().refused(50).unanswered(100).missing(30).flipped(30).short(30);
    vault.set_faults(faults);
    all_sliced(&log);
    append(&log, 500);
    all_sliced(&log);
    let id = log.log_id();
    drop(log);
    let (log, _) = again(&*below, id, dir.path());
    read_all(&log, 1, 3500);
}

/// Appends were confirmed as `majority+slices` although no slice had been stored for long.
#[test]
fn confirmations_say_that_slices_fail() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(vault));
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    let durability = || {
        let ticket = log.submit(b"x").unwrap();
        ticket.wait().unwrap();
        ticket.durability().unwrap()
    };
    assert_eq!(durability(), Durability::MajoritySlices);
    vault.set(|call, name| match matches!(call, "put" | "create") && name.contains("/s/") {
        true => Err(Error::new(ErrorKind::PermissionDenied, "injected: the store is read-only")),
        false => Ok(()),
    });
    eventually("confirmations say so", || durability() == Durability::Majority);
    vault.set(|_, _| Ok(()));
    eventually("slices are stored again", || durability() == Durability::MajoritySlices);
}

/// `root` goes first when a log is removed from the object store. Each attempt of a server that still runs it put a slice of another name.
#[test]
fn no_slice_is_put_once_the_root_is_gone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    append(&log, 10);
    all_sliced(&log);
    let id = log.log_id();
    let root = format!("{:032x}/root", id.get());
    let text = vault.get(&root, 0..vault.size(&root).unwrap().unwrap()).unwrap();
    vault.delete(&root).unwrap();
    let next_fails = || {
        append(&log, 1);
        let failures = log.metrics().slice_failures;
        eventually("another attempt fails", || log.metrics().slice_failures > failures);
    };
    next_fails();
    let before = slices(&*vault, id);
    (0..4).for_each(|_| next_fails());
    assert_eq!(slices(&*vault, id), before);
    // It was a directory that was not mounted for a while: they go on.
    vault.create(&root, text).unwrap();
    all_sliced(&log);
}

/// A restart goes on behind the slices that are there, and stores none of them again.
#[test]
fn restart_goes_on_behind_its_slices() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let place = dir.path().join("lost");
    let (id, names) = several(&vault, &place, 3);
    let last = names.iter().map(|name| range(name).1).max().unwrap();
    let log = Log::open(&place, options(&vault)).unwrap();
    append(&log, 10);
    all_sliced(&log);
    let new: Vec<_> = slices(&*vault, id).into_iter().filter(|name| !names.contains(name)).collect();
    assert!(!new.is_empty() && new.iter().all(|name| range(name).0 > last), "{new:?} behind {last}");
    drop(log);
    let (log, _) = again(&*vault, id, dir.path());
    read_all(&log, 1, 40);
}

/// A log that discards before it has objects keeps few slices, and comes back with what it has.
#[test]
fn discarded_records_take_their_slices_with_them() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path().join("lost"), options(&vault)).unwrap();
    let id = log.log_id();
    for round in 1..=40 {
        append(&log, 100);
        all_sliced(&log);
        if round > 2 {
            log.discard(Index((round - 2) * 100 + 1)).unwrap();
        }
    }
    eventually("slices go", || slices(&*vault, id).len() < 20);
    all_sliced(&log);
    eventually("the last discard is in a slice", || {
        let (log, _) = again(&*vault, id, dir.path());
        log.first_index() == Index(3801)
    });
    drop(log);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 3801, 4000);
}

/// All objects are discarded, and then deleted: slices begin again with the log's state.
#[test]
fn slices_begin_again_once_all_objects_are_discarded() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let log = Log::open(dir.path().join("lost"), options).unwrap();
    let id = log.log_id();
    append(&log, 2000);
    eventually("objects are stored", || log.metrics().stored_bytes > 900_000);
    log.discard(Index(2001)).unwrap();
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap().len();
    eventually("objects are deleted", || objects() == 0);
    append(&log, 20);
    all_sliced(&log);
    drop(log);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 2001, 2020);
}

/// The same while a pin keeps the oldest objects, and after it: they are not taken for the log's end.
#[test]
fn old_objects_under_a_pin_do_not_hide_slices() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let log = Log::open(dir.path().join("lost"), options).unwrap();
    let id = log.log_id();
    append(&log, 2000);
    eventually("objects are stored", || log.metrics().stored_bytes > 900_000);
    let pin = Pin::make(&*vault, id, "early", Some(Index(100))).unwrap();
    log.discard(Index(2001)).unwrap();
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap().len() as u64;
    eventually("the other objects are deleted", || objects() == pin.last_object + 1);
    append(&log, 20);
    all_sliced(&log);
    drop(log);
    for _ in 0..2 {
        let (log, notes) = again(&*vault, id, dir.path());
        assert!(notes.is_empty(), "{notes:?}");
        read_all(&log, 2001, 2020);
        _ = Pin::remove(&*vault, id, "early");
    }
    for name in slices(&*vault, id) {
        vault.delete(&name).unwrap();
    }
    let error = fetch(&*vault, id, &dir.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
    assert!(!dir.path().join("none").exists());
}

/// Changes the names of slices in a list, which is of this number and of this folder.
type ListHook = Box<dyn Fn(usize, &str, &mut Vec<ObjectInfo>) + Send + Sync>;

/// An object store that changes its lists of slices.
struct Listing {
    memory: Arc<MemoryVault>,
    /// How many of them were made.
    lists: AtomicUsize,
    change: ListHook,
}

impl Listing {
    fn new(memory: Arc<MemoryVault>, change: ListHook) -> Self {
        Self { memory, lists: AtomicUsize::new(0), change }
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("lists", &self.lists).finish_non_exhaustive()
    }
}

impl Vault for Listing {
    chiplog::vault::pass_on!(memory: put, create, get, size, delete);

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        let mut found = self.memory.list(prefix)?;
        if prefix.ends_with("/s/") {
            (self.change)(self.lists.fetch_add(1, Ordering::SeqCst), prefix, &mut found);
        }
        Ok(found)
    }
}

/// Slices arrive while a fetch runs, each time with another gap. It needs those that were there at the beginning, and takes more; if a gap
/// is always before these, it ends there in the end.
#[test]
fn slices_that_come_meanwhile_do_not_end_the_fetch() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (id, names) = several(&memory, &dir.path().join("lost"), 9);
    let count = names.len();
    for (first_list, is_early, lists) in [(count - 3, false, 3), (count, true, 9)] {
        // The first list has some of them, and each list lacks one.
        let all = names.clone();
        let change = move |list: usize, _: &str, found: &mut Vec<ObjectInfo>| {
            let (there, lacks) = match list {
                0 => (first_list, 3),
                list if list.is_multiple_of(2) => (count, count - 2),
                _ => (count, count - 1),
            };
            found.retain(|at| all[..there].contains(&at.name) && at.name != all[lacks]);
        };
        let vault = Listing::new(memory.clone(), Box::new(change));
        let backup = fetch(&vault, id, &dir.path().join(format!("{first_list}"))).unwrap();
        assert_eq!(backup.ends_early(), is_early, "{:?}", backup.notes());
        assert_eq!(backup.notes().is_empty(), !is_early, "{:?}", backup.notes());
        assert_eq!(
            backup.info().last_entry.get(),
            range(&names[count - 3]).1,
            "before the one that is not there"
        );
        assert_eq!(vault.lists.load(Ordering::SeqCst), lists, "it looks again as often as it needs");
    }
}

/// Slices that go before they are read may be in an object: the fetch makes no shorter log of the others.
#[test]
fn slices_that_go_all_the_time_end_the_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let moves = Arc::new(AtomicBool::new(false));
    let are_moving = moves.clone();
    // Every other list has one that is gone when it is read, as if an object had it.
    let change = move |list: usize, folder: &str, found: &mut Vec<ObjectInfo>| {
        if are_moving.load(Ordering::SeqCst) && list.is_multiple_of(2) {
            let mut next = found.last().unwrap().clone();
            let last = range(&next.name).1 + 1;
            next.name = format!("{folder}{last:020}.{last:020}.{:020}", 1_u64 << 40);
            found.push(next);
        }
    };
    let vault = Arc::new(Listing::new(Arc::default(), Box::new(change)));
    let log = Log::open(dir.path().join("lost"), options(&vault)).unwrap();
    append(&log, 10);
    all_sliced(&log);
    let id = log.log_id();
    drop(log);
    vault.lists.store(0, Ordering::SeqCst);
    moves.store(true, Ordering::SeqCst);
    let error = fetch(&*vault, id, &dir.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(!dir.path().join("none").exists() && vault.lists.load(Ordering::SeqCst) == 10);
    moves.store(false, Ordering::SeqCst);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 10);
}

/// After a forced change of members slices of the lost majority can be left behind the log's end, of an earlier term: no record of this log
/// is missing. Those of the same term may be its own.
#[test]
fn slices_of_a_lost_majority_do_not_end_the_log_early() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    for _ in 0..2 {
        let log = Log::open(dir.path().join("log"), options(&vault)).unwrap();
        append(&log, 10);
        all_sliced(&log);
    }
    let log = Log::open(dir.path().join("log"), options(&vault)).unwrap();
    all_sliced(&log);
    let (id, term) = (log.log_id(), log.status().replica.term.get());
    drop(log);
    assert!(term >= 3);
    let last = slices(&*vault, id).iter().map(|name| range(name).1).max().unwrap();
    for (of, is_early) in [(term - 1, false), (term, true)] {
        let name = format!("{:032x}/s/{:020}.{:020}.{of:020}", id.get(), last + 1, last + 50);
        vault.put(&name, &["of another history".into()]).unwrap();
        let backup = fetch(&*vault, id, &dir.path().join(format!("{of}"))).unwrap();
        assert_eq!(
            (backup.ends_early(), backup.notes().is_empty()),
            (is_early, !is_early),
            "{:?}",
            backup.notes()
        );
        let summary = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
        assert_eq!((summary.is_cut_off, summary.faults.is_empty()), (is_early, !is_early), "{summary:?}");
        vault.delete(&name).unwrap();
    }
}

/// A log that goes on: whenever the fetch reads a slice for the second time, an object overtakes it before.
struct Overtaking {
    memory: Arc<MemoryVault>,
    log: Log,
    reads: Mutex<BTreeMap<String, u32>>,
}

impl std::fmt::Debug for Overtaking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Overtaking")
    }
}

impl Overtaking {
    /// How often each object was downloaded whole.
    fn downloads(&self) -> Vec<(String, u32)> {
        let reads = self.reads.lock().unwrap();
        let objects = reads.iter().filter(|(name, _)| name.contains("/o/"));
        objects.map(|(name, reads)| (name.clone(), *reads)).collect()
    }
}

impl Vault for Overtaking {
    chiplog::vault::pass_on!(memory: put, create, size, list, delete);

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        if self.memory.size(name)? == Some(range.end) && range.start == 0 {
            let mut reads = self.reads.lock().unwrap();
            let reads = reads.entry(name.to_owned()).or_default();
            *reads += 1;
            if name.contains("/s/") && *reads > 1 {
                eventually("an object overtakes it", || {
                    append(&self.log, 40);
                    self.memory.size(name).unwrap().is_none()
                });
            }
        }
        self.memory.get(name, range)
    }
}

/// A download that lasts longer than an object: it goes on with what it has, and ends although slices always go before they are read.
#[test]
fn fetch_of_a_log_that_goes_on_makes_progress() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path().join("log"), options(&memory).object_bytes(64 << 10)).unwrap();
    let id = log.log_id();
    eventually("objects are stored", || {
        append(&log, 40);
        log.metrics().stored_objects >= 8
    });
    append(&log, 5);
    all_sliced(&log);
    let last = log.last_index().get();
    let before = memory.list(&format!("{:032x}/o/", id.get())).unwrap();
    let vault = Overtaking { memory: memory.clone(), log, reads: Mutex::default() };
    let backup = fetch(&vault, id, &dir.path().join("backup")).unwrap();
    assert!(!backup.ends_early() && backup.notes().is_empty(), "{:?}", backup.notes());
    backup.check(&mut |_, _| {}).unwrap();
    let downloads = vault.downloads();
    assert!(downloads.len() > before.len(), "objects overtook slices: {downloads:?}");
    for (name, count) in &downloads {
        // The newest one of an attempt is downloaded once more, because slices were applied to its file.
        let is_old = before[..before.len() - 1].iter().any(|object| object.name == *name);
        assert!(*count <= if is_old { 1 } else { 2 }, "{name} was downloaded {count} times: {downloads:?}");
    }
    let place = dir.path().join("again");
    backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let again = Log::open(place, Options::with_segment_bytes(1 << 20)).unwrap();
    let end = again.last_index().get();
    assert!(end >= last, "{end}: all that was there at the beginning, to {last}");
    read_all(&again, 1, end);
}

/// Damage in an object is no slice that goes, and no torn end: the fetch ends at once, and names the object.
#[test]
fn damaged_object_ends_a_fetch_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let vault = Arc::new(HookedVault::new(Arc::new(MemoryVault::default())));
    let log = Log::open(dir.path().join("log"), options(&vault).object_bytes(64 << 10)).unwrap();
    let id = log.log_id();
    (0..10).for_each(|_| append(&log, 50));
    eventually("objects are stored", || log.metrics().stored_bytes > 200_000);
    append(&log, 50);
    all_sliced(&log);
    eventually("slices go that the objects have", || {
        let found = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
        found.slices == found.used
    });
    let last = log.last_index().get();
    drop(log);
    let objects = vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    assert!(objects.len() > 2);
    for with_slices in [true, false] {
        if !with_slices {
            slices(&*vault, id).iter().for_each(|name| vault.delete(name).unwrap());
        }
        for object in &objects {
            let sound = vault.get(&object.name, 0..object.bytes).unwrap();
            let mut bytes = sound.to_vec();
            bytes[10_000] ^= 1;
            vault.put(&object.name, &[bytes.into()]).unwrap();
            let reads = Arc::new(AtomicUsize::new(0));
            let (counted, second) = (reads.clone(), objects[1].name.clone());
            vault.set(move |call, name| {
                counted.fetch_add(usize::from(call == "get" && name == second), Ordering::Relaxed);
                Ok(())
            });
            let (place, number) = (dir.path().join("backup"), object.name.rsplit_once('/').unwrap().1);
            match fetch(&*vault, id, &place) {
                // One of the slices behind the newest object can have all of its entries, too.
                Ok(made) => {
                    assert!(with_slices && object.name == objects.last().unwrap().name, "{number}");
                    assert_eq!((made.info().first, made.info().last), (Index(1), Index(last)));
                    std::fs::remove_dir_all(&place).unwrap();
                }
                Err(error) => {
                    assert!(error.kind() == ErrorKind::Corrupt, "{number}, slices {with_slices}: {error}");
                    assert!(reads.load(Ordering::Relaxed) <= 1, "{number}: {reads:?} downloads");
                    assert!(!place.exists());
                }
            }
            vault.set(|_, _| Ok(()));
            vault.put(&object.name, &[sound]).unwrap();
        }
    }
    fetch(&*vault, id, &dir.path().join("backup")).unwrap();
}

/// An object came damaged, so it never counted as stored, and its slices are still there. Then the servers are lost.
#[test]
fn newest_object_that_came_damaged_is_made_of_slices() {
    for stored in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let vault = Arc::new(HookedVault::new(Arc::new(MemoryVault::default())));
        let log = Log::open(dir.path().join("log"), options(&vault).object_bytes(64 << 10)).unwrap();
        let id = log.log_id();
        let list = || vault.list(&format!("{:032x}/o/", id.get())).unwrap();
        eventually("objects are stored", || {
            append(&log, if stored > 0 { 50 } else { 1 });
            list().len() >= stored
        });
        // From here on no slice goes that an object has, as if the object had never counted as stored.
        vault.set(|call, name| match call == "delete" && name.contains("/s/") {
            true => Err(Error::new(ErrorKind::Unavailable, "injected: nothing is deleted")),
            false => Ok(()),
        });
        let before = list().len();
        eventually("another object is stored", || {
            append(&log, 20);
            list().len() > before
        });
        all_sliced(&log);
        let last = log.last_index().get();
        drop(log);
        let newest = list().pop().unwrap();
        let sound = vault.get(&newest.name, 0..newest.bytes).unwrap();
        let place = dir.path().join("backup");
        for damage in ["opening", "records", "footer", "short"] {
            let mut bytes = sound.to_vec();
            let at = match damage {
                "opening" => 4096 + 80,
                "records" => bytes.len() / 2,
                _ => bytes.len() - 20,
            };
            bytes[at] ^= 1;
            if damage == "short" {
                bytes.truncate(20_000);
            }
            vault.put(&newest.name, &[bytes.into()]).unwrap();
            let backup = fetch(&*vault, id, &place).unwrap();
            let told = backup.notes().iter().filter(|note| note.contains(&newest.name)).count();
            assert_eq!((told, backup.notes().len()), (1, 1), "{damage}: {:?}", backup.notes());
            assert_eq!(backup.ends_early(), matches!(damage, "footer" | "short"), "{damage}");
            assert_eq!((backup.info().first, backup.info().last), (Index(1), Index(last)), "{damage}");
            std::fs::remove_dir_all(&place).unwrap();
            let (again, _) = again(&*vault, id, dir.path());
            read_all(&again, 1, last);
        }
        // Without the slices nothing else has its records.
        vault.set(|_, _| Ok(()));
        slices(&*vault, id).iter().for_each(|name| vault.delete(name).unwrap());
        let error = fetch(&*vault, id, &place).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(&newest.name), "{error}");
        assert!(!place.exists());
    }
}

/// Two leaders go on from one log, as after a forced change of members: `lost`, whose slices were put twice from one entry on because an
/// answer was lost, and the one whose term is later. Only what the latter confirmed is in the log.
#[test]
fn slices_of_the_later_term_win_over_longer_ones() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(memory.clone()));
    let path = |name: &str| dir.path().join(name);
    let refuse_slices = || {
        vault.set(|call, name| match call == "put" && name.contains("/s/") {
            true => Err(Error::new(ErrorKind::Unavailable, "injected: no slice")),
            false => Ok(()),
        });
    };
    // One slice has all entries: an attempt that began before the last of them has failed.
    let store = |log: &Log| {
        let failures = log.metrics().slice_failures;
        eventually("attempts fail", || log.metrics().slice_failures > failures + 1);
        vault.set(|_, _| Ok(()));
        all_sliced(log);
    };
    let mut known: Vec<String> = Vec::new();
    let mut newest = || {
        let mut new = slices(&*memory, id_of(&*memory));
        new.retain(|name| !known.contains(name));
        assert!(new.len() == 1 || known.is_empty(), "{new:?}"); // the first one, with the state, can be shorter
        known.extend(new.iter().cloned());
        new.remove(0)
    };
    let one_by_one = |log: &Log, count, least| (0..count).for_each(|_| append_all(log, 1, least));
    let log = Log::open(path("lost"), options(&vault)).unwrap();
    let id = log.log_id();
    refuse_slices();
    append(&log, 10);
    store(&log);
    newest();
    refuse_slices();
    one_by_one(&log, 5, LEAST);
    store(&log);
    let common = newest();
    drop(log);
    copy_files(&path("lost"), &path("other"));
    let bytes = memory.get(&common, 0..memory.size(&common).unwrap().unwrap()).unwrap();
    memory.delete(&common).unwrap();
    refuse_slices();
    let log = Log::open(path("lost"), options(&vault)).unwrap();
    one_by_one(&log, 15, LEAST);
    store(&log);
    let longer = newest();
    drop(log);
    assert!(range(&longer).0 == range(&common).0 && range(&longer).1 > range(&common).1, "{longer} {common}");
    memory.put(&common, &[bytes]).unwrap();
    refuse_slices();
    drop(Log::open(path("other"), options(&vault)).unwrap()); // each opening begins a term
    let log = Log::open(path("other"), options(&vault)).unwrap();
    let least = LEAST + 7;
    append_all(&log, 3, least);
    store(&log);
    let later = newest();
    assert!(
        range(&later).0 == range(&common).1 + 1 && range(&later).1 < range(&longer).1,
        "{later} {longer}"
    );
    let check = |last: u64| {
        let (made, notes) = again(&*memory, id, dir.path());
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(made.last_index(), Index(last));
        for n in 1..=last {
            let least = if n > 15 { least } else { LEAST };
            assert_eq!(made.read(Index(n)).unwrap().data, &record_of(n, least)[..], "{n}");
        }
    };
    check(18);
    // Damaged, or led to by nothing, it still says that the longer one may be of another history.
    for name in [&later, &common] {
        let sound = memory.get(name, 0..memory.size(name).unwrap().unwrap()).unwrap();
        let mut bytes = sound.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        memory.put(name, &[bytes.into()]).unwrap();
        let (made, notes) = again(&*memory, id, dir.path());
        assert!(notes.iter().any(|note| note.starts_with("the log ends early")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains(name) && note.contains("corrupt")), "{notes:?}");
        read_all(&made, 1, 30);
        memory.put(name, &[sound]).unwrap();
    }
    refuse_slices();
    one_by_one(&log, 30, least);
    store(&log);
    assert!(range(&newest()).1 > range(&longer).1);
    check(48);
    drop(log);
    // The later one leads on from nothing without it: the longer one is all that is left, and a note says so.
    memory.delete(&common).unwrap();
    let (made, notes) = again(&*memory, id, dir.path());
    assert!(notes.iter().any(|note| note.contains(&later)), "{notes:?}");
    read_all(&made, 1, 30);
}

/// The only log of an object store.
fn id_of(vault: &dyn Vault) -> LogId {
    Backup::logs_in(vault).unwrap()[0]
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// All objects are discarded, and no slice begins with the state behind them yet: they stay, because slices continue them.
#[test]
fn last_objects_stay_until_slices_begin_again() {
    let dir = tempfile::tempdir().unwrap();
    let vault = Arc::new(HookedVault::new(Arc::new(MemoryVault::default())));
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let log = Log::open(dir.path().join("lost"), options).unwrap();
    let id = log.log_id();
    append(&log, 500);
    eventually("objects are stored", || log.metrics().stored_bytes > 200_000);
    all_sliced(&log);
    // A slice with which a chain begins cannot be stored.
    vault.set(|call, name| match call == "put" && name.ends_with(".begin") {
        true => Err(chiplog::Error::new(ErrorKind::Unavailable, "refused")),
        false => Ok(()),
    });
    log.discard(Index(501)).unwrap();
    append(&log, 10);
    let failures = log.metrics().slice_failures;
    eventually("it tries", || log.metrics().slice_failures > failures + 2);
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap().len();
    assert!(objects() > 0);
    let (again_, _) = again(&*vault, id, dir.path());
    assert!(
        again_.last_index() >= Index(500),
        "what was said to be in slices is lost: {}",
        again_.last_index()
    );
    vault.set(|_, _| Ok(()));
    all_sliced(&log);
    eventually("objects are deleted", || objects() == 0);
    drop(log);
    let (log, _) = again(&*vault, id, dir.path());
    read_all(&log, 501, 510);
}

/// Leaders change while slices are stored, then all replicas are lost: every record up to the last slice comes back.
#[test]
fn new_leader_continues_the_slices_of_the_old_one() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dir = tempfile::tempdir().unwrap();
    let options = || options(&vault).object_bytes(128 << 10);
    let open = |node: u64, bootstrap| {
        replica_over(&dir.path().join(node.to_string()), node, bootstrap, network.transport(), options())
    };
    let one = open(1, Bootstrap::Init);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let id = one.log_id();
    let logs = [one.clone(), open(2, Bootstrap::Join(id)), open(3, Bootstrap::Join(id))];
    for (node, log) in [(2, &logs[1]), (3, &logs[2])] {
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        one.change_members(&[Change::Promote(node)], Duration::from_secs(20)).unwrap();
    }
    let mut last = 1;
    let leading = || logs.iter().position(|log| log.role() == Role::Leader);
    for round in 0..9 {
        last += 60;
        // An append of unknown outcome is found: the record at an index is always the same.
        eventually("it is appended and in a slice", || {
            let Some(leader) = leading() else { return false };
            let log = &logs[leader];
            let missing = log.last_index().get() + 1..=last;
            let is_there = missing.into_iter().all(|n| log.append(&record(n)).is_ok());
            is_there && log.metrics().sliced_index >= last
        });
        if let Some(leader) = leading().filter(|_| round < 8) {
            _ = logs[leader].transfer_leader(NodeId((leader as u64 + 1) % 3 + 1), Duration::from_secs(5));
        }
    }
    drop(logs);
    drop(one);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, last);
}

#[test]
fn wrong_options_are_refused() {
    let vault = Arc::new(MemoryVault::default());
    let check = |options: Options| options.check().map_err(|e| (e.kind(), e.to_string()));
    for wrong in [
        options(&vault).slice_interval(Some(Duration::from_millis(9))),
        options(&vault).slice_interval(Some(Duration::from_secs(61))),
        options(&vault).slice_bytes((512 << 10) - 1),
        options(&vault).slice_bytes((8 << 20) + 1),
        options(&vault).vault(None),
    ] {
        let (kind, text) = check(wrong).unwrap_err();
        assert!(kind == ErrorKind::InvalidArgument && text.contains("slice_"), "{text}");
    }
    check(options(&vault).slice_interval(None)).unwrap();
    check(options(&vault).slice_bytes(8 << 20)).unwrap();
}
