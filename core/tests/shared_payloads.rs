//! The durability class `object` of groups of named logs: appends of all logs of a group go to one payload slice, and its entries refer to
//! them.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::backup::{Backup, RestoreOptions};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::inspect::{Content, Event, Inspector};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{
    Appended, Batch, BatchBuilder, Codec, Durability, Error, ErrorKind, FollowerLog, Index, Log, LogId,
    LogNumber, LogOption, Logs, LogsOptions, NodeId, Options, Sequence, Start,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

/// Slices every 10 ms, and objects that are far from full.
fn options(vault: &Arc<impl Vault + 'static>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .slice_interval(Some(Duration::from_millis(10)))
        .payload_slices(true)
}

/// With objects that are soon full, and few files.
fn with_objects(vault: &Arc<MemoryVault>) -> Options {
    options(vault).object_bytes(128 << 10).local_bytes(2 * u64::from(SEGMENT))
}

fn group(logs: &Logs) -> Log {
    logs.groups()[&1].clone()
}

fn is_on(logs: &Logs) -> bool {
    group(logs).log_options().get(LogOption::PayloadSlices) == Some(1)
}

fn open(dir: &Path, options: Options) -> Logs {
    let waits = options.payload_slices;
    let logs = Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap();
    eventually("the class is on", || !waits || is_on(&logs));
    logs
}

/// Larger than a reference.
fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 700 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
}

fn batch(log: u64, n: u64) -> Batch {
    BatchBuilder::new().push(&record(log, n)).unwrap().build().unwrap()
}

fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

/// Appends `count` records to each of these logs, turn by turn.
fn append(logs: &Logs, which: &[u64], count: u64) {
    let handles: Vec<_> = which.iter().map(|log| (*log, log_of(logs, *log))).collect();
    let lasts: Vec<u64> = handles.iter().map(|(_, handle)| handle.last_index().get()).collect();
    let mut tickets = Vec::new();
    for k in 1..=count {
        for ((log, handle), last) in handles.iter().zip(&lasts) {
            tickets.push((last + k, handle.submit(&record(*log, last + k)).unwrap()));
        }
    }
    tickets.into_iter().for_each(|(n, ticket)| assert_eq!(ticket.wait().unwrap(), Index(n)));
}

