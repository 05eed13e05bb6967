//! Objects that are lost, deleted, or cannot be read: copies and readers lose nothing.

use crate::support::{
    COPIED, LOGS, all, append, append_slowly, check, copied, copy, eventually, feed, fill, follow_on, group,
    log_of, open, plain, read_from, reads, record, small,
};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, FollowerLog, Index, Logs, Start, Timestamp};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The store may have lost objects since the copy was told of them, because all logs have discarded their records: it finds later ones.
#[test]
fn objects_that_are_deleted_do_not_hide_later_ones() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 1500);
    let log = copied(&logs);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, reads(&vault));
    let first = log.last_index().get() - 400;
    for log in all() {
        log_of(&logs, log).discard(Index(first)).unwrap();
    }
    let mut names = vault.list("").unwrap();
    names.retain(|object| object.name.contains("/o/"));
    let middle = names[names.len() / 2].name.clone();
    eventually("objects are deleted", || {
        append_slowly(&logs, 20);
        vault.size(&middle).unwrap().is_none()
    });
    for n in first..first + 100 {
        assert_eq!(taken.log().read(Index(n)).unwrap().data, record(COPIED, n));
    }
    follow_on(&taken, &log);
    check(&taken, &log, first);
}

/// An outage delays readers, a wrong location is an error that names it, and neither loses a record.
#[test]
fn outage_of_the_object_store_is_no_loss() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 600);
    let log = copied(&logs);
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default().refused(1_000)));
    let (taken, _) =
        copy(place.path(), &log, FollowFrom::First, plain().vault(down.clone() as Arc<dyn Vault>));
    let last = log.last_index();
    assert_eq!(taken.log().read(last).unwrap().data, record(COPIED, last.get()));
    assert_eq!(taken.log().read(Index(1)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(taken.log().first_index(), Index(1));
    // Flipped bits on the way are never served, and fetched again.
    down.set_faults(FaultOptions::default().refused(100).missing(50).flipped(200).short(50));
    let mut next = 1;
    let begun = Instant::now();
    while next <= last.get() {
        assert!(begun.elapsed() < Duration::from_secs(60), "record {next}");
        match taken.log().read(Index(next)) {
            Ok(found) => {
                assert_eq!(found.data, record(COPIED, next));
                next += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt), "{error}");
            }
        }
    }
    down.set_faults(FaultOptions::default());
    check(&taken, &log, 1);
}

/// As above, of a search by time: a copy that has its log's discard and no news of objects finds what is left.
#[test]
fn deleted_objects_do_not_hide_later_ones_from_a_search_by_time() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (place, late_place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 800);
    // However much more than that it took: all logs discard what is before here.
    let first = copied(&logs).last_index().get() + 50;
    let mut names = vault.list("").unwrap();
    names.retain(|object| object.name.contains("/o/"));
    let early = names[names.len() / 2].name.clone();
    // A log that has no record in what is deleted, and never discards any.
    let late = LOGS + 1;
    append(&logs, &[late], 20);
    fill(&logs, dir.path(), 700);
    let log = copied(&logs);
    let (of_late, _) = copy(late_place.path(), &log_of(&logs, late), FollowFrom::First, reads(&vault));
    assert_eq!(of_late.log().first_index(), Index(1));
    let mut source = log.follow(FollowFrom::First).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let taken = FollowerLog::create(place.path(), reads(&vault), &state).unwrap();
    feed(&taken, &mut source);
    for log in all() {
        log_of(&logs, log).discard(Index(first)).unwrap();
    }
    feed(&taken, &mut source);
    assert_eq!(taken.log().first_index(), Index(first));
    eventually("objects are deleted", || {
        append_slowly(&logs, 20);
        vault.size(&early).unwrap().is_none()
    });
    let from = |copy: &FollowerLog, time| copy.log().reader(Start::Timestamp(time)).unwrap().position();
    assert_eq!(from(&taken, Timestamp(0)), Index(first));
    let times: Vec<_> = (first..first + 200).map(|n| taken.log().read(Index(n)).unwrap().timestamp).collect();
    for time in &times {
        let expected = first + times.partition_point(|before| before < time) as u64;
        assert_eq!(from(&taken, *time), Index(expected), "{time}");
    }
    assert_eq!(from(&of_late, Timestamp(0)), Index(1));
    let oldest = of_late.log().read(Index(1)).unwrap().timestamp;
    assert_eq!(from(&of_late, oldest), Index(1));
    taken.log().follow(FollowFrom::Timestamp(Timestamp(0))).unwrap().next(0).unwrap();
}

