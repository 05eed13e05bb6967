//! Serve: one server, from its configuration to its end: listeners, the transport to peers, the log, the
//! services.
//!
//! ```text
//! listen.client ── tonic ──> services ──┐
//! listen.http ──── axum ──> probes ─────┼──> LogSlot ──> Log, Logs ──> PeerTransport ──> listen.peer of the others
//! listen.peer ──── PeerTransport (threads of its own) ──> Log, Groups
//! ```
//!
//! Invariants:
//! - The server accepts no connection before all listeners are bound and, if there is a replica, its log is
//!   open.
//! - A call passes the limits and then the check of its token before a service sees it.
//! - The shutdown is in order: not ready, no new calls, leadership transferred, streams ended, log closed.
//!   Its time is bounded.
//!
//! Must not know: command lines, terminals.

pub(crate) mod environment;

pub(crate) mod config;
pub(crate) mod follower;
mod groups;
mod http;
mod http_listener;
mod limits;
mod metrics;
pub(crate) mod objects;
mod ready;
mod reload;
mod services;
pub(crate) mod size;

pub(crate) use config::Config;
use config::LogAt;

use crate::common::failure::{Failure, Result};
use crate::connect::open_log;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Log, LogId, LogOption, NodeId};
use chiplog_net::listener;
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Access, AccessLayer};
use chiplog_net::listener::memory_budget::Budget;
use chiplog_net::listener::stream_budget::CallBudgetLayer;
use chiplog_net::listener::tls::check_host;
use chiplog_net::peer::{PeerOptions, PeerTls, PeerTransport};
use chiplog_net::served::gauges;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::admin::{AdminService, Founding};
use chiplog_net::wire::address::Address;
use chiplog_net::wire::ids::to_hex;
use groups::Groups;
use metrics::{Bounds, Figures, Metrics};
use ready::not_ready;
use reload::{Reloader, Reloads};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use services::Room;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// How often a server without a replica checks whether a cluster calls it.
const CALLERS: Duration = Duration::from_millis(100);

/// The action if the directory holds no replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Wait for a command.
    Wait,
    /// Make a new cluster.
    Init,
    /// Make an empty replica of this log, to be added by its leader.
    Join(LogId),
}

/// A running server.
pub(crate) struct Server {
    pub(crate) host: Arc<LogSlot>,
    pub(crate) config: Config,
    pub(crate) address: Address,
    pub(crate) http: Option<SocketAddr>,
    opener: LogOpener,
    groups: Groups,
    transport: Arc<PeerTransport>,
    /// Notified to reload certificates and tokens.
    pub(crate) reload: Arc<Notify>,
    doors: Doors,
    /// Set when streams have to end.
    ending: watch::Sender<bool>,
    services: Vec<JoinHandle<()>>,
}

/// The checks that calls pass before the services.
struct Doors {
    settings: Settings,
    access: Arc<Access>,
    budget: Budget,
    reloads: Arc<Reloads>,
}

/// Opens the log.
#[derive(Clone)]
struct LogOpener {
    config: Config,
    address: String,
    transport: Arc<PeerTransport>,
    groups: Groups,
    /// The object store of the default log and the groups.
    vault: Option<Arc<dyn Vault>>,
    /// When the server began to listen for other replicas.
    started: Instant,
}

impl LogOpener {
    /// Makes the replica of a waiting server. Before it makes a new cluster it blocks for up to an election
    /// timeout, then as [`Self::open`].
    fn found(&self, founding: Founding) -> chiplog::Result<Log> {
        match founding {
            Founding::Init { force } => {
                if !force {
                    self.check_uncalled()?;
                }
                let log = self.open(Bootstrap::Init)?;
                self.groups.begin();
                Ok(log)
            }
            Founding::Join(log) => {
                // The cluster may have named logs, of which this server never hears.
                self.groups.mark_joined()?;
                self.open(Bootstrap::Join(log))
            }
        }
    }

