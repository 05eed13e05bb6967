//! The transport itself: its start, its end, and what a server does with it.

use super::{
    Caller, Common, DEFAULT_GROUP, GroupOn, GroupTransport, Host, Me, PeerOptions, PeerTls, PeerTraffic,
    Secured, Shared, VIEWS_MAX, host, service,
};
use crate::listener::tls::ServerTls;
use crate::served::elsewhere::GroupView;
use crate::served::refusals::Refusals;
use chiplog::cluster::Member;
use chiplog::transport::{Envelope, Inbox, Transport};
use chiplog::{DirectoryId, ErrorKind, LogId, LogNumber, NodeId, Term};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::watch;

/// The largest number of worker threads, not counting the thread that accepts connections.
const WORKERS_MAX: usize = 2;
/// How long a call is remembered that arrived while there was no log.
const CALL_REMEMBERED: Duration = Duration::from_secs(60);
/// How long closing waits for what blocks a thread: a replica that is being made, the look-up of a host's address.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The transport between replicas over gRPC. `Send + Sync`. It ends when it is closed or dropped.
#[derive(Debug)]
pub struct PeerTransport {
    pub(super) shared: Arc<Shared>,
    local: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
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
            viewing: Arc::new(tokio::sync::Semaphore::new(VIEWS_MAX)),
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

    /// Answers the calls of other servers about groups: see [`Self::ask_to_host`]. A second call changes nothing. The
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
    pub async fn ask_to_host(&self, of: GroupOn<'_>, timeout: Duration) -> chiplog::Result<DirectoryId> {
        host::ask(&self.shared, of, timeout).await
    }

    /// Asks a server for the members of a group, and the state of some of its logs. Both have to be members of the
    /// default log.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: it did not answer, or does not run the group. Any error that it returned.
    pub async fn ask_view(
        &self,
        of: GroupOn<'_>,
        logs: &[LogNumber],
        timeout: Duration,
    ) -> chiplog::Result<GroupView> {
        host::ask_view(&self.shared, of, logs, timeout).await
    }

    /// Asks a server to let this one make the system log of the cluster, as the leader of the default log in this term. Both
    /// have to be members of the default log, whose id the call carries.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: it did not answer. Any error that it returned.
    pub async fn ask_to_allow_system_log(
        &self,
        of: GroupOn<'_>,
        term: Term,
        timeout: Duration,
    ) -> chiplog::Result<()> {
        host::ask_to_allow_system_log(&self.shared, of, term, timeout).await
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

/// A second worker thread helps only if a processor is left for it. On a small machine the two only wake each other.
fn workers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, WORKERS_MAX)
}
