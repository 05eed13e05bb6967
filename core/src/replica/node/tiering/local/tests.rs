//! Files that go, at a node without threads.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::super::super::Node;
use super::Going;
use crate::cluster::memory_transport::MemoryNetwork;
use crate::cluster::options::{Bootstrap, ClusterOptions};

use crate::disk::Disk as _;
use crate::disk::sim::SimDisk;
use crate::inspect::{Event, Inspector};
use crate::options::Options;
use crate::record::batch::Stamp;
use crate::replica::node::MARKER_DELAY;
use crate::replica::node::driver::DrivenNode as _;
use crate::replica::open::open;
use crate::replica::queue::proposals::{Command, ObjectCommand, WaitLimit, Work};
use crate::replica::raft::tests::{hold, node_on, sync};
use crate::store::format::object_row::StoredObject;
use crate::store::format::segment::{Footer, HardState};
use crate::store::objects::suspects;
use crate::store::segment::{Base, Segment, file_name};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogNumber, NodeId, SegmentId, Term, Timestamp};
use crate::vault::MemoryVault;
use std::ops::ControlFlow;
use std::sync::Arc;

fn options() -> Options {
    let cluster = ClusterOptions::new(NodeId(2), Bootstrap::Init, MemoryNetwork::new().transport());
    Options { cluster: Some(cluster), local_bytes: Some(1), ..Options::with_segment_bytes(64 << 10) }
}

fn step(node: &mut Node, now: Moment, work: Work) {
    node.step(now, work).unwrap();
    sync(node);
}

/// Makes records until the log has `count` segments.
fn fill_segments(node: &mut Node, count: usize) {
    while node.writer.store.segments.len() < count {
        drop(node.queue.push_record(LogNumber::OWN, &[7; 900], Stamp::default(), WaitLimit::None).unwrap());
        let work = node.queue.take(true);
        step(node, Moment::START, work);
    }
}

/// This object has these entries, and it is stored.
fn store_object(node: &mut Node, number: u64, begin: Base, end: Base) {
    let (timestamp, first) = (Timestamp(u64::MAX >> 1), Index(1));
    let object = StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 1, index_crc: 2, crc: 3 };
    for command in [
        ObjectCommand::Cut { number, begin, end, timestamp, first },
        ObjectCommand::Stored { number, object },
    ] {
        node.replica.command(Command::Object(command), None, Moment::START, &mut node.writer.plan).unwrap();
        step(node, Moment::START, Work::default());
    }
    assert_eq!(node.replica.sequencer.committed().objects.stored_upto(), Some(end.raft));
}

/// A node with segments 1 to 5, of which 1 to 4 are in an object, on a disk without room for more, and the record with which 5 begins.
fn almost_released() -> (SimDisk, Node, Index) {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, options());
    fill_segments(&mut node, 5);
    let end = node.writer.store.segments.newest().unwrap().base;
    let begin = node.writer.store.segments.snapshot().first().unwrap().base;
    store_object(&mut node, 0, begin, end);
    release_here(&disk, &mut node, end);
    (disk, node, end.next)
}

/// Files before `end` are to go, and the disk has no room for another one.
fn release_here(disk: &SimDisk, node: &mut Node, end: Base) {
    disk.limit_space(Some(0));
    while node.writer.store.allocator.take(crate::store::allocator::Purpose::Metadata).is_ok() {}
    assert!(node.writer.store.allocator.is_out_of_room());
    node.replica.sequencer.keep_from(end.next);
    let going = Going { first: end.next, decided_in: node.writer.plan.segment(), said_at: None };
    node.tiering.released.going = Some(going);
}

/// A block had said that files go, and an examination had found since that the object with their records is lost. A restart removed the
/// last copy.
#[test]
fn restart_keeps_the_files_of_a_suspect() {
    for suspected in [false, true] {
        let (disk, mut node, first) = almost_released();
        node.say_here(Moment::START).unwrap();
        sync(&mut node);
        assert_eq!(node.writer.synced().kept, first);
        if suspected {
            disk.limit_space(None);
            suspects::replace(&disk, node.tiering.log, &[0].into()).unwrap();
        }
        drop(node);
        let disk = SimDisk::new(disk.visible());
        let opened = open(Arc::new(disk.clone()), &options()).unwrap();
        assert_eq!(opened.segments.len(), if suspected { 5 } else { 1 });
        assert_eq!(opened.sequencer.committed().local_first, first);
    }
}

/// The log was made without an object store, so no opening of the suspect's files has objects: a restart removed them, the last copy.
#[test]
fn restart_keeps_the_files_of_a_suspect_from_before_there_were_objects() {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, options());
    fill_segments(&mut node, 5);
    let bases: Vec<Base> = node.writer.store.segments.snapshot().iter().map(|segment| segment.base).collect();
    store_object(&mut node, 0, bases[0], bases[2]);
    store_object(&mut node, 1, bases[2], bases[4]);
    release_here(&disk, &mut node, bases[4]);
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    disk.limit_space(None);
    suspects::replace(&disk, node.tiering.log, &[1].into()).unwrap();
    drop(node);
    let segments_of = |disk: &SimDisk| open(Arc::new(disk.clone()), &options()).unwrap().segments.len();
    assert_eq!(segments_of(&SimDisk::new(disk.visible())), 5);
    // A crash while files were being removed: nothing that begins behind the log's first record can say that there are objects.
    let removed = SimDisk::new(disk.visible());
    removed.remove(&file_name(1)).unwrap();
    assert_eq!(segments_of(&removed), 1);
}

