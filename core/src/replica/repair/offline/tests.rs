//! Offline repair: the messages that are believed, and the state that is written.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::members::voters_of;
use super::*;
use crate::cluster::membership::{Change, Member};
use crate::cluster::memory_transport::MemoryNetwork;
use crate::cluster::options::{Bootstrap, ClusterOptions};
use crate::disk::Disk as _;
use crate::disk::sim::{Damage, Fault, Landed, SimDisk, Trouble};
use crate::options::Options;
use crate::replica::node::Node;
use crate::replica::open::{Directory, open_or_find_damage};
use crate::replica::raft::tests::{
    LEADER, LOG, append, become_voter, directory_of, entry_at, envelope, message, node_with, step,
};
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::wire::repair_message::{encode_blocks, encode_gone};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::SegmentHeader;
use crate::store::recovery::gap::{BlockCopy, Gap};
use crate::store::segment::file_name;
use crate::types::Timestamp;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::sync::Arc;
use std::time::Duration;

const ME: NodeId = NodeId(2);
const THIRD: NodeId = NodeId(3);

/// The disk of node 2, one of `voters` voters. It has the entries that make it a voter, and then the effects of `then`.
fn disk_of(voters: usize, then: impl FnOnce(&mut Node)) -> SimDisk {
    let disk = SimDisk::default();
    let mut node = node_with(&disk, Bootstrap::Join(LOG));
    become_voter(&mut node, voters);
    then(&mut node);
    drop(node);
    SimDisk::new(disk.visible())
}

/// The blocks of its only segment: their offsets and headers.
fn blocks(disk: &SimDisk) -> Vec<(usize, BlockHeader)> {
    let file = disk.visible().file(&file_name(1)).unwrap();
    let id = SegmentHeader::parse(&file).unwrap().id;
    let mut at = SEGMENT_HEADER_BYTES;
    let mut found = Vec::new();
    while let Ok(header) = BlockHeader::parse(&file[at..at + BLOCK_HEADER_BYTES], id) {
        found.push((at, header));
        at += header.stride();
    }
    found
}

/// The offset of an entry's block.
fn place_of(disk: &SimDisk, entry: u64) -> usize {
    let is_it = |h: &BlockHeader| h.kind.is_entry() && h.raft_index.0 == entry;
    blocks(disk).into_iter().find(|(_, header)| is_it(header)).unwrap().0
}

/// Damages the headers of the chosen blocks.
fn hurt(disk: &SimDisk, choose: impl Fn(usize, &BlockHeader) -> bool) {
    for (at, header) in blocks(disk) {
        if choose(at, &header) {
            assert!(disk.damage(&file_name(1), &Damage::FlipBit { bit: (at as u64 + 20) * 8 }));
        }
    }
}

fn begun(disk: &SimDisk) -> Result<Begun> {
    let cluster = ClusterOptions::new(ME, Bootstrap::Existing, MemoryNetwork::new().transport());
    let options = Options { cluster: Some(cluster), ..Options::with_segment_bytes(64 << 10) };
    let Directory::DamagedLog(damaged) = open_or_find_damage(Arc::new(disk.clone()), &options).unwrap()
    else {
        panic!("the log opens")
    };
    Repairing::begin(*damaged)
}

fn opened(disk: &SimDisk) -> Box<Repairing> {
    match begun(disk).unwrap() {
        Begun::Repairing(repairing) => repairing,
        Begun::Repaired(_) => panic!("it was repaired without the others"),
    }
}

/// Makes a step with these messages from these nodes.
fn turned(
    repairing: &mut Repairing,
    now: Moment,
    events: &[(NodeId, Bytes)],
) -> Result<Option<RecoveredLog>> {
    let events = events.iter().map(|(from, head)| envelope(*from, directory_of(*from), head.clone()));
    repairing.step(now, events.collect::<Vec<_>>())
}

/// A quarter of the time in which a leader has to be heard.
const QUARTER: Duration = Duration::from_millis(500);

/// Hears a leader without a pause from `now` on, until the log opens after two election timeouts.
fn led(repairing: &mut Repairing, now: Moment, heartbeat: &(NodeId, Bytes)) -> RecoveredLog {
    for n in 0..4 {
        assert!(turned(repairing, now.plus(QUARTER * n), std::slice::from_ref(heartbeat)).unwrap().is_none());
    }
    turned(repairing, now.plus(QUARTER * 4), std::slice::from_ref(heartbeat)).unwrap().unwrap()
}

/// The receivers of the sent messages of this kind.
fn sent(repairing: &mut Repairing, wanted: HeadKind) -> Vec<NodeId> {
    let is_wanted = |e: &Envelope| raft_message::parse_head(&e.head).unwrap().0 == wanted;
    repairing.take_outgoing().into_iter().filter(is_wanted).map(|e| e.to).collect()
}

