//! Replicas in one process, on real disks, over the in-memory network: a cluster as a program that embeds it sees it.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, Index, Log, LogId, NodeId, Options, Start};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// A cluster and its directories.
struct Trio {
    network: MemoryNetwork,
    dirs: Vec<TempDir>,
    logs: Vec<Option<Log>>,
    id: LogId,
}

fn options(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork) -> Options {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(20);
    cluster.election_timeout = ELECTION_TIMEOUT;
    cluster.slow_disk_sync = None;
    cluster.address = format!("memory:{node}");
    Options::with_segment_bytes(256 << 10).cluster(cluster)
}

/// A caller that was told that a change is in force finds it in the status at once.
#[track_caller]
fn assert_shown(log: &Log, change: &Change) {
    let status = log.status();
    let member = |node: &NodeId| status.replica.members.iter().find(|m| m.node == *node);
    let is_shown = match change {
        Change::Promote(node) => member(node).is_some_and(chiplog::cluster::Member::is_voter),
        Change::Demote(node) => member(node).is_some_and(chiplog::cluster::Member::is_learner),
        Change::SetAddress { node, address } => member(node).is_some_and(|m| m.address == *address),
        other => panic!("not checked for {other:?}"),
    };
    assert!(is_shown, "{change:?}: {status:?}");
}

impl Trio {
    fn new(nodes: u64) -> Self {
        let network = MemoryNetwork::new();
        let dirs: Vec<TempDir> = (0..nodes).map(|_| tempfile::tempdir().unwrap()).collect();
        let first = Log::open(dirs[0].path(), options(1, Bootstrap::Init, &network)).unwrap();
        let id = first.log_id();
        let mut logs = vec![Some(first)];
        for node in 2..=nodes {
            let log = Log::open(dirs[node as usize - 1].path(), options(node, Bootstrap::Join(id), &network))
                .unwrap();
            let leader = logs[0].as_ref().unwrap();
            let directory = log.directory_id();
            let add = Change::AddLearner { node: NodeId(node), directory, address: format!("memory:{node}") };
            let r = leader.change_members(&[add], PATIENCE);
            if r.is_err() {
                for l in logs.iter().flatten().chain([&log]) {
                    eprintln!("{:?} {:?}", l.status(), l.poison_cause());
                }
            }
            r.unwrap();
            let change = Change::Promote(NodeId(node));
            leader.change_members(std::slice::from_ref(&change), PATIENCE).unwrap();
            assert_shown(leader, &change);
            logs.push(Some(log));
        }
        Self { network, dirs, logs, id }
    }

    fn log(&self, node: u64) -> &Log {
        self.logs[node as usize - 1].as_ref().unwrap()
    }

