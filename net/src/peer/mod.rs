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
//! asks other servers for empty replicas: [`PeerTransport::ask_to_host`].
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
mod queue;
mod service;
mod traffic;

pub use group::GroupTransport;
pub use host::Host;
pub use traffic::PeerTraffic;

use crate::listener::tls;
use crate::listener::tls::{ServerTls, node_name};
use crate::served::refusals::Refusals;
use crate::wire::address::{Address, check_host_port};
use crate::wire::tcp;
use chiplog::cluster::{MEMBERS_MAX, Member};
use chiplog::transport::{Envelope, Inbox, Transport};
use chiplog::{DirectoryId, ErrorKind, LogId, NodeId, options};
use hyper_util::client::legacy::connect::HttpConnector;
use link::Link;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
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
/// The largest number of worker threads, not counting the thread that accepts connections.
const WORKERS_MAX: usize = 2;
/// How long a ping may wait behind large messages. It does not apply to the dialer of the first stream, which detects
/// whether the peer is alive. A lost connection is detected sooner: [`Shared::unacknowledged`].
const SECOND_SILENCE: Duration = Duration::from_secs(30);
/// The most groups of named logs of a server: each has two connections to each other server.
pub const GROUPS_MAX: u32 = 16;
/// The group of the default log.
const DEFAULT_GROUP: u32 = 0;
/// How long a call is remembered that arrived while there was no log.
const CALL_REMEMBERED: Duration = Duration::from_secs(60);
/// How long closing waits for what blocks a thread: a replica that is being made, the look-up of a host's address.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long a link to a node that is no member stays open without a message.
const IDLE: Duration = Duration::from_secs(5);

options! {
    /// Options of a transport.
    ///
    /// ```
    /// use chiplog_net::peer::PeerOptions;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let options = PeerOptions::new(chiplog::NodeId(1), listener, "127.0.0.1:7412 127.0.0.1:7411");
    /// assert_eq!(options.queue_bytes_max, 64 << 20);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[derive(Debug)]
    pub struct PeerOptions {
        /// This replica.
        pub node: NodeId,
        /// The listener for the other replicas' streams.
        pub listener: TcpListener,
        /// The address of this replica, as an [`Address`].
        pub address: String,
        /// The cluster's election timeout: a connection that is silent for about this long is closed. Default 1 s.
        pub election_timeout: Duration,
        /// The limit in bytes of messages that wait for one peer, default 64 MiB. A larger message may wait alone.
        pub queue_bytes_max: usize,
        /// TLS in both directions. Default: no TLS.
        pub tls: Option<PeerTls>,
    }
}

impl PeerOptions {
    /// Options with the defaults.
    pub fn new(node: NodeId, listener: TcpListener, address: impl Into<String>) -> Self {
        Self {
            node,
            listener,
            address: address.into(),
            election_timeout: Duration::from_secs(1),
            queue_bytes_max: 64 << 20,
            tls: None,
        }
    }
}

/// Mutual TLS between replicas, all in PEM. A replica's certificate must have [`node_name`], such as `node-3`, among
/// its alternative names. The host is not checked. The authority must sign for one cluster only.
///
/// ```
/// # fn read(_: &str) -> Vec<u8> { Vec::new() }
/// use chiplog_net::peer::PeerTls;
/// let tls = PeerTls { certificate: read("node-3.pem"), key: read("node-3.key"), authority: read("peers.pem") };
/// # drop(tls);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PeerTls {
    /// This replica's certificate, and the certificates between it and the authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Certificates of the authority that signs the replicas' certificates.
    pub authority: Vec<u8>,
}

impl PeerTls {
    /// Checks that replicas with the same authority will accept this certificate for `node`.
    ///
    /// # Errors
    /// `InvalidArgument`: the certificate names another node, is not signed by the authority, has expired, or is not
    /// valid yet.
    pub fn check(&self, node: NodeId) -> chiplog::Result<()> {
        tls::check_node(&self.identity(), node)
    }

    fn identity(&self) -> tls::Identity {
        let Self { certificate, key, authority } = self.clone();
        tls::Identity { certificate, key, authority: Some(authority) }
    }
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls")
    }
}

