//! Discards, jumps, a copy's own retention, and a full disk.

use crate::support::*;
use chiplog::follower::FollowFrom;
use chiplog::{Clock, ErrorKind, FollowerLog, Index, Log, Options, Start, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn discard_at_the_source_discards_here() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..500);
    let follower = create(&source, FollowFrom::First, b.path());
    catch_up(&source, &follower);
    let segments = follower.log().status().segments;
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
    assert_eq!(follower.log().first_index(), Index(1000));
    follower.sync().unwrap();
    assert!(follower.log().status().segments < segments);
    drop(follower);
    let follower = FollowerLog::open(b.path(), options()).unwrap();
    assert_same(follower.log(), &source);
}

/// A log used as a queue: records are discarded soon. However much is fed at once, and however fast, files are
/// removed in time.
#[test]
fn discards_make_room_while_a_follower_catches_up() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FollowFrom::First, b.path());
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
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
        assert_eq!(follower.apply(fed).unwrap(), None);
        most = most.max(follower.log().status().segments);
    }
    assert!(most < 20, "{most} segments of more than 100");
    assert_same(follower.log(), &source);
    follower.sync().unwrap();
    assert!(follower.log().status().segments <= 2, "{:?}", follower.log().status());
}

/// Without records no discard followed the last one, and files with commands alone filled the disk of the copy.
#[test]
fn files_of_commands_alone_do_not_add_up_here() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FollowFrom::First, b.path());
    while follower.log().metrics().rolls < 6 {
        for _ in 0..50 {
            source.open_session().unwrap().close().unwrap();
        }
        catch_up(&source, &follower);
    }
    follower.sync().unwrap();
    let segments = follower.log().status().segments;
    assert!(segments <= 3, "{segments} segments");
}

/// The entries that are fed with a discard can need several syncs. The first sync let the discarded files go. For the
/// rest of the time readers reported the part that was gone as damage.
#[test]
fn readers_get_discarded_before_the_files_are_removed() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..20);
    let follower = create(&source, FollowFrom::First, b.path());
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut read = 0u64;
            while !done.load(Ordering::Relaxed) {
                match follower.log().read(follower.log().first_index()) {
                    Ok(_) => read += 1,
                    Err(e) => assert!(
                        matches!(e.kind(), ErrorKind::Discarded | ErrorKind::OutOfRange),
                        "after {read}: {e:?}"
                    ),
                }
            }
        });
        for _ in 0..60 {
            let next = source.last_index().next();
            for n in 0..30 {
                source.append(&[n; 9000]).unwrap();
            }
            while let Some(fed) = feed.next(1 << 20).unwrap() {
                follower.apply(fed).unwrap();
            }
            source.discard(next.plus(25)).unwrap();
            for n in 0..30 {
                source.append(&[n; 9000]).unwrap();
            }
            while let Some(fed) = feed.next(1 << 20).unwrap() {
                follower.apply(fed).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        reading.join().unwrap();
    });
    assert_same(follower.log(), &source);
}

/// Readers only ever see records in order, or `Discarded`.
#[test]
fn lagging_follower_jumps() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..200);
    let follower = create(&source, FollowFrom::First, b.path());
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
            let before = follower.log().status();
            append(&source, 0..300);
            let first = Index(source.last_index().get() - 20);
            source.discard(first).unwrap();
            append(&source, 0..20);
            // Discarded at the source once its files are removed.
            wait_until("the files are removed", || source.status().segments <= 2);
            let jumps = catch_up(&source, &follower);
            assert_eq!(jumps.len(), 1, "round {round}: {jumps:?}");
            assert_eq!(jumps[0].from, before.last_index.next());
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
    let follower = FollowerLog::open(b.path(), options()).unwrap();
    assert_same(follower.log(), &source);
    // A state at the end of the log causes no jump; an earlier one is refused.
    let state = |from| state(&source, from);
    assert_eq!(follower.install_snapshot(&state(FollowFrom::Newest)).unwrap(), None);
    let error = follower.install_snapshot(&state(FollowFrom::First)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Diverged);
    assert_same(follower.log(), &source);
}

