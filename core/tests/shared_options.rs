//! Options of single named logs: how long their records are kept, how many bytes, and how fast they may be appended to.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{
    Batch, BatchBuilder, Clock, ErrorKind, Index, Log, LogOption, LogOptions, Logs, LogsOptions, Options,
    Session, Start, Timestamp,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u32 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// Of records whose retention is tested.
const RECORD_BYTES: usize = 10_000;

fn options() -> Options {
    Options::with_segment_bytes(SEGMENT_BYTES).sessions_max(16)
}

/// All logs in one group.
fn open(dir: &Path, options: Options) -> Logs {
    Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap()
}

fn set(log: &Log, option: LogOption, value: u64) {
    log.set_log_options(&[(option, Some(value))], PATIENCE).unwrap();
}

fn fill(log: &Log, records: usize) {
    for _ in 0..records {
        log.append(&[7; RECORD_BYTES]).unwrap();
    }
}

/// Waits until that is so; retention goes in steps of the writer.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn options_of_a_log_survive_restarts_and_rolls_and_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let (one, other) = (logs.create("one").unwrap(), logs.create("other").unwrap());
    let changes =
        [(LogOption::RetentionAge, Some(60_000)), (LogOption::AppendBytesPerSecond, Some(u64::MAX - 1))];
    one.set_log_options(&changes, PATIENCE).unwrap();
    let mut wanted = LogOptions::default();
    changes.iter().for_each(|(option, value)| wanted.set(*option, *value));
    assert_eq!((one.log_options(), other.log_options()), (wanted, LogOptions::default()));
    fill(&other, 60); // three segments: the openings have the options
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    let one = logs.get("one").unwrap();
    assert_eq!(one.log_options(), wanted);
    one.set_log_options(&[(LogOption::RetentionAge, None)], PATIENCE).unwrap();
    wanted.set(LogOption::RetentionAge, None);
    assert_eq!(one.log_options(), wanted, "the other option stays");
    logs.delete("one").unwrap();
    let gone = one.set_log_options(&changes, PATIENCE).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    assert_eq!(logs.create("one").unwrap().log_options(), LogOptions::default());
}

#[test]
fn retention_bytes_keeps_the_newest_bytes_of_one_log_and_touches_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let names = ["kept", "limited", "quiet"];
    let [kept, limited, quiet] = names.map(|name| logs.create(name).unwrap());
    let most = 300_000u64;
    set(&limited, LogOption::RetentionBytes, most);
    set(&quiet, LogOption::RetentionBytes, most);
    fill(&quiet, 5);
    for _ in 0..100 {
        fill(&limited, 1);
        fill(&kept, 1);
    }
    let held = |log: &Log| (log.last_index().get() + 1 - log.first_index().get()) * RECORD_BYTES as u64;
    // A segment has half of its bytes of each log: with what the newest ones hold it is less than twice the limit.
    wait_until("the limited log keeps too much", || held(&limited) < 2 * most);
    assert!(held(&limited) >= most, "{} bytes are kept", held(&limited));
    assert_eq!((kept.first_index(), quiet.first_index()), (Index(1), Index(1)));
    let mut reader = limited.reader(Start::First).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        assert_eq!(record.data.len(), RECORD_BYTES);
    }
    // Records of the other logs keep the files. Without them, the files go.
    let before = logs.groups()[&1].status().segments;
    kept.discard(Index(100)).unwrap();
    quiet.discard(Index(6)).unwrap();
    wait_until("files stay", || {
        fill(&limited, 1);
        logs.groups()[&1].status().segments < before
    });
}

/// A clock that the test moves.
#[derive(Debug)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn retention_age_discards_segment_by_segment() {
    let hand = Arc::new(Hand(AtomicU64::new(1_000_000)));
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options().clock(hand.clone()));
    let (short, long) = (logs.create("short").unwrap(), logs.create("long").unwrap());
    set(&short, LogOption::RetentionAge, 300);
    set(&long, LogOption::RetentionAge, 86_400_000);
    fill(&short, 30);
    fill(&long, 30);
    let old = short.last_index();
    // The log's time does not jump: it goes on with the monotonic clock.
    std::thread::sleep(Duration::from_millis(400));
    hand.0.fetch_add(400, Ordering::Relaxed);
    wait_until("old records stay in an idle group", || short.first_index() > Index(10));
    fill(&short, 30);
    wait_until("old records stay", || short.first_index() > old);
    assert_eq!(long.first_index(), Index(1));
    assert!(short.last_index() >= Index(60));
}

