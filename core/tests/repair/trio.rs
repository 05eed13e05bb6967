//! Three replicas on simulated disks, and damage to their files.

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::disk::SECTOR_BYTES;
use chiplog::disk::sim::{Damage, Rng, SimDisk};
use chiplog::inspect::Inspector;
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, Index, Log, LogId, NodeId, Options, ReadMode, Start};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const NODES: u64 = 3;
pub(crate) const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;

/// Three replicas on simulated disks.
pub(crate) struct Trio {
    pub(crate) network: MemoryNetwork,
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) logs: Vec<Option<Log>>,
    pub(crate) records: BTreeMap<Index, Vec<u8>>,
}

pub(crate) fn options(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, scrub: u64) -> Options {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(20);
    cluster.election_timeout = ELECTION_TIMEOUT;
    cluster.scrub_bytes_per_second = scrub;
    Options::with_segment_bytes(64 << 10).cluster(cluster).read_mode(ReadMode::Read)
}

/// No scrub: only reported or met damage is repaired.
pub(crate) const NO_SCRUB: u64 = 0;
pub(crate) const SCRUB: u64 = 64 << 20;

impl Trio {
    pub(crate) fn new() -> Self {
        let network = MemoryNetwork::new();
        let disks: Vec<SimDisk> = (0..NODES).map(|_| SimDisk::default()).collect();
        let mut trio = Self { network, disks, logs: vec![None, None, None], records: BTreeMap::new() };
        trio.open(1, Bootstrap::Init, NO_SCRUB).unwrap();
        let id: LogId = trio.log(1).log_id();
        for node in 2..=NODES {
            trio.open(node, Bootstrap::Join(id), NO_SCRUB).unwrap();
            let directory = trio.log(node).directory_id();
            let add = Change::AddLearner { node: NodeId(node), directory, address: String::new() };
            trio.log(1).change_members(&[add], PATIENCE).unwrap();
            trio.log(1).change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
        }
        trio
    }

    /// With this many records, and a follower that was stopped after them.
    pub(crate) fn with_one_stopped(count: u64, bytes: u64) -> (Self, u64) {
        let mut trio = Self::new();
        trio.append(count, bytes);
        let stopped = trio.follower();
        trio.stop(stopped);
        (trio, stopped)
    }

    pub(crate) fn open(&mut self, node: u64, bootstrap: Bootstrap, scrub: u64) -> chiplog::Result<()> {
        let options = options(node, bootstrap, &self.network, scrub);
        self.open_with(node, options)
    }

    fn open_with(&mut self, node: u64, options: Options) -> chiplog::Result<()> {
        let log = Log::open_on(Arc::new(self.disk(node).clone()), options)?;
        self.logs[node as usize - 1] = Some(log);
        Ok(())
    }

    /// Opens a replica that is repaired and does not lead. Before the repair it listens for two of its election time-outs, so this one is
    /// short; the others do not vote for it while they hear a leader.
    pub(crate) fn open_to_repair(&mut self, node: u64, scrub: u64) -> chiplog::Result<()> {
        let mut options = options(node, Bootstrap::Existing, &self.network, scrub);
        options.cluster.as_mut().unwrap().election_timeout = Duration::from_millis(200);
        self.open_with(node, options)
    }

    pub(crate) fn start(&mut self, node: u64, scrub: u64) {
        self.open(node, Bootstrap::Existing, scrub).unwrap();
    }

    pub(crate) fn stop(&mut self, node: u64) {
        let log = self.logs[node as usize - 1].take().unwrap();
        log.close().unwrap();
    }

    pub(crate) fn log(&self, node: u64) -> &Log {
        self.logs[node as usize - 1].as_ref().unwrap()
    }

    pub(crate) fn disk(&self, node: u64) -> &SimDisk {
        &self.disks[node as usize - 1]
    }

    pub(crate) fn leader(&self) -> u64 {
        let mut leader = 0;
        wait("a leader", || {
            let leads =
                |n: &u64| self.logs[*n as usize - 1].as_ref().is_some_and(|l| l.role() == Role::Leader);
            leader = (1..=NODES).find(leads).unwrap_or(0);
            leader != 0
        });
        leader
    }

    /// Appends records of very different sizes through the leader.
    pub(crate) fn append(&mut self, count: u64, bytes: u64) {
        for _ in 0..count {
            let n = self.records.len() as u64 + 1;
            let record = record(n, bytes);
            self.append_one(record);
        }
        self.converge();
    }

