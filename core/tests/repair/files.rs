//! Segment files that are missing or too short when a replica is opened.

use super::trio::{NO_SCRUB, NODES, SCRUB, Trio};
use chiplog::disk::sim::{Damage, Image, SimDisk};
use chiplog::{Bootstrap, ErrorKind, NodeId, Role};

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
