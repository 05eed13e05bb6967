//! A log whose older records are in an object store: what is stored, what goes from the disk, and what readers get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::backup::{Backup, Pin, RestoreOptions, RestoreTo};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, LogOption, NodeId, Options, ReadMode, ReadOnlyLog, Start};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).object_bytes(128 << 10)
}

fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn append(log: &Log, count: u64) {
    append_to(&[log], count);
}

/// Appends to the replica that leads. The record at an index is always the same, so that an append of unknown outcome is found.
fn append_to(replicas: &[&Log], count: u64) {
    let begun = Instant::now();
    let (mut at, mut last) = (0, None);
    while last.is_none_or(|(now, end)| now < end) {
        assert!(begun.elapsed() < Duration::from_secs(120), "no replica leads: {last:?}");
        let leader = replicas[at];
        let now = leader.barrier(Duration::from_secs(2)).map(|_| leader.last_index().get());
        let appended = now.and_then(|now| {
            let (_, end) = *last.get_or_insert((now, now + count));
            last = Some((now, end));
            let left = (end - now).min(256);
            let tickets: Vec<_> = (now + 1..=now + left).map(|n| leader.submit(&record(n))).collect();
            tickets.into_iter().try_for_each(|ticket| ticket?.wait().map(drop)).map(|()| left)
        });
        match appended {
            Ok(left) => last = last.map(|(now, end)| (now + left, end)),
            Err(_) => at = (at + 1) % replicas.len(),
        }
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
        assert_eq!(log.log_options().get(LogOption::ObjectBytes), Some(128 << 10));
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

fn replica(dir: &Path, node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, options: Options) -> Log {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.election_timeout = Duration::from_millis(300);
    cluster.heartbeat = Duration::from_millis(30);
    Log::open(dir, options.cluster(cluster)).unwrap()
}

/// Three replicas: a follower stores, all read, and one that was down comes back to a log whose files are gone elsewhere.
#[test]
fn replicas_share_the_objects_of_their_log() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let options = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let open =
        |node: u64, bootstrap| replica(dirs[node as usize - 1].path(), node, bootstrap, &network, options());
    let one = open(1, Bootstrap::Init);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let id = one.log_id();
    let two = open(2, Bootstrap::Join(id));
    let three = open(3, Bootstrap::Join(id));
    for (node, log) in [(2, &two), (3, &three)] {
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        one.change_members(&[Change::Promote(node)], Duration::from_secs(20)).unwrap();
    }
    append_to(&[&one, &two, &three], 3000);
    let stored = || [&one, &two, &three].map(|log| log.metrics().stored_bytes).iter().sum::<u64>();
    eventually("objects are stored", || stored() > 1_500_000);
    drop(three);
    append_to(&[&one, &two], 4000);
    eventually("files go", || {
        append_to(&[&one, &two], 1);
        files(dirs[0].path(), ".seg") <= 8 && files(dirs[1].path(), ".seg") <= 8
    });
    let helped = [&one, &two].iter().filter(|log| log.metrics().stored_objects > 0).count();
    assert!(helped > 0, "a replica stores them");
    let three = open(3, Bootstrap::Existing);
    let last = one.last_index().max(two.last_index());
    eventually("it follows", || [&one, &two, &three].iter().all(|log| log.last_index() == last));
    for log in [&one, &two, &three] {
        assert_eq!(log.first_index().get(), 1);
        eventually("it knows all objects", || {
            log.reader(Start::First).and_then(|mut r| r.next_batch().map(drop)).is_ok()
        });
        read_all(log, 1);
        read_all(log, 3500);
    }
}

/// All replicas are lost: the log comes back from the object store alone, as far as it was stored.
#[test]
fn log_comes_back_from_the_object_store_alone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let place = |name: &str| dir.path().join(name);
    let options =
        || options(&vault).object_age(Duration::from_millis(50)).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(place("lost"), options()).unwrap();
    append(&log, 4000);
    let mut session = log.open_session().unwrap();
    session.append(&record(4001)).unwrap();
    log.discard(Index(100)).unwrap();
    eventually("everything is stored", || {
        let next = log.last_index().get() + 1;
        log.append(&record(next)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        log.metrics().unstored_bytes < 2000
    });
    let (id, last) = (log.log_id(), log.last_index().get());
    drop(session);
    drop(log);
    std::fs::remove_dir_all(place("lost")).unwrap();

    assert_eq!(Backup::logs_in(&*vault).unwrap(), [id]);
    let mut fetched = (0, 0);
    let backup =
        Backup::fetch(&*vault, id, place("backup"), &mut |done, total| fetched = (done, total)).unwrap();
    assert!(fetched.0 == fetched.1 && fetched.0 > 2_000_000, "{fetched:?}");
    assert_eq!(backup.info().log_id, id);
    assert!(backup.info().last.get() >= last - 1, "{:?} of {last}", backup.info());
    backup.check(&mut |_, _| {}).unwrap();
    let to = RestoreOptions::default().to(RestoreTo::Index(Index(3000)));
    backup.restore(place("before"), &to, &mut |_, _| {}).unwrap();
    backup.restore(place("again"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let log = Log::open(place("before"), options()).unwrap();
    // The discard came later.
    assert!(log.first_index().get() <= 100 && log.last_index().get() == 3000, "{:?}", log.status());
    read_all(&log, log.first_index().get());
    // A restored log is another one, with objects of its own.
    let log = Log::open(place("again"), options()).unwrap();
    assert_ne!(log.log_id(), id);
    read_all(&log, 100);
    append(&log, 3000);
    eventually("objects of its own are stored", || log.metrics().stored_bytes > 1_000_000);
    read_all(&log, 100);
    assert!(Backup::logs_in(&*vault).unwrap().contains(&log.log_id()));

    // An object is missing.
    let name = format!("{:032x}/o/{:020}", id.get(), 3);
    let size = vault.size(&name).unwrap().unwrap();
    let bytes = vault.get(&name, 0..size).unwrap();
    vault.delete(&name).unwrap();
    let error = Backup::fetch(&*vault, id, place("less"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!place("less").exists(), "nothing is left of it");
    vault.put(&name, std::slice::from_ref(&bytes)).unwrap();
    // An object is damaged.
    let largest =
        vault.list(&format!("{:032x}/o/", id.get())).unwrap().into_iter().max_by_key(|object| object.bytes);
    let largest = largest.unwrap();
    let mut bad = vault.get(&largest.name, 0..largest.bytes).unwrap().to_vec();
    bad[40_000] ^= 1; // in a record
    vault.put(&largest.name, &[bad.into()]).unwrap();
    let error = Backup::fetch(&*vault, id, place("less"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Objects go with the records that a discard or retention removes, and not before the delay.
#[test]
fn objects_of_discarded_records_are_deleted() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || {
        options(&vault).local_bytes(2 * u64::from(SEGMENT)).object_delete_delay(Duration::from_millis(200))
    };
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 4000);
    eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
    let name = |number: u64| format!("{:032x}/o/{number:020}", log.log_id().get());
    let is_there = |number| vault.size(&name(number)).unwrap().is_some();
    assert!(is_there(0) && is_there(5));
    log.discard(Index(3000)).unwrap();
    eventually("objects are deleted", || !is_there(0) && !is_there(5));
    assert_eq!(log.first_index().get(), 3000);
    read_all(&log, 3000);
    let error = log.read(Index(2999)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded);
    drop(log);
    // Retention counts what is in the object store alone, too.
    let log = Log::open(dir.path(), options().retention_bytes(3 * u64::from(SEGMENT))).unwrap();
    append(&log, 4000);
    eventually("retention discards", || {
        append(&log, 1);
        log.first_index().get() > 6000
    });
    read_all(&log, log.first_index().get());
}

/// The object store fails now and then, for good, and comes back: appends go on, nothing is lost.
#[test]
fn faults_of_the_object_store_delay_and_lose_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let faults = || FaultOptions::default().refused(200).unanswered(200).missing(100).flipped(100).short(100);
    let vault = Arc::new(FaultyVault::new(below.clone(), 7, faults()));
    let options = Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 2000);
    vault.set_faults(FaultOptions::default().refused(1000));
    append(&log, 1000);
    assert_eq!(log.last_index().get(), 3000, "appends do not wait for it");
    vault.set_faults(FaultOptions::default());
    eventually("all is stored once it is back", || log.metrics().stored_bytes > 1_700_000);
    eventually("files go", || {
        append(&log, 1);
        files(dir.path(), ".seg") <= 8
    });
    vault.set_faults(FaultOptions::default().refused(1000));
    let error = log.reader(Start::First).and_then(|mut reader| reader.next_batch().map(drop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    vault.set_faults(faults());
    let mut reader = log.reader(Start::First).unwrap();
    let mut next = 1;
    while next <= 3000 {
        match reader.next_record() {
            Ok(Some(found)) => {
                assert_eq!((found.index.get(), found.data), (next, &record(next)[..]));
                next += 1;
            }
            Ok(None) => panic!("record {next} is not there"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt), "{error}")
            }
        }
    }
}

/// A copy is made of files: it begins with the first record that is in one, and a backup of the directory too.
#[test]
fn copy_begins_with_the_files() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path().join("log"), options).unwrap();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 1);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path().join("log").as_path(), ".seg") <= 8
    });
    let Some(FollowMessage::State(state)) = log.follow(FollowFrom::First).unwrap().next(0).unwrap() else {
        panic!("no state");
    };
    assert!(state.next() > Index(1000), "{state:?}");
    let refused = log.follow(FollowFrom::Index(Index(5))).unwrap().next(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let read_only = ReadOnlyLog::open(dir.path().join("log")).unwrap();
    let backup = Backup::make(&read_only, dir.path().join("backup"), &mut |_, _| {}).unwrap();
    assert!(backup.info().first > Index(1000) && backup.info().last > Index(4000), "{:?}", backup.info());
}

