//! Copies that follow: fed by servers that come and go, by one another, and by servers that misbehave. What is in a copy
//! is what is in the log, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod served;

use bytes::Bytes;
use chiplog::{ErrorKind, FeedFrom, Index, Log, NodeId, Options, Start, Timestamp};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use chiplog_net::host::Host;
use chiplog_net::native::{Native, NativeOptions};
use chiplog_net::proto::v1::follow_client::FollowClient;
use chiplog_net::proto::v1::follow_request::Start as Asked;
use chiplog_net::proto::v1::follow_server::{Follow, FollowServer};
use chiplog_net::proto::v1::{FollowPlace, FollowRequest, FollowResponse};
use chiplog_net::status::from_status;
use served::{One, Server, Trio, free_port};
use std::io::{Read, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

/// So long a test waits for what has to happen: no machine is as slow.
const LONG: Duration = Duration::from_secs(60);

fn quick() -> FollowerOptions {
    let mut options = FollowerOptions::default();
    options.files = Options::with_segment_bytes(4 << 20);
    options.keep_alive = Duration::from_millis(200);
    options.compare_interval = Duration::from_millis(200);
    options.probe_timeout = Duration::from_millis(500);
    options.open_timeout = LONG;
    options
}

fn follow(dir: &Path, servers: &[String], from: Start) -> Follower {
    Follower::open(dir, servers.iter().cloned(), from, quick()).unwrap()
}

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The next event that is of interest.
#[track_caller]
fn event<T>(follower: &Follower, mut of: impl FnMut(&FollowerEvent) -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    let mut seen = Vec::new();
    while Instant::now() < end {
        match follower.next_event(Duration::from_secs(1)) {
            Ok(event) => match of(&event) {
                Some(found) => return found,
                None => seen.push(event),
            },
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => panic!("{error}; {seen:?}"),
        }
    }
    panic!("never: {seen:?}; {:?}", follower.status());
}

/// Appends `count` records of `bytes` bytes, many at a time; the index of the last.
fn append(log: &Log, count: u64, bytes: usize) -> Index {
    let mut last = Index(0);
    let mut under_way = Vec::new();
    for n in 0..count {
        let mut record = n.to_le_bytes().to_vec();
        record.resize(bytes.max(8), n as u8);
        under_way.push(log.submit(&record).unwrap());
        if under_way.len() >= 64 || n + 1 == count {
            under_way.drain(..).for_each(|ticket| last = ticket.wait().unwrap().first);
        }
    }
    last
}

/// Batches from `first` to `last`, as they stand in the log.
fn stored(log: &Log, first: Index, last: Index) -> Vec<(Index, u64, Bytes)> {
    let mut reader = log.reader(Start::Index(first)).unwrap();
    let mut all = Vec::new();
    while reader.position() <= last {
        let batch = reader.next_stored().unwrap().expect("it is there");
        all.push((batch.first(), batch.timestamp().get(), batch.bytes().clone()));
    }
    all
}

#[track_caller]
fn same(copy: &Log, log: &Log, last: Index) {
    let first = log.info().first.max(copy.info().first);
    copy.wait_for(last, LONG).unwrap();
    assert!(stored(copy, first, last) == stored(log, first, last), "{:?} {:?}", copy.info(), log.info());
}

/// A copy gets what was there and what comes, is read like any log, and takes nothing.
#[test]
fn a_copy_catches_up_and_follows_one_server() {
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

/// It goes on where it was: only what is new is sent. A start means nothing then, and servers need not be there.
#[test]
fn a_copy_that_is_opened_again_goes_on_where_it_was() {
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
fn a_new_copy_begins_where_it_is_told_to() {
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
    assert_eq!(begin(Start::Timestamp(later)).unwrap().0, Index(101), "still to come");
    assert_eq!(begin(Start::Timestamp(Timestamp(0))).unwrap().0, Index(1));
    one.log.discard(Index(60)).unwrap();
    let (first, copy, _dir) = begin(Start::First).unwrap();
    assert!(first <= Index(60), "with the block that holds it: {first}");
    until("the discard has come as well", || copy.status().first == Index(60));
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
    let mut options = quick();
    options.open_timeout = Duration::from_millis(300);
    let nobody = format!("127.0.0.1:{}", free_port());
    let dir = tempfile::tempdir().unwrap();
    let refused = Follower::open(dir.path(), [nobody], Start::First, options);
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Appends to whoever leads, until it is stopped.
struct Appending {
    stop: Arc<AtomicBool>,
    appended: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Appending {
    fn start(logs: Vec<Log>) -> Self {
        let (stop, appended) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = std::thread::spawn({
            let (stop, appended) = (stop.clone(), appended.clone());
            move || {
                let mut n = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for log in &logs {
                        if let Ok(index) = log.append(&n.to_le_bytes().repeat(50)) {
                            appended.store(index.get(), Ordering::Relaxed);
                            n += 1;
                        }
                    }
                }
            }
        });
        Self { stop, appended, thread }
    }

    fn goes_on(&self, more: u64) {
        let now = self.appended.load(Ordering::Relaxed);
        until("appends go on", || self.appended.load(Ordering::Relaxed) >= now + more);
    }

    fn stop(self) -> Index {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        Index(self.appended.load(Ordering::Relaxed))
    }
}

/// The server that feeds a copy is killed in mid-append, then the leader; the copy has every record all the same.
#[test]
fn a_copy_goes_on_at_another_server_whoever_dies() {
    let mut trio = Trio::new();
    let appending = Appending::start((1..=3).map(|n| trio.log(n).clone()).collect());
    appending.goes_on(50);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &trio.addresses(), Start::First);
    let leader = trio.leader(0);
    let at = |copy: &Follower| copy.status().server;
    let source = at(&copy).unwrap();
    assert_ne!(source, trio.address(leader), "another one feeds copies, if there is one");
    let source = (1..=3).find(|n| trio.address(*n) == source).unwrap();
    trio.kill(source);
    let (from, to) = event(&copy, |e| match e {
        FollowerEvent::Switched { from, to } => Some((from.clone(), to.clone())),
        _ => None,
    });
    assert_eq!(from, trio.address(source));
    assert_ne!(to, trio.address(source));
    appending.goes_on(50);
    copy.wait_for(Index(appending.appended.load(Ordering::Relaxed)), LONG).unwrap();
    trio.bring_back(source);
    // Its log is another handle now: appends go to those that stay, and come back once one of them leads.
    let leader = trio.leader(0);
    if leader != source {
        trio.kill(leader);
    }
    let next = trio.leader(leader);
    let last = appending.stop().max(append(trio.log(next), 20, 100));
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), trio.log(next), last);
    assert_eq!((copy.status().first, copy.status().jumps), (Index(1), 0));
    assert_eq!(copy.status().received_records, last.get(), "nothing came twice");
    copy.close().unwrap();
}

/// What is left of a cluster without a majority still feeds copies: no leader is needed.
#[test]
fn a_cluster_that_lost_its_majority_feeds_copies() {
    let mut trio = Trio::new();
    let leader = trio.leader(0);
    let last = append(trio.log(leader), 100, 100);
    let left = trio.follower();
    trio.log(left).wait_for(last, LONG).unwrap();
    for node in (1..=3).filter(|n| *n != left) {
        trio.kill(node);
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &trio.addresses(), Start::First);
    same(copy.log(), trio.log(left), last);
    until("it is known that nobody leads", || !copy.status().fed);
    copy.close().unwrap();
}

/// A server that is cut off from its cluster is alive and silent about what it does not know: a copy leaves it.
#[test]
fn a_server_that_does_not_get_what_others_have_is_left() {
    let trio = Trio::new();
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &trio.addresses(), Start::First);
    let source = copy.status().server.unwrap();
    let source = (1..=3).find(|n| trio.address(*n) == source).unwrap();
    trio.network.disconnect(NodeId(source));
    let leader = trio.leader(source);
    let last = append(trio.log(leader), 10, 100);
    copy.wait_for(last, LONG).unwrap();
    assert_ne!(copy.status().server, Some(trio.address(source)));
    copy.close().unwrap();
}

