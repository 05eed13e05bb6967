//! Scenarios with one replica, which gets the messages of a leader that does not exist.
//!
//! Must not know: a cluster.

use crate::cluster::membership::{Change, Member, Membership};
use crate::cluster::options::Bootstrap;
use crate::cluster::transport::Envelope;
use crate::disk::Disk as _;
use crate::disk::sim::{Damage, SimDisk};
use crate::error::Error;
use crate::replica::raft::snapshot_of;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::replica::wire::repair_message::{Fetch, encode_blocks, parse_blocks};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::segment::SegmentHeader;
use crate::sync::clock::Moment;
use crate::testing::sim::harm;
use crate::testing::sim::harm::{Block, Segment};
use crate::testing::sim::machine::{Machine, Request};
use crate::testing::sim::oracle::Check;
use crate::testing::sim::patient;
use crate::testing::sim::patient::Started;
use crate::testing::sim::plan::OBJECT_SCRUB;
use crate::testing::sim::setup::{SetClock, Setup};
use crate::testing::sim::threads::Then;
use crate::types::{DirectoryId, EntryIndex, LogId, NodeId, Term};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(super) const ELECTION_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than any step takes here.
pub(super) const LONG: Duration = Duration::from_secs(15);

const LOG: LogId = LogId(7);
const LEADER: NodeId = NodeId(1);
const ME: NodeId = NodeId(2);
const DIRECTORY: DirectoryId = DirectoryId(11);
const THIRD: NodeId = NodeId(3);
const DIRECTORY_OF_THIRD: DirectoryId = DirectoryId(13);

fn setup(bootstrap: Bootstrap) -> Setup {
    Setup {
        node: ME,
        bootstrap,
        clock: Arc::<SetClock>::default(),
        heartbeat: ELECTION_TIMEOUT / 10,
        election_timeout: ELECTION_TIMEOUT,
        session_idle_max: LONG,
        sessions_max: None,
        queue_bytes_max: 1 << 20,
        object_scrub: OBJECT_SCRUB,
        shared: false,
        vault: None,
        fills: false,
        seed: 1,
    }
}

fn envelope(from: NodeId, from_directory: DirectoryId, head: Bytes) -> Envelope {
    let (to, to_directory) = (ME, DirectoryId(0));
    Envelope { log: LOG, from, from_directory, to, to_directory, head, bodies: Vec::new(), urgent: false }
}

/// Node 2, which follows node 1.
struct Follower(Machine);

impl Follower {
    fn new() -> Check<Self> {
        Self::on(&SimDisk::default())
    }

    fn on(disk: &SimDisk) -> Check<Self> {
        let machine = Machine::open(disk, &setup(Bootstrap::Join(LOG)), Moment::START);
        Ok(Self(machine.map_err(|e| format!("the log does not open: {e}"))?))
    }

    /// Delivers a message of raft, and does everything that follows.
    fn deliver(&mut self, message: &Message, directory: DirectoryId) -> Check {
        self.gets(raft_message::encode_message(message).map_err(str::to_owned)?, directory)
    }

    /// Delivers any message.
    fn gets(&mut self, head: Bytes, directory: DirectoryId) -> Check {
        self.0.deliver(envelope(LEADER, directory, head));
        self.steps()
    }

    /// Delivers a message of node 3.
    fn deliver_from_third(&mut self, message: Message) -> Check {
        let message = Message { from: THIRD.0, ..message };
        let head = raft_message::encode_message(&message).map_err(str::to_owned)?;
        self.0.deliver(envelope(THIRD, DIRECTORY_OF_THIRD, head));
        self.steps()
    }

    /// Makes nodes 1 and 2, and then these others, the voters of its cluster, by entries 1 to 3 and the next ones.
    fn votes_beside(&mut self, others: &[Member]) -> Check {
        let here = self.0.identity().1;
        let mut voters = vec![Member::voter(LEADER, DIRECTORY, ""), Member::voter(ME, here, "")];
        voters.extend(others.iter().cloned());
        let changed = |(n, member): (usize, &Member)| {
            let membership = Membership::of(voters[..=n].iter().cloned());
            let change = raft_message::conf_change(&[Change::Promote(member.node)], &membership);
            let data = change.write_to_bytes().unwrap_or_default().into();
            Entry { data, ..change_at(n as u64 + 2, 1) }
        };
        let changes = voters.iter().enumerate().map(changed);
        self.deliver(&append(0, [entry(1)].into_iter().chain(changes).collect()), DIRECTORY)
    }

