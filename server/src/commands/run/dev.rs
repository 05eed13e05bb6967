//! `chiplog dev`: a cluster of three servers in one process, for trials.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::common::runtime::runtime;
use crate::common::scratch::Scratch;
use crate::common::signals;
use crate::connect::cluster::REPORT_AFTER;
use crate::connect::directory::{check_no_backup, check_no_others, has_segments, is_log};
use crate::connect::target;
use crate::serve::{Config, First, Server};
use chiplog::cluster::{Change, Role};
use chiplog::{ErrorKind, Index, Log, NodeId, ReadOnlyLog};
use chiplog_net::peer::GROUPS_MAX;
use chiplog_net::service::admin::Founding;
use chiplog_net::wire::address::Address;
use clap::Args;
use serde_json::json;
use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const EXAMPLES: &str = "\
Examples:
  chiplog dev                    three servers; all files are removed after Ctrl-C
  chiplog dev --data ./cluster   the same, kept: started again, the cluster continues, and all its servers vote";

/// Run a cluster of three servers in one process, on this machine, without configuration.
///
/// For trials, and for tests of programs. Prints the addresses and some commands, and serves until Ctrl-C.
/// Its files are then removed, unless --data keeps them.
///
/// With --json one object is printed once the cluster serves: log_id, and servers (each {"node", "client",
/// "peer", "http", "data"}).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Dev {
    /// Keep the replicas in this directory, and continue with those in it. A backup, and a directory with other
    /// files, are refused.
    #[arg(long, value_name = "DIR", value_parser = target::directory)]
    data: Option<PathBuf>,

    /// The first of nine ports: for clients, peers and probes of each server. 0: any free ports, not with
    /// --data.
    #[arg(long, default_value_t = 7411, value_parser = whole_number::<u16>("a port", 0..=u16::MAX.into()))]
    port: u16,

    /// The number of groups of named logs (`chiplog logs`). 0: the servers keep no named logs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>("a number of groups", 0..=GROUPS_MAX.into()))]
    groups: u32,
}

const NODES: u16 = 3;
/// How long the servers may take to be one cluster.
const PATIENCE: Duration = Duration::from_secs(60);
/// Begins the name of a directory that is not kept.
const PREFIX: &str = "chiplog-dev-";

pub(crate) fn run(args: &Dev, ui: &Ui) -> Result<Exit> {
    if args.data.is_some() && args.port == 0 {
        return Err(Failure::usage(
            "--port 0 cannot be used with --data: the kept replicas have each other's ports stored",
        ));
    }
    if args.port > u16::MAX - 3 * NODES {
        return Err(Failure::usage("--port is too high: nine ports are needed"));
    }
    if let Some(dir) = &args.data {
        check_data(dir)?;
    }
    let (stop, stopped) = oneshot::channel();
    signals::on_stop(move || _ = stop.send(()))?;
    let scratch = match args.data {
        Some(_) => None,
        None => Some(Scratch::make(&std::env::temp_dir(), PREFIX)?),
    };
    let dir = scratch.as_ref().map_or_else(|| args.data.clone().unwrap_or_default(), |s| s.dir().into());
    let runtime = runtime(None)?;
    let ended = runtime.block_on(async {
        let (mut servers, mut stopped) = (Vec::new(), stopped);
        let begun = tokio::select! {
            begun = start(args, &dir, &mut servers, ui) => Some(begun),
            _ = &mut stopped => None,
        };
        let mut ended = match begun {
            Some(Ok(())) => {
                let announced = announce(&servers, args, ui);
                if announced.is_ok() {
                    let _ = stopped.await;
                }
                announced
            }
            Some(failed) => failed,
            None => Ok(()),
        };
        for server in servers {
            ended = ended.and(server.shutdown(false).await);
        }
        ended
    });
    runtime.shutdown_background();
    drop(scratch);
    ended.map(|()| Exit::Ok)
}