/// A copy that feeds a copy: what the first one misses or discards, the second one hears of; that the first one's server
/// dies, it does not.
#[test]
fn a_copy_feeds_a_copy() {
    let mut one = One::new();
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = follow(near.path(), &[one.address()], Start::First);
    let serving = Server::serve(first.host().clone(), 0, NativeOptions::default());
    let second = follow(far.path(), std::slice::from_ref(&serving.address), Start::First);
    let last = append(&one.log, 3_000, 500);
    same(second.log(), &one.log, last);
    until("both are kept up to date", || first.status().fed && second.status().fed);

    one.log.discard(Index(1_000)).unwrap();
    let discarded = |e: &FollowerEvent| match e {
        FollowerEvent::Discarded { first } => Some(*first),
        _ => None,
    };
    assert_eq!((event(&first, discarded), event(&second, discarded)), (Index(1_000), Index(1_000)));

    let (port, log) = (one.address().rsplit_once(':').unwrap().1.parse().unwrap(), one.log.clone());
    let other = Server::start_at(One::new().log.clone(), 0, NativeOptions::default());
    drop(std::mem::replace(&mut one.server, other));
    until("the first one's server is gone", || first.status().server.is_none());
    until("the second one hears that the first one is not kept up to date", || !second.status().fed);
    assert_eq!((second.status().connects, second.status().server.is_some()), (1, true));
    one.server = Server::start_at(log, port, NativeOptions::default());
    let last = append(&one.log, 10, 100);
    same(second.log(), &one.log, last);
    until("and that it is again", || second.status().fed);
    assert_eq!((second.status().connects, second.status().received_records), (1, last.get()));

    // Clients read there; what is not for a copy is refused.
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let servers = [serving.address.clone()];
        let client = chiplog_net::client::Client::connect(servers, Default::default()).await.unwrap();
        let mut reader = client.reader(Start::Index(last), chiplog_net::client::ReadFrom::Any);
        assert_eq!(reader.next_record().await.unwrap().unwrap().index, last);
    });
    first.close().unwrap();
    until("the second one's server is gone", || second.status().server.is_none());
    second.close().unwrap();
}

