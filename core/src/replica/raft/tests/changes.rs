//! Membership changes that a leader refuses to propose.

use super::leading::give_from;
use super::*;
use crate::sync::completion::Ticket;

/// Node 2, the leader of three voters, has heard node 1 and not node 3.
fn leader_without_third() -> Node {
    let mut node = leader_of(3);
    acknowledge(&mut node, LEADER);
    assert_eq!(last(&node), 5);
    node
}

/// Node 2, the leader of four voters, has heard nodes 1 and 3 and not node 4.
fn leader_without_fourth() -> Node {
    let mut node = voter_of(4);
    step(&mut node, &message(MessageType::MsgTimeoutNow, 1));
    for from in [1, 3] {
        step(&mut node, &Message { from, ..message(MessageType::MsgRequestVoteResponse, 2) });
    }
    assert_eq!((node.replica.role(), last(&node)), (Role::Leader, 6));
    for from in [1, 3] {
        acknowledge(&mut node, NodeId(from));
    }
    node
}

fn acknowledge(node: &mut Node, from: NodeId) {
    let mut answer = message(MessageType::MsgAppendResponse, 2);
    (answer.from, answer.index, answer.commit) = (from.0, last(node), last(node));
    give_from(node, from, raft_message::encode_message(&answer).unwrap());
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
}

fn last(node: &Node) -> u64 {
    node.replica.raw.raft.raft_log.last_index()
}

/// Delivers an answer to a heartbeat.
fn give_at(node: &mut Node, from: u64, now: Moment) {
    let answer = Message { from, ..message(MessageType::MsgHeartbeatResponse, 2) };
    let head = raft_message::encode_message(&answer).unwrap();
    let envelope = envelope(NodeId(from), directory_of(NodeId(from)), head);
    node.replica.receive(envelope, now, &mut node.writer.plan).unwrap();
}

fn asked(node: &mut Node, change: Change, forced: bool) -> Ticket {
    asked_for(node, vec![change], forced)
}

fn asked_for(node: &mut Node, changes: Vec<Change>, forced: bool) -> Ticket {
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    let ask = AdminRequest::Change(changes, forced);
    node.replica
        .handle_request(ask, Duration::from_secs(60), completer, Moment::START, &mut node.writer.plan)
        .unwrap();
    ticket
}

/// Of three voters one was down, and one of the others was removed: no leader could be elected any more.
#[test]
fn change_without_a_heard_majority_is_refused() {
    for change in [Change::Remove(LEADER), Change::Demote(LEADER)] {
        let mut node = leader_without_third();
        let timeout = node.replica.cluster.election_timeout * 2;
        let ticket = asked(&mut node, change, false);
        let early = Moment::START.plus(timeout - Duration::from_millis(1));
        node.replica.advance(early, &mut node.writer.plan).unwrap();
        assert!(ticket.poll().is_none(), "the others have two election timeouts to answer");
        node.replica.advance(Moment::START.plus(timeout), &mut node.writer.plan).unwrap();
        let refused = ticket.poll().unwrap().map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Membership);
        assert!(refused.to_string().contains("nothing is heard of 3"), "{refused}");
        assert_eq!(last(&node), 5, "nothing was proposed");
        assert!(!node.replica.requests.has_changes());
    }
}

/// Of voters 1 to 4 one was down, and another one was removed because of a mistyped number. The rest tolerated no
/// further loss, and a number that was removed cannot be used again.
#[test]
fn change_that_takes_the_vote_of_the_wrong_node_is_refused() {
    for change in [Change::Remove(LEADER), Change::Demote(NodeId(3)), Change::Remove(NodeId(2))] {
        let mut node = leader_without_fourth();
        let timeout = node.replica.cluster.election_timeout;
        let ticket = asked(&mut node, change.clone(), false);
        for n in 1..=4 {
            assert!(ticket.poll().is_none(), "the fourth has two election timeouts to answer");
            let now = Moment::START.plus(timeout * n / 2);
            for from in [1, 3] {
                give_at(&mut node, from, now);
            }
            node.replica.advance(now, &mut node.writer.plan).unwrap();
        }
        let refused = ticket.poll().unwrap().map(drop).unwrap_err();
        assert_eq!((refused.kind(), last(&node)), (ErrorKind::Membership, 6), "{refused}");
        let refused = refused.to_string();
        let taken = format!("node {} runs and would lose its vote", change.node());
        for words in [&*taken, "nothing is heard of node 4", "probably the one that was meant"] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        let mut node = leader_without_fourth();
        let _ticket = asked(&mut node, change.clone(), true);
        assert_eq!(last(&node), 7, "it is forced");
        let mut node = leader_without_fourth();
        let _ticket = asked(&mut node, change, false);
        acknowledge(&mut node, NodeId(4));
        assert_eq!(last(&node), 7, "its answer was only late");
    }
}

#[test]
fn change_that_takes_no_vote_is_proposed_despite_a_silent_voter() {
    let newcomer = Change::AddLearner { node: NodeId(5), directory: DirectoryId(55), address: "new".into() };
    let allowed = [
        vec![Change::Remove(NodeId(4))],
        vec![Change::Demote(NodeId(4))],
        vec![newcomer.clone()],
        vec![newcomer, Change::Remove(NodeId(4))],
        vec![Change::Remove(NodeId(3)), Change::Remove(NodeId(4))],
    ];
    for changes in allowed {
        let mut node = leader_without_fourth();
        let _ticket = asked_for(&mut node, changes.clone(), false);
        assert_eq!(last(&node), 7, "{changes:?}");
    }
    // A learner has no vote to lose.
    let mut node = leader_without_fourth();
    let heard = node.replica.membership.after(&[Change::Demote(NodeId(3))]).unwrap();
    node.replica.membership = heard;
    let pending = vec![Change::Remove(NodeId(3))];
    let _ticket = asked_for(&mut node, pending, false);
    assert_eq!(last(&node), 7);
}

#[test]
fn change_with_a_heard_majority_is_proposed() {
    let mut node = leader_without_third();
    let _ticket = asked(&mut node, Change::Remove(NodeId(3)), false);
    assert_eq!(last(&node), 6, "a silent node can be removed");
    let mut node = leader_without_third();
    let _ticket = asked(&mut node, Change::Remove(LEADER), true);
    assert_eq!(last(&node), 6, "it is forced");
    // A voter that answers in time was only late.
    let mut node = leader_without_third();
    let _ticket = asked(&mut node, Change::Remove(LEADER), false);
    assert_eq!(last(&node), 5);
    acknowledge(&mut node, NodeId(3));
    assert_eq!(last(&node), 6);
}

#[test]
fn change_of_no_voter_does_not_wait() {
    let mut node = leader_without_third();
    let address = "elsewhere".to_owned();
    let _ticket = asked(&mut node, Change::SetAddress { node: NodeId(3), address }, false);
    assert_eq!(last(&node), 6);
}
