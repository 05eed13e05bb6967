//! Servers that fail, are cut off, shut down or lack records: the choice of the next server.

use crate::served::{One, Server, Trio};
use crate::support::{LONG, append, event, follow, quick, same, until};
use chiplog::{Index, Log, NodeId, Options, Start};
use chiplog_net::follower::{Follower, FollowerEvent};
use chiplog_net::service::log::NativeOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Appends to the current leader until stopped.
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

/// The server that feeds a copy is killed during appends, then the leader; the copy still gets every record.
#[test]
fn copy_continues_when_any_server_fails() {
    let mut trio = Trio::new();
    let appending = Appending::start((1..=3).map(|n| trio.log(n).clone()).collect());
    appending.goes_on(50);
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &trio.addresses(), Start::First);
    let leader = trio.leader(0);
    let at = |copy: &Follower| copy.status().server;
    let source = at(&copy).unwrap();
    assert_ne!(source, trio.address(leader), "a server that does not lead feeds copies, if there is one");
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
    // Its log is another handle now: appends go to the running replicas, and to it again once it leads.
    let leader = trio.leader(0);
    if leader != source {
        trio.kill(leader);
    }
    let next = trio.leader(leader);
    let last = appending.stop().max(append(trio.log(next), 20, 100));
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), trio.log(next), last);
    assert_eq!((copy.status().first, copy.status().jumps), (Index(1), 0));
    assert_eq!(copy.status().received_records, last.get(), "no record was received twice");
    copy.close().unwrap();
}

/// The rest of a cluster without a majority still feeds copies: no leader is needed.
#[test]
fn cluster_without_a_majority_feeds_copies() {
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
    until("it is known that there is no leader", || !copy.status().fed);
    copy.close().unwrap();
}

/// A server that is cut off from its cluster still answers, and gets no new records: a copy leaves it.
#[test]
fn server_that_falls_behind_is_left() {
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

/// A server that is shutting down reports it, and its copies switch to another one; copies of a copy stay.
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

/// A copy that keeps fewer records than the log is trusted about discarded records only if no other server has them.
#[test]
fn records_discarded_by_one_server_come_from_another() {
    let one = One::new();
    let early = append(&one.log, 100, 100);
    let behind: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    for dir in &behind {
        follow(dir.path(), &[one.address()], Start::First).wait_for(early, LONG).unwrap();
    }
    let last = append(&one.log, 10_000, 1_000);
    let short = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options::with_segment_bytes(1 << 20).retention_bytes(2 << 20);
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
    // If there is no other server, it is trusted.
    let copy = follow(behind[0].path(), &servers[..1], Start::First);
    let more = append(&one.log, 10_000, 1_000);
    copy.wait_for(more, LONG).unwrap();
    copy.close().unwrap();
}

/// A server of the preferred zone is chosen, even if it leads.
#[test]
fn server_of_the_zone_is_preferred() {
    let trio = Trio::new();
    for (node, zone) in (1..=3).zip(["east", "west", "north"]) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = quick();
        options.zone = zone.into();
        let copy = Follower::open(dir.path(), trio.addresses(), Start::First, options).unwrap();
        assert_eq!(copy.status().server, Some(trio.address(node)));
    }
}