fn voters(nodes: &[NodeId]) -> Membership {
    Membership::of(
        nodes.iter().map(|n| Member::voter(*n, if *n == ME { DirectoryId(0) } else { directory_of(*n) }, "")),
    )
}

/// A report of the membership as of an entry.
fn known(at: u64, nodes: &[NodeId]) -> Bytes {
    let mut body = vec![0; Extent::BYTES];
    body.extend_from_slice(&at.to_le_bytes());
    body.extend_from_slice(&voters(nodes).encode_whole());
    raft_message::head(HeadKind::Known, &body)
}

fn removed(committed: u64, term: u64) -> Bytes {
    raft_message::head(HeadKind::Removed, &[committed, term].map(u64::to_le_bytes).concat())
}

fn from_third(term: u64, before: (u64, u64), entries: Vec<Entry>) -> Message {
    Message { from: THIRD.0, term, log_term: before.1, ..append(before.0, entries) }
}

/// The changes that made the replica a member are in the gap, so it knew only the node that was the first to send. That
/// node had discarded the missing entry, and the replica failed with "discarded by all other replicas" after it had
/// asked one.
#[test]
fn entry_is_not_lost_before_all_members_are_known() {
    let disk = disk_of(3, |node| step(node, &append(4, vec![entry_at(5)])));
    hurt(&disk, |_, header| header.kind == Kind::Configuration);
    let mut repairing = opened(&disk);
    assert!(repairing.status().members.is_empty());
    let gone = encode_gone(EntryIndex(9));
    let now = Moment::START;
    assert!(turned(&mut repairing, now, &[(LEADER, gone.clone())]).unwrap().is_none());
    assert_eq!(sent(&mut repairing, HeadKind::Hello), [LEADER]);
    assert!(turned(&mut repairing, now, &[(LEADER, known(9, &[LEADER, ME, THIRD]))]).unwrap().is_none());
    assert_eq!(repairing.members.others(), [LEADER, THIRD]);
    assert!(turned(&mut repairing, now, &[(THIRD, gone)]).unwrap().is_none());
    assert_lost(turned(&mut repairing, now, &[(THIRD, known(9, &[LEADER, ME, THIRD]))]));
}

fn assert_lost(turned: Result<Option<RecoveredLog>>) {
    let error = turned.err().unwrap();
    assert!(
        error.kind() == ErrorKind::Corrupt && error.to_string().contains("all other replicas"),
        "{error}"
    );
}

/// A disk that has lost entry 5 and no hard state.
fn without_fifth() -> SimDisk {
    let disk = disk_of(3, |node| {
        step(node, &append(4, vec![entry_at(5)]));
        step(node, &append(5, vec![entry_at(6)]));
    });
    hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == EntryIndex(5));
    disk
}

/// A node that was added and removed while this replica was away had sent to it once. The replica waited for its answer
/// forever.
#[test]
fn talker_that_is_no_member_is_not_waited_for() {
    let mut repairing = opened(&without_fifth());
    let (now, gone) = (Moment::START, || encode_gone(EntryIndex(9)));
    assert!(turned(&mut repairing, now, &[(NodeId(4), hello(2))]).unwrap().is_none());
    let members = [LEADER, ME, THIRD];
    let all = [(LEADER, known(9, &members)), (THIRD, known(9, &members)), (LEADER, gone()), (THIRD, gone())];
    assert!(turned(&mut repairing, now, &all[..3]).unwrap().is_none());
    assert_eq!(repairing.members.others(), [LEADER, THIRD, NodeId(4)], "it is still asked");
    assert_lost(turned(&mut repairing, now, &all[3..]));
}

/// The members that this replica remembered had all discarded the missing entry. It failed before they had reported a
/// member that was added later and that had the entry.
#[test]
fn entry_is_not_lost_before_all_have_reported_the_members() {
    let mut repairing = opened(&without_fifth());
    let (now, gone, fourth) = (Moment::START, || encode_gone(EntryIndex(9)), NodeId(4));
    let members = [LEADER, ME, THIRD, fourth];
    for events in [
        (LEADER, gone()),
        (THIRD, gone()),
        (LEADER, known(4, &members[..3])), // it lags behind
        (THIRD, known(0, &[])),            // it repairs its own log
        (THIRD, known(9, &members)),
        (fourth, known(9, &members)),
    ] {
        assert!(turned(&mut repairing, now, &[events]).unwrap().is_none());
    }
    assert_eq!(repairing.members.others(), [LEADER, THIRD, fourth]);
    assert_lost(turned(&mut repairing, now, &[(fourth, gone())]));
}

