//! The engine as a program uses it, on a real directory.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::follower::FollowFrom;
use chiplog::{
    BatchBuilder, Codec, ErrorKind, Index, Log, Options, ReadMode, ReadOnlyLog, Sequence, Start, Timestamp,
};
use std::time::{Duration, Instant};

fn small() -> Options {
    Options::with_segment_bytes(64 << 10)
}

fn record(i: u64) -> Vec<u8> {
    let mut bytes = i.to_le_bytes().to_vec();
    bytes.resize(8 + (i as usize * 37) % 900, i as u8);
    bytes
}

fn check(log: &Log, from: u64, to: u64) {
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for i in from..=to {
        let r = reader.next_record().unwrap().unwrap();
        assert_eq!((r.index, r.data), (Index(i), &record(i)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn records_are_read_in_order_over_rolls_and_reopening() {
    for read_mode in [ReadMode::Map, ReadMode::Read] {
        let dir = tempfile::tempdir().unwrap();
        let options = small().read_mode(read_mode);
        for round in 0..3u64 {
            let log = Log::open(dir.path(), options.clone()).unwrap();
            assert_eq!(log.last_index(), Index(round * 500));
            check(&log, 1, round * 500);
            let tickets: Vec<_> = (1..=500).map(|i| log.submit(&record(round * 500 + i)).unwrap()).collect();
            for (i, t) in tickets.iter().enumerate() {
                assert_eq!(t.wait().unwrap(), Index(round * 500 + i as u64 + 1));
            }
            check(&log, 1, (round + 1) * 500);
            assert!(log.status().segments > 3, "{:?}", log.status());
            for i in [1, 77, 400] {
                assert_eq!(log.read(Index(i)).unwrap().data, record(i));
            }
            if round != 1 {
                log.close().unwrap();
            }
        }
    }
}

#[test]
fn each_of_many_threads_reads_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    std::thread::scope(|s| {
        for t in 0..16u64 {
            let log = log.clone();
            s.spawn(move || {
                for i in 0..100u64 {
                    let data = [t.to_le_bytes(), i.to_le_bytes()].concat();
                    let index = log.append(&data).unwrap();
                    assert_eq!(log.read(index).unwrap().data, data);
                }
            });
        }
    });
    let metrics = log.metrics();
    assert_eq!((metrics.appends, metrics.records), (1600, 1600));
    assert!(metrics.syncs < 1600, "appends share syncs: {metrics:?}");
}

#[test]
fn discard_works_in_a_segment_across_segments_and_beyond_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let tickets: Vec<_> = (1..=1000).map(|i| log.submit(&record(i)).unwrap()).collect();
    tickets[999].wait().unwrap();
    let mut old = log.reader(Start::First).unwrap();
    let held = old.next_batch().unwrap().unwrap();
    let before = log.status();
    log.discard(Index(700)).unwrap();
    let after = log.status();
    assert_eq!((after.first_index, after.last_index), (Index(700), Index(1000)));
    assert!(after.bytes_used < before.bytes_used / 2 && after.segments < before.segments);
    assert_eq!(held.iter().next().unwrap().data, record(1));
    assert_eq!(old.next_record().unwrap_err().kind(), ErrorKind::Discarded);
    assert_eq!(log.read(Index(699)).unwrap_err().kind(), ErrorKind::Discarded);
    check(&log, 700, 1000);
    log.discard(Index(5)).unwrap();
    assert_eq!(log.first_index(), Index(700));
    log.discard(Index(5000)).unwrap();
    let status = log.status();
    assert_eq!((status.first_index, status.last_index), (Index(5000), Index(4999)));
    assert_eq!(log.append(&record(5000)).unwrap(), Index(5000));
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    check(&log, 5000, 5000);
    assert_eq!(log.first_index(), Index(5000));
}

#[test]
fn sessions_append_each_number_once_also_after_reopening_and_discard() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let mut session = log.open_session().unwrap();
    let id = session.id();
    let tickets: Vec<_> = (1..=40).map(|i| session.submit(&record(i)).unwrap()).collect();
    for (i, t) in tickets.iter().enumerate() {
        assert_eq!(t.wait().unwrap(), Index(i as u64 + 1));
    }
    assert_eq!(log.resume_session(id, Sequence(40)).append(b"other").unwrap(), Index(40));
    for i in 41..=600 {
        let _unwatched = log.submit(&record(i)).unwrap();
    }
    log.discard(Index(500)).unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(log.status().sessions, 1);
    let mut session = log.resume_session(id, Sequence(40));
    assert_eq!(session.append(b"again").unwrap(), Index(40));
    assert_eq!(session.append(&record(601)).unwrap(), Index(601));
    let gap = log.resume_session(id, Sequence(50)).append(b"x").unwrap_err();
    assert_eq!(gap.kind(), ErrorKind::SequenceGap);
    session.close().unwrap();
    let gone = log.resume_session(id, Sequence(42)).append(b"x").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::SessionExpired);
    check(&log, 500, 601);
}

