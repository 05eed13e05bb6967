//! Changes of membership: what a leader refuses to propose.

use super::leading::give_from;
use super::*;
use crate::sync::completion::Ticket;

/// Node 2, which leads three voters and has heard of node 1, not of node 3.
fn leader_without_third() -> Node {
    let mut node = leader_of(3);
    acknowledge(&mut node, LEADER);
    assert_eq!(last(&node), 5);
    node
}

fn acknowledge(node: &mut Node, from: NodeId) {
    let mut answer = message(MessageType::MsgAppendResponse, 2);
    (answer.from, answer.index, answer.commit) = (from.0, 5, 5);
    give_from(node, from, raft_message::encode_message(&answer).unwrap());
    node.replica.advance(Moment::START, &mut node.writing).unwrap();
}

fn last(node: &Node) -> u64 {
    node.replica.raw.raft.raft_log.last_index()
}

fn asked(node: &mut Node, change: Change, forced: bool) -> Ticket {
    let promise = Promise::new();
    let ticket = promise.ticket(0, 0, 0);
    let ask = Ask::Change(vec![change], forced);
    node.replica.ask(ask, Duration::from_secs(60), promise, Moment::START, &mut node.writing).unwrap();
    ticket
}

/// Of three voters, one of which was down, one of the others was removed: nobody could ever lead again.
#[test]
fn change_that_leaves_no_majority_that_is_heard_is_refused() {
    for change in [Change::Remove(LEADER), Change::Demote(LEADER)] {
        let mut node = leader_without_third();
        let timeout = node.replica.cluster.election_timeout * 2;
        let ticket = asked(&mut node, change, false);
        let early = Moment::START.plus(timeout - Duration::from_millis(1));
        node.replica.advance(early, &mut node.writing).unwrap();
        assert!(ticket.poll().is_none(), "the others have two election time-outs to answer");
        node.replica.advance(Moment::START.plus(timeout), &mut node.writing).unwrap();
        let refused = ticket.poll().unwrap().map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Membership);
        assert!(refused.to_string().contains("nothing is heard of 3"), "{refused}");
        assert_eq!(last(&node), 5, "nothing was proposed");
        assert!(!node.replica.asks.has_changes());
    }
}

#[test]
fn change_that_leaves_a_majority_that_is_heard_is_proposed() {
    let mut node = leader_without_third();
    let _ticket = asked(&mut node, Change::Remove(NodeId(3)), false);
    assert_eq!(last(&node), 6, "who is away can be removed");
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
fn change_of_no_voter_waits_for_nobody() {
    let mut node = leader_without_third();
    let address = "elsewhere".to_owned();
    let _ticket = asked(&mut node, Change::SetAddress { node: NodeId(3), address }, false);
    assert_eq!(last(&node), 6);
}
