//! Followers: a log that follows another one, on real disks: what a program sees that has a copy of a log.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use bytes::Bytes;
use chiplog::inspect::{Event, Inspector};
use chiplog::transport::MemoryNetwork;
use chiplog::{
    BatchBuilder, Bootstrap, Change, Clock, Cluster, Codec, ErrorKind, Fed, FedState, FeedFrom, Followed,
    Index, Jumped, Log, NodeId, Options, Role, Sequence, Start, Timestamp, Viewer,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Small segments, so that a short log rolls.
fn options() -> Options {
    Options { block_bytes_max: 4096, ..Options::with_segment_bytes(64 << 10) }
}

/// What came out of a feed, as it arrives: cut into other pieces.
fn travel(fed: &Fed) -> Fed {
    let (head, pieces) = fed.encode();
    let whole = Bytes::from(pieces.concat());
    let pieces = (0..whole.len()).step_by(7).map(|at| whole.slice(at..whole.len().min(at + 7))).collect();
    Fed::decode(head, pieces).unwrap()
}

fn state(source: &Log, from: FeedFrom) -> FedState {
    match travel(&source.feed(from).unwrap().next(1).unwrap().unwrap()) {
        Fed::State(state) => state,
        other => panic!("a feed that begins anew gives a state first, not {other:?}"),
    }
}

fn create(source: &Log, from: FeedFrom, dir: &Path) -> Followed {
    Followed::create(dir, options(), &state(source, from)).unwrap()
}

/// Feeds all there is, in small portions. Returns the jumps.
fn catch_up(source: &Log, follower: &Followed) -> Vec<Jumped> {
    let mut feed = source.feed(follower.want().unwrap()).unwrap();
    let mut jumps = Vec::new();
    while let Some(fed) = feed.next(5000).unwrap() {
        jumps.extend(follower.take(travel(&fed)).unwrap());
    }
    jumps
}

type Records = Vec<(Index, Vec<u8>, Timestamp)>;

fn records(log: &Log) -> Records {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index, record.data.to_vec(), record.timestamp));
    }
    records
}

fn append(log: &Log, range: std::ops::Range<u64>) {
    let tickets: Vec<_> = range
        .map(|n| log.submit(format!("record {n} {}", "x".repeat(n as usize * 37 % 900)).as_bytes()).unwrap())
        .collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}

/// Both hold the same, and say the same of it.
fn assert_same(follower: &Log, source: &Log) {
    assert_eq!(records(follower), records(source));
    let (here, there) = (follower.info(), source.info());
    assert_eq!((here.log_id, here.first, here.last), (there.log_id, there.first, there.last));
    assert_eq!((here.sessions, here.last_timestamp), (there.sessions, there.last_timestamp));
    assert_ne!(here.directory, there.directory);
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "never came about: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What `chiplog verify` would say of a directory.
fn assert_sound(dir: &Path) {
    let mut faults = Vec::new();
    let mut look = |event: Event<'_>| {
        if let Event::Fault(fault) = event {
            faults.push(fault.to_string());
        }
        ControlFlow::Continue(())
    };
    let report = Inspector::open(dir).unwrap().walk(&mut look).unwrap();
    assert_eq!(report.corrupt, 0, "{report:?} {faults:#?}");
}

#[test]
fn a_follower_has_the_same_log_and_goes_on_where_it_stopped() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let follower = create(&source, FeedFrom::First, b.path());
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
        source.append_batch(&batch.build().unwrap()).unwrap();
        assert_eq!(catch_up(&source, &follower), []);
        assert_same(follower.log(), &source);
    }
    let info = follower.log().info();
    assert!(info.follows && !source.info().follows && info.segments > 3);
    follower.close().unwrap();
    assert_eq!(follower.want().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(follower.sync().unwrap_err().kind(), ErrorKind::Closed);
    drop(follower);
    assert_sound(b.path());
    append(&source, 600..700);
    let follower = Followed::open(b.path(), options()).unwrap();
    assert_eq!(follower.log().info().last, info.last);
    assert_eq!(catch_up(&source, &follower), []);
    assert_same(follower.log(), &source);
    // The state of sessions came with the rest: what continues from here knows of them.
    assert_eq!(state(follower.log(), FeedFrom::Newest).next(), state(&source, FeedFrom::Newest).next());
    follower.sync().unwrap();
    assert_eq!(follower.log().info().durable, follower.log().info().last);
    assert_sound(b.path());
    // From outside, too.
    let viewer = Viewer::open(b.path()).unwrap();
    wait_until("the viewer sees all", || viewer.info().last == source.info().last);
    assert!(viewer.info().follows);
}

