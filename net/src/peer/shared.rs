//! The state of one group's transport: its inbox, its members, and the links to them.

use super::PeerTraffic;
use super::common::Common;
use super::link::{self, Link};
use super::traffic::Counters;
use crate::wire::address::{Address, check_host_port};
use chiplog::cluster::{MEMBERS_MAX, Member};
use chiplog::transport::{Envelope, Inbox};
use chiplog::{DirectoryId, LogId, NodeId};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;
use tokio::sync::oneshot;

/// The state that the transport of a group, its links and the service share.
pub(super) struct Shared {
    pub(super) group: u32,
    pub(super) common: Arc<Common>,
    state: RwLock<State>,
    /// Messages for nodes without a known address.
    pub(super) nowhere: AtomicU64,
}

impl Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// The log and directory of this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Me {
    pub(super) log: LogId,
    pub(super) directory: DirectoryId,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) inbox: Option<Inbox>,
    /// The log is closed: messages from it are dropped until one is opened again.
    pub(super) detached: bool,
    /// Known from the log's first message, or from [`PeerTransport::identify`](super::PeerTransport::identify).
    pub(super) me: Option<Me>,
    pub(super) members: BTreeMap<NodeId, Known>,
    /// Addresses of nodes that are no members, from their Hellos. Up to [`MEMBERS_MAX`].
    pub(super) kept_addresses: BTreeMap<NodeId, String>,
    pub(super) links: BTreeMap<NodeId, Arc<Link>>,
    pub(super) counters: BTreeMap<NodeId, Arc<Counters>>,
    /// Incoming streams by node.
    pub(super) arriving: BTreeMap<NodeId, Arriving>,
    /// The last caller while there was no log, and the time of its call.
    pub(super) called: Option<(Caller, Instant)>,
}

/// A replica of a cluster that considers this replica, which has no log, a member.
///
/// ```
/// # fn show(caller: chiplog_net::peer::Caller) {
/// println!("node {} of log {:?} calls this one node {}", caller.node, caller.log, caller.as_node);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// Its log.
    pub log: LogId,
    /// The member that calls.
    pub node: NodeId,
    /// The member that it considers this replica to be.
    pub as_node: NodeId,
}

/// The incoming streams of one node: dropping a sender ends its stream.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    pub(super) first: Option<oneshot::Sender<()>>,
    pub(super) second: Option<oneshot::Sender<()>>,
}

impl Arriving {
    pub(super) fn is_closed(&self) -> bool {
        [&self.first, &self.second].into_iter().flatten().all(oneshot::Sender::is_closed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) directory: DirectoryId,
    /// None: its address does not contain one.
    pub(super) peer: Option<String>,
}

impl Shared {
    pub(super) fn new(group: u32, common: Arc<Common>) -> Self {
        Self { group, common, state: RwLock::default(), nowhere: AtomicU64::new(0) }
    }

    pub(super) fn traffic(&self) -> Vec<PeerTraffic> {
        let state = self.read();
        let queued = |node| state.links.get(node).map_or(0, |link| link.queue.bytes());
        state.counters.iter().map(|(node, counters)| counters.read(*node, queued(node))).collect()
    }

    pub(super) fn attach(&self, node: NodeId, inbox: Inbox) {
        if node != self.node {
            tracing::error!(%node, of = %self.node, "the transport belongs to another node: no message will arrive");
            return;
        }
        let mut state = self.write();
        if self.is_closing() {
            return;
        }
        state.detached = false;
        let earlier = state.inbox.replace(inbox);
        drop(state);
        drop(earlier); // may drop the last reference to the previous inbox
    }

    pub(super) fn detach(&self, node: NodeId) {
        if node == self.node {
            self.forget();
        }
    }

    pub(super) fn backlog(&self, to: NodeId) -> usize {
        self.read().links.get(&to).map_or(0, |link| link.queue.backlog())
    }

