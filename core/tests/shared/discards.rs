//! Discards: of one log alone, and which files go.

use crate::support::{append_until, damage_opening, numbered, open, options, records};
use chiplog::{ErrorKind, Index, Logs, Start};
use std::time::{Duration, Instant};

#[test]
fn discard_moves_one_log_and_files_go_when_all_have_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for n in 0..3000u64 {
        let log = if n % 2 == 0 { &a } else { &b };
        drop(log.submit(&numbered(n % 2, n)[..]).unwrap());
    }
    a.append(b"end").unwrap();
    b.append(b"end").unwrap();
    let segments = || logs.groups()[&1].status().segments;
    let before = segments();
    assert!(before > 3, "{before}");
    let end = a.last_index();
    a.discard(end).unwrap();
    assert_eq!(a.first_index(), end);
    assert_eq!(records(&a).len(), 1);
    assert_eq!(records(&b).len(), 1501);
    assert_eq!(a.reader(Start::Index(Index(1))).err().unwrap().kind(), ErrorKind::Discarded);
    assert_eq!(segments(), before, "b has records in all of them");
    b.discard(b.last_index()).unwrap();
    append_until(&a, || segments() <= 2);
    assert!(segments() <= 2, "{} of {before} segments are left", segments());
    assert_eq!(records(&b).len(), 1);
    logs.close().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    assert_eq!(records(&logs.get("b").unwrap()).len(), 1);
    assert_eq!(logs.get("a").unwrap().first_index(), end);
}

/// Without records no discard followed the last one, and files with commands alone filled the disk.
#[test]
fn segments_of_commands_alone_do_not_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let log = logs.create("a").unwrap();
    let mut next = 2;
    let begun = || logs.groups()[&1].metrics().rolls;
    while begun() < 8 {
        let tickets: Vec<_> = (next..next + 500).map(|n| log.submit_discard(Index(n)).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
        next += 500;
    }
    let segments = logs.groups()[&1].status().segments;
    assert!(segments <= 4, "{segments} segments");
}

#[test]
fn discard_beyond_the_end_moves_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let log = logs.create("a").unwrap();
    log.append(b"x").unwrap();
    log.discard(Index(100)).unwrap();
    assert!(log.range().is_empty());
    assert_eq!(log.append(b"y").unwrap(), Index(100));
    assert_eq!(records(&log), [(100, b"y".to_vec())]);
}

/// A discard at the handle of the group removed segments with records of named logs.
#[test]
fn group_discards_no_records_of_its_logs() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let log = logs.create("a").unwrap();
    for n in 0..1500u64 {
        drop(log.submit(&numbered(1, n)[..]).unwrap());
    }
    log.append(b"end").unwrap();
    let refused = logs.groups()[&1].discard(Index(1400)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(records(&log).len(), 1501);
}

/// A first segment that held nothing but commands was never removed, nor any after it.
#[test]
fn segments_without_records_keep_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let log = logs.create("a").unwrap();
    let tickets: Vec<_> = (2..4000).map(|n| log.submit_discard(Index(n)).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| {
        ticket.wait().unwrap();
    });
    let segments = || logs.groups()[&1].status().segments;
    assert!(logs.groups()[&1].metrics().rolls > 0, "commands fill a segment");
    for n in 0..2000u64 {
        drop(log.submit(&numbered(0, n)[..]).unwrap());
    }
    let end = log.append(b"end").unwrap();
    assert!(segments() > 3);
    log.discard(end).unwrap();
    append_until(&log, || segments() <= 2);
    assert!(segments() <= 2, "{} segments are left", segments());
}

/// The ends of the logs in a segment were looked for in the opening of the next one alone. If that was damaged, no file went any more.
#[test]
fn damaged_opening_keeps_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Logs::open(dir.path(), options().groups(1)).unwrap();
    let logs = open();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    while logs.groups()[&1].status().segments < 6 {
        a.append(&[1; 4000][..]).unwrap();
        b.append(&[2; 4000][..]).unwrap();
    }
    logs.close().unwrap();
    damage_opening(dir.path(), 2);
    let logs = open();
    let (a, b) = (logs.get("a").unwrap(), logs.get("b").unwrap());
    let segments = || logs.groups()[&1].status().segments;
    assert_eq!(segments(), 6);
    for log in [&a, &b] {
        log.discard(Index(log.last_index().get() + 1)).unwrap();
    }
    append_until(&a, || segments() <= 2);
    assert!(segments() <= 2, "{} segments are left", segments());
}

/// The leader did not look again once the damaged opening was repaired: the file stayed until another log discarded something.
#[test]
fn file_behind_a_repaired_opening_goes() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Logs::open(dir.path(), options().groups(1)).unwrap();
    let logs = open();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let fill = |logs: &Logs, log: &chiplog::Log, segments| {
        while logs.groups()[&1].status().segments < segments {
            log.append(&[1; 4000][..]).unwrap();
        }
    };
    fill(&logs, &a, 2);
    b.append(&[2; 4000][..]).unwrap(); // the opening of segment 3 says that b has records, that of segment 2 that it has none
    fill(&logs, &a, 4);
    logs.close().unwrap();
    damage_opening(dir.path(), 2);
    let logs = open();
    logs.delete("a").unwrap();
    let group = logs.groups()[&1].clone();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(group.status().segments, 4, "the end of b in segment 1 is not known");
    damage_opening(dir.path(), 2); // changes the byte back
    let begun = Instant::now();
    while group.status().segments == 4 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no file went");
        std::thread::sleep(Duration::from_millis(20));
    }
}