/// Messages arrive in any order. An older report replaced a newer one.
#[test]
fn older_report_of_the_voters_changes_nothing() {
    let mut repairing = opened(&without_fifth());
    let two = [LEADER, ME];
    let events = [(LEADER, known(9, &two)), (LEADER, known(5, &[LEADER, ME, THIRD]))];
    assert!(turned(&mut repairing, Moment::START, &events).unwrap().is_none());
    assert_eq!(repairing.members.voters[&LEADER], (EntryIndex(9), voters_of(&voters(&two))));
}

/// Damages entry 5 and the hard state after it. Returns the answer that holds entry 5.
fn lose_state_behind_fifth(disk: &SimDisk) -> Bytes {
    lose_state_behind_fifth_with(disk, None)
}

/// The same, and the block at another offset.
fn lose_state_behind_fifth_with(disk: &SimDisk, other: Option<usize>) -> Bytes {
    let lost = place_of(disk, 5)..place_of(disk, 6);
    let (_, fifth) = *blocks(disk).iter().find(|(at, _)| *at == lost.start).unwrap();
    assert!(blocks(disk).iter().any(|(at, h)| lost.contains(at) && h.kind == Kind::HardState));
    hurt(disk, |at, _| lost.contains(&at) || Some(at) == other);
    encode_blocks(HeadKind::Blocks, std::iter::once(&fifth))
}

/// A configuration entry that changes nothing. The commit index is written before it, in a hard state.
fn change_at(index: u64, term: u64) -> Entry {
    let mut change = Entry { index, term, ..Entry::default() };
    change.set_entry_type(EntryType::EntryConfChangeV2);
    change
}

/// A disk of term 1 that has lost entry 5 and the hard state after it, and the answer that holds entry 5.
fn without_state() -> (SimDisk, Bytes) {
    let disk = disk_of(3, |node| {
        step(node, &Message { commit: 4, ..append(4, vec![entry_at(5)]) });
        step(node, &Message { commit: 4, ..append(5, vec![change_at(6, 1)]) });
    });
    let fifth = lose_state_behind_fifth(&disk);
    (disk, fifth)
}

fn raft(from: NodeId, kind: MessageType, term: u64) -> (NodeId, Bytes) {
    let message = Message { from: from.0, ..message(kind, term) };
    (from, raft_message::encode_message(&message).unwrap())
}

fn hello(term: u64) -> Bytes {
    raft_message::head(HeadKind::Hello, &[term, 0].map(u64::to_le_bytes).concat())
}

/// The candidate of term 6, which may have this replica's vote, showed its term only in pre-votes and in greetings.
/// Both were dropped: a leader of term 5 that resumed was believed, and the vote of term 6 was cast again.
#[test]
fn every_mention_of_a_term_raises_the_learnt_term() {
    let heartbeat = || raft(LEADER, MessageType::MsgHeartbeat, 5);
    for (word, learnt) in [
        (None, (5, LEADER)),
        (Some(raft(THIRD, MessageType::MsgRequestPreVote, 6)), (5, LEADER)),
        (Some(raft(THIRD, MessageType::MsgRequestPreVote, 7)), (6, ME)),
        (Some((THIRD, hello(6))), (6, ME)),
    ] {
        let (disk, fifth) = without_state();
        let mut repairing = opened(&disk);
        let events: Vec<_> = [(LEADER, fifth), heartbeat()].into_iter().chain(word).collect();
        assert!(turned(&mut repairing, Moment::START, &events).unwrap().is_none());
        let opened = led(&mut repairing, Moment::START, &heartbeat());
        let HardState { term, vote, .. } = opened.sequencer.hard_state();
        assert_eq!((term.0, NodeId(vote)), learnt);
    }
}

/// One heartbeat was enough, of a leader that had been suspended during an election.
#[test]
fn leader_that_falls_silent_is_not_believed() {
    let (disk, fifth) = without_state();
    let mut repairing = opened(&disk);
    let heartbeat = |term| raft(LEADER, MessageType::MsgHeartbeat, term);
    assert!(turned(&mut repairing, Moment::START, &[(LEADER, fifth), heartbeat(5)]).unwrap().is_none());
    let later = Moment::START.plus(Duration::from_secs(60));
    assert!(turned(&mut repairing, later, &[]).unwrap().is_none());
    assert!(turned(&mut repairing, later, &[heartbeat(4)]).unwrap().is_none(), "another one led after it");
    led(&mut repairing, later, &heartbeat(5));
}

