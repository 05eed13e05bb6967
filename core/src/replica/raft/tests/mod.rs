#![allow(clippy::unwrap_used, reason = "a test")]

mod changes;
mod checks;
mod entries;
mod introduced;
mod leading;
mod without_room;

use super::fixtures::{snapshot_of, snapshot_with};
use crate::cluster::membership::{Change, Member, Membership};
use crate::cluster::memory_transport::MemoryNetwork;
use crate::cluster::options::{Bootstrap, ClusterOptions, Role};
use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::disk::sim::SimDisk;
use crate::error::ErrorKind;
use crate::options::Options;
use crate::replica::node::Node;
use crate::replica::node::driver::DrivenNode as _;
use crate::replica::node::shared::Shared;
use crate::replica::open::open;
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{LogCommand, QueueLimits, Work};
use crate::replica::state::log_table::LogTable;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::types::{DirectoryId, EntryIndex, Index, LogId, LogNumber, NodeId, Term, Timestamp};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const LOG: LogId = LogId(7);
pub(crate) const LEADER: NodeId = NodeId(1);
pub(crate) const DIRECTORY: DirectoryId = DirectoryId(11);

/// Node 2, which is joining.
pub(super) fn joining() -> Node {
    joining_over(MemoryNetwork::new().transport())
}

fn joining_over(transport: Arc<dyn Transport>) -> Node {
    joining_with(transport, Options::with_segment_bytes(64 << 10))
}

fn joining_with(transport: Arc<dyn Transport>, options: Options) -> Node {
    let cluster = ClusterOptions::new(NodeId(2), Bootstrap::Join(LOG), transport);
    node_on(&SimDisk::default(), Options { cluster: Some(cluster), ..options })
}

/// Node 2 on this disk, started with `bootstrap`.
pub(crate) fn node_with(disk: &SimDisk, bootstrap: Bootstrap) -> Node {
    let cluster = ClusterOptions::new(NodeId(2), bootstrap, MemoryNetwork::new().transport());
    node_on(disk, Options { cluster: Some(cluster), ..Options::with_segment_bytes(64 << 10) })
}

pub(crate) fn node_on(disk: &SimDisk, options: Options) -> Node {
    let opened = open(Arc::new(disk.clone()), &options).unwrap();
    opened.store.allocator.go_unaided();
    let limits = QueueLimits {
        block_bytes: 1 << 10,
        bytes: 1 << 20,
        appends: 16,
        capacity: None,
        inbox_bytes: 1 << 20,
    };
    let segments = opened.segments.clone();
    let shared = Shared::new(Path::new("node"), opened.identity, options, segments, limits);
    Node::new(opened, &shared, 1, Moment::START).unwrap()
}

/// An envelope for node 2 with this head.
pub(crate) fn envelope(from: NodeId, from_directory: DirectoryId, head: Bytes) -> Envelope {
    Envelope {
        log: LOG,
        from,
        from_directory,
        to: NodeId(2),
        to_directory: DirectoryId(0),
        head,
        bodies: Vec::new(),
        urgent: false,
    }
}

/// The directory of a voter other than node 2.
pub(crate) fn directory_of(node: NodeId) -> DirectoryId {
    if node == LEADER { DIRECTORY } else { DirectoryId(10 + u128::from(node.0)) }
}

fn from_leader(head: Bytes) -> Envelope {
    envelope(LEADER, DIRECTORY, head)
}

fn give(node: &mut Node, envelope: Envelope) {
    node.replica.receive(envelope, Moment::START, &mut node.writer.plan).unwrap();
    node.settle_before_truncation().unwrap();
}

fn deliver(node: &mut Node, head: Bytes) {
    give(node, from_leader(head));
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
}

pub(crate) fn append(index: u64, entries: Vec<Entry>) -> Message {
    let mut message = Message { from: LEADER.0, to: 2, term: 1, index, ..Message::default() };
    message.set_msg_type(MessageType::MsgAppend);
    message.log_term = 1;
    message.set_entries(entries.into());
    message
}

pub(crate) fn entry_at(index: u64) -> Entry {
    Entry { index, term: 1, ..Entry::default() }
}

/// A membership change as an entry, and the members after it.
fn change_at(index: u64, change: Change, members: &[Member]) -> Entry {
    let change = raft_message::conf_change(&[change], &Membership::of(members.iter().cloned()));
    let mut entry = entry_at(index);
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    entry.data = change.write_to_bytes().unwrap().into();
    entry
}

/// A wall clock that a test sets.
#[derive(Debug, Default)]
struct SetClock(std::sync::atomic::AtomicU64);

