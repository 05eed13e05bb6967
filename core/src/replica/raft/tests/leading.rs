//! Elections, leaders, and what a leader sends to the others.

use super::*;
use crate::error::Error;
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::store::block_bytes;
use crate::sync::completion::{Durability, Ticket};
use crate::types::LogNumber;

const HEARTBEAT: Duration = Duration::from_millis(100);

/// The receivers of the sent messages of this kind.
pub(super) fn heads(node: &mut Node, wanted: HeadKind) -> Vec<NodeId> {
    let sent = node.replica.take_outgoing();
    let is_wanted = |e: &Envelope| raft_message::parse_head(&e.head).unwrap().0 == wanted;
    sent.iter().filter(|e| is_wanted(e)).map(|e| e.to).collect()
}

pub(super) fn give_from(node: &mut Node, from: NodeId, head: Bytes) {
    give(node, envelope(from, directory_of(from), head));
}

fn give_raft(node: &mut Node, from: u64, mut message: Message) {
    message.from = from;
    give_from(node, NodeId(from), raft_message::encode_message(&message).unwrap());
}

/// Each voter waits for its own part of the timeout, and the first one changes with each term.
#[test]
fn voters_start_elections_one_after_the_other() {
    let mut node = voter_of(3);
    let election = node.replica.ticks.election;
    let apart = (election * 3 / 5).div_ceil(3);
    assert!(apart > 1);
    for term in 2..8 {
        step(&mut node, &message(MessageType::MsgHeartbeat, term));
        let place = (1 + term as usize) % 3; // node 2 is the second of 1, 2 and 3
        let timeout = election + (1 + place * apart).min(election - 1);
        assert_eq!(node.replica.raw.raft.randomized_election_timeout(), timeout, "term {term}");
    }
}

#[test]
fn replica_without_a_rank_waits_a_random_time() {
    let mut node = joining();
    let election = node.replica.ticks.election;
    let mut seen = std::collections::BTreeSet::new();
    for term in 2..40 {
        step(&mut node, &message(MessageType::MsgHeartbeat, term));
        seen.insert(node.replica.raw.raft.randomized_election_timeout());
    }
    assert!(seen.iter().all(|t| (election..2 * election).contains(t)), "{seen:?}");
    assert!(seen.len() > 4, "{seen:?}");
}

/// Lets ticks pass until the node sends a pre-vote. Returns their number.
fn ticks_until_it_asks(node: &mut Node, now: &mut Moment) -> usize {
    for ticks in 1..100 {
        *now = now.plus(HEARTBEAT);
        node.replica.advance(*now, &mut node.writer.plan).unwrap();
        let asks = |e: Envelope| {
            let (kind, body) = raft_message::parse_head(&e.head).unwrap();
            let message = || Message::parse_from_bytes(&body).unwrap();
            kind == HeadKind::Raft && message().get_msg_type() == MessageType::MsgRequestPreVote
        };
        if node.replica.take_outgoing().into_iter().any(asks) {
            return ticks;
        }
    }
    panic!("it never starts an election");
}

/// The others may still have waited for a leader that they heard a little later.
#[test]
fn candidate_without_answers_retries_soon() {
    let mut node = voter_of(3);
    step(&mut node, &message(MessageType::MsgHeartbeat, 3));
    let election = node.replica.ticks.election;
    let mut now = Moment::START;
    let rank = (1 + 3) % 3;
    let apart = (election * 3 / 5).div_ceil(3);
    assert_eq!(ticks_until_it_asks(&mut node, &mut now), election + 1 + rank * apart);
    let again = (election / 3).max(2) + rank;
    let asked = [(); 3].map(|()| ticks_until_it_asks(&mut node, &mut now));
    assert_eq!(asked, [again - 1, again, again], "the tick in which the election started counts");
}

