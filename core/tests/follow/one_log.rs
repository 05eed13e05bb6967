//! A follower of one log of a shared group: its copy is that of a log on its own, whatever else the group holds.

use crate::support::*;
use bytes::Bytes;
use chiplog::backup::{Backup, RestoreOptions};
use chiplog::follower::{FollowFrom, FollowMessage, FollowSource};
use chiplog::limits::BATCH_HEADER_BYTES;
use chiplog::{
    Batch, BatchBuilder, Codec, ErrorKind, FollowerLog, Index, Log, Logs, LogsOptions, ReadMode, ReadOnlyLog,
    Start, Timestamp,
};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Named logs of one group.
struct Group {
    _dir: TempDir,
    logs: Logs,
}

impl Group {
    fn new(mode: ReadMode) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = options().segment_bytes(256 << 10).sessions_max(16).read_mode(mode);
        let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(options)).unwrap();
        Self { _dir: dir, logs }
    }

    fn create(&self, name: &str) -> Log {
        self.logs.create(name).unwrap()
    }
}

/// Appends to all logs at a time, so that blocks have records of several logs.
fn append_to(logs: &[&Log], range: std::ops::Range<u64>) {
    let record = |n: u64, log: &Log| format!("{n} of {} {}", log.log_id(), "x".repeat(n as usize * 37 % 900));
    let submit = |n: u64| logs.iter().map(move |log| log.submit(record(n, log).as_bytes()).unwrap());
    let tickets: Vec<_> = range.flat_map(submit).collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}

/// The batches from `first` on, without what their headers say about a session.
fn batches(log: &Log, first: Index) -> Vec<(Index, Timestamp, u32, Bytes)> {
    let mut reader = log.reader(Start::Index(first)).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = reader.next_stored().unwrap() {
        all.push((
            batch.first(),
            batch.timestamp(),
            batch.count(),
            batch.bytes().slice(BATCH_HEADER_BYTES..),
        ));
    }
    all
}

/// The copy has the log's records and batches from its own first record on, and nothing else.
#[track_caller]
fn assert_copy(copy: &Log, log: &Log) {
    let first = copy.first_index();
    assert_eq!(batches(copy, first), batches(log, first));
    assert_eq!((copy.log_id(), copy.last_index()), (log.log_id(), log.last_index()));
    assert_eq!((copy.status().sessions, copy.named_logs()), (0, 0));
}

fn apply_all(feed: &mut FollowSource, copy: &FollowerLog) {
    while let Some(fed) = feed.next(2000).unwrap() {
        assert_eq!(copy.apply(travel(&fed)).unwrap(), None);
    }
}

#[test]
fn copy_of_one_log_has_its_records_and_no_others() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let group = Group::new(mode);
        let (a, b, c) = (group.create("a"), group.create("b"), group.create("c"));
        let dir = tempfile::tempdir().unwrap();
        append_to(&[&a, &c], 0..20);
        // Of an empty log.
        let copy = create(&b, FollowFrom::First, dir.path());
        assert_eq!(catch_up(&b, &copy), []);
        assert_copy(copy.log(), &b);
        for round in 1..5 {
            append_to(&[&a, &b, &c], round * 100..round * 100 + 60);
            let mut session = b.open_session().unwrap();
            let mut other = a.open_session().unwrap();
            for n in 0..10u64 {
                other.append(b"in another log").unwrap();
                session
                    .append(format!("in a session {n} {}", "y".repeat(n as usize * 800)).as_bytes())
                    .unwrap();
            }
            let mut batch = BatchBuilder::new();
            batch.codec(if round % 2 == 0 { Codec::Zstd } else { Codec::Lz4 });
            for n in 0..100 {
                batch.push(&[n; 100]).unwrap();
            }
            let batch = batch.build().unwrap();
            b.append(&batch).unwrap();
            c.append(&batch).unwrap();
            if round % 2 == 0 {
                session.close().unwrap();
            }
            assert_eq!(catch_up(&b, &copy), []);
            assert_copy(copy.log(), &b);
        }
        assert_eq!(b.last_index(), Index(4 * 170));
        assert!(copy.log().status().follows);
        copy.close().unwrap();
        drop(copy);
        assert_sound(dir.path());
        append_to(&[&a, &b, &c], 600..900);
        let copy = FollowerLog::open(dir.path(), options()).unwrap();
        assert_eq!(catch_up(&b, &copy), []);
        assert_copy(copy.log(), &b);
        copy.sync().unwrap();
        assert_eq!(catch_up(&b, &copy), []);
        let read_only = ReadOnlyLog::open(dir.path()).unwrap();
        wait_until("the read-only log shows all records", || read_only.last_index() == b.last_index());
        drop((copy, read_only));
        assert_sound(dir.path());
    }
}

