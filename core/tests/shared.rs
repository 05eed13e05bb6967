//! Shared groups: many named logs in one directory, on the real disk.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::inspect::Inspector;
use chiplog::{
    BatchBuilder, ErrorKind, Index, Log, LogOption, Logs, LogsOptions, Options, ReadMode, ReadOnlyLog, Start,
    Ticket,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

const SEGMENT: u32 = 256 << 10;

/// Small segments, with room for a table of logs.
fn group() -> Options {
    Options::with_segment_bytes(SEGMENT).sessions_max(16)
}

fn options() -> LogsOptions {
    LogsOptions::default().options(group())
}

fn open(dir: &Path) -> Logs {
    Logs::open(dir, options()).unwrap()
}

/// All records of a log, from its first.
fn records(log: &Log) -> Vec<(u64, Vec<u8>)> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index.get(), record.data.to_vec()));
    }
    records
}

fn numbered(log: u64, n: u64) -> Vec<u8> {
    let mut record = format!("log {log} record {n} ").into_bytes();
    record.resize(60 + (n % 7 * 100) as usize, b'x');
    record
}

/// Appends until that is so, for up to 20 s: files go in steps of the writer, one at a time, and each append makes a step.
fn append_until(log: &Log, is_so: impl Fn() -> bool) {
    for _ in 0..4000 {
        log.append(b"more").unwrap();
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn logs_count_their_own_records_and_survive_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("log-{n}")).collect();
    let mut model: BTreeMap<String, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for round in 0..4u64 {
        let logs = open(dir.path());
        for (n, name) in (0..).zip(&names) {
            let log = if round == 0 { logs.create(name).unwrap() } else { logs.get(name).unwrap() };
            let known = model.entry(name.clone()).or_default();
            assert_eq!(records(&log), *known, "{name} after {round} restarts");
            for _ in 0..30 {
                let record = numbered(n, known.len() as u64 + 1);
                let index = log.append(&record[..]).unwrap();
                known.push((index.get(), record));
                assert_eq!(index.get(), known.len() as u64, "dense");
            }
            assert_eq!(records(&log), *known, "{name}");
        }
        logs.close().unwrap();
    }
    let logs = open(dir.path());
    assert!(logs.groups().values().any(|group| group.status().segments > 1), "no segment was ever full");
    let listed: Vec<String> = logs.list().unwrap().into_iter().map(|info| info.name).collect();
    let mut sorted = names;
    sorted.sort();
    assert_eq!(listed, sorted);
}

#[test]
fn appends_from_many_threads_go_to_their_logs() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let handles: Vec<Log> = (0..16).map(|n| logs.create(&format!("l{n}")).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let handles = &handles;
            scope.spawn(move || {
                for n in 0..100u64 {
                    let log = (n * 7 + thread) as usize % handles.len();
                    let record = format!("{log} {thread} {n}");
                    let index = handles[log].append(record.as_bytes()).unwrap();
                    assert_eq!(handles[log].read(index).unwrap().data, record.as_bytes());
                }
            });
        }
    });
    let mut total = 0;
    for (n, log) in handles.iter().enumerate() {
        let found = records(log);
        total += found.len();
        assert!((1..).zip(&found).all(|(at, (index, _))| at == *index));
        assert!(found.iter().all(|(_, record)| record.starts_with(format!("{n} ").as_bytes())));
    }
    assert_eq!(total, 800);
}

#[test]
fn reader_waits_at_the_tail_of_its_log_alone() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let reader = a.reader(Start::Next).unwrap();
    b.append(b"other").unwrap();
    assert!(!reader.wait(Some(Duration::from_millis(20))).unwrap());
    let waits = std::thread::spawn(move || {
        let mut reader = reader;
        assert!(reader.wait(None).unwrap());
        reader.next_record().unwrap().unwrap().data.to_vec()
    });
    a.append(b"mine").unwrap();
    assert_eq!(waits.join().unwrap(), b"mine");
}

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