    /// Checks that no cluster has this server as a member: on a disk that was emptied, a new cluster would
    /// answer in place of the old one. Running replicas call each other several times per election timeout,
    /// so the check listens that long.
    fn check_uncalled(&self) -> chiplog::Result<()> {
        let listen = Duration::from_millis(self.config.cluster.election_timeout_millis);
        loop {
            if let Some(caller) = self.transport.caller() {
                let log = to_hex(caller.log.get());
                let what = format!(
                    "node {} of log {log} calls this server, as node {} of its cluster: the directory was emptied, or is not mounted, and a new cluster here would replace that node. Give a server that lost its disk a new number there: `chiplog member add`, then `chiplog member remove {}`; `chiplog member init --force` makes a new cluster nevertheless",
                    caller.node, caller.as_node, caller.as_node
                );
                return Err(chiplog::Error::new(ErrorKind::Membership, what));
            }
            if self.started.elapsed() > listen {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens the log. Blocks during recovery.
    fn open(&self, bootstrap: Bootstrap) -> chiplog::Result<Log> {
        let refused = |f: Failure| chiplog::Error::new(ErrorKind::InvalidArgument, f.to_string());
        let options =
            self.config.options(bootstrap, self.transport.clone(), self.address.clone()).map_err(refused)?;
        let options = options.vault(self.vault.clone());
        let is_new = !open_log::is_log(&self.config.data);
        let log = Log::open(&self.config.data, options).map_err(|e| match e.kind() {
            ErrorKind::Full if is_new => chiplog::Error::new(
                ErrorKind::Full,
                format!("{e}: choose smaller segments, such as `--set log.segment_bytes=1MiB`, or another directory"),
            ),
            _ => e,
        })?;
        warn_of_mode(&self.config.data);
        warn_without_store(&log, self.vault.is_some());
        self.transport.identify(log.log_id(), log.directory_id());
        Ok(log)
    }
}

/// Warns of a log, or a group, that has objects at a server without an object store.
fn warn_without_store(log: &Log, has_store: bool) {
    let has_objects = log.log_options().get(LogOption::ObjectBytes).is_some();
    if has_objects && !has_store {
        tracing::warn!(
            path = %log.path().display(),
            "the log has objects in an object store, and object_store is not set here: this server stores none, and cannot read records that are not on its disk; set object_store as on the other servers"
        );
    }
}

impl Server {
    /// Starts everything. Blocks briefly for the disk: recovery reads the last segment.
    ///
    /// # Errors
    /// The server cannot listen at an address, or other machines could reach it without TLS. A certificate
    /// cannot be used now, or does not belong to this node. The log cannot be opened, or is not the one of
    /// `first`.
    pub(crate) async fn start(mut config: Config, first: First) -> Result<Self> {
        if config.node == 0 {
            let what = "give this server a number: --node N, or `node = N` in the file; never the number of another server of the cluster, or of a removed one";
            return Err(Failure::usage(what));
        }
        let connections = config.limits.connections_max;
        let room = room_for_connections(connections);
        if room < connections {
            config.limits.lower_connections(room);
        }
        if let Some(warning) = config.limits.small_share(config.message_bytes_max()? as u64) {
            tracing::warn!("{warning}");
        }
        check_places(&config)?;
        let vault = match config.object_store.as_str() {
            "" => None,
            location => Some(config.objects.open(location)?),
        };
        let tls = &config.tls;
        let (client, client_at) = bind("listen.client", &config.listen.client)?;
        let (peer, peer_at) = bind("listen.peer", &config.listen.peer)?;
        let address = reachable_address(&config, client_at, peer_at)?;
        let logspec = bind_logspec(&config, &address)?;
        let mut reloader = Reloader::default();
        let doors = doors(&config, &mut reloader)?;
        if let Err(why) = check_host_named(&config.tls, &address.client) {
            tracing::warn!("{why}");
        }
        let http = match config.listen.http.as_str() {
            "" => None,
            place => Some(bind("listen.http", place)?),
        };
        let peer_tls = Reloader::peers(tls, config.node)?;
        let transport = start_transport(&config, &address, peer, peer_tls.clone())?;
        if let Some(used) = peer_tls {
            reloader.watch_peers(tls, NodeId(config.node), used, transport.clone());
        }
        let host = LogSlot::new();
        let groups = Groups::new(config.clone(), vault.clone(), &address, transport.clone(), host.clone())?;
        let opener = LogOpener {
            config: config.clone(),
            address: address.to_string(),
            transport: transport.clone(),
            groups: groups.clone(),
            vault,
            started: Instant::now(),
        };
        if let Some(log) = open(&opener, first).await? {
            let (opening, default) = (groups.clone(), log.clone());
            let opened = tokio::task::spawn_blocking(move || opening.open(&default)).await;
            opened.map_err(|_| Failure::new(ErrorKind::Poisoned, "opening the named logs panicked"))?;
            host.open(log);
        }
        let ending = watch::Sender::new(false);
        groups.clone().run(ending.subscribe());
        let mut server = Self {
            host,
            config,
            address,
            http: http.as_ref().map(|(_, at)| *at),
            opener,
            groups,
            transport,
            reload: Arc::default(),
            doors,
            ending,
            services: Vec::new(),
        };
        if server.host.opened().is_none() {
            let (host, transport) = (server.host.clone(), server.transport.clone());
            tokio::spawn(watch_callers(host, transport, NodeId(server.config.node)));
        }
        let every = server.config.reload_seconds;
        let every = (every > 0).then(|| Duration::from_secs(every));
        tokio::spawn(reloader.run(every, server.reload.clone(), server.ending.subscribe()));
        server.serve_clients(client, logspec)?;
        if let Some((listener, _)) = http {
            server.serve_http(listener)?;
        }
        Ok(server)
    }

    /// Makes the replica of a waiting server.
    pub(crate) async fn found(&self, founding: Founding) -> Result<Log> {
        let log = founded(&self.opener, founding).await??;
        self.host.open(log.clone());
        Ok(log)
    }

    fn serve_clients(&mut self, listener: TcpListener, logspec: Vec<(String, TcpListener)>) -> Result<()> {
        let opener = self.opener.clone();
        let node = NodeId(self.config.node);
        let found = Box::new(move |founding| opener.found(founding));
        let version = env!("CARGO_PKG_VERSION");
        let admin = AdminService::new(self.host.clone(), node, self.address.clone(), version, found);
        let Doors { settings, access, budget, .. } = &self.doors;
        let message_bytes_max = self.config.message_bytes_max()?;
        let room = Room { message_bytes_max, budget: budget.clone() };
        let (routes, reporter) = services::routes(&self.host, admin, &room)?;
        let mut server = listener::server_with(&settings.limits)
            .layer(AccessLayer::new(access.clone()))
            .layer(CallBudgetLayer::new(budget.clone()))
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)));
        let settings = settings.clone();
        let mut incoming = listener::incoming_with(listening(listener)?, settings);
        for (log, listener) in logspec {
            let also = incoming.with_log_port(listening(listener)?, &log);
            incoming = also.map_err(|e| Failure::new(ErrorKind::Io, format!("listen.logspec {log}: {e}")))?;
        }
        let mut ending = self.ending.subscribe();
        let until = async move { _ = ending.wait_for(|e| *e).await };
        let gauges = self.host.gauges().clone();
        self.services.push(tokio::spawn(async move {
            let router = server.add_routes(routes);
            let connections = gauges::connections(incoming, gauges);
            if let Err(error) = router.serve_with_incoming_shutdown(connections, until).await {
                tracing::error!(%error, "the listener for clients ended");
            }
        }));
        let names = services::HEALTH_NAMES;
        tokio::spawn(report_health(self.host.clone(), reporter, names, self.ending.subscribe()));
        Ok(())
    }

