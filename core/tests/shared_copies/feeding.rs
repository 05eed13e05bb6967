//! Feeding: what a copy is sent, also after it was away, or was cut off.

use crate::support::{
    COPIED, LOGS, SEGMENT, all, append, check, copied, copy, copy_of_files, eventually, feed, fill,
    follow_on, group, open, plain, read_from, reads, record, segments, small,
};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::inspect::Inspector;
use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, Vault};
use chiplog::{ErrorKind, FollowerLog, Index, Log, Logs, ReadMode, ReadOnlyLog, Start, Timestamp};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn new_copy_begins_behind_what_is_stored_and_has_all_records() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 1500); // about 1 MB of the log, and 7 MB of all
    let log = copied(&logs);
    for (from, mode) in [
        (FollowFrom::First, ReadMode::Map),
        (FollowFrom::Newest, ReadMode::Read),
        (FollowFrom::Index(Index(700)), ReadMode::Map),
        (FollowFrom::Last(10), ReadMode::Map),
    ] {
        let place = tempfile::tempdir().unwrap();
        let opts = || reads(&vault).read_mode(mode);
        let (taken, bytes) = copy(place.path(), &log, from, opts());
        assert!(bytes < 300_000, "{from:?}: {bytes} bytes were copied");
        check(&taken, &log, 1);
        for n in [1, 2, 700, log.last_index().get()] {
            assert_eq!(taken.log().read(Index(n)).unwrap().data, record(COPIED, n));
        }
        append(&logs, &all(), 100);
        assert_eq!(follow_on(&taken, &log).1, []);
        check(&taken, &log, 1);
        taken.close().unwrap();
        drop(taken);
        let taken = FollowerLog::open(place.path(), opts()).unwrap();
        check(&taken, &log, 1);
        read_from(taken.log(), 777);
        // Its own copies begin as those of a server do.
        let second = tempfile::tempdir().unwrap();
        let (next, bytes) = copy(second.path(), taken.log(), FollowFrom::First, opts());
        assert!(bytes < 400_000, "{bytes} bytes were copied");
        check(&next, &log, 1);
        // Opened without the object store it has what its files have, and says where the rest is.
        taken.close().unwrap();
        drop(taken);
        let alone = FollowerLog::open(place.path(), plain()).unwrap();
        let first = alone.log().first_index();
        assert!(first > Index(1000), "{first}");
        check(&alone, &log, first.get());
        let refused = alone.log().follow(FollowFrom::First).unwrap().skip_stored().next(0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        alone.close().unwrap();
        drop(alone);
        let report = Inspector::open(place.path()).unwrap().walk(&mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((report.corrupt, report.tail.is_none()), (0, true), "{report:?}");
        let outside = ReadOnlyLog::open(place.path()).unwrap();
        assert_eq!(outside.in_object_store(), Some((Index(1), first.previous())));
    }
}

/// A reader can begin at any time, before the files of the copy and in them.
#[test]
fn times_lead_to_objects_and_to_files() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 600);
    let log = copied(&logs);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, reads(&vault));
    let mut times = Vec::new();
    let mut reader = log.reader(Start::First).unwrap();
    while let Some(found) = reader.next_record().unwrap() {
        times.push(found.timestamp);
    }
    for time in times.iter().flat_map(|time| [*time, Timestamp(time.get() + 1)]) {
        let expected = log.reader(Start::Timestamp(time)).unwrap().position();
        assert_eq!(taken.log().reader(Start::Timestamp(time)).unwrap().position(), expected, "{time}");
    }
}

/// Where a copy of files alone is fed everything, one that reads objects skips what is stored, and lacks nothing.
#[test]
fn copy_that_was_away_skips_what_is_stored() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    append(&logs, &all(), 100);
    let log = copied(&logs);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (with, _) = copy(one.path(), &log, FollowFrom::First, reads(&vault));
    let without = copy_of_files(two.path(), &log);
    fill(&logs, dir.path(), 1500);
    let (bytes, jumps) = follow_on(&with, &log);
    assert_eq!(jumps, []);
    assert!(bytes < 300_000, "{bytes} bytes were copied");
    check(&with, &log, 1);
    let (bytes, _) = feed(&without, &mut log.follow(without.resume_point().unwrap()).unwrap());
    assert!(bytes > 900_000, "{bytes}");
    check(&without, &log, 1);
    // Both follow discards, in what is stored and beyond.
    for first in [700, 1400] {
        log.discard(Index(first)).unwrap();
        follow_on(&with, &log);
        assert_eq!(with.log().read(Index(first - 1)).unwrap_err().kind(), ErrorKind::Discarded);
        check(&with, &log, first);
    }
    with.close().unwrap();
    drop(with);
    let with = FollowerLog::open(one.path(), reads(&vault)).unwrap();
    check(&with, &log, 1400);
    // A seal ends it, and a deletion is an error of its source.
    logs.seal(&format!("log-{COPIED}")).unwrap();
    follow_on(&with, &log);
    check(&with, &log, 1400);
    let mut source = log.follow(with.resume_point().unwrap()).unwrap().skip_stored();
    logs.delete(&format!("log-{COPIED}")).unwrap();
    eventually(
        "it is gone",
        || matches!(source.next(1 << 20), Err(error) if error.kind() == ErrorKind::NotFound),
    );
}