    /// Waits for a leader among the running replicas, other than `not`.
    fn leader(&self, not: u64) -> u64 {
        let end = Instant::now() + PATIENCE;
        loop {
            for (n, log) in self.logs.iter().enumerate() {
                let node = n as u64 + 1;
                if node != not && log.as_ref().is_some_and(|l| l.role() == Role::Leader) {
                    return node;
                }
            }
            assert!(
                Instant::now() < end,
                "no leader: {:?}",
                self.logs.iter().flatten().map(Log::status).collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self, node: u64) {
        let log = self.logs[node as usize - 1].take().unwrap();
        let _ = log.close();
    }

    fn start(&mut self, node: u64) {
        let options = options(node, Bootstrap::Existing, &self.network);
        let log = Log::open(self.dirs[node as usize - 1].path(), options).unwrap();
        self.logs[node as usize - 1] = Some(log);
    }

    /// All records that a replica has.
    fn records(&self, node: u64) -> Vec<(Index, Vec<u8>)> {
        let mut reader = self.log(node).reader(Start::First).unwrap();
        let mut records = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            records.push((record.index, record.data.to_vec()));
        }
        records
    }
}

#[test]
fn three_replicas_have_the_same_log() {
    let trio = Trio::new(3);
    let leader = trio.leader(0);
    for i in 0..500u32 {
        let index = trio.log(leader).append(format!("record {i} {}", "x".repeat(1000)).as_bytes()).unwrap();
        assert_eq!(index, Index(u64::from(i) + 1));
    }
    for node in 1..=3 {
        trio.log(node).wait_for(Index(500), PATIENCE).unwrap();
        assert_eq!(trio.records(node), trio.records(leader));
        assert_eq!(trio.log(node).barrier(PATIENCE).unwrap(), Index(500));
    }
    assert_eq!(trio.records(1).len(), 500);
    let follower = (1..=3).find(|n| *n != leader).unwrap();
    assert_eq!(trio.log(follower).append(b"no").unwrap_err().kind(), ErrorKind::NotLeader);
    assert_eq!(trio.log(follower).log_id(), trio.id);
}

#[test]
fn another_leader_is_elected_and_the_old_one_rejoins() {
    let mut trio = Trio::new(3);
    let first = trio.leader(0);
    for i in 0..100u32 {
        trio.log(first).append(&i.to_le_bytes()).unwrap();
    }
    trio.network.disconnect(NodeId(first));
    // Appends at the isolated leader are not committed, and return an error.
    let lost = trio.log(first).submit(b"never seen").unwrap();
    let second = trio.leader(first);
    for i in 100..200u32 {
        trio.log(second).append(&i.to_le_bytes()).unwrap();
    }
    let kind = lost.wait_timeout(PATIENCE).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::NotLeader), "{kind}");
    trio.network.connect(NodeId(first));
    trio.log(first).wait_for(Index(200), PATIENCE).unwrap();
    trio.stop(second);
    let third = trio.leader(second);
    trio.log(third).append(b"after two leaders").unwrap();
    trio.start(second);
    for node in 1..=3 {
        trio.log(node).wait_for(Index(201), PATIENCE).unwrap();
        let records = trio.records(node);
        assert_eq!(records.len(), 201);
        for (i, (index, data)) in records[..200].iter().enumerate() {
            assert_eq!((index.get(), &data[..]), (i as u64 + 1, &(i as u32).to_le_bytes()[..]));
        }
    }
}

#[test]
fn replica_that_lags_behind_a_discard_jumps() {
    let trio = Trio::new(3);
    let leader = trio.leader(0);
    let lagging = (1..=3).find(|n| *n != leader).unwrap();
    trio.log(leader).append(&[7; 1000]).unwrap();
    let mut session = trio.log(leader).open_session().unwrap();
    trio.network.disconnect(NodeId(lagging));
    for _ in 0..1000 {
        session.append(&[8; 1000]).unwrap();
    }
    trio.log(leader).discard(Index(900)).unwrap();
    trio.network.connect(NodeId(lagging));
    let last = session.append(b"last").unwrap();
    trio.log(lagging).wait_for(last, PATIENCE).unwrap();
    assert!(trio.log(lagging).first_index() >= Index(2));
    assert_eq!(trio.log(lagging).first_index(), Index(900));
    assert_eq!(trio.records(lagging), trio.records(leader));
    // The session was restored by the jump.
    trio.log(leader).transfer_leader(NodeId(lagging), PATIENCE).unwrap();
    let (id, next) = (session.id(), session.next_sequence());
    trio.leader(leader);
    let mut again = trio.log(lagging).resume_session(id, chiplog::Sequence(next.get() - 1));
    assert_eq!(again.append(b"last").unwrap(), last);
}

/// A voter wrote its commit index only when the log was idle or rolled, and not at all as the only voter: after a
/// restart it waited for the vote of a voter that had left long ago.
#[test]
fn last_voter_remembers_that_it_is_the_last() {
    let mut trio = Trio::new(2);
    assert_eq!(trio.leader(0), 1);
    trio.log(1).append(b"with two").unwrap();
    trio.log(1).change_members(&[Change::Remove(NodeId(2))], PATIENCE).unwrap();
    let last = trio.log(1).append(b"alone").unwrap();
    trio.stop(2);
    trio.stop(1);
    trio.start(1);
    assert_eq!(trio.leader(0), 1);
    assert_eq!(trio.log(1).append(b"again").unwrap(), last.next());
}

/// Files were removed that the log still needed after a restart, because it did not know then which entries were
/// committed.
#[test]
fn last_voter_opens_after_its_discards() {
    let mut trio = Trio::new(2);
    assert_eq!(trio.leader(0), 1);
    for _ in 0..600 {
        trio.log(1).append(&[1; 1000]).unwrap();
    }
    trio.log(1).change_members(&[Change::Remove(NodeId(2))], PATIENCE).unwrap();
    trio.log(1).discard(Index(550)).unwrap();
    let end = Instant::now() + PATIENCE;
    while trio.log(1).status().segments > 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    trio.stop(2);
    trio.stop(1);
    trio.start(1);
    assert_eq!(trio.leader(0), 1);
    assert_eq!(trio.records(1).len(), 51);
}