    fn serve_http(&mut self, listener: TcpListener) -> Result<()> {
        let bounds = Bounds::of(&self.config)?;
        let metrics = Arc::new(Metrics::new(Figures {
            host: self.host.clone(),
            transport: self.transport.clone(),
            refusals: self.doors.settings.refusals.clone(),
            budget: self.doors.budget.clone(),
            bounds,
            reloads: self.doors.reloads.clone(),
        }));
        let router = http::router(self.host.clone(), metrics);
        let listener = http_listener::ProbeListener::new(listening(listener)?);
        // Runs until the process ends: it also reports that the server is shutting down.
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the listener for probes ended");
            }
        });
        Ok(())
    }

    /// Shuts down in order, within the configured time. `others`: the other replicas keep running, so one of
    /// them should lead.
    ///
    /// # Errors
    /// Errors of the log; or the time was up.
    pub(crate) async fn shutdown(self, others: bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(self.config.shutdown_millis);
        let left = || deadline.saturating_duration_since(Instant::now());
        self.host.drain();
        let mut replicas = self.groups.replicas();
        replicas.extend(self.host.opened().cloned());
        if others {
            let patience = (left() / 3).min(Duration::from_secs(3));
            let mut leaving = JoinSet::new();
            for log in replicas.clone() {
                leaving.spawn_blocking(move || hand_over(&log, patience));
            }
            leaving.join_all().await;
        }
        self.ending.send_replace(true);
        let patience = (left() / 3).min(Duration::from_secs(2));
        for service in self.services {
            let stop = service.abort_handle();
            if tokio::time::timeout(patience, service).await.is_err() {
                tracing::info!("some streams of clients did not end in time and were cut off");
                stop.abort();
            }
        }
        let (transport, host, groups) = (self.transport, self.host, self.groups);
        let close = tokio::task::spawn_blocking(move || {
            // Again: one can have been opened for another server meanwhile.
            let replicas: Vec<Log> = groups.replicas().into_iter().chain(host.opened().cloned()).collect();
            let closed: Vec<chiplog::Result<()>> = replicas.iter().map(Log::close).collect();
            transport.close();
            closed.into_iter().collect::<chiplog::Result<()>>()
        });
        match tokio::time::timeout(left(), close).await {
            Ok(Ok(closed)) => closed.map_err(Failure::from),
            Ok(Err(_)) => Err(Failure::new(ErrorKind::Poisoned, "closing the log panicked")),
            Err(_) => {
                let what = "the log was not closed in time; every confirmed record is in it";
                Err(Failure::new(ErrorKind::Timeout, what))
            }
        }
    }
}

