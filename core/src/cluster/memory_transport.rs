//! A network in memory: replicas of one process exchange messages without copying a byte. For programs that run their
//! replicas in one process, for tests and for demonstrations. Links can be cut and restored.
//!
//! The sender's own thread puts a message into the receiver's inbox. There is no thread and no queue here, so nothing
//! needs a bound, and one stream keeps its order. A message that cannot be delivered at once is dropped and counted.
//!
//! Invariants:
//! - No inbox is called while the lock is held, so a receiver that uses the network cannot deadlock on it.
//! - Every message is either delivered or dropped, and counted once as one of these.
//!
//! Must not know: raft, blocks, the contents of messages.

use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A network between the replicas of one process. Cheap to clone; all clones are the same network.
///
/// ```
/// use chiplog::NodeId;
/// use chiplog::transport::MemoryNetwork;
///
/// let network = MemoryNetwork::new();
/// network.partition(&[NodeId(1)], &[NodeId(2), NodeId(3)]);
/// assert!(!network.reaches(NodeId(1), NodeId(3)));
/// assert!(network.reaches(NodeId(2), NodeId(3)));
/// network.heal();
/// assert!(network.reaches(NodeId(1), NodeId(3)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryNetwork {
    shared: Arc<Shared>,
}

/// The traffic of a [`MemoryNetwork`] since it was made.
///
/// ```
/// let traffic = chiplog::transport::MemoryNetwork::new().traffic();
/// assert_eq!((traffic.messages, traffic.bytes, traffic.dropped), (0, 0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages delivered to a replica.
    pub messages: u64,
    /// Bytes of delivered messages, heads and bodies.
    pub bytes: u64,
    /// Messages dropped: the link was cut, or the receiver was not attached.
    pub dropped: u64,
}

impl MemoryNetwork {
    /// A network without replicas, on which no link is cut.
    pub fn new() -> Self {
        Self::default()
    }

    /// The transport onto this network, for [`ClusterOptions::new`](crate::cluster::ClusterOptions::new). The same one
    /// serves all replicas.
    pub fn transport(&self) -> Arc<dyn Transport> {
        self.shared.clone()
    }

    /// Cuts a replica off from all others, in both directions. The replica runs on and is not notified.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.write().away.insert(node);
    }

    /// Connects a replica that was [disconnected](Self::disconnect). Partitions stay as they are.
    pub fn connect(&self, node: NodeId) {
        self.shared.write().away.remove(&node);
    }

    /// Cuts every link between the replicas of `left` and those of `right`, in both directions. Links that are already
    /// cut stay cut.
    pub fn partition(&self, left: &[NodeId], right: &[NodeId]) {
        let mut links = self.shared.write();
        for (a, b) in left.iter().flat_map(|a| right.iter().map(|b| (*a, *b))) {
            links.cut.extend([(a, b), (b, a)]);
        }
    }

    /// Restores every link and connects all replicas.
    pub fn heal(&self) {
        let mut links = self.shared.write();
        links.away.clear();
        links.cut.clear();
    }

    /// Whether a message from `from` would reach `to`, if `to` is attached.
    pub fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        self.shared.read().whole(from, to)
    }

    /// The traffic so far. The numbers may not match each other while messages are being sent.
    pub fn traffic(&self) -> Traffic {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let Counts { messages, bytes, dropped } = &self.shared.counts;
        Traffic { messages: count(messages), bytes: count(bytes), dropped: count(dropped) }
    }
}

/// The state that [`MemoryNetwork`] and the transports share.
#[derive(Debug, Default)]
struct Shared {
    /// Read for every message; written when a replica attaches, detaches, or a link changes.
    links: RwLock<Links>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    messages: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Links {
    inboxes: BTreeMap<NodeId, Inbox>,
    /// Replicas cut off from all others.
    away: BTreeSet<NodeId>,
    /// Links that are cut: (from, to).
    cut: BTreeSet<(NodeId, NodeId)>,
}

impl Links {
    fn whole(&self, from: NodeId, to: NodeId) -> bool {
        !self.away.contains(&from) && !self.away.contains(&to) && !self.cut.contains(&(from, to))
    }
}

impl Shared {
    // No code panics while it holds the lock, so a poisoned lock can be used.
    fn read(&self) -> RwLockReadGuard<'_, Links> {
        self.links.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Links> {
        self.links.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inbox of a message's receiver, if the message can reach it.
    fn inbox(&self, from: NodeId, to: NodeId) -> Option<Inbox> {
        let links = self.read();
        links.whole(from, to).then(|| links.inboxes.get(&to).cloned()).flatten()
    }
}

impl Transport for Shared {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        // The earlier inbox is dropped outside the lock: it may hold the last reference to the state behind it.
        let earlier = self.write().inboxes.insert(node, inbox);
        drop(earlier);
    }

    /// A message that another thread is delivering at the same time may still arrive afterwards.
    fn detach(&self, node: NodeId) {
        let inbox = self.write().inboxes.remove(&node);
        drop(inbox);
    }

