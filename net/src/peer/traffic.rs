//! Traffic: messages to and from each other replica. Counters only grow.

use chiplog::NodeId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The traffic between this replica and another one since the transport was started.
///
/// ```
/// # fn show(traffic: &chiplog_net::peer::PeerTraffic) {
/// println!("node {}: {} messages sent, {} dropped", traffic.node, traffic.sent, traffic.dropped);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerTraffic {
    /// The other replica.
    pub node: NodeId,
    /// Whether its stream is connected.
    pub connected: bool,
    /// Messages passed to its stream.
    pub sent: u64,
    /// Bytes of these messages.
    pub sent_bytes: u64,
    /// Messages dropped: the queue was full, or there was no connection.
    pub dropped: u64,
    /// Messages received from it.
    pub received: u64,
    /// Bytes of these messages.
    pub received_bytes: u64,
    /// The number of times that its stream was opened again.
    pub reconnects: u64,
    /// Bytes of messages that now wait for its stream.
    pub queue_bytes: u64,
}

/// The live counters. Relaxed ordering: they synchronize nothing.
#[derive(Debug, Default)]
pub(super) struct Counters {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    dropped: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    connects: AtomicU64,
    connected: AtomicBool,
}

impl Counters {
    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, messages: usize) {
        self.dropped.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(super) fn connected(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
        self.connected.store(true, Ordering::Relaxed);
    }

    pub(super) fn disconnected(&self) {
        self.connected.store(false, Ordering::Relaxed);
    }

    pub(super) fn read(&self, node: NodeId, queue_bytes: usize) -> PeerTraffic {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        PeerTraffic {
            node,
            connected: self.connected.load(Ordering::Relaxed),
            sent: get(&self.sent),
            sent_bytes: get(&self.sent_bytes),
            dropped: get(&self.dropped),
            received: get(&self.received),
            received_bytes: get(&self.received_bytes),
            reconnects: get(&self.connects).saturating_sub(1),
            queue_bytes: queue_bytes as u64,
        }
    }
}