#[test]
fn copy_that_is_cut_off_right_behind_its_state_continues() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(dir.path(), small(&vault));
    append(&logs, &all(), 20); // less than an object
    let log = copied(&logs);
    let places: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (away, _) = copy(places[0].path(), &log, FollowFrom::First, reads(&vault));
    fill_apart(&logs, dir.path(), 1200);
    let state_alone = |place: &Path, log: &Log| {
        let Some(FollowMessage::State(state)) =
            log.follow(FollowFrom::First).unwrap().skip_stored().next(0).unwrap()
        else {
            panic!("a feed begins with a state")
        };
        FollowerLog::create(place, reads(&vault), &state).unwrap()
    };
    // A new copy, and one that was away.
    let new = state_alone(places[1].path(), &log);
    cut_off_right_behind_its_state(&new, &log);
    let mut source = log.follow(away.resume_point().unwrap()).unwrap().skip_stored();
    let begun = away.log().last_index();
    while away.log().last_index() == begun {
        let fed = source.next(0).unwrap().unwrap();
        assert!(matches!(fed, FollowMessage::State(_)), "it is led past what is stored");
        assert_eq!(away.apply(fed).unwrap(), None);
    }
    drop(source);
    cut_off_right_behind_its_state(&away, &log);
    // A copy of a copy, also if that goes on at a server.
    let next = state_alone(places[2].path(), new.log());
    cut_off_right_behind_its_state(&next, new.log());
    append(&logs, &all(), 20);
    follow_on(&next, &log);
    check(&next, &log, 1);
}

/// A source whose object store is down feeds what its files have, also to a copy whose last record is in an object.
#[test]
fn copy_right_behind_its_state_is_fed_without_the_object_store() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 600);
    let log = copied(&logs);
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default().refused(1_000)));
    let (source, _) =
        copy(one.path(), &log, FollowFrom::First, plain().vault(down.clone() as Arc<dyn Vault>));
    let state = source.log().follow(FollowFrom::First).unwrap().skip_stored().next(0).unwrap();
    let Some(FollowMessage::State(state)) = state else { panic!("a feed begins with a state") };
    let taken = FollowerLog::create(two.path(), reads(&vault), &state).unwrap();
    let begun = taken.log().last_index();
    assert_eq!(source.log().read(begun).unwrap_err().kind(), ErrorKind::Unavailable);
    follow_on(&taken, source.log());
    assert!(taken.log().last_index() > begun);
    check(&taken, source.log(), 1);
}

/// A copy that jumps over discarded records is told of the group's objects again at once: its own limits hold.
#[test]
fn copy_knows_the_objects_again_right_behind_a_jump() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    // The source keeps its files: a copy jumps over discarded records, and is not led past stored ones.
    let logs = open(dir.path(), reads(&vault).object_bytes(128 << 10).local_bytes(1 << 30));
    append(&logs, &all(), 300);
    eventually("there are objects, of which the copy is told first", || {
        group(&logs).metrics().stored_index > 0
    });
    let log = copied(&logs);
    let local = || reads(&vault).local_bytes(2 * u64::from(SEGMENT));
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, local());
    let mut source = log.follow(taken.resume_point().unwrap()).unwrap().skip_stored();
    feed(&taken, &mut source);
    let behind = taken.log().last_index();
    append(&logs, &all(), 60);
    let first = log.last_index().next();
    append(&logs, &all(), 600);
    let of_group = group(&logs);
    of_group.cut_objects(of_group.last_index()).unwrap();
    eventually("they are stored", || of_group.metrics().stored_index >= of_group.last_index().get());
    log.discard(first).unwrap();
    // It can be told of the new objects before.
    let jumped = (0..2).find_map(|_| {
        let state = source.next(0).unwrap().unwrap();
        assert!(matches!(state, FollowMessage::State(_)), "{state:?}");
        taken.apply(state).unwrap()
    });
    assert_eq!(jumped.map(|jumped| (jumped.from, jumped.to)), Some((behind.next(), first)));
    let news = source.next(0).unwrap().unwrap();
    assert!(matches!(news, FollowMessage::State(_)), "{news:?}");
    taken.apply(news).unwrap();
    feed(&taken, &mut source);
    check(&taken, &log, first.get());
    // Nothing more is stored, and files go.
    drop(source);
    taken.close().unwrap();
    drop(taken);
}

/// Waits until the clock shows another time than now, and so does that of a writer, which reads it a little before it takes records.
fn next_time() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let begun = now();
    while now() < begun + 4 {
        std::thread::yield_now();
    }
}

/// As [`fill`], and every round of appends has a time of its own.
fn fill_apart(logs: &Logs, dir: &Path, rounds: u64) {
    let wanted = group(logs).metrics().stored_bytes + rounds * LOGS * 600;
    let round = || {
        next_time();
        append(logs, &all(), 1);
    };
    (0..rounds).for_each(|_| round());
    eventually("files go", || {
        round();
        group(logs).metrics().stored_bytes >= wanted && segments(&dir.join("group-1")) <= 8
    });
}

/// A copy that was fed a state and no record behind it, with its source gone: it continues there, and does not claim another time for its
/// last record than the log's.
fn cut_off_right_behind_its_state(copy: &FollowerLog, log: &Log) {
    let last = copy.log().last_index();
    let time = |n| log.read(n).unwrap().timestamp;
    assert!(
        time(last) < time(last.next()),
        "records {last} and {} have one time: the test shows nothing",
        last.next()
    );
    let FollowFrom::AfterRecord { time: claimed, next, .. } = copy.resume_point().unwrap() else {
        panic!("not a copy of one log")
    };
    assert_eq!(follow_on(copy, log).1, []);
    check(copy, log, 1);
    assert_eq!((claimed, next), (time(last), last.next()));
}