    fn send(&self, envelope: Envelope) {
        // Relaxed: the counts do not order anything.
        let Some(inbox) = self.inbox(envelope.from, envelope.to) else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(envelope.bytes() as u64, Ordering::Relaxed);
        inbox.deliver(envelope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DirectoryId, LogId};
    use bytes::Bytes;
    use std::sync::Mutex;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);
    const THREE: NodeId = NodeId(3);

    type Arrived = Arc<Mutex<Vec<Envelope>>>;

    fn attach(network: &MemoryNetwork, node: NodeId) -> Arrived {
        let arrived = Arrived::default();
        let into = arrived.clone();
        network.transport().attach(node, Inbox::new(move |envelope| into.lock().unwrap().push(envelope)));
        arrived
    }

    fn message(from: NodeId, to: NodeId, text: &'static str) -> Envelope {
        Envelope {
            log: LogId(7),
            from,
            from_directory: DirectoryId(1),
            to,
            to_directory: DirectoryId(2),
            head: Bytes::from_static(text.as_bytes()),
            bodies: vec![Bytes::from(vec![5; 100]), Bytes::from(vec![6; 10])],
            urgent: false,
        }
    }

    fn texts(arrived: &Arrived) -> Vec<String> {
        let text = |e: Envelope| String::from_utf8(e.head.to_vec()).unwrap();
        std::mem::take(&mut *arrived.lock().unwrap()).into_iter().map(text).collect()
    }

    /// Sends one message over each link of three replicas and returns those that arrived, as (from, to).
    fn links(network: &MemoryNetwork, nodes: &[(NodeId, Arrived)]) -> Vec<(u64, u64)> {
        let mut whole = Vec::new();
        for (from, _) in nodes {
            for (to, arrived) in nodes.iter().filter(|(to, _)| to != from) {
                network.transport().send(message(*from, *to, "x"));
                let got = !texts(arrived).is_empty();
                assert_eq!(got, network.reaches(*from, *to), "{from} to {to}");
                if got {
                    whole.push((from.get(), to.get()));
                }
            }
        }
        whole
    }

    const ALL: [(u64, u64); 6] = [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)];

    #[test]
    fn messages_arrive_in_order_and_uncopied() {
        let network = MemoryNetwork::new();
        let (one, two) = (attach(&network, ONE), attach(&network, TWO));
        let sent = message(ONE, TWO, "first");
        network.transport().send(sent.clone());
        network.transport().send(message(ONE, TWO, "second"));
        assert!(one.lock().unwrap().is_empty());
        let arrived = two.lock().unwrap().clone();
        assert_eq!(arrived[0], sent);
        for (a, b) in sent.bodies.iter().zip(&arrived[0].bodies) {
            assert_eq!(a.as_ptr(), b.as_ptr(), "the bodies are the same memory that was sent");
        }
        assert_eq!(texts(&two), ["first", "second"]);
        let expected = Traffic { messages: 2, bytes: 2 * 110 + 5 + 6, dropped: 0 };
        assert_eq!(network.traffic(), expected);
    }

    #[test]
    fn cut_links_stay_cut_until_restored() {
        let network = MemoryNetwork::new();
        let nodes = [ONE, TWO, THREE].map(|n| (n, attach(&network, n)));
        assert_eq!(links(&network, &nodes), ALL);
        network.disconnect(TWO);
        assert_eq!(links(&network, &nodes), [(1, 3), (3, 1)]);
        network.partition(&[ONE], &[TWO, THREE]);
        assert_eq!(links(&network, &nodes), []);
        network.connect(TWO);
        assert_eq!(links(&network, &nodes), [(2, 3), (3, 2)], "the partition is still there");
        network.disconnect(THREE);
        network.heal();
        assert_eq!(links(&network, &nodes), ALL);
        let Traffic { messages, dropped, .. } = network.traffic();
        assert_eq!((messages, dropped), (6 + 2 + 2 + 6, 4 + 6 + 4));
    }

    #[test]
    fn detached_replica_gets_nothing_until_it_attaches_again() {
        let network = MemoryNetwork::new();
        let transport = network.transport();
        transport.send(message(ONE, TWO, "nobody there"));
        let before = attach(&network, TWO);
        transport.send(message(ONE, TWO, "a"));
        transport.detach(TWO);
        assert_eq!(Arc::strong_count(&before), 1, "the inbox is dropped");
        transport.send(message(ONE, TWO, "b"));
        let after = attach(&network, TWO);
        transport.send(message(ONE, TWO, "c"));
        assert_eq!((texts(&before), texts(&after)), (vec!["a".into()], vec!["c".into()]));
        assert_eq!(network.traffic().dropped, 2);
    }

    /// A receiver may send, detach or cut links while it takes a message, because the lock is not held.
    #[test]
    fn an_inbox_may_use_the_network() {
        let network = MemoryNetwork::new();
        let one = attach(&network, ONE);
        let back = network.clone();
        let answer = move |_| {
            back.transport().send(message(TWO, ONE, "answer"));
            back.disconnect(ONE);
            back.transport().detach(TWO);
        };
        network.transport().attach(TWO, Inbox::new(answer));
        network.transport().send(message(ONE, TWO, "question"));
        assert_eq!(texts(&one), ["answer"]);
        assert!(!network.reaches(TWO, ONE));
    }
}
