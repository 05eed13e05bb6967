//! Damage in objects and files, and an object store that fails.

use super::support::{
    LOGS, all, append, eventually, group, log_of, objects, open, options, read_all, record, until_files_go,
};
use chiplog::backup::Backup;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, Start, Timestamp};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A restart, times, damage in an object that is repaired from files, and damage in a file that the object makes good.
#[test]
fn damaged_and_lost_objects_are_stored_again() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || {
        let options = options(&vault).local_bytes(None);
        options.object_scrub(Some(Duration::from_secs(1)))
    };
    let logs = open(dir.path(), options().object_scrub(None)); // the next one finds both
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    let objects = objects(&vault, group(&logs).log_id());
    let get = |name: &str, bytes| vault.get(name, 0..bytes).unwrap();
    let right: Vec<_> = objects.iter().map(|(name, bytes)| get(name, *bytes)).collect();
    let mut bad = right[2].to_vec();
    bad[60_000] ^= 1;
    vault.put(&objects[2].0, &[bad.into()]).unwrap();
    vault.delete(&objects[4].0).unwrap();
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    eventually("both are stored again", || group(&logs).metrics().repaired_objects >= 2);
    for ((name, bytes), right) in objects.iter().zip(&right) {
        assert_eq!(get(name, *bytes), right, "{name}");
    }
}

/// A reader whose sorted copy was damaged went on in the segment, and if that was damaged, too, no further: the caller got the error.
#[test]
fn record_that_is_damaged_in_both_files_is_read_from_the_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault).local_bytes(None));
    append(&logs, &all(), 300);
    let files = dir.path().join("group-1");
    eventually("objects are stored, and full segments are sorted", || {
        let full = group(&logs).status().segments as usize - 1;
        group(&logs).metrics().stored_bytes > 800_000 && super::support::files(&files, ".run") >= full
    });
    let mut reader = log_of(&logs, 1).reader(Start::First).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, record(1, 1));
    for suffix in ["seg", "run"] {
        let path = files.join(format!("{:020}.{suffix}", 1));
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        for at in (16 << 10..bytes.len() * 3 / 4).step_by(64) {
            std::os::unix::fs::FileExt::write_all_at(&file, &[bytes[at] ^ 1], at as u64).unwrap();
        }
    }
    for n in 2..=300 {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(1, n), "record {n}");
    }
}

/// The records of a log that cannot be read. Each error names this object, and all other records are right.
fn unreadable(log: u64, handle: &Log, name: &str) -> Vec<u64> {
    let mut missing = Vec::new();
    for n in 1..=handle.last_index().get() {
        match handle.read(Index(n)) {
            Ok(found) => assert_eq!(found.data, record(log, n), "record {n} of log {log}"),
            Err(error) => {
                assert!(error.to_string().contains(name), "record {n} of log {log}: {error}");
                missing.push(n);
            }
        }
    }
    missing
}

/// One object that is lost, or that the store cannot return, hides its own records and no others, of whichever log and wherever it is in
/// the list.
#[test]
fn unreadable_object_hides_no_record_of_another() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let opened =
        || open(dir.path(), options(&below).vault(vault.clone() as Arc<dyn Vault>).object_scrub(None));
    let logs = opened();
    append(&logs, &all(), 400);
    append(&logs, &[2], 1000); // objects without records of the others
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    let names = objects(&below, group(&logs).log_id());
    logs.close().unwrap();
    drop(logs);
    for kind in [ErrorKind::NotFound, ErrorKind::Unavailable] {
        let mut seen = BTreeSet::new();
        for bad in [names.len() - 1, names.len() / 2, names.len() / 4, 1, 0] {
            let name = names[bad].0.clone();
            let of = name.clone();
            vault.set(move |call, name| match call == "get" && name == of {
                true => Err(chiplog::Error::new(kind, format!("cannot get {name}"))),
                false => Ok(()),
            });
            let logs = opened();
            for log in [1, 2, LOGS] {
                let handle = log_of(&logs, log);
                let missing = unreadable(log, &handle, &name);
                assert!(missing.windows(2).all(|two| two[0] + 1 == two[1]), "object {bad}: {missing:?}");
                for n in &missing {
                    assert!(
                        seen.insert((log, *n)),
                        "record {n} of log {log}, object {bad}: not for the first time"
                    );
                }
                // A reader goes on up to the object, and behind it.
                let (first, last) =
                    (missing.first().copied().unwrap_or(1), missing.last().copied().unwrap_or(0));
                let mut reader = handle.reader(Start::First).unwrap();
                for n in 1..first {
                    assert_eq!(reader.next_record().unwrap().unwrap().data, record(log, n));
                }
                read_all(log, &handle, last + 1);
            }
            logs.close().unwrap();
        }
        vault.set(|_, _| Ok(()));
        assert!(!seen.is_empty(), "none of them has a record: the test shows nothing");
    }
    let logs = opened();
    all().into_iter().for_each(|log| read_all(log, &log_of(&logs, log), 1));
}

