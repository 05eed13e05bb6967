//! Messages that wait for the streams to one other replica. Bytes and order only: the transport that owns a queue
//! brings the lock, the streams and the wake-ups. The simulator uses it unchanged.
//!
//! Invariants:
//! - Up to `bytes_max` bytes of messages that are not urgent wait, or one larger message; and up to
//!   [`URGENT_BYTES_MAX`] bytes of urgent ones.
//! - Beyond that the newest message is dropped: the earlier ones stay complete and in order, and raft sends again.
//! - Urgent messages keep their order, and so do all others.
//!
//! Must not know: connections, threads, the contents of messages.

use super::transport::Envelope;
use std::collections::VecDeque;

/// The most bytes of urgent messages that may wait: hundreds of heartbeats.
const URGENT_BYTES_MAX: usize = 1 << 20;

/// Messages that wait for one other replica, for programs with a transport of their own. Bounded; never blocks; a plain
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
    /// Bytes that the network took last for a stream that carries `others`, and may still hold.
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

    /// Drops all messages and returns how many there were.
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

    /// Adds a message; false: there is no room, and the message is dropped.
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

    /// Returns the next message for a stream that carries urgent messages, others, or both; urgent ones first. Call it
    /// for `others` only once the network has sent the message returned before.
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

    /// Notes that the streams ended: bytes that the network held are lost.
    pub fn stream_ended(&mut self) {
        self.leaving = 0;
    }

    /// Drops all messages and returns how many there were.
    pub fn clear(&mut self) -> usize {
        self.urgent.clear() + self.others.clear()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.urgent.bytes + self.others.bytes
    }

    /// Bytes of messages that are not urgent and have not left: the result for
    /// [`Transport::backlog`](super::transport::Transport::backlog).
    pub fn backlog(&self) -> usize {
        self.others.bytes + self.leaving
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.urgent.messages.is_empty() && self.others.messages.is_empty()
    }
}
