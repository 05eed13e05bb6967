//! Groups that are made of objects alone.

use super::support::{
    LOGS, SEGMENT, all, append, eventually, group, log_of, objects, open, options, read_all,
};
use chiplog::backup::{Backup, RestoreOptions};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{ErrorKind, FollowerLog, Index, Log, LogId, LogNumber, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
