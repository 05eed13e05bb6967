//! `chiplog serve`: runs a replica of a cluster, with its services.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::common::runtime::runtime;
use crate::common::signals;
use crate::serve::config::Over;
use crate::serve::environment;
use crate::serve::{Config, First, Server, awaits_its_leader};
use chiplog::{Log, LogId};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::wire::address::Address;
use clap::Args;
use sd_notify::NotifyState;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// How often a waiting server checks whether it still waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How long a replica may take to learn that its address was changed while it was down.
const LEARNS: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  chiplog serve --node 1 --data ./1 --init           a new cluster of one server, on this machine
  chiplog serve --node 1 --data ./1 --init --set groups=2
                                                     the same with named logs (`chiplog logs`)
  chiplog serve --config /etc/chiplog.toml           continue with the replica, or wait for
                                                     `chiplog member add`
  chiplog serve --config chiplog.toml --set log.segment_bytes=128MiB
  chiplog dev                                        three servers in one process, for trials";

/// Run a server: a replica of a cluster, for clients over gRPC.
///
/// The configuration comes from a TOML file, environment variables and flags. Flags override the environment,
/// which overrides the file. Every key has a variable (see --set). `chiplog config show` prints all keys that
/// have a value.
///
/// If the directory holds a replica, the server continues with it. If it is empty, the server waits until
/// `chiplog member init` makes it the first server of a cluster or `chiplog member add` adds it to one.
/// --init and --join do that at once. A backup, and a directory with other files and no replica, are refused.
///
/// The key `groups` is for named logs (`chiplog logs`): --set groups=2 keeps them in two groups. It is 0 by
/// default, which keeps none. Use the same number on all servers, from the beginning or later: the
/// groups are made once all servers run. In a cluster of more servers `group_replicas=3` runs each group on three
/// of them, and every server still answers for all logs.
/// The key `group_directories` spreads a server's groups over disks:
/// --set 'group_directories=["/mnt/disk-1/chiplog", "/mnt/disk-2/chiplog"]'.
///
/// SIGTERM and Ctrl-C end the server in order: it is no longer ready, accepts no new calls, transfers
/// leadership, ends its streams and closes the log (status 0). A second signal, a second later at the earliest, ends it at once; no confirmed
/// record is lost by that.
///
/// SIGHUP reloads certificates and tokens; the server also checks them by itself. If the new ones cannot be
/// used, the old ones stay in use, and the server's log and metrics report it.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: Settings,

    /// If the directory is empty, make a new cluster with this server as its only voter. Use it once, on one
    /// server.
    ///
    /// With or without it, node 1 turns a log that a program kept without a cluster into the first replica of
    /// a new cluster, for good. If there is a replica of a cluster, --init changes nothing. Still, remove it
    /// from a service's command once the cluster exists: on a disk that was emptied or is not mounted, it
    /// would make another cluster. A replica that was to join another log, and was never added to it, is
    /// refused.
    #[arg(long, conflicts_with = "join")]
    init: bool,

    /// If the directory is empty, make an empty replica of this log, to be added by `chiplog member add`.
    /// Give all 32 digits of the id, as `chiplog status` shows them. A directory with another log is refused.
    #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
    join: Option<LogId>,
}

fn log_id(text: &str) -> Result<LogId, String> {
    chiplog_net::wire::ids::from_hex(text).map(LogId).map_err(|e| e.to_string())
}

/// The settings of a server, from all sources.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server options")]
pub(crate) struct Settings {
    /// Configuration file.
    #[arg(long, env = "CHIPLOG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// This server's number in its cluster, from 1. Never use the number of another server, or of a removed
    /// one.
    #[arg(long, env = "CHIPLOG_NODE", value_name = "N")]
    node: Option<String>,

    /// The log's directory. Default /var/lib/chiplog.
    #[arg(long, env = "CHIPLOG_DATA", value_name = "DIR")]
    data: Option<String>,

    /// Address to listen at for clients. Default 127.0.0.1:7411.
    #[arg(long, env = "CHIPLOG_LISTEN_CLIENT", value_name = "HOST:PORT")]
    listen_client: Option<String>,

    /// Address to listen at for the other replicas. Default 127.0.0.1:7412.
    #[arg(long, env = "CHIPLOG_LISTEN_PEER", value_name = "HOST:PORT")]
    listen_peer: Option<String>,