/// This process was suspended while it listened, and so was a leader that was deposed meanwhile. Both resumed, and that
/// leader's message was read first: it was believed, and the vote in a later term was cast again.
#[test]
fn leader_is_believed_once_it_was_heard_without_a_pause() {
    let heartbeat = |(node, term)| raft(node, MessageType::MsgHeartbeat, term);
    let (last, another, later) = ((LEADER, 5), (THIRD, 5), (LEADER, 6));
    for (breaks, believed) in [(None, true), (Some(another), false), (Some(later), false)] {
        let (disk, fifth) = without_state();
        let mut repairing = opened(&disk);
        assert!(
            turned(&mut repairing, Moment::START, &[(LEADER, fifth), heartbeat(last)]).unwrap().is_none()
        );
        let woken = Moment::START.plus(Duration::from_secs(60));
        for n in 0..4 {
            let events = [heartbeat(last)].into_iter().chain(breaks.filter(|_| n == 1).map(heartbeat));
            let events: Vec<_> = events.collect();
            assert!(turned(&mut repairing, woken.plus(QUARTER * n), &events).unwrap().is_none());
        }
        let is_open = turned(&mut repairing, woken.plus(QUARTER * 4), &[heartbeat(last)]).unwrap().is_some();
        assert_eq!(is_open, believed, "{breaks:?}");
    }
}

/// The replica voted in term 9, and then received entry 5 of term 1 from the leader of term 9. Entry 5 and the hard
/// state after it were damaged. A leader of term 1 was heard, and its term was written after the block of term 9: the
/// vote could be cast again.
#[test]
fn learnt_state_breaks_no_promise_that_is_on_the_disk() {
    let disk = disk_of(3, |node| {
        let mut vote = message(MessageType::MsgRequestVote, 9);
        (vote.from, vote.index, vote.log_term) = (THIRD.0, 9, 1);
        vote.context = Bytes::from_static(b"CampaignTransfer");
        step(node, &vote);
        let after = |index, entries| Message { commit: 4, ..from_third(9, index, entries) };
        step(node, &after((4, 1), vec![entry_at(5)]));
        step(node, &after((5, 1), vec![change_at(6, 9)]));
        step(node, &after((6, 9), vec![Entry { index: 7, term: 9, ..Entry::default() }]));
    });
    let fifth = lose_state_behind_fifth(&disk);
    let mut repairing = opened(&disk);
    let heartbeat = || raft(LEADER, MessageType::MsgHeartbeat, 1);
    assert!(turned(&mut repairing, Moment::START, &[(LEADER, fifth), heartbeat()]).unwrap().is_none());
    let opened = led(&mut repairing, Moment::START, &heartbeat());
    let HardState { term, vote, .. } = opened.sequencer.hard_state();
    assert_eq!((term, vote), (Term(9), THIRD.0));
}

/// The last hard states of a segment were lost, and with them the records that its membership changes are committed.
/// The replica opened with several of them pending: a majority of the membership two changes ago could have elected it.
#[test]
fn repair_leaves_at_most_one_membership_change_pending() {
    let change = raft_message::conf_change(&[Change::Promote(THIRD)], &voters(&[LEADER, ME, THIRD]));
    let data = protobuf::Message::write_to_bytes(&change).unwrap();
    let disk = disk_of(3, |node| {
        for index in 5..=12 {
            let entry = match index {
                7 | 10 => Entry { data: data.clone().into(), ..change_at(index, 1) },
                _ => entry_at(index),
            };
            step(node, &append(index - 1, vec![entry]));
        }
    });
    hurt(&disk, |_, header| header.kind == Kind::HardState && header.raft_index >= EntryIndex(6));
    let mut repairing = opened(&disk);
    let heartbeat = || raft(LEADER, MessageType::MsgHeartbeat, 1);
    let opened = led(&mut repairing, Moment::START, &heartbeat());
    assert!(opened.sequencer.changes_in_doubt() <= 1, "{}", opened.sequencer.changes_in_doubt());
    assert_eq!(opened.sequencer.membership_at_end().members().count(), 3);
}

/// The power failed during a write, and an earlier entry was damaged. The sound blocks in between did not count as the
/// end of the damage, because a torn write follows them: the replica refused to open.
#[test]
fn damage_before_a_torn_write_is_repaired() {
    let disk = disk_of(3, |node| {
        step(node, &append(4, vec![entry_at(5)]));
        step(node, &append(5, vec![entry_at(6)]));
        step(node, &append(6, vec![entry_at(7)]));
        step(node, &Message { commit: 6, ..append(7, vec![change_at(8, 1)]) });
    });
    let fifth = place_of(&disk, 5);
    let (_, header) = *blocks(&disk).iter().find(|(at, _)| *at == fifth).unwrap();
    let torn = blocks(&disk).into_iter().find(|(at, h)| *at > fifth && h.kind == Kind::HardState).unwrap().0;
    assert!(disk.damage(&file_name(1), &Damage::FlipBit { bit: (torn as u64 + 70) * 8 }));
    hurt(&disk, |at, _| at == fifth);
    let mut repairing = opened(&disk);
    assert_eq!(repairing.missing(), Some(EntryIndex(5)));
    let answer = encode_blocks(HeadKind::Blocks, std::iter::once(&header));
    let opened = turned(&mut repairing, Moment::START, &[(LEADER, answer)]).unwrap().unwrap();
    assert_eq!(opened.sequencer.end().raft, EntryIndex(7));
}