/// Full segments of a group get sorted copies, from which readers and feeds read.
#[test]
fn sorted_copies_of_segments_feed_the_same_records() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    append_to(&[&a, &b], 0..2000);
    let sorted = || std::fs::read_dir(Logs::group_path(group._dir.path(), 1)).unwrap();
    let is_sorted = || sorted().any(|file| file.unwrap().path().extension().is_some_and(|e| e == "run"));
    wait_until("a segment is sorted", is_sorted);
    let dir = tempfile::tempdir().unwrap();
    let copy = create(&b, FollowFrom::First, dir.path());
    catch_up(&b, &copy);
    assert_copy(copy.log(), &b);
    assert_eq!(copy.log().first_index(), Index(1));
    // Small segments have room for each entry, however much a call may return.
    let dir = tempfile::tempdir().unwrap();
    let copy = create(&b, FollowFrom::First, dir.path());
    let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        copy.apply(travel(&fed)).unwrap();
    }
    assert_copy(copy.log(), &b);
}

/// Their entries are numbered differently, so that only records tell where a feed continues.
#[test]
fn copies_that_began_at_different_records_continue_from_each_other() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    for n in 0..20 {
        append_to(&[&a, &b], n * 20..n * 20 + 20);
        std::thread::sleep(Duration::from_millis(2)); // entries of several times
    }
    let whole = create(&b, FollowFrom::First, dirs[0].path());
    catch_up(&b, &whole);
    let later = create(&b, FollowFrom::Index(Index(201)), dirs[1].path());
    assert_eq!(later.log().first_index(), Index(201));
    // Half of it from the group, the rest from the other copy.
    let mut feed = b.follow(later.resume_point().unwrap()).unwrap();
    later.apply(travel(&feed.next(3000).unwrap().unwrap())).unwrap();
    assert!(later.log().last_index() < b.last_index());
    assert_eq!(catch_up(whole.log(), &later), []);
    assert_copy(later.log(), &b);
    append_to(&[&a, &b], 400..500);
    assert_eq!(catch_up(&b, &later), []);
    assert_eq!(catch_up(later.log(), &whole), [], "the shorter one feeds the longer one");
    assert_copy(whole.log(), &b);
    assert_eq!(whole.log().first_index(), Index(1), "the shorter one takes nothing away");
    // A copy of a copy.
    let third = create(later.log(), FollowFrom::Last(100), dirs[2].path());
    assert_eq!(catch_up(whole.log(), &third), []);
    assert_eq!(third.log().first_index(), Index(401));
    assert_copy(third.log(), &b);
    // It has records that are missing in the source.
    let short = create(&b, FollowFrom::First, dirs[3].path());
    let mut feed = short.log().follow(third.resume_point().unwrap()).unwrap();
    assert!(feed.is_behind() && feed.next(1000).unwrap().is_none());
    assert!(!feed.wait(Some(Duration::from_millis(20))).unwrap());
    catch_up(&b, &short);
    assert!(!feed.is_behind() && feed.next(1000).unwrap().is_none());
    assert!(!feed.wait(Some(Duration::from_millis(20))).unwrap());
}

