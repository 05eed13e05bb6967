//! Groups of named logs whose older records are in an object store: what is stored, what goes from the disk, and what readers of
//! each log get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::backup::{Backup, RestoreOptions};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{
    Clock, ErrorKind, FollowerLog, Index, Log, LogId, LogNumber, LogOption, Logs, LogsOptions, NodeId,
    Options, ReadMode, Start, Timestamp,
};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;
/// How many logs a group has.
const LOGS: u64 = 7;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .object_delete_delay(Duration::from_millis(200))
        .local_bytes(2 * u64::from(SEGMENT))
}

fn open(dir: &Path, options: Options) -> Logs {
    Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap()
}

fn group(logs: &Logs) -> Log {
    logs.groups()[&1].clone()
}

fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
}

fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

/// Appends `count` records to each of these logs, turn by turn.
fn append(logs: &Logs, which: &[u64], count: u64) {
    let handles: Vec<_> = which.iter().map(|log| (*log, log_of(logs, *log))).collect();
    let mut left = count;
    while left > 0 {
        let some = left.min(64);
        let lasts: Vec<u64> = handles.iter().map(|(_, handle)| handle.last_index().get()).collect();
        let mut tickets = Vec::new();
        for k in 1..=some {
            for ((log, handle), last) in handles.iter().zip(&lasts) {
                tickets.push(handle.submit(&record(*log, last + k)).unwrap());
            }
        }
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().unwrap().get() > 0));
        left -= some;
    }
}

fn all() -> Vec<u64> {
    (1..=LOGS).collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(log: u64, handle: &Log, from: u64) {
    let mut reader = handle.reader(Start::Index(Index(from))).unwrap();
    for n in from..=handle.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n} of log {log}"));
        assert!((found.index.get(), found.data) == (n, &record(log, n)[..]), "record {n} of log {log}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

/// Appends to each log, unless many records wait to be stored: appends without a break can outrun the store.
fn append_slowly(logs: &Logs) {
    if group(logs).metrics().unstored_bytes < 512 << 10 {
        append(logs, &all(), 20);
    }
}

/// Appends until the directory of the group has few files.
fn until_files_go(logs: &Logs, dir: &Path) {
    eventually("files go", || {
        append_slowly(logs);
        files(&dir.join("group-1"), ".seg") <= 8
    });
}

#[test]
fn older_records_of_each_log_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || open(dir.path(), options(&vault).read_mode(mode));
        let logs = opened();
        append(&logs, &all(), 600); // 2.7 MB
        eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
        until_files_go(&logs, dir.path());
        let oldest = |logs: &Logs| log_of(logs, 3).first_index().get();
        assert_eq!(oldest(&logs), 1);
        let fetched = || group(&logs).metrics().fetched_bytes;
        // A file can go in between.
        eventually("the first local record is in a file, and the one before is not", || {
            let log = log_of(&logs, 3);
            let first = log.first_local_index().unwrap();
            let (before, here) = (fetched(), log.read(first).unwrap());
            let is_here = here.data == record(3, first.get()) && fetched() == before;
            is_here && log.read(first.previous()).is_ok() && fetched() > before
        });
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
            read_all(log, &log_of(&logs, log), 77);
            for n in [1, 2, 300, 599] {
                assert_eq!(log_of(&logs, log).read(Index(n)).unwrap().data, record(log, n));
            }
        }
        assert!(group(&logs).metrics().fetched_bytes > 0);
        logs.close().unwrap();
        let logs = opened();
        assert_eq!(oldest(&logs), 1);
        append(&logs, &all(), 50);
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
        }
    }
}

/// The names of a log's objects and how large each is.
fn objects(vault: &MemoryVault, log: LogId) -> Vec<(String, u64)> {
    let found = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    found.into_iter().map(|object| (object.name, object.bytes)).collect()
}

/// A reader of one log among many fetches about that log's bytes, not the whole objects.
#[test]
fn one_log_costs_about_its_own_bytes() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || {
        let segment = 8 << 20;
        let options = Options::with_segment_bytes(segment).vault(vault.clone() as Arc<dyn Vault>);
        options.object_bytes(8 << 20).local_bytes(2 * u64::from(segment)).object_scrub(None)
    };
    let logs = open(dir.path(), options());
    let many: Vec<u64> = (1..=40).collect();
    eventually("objects are stored, and files go", || {
        append(&logs, &many, 64);
        group(&logs).metrics().stored_bytes > 48 << 20 && files(&dir.path().join("group-1"), ".seg") <= 8
    });
    let id = group(&logs).log_id();
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    let stored: u64 = objects(&vault, id).iter().map(|(_, bytes)| bytes).sum();
    let before = group(&logs).metrics().fetched_bytes;
    read_all(7, &log_of(&logs, 7), 1);
    let fetched = group(&logs).metrics().fetched_bytes - before;
    // Of each object the chunk with its opening, that with its directory, and one or two with the log's records.
    let most = objects(&vault, id).len() as u64 * 4 * (256 << 10);
    assert!(fetched > 0 && fetched <= most && fetched < stored / 4, "{fetched} of {stored} bytes");
}