/// Two candidates at the same moment could each get half of the votes.
#[test]
fn candidate_withdraws_in_favor_of_a_lower_rank() {
    let stands = |term: u64, from: u64, index: u64, asked_in: u64| {
        let mut node = voter_of(3);
        step(&mut node, &message(MessageType::MsgHeartbeat, term));
        ticks_until_it_asks(&mut node, &mut Moment::START.plus(Duration::ZERO));
        assert_eq!(node.replica.role(), Role::Candidate);
        let mut question = message(MessageType::MsgRequestPreVote, asked_in);
        (question.index, question.log_term) = (index, 1);
        give_raft(&mut node, from, question);
        node.replica.role() == Role::Candidate
    };
    // In term 3 the order is 1, 2, 3; in term 4 it is 3, 1, 2; in term 5 it is 2, 3, 1.
    assert!(!stands(3, 1, 4, 4));
    assert!(stands(3, 3, 4, 4));
    assert!(!stands(4, 3, 4, 5));
    assert!(!stands(4, 1, 4, 5));
    assert!(stands(5, 1, 4, 6));
    assert!(stands(5, 3, 4, 6));
    assert!(stands(3, 1, 3, 4), "the other candidate lacks an entry");
    assert!(stands(3, 1, 4, 3), "the other candidate's term has begun already");
}

/// A process that was suspended knows nothing of that time. A process that is only late runs its missed ticks.
#[test]
fn late_ticks_are_run_and_ticks_of_a_suspension_are_not() {
    let elapsed = |intervals: u32| {
        let mut node = voter_of(3);
        node.replica.raw.raft.election_elapsed = 0;
        node.replica.advance(Moment::START.plus(HEARTBEAT * intervals), &mut node.writer.plan).unwrap();
        node.replica.raw.raft.election_elapsed
    };
    assert_eq!([0, 1, 4, 8, 9, 30].map(elapsed), [0, 1, 4, 8, 1, 1]);
}

/// A close waits only for appends that can still be committed.
#[test]
fn leader_without_a_heard_majority_can_commit_nothing() {
    let mut node = voter_of(2);
    assert!(!node.replica.can_commit(Moment::START), "it does not lead");
    lead(&mut node);
    assert!(node.replica.can_commit(Moment::START.plus(HEARTBEAT * 3)));
    assert!(!node.replica.can_commit(Moment::START.plus(HEARTBEAT * 3 + Duration::from_millis(1))));
}

#[test]
fn leader_reports_how_far_the_others_are() {
    let mut node = voter_of(2);
    assert!(node.replica.peer_statuses(Moment::START).is_empty());
    lead(&mut node);
    let mut answer = message(MessageType::MsgAppendResponse, 2);
    answer.index = 3;
    step(&mut node, &answer);
    let peers = node.replica.peer_statuses(Moment::START);
    let told: Vec<_> = peers.iter().map(|p| (p.node, p.matched.0, p.lag, p.active)).collect();
    assert_eq!(told, [(LEADER, 3, 1, true)]);
    assert_eq!((node.replica.term(), node.replica.leader()), (Term(2), Some(NodeId(2))));
}

/// Only a leader knows who was removed, and it notifies only nodes that are no members.
#[test]
fn stranger_that_requests_votes_is_notified_of_its_removal() {
    let mut node = voter_of(2);
    let question = || message(MessageType::MsgRequestPreVote, 3);
    give_raft(&mut node, 3, question());
    assert_eq!(heads(&mut node, HeadKind::Removed), []);
    lead(&mut node);
    give_raft(&mut node, 1, question());
    give_raft(&mut node, 3, message(MessageType::MsgHeartbeatResponse, 2));
    assert_eq!(heads(&mut node, HeadKind::Removed), []);
    give_raft(&mut node, 3, question());
    assert_eq!(heads(&mut node, HeadKind::Removed), [NodeId(3)]);
}