/// A copy may keep less than the log does, and says what it let go.
#[test]
fn a_copy_has_a_retention_of_its_own() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options { retention_bytes: Some(4 << 20), ..Options::with_segment_bytes(1 << 20) };
    let copy = Follower::open(dir.path(), [one.address()], Start::First, options).unwrap();
    let last = append(&one.log, 10_000, 1_000);
    copy.wait_for(last, LONG).unwrap();
    let first = event(&copy, |e| match e {
        FollowerEvent::Discarded { first } => Some(*first),
        _ => None,
    });
    assert!(first > Index(1) && copy.status().first >= first && copy.status().jumps == 0);
    assert_eq!(one.log.info().first, Index(1));
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}

/// All that a copy needs next was discarded while it was away: it says so, and goes on behind.
#[test]
fn a_copy_that_comes_too_late_jumps_and_says_so() {
    let one = One::new();
    let before = append(&one.log, 500, 1_000);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(before, LONG).unwrap();
    copy.close().unwrap();
    append(&one.log, 5_000, 1_000);
    one.log.discard(Index(4_000)).unwrap();
    until("files are gone", || one.log.info().segments < 4);
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
        // What it holds it may still give; then it is told.
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

/// Servers of another cluster are never used; where no other is left, whoever waits hears so.
#[test]
fn servers_of_another_log_are_refused() {
    let (one, wrong) = (One::new(), One::new());
    let last = append(&one.log, 100, 100);
    append(&wrong.log, 500, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    let copy = follow(dir.path(), &[wrong.address(), one.address()], Start::First);
    let last = append(&one.log, 10, 100);
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);
    assert_eq!(wrong.server.host.copies().begun, 0);
    copy.close().unwrap();

    let copy = follow(dir.path(), &[wrong.address()], Start::First);
    let waited = copy.wait_for(last.next(), LONG).unwrap_err();
    assert_eq!(waited.kind(), ErrorKind::Diverged, "{waited}");
    let stopped = event(&copy, |e| match e {
        FollowerEvent::Stopped { error } => Some(error.kind()),
        _ => None,
    });
    assert_eq!(stopped, ErrorKind::Diverged);
    assert_eq!(copy.status().stopped.map(|e| e.kind()), Some(ErrorKind::Diverged));
    assert_eq!(copy.log().info().last, last, "what is there can be read");
    drop(copy);
    // The server checks as well, and says so in a way that other clients understand.
    let (code, kind) = refusal(&one.address(), |request| request.log_id = vec![7; 16].into());
    assert_eq!((code, kind), (tonic::Code::FailedPrecondition, ErrorKind::Diverged));
    let other_history = |request: &mut FollowRequest| {
        request.start = Some(Asked::After(FollowPlace { index: 2, term: 77 }));
    };
    assert_eq!(refusal(&one.address(), other_history).1, ErrorKind::Diverged);
    assert_eq!(refusal(&one.address(), |r| r.log = "other".into()).1, ErrorKind::NotFound);
    assert_eq!(refusal(&one.address(), |r| r.start = None).1, ErrorKind::InvalidArgument);
    assert_eq!(refusal(&one.address(), |r| r.log_id = vec![1].into()).1, ErrorKind::InvalidArgument);
    let far = |r: &mut FollowRequest| r.start = Some(Asked::Index(1_000_000));
    assert_eq!(refusal(&one.address(), far).1, ErrorKind::OutOfRange);
}

/// What a server says to a request that is not in order.
fn refusal(server: &str, change: impl FnOnce(&mut FollowRequest)) -> (tonic::Code, ErrorKind) {
    let mut request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
    change(&mut request);
    let server = format!("http://{server}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = FollowClient::connect(server).await.unwrap();
        let status = match client.follow(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match tokio::time::timeout(LONG, stream.message()).await.unwrap() {
                        Ok(Some(_)) => {}
                        Ok(None) => panic!("it ended without a word"),
                        Err(status) => break status,
                    }
                }
            }
        };
        (status.code(), from_status(&status).kind())
    })
}