/// A position in one numbering means nothing in another one.
#[test]
fn position_of_another_kind_of_copy_is_refused() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    append_to(&[&a, &b], 0..50);
    let dir = tempfile::tempdir().unwrap();
    let copy = create(&b, FollowFrom::First, dir.path());
    catch_up(&b, &copy);
    let FollowFrom::AfterRecord { log, raft, term, next, first, time } = copy.resume_point().unwrap() else {
        panic!("a copy of one log continues behind a record");
    };
    assert_eq!((log, next, first), (b.log_id(), Index(51), Index(1)));
    let diverged = |source: &Log, from| source.follow(from).err().map(|error| error.kind());
    for source in [&b, copy.log()] {
        assert_eq!(diverged(source, FollowFrom::After { log, raft, term }), Some(ErrorKind::Diverged));
    }
    let other = FollowFrom::AfterRecord { log: a.log_id(), raft, term, next, first, time };
    assert_eq!(diverged(&b, other), Some(ErrorKind::Diverged));
    assert_eq!(diverged(&a, copy.resume_point().unwrap()), Some(ErrorKind::Diverged));
    let whole = group.logs.groups()[&1].clone();
    assert!(whole.follow(copy.resume_point().unwrap()).is_err());
    // A log of a copied group: its id is in the catalogue alone.
    let of_group = tempfile::tempdir().unwrap();
    let copied = create(&whole, FollowFrom::First, of_group.path());
    catch_up(&whole, &copied);
    let number = group.logs.info("b").unwrap().number;
    let refused = copied.log().named(number).unwrap().follow(FollowFrom::First);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    // Another history: the last record has another time.
    let Timestamp(later) = time;
    let mixed = FollowFrom::AfterRecord { log, raft, term, next, first, time: Timestamp(later + 1) };
    for source in [&b, copy.log()] {
        let refused = source.follow(mixed).unwrap().next(1000).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Diverged, "{refused}");
        assert!(refused.to_string().contains("record 50"), "{refused}");
    }
    // A position inside an append.
    let batch = BatchBuilder::new().push(b"one").unwrap().push(b"two").unwrap().build().unwrap();
    b.append(&batch).unwrap();
    let inside = FollowFrom::AfterRecord { log, raft, term, next: Index(52), first, time: Timestamp(0) };
    let refused = b.follow(inside).unwrap().next(1000).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Diverged);
    assert!(refused.to_string().contains("record 52"), "{refused}");
}

#[test]
fn discards_reach_the_copy_and_a_copy_that_lags_jumps() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    append_to(&[&a, &b], 0..100);
    let dir = tempfile::tempdir().unwrap();
    let copy = create(&b, FollowFrom::First, dir.path());
    let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
    apply_all(&mut feed, &copy);
    // Discarded behind it: the feed wakes, also without a new record.
    let (tx, rx) = mpsc::channel();
    feed.on_more(move || tx.send(()).unwrap());
    a.discard(Index(50)).unwrap();
    assert!(rx.try_recv().is_err());
    b.discard(Index(41)).unwrap();
    rx.recv_timeout(PATIENCE).unwrap();
    assert!(feed.wait(Some(PATIENCE)).unwrap());
    apply_all(&mut feed, &copy);
    assert!(!feed.wait(Some(Duration::from_millis(10))).unwrap(), "it was fed once");
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(41), Index(100)));
    let last = copy.log().status().replica.last_entry;
    assert_eq!(catch_up(&b, &copy), []);
    assert_eq!(copy.log().status().replica.last_entry, last, "the copy says what it has discarded");
    // While it was away.
    b.discard(Index(61)).unwrap();
    append_to(&[&a, &b], 100..110);
    copy.close().unwrap();
    drop(copy);
    let copy = FollowerLog::open(dir.path(), options()).unwrap();
    assert_eq!(catch_up(&b, &copy), []);
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(61), Index(110)));
    assert_copy(copy.log(), &b);
    // To a follower that has more than this source, nothing is sent before the source has caught up.
    let FollowFrom::AfterRecord { log, raft, term, .. } = copy.resume_point().unwrap() else { panic!() };
    let ahead =
        FollowFrom::AfterRecord { log, raft, term, next: Index(1000), first: Index(1), time: Timestamp(0) };
    let mut feed = b.follow(ahead).unwrap();
    assert!(feed.is_behind() && feed.next(1000).unwrap().is_none());
    assert!(!feed.wait(Some(Duration::from_millis(10))).unwrap());
    // Records that it does not have yet.
    append_to(&[&a, &b], 110..200);
    b.discard(Index(151)).unwrap();
    let jumps = catch_up(&b, &copy);
    assert_eq!(jumps.iter().map(|j| (j.from, j.to)).collect::<Vec<_>>(), [(Index(111), Index(151))]);
    assert_copy(copy.log(), &b);
    // All, and more than there are.
    b.discard(Index(300)).unwrap();
    let jumps = catch_up(&b, &copy);
    assert_eq!(jumps.iter().map(|j| (j.from, j.to)).collect::<Vec<_>>(), [(Index(201), Index(300))]);
    append_to(&[&a, &b], 300..310);
    assert_eq!(catch_up(&b, &copy), []);
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(300), Index(309)));
    assert_copy(copy.log(), &b);
    drop(copy);
    assert_sound(dir.path());
}

