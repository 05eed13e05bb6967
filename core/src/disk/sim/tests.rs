//! Tests of the simulated disk itself: what it keeps, loses and changes.

use super::*;
use crate::disk::SECTOR_BYTES;
use std::collections::BTreeSet;

fn write(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_at(offset, &[IoSlice::new(bytes)])
}

fn read(file: &Arc<dyn DiskFile>, offset: u64, n: usize) -> Vec<u8> {
    let mut buf = vec![0; n];
    file.read_at(offset, &mut buf).unwrap();
    buf
}

/// Returns a disk with one durable file "a" of `n` sectors, each filled with its number + 1.
fn disk_with(n: u8) -> (SimDisk, Arc<dyn DiskFile>) {
    let mut image = Image::default();
    image.insert("a", &sectors(&(1..=n).collect::<Vec<_>>()));
    let disk = SimDisk::new(image);
    let file = disk.open("a", true).unwrap();
    (disk, file)
}

fn sectors(fill: &[u8]) -> Vec<u8> {
    fill.iter().flat_map(|b| [*b; 512]).collect()
}

/// The contents that "a" can have after a crash now.
fn outcomes(disk: &SimDisk) -> BTreeSet<Option<Vec<u8>>> {
    let state = disk.state();
    let crashes = state.crashes(1 << 16, 0, 0);
    assert!(crashes.is_exhaustive());
    crashes.map(|image| image.file("a")).collect()
}

#[test]
fn reads_see_writes_at_once_and_across_sectors() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    file.write_at(500, &[IoSlice::new(b"hello "), IoSlice::new(b""), IoSlice::new(b"sectors of ours")])
        .unwrap();
    assert_eq!(file.len().unwrap(), 521);
    assert_eq!(read(&file, 498, 23), b"\0\0hello sectors of ours");
    let mut buf = [0; 2];
    assert_eq!(file.read_at(520, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(file.read_at(u64::MAX, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn calls_fail_with_a_file_system_s_errors() {
    let disk = SimDisk::default();
    disk.create("a").unwrap();
    assert_eq!(disk.create("a").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(disk.open("b", true).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.rename("b", "c").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.remove("b").unwrap_err().kind(), io::ErrorKind::NotFound);
    let reader = disk.open("a", false).unwrap();
    assert_eq!(write(&reader, 0, b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(disk.list().unwrap(), ["a"]);
}

#[test]
fn exactly_the_subsets_of_unsynced_sectors_survive() {
    let (disk, file) = disk_with(3);
    write(&file, 512, &sectors(&[8, 9])).unwrap();
    let wanted = [[1, 2, 3], [1, 8, 3], [1, 2, 9], [1, 8, 9]];
    assert_eq!(outcomes(&disk), wanted.iter().map(|f| Some(sectors(f))).collect());
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[1, 8, 9]))]));
}

/// The device may have written a page before the page changed again.
#[test]
fn sector_written_twice_survives_in_any_version() {
    let (disk, file) = disk_with(1);
    write(&file, 0, &sectors(&[7])).unwrap();
    write(&file, 0, &sectors(&[8])).unwrap();
    assert_eq!(outcomes(&disk), [1, 7, 8].iter().map(|b| Some(sectors(&[*b]))).collect());
}

/// A write of half a sector makes the whole sector dirty, and no other.
#[test]
fn sector_is_never_torn() {
    let (disk, file) = disk_with(2);
    write(&file, 500, &[9; 20]).unwrap();
    let whole = [sectors(&[1])[..500].to_vec(), vec![9; 20], sectors(&[2])[..504].to_vec()].concat();
    let first = [&whole[..512], &sectors(&[2])[..]].concat();
    let second = [&sectors(&[1])[..], &whole[512..]].concat();
    let wanted = [sectors(&[1, 2]), first, second, whole];
    assert_eq!(outcomes(&disk), wanted.into_iter().map(Some).collect());
}

#[test]
fn length_and_bytes_are_lost_independently() {
    let (disk, file) = disk_with(1);
    write(&file, 512, &sectors(&[5])).unwrap();
    let wanted = [sectors(&[1]), sectors(&[1, 0]), sectors(&[1, 5])];
    assert_eq!(outcomes(&disk), wanted.into_iter().map(Some).collect());
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[1, 5]))]));
}

