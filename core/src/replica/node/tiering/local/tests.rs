//! Files that go, at a node without threads.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::super::super::Node;
use super::super::examination::Verdict;
use super::super::jobs::{Job, JobDone};
use super::super::object_scrub::ObjectScrub;
use super::Going;
use crate::cluster::memory_transport::MemoryNetwork;
use crate::cluster::options::{Bootstrap, ClusterOptions};

use crate::disk::sim::{Call, Damage, Fault, Landed, SimDisk, Trouble};
use crate::disk::{Disk as _, SECTOR_BYTES};
use crate::error::{Error, ErrorKind};
use crate::inspect::{Event, Inspector};
use crate::options::Options;
use crate::record::batch::Stamp;
use crate::record::crc::crc32c;
use crate::replica::node::MARKER_DELAY;
use crate::replica::node::driver::DrivenNode as _;
use crate::replica::open::open;
use crate::replica::queue::proposals::{Command, ObjectCommand, WaitLimit, Work};
use crate::replica::raft::tests::{hold, node_on, sync};
use crate::store::allocator::Purpose;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::object_row::StoredObject;
use crate::store::format::segment::{Footer, HardState};
use crate::store::objects::suspects;
use crate::store::read::segment_files::SegmentFile;
use crate::store::recovery::gap::{Look, Place, Probe};
use crate::store::segment::{Base, Segment, file_name};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogNumber, NodeId, SegmentId, Term, Timestamp};
use crate::vault::{HookedVault, MemoryVault, Vault};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

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

/// Begins another segment.
fn roll(node: &mut Node) {
    let opening = node.replica.sequencer.opening();
    node.writer.plan.roll(opening, 0, Purpose::Metadata).unwrap();
    node.replica.sequencer.begins_segment();
    step(node, Moment::START, Work::default());
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
    let going = Going { first: end.next, decided_in: node.writer.plan.segment(), is_said_here: false };
    node.tiering.released.stored = end.raft;
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
    prove(&mut node);
    assert_eq!(node.writer.synced().repeated, first);
    assert_eq!(node.writer.store.segments.len(), 1);
}

/// Lets the tail of the log be proven, and files go.
fn prove(node: &mut Node) {
    for n in 1..=3 {
        step(node, Moment::START.plus(MARKER_DELAY * n), Work::default());
    }
    assert!(!node.writer.store.is_unproven());
}

/// Where blocks of a segment say with which record the files begin.
fn said_at(disk: &SimDisk, number: u64) -> Vec<usize> {
    let file = SegmentFile::open(disk, number).unwrap();
    let (mut scanner, mut at, mut said) = (file.scanner(), SEGMENT_HEADER_BYTES, Vec::new());
    while let Some((found, header)) = scanner.seek(at, scanner.limit()).unwrap() {
        let kept = scanner.block(found).unwrap().is_ok_and(|(_, body)| HardState::kept_from(body).is_some());
        said.extend((header.kind == Kind::HardState && kept).then_some(found));
        at = found + BLOCK_HEADER_BYTES;
    }
    said
}

/// A copy of the disk on which this sector is bad.
fn with_bad_sector(disk: &SimDisk, number: u64, at: usize) -> SimDisk {
    let disk = SimDisk::new(disk.visible());
    let begin = at / SECTOR_BYTES * SECTOR_BYTES;
    for bit in (begin..begin + SECTOR_BYTES).map(|byte| byte as u64 * 8) {
        disk.damage(&file_name(number), &Damage::FlipBit { bit });
    }
    disk
}

/// Fills a gap without entries, as a repair does.
fn fill_gap(disk: &SimDisk, number: u64) {
    let header = SegmentFile::open(disk, number).unwrap().header;
    let place = Place { number, id: header.id, bytes: header.bytes, base: None, end: None };
    let mut probe = Probe::new(disk, place, 1 << 16).unwrap();
    let Look::Broken(why) = probe.look_on().unwrap() else { panic!("nothing is damaged") };
    let gap = probe.gap(why).unwrap().unwrap();
    gap.rewrite(disk, &gap.fill(None, &[], None).unwrap()).unwrap();
}