#[test]
fn followers_follow_followers_while_the_source_is_written() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let source = Log::open(dirs[0].path(), options()).unwrap();
    append(&source, 0..10);
    let mut chain: Vec<Followed> = Vec::new();
    for dir in &dirs[1..] {
        let above = chain.last().map_or(&source, |f| f.log());
        chain.push(create(above, FeedFrom::First, dir.path()));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..chain.len() {
            let (chain, done) = (&chain, &done);
            let above = if n == 0 { &source } else { chain[n - 1].log() };
            scope.spawn(move || {
                let mut feed = above.feed(chain[n].want().unwrap()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    while let Some(fed) = feed.next(20_000).unwrap() {
                        assert_eq!(chain[n].take(fed).unwrap(), None);
                    }
                    feed.wait(Some(Duration::from_millis(20))).unwrap();
                }
            });
        }
        // A reader at the tail of the last one gets all of it, in order.
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
        assert_eq!(follower.log().status().role, Role::Observer);
    }
}

#[test]
fn a_reader_and_a_feed_at_the_tail_wake() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FeedFrom::Newest, b.path());
    let reader = follower.log().reader(Start::Next).unwrap();
    let mut feed = source.feed(follower.want().unwrap()).unwrap();
    assert!(feed.next(1000).unwrap().is_none());
    assert!(!feed.wait(Some(Duration::ZERO)).unwrap() && !feed.is_behind());
    let (tx, rx) = mpsc::channel();
    let told = tx.clone();
    feed.on_more(move || told.send("fed").unwrap());
    reader.on_more(move || tx.send("read").unwrap());
    // An entry without records wakes a feed, and no reader.
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
fn a_discard_at_the_source_is_one_here() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..500);
    let follower = create(&source, FeedFrom::First, b.path());
    catch_up(&source, &follower);
    let segments = follower.log().info().segments;
    let mut reader = follower.log().reader(Start::First).unwrap();
    source.discard(Index(400)).unwrap();
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
    assert_eq!(reader.next_record().unwrap_err().kind(), ErrorKind::Discarded);
    // Beyond the end as well: there are no records in between.
    source.discard(Index(1000)).unwrap();
    append(&source, 0..5);
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
    assert_eq!(follower.log().info().first, Index(1000));
    follower.sync().unwrap();
    assert!(follower.log().info().segments < segments);
    drop(follower);
    let follower = Followed::open(b.path(), options()).unwrap();
    assert_same(follower.log(), &source);
}

/// As a queue is used: what comes is discarded soon. However much is fed at once, and however quickly, the files go.
#[test]
fn discards_make_room_while_a_follower_catches_up() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FeedFrom::First, b.path());
    let mut feed = source.feed(follower.want().unwrap()).unwrap();
    let mut fed = Vec::new();
    for round in 1..=40u64 {
        for _ in 0..20 {
            source.append(&[round as u8; 9000]).unwrap();
        }
        // It is fed before it is discarded.
        fed.extend(std::iter::from_fn(|| feed.next(1 << 20).unwrap()));
        source.discard(Index(round * 20 - 3)).unwrap();
        fed.extend(std::iter::from_fn(|| feed.next(1 << 20).unwrap()));
    }
    let mut most = 0;
    for fed in fed {
        assert_eq!(follower.take(fed).unwrap(), None);
        most = most.max(follower.log().info().segments);
    }
    assert!(most < 20, "{most} segments of more than 100");
    assert_same(follower.log(), &source);
    follower.sync().unwrap();
    assert!(follower.log().info().segments <= 2, "{:?}", follower.log().info());
}

