//! Messages that a replica accepts from others, and messages that it refuses.

use super::*;
use crate::replica::raft::peers::checks::parse_snapshot;
use crate::replica::wire::repair_message::{Fetch, encode_blocks};

#[test]
fn positions_in_messages_are_bounded() {
    const MAX: u64 = u64::MAX >> 1;
    let mut node = joining();
    let fields: [fn(&mut Message) -> &mut u64; 3] =
        [|m| &mut m.index, |m| &mut m.commit, |m| &mut m.reject_hint];
    for field in fields {
        for (place, is_taken) in [(MAX, true), (MAX + 1, false), (u64::MAX, false)] {
            let mut answer = message(MessageType::MsgAppendResponse, 1);
            *field(&mut answer) = place;
            assert_eq!(node.replica.check_message(&answer).is_ok(), is_taken, "{place}");
        }
    }
}

#[test]
fn read_index_request_needs_exactly_one_context() {
    let mut node = joining();
    for (contexts, is_taken) in [(0, false), (1, true), (2, false)] {
        let mut question = message(MessageType::MsgReadIndex, 1);
        question.set_entries(vec![Entry::default(); contexts].into());
        assert_eq!(node.replica.check_message(&question).is_ok(), is_taken, "{contexts}");
    }
}

/// A leader relies on what was acknowledged to it. The leader of an earlier term does not lead any more.
#[test]
fn replica_with_less_than_it_acknowledged_takes_no_part() {
    let mut node = joining();
    step(&mut node, &message(MessageType::MsgHeartbeat, 2));
    let mut older = message(MessageType::MsgHeartbeat, 1);
    older.commit = 5;
    step(&mut node, &older);
    assert_eq!(node.replica.role(), Role::Learner);
    step(&mut node, &Message { term: 2, ..older });
    assert_eq!(node.replica.role(), Role::Removed);
}

#[test]
fn snapshot_with_a_cut_off_head_is_refused() {
    let mut snapshot = raft::eraftpb::Snapshot { data: vec![0; 16].into(), ..Default::default() };
    assert!(parse_snapshot(&snapshot).is_ok());
    snapshot.data = vec![0; 15].into();
    assert!(parse_snapshot(&snapshot).is_err());
}

#[test]
fn snapshot_with_another_configuration_than_its_opening_is_refused() {
    let mut node = joining();
    let mut other = snapshot();
    other.mut_snapshot().mut_metadata().mut_conf_state().voters.push(9);
    assert!(node.replica.check_message(&other).is_err());
    assert!(node.replica.check_message(&snapshot()).is_ok());
}

/// Of the entry before the first one of a log, only the term is known.
#[test]
fn entries_that_do_not_fit_the_start_of_the_log_are_refused() {
    let mut node = joining();
    step(&mut node, &snapshot());
    assert_eq!(node.status(Moment::START).committed_entry, EntryIndex(50));
    let mut next = append(50, vec![entry_at(51)]);
    next.log_term = 0;
    assert!(node.replica.check_message(&next).is_err(), "it follows an entry of an older term");
    next.log_term = 1;
    assert!(node.replica.check_message(&next).is_ok());
    assert_eq!(node.replica.role(), Role::Learner);
    next.log_term = 2;
    next.term = 2;
    assert!(node.replica.check_message(&next).is_err(), "the committed entry has another term");
    assert_eq!(node.replica.role(), Role::Removed);
}

#[test]
fn member_is_accepted_only_from_its_own_directory() {
    let mut node = voter_of(2);
    let heartbeat = raft_message::encode_message(&message(MessageType::MsgHeartbeat, 5)).unwrap();
    let impostor = Envelope { from_directory: DirectoryId(12), ..from_leader(heartbeat.clone()) };
    give(&mut node, impostor);
    assert_eq!(node.replica.term(), Term(1));
    give(&mut node, from_leader(heartbeat));
    assert_eq!(node.replica.term(), Term(5));
}

