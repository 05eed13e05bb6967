//! Peer: the way between replicas, over gRPC. A [`PeerTransport`] is what [`chiplog::Cluster`] takes.
//!
//! ```text
//! log's thread ── send ──> Queue ──> Link (two streams a peer, dials again when one breaks) ──> network
//!                                                       Service (Hello checked first) <── network
//!                                                          └──> Inbox of the log
//! ```
//!
//! Invariants:
//! - `send` never waits: what a peer does not take is dropped, within a bound of bytes.
//! - Two streams to each peer, each over a connection of its own: what is urgent goes by the first and overtakes what is
//!   large, which goes by the second. Each keeps its order. Who takes one only gets both by that, what is urgent ahead.
//! - Nothing reaches the inbox from a stream whose Hello was not checked: the log, the
//!   node meant, its directory, and the sender's directory, if the membership knows one.
//! - All of it runs on threads of its own: what clients do does not delay elections. They are two, so that a handshake, or the
//!   encoding of a large block, does not stand in a heartbeat's way; nothing relies on there being one.
//! - A peer that is silent is given up after about an election time-out: the first stream tells, and takes the second along.
//!   Where only the second's bytes vanish, its kernel tells, after twice that time.
//! - Under TLS a replica is who its certificate says: that of another node is refused, whoever dialled.
//!
//! Where a peer is reached: the membership tells. A replica that joins does not have it yet, but has to answer: so who
//! is no member is reached where its last Hello said, and such a link ends when it is idle.
//!
//! Must not know: raft, blocks, what a message says.

mod link;
mod queue;
mod service;
mod traffic;

pub use traffic::PeerTraffic;

use crate::listener::refusals::Refusals;
use crate::wire::address::{Address, check_host_port};
use crate::wire::tcp;
use crate::wire::tls;
use crate::wire::tls::{ServerTls, node_name};
use chiplog::transport::{Envelope, Inbox, Transport};
use chiplog::{DirectoryId, ErrorKind, LogId, MEMBERS_MAX, Member, NodeId};
use hyper_util::client::legacy::connect::HttpConnector;
use link::Link;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use traffic::Counters;

/// The revision of the peers' protocol. Both sides have to speak the same: what can be left out is a feature.
const PROTOCOL: u32 = 1;
/// The feature of who takes a second stream.
const SECOND_STREAM: u32 = 1;
/// What this replica can do besides.
const FEATURES: u32 = SECOND_STREAM;
/// The largest message: whatever fits into a segment of any size. What one replica could store, others can be sent,
/// whatever their own limits say.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (64 << 20);
/// The most threads that carry messages, besides the one that takes connections in.
const WORKERS_MAX: usize = 2;
/// Pings and their answers wait behind what is large: so long they may, except for those of the first stream's dialler, who
/// tells whether the other side is there. That the way is gone is noticed sooner: [`Shared::unacknowledged`].
const SECOND_SILENCE: Duration = Duration::from_secs(30);
/// How long it counts that somebody called while there was no log.
const CALL_REMEMBERED: Duration = Duration::from_secs(60);
/// How long a link to a node that is no member stays without a message.
const IDLE: Duration = Duration::from_secs(5);

/// What a transport is made of.
///
/// ```
/// use chiplog_net::peer::PeerOptions;
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let options = PeerOptions::new(chiplog::NodeId(1), listener, "127.0.0.1:7412 127.0.0.1:7411");
/// assert_eq!(options.queue_bytes_max, 64 << 20);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct PeerOptions {
    /// This replica.
    pub node: NodeId,
    /// Where the others' streams arrive.
    pub listener: TcpListener,
    /// Where others reach this replica, as an [`Address`].
    pub address: String,
    /// That of the cluster: a connection that is silent for about so long is given up. Default 1 s.
    pub election_timeout: Duration,
    /// Bytes of messages that may wait for one peer, default 64 MiB; one larger message may wait alone.
    pub queue_bytes_max: usize,
    /// TLS in both directions. Default: none.
    pub tls: Option<PeerTls>,
}

impl PeerOptions {
    /// With the defaults.
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

/// Mutual TLS between replicas, all in PEM. A replica's certificate has to name it: among its alternative names is
/// [`node_name`], such as `node-3`. The host is not looked at. The authority is that of one cluster.
///
/// ```
/// # fn read(_: &str) -> Vec<u8> { Vec::new() }
/// use chiplog_net::peer::PeerTls;
/// let tls = PeerTls { certificate: read("node-3.pem"), key: read("node-3.key"), authority: read("peers.pem") };
/// # drop(tls);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PeerTls {
    /// This replica's certificate, with those between it and the authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Who has to have signed the others' certificates.
    pub authority: Vec<u8>,
}

