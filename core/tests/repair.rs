//! Damage on the disk of a replica: found by the scrub, by a reader or when the log is opened, and repaired with what
//! the others have. Never served, never shipped, and never the ground for a vote.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::inspect::Inspector;
use chiplog::disk::SECTOR_BYTES;
use chiplog::disk::sim::{Damage, Rng, SimDisk};
use chiplog::transport::MemoryNetwork;
use chiplog::{
    Bootstrap, Change, Cluster, ErrorKind, Index, Log, LogId, NodeId, Options, ReadMode, Role, Start,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const NODES: u64 = 3;
const SEGMENT_HEADER_BYTES: u64 = 4096;

/// Three replicas on simulated disks.
struct Trio {
    network: MemoryNetwork,
    disks: Vec<SimDisk>,
    logs: Vec<Option<Log>>,
    records: BTreeMap<Index, Vec<u8>>,
}

fn options(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, scrub: u64) -> Options {
    let mut cluster = Cluster::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(20);
    cluster.election_timeout = Duration::from_millis(200);
    cluster.scrub_bytes_per_second = scrub;
    Options { cluster: Some(cluster), read_mode: ReadMode::Read, ..Options::with_segment_bytes(64 << 10) }
}

/// No scrub: what is repaired was asked for.
const NO_SCRUB: u64 = 0;
const SCRUB: u64 = 64 << 20;

impl Trio {
    fn new() -> Self {
        let network = MemoryNetwork::new();
        let disks: Vec<SimDisk> = (0..NODES).map(|_| SimDisk::default()).collect();
        let mut trio = Self { network, disks, logs: vec![None, None, None], records: BTreeMap::new() };
        trio.open(1, Bootstrap::Init, NO_SCRUB).unwrap();
        let id: LogId = trio.log(1).info().log_id;
        for node in 2..=NODES {
            trio.open(node, Bootstrap::Join(id), NO_SCRUB).unwrap();
            let directory = trio.log(node).info().directory;
            let add = Change::AddLearner { node: NodeId(node), directory, address: String::new() };
            trio.log(1).change_members(&[add], PATIENCE).unwrap();
            trio.log(1).change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
        }
        trio
    }

    fn open(&mut self, node: u64, bootstrap: Bootstrap, scrub: u64) -> chiplog::Result<()> {
        let options = options(node, bootstrap, &self.network, scrub);
        let log = Log::open_on(Arc::new(self.disks[node as usize - 1].clone()), options)?;
        self.logs[node as usize - 1] = Some(log);
        Ok(())
    }

    fn start(&mut self, node: u64, scrub: u64) {
        self.open(node, Bootstrap::Existing, scrub).unwrap();
    }

    fn stop(&mut self, node: u64) {
        let log = self.logs[node as usize - 1].take().unwrap();
        log.close().unwrap();
    }

    fn log(&self, node: u64) -> &Log {
        self.logs[node as usize - 1].as_ref().unwrap()
    }

    fn disk(&self, node: u64) -> &SimDisk {
        &self.disks[node as usize - 1]
    }

    fn leader(&self) -> u64 {
        let mut leader = 0;
        wait("a leader", || {
            let leads = |n: &u64| {
                self.logs[*n as usize - 1].as_ref().is_some_and(|l| l.status().role == Role::Leader)
            };
            leader = (1..=NODES).find(leads).unwrap_or(0);
            leader != 0
        });
        leader
    }

    /// Appends records of very different sizes through whoever leads.
    fn append(&mut self, count: u64, bytes: u64) {
        let leader = self.leader();
        for _ in 0..count {
            let n = self.records.len() as u64 + 1;
            let record = record(n, bytes);
            let index = self.log(leader).append(&record).unwrap();
            self.records.insert(index, record);
        }
        self.converge();
    }

    fn last(&self) -> Index {
        self.records.last_key_value().map_or(Index(0), |(i, _)| *i)
    }

    fn converge(&self) {
        for log in self.logs.iter().flatten() {
            log.wait_for(self.last(), PATIENCE).unwrap();
        }
    }

    /// Reads everything; an error is only ever that of damage, and nothing wrong is ever served.
    fn read(&self, node: u64) -> Result<(), ErrorKind> {
        let mut reader = self.log(node).reader(Start::First).map_err(|e| e.kind())?;
        for (index, data) in &self.records {
            let record = reader.next_record().map_err(|e| e.kind())?.unwrap();
            assert_eq!((record.index, record.data), (*index, &data[..]));
        }
        assert!(reader.next_record().map_err(|e| e.kind())?.is_none());
        Ok(())
    }

    /// What `verify` says: every byte of every block of every file.
    fn is_sound(&self, node: u64) -> bool {
        let disk = SimDisk::new(self.disk(node).visible());
        let report = Inspector::open_on(Arc::new(disk)).walk(&mut |_| ControlFlow::Continue(())).unwrap();
        report.corrupt == 0
    }

    fn segments(&self, node: u64) -> Vec<String> {
        let image = self.disk(node).visible();
        let mut names: Vec<String> =
            image.names().filter(|n| n.ends_with(".seg")).map(str::to_owned).collect();
        names.sort();
        names.retain(|n| !blocks(&image.file(n).unwrap()).is_empty());
        names
    }
}

fn record(n: u64, bytes: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let length = 1 + rng.below(bytes as usize);
    (0..length).map(|_| rng.below(256) as u8).collect()
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !until() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where blocks stand in a segment: offset, length, kind.
fn blocks(file: &[u8]) -> Vec<(u64, u64, u8)> {
    let mut blocks = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES as usize;
    while at + 64 <= file.len() && &file[at..at + 4] == b"CLB1" {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        blocks.push((at as u64, length as u64, file[at + 60]));
        at += length.next_multiple_of(64);
    }
    blocks
}

const DATA: u8 = 1;

fn flip(offset: u64) -> Damage {
    Damage::FlipBit { bit: offset * 8 + offset % 8 }
}

fn sector(offset: u64) -> usize {
    offset as usize / SECTOR_BYTES
}

#[test]
fn the_scrub_finds_and_repairs_what_is_damaged_in_full_segments() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    let victim = (1..=NODES).find(|n| *n != trio.leader()).unwrap();
    trio.stop(victim);
    let names = trio.segments(victim);
    assert!(names.len() >= 4, "{names:?}");
    let mut hurt = 0;
    for (n, name) in names[..names.len() - 1].iter().enumerate() {
        let file = trio.disk(victim).visible().file(name).unwrap();
        let blocks = blocks(&file);
        let data: Vec<_> = blocks.iter().filter(|b| b.2 == DATA && b.1 > 1500).collect();
        let (a, b) = (data[1], data[data.len() - 2]);
        let damages = match n % 4 {
            0 => vec![flip(a.0 + 9), flip(b.0 + b.1 - 1)],
            1 => vec![Damage::ZeroSector { sector: sector(a.0 + 64) + 1 }],
            2 => vec![Damage::SwapSectors { a: sector(a.0) + 1, b: sector(b.0) + 1 }],
            _ => vec![flip(blocks.last().unwrap().0 + 5)],
        };
        for damage in damages {
            assert!(trio.disk(victim).damage(name, &damage));
            hurt += 1;
        }
    }
    assert!(!trio.is_sound(victim));
    trio.start(victim, SCRUB);
    wait("the repair", || trio.log(victim).stats().repaired >= hurt);
    wait("sound files", || trio.is_sound(victim));
    trio.read(victim).unwrap();
    let stats = trio.log(victim).stats();
    assert!(stats.scrubbed_bytes > 100_000 && stats.damaged >= hurt, "{stats:?}");
    for node in 1..=NODES {
        trio.read(node).unwrap();
        assert!(trio.is_sound(node));
    }
}
