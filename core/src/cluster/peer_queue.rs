//! Peer queue: messages that wait for the streams to one other replica. Bytes and order only: the transport that owns one
//! brings the lock, the streams and whoever wakes them. The simulator runs it as it is.
//!
//! Invariants:
//! - Up to `bytes_max` bytes wait that are not urgent, or one message that is larger; and up to [`URGENT_BYTES_MAX`] that are.
//! - Beyond that the newest message is dropped: what was sent before stays whole and in order, and raft sends again.
//! - Urgent messages keep their order, and so do all others.
//!
//! Must not know: connections, threads, what a message says.

use super::transport::Envelope;
use std::collections::VecDeque;

/// So much that is urgent may wait: hundreds of heartbeats.
const URGENT_BYTES_MAX: usize = 1 << 20;

/// Messages that wait for one other replica, for those who bring a transport of their own. Bounded; never blocks; a plain
/// value without a lock.
///
/// ```
/// use chiplog::transport::{Envelope, PeerQueue};
/// # use chiplog::{DirectoryId, LogId, NodeId};
/// # let message = |bytes: usize, urgent| Envelope {
/// #     log: LogId(1), from: NodeId(1), from_directory: DirectoryId(1), to: NodeId(2), to_directory: DirectoryId(0),
/// #     head: vec![0; bytes].into(), bodies: Vec::new(), urgent,
/// # };
/// let mut queue = PeerQueue::new(100);
/// assert!(queue.push(message(60, false)));
/// assert!(!queue.push(message(50, false)), "there is no room for it: it is dropped");
/// assert!(queue.push(message(10, true)));
/// assert!(queue.take(true, true).is_some_and(|m| m.urgent), "urgent messages go first");
/// assert_eq!((queue.backlog(), queue.bytes()), (70, 60));
/// ```
#[derive(Debug)]
pub struct PeerQueue {
    urgent: Waiting,
    others: Waiting,
    /// Bytes that the network has taken over last, for a stream that carries `others`, and may hold still.
    leaving: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Envelope>,
    bytes: usize,
}

impl Waiting {
    fn pop(&mut self) -> Option<Envelope> {
        let envelope = self.messages.pop_front()?;
        self.bytes -= envelope.bytes();
        Some(envelope)
    }

    /// Forgets them all; how many they were.
    fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.messages).len()
    }
}

impl PeerQueue {
    /// An empty queue for up to `bytes_max` bytes of messages that are not urgent.
    pub fn new(bytes_max: usize) -> Self {
        Self { urgent: Waiting::default(), others: Waiting::default(), leaving: 0, bytes_max }
    }

    /// Takes a message; false: there is no room, and it is dropped.
    pub fn push(&mut self, envelope: Envelope) -> bool {
        let bytes = envelope.bytes();
        let (waiting, max) = match envelope.urgent {
            true => (&mut self.urgent, URGENT_BYTES_MAX),
            false => (&mut self.others, self.bytes_max),
        };
        if waiting.bytes > 0 && waiting.bytes + bytes > max {
            if planted!(68) {
                waiting.pop();
            } else {
                return false;
            }
        }
        waiting.bytes += bytes;
        waiting.messages.push_back(envelope);
        true
    }

    /// The next message for a stream that takes urgent ones, others, or both: urgent ones first. A stream that takes the
    /// others asks only once the network has passed on what it was given before.
    pub fn take(&mut self, urgent: bool, others: bool) -> Option<Envelope> {
        if others {
            self.leaving = 0;
        }
        let first = if urgent { self.urgent.pop() } else { None };
        let envelope = match first {
            None if others => self.others.pop(),
            first => first,
        }?;
        if others {
            self.leaving = envelope.bytes();
        }
        Some(envelope)
    }

    /// The streams have ended: what the network had taken over is gone.
    pub fn stream_ended(&mut self) {
        self.leaving = 0;
    }

    /// Drops all that waits; how many messages that was.
    pub fn clear(&mut self) -> usize {
        self.urgent.clear() + self.others.clear()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.urgent.bytes + self.others.bytes
    }

    /// Bytes that are not urgent and have not left: what [`Transport::backlog`](super::transport::Transport::backlog) answers.
    pub fn backlog(&self) -> usize {
        self.others.bytes + self.leaving
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.urgent.messages.is_empty() && self.others.messages.is_empty()
    }
}