/// A discard can end inside an append, which is copied whole.
#[test]
fn discard_inside_an_append_keeps_the_append() {
    let group = Group::new(ReadMode::Map);
    let b = group.create("b");
    let mut batch = BatchBuilder::new();
    for n in 0..10 {
        batch.push(&[n; 10]).unwrap();
    }
    let batch: Batch = batch.build().unwrap();
    b.append(&batch).unwrap();
    b.append(&batch).unwrap();
    let (whole, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = create(&b, FollowFrom::First, whole.path());
    let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
    copy.apply(feed.next(1).unwrap().unwrap()).unwrap();
    assert_eq!(copy.log().last_index(), Index(10));
    b.discard(Index(15)).unwrap();
    assert_eq!(catch_up(&b, &copy), [], "the next append is there");
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(15), Index(20)));
    // A new copy begins with the append that holds the first record, and then learns of the discard.
    let state = state(&b, FollowFrom::First);
    assert_eq!(state.next(), Index(11));
    let copy = FollowerLog::create(half.path(), options(), &state).unwrap();
    catch_up(&b, &copy);
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(15), Index(20)));
    b.discard(Index(21)).unwrap();
    assert_eq!(catch_up(&b, &copy), []);
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(21), Index(20)));
}

#[test]
fn feed_begins_at_any_record_or_time() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    append_to(&[&a, &b], 0..30);
    std::thread::sleep(Duration::from_millis(5));
    append_to(&[&b, &a], 30..60);
    b.discard(Index(11)).unwrap();
    let time = b.read(Index(45)).unwrap().timestamp;
    let since = batches(&b, Index(11)).into_iter().find(|(_, at, ..)| *at >= time).unwrap().0;
    for (from, next) in [
        (FollowFrom::First, Index(11)),
        (FollowFrom::Index(Index(11)), Index(11)),
        (FollowFrom::Index(Index(60)), Index(60)),
        (FollowFrom::Index(Index(61)), Index(61)),
        (FollowFrom::Last(7), Index(54)),
        (FollowFrom::Last(700), Index(11)),
        (FollowFrom::Newest, Index(61)),
        (FollowFrom::Timestamp(time), since),
        (FollowFrom::Timestamp(Timestamp(u64::MAX)), Index(61)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let copy = create(&b, from, dir.path());
        assert_eq!(copy.log().first_index(), next, "{from:?}");
        catch_up(&b, &copy);
        assert_copy(copy.log(), &b);
    }
    assert_eq!(b.follow(FollowFrom::Index(Index(10))).unwrap_err().kind(), ErrorKind::Discarded);
    assert_eq!(b.follow(FollowFrom::Index(Index(62))).unwrap_err().kind(), ErrorKind::OutOfRange);
}

#[test]
fn large_appends_are_entries_of_their_own() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let dir = tempfile::tempdir().unwrap();
        let large = chiplog::Options::with_segment_bytes(4 << 20).read_mode(mode);
        let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(large.clone())).unwrap();
        let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
        for n in 0..20u8 {
            a.append(&vec![n; 70_000]).unwrap();
            b.append(&vec![n; if n % 3 == 0 { 300_000 } else { 900 }]).unwrap();
        }
        let copied = tempfile::tempdir().unwrap();
        let mut feed = b.follow(FollowFrom::First).unwrap();
        let Some(FollowMessage::State(state)) = feed.next(0).unwrap() else { panic!() };
        let copy = FollowerLog::create(copied.path(), large, &state).unwrap();
        let mut messages = 0;
        loop {
            let bytes = feed.next_bytes().unwrap();
            let (before, again) = (feed.resume_point(), feed.committed());
            let Some(fed) = feed.next(10_000).unwrap() else { break };
            assert!(fed.bytes() <= 10_000.max(bytes.unwrap()), "{} bytes", fed.bytes());
            assert_eq!(
                b.follow(before).unwrap().next(10_000).unwrap().as_ref(),
                Some(&fed),
                "it can be repeated"
            );
            assert!(feed.position().unwrap().0 <= again);
            copy.apply(travel(&fed)).unwrap();
            messages += 1;
        }
        assert_eq!(feed.position().unwrap().0, feed.committed());
        assert!(messages >= 13, "{messages}");
        assert_copy(copy.log(), &b);
        // Many appends of one block: each entry of the copies has room in the smallest segments.
        let tickets: Vec<_> = (0..400u16).map(|n| a.submit(&[n as u8; 1000]).unwrap()).collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        let small = options().read_mode(mode);
        let from = a.last_index().get() - 399;
        let FollowMessage::State(state) =
            a.follow(FollowFrom::Index(Index(from))).unwrap().next(0).unwrap().unwrap()
        else {
            panic!()
        };
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let near = FollowerLog::create(dirs[0].path(), small.clone(), &state).unwrap();
        let mut feed = a.follow(near.resume_point().unwrap()).unwrap();
        while let Some(fed) = feed.next(1 << 20).unwrap() {
            near.apply(fed).unwrap();
        }
        assert_copy(near.log(), &a);
        // A copy of the copy gets these entries in parts.
        let far = FollowerLog::create(dirs[1].path(), small, &state).unwrap();
        let mut feed = near.log().follow(far.resume_point().unwrap()).unwrap();
        while let Some(fed) = feed.next(3000).unwrap() {
            far.apply(fed).unwrap();
        }
        assert_copy(far.log(), &a);
    }
}