    fn steps(&mut self) -> Check {
        let now = Moment::START;
        let mut steps = || {
            while self.0.run(0, now, false).0.then == Then::Syncing {
                self.0.sync(0)?;
            }
            self.0.failure().map_or(Ok(()), Err)
        };
        steps().map_err(|e| format!("the replica fails: {e}"))
    }
}

fn message(kind: MessageType) -> Message {
    let mut message = Message { from: LEADER.0, to: ME.0, term: 1, ..Message::default() };
    message.set_msg_type(kind);
    message
}

fn append(after: u64, entries: Vec<Entry>) -> Message {
    let commit = after + entries.len() as u64;
    let mut message = message(MessageType::MsgAppend);
    (message.index, message.log_term, message.commit) = (after, 1, commit);
    message.set_entries(entries.into());
    message
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, ..Entry::default() }
}

/// An entry with an unchanged membership. A hard state with the commit index is written before it.
fn change_at(index: u64, term: u64) -> Entry {
    let mut change = Entry { index, term, ..Entry::default() };
    change.set_entry_type(EntryType::EntryConfChangeV2);
    change
}

/// The same with the membership of three voters, which can be applied.
fn promotion_at(index: u64, term: u64) -> Entry {
    let others = [(LEADER, DIRECTORY), (THIRD, DIRECTORY_OF_THIRD)].map(|(n, at)| Member::voter(n, at, ""));
    let membership = Membership::of(others.into_iter().chain([Member::voter(ME, DirectoryId(0), "")]));
    let change = raft_message::conf_change(&[Change::Promote(THIRD)], &membership);
    Entry { data: change.write_to_bytes().unwrap_or_default().into(), ..change_at(index, term) }
}

/// The barrier was answered for an index before the jump, and waits until this replica has reached it. The state
/// right after the jump was never a state of the log.
pub(super) fn barrier_is_retried_after_a_jump() -> Check {
    let mut follower = Follower::new()?;
    follower.deliver(&append(0, vec![entry(1)]), DIRECTORY)?;
    let asked =
        follower.0.submit(Request::Barrier, LONG, 0).map_err(|e| format!("the barrier is refused: {e}"))?;
    follower.steps()?;
    let question = follower.0.take_outgoing().into_iter().find_map(|envelope| {
        let (kind, body) = raft_message::parse_head(&envelope.head).ok()?;
        let message = Message::parse_from_bytes(&body).ok().filter(|_| kind == HeadKind::Raft)?;
        (message.get_msg_type() == MessageType::MsgReadIndex).then_some(message)
    });
    let Some(question) = question else { return Err("the replica does not ask its leader".to_owned()) };
    let mut answer = message(MessageType::MsgReadIndexResp);
    answer.index = 20;
    answer.set_entries(question.get_entries().to_vec().into());
    follower.deliver(&answer, DIRECTORY)?;
    follower.deliver(&snapshot_of(LEADER, DIRECTORY, ME), DIRECTORY)?;
    if follower.0.summary().committed_raft != EntryIndex(50) {
        return Err(format!("the replica does not jump: {:?}", follower.0.summary()));
    }
    match asked.poll() {
        None => Ok(()),
        Some(told) => Err(format!("a barrier from before the jump was passed: {told:?}")),
    }
}

/// Another leader has replaced the entry since: the new body must not be sent with the old header.
pub(super) fn body_of_another_term_is_not_sent() -> Check {
    let mut follower = Follower::new()?;
    follower.deliver(&append(0, vec![entry(1)]), DIRECTORY)?;
    if follower.0.body_of(EntryIndex(1), Term(1)).is_err() {
        return Err("the entry does not exist".to_owned());
    }
    match follower.0.body_of(EntryIndex(1), Term(2)) {
        Err(_) => Ok(()),
        Ok(_) => Err("the body of entry 1 of term 1 was returned for that of term 2".to_owned()),
    }
}

