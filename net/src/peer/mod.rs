//! Peer: the transport between replicas, over gRPC. A [`PeerTransport`] implements the transport of
//! [`chiplog::cluster::ClusterOptions`].
//!
//! ```text
//! log's thread ── send ──> Queue ──> Link (two streams per peer, reopened when one breaks) ──> network
//!                                                       Service (checks the Hello first) <── network
//!                                                          └──> Inbox of the log
//! ```
//!
//! A server's groups of named logs share the listener, the threads and the certificates with its default log, which is
//! group 0 here. Each group has its own streams: [`PeerTransport::group`]. Over the same listener, the leader of a group
//! asks other servers for empty replicas: [`PeerTransport::ask_to_host`]. A server asks others about groups that it does not
//! run: [`PeerTransport::ask_view`].
//!
//! Invariants:
//! - `send` never blocks: messages that a peer does not accept are dropped, within a bound of bytes.
//! - Each peer has two streams, each over its own connection. Urgent messages use the first and overtake large ones,
//!   which use the second. Each stream keeps its order. A peer that accepts only one stream gets both kinds on it,
//!   urgent messages first.
//! - Only a stream whose Hello was checked reaches the inbox. The check covers the log, the receiving node, its
//!   directory, and the sender's directory if the membership knows one.
//! - The transport has its own threads, so that clients' work does not delay elections. From four processors on there
//!   are two worker threads, so that a handshake or the encoding of a large block does not delay a heartbeat. Nothing
//!   relies on the second one.
//! - A silent peer is given up after about an election timeout: the first stream detects it, and ends the second. If
//!   only the second stream's bytes are lost, its kernel detects it after twice that time.
//! - Under TLS a replica is the node that its certificate names; a certificate of another node is rejected in both
//!   directions.
//!
//! The membership holds the peers' addresses. A replica that is joining does not have the membership yet but must
//! answer. So a node that is no member is reached at the address of its last Hello; a link to it ends when it is idle.
//!
//! Must not know: raft, blocks, the contents of messages.

mod certificate;
mod group;
mod host;
mod link;
mod options;
mod queue;
mod service;
mod traffic;
mod transport;

#[cfg(test)]
mod tests;

pub use group::GroupTransport;
pub use host::{GroupOn, Host, Hosting};
pub use options::{PeerOptions, PeerTls};
pub use traffic::PeerTraffic;
pub use transport::PeerTransport;

use crate::listener::tls::{ServerTls, node_name};
use crate::served::refusals::Refusals;
use crate::wire::address::{Address, check_host_port};
use crate::wire::tcp;
use chiplog::cluster::{MEMBERS_MAX, Member};
use chiplog::transport::{Envelope, Inbox};
use chiplog::{DirectoryId, LogId, NodeId};
use hyper_util::client::legacy::connect::HttpConnector;
use link::Link;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use traffic::Counters;

/// The revision of the peers' protocol. Both sides must use the same; optional parts are features.
const PROTOCOL: u32 = 1;
/// The feature: accepts a second stream.
const SECOND_STREAM: u32 = 1;
/// The features of this replica.
const FEATURES: u32 = SECOND_STREAM;
/// The largest message: anything that fits into a segment of any size. A block that one replica stored can be sent to
/// the others, whatever their own limits are.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (64 << 20);
/// How long a ping may wait behind large messages. It does not apply to the dialer of the first stream, which detects
/// whether the peer is alive. A lost connection is detected sooner: [`Common::unacknowledged`].
const SECOND_SILENCE: Duration = Duration::from_secs(30);
/// The most groups of named logs of a server. Each group, the system log and the default log have two connections from each other
/// server, and the listener takes 128 of one address and 512 in all: with more than 30 groups three servers on one address would
/// not connect any more, and with more than 62 two servers on addresses of their own.
pub const GROUPS_MAX: u32 = 16;
/// The limit of calls for the members of groups that are answered at a time.
const VIEWS_MAX: usize = 64;
/// How long such a call waits for others to end; the caller's own limit is twice that.
const VIEW_WAIT: Duration = Duration::from_secs(1);
/// The group of the default log.
const DEFAULT_GROUP: u32 = 0;
/// How long a link to a node that is no member stays open without a message.
const IDLE: Duration = Duration::from_secs(5);
/// The flow-control window of a stream: several blocks.
const WINDOW_BYTES: u32 = 16 << 20;