/// Appends record `n` to both logs together.
fn append_pair(logs: &Logs, which: [u64; 2], n: u64) -> Vec<Appended> {
    let (handles, batches) = (which.map(|log| log_of(logs, log)), which.map(|log| batch(log, n)));
    logs.append_together(&[(&handles[0], &batches[0]), (&handles[1], &batches[1])]).unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_sliced(log: &Log) -> bool {
    let metrics = log.metrics();
    metrics.sliced_index == log.last_index().get() && metrics.unsliced_bytes == 0
}

/// Everything of the group and of the catalogue is in the object store.
fn all_sliced(logs: &Logs) {
    eventually("the group is in slices", || is_sliced(&group(logs)));
    eventually("the catalogue is in slices", || is_sliced(logs.system()));
}

fn read_all(log: u64, handle: &Log, from: u64, to: u64) {
    assert_eq!((handle.first_index().get(), handle.last_index().get()), (from, to), "log {log}");
    let mut reader = handle.reader(Start::Index(Index(from))).unwrap();
    for n in from..=to {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n} of log {log}"));
        assert!((found.index.get(), found.data) == (n, &record(log, n)[..]), "record {n} of log {log}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn read_named(logs: &Logs, log: u64, from: u64, to: u64) {
    read_all(log, &logs.get(&format!("log-{log}")).unwrap(), from, to);
}

/// Of each log, from which record to which one it goes.
fn read_logs(logs: &Logs, which: impl IntoIterator<Item = (u64, u64, u64)>) {
    which.into_iter().for_each(|(log, from, to)| read_named(logs, log, from, to));
}

fn names(vault: &dyn Vault, id: LogId, folder: &str) -> Vec<String> {
    let found = vault.list(&format!("{:032x}/{folder}/", id.get())).unwrap();
    found.into_iter().map(|at| at.name).collect()
}

/// The ids of the catalogue and of the group.
fn ids(logs: &Logs) -> [LogId; 2] {
    [logs.system().log_id(), group(logs).log_id()]
}

/// The logs that come back from the object store alone, and what was said about that.
fn again(vault: &dyn Vault, ids: [LogId; 2], dir: &Path) -> (Logs, Vec<String>) {
    let place = dir.join(format!("again{}", std::fs::read_dir(dir).unwrap().count()));
    std::fs::create_dir(&place).unwrap();
    let mut notes = Vec::new();
    for (id, name) in ids.into_iter().zip(["system", "group-1"]) {
        let made = Backup::fetch(vault, id, place.join(format!("backup-{name}")), &mut |_, _| {}).unwrap();
        let backup = Backup::open(made.path()).unwrap();
        backup.check(&mut |_, _| {}).unwrap();
        notes.extend(backup.notes().iter().cloned());
        let keep = RestoreOptions::default().keep_log_id(true);
        backup.restore(place.join("logs").join(name), &keep, &mut |_, _| {}).unwrap();
    }
    (open(&place.join("logs"), Options::with_segment_bytes(1 << 20)), notes)
}

/// Payload of many logs goes to few slices, and files have references. Readers get what was appended, here, at the tail and after a restart;
/// a log without the object store says where the records are. The catalogue has none.
#[test]
fn files_have_references_and_readers_the_payload() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    let which: Vec<u64> = (1..=50).collect();
    which.iter().for_each(|log| _ = log_of(&logs, *log));
    let before = group(&logs).metrics();
    let mut tail = log_of(&logs, 7).reader(Start::Next).unwrap();
    append(&logs, &which, 20);
    let metrics = group(&logs).metrics();
    let payload: u64 = which.iter().flat_map(|log| (1..=20).map(|n| record(*log, n).len() as u64)).sum();
    let written = metrics.bytes - before.bytes;
    // An append that is alone in its block takes a header and a reference.
    assert!(written < 1_000 * 128 && written * 5 < payload, "{written} bytes in files for {payload}");
    assert!(metrics.stored_payloads > 0 && metrics.payload_bytes > payload, "{metrics:?}");
    assert!(metrics.stored_payloads < 500, "{} slices for 1000 appends of 50 logs", metrics.stored_payloads);
    assert_eq!(logs.system().metrics().stored_payloads, 0);
    for n in 1..=20 {
        assert_eq!(tail.next_record().unwrap().unwrap().data, record(7, n));
    }
    let ends = append_pair(&logs, [3, 5], 21);
    assert!(ends.iter().all(|end| end.first == Index(21)), "{ends:?}");
    let mut stored = log_of(&logs, 3).reader(Start::Index(Index(21))).unwrap();
    assert_eq!(stored.next_stored().unwrap().unwrap().bytes(), batch(3, 21).as_bytes());
    let end = |log: u64| if [3, 5].contains(&log) { 21 } else { 20 };
    let check = |logs: &Logs| which.iter().for_each(|log| read_named(logs, *log, 1, end(*log)));
    check(&logs);
    drop((tail, stored, logs));
    let logs = open(dir.path(), options(&vault));
    check(&logs);
    append(&logs, &[9, 51], 3);
    read_named(&logs, 9, 1, 23);
    read_named(&logs, 51, 1, 3);
    drop(logs);
    let logs = open(dir.path(), Options::with_segment_bytes(SEGMENT).sessions_max(16));
    let error = log_of(&logs, 7).read(Index(7)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("object store"), "{error}");
    // Without the object store it replicates whole appends.
    append(&logs, &[7], 1);
    assert_eq!(log_of(&logs, 7).read(Index(21)).unwrap().data, record(7, 21));
    drop(logs);
    read_named(&open(dir.path(), options(&vault)), 7, 1, 21);
}

/// An append is answered once the object store alone has it, and the log says so; without the class, and after the class was switched off, it
/// does not.
#[test]
fn log_says_whether_its_appends_are_in_the_store() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    for n in 1..=30 {
        for log in 1..=3 {
            let handle = log_of(&logs, log);
            let ticket = handle.submit(&record(log, n)).unwrap();
            assert_eq!(ticket.wait().unwrap(), Index(n));
            assert_eq!(ticket.durability(), Some(Durability::Object), "log {log}, {n}");
            assert!(handle.is_in_store(Index(n)) && !handle.is_in_store(Index(n + 1)), "log {log}, {n}");
        }
    }
    assert_eq!(group(&logs).metrics().unstored_confirmations, 0);
    // Also one that is too small for a reference.
    assert_eq!(log_of(&logs, 4).append(b"x").unwrap(), Index(1));
    assert!(log_of(&logs, 4).is_in_store(Index(1)));
    let set = [(LogOption::PayloadSlices, Some(0))];
    let error = log_of(&logs, 1).set_log_options(&set, Duration::from_secs(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    group(&logs).set_log_options(&set, Duration::from_secs(20)).unwrap();
    append(&logs, &[1, 2, 3], 5);
    assert!(!log_of(&logs, 1).is_in_store(Index(35)) && log_of(&logs, 1).is_in_store(Index(30)));
    (1..=3).for_each(|log| read_named(&logs, log, 1, 35));
    let without = LogsOptions::default().options(options(&vault).slice_interval(None));
    let refused = Logs::open(dir.path().join("other"), without).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

/// Objects have the payload, log by log; payload slices go once an object has theirs, and not before. All of it comes back from the object
/// store alone.
#[test]
fn objects_have_the_payload_and_slices_go() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let (holds, vault_of) = (Arc::new(AtomicBool::new(true)), vault.clone());
    let held = holds.clone();
    let is_put = |call: &str| matches!(call, "put" | "create");
    vault.set(move |call, name| match is_put(call) && name.contains("/o/") && held.load(Ordering::SeqCst) {
        true => Err(Error::new(ErrorKind::Unavailable, "no object is taken")),
        false => Ok(()),
    });
    let options = || options(&vault_of).object_bytes(128 << 10).local_bytes(2 * u64::from(SEGMENT));
    let logs = open(&dir.path().join("lost"), options());
    let all = ids(&logs);
    for _ in 0..15 {
        append(&logs, &[1, 2, 3, 4], 20);
    }
    all_sliced(&logs);
    let metrics = group(&logs).metrics();
    assert_eq!(
        (metrics.stored_index, metrics.stored_payloads),
        (0, names(&*below, all[1], "p").len() as u64)
    );
    holds.store(false, Ordering::SeqCst);
    eventually("objects are stored", || {
        append(&logs, &[1], 1);
        group(&logs).metrics().stored_index > 1100
    });
    eventually("slices go", || {
        append(&logs, &[1], 1);
        2 * names(&*below, all[1], "p").len() < group(&logs).metrics().stored_payloads as usize
    });
    let objects = below.list(&format!("{:032x}/o/", all[1].get())).unwrap();
    assert!(objects.iter().all(|object| object.bytes < 600 << 10), "{objects:?}");
    let last = log_of(&logs, 1).last_index().get();
    let check = |logs: &Logs| read_logs(logs, [(1, 1, last), (2, 1, 300), (3, 1, 300), (4, 1, 300)]);
    check(&logs);
    // A log has as many bytes as its readers get, whatever counts them: the leader, a replay, or a log that is made of objects.
    let bytes =
        |logs: &Logs| [1, 2, 3, 4].map(|log| logs.info(&format!("log-{log}")).unwrap().bytes_appended);
    let appended = bytes(&logs);
    let payload: u64 = (1..=300).map(|n| batch(2, n).as_bytes().len() as u64).sum();
    assert_eq!(appended[1], payload);
    // A reader of files whose payload is in objects alone, without slices in memory.
    drop(logs);
    let logs = open(&dir.path().join("lost"), options());
    check(&logs);
    assert_eq!(bytes(&logs), appended);
    log_of(&logs, 3).discard(Index(100)).unwrap();
    all_sliced(&logs);
    drop(logs);
    std::fs::remove_dir_all(dir.path().join("lost")).unwrap();
    let (logs, notes) = again(&*below, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(bytes(&logs), appended);
    read_logs(&logs, [(1, 1, last), (2, 1, 300), (3, 100, 300), (4, 1, 300)]);
}

/// Slices of entries are not stored, and payload is: behind the last entry in a slice the payload alone says which records of which logs come.
/// Everything that was acknowledged comes back, with sessions, and not what waits.
#[test]
fn payload_alone_leads_on_in_each_log() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    let all = ids(&logs);
    append(&logs, &[1, 2, 3, 4], 5);
    let mut session = log_of(&logs, 2).open_session().unwrap();
    session.append(&record(2, 6)).unwrap();
    let id = session.id();
    append(&logs, &[1, 2, 3, 4], 1);
    all_sliced(&logs);
    vault.set(|call, name| match call == "put" && name.contains("/s/") {
        true => Err(Error::new(ErrorKind::Unavailable, "no slice of entries is taken")),
        false => Ok(()),
    });
    let sliced = group(&logs).metrics().sliced_index;
    for n in 7..=40 {
        let _ = log_of(&logs, 1).append(&record(1, n)).unwrap();
        session.append(&record(2, n + 1)).unwrap();
        append_pair(&logs, [3, 4], n);
        assert!(log_of(&logs, 4).is_in_store(Index(n)) && log_of(&logs, 2).is_in_store(Index(n + 1)));
    }
    assert_eq!(group(&logs).metrics().sliced_index, sliced, "payload alone has them");
    drop(session);
    drop(logs);
    let (logs, notes) = again(&*below, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_logs(&logs, [(1, 1, 40), (2, 1, 41), (3, 1, 40), (4, 1, 40)]);
    let mut session = log_of(&logs, 2).resume_session(id, Sequence(35));
    assert_eq!(session.append(&record(2, 41)).unwrap(), Index(41), "a retry is recognised");
    append(&logs, &[1, 2, 3, 4], 2);
}

/// One log is deleted, one discarded, one sealed, while their payload is in slices with that of others: these keep theirs. A log that is
/// opened, sealed or dropped keeps the order.
#[test]
fn deleted_logs_take_nothing_of_others_with_them() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), with_objects(&vault).object_delete_delay(Duration::ZERO));
    let all = ids(&logs);
    for round in 0..12 {
        append(&logs, &[1, 2, 3, 10 + round], 10);
        if round > 0 {
            logs.delete(&format!("log-{}", 9 + round)).unwrap();
        }
        log_of(&logs, 2).discard(Index(round * 10 + 5)).unwrap();
        append(&logs, &[30 + round], 2);
        logs.seal(&format!("log-{}", 30 + round)).unwrap();
    }
    let check = |logs: &Logs| {
        read_logs(logs, [(1, 1, 120), (2, 115, 120), (3, 1, 120), (21, 1, 10)]);
        (30..42).for_each(|log| read_named(logs, log, 1, 2));
        assert_eq!(logs.get("log-14").unwrap_err().kind(), ErrorKind::NotFound);
    };
    check(&logs);
    all_sliced(&logs);
    drop(logs);
    let logs = open(&dir.path().join("lost"), with_objects(&vault));
    check(&logs);
    // Once all logs have discarded everything, payload goes with it.
    for log in [1, 2, 3, 21].into_iter().chain(30..42) {
        logs.delete(&format!("log-{log}")).unwrap();
    }
    eventually("payload goes", || {
        append(&logs, &[50], 20);
        let handle = log_of(&logs, 50);
        handle.discard(handle.last_index()).unwrap();
        let slices = names(&*vault, all[1], "p");
        slices.len() < 40
    });
    let (from, to) = (log_of(&logs, 50).first_index().get(), log_of(&logs, 50).last_index().get());
    read_named(&logs, 50, from, to);
    all_sliced(&logs);
    drop(logs);
    let (logs, notes) = again(&*vault, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_named(&logs, 50, from, to);
}

/// Sorted copies have the references, and readers of one log get its payload through them. A directory alone is sound, and shows each
/// reference in its log.
#[test]
fn sorted_copies_have_references() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    eventually("a full segment is sorted", || {
        append(&logs, &[1, 2, 3], 100);
        let found = std::fs::read_dir(dir.path().join("group-1")).unwrap();
        { found }.any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".run"))
    });
    let last = log_of(&logs, 1).last_index().get();
    drop(logs);
    let (mut references, mut others) = (0u64, 0);
    let inspector = Inspector::open(dir.path().join("group-1")).unwrap();
    let report = inspector.walk(&mut |event| {
        if let Event::Block(block) = event
            && let Ok(Content::Runs(runs)) = block.content()
        {
            for batch in runs.iter().flat_map(|run| &run.batches) {
                match batch.codec() {
                    Codec::Reference => references += 1,
                    _ => others += 1,
                }
            }
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.corrupt, report.undecodable, report.records), (0, 0, 3 * last), "{report:?}");
    assert_eq!((references, others), (3 * last, 0));
    let logs = open(dir.path(), options(&vault));
    read_logs(&logs, [1, 2, 3].map(|log| (log, 1, last)));
    assert_eq!(group(&logs).metrics().damaged, 0);
}

