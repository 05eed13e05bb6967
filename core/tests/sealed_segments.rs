//! Backups and copies that are made of the files of a log's sealed segments, as a server passes them on.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use bytes::Bytes;
use chiplog::backup::{Backup, RestoreOptions};
use chiplog::disk::Disk;
use chiplog::disk::sim::SimDisk;
use chiplog::follower::FollowMessage;
use chiplog::internal::Crc;
use chiplog::vault::{ObjectInfo, Vault};
use chiplog::{
    Error, ErrorKind, FollowerLog, Index, Log, LogId, Options, ReadMode, ReadOnlyLog, Start, Timestamp,
};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, fs};
use support::Wrong;
use support::explore::{Interrupted, whole_or_none};

type Records = Vec<(Index, Vec<u8>, Timestamp)>;

fn options() -> Options {
    Options::with_segment_bytes(64 << 10).block_bytes_max(4096)
}

fn append(log: &Log, count: u64) {
    let first = log.last_index().get() + 1;
    let records = (first..first + count).map(|n| format!("record {n} {}", "x".repeat(300 + n as usize % 70)));
    let tickets: Vec<_> = records.map(|record| log.submit(record.as_bytes()).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
}

fn records(log: &Log) -> Records {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index, record.data.to_vec(), record.timestamp));
    }
    records
}

/// Files are removed a moment after their records are discarded.
fn wait_until_gone(log: &Log, number: u64) {
    let begun = Instant::now();
    while log.sealed_segment(number).unwrap().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the file stays");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sealed segments of a log as files in a store, as a server passes them on.
struct Passed {
    log: Log,
    /// The first read of a segment with this number discards all before this record.
    discards: (u64, Index),
    has_discarded: AtomicBool,
    /// How many bytes it has passed on, and after how many it is away.
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    /// How many segments are sealed.
    segments: usize,
}

impl Passed {
    fn of(log: &Log) -> Self {
        let (discards, has_discarded) = ((0, Index(0)), AtomicBool::new(false));
        let (bytes, bytes_max) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Self { log: log.clone(), discards, has_discarded, bytes, bytes_max, segments: usize::MAX }
    }

    fn refused<T>() -> chiplog::Result<T> {
        Err(Error::new(ErrorKind::PermissionDenied, "it is written by the log alone"))
    }

    fn number(&self, name: &str) -> u64 {
        let (log, file) = name.split_once('/').unwrap();
        assert_eq!(log, folder(self.log.log_id()));
        file.strip_suffix(".seg").unwrap().parse().unwrap()
    }
}

fn folder(log: LogId) -> String {
    format!("{:032x}", log.get())
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed").finish_non_exhaustive()
    }
}

impl Vault for Passed {
    fn put(&self, _: &str, _: &[Bytes]) -> chiplog::Result<()> {
        Self::refused()
    }

    fn create(&self, _: &str, _: Bytes) -> chiplog::Result<bool> {
        Self::refused()
    }

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        let number = self.number(name);
        let (at, first) = self.discards;
        if number == at && !self.has_discarded.swap(true, Ordering::SeqCst) {
            self.log.discard(first)?;
            wait_until_gone(&self.log, number);
        }
        if self.bytes.load(Ordering::SeqCst) >= self.bytes_max.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the server is away"));
        }
        match self.log.sealed_segment(number)? {
            Some(file) => {
                let read = file.read(range)?;
                self.bytes.fetch_add(read.len() as u64, Ordering::SeqCst);
                Ok(read.into())
            }
            None => Err(Error::new(ErrorKind::NotFound, "there is no such segment")),
        }
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        Ok(self.log.sealed_segment(self.number(name))?.map(|file| file.bytes()))
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        let log = folder(self.log.log_id());
        assert_eq!(prefix, format!("{log}/"));
        let sealed = self.log.sealed_segments(0, self.segments)?;
        Ok(sealed.iter().map(|s| ObjectInfo::new(format!("{log}/{:020}.seg", s.number), s.bytes)).collect())
    }

    fn delete(&self, _: &str) -> chiplog::Result<()> {
        Self::refused()
    }
}

