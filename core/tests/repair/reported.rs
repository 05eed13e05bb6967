//! Damage that was reported or met is repaired at once, whatever the scrub does; and what nobody can repair is told so.

use super::trio::{DATA, NO_SCRUB, NODES, Trio, blocks, flip, nth, options, record, wait};
use chiplog::disk::sim::SimDisk;
use chiplog::inspect::{Event, Inspector, Severity};
use chiplog::transport::MemoryNetwork;
use chiplog::{Bootstrap, Error, ErrorKind, Index, Log, NodeId, Options, ReadMode, Start};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// So slow that it never gets on.
const CRAWLING: u64 = 1;

/// The first error of a reader that goes through the log; which record it was to give.
fn met(log: &Log) -> Option<(Index, Error)> {
    let mut reader = log.reader(Start::First).unwrap();
    loop {
        match reader.next_record() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some((reader.position(), error)),
        }
    }
}

/// What a check of the files finds is reported, as `verify` does it on a server.
fn verify(log: &Log, disk: &SimDisk) -> u64 {
    let inspector = Inspector::open_on(Arc::new(SimDisk::new(disk.visible())));
    let report = inspector.walk(&mut |event| {
        if let Event::Fault(fault) = event
            && fault.severity == Severity::Corrupt
        {
            log.report_damage_at(&fault.file, fault.offset, &fault.what).unwrap();
        }
        ControlFlow::Continue(())
    });
    report.unwrap().corrupt
}

/// A scrub that was at another segment kept what readers had met waiting until it had been through that: with 500 GiB and
/// the default pace hours, with segments of 1 GiB four minutes each.
#[test]
fn what_is_met_does_not_wait_for_the_scrub() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    trio.start(victim, CRAWLING);
    trio.converge();
    for n in [2, 0] {
        let before = trio.log(victim).stats();
        trio.hurt(victim, n, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
        assert_eq!(trio.read(victim), Err(ErrorKind::Corrupt));
        wait("the repair", || trio.log(victim).stats().repaired > before.repaired);
        assert_eq!(trio.read(victim), Ok(()));
        let after = trio.log(victim).stats();
        assert_eq!((after.damaged, after.repaired), (before.damaged + 1, before.repaired + 1));
    }
    wait("sound files", || trio.is_sound(victim));
}

/// What `verify` found on a server was told to the operator alone: the replica learnt of it from its scrub.
#[test]
fn reported_damage_is_repaired_at_once() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    for victim in [trio.follower(), trio.leader()] {
        let name = trio.hurt(victim, 1, |blocks| vec![flip(nth(blocks, DATA, 2).0 + 150)]);
        trio.hurt(victim, 1, |blocks| vec![flip(nth(blocks, DATA, 5).0 + 150)]);
        let log = trio.log(victim);
        assert!(verify(log, trio.disk(victim)) >= 2);
        wait("the repair", || log.stats().repaired >= 2);
        wait("sound files", || trio.is_sound(victim));
        // By the record, and where there is nothing the matter.
        let first = log.read(Index(1)).unwrap();
        trio.hurt(victim, 0, |blocks| vec![flip(nth(blocks, DATA, 0).0 + 3)]);
        log.report_damage(Index(1)).unwrap();
        wait("the repair", || log.stats().repaired == 3);
        log.report_damage(Index(1)).unwrap();
        log.report_damage_at(&name, 5000, "nothing").unwrap();
        log.report_damage_at("identity", 0, "no segment").unwrap();
        assert_eq!(log.report_damage(Index(0)).unwrap_err().kind(), ErrorKind::Discarded);
        assert_eq!(log.report_damage(trio.last().next().next()).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert_eq!((log.read(Index(1)).unwrap(), trio.read(victim)), (first, Ok(())));
        let stats = trio.log(victim).stats();
        assert_eq!((stats.damaged, stats.repaired), (3, 3));
    }
}