/// Damage in a slice was blamed on the sorted copy whose record refers to it: the copy was removed, made again, and removed again.
#[test]
fn damaged_slice_removes_no_sorted_copy() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), options(&vault));
    let copies = || {
        let found = std::fs::read_dir(dir.path().join("group-1")).unwrap();
        let found = found.map(|entry| entry.unwrap()).filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().ends_with(".run")
        });
        let files = found.map(|entry| (entry.file_name(), entry.metadata().unwrap()));
        files.map(|(name, file)| (name, file.modified().unwrap())).collect::<BTreeMap<_, _>>()
    };
    eventually("full segments are sorted", || {
        append(&logs, &[1, 2, 3], 100);
        copies().len() >= 2
    });
    all_sliced(&logs);
    let (last, id) = (log_of(&logs, 1).last_index().get(), ids(&logs)[1]);
    drop(logs);
    // The first slice has the first records, which are in the first copy.
    let bad = &names(&*vault, id, "p")[0];
    let mut flipped = vault.get(bad, 0..vault.size(bad).unwrap().unwrap()).unwrap().to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    vault.put(bad, &[flipped.into()]).unwrap();
    let before = copies();
    let logs = open(dir.path(), options(&vault));
    let mut damaged = 0;
    for log in 1..=3 {
        let handle = log_of(&logs, log);
        for n in 1..=last {
            match handle.read(Index(n)) {
                Ok(found) => assert_eq!(found.data, record(log, n)),
                Err(error) => {
                    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(bad), "{error}");
                    damaged += 1;
                }
            }
        }
    }
    assert_eq!(damaged, 1);
    let now = copies();
    assert!(before.iter().all(|(name, made)| now.get(name) == Some(made)), "{before:?} became {now:?}");
}