fn fetch(passed: &Passed, dest: &Path) -> chiplog::Result<Backup> {
    Backup::fetch_segments(passed, passed.log.log_id(), dest, &mut |done, total| assert!(done <= total))
}

/// Everything in a backup is what the log has up to its last record, and a log is made of it.
fn check(backup: &Backup, log: &Log, dir: &Path) -> Records {
    backup.check(&mut |_, _| {}).unwrap();
    let info = backup.info();
    assert_eq!(info.log_id, log.log_id());
    let again = Backup::open(backup.path()).unwrap();
    assert_eq!(again.info(), info);
    let shown = ReadOnlyLog::open(backup.path()).unwrap();
    assert_eq!((shown.first_index(), shown.last_index()), (info.first, info.last));
    let restored = dir.join("restored");
    again.restore(&restored, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let restored = Log::open(&restored, options()).unwrap();
    let (found, all) = (records(&restored), records(log));
    let wanted: Records =
        all.into_iter().filter(|(index, ..)| (info.first..=info.last).contains(index)).collect();
    assert_eq!(found, wanted);
    found
}

#[test]
fn backup_of_sealed_segments_has_all_their_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    let none = fetch(&Passed::of(&log), &dir.path().join("none")).unwrap_err();
    assert!(none.kind() == ErrorKind::NotFound && !dir.path().join("none").exists(), "{none}");
    let mut session = log.open_session().unwrap();
    append(&log, 1000);
    session.append(b"once").unwrap();
    append(&log, 200);
    let sealed = log.sealed_segments(0, usize::MAX).unwrap();
    assert!(sealed.len() >= 4, "{sealed:?}");
    assert!(
        sealed
            .windows(2)
            .all(|pair| pair[0].last_entry.next() == pair[1].first_entry && pair[0].next == pair[1].first)
    );
    assert_eq!(log.sealed_segments(sealed[1].number, 2).unwrap(), sealed[1..3]);
    // Appends go on meanwhile.
    let (ends, appending) = (AtomicBool::new(false), log.clone());
    let backup = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                append(&appending, 10)
            }
        });
        let backup = fetch(&Passed::of(&log), &dir.path().join("backup"));
        ends.store(true, Ordering::SeqCst);
        backup.unwrap()
    });
    assert!(backup.info().first == Index(1) && backup.info().last >= sealed.last().unwrap().next.previous());
    assert!(!backup.ends_early() && backup.notes()[0].contains("sealed segments"), "{:?}", backup.notes());
    assert!(check(&backup, &log, dir.path()).iter().any(|(_, data, _)| data == b"once"));
    let full = fetch(&Passed::of(&log), &dir.path().join("backup")).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::InvalidArgument, "{full}");
    // The same files, once the log was opened again.
    let sums = |log: &Log| -> Vec<u32> {
        sealed.iter().map(|s| log.sealed_segment(s.number).unwrap().unwrap().sum().unwrap()).collect()
    };
    let before = sums(&log);
    drop((session, appending));
    log.close().unwrap();
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    assert_eq!(sums(&log), before);
    fs::remove_dir_all(dir.path().join("restored")).unwrap();
    check(&fetch(&Passed::of(&log), &dir.path().join("later")).unwrap(), &log, dir.path());
}