/// A directory that is not mounted any more looks like an empty object store. An object that went there would be lost.
#[test]
fn object_store_that_is_another_one_gets_no_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let open = || Log::open(dir.path(), options(&vault).local_bytes(2 * u64::from(SEGMENT))).unwrap();
    let log = open();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 1);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path(), ".seg") <= 8
    });
    for object in vault.list("").unwrap() {
        vault.delete(&object.name).unwrap();
    }
    append(&log, 1000);
    eventually("it tries to store", || log.metrics().object_failures > 0);
    assert!(vault.list("").unwrap().is_empty());
    let error = log.read(Index(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The next leader does not take it for a new one either, until it is told so.
    let (id, last) = (log.log_id().get(), log.last_index());
    log.close().unwrap();
    let log = open();
    eventually("it tries to store", || log.metrics().object_failures > 0);
    assert!(vault.list("").unwrap().is_empty());
    read_all(&log, last.get() - 500);
    let root = format!("chiplog objects\nformat 1\nlog {id:032x}\n");
    vault.create(&format!("{id:032x}/root"), root.into()).unwrap();
    eventually("it stores again", || !objects_in(&vault).is_empty());
}

/// A discard after the newest object is in no object: what it has removed there is not missed.
#[test]
fn log_comes_back_after_a_discard_that_is_in_no_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_delete_delay(Duration::from_millis(10));
    let log = Log::open(dir.path().join("lost"), options()).unwrap();
    let id = log.log_id();
    // Exact to one stride of the block index.
    let stored = || eventually("all is stored", || log.metrics().unstored_bytes < 300 << 10);
    append(&log, 4000);
    stored();
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    let fetch = |place: &str| Backup::fetch(&*vault, id, dir.path().join(place), &mut |_, _| {});
    // The first and the last record of the log that is made of the objects.
    let restored = |place: &str| {
        let (backup, place) = (fetch(place).unwrap(), dir.path().join(format!("{place}-restored")));
        backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
        let log = Log::open(place, Options::with_segment_bytes(SEGMENT)).unwrap();
        assert_eq!((backup.info().first, backup.info().last), (log.first_index(), log.last_index()));
        read_all(&log, log.first_index().get());
        (log.first_index().get(), log.last_index().get())
    };
    let before = objects();
    assert_eq!(restored("all").0, 1);
    log.discard(Index(3000)).unwrap();
    eventually("objects are deleted", || objects().len() < before.len());
    let (first, last) = restored("some");
    assert!(first > 1 && first <= 3000 && last > 3500, "{first} to {last}");
    // One that is lost is not taken for a deleted one.
    let oldest = objects()[0].name.clone();
    let bytes = vault.get(&oldest, 0..objects()[0].bytes).unwrap();
    vault.delete(&oldest).unwrap();
    let error = fetch("lacking").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    vault.put(&oldest, &[bytes]).unwrap();
    assert_eq!(restored("again"), (first, last));
    // Everything up to the newest object is discarded, and more: the next one does not follow it. A large append can be an object of
    // its own, a small one is in none yet.
    append(&log, 1);
    let end = log.last_index().get();
    log.discard(Index(end)).unwrap();
    eventually("all objects are deleted", || objects().is_empty());
    assert_eq!(fetch("none").unwrap_err().kind(), ErrorKind::NotFound);
    append(&log, 1000);
    stored();
    let (first, last) = restored("more");
    assert!(first <= end && last > end + 300, "{first} to {last}, {end}");
    assert_eq!(vault.list(&format!("{:032x}/begin/", id.get())).unwrap().len(), 1);
}

