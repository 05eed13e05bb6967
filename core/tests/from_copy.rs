//! A follower's copy becomes a replica of its log's cluster.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::disk::Disk;
use chiplog::disk::sim::SimDisk;
use chiplog::follower::{FollowFrom, FollowMessage, FollowSnapshot};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, FollowerLog, Index, Log, LogId, NodeId, Options, ReadMode, Result, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::Wrong;
use support::explore::{Interrupted, whole_or_none};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
const ELECTION_TIMEOUT: Duration = Duration::from_millis(500);

fn options(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork) -> Options {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    (cluster.heartbeat, cluster.election_timeout) = (Duration::from_millis(20), ELECTION_TIMEOUT);
    cluster.slow_disk_sync = None;
    cluster.address = format!("memory:{node}");
    files().cluster(cluster)
}

fn files() -> Options {
    Options::with_segment_bytes(256 << 10)
}

fn add(leader: &Log, log: &Log, node: u64) {
    let (directory, address) = (log.directory_id(), format!("memory:{node}"));
    let add = Change::AddLearner { node: NodeId(node), directory, address };
    leader.change_members(&[add], PATIENCE).unwrap();
    leader.change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
}

/// Three replicas of a log with 1,000 records.
fn cluster(dir: &TempDir, network: &MemoryNetwork) -> Vec<Log> {
    let open = |node: u64, bootstrap| {
        Log::open(dir.path().join(node.to_string()), options(node, bootstrap, network)).unwrap()
    };
    let first = open(1, Bootstrap::Init);
    let id = first.log_id();
    let mut logs = vec![first];
    for node in 2..=3 {
        let log = open(node, Bootstrap::Join(id));
        add(&logs[0], &log, node);
        logs.push(log);
    }
    append(leader(&logs), 1000);
    logs.iter().for_each(|log| log.wait_for(Index(1000), PATIENCE).unwrap());
    logs
}