/// A surviving shorter length hides the rest of a sector, and growing later shows zeros there.
#[test]
fn truncated_bytes_never_reappear() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    disk.sync_dir().unwrap();
    write(&file, 0, &[1; 100]).unwrap();
    write(&file, 100, &[2; 100]).unwrap();
    let mut seen = outcomes(&disk);
    let legal = [
        vec![],
        vec![0; 100],
        vec![1; 100],
        vec![0; 200],
        [[1; 100], [0; 100]].concat(),
        [[1; 100], [2; 100]].concat(),
    ];
    for contents in legal {
        assert!(seen.remove(&Some(contents.clone())), "{contents:?} is legal");
    }
    assert!(seen.is_empty(), "and nothing else: {seen:?}");
    let image = disk.state().crash(|versions| usize::from(versions == 3));
    assert_eq!(image.file("a").unwrap().len(), 100, "length 100, newest or middle bytes");
    let disk = SimDisk::new(image);
    let file = disk.open("a", true).unwrap();
    write(&file, 300, &[3]).unwrap();
    assert_eq!(read(&file, 100, 200), [0; 200]);
}

#[test]
fn file_without_a_synced_name_is_lost_with_its_synced_bytes() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    write(&file, 0, b"x").unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([None, Some(b"x".to_vec())]));
    disk.sync_dir().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(b"x".to_vec())]));
}

#[test]
fn synced_directory_does_not_make_bytes_durable() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    write(&file, 0, b"x").unwrap();
    disk.sync_dir().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(vec![]), Some(vec![0]), Some(b"x".to_vec())]));
}

#[test]
fn renames_and_removals_are_each_kept_or_lost() {
    let mut image = Image::default();
    image.insert("a", b"1");
    image.insert("b", b"2");
    let disk = SimDisk::new(image);
    disk.rename("a", "c").unwrap();
    disk.remove("b").unwrap();
    let state = disk.state();
    let seen: BTreeSet<Vec<String>> =
        state.crashes(100, 0, 0).map(|i| i.names().map(str::to_owned).collect()).collect();
    let wanted: [&[&str]; 4] = [&["a", "b"], &["b", "c"], &["a"], &["c"]];
    assert_eq!(seen, wanted.iter().map(|w| w.iter().map(|s| (*s).to_owned()).collect()).collect());
    disk.sync_dir().unwrap();
    assert_eq!(disk.state().dirty_units(), 0);
    assert_eq!(disk.crash(|_| 0).list().unwrap(), ["c"]);
}

/// After a rename over another file, one of the two exists, never neither.
#[test]
fn replacing_a_file_is_atomic() {
    let mut image = Image::default();
    image.insert("a", b"old");
    image.insert("new", b"new");
    let disk = SimDisk::new(image);
    disk.rename("new", "a").unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(b"old".to_vec()), Some(b"new".to_vec())]));
}

#[test]
fn removed_file_works_through_its_handle() {
    let (disk, file) = disk_with(1);
    disk.remove("a").unwrap();
    write(&file, 0, b"still").unwrap();
    assert_eq!(read(&file, 0, 5), b"still");
    assert_eq!(disk.space_used(), 512);
    drop(file);
    assert_eq!(disk.space_used(), 0);
}

/// If a sync also made later writes durable, it would hide every acknowledgement that is one sync too early.
#[test]
fn sync_covers_only_what_was_written_before_it_began() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    disk.sync_dir().unwrap();
    let kept = || disk.state().crash(|_| 0).file("a").unwrap();
    file.write_at(0, &[IoSlice::new(b"one")]).unwrap();
    disk.begin_sync("a");
    file.write_at(0, &[IoSlice::new(b"two")]).unwrap();
    file.write_at(SECTOR_BYTES as u64, &[IoSlice::new(b"more")]).unwrap();
    file.sync().unwrap();
    assert_eq!(kept(), b"one");
    assert_eq!(disk.state().dirty_units(), 3, "a sector written over, a new one, and the length");
    file.sync().unwrap();
    assert_eq!((&kept()[..3], kept().len()), (&b"two"[..], SECTOR_BYTES + 4));

    // A failed sync forgets the bytes it covered, and no later ones.
    disk.plan(Fault {
        call: Some(Call::Sync),
        nth: 1,
        lasting: false,
        trouble: Trouble::Eio(Landed::Nothing),
    });
    file.write_at(0, &[IoSlice::new(b"abc")]).unwrap();
    disk.begin_sync("a");
    file.write_at(SECTOR_BYTES as u64, &[IoSlice::new(b"LATE")]).unwrap();
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!((&kept()[..3], &kept()[SECTOR_BYTES..]), (&b"two"[..], &b"LATE"[..]));

    // A killed process no longer waits for a sync: the next process's sync covers everything.
    file.write_at(0, &[IoSlice::new(b"xyz")]).unwrap();
    disk.begin_sync("a");
    let next = disk.kill();
    let file = next.open("a", true).unwrap();
    file.write_at(3, &[IoSlice::new(b"!")]).unwrap();
    file.sync().unwrap();
    assert_eq!(&next.state().crash(|_| 0).file("a").unwrap()[..4], b"xyz!");
}

