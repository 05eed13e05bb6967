//! Random damage of all kinds, many times.

use super::trio::{NODES, OPENING, SCRUB, SEGMENT_HEADER_BYTES, Trio, blocks, flip, wait};
use chiplog::ErrorKind;
use chiplog::cluster::Role;
use chiplog::disk::SECTOR_BYTES;
use chiplog::disk::sim::{Damage, Image, Rng, SimDisk};

/// Damage of any kind, anywhere in a replica's segments.
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

/// One to three places at once, many times. Nothing is appended meanwhile, so that the victim's disk as it was is not
/// an older state of it.
#[test]
fn randomly_damaged_replica_is_repaired_or_refuses() {
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
            // Every other time in the last segment, which recovery reads.
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
        // Nothing shows the contents of the oldest segment's opening block: it is reported, and not repaired.
        let opening = |image: &Image| {
            let file = image.file(&names[0]).unwrap();
            let length = blocks(&file).first().filter(|b| b.2 == OPENING).map_or(0, |b| b.1);
            file[SEGMENT_HEADER_BYTES as usize..][..length as usize].to_vec()
        };
        if opening(&trio.disk(victim).visible()) != opening(&image) {
            continue;
        }
        if let Err(error) = trio.open_to_repair(victim, SCRUB) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}: {damages:?}");
            refused += 1;
            continue;
        }
        let what = format!("seed {seed} to be sound again: {damages:?}");
        // Damage to the end of the log and everything that proves it is not visible to this replica, but the others
        // remember it.
        let set_back = || trio.log(victim).role() == Role::Removed;
        wait(&what, || set_back() || (trio.is_sound(victim) && trio.read(victim) == Ok(())));
        if set_back() {
            assert!(damages.iter().any(|d| d.starts_with(names.last().unwrap())), "{what}");
            forgotten += 1;
            trio.stop(victim);
            continue;
        }
        let log = trio.log(victim);
        assert_eq!(log.poison_cause().map(|e| e.to_string()), None, "{what}");
        repaired += u64::from(log.metrics().repaired > 0);
        wait(&what, || trio.log(victim).role() == Role::Follower);
        trio.stop(victim);
    }
    println!(
        "{CASES} cases: {repaired} repaired, {refused} refused, {forgotten} had the end of their log truncated"
    );
    assert!((refused + forgotten) * 10 < CASES && repaired * 2 > CASES, "{repaired}, {refused}, {forgotten}");
    (1..=NODES).filter(|n| *n != victim).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}
