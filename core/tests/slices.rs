//! Slices: the newest records of a log are in the object store soon after they are committed, and come back from there alone.
#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use chiplog::backup::{Backup, Inventory, Pin, RestoreOptions, RestoreTo};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, ObjectInfo, Vault};
use chiplog::{ErrorKind, Index, Log, LogId, NodeId, Options, Start};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

/// Slices every 10 ms, and objects that are far from full.
fn options(vault: &Arc<impl Vault + 'static>) -> Options {
    let interval = Some(Duration::from_millis(10));
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).slice_interval(interval)
}

fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn append(log: &Log, count: u64) {
    let last = log.last_index().get();
    let tickets: Vec<_> = (last + 1..=last + count).map(|n| log.submit(&record(n)).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn all_sliced(log: &Log) {
    eventually("everything is in a slice", || {
        let metrics = log.metrics();
        metrics.sliced_index == log.last_index().get() && metrics.unsliced_bytes == 0
    });
}

fn read_all(log: &Log, from: u64, to: u64) {
    assert_eq!((log.first_index().get(), log.last_index().get()), (from, to));
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for n in from..=to {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn fetch(vault: &dyn Vault, log: LogId, dir: &Path) -> chiplog::Result<Backup> {
    Backup::fetch(vault, log, dir, &mut |done, total| assert!(done <= total))
}

/// The log that comes back from the object store alone.
fn again(vault: &dyn Vault, id: LogId, dir: &Path) -> (Log, Vec<String>) {
    let at = |name: &str| dir.join(format!("{name}{}", std::fs::read_dir(dir).unwrap().count()));
    let backup = fetch(vault, id, &at("backup")).unwrap();
    backup.check(&mut |_, _| {}).unwrap();
    let place = at("again");
    backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    (Log::open(place, Options::with_segment_bytes(1 << 20)).unwrap(), backup.notes().to_vec())
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
    session.append(&record(1001)).unwrap();
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
    // Slices that reach behind the newest object stay, and there are none of objects.
    eventually("slices go", || slices(&*vault, id).len() < 8);
    let found = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
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
        assert_eq!(notes.len(), usize::from(damage != "missing"), "{damage}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains(bad)), "{notes:?}");
        let end = log.last_index().get();
        assert!((10..90).contains(&end) && last.is_none_or(|last| last == end), "{damage}: {end}");
        assert_eq!(found.last, Some(Index(end)));
        last = Some(end);
        read_all(&log, 1, end);
    }
    // Another slice with the same entries bridges the gap.
    vault.put(bad, &[bytes]).unwrap();
    let (log, _) = again(&*vault, id, dir.path());
    read_all(&log, 1, 90);
    // Without the slice that begins with a state there is no log.
    vault.delete(names.iter().find(|name| name.ends_with(".begin")).unwrap()).unwrap();
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

/// An object store in which every other list of slices has one that is gone when it is read, as if an object had it.
#[derive(Debug, Default)]
struct Moving {
    memory: MemoryVault,
    moves: AtomicBool,
    lists: AtomicUsize,
}

impl Vault for Moving {
    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        self.memory.put(name, pieces)
    }

    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        self.memory.create(name, bytes)
    }

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        self.memory.get(name, range)
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        self.memory.size(name)
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        let mut found = self.memory.list(prefix)?;
        if prefix.ends_with("/s/")
            && self.moves.load(Ordering::SeqCst)
            && self.lists.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
        {
            let mut next = found.last().unwrap().clone();
            let last = range(&next.name).1 + 1;
            next.name = format!("{prefix}{last:020}.{last:020}.{:020}", 1_u64 << 40);
            found.push(next);
        }
        Ok(found)
    }

    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.memory.delete(name)
    }
}

/// Slices that go before they are read may be in an object: the fetch makes no shorter log of the others.
#[test]
fn slices_that_go_all_the_time_end_the_fetch() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Moving::default()));
    let log = Log::open(dir.path().join("lost"), options(&vault)).unwrap();
    append(&log, 10);
    all_sliced(&log);
    let id = log.log_id();
    drop(log);
    vault.moves.store(true, Ordering::SeqCst);
    let error = fetch(&*vault, id, &dir.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(!dir.path().join("none").exists() && vault.lists.load(Ordering::SeqCst) == 10);
    vault.moves.store(false, Ordering::SeqCst);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 10);
}

/// An object store that refuses slices with which a chain begins.
#[derive(Debug, Default)]
struct NoBegin {
    memory: MemoryVault,
    refuses: AtomicBool,
}

impl Vault for NoBegin {
    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        if name.ends_with(".begin") && self.refuses.load(Ordering::SeqCst) {
            return Err(chiplog::Error::new(ErrorKind::Unavailable, "refused"));
        }
        self.memory.put(name, pieces)
    }

    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        self.memory.create(name, bytes)
    }

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        self.memory.get(name, range)
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        self.memory.size(name)
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        self.memory.list(prefix)
    }

    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.memory.delete(name)
    }
}

/// All objects are discarded, and no slice begins with the state behind them yet: they stay, because slices continue them.
#[test]
fn last_objects_stay_until_slices_begin_again() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(NoBegin::default()));
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let log = Log::open(dir.path().join("lost"), options).unwrap();
    let id = log.log_id();
    append(&log, 500);
    eventually("objects are stored", || log.metrics().stored_bytes > 200_000);
    all_sliced(&log);
    vault.refuses.store(true, Ordering::SeqCst);
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
    vault.refuses.store(false, Ordering::SeqCst);
    all_sliced(&log);
    eventually("objects are deleted", || objects() == 0);
    drop(log);
    let (log, _) = again(&*vault, id, dir.path());
    read_all(&log, 501, 510);
}

fn replica(dir: &Path, node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, options: Options) -> Log {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.election_timeout = Duration::from_millis(300);
    cluster.heartbeat = Duration::from_millis(30);
    Log::open(dir, options.cluster(cluster)).unwrap()
}

/// Leaders change while slices are stored, then all replicas are lost: every record up to the last slice comes back.
#[test]
fn new_leader_continues_the_slices_of_the_old_one() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dir = tempfile::tempdir().unwrap();
    let options = || options(&vault).object_bytes(128 << 10);
    let open = |node: u64, bootstrap| {
        replica(&dir.path().join(node.to_string()), node, bootstrap, &network, options())
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
