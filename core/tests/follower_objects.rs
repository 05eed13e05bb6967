//! Copies of a log that read its older records from the object store: what they copy, what stays on their disks, and what readers
//! get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::follower::{FollowFrom, FollowMessage, FollowSource, Jumped};
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, FollowerLog, Index, Log, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

fn options() -> Options {
    Options::with_segment_bytes(SEGMENT)
}

fn source(dir: &Path, vault: &Arc<MemoryVault>) -> Log {
    let options = options().vault(vault.clone() as Arc<dyn Vault>).object_bytes(128 << 10);
    Log::open(dir, options.local_bytes(2 * u64::from(SEGMENT))).unwrap()
}

fn reads(vault: &Arc<MemoryVault>) -> Options {
    options().vault(vault.clone() as Arc<dyn Vault>)
}

fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn append(log: &Log, count: u64) {
    let end = log.last_index().get();
    let tickets: Vec<_> = (end + 1..=end + count).map(|n| log.submit(&record(n)).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Appends until `count` more records are stored and their files are gone.
fn fill(log: &Log, dir: &Path, count: u64) {
    let wanted = log.metrics().stored_bytes + count * 600;
    append(log, count);
    eventually("files go", || {
        append(log, 50);
        log.metrics().stored_bytes >= wanted && segments(dir) <= 8
    });
}

fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).count()
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

/// A new copy that reads objects.
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
    let mut reader = copied.reader(Start::First).unwrap();
    for n in first..=log.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn new_copy_begins_behind_what_is_stored_and_has_all_records() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 8000); // 5 MB
    for from in [FollowFrom::First, FollowFrom::Newest, FollowFrom::Index(Index(4000)), FollowFrom::Last(10)]
    {
        let place = tempfile::tempdir().unwrap();
        let (taken, bytes) = copy(place.path(), &log, from, reads(&vault));
        assert!(bytes < 2_000_000, "{from:?}: {bytes} bytes were copied");
        check(&taken, &log, 1);
        append(&log, 500);
        assert_eq!(follow_on(&taken, &log).1, []);
        check(&taken, &log, 1);
        taken.close().unwrap();
        let taken = FollowerLog::open(place.path(), reads(&vault)).unwrap();
        check(&taken, &log, 1);
        // Its own copies begin as those of a replica do.
        let second = tempfile::tempdir().unwrap();
        check(&copy(second.path(), taken.log(), FollowFrom::First, reads(&vault)).0, &log, 1);
        // Opened without the object store it has what its files have.
        taken.close().unwrap();
        drop(taken);
        let alone = FollowerLog::open(place.path(), options()).unwrap();
        let first = alone.log().first_index();
        assert!(first > Index(5000), "{first}");
        check(&alone, &log, first.get());
    }
}

#[test]
fn copy_without_objects_in_the_log_is_one_of_files() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 2000);
    let (taken, bytes) = copy(place.path(), &log, FollowFrom::First, reads(&vault));
    assert!(bytes > 1_000_000);
    check(&taken, &log, 1);
}

/// Where a copy of files alone skips records, one that reads objects skips none.
#[test]
fn copy_that_was_away_lacks_no_record() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    append(&log, 300);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (with, _) = copy(one.path(), &log, FollowFrom::First, reads(&vault));
    let (without, _) = copy(two.path(), &log, FollowFrom::First, options());
    fill(&log, dir.path(), 8000);
    let (bytes, jumps) = follow_on(&with, &log);
    assert_eq!(jumps, []);
    assert!(bytes < 2_000_000, "{bytes} bytes were copied");
    check(&with, &log, 1);
    let jumps = feed(&without, &mut log.follow(without.resume_point().unwrap()).unwrap()).1;
    let [jumped] = jumps[..] else { panic!("{jumps:?}") };
    check(&without, &log, jumped.to.get());
    // Of records that are discarded it tells as the other does.
    log.discard(Index(9000.min(log.last_index().get()))).unwrap();
    let first = log.first_index().get();
    follow_on(&with, &log);
    assert_eq!(with.log().read(Index(first - 1)).unwrap_err().kind(), ErrorKind::Discarded);
    check(&with, &log, first);
}