/// Objects go once each of their logs has discarded its records, or is dropped, and not before. The other records are read as before.
#[test]
fn objects_go_when_all_logs_have_discarded_their_records() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    let id = group(&logs).log_id();
    let name = |number: u64| format!("{:032x}/o/{number:020}", id.get());
    let is_there = |number| vault.size(&name(number)).unwrap().is_some();
    for log in 1..LOGS - 1 {
        log_of(&logs, log).discard(Index(400)).unwrap();
    }
    log_of(&logs, LOGS - 1).discard(Index(400)).unwrap();
    until_files_go(&logs, dir.path());
    assert!(is_there(0), "log {LOGS} has records there");
    read_all(LOGS, &log_of(&logs, LOGS), 1);
    assert_eq!(log_of(&logs, 1).read(Index(399)).unwrap_err().kind(), ErrorKind::Discarded);
    read_all(1, &log_of(&logs, 1), 400);
    logs.delete(&format!("log-{LOGS}")).unwrap();
    eventually("objects are deleted", || !is_there(0) && !is_there(4));
    for log in 1..LOGS {
        assert_eq!(log_of(&logs, log).first_index().get(), 400);
        read_all(log, &log_of(&logs, log), 400);
    }
    assert!(objects(&vault, id).len() > 2);
}

/// A clock that the test moves.
#[derive(Debug)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// The delay began with each start. It is counted from the discard of the group.
#[test]
fn restarts_do_not_delay_the_deletion_of_objects() {
    // Short, because nothing is deleted within a sixteenth of the delay after a start.
    const MINUTE: u64 = 160;
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let hand = Arc::new(Hand(AtomicU64::new(1_700_000_000_000)));
    let open = || {
        let mut options = options(&vault).clock(hand.clone());
        options.object_delete_delay = Duration::from_millis(100 * MINUTE);
        options.local_bytes = None;
        open(dir.path(), options)
    };
    let mut logs = open();
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    let name = format!("{:032x}/o/{:020}", group(&logs).log_id().get(), 0);
    let is_there = || vault.size(&name).unwrap().is_some();
    for log in all() {
        log_of(&logs, log).discard(Index(400)).unwrap();
    }
    eventually("the group discards", || {
        append_slowly(&logs);
        group(&logs).first_index().get() > 1500
    });
    append(&logs, &all(), 100);
    for _ in 0..6 {
        drop(logs);
        hand.0.fetch_add(16 * MINUTE, Ordering::Relaxed);
        logs = open();
        // A leader deletes what it can before it stores.
        let stored = group(&logs).metrics().stored_index;
        append(&logs, &all(), 100);
        eventually("more is stored", || group(&logs).metrics().stored_index > stored + 400);
        assert!(is_there(), "deleted before the delay");
    }
    drop(logs);
    hand.0.fetch_add(5 * MINUTE, Ordering::Relaxed);
    logs = open();
    eventually("objects are deleted", || !is_there());
    for log in all() {
        read_all(log, &log_of(&logs, log), 400);
    }
}

/// Retention of a log finds where its records end in objects whose files are gone.
#[test]
fn retention_of_a_log_counts_what_is_in_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    let log = log_of(&logs, 2);
    log.set_log_options(&[(LogOption::RetentionBytes, Some(200_000))], Duration::from_secs(10)).unwrap();
    eventually("retention discards", || log.first_index().get() > 100);
    let left: usize = (log.first_index().get()..=log.last_index().get()).map(|n| record(2, n).len()).sum();
    assert!(left > 180_000, "records of {left} bytes are left"); // each batch has a header
    read_all(2, &log, log.first_index().get());
    assert_eq!(log_of(&logs, 3).first_index().get(), 1);
    read_all(3, &log_of(&logs, 3), 1);
}