/// Opens the log of [`almost_released`] on a copy of this disk, and repairs it first if it says that this block of segment 5 is damaged.
/// Returns the copy.
fn opens(disk: &SimDisk, damaged: usize, first: Index) -> SimDisk {
    let disk = SimDisk::new(disk.visible());
    let mut opened = open(Arc::new(disk.clone()), &options());
    if let Err(why) = opened {
        let (path, at) = why.location().unwrap_or_else(|| panic!("{why}"));
        let found = (path.file_name().unwrap().to_str().unwrap().to_owned(), at);
        assert_eq!(found, (file_name(5), damaged as u64), "{why}");
        fill_gap(&disk, 5);
        opened = open(Arc::new(disk.clone()), &options());
    }
    let opened = opened.unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(opened.sequencer.committed().local_first, first);
    disk
}

/// An entry was written between the block that says so and the end of its sync, and counted as a proof. It says nothing about the block.
#[test]
fn entry_that_was_written_during_the_sync_proves_nothing() {
    let (_, mut node, first) = almost_released();
    node.say_here(Moment::START).unwrap();
    let job = node.begin_sync(Moment::START).unwrap();
    let said = node.writer.written().end.raft;
    drop(node.queue.push_record(LogNumber::OWN, &[7; 900], Stamp::default(), WaitLimit::None).unwrap());
    let work = node.queue.take(true);
    node.step(Moment::START, work).unwrap();
    assert!(node.writer.written().end.raft > said && node.writer.synced().kept < first);
    job.run().unwrap();
    node.end_sync(Moment::START, &job).unwrap();
    sync(&mut node);
    step(&mut node, Moment::START, Work::default());
    assert!(node.writer.synced().end.raft > said && node.writer.synced().kept == first);
    assert_eq!(node.writer.store.segments.len(), 5);
    prove(&mut node);
    assert_eq!(node.writer.store.segments.len(), 1);
}

/// A marker alone proved the block that says where the files begin. A bad sector took the block, its repair did not know what it said, and
/// the files were missed.
#[test]
fn one_bad_sector_does_not_take_where_the_files_begin() {
    let (disk, mut node, first) = almost_released();
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    prove(&mut node);
    assert_eq!(node.writer.store.segments.len(), 1);
    drop(node);
    assert_eq!(said_at(&disk, 5).len(), 2);
    for n in 0..2 {
        let mut disk = SimDisk::new(disk.visible());
        // Once it is repaired, there are two again.
        for _ in 0..3 {
            let said = said_at(&disk, 5);
            assert_ne!(said[0] / SECTOR_BYTES, said[1] / SECTOR_BYTES);
            disk = opens(&with_bad_sector(&disk, 5, said[n]), said[n], first);
        }
    }
}

