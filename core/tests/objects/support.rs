//! Shared by these tests: a log with small objects, records by their index, waits, replicas.

#[path = "../support/replica.rs"]
mod replica;

use chiplog::cluster::{Bootstrap, Change};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Index, Log, NodeId, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use replica::replica_over;

pub(crate) const SEGMENT: u32 = 256 << 10;

pub(crate) fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>).object_bytes(128 << 10)
}

pub(crate) fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

pub(crate) fn append(log: &Log, count: u64) {
    append_to(&[log], count);
}

/// Appends to the replica that leads. The record at an index is always the same, so that an append of unknown outcome is found.
pub(crate) fn append_to(replicas: &[&Log], count: u64) {
    let begun = Instant::now();
    let (mut at, mut last) = (0, None);
    while last.is_none_or(|(now, end)| now < end) {
        assert!(begun.elapsed() < Duration::from_secs(120), "no replica leads: {last:?}");
        let leader = replicas[at];
        let now = leader.barrier(Duration::from_secs(2)).map(|_| leader.last_index().get());
        let appended = now.and_then(|now| {
            let (_, end) = *last.get_or_insert((now, now + count));
            last = Some((now, end));
            let left = (end - now).min(256);
            let tickets: Vec<_> = (now + 1..=now + left).map(|n| leader.submit(&record(n))).collect();
            tickets.into_iter().try_for_each(|ticket| ticket?.wait().map(drop)).map(|()| left)
        });
        match appended {
            Ok(left) => last = last.map(|(now, end)| (now + left, end)),
            Err(_) => at = (at + 1) % replicas.len(),
        }
    }
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether all records but those of about one object are stored.
pub(crate) fn is_mostly_stored(log: &Log) -> bool {
    let stored = log.metrics().stored_index;
    log.last_index().get() - stored < 400
}

pub(crate) fn read_all(log: &Log, from: u64) {
    let mut reader = log.reader(Start::Index(Index(from))).unwrap();
    for n in from..=log.last_index().get() {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
}

pub(crate) fn files(dir: &Path, suffix: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

pub(crate) fn replica(
    dir: &Path,
    node: u64,
    bootstrap: Bootstrap,
    network: &MemoryNetwork,
    options: Options,
) -> Log {
    replica_over(dir, node, bootstrap, network.transport(), options)
}

/// The objects of a log in memory, as names and bytes.
pub(crate) fn objects_in(vault: &MemoryVault) -> Vec<(String, bytes::Bytes)> {
    let all = vault.list("").unwrap().into_iter().filter(|object| object.name.contains("/o/"));
    all.map(|object| (object.name.clone(), vault.get(&object.name, 0..object.bytes).unwrap())).collect()
}

/// The voters 1 and 2 of one log.
pub(crate) fn two_replicas(dirs: [&Path; 2], network: &MemoryNetwork, options: [Options; 2]) -> (Log, Log) {
    let [first, second] = options;
    let one = replica(dirs[0], 1, Bootstrap::Init, network, first);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let two = replica(dirs[1], 2, Bootstrap::Join(one.log_id()), network, second);
    let add =
        Change::AddLearner { node: NodeId(2), directory: two.directory_id(), address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(20)).unwrap();
    one.change_members(&[Change::Promote(NodeId(2))], Duration::from_secs(20)).unwrap();
    (one, two)
}