impl crate::options::Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// A replica looked at its clock only while it led. It was opened with a clock ten minutes ahead, kept that difference,
/// and led with it.
#[test]
fn corrected_clock_of_a_follower_is_right_when_it_leads() {
    let wall = Arc::new(SetClock::default());
    let right = |seconds: u64| 1_700_000_000_000 + seconds * 1000;
    wall.0.store(right(600), Ordering::Relaxed);
    let options = Options { clock: wall.clone(), ..Options::with_segment_bytes(64 << 10) };
    let mut node = joining_with(MemoryNetwork::new().transport(), options);
    for second in 1..=1200 {
        wall.0.store(right(second), Ordering::Relaxed);
        let now = Moment::START.plus(Duration::from_secs(second));
        node.replica.advance(now, &mut node.writer.plan).unwrap();
    }
    let now = Moment::START.plus(Duration::from_secs(1200));
    assert_eq!(node.replica.time(now), Timestamp(right(1200)));
}

/// The position after an entry was computed before the entry was checked: after the largest index it overflowed.
#[test]
fn entries_beyond_any_log_are_refused() {
    let mut node = joining();
    for (index, entries) in [
        (u64::MAX, vec![entry_at(1)]),
        (u64::MAX - 1, vec![entry_at(u64::MAX)]),
        (u64::MAX - 1, vec![entry_at(u64::MAX), entry_at(0)]),
        (u64::MAX - 2, vec![entry_at(u64::MAX - 1), entry_at(u64::MAX), entry_at(0)]),
    ] {
        deliver(&mut node, raft_message::encode_message(&append(index, entries)).unwrap());
        assert_eq!(node.replica.sequencer.end().raft, EntryIndex(0));
    }
    let mut older = append(0, vec![entry_at(1)]);
    older.log_term = 0; // raft itself searches backward from there for such a term, beyond the start of the log
    deliver(&mut node, raft_message::encode_message(&older).unwrap());
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(0));
    deliver(&mut node, raft_message::encode_message(&append(0, vec![entry_at(1)])).unwrap());
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(1));
}

/// The commit index is not always remembered after a restart. The leader of a much earlier term, which did not know of
/// this node yet, had the same commit index, and its notice was believed.
#[test]
fn sender_without_our_own_entry_cannot_know_of_our_removal() {
    let mut node = joining();
    let member = |n: u64, directory| Member::voter(NodeId(n), directory, "");
    let directory = node.replica.me.directory;
    let promotion = change_at(2, Change::Promote(NodeId(2)), &[member(1, DIRECTORY), member(2, directory)]);
    deliver(&mut node, raft_message::encode_message(&append(0, vec![entry_at(1), promotion])).unwrap());
    assert_eq!(node.replica.sequencer.pending_membership(), Some(EntryIndex(2)));
    let notice = |committed: u64| raft_message::head(HeadKind::Removed, &committed.to_le_bytes());
    deliver(&mut node, notice(1));
    assert_ne!(node.replica.role(), Role::Removed);
    deliver(&mut node, notice(2));
    assert_eq!(node.replica.role(), Role::Removed);
}

/// A deposed leader does not know a node that joined later. A node with an empty log believed its notice.
#[test]
fn joining_node_believes_no_notice_of_removal() {
    let mut node = joining();
    deliver(&mut node, raft_message::head(HeadKind::Removed, &7u64.to_le_bytes()));
    assert_ne!(node.replica.role(), Role::Removed);
    let in_term_9 = [7u64, 9].map(u64::to_le_bytes).concat();
    deliver(&mut node, raft_message::head(HeadKind::Removed, &in_term_9));
    assert_ne!(node.replica.role(), Role::Removed);
}

fn snapshot() -> Message {
    snapshot_of(LEADER, DIRECTORY, NodeId(2))
}

/// A snapshot removed the segments that it skipped before the first index had advanced. A reader that looked for one of
/// their records got an error that the log is damaged, and the scrub went there.
#[test]
fn skipped_records_are_discarded_before_their_segments_are_removed() {
    let mut node = joining();
    deliver(&mut node, raft_message::encode_message(&append(0, vec![entry_at(1)])).unwrap());
    node.step(Moment::START, Work::default()).unwrap();
    let oldest = |node: &Node| node.writer.store.segments.snapshot().first().map(|s| s.base.next);
    assert_eq!((oldest(&node), node.positions.first()), (Some(Index(1)), Index(1)));

    deliver(&mut node, raft_message::encode_message(&snapshot()).unwrap());
    assert_eq!(oldest(&node), Some(Index(1)), "not written yet");
    node.write(Moment::START).unwrap();
    assert_eq!(oldest(&node), Some(Index(100)));
    assert_eq!(node.positions.first(), Index(100), "and not published yet");
    assert_eq!(node.status(Moment::START).committed_entry, EntryIndex(50));

    // The leader's statement that its log begins there is still stored: it may discard more.
    node.step(Moment::START, Work::default()).unwrap();
    sync(&mut node);
    let kept = node.writer.store.segments.bytes_from(Index(100));
    assert_eq!(node.queue.used(), kept, "skipped records take no capacity");
    assert_eq!(
        node.writer.synced().commit,
        EntryIndex(50),
        "the commit is recorded durably, so that files may be removed"
    );
}