/// A server that is about to end says so, and its copies go to another one; those of a copy stay.
#[test]
fn copies_leave_a_server_that_drains() {
    let trio = Trio::new();
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &trio.addresses(), Start::First);
    let below = tempfile::tempdir().unwrap();
    let serving = Server::serve(copy.host().clone(), 0, NativeOptions::default());
    let second = follow(below.path(), std::slice::from_ref(&serving.address), Start::First);
    let source = copy.status().server.unwrap();
    let source = (1..=3).find(|n| trio.address(*n) == source).unwrap();
    trio.server(source).host.drain();
    let from = event(&copy, |e| match e {
        FollowerEvent::Switched { from, .. } => Some(from.clone()),
        _ => None,
    });
    assert_eq!(from, trio.address(source));
    until("its streams have ended", || trio.server(source).host.copies().now == 0);
    let last = append(trio.log(trio.leader(0)), 10, 100);
    same(second.log(), trio.log(trio.leader(0)), last);
    assert_eq!(second.status().connects, 1);
    drop((copy, second));
}

/// Copies hang on replicas that do not lead, ask others how far they are, and leave the leader alone.
#[test]
fn many_copies_cost_the_leader_nothing() {
    const COPIES: u64 = 8;
    let trio = Trio::new();
    let leader = trio.leader(0);
    let dirs: Vec<_> = (0..COPIES).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut options = quick();
    options.files = Options::with_segment_bytes(1 << 20);
    let open = |dir: &tempfile::TempDir| {
        Follower::open(dir.path(), trio.addresses(), Start::First, options.clone()).unwrap()
    };
    let copies: Vec<_> = dirs.iter().map(open).collect();
    let calls = |node: u64| trio.server(node).calls.load(Ordering::Relaxed);
    let (before, others) = (calls(leader), (1..=3).filter(|n| *n != leader));
    assert!(before <= 2 * COPIES, "each asked it what it is: {before}");
    let others_before: u64 = others.clone().map(calls).sum();
    let last = append(trio.log(leader), 2_000, 100);
    copies.iter().for_each(|copy| copy.wait_for(last, LONG).unwrap());
    until("each copy has asked some server how far it is, several times", || {
        others.clone().map(calls).sum::<u64>() > others_before + 4 * COPIES
    });
    assert_eq!(calls(leader), before);
    assert_eq!(trio.server(leader).host.copies().begun, 0);
    let fed: u64 = others.map(|n| trio.server(n).host.copies().now).sum();
    assert_eq!(fed, COPIES);
}