/// The state that all groups share.
struct Common {
    node: NodeId,
    address: String,
    election_timeout: Duration,
    queue_bytes_max: usize,
    tls: Option<Secured>,
    refusals: Arc<Refusals>,
    runtime: Handle,
    closing: watch::Sender<bool>,
    /// Links that have not ended yet, of all groups.
    links: AtomicUsize,
    /// Emptied when the transport is closed, and empty from then on: each refers to this.
    groups: RwLock<BTreeMap<u32, Arc<Shared>>>,
    /// Answers the calls of other servers about groups. None once the transport is closed: it can refer to this.
    host: RwLock<Option<Arc<Host>>>,
    /// Bounds the calls that are answered so at a time.
    viewing: Arc<tokio::sync::Semaphore>,
    /// Held while a replica is made, also if the caller does not wait any longer.
    hosting: Arc<tokio::sync::Mutex<()>>,
}

/// TLS of the transport, in both directions.
struct Secured {
    server: Arc<ServerTls>,
    /// The identity for connections to others.
    own: RwLock<PeerTls>,
}

impl Common {
    /// The state of a group, made at its first use. Only for groups that this program names: a caller's are found by
    /// [`Self::known_group`].
    fn group(self: &Arc<Self>, group: u32) -> Arc<Shared> {
        let made = || Arc::new(Shared::new(group, self.clone()));
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_closing() {
            return made(); // not kept: nothing would remove it
        }
        groups.entry(group).or_insert_with(made).clone()
    }

    /// Whether the transport is closed, or about to be.
    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// A group, if it was used here.
    fn known_group(&self, group: u32) -> Option<Arc<Shared>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Returns an endpoint for one peer only, over connections that [`Self::connector`] makes. A connection that leaves
    /// a ping unanswered for `silence` is closed.
    fn endpoint(
        &self,
        node: NodeId,
        address: &str,
        silence: Duration,
    ) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(2 * self.silence()) // TLS included
            .http2_keep_alive_interval(self.election_timeout / 2)
            .keep_alive_timeout(silence)
            .keep_alive_while_idle(true)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES);
        if let Some(secured) = &self.tls {
            let own = secured.own.read().unwrap_or_else(PoisonError::into_inner).clone();
            let config = ClientTlsConfig::new()
                .identity(Identity::from_pem(&own.certificate, &own.key))
                .ca_certificate(Certificate::from_pem(&own.authority))
                .domain_name(node_name(node));
            endpoint = endpoint.tls_config(config)?;
        }
        Ok(endpoint)
    }

    /// Returns the connector for peers.
    fn connector(&self) -> HttpConnector {
        tcp::connector(self.election_timeout, self.unacknowledged())
    }

    /// How long a peer may leave a ping of the first stream unanswered.
    fn silence(&self) -> Duration {
        self.election_timeout.max(Duration::from_millis(500))
    }

    /// How long a peer's kernel may leave bytes of either stream unacknowledged: twice the time after which the first
    /// stream is closed. If the whole network path is lost, the first stream detects it first. If packets were lost,
    /// there is more time to send them again.
    fn unacknowledged(&self) -> Duration {
        2 * self.silence()
    }
}

/// The state that the transport of a group, its links and the service share.
struct Shared {
    group: u32,
    common: Arc<Common>,
    state: RwLock<State>,
    /// Messages for nodes without a known address.
    nowhere: AtomicU64,
}

impl Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// The log and directory of this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Me {
    log: LogId,
    directory: DirectoryId,
}