/// The objects of a log in memory, as names and bytes.
fn objects_in(vault: &MemoryVault) -> Vec<(String, bytes::Bytes)> {
    let all = vault.list("").unwrap().into_iter().filter(|object| object.name.contains("/o/"));
    all.map(|object| (object.name.clone(), vault.get(&object.name, 0..object.bytes).unwrap())).collect()
}

/// Objects that are lost, cut off or damaged are stored again, byte for byte, as long as the files have their entries.
#[test]
fn lost_and_damaged_objects_are_stored_again() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options(&vault).object_scrub(Duration::from_millis(300))).unwrap();
    append(&log, 3000);
    eventually("objects are stored", || log.metrics().stored_bytes > 1_500_000);
    let sound = objects_in(&vault);
    assert!(sound.len() > 8);
    let mut flipped = sound[3].1.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let cut = sound[5].1.slice(..sound[5].1.len() / 2);
    vault.delete(&sound[1].0).unwrap();
    vault.put(&sound[3].0, &[flipped.into()]).unwrap();
    vault.put(&sound[5].0, &[cut]).unwrap();
    vault.put(&sound[6].0, &[bytes::Bytes::new()]).unwrap();
    eventually("all are as they were", || {
        log.metrics().repaired_objects == 4 && objects_in(&vault)[..sound.len()] == sound[..]
    });
    assert_eq!((log.metrics().damaged_objects, log.metrics().object_failures), (0, 0));
}