#[test]
fn append_beyond_the_rate_waits_or_is_refused_and_other_logs_are_not_slower() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options().queue_timeout(Duration::from_millis(50)));
    let (slow, fast) = (logs.create("slow").unwrap(), logs.create_beside("fast", "slow").unwrap());
    set(&slow, LogOption::AppendBytesPerSecond, 1000);
    slow.append(&[0; 200_000]).unwrap(); // of any size, once
    for refused in [
        slow.append(b"x").unwrap_err(),
        slow.try_submit(b"x").unwrap_err(),
        logs.append_together(&[(&fast, &batch()), (&slow, &batch())]).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let wait = refused.retry_after().unwrap();
        assert!(wait > Duration::from_secs(1) && wait < Duration::from_secs(500), "{wait:?}");
        assert!(refused.to_string().contains("takes 1000 bytes a second"), "{refused}");
    }
    assert_eq!((slow.last_index(), fast.last_index()), (Index(1), Index(0)), "nothing was appended");
    for _ in 0..100 {
        fast.append(&[0; 1000]).unwrap();
    }
    slow.set_log_options(&[(LogOption::AppendBytesPerSecond, None)], PATIENCE).unwrap();
    slow.append(&[0; 5000]).unwrap();
    // A wait that is short enough is waited for.
    drop((slow, fast));
    logs.close().unwrap();
    let logs = open(dir.path(), options().queue_timeout(PATIENCE));
    let slow = logs.get("slow").unwrap();
    set(&slow, LogOption::AppendBytesPerSecond, 10_000);
    let begun = Instant::now();
    for _ in 0..3 {
        slow.append(&[0; 10_000]).unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

fn batch() -> Batch {
    BatchBuilder::new().push(b"x").unwrap().build().unwrap()
}

#[test]
fn log_on_its_own_can_be_limited_too() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options().queue_timeout(Duration::ZERO)).unwrap();
    set(&log, LogOption::AppendBytesPerSecond, 100);
    log.append(&[0; 1000]).unwrap();
    assert!(log.append(b"x").unwrap_err().to_string().contains("the log takes 100 bytes a second"));
    log.close().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    assert_eq!(log.log_options().get(LogOption::AppendBytesPerSecond), Some(100), "after a restart");
}

#[test]
fn sessions_of_one_log_are_limited_and_leave_the_others_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let [limited, free] = ["limited", "free"].map(|name| logs.create(name).unwrap());
    set(&limited, LogOption::SessionsMax, 2);
    let mut sessions: Vec<Session> = (0..2).map(|_| limited.open_session().unwrap()).collect();
    for session in &mut sessions {
        session.append(b"x").unwrap();
    }
    let refused = limited.open_session().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManySessions, "{refused}");
    assert!(refused.to_string().contains("its option sessions_max allows 2"), "{refused}");
    let others: Vec<Session> = (0..14).map(|_| free.open_session().unwrap()).collect();
    // The group's limit is reached: a session that was never used makes room.
    free.open_session().unwrap();
    sessions.pop().unwrap().close().unwrap();
    drop(others);
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    let limited = logs.get("limited").unwrap();
    limited.open_session().unwrap().append(b"y").unwrap();
    assert_eq!(limited.open_session().unwrap_err().kind(), ErrorKind::TooManySessions, "after a restart");
    set(&limited, LogOption::SessionsMax, 3);
    limited.open_session().unwrap();
}

/// A session that could not be opened closed one of another log, each time that it was asked for.
#[test]
fn refused_session_of_a_sealed_log_closes_none_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let [sealed, free] = ["sealed", "free"].map(|name| logs.create(name).unwrap());
    logs.seal("sealed").unwrap();
    let mut all: Vec<Session> = (0..16).map(|_| free.open_session().unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(sealed.open_session().unwrap_err().kind(), ErrorKind::Sealed);
    }
    for session in &mut all {
        session.append(b"x").unwrap();
    }
}

/// A discard of more records than a sealed log has moved its end.
#[test]
fn discard_behind_the_end_of_a_sealed_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let log = logs.create("sealed").unwrap();
    log.append(b"x").unwrap();
    log.append(b"y").unwrap();
    logs.seal("sealed").unwrap();
    log.discard(Index(2)).unwrap();
    assert_eq!(log.discard(Index(4)).unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!((log.first_index(), log.last_index()), (Index(2), Index(2)));
    log.discard(Index(3)).unwrap();
    assert_eq!((log.first_index(), log.last_index()), (Index(3), Index(2)));
}

