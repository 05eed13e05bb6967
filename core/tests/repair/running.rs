//! Damage that a replica finds while it runs: by the scrub, by a reader, by a replica that asks for damaged entries.

use super::trio::{
    DATA, NO_SCRUB, NODES, PATIENCE, SCRUB, Trio, blocks, flip, nth, options, record, sector, wait,
};
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::disk::sim::{Damage, SimDisk};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, Index, Log, NodeId, Options, ReadMode, Start};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn scrub_finds_and_repairs_damage_in_full_segments() {
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
    wait("the repair", || trio.log(victim).metrics().repaired >= hurt);
    wait("sound files", || trio.is_sound(victim));
    trio.read(victim).unwrap();
    let metrics = trio.log(victim).metrics();
    assert!(metrics.scrubbed_bytes > 100_000 && metrics.damaged >= hurt, "{metrics:?}");
    for node in 1..=NODES {
        trio.read(node).unwrap();
        assert!(trio.is_sound(node));
    }
}

/// A job reads to the end of a block, however large it is: its bytes count, not a fixed number.
#[test]
fn scrub_keeps_its_pace_over_large_blocks() {
    const PACE: u64 = 4 << 20;
    let (network, disk) = (MemoryNetwork::new(), Arc::new(SimDisk::default()));
    let open = |scrub| {
        let cluster = options(1, Bootstrap::Init, &network, scrub).cluster;
        Log::open_on(
            disk.clone(),
            Options::with_segment_bytes(4 << 20).cluster(cluster).read_mode(ReadMode::Read),
        )
    };
    let log = open(NO_SCRUB).unwrap();
    (0..12).for_each(|_| _ = log.append(&vec![7; 1 << 20]).unwrap());
    log.close().unwrap();
    let began = Instant::now();
    let log = open(PACE).unwrap();
    wait("the scrub", || log.metrics().scrubbed_bytes >= 6 << 20);
    // All pieces before the last one were waited for; a slow machine only takes longer.
    assert!(
        began.elapsed() >= Duration::from_secs_f64((4 << 20) as f64 / PACE as f64),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn reader_meets_damage_and_then_the_right_bytes() {
    let mut trio = Trio::new();
    trio.append(60, 4000);
    for victim in [trio.follower(), trio.leader()] {
        // In the first segment, which is full, and in the last one, which grows.
        for n in [0, -1] {
            trio.append(4, 4000);
            let before = trio.log(victim).metrics().repaired;
            trio.hurt(victim, n, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
            assert_eq!(trio.read(victim), Err(ErrorKind::Corrupt));
            wait("the repair", || trio.log(victim).metrics().repaired > before);
            assert_eq!(trio.read(victim), Ok(()));
            wait("sound files", || trio.is_sound(victim));
        }
    }
    trio.append(10, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn two_of_three_replicas_damaged_at_different_places_are_repaired() {
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
        wait("the repair", || trio.log(victim).metrics().repaired >= 3);
        wait("sound files", || trio.is_sound(victim));
    }
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn damage_is_repaired_with_one_replica_down_and_never_sent() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let (victim, lagging) = (trio.leader(), trio.follower());
    trio.network.disconnect(NodeId(lagging));
    let other = (1..=NODES).find(|n| *n != victim && *n != lagging).unwrap();
    (0..60).for_each(|n| trio.append_one(record(1000 + n, 4000)));
    trio.log(other).wait_for(trio.last(), PATIENCE).unwrap();
    // A full segment that the lagging replica lacks is damaged at the leader, which has nothing of it in memory.
    trio.stop(victim);
    let damaged = trio.hurt(victim, -2, |blocks| vec![flip(nth(blocks, DATA, 2).0 + 300)]);
    trio.start(victim, NO_SCRUB);
    trio.log(victim).wait_for(trio.last(), PATIENCE).unwrap();
    trio.let_lead(victim);
    trio.network.disconnect(NodeId(other));
    trio.network.connect(NodeId(lagging));
    trio.stop(other);
    // The third replica is down and the second lacks it: no replica has the bytes.
    std::thread::sleep(Duration::from_millis(500));
    let reached = trio.log(lagging).last_index();
    assert!(reached < trio.last(), "the replica got bytes that no replica has");
    assert!(trio.read(victim).is_err(), "{damaged}");
    trio.network.connect(NodeId(other));
    trio.start(other, NO_SCRUB);
    trio.converge();
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    wait("sound files", || trio.is_sound(victim));
}

/// The same through mappings, on a real disk: records that readers hold stay, and repaired bytes become visible. A
/// repair put two entries next to each other where a marker had been between them: records that readers held changed.
#[test]
fn mapped_files_are_repaired_under_their_readers() {
    use std::os::unix::fs::FileExt;
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        let options = options(node, bootstrap, &network, NO_SCRUB).read_mode(ReadMode::Map);
        Log::open(dirs[node as usize - 1].path(), options).unwrap()
    };
    let leader = open(1, Bootstrap::Init);
    let follower = open(2, Bootstrap::Join(leader.log_id()));
    let directory = follower.directory_id();
    let add = Change::AddLearner { node: NodeId(2), directory, address: String::new() };
    leader.change_members(&[add], PATIENCE).unwrap();
    let records: Vec<Vec<u8>> = (0..60).map(|n| record(n, 4000)).collect();
    for (n, record) in records.iter().enumerate() {
        assert!(leader.append(record).unwrap() > Index(0));
        if (1..=10).contains(&n) {
            // Long enough that there are markers between the entries.
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    follower.wait_for(Index(60), PATIENCE).unwrap();
    let held: Vec<_> = (1..=60).map(|n| follower.read(Index(n)).unwrap()).collect();
    let name = dirs[1].path().join(format!("{:020}.seg", 1));
    let bytes = std::fs::read(&name).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
    for n in 1..=10 {
        let at = nth(&blocks(&bytes), DATA, n).0 + 106;
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
    // Compares the entries byte for byte, except the header's checksum and `durable upto`. Markers between them are
    // not restored one by one.
    let entries = |mut file: Vec<u8>| -> Vec<Vec<u8>> {
        let entries: Vec<_> = blocks(&file).into_iter().filter(|b| b.2 <= 4).collect();
        let mut masked = |(at, length, _): (u64, u64, u8)| {
            let block = &mut file[at as usize..(at + length) as usize];
            block[4..8].fill(0);
            block[52..56].fill(0);
            block.to_vec()
        };
        entries.into_iter().map(&mut masked).collect()
    };
    assert!(entries(std::fs::read(&name).unwrap()) == entries(bytes), "byte for byte");
    assert!(held.iter().zip(&records).all(|(h, r)| h.data == r[..]));
}

/// Another program shortens the files of a replica that reads by `pread`. Readers get `Corrupt`, the process
/// continues, and the lost bytes are fetched from another replica.
#[test]
fn shortened_files_are_repaired_under_their_readers() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        Log::open(dirs[node as usize - 1].path(), options(node, bootstrap, &network, NO_SCRUB)).unwrap()
    };
    let leader = open(1, Bootstrap::Init);
    let follower = open(2, Bootstrap::Join(leader.log_id()));
    let directory = follower.directory_id();
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
    // In the middle of a block, in the opening block, in the segment's header, and in the last segment, which grows.
    let last = follower.status().segments;
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
        leader.append(&records[round]).unwrap(); // still accepts entries
        follower.wait_for(leader.last_index(), PATIENCE).unwrap();
    }
}

/// A hard state was between entries that were lost. The repair shifted the entries after it, and the block index in
/// the replica's memory pointed between them. Records could be read, but the entries could not be sent to other
/// replicas until a restart.
#[test]
fn repaired_replica_sends_repaired_entries() {
    let network = MemoryNetwork::new();
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap| {
        let options = options(node, bootstrap, &network, NO_SCRUB).segment_bytes(2 << 20);
        Log::open(dirs[node as usize - 1].path(), options).unwrap()
    };
    let first = open(1, Bootstrap::Init);
    let second = open(2, Bootstrap::Join(first.log_id()));
    let (node, directory) = (NodeId(2), second.directory_id());
    first
        .change_members(&[Change::AddLearner { node, directory, address: String::new() }], PATIENCE)
        .unwrap();
    first.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
    // Each new term is written after the entries of the one before.
    let mut records = 0;
    for (node, leader) in [(1, &first), (2, &second), (1, &first), (2, &second), (1, &first)] {
        wait("leadership", || {
            _ = (
                first.transfer_leader(NodeId(node), PATIENCE),
                second.transfer_leader(NodeId(node), PATIENCE),
            );
            leader.role() == Role::Leader
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
        wait("all entries are repaired", || {
            (1..=records).all(|n| log.read(Index(n)).is_ok_and(|r| r.data == record(n - 1, 4000)))
        });
    }
}