/// The same of a named log. Its end was published before its records were here, or in objects that readers know: a reader got an error that
/// the log is damaged.
#[test]
fn skipped_records_of_a_named_log_are_published_after_its_first_record() {
    let mut node = joining();
    let log = LogNumber(1);
    let open = |start| LogCommand::Open { log, start: Index(start) };
    let table = |start| {
        let mut table = LogTable::default();
        table.apply(open(start)).unwrap();
        table
    };
    let state = table(1);
    node.logs.show(log, [(log, state.get(log))].into_iter());
    let positions = node.logs.positions(log).unwrap();
    let skips = snapshot_with(table(41).encode(), LEADER, DIRECTORY, NodeId(2));
    deliver(&mut node, raft_message::encode_message(&skips).unwrap());
    node.write(Moment::START).unwrap();
    assert_eq!((positions.first(), positions.committed()), (Index(41), Index(0)), "not published yet");
    node.step(Moment::START, Work::default()).unwrap();
    assert_eq!((positions.first(), positions.committed()), (Index(41), Index(40)));
}

/// A rollback replays the log from its files: planned entries were missing there. The effects of a truncated entry
/// do not stay; since when objects are discarded does.
#[test]
fn entries_are_truncated_once_the_plan_is_settled() {
    let mut node = joining();
    let directory = node.replica.me.directory;
    let members = [Member::voter(LEADER, DIRECTORY, ""), Member::voter(NodeId(2), directory, "")];
    let promotion = change_at(3, Change::Promote(NodeId(2)), &members);
    let first = append(0, vec![entry_at(1), entry_at(2), promotion]);
    deliver(&mut node, raft_message::encode_message(&first).unwrap());
    assert_eq!(node.replica.sequencer.pending_membership(), Some(EntryIndex(3)));
    assert!(!node.writer.plan.is_empty());

    let replaces = Message { term: 2, ..append(1, vec![Entry { term: 2, ..entry_at(2) }]) };
    let head = raft_message::encode_message(&replaces).unwrap();
    node.replica.receive(from_leader(head), Moment::START, &mut node.writer.plan).unwrap();
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(3), "its entries are not in the files");

    let end = node.replica.sequencer.end();
    node.replica.sequencer.learn_discarded(3, end, Timestamp(7));
    assert!(node.settle_before_truncation().unwrap());
    assert!(!node.settle_before_truncation().unwrap(), "the plan is settled");
    node.replica.resume(Moment::START, &mut node.writer.plan).unwrap();
    let end = node.replica.sequencer.end();
    assert_eq!((end.raft, end.term), (EntryIndex(2), Term(2)));
    assert_eq!(node.replica.sequencer.pending_membership(), None);
    let discarded = &node.replica.sequencer.committed().discarded;
    assert_eq!(discarded.due().map(|(step, _)| step.below).collect::<Vec<_>>(), [3]);

    node.step(Moment::START, Work::default()).unwrap();
    sync(&mut node);
    let term = |raft| node.writer.archive.term(EntryIndex(raft)).unwrap();
    assert_eq!((term(1), term(2), term(3)), (Some(Term(1)), Some(Term(2)), None));
}

/// A transport that keeps the sent messages.
#[derive(Debug, Default)]
struct Wire {
    sent: Mutex<Vec<Envelope>>,
    backlog: AtomicUsize,
}

impl Transport for Wire {
    fn attach(&self, _: NodeId, _: Inbox) {}
    fn detach(&self, _: NodeId) {}

    fn send(&self, envelope: Envelope) {
        self.sent.lock().unwrap().push(envelope);
    }

    fn backlog(&self, _: NodeId) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }
}

impl Wire {
    /// The messages sent since the last call: types, and whether they are urgent.
    fn take(&self) -> Vec<(MessageType, bool)> {
        let kind = |e: Envelope| {
            let (_, body) = raft_message::parse_head(&e.head).unwrap();
            (Message::parse_from_bytes(&body).unwrap().get_msg_type(), e.urgent)
        };
        std::mem::take(&mut *self.sent.lock().unwrap()).into_iter().map(kind).collect()
    }
}