/// An object store that stops to answer readers. Each of the first `WAITS` reads of an object then takes until a file of the log has gone.
#[derive(Debug)]
struct Silent {
    below: Arc<MemoryVault>,
    /// The directory whose files go. None: it answers.
    dir: Mutex<Option<PathBuf>>,
    gets: AtomicU64,
}

const WAITS: u64 = 40;

/// The names of the files with the log's records.
fn segments(dir: &Path) -> BTreeSet<OsString> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).collect()
}

impl Vault for Silent {
    chiplog::vault::pass_on!(below: put, create, size, list, delete);

    fn get(&self, name: &str, range: std::ops::Range<u64>) -> chiplog::Result<bytes::Bytes> {
        let dir = self.dir.lock().unwrap().clone();
        // Files go only while objects are stored, for which they are read.
        let stores = std::thread::current().name() == Some("chiplog-objects");
        let Some(dir) = dir.filter(|_| name.contains("/o/") && !stores) else {
            return self.below.get(name, range);
        };
        if self.gets.fetch_add(1, Ordering::SeqCst) < WAITS {
            let before = segments(&dir);
            let answers = || self.dir.lock().unwrap().is_none();
            eventually("a file goes", || answers() || !before.is_subset(&segments(&dir)));
        }
        Err(chiplog::Error::new(ErrorKind::Unavailable, "no answer"))
    }
}

/// The object store is silent, and files go with each of its time limits: the error of a read was thrown away each time, and the read began
/// again, as long as the log grew.
#[test]
fn reads_end_while_the_store_is_silent_and_files_go() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(Silent { below: below.clone(), dir: Mutex::default(), gets: AtomicU64::new(0) });
    let opened =
        || open(dir.path(), options(&below).vault(vault.clone() as Arc<dyn Vault>).object_scrub(None));
    let logs = opened();
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    logs.close().unwrap();
    drop(logs);
    let logs = opened();
    let log = log_of(&logs, 3);
    let is_over = AtomicBool::new(false);
    *vault.dir.lock().unwrap() = Some(dir.path().join("group-1"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                append(&logs, &all(), 20);
            }
        });
        let reads: [&dyn Fn() -> chiplog::Result<()>; 2] = [&|| log.read(Index(1)).map(drop), &|| {
            log.reader(Start::Timestamp(Timestamp(1)))?.next_record().map(drop)
        }];
        let seen = reads.map(|read| {
            vault.gets.store(0, Ordering::SeqCst);
            (read().map_err(|error| error.kind()), vault.gets.load(Ordering::SeqCst))
        });
        is_over.store(true, Ordering::SeqCst);
        *vault.dir.lock().unwrap() = None;
        for (outcome, gets) in seen {
            assert!(outcome == Err(ErrorKind::Unavailable) && gets < WAITS / 2, "{outcome:?}: {gets}");
        }
    });
    eventually("the store answers", || log.read(Index(1)).is_ok());
    read_all(3, &log, 1);
}

