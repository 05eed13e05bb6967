//! One copy of one log: how it starts, continues after a reopen, jumps, and discards.

use crate::served::{One, free_port};
use crate::support::{LONG, append, event, follow, quick, same, stored, until};
use chiplog::{ErrorKind, Index, Options, Start, Timestamp};
use chiplog_net::follower::{Follower, FollowerEvent};
use std::time::Duration;

/// A copy gets existing and new records, is read like any log, and rejects appends.
#[test]
fn copy_catches_up_and_follows_one_server() {
    let one = One::new();
    let before = append(&one.log, 2_000, 300);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(before, LONG).unwrap();
    same(copy.log(), &one.log, before);
    let mut reader = copy.reader(Start::Next).unwrap();
    let index = one.log.append(b"live").unwrap();
    assert!(reader.wait(Some(LONG)).unwrap());
    let record = reader.next_record().unwrap().unwrap();
    assert_eq!((record.index, record.data), (index, &b"live"[..]));
    let status = copy.status();
    assert_eq!((status.server.as_deref(), status.connects, status.lag()), (Some(&*one.address()), 1, 0));
    assert_eq!((status.received_records, status.fed), (index.get(), true));
    assert_eq!(copy.log().append(b"x").unwrap_err().kind(), ErrorKind::NotLeader);
    assert_eq!(copy.log().discard(index).unwrap_err().kind(), ErrorKind::NotLeader);
    let late = copy.wait_for(index.next(), Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    event(&copy, |e| matches!(e, FollowerEvent::Connected { .. }).then_some(()));
    copy.close().unwrap();
    assert_eq!(copy.wait_for(index.next(), LONG).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(copy.next_event(LONG).unwrap_err().kind(), ErrorKind::Closed);
    copy.close().unwrap();
}

/// It continues at its position: only new records are sent. A start is ignored then, and no server is needed.
#[test]
fn reopened_copy_continues_at_its_position() {
    let one = One::new();
    let many = append(&one.log, 1_000, 1_000);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(many, LONG).unwrap();
    drop(copy);
    let more = append(&one.log, 10, 1_000);
    let sent = one.server.host.copies().bytes;
    let copy = follow(dir.path(), &[one.address()], Start::Next);
    copy.wait_for(more, LONG).unwrap();
    let status = copy.status();
    assert_eq!((status.received_records, status.first, status.jumps), (10, Index(1), 0));
    let sent = one.server.host.copies().bytes - sent;
    assert!(sent < 20_000 && sent == status.received_bytes, "{sent} {status:?}");
    same(copy.log(), &one.log, more);
    copy.close().unwrap();

    let alone = follow(dir.path(), &[format!("127.0.0.1:{}", free_port())], Start::First);
    assert_eq!((alone.status().last, alone.status().server), (more, None));
    event(&alone, |e| matches!(e, FollowerEvent::Failed { server: None, .. }).then_some(()));
    assert_eq!(alone.status().last_error.map(|e| e.kind()), Some(ErrorKind::Unavailable));
    alone.close().unwrap();
}

#[test]
fn new_copy_starts_at_the_given_position() {
    let one = One::new();
    append(&one.log, 100, 100);
    let begin = |from| {
        let dir = tempfile::tempdir().unwrap();
        let opened = Follower::open(dir.path(), [one.address()], from, quick());
        opened.map(|copy| (copy.status().first, copy, dir))
    };
    assert_eq!(begin(Start::Next).unwrap().0, Index(101));
    let (first, copy, _dir) = begin(Start::Index(Index(50))).unwrap();
    assert!(first <= Index(50) && first > Index(0), "{first}");
    same(copy.log(), &one.log, Index(100));
    let (first, copy, _dir) = begin(Start::Last(3)).unwrap();
    assert!(first <= Index(98), "{first}");
    same(copy.log(), &one.log, Index(100));
    assert_eq!(begin(Start::Last(0)).unwrap().0, Index(101));
    assert_eq!(begin(Start::Last(1000)).unwrap().0, Index(1), "as many as there are");
    let times = stored(&one.log, Index(1), Index(100));
    let time = times[times.len() / 2].1;
    let since = times.iter().find(|(_, t, _)| *t >= time).unwrap().0;
    let (first, copy, _dir) = begin(Start::Timestamp(Timestamp(time))).unwrap();
    assert!(first <= since, "{first} for {since}");
    same(copy.log(), &one.log, Index(100));
    let later = Timestamp(time + 1_000_000_000);
    assert_eq!(begin(Start::Timestamp(later)).unwrap().0, Index(101), "not appended yet");
    assert_eq!(begin(Start::Timestamp(Timestamp(0))).unwrap().0, Index(1));
    one.log.discard(Index(60)).unwrap();
    let (first, copy, _dir) = begin(Start::First).unwrap();
    assert!(first <= Index(60), "with the block that holds it: {first}");
    until("the discard has arrived as well", || copy.status().first == Index(60));
    let error = |from| begin(from).err().map(|e| e.kind());
    assert_eq!(error(Start::Index(Index(59))), Some(ErrorKind::Discarded));
    let none: [String; 0] = [];
    for (servers, open_timeout) in [(none.as_slice(), LONG), (&["nowhere".to_owned()], LONG)] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = quick();
        options.open_timeout = open_timeout;
        let refused = Follower::open(dir.path(), servers.iter().cloned(), Start::First, options);
        assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for window_bytes in [0, 1 << 31] {
        let dir = tempfile::tempdir().unwrap();
        let options = quick().window_bytes(window_bytes);
        let refused =
            Follower::open(dir.path(), [one.address()], Start::First, options).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("window_bytes"), "{refused}");
    }
    let mut options = quick();
    options.open_timeout = Duration::from_millis(300);
    let nobody = format!("127.0.0.1:{}", free_port());
    let dir = tempfile::tempdir().unwrap();
    let refused = Follower::open(dir.path(), [nobody], Start::First, options);
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// A copy may keep fewer records than the log, and reports what it discarded.
#[test]
fn copy_has_its_own_retention() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options::with_segment_bytes(1 << 20).retention_bytes(4 << 20);
    let copy = Follower::open(dir.path(), [one.address()], Start::First, options).unwrap();
    let last = append(&one.log, 10_000, 1_000);
    copy.wait_for(last, LONG).unwrap();
    let first = event(&copy, |e| match e {
        FollowerEvent::Discarded { first } => Some(*first),
        _ => None,
    });
    assert!(first > Index(1) && copy.status().first >= first && copy.status().jumps == 0);
    assert_eq!(one.log.first_index(), Index(1));
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}

/// Everything that a copy needs next was discarded while it was away: it reports this, and continues behind it.
#[test]
fn late_copy_jumps_and_reports_it() {
    let one = One::new();
    let before = append(&one.log, 500, 1_000);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(before, LONG).unwrap();
    copy.close().unwrap();
    append(&one.log, 5_000, 1_000);
    one.log.discard(Index(4_000)).unwrap();
    until("files are removed", || one.log.status().segments < 4);
    let last = append(&one.log, 10, 1_000);
    let copy = follow(dir.path(), &[one.address()], Start::First);
    let mut reader = copy.reader(Start::Index(before)).ok();
    let (from, to) = event(&copy, |e| match e {
        FollowerEvent::Jumped { from, to } => Some((*from, *to)),
        _ => None,
    });
    assert_eq!(from, before.next());
    assert!(to > from && to <= Index(4_000), "{to}");
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);
    assert_eq!((copy.status().jumps, copy.status().first >= to), (1, true));
    if let Some(reader) = &mut reader {
        // It may still return the records that it holds; then it returns the error.
        let error = loop {
            match reader.next_record() {
                Ok(Some(record)) => assert!(record.index <= before),
                Ok(None) => panic!("the tail, in front of a hole"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Discarded);
    }
    copy.close().unwrap();
}
