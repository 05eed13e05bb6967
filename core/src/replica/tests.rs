#![allow(clippy::unwrap_used, reason = "a test")]

use crate::cluster::{Bootstrap, Cluster, Role};
use crate::config::Options;
use crate::disk::sim::SimDisk;
use crate::gather::{Queue, QueueLimits};
use crate::membership::{Change, Member, Membership};
use crate::moment::Moment;
use crate::node::Node;
use crate::open::open;
use crate::positions::Positions;
use crate::raft_codec::{self, HeadKind};
use crate::transport::{Envelope, MemoryNetwork};
use crate::types::{DirectoryId, Index, LogId, NodeId, RaftIndex};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::sync::Arc;

const LOG: LogId = LogId(7);
const LEADER: NodeId = NodeId(1);
const DIRECTORY: DirectoryId = DirectoryId(11);

/// Node 2, which is to join.
fn joining() -> Node {
    let cluster = Cluster::new(NodeId(2), Bootstrap::Join(LOG), MemoryNetwork::new().transport());
    let options = Options { cluster: Some(cluster), ..Options::with_segment_bytes(64 << 10) };
    let opened = open(Arc::new(SimDisk::default()), &options).unwrap();
    opened.store.preparer.go_unaided();
    let limits = QueueLimits {
        block_bytes: 1 << 10,
        bytes: 1 << 20,
        appends: 16,
        capacity: None,
        mail_bytes: 1 << 20,
    };
    let positions = Arc::new(Positions::new(Index(1), Index(0), Index(0)));
    Node::new(opened, options, Arc::new(Queue::new(limits, 0)), positions, 1, Moment::START).unwrap()
}

fn deliver(node: &mut Node, head: Bytes) {
    let envelope = Envelope {
        log: LOG,
        from: LEADER,
        from_directory: DIRECTORY,
        to: NodeId(2),
        to_directory: DirectoryId(0),
        head,
        bodies: Vec::new(),
    };
    node.replica.receive(envelope, Moment::START, &mut node.writing).unwrap();
    node.replica.advance(Moment::START, &mut node.writing).unwrap();
}

fn append(index: u64, entries: Vec<Entry>) -> Message {
    let mut message = Message { from: LEADER.0, to: 2, term: 1, index, ..Message::default() };
    message.set_msg_type(MessageType::MsgAppend);
    message.log_term = 1;
    message.set_entries(entries.into());
    message
}

fn entry_at(index: u64) -> Entry {
    Entry { index, term: 1, ..Entry::default() }
}

/// The place behind an entry was worked out before the entry was checked: that of the last possible one overflowed.
#[test]
fn entries_beyond_any_log_are_refused() {
    let mut node = joining();
    for (index, entries) in [
        (u64::MAX, vec![entry_at(1)]),
        (u64::MAX - 1, vec![entry_at(u64::MAX)]),
        (u64::MAX - 1, vec![entry_at(u64::MAX), entry_at(0)]),
        (u64::MAX - 2, vec![entry_at(u64::MAX - 1), entry_at(u64::MAX), entry_at(0)]),
    ] {
        deliver(&mut node, raft_codec::encode_message(&append(index, entries)).unwrap());
        assert_eq!(node.replica.sequencer.end().raft, RaftIndex(0));
    }
    let mut older = append(0, vec![entry_at(1)]);
    older.log_term = 0; // raft itself goes back from there in search of such a term, beyond the beginning
    deliver(&mut node, raft_codec::encode_message(&older).unwrap());
    assert_eq!(node.replica.sequencer.end().raft, RaftIndex(0));
    deliver(&mut node, raft_codec::encode_message(&append(0, vec![entry_at(1)])).unwrap());
    assert_eq!(node.replica.sequencer.end().raft, RaftIndex(1));
}

/// What is committed is not always remembered after a restart. A leader of long ago, which did not know of this node yet,
/// knew as much, and its notice was believed.
#[test]
fn who_does_not_know_our_own_entry_cannot_know_that_we_were_removed() {
    let mut node = joining();
    let member = |n: u64, directory| Member::voter(NodeId(n), directory, "");
    let directory = node.status(Moment::default()).directory;
    let membership = Membership::of([member(1, DIRECTORY), member(2, directory)]);
    let change = raft_codec::conf_change(&[Change::Promote(NodeId(2))], &membership);
    let mut promotion = entry_at(2);
    promotion.set_entry_type(EntryType::EntryConfChangeV2);
    promotion.data = change.write_to_bytes().unwrap().into();
    deliver(&mut node, raft_codec::encode_message(&append(0, vec![entry_at(1), promotion])).unwrap());
    assert_eq!(node.replica.sequencer.pending_membership(), Some(RaftIndex(2)));
    let notice = |committed: u64| raft_codec::head(HeadKind::Removed, &committed.to_le_bytes());
    deliver(&mut node, notice(1));
    assert_ne!(node.replica.role(), Role::Removed);
    deliver(&mut node, notice(2));
    assert_eq!(node.replica.role(), Role::Removed);
}