/// After a failed sync Linux still shows the new bytes, marks them clean, and returns `Ok` from the next sync.
#[test]
fn failed_sync_is_followed_by_a_false_ok() {
    let (disk, file) = disk_with(2);
    write(&file, 0, &sectors(&[8, 9])).unwrap();
    disk.plan(Fault {
        call: Some(Call::Sync),
        nth: 1,
        lasting: false,
        trouble: Trouble::Eio(Landed::Nothing),
    });
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
    assert_eq!(read(&file, 0, 1024), sectors(&[8, 9]));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[1, 2]))]), "the Ok was false");
    // Written again, even with the same bytes, they are dirty, and the next sync makes them durable.
    write(&file, 0, &sectors(&[8])).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[8, 2]))]));
}

#[test]
fn failed_sync_loses_the_length_too() {
    let (disk, file) = disk_with(1);
    write(&file, 512, &sectors(&[5, 6])).unwrap();
    disk.plan(Fault {
        call: Some(Call::Sync),
        nth: 1,
        lasting: false,
        trouble: Trouble::Enospc(Landed::Nothing),
    });
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(28));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[1]))]));
    assert_eq!(file.len().unwrap(), 3 * 512);
    write(&file, 1024, &sectors(&[6])).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(sectors(&[1, 0, 6]))]));
}

#[test]
fn failed_sync_can_take_effect_in_part() {
    let all = 12;
    let mut persisted = BTreeSet::new();
    for seed in 0..20 {
        let (disk, file) = disk_with(all);
        write(&file, 0, &sectors(&[99; 12])).unwrap();
        disk.plan(Fault { call: None, nth: 1, lasting: false, trouble: Trouble::Eio(Landed::Some(seed)) });
        file.sync().unwrap_err();
        let now = disk.crash(|_| 0).visible().file("a").unwrap();
        persisted.insert(now.chunks(512).filter(|s| s[0] == 99).count());
    }
    assert!(persisted.len() > 3 && !persisted.contains(&0), "{persisted:?}");
}

#[test]
fn names_stay_pending_when_their_sync_fails() {
    let disk = SimDisk::default();
    disk.create("a").unwrap();
    disk.plan(Fault {
        call: Some(Call::SyncDir),
        nth: 1,
        lasting: false,
        trouble: Trouble::Eio(Landed::Nothing),
    });
    disk.sync_dir().unwrap_err();
    assert_eq!(disk.state().crashes(10, 0, 0).map(|i| i.names().count()).collect::<Vec<_>>(), [0, 1]);
    disk.sync_dir().unwrap();
    assert_eq!(disk.crash(|_| 0).list().unwrap(), ["a"]);
}

/// After a kill the page cache remains: writes are visible, and lost if the power fails before a sync.
#[test]
fn killed_process_leaves_its_writes_visible_and_not_durable() {
    let (disk, file) = disk_with(1);
    write(&file, 0, &sectors(&[9])).unwrap();
    disk.create("b").unwrap();
    let killed = disk.state();
    let disk = SimDisk::resume(killed.clone());
    assert_eq!(disk.visible().file("a"), Some(sectors(&[9])));
    assert_eq!(disk.crash(|_| 0).visible().names().collect::<Vec<_>>(), ["a"]);
    let disk = SimDisk::resume(killed);
    assert!(disk.lock("a").is_ok(), "its locks are released");
    let file = disk.open("a", true).unwrap();
    file.sync().unwrap();
    disk.sync_dir().unwrap();
    let after = disk.crash(|_| 0).visible();
    assert_eq!((after.file("a"), after.file("b")), (Some(sectors(&[9])), Some(vec![])));
}

