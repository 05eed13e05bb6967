//! The durability class `object`: appends are in the object store, and the log refers to them.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;

use chiplog::backup::Backup;
use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, Vault};
use chiplog::{BatchBuilder, Codec, Error, ErrorKind, Index, Log, LogOption, Options, Sequence, Start};
use payload_log::{
    SEGMENT, again, all_sliced, append, eventually, open, options, payloads, read_all, record,
};
use std::sync::Arc;
use std::time::Duration;

/// Payload goes to the object store, and files have references. Readers get what was appended, here, after a restart and at the tail; a log
/// without the object store says where the records are.
#[test]
fn files_have_references_and_readers_the_payload() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    let before = log.metrics();
    let mut tail = log.reader(Start::Next).unwrap();
    append(&log, 500);
    let mut packed = BatchBuilder::new();
    packed.codec(Codec::Zstd);
    (501..=510).for_each(|n| _ = packed.push(&record(n)).unwrap());
    let packed = packed.build().unwrap();
    assert_eq!(log.append(&packed).unwrap().first, Index(501));
    let metrics = log.metrics();
    let payload: u64 = (1..=510).map(|n| record(n).len() as u64).sum();
    let written = metrics.bytes - before.bytes;
    assert!(written * 8 < payload, "{written} bytes in files for {payload}");
    assert!(metrics.stored_payloads > 0 && metrics.payload_bytes > payload / 2, "{metrics:?}");
    read_all(&log, 1, 510);
    assert_eq!(log.read(Index(505)).unwrap().data, record(505));
    for n in 1..=510 {
        assert_eq!(tail.next_record().unwrap().unwrap().data, record(n));
    }
    let mut stored = log.reader(Start::Index(Index(503))).unwrap();
    let batch = stored.next_stored().unwrap().unwrap();
    assert_eq!((batch.first(), batch.bytes()), (Index(501), packed.as_bytes()));
    drop((tail, stored, log));
    let log = open(dir.path(), options(&vault));
    read_all(&log, 1, 510);
    append(&log, 10);
    read_all(&log, 1, 520);
    drop(log);
    let without = Log::open(dir.path(), Options::with_segment_bytes(SEGMENT)).unwrap();
    let error = without.read(Index(7)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("object store"), "{error}");
    // Without the object store it replicates whole appends.
    assert_eq!(without.append(&record(521)).unwrap(), Index(521));
    assert_eq!(without.read(Index(521)).unwrap().data, record(521));
    drop(without);
    let log = open(dir.path(), options(&vault));
    read_all(&log, 1, 521);
}

/// Objects have the payload themselves; the slices go, and all of it comes back from the object store alone.
#[test]
fn objects_have_the_payload_and_slices_go() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_bytes(256 << 10).local_bytes(2 * u64::from(SEGMENT));
    let log = open(&dir.path().join("lost"), options());
    for _ in 0..20 {
        append(&log, 100);
    }
    let id = log.log_id();
    eventually("objects are stored", || log.metrics().stored_index > 1500);
    eventually("slices go", || {
        let first = payloads(&*vault, id);
        first.len() < 12
    });
    let objects = vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    assert!(objects.iter().all(|object| object.bytes < 600 << 10), "{objects:?}");
    read_all(&log, 1, 2000);
    all_sliced(&log);
    drop(log);
    let log = open(&dir.path().join("lost"), options());
    read_all(&log, 1, 2000);
    append(&log, 5);
    all_sliced(&log);
    drop(log);
    std::fs::remove_dir_all(dir.path().join("lost")).unwrap();
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 2005);
}