/// Opens the existing replica, or does what `first` demands.
async fn open(opener: &LogOpener, first: First) -> Result<Option<Log>> {
    let dir = opener.config.data.as_path();
    let error = match opened(opener).await? {
        Ok(log) => return is_meant(&log, first, dir).map(|()| Some(log)),
        Err(error) => error,
    };
    match (error.kind(), first) {
        (ErrorKind::NotFound, First::Wait) => Ok(None),
        (ErrorKind::NotFound, First::Init) => {
            founded(opener, Founding::Init { force: false }).await?.map(Some).map_err(not_made)
        }
        (ErrorKind::NotFound, First::Join(log)) => {
            founded(opener, Founding::Join(log)).await?.map(Some).map_err(not_made)
        }
        _ => Err(open_log::refused(dir, error)),
    }
}

/// While there is no replica: notes whether a cluster calls this server as its member, and warns once.
async fn watch_callers(host: Arc<LogSlot>, transport: Arc<PeerTransport>, own: NodeId) {
    let mut reported = None;
    while host.opened().is_none() {
        let caller = transport.caller();
        host.set_called_as(caller.map(|caller| caller.as_node));
        if let Some(caller) = caller.filter(|caller| reported != Some((caller.log, caller.as_node))) {
            reported = Some((caller.log, caller.as_node));
            let (log, node, lost) = (to_hex(caller.log.get()), caller.node, caller.as_node);
            if lost == own {
                tracing::warn!(
                    log,
                    "the directory holds no replica, but node {node} calls this server as node {lost} of its cluster: the directory was emptied, or is not mounted. Mount it. If it is lost, start a server with a new number and an empty directory, `chiplog member add` it, then `chiplog member remove {lost}`. Do not run `chiplog member init` here"
                );
            } else {
                tracing::warn!(
                    log,
                    "node {node} calls node {lost} at the address of this server, which is node {own}: to replace node {lost}, `chiplog member add` this server, then `chiplog member remove {lost}`. Do not run `chiplog member init` here"
                );
            }
        }
        tokio::time::sleep(CALLERS).await;
    }
}