#[test]
fn failed_write_leaves_nothing_a_part_or_all() {
    let cases = [(Landed::Nothing, 0..=0), (Landed::Some(3), 1..=599), (Landed::All, 600..=600)];
    for (landed, expected) in cases {
        let n = bytes_of_failed_write(landed, 0, 600);
        assert!(expected.contains(&n), "{landed:?}: {n}");
    }
}

#[test]
fn failed_write_within_a_sector_leaves_nothing_or_all() {
    for seed in 0..32 {
        assert_eq!(bytes_of_failed_write(Landed::Some(seed), 0, SECTOR_BYTES), 0);
        assert_eq!(bytes_of_failed_write(Landed::Some(seed), SECTOR_BYTES as u64 - 10, 10), 0);
    }
    assert!((0..32).any(|seed| bytes_of_failed_write(Landed::Some(seed), SECTOR_BYTES as u64 - 9, 10) > 0));
}

/// How many bytes of a write that failed can be read.
fn bytes_of_failed_write(landed: Landed, offset: u64, bytes: usize) -> usize {
    let (disk, file) = disk_with(2);
    let fault = Fault { call: Some(Call::Write), nth: 1, lasting: false, trouble: Trouble::Eio(landed) };
    disk.plan(fault);
    write(&file, offset, &vec![9; bytes]).unwrap_err();
    assert_eq!(disk.faults_fired(), 1);
    read(&file, offset, bytes).iter().filter(|b| **b == 9).count()
}

#[test]
fn every_kind_of_call_can_fail_and_is_counted() {
    for call in Call::ALL {
        let (disk, file) = disk_with(1);
        disk.plan(Fault {
            call: Some(call),
            nth: 2,
            lasting: true,
            trouble: Trouble::Enospc(Landed::Nothing),
        });
        let mut buf = [0; 4];
        let mut made = 0;
        for round in 0..3 {
            let outcome = match call {
                Call::List => disk.list().err(),
                Call::Create => disk.create(&format!("n{round}")).err(),
                Call::Open => disk.open("a", false).err(),
                Call::Rename => disk.rename("a", "a").err(),
                Call::Remove => {
                    disk.create(&format!("n{round}")).and_then(|_| disk.remove(&format!("n{round}"))).err()
                }
                Call::SyncDir => disk.sync_dir().err(),
                Call::Lock => disk.lock(&format!("l{round}")).err(),
                Call::Len => file.len().err(),
                Call::Read => file.read_at(0, &mut buf).err(),
                Call::Write => write(&file, 0, b"x").err(),
                Call::Sync => file.sync().err(),
            };
            made += u64::from(outcome.is_none());
        }
        // `open` above makes one call of that kind before the plan is made, and plans count from there.
        assert_eq!((made, disk.faults_fired()), (1, 2), "{call:?}");
        disk.heal();
        assert!(disk.open("a", true).is_ok() && disk.list().is_ok());
        assert!(disk.calls(Some(call)) >= 3 && disk.calls(None) > 3);
    }
}

#[test]
fn lying_disk_returns_ok_and_does_nothing() {
    let (disk, file) = disk_with(1);
    disk.plan(Fault { call: Some(Call::Sync), nth: 1, lasting: true, trouble: Trouble::Lie });
    write(&file, 0, &sectors(&[9])).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk).len(), 2);
    disk.heal();
    disk.plan(Fault { call: Some(Call::Write), nth: 1, lasting: false, trouble: Trouble::Lie });
    write(&file, 0, &sectors(&[7])).unwrap();
    assert_eq!(read(&file, 0, 512), sectors(&[9]));
}

/// A write behind the end of a file leaves a hole, which takes space once it is written: then a full disk refuses that.
#[test]
fn a_hole_takes_space_once_it_is_written() {
    let disk = SimDisk::default();
    let file = disk.create("a").unwrap();
    file.write_at(8191, &[IoSlice::new(&[0])]).unwrap();
    assert_eq!((file.len().unwrap(), disk.space_used(), file.allocated().unwrap()), (8192, 512, 512));
    disk.limit_space(Some(512 + 1024));
    let error = file.write_at(512, &[IoSlice::new(&[7; 2048])]).unwrap_err();
    assert_eq!((error.kind(), disk.space_used()), (std::io::ErrorKind::StorageFull, 512 + 1024));
    file.write_at(512, &[IoSlice::new(&[8; 1024])]).unwrap();
    assert!(file.punch_hole(512..1024).unwrap());
    assert_eq!(disk.space_used(), 1024);
    // The limit is the disk's: it is there after a crash, too.
    assert!(
        disk.crash(|versions| versions - 1)
            .create("b")
            .unwrap()
            .write_at(0, &[IoSlice::new(&[1; 9])])
            .is_err()
    );
}

