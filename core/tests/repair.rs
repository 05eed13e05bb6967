//! Damage on the disk of a replica: found by the scrub, by a reader or when the log is opened, and repaired with what
//! the others have. Never served, never shipped, and never the ground for a vote.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::disk::SECTOR_BYTES;
use chiplog::disk::sim::{Damage, Image, Rng, SimDisk};
use chiplog::inspect::Inspector;
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
        let log = Log::open_on(Arc::new(self.disk(node).clone()), options)?;
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
        for _ in 0..count {
            let n = self.records.len() as u64 + 1;
            let record = record(n, bytes);
            self.append_one(record);
        }
        self.converge();
    }

    /// Whoever is not the leader any more says so, and has not taken it.
    fn append_one(&mut self, record: Vec<u8>) {
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

    /// Lets a replica lead.
    fn let_lead(&self, node: u64) {
        wait("the new leader", || {
            let leader = self.leader();
            leader == node || self.log(leader).transfer_leader(NodeId(node), PATIENCE).is_ok()
        });
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
            let record = reader.next_record().map_err(|e| e.kind())?.ok_or(ErrorKind::OutOfRange)?;
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

    /// Damages the `n`-th of a replica's segments; a negative one counts from the last.
    fn hurt(&self, node: u64, n: isize, choose: impl Fn(&[Block]) -> Vec<Damage>) -> String {
        let names = self.segments(node);
        let name = &names[usize::try_from(if n < 0 { names.len() as isize + n } else { n }).unwrap()];
        let file = self.disk(node).visible().file(name).unwrap();
        for damage in choose(&blocks(&file)) {
            assert!(self.disk(node).damage(name, &damage), "{damage:?} changes nothing");
        }
        name.clone()
    }

    /// The raft index of a block.
    fn entry_of(&self, node: u64, name: &str, choose: impl Fn(&[Block]) -> u64) -> u64 {
        let file = self.disk(node).visible().file(name).unwrap();
        raft_index(&file, choose(&blocks(&file)))
    }

    /// Where an entry stands.
    fn find_entry(&self, node: u64, entry: u64) -> (String, u64) {
        let image = self.disk(node).visible();
        for name in self.segments(node) {
            let file = image.file(&name).unwrap();
            let found = blocks(&file).into_iter().find(|b| b.2 <= 4 && raft_index(&file, b.0) == entry);
            if let Some(found) = found {
                return (name, found.0);
            }
        }
        panic!("entry {entry} is not there");
    }

    fn follower(&self) -> u64 {
        let leader = self.leader();
        (1..=NODES).find(|n| *n != leader).unwrap()
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

/// Where a block stands in a segment: offset, length, kind.
type Block = (u64, u64, u8);

fn blocks(file: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES as usize;
    while at + 64 <= file.len() && &file[at..at + 4] == b"CLB1" {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        blocks.push((at as u64, length as u64, file[at + 60]));
        at += length.next_multiple_of(64);
    }
    blocks
}

fn raft_index(file: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(file[at as usize + 16..at as usize + 24].try_into().unwrap())
}

const DATA: u8 = 1;
const HARD_STATE: u8 = 5;
const OPENING: u8 = 7;

/// The `n`-th block of a kind.
fn nth(blocks: &[Block], kind: u8, n: usize) -> Block {
    *blocks.iter().filter(|b| b.2 == kind).nth(n).unwrap()
}

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

#[test]
fn a_reader_meets_damage_and_afterwards_the_right_bytes() {
    let mut trio = Trio::new();
    trio.append(60, 4000);
    for victim in [trio.follower(), trio.leader()] {
        // In the first segment, which is full, and in the last one, which grows.
        for n in [0, -1] {
            trio.append(4, 4000);
            let before = trio.log(victim).stats().repaired;
            trio.hurt(victim, n, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
            assert_eq!(trio.read(victim), Err(ErrorKind::Corrupt));
            wait("the repair", || trio.log(victim).stats().repaired > before);
            assert_eq!(trio.read(victim), Ok(()));
            wait("sound files", || trio.is_sound(victim));
        }
    }
    trio.append(10, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn a_log_that_does_not_open_for_damage_repairs_itself_and_takes_no_part_before() {
    let mut trio = Trio::new();
    trio.append(70, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    trio.hurt(victim, -1, |blocks| {
        vec![flip(nth(blocks, DATA, 0).0 + 20), flip(nth(blocks, DATA, 3).0 + 70)]
    });
    // With nobody to ask it waits, and says so.
    trio.network.disconnect(NodeId(victim));
    trio.start(victim, NO_SCRUB);
    let log = trio.log(victim);
    assert_eq!(log.status().role, Role::Repairing);
    assert_eq!(log.append(b"no").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.read(Index(1)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.reader(Start::First).err().map(|e| e.kind()), Some(ErrorKind::Unavailable));
    assert_eq!(log.barrier(PATIENCE).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(log.append(b"no").unwrap_err().to_string().contains("offset"));
    trio.network.connect(NodeId(victim));
    trio.append(5, 1000);
    assert_eq!(trio.log(victim).status().role, Role::Follower);
    assert!(trio.log(victim).stats().repaired >= 2);
    assert_eq!(trio.read(victim), Ok(()));
    wait("sound files", || trio.is_sound(victim));
    // It is a full member again.
    trio.append(20, 1000);
    trio.let_lead(victim);
    trio.append(20, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn a_repairing_replica_does_not_vote() {
    let mut trio = Trio::new();
    trio.append(70, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    let name = trio.hurt(victim, -1, |blocks| vec![flip(nth(blocks, DATA, 0).0 + 64)]);
    // The leader goes; the one that is left is damaged in the same entry.
    let leader = trio.leader();
    let left = (1..=NODES).find(|n| *n != leader && *n != victim).unwrap();
    let entry = trio.entry_of(victim, &name, |blocks| nth(blocks, DATA, 0).0);
    let (file, offset) = trio.find_entry(left, entry);
    assert!(trio.disk(left).damage(&file, &flip(offset + 100)));
    trio.stop(leader);
    trio.start(victim, NO_SCRUB);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(trio.log(victim).status().role, Role::Repairing);
    assert_ne!(trio.log(left).status().role, Role::Leader, "it had one vote of three");
    // The one that went has it.
    trio.start(leader, NO_SCRUB);
    trio.append(5, 1000);
    wait("sound files", || trio.is_sound(victim) && trio.is_sound(left));
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn two_of_three_are_damaged_at_different_places() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let hurt: Vec<u64> = vec![trio.leader(), trio.follower()];
    hurt.iter().for_each(|n| trio.stop(*n));
    for (n, victim) in hurt.iter().enumerate() {
        trio.hurt(*victim, 0, |blocks| vec![flip(nth(blocks, DATA, 1 + n).0 + 200)]);
        trio.hurt(*victim, 1, |blocks| vec![flip(nth(blocks, DATA, 3 - n).0 + 3)]);
        trio.hurt(*victim, -1, |blocks| vec![flip(nth(blocks, DATA, n).0 + 70)]);
    }
    hurt.iter().for_each(|n| trio.start(*n, SCRUB));
    trio.append(5, 1000);
    for victim in hurt {
        wait("the repair", || trio.log(victim).stats().repaired >= 3);
        wait("sound files", || trio.is_sound(victim));
    }
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn damage_is_repaired_with_one_of_the_others_down_and_never_shipped() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let (victim, lagging) = (trio.leader(), trio.follower());
    trio.network.disconnect(NodeId(lagging));
    let other = (1..=NODES).find(|n| *n != victim && *n != lagging).unwrap();
    (0..60).for_each(|n| trio.append_one(record(1000 + n, 4000)));
    trio.log(other).wait_for(trio.last(), PATIENCE).unwrap();
    // A full segment that the lagging one lacks is damaged at one that leads, and has nothing in memory.
    trio.stop(victim);
    let damaged = trio.hurt(victim, -2, |blocks| vec![flip(nth(blocks, DATA, 2).0 + 300)]);
    trio.start(victim, NO_SCRUB);
    trio.log(victim).wait_for(trio.last(), PATIENCE).unwrap();
    trio.let_lead(victim);
    trio.network.disconnect(NodeId(other));
    trio.network.connect(NodeId(lagging));
    trio.stop(other);
    // The third is down, the second lacks it: nobody has the bytes.
    std::thread::sleep(Duration::from_millis(500));
    let reached = trio.log(lagging).info().last;
    assert!(reached < trio.last(), "it got what nobody could give");
    assert!(trio.read(victim).is_err(), "{damaged}");
    trio.network.connect(NodeId(other));
    trio.start(other, NO_SCRUB);
    trio.converge();
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    wait("sound files", || trio.is_sound(victim));
}

#[test]
fn the_fixed_parts_of_segments_and_their_openings_are_repaired() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let victim = trio.follower();
    // A full segment's opening, while it runs.
    trio.hurt(victim, 2, |blocks| vec![flip(nth(blocks, OPENING, 0).0 + 70)]);
    trio.stop(victim);
    trio.start(victim, SCRUB);
    wait("the repair of an opening", || trio.log(victim).stats().repaired >= 1);
    wait("sound files", || trio.is_sound(victim));
    trio.stop(victim);
    // Headers of files, and the last segment's opening.
    trio.hurt(victim, 1, |_| vec![flip(60), flip(3000)]);
    trio.hurt(victim, -1, |blocks| vec![flip(100), flip(nth(blocks, OPENING, 0).0 + 70)]);
    trio.start(victim, SCRUB);
    trio.append(10, 1000);
    wait("sound files", || trio.is_sound(victim));
    assert_eq!(trio.read(victim), Ok(()));
}

#[test]
fn a_lost_hard_state_is_learnt_before_the_replica_votes_again() {
    a_lost_hard_state_is_learnt(false);
}

/// The replica left greetings unanswered while it was repaired. A leader that had started again waited for its answer, and
/// sent it nothing: it heard of no leader, and waited for ever.
#[test]
fn lost_hard_state_is_learnt_from_replicas_that_have_started_again() {
    a_lost_hard_state_is_learnt(true);
}

fn a_lost_hard_state_is_learnt(others_start_again: bool) {
    let mut trio = Trio::new();
    trio.append(30, 1000);
    let victim = trio.follower();
    // Another term, so that the segment holds a hard state block of it.
    let leader = trio.leader();
    let third = (1..=NODES).find(|n| *n != leader && *n != victim).unwrap();
    trio.let_lead(third);
    trio.append(3, 1000);
    trio.stop(victim);
    let term = trio.log(third).status().term;
    trio.hurt(victim, -1, |blocks| {
        let states = blocks.iter().filter(|b| b.2 == HARD_STATE);
        states.map(|b| flip(b.0 + 70)).collect()
    });
    trio.network.disconnect(NodeId(victim));
    trio.start(victim, NO_SCRUB);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(trio.log(victim).status().role, Role::Repairing, "nobody has told it a term");
    if others_start_again {
        for node in [leader, third] {
            trio.stop(node);
        }
        for node in [leader, third] {
            trio.start(node, NO_SCRUB);
        }
        wait("a leader", || [leader, third].iter().any(|n| trio.log(*n).status().role == Role::Leader));
    }
    trio.network.connect(NodeId(victim));
    wait("the repair", || trio.log(victim).status().role == Role::Follower);
    trio.append(3, 1000);
    let now = trio.log(victim).status().term;
    assert!(now == term || others_start_again && now > term, "{now}");
    assert_eq!(trio.read(victim), Ok(()));
    wait("sound files", || trio.is_sound(victim));
    trio.stop(victim);
    trio.start(victim, NO_SCRUB);
    assert!(trio.log(victim).status().term >= term);
    trio.converge();
}

#[test]
fn the_only_voter_refuses_to_open() {
    let network = MemoryNetwork::new();
    let disk = SimDisk::default();
    let open = |disk: &SimDisk, bootstrap| {
        Log::open_on(Arc::new(disk.clone()), options(1, bootstrap, &network, SCRUB))
    };
    let log = open(&disk, Bootstrap::Init).unwrap();
    for n in 0..10 {
        log.append(&record(n, 2000)).unwrap();
    }
    log.close().unwrap();
    let name = format!("{:020}.seg", 1);
    let block = nth(&blocks(&disk.visible().file(&name).unwrap()), DATA, 3);
    assert!(disk.damage(&name, &flip(block.0 + 90)));
    let error = open(&disk, Bootstrap::Existing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&name));
}

/// Damage of all kinds, anywhere in a replica's segments.
fn some_damage(rng: &mut Rng, file: &[u8]) -> Damage {
    let used = blocks(file).last().map_or(0, |b| b.0 + b.1 + 600).min(file.len() as u64);
    let sectors = used as usize / SECTOR_BYTES;
    match rng.below(10) {
        0 => Damage::ZeroSector { sector: rng.below(sectors) },
        1 => Damage::SwapSectors { a: rng.below(sectors), b: rng.below(sectors) },
        2 => Damage::MisdirectSector { from: rng.below(sectors), to: rng.below(sectors) },
        3 => {
            let blocks = blocks(file);
            let block = *rng.pick(&blocks).unwrap();
            flip(block.0 + rng.below(64) as u64)
        }
        4 => {
            let length = 1 + rng.below(10_000.min(used as usize / 2));
            let bytes = (0..length).map(|_| rng.below(256) as u8).collect();
            Damage::Overwrite { offset: rng.below(used as usize - length) as u64, bytes }
        }
        _ => Damage::FlipBit { bit: rng.below(used as usize * 8) as u64 },
    }
}

/// One to three places at once, many times. Nothing is appended meanwhile, so that the victim's disk as it was is
/// no older state of it.
#[test]
fn whatever_is_damaged_the_replica_refuses_or_gets_all_of_it_back() {
    let mut trio = Trio::new();
    for bytes in [4000, 50, 4000, 700] {
        trio.append(25, bytes);
    }
    let victim = trio.follower();
    trio.stop(victim);
    let image = trio.disk(victim).visible();
    let names = trio.segments(victim);
    let (mut refused, mut repaired, mut forgotten) = (0, 0, 0);
    const CASES: u64 = 150;
    for seed in 0..CASES {
        let mut rng = Rng::new(seed);
        trio.disks[victim as usize - 1] = SimDisk::new(image.clone());
        let mut damages = Vec::new();
        for _ in 0..1 + rng.below(3) {
            // Every other time in the last one, which recovery reads.
            let name = if rng.below(2) == 0 { names.last() } else { rng.pick(&names) }.unwrap();
            let damage = some_damage(&mut rng, &image.file(name).unwrap());
            trio.disk(victim).damage(name, &damage);
            damages.push(match &damage {
                Damage::Overwrite { offset, bytes } => {
                    format!("{name}: overwrite {offset} + {}", bytes.len())
                }
                other => format!("{name}: {other:?}"),
            });
        }
        // Nothing tells the oldest segment's opening block again: reported, and given up.
        let opening = |image: &Image| {
            let file = image.file(&names[0]).unwrap();
            let length = blocks(&file).first().filter(|b| b.2 == OPENING).map_or(0, |b| b.1);
            file[SEGMENT_HEADER_BYTES as usize..][..length as usize].to_vec()
        };
        if opening(&trio.disk(victim).visible()) != opening(&image) {
            continue;
        }
        if let Err(error) = trio.open(victim, Bootstrap::Existing, SCRUB) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}: {damages:?}");
            refused += 1;
            continue;
        }
        let what = format!("seed {seed} to be sound again: {damages:?}");
        // What takes the end of the log and all that proves it is no damage to this replica, but the others remember.
        let set_back = || trio.log(victim).status().role == Role::Removed;
        wait(&what, || set_back() || (trio.is_sound(victim) && trio.read(victim) == Ok(())));
        if set_back() {
            assert!(damages.iter().any(|d| d.starts_with(names.last().unwrap())), "{what}");
            forgotten += 1;
            trio.stop(victim);
            continue;
        }
        let log = trio.log(victim);
        assert_eq!(log.poison_cause().map(|e| e.to_string()), None, "{what}");
        repaired += u64::from(log.stats().repaired > 0);
        wait(&what, || trio.log(victim).status().role == Role::Follower);
        trio.stop(victim);
    }
    println!(
        "{CASES} cases: {repaired} repaired, {refused} refused, {forgotten} had their log's end cut off"
    );
    assert!((refused + forgotten) * 10 < CASES && repaired * 2 > CASES, "{repaired}, {refused}, {forgotten}");
    (1..=NODES).filter(|n| *n != victim).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

/// The same through mappings, on a real disk: what readers hold stays, what is repaired shows.
#[test]
fn mapped_files_are_repaired_under_their_readers() {
    use std::os::unix::fs::FileExt;
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        let options = Options { read_mode: ReadMode::Map, ..options(node, bootstrap, &network, NO_SCRUB) };
        Log::open(dirs[node as usize - 1].path(), options).unwrap()
    };
    let leader = open(1, Bootstrap::Init);
    let follower = open(2, Bootstrap::Join(leader.info().log_id));
    let directory = follower.info().directory;
    let add = Change::AddLearner { node: NodeId(2), directory, address: String::new() };
    leader.change_members(&[add], PATIENCE).unwrap();
    let records: Vec<Vec<u8>> = (0..60).map(|n| record(n, 4000)).collect();
    records.iter().for_each(|r| assert!(leader.append(r).unwrap() > Index(0)));
    follower.wait_for(Index(60), PATIENCE).unwrap();
    let held: Vec<_> = (1..=60).map(|n| follower.read(Index(n)).unwrap()).collect();
    let name = dirs[1].path().join(format!("{:020}.seg", 1));
    let bytes = std::fs::read(&name).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
    for n in [2, 3, 9] {
        let at = nth(&blocks(&bytes), DATA, n).0 + 130;
        file.write_all_at(&[!bytes[at as usize]], at).unwrap();
    }
    let read = || -> chiplog::Result<u64> {
        let mut reader = follower.reader(Start::First)?;
        let mut read = 0;
        while let Some(record) = reader.next_record()? {
            assert_eq!(record.data, &records[record.index.get() as usize - 1][..]);
            read += 1;
        }
        Ok(read)
    };
    assert_eq!(read().unwrap_err().kind(), ErrorKind::Corrupt);
    wait("the right bytes", || read().is_ok());
    assert_eq!(read().unwrap(), 60);
    // Byte for byte, but for what a block says was durable when it was written.
    let masked = |mut file: Vec<u8>| {
        for (at, ..) in blocks(&file) {
            file[at as usize + 4..at as usize + 8].fill(0);
            file[at as usize + 52..at as usize + 56].fill(0);
        }
        file.truncate(blocks(&file).last().map_or(0, |b| (b.0 + b.1) as usize));
        file
    };
    assert!(masked(std::fs::read(&name).unwrap()) == masked(bytes), "byte for byte");
    assert!(held.iter().zip(&records).all(|(h, r)| h.data == r[..]));
}

/// A leader was cut off, and then stopped, with entries of its own, of which one that others follow is damaged,
/// `hurt_from` the last; the other two have committed others in their place.
fn superseded_and_damaged(hurt_from: usize) -> (Trio, u64) {
    let own = (0..6).map(|n| record(700 + n, 900)).collect();
    let (mut trio, victim) = superseded(own);
    trio.append(12, 3000);
    trio.hurt(victim, -1, |blocks| vec![flip(from_last(blocks, hurt_from).0 + 70)]);
    trio.network.connect(NodeId(victim));
    (trio, victim)
}

/// The data block that so many others follow.
fn from_last(blocks: &[Block], n: usize) -> Block {
    *blocks.iter().rev().filter(|b| b.2 == DATA).nth(n).unwrap()
}

/// A leader was cut off, and then stopped, with these entries of its own. The other two have elected another one, which
/// has committed nothing but the entry that begins its term.
fn superseded(own: Vec<Vec<u8>>) -> (Trio, u64) {
    let mut trio = Trio::new();
    trio.append(20, 500);
    let victim = trio.leader();
    trio.network.disconnect(NodeId(victim));
    let own: Vec<_> = own
        .iter()
        .map(|record| {
            let before = trio.log(victim).status().last_raft;
            let ticket = trio.log(victim).submit(record).unwrap();
            wait("its own entry", || trio.log(victim).status().last_raft > before);
            ticket
        })
        .collect();
    wait("its syncs", || trio.log(victim).stats().syncing.is_zero());
    let image = trio.disk(victim).visible();
    let others: Vec<u64> = (1..=NODES).filter(|n| *n != victim).collect();
    wait("another leader", || others.iter().any(|n| trio.log(*n).status().role == Role::Leader));
    let _ = trio.logs[victim as usize - 1].take().unwrap().close();
    drop(own);
    trio.disks[victim as usize - 1] = SimDisk::new(image);
    (trio, victim)
}

impl Trio {
    /// Starts a replica, and waits until it is one of them again, with a sound log that has everything.
    fn recovers(&mut self, victim: u64, what: &str) {
        self.start(victim, NO_SCRUB);
        wait(what, || {
            assert_eq!(self.log(victim).poison_cause().map(|e| e.to_string()), None, "{what}");
            self.log(victim).status().role == Role::Follower
        });
        self.log(victim).wait_for(self.last(), PATIENCE).unwrap();
        assert_eq!(self.read(victim), Ok(()), "{what}");
        wait("sound files", || self.is_sound(victim));
    }
}

/// A replica that did not open for damage ended when what was damaged had never been committed: nobody had it, and what
/// the others had in its place did not fit.
#[test]
fn damage_in_superseded_entries_is_replaced_by_what_is_committed() {
    for hurt_from in [1, 2] {
        let (mut trio, victim) = superseded_and_damaged(hurt_from);
        trio.recovers(victim, "the repair");
        trio.append(3, 500);
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
        trio.let_lead(victim);
        trio.append(3, 500);
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
}

/// The replica asked for entries up to the end of the damage, and the others answered only once they had committed that
/// many. In an idle cluster it waited for ever.
#[test]
fn superseded_damage_is_replaced_while_the_cluster_is_idle() {
    for hurt_from in [1, 3, 5] {
        let (mut trio, victim) = superseded((0..6).map(|n| record(700 + n, 900)).collect());
        trio.hurt(victim, -1, |blocks| vec![flip(from_last(blocks, hurt_from).0 + 70)]);
        trio.network.connect(NodeId(victim));
        trio.recovers(victim, "the repair");
        trio.let_lead(victim);
        trio.append(3, 500);
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
}

/// Superseded entries fill several segments. Damage in one of them that others follow ended the replica.
#[test]
fn superseded_damage_is_replaced_in_any_segment() {
    type Harm = fn(&mut Image, &str);
    let cases: [(&str, Harm); 3] = [
        ("a block and the footer", |image, name| {
            let file = image.file(name).unwrap();
            let hurt = [from_last(&blocks(&file), 2).0 + 70, file.len() as u64 - 20];
            assert!(hurt.into_iter().all(|at| image.damage(name, &flip(at))));
        }),
        ("the file is gone", |image, name| assert!(image.remove(name))),
        ("the file is short", |image, name| assert!(image.damage(name, &Damage::Shorten { len: 20_000 }))),
    ];
    for (n, (what, harm)) in cases.into_iter().enumerate() {
        for commits_more in [false, true] {
            let (mut trio, victim) = superseded((0..24).map(|n| vec![n; 8000]).collect());
            if commits_more {
                trio.append(40, 8000);
            }
            let names = trio.segments(victim);
            assert!(names.len() >= 4, "{names:?}");
            let mut image = trio.disk(victim).visible();
            harm(&mut image, &names[1 + n % 2]);
            trio.disks[victim as usize - 1] = SimDisk::new(image);
            trio.network.connect(NodeId(victim));
            let what = format!("{what}; the others have committed more: {commits_more}");
            trio.recovers(victim, &what);
            assert!(trio.log(victim).stats().repaired >= 1, "{what}");
            trio.let_lead(victim);
            trio.append(3, 500);
            (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(()), "{what}"));
        }
    }
}

/// The power goes in the midst of the repair, and what was not synced is kept or lost by chance.
#[test]
fn crash_in_the_midst_of_such_a_repair_is_repaired() {
    let mut halves = 0;
    for calls in (30..80).step_by(5) {
        let (mut trio, victim) = superseded_and_damaged(1 + calls as usize % 3);
        let harmed = trio.disk(victim).visible().fingerprint();
        trio.start(victim, NO_SCRUB);
        // It has read all it needs by then, and listens for a while before it writes.
        trio.disk(victim).cut_power_after(calls);
        wait("the power cut, or the end of the repair", || {
            let log = trio.log(victim);
            log.poison_cause().is_some() || log.status().role != Role::Repairing
        });
        let log = trio.logs[victim as usize - 1].take().unwrap();
        let was_cut = log.status().role == Role::Repairing;
        let _ = log.close();
        let crashed = trio.disk(victim).crash_randomly(&mut Rng::new(calls));
        halves += usize::from(was_cut && crashed.visible().fingerprint() != harmed);
        trio.disks[victim as usize - 1] = crashed;
        trio.recovers(victim, &format!("the repair after a power cut behind {calls} calls"));
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
    assert!(halves >= 3, "{halves} repairs were half done");
}

/// A voter whose segment file is gone, or too short, ended instead of fetching it.
#[test]
fn missing_and_shortened_segments_are_fetched_from_others() {
    let mut trio = Trio::new();
    trio.append(150, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    let names = trio.segments(victim);
    assert!(names.len() >= 5, "{names:?}");
    let image = trio.disk(victim).visible();
    type Harm<'a> = &'a dyn Fn(&mut Image);
    let cases: [(&str, Harm<'_>); 9] = [
        ("one is gone", &|image| assert!(image.remove(&names[2]))),
        ("one is empty", &|image| assert!(image.damage(&names[2], &Damage::Shorten { len: 0 }))),
        ("one ends in its header", &|image| assert!(image.damage(&names[1], &Damage::Shorten { len: 700 }))),
        ("one ends in its blocks", &|image| {
            assert!(image.damage(&names[1], &Damage::Shorten { len: 30_011 }))
        }),
        ("two, apart", &|image| {
            assert!(image.remove(&names[1]));
            assert!(image.damage(&names[3], &Damage::Shorten { len: 9000 }));
        }),
        ("two next to each other", &|image| {
            assert!(names[1..3].iter().all(|name| image.remove(name)));
        }),
        ("three next to each other", &|image| {
            assert!(names[1..4].iter().all(|name| image.remove(name)));
        }),
        ("one ends in its blocks, and the next one is gone", &|image| {
            assert!(image.damage(&names[1], &Damage::Shorten { len: 30_011 }));
            assert!(image.remove(&names[2]));
        }),
        ("one is gone, and the next one ends in its header", &|image| {
            assert!(image.remove(&names[1]));
            assert!(image.damage(&names[2], &Damage::Shorten { len: 700 }));
        }),
    ];
    for (what, harm) in cases {
        let mut harmed = image.clone();
        harm(&mut harmed);
        trio.disks[victim as usize - 1] = SimDisk::new(harmed);
        // Nobody to ask: it waits, and says so.
        trio.network.disconnect(NodeId(victim));
        trio.start(victim, NO_SCRUB);
        assert_eq!(trio.log(victim).status().role, Role::Repairing, "{what}");
        trio.stop(victim);
        trio.network.connect(NodeId(victim));
        trio.recovers(victim, what);
        assert!(trio.log(victim).stats().repaired >= 1, "{what}");
        trio.stop(victim);
    }
    // Without its footer a segment has all of its blocks: nobody needs to be asked.
    let mut harmed = image.clone();
    let len = image.file(&names[2]).unwrap().len() as u64 - 1;
    assert!(harmed.damage(&names[2], &Damage::Shorten { len }));
    trio.disks[victim as usize - 1] = SimDisk::new(harmed);
    trio.start(victim, SCRUB);
    assert_ne!(trio.log(victim).status().role, Role::Repairing);
    trio.append(5, 1000);
    trio.let_lead(victim);
    trio.append(20, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

/// Nothing tells what a replica had acknowledged, or whom it had voted for, in a last segment that is gone.
#[test]
fn lost_last_segment_is_refused() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    let names = trio.segments(victim);
    let image = trio.disk(victim).visible();
    let last = names.last().unwrap();
    let cases: [&dyn Fn(&mut Image); 3] = [
        &|image| assert!(image.remove(last)),
        &|image| assert!(image.damage(last, &Damage::Shorten { len: 4096 + 700 })),
        &|image| assert!(image.damage(last, &Damage::Shorten { len: 0 })),
    ];
    for harm in cases {
        let mut harmed = image.clone();
        harm(&mut harmed);
        trio.disks[victim as usize - 1] = SimDisk::new(harmed);
        let error = trio.open(victim, Bootstrap::Existing, NO_SCRUB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = error.to_string();
        assert!(error.contains(last) && error.contains("remove this node"), "{error}");
    }
}

/// Another program shortens the files of a replica that reads by `pread`. Readers get `Corrupt`, the process goes on, and
/// the bytes that are gone come back from another replica.
#[test]
fn shortened_files_are_repaired_under_their_readers() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        Log::open(dirs[node as usize - 1].path(), options(node, bootstrap, &network, NO_SCRUB)).unwrap()
    };
    let leader = open(1, Bootstrap::Init);
    let follower = open(2, Bootstrap::Join(leader.info().log_id));
    let directory = follower.info().directory;
    let add = Change::AddLearner { node: NodeId(2), directory, address: String::new() };
    leader.change_members(&[add], PATIENCE).unwrap();
    let records: Vec<Vec<u8>> = (0..200).map(|n| record(n, 4000)).collect();
    records.iter().for_each(|r| assert!(leader.append(r).unwrap() > Index(0)));
    follower.wait_for(Index(200), PATIENCE).unwrap();
    let read = || -> chiplog::Result<u64> {
        let mut reader = follower.reader(Start::First)?;
        let mut read = 0;
        while let Some(record) = reader.next_record()? {
            let n = record.index.get() as usize - 1;
            assert_eq!(record.data, &records[n % records.len()][..]);
            read += 1;
        }
        Ok(read)
    };
    assert_eq!(read().unwrap(), 200);
    // In the middle of a block, in the opening block, in the segment's header, and the last segment, which grows.
    let last = follower.info().segments;
    assert!(last > 4, "{last}");
    for (round, (number, length)) in
        [(1, 20_000), (2, 4096 + 70), (3, 100), (last, 5000)].into_iter().enumerate()
    {
        let name = dirs[1].path().join(format!("{number:020}.seg"));
        let file = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
        file.set_len(length).unwrap();
        drop(file);
        let error = read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(&format!("{number:020}.seg")), "{error}");
        wait("the right bytes", || read().is_ok());
        assert_eq!(read().unwrap(), 200 + round as u64);
        assert_eq!(std::fs::metadata(&name).unwrap().len(), 64 << 10, "segment {number}");
        leader.append(&records[round]).unwrap(); // goes on
        follower.wait_for(leader.info().last, PATIENCE).unwrap();
    }
}

/// A hard state stood between entries that were lost: what was put back shifted the entries behind it, and the index of blocks
/// that the replica had in memory pointed between them. Records were read; the entries could not be lent for as long as the
/// process ran.
#[test]
fn repaired_replica_lends_what_it_was_lent() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        let options = Options { segment_bytes: 2 << 20, ..options(node, bootstrap, &network, NO_SCRUB) };
        Log::open(dirs[node as usize - 1].path(), options).unwrap()
    };
    let first = open(1, Bootstrap::Init);
    let second = open(2, Bootstrap::Join(first.info().log_id));
    let (node, directory) = (NodeId(2), second.info().directory);
    first
        .change_members(&[Change::AddLearner { node, directory, address: String::new() }], PATIENCE)
        .unwrap();
    first.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
    // Each new term is written behind the entries of the one before.
    let mut records = 0;
    for (node, leader) in [(1, &first), (2, &second), (1, &first), (2, &second), (1, &first)] {
        wait("it leads", || {
            _ = (
                first.transfer_leader(NodeId(node), PATIENCE),
                second.transfer_leader(NodeId(node), PATIENCE),
            );
            leader.status().role == Role::Leader
        });
        for _ in 0..50 {
            leader.append(&record(records, 4000)).unwrap();
            records += 1;
        }
    }
    for (log, dir) in [(&first, &dirs[0]), (&second, &dirs[1]), (&first, &dirs[0])] {
        log.wait_for(Index(records), PATIENCE).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(format!("{:020}.seg", 1)));
        file.unwrap().set_len(10_000).unwrap();
        assert_eq!(log.read(Index(records)).unwrap_err().kind(), ErrorKind::Corrupt);
        wait("all of it is back", || {
            (1..=records).all(|n| log.read(Index(n)).is_ok_and(|r| r.data == record(n - 1, 4000)))
        });
    }
}