/// A configuration entry that can be applied. A record that the one before is committed is written before it, in a hard state.
fn promotion_at(index: u64) -> Entry {
    let change = raft_message::conf_change(&[Change::Promote(THIRD)], &voters(&[LEADER, ME, THIRD]));
    Entry { data: protobuf::Message::write_to_bytes(&change).unwrap().into(), ..change_at(index, 1) }
}

/// A replica of term 1, with entry 5, a hard state and entry 6, and then what these messages append.
fn with_state_behind_fifth(then: &[Message]) -> SimDisk {
    disk_of(3, |node| {
        step(node, &Message { commit: 4, ..append(4, vec![entry_at(5)]) });
        step(node, &Message { commit: 4, ..append(5, vec![promotion_at(6)]) });
        then.iter().for_each(|message| step(node, message));
    })
}

/// The offset of the last hard state.
fn last_state(disk: &SimDisk) -> usize {
    blocks(disk).into_iter().rfind(|(_, h)| h.kind == Kind::HardState).unwrap().0
}

/// Makes the block at this offset the first of a write that no block proves: those behind it say at most that all before it is durable.
fn unprove(disk: &SimDisk, first: usize) {
    let file = disk.visible().file(&file_name(1)).unwrap();
    let id = SegmentHeader::parse(&file).unwrap().id;
    let segment = disk.open(&file_name(1), true).unwrap();
    for (at, header) in blocks(disk).into_iter().filter(|(at, _)| *at >= first) {
        let durable_upto = header.durable_upto.min(first as u32);
        let head = BlockHeader { durable_upto, ..header }.encode(id);
        segment.write_at(at as u64, &[std::io::IoSlice::new(&head)]).unwrap();
    }
}

/// The power failed during a write: its first block was torn, and a hard state behind that was sound. Before it another hard state was
/// damaged. The one behind the torn block counted as following it, and was cut off with that: the replica had forgotten its vote.
#[test]
fn hard_state_behind_a_torn_write_is_not_trusted() {
    for is_torn in [false, true] {
        let last = append(6, vec![entry_at(7), promotion_at(8)]);
        let disk = with_state_behind_fifth(&[Message { commit: 6, ..last }]);
        let seventh = place_of(&disk, 7);
        unprove(&disk, seventh);
        assert!(last_state(&disk) > seventh);
        assert!(blocks(&disk).iter().all(|(_, h)| h.durable_upto as usize <= seventh), "it is proven");
        let fifth = lose_state_behind_fifth_with(&disk, is_torn.then_some(seventh));
        let mut repairing = opened(&disk);
        let heartbeat = raft(LEADER, MessageType::MsgHeartbeat, 5);
        let is_open = turned(&mut repairing, Moment::START, &[(LEADER, fifth), heartbeat.clone()]).unwrap();
        assert_eq!(is_open.is_none(), is_torn);
        if is_torn {
            let HardState { term, vote, .. } =
                led(&mut repairing, Moment::START, &heartbeat).sequencer.hard_state();
            assert_eq!((term.0, NodeId(vote)), (5, LEADER));
        }
    }
}

/// A hard state and a later entry were damaged. Nothing proved the hard state at the end of the log, which follows proven blocks without a gap.
/// It did not count: the repair waited until it had heard a leader.
#[test]
fn hard_state_at_the_end_counts_although_two_places_are_damaged() {
    let disk = with_state_behind_fifth(&[
        append(6, vec![entry_at(7)]),
        append(7, vec![entry_at(8)]),
        append(8, vec![entry_at(9)]),
        Message { commit: 9, ..append(9, vec![promotion_at(10)]) },
    ]);
    let eighth = place_of(&disk, 8);
    let (_, header) = *blocks(&disk).iter().find(|(at, _)| *at == eighth).unwrap();
    let (state, _) =
        blocks(&disk).into_iter().find(|(at, h)| *at > eighth && h.kind == Kind::HardState).unwrap();
    unprove(&disk, state);
    assert_eq!(blocks(&disk).iter().map(|(_, h)| h.durable_upto as usize).max(), Some(state));
    let fifth = lose_state_behind_fifth_with(&disk, Some(eighth));
    let mut repairing = opened(&disk);
    let eighth = encode_blocks(HeadKind::Blocks, std::iter::once(&header));
    assert!(turned(&mut repairing, Moment::START, &[(LEADER, fifth)]).unwrap().is_none());
    assert_eq!(repairing.missing(), Some(EntryIndex(8)));
    assert!(turned(&mut repairing, Moment::START, &[(LEADER, eighth)]).unwrap().is_some());
}

