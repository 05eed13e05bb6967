//! `chiplog serve`: a replica of a cluster, and its services.

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
use tokio::sync::oneshot;

/// So often a server that waits looks whether it still does.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// So long a replica may take to learn of a change of its address that was made while it was away.
const LEARNS: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  chiplog serve --node 1 --data ./1 --init           a new cluster of one server, on this machine
  chiplog serve --config /etc/chiplog.toml           waits for `chiplog member add`, or goes on with its replica
  chiplog serve --config chiplog.toml --set log.segment_bytes=128MiB
  chiplog dev                                        three servers in one process, to try";

/// Run a server: a replica of a cluster, for clients over gRPC.
///
/// Configured by a TOML file, by environment variables and by flags; flags win, then the environment. Every key has a
/// variable (see --set). `chiplog config show` prints all keys that have a value.
///
/// In a directory that holds a replica the server goes on with it. In an empty one it waits until `chiplog member
/// init` makes it the first of a cluster or `chiplog member add` takes it into one; --init and --join say so at once.
///
/// SIGTERM and Ctrl-C end it in order: it is not ready any more, takes no new calls, lets another replica lead, ends
/// its streams and closes the log (status 0). A second signal ends it at once; nothing confirmed is lost by that.
///
/// SIGHUP has it read certificates and tokens again; it also looks at them by itself. What cannot be used changes nothing,
/// and is said in its log and its figures.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: Settings,

    /// If the directory is empty, make a new cluster with this server as its only voter. Once, on one server.
    ///
    /// Without it, too, node 1 takes a log that a program kept on its own for the first replica of a cluster, for good.
    /// Where there is a replica of a cluster it changes nothing. Still, leave it out of a service's command once the cluster is
    /// made: on a disk that was emptied, or is not mounted, it would make another cluster.
    /// A replica that was to join another log, and was never added to it, is refused.
    #[arg(long, conflicts_with = "join")]
    init: bool,

    /// If the directory is empty, make an empty replica of this log; `chiplog member add` has to add it. All 32 digits of its
    /// id, as `chiplog status` shows them. A directory with another log is refused.
    #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
    join: Option<LogId>,
}

fn log_id(text: &str) -> Result<LogId, String> {
    chiplog_net::wire::ids::from_hex(text).map(LogId).map_err(|e| e.to_string())
}

/// What a server is told, from all sources.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server options")]
pub(crate) struct Settings {
    /// Configuration file.
    #[arg(long, env = "CHIPLOG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// This server's number in its cluster, from 1. Never that of another server, nor of one that was removed.
    #[arg(long, env = "CHIPLOG_NODE", value_name = "N")]
    node: Option<String>,

    /// The log's directory. Default /var/lib/chiplog.
    #[arg(long, env = "CHIPLOG_DATA", value_name = "DIR")]
    data: Option<String>,

    /// Where to listen for clients. Default 127.0.0.1:7411.
    #[arg(long, env = "CHIPLOG_LISTEN_CLIENT", value_name = "HOST:PORT")]
    listen_client: Option<String>,

    /// Where to listen for the other replicas. Default 127.0.0.1:7412.
    #[arg(long, env = "CHIPLOG_LISTEN_PEER", value_name = "HOST:PORT")]
    listen_peer: Option<String>,

    /// Where to listen for probes and metrics; empty: nowhere. Default 127.0.0.1:7413.
    #[arg(long, env = "CHIPLOG_LISTEN_HTTP", value_name = "HOST:PORT")]
    listen_http: Option<String>,

    /// How clients reach this server, if not where it listens.
    #[arg(long, env = "CHIPLOG_ADVERTISE_CLIENT", value_name = "HOST:PORT")]
    advertise_client: Option<String>,

    /// How the other replicas reach this server, if not where it listens.
    #[arg(long, env = "CHIPLOG_ADVERTISE_PEER", value_name = "HOST:PORT")]
    advertise_peer: Option<String>,

    /// A label of the place the server stands in.
    #[arg(long, env = "CHIPLOG_ZONE")]
    zone: Option<String>,

    /// Let listeners beyond this machine go without TLS.
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

    /// Set any key of the file, such as log.capacity_bytes=10GiB. Any number of times.
    ///
    /// The environment can do it as well: CHIPLOG__ and the key in capitals, with __ for its dot, such as
    /// CHIPLOG__LOG__CAPACITY_BYTES=10GiB. Flags win over that, and so do variables such as CHIPLOG_ZONE.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// The configuration that they come to.
    pub(crate) fn load(&self) -> Result<Config> {
        self.load_of(None)
    }