#[test]
fn only_a_leader_decides_which_directory_is_the_members() {
    let mut node = joining();
    let own = node.replica.me.directory;
    let told = |kind, to_directory| {
        let head = raft_message::encode_message(&message(kind, 1)).unwrap();
        Envelope { to_directory, ..from_leader(head) }
    };
    give(&mut node, told(MessageType::MsgRequestVote, DirectoryId(99)));
    assert_eq!(node.replica.role(), Role::Learner);
    give(&mut node, told(MessageType::MsgHeartbeat, DirectoryId(99)));
    assert_eq!(node.replica.role(), Role::Removed);
    give(&mut node, told(MessageType::MsgRequestVote, own));
    assert_eq!(node.replica.role(), Role::Removed);
    give(&mut node, told(MessageType::MsgHeartbeat, own));
    assert_eq!(node.replica.role(), Role::Learner);
}

/// The leader of an earlier term may not know that a member was added.
#[test]
fn deposed_leader_removes_nobody() {
    let notice = |committed: u64, term: u64| {
        raft_message::head(HeadKind::Removed, &[committed, term].map(u64::to_le_bytes).concat())
    };
    let mut node = voter_of(2);
    step(&mut node, &message(MessageType::MsgHeartbeat, 3));
    for (committed, term, is_believed) in [(3, 2, false), (2, 3, false), (3, 3, true)] {
        give(&mut node, from_leader(notice(committed, term)));
        assert_eq!(node.replica.role() == Role::Removed, is_believed, "{committed} in term {term}");
    }
    let mut node = voter_of(2);
    give(&mut node, from_leader(notice(9, 9)));
    assert_eq!(node.replica.role(), Role::Removed, "the leader of a later term knows more");
}

/// A removed replica answers pre-votes with its commit index. It casts no vote, and adopts no later term.
#[test]
fn removed_replica_takes_no_entries() {
    let mut node = voter_of(2);
    give(
        &mut node,
        from_leader(raft_message::head(HeadKind::Removed, &[3u64, 1].map(u64::to_le_bytes).concat())),
    );
    assert_eq!(node.replica.role(), Role::Removed);
    node.replica.answers_on = true;
    assert_eq!(node.replica.deadline(), None, "it waits for nothing");
    step(&mut node, &message(MessageType::MsgHeartbeat, 4));
    for kind in [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote] {
        let mut question = message(kind, 4);
        (question.index, question.log_term) = (3, 1);
        node.replica.raw.raft.election_elapsed = 100; // while it hears a leader it casts no vote
        step(&mut node, &question);
        assert_eq!((node.replica.term(), node.replica.vote()), (Term(1), 0));
    }
}

/// A leader that alone knew that it was demoted started again, with entries that no other voter had. A voter of a later term that still
/// counted it needed its vote, ignored its refusals of the earlier term, and was refused for ever: no leader.
#[test]
fn demoted_replica_reports_the_commit_to_a_later_term() {
    let mut node = voter_of(2);
    let directory = node.replica.me.directory;
    let members = [Member::voter(LEADER, DIRECTORY, ""), Member::learner(NodeId(2), directory, "")];
    let demotion = change_at(4, Change::Demote(NodeId(2)), &members);
    step(&mut node, &append(3, vec![demotion, entry_at(5)]));
    step(&mut node, &Message { commit: 4, ..message(MessageType::MsgHeartbeat, 1) });
    assert_eq!(node.replica.role(), Role::Learner);
    node.replica.raw.raft.become_follower(1, raft::INVALID_ID); // it hears no leader
    // A candidate of term 3, which asks in advance for term 4, with these last entries.
    let mut answers = |index: u64, log_term: u64, term: u64| {
        node.replica.take_outgoing();
        let question = Message { index, log_term, ..message(MessageType::MsgRequestPreVote, term) };
        deliver(&mut node, raft_message::encode_message(&question).unwrap());
        let sent = node.replica.take_outgoing().into_iter();
        sent.filter_map(|envelope| {
            let (kind, body) = raft_message::parse_head(&envelope.head).unwrap();
            let message = || raft_message::decode_message(&body, Vec::new()).unwrap().0;
            (kind == HeadKind::Raft).then(message)
        })
        .filter(|message| message.get_msg_type() == MessageType::MsgRequestPreVoteResponse)
        .map(|answer| (answer.reject, answer.term, answer.commit))
        .collect::<Vec<_>>()
    };
    assert_eq!(answers(4, 1, 4), [(true, 3, 4)], "in the candidate's own term");
    assert_eq!(answers(5, 1, 4), [(false, 4, 0)], "a log that is as long gets its vote");
    assert_eq!(answers(4, 1, 2), [(true, 1, 4)], "raft's own refusal is of the candidate's term");
}

