//! Items that are never stored: other histories, damage, gaps; and the errors for them.

use crate::support::*;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, FollowerLog, Index, Log, NodeId, Sequence};
use std::path::Path;

/// Two copies of one directory, each written to: the same log by its id, but two histories.
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
    let follower = create(&source, FollowFrom::First, c.path());
    catch_up(&source, &follower);
    let before = (records(follower.log()), follower.resume_point().unwrap());
    let mut feed = other.follow(follower.resume_point().unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(feed.next(1000).unwrap_err().kind(), ErrorKind::Diverged);
    }
    // Even if its entries arrive: later ones, ones that are here already, a state.
    let mut feed = other.follow(FollowFrom::First).unwrap();
    let mut refused = 0;
    while let Some(fed) = feed.next(1).unwrap() {
        if let Err(error) = follower.apply(fed) {
            assert!(matches!(error.kind(), ErrorKind::Diverged | ErrorKind::InvalidArgument), "{error:?}");
            refused += 1;
        }
        assert_eq!((records(follower.log()), follower.resume_point().unwrap()), before);
    }
    assert!(refused > 3);
    // Another log altogether.
    let d = tempfile::tempdir().unwrap();
    let stranger = Log::open(d.path(), options()).unwrap();
    append(&stranger, 0..100);
    assert_eq!(stranger.follow(follower.resume_point().unwrap()).unwrap_err().kind(), ErrorKind::Diverged);
    let mut feed = stranger.follow(FollowFrom::First).unwrap();
    while let Some(fed) = feed.next(10_000).unwrap() {
        assert_eq!(follower.apply(fed).unwrap_err().kind(), ErrorKind::Diverged);
    }
    // The follower still works.
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

/// Two copies of one directory again, but so similar that only the meaning of an entry differs: a batch out of its
/// session's order. It changes neither the log nor the state of sessions.
#[test]
fn entry_with_a_wrong_meaning_is_refused_whole() {
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
    let follower = create(&source, FollowFrom::First, c.path());
    catch_up(&source, &follower);
    let fed = other.follow(follower.resume_point().unwrap()).unwrap().next(1 << 20).unwrap().unwrap();
    for _ in 0..2 {
        let error = follower.apply(fed.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Diverged);
        assert!(error.to_string().contains("session"), "{error}");
        assert_same(follower.log(), &source);
    }
    let mut handle = source.resume_session(session, Sequence(1));
    handle.append(b"two").unwrap();
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
    assert_eq!(
        state(follower.log(), FollowFrom::Newest).timestamp(),
        state(&source, FollowFrom::Newest).timestamp()
    );
}

#[test]
fn known_entries_are_skipped_and_a_gap_is_refused() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    source.append(b"1").unwrap();
    let begin = state(&source, FollowFrom::Newest);
    let follower = FollowerLog::create(b.path(), options(), &begin).unwrap();
    for word in [b"2", b"3", b"4"] {
        source.append(word).unwrap();
    }
    let from = FollowFrom::After { log: begin.log(), raft: begin.raft(), term: begin.term() };
    let fed: Vec<FollowMessage> = {
        let mut feed = source.follow(from).unwrap();
        std::iter::from_fn(|| feed.next(1).unwrap()).collect()
    };
    assert_eq!(fed.len(), 3);
    assert_eq!(follower.apply(fed[1].clone()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(follower.log().last_index(), Index(1));
    for n in [0, 0, 1, 0, 1] {
        follower.apply(fed[n].clone()).unwrap();
    }
    // All entries at once, most of them known.
    follower.apply(source.follow(from).unwrap().next(1 << 20).unwrap().unwrap()).unwrap();
    assert_eq!(records(follower.log()), records(&source)[1..]);
}

#[test]
fn no_flipped_byte_is_stored() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    let follower = create(&source, FollowFrom::First, b.path());
    let mut session = source.open_session().unwrap();
    session.append(b"of a session").unwrap();
    append(&source, 0..3);
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        let (head, pieces) = fed.encode();
        let body = pieces.concat();
        let take = |head: Vec<u8>, body: Vec<u8>| {
            FollowMessage::decode(head.into(), vec![body.into()]).and_then(|fed| follower.apply(fed))
        };
        let before = (follower.log().status(), follower.resume_point().unwrap());
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
        assert_eq!((follower.log().status(), follower.resume_point().unwrap()), before);
        take(head.to_vec(), body).unwrap();
    }
    assert_same(follower.log(), &source);
}