/// The copy's own limit: its files go once what is in them is stored, and not before.
#[test]
fn files_of_a_copy_go_once_they_are_stored() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = Arc::new(MemoryVault::default());
    // Whole files at the source: all are copied.
    let log = Log::open(dir.path(), reads(&vault).object_bytes(128 << 10)).unwrap();
    let small = || reads(&vault).local_bytes(2 * u64::from(SEGMENT));
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, small());
    let mut fewest = usize::MAX;
    for _ in 0..40 {
        append(&log, 400);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(follow_on(&taken, &log).1, []);
        fewest = segments(place.path());
    }
    eventually("files go", || {
        // Appends without a break can outrun the store.
        if log.metrics().unstored_bytes < 512 << 10 {
            append(&log, 400);
        }
        follow_on(&taken, &log);
        fewest = segments(place.path());
        fewest <= 8
    });
    assert!(segments(dir.path()) > 30, "the source keeps its files");
    check(&taken, &log, 1);
    taken.close().unwrap();
    let taken = FollowerLog::open(place.path(), small()).unwrap();
    check(&taken, &log, 1);
    append(&log, 400);
    follow_on(&taken, &log);
    check(&taken, &log, 1);
}

/// A copy of files alone keeps less than its source. From it, one that reads objects would jump over records that it knows in no
/// object.
#[test]
fn copy_is_not_led_past_records_that_are_not_stored() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    // Its objects are so large that none is cut.
    let log = Log::open(dir.path(), reads(&vault).object_bytes(64 << 20)).unwrap();
    append(&log, 300);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (reader, _) = copy(one.path(), &log, FollowFrom::First, reads(&vault));
    let (short, _) =
        copy(two.path(), &log, FollowFrom::First, options().retention_bytes(2 * u64::from(SEGMENT)));
    append(&log, 4000);
    feed(&short, &mut log.follow(short.resume_point().unwrap()).unwrap());
    assert!(short.log().first_index() > Index(1000));
    let point = reader.resume_point().unwrap();
    let refused = short.log().follow(point).unwrap().skip_stored().next(1 << 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    // The log itself leads on.
    follow_on(&reader, &log);
    check(&reader, &log, 1);
}