/// How many bytes a log keeps whose first records are in objects alone: their beginnings say it, once they are fetched.
#[test]
fn quota_of_a_log_counts_what_is_in_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let capacity = |logs: &Logs, bytes| {
        log_of(logs, 2)
            .set_log_options(&[(LogOption::CapacityBytes, bytes)], Duration::from_secs(10))
            .unwrap();
    };
    let logs = open(dir.path(), options(&vault));
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    let log = log_of(&logs, 2);
    log.discard(Index(201)).unwrap();
    logs.close().unwrap();
    let logs = open(dir.path(), options(&vault));
    let log = log_of(&logs, 2);
    let kept: usize = (201..=log.last_index().get()).map(|n| record(2, n).len() + 50).sum();
    // With the records before the first it would be full.
    capacity(&logs, Some(kept as u64 + 100_000));
    eventually("the log becomes full", || log.append(&record(2, log.last_index().get() + 1)).is_err());
    let appended: usize = (201..=log.last_index().get()).map(|n| record(2, n).len() + 50).sum();
    assert!(
        (kept + 20_000..kept + 300_000).contains(&appended),
        "{kept} bytes were kept, {appended} in the end"
    );
    assert_eq!(log.check_room(0).unwrap_err().kind(), ErrorKind::Full);
    log.discard(Index(401)).unwrap();
    eventually("the log has room", || log.check_room(0).is_ok());
    capacity(&logs, None);
}

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

