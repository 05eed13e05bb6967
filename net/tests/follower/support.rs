//! Shared by these tests: a copy with short timeouts, waits, events, records.

use bytes::Bytes;
use chiplog::{ErrorKind, Index, Log, Options, Start};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a test waits for an event that must happen: no machine is this slow.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn quick() -> FollowerOptions {
    let mut options = FollowerOptions::default();
    options.files = Options::with_segment_bytes(4 << 20);
    options.keep_alive = Duration::from_millis(200);
    options.compare_interval = Duration::from_millis(200);
    options.probe_timeout = Duration::from_secs(5);
    options.open_timeout = LONG;
    options
}

pub(crate) fn follow(dir: &Path, servers: &[String], from: Start) -> Follower {
    Follower::open(dir, servers.iter().cloned(), from, quick()).unwrap()
}

#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The next event that `of` accepts.
#[track_caller]
pub(crate) fn event<T>(follower: &Follower, mut of: impl FnMut(&FollowerEvent) -> Option<T>) -> T {
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

/// Appends `count` records of `bytes` bytes, many at a time; returns the index of the last.
pub(crate) fn append(log: &Log, count: u64, bytes: usize) -> Index {
    let mut last = Index(0);
    let mut under_way = Vec::new();
    for n in 0..count {
        let mut record = n.to_le_bytes().to_vec();
        record.resize(bytes.max(8), n as u8);
        under_way.push(log.submit(&record).unwrap());
        if under_way.len() >= 64 || n + 1 == count {
            under_way.drain(..).for_each(|ticket| last = ticket.wait().unwrap());
        }
    }
    last
}

/// The batches from `first` to `last`, as they are in the log.
pub(crate) fn stored(log: &Log, first: Index, last: Index) -> Vec<(Index, u64, Bytes)> {
    let mut reader = log.reader(Start::Index(first)).unwrap();
    let mut all = Vec::new();
    while reader.position() <= last {
        let batch = reader.next_stored().unwrap().expect("it exists");
        all.push((batch.first(), batch.timestamp().get(), batch.bytes().clone()));
    }
    all
}

#[track_caller]
pub(crate) fn same(copy: &Log, log: &Log, last: Index) {
    let first = log.first_index().max(copy.first_index());
    copy.wait_for(last, LONG).unwrap();
    assert!(stored(copy, first, last) == stored(log, first, last), "{:?} {:?}", copy.status(), log.status());
}