/// A flipped bit on the way from the store is never served, and an object that came damaged is fetched again.
#[test]
fn faults_of_the_object_store_delay_readers_and_damage_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let faults = || FaultOptions::default().refused(100).unanswered(100).missing(50).flipped(200).short(50);
    let vault = Arc::new(FaultyVault::new(below.clone(), 11, FaultOptions::default()));
    let options = options(&below).vault(vault.clone() as Arc<dyn Vault>);
    let logs = open(dir.path(), options);
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    vault.set_faults(faults());
    for log in all() {
        let handle = log_of(&logs, log);
        let mut reader = None;
        let mut next = 1;
        let begun = Instant::now();
        while next <= 600 {
            assert!(begun.elapsed() < Duration::from_secs(60), "record {next} of log {log}");
            let at = reader.take().map_or_else(|| handle.reader(Start::Index(Index(next))), Ok);
            let found = at.and_then(|mut at| {
                let record = at.next_record()?.map(|found| (found.index.get(), found.data.to_vec()));
                reader = Some(at);
                Ok(record)
            });
            match found {
                Ok(Some(found)) => {
                    assert_eq!(found, (next, record(log, next)), "log {log}");
                    next += 1;
                }
                Ok(None) => panic!("record {next} of log {log} is not there"),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt), "{error}");
                }
            }
        }
    }
    vault.set_faults(FaultOptions::default().refused(1000));
    append(&logs, &all(), 100);
    let error = log_of(&logs, 5).read(Index(3)).map(drop);
    assert!(
        error.is_err_and(|error| error.kind() == ErrorKind::Unavailable)
            || group(&logs).metrics().cached_bytes > 0
    );
}

/// With any byte of an object flipped, no reader gets other records, and no other segment file is made of it.
#[test]
fn no_flipped_byte_of_an_object_is_served() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_scrub(None).object_age(Duration::from_millis(50));
    let logs = open(dir.path(), options());
    append(&logs, &all(), 150);
    until_files_go(&logs, dir.path());
    let id = group(&logs).log_id();
    // One of several pages: on a busy machine the age cuts smaller ones.
    let large = || objects(&vault, id).into_iter().find(|(_, bytes)| *bytes > 100_000);
    let (name, bytes) = loop {
        if let Some(found) = large() {
            break found;
        }
        append(&logs, &all(), 150);
        until_files_go(&logs, dir.path());
    };
    let number: u64 = name.rsplit('/').next().unwrap().parse().unwrap();
    let right = vault.get(&name, 0..bytes).unwrap();
    let (file, changed) = Backup::segment_file(id, number, right.to_vec()).unwrap();
    assert_eq!(changed, None);
    for at in (0..right.len()).step_by(1009).chain(0..96).chain(4096..4200) {
        let mut bad = right.to_vec();
        bad[at] ^= 1 << (at % 8);
        match Backup::segment_file(id, number, bad.clone()) {
            // Zeros between the blocks are in no segment file.
            Ok((made, Some(changed))) => assert!(made == file && changed == at as u64, "byte {at}"),
            // Without its first bytes it is taken for a segment file.
            Ok((made, None)) => assert!(at < 8 && made == bad[..], "byte {at}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}"),
        }
        if at % 7 > 0 {
            continue;
        }
        vault.put(&name, &[bad.into()]).unwrap();
        for log in [1, 4, LOGS] {
            let handle = log_of(&logs, log);
            let mut reader = handle.reader(Start::First).unwrap();
            let mut next = 1;
            loop {
                match reader.next_record() {
                    Ok(Some(found)) => {
                        assert!(
                            (found.index.get(), found.data) == (next, &record(log, next)[..]),
                            "byte {at}"
                        );
                        next += 1;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
                        break;
                    }
                }
            }
        }
        vault.put(&name, std::slice::from_ref(&right)).unwrap();
    }
    all().into_iter().for_each(|log| read_all(log, &log_of(&logs, log), 1));
}