/// An object whose entries no file has any more is shown, until another replica has stored it again.
#[test]
fn objects_that_cannot_be_stored_again_are_shown() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options =
        options(&vault).local_bytes(2 * u64::from(SEGMENT)).object_scrub(Duration::from_millis(300));
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 50);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path(), ".seg") <= 8
    });
    let (name, bytes) = objects_in(&vault).remove(1);
    vault.delete(&name).unwrap();
    eventually("it is shown", || log.metrics().damaged_objects == 1);
    vault.put(&name, &[bytes]).unwrap();
    eventually("it is not shown any more", || log.metrics().damaged_objects == 0);
    assert_eq!(log.metrics().repaired_objects, 0);
}

/// Two clusters continue one log, and store its objects in one place: an object of the other one stays as it is.
#[test]
fn object_of_another_history_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (vault, other_vault) = (Arc::new(MemoryVault::default()), Arc::new(MemoryVault::default()));
    let open = |name: &str, vault| {
        Log::open(place(name), options(vault).object_scrub(Duration::from_millis(300))).unwrap()
    };
    let log = open("log", &vault);
    append(&log, 100);
    log.close().unwrap();
    Backup::make(&ReadOnlyLog::open(place("log")).unwrap(), place("backup"), &mut |_, _| {}).unwrap();
    Backup::open(place("backup"))
        .unwrap()
        .restore(place("twin"), &RestoreOptions::default().keep_log_id(true), &mut |_, _| {})
        .unwrap();
    let (log, twin) = (open("log", &vault), open("twin", &other_vault));
    for log in [&log, &twin] {
        append(log, 2000);
        eventually("objects are stored", || log.metrics().stored_bytes > 1_000_000);
    }
    let (name, mine) = objects_in(&vault).remove(3);
    let theirs = objects_in(&other_vault).into_iter().find(|(other, _)| *other == name).unwrap().1;
    assert!(theirs != mine);
    vault.put(&name, std::slice::from_ref(&theirs)).unwrap();
    eventually("it is shown", || log.metrics().damaged_objects == 1);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(vault.get(&name, 0..theirs.len() as u64).unwrap(), theirs);
    assert_eq!(log.metrics().repaired_objects, 0);
}

/// The voters 1 and 2 of one log.
fn two_replicas(dirs: [&Path; 2], network: &MemoryNetwork, options: [Options; 2]) -> (Log, Log) {
    let [first, second] = options;
    let one = replica(dirs[0], 1, Bootstrap::Init, network, first);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let two = replica(dirs[1], 2, Bootstrap::Join(one.log_id()), network, second);
    let add =
        Change::AddLearner { node: NodeId(2), directory: two.directory_id(), address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(20)).unwrap();
    one.change_members(&[Change::Promote(NodeId(2))], Duration::from_secs(20)).unwrap();
    (one, two)
}

/// The replica that has the entries in its files stores the object again, whichever leads.
#[test]
fn another_replica_stores_a_lost_object_again() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    // One replica removes files, and the other one keeps all.
    let short = options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let whole = options(&vault).object_scrub(Duration::from_secs(1));
    let (one, two) = two_replicas([&dirs[0], &dirs[1]].map(|dir| dir.path()), &network, [short, whole]);
    append_to(&[&one, &two], 5000);
    eventually("files go", || {
        append_to(&[&one, &two], 50);
        files(dirs[0].path(), ".seg") <= 8
    });
    let (name, bytes) = objects_in(&vault).remove(2);
    vault.delete(&name).unwrap();
    eventually("the other replica stores it again", || {
        vault.size(&name).unwrap() == Some(bytes.len() as u64)
    });
    assert_eq!(vault.get(&name, 0..bytes.len() as u64).unwrap(), bytes);
    eventually("it is counted", || two.metrics().repaired_objects == 1);
    assert_eq!(one.metrics().repaired_objects, 0);
    read_all(&one, 1);
}

/// Called before each call of a vault, with the call and the object's name. An error is the call's.
type Hook = Box<dyn FnMut(&str, &str) -> chiplog::Result<()> + Send>;

/// A vault whose calls a test can refuse.
struct HookedVault {
    below: Arc<MemoryVault>,
    hook: Mutex<Hook>,
}

impl std::fmt::Debug for HookedVault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedVault")
    }
}

impl HookedVault {
    fn new(below: &Arc<MemoryVault>) -> Arc<Self> {
        Arc::new(Self { below: below.clone(), hook: Mutex::new(Box::new(|_, _| Ok(()))) })
    }

