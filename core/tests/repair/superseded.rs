//! Damage in entries that were never committed: other entries were committed in their place.

use super::trio::{Block, DATA, NO_SCRUB, NODES, OPENING, Trio, blocks, flip, nth, raft_index, record, wait};
use chiplog::cluster::Role;
use chiplog::disk::sim::{Damage, Image, Rng, SimDisk};
use chiplog::{NodeId, Ticket};

/// A leader was isolated, and then stopped, with its own entries. One of them, which other entries follow, is
/// damaged, `hurt_from` the last; the other replicas have committed other entries in their place.
fn superseded_and_damaged(hurt_from: usize) -> (Trio, u64) {
    let own: Vec<_> = (0..6).map(|n| record(700 + n, 900)).collect();
    let (mut trio, victim) = superseded(&own);
    trio.append(12, 3000);
    trio.hurt(victim, -1, |blocks| vec![flip(from_last(blocks, hurt_from).0 + 70)]);
    trio.network.connect(NodeId(victim));
    (trio, victim)
}

/// The data block that is followed by `n` others.
fn from_last(blocks: &[Block], n: usize) -> Block {
    *blocks.iter().rev().filter(|b| b.2 == DATA).nth(n).unwrap()
}

/// A leader was isolated, and then stopped, with these entries of its own. The other replicas have elected another
/// leader, which has committed only the entry that begins its term.
fn superseded(own: &[Vec<u8>]) -> (Trio, u64) {
    let (mut trio, victim, own) = (0..20).find_map(|_| cut_off_with(own)).unwrap();
    wait("its syncs", || trio.log(victim).metrics().syncing.is_zero());
    let image = trio.disk(victim).visible();
    let others: Vec<u64> = (1..=NODES).filter(|n| *n != victim).collect();
    wait("another leader", || others.iter().any(|n| trio.log(*n).role() == Role::Leader));
    let _ = trio.logs[victim as usize - 1].take().unwrap().close();
    drop(own);
    trio.disks[victim as usize - 1] = SimDisk::new(image);
    (trio, victim)
}

/// An isolated leader with these entries of its own, each in a block. `None`: it was slow, and leads no more.
fn cut_off_with(own: &[Vec<u8>]) -> Option<(Trio, u64, Vec<Ticket<chiplog::Index>>)> {
    let mut trio = Trio::new();
    trio.append(20, 500);
    let victim = trio.leader();
    trio.network.disconnect(NodeId(victim));
    let mut tickets = Vec::new();
    for record in own {
        let log = trio.log(victim);
        let before = log.status().replica.last_entry;
        tickets.push(log.submit(record).ok()?);
        wait("its own entry", || log.status().replica.last_entry > before || log.role() != Role::Leader);
        if log.status().replica.last_entry <= before {
            return None;
        }
    }
    Some((trio, victim, tickets))
}