/// The process ended once the block was durable, and before anything proved it. The next opening removed the files at once.
#[test]
fn restart_proves_the_block_before_files_go() {
    let (disk, mut node, first) = almost_released();
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    drop(node);
    let [said] = said_at(&disk, 5)[..] else { panic!("one block says it") };
    let disk = SimDisk::new(disk.visible());
    // The power fails after each of the calls with which the log is opened.
    for calls in 0.. {
        let disk = SimDisk::new(disk.visible());
        disk.cut_power_after(calls);
        let is_open = open(Arc::new(disk.clone()), &options()).is_ok();
        for disk in [disk.crash(|_| 0), disk.crash(|versions| versions - 1)] {
            if SegmentFile::open(&disk, 1).is_err() {
                opens(&with_bad_sector(&disk, 5, said), said, first);
            }
        }
        if is_open {
            assert!(calls > 0);
            return;
        }
    }
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

/// An entry behind the block cannot be committed for want of room, and no block behind that entry can say where the files begin: markers are
/// enough, or nothing would ever make room. They are not as long as the entry can be committed.
#[test]
fn markers_are_enough_where_an_entry_waits_for_room_to_be_committed() {
    for is_held in [false, true] {
        let (_, mut node, first) = almost_released();
        node.say_here(Moment::START).unwrap();
        sync(&mut node);
        node.replica.sequencer.raft_entry(Kind::NoOp, Term(1), Bytes::new()).unwrap();
        if is_held {
            hold(&mut node);
        }
        node.prove(Moment::START.plus(MARKER_DELAY)).unwrap();
        node.finish(Moment::START).unwrap();
        sync(&mut node);
        assert!(node.writer.synced().repeated < first && !node.writer.store.is_unproven());
        node.release_files(Moment::START).unwrap();
        assert_eq!(node.writer.store.segments.len(), if is_held { 1 } else { 5 });
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

/// The same of a file that grew without records when that was decided: it went with the others while the log ran, and at a restart.
#[test]
fn file_that_grows_without_records_does_not_go_with_the_ones_before() {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, options());
    fill_segments(&mut node, 4);
    roll(&mut node);
    let begin = node.writer.store.segments.snapshot()[0].base;
    let end = node.writer.store.segments.newest().unwrap().base;
    // The file that grows has the commands of the object, and no records.
    store_object(&mut node, 0, begin, end);
    node.tiering.released.stored = end.raft;
    let first = end.next;
    node.replica.sequencer.keep_from(first);
    roll(&mut node);
    roll(&mut node);
    assert_eq!(node.writer.store.segments.newest().unwrap().base.next, first);
    assert!(node.keep_commit(node.replica.sequencer.committed().raft));
    step(&mut node, Moment::START, Work::default());
    let restarted = open(Arc::new(SimDisk::new(disk.visible())), &options()).unwrap();
    assert!(restarted.segments.snapshot()[0].base.raft <= end.raft);
    node.drop_local(first);
    assert_eq!(node.writer.store.segments.snapshot()[0].base.raft, end.raft);
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
    node.end_listing(Ok([].into()), Moment::START);
    node.tiering.is_busy = true;
    assert_eq!(node.tiering_due(Moment::START), Some(Moment::START));
}

/// A discard cut a lost object in two, and the files of the half that is left went, on every replica: it could not be made again.
#[test]
fn discard_keeps_the_files_of_a_lost_object_that_is_left_in_part() {
    for is_lost in [false, true] {
        let disk = SimDisk::default();
        let mut node = node_on(&disk, options());
        fill_segments(&mut node, 5);
        let bases = bases(&node);
        store_object(&mut node, 0, bases[0], bases[2]);
        store_object(&mut node, 1, bases[2], bases[4]);
        if is_lost {
            disk.create("chiplog.suspects").unwrap();
            node.tiering.scrub = ObjectScrub::load(&disk, node.tiering.log);
        } else {
            node.suspect_object(1, Moment::START);
        }
        discard(&mut node, bases[3].next);
        assert_eq!(node.writer.store.segments.snapshot()[0].base, bases[2]);
        assert!(node.tiering.holds_discarded);
        // A restart keeps them, too, and so does its first look at the objects.
        suspects::replace(&disk, node.tiering.log, &[1].into()).unwrap();
        let mut restarted = node_on(&SimDisk::new(disk.visible()), options());
        restarted.publish_objects(Moment::START);
        assert_eq!(restarted.writer.store.segments.snapshot()[0].base, bases[2]);
        // It was made again.
        node.end_listing(Ok([].into()), Moment::START);
        while let Some((number, _)) = node.tiering.scrub.suspects.pop_first() {
            node.end_examination(number, None, Ok(Verdict::Repaired), Moment::START);
        }
        node.drop_discarded(node.known_commit());
        assert_eq!(node.writer.store.segments.snapshot()[0].base, bases[3]);
        assert!(!node.tiering.holds_discarded);
    }
}

/// Options with an object store that does not answer.
fn without_answer() -> Options {
    let vault = HookedVault::new(Arc::new(MemoryVault::default()));
    vault.set(|_, _| Err(Error::new(ErrorKind::Unavailable, "no answer")));
    Options { vault: Some(Arc::new(vault)), ..options() }
}

/// Discards the records before this one, durably.
fn discard(node: &mut Node, first: Index) {
    let discard = Command::Discard { first };
    node.replica.command(discard, None, Moment::START, &mut node.writer.plan).unwrap();
    step(node, Moment::START, Work::default());
    assert!(node.keep_commit(node.replica.sequencer.committed().raft));
    step(node, Moment::START, Work::default());
    step(node, Moment::START, Work::default());
    assert_eq!(node.droppable, first);
}

fn bases(node: &Node) -> Vec<Base> {
    node.writer.store.segments.snapshot().iter().map(|segment| segment.base).collect()
}

/// A discard cut a lost object in two while the store could not be listed, and its files stayed. The next restart removed them, on every
/// replica: the object was in no list of suspects yet.
#[test]
fn every_restart_keeps_the_files_of_a_cut_object_until_objects_are_listed() {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, without_answer());
    fill_segments(&mut node, 5);
    let at = bases(&node);
    store_object(&mut node, 0, at[0], at[2]);
    store_object(&mut node, 1, at[2], at[4]);
    discard(&mut node, at[3].next);
    let mut restarted = disk.clone();
    for _ in 0..3 {
        assert_eq!(bases(&node)[0], at[2]);
        assert!(node.tiering.holds_discarded);
        restarted = SimDisk::new(restarted.visible());
        node = node_on(&restarted, without_answer());
        node.publish_objects(Moment::START);
    }
    node.end_listing(Ok([].into()), Moment::START);
    node.drop_discarded(node.known_commit());
    assert_eq!(bases(&node)[0], at[3]);
    // Without an object store nobody would list them.
    let restarted = open(Arc::new(SimDisk::new(disk.visible())), &options()).unwrap();
    assert_eq!(restarted.segments.snapshot()[0].base, at[3]);
}

/// A node with nine segments and where they begin. Each of its four objects has the entries of two of them.
fn with_four_objects(disk: &SimDisk) -> (Node, Vec<Base>) {
    let mut node = node_on(disk, without_answer());
    fill_segments(&mut node, 9);
    let at = bases(&node);
    for number in 0..4 {
        let n = 2 * number as usize;
        store_object(&mut node, number, at[n], at[n + 2]);
    }
    (node, at)
}

/// The same of an object in a run of older rows: which one was cut is known once the rows were read. All files of the run stayed also then.
#[test]
fn files_of_a_run_go_once_its_rows_say_which_object_is_cut() {
    let disk = SimDisk::default();
    let (mut node, at) = with_four_objects(&disk);
    let objects = &node.replica.sequencer.committed().objects;
    let (rows, run) = (objects.first_rows(2).unwrap(), objects.stored().take(2).collect::<Vec<_>>());
    let moved = ObjectCommand::MoveRows { below: 2, holder: 3, offset: 5000, crc: crc32c(&rows) };
    node.replica.command(Command::Object(moved), None, Moment::START, &mut node.writer.plan).unwrap();
    step(&mut node, Moment::START, Work::default());
    discard(&mut node, at[3].next);
    assert_eq!(bases(&node)[0], at[0]);
    // So does a restart.
    let restarted = node_on(&SimDisk::new(disk.visible()), without_answer());
    assert_eq!(bases(&restarted)[0], at[0]);
    node.end_rows_job(JobDone::FetchedRun(2, Ok((run, true))), Moment::START).unwrap();
    node.drop_discarded(node.known_commit());
    assert_eq!(bases(&node)[0], at[2]);
    node.end_listing(Ok([].into()), Moment::START);
    node.drop_discarded(node.known_commit());
    assert_eq!(bases(&node)[0], at[3]);
}

/// Files went with a part of a damaged object whose row had left the log's table, and nothing said that it could not be made again.
#[test]
fn part_of_a_damaged_object_of_a_run_is_reported() {
    let disk = SimDisk::default();
    let (mut node, at) = with_four_objects(&disk);
    node.suspect_object(1, Moment::START);
    let damaged = || Ok(Verdict::Damaged("of the test".to_owned()));
    node.end_examination(1, Some((at[2], at[4])), damaged(), Moment::START);
    for is_in_run in [false, true] {
        if is_in_run {
            let rows = node.replica.sequencer.committed().objects.first_rows(2).unwrap();
            let moved = ObjectCommand::MoveRows { below: 2, holder: 3, offset: 5000, crc: crc32c(&rows) };
            let moved = Command::Object(moved);
            node.replica.command(moved, None, Moment::START, &mut node.writer.plan).unwrap();
            step(&mut node, Moment::START, Work::default());
        } else {
            // Half of it is here.
            node.writer.store.drop_below(at[3].next, at[4].raft);
            assert_eq!(bases(&node)[0], at[3]);
        }
        assert_eq!(node.part_going(at[4].next), Some(1), "{is_in_run}");
        assert_eq!(node.part_going(at[2].next), None, "{is_in_run}");
    }
    node.writer.store.drop_below(at[4].next, at[4].raft);
    assert_eq!(node.part_going(at[5].next), None);
}

/// The disk was full, the list of suspects could not be written, and a restart removed the last copy of one.
#[test]
fn suspects_that_cannot_be_written_down_are_not_forgotten() {
    let (disk, mut node, _) = almost_released();
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    let eio =
        Fault { call: Some(Call::Write), nth: 1, lasting: true, trouble: Trouble::Eio(Landed::Nothing) };
    for is_full in [true, false] {
        if !is_full {
            disk.limit_space(None);
            disk.plan(eio);
        }
        node.suspect_object(0, Moment::START);
        node.save_suspects(Moment::START);
        let restarted = SimDisk::new(disk.visible());
        assert!(suspects::read(&restarted, node.tiering.log).is_err(), "{is_full}");
        let opened = open(Arc::new(restarted), &options()).unwrap();
        assert_eq!(opened.segments.len(), 5, "{is_full}");
        disk.heal();
        disk.limit_space(None);
        // It is written as soon as it can be, also if it is the same list again.
        let later = Moment::START.plus(Duration::from_secs(60));
        node.save_suspects(later);
        assert_eq!(suspects::read(&disk, node.tiering.log).unwrap(), [0].into());
        node.tiering.scrub = ObjectScrub::default();
        suspects::replace(&disk, node.tiering.log, &[].into()).unwrap();
    }
}

/// One of the files of a lost object could not be read at a restart, and was put aside; the next one went, because the object could not be
/// made of what had opened.
#[test]
fn files_beside_one_that_was_put_aside_stay() {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, options());
    let base = |node: &Node, n: usize| node.writer.store.segments.snapshot()[n].base;
    fill_segments(&mut node, 3);
    let (begin, middle) = (base(&node, 0), base(&node, 2));
    store_object(&mut node, 0, begin, middle);
    fill_segments(&mut node, 7);
    let (from, end) = (base(&node, 4), base(&node, 6));
    store_object(&mut node, 1, middle, from);
    store_object(&mut node, 2, from, end);
    release_here(&disk, &mut node, end);
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    disk.limit_space(None);
    suspects::replace(&disk, node.tiering.log, &[2].into()).unwrap();
    drop(node);
    let disk = SimDisk::new(disk.visible());
    let eio = Fault { call: Some(Call::Read), nth: 1, lasting: true, trouble: Trouble::Eio(Landed::Nothing) };
    assert!(disk.plan_on(&file_name(5), eio));
    let mut node = node_on(&disk, options());
    assert_eq!(node.writer.store.put_aside.names.len(), 5);
    disk.heal();
    node.tiering.vault = Some(Arc::new(MemoryVault::default()));
    node.end_listing(Ok([].into()), Moment::START);
    node.tiering.released.stored = end.raft;
    assert_eq!(node.writer.store.segments.snapshot()[0].number, 6);
    assert_eq!(node.left_by_restart(), None);
    node.remove_put_aside(Moment::START);
    assert!(SegmentFile::open(&disk, 5).is_ok());
    // Another replica has made the object.
    node.tiering.scrub.suspects.clear();
    assert_eq!(node.left_by_restart(), Some(end.next));
    node.remove_put_aside(Moment::START);
    assert!(node.writer.store.put_aside.names.is_empty() && SegmentFile::open(&disk, 5).is_err());
}