#[test]
fn batches_of_every_codec_and_of_large_size_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::default()).unwrap();
    let mut next = 1;
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let mut b = BatchBuilder::new();
        b.codec(codec);
        for i in 0..1000u64 {
            b.push(&record(i)).unwrap();
        }
        let at = log.append(&b.build().unwrap()).unwrap();
        assert_eq!((at.first, at.count), (Index(next), 1000));
        next += 1000;
    }
    let big = vec![7; 16 << 20];
    assert_eq!(log.append(&big).unwrap(), Index(next));
    assert_eq!(log.append(&[big, vec![0]].concat()).unwrap_err().kind(), ErrorKind::TooLarge);
    let mut reader = log.reader(Start::Index(Index(1500))).unwrap();
    let mut n = 1500;
    while let Some(r) = reader.next_record().unwrap() {
        if n < next {
            assert_eq!((r.index, r.data), (Index(n), &record((n - 1) % 1000)[..]));
        }
        n += 1;
    }
    assert_eq!(n, next + 1);
    assert_eq!(log.read(Index(next)).unwrap().data.len(), 16 << 20);
    assert_eq!(log.reader(Start::Timestamp(Timestamp(0))).unwrap().position(), Index(1));
    assert_eq!(log.reader(Start::Last(3)).unwrap().position(), Index(next - 2));
}

#[test]
fn second_opening_is_refused_until_the_first_closes() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(Log::open(dir.path(), small()).unwrap_err().kind(), ErrorKind::Locked);
    log.close().unwrap();
    assert_eq!(log.append(b"x").unwrap_err().kind(), ErrorKind::Closed);
    Log::open(dir.path(), small()).unwrap();
}

/// A path that cannot hold a log was reported as a directory that does not exist.
#[test]
fn impossible_directory_is_reported_with_its_cause() {
    for error in [Log::open("", small()).unwrap_err(), ReadOnlyLog::open("").unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("is empty"), "{error}");
    }
    let made = Log::open("/proc/nowhere/log", small()).unwrap_err();
    assert_eq!(made.kind(), ErrorKind::Io);
    assert!(made.to_string().starts_with("cannot make directory /proc/nowhere/log: "), "{made}");
    let missing = small().create(false);
    assert_eq!(Log::open("/proc/nowhere/log", missing).unwrap_err().kind(), ErrorKind::NotFound);

    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("a/b/c"), small()).unwrap();
    log.append(b"x").unwrap();
    let again = Log::open(dir.path().join("a/b/c"), small()).unwrap_err();
    assert!(again.to_string().contains("ReadOnlyLog"), "{again}");
    let zero = log.read(Index(0)).unwrap_err();
    assert!(zero.to_string().contains("indexes begin at 1"), "{zero}");
}

#[test]
fn capacity_refuses_cleanly_and_discard_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = small().capacity_bytes(256 << 10);
    let log = Log::open(dir.path(), options).unwrap();
    let mut n = 0;
    let error = loop {
        match log.append(&[1; 1000]) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(n > 200 && log.status().bytes_used <= 256 << 10);
    assert_eq!(log.last_index(), Index(n));
    log.discard(Index(n / 2)).unwrap();
    assert_eq!(log.append(b"again").unwrap(), Index(n + 1));
}

#[test]
fn retention_by_size_keeps_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let options = small().retention_bytes(200 << 10);
    let log = Log::open(dir.path(), options).unwrap();
    for i in 1..=2000 {
        log.append(&record(i)).unwrap();
    }
    // One discard follows another, so the last ones can come after the last append.
    let end = Instant::now() + Duration::from_secs(20);
    while log.status().bytes_used > 200 << 10 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = log.status();
    assert!(status.bytes_used <= 200 << 10 && status.first_index > Index(1000), "{status:?}");
    check(&log, status.first_index.get(), 2000);
}