/// Damage in a payload slice never shows in any log; the log that comes back ends before it, and says so.
#[test]
fn damage_is_never_served() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    let all = ids(&logs);
    for _ in 0..10 {
        append(&logs, &[1, 2, 3], 10);
    }
    all_sliced(&logs);
    drop(logs);
    let found = names(&*vault, all[1], "p");
    let bad = &found[found.len() / 2];
    let mut flipped = vault.get(bad, 0..vault.size(bad).unwrap().unwrap()).unwrap().to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    vault.put(bad, &[flipped.into()]).unwrap();
    let logs = open(&dir.path().join("lost"), options(&vault));
    let mut damaged = 0;
    for log in 1..=3 {
        let mut reader = log_of(&logs, log).reader(Start::First).unwrap();
        let mut next = 1;
        while next <= 100 {
            match reader.next_record() {
                Ok(Some(found)) => assert_eq!(found.data, record(log, next)),
                Ok(None) => panic!("a record was left out"),
                Err(error) => {
                    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(bad), "{error}");
                    damaged += 1;
                    reader.seek(Index(next + 1)).unwrap();
                }
            }
            next += 1;
        }
    }
    assert_eq!(damaged, 1);
    drop(logs);
    let (logs, notes) = again(&*vault, all, dir.path());
    assert!(notes.iter().any(|note| note.contains(bad)), "{notes:?}");
    for log in 1..=3 {
        let handle = log_of(&logs, log);
        assert!(handle.last_index() < Index(100));
        read_all(log, &handle, 1, handle.last_index().get());
    }
}

