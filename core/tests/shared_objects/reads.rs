//! Reads of records that are in objects, by the replicas of a group and its copies.

use super::support::{
    SEGMENT, all, append, append_slowly, eventually, files, group, log_of, objects, open, options, read_all,
    record, until_files_go,
};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{FollowerLog, Index, LogNumber, Logs, LogsOptions, NodeId, Options, ReadMode, Start};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn older_records_of_each_log_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || open(dir.path(), options(&vault).read_mode(mode));
        let logs = opened();
        append(&logs, &all(), 600); // 2.7 MB
        eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
        until_files_go(&logs, dir.path());
        let oldest = |logs: &Logs| log_of(logs, 3).first_index().get();
        assert_eq!(oldest(&logs), 1);
        let fetched = || group(&logs).metrics().fetched_bytes;
        // A file can go in between.
        eventually("the first local record is in a file, and the one before is not", || {
            let log = log_of(&logs, 3);
            let first = log.first_local_index().unwrap();
            let (before, here) = (fetched(), log.read(first).unwrap());
            let is_here = here.data == record(3, first.get()) && fetched() == before;
            is_here && log.read(first.previous()).is_ok() && fetched() > before
        });
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
            read_all(log, &log_of(&logs, log), 77);
            for n in [1, 2, 300, 599] {
                assert_eq!(log_of(&logs, log).read(Index(n)).unwrap().data, record(log, n));
            }
        }
        assert!(group(&logs).metrics().fetched_bytes > 0);
        logs.close().unwrap();
        let logs = opened();
        assert_eq!(oldest(&logs), 1);
        append(&logs, &all(), 50);
        for log in all() {
            read_all(log, &log_of(&logs, log), 1);
        }
    }
}

/// A reader of one log among many fetches about that log's bytes, not the whole objects.
#[test]
fn one_log_costs_about_its_own_bytes() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || {
        let segment = 8 << 20;
        let options = Options::with_segment_bytes(segment).vault(vault.clone() as Arc<dyn Vault>);
        options.object_bytes(8 << 20).local_bytes(2 * u64::from(segment)).object_scrub(None)
    };
    let logs = open(dir.path(), options());
    let many: Vec<u64> = (1..=40).collect();
    eventually("objects are stored, and files go", || {
        append(&logs, &many, 64);
        group(&logs).metrics().stored_bytes > 48 << 20 && files(&dir.path().join("group-1"), ".seg") <= 8
    });
    let id = group(&logs).log_id();
    logs.close().unwrap();
    let logs = open(dir.path(), options());
    let stored: u64 = objects(&vault, id).iter().map(|(_, bytes)| bytes).sum();
    let before = group(&logs).metrics().fetched_bytes;
    read_all(7, &log_of(&logs, 7), 1);
    let fetched = group(&logs).metrics().fetched_bytes - before;
    // Of each object the chunk with its opening, that with its directory, and one or two with the log's records.
    let most = objects(&vault, id).len() as u64 * 4 * (256 << 10);
    assert!(fetched > 0 && fetched <= most && fetched < stored / 4, "{fetched} of {stored} bytes");
}

/// A copy of a whole group begins behind what is stored, keeps few files, and has all records of each log.
#[test]
fn copy_of_a_group_reads_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("logs"), options(&vault));
    append(&logs, &all(), 600);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 2_000_000);
    log_of(&logs, 2).discard(Index(77)).unwrap();
    until_files_go(&logs, &dir.path().join("logs"));
    let source = group(&logs);
    let mut feed = source.follow(FollowFrom::Newest).unwrap().skip_stored();
    let Some(FollowMessage::State(state)) = feed.next(0).unwrap() else {
        panic!("a feed begins with a state")
    };
    let place = dir.path().join("copy");
    let reads =
        || Options::with_segment_bytes(SEGMENT).sessions_max(16).vault(vault.clone() as Arc<dyn Vault>);
    let copy = FollowerLog::create(&place, reads(), &state).unwrap();
    let mut bytes = 0;
    while let Some(fed) = feed.next(64 << 10).unwrap() {
        bytes += fed.bytes();
        copy.apply(fed).unwrap();
    }
    assert!(bytes < 1_500_000, "{bytes} bytes were copied");
    let numbers: Vec<_> = logs.list().unwrap().into_iter().map(|info| (info.name, info.number)).collect();
    let check = |copy: &FollowerLog| {
        for (name, number) in &numbers {
            let log: u64 = name.trim_start_matches("log-").parse().unwrap();
            let handle = copy.log().named(*number).unwrap();
            assert_eq!(handle.first_index().get(), if log == 2 { 77 } else { 1 });
            assert_eq!(handle.last_index(), log_of(&logs, log).last_index());
            read_all(log, &handle, handle.first_index().get());
        }
    };
    check(&copy);
    copy.close().unwrap();
    let copy = FollowerLog::open(&place, reads()).unwrap();
    check(&copy);
}