#[test]
fn read_only_log_follows_a_live_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    log.append(&record(1)).unwrap();
    let read_only = ReadOnlyLog::open(dir.path()).unwrap();
    let mut reader = read_only.reader(Start::First).unwrap();
    let writer = std::thread::spawn({
        let log = log.clone();
        move || {
            for i in 2..=2000 {
                let _unwatched = log.submit(&record(i)).unwrap();
            }
        }
    });
    for i in 1..=2000 {
        assert!(
            reader.wait(Some(Duration::from_secs(20))).unwrap(),
            "{i} {:?} {:?}",
            read_only.status(),
            read_only.failure()
        );
        let r = reader.next_record().unwrap().unwrap();
        assert_eq!((r.index, r.data), (Index(i), &record(i)[..]));
    }
    writer.join().unwrap();
    assert!(read_only.failure().is_none());
    assert_eq!(read_only.last_index(), Index(2000));
}

/// The last handle dropped by a callback runs on the writer thread, which cannot wait for its own end.
#[test]
fn last_handle_may_be_dropped_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let ticket = log.submit(b"x").unwrap();
    ticket.on_complete(move |result| {
        drop(log);
        tx.send(result).unwrap();
    });
    rx.recv().unwrap().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let log = loop {
        match Log::open(dir.path(), small()) {
            Ok(log) => break log,
            Err(e) if e.kind() == ErrorKind::Locked => assert!(std::time::Instant::now() < deadline),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(log.last_index(), Index(1));
}

/// A record that was read keeps the mapping of its segment, also after the log is closed. A second handle on the same
/// directory did not know this: it discarded the segment and wrote the next ones into the same file.
#[test]
fn record_that_was_read_stays_when_a_later_handle_discards_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::with_segment_bytes(64 << 10);
    let log = Log::open(dir.path(), options()).unwrap();
    let held: Vec<_> = (0..200)
        .map(|_| {
            let index = log.append(&[7; 4000]).unwrap();
            log.read(index).unwrap()
        })
        .collect();
    log.close().unwrap();
    drop(log);
    let log = Log::open(dir.path(), options()).unwrap();
    for record in &held {
        log.append(&[9; 4000]).unwrap();
        log.discard(record.index.next()).unwrap();
    }
    log.close().unwrap();
    for record in &held {
        assert!(record.data == [7; 4000][..], "record {}", record.index);
    }
}

/// With retention or discard a log reuses its files: no new file is filled with zeros.
#[test]
fn discarded_files_are_used_again() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let options = small().retention_bytes(256 << 10);
    let log = Log::open(dir.path(), options).unwrap();
    // A file is identified by its number and its creation time: numbers are given again.
    if std::fs::metadata(dir.path()).unwrap().created().is_err() {
        return eprintln!("SKIPPED: this file system does not record when a file was created");
    }
    let files = || -> std::collections::BTreeSet<_> {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap());
        let segments = names.filter(|e| e.file_name().to_string_lossy().ends_with(".seg"));
        segments.map(|e| e.metadata().unwrap()).map(|m| (m.ino(), m.created().ok())).collect()
    };
    let fill = || (0..400).for_each(|_| assert!(log.append(&[5; 4000]).unwrap() > Index(0)));
    fill();
    // Where the log is faster than its discards, new files are made: not for ever.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let before = files();
        fill();
        let common = files().intersection(&before).count();
        if common * 2 > before.len() {
            break;
        }
        let what = "files were used again";
        assert!(std::time::Instant::now() < deadline, "{common} of {} {what}", before.len());
    }
}

