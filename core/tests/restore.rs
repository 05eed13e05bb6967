//! Backups, and logs and copies that are restored from them. Everything in a log is restored, an incomplete backup is refused
//! with the name of the file, and no partial result is left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use chiplog::backup::{Backup, RestoreOptions, RestoreTo, Restored};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::disk::sim::SimDisk;
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::{
    BatchBuilder, Error, ErrorKind, FollowerLog, Index, Log, LogOption, NodeId, Options, ReadOnlyLog,
    Sequence, Session, Start, Timestamp,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::explore::{Interrupted, whole_or_none};
use support::{StepClock, Wrong};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

type Records = Vec<(Index, Vec<u8>, Timestamp)>;

/// Small segments, so that a short log rolls; a clock that shows another time at each look.
fn small() -> Options {
    Options::with_segment_bytes(64 << 10).block_bytes_max(4096).clock(Arc::new(StepClock::default()))
}

fn records(log: &Log) -> Records {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index, record.data.to_vec(), record.timestamp));
    }
    records
}

/// Directories of one test: the log, its backup, and the restored logs.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> Log {
        Log::open(self.path("log"), small()).unwrap()
    }

    fn back_up(&self) -> Backup {
        Backup::make(&ReadOnlyLog::open(self.path("log")).unwrap(), self.path("backup"), &mut |_, _| {})
            .unwrap()
    }

    fn restore(&self, name: &str, options: &RestoreOptions) -> Result<Restored, Error> {
        Backup::open(self.path("backup"))?.restore(self.path(name), options, &mut |_, _| {})
    }

    fn restored(&self, name: &str, options: &RestoreOptions) -> (Restored, Log) {
        let restored = self.restore(name, options).unwrap();
        let log = Log::open(self.path(name), small().create(false)).unwrap();
        (restored, log)
    }

    /// The names in the test's directory.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn upto(to: RestoreTo) -> RestoreOptions {
    let mut options = RestoreOptions::default();
    options.to = to;
    options
}

fn as_copy() -> RestoreOptions {
    RestoreOptions::default().as_copy(true)
}

/// Gives a copy what the log has more. Returns the bytes that were fed, none of them as a state.
fn feed(log: &Log, copy: &FollowerLog) -> Result<usize, Error> {
    let (mut feed, mut bytes) = (log.follow(copy.resume_point()?)?, 0);
    while let Some(fed) = feed.next(1 << 20)? {
        assert!(matches!(fed, FollowMessage::Entries(_)));
        bytes += fed.bytes();
        copy.apply(fed)?;
    }
    Ok(bytes)
}

/// Records of all sizes over some segments, single and in batches, with and without a session.
fn live(log: &Log, rounds: u64) -> Session {
    let mut session = log.open_session().unwrap();
    for n in 0..rounds {
        log.append(&vec![b'a' + (n % 26) as u8; (n * 997 % 9000) as usize]).unwrap();
        let mut batch = BatchBuilder::new();
        batch.push(&n.to_le_bytes()).unwrap().push(b"second").unwrap().push(b"").unwrap();
        log.append(&batch.build().unwrap()).unwrap();
        session.append(format!("in a session: {n}").as_bytes()).unwrap();
    }
    session
}