    /// Address to listen at for probes and metrics; empty: none. Default 127.0.0.1:7413.
    #[arg(long, env = "CHIPLOG_LISTEN_HTTP", value_name = "HOST:PORT")]
    listen_http: Option<String>,

    /// Address at which clients reach this server, if it is not the one it listens at.
    #[arg(long, env = "CHIPLOG_ADVERTISE_CLIENT", value_name = "HOST:PORT")]
    advertise_client: Option<String>,

    /// Address at which the other replicas reach this server, if it is not the one it listens at.
    #[arg(long, env = "CHIPLOG_ADVERTISE_PEER", value_name = "HOST:PORT")]
    advertise_peer: Option<String>,

    /// A label of the server's location.
    #[arg(long, env = "CHIPLOG_ZONE")]
    zone: Option<String>,

    /// Object store for the default log's older records: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    /// az://CONTAINER/PREFIX or an absolute path; the same on all servers. Default: none.
    #[arg(long, env = "CHIPLOG_OBJECT_STORE", value_name = "LOCATION")]
    object_store: Option<String>,

    /// Allow listeners for other machines without TLS.
    #[arg(
        long,
        env = "CHIPLOG_INSECURE",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = clap::builder::FalseyValueParser::new()
    )]
    insecure: Option<bool>,

    /// Set any key of the file, such as log.capacity_bytes=10GiB. Can be repeated.
    ///
    /// The environment can set any key as well: the variable is CHIPLOG__ and the key in capitals, with __
    /// for the dot, such as CHIPLOG__LOG__CAPACITY_BYTES=10GiB. Flags, and variables such as CHIPLOG_ZONE,
    /// override it.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// The resulting configuration.
    pub(crate) fn load(&self) -> Result<Config> {
        self.load_of(None)
    }

    /// The resulting configuration, with a file that was given without --config. It overrides the file of the
    /// environment.
    ///
    /// # Errors
    /// Those of loading; also two files on the command line.
    pub(crate) fn load_of(&self, file: Option<&Path>) -> Result<Config> {
        if file.is_some() && self.config.is_some() && std::env::var_os("CHIPLOG_CONFIG").is_none() {
            return Err(Failure::usage("give the file once: by itself or with --config"));
        }
        // Values are text, except for a key that needs a number or a boolean.
        let text = |text: &String| format!("{text:?}");
        let mut over = environment::keys(std::env::vars_os())?;
        for (key, flag, value) in [
            ("data", "data", self.data.as_ref().map(text)),
            ("listen.client", "listen-client", self.listen_client.as_ref().map(text)),
            ("listen.peer", "listen-peer", self.listen_peer.as_ref().map(text)),
            ("listen.http", "listen-http", self.listen_http.as_ref().map(text)),
            ("advertise.client", "advertise-client", self.advertise_client.as_ref().map(text)),
            ("advertise.peer", "advertise-peer", self.advertise_peer.as_ref().map(text)),
            ("zone", "zone", self.zone.as_ref().map(text)),
            ("object_store", "object-store", self.object_store.as_ref().map(text)),
            ("node", "node", self.node.clone()),
            ("insecure", "insecure", self.insecure.map(|insecure| insecure.to_string())),
        ] {
            let variable = flag.to_uppercase().replace('-', "_");
            let by = format!("--{flag} or CHIPLOG_{variable}");
            over.extend(value.map(|value| Over { key: key.to_owned(), value, by }));
        }
        for pair in &self.set {
            let by = format!("--set {pair}");
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Failure::usage(format!("{by}: give KEY=VALUE")));
            };
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            over.push(Over { key, value, by });
        }
        Config::load(file.or(self.config.as_deref()), &over)
    }
}

