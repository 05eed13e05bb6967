//! A replica that starts again, and the members that it does or does not remember.

use super::*;

/// Voters 1, 2, 3 and learners 4, 5, 6. While `absent`, one of the latter or node 3, is away, 4 and 5 become voters and
/// those that it remembers as voters leave.
fn absent_while_all_voters_change(absent: u64) -> Stage {
    let mut stage = Stage::new(3, 6);
    stage.stop(absent);
    for node in [4, 5] {
        stage.change(1, &[Change::Promote(NodeId(node))]);
    }
    stage.hand_over(4);
    for node in (1..=3).filter(|n| *n != absent) {
        stage.change(4, &[Change::Remove(NodeId(node))]);
        stage.stop(node);
    }
    stage.pass(LONG);
    stage.restart(absent);
    stage
}

/// The replica asked the voters that it remembered, all of them gone, and dropped what the leader sent: for ever.
#[test]
fn returning_voter_that_remembers_no_voter_follows_again() {
    let mut stage = absent_while_all_voters_change(3);
    stage.pass(LONG);
    let leader = stage.leader_of(&[4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.pass(3);
    assert_eq!(stage.committed(3), last, "{}", stage.glances());
    // It votes as well: without it there is no majority.
    let other = if leader == 4 { 5 } else { 4 };
    stage.stop(leader);
    stage.leader_of(&[3, other]);
}

/// The same of a learner.
#[test]
fn returning_learner_that_remembers_no_voter_follows_again() {
    let mut stage = absent_while_all_voters_change(6);
    stage.pass(LONG);
    let leader = stage.leader_of(&[4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.pass(3);
    assert_eq!(stage.committed(6), last, "{}", stage.glances());
}

/// The replica remembers nobody of those that are members now, not even as a learner.
#[test]
fn returning_voter_that_remembers_no_member_follows_again() {
    let mut stage = Stage::new(3, 3);
    stage.stop(3);
    for node in [4, 5] {
        stage.join(node);
        stage.change(1, &[Change::Promote(NodeId(node))]);
    }
    stage.hand_over(4);
    for node in [1, 2] {
        stage.change(4, &[Change::Remove(NodeId(node))]);
        stage.stop(node);
    }
    // All start again, so that nobody leads: each has to be introduced to the others.
    stage.stop(4);
    stage.stop(5);
    for node in [3, 4, 5] {
        stage.restart(node);
    }
    let leader = stage.leader_of(&[3, 4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.pass(LONG);
    assert_eq!([3, 4, 5].map(|n| stage.committed(n)), [last; 3], "{}", stage.glances());
}