/// Before there is an object, entries and payload come back from slices alone. Damage ends the log, and never shows.
#[test]
fn log_without_objects_comes_back_and_ends_before_damage() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(&dir.path().join("lost"), options(&vault));
    let id = log.log_id();
    for _ in 0..10 {
        append(&log, 50);
    }
    log.discard(Index(20)).unwrap();
    all_sliced(&log);
    drop(log);
    assert_eq!(Backup::slices_in(&*vault, id, &mut |_| {}).unwrap().faults, []);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 20, 500);
    let names = payloads(&*vault, id);
    let bad = &names[names.len() / 2];
    let bytes = vault.get(bad, 0..vault.size(bad).unwrap().unwrap()).unwrap();
    for damage in ["flipped", "missing", "short"] {
        match damage {
            "flipped" => {
                let mut flipped = bytes.to_vec();
                flipped[bytes.len() / 2] ^= 4;
                vault.put(bad, &[flipped.into()]).unwrap();
            }
            "missing" => vault.delete(bad).unwrap(),
            _ => vault.put(bad, &[bytes.slice(..bytes.len() - 1)]).unwrap(),
        }
        let live = Log::open(dir.path().join("lost"), options(&vault)).unwrap();
        let mut reader = live.reader(Start::First).unwrap();
        let error = loop {
            match reader.next_record() {
                Ok(Some(found)) => assert_eq!(found.data, record(found.index.get())),
                Ok(None) => panic!("{damage}: a record was left out"),
                Err(error) => break error,
            }
        };
        let kind = if damage == "missing" { ErrorKind::Unavailable } else { ErrorKind::Corrupt };
        assert!(error.kind() == kind && error.to_string().contains(bad), "{damage}: {error}");
        let at = reader.position();
        drop((reader, live));
        let found = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
        assert!(found.faults.iter().any(|(_, why)| why.contains(bad)), "{damage}: {found:?}");
        let (log, notes) = again(&*vault, id, dir.path());
        let early = |note: &&String| note.starts_with("the log ends early, before an entry whose payload");
        assert!(notes.iter().find(early).is_some_and(|note| note.contains(bad)), "{damage}: {notes:?}");
        assert!(log.last_index() < Index(500) && log.last_index() < at, "{} {at}", log.last_index());
        read_all(&log, log.first_index().get(), log.last_index().get());
    }
}

/// The object store is down or loses answers: appends wait, and each is in the log once. One that fails, as it does after 10 s, is not in the
/// log, and can be repeated.
#[test]
fn faults_of_the_object_store_delay_appends_and_lose_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(FaultyVault::new(below.clone(), 7, FaultOptions::default()));
    let log = open(dir.path(), options(&vault));
    vault.set_faults(FaultOptions::default().refused(1000));
    let tickets: Vec<_> = (1..=50).map(|n| log.submit(&record(n)).unwrap()).collect();
    eventually("failures are counted", || log.metrics().payload_failures > 1);
    assert_eq!(log.last_index(), Index(0), "nothing is acknowledged that is not stored");
    let faults = FaultOptions::default().refused(50).unanswered(100).missing(10).flipped(30).short(30);
    vault.set_faults(faults);
    let is_refused = |error: &Error| error.kind() == ErrorKind::Unavailable;
    let until_taken = |append: &mut dyn FnMut() -> chiplog::Result<Index>| loop {
        match append() {
            Err(error) if is_refused(&error) => {}
            taken => break taken.unwrap(),
        }
    };
    // The records by their indexes.
    let (mut expected, mut again) = (Vec::new(), Vec::new());
    for (n, ticket) in (1..).zip(tickets) {
        match ticket.wait() {
            Err(error) if is_refused(&error) => again.push(n),
            taken => expected.push((taken.unwrap().get(), n)),
        }
    }
    again.iter().for_each(|n| expected.push((until_taken(&mut || log.append(&record(*n))).get(), *n)));
    let mut session = log.open_session().unwrap();
    for n in 51..=120 {
        assert_eq!(until_taken(&mut || session.append(&record(n))), Index(n));
        expected.push((n, n));
    }
    let mut resumed = log.resume_session(session.id(), Sequence(70));
    assert_eq!(until_taken(&mut || resumed.append(&record(120))), Index(120));
    vault.set_faults(FaultOptions::default());
    assert_eq!((log.first_index(), log.last_index()), (Index(1), Index(120)));
    let mut reader = log.reader(Start::First).unwrap();
    expected.sort_unstable();
    for (index, (at, n)) in (1..).zip(expected) {
        let found = reader.next_record().unwrap().unwrap();
        assert_eq!((found.index.get(), at), (index, index));
        assert_eq!(found.data, record(n));
    }
    assert!(reader.next_record().unwrap().is_none());
}

