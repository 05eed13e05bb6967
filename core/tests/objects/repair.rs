//! Lost and damaged objects: how they are found, stored again, shown; which files stay for them.

use crate::support::{
    SEGMENT, append, append_to, eventually, files, objects_in, options, read_all, two_replicas,
};
use chiplog::backup::{Backup, Pin, RestoreOptions};
use chiplog::cluster::Role;
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, ReadOnlyLog, Start};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// Appends to the log in the folder `log` of `dir` and closes it. The folder `twin` then has the same log, restored from a backup.
fn make_twin(dir: &Path, log: Log) {
    append(&log, 100);
    log.close().unwrap();
    let backup = dir.join("backup");
    Backup::make(&ReadOnlyLog::open(dir.join("log")).unwrap(), &backup, &mut |_, _| {}).unwrap();
    let options = RestoreOptions::default().keep_log_id(true);
    Backup::open(&backup).unwrap().restore(dir.join("twin"), &options, &mut |_, _| {}).unwrap();
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
    make_twin(dir.path(), open("log", &vault));
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

/// A log with objects behind a hook, and its objects. The scrub makes a pass in 300 ms.
fn hooked_log(dir: &Path, local_segments: u64) -> (Arc<MemoryVault>, Arc<HookedVault>, Log) {
    let below = Arc::new(MemoryVault::default());
    let hooked = Arc::new(HookedVault::new(below.clone()));
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

/// An object store that notices damage itself answers for one object that it is unavailable, for ever, and works otherwise. The object is
/// stored again, files go, and all can be read.
#[test]
fn object_for_which_the_store_always_fails_is_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 8);
    for calls in [&["get"][..], &["get", "size"]] {
        let before = log.metrics().repaired_objects;
        let sound = objects_in(&below);
        let bad = sound[sound.len() - 3].0.clone();
        let mut is_put = false;
        hooked.set(move |call, name| {
            is_put |= call == "put" && name == bad;
            match calls.contains(&call) && name == bad && !is_put {
                true => {
                    Err(chiplog::Error::new(ErrorKind::Unavailable, "injected: no quorum of this object"))
                }
                false => Ok(()),
            }
        });
        eventually("it is stored again", || {
            assert!(objects_in(&below).starts_with(&sound));
            log.metrics().repaired_objects > before
        });
        assert_eq!(log.metrics().repaired_objects, before + 1);
        eventually("files go", || {
            append(&log, 50);
            std::thread::sleep(Duration::from_millis(20));
            files(dir.path(), ".seg") <= 12
        });
    }
    assert_eq!((log.metrics().damaged_objects, log.metrics().object_failures), (0, 0));
    read_all(&log, 1);
}

/// An object that is another history's, and of which all but the footer can be read, stays as it is, and is shown: whatever the reason is
/// for which the footer says nothing.
#[test]
fn object_of_another_history_without_a_footer_is_not_replaced() {
    for kind in [Some(ErrorKind::Unavailable), Some(ErrorKind::Io), None] {
        let dir = tempfile::tempdir().unwrap();
        let (below, hooked, log) = hooked_log(dir.path(), 100);
        let (name, mine) = full_object(&below, 1);
        let mut theirs = mine.to_vec();
        let (middle, footer) = (theirs.len() / 3, theirs.len() - 100);
        theirs[middle..middle + 4000].iter_mut().for_each(|byte| *byte ^= 5);
        theirs[footer] ^= 1;
        let theirs = bytes::Bytes::from(theirs);
        below.put(&name, std::slice::from_ref(&theirs)).unwrap();
        let fails = FooterFails { below: hooked.clone(), name: name.clone(), kind };
        drop(log);
        let with = options(&below).vault(Arc::new(fails) as Arc<dyn Vault>);
        let log = Log::open(dir.path(), with.object_scrub(Duration::from_millis(300))).unwrap();
        eventually("it is shown", || log.metrics().damaged_objects == 1);
        std::thread::sleep(Duration::from_millis(900));
        assert_eq!(below.get(&name, 0..theirs.len() as u64).unwrap(), theirs, "{kind:?}");
        assert_eq!((log.metrics().repaired_objects, log.metrics().damaged_objects), (0, 1), "{kind:?}");
    }
}

/// An object for which the store always fails, and without its entries in files: it is shown.
#[test]
fn object_for_which_the_store_always_fails_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (below, hooked, log) = hooked_log(dir.path(), 100);
    let (bad, _) = full_object(&below, 1);
    drop(log);
    // Nothing of it can be read, and the files of its entries are gone.
    let with = options(&below).vault(hooked.clone() as Arc<dyn Vault>).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path(), with.object_scrub(Duration::from_millis(300))).unwrap();
    eventually("files go", || {
        append(&log, 50);
        std::thread::sleep(Duration::from_millis(20));
        files(dir.path(), ".seg") <= 8 && log.metrics().damaged_objects == 0
    });
    hooked.set(move |call, name| match call == "get" && name == bad {
        true => Err(chiplog::Error::new(ErrorKind::Unavailable, "injected")),
        false => Ok(()),
    });
    eventually("it is shown", || log.metrics().damaged_objects == 1);
    hooked.set(|_, _| Ok(()));
    eventually("it is not shown any more", || log.metrics().damaged_objects == 0);
    assert_eq!(log.metrics().repaired_objects, 0);
}

/// An object store that cannot give the end of one object, for this reason. None: it can.
#[derive(Debug)]
struct FooterFails {
    below: Arc<HookedVault>,
    name: String,
    kind: Option<ErrorKind>,
}

