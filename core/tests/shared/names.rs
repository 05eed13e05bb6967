//! Names: logs are sealed, deleted and created again, as many as a group has room for.

use crate::support::{group, numbered, open, options, records};
use chiplog::{ErrorKind, Index, LogOption, Logs, Start};
use std::time::Duration;

#[test]
fn sealed_log_takes_no_appends_and_keeps_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let log = logs.create("a").unwrap();
    log.append(b"x").unwrap();
    logs.seal("a").unwrap();
    logs.seal("a").unwrap();
    assert_eq!(log.append(b"y").unwrap_err().kind(), ErrorKind::Sealed);
    logs.close().unwrap();
    let logs = open(dir.path());
    let log = logs.get("a").unwrap();
    assert_eq!(log.append(b"y").unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!(records(&log).len(), 1);
    assert!(logs.list().unwrap()[0].sealed);
}

#[test]
fn deleted_log_is_gone_and_its_name_is_another_log() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let old = logs.create("a").unwrap();
    old.append(b"old").unwrap();
    assert_eq!(logs.create("a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    let mut reader = old.reader(Start::First).unwrap();
    logs.delete("a").unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"old", "what is committed can still be read");
    assert_eq!(reader.wait(None).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(old.append(b"x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(logs.get("a").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(logs.delete("a").unwrap_err().kind(), ErrorKind::NotFound);
    let new = logs.create("a").unwrap();
    assert_ne!(new.log_id(), old.log_id());
    assert_eq!(new.append(b"new").unwrap(), Index(1));
    logs.close().unwrap();
    let logs = open(dir.path());
    assert_eq!(records(&logs.get("a").unwrap()), [(1, b"new".to_vec())]);
}

#[test]
fn group_refuses_more_logs_than_its_openings_have_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().groups(1).options(group().sessions_max(130));
    let max = options.options.logs_max();
    assert!((1..200).contains(&max), "{max}");
    let logs = Logs::open(dir.path(), options).unwrap();
    for n in 0..max {
        logs.create(&format!("l{n}")).unwrap();
    }
    assert_eq!(logs.create("one-too-many").unwrap_err().kind(), ErrorKind::Full);
    // The segments roll with a full table.
    let log = logs.get("l0").unwrap();
    for n in 0..1500u64 {
        drop(log.submit(&numbered(0, n)[..]).unwrap());
    }
    log.append(b"end").unwrap();
    assert!(logs.groups()[&1].status().segments > 2);
    logs.delete("l1").unwrap();
    logs.create("one-too-many").unwrap().append(b"x").unwrap();
}

/// Each of several calls found the last place in the group free. The logs without a place were in the catalogue, and could
/// be neither opened nor deleted.
#[test]
fn creations_beside_each_other_do_not_overfill_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().groups(1).options(group().sessions_max(130));
    let max = options.options.logs_max();
    let logs = Logs::open(dir.path(), options).unwrap();
    for n in 2..max {
        logs.create(&format!("l{n}")).unwrap();
    }
    let created: usize = std::thread::scope(|scope| {
        let logs = &logs;
        let create = |n: usize| match logs.create(&format!("beside-{n}")) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                false
            }
        };
        let calls: Vec<_> = (0..8).map(|n| scope.spawn(move || create(n))).collect();
        calls.into_iter().map(|call| usize::from(call.join().unwrap())).sum()
    });
    assert!((1..=2).contains(&created), "{created} of 8 creations for 2 places");
    assert_eq!(logs.list().unwrap().len(), max - 2 + created);
    for log in logs.list().unwrap() {
        logs.get(&log.name).unwrap().append(b"x").unwrap();
    }
}

/// The room for a log went to options, or objects, between its two steps: it is in the catalogue, and cannot be opened. So it could not be
/// deleted either, and neither could later ones.
#[test]
fn log_that_found_no_room_can_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().groups(1).options(group().sessions_max(130));
    let max = options.options.logs_max();
    let logs = Logs::open(dir.path(), options.clone()).unwrap();
    for n in 1..max {
        logs.create(&format!("l{n}")).unwrap();
    }
    let id = logs.register("late").unwrap();
    // Four options take more than a log.
    let set = |n: usize| {
        let log = logs.get(&format!("l{n}")).unwrap();
        log.set_log_options(&[(LogOption::RetentionAge, Some(1_000_000))], Duration::from_secs(5))
    };
    (1..max).take_while(|n| set(*n).is_ok()).for_each(drop);
    logs.settle().unwrap();
    let number = logs.list().unwrap().iter().find(|log| log.name == "late").unwrap().number;
    assert!(logs.groups()[&1].named(number).is_err(), "the group has room for it");
    assert_eq!(logs.create("later").unwrap_err().kind(), ErrorKind::Full);
    logs.unregister("late", Some(id)).unwrap();
    logs.await_dropped(id, Duration::from_secs(20)).unwrap();
    assert_eq!(logs.deleted_in(1).unwrap(), []);
    // The next one gets a place once there is one, also after a restart.
    logs.delete("l1").unwrap();
    logs.delete("l2").unwrap();
    logs.create("later").unwrap().append(b"x").unwrap();
    logs.close().unwrap();
    let logs = Logs::open(dir.path(), options).unwrap();
    assert_eq!(records(&logs.get("later").unwrap()).len(), 1);
    assert_eq!(logs.get("late").unwrap_err().kind(), ErrorKind::NotFound);
}

/// A lower limit closes no session. The room for a log was counted without those that are open: the log got its name, and was then refused
/// by its group, and all later ones of that group behind it.
#[test]
fn creation_is_refused_before_it_has_a_name_if_sessions_take_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1).options(group().sessions_max(130))).unwrap();
    let running = logs.groups()[&1].clone();
    let log = logs.create("log-0").unwrap();
    let sessions: Vec<_> = (0..130).map(|_| log.open_session().unwrap()).collect();
    let max = running.named_logs_max();
    running.set_log_options(&[(LogOption::SessionsMax, Some(1))], Duration::from_secs(20)).unwrap();
    assert_eq!(running.named_logs_max(), max, "as many sessions are open as before");
    (1..max).for_each(|n| drop(logs.create(&format!("log-{n}")).unwrap()));
    assert_eq!(logs.create("late").unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(logs.get("late").unwrap_err().kind(), ErrorKind::NotFound);
    // With room for fewer sessions there is room for more logs.
    sessions.into_iter().for_each(|mut session| session.close().unwrap());
    assert!(running.named_logs_max() > max);
    logs.create("late").unwrap().append(b"x").unwrap();
}

/// New logs went to the group with the fewest logs, also if that could hold no more.
#[test]
fn new_logs_go_to_a_group_with_room() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(2)).unwrap();
    logs.set_ready_groups([(1, 2), (2, logs.groups()[&2].named_logs_max())].into());
    // The other group has more logs than the full one.
    let in_group: Vec<u32> = (0..8)
        .map(|n| {
            let name = format!("log-{n}");
            logs.create(&name).unwrap();
            logs.info(&name).unwrap().group
        })
        .collect();
    assert!(
        in_group.contains(&1) && in_group.iter().filter(|group| **group == 2).count() > 4,
        "{in_group:?}"
    );
}