/// The entries about the discard are in the segment that is still written: the files do not have them.
#[test]
fn backup_begins_with_the_oldest_file_that_is_left() {
    for during in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path().join("log"), options()).unwrap();
        append(&log, 1200);
        let sealed = log.sealed_segments(0, usize::MAX).unwrap();
        let third = &sealed[2];
        let first = Index(third.first.get() + 5);
        let mut passed = Passed::of(&log);
        if during {
            passed.discards = (sealed[0].number, first);
        } else {
            log.discard(first).unwrap();
            wait_until_gone(&log, sealed[1].number);
        }
        let backup = fetch(&passed, &dir.path().join("backup")).unwrap();
        assert_eq!(backup.info().first, third.first);
        assert!(backup.info().last >= sealed.last().unwrap().next.previous());
        let shown = ReadOnlyLog::open(backup.path()).unwrap();
        let mut reader = shown.reader(Start::First).unwrap();
        assert_eq!(reader.next_record().unwrap().unwrap().index, third.first);
        append(&log, 1);
        backup.restore(dir.path().join("restored"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
        let restored = records(&Log::open(dir.path().join("restored"), options()).unwrap());
        let kept: Records = restored.into_iter().filter(|(index, ..)| *index >= first).collect();
        let wanted: Records =
            records(&log).into_iter().filter(|(index, ..)| *index <= backup.info().last).collect();
        assert_eq!(kept, wanted, "during: {during}");
    }
}

/// The discarded records of a file that is left were back.
#[test]
fn backup_begins_where_its_newest_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    append(&log, 1200);
    let third = log.sealed_segments(0, usize::MAX).unwrap()[2].clone();
    let first = Index(third.first.get() + 5);
    log.discard(first).unwrap();
    append(&log, 600);
    let newest = log.sealed_segments(0, usize::MAX).unwrap().last().unwrap().clone();
    assert!(newest.first > Index(1200), "it began behind the discard: {newest:?}");
    let backup = fetch(&Passed::of(&log), &dir.path().join("backup")).unwrap();
    assert_eq!((backup.info().first, log.first_index()), (first, first));
    check(&backup, &log, dir.path());
}

#[test]
fn damage_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    append(&log, 1000);
    let number = log.sealed_segments(0, 2).unwrap()[1].number;
    let name = format!("{number:020}.seg");
    let path = dir.path().join("log").join(&name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20_000] ^= 1;
    // In place: the log has the file open.
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
    let error = fetch(&Passed::of(&log), &dir.path().join("backup")).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(&name), "{error}");
    assert!(!dir.path().join("backup").exists());
}

fn fetch_copy(passed: &Passed, dest: &Path) -> chiplog::Result<()> {
    Backup::fetch_copy(passed, passed.log.log_id(), dest, &mut |done, total| assert!(done <= total))
}

/// Gives a copy what the log has more, none of it as a state. Returns the bytes that were fed.
fn feed(log: &Log, copy: &FollowerLog) -> chiplog::Result<usize> {
    let (mut feed, mut bytes) = (log.follow(copy.resume_point()?)?, 0);
    while let Some(fed) = feed.next(1 << 20)? {
        assert!(matches!(fed, FollowMessage::Entries(_)));
        bytes += fed.bytes();
        copy.apply(fed)?;
    }
    Ok(bytes)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|all| all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// A copy of the sealed segments has their records, and is fed the others alone.
#[test]
fn copy_of_sealed_segments_goes_on_with_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("copy");
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    let none = fetch_copy(&Passed::of(&log), &dest).unwrap_err();
    assert!(none.kind() == ErrorKind::NotFound && names(&dest).is_empty(), "{none}");
    let mut session = log.open_session().unwrap();
    append(&log, 600);
    log.discard(Index(200)).unwrap();
    append(&log, 600);
    session.append(b"once").unwrap();
    append(&log, 200);
    let (ends, appending) = (AtomicBool::new(false), log.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                append(&appending, 10)
            }
        });
        let fetched = fetch_copy(&Passed::of(&log), &dest);
        ends.store(true, Ordering::SeqCst);
        fetched.unwrap();
    });
    assert!(!Backup::is_unfinished_copy(&dest));
    let copy = FollowerLog::open(&dest, options()).unwrap();
    let (first, last) = copy.log().range().into_inner();
    assert!(first == Index(200) && last >= Index(1200), "{first} {last}");
    let all: Records = records(&log).into_iter().filter(|(index, ..)| *index <= last).collect();
    assert_eq!(records(copy.log()), all);
    append(&log, 100);
    log.discard(Index(1000)).unwrap();
    let fed = feed(&log, &copy).unwrap() as u64;
    let more = log.last_index().get() - last.get();
    assert!(fed <= more * 450 + 4096, "{fed} bytes for {more} records");
    assert_eq!((copy.log().first_index(), records(copy.log())), (Index(1000), records(&log)));
    assert_eq!(copy.log().status().sessions, 1);
    // Where there is a log, none is made.
    copy.close().unwrap();
    for taken in [dest, dir.path().join("log")] {
        let refused = fetch_copy(&Passed::of(&log), &taken).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(!Backup::is_unfinished_copy(&taken) && Backup::abandon_copy(&taken).is_err());
        assert!(names(&taken).len() > 2);
    }
}

