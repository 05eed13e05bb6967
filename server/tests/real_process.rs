//! The log in real processes that die, stop and run out of space, on the real disk.
//!
//! These tests show what the simulated disk cannot: that the lock, signals, the mapping and the page cache
//! work as the engine assumes.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/witness.rs"]
mod witness;

#[path = "support/tmpfs.rs"]
mod tmpfs;

use chiplog::{ErrorKind, Index, Log, Options, ReadOnlyLog, Start};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tmpfs::Tmpfs;
use witness::{Plan, Running, Seen, Text, Witness};

const CHIPLOG: &str = env!("CARGO_BIN_EXE_chiplog");

fn plan(dir: &Path, total: u64, threads: usize, segment_bytes: u32) -> Plan {
    let dir = dir.join("log");
    Plan { dir, total, in_flight: 32, segment_bytes, workers: vec![None; threads] }.fit_segments()
}

/// Waits until `acked` records are acknowledged. Returns false if the child ended before.
fn reached(witness: &Witness, child: &mut Running, acked: u64) -> bool {
    let began = Instant::now();
    while witness.acked() < acked {
        if child.has_ended() {
            return false;
        }
        assert!(began.elapsed() < Duration::from_secs(300), "no progress: {} of {acked}", witness.acked());
        sleep(Duration::from_millis(1));
    }
    true
}

/// Opens the log and continues reading where `seen` ends. Records are consecutive and correct, none is there
/// twice, no acknowledged one is missing.
fn check_on(witness: &Arc<Witness>, text: &Text, seen: &mut Seen) -> Log {
    let log = Log::open(&witness.plan().dir, witness.plan().options()).unwrap();
    let mut reader = log.reader(Start::Index(seen.next())).unwrap();
    witness.check(&mut reader, text, seen);
    assert_eq!(seen.next(), log.last_index().next());
    log
}

/// Fifty rounds: eight threads append until SIGKILL, in some rounds while the log is still being opened. No
/// record that the outside witness noted is missing, changed, moved or doubled. In every other round the next
/// child recovers without a check; sometimes a prefix is discarded in between.
#[test]
fn fifty_kills_under_load_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = Text::new();
    let witness = Witness::new(plan(dir.path(), 1_000_000, 8, 256 << 10));
    let mut seen = Seen::new(witness.plan().total, Index(1));
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut first = Index(1);
    for round in 0..50 {
        let mut child = witness.start();
        if round % 5 == 4 {
            sleep(Duration::from_micros(random.u64(..20_000)));
        } else {
            let target = witness.acked() + 1 + random.u64(..8_000);
            assert!(reached(&witness, &mut child, target), "round {round}: the child failed");
        }
        assert!(child.kill(), "round {round}: the child had ended by itself");
        if round % 2 == 1 {
            let log = check_on(&witness, &text, &mut seen);
            if round % 10 == 9 {
                first = Index(seen.next().get() / 2 + 1);
                log.discard(first).unwrap();
            }
        }
    }
    assert!(witness.acked() > 50_000, "the load was too small: {}", witness.acked());

    // Once more from the first record, read-only.
    check_on(&witness, &text, &mut seen).close().unwrap();
    let viewer = ReadOnlyLog::open(&witness.plan().dir).unwrap();
    assert_eq!(viewer.first_index(), first);
    let mut again = Seen::new(witness.plan().total, first);
    witness.check(&mut viewer.reader(Start::First).unwrap(), &text, &mut again);
    assert_eq!(again.next(), seen.next());
}

/// Reads the live log of another process, record by record or batch by batch, until every planned record was
/// seen.
fn follow(witness: &Witness, text: &Text, by_batch: bool) -> Seen {
    let total = witness.plan().total;
    let viewer = ReadOnlyLog::open(&witness.plan().dir).unwrap();
    let mut reader = viewer.reader(Start::First).unwrap();
    let mut seen = Seen::new(total, Index(1));
    let began = Instant::now();
    while seen.count() < total {
        if by_batch {
            while let Some(batch) = reader.next_batch().unwrap() {
                batch.iter().for_each(|record| seen.take(&record, text));
            }
        } else {
            while let Some(record) = reader.next_record().unwrap() {
                seen.take(&record, text);
            }
        }
        assert!(began.elapsed() < Duration::from_secs(300), "no end: {} of {total}", seen.count());
        reader.wait(Some(Duration::from_millis(100))).unwrap();
    }
    seen
}

