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

mod addresses;
pub(crate) mod config;
mod data;
pub(crate) mod environment;
pub(crate) mod follower;
mod groups;
mod http;
mod http_listener;
mod limits;
mod metrics;
pub(crate) mod objects;
mod opener;
mod ready;
mod reload;
mod services;
pub(crate) mod size;

pub(crate) use config::Config;
pub(crate) use opener::{First, awaits_its_leader};

use crate::common::failure::{Failure, Result};
use addresses::{
    bind, bind_logspec, check_host_named, check_log_port, check_places, listening, reachable_address,
};
use chiplog::cluster::Role;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Log, NodeId};
use chiplog_net::listener;
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Access, AccessLayer};
use chiplog_net::listener::memory_budget::Budget;
use chiplog_net::listener::stream_budget::CallBudgetLayer;
use chiplog_net::peer::{PeerOptions, PeerTls, PeerTransport};
use chiplog_net::served::gauges;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::served::watched_vault::WatchedVault;
use chiplog_net::service::admin::{AdminService, Founding};
use chiplog_net::wire::address::Address;
use data::check_data;
use groups::Groups;
use metrics::{Bounds, Figures, Metrics};
use opener::{LogOpener, founded, open, watch_callers};
use ready::not_ready;
use reload::{Reloader, Reloads};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use services::Room;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// A running server.
pub(crate) struct Server {
    pub(crate) host: Arc<LogSlot>,
    pub(crate) config: Config,
    pub(crate) address: Address,
    pub(crate) http: Option<SocketAddr>,
    opener: LogOpener,
    groups: Groups,
    transport: Arc<PeerTransport>,
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

impl Server {
    /// Starts everything. Blocks briefly for the disk: recovery reads the last segment. `reload` is notified to reload certificates
    /// and tokens.
    ///
    /// # Errors
    /// The server cannot listen at an address, or other machines could reach it without TLS. A certificate
    /// cannot be used now, or does not belong to this node. The log cannot be opened, or is not the one of
    /// `first`.
    pub(crate) async fn start(mut config: Config, first: First, reload: Arc<Notify>) -> Result<Self> {
        if config.node == 0 {
            let what = "give this server a number from 1 on: --node N, or `node = N` in the file; never the number of another server of the cluster, or of a removed one";
            return Err(Failure::usage(what));
        }
        let connections = config.limits.connections_max;
        let room = room_for_connections(connections, config.logs_with_objects());
        if room < connections {
            config.limits.lower_connections(room);
        }
        if let Some(warning) = config.limits.small_share(config.message_bytes_max()? as u64) {
            tracing::warn!("{warning}");
        }
        if config.data.exists() && !config.data.is_dir() {
            let what = format!(
                "data is {}, which is a file: give a directory, which may be missing",
                config.data.display()
            );
            return Err(Failure::usage(what));
        }
        check_data(&config)?;
        check_places(&config)?;
        let vault = match config.object_store.as_str() {
            "" => None,
            location => Some(config.objects.open_for_server(location, &config.data)?),
        };
        let host = LogSlot::new();
        let vault = vault.map(|store| -> Arc<dyn Vault> {
            Arc::new(WatchedVault::new(store, host.store_health().clone()))
        });
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
        tokio::spawn(reloader.run(every, reload, server.ending.subscribe()));
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
            has_unstored_list: self.groups.has_unstored_list(),
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
            let closed = close_all(host.opened(), &groups);
            transport.close();
            closed
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

/// Closes the default log, and then all other replicas that are open. In this order: one of those can still be opened for another server,
/// or its disk can hang.
///
/// # Errors
/// Those of [`Log::close`]: the first one. All were closed as far as that is possible.
fn close_all(default: Option<&Log>, groups: &Groups) -> chiplog::Result<()> {
    let default = default.map_or(Ok(()), Log::close);
    let others: Vec<chiplog::Result<()>> = groups.last_replicas().iter().map(Log::close).collect();
    std::iter::once(default).chain(others).collect()
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

/// The checks before the services, according to the configuration.
fn doors(config: &Config, reloader: &mut Reloader) -> Result<Doors> {
    let mut settings = Settings::default();
    settings.limits = config.limits.connection();
    settings.tls = reloader.clients(&config.tls)?;
    let access = reloader.access(&config.auth, settings.refusals.clone())?;
    let budget = Budget::new(config.limits.budget(), settings.refusals.clone());
    Ok(Doors { settings, access, budget, reloads: reloader.reloads().clone() })
}

/// Raises the limit of open files to what `connections` and the server's logs need, of which `with_objects` have an object store, as far
/// as this process may. Returns the number of connections that the limit allows.
fn room_for_connections(connections: u64, with_objects: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let others = limits::descriptors_of_logs(with_objects);
    let needed = connections.saturating_add(others);
    let Some(current) = limit.current.filter(|current| *current < needed) else { return connections };
    let wanted = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    let may = if raised.is_ok() { wanted } else { current };
    let room = connections.min(limits::connections_within(may, others));
    if room == connections && may - room < others {
        tracing::warn!(
            open_files = may,
            needed,
            "too few open files are allowed for the objects that the logs may have cached: raise the limit (ulimit -n)"
        );
    }
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