/// Copies of the whole group, with and without the object store, and of one log get the batches: from payload slices, and from objects once
/// these have gone.
#[test]
fn copies_are_fed_whole_batches() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    // All files stay.
    let logs = open(&dir.path().join("source"), options(&vault).object_bytes(128 << 10));
    let id = group(&logs).log_id();
    append(&logs, &[1, 2, 3, 4], 10);
    let numbers: Vec<(u64, LogNumber)> =
        (1..=4).map(|log| (log, logs.info(&format!("log-{log}")).unwrap().number)).collect();
    let place = |name: &str| dir.path().join(name);
    let feed = |copy: &FollowerLog, source: &Log| {
        let mut feed = source.follow(copy.resume_point().unwrap()).unwrap();
        while let Some(item) = feed.next(64 << 10).unwrap() {
            copy.apply(item).unwrap();
        }
    };
    let begin = |name: &str, source: &Log| {
        let Some(FollowMessage::State(state)) = source.follow(FollowFrom::First).unwrap().next(0).unwrap()
        else {
            panic!("a feed begins with a state")
        };
        FollowerLog::create(place(name), Options::with_segment_bytes(1 << 20), &state).unwrap()
    };
    let (whole, one) = (begin("whole", &group(&logs)), begin("one", &log_of(&logs, 2)));
    let mut last = 10;
    for round in 0..4 {
        if round == 2 {
            // From here on payload is in objects alone.
            eventually("payload slices go", || {
                append(&logs, &[1, 2, 3, 4], 5);
                last += 5;
                group(&logs).metrics().stored_payloads as usize > 4 * names(&*vault, id, "p").len()
            });
            // A log whose entries are there, and that is not.
            logs.delete("log-4").unwrap();
            log_of(&logs, 3).discard(Index(20)).unwrap();
        }
        feed(&whole, &group(&logs));
        feed(&one, &log_of(&logs, 2));
        for (log, number) in &numbers {
            match whole.log().named(*number) {
                Ok(handle) => read_all(*log, &handle, handle.first_index().get(), last),
                Err(error) => assert!(*log == 4 && round >= 2, "{error}"),
            }
        }
        read_all(2, one.log(), 1, last);
        append(&logs, &[1, 2, 3], 10);
        if round < 2 {
            append(&logs, &[4], 10);
        }
        last += 10;
    }
    // A new copy, of which all is from objects and slices: without anything in memory.
    drop(logs);
    let logs = open(&place("source"), options(&vault).object_bytes(128 << 10));
    let late = begin("late", &group(&logs));
    feed(&late, &group(&logs));
    for (log, number) in &numbers[..3] {
        let handle = late.log().named(*number).unwrap();
        read_all(*log, &handle, handle.first_index().get(), last);
    }
}