/// Replicas of the catalogue and of one group.
struct Trio {
    networks: [MemoryNetwork; 2],
    dirs: Vec<tempfile::TempDir>,
    vault: Arc<MemoryVault>,
}

impl Trio {
    fn open(&self, node: u64, bootstrap: impl Fn(usize) -> Bootstrap) -> Logs {
        let transports = [self.networks[0].transport(), self.networks[1].transport()];
        let bootstraps = [bootstrap(0), bootstrap(1)];
        let options = LogsOptions::default().groups(1).options(options(&self.vault)).cluster(move |group| {
            let n = group as usize;
            let mut cluster = ClusterOptions::new(NodeId(node), bootstraps[n], transports[n].clone());
            cluster.heartbeat = Duration::from_millis(30);
            cluster.election_timeout = Duration::from_secs(20); // no election is wanted
            cluster.slow_disk_sync = None;
            cluster
        });
        Logs::open(self.dirs[node as usize - 1].path(), options).unwrap()
    }

    fn join(&self, leader: &Logs, node: u64) -> Logs {
        let groups = |logs: &Logs| [logs.system().clone(), group(logs)];
        let ids = groups(leader).map(|log| log.log_id());
        let joined = self.open(node, |n| Bootstrap::Join(ids[n]));
        for (leader, group) in groups(leader).into_iter().zip(groups(&joined)) {
            let (node, directory) = (NodeId(node), group.directory_id());
            let add = Change::AddLearner { node, directory, address: String::new() };
            leader.change_members(&[add], Duration::from_secs(60)).unwrap();
            leader.change_members(&[Change::Promote(node)], Duration::from_secs(60)).unwrap();
        }
        joined
    }
}

/// A replica that is added when the others have no files of the first records any more has all of them, and the objects that two
/// replicas make are equal: the vault would show another size or checksum.
#[test]
fn replica_that_is_added_reads_what_only_the_objects_have() {
    let trio = Trio {
        networks: [MemoryNetwork::new(), MemoryNetwork::new()],
        dirs: (0..4).map(|_| tempfile::tempdir().unwrap()).collect(),
        vault: Arc::new(MemoryVault::default()),
    };
    let one = trio.open(1, |_| Bootstrap::Init);
    let two = trio.join(&one, 2);
    append(&one, &all(), 600);
    let stored = || group(&one).metrics().stored_bytes + group(&two).metrics().stored_bytes;
    eventually("objects are stored", || stored() > 2_000_000);
    until_files_go(&one, trio.dirs[0].path());
    eventually("files go at the other replica", || {
        append_slowly(&one);
        files(&trio.dirs[1].path().join("group-1"), ".seg") <= 8
    });
    log_of(&one, 6).discard(Index(100)).unwrap();
    let three = trio.join(&one, 3);
    let last = group(&one).status().replica.committed_entry;
    eventually("it follows", || group(&three).status().replica.committed_entry >= last);
    for (name, number) in one.list().unwrap().into_iter().map(|info| (info.name, info.number)) {
        let log: u64 = name.trim_start_matches("log-").parse().unwrap();
        let handle = |logs: &Logs| group(logs).named(LogNumber(number.0)).unwrap();
        let first = handle(&one).first_index();
        assert_eq!(first.get(), if log == 6 { 100 } else { 1 });
        for logs in [&one, &two, &three] {
            eventually("the log's begin is known", || handle(logs).first_index() == first);
            eventually("it knows all objects", || {
                handle(logs).reader(Start::First).and_then(|mut r| r.next_batch().map(drop)).is_ok()
            });
            read_all(log, &handle(logs), first.get());
        }
    }
}