    // Nothing panics under the lock.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(self: &Arc<Self>, envelope: Envelope) {
        let (to, me) = (envelope.to, Me { log: envelope.log, directory: envelope.from_directory });
        {
            let state = self.read();
            if state.me == Some(me)
                && let Some(link) = state.links.get(&to)
            {
                return link.queue.push(envelope);
            }
        }
        let mut state = self.write();
        if state.detached || self.is_closing() {
            return;
        }
        state.me = Some(me);
        match self.link(&mut state, to) {
            Some(link) => link.queue.push(envelope),
            None => _ = self.nowhere.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the link to a node; opens one if the node's address is known.
    pub(super) fn link(self: &Arc<Self>, state: &mut State, node: NodeId) -> Option<Arc<Link>> {
        if let Some(link) = state.links.get(&node) {
            return Some(link.clone());
        }
        let address = state.address(node).filter(|_| node != self.node)?;
        let counters = state.counters(node);
        let link = Arc::new(Link::new(node, address, self.queue_bytes_max, counters));
        state.links.insert(node, link.clone());
        self.links.fetch_add(1, Ordering::Relaxed);
        self.runtime.spawn(link::run(self.clone(), link.clone()));
        Some(link)
    }

    pub(super) fn members(self: &Arc<Self>, members: &[Member]) {
        let known = |m: &Member| Known { directory: m.directory, peer: peer_part(&m.address) };
        let mut state = self.write();
        if self.is_closing() {
            return;
        }
        state.detached = false;
        state.members = members.iter().map(|m| (m.node, known(m))).collect();
        // A removed member still gets its last messages; then its link is idle and ends.
        let gone: Vec<NodeId> =
            state.links.keys().copied().filter(|n| !state.members.contains_key(n)).collect();
        for node in gone {
            if let Some(link) = state.links.get(&node) {
                let address = link.address.clone();
                state.keep_address(node, address);
            }
        }
        let moved: Vec<NodeId> = state
            .links
            .iter()
            .filter(|(node, link)| state.address(**node).is_some_and(|a| a != link.address))
            .map(|(node, _)| *node)
            .collect();
        for node in moved {
            if let Some(link) = state.links.remove(&node) {
                link.close();
            }
        }
        let nodes: Vec<NodeId> = state.members.keys().copied().collect();
        let State { counters, links, .. } = &mut *state;
        counters.retain(|n, _| nodes.contains(n) || links.contains_key(n));
        // Connects before there is a message: an election should not wait for a connection.
        for node in nodes {
            self.link(&mut state, node);
        }
    }

    /// Ends all streams. No message arrives until there is an inbox again.
    pub(super) fn forget(&self) {
        let mut state = self.write();
        for link in std::mem::take(&mut state.links).into_values() {
            link.close();
        }
        state.arriving.clear();
        (state.me, state.detached) = (None, true);
        let inbox = state.inbox.take();
        drop(state);
        drop(inbox);
    }

    /// Ends the link of a node that is no member, unless a message has arrived meanwhile. Returns whether it ended.
    pub(super) fn retire(&self, link: &Arc<Link>) -> bool {
        let mut state = self.write();
        let here = state.links.get(&link.node).is_some_and(|l| Arc::ptr_eq(l, link));
        if here && (state.members.contains_key(&link.node) || !link.queue.is_empty()) {
            return false;
        }
        if here {
            state.links.remove(&link.node);
            state.counters.remove(&link.node);
        }
        link.close();
        true
    }

    pub(super) fn is_member(&self, node: NodeId) -> bool {
        self.read().members.contains_key(&node)
    }
}

impl State {
    pub(super) fn address(&self, node: NodeId) -> Option<String> {
        match self.members.get(&node) {
            Some(known) => known.peer.clone(),
            None => self.kept_addresses.get(&node).cloned(),
        }
    }

    pub(super) fn keep_address(&mut self, node: NodeId, address: String) {
        if self.kept_addresses.len() >= MEMBERS_MAX && !self.kept_addresses.contains_key(&node) {
            self.kept_addresses.pop_first();
        }
        self.kept_addresses.insert(node, address);
    }

    /// Returns the node's counters. Counters of nodes above the limit are not shown.
    pub(super) fn counters(&mut self, node: NodeId) -> Arc<Counters> {
        if self.counters.len() >= 2 * MEMBERS_MAX && !self.counters.contains_key(&node) {
            return Arc::default();
        }
        self.counters.entry(node).or_default().clone()
    }
}

/// The part of a member's address for peers. A program that embeds the log may give only this part.
pub(super) fn peer_part(address: &str) -> Option<String> {
    match address.parse::<Address>() {
        Ok(address) => Some(address.peer),
        Err(_) => check_host_port(address).is_ok().then(|| address.to_owned()),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).field("group", &self.group).finish()
    }
}
