//! Files: which of a copy's own files go, and when.

use crate::support::{
    COPIED, SEGMENT, all, append, append_slowly, check, copied, copy, copy_of_files, eventually, feed, fill,
    follow_on, group, open, plain, read_from, reads, record, segments, small,
};
use chiplog::follower::{FollowFrom, FollowMessage, FollowSource};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, FollowerLog, Index};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A copy that goes on learns of new objects, and its files go once what is in them is stored, and not before.
#[test]
fn files_of_a_copy_go_once_they_are_stored() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault).object_bytes(512 << 10));
    append(&logs, &all(), 100);
    let log = copied(&logs);
    let local = || reads(&vault).local_bytes(2 * u64::from(SEGMENT));
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, local());
    let mut source = log.follow(taken.resume_point().unwrap()).unwrap().skip_stored();
    let mut bytes = 0;
    let begun = Instant::now();
    // Every record is fed as long as the copy keeps up: nothing is skipped.
    while log.last_index() < Index(6000) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        append(&logs, &all(), 60);
        bytes += feed(&taken, &mut source).0;
    }
    eventually("files go", || {
        append(&logs, &all(), 60);
        bytes += feed(&taken, &mut source).0;
        taken.log().first_index() == Index(1) && segments(place.path()) <= 8
    });
    assert!(bytes > 3_000_000, "{bytes} bytes were copied");
    check(&taken, &log, 1);
    drop(source);
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(place.path(), local()).unwrap();
    check(&taken, &log, 1);
    append(&logs, &all(), 100);
    follow_on(&taken, &log);
    check(&taken, &log, 1);
}

/// Its files stay as long as the store has returned nothing: the location could be wrong.
#[test]
fn files_of_a_copy_stay_while_its_store_returns_nothing() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    append(&logs, &all(), 20); // less than an object
    let log = copied(&logs);
    let wrong = Arc::new(MemoryVault::default()); // another bucket
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, small(&wrong));
    fill(&logs, dir.path(), 1500);
    let from = taken.resume_point().unwrap();
    let mut skips = log.follow(from).unwrap().skip_stored();
    let error = loop {
        match taken.apply(skips.next(64 << 10).unwrap().unwrap()) {
            Err(error) => break error,
            Ok(jumped) => assert_eq!(jumped, None),
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(taken.log().read(Index(1)).unwrap().data, record(COPIED, 1));
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(place.path(), reads(&vault)).unwrap();
    follow_on(&taken, &log);
    check(&taken, &log, 1);
}

#[test]
fn whole_objects_are_not_kept_by_copies_of_one_log() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    append(&logs, &all(), 20);
    let Some(FollowMessage::State(state)) = copied(&logs).follow(FollowFrom::First).unwrap().next(0).unwrap()
    else {
        panic!("no state")
    };
    let error = FollowerLog::create(place.path(), reads(&vault).fill_bytes(1 << 30), &state).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    drop(FollowerLog::create(place.path(), reads(&vault), &state).unwrap());
    let error = FollowerLog::open(place.path(), reads(&vault).fill_bytes(1 << 30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// A copy that knows the newest objects before a restart keeps its own limits behind it, without another object of the group.
#[test]
fn limits_of_a_copy_hold_after_a_restart_without_a_new_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), reads(&vault).object_bytes(2 << 20));
    append(&logs, &all(), 20);
    let log = copied(&logs);
    let places: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let copies = places.iter().map(|place| copy(place.path(), &log, FollowFrom::First, reads(&vault)).0);
    let copies: Vec<_> = copies.collect();
    let mut sources: Vec<_> =
        copies.iter().map(|copy| log.follow(copy.resume_point().unwrap()).unwrap().skip_stored()).collect();
    let go_on = |sources: &mut Vec<FollowSource>| {
        append(&logs, &[COPIED], 100);
        copies.iter().zip(sources).for_each(|(copy, source)| drop(feed(copy, source)));
    };
    // Not more than an object, however long it takes to be stored: the next one must not fill up.
    eventually("an object is stored", || {
        if group(&logs).metrics().unstored_bytes < (2 << 20) + (128 << 10) {
            go_on(&mut sources);
        }
        group(&logs).metrics().stored_bytes > 0
    });
    (0..12).for_each(|_| go_on(&mut sources)); // more than a file: it begins with what was told
    drop(sources);
    let stored = group(&logs).metrics().stored_bytes;
    copies.into_iter().for_each(|copy| copy.close().unwrap());
    let segment = u64::from(SEGMENT);
    let limits = [reads(&vault).local_bytes(2 * segment), reads(&vault).capacity_bytes(10 * segment)];
    let oldest = |place: &Path| {
        let names = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".seg")).min().unwrap()
    };
    let reopened = places.iter().zip(limits).map(|(place, options)| {
        (FollowerLog::open(place.path(), options).unwrap(), place.path(), oldest(place.path()))
    });
    let reopened: Vec<_> = reopened.collect();
    append(&logs, &[COPIED], 900); // two files, and less than an object
    for (copy, place, before) in &reopened {
        let takes_all = || {
            let mut source = log.follow(copy.resume_point().unwrap()).unwrap().skip_stored();
            while let Some(fed) = source.next(64 << 10).unwrap() {
                // It is full until its store has answered.
                if let Err(error) = copy.apply(fed) {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    return false;
                }
            }
            true
        };
        eventually("it takes everything", takes_all);
        // When the next file begins: the store may not have answered before.
        eventually("files go", || {
            append(&logs, &[COPIED], 10);
            takes_all() && oldest(place) > *before
        });
        check(copy, &log, 1);
    }
    assert_eq!(
        group(&logs).metrics().stored_bytes,
        stored,
        "the group has another object: the test shows nothing"
    );
}