pub(crate) fn run(args: &Serve, whole: fn() -> clap::Command, ui: &Ui) -> Result<Exit> {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in environment::unknown(set, &whole()) {
        tracing::warn!(name, "unknown environment variable, ignored");
    }
    let config = args.settings.load()?;
    let first = match (args.init, args.join) {
        (true, _) => First::Init,
        (_, Some(log)) => First::Join(log),
        _ => First::Wait,
    };
    let (stop, stopped) = oneshot::channel();
    signals::on_stop(move || _ = stop.send(()))?;
    // From here on a hangup ends nothing: clients are served before all of the server stands.
    let reload = Arc::<Notify>::default();
    let told = reload.clone();
    signals::on_hangup(move || told.notify_one())?;
    let runtime = runtime(config.threads)?;
    let ended = runtime.block_on(async {
        let server = Server::start(config, first, reload).await?;
        announce(&server, ui);
        let listens = Duration::from_millis(server.config.cluster.election_timeout_millis);
        let (host, client) = (server.host.clone(), server.address.client.clone());
        let founded = tokio::spawn(announce_founding(host, server.config.node, client, listens, *ui));
        let moved = tokio::spawn(warn_if_moved(server.host.clone(), server.address.clone()));
        // Fails if not under systemd, which is fine.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let _ = stopped.await;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        founded.abort();
        moved.abort();
        let node = server.config.node;
        ui.say(&format!("node {node} is shutting down"));
        let ended = server.shutdown(true).await;
        if ended.is_ok() {
            ui.say(&format!("node {node} has shut down in order"));
        }
        ended
    });
    // A call that still blocks does not delay the end.
    runtime.shutdown_background();
    ended.map(|()| Exit::Ok)
}

fn log_name(log: &Log) -> String {
    format!("log {}", chiplog_net::wire::ids::to_hex(log.log_id().get()))
}

/// Reports the addresses and the replica on standard error.
fn announce(server: &Server, ui: &Ui) {
    let address = &server.address;
    let what = match server.host.opened() {
        Some(log) if awaits_its_leader(log) => format!(
            "waiting to be added to {}: run `chiplog member add {} --cluster HOST:PORT` with a server of that log",
            log_name(log),
            address.client
        ),
        Some(log) => log_name(log),
        None => "has no replica yet".into(),
    };
    let (node, client, peer) = (server.config.node, &address.client, &address.peer);
    let logspec = &server.config.listen.logspec;
    let ports: String = logspec.iter().map(|at| format!(", {} at {}", at.log, at.address)).collect();
    ui.say(&format!("node {node} serves clients at {client}{ports}, peers at {peer}; {what}"));
}

/// Warns once if a server has another address than its cluster has stored: the others cannot reach it. A
/// replica may be behind the cluster's state, and a leader announces its new address itself, so the server
/// waits a while first.
async fn warn_if_moved(host: Arc<LogSlot>, here: Address) {
    let mut since = None;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(log) = host.opened() else { continue };
        let replica = log.status().replica;
        let Some(member) = replica.members.iter().find(|m| m.node == replica.node) else { continue };
        let Ok(known) = member.address.parse::<Address>() else { return };
        if (&known.client, &known.peer) == (&here.client, &here.peer) {
            return;
        }
        let begun = *since.get_or_insert_with(Instant::now);
        if begun.elapsed() > LEARNS {
            let node = replica.node;
            tracing::warn!(
                %node,
                "this server is at {} (peers: {}), but its cluster has it at {} (peers: {}), so the others cannot reach it. Announce the new address with `chiplog member set-address {node} --client {0} --peer {1} --cluster HOST:PORT`, or start the server at the old one",
                here.client,
                here.peer,
                known.client,
                known.peer,
            );
            return;
        }
    }
}

/// Reports what a waiting server waits for, unless a cluster calls it as its member; it `listens` for that
/// first. Reports again when the server has a replica, and when the replica hears from its leader.
async fn announce_founding(host: Arc<LogSlot>, node: u64, client: String, listens: Duration, ui: Ui) {
    if host.opened().is_none() {
        tokio::time::sleep(listens).await;
        if host.opened().is_none() && host.called_as().is_none() {
            ui.say(&format!(
                "node {node} is waiting: `chiplog member init {client}` makes a new cluster, `chiplog member add {client}` adds it to one"
            ));
        }
        let log = loop {
            match host.opened() {
                Some(log) => break log_name(log),
                None => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        };
        ui.say(&format!("node {node} now has a replica of {log}"));
    }
    if let Some(log) = host.opened().filter(|log| awaits_its_leader(log)) {
        while awaits_its_leader(log) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        ui.say(&format!("node {node} now belongs to the cluster"));
    }
}
