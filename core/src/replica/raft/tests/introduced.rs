//! A replica that has restarted is introduced before it votes.

use super::leading::{give_from, heads};
use super::*;
use crate::replica::raft::peers::handshake::Extent;

const HEARTBEAT: Duration = Duration::from_millis(100);

/// One of three voters that has just started.
fn started() -> Node {
    let mut node = voter_of(3);
    node.replica.take_outgoing();
    node.replica.await_introduction();
    node
}

/// Delivers the answer of node `from`: how far this replica was, and the members as of an entry.
fn tell(node: &mut Node, from: u64, known: Extent, at: u64, members: &[Member]) {
    let mut body = known.encode().to_vec();
    body.extend_from_slice(&at.to_le_bytes());
    body.extend_from_slice(&Membership::of(members.iter().cloned()).encode());
    give_from(node, NodeId(from), raft_message::head(HeadKind::Known, &body));
}

fn nothing(node: &mut Node, from: u64) {
    tell(node, from, Extent::default(), 0, &[Member::voter(LEADER, DIRECTORY, "")]);
}

fn tick(node: &mut Node, now: &mut Moment) {
    *now = now.plus(HEARTBEAT);
    node.replica.advance(*now, &mut node.writer.plan).unwrap();
}

#[test]
fn replica_votes_once_all_others_have_answered() {
    let mut node = started();
    assert_eq!(heads(&mut node, HeadKind::Hello), [LEADER, NodeId(3)], "it does not greet itself");
    assert!(!node.replica.may_vote());
    nothing(&mut node, 1);
    assert!(!node.replica.may_vote(), "node 3 may remember more");
    nothing(&mut node, 3);
    assert!(node.replica.may_vote());
}

#[test]
fn replica_votes_after_an_election_timeout_without_a_minority() {
    let mut node = started();
    let election = node.replica.ticks.election;
    nothing(&mut node, 1);
    node.replica.take_outgoing();
    let mut now = Moment::START;
    for n in 1..election {
        tick(&mut node, &mut now);
        assert!(!node.replica.may_vote(), "{n} ticks");
        assert_eq!(heads(&mut node, HeadKind::Hello), [NodeId(3)], "{n} ticks");
    }
    tick(&mut node, &mut now);
    assert!(node.replica.may_vote());
    let asked = heads(&mut node, HeadKind::Hello);
    assert_eq!(asked, [LEADER, NodeId(3)], "node 1 is asked again for the current membership");
    for _ in 0..=election {
        tick(&mut node, &mut now);
        assert_eq!(heads(&mut node, HeadKind::Hello), [NodeId(3)], "it votes");
    }
}

#[test]
fn replica_without_answers_of_a_majority_does_not_vote() {
    let mut node = started();
    let mut now = Moment::START;
    for _ in 0..3 * node.replica.ticks.election {
        tick(&mut node, &mut now);
    }
    assert!(!node.replica.may_vote());
    assert_eq!(node.replica.role(), Role::Follower, "nor does it start an election");
}

/// It knows its own promises.
#[test]
fn sole_voter_needs_no_introduction() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Init);
    node.replica.await_introduction();
    assert!(node.replica.introduction.is_none() && node.replica.may_vote());
}

/// No leader sends anything to it once it was removed, and it requests no votes. One that was removed at once after it was added, and had not
/// heard that its addition is committed, did not ask, and showed the role of a learner until it was started again.
#[test]
fn learner_without_a_leader_asks_in_each_election_timeout() {
    for commit in [3, 2] {
        let mut node = joining();
        let directory = node.replica.me.directory;
        let (leader, itself) =
            (Member::voter(LEADER, DIRECTORY, ""), Member::learner(NodeId(2), directory, ""));
        let joins = Change::AddLearner { node: NodeId(2), directory, address: String::new() };
        let members = [leader, itself];
        let entries = vec![
            entry_at(1),
            change_at(2, Change::Promote(LEADER), &members[..1]),
            change_at(3, joins, &members),
        ];
        step(&mut node, &Message { commit, ..append(0, entries) });
        let knows = node.replica.membership().get(NodeId(2)).is_some_and(Member::is_learner);
        assert_eq!(knows, commit == 3);
        let mut now = Moment::START;
        let mut asked_after = Vec::new();
        for ticks in 0..=3 * node.replica.ticks.election {
            node.replica.take_outgoing();
            tick(&mut node, &mut now);
            if heads(&mut node, HeadKind::Hello) == [LEADER] {
                asked_after.push(ticks / node.replica.ticks.election);
            }
        }
        assert_eq!(asked_after, [1, 2, 3]);
    }
}

/// Leaving after a vote would not restore what the others lack.
#[test]
fn replica_that_was_set_back_leaves_unless_it_has_voted() {
    for has_voted in [false, true] {
        let mut node = started();
        if has_voted {
            node.replica.has_voted();
        }
        let more = Extent { term: Term(9), last: EntryIndex(9) };
        tell(&mut node, 1, more, 0, &[Member::voter(LEADER, DIRECTORY, "")]);
        assert_eq!(node.replica.role() == Role::Removed, !has_voted);
    }
}

#[test]
fn newer_membership_is_remembered_until_it_is_known_here() {
    let mut node = started();
    let four = [Member::voter(LEADER, DIRECTORY, ""), Member::voter(NodeId(4), DirectoryId(14), "")];
    tell(&mut node, 1, Extent::default(), 3, &four);
    assert!(node.replica.member(NodeId(4)).is_none(), "this replica knows as much");
    tell(&mut node, 1, Extent::default(), 9, &four);
    assert!(node.replica.member(NodeId(4)).is_some());
    tell(&mut node, 3, Extent::default(), 8, &[Member::voter(LEADER, DIRECTORY, "")]);
    node.replica.weigh_membership();
    assert!(node.replica.member(NodeId(4)).is_some(), "entry 9 is not here yet");
}