/// A replica whose directory was replaced while it repaired its log only greets. It repaired forever.
#[test]
fn replaced_directory_that_greets_is_notified_of_its_removal() {
    let mut node = voter_of(3);
    let hello = || raft_message::head(HeadKind::Hello, &[0; 16]);
    let former = |head| envelope(NodeId(3), DirectoryId(9), head);
    give(&mut node, former(hello()));
    assert_eq!(heads(&mut node, HeadKind::Removed), [], "it does not lead");
    lead(&mut node);
    node.replica.take_outgoing();
    give(&mut node, former(hello()));
    let notice = node.replica.take_outgoing().pop().unwrap();
    assert_eq!(raft_message::parse_head(&notice.head).unwrap().0, HeadKind::Removed);
    assert_eq!((notice.to, notice.to_directory), (NodeId(3), DirectoryId(9)));
    give_from(&mut node, NodeId(3), hello());
    assert_eq!(heads(&mut node, HeadKind::Removed), []);
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "no room")
}

#[test]
fn leader_without_room_asks_once_in_an_election_timeout() {
    let mut node = voter_of(2);
    let timeout = node.replica.cluster.election_timeout;
    node.replica.has_refused(1000, &full(), Moment::START);
    assert_eq!(heads(&mut node, HeadKind::Room), [], "it does not lead");
    lead(&mut node);
    node.replica.take_outgoing();
    let soon = timeout - Duration::from_millis(1);
    let busy = Error::new(ErrorKind::Busy, "much to do");
    let io = Error::new(ErrorKind::Io, "no file");
    for (error, after, asks) in [
        (&busy, Duration::ZERO, false),
        (&full(), Duration::ZERO, true),
        (&full(), soon, false),
        (&full(), timeout, true),
        (&io, timeout * 2, true),
        (&busy, timeout * 4, false),
    ] {
        node.replica.has_refused(1000, error, Moment::START.plus(after));
        let asked = heads(&mut node, HeadKind::Room);
        assert_eq!(asked, if asks { vec![LEADER] } else { vec![] }, "{error} after {after:?}");
    }
}

/// A voter that may not lead, or lacks room itself, does not answer.
#[test]
fn voter_with_room_answers_the_leader() {
    let ask = |node: &mut Node, bytes: u64| {
        give_from(node, LEADER, raft_message::head(HeadKind::Room, &bytes.to_le_bytes()));
        node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
        heads(node, HeadKind::HasRoom)
    };
    let mut node = joining();
    step(&mut node, &message(MessageType::MsgHeartbeat, 1));
    assert_eq!(ask(&mut node, 100), [], "a learner");
    become_voter(&mut node, 2);
    assert_eq!(ask(&mut node, 100), [LEADER]);
    assert_eq!(ask(&mut node, u32::MAX.into()), []);
    assert_eq!(ask(&mut node, 40_000), [LEADER]);
    assert_eq!(ask(&mut node, 65_000), [], "no segment here is this large");
    assert_eq!(ask(&mut node, u64::MAX), [], "no block is this large");
    node.replica.admission.set_short(true);
    assert_eq!(ask(&mut node, 100), [], "it has no room for the leader's entries");
    node.replica.admission.set_short(false);
    node.replica.misplaced = Some(full());
    node.replica.answer_room(Moment::START, &mut node.writer.plan).unwrap();
    assert_eq!(heads(&mut node, HeadKind::HasRoom), [], "it takes no part");
}

/// A leader of three whose voters have all entries, after it refused an append for want of room.
fn leader_that_refuses_1000_bytes() -> Node {
    let mut node = leader_of(3);
    for from in [1, 3] {
        let mut answer = message(MessageType::MsgAppendResponse, 2);
        answer.index = 5;
        give_raft(&mut node, from, answer);
    }
    node.replica.has_refused(1000, &full(), Moment::START);
    node
}