/// Two readers follow while the writer is killed in mid-append, the log recovers, and a second writer resumes
/// the sessions. They read on without an interruption. The second writer sends again what had no answer: the
/// log recognises all that it has, and returns the original index. A discard and a restart follow.
#[test]
fn readers_follow_through_a_kill_and_resent_appends_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let text = Text::new();
    let witness = Witness::new(plan(dir.path(), 65_536, 16, 1 << 20));
    let total = witness.plan().total;
    let mut child = witness.start();
    assert!(reached(&witness, &mut child, 1));
    let seen = std::thread::scope(|scope| {
        let readers = [false, true].map(|by_batch| {
            let (witness, text) = (&witness, &text);
            scope.spawn(move || follow(witness, text, by_batch))
        });
        assert!(reached(&witness, &mut child, total * 9 / 20));
        assert!(child.kill(), "the child had ended by itself");
        let mut recovered = Seen::new(total, Index(1));
        check_on(&witness, &text, &mut recovered).close().unwrap();
        let unanswered = recovered.count() - witness.acked();
        witness.start().wait();
        assert_eq!((witness.acked(), witness.repeated()), (total, unanswered));
        readers.map(|reader| reader.join().unwrap())
    });
    seen.iter().for_each(|seen| witness.compare(seen));

    let first = Index(total / 2 + 1);
    let log = Log::open(&witness.plan().dir, witness.plan().options()).unwrap();
    log.discard(first).unwrap();
    assert_eq!(log.first_index(), first);
    assert_eq!(log.read(first.previous()).unwrap_err().kind(), ErrorKind::Discarded);
    log.close().unwrap();
    // Opened again, so that the check sees what the files contain.
    let mut left = Seen::new(total, first);
    check_on(&witness, &text, &mut left).close().unwrap();
    assert_eq!(left.next(), Index(total).next());
}

/// The process that appends holds the lock for its whole life; its death releases it.
#[test]
fn second_process_is_refused_until_the_first_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let witness = Witness::new(plan(dir.path(), 5_000_000, 2, 4 << 20));
    let mut child = witness.start();
    assert!(reached(&witness, &mut child, 1));
    let path = &witness.plan().dir;
    let refused = Log::open(path, Options::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Locked, "{refused}");
    let output = Command::new(CHIPLOG).arg("discard").arg(path).arg("2").output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr)); // "try later"
    // A read-only view needs no lock and disturbs nothing.
    assert!(ReadOnlyLog::open(path).unwrap().first_index() == Index(1));
    assert!(child.kill());
    let log = Log::open(path, witness.plan().options()).unwrap();
    log.append(b"mine now").unwrap();
    // The same within one process.
    assert_eq!(Log::open(path, Options::default()).unwrap_err().kind(), ErrorKind::Locked);
}

/// Stopping a process loses nothing: a reader in another process continues, and after SIGCONT so do the
/// appends.
#[test]
fn stopped_writer_continues_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let text = Text::new();
    let witness = Witness::new(plan(dir.path(), 60_000, 4, 1 << 20));
    let mut child = witness.start();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let mut viewer = None;
    for stop in 1..=5 {
        assert!(reached(&witness, &mut child, stop * 5_000), "the child failed");
        kill_process(pid, Signal::STOP).unwrap();
        sleep(Duration::from_millis(60));
        // The full read at the end checks what was read while it was stopped.
        let viewer = viewer.get_or_insert_with(|| ReadOnlyLog::open(&witness.plan().dir).unwrap());
        let mut seen = Seen::new(witness.plan().total, Index(1));
        let mut reader = viewer.reader(Start::First).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            seen.take(&record, &text);
        }
        kill_process(pid, Signal::CONT).unwrap();
    }
    child.wait();
    assert_eq!(witness.acked(), witness.plan().total);
    let mut seen = Seen::new(witness.plan().total, Index(1));
    check_on(&witness, &text, &mut seen);
    assert_eq!(seen.count(), witness.plan().total);
}