    /// A replica that does not lead any more refuses, and has not accepted the record.
    pub(crate) fn append_one(&mut self, record: Vec<u8>) {
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader();
            match self.log(leader).append(&record) {
                Ok(index) => {
                    self.records.insert(index, record);
                    return;
                }
                Err(e) => assert!(e.kind() == ErrorKind::NotLeader && Instant::now() < end, "{e}"),
            }
        }
    }

    /// Makes a replica the leader.
    pub(crate) fn let_lead(&self, node: u64) {
        wait("the new leader", || {
            let leader = self.leader();
            leader == node || self.log(leader).transfer_leader(NodeId(node), PATIENCE).is_ok()
        });
    }

    pub(crate) fn last(&self) -> Index {
        self.records.last_key_value().map_or(Index(0), |(i, _)| *i)
    }

    pub(crate) fn converge(&self) {
        for log in self.logs.iter().flatten() {
            log.wait_for(self.last(), PATIENCE).unwrap();
        }
    }

    /// Reads everything. The only errors are those of damage, and no wrong record is ever returned.
    pub(crate) fn read(&self, node: u64) -> Result<(), ErrorKind> {
        let mut reader = self.log(node).reader(Start::First).map_err(|e| e.kind())?;
        for (index, data) in &self.records {
            let record = reader.next_record().map_err(|e| e.kind())?.ok_or(ErrorKind::OutOfRange)?;
            assert_eq!((record.index, record.data), (*index, &data[..]));
        }
        assert!(reader.next_record().map_err(|e| e.kind())?.is_none());
        Ok(())
    }

    /// Whether `verify` finds no fault: every byte of every block of every file.
    pub(crate) fn is_sound(&self, node: u64) -> bool {
        let disk = SimDisk::new(self.disk(node).visible());
        let report = Inspector::open_on(Arc::new(disk)).walk(&mut |_| ControlFlow::Continue(())).unwrap();
        report.corrupt == 0
    }

    /// Damages the `n`-th of a replica's segments; a negative one counts from the last.
    pub(crate) fn hurt(&self, node: u64, n: isize, choose: impl Fn(&[Block]) -> Vec<Damage>) -> String {
        let names = self.segments(node);
        let name = &names[usize::try_from(if n < 0 { names.len() as isize + n } else { n }).unwrap()];
        let file = self.disk(node).visible().file(name).unwrap();
        for damage in choose(&blocks(&file)) {
            assert!(self.disk(node).damage(name, &damage), "{damage:?} changes nothing");
        }
        name.clone()
    }

    /// The raft index of a block.
    pub(crate) fn entry_of(&self, node: u64, name: &str, choose: impl Fn(&[Block]) -> u64) -> u64 {
        let file = self.disk(node).visible().file(name).unwrap();
        raft_index(&file, choose(&blocks(&file)))
    }

    /// The segment and the offset of an entry.
    pub(crate) fn find_entry(&self, node: u64, entry: u64) -> (String, u64) {
        let image = self.disk(node).visible();
        for name in self.segments(node) {
            let file = image.file(&name).unwrap();
            let found = blocks(&file).into_iter().find(|b| b.2 <= 4 && raft_index(&file, b.0) == entry);
            if let Some(found) = found {
                return (name, found.0);
            }
        }
        panic!("entry {entry} does not exist");
    }

    pub(crate) fn follower(&self) -> u64 {
        let leader = self.leader();
        (1..=NODES).find(|n| *n != leader).unwrap()
    }

    pub(crate) fn segments(&self, node: u64) -> Vec<String> {
        let image = self.disk(node).visible();
        let mut names: Vec<String> =
            image.names().filter(|n| n.ends_with(".seg")).map(str::to_owned).collect();
        names.sort();
        names.retain(|n| !blocks(&image.file(n).unwrap()).is_empty());
        names
    }

    /// Starts a replica, and waits until it is a full member again, with a sound log that has everything.
    pub(crate) fn recovers(&mut self, victim: u64, what: &str) {
        self.start(victim, NO_SCRUB);
        self.is_whole(victim, what);
    }

    /// The same of one that was started.
    pub(crate) fn is_whole(&self, victim: u64, what: &str) {
        wait(what, || {
            assert_eq!(self.log(victim).poison_cause().map(|e| e.to_string()), None, "{what}");
            self.log(victim).role() == Role::Follower
        });
        self.log(victim).wait_for(self.last(), PATIENCE).unwrap();
        assert_eq!(self.read(victim), Ok(()), "{what}");
        wait("sound files", || self.is_sound(victim));
    }
}

pub(crate) fn record(n: u64, bytes: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let length = 1 + rng.below(bytes as usize);
    (0..length).map(|_| rng.below(256) as u8).collect()
}

pub(crate) fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !until() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A block in a segment: offset, length, kind.
pub(crate) type Block = (u64, u64, u8);

pub(crate) fn blocks(file: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES as usize;
    while at + 64 <= file.len() && &file[at..at + 4] == b"CLB1" {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        blocks.push((at as u64, length as u64, file[at + 60]));
        at += length.next_multiple_of(64);
    }
    blocks
}

pub(crate) fn raft_index(file: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(file[at as usize + 16..at as usize + 24].try_into().unwrap())
}

pub(crate) const DATA: u8 = 1;
pub(crate) const HARD_STATE: u8 = 5;
pub(crate) const OPENING: u8 = 7;

/// The `n`-th block of a kind.
pub(crate) fn nth(blocks: &[Block], kind: u8, n: usize) -> Block {
    *blocks.iter().filter(|b| b.2 == kind).nth(n).unwrap()
}

pub(crate) fn flip(offset: u64) -> Damage {
    Damage::FlipBit { bit: offset * 8 + offset % 8 }
}

pub(crate) fn sector(offset: u64) -> usize {
    offset as usize / SECTOR_BYTES
}
