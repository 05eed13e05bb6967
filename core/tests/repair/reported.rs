//! Damage that was reported or met is repaired at once, whatever the scrub does. Damage that no replica can repair is
//! reported as such.

use super::trio::{DATA, NO_SCRUB, NODES, Trio, blocks, flip, nth, options, record, wait};
use chiplog::cluster::Bootstrap;
use chiplog::disk::sim::SimDisk;
use chiplog::inspect::{Event, Inspector, Severity};
use chiplog::transport::MemoryNetwork;
use chiplog::{Error, ErrorKind, Index, Log, NodeId, Options, ReadMode, Start};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// So slow that the scrub makes no progress.
const CRAWLING: u64 = 1;

/// The first error of a reader that reads the whole log, and the record that it was reading.
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

/// Reports the faults that a check of the files finds, as `verify` does on a server.
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

/// A scrub that was at another segment delayed the repair of damage that readers had met until it had finished that
/// segment: with 500 GiB and the default pace for hours, with segments of 1 GiB for four minutes each.
#[test]
fn damage_met_by_a_reader_does_not_wait_for_the_scrub() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    let victim = trio.follower();
    trio.stop(victim);
    trio.start(victim, CRAWLING);
    trio.converge();
    for n in [2, 0] {
        let before = trio.log(victim).metrics();
        trio.hurt(victim, n, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
        assert_eq!(trio.read(victim), Err(ErrorKind::Corrupt));
        wait("the repair", || trio.log(victim).metrics().repaired > before.repaired);
        assert_eq!(trio.read(victim), Ok(()));
        let after = trio.log(victim).metrics();
        assert_eq!((after.damaged, after.repaired), (before.damaged + 1, before.repaired + 1));
    }
    wait("sound files", || trio.is_sound(victim));
}

/// Only the operator saw what `verify` found on a server: the replica learnt of it from its scrub.
#[test]
fn reported_damage_is_repaired_at_once() {
    let mut trio = Trio::new();
    trio.append(120, 4000);
    for victim in [trio.follower(), trio.leader()] {
        let name = trio.hurt(victim, 1, |blocks| vec![flip(nth(blocks, DATA, 2).0 + 150)]);
        trio.hurt(victim, 1, |blocks| vec![flip(nth(blocks, DATA, 5).0 + 150)]);
        let log = trio.log(victim);
        assert!(verify(log, trio.disk(victim)) >= 2);
        wait("the repair", || log.metrics().repaired >= 2);
        wait("sound files", || trio.is_sound(victim));
        // By the record, and for a sound one.
        let first = log.read(Index(1)).unwrap();
        trio.hurt(victim, 0, |blocks| vec![flip(nth(blocks, DATA, 0).0 + 3)]);
        log.report_damage(Index(1)).unwrap();
        wait("the repair", || log.metrics().repaired == 3);
        log.report_damage(Index(1)).unwrap();
        log.report_damage_at(&name, 5000, "nothing").unwrap();
        log.report_damage_at("identity", 0, "no segment").unwrap();
        assert_eq!(log.report_damage(Index(0)).unwrap_err().kind(), ErrorKind::Discarded);
        assert_eq!(log.report_damage(trio.last().next().next()).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert_eq!((log.read(Index(1)).unwrap(), trio.read(victim)), (first, Ok(())));
        let metrics = trio.log(victim).metrics();
        assert_eq!((metrics.damaged, metrics.repaired), (3, 3));
    }
}

/// A replica that found no other one to ask retried with the next pass of its scrub, which takes hours; without a
/// scrub never.
#[test]
fn failed_repair_is_retried() {
    let mut trio = Trio::new();
    trio.append(60, 4000);
    let victim = trio.follower();
    trio.network.disconnect(NodeId(victim));
    trio.hurt(victim, 0, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
    assert!(!met(trio.log(victim)).unwrap().1.is_lasting());
    wait("the damage is found", || trio.log(victim).metrics().damaged == 1);
    // Long enough that it gives up; otherwise it is still asking.
    std::thread::sleep(Duration::from_secs(5));
    assert!(!met(trio.log(victim)).unwrap().1.is_lasting(), "no replica has reported it as lost");
    trio.network.connect(NodeId(victim));
    wait("the repair", || trio.log(victim).metrics().repaired == 1);
    assert_eq!(trio.read(victim), Ok(()));
    assert_eq!(trio.log(victim).metrics().damaged, 1, "one place counts once");
}

/// Readers got the error of damage under repair again and again, and a client retried for 30 s.
#[test]
fn entry_damaged_everywhere_is_reported_as_lost() {
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
        wait("the others' answers", || met(trio.log(node)).unwrap().1.is_lasting());
        let error = trio.log(node).read(record).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.is_lasting(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("record {record} ")), "{text}");
        assert!(text.contains("nobody can repair it") && text.contains("all other voters"), "{text}");
        let metrics = trio.log(node).metrics();
        assert_eq!((metrics.damaged, metrics.repaired), (1, 0), "node {node}");
        // Other places are repaired.
        trio.hurt(node, 1, |blocks| vec![flip(nth(blocks, DATA, 1).0 + 150)]);
        let log = trio.log(node);
        let repairable = |n: &u64| log.read(Index(*n)).is_err_and(|error| !error.is_lasting());
        let other = (1..=trio.last().get()).find(repairable).unwrap();
        wait("the repair", || log.metrics().repaired == 1);
        assert!(log.read(Index(other)).is_ok());
    }
}

/// A log without other replicas reports at once that the damage cannot be repaired, in a cluster or not.
#[test]
fn log_of_one_replica_reports_that_damage_cannot_be_repaired() {
    for is_cluster in [false, true] {
        let (disk, network) = (SimDisk::default(), MemoryNetwork::new());
        let all = options(1, Bootstrap::Init, &network, if is_cluster { 64 << 20 } else { NO_SCRUB });
        let alone = Options::with_segment_bytes(64 << 10).read_mode(ReadMode::Read);
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
        // Its scrub may not have read the place; if it has, it counts as the same one.
        let metrics = log.metrics();
        assert_eq!((metrics.damaged, metrics.repaired), (1, 0), "in a cluster: {is_cluster}");
        log.append(b"goes on").unwrap();
    }
}

/// The others have lost an earlier entry, and could not read past it: they reported this one as damaged.
#[test]
fn entry_after_damage_of_others_is_not_reported_as_lost() {
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

/// Each report ended it, and began another file.
#[test]
fn reports_of_the_growing_segment_do_not_end_it() {
    let mut trio = Trio::new();
    trio.append(10, 100);
    let leader = trio.leader();
    let before = trio.log(leader).metrics().rolls;
    for _ in 0..20 {
        trio.append(1, 100);
        trio.log(leader).report_damage(trio.last()).unwrap();
    }
    assert!(trio.log(leader).metrics().rolls <= before + 1);
}
