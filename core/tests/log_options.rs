//! Options of the log: they are set in the log, every replica has the same ones, and every leader uses them.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::FollowFrom;
use chiplog::transport::{Envelope, Inbox, MemoryNetwork, Transport};
use chiplog::{ErrorKind, FollowerLog, Index, Log, LogOption, LogOptions, NodeId, Options};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const SEGMENT_BYTES: u32 = 64 << 10;

fn small() -> Options {
    Options::with_segment_bytes(SEGMENT_BYTES)
}

fn set(log: &Log, option: LogOption, value: u64) {
    log.set_log_options(&[(option, Some(value))], PATIENCE).unwrap();
}

/// The format version that each segment file requires of its readers, oldest first.
fn versions(dir: &Path) -> Vec<u32> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "seg"));
    names.sort();
    let asked = |path: &std::path::PathBuf| {
        let file = std::fs::read(path).unwrap();
        u32::from_le_bytes(file[16..20].try_into().unwrap())
    };
    names.iter().map(asked).collect()
}

/// Appends until the log has begun this many more segments.
fn fill(log: &Log, segments: usize) {
    for _ in 0..segments * 7 {
        log.append(&[7; 10_000]).unwrap();
    }
}

#[test]
fn options_survive_restarts_rolls_and_discards() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(log.log_options(), LogOptions::default());
    fill(&log, 2);
    assert!(versions(dir.path()).iter().all(|v| *v == 1), "{:?}", versions(dir.path()));
    let changes = [(LogOption::RetentionBytes, Some(10 << 20)), (LogOption::SessionsMax, Some(3))];
    log.set_log_options(&changes, PATIENCE).unwrap();
    let mut wanted = LogOptions::default();
    changes.iter().for_each(|(option, value)| wanted.set(*option, *value));
    assert_eq!(log.log_options(), wanted);
    log.set_log_options(&changes, PATIENCE).unwrap(); // no change
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(log.log_options(), wanted, "as in the command");
    fill(&log, 3);
    log.discard(log.last_index()).unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(log.log_options(), wanted, "as in an opening");
    log.set_log_options(&[(LogOption::SessionsMax, None)], PATIENCE).unwrap();
    wanted.set(LogOption::SessionsMax, None);
    assert_eq!(log.log_options(), wanted, "options that are not named stay");
    log.set_log_options(&[(LogOption::RetentionBytes, None)], PATIENCE).unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    assert!(log.log_options().is_empty());
}

/// A segment for readers of version 1 holds nothing of version 2.
#[test]
fn only_segments_from_the_command_on_require_newer_readers() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    fill(&log, 2);
    let before = log.status().segments as usize;
    set(&log, LogOption::SessionWindow, 8);
    let asked = versions(dir.path());
    assert!(asked[..before - 1].iter().all(|v| *v == 1) && asked[before - 1] == 2, "{asked:?}");
    fill(&log, 4);
    let asked = versions(dir.path());
    assert!(asked[before - 1..].iter().all(|v| *v == 2), "{asked:?}");
    assert!(log.status().segments as usize > before + 2);
    let written = |dir: &Path| {
        u32::from_le_bytes(std::fs::read(dir.join("chiplog.id")).unwrap()[16..20].try_into().unwrap())
    };
    assert_eq!(written(dir.path()), 1);
}

#[test]
fn impossible_options_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    for (option, value) in [
        (LogOption::RetentionBytes, 1 << 16),
        (LogOption::RetentionAge, 0),
        (LogOption::RecordBytesMax, 1 << 20),
        (LogOption::SessionsMax, 1 << 20),
        (LogOption::SessionWindow, 0),
    ] {
        let refused = log.set_log_options(&[(option, Some(value))], PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(option.name()), "{refused}");
    }
    assert!(log.log_options().is_empty());
    assert!(versions(dir.path()).iter().all(|v| *v == 1));
    assert_eq!(log.status().replica.last_entry.get(), 1, "nothing but the leader's own entry is in the log");
    log.close().unwrap();
    let closed = log.set_log_options(&[(LogOption::SessionsMax, Some(1))], PATIENCE).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
}