/// The names of the objects of the group, in order.
fn object_names(vault: &MemoryVault, logs: &Logs) -> Vec<String> {
    let found = vault.list(&format!("{:032x}/o/", group(logs).log_id().get())).unwrap();
    found.into_iter().map(|object| object.name).collect()
}

/// The store does not return this object, for a reason of this kind.
fn fail(vault: &HookedVault, name: &str, kind: ErrorKind) {
    let name = name.to_owned();
    vault.set(move |call, asked| match call == "get" && asked == name {
        true => Err(Error::new(kind, format!("cannot get {name}"))),
        false => Ok(()),
    });
}

/// One object that is lost, or that the store cannot return, hides its own records and no others.
#[test]
fn unreadable_object_hides_no_record_of_another() {
    let (dir, place, below) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let logs = open(dir.path(), small(&below));
    fill(&logs, dir.path(), 600);
    append(&logs, &[1], 600); // objects without records of the copied log
    fill(&logs, dir.path(), 100);
    let log = copied(&logs);
    let opts = || plain().vault(vault.clone() as Arc<dyn Vault>);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, opts());
    taken.close().unwrap();
    drop(taken);
    let names = object_names(&below, &logs);
    for kind in [ErrorKind::NotFound, ErrorKind::Unavailable] {
        let mut seen = std::collections::BTreeSet::new();
        for bad in [names.len() - 1, names.len() / 2, 1, 0] {
            let name = &names[bad];
            fail(&vault, name, kind);
            let taken = FollowerLog::open(place.path(), opts()).unwrap();
            let last = taken.log().last_index().get();
            let mut missing = Vec::new();
            for n in 1..=last {
                match taken.log().read(Index(n)) {
                    Ok(found) => assert_eq!(found.data, record(COPIED, n), "record {n}, object {bad}"),
                    Err(error) => {
                        assert!(error.to_string().contains(name), "record {n}, object {bad}: {error}");
                        assert!(seen.insert(n), "record {n}, object {bad}: not for the first time");
                        missing.push(n);
                    }
                }
            }
            read_from(taken.log(), missing.last().map_or(1, |n| n + 1));
            taken.close().unwrap();
        }
        vault.set(|_, _| Ok(()));
        assert!(!seen.is_empty(), "none of them has a record: the test shows nothing");
    }
    read_from(FollowerLog::open(place.path(), opts()).unwrap().log(), 1);
}

/// A copy whose last record is in an object that its source cannot read keeps its files, which may have the last copy of that object's
/// records. It is fed once the object can be read.
#[test]
fn copy_keeps_its_records_while_the_object_of_the_last_one_cannot_be_read() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let opened = || open(dir.path(), small(&below).vault(vault.clone() as Arc<dyn Vault>).object_scrub(None));
    let logs = opened();
    append(&logs, &all(), 250);
    let places: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let away: Vec<_> = places
        .iter()
        .map(|place| copy(place.path(), &copied(&logs), FollowFrom::First, reads(&below)).0)
        .collect();
    let last = away[0].log().last_index();
    fill(&logs, dir.path(), 1500);
    let names = object_names(&below, &logs);
    // The object with the last record of the copies.
    let bad = names.iter().take(20).find(|name| {
        fail(&vault, name, ErrorKind::NotFound);
        let copy = tempfile::tempdir().unwrap();
        let opts = plain().vault(vault.clone() as Arc<dyn Vault>);
        let (reader, _) = self::copy(copy.path(), &copied(&logs), FollowFrom::Newest, opts);
        reader.log().read(last).is_err()
    });
    let bad = bad.unwrap().clone();
    vault.set(|_, _| Ok(()));
    logs.close().unwrap();
    drop(logs);
    for (taken, kind) in
        away.iter().zip([ErrorKind::NotFound, ErrorKind::Unavailable, ErrorKind::PermissionDenied])
    {
        fail(&vault, &bad, kind);
        let logs = opened();
        let log = copied(&logs);
        assert!(log.read(last).unwrap_err().to_string().contains(&bad));
        let from = taken.resume_point().unwrap();
        let mut source = log.follow(from).unwrap().skip_stored();
        let refused = source.next(0).unwrap_err();
        assert!(refused.to_string().contains(&bad), "{refused}");
        assert_eq!(taken.log().last_index(), last);
        read_from(taken.log(), 1);
        vault.set(|_, _| Ok(()));
        let mut source = log.follow(from).unwrap().skip_stored();
        assert_eq!(feed(taken, &mut source).1, []);
        check(taken, &log, 1);
        logs.close().unwrap();
    }
}