/// The transport between replicas over gRPC. `Send + Sync`. It ends when it is closed or dropped.
#[derive(Debug)]
pub struct PeerTransport {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that all groups share.
pub(crate) struct Common {
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
    /// Makes replicas of groups that other servers ask for. None once the transport is closed: it can refer to this.
    host: RwLock<Option<Arc<Host>>>,
    /// Held while it does, also if the caller does not wait any longer.
    hosting: Arc<tokio::sync::Mutex<()>>,
}

/// The state that the transport of a group, its links and the service share.
pub(crate) struct Shared {
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

/// TLS of the transport, in both directions.
struct Secured {
    server: Arc<ServerTls>,
    /// The identity for connections to others.
    own: RwLock<PeerTls>,
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

impl PeerTransport {
    /// Starts to listen, on its own threads.
    ///
    /// # Errors
    /// The listener cannot be used, the certificates are invalid, or no thread can be started.
    pub fn start(options: PeerOptions) -> io::Result<Arc<Self>> {
        let PeerOptions { node, listener, address, election_timeout, queue_bytes_max, tls } = options;
        let secured = |own: PeerTls| {
            let server = ServerTls::new(&own.identity()).map_err(io::Error::other)?;
            Ok::<_, io::Error>(Secured { server, own: RwLock::new(own) })
        };
        let tls = tls.map(secured).transpose()?;
        let local = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers())
            .thread_name("chiplog-peer")
            .enable_all()
            .build()?;
        let common = Arc::new(Common {
            node,
            address,
            election_timeout,
            queue_bytes_max,
            tls,
            refusals: Arc::default(),
            runtime: runtime.handle().clone(),
            closing: watch::Sender::new(false),
            links: AtomicUsize::new(0),
            groups: RwLock::default(),
            host: RwLock::default(),
            hosting: Arc::default(),
        });
        let shared = common.group(DEFAULT_GROUP);
        let listener = {
            let _in = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serving = service::serve(common, listener);
        let thread = std::thread::Builder::new().name("chiplog-peer".into()).spawn(move || {
            runtime.block_on(serving);
            runtime.shutdown_timeout(END_PATIENCE);
        })?;
        Ok(Arc::new(Self { shared, local, thread: Mutex::new(Some(thread)) }))
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sets the log and directory of this replica. Call it once the log is open. Until then, or until the log's first
    /// message, streams of other replicas are rejected and retried.
    pub fn identify(&self, log: LogId, directory: DirectoryId) {
        self.shared.write().me = Some(Me { log, directory });
    }

    /// A replica that called within the last minute and considers this replica, which has no log yet, a member. None:
    /// there was no call, or there is a log.
    pub fn caller(&self) -> Option<Caller> {
        let state = self.shared.read();
        let recent = |(_, at): &&(Caller, Instant)| at.elapsed() < CALL_REMEMBERED;
        state.called.as_ref().filter(|_| state.me.is_none()).filter(recent).map(|(caller, _)| *caller)
    }

    /// The traffic with each peer, of the default log.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        self.shared.traffic()
    }

    /// The transport of another group, from 1 on: both sides have to mean the same by its number. A second call returns
    /// the same one.
    ///
    /// ```
    /// use chiplog_net::peer::{PeerOptions, PeerTransport};
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let transport = PeerTransport::start(PeerOptions::new(chiplog::NodeId(1), listener, "127.0.0.1:7412"))?;
    /// let group = transport.group(1);
    /// assert!(group.traffic().is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn group(&self, group: u32) -> Arc<GroupTransport> {
        Arc::new(GroupTransport::of(self.shared.common.group(group)))
    }

    /// Makes replicas of groups that other servers ask for: see [`Self::ask_to_host`]. A second call changes nothing. The
    /// callback is dropped when the transport is closed; one that holds the transport keeps it from being dropped.
    pub fn on_host(&self, host: Host) {
        let mut ours = self.shared.host.write().unwrap_or_else(PoisonError::into_inner);
        if ours.is_none() && !self.shared.is_closing() {
            *ours = Some(Arc::new(host));
        }
    }

    /// Asks a server, `host:port` for peers, to make an empty replica of a group's log, or for the one that it has. Both
    /// have to be members of the default log. Returns the replica's directory.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: it did not answer. Any error that it returned.
    pub async fn ask_to_host(
        &self,
        node: NodeId,
        address: &str,
        group: u32,
        log: LogId,
        timeout: Duration,
    ) -> chiplog::Result<DirectoryId> {
        host::ask(&self.shared, node, address, group, log, timeout).await
    }

    /// The number of messages dropped because the receiver's address is unknown.
    pub fn dropped_nowhere(&self) -> u64 {
        self.shared.nowhere.load(Ordering::Relaxed)
    }

    /// The connections and calls that the listener rejected.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.shared.refusals
    }

    /// Uses these certificates for new connections, in both directions.
    ///
    /// # Errors
    /// `InvalidArgument`: they are invalid, or the transport was started without TLS. Then nothing has changed.
    pub fn replace_tls(&self, tls: PeerTls) -> chiplog::Result<()> {
        let Some(secured) = &self.shared.tls else {
            let what =
                "the transport between replicas was started without TLS; restart the server to enable it";
            return Err(chiplog::Error::new(ErrorKind::InvalidArgument, what));
        };
        secured.server.replace(&tls.identity())?;
        *secured.own.write().unwrap_or_else(PoisonError::into_inner) = tls;
        Ok(())
    }