/// The server goes away meanwhile: the next attempt fetches what is missing. If the log was opened from another server's files, or its
/// files were discarded, these are fetched, and the others go.
#[test]
fn copy_that_was_interrupted_keeps_the_files_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("copy");
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    append(&log, 1600);
    let sealed = log.sealed_segments(0, usize::MAX).unwrap();
    let total: u64 = sealed.iter().map(|segment| segment.bytes).sum();
    let passed = Passed::of(&log);
    passed.bytes_max.store(total / 2, Ordering::SeqCst);
    assert_eq!(fetch_copy(&passed, &dest).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(Backup::is_unfinished_copy(&dest));
    assert!(FollowerLog::open(&dest, options()).is_err(), "there is no copy yet");
    let here = names(&dest).iter().filter(|name| name.ends_with(".seg")).count() as u64;
    assert!(here >= 2, "{here}");
    // One of them was changed here, and one is not of this log.
    fs::copy(dest.join(&names(&dest)[1]), dest.join(format!("{:020}.seg", 4711))).unwrap();
    passed.bytes_max.store(u64::MAX, Ordering::SeqCst);
    let before = passed.bytes.load(Ordering::SeqCst);
    let first = Index(sealed[1].first.get() + 3);
    log.discard(first).unwrap();
    wait_until_gone(&log, sealed[0].number);
    fetch_copy(&passed, &dest).unwrap();
    let fetched = passed.bytes.load(Ordering::SeqCst) - before;
    assert!(
        fetched <= total - here * sealed[0].bytes + 4096 * here,
        "{fetched} of {total}, {here} were here"
    );
    assert!(!dest.join(format!("{:020}.seg", 4711)).exists());
    let copy = FollowerLog::open(&dest, options()).unwrap();
    assert_eq!(copy.log().first_index(), sealed[1].first);
    append(&log, 10);
    feed(&log, &copy).unwrap();
    assert_eq!(records(copy.log()), records(&log));
    copy.close().unwrap();

    // Files of the same numbers of another replica, which has other blocks in them, or of another log.
    let other = Log::open(dir.path().join("other"), options()).unwrap();
    append(&other, 1600);
    let half = dir.path().join("half");
    let theirs = Passed::of(&other);
    theirs.bytes_max.store(total / 2, Ordering::SeqCst);
    assert_eq!(fetch_copy(&theirs, &half).unwrap_err().kind(), ErrorKind::Unavailable);
    fetch_copy(&passed, &half).unwrap();
    let copy = FollowerLog::open(&half, options()).unwrap();
    feed(&log, &copy).unwrap();
    assert_eq!((copy.log().log_id(), records(copy.log())), (log.log_id(), records(&log)));

    // It can be given up.
    let given_up = dir.path().join("given up");
    assert_eq!(fetch_copy(&theirs, &given_up).unwrap_err().kind(), ErrorKind::Unavailable);
    Backup::abandon_copy(&given_up).unwrap();
    assert!(names(&given_up).is_empty());
}