#[test]
fn records_times_sessions_options_and_discards_are_restored() {
    let place = Place::new();
    let log = place.log();
    let session = live(&log, 60);
    log.set_log_options(
        &[(LogOption::SessionsMax, Some(7)), (LogOption::RecordBytesMax, Some(9000))],
        PATIENCE,
    )
    .unwrap();
    log.discard(Index(101)).unwrap();
    let unused = log.open_session().unwrap();
    let (before, info, options) = (records(&log), log.status(), log.log_options());
    assert!(info.segments > 2, "{info:?}");
    log.close().unwrap();

    let backup = place.back_up();
    let told = backup.info();
    assert_eq!((told.log_id, told.first, told.last), (info.log_id, info.first_index, info.last_index));
    assert_eq!(told.last_timestamp, info.last_timestamp);
    backup.check(&mut |_, _| {}).unwrap();
    let (restored, log) = place.restored("again", &RestoreOptions::default());
    assert_ne!(restored.log_id, info.log_id, "two histories of one id must not meet");
    assert_eq!(log.log_id(), restored.log_id);
    assert_ne!(log.directory_id(), info.directory_id);
    assert_eq!((restored.first, restored.last), (info.first_index, info.last_index));
    assert_eq!(records(&log), before);
    assert_eq!(log.log_options(), options);
    assert_eq!(log.read(Index(100)).unwrap_err().kind(), ErrorKind::Discarded);
    assert_eq!(log.status().sessions, 2);

    // A retry of the session's last append returns its index. The next append gets the next index.
    let last = session.next_sequence().get() - 1;
    let again = log.resume_session(session.id(), Sequence(last)).append(b"in a session: 59").unwrap();
    assert_eq!(again, info.last_index);
    assert_eq!(
        log.resume_session(session.id(), Sequence(last + 1)).append(b"new").unwrap(),
        info.last_index.next()
    );
    assert_eq!(
        log.resume_session(unused.id(), Sequence(1)).append(b"first").unwrap(),
        info.last_index.plus(2)
    );
    assert!(log.append(b"later").is_ok());
    assert_eq!(log.append(&[0; 9001]).unwrap_err().kind(), ErrorKind::TooLarge);
    let times: Vec<Timestamp> = records(&log).into_iter().map(|r| r.2).collect();
    assert!(times.is_sorted());
    log.close().unwrap();
    let log = Log::open(place.path("again"), small()).unwrap();
    assert_eq!(log.last_index(), info.last_index.plus(3));
    assert_eq!(records(&log)[..before.len()], before);
}

#[test]
fn log_id_is_kept_on_request() {
    let place = Place::new();
    let log = place.log();
    log.append(b"one").unwrap();
    let id = log.log_id();
    log.close().unwrap();
    place.back_up();
    let mut options = RestoreOptions::default();
    options.keep_log_id = true;
    options.segment_bytes = Some(1 << 20);
    let (restored, log) = place.restored("again", &options);
    assert_eq!((restored.log_id, log.log_id()), (id, id));
    log.close().unwrap();
    let segment = fs::metadata(place.path("again").join(format!("{:020}.seg", 1))).unwrap();
    assert_eq!(segment.len(), 1 << 20);
}

/// A log that was never appended to, and one whose records are all discarded, continue at their positions.
#[test]
fn empty_logs_continue_at_their_positions() {
    for discarded in [false, true] {
        let place = Place::new();
        let log = place.log();
        if discarded {
            live(&log, 5);
            log.discard(Index(500)).unwrap();
        }
        let first = log.first_index();
        log.close().unwrap();
        assert_eq!(place.back_up().info().last, first.previous());
        for to in [RestoreTo::End, RestoreTo::Index(first.previous()), RestoreTo::Timestamp(Timestamp(1))] {
            let name = format!("{to:?}");
            let (_, log) = place.restored(&name, &upto(to));
            assert_eq!((log.first_index(), log.last_index()), (first, first.previous()), "{to:?}");
            assert_eq!(log.append(b"next").unwrap(), first, "{to:?}");
        }
    }
}

/// The writer continues meanwhile: the backup has the log as it was at one moment.
#[test]
fn log_that_is_being_written_is_backed_up_as_of_one_moment() {
    let place = Place::new();
    let log = place.log();
    live(&log, 20);
    let appended = log.last_index();
    let end = Instant::now() + PATIENCE;
    let read_only = ReadOnlyLog::open(place.path("log")).unwrap();
    while read_only.last_index() < appended {
        assert!(Instant::now() < end, "the view lags behind");
        std::thread::sleep(Duration::from_millis(2));
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let backup = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                log.append(&[7; 3000]).unwrap();
            }
        });
        let backup = Backup::make(&read_only, place.path("backup"), &mut |_, _| {});
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        backup.unwrap()
    });
    let last = backup.info().last;
    assert!(last >= appended && last <= log.last_index(), "{last}");
    let (_, again) = place.restored("again", &RestoreOptions::default());
    assert_eq!(records(&again), records(&log)[..last.get() as usize]);
}