#[test]
fn leader_uses_the_options_of_the_log_and_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let own = small().capacity_bytes(1 << 20);
    let log = Log::open(dir.path(), own).unwrap();

    set(&log, LogOption::RecordBytesMax, 100);
    assert_eq!(log.record_bytes_max(), 100);
    assert_eq!(log.append(&[0; 101]).unwrap_err().kind(), ErrorKind::TooLarge);
    let batch = chiplog::BatchBuilder::new().push(&[0; 101]).unwrap().build().unwrap();
    assert_eq!(log.append(&batch).unwrap_err().kind(), ErrorKind::TooLarge);
    log.append(&[0; 100]).unwrap();
    log.set_log_options(&[(LogOption::RecordBytesMax, None)], PATIENCE).unwrap();
    log.append(&[0; 10_000]).unwrap();

    set(&log, LogOption::SessionsMax, 1);
    let mut session = log.open_session().unwrap();
    session.append(b"used").unwrap();
    assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::TooManySessions);
    log.set_log_options(&[(LogOption::SessionsMax, None)], PATIENCE).unwrap();
    log.open_session().unwrap();

    assert_eq!(log.status().bytes_capacity, Some(1 << 20));
    set(&log, LogOption::CapacityBytes, 256 << 10);
    assert_eq!(log.status().bytes_capacity, Some(256 << 10));
    let full = (0..100).find_map(|_| log.append(&[0; 10_000]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(log.status().bytes_used < 300 << 10);
    set(&log, LogOption::CapacityBytes, u64::MAX);
    assert_eq!(log.status().bytes_capacity, None);
    for _ in 0..150 {
        log.append(&[0; 10_000]).unwrap();
    }

    set(&log, LogOption::RetentionBytes, 256 << 10);
    let end = Instant::now() + PATIENCE;
    while log.status().bytes_used > 320 << 10 {
        assert!(Instant::now() < end, "the log's retention discards nothing: {:?}", log.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(log.first_index() > Index(1));
}

/// An idle session expires after the time set for the log, whatever option the replica was opened with.
#[test]
fn sessions_are_opened_with_the_idle_time_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    set(&log, LogOption::SessionIdleMax, 1);
    let mut session = log.open_session().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    log.append(b"time passes").unwrap();
    assert_eq!(session.append(b"late").unwrap_err().kind(), ErrorKind::SessionExpired);
}

/// Replicas over a network in memory.
struct Cast {
    network: MemoryNetwork,
    dirs: Vec<TempDir>,
    logs: Vec<Option<Log>>,
}

impl Cast {
    fn options(
        &self,
        node: u64,
        bootstrap: Bootstrap,
        transport: Arc<dyn Transport>,
        own: Options,
    ) -> Options {
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transport);
        cluster.heartbeat = Duration::from_millis(20);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        own.cluster(cluster)
    }

    fn new(own: &[Options]) -> Self {
        let mut cast = Self { network: MemoryNetwork::new(), dirs: Vec::new(), logs: Vec::new() };
        for own in own {
            cast.join(own.clone(), cast.network.transport(), true);
        }
        cast
    }

    /// Adds a replica with this transport. Returns the number of the new node.
    fn join(&mut self, own: Options, transport: Arc<dyn Transport>, votes: bool) -> u64 {
        let node = self.logs.len() as u64 + 1;
        let bootstrap = match self.logs.first() {
            None => Bootstrap::Init,
            Some(_) => Bootstrap::Join(self.log(self.leader()).log_id()),
        };
        self.dirs.push(tempfile::tempdir().unwrap());
        let options = self.options(node, bootstrap, transport, own);
        let log = Log::open(self.dirs[node as usize - 1].path(), options).unwrap();
        if node > 1 {
            let directory = log.directory_id();
            let leader = self.log(self.leader());
            let add = Change::AddLearner { node: NodeId(node), directory, address: String::new() };
            leader.change_members(&[add], PATIENCE).unwrap();
            if votes {
                leader.change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
            }
        }
        self.logs.push(Some(log));
        node
    }

    fn log(&self, node: u64) -> &Log {
        self.logs[node as usize - 1].as_ref().unwrap()
    }

    fn leader(&self) -> u64 {
        let end = Instant::now() + PATIENCE;
        loop {
            for (n, log) in self.logs.iter().enumerate() {
                if log.as_ref().is_some_and(|l| l.role() == Role::Leader) {
                    return n as u64 + 1;
                }
            }
            assert!(Instant::now() < end, "no leader");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes this node the leader.
    fn lead(&self, node: u64) -> &Log {
        let end = Instant::now() + PATIENCE;
        while self.leader() != node {
            assert!(Instant::now() < end, "node {node} does not lead");
            let _ = self.log(self.leader()).transfer_leader(NodeId(node), Duration::from_secs(2));
        }
        self.log(node)
    }

    /// Waits until a replica has these options.
    fn knows(&self, node: u64, wanted: LogOptions) {
        let end = Instant::now() + PATIENCE;
        while self.log(node).log_options() != wanted {
            assert!(Instant::now() < end, "node {node} has {}", self.log(node).log_options());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// After a fail-over to a server with a smaller `retention_bytes` in its file, records were discarded everywhere.
#[test]
fn leader_with_less_retention_of_its_own_discards_nothing_more() {
    let less = small().retention_bytes(128 << 10);
    let mut cast = Cast::new(&[small(), less.clone(), less]);
    cast.lead(1);
    set(cast.log(1), LogOption::RetentionBytes, 100 << 20);
    for _ in 0..60 {
        cast.log(1).append(&[1; 10_000]).unwrap();
    }
    let wanted = cast.log(1).log_options();
    cast.knows(2, wanted);
    let log = cast.lead(2);
    for _ in 0..20 {
        log.append(&[2; 10_000]).unwrap();
    }
    assert_eq!(log.first_index(), Index(1));
    // A later change is used as well, by a leader that never had it in its own options.
    let last = log.last_index();
    cast.lead(1);
    set(cast.log(1), LogOption::RetentionBytes, 256 << 10);
    let end = Instant::now() + PATIENCE;
    while cast.log(1).first_index() == Index(1) {
        assert!(Instant::now() < end, "nothing is discarded: {:?}", cast.log(1).status());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(cast.log(1).first_index() < last);
    let one = cast.logs[0].take().unwrap();
    one.close().unwrap();
    let leader = cast.leader();
    let mut wanted = wanted;
    wanted.set(LogOption::RetentionBytes, Some(256 << 10));
    cast.knows(leader, wanted);
}

/// The command is discarded, and its file is removed: the learner gets an opening.
#[test]
fn learner_that_joins_after_the_command_was_discarded_has_the_options() {
    let mut cast = Cast::new(&[small()]);
    set(cast.log(1), LogOption::SessionWindow, 9);
    set(cast.log(1), LogOption::RetentionAge, u64::MAX);
    let wanted = cast.log(1).log_options();
    fill(cast.log(1), 4);
    cast.log(1).discard(cast.log(1).last_index()).unwrap();
    let first_file = cast.dirs[0].path().join("00000000000000000001.seg");
    let end = Instant::now() + PATIENCE;
    while first_file.exists() {
        assert!(Instant::now() < end, "the first segment is not removed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let node = cast.join(small(), cast.network.transport(), true);
    cast.knows(node, wanted);
    assert!(
        !cast.dirs[1].path().join("00000000000000000001.seg").exists()
            || cast.log(2).first_index() > Index(1)
    );
    cast.lead(node);
    assert_eq!(cast.log(node).log_options(), wanted);
    cast.log(node).append(b"led by the new one").unwrap();
}

/// A copy from outside has the log's options, from the beginning and from a state.
#[test]
fn followers_have_the_options() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    set(&log, LogOption::SessionWindow, 5);
    fill(&log, 3);
    log.discard(log.last_index()).unwrap();
    let copy_dir = tempfile::tempdir().unwrap();
    let mut feed = log.follow(FollowFrom::First).unwrap();
    let state = match feed.next(1 << 20).unwrap().unwrap() {
        chiplog::follower::FollowMessage::State(state) => state,
        other => panic!("{other:?}"),
    };
    let copy = FollowerLog::create(copy_dir.path(), small(), &state).unwrap();
    assert_eq!(copy.log().log_options(), log.log_options());
    assert!(versions(copy_dir.path()).contains(&2));
}

/// The transport of a replica of an earlier version: it drops the question and the answer.
#[derive(Debug)]
struct Earlier(Arc<dyn Transport>);

impl Transport for Earlier {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.0.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.0.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        const READS_VERSION: u8 = 13;
        if envelope.head[4] != READS_VERSION {
            self.0.send(envelope);
        }
    }
}

/// It was promoted, and from then on a majority could depend on a replica that cannot read the log.
#[test]
fn newcomer_of_an_earlier_version_is_not_promoted() {
    let mut cast = Cast::new(&[small(), small()]);
    set(cast.log(cast.leader()), LogOption::SessionsMax, 3);
    let old = cast.join(small(), Arc::new(Earlier(cast.network.transport())), false);
    let promote = [Change::Promote(NodeId(old))];
    let leader = cast.leader();
    let committed = |node| cast.log(node).status().replica.committed_entry;
    let end = Instant::now() + PATIENCE;
    while committed(old) < committed(leader) {
        assert!(Instant::now() < end, "it does not catch up");
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = cast.log(leader).change_members(&promote, Duration::from_secs(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains(&format!("node {old} ")), "{refused}");
    let votes = |cast: &Cast| {
        cast.log(cast.leader()).status().replica.members.iter().filter(|m| m.is_voter()).count()
    };
    assert_eq!(votes(&cast), 2);
    // It is upgraded to this version.
    let gone = cast.logs[old as usize - 1].take().unwrap();
    gone.close().unwrap();
    let options = cast.options(old, Bootstrap::Existing, cast.network.transport(), small());
    cast.logs[old as usize - 1] = Some(Log::open(cast.dirs[old as usize - 1].path(), options).unwrap());
    cast.log(cast.leader()).change_members(&promote, PATIENCE).unwrap();
    assert_eq!(votes(&cast), 3);
    // A replica of this version is promoted at once.
    cast.join(small(), cast.network.transport(), true);
    assert_eq!(votes(&cast), 4);
}

#[test]
fn member_of_an_earlier_version_is_named_and_nothing_is_changed() {
    let mut cast = Cast::new(&[small(), small()]);
    let old = cast.join(small(), Arc::new(Earlier(cast.network.transport())), false);
    let leader = cast.leader();
    let refused =
        cast.log(leader).set_log_options(&[(LogOption::SessionsMax, Some(3))], PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains(&format!("node {old}")), "{refused}");
    assert!(cast.log(leader).log_options().is_empty());
    for dir in &cast.dirs {
        assert!(versions(dir.path()).iter().all(|v| *v == 1), "{:?}", versions(dir.path()));
    }
    // A replica that is down is named as well.
    let gone = cast.logs[old as usize - 1].take().unwrap();
    gone.close().unwrap();
    let patience = Duration::from_secs(1);
    let refused =
        cast.log(leader).set_log_options(&[(LogOption::SessionsMax, Some(3))], patience).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains(&format!("node {old}")), "{refused}");
    // It is upgraded to this version.
    let options = cast.options(old, Bootstrap::Existing, cast.network.transport(), small());
    cast.logs[old as usize - 1] = Some(Log::open(cast.dirs[old as usize - 1].path(), options).unwrap());
    set(cast.log(leader), LogOption::SessionsMax, 3);
    for node in 1..=3 {
        cast.knows(node, cast.log(leader).log_options());
    }
    let follower = (1..=3).find(|n| *n != cast.leader()).unwrap();
    let refused =
        cast.log(follower).set_log_options(&[(LogOption::SessionsMax, None)], PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotLeader);
}

/// On a full disk beside a server that is down the retention could not be lowered.
#[test]
fn limit_is_changed_while_a_member_is_down() {
    let mut cast = Cast::new(&[small(), small(), small()]);
    cast.lead(1);
    let patience = Duration::from_secs(1);
    let change_in = |cast: &Cast, option, value, patience| {
        let log = cast.log(cast.leader());
        log.set_log_options(&[(option, value)], patience).map_err(|error| error.kind())
    };
    let change = |cast: &Cast, option, value| change_in(cast, option, value, patience);
    let change_at_once = |cast: &Cast, option, value| change_in(cast, option, value, PATIENCE);
    let close = |cast: &mut Cast| cast.logs[2].take().unwrap().close().unwrap();
    close(&mut cast);
    let unknown = Err(ErrorKind::Unsupported);
    assert_eq!(change(&cast, LogOption::RetentionBytes, Some(1 << 30)), unknown, "the log's first option");
    let set_by_all = |cast: &mut Cast, option| {
        let options = cast.options(3, Bootstrap::Existing, cast.network.transport(), small());
        cast.logs[2] = Some(Log::open(cast.dirs[2].path(), options).unwrap());
        set(cast.log(cast.leader()), option, 1 << 30);
        close(cast);
    };
    set_by_all(&mut cast, LogOption::RetentionBytes);
    assert_eq!(change_at_once(&cast, LogOption::RetentionBytes, Some(1 << 20)), Ok(()));
    assert_eq!(
        change_at_once(&cast, LogOption::RetentionBytes, None),
        Ok(()),
        "the log has no option any more"
    );
    assert_eq!(change(&cast, LogOption::RetentionAge, Some(1 << 40)), unknown);
    set_by_all(&mut cast, LogOption::RetentionAge);
    assert_eq!(change(&cast, LogOption::SessionsMax, Some(8)), unknown, "its segments may lack room");
    assert_eq!(change(&cast, LogOption::ObjectBytes, Some(1 << 20)), unknown, "of a newer version");
    assert_eq!(change_at_once(&cast, LogOption::RetentionAge, Some(1 << 41)), Ok(()));
    // One of an option that an earlier change waits with keeps its turn, and its own time-out.
    let leader = cast.log(cast.leader());
    let both = [(LogOption::SessionsMax, Some(8)), (LogOption::RetentionAge, Some(1 << 42))];
    let waits = leader.submit_set_log_options(&both, PATIENCE).unwrap();
    let late = leader.set_log_options(&[(LogOption::RetentionAge, None)], patience);
    assert_eq!(late.map_err(|error| error.kind()), unknown);
    assert_eq!(change_at_once(&cast, LogOption::RetentionBytes, Some(1 << 20)), Ok(()), "of another option");
    assert!(waits.poll().is_none());
    let options = cast.options(3, Bootstrap::Existing, cast.network.transport(), small());
    cast.logs[2] = Some(Log::open(cast.dirs[2].path(), options).unwrap());
    waits.wait().unwrap();
    assert_eq!(cast.log(cast.leader()).log_options().get(LogOption::RetentionAge), Some(1 << 42));
}

/// Every replica writes the entries of the leader: one whose segments are too small for a record would stop all
/// commits.
#[test]
fn options_that_a_smaller_member_cannot_hold_are_refused() {
    let large = Options::with_segment_bytes(1 << 20);
    let mut cast = Cast::new(&[large.clone(), small(), large]);
    cast.lead(1);
    for (option, value) in [(LogOption::RecordBytesMax, 200_000), (LogOption::SessionsMax, 2000)] {
        let set = [(option, Some(value))];
        let refused = cast.log(1).set_log_options(&set, PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{option}: {refused}");
        assert!(refused.to_string().contains(option.name()), "{refused}");
    }
    let refused = cast.log(1).set_log_options(&[(LogOption::RecordBytesMax, Some(200_000))], PATIENCE);
    assert!(refused.unwrap_err().to_string().contains("node 2 has segments of 65536 bytes"));
    assert!(cast.log(1).log_options().is_empty());
    set(cast.log(1), LogOption::RecordBytesMax, 20_000);
    cast.log(1).append(&[1; 20_000]).unwrap();

    // A member that joins with too small segments is not promoted until it has larger ones.
    cast.lead(1);
    cast.log(1).change_members(&[Change::Remove(NodeId(2))], PATIENCE).unwrap();
    cast.logs[1].take().unwrap().close().unwrap();
    set(cast.log(1), LogOption::RecordBytesMax, 200_000);
    let new = cast.join(small(), cast.network.transport(), false);
    let promote = [Change::Promote(NodeId(new))];
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        let refused = cast.log(cast.leader()).change_members(&promote, Duration::from_secs(1)).unwrap_err();
        if refused.kind() == ErrorKind::InvalidArgument {
            break refused; // Unsupported until it has answered
        }
        assert!(Instant::now() < end, "{refused}");
    };
    assert!(refused.to_string().contains(&format!("node {new} has segments of 65536 bytes")), "{refused}");
    // Started again with larger segments it is promoted.
    cast.logs[new as usize - 1].take().unwrap().close().unwrap();
    let larger = Options::with_segment_bytes(1 << 20);
    let options = cast.options(new, Bootstrap::Existing, cast.network.transport(), larger);
    cast.logs[new as usize - 1] = Some(Log::open(cast.dirs[new as usize - 1].path(), options).unwrap());
    let end = Instant::now() + PATIENCE;
    while let Err(error) = cast.log(cast.leader()).change_members(&promote, Duration::from_secs(1)) {
        assert!(Instant::now() < end, "{error}");
    }
}
