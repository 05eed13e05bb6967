//! A follower gets the source's log: the same records, chains, the tail, beginnings.

use crate::support::*;
use chiplog::cluster::Role;
use chiplog::follower::FollowFrom;
use chiplog::{BatchBuilder, Codec, ErrorKind, FollowerLog, Index, Log, ReadOnlyLog, Start};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn follower_has_the_same_log_and_continues_where_it_stopped() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let follower = create(&source, FollowFrom::First, b.path());
    for round in 1..6u64 {
        append(&source, round * 100..round * 100 + 80);
        let mut session = source.open_session().unwrap();
        session.append(b"in a session").unwrap();
        if round % 2 == 0 {
            session.close().unwrap();
        }
        let mut batch = BatchBuilder::new();
        batch.codec(Codec::Zstd);
        for _ in 0..100 {
            batch.push(&[7; 300]).unwrap();
        }
        source.append(&batch.build().unwrap()).unwrap();
        assert_eq!(catch_up(&source, &follower), []);
        assert_same(follower.log(), &source);
    }
    let info = follower.log().status();
    assert!(info.follows && !source.status().follows && info.segments > 3);
    follower.close().unwrap();
    assert_eq!(follower.resume_point().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(follower.sync().unwrap_err().kind(), ErrorKind::Closed);
    drop(follower);
    assert_sound(b.path());
    append(&source, 600..700);
    let follower = FollowerLog::open(b.path(), options()).unwrap();
    assert_eq!(follower.log().last_index(), info.last_index);
    assert_eq!(catch_up(&source, &follower), []);
    assert_same(follower.log(), &source);
    // The state of sessions was fed as well: a session that continues from here knows its batches.
    assert_eq!(state(follower.log(), FollowFrom::Newest).next(), state(&source, FollowFrom::Newest).next());
    follower.sync().unwrap();
    assert_eq!(follower.log().durable_index(), follower.log().last_index());
    assert_sound(b.path());
    // A read-only log shows the same.
    let read_only = ReadOnlyLog::open(b.path()).unwrap();
    wait_until("the read-only log shows all records", || read_only.last_index() == source.last_index());
    assert!(read_only.status().follows);
}

#[test]
fn followers_follow_followers_while_the_source_is_written() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let source = Log::open(dirs[0].path(), options()).unwrap();
    append(&source, 0..10);
    let mut chain: Vec<FollowerLog> = Vec::new();
    for dir in &dirs[1..] {
        let above = chain.last().map_or(&source, |f| f.log());
        chain.push(create(above, FollowFrom::First, dir.path()));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..chain.len() {
            let (chain, done) = (&chain, &done);
            let above = if n == 0 { &source } else { chain[n - 1].log() };
            scope.spawn(move || {
                let mut feed = above.follow(chain[n].resume_point().unwrap()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    while let Some(fed) = feed.next(20_000).unwrap() {
                        assert_eq!(chain[n].apply(fed).unwrap(), None);
                    }
                    feed.wait(Some(Duration::from_millis(20))).unwrap();
                }
            });
        }
        // A reader at the tail of the last one gets all records in order.
        let last = &chain[2];
        let reader = scope.spawn(move || {
            let mut reader = last.log().reader(Start::First).unwrap();
            let mut next = 1;
            while next <= 2010 {
                assert!(reader.wait(Some(PATIENCE)).unwrap());
                while let Some(record) = reader.next_record().unwrap() {
                    assert_eq!(record.index, Index(next));
                    next += 1;
                }
            }
        });
        for n in 0..20 {
            append(&source, n * 100..n * 100 + 100);
        }
        let finished = reader.join();
        done.store(true, Ordering::Relaxed);
        finished.unwrap();
    });
    for follower in &chain {
        assert_eq!(catch_up(&source, follower), []);
        assert_same(follower.log(), &source);
        assert_eq!(follower.log().role(), Role::Observer);
    }
}

#[test]
fn reader_and_feed_at_the_tail_wake() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FollowFrom::Newest, b.path());
    let reader = follower.log().reader(Start::Next).unwrap();
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    assert!(feed.next(1000).unwrap().is_none());
    assert!(!feed.wait(Some(Duration::ZERO)).unwrap() && !feed.is_behind());
    let (tx, rx) = mpsc::channel();
    let told = tx.clone();
    feed.on_more(move || told.send("fed").unwrap());
    reader.on_more(move || tx.send("read").unwrap());
    // An entry without records wakes a feed, but no reader.
    source.open_session().unwrap();
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), "fed");
    assert_eq!(catch_up(&source, &follower), []);
    assert!(rx.try_recv().is_err());
    source.append(b"x").unwrap();
    assert_eq!(catch_up(&source, &follower), []);
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), "read");
    assert!(reader.wait(Some(Duration::ZERO)).unwrap());
    let at_the_end = follower.log().reader(Start::Next).unwrap();
    let waits = std::thread::spawn(move || at_the_end.wait(None));
    follower.close().unwrap();
    assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn feed_begins_anywhere() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    for n in 0..10 {
        append(&source, n * 50..n * 50 + 50);
    }
    source.discard(Index(101)).unwrap();
    let all = records(&source);
    for index in [101, 102, 250, 499, 500, 501] {
        let state = state(&source, FollowFrom::Index(Index(index)));
        assert!(state.next() <= Index(index) && state.next().get() + 50 > index, "{index}: {}", state.next());
        let dir = tempfile::tempdir().unwrap();
        let follower = FollowerLog::create(dir.path(), options(), &state).unwrap();
        assert_eq!(follower.log().first_index(), state.next());
        catch_up(&source, &follower);
        let wanted: Records = all.iter().filter(|(i, ..)| *i >= state.next()).cloned().collect();
        let here: Records = records(follower.log()).into_iter().filter(|(i, ..)| i.get() >= 101).collect();
        assert_eq!(here, wanted);
        follower.close().unwrap();
        assert_eq!(FollowerLog::open(dir.path(), options()).unwrap().log().last_index(), Index(500));
    }
    assert_eq!(source.follow(FollowFrom::Index(Index(100))).unwrap_err().kind(), ErrorKind::Discarded);
    assert_eq!(source.follow(FollowFrom::Index(Index(502))).unwrap_err().kind(), ErrorKind::OutOfRange);
    let newest = create(&source, FollowFrom::Newest, b.path());
    assert_eq!(newest.log().first_index(), Index(501));
    source.append(b"the first one here").unwrap();
    catch_up(&source, &newest);
    assert_eq!(records(newest.log()), records(&source)[400..]);
}

#[test]
fn many_threads_may_take() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..1000);
    let follower = create(&source, FollowFrom::First, b.path());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
                while let Some(fed) = feed.next(3000).unwrap() {
                    // Another thread was faster, perhaps by more entries than this one knows.
                    if let Err(error) = follower.apply(fed) {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
                        feed = source.follow(follower.resume_point().unwrap()).unwrap();
                    }
                }
            });
        }
    });
    assert_same(follower.log(), &source);
}