#[test]
fn restore_to_any_record_has_the_log_as_it_was_then() {
    let place = Place::new();
    let log = place.log();
    let session = live(&log, 4);
    // With one block of many appends in it.
    let tickets: Vec<_> = (0..30u64).map(|n| log.submit(&n.to_le_bytes()).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
    log.discard(Index(3)).unwrap();
    let all = records(&log);
    let last = log.last_index();
    log.close().unwrap();
    place.back_up();
    // Record 3 is inside the first append of which something is left: nothing before it was asked for.
    let error = place.restore("to3", &upto(RestoreTo::Index(Index(3)))).unwrap_err();
    assert!(error.kind() == ErrorKind::OutOfRange && error.to_string().contains("records 2 to 4"), "{error}");
    for to in (2..=last.get()).filter(|to| *to != 3) {
        let (restored, log) = place.restored(&format!("to{to}"), &upto(RestoreTo::Index(Index(to))));
        // Batches of three are at 2, 7, 12 and 17: a batch is restored whole or not at all.
        let ends = match to {
            2 => 1,
            7 | 8 => 6,
            12 | 13 => 11,
            17 | 18 => 16,
            to => to,
        };
        assert_eq!((restored.last, log.last_index()), (Index(ends), Index(ends)), "to {to}");
        let left_out = (ends < to).then(|| (Index(ends + 1), Index(ends + 3)));
        assert_eq!(restored.left_out, left_out, "to {to}");
        let here = records(&log);
        let kept = here.iter().filter(|r| r.0 >= Index(3)).cloned().collect::<Records>();
        assert_eq!(kept, all.iter().filter(|r| r.0 <= Index(ends)).cloned().collect::<Records>(), "to {to}");
        if to == 5 {
            // The session's first append is there, and no later one.
            let mut then = log.resume_session(session.id(), Sequence(1));
            assert_eq!(then.append(b"in a session: 0").unwrap(), Index(5));
            assert_eq!(then.append(b"another history").unwrap(), Index(6));
        } else {
            assert_eq!(log.append(b"next").unwrap(), Index(ends + 1), "to {to}");
        }
    }
    let refused = |to| place.restore("never", &upto(RestoreTo::Index(Index(to)))).unwrap_err();
    assert_eq!(refused(last.get() + 1).kind(), ErrorKind::OutOfRange);
    assert_eq!(refused(1).kind(), ErrorKind::Discarded);
    assert!(!place.names().iter().any(|name| name.starts_with("never")), "{:?}", place.names());
}

/// A log without records was made, as if that had been asked for.
#[test]
fn restore_into_the_first_append_is_refused() {
    let place = Place::new();
    let log = place.log();
    let mut batch = BatchBuilder::new();
    (0..5u8).for_each(|n| _ = batch.push(&[n]).unwrap());
    log.append(&batch.build().unwrap()).unwrap();
    log.close().unwrap();
    place.back_up();
    let error = place.restore("never", &upto(RestoreTo::Index(Index(3)))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    assert!(error.to_string().contains("an append of records 1 to 5"), "{error}");
    assert!(!place.names().iter().any(|name| name.starts_with("never")), "{:?}", place.names());
    let (whole, _) = place.restored("whole", &upto(RestoreTo::Index(Index(5))));
    assert_eq!((whole.last, whole.left_out), (Index(5), None));
}

#[test]
fn restore_to_a_time_has_the_records_up_to_it() {
    let place = Place::new();
    let log = place.log();
    live(&log, 40);
    let all = records(&log);
    log.close().unwrap();
    place.back_up();
    let mut times: Vec<u64> = all.iter().map(|r| r.2.get()).collect();
    times.dedup();
    assert!(times.len() > 10, "{times:?}");
    for time in times.iter().step_by(3).flat_map(|time| [*time, time + 1]) {
        let (_, log) = place.restored(&format!("at{time}"), &upto(RestoreTo::Timestamp(Timestamp(time))));
        let wanted: Records = all.iter().filter(|r| r.2.get() <= time).cloned().collect();
        assert_eq!(records(&log), wanted, "{time}");
    }
    let early = upto(RestoreTo::Timestamp(Timestamp(times[0] - 1)));
    assert_eq!(place.restore("never", &early).unwrap_err().kind(), ErrorKind::OutOfRange);
    let (_, log) = place.restored("all", &upto(RestoreTo::Timestamp(Timestamp(u64::MAX))));
    assert_eq!(records(&log), all);
}

/// Any fault of a backup is named, and nothing is written.
#[test]
fn incomplete_backup_is_refused_by_name_and_nothing_is_written() {
    let place = Place::new();
    let log = place.log();
    live(&log, 40);
    log.close().unwrap();
    place.back_up();
    let backup = place.path("backup");
    let files: Vec<PathBuf> = fs::read_dir(&backup).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() > 4, "{files:?}");
    let refused = |file: &Path, what: &str| {
        let name = file.file_name().unwrap().to_str().unwrap();
        let error = place.restore("again", &RestoreOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name} {what}: {error}");
        assert!(error.to_string().contains(name), "{name} {what}: {error}");
        let checked = Backup::open(&backup).and_then(|backup| backup.check(&mut |_, _| {}));
        assert_eq!(checked.unwrap_err().kind(), ErrorKind::Corrupt, "{name} {what}");
        assert_eq!(place.names(), ["backup", "log"], "{name} {what}");
    };
    for file in &files {
        let whole = fs::read(file).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 2] {
            let mut bad = whole.clone();
            bad[at] ^= 16;
            fs::write(file, &bad).unwrap();
            refused(file, &format!("byte {at} changed"));
        }
        fs::write(file, &whole[..whole.len() - 1]).unwrap();
        refused(file, "truncated");
        fs::write(file, [&whole[..], b"x"].concat()).unwrap();
        refused(file, "longer");
        fs::remove_file(file).unwrap();
        if file.ends_with("chiplog.backup") {
            let missing = place.restore("again", &RestoreOptions::default()).unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
        } else {
            refused(file, "missing");
        }
        fs::write(file, &whole).unwrap();
    }
    let more = backup.join(format!("{:020}.seg", 99));
    fs::write(&more, b"").unwrap();
    refused(&more, "additional");
    fs::remove_file(&more).unwrap();
    place.restore("again", &RestoreOptions::default()).unwrap();
}