#[test]
fn sealed_log_ends_and_a_dropped_one_ends_the_feed() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    append_to(&[&a, &b], 0..10);
    group.logs.seal("b").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copy = create(&b, FollowFrom::First, dir.path());
    let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
    apply_all(&mut feed, &copy);
    assert_copy(copy.log(), &b);
    assert!(!feed.wait(Some(Duration::ZERO)).unwrap());
    let (tx, rx) = mpsc::channel();
    feed.on_more(move || tx.send(()).unwrap());
    let waits = {
        let feed = b.follow(copy.resume_point().unwrap()).unwrap();
        std::thread::spawn(move || feed.wait(None))
    };
    group.logs.delete("b").unwrap();
    rx.recv_timeout(PATIENCE).unwrap();
    assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(feed.next(1000).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(b.follow(FollowFrom::First).unwrap().next(1000).unwrap_err().kind(), ErrorKind::NotFound);
    // The copy stays.
    assert_eq!(records(copy.log()).len(), 10);
}

/// The copy is an ordinary one: its own retention, backups, logs made of them.
#[test]
fn copy_of_one_log_is_kept_and_restored_like_any_other() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    let mut session = b.open_session().unwrap();
    for n in 0..300u32 {
        session.append(&vec![n as u8; 1000]).unwrap();
    }
    append_to(&[&a, &b], 0..10);
    let (kept, sealed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy =
        FollowerLog::create(kept.path(), options().retention_bytes(160_000), &state(&b, FollowFrom::First))
            .unwrap();
    catch_up(&b, &copy);
    assert!(copy.log().first_index() > Index(100), "{:?}", copy.log().status());
    assert_copy(copy.log(), &b);
    append_to(&[&a, &b], 10..20);
    assert_eq!(catch_up(&b, &copy), [], "records before its first one are not sent again");
    let dest = sealed.path().join("backup");
    Backup::begin(&dest).unwrap();
    let whole =
        FollowerLog::create(&dest, Backup::copy_options(64 << 10), &state(&b, FollowFrom::First)).unwrap();
    catch_up(&b, &whole);
    whole.close().unwrap();
    drop(whole);
    let backup = Backup::seal(&dest).unwrap();
    let restored = sealed.path().join("restored");
    backup.restore(&restored, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let log = Log::open(&restored, options()).unwrap();
    assert_eq!(batches(&log, Index(1)), batches(&b, Index(1)));
    log.append(b"it continues").unwrap();
    // It is an ordinary log: what follows it goes by its entries.
    let dir = tempfile::tempdir().unwrap();
    let of_restored = create(&log, FollowFrom::First, dir.path());
    catch_up(&log, &of_restored);
    assert!(matches!(of_restored.resume_point().unwrap(), FollowFrom::After { .. }));
    assert_eq!(records(of_restored.log()).len(), 321);
}

/// Entries of a mixed source come one by one, while records are appended and discarded.
#[test]
fn copies_follow_a_log_that_is_written_and_discarded() {
    let group = Group::new(ReadMode::Map);
    let (a, b) = (group.create("a"), group.create("b"));
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let near = create(&b, FollowFrom::First, dirs[0].path());
    let far = create(near.log(), FollowFrom::First, dirs[1].path());
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        let follow = move |source: &Log, copy: &FollowerLog| {
            let mut feed = source.follow(copy.resume_point().unwrap()).unwrap();
            while Instant::now() < end {
                while let Some(fed) = feed.next(20_000).unwrap() {
                    copy.apply(fed).unwrap();
                }
                feed.wait(Some(Duration::from_millis(20))).unwrap();
            }
        };
        let (b, near, far) = (&b, &near, &far);
        scope.spawn(move || follow(b, near));
        scope.spawn(move || follow(near.log(), far));
        let mut n = 0;
        while Instant::now() < end {
            append_to(&[&a, b], n..n + 20);
            n += 20;
            if n % 100 == 0 {
                b.discard(Index(n - 50)).unwrap();
            }
        }
    });
    catch_up(&b, &near);
    catch_up(near.log(), &far);
    for copy in [&near, &far] {
        assert_eq!(copy.log().first_index(), b.first_index());
        assert_copy(copy.log(), &b);
    }
    drop((near, far));
    dirs.iter().for_each(|dir| assert_sound(Path::new(dir.path())));
}