/// While a block says that files go, no examination begins that could need them.
#[test]
fn no_examination_begins_of_an_object_whose_files_go() {
    let (_, mut node, _) = almost_released();
    assert!(!node.is_going(0));
    node.say_here(Moment::START).unwrap();
    assert!(node.is_going(0) && !node.is_going(1));
}

/// Files went as soon as the block that says so was durable. It was the last one, and a bad sector took it as a torn write: the directory
/// began with files that were not there.
#[test]
fn files_stay_until_the_block_that_says_they_go_is_proven() {
    let (_, mut node, first) = almost_released();
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    node.release_files(Moment::START).unwrap();
    assert!(node.writer.synced().kept == first && node.writer.store.is_unproven());
    assert_eq!(node.writer.store.segments.len(), 5);
    for _ in 0..3 {
        step(&mut node, Moment::START.plus(MARKER_DELAY), Work::default());
    }
    assert!(!node.writer.store.is_unproven());
    assert_eq!(node.writer.store.segments.len(), 1);
}

/// One bad sector took the only block that says where the files begin.
#[test]
fn later_hard_states_of_the_segment_repeat_where_the_files_begin() {
    let (_, mut node, first) = almost_released();
    let kept = |node: &mut Node| {
        let block = node.replica.sequencer.hard_state_block(Term(1), 2);
        HardState::kept_from(&block.body.concat())
    };
    assert_eq!(kept(&mut node), None);
    node.say_here(Moment::START).unwrap();
    assert_eq!(kept(&mut node), Some(first));
    node.replica.sequencer.begins_segment();
    assert_eq!(kept(&mut node), None);
}

/// Raft's ready waited for more room than there was, and only files that can go would make some. The block that says so waited for the ready.
#[test]
fn files_go_although_a_ready_waits_for_room() {
    let (_, mut node, first) = almost_released();
    hold(&mut node);
    assert!(!node.is_in_lockstep());
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    assert_eq!(node.writer.synced().kept, first);
}

/// A crash between the removals of files left some of them. That was reported as a missing segment.
#[test]
fn files_that_a_crash_left_are_no_damage_to_the_inspector() {
    for says in [false, true] {
        let (disk, mut node, _) = almost_released();
        if says {
            node.say_here(Moment::START).unwrap();
            sync(&mut node);
        }
        let number = node.writer.store.segments.snapshot()[1].number;
        drop(node);
        let disk = SimDisk::new(disk.visible());
        disk.remove(&file_name(number)).unwrap();
        let mut missing = 0;
        let inspector = Inspector::open_on(Arc::new(disk.clone()));
        let walked = inspector.walk(&mut |event| {
            missing += usize::from(matches!(event, Event::Fault(fault) if fault.what.contains("is missing")));
            ControlFlow::Continue(())
        });
        walked.unwrap();
        assert_eq!(missing, usize::from(!says));
    }
}

/// A file without records went with the one before it although its entries were in no object: none that has them could be made any more.
#[test]
fn file_without_records_does_not_go_with_the_one_before() {
    let segment = |number: u64, last_raft: u64, next: u64| {
        Arc::new(Segment::sealed(
            &Footer {
                number,
                id: SegmentId(number),
                base_raft: EntryIndex(0),
                base_term: Term(1),
                first: Index(1),
                next: Index(next),
                last_raft: EntryIndex(last_raft),
                last_term: Term(1),
                first_timestamp: Timestamp(0),
                last_timestamp: Timestamp(0),
                data_end: 8192,
                index_offset: 8192,
                index_count: 0,
                index_crc: 0,
            },
            64 << 10,
        ))
    };
    let full = [segment(1, 20, 50), segment(2, 50, 100), segment(3, 80, 100), segment(4, 90, 120)];
    let firsts = (0..=4).map(|going| super::first_behind(&full, going));
    let wanted = [None, Some(50), Some(50), Some(100), Some(120)];
    assert!(firsts.eq(wanted.map(|first| first.map(Index))));
}

/// Files waited for the end of whichever job of the object store ran.
#[test]
fn files_go_while_a_job_runs() {
    let (_, mut node, _) = almost_released();
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    while node.writer.store.is_unproven() {
        node.prove(Moment::START.plus(MARKER_DELAY)).unwrap();
        node.finish(Moment::START).unwrap();
        sync(&mut node);
    }
    node.tiering.vault = Some(Arc::new(MemoryVault::default()));
    node.tiering.is_busy = true;
    assert_eq!(node.tiering_due(Moment::START), Some(Moment::START));
}