impl PeerTls {
    /// Whether other replicas that have the same authority will take this for `node`.
    ///
    /// # Errors
    /// `InvalidArgument`: the certificate names another node, is not the authority's, or its time is not now.
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

/// The way to the other replicas over gRPC. `Send + Sync`. Ends when it is closed or dropped.
#[derive(Debug)]
pub struct PeerTransport {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the transport, its links and its service share.
pub(crate) struct Shared {
    node: NodeId,
    address: String,
    election_timeout: Duration,
    queue_bytes_max: usize,
    tls: Option<Secured>,
    refusals: Arc<Refusals>,
    runtime: Handle,
    closing: watch::Sender<bool>,
    /// Links that are not gone yet.
    links: AtomicUsize,
    state: RwLock<State>,
    /// Messages for nodes that nobody knows how to reach.
    nowhere: AtomicU64,
}

/// TLS of the transport, in both directions.
struct Secured {
    server: Arc<ServerTls>,
    /// For connections to others.
    own: RwLock<PeerTls>,
}

/// Which copy of which log this replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Me {
    log: LogId,
    directory: DirectoryId,
}

#[derive(Debug, Default)]
struct State {
    inbox: Option<Inbox>,
    /// The log is closed: what it still says goes nowhere, until one is opened again.
    detached: bool,
    /// Known from the log's first message on, or when it is told.
    me: Option<Me>,
    members: BTreeMap<NodeId, Known>,
    /// Where nodes that are no members said they are. At most [`MEMBERS_MAX`].
    told: BTreeMap<NodeId, String>,
    links: BTreeMap<NodeId, Arc<Link>>,
    counters: BTreeMap<NodeId, Arc<Counters>>,
    /// Streams that arrive, by node.
    arriving: BTreeMap<NodeId, Arriving>,
    /// The last caller while there was no log, and when.
    called: Option<(Caller, Instant)>,
}

/// A replica of a cluster that takes this one, which has no log, for a member of it.
///
/// ```
/// # fn show(caller: chiplog_net::peer::Caller) {
/// println!("node {} of log {:?} calls this one node {}", caller.node, caller.log, caller.as_node);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// Of which log.
    pub log: LogId,
    /// The member that calls.
    pub node: NodeId,
    /// Which member it takes this replica for.
    pub as_node: NodeId,
}

/// The streams of one node that arrive: letting go of one's sender ends it.
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
    /// None: its address does not say.
    peer: Option<String>,
}

impl PeerTransport {
    /// Begins to listen, on threads of its own.
    ///
    /// # Errors
    /// The listener cannot be used, the certificates are none, or there is no thread to be had.
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
        let shared = Arc::new(Shared {
            node,
            address,
            election_timeout,
            queue_bytes_max,
            tls,
            refusals: Arc::default(),
            runtime: runtime.handle().clone(),
            closing: watch::Sender::new(false),
            links: AtomicUsize::new(0),
            state: RwLock::default(),
            nowhere: AtomicU64::new(0),
        });
        let listener = {
            let _in = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serving = service::serve(shared.clone(), listener);
        let thread = std::thread::Builder::new().name("chiplog-peer".into()).spawn(move || {
            runtime.block_on(serving);
        })?;
        Ok(Arc::new(Self { shared, local, thread: Mutex::new(Some(thread)) }))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Which copy of which log this replica has. To be told once the log is open: until then, or until its first
    /// message, streams of others are refused, to come again.
    pub fn identify(&self, log: LogId, directory: DirectoryId) {
        self.shared.write().me = Some(Me { log, directory });
    }

    /// The replica that has called within the last minute and takes this one, which has no log yet, for a member. None:
    /// nobody, or there is a log.
    pub fn caller(&self) -> Option<Caller> {
        let state = self.shared.read();
        let recent = |(_, at): &&(Caller, Instant)| at.elapsed() < CALL_REMEMBERED;
        state.called.as_ref().filter(|_| state.me.is_none()).filter(recent).map(|(caller, _)| *caller)
    }

    /// What went to and came from each peer.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        let state = self.shared.read();
        let queued = |node| state.links.get(node).map_or(0, |link| link.queue.bytes());
        state.counters.iter().map(|(node, counters)| counters.read(*node, queued(node))).collect()
    }

    /// Messages dropped because nobody knew where their receiver is.
    pub fn dropped_nowhere(&self) -> u64 {
        self.shared.nowhere.load(Ordering::Relaxed)
    }