/// An unfinished backup is refused, whatever files it has; and its directory cannot hold another one.
#[test]
fn unfinished_backups_and_used_directories_are_refused() {
    let place = Place::new();
    let log = place.log();
    live(&log, 3);
    log.close().unwrap();
    let kind = |result: Result<Backup, Error>| result.unwrap_err().kind();
    let read_only = ReadOnlyLog::open(place.path("log")).unwrap();
    let make = |name: &str| Backup::make(&read_only, place.path(name), &mut |_, _| {});

    assert_eq!(kind(Backup::open(place.path("none"))), ErrorKind::NotFound);
    assert_eq!(kind(Backup::open(place.path("log"))), ErrorKind::NotFound, "a log is no backup");
    assert_eq!(kind(make("log")), ErrorKind::InvalidArgument);
    assert_eq!(kind(Backup::seal(place.path("log"))), ErrorKind::InvalidArgument);

    Backup::begin(place.path("unfinished")).unwrap();
    let unfinished = Backup::open(place.path("unfinished")).unwrap_err();
    assert_eq!(unfinished.kind(), ErrorKind::NotFound);
    assert!(unfinished.to_string().contains("not finished"), "{unfinished}");
    let again = make("unfinished").unwrap_err();
    assert!(
        again.kind() == ErrorKind::InvalidArgument && again.to_string().contains("interrupted"),
        "{again}"
    );
    assert_eq!(kind(Backup::seal(place.path("unfinished"))), ErrorKind::NotFound, "nothing was copied");

    // A directory that existed before stays: its owner and its path were chosen.
    fs::create_dir(place.path("made")).unwrap();
    for (name, stays) in [("unfinished", false), ("made", true)] {
        if stays {
            Backup::begin(place.path(name)).unwrap();
        }
        Backup::abandon(place.path(name)).unwrap();
        assert_eq!(place.path(name).exists(), stays, "{name}");
    }
    assert_eq!(fs::read_dir(place.path("made")).unwrap().count(), 0);

    make("backup").unwrap();
    let taken = make("backup").unwrap_err();
    assert!(taken.to_string().contains("holds a backup already"), "{taken}");
    // It does not open for appends.
    assert_eq!(Log::open(place.path("backup"), small()).unwrap_err().kind(), ErrorKind::InvalidArgument);

    for (name, is_file) in [("full", false), ("file", true)] {
        if is_file {
            fs::write(place.path(name), b"x").unwrap();
        } else {
            fs::create_dir(place.path(name)).unwrap();
            fs::write(place.path(name).join("x"), b"x").unwrap();
        }
        let refused = place.restore(name, &RestoreOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(place.path(name).exists());
    }
    // The directory beside it is never touched, whatever it holds; an empty directory is accepted.
    fs::create_dir(place.path("empty")).unwrap();
    let (_, beside) = place.restored("empty.restoring", &RestoreOptions::default());
    beside.append(b"confirmed").unwrap();
    beside.close().unwrap();
    std::os::unix::fs::symlink(place.path("empty.restoring"), place.path("link.restoring")).unwrap();
    for name in ["empty", "link"] {
        let refused = place.restore(name, &RestoreOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(".restoring exists"), "{refused}");
    }
    let beside = Log::open(place.path("empty.restoring"), small()).unwrap();
    assert_eq!(beside.last_index(), Index(16));
    beside.close().unwrap();
    fs::rename(place.path("empty.restoring"), place.path("elsewhere")).unwrap();
    let (_, log) = place.restored("empty", &RestoreOptions::default());
    assert_eq!(log.last_index(), Index(15));
    assert!(!place.path("empty.restoring").exists());
}

/// With one record per entry in both histories, and the same elections, their entries have the same indexes. A copy with more than the
/// restored log waited, and showed what this had left out; one whose last entry was discarded here went on with the new history.
#[test]
fn copy_of_the_old_history_refuses_a_restored_log_with_the_same_id() {
    let place = Place::new();
    let log = place.log();
    log.append(b"in both").unwrap();
    log.close().unwrap();
    place.back_up();
    let go_on = |log: &Log, word: &str| {
        for n in 0..5 {
            log.append(format!("{word} {n}").as_bytes()).unwrap();
        }
    };
    // Elections after the backup: the copy's terms are ahead of it.
    for _ in 0..3 {
        place.log().close().unwrap();
    }
    let log = place.log();
    go_on(&log, "lost");
    let mut feed = log.follow(FollowFrom::First).unwrap();
    let Some(FollowMessage::State(state)) = feed.next(1 << 20).unwrap() else { panic!("no state") };
    let copy = FollowerLog::create(place.path("copy"), small(), &state).unwrap();
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        copy.apply(fed).unwrap();
    }
    log.close().unwrap();

    let mut options = RestoreOptions::default();
    options.keep_log_id = true;
    let (_, log) = place.restored("again", &options);
    let refused = || {
        let fed = log.follow(copy.resume_point().unwrap()).and_then(|mut feed| feed.next(1 << 20));
        let error = fed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Diverged, "{error}");
        error.to_string()
    };
    assert!(refused().contains("restored with its old id"), "it is shorter than the copy");
    (0..2).for_each(|_| go_on(&log, "new"));
    assert!(refused().contains("another history"));
    while log.first_index() <= Index(100) {
        log.append(&[b'n'; 4000]).unwrap();
        log.discard(log.last_index()).unwrap();
    }
    assert!(refused().contains("restored with its old id"), "its entry is gone here");
}