/// The failure of making a log. Without the advice to discard, because the log has nothing to discard.
fn not_made(error: chiplog::Error) -> Failure {
    match error.kind() {
        ErrorKind::Full => Failure::new(ErrorKind::Full, error.to_string()),
        _ => error.into(),
    }
}

/// Whether this is a replica that its leader has not added yet: it knows no member, not even itself.
pub(crate) fn awaits_its_leader(log: &Log) -> bool {
    let replica = log.status().replica;
    // A replica under repair may not know its members yet, nor may a removed one.
    replica.members.is_empty() && !matches!(replica.role, Role::Repairing | Role::Removed)
}

/// Checks that an existing replica agrees with what the command line demands for an empty directory.
/// Repeating the option is no mistake.
///
/// # Errors
/// `InvalidArgument`: the command line names another log.
fn is_meant(log: &Log, first: First, dir: &Path) -> Result<()> {
    let there = to_hex(log.log_id().get());
    let dir = dir.display();
    let what = match first {
        First::Init if awaits_its_leader(log) => format!(
            "--init makes a cluster in an empty directory, but {dir} holds an empty replica that was to join log {there} and was never added to it: leave out --init and add the replica (`chiplog member add`), or give another directory, or remove this one, which holds no record"
        ),
        First::Join(wanted) if wanted != log.log_id() => format!(
            "--join {}: {dir} already holds log {there}: leave out --join to continue with that log, or give another directory",
            to_hex(wanted.get())
        ),
        _ => return Ok(()),
    };
    Err(Failure::usage(what))
}

async fn opened(opener: &LogOpener) -> Result<chiplog::Result<Log>> {
    off_the_runtime(opener, |opener| opener.open(Bootstrap::Existing)).await
}

async fn founded(opener: &LogOpener, founding: Founding) -> Result<chiplog::Result<Log>> {
    off_the_runtime(opener, move |opener| opener.found(founding)).await
}

async fn off_the_runtime<T: Send + 'static>(
    opener: &LogOpener,
    work: impl FnOnce(&LogOpener) -> T + Send + 'static,
) -> Result<T> {
    let opener = opener.clone();
    tokio::task::spawn_blocking(move || work(&opener))
        .await
        .map_err(|_| Failure::new(ErrorKind::Poisoned, "opening the log panicked"))
}