/// A new copy begins behind the newest object, and learns of it from entries that it takes afterwards.
#[test]
fn readers_wait_until_a_new_copy_knows_the_objects() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 4000);
    let mut source = log.follow(FollowFrom::First).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let taken = FollowerLog::create(place.path(), reads(&vault), &state).unwrap();
    let stored = taken.log().last_index();
    let mut hasty = taken.log().reader_that_fails_at_once(Start::Index(stored)).unwrap();
    assert!(!hasty.is_in_files());
    assert!(taken.log().reader(Start::Next).unwrap().is_in_files());
    let error = hasty.next_record().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.retry_after().is_some(), "it can be known soon: {error}");
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut reader = taken.log().reader(Start::First).unwrap();
            for n in 1..=stored.get() {
                assert_eq!(reader.next_record().unwrap().unwrap().data, record(n));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        feed(&taken, &mut source);
        reads.join().unwrap();
    });
    assert_eq!(hasty.next_record().unwrap().unwrap().data, record(stored.get()));
    // Not for ever.
    let place = tempfile::tempdir().unwrap();
    let taken = FollowerLog::create(place.path(), reads(&vault), &state).unwrap();
    let error = taken.log().read(stored).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn outage_of_the_object_store_is_no_loss() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = Arc::new(MemoryVault::default());
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 4000);
    let down = FaultyVault::new(vault, 7, FaultOptions::default().refused(1_000));
    let down: Arc<dyn Vault> = Arc::new(down);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, options().vault(down));
    let last = log.last_index();
    assert_eq!(taken.log().read(last).unwrap().data, record(last.get()));
    assert_eq!(taken.log().read(Index(1)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(taken.log().first_index(), Index(1));
}

/// A copy that keeps less than the log says where the log begins, and not where its own files do.
#[test]
fn beginning_of_a_copy_is_not_handed_on() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let places: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 4000);
    // One begins late, one keeps little; neither reads objects.
    let (late, _) = copy_of_files(places[0].path(), &log, FollowFrom::Newest, options());
    let retains = options().retention_bytes(2 * u64::from(SEGMENT));
    let (short, _) = copy_of_files(places[1].path(), &log, FollowFrom::First, retains);
    append(&log, 3000);
    for plain in [&late, &short] {
        feed(plain, &mut log.follow(plain.resume_point().unwrap()).unwrap());
        assert!(plain.log().first_index() > Index(2000));
    }
    for (n, plain) in [(2, &late), (3, &short)] {
        let source = plain.log().follow(FollowFrom::First).unwrap().skip_stored().next(0);
        let state = match source {
            Ok(Some(FollowMessage::State(state))) => state,
            Err(error) if error.kind() == ErrorKind::Unavailable => continue, // what it lacks is not stored yet
            other => panic!("{other:?}"),
        };
        let taken = FollowerLog::create(places[n].path(), reads(&vault), &state).unwrap();
        follow_on(&taken, &log);
        check(&taken, &log, 1);
    }
}

fn copy_of_files(dir: &Path, log: &Log, from: FollowFrom, options: Options) -> (FollowerLog, usize) {
    let mut source = log.follow(from).unwrap();
    let Some(FollowMessage::State(state)) = source.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let copy = FollowerLog::create(dir, options, &state).unwrap();
    let bytes = feed(&copy, &mut source).0;
    (copy, bytes)
}

/// Opened with and without the object store in turns, and rolled in between, it still has everything with it.
#[test]
fn copy_that_was_opened_without_its_store_has_all_records_with_it() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 4000);
    drop(copy(place.path(), &log, FollowFrom::First, reads(&vault)));
    for n in 0..3 {
        let alone = FollowerLog::open(place.path(), options()).unwrap();
        append(&log, 1000); // more than a file
        feed(&alone, &mut log.follow(alone.resume_point().unwrap()).unwrap());
        let first = alone.log().first_index();
        assert!(first > Index(1000), "{n}: {first}");
        check(&alone, &log, first.get());
        alone.close().unwrap();
        drop(alone);
        let taken = FollowerLog::open(place.path(), reads(&vault)).unwrap();
        follow_on(&taken, &log);
        check(&taken, &log, 1);
    }
}

/// A new copy while the first object alone is stored: no state tells of it yet.
#[test]
fn new_copy_has_all_records_from_the_first_object_on() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), reads(&vault).object_bytes(64 << 10)).unwrap();
    let mut tried = 0;
    for n in 0..60 {
        append(&log, 40);
        let place = tempfile::tempdir().unwrap();
        let from = if n % 2 == 0 { FollowFrom::Newest } else { FollowFrom::Last(3) };
        let mut source = log.follow(from).unwrap().skip_stored();
        let stored = vault.list("").unwrap().iter().filter(|object| object.name.contains("/o/")).count();
        let Some(FollowMessage::State(state)) = source.next(0).unwrap() else { panic!("no state") };
        let taken = FollowerLog::create(place.path(), reads(&vault), &state).unwrap();
        feed(&taken, &mut source);
        if stored > 0 {
            tried += 1;
            let first = taken.log().first_index();
            eventually("it has all that it says", || {
                follow_on(&taken, &log);
                let mut reader = taken.log().reader(Start::First).unwrap();
                loop {
                    match reader.next_record() {
                        Ok(Some(found)) => assert_eq!(found.data, record(found.index.get())),
                        Ok(None) => return true,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{first}: {error}");
                            return false;
                        }
                    }
                }
            });
        }
    }
    assert!(tried > 5);
}