    fn set(&self, hook: impl FnMut(&str, &str) -> chiplog::Result<()> + Send + 'static) {
        *self.hook.lock().unwrap() = Box::new(hook);
    }

    fn call(&self, call: &str, name: &str) -> chiplog::Result<()> {
        (self.hook.lock().unwrap())(call, name)
    }
}

impl Vault for HookedVault {
    fn put(&self, name: &str, pieces: &[bytes::Bytes]) -> chiplog::Result<()> {
        self.call("put", name)?;
        self.below.put(name, pieces)
    }

    fn create(&self, name: &str, bytes: bytes::Bytes) -> chiplog::Result<bool> {
        self.call("create", name)?;
        self.below.create(name, bytes)
    }

    fn get(&self, name: &str, range: std::ops::Range<u64>) -> chiplog::Result<bytes::Bytes> {
        self.call("get", name)?;
        self.below.get(name, range)
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        self.call("size", name)?;
        self.below.size(name)
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<chiplog::vault::ObjectInfo>> {
        self.call("list", prefix)?;
        self.below.list(prefix)
    }

    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.call("delete", name)?;
        self.below.delete(name)
    }
}

/// A log with objects behind a hook, and its objects. The scrub makes a pass in 300 ms.
fn hooked_log(dir: &Path, local_segments: u64) -> (Arc<MemoryVault>, Arc<HookedVault>, Log) {
    let below = Arc::new(MemoryVault::default());
    let hooked = HookedVault::new(&below);
    let options = options(&below)
        .vault(hooked.clone() as Arc<dyn Vault>)
        .local_bytes(local_segments * u64::from(SEGMENT))
        .object_scrub(Duration::from_millis(300));
    let log = Log::open(dir, options).unwrap();
    append(&log, 2000);
    eventually("objects are stored", || log.metrics().stored_bytes > 1_000_000);
    (below, hooked, log)
}

/// An object that cannot be examined or stored is shown, and delays no other one.
#[test]
fn one_object_that_fails_delays_no_other() {
    for (call, kind) in [
        ("get", ErrorKind::PermissionDenied),
        ("size", ErrorKind::PermissionDenied),
        ("put", ErrorKind::PermissionDenied),
        ("put", ErrorKind::Io),
        ("put", ErrorKind::Unavailable),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (below, hooked, log) = hooked_log(dir.path(), 100);
        let sound = objects_in(&below);
        let (first, third) = (sound[0].clone(), sound[2].clone());
        let bad = first.0.clone();
        hooked.set(move |called, name| match called == call && name == bad {
            true => Err(chiplog::Error::new(kind, "injected")),
            false => Ok(()),
        });
        if call == "put" {
            below.delete(&first.0).unwrap();
        }
        below.delete(&third.0).unwrap();
        eventually("the other one is stored again", || below.size(&third.0).unwrap().is_some());
        if kind != ErrorKind::Unavailable {
            eventually("it is shown", || log.metrics().damaged_objects == 1);
        }
        hooked.set(|_, _| Ok(()));
        eventually("all are as they were", || {
            log.metrics().damaged_objects == 0 && objects_in(&below).starts_with(&sound)
        });
        assert_eq!(log.metrics().object_failures, 0, "{call} {kind:?}");
    }
}

/// An object that cannot be read is stored again; one bad answer changes nothing.
#[test]
fn unreadable_object_is_stored_again_and_one_bad_answer_is_not_enough() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    let mut seen = std::collections::HashSet::new();
    let answers = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = answers.clone();
    hooked.set(move |call, name| {
        if call == "get" && name.contains("/o/") && seen.insert(name.to_owned()) {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Err(chiplog::Error::new(ErrorKind::NotFound, "injected"));
        }
        Ok(())
    });
    eventually("objects are examined", || answers.load(std::sync::atomic::Ordering::Relaxed) > 4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((log.metrics().repaired_objects, log.metrics().damaged_objects), (0, 0));
    let bad = objects_in(&below)[1].0.clone();
    let mut is_put = false;
    hooked.set(move |call, name| {
        is_put |= call == "put" && name == bad;
        match call == "get" && name == bad && !is_put {
            true => Err(chiplog::Error::new(ErrorKind::Io, "injected: a bad sector")),
            false => Ok(()),
        }
    });
    eventually("it is stored again", || log.metrics().repaired_objects == 1);
    assert_eq!(log.metrics().damaged_objects, 0);
}