/// Retention by age had no room for its discard in a full segment, and retried every millisecond.
#[test]
fn retention_by_age_continues_without_appends() {
    let dir = tempfile::tempdir().unwrap();
    let options = small().retention_age(Duration::from_millis(300));
    let log = Log::open(dir.path(), options).unwrap();
    for i in 1..=300 {
        log.append(&record(i)).unwrap();
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while log.status().segments > 1 {
        assert!(std::time::Instant::now() < deadline, "{:?}", log.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(log.first_index() > Index(1));
}

/// A reader asks for its wake-up again and again while no record arrives; only the last request is kept.
#[test]
fn polling_a_reader_keeps_one_waker() {
    use std::sync::atomic::{AtomicU32, Ordering};
    struct Count(AtomicU32);
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let reader = log.reader(Start::Next).unwrap();
    let count = std::sync::Arc::new(Count(AtomicU32::new(0)));
    let waker = std::task::Waker::from(count.clone());
    for _ in 0..1000 {
        assert!(reader.poll_more(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
    drop(waker);
    assert_eq!(std::sync::Arc::strong_count(&count), 2, "one waker is registered");
    log.append(b"x").unwrap();
    assert!(reader.wait(None).unwrap());
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

#[test]
fn reader_can_be_moved_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    for i in 1..=20 {
        log.append(&record(i)).unwrap();
    }
    let mut reader = log.reader(Start::First).unwrap();
    for i in [5, 20, 1, 21] {
        reader.seek(Index(i)).unwrap();
        assert_eq!(reader.next_record().unwrap().map(|r| r.index), (i <= 20).then_some(Index(i)));
    }
    assert_eq!(reader.seek(Index(22)).unwrap_err().kind(), ErrorKind::OutOfRange);
}

/// A read-only log whose segment was discarded while it did not look was stuck for ever.
#[test]
fn lagging_read_only_log_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    log.append(&record(1)).unwrap();
    let read_only = ReadOnlyLog::open(dir.path()).unwrap();
    let mut n = 1;
    for _ in 0..5 {
        // More than the read-only log can read in one look, and discarded at once.
        for _ in 0..300 {
            n += 1;
            let _unwatched = log.submit(&record(n)).unwrap();
        }
        log.discard(Index(n)).unwrap();
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while read_only.last_index() < Index(n) || read_only.first_index() < Index(n) {
        assert!(std::time::Instant::now() < deadline, "{:?} {:?}", read_only.status(), read_only.failure());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read_only.read(Index(n)).unwrap().data, record(n));
}

/// The files hold the records of clients: every user of the machine could read them.
#[test]
fn files_are_private_unless_the_directory_admits_its_group() {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    let top = tempfile::tempdir().unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let fill = |dir: &std::path::Path| {
        let log = Log::open(dir, small()).unwrap();
        for i in 1..=300 {
            log.append(&record(i)).unwrap();
        }
        log.discard(Index(200)).unwrap();
        log.close().unwrap();
        check(&Log::open(dir, small()).unwrap(), 200, 300);
    };
    let made = top.path().join("above/log");
    fill(&made);
    assert_eq!((mode(&made), mode(made.parent().unwrap())), (0o700, 0o700));
    // The usual mode of a directory determines nothing for its files; a mode for a group and no others does.
    for (directory, file) in [(0o700, 0o600), (0o755, 0o600), (0o777, 0o600), (0o750, 0o640)] {
        let dir = top.path().join(format!("{directory:o}"));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(directory)).unwrap();
        fill(&dir);
        assert_eq!(mode(&dir), directory);
        for dir in [(&dir, file), (&made, 0o600)] {
            let names: Vec<_> = fs::read_dir(dir.0).unwrap().map(|e| e.unwrap().path()).collect();
            assert!(names.len() > 3, "{names:?}");
            names.iter().for_each(|path| assert_eq!(mode(path), dir.1, "{}", path.display()));
        }
    }
}

/// A batch of 130 KiB kept the window of 256 KiB that it was read in, and so did each feed: a server counted half of
/// it.
#[test]
fn body_without_a_mapping_keeps_no_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::with_segment_bytes(4 << 20).read_mode(ReadMode::Read);
    let log = Log::open(dir.path(), options).unwrap();
    for bytes in [100, 130 << 10, 140 << 10, 300 << 10, 10] {
        log.append(&vec![7; bytes]).unwrap();
    }
    let mut reader = log.reader(Start::First).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_stored().unwrap() {
        let is_alone = batch.bytes().is_unique();
        assert!(is_alone || batch.bytes().len() > 256 << 10, "{} bytes", batch.bytes().len());
        batches.push(batch);
    }
    assert_eq!(batches.len(), 5);
    let mut feed = log.follow(FollowFrom::First).unwrap();
    let mut count = 0;
    while let Some(fed) = feed.next(200 << 10).unwrap() {
        let (_, bodies) = fed.encode();
        drop(fed);
        assert!(bodies.iter().all(|body| body.is_unique()));
        count += bodies.len();
        feed.next_bytes().unwrap();
        assert!(bodies.iter().all(|body| body.is_unique()));
    }
    assert!(count >= 5, "{count} bodies");
}

/// A batch of which a record was read is not passed over by a reader that goes on with whole batches.
#[test]
fn whole_batches_follow_single_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    for _ in 0..2 {
        let mut batch = BatchBuilder::new();
        for record in ["a", "b", "c"] {
            batch.push(record.as_bytes()).unwrap();
        }
        log.append(&batch.build().unwrap()).unwrap();
    }
    let mut reader = log.reader(Start::First).unwrap();
    for first in [1, 4] {
        assert_eq!(reader.next_record().unwrap().unwrap().index, Index(first));
        let stored = reader.next_stored().unwrap().unwrap();
        assert_eq!((stored.first(), stored.last()), (Index(first), Index(first + 2)));
    }
    assert!(reader.next_stored().unwrap().is_none());
}