#[test]
fn sessions_of_one_log_expire_as_its_own_option_says() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let [short, long] = ["short", "long"].map(|name| logs.create(name).unwrap());
    logs.groups()[&1].set_log_options(&[(LogOption::SessionIdleMax, Some(100_000))], PATIENCE).unwrap();
    set(&short, LogOption::SessionIdleMax, 1);
    let [mut expiring, mut lasting] = [&short, &long].map(|log| log.open_session().unwrap());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(expiring.append(b"x").unwrap_err().kind(), ErrorKind::SessionExpired);
    lasting.append(b"x").unwrap();
}

#[test]
fn records_of_one_log_are_limited_and_the_lower_limit_applies() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let [limited, free] = ["limited", "free"].map(|name| logs.create(name).unwrap());
    let whole = free.record_bytes_max();
    set(&limited, LogOption::RecordBytesMax, 100);
    assert_eq!((limited.record_bytes_max(), free.record_bytes_max()), (100, whole));
    limited.append(&[0; 100]).unwrap();
    let large = limited.append(&[0; 101]).unwrap_err();
    assert_eq!(large.kind(), ErrorKind::TooLarge, "{large}");
    let mut batch = BatchBuilder::new();
    batch.push(&[0; 101]).unwrap();
    let batch = batch.build().unwrap();
    assert_eq!(limited.append(&batch).unwrap_err().kind(), ErrorKind::TooLarge);
    let pairs = [(&free, &batch), (&limited, &batch)];
    assert_eq!(logs.append_together(&pairs).unwrap_err().kind(), ErrorKind::TooLarge);
    free.append(&batch).unwrap();
    logs.groups()[&1].set_log_options(&[(LogOption::RecordBytesMax, Some(50))], PATIENCE).unwrap();
    assert_eq!((limited.record_bytes_max(), free.record_bytes_max()), (50, 50));
    logs.groups()[&1].set_log_options(&[(LogOption::RecordBytesMax, None)], PATIENCE).unwrap();
    logs.close().unwrap();
    let limited = open(dir.path(), options()).get("limited").unwrap();
    assert_eq!(limited.record_bytes_max(), 100, "after a restart");
    limited.set_log_options(&[(LogOption::RecordBytesMax, None)], PATIENCE).unwrap();
    assert_eq!(limited.record_bytes_max(), whole);
}

/// How many records of this size the log takes until it is full.
fn fill_up(log: &Log, record_bytes: usize) -> usize {
    let record = vec![7; record_bytes];
    for n in 0..10_000 {
        match log.append(&record) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Full => return n,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the log does not become full");
}

/// The bytes of a batch with one record of this size.
fn batch_bytes(record_bytes: usize) -> usize {
    let mut batch = BatchBuilder::new();
    batch.push(&vec![7; record_bytes]).unwrap();
    batch.build().unwrap().as_bytes().len()
}

#[test]
fn full_log_is_refused_appends_and_no_other_log_is() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let (limited, other) = (logs.create("limited").unwrap(), logs.create("other").unwrap());
    let capacity: usize = 200_000;
    set(&limited, LogOption::CapacityBytes, capacity as u64);
    let taken = fill_up(&limited, RECORD_BYTES);
    assert_eq!(
        taken,
        capacity.div_ceil(batch_bytes(RECORD_BYTES)),
        "it takes appends until it has its capacity"
    );
    let full = limited.append(b"x").unwrap_err();
    assert!(full.to_string().contains("200000") && full.to_string().contains("capacity_bytes"), "{full}");
    assert_eq!(limited.try_submit(b"x").unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(limited.check_room(0).unwrap_err().kind(), ErrorKind::Full);
    other.check_room(1).unwrap();
    logs.groups()[&1].check_room(1).unwrap();
    fill(&other, 30);
    let mut batch = BatchBuilder::new();
    batch.push(b"x").unwrap();
    let batch = batch.build().unwrap();
    let together = logs.append_together(&[(&other, &batch), (&limited, &batch)]).unwrap_err();
    assert_eq!(together.kind(), ErrorKind::Full, "{together}");
    assert_eq!(other.last_index(), Index(30), "nothing of it was appended");
    set(&limited, LogOption::CapacityBytes, 300_000);
    assert_eq!(taken + fill_up(&limited, RECORD_BYTES), 300_000usize.div_ceil(batch_bytes(RECORD_BYTES)));
    limited.set_log_options(&[(LogOption::CapacityBytes, None)], PATIENCE).unwrap();
    fill(&limited, 30);
    set(&limited, LogOption::CapacityBytes, 200_000);
    assert_eq!(limited.append(b"x").unwrap_err().kind(), ErrorKind::Full, "a quota below what it has");
    limited.discard(limited.last_index().next()).unwrap();
    assert_eq!(fill_up(&limited, RECORD_BYTES), taken, "all was discarded");
    logs.seal("limited").unwrap();
    assert_eq!(limited.append(b"x").unwrap_err().kind(), ErrorKind::Sealed);
    logs.delete("limited").unwrap();
    let limited = logs.create("limited").unwrap();
    fill(&limited, 30);
}

/// A segment has bytes of both sizes where the log begins after the discard: there they count as equally large.
#[test]
fn discard_makes_as_much_room_as_its_records_had() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let limited = logs.create("limited").unwrap();
    set(&limited, LogOption::CapacityBytes, 1_200_000);
    for _ in 0..40 {
        limited.append(&[7; 20_000]).unwrap();
    }
    let small = fill_up(&limited, 1000);
    assert!(small > 300, "{small}");
    limited.discard(Index(41)).unwrap();
    let room = 40 * batch_bytes(20_000);
    let before = fill_up(&limited, 1000) * batch_bytes(1000);
    let error = SEGMENT_BYTES as usize;
    assert!(before.abs_diff(room) < error, "{before} bytes were appended after {room} were discarded");
    // The other way round: the small ones are a small part.
    limited.discard(Index(41 + small as u64)).unwrap();
    let (room, again) = (small * batch_bytes(1000), fill_up(&limited, 1000) * batch_bytes(1000));
    assert!(again.abs_diff(room) < error, "{again} bytes were appended after {room} were discarded");
}