/// Files that have the last copy of a lost object stay until it is stored again.
#[test]
fn files_of_a_lost_object_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 12);
    let (name, bytes) = objects_in(&below).remove(1);
    let (bad, refused) = (name.clone(), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let counted = refused.clone();
    hooked.set(move |call, name| {
        if call == "put" && name == bad {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Err(chiplog::Error::new(ErrorKind::Unavailable, "injected"));
        }
        Ok(())
    });
    below.delete(&name).unwrap();
    eventually("it is tried", || refused.load(std::sync::atomic::Ordering::Relaxed) > 0);
    append(&log, 8000); // 5 MB
    eventually("the others are stored", || log.metrics().stored_bytes > 6_000_000);
    for _ in 0..20 {
        append(&log, 20);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(files(dir.path(), ".seg") >= 24, "{}", files(dir.path(), ".seg"));
    hooked.set(|_, _| Ok(()));
    eventually("it is back", || below.size(&name).unwrap() == Some(bytes.len() as u64));
    assert_eq!(below.get(&name, 0..bytes.len() as u64).unwrap(), bytes);
    eventually("files go", || {
        append(&log, 50);
        files(dir.path(), ".seg") < 20
    });
    read_all(&log, 1);
}

/// A leader that knows of a later discard deletes an object while this replica stores it again: it does not stay.
#[test]
fn object_that_is_discarded_while_it_is_put_does_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    let (name, _) = objects_in(&below).remove(1);
    let begin = format!("{:032x}/begin/{:020}", log.log_id().get(), 2);
    let (bad, vault, was_put) =
        (name.clone(), below.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let told = was_put.clone();
    hooked.set(move |call, name| {
        if call == "put" && name == bad {
            told.store(true, std::sync::atomic::Ordering::Relaxed);
            vault.create(&begin, bytes::Bytes::from_static(b"2")).unwrap();
        }
        Ok(())
    });
    below.delete(&name).unwrap();
    eventually("it is put", || was_put.load(std::sync::atomic::Ordering::Relaxed));
    eventually("it is deleted again", || below.size(&name).unwrap().is_none());
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(below.size(&name).unwrap(), None);
    assert_eq!((log.metrics().repaired_objects, log.metrics().damaged_objects), (0, 0));
}

/// The same, and a pin keeps the object: it stays.
#[test]
fn pinned_object_that_is_discarded_while_it_is_put_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    let pin = Pin::make(&*below, log.log_id(), "kept", None).unwrap();
    let (name, bytes) = objects_in(&below).remove(1);
    let begin = format!("{:032x}/begin/{:020}", log.log_id().get(), 2);
    let (bad, vault) = (name.clone(), below.clone());
    hooked.set(move |call, name| {
        if call == "put" && name == bad {
            vault.create(&begin, bytes::Bytes::from_static(b"2")).unwrap();
        }
        Ok(())
    });
    below.delete(&name).unwrap();
    eventually("it is stored again", || log.metrics().repaired_objects == 1);
    assert_eq!(objects_in(&below).remove(1), (name.clone(), bytes));
    // Lost again, when its records are long discarded.
    below.delete(&name).unwrap();
    eventually("it is stored once more", || log.metrics().repaired_objects == 2);
    assert_eq!(pin.missing(&*below, log.log_id()).unwrap(), 0);
}

/// Damages an object that no file has the entries of, by more than the padding between two blocks.
fn flip(vault: &MemoryVault, n: usize) -> (String, bytes::Bytes) {
    let (name, bytes) = objects_in(vault).remove(n);
    let mut flipped = bytes.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle..middle + 8192].iter_mut().for_each(|byte| *byte ^= 1);
    vault.put(&name, &[flipped.into()]).unwrap();
    (name, bytes)
}

/// A request to store what is there is forgotten with the leadership.
#[test]
fn wish_for_objects_ends_with_the_leadership() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let hooked = HookedVault::new(&vault);
    hooked.set(|_, _| Err(chiplog::Error::new(ErrorKind::Unavailable, "injected")));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let options = || options(&vault).object_bytes(64 << 20).vault(hooked.clone() as Arc<dyn Vault>);
    let (one, two) =
        two_replicas([&dirs[0], &dirs[1]].map(|dir| dir.path()), &network, [options(), options()]);
    append_to(&[&one, &two], 10);
    let moves_to = |to: &Log, node| {
        eventually("the leader changes", || {
            _ = [&one, &two].map(|log| log.transfer_leader(NodeId(node), Duration::from_secs(5)));
            to.role() == Role::Leader && to.barrier(Duration::from_secs(2)).is_ok()
        });
    };
    moves_to(&one, 1);
    one.cut_objects(one.last_index()).unwrap();
    moves_to(&two, 2);
    moves_to(&one, 1);
    hooked.set(|_, _| Ok(()));
    eventually("the object store works", || !vault.list("").unwrap().is_empty());
    std::thread::sleep(Duration::from_millis(300));
    assert!(objects_in(&vault).is_empty());
    moves_to(&one, 1);
    one.cut_objects(one.last_index()).unwrap();
    eventually("it is stored", || !objects_in(&vault).is_empty());
}