/// A write went to a wrong place, and left the segment's opening behind the lost hard state. It holds an older vote.
#[test]
fn opening_out_of_place_is_no_hard_state() {
    let entries: Vec<_> = (7..=24).map(entry_at).collect();
    let disk = with_state_behind_fifth(&[
        append(6, entries),
        append(24, vec![entry_at(25)]),
        append(25, vec![entry_at(26)]),
    ]);
    let (eighth, last) = (place_of(&disk, 8), place_of(&disk, 24));
    let file = disk.visible().file(&file_name(1)).unwrap();
    let stride = blocks(&disk)[0].1.stride();
    assert!(eighth + stride < last);
    let opening = std::io::IoSlice::new(&file[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + stride]);
    let fifth = lose_state_behind_fifth_with(&disk, None);
    disk.open(&file_name(1), true).unwrap().write_at(eighth as u64, &[opening]).unwrap();
    let mut repairing = opened(&disk);
    assert!(turned(&mut repairing, Moment::START, &[(LEADER, fifth)]).unwrap().is_none());
    assert_eq!(repairing.missing(), None, "the hard state is missing");
}

#[test]
fn state_binds_by_its_term_and_then_by_its_vote() {
    let state = |(term, vote)| HardState { term: Term(term), vote, commit: EntryIndex(0) };
    for (own, learnt, bound) in [
        ((8, 3), (9, 1), (9, 1)),
        ((9, 3), (9, 1), (9, 3)),
        ((9, 0), (9, 1), (9, 1)),
        ((9, 3), (8, 1), (9, 3)),
        ((9, 0), (8, 1), (9, 2)),
    ] {
        assert_eq!(binding(state(own), state(learnt), ME), state(bound), "{own:?}, {learnt:?}");
    }
}

/// The others send no entries to a removed replica, so it repaired forever.
#[test]
fn removed_replica_ends_its_repair_when_a_leader_notifies_it() {
    let disk = without_fifth();
    for (from, notice, is_believed) in [
        (LEADER, removed(9, 1), true),
        (LEADER, removed(3, 1), false),
        (LEADER, removed(9, 0), false),
        (NodeId(9), removed(9, 1), false),
    ] {
        let mut repairing = opened(&disk);
        assert!(turned(&mut repairing, Moment::START, &[]).unwrap().is_none());
        assert_eq!(sent(&mut repairing, HeadKind::Hello), [LEADER, THIRD]);
        assert!(turned(&mut repairing, Moment::START, &[(from, notice)]).unwrap().is_none());
        assert_eq!(repairing.status().role == Role::Removed, is_believed);
        assert_eq!(repairing.refusal().kind() == ErrorKind::Removed, is_believed);
        assert_eq!(repairing.deadline(Moment::START).is_none(), is_believed);
    }
}

/// A deposed leader did not know this member yet, and its notice ended the repair.
#[test]
fn deposed_leader_does_not_end_a_repair() {
    let disk = disk_of(3, |node| {
        step(node, &append(4, vec![entry_at(5)]));
        step(node, &append(5, vec![entry_at(6)]));
        step(node, &message(MessageType::MsgHeartbeat, 3));
    });
    hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == EntryIndex(5));
    let remembers = |term: u64| {
        let mut body = [term, 0, 0].map(u64::to_le_bytes).concat();
        body.extend_from_slice(&voters(&[LEADER, ME, THIRD]).encode_whole());
        (THIRD, raft_message::head(HeadKind::Known, &body))
    };
    for (word, least) in [
        (None, 3), // this is on its disk
        (Some(remembers(4)), 4),
        (Some(raft(THIRD, MessageType::MsgHeartbeat, 5)), 5),
        (Some(raft(THIRD, MessageType::MsgRequestVote, 6)), 3), // possibly there was no leader in that term
    ] {
        let mut repairing = opened(&disk);
        let events: Vec<_> = word.into_iter().chain([(LEADER, removed(9, least - 1))]).collect();
        assert!(turned(&mut repairing, Moment::START, &events).unwrap().is_none());
        assert_eq!(repairing.status().role, Role::Repairing);
        assert!(turned(&mut repairing, Moment::START, &[(LEADER, removed(9, least))]).unwrap().is_none());
        assert_eq!(repairing.status().role, Role::Removed);
    }
}