#[test]
fn segments_of_commands_alone_go_with_the_next_ones() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let segments = || logs.groups()[&1].status().segments;
    while segments() < 2 {
        logs.create("a").unwrap();
        logs.delete("a").unwrap();
    }
    let a = logs.create("a").unwrap();
    for n in 0..3000u64 {
        drop(a.submit(&numbered(0, n)[..]).unwrap());
    }
    a.append(b"end").unwrap();
    let before = segments();
    a.discard(a.last_index()).unwrap();
    append_until(&a, || segments() <= 2);
    assert!(segments() <= 2, "{} of {before} segments are left", segments());
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
fn session_belongs_to_one_log_and_remembers_its_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    b.append(b"before").unwrap();
    let mut session = a.open_session().unwrap();
    assert_eq!(session.append(b"one").unwrap(), Index(1));
    let id = session.id();
    logs.close().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.get("a").unwrap(), logs.get("b").unwrap());
    let again =
        BatchBuilder::new().session(id, chiplog::Sequence(1), 0).push(b"one").unwrap().build().unwrap();
    assert_eq!(a.append(&again).unwrap().first, Index(1), "a retry gets its first index");
    assert_eq!(a.last_index(), Index(1));
    let other =
        BatchBuilder::new().session(id, chiplog::Sequence(2), 0).push(b"two").unwrap().build().unwrap();
    assert_eq!(b.append(&other).unwrap_err().kind(), ErrorKind::SessionExpired);
    // Another log cannot close it: numbers of sessions are easy to guess.
    b.resume_session(id, chiplog::Sequence(2)).close().unwrap();
    assert_eq!(a.append(&other).unwrap().first, Index(2));
    logs.delete("a").unwrap();
    assert_eq!(logs.groups()[&1].status().sessions, 0, "the session went with its log");
}

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
fn old_records_are_read_without_a_mapping_from_times_and_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let group = group().read_mode(ReadMode::Read);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let mut middle = None;
    for n in 1..=1500u64 {
        drop(a.submit(&numbered(0, n)[..]).unwrap());
        if n % 50 == 0 {
            b.append(&numbered(1, n)[..]).unwrap();
        }
        if n == 700 {
            std::thread::sleep(Duration::from_millis(5));
            let index = b.append(b"middle").unwrap();
            middle = Some(b.read(index).unwrap().timestamp);
        }
    }
    a.append(b"end").unwrap();
    for index in [1, 2, 700, 1499, 1501] {
        assert_eq!(a.read(Index(index)).unwrap().index, Index(index));
    }
    let mut reader = b.reader(Start::Timestamp(middle.unwrap())).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"middle");
    let mut backwards = a.reader(Start::First).unwrap();
    backwards.seek(Index(1000)).unwrap();
    assert_eq!(backwards.next_record().unwrap().unwrap().data, numbered(0, 1000));
    backwards.seek(Index(3)).unwrap();
    assert_eq!(backwards.next_record().unwrap().unwrap().data, numbered(0, 3));
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
fn batches_are_appended_together_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let a = logs.create("a").unwrap();
    let b = logs.create_beside("b", "a").unwrap();
    let c = logs.create_beside("c", "a").unwrap();
    let other = logs.create("other").unwrap();
    let batch = BatchBuilder::new().push(b"x").unwrap().push(b"y").unwrap().build().unwrap();
    let appended = logs.append_together(&[(&a, &batch), (&b, &batch), (&a, &batch)]).unwrap();
    let firsts: Vec<u64> = appended.iter().map(|appended| appended.first.get()).collect();
    assert_eq!(firsts, [1, 1, 3]);
    assert_eq!((records(&a).len(), records(&b).len()), (4, 2));
    logs.seal("c").unwrap();
    let refused = logs.append_together(&[(&a, &batch), (&c, &batch), (&b, &batch)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sealed);
    assert_eq!((a.last_index(), b.last_index()), (Index(4), Index(2)), "nothing was appended");
    let refused = logs.append_together(&[(&a, &batch), (&other, &batch)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "another group");
    let large = BatchBuilder::new().push(&[0; 60_000]).unwrap().build().unwrap();
    let large: Vec<_> = (0..8).map(|_| (&a, &large)).collect();
    assert_eq!(logs.append_together(&large).unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(logs.append_together(&[]).unwrap().is_empty());
    let strangers = tempfile::tempdir().unwrap();
    let strangers = Logs::open(strangers.path(), options()).unwrap();
    let refused = strangers.append_together(&[(&a, &batch)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

/// All tickets of batches that were submitted together are settled together, with callbacks, and a submission that cannot begin
/// leaves nothing.
#[test]
fn batches_are_submitted_together_with_a_ticket_each() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let a = logs.create("a").unwrap();
    let b = logs.create_beside("b", "a").unwrap();
    let other = logs.create("other").unwrap();
    let batch = BatchBuilder::new().push(b"x").unwrap().push(b"y").unwrap().build().unwrap();
    let before = a.submit(&batch).unwrap();
    let tickets = logs.submit_together(&[(&b, &batch), (&a, &batch), (&b, &batch)]).unwrap();
    let after = logs.try_submit_together(&[(&a, &batch)]).unwrap();
    let firsts = |tickets: Vec<Ticket>| -> Vec<u64> {
        tickets.into_iter().map(|ticket| ticket.wait().unwrap().first.get()).collect()
    };
    assert_eq!(before.wait().unwrap().first, Index(1));
    assert_eq!(firsts(tickets), [1, 3, 3], "in the order of the submissions");
    assert_eq!(firsts(after), [5]);

    let (sent, received) = std::sync::mpsc::channel();
    let again = logs.clone();
    let (first, second) = (a.clone(), batch.clone());
    let mut tickets = logs.submit_together(&[(&a, &batch), (&b, &batch)]).unwrap();
    tickets.pop().unwrap().on_complete(move |done| {
        // On the group's thread, which never waits for itself.
        let more = again.submit_together(&[(&first, &second)]);
        sent.send((done.map(|appended| appended.first), more)).unwrap();
    });
    let (done, more) = received.recv().unwrap();
    assert_eq!(done.unwrap(), Index(5));
    assert_eq!(firsts(tickets), [7]);
    assert_eq!(firsts(more.unwrap()), [9]);

    let strangers = tempfile::tempdir().unwrap();
    let strangers = Logs::open(strangers.path(), options()).unwrap();
    let stranger = strangers.create("a").unwrap();
    let refused = [
        logs.submit_together(&[(&a, &batch), (&other, &batch)]),
        logs.try_submit_together(&[(&a, &batch), (&stranger, &batch)]),
        logs.submit_together(&[(&stranger, &batch)]),
        logs.submit_together(&[(logs.system(), &batch)]),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    logs.seal("b").unwrap();
    for ticket in logs.submit_together(&[(&a, &batch), (&b, &batch)]).unwrap() {
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Sealed);
    }
    assert!(logs.submit_together(&[]).unwrap().is_empty());
    assert_eq!((a.last_index(), b.last_index(), stranger.last_index()), (Index(10), Index(6), Index(0)));
}

/// The appends of a log with a long backlog keep their order; those of a quiet log overtake them.
#[test]
fn quiet_log_overtakes_the_backlog_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let group = group().block_bytes_max(16 << 10).batch_bytes_max(16 << 10).record_bytes_max(8 << 10);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let (loud, quiet) = (logs.create("loud").unwrap(), logs.create("quiet").unwrap());
    let mut overtook = false;
    for round in 0..20u64 {
        let backlog: Vec<_> = (0..400u64).map(|n| loud.submit(&numbered(round, n)[..]).unwrap()).collect();
        quiet.append(b"quiet").unwrap();
        overtook |= backlog.last().unwrap().wait_timeout(Duration::ZERO).is_err();
        let indexes: Vec<u64> = backlog.iter().map(|ticket| ticket.wait().unwrap().get()).collect();
        assert!(indexes.is_sorted());
        assert_eq!(indexes.len() as u64, indexes[399] - indexes[0] + 1);
    }
    assert!(overtook, "the quiet log always waited for the whole backlog");
    for (n, (_, record)) in records(&loud).into_iter().enumerate() {
        assert_eq!(record, numbered(n as u64 / 400, n as u64 % 400));
    }
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

/// A retry of a batch in the log was refused as if the log did not hold it.
#[test]
fn retry_gets_its_index_after_the_log_was_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path());
    let log = logs.create("a").unwrap();
    let id = log.open_session().unwrap().id();
    let batch = |n| {
        let mut batch = BatchBuilder::new();
        batch.session(id, chiplog::Sequence(n), 0).push(b"one").unwrap().build().unwrap()
    };
    assert_eq!(log.append(&batch(1)).unwrap().first, Index(1));
    logs.seal("a").unwrap();
    assert_eq!(log.append(&batch(1)).unwrap().first, Index(1));
    assert_eq!(log.append(&batch(2)).unwrap_err().kind(), ErrorKind::Sealed);
}

/// It got `Sealed`, as if the log did not hold it: a client that goes on in another log appends it twice.
#[test]
fn forgotten_retry_is_not_refused_as_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().options(group().session_window(8))).unwrap();
    let log = logs.create("a").unwrap();
    let id = log.open_session().unwrap().id();
    let batch = |n| {
        let mut batch = BatchBuilder::new();
        batch.session(id, chiplog::Sequence(n), 0).push(b"one").unwrap().build().unwrap()
    };
    for n in 1..=10 {
        log.append(&batch(n)).unwrap();
    }
    assert_eq!(log.append(&batch(1)).unwrap_err().kind(), ErrorKind::SequenceForgotten);
    logs.seal("a").unwrap();
    assert_eq!(log.append(&batch(1)).unwrap_err().kind(), ErrorKind::SequenceForgotten);
}