/// An idle log with a pass of 30 days: damage that a reader meets is examined at once. It is not shown any more once its records
/// are discarded.
#[test]
fn damage_that_a_reader_meets_is_examined_at_once() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options(&vault).local_bytes(2 * u64::from(SEGMENT))).unwrap();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 50);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path(), ".seg") <= 8
    });
    flip(&vault, 1);
    std::thread::sleep(Duration::from_millis(300)); // everything is idle
    let mut reader = log.reader(Start::First).unwrap();
    let error = loop {
        match reader.next_record() {
            Ok(found) => assert!(found.is_some(), "no damage was met"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let begun = Instant::now();
    eventually("it is shown", || log.metrics().damaged_objects == 1);
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(reader);
    log.discard(Index(2000)).unwrap();
    eventually("it is not shown any more", || log.metrics().damaged_objects == 0);
}

/// A replica without the entries tells of damage: the other one stores the object again, although its own pass takes 30 days.
#[test]
fn replica_without_the_entries_tells_of_damage() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let short = options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let (one, two) =
        two_replicas([&dirs[0], &dirs[1]].map(|dir| dir.path()), &network, [short, options(&vault)]);
    append_to(&[&one, &two], 5000);
    eventually("files go", || {
        append_to(&[&one, &two], 50);
        files(dirs[0].path(), ".seg") <= 8
    });
    let (name, bytes) = flip(&vault, 2);
    // Until its files are gone there, too, a reader meets no damage.
    eventually("a reader meets damage", || {
        append_to(&[&one, &two], 50);
        let mut reader = one.reader(Start::First).unwrap();
        loop {
            match reader.next_record() {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(error) => return error.kind() == ErrorKind::Corrupt,
            }
        }
    });
    eventually("the other replica stores it again", || {
        vault.get(&name, 0..bytes.len() as u64).is_ok_and(|now| now == bytes)
    });
    eventually("it is counted", || two.metrics().repaired_objects == 1);
    assert_eq!((one.metrics().repaired_objects, two.metrics().damaged_objects), (0, 0));
    read_all(&one, 1);
}

/// Refuses to put an object, and counts the attempts.
fn refuse_puts(hooked: &HookedVault, refused: &str) -> Arc<AtomicU64> {
    let (bad, tried) = (refused.to_owned(), Arc::new(AtomicU64::new(0)));
    let counted = tried.clone();
    hooked.set(move |call, name| {
        if call == "put" && name == bad {
            counted.fetch_add(1, Ordering::Relaxed);
            return Err(chiplog::Error::new(ErrorKind::PermissionDenied, "injected"));
        }
        Ok(())
    });
    tried
}

/// The log goes on until its files are far beyond `local_bytes`, because they have the last copy of an object.
fn go_on_with_held_files(dir: &Path, log: &Log, tried: &AtomicU64) {
    eventually("it is tried", || tried.load(Ordering::Relaxed) > 0 && log.metrics().damaged_objects == 1);
    append(log, 8000); // 5 MB
    eventually("the others are stored", || log.metrics().stored_bytes > 6_000_000);
    for _ in 0..20 {
        append(log, 20);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(files(dir, ".seg") >= 24, "{}", files(dir, ".seg"));
    log.close().unwrap();
}

/// Files that have the last copy of an object stay over a restart, until it is stored again: also if it is damaged inside, which no list
/// shows, and if the file that remembers this is damaged, or could not be written.
#[test]
fn last_copy_of_an_object_survives_a_restart() {
    for (is_lost, memory) in [(true, "sound"), (true, "gone"), (false, "sound"), (false, "damaged")] {
        let dir = tempfile::tempdir().unwrap();
        let (below, hooked, log) = hooked_log(dir.path(), 8);
        let (name, bytes) = objects_in(&below).remove(1);
        let tried = refuse_puts(&hooked, &name);
        match is_lost {
            true => below.delete(&name).unwrap(),
            false => _ = flip(&below, 1),
        }
        go_on_with_held_files(dir.path(), &log, &tried);
        drop(log);
        let remembers = dir.path().join("chiplog.suspects");
        match memory {
            "gone" => std::fs::remove_file(&remembers).unwrap(),
            "damaged" => {
                let mut bytes = std::fs::read(&remembers).unwrap();
                bytes[41] ^= 1;
                std::fs::write(&remembers, bytes).unwrap();
            }
            _ => assert!(remembers.exists()),
        }
        hooked.set(|_, _| Ok(()));
        // A pass takes 30 days.
        let options = options(&below).vault(hooked as Arc<dyn Vault>).local_bytes(8 * u64::from(SEGMENT));
        let log = Log::open(dir.path(), options).unwrap();
        eventually("it is stored again", || {
            append(&log, 50);
            below.get(&name, 0..bytes.len() as u64).is_ok_and(|now| now == bytes)
        });
        eventually("files go", || {
            append(&log, 50);
            files(dir.path(), ".seg") <= 16
        });
        eventually("nothing is remembered", || !remembers.exists());
        assert_eq!(log.metrics().damaged_objects, 0, "{is_lost} {memory}");
        read_all(&log, 1);
    }
}

/// A log that lists nothing since its start removes no file, and does so once the store can be listed.
#[test]
fn files_stay_until_the_objects_were_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    append(&log, 8000);
    eventually("objects are stored", || log.metrics().stored_bytes > 6_000_000);
    log.close().unwrap();
    drop(log);
    let tried = Arc::new(AtomicU64::new(0));
    let counted = tried.clone();
    hooked.set(move |call, name| match call == "list" && name.ends_with("/o/") {
        true => {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(chiplog::Error::new(ErrorKind::PermissionDenied, "injected"))
        }
        false => Ok(()),
    });
    let options = options(&below).vault(hooked.clone() as Arc<dyn Vault>).local_bytes(4 * u64::from(SEGMENT));
    let log = Log::open(dir.path(), options.object_scrub(Duration::from_millis(300))).unwrap();
    eventually("it is tried", || {
        append(&log, 50);
        tried.load(Ordering::Relaxed) > 2
    });
    assert!(files(dir.path(), ".seg") >= 24, "{}", files(dir.path(), ".seg"));
    hooked.set(|_, _| Ok(()));
    eventually("files go", || {
        append(&log, 50);
        files(dir.path(), ".seg") <= 10
    });
    read_all(&log, 1);
}

/// A second cluster that continues the same log at the same location replaces none of its objects, also not by one of the same size.
#[test]
fn objects_of_another_history_are_not_replaced_by_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    let log = Log::open(place("log"), options(&vault)).unwrap();
    append(&log, 100);
    log.close().unwrap();
    Backup::make(&ReadOnlyLog::open(place("log")).unwrap(), place("backup"), &mut |_, _| {}).unwrap();
    Backup::open(place("backup"))
        .unwrap()
        .restore(place("twin"), &RestoreOptions::default().keep_log_id(true), &mut |_, _| {})
        .unwrap();
    let log = Log::open(place("log"), options(&vault).local_bytes(2 * u64::from(SEGMENT))).unwrap();
    append(&log, 3000);
    eventually("files go", || {
        append(&log, 50);
        log.metrics().stored_bytes > 1_500_000 && files(&place("log"), ".seg") <= 8
    });
    log.close().unwrap();
    let before = objects_in(&vault);
    let twin = Log::open(place("twin"), options(&vault)).unwrap();
    append(&twin, 3000);
    eventually("it is refused", || twin.metrics().object_failures > 2);
    assert!(objects_in(&vault).starts_with(&before));
    assert_eq!(twin.metrics().stored_objects, 0);
}