#[test]
fn follower_with_its_own_retention_keeps_less() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let few = || options().retention_bytes(128 << 10).capacity_bytes(256 << 10);
    let follower = FollowerLog::create(b.path(), few(), &state(&source, FollowFrom::First)).unwrap();
    for n in 0..20 {
        append(&source, n * 100..n * 100 + 100);
        assert_eq!(catch_up(&source, &follower), []);
        let status = follower.log().status();
        assert_eq!(status.last_index, source.last_index());
        assert!(status.bytes_used <= 256 << 10, "{status:?}");
    }
    follower.sync().unwrap();
    let status = follower.log().status();
    assert!(status.first_index > Index(1000) && status.segments <= 4, "{status:?}");
    assert_eq!(source.first_index(), Index(1));
    let all = records(&source);
    assert_eq!(records(follower.log()), all[status.first_index.get() as usize - 1..]);
    assert_sound(b.path());
    // A follower of this one gets the records that are here.
    let lean = follower.log();
    assert_eq!(lean.follow(FollowFrom::Index(Index(1))).unwrap_err().kind(), ErrorKind::Discarded);
    let second = create(lean, FollowFrom::First, c.path());
    catch_up(lean, &second);
    assert_eq!(records(second.log()), records(lean));
    // Discarded records stay discarded.
    drop(follower);
    let follower = FollowerLog::open(b.path(), few()).unwrap();
    assert_eq!(follower.log().first_index(), status.first_index);
    append(&source, 0..500);
    assert_eq!(catch_up(&source, &follower), []);
    assert!(follower.log().first_index() > status.first_index);
    assert_same_end(&follower, &source);
}

fn assert_same_end(follower: &FollowerLog, source: &Log) {
    let first = follower.log().first_index().get() as usize;
    assert_eq!(records(follower.log()), records(source)[first - 1..]);
}

/// A wall clock that the test sets.
#[derive(Debug)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn old_records_are_discarded_without_new_entries() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = Arc::new(SetClock(AtomicU64::new(1_700_000_000_000)));
    let source = Log::open(a.path(), options().clock(clock.clone())).unwrap();
    append(&source, 0..600);
    let age = Some(Duration::from_secs(60));
    let aging = options().clock(clock.clone()).retention_age(age);
    let follower = FollowerLog::create(b.path(), aging.clone(), &state(&source, FollowFrom::First)).unwrap();
    catch_up(&source, &follower);
    assert_eq!(follower.log().first_index(), Index(1));
    drop(follower);
    clock.0.fetch_add(61_000, Ordering::Relaxed);
    let follower = FollowerLog::open(b.path(), aging).unwrap();
    wait_until("the old segments are removed", || {
        let status = follower.log().status();
        status.first_index > Index(300) && status.segments <= 2
    });
    assert_same_end(&follower, &source);
    append(&source, 0..100);
    catch_up(&source, &follower);
    assert_same_end(&follower, &source);
}

/// One look at a wall clock that showed the far future discarded all full segments.
#[test]
fn clock_that_jumps_ahead_discards_nothing_of_a_follower() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = Arc::new(SetClock(AtomicU64::new(1_700_000_000_000)));
    let source = Log::open(a.path(), options().clock(clock.clone())).unwrap();
    append(&source, 0..600);
    let age = Some(Duration::from_secs(3600));
    let aging = options().clock(clock.clone()).retention_age(age);
    let follower = FollowerLog::create(b.path(), aging, &state(&source, FollowFrom::First)).unwrap();
    catch_up(&source, &follower);
    clock.0.fetch_add(400 * 86_400_000, Ordering::Relaxed);
    append(&source, 0..300);
    catch_up(&source, &follower);
    follower.sync().unwrap();
    let segments = follower.log().status().segments;
    append(&source, 0..1);
    catch_up(&source, &follower);
    follower.sync().unwrap();
    let status = follower.log().status();
    assert_eq!((status.first_index, status.segments), (Index(1), segments));
    assert_same_end(&follower, &source);
}

#[test]
fn full_follower_returns_full_and_continues_with_room() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // In one large segment: discarded records are still fed.
    let large = Options::with_segment_bytes(4 << 20).block_bytes_max(4096);
    let source = Log::open(a.path(), large).unwrap();
    append(&source, 0..50);
    let small = || options().capacity_bytes(128 << 10);
    let follower = FollowerLog::create(b.path(), small(), &state(&source, FollowFrom::First)).unwrap();
    append(&source, 0..900);
    let fill = || loop {
        let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
        let Some(fed) = feed.next(10_000).unwrap() else { return Ok::<(), chiplog::Error>(()) };
        assert_eq!(follower.apply(fed)?, None);
    };
    for _ in 0..3 {
        let error = fill().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.is_retryable() && error.to_string().contains("capacity_bytes"), "{error}");
    }
    let status = follower.log().status();
    assert!(status.last_index > Index(100) && status.last_index < source.last_index(), "{status:?}");
    assert_eq!(records(follower.log()), records(&source)[..status.last_index.get() as usize]);
    // The source discards. That makes room, however far the command is ahead of the entries that fit.
    source.discard(Index(900)).unwrap();
    fill().unwrap();
    assert_same(follower.log(), &source);
    drop(follower);
    assert_sound(b.path());
    assert_same(FollowerLog::open(b.path(), small()).unwrap().log(), &source);
}