/// A leader that had reached the limit of uncommitted bytes stepped down and refused nothing. Appends waited for
/// ever, and so did a call of `close`.
#[test]
fn leader_without_a_majority_answers_all_waiting_calls() {
    let mut trio = Trio::new(3);
    let first = trio.leader(0);
    trio.stop(first);
    let mut small = options(first, Bootstrap::Existing, &trio.network);
    small.cluster.as_mut().unwrap().uncommitted_bytes_max = 10_000;
    let log = Log::open(trio.dirs[first as usize - 1].path(), small).unwrap();
    let second = trio.leader(first);
    // It starts no election before the others have introduced themselves.
    let end = Instant::now() + PATIENCE;
    while trio.log(second).transfer_leader(NodeId(first), PATIENCE).is_err() {
        assert!(Instant::now() < end);
    }
    trio.network.disconnect(NodeId(first));
    let tickets: Vec<_> = (0..20).map(|_| log.submit(&[1; 60_000]).unwrap()).collect();
    for ticket in tickets {
        let kind = ticket.wait_timeout(PATIENCE).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::NotLeader), "{kind}");
    }
    log.close().unwrap();
}

/// A leader was deposed. The next leader's change had the index of its own in the log, and counted as it.
#[test]
fn change_of_a_deposed_leader_is_not_answered_by_another_change() {
    let trio = Trio::new(3);
    let first = trio.leader(0);
    for node in 1..=3 {
        trio.log(node).barrier(PATIENCE).unwrap(); // all know that they are voters
    }
    trio.network.disconnect(NodeId(first));
    let add = |node| {
        let directory = chiplog::DirectoryId::default();
        Change::AddLearner { node: NodeId(node), directory, address: String::new() }
    };
    std::thread::scope(|scope| {
        let _lost = trio.log(first).submit(b"where the next leader begins").unwrap();
        let change = scope.spawn(|| trio.log(first).change_members(&[add(8)], PATIENCE));
        let second = trio.leader(first);
        trio.log(second).change_members(&[add(9)], PATIENCE).unwrap();
        trio.network.connect(NodeId(first));
        let error = change.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

/// A change that waited for a learner to catch up was proposed during a transfer of leadership. Raft refuses
/// proposals then, and the change failed.
#[test]
fn change_waits_during_a_transfer_of_leadership() {
    let trio = Trio::new(3);
    let leader = trio.leader(0);
    let to = (1..=3).find(|n| *n != leader).unwrap();
    let dir = tempfile::tempdir().unwrap();
    trio.network.disconnect(NodeId(4));
    let fourth = Log::open(dir.path(), options(4, Bootstrap::Join(trio.id), &trio.network)).unwrap();
    let directory = fourth.directory_id();
    let add = Change::AddLearner { node: NodeId(4), directory, address: "memory:4".into() };
    trio.log(leader).change_members(&[add], PATIENCE).unwrap();
    std::thread::scope(|scope| {
        // During a transfer of leadership the request itself would be refused: it is in the queue before.
        let promote = [Change::Promote(NodeId(4))];
        let promoted = trio.log(leader).submit_change_members(&promote, PATIENCE).unwrap();
        trio.network.disconnect(NodeId(to));
        // Whether this thread runs during the transfer depends on the machine.
        let is_refused = (0..20).any(|_| {
            let handed =
                scope.spawn(|| trio.log(leader).transfer_leader(NodeId(to), Duration::from_millis(150)));
            let mut refused = None;
            while refused.is_none() && !handed.is_finished() {
                refused = trio.log(leader).append(b"not now").err();
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(error) = &refused {
                assert!(
                    error.to_string().contains(&format!("is transferring leadership to node {to}")),
                    "{error}"
                );
                trio.network.connect(NodeId(4));
            }
            assert_eq!(handed.join().unwrap().unwrap_err().kind(), ErrorKind::Timeout);
            refused.is_some()
        });
        assert!(is_refused);
        promoted.wait().unwrap();
    });
}

/// Only a new number of members refreshed the status: a change that kept it was shown late.
#[test]
fn status_shows_an_answered_change_at_once() {
    let trio = Trio::new(3);
    for round in 0..10 {
        let leader = trio.leader(0);
        let log = trio.log(leader);
        let other = NodeId(leader % 3 + 1);
        let address = format!("memory:{other}-{round}");
        for change in
            [Change::Demote(other), Change::SetAddress { node: other, address }, Change::Promote(other)]
        {
            log.change_members(std::slice::from_ref(&change), PATIENCE).unwrap();
            assert_shown(log, &change);
        }
        log.transfer_leader(other, PATIENCE).unwrap();
        let status = log.status();
        assert!(status.replica.role != Role::Leader && status.replica.leader == Some(other), "{status:?}");
    }
}

/// The status of an idle log of one replica always showed the state before its last append.
#[test]
fn status_of_an_idle_log_includes_its_last_append() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(256 << 10)).unwrap();
    let end = Instant::now() + PATIENCE;
    for i in 0..20u8 {
        let last = log.append(&[i]).unwrap();
        while log.status().replica.committed_index != last {
            assert!(Instant::now() < end, "{:?}", log.status());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(u64::from(i)));
    }
}

/// A follower accepted data with the file that is reserved for discards. Then it found no file at all and was
/// poisoned. Opened again it met the same entry before the discard that would have made room.
#[cfg(feature = "testing")]
#[test]
fn follower_without_room_waits_for_it() {
    use chiplog::disk::sim::SimDisk;
    use std::sync::Arc;
    let trio = Trio::new(2);
    let leader = trio.leader(0);
    let disk = SimDisk::default();
    let open =
        |bootstrap| Log::open_on(Arc::new(disk.clone()), options(3, bootstrap, &trio.network)).unwrap();
    let third = open(Bootstrap::Join(trio.id));
    let directory = third.directory_id();
    let add = Change::AddLearner { node: NodeId(3), directory, address: String::new() };
    trio.log(leader).change_members(&[add], PATIENCE).unwrap();
    trio.log(leader).change_members(&[Change::Promote(NodeId(3))], PATIENCE).unwrap();
    let append = |n: u32| (0..n).fold(Index(0), |_, _| trio.log(leader).append(&[3; 1000]).unwrap());
    let before = append(300); // by now it prepares files ahead
    third.wait_for(before, PATIENCE).unwrap();
    disk.limit_space(Some(disk.space_used()));
    append(2000);
    std::thread::sleep(3 * ELECTION_TIMEOUT);
    let follows = |log: &Log| log.poison_cause().is_none() && log.role() == Role::Follower;
    assert!(follows(&third), "{:?} {:?}", third.status(), third.poison_cause());
    assert!(third.last_index() < Index(2300));
    // It hears the leader and the leader hears it; closed and opened it is as before.
    assert!(trio.log(leader).status().replica.peers.iter().any(|p| p.node == NodeId(3) && p.active));
    third.close().unwrap();
    let third = open(Bootstrap::Existing);
    std::thread::sleep(Duration::from_millis(600));
    assert!(third.poison_cause().is_none(), "{:?}", third.poison_cause());
    // The others discard records, some of which it has and some of which it lacks: it makes room, and continues from
    // there.
    trio.log(leader).discard(Index(2200)).unwrap();
    let last = append(100);
    third.wait_for(last, PATIENCE).unwrap();
    assert!(follows(&third));
    // The same again, but the disk gets more space.
    append(1500);
    std::thread::sleep(ELECTION_TIMEOUT * 3 / 2);
    assert!(third.last_index() < Index(3900) && follows(&third), "{:?}", third.status());
    disk.limit_space(None);
    third.wait_for(Index(3900), PATIENCE).unwrap();
}

/// A follower whose segments are too small for a block was poisoned by it, each time it was opened.
#[cfg(feature = "testing")]
#[test]
fn follower_with_small_segments_is_not_poisoned_by_a_large_block() {
    let trio = Trio::new(2);
    let leader = trio.leader(0);
    let dir = tempfile::tempdir().unwrap();
    let open = |bootstrap, bytes| {
        let cluster = options(3, bootstrap, &trio.network).cluster;
        let options = Options::with_segment_bytes(bytes).cluster(cluster);
        Log::open(dir.path(), options).unwrap()
    };
    let third = open(Bootstrap::Join(trio.id), 64 << 10);
    let directory = third.directory_id();
    let add = Change::AddLearner { node: NodeId(3), directory, address: String::new() };
    trio.log(leader).change_members(&[add], PATIENCE).unwrap();
    trio.log(leader).append(&[3; 100_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(third.poison_cause().is_none(), "{:?}", third.poison_cause());
    third.close().unwrap();
    let third = open(Bootstrap::Existing, 256 << 10);
    third.wait_for(Index(1), PATIENCE).unwrap();
}

/// A new voter stopped right after its promotion. The change was committed but could not come into force, and the
/// caller got no reason; each later entry was kept in memory.
#[test]
fn change_that_waits_for_its_new_voter_names_it() {
    let trio = Trio::new(1);
    let dir = tempfile::tempdir().unwrap();
    let second = Log::open(dir.path(), options(2, Bootstrap::Join(trio.id), &trio.network)).unwrap();
    let directory = second.directory_id();
    let add = |node, directory| Change::AddLearner { node: NodeId(node), directory, address: String::new() };
    trio.log(1).change_members(&[add(2, directory)], PATIENCE).unwrap();
    let first = trio.log(1).append(b"with a learner").unwrap();
    second.wait_for(first, PATIENCE).unwrap();
    while trio.log(1).status().replica.peers.iter().all(|p| p.lag > 0) {
        std::thread::sleep(Duration::from_millis(5));
    }
    trio.network.disconnect(NodeId(2));
    let patience = Duration::from_secs(5);
    for change in [Change::Promote(NodeId(2)), add(3, chiplog::DirectoryId::default())] {
        let error = trio.log(1).change_members(&[change], patience).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("missing: node 2"), "{error}");
    }
    let last = (0..50).fold(Index(0), |_, _| trio.log(1).append(b"it leads").unwrap());
    trio.network.connect(NodeId(2));
    second.wait_for(last, PATIENCE).unwrap();
    trio.log(1).change_members(&[add(3, chiplog::DirectoryId::default())], PATIENCE).unwrap();
    trio.log(1).append(b"the status is not older than this").unwrap();
    assert!(trio.log(1).status().replica.members.iter().any(|m| m.node == NodeId(2) && m.is_voter()));
}

/// Closing an isolated leader waited two election time-outs for a majority that did not answer.
#[test]
fn isolated_leader_closes_at_once() {
    let mut trio = Trio::new(3);
    let leader = trio.leader(0);
    trio.stop(leader);
    let mut patient = options(leader, Bootstrap::Existing, &trio.network);
    patient.cluster.as_mut().unwrap().election_timeout = Duration::from_secs(30);
    let log = Log::open(trio.dirs[leader as usize - 1].path(), patient).unwrap();
    let end = Instant::now() + PATIENCE;
    while trio.log(trio.leader(leader)).transfer_leader(NodeId(leader), PATIENCE).is_err() {
        assert!(Instant::now() < end);
    }
    log.append(b"with all").unwrap();
    trio.network.disconnect(NodeId(leader));
    std::thread::scope(|scope| {
        let waits = log.submit(b"lost, or not").unwrap();
        let directory = chiplog::DirectoryId::default();
        let add = Change::AddLearner { node: NodeId(8), directory, address: String::new() };
        let change = scope.spawn(|| log.change_members(&[add], PATIENCE));
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        log.close().unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let error = waits.wait().unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("unknown"), "{error}");
        assert_eq!(change.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    });
}

/// A node with an emptied disk joined again under its old number. Both sides dropped all messages, and the node
/// believed to be a learner.
#[test]
fn node_that_lost_its_directory_learns_of_its_removal() {
    let mut trio = Trio::new(3);
    let leader = trio.leader(0);
    let lost = (1..=3).find(|n| *n != leader).unwrap();
    trio.stop(lost);
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options(lost, Bootstrap::Join(trio.id), &trio.network)).unwrap();
    let is_in = |log: &Log, role| {
        let end = Instant::now() + PATIENCE;
        while log.role() != role {
            assert!(Instant::now() < end, "{:?}", log.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    is_in(&log, Role::Removed);
    let error = log.append(b"no").unwrap_err();
    assert!(error.kind() == ErrorKind::Removed && error.to_string().contains("emptied"), "{error}");
    assert_eq!(log.barrier(PATIENCE).unwrap_err().kind(), ErrorKind::Removed);
    // Removed and added again, it is a member.
    trio.log(leader).change_members(&[Change::Remove(NodeId(lost))], PATIENCE).unwrap();
    let directory = log.directory_id();
    let add = Change::AddLearner { node: NodeId(lost), directory, address: String::new() };
    trio.log(leader).change_members(&[add], PATIENCE).unwrap();
    is_in(&log, Role::Learner);
    let last = trio.log(leader).append(b"for all").unwrap();
    log.wait_for(last, PATIENCE).unwrap();
    log.close().unwrap();
    // If the old directory is put back, that replica learns of it as well.
    trio.start(lost);
    is_in(trio.log(lost), Role::Removed);
}

/// A learner that was removed while it was down never learnt of it: it asks no replica for votes.
#[test]
fn learner_removed_while_it_was_down_learns_of_it() {
    let trio = Trio::new(1);
    let dir = tempfile::tempdir().unwrap();
    let open = |bootstrap| Log::open(dir.path(), options(2, bootstrap, &trio.network)).unwrap();
    let second = open(Bootstrap::Join(trio.id));
    let directory = second.directory_id();
    let add = Change::AddLearner { node: NodeId(2), directory, address: String::new() };
    trio.log(1).change_members(&[add], PATIENCE).unwrap();
    let last = trio.log(1).append(b"to a learner").unwrap();
    second.wait_for(last, PATIENCE).unwrap();
    second.close().unwrap();
    trio.log(1).change_members(&[Change::Remove(NodeId(2))], PATIENCE).unwrap();
    let second = open(Bootstrap::Existing);
    let end = Instant::now() + PATIENCE;
    while second.role() != Role::Removed {
        assert!(Instant::now() < end, "{:?}", second.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A standalone log is node 1's. Opened as another node's, it followed no leader for ever.
#[test]
fn standalone_log_opens_as_node_1_only() {
    let dir = tempfile::tempdir().unwrap();
    let network = MemoryNetwork::new();
    Log::open(dir.path(), Options::with_segment_bytes(256 << 10)).unwrap().append(b"alone").unwrap();
    let error = Log::open(dir.path(), options(2, Bootstrap::Existing, &network)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("node 1"), "{error}");
    let log = Log::open(dir.path(), options(1, Bootstrap::Existing, &network)).unwrap();
    assert_eq!(log.append(b"in a cluster").unwrap(), Index(2));
}

/// A discard that made no room used the last file on a full disk, and records filled it: the next discard had no
/// room.
#[cfg(feature = "testing")]
#[test]
fn records_leave_the_last_file_to_discards() {
    use chiplog::disk::sim::SimDisk;
    let disk = SimDisk::default();
    let log = Log::open_on(std::sync::Arc::new(disk.clone()), Options::with_segment_bytes(64 << 10)).unwrap();
    let fill = || {
        let mut last = Index(0);
        loop {
            match log.append(&[5; 100]) {
                Ok(index) => last = index,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Full, "{e}");
                    return last;
                }
            }
        }
    };
    for _ in 0..400 {
        log.append(&[5; 100]).unwrap();
    }
    disk.limit_space(Some(disk.space_used()));
    let last = fill();
    // None of these discards makes room; those that need a file use the last one.
    for first in 2..200 {
        log.discard(Index(first)).unwrap();
        assert_eq!(log.append(&[5; 100]).unwrap_err().kind(), ErrorKind::Full);
    }
    log.discard(last).unwrap();
    assert!(fill() > last);
}

/// Raft forgets its leader when it starts an election. A learner never does: an isolated one referred all clients to
/// a leader that it had not heard for hours.
#[test]
fn isolated_learner_knows_no_leader() {
    let trio = Trio::new(2);
    let leader = trio.leader(0);
    let dir = tempfile::tempdir().unwrap();
    let third = Log::open(dir.path(), options(3, Bootstrap::Join(trio.id), &trio.network)).unwrap();
    let directory = third.directory_id();
    let add = Change::AddLearner { node: NodeId(3), directory, address: "memory:3".into() };
    trio.log(leader).change_members(&[add], PATIENCE).unwrap();
    let knows = |known: bool| {
        let end = Instant::now() + PATIENCE;
        while third.leader().is_some() != known {
            assert!(Instant::now() < end, "{:?}", third.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    knows(true);
    trio.network.disconnect(NodeId(3));
    knows(false);
    trio.network.connect(NodeId(3));
    knows(true);
}