/// If only one of three had room, nothing could be committed without the leader's disk.
#[test]
fn leadership_is_transferred_only_if_a_majority_has_room() {
    let mut node = leader_that_refuses_1000_bytes();
    assert_eq!(heads(&mut node, HeadKind::Room), [LEADER, NodeId(3)]);
    let room = |bytes: u64| raft_message::head(HeadKind::HasRoom, &bytes.to_le_bytes());
    give_from(&mut node, LEADER, room(999));
    give_from(&mut node, LEADER, room(1000));
    assert_eq!(node.replica.raw.raft.lead_transferee, None);
    give_from(&mut node, NodeId(3), room(1000));
    assert!(node.replica.raw.raft.lead_transferee.is_some());
}

/// Records that still had room, beside larger ones that had none, ended each request before it was answered.
#[test]
fn smaller_records_do_not_end_a_request_for_room() {
    for (stride, is_transferred) in [(block_bytes(900), true), (block_bytes(1000), false)] {
        let mut node = leader_that_refuses_1000_bytes();
        node.replica.has_taken(stride);
        for from in [LEADER, NodeId(3)] {
            give_from(&mut node, from, raft_message::head(HeadKind::HasRoom, &1000u64.to_le_bytes()));
        }
        assert_eq!(node.replica.raw.raft.lead_transferee.is_some(), is_transferred, "{stride}");
    }
}

/// A client that tried large records again and again had every request be for these, and the others had room for small ones alone.
#[test]
fn smaller_records_are_asked_for_at_once() {
    for (bytes, is_asked) in [(1000, false), (100, true)] {
        let mut node = leader_that_refuses_1000_bytes();
        node.replica.take_outgoing();
        node.replica.has_refused(bytes, &full(), Moment::START);
        assert_eq!(!heads(&mut node, HeadKind::Room).is_empty(), is_asked, "{bytes}");
    }
}

/// The outcome of a transfer to node 1 when this node leads. None: not answered yet.
fn transferred(leads: Option<u64>) -> Option<Result<(), ErrorKind>> {
    let mut node = leader_of(3);
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    let wait_limit = Duration::from_secs(60);
    node.replica
        .handle_request(
            AdminRequest::Transfer(LEADER),
            wait_limit,
            completer,
            Moment::START,
            &mut node.writer.plan,
        )
        .unwrap();
    if let Some(from) = leads {
        give_raft(&mut node, from, message(MessageType::MsgHeartbeat, 3));
    }
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    node.step(Moment::START, Work::default()).unwrap();
    ticket.poll().map(|outcome| outcome.map(drop).map_err(|error| error.kind()))
}

#[test]
fn transfer_is_answered_once_the_leader_is_known() {
    assert_eq!(transferred(None), None);
    assert_eq!(transferred(Some(1)), Some(Ok(())));
    assert_eq!(transferred(Some(3)), Some(Err(ErrorKind::Unavailable)));
}

/// A learner that was never heard may lack all entries, however short the log is.
#[test]
fn learner_is_promoted_once_it_has_answered() {
    let mut node = leader_of(2);
    let acknowledged = |from, index| {
        let mut answer = message(MessageType::MsgAppendResponse, 2);
        (answer.from, answer.index, answer.commit) = (from, index, index);
        answer
    };
    let change = |node: &mut Node, change| {
        let wait_limit = Duration::from_secs(60);
        let ask = AdminRequest::Change(vec![change], false);
        node.replica
            .handle_request(ask, wait_limit, Completer::new(), Moment::START, &mut node.writer.plan)
            .unwrap();
        node.step(Moment::START, Work::default()).unwrap();
        sync(node);
        node.replica.raw.raft.raft_log.last_index()
    };
    step(&mut node, &acknowledged(1, 4));
    let (learner, directory) = (NodeId(3), DirectoryId(13));
    let address = String::new();
    assert_eq!(change(&mut node, Change::AddLearner { node: learner, directory, address }), 5);
    assert_eq!(node.replica.changes_not_in_force(), 0);
    assert!(node.replica.membership().get(learner).is_none(), "node 1 has not acknowledged it");
    step(&mut node, &acknowledged(1, 5));
    step(&mut node, &acknowledged(1, 5));
    assert!(node.replica.membership().get(learner).is_some());
    assert_eq!(change(&mut node, Change::Promote(learner)), 5, "it lacks all entries");
    give_raft(&mut node, 3, acknowledged(3, 5));
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert_eq!(node.replica.raw.raft.raft_log.last_index(), 6);
}