#[derive(Debug, Default)]
struct State {
    inbox: Option<Inbox>,
    /// The log is closed: messages from it are dropped until one is opened again.
    detached: bool,
    /// Known from the log's first message, or from [`PeerTransport::identify`].
    me: Option<Me>,
    members: BTreeMap<NodeId, Known>,
    /// Addresses of nodes that are no members, from their Hellos. Up to [`MEMBERS_MAX`].
    kept_addresses: BTreeMap<NodeId, String>,
    links: BTreeMap<NodeId, Arc<Link>>,
    counters: BTreeMap<NodeId, Arc<Counters>>,
    /// Incoming streams by node.
    arriving: BTreeMap<NodeId, Arriving>,
    /// The last caller while there was no log, and the time of its call.
    called: Option<(Caller, Instant)>,
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
struct Arriving {
    first: Option<oneshot::Sender<()>>,
    second: Option<oneshot::Sender<()>>,
}

impl Arriving {
    fn is_closed(&self) -> bool {
        [&self.first, &self.second].into_iter().flatten().all(oneshot::Sender::is_closed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    directory: DirectoryId,
    /// None: its address does not contain one.
    peer: Option<String>,
}

impl Shared {
    fn new(group: u32, common: Arc<Common>) -> Self {
        Self { group, common, state: RwLock::default(), nowhere: AtomicU64::new(0) }
    }

    fn traffic(&self) -> Vec<PeerTraffic> {
        let state = self.read();
        let queued = |node| state.links.get(node).map_or(0, |link| link.queue.bytes());
        state.counters.iter().map(|(node, counters)| counters.read(*node, queued(node))).collect()
    }

    fn attach(&self, node: NodeId, inbox: Inbox) {
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

    fn detach(&self, node: NodeId) {
        if node == self.node {
            self.forget();
        }
    }

    fn backlog(&self, to: NodeId) -> usize {
        self.read().links.get(&to).map_or(0, |link| link.queue.backlog())
    }

    // Nothing panics under the lock.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(self: &Arc<Self>, envelope: Envelope) {
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
    fn link(self: &Arc<Self>, state: &mut State, node: NodeId) -> Option<Arc<Link>> {
        if let Some(link) = state.links.get(&node) {
            return Some(link.clone());
        }
        let address = state.address(node).filter(|_| node != self.node)?;
        let counters = state.counters(node);
        let link = Arc::new(Link::new(node, address, self.queue_bytes_max, counters));
        state.links.insert(node, link.clone());
        self.runtime.spawn(link::run(link::Counted::new(self.clone()), link.clone()));
        Some(link)
    }

    fn members(self: &Arc<Self>, members: &[Member]) {
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
    fn forget(&self) {
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
    fn retire(&self, link: &Arc<Link>) -> bool {
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

    fn is_member(&self, node: NodeId) -> bool {
        self.read().members.contains_key(&node)
    }
}

impl State {
    fn address(&self, node: NodeId) -> Option<String> {
        match self.members.get(&node) {
            Some(known) => known.peer.clone(),
            None => self.kept_addresses.get(&node).cloned(),
        }
    }

    fn keep_address(&mut self, node: NodeId, address: String) {
        if self.kept_addresses.len() >= MEMBERS_MAX && !self.kept_addresses.contains_key(&node) {
            self.kept_addresses.pop_first();
        }
        self.kept_addresses.insert(node, address);
    }

    /// Returns the node's counters. Counters of nodes above the limit are not shown.
    fn counters(&mut self, node: NodeId) -> Arc<Counters> {
        if self.counters.len() >= 2 * MEMBERS_MAX && !self.counters.contains_key(&node) {
            return Arc::default();
        }
        self.counters.entry(node).or_default().clone()
    }
}

/// The part of a member's address for peers. A program that embeds the log may give only this part.
fn peer_part(address: &str) -> Option<String> {
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
