//! Groups: their directories, their options, and how they are closed.

use crate::support::{SEGMENT, group, open, options, records};
use chiplog::inspect::Inspector;
use chiplog::{ErrorKind, Index, Log, LogOption, Logs, Options, ReadOnlyLog, Start};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

#[test]
fn one_log_and_named_logs_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    logs.create("a").unwrap().append(b"x").unwrap();
    let group = &logs.groups()[&1];
    assert_eq!(group.append(b"y").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(group.reader(Start::First).err().unwrap().kind(), ErrorKind::InvalidArgument);
    assert_eq!(group.open_session().err().unwrap().kind(), ErrorKind::InvalidArgument);
    logs.close().unwrap();
    for refused in [
        Log::open(dir.path(), Options::default()).err().unwrap(),
        ReadOnlyLog::open(dir.path()).err().unwrap(),
        Inspector::open(dir.path()).err().unwrap(),
        ReadOnlyLog::open(dir.path().join("group-1")).err().unwrap(),
        group.discard(Index(2)).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains("named logs"), "{refused}");
    }
    let own = tempfile::tempdir().unwrap();
    Log::open(own.path(), Options::with_segment_bytes(SEGMENT)).unwrap().close().unwrap();
    let refused = Logs::open(own.path(), options()).unwrap_err();
    assert!(refused.to_string().contains("holds one log on its own"), "{refused}");
    let alone = tempfile::tempdir().unwrap();
    let log = Log::open(alone.path().join("group-1"), Options::with_segment_bytes(SEGMENT)).unwrap();
    log.append(b"x").unwrap();
    log.close().unwrap();
    let refused = Logs::open(alone.path(), options()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

#[test]
fn groups_are_added_and_logs_spread_over_them() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    logs.create("a").unwrap();
    logs.close().unwrap();
    let logs = Logs::open(dir.path(), options().groups(3)).unwrap();
    for name in ["b", "c", "d"] {
        logs.create(name).unwrap().append(name.as_bytes()).unwrap();
    }
    let mut groups: Vec<u32> = logs.list().unwrap().iter().map(|info| info.group).collect();
    groups.sort_unstable();
    assert_eq!(groups, [1, 1, 2, 3]);
    logs.close().unwrap();
    // A smaller number leaves all there are.
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    assert_eq!(logs.groups().len(), 3);
    assert_eq!(records(&logs.get("d").unwrap()).len(), 1);
}

#[test]
fn options_that_a_shared_group_cannot_follow_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    for n in 0..20 {
        logs.create(&format!("l{n}")).unwrap();
    }
    let set = |option, value| {
        let refused = logs.groups()[&1].set_log_options(&[(option, Some(value))], Duration::from_secs(5));
        refused.unwrap_err().kind()
    };
    assert_eq!(set(LogOption::RetentionBytes, 1 << 30), ErrorKind::InvalidArgument);
    assert_eq!(set(LogOption::SessionsMax, 137), ErrorKind::InvalidArgument, "no room for the log table");
    let retention = options().options(group().retention_bytes(1 << 30));
    assert_eq!(Logs::open(dir.path(), retention).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let log = logs.get("l0").unwrap();
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::InvalidArgument);
    log.append(b"still open").unwrap();
}

#[test]
fn another_directory_in_place_of_a_group_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    logs.create("a").unwrap();
    logs.create("b").unwrap().append(b"x").unwrap();
    logs.close().unwrap();
    std::fs::rename(dir.path().join("group-2"), dir.path().join("elsewhere")).unwrap();
    let refused = Logs::open(dir.path(), options()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Diverged, "{refused}");
    std::fs::remove_dir_all(dir.path().join("group-2")).unwrap();
    std::fs::rename(dir.path().join("elsewhere"), dir.path().join("group-2")).unwrap();
    assert_eq!(records(&open(dir.path()).get("b").unwrap()).len(), 1);
}

#[test]
fn new_group_takes_no_records_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let group = &logs.groups()[&1];
    assert_eq!(group.append(b"x").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(group.discard(Index(2)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let log = logs.create("a").unwrap();
    log.append(b"x").unwrap();
    assert!(log.follow(chiplog::follower::FollowFrom::First).unwrap().is_of_one_log());
}

/// Each waited for the other group's thread, whose callback waited for its own.
#[test]
fn callbacks_of_two_groups_may_close_all_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(2)).unwrap();
    let both = Arc::new(Barrier::new(2));
    let (sender, closed) = mpsc::channel();
    for (name, group) in ["a", "b"].into_iter().zip([1, 2]) {
        let log = logs.create(name).unwrap();
        assert_eq!(logs.info(name).unwrap().group, group, "logs are spread over the groups");
        let entered = Arc::new(AtomicBool::new(false));
        // A callback that is set too late runs on this thread: until one runs on the group's, which may not append.
        while !entered.load(Ordering::Relaxed) {
            let (logs, both, sender) = (logs.clone(), both.clone(), sender.clone());
            let (log, entered) = (log.clone(), entered.clone());
            let Ok(ticket) = log.submit(b"x") else { break }; // it is closed already
            ticket.on_complete(move |_| {
                if log.append(b"y").is_err_and(|e| e.kind() == ErrorKind::InvalidArgument)
                    && !entered.swap(true, Ordering::Relaxed)
                {
                    both.wait();
                    sender.send(logs.close()).unwrap();
                }
            });
        }
    }
    for _ in 0..2 {
        closed.recv_timeout(Duration::from_secs(60)).expect("the callbacks wait for each other").unwrap();
    }
    logs.close().unwrap();
    let again = Logs::open(dir.path(), options().groups(2)).unwrap();
    assert!(!records(&again.get("a").unwrap()).is_empty());
}