/// Readers never see anything but records in order, or that they were discarded.
#[test]
fn a_follower_that_lags_jumps() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..200);
    let follower = create(&source, FeedFrom::First, b.path());
    catch_up(&source, &follower);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|n| {
                let (follower, done) = (&follower, &done);
                scope.spawn(move || {
                    let mut discarded = 0;
                    while !done.load(Ordering::Relaxed) {
                        let start = if n == 0 { Start::First } else { Start::Last(30) };
                        let mut reader = follower.log().reader(start).unwrap();
                        loop {
                            match reader.next_record() {
                                Ok(Some(record)) => assert!(record.data.starts_with(b"record ")),
                                Ok(None) => break,
                                Err(e) if e.kind() == ErrorKind::Discarded => {
                                    discarded += 1;
                                    break;
                                }
                                Err(e) => panic!("{e:?}"),
                            }
                        }
                    }
                    discarded
                })
            })
            .collect();
        for round in 1..30 {
            let before = follower.log().info();
            append(&source, 0..300);
            let first = Index(source.info().last.get() - 20);
            source.discard(first).unwrap();
            append(&source, 0..20);
            // Gone at the source once its files are.
            wait_until("the files are gone", || source.info().segments <= 2);
            let jumps = catch_up(&source, &follower);
            assert_eq!(jumps.len(), 1, "round {round}: {jumps:?}");
            assert_eq!(jumps[0].from, before.last.next());
            assert!(jumps[0].to > jumps[0].from && jumps[0].to <= first);
            assert_same(follower.log(), &source);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
    let old = follower.log().read(Index(1)).unwrap_err();
    assert_eq!(old.kind(), ErrorKind::Discarded);
    drop(follower);
    assert_sound(b.path());
    let follower = Followed::open(b.path(), options()).unwrap();
    assert_same(follower.log(), &source);
    // Where it stands already there is nowhere to jump to; back it never goes.
    let state = |from| state(&source, from);
    assert_eq!(follower.begin(&state(FeedFrom::Newest)).unwrap(), None);
    let error = follower.begin(&state(FeedFrom::First)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Diverged);
    assert_same(follower.log(), &source);
}

#[test]
fn a_feed_begins_anywhere() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    for n in 0..10 {
        append(&source, n * 50..n * 50 + 50);
    }
    source.discard(Index(101)).unwrap();
    let all = records(&source);
    for index in [101, 102, 250, 499, 500, 501] {
        let state = state(&source, FeedFrom::Index(Index(index)));
        assert!(state.next() <= Index(index) && state.next().get() + 50 > index, "{index}: {}", state.next());
        let dir = tempfile::tempdir().unwrap();
        let follower = Followed::create(dir.path(), options(), &state).unwrap();
        assert_eq!(follower.log().info().first, state.next());
        catch_up(&source, &follower);
        let wanted: Records = all.iter().filter(|(i, ..)| *i >= state.next()).cloned().collect();
        let here: Records = records(follower.log()).into_iter().filter(|(i, ..)| i.get() >= 101).collect();
        assert_eq!(here, wanted);
        follower.close().unwrap();
        assert_eq!(Followed::open(dir.path(), options()).unwrap().log().info().last, Index(500));
    }
    assert_eq!(source.feed(FeedFrom::Index(Index(100))).unwrap_err().kind(), ErrorKind::Discarded);
    assert_eq!(source.feed(FeedFrom::Index(Index(502))).unwrap_err().kind(), ErrorKind::OutOfRange);
    let newest = create(&source, FeedFrom::Newest, b.path());
    assert_eq!(newest.log().info().first, Index(501));
    source.append(b"the first one here").unwrap();
    catch_up(&source, &newest);
    assert_eq!(records(newest.log()), records(&source)[400..]);
}