/// Damage at the server, and a log without any sealed segment left, leave an empty directory.
#[test]
fn copy_of_a_damaged_file_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, log) = (dir.path().join("copy"), Log::open(dir.path().join("log"), options()).unwrap());
    append(&log, 1000);
    let number = log.sealed_segments(0, 2).unwrap()[1].number;
    let path = dir.path().join("log").join(format!("{number:020}.seg"));
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 20_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 20_000).unwrap();
    assert_eq!(fetch_copy(&Passed::of(&log), &dest).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(names(&dest).is_empty());
}

/// The power is cut, or a call fails, at every point: afterwards the copy is finished, or the next attempt makes it, also if the log has
/// sealed more meanwhile.
#[test]
fn power_cut_at_every_call_leaves_a_copy_or_one_that_is_finished_later() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    append(&log, 300);
    log.discard(Index(20)).unwrap();
    append(&log, 500);
    let (early, later) = (Passed { segments: 3, ..Passed::of(&log) }, Passed::of(&log));
    assert!(log.sealed_segments(0, 9).unwrap().len() > 3);
    let fetch = |passed: &Passed, disk: &SimDisk| {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        Backup::fetch_copy_on(passed, log.log_id(), &disk, &mut |_, _| {})
    };
    let judge = |disk: &SimDisk, complete: bool| {
        let wrong = |what: &str, e: Error| Wrong(format!("{what}: {e}"));
        let names = disk.list().unwrap();
        let is_unfinished = names.iter().any(|name| name == "chiplog.copy.tmp");
        let is_whole = !is_unfinished && !names.is_empty();
        if !is_whole {
            if complete {
                return Err(Wrong("the copy is not finished".into()));
            }
            // Each of them at about half of the points.
            let passed = if names.len().is_multiple_of(2) { &early } else { &later };
            fetch(passed, disk).map_err(|e| wrong("the next attempt fails", e))?;
        }
        let options = options().read_mode(ReadMode::Read);
        let copy = FollowerLog::open_on(Arc::new(disk.clone()), options);
        let copy = copy.map_err(|e| wrong("the copy does not open", e))?;
        feed(&log, &copy).map_err(|e| wrong("the log does not feed it", e))?;
        match records(copy.log()) == records(&log) {
            true => Ok(is_whole),
            false => Err(Wrong(format!("records are missing: {:?}", copy.log().status()))),
        }
    };
    let Interrupted { none, failures, .. } =
        whole_or_none("copy of segments", 6, |disk| fetch(&early, disk), judge);
    assert!(none > 10 && failures > 10, "{none} {failures}");
}

/// The checksum of a file is computed in steps, by whichever handle goes on: it is that of all bytes at once. Damage where a step looks for
/// its end is reported.
#[test]
fn checksum_in_steps_is_that_of_all_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(12 << 20)).unwrap();
    for n in 0..30u8 {
        log.append(&vec![n; 900_000]).unwrap();
    }
    let sealed = log.sealed_segments(0, usize::MAX).unwrap();
    let file = || log.sealed_segment(sealed[0].number).unwrap().unwrap();
    let whole = file().read(0..u64::MAX).unwrap();
    let mut steps = 1;
    let sum = loop {
        if let Some(sum) = file().sum_next().unwrap() {
            break sum;
        }
        assert_eq!(file().known_sum(), None);
        steps += 1;
    };
    assert!(steps >= 3, "{steps}");
    assert_eq!((sum, file().known_sum()), (Crc::default().add(&whole).sum(), Some(sum)));
    // The headers of the blocks before the end of the first step.
    let path = dir.path().join(format!("{:020}.seg", sealed[1].number));
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    for at in ((3u64 << 20)..(4 << 20)).step_by(16) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    let damaged = log.sealed_segment(sealed[1].number).unwrap().unwrap().sum_next().unwrap_err();
    assert_eq!((damaged.kind(), log.metrics().damaged), (ErrorKind::Corrupt, 1), "{damaged}");
}
