//! Members that are removed: the answers, and the state after a power cut.

use super::*;

/// "Removed" was answered while only the memory of the leader knew that the change was committed. The operator
/// removed node 2 for good, the power of node 1 failed, and it restarted as one voter of two.
#[test]
fn removal_is_answered_once_the_leader_knows_it_durably() {
    let mut stage = Stage::new(2, 2);
    stage.hand_over(1);
    let ticket = stage.submit(1, Request::Change(vec![Change::Remove(NodeId(2))]));
    // One step at a time, so that the power can fail right after the answer.
    for _ in 0..10_000 {
        if ticket.poll().is_some() {
            break;
        }
        stage.creep();
    }
    ticket.poll().unwrap().unwrap();
    stage.cut_power(1);
    stage.stop(2);
    stage.restart(1);
    assert_eq!(stage.leader_of(&[1]), 1);
    let ticket = stage.append(1, "alone");
    stage.answer(&ticket).unwrap();
}

/// The same for followers: a commit index that a follower reports counts once it is durable there. The power of all
/// failed, and two of the three remaining voters could not elect a leader: they counted themselves as two of four.
#[test]
fn removal_is_answered_once_a_majority_knows_it_durably() {
    let mut stage = Stage::new(4, 4);
    stage.hand_over(1);
    stage.advance(LONG);
    let ticket = stage.submit(1, Request::Change(vec![Change::Remove(NodeId(4))]));
    let change = stage.machines[&1].summary().last_raft.next();
    let mut answered_at_once = false;
    for _ in 0..2_000 {
        stage.creep();
        if stage.machines[&1].summary().committed_raft >= change {
            // Entries that the others write from now on stay in their memory, and they keep sending messages.
            stage.held.extend([2, 3]);
        }
        answered_at_once |= ticket.poll().is_some();
    }
    assert!(stage.held.len() == 2 && !answered_at_once, "{}", stage.summaries());
    stage.held.clear();
    for _ in 0..2_000 {
        if ticket.poll().is_some() {
            break;
        }
        stage.creep();
    }
    ticket.poll().unwrap().unwrap();
    for node in 1..=3 {
        stage.cut_power(node);
    }
    stage.stop(4);
    // Two of the three remaining voters are a majority of three, but not of the four voters before. One of each pair
    // knows of the removal.
    for pair in [[1, 2], [1, 3], [2, 3]] {
        for node in pair {
            stage.restart(node);
        }
        stage.leader_of(&pair);
        for node in pair {
            stage.cut_power(node);
        }
    }
}

/// A removed leader stepped down when it alone knew that the change was committed, and answered candidates from then
/// on. The remaining voter was elected with its vote, still counted it, and could never commit an entry.
#[test]
fn voter_left_by_a_removed_leader_can_commit() {
    let mut stage = Stage::new(2, 2);
    stage.hand_over(1);
    let ticket = stage.submit(1, Request::Change(vec![Change::Remove(NodeId(1))]));
    let change = stage.machines[&1].summary().last_raft.next();
    for _ in 0..2_000 {
        if stage.machines[&2].summary().last_raft >= change {
            stage.cut.insert((1, 2)); // the entry arrives, but not that it is committed
        }
        stage.creep();
    }
    let committed = [1, 2].map(|n| stage.machines[&n].summary().committed_raft >= change);
    assert_eq!(committed, [true, false], "{}", stage.summaries());
    stage.cut_off(1);
    stage.advance(LONG);
    assert!(ticket.poll().is_some_and(|answer| answer.is_err()), "{}", stage.summaries());
    assert_eq!(stage.role(1), Role::Removed, "{}", stage.summaries());
    stage.heal();
    stage.advance(LONG);
    assert_eq!(stage.leader_of(&[2]), 2);
    let ticket = stage.append(2, "alone");
    stage.answer(&ticket).unwrap();
}