/// The cluster knows another directory for node 1: messages from this directory are not the leader's.
pub(super) fn message_from_another_directory_is_dropped() -> Check {
    let mut follower = Follower::new()?;
    follower.votes_beside(&[])?;
    follower.deliver(&append(3, vec![entry(4)]), DirectoryId(12))?;
    if follower.0.summary().last_raft != EntryIndex(3) {
        return Err(format!(
            "the replica accepted an entry from a directory that is no member's: {:?}",
            follower.0.summary()
        ));
    }
    follower.deliver(&append(3, vec![entry(4)]), DIRECTORY)?;
    if follower.0.summary().last_raft != EntryIndex(4) {
        return Err(format!("the replica did not accept its leader's entry: {:?}", follower.0.summary()));
    }
    Ok(())
}

/// A replica that repairs its log replaces a superseded end by entries that it receives as committed.
pub(super) fn only_committed_entries_are_sent_as_committed() -> Check {
    let mut follower = Follower::new()?;
    let entries = (1..=5).map(entry).collect();
    follower.deliver(&Message { commit: 3, ..append(0, entries) }, DIRECTORY)?;
    let anchor = (EntryIndex(5), Term(1));
    let fetch = Fetch { first: EntryIndex(2), last: EntryIndex(5), anchor, bytes_max: 1 << 20 };
    follower.gets(fetch.encode_committed(), DIRECTORY)?;
    let answer = follower.0.take_outgoing().into_iter().find_map(|envelope| {
        let (kind, body) = raft_message::parse_head(&envelope.head).ok()?;
        (kind == HeadKind::Committed).then(|| parse_blocks(&body, envelope.bodies))
    });
    let given: Option<Vec<u64>> =
        answer.and_then(Result::ok).map(|blocks| blocks.iter().map(|(h, _)| h.raft_index.0).collect());
    match given {
        Some(given) if given == [2, 3] => Ok(()),
        given => Err(format!("of five entries, of which three are committed, the replica sends {given:?}")),
    }
}

/// The replica has voted in term 9, and got entries of that term. Then entry 5 and the hard state after it are
/// damaged, and only a leader of term 1 is heard during the repair. The vote of term 9, which the disk still holds,
/// binds the replica.
pub(super) fn vote_on_the_disk_is_not_cast_again() -> Check {
    let (disk, fifth) = voted_in_nine(of_nine((6, 9), vec![Entry { term: 9, ..entry(7) }]))?;
    lose(&disk, |b| b.header.raft_index == EntryIndex(5))?;
    keeps_its_vote(&disk, &fifth)
}

/// The same, and the power failed during the last write: its first block is torn, and a hard state behind that is sound. It is cut off with
/// the torn block, so it says nothing of the vote that was damaged.
pub(super) fn hard_state_behind_a_torn_write_counts_for_nothing() -> Check {
    let last = of_nine((6, 9), vec![Entry { term: 9, ..entry(7) }, promotion_at(8, 9)]);
    let (disk, fifth) = voted_in_nine(Message { commit: 6, ..last })?;
    let segment = newest(&disk)?;
    let is_torn = |b: &&Block| b.header.raft_index == EntryIndex(7) && b.header.kind.is_entry();
    let Some(torn) = segment.blocks.iter().find(is_torn).map(|b| b.at) else {
        return Err("entry 7 does not exist".to_owned());
    };
    unprove(&disk, torn)?;
    let segment = newest(&disk)?;
    let behind: Vec<_> = segment.blocks.iter().filter(|b| b.at > torn).collect();
    if !behind.iter().any(|b| b.header.kind == Kind::HardState)
        || behind.iter().any(|b| b.header.durable_upto as usize > torn)
    {
        return Err("entry 7 is proven, or no hard state follows it".to_owned());
    }
    lose(&disk, |b| b.header.raft_index == EntryIndex(5) || b.at == torn)?;
    keeps_its_vote(&disk, &fifth)
}

/// A message of the leader of term 9, with entries that follow this one.
fn of_nine((after, term): (u64, u64), entries: Vec<Entry>) -> Message {
    Message { term: 9, log_term: term, commit: 4, ..append(after, entries) }
}