/// A copy that is far behind continues behind what is stored, though its source has the files: it has no room for them.
#[test]
fn copy_far_behind_takes_no_more_than_it_has_room_for() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), reads(&vault).object_bytes(128 << 10)).unwrap();
    append(&log, 300);
    let small = reads(&vault).capacity_bytes(10 * u64::from(SEGMENT));
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, small);
    append(&log, 20_000); // 13 MB
    eventually("objects are stored", || log.last_index().get() - log.metrics().stored_index < 1000);
    append(&log, 10);
    let (bytes, jumps) = follow_on(&taken, &log);
    assert_eq!(jumps, []);
    assert!(bytes < 2_000_000, "{bytes} bytes were copied");
    check(&taken, &log, 1);
}

/// Without anything from the object store a copy removes no file: the location could be wrong.
#[test]
fn files_of_a_copy_stay_while_its_store_returns_nothing() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), reads(&vault).object_bytes(128 << 10)).unwrap();
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default().refused(1_000)));
    let small = options().vault(down.clone() as Arc<dyn Vault>).local_bytes(2 * u64::from(SEGMENT));
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, small);
    for _ in 0..20 {
        append(&log, 400);
        eventually("it is stored", || log.last_index().get() - log.metrics().stored_index < 400);
        follow_on(&taken, &log);
    }
    assert!(segments(place.path()) > 18, "{} files", segments(place.path()));
    check(&taken, &log, 1);
    down.set_faults(FaultOptions::default());
    eventually("files go", || {
        append(&log, 400);
        follow_on(&taken, &log);
        segments(place.path()) <= 8
    });
    check(&taken, &log, 1);
}

/// The object files in a directory: those of the cache, and whole ones.
fn object_files(dir: &Path) -> (usize, usize) {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let lengths: Vec<_> = names.filter(|name| name.ends_with(".object")).map(|name| name.len()).collect();
    let whole = lengths.iter().filter(|length| **length == 20 + 1 + 32 + ".object".len()).count();
    (lengths.len() - whole, whole)
}

/// Whether the oldest object is kept whole: it is fetched last.
fn has_oldest(dir: &Path, log: &Log) -> bool {
    dir.join(format!("{:020}-{:032x}.object", 0, log.log_id().get())).exists()
}

/// Once it has all objects, a copy needs no store for its readers, also after a restart.
#[test]
fn copy_fills_its_disk_with_whole_objects() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 8000);
    eventually("everything is stored", || log.last_index().get() - log.metrics().stored_index < 1000);
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default()));
    let fills = || options().vault(down.clone() as Arc<dyn Vault>).fill_bytes(1 << 30);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, fills());
    let objects = vault.list("").unwrap().iter().filter(|object| object.name.contains("/o/")).count();
    let is_filled =
        |copy: &FollowerLog| copy.log().metrics().filled_bytes > 4_000_000 && has_oldest(place.path(), &log);
    eventually("it has all objects", || is_filled(&taken));
    down.set_faults(FaultOptions::default().refused(1_000));
    check(&taken, &log, 1);
    assert_eq!(taken.log().metrics().fill_failures, 0);
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(place.path(), fills()).unwrap();
    assert!(is_filled(&taken));
    check(&taken, &log, 1);
    assert_eq!(taken.log().metrics().fetched_bytes, 0);
    taken.close().unwrap();
    drop(taken);
    // Discarded records take their objects with them.
    down.set_faults(FaultOptions::default());
    log.discard(log.last_index()).unwrap();
    let taken = FollowerLog::open(place.path(), fills()).unwrap();
    eventually("objects go", || {
        append(&log, 400);
        follow_on(&taken, &log);
        object_files(place.path()).1 + 2 < objects
    });
    let kept = object_files(place.path()).1;
    taken.close().unwrap();
    drop(taken);
    // Without the option none stays.
    assert!(kept <= objects);
    drop(FollowerLog::open(place.path(), reads(&vault)).unwrap());
    assert_eq!(object_files(place.path()), (0, 0));
}

