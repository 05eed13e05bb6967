//! Outbox: the outgoing messages of a process: the shipped [`PeerQueue`] for each other replica, and a check beside
//! each.
//!
//! The check runs whenever the network accepts a message: it must be the oldest one of its lane that the queue
//! accepted, unchanged. So a full queue drops the newest message, and no message overtakes another within a lane.
//!
//! Must not know: when a message leaves.

use crate::cluster::peer_queue::PeerQueue;
use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::sync::clock::Moment;
use crate::types::NodeId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Urgent messages, and all others: each lane has its own stream.
pub(super) const LANES: [bool; 2] = [true, false];

#[derive(Debug)]
struct Way {
    queue: PeerQueue,
    /// The messages that the queue accepted and has not returned, by lane.
    accepted: [VecDeque<Envelope>; 2],
    /// The time at which the network will fetch waiting messages.
    due: Option<Moment>,
}

impl Way {
    /// Whether no message waits, and the network has passed on all that it accepted.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.queue.backlog() == 0
    }
}

#[derive(Debug)]
struct Inner {
    ways: BTreeMap<NodeId, Way>,
    /// The messages that were sent since the last look.
    fresh: Vec<Envelope>,
    dropped: u64,
    bytes_max: usize,
}

/// The messages that a process has sent and the network has not accepted.
#[derive(Debug)]
pub(super) struct Outbox(Mutex<Inner>);

impl Default for Outbox {
    fn default() -> Self {
        Self::new(64 << 20)
    }
}

impl Outbox {
    /// Up to `bytes_max` bytes wait for each other replica.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Mutex::new(Inner { ways: BTreeMap::new(), fresh: Vec::new(), dropped: 0, bytes_max }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns copies of the messages that were sent since the last call.
    pub(super) fn fresh(&self) -> Vec<Envelope> {
        std::mem::take(&mut self.lock().fresh)
    }

    /// Removes and returns all waiting messages, in the order in which they were sent.
    pub(super) fn take(&self) -> Vec<Envelope> {
        let mut inner = self.lock();
        inner.ways.clear();
        std::mem::take(&mut inner.fresh)
    }

    /// How many messages met a full queue since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.lock().dropped)
    }

    /// The replicas for which a message waits.
    pub(super) fn waiting(&self) -> Vec<NodeId> {
        let inner = self.lock();
        inner.ways.iter().filter(|(_, way)| !way.is_idle()).map(|(to, _)| *to).collect()
    }

    /// Schedules a fetch of the messages for `to` at this moment. False: no message waits, or a fetch is scheduled
    /// earlier.
    pub(super) fn awaits(&self, to: NodeId, now: Moment, at: Moment) -> bool {
        let mut inner = self.lock();
        let Some(way) = inner.ways.get_mut(&to).filter(|way| !way.is_idle()) else { return false };
        if way.due.is_some_and(|due| due > now && due <= at) {
            return false;
        }
        way.due = Some(at);
        true
    }

    /// The next message of a lane.
    pub(super) fn next(&self, to: NodeId, urgent: bool) -> Result<Option<Envelope>, String> {
        let mut inner = self.lock();
        let Some(way) = inner.ways.get_mut(&to) else { return Ok(None) };
        let Some(taken) = way.queue.take(urgent, !urgent) else { return Ok(None) };
        let oldest = way.accepted[usize::from(urgent)].pop_front();
        if oldest.as_ref() == Some(&taken) {
            return Ok(Some(taken));
        }
        Err(format!(
            "node {}: the queue to node {to} returns a message that is not the oldest that it accepted",
            taken.from
        ))
    }
}

impl Transport for Outbox {
    fn attach(&self, _: NodeId, _: Inbox) {}

    fn detach(&self, _: NodeId) {}

    fn send(&self, envelope: Envelope) {
        let mut inner = self.lock();
        let bytes_max = inner.bytes_max;
        let way = inner.ways.entry(envelope.to).or_insert_with(|| Way {
            queue: PeerQueue::new(bytes_max),
            accepted: Default::default(),
            due: None,
        });
        if way.queue.push(envelope.clone()) {
            way.accepted[usize::from(envelope.urgent)].push_back(envelope.clone());
        } else {
            inner.dropped += 1;
        }
        inner.fresh.push(envelope);
    }

    fn backlog(&self, to: NodeId) -> usize {
        self.lock().ways.get(&to).map_or(0, |way| way.queue.backlog())
    }
}
