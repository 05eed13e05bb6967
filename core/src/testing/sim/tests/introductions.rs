//! A replica that starts again, with members that it does or does not remember.

use super::*;

/// Voters 1, 2, 3 and learners 4, 5, 6. While `absent` (one of the learners or node 3) is away, 4 and 5 become voters
/// and the voters that it remembers leave.
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
    stage.advance(LONG);
    stage.restart(absent);
    stage
}

/// The replica asked only the voters that it remembered, which were all gone, and dropped the leader's messages for
/// ever.
#[test]
fn returning_voter_that_remembers_no_voter_follows_again() {
    let mut stage = absent_while_all_voters_change(3);
    stage.advance(LONG);
    let leader = stage.leader_of(&[4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.advance(3);
    assert_eq!(stage.committed(3), last, "{}", stage.summaries());
    // It votes as well: without it there is no majority.
    let other = if leader == 4 { 5 } else { 4 };
    stage.stop(leader);
    stage.leader_of(&[3, other]);
}

/// The same for a learner.
#[test]
fn returning_learner_that_remembers_no_voter_follows_again() {
    let mut stage = absent_while_all_voters_change(6);
    stage.advance(LONG);
    let leader = stage.leader_of(&[4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.advance(3);
    assert_eq!(stage.committed(6), last, "{}", stage.summaries());
}

/// The replica remembers none of the current members, not even as a learner.
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
    // All restart, so that there is no leader: each has to be introduced to the others.
    stage.stop(4);
    stage.stop(5);
    for node in [3, 4, 5] {
        stage.restart(node);
    }
    let leader = stage.leader_of(&[3, 4, 5]);
    let ticket = stage.append(leader, "to all");
    let last = stage.answer(&ticket).unwrap();
    stage.advance(LONG);
    assert_eq!([3, 4, 5].map(|n| stage.committed(n)), [last; 3], "{}", stage.summaries());
}

/// A removed replica that restarted never learnt of its removal, because it was missing from its own membership.
#[test]
fn removed_replica_that_restarts_learns_of_its_removal() {
    let mut stage = Stage::new(3, 3);
    stage.hand_over(1);
    stage.change(1, &[Change::Remove(NodeId(3))]);
    stage.advance(LONG);
    assert_eq!(stage.role(3), Role::Removed, "{}", stage.summaries());
    stage.stop(3);
    stage.restart(3);
    stage.advance(LONG);
    assert_eq!(stage.role(3), Role::Removed, "{}", stage.summaries());
}

/// A leader that had restarted only greeted a node whose disk was emptied, and waited for its answer.
#[test]
fn restarted_leader_tells_an_emptied_node_of_its_loss() {
    let mut stage = Stage::new(3, 3);
    for node in 1..=3 {
        stage.stop(node);
    }
    stage.disks.insert(3, SimDisk::default());
    stage.restart(1);
    stage.restart(2);
    stage.leader_of(&[1, 2]);
    stage.start(3, Bootstrap::Join(stage.log.unwrap()));
    stage.advance(LONG);
    assert_eq!(stage.role(3), Role::Removed, "{}", stage.summaries());
}

/// Voters 1, 2, 3; 2 leads, and its last acknowledged record is on 2 and 3. Then the disk of 3 is set back to before
/// that record, and 3 is off.
fn set_back_where_one_voter_lacks_the_end() -> (Stage, Index) {
    let mut stage = Stage::new(3, 3);
    stage.hand_over(2);
    let ticket = stage.append(2, "on all");
    stage.answer(&ticket).unwrap();
    stage.advance(LONG);
    let old = stage.disks[&3].state();
    stage.cut_off(1);
    let ticket = stage.append(2, "on 2 and 3");
    let last = stage.answer(&ticket).unwrap();
    stage.advance(1);
    assert_eq!(stage.committed(3), last);
    stage.stop(3);
    stage.disks.insert(3, SimDisk::resume(old));
    (stage, last)
}

/// One introduction made a majority together with the replica itself. It voted for the voter that lacked the record,
/// although the voter that had it could be reached a moment later. Two records were acknowledged at one index.
#[test]
fn set_back_voter_waits_for_every_voter_that_can_be_reached() {
    let (mut stage, last) = set_back_where_one_voter_lacks_the_end();
    stage.heal();
    stage.cut.extend([(1, 2), (2, 1), (2, 3)]);
    stage.advance(LONG); // node 1 asks for votes again every few beats
    stage.restart(3);
    stage.advance(8);
    stage.cut.remove(&(2, 3));
    stage.advance(LONG);
    assert_eq!(stage.role(3), Role::Removed, "{}", stage.summaries());
    // No other record was acknowledged at this index, and the record is there.
    stage.heal();
    let leader = stage.leader_of(&[1, 2]);
    let ticket = stage.append(leader, "behind it");
    assert_eq!(stage.answer(&ticket).unwrap(), last.next());
    assert_eq!(&stage.machines[&1].read(LogNumber::OWN, last).unwrap()[..], b"on 2 and 3");
}

/// If the voter that has the record cannot be reached at all, the others continue. When it returns, its committed
/// entries are not those of the leader. It used to acknowledge the leader's entries in their place.
#[test]
fn voter_whose_committed_entries_were_replaced_takes_no_part() {
    let (mut stage, last) = set_back_where_one_voter_lacks_the_end();
    stage.heal();
    stage.cut_off(2);
    stage.restart(3);
    let leader = stage.leader_of(&[1, 3]);
    for text in ["in its place", "behind it"] {
        let ticket = stage.append(leader, text);
        stage.answer(&ticket).unwrap();
    }
    stage.heal();
    stage.advance(LONG);
    assert_eq!(stage.role(2), Role::Removed, "{}", stage.summaries());
    assert_eq!(&stage.machines[&2].read(LogNumber::OWN, last).unwrap()[..], b"on 2 and 3");
    // The set-back replica has voted. It learns of its loss too late, and two stopped replicas would leave no
    // majority.
    let leader = stage.leader_of(&[1, 3]);
    let ticket = stage.append(leader, "on two");
    stage.answer(&ticket).unwrap();
}

/// No replica remembered the durable index of a leader: it only counted acknowledgements, and a leader sends none.
/// The leader's disk was set back within its term, and it voted for a replica that lacked an acknowledged record.
#[test]
fn set_back_disk_of_a_leader_is_detected() {
    let mut stage = Stage::new(3, 3);
    stage.hand_over(1);
    let ticket = stage.append(1, "on all");
    stage.answer(&ticket).unwrap();
    stage.advance(LONG);
    let old = stage.disks[&1].state();
    stage.cut_off(2);
    let ticket = stage.append(1, "on 1 and 3");
    let last = stage.answer(&ticket).unwrap();
    stage.advance(2);
    stage.stop(1);
    stage.disks.insert(1, SimDisk::resume(old));
    stage.restart(1);
    stage.advance(LONG);
    assert_eq!(stage.role(1), Role::Removed, "{}", stage.summaries());
    // The others have all records.
    stage.heal();
    assert_eq!(stage.leader_of(&[2, 3]), 3);
    let ticket = stage.append(3, "behind it");
    assert_eq!(stage.answer(&ticket).unwrap(), last.next());
}