#[test]
fn full_log_is_full_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let (limited, other) = (logs.create("limited").unwrap(), logs.create("other").unwrap());
    set(&limited, LogOption::CapacityBytes, 1_000_000);
    fill_up(&limited, RECORD_BYTES);
    limited.discard(Index(61)).unwrap();
    fill(&other, 100); // segments in which the log has nothing
    let room = fill_up(&limited, RECORD_BYTES);
    assert!(room.abs_diff(60) <= 1, "all records are equally large: {room}");
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    let limited = logs.get("limited").unwrap();
    wait_until("the log is not full", || limited.check_room(0).is_err());
    limited.discard(Index(71)).unwrap();
    let room = fill_up(&limited, RECORD_BYTES);
    assert!(room.abs_diff(10) <= 1, "{room}");
    assert_eq!(logs.groups()[&1].full_logs(), 1);
}

/// Retention discards what is beyond it: a log with a larger capacity is never full for long.
#[test]
fn retention_makes_room_in_a_full_log() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let limited = logs.create("limited").unwrap();
    set(&limited, LogOption::CapacityBytes, 700_000);
    set(&limited, LogOption::RetentionBytes, 300_000);
    for _ in 0..300 {
        wait_until("the log stays full", || limited.check_room(0).is_ok());
        fill(&limited, 1);
    }
    assert_eq!(limited.last_index(), Index(300));
}

#[test]
fn options_that_a_log_or_its_group_cannot_have_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let log = logs.create("log").unwrap();
    let group = &logs.groups()[&1];
    for option in LogOption::ALL {
        let of_log = log.set_log_options(&[(option, Some(200_000))], PATIENCE);
        let is_of_log = LogOption::OF_NAMED_LOGS.contains(&option);
        assert_eq!(of_log.is_ok(), is_of_log, "{option}: {of_log:?}");
        let of_logs_alone =
            [LogOption::RetentionBytes, LogOption::RetentionAge, LogOption::AppendBytesPerSecond];
        if of_logs_alone.contains(&option) {
            let of_group = group.set_log_options(&[(option, Some(200_000))], PATIENCE).unwrap_err();
            assert_eq!(of_group.kind(), ErrorKind::InvalidArgument, "{of_group}");
        }
    }
    let low = log.set_log_options(&[(LogOption::RetentionBytes, Some(1))], PATIENCE).unwrap_err();
    assert!(low.to_string().contains("at least 131072"), "{low}");
}

#[test]
fn options_have_no_more_room_than_an_opening() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path(), options());
    let max = options().logs_max();
    let names: Vec<String> = (0..max).map(|n| format!("log-{n}")).collect();
    let all: Vec<Log> = names.iter().map(|name| logs.create(name).unwrap()).collect();
    let limit = [(LogOption::RetentionAge, Some(1000))];
    // The rest of the room, too little for another log, may be enough for the options of a few.
    let full = all.iter().find_map(|log| log.set_log_options(&limit, PATIENCE).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    for name in &names[..5] {
        logs.delete(name).unwrap();
    }
    all[7].set_log_options(&limit, PATIENCE).unwrap();
    let other = logs.create("another").unwrap();
    fill(&other, 60); // the opening of the next segment has room for all
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    assert_eq!(logs.get("log-7").unwrap().log_options().get(LogOption::RetentionAge), Some(1000));
}
