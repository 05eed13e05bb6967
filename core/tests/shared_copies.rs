//! Copies of one named log of a group that read its older records from the objects of the group: what they copy, what stays on their
//! disks, and what readers get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::follower::{FollowFrom, FollowMessage, FollowSource, Jumped};
use chiplog::inspect::Inspector;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{
    Error, ErrorKind, FollowerLog, Index, Log, Logs, LogsOptions, Options, ReadMode, ReadOnlyLog, Start,
    Timestamp,
};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SEGMENT: u32 = 256 << 10;
/// How many logs the group has, and which one is copied.
const LOGS: u64 = 7;
const COPIED: u64 = 3;

fn plain() -> Options {
    Options::with_segment_bytes(SEGMENT).sessions_max(16)
}

fn reads(vault: &Arc<MemoryVault>) -> Options {
    plain().vault(vault.clone() as Arc<dyn Vault>)
}

/// Servers keep few files.
fn small(vault: &Arc<MemoryVault>) -> Options {
    reads(vault)
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

fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

fn copied(logs: &Logs) -> Log {
    log_of(logs, COPIED)
}

fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
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

fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).count()
}

/// Appends `count` records to each log, unless many wait to be stored: appends without a break can outrun the store.
fn append_slowly(logs: &Logs, count: u64) {
    if group(logs).metrics().unstored_bytes < 512 << 10 {
        append(logs, &all(), count);
    }
}

/// Appends `count` records to each log, and more until they are stored and few files are left.
fn fill(logs: &Logs, dir: &Path, count: u64) {
    let wanted = group(logs).metrics().stored_bytes + count * LOGS * 600;
    append(logs, &all(), count);
    eventually("files go", || {
        append_slowly(logs, 20);
        group(logs).metrics().stored_bytes >= wanted && segments(&dir.join("group-1")) <= 8
    });
}

/// Feeds the copy until it has everything. Returns the bytes that it took, and where it jumped.
fn feed(copy: &FollowerLog, feed: &mut FollowSource) -> (usize, Vec<Jumped>) {
    let (mut bytes, mut jumps) = (0, Vec::new());
    while let Some(fed) = feed.next(64 << 10).unwrap() {
        bytes += fed.bytes();
        jumps.extend(copy.apply(fed).unwrap());
    }
    (bytes, jumps)
}

fn follow_on(copy: &FollowerLog, log: &Log) -> (usize, Vec<Jumped>) {
    feed(copy, &mut log.follow(copy.resume_point().unwrap()).unwrap().skip_stored())
}

fn copy(dir: &Path, log: &Log, from: FollowFrom, options: Options) -> (FollowerLog, usize) {
    let mut source = log.follow(from).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let copy = FollowerLog::create(dir, options, &state).unwrap();
    let (bytes, jumps) = feed(&copy, &mut source);
    assert_eq!(jumps, []);
    (copy, bytes)
}

fn check(copy: &FollowerLog, log: &Log, first: u64) {
    let copied = copy.log();
    assert_eq!((copied.first_index().get(), copied.last_index()), (first, log.last_index()));
    read_from(copied, first);
}

fn read_from(copied: &Log, first: u64) {
    let mut reader = copied.reader(Start::Index(Index(first))).unwrap();
    for n in first..=copied.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert!((found.index.get(), found.data) == (n, &record(COPIED, n)[..]), "record {n}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

/// A copy that reads no objects.
fn copy_of_files(dir: &Path, log: &Log) -> FollowerLog {
    let mut source = log.follow(FollowFrom::First).unwrap();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let copy = FollowerLog::create(dir, plain(), &state).unwrap();
    feed(&copy, &mut source);
    copy
}

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
    let reopened = places.iter().zip(limits).map(|(place, options)| {
        (FollowerLog::open(place.path(), options).unwrap(), place.path(), segments(place.path()))
    });
    let reopened: Vec<_> = reopened.collect();
    append(&logs, &[COPIED], 900); // two files, and less than an object
    for (copy, place, before) in &reopened {
        eventually("it takes everything", || {
            let mut source = log.follow(copy.resume_point().unwrap()).unwrap().skip_stored();
            while let Some(fed) = source.next(64 << 10).unwrap() {
                // It is full until its store has answered.
                if let Err(error) = copy.apply(fed) {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    return false;
                }
            }
            true
        });
        eventually("files go", || segments(place) < *before);
        check(copy, &log, 1);
    }
    assert_eq!(
        group(&logs).metrics().stored_bytes,
        stored,
        "the group has another object: the test shows nothing"
    );
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
    eventually("they are stored", || {
        let metrics = group(&logs).metrics();
        metrics.records - metrics.stored_index < 400
    });
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