    /// What the listener refused.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.shared.refusals
    }

    /// Uses these for connections that come about from now on, in both directions.
    ///
    /// # Errors
    /// `InvalidArgument`: they cannot be used, or the transport was started without TLS. Then nothing has changed.
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

    /// Ends all streams and the threads, and waits for that: a moment, in which what was sent leaves. Nothing is sent or
    /// delivered afterwards.
    pub fn close(&self) {
        self.shared.forget();
        self.shared.closing.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            if thread.join().is_err() {
                tracing::error!("the thread of the transport between replicas panicked");
            }
            self.shared.forget();
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
        if node != self.shared.node {
            tracing::error!(%node, of = %self.shared.node, "the transport belongs to another node: no message will arrive");
            return;
        }
        let mut state = self.shared.write();
        state.detached = false;
        let earlier = state.inbox.replace(inbox);
        drop(state);
        drop(earlier); // it may be the last to hold what is behind it
    }

    fn detach(&self, node: NodeId) {
        if node == self.shared.node {
            self.shared.forget();
        }
    }

    fn send(&self, envelope: Envelope) {
        self.shared.send(envelope);
    }

    fn backlog(&self, to: NodeId) -> usize {
        self.shared.read().links.get(&to).map_or(0, |link| link.queue.backlog())
    }

    fn members(&self, members: &[Member]) {
        self.shared.members(members);
    }
}

impl Shared {
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
        if state.detached {
            return;
        }
        state.me = Some(me);
        match self.link(&mut state, to) {
            Some(link) => link.queue.push(envelope),
            None => _ = self.nowhere.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The link to a node; made, if it is known where that is.
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
        state.detached = false;
        state.members = members.iter().map(|m| (m.node, known(m))).collect();
        // Of who was a member and is none any more, the last words still go out; then its link is idle and ends.
        let gone: Vec<NodeId> =
            state.links.keys().copied().filter(|n| !state.members.contains_key(n)).collect();
        for node in gone {
            if let Some(link) = state.links.get(&node) {
                let address = link.address.clone();
                state.tell(node, address);
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
        // Dialled before there is anything to say: an election should not wait for it.
        for node in nodes {
            self.link(&mut state, node);
        }
    }

    /// Ends all streams, and nothing more arrives, until there is an inbox again.
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

    /// Ends the link of a node that is no member, unless a message has come meanwhile. Whether it did.
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

    /// How to reach a peer, and only that one, over what [`Self::connector`] dials; given up when it leaves a ping without
    /// an answer for `silence`.
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

    /// What dials peers.
    fn connector(&self) -> HttpConnector {
        tcp::connector(self.election_timeout, self.unacknowledged())
    }

    /// How long a peer may leave a ping of the first stream without an answer.
    fn silence(&self) -> Duration {
        self.election_timeout.max(Duration::from_millis(500))
    }

    /// How long a peer's kernel may leave bytes of either stream unacknowledged. Twice the time after which the first stream
    /// is given up: where the whole way is gone it tells first, and what was lost has some more times to arrive.
    fn unacknowledged(&self) -> Duration {
        2 * self.silence()
    }
}

/// A second thread is of use where a processor is left for it: on a small machine the two wake each other in vain.
fn workers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, WORKERS_MAX)
}

/// What may be under way on a stream: some blocks.
const WINDOW_BYTES: u32 = 16 << 20;

impl State {
    fn address(&self, node: NodeId) -> Option<String> {
        match self.members.get(&node) {
            Some(known) => known.peer.clone(),
            None => self.told.get(&node).cloned(),
        }
    }

    fn tell(&mut self, node: NodeId, address: String) {
        if self.told.len() >= MEMBERS_MAX && !self.told.contains_key(&node) {
            self.told.pop_first();
        }
        self.told.insert(node, address);
    }

    /// Its counters; those of a node too many are shown to nobody.
    fn counters(&mut self, node: NodeId) -> Arc<Counters> {
        if self.counters.len() >= 2 * MEMBERS_MAX && !self.counters.contains_key(&node) {
            return Arc::default();
        }
        self.counters.entry(node).or_default().clone()
    }
}

/// The part of a member's address that is for its peers. Whoever embeds the log may give that part alone.
fn peer_part(address: &str) -> Option<String> {
    match address.parse::<Address>() {
        Ok(address) => Some(address.peer),
        Err(_) => check_host_port(address).is_ok().then(|| address.to_owned()),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).field("address", &self.address).finish()
    }
}