/// Two copies of one directory, each written to: the same log by its id, and two histories.
#[test]
fn another_history_is_never_followed() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..20);
    source.close().unwrap();
    drop(source);
    copy_dir(a.path(), b.path());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 20..40);
    for _ in 0..3 {
        Log::open(b.path(), options()).unwrap().close().unwrap(); // each opening begins a term
    }
    let other = Log::open(b.path(), options()).unwrap();
    append(&other, 40..90);
    let follower = create(&source, FeedFrom::First, c.path());
    catch_up(&source, &follower);
    let before = (records(follower.log()), follower.want().unwrap());
    let mut feed = other.feed(follower.want().unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(feed.next(1000).unwrap_err().kind(), ErrorKind::Diverged);
    }
    // And should its entries come all the same: those beyond, those that are here already, a state.
    let mut feed = other.feed(FeedFrom::First).unwrap();
    let mut refused = 0;
    while let Some(fed) = feed.next(1).unwrap() {
        if let Err(error) = follower.take(fed) {
            assert!(matches!(error.kind(), ErrorKind::Diverged | ErrorKind::InvalidArgument), "{error:?}");
            refused += 1;
        }
        assert_eq!((records(follower.log()), follower.want().unwrap()), before);
    }
    assert!(refused > 3);
    // Another log altogether.
    let d = tempfile::tempdir().unwrap();
    let stranger = Log::open(d.path(), options()).unwrap();
    append(&stranger, 0..100);
    assert_eq!(stranger.feed(follower.want().unwrap()).unwrap_err().kind(), ErrorKind::Diverged);
    let mut feed = stranger.feed(FeedFrom::First).unwrap();
    while let Some(fed) = feed.next(10_000).unwrap() {
        assert_eq!(follower.take(fed).unwrap_err().kind(), ErrorKind::Diverged);
    }
    // It is as good as before.
    append(&source, 0..20);
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
}

fn copy_dir(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Two copies of one directory again, but so alike that only the meaning of an entry tells them apart: a batch that
/// leaves its session's order. It changes nothing, neither the log nor what is remembered of sessions.
#[test]
fn an_entry_of_which_only_the_meaning_is_wrong_is_refused_whole() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let session = source.open_session().unwrap().id();
    source.close().unwrap();
    drop(source);
    copy_dir(a.path(), b.path());
    let source = Log::open(a.path(), options()).unwrap();
    let other = Log::open(b.path(), options()).unwrap();
    source.append(b"one").unwrap();
    let mut handle = other.resume_session(session, Sequence(1));
    handle.append(b"one").unwrap();
    handle.append(b"two").unwrap();
    let follower = create(&source, FeedFrom::First, c.path());
    catch_up(&source, &follower);
    let fed = other.feed(follower.want().unwrap()).unwrap().next(1 << 20).unwrap().unwrap();
    for _ in 0..2 {
        let error = follower.take(fed.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Diverged);
        assert!(error.to_string().contains("session"), "{error}");
        assert_same(follower.log(), &source);
    }
    let mut handle = source.resume_session(session, Sequence(1));
    handle.append(b"two").unwrap();
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
    assert_eq!(
        state(follower.log(), FeedFrom::Newest).timestamp(),
        state(&source, FeedFrom::Newest).timestamp()
    );
}

#[test]
fn what_is_here_already_is_passed_over_and_a_gap_is_refused() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    source.append(b"1").unwrap();
    let begin = state(&source, FeedFrom::Newest);
    let follower = Followed::create(b.path(), options(), &begin).unwrap();
    for word in [b"2", b"3", b"4"] {
        source.append(word).unwrap();
    }
    let from = FeedFrom::After { log: begin.log(), raft: begin.raft(), term: begin.term() };
    let fed: Vec<Fed> = {
        let mut feed = source.feed(from).unwrap();
        std::iter::from_fn(|| feed.next(1).unwrap()).collect()
    };
    assert_eq!(fed.len(), 3);
    assert_eq!(follower.take(fed[1].clone()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(follower.log().info().last, Index(1));
    for n in [0, 0, 1, 0, 1] {
        follower.take(fed[n].clone()).unwrap();
    }
    // All of it at once, most of it known.
    follower.take(source.feed(from).unwrap().next(1 << 20).unwrap().unwrap()).unwrap();
    assert_eq!(records(follower.log()), records(&source)[1..]);
}

#[test]
fn no_flipped_byte_is_stored() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FeedFrom::First, b.path());
    let mut session = source.open_session().unwrap();
    session.append(b"of a session").unwrap();
    append(&source, 0..3);
    let mut feed = source.feed(follower.want().unwrap()).unwrap();
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        let (head, pieces) = fed.encode();
        let body = pieces.concat();
        let take = |head: Vec<u8>, body: Vec<u8>| {
            Fed::decode(head.into(), vec![body.into()]).and_then(|fed| follower.take(fed))
        };
        let before = (follower.log().info(), follower.want().unwrap());
        for byte in 0..head.len() {
            let mut bad = head.to_vec();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(
                take(bad, body.clone()).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "byte {byte} of the head"
            );
        }
        for byte in 0..body.len() {
            let mut bad = body.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(
                take(head.to_vec(), bad).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "byte {byte} of a body"
            );
        }
        assert_eq!((follower.log().info(), follower.want().unwrap()), before);
        take(head.to_vec(), body).unwrap();
    }
    assert_same(follower.log(), &source);
}