/// The power is cut, or a call fails, at every point of a restore: afterwards there is the whole log, or none.
#[test]
fn power_cut_at_every_call_of_a_restore_leaves_the_whole_log_or_none() {
    let place = Place::new();
    let log = place.log();
    live(&log, 120);
    let all = records(&log);
    log.close().unwrap();
    let backup = place.back_up();
    let restore = |disk: &SimDisk| backup.restore_on(Arc::new(disk.clone()), &RestoreOptions::default());
    let open = |disk: &SimDisk| {
        let options = small().read_mode(chiplog::ReadMode::Read).create(false);
        Log::open_on(Arc::new(disk.clone()), options)
    };
    let judge = |disk: &SimDisk, complete: bool| match open(disk) {
        Ok(log) if records(&log) == all => {
            let next = log.append(b"next").map_err(|e| Wrong(format!("the log accepts no append: {e}")))?;
            let follows = next == all.last().unwrap().0.next();
            if follows { Ok(true) } else { Err(Wrong(format!("the next record is {next}"))) }
        }
        Ok(log) => Err(Wrong(format!("a part of the log opens: {:?}", log.status()))),
        Err(error) if complete => Err(Wrong(format!("the log was restored but does not open: {error}"))),
        Err(_) => Ok(false),
    };
    let Interrupted { points, none, failures } = whole_or_none("restore", 8, restore, judge);
    assert!(none > points, "both outcomes occur");
    assert!(failures > 10, "{failures}");
}

