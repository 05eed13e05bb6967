//! Transport: how a replica's messages reach the others. Core contains no network: the program that embeds it provides
//! a transport. The one in memory is in `cluster/memory_transport.rs`.
//!
//! A transport has one duty: to deliver an [`Envelope`] to the inbox of its receiver, or not at all. It may lose, delay
//! and duplicate messages, and reorder them between different pairs of nodes. One stream from a node to another should
//! keep its order, for speed, except for urgent messages. Checksums find damage before raft sees a message.
//!
//! Must not know: raft, blocks.

use crate::cluster::membership::Member;
use crate::types::{DirectoryId, LogId, NodeId};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// A message from one replica to another. The head is small and contains its own checksum. The bodies are the blocks
/// that belong to it, as stored in the log, in any number of pieces.
///
/// ```
/// use chiplog::transport::Envelope;
/// fn size(envelope: &Envelope) -> usize {
///     envelope.head.len() + envelope.bodies.iter().map(|b| b.len()).sum::<usize>()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The log that it belongs to.
    pub log: LogId,
    /// The sender.
    pub from: NodeId,
    /// The sender's directory.
    pub from_directory: DirectoryId,
    /// The receiver.
    pub to: NodeId,
    /// The directory that the sender expects the receiver to have; 0 if it does not know.
    pub to_directory: DirectoryId,
    /// The encoded message.
    pub head: Bytes,
    /// The blocks that belong to the message, one after the other, in pieces.
    pub bodies: Vec<Bytes>,
    /// Whether the message is small and elections depend on it. It should not wait behind messages that are not urgent,
    /// and may overtake them.
    pub urgent: bool,
}

impl Envelope {
    /// Bytes of head and bodies.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.bodies.iter().map(Bytes::len).sum::<usize>()
    }
}

/// Accepts messages that arrive for a replica. Cheap to clone; `Send + Sync`; never blocks: messages beyond its bound
/// are dropped, which raft tolerates.
#[derive(Clone)]
pub struct Inbox(Arc<dyn Fn(Envelope) + Send + Sync>);

impl Inbox {
    pub(crate) fn new(deliver: impl Fn(Envelope) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Delivers a message to the replica. A message for another node or another log is dropped.
    pub fn deliver(&self, envelope: Envelope) {
        (self.0)(envelope);
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

/// A transport between replicas. `Send + Sync`. Called on the log's own thread, so none of its methods may block.
pub trait Transport: fmt::Debug + Send + Sync {
    /// The replica `node` accepts messages from now on. Called once, when the log is opened.
    fn attach(&self, node: NodeId, inbox: Inbox);

    /// The replica is closed.
    fn detach(&self, node: NodeId);

    /// Sends a message or drops it. Bounded: messages that a slow peer does not accept are dropped.
    fn send(&self, envelope: Envelope);

    /// Bytes sent to this node that still wait here for the network, without urgent messages. As long as this is large,
    /// a leader does not send the same entries to that follower again, and sends nothing beyond the limit of messages
    /// in flight. The default returns 0.
    fn backlog(&self, to: NodeId) -> usize {
        let _ = to;
        0
    }

    /// Called with the cluster's members and their addresses whenever they change.
    fn members(&self, members: &[Member]) {
        let _ = members;
    }
}