    /// The same, with a file that was named otherwise than by --config. It wins over the environment's.
    ///
    /// # Errors
    /// Also where there are two.
    pub(crate) fn load_of(&self, file: Option<&Path>) -> Result<Config> {
        if file.is_some() && self.config.is_some() && std::env::var_os("CHIPLOG_CONFIG").is_none() {
            return Err(Failure::usage("give one file: by itself, or with --config"));
        }
        // Text, whatever it looks like; but a number where there is to be one.
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
            ("node", "node", self.node.clone()),
            ("insecure", "insecure", self.insecure.map(|insecure| insecure.to_string())),
        ] {
            let variable = flag.to_uppercase().replace('-', "_");
            let by = format!("--{flag}, or CHIPLOG_{variable}");
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
        tracing::warn!(name, "an environment variable that means nothing to chiplog");
    }
    let config = args.settings.load()?;
    let first = match (args.init, args.join) {
        (true, _) => First::Init,
        (_, Some(log)) => First::Join(log),
        _ => First::Wait,
    };
    let (stop, stopped) = oneshot::channel();
    signals::on_stop(move || _ = stop.send(()))?;
    let runtime = runtime(config.threads)?;
    let ended = runtime.block_on(async {
        let server = Server::start(config, first).await?;
        let reload = server.reload.clone();
        signals::on_hangup(move || reload.notify_one())?;
        announce(&server, ui);
        let listens = Duration::from_millis(server.config.cluster.election_timeout_millis);
        let (host, client) = (server.host.clone(), server.address.client.clone());
        let founded = tokio::spawn(announce_founding(host, server.config.node, client, listens, *ui));
        let moved = tokio::spawn(warn_if_moved(server.host.clone(), server.address.clone()));
        // Not under systemd: nobody to tell.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let _ = stopped.await;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        founded.abort();
        moved.abort();
        let node = server.config.node;
        ui.say(&format!("node {node} ends"));
        let ended = server.shutdown(true).await;
        if ended.is_ok() {
            ui.say(&format!("node {node} has ended in order"));
        }
        ended
    });
    // A call that still blocks does not hold up the end.
    runtime.shutdown_background();
    ended.map(|()| Exit::Ok)
}

fn log_name(log: &Log) -> String {
    format!("log {}", chiplog_net::wire::ids::to_hex(log.info().log_id.get()))
}

/// Says on standard error what there is.
fn announce(server: &Server, ui: &Ui) {
    let address = &server.address;
    let what = match server.host.opened() {
        Some(log) if awaits_its_leader(log) => format!(
            "waits to be added to {}: `chiplog member add {} --cluster HOST:PORT` of a server of that log",
            log_name(log),
            address.client
        ),
        Some(log) => log_name(log),
        None => "has no replica yet".into(),
    };
    let (node, client, peer) = (server.config.node, &address.client, &address.peer);
    ui.say(&format!("node {node} serves clients at {client}, peers at {peer}; {what}"));
}

/// Warns, once, of a server that stands elsewhere than its cluster takes it to: the others do not find it. A replica may be behind
/// what the cluster knows, and a leader tells its new address itself: it is given a while.
async fn warn_if_moved(host: Arc<LogSlot>, here: Address) {
    let mut since = None;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(log) = host.opened() else { continue };
        let status = log.status();
        let Some(member) = status.members.iter().find(|m| m.node == status.node) else { continue };
        let Ok(known) = member.address.parse::<Address>() else { return };
        if (&known.client, &known.peer) == (&here.client, &here.peer) {
            return;
        }
        let begun = *since.get_or_insert_with(Instant::now);
        if begun.elapsed() > LEARNS {
            let node = status.node;
            tracing::warn!(
                %node,
                "this server is at {}, for peers {}, and its cluster has it at {}, for peers {}: the others do not find it. `chiplog member set-address {node} --client {0} --peer {1} --cluster HOST:PORT` tells them, or start it where it was",
                here.client,
                here.peer,
                known.client,
                known.peer,
            );
            return;
        }
    }
}

/// Says of a server that waits what it waits for, unless a cluster calls it as its member, for which it `listens` first; and
/// when it does not wait any more: it has a replica, and that hears from its leader.
async fn announce_founding(host: Arc<LogSlot>, node: u64, client: String, listens: Duration, ui: Ui) {
    if host.opened().is_none() {
        tokio::time::sleep(listens).await;
        if host.opened().is_none() && host.called_as().is_none() {
            ui.say(&format!(
                "node {node} waits: `chiplog member init {client}` makes a cluster, `chiplog member add {client}` takes it into one"
            ));
        }
        let log = loop {
            match host.opened() {
                Some(log) => break log_name(log),
                None => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        };
        ui.say(&format!("node {node} has a replica of {log} now"));
    }
    if let Some(log) = host.opened().filter(|log| awaits_its_leader(log)) {
        while awaits_its_leader(log) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        ui.say(&format!("node {node} is part of the cluster now"));
    }
}