/// A copy that does not take what it is sent costs its server what fits a window, and nobody else anything.
#[test]
fn a_slow_copy_costs_its_server_no_memory() {
    let one = One::with(Options::with_segment_bytes(4 << 20), NativeOptions::default());
    let last = append(&one.log, 4_000, 10_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = FollowClient::connect(format!("http://{}", one.address()))
            .await
            .unwrap()
            .max_decoding_message_size(64 << 20);
        let request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
        let mut stream = client.follow(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().unwrap().head.is_empty());
        // It has begun, and comes to a stand.
        let sent = || one.server.host.copies().bytes;
        let (mut before, mut still) = (sent(), 0);
        while still < 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            still = if sent() == before && before > 0 { still + 1 } else { 0 };
            before = sent();
        }
        assert!(before < 8 << 20, "{before} of 40 MB were taken from the log");
        let other = tempfile::tempdir().unwrap();
        let address = one.address();
        let path = other.path().to_owned();
        let copy = tokio::task::spawn_blocking(move || follow(&path, &[address], Start::First));
        let copy = copy.await.unwrap();
        tokio::task::spawn_blocking(move || copy.wait_for(last, LONG).unwrap()).await.unwrap();
        assert_eq!(one.server.host.copies().now, 1, "the other one has left");
        drop(stream);
        until("it is forgotten", || one.server.host.copies().now == 0);
    });
}

type Spoil = fn(&mut FollowResponse);
type Responses = Pin<Box<dyn Stream<Item = Result<FollowResponse, Status>> + Send>>;

/// Feeds copies of a log, but spoils what it sends.
struct Rogue {
    log: Log,
    spoil: Spoil,
    asked: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Follow for Rogue {
    type FollowStream = Responses;

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<Responses>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let from = match request.into_inner().start {
            Some(Asked::After(FollowPlace { index, term })) => FeedFrom::After {
                log: self.log.info().log_id,
                raft: chiplog::RaftIndex(index),
                term: chiplog::Term(term),
            },
            _ => FeedFrom::First,
        };
        let mut feed = self.log.feed(from).unwrap();
        let id = self.log.info().log_id.get().to_be_bytes().to_vec().into();
        let committed = feed.committed().get();
        let hello = FollowResponse { log_id: id, committed, last: 1, first: 1, ..Default::default() };
        let mut all = vec![Ok(hello)];
        while let Some(fed) = feed.next(4096).unwrap() {
            let (head, bodies) = fed.encode();
            let mut response =
                FollowResponse { head, bodies, committed, last: 1, first: 1, ..Default::default() };
            (self.spoil)(&mut response);
            all.push(Ok(response));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(all).chain(tokio_stream::pending()))))
    }
}

impl Rogue {
    async fn serve(self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let host = Host::new();
        host.open(self.log.clone());
        let server = tonic::transport::Server::builder()
            .add_service(Native::new(host).into_service())
            .add_service(FollowServer::new(self));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}

fn flip(bytes: &mut Bytes, at: usize) {
    let mut copy = bytes.to_vec();
    let at = at.min(copy.len() - 1);
    copy[at] ^= 4;
    *bytes = copy.into();
}

/// Whatever a server sends, nothing wrong is stored, and the next server is asked.
#[test]
fn what_a_rogue_server_sends_is_not_stored() {
    let spoils: [(&str, Spoil); 6] = [
        ("a bit of a body", |r| {
            if let Some(body) = r.bodies.iter_mut().find(|b| !b.is_empty()) {
                flip(body, 100);
            }
        }),
        ("a bit of a head", |r| flip(&mut r.head, 30)),
        ("a body is missing", |r| drop(r.bodies.pop())),
        ("a head is cut off", |r| r.head = r.head.slice(..r.head.len() / 2)),
        ("bytes that mean nothing", |r| (r.head, r.bodies) = (vec![1; 50].into(), Vec::new())),
        ("one too many", |r| r.bodies.push(vec![0; 10].into())),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = One::new();
    let last = append(&one.log, 300, 200);
    for (what, spoil) in spoils {
        let dir = tempfile::tempdir().unwrap();
        // Part of it is there already, soundly.
        follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
        let last = append(&one.log, 100, 200);
        let asked = Arc::<AtomicU64>::default();
        let rogue = Rogue { log: one.log.clone(), spoil, asked: asked.clone() };
        let rogue = runtime.block_on(rogue.serve());
        let port = free_port();
        let copy = follow(dir.path(), &[rogue.clone(), format!("127.0.0.1:{port}")], Start::First);
        let why = event(&copy, |e| match e {
            FollowerEvent::Failed { server: Some(server), error } if *server == rogue => Some(error.clone()),
            _ => None,
        });
        assert!(matches!(why.kind(), ErrorKind::Corrupt | ErrorKind::Diverged), "{what}: {why}");
        assert!(why.to_string().contains(&rogue), "{what}: {why}");
        assert!(asked.load(Ordering::Relaxed) > 0 && copy.status().stopped.is_none(), "{what}");
        let right = Server::start_at(one.log.clone(), port, NativeOptions::default());
        copy.wait_for(last, LONG).unwrap();
        same(copy.log(), &one.log, last);
        copy.close().unwrap();
        drop(right);
    }
}

/// A head that is another one, its checksum right.
fn changed(head: &Bytes, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut head = head.to_vec();
    change(&mut head);
    let crc = crc32c(&head[4..]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    head.into()
}

/// Castagnoli's, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Servers and followers are not upgraded in one moment: what a later version adds is passed over, and what cannot be
/// understood without it is refused with a word on what to do.
#[test]
fn servers_of_a_later_version_feed_copies_or_are_refused_as_such() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = One::new();
    let last = append(&one.log, 100, 100);
    let serve = |spoil: Spoil| {
        let rogue = Rogue { log: one.log.clone(), spoil, asked: Arc::default() };
        runtime.block_on(rogue.serve())
    };
    let later = serve(|r| {
        r.head = changed(&r.head, |head| {
            head[6] = 8;
            head.splice(48..48, [3; 8]);
        });
    });
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[later], Start::First);
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);