#[test]
fn copy_that_is_restored_goes_on_with_the_log() {
    let place = Place::new();
    let log = place.log();
    let session = live(&log, 60);
    log.discard(Index(31)).unwrap();
    log.close().unwrap();
    let info = place.back_up().info();
    let log = place.log();
    let more = log.append(b"later").unwrap();
    log.discard(Index(100)).unwrap();

    for wrong in [as_copy().to(RestoreTo::Index(Index(50))), as_copy().keep_log_id(true)] {
        assert_eq!(place.restore("copy", &wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let restored = place.restore("copy", &as_copy()).unwrap();
    assert_eq!((restored.log_id, restored.first, restored.last), (info.log_id, info.first, info.last));
    assert_eq!(Log::open(place.path("copy"), small()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let copy = FollowerLog::open(place.path("copy"), small()).unwrap();
    assert_ne!(copy.log().directory_id(), log.directory_id());
    assert_eq!((copy.log().first_index(), copy.log().last_index()), (Index(31), more.previous()));
    // Another log gives it nothing.
    let other = Log::open(place.path("other"), small()).unwrap();
    assert_eq!(feed(&other, &copy).unwrap_err().kind(), ErrorKind::Diverged);
    // Its own log feeds the rest alone, and what it discarded goes.
    let fed = feed(&log, &copy).unwrap();
    assert!(fed < 1000, "{fed}");
    let found = copy.log().status();
    assert_eq!((found.first_index, found.last_index), (Index(100), more));
    assert_eq!(records(copy.log()), records(&log));
    assert_eq!(found.sessions, log.status().sessions);
    drop(session);
    copy.close().unwrap();
    let again = FollowerLog::open(place.path("copy"), small()).unwrap();
    assert_eq!((feed(&log, &again).unwrap(), records(again.log())), (0, records(&log)));
}

/// A log that was restored with its id continues in another history than a later backup of the lost one.
#[test]
fn copy_of_a_lost_history_is_refused() {
    let place = Place::new();
    let log = place.log();
    log.append(b"in both").unwrap();
    log.close().unwrap();
    place.back_up();
    let (_, again) = place.restored("again", &RestoreOptions::default().keep_log_id(true));
    let log = place.log();
    for n in 0..5u8 {
        log.append(&[n]).unwrap();
        again.append(&[n, n]).unwrap();
    }
    again.append(b"further").unwrap();
    log.close().unwrap();
    fs::remove_dir_all(place.path("backup")).unwrap();
    place.back_up();
    place.restore("copy", &as_copy()).unwrap();
    let copy = FollowerLog::open(place.path("copy"), small()).unwrap();
    assert_eq!(feed(&again, &copy).unwrap_err().kind(), ErrorKind::Diverged);
    assert_eq!(copy.log().last_index(), Index(6));
}

/// The power is cut, or a call fails, at every point: afterwards there is no copy, or a part of it, and the log's feed completes it.
#[test]
fn power_cut_at_every_call_of_a_copys_restore_leaves_what_goes_on() {
    let place = Place::new();
    let log = place.log();
    live(&log, 120);
    let all = records(&log);
    log.close().unwrap();
    let backup = place.back_up();
    let log = place.log();
    let restore = |disk: &SimDisk| backup.restore_on(Arc::new(disk.clone()), &as_copy());
    let judge = |disk: &SimDisk, complete: bool| {
        let options = small().read_mode(chiplog::ReadMode::Read);
        let copy = match FollowerLog::open_on(Arc::new(disk.clone()), options) {
            Ok(copy) => copy,
            Err(error) if complete => {
                return Err(Wrong(format!("the copy is complete and does not open: {error}")));
            }
            Err(_) => return Ok(false),
        };
        let found = records(copy.log());
        if !all.starts_with(&found) || (complete && found != all) {
            return Err(Wrong(format!("it is no part of the log: {:?}", copy.log().status())));
        }
        feed(&log, &copy).map_err(|e| Wrong(format!("the log does not feed it: {e}")))?;
        if records(copy.log()) == all { Ok(found == all) } else { Err(Wrong("records are missing".into())) }
    };
    let Interrupted { none, failures, .. } = whole_or_none("restore of a copy", 8, restore, judge);
    assert!(none > 10 && failures > 10, "{none} {failures}");
}

/// The members of a cluster are not in a restored log: it is node 1's alone, and other members can join it.
#[test]
fn restored_log_of_a_cluster_is_standalone_and_others_can_join() {
    let place = Place::new();
    let network = MemoryNetwork::new();
    let options = |node, bootstrap, network: &MemoryNetwork| {
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
        cluster.heartbeat = Duration::from_millis(20);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        small().cluster(cluster)
    };
    let join = |leader: &Log, node, dir: &str, network: &MemoryNetwork| {
        let bootstrap = Bootstrap::Join(leader.log_id());
        let log = Log::open(place.path(dir), options(node, bootstrap, network)).unwrap();
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: String::new() };
        leader.change_members(&[add], PATIENCE).unwrap();
        leader.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
        log
    };
    let leads = |log: &Log| {
        let end = Instant::now() + PATIENCE;
        while log.role() != Role::Leader {
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let old = Log::open(place.path("log"), options(3, Bootstrap::Init, &network)).unwrap();
    leads(&old);
    let second = join(&old, 4, "log4", &network);
    live(&old, 20);
    let all = records(&old);
    let members = old.status().replica.members;
    assert_eq!(members.len(), 2);
    old.close().unwrap();
    second.close().unwrap();
    let backup = place.back_up();
    assert_eq!(backup.info().last, all.last().unwrap().0);

    let (restored, alone) = place.restored("new", &RestoreOptions::default());
    assert_eq!(records(&alone), all);
    let nodes = |log: &Log| log.status().replica.members.iter().map(|member| member.node).collect::<Vec<_>>();
    assert_eq!(nodes(&alone), [NodeId(1)]);
    alone.append(b"on its own").unwrap();
    alone.close().unwrap();

    let network = MemoryNetwork::new();
    let first = Log::open(place.path("new"), options(1, Bootstrap::Existing, &network)).unwrap();
    leads(&first);
    assert_eq!(first.log_id(), restored.log_id);
    let joined = join(&first, 2, "new2", &network);
    let last = first.append(b"as a cluster").unwrap();
    joined.wait_for(last, PATIENCE).unwrap();
    assert_eq!(records(&joined), records(&first));
    assert_eq!(records(&first)[..all.len()], all);
    assert_eq!(nodes(&joined), [NodeId(1), NodeId(2)]);
}

/// A session remembers as much as before, whatever the limits of the program that makes the backup, and whether the
/// limits are set in the log or not.
#[test]
fn restored_sessions_remember_everything() {
    for in_the_log in [false, true] {
        let place = Place::new();
        let own = match in_the_log {
            false => small().sessions_max(2).session_window(200),
            true => small(),
        };
        let log = Log::open(place.path("log"), own.clone()).unwrap();
        if in_the_log {
            let changes = [(LogOption::SessionsMax, Some(2)), (LogOption::SessionWindow, Some(200))];
            log.set_log_options(&changes, PATIENCE).unwrap();
        }
        let options = log.log_options();
        let id = log.open_session().unwrap().id();
        // The client has no answer for any of the earlier appends: all of them are remembered.
        let append = |log: &Log, n: u64| {
            let mut batch = BatchBuilder::new();
            batch.session(id, Sequence(n + 1), 199).push(&n.to_le_bytes()).unwrap();
            log.append(&batch.build().unwrap()).map(|appended| appended.first)
        };
        let places: Vec<Index> = (0..200).map(|n| append(&log, n).unwrap()).collect();
        for _ in 0..20 {
            log.append(&[0; 6000]).unwrap();
        }
        log.discard(log.last_index()).unwrap();
        log.close().unwrap();
        place.back_up();
        place.restore("again", &RestoreOptions::default()).unwrap();
        let log = Log::open(place.path("again"), own).unwrap();
        assert_eq!(log.log_options(), options);
        for (n, index) in places.iter().enumerate() {
            assert_eq!(append(&log, n as u64).unwrap(), *index);
        }
    }
}