/// A store that can be looked at and not be read says nothing of its objects: none counts as damaged.
#[test]
fn store_that_cannot_be_read_has_no_damaged_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    let sound = objects_in(&below);
    let tried = Arc::new(AtomicU64::new(0));
    let counted = tried.clone();
    hooked.set(move |call, _| match call == "get" {
        true => {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(chiplog::Error::new(ErrorKind::PermissionDenied, "injected"))
        }
        false => Ok(()),
    });
    eventually("objects are examined", || tried.load(Ordering::Relaxed) > 10);
    assert_eq!(log.metrics().damaged_objects, 0);
    below.delete(&sound[1].0).unwrap();
    hooked.set(|_, _| Ok(()));
    eventually("it goes on", || objects_in(&below).starts_with(&sound));
}

/// A replica whose store panics while it stores an object for the leader says so: the leader stores it.
#[test]
fn leader_stores_an_object_itself_if_another_replica_panics() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let hooks = [HookedVault::new(&vault), HookedVault::new(&vault)];
    let with = |hooked: &Arc<HookedVault>| options(&vault).vault(hooked.clone() as Arc<dyn Vault>);
    let puts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    for (hooked, puts) in hooks.iter().zip(&puts) {
        let puts = puts.clone();
        hooked.set(move |call, name| {
            if call == "put" && name.contains("/o/") {
                puts.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let (one, two) = two_replicas(
        [&dirs[0], &dirs[1]].map(|dir| dir.path()),
        &network,
        [with(&hooks[0]), with(&hooks[1])],
    );
    append_to(&[&one, &two], 1000);
    eventually("objects are stored", || one.metrics().stored_objects + two.metrics().stored_objects > 2);
    // The one that stores is the one that does not lead.
    let storing = usize::from(puts[1].load(Ordering::Relaxed) > puts[0].load(Ordering::Relaxed));
    let panics = Arc::new(AtomicU64::new(0));
    let counted = panics.clone();
    hooks[storing].set(move |call, name| {
        let panics = call == "put" && name.contains("/o/");
        assert!(!panics || counted.fetch_add(1, Ordering::Relaxed) > 0, "injected: a panic");
        Ok(())
    });
    let logs = [&one, &two];
    let before = logs[1 - storing].metrics().stored_objects;
    append_to(&logs, 1000);
    eventually("the leader stores it", || logs[1 - storing].metrics().stored_objects > before);
    assert_eq!(panics.load(Ordering::Relaxed), 1);
}