    let too_late = serve(|r| r.head = changed(&r.head, |head| head[5] = 1));
    let dir = tempfile::tempdir().unwrap();
    let refused =
        Follower::open(dir.path(), [too_late.clone()], Start::First, quick()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains(&too_late), "{refused}");
    assert!(refused.to_string().contains("upgrade the follower"), "{refused}");
    // As long as another server has this version, it goes on with that one.
    let copy = follow(dir.path(), &[too_late, one.address()], Start::First);
    copy.wait_for(last, LONG).unwrap();
}

/// Closing waits for no server, from whatever thread: not for one that says nothing either.
#[test]
fn closing_waits_for_no_server() {
    let one = One::new();
    let last = append(&one.log, 10, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    // It takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = quick();
    (options.probe_timeout, options.attempt_timeout) = (10 * LONG, 10 * LONG);
    let servers = [silent.local_addr().unwrap().to_string()];
    let copy = Follower::open(dir.path(), servers, Start::First, options).unwrap();
    let waiting = std::thread::spawn({
        let copy = copy.clone();
        move || copy.wait_for(last.next(), 10 * LONG)
    });
    let events = std::thread::spawn({
        let copy = copy.clone();
        move || copy.next_event(10 * LONG).map(drop)
    });
    let closing = std::thread::spawn({
        let copy = copy.clone();
        move || copy.close()
    });
    closing.join().unwrap().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(events.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    // The directory is free again.
    follow(dir.path(), &[one.address()], Start::First).close().unwrap();
}

/// The last handle goes in a hook of a reader, on the very thread that stores what comes.
#[test]
fn the_last_handle_may_go_in_a_hook() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    let reader = copy.reader(Start::Next).unwrap();
    let (done, came) = std::sync::mpsc::channel();
    reader.on_more(move || {
        drop(copy);
        done.send(()).unwrap();
    });
    one.log.append(b"x").unwrap();
    came.recv_timeout(LONG).unwrap();
    until("the directory is free", || {
        Follower::open(dir.path(), [one.address()], Start::First, quick()).is_ok()
    });
}

/// The same when the follower ends by itself: then hooks run on a thread of the log's own.
#[test]
fn the_last_handle_may_go_when_a_follower_ends_by_itself() {
    let (one, wrong) = (One::new(), One::new());
    let last = append(&one.log, 10, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    let copy = follow(dir.path(), &[wrong.address()], Start::First);
    if let Ok(reader) = copy.reader(Start::Next) {
        let (done, came) = std::sync::mpsc::channel();
        reader.on_more(move || {
            drop(copy);
            done.send(()).unwrap();
        });
        came.recv_timeout(LONG).unwrap();
    }
    until("the directory is free", || {
        Follower::open(dir.path(), [one.address()], Start::First, quick()).is_ok()
    });
}

/// A copy that keeps less than the log does is believed that records are gone only if nobody else has them.
#[test]
fn what_one_server_has_discarded_another_one_may_have() {
    let one = One::new();
    let early = append(&one.log, 100, 100);
    let behind: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    for dir in &behind {
        follow(dir.path(), &[one.address()], Start::First).wait_for(early, LONG).unwrap();
    }
    let last = append(&one.log, 10_000, 1_000);
    let short = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options { retention_bytes: Some(2 << 20), ..Options::with_segment_bytes(1 << 20) };
    let short = Follower::open(short.path(), [one.address()], Start::First, options).unwrap();
    short.wait_for(last, LONG).unwrap();
    until("it keeps less", || short.status().first > early.next());
    let serving = Server::serve(short.host().clone(), 0, NativeOptions::default());
    let servers = [serving.address.clone(), one.address()];
    for dir in &behind {
        let copy = follow(dir.path(), &servers, Start::First);
        copy.wait_for(last, LONG).unwrap();
        assert_eq!((copy.status().first, copy.status().jumps), (Index(1), 0));
    }
    let new = tempfile::tempdir().unwrap();
    assert_eq!(follow(new.path(), &servers, Start::First).status().first, Index(1));
    let new = tempfile::tempdir().unwrap();
    let at = follow(new.path(), &servers, Start::Index(Index(50)));
    assert!(at.status().first <= Index(50));
    // With nobody else, it is believed.
    let copy = follow(behind[0].path(), &servers[..1], Start::First);
    let more = append(&one.log, 10_000, 1_000);
    copy.wait_for(more, LONG).unwrap();
    copy.close().unwrap();
}

/// A copy whose own server is gone stands still, and says nothing of it: who hangs on it looks around.
#[test]
fn a_copy_that_stands_still_is_left_for_another_copy() {
    let one = One::new();
    let servers: Vec<_> =
        (0..2).map(|_| Server::start_at(one.log.clone(), 0, NativeOptions::default())).collect();
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let copies: Vec<_> = (0..2)
        .map(|n| follow(dirs[n].path(), std::slice::from_ref(&servers[n].address), Start::First))
        .collect();
    let serving: Vec<_> =
        copies.iter().map(|c| Server::serve(c.host().clone(), 0, NativeOptions::default())).collect();
    let all: Vec<_> = serving.iter().map(|s| s.address.clone()).collect();
    let copy = follow(dirs[2].path(), &all, Start::First);
    let source = copy.status().server.unwrap();
    let source = all.iter().position(|address| *address == source).unwrap();
    let mut servers: Vec<_> = servers.into_iter().map(Some).collect();
    servers[source] = None;
    until("the source has lost its server", || copies[source].status().server.is_none());
    let last = append(&one.log, 10, 100);
    copy.wait_for(last, LONG).unwrap();
    assert_eq!(copy.status().server.as_ref(), Some(&all[1 - source]));
    copy.close().unwrap();
}

/// A line that carries a large block in several times the silence that is borne: what counts is that bytes come.
#[test]
fn a_slow_line_is_not_silence() {
    let one = One::with(Options::with_segment_bytes(16 << 20), NativeOptions::default());
    let last = one.log.append(&vec![7; 6 << 20]).unwrap();
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = slow.local_addr().unwrap().to_string();
    let to = one.address();
    std::thread::spawn(move || {
        for from in slow.incoming().map_while(Result::ok) {
            let up = std::net::TcpStream::connect(&to).unwrap();
            let (mut request, mut back) = (from.try_clone().unwrap(), up.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut request, &mut &up));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(n @ 1..) = back.read(&mut bytes) {
                    std::thread::sleep(Duration::from_millis(30));
                    if (&from).write_all(&bytes[..n]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options::with_segment_bytes(16 << 20);
    (options.probe_timeout, options.keep_alive) = (LONG, Duration::from_millis(400));
    let copy = Follower::open(dir.path(), [at], Start::First, options).unwrap();
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}

/// A zone is preferred, even if its server leads.
#[test]
fn a_server_of_the_zone_is_preferred() {
    let trio = Trio::new();
    for (node, zone) in (1..=3).zip(["east", "west", "north"]) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = quick();
        options.zone = zone.into();
        let copy = Follower::open(dir.path(), trio.addresses(), Start::First, options).unwrap();
        assert_eq!(copy.status().server, Some(trio.address(node)));
    }
}
