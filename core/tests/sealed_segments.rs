//! Backups that are made of the files of a log's sealed segments, as a server passes them on.
#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use chiplog::backup::{Backup, RestoreOptions};
use chiplog::internal::Crc;
use chiplog::vault::{ObjectInfo, Vault};
use chiplog::{Error, ErrorKind, Index, Log, LogId, Options, ReadOnlyLog, Start, Timestamp};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, fs};

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
}

impl Passed {
    fn of(log: &Log) -> Self {
        Self { log: log.clone(), discards: (0, Index(0)), has_discarded: AtomicBool::new(false) }
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
        match self.log.sealed_segment(number)? {
            Some(file) => Ok(file.read(range)?.into()),
            None => Err(Error::new(ErrorKind::NotFound, "there is no such segment")),
        }
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        Ok(self.log.sealed_segment(self.number(name))?.map(|file| file.bytes()))
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        let log = folder(self.log.log_id());
        assert_eq!(prefix, format!("{log}/"));
        let sealed = self.log.sealed_segments(0, usize::MAX)?;
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