/// A removal that only this replica had in its log was taken for committed. The removed node was not asked, and the
/// repair failed with "all others have discarded it".
#[test]
fn node_whose_removal_is_not_committed_is_asked_too() {
    let disk = disk_of(3, |node| {
        let change = raft_message::conf_change(&[Change::Remove(THIRD)], &voters(&[LEADER, ME]));
        let data = protobuf::Message::write_to_bytes(&change).unwrap().into();
        step(node, &append(4, vec![entry_at(5)]));
        step(node, &append(5, vec![Entry { data, ..change_at(6, 1) }, entry_at(7)]));
    });
    hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == EntryIndex(5));
    let mut repairing = opened(&disk);
    assert_eq!(repairing.members.others(), [LEADER]);
    let (now, gone, members) = (Moment::START, || encode_gone(EntryIndex(9)), [LEADER, ME, THIRD]);
    assert!(
        turned(&mut repairing, now, &[(LEADER, known(4, &members)), (LEADER, gone())]).unwrap().is_none()
    );
    assert_eq!(repairing.members.others(), [LEADER, THIRD]);
    assert!(turned(&mut repairing, now, &[(THIRD, known(4, &members))]).unwrap().is_none());
    assert_lost(turned(&mut repairing, now, &[(THIRD, gone())]));
}

/// The other one of two voters was being removed, and may not have heard of it. It cannot lead without this replica.
/// But this replica refused to repair its log, as if it were the only voter.
#[test]
fn uncommitted_removal_leaves_no_voter_alone() {
    let disk = |committed| {
        let disk = disk_of(2, |node| {
            let change = raft_message::conf_change(&[Change::Remove(LEADER)], &voters(&[ME]));
            let data = protobuf::Message::write_to_bytes(&change).unwrap().into();
            let removal = Entry { data, ..change_at(5, 1) };
            step(node, &append(3, vec![entry_at(4)]));
            step(node, &append(4, vec![removal, entry_at(6)]));
            let rest = Message { commit: committed, ..append(6, vec![change_at(7, 1)]) };
            step(node, &rest);
        });
        hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == EntryIndex(4));
        disk
    };
    assert_eq!(opened(&disk(4)).members.others(), [LEADER]);
    assert_eq!(begun(&disk(5)).err().unwrap().kind(), ErrorKind::Corrupt);
}

/// A configuration entry with these voters.
fn change_to(raft: u64, nodes: &[NodeId]) -> BlockCopy {
    let change = raft_message::conf_change(&[], &voters(nodes));
    let body = Bytes::from(protobuf::Message::write_to_bytes(&change).unwrap());
    let (header, _) = no_op(raft, 4);
    (BlockHeader { kind: Kind::Configuration, ..header }, vec![body])
}

/// Committed entries that replace a superseded end can change the voters. Only the entries taken for the gap counted.
#[test]
fn voters_follow_from_the_committed_entries_of_a_superseded_end() {
    let two = [LEADER, ME];
    let three = [LEADER, ME, THIRD];
    let repairing = |members: &[NodeId], committed: Vec<BlockCopy>, reported: &[NodeId]| {
        let disk = disk_of(members.len(), |node| {
            step(node, &append(members.len() as u64 + 1, vec![entry_at(members.len() as u64 + 2)]));
            step(node, &append(members.len() as u64 + 2, vec![entry_at(members.len() as u64 + 3)]));
        });
        let lost = EntryIndex(members.len() as u64 + 2);
        hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == lost);
        let mut repairing = opened(&disk);
        repairing.doubt(None);
        let doubt = repairing.treatment.doubt.as_mut().unwrap();
        doubt.rivals.take(std::iter::once(no_op(lost.0 - 1, 1)).chain(committed));
        repairing.members.voters.insert(LEADER, (EntryIndex(9), voters_of(&voters(reported))));
        repairing
    };
    let other = |members: &[_], committed, reported: &[_]| {
        repairing(members, committed, reported).other_of_two().unwrap()
    };
    assert_eq!(other(&two, vec![], &two), Some(LEADER));
    assert_eq!(other(&two, vec![change_to(4, &three)], &two), None);
    assert_eq!(other(&three, vec![], &two), None);
    assert_eq!(other(&three, vec![change_to(5, &two)], &three), None);
    assert_eq!(other(&three, vec![change_to(5, &two)], &two), Some(LEADER));
    // A change after the gap can be superseded as well.
    for (members, behind, expected) in [(&two[..], &three[..], Some(LEADER)), (&three, &two, None)] {
        let mut repairing = repairing(members, vec![], &two);
        repairing.members.in_log = (voters(behind), EntryIndex(9));
        assert_eq!(repairing.other_of_two().unwrap(), expected);
    }
    // Another node reports other voters since.
    let mut repairing = repairing(&two, vec![], &two);
    repairing.members.reported = Some((voters(&three), EntryIndex(12)));
    assert_eq!(repairing.other_of_two().unwrap(), None);
}

/// A file that could not be read counted as one without voters: the replica waited, and did not report why.
#[test]
fn voters_that_cannot_be_read_are_an_error() {
    let disk = disk_of(2, |node| {
        step(node, &append(3, vec![entry_at(4)]));
        step(node, &append(4, vec![entry_at(5)]));
    });
    hurt(&disk, |_, header| header.kind.is_entry() && header.raft_index == EntryIndex(4));
    let mut repairing = opened(&disk);
    repairing.doubt(None);
    repairing.members.voters.insert(LEADER, (EntryIndex(9), voters_of(&voters(&[LEADER, ME]))));
    disk.plan(Fault { call: None, nth: 1, lasting: true, trouble: Trouble::Eio(Landed::Nothing) });
    assert_eq!(repairing.other_of_two().unwrap_err().kind(), ErrorKind::Io);
}

