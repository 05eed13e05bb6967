//! Discards, retention and quotas of logs whose records are in objects.

use super::support::{
    LOGS, all, append, append_slowly, eventually, group, log_of, objects, open, options, read_all, record,
    until_files_go,
};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{Clock, Error, ErrorKind, Index, Log, LogOption, Logs, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// A log whose limit ends in files does not wait for another one whose limit ends in objects.
#[test]
fn retention_of_a_log_in_files_does_not_wait_for_the_object_store() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let opened = || {
        let options = options(&below).vault(vault.clone() as Arc<dyn Vault>).object_scrub(None);
        open(dir.path(), options)
    };
    let logs = opened();
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    until_files_go(&logs, dir.path());
    logs.close().unwrap();
    drop(logs);
    vault.set(|_, _| Err(Error::new(ErrorKind::Unavailable, "no answer")));
    let logs = opened();
    append(&logs, &all(), 300);
    let [long, short] = [2, 3].map(|log| log_of(&logs, log));
    let limit = |log: &Log, bytes| {
        log.set_log_options(&[(LogOption::RetentionBytes, Some(bytes))], Duration::from_secs(10)).unwrap();
    };
    limit(&long, 400_000);
    limit(&short, 128 << 10);
    let discards = |log: &Log, what: &str| {
        let first = log.first_index();
        eventually(what, || log.first_index() > first);
    };
    discards(&short, "retention in files discards");
    let is_left = |log: u64, handle: &Log| {
        let kept = handle.first_index().get()..=handle.last_index().get();
        kept.map(|n| record(log, n).len()).sum::<usize>()
    };
    assert!(is_left(3, &short) > 100_000, "{} bytes are left", is_left(3, &short));
    // Later segments are looked at, too.
    append(&logs, &all(), 100);
    discards(&short, "the next round discards");
    assert_eq!(long.first_index(), Index(1), "which objects there are was looked up");
    vault.set(|_, _| Ok(()));
    discards(&long, "retention in objects discards");
    assert!(is_left(2, &long) > 350_000, "{} bytes are left", is_left(2, &long));
    read_all(3, &short, short.first_index().get());
    read_all(2, &long, long.first_index().get());
}

/// The object store is slower than segments become full: the search among objects goes on beside the rounds that begin meanwhile.
#[test]
fn retention_in_objects_ends_while_segments_become_full() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let opened = || {
        let options = options(&below).vault(vault.clone() as Arc<dyn Vault>).object_scrub(None);
        open(dir.path(), options)
    };
    let logs = opened();
    append(&logs, &all(), 900);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 3_000_000);
    until_files_go(&logs, dir.path());
    logs.close().unwrap();
    drop(logs);
    let logs = opened();
    let log = log_of(&logs, 2);
    let (fetches, segments) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, sealed) = (fetches.clone(), segments.clone());
    vault.set(move |call, _| {
        if call.starts_with("get") {
            counted.fetch_add(1, Ordering::SeqCst);
            let (before, begun) = (sealed.load(Ordering::SeqCst), Instant::now());
            while sealed.load(Ordering::SeqCst) < before + 2 && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    });
    let bytes: usize = (1..=log.last_index().get()).map(|n| record(2, n).len()).sum();
    let limit = bytes as u64 - 100_000;
    log.set_log_options(&[(LogOption::RetentionBytes, Some(limit))], Duration::from_secs(10)).unwrap();
    eventually("retention discards in objects", || {
        append(&logs, &[5], 400); // a segment
        segments.fetch_add(1, Ordering::SeqCst);
        log.first_index() > Index(1)
    });
    assert!(fetches.load(Ordering::SeqCst) > 0, "its end was known without objects");
    vault.set(|_, _| Ok(()));
    assert_eq!(log_of(&logs, 3).first_index(), Index(1));
    read_all(2, &log, log.first_index().get());
}
