//! Logs, copies of them, and their comparison.

use bytes::Bytes;
use chiplog::follower::{FollowFrom, FollowMessage, FollowSnapshot, Jumped};
use chiplog::inspect::{Event, Inspector};
use chiplog::{FollowerLog, Index, Log, Options, Start, Timestamp};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Small segments, so that a short log rolls.
pub(crate) fn options() -> Options {
    Options::with_segment_bytes(64 << 10).block_bytes_max(4096)
}

/// Encodes an item of a feed and decodes it from pieces of another size.
pub(crate) fn travel(fed: &FollowMessage) -> FollowMessage {
    let (head, pieces) = fed.encode();
    let whole = Bytes::from(pieces.concat());
    let pieces = (0..whole.len()).step_by(7).map(|at| whole.slice(at..whole.len().min(at + 7))).collect();
    FollowMessage::decode(head, pieces).unwrap()
}

pub(crate) fn state(source: &Log, from: FollowFrom) -> FollowSnapshot {
    match travel(&source.follow(from).unwrap().next(1).unwrap().unwrap()) {
        FollowMessage::State(state) => state,
        other => panic!("the feed of a new copy begins with a state, not {other:?}"),
    }
}

pub(crate) fn create(source: &Log, from: FollowFrom, dir: &Path) -> FollowerLog {
    FollowerLog::create(dir, options(), &state(source, from)).unwrap()
}

/// Feeds everything in small portions. Returns the jumps.
pub(crate) fn catch_up(source: &Log, follower: &FollowerLog) -> Vec<Jumped> {
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    let mut jumps = Vec::new();
    while let Some(fed) = feed.next(5000).unwrap() {
        jumps.extend(follower.apply(travel(&fed)).unwrap());
    }
    jumps
}

pub(crate) type Records = Vec<(Index, Vec<u8>, Timestamp)>;

pub(crate) fn records(log: &Log) -> Records {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index, record.data.to_vec(), record.timestamp));
    }
    records
}

pub(crate) fn append(log: &Log, range: std::ops::Range<u64>) {
    let tickets: Vec<_> = range
        .map(|n| log.submit(format!("record {n} {}", "x".repeat(n as usize * 37 % 900)).as_bytes()).unwrap())
        .collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}

/// Both logs hold the same, and report the same about it.
pub(crate) fn assert_same(follower: &Log, source: &Log) {
    assert_eq!(records(follower), records(source));
    let (here, there) = (follower.status(), source.status());
    assert_eq!(
        (here.log_id, here.first_index, here.last_index),
        (there.log_id, there.first_index, there.last_index)
    );
    assert_eq!((here.sessions, here.last_timestamp), (there.sessions, there.last_timestamp));
    assert_ne!(here.directory_id, there.directory_id);
}

pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks a directory as `chiplog verify` does.
pub(crate) fn assert_sound(dir: &Path) {
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
