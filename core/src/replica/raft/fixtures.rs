//! Fixtures: messages that tests and directed scenarios send to a replica.

use super::storage::encode_snapshot;
use crate::cluster::membership::{Member, Membership};
use crate::replica::state::session_table::Sessions;
use crate::replica::wire::raft_message;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::segment::{HardState, Opening};
use crate::types::{DirectoryId, EntryIndex, Index, NodeId, Term, Timestamp};
use raft::eraftpb::{Message, MessageType};

/// The snapshot of a leader of term 1 whose log begins after entry 50 and record 99.
pub(crate) fn snapshot_of(leader: NodeId, directory: DirectoryId, to: NodeId) -> Message {
    snapshot_with(Vec::new(), leader, directory, to)
}

/// As [`snapshot_of`], of a shared group with this table of logs.
pub(crate) fn snapshot_with(logs: Vec<u8>, leader: NodeId, directory: DirectoryId, to: NodeId) -> Message {
    let membership = Membership::of([Member::voter(leader, directory, "")]);
    let opening = Opening {
        base_raft: EntryIndex(50),
        base_term: Term(1),
        log_first: Index(90),
        hard_state: HardState { term: Term(1), vote: 0, commit: EntryIndex(50) },
        configuration: membership.encode(),
        sessions: Sessions::new(16, 16).encode(),
        options: Vec::new(),
        logs,
        objects: Vec::new(),
    };
    let opening = opening.encode();
    let header = BlockHeader {
        length: (BLOCK_HEADER_BYTES + opening.len()) as u32,
        batch_count: 0,
        raft_index: EntryIndex(50),
        term: Term(1),
        first: Index(100),
        timestamp: Timestamp(1),
        record_count: 0,
        durable_upto: 0,
        body_digest: 0,
        kind: Kind::Opening,
    };
    let mut message = Message { from: leader.0, to: to.0, term: 1, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    let snapshot = message.mut_snapshot();
    snapshot.data = encode_snapshot(&header, &opening);
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (50, 1);
    metadata.set_conf_state(raft_message::conf_state(&membership));
    message
}