fn fetch(bytes_max: u32) -> Fetch {
    // This replica does not have the anchor. It sends the entries because they are committed.
    Fetch { first: EntryIndex(1), last: EntryIndex(3), anchor: (EntryIndex(3), Term(9)), bytes_max }
}

/// The entries in the sent answers of this kind, by message.
fn posted_as(node: &mut Node, answer: HeadKind) -> Vec<Vec<u64>> {
    let blocks = |e: Envelope| {
        let (kind, body) = raft_message::parse_head(&e.head).unwrap();
        let entries = || crate::replica::wire::repair_message::parse_blocks(&body, e.bodies).unwrap();
        (kind == answer).then(|| entries().iter().map(|(header, _)| header.raft_index.0).collect())
    };
    node.replica.take_outgoing().into_iter().filter_map(blocks).collect()
}

/// The number of sent entries, by message.
fn posted(node: &mut Node) -> Vec<usize> {
    posted_as(node, HeadKind::Blocks).iter().map(Vec::len).collect()
}

/// Entry 4 is the last committed one; 5 and 6 are here as well. That the requester has entry 6 too does not make them
/// committed.
#[test]
fn committed_answers_hold_only_committed_entries() {
    let mut node = voter_of(3);
    step(&mut node, &append(4, vec![entry_at(5), entry_at(6)]));
    let mut now = Moment::START;
    for (first, last, any, committed) in [
        (2, 6, vec![2, 3, 4, 5, 6], vec![2, 3, 4]),
        (4, 5, vec![4, 5], vec![4]),
        (5, 6, vec![5, 6], vec![4]),
        (1, 2, vec![1, 2], vec![1, 2]),
    ] {
        let (first, last, anchor) = (EntryIndex(first), EntryIndex(last), (EntryIndex(6), Term(1)));
        let question = Fetch { first, last, anchor, bytes_max: 1 << 20 };
        for (head, answer, entries) in [
            (question.encode(), HeadKind::Blocks, any),
            (question.encode_committed(), HeadKind::Committed, committed),
        ] {
            now = now.plus(node.replica.cluster.heartbeat);
            node.replica.take_outgoing();
            node.replica.receive(from_leader(head), now, &mut node.writer.plan).unwrap();
            assert_eq!(posted_as(&mut node, answer), [entries], "{first} to {last}");
        }
    }
}

#[test]
fn answer_holds_entries_up_to_its_size_limit() {
    let mut node = voter_of(2);
    step(&mut node, &message(MessageType::MsgHeartbeat, 2));
    let archive = node.replica.raw.store().archive();
    let bytes = |n| raft_message::body_bytes(&archive.body(EntryIndex(n)).unwrap().unwrap().0) as u32;
    let (second, third) = (bytes(1) + bytes(2), bytes(1) + bytes(2) + bytes(3));
    assert!(bytes(2) > 1 && bytes(3) > 1);
    node.replica.take_outgoing();
    let mut now = Moment::START;
    for (bytes_max, entries) in [(second, 2), (second - 1, 1), (third, 3), (third - 1, 2), (0, 1)] {
        let question = fetch(bytes_max).encode();
        node.replica.receive(from_leader(question.clone()), now, &mut node.writer.plan).unwrap();
        assert_eq!(posted(&mut node), [entries], "{bytes_max} bytes");
        // One answer in an eighth of a heartbeat interval.
        let interval = node.replica.cluster.heartbeat / 8;
        let soon = now.plus(interval - Duration::from_millis(1));
        node.replica.receive(from_leader(question), soon, &mut node.writer.plan).unwrap();
        assert_eq!(posted(&mut node), [0; 0]);
        now = now.plus(interval);
    }
}

