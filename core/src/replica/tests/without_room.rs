//! A replica whose disk is full to the last byte.

use super::*;
use crate::error::Error;

/// Node 2, the only voter, with node 3 as a learner of which nothing is heard.
fn sole_voter(disk: &SimDisk) -> Node {
    let mut node = node_with(disk, Bootstrap::Init);
    let learner = Change::AddLearner { node: NodeId(3), directory: DirectoryId(13), address: String::new() };
    assert_eq!(change(&mut node, learner), Some(Ok(())));
    assert_eq!(node.replica.role(), Role::Leader);
    node
}

/// Asks for a change of membership, does all that follows, and returns the answer.
fn change(node: &mut Node, change: Change) -> Option<Result<(), ErrorKind>> {
    let promise = Promise::new();
    let ticket = promise.ticket(0, 0, 0);
    let ask = Ask::Change(vec![change]);
    node.replica.ask(ask, Duration::from_secs(60), promise, Moment::START, &mut node.writing).unwrap();
    for _ in 0..3 {
        node.turn(Moment::START, Work::default()).unwrap();
        sync(node);
    }
    ticket.poll().map(|outcome| outcome.map(drop).map_err(|error| error.kind()))
}

/// Raft had the change before anybody looked for its room: the leader was held.
#[test]
fn change_without_room_is_refused() {
    let disk = SimDisk::default();
    let mut node = sole_voter(&disk);
    disk.limit_space(Some(0));
    let address = |n: usize| Change::SetAddress { node: NodeId(3), address: format!("{n:0>200}") };
    let answered = (0..2000).map(|n| change(&mut node, address(n))).find(|a| *a != Some(Ok(())));
    assert!(node.replica.is_held().is_none());
    assert_eq!(answered, Some(Some(Err(ErrorKind::Full))));
    assert_eq!(node.replica.role(), Role::Leader);
    disk.limit_space(None);
    let later = crate::store::prepared::RETRY_DELAY;
    node.turn(Moment::START.plus(later), Work::default()).unwrap();
    assert_eq!(change(&mut node, address(0)), Some(Ok(())));
}

/// It is its own majority, so it never steps down: each tick left a heartbeat in memory.
#[test]
fn held_sole_voter_keeps_no_messages() {
    let mut node = sole_voter(&SimDisk::default());
    let waits = |node: &Node| (node.replica.raw.raft.msgs.len(), node.replica.raw.raft.read_states.len());
    let before = waits(&node);
    let patience = Duration::from_secs(60);
    let now = Moment::START;
    node.replica.ask(Ask::Barrier, patience, Promise::new(), now, &mut node.writing).unwrap();
    node.replica.short = Some(Some(Error::new(ErrorKind::Full, "no room")));
    for n in 0..200 {
        node.replica.tick();
        node.replica.ask_again(Moment::START.plus(Duration::from_millis(100 * n)));
    }
    assert_eq!(waits(&node), before);
}