impl Vault for FooterFails {
    chiplog::vault::pass_on!(below: put, create, size, list, delete);

    fn get(&self, name: &str, range: std::ops::Range<u64>) -> chiplog::Result<bytes::Bytes> {
        let size = self.below.size(name)?;
        // A whole read says which bytes it has; the end alone cannot be read.
        let is_footer = name == self.name && size == Some(range.end) && range.start > 0;
        match self.kind.filter(|_| is_footer) {
            Some(kind) => Err(chiplog::Error::new(kind, "injected")),
            None => self.below.get(name, range),
        }
    }
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

/// The first object from the nth on that is full. Half of a small one is padding.
fn full_object(vault: &MemoryVault, n: usize) -> (String, bytes::Bytes) {
    objects_in(vault).into_iter().skip(n).find(|(_, bytes)| bytes.len() > 128 << 10).unwrap()
}

/// Damages a full object, by more than the padding between two blocks.
fn flip(vault: &MemoryVault, n: usize) -> (String, bytes::Bytes) {
    let (name, bytes) = full_object(vault, n);
    let mut flipped = bytes.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle..middle + 8192].iter_mut().for_each(|byte| *byte ^= 1);
    vault.put(&name, &[flipped.into()]).unwrap();
    (name, bytes)
}

/// An object store in which an object arrives damaged the next times that it is stored.
#[derive(Debug, Default)]
struct Spoiling {
    below: Arc<MemoryVault>,
    name: Mutex<String>,
    left: AtomicU64,
}

impl Vault for Spoiling {
    chiplog::vault::pass_on!(below: create, get, size, list, delete);

    fn put(&self, name: &str, pieces: &[bytes::Bytes]) -> chiplog::Result<()> {
        let mut bytes = pieces.concat();
        let spoil = |left: u64| left.checked_sub(1).filter(|_| *self.name.lock().unwrap() == name);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spoil).is_ok() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        self.below.put(name, &[bytes.into()])
    }
}

/// An object arrives damaged twice more when it is stored again. It counts as repaired once.
#[test]
fn object_counts_as_repaired_once_it_is_sound() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Spoiling::default()));
    let options = options(&vault.below).vault(vault.clone() as Arc<dyn Vault>);
    let log = Log::open(dir.path(), options.object_scrub(Duration::from_millis(300))).unwrap();
    append(&log, 1000);
    eventually("objects are stored", || log.metrics().stored_bytes > 400_000);
    vault.left.store(2, Ordering::Relaxed);
    *vault.name.lock().unwrap() = full_object(&vault.below, 1).0;
    let (name, bytes) = flip(&vault.below, 1);
    eventually("it is sound", || {
        vault.below.get(&name, 0..bytes.len() as u64).is_ok_and(|now| now == bytes)
            && vault.left.load(Ordering::Relaxed) == 0
    });
    eventually("it is repaired", || log.metrics().damaged_objects == 0 && log.metrics().repaired_objects > 0);
    assert_eq!(log.metrics().repaired_objects, 1);
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
        let (name, bytes) = full_object(&below, 1);
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
        // Not without a pause: examinations give way to what is to be stored.
        eventually("files go", || {
            append(&log, 50);
            std::thread::sleep(Duration::from_millis(50));
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

/// A second cluster that continues the same log at the same location stores none of its objects there: begins of the first one would have
/// them deleted, and a fetch would take the first one's. If it has objects already, elsewhere, it replaces none, also not by one of the
/// same size.
#[test]
fn objects_of_another_history_are_not_replaced_by_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    make_twin(dir.path(), Log::open(place("log"), options(&vault)).unwrap());
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
    eventually("it is refused", || twin.metrics().object_failures > 1);
    assert!(objects_in(&vault) == before);
    twin.close().unwrap();
    let twin = Log::open(place("twin"), options(&Arc::new(MemoryVault::default()))).unwrap();
    eventually("it stores objects elsewhere", || twin.metrics().stored_objects > 1);
    twin.close().unwrap();
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
    let hooks = [(); 2].map(|()| Arc::new(HookedVault::new(vault.clone())));
    let with = |hooked: &Arc<HookedVault>| options(&vault).vault(hooked.clone() as Arc<dyn Vault>);
    let (one, two) = two_replicas(
        [&dirs[0], &dirs[1]].map(|dir| dir.path()),
        &network,
        [with(&hooks[0]), with(&hooks[1])],
    );
    append_to(&[&one, &two], 1000);
    eventually("objects are stored", || one.metrics().stored_objects + two.metrics().stored_objects > 2);
    // The one that stores is the one that does not lead.
    let logs = [&one, &two];
    let mut leads = None;
    eventually("one leads", || {
        leads = logs.iter().position(|log| log.role() == Role::Leader);
        leads.is_some()
    });
    let storing = 1 - leads.unwrap();
    let panics = Arc::new(AtomicU64::new(0));
    let counted = panics.clone();
    hooks[storing].set(move |call, name| {
        let panics = call == "put" && name.contains("/o/");
        assert!(!panics || counted.fetch_add(1, Ordering::Relaxed) > 0, "injected: a panic");
        Ok(())
    });
    let before = logs[1 - storing].metrics().stored_objects;
    append_to(&logs, 1000);
    eventually("the leader stores it", || logs[1 - storing].metrics().stored_objects > before);
    assert_eq!(panics.load(Ordering::Relaxed), 1);
}
