//! Replicas that do not open because of damage: they are repaired before they take part again.

use super::trio::{
    DATA, ELECTION_TIMEOUT, HARD_STATE, NO_SCRUB, NODES, OPENING, PATIENCE, SCRUB, Trio, blocks, flip, nth,
    options, raft_index, record, wait,
};
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::disk::sim::SimDisk;
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, Index, Log, NodeId, Start};
use std::sync::Arc;

#[test]
fn log_that_does_not_open_is_repaired_before_it_takes_part() {
    let (mut trio, victim) = Trio::with_one_stopped(70, 4000);
    trio.hurt(victim, -1, |blocks| {
        vec![flip(nth(blocks, DATA, 0).0 + 20), flip(nth(blocks, DATA, 3).0 + 70)]
    });
    // Without a replica to ask it waits, and reports that.
    trio.network.disconnect(NodeId(victim));
    trio.start(victim, NO_SCRUB);
    let log = trio.log(victim);
    assert_eq!(log.role(), Role::Repairing);
    assert_eq!(log.append(b"no").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.read(Index(1)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.reader(Start::First).err().map(|e| e.kind()), Some(ErrorKind::Unavailable));
    assert_eq!(log.barrier(PATIENCE).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(log.append(b"no").unwrap_err().to_string().contains("offset"));
    trio.network.connect(NodeId(victim));
    trio.append(5, 1000);
    assert_eq!(trio.log(victim).role(), Role::Follower);
    assert!(trio.log(victim).metrics().repaired >= 2);
    assert_eq!(trio.read(victim), Ok(()));
    wait("sound files", || trio.is_sound(victim));
    // It is a full member again.
    trio.append(20, 1000);
    trio.let_lead(victim);
    trio.append(20, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn repairing_replica_does_not_vote() {
    let (mut trio, victim) = Trio::with_one_stopped(70, 4000);
    let name = trio.hurt(victim, -1, |blocks| vec![flip(nth(blocks, DATA, 0).0 + 64)]);
    // The leader stops; the remaining replica is damaged in the same entry.
    let leader = trio.leader();
    let left = (1..=NODES).find(|n| *n != leader && *n != victim).unwrap();
    let entry = trio.entry_of(victim, &name, |blocks| nth(blocks, DATA, 0).0);
    let (file, offset) = trio.find_entry(left, entry);
    assert!(trio.disk(left).damage(&file, &flip(offset + 100)));
    trio.stop(leader);
    trio.start(victim, NO_SCRUB);
    std::thread::sleep(4 * ELECTION_TIMEOUT);
    assert_eq!(trio.log(victim).role(), Role::Repairing);
    assert_ne!(trio.log(left).role(), Role::Leader, "it had one vote of three");
    // The stopped replica has the entry.
    trio.start(leader, NO_SCRUB);
    trio.append(5, 1000);
    wait("sound files", || trio.is_sound(victim) && trio.is_sound(left));
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

#[test]
fn fixed_parts_of_segments_and_their_openings_are_repaired() {
    let mut trio = Trio::new();
    trio.append(100, 4000);
    let victim = trio.follower();
    // A full segment's opening, while the replica runs.
    trio.hurt(victim, 2, |blocks| vec![flip(nth(blocks, OPENING, 0).0 + 70)]);
    trio.stop(victim);
    trio.start(victim, SCRUB);
    wait("the repair of an opening", || trio.log(victim).metrics().repaired >= 1);
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
fn lost_hard_state_is_learnt_before_the_replica_votes_again() {
    check_that_a_lost_hard_state_is_learnt(false);
}

/// The replica left greetings unanswered while it was repaired. A leader that had restarted waited for its answer,
/// and sent it nothing: the replica heard no leader, and waited for ever.
#[test]
fn lost_hard_state_is_learnt_from_restarted_replicas() {
    check_that_a_lost_hard_state_is_learnt(true);
}

fn check_that_a_lost_hard_state_is_learnt(others_start_again: bool) {
    let mut trio = Trio::new();
    trio.append(30, 1000);
    let victim = trio.follower();
    // Another term, so that the segment holds a hard state block of it.
    let leader = trio.leader();
    let third = (1..=NODES).find(|n| *n != leader && *n != victim).unwrap();
    trio.let_lead(third);
    trio.append(3, 1000);
    trio.stop(victim);
    let term = trio.log(third).status().replica.term;
    trio.hurt(victim, -1, |blocks| {
        let states = blocks.iter().filter(|b| b.2 == HARD_STATE);
        states.map(|b| flip(b.0 + 70)).collect()
    });
    trio.network.disconnect(NodeId(victim));
    trio.start(victim, NO_SCRUB);
    std::thread::sleep(3 * ELECTION_TIMEOUT);
    assert_eq!(trio.log(victim).role(), Role::Repairing, "it has learnt no term");
    if others_start_again {
        for node in [leader, third] {
            trio.stop(node);
        }
        for node in [leader, third] {
            trio.start(node, NO_SCRUB);
        }
        wait("a leader", || [leader, third].iter().any(|n| trio.log(*n).role() == Role::Leader));
    }
    trio.network.connect(NodeId(victim));
    wait("the repair", || trio.log(victim).role() == Role::Follower);
    trio.append(3, 1000);
    let now = trio.log(victim).status().replica.term;
    assert!(now == term || others_start_again && now > term, "{now}");
    assert_eq!(trio.read(victim), Ok(()));
    wait("sound files", || trio.is_sound(victim));
    trio.stop(victim);
    trio.start(victim, NO_SCRUB);
    assert!(trio.log(victim).status().replica.term >= term);
    trio.converge();
}

/// It waited for a leader, and the other one of two voters could not be elected without it: both waited for ever.
#[test]
fn lost_hard_state_of_one_of_two_voters_is_learnt_from_the_other() {
    let mut trio = Trio::new();
    trio.append(30, 1000);
    let leader = trio.leader();
    let victim = trio.follower();
    let third = (1..=NODES).find(|n| *n != leader && *n != victim).unwrap();
    trio.log(leader).change_members(&[Change::Remove(NodeId(third))], PATIENCE).unwrap();
    trio.stop(third);
    trio.append(3, 1000);
    trio.stop(victim);
    trio.hurt(victim, -1, |blocks| {
        blocks.iter().filter(|b| b.2 == HARD_STATE).map(|b| flip(b.0 + 70)).collect()
    });
    let term = trio.log(leader).status().replica.term;
    wait("the leader to step down", || trio.log(leader).role() != Role::Leader);
    trio.recovers(victim, "the repair");
    trio.append(3, 1000);
    assert!(trio.log(victim).status().replica.term > term);
    for node in [leader, victim] {
        assert_eq!(trio.read(node), Ok(()));
    }
}

/// No replica sends entries to a node that is no member. The node kept asking and never ended.
#[test]
fn removed_replica_learns_of_its_removal_during_a_repair() {
    let (mut trio, victim) = Trio::with_one_stopped(30, 1000);
    let leader = trio.leader();
    trio.hurt(victim, -1, |blocks| vec![flip(nth(blocks, DATA, 2).0 + 70)]);
    trio.log(leader).change_members(&[Change::Remove(NodeId(victim))], PATIENCE).unwrap();
    trio.start(victim, NO_SCRUB);
    wait("the removal", || trio.log(victim).role() == Role::Removed);
    wait("the refusal", || trio.log(victim).append(b"no").unwrap_err().kind() == ErrorKind::Removed);
    assert_eq!(trio.log(victim).read(Index(1)).unwrap_err().kind(), ErrorKind::Removed);
    assert_eq!(trio.log(victim).poison_cause().map(|e| e.to_string()), None);
    trio.stop(victim);
}

#[test]
fn only_voter_refuses_to_open() {
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

/// A replica jumped, and the removal of its older files was not durable: after a power cut they were there again. The opening behind the jump
/// was damaged. The repair took the older file for the one before, and ended because the entries between had no room in the gap.
#[test]
fn opening_behind_a_jump_is_repaired_although_older_files_are_there_again() {
    let mut trio = Trio::new();
    // Replica 3 keeps in one large segment what the leader removes.
    open_with_large_segments(&mut trio, 3);
    trio.append(60, 4000);
    trio.let_lead(1);
    trio.stop(2);
    let (before, old) = (trio.disk(2).visible(), trio.segments(2));
    trio.append(90, 4000);
    let first = Index(trio.last().0 - 10);
    trio.log(1).discard(first).unwrap();
    trio.records.retain(|index, _| *index >= first);
    wait("the leader to remove files", || trio.segments(1).len() <= 2);
    open_with_large_segments(&mut trio, 2);
    trio.append(3, 1000);
    let end = trio.log(1).status().replica.committed_entry.0;
    wait("its record of the commit", || recorded_commit(&trio, 2) >= end);
    trio.stop(2);
    let names = trio.segments(2);
    let [name] = &names[..] else { panic!("it has not jumped: {old:?}, then {names:?}") };
    let mut image = trio.disk(2).visible();
    let sound = image.file(name).unwrap();
    for old in &old {
        image.insert(old, &before.file(old).unwrap());
    }
    assert!(image.damage(name, &flip(nth(&blocks(&sound), OPENING, 0).0 + 70)));
    trio.disks[1] = SimDisk::new(image);
    trio.recovers(2, "the repair of the opening");
    assert!(trio.log(2).metrics().repaired >= 1);
    let after = trio.disk(2).visible();
    assert!(old.iter().all(|name| after.file(name).is_none()), "an old file is part of the log");
    let repaired = after.file(name).unwrap();
    let entries: Vec<_> = blocks(&sound).into_iter().filter(|b| b.2 <= 4).collect();
    for (at, length, _) in entries {
        let block = at as usize + 64..(at + length) as usize;
        assert_eq!(repaired[block.clone()], sound[block], "entry {}", raft_index(&sound, at));
    }
    trio.let_lead(2);
    trio.append(20, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

/// Opens a follower with segments that hold all that a test appends.
fn open_with_large_segments(trio: &mut Trio, node: u64) {
    if trio.logs[node as usize - 1].is_some() {
        trio.let_lead(1);
        trio.stop(node);
    }
    let options = options(node, Bootstrap::Existing, &trio.network, NO_SCRUB).segment_bytes(4 << 20);
    trio.logs[node as usize - 1] = Some(Log::open_on(Arc::new(trio.disk(node).clone()), options).unwrap());
}

/// The highest commit index in the hard states of a replica's newest file.
fn recorded_commit(trio: &Trio, node: u64) -> u64 {
    let name = trio.segments(node).pop().unwrap();
    let file = trio.disk(node).visible().file(&name).unwrap();
    let states = blocks(&file).into_iter().filter(|b| b.2 == HARD_STATE).map(|b| b.0 as usize + 64 + 16);
    states.map(|at| u64::from_le_bytes(file[at..at + 8].try_into().unwrap())).max().unwrap_or_default()
}