fn leader(logs: &[Log]) -> &Log {
    let begun = Instant::now();
    loop {
        if let Some(leader) = logs.iter().find(|log| log.role() == Role::Leader) {
            return leader;
        }
        assert!(begun.elapsed() < PATIENCE, "no leader");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn record(n: u64) -> Vec<u8> {
    format!("record {n} {}", "x".repeat(700 + n as usize % 300)).into_bytes()
}

fn append(log: &Log, count: u64) {
    let first = log.last_index().get() + 1;
    let tickets: Vec<_> = (first..first + count).map(|n| log.submit(&record(n)).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| assert!(ticket.wait().unwrap() > Index(0)));
}

fn assert_records(log: &Log, first: u64, last: u64) {
    let mut reader = log.reader(Start::First).unwrap();
    for n in first..=last {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert!((found.index, found.data) == (Index(n), &record(n)[..]), "record {n}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

/// Makes a copy of all that the log has now.
fn fill(
    log: &Log,
    from: FollowFrom,
    create: impl FnOnce(&FollowSnapshot) -> Result<FollowerLog>,
) -> Result<FollowerLog> {
    let mut feed = log.follow(from)?;
    let Some(FollowMessage::State(state)) = feed.next(1 << 20)? else { panic!("no state") };
    let copy = create(&state)?;
    while copy.log().last_index() < log.last_index() {
        copy.apply(feed.next(1 << 20)?.unwrap())?;
    }
    Ok(copy)
}

fn copy(log: &Log, from: FollowFrom, dir: &Path) {
    let copy = fill(log, from, |state| FollowerLog::create(dir, files(), state)).unwrap();
    copy.close().unwrap();
}

fn make_replica(dir: &Path, log: LogId, node: u64, first: u64) -> Result<()> {
    FollowerLog::make_replica(dir, log, NodeId(node), Index(first), &files())
}

/// Before it is added its greetings are answered with notices that it is no member. It does not believe those, also after a restart, and
/// begins with what it has. Once it was added it believes them.
#[test]
fn copy_becomes_a_voter() {
    let (dir, network) = (tempfile::tempdir().unwrap(), MemoryNetwork::new());
    let mut logs = cluster(&dir, &network);
    let id = logs[0].log_id();
    leader(&logs).discard(Index(400)).unwrap();
    let place = dir.path().join("4");
    copy(&logs[1], FollowFrom::First, &place);
    let entries = logs[1].status().replica.committed_entry;
    assert_eq!(FollowerLog::log_at(&place).unwrap(), Some(id));
    append(leader(&logs), 200);
    make_replica(&place, id, 4, 400).unwrap();
    assert_eq!(FollowerLog::log_at(&place).unwrap(), None);
    assert_eq!(Log::open(&place, files()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Nor is it one of the members, or the first of a cluster.
    for (node, bootstrap) in [(1, Bootstrap::Existing), (2, Bootstrap::Join(id)), (4, Bootstrap::Init)] {
        let refused = Log::open(&place, options(node, bootstrap, &network)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    for _ in 0..2 {
        let waiting = Log::open(&place, options(4, Bootstrap::Existing, &network)).unwrap();
        std::thread::sleep(4 * ELECTION_TIMEOUT);
        assert_eq!(waiting.role(), Role::Learner);
        // It has all entries; how many of them are committed its leader tells.
        assert!(waiting.status().replica.last_entry >= entries);
        assert_records(&waiting, waiting.first_index().get(), waiting.last_index().get());
        waiting.close().unwrap();
    }
    let fourth = Log::open(&place, options(4, Bootstrap::Join(id), &network)).unwrap();
    add(leader(&logs), &fourth, 4);
    fourth.wait_for(Index(1200), PATIENCE).unwrap();
    append(leader(&logs), 10);
    logs.push(fourth);
    // Each majority of what is left needs it.
    logs.remove(0).close().unwrap();
    append(leader(&logs), 10);
    for log in &logs {
        log.wait_for(Index(1220), PATIENCE).unwrap();
        assert_records(log, 400, 1220);
    }
    logs.pop().unwrap().close().unwrap();
    let fourth = Log::open(&place, options(4, Bootstrap::Existing, &network)).unwrap();
    logs.push(fourth);
    let leader = leader(&logs);
    for node in [1, 4] {
        leader.change_members(&[Change::Remove(NodeId(node))], PATIENCE).unwrap();
    }
    let begun = Instant::now();
    while logs[2].role() != Role::Removed {
        assert!(begun.elapsed() < PATIENCE, "{:?}", logs[2].status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The copy is of a time when the log was on its own. Entries of an earlier term than the one in which it hears of them are in order.
#[test]
fn copy_of_a_log_on_its_own_becomes_a_replica() {
    let (dir, network) = (tempfile::tempdir().unwrap(), MemoryNetwork::new());
    let (own, place) = (dir.path().join("1"), dir.path().join("4"));
    let log = Log::open(&own, files()).unwrap();
    append(&log, 100);
    let id = log.log_id();
    copy(&log, FollowFrom::First, &place);
    log.close().unwrap();
    for _ in 0..3 {
        let log = Log::open(&own, options(1, Bootstrap::Existing, &network)).unwrap();
        append(&log, 1);
        log.close().unwrap();
    }
    let logs = [Log::open(&own, options(1, Bootstrap::Existing, &network)).unwrap()];
    make_replica(&place, id, 4, 1).unwrap();
    let open = || Log::open(&place, options(4, Bootstrap::Existing, &network)).unwrap();
    let fourth = open();
    let (directory, address) = (fourth.directory_id(), "memory:4".to_owned());
    let learner = Change::AddLearner { node: NodeId(4), directory, address };
    leader(&logs).change_members(&[learner], PATIENCE).unwrap();
    fourth.wait_for(Index(103), PATIENCE).unwrap();
    fourth.close().unwrap();
    let fourth = open();
    leader(&logs).change_members(&[Change::Promote(NodeId(4))], PATIENCE).unwrap();
    append(leader(&logs), 1);
    fourth.wait_for(Index(104), PATIENCE).unwrap();
    assert_records(&fourth, 1, 104);
}

/// A copy that lacks what the log has, or is of something else, stays a copy.
#[test]
fn copy_that_cannot_be_a_replica_stays_one() {
    let (dir, network) = (tempfile::tempdir().unwrap(), MemoryNetwork::new());
    let logs = cluster(&dir, &network);
    let id = logs[0].log_id();
    let whole = dir.path().join("whole");
    copy(&logs[1], FollowFrom::First, &whole);
    let part = dir.path().join("part");
    copy(&logs[1], FollowFrom::Index(Index(500)), &part);
    let refused = |dir: &Path, log, node, first, why: &str| {
        let error = make_replica(dir, log, node, first).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(&part, id, 4, 1, "and the log with record 1: begin with an empty directory");
    refused(&whole, LogId(7), 4, 1, "not of log");
    refused(&whole, id, 2, 1, "knows node 2 as a member");
    let own = dir.path().join("own");
    Log::open(&own, files()).unwrap().close().unwrap();
    refused(&own, id, 4, 1, "holds a log on its own, or a replica of a cluster");
    let open = FollowerLog::open(&whole, files()).unwrap();
    assert_eq!(make_replica(&whole, id, 4, 1).unwrap_err().kind(), ErrorKind::Locked);
    open.close().unwrap();
    for copy in [&whole, &part] {
        assert_eq!(FollowerLog::log_at(copy).unwrap(), Some(id));
        FollowerLog::open(copy, files()).unwrap();
    }
    assert_eq!(FollowerLog::log_at(&own).unwrap(), None);
    assert_eq!(FollowerLog::log_at(dir.path().join("nothing")).unwrap(), None);
}

/// The power is cut, or a call fails, at every point: the directory holds a copy, or a replica with all that the copy had.
#[test]
fn power_cut_leaves_a_copy_or_a_replica() {
    let (dir, network) = (tempfile::tempdir().unwrap(), MemoryNetwork::new());
    let logs = cluster(&dir, &network);
    let id = logs[0].log_id();
    let entries = logs[1].status().replica.committed_entry;
    let make = |disk: &SimDisk| {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let copy =
            fill(&logs[1], FollowFrom::First, |state| FollowerLog::create_on(disk.clone(), files(), state))?;
        copy.close()?;
        FollowerLog::make_replica_on(&disk, id, NodeId(4), Index(1), &files())
    };
    let judge = |disk: &SimDisk, complete: bool| {
        let wrong = |what: String| Err(Wrong(what));
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let files = || files().read_mode(ReadMode::Read);
        match FollowerLog::open_on(disk.clone(), files()) {
            Ok(_) if complete => wrong("it is still a copy".into()),
            Ok(copy) => {
                copy.close().unwrap();
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !complete => Ok(false),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                let options =
                    options(4, Bootstrap::Existing, &MemoryNetwork::new()).read_mode(ReadMode::Read);
                let replica = Log::open_on(disk, options).map_err(|e| Wrong(format!("the replica: {e}")))?;
                assert_records(&replica, 1, replica.last_index().get());
                match replica.status().replica.last_entry {
                    last if last >= entries => Ok(true),
                    last => wrong(format!("the replica ends with entry {last}, not with {entries}")),
                }
            }
            Err(error) => wrong(format!("neither a copy nor a replica: {error}")),
        }
    };
    let Interrupted { none, failures, .. } = whole_or_none("replica of a copy", 4, make, judge);
    assert!(none > 10 && failures > 5, "{none} {failures}");
}