#[test]
fn a_follower_keeps_less_if_it_is_told_to() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let few = || Options { retention_bytes: Some(128 << 10), capacity_bytes: Some(256 << 10), ..options() };
    let follower = Followed::create(b.path(), few(), &state(&source, FeedFrom::First)).unwrap();
    for n in 0..20 {
        append(&source, n * 100..n * 100 + 100);
        assert_eq!(catch_up(&source, &follower), []);
        let info = follower.log().info();
        assert_eq!(info.last, source.info().last);
        assert!(info.bytes_used <= 256 << 10, "{info:?}");
    }
    follower.sync().unwrap();
    let info = follower.log().info();
    assert!(info.first > Index(1000) && info.segments <= 4, "{info:?}");
    assert_eq!(source.info().first, Index(1));
    let all = records(&source);
    assert_eq!(records(follower.log()), all[info.first.get() as usize - 1..]);
    assert_sound(b.path());
    // Who follows this one gets what is here.
    let lean = follower.log();
    assert_eq!(lean.feed(FeedFrom::Index(Index(1))).unwrap_err().kind(), ErrorKind::Discarded);
    let second = create(lean, FeedFrom::First, c.path());
    catch_up(lean, &second);
    assert_eq!(records(second.log()), records(lean));
    // What it has let go of stays so.
    drop(follower);
    let follower = Followed::open(b.path(), few()).unwrap();
    assert_eq!(follower.log().info().first, info.first);
    append(&source, 0..500);
    assert_eq!(catch_up(&source, &follower), []);
    assert!(follower.log().info().first > info.first);
    assert_same_end(&follower, &source);
}

fn assert_same_end(follower: &Followed, source: &Log) {
    let first = follower.log().info().first.get() as usize;
    assert_eq!(records(follower.log()), records(source)[first - 1..]);
}

/// A wall clock that is set.
#[derive(Debug)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn what_is_too_old_goes_without_anything_coming() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = Arc::new(SetClock(AtomicU64::new(1_700_000_000_000)));
    let source = Log::open(a.path(), Options { clock: clock.clone(), ..options() }).unwrap();
    append(&source, 0..600);
    let age = Some(Duration::from_secs(60));
    let aging = Options { clock: clock.clone(), retention_age: age, ..options() };
    let follower = Followed::create(b.path(), aging.clone(), &state(&source, FeedFrom::First)).unwrap();
    catch_up(&source, &follower);
    assert_eq!(follower.log().info().first, Index(1));
    drop(follower);
    clock.0.fetch_add(61_000, Ordering::Relaxed);
    let follower = Followed::open(b.path(), aging).unwrap();
    wait_until("the old segments are gone", || {
        let info = follower.log().info();
        info.first > Index(300) && info.segments <= 2
    });
    assert_same_end(&follower, &source);
    append(&source, 0..100);
    catch_up(&source, &follower);
    assert_same_end(&follower, &source);
}