/// A full disk refuses appends with `Full` and breaks nothing: acknowledged records can be read, the log
/// opens while the disk is still full, a discard makes room, and the log continues.
#[test]
fn full_disk_refuses_cleanly_and_a_discard_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let Some(tmpfs) = Tmpfs::mount(&dir.path().join("small"), 4 << 20) else { return };
    let path = tmpfs.path().join("log");
    let options = Options::with_segment_bytes(256 << 10);
    let record = |n: u64| format!("{n:08} ").into_bytes().repeat(500);
    let fill = |log: &Log| {
        let mut n = log.last_index().get();
        loop {
            match log.append(&record(n + 1)) {
                Ok(index) => assert_eq!(index, Index(n + 1)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Full, "{e}");
                    return n;
                }
            }
            n += 1;
            assert!(n < 2_000, "the disk is never full");
        }
    };
    let all_there = |log: &Log, first: u64, last: u64| {
        let mut reader = log.reader(Start::First).unwrap();
        for n in first..=last {
            let found = reader.next_record().unwrap().unwrap();
            assert_eq!((found.index, found.data), (Index(n), &record(n)[..]));
        }
        assert!(reader.next_record().unwrap().is_none());
    };

    let log = Log::open(&path, options.clone()).unwrap();
    let last = fill(&log);
    assert!(last > 400, "{last} records of 4.5 kB on 4 MiB");
    assert_eq!(log.append(&record(last + 1)).unwrap_err().kind(), ErrorKind::Full, "and again");
    assert!(log.poison_cause().is_none(), "a refusal is not a failure");
    all_there(&log, 1, last);
    log.close().unwrap();
    drop(log);

    let log = Log::open(&path, options.clone()).unwrap();
    all_there(&log, 1, last);
    log.discard(Index(last / 2)).unwrap();
    let more = fill(&log);
    assert!(more > last + 50, "the discard made no room: {last}, then {more}");
    all_there(&log, last / 2, more);
    log.close().unwrap();
    drop(log);
    let log = Log::open(&path, options).unwrap();
    all_there(&log, last / 2, more);
    drop(log);
    drop(tmpfs);
}

/// On a disk too small for a new log the message says how much space it needs and what to do, without the
/// advice to discard.
#[test]
fn error_of_a_disk_too_small_for_a_log_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let Some(tmpfs) = Tmpfs::mount(&dir.path().join("small"), 1 << 20) else { return };
    let mut append = Command::new(env!("CARGO_BIN_EXE_chiplog"));
    append.arg("append").arg(tmpfs.path().join("log")).args(["--segment-bytes", "16MiB"]);
    let ran = append.stdin(std::process::Stdio::null()).output().unwrap();
    let words = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(5), "{words}");
    assert!(words.contains("takes 16777216 bytes") && words.contains("--segment-bytes"), "{words}");
    assert!(!words.contains("discard"), "{words}");
    drop(tmpfs);
}

/// On a read-only file system the log cannot be opened for appending, and the error names the place; reading
/// works.
#[test]
fn log_on_a_read_only_file_system_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let Some(tmpfs) = Tmpfs::mount(&dir.path().join("small"), 4 << 20) else { return };
    let path = tmpfs.path().join("log");
    let options = Options::with_segment_bytes(64 << 10);
    let log = Log::open(&path, options.clone()).unwrap();
    log.append(b"written before").unwrap();
    log.close().unwrap();
    drop(log);
    tmpfs.remount("ro");
    let error = Log::open(&path, options.clone()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    {
        let viewer = ReadOnlyLog::open(&path).unwrap();
        assert_eq!(viewer.read(Index(1)).unwrap().data[..], b"written before"[..]);
    }
    tmpfs.remount("rw");
    assert_eq!(Log::open(&path, options).unwrap().append(b"and after").unwrap(), Index(2));
    drop(tmpfs);
}