/// A file of an object that was not stored yet could not be read at a restart. It stayed, with those before it, but counted as gone: files
/// of an object that may be lost were thought to be nowhere.
#[test]
fn files_of_an_unstored_object_that_cannot_be_read_are_put_aside() {
    let disk = SimDisk::default();
    let mut node = node_on(&disk, options());
    let base = |node: &Node, n: usize| node.writer.store.segments.snapshot()[n].base;
    fill_segments(&mut node, 3);
    let (begin, middle) = (base(&node, 0), base(&node, 2));
    store_object(&mut node, 0, begin, middle);
    fill_segments(&mut node, 7);
    let end = base(&node, 6);
    let cut = ObjectCommand::Cut {
        number: 1,
        begin: middle,
        end,
        timestamp: Timestamp(u64::MAX >> 1),
        first: Index(1),
    };
    node.replica.command(Command::Object(cut), None, Moment::START, &mut node.writer.plan).unwrap();
    step(&mut node, Moment::START, Work::default());
    release_here(&disk, &mut node, end);
    node.say_here(Moment::START).unwrap();
    sync(&mut node);
    disk.limit_space(None);
    suspects::replace(&disk, node.tiering.log, &[0].into()).unwrap();
    drop(node);
    let disk = SimDisk::new(disk.visible());
    let eio = Fault { call: Some(Call::Read), nth: 1, lasting: true, trouble: Trouble::Eio(Landed::Nothing) };
    assert!(disk.plan_on(&file_name(5), eio));
    let mut node = node_on(&disk, options());
    assert_eq!(node.writer.store.segments.snapshot()[0].number, 6);
    assert_eq!(node.writer.store.put_aside.names.len(), 5);
    disk.heal();
    node.tiering.vault = Some(Arc::new(MemoryVault::default()));
    node.end_listing(Ok([].into()), Moment::START);
    assert!(node.held_by_scrub().is_some());
    // Another replica has made the suspect. The other object is not stored yet.
    node.tiering.scrub.suspects.clear();
    node.remove_put_aside(Moment::START);
    assert!((1..=5).all(|number| SegmentFile::open(&disk, number).is_ok()));
    assert_eq!(node.writer.store.put_aside.names.len(), 5);
}