/// The request begins at the entry before the gap. If another entry is committed there, all entries of the gap are of
/// another log.
#[test]
fn committed_entries_follow_only_a_committed_entry() {
    let gap = Gap::of_entries((EntryIndex(9), Term(2)), (EntryIndex(13), Term(3)));
    let question = Fetcher::new(gap.rivals(), Duration::from_secs(1), 1 << 20);
    assert_eq!(question.missing(), Some(EntryIndex(9)));
    let entries_after_gap = |committed: &[BlockCopy]| {
        gap.entries_after_gap(committed).iter().map(|(h, _)| h.raft_index.0).collect()
    };
    let none: Vec<u64> = Vec::new();
    let its_own: Vec<u64> = entries_after_gap(&[no_op(9, 2), no_op(10, 4), no_op(11, 4)]);
    assert_eq!(its_own, [10, 11]);
    assert_eq!(entries_after_gap(&[no_op(9, 1), no_op(10, 4)]), none);
    assert_eq!(entries_after_gap(&[no_op(10, 4)]), none, "it is not known which one is committed");
    let first = Gap::of_entries((EntryIndex(0), Term(1)), (EntryIndex(3), Term(1)));
    assert_eq!(first.entries_after_gap(&[no_op(1, 4)]).len(), 1, "there is none before the first entry");
}

fn no_op(raft: u64, term: u64) -> BlockCopy {
    let header =
        BlockHeader::without_records(Kind::NoOp, (EntryIndex(raft), Term(term)), Index(7), Timestamp(5), &[]);
    (header, Vec::new())
}

/// Entries 10 to 12 are missing, and entry 13, of term 3, follows. It is not known whether they were superseded.
fn in_doubt() -> Treatment {
    let gap = Gap::of_entries((EntryIndex(9), Term(2)), (EntryIndex(13), Term(3)));
    let fetcher = |gap| Fetcher::new(gap, Duration::from_secs(1), 1 << 20);
    let doubt = Doubt { rivals: fetcher(gap.rivals()), why: None, contradiction: None };
    let (opening, state_lost, is_suspected) = (None, false, false);
    Treatment { fetcher: fetcher(gap), opening, state_lost, is_suspected, doubt: Some(doubt) }
}

fn rivals(treatment: &Treatment) -> (usize, bool) {
    let doubt = treatment.doubt.as_ref().unwrap();
    (doubt.rivals.spares().len(), doubt.is_settled())
}

#[test]
fn uncommitted_entries_settle_no_doubt() {
    let mut treatment = in_doubt();
    let blocks = || vec![no_op(9, 2), no_op(10, 4), no_op(11, 4)];
    treatment.take(blocks());
    assert_eq!(rivals(&treatment), (0, false));
    treatment.take_committed(blocks());
    assert_eq!(rivals(&treatment), (3, true));
    treatment.take_committed(vec![no_op(12, 4)]);
    assert_eq!(rivals(&treatment), (3, true), "no more entries are taken");
}

/// Entries before the contradiction may have been in the gap, and may have been acknowledged.
#[test]
fn contradiction_counts_only_after_all_entries_before_it() {
    let mut treatment = in_doubt();
    treatment.take_committed(vec![no_op(12, 4)]);
    assert_eq!(rivals(&treatment), (0, false));
    treatment.take_committed(vec![no_op(9, 2), no_op(10, 2), no_op(11, 2), no_op(12, 4)]);
    assert_eq!(rivals(&treatment), (4, true));
}

#[test]
fn segment_with_possibly_acknowledged_entries_stays() {
    let gap = Gap::of_entries((EntryIndex(9), Term(2)), (EntryIndex(13), Term(3)));
    let goes = |raft, term, committed: &[BlockCopy]| {
        let base = crate::store::segment::Base { raft: EntryIndex(raft), term: Term(term), next: Index(7) };
        let committed: Vec<_> = committed.iter().map(|(header, _)| *header).collect();
        gap.goes_with(base, &committed)
    };
    let committed = [no_op(9, 2), no_op(10, 2), no_op(11, 5)];
    assert!(goes(13, 3, &committed) && goes(20, 4, &committed));
    assert!(!goes(10, 2, &committed), "it begins in the gap, after a committed entry");
    assert!(goes(11, 3, &committed), "another entry is committed where it begins");
    assert!(!goes(20, 5, &committed), "it begins in the term of the committed entries");
}