#[test]
fn change_that_times_out_names_what_it_waits_for() {
    let mut node = leader_of(2);
    let second = Duration::from_secs(1);
    let add = |node: &mut Node, learner: u64| {
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        let (directory, address) = (DirectoryId(u128::from(learner)), String::new());
        let change = Change::AddLearner { node: NodeId(learner), directory, address };
        let ask = AdminRequest::Change(vec![change], false);
        node.replica.handle_request(ask, second, completer, Moment::START, &mut node.writer.plan).unwrap();
        node.step(Moment::START, Work::default()).unwrap();
        sync(node);
        ticket
    };
    let acknowledged =
        |index, commit| Message { index, commit, ..message(MessageType::MsgAppendResponse, 2) };
    step(&mut node, &acknowledged(4, 4));
    let first = add(&mut node, 3);
    step(&mut node, &acknowledged(5, 4));
    assert_eq!(node.status(Moment::START).committed_entry, EntryIndex(5));
    let next = add(&mut node, 4);
    node.replica.advance(Moment::START.plus(second), &mut node.writer.plan).unwrap();
    let why = |ticket: Ticket| ticket.poll().unwrap().map(drop).unwrap_err().to_string();
    let waits = "the change of entry 5 is committed, and takes effect once";
    let (first, next) = (why(first), why(next));
    assert!(first.contains(waits) && !first.contains("an earlier change"), "{first}");
    assert!(next.contains(&format!("an earlier change has not taken effect: {waits}")), "{next}");
}

/// Its entries may not be durable yet, and its vote for itself would count as if they were.
#[test]
fn voter_whose_log_is_not_durable_starts_no_election() {
    let mut node = voter_of(3);
    give(&mut node, from_leader(raft_message::encode_message(&append(4, vec![entry_at(5)])).unwrap()));
    let mut now = Moment::START;
    for _ in 0..4 * node.replica.ticks.election {
        now = now.plus(HEARTBEAT);
        node.replica.advance(now, &mut node.writer.plan).unwrap();
    }
    assert_eq!(node.replica.role(), Role::Follower);
}

/// If the leader's disk is set back, only its followers can tell that entries are missing.
#[test]
fn leaders_heartbeats_carry_how_far_its_disk_is() {
    let mut node = leader_of(2);
    node.replica.take_outgoing();
    node.replica.advance(Moment::START.plus(HEARTBEAT), &mut node.writer.plan).unwrap();
    let (_, body) = raft_message::parse_head(&node.replica.take_outgoing().pop().unwrap().head).unwrap();
    let heartbeat = Message::parse_from_bytes(&body).unwrap();
    assert_eq!((heartbeat.get_msg_type(), heartbeat.index), (MessageType::MsgHeartbeat, 4));
}

/// The next leader may make the change or not.
#[test]
fn change_is_answered_when_its_leader_is_deposed() {
    let mut node = leader_of(2);
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    let ask = AdminRequest::Change(vec![Change::Remove(LEADER)], false);
    node.replica
        .handle_request(ask, Duration::from_secs(60), completer, Moment::START, &mut node.writer.plan)
        .unwrap();
    assert!(ticket.poll().is_none());
    step(&mut node, &message(MessageType::MsgHeartbeat, 3));
    assert_eq!(ticket.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Proposes a command at a leader.
fn order(node: &mut Node, command: Command) -> Ticket {
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    node.replica.command(command, Some(completer), Moment::START, &mut node.writer.plan).unwrap();
    ticket
}

/// A log that is opened once more, with nothing else under way, waits for no slice of entries: no later commit would answer it.
#[test]
fn opening_that_changes_nothing_is_answered_at_once() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Init);
    let log = LogNumber(1);
    let open = Command::Log(LogCommand::Open { log, start: Index(1) });
    let first = order(&mut node, open);
    let none_is_stored = EntryIndex(0);
    let committed = node.replica.sequencer.end().raft;
    for (completer, outcome) in node.replica.commit_to(committed, none_is_stored, |_| Durability::Majority) {
        completer.answer(outcome);
    }
    assert!(first.poll().unwrap().is_ok());
    for command in [open, Command::Log(LogCommand::Drop { log: LogNumber(2) })] {
        assert!(order(&mut node, command).poll().expect("it is answered").is_ok());
    }
    assert!(!node.replica.has_waiting());
}

