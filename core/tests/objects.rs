//! A log whose older records are in an object store: what is stored, what goes from the disk, and what readers get.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, Change, ClusterOptions};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, LogOption, NodeId, Options, ReadMode, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).object_bytes(128 << 10)
}

fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn append(log: &Log, count: u64) {
    let next = log.last_index().get();
    for n in next + 1..=next + count {
        assert_eq!(log.append(&record(n)).unwrap().get(), n);
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(log: &Log, from: u64) {
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for n in from..=log.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

#[test]
fn older_records_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || {
            let options = options(&vault).local_bytes(2 * u64::from(SEGMENT)).read_mode(mode);
            Log::open(dir.path(), options).unwrap()
        };
        let log = opened();
        append(&log, 4000); // 2.6 MB
        eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
        append(&log, 1000);
        eventually("files go", || {
            append(&log, 1);
            files(dir.path(), ".seg") <= 8
        });
        assert_eq!(log.first_index().get(), 1);
        assert_eq!(log.log_options().get(LogOption::ObjectBytes), Some(128 << 10));
        read_all(&log, 1);
        read_all(&log, 777);
        for n in [1, 2, 500, 3999, 4800] {
            assert_eq!(log.read(Index(n)).unwrap().data, record(n));
        }
        assert!(log.metrics().fetched_bytes > 0);
        drop(log);
        let log = opened();
        assert_eq!(files(dir.path(), ".object"), 0);
        assert_eq!(log.first_index().get(), 1);
        read_all(&log, 1);
        append(&log, 500);
        read_all(&log, 1);
    }
}

fn replica(dir: &Path, node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, options: Options) -> Log {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.election_timeout = Duration::from_millis(300);
    cluster.heartbeat = Duration::from_millis(30);
    Log::open(dir, options.cluster(cluster)).unwrap()
}

/// Three replicas: a follower stores, all read, and one that was down comes back to a log whose files are gone elsewhere.
#[test]
fn replicas_share_the_objects_of_their_log() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let options = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let open =
        |node: u64, bootstrap| replica(dirs[node as usize - 1].path(), node, bootstrap, &network, options());
    let one = open(1, Bootstrap::Init);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let id = one.log_id();
    let two = open(2, Bootstrap::Join(id));
    let three = open(3, Bootstrap::Join(id));
    for (node, log) in [(2, &two), (3, &three)] {
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        one.change_members(&[Change::Promote(node)], Duration::from_secs(20)).unwrap();
    }
    append(&one, 3000);
    let stored = || [&one, &two, &three].map(|log| log.metrics().stored_bytes).iter().sum::<u64>();
    eventually("objects are stored", || stored() > 1_500_000);
    assert!(two.metrics().stored_objects > 0, "a follower stores them");
    drop(three);
    append(&one, 4000);
    eventually("files go", || {
        append(&one, 1);
        files(dirs[0].path(), ".seg") <= 8 && files(dirs[1].path(), ".seg") <= 8
    });
    let three = open(3, Bootstrap::Existing);
    let last = one.last_index();
    eventually("it follows", || three.last_index() == last);
    for log in [&one, &two, &three] {
        assert_eq!(log.first_index().get(), 1);
        eventually("it knows all objects", || {
            log.reader(Start::First).and_then(|mut r| r.next_batch().map(drop)).is_ok()
        });
        read_all(log, 1);
        read_all(log, 3500);
    }
}