/// A leader needs no entries of others, and still sends them.
#[test]
fn follower_sends_entries_to_members_and_not_to_strangers() {
    let mut node = leader_of(2);
    node.replica.take_outgoing();
    let stranger = Envelope { from: NodeId(8), ..from_leader(fetch(1 << 20).encode()) };
    give(&mut node, stranger);
    assert_eq!(posted(&mut node), [0; 0]);
    give(&mut node, from_leader(fetch(1 << 20).encode()));
    assert_eq!(posted(&mut node), [3]);
}

/// A replica that is asked for discarded entries reports them as discarded in each answer.
#[test]
fn discarded_entries_are_reported_as_discarded() {
    let mut node = joining();
    step(&mut node, &snapshot());
    node.replica.take_outgoing();
    let interval = node.replica.cluster.heartbeat / 8;
    let mut now = Moment::START;
    for (after, is_told) in [(0, true), (1, false), (7, true), (8, true)] {
        now = now.plus(interval * after / 8);
        node.replica.receive(from_leader(fetch(1 << 20).encode()), now, &mut node.writer.plan).unwrap();
        let gone = |e: &Envelope| {
            let (kind, body) = raft_message::parse_head(&e.head).unwrap();
            kind == HeadKind::Gone
                && crate::replica::wire::repair_message::parse_gone(&body) == Ok(EntryIndex(50))
        };
        assert_eq!(node.replica.take_outgoing().iter().any(gone), is_told, "{after}");
    }
}

#[test]
fn received_repair_entries_are_taken_once() {
    let mut node = voter_of(2);
    let found: Vec<_> =
        (1..=3).map(|n| node.replica.raw.store().archive().body(EntryIndex(n)).unwrap().unwrap()).collect();
    let head = encode_blocks(HeadKind::Blocks, found.iter().map(|(header, _)| header));
    let bodies = found.iter().map(|(_, body)| body.clone()).filter(|b| !b.is_empty()).collect();
    give(&mut node, Envelope { bodies, ..from_leader(head) });
    let received: Vec<_> = node.replica.take_received().iter().map(|(h, _)| h.raft_index.0).collect();
    assert_eq!(received, [1, 2, 3]);
    assert!(node.replica.take_received().is_empty());
}

/// A node that joins does not know the members yet.
#[test]
fn leader_is_accepted_before_it_is_known_as_a_member() {
    let mut node = joining();
    let timeout = node.replica.cluster.election_timeout;
    let heartbeat = raft_message::encode_message(&message(MessageType::MsgHeartbeat, 1)).unwrap();
    for at in [Moment::START, Moment::START.plus(timeout)] {
        node.replica.receive(from_leader(heartbeat.clone()), at, &mut node.writer.plan).unwrap();
    }
    let until = Moment::START.plus(timeout * 3);
    assert_eq!(node.replica.live_leader(until), Some(LEADER));
    assert_eq!(node.replica.live_leader(until.plus(Duration::from_millis(1))), None);
}

/// Otherwise raft and the log would count different majorities from there on.
#[test]
fn change_after_which_raft_has_other_voters_is_refused() {
    let mut node = voter_of(2);
    let members: Vec<Member> = node.replica.membership().members().cloned().collect();
    let mut change = append(3, vec![change_at(4, Change::Promote(NodeId(3)), &members)]);
    change.commit = 4;
    deliver(&mut node, raft_message::encode_message(&change).unwrap());
    node.write(Moment::START).unwrap();
    let job = node.begin_sync(Moment::START).unwrap();
    job.run().unwrap();
    let error = node.end_sync(Moment::START, &job).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("disagree about the voters"), "{error}");
}

#[test]
fn refusal_names_the_leader_and_its_address() {
    let mut node = voter_of(2);
    let says = |node: &Node, what| {
        let refusal = node.replica.refusal().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::NotLeader);
        assert!(refusal.to_string().contains(what), "{refusal}");
    };
    says(&node, ": node 1 leads;");
    let mut members: Vec<Member> = node.replica.membership().members().cloned().collect();
    members[0].address = "one:7000".to_owned();
    let moves = Change::SetAddress { node: LEADER, address: "one:7000".to_owned() };
    step(&mut node, &Message { commit: 4, ..append(3, vec![change_at(4, moves, &members)]) });
    says(&node, ": node 1 at one:7000 leads;");
}