/// Bytes that came damaged from the object store stayed in the cache of objects: each copy that was fed from it failed at the same record.
#[test]
fn copy_is_fed_on_after_an_object_came_damaged() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    // All files stay.
    let logs = open(&dir.path().join("source"), options(&below).object_bytes(128 << 10));
    let id = group(&logs).log_id();
    let mut last = 0;
    eventually("payload slices go", || {
        append(&logs, &[1, 2, 3], 20);
        last += 20;
        last >= 400 && group(&logs).metrics().stored_payloads as usize > 4 * names(&*below, id, "p").len()
    });
    drop(logs);
    let vault = Arc::new(FaultyVault::new(below, 7, FaultOptions::default().flipped(250)));
    let logs = open(&dir.path().join("source"), options(&vault).object_bytes(128 << 10));
    let source = group(&logs);
    let state = source.follow(FollowFrom::First).unwrap().next(0).unwrap();
    let Some(FollowMessage::State(state)) = state else { panic!("a feed begins with a state") };
    let copy =
        FollowerLog::create(dir.path().join("copy"), Options::with_segment_bytes(1 << 20), &state).unwrap();
    let feed = |copy: &FollowerLog| -> chiplog::Result<()> {
        let mut feed = source.follow(copy.resume_point()?)?;
        while let Some(item) = feed.next(64 << 10)? {
            copy.apply(item)?;
        }
        Ok(())
    };
    let failed = (0..200).filter(|_| feed(&copy).is_err()).count();
    assert!(failed > 0, "nothing came damaged");
    vault.set_faults(FaultOptions::default());
    eventually("the copy has all", || feed(&copy).is_ok());
    for log in 1..=3 {
        let number = logs.info(&format!("log-{log}")).unwrap().number;
        read_all(log, &copy.log().named(number).unwrap(), 1, last);
    }
}

/// A replica of the catalogue and of one group.
fn replica(
    dir: &Path,
    networks: &[MemoryNetwork; 2],
    node: u64,
    ids: Option<[LogId; 2]>,
    options: Options,
) -> Logs {
    let transports = [networks[0].transport(), networks[1].transport()];
    let options = LogsOptions::default().groups(1).options(options).cluster(move |group| {
        let n = group as usize;
        let bootstrap = ids.map_or(Bootstrap::Init, |ids| Bootstrap::Join(ids[n]));
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transports[n].clone());
        cluster.heartbeat = Duration::from_millis(30);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        cluster
    });
    Logs::open(dir.join(node.to_string()), options).unwrap()
}