/// Checks that no other process listens at these ports.
///
/// # Errors
/// `Locked`: a port is in use.
fn are_free(mut ports: Range<u16>) -> Result<()> {
    let is_taken = |port: &u16| {
        TcpListener::bind(("127.0.0.1", *port)).is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse)
    };
    match ports.find(is_taken) {
        None => Ok(()),
        Some(port) => {
            let what = format!(
                "port {port} is in use; choose nine others by --port FIRST, or any free ones by --port 0"
            );
            Err(Failure::new(ErrorKind::Locked, what))
        }
    }
}

/// Checks that a directory is one of an earlier run, or has nothing else.
///
/// # Errors
/// It is a backup or the directory of one log, or it has other files and no cluster.
fn check_data(dir: &Path) -> Result<()> {
    check_no_backup(dir)?;
    if is_log(dir) || has_segments(dir) {
        let what = format!("{} holds a log: give another directory for the cluster", dir.display());
        return Err(Failure::usage(what));
    }
    let nodes: Vec<PathBuf> = (1..=NODES).map(|node| node_directory(dir, node)).collect();
    if nodes.iter().any(|node| is_log(node)) {
        return Ok(());
    }
    let below = dir.join("cluster");
    let instead = format!("give an empty or a new one, which may be below it, such as {}", below.display());
    check_no_others(dir, |path| nodes.iter().any(|node| node == path), &instead)
}

/// The directory of a server.
fn node_directory(dir: &Path, node: u16) -> PathBuf {
    dir.join(format!("node{node}"))
}

/// The ports of a server: for clients, peers and probes. All 0: any free ones.
fn ports(first: u16, node: u16) -> [u16; 3] {
    [0, 1, 2].map(|n| if first == 0 { 0 } else { first + 3 * (node - 1) + n })
}

/// Checks that the replicas of an earlier run know each other at these ports: they would never find a leader elsewhere.
///
/// # Errors
/// `InvalidArgument`: they were made with others.
fn check_ports(dir: &Path, first: u16) -> Result<()> {
    for node in 1..=NODES {
        // A replica that cannot be read is reported when it is opened.
        let view = ReadOnlyLog::open(node_directory(dir, node));
        let members = view.ok().and_then(|view| view.members()).unwrap_or_default();
        for member in members {
            let (Ok(node @ 1..=NODES), Ok(known)) =
                (u16::try_from(member.node.get()), member.address.parse::<Address>())
            else {
                continue;
            };
            let [client, peer, _] = ports(first, node).map(|port| format!("127.0.0.1:{port}"));
            if (&known.client, &known.peer) == (&client, &peer) {
                continue;
            }
            let before = known.client.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            let before = before.and_then(|port| port.checked_sub(3 * (node - 1)));
            let (dir, last) = (dir.display(), first + 3 * NODES - 1);
            let words = match before.and_then(|before| Some((before, before.checked_add(3 * NODES - 1)?))) {
                Some((from, to)) => format!("has the ports {from} to {to}: give --port {from}"),
                None => {
                    format!("has node {node} at {} (peers: {}): give its ports", known.client, known.peer)
                }
            };
            return Err(Failure::usage(format!(
                "the cluster in {dir} {words}, because its replicas find each other there alone; for a new cluster at the ports {first} to {last} give another directory"
            )));
        }
    }
    Ok(())
}

/// Starts the servers one by one, and makes a cluster of them.
async fn start(args: &Dev, dir: &Path, servers: &mut Vec<Server>, ui: &Ui) -> Result<()> {
    let port = args.port;
    if port > 0 {
        check_ports(dir, port)?;
        are_free(port..port + 3 * NODES)?;
    }
    for n in 0..NODES {
        let mut config = Config { node: u64::from(n) + 1, groups: args.groups, ..Config::default() };
        config.data = node_directory(dir, n + 1);
        let at = ports(port, n + 1).map(|port| format!("127.0.0.1:{port}"));
        [config.listen.client, config.listen.peer, config.listen.http] = at;
        // Small enough for a laptop.
        config.log.segment_bytes = Some(crate::serve::size::Size(16 << 20));
        config.cluster.election_timeout_millis = 500;
        config.cluster.heartbeat_millis = 100;
        servers.push(Server::start(config, First::Wait, Arc::default()).await?);
    }
    assemble(servers, ui).await
}