/// All disks are lost: a group and the catalogue come back from the object store alone.
#[test]
fn group_comes_back_from_the_object_store_alone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let place = |name: &str| dir.path().join(name);
    let options = || options(&vault).object_age(Duration::from_millis(50));
    let logs = open(&place("lost"), options());
    append(&logs, &all(), 400);
    for log in 1..=3 {
        log_of(&logs, log).discard(Index(50)).unwrap();
    }
    logs.seal("log-4").unwrap();
    logs.delete("log-5").unwrap();
    let left: Vec<u64> = all().into_iter().filter(|log| ![4, 5].contains(log)).collect();
    append(&logs, &left, 1); // an object is made for records: those before it come along
    let ends: Vec<_> = left.iter().map(|log| (*log, log_of(&logs, *log).last_index())).collect();
    eventually("everything is stored", || {
        group(&logs).metrics().stored_index >= group(&logs).last_index().get()
            && logs.system().metrics().stored_index >= logs.system().last_index().get()
    });
    let ids = [logs.system().log_id(), group(&logs).log_id()];
    logs.close().unwrap();
    std::fs::remove_dir_all(place("lost")).unwrap();

    std::fs::create_dir(place("again")).unwrap();
    for (id, name) in ids.into_iter().zip(["system", "group-1"]) {
        let backup = Backup::fetch(&*vault, id, place(&format!("backup-{name}")), &mut |_, _| {}).unwrap();
        backup.check(&mut |_, _| {}).unwrap();
        let keep = RestoreOptions::default().keep_log_id(true);
        backup.restore(place("again").join(name), &keep, &mut |_, _| {}).unwrap();
    }
    let without = options().vault(None).local_bytes(None);
    let logs = open(&place("again"), without);
    for (log, end) in ends {
        let handle = log_of(&logs, log);
        assert!(handle.last_index().get() >= end.get(), "log {log} ends at {} of {end}", handle.last_index());
        assert_eq!(handle.first_index().get(), if log <= 3 { 50 } else { 1 });
        read_all(log, &handle, handle.first_index().get());
    }
    assert_eq!(log_of(&logs, 4).append(b"x").unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!(logs.get("log-5").unwrap_err().kind(), ErrorKind::NotFound);
    append(&logs, &left, 10);

    // An object is damaged: nothing is restored of it.
    let objects = objects(&vault, ids[1]);
    for at in [4200, 20_000, 60_000] {
        let (name, bytes) = objects.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
        let right = vault.get(name, 0..*bytes).unwrap();
        let mut bad = right.to_vec();
        bad[at] ^= 1;
        vault.put(name, &[bad.into()]).unwrap();
        let error = Backup::fetch(&*vault, ids[1], place("less"), &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        vault.put(name, &[right]).unwrap();
    }
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
    let file = Backup::segment_file(id, number, right.to_vec()).unwrap();
    for at in (0..right.len()).step_by(1009).chain(0..96).chain(4096..4200) {
        let mut bad = right.to_vec();
        bad[at] ^= 1 << (at % 8);
        match Backup::segment_file(id, number, bad.clone()) {
            // Zeros behind the skeleton are in no segment file. Without its first bytes it is taken for one.
            Ok(made) => assert!(made == file || (at < 8 && made == bad), "byte {at}"),
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

/// A copy of a whole group begins behind what is stored, keeps few files, and has all records of each log.
#[test]
fn copy_of_a_group_reads_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("logs"), options(&vault));
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    log_of(&logs, 2).discard(Index(77)).unwrap();
    until_files_go(&logs, &dir.path().join("logs"));
    let source = group(&logs);
    let mut feed = source.follow(FollowFrom::Newest).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = feed.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let place = dir.path().join("copy");
    let reads =
        || Options::with_segment_bytes(SEGMENT).sessions_max(16).vault(vault.clone() as Arc<dyn Vault>);
    let copy = FollowerLog::create(&place, reads(), &state).unwrap();
    let mut bytes = 0;
    while let Some(fed) = feed.next(64 << 10).unwrap() {
        bytes += fed.bytes();
        copy.apply(fed).unwrap();
    }
    assert!(bytes < 1_500_000, "{bytes} bytes were copied");
    let numbers: Vec<_> = logs.list().unwrap().into_iter().map(|info| (info.name, info.number)).collect();
    let check = |copy: &FollowerLog| {
        for (name, number) in &numbers {
            let log: u64 = name.trim_start_matches("log-").parse().unwrap();
            let handle = copy.log().named(*number).unwrap();
            assert_eq!(handle.first_index().get(), if log == 2 { 77 } else { 1 });
            assert_eq!(handle.last_index(), log_of(&logs, log).last_index());
            read_all(log, &handle, handle.first_index().get());
        }
    };
    check(&copy);
    copy.close().unwrap();
    let copy = FollowerLog::open(&place, reads()).unwrap();
    check(&copy);
}

/// Replicas of the catalogue and of one group.
struct Trio {
    networks: [MemoryNetwork; 2],
    dirs: Vec<tempfile::TempDir>,
    vault: Arc<MemoryVault>,
}

impl Trio {
    fn open(&self, node: u64, bootstrap: impl Fn(usize) -> Bootstrap) -> Logs {
        let transports = [self.networks[0].transport(), self.networks[1].transport()];
        let bootstraps = [bootstrap(0), bootstrap(1)];
        let options = LogsOptions::default().groups(1).options(options(&self.vault)).cluster(move |group| {
            let n = group as usize;
            let mut cluster = ClusterOptions::new(NodeId(node), bootstraps[n], transports[n].clone());
            cluster.heartbeat = Duration::from_millis(30);
            cluster.election_timeout = Duration::from_secs(20); // no election is wanted
            cluster.slow_disk_sync = None;
            cluster
        });
        Logs::open(self.dirs[node as usize - 1].path(), options).unwrap()
    }

    fn join(&self, leader: &Logs, node: u64) -> Logs {
        let groups = |logs: &Logs| [logs.system().clone(), group(logs)];
        let ids = groups(leader).map(|log| log.log_id());
        let joined = self.open(node, |n| Bootstrap::Join(ids[n]));
        for (leader, group) in groups(leader).into_iter().zip(groups(&joined)) {
            let (node, directory) = (NodeId(node), group.directory_id());
            let add = Change::AddLearner { node, directory, address: String::new() };
            leader.change_members(&[add], Duration::from_secs(60)).unwrap();
            leader.change_members(&[Change::Promote(node)], Duration::from_secs(60)).unwrap();
        }
        joined
    }
}

/// A replica that is added when the others have no files of the first records any more has all of them, and the objects that two
/// replicas make are equal: the vault would show another size or checksum.
#[test]
fn replica_that_is_added_reads_what_only_the_objects_have() {
    let trio = Trio {
        networks: [MemoryNetwork::new(), MemoryNetwork::new()],
        dirs: (0..4).map(|_| tempfile::tempdir().unwrap()).collect(),
        vault: Arc::new(MemoryVault::default()),
    };
    let one = trio.open(1, |_| Bootstrap::Init);
    let two = trio.join(&one, 2);
    append(&one, &all(), 600);
    let stored = || group(&one).metrics().stored_bytes + group(&two).metrics().stored_bytes;
    eventually("objects are stored", || stored() > 2_000_000);
    until_files_go(&one, trio.dirs[0].path());
    eventually("files go at the other replica", || {
        append_slowly(&one);
        files(&trio.dirs[1].path().join("group-1"), ".seg") <= 8
    });
    log_of(&one, 6).discard(Index(100)).unwrap();
    let three = trio.join(&one, 3);
    let last = group(&one).status().replica.committed_entry;
    eventually("it follows", || group(&three).status().replica.committed_entry >= last);
    for (name, number) in one.list().unwrap().into_iter().map(|info| (info.name, info.number)) {
        let log: u64 = name.trim_start_matches("log-").parse().unwrap();
        let handle = |logs: &Logs| group(logs).named(LogNumber(number.0)).unwrap();
        let first = handle(&one).first_index();
        assert_eq!(first.get(), if log == 6 { 100 } else { 1 });
        for logs in [&one, &two, &three] {
            eventually("the log's begin is known", || handle(logs).first_index() == first);
            eventually("it knows all objects", || {
                handle(logs).reader(Start::First).and_then(|mut r| r.next_batch().map(drop)).is_ok()
            });
            read_all(log, &handle(logs), first.get());
        }
    }
}

/// A group of which only two objects are left: the first two, which begin before the group has an object table, or the newest two.
/// Returns the group's id, and the number of each log.
fn two_objects_left(dir: &Path, vault: &Arc<MemoryVault>, newest: bool) -> (LogId, Vec<(u64, LogNumber)>) {
    let logs = open(dir, options(vault).vault(None).local_bytes(None));
    append(&logs, &all(), 400);
    logs.close().unwrap();
    let logs = open(dir, options(vault).local_bytes(None));
    let id = group(&logs).log_id();
    eventually("objects are stored", || objects(vault, id).len() >= 4);
    eventually("objects begin behind the first command that made one", || {
        append(&logs, &all(), if newest { 20 } else { 0 });
        !newest || objects(vault, id).len() >= 20
    });
    let number_of = |name: &str| name.trim_start_matches("log-").parse().unwrap();
    let numbers = logs.list().unwrap().into_iter().map(|info| (number_of(&info.name), info.number)).collect();
    logs.close().unwrap();
    drop(logs);
    eventually("no object is being stored any more", || Arc::strong_count(vault) == 1);
    let objects = objects(vault, id);
    let first = if newest { objects.len() - 2 } else { 0 };
    for (name, _) in
        objects.iter().enumerate().filter(|(n, _)| !(first..first + 2).contains(n)).map(|(_, o)| o)
    {
        vault.delete(name).unwrap();
    }
    if newest {
        let name = format!("{:032x}/begin/{first:020}", id.get());
        let text = format!("chiplog objects\nlog {:032x}\nbegin {first}\n", id.get());
        vault.put(&name, &[text.into()]).unwrap();
    }
    (id, numbers)
}

/// Checks each log in a backup of these two objects, and in the log that is restored from it.
fn check_two_objects(newest: bool, check: impl Fn(u64, &Log)) {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let place = |name: &str| dir.path().join(name);
    let (id, numbers) = two_objects_left(&place("lost"), &vault, newest);
    let backup = Backup::fetch(&*vault, id, place("backup"), &mut |_, _| {}).unwrap();
    backup.check(&mut |_, _| {}).unwrap();
    let keep = RestoreOptions::default().keep_log_id(true);
    backup.restore(place("again"), &keep, &mut |_, _| {}).unwrap();
    let options = || Options::with_segment_bytes(SEGMENT).sessions_max(16);
    let restored = Log::open(place("again"), options()).unwrap();
    let copy = FollowerLog::open(place("backup"), options()).unwrap();
    assert_eq!(numbers.len() as u64, LOGS);
    for (log, number) in numbers {
        for group in [&restored, copy.log()] {
            let handle = group.named(number).unwrap();
            check(log, &handle);
            read_all(log, &handle, handle.first_index().get());
            assert!(handle.reader(Start::First).unwrap().next_record().unwrap().is_some());
        }
    }
}

/// The openings of both objects say nothing of an object before them.
#[test]
fn group_with_two_objects_comes_back_whole() {
    check_two_objects(false, |log, handle| {
        assert_eq!(handle.first_index(), Index(1), "log {log}");
        assert!(handle.last_index() > Index(40), "log {log}");
    });
}

/// The oldest objects were deleted, and the discards are in none that is left: each log begins with its first record in those.
#[test]
fn logs_of_a_group_begin_with_the_oldest_object() {
    check_two_objects(true, |log, handle| {
        assert!(handle.first_index() > Index(100), "log {log} begins with {}", handle.first_index());
        assert!(handle.last_index() > handle.first_index(), "log {log}");
    });
}
