//! Promises: what a message says that has to be durable before it is sent, and whether it introduces its sender.
//!
//! Must not know: hosts, clients, how messages travel.

use crate::cluster::transport::Envelope;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::types::Term;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};

/// Whether a message is an introduction to a replica that has started.
pub(super) fn introduces(envelope: &Envelope) -> bool {
    envelope.head.get(raft_message::KIND_AT) == Some(&(HeadKind::Known as u8))
}

/// The term, and the vote, in a message: both have to be durable before it is sent. `None`: the message holds
/// neither.
pub(super) fn promises_of(envelope: &Envelope) -> Option<(Term, Option<u64>)> {
    let (HeadKind::Raft, body) = raft_message::parse_head(&envelope.head).ok()? else { return None };
    let message = Message::parse_from_bytes(&body).ok()?;
    let term = Term(message.term);
    match message.get_msg_type() {
        MessageType::MsgRequestVote => Some((term, Some(message.from))),
        MessageType::MsgRequestVoteResponse if !message.reject => Some((term, Some(message.to))),
        MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot => Some((term, None)),
        MessageType::MsgAppendResponse => Some((term, None)),
        _ => None,
    }
}
