//! Transport: how a replica's messages reach the others. Core knows no network: whoever embeds it brings one; the
//! in-memory one is in `cluster/memory_transport.rs`.
//!
//! What a transport has to do, and no more: deliver an [`Envelope`] to the inbox of the node it is for, or not at
//! all. It may lose, delay, double and, between different pairs of nodes, reorder; one stream from a node to
//! another should keep its order, for speed, except for what is urgent. Damage is found by checksums before raft sees a message.
//!
//! Must not know: raft, blocks.

use crate::cluster::membership::Member;
use crate::types::{DirectoryId, LogId, NodeId};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// A message on its way from one replica to another. The head is small and holds its own checksum; the bodies are
/// the blocks that go with it, as they stand in the log, in any number of pieces.
///
/// ```
/// use chiplog::transport::Envelope;
/// fn size(envelope: &Envelope) -> usize {
///     envelope.head.len() + envelope.bodies.iter().map(|b| b.len()).sum::<usize>()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The log it is about.
    pub log: LogId,
    /// Who sends it, and from which directory.
    pub from: NodeId,
    /// The sender's directory.
    pub from_directory: DirectoryId,
    /// Whom it is for.
    pub to: NodeId,
    /// The directory the sender believes the receiver to have; 0 if it does not know.
    pub to_directory: DirectoryId,
    /// What it says.
    pub head: Bytes,
    /// The blocks that go with it, one after the other, in pieces.
    pub bodies: Vec<Bytes>,
    /// It is small, and elections hang on it: it should not wait behind what is not urgent, and may overtake it.
    pub urgent: bool,
}

impl Envelope {
    /// Bytes of head and bodies.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.bodies.iter().map(Bytes::len).sum::<usize>()
    }
}

/// Where a transport puts what arrives for a replica. Cheap to clone; `Send + Sync`; never blocks: beyond its
/// bound messages are dropped, which raft bears.
#[derive(Clone)]
pub struct Inbox(Arc<dyn Fn(Envelope) + Send + Sync>);

impl Inbox {
    pub(crate) fn new(deliver: impl Fn(Envelope) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Hands a message to the replica. One for another node or another log is dropped there.
    pub fn deliver(&self, envelope: Envelope) {
        (self.0)(envelope);
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

/// A way between replicas. `Send + Sync`; called on the log's own thread, so that none of its methods may block.
pub trait Transport: fmt::Debug + Send + Sync {
    /// The replica `node` takes messages from now on. Called once, when the log is opened.
    fn attach(&self, node: NodeId, inbox: Inbox);

    /// The replica is closed.
    fn detach(&self, node: NodeId);

    /// Sends, or drops, a message. Bounded: what a slow peer does not take is dropped.
    fn send(&self, envelope: Envelope);

    /// Bytes of what was sent to this node, urgent messages aside, and waits here for the network still. A leader gives a
    /// follower nothing again, and nothing beyond what it may have under way, as long as much of it waits. The default: 0.
    fn backlog(&self, to: NodeId) -> usize {
        let _ = to;
        0
    }

    /// The cluster's members, with their addresses, whenever they change.
    fn members(&self, members: &[Member]) {
        let _ = members;
    }
}