#[test]
fn directory_holds_either_a_log_or_a_follower() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = |error: chiplog::Error, words: &str| {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let source = Log::open(a.path(), options()).unwrap();
    source.append(b"x").unwrap();
    let begin = state(&source, FollowFrom::First);
    assert_eq!(FollowerLog::open(b.path(), options()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(FollowerLog::open(b.path().join("no"), options()).unwrap_err().kind(), ErrorKind::NotFound);
    let follower = FollowerLog::create(b.path(), options(), &begin).unwrap();
    assert_eq!(FollowerLog::open(b.path(), options()).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(FollowerLog::destroy(b.path()).unwrap_err().kind(), ErrorKind::Locked);
    // Writing calls are refused.
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
    assert_eq!((status.replica.role, status.replica.node), (Role::Observer, NodeId(0)));
    // The handle that `log()` returned keeps the log open.
    drop(follower);
    assert_eq!(FollowerLog::open(b.path(), options()).unwrap_err().kind(), ErrorKind::Locked);
    drop(log);
    refused(Log::open(b.path(), options()).unwrap_err(), "holds a follower's copy");
    let cluster = ClusterOptions::new(NodeId(1), Bootstrap::Existing, MemoryNetwork::new().transport());
    let replica = options().cluster(cluster);
    refused(Log::open(b.path(), replica.clone()).unwrap_err(), "holds a follower's copy");
    refused(FollowerLog::open(b.path(), replica).unwrap_err(), "cluster");
    refused(FollowerLog::create(b.path(), options(), &begin).unwrap_err(), "already");
    source.close().unwrap();
    refused(FollowerLog::open(a.path(), options()).unwrap_err(), "use another directory for the follower");
    refused(
        FollowerLog::create(a.path(), options(), &begin).unwrap_err(),
        "use another directory for the follower",
    );
    refused(FollowerLog::destroy(a.path()).unwrap_err(), "use another directory for the follower");
    FollowerLog::open(b.path(), options()).unwrap();
}

#[test]
fn damaged_follower_is_reset_and_begins_again() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..50);
    let follower = create(&source, FollowFrom::First, b.path());
    catch_up(&source, &follower);
    drop(follower);
    let path = b.path().join("00000000000000000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[6000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = FollowerLog::open(b.path(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("FollowerLog::destroy"), "{error}");
    FollowerLog::destroy(b.path()).unwrap();
    assert_eq!(std::fs::read_dir(b.path()).unwrap().count(), 0);
    assert_eq!(FollowerLog::open(b.path(), options()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(FollowerLog::destroy(b.path()).unwrap_err().kind(), ErrorKind::NotFound);
    let follower = create(&source, FollowFrom::First, b.path());
    catch_up(&source, &follower);
    assert_same(follower.log(), &source);
}

/// Damage at the source is not fed; the entries before it are sound.
#[test]
fn damage_is_not_fed() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = Log::open(a.path(), options()).unwrap();
    append(&source, 0..400);
    let all = records(&source);
    let follower = create(&source, FollowFrom::First, b.path());
    source.close().unwrap();
    drop(source);
    let path = a.path().join("00000000000000000002.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|w| w == b"record ").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let source = Log::open(a.path(), options()).unwrap();
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    let error = loop {
        match feed.next(20_000) {
            Ok(fed) => drop(follower.apply(fed.unwrap()).unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("00000000000000000002.seg"), "{error}");
    let here = records(follower.log());
    assert!(!here.is_empty());
    assert_eq!(here, all[..here.len()]);
    assert_eq!(feed.next(20_000).unwrap_err().kind(), ErrorKind::Corrupt, "the feed keeps its position");
}
