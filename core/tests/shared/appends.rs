//! Appends: of many threads, in sessions, to several logs together; which of them are refused.

use crate::support::{group, numbered, open, options, records};
use chiplog::{BatchBuilder, ErrorKind, Index, Log, LogOption, Logs, LogsOptions, Ticket};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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

/// Async code waits for room as it does for one log. A future that is dropped while it waits has submitted nothing.
#[test]
fn batches_that_belong_together_wait_for_room_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), LogsOptions::default().options(group().queue_appends_max(2))).unwrap();
    let a = logs.create("a").unwrap();
    let b = logs.create_beside("b", "a").unwrap();
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    let pair = [(&a, &batch), (&b, &batch)];
    let mut context = Context::from_waker(Waker::noop());
    let (mut tickets, mut dropped, mut waited) = (Vec::new(), 0, 0);
    for n in 0..2_000 {
        let mut submitting = pin!(logs.submit_together_when_room(&pair));
        let mut submitted = submitting.as_mut().poll(&mut context);
        if submitted.is_pending() && n % 2 == 0 {
            dropped += 1;
            continue;
        }
        while submitted.is_pending() {
            waited += 1;
            std::thread::yield_now();
            submitted = submitting.as_mut().poll(&mut context);
        }
        let Poll::Ready(submitted) = submitted else { unreachable!() };
        tickets.push(submitted.unwrap());
    }
    let submitted = tickets.len() as u64;
    assert_eq!(submitted, 2_000 - dropped);
    assert!(dropped > 0 && waited > 0, "the queue was never full");
    for (n, pair) in (1..).zip(tickets) {
        pair.into_iter().for_each(|ticket| assert_eq!(ticket.wait().unwrap().first, Index(n)));
    }
    assert_eq!((a.last_index(), b.last_index()), (Index(submitted), Index(submitted)));
    let rate = LogOption::AppendBytesPerSecond;
    b.set_log_options(&[(rate, Some(1))], Duration::from_secs(10)).unwrap();
    b.append(&batch).unwrap();
    let Poll::Ready(refused) = pin!(logs.submit_together_when_room(&pair)).poll(&mut context) else {
        panic!("it waits")
    };
    let refused = refused.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Busy && refused.retry_after().is_some(),
        "the rate of one of them: {refused}"
    );
    logs.close().unwrap();
    let Poll::Ready(refused) = pin!(logs.submit_together_when_room(&pair)).poll(&mut context) else {
        panic!("it waits")
    };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
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