#[test]
fn full_disk_writes_what_fits_and_allows_overwrites() {
    let (disk, file) = disk_with(2);
    disk.limit_space(Some(1500));
    assert_eq!(write(&file, 1024, &[7; 1000]).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(file.len().unwrap(), 1500);
    write(&file, 0, &[1; 1500]).unwrap();
    let other = disk.create("b").unwrap();
    write(&other, 0, b"x").unwrap_err();
    disk.remove("a").unwrap();
    write(&other, 0, b"x").unwrap_err();
    drop(file);
    write(&other, 0, b"x").unwrap();
}

#[test]
fn lock_is_exclusive_until_dropped_or_a_crash() {
    let disk = SimDisk::default();
    let held = disk.lock("l").unwrap();
    assert_eq!(disk.lock("l").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let other = disk.lock("m").unwrap();
    drop(held);
    let again = disk.lock("l").unwrap();
    let after = disk.crash(|_| 1);
    let new = after.lock("l").unwrap();
    drop((again, other));
    assert_eq!(after.lock("l").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(new);
}

#[test]
fn disk_that_is_off_does_not_change() {
    let (disk, file) = disk_with(1);
    let before = disk.visible();
    let after = disk.crash(|_| 0);
    write(&file, 0, b"late").unwrap_err();
    file.sync().unwrap_err();
    disk.create("late").unwrap_err();
    assert_eq!(disk.visible(), before);
    assert_eq!(after.visible(), before);
}

/// Replaying the record of a disk leads through exactly the same states, faults included.
#[test]
fn history_replays_to_the_same_disk() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let (disk, _) = disk_with(4);
        let mut wanted = vec![disk.state()];
        let mut files = vec![disk.open("a", true).unwrap()];
        disk.plan(Fault { call: None, nth: 20, lasting: false, trouble: Trouble::Eio(Landed::Some(seed)) });
        for n in 0..60 {
            let before = disk.history_len();
            let file = &files[rng.below(files.len())];
            match rng.below(8) {
                0..3 => drop(write(file, rng.below(3000) as u64, &vec![n; rng.below(1500)])),
                3 => drop(file.sync()),
                4 => files.extend(disk.create(&format!("f{}", rng.below(4)))),
                5 => drop(disk.rename(&format!("f{}", rng.below(4)), &format!("f{}", rng.below(4)))),
                6 => drop(disk.remove(&format!("f{}", rng.below(4)))),
                _ => drop(disk.sync_dir()),
            }
            if disk.history_len() > before {
                wanted.push(disk.state());
            }
        }
        let states: Vec<_> = disk.history().states().collect();
        assert_eq!(states.len(), wanted.len());
        for (n, (a, b)) in states.iter().zip(&wanted).enumerate() {
            assert_eq!(a.visible(), b.visible(), "seed {seed}, state {n}");
            assert_eq!(a.dirty_units(), b.dirty_units(), "seed {seed}, state {n}");
            let choice =
                |rng: &mut Rng| (a.crash(|v| rng.clone().below(v)), b.crash(|v| rng.clone().below(v)));
            let (a, b) = choice(&mut rng);
            assert_eq!((a.fingerprint(), &a), (b.fingerprint(), &b), "seed {seed}, state {n}");
        }
        // Keeping everything gives what reads saw, except for what the failed call forgot.
        if disk.faults_fired() == 0 {
            assert_eq!(disk.state().crash(|v| v - 1), disk.visible());
        }
    }
}

#[test]
fn crashes_returns_all_subsets_once_and_samples_with_corners() {
    let (disk, file) = disk_with(12);
    write(&file, 0, &sectors(&[99; 12])).unwrap();
    let state = disk.state();
    assert_eq!(state.dirty_units(), 12);
    let all: BTreeSet<u64> = state.crashes(4096, 0, 0).map(|i| i.fingerprint()).collect();
    assert_eq!(all.len(), 4096);
    let sampled = state.crashes(4095, 200, 7);
    assert!(!sampled.is_exhaustive());
    let images: Vec<Image> = sampled.collect();
    assert_eq!(images.len(), 200);
    let changed = |i: &Image| i.file("a").unwrap().chunks(512).filter(|s| s[0] == 99).count();
    let counts: Vec<usize> = images.iter().map(changed).collect();
    assert_eq!(counts[..14], [0, 12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(counts[14..26], [11; 12]);
    assert!(images.iter().map(Image::fingerprint).collect::<BTreeSet<_>>().len() > 100);
    let again: Vec<u64> = state.crashes(4095, 200, 7).map(|i| i.fingerprint()).collect();
    assert_eq!(again, images.iter().map(Image::fingerprint).collect::<Vec<_>>());
}

#[test]
fn damage_changes_only_its_location() {
    let mut image = Image::default();
    image.insert("a", &sectors(&[1, 2, 3]));
    let hit = |damage: &Damage| {
        let mut image = image.clone();
        assert!(image.damage("a", damage));
        image.file("a").unwrap()
    };
    let mut flipped = sectors(&[1, 2, 3]);
    flipped[600] ^= 1 << 5;
    assert_eq!(hit(&Damage::FlipBit { bit: 600 * 8 + 5 }), flipped);
    assert_eq!(hit(&Damage::SwapSectors { a: 0, b: 2 }), sectors(&[3, 2, 1]));
    assert_eq!(hit(&Damage::MisdirectSector { from: 0, to: 1 }), sectors(&[1, 1, 3]));
    assert_eq!(hit(&Damage::ZeroSector { sector: 1 }), sectors(&[1, 0, 3]));
    assert_eq!(hit(&Damage::Shorten { len: 700 }), sectors(&[1, 2, 3])[..700]);
    assert_eq!(hit(&Damage::Overwrite { offset: 512, bytes: vec![9; 512] }), sectors(&[1, 9, 3]));
    assert_eq!(image.file("a").unwrap(), sectors(&[1, 2, 3]), "copies are independent");
    assert!(!image.clone().damage("a", &Damage::FlipBit { bit: 3 * 512 * 8 }));
    assert!(!image.clone().damage("b", &Damage::ZeroSector { sector: 0 }));
    let disk = SimDisk::new(image);
    assert!(disk.damage("a", &Damage::ZeroSector { sector: 0 }));
    assert_eq!(disk.visible().file("a"), Some(sectors(&[0, 2, 3])));
    assert_eq!(disk.crash(|_| 1).visible().file("a"), Some(sectors(&[0, 2, 3])));
}

#[test]
fn power_is_cut_after_the_given_calls() {
    let (disk, file) = disk_with(1);
    disk.cut_power_after(2);
    write(&file, 0, b"x").unwrap();
    assert!(!disk.is_off());
    file.sync().unwrap();
    write(&file, 0, b"y").unwrap_err();
    assert!(disk.is_off());
    assert_eq!(read(&file, 0, 1), b"x");
    assert_eq!(read(&disk.crash(|_| 1).open("a", false).unwrap(), 0, 1), b"x");
}

#[test]
fn random_bytes_follow_the_seed_across_a_kill() {
    let names = |seed| {
        let disk = SimDisk::default();
        disk.set_chance(seed);
        disk.forget_history();
        let mut names = [0; 20];
        disk.random(&mut names[..10]).unwrap();
        disk.create("a").unwrap();
        let disk = disk.kill();
        assert!(disk.open("a", true).is_ok());
        assert_eq!(disk.history_len(), 0);
        disk.random(&mut names[10..]).unwrap();
        names
    };
    assert_eq!(names(1), names(1));
    assert_ne!(names(1), names(2));
    assert_ne!(names(1)[..8], names(1)[10..18]);
}

#[test]
fn images_can_be_assembled_by_hand() {
    let mut image = Image::default();
    image.insert("a", b"x");
    assert!(image.copy("a", "b") && !image.copy("c", "d"));
    assert_ne!(image.fingerprint(), Image::default().fingerprint());
    assert!(image.remove("a") && !image.remove("a"));
    assert_eq!(image.names().collect::<Vec<_>>(), ["b"]);
    assert_eq!(SimDisk::new(image.clone()).visible(), image);
}