/// The object store has another log's root under this log's id: appends fail after 10 s, and are not in the log.
#[test]
fn append_that_cannot_be_stored_is_not_in_the_log() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    append(&log, 3);
    let root = format!("{:032x}/root", log.log_id().get());
    drop(log);
    vault.put(&root, &["another log".into()]).unwrap();
    let log = open(dir.path(), options(&vault));
    let error = log.append(&record(4)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("not in the log"),
        "{error}"
    );
    assert_eq!(log.last_index(), Index(3));
}

/// Appends that were submitted before the close are still stored and committed.
#[test]
fn close_stores_what_was_submitted() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let slow = || options(&vault).slice_interval(Some(Duration::from_secs(60)));
    let log = open(dir.path(), slow());
    let tickets: Vec<_> = (1..=40).map(|n| log.submit(&record(n)).unwrap()).collect();
    log.close().unwrap();
    for (n, ticket) in (1..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Index(n));
    }
    drop(log);
    read_all(&open(dir.path(), slow()), 1, 40);
}

#[test]
fn option_needs_the_others_and_stays() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    for wrong in [options(&vault).slice_interval(None), Options::default().payload_slices(true)] {
        let error = wrong.check().unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("payload_slices"),
            "{error}"
        );
    }
    let log = open(dir.path(), options(&vault));
    append(&log, 10);
    let set = |value| log.set_log_options(&[(LogOption::PayloadSlices, value)], Duration::from_secs(20));
    let error = set(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    set(Some(0)).unwrap();
    let stored = log.metrics().stored_payloads;
    append(&log, 10);
    assert_eq!(log.metrics().stored_payloads, stored, "appends are replicated whole again");
    read_all(&log, 1, 20);
}

/// The class is switched on and off while a session has appends in flight: each record is in the log once, in order.
#[test]
fn class_is_switched_while_appends_are_in_flight() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    let mut session = log.open_session().unwrap();
    let mut tickets = Vec::new();
    for n in 1..=400 {
        tickets.push((n, session.submit(&record(n)).unwrap()));
        if n % 50 == 0 {
            let value = Some(u64::from(n % 100 == 0));
            log.set_log_options(&[(LogOption::PayloadSlices, value)], Duration::from_secs(20)).unwrap();
        }
        if tickets.len() == 8 {
            tickets.drain(..).for_each(|(n, ticket)| assert_eq!(ticket.wait().unwrap(), Index(n)));
        }
    }
    tickets.drain(..).for_each(|(n, ticket)| assert_eq!(ticket.wait().unwrap(), Index(n)));
    // Sent again, the last one is answered as before, whichever way it went.
    assert_eq!(log.resume_session(session.id(), Sequence(400)).append(&record(400)).unwrap(), Index(400));
    read_all(&log, 1, 400);
    drop((session, log));
    read_all(&open(dir.path(), options(&vault)), 1, 400);
}

/// Retention counts payload, and not the references to it: the oldest objects go.
#[test]
fn retention_counts_payload() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).object_bytes(128 << 10).object_delete_delay(Duration::ZERO);
    let log = open(dir.path(), options.retention_bytes(3 * u64::from(SEGMENT)));
    let id = log.log_id();
    for _ in 0..25 {
        append(&log, 80);
    }
    eventually("the oldest records are discarded", || log.first_index() > Index(500));
    eventually("their objects go", || {
        let objects = vault.list(&format!("{:032x}/o/", id.get())).unwrap();
        objects.iter().map(|object| object.bytes).sum::<u64>() < 5 * u64::from(SEGMENT)
    });
    assert_eq!(log.read(Index(2000)).unwrap().data, record(2000));
}

/// Where references would take more room than the batches, these are replicated whole: no append becomes too large by the class.
#[test]
fn smallest_batches_stay_in_the_log() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    for _ in 0..4 {
        let tickets: Vec<_> = (0..5000).map(|_| log.submit(b"").unwrap()).collect();
        tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
    }
    assert_eq!((log.last_index(), log.metrics().stored_payloads), (Index(20_000), 0));
    assert_eq!(log.append(&record(1)).unwrap(), Index(20_001));
    assert_eq!(log.metrics().stored_payloads, 1);
}