/// The disk of a replica that has voted in term 9, and then got entries 5 and 6 and this message; and entry 5, which a hard state follows.
fn voted_in_nine(last: Message) -> Check<(SimDisk, BlockHeader)> {
    let disk = SimDisk::default();
    let mut follower = Follower::on(&disk)?;
    follower.votes_beside(&[Member::voter(THIRD, DIRECTORY_OF_THIRD, "")])?;
    let mut candidacy = Message { term: 9, index: 9, log_term: 1, ..message(MessageType::MsgRequestVote) };
    candidacy.context = Bytes::from_static(b"CampaignTransfer");
    follower.deliver_from_third(candidacy)?;
    follower.deliver_from_third(of_nine((4, 1), vec![entry(5)]))?;
    follower.deliver_from_third(of_nine((5, 1), vec![promotion_at(6, 9)]))?;
    follower.deliver_from_third(last)?;
    let fifth = follower.0.entry(EntryIndex(5)).ok().flatten();
    let Some(fifth) = fifth else { return Err("entry 5 does not exist".to_owned()) };
    drop(follower);
    let disk = disk.kill();
    let of_fifth = |b: &Block| b.header.raft_index == EntryIndex(5) && b.header.kind == Kind::HardState;
    match newest(&disk)?.blocks.iter().any(of_fifth) {
        true => Ok((disk, fifth)),
        false => Err("there is no hard state after entry 5".to_owned()),
    }
}

fn newest(disk: &SimDisk) -> Check<Segment> {
    harm::begun(&disk.visible()).next().ok_or_else(|| "nothing was written".to_owned())
}

/// Makes the block at this offset of the newest segment the first of a write that no block proves: those behind it say at most that all
/// before it is durable.
fn unprove(disk: &SimDisk, first: usize) -> Check {
    let segment = newest(disk)?;
    let file = disk.visible().file(&segment.name).unwrap_or_default();
    let id = SegmentHeader::parse(&file).map_err(|fault| format!("no segment: {fault:?}"))?.id;
    let fails = |error: io::Error| format!("the segment is not rewritten: {error}");
    let file = disk.open(&segment.name, true).map_err(fails)?;
    for block in segment.blocks.iter().filter(|b| b.at >= first) {
        let durable_upto = block.header.durable_upto.min(first as u32);
        let head = BlockHeader { durable_upto, ..block.header }.encode(id);
        file.write_at(block.at as u64, &[io::IoSlice::new(&head)]).map_err(fails)?;
    }
    Ok(())
}

/// Damages blocks of the newest segment.
fn lose(disk: &SimDisk, is_lost: impl Fn(&Block) -> bool) -> Check {
    let segment = newest(disk)?;
    for block in segment.blocks.iter().filter(|b| is_lost(b)) {
        disk.damage(&segment.name, &Damage::FlipBit { bit: (block.at as u64 + 20) * 8 });
    }
    Ok(())
}

/// Repairs the log with this entry, while a leader of term 1 is heard. The replica has to remember its vote of term 9.
fn keeps_its_vote(disk: &SimDisk, fifth: &BlockHeader) -> Check {
    let answer = envelope(LEADER, DIRECTORY, encode_blocks(HeadKind::Blocks, std::iter::once(fifth)));
    let Some((machine, has_listened)) = repaired(disk, answer)? else {
        return Err("the log is not repaired".to_owned());
    };
    if !has_listened {
        return Err("the replica continues before it has listened".to_owned());
    }
    let summary = machine.summary();
    if (summary.term, NodeId(summary.vote)) != (Term(9), THIRD) {
        return Err(format!(
            "the replica voted for node {THIRD} in term 9 and has forgotten it: {summary:?}"
        ));
    }
    Ok(())
}

/// Lets a replica repair its log with this answer, while a leader of term 1 is heard, and whether it has listened for as long as one that has
/// lost its vote. None: the log is not repaired.
fn repaired(disk: &SimDisk, answer: Envelope) -> Check<Option<(Machine, bool)>> {
    let fails = |error: Error| format!("the repair fails: {error}");
    let started = patient::start(disk, &setup(Bootstrap::Existing), Moment::START).map_err(fails)?;
    let Started::Patient(mut patient) = started else {
        return Err("the log opens without a repair".to_owned());
    };
    let beat = raft_message::encode_message(&message(MessageType::MsgHeartbeat)).map_err(str::to_owned)?;
    patient.deliver(answer);
    // A leader's messages arrive without a pause for two election time-outs.
    let times = (0..=4).map(|n| Moment::START.plus(LONG).plus(ELECTION_TIMEOUT / 2 * n));
    for (n, now) in std::iter::once(Moment::START).chain(times).enumerate() {
        patient.deliver(envelope(LEADER, DIRECTORY, beat.clone()));
        if let Some(opened) = patient.step(now).map_err(fails)? {
            let machine = patient.recover(opened, now).map_err(fails)?;
            return Ok(Some((machine, n == 5)));
        }
    }
    Ok(None)
}
