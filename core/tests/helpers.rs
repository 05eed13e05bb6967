//! Helper threads that groups of named logs share: one a disk, whatever the number of groups.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{ErrorKind, Index, Log, Logs, LogsOptions, Options};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads are counted for the whole process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Another disk than that of temporary directories.
const OTHER_DISK: &str = "/dev/shm";

fn options() -> LogsOptions {
    LogsOptions::default().options(Options::with_segment_bytes(256 << 10).sessions_max(16))
}

/// The number of threads of this process by this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

/// Waits until this many threads have the name: a thread is listed a moment after it was joined.
#[track_caller]
fn await_threads(name: &str, count: usize) {
    let begun = Instant::now();
    while threads(name) != count {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} threads {name}, not {count}", threads(name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Appends until the log has begun a few segments: files are prepared, sealed and, after the discard, removed.
fn fill(log: &Log) {
    let record = [7; 4000];
    for _ in 0..300 {
        log.append(&record).unwrap();
    }
    log.discard(Index(log.last_index().get() - 10)).unwrap();
    assert_eq!(log.read(log.last_index()).unwrap().data[..], record);
}

/// 16 groups and the system log had 17 helper threads.
#[test]
fn groups_of_a_disk_share_one_thread() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(16)).unwrap();
    await_threads("chiplog-helper", 1);
    await_threads("chiplog-writer", 17);
    let all: Vec<Log> = (0..32).map(|n| logs.create(&format!("log-{n}")).unwrap()).collect();
    std::thread::scope(|scope| all.iter().for_each(|log| drop(scope.spawn(|| fill(log)))));
    assert_eq!(threads("chiplog-helper"), 1);
    // A log on its own has one of its own.
    let alone = tempfile::tempdir().unwrap();
    let alone = Log::open(alone.path(), Options::with_segment_bytes(256 << 10)).unwrap();
    await_threads("chiplog-helper", 2);
    alone.close().unwrap();
    logs.close().unwrap();
    await_threads("chiplog-helper", 0);
    let again = Logs::open(dir.path(), options()).unwrap();
    assert!((0..32).all(|n| again.get(&format!("log-{n}")).unwrap().last_index() == Index(300)));
    again.close().unwrap();
}

#[test]
fn each_disk_has_a_thread() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    if device(Path::new(OTHER_DISK)).is_none_or(|other| device(dir.path()) == Some(other)) {
        println!("skipped: {OTHER_DISK} is no other disk");
        return;
    }
    let other = tempfile::tempdir_in(OTHER_DISK).unwrap();
    let logs = Logs::open(dir.path(), options().groups(4).directories([other.path()])).unwrap();
    await_threads("chiplog-helper", 2);
    let all: Vec<Log> = (0..8).map(|n| logs.create(&format!("log-{n}")).unwrap()).collect();
    std::thread::scope(|scope| all.iter().for_each(|log| drop(scope.spawn(|| fill(log)))));
    logs.close().unwrap();
    await_threads("chiplog-helper", 0);
}

/// A program such as a server opens and closes its groups one by one.
#[test]
fn group_that_is_closed_leaves_the_thread_to_the_others() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let options = options();
    let open =
        |number: u32| Log::open(Logs::group_path(dir.path(), number), options.clone().of_group(number));
    let logs = Logs::of(open(0).unwrap());
    for number in 1..4 {
        logs.add_group(number, open(number).unwrap()).unwrap();
    }
    await_threads("chiplog-helper", 1);
    let all: Vec<Log> = (0..3).map(|n| logs.create(&format!("log-{n}")).unwrap()).collect();
    all.iter().for_each(fill);
    let mut groups = logs.groups();
    let closed = groups.remove(&2).unwrap();
    std::thread::scope(|scope| {
        all.iter().for_each(|log| {
            let _ = scope.spawn(|| {
                for _ in 0..300 {
                    match log.append(&[1; 4000]) {
                        Err(error) if error.kind() == ErrorKind::Closed => return,
                        appended => drop(appended.unwrap()),
                    }
                }
            });
        });
        closed.close().unwrap();
        // None of its jobs runs any more: its directory is unlocked.
        open(2).unwrap().close().unwrap();
    });
    assert_eq!(threads("chiplog-helper"), 1);
    let going_on = all.iter().filter(|log| log.append(b"x").is_ok()).count();
    assert_eq!(going_on, 2);
    logs.close().unwrap();
    await_threads("chiplog-helper", 0);
}