/// Files of the log and objects together stay within the limit of both, and appends take the room of objects.
#[test]
fn objects_of_a_copy_give_way_to_its_files() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 8000);
    eventually("it is stored", || log.last_index().get() - log.metrics().stored_index < 400);
    let local = 8 * u64::from(SEGMENT);
    let fills = reads(&vault).fill_bytes(1 << 30).local_bytes(local);
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, fills);
    eventually("it has objects", || taken.log().metrics().filled_bytes > local / 4);
    let used = || taken.log().status().bytes_used + taken.log().metrics().filled_bytes;
    assert!(used() <= local, "{} of {local}", used());
    eventually("its files have the room", || {
        append(&log, 200);
        follow_on(&taken, &log);
        taken.log().metrics().filled_bytes == 0
    });
    check(&taken, &log, 1);
}

/// A log on its own, or a replica, does the same once its files are gone.
#[test]
fn replica_fills_its_disk_with_whole_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = source(dir.path(), &vault);
    fill(&log, dir.path(), 8000);
    drop(log);
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default()));
    let fills = options().vault(down.clone() as Arc<dyn Vault>).object_bytes(128 << 10).fill_bytes(1 << 30);
    let log = Log::open(dir.path(), fills).unwrap();
    assert!(segments(dir.path()) <= 8, "its files have a small part of it");
    eventually("it has all objects", || {
        has_oldest(dir.path(), &log) && log.metrics().filled_bytes > 4_000_000
    });
    down.set_faults(FaultOptions::default().refused(1_000));
    let mut reader = log.reader(Start::First).unwrap();
    for n in 1..=log.last_index().get() {
        assert_eq!(reader.next_record().unwrap().unwrap().data, record(n));
    }
}

#[test]
fn options_without_effect_are_refused() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), options()).unwrap();
    let Some(FollowMessage::State(state)) = log.follow(FollowFrom::First).unwrap().next(0).unwrap() else {
        panic!("no state")
    };
    for wrong in [
        reads(&vault).retention_bytes(10 << 20),
        reads(&vault).retention_age(Duration::from_secs(60)),
        reads(&vault).capacity_bytes(5 * u64::from(SEGMENT)),
    ] {
        let error = FollowerLog::create(place.path(), wrong, &state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// A copy whose next entries are gone at its source continues behind what is stored, and is not fed the stored entries that are left.
#[test]
fn copy_whose_entries_are_gone_is_not_fed_stored_ones() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let opts = reads(&vault).object_bytes(512 << 10);
    let log = Log::open(dir.path(), opts.local_bytes(12 * u64::from(SEGMENT))).unwrap();
    append(&log, 300);
    let place = tempfile::tempdir().unwrap();
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, reads(&vault));
    let away = taken.resume_point().unwrap();
    append(&log, 12_000); // 8 MB
    eventually("files go", || {
        append(&log, 50);
        segments(dir.path()) <= 20
    });
    // The first entries went with them, and most of those that are left are stored.
    eventually("it is stored", || log.last_index().get() - log.metrics().stored_index < 2000);
    let mut plain = log.follow(away).unwrap();
    let Some(FollowMessage::State(oldest)) = plain.next(0).unwrap() else { panic!("no state") };
    let mut fresh = log.follow(FollowFrom::First).unwrap().skip_stored();
    let Some(FollowMessage::State(behind)) = fresh.next(0).unwrap() else { panic!("no state") };
    assert!(oldest.next().get() + 1000 < behind.next().get(), "{} {}", oldest.next(), behind.next());
    let mut feed = log.follow(away).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = feed.next(0).unwrap() else { panic!("no state") };
    assert!(state.raft() >= behind.raft(), "{} {}", state.raft(), behind.raft());
    follow_on(&taken, &log);
    check(&taken, &log, 1);
}