/// A listing that panicked, in the program's own vault, counted as one that was made: the next one was an hour later.
#[test]
fn listing_that_panics_is_repeated() {
    let mut node = node_on(&SimDisk::default(), options());
    fill_segments(&mut node, 5);
    let at = bases(&node);
    store_object(&mut node, 0, at[0], at[2]);
    let vault = HookedVault::new(Arc::new(MemoryVault::default()));
    vault.set(|call, _| {
        assert!(call.is_empty(), "injected: a panic"); // in every call
        Ok(())
    });
    let vault: Arc<dyn Vault> = Arc::new(vault);
    assert!(node.scrub_job(&vault, Moment::START).is_none());
    let now = Moment::START.plus(Duration::from_secs(120));
    let job = node.scrub_job(&vault, now).unwrap();
    node.tiering.start(job).unwrap();
    let done = node.tiering.take_done().unwrap();
    node.end_job(done, now).unwrap();
    assert!(matches!(node.scrub_job(&vault, now.plus(Duration::from_secs(600))), Some(Job::List(_))));
}

/// A majority was missing for long. Readers have the whole delay from the commit on, and the entry is older.
#[test]
fn delay_of_a_deletion_is_counted_from_a_commit_that_is_seen() {
    let mut node = node_on(&SimDisk::default(), options());
    fill_segments(&mut node, 5);
    let at = bases(&node);
    store_object(&mut node, 0, at[0], at[2]);
    let discard = Command::Discard { first: at[2].next };
    node.replica.command(discard, None, Moment::START, &mut node.writer.plan).unwrap();
    let committed = Moment::START.plus(Duration::from_secs(2 * 3600));
    node.step(committed, Work::default()).unwrap();
    while let Some(job) = node.begin_sync(committed) {
        job.run().unwrap();
        node.end_sync(committed, &job).unwrap();
    }
    step(&mut node, committed, Work::default()); // the commit is durable, too
    let delay = options().object_delete_delay;
    assert_eq!(node.deletion_due(committed), Some(committed.plus(delay)));
    let (_, of_the_entry) = node.replica.sequencer.committed().discarded.due().next().unwrap();
    let due = node.replica.time(committed).0 + delay.as_millis() as u64;
    assert!(of_the_entry.0 + 3_600_000 < due, "the log's time would be earlier");
}