/// A replica that did not open because of damage ended if the damaged entries had never been committed: no replica
/// had them, and the others' entries at the same indexes did not fit.
#[test]
fn damage_in_superseded_entries_is_replaced_by_committed_entries() {
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

/// The replica asked for entries up to the end of the damage, and the others answered only once they had committed
/// that many. In an idle cluster it waited for ever.
#[test]
fn superseded_damage_is_replaced_while_the_cluster_is_idle() {
    let own: Vec<_> = (0..6).map(|n| record(700 + n, 900)).collect();
    for hurt_from in [1, 3, 5] {
        let (mut trio, victim) = superseded(&own);
        trio.hurt(victim, -1, |blocks| vec![flip(from_last(blocks, hurt_from).0 + 70)]);
        trio.network.connect(NodeId(victim));
        trio.recovers(victim, "the repair");
        trio.let_lead(victim);
        trio.append(3, 500);
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
}

/// Superseded entries fill several segments. Damage in one that is followed by others ended the replica.
#[test]
fn superseded_damage_is_replaced_in_any_segment() {
    type Harm = fn(&mut Image, &str);
    let cases: [(&str, Harm); 3] = [
        ("a block and the footer", |image, name| {
            let file = image.file(name).unwrap();
            let hurt = [from_last(&blocks(&file), 2).0 + 70, file.len() as u64 - 20];
            assert!(hurt.into_iter().all(|at| image.damage(name, &flip(at))));
        }),
        ("the file is missing", |image, name| assert!(image.remove(name))),
        ("the file is short", |image, name| assert!(image.damage(name, &Damage::Shorten { len: 20_000 }))),
    ];
    let own: Vec<_> = (0..24).map(|n| vec![n; 8000]).collect();
    for (n, (what, harm)) in cases.into_iter().enumerate() {
        for commits_more in [false, true] {
            let (mut trio, victim) = superseded(&own);
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
            assert!(trio.log(victim).metrics().repaired >= 1, "{what}");
            trio.let_lead(victim);
            trio.append(3, 500);
            (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(()), "{what}"));
        }
    }
}

/// The power fails during the repair, and unsynced bytes are kept or lost at random.
#[test]
fn crash_during_the_repair_of_superseded_entries_is_repaired() {
    let mut halves = 0;
    for calls in (30..80).step_by(5) {
        let (mut trio, victim) = superseded_and_damaged(1 + calls as usize % 3);
        let harmed = trio.disk(victim).visible().fingerprint();
        trio.open_to_repair(victim, NO_SCRUB).unwrap();
        // By then it has read everything it needs, and listens for a while before it writes.
        trio.disk(victim).cut_power_after(calls);
        wait("the power cut, or the end of the repair", || {
            let log = trio.log(victim);
            log.poison_cause().is_some() || log.role() != Role::Repairing
        });
        let log = trio.logs[victim as usize - 1].take().unwrap();
        let was_cut = log.role() == Role::Repairing;
        let _ = log.close();
        let crashed = trio.disk(victim).crash_randomly(&mut Rng::new(calls));
        halves += usize::from(was_cut && crashed.visible().fingerprint() != harmed);
        trio.disks[victim as usize - 1] = crashed;
        trio.open_to_repair(victim, NO_SCRUB).unwrap();
        trio.is_whole(victim, &format!("the repair after a power cut after {calls} calls"));
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
    assert!(halves >= 3, "{halves} repairs were half done");
}

/// A replica truncated superseded entries and continued in a new segment, whose entries it has acknowledged. Then the
/// older segment is damaged where it was truncated. The dead entries after that counted as the end of the gap, and
/// the live segment was discarded.
#[test]
fn damage_at_an_old_truncation_keeps_the_live_segment() {
    let (mut trio, victim, mut image, [name, live]) = cut_and_went_on();
    let before = trio.segments(victim);
    let index = |file: &[u8], b: &Block| raft_index(file, b.0);
    let live_file = image.file(&live).unwrap();
    let base = index(&live_file, &blocks(&live_file)[0]);
    let old = image.file(&name).unwrap();
    let all = blocks(&old);
    let entry = |at| all.iter().find(|b| b.2 <= 4 && index(&old, b) == at).unwrap().0;
    let hurt = entry(base)..=entry(base + 1);
    for b in all.iter().filter(|b| hurt.contains(&b.0)) {
        assert!(image.damage(&name, &flip(b.0 + 20)));
    }
    trio.disks[victim as usize - 1] = SimDisk::new(image);
    trio.recovers(victim, "the repair");
    let after = trio.segments(victim);
    assert!(after.contains(&live), "the live segment is gone: {before:?}, then {after:?}");
    let image = trio.disk(victim).visible();
    for file in after.iter().map(|name| image.file(name).unwrap()).filter(|file| !blocks(file).is_empty()) {
        assert!(index(&file, &blocks(&file)[0]) <= base, "a new segment began among acknowledged entries");
    }
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

/// A replica that truncated superseded entries and continued in a new segment, whose entries it has acknowledged; its
/// files with the older of the two segments, without its footer, and the live one.
fn cut_and_went_on() -> (Trio, u64, Image, [String; 2]) {
    let own: Vec<_> = (0..6).map(|n| record(700 + n, 900)).collect();
    let (mut trio, victim) = superseded(&own);
    trio.network.connect(NodeId(victim));
    trio.start(victim, NO_SCRUB);
    trio.append(12, 3000);
    trio.stop(victim);
    let mut image = trio.disk(victim).visible();
    let names = trio.segments(victim);
    let [.., old, live] = &names[..] else { panic!("{names:?}") };
    let footer = image.file(old).unwrap().len() as u64 - 20;
    assert!(image.damage(old, &flip(footer)));
    let (old, live) = (old.clone(), live.clone());
    (trio, victim, image, [old, live])
}

/// The older segment has no footer, so its dead end counted as the end before the live segment, and entries of the
/// live segment were overwritten.
#[test]
fn damaged_opening_after_a_truncation_is_repaired_for_that_index() {
    // The opening alone; and the first entries with it, whose headers are sound.
    for hurt in [0, 1, 3] {
        let (mut trio, victim, mut image, [_, name]) = cut_and_went_on();
        let live = image.file(&name).unwrap();
        let all = blocks(&live);
        let entries = all.iter().filter(|b| b.2 == DATA).take(hurt).map(|b| b.0 + 64);
        for at in entries.chain([nth(&all, OPENING, 0).0 + 70]) {
            assert!(image.damage(&name, &flip(at)));
        }
        trio.disks[victim as usize - 1] = SimDisk::new(image);
        trio.recovers(victim, &format!("the repair of an opening and {hurt} entries"));
        let mended = trio.disk(victim).visible().file(&name).unwrap();
        let entry = |b: &&Block| b.2 <= 4;
        for b in all.iter().filter(entry) {
            let (from, to) = (b.0 as usize, (b.0 + b.1) as usize);
            assert_eq!(mended[from + 64..to], live[from + 64..to], "entry {}", raft_index(&live, b.0));
        }
        trio.let_lead(victim);
        trio.append(3, 500);
        (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
    }
}

/// Nothing shows where the live segment began if the headers of its first entries are lost as well. A dead entry of
/// the older segment does not count as its beginning, and sound entries stay.
#[test]
fn opening_after_a_truncation_is_not_repaired_from_dead_entries() {
    let (mut trio, victim, mut image, [_, name]) = cut_and_went_on();
    let all = blocks(&image.file(&name).unwrap());
    let entries: Vec<_> = all.iter().filter(|b| b.2 <= 4).copied().collect();
    let last = entries[2];
    for b in all.iter().filter(|b| b.0 <= last.0) {
        assert!(image.damage(&name, &flip(b.0 + 20)));
    }
    let before = image.file(&name).unwrap();
    trio.disks[victim as usize - 1] = SimDisk::new(image);
    trio.start(victim, NO_SCRUB);
    wait("the refusal", || trio.log(victim).poison_cause().is_some());
    let why = trio.log(victim).poison_cause().unwrap().to_string();
    assert!(why.contains("remove this node"), "{why}");
    assert_eq!(trio.disk(victim).visible().file(&name).unwrap(), before);
    let _ = trio.logs[victim as usize - 1].take().unwrap().close();
}