#[test]
fn a_full_follower_says_so_and_goes_on_when_there_is_room() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // In one large segment: what is discarded is still fed.
    let large = Options { block_bytes_max: 4096, ..Options::with_segment_bytes(4 << 20) };
    let source = Log::open(a.path(), large).unwrap();
    append(&source, 0..50);
    let small = || Options { capacity_bytes: Some(128 << 10), ..options() };
    let follower = Followed::create(b.path(), small(), &state(&source, FeedFrom::First)).unwrap();
    append(&source, 0..900);
    let fill = || loop {
        let mut feed = source.feed(follower.want().unwrap()).unwrap();
        let Some(fed) = feed.next(10_000).unwrap() else { return Ok::<(), chiplog::Error>(()) };
        assert_eq!(follower.take(fed)?, None);
    };
    for _ in 0..3 {
        let error = fill().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.is_retryable() && error.to_string().contains("capacity_bytes"), "{error}");
    }
    let info = follower.log().info();
    assert!(info.last > Index(100) && info.last < source.info().last, "{info:?}");
    assert_eq!(records(follower.log()), records(&source)[..info.last.get() as usize]);
    // The source discards: that makes room, however far ahead of what has room the command stands.
    source.discard(Index(900)).unwrap();
    fill().unwrap();
    assert_same(follower.log(), &source);
    drop(follower);
    assert_sound(b.path());
    assert_same(Followed::open(b.path(), small()).unwrap().log(), &source);
}

