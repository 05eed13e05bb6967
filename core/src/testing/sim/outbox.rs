//! Outbox: the way out of a process: the shipped [`PeerQueue`], one for each of the others, and a judge beside each.
//!
//! Judged whenever the network takes a message: it is the oldest of its lane that the queue accepted, unchanged. So what is
//! dropped is the newest, and nothing overtakes within a lane.
//!
//! Must not know: when a message leaves.

use crate::cluster::peer_queue::PeerQueue;
use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::sync::clock::Moment;
use crate::types::NodeId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Urgent messages, and all others: each lane has a stream of its own.
pub(super) const LANES: [bool; 2] = [true, false];

#[derive(Debug)]
struct Way {
    queue: PeerQueue,
    /// What the queue accepted and has not given away, by lane.
    accepted: [VecDeque<Envelope>; 2],
    /// When somebody comes for what waits.
    due: Option<Moment>,
}

impl Way {
    /// Whether nothing waits, and the network has passed on all that it took.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.queue.backlog() == 0
    }
}

#[derive(Debug)]
struct Inner {
    ways: BTreeMap<NodeId, Way>,
    /// What was sent since it was last looked at.
    fresh: Vec<Envelope>,
    dropped: u64,
    bytes_max: usize,
}

/// What a process has sent and the network has not taken.
#[derive(Debug)]
pub(super) struct Outbox(Mutex<Inner>);

impl Default for Outbox {
    fn default() -> Self {
        Self::new(64 << 20)
    }
}

impl Outbox {
    /// Up to so many bytes wait for each of the others.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Mutex::new(Inner { ways: BTreeMap::new(), fresh: Vec::new(), dropped: 0, bytes_max }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a look at what was sent since the last time.
    pub(super) fn fresh(&self) -> Vec<Envelope> {
        std::mem::take(&mut self.lock().fresh)
    }

    /// Takes all that waits, in the order in which it was sent.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub(super) fn take(&self) -> Vec<Envelope> {
        let mut inner = self.lock();
        inner.ways.clear();
        std::mem::take(&mut inner.fresh)
    }

    /// Messages that found a queue full since the last time.
    pub(super) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.lock().dropped)
    }

    /// For whom anything waits.
    pub(super) fn waiting(&self) -> Vec<NodeId> {
        let inner = self.lock();
        inner.ways.iter().filter(|(_, way)| !way.is_idle()).map(|(to, _)| *to).collect()
    }

    /// Somebody can come at this moment for what waits for `to`. False: nothing does, or somebody comes sooner.
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
            "node {}: the queue to node {to} gives a message that is not the oldest that it accepted",
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