/// A file here whose opening is damaged may have the next record of a copy: so that is not known to be in an object alone, and the copy is not
/// led past it. It is fed what an object has of it, or it gets the error.
#[test]
fn damaged_file_leads_no_copy_past_its_records() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let hooked = Arc::new(HookedVault::new(vault.clone()));
    let opened = || {
        let options = plain().vault(hooked.clone() as Arc<dyn Vault>);
        open(dir.path(), options.object_bytes(128 << 10).object_scrub(None))
    };
    let logs = opened();
    append(&logs, &all(), 100);
    let (away, _) = copy(place.path(), &copied(&logs), FollowFrom::First, reads(&vault));
    append(&logs, &all(), 230);
    eventually("they are stored", || {
        append_slowly(&logs, 5);
        group(&logs).metrics().unstored_bytes < 200 << 10
    });
    logs.close().unwrap();
    drop(logs);
    // No object is stored from now on.
    hooked.set(|call, _| match call {
        "put" | "create" => Err(Error::new(ErrorKind::Unavailable, "not now")),
        _ => Ok(()),
    });
    let logs = opened();
    let log = copied(&logs);
    let mut source = log.follow(away.resume_point().unwrap()).unwrap().skip_stored();
    let news = source.next(0).unwrap().unwrap();
    assert!(matches!(news, FollowMessage::State(_)), "{news:?}");
    assert_eq!(away.apply(news).unwrap(), None);
    let names = std::fs::read_dir(dir.path().join("group-1")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    files.sort_unstable();
    // Its next record may be in one of these, as far as can be seen then. The newest object ends behind them.
    for file in &files[1..3] {
        let file = std::fs::File::options().write(true).open(file).unwrap();
        file.write_all_at(&[5; 128], 4096).unwrap();
    }
    for _ in 0..20 {
        match source.next(4 << 10) {
            Ok(Some(FollowMessage::State(state))) => {
                panic!("it is led past what a file here may have: {state:?}")
            }
            Ok(Some(fed)) => assert_eq!(away.apply(fed).unwrap(), None),
            Ok(None) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
    read_from(away.log(), 1);
}

/// A copy with objects was opened without their store, and removed files by its own retention. With the store again it told its copies that
/// the records of these were stored, and was not told otherwise: they removed theirs.
#[test]
fn copy_with_objects_removes_no_files_by_retention() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 600);
    let log = copied(&logs);
    let (taken, _) = copy(one.path(), &log, FollowFrom::First, reads(&vault));
    taken.close().unwrap();
    drop(taken);
    let retains = || plain().retention_bytes(2 * u64::from(SEGMENT));
    for options in [retains(), plain().retention_age(Duration::from_secs(60))] {
        let refused = FollowerLog::open(one.path(), options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    check(&FollowerLog::open(one.path(), reads(&vault)).unwrap(), &log, 1);
    // Neither does one begin so, nor learn of objects later.
    let mut source = log.follow(FollowFrom::First).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else { panic!("no state") };
    let refused = FollowerLog::create(two.path(), retains(), &state).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let taken = copy_of_files(two.path(), &log);
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(two.path(), retains()).unwrap();
    append(&logs, &all(), 10);
    let mut source = log.follow(taken.resume_point().unwrap()).unwrap().skip_stored();
    let state = source.next(64 << 10).unwrap().unwrap();
    assert!(matches!(state, FollowMessage::State(_)), "{state:?}");
    assert_eq!(taken.apply(state).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let last = taken.log().last_index();
    feed(&taken, &mut log.follow(taken.resume_point().unwrap()).unwrap());
    assert!(taken.log().last_index() > last);
}