/// A replica that found nobody to ask tried again with the next pass of its scrub, which takes hours; without a scrub never.
#[test]
fn what_could_not_be_repaired_is_tried_again() {
    let mut trio = Trio::new();
    trio.append(60, 4000);
    let victim = trio.follower();
    trio.network.disconnect(NodeId(victim));
    trio.hurt(victim, 0, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
    assert!(!met(trio.log(victim)).unwrap().1.is_lasting());
    wait("it is found", || trio.log(victim).stats().damaged == 1);
    // Long enough that it gives up; if it does not, it is asking still.
    std::thread::sleep(Duration::from_secs(5));
    assert!(!met(trio.log(victim)).unwrap().1.is_lasting(), "nobody has said that it is lost");
    trio.network.connect(NodeId(victim));
    wait("the repair", || trio.log(victim).stats().repaired == 1);
    assert_eq!(trio.read(victim), Ok(()));
    assert_eq!(trio.log(victim).stats().damaged, 1, "one place counts once");
}

/// Readers were told that the place is damaged, again and again, and a client tried for 30 s.
#[test]
fn what_all_have_damaged_is_said_to_be_lost() {
    let mut trio = Trio::new();
    trio.append(60, 4000);
    let name = trio.segments(1)[0].clone();
    let entry = trio.entry_of(1, &name, |blocks| nth(blocks, DATA, 2).0);
    let places: Vec<_> = (1..=NODES).map(|node| trio.find_entry(node, entry)).collect();
    (1..=NODES).for_each(|node| trio.stop(node));
    for (node, (name, at)) in (1..).zip(&places) {
        assert!(trio.disk(node).damage(name, &flip(at + 150)));
    }
    (1..=NODES).for_each(|node| trio.start(node, NO_SCRUB));
    trio.leader();
    let record = met(trio.log(1)).unwrap().0;
    for node in 1..=NODES {
        wait("the others' word", || met(trio.log(node)).unwrap().1.is_lasting());
        let error = trio.log(node).read(record).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.is_lasting(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("record {record} ")), "{text}");
        assert!(text.contains("nobody can repair it") && text.contains("all other voters"), "{text}");
        let stats = trio.log(node).stats();
        assert_eq!((stats.damaged, stats.repaired), (1, 0), "node {node}");
        // Other places are repaired.
        trio.hurt(node, 1, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
        let log = trio.log(node);
        let repairable = |n: &u64| log.read(Index(*n)).is_err_and(|error| !error.is_lasting());
        let other = (1..=trio.last().get()).find(repairable).unwrap();
        wait("the repair", || log.stats().repaired == 1);
        assert!(log.read(Index(other)).is_ok());
    }
}

/// A log without other replicas says at once that nobody can repair what is damaged, whether it is a cluster's or none.
#[test]
fn log_of_one_replica_says_that_nobody_can_repair_it() {
    for is_cluster in [false, true] {
        let (disk, network) = (SimDisk::default(), MemoryNetwork::new());
        let all = options(1, Bootstrap::Init, &network, if is_cluster { 64 << 20 } else { NO_SCRUB });
        let alone = Options { read_mode: ReadMode::Read, ..Options::with_segment_bytes(64 << 10) };
        let log = Log::open_on(Arc::new(disk.clone()), if is_cluster { all } else { alone }).unwrap();
        for n in 0..60 {
            log.append(&record(n, 4000)).unwrap();
        }
        let name = format!("{:020}.seg", 1);
        let at = nth(&blocks(&disk.visible().file(&name).unwrap()), DATA, 3).0;
        assert!(disk.damage(&name, &flip(at + 150)));
        let (record, error) = met(&log).unwrap();
        assert!(error.kind() == ErrorKind::Corrupt && error.is_lasting(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("record {record} ")) && text.contains("nobody can repair it"),
            "{text}"
        );
        assert!(error.location().is_some_and(|(path, _)| path.ends_with(&name)), "{text}");
        assert!(verify(&log, &disk) > 0);
        log.report_damage(record).unwrap();
        for _ in 0..3 {
            assert_eq!(met(&log).unwrap().0, record);
        }
        // Its scrub need not have come by; what it finds is the same place.
        let stats = log.stats();
        assert_eq!((stats.damaged, stats.repaired), (1, 0), "in a cluster: {is_cluster}");
        log.append(b"goes on").unwrap();
    }
}

/// What the others lost stands before it, and they could not reach it: they said that they have it damaged.
#[test]
fn entry_behind_damage_of_others_is_not_said_to_be_lost() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    let name = trio.segments(1)[0].clone();
    let [before, entry] = [2, 4].map(|n| trio.entry_of(1, &name, |blocks| nth(blocks, DATA, n).0));
    let mut places = vec![(1, trio.find_entry(1, entry), 150)];
    places.extend((2..=NODES).map(|node| (node, trio.find_entry(node, before), 3)));
    (1..=NODES).for_each(|node| trio.stop(node));
    for (node, (name, at), offset) in &places {
        assert!(trio.disk(*node).damage(name, &flip(at + offset)));
    }
    (1..=NODES).for_each(|node| trio.start(node, NO_SCRUB));
    trio.leader();
    wait("the repair", || {
        let error = met(trio.log(1));
        assert!(!error.as_ref().is_some_and(|(_, error)| error.is_lasting()), "{error:?}");
        error.is_none()
    });
}

/// Each of them ended it, and took another file.
#[test]
fn reports_of_the_growing_segment_do_not_end_it() {
    let mut trio = Trio::new();
    trio.append(10, 100);
    let leader = trio.leader();
    let before = trio.log(leader).stats().rolls;
    for _ in 0..20 {
        trio.append(1, 100);
        trio.log(leader).report_damage(trio.last()).unwrap();
    }
    assert!(trio.log(leader).stats().rolls <= before + 1);
}
