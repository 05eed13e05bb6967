//! Shared groups in several directories, each meant to be on a disk of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{ErrorKind, Log, Logs, LogsOptions, Options, ReadOnlyLog, Start};
use std::fs;
use std::path::{Path, PathBuf};

fn options(directories: &[PathBuf]) -> LogsOptions {
    let group = Options::with_segment_bytes(256 << 10).sessions_max(16);
    LogsOptions::default().groups(3).directories(directories).options(group)
}

fn disks(n: usize) -> (Vec<tempfile::TempDir>, Vec<PathBuf>) {
    let dirs: Vec<_> = (0..n).map(|_| tempfile::tempdir().unwrap()).collect();
    let paths = dirs.iter().map(|dir| dir.path().to_owned()).collect();
    (dirs, paths)
}

fn records(log: &Log) -> usize {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = 0;
    while reader.next_record().unwrap().is_some() {
        records += 1;
    }
    records
}

fn groups_in(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut groups: Vec<String> = names.filter(|name| name.starts_with("group-")).collect();
    groups.sort();
    groups
}

#[test]
fn groups_are_spread_over_directories_and_found_again() {
    let home = tempfile::tempdir().unwrap();
    let (_dirs, paths) = disks(2);
    for round in 1..=3 {
        let logs = Logs::open(home.path(), options(&paths)).unwrap();
        for n in 0..6 {
            let name = format!("log-{n}");
            let log = if round == 1 { logs.create(&name).unwrap() } else { logs.get(&name).unwrap() };
            log.append(b"x").unwrap();
            assert_eq!(records(&log), round);
        }
        logs.close().unwrap();
    }
    assert_eq!(
        (groups_in(&paths[0]), groups_in(&paths[1])),
        (vec!["group-1".into(), "group-3".into()], vec!["group-2".into()])
    );
    assert_eq!(groups_in(home.path()), [""; 0]);
    for dir in [home.path(), &paths[0]] {
        let refused = Log::open(dir, Options::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(ReadOnlyLog::open(dir).is_err());
    }
    // A smaller number of groups opens all there are.
    let logs = Logs::open(home.path(), options(&paths).groups(1)).unwrap();
    assert_eq!(logs.groups().len(), 3);
}

#[test]
fn directory_of_logs_gets_disks_later() {
    let home = tempfile::tempdir().unwrap();
    let (_dirs, paths) = disks(2);
    let logs = Logs::open(home.path(), options(&[]).groups(1)).unwrap();
    logs.create("old").unwrap().append(b"x").unwrap();
    logs.close().unwrap();
    let logs = Logs::open(home.path(), options(&paths)).unwrap();
    assert_eq!(records(&logs.get("old").unwrap()), 1);
    assert_eq!(groups_in(home.path()), ["group-1"]);
    assert_eq!((groups_in(&paths[0]).len(), groups_in(&paths[1]).len()), (1, 1));
}

#[test]
fn unmounted_disk_is_no_new_one() {
    let home = tempfile::tempdir().unwrap();
    let (_dirs, paths) = disks(2);
    let logs = Logs::open(home.path(), options(&paths)).unwrap();
    logs.create("orders").unwrap();
    logs.close().unwrap();
    drop(logs);
    let away = tempfile::tempdir().unwrap();
    let moved = away.path().join("d");
    fs::rename(&paths[1], &moved).unwrap();
    fs::create_dir(&paths[1]).unwrap();
    for create in [true, false] {
        let mut options = options(&paths);
        options.options.create = create;
        let refused = Logs::open(home.path(), options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Diverged, "{refused}");
        assert!(refused.to_string().contains(paths[1].to_str().unwrap()), "{refused}");
    }
    let refused = Logs::open(home.path(), options(&paths[..1])).unwrap_err();
    assert!(refused.to_string().contains("list it again"), "{refused}");
    assert_eq!(fs::read_dir(&paths[1]).unwrap().count(), 0, "nothing was made there");
    // The disk is mounted elsewhere.
    let logs = Logs::open(home.path(), options(&[paths[0].clone(), moved])).unwrap();
    logs.get("orders").unwrap().append(b"x").unwrap();
}

#[test]
fn wrong_lists_are_refused_before_anything_is_made() {
    let home = tempfile::tempdir().unwrap();
    let logs = home.path().join("logs");
    let (_dirs, paths) = disks(1);
    for (list, why) in [
        (vec![paths[0].clone(), paths[0].clone()], "the same as"),
        (vec![paths[0].clone(), paths[0].join("below")], "below"),
        (vec![logs.join("x")], "the directory of the logs"),
        (vec![home.path().to_owned()], "above"),
        (vec![PathBuf::new()], "empty"),
    ] {
        let refused = Logs::open(&logs, options(&list)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(!logs.exists());
    }
    let missing = paths[0].join("missing");
    let refused = Logs::open(&logs, options(std::slice::from_ref(&missing))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(!missing.exists() && !logs.exists());
}

/// A group between others is missing: the logs of the later ones are not silently left out.
#[test]
fn missing_group_between_others_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    drop(Logs::open(home.path(), options(&[])).unwrap());
    fs::rename(home.path().join("group-2"), home.path().join("away")).unwrap();
    let refused = Logs::open(home.path(), options(&[]).groups(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    assert!(refused.to_string().contains("group-2"), "{refused}");
}