/// The same if the state to which it is led does not say yet that an object is stored, or knows none: the entry that says so comes later.
#[test]
fn files_of_a_copy_stay_while_its_store_returns_nothing_of_objects_that_are_stored_late() {
    for object_bytes in [128 << 10, 4 << 20] {
        let (dir, place, vault) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let slow = Arc::new(HookedVault::new(vault.clone()));
        let all = options().vault(slow.clone() as Arc<dyn Vault>).object_bytes(object_bytes);
        let log = Log::open(dir.path(), all.local_bytes(2 * u64::from(SEGMENT))).unwrap();
        let (taken, _) = copy(place.path(), &log, FollowFrom::First, reads(&Arc::default()));
        append(&log, 1000);
        feed(&taken, &mut log.follow(taken.resume_point().unwrap()).unwrap());
        slow.set(|call, _| match call {
            "put" | "create" => Err(Error::new(ErrorKind::Unavailable, "not now")),
            _ => Ok(()),
        });
        append(&log, 8000);
        slow.set(|_, _| Ok(()));
        let from = taken.resume_point().unwrap();
        let FollowFrom::After { raft, .. } = from else { panic!("{from:?}") };
        eventually("its next entries are stored, and gone", || {
            append(&log, 10);
            let next = log.follow(from).unwrap().skip_stored().next(0).unwrap();
            matches!(next, Some(FollowMessage::State(state)) if state.raft() > raft)
        });
        let state = log.follow(from).unwrap().skip_stored().next(0).unwrap().unwrap();
        let error = taken.apply(state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(taken.resume_point().unwrap(), from);
        assert_eq!(taken.log().read(Index(1)).unwrap().data, record(1));
    }
}

/// A copy that would be led past stored entries keeps its files until its store has returned an object: the location could be wrong.
#[test]
fn files_of_a_copy_far_behind_stay_while_its_store_returns_nothing() {
    let (dir, place, vault) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = Log::open(dir.path(), reads(&vault).object_bytes(128 << 10)).unwrap();
    let small = |vault: &Arc<MemoryVault>| reads(vault).local_bytes(2 * u64::from(SEGMENT));
    let wrong = Arc::new(MemoryVault::default()); // another bucket
    let (taken, _) = copy(place.path(), &log, FollowFrom::First, small(&wrong));
    append(&log, 3000);
    feed(&taken, &mut log.follow(taken.resume_point().unwrap()).unwrap());
    check(&taken, &log, 1);
    append(&log, 8000);
    eventually("it is stored", || log.last_index().get() - log.metrics().stored_index < 1000);
    let from = taken.resume_point().unwrap();
    let mut found = None;
    eventually("it is led past stored entries", || {
        let next = log.follow(from).unwrap().skip_stored().next(0).unwrap();
        found = next.filter(|next| matches!(next, FollowMessage::State(_)));
        if found.is_none() {
            append(&log, 100);
        }
        found.is_some()
    });
    let error = taken.apply(found.unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(taken.resume_point().unwrap(), from);
    assert_eq!(taken.log().read(Index(1)).unwrap().data, record(1));
    // A feed that skips nothing leads on as long as the source has the entries.
    assert_eq!(feed(&taken, &mut log.follow(from).unwrap()).1, []);
    check(&taken, &log, 1);
    taken.close().unwrap();
    drop(taken);
    // With the right store it skips.
    let taken = FollowerLog::open(place.path(), small(&vault)).unwrap();
    append(&log, 8000);
    eventually("it is stored", || log.last_index().get() - log.metrics().stored_index < 1000);
    let before = log.metrics().stored_bytes;
    assert!(follow_on(&taken, &log).0 < 3_000_000, "{before}");
    check(&taken, &log, 1);
}