/// Of logs that are opened together none is opened behind one that is not.
#[test]
fn log_is_opened_after_the_one_before_it_alone() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Init);
    let [none, one, two] = [0, 1, 2].map(LogNumber);
    let refused = order(&mut node, Command::OpenAfter { log: two, after: one });
    assert_eq!(refused.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
    for (log, after) in [(one, none), (two, one)] {
        assert!(
            order(&mut node, Command::OpenAfter { log, after }).poll().is_none(),
            "it waits for its commit"
        );
        assert_eq!(node.replica.sequencer.logs().opened(), log);
    }
}

/// The append's leader was deposed, and no later leader decides its outcome.
#[test]
fn append_without_a_leader_fails_after_two_election_timeouts() {
    let mut node = leader_of(2);
    let ticket = order(&mut node, Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 60_000 });
    step(&mut node, &message(MessageType::MsgHeartbeat, 3));
    let timeout = node.replica.cluster.election_timeout * 2;
    node.replica
        .advance(Moment::START.plus(timeout - Duration::from_millis(1)), &mut node.writer.plan)
        .unwrap();
    assert!(ticket.poll().is_none());
    node.replica.advance(Moment::START.plus(timeout), &mut node.writer.plan).unwrap();
    assert_eq!(ticket.poll().unwrap().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// The next leader has the first of two entries, and another entry instead of the second one.
#[test]
fn append_that_stays_in_the_log_is_answered_by_its_commit() {
    let mut node = leader_of(2);
    let stays = order(&mut node, Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 60_000 });
    let is_cut_off = order(&mut node, Command::Discard { first: Index(100) });
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(6));
    let mut other = append(5, vec![Entry { index: 6, term: 3, ..Entry::default() }]);
    (other.term, other.log_term, other.commit) = (3, 2, 6);
    step(&mut node, &other);
    node.step(Moment::START, Work::default()).unwrap();
    let kept = node.writer.store.segments.bytes_from(Index(1));
    assert_eq!(node.queue.used(), kept, "truncated entries take no capacity");
    let outcome = |ticket: Ticket| ticket.poll().unwrap().map(drop).map_err(|error| error.kind());
    assert_eq!(outcome(is_cut_off), Err(ErrorKind::Unavailable));
    assert_eq!(outcome(stays), Ok(()));
    assert_eq!(node.published.counters.truncated.load(Ordering::Relaxed), 99);
}

/// Without a report, raft would wait forever for a snapshot.
#[test]
fn snapshot_without_an_answer_is_given_up() {
    let mut node = leader_of(2);
    let state = |node: &Node| node.replica.raw.raft.prs().get(1).unwrap().state;
    let until = node.replica.ticks.next.plus(node.replica.cluster.election_timeout);
    let sent = Message { from: 2, to: 1, ..message(MessageType::MsgSnapshot, 2) };
    node.replica.send(vec![sent.clone()]);
    node.replica.report_snapshots(until);
    assert_ne!(state(&node), raft::ProgressState::Snapshot, "it arrived long ago");
    node.replica.send(vec![sent]);
    node.replica.raw.raft.mut_prs().get_mut(1).unwrap().become_snapshot(4);
    node.replica.report_snapshots(Moment::START);
    assert_eq!(state(&node), raft::ProgressState::Snapshot);
    node.replica.report_snapshots(until);
    assert_eq!(state(&node), raft::ProgressState::Probe);
}