/// Transfers leadership to another voter, if this replica leads and there is one.
fn hand_over(log: &Log, patience: Duration) {
    let begun = Instant::now();
    loop {
        let replica = log.status().replica;
        let votes = |node| replica.members.iter().any(|m| m.node == node && m.is_voter() && !m.is_leaving());
        let others = || replica.peers.iter().filter(|p| votes(p.node));
        if replica.role != Role::Leader || others().next().is_none() {
            return;
        }
        if let Some(next) = others().filter(|p| p.active).max_by_key(|p| p.matched) {
            match log.transfer_leader(next.node, patience) {
                Ok(()) => tracing::info!(to = %next.node, "another replica leads"),
                Err(error) => tracing::warn!(%error, "leadership could not be transferred"),
            }
            return;
        }
        // Once per election timeout the leader counts every peer as silent until its next answer to a
        // heartbeat.
        if begun.elapsed() > patience / 3 {
            tracing::warn!("leadership is not transferred: no other voter answers");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reports changes to the health service, five times a second.
async fn report_health(
    host: Arc<LogSlot>,
    mut reporter: HealthReporter,
    names: &'static [&'static str],
    mut ending: watch::Receiver<bool>,
) {
    let mut reported = None;
    loop {
        let status = match not_ready(&host) {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        };
        if reported != Some(status) {
            reported = Some(status);
            for name in names {
                reporter.set_service_status(*name, status).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
            _ = ending.wait_for(|e| *e) => break,
        }
    }
    // First report the change, then end the streams of the health service: otherwise the shutdown would wait
    // for them.
    for name in names {
        reporter.set_service_status(*name, ServingStatus::NotServing).await;
    }
    for name in names {
        reporter.clear_service_status(name).await;
    }
}

fn start_transport(
    config: &Config,
    address: &Address,
    listener: TcpListener,
    tls: Option<PeerTls>,
) -> Result<Arc<PeerTransport>> {
    let mut peer = PeerOptions::new(NodeId(config.node), listener, address.to_string());
    peer.election_timeout = Duration::from_millis(config.cluster.election_timeout_millis);
    peer.queue_bytes_max = usize::try_from(config.cluster.peer_queue_bytes_max.0).unwrap_or(usize::MAX);
    peer.tls = tls;
    PeerTransport::start(peer).map_err(|e| Failure::usage(format!("cannot listen for peers: {e}")))
}

/// Checks a configuration as far as possible without listening and without the log: values, files of
/// certificates, keys and tokens, whether others could reach the server, and whether that would be safe.
///
/// # Errors
/// Every error that [`Server::start`] would return as well.
pub(crate) fn check(config: &Config) -> Result<()> {
    let mut reloader = Reloader::default();
    doors(config, &mut reloader)?;
    Reloader::peers(&config.tls, config.node)?;
    let parsed = |place: &str| place.parse::<SocketAddr>().ok();
    if let (Some(client_at), Some(peer_at)) = (parsed(&config.listen.client), parsed(&config.listen.peer)) {
        let address = reachable_address(config, client_at, peer_at)?;
        for at in &config.listen.logspec {
            parsed(&at.address).map_or(Ok(()), |parsed| check_log_port(config, at, parsed, &address))?;
        }
    } // else names, which may resolve differently where it will run
    let place = match config.advertise.client.as_str() {
        "" => &config.listen.client,
        advertised => advertised,
    };
    check_host_named(&config.tls, place)
}

/// Checks that the certificate for clients, if there is one, names the host of this address.
///
/// # Errors
/// It does not name it, or it is not a certificate.
fn check_host_named(tls: &config::Tls, place: &str) -> Result<()> {
    let Some(file) = &tls.certificate else { return Ok(()) };
    let host = place.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    let certificate = std::fs::read(file).map_err(|e| Failure::option_file("tls.certificate", file, &e))?;
    check_host(&certificate, host).map_err(|e| Failure::usage(format!("tls.certificate: {e}")))
}

/// Like [`reachable_address`], before any port is opened, as far as names can be resolved. Other names are checked
/// when the server listens.
fn check_places(config: &Config) -> Result<()> {
    let first = |place: &str| {
        let mut at = place.to_socket_addrs().ok()?.next()?;
        at.set_port(at.port().max(1)); // 0: any free port
        Some(at)
    };
    match (first(&config.listen.client), first(&config.listen.peer)) {
        (Some(client_at), Some(peer_at)) => {
            let address = reachable_address(config, client_at, peer_at)?;
            let mut logspec = config.listen.logspec.iter().filter_map(|at| Some((at, first(&at.address)?)));
            logspec.try_for_each(|(at, bound)| check_log_port(config, at, bound, &address))
        }
        _ => Ok(()),
    }
}

/// The address at which others reach a server that listens at these addresses.
///
/// # Errors
/// Other machines could reach it without TLS, or it is unknown how others reach it.
fn reachable_address(config: &Config, client_at: SocketAddr, peer_at: SocketAddr) -> Result<Address> {
    let tls = &config.tls;
    check_safe(config, "listen.client", client_at, tls.key.is_some())?;
    check_safe(config, "listen.peer", peer_at, tls.peer_key.is_some())?;
    let advertise = &config.advertise;
    Address::new(
        reached("advertise.peer", &advertise.peer, peer_at)?,
        reached("advertise.client", &advertise.client, client_at)?,
        config.zone.as_str(),
    )
    .map_err(|e| Failure::usage(e.to_string()))
}

/// Checks that a listener is not open to other machines without TLS, unless the configuration permits that.
///
/// # Errors
/// `InvalidArgument`.
fn check_safe(config: &Config, key: &str, at: SocketAddr, is_safe: bool) -> Result<()> {
    if is_safe || at.ip().is_loopback() || config.insecure {
        return Ok(());
    }
    let tokens = if config.auth.tokens.is_some() { ", and tokens could be read on the network" } else { "" };
    let what = format!(
        "{key} {at} is open to other machines without TLS{tokens}: configure tls, or pass --insecure"
    );
    Err(Failure::usage(what))
}

/// Listens for clients of `logspec.Log` that use a named log.
///
/// # Errors
/// An address cannot be used, or other machines could reach it without TLS.
fn bind_logspec(config: &Config, address: &Address) -> Result<Vec<(String, TcpListener)>> {
    let bound = config.listen.logspec.iter().map(|at| {
        let (listener, bound) = bind(&format!("listen.logspec of {}", at.log), &at.address)?;
        check_log_port(config, at, bound, address)?;
        Ok((at.log.clone(), listener))
    });
    bound.collect()
}

/// Checks the address of a listener for a named log of a server that others reach at `address`.
///
/// # Errors
/// `InvalidArgument`: other machines could reach it without TLS, or would be redirected to an address that is their own.
fn check_log_port(config: &Config, at: &LogAt, bound: SocketAddr, address: &Address) -> Result<()> {
    check_safe(config, &format!("listen.logspec of {}", at.log), bound, config.tls.key.is_some())?;
    let host = address.client.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if bound.ip().is_loopback() || !is_local {
        return Ok(());
    }
    let what = format!(
        "listen.logspec of {} is open to other machines, but clients are redirected to the host of listen.client or advertise.client, {host}: set one of these to a host that they can reach",
        at.log
    );
    Err(Failure::usage(what))
}

/// Warns of a data directory that every user of this machine can list. The files in it are still private.
fn warn_of_mode(data: &Path) {
    let mode = std::fs::metadata(data).map_or(0, |data| data.permissions().mode() & 0o777);
    if mode & 0o007 != 0 {
        tracing::warn!(
            data = %data.display(), mode = format!("{mode:o}"),
            "others can look into the log's directory, and files of earlier versions may be readable for all: run `chmod -R go= {}`, or `chmod -R g+rX,o=` if its group should read the log",
            data.display()
        );
    }
}

/// The checks before the services, according to the configuration.
fn doors(config: &Config, reloader: &mut Reloader) -> Result<Doors> {
    let mut settings = Settings::default();
    settings.limits = config.limits.connection();
    settings.tls = reloader.clients(&config.tls)?;
    let access = reloader.access(&config.auth, settings.refusals.clone())?;
    let budget = Budget::new(config.limits.budget(), settings.refusals.clone());
    Ok(Doors { settings, access, budget, reloads: reloader.reloads().clone() })
}

/// Raises the limit of open files to what `connections` and the log need, as far as this process may. Returns
/// the number of connections that the limit allows.
fn room_for_connections(connections: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let needed = limits::descriptors_for(connections);
    let Some(current) = limit.current.filter(|current| *current < needed) else { return connections };
    let wanted = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    let may = if raised.is_ok() { wanted } else { current };
    let room = connections.min(limits::connections_within(may));
    if room < connections {
        tracing::warn!(
            open_files = may,
            needed,
            connections_max = room,
            "too few open files are allowed for limits.connections_max, so it is lowered, and with it the connections per address and per token: raise the limit (ulimit -n), or lower the option"
        );
    }
    room
}

/// A listener at the first address that `place` resolves to.
fn bind(key: &str, place: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Locked,
            _ => ErrorKind::Io,
        };
        Failure::new(kind, format!("cannot listen at {key} {place}: {e}"))
    };
    let addresses: Vec<SocketAddr> = place.to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener, at))
}

/// The listener, registered with the runtime.
fn listening(listener: TcpListener) -> Result<tokio::net::TcpListener> {
    listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(listener))
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot listen: {e}")))
}

/// The address at which others reach a listener.
fn reached(key: &str, said: &str, at: SocketAddr) -> Result<String> {
    if !said.is_empty() {
        return Ok(said.to_owned());
    }
    if at.ip().is_unspecified() {
        let what = format!(
            "the server listens at {at}, at all addresses of this machine: set {key} to the address at which others reach it"
        );
        return Err(Failure::usage(what));
    }
    Ok(at.to_string())
}