/// Leaders of the group change while appends of sessions are in flight: each record is there once, at all replicas, and after the loss of all
/// of them.
#[test]
fn leaders_change_and_every_record_is_there_once() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let networks = [MemoryNetwork::new(), MemoryNetwork::new()];
    let options = || options(&vault).object_bytes(128 << 10);
    let one = replica(dir.path(), &networks, 1, None, options());
    let all = ids(&one);
    let mut replicas = vec![one];
    for node in [2, 3] {
        let joined = replica(dir.path(), &networks, node, Some(all), options());
        let one = &replicas[0];
        for (leader, of) in [(one.system(), joined.system()), (&group(one), &group(&joined))] {
            let (node, directory) = (NodeId(node), of.directory_id());
            let add = Change::AddLearner { node, directory, address: String::new() };
            leader.change_members(&[add], Duration::from_secs(60)).unwrap();
            leader.change_members(&[Change::Promote(node)], Duration::from_secs(60)).unwrap();
        }
        replicas.push(joined);
    }
    eventually("the class is on", || replicas.iter().all(is_on));
    let leader = || replicas.iter().position(|logs| group(logs).role() == Role::Leader);
    let create = |name: &str| replicas.iter().any(|logs| logs.get(name).is_ok() || logs.create(name).is_ok());
    eventually("the logs are created", || ["log-1", "log-2"].into_iter().all(create));
    let sessions = [1, 2].map(|log| {
        let mut session = None;
        eventually("a session is open", || {
            let handle = leader().and_then(|n| replicas[n].get(&format!("log-{log}")).ok());
            session = handle.and_then(|handle| handle.open_session().ok());
            session.is_some()
        });
        session.unwrap().id()
    });
    let mut next = [1, 1];
    for round in 1..=6 {
        let (from, upto) = (leader(), round * 60 + 1);
        eventually("they are appended", || {
            let Some(leading) = leader() else { return false };
            let mut tickets = Vec::new();
            for (at, log) in [1, 2].into_iter().enumerate() {
                let Ok(handle) = replicas[leading].get(&format!("log-{log}")) else { return false };
                let mut session = handle.resume_session(sessions[at], Sequence(next[at]));
                for n in next[at]..upto {
                    match session.submit(&record(log, n)) {
                        Ok(ticket) => tickets.push((at, n, ticket)),
                        Err(_) => break,
                    }
                }
            }
            // In flight while leadership moves; of unknown outcome until the new leader answers.
            if round < 6 && from == Some(leading) {
                let to = NodeId((leading as u64 + 1) % 3 + 1);
                _ = group(&replicas[leading]).transfer_leader(to, Duration::from_secs(5));
            }
            let mut is_done = true;
            for (at, n, ticket) in tickets {
                match ticket.wait() {
                    Ok(index) => assert_eq!(index, Index(n)),
                    Err(error) if error.kind() == ErrorKind::SequenceForgotten => {}
                    Err(_) => {
                        is_done = false;
                        continue;
                    }
                }
                if n == next[at] {
                    next[at] = n + 1;
                }
            }
            is_done && next == [upto, upto]
        });
    }
    for logs in &replicas {
        for (log, last) in [(1, next[0] - 1), (2, next[1] - 1)] {
            let mut handle = None;
            eventually("it is committed there", || {
                handle = logs.get(&format!("log-{log}")).ok();
                handle.as_ref().is_some_and(|handle| handle.last_index() == Index(last))
            });
            let handle = handle.unwrap();
            eventually("all can be read there", || {
                let Ok(mut reader) = handle.reader(Start::First) else { return false };
                (1..=last).all(|n| {
                    reader
                        .next_record()
                        .is_ok_and(|found| found.is_some_and(|found| found.data == record(log, n)))
                })
            });
        }
    }
    eventually("the catalogue is in slices", || {
        let leads = |logs: &&Logs| logs.system().role() == Role::Leader;
        replicas.iter().find(leads).is_some_and(|logs| is_sliced(logs.system()))
    });
    drop(replicas);
    let (logs, notes) = again(&*vault, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_logs(&logs, [(1, 1, next[0] - 1), (2, 1, next[1] - 1)]);
}