/// Makes one cluster of the servers, or continues where an earlier attempt stopped.
async fn assemble(servers: &[Server], ui: &Ui) -> Result<()> {
    let Some((first, others)) = servers.split_first() else { return Ok(()) };
    if first.host.opened().is_none() {
        first.found(Founding::Init { force: true }).await?;
    }
    let Some(log_id) = first.host.opened().map(|log| log.log_id()) else { return Ok(()) };
    for server in others {
        if server.host.opened().is_none() {
            server.found(Founding::Join { log: log_id, first: Index(0) }).await?;
        }
    }
    let (begun, mut is_reported) = (Instant::now(), false);
    for server in others {
        while let Err(error) = take_in(servers, server).await {
            if !error.is_retryable() || begun.elapsed() > PATIENCE {
                return Err(error.into());
            }
            if begun.elapsed() > REPORT_AFTER && !is_reported {
                is_reported = true;
                let seconds = PATIENCE.as_secs();
                ui.say(&format!("waiting up to {seconds} s for the servers to be one cluster: {error}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Adds a server and lets it vote, step by step.
async fn take_in(servers: &[Server], server: &Server) -> chiplog::Result<()> {
    let leads = |log: &&Log| log.role() == Role::Leader;
    let leader = servers.iter().filter_map(|s| s.host.opened()).find(leads);
    let (Some(leader), Some(log)) = (leader, server.host.opened()) else {
        return Err(chiplog::Error::new(ErrorKind::Unavailable, "there is no leader"));
    };
    let node = NodeId(server.config.node);
    let add = Change::AddLearner { node, directory: log.directory_id(), address: server.address.to_string() };
    let (leader, promote) = (leader.clone(), Change::Promote(node));
    let steps = move || {
        let timeout = Duration::from_secs(30);
        let known = |log: &Log| log.status().replica.members.into_iter().find(|m| m.node == node);
        if known(&leader).is_none() {
            leader.change_members(&[add], timeout)?;
        }
        if known(&leader).is_some_and(|m| m.is_voter()) {
            return Ok(());
        }
        leader.change_members(&[promote], timeout)
    };
    tokio::task::spawn_blocking(steps)
        .await
        .unwrap_or_else(|_| Err(chiplog::Error::new(ErrorKind::Poisoned, "a thread panicked")))
}

fn announce(servers: &[Server], args: &Dev, ui: &Ui) -> Result<()> {
    let log_id = servers.first().and_then(|s| s.host.opened()).map(|log| log.log_id().get());
    let log_id = chiplog_net::wire::ids::to_hex(log_id.unwrap_or(0));
    let list: Vec<_> = servers
        .iter()
        .map(|s| {
            let http = s.http.map(|at| at.to_string());
            json!({ "node": s.config.node, "client": s.address.client, "peer": s.address.peer, "http": http, "data": s.config.data })
        })
        .collect();
    ui.result(&json!({ "log_id": log_id, "servers": list }), |_| {
        let mut out = format!("A cluster of {} serves log {log_id}.\n\n", servers.len());
        for server in servers {
            let http = server.http.map_or("-".into(), |at| at.to_string());
            _ = writeln!(out, "  node {}  clients {}  probes http://{http}", server.config.node, server.address.client);
        }
        let client = servers.first().map_or("", |s| s.address.client.as_str());
        let http = servers.first().and_then(|s| s.http).map_or(String::new(), |at| at.to_string());
        let named = match args.groups {
            0 => String::new(),
            _ => format!("  chiplog logs create {client} orders\n  seq 10 | chiplog append {client}/orders\n"),
        };
        _ = write!(
            out,
            "\nTry, in another terminal:\n  chiplog status {client}\n{named}  chiplog transfer-leader --cluster {client}\n  chiplog member demote 3 --cluster {client}\n  curl http://{http}/metrics\n  grpcurl -plaintext {client} list\n\nCtrl-C ends it{}.\n",
            if args.data.is_none() { " and removes its data" } else { "" }
        );
        out
    })
}