#[cfg(feature = "testing")]
mod damaged {
    use super::*;
    use chiplog::disk::Disk as _;
    use chiplog::disk::sim::{Damage, Rng, SimDisk};
    use std::sync::Arc;

    /// Records before the damage are fed; the damage itself never is.
    #[test]
    fn damage_is_not_passed_on() {
        let (system, disk) = (SimDisk::default(), SimDisk::default());
        let of_group = LogsOptions::default().groups(1).options(options().read_mode(ReadMode::Read));
        let logs = Logs::open_on(Arc::new(system), vec![Arc::new(disk.clone())], of_group).unwrap();
        let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
        let text = |n: u64| format!("record {n} of b, which is easy to find").into_bytes();
        for n in 1..=20 {
            a.append(b"beside it").unwrap();
            b.append(&text(n)).unwrap();
        }
        let name = disk.list().unwrap().into_iter().filter(|n| n.ends_with(".seg")).min().unwrap();
        let file = disk.open(&name, false).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        let wanted = text(12);
        let at = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
        assert!(disk.damage(&name, &Damage::FlipBit { bit: at as u64 * 8 + 1 }));
        let dir = tempfile::tempdir().unwrap();
        let copy = create(&b, FollowFrom::First, dir.path());
        let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
        let error = loop {
            match feed.next(1000) {
                Ok(fed) => drop(copy.apply(fed.expect("record 12 cannot be read")).unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(copy.log().last_index(), Index(11));
        assert_eq!(feed.next(1000).unwrap_err().kind(), ErrorKind::Corrupt);
        // Another source has the record.
        assert!(disk.damage(&name, &Damage::FlipBit { bit: at as u64 * 8 + 1 }), "it is as it was");
        apply_all(&mut feed, &copy);
        assert_copy(copy.log(), &b);
    }

    /// A copy on a disk that loses power continues with the records that it has.
    #[test]
    fn copy_continues_after_a_loss_of_power() {
        let group = Group::new(ReadMode::Map);
        let (a, b) = (group.create("a"), group.create("b"));
        for n in 0..30 {
            append_to(&[&a, &b], n * 10..n * 10 + 10);
        }
        let first = state(&b, FollowFrom::First);
        for seed in 0..20 {
            let disk = SimDisk::default();
            let copy = FollowerLog::create_on(Arc::new(disk.clone()), options(), &first).unwrap();
            let mut feed = b.follow(copy.resume_point().unwrap()).unwrap();
            for n in 0..3 + seed % 4 {
                let Some(fed) = feed.next(3000).unwrap() else { break };
                copy.apply(travel(&fed)).unwrap();
                if n == 1 {
                    copy.sync().unwrap();
                }
            }
            let had = copy.log().last_index();
            let disk = disk.crash_randomly(&mut Rng::new(seed));
            drop((feed, copy));
            let copy = FollowerLog::open_on(Arc::new(disk), options()).unwrap();
            assert!(copy.log().last_index() <= had);
            assert_eq!(catch_up(&b, &copy), []);
            assert_copy(copy.log(), &b);
            assert_eq!(copy.log().first_index(), Index(1));
        }
    }
}