/// Delivers a message, and makes the steps that follow.
pub(crate) fn step(node: &mut Node, message: &Message) {
    let from = NodeId(message.from);
    let head = raft_message::encode_message(message).unwrap();
    let event = InboxEvent::Message(envelope(from, directory_of(from), head));
    node.step(Moment::START, Work { events: [event].into(), ..Work::default() }).unwrap();
    sync(node);
}

pub(crate) fn sync(node: &mut Node) {
    while let Some(job) = node.begin_sync(Moment::START) {
        job.run().unwrap();
        node.end_sync(Moment::START, &job).unwrap();
    }
}

/// Raft's ready waits for room.
pub(crate) fn hold(node: &mut Node) {
    node.replica.short = Some(Some(crate::error::Error::new(ErrorKind::Full, "no room")));
}

/// A raft message from node 1.
pub(crate) fn message(kind: MessageType, term: u64) -> Message {
    let mut message = Message { from: LEADER.0, to: 2, term, ..Message::default() };
    message.set_msg_type(kind);
    message
}

/// Makes node 2 a voter with node 1, and with those from 3 on if there are more voters. All entries are committed.
pub(crate) fn become_voter(node: &mut Node, voters: usize) {
    let directory = node.replica.me.directory;
    let voter = |node: NodeId| {
        Member::voter(node, if node == NodeId(2) { directory } else { directory_of(node) }, "")
    };
    let all: Vec<Member> = (1..=voters as u64).map(|node| voter(NodeId(node))).collect();
    let changed = |index: u64| {
        let members = &all[..index as usize - 1];
        change_at(index, Change::Promote(members[members.len() - 1].node), members)
    };
    let last = voters as u64 + 1;
    let mut entries = append(0, std::iter::once(entry_at(1)).chain((2..=last).map(changed)).collect());
    entries.commit = last;
    step(node, &entries);
    assert_eq!(node.replica.role(), Role::Follower);
}

/// Node 2, one of `voters` voters.
fn voter_of(voters: usize) -> Node {
    let mut node = joining();
    become_voter(&mut node, voters);
    node
}

/// Node 2, the leader of `voters` voters in term 2.
fn leader_of(voters: usize) -> Node {
    let mut node = voter_of(voters);
    lead(&mut node);
    node
}

/// Makes node 2, a voter, the leader of term 2 by node 1's vote.
fn lead(node: &mut Node) {
    step(node, &message(MessageType::MsgTimeoutNow, 1));
    step(node, &message(MessageType::MsgRequestVoteResponse, 2));
    assert_eq!(node.replica.role(), Role::Leader);
}

/// To raft an answer to a heartbeat means that everything sent before has arrived or is lost. Because heartbeats
/// overtake entries, raft sent a large entry again with each of them, while the first one was still in transit.
#[test]
fn heartbeat_answer_of_a_lagging_follower_sends_nothing_more() {
    let wire = Arc::new(Wire::default());
    let mut node = joining_over(wire.clone());
    become_voter(&mut node, 2);
    lead(&mut node);
    assert_eq!((node.replica.role(), node.replica.term()), (Role::Leader, Term(2)));
    let sent = wire.take();
    assert_eq!(sent.last(), Some(&(MessageType::MsgAppend, false)), "{sent:?}");
    assert!(sent.contains(&(MessageType::MsgRequestVote, true)), "{sent:?}");
    let answer = message(MessageType::MsgHeartbeatResponse, 2);
    for _ in 0..3 {
        wire.backlog.store(1 << 20, Ordering::Relaxed);
        step(&mut node, &answer);
        assert_eq!(wire.take(), []);
        wire.backlog.store(1 << 10, Ordering::Relaxed);
        step(&mut node, &answer);
        assert_eq!(wire.take(), [(MessageType::MsgAppend, false)]);
    }
    // It still acknowledges the entries that it has, and is sent the next ones.
    wire.backlog.store(1 << 20, Ordering::Relaxed);
    let mut all = message(MessageType::MsgAppendResponse, 2);
    all.index = 4;
    step(&mut node, &all);
    assert_eq!(node.status(Moment::default()).committed_entry, EntryIndex(4));
}

/// Barriers whose callers had given up stayed until their timeout, and nothing bounded their number.
#[test]
fn barriers_are_bounded() {
    let mut node = joining();
    let wait_limit = Duration::from_secs(60);
    let mut refused = 0;
    for _ in 0..17 << 10 {
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        node.replica
            .handle_request(
                AdminRequest::Barrier,
                wait_limit,
                completer,
                Moment::START,
                &mut node.writer.plan,
            )
            .unwrap();
        if let Some(outcome) = ticket.poll() {
            assert_eq!(outcome.map(drop).unwrap_err().kind(), ErrorKind::Busy);
            refused += 1;
        }
    }
    assert_eq!(refused, 1 << 10);
}