    /// Ends all streams and the threads. Blocks briefly, so that waiting messages can be sent. Nothing is sent or
    /// delivered afterwards, by no group. A replica that is being made for another server is
    /// waited for up to 2 s.
    pub fn close(&self) {
        // First: a link, a group or a callback that is added meanwhile would stay.
        self.shared.closing.send_replace(true);
        let groups = std::mem::take(&mut *self.shared.groups.write().unwrap_or_else(PoisonError::into_inner));
        let forget = || groups.values().chain([&self.shared]).for_each(|group| group.forget());
        forget();
        let host = self.shared.host.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(host);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            if thread.join().is_err() {
                tracing::error!("the thread of the transport between replicas panicked");
            }
            forget();
        }
    }
}

impl Drop for PeerTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl Transport for PeerTransport {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.shared.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.shared.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        self.shared.send(envelope);
    }

    fn backlog(&self, to: NodeId) -> usize {
        self.shared.backlog(to)
    }

    fn members(&self, members: &[Member]) {
        self.shared.members(members);
    }
}

impl Common {
    /// The state of a group, made at its first use. Only for groups that this program names: a caller's are found by
    /// [`Self::known_group`].
    fn group(self: &Arc<Self>, group: u32) -> Arc<Shared> {
        let made = || {
            let common = self.clone();
            Arc::new(Shared { group, common, state: RwLock::default(), nowhere: AtomicU64::new(0) })
        };
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

impl Shared {
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
        self.links.fetch_add(1, Ordering::Relaxed);
        self.runtime.spawn(link::run(self.clone(), link.clone()));
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

/// A second worker thread helps only if a processor is left for it. On a small machine the two only wake each other.
fn workers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, WORKERS_MAX)
}

/// The flow-control window of a stream: several blocks.
const WINDOW_BYTES: u32 = 16 << 20;

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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::wire::ids;
    use crate::wire::proto::v1::HostRequest;
    use std::sync::Weak;

    fn start() -> (Arc<PeerTransport>, Weak<Common>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let transport = PeerTransport::start(PeerOptions::new(NodeId(1), listener, "127.0.0.1:9")).unwrap();
        let common = Arc::downgrade(&transport.shared.common);
        (transport, common)
    }

    fn members() -> [Member; 2] {
        let member = |node: u64| Member::voter(NodeId(node), DirectoryId(node.into()), "127.0.0.1:9");
        [member(1), member(2)]
    }

    fn request(group: u32) -> HostRequest {
        let id = ids::to_bytes(5);
        HostRequest { protocol: PROTOCOL, cluster: id.clone(), from: 2, to: 1, group, log_id: id }
    }

    /// A group refers to the transport, which has the list of groups: a group that was made, or looked up for a caller,
    /// while the transport was closed stayed there for good, and had links on threads that had ended.
    #[test]
    fn closed_transport_keeps_no_group_and_opens_no_link() {
        let (transport, common) = start();
        let held = common.upgrade().unwrap();
        let early = transport.group(1);
        early.members(&members());
        assert_eq!(early.traffic().len(), 1);
        transport.close();
        let late = transport.group(2);
        for group in [&early, &late] {
            group.members(&members());
            assert!(group.shared.read().links.is_empty());
        }
        transport.members(&members());
        assert!(transport.shared.read().links.is_empty());
        assert_eq!(held.links.load(Ordering::Relaxed), 0);
        let again = transport.clone();
        transport.on_host(Box::new(move |_, _| Ok(DirectoryId(again.local_addr().port().into()))));
        assert!(host::check(&held, &request(1)).is_err());
        assert!(held.groups.read().unwrap().is_empty());
        drop((transport, early, late, held));
        assert!(common.upgrade().is_none(), "something refers to the closed transport");
    }

    #[test]
    fn dropped_transport_ends_its_groups() {
        let (transport, common) = start();
        let group = transport.group(1);
        group.members(&members());
        drop(transport);
        assert!(group.shared.read().links.is_empty());
        drop(group);
        assert!(common.upgrade().is_none(), "something refers to the dropped transport");
    }

    /// The callback of a server can hold its transport.
    #[test]
    fn closing_drops_the_callback() {
        let (transport, common) = start();
        let held = transport.clone();
        transport.on_host(Box::new(move |_, _| Ok(DirectoryId(held.local_addr().port().into()))));
        transport.close();
        drop(transport);
        assert!(common.upgrade().is_none(), "the callback holds the closed transport");
    }

    #[test]
    fn calls_of_others_make_no_group() {
        let (transport, common) = start();
        let common = common.upgrade().unwrap();
        transport.identify(LogId(5), DirectoryId(1));
        transport.members(&members());
        for group in (1..100).chain([u32::MAX]) {
            assert_eq!(host::check(&common, &request(group)).is_ok(), group <= GROUPS_MAX + 1, "{group}");
            assert!(common.known_group(group).is_none());
        }
        assert_eq!(common.groups.read().unwrap().len(), 1, "the default log alone");
    }
}