#[test]
fn a_directory_is_either_a_log_s_or_a_follower_s() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = |error: chiplog::Error, words: &str| {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let source = Log::open(a.path(), options()).unwrap();
    source.append(b"x").unwrap();
    let begin = state(&source, FeedFrom::First);
    assert_eq!(Followed::open(b.path(), options()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Followed::open(b.path().join("no"), options()).unwrap_err().kind(), ErrorKind::NotFound);
    let follower = Followed::create(b.path(), options(), &begin).unwrap();
    assert_eq!(Followed::open(b.path(), options()).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(Followed::reset(b.path()).unwrap_err().kind(), ErrorKind::Locked);
    // What writes is refused.
    let log = follower.log().clone();
    for error in [
        log.append(b"no").unwrap_err(),
        log.try_submit(b"no").unwrap_err(),
        log.discard(Index(2)).unwrap_err(),
        log.open_session().unwrap_err(),
        log.barrier(PATIENCE).unwrap_err(),
        log.change_members(&[Change::Remove(NodeId(1))], PATIENCE).unwrap_err(),
        log.transfer_leader(NodeId(1), PATIENCE).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotLeader, "{error:?}");
    }
    let status = log.status();
    assert_eq!((status.role, status.node), (Role::Observer, NodeId(0)));
    // The log that was handed out keeps it open.
    drop(follower);
    assert_eq!(Followed::open(b.path(), options()).unwrap_err().kind(), ErrorKind::Locked);
    drop(log);
    refused(Log::open(b.path(), options()).unwrap_err(), "from outside");
    let cluster = Cluster::new(NodeId(1), Bootstrap::Existing, MemoryNetwork::new().transport());
    let replica = Options { cluster: Some(cluster), ..options() };
    refused(Log::open(b.path(), replica.clone()).unwrap_err(), "from outside");
    refused(Followed::open(b.path(), replica).unwrap_err(), "cluster");
    refused(Followed::create(b.path(), options(), &begin).unwrap_err(), "already");
    source.close().unwrap();
    refused(Followed::open(a.path(), options()).unwrap_err(), "directory for itself");
    refused(Followed::create(a.path(), options(), &begin).unwrap_err(), "directory for itself");
    refused(Followed::reset(a.path()).unwrap_err(), "directory for itself");
    Followed::open(b.path(), options()).unwrap();
}

#[test]
fn a_damaged_follower_says_what_to_do_and_begins_anew() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let follower = create(&source, FeedFrom::First, b.path());
    catch_up(&source, &follower);
    drop(follower);
    let path = b.path().join("00000000000000000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[6000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Followed::open(b.path(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("Followed::reset"), "{error}");
    Followed::reset(b.path()).unwrap();
    assert_eq!(std::fs::read_dir(b.path()).unwrap().count(), 0);
    assert_eq!(Followed::open(b.path(), options()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Followed::reset(b.path()).unwrap_err().kind(), ErrorKind::NotFound);
    let follower = create(&source, FeedFrom::First, b.path());
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
}

/// Damage at the source is not handed on; what was given before it is sound.
#[test]
fn damage_does_not_travel() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..400);
    let all = records(&source);
    let follower = create(&source, FeedFrom::First, b.path());
    source.close().unwrap();
    drop(source);
    let path = a.path().join("00000000000000000002.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|w| w == b"record ").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let source = Log::open(a.path(), options()).unwrap();
    let mut feed = source.feed(follower.want().unwrap()).unwrap();
    let error = loop {
        match feed.next(20_000) {
            Ok(fed) => drop(follower.take(fed.unwrap()).unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("00000000000000000002.seg"), "{error}");
    let here = records(follower.log());
    assert!(!here.is_empty());
    assert_eq!(here, all[..here.len()]);
    assert_eq!(feed.next(20_000).unwrap_err().kind(), ErrorKind::Corrupt, "it stays where it is");
}

/// From a replica that does not lead, from a learner, from whoever leads next: and never what is not committed.
#[test]
fn a_follower_of_a_cluster_switches_replicas() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let replica = |node: u64, bootstrap| {
        let mut cluster = Cluster::new(NodeId(node), bootstrap, network.transport());
        cluster.heartbeat = Duration::from_millis(20);
        cluster.election_timeout = Duration::from_millis(300);
        Log::open(dirs[node as usize - 1].path(), Options { cluster: Some(cluster), ..options() }).unwrap()
    };
    let mut logs = vec![replica(1, Bootstrap::Init)];
    for node in 2..=3 {
        let log = replica(node, Bootstrap::Join(logs[0].info().log_id));
        let add = Change::AddLearner {
            node: NodeId(node),
            directory: log.info().directory,
            address: String::new(),
        };
        logs[0].change_members(&[add], PATIENCE).unwrap();
        logs[0].change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
        logs.push(log);
    }
    let leader = |not: u64| {
        let end = Instant::now() + PATIENCE;
        loop {
            let found =
                logs.iter().position(|l| l.status().role == Role::Leader && l.status().node.get() != not);
            if let Some(n) = found {
                return n;
            }
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let first = leader(0);
    append(&logs[first], 0..100);
    let others: Vec<usize> = (0..3).filter(|n| *n != first).collect();
    let follower = create(&logs[others[0]], FeedFrom::First, dirs[3].path());
    for n in [others[0], others[1], first] {
        append(&logs[first], 0..100);
        let last = logs[first].info().last;
        logs[n].wait_for(last, PATIENCE).unwrap();
        assert_eq!(catch_up(&logs[n], &follower), []);
        assert_eq!(records(follower.log()), records(&logs[n]));
    }
    assert_eq!(follower.log().status().members.len(), 3);
    // What a leader has that nobody hears is not committed, and not fed.
    let before = follower.log().info();
    let node = logs[first].status().node;
    network.disconnect(node);
    let lost: Vec<_> = (0..20).map(|_| logs[first].submit(b"nobody hears this").unwrap()).collect();
    let next = leader(node.get());
    append(&logs[next], 0..50);
    assert_eq!(catch_up(&logs[first], &follower), []);
    assert_eq!(follower.log().info().last, before.last);
    assert_eq!(catch_up(&logs[next], &follower), []);
    // The old leader is behind the follower now: it gives nothing until it has caught up.
    let mut feed = logs[first].feed(follower.want().unwrap()).unwrap();
    assert!(feed.next(1000).unwrap().is_none() && feed.is_behind());
    network.connect(node);
    lost.into_iter().for_each(|ticket| drop(ticket.wait().unwrap_err()));
    append(&logs[next], 0..1);
    let last = logs[next].info().last;
    logs[first].wait_for(last, PATIENCE).unwrap();
    assert!(feed.wait(Some(PATIENCE)).unwrap());
    while let Some(fed) = feed.next(1000).unwrap() {
        assert_eq!(follower.take(fed).unwrap(), None);
    }
    assert_eq!(records(follower.log()), records(&logs[next]));
    assert!(records(follower.log()).iter().all(|(_, data, _)| data != b"nobody hears this"));
    assert_sound(dirs[3].path());
}

#[test]
fn many_threads_may_take() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..1000);
    let follower = create(&source, FeedFrom::First, b.path());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut feed = source.feed(follower.want().unwrap()).unwrap();
                while let Some(fed) = feed.next(3000).unwrap() {
                    // Another one was faster, perhaps by more than what is known here.
                    if let Err(error) = follower.take(fed) {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
                        feed = source.feed(follower.want().unwrap()).unwrap();
                    }
                }
            });
        }
    });
    assert_same(follower.log(), &source);
}