/// It got `Corrupt`: no block contains the record.
#[test]
fn reader_of_a_deleted_log_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for n in 0..2000u64 {
        drop(a.submit(&numbered(0, n)[..]).unwrap());
    }
    a.append(b"end").unwrap();
    let mut reader = a.reader(Start::First).unwrap();
    reader.next_record().unwrap().unwrap();
    logs.delete("a").unwrap();
    for n in 0..2000u64 {
        drop(b.submit(&numbered(1, n)[..]).unwrap());
    }
    b.append(b"end").unwrap();
    let ends = loop {
        match reader.next_record() {
            Ok(Some(record)) => assert!(record.data.starts_with(b"log 0 ") || record.data == b"end"),
            Ok(None) => break None,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(ends, Some(ErrorKind::NotFound), "a reader at the end waits for ever");
    for index in [1, 900, 2001] {
        match a.read(Index(index)) {
            Ok(record) => assert_eq!(record.index.get(), index),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }
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
    assert!(segments() > 1, "commands fill a segment");
    for n in 0..2000u64 {
        drop(log.submit(&numbered(0, n)[..]).unwrap());
    }
    let end = log.append(b"end").unwrap();
    assert!(segments() > 3);
    log.discard(end).unwrap();
    append_until(&log, || segments() <= 2);
    assert!(segments() <= 2, "{} segments are left", segments());
}

/// It was the number of records in the whole group.
#[test]
fn barrier_of_a_named_log_returns_its_own_end() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for _ in 0..5 {
        b.append(b"x").unwrap();
    }
    a.append(b"x").unwrap();
    assert_eq!(a.barrier(Duration::from_secs(20)).unwrap(), Index(1));
    assert_eq!(b.barrier(Duration::from_secs(20)).unwrap(), Index(5));
}

/// Damage in a block's header hid all records behind it in the segment, of every log, and some before it. A search by
/// time passed over it.
#[test]
fn damage_in_a_block_leaves_the_others_readable() {
    let dir = tempfile::tempdir().unwrap();
    // Copies would have the records, too.
    let options = || LogsOptions::default().groups(1).options(group().sorted_copies(false));
    let logs = Logs::open(dir.path(), options()).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for n in 1..=1200u64 {
        let (log, of) = if n % 2 == 0 { (&a, 0) } else { (&b, 1) };
        log.append(&numbered(of, n)[..]).unwrap();
    }
    assert!(logs.groups()[&1].status().segments > 2);
    logs.close().unwrap();
    let file = dir.path().join("group-1/00000000000000000001.seg");
    let mut bytes = std::fs::read(&file).unwrap();
    let blocks: Vec<usize> = (4096..bytes.len() - 64)
        .step_by(64)
        .filter(|at| &bytes[*at..at + 4] == b"CLB1" && bytes[at + 60] == 8)
        .collect();
    for (at, what) in [(20, "header"), (64 + 20, "table"), (64 + 60, "batch")] {
        let damaged = blocks[40] + at;
        bytes[damaged] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        bytes[damaged] ^= 1;
        let logs = Logs::open(dir.path(), options()).unwrap();
        let mut lost = Vec::new();
        for (name, of) in [("a", 0u64), ("b", 1)] {
            let log = logs.get(name).unwrap();
            assert_eq!(log.last_index(), Index(600));
            for index in 1..=600u64 {
                let n = if of == 0 { 2 * index } else { 2 * index - 1 };
                match log.read(Index(index)) {
                    Ok(record) => assert_eq!(record.data, numbered(of, n), "{what}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                        assert!(error.location().is_some(), "{what}: {error}");
                        lost.push(n);
                    }
                }
            }
        }
        lost.sort_unstable();
        // One block a record; behind a damaged header, blocks up to the next one in the index are not found.
        assert!(lost.contains(&41), "{what}: {lost:?}");
        assert!(lost.len() == 1 || (what == "header" && lost.len() < blocks.len() - 60), "{what}: {lost:?}");
        assert!(lost.iter().all(|n| *n >= 41), "{what}: {lost:?}");
        let from_time = logs.get("b").unwrap().reader(Start::Timestamp(chiplog::Timestamp(1)));
        match from_time {
            Ok(reader) => assert_eq!(reader.position(), Index(1), "{what}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}"),
        }
        logs.close().unwrap();
    }
}

/// Before, only the first block that waited was refused, and the callers of all others waited for ever.
#[test]
fn every_append_that_waits_is_answered_when_the_logs_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let group = group().block_bytes_max(8 << 10).batch_bytes_max(8 << 10).record_bytes_max(4 << 10);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let log = logs.create("a").unwrap();
    let tickets: Vec<_> = (0..2000u64).map(|n| log.submit(&numbered(0, n)[..]).unwrap()).collect();
    logs.close().unwrap();
    let answered =
        tickets.iter().filter(|ticket| ticket.wait_timeout(Duration::from_secs(60)).is_ok()).count();
    assert_eq!(answered, 2000, "a log on its own commits what was submitted before it is closed");
}

/// Before, the sum of the records wrapped around in the block's header.
#[test]
fn more_records_together_than_a_block_counts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), LogsOptions::default().groups(1)).unwrap();
    let log = logs.create("a").unwrap();
    let mut builder = BatchBuilder::new();
    builder.codec(chiplog::Codec::Zstd);
    for _ in 0..1 << 20 {
        builder.push(b"").unwrap();
    }
    let batch = builder.build().unwrap();
    let together: Vec<_> = (0..4096).map(|_| (&log, &batch)).collect();
    assert_eq!(logs.append_together(&together).unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(log.range().is_empty());
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
