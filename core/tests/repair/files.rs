//! Segment files that are missing or too short when a replica is opened.

use super::trio::{NO_SCRUB, NODES, SCRUB, SEGMENT_HEADER_BYTES, Trio, flip, wait};
use chiplog::cluster::{Bootstrap, Role};
use chiplog::disk::sim::{Call, Damage, Fault, Image, Landed, SimDisk, Trouble};
use chiplog::{ErrorKind, NodeId};

/// A voter with a missing or truncated segment file ended instead of fetching it.
#[test]
fn missing_and_shortened_segments_are_fetched_from_others() {
    let (mut trio, victim) = Trio::with_one_stopped(150, 4000);
    let names = trio.segments(victim);
    assert!(names.len() >= 5, "{names:?}");
    let image = trio.disk(victim).visible();
    type Harm<'a> = &'a dyn Fn(&mut Image);
    let cases: [(&str, Harm<'_>); 10] = [
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
        ("one is gone, and the next one does not tell where it begins", &|image| {
            assert!(image.remove(&names[1]));
            assert!(image.damage(&names[2], &flip(SEGMENT_HEADER_BYTES + 70)));
            assert!(image.damage(&names[2], &Damage::Shorten { len: 30_011 }));
        }),
    ];
    for (what, harm) in cases {
        let mut harmed = image.clone();
        harm(&mut harmed);
        trio.disks[victim as usize - 1] = SimDisk::new(harmed);
        // There is no replica to ask: it waits, and reports that.
        trio.network.disconnect(NodeId(victim));
        trio.start(victim, NO_SCRUB);
        assert_eq!(trio.log(victim).role(), Role::Repairing, "{what}");
        trio.stop(victim);
        trio.network.connect(NodeId(victim));
        trio.open_to_repair(victim, NO_SCRUB).unwrap();
        trio.is_whole(victim, what);
        assert!(trio.log(victim).metrics().repaired >= 1, "{what}");
        trio.stop(victim);
    }
    // Without its footer a segment still has all of its blocks: no replica has to be asked.
    let mut harmed = image.clone();
    let len = image.file(&names[2]).unwrap().len() as u64 - 1;
    assert!(harmed.damage(&names[2], &Damage::Shorten { len }));
    trio.disks[victim as usize - 1] = SimDisk::new(harmed);
    trio.start(victim, SCRUB);
    assert_ne!(trio.log(victim).role(), Role::Repairing);
    trio.append(5, 1000);
    trio.let_lead(victim);
    trio.append(20, 4000);
    (1..=NODES).for_each(|node| assert_eq!(trio.read(node), Ok(())));
}

/// The file after a missing one was removed as soon as its opening was damaged, with all its sound blocks, before any
/// replica was known to have them.
#[test]
fn file_with_sound_blocks_stays_until_the_log_opens() {
    for has_footer in [true, false] {
        let (mut trio, victim) = Trio::with_one_stopped(150, 4000);
        let names = trio.segments(victim);
        let mut image = trio.disk(victim).visible();
        assert!(image.remove(&names[1]));
        let name = &names[2];
        assert!(image.damage(name, &flip(SEGMENT_HEADER_BYTES + 70)));
        let file = image.file(name).unwrap();
        if !has_footer {
            assert!(image.damage(name, &Damage::Shorten { len: 30_011 }));
        }
        let sound = image.file(name).unwrap().len();
        trio.disks[victim as usize - 1] = SimDisk::new(image);
        trio.network.disconnect(NodeId(victim));
        trio.start(victim, SCRUB);
        assert_eq!(trio.log(victim).role(), Role::Repairing);
        let kept = if has_footer { name.clone() } else { name.replace(".seg", ".aside") };
        let is_kept = |trio: &Trio| {
            trio.disk(victim).visible().file(&kept).is_some_and(|kept| kept[..sound] == file[..sound])
        };
        assert!(is_kept(&trio));
        // Again, as after a crash.
        trio.stop(victim);
        trio.start(victim, SCRUB);
        assert!(is_kept(&trio));
        trio.network.connect(NodeId(victim));
        wait("the repair", || trio.log(victim).role() == Role::Follower);
        wait("sound files", || trio.is_sound(victim));
        let image = trio.disk(victim).visible();
        assert!(!image.names().any(|n| n.ends_with(".aside")));
        let behind = SEGMENT_HEADER_BYTES as usize + 4096;
        let is_same = image.file(name).unwrap()[behind..] == file[behind..];
        assert_eq!(is_same, has_footer);
        trio.append(5, 1000);
        assert_eq!(trio.read(victim), Ok(()));
    }
}

/// A file that could not be opened once, because there were no descriptors, counted as missing. A replica that could
/// repair itself was to be removed, and the highest term on its disk was not read.
#[test]
fn call_that_fails_once_removes_no_replica() {
    let (mut trio, victim) = Trio::with_one_stopped(100, 4000);
    let names = trio.segments(victim);
    let image = trio.disk(victim).visible();
    trio.network.disconnect(NodeId(victim));
    let (last, second, header) = ((names.len() - 1, 5000), (1, SEGMENT_HEADER_BYTES + 70), (2, 41));
    let gone = vec![names.len() - 2];
    let reads = vec![Call::Open, Call::Read, Call::Len, Call::List];
    for (gone, places, is_repairing, calls) in [
        (vec![], vec![last, second], true, reads.clone()),
        // The opening of the last segment shows where the missing one ended: an error there counted as damage.
        (gone, vec![], true, reads),
        // It needs no other replica.
        (
            vec![],
            vec![header],
            false,
            vec![Call::Open, Call::Read, Call::Len, Call::List, Call::Write, Call::Sync],
        ),
    ] {
        let mut harmed = image.clone();
        assert!(gone.iter().all(|n| harmed.remove(&names[*n])));
        for (n, offset) in &places {
            assert!(harmed.damage(&names[*n], &flip(*offset)));
        }
        for call in calls {
            let mut failed = 0;
            for nth in 1.. {
                let disk = SimDisk::new(harmed.clone());
                let trouble = Trouble::Eio(Landed::Nothing);
                disk.plan(Fault { call: Some(call), nth, lasting: false, trouble });
                trio.disks[victim as usize - 1] = disk.clone();
                let opened = trio.open(victim, Bootstrap::Existing, NO_SCRUB);
                let fired = disk.faults_fired() > 0;
                disk.heal();
                if let Err(error) = opened {
                    assert_eq!(error.kind(), ErrorKind::Io, "{call:?} {nth}: {error}");
                    failed += 1;
                    trio.start(victim, NO_SCRUB);
                }
                let role = trio.log(victim).role();
                assert_eq!(role == Role::Repairing, is_repairing, "{call:?} {nth}: {role:?}");
                drop(trio.logs[victim as usize - 1].take());
                if !fired {
                    break;
                }
            }
            assert!(failed > 0, "no {call:?} of {gone:?}, {places:?} failed");
        }
    }
}

/// If the last segment is missing, nothing shows which entries a replica had acknowledged, or how it had voted.
#[test]
fn lost_last_segment_is_refused() {
    let (mut trio, victim) = Trio::with_one_stopped(100, 4000);
    let names = trio.segments(victim);
    let image = trio.disk(victim).visible();
    let [.., before, last] = &names[..] else { panic!("{names:?}") };
    type Harm<'a> = &'a dyn Fn(&mut Image);
    let cases: [(&str, Harm<'_>); 4] = [
        (last, &|image| assert!(image.remove(last))),
        (last, &|image| assert!(image.damage(last, &Damage::Shorten { len: 4096 + 700 }))),
        (last, &|image| assert!(image.damage(last, &Damage::Shorten { len: 0 }))),
        // Nor does anything show where a segment ended if the next one, the last, does not show where it began.
        (before, &|image| {
            assert!(image.remove(before));
            assert!(image.damage(last, &flip(SEGMENT_HEADER_BYTES + 70)));
        }),
    ];
    for (lost, harm) in cases {
        let mut harmed = image.clone();
        harm(&mut harmed);
        trio.disks[victim as usize - 1] = SimDisk::new(harmed);
        let error = trio.open(victim, Bootstrap::Existing, NO_SCRUB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = error.to_string();
        assert!(error.contains(lost) && error.contains("remove this node"), "{error}");
        assert_eq!(error.contains("opening of the segment after it"), lost == before, "{error}");
    }
}
